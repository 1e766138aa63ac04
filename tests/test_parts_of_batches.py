"""Each of several processes makes its own rows of every batch; the rows of all are the batches of one process."""

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.features import INPUT_MASK, INPUT_WORD_IDS, WorkerRows
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.devices.strategies import divided
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.strings.text_batches import text_batches
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece

pytestmark = pytest.mark.long

COUNT, BATCH = 33, 8  # the last batch has one row
PREPROCESS = Preprocessor(WordPiece(runs.VOCABULARY), seq_length=24, pad_to_longest=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return runs.write_data(tmp_path_factory.mktemp("parts") / "data", "sst2", count=COUNT)


def rows(features, labels, weights):
    """The ids of each row without padding, its label and its weight."""
    columns = features[INPUT_WORD_IDS], features[INPUT_MASK], labels, weights
    return [
        (tuple(ids[mask > 0].tolist()), int(label), float(weight))
        for ids, mask, label, weight in zip(*(column.numpy() for column in columns), strict=True)
    ]


@pytest.mark.parametrize("doc_stride", [None, 6], ids=["texts", "windows"])
@pytest.mark.parametrize(
    ("parts", "multiple_of"), [(2, 2), (3, 3), pytest.param(2, 4, marks=pytest.mark.slow)]
)
def test_all_parts_together_are_the_whole_batches(files, doc_stride, parts, multiple_of):
    task = TextClassification.open("sst2", files, doc_stride=doc_stride)
    preprocess = (
        PREPROCESS
        if doc_stride is None
        else Preprocessor(PREPROCESS.tokenizer, seq_length=12, pad_to_longest=True)
    )
    how = {"batch_size": BATCH, "seed": 3, "multiple_of": multiple_of}
    examples = task.examples("train")
    whole = [rows(*batch) for batch in dataset(task, preprocess, examples, **how)]
    made = [
        [
            rows(*batch)
            for batch in dataset(task, preprocess, examples, **how, worker_rows=WorkerRows(i, parts))
        ]
        for i in range(parts)
    ]
    joined = [[row for part in batch for row in part] for batch in zip(*made, strict=True)]
    assert joined == whole
    assert len({len(part) for batch in zip(*made, strict=True) for part in batch}) <= len(
        {len(b) for b in whole}
    )
    assert any(weight == 0 for _, _, weight in whole[-1]) or len(whole[-1]) % multiple_of == 0


def test_the_rows_of_other_parts_are_not_tokenized(files):
    task, seen = TextClassification.open("sst2", files), []

    class Counted:
        def __getattr__(self, name):
            return getattr(task, name)

        def features(self, preprocess, raw):
            tf.py_function(lambda texts: seen.append(len(texts)), [raw["sentence"]], [])
            return task.features(preprocess, raw)

    made = dataset(
        Counted(),
        PREPROCESS,
        task.examples("train"),
        batch_size=BATCH,
        multiple_of=2,
        worker_rows=WorkerRows(1, 2),
    )
    assert [len(labels) for _, labels, _ in made] == [4, 4, 4, 4, 1]
    assert sorted(seen) == [1, 4, 4, 4, 4]


@pytest.mark.parametrize("form", ["lists", "a data set", "batches"])
def test_all_parts_of_texts_in_python_are_the_whole_batches(form):
    """With weights of examples and of classes."""
    texts, labels = runs.texts(COUNT, seed=1), ["bad", "good", "good"] * (COUNT // 3)
    weights = np.linspace(0.1, 2, COUNT).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((texts, labels, weights))
    given, size = {
        "lists": ((texts, labels, weights), BATCH),
        "a data set": ((data,), BATCH),
        "batches": ((data.batch(BATCH),), None),
    }[form]
    problem = TextClassification(("bad", "good"), text=("sentence",))
    how = {"batch_size": size, "seed": 3, "multiple_of": 2, "class_weight": {"bad": 0.5}}

    def made(part):
        return [rows(*batch) for batch in text_batches(problem, PREPROCESS, *given, **how, worker_rows=part)]

    whole, first, second = (made(part) for part in (WorkerRows(0, 1), WorkerRows(0, 2), WorkerRows(1, 2)))
    assert [own + other for own, other in zip(first, second, strict=True)] == whole
    assert [len(batch) for batch in first] == [4, 4, 4, 4, 1] and len({weight for *_, weight in whole[0]}) > 4


def test_one_process_reads_whole_batches():
    """The strategies of one machine divide the rows themselves."""
    asked = []

    def make(part):
        asked.append(part)
        return tf.data.Dataset.range(3)

    assert np.array_equal([*divided(tf.distribute.get_strategy(), make).as_numpy_iterator()], range(3))
    assert asked == [WorkerRows(0, 1)]
