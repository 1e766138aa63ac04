"""The characters of words beside their ids, for encoders that read them: preprocessing, and vectors of a frozen encoder."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import ENCODER_INPUTS, INPUT_CHARACTERS, INPUT_WORD_IDS
from bert_keras.model import encoders
from bert_keras.tasks.ancestors.encoder import AncestorEncoder
from bert_keras.tasks.frozen.extractor import FEATURES, Extractor, Rows, rows_in
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.rules import Rules
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.wordpiece import WordPiece

SIZE = 8
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "cat", "sat", ",", ".")
START, END, WORD, WORD_END, NONE = (one + 1 for one in (256, 257, 258, 259, 260))


def by_hand(word):
    """The characters of a word or of a mark, written out."""
    if word == "":
        return [0] * SIZE
    inside = {"<S>": [START], "</S>": [END]}.get(word) or [byte + 1 for byte in word.encode()[: SIZE - 2]]
    row = [WORD, *inside, WORD_END]
    return row + [NONE] * (SIZE - len(row))


@pytest.fixture
def preprocess():
    tokenizer = WordPiece(VOCABULARY, lower_case=False, rules=Rules(characters=SIZE))
    return Preprocessor(tokenizer, seq_length=12)


def test_each_word_has_its_own_bytes_beside_its_id(preprocess):
    features = preprocess(["The catamaran, sat", ""], ["Zürich .", "cat"])
    words = [
        ["<S>", "The", "catamaran", ",", "sat", "</S>", "Zürich", ".", "</S>", "", "", ""],
        ["<S>", "</S>", "cat", "</S>", *[""] * 8],
    ]
    assert features[INPUT_CHARACTERS].numpy().tolist() == [[by_hand(word) for word in row] for row in words]
    plain = Preprocessor(WordPiece(VOCABULARY, lower_case=False), seq_length=12)(
        ["The catamaran, sat", ""], ["Zürich .", "cat"]
    )
    for name in ENCODER_INPUTS:
        np.testing.assert_array_equal(features[name], plain[name])


def test_the_bytes_follow_a_word_into_each_window(preprocess):
    text = tf.constant(["The cat sat . The dog sat . The cow , sat . Ox sat ."])
    words = text[0].numpy().decode().split()
    short = Preprocessor(preprocess.tokenizer, seq_length=8, pad_to_longest=True)
    features = short.windows(text, question=tf.constant(["Who"]), doc_stride=2, max_query_length=1)
    starts = features["start_bytes"].numpy()
    assert len(starts) > 3
    offsets = np.cumsum([0, *[len(word) + 1 for word in words]])[:-1].tolist()
    for row, spelled in zip(starts, features[INPUT_CHARACTERS].numpy(), strict=True):
        assert spelled[1].tolist() == by_hand("Who")
        for start, found in zip(row, spelled, strict=True):
            if start >= 0:
                assert found.tolist() == by_hand(words[offsets.index(start)])


class SumOfBytes(AncestorEncoder):
    """A vector of a token is the sum of its characters, and its id."""

    def make(self, config):
        return []

    def states(self, features, training=False):
        total = ops.sum(ops.cast(features[INPUT_CHARACTERS], "float32"), axis=-1)
        return [ops.stack([total, ops.cast(features[INPUT_WORD_IDS], "float32")], axis=-1)]

    @classmethod
    def layer_shapes(cls, config):
        return {}


def test_a_frozen_encoder_and_a_task_read_the_bytes(monkeypatch):
    monkeypatch.setitem(encoders.ENCODERS, "sum-of-bytes", (__name__, "SumOfBytes"))
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=2,
        num_heads=1,
        num_layers=0,
        encoder="sum-of-bytes",
        max_characters=SIZE,
    )
    source = checkpoints.Checkpoint(
        config=config, tensors={}, vocabulary=Vocabulary(tokens=VOCABULARY, lower_case=False)
    )
    tokenizer = checkpoints.tokenizer_of(source)
    preprocess = Preprocessor(tokenizer, seq_length=10, pad_to_longest=True)
    features = {name: value.numpy() for name, value in preprocess(["The catamaran sat", "dog"]).items()}
    extractor = Extractor(source=source, units=Rows(SIZE), places=[0], dtype="float32")
    found = [one["vectors"] for one in extractor([{FEATURES: row} for row in rows_in(features)])]
    for row, words in zip(
        found, (["<S>", "The", "catamaran", "sat", "</S>"], ["<S>", "dog", "</S>"]), strict=True
    ):
        assert row[:, 0, 0].tolist() == [sum(by_hand(word)) for word in words]
    assert dataclasses.replace(config, max_characters=0).inputs == ENCODER_INPUTS
