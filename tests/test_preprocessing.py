"""Truncation, framing and padding, against a second implementation in plain Python."""

import random

import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from random_checkpoints import refused

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.text.preprocessing import Preprocessor, longest_first
from bert_keras.text.wordpiece import WordPiece

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
PAD, CLS, SEP, A, B, C = 0, 2, 3, 5, 6, 7


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(PIECES)


def rows(features, name):
    return features[name].numpy().tolist()


def test_one_segment(tokenizer):
    features = Preprocessor(tokenizer, seq_length=6)(tf.constant(["a b", "c a b c a", ""]))
    assert rows(features, INPUT_WORD_IDS) == [
        [CLS, A, B, SEP, PAD, PAD],
        [CLS, C, A, B, C, SEP],
        [CLS, SEP, PAD, PAD, PAD, PAD],
    ]
    assert rows(features, INPUT_MASK) == [[1, 1, 1, 1, 0, 0], [1] * 6, [1, 1, 0, 0, 0, 0]]
    assert rows(features, INPUT_TYPE_IDS) == [[0] * 6] * 3
    assert {value.dtype for value in features.values()} == {tf.int32}


def test_two_segments(tokenizer):
    features = Preprocessor(tokenizer, seq_length=9)(tf.constant(["a a", ""]), tf.constant(["b c", "b"]))
    assert rows(features, INPUT_WORD_IDS) == [
        [CLS, A, A, SEP, B, C, SEP, PAD, PAD],
        [CLS, SEP, B, SEP, PAD, PAD, PAD, PAD, PAD],
    ]
    assert rows(features, INPUT_MASK) == [[1] * 7 + [0] * 2, [1] * 4 + [0] * 5]
    assert rows(features, INPUT_TYPE_IDS) == [[0, 0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0, 0]]


def cut_longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """One piece at a time off the longer; off the second where both are equal."""
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


def cut_waterfall(first: int, second: int, room: int) -> tuple[int, int]:
    first = min(first, room)
    return first, min(second, room - first)


@pytest.mark.parametrize(
    ("truncation", "cut"), [("longest_first", cut_longest_first), ("waterfall", cut_waterfall)]
)
@pytest.mark.parametrize("seq_length", [5, 8, 13])
def test_truncation_of_every_pair_of_lengths(tokenizer, truncation, cut, seq_length):
    lengths = [(first, second) for first in range(16) for second in range(16)]
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, truncation=truncation)
    first = tf.constant([" ".join("a" * n) for n, _ in lengths])
    second = tf.constant([" ".join("b" * n) for _, n in lengths])
    ids = rows(preprocess(first, second), INPUT_WORD_IDS)
    assert [(row.count(A), row.count(B)) for row in ids] == [cut(*pair, seq_length - 3) for pair in lengths]


def test_the_front_of_each_segment_is_kept(tokenizer):
    features = Preprocessor(tokenizer, seq_length=7)(tf.constant(["a b c a"]), tf.constant(["c b a a"]))
    assert rows(features, INPUT_WORD_IDS) == [[CLS, A, B, SEP, C, B, SEP]]


def test_pad_to_longest_is_the_batch_s_own_and_never_over_seq_length(tokenizer):
    preprocess = Preprocessor(tokenizer, seq_length=8, pad_to_longest=True)
    widths = [
        preprocess(tf.constant(batch))[INPUT_WORD_IDS].shape for batch in (["a"], ["a", "a b c"], ["a " * 50])
    ]
    assert widths == [(1, 3), (2, 5), (1, 8)]
    fixed = Preprocessor(tokenizer, seq_length=8)
    texts = tf.constant([" ".join(random.Random(i).choices("abc", k=i)) for i in range(12)])
    for name, value in preprocess(texts).items():
        assert value.numpy().tolist() == rows(fixed(texts), name)


@pytest.mark.parametrize("pad_to_longest", [False, True])
def test_a_batch_without_rows_has_a_position_0(tokenizer, pad_to_longest):
    features = Preprocessor(tokenizer, seq_length=8, pad_to_longest=pad_to_longest)(tf.zeros([0], tf.string))
    for value in features.values():
        assert value.shape[0] == 0 and value.shape[1] >= 1


@pytest.mark.parametrize(
    ("texts", "width"), [(["a"], 4), (["a b", "a"], 4), (["a b c", "a"], 8), (["a " * 8], 9), ([], 4)]
)
def test_a_multiple_of_four(tokenizer, texts, width):
    texts = tf.constant(texts, tf.string)
    exact, padded = (
        Preprocessor(tokenizer, seq_length=9, pad_to_longest=True, multiple_of=multiple)(texts)
        for multiple in (1, 4)
    )
    longest = exact[INPUT_MASK].shape[1]
    for name, value in padded.items():
        assert value.shape[1] == width
        assert value[:, :longest].numpy().tolist() == exact[name].numpy().tolist()
        assert not value[:, longest:].numpy().any()


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (0, 1), (3, 2)])
def test_segments_of_different_batch_sizes(tokenizer, in_graph, sizes):
    preprocess = Preprocessor(tokenizer, seq_length=8, pad_to_longest=True)
    call = preprocess
    if in_graph:
        call = tf.function(
            lambda first, second: preprocess(first, second),
            input_signature=[tf.TensorSpec([None], tf.string)] * 2,
        )
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(*[tf.constant(["a"] * size, tf.string, [size]) for size in sizes])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_length": 4}, "seq_length is 4"),
        ({"truncation": "middle"}, "truncation is 'middle'"),
        ({"multiple_of": 0}, "multiple_of is 0"),
    ],
)
def test_wrong_arguments(tokenizer, arguments, message):
    refused(message, Preprocessor, tokenizer, **arguments)


def test_wrong_number_of_segments(tokenizer):
    preprocess = Preprocessor(tokenizer)
    refused("3 segments", preprocess, *[tf.constant(["a"])] * 3)


@pytest.mark.parametrize("room", range(2, 10))
def test_longest_first_is_round_robin(room):
    lengths = tf.constant([(first, second) for first in range(9) for second in range(9)])
    segments = [tf.ragged.range(lengths[:, i]) for i in range(2)]
    trimmed = tf_text.RoundRobinTrimmer(room).trim(segments)
    for ours, theirs in zip(longest_first(lengths[:, 0], lengths[:, 1], room=room), trimmed, strict=True):
        assert ours.numpy().tolist() == theirs.row_lengths().numpy().tolist()


def test_special_ids_come_from_the_vocabulary():
    tokenizer = WordPiece(["a", "[MASK]", "[SEP]", "[CLS]", "[UNK]", "[PAD]"])
    features = Preprocessor(tokenizer, seq_length=6)(tf.constant(["a z"]))
    assert rows(features, INPUT_WORD_IDS) == [[3, 0, 4, 2, 5, 5]]


def test_pack_is_the_half_after_tokenizing(tokenizer):
    preprocess = Preprocessor(tokenizer, seq_length=7)
    texts = tf.constant(["a b c a", "c"]), tf.constant(["b c", "a b"])
    packed = preprocess.pack(*map(tokenizer.tokenize, texts))
    for name, value in preprocess(*texts).items():
        assert rows(packed, name) == value.numpy().tolist()


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2), (0, 3)])
def test_pack_of_different_batch_sizes(tokenizer, sizes):
    preprocess = Preprocessor(tokenizer, seq_length=6)
    ids = [tokenizer.tokenize(tf.fill([size], "a b c a b")) for size in sizes]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Shapes of all inputs must match"):
        preprocess.pack(*ids)


def test_a_data_set_knows_the_fixed_length(tokenizer):
    data = tf.data.Dataset.from_tensor_slices((["a", "b", "c a"], ["a", "b", "c"])).batch(2)
    mapped = data.map(Preprocessor(tokenizer, seq_length=6))
    assert {tuple(spec.shape.as_list()) for spec in mapped.element_spec.values()} == {(None, 6)}
    assert [len(batch[INPUT_WORD_IDS]) for batch in mapped] == [2, 1]
