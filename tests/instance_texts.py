"""Texts and folders that tests of instances share."""

import functools
import random

import numpy as np
import pytest

from bert_keras.features import INPUT_WORD_IDS, NEXT_SENTENCE_LABEL
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.pretraining.samplers import TokenizedDocuments
from bert_keras.tasks.pretraining.write_records import Job, write_records
from bert_keras.text.wordpiece import WordPiece

DOCUMENT, SEGMENT = 1_000_000, 1_000  # an id tells where it comes from: document, segment and place


def documents(count=200, *, seed=0, segments=(1, 20), pieces=(1, 40)):
    """Documents whose ids are all different and rise."""
    draw = random.Random(seed)
    return TokenizedDocuments.of(
        [
            [
                np.arange(draw.randint(*pieces), dtype="int32") + (d + 1) * DOCUMENT + s * SEGMENT
                for s in range(draw.randint(*segments))
            ]
            for d in range(count)
        ]
    )


def original_pairs(texts, *, seed, seq_length, short_seq_prob, passes):
    """(A, B, label) as Devlin et al. describe them, one draw and one piece at a time."""
    draw = random.Random(seed)
    room = seq_length - 3
    for _ in range(passes):
        for mine, text in enumerate(texts):
            aim = draw.randint(2, room) if draw.random() < short_seq_prob else room
            waiting = list(text)
            while waiting:
                chunk = [waiting.pop(0)]
                while waiting and sum(map(len, chunk)) < aim:
                    chunk.append(waiting.pop(0))
                cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [piece for segment in chunk[:cut] for piece in segment]
                b = []
                label = 1 if len(chunk) == 1 else draw.choice((0, 1))
                if label:
                    for _ in range(10):
                        other = draw.randrange(len(texts))
                        if other != mine:
                            break
                    place = draw.randrange(len(texts[other]))
                    while place < len(texts[other]) and (not b or len(b) < aim - len(a)):
                        b.extend(texts[other][place])
                        place += 1
                    waiting = chunk[cut:] + waiting
                else:
                    b = [piece for segment in chunk[cut:] for piece in segment]
                while len(a) + len(b) > room:
                    longer = a if len(a) > len(b) else b
                    longer.pop(0 if draw.random() < 0.5 else -1)
                yield a, b, label


def whole(texts):
    return np.concatenate([segment for text in texts for segment in text]).tolist()


WORDS = "the a cat dog bird sat ran flew on in mat tree sky and . big small old red blue".split()


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    file = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    file.write_text("\n".join(PIECES) + "\n")
    return file


def texts_of(count=60, *, seed=0):
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(draw.randint(10, 30))]
        for _ in range(count)
    ]


def write(path, vocab, texts=None, **options):
    settings = {"seq_length": 32, "dupe_factor": 2} | options.pop("settings", {})
    how = {name: options.pop(name) for name in ("workers", "progress") if name in options}
    known = {"shard_bytes": 2_000, "shard_documents": 5, "masking": Masking(max_predictions=5)}
    return write_records(
        texts_of() if texts is None else texts,
        Job(
            path=path,
            make_tokenizer=functools.partial(WordPiece.from_file, str(vocab)),
            settings=Sampling(**settings),
            **known | options,
        ),
        **how,
    )


def rows_of(path):
    """All records as arrays that can be written to."""
    return [
        {name: np.array(value) for name, value in row.items()}
        for row in read_records(path).as_numpy_iterator()
    ]


def rows(dataset):
    return [
        np.append(row[INPUT_WORD_IDS], row[NEXT_SENTENCE_LABEL]).tolist()
        for row in dataset.as_numpy_iterator()
    ]


WORDS_OF = {
    "我爱北京天安门": ["我", "爱", "北京", "天安门"],
    "使用语言模型 playing.": ["使用", "语言", "模型", "playing", "."],
}


def segment(line):
    return WORDS_OF[line]
