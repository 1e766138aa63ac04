"""FillMask: masks between tokens, their served predictions, cloze files, the command, and transformers' own pipeline."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import (
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    VOCABULARY,
)
from bert_keras.io.formats import RUN, stamp
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.tasks.batches import dataset, predict
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.fill_mask import FillMask, _ranks
from bert_keras.tasks.runs.run_folder import Run, evaluate, load_run, run_of
from bert_keras.tasks.runs.task_types import TASKS
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.wordpiece import WordPiece

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the film is good bad ##ly dull [ ] mask ."
TEXTS = ("the film is [MASK].", "[MASK] film is [MASK]", "no mask at all", "", "[mask] [CLS] [MASK]")


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return WordPiece(PIECES.split())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random encoder with a masked LM head, in Hugging Face's form."""
    keras.utils.set_random_seed(0)
    config = BertConfig(**runs.SIZES)
    encoder = BertEncoder(config)
    made = checkpoints.collect(config, encoder, masked_lm=MaskedLMHead(encoder))
    made = dataclasses.replace(made, vocabulary=Vocabulary(runs.VOCABULARY, lower_case=True))
    folder = tmp_path_factory.mktemp("masked") / "checkpoint"
    checkpoints.write(made, folder, format="hugging-face")
    return folder


@pytest.fixture(scope="module")
def run(checkpoint) -> Run:
    return run_of(FillMask(top_k=3), checkpoint, seq_length=24)


def features_of(tokenizer, texts, *, seq_length=12, **raw):
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
    features = FillMask().features(preprocess, {"text": tf.constant(texts), **raw})
    return {name: value.numpy() for name, value in features.items()}


def spoken(tokenizer, features) -> list[str]:
    rows = ([tokenizer.vocabulary[i] for i in row if i] for row in features[INPUT_WORD_IDS])
    return [" ".join(row) for row in rows]


def test_masks_are_between_tokens_and_nowhere_else(tokenizer):
    features = features_of(tokenizer, TEXTS)
    assert spoken(tokenizer, features) == [
        "[CLS] the film is [MASK] . [SEP]",
        "[CLS] [MASK] film is [MASK] [SEP]",
        "[CLS] [UNK] mask [UNK] [UNK] [SEP]",
        "[CLS] [SEP]",
        "[CLS] [ mask ] [ [UNK] ] [MASK] [SEP]",
    ]
    assert features[MASKED_LM_POSITIONS].tolist() == [[4, 0], [1, 4], [0, 0], [0, 0], [7, 0]]
    assert features[MASKED_LM_WEIGHTS].tolist() == [[1, 0], [1, 1], [0, 0], [0, 0], [1, 0]]
    assert features[VOCABULARY].tolist() == [piece.encode() for piece in tokenizer.vocabulary]


def test_ordinary_tokenizing_never_gives_the_mask(tokenizer):
    plain = tokenizer.tokenize(tf.constant(TEXTS))
    assert tokenizer.special.mask not in plain.values.numpy()


def test_truncated_masks_have_no_loss_and_no_prediction(tokenizer):
    """A text of masks alone must not make logits for all of them."""
    features = features_of(tokenizer, ["[MASK] the the the [MASK] [MASK]", "film"], seq_length=6)
    assert spoken(tokenizer, features)[0] == "[CLS] [MASK] the the the [SEP]"
    assert features[MASKED_LM_WEIGHTS].tolist() == [[1], [0]]
    texts = ["[MASK] " * 3000, "the [MASK]"]
    assert features_of(tokenizer, texts, seq_length=6)[MASKED_LM_POSITIONS].shape == (2, 4)
    answers = decoded(tokenizer, texts, [["film"] * 4, ["film"]], seq_length=6)
    assert [answers[name].shape for name in ("mask_start_byte", "mask_tokens")] == [(2, 3000), (2, 3000, 2)]
    assert answers["mask_start_byte"][0, :3].tolist() == [0, 7, 14]
    assert answers["mask_tokens"][0, 3:5, 0].tolist() == [b"film", b""]
    assert answers["filled"][0].startswith(b"film film film film [MASK] ")


def test_answers_of_one_token_are_labels(tokenizer):
    texts = ["the [MASK]"] * 5
    answers = tf.constant(["film", "badly", "word", "", "GOOD"])
    features = features_of(tokenizer, texts, answer=answers)
    assert features[MASKED_LM_IDS][:, 0].tolist() == [6, -1, -1, -1, 8]
    labels, weights = FillMask().labels({}, features)
    assert labels.numpy()[:, 0].tolist() == [6, 0, 0, 0, 8]
    assert weights.numpy()[:, 0].tolist() == [1, 0, 0, 0, 1]


def decoded(tokenizer, texts, best, *, answer=None, seq_length=12):
    """The served outputs if the logits are highest for the tokens `best` [B][M], then for the first tokens."""
    raw = {"text": tf.constant(texts)} | ({} if answer is None else {"answer": tf.constant(answer)})
    task, preprocess = FillMask(top_k=2), Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
    features = task.features(preprocess, raw)
    positions = features[MASKED_LM_POSITIONS].shape
    # More rows than pieces.
    logits = np.tile(-np.arange(tokenizer.vocab_size + 3, dtype="float32"), (*positions, 1))
    for i, row in enumerate(best):
        for j, piece in enumerate(row):
            logits[i, j, tokenizer.vocabulary.index(piece)] = 5
    answers = task.decode(tf.constant(logits), features, raw)
    return {name: value.numpy() for name, value in answers.items()}


def test_decode(tokenizer):
    texts = ["é [MASK] is [MASK].", "no", "good [MASK]", "a [MASK] the the the the the the the the [MASK]"]
    found = decoded(tokenizer, texts, [["film", "dull"], [], ["##ly"], ["bad"]])
    assert found["mask_start_byte"].tolist() == [[3, 13], [-1, -1], [5, -1], [2, 41]]
    assert found["mask_tokens"].tolist() == [
        [[b"film", b"[PAD]"], [b"dull", b"[PAD]"]],
        [[b"", b""], [b"", b""]],
        [[b"##ly", b"[PAD]"], [b"", b""]],
        [[b"bad", b"[PAD]"], [b"", b""]],
    ]
    best = np.exp(5)
    total = best + np.exp(-np.arange(16.0)).sum() - np.exp(-6)
    assert found["mask_scores"][0, 0].tolist() == pytest.approx([best / total, 1 / total])
    assert (found["mask_scores"][1] == 0).all()
    assert [text.decode() for text in found["filled"]] == [
        "é film is dull.",
        "no",
        "goodly",
        "a bad the the the the the the the the [MASK]",
    ]


def test_scores_are_probabilities_over_the_vocabulary(tokenizer):
    task = FillMask(top_k=99)
    raw = {"text": tf.constant(["[MASK]"])}
    features = task.features(Preprocessor(tokenizer, seq_length=8), raw)
    found = task.decode(tf.random.normal([1, 1, tokenizer.vocab_size + 50]), features, raw)
    assert found["mask_scores"].shape == (1, 1, tokenizer.vocab_size)
    assert found["mask_scores"].numpy().sum() == pytest.approx(1)


def test_records_contain_no_padding(tokenizer):
    found = decoded(tokenizer, ["[MASK] [MASK]", "good"], [["film", "dull"], []])
    first, second = (FillMask().record({name: value[i] for name, value in found.items()}) for i in (0, 1))
    assert [mask["tokens"] for mask in first["masks"]] == [["film", "[PAD]"], ["dull", "[PAD]"]]
    assert [mask["start_byte"] for mask in first["masks"]] == [0, 7]
    assert second == {"filled": "good", "masks": []}


def test_measures(tokenizer):
    # By place: film is first; the is 6th of [film, 0 .. 4, the]; badly is no piece.
    found = decoded(tokenizer, ["[MASK]"] * 3, [["film"]] * 3, answer=["film", "the", "badly"])
    assert found["rank"].tolist() == [1, 7, 0]
    measures = dict(FillMask().evaluate(found, {}))
    reciprocal = pytest.approx((1 + 1 / 7) / 2)
    assert measures == {"accuracy": 0.5, "top_5": 0.5, "mean_reciprocal_rank": reciprocal, "skipped": 1.0}
    with pytest.raises(ValueError, match="all 3 examples are skipped: no answer is one token"):
        dict(FillMask().evaluate({"rank": np.zeros(3, int)}, {}))


def test_ties_share_a_rank_and_nan_is_last():
    nan, inf = float("nan"), float("inf")
    rows = [[4.0, 3, 2, 1], [1.0, 3, 2, 4], [2.0, 2, 2, 2], [3.0, 4, 3, 1]]
    rows += [[nan, 3, 2, 1], [nan] * 4, [2.0, nan, 1, 0], [-inf, 0, 0, 0]]
    logits = tf.constant(rows)
    assert _ranks(logits, logits[:, :1]).numpy().tolist() == [1, 4, 2.5, 2.5, 4, 4, 2, 4]


def test_a_causal_encoder_is_refused():
    with pytest.raises(ValueError, match="causal"):
        FillMask().model(BertEncoder(BertConfig(**runs.SIZES, causal=True)))


def write(path, rows):
    lines = [json.dumps(row) for row in rows] if path.suffix == ".jsonl" else ["\t".join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_files(tmp_path):
    rows = [{"text": "a [MASK]", "answer": "film"}, {"text": "[MASK] é", "answer": "plot"}]
    tsv = write(tmp_path / "a.tsv", [("answer", "text"), *((row["answer"], row["text"]) for row in rows)])
    for file in (tsv, write(tmp_path / "b.jsonl", rows)):
        found = FillMask(file).examples("validation").as_numpy_iterator()
        assert [{name: value.decode() for name, value in row.items()} for row in found] == rows
    write(tmp_path / "test.jsonl", [{"text": "a [MASK]"}])
    (row,) = FillMask(tmp_path).examples("test").as_numpy_iterator()
    assert row == {"text": b"a [MASK]", "answer": b""}
    (tmp_path / "test.jsonl").unlink()
    for header, line in ((("id", "text"), ("1", "a [MASK]")), (("text", "answer"), ("a [MASK]", ""))):
        write(tmp_path / "test.tsv", [header, line])
        (row,) = FillMask(tmp_path).examples("test").as_numpy_iterator()
        assert row == {"text": b"a [MASK]", "answer": b""}


def test_opened_without_data():
    assert TASKS["fill-mask"] is FillMask
    assert FillMask.from_json(FillMask(top_k=7).to_json()).top_k == 7
    assert FillMask.from_json({"name": "fill-mask", "top_k": 5}).top_k == 5
    for call in (FillMask.open("fill-mask").examples, FillMask().examples):
        with pytest.raises(ValueError, match="give a folder"):
            call("train")
    with pytest.raises(ValueError, match="top_k is 0"):
        FillMask(top_k=0)


@pytest.mark.long
def test_batches_predict_the_same_as_single_texts(run):
    texts = ["the film is [MASK] .", "", "[MASK] and [MASK] , the [MASK]", "plot " * 30 + "[MASK]", "good"]
    examples = tf.data.Dataset.from_tensor_slices({"text": texts})
    together, _ = predict(run.task, run.preprocess, run.model, examples, batch_size=3)
    for i, text in enumerate(texts):
        one = tf.data.Dataset.from_tensor_slices({"text": [text]})
        alone, _ = predict(run.task, run.preprocess, run.model, one)
        records = [
            run.task.record({name: value[row] for name, value in found.items()})
            for found, row in ((together, i), (alone, 0))
        ]
        assert records[0]["filled"] == records[1]["filled"]
        for ours, theirs in zip(*(record["masks"] for record in records), strict=True):
            assert (ours["start_byte"], ours["tokens"]) == (theirs["start_byte"], theirs["tokens"])
            np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-6)
    assert together["mask_start_byte"].shape == (5, 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, checkpoint):
    """A cloze test whose answer is always "good", learned."""
    folder = tmp_path_factory.mktemp("cloze")
    for seed, split in enumerate(("train", "validation")):
        texts = (f"{text} [MASK] ." for text in runs.texts(64, seed=seed))
        rows = [{"text": text, "answer": "good" if i else "goodlike"} for i, text in enumerate(texts)]
        write(folder / f"{split}.jsonl", rows)
    hparams = Hparams(epochs=2, batch_size=8, learning_rate=3e-3, seq_length=24)
    logged: list[str] = []
    options = {"checkpoint": checkpoint, "output": folder / "run", "hparams": hparams}
    skipped = "1 of 64 examples are skipped: their answer is not one token"
    with pytest.warns(UserWarning, match=skipped) as caught:
        results = finetune(FillMask(folder), **options, verbose=0, log=logged.append)
    assert len([one for one in caught if "skipped" in str(one.message)]) == 2  # once for each split
    return folder, results, logged


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:1 of 64 examples are skipped")
def test_finetuning_starts_from_the_head_and_learns(trained):
    folder, results, logged = trained
    assert results["measures"]["val_accuracy"] == 1
    assert results["measures"]["val_skipped"] == 1
    assert "randomly initialized: none" in "\n".join(logged)
    measures = {name.removeprefix("val_"): value for name, value in results["measures"].items()}
    assert evaluate(load_run(folder / "run", data=folder), "validation") == measures


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_export_predicts_in_a_fresh_process(run, checkpoint, tmp_path, capfd):
    flags = ("--task", "fill-mask", "--seq-length", "24", "--target", "tfserving-2.10")
    flags += ("--checkpoint", checkpoint, "--output", tmp_path / "served")
    code, _, err = runs.run_command(capfd, "export", *flags)
    assert code == 0, err
    run = dataclasses.replace(run, task=FillMask())
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    texts = ["the film is [MASK] .", "no"]
    found = served(text=tf.constant(texts))
    examples = tf.data.Dataset.from_tensor_slices({"text": texts})
    answers, _ = predict(run.task, run.preprocess, run.model, examples)
    assert set(found) == {"mask_start_byte", "mask_tokens", "mask_scores", "filled"}
    assert found["mask_tokens"].numpy().tolist() == answers["mask_tokens"].tolist()
    np.testing.assert_allclose(found["mask_scores"], answers["mask_scores"], atol=1e-6)


@pytest.mark.long
def test_a_pretraining_run_predicts(checkpoint, tmp_path, capfd):
    folder = tmp_path / "run"
    checkpoints.write(checkpoints.read(checkpoint), folder, format="hugging-face")
    kept = stamp(RUN) | {"kind": "fill-mask", "task": {"name": "fill-mask", "top_k": 5}}
    kept |= {"seq_length": 16, "truncation": "longest_first"}
    (folder / "task.json").write_text(json.dumps(kept))
    text, flags = "the film is [MASK] .", ("--checkpoint", folder, "--top-k", "2", "--json")
    code, out, err = runs.run_command(capfd, "fill-mask", *flags, text)
    assert code == 0, err
    answer = json.loads(out)
    (mask,) = answer["masks"]
    assert (answer["text"], mask["start_byte"], len(mask["tokens"])) == (text, 12, 2)
    (tmp_path / "texts.txt").write_text(f"{text}\n")
    flags = ("--run", folder, "--input", tmp_path / "texts.txt", "--format", "jsonl")
    code, out, err = runs.run_command(capfd, "predict", *flags)
    assert code == 0, err
    assert json.loads(out)["masks"][0]["tokens"][:2] == mask["tokens"]


def test_command_prints_tables(checkpoint, capfd):
    long = "plot " * 60 + "[MASK]"
    code, out, err = runs.run_command(capfd, "fill-mask", "--checkpoint", checkpoint, "the [MASK] is", long)
    assert code == 0, err
    assert "the [MASK] is" in out
    assert out.count("\n│ 1 ") == 1
    assert "1 of 1 [MASK] in " in err and "48 tokens" in err
    code, _, err = runs.run_command(capfd, "fill-mask", "--checkpoint", checkpoint, "nothing")
    assert (code, "there is no [MASK] in 'nothing'" in err) == (1, True)


def test_other_checkpoints_are_refused(sst2, capfd):
    code, _, err = runs.run_command(capfd, "fill-mask", "--checkpoint", sst2.checkpoint, "the [MASK]")
    assert code == 1 and re.search(r"has no masked LM head.*\[MASK\]; .* such as bert-base-uncased", err), err
    assert "masked_lm/" not in err and len(err.splitlines()) == 1
    code, _, err = runs.run_command(capfd, "fill-mask", "--checkpoint", sst2.run, "the [MASK]")
    assert (code, "is a run of sst2" in err) == (1, True)


def test_labelled_batches(tmp_path, tokenizer):
    file = write(tmp_path / "train.jsonl", [{"text": "the [MASK]", "answer": "film"}] * 3)
    task = FillMask(file)
    batches = dataset(task, Preprocessor(tokenizer, seq_length=8), task.examples("train"), batch_size=2)
    features, labels, weights = next(iter(batches))
    assert VOCABULARY not in features
    assert features[MASKED_LM_POSITIONS].shape == labels.shape == weights.shape == (2, 1)


@pytest.mark.parity
@pytest.mark.parametrize("real", [pytest.param(False, marks=pytest.mark.slow), True])
def test_transformers_pipeline_gives_the_same(checkpoint, real, request):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    if real:
        checkpoint = request.getfixturevalue("data_dir") / "weights" / "bert-tiny-splade-uncased"
    transformers.logging.set_verbosity_error()
    model = transformers.BertForMaskedLM.from_pretrained(checkpoint, attn_implementation="eager")
    fast = transformers.BertTokenizerFast.from_pretrained(checkpoint)
    pipeline = transformers.pipeline("fill-mask", model=model, tokenizer=fast, top_k=5)
    texts = ["the film is [MASK] .", "[MASK] and the plot , very good !", "its actor [MASK] [MASK]"]
    run = run_of(FillMask(), checkpoint)
    examples = tf.data.Dataset.from_tensor_slices({"text": texts})
    found, _ = predict(run.task, run.preprocess, run.model, examples)
    for i, text in enumerate(texts):
        theirs = pipeline(text)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        rows = zip(found["mask_tokens"][i], found["mask_scores"][i], theirs, strict=False)
        for tokens, scores, answers in rows:
            ids = [run.preprocess.tokenizer.vocabulary.index(token.decode()) for token in tokens]
            assert ids == [answer["token"] for answer in answers]
            np.testing.assert_allclose(scores, [answer["score"] for answer in answers], atol=1e-5)
