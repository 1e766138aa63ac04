"""Tokenizers for other processes: a pickle makes an equal tokenizer, with every setting."""

import pickle

import pytest
import tensorflow as tf
from runs import learn_byte_bpe

from bert_keras import ByteBPE, WordPiece
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece

TEXTS = ["Hello  lower world", "[MASK] lowest café <mask>", "unaffable, low!"] * 40
VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] Hello hello world lower un ##aff ##able , !".split()


def sentencepiece():
    return learn_sentencepiece(TEXTS, size=40, lower_case=False)


MADE = {
    "wordpiece": lambda: WordPiece(VOCABULARY),
    "wordpiece cased": lambda: WordPiece(VOCABULARY, lower_case=False),
    "wordpiece special": lambda: WordPiece(VOCABULARY, special_tokens_in_text=True),
    "sentencepiece cased": sentencepiece,
    "byte-bpe": lambda: ByteBPE(*learn_byte_bpe(TEXTS, size=300)),
    "byte-bpe special": lambda: ByteBPE(*learn_byte_bpe(TEXTS, size=300), special_tokens_in_text=True),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_pickle_makes_an_equal_tokenizer(kind):
    tokenizer = MADE[kind]()
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert (type(copy), copy.digest, copy.lower_case) == (
        type(tokenizer),
        tokenizer.digest,
        tokenizer.lower_case,
    )
    one, two = (made.tokenize_with_offsets(tf.constant(TEXTS[:3])) for made in (tokenizer, copy))
    assert [part.to_list() for part in one] == [part.to_list() for part in two]
