"""NextSentence: the pre-trained heads on sentence pairs, by the commands, as a model of strings, and in transformers."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import NextSentenceHead
from bert_keras.tasks.batches import predict
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.options import SENTENCE_PAIR_LABELS
from bert_keras.tasks.problems.next_sentence import NextSentence
from bert_keras.tasks.runs.run_folder import load_run, run_of
from bert_keras.tasks.runs.task_types import TASKS, open_task
from bert_keras.text.vocabulary import Vocabulary

PAIRS = [
    ("bad .", "! good"),
    ("the plot is dull the scene", "warm its warm"),
    ("a warm scene", ""),
    ("", "bad"),
]
ALBERT = {"embedding_size": 16, "share_layers": True}
COLUMNS = ("sentence", "next_sentence")


def write(folder, *, labels=None, **changes):
    """A checkpoint with a random head on sentence pairs, in Hugging Face's form."""
    keras.utils.set_random_seed(0)
    config = BertConfig(**(runs.SIZES | changes))
    encoder = BertEncoder(config)
    made = checkpoints.collect(config, encoder, next_sentence=NextSentenceHead(config=config))
    made.tensors["next_sentence/dense/bias"][:] = (-0.45, 0.0)  # so that both labels are predicted
    made = dataclasses.replace(made, vocabulary=Vocabulary(runs.VOCABULARY, lower_case=True), labels=labels)
    checkpoints.write(made, folder, format="hugging-face")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write(tmp_path_factory.mktemp("pairs") / "checkpoint")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Labelled pairs: the second text of each tells the label."""
    folder = tmp_path_factory.mktemp("data")
    for seed, split in enumerate(("train", "dev")):
        first, second = runs.texts(32, seed=seed), runs.texts(32, seed=seed + 9)
        rows = [(a, b, "is_next" if b < "g" else "not_next") for a, b in zip(first, second, strict=True)]
        lines = ["\t".join(row) for row in [(*COLUMNS, "label"), *rows]]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def columns(pairs=PAIRS):
    return dict(zip(COLUMNS, map(list, zip(*pairs, strict=True)), strict=True))


def logits_of(checkpoint, pairs=PAIRS):
    """The head on the pooled output of the encoder, without the task."""
    read = checkpoints.read(checkpoint)
    encoder, head = BertEncoder(read.config), NextSentenceHead(config=read.config)
    checkpoints.assign(read, encoder, next_sentence=head)
    preprocess = bk.Preprocessor(checkpoints.tokenizer_of(read), seq_length=read.config.max_length)
    return head(encoder(preprocess(*columns(pairs).values()))["pooled_output"]).numpy()


def test_class_0_is_the_text_that_follows(checkpoint):
    assert SENTENCE_PAIR_LABELS == {
        "next-sentence": ("is_next", "not_next"),
        "sentence-order": ("in_order", "swapped"),
    }
    run = run_of(open_task("next-sentence", None), checkpoint)
    found, _ = predict(
        run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(columns()), batch_size=2
    )
    expected = logits_of(checkpoint)
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(expected), atol=1e-6)
    assert found["label"].tolist() == [(b"is_next", b"not_next")[i] for i in expected.argmax(axis=1)]
    assert len({*found["label"]}) == 2, "the pairs tell the labels apart"


def test_predict_and_evaluate_take_a_checkpoint(checkpoint, data, tmp_path, capfd):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(dict(zip(COLUMNS, pair, strict=True))) + "\n" for pair in PAIRS))
    of = ("--checkpoint", checkpoint, "--task", "next-sentence")
    code, out, err = runs.run_command(capfd, "predict", *of, "--input", file, "--format", "jsonl")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    np.testing.assert_allclose(
        [row["probabilities"] for row in rows], tf.nn.softmax(logits_of(checkpoint)), atol=1e-6
    )
    code, out, err = runs.run_command(capfd, "evaluate", *of, "--data", data / "dev.tsv", "--json")
    assert code == 0, err
    lines = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    logits = logits_of(checkpoint, [tuple(line[:2]) for line in lines])
    right = [("is_next", "not_next")[i] == line[2] for i, line in zip(logits.argmax(1), lines, strict=True)]
    assert json.loads(out)["validation"] == {"accuracy": pytest.approx(np.mean(right))}


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--run", "r", "--task", "next-sentence"),
        ("--run", "r", "--top-k", "3"),
        ("--task", "next-sentence"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_run_or_a_checkpoint_with_its_task(flags, command, capfd):
    code, _, err = runs.run_command(capfd, command, *flags)
    assert (code, "give --run alone, or --checkpoint; " in err) == (1, True)


def test_a_checkpoint_without_the_head_is_refused_before_any_work(data, tmp_path, capfd):
    headless = runs.write_checkpoint(tmp_path / "headless")
    of = ("--checkpoint", headless, "--task", "next-sentence")
    for command in (
        ("predict", *of),
        ("evaluate", *of, "--data", data),
        ("export", *of, "--output", tmp_path / "served"),
        ("finetune", *of, "--data", data, "--output", tmp_path / "run"),
    ):
        code, _, err = runs.run_command(capfd, *command)
        assert (code, err.count("\n")) == (1, 1), err
        assert "the checkpoint has no next-sentence head" in err and str(headless) in err
    with pytest.raises(BertKerasError, match="no next-sentence head"):
        bk.next_sentence(headless)
    assert [*tmp_path.iterdir()] == [headless]


@pytest.mark.parametrize(
    ("changes", "labels", "learned"),
    [
        ({}, None, "next-sentence"),
        (ALBERT, None, "sentence-order"),
        ({}, ("in_order", "swapped"), "sentence-order"),
        (ALBERT, ("is_next", "not_next"), "next-sentence"),
    ],
)
def test_the_task_must_be_what_the_head_has_learned(changes, labels, learned, tmp_path):
    folder = write(tmp_path / "checkpoint", labels=labels, **changes)
    other = next(name for name in SENTENCE_PAIR_LABELS if name != learned)
    assert run_of(open_task(learned, None), folder).task.label_names == SENTENCE_PAIR_LABELS[learned]
    with pytest.raises(BertKerasError, match=f"predicts {learned} .*not {other}"):
        run_of(open_task(other, None), folder)


def test_models_of_strings(checkpoint, tmp_path):
    model = bk.next_sentence(checkpoint)
    answers = model.predict(columns(), verbose=0)
    np.testing.assert_allclose(answers["probabilities"], tf.nn.softmax(logits_of(checkpoint)), atol=1e-6)
    order = bk.sentence_order(write(tmp_path / "albert", **ALBERT))
    assert order.problem.label_names == ("in_order", "swapped")


@pytest.mark.parametrize("name", SENTENCE_PAIR_LABELS)
def test_a_run_keeps_the_task(name):
    kept = json.loads(json.dumps(NextSentence(name).to_json()))
    assert kept == {"name": name}
    assert TASKS[NextSentence.kind].from_json(kept).label_names == SENTENCE_PAIR_LABELS[name]


@pytest.mark.slow
def test_training_continues_with_the_head(checkpoint, data, tmp_path):
    logged: list[str] = []
    results = finetune(
        NextSentence(source=data),
        checkpoint=checkpoint,
        output=tmp_path / "run",
        hparams=Hparams(epochs=1, batch_size=8, learning_rate=1e-4, seq_length=32),
        verbose=0,
        log=logged.append,
    )
    assert "randomly initialized: none" in "\n".join(logged)
    run = load_run(tmp_path / "run", data=data)
    assert isinstance(run.task, TASKS["next-sentence"]) and run.task.label_names == ("is_next", "not_next")
    assert results["measures"].keys() == {"val_accuracy"}
    kept = checkpoints.read(tmp_path / "run")
    assert (kept.labels, kept.architecture) == (("is_next", "not_next"), "ForNextSentencePrediction")


@pytest.mark.slow  # tests/test_serving_safety.py asks what it exports, tests/test_fill_mask.py the command
@pytest.mark.usefixtures("forked_answers")
def test_an_export_takes_two_strings(checkpoint, tmp_path, capfd):
    flags = ("--task", "next-sentence", "--seq-length", "24", "--target", "tfserving-2.10")
    code, _, err = runs.run_command(
        capfd, "export", "--checkpoint", checkpoint, *flags, "--output", tmp_path / "served"
    )
    assert code == 0, err
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    found = served(**{name: tf.constant(texts) for name, texts in columns().items()})
    assert {*found} == {"label", "probabilities"}
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(logits_of(checkpoint)), atol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["bert", "albert"])
def test_transformers_gives_the_same(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    transformers.logging.set_verbosity_error()
    sizes = {name: runs.SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size")}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48}
    sizes |= {"initializer_range": 0.2}
    torch.manual_seed(0)
    folder = tmp_path / kind
    if kind == "bert":
        model = transformers.BertForNextSentencePrediction(transformers.BertConfig(**sizes))
    else:
        model = transformers.AlbertForPreTraining(
            transformers.AlbertConfig(**sizes, embedding_size=16, inner_group_num=1)
        )
    model.eval().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(runs.VOCABULARY) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    theirs = transformers.BertTokenizerFast.from_pretrained(folder)
    run = run_of(open_task({"bert": "next-sentence", "albert": "sentence-order"}[kind], None), folder)
    found, _ = predict(run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(columns()))
    for pair, ours in zip(PAIRS, found["probabilities"], strict=True):
        if not pair[1]:
            continue  # its tokenizer takes an empty second text for none
        with torch.no_grad():
            outputs = model(**theirs(*pair, return_tensors="pt"))
        logits = outputs.logits if kind == "bert" else outputs.sop_logits
        np.testing.assert_allclose(ours, torch.softmax(logits, -1)[0].numpy(), atol=1e-5)
