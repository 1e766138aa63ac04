"""Tasks, recipes and objectives of a user's own, by name: they train, are saved, and are never imported by a file."""

import dataclasses
import json
import shutil
import sys

import keras
import numpy as np
import own_relations
import pretrainings
import pytest
import runs
import small_tasks
import tensorflow as tf
from own_relations import LENGTHS, Lengths, Relations
from random_checkpoints import refused

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.cli.main import parser
from bert_keras.config_files import HUGGING_FACE
from bert_keras.io.own_code import digests_of, load_own
from bert_keras.savedmodels.export import servable_of
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining import pretrain as pretrain_module
from bert_keras.tasks.pretraining.pretrain import Pretraining, plan_pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import Recipe, recipe_named
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.tasks.pretraining.unfinished import read_unfinished
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.tasks.strings.text_batches import Weighted, labels_in, make_class_weights
from bert_keras.tasks.study.chosen_rows import chosen_rows
from bert_keras.tasks.study.rows import SCALES, Row

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

HPARAMS = Hparams(epochs=1, batch_size=8, seq_length=24, learning_rate=1e-2)
TEXTS = runs.texts(6, seed=5)
NAME = "own_relations:Relations"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("relations")
    for seed, split in enumerate(("train", "dev")):
        texts = runs.texts(16, seed=seed)
        labels = [int("good" in text) for text in texts]
        small_tasks.write_columns(folder / f"{split}.jsonl", {"text": texts, "label": labels})
    return folder


@pytest.fixture(scope="module")
def trained(data, tiny, tmp_path_factory):
    """A run of the task, its last save kept; as a `.keras` file too."""
    run = tmp_path_factory.mktemp("own") / "run"
    finetune(Relations(data), checkpoint=tiny, output=run, hparams=HPARAMS, verbose=0, log=lambda line: None)
    bk.load(run, task=Relations).save(run.parent / "model.keras")
    return run


def test_a_run_and_a_keras_file_have_every_weight(trained):
    tensors = checkpoints.read(trained).tensors
    assert {name.partition("/")[2] for name in tensors if name.startswith("relation/")} == {
        *(f"batch_normalization/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
        *("dense/kernel", "dense/bias", "scale"),
    }
    assert np.abs(tensors["relation/batch_normalization/moving_mean"]).max() > 0
    answers = bk.load(trained, task=NAME)(TEXTS).numpy()
    np.testing.assert_array_equal(bk.load(trained.parent / "model.keras", task=Relations)(TEXTS), answers)
    kernel = tensors["relation/dense/kernel"] * tensors["relation/scale"]
    assert np.linalg.matrix_rank(kernel) and np.ptp(answers) > 0
    assert json.loads((trained / "config.json").read_text())["own_weights"]


def test_code_that_a_file_names_is_not_imported(trained, monkeypatch):
    monkeypatch.delitem(sys.modules, "own_relations")
    for path in (trained, trained.parent / "model.keras"):
        refused(
            f"the task '{NAME}', whose code is not imported from a file: give --task {NAME}, or",
            bk.load,
            path,
        )
    assert "own_relations" not in sys.modules
    refused(
        f"is of the task '{NAME}', not text-classification; give the task of the run",
        bk.load,
        trained,
        task="sst2",
    )


class Shapes(Relations):
    """Its model reads own features of every shape; `labels` and `decode` alone read another."""

    outputs = ("sequence_output",)
    model_features = ("length", "ends", "marks")

    def features(self, preprocess, raw):
        features = super().features(preprocess, raw)
        length = tf.reduce_sum(features["input_mask"], 1)
        own = {"length": length, "ends": tf.stack([0 * length, length - 1], 1), "unread": raw["text"]}
        return features | own | {"marks": features["input_word_ids"] % 2}

    def model(self, encoder):
        own = {"length": (), "ends": (2,), "marks": (None,)}
        own = {name: keras.Input(shape, dtype="int32", name=name) for name, shape in own.items()}
        inputs = bk.encoder_inputs()
        states = encoder(inputs)["sequence_output"]
        ends = keras.layers.Flatten()(keras.ops.take_along_axis(states, own["ends"][..., None], axis=1))
        counts = keras.ops.stack([own["length"], keras.ops.sum(own["marks"], 1)], axis=1)
        read = keras.ops.concatenate([ends, keras.ops.cast(counts, ends.dtype) / 24], axis=1)
        return keras.Model(inputs | own, keras.layers.Dense(2, name="relation", dtype="float32")(read))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"feature_layers": "last", "lstm_units": 4}, marks=pytest.mark.slow)]
)
def test_a_model_reads_features_of_any_name_and_shape(settings, data, tiny, tmp_path):
    hparams = dataclasses.replace(HPARAMS, **settings)
    how = {"hparams": hparams, "verbose": 0, "log": lambda line: None}
    finetune(Shapes(data), checkpoint=tiny, output=tmp_path / "run", **how)
    model = bk.load(tmp_path / "run", task=Shapes)
    answers = model.predict(TEXTS, verbose=0)["label"].tolist()
    model.save(tmp_path / "model.keras")
    loaded = bk.load(tmp_path / "model.keras", task=Shapes)
    np.testing.assert_allclose(loaded(TEXTS), model(TEXTS), atol=1e-6)
    served = servable_of(model.as_run()).serve(text=tf.constant(TEXTS))["label"]
    assert served.numpy().astype(str).tolist() == answers


def test_examples_of_weight_0_are_counted_where_they_are_learned_and_measured(trained, data, monkeypatch):
    monkeypatch.setattr(
        Relations, "labels", lambda self, raw, features: (raw["label"], tf.cast(raw["label"], "float32"))
    )
    run = load_run(trained, data=data, task=Relations)
    left_out = sum(raw["label"] == 0 for raw in run.task.examples("validation").as_numpy_iterator())
    with pytest.warns(
        UserWarning, match=f"{left_out} of 16 examples of Relations have weight 0: no training"
    ):
        evaluate(run, "validation")


def test_classes_of_a_task_have_weights(data, monkeypatch):
    task = Relations(data)
    refused(
        "the attribute `classes` of a task .*, and Relations has none", make_class_weights, task, {"yes": 2}
    )
    monkeypatch.setattr(Relations, "classes", property(lambda self: self.label_names), raising=False)
    weighted = Weighted(task, {"yes": 2.0})
    labels, weights = weighted.labels({"label": tf.constant([0, 1])}, {})
    assert (labels.numpy().tolist(), weights.numpy().tolist()) == ([0, 1], [1.0, 2.0])
    unlabelled = tf.data.Dataset.from_tensors({"gold": 1})
    refused("counts the column 'label', and the examples have gold", labels_in, unlabelled)


def test_the_parts_that_start_at_random_are_named_once(data, tiny):
    loaded, *_ = plan_finetuning(Relations(data), checkpoint=tiny, hparams=HPARAMS).lines
    assert loaded.count("randomly initialized") == 1 and "randomly initialized: relation" in loaded


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            (),
            r"inputs input_word_ids, .*, ends, length, marks and model_features is \(\); give model_features =",
        ),
        (("length", "start"), "features input_word_ids, .*, and its model reads start too; return each from"),
    ],
)
def test_features_that_a_model_lacks_are_named_before_a_training(names, message, data, tiny, monkeypatch):
    monkeypatch.setattr(Shapes, "model_features", names)
    refused(message, plan_finetuning, Shapes(data), checkpoint=tiny, hparams=HPARAMS)


WRONG = {
    "no module": ("nowhere:Any", "--task nowhere:Any: No module named 'nowhere'; give MODULE:NAME"),
    "no name": ("own_relations:Nothing", "has no attribute 'Nothing' of .*own_relations.py"),
    "no task": ("own_relations:Relation", "own_relations:Relation is no subclass of bert_keras.Task"),
    "lacking": ("own_relations:Lacking", "own_relations:Lacking lacks evaluate, labels, model; help"),
    "no measure": ("own_relations:Bare", "own_relations:Bare lacks measure; help"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_task_is_refused_by_name(case, data, tiny, monkeypatch):
    class Lacking(bk.Task):
        measure = "any"

        def examples(self, split):
            return None

    bare = type("Bare", (Relations,), {"__module__": "own_relations"})
    monkeypatch.delattr(Relations, "measure")
    Lacking.__module__, Lacking.__qualname__ = "own_relations", "Lacking"
    for one in (Lacking, bare):
        monkeypatch.setattr(own_relations, one.__name__, one, raising=False)
    name, message = WRONG[case]
    refused(message, lambda: plan_finetuning(open_task(name, data), checkpoint=tiny, hparams=HPARAMS))


def test_settings_of_a_task_are_its_flags(data):
    words = ["finetune", "--task", NAME, "--checkpoint", "c", "--output", "o", "--names-of-labels", "a", "b"]
    assert parser(("finetune",), words).parse_args(words).names_of_labels == ["a", "b"]
    task = open_task(NAME, data, names_of_labels=["a", "b"])
    assert task.label_names == ("a", "b") and task.to_json() == {
        "name": "Relations",
        "names_of_labels": ("a", "b"),
    }
    refused("names_of_labels is 3; names_of_labels must be", open_task, NAME, data, names_of_labels=3)
    refused("--quoting does not apply to the task", open_task, NAME, data, quoting="csv")


def test_changed_code_is_another_training(data, tiny, tmp_path, monkeypatch):
    """As changed data is: the digest of the module's file stands in the fingerprint."""
    plan = plan_finetuning(Relations(data), checkpoint=tiny, hparams=HPARAMS)
    assert plan.fingerprint["code"] == digests_of(Relations) and [*plan.fingerprint["code"]] == [
        "own_relations"
    ]
    copy = shutil.copy(own_relations.__file__, tmp_path / "own_relations.py")
    monkeypatch.setattr(own_relations, "__file__", str(copy))
    assert digests_of(Relations) == plan.fingerprint["code"]
    copy.write_text(copy.read_text() + "\n")
    assert digests_of(Relations) != plan.fingerprint["code"]
    assert (
        digests_of(str.split, TextClassification := open_task("sst2", data).__class__) == {}
        and TextClassification
    )


def test_a_recipe_s_own_fields_are_settings():
    recipe = recipe_named("own_relations:LENGTHS")
    assert recipe is LENGTHS and recipe.changed(long=7).all_settings["long"] == 7
    refused("long is 0; long must be a whole number of at least 1", recipe.changed, long=0)
    refused("there is no setting longest; the settings are", recipe.changed, longest=1)
    refused("there is no setting long;", recipe_named("bert").changed, long=1)
    words = ["pretrain", "--recipe", "own_relations:LENGTHS", "--text", "t", "--output", "o", "--long", "9"]
    assert parser(("pretrain",), words).parse_args(words).long == 9
    refused("no recipe named 'any'; the recipes are bert, .*MODULE:NAME", recipe_named, "any")
    refused("own_relations:Lengths is type; give a Recipe", recipe_named, "own_relations:Lengths")


def test_an_objective_without_a_member_is_refused(monkeypatch):
    monkeypatch.delattr(Lengths, "logits")
    monkeypatch.delattr(Lengths, "reads")
    refused("Lengths lacks reads, logits; help", recipe_named, "own_relations:LENGTHS")


def test_a_field_without_a_default_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Commas(Lengths):
        comma: int

    refused(
        "Commas has a field comma without a default; .*give it a default",
        Recipe(objectives=(Commas,), settings={}).changed,
        long=3,
    )


def test_an_objective_that_changes_masked_tokens_is_refused_before_a_folder_is_made(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Turned(Lengths):
        def label(self, features, *, seed, worker_rows=None):
            return super().label(
                features | {"input_word_ids": features["input_word_ids"][:, ::-1]}, seed=seed
            )

    recipe = Recipe(objectives=("masked_lm", Turned), settings={"long": 10}).changed(**pretrainings.SMALL)
    given = Pretraining(**pretrainings.given(recipe=recipe, held_out=0.2))
    with runs.refused("length changes input_word_ids after tokens were masked", output=tmp_path / "run"):
        pretrain(given, tmp_path / "run", verbose=0, log=lambda line: None)


@pytest.mark.long
def test_an_objective_is_one_file_outside_the_package(tmp_path):
    changes = pretrainings.SMALL | {"steps": 4, "eval_every": 2, "log_every": 2}
    given = pretrainings.given(recipe=LENGTHS.changed(**changes), held_out=0.2)
    results = pretrain(Pretraining(**given), tmp_path / "run", verbose=0, log=lambda line: None)
    assert {"length_accuracy", "held_out_length_loss", "masked_lm_loss"} <= {*results["measures"]}
    assert results["settings"]["objectives"] == ["masked_lm", "own_relations:Lengths"]
    assert results["settings"]["long"] == 10 and [*results["settings"]["code"]] == ["own_relations"]
    tensors = checkpoints.read(tmp_path / "run").tensors
    assert tensors["length/kernel"].shape == (32, 2)
    assert load_run(tmp_path / "run").task.kind == "fill-mask"  # the run's other head
    assert load_own("own_relations:Lengths.name", given="x") == "length"


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_commands_take_a_task_by_name(data, tiny, tmp_path, capfd, monkeypatch):
    """Trained, measured, predicted and exported by its name, which is given each time."""
    monkeypatch.chdir(tmp_path)
    flags = ["--epochs", "1", "--batch-size", "8", "--seq-length", "24", "--names-of-labels", "bad", "good"]
    made = ["finetune", "--task", NAME, "--data", data, "--checkpoint", tiny, "--output", "run", *flags]
    assert runs.run_command(capfd, *made)[0] == 0
    (tmp_path / "texts.txt").write_text("a good film\nvery dull\n")
    own = {
        "evaluate": ["--data", data, "--json"],
        "predict": ["--input", "texts.txt", "--format", "jsonl"],
        "export": ["--output", "served"],
    }
    for command, more in own.items():
        code, out, err = runs.run_command(capfd, command, "--run", "run", "--task", NAME, *more)
        assert code == 0, err
        code, _, err = runs.run_command(capfd, command, "--run", "run", *more)
        assert (
            code == 1
            and "whose code is not imported from a file: give --task own_relations:Relations, or" in err
        )
        if command == "predict":
            assert {json.loads(line)["label"] for line in out.splitlines()} <= {"bad", "good"}
    code, out, err = runs.run_command(capfd, "info", "run")
    assert code == 0 and NAME in out, err


def test_a_sampler_and_a_row_of_a_study_by_name(tmp_path, monkeypatch):
    """A sampler that a recipe names; a row that `--rows` names."""
    recipe = recipe_named("bert-no-nsp").changed(sampler="own_relations:LINES")
    assert recipe.sampling(32).room == 30  # one segment
    refused("sampler is 'any'; sampler must be one of .*, or MODULE:NAME", recipe.changed, sampler="any")
    refused("sampler own_relations:LENGTHS is Recipe; give a Sampler", sampler_of, "own_relations:LENGTHS")
    changes = pretrainings.SMALL | {"steps": 2}
    plan = plan_pretraining(Pretraining(**pretrainings.given(recipe=recipe.changed(**changes))))
    assert plan.fingerprint["sampler"] == "own_relations:LINES" and [*plan.fingerprint["code"]] == [
        "own_relations"
    ]
    table = SCALES["small"].rows["tasks"]
    for weights, row in {"own_relations:ROW": "lengths", "lengths": "lengths", "BERT": "BERT"}.items():
        half = Row(name="half", weights=weights, share=0.5)
        monkeypatch.setattr(own_relations, "HALF", half, raising=False)
        *_, first, last = chosen_rows(table, ["BERT", "own_relations:ROW", "own_relations:HALF"])
        assert (first.name, first.recipe) == ("lengths", "own_relations:LENGTHS")
        assert (last.name, last.weights) == ("half", row)
    for wrong, message in (
        (
            Row(name="half", weights="lengths"),
            "has the weights of 'lengths'; give one of BERT; .*or name that row",
        ),
        (Row(name="bert"), "has the name 'bert', which names no folder of its own"),
    ):
        monkeypatch.setattr(own_relations, "HALF", wrong, raising=False)
        refused(message, chosen_rows, table, ["own_relations:HALF"])
    refused(
        "--rows own_relations:Lengths is type; give a Row", chosen_rows, (first,), ["own_relations:Lengths"]
    )


def test_instances_that_are_refused_leave_nothing(tmp_path, tiny, capfd):
    """Each line is a document of one sentence, and none has a pair."""
    (tmp_path / "text.txt").write_text("\n\n".join(runs.texts(8, seed=1)) + "\n")
    flags = [
        "--text",
        tmp_path / "text.txt",
        "--vocab",
        tiny / "vocab.txt",
        "--workers",
        "1",
        "--seq-length",
        "16",
    ]
    code, _, err = runs.run_command(
        capfd, "instances", *flags, "--sampler", "sentence_order", "--output", tmp_path / "out"
    )
    assert code == 1 and "gave no instance" in err, err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_an_unfinished_pretraining_is_read_at_its_last_save(tmp_path, capfd, monkeypatch):
    changes = pretrainings.SMALL | {"steps": 4}
    given = Pretraining(**pretrainings.given(recipe=recipe_named("bert").changed(**changes)))
    monkeypatch.setattr(pretrain_module.PretrainingMonitor, "results", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pretrain(given, tmp_path / "run", save_every=2, verbose=0, log=lambda line: None)
    code, out, err = runs.run_command(capfd, "info", tmp_path / "run")
    assert code == 0 and "an unfinished pre-training, at step 4 of 4" in out, err
    code, out, err = runs.run_command(
        capfd, "fill-mask", "--checkpoint", tmp_path / "run", "the [MASK]", "--json"
    )
    assert code == 0 and "at step 4 of 4" in err and len(json.loads(out)["masks"]) == 1, err
    monkeypatch.undo()
    pretrain(given, tmp_path / "run", save_every=2, verbose=0, log=lambda line: None)
    read, last = read_unfinished(tmp_path / "run"), checkpoints.read(tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    kept = read_unfinished(tmp_path / "run").checkpoint.tensors
    assert read is None and {*last.tensors} <= {*kept}
    for name, tensor in last.tensors.items():
        np.testing.assert_array_equal(kept[name], tensor)


def test_a_config_that_no_file_can_hold_is_refused_before_a_training(monkeypatch):
    form = HUGGING_FACE["bert_keras"]
    keys = {key: name for key, name in form.keys.items() if name != "causal"}
    monkeypatch.setitem(HUGGING_FACE, "bert_keras", dataclasses.replace(form, keys=keys))
    given = pretrainings.given("ltr-no-nsp", changes={"steps": 2})
    refused("no config.json can hold causal True; add a row to _OURS", plan_pretraining, Pretraining(**given))
