"""The protocol for any task: the grid, the epoch that is kept, the ensemble, runs that did not learn, the paper's figures."""

import csv
import functools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.io import formats
from bert_keras.tasks.batches import predict
from bert_keras.tasks.data.glue import ROWS
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams, hparams_of
from bert_keras.tasks.metrics import degenerate_scores
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.study.grid import Cell, run_cells
from bert_keras.tasks.study.paper import FIGURES, paper_table
from bert_keras.tasks.study.protocol import LEARNING_RATES, check_grid, protocol_runs, run_protocol, summarize
from bert_keras.tasks.study.report import summary_tables
from bert_keras.tasks.study.study_options import ProtocolOptions

HPARAMS = Hparams(epochs=3, batch_size=16, seq_length=16, seed=5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, and training and dev rows of a custom task; the first word says the label."""
    folder = tmp_path_factory.mktemp("protocol")
    runs.write_checkpoint(folder / "checkpoint")
    for seed, name in enumerate(("train", "dev")):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("sentence", "label"))
            rows.writerows((text, text.split()[0] < "is") for text in runs.texts(320, seed=seed))
    return folder


def opened(place):
    return TextClassification.open(
        "custom", {"train": str(place / "train.csv"), "validation": str(place / "dev.csv")}
    )


def start(place, output, **settings):
    """The summary and the log lines."""
    lines = []
    settings = {"hparams": HPARAMS, "learning_rates": (1e-3,), "log": lines.append} | settings
    summary = run_protocol(opened(place), checkpoint=place / "checkpoint", output=output, **settings)
    return summary, lines


GRID = {"batch_sizes": (16, 32), "restarts": 2, "ensemble": 2}


@pytest.fixture(scope="module")
def done(place):
    """Two batch sizes by two seeds, and an ensemble of two."""
    return start(place, place / "runs", **GRID, best_only=True)[0]


@pytest.mark.long
def test_every_combination_is_one_run(place, done):
    names = [
        f"lr-0.001{batch}_seed-{seed}" for batch in ("", "_batch-32") for seed in (5, 6)
    ]  # 16 is the task's
    assert sorted(path.name for path in (place / "runs" / "custom").iterdir()) == sorted(names)
    assert [one.path.name for one in done.outcomes] == names
    for one in done.outcomes:
        found = runs.results(one.path)
        assert {name: found["hparams"][name] for name in one.place} == one.place
        assert one.measures["accuracy"] == found["measures"]["val_accuracy"]
    assert done.best.measures["accuracy"] == max(one.measures["accuracy"] for one in done.outcomes)


@pytest.mark.long
def test_an_ensemble_is_measured_beside_its_members_and_keeps_their_weights(place, done):
    together = done.ensemble
    assert together.members[0] == done.best and len(together.members) == 2
    run = load_runs([one.path for one in together.members])
    predictions, raw = predict(run.task, run.preprocess, run.model, opened(place).examples("validation"))
    assert together.measures == dict(run.task.evaluate(predictions, raw))
    first, second = summary_tables([done])[:2]
    assert first.columns[4] == "rate, batch, seed"
    assert second.rows[0][:2] == ("custom", 2)
    kept = runs.results(place / "runs")["tasks"]["custom"]
    assert kept["ensemble"]["measures"] == together.measures
    weights = {one.path for one in done.outcomes if (one.path / "model.safetensors").is_file()}
    assert weights == {one.path for one in together.members}


@pytest.mark.long
def test_a_finished_protocol_trains_nothing(place, done):
    def files():
        found = (place / "runs" / "custom").rglob("*")
        return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in found}

    before = files()
    with runs.no_training():
        again, lines = start(place, place / "runs", **GRID)
    assert again == done and sum("is finished already" in line for line in lines) == 4
    assert files() == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ("task.json", "has no task.json; train again"),
        ("model.safetensors", "has no model.safetensors, and its run had one .* remove this folder"),
        ("results.json", "has no results.json, and its run had one .* remove this folder"),
        ("vocab.txt", "vocab.txt was changed after training"),
    ],
)
def test_a_damaged_run_of_a_finished_protocol_is_refused(place, done, damaged, message):
    file = done.best.path / damaged
    before = file.read_bytes()
    file.write_bytes(before[:-1]) if damaged == "vocab.txt" else file.unlink()
    try:
        with runs.no_training(), pytest.raises(ValueError, match=f"{done.best.path}.*{message}"):
            start(place, place / "runs", **GRID)
    finally:
        file.write_bytes(before)


def alone(outcome):
    """The settings of a grid that has only this run."""
    return {
        "hparams": replace(HPARAMS, seed=outcome.place["seed"]),
        "batch_sizes": (outcome.place["batch_size"],),
    }


@pytest.mark.long
def test_a_run_killed_between_its_card_and_its_results_is_resumed(place, done, tmp_path):
    """It still has its saves; a finished run has none, and lost its results if it has none of both."""
    run = shutil.copytree(done.best.path, tmp_path / "run")
    (run / "results.json").unlink()
    (run / "checkpoints" / "ckpt-9.index").touch()

    def train(output):
        raise runs.Begun

    with pytest.raises(runs.Begun):
        next(run_cells([Cell(name="run", path=run, train=train)]))


@pytest.mark.long
def test_a_best_run_without_weights_is_refused(place, done):
    """The wider grid's --best-only removed them."""
    removed = next(one for one in done.outcomes if one not in done.ensemble.members)
    before = (place / "runs" / "results.json").read_bytes()
    name = removed.path.name
    with (
        runs.no_training(),
        pytest.raises(ValueError, match=f"{name} is the best .* has no model.safetensors"),
    ):
        start(place, place / "runs", **alone(removed))
    assert (place / "runs" / "results.json").read_bytes() == before


@pytest.mark.slow
def test_a_wider_grid_reads_the_runs_of_a_narrower_one(place, done, tmp_path):
    with runs.no_training():
        summary, lines = start(place, place / "runs", **alone(done.best))
    assert [one.path for one in summary.outcomes] == [done.best.path]
    with runs.no_training():  # the results as the other tests read them
        start(place, place / "runs", **GRID)


def test_an_ensemble_of_too_few_runs_that_learned_is_left_out(place, done, tmp_path):
    """All else is reported: it took hours."""
    learned = [replace(one, degenerate="always no") for one in done.outcomes[:3]]
    learned.append(replace(done.outcomes[3], degenerate=None))
    lines = []
    summary = summarize(opened(place), learned, baseline=0.5, hparams=HPARAMS, ensemble=2, log=lines.append)
    assert summary.ensemble is None and summary.best == learned[3]
    assert "no ensemble of 2: 1 run(s) learned" in lines[0]


@pytest.mark.parametrize(
    "results", [{"measures": {"val_accuracy": 0.9}}, formats.stamp(formats.STUDY) | {"tasks": {"mrpc": {}}}]
)
def test_results_of_another_run_are_not_replaced(place, tmp_path, results):
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match="holds (another run|the results of mrpc).*give another folder"):
        start(place, tmp_path)
    assert runs.contents(tmp_path) == {"results.json": json.dumps(results).encode()}


def test_a_dry_run_lists_the_grid_and_its_control(place, tmp_path, capfd):
    flags = ["--task", "custom", "--data", place / "train.csv", "--dev-data", place / "dev.csv"]
    flags += ["--checkpoint", place / "checkpoint", "--output", tmp_path / "runs", "--seq-length", "16"]
    with runs.no_training():
        code, out, err = runs.run_command(
            capfd, "protocol", *flags, "--restarts", "2", "--learning-rates", "1e-3", "--control", "--dry-run"
        )
    assert code == 0, err
    assert "custom: learning rate 0.001, random weights │ 1" in out and "all" in out and "GFLOP/s" in out
    assert not (tmp_path / "runs").exists()


def test_a_rate_that_nobody_gave_does_not_end_a_grid():
    """A task's own rate is part of its defaults, which a command reads too."""
    for defaults, layers in (({}, None), ({}, "last"), (MultipleChoice().defaults, None)):
        hparams = hparams_of(defaults, {} if layers is None else {"feature_layers": layers})
        check_grid(hparams, ProtocolOptions(), defaults=defaults)
    with pytest.raises(ValueError, match="learning_rate is 3e-05, and a grid"):
        check_grid(Hparams(learning_rate=3e-5), ProtocolOptions(), defaults=MultipleChoice().defaults)
    check_grid(Hparams(learning_rate=3e-5), ProtocolOptions(learning_rates=(1e-3,)), defaults={})


def test_the_rates_are_those_of_the_approach():
    for layers, rates in ((None, LEARNING_RATES), ("last", (1e-3,))):
        grid = protocol_runs(Hparams(feature_layers=layers), ProtocolOptions())
        assert tuple(settings.learning_rate for _, settings in grid) == rates


@pytest.mark.long
@pytest.mark.slow
def test_the_last_epoch_is_kept(place, tmp_path):
    """At a rate that diverges slowly, the best epoch on dev is not the last."""
    hparams = replace(HPARAMS, epochs=3, learning_rate=3e-2)
    results = {}
    for keep in ("best", "last"):
        results[keep] = finetune(
            opened(place),
            checkpoint=place / "checkpoint",
            output=tmp_path / keep,
            hparams=replace(hparams, keep=keep),
            verbose=0,
            log=lambda line: None,
        )
    history = [epoch["val_accuracy"] for epoch in results["last"]["history"]]
    assert history == [epoch["val_accuracy"] for epoch in results["best"]["history"]]
    assert results["last"]["best_epoch"] == 3 and results["best"]["best_epoch"] == np.argmax(history) + 1
    run = load_run(tmp_path / "last", data={"validation": str(place / "dev.csv")})
    assert evaluate(run, "validation")["accuracy"] == pytest.approx(history[-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ensemble": 3, "restarts": 2}, "has 3 members and the grid 2 run"),
        ({"batch_sizes": (8, 8)}, "batch_sizes is .*each once"),
        ({"epoch_counts": ()}, "epoch_counts is"),
        ({"ensemble": 1}, "ensemble must be a whole number of at least 2"),
        (
            {"hparams": replace(HPARAMS, dev_fraction=0.1)},
            "each seed would hold out other examples; give a dev",
        ),
        ({"hparams": replace(HPARAMS, seq_length=600)}, "seq_length is 600 and the encoder has 48 positions"),
        ({"hparams": replace(HPARAMS, feature_layers="40", learning_rate=1e-3)}, "40"),
        (
            {"hparams": replace(HPARAMS, learning_rate=1e-5), "learning_rates": None},
            "learning_rate is 1e-05, and a grid has learning_rates of its own; give learning_rates",
        ),
        ({"feature_cache": "vectors"}, "feature_cache applies only with feature_layers"),
    ],
)
def test_refused_before_any_training(place, tmp_path, settings, message):
    with runs.refused(message, output=tmp_path / "new"):
        start(place, tmp_path / "new", **settings)


def refused_task(place, tmp_path, task, message):
    with runs.refused(message, output=tmp_path / "new"):
        run_protocol(task, checkpoint=place / "checkpoint", output=tmp_path / "new", hparams=HPARAMS)


def test_a_split_without_labels_is_refused_before_any_training(place, tmp_path):
    class Withheld(TextClassification):
        def examples(self, split):
            return super().examples(split).map(lambda raw: raw | {"label": -tf.ones_like(raw["label"])})

    task = Withheld.open("sst2", runs.write_data(tmp_path / "sst2", "sst2", count=8))
    refused_task(place, tmp_path, task, "no example in the train split of sst2 has a label")


def test_a_missing_second_dev_file_is_named_before_any_training(place, tmp_path):
    data = runs.write_data(tmp_path / "MNLI", "mnli")
    (data / "dev_mismatched.tsv").unlink()
    refused_task(place, tmp_path, TextClassification.open("mnli", data), "dev_mismatched.tsv")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"restarts": 2}, {"restarts", "seed", "runs"}),
        ({"ensemble": 2, "batch_sizes": (8, 16)}, {"ensemble", "batch_sizes", "batch_size", "runs"}),
        ({"best_only": True}, {"best_only"}),
        ({"hparams": replace(HPARAMS, epochs=4)}, {"epochs"}),
    ],
)
def test_workers_compare_their_grids_before_a_folder_is_made(place, tmp_path, monkeypatch, changes, named):
    start_new = functools.partial(start, place, tmp_path / "new")
    assert runs.unlike(monkeypatch, start_new, changes) == named
    assert not (tmp_path / "new").exists()


def test_patience_does_not_go_with_the_last_epoch():
    with pytest.raises(ValueError, match="patience must be None if keep"):
        Hparams(patience=1, keep="last")


@pytest.mark.long
@pytest.mark.slow
def test_the_command(place, tmp_path, capfd):
    flags = ["--task", "custom", "--data", place / "train.csv", "--dev-data", place / "dev.csv"]
    flags += ["--checkpoint", place / "checkpoint", "--output", tmp_path / "runs", "--seq-length", "16"]
    code, out, err = runs.run_command(
        capfd,
        *("protocol", *flags, "--learning-rates", "1e-3", "--epoch-counts", "1", "--keep", "last"),
        *("--control", "--max-dev-examples", "10"),
    )
    assert code == 0, err
    kept = runs.results(tmp_path / "runs")["tasks"]["custom"]
    assert len(kept["runs"]) == 1 and 0 <= kept["most_common_answer"] <= 1
    control = runs.results(tmp_path / "runs" / "custom" / "random-weights_lr-0.001_epochs-1_seed-12345")
    assert control["dev_examples"] == 10
    assert kept["random_weights"] == {
        name.removeprefix("val_"): value for name, value in control["measures"].items()
    }
    assert f"the best run is in {tmp_path / 'runs' / 'custom' / 'lr-0.001_epochs-1_seed-12345'}" in out
    assert (tmp_path / "runs" / "results.png").stat().st_size > 1000


# Runs that did not learn


def classes(*counts):
    """Class 0 so many times, then class 1, and so on in turn."""
    return np.repeat(np.arange(len(counts)) % 2, counts)


def glue(name, given, labels, reason):
    """A case of one of GLUE's tasks: predicted classes or scores, and labels."""
    if name == "stsb":
        answers = {"score": np.float32(given)}
    else:
        answers = {"label": np.array([ROWS[name].labels[i].encode() for i in given], object)}
        labels = labels.astype(np.int32)
    return TextClassification.open(name), answers, {"label": labels}, reason


def swag(predicted, labels, reason):
    """A case of multiple choice."""
    return MultipleChoice(), *({"label": np.array(ids, np.int32)} for ids in (predicted, labels)), reason


def squad(name, answers, gold, reason):
    """A case of questions; "" is no answer."""
    predictions = {
        "answer": np.array([answer.encode() for answer in answers], object),
        "nbest_answers": np.array([[b"x"]] * len(answers), object),
        "null_odds": np.zeros(len(answers), np.float32),
    }
    texts = [json.dumps([answer] if answer else []).encode() for answer in gold]
    return QuestionAnswering.open(name, None), predictions, {"answers": np.array(texts, object)}, reason


def conll(predicted, tags, reason):
    """A case of entities."""
    rows = ({"tags": np.array([row.encode() for row in one], object)} for one in (predicted, tags))
    return Tagging(("O", "B-PER"), scheme="IOB2"), *rows, reason


LABELS, SCORES, FOUR = classes(32, 68), np.float32([1, 2, 3, 4]), [0, 1, 2, 3]  # MRPC's share of the majority
CASES = [
    glue("mrpc", classes(0, 100), LABELS, "equivalent for 100.0% of dev"),
    glue("mrpc", classes(100), LABELS, "not_equivalent for 100.0% of dev"),
    glue("cola", classes(0, 100), LABELS, "acceptable for 100.0% of dev"),
    # Some of both, and as many right as with class 1 for all.
    glue("rte", classes(5, 27, 5, 63), LABELS, "accuracy 0.6800; predicting the majority class has 0.6800"),
    glue(
        "cola",
        classes(8, 24, 17, 51),
        LABELS,
        "Matthews correlation 0.0000; predicting the majority class has 0.0000",
    ),
    glue("rte", classes(20, 80), LABELS, None),
    glue("rte", classes(6, 26, 5, 63), LABELS, None),  # one more right than that
    glue("cola", classes(9, 23, 17, 51), LABELS, None),
    # Nearly one class.
    glue("qqp", classes(9, 1991), classes(1000, 1000), "duplicate for 99.6% of dev"),
    glue("qqp", classes(20, 1980), classes(1000, 1000), None),
    # Labels of one class show only that another is always predicted.
    glue("rte", classes(0, 20), classes(0, 20), None),
    glue("rte", classes(20), classes(0, 20), "entailment for 100.0% of dev"),
    glue(
        "rte", classes(3, 1), np.array([0, 1, 1, -1]), "entailment for 100.0% of dev"
    ),  # -1: without a label
    glue("stsb", [2.5] * 4, SCORES, "the score is always 2.5"),
    glue("stsb", [2.5, 2.51, 2.5, 2.51], SCORES, "the score is always 2.505"),
    glue("stsb", [1.0, np.nan, 2.0, 3.0], SCORES, "a score is not a finite number"),
    glue("stsb", [1.0, 1.5, 2.0, 1.2], SCORES, None),
    glue(
        "stsb", [2.5, 3.5, 3.5, 2.5], SCORES, "Pearson correlation 0.0000; predicting the mean score has none"
    ),
    swag([1] * 8, FOUR * 2, "ending 1 for 100.0% of dev"),
    swag([0, 0, 1, 1, 2, 3, 1, 3], FOUR * 2, "accuracy 0.2500; predicting the majority class has 0.2500"),
    swag([1, 0, 3, 2] * 2, FOUR * 2, "accuracy 0.0000; predicting the majority class has 0.2500"),
    swag(FOUR * 2, FOUR * 2, None),
    swag([1] * 8, [1] * 8, None),
    swag([1] * 8, [2] * 8, "ending 1 for 100.0% of dev"),
    swag([1] * 399 + [2], [1] * 399 + [2], None),
    squad("squad1.1", "aaaa", "abcd", "a for 100.0% of dev"),
    squad("squad1.1", "wxyz", "bcde", "f1 as a fraction 0.0000; no answer at all has 0.0000"),
    squad("squad1.1", "bxyz", "bcde", None),
    squad("squad2.0", [""] * 4, ["b", "c", "", ""], "no answer for 100.0% of dev"),
    squad(
        "squad2.0",
        ["b", "x", "", "y"],
        ["b", "c", "", ""],
        "f1 as a fraction 0.5000; no answer at all has 0.5000",
    ),
    conll(["O O", "O"], ["B-PER O", "O"], "f1 0.0000"),
    conll(["B-PER O", "O"], ["B-PER O", "O"], None),
]


@pytest.mark.parametrize(("task", "predictions", "raw", "reason"), CASES)
def test_degenerate(task, predictions, raw, reason):
    assert task.degenerate(predictions, raw) == reason


@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
def test_nearly_constant_scores_are_relative_to_the_labels_range(scale):
    """Labels from 0.001 to 0.004 are learned by scores in between; 0.01 of 1 to 4 is constant, at any scale."""
    labels = scale * SCORES
    assert degenerate_scores(labels, labels) is None
    assert "always" in (degenerate_scores(labels, 2.5 * scale + labels / 300) or "")


@pytest.mark.parametrize(("correlation", "stuck"), [(0.07, True), (-0.07, True), (0.072, False)])
def test_nearly_no_explained_variance_is_degenerate(correlation, stuck):
    """The mean and noise, whatever its size: 0.07 squared is less than 0.005 and 0.072 squared is more."""
    along, across = (SCORES - 2.5) / np.sqrt(5), np.float32([1, -1, -1, 1]) / 2  # of length 1
    scores = 2.5 + correlation * along + np.sqrt(1 - correlation**2) * across
    why = f"Pearson correlation {correlation:.4f}; predicting the mean score has none" if stuck else None
    assert degenerate_scores(SCORES, np.float32(scores)) == why


# The paper's figures


def test_the_figures_average_to_those_of_the_paper():
    """Table 1 gives averages of the GLUE tasks; MNLI's two splits count each."""
    for model, average in (("base", 79.6), ("large", 82.1)):
        values = [one.value for one in FIGURES if (one.table, one.model) == (1, model)]
        assert len(values) == 9 and np.mean(values) == pytest.approx(average, abs=0.06)


def test_only_the_tasks_asked_for_are_listed():
    table = paper_table(["swag", "rte"])
    assert [row[0] for row in table.rows] == ["swag"] * 3 + ["rte"] * 2
    assert paper_table(["custom"]) is None
