"""Precision as a setting: every problem trains and predicts in bfloat16 near float32, and runs are read at another precision."""

import dataclasses
import json

import keras
import numpy as np
import pretrainings
import pytest
import tensorflow as tf
from runs import run_command, write_checkpoint, write_data
from string_tasks import BILSTM, NAMES, TASKS, TEXTS

import bert_keras as bk
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.model import choices
from bert_keras.model.layers import wide
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.frozen.extract_file import extract_file
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining
from bert_keras.tasks.runs.ensemble import at_precision, load_runs
from bert_keras.tasks.runs.run_card import measures_of
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.training.task_model import encoder_of

NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
# The largest difference of logits from float32, relative to the larger of 1 and their own size: 20 roundings of 2^-8.
NEAR = 0.08
HPARAMS = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "seq_length": 40, "max_examples": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("precision") / "checkpoint", num_layers=2, **NO_DROPOUT)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("precision") / "data", "sst2")


def logits_of(model, x):
    """The logits of a problem's model, before and without decoding."""
    return [np.asarray(one) for one in tf.nest.flatten(model(x))]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the checkpoint has no masked_lm head")
@pytest.mark.parametrize(
    "case",
    ["answer", *(pytest.param(case, marks=pytest.mark.slow) for case in ("class", "class, BiLSTM", "tags"))],
)
@pytest.mark.slow
def test_every_problem_trains_two_steps_in_bfloat16_near_float32(case, checkpoint):
    make, x, y = TASKS[case]
    found = {}
    policies = ["float32", "mixed_bfloat16", *(["mixed_float16"] if case == "class" else [])]
    for policy in policies:
        keras.utils.set_random_seed(0)
        model = make(checkpoint, dtype=policy)
        model.compile(learning_rate=1e-4)
        history = model.fit(x, y, batch_size=len(y), epochs=2, shuffle=False, verbose=0).history["loss"]
        assert np.isfinite(history).all() and int(model.optimizer.iterations) == 2
        assert {one.dtype for one in model.trainable_variables} == {"float32"}
        found[policy] = logits_of(model, x)
        assert {one.dtype for one in found[policy]} == {np.dtype("float32")}
        model.predict(x, verbose=0)
    for policy in policies[1:]:
        for ours, reference in zip(found[policy], found["float32"], strict=True):
            assert np.isfinite(ours).all()
            difference = np.abs(ours - reference).max()
            assert 0 < difference <= NEAR * max(1, np.abs(reference).max()), (policy, difference)


@pytest.mark.long
@pytest.mark.parametrize(
    "case", ["bert", *(pytest.param(case, marks=pytest.mark.slow) for case in ("electra", "lamb"))]
)
@pytest.mark.slow
def test_a_pretraining_in_bfloat16_is_near_float32(case, tmp_path):
    recipe, changes = ("bert", {"optimizer": "lamb"}) if case == "lamb" else (case, {})
    changes |= {"steps": 4, "log_every": 2, "eval_every": 2, "batch_size": 4, **NO_DROPOUT}
    runs = {
        name: pretrainings.train(tmp_path / name, recipe, changes=changes | {"precision": name}, held_out=0.2)
        for name in choices.PRECISIONS[: 3 if case == "bert" else 2]
    }
    losses = {name: run["measures"]["held_out_masked_lm_loss"] for name, run in runs.items()}
    assert len({*losses.values()}) == len(losses)
    assert [*losses.values()] == pytest.approx([losses["float32"]] * len(losses), abs=0.05)


def plan(checkpoint, data, **hparams):
    task = open_task("sst2", data)
    return plan_finetuning(task, checkpoint=checkpoint, hparams=Hparams(**HPARAMS | hparams))


def train(checkpoint, data, output, **hparams):
    how = {"hparams": Hparams(**HPARAMS | hparams), "verbose": 0, "log": lambda line: None}
    return finetune(open_task("sst2", data), checkpoint=checkpoint, output=output, save_every=1, **how)


@pytest.mark.long
@pytest.mark.slow
def test_the_precision_decides_a_run(checkpoint, data):
    made = [plan(checkpoint, data, precision=name).fingerprint for name in ("float32", "bfloat16")]
    assert made[1] == made[0] | {"precision": "bfloat16"} != made[0]
    changes = ({}, {"precision": "float32"}, {"precision": "bfloat16"})
    made = [plan_pretraining(Pretraining(**pretrainings.given(changes=one))).fingerprint for one in changes]
    assert made[0] == made[1] and made[2] == made[0] | {"precision": "bfloat16"} != made[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_of_another_precision_is_not_resumed(checkpoint, data, tmp_path):
    results = train(checkpoint, data, tmp_path / "run", precision="bfloat16")
    assert results["hparams"]["precision"] == "bfloat16"
    (tmp_path / "run" / "results.json").unlink()  # as if it were unfinished
    with pytest.raises(BertKerasError, match='another precision: "bfloat16", not "float32"'):
        train(checkpoint, data, tmp_path / "run", precision="float32")


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 3},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ({"unfreeze": "gradual"}, {"lora_rank": 2}, BILSTM)
        ),
    ],
)
@pytest.mark.slow
def test_float16_scales_the_loss_with_every_form_of_training(options, checkpoint, data, tmp_path):
    results = train(checkpoint, data, tmp_path / "run", precision="float16", **options)
    assert np.isfinite(results["history"][0]["loss"])


@pytest.mark.parametrize("options", [{"micro_batch": 3}, {"optimizer": "rmsprop"}])
def test_bfloat16_trains_in_micro_batches_and_with_keras_optimizers(options, checkpoint):
    """Both need gradients of known ranks."""
    model = bk.classifier(checkpoint, ["bad", "good"], dtype="mixed_bfloat16")
    model.compile(**options)
    given = ["a good film", "a bad film", "good", "bad"]
    loss = model.fit(given, [1, 0, 1, 0], batch_size=4, epochs=1, verbose=0).history["loss"]
    assert np.isfinite(loss).all()


@pytest.fixture(scope="module")
def trained(checkpoint, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision") / "run"
    train(checkpoint, data, folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_run_at_another_precision_has_the_same_weights_and_nearly_the_same_logits(name, trained):
    run = load_run(trained)
    narrow = at_precision(run, name)
    features = run.preprocess(tf.constant(TEXTS))
    expected, found = run.model(features).numpy(), narrow.model(features).numpy()
    assert narrow.encoder.variable_dtype == narrow.encoder.compute_dtype == name
    assert 0 < np.abs(found - expected).max() <= NEAR * max(1, np.abs(expected).max())
    for ours, theirs in zip(narrow.encoder.weights, run.encoder.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs).astype(ours.dtype))
    assert at_precision(run, None) is run
    loaded = bk.load(trained, dtype=name)
    np.testing.assert_array_equal(np.asarray(loaded.network(features)), narrow.model(features).numpy())
    with pytest.raises(BertKerasError, match="int8"):
        at_precision(run, "int8")
    with pytest.raises(BertKerasError, match="dtype is 'mixed_bfloat16'; give one of float32"):
        bk.load(trained, dtype="mixed_bfloat16")
    with pytest.raises(MissingFileError):
        bk.load(trained / "typo", dtype=name)


@pytest.mark.long
def test_a_frozen_encoder_stays_frozen_at_another_precision(trained):
    run = load_run(trained)
    run.encoder.trainable = False
    found = at_precision(run, "bfloat16")
    assert not found.encoder.trainable and found.model.trainable_weights
    assert len(found.model.trainable_weights) == len(run.model.trainable_weights)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_an_ensemble_and_lora_at_another_precision(trained):
    both = at_precision(load_runs([trained, trained]), "bfloat16")
    assert [encoder_of(one).compute_dtype for one in both.model.members] == ["bfloat16"] * 2
    run = load_run(trained)
    run.encoder.enable_lora(2)
    dense = run.encoder.blocks[0].attention.query
    dense.lora_kernel_b.assign(np.ones(dense.lora_kernel_b.shape))
    found = at_precision(run, "float32").encoder.blocks[0].attention.query.kernel
    np.testing.assert_allclose(found.numpy(), dense.kernel.numpy(), rtol=1e-6)
    run = load_run(trained)
    run.encoder.blocks[0].attention.query.quantize("int8")
    with pytest.raises(BertKerasError, match="is quantized to int8"):
        at_precision(run, "bfloat16")


@pytest.mark.long
def test_evaluate_predict_and_features_take_a_precision(trained, checkpoint, data, tmp_path, capfd):
    code, out, err = run_command(
        capfd, "evaluate", "--run", trained, "--data", data, "--precision", "bfloat16", "--json"
    )
    assert code == 0, err
    assert 0 <= json.loads(out)["validation"]["accuracy"] <= 1
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))
    answers, vectors = {}, {}
    for name in ("float32", "bfloat16"):
        code, out, err = run_command(
            capfd, "predict", "--run", trained, "--input", lines, "--precision", name
        )
        assert code == 0, err
        answers[name] = np.array([json.loads(line)["probabilities"] for line in out.splitlines()])
        extract_file(lines, tmp_path / name, checkpoint=checkpoint, seq_length=40, precision=name)
        rows = [json.loads(line)["vectors"] for line in (tmp_path / name).read_text().splitlines()]
        vectors[name] = np.concatenate(rows)
    assert 0 < np.abs(answers["bfloat16"] - answers["float32"]).max() <= 0.02
    assert 0 < np.abs(vectors["bfloat16"] - vectors["float32"]).max() <= 0.1


def test_a_feature_cache_of_another_precision_is_refused(checkpoint, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))

    def stop(done):
        raise KeyboardInterrupt

    options = {"checkpoint": checkpoint, "seq_length": 40, "shard_examples": 4}
    with pytest.raises(KeyboardInterrupt):
        extract_file(lines, tmp_path / "out", precision="bfloat16", progress=stop, **options)
    with pytest.raises(BertKerasError, match="made with another"):
        extract_file(lines, tmp_path / "out", **options)


def test_the_global_policy_and_the_argument_are_equal(checkpoint):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        by_policy = bk.classifier(checkpoint, NAMES)
    finally:
        keras.config.set_dtype_policy("float32")
    by_argument = bk.classifier(checkpoint, NAMES, dtype="mixed_bfloat16")
    assert by_policy.dtype_policy.name == by_argument.dtype_policy.name == "mixed_bfloat16"
    assert bk.load_encoder(checkpoint, dtype="bfloat16").variable_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("bfloat16", "float32"), ("mixed_float16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_sums_and_logits_are_float32_or_wider(given, expected):
    assert wide(given) == expected


@pytest.fixture
def processor(tmp_path, monkeypatch):
    """A function that makes the text of /proc/cpuinfo, None for no such file, that of this machine."""

    def pretend(info, machine="x86_64"):
        if info is not None:
            (tmp_path / "cpuinfo").write_text(info)
        monkeypatch.setattr(choices, "CPU_INFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(choices.platform, "machine", lambda: machine)

    return pretend


@pytest.mark.parametrize(
    ("info", "machine", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 amx_tile\n", "x86_64", True),
        ("flags\t\t: fpu avx2 avx512f\n", "x86_64", False),
        ("Features\t: fp asimd bf16\n", "aarch64", True),
        ("Features\t: fp asimd\n", "aarch64", False),
        ("nothing\n", "x86_64", None),
        (None, "x86_64", None),
        ("flags\t\t: fpu\n", "riscv64", None),
    ],
)
def test_the_processor_is_asked_for_bfloat16(info, machine, expected, processor):
    processor(info, machine)
    assert choices.is_fast("bfloat16") is expected
    assert choices.is_fast("float32") is True
    lines = choices.slowness("bfloat16", accelerated=False)
    assert len(lines) == (expected is False) and all("bfloat16" in line for line in lines)
    assert not choices.slowness("bfloat16", accelerated=True)


def test_a_plan_warns_of_a_slow_format(checkpoint, data, processor):
    processor("flags : fpu\n")
    assert [line for line in plan(checkpoint, data, precision="bfloat16").lines if "warning" in line]
    assert not [line for line in plan(checkpoint, data).lines if "warning" in line]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_keras_file_in_a_slow_format_is_warned_of(trained, data, tmp_path, processor, capfd):
    model = bk.load(trained, dtype="bfloat16")
    model.save(tmp_path / "model.keras")
    processor("flags : fpu\n")
    for flags, warned in (([], True), (["--precision", "float32"], False)):
        code, out, err = run_command(
            capfd, "evaluate", "--run", tmp_path / "model.keras", "--data", data, *flags
        )
        assert code == 0 and ("no bfloat16 instructions" in err) == warned, err


@pytest.mark.long
def test_the_card_says_in_which_format_a_run_was_measured(trained):
    results = json.loads((trained / "results.json").read_text())
    run = load_run(trained)
    assert "Measured in" not in measures_of(run, results)
    results["hparams"]["precision"] = "bfloat16"
    assert "Measured in bfloat16, as the run was trained." in measures_of(run, results)


def test_the_default_of_a_setting_is_float32():
    assert Hparams().precision == "float32" == dataclasses.asdict(Hparams())["precision"]
    with pytest.raises(BertKerasError, match="precision is 'int8'"):
        Hparams(precision="int8")
