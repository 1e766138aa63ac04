"""pretrain(): every recipe learns, and fine-tuning starts from it; phases; files; what is named before it trains."""

import dataclasses
import functools
import json
import math
import re
import shutil
import types

import numpy as np
import pytest
import runs
import tensorflow as tf
from pretrainings import SMALL, documents, given, planned_lines, refused, tokenizer, train  # noqa: F401

from bert_keras import checkpoints
from bert_keras.checkpoints.weights import refuse_lacking
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_WORD_IDS
from bert_keras.fields import Masking, flag_of
from bert_keras.optimization.objectives import MaskedLM
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams, PretrainHparams, Sampling
from bert_keras.tasks.pretraining import instance_sources, instance_stream, monitor
from bert_keras.tasks.pretraining.model import OBJECTIVES
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES, SETTINGS
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.saver import Saver
from bert_keras.tasks.training.task_model import leave_out_padding
from bert_keras.text.masking import Pieces
from bert_keras.text.wordpiece import WordPiece

# -----------------------------------------------------------------------------------------------------------
# Recipes

# name: its heads, and the model_type whose class of transformers could read the output
MADE = {
    "bert": ({"masked_lm", "next_sentence"}, "bert"),
    "bert-no-nsp": ({"masked_lm"}, "bert"),
    "ltr-no-nsp": ({"masked_lm"}, "bert_keras"),
    "roberta": ({"masked_lm"}, "roberta"),
    "albert": ({"masked_lm", "next_sentence"}, "albert"),
    "electra": ({"replaced_token"}, "electra"),
}
LABELS = {"bert": ("is_next", "not_next"), "albert": ("in_order", "swapped")}


# All of them at length, and one shortly.
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "steps"), [("bert", 40)] + [pytest.param(name, 200, marks=pytest.mark.slow) for name in MADE]
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
    baselines = {f"{one}_accuracy" for one in asked} | {"masked_lm_perplexity"}
    assert {*results["majority_baselines"]} == baselines
    assert json.loads((run / "results.json").read_text()) == results
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG") and list((run / "logs").iterdir())

    checkpoint, (heads, model_type) = checkpoints.read(run), MADE[name]
    parts = {part.split("/")[0] for part in checkpoint.tensors}
    assert parts & {*checkpoints.HEADS} == heads
    assert ("pooler" in parts) == ("next_sentence" in heads)  # else nothing trained it
    assert json.loads((run / "config.json").read_text())["model_type"] == model_type
    wanted = RECIPES[name].changed(**SMALL | changes).config(vocab_size=len(runs.VOCABULARY))
    assert checkpoint.labels == LABELS.get(name)
    # An ALBERT's file always names the dropout of a classifier.
    named = dataclasses.replace(wanted, classifier_dropout=checkpoint.config.classifier_dropout)
    assert checkpoint.config == named and checkpoint.config.head_dropout == wanted.head_dropout
    fills = name in ("bert", "bert-no-nsp", "roberta", "albert")
    assert (run / "task.json").exists() == fills
    assert (run / "generator" / "task.json").exists() == (name == "electra")
    if name == "electra":
        assert 0 < measures["held_out_replaced_token_label_rate"] < 0.5
        with pytest.raises(BertKerasError, match=f"its generator has one: give {run / 'generator'}"):
            refuse_lacking(["masked_lm/bias"], checkpoint, layers=1, named="")
    data = runs.write_data(tmp_path / "data", "sst2", count=16)
    tuned = finetune(
        TextClassification.open("sst2", data),
        checkpoint=run,
        output=tmp_path / "tuned",
        hparams=Hparams(epochs=1, batch_size=8, seq_length=32, learning_rate=1e-4),
        verbose=0,
        log=lambda line: None,
    )
    assert math.isfinite(tuned["history"][0]["loss"])


def test_recipes_are_the_papers():
    figures = {}
    for name, recipe in RECIPES.items():
        of = recipe.hparams
        warmup = round(of.warmup_proportion * of.steps)
        figures[name] = (of.batch_size, of.steps, warmup, of.learning_rate, of.optimizer)
    assert figures == {
        "bert": (256, 1_000_000, 10_000, 1e-4, "adamw"),
        "bert-no-nsp": (256, 1_000_000, 10_000, 1e-4, "adamw"),
        "ltr-no-nsp": (256, 1_000_000, 10_000, 1e-4, "adamw"),
        "roberta": (8192, 500_000, 24_000, 6e-4, "adamw"),
        "albert": (4096, 125_000, 3_125, 1.76e-3, "lamb"),
        "electra": (128, 1_000_000, 10_000, 5e-4, "adamw"),
        "word-vectors": (32, 100_000, 0, 5e-3, "adamw"),
        "ulmfit": (64, 1_000_000, 100_000, 4e-3, "adamw"),
        "gpt": (64, 2_441_000, 2_000, 2.5e-4, "adamw"),
        "elmo": (60, 1_000_000, 10_000, 1e-3, "adamw"),
        "transformer": (1024, 100_000, 4_000, 7e-4, "adamw"),
        "cove": (64, 20_000, 200, 1e-3, "adamw"),
    }
    bert = RECIPES["bert"]
    asked = [bert.masking(length).max_predictions for length, _ in bert.hparams.phases]
    assert bert.hparams.phases == ((128, 0.9), (512, 0.1)) and asked == [20, 77]
    assert bert.config(vocab_size=30522) == BertConfig.named("base")
    electra = RECIPES["electra"].config(vocab_size=30522)
    assert (electra.num_layers, electra.hidden_size) == (12, 256)
    assert (electra.num_heads, electra.embedding_size) == (4, 128)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"lr": 1}, "there is no setting lr; the settings are activation, attention_dropout, "),
        ({"steps": 0}, "steps is 0; steps must be a whole number of at least 1"),
        ({"steps": "many"}, "steps is 'many'; steps must be a whole number"),
        ({"causal": 1}, "causal is 1; causal must be true or false"),
        ({"clip_norm": "no"}, "clip_norm is 'no'; clip_norm must be a finite number over 0, or None"),
        ({"phases": [[128, 0.5]]}, "phases is .*; phases must be pairs of a length and a fraction"),
        ({"phases": 128}, "phases is 128; phases must be a list, each item a list of a whole number and a"),
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
    baselines = results["majority_baselines"]
    assert baselines["masked_lm_accuracy"] == 0.0 and 5 < baselines["masked_lm_perplexity"] < 60


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


def variables_of(save):
    reader = tf.train.load_checkpoint(str(save))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("variables/")]
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.long
def test_two_phases_are_one_training(tmp_path, monkeypatch):
    """One schedule and one optimizer, which goes on in the second phase."""
    monkeypatch.setattr(Saver, "remove", lambda saver: None)
    changes = {"phases": ((24, 0.75), (48, 0.25)), "log_every": 1, "steps": 20}
    train(tmp_path / "run", changes=changes, snapshots=[15], save_every=5)
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
    before, after = (variables_of(tmp_path / "run" / "checkpoints" / f"ckpt-{step}") for step in (15, 20))
    steps = [name for name, value in before.items() if value.dtype.kind == "i" and value.shape == ()]
    assert any((before[name], after[name]) == (15, 20) for name in steps), "iterations go on"


@pytest.mark.long
@pytest.mark.slow
def test_a_save_at_the_end_of_a_phase_continues_with_the_next(tmp_path, monkeypatch):
    """The corpus has several shards: the first phase ends in the middle of its text, which the second reads from the start."""
    small = functools.partial(instance_stream.stream, shard_bytes=2_000, shard_documents=5)
    monkeypatch.setattr(instance_sources, "stream", small)
    changes = {"phases": ((24, 0.5), (32, 0.5)), "steps": 60}
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(whole, changes=changes, save_every=30)
    shutil.copytree(whole, run)
    for file in (run / "results.json", *(run / "checkpoints").glob("ckpt-60.*")):
        file.unlink()
    train(run, changes=changes, save_every=30)
    ended, resumed = (checkpoints.read(folder).tensors for folder in (whole, run))
    assert all(np.array_equal(ended[name], resumed[name]) for name in ended)


@pytest.mark.long
@pytest.mark.slow
def test_patience_ends_the_last_phase(tmp_path):
    """At a rate of nearly 0, no evaluation is better than the first of a phase."""
    still = {"learning_rate": 1e-30, "weight_decay": 0.0, "log_every": 1, "eval_every": 2, "patience": 2}
    phases = {"phases": ((24, 0.5), (32, 0.5)), "steps": 24}
    lines = []
    options = given("bert", held_out=0.3, changes=still | phases)
    results = pretrain(Pretraining(**options), tmp_path / "run", log=lines.append, verbose=0)
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
    recipe = RECIPES["bert"].changed(**changes, steps=10, hidden_dropout=0.0)
    again = Pretraining(recipe=recipe, documents=documents(seed=1), checkpoint=tmp_path / "first")
    results = pretrain(again, tmp_path / "second", verbose=0, log=lines.append)
    assert "unused: none" in "\n".join(lines) and "randomly initialized: none" in "\n".join(lines)
    assert results["history"][0]["masked_lm_loss"] < 3.3, "from scratch it starts at 5.9"
    config = checkpoints.read(tmp_path / "second").config
    assert config == dataclasses.replace(source.config, hidden_dropout=0.0)


@pytest.mark.long
@pytest.mark.slow
def test_an_electra_starts_with_its_generator(finished, tmp_path):
    lines, run = [], finished("electra").run
    still = {"steps": 1, "learning_rate": 1e-12}
    recipe = RECIPES["electra"].changed(batch_size=8, seq_length=32, **still)
    again = functools.partial(Pretraining, recipe=recipe, documents=documents())
    pretrain(again(checkpoint=run), tmp_path / "second", verbose=0, log=lines.append)
    for part in ("", "generator"):
        first, second = (checkpoints.read(folder / part).tensors for folder in (run, tmp_path / "second"))
        assert all(np.allclose(first[name], second[name], atol=1e-6) for name in first)
    shutil.rmtree(tmp_path / "second" / "generator")
    lines += plan_pretraining(again(checkpoint=tmp_path / "second")).lines
    assert [line for line in lines if "generator" in line] == [
        "the generator is randomly initialized: the checkpoint has no generator/"
    ]


OTHER, CASED = (
    WordPiece([*runs.VOCABULARY[:5], "other", *runs.VOCABULARY[6:]]),
    WordPiece(runs.VOCABULARY, lower_case=False),
)
SHORT, OWN = WordPiece(runs.VOCABULARY[:-1]), WordPiece([*runs.VOCABULARY[:-2], "mine", "##own", "more"])


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        (
            "bert",
            {"tokenizer": OTHER},
            "trained with another vocabulary: its token 5 is 'good' and yours 'other'",
        ),
        (
            "bert",
            {"tokenizer": SHORT},
            r"trained with another vocabulary: it has 373 tokens and yours 372; only \[unusedN",
        ),
        (
            "bert",
            {"changes": {"max_positions": 40}},
            "max_positions is 40 and the checkpoint has 48 positions; rows can be",
        ),
        ("bert", {"tokenizer": CASED}, "tokenizer has lower_case=True, the given one False"),
        ("bert", {"changes": {"size": "tiny"}}, "size and a checkpoint were given"),
        ("ltr-no-nsp", {}, "set causal"),
    ],
)
def test_settings_that_contradict_a_checkpoint(name, options, match, tmp_path):
    checkpoint = runs.write_checkpoint(tmp_path / "checkpoint")
    refused(tmp_path, match, name, checkpoint=checkpoint, **options)


def test_words_and_positions_of_ones_own_start_as_stated(tmp_path):
    """[unusedN] rows that became words keep their weights; new rows are drawn by the seed, in the model of each plan."""
    checkpoint = runs.write_checkpoint(tmp_path / "checkpoint", masked_lm=True)
    old = checkpoints.read(checkpoint).tensors
    recipe = RECIPES["bert"].changed(batch_size=8, seq_length=32, steps=4, max_positions=64)
    given = Pretraining(recipe=recipe, documents=documents(), tokenizer=OWN, checkpoint=checkpoint)
    plans = [plan_pretraining(given) for _ in range(2)]
    found = [{v.path.split("/")[-1]: v.numpy() for v in plan.model.variables} for plan in plans]
    words, positions = (found[0][f"{name}_embeddings"] for name in ("word", "position"))
    size = len(runs.VOCABULARY)
    assert words.shape[0] == size + 1 and positions.shape[0] == 64
    assert np.array_equal(words[:size], old["embeddings/word_embeddings"])
    assert np.array_equal(positions[:48], old["embeddings/position_embeddings"])
    assert (
        np.abs(positions[48:]).max() <= 2 * 0.2 < 3 * positions[48:].std()
    )  # SIZES' range, cut at two deviations
    assert all(
        np.array_equal(found[0][f"{n}_embeddings"], found[1][f"{n}_embeddings"]) for n in ("word", "position")
    )
    assert plans[0].fingerprint == plans[1].fingerprint
    assert plans[0].lines[:2] == [
        "the vocabulary has 2 words in place of [unusedN] tokens, whose weights stay (mine, ##own), and 1 tokens more (more)",
        "new rows: 1 tokens and 16 positions, from a truncated normal distribution of standard deviation 0.2, as before a "
        "pre-training; masked-LM biases 0",
    ]


@pytest.mark.long
@pytest.mark.slow
def test_seed_decides_every_weight(tmp_path):
    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, changes={"steps": 3, "seed": seed})
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["bert", "electra", *(pytest.param(name, marks=pytest.mark.slow) for name in ("albert", "ltr-no-nsp"))],
)
def test_leaving_out_padding_changes_no_weight(name, tmp_path, monkeypatch):
    changes = {"steps": 5, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    found, encoders = [], []
    for folder, leave_out in (("padded", lambda one: None), ("unpadded", leave_out_padding)):
        seen = lambda one, leave_out=leave_out: encoders.append(one) or leave_out(one)  # noqa: E731
        monkeypatch.setattr("bert_keras.tasks.pretraining.model.leave_out_padding", seen)
        train(tmp_path / folder, name, changes=changes)
        found.append(checkpoints.read(tmp_path / folder).tensors)
    half = 2 if name == "electra" else 1
    assert [one.unpadded for one in encoders] == [False] * half + [True] * half
    for part, value in found[0].items():
        np.testing.assert_allclose(found[1][part], value, atol=1e-5, err_msg=part)


@pytest.mark.long
@pytest.mark.slow
def test_evaluations_and_curves_do_not_change_the_training(tmp_path, monkeypatch):
    """The curves are drawn while it trains, with the baselines once there are held-out measures."""
    drawn, draw, histories = [], monitor.draw_curves, []

    def kept(history, path, *, baselines):
        drawn.append((len(history), {*baselines}))
        draw(history, path, baselines=baselines)

    monkeypatch.setattr(monitor, "draw_curves", kept)
    monkeypatch.setattr(monitor, "DRAWN_EVERY", -1.0)
    for name, every in (("often", 2), ("never", 1000)):
        changes = {"steps": 8, "log_every": 2, "eval_every": every, "generator_share": 0.5}
        results = train(tmp_path / name, "electra", held_out=0.2, changes=changes)
        histories.append([row["loss"] for row in results["history"] if "loss" in row])
    np.testing.assert_allclose(*histories, rtol=1e-5)
    assert [count for count, _ in drawn[:5]] == [2, 4, 6, 8, 8]  # after each evaluation, and at the end
    judged = {"masked_lm_accuracy", "masked_lm_perplexity", "replaced_token_accuracy"}
    assert all(names == judged for _, names in drawn[:5])


def test_a_resumed_run_s_first_tokens_per_second(tmp_path, monkeypatch):
    """The metric has the tokens of both processes, so the time is that of both."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(monitor, "time", clock)
    inputs = types.SimpleNamespace(
        describe=lambda path: None,
        source=types.SimpleNamespace(phases=[instance_sources.Phase(8, 0, 40)], place=lambda read: None),
        hparams=PretrainHparams(steps=40),
    )
    killed, resumed = (
        monitor.PretrainingMonitor(tmp_path / name, inputs=inputs, log=print, workers=None) for name in "ab"
    )
    killed.begin(0, 0)
    clock.now = 30.0
    saved = json.loads(json.dumps(killed.memory()))
    clock.now = 1000.0
    resumed.recall(saved)
    resumed.begin(0, 7)
    clock.now = 1010.0
    resumed._log({"tokens": 400.0, "loss": 1.0})
    assert resumed.history[-1]["tokens_per_second"] == 400 / (30 + 10)


def test_a_worker_s_curves_are_its_own(tmp_path):
    (tmp_path / "curves.png").write_bytes(b"the chief's")
    rows = [{"step": 1, "masked_lm_loss": 2.0, "masked_lm_accuracy": None}]  # no label since the last log
    worker = types.SimpleNamespace(chief=False)
    with Workers.folder(worker, tmp_path) as own:
        assert (own / "curves.png").read_bytes() == b"the chief's"
        monitor.draw_curves(rows, own / "curves.png", baselines={"masked_lm_perplexity": 9.0})
        assert (own / "curves.png").read_bytes().startswith(b"\x89PNG")
        assert [file.name for file in own.iterdir()] == ["curves.png"]
    assert (tmp_path / "curves.png").read_bytes() == b"the chief's"


def test_baselines_are_those_of_answers_that_read_no_text():
    """Labels 5 and 6 have 3 + 1 and 0 + 1 of 6 + 10 tokens; weight 0 does not count."""
    labels = {"masked_lm": tf.constant([[5, 5, 6, 9]])}
    weights = {"masked_lm": tf.constant([[1.0, 1.0, 1.0, 0.0]])}
    masked = MaskedLM(pieces=Pieces.of(WordPiece(runs.VOCABULARY, lower_case=True)))
    unigrams = np.array([0, 0, 0, 0, 0, 3, 0, 3, 0, 0])
    found = monitor.majority_baselines([({}, labels, weights)], [masked], unigrams=unigrams)
    perplexity = (4 / 16 * 4 / 16 * 1 / 16) ** (-1 / 3)
    assert found == {"masked_lm_accuracy": 2 / 3, "masked_lm_perplexity": pytest.approx(perplexity)}


def test_written_masks_count_as_the_tokens_that_they_hide():
    columns = {
        "input_word_ids": np.array([[2, 4, 6, 3, 0]]),
        "input_mask": np.array([[1, 1, 1, 1, 0]]),
        "masked_lm_positions": np.array([[1, 0]]),
        "masked_lm_ids": np.array([[7, 0]]),
        "masked_lm_weights": np.array([[1.0, 0.0]]),
    }
    assert instance_sources._count_tokens(columns, 9).tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0]


BASELINES = {"masked_lm_accuracy": 0.1, "masked_lm_perplexity": 90.0, "next_sentence_accuracy": 0.52}


@pytest.mark.parametrize(
    ("perplexity", "accuracy", "baselines", "last"),
    [
        (30.04, 0.6, BASELINES, "masked_lm beats unigrams: perplexity 30.0 against 90.0"),
        (90.0, 0.5, BASELINES, "masked_lm does not beat unigrams: perplexity 90.0 against 90.0"),
        (
            None,
            0.5204,
            BASELINES,
            "next_sentence does not beat an answer that reads no text: accuracy 52.0% against 52.0%",
        ),
        (
            None,
            0.5,
            BASELINES,
            "next_sentence does not beat an answer that reads no text: accuracy 50.0% against 52.0%",
        ),
        (
            None,
            None,
            {},
            "nothing was held out, so nothing says whether it beats unigrams: give --held-out 0.02",
        ),
    ],
)
def test_the_last_line_says_whether_a_model_beats_an_answer_that_reads_nothing(
    perplexity, accuracy, baselines, last
):
    measures = {"held_out_masked_lm_perplexity": perplexity, "held_out_next_sentence_accuracy": accuracy}
    assert monitor.against_baselines(measures, baselines)[-1].endswith(last)


# -----------------------------------------------------------------------------------------------------------
# The command


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
def test_command(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bert_keras.tasks.pretraining.pretrain.SAVE_EVERY", 2)
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
        "--held-out",
        "0.2",
    ]
    command += ["--size", "tiny", "--steps", "6", "--phases", "[[24, 0.5], [32, 0.5]]"]
    for name, value in SMALL.items():
        if name not in ("steps", "seq_length"):
            command += [flag_of(name), value]
    code, out, err = runs.run_command(capfd, *command)
    assert code == 0, err
    assert not [*(tmp_path / "run" / "checkpoints").glob("ckpt-*")], "nobody asked for saves that stay"
    assert "held_out_masked_lm_accuracy" in out and "the run is in" in out
    assert f"tensorboard --logdir {tmp_path / 'run'}/logs" in out
    assert re.search(
        r"on held-out text, masked_lm (beats|does not beat) unigrams: perplexity", out.splitlines()[-1]
    )
    assert "step 6, held out: loss " in out, "a line where there is no terminal for a progress bar"
    code, _, err = runs.run_command(capfd, *command)
    assert code == 1 and "already holds a run" in err
