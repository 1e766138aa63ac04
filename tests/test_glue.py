"""GLUE: the official files line by line, TensorFlow Datasets' metadata, decoding, measures, bad input."""

import csv
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from golden.make_metrics_golden import DEFINITIONS

from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.tasks.data.glue import ROWS
from bert_keras.tasks.problems.classification import TextClassification, majority_label

BINARY = {"0": 0, "1": 1}
ENTAILED = {"entailment": 0, "not_entailment": 1}
NLI = {"entailment": 0, "neutral": 1, "contradiction": 2}

# Row, split, file, examples, lines of header, columns of text from 0, column of the label, label ids.
OFFICIAL = [
    ("cola", "train", "CoLA/train.tsv", 8551, 0, [3], 1, BINARY),
    ("cola", "validation", "CoLA/dev.tsv", 1043, 0, [3], 1, BINARY),
    ("cola", "test", "CoLA/test.tsv", 1063, 1, [1], None, None),
    ("sst2", "train", "SST-2/train.tsv", 67349, 1, [0], 1, BINARY),
    ("sst2", "validation", "SST-2/dev.tsv", 872, 1, [0], 1, BINARY),
    ("sst2", "test", "SST-2/test.tsv", 1821, 1, [1], None, None),
    ("mrpc", "train", "MRPC/train.tsv", 3668, 1, [3, 4], 0, BINARY),
    ("mrpc", "validation", "MRPC/dev.tsv", 408, 1, [3, 4], 0, BINARY),
    ("mrpc", "test", "MRPC/test.tsv", 1725, 1, [3, 4], None, None),
    ("qqp", "train", "QQP/kshot_official_format_rows.tsv", 320, 1, [3, 4], 5, BINARY),
    ("stsb", "train", "STS-B/train.tsv", 5749, 1, [7, 8], 9, None),
    ("stsb", "validation", "STS-B/dev.tsv", 1500, 1, [7, 8], 9, None),
    ("stsb", "test", "STS-B/test.tsv", 1379, 1, [7, 8], None, None),
    ("mnli", "train", "MNLI/kshot_official_format_rows.tsv", 480, 1, [8, 9], 11, NLI),
    ("mnli", "validation_matched", "MNLI/kshot_official_format_rows.tsv", 480, 1, [8, 9], 11, NLI),
    ("mnli", "validation_mismatched", "MNLI/kshot_official_format_rows.tsv", 480, 1, [8, 9], 11, NLI),
    ("mnli", "test_matched", "MNLI/kshot_official_format_rows.tsv", 480, 1, [8, 9], None, None),
    ("mnli", "test_mismatched", "MNLI/kshot_official_format_rows.tsv", 480, 1, [8, 9], None, None),
    ("qnli", "validation", "QNLI/dev.tsv", 5463, 1, [1, 2], 3, ENTAILED),
    ("qnli", "test", "QNLI/test.tsv", 5463, 1, [1, 2], None, None),
    ("rte", "train", "RTE/train.tsv", 2490, 1, [1, 2], 3, ENTAILED),
    ("rte", "validation", "RTE/dev.tsv", 277, 1, [1, 2], 3, ENTAILED),
    ("rte", "test", "RTE/test.tsv", 3000, 1, [1, 2], None, None),
    ("wnli", "train", "WNLI/train.tsv", 635, 1, [1, 2], 3, BINARY),
    ("wnli", "validation", "WNLI/dev.tsv", 71, 1, [1, 2], 3, BINARY),
    ("wnli", "test", "WNLI/test.tsv", 146, 1, [1, 2], None, None),
    ("ax", "test", "AX/diagnostic.tsv", 1104, 1, [1, 2], None, None),
]


def read(task: TextClassification, split: str) -> dict[str, np.ndarray]:
    """All examples of a split, column by column."""
    batches = list(task.examples(split).batch(10_000).as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def write(folder: Path, **files: str | bytes) -> Path:
    for stem, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / f"{stem}.tsv").write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("name", "split", "file", "count", "header", "text", "label", "ids"),
    OFFICIAL,
    ids=[f"{case[0]}-{case[1]}" for case in OFFICIAL],
)
def test_official_files(data_dir, tmp_path, name, split, file, count, header, text, label, ids):
    path = data_dir / "glue" / file
    source = data_dir / "glue"
    if path.name.startswith("kshot"):  # the official form under another name
        source = tmp_path
        (tmp_path / ROWS[name].splits[split].file).symlink_to(path.resolve())
    task = TextClassification.open(name, source)
    with path.open(encoding="utf-8-sig", newline="\n") as stream:
        lines = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]

    assert task.examples(split).cardinality() == count == len(lines)
    got = read(task, split)
    for feature, column in zip(task.text, text, strict=True):
        assert [value.decode() for value in got.pop(feature)] == [line[column] for line in lines]
    if label is None:
        expected = np.full(count, np.nan if name == "stsb" else -1)
    elif ids is None:
        expected = np.float32([line[label] for line in lines])
    else:
        expected = [ids[line[label]] for line in lines]
    assert (got["label"].dtype, got["idx"].dtype) == (np.float32 if name == "stsb" else np.int32, np.int32)
    np.testing.assert_array_equal(got.pop("label"), expected)
    np.testing.assert_array_equal(got.pop("idx"), np.arange(count))
    assert not got


def test_source_is_the_official_folder_or_its_parent(tmp_path):
    (tmp_path / "SST-2").mkdir()
    write(tmp_path / "SST-2", dev="sentence\tlabel\nfine\t1\n")
    for source in (tmp_path, str(tmp_path / "SST-2")):
        assert read(TextClassification.open("sst2", source), "validation")["sentence"] == [b"fine"]


@pytest.mark.parametrize(
    "name", ["AX/diagnostic", "diagnostic/diagnostic", "AX/AX", "diagnostic", "AX", "AX/AX in its folder"]
)
def test_the_diagnostic_file_of_any_archive(tmp_path, name):
    path, _, inside = name.partition(" in ")
    (tmp_path / path).parent.mkdir(exist_ok=True)
    write(tmp_path, **{path: "index\tsentence1\tsentence2\n0\ta\tb\n"})
    source = tmp_path / "AX" if inside else tmp_path
    assert read(TextClassification.open("ax", source), "test")["premise"] == [b"a"]


def test_a_missing_diagnostic_file(tmp_path):
    (tmp_path / "AX").mkdir()
    wanted = "AX has no diagnostic.tsv or diagnostic/diagnostic.tsv or AX/AX.tsv or AX.tsv; it has "
    with pytest.raises(FileNotFoundError, match=wanted):
        TextClassification.open("ax", tmp_path).examples("test")


def test_blank_lines_quotes_and_byte_order_marks_in_files(tmp_path):
    """A byte order mark, CRLF, blank lines, quotes, outer spaces and U+2028 (no line end) change nothing."""
    content = '\ufeffsentence\tlabel\r\n" a \u2028 b \t1\r\n\r\n\x85"c"\t0'
    got = read(TextClassification.open("sst2", write(tmp_path, train=content)), "train")
    assert [value.decode() for value in got["sentence"]] == ['" a \u2028 b ', '\x85"c"']
    assert got["label"].tolist() == [1, 0] and got["idx"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("gj04\t1\t\tfine\ngj04\t0\t*\tfine the\n", {}),  # the official form
        ("sentence\tlabel\nfine\t1\nfine the\t0\n", {}),
        ("label\tid\tsentence\n1\ta\tfine\n0\tb\tfine the\n", {}),
        ("phrase\tgood\nfine\t1\nfine the\t0\n", {"text_column": ("phrase",), "label_column": "good"}),
    ],
)  # fmt: skip
def test_cola_with_and_without_a_header(tmp_path, content, columns):
    got = read(TextClassification.open("cola", write(tmp_path, train=content), **columns), "train")
    assert got["sentence"].tolist() == [b"fine", b"fine the"]
    assert got["label"].tolist() == [1, 0] and got["idx"].tolist() == [0, 1]


def test_qqp_skips_short_lines(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    content = header + "1\t1\t2\ta\tb\t0\n2\t3\t4\tbroken\n here\t1\n3\t5\t6\tc\td\t1\n"
    task = TextClassification.open("qqp", write(tmp_path, train=content))
    with pytest.warns(UserWarning, match=r"2 lines .* 6 columns, first line 3"):
        got = read(task, "train")
    assert got["question2"].tolist() == [b"b", b"d"] and got["idx"].tolist() == [0, 3]


def test_bad_folder_and_split(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no .*nowhere"):
        TextClassification.open("sst2", tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match="mnli has no split 'validation'; it has train, validation_matched, "
    ):
        TextClassification.open("mnli", tmp_path).examples("validation")


@pytest.mark.parametrize("name", ROWS)
def test_tensorflow_datasets(name, tmp_path):
    """Names, label order and types are the real builder's; the examples are random, typed like real ones."""
    tfds = pytest.importorskip("tensorflow_datasets")
    row = ROWS[name]
    features = tfds.builder(f"glue/{name}", data_dir=tmp_path).info.features
    assert set(features) == {*row.text, "label", "idx"}
    assert tuple(getattr(features["label"], "names", ())) == row.labels

    with tfds.testing.mock_data(num_examples=5, data_dir=str(tmp_path)):
        for split in row.splits:
            examples = TextClassification.open(name).examples(split)
            assert examples.cardinality() == 5
            got = read(TextClassification.open(name), split)
            assert all(isinstance(text, bytes) for key in row.text for text in got[key])
    assert examples.element_spec == {
        **{key: tf.TensorSpec([], tf.string) for key in row.text},
        "label": tf.TensorSpec([], tf.int32 if row.labels else tf.float32),
        "idx": tf.TensorSpec([], tf.int32),
    }


@pytest.mark.long
def test_error_without_tensorflow_datasets():
    """If files cannot be stored or downloaded, one line says what to do instead."""
    pytest.importorskip("tensorflow_datasets")
    code = "from bert_keras.tasks.problems.classification import TextClassification\n"
    code += "try: TextClassification.open('rte').examples('train')\nexcept OSError as e: print(e)"
    env = os.environ | {"TFDS_DATA_DIR": os.path.join(os.devnull, "none")}
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True
    )
    assert "glue/rte cannot be loaded from TensorFlow Datasets" in done.stdout.splitlines()[-1]
    assert done.stdout.splitlines()[-1].endswith("give a folder of the official TSV files (--data).")


@pytest.mark.parametrize("name", ROWS)
def test_the_table(name):
    row, task = ROWS[name], TextClassification.open(name)
    assert task.name == row.name == name and task.outputs == (POOLED_OUTPUT,)
    assert len(row.text) in (1, 2) and len(row.labels) == len(row.file_labels)
    assert all(len(tsv.text) == len(row.text) for tsv in row.splits.values())
    assert task.signature() == {key: tf.TensorSpec([None], tf.string, name=key) for key in row.text}
    raw = {"label": tf.zeros([2], tf.int32), **{key: tf.constant([key, "b"]) for key in row.text}}
    assert [text[0].numpy().decode() for text in task.features(lambda *text: text, raw)] == list(row.text)
    assert TextClassification.from_json(json.loads(json.dumps(task.to_json()))).data == row
    others = {"mnli": ("validation_matched", "validation_mismatched"), "ax": ()}
    assert task.validation_splits == others.get(name, ("validation",))


@pytest.mark.parametrize("name", ["sst2", "mnli"])
def test_decode_classes(name):
    task = TextClassification.open(name)
    logits = np.float32([[2.0, -1.0, 0.5], [-3.0, 0.0, 0.25], [0.0, 0.25, 0.0]])[:, : len(task.label_names)]
    decoded = tf.function(lambda outputs: task.decode(outputs, {}, {}))(tf.constant(logits))
    assert set(decoded) == {"label", "probabilities"}
    expected = [task.label_names[i].encode() for i in logits.argmax(1)]
    assert decoded["label"].numpy().tolist() == expected
    exp = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(decoded["probabilities"], exp / exp.sum(1, keepdims=True), rtol=1e-6)
    assert decoded["probabilities"].dtype == tf.float32


def test_decode_score():
    task = TextClassification.open("stsb")
    decoded = tf.function(lambda outputs: task.decode(outputs, {}, {}))(tf.constant([[4.5], [-0.5]]))
    assert set(decoded) == {"score"} and decoded["score"].numpy().tolist() == [4.5, -0.5]


def test_loss_is_the_mean_over_the_weights():
    """A withheld label takes no part, and makes no NaN."""
    task = TextClassification.open("mnli")
    logits = np.float32([[2.0, -1.0, 0.5], [-3.0, 0.0, 0.25], [7.0, 8.0, 9.0]])
    labels, weights = task.labels({"label": tf.constant([2, 1, -1])}, {})
    assert labels.dtype == tf.int32 and weights.numpy().tolist() == [1.0, 1.0, 0.0]
    losses = [
        np.log(np.exp(row.astype(np.float64)).sum()) - row[i] for row, i in zip(logits, (2, 1), strict=False)
    ]
    np.testing.assert_allclose(task.loss()(labels, logits, weights), np.mean(losses), rtol=1e-6)

    task = TextClassification.open("stsb")
    labels, weights = task.labels({"label": tf.constant([5.0, 0.5, np.nan])}, {})
    assert labels.dtype == tf.float32 and weights.numpy().tolist() == [1.0, 1.0, 0.0]
    outputs = np.float32([[4.0], [1.0], [9.0]])
    np.testing.assert_allclose(task.loss()(labels, outputs, weights), (1.0 + 0.25) / 2, rtol=1e-6)


def draw(task: TextClassification, count: int) -> tuple[dict[str, np.ndarray], list[float], list[float]]:
    """Random predictions as `decode` returns them, and labels and predictions as numbers."""
    generator = random.Random(count)
    if not task.label_names:
        labels = [generator.randrange(26) / 5 for _ in range(count)]
        scores = [generator.randrange(160) / 32 for _ in range(count)]
        return {"score": np.float32(scores)}, np.float32(labels).tolist(), scores
    classes = range(len(task.label_names))
    labels, ids = (generator.choices(classes, k=count) for _ in range(2))
    return {"label": np.array([task.label_names[i].encode() for i in ids], object)}, labels, ids


@pytest.mark.parametrize("name", ROWS)
def test_evaluate(name):
    task = TextClassification.open(name)
    predictions, labels, numbers = draw(task, 60)
    given = np.array(labels, np.float32 if name == "stsb" else np.int32)
    got = dict(task.evaluate(predictions, {"label": given}))
    expected = {measure: DEFINITIONS[measure](labels, numbers) for measure in task.measures}
    assert got == pytest.approx(expected, abs=1e-9) and task.measure in got


def test_evaluate_like_the_official_glue_code():
    """F1 is that of `duplicate` and `equivalent`; both measures of a row that has two."""
    assert {name: row.measures for name, row in ROWS.items()} == {
        **dict.fromkeys(("cola", "ax"), ("matthews",)),
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), ("accuracy",)),
        **dict.fromkeys(("mrpc", "qqp"), ("f1", "accuracy")),
        "stsb": ("spearman", "pearson"),
    }
    for name, positive in (("mrpc", b"equivalent"), ("qqp", b"duplicate")):
        negative = b"not_" + positive
        predicted = {"label": np.array([positive, positive, negative, negative, negative], object)}
        got = dict(TextClassification.open(name).evaluate(predicted, {"label": np.int32([1, 0, 0, 0, 0])}))
        assert got == pytest.approx({"f1": 2 / 3, "accuracy": 4 / 5})


def test_evaluate_counts_labelled_examples_only():
    task = TextClassification.open("sst2")
    predictions = {"label": np.array([b"positive", b"negative", b"positive"], object)}
    assert dict(task.evaluate(predictions, {"label": np.int32([1, -1, 0])})) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="none of the 3 sst2 examples is labelled"):
        dict(task.evaluate(predictions, {"label": np.int32([-1, -1, -1])}))


def test_the_majority_label(tmp_path):
    header = b"sentence1\tsentence2\tlabel\n"
    for labels, majority in ((b"011", "entailment"), (b"0100", "not_entailment"), (b"10", "not_entailment")):
        lines = b"".join(b"a\tb\t%c\n" % label for label in labels)
        folder = write(tmp_path, train=header + lines)
        assert majority_label(TextClassification.open("wnli", folder)) == majority
    with pytest.raises(ValueError, match="stsb has no classes"):
        majority_label(TextClassification.open("stsb", folder))


def test_the_majority_label_of_wnli(data_dir):
    assert majority_label(TextClassification.open("wnli", data_dir / "glue")) == "not_entailment"


def test_custom_data(tmp_path):
    header = "idx\tquery\treply\tlabel\n"
    train = header + "0\ta\tb\tyes\n1\tc\td\tno\n2\te\tf\tmaybe\n"
    write(tmp_path, train=train, dev=header + "0\tg\th\tno\n", test="query\treply\ni\tj\n")
    task = TextClassification.open("custom", tmp_path, label_type="class")
    assert (task.name, task.measure, task.text) == ("custom", "accuracy", ("query", "reply"))
    assert task.label_names == ("maybe", "no", "yes")
    assert read(task, "train")["label"].tolist() == [2, 1, 0]
    assert read(task, "validation")["reply"].tolist() == [b"h"]
    assert read(task, "test")["label"].tolist() == [-1]
    assert list(task.signature()) == ["query", "reply"]

    again = TextClassification.from_json(json.loads(json.dumps(task.to_json())), tmp_path)
    assert again.data == task.data and read(again, "validation")["label"].tolist() == [1]
    with pytest.raises(ValueError, match="custom is not in TensorFlow Datasets; .* folder"):
        TextClassification.from_json(task.to_json()).examples("train")


def test_spaces_around_labels_and_stray_quotes_in_custom_data(tmp_path):
    data = 'text\tlabel\n"good\t 1\nb\t1\r\n5" of "film\t1 \nd\t0\u00a0\n'
    write(tmp_path, train=data, dev=data)
    task = TextClassification.open("custom", tmp_path, label_type="class")
    got = read(task, "validation")
    assert task.label_names == ("0", "1") and got["label"].tolist() == [1, 1, 1, 0]
    assert got["text"].tolist() == [b'"good', b"b", b'5" of "film', b"d"]


def test_pooling_is_saved_with_the_task():
    task = TextClassification.open("rte", None, pooling="concat")
    assert task.outputs == (SEQUENCE_OUTPUT,)
    kept = json.loads(json.dumps(task.to_json()))
    again = TextClassification.from_json(kept)
    assert again.pooling == "concat" and again.data == ROWS["rte"]


def test_custom_data_with_labelled_unlabelled_or_no_test_file(tmp_path):
    data = "text\tlabel\na\t1\nb\t10\n"
    write(tmp_path, train=data, dev=data)
    task = TextClassification.open("custom", tmp_path, label_type="class")
    with pytest.raises(FileNotFoundError, match=r"has no test\.tsv, .*; it has dev\.tsv, train\.tsv"):
        task.examples("test")
    write(tmp_path, test=data)
    assert read(task, "test")["label"].tolist() == [0, 1]
    write(tmp_path, dev="text\tlabel\na\t2\n")
    with pytest.raises(ValueError, match=r"dev.tsv, line 2: unknown label '2'.* 1, 10\."):
        task.examples("validation")


def test_report_of_classes():
    """The scores of labels and the confusion matrix by hand, and the surest error first; what is not labelled is left out."""
    task = TextClassification.open("sst2")
    raw = {"sentence": np.array([b"a", b"b", b"c", b"d", b"e"], object), "label": np.array([0, 1, 1, 0, -1])}
    predictions = {
        "label": np.array([b"negative", b"negative", b"negative", b"positive", b"positive"], object),
        "probabilities": np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7], [0.0, 1.0]]),
    }
    by_label, matrix, errors = task.report(predictions, raw)
    assert by_label.columns == ("label", "precision", "recall", "f1", "texts")
    assert by_label.rows[:2] == [
        ("negative", 1 / 3, 0.5, pytest.approx(0.4), 2),
        ("positive", 0.0, 0.0, 0.0, 2),
    ]
    assert [row[0] for row in by_label.rows[2:]] == ["macro", "micro", "weighted"]
    assert matrix.columns == ("", "negative", "positive")
    assert matrix.rows == [("negative", 1, 1), ("positive", 2, 0)]
    assert errors.title == "the most confident of 3 errors in 4 examples"
    assert errors.rows == [
        ("c", "positive", "negative", 0.8),
        ("d", "negative", "positive", 0.7),
        ("b", "positive", "negative", 0.6),
    ]
    shown = task.show({"sentence": "a"}, {"label": "negative", "probabilities": [0.9, 0.1]})
    assert shown == {"sentence": "a", "label": "negative", "probability": "0.9000"}


def test_report_of_scores():
    task = TextClassification.open("stsb")
    pair = {name: np.array([b"x", b"y"], object) for name in ("sentence1", "sentence2")}
    (table,) = task.report({"score": np.array([1.0, 2.0])}, pair | {"label": np.array([1.5, 5.0])})
    assert table.rows == [("y", "y", "5.00", "2.00"), ("x", "x", "1.50", "1.00")]
    assert task.show({"sentence1": "x"}, {"score": 1.0}) == {"sentence1": "x", "score": "1.00"}
