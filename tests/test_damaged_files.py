"""Damage that benchmarks/fuzz.py found to be read, or to end in another library's error: each is one error now."""

import dataclasses
import json
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from pretrainings import refused, train, write_google
from random_checkpoints import TINY, random_checkpoint, saves_with_keras
from runs import write_roberta

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
)
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.problems.classification import TextClassification


def damage(path, change, *, record=15):
    """Changes one record; `change` returns its bytes from a tf.Example."""
    records = [one.numpy() for one in tf.data.TFRecordDataset(str(path))]
    records[record] = change(tf.train.Example.FromString(records[record]))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (INPUT_WORD_IDS, 2**32 + 5, "there is a token of id 2147483647 and vocab_size is"),
        (INPUT_WORD_IDS, -1, f"file.tfrecord: a value of {INPUT_WORD_IDS} is out of range"),
        (MASKED_LM_IDS, -(2**63), f"file.tfrecord: a value of {MASKED_LM_IDS} is out of range"),
        (INPUT_MASK, 2, f"file.tfrecord: a value of {INPUT_MASK} is out of range"),
        (INPUT_TYPE_IDS, 2, f"file.tfrecord: a value of {INPUT_TYPE_IDS} is out of range"),
        (MASKED_LM_POSITIONS, 16, f"file.tfrecord: a value of {MASKED_LM_POSITIONS} is out of range"),
        (NEXT_SENTENCE_LABEL, 2**32, f"file.tfrecord: a value of {NEXT_SENTENCE_LABEL} is out of range"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path, name, value, message):
    write_google(tmp_path / "file.tfrecord", highest=4)

    def change(example):
        example.features.feature[TFRECORD_NAMES[name]].int64_list.value[0] = value
        return example.SerializeToString()

    damage(tmp_path / "file.tfrecord", change)
    settings = {"seq_length": 16, "batch_size": 4, "steps": 10}
    with pytest.raises(ValueError, match=message) as error:
        train(tmp_path / "run", records=[tmp_path / "file.tfrecord"], changes=settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"\xe6\x01\xff", b"no tf.Example"], ids=["bytes", "text"])
def test_a_record_that_is_no_example_is_refused(tmp_path, data):
    write_google(tmp_path / "file.tfrecord", highest=4)
    damage(tmp_path / "file.tfrecord", lambda example: data, record=3)
    refused(
        tmp_path,
        "file.tfrecord: a record",
        records=[tmp_path / "file.tfrecord"],
        changes={"seq_length": 16, "batch_size": 4},
    )


def test_numbers_of_a_whole_record_are_unchanged(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=2**31 - 1)
    first = next(read_records(tmp_path / "file.tfrecord").as_numpy_iterator())
    assert first[INPUT_WORD_IDS].dtype == np.int32 and first[INPUT_WORD_IDS].max() == 2**31 - 1


@pytest.mark.parametrize("part", ["text", "name"])
def test_a_parquet_file_whose_text_is_not_utf8_is_refused(tmp_path, part):
    path = tmp_path / "train.parquet"
    texts = ["a good film", "dull"] * 4
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts, "label": ["x", "y"] * 4}),
        path,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
    )
    data = path.read_bytes()
    right, wrong = {"text": (b"dull", b"d\xffll"), "name": (b"text", b"t\xffxt")}[part]
    assert right in data
    path.write_bytes(data.replace(right, wrong))
    with pytest.raises(BertKerasError, match="train.parquet (cannot be read|is not a Parquet file)") as error:
        list(
            TextClassification.open("custom", path, text_column=["text"], label_column="label").examples(
                "train"
            )
        )
    assert "\n" not in str(error.value)


def test_a_key_with_line_breaks_is_quoted_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"a\nb\x1b[2J": 1}))
    with pytest.raises(BertKerasError, match=r"its keys are a\\nb\\x1b\[2J") as error:
        BertConfig.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("token", [["<s>"], None, {"a": 1}])
def test_a_special_token_of_another_type_in_a_tokenizer_json_is_refused(tmp_path, token):
    write_roberta(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["cls"] = [token, 0]
    path.write_text(json.dumps(content))
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).unlink()
    with pytest.raises(BertKerasError, match="tokenizer.json: cls is .*; wanted a token and its id"):
        checkpoints.load_tokenizer(tmp_path)


@saves_with_keras
@pytest.mark.long
def test_hdf5_weights_with_a_damaged_list_of_links_are_refused(tmp_path):
    config = dataclasses.replace(TINY, type_vocab_size=2, attention_dropout=TINY.hidden_dropout)
    checkpoints.write(random_checkpoint(config, heads=()), tmp_path, format="keras-hub")
    path = tmp_path / "model.weights.h5"
    damaged = re.sub(b"(?s)(HEAP.{12}).{8}", lambda found: found[1] + b"\xfe" * 8, path.read_bytes())
    path.write_bytes(damaged)  # the first free place of every local heap
    with pytest.raises(BertKerasError, match="model.weights.h5 does not hold") as error:
        checkpoints.read(tmp_path)
    assert "\n" not in str(error.value)
