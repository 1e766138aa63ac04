"""Windows and labels of questions, against plain Python."""

import json
import random

import numpy as np
import pytest
import tensorflow as tf
from questions import CHINESE, GOOD, question, read, small, write  # noqa: F401
from runs import VOCABULARY

from bert_keras.features import END_BYTES, EXAMPLE_INDEX, INPUT_MASK, INPUT_WORD_IDS, START_BYTES
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece


def pieces_of(tokenizer: WordPiece, context: str, start: int, end: int) -> list[int]:
    """The tokens that share a byte with an answer."""
    _, starts, ends = (values[0].numpy().tolist() for values in tokenizer.tokenize_with_offsets([context]))
    return [i for i, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < end and b > start]


def test_labels_of_drawn_windows(small, tmp_path):
    path = write(
        tmp_path / "dev.json",
        question("q1", "good bad warm dull film", "warm dull", text="the"),
        question("q2", "good bad warm", text="the"),
        question("q3", "good bad", ("warm", 0), text="the"),
        question("q4", "good \u0301 bad", "\u0301", text="the"),  # an accent alone, which goes
    )
    task = QuestionAnswering("squad2.0", path, doc_stride=2, max_query_length=1)
    raw = {name: tf.constant(value) for name, value in read(task, "validation").items()}
    features = task.features(Preprocessor(small, seq_length=7), raw)
    labels, weights = task.labels(raw, features)
    #                       [CLS] the [SEP] good bad warm [SEP]; .. warm dull film ..; q2; q3; q4
    assert features[EXAMPLE_INDEX].numpy().tolist() == [0, 0, 1, 2, 3]
    assert labels.numpy().tolist() == [[0, 0], [3, 4], [0, 0], [0, 0], [0, 0]]
    assert weights.numpy().tolist() == [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]]
    assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)


def recovered(task: QuestionAnswering, raw: dict[str, np.ndarray], preprocess: Preprocessor) -> list[bytes]:
    """The labels' spans in the original bytes, one for each question; b"" where no window holds the answer."""
    features = task.features(preprocess, raw)
    labels, _ = task.labels(raw, features)
    rows = {name: features[name].numpy() for name in (START_BYTES, END_BYTES, EXAMPLE_INDEX)}
    found = [b""] * len(raw["id"])
    for row, (first, last) in enumerate(labels.numpy()):
        example = rows[EXAMPLE_INDEX][row]
        if first > 0:
            context = raw["context"][example]
            found[example] = context[rows[START_BYTES][row, first] : rows[END_BYTES][row, last]]
    return found


def test_every_gold_answer_is_in_some_window(data_dir):
    """All of XQuAD's 1,190, and all but one of them byte for byte."""
    task = QuestionAnswering("squad1.1", data_dir / "squad" / "xquad.en.json")
    raw = read(task, "validation")
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    found = recovered(task, raw, Preprocessor(tokenizer, seq_length=384, pad_to_longest=True))
    golds = [json.loads(answers)[0].encode() for answers in raw["answers"]]
    assert [gold in span for gold, span in zip(golds, found, strict=True)] == [True] * 1190
    wider = [pair for pair in zip(golds, found, strict=True) if pair[0] != pair[1]]
    # One gold answer ends inside a number, where no wordpiece does.
    assert wider == [(b"7,000,000 square kilometres (2,70", b"7,000,000 square kilometres (2,700")]


def test_every_chinese_answer_is_in_some_window(data_dir, tmp_path):
    answers = ["北京", "中华人民共和国", "首都", "华北平原的北部", "2189万人", "16410平方公里"]
    context = CHINESE * 3  # longer than a window; each answer is asked for in each third
    thirds = [(answer, i * len(CHINESE) + CHINESE.index(answer)) for i in range(3) for answer in answers]
    questions = [question(f"q{i}", context, place, text="什么?") for i, place in enumerate(thirds)]
    task = QuestionAnswering(
        "squad1.1", write(tmp_path / "dev.json", *questions), doc_stride=16, max_query_length=8
    )
    raw = read(task, "validation")
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "chinese_21128.txt"))
    found = recovered(task, raw, Preprocessor(tokenizer, seq_length=48))
    assert [span.decode() for span in found] == [answer for answer, _ in thirds]


def test_labels_against_plain_python(data_dir):
    """Small windows, so that many do not hold the answer, or hold a part of it."""
    task = QuestionAnswering(
        "squad1.1", data_dir / "squad" / "xquad.en.json", doc_stride=9, max_query_length=5
    )
    raw = {name: value[::40] for name, value in read(task, "validation").items()}
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    features = task.features(Preprocessor(tokenizer, seq_length=32, pad_to_longest=True), raw)
    labels, weights = (value.numpy() for value in task.labels(raw, features))
    index, places = features[EXAMPLE_INDEX].numpy(), features[START_BYTES].numpy()
    kinds = set()
    for example in range(len(raw["id"])):
        context, start, end = (raw[name][example] for name in ("context", "answer_start", "answer_end"))
        pieces = pieces_of(tokenizer, context.decode(), start, end)
        for number, row in enumerate(np.flatnonzero(index == example)):
            shown = np.flatnonzero(places[row] >= 0)
            first = 9 * number  # the window's first piece
            inside = [first <= piece < first + len(shown) for piece in pieces]
            expected = [shown[0] + pieces[i] - first if all(inside) else 0 for i in (0, -1)]
            assert labels[row].tolist() == expected
            kinds.add((all(inside), any(inside)))
    assert kinds == {(True, True), (False, True), (False, False)}
    assert weights.min() == 1


def test_no_room_for_a_context(small, tmp_path):
    """The data set raises the error of `windows` unchanged."""
    task = QuestionAnswering("squad1.1", write(tmp_path / "dev.json", GOOD))
    with pytest.raises(ValueError, match="^seq_length 64 leaves no room for the context beside 64 tokens"):
        dataset(task, Preprocessor(small, seq_length=64), task.examples("validation"), batch_size=4)


def test_truncated_questions_are_counted(small, tmp_path):
    asked = ("the film", "the film .", "the film . very dull")  # 2, 3 and 5 pieces
    path = write(tmp_path / "dev.json", *[question(text, "good bad", "bad", text=text) for text in asked])
    task = QuestionAnswering("squad1.1", path, max_query_length=2)
    preprocess, examples = Preprocessor(small, seq_length=12), task.examples("validation")
    message = "^2 of 3 questions are longer than max_query_length, 2 tokens, and are truncated"
    with pytest.warns(UserWarning, match=message):
        task.check(preprocess, examples)
    QuestionAnswering("squad1.1", path, max_query_length=5).check(preprocess, examples)


def test_training_batches(small, tmp_path):
    """Batches of windows, labels beside them, padded as far as the longest."""
    contexts = [" ".join(random.Random(i).choices(["good", "bad"], k=5 * i + 1)) for i in range(6)]
    path = write(
        tmp_path / "train.json",
        *[question(str(i), c, "good", text="the") for i, c in enumerate(contexts) if "good" in c],
    )
    task = QuestionAnswering("squad1.1", path, doc_stride=4, max_query_length=2)
    preprocess = Preprocessor(small, seq_length=12, pad_to_longest=True)
    for features, labels, weights in dataset(task, preprocess, task.examples("train"), batch_size=4, seed=1):
        count = len(labels)
        assert labels.shape == weights.shape == [count, 2]
        assert features[INPUT_MASK].shape == [
            count,
            int(tf.reduce_max(tf.reduce_sum(features[INPUT_MASK], 1))),
        ]
        at_label = tf.gather(features[INPUT_WORD_IDS], labels, batch_dims=1).numpy()
        assert set(at_label.ravel()) <= {VOCABULARY.index("good"), VOCABULARY.index("[CLS]")}
