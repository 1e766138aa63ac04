"""LoRA, gradual unfreezing and layer-wise rates."""

import dataclasses

import numpy as np
import pytest
import runs
from trainings import NO_DROPOUT, QUICK, Counting, assert_same_weights, place, start, weights_of  # noqa: F401

from bert_keras import checkpoints
from bert_keras.tasks.finetuning.finetune import _compiled_model
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.training.saver import Saver

LORA = dataclasses.replace(QUICK, lora_rank=2, max_examples=24, epochs=2)


@pytest.mark.long
def test_lora_trains_its_matrices_and_the_head_and_is_merged(place):
    start(TextClassification.open("sst2", place / "reviews"), place, output="lora", hparams=LORA)
    after, before = weights_of(place / "lora"), weights_of(place / "checkpoint")
    changed = {name for name, array in before.items() if not np.array_equal(array, after[name])}
    assert changed == {f"block_0/attention/{part}/kernel" for part in ("query", "value")}
    for name in changed:
        assert np.linalg.matrix_rank(after[name] - before[name], tol=1e-5) <= 2
    assert set(after) - set(before) == {"classifier/dense/kernel", "classifier/dense/bias"}


def without_pooler(source):
    tensors = {name: array for name, array in source.tensors.items() if not name.startswith("pooler/")}
    return dataclasses.replace(source, tensors=tensors)


@pytest.mark.parametrize(("setting", "parts"), [("freeze", set()), ("lora_rank", {"block_0"})])
def test_a_pooler_that_the_checkpoint_lacks_is_trained(setting, parts, place):
    task = TextClassification.open("sst2", place / "reviews")
    hparams = dataclasses.replace(QUICK, **{setting: "encoder" if setting == "freeze" else 2})
    source = checkpoints.read(place / "checkpoint")

    def trained(source):
        lines = []
        model = _compiled_model(task, source, hparams, total_steps=9, keep_head=False, log=lines.append)
        paths = {variable.path for variable in model.trainable_variables}
        return {part for part in ("pooler", "block_0", "classifier") if any(part in p for p in paths)}, lines

    found, lines = trained(without_pooler(source))
    assert found == {"classifier", "pooler"} | parts
    assert "the checkpoint has no pooler: it is trained too" in lines
    found, lines = trained(source)
    assert found == {"classifier"} | parts and not any("trained too" in line for line in lines)


@pytest.mark.long
def test_a_lora_run_is_resumed_to_the_same_bits(place, monkeypatch):
    """Its pooler is trained too, because the checkpoint lacks it."""
    given = {"hparams": LORA, "checkpoint": without_pooler(checkpoints.read(place / "checkpoint"))}
    task, steps, lines = TextClassification.open("sst2", place / "reviews"), [], []
    whole, killed = "lora_whole", "lora_killed"
    start(task, place, output=whole, **given)

    def stop(saver, batch, logs=None, *, after=Saver.on_train_batch_end):
        after(saver, batch, logs)
        steps.append(saver.step)
        if steps == [1, 2, 3, 4, 5]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Saver, "on_train_batch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        start(task, place, output=killed, save_every=2, **given)
    start(task, place, output=killed, save_every=2, log=lines.append, **given)
    assert steps[5:] == [5, 6] and any("at step 4 of 6" in line for line in lines)
    assert_same_weights(weights_of(place / killed), weights_of(place / whole))
    run = load_run(place / killed, data=place / "reviews")
    assert not any("lora" in one.path for one in run.model.weights)


def moved(folder, before):
    """The parts of an encoder that a run changed: embeddings, block_0, ..., pooler."""
    after = checkpoints.read(folder).tensors
    parts = {name.split("/")[0] for name, array in before.items() if not np.array_equal(array, after[name])}
    for part in parts:  # all of it, or nothing
        names = [name for name in before if name.startswith(f"{part}/")]
        assert all(not np.array_equal(before[name], after[name]) for name in names), part
    return parts


@pytest.mark.long
def test_gradual_unfreezing(place):
    """Epoch 1: heads, pooler, top block; 2: the next block; 3: the embeddings too. One trace."""
    runs.write_checkpoint(place / "two_blocks", num_layers=2, **NO_DROPOUT)
    before, stages = weights_of(place / "two_blocks"), []

    class Watching(Counting):
        def evaluate(self, predictions, raw):
            stages.append(
                moved(place / "gradual", before) if (place / "gradual/config.json").exists() else None
            )
            yield "accuracy", float(len(stages))  # each epoch is the best, and kept

    task = Watching.open("sst2", place / "reviews")
    hparams = dataclasses.replace(QUICK, epochs=3, unfreeze="gradual", max_examples=24)
    start(task, place, output="gradual", hparams=hparams, checkpoint=place / "two_blocks")
    stages = [*stages[1:], moved(place / "gradual", before)]
    assert stages == [
        {"pooler", "block_1"},
        {"pooler", "block_1", "block_0"},
        {"pooler", "block_1", "block_0", "embeddings"},
    ]
    assert task.losses == 1


def test_ulmfit_settings_reach_the_optimizer(place):
    changes = {
        "layer_decay": 0.5,
        "schedule": "slanted_triangular",
        "bias_correction": True,
        "clip_norm": None,
    }
    hparams = dataclasses.replace(QUICK, warmup_proportion=0.25, **changes)
    source = checkpoints.read(place / "checkpoint")
    how = {"total_steps": 40, "keep_head": False, "log": lambda line: None}
    model = _compiled_model(TextClassification.open("sst2"), source, hparams, **how)
    optimizer = model.optimizer
    assert (optimizer.layer_decay, optimizer.bias_correction, optimizer.gradual) == (0.5, True, False)
    assert optimizer.clip_norm is None
    factors = {
        v.path.split("/")[-1 if "emb" in v.path else 0]: optimizer.rate_factor(v)
        for v in model.trainable_variables
    }
    assert factors["classifier"] == 1.0 and factors["word_embeddings"] == 0.25
    schedule = optimizer._learning_rate
    assert [float(schedule(step)) for step in (0, 10, 40)] == pytest.approx([1e-3 / 32, 1e-3, 1e-3 / 32])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"layer_decay": 0.0}, "layer_decay is 0.0; .* must be a finite number over 0 and at most 1"),
        ({"layer_decay": 2.6}, "layer_decay is 2.6"),
        ({"schedule": "cosine"}, "schedule must be one of linear, linear_after_warmup, slanted_triangular"),
        ({"unfreeze": "all"}, "unfreeze is 'all'; unfreeze must be one of gradual"),
        ({"unfreeze": "gradual", "freeze": "encoder"}, "must be None if freeze is set"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"lora_rank": 4, "freeze": "encoder"}, "must be None if freeze is set"),
        ({"layer_decay": 0.5, "freeze": "encoder"}, "layer_decay must be .* if freeze is set"),
        ({"rematerialize": True, "freeze": "encoder"}, "rematerialize must be False if freeze is set"),
    ],
)
def test_invalid_ulmfit_settings(changes, match):
    with pytest.raises(ValueError, match=match):
        Hparams(**changes)
