"""pretrain(): every recipe learns, and fine-tuning starts from it; phases; files; what is named before it trains."""

import contextlib
import dataclasses
import functools
import json
import math
import random
import shutil
import types

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import (
    INPUT_MASK,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
)
from bert_keras.objectives import MaskedLM
from bert_keras.optimizers import AdamW
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece
from tasks.glue.data_sets import ROWS
from tasks.glue.task import Glue
from tasks.pretraining.corpus import Corpus
from tasks.pretraining.optimizer import longest_step, schedule
from tasks.pretraining.pretrain import _held_out, plan_pretraining, pretrain
from tasks.pretraining.read_records import read_records
from tasks.pretraining.recipe_objectives import OBJECTIVES
from tasks.pretraining.recipes import RECIPES, SETTINGS
from tasks.pretraining.sources import Share
from tasks.pretraining.write_records import write_records
from tasks.settings import Hparams, PretrainHparams, Sampling
from tasks.training.finetune import finetune
from tasks.training.saver import Saver

SMALL = {
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 64,
    "max_positions": 50,
    "batch_size": 8,
    "steps": 40,
    "seq_length": 32,
    "learning_rate": 3e-3,
    "warmup_proportion": 0.1,
    "log_every": 10,
    "eval_every": 20,
    "held_out_instances": 40,
}


def documents(count=60, *, lines=(3, 12), seed=0):
    draw = random.Random(seed)
    return [runs.texts(draw.randint(*lines), seed=1000 * seed + i) for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(runs.VOCABULARY)


def given(name="bert", *, tokenizer=None, changes=None, **options):
    """The arguments of `plan_pretraining`."""
    changes = SMALL | (changes or {})
    if "phases" in changes:
        del changes["seq_length"]
    return {
        "documents": None if "records" in options else documents(),
        "recipe": RECIPES[name].changed(**changes),
        "tokenizer": tokenizer or WordPiece(runs.VOCABULARY),
        **options,
    }


def train(output, name="bert", *, verbose=0, **options):
    return pretrain(output=output, log=lambda line: None, verbose=verbose, **given(name, **options))


def planned_lines(name="bert", **options):
    """The lines for a person before the first step."""
    return plan_pretraining(**given(name, **options)).lines


# -----------------------------------------------------------------------------------------------------------
# Recipes

HEADS = {
    "bert": {"masked_lm", "next_sentence"},
    "bert-no-nsp": {"masked_lm"},
    "ltr-no-nsp": {"masked_lm"},
    "roberta": {"masked_lm"},
    "albert": {"masked_lm", "next_sentence"},
    "electra": {"replaced_token"},
}
# The class of transformers that could read the output.
MODEL_TYPES = {"ltr-no-nsp": "bert_keras", "roberta": "roberta", "albert": "albert", "electra": "electra"}


# All of them at length, and two shortly.
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "steps"),
    [(name, 40) for name in ("bert", "albert")]
    + [pytest.param(name, 200, marks=pytest.mark.slow) for name in RECIPES],
)
def test_recipe_learns_and_is_fine_tuned(name, steps, tmp_path):
    run = tmp_path / "run"
    # ALBERT's two blocks share their weights.
    changes = {"steps": steps} | ({"num_layers": 2, "learning_rate": 3e-2} if name == "albert" else {})
    results = train(run, name, held_out=0.2, changes=changes)
    losses = [row["masked_lm_loss"] for row in results["history"] if "masked_lm_loss" in row]
    assert len(losses) == steps / 10 and losses[-1] < losses[0] - 0.5
    found = [row["replaced_token_loss"] for row in results["history"] if "replaced_token_loss" in row]
    assert found[-1:] < found[:1] if name == "electra" else not found
    measures = results["measures"]
    asked = [one for one in ("masked_lm", "next_sentence", "replaced_token") if f"{one}_loss" in measures]
    for one in asked:
        assert {f"{one}_accuracy", f"held_out_{one}_loss", f"held_out_{one}_accuracy"} <= {*measures}
    perplexity = math.exp(measures["held_out_masked_lm_loss"])
    assert measures["held_out_masked_lm_perplexity"] == pytest.approx(perplexity, rel=1e-4)
    baselines = {f"{one}_accuracy" for one in asked if one != "replaced_token"}
    assert {*results["majority_baselines"]} == baselines
    assert json.loads((run / "results.json").read_text()) == results
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG") and list((run / "logs").iterdir())

    checkpoint = checkpoints.read(run)
    parts = {part.split("/")[0] for part in checkpoint.tensors}
    assert parts & {*checkpoints.HEADS} == HEADS[name]
    assert ("pooler" in parts) == ("next_sentence" in HEADS[name])  # else nothing trained it
    assert json.loads((run / "config.json").read_text())["model_type"] == MODEL_TYPES.get(name, "bert")
    wanted = RECIPES[name].changed(**SMALL | changes).config(vocab_size=len(runs.VOCABULARY))
    # An ALBERT's file always names the dropout of a classifier.
    pairs = {"bert": ("is_next", "not_next"), "albert": ("in_order", "swapped")}
    assert checkpoint.labels == pairs.get(name)
    named = dataclasses.replace(wanted, classifier_dropout=checkpoint.config.classifier_dropout)
    assert checkpoint.config == named and checkpoint.config.head_dropout == wanted.head_dropout
    fills = name in ("bert", "bert-no-nsp", "roberta", "albert")
    assert (run / "task.json").exists() == fills
    assert (run / "generator" / "task.json").exists() == (name == "electra")
    data = runs.write_data(tmp_path / "data", "sst2", count=16)
    tuned = finetune(
        Glue(ROWS["sst2"], data),
        checkpoint=run,
        output=tmp_path / "tuned",
        hparams=Hparams(epochs=1, batch_size=8, seq_length=32, learning_rate=1e-4),
        verbose=0,
        log=lambda line: None,
    )
    assert math.isfinite(tuned["history"][0]["loss"])


def test_recipes_are_the_papers():
    figures = {
        name: (one.hparams.batch_size, one.hparams.steps, one.hparams.learning_rate, one.hparams.optimizer)
        for name, one in RECIPES.items()
    }
    assert figures == {
        "bert": (256, 1_000_000, 1e-4, "adamw"),
        "bert-no-nsp": (256, 1_000_000, 1e-4, "adamw"),
        "ltr-no-nsp": (256, 1_000_000, 1e-4, "adamw"),
        "roberta": (8192, 500_000, 6e-4, "adamw"),
        "albert": (4096, 125_000, 1.76e-3, "lamb"),
        "electra": (128, 1_000_000, 5e-4, "adamw"),
    }
    warmups = {name: one.hparams.warmup_proportion * one.hparams.steps for name, one in RECIPES.items()}
    assert {name: round(steps) for name, steps in warmups.items()} == {
        **dict.fromkeys(("bert", "bert-no-nsp", "ltr-no-nsp", "electra"), 10_000),
        "roberta": 24_000,
        "albert": 3_125,
    }
    bert = RECIPES["bert"]
    asked = [bert.masking(length).max_predictions for length, _ in bert.hparams.phases]
    assert bert.hparams.phases == ((128, 0.9), (512, 0.1)) and asked == [20, 77]
    assert bert.config(vocab_size=30522) == BertConfig.named("base")
    electra = RECIPES["electra"].config(vocab_size=30522)
    assert (electra.num_layers, electra.hidden_size, electra.num_heads, electra.embedding_size) == (
        12,
        256,
        4,
        128,
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lr": 1}, "there is no setting lr; the settings are activation, attention_dropout, "),
        ({"steps": 0}, "steps is 0; steps must be at least 1"),
        ({"steps": "many"}, "steps is 'many'; give int"),
        ({"causal": 1}, "causal is 1; give bool"),
        ({"clip_norm": "no"}, "clip_norm is 'no'; give float or nothing"),
        ({"phases": [[128, 0.5]]}, "phases is .*; phases must be pairs of a length and a fraction"),
        ({"phases": 128}, r"phases is 128; give \[\[length, fraction\], ...\]"),
        ({"phases": [[128, 1]], "seq_length": 64}, "give seq_length or phases, not both"),
        ({"optimizer": "sgd"}, "optimizer must be one of adamw, lamb"),
        ({"hide": 0.5}, "hide, keep and replace are"),
        ({"sampler": "any"}, "sampler must be one of"),
    ],
)
def test_invalid_settings(changes, match):
    with pytest.raises(ValueError, match=match):
        RECIPES["bert"].changed(**changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnObjective(MaskedLM):
    """An objective with a check, a baseline and a setting of the training."""

    log_every: int

    def check(self, sample):
        yield f"{len(sample[INPUT_WORD_IDS])} instances, logged every {self.log_every} steps"

    def baseline(self, labels, weights):
        return float((weights > 0).all())


@pytest.mark.long
def test_a_new_objective_is_a_class_and_its_rows(tmp_path, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "own", OwnObjective)
    monkeypatch.setitem(RECIPES, "own", dataclasses.replace(RECIPES["bert-no-nsp"], objectives=("own",)))
    results = train(tmp_path / "run", "own", held_out=0.2, changes={"steps": 1})
    lines = planned_lines("own")
    assert any("instances, logged every 10 steps" in line for line in lines)
    assert results["majority_baselines"] == {"masked_lm_accuracy": 0.0}


def test_settings_are_one_namespace():
    recipe = RECIPES["bert"].changed(size="tiny", num_layers=3, hide=1, keep=0, replace=0, strict=True)
    recipe = recipe.changed(seq_length=64, max_predictions=7, steps=5)
    assert recipe.config(vocab_size=9).num_layers == 3 and recipe.config(vocab_size=9).hidden_size == 128
    assert recipe.masking(64) == Masking(hide=1.0, keep=0.0, replace=0.0, max_predictions=7)
    assert recipe.sampling(64) == Sampling(seq_length=64, strict=True, dupe_factor=1)
    assert recipe.hparams.phases == ((64, 1.0),) and recipe.hparams.steps == 5
    assert {"size", "seq_length", "phases", "share", "sampler", "vocab_size"} <= {*SETTINGS}


# -----------------------------------------------------------------------------------------------------------
# Phases, checkpoints, strategies


@pytest.mark.long
def test_two_phases_are_one_training(tmp_path, tokenizer):
    changes = {"phases": ((24, 0.75), (48, 0.25)), "log_every": 1, "steps": 20}
    train(tmp_path / "run", changes=changes, snapshots=[15])
    history = json.loads((tmp_path / "run" / "results.json").read_text())["history"]
    rates = [row["learning_rate"] for row in history]
    assert [row["step"] for row in history] == list(range(1, 21))
    np.testing.assert_allclose(rates[2:], [3e-3 * (1 - step / 20) for step in range(2, 20)], rtol=1e-5)
    first, last = (
        checkpoints.read(folder).tensors["embeddings/position_embeddings"]
        for folder in (tmp_path / "run" / "snapshots" / "15", tmp_path / "run")
    )
    # A position that has no gradient only decays, in both phases; the second teaches those from 24 on.
    start = first[48:] / last[48:]
    np.testing.assert_allclose(start, np.full_like(start, start[0, 0]), rtol=1e-4)
    assert np.abs(last[24:48] - first[24:48] / start[0, 0]).max() > 1e-4


@pytest.mark.long
def test_the_optimizer_continues_in_the_second_phase(tmp_path, monkeypatch):
    monkeypatch.setattr(Saver, "remove", lambda saver: None)
    changes = {"phases": ((24, 0.5), (32, 0.5)), "steps": 8, "num_layers": 1}
    train(tmp_path / "run", changes=changes, save_every=4)
    moments = []
    for step in (4, 8):
        reader = tf.train.load_checkpoint(str(tmp_path / "run" / "checkpoints" / f"ckpt-{step}"))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith("variables/")]
        moments.append({name: reader.get_tensor(name) for name in names})
    before, after = moments
    steps = [name for name, value in before.items() if value.dtype.kind == "i" and value.shape == ()]
    assert any((before[name], after[name]) == (4, 8) for name in steps), "iterations go on"


@pytest.mark.long
def test_patience_ends_the_last_phase(tmp_path):
    """At a rate of nearly 0, no evaluation is better than the first of a phase."""
    still = {
        "learning_rate": 1e-30,
        "weight_decay": 0.0,
        "num_layers": 1,
        "log_every": 1,
        "eval_every": 2,
        "patience": 2,
    }
    phases = {"phases": ((24, 0.5), (32, 0.5)), "steps": 24}
    lines = []
    options = given("bert", held_out=0.3, changes=still | phases)
    results = pretrain(output=tmp_path / "run", log=lines.append, verbose=0, **options)
    assert results["stopped_early"] == {"step": 18} and results["steps"] == 18
    evaluated = [row["step"] for row in results["history"] if "held_out_loss" in row]
    assert evaluated == [2, 4, 6, 8, 10, 12, 14, 16, 18], "the first phase has all its steps"
    assert "stopped early: 2 evaluations without a lower loss" in lines


@pytest.mark.long
def test_starts_from_a_checkpoint(tmp_path, tokenizer):
    train(tmp_path / "first", changes={"steps": 40})
    lines = []
    source = checkpoints.read(tmp_path / "first")
    changes = {name: SMALL[name] for name in ("batch_size", "seq_length", "log_every", "learning_rate")}
    results = pretrain(
        recipe=RECIPES["bert"].changed(**changes, steps=10, hidden_dropout=0.0),
        documents=documents(seed=1),
        checkpoint=tmp_path / "first",
        output=tmp_path / "second",
        verbose=0,
        log=lines.append,
    )
    assert "unused: none" in "\n".join(lines) and "randomly initialized: none" in "\n".join(lines)
    assert results["history"][0]["masked_lm_loss"] < 3.3, "from scratch it starts at 5.9"
    config = checkpoints.read(tmp_path / "second").config
    assert config == dataclasses.replace(source.config, hidden_dropout=0.0)


@pytest.mark.long
def test_an_electra_starts_with_its_generator(tmp_path):
    train(tmp_path / "first", "electra", changes={"steps": 20})
    lines = []
    still = {"steps": 1, "learning_rate": 1e-12}
    again = {
        "recipe": RECIPES["electra"].changed(batch_size=8, seq_length=32, **still),
        "documents": documents(),
    }
    pretrain(
        **again,
        checkpoint=tmp_path / "first",
        output=tmp_path / "second",
        verbose=0,
        log=lines.append,
    )
    for part in ("", "generator"):
        first, second = (checkpoints.read(tmp_path / name / part).tensors for name in ("first", "second"))
        assert all(np.allclose(first[name], second[name], atol=1e-6) for name in first)
    shutil.rmtree(tmp_path / "second" / "generator")
    lines += plan_pretraining(**again, checkpoint=tmp_path / "second").lines
    assert [line for line in lines if "generator" in line] == [
        "the generator is randomly initialized: the checkpoint has no generator/"
    ]


def test_settings_that_contradict_a_checkpoint(tmp_path):
    runs.write_checkpoint(tmp_path / "checkpoint")
    options = {"checkpoint": tmp_path / "checkpoint"}
    other = WordPiece([*runs.VOCABULARY[:-1], "other"])
    refused(tmp_path, "the checkpoint was trained with another vocabulary", tokenizer=other, **options)
    cased = WordPiece(runs.VOCABULARY, lower_case=False)
    refused(
        tmp_path,
        "the checkpoint's tokenizer has lower_case=True, the given one False",
        tokenizer=cased,
        **options,
    )
    refused(tmp_path, "size and a checkpoint were given", changes={"size": "tiny"}, **options)


def test_left_to_right_refuses_a_bidirectional_encoder(tmp_path):
    runs.write_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"build it with BertConfig\(causal=True\)"):
        pretrain(
            recipe=RECIPES["ltr-no-nsp"].changed(batch_size=8, seq_length=32, steps=2),
            documents=documents(),
            checkpoint=tmp_path / "checkpoint",
            output=tmp_path / "run",
            log=lambda line: None,
        )


@pytest.mark.long
def test_seed_decides_every_weight(tmp_path):
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, changes={"steps": 3, "seed": seed})
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.long
def test_evaluation_does_not_change_the_training(tmp_path):
    histories = []
    for name, every in (("often", 2), ("never", 1000)):
        changes = {"steps": 8, "log_every": 2, "eval_every": every, "generator_share": 0.5}
        results = train(tmp_path / name, "electra", held_out=0.2, changes=changes)
        histories.append([row["loss"] for row in results["history"] if "loss" in row])
    np.testing.assert_allclose(*histories, rtol=1e-5)


# -----------------------------------------------------------------------------------------------------------
# Data


def write(folder, *, settings=None, masking=None, texts=None, vocabulary=runs.VOCABULARY):
    write_records(
        texts or documents(),
        folder,
        make_tokenizer=functools.partial(WordPiece, vocabulary),
        settings=Sampling(**{"seq_length": 32, "dupe_factor": 2} | (settings or {})),
        masking=masking,
        shard_bytes=2_000,
        shard_documents=5,
    )
    return folder


@pytest.mark.long
def test_records_are_read_in_random_order_and_from_any_place(tmp_path):
    folder = write(tmp_path / "records")

    in_order = [row[INPUT_WORD_IDS].numpy().tolist() for row in read_records(folder)]
    count = len(in_order)
    rows = functools.partial(_taken, folder, count + 7)
    first = rows(seed=1)
    assert first == rows(seed=1) != rows(seed=2)
    assert sorted(first[:count]) == sorted(in_order) and first[:count] != in_order
    assert first[count:] != first[:7], "another order in the second epoch"
    for skip in (1, 40, count - 1, count, count + 3):
        assert _taken(folder, 4, seed=1, skip=skip) == _taken(folder, skip + 4, seed=1)[skip:]


def _taken(folder, count, **options):
    return [row[INPUT_WORD_IDS].numpy().tolist() for row in read_records(folder, **options).take(count)]


@pytest.mark.parametrize("masking", [None, Masking(max_predictions=5)])
def test_trains_on_records(masking, tmp_path):
    folder = write(tmp_path / "records", masking=masking, settings={"strict": True})
    held_out = write(tmp_path / "held-out", masking=masking, texts=documents(20, seed=5))
    results = train(tmp_path / "run", records=folder, held_out=held_out)
    losses = [row["masked_lm_loss"] for row in results["history"] if "masked_lm_loss" in row]
    assert losses[-1] < losses[0] - 0.5 and "held_out_next_sentence_accuracy" in results["measures"]


@pytest.mark.long
def test_a_set_of_records_for_each_phase(tmp_path):
    """The second set alone has positions from 24 to 39: only the second phase trains them."""
    sets = [write(tmp_path / str(n), settings={"seq_length": n}) for n in (24, 40)]
    changes = {"phases": ((8, 0.5), (8, 0.5)), "steps": 6, "log_every": 1}
    train(tmp_path / "run", records=sets, changes=changes, snapshots=[3])
    before, after = (
        checkpoints.read(folder).tensors["embeddings/position_embeddings"]
        for folder in (tmp_path / "run" / "snapshots" / "3", tmp_path / "run")
    )
    decay = np.median(after[40:] / before[40:])
    moved = np.abs(after - before * decay).max(axis=1)
    assert (moved[:40] > 1e-4).all() and (moved[40:] < 1e-6).all()
    with pytest.raises(ValueError, match="3 sets of records were given for 2 phases; give one set"):
        train(tmp_path / "other", records=[*sets, sets[0]], changes={"phases": ((8, 0.5), (8, 0.5))})


@pytest.mark.long
@pytest.mark.parametrize(("length", "steps"), [(24, {2, 3}), (40, {4, 6})])
def test_held_out_records_are_evaluated_on_at_their_length(length, steps, tmp_path):
    sets = [write(tmp_path / str(n), settings={"seq_length": n}) for n in (24, 40)]
    held_out = write(tmp_path / "held-out", settings={"seq_length": length}, texts=documents(20, seed=5))
    changes = {"phases": ((8, 0.5), (8, 0.5)), "steps": 6, "eval_every": 2}
    results = train(tmp_path / "run", records=sets, held_out=held_out, changes=changes)
    # A phase ends with an evaluation.
    assert {row["step"] for row in results["history"] if "held_out_masked_lm_loss" in row} == steps
    assert 0 < results["majority_baselines"]["next_sentence_accuracy"] < 1


def test_the_held_out_fraction_follows_each_document_s_hash(tmp_path):
    found = documents(400)
    inside, outside = (list(Share(found, 0.25, inside)) for inside in (True, False))
    assert 60 < len(inside) < 140 and len(inside) + len(outside) == 400
    assert not {map(tuple, inside)} & {map(tuple, outside)}
    assert sorted(inside) == sorted(Share(found[::-1], 0.25, True))
    assert all(document in inside for document in Share(found[:50], 0.1, True)), (
        "a smaller share is part of it"
    )


# -----------------------------------------------------------------------------------------------------------
# Errors are raised before anything is written


def refused(tmp_path, match, name="bert", **options):
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        train(tmp_path / "run", name, **options)
    assert not (tmp_path / "run").exists()


def test_one_document(tmp_path):
    text = tmp_path / "one.txt"
    text.write_text("\n".join(runs.texts(200, seed=0)))
    refused(tmp_path, "next_sentence needs 2 documents with text and there is 1", documents=Corpus(text))


def test_a_corpus_shorter_than_a_batch(tmp_path):
    few = documents(4, lines=(2, 3))
    refused(
        tmp_path,
        "there are .* instances, fewer than a batch of 64",
        documents=few,
        changes={"batch_size": 64},
    )


def test_a_batch_that_replicas_do_not_divide(tmp_path, monkeypatch):
    three = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr("tasks.pretraining.pretrain.strategy", lambda name: three)
    match = "batch_size is 8 and there are 3 replicas; give a multiple of 3"
    refused(tmp_path, match, documents=iter(()))


def test_held_out_batches_are_padded(tokenizer):
    """For three replicas: 40 instances in batches of 32, whose labels and weights are those of one device."""
    rows = tf.data.Dataset.from_tensors(
        {
            INPUT_WORD_IDS: tf.range(40, dtype="int32"),
            INPUT_MASK: tf.ones(40, "int32"),
            MASKED_LM_POSITIONS: tf.range(2),
            MASKED_LM_IDS: tf.constant([7, 8]),
            MASKED_LM_WEIGHTS: tf.ones(2),
        }
    ).repeat(40)
    source = types.SimpleNamespace(
        held_out=lambda phase: rows, reading=lambda phase, vocab_size: contextlib.nullcontext()
    )
    made = _held_out(
        source,
        0,
        [MaskedLM(pieces=Pieces.of(tokenizer))],
        vocab_size=tokenizer.vocab_size,
        hparams=PretrainHparams(),
        multiple_of=3,
    )
    weights = [weights["masked_lm"].numpy() for _, _, weights in made]
    assert [len(batch) for batch in weights] == [33, 9]
    assert [batch.sum() for batch in weights] == [2 * 32, 2 * 8]
    assert all(len(batch[INPUT_WORD_IDS]) % 3 == 0 for batch, _, _ in made)


def test_documents_of_one_line(tmp_path):
    lone = documents(200, lines=(1, 1))
    refused(tmp_path, "all of 200 sentence-pair labels are 1", documents=lone)
    refused(tmp_path, "there are 0 instances, fewer than a batch", "albert", documents=lone)


def test_documents_whose_lines_are_instances_each(tmp_path):
    long = [[line * 5 for line in document] for document in documents()]
    shorter = "are 1, .* documents of several lines.* and lines shorter than seq_length, 8"
    refused(tmp_path, shorter, documents=long, changes={"seq_length": 8})


def test_a_label_rate_far_from_one_half():
    lines = planned_lines(documents=documents(200, lines=(1, 3)))
    assert any("% of" in line and "sentence-pair labels are 1" in line and "50 %" in line for line in lines)


@pytest.mark.parametrize("correction", [False, True])
def test_a_warm_up_that_is_short_for_uncorrected_moments(correction):
    lines = planned_lines(changes={"steps": 2, "bias_correction": correction})
    assert correction is not any("a warm-up of 0 steps" in line and "3.2x" in line for line in lines)


def test_the_longest_step_is_the_optimizer_s():
    hparams = PretrainHparams(steps=300, warmup_proportion=0.2, learning_rate=1e-3)
    weight = keras.Variable(0.0, name="kernel")
    optimizer = AdamW(schedule(hparams), weight_decay=0.0, clip_norm=None)
    places = [0.0]
    for _ in range(hparams.steps):
        optimizer.apply([tf.constant(1.0)], [weight])
        places.append(float(weight.numpy()))
    longest = np.max(np.abs(np.diff(places))) / hparams.learning_rate
    assert longest_step(hparams) == pytest.approx(longest, rel=1e-3) and longest > 3
    assert max(longest_step(one.hparams) for one in RECIPES.values()) < 1.001


def test_a_vocabulary_larger_than_the_encoder_s(tmp_path):
    match = f"the vocabulary has {len(runs.VOCABULARY)} tokens and the encoder 100 embedding rows"
    refused(tmp_path, match, changes={"vocab_size": 100})


def test_ids_over_vocab_size(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=len(runs.VOCABULARY))
    match = f"there is a token of id {len(runs.VOCABULARY)} and vocab_size is {len(runs.VOCABULARY)}"
    refused(tmp_path, match, records=[tmp_path / "file.tfrecord"], changes={"seq_length": 16})


def test_ids_over_vocab_size_late_in_the_files(tmp_path):
    write_google(tmp_path / "0.tfrecord", highest=4, count=1000)
    write_google(tmp_path / "1.tfrecord", highest=5000)
    records = [[tmp_path / "0.tfrecord", tmp_path / "1.tfrecord"]]
    with pytest.raises(ValueError, match="there is a token with a larger id and vocab_size is"):
        train(tmp_path / "run", records=records, changes={"steps": 200, "num_layers": 1})


@pytest.mark.long
@pytest.mark.parametrize("count", [20, 1100])
def test_a_record_of_another_length(count, tmp_path):
    """Met before training, or in it."""
    write_google(tmp_path / "0.tfrecord", highest=4, count=count)
    write_google(tmp_path / "1.tfrecord", highest=4, count=1, length=17)
    match = r"0.tfrecord and 1 more: a record's features differ in length"
    unreadable(tmp_path, match, [tmp_path / "0.tfrecord", tmp_path / "1.tfrecord"])


@pytest.mark.parametrize("count", [20, 1100])
def test_a_file_that_is_cut_short(count, tmp_path):
    file = tmp_path / "file.tfrecord"
    write_google(file, highest=4, count=count)
    file.write_bytes(file.read_bytes()[:-5])
    match = "file.tfrecord: a record is damaged or truncated"
    unreadable(tmp_path, match, [file])
    if count == 20:
        whole = tmp_path / "whole.tfrecord"
        write_google(whole, highest=4)
        unreadable(tmp_path, match, [whole], held_out=[file])


def unreadable(tmp_path, match, files, **options):
    with pytest.raises(ValueError, match=match):
        train(tmp_path / "run", records=[files], changes={"steps": 150, "num_layers": 1}, **options)


def test_held_out_ids_over_vocab_size(tmp_path):
    write_google(tmp_path / "0.tfrecord", highest=4)
    write_google(tmp_path / "1.tfrecord", highest=5000)
    match = "1.tfrecord: there is a token with a larger id and vocab_size is"
    refused(tmp_path, match, records=[tmp_path / "0.tfrecord"], held_out=[tmp_path / "1.tfrecord"])


def write_google(path, *, highest, labels=(0, 1), count=20, length=16):
    """A file in the names of google-research/bert."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(count):
            ids = np.full(length, 10)
            ids[3] = highest
            values = {
                INPUT_WORD_IDS: ids,
                INPUT_MASK: np.ones(length),
                "input_type_ids": np.zeros(length),
                MASKED_LM_POSITIONS: [3, 0],
                MASKED_LM_IDS: [11, 0],
                NEXT_SENTENCE_LABEL: [labels[i % len(labels)]],
            }
            record = {
                TFRECORD_NAMES[name]: tf.train.Feature(int64_list=tf.train.Int64List(value=np.int64(value)))
                for name, value in values.items()
            }
            weights = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 0.0]))
            record[TFRECORD_NAMES[MASKED_LM_WEIGHTS]] = weights
            features = tf.train.Features(feature=record)
            writer.write(tf.train.Example(features=features).SerializeToString())


def test_trains_on_google_s_files(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=4)
    results = train(tmp_path / "run", records=[tmp_path / "file.tfrecord"])
    assert results["measures"]["masked_lm_loss"] < 1, "all of them ask for token 11"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_files_in_a_folder_are_one_set(tmp_path, capfd):
    folder = tmp_path / "google"
    folder.mkdir()
    for i in range(3):
        write_google(folder / f"tf_examples.tfrecord-{i}", highest=4)
    results = train(tmp_path / "run", records=folder, changes={"steps": 10})
    assert results["steps"] == 10 and len(list(read_records(folder))) == 60
    files = sorted(folder.iterdir())
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(runs.VOCABULARY))
    command = ["pretrain", "--vocab", vocabulary, "--size", "tiny", "--records", *files[:2]]
    settings = ["--set", "steps=2", "batch_size=8", "phases=[[16, 0.5], [16, 0.5]]"]
    code, _, err = runs.run_command(capfd, *command, "--output", tmp_path / "two", *settings)
    assert code == 0, err
    both = json.loads((tmp_path / "two" / "checkpoints" / "settings.json").read_text())["records"]
    assert len(both) == 1, "two files are no two phases"
    code, _, err = runs.run_command(capfd, *command, folder, "--output", tmp_path / "mixed", *settings)
    assert code == 1 and "folders and files of records were given" in err


def test_labels_of_records(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=4, labels=(1,))
    refused(tmp_path, "all of 20 sentence-pair labels are 1", records=[tmp_path / "file.tfrecord"])


@pytest.mark.long
def test_masks_before_a_left_to_right_model(tmp_path):
    folder = write(tmp_path / "records", masking=Masking())
    refused(tmp_path, "these records have masks, and left to right reads", "ltr-no-nsp", records=folder)


def test_records_of_another_vocabulary(tmp_path):
    folder = write(tmp_path / "records")
    other = WordPiece([*runs.VOCABULARY[:-1], "other"])
    refused(tmp_path, "was made with another vocabulary", records=folder, tokenizer=other)


def test_records_longer_than_the_encoder(tmp_path):
    folder = write(tmp_path / "records", settings={"seq_length": 64})
    refused(tmp_path, "seq_length is 64 and the encoder has 50 positions", records=folder)


def test_held_out_that_cannot_be(tmp_path):
    folder = write(tmp_path / "records")
    refused(tmp_path, "held_out is a fraction, but records have no documents", records=folder, held_out=0.1)
    refused(tmp_path, "held_out is 1.5; give a fraction", held_out=1.5)
    refused(tmp_path, "held-out documents: next_sentence needs 2", documents=documents(20), held_out=0.001)
    other = write(tmp_path / "other", settings={"seq_length": 24})
    match = "the held-out records have 24 positions and the training records 32; give held-out records of 32"
    refused(tmp_path, match, records=folder, held_out=other)
    wide = write(tmp_path / "wide", settings={"seq_length": 40})
    phases = {"phases": ((8, 0.5), (8, 0.5))}
    refused(tmp_path, "records 32 or 40; give", records=[folder, wide], held_out=other, changes=phases)


def test_held_out_text_without_an_instance(tmp_path):
    lone = documents(20, lines=(1, 1), seed=5)
    refused(tmp_path, "held-out data gives no instance", held_out=lone, changes={"strict": True})


def test_files_of_a_folder_with_another_vocabulary(tmp_path):
    files = sorted(write(tmp_path / "records").glob("*.tfrecord*"))
    other = WordPiece([*runs.VOCABULARY[:-1], "other"])
    refused(tmp_path, "was made with another vocabulary", records=[files], tokenizer=other)


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("bert", {"short_seq_prob": 0.5}, r"short_seq_prob is 0.5, but .* is already written \(.* 0.1\)"),
        ("bert", {"share": 0.3}, r"share is 0.3, but .* is already written \(share 0.15\)"),
        ("albert", {}, "are from the sampler next_sentence, .* sentence_order"),
    ],
)
def test_settings_that_contradict_written_records(name, changes, match, tmp_path):
    folder = write(tmp_path / "records", masking=Masking(max_predictions=5))
    refused(tmp_path, match, name, records=folder, changes=changes)
    assert planned_lines(records=folder, changes={"share": 0.15, "short_seq_prob": 0.1})


def test_a_segmenter_s_mistake_is_the_error(tmp_path):
    refused(tmp_path, "no words", segment=lambda line: ["no words"])
    folder = write(tmp_path / "records")
    refused(tmp_path, "give segment where the records are written", records=folder, segment=str.split)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path):
    started = tmp_path / "checkpoint"
    runs.write_checkpoint(started)
    was = {file.name: file.read_bytes() for file in started.iterdir()}
    with pytest.raises(ValueError, match="checkpoint is neither empty nor a run: it holds config.json"):
        train(started, checkpoint=started)
    assert {file.name: file.read_bytes() for file in started.iterdir()} == was


@pytest.mark.parametrize("changes", [{"vocab_size": 100}, {"seq_length": 64}])
def test_cheap_checks_run_before_the_text_is_read(changes, tmp_path):
    class Unread:
        def __iter__(self):
            raise AssertionError("the text is read")

    refused(tmp_path, "and the encoder", documents=Unread(), changes=changes)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="full is neither empty nor a run: it holds notes.txt"):
        train(tmp_path / "full", documents=Unread())


def test_save_every_is_a_number_of_steps(tmp_path):
    refused(tmp_path, "save_every is -1; give a number of steps, or 0", save_every=-1)


def test_patience_without_held_out_data(tmp_path):
    refused(tmp_path, "patience is 2 and the last phase has no held-out data", changes={"patience": 2})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", [0, 41])
def test_snapshots_are_steps_of_the_training(step, tmp_path):
    match = f"snapshots has {step}; give steps from 1 to 40"
    refused(tmp_path, match, changes={"steps": 40}, snapshots=[20, step])


def test_data_in_two_ways_or_none(tmp_path):
    refused(tmp_path, "give either documents or records", documents=None)


def test_a_loss_that_is_no_number(tmp_path):
    with pytest.raises(ValueError, match="the loss is nan at step .*; give a lower learning_rate"):
        train(tmp_path / "run", changes={"learning_rate": 1e30, "clip_norm": None, "warmup_proportion": 0.0})


# -----------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_command(tmp_path, capfd):
    text, vocabulary = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("\n\n".join("\n".join(document) for document in documents()))
    vocabulary.write_text("\n".join(runs.VOCABULARY))
    command = [
        "pretrain",
        "--text",
        text,
        "--vocab",
        vocabulary,
        "--output",
        tmp_path / "run",
        "--size",
        "tiny",
    ]
    settings = [f"{name}={value}" for name, value in SMALL.items() if name not in ("steps", "seq_length")]
    settings += ["steps=6", "phases=[[24, 0.5], [32, 0.5]]"]
    code, out, err = runs.run_command(capfd, *command, "--held-out", "0.2", "--set", *settings)
    assert code == 0, err
    assert "held_out_masked_lm_accuracy" in out and "the run is in" in out
    assert "step 6, held out: loss " in out, "a line where there is no terminal for a progress bar"
    code, _, err = runs.run_command(capfd, *command, "--held-out", "0.2", "--set", *settings)
    assert code == 1 and "already holds a run" in err
    again = ["--set", "stepss=6", "--set", "batch_size=8"]
    code, _, err = runs.run_command(capfd, *command[:-2], *again)
    assert code == 1 and "there is no setting stepss; the settings are" in err
