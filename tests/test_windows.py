"""Windows over long text against a second implementation of the published rule, in plain Python; words and their tokens."""

import json
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.features import (
    END_BYTES,
    EXAMPLE_INDEX,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MAX_CONTEXT,
    START_BYTES,
    WORD_INDEX,
)
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c", "猫", "は"]
PAD, UNK, CLS, SEP, A, B, C = 0, 1, 2, 3, 5, 6, 7
PER_POSITION = (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS, START_BYTES, END_BYTES, MAX_CONTEXT)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(PIECES)


def spans(length: int, *, room: int, stride: int) -> list[tuple[int, int]]:
    """(start, length) of each window: a start every `stride` tokens until one reaches the end."""
    found, start = [], 0
    while True:
        found.append((start, min(room, length - start)))
        if start + room >= length:
            return found
        start += min(room, stride)


def owner(windows: list[tuple[int, int]], piece: int) -> int:
    """The window that shows a piece with the most context; the first of equal ones."""
    shown = [min(piece - start, start + length - 1 - piece) for start, length in windows]
    scores = [
        least + 0.01 * length if least >= 0 else -1 for least, (_, length) in zip(shown, windows, strict=True)
    ]
    return scores.index(max(scores))


def expected_rows(tokenizer, context: str, question: str, *, seq_length: int, stride: int, most: int):
    """One dict of lists for each window, without padding."""
    ids, starts, ends = (values[0].numpy().tolist() for values in tokenizer.tokenize_with_offsets([context]))
    asked = tokenizer.tokenize([question])[0].numpy().tolist()[:most]
    windows = spans(len(ids), room=seq_length - 3 - len(asked), stride=stride)
    before = len(asked) + 2
    for number, (start, length) in enumerate(windows):
        shown = slice(start, start + length)
        yield {
            INPUT_WORD_IDS: [CLS, *asked, SEP, *ids[shown], SEP],
            INPUT_MASK: [1] * (before + length + 1),
            INPUT_TYPE_IDS: [0] * before + [1] * (length + 1),
            START_BYTES: [-1] * before + starts[shown] + [-1],
            END_BYTES: [-1] * before + ends[shown] + [-1],
            MAX_CONTEXT: [0] * before
            + [int(owner(windows, start + i) == number) for i in range(length)]
            + [0],
        }


def assert_windows(features, expected: list[dict[str, list[int]]]) -> None:
    got = {name: features[name].numpy() for name in PER_POSITION}
    assert len(got[INPUT_WORD_IDS]) == len(expected)
    fill = dict.fromkeys(PER_POSITION, 0) | {START_BYTES: -1, END_BYTES: -1}
    for row, window in enumerate(expected):
        for name, values in window.items():
            wanted = values + [fill[name]] * (got[name].shape[1] - len(values))
            assert got[name][row].tolist() == wanted, (name, row)


def text(draw: random.Random, count: int) -> str:
    return " ".join("".join(draw.choices("abc猫は ", k=draw.randint(1, 4))) for _ in range(count))


@pytest.mark.parametrize(
    ("seq_length", "stride", "most"), [(12, 3, 4), (12, 100, 4), (12, 1, 1), (9, 4, 5), (40, 16, 9)]
)
def test_the_published_rule(tokenizer, seq_length, stride, most):
    draw = random.Random(seq_length * stride)
    contexts = [text(draw, draw.randint(0, 30)) for _ in range(20)]
    questions = [text(draw, draw.randint(0, 8)) for _ in range(20)]
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
    features = preprocess.windows(
        tf.constant(contexts), question=tf.constant(questions), doc_stride=stride, max_query_length=most
    )
    expected = [
        list(expected_rows(tokenizer, context, question, seq_length=seq_length, stride=stride, most=most))
        for context, question in zip(contexts, questions, strict=True)
    ]
    assert_windows(features, [window for windows in expected for window in windows])
    index = [i for i, windows in enumerate(expected) for _ in windows]
    assert features[EXAMPLE_INDEX].numpy().tolist() == index
    assert {value.dtype for value in features.values()} == {tf.int32}
    longest = max(len(window[INPUT_MASK]) for windows in expected for window in windows)
    assert features[INPUT_MASK].shape[1] == longest <= seq_length


@pytest.mark.parametrize(("seq_length", "stride", "most"), [(384, 128, 64), (64, 16, 20)])
def test_real_questions(data_dir, seq_length, stride, most):
    uncased = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    data = json.loads((data_dir / "squad" / "xquad.en.json").read_text())["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]][::8]
    pairs = [(paragraph["context"], paragraph["qas"][0]["question"]) for paragraph in paragraphs]
    contexts, questions = zip(*pairs, strict=True)
    features = Preprocessor(uncased, seq_length=seq_length, pad_to_longest=True).windows(
        tf.constant(contexts), question=tf.constant(questions), doc_stride=stride, max_query_length=most
    )
    special = {CLS: uncased.special.start, SEP: uncased.special.end}
    options, expected = {"seq_length": seq_length, "stride": stride, "most": most}, []
    for pair in pairs:
        for window in expected_rows(uncased, *pair, **options):
            ids = [special.get(id_, id_) for id_ in window[INPUT_WORD_IDS]]
            expected.append(window | {INPUT_WORD_IDS: ids})
    assert_windows(features, expected)


def test_random_windows(tokenizer):
    """Two windows over five tokens, in rows: room for four, a start every two."""
    features = Preprocessor(tokenizer, seq_length=8).windows(
        tf.constant(["a b c a b"]), question=tf.constant(["c"]), doc_stride=2, max_query_length=2
    )
    rows = {name: value.numpy().tolist() for name, value in features.items()}
    assert rows == {
        EXAMPLE_INDEX: [0, 0],
        INPUT_WORD_IDS: [[CLS, C, SEP, A, B, C, A, SEP], [CLS, C, SEP, C, A, B, SEP, PAD]],
        INPUT_MASK: [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]],
        INPUT_TYPE_IDS: [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 0]],
        START_BYTES: [[-1, -1, -1, 0, 2, 4, 6, -1], [-1, -1, -1, 4, 6, 8, -1, -1]],
        END_BYTES: [[-1, -1, -1, 1, 3, 5, 7, -1], [-1, -1, -1, 5, 7, 9, -1, -1]],
        # c: lesser side 1 of 4 pieces, 0 of 3; the second a: 0 of 4, 1 of 3
        MAX_CONTEXT: [[0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]],
    }


def test_each_piece_has_one_best_window(tokenizer):
    draw = random.Random(5)
    contexts = [text(draw, 40) for _ in range(5)]
    features = Preprocessor(tokenizer, seq_length=20).windows(tf.constant(contexts), doc_stride=4)
    ids, starts, _ = tokenizer.tokenize_with_offsets(contexts)
    for i in range(5):
        window = features[EXAMPLE_INDEX] == i
        best = tf.boolean_mask(features[START_BYTES], window[:, tf.newaxis] & (features[MAX_CONTEXT] > 0))
        assert sorted(best.numpy().tolist()) == starts[i].numpy().tolist()


def test_without_a_question_the_context_is_the_first_segment(tokenizer):
    features = Preprocessor(tokenizer, seq_length=5).windows(tf.constant(["a b c a"]), doc_stride=3)
    assert features[INPUT_WORD_IDS].numpy().tolist() == [[CLS, A, B, C, SEP], [CLS, A, SEP, PAD, PAD]]
    assert not features[INPUT_TYPE_IDS].numpy().any()


def test_empty_and_truncated_texts(tokenizer):
    """An empty context, one of control characters, a question longer than its limit, and an empty question."""
    features = Preprocessor(tokenizer, seq_length=10).windows(
        tf.constant(["", "\u0001 \u0002", "a b", "c"]),
        question=tf.constant(["b", "b", "a b c a b c", ""]),
        max_query_length=3,
    )
    assert features[EXAMPLE_INDEX].numpy().tolist() == [0, 1, 2, 3]
    assert features[INPUT_WORD_IDS].numpy().tolist() == [
        [CLS, B, SEP, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
        [CLS, B, SEP, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
        [CLS, A, B, C, SEP, A, B, SEP, PAD, PAD],
        [CLS, SEP, C, SEP, PAD, PAD, PAD, PAD, PAD, PAD],
    ]
    assert features[START_BYTES].numpy().max(axis=1).tolist() == [-1, -1, 2, 0]


def test_a_batch_of_nothing(tokenizer):
    none = tf.constant([], tf.string)
    features = Preprocessor(tokenizer, seq_length=10, pad_to_longest=True).windows(
        none, question=none, max_query_length=3
    )
    assert features[EXAMPLE_INDEX].shape == [0]
    assert {features[name].shape.as_list()[0] for name in PER_POSITION} == {0}


@pytest.mark.parametrize("pad_to_longest", [True, False])
def test_width(tokenizer, pad_to_longest):
    preprocess = Preprocessor(tokenizer, seq_length=12, pad_to_longest=pad_to_longest)
    contexts = tf.constant(["a", "a b c"])
    features = preprocess.windows(contexts, question=contexts, max_query_length=4)
    for name in PER_POSITION:
        assert features[name].shape == [2, 9 if pad_to_longest else 12], name
    texts = tf.data.Dataset.from_tensors(contexts)
    spec = texts.map(lambda text: preprocess.windows(text, question=text, max_query_length=4)).element_spec
    assert {spec[name].shape[1] for name in PER_POSITION} == {None if pad_to_longest else 12}


def test_unequal_batches(tokenizer):
    preprocess = Preprocessor(tokenizer, seq_length=12)
    with pytest.raises(tf.errors.InvalidArgumentError):
        preprocess.windows(tf.constant(["a", "b"]), question=tf.constant(["a"]), max_query_length=4)
    traced = tf.function(
        lambda context, question: preprocess.windows(context, question=question, max_query_length=4),
        input_signature=[tf.TensorSpec([None], tf.string)] * 2,
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(tf.constant(["a", "b"]), tf.constant(["a"]))


def test_no_room(tokenizer):
    preprocess, texts = Preprocessor(tokenizer, seq_length=12), tf.constant(["a"])
    with pytest.raises(ValueError, match="seq_length 12 leaves no room .* beside 9 tokens .* at least 13"):
        preprocess.windows(texts, question=texts, max_query_length=9)
    assert preprocess.windows(texts, question=texts, max_query_length=8)[INPUT_MASK].shape == [1, 12]
    for method in (preprocess.windows, lambda text, **more: preprocess.words(text, starts(text), **more)):
        with pytest.raises(ValueError, match="doc_stride is 0; give at least 1"):
            method(texts, doc_stride=0)


def starts(texts) -> tf.RaggedTensor:
    """The offsets of words separated by spaces, in bytes."""
    rows = []
    for text in texts.numpy():
        places = [0, *(i + 1 for i, byte in enumerate(text) if byte == ord(" "))]
        rows.append([place for place in places if text[place : place + 1].strip()])
    return tf.ragged.constant(rows, tf.int32, ragged_rank=1)


def test_random_words(tokenizer):
    contexts = tf.constant(["ab cab b", "", "猫は a"])
    features = Preprocessor(tokenizer, seq_length=10).words(contexts, starts(contexts))
    assert features[INPUT_WORD_IDS].numpy()[0].tolist() == [CLS, A, B + 3, C, A + 3, B + 3, B, SEP, PAD, PAD]
    assert features[WORD_INDEX].numpy().tolist() == [
        [-1, 0, -1, 1, -1, -1, 2, -1, -1, -1],
        [-1] * 10,
        [-1, 0, -1, 1, -1, -1, -1, -1, -1, -1],  # a word of two characters is two pieces
    ]


@pytest.mark.parametrize("stride", [1, 3, 50])
def test_each_word_is_found_once(tokenizer, stride):
    """At its first piece, where that has the most context, unless no piece is left of it."""
    draw = random.Random(stride)
    words = [["".join(draw.choices("abc猫は", k=draw.randint(1, 4))) for _ in range(30)] for _ in range(4)]
    words[1][3] = words[2][0] = "\u0001"  # of such a character no piece is left
    contexts = tf.constant([" ".join(row) for row in words])
    features = Preprocessor(tokenizer, seq_length=11).words(contexts, starts(contexts), doc_stride=stride)
    rows, columns = np.nonzero(features[WORD_INDEX].numpy() >= 0)
    found: dict[int, list[int]] = {i: [] for i in range(4)}
    for row, column in zip(rows, columns, strict=True):
        example, word = features[EXAMPLE_INDEX].numpy()[row], features[WORD_INDEX].numpy()[row, column]
        assert features[MAX_CONTEXT].numpy()[row, column] == 1
        assert features[START_BYTES].numpy()[row, column] == starts(contexts)[example].numpy()[word]
        found[example].append(word)
    missing = {1: [3], 2: [0]}
    for example, places in found.items():
        assert sorted(places) == [i for i in range(30) if i not in missing.get(example, [])]
