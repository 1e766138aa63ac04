"""Texts, jobs and records that tests of instances share."""

import functools
import itertools
import random
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.features import INPUT_WORD_IDS, NEXT_SENTENCE_LABEL
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.pretraining.samplers import TokenizedDocument, TokenizedDocuments
from bert_keras.tasks.pretraining.write_records import Job, write_records
from bert_keras.text.wordpiece import WordPiece

# -----------------------------------------------------------------------------------------------------------
# Documents as ids, and pairs by a second implementation

DOCUMENT, SEGMENT = 1_000_000, 1_000  # an id tells where it comes from: document, segment and place


class Instance(NamedTuple):
    segments: tuple[np.ndarray, ...]
    label: int


def each(instances):
    """Every instance of `Instances` as an object."""
    for places, label in zip(instances.places.tolist(), instances.labels.tolist(), strict=True):
        yield Instance(tuple(instances.ids[start:end] for start, end in places), label)


def segments_of(texts):
    """The ids of each segment of `TokenizedDocuments`, by document."""
    bounds = (itertools.pairwise(document.bounds) for document in texts.found)
    return [[texts.ids[start:end] for start, end in one] for one in bounds]


def documents(count=200, *, seed=0, segments=(1, 20), pieces=(1, 40)):
    """Documents whose ids are all different and rise."""
    draw, ids, found = random.Random(seed), [], []
    for d in range(1, count + 1):
        bounds = [len(ids)]
        for s in range(draw.randint(*segments)):
            ids += range(d * DOCUMENT + s * SEGMENT, d * DOCUMENT + s * SEGMENT + draw.randint(*pieces))
            bounds.append(len(ids))
        found.append(TokenizedDocument(bounds))
    return TokenizedDocuments(np.array(ids, "int32"), found)


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


# -----------------------------------------------------------------------------------------------------------
# Texts, and folders of their instances

WORDS = "the a cat dog bird sat ran flew on in mat tree sky and . big small old red blue".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def texts_of(count=60, *, seed=0, lines=(10, 30)):
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(draw.randint(*lines))]
        for _ in range(count)
    ]


def job(path, *, vocabulary=PIECES, settings=None, **changes):
    """A job whose texts fill several small files."""
    known = {"shard_bytes": 2_000, "shard_documents": 5, "masking": Masking(max_predictions=5)}
    return Job(
        path=path,
        make_tokenizer=functools.partial(WordPiece, vocabulary),
        settings=Sampling(**{"seq_length": 32, "dupe_factor": 2} | (settings or {})),
        **known | changes,
    )


def write(path, texts=None, *, workers=1, progress=lambda done: None, **options):
    texts = texts_of() if texts is None else texts
    return write_records(texts, job(path, **options), workers=workers, progress=progress)


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


# -----------------------------------------------------------------------------------------------------------
# A MediaWiki dump

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">
<siteinfo><sitename>W</sitename><dbname>w</dbname><base>b</base><generator>g</generator><case>first-letter</case>
<namespaces><namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">Datei</namespace>
<namespace key="1" case="first-letter">Talk</namespace></namespaces></siteinfo>
{}</mediawiki>"""
PAGE = """<page><title>{title}</title><ns>{ns}</ns><id>{id}</id>{extra}<revision><id>{id}</id>
<timestamp>2020-01-01T00:00:00Z</timestamp><model>wikitext</model><format>text/x-wiki</format>
<text xml:space="preserve">{text}</text></revision></page>
"""


def dump(*pages):
    return DUMP.format(
        "".join(PAGE.format(id=i, **{"ns": 0, "extra": ""} | page) for i, page in enumerate(pages, 1))
    )


# -----------------------------------------------------------------------------------------------------------
# Records by protobuf


def example(columns):
    """A serialized tf.Example: floats become float lists, other numbers int64 lists."""

    def feature(values):
        values = np.atleast_1d(values)
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype("int64")))

    features = {name: feature(values) for name, values in columns.items()}
    made = tf.train.Example(features=tf.train.Features(feature=features))
    return made.SerializeToString(deterministic=True)


def write_examples(file, examples, compression=""):
    """A file of serialized examples."""
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for one in examples:
            writer.write(one)


# -----------------------------------------------------------------------------------------------------------
# A segmenter

WORDS_OF = {
    "我爱北京天安门": ["我", "爱", "北京", "天安门"],
    "使用语言模型 playing.": ["使用", "语言", "模型", "playing", "."],
}


def segment(line):
    return WORDS_OF[line]
