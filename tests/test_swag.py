"""SWAG and CODAH: files line by line, bad files, features and scores of K endings, a run from training to serving."""

import csv
import json
import random

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, POOLED_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.batches import dataset, predict
from bert_keras.tasks.data.tables import read_examples
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

HEADER = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
FIRST = 'v,1,A film. It,"A ""good"" film, ok.",It,gold,is good,is bad,"ends,\rslowly",is dull,2\r\n'
SECOND = "v,2,x,The plot.,,gen,is warm,is bad,is dull,is good,0\n"
CODAH = 'o\tA "film. It\tis good\tis "bad\tis dull\tis warm\t3\n\np\tThe plot\t a\tb\tc\td\t0\r\n'
JSONL = '{"startphrase": "A film. It", "answer": 1, "choices": ["a", "b", "c", "d"]}\n'


def read(task, split="train"):
    """All examples of a split, column by column."""
    (batch,) = task.examples(split).batch(100_000).as_numpy_iterator()
    return batch


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Files


def test_official_csv(tmp_path):
    """A is sent1; B is sent2 and the ending; quotes, commas and carriage returns as CSV has them."""
    write(tmp_path / "val.csv", "\ufeff" + HEADER + FIRST + SECOND)
    got = read(MultipleChoice("swag", tmp_path), "validation")
    assert got["context"].tolist() == [b'A "good" film, ok.', b"The plot."]
    assert got["endings"].tolist() == [
        [b"It is good", b"It is bad", b"It ends,\rslowly", b"It is dull"],
        [b"is warm", b"is bad", b"is dull", b"is good"],
    ]
    assert got["label"].tolist() == [2, 0] and got["label"].dtype == np.int32


def test_test_file_without_labels(tmp_path):
    rows = [line.rsplit(",", 1)[0] for line in (HEADER.strip(), SECOND.strip())]
    write(tmp_path / "test.csv", "\n".join(rows))
    task = MultipleChoice("swag", tmp_path)
    assert read(task, "test")["label"].tolist() == [-1]
    labels, weights = task.labels({"label": tf.constant([-1, 3])}, {})
    assert labels.numpy().tolist() == [0, 3] and weights.numpy().tolist() == [0.0, 1.0]
    write(tmp_path / "train.csv", "\n".join(rows))
    with pytest.raises(ValueError, match=r"train.csv, line 2: no label; .* 0 to 3"):
        task.examples("train")


def test_a_startphrase_in_json_lines_stays_whole(tmp_path):
    task = MultipleChoice("swag", write(tmp_path / "any.jsonl", JSONL + "\n" + JSONL.replace("\n", "")))
    got = read(task, "validation")
    assert got["context"].tolist() == [b"A film. It"] * 2
    assert got["endings"].tolist() == [[b"a", b"b", b"c", b"d"]] * 2 and got["label"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.csv", "startphrase,ending0,ending1,ending2,ending3,answer\nA film,a,b,c,d,1\n"),
        ("own.csv", "context,choices0,choices1,choices2,choices3,label\nA film,a,b,c,d,1\n"),
        ("own.jsonl", '{"context": "A film", "choices": ["a", "b", "c", "d"], "answer": 1}\n'),
    ],
)
def test_the_names_of_several_data_sets_may_be_mixed(name, text, tmp_path):
    got = read(MultipleChoice("swag", write(tmp_path / name, text)), "validation")
    assert got["context"].tolist() == [b"A film"] and got["label"].tolist() == [1]
    assert got["endings"].tolist() == [[b"a", b"b", b"c", b"d"]]


def test_quotes_in_codah_are_text(tmp_path):
    """A stray quote, a blank line, CRLF."""
    got = read(MultipleChoice("codah", write(tmp_path / "full_data.tsv", CODAH)))
    assert got["context"].tolist() == [b'A "film. It', b"The plot"]
    assert got["endings"].tolist() == [
        [b"is good", b'is "bad', b"is dull", b"is warm"],
        [b" a", b"b", b"c", b"d"],
    ]
    assert got["label"].tolist() == [3, 0]


def test_real_swag(data_dir):
    path = data_dir / "swag" / "swag_500.jsonl"
    got = read(MultipleChoice("swag", path), "validation")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [context.decode() for context in got["context"]] == [row["startphrase"] for row in rows]
    assert [[b.decode() for b in endings] for endings in got["endings"]] == [row["choices"] for row in rows]
    assert got["label"].tolist() == [row["answer"] for row in rows] and len(rows) == 500


def test_real_codah(data_dir):
    """One folder holds one file: it is the training split, and there is no other."""
    task = MultipleChoice("codah", data_dir / "swag" / "codah")
    got = read(task)
    with (data_dir / "swag" / "codah" / "full_data.tsv").open(encoding="utf-8", newline="\n") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) == len(got["label"]) == 2776
    assert [context.decode() for context in got["context"]] == [row[1] for row in rows]
    assert [[b.decode() for b in endings] for endings in got["endings"]] == [row[2:6] for row in rows]
    assert got["label"].tolist() == [int(row[6]) for row in rows]
    with pytest.raises(FileNotFoundError, match=r"no file for the validation split .* full_data.tsv"):
        task.examples("validation")


def test_training_on_one_data_set_and_evaluating_on_another(data_dir):
    files = {"train": data_dir / "swag/codah/full_data.tsv", "validation": data_dir / "swag/swag_500.jsonl"}
    task = MultipleChoice("codah", files)
    assert len(read(task)["label"]) == 2776 and len(read(task, "validation")["label"]) == 500
    assert task.examples("train").element_spec == task.examples("validation").element_spec


def test_numbers_of_endings_other_than_four(tmp_path):
    task = MultipleChoice.open("codah", write(tmp_path / "a.tsv", "o\ta\tb\tc\td\t2\n"), num_choices=3)
    assert read(task)["endings"].tolist() == [[b"b", b"c", b"d"]]
    again = MultipleChoice.from_json(json.loads(json.dumps(task.to_json())), tmp_path / "a.tsv")
    assert (again.name, again.num_choices) == ("codah", 3) and read(again)["label"].tolist() == [2]
    with pytest.raises(ValueError, match="num_choices is 1; .* at least 2"):
        MultipleChoice("swag", tmp_path, num_choices=1)
    with pytest.raises(ValueError, match="swag is read from files; give a folder"):
        MultipleChoice.open("swag").examples("train")
    assert MultipleChoice.defaults == {"learning_rate": 2e-5, "batch_size": 16} and Hparams().epochs == 3


# Features, scores, decoding


def tokenizer():
    return WordPiece(runs.VOCABULARY)


def raw(*rows):
    return {
        "context": tf.constant([context for context, *_ in rows]),
        "endings": tf.constant([endings for _, *endings in rows]),
    }


ROWS = raw(("good film", "bad", "is very dull", "a"), ("the", "plot . the plot", "", "actor"))


@pytest.mark.parametrize("fixed", [True, False])
def test_features_are_pairs(fixed):
    """Row k of an example is [CLS] context [SEP] ending k [SEP]."""
    preprocess = Preprocessor(tokenizer(), seq_length=12, pad_to_longest=not fixed)
    task = MultipleChoice(num_choices=3)
    got = tf.function(lambda rows: task.features(preprocess, rows))(ROWS)
    words = np.array(runs.VOCABULARY)[got[INPUT_WORD_IDS].numpy()]
    text = [[" ".join(row).replace(" [PAD]", "") for row in example] for example in words]
    first = [f"[CLS] good film [SEP] {ending} [SEP]" for ending in ("bad", "is very dull", "a")]
    assert text == [
        first,
        ["[CLS] the [SEP] plot . the plot [SEP]", "[CLS] the [SEP] [SEP]", "[CLS] the [SEP] actor [SEP]"],
    ]
    length = 12 if fixed else 8
    assert all(got[name].shape == (2, 3, length) and got[name].dtype == tf.int32 for name in ENCODER_INPUTS)
    assert got[INPUT_MASK][1].numpy().sum(axis=-1).tolist() == [8, 4, 5]
    assert got[INPUT_TYPE_IDS][0].numpy().sum(axis=-1).tolist() == [2, 4, 2]


def test_endings_are_scored_independently():
    """The score of an ending is that of its row alone: the same vector on each [CLS], whatever the others say."""
    encoder = BertEncoder(BertConfig(**runs.SIZES), outputs=(POOLED_OUTPUT,))
    task = MultipleChoice(num_choices=3)
    model = task.model(encoder)
    preprocess = Preprocessor(tokenizer(), seq_length=12)
    features = task.features(preprocess, ROWS)
    logits = model(features, training=False).numpy()
    assert logits.shape == (2, 3) and logits.dtype == np.float32
    head = model.get_layer("classifier")
    for b in range(2):
        for k in range(3):
            one = encoder({name: features[name][b, k][tf.newaxis] for name in ENCODER_INPUTS})[POOLED_OUTPUT]
            wanted = one.numpy() @ head.dense.kernel.numpy() + head.dense.bias.numpy()
            np.testing.assert_allclose(logits[b, k], wanted[0, 0], atol=1e-5)
    assert len({round(float(x), 4) for x in logits.ravel()}) == 6
    assert head.dense.kernel.shape == (runs.SIZES["hidden_size"], 1)


def test_decode_and_loss():
    task = MultipleChoice(num_choices=3)
    logits = tf.constant([[0.5, 2.0, -1.0], [1.0, 1.0, 3.0]])
    decoded = tf.function(lambda x: task.decode(x, {}, ROWS))(logits)
    assert decoded["label"].numpy().tolist() == [1, 2] and decoded["label"].dtype == tf.int32
    assert decoded["ending"].numpy().tolist() == [b"is very dull", b"actor"]
    exp = np.exp(logits.numpy().astype(np.float64))
    wanted = exp / exp.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(decoded["probabilities"], wanted, rtol=1e-6)
    labels, weights = task.labels({"label": tf.constant([0, -1])}, {})
    np.testing.assert_allclose(task.loss()(labels, logits, weights), -np.log(wanted[0, 0]), rtol=1e-6)
    empty = task.decode(logits[:0], {}, {"endings": ROWS["endings"][:0]})
    assert [len(value) for value in empty.values()] == [0, 0, 0]


def test_measure_and_most_confident_errors():
    task = MultipleChoice(num_choices=2)
    examples = {
        "context": np.array([b"a", b"b", b"c", b"d"], object),
        "endings": np.array([[b"a0", b"a1"], [b"b0", b"b1"], [b"c0", b"c1"], [b"d0", b"d1"]], object),
        "label": np.int32([0, 1, 0, -1]),
    }
    probabilities = np.float32([[0.1, 0.9], [0.4, 0.6], [0.01, 0.99], [0.0, 1.0]])
    predictions = {"label": probabilities.argmax(axis=1), "probabilities": probabilities}
    assert dict(task.evaluate(predictions, examples)) == {"accuracy": pytest.approx(1 / 3)}
    (table,) = task.report(predictions, examples)
    assert table.title == "the most confident of 2 errors in 4 examples"
    assert [row[:3] for row in table.rows] == [("c", "c1", "c0"), ("a", "a1", "a0")]
    assert [row[3] for row in table.rows] == pytest.approx([0.99, 0.9])
    examples["label"] = np.int32([1, 1, 1, -1])
    assert list(task.report(predictions, examples)) == []
    with pytest.raises(ValueError, match="none of the 1 swag examples is labelled"):
        dict(task.evaluate({"label": np.int32([0])}, {"label": np.int32([-1])}))
    record = task.record({"label": np.int32(1), "ending": b"a1", "probabilities": np.float32([0.25, 0.75])})
    assert record == {"label": 1, "ending": "a1", "probabilities": [0.25, 0.75]}
    shown = task.show({"context": "a", "endings": ["a0", "a1"]}, record)
    assert shown == {"context": "a", "ending": "a1", "probability": "0.7500"}


def test_fixed_length_batches_have_one_shape(tmp_path):
    rows = "".join(f"o\t{'good ' * i}\ta\tb\tc\td\t{i % 4}\n" for i in range(1, 6))
    task = MultipleChoice("codah", write(tmp_path / "a.tsv", rows))
    preprocess = Preprocessor(tokenizer(), seq_length=16)
    made = dataset(task, preprocess, task.examples("train"), batch_size=2, seed=1, multiple_of=2)
    features, labels, weights = made.element_spec
    assert {tuple(spec.shape) for spec in features.values()} == {(2, 4, 16)}
    assert tuple(labels.shape) == tuple(weights.shape) == (2,)
    assert [weights.numpy().tolist() for _, _, weights in made].count([1, 1]) == 2
    assert len(list(made)) == 3  # the last of one example


# A run, from training to serving


def write_endings(path, *, count, seed):
    """CODAH's form: the one good ending is right."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        right = draw.randrange(4)
        endings = [f"is {draw.choice(('good', 'warm') if k == right else ('bad', 'dull'))}" for k in range(4)]
        lines.append("\t".join(["o", f"the {draw.choice(('film', 'plot'))}", *endings, str(right)]))
    return write(path, "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swag")
    changes = {"num_layers": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    runs.write_checkpoint(folder / "checkpoint", **changes)
    (folder / "data").mkdir()
    write_endings(folder / "data" / "train.tsv", count=96, seed=1)
    write_endings(folder / "data" / "dev.tsv", count=40, seed=2)
    task = MultipleChoice("codah", folder / "data")
    hparams = Hparams(epochs=2, batch_size=8, learning_rate=2e-3, seq_length=24)
    quiet = {"verbose": 0, "log": lambda line: None}
    places = {"checkpoint": folder / "checkpoint", "output": folder / "run"}
    return folder, finetune(task, **places, hparams=hparams, **quiet)


@pytest.mark.long
def test_a_tiny_model_learns_and_reloads_with_equal_measures(place):
    folder, results = place
    assert results["measures"]["val_accuracy"] > 0.9  # by chance 0.25
    run = load_run(folder / "run", data=folder / "data")
    dev = run.task.examples("validation")
    answers, examples = predict(run.task, run.preprocess, run.model, dev, batch_size=7)
    assert np.mean(answers["label"] == examples["label"]) == results["measures"]["val_accuracy"]
    assert answers["probabilities"].shape == (40, 4)
    chosen = examples["endings"][np.arange(40), answers["label"]]
    assert answers["ending"].tolist() == chosen.tolist()
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["architectures"] == ["BertForMultipleChoice"]


@pytest.mark.long
def test_the_recipe_under_a_strategy(place):
    """Features [B, K, S] of unknown length pass a distributed data set and `fit`."""
    folder, _ = place
    task = MultipleChoice("codah", folder / "data")
    source = checkpoints.read(folder / "checkpoint")
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=24, pad_to_longest=True)
    distribution = strategy("mirrored")
    with distribution.scope():
        model = task.model(BertEncoder(source.config, outputs=task.outputs))
        model.compile("sgd", task.loss(), jit_compile=False)
    batches = dataset(task, preprocess, task.examples("validation"), batch_size=16, seed=1)
    history = model.fit(batches, epochs=1, verbose=0, shuffle=False).history
    assert np.isfinite(history["loss"][0])


ASKED = [
    ("the film is good .", ["is warm", "is dull", "a", "b"]),
    ("a plot", ["", "bad", 'is "very', "good"]),
]
COLUMNS = ("context", *(f"endings{i}" for i in range(4)))
FORMS = {
    "jsonl": "".join(json.dumps({"context": a, "endings": b, "extra": 1}) + "\n" for a, b in ASKED),
    "tsv": "".join("\t".join(row) + "\n" for row in (COLUMNS, *((a, *b) for a, b in ASKED))),
    "txt": "".join("\t".join((a, *b)) + "\n" for a, b in ASKED),
}


@pytest.mark.long
@pytest.mark.parametrize("suffix", FORMS)
def test_predict_by_command(place, tmp_path, capfd, suffix):
    folder, _ = place
    flags = ("--run", folder / "run", "--input", write(tmp_path / f"asked.{suffix}", FORMS[suffix]))
    code, out, err = runs.run_command(capfd, "predict", *flags, "--format", "jsonl")
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(answer["context"], answer["endings"]) for answer in answers] == ASKED
    for answer in answers:
        assert answer["ending"] == answer["endings"][answer["label"]]
        assert np.argmax(answer["probabilities"]) == answer["label"] and len(answer["probabilities"]) == 4
    if suffix == "jsonl":
        code, out, _ = runs.run_command(capfd, "predict", *flags, "--format", "table")
        assert code == 0 and "probability" in out and "is dull" not in out


@pytest.mark.parametrize(
    ("suffix", "added", "message"),
    [
        (
            "jsonl",
            '{"context": "a", "endings": ["b", "c", "d"]}\n',
            "line 3: 'endings' has 3 text(s); give 4",
        ),
        ("jsonl", '{"context": "a", "endings": "bcde"}\n', "line 3: 'endings' has 1 text(s); give 4"),
        ("tsv", "a\tb\tc\td\n", "line 4: 4 column(s), expected 5"),
        ("txt", "a\tb\tc\td\n", "line 3: 4 text(s), expected 5"),
    ],
)
def test_predict_refuses_three_endings(tmp_path, suffix, added, message):
    path = write(tmp_path / f"asked.{suffix}", FORMS[suffix] + added)
    with pytest.raises(BertKerasError) as caught:
        list(read_examples(str(path), ["context", "endings"], {"endings": 4}))
    assert str(caught.value).startswith(f"{path}, {message}")


@pytest.mark.long
def test_evaluate_by_command(place, capfd):
    folder, results = place
    flags = ("--run", folder / "run", "--data", folder / "data")
    code, out, err = runs.run_command(capfd, "evaluate", *flags, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["validation"] == {"accuracy": results["measures"]["val_accuracy"]}


def test_one_file_cannot_train_and_evaluate(place, tmp_path, capfd):
    folder, _ = place
    data = folder / "data" / "train.tsv"
    flags = ("--task", "codah", "--data", data, "--checkpoint", folder / "checkpoint")
    flags += ("--output", tmp_path / "run")
    code, _, err = runs.run_command(capfd, "finetune", *flags)
    assert code == 1 and "is one file, without a dev split; give the dev split's file as --dev-data" in err
    flags += ("--dev-data", folder / "data" / "dev.tsv", "--num-choices", 3, "--seq-length", 24)
    code, _, err = runs.run_command(capfd, "finetune", *flags)
    assert code == 1 and "dev.tsv has 4 endings (ending0, ending1, ...), expected 3 (--num-choices)" in err
    assert not (tmp_path / "run").exists()
