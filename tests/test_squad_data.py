"""Questions from files and TensorFlow Datasets, good and bad."""

import json

import pytest
import tensorflow as tf
from questions import CHINESE, NORMANS, question, read, write

from bert_keras.tasks.data.squad import VERSIONS
from bert_keras.tasks.problems.question_answering import QuestionAnswering


@pytest.mark.parametrize(
    ("file", "name", "count", "impossible"),
    [
        ("squad1.1_train_subset_11877.json", "squad1.1", 11877, 0),
        ("xquad.en.json", "squad1.1", 1190, 0),
        ("squad2.0_dev_subset_6078.json", "squad2.0", 6078, 3168),
        ("squad2.0_dev_small.json", "squad2.0", 14, 6),
    ],
)
def test_real_files(data_dir, file, name, count, impossible):
    """Every first answer is found, also as training data: nothing is left out."""
    raw = read(QuestionAnswering(name, data_dir / "squad" / file), "train")
    golds = [json.loads(answers) for answers in raw["answers"]]
    assert len(golds) == count == len(set(raw["id"]))
    assert sum(not gold for gold in golds) == impossible
    for gold, context, start, end in zip(
        golds, raw["context"], raw["answer_start"], raw["answer_end"], strict=True
    ):
        assert (start, end) == (-1, -1) if not gold else context[start:end].decode() == gold[0]


def test_examples_of_a_small_file(tmp_path):
    path = write(
        tmp_path / "dev.json",
        question("q1", CHINESE, "华北平原", "平原", text="在哪里?"),
        question("q2", NORMANS) | {"is_impossible": True},
    )
    context = CHINESE.encode()
    expected = {
        "id": [b"q1", b"q2"],
        "question": ["在哪里?".encode(), b"who?"],
        "context": [context, NORMANS.encode()],
        "answers": ['["华北平原", "平原"]'.encode(), b"[]"],
        "answer_start": [context.index("华北".encode()), -1],
        "answer_end": [context.index("的北部".encode()), -1],
    }
    for source in (path, tmp_path, {"validation": path}):
        examples = QuestionAnswering("squad2.0", source).examples("validation")
        assert examples.cardinality() == 2
        got = read(QuestionAnswering("squad2.0", source), "validation")
        assert {name: value.tolist() for name, value in got.items()} == expected
    assert {name: (spec.shape, spec.dtype) for name, spec in examples.element_spec.items()} == {
        **dict.fromkeys(("id", "question", "context", "answers"), ((), tf.string)),
        **dict.fromkeys(("answer_start", "answer_end"), ((), tf.int32)),
    }


def test_official_file_names_take_precedence(tmp_path):
    write(tmp_path / "train.json", question("other", NORMANS, "France"))
    write(tmp_path / "train-v1.1.json", question("official", NORMANS, "France"))
    assert read(QuestionAnswering("squad1.1", tmp_path), "train")["id"] == [b"official"]
    assert read(QuestionAnswering("squad2.0", tmp_path), "train")["id"] == [b"other"]


def test_misplaced_answers(tmp_path):
    """Left out of training under one warning; kept elsewhere, with no weight, for only the text counts."""
    path = write(
        tmp_path / "any.json",
        question("q1", NORMANS, ("France", 3)),
        question("q2", NORMANS, "France"),
        question("q3", NORMANS, ("France", -1), "Rollo"),
        question("q4", NORMANS, ("France", 4000)),
        question("q5", NORMANS, (" ", 3)),
        question("q6", "Fra\u200bnce\n\x01", ("\u200b", 3)),
        question("q7", "Fra\u200bnce\n\x01", ("\n\x01", 7)),
    )
    task = QuestionAnswering("squad1.1", path)
    with pytest.warns(UserWarning, match="any.json: skipped 6 questions .* first q1") as caught:
        assert read(task, "train")["id"] == [b"q2"]
    assert len(caught) == 1
    raw = read(task, "validation")
    assert raw["id"].tolist() == [b"q1", b"q2", b"q3", b"q4", b"q5", b"q6", b"q7"]
    assert raw["answer_start"].tolist() == [-1, NORMANS.index("France"), -1, -1, -1, -1, -1]


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="there is no 'squad3'; .* squad1.1, squad2.0"):
        QuestionAnswering("squad3")
    for option in QuestionAnswering.options:
        with pytest.raises(ValueError, match=f"{option} is 0; {option} must be a whole number of at least 1"):
            QuestionAnswering("squad1.1", **{option: 0})
    with pytest.raises(FileNotFoundError, match="train-v1.1.json or train.json.* no files"):
        QuestionAnswering("squad1.1", tmp_path).examples("train")
    with pytest.raises(ValueError, match="there is no split 'test'; the splits are train, validation"):
        QuestionAnswering("squad1.1", tmp_path).examples("test")


@pytest.mark.parametrize("name", VERSIONS)
def test_tensorflow_datasets(tmp_path, name):
    """The real data set's features, filled with one example; answers stand at a character, not a byte."""
    tfds = pytest.importorskip("tensorflow_datasets")
    row = {"id": "q1", "title": "x", "context": CHINESE, "question": "?"}
    row["answers"] = {"text": ["首都", "平原"], "answer_start": [11, 18]}
    if VERSIONS[name].unanswerable:
        row |= {"is_impossible": False, "plausible_answers": {"text": [], "answer_start": []}}

    def filled(builder, *args, **kwargs) -> tf.data.Dataset:
        spec = builder.info.features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: [row], output_signature=spec)

    with tfds.testing.mock_data(data_dir=str(tmp_path), as_dataset_fn=filled):
        raw = read(QuestionAnswering(name), "train")
    assert {*raw} == {"id", "question", "context", "answers", "answer_start", "answer_end"}
    assert raw["answers"] == ['["首都", "平原"]'.encode()]
    assert raw["context"][0][raw["answer_start"][0] : raw["answer_end"][0]].decode() == "首都"
