"""Gradients that are accumulated over micro-batches make the updates of whole batches, on one device and on two replicas."""

from pathlib import Path

import jobs
import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.losses import GlobalMean, cross_entropy
from bert_keras.optimization.optimizers import LAMB, AdamW
from bert_keras.optimization.replicas import prepared
from bert_keras.optimization.training_model import TrainingModel
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.task import classifier_model

KINDS = ("classifier", "answers", "tagger", "pretraining", "lamb", "electra")
# A key's bias and the biases of start and end add the same to all scores: their gradients are rounding, which Adam scales up.
WITHOUT_GRADIENT = ("key/bias", "qa_outputs/dense/bias")


def made_by(
    strategy: str, output: Path, *kinds: str, replicas: int = 2, workers: int = 1
) -> dict[str, np.ndarray]:
    """The output of distributed_steps.py for kinds with their micro-batches."""
    arguments = {"strategy_name": strategy, "output": output, "jobs": kinds}
    made = jobs.call(
        "distributed_steps:train_all", arguments, replicas=replicas, workers=workers, seconds=3600
    )
    jobs.check(made)
    return dict(np.load(output))


def differences(found: dict, job: str, wanted: dict, kind: str) -> dict[str, float]:
    """By weight and by log, the greatest difference of a job from the whole batches of one device."""
    names = [name.removeprefix(f"{kind}:0 ") for name in wanted if name.startswith(f"{kind}:0 ")]
    compared = [one for one in names if not one.endswith((*WITHOUT_GRADIENT, "tokens", "perplexity"))]
    assert len(compared) > 20
    return {one: float(np.abs(found[f"{job} {one}"] - wanted[f"{kind}:0 {one}"]).max()) for one in compared}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_steps_are_those_of_whole_batches(kind, tmp_path):
    whole = made_by("one", tmp_path / "one.npz", f"{kind}:0", f"{kind}:5")
    two = made_by("mirrored", tmp_path / "two.npz", f"{kind}:0", f"{kind}:2")
    for found, job in ((whole, f"{kind}:5"), (two, f"{kind}:0"), (two, f"{kind}:2")):
        worst = differences(found, job, whole, kind)
        assert max(worst.values()) < 1e-5, (job, max(worst, key=worst.get), max(worst.values()))


def model() -> TrainingModel:
    config = BertConfig.named("tiny", vocab_size=60)
    made = classifier_model(BertEncoder(config, outputs=("pooled_output",)), 3)
    return TrainingModel(made._inputs_struct, made._outputs_struct)


@pytest.mark.parametrize("optimizer", [AdamW, LAMB])
def test_keras_accumulation_is_refused_with_the_flag_to_use(optimizer):
    with pytest.raises(BertKerasError, match="gradient_accumulation_steps.*micro-batch"):
        optimizer(gradient_accumulation_steps=2)


def test_keras_accumulation_of_another_optimizer_is_refused():
    with pytest.raises(BertKerasError, match="gradient_accumulation_steps.*micro-batch"):
        model().compile(keras.optimizers.Adam(gradient_accumulation_steps=2), GlobalMean(cross_entropy))
    inside = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(gradient_accumulation_steps=2))
    with pytest.raises(BertKerasError, match="gradient_accumulation_steps.*micro-batch"):
        model().compile(inside, GlobalMean(cross_entropy))


def test_a_loss_without_a_global_mean_is_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(BertKerasError, match="GlobalMean"):
        model().compile("adam", loss, micro_batch=2)


@pytest.mark.parametrize("micro_batch", [0, -1])
def test_a_micro_batch_without_rows_is_refused(micro_batch):
    with pytest.raises(BertKerasError, match="micro_batch"):
        model().compile("adam", GlobalMean(cross_entropy), micro_batch=micro_batch)
    with pytest.raises(BertKerasError, match="micro_batch"):
        Hparams(micro_batch=micro_batch)


def test_a_resume_checks_the_micro_batch():
    assert Hparams(micro_batch=2).fingerprint()["micro_batch"] == 2


def test_two_outputs_with_one_loss_object_are_refused():
    """Each output has a weight of its own."""
    x = keras.Input((3,))
    two = TrainingModel(x, [keras.layers.Dense(2)(x), keras.layers.Dense(2)(x)])
    loss = GlobalMean(cross_entropy)
    with pytest.raises(BertKerasError, match="one GlobalMean object"):
        two.compile("adam", [loss, loss], micro_batch=2)
    two.compile("adam", [loss, GlobalMean(cross_entropy)], micro_batch=2)
    assert two.jit_compile is False, "XLA needs batches of one size"


def test_a_chosen_policy_of_shards_stays():
    """A worker that has files of its own reads all of them."""
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.OFF
    for given, wanted in ((tf.data.Options(), policies.DATA), (options, policies.OFF)):
        made = prepared(tf.data.Dataset.range(4).with_options(given))
        assert made.options().experimental_distribute.auto_shard_policy == wanted
