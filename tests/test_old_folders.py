"""Folders that commit 03d496f wrote still load; tests/fixtures/old_folders.py wrote them there."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.features import INPUT_MASK, INPUT_WORD_IDS, NEXT_SENTENCE_LABEL
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.task import model_inputs

OLD = Path(__file__).parent / "fixtures" / "old"


def test_an_old_run_answers_as_before():
    run = load_run(OLD / "run")
    expected = json.loads((OLD / "expected.json").read_text())
    features = run.preprocess(tf.constant(expected["texts"]))
    answers = run.task.decode(run.model(model_inputs(features)), features, {})
    wanted = expected["predictions"]
    assert [label.decode() for label in answers["label"].numpy()] == [row["label"] for row in wanted]
    np.testing.assert_allclose(answers["probabilities"], [row["probabilities"] for row in wanted], atol=1e-6)


def test_an_old_converted_checkpoint_has_the_weights_of_its_run():
    run, google = checkpoints.read(OLD / "run"), checkpoints.read(OLD / "google")
    assert google.vocabulary.tokens == run.vocabulary.tokens and google.tensors.keys() == run.tensors.keys()
    for name, tensor in google.tensors.items():
        np.testing.assert_array_equal(tensor, run.tensors[name], err_msg=name)


def test_old_instances_are_read():
    manifest = json.loads((OLD / "instances" / "manifest.json").read_text())
    (shard,) = manifest["shards"]
    tokenizer = checkpoints.load_tokenizer(OLD / "run")
    instances = [*read_records(OLD / "instances", tokenizer=tokenizer).as_numpy_iterator()]
    assert len(instances) == shard["instances"] == 7
    assert sum(int(one[INPUT_MASK].sum()) for one in instances) == shard["positions"]
    assert sum(int(one[NEXT_SENTENCE_LABEL]) for one in instances) == shard["ones"]
    assert {int(one[INPUT_WORD_IDS][0]) for one in instances} == {tokenizer.special.start}
