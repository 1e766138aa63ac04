"""Damaged files of every format: a result or one clear error, in a few hundred cases for each reader.

benchmarks/fuzz.py runs many more, in processes of their own with limits of time and memory.
"""

import contextlib

import pytest
import tensorflow as tf
from fuzzed_readers import LONGEST, READERS, Finding, Reader, check_result, made, mutated, outcome
from hypothesis import HealthCheck, given, settings, strategies
from random_checkpoints import saves_with_keras

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError, TakenError

# Readers that make a model, a graph or a data set of TensorFlow for each case.
SLOW = {
    *("KerasHub config.json", "KerasHub tokenizer.json", "KerasHub weights", "task.json"),
    *("TFRecord, ours", "TFRecord, Google's", "manifest.json"),
    *(name for name, reader in READERS.items() if "vocab" in name or "token" in name or "merges" in name),
    *("spiece.model", "SQuAD JSON", "SWAG JSON lines", "CoNLL", "MediaWiki dump"),
    *(name for name in READERS if name.startswith("table")),
}


@pytest.fixture
def eager():
    """A tokenizer's graph takes a second to make."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def read_damaged_files(name, folder, *, count):
    reader = READERS[name]
    with made(reader, folder) as (originals, results):
        how = {
            "derandomize": True,
            "database": None,
            "deadline": None,
            "suppress_health_check": [*HealthCheck],
        }

        @settings(max_examples=count, **how)
        @given(strategies.randoms(use_true_random=False))
        def one(random):
            data = mutated(reader, originals, random)
            check_result(reader, outcome(reader, folder, data), results)

        one()


@pytest.mark.parametrize("name", sorted(set(READERS) - SLOW))
def test_a_damaged_file_is_read_or_refused_in_one_line(name, tmp_path):
    read_damaged_files(name, tmp_path, count=200)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Even though the")  # tf.data's functions are not run eagerly
@saves_with_keras
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_damaged_file_of_a_slow_reader_is_read_or_refused_in_one_line(name, tmp_path, eager):
    read_damaged_files(name, tmp_path, count=30)


@pytest.mark.parametrize(
    ("message", "finding"),
    [
        ("text.txt cannot be read: first line", None),
        ("text.txt cannot be read: a name\nwith a line break", None),
        ("text.txt cannot be read:\nfirst line\nsecond line\nthird line", "several lines"),
        ("the file cannot be read", "does not name the file"),
        ("text.txt cannot be read: " + "x" * LONGEST, "characters"),
    ],
)
def test_an_error_of_several_lines_or_without_the_file_is_a_finding(message, finding, tmp_path):
    def read(folder):
        raise BertKerasError(message)

    reader = Reader("text.txt", lambda folder: [], lambda data, random: data, read)
    expected = contextlib.nullcontext() if finding is None else pytest.raises(Finding, match=finding)
    with expected:
        assert outcome(reader, tmp_path, b"") is None


@pytest.mark.parametrize("kind", [BertKerasError, MissingFileError, TakenError, MissingPackageError])
def test_an_error_is_one_line_without_control_characters_whatever_it_quotes(kind):
    error = kind("no column 'a\nb', 'c\r\x1b[2J', '\u2028', '\ud800' in é.tsv\t.")
    assert str(error) == r"no column 'a\nb', 'c\r\x1b[2J', '\u2028', '\ud800' in é.tsv" + "\t."
