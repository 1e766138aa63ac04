"""The protocol on GLUE: runs by learning rate and seed, resumed and refused; the table and the score; the leaderboard's files."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import runs

from bert_keras.io import formats
from bert_keras.tasks.batches import predict
from bert_keras.tasks.data.glue import ROWS
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.study import glue, grid, protocol, report
from bert_keras.tasks.study.glue import glue_json, glue_score, run_glue, submit
from bert_keras.tasks.study.grid import Cell, Outcome, run_cells
from bert_keras.tasks.study.report import Summary, summary_tables
from bert_keras.tasks.study.rows import SCORED, SUBMISSION

HPARAMS = Hparams(epochs=1, batch_size=16, seq_length=40, seed=5)
NAMES, RATES = ("mnli", "stsb"), (1e-3,)
TESTS = {
    "MNLI/test_matched": "index\tsentence1\tsentence2\n0\tgood film\tbad\n1\ta\tthe plot\n",
    "MNLI/test_mismatched": "index\tsentence1\tsentence2\n0\tthe\tactor\n",
    "AX/diagnostic": "index\tsentence1\tsentence2\n0\tvery\tdull\n1\t\tgood\n2\twarm\tfilm\n",
    "STS-B/test": "index\tsentence1\tsentence2\n0\tgood\tbad\n1\tplot\tplot\n",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint, and GLUE's folder with MNLI, STS-B and AX."""
    folder = tmp_path_factory.mktemp("protocol")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    for name in NAMES:
        runs.write_data(folder / "glue" / ROWS[name].folder, name)
    for path, content in TESTS.items():
        file = folder / "glue" / f"{path}.tsv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return folder


def start(place, **settings):
    """The summaries and the log lines."""
    lines = []
    settings = {
        "data": place / "glue",
        "checkpoint": place / "checkpoint",
        "output": place / "runs",
        "hparams": HPARAMS,
        "learning_rates": RATES,
        "log": lines.append,
    } | settings
    return run_glue(settings.pop("names", NAMES), **settings), lines


@pytest.fixture(scope="module")
def done(place):
    return start(place)


def copy_run(place, output, name, *, rate=1e-3):
    """A finished run of a task in the folder of another grid, as if it had another rate."""
    run = output / name / f"lr-{rate:g}_seed-5"
    shutil.copytree(place / "runs" / name / "lr-0.001_seed-5", run)
    settings = run / "checkpoints" / "settings.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"learning_rate": rate}))
    return run


@pytest.mark.long
def test_summaries_are_those_of_the_runs(place, done):
    """A run directory for each learning rate and seed, as `finetune` leaves it."""
    made = {path.parent for path in (place / "runs").rglob("model.safetensors")}
    assert made == {place / "runs" / name / "lr-0.001_seed-5" for name in NAMES}
    mnli, stsb = done[0]
    assert (mnli.task, stsb.task) == NAMES
    for summary in (mnli, stsb):
        (found,) = summary.outcomes
        asked = json.loads((found.path / "checkpoints" / "settings.json").read_text())
        results = runs.results(found.path)
        assert {name: asked.get(name, "best") for name in results["hparams"]} == results["hparams"]
        assert asked["seed"] == 5 and str(place) not in json.dumps(asked)
        assert results["degenerate"] == found.degenerate
        assert found.place == {"learning_rate": 1e-3, "batch_size": 16, "epochs": 1, "seed": 5}
        assert {f"val_{name}": value for name, value in found.measures.items()} == results["measures"]
    assert set(mnli.measures) == {"validation_matched", "validation_mismatched"}
    run = load_run(mnli.best.path, data=place / "glue")
    assert mnli.measures["validation_mismatched"] == evaluate(run, "validation_mismatched")
    assert set(stsb.measures["validation"]) == {"spearman", "pearson"}
    stamp = formats.stamp(formats.STUDY) | {formats.MADE_BY: formats.made_by()}
    assert runs.results(place / "runs") == stamp | glue_json(done[0]) | {"failed": []}
    assert (place / "runs" / "results.png").stat().st_size > 1000


@pytest.mark.long
def test_submission_files(place, done):
    """The best run's answers, in the order and spelling of the official files."""
    summaries, _ = done
    best = {summary.task: load_run(summary.best.path) for summary in summaries}
    with zipfile.ZipFile(place / "runs" / "submission.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(files) == {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", "STS-B.tsv"}
    for name, split, title in SUBMISSION:
        if f"{title}.tsv" not in files:
            continue
        assert (place / "runs" / "submission" / f"{title}.tsv").read_text() == files[f"{title}.tsv"]
        run = best["stsb" if name == "stsb" else "mnli"]
        answers, raw = predict(
            run.task, run.preprocess, run.model, TextClassification.open(name, place / "glue").examples(split)
        )
        lines = [line.split("\t") for line in files[f"{title}.tsv"].splitlines()]
        assert lines[0] == ["index", "prediction"]
        assert [int(index) for index, _ in lines[1:]] == list(range(len(raw["idx"])))
        written = [prediction for _, prediction in lines[1:]]
        if name == "stsb":
            np.testing.assert_allclose(np.float64(written), np.clip(answers["score"], 0, 5), atol=5e-4)
        else:
            assert written == [label.decode() for label in answers["label"]]


@pytest.mark.long
def test_wnli_is_answered_with_its_majority_label(place, done, tmp_path):
    """Without a run of it, as in the paper's submission; STS-B's finished run is read."""
    copy_run(place, tmp_path / "runs", "stsb")
    shutil.copytree(place / "glue", tmp_path / "glue")
    data = runs.write_data(tmp_path / "glue" / "WNLI", "wnli")
    rows = [line.split("\t")[-1] for line in (data / "train.tsv").read_text().splitlines()[1:]]
    (data / "test.tsv").write_text("index\tsentence1\tsentence2\n7\tgood\tbad\n8\ta\tplot\n")
    settings = {"names": ("stsb", "wnli"), "data": tmp_path / "glue", "output": tmp_path / "runs"}
    with runs.no_training():
        summaries, _ = start(place, wnli="majority", **settings)
    assert [summary.task for summary in summaries] == ["stsb"]
    label = max(("0", "1"), key=rows.count)
    written = (tmp_path / "runs" / "submission" / "WNLI.tsv").read_text()
    assert written == f"index\tprediction\n0\t{label}\n1\t{label}\n"
    with pytest.raises(ValueError, match="WNLI is the only task"):
        start(place, **settings | {"output": tmp_path / "alone", "names": ("wnli",)}, wnli="majority")


def test_answers_are_spelled_as_in_the_files():
    labels, scores = np.array([b"not_entailment", b"entailment"], object), np.float32([-0.2, 2.34567, 5.5])
    predicted = {"label": labels, "score": scores}
    assert glue._written(ROWS["wnli"], predicted) == ["0", "1"]
    assert glue._written(ROWS["rte"], predicted) == ["not_entailment", "entailment"]
    assert glue._written(ROWS["stsb"], predicted) == ["0.000", "2.346", "5.000"]


def test_names_of_the_leaderboards_files():
    assert [title for *_, title in SUBMISSION] == (
        "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    )
    assert all(split in ROWS[name].splits for name, split, _ in SUBMISSION)
    assert {*SCORED} == {*ROWS} - {"ax"}


# Begun again


@pytest.mark.long
def test_restarts_and_a_run_cut_short(place, done, tmp_path):
    """Seed 5 has finished; the run of seed 6 is killed as it begins, and resumed. The weights of the better one are left."""
    finished = copy_run(place, tmp_path, "stsb")
    half = finished.with_name("lr-0.001_seed-6")
    settings = {"names": ("stsb",), "output": tmp_path, "restarts": 2, "best_only": True}
    with runs.no_training(), pytest.raises(runs.Begun):
        start(place, **settings)
    assert (half / "checkpoints" / "settings.json").is_file() and not (half / "results.json").exists()
    ((summary,), lines) = start(place, **settings)
    assert sum("is finished already" in line for line in lines) == 1
    assert [one.place["seed"] for one in summary.outcomes] == [5, 6]
    assert summary.outcomes[0] == replace(done[0][1].outcomes[0], path=finished)
    assert summary.outcomes[0].measures != summary.outcomes[1].measures  # another head, another order
    (kept,) = [one for one in summary.outcomes if (one.path / "model.safetensors").exists()]
    assert kept == summary.best
    (removed,) = [one for one in summary.outcomes if one is not kept]
    alone = {"hparams": replace(HPARAMS, seed=removed.place["seed"]), "restarts": 1}
    with pytest.raises(
        ValueError, match=rf"seed-{removed.place['seed']} is the best of these runs and has no model\.saf"
    ):
        start(place, **settings | alone)


@pytest.mark.long
@pytest.mark.slow
def test_a_run_whose_loss_is_nan(place, done, tmp_path):
    """It is degenerate, the others go on, and a second start does not repeat it."""
    lost = tmp_path / "stsb" / copy_run(place, tmp_path, "mnli", rate=1e30).name
    settings = {"output": tmp_path, "learning_rates": (1e30,)}
    for finished in (1, 2):
        ((mnli,), lines) = start(place, names=("stsb", "mnli"), **settings)
        assert sum("is finished already" in line for line in lines) == finished
        assert any(line.startswith("degenerate: the loss is nan at step ") for line in lines)
        assert lines[-1].startswith("stsb has no measures: the loss of every run")
        results = runs.results(tmp_path)
        assert results["failed"] == ["stsb"] and [*results["tasks"]] == ["mnli"] == [mnli.task]
    assert [*runs.results(lost)] == ["degenerate"]
    with pytest.raises(
        ValueError, match="has no trained model: the loss is nan at step .* lower learning rate"
    ):
        load_run(lost)
    shutil.copytree(tmp_path / "stsb", tmp_path / "alone" / "stsb")
    alone = {"output": tmp_path / "alone"}
    with pytest.raises(ValueError, match=r"^stsb has no measures: .*; give lower learning rates\.$"):
        start(place, names=("stsb",), **settings | alone)
    copy_run(place, tmp_path / "alone", "stsb")
    rates = {"learning_rates": (1e30, 1e-3)}
    ((summary,), lines) = start(place, names=("stsb",), **settings | alone | rates, best_only=True)
    assert sum("is finished already" in line for line in lines) == 2
    assert summary.best.place["learning_rate"] == 1e-3 and (summary.best.path / "model.safetensors").exists()
    assert summary.outcomes[0].measures == {}
    _, stuck, _ = summary_tables([summary])
    assert stuck.rows[0][:2] == ("stsb", "1e+30, 5") and stuck.rows[0][2].startswith(
        "the loss is nan at step "
    )
    json.dumps(glue_json([summary]), allow_nan=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hparams": replace(HPARAMS, batch_size=8)}, "another batch_size: 16, not 8"),
        ({"pooling": "concat"}, "another task: "),
        ({"strategy_name": "mirrored"}, 'another strategy: "one", not "mirrored"'),
    ],
    ids=["hparams", "task", "strategy"],
)
def test_other_settings_are_an_error(place, done, settings, message):
    before = runs.contents(place / "runs")
    with pytest.raises(
        ValueError, match=rf"lr-0.001_seed-5 was made with {message}.*; give the same, or another folder"
    ):
        start(place, **settings)
    assert runs.contents(place / "runs") == before


def test_no_cell_is_trained_where_the_folder_of_a_later_one_cannot_be_used(tmp_path):
    trained = []
    cells = [Cell(name=name, path=tmp_path / name, train=trained.append) for name in "ab"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="b is neither empty nor a run of this grid: it holds thesis.txt"):
        next(run_cells(cells, log=print))
    assert not trained and runs.contents(tmp_path) == {"b/thesis.txt": b"mine"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": ("mnli", "ax")}, "unknown task ax; the tasks to train on are cola, sst2, "),
        ({"names": ("mnli", "mnli")}, "the tasks are mnli, mnli; give at least one, each once"),
        ({"names": ()}, "at least one, each once"),
        ({"learning_rates": (1e-3, 1e-3)}, "learning_rates is .*0.001, 0.001"),
        ({"learning_rates": ()}, "learning_rates is .*; give at least one value, each once"),
        ({"restarts": 0}, "restarts is 0; restarts must be a whole number of at least 1"),
        ({"names": ("mnli", "qnli")}, "has no train.tsv"),
        ({"wnli": "majority"}, "wnli is 'majority', and wnli is not among the tasks mnli, stsb; "),
    ],
)
def test_refused_before_any_training(place, tmp_path, settings, message):
    with runs.refused(message, output=tmp_path / "new"):
        start(place, output=tmp_path / "new", **settings)


@pytest.mark.long
def test_results_of_other_tasks_are_not_replaced(place, done):
    before = runs.contents(place / "runs")
    with pytest.raises(
        ValueError, match="holds the results of .*mnli.*; give another folder, or name all its tasks"
    ):
        start(place, names=("qnli",))
    assert runs.contents(place / "runs") == before


@pytest.mark.parametrize(("file", "line"), [("MNLI/test_mismatched", 3), ("AX/diagnostic", 5)])
def test_a_test_file_is_read_before_any_training(place, tmp_path, file, line):
    shutil.copytree(place / "glue", tmp_path / "glue")
    with (tmp_path / "glue" / f"{file}.tsv").open("a") as stream:
        stream.write("good\n")
    with runs.refused(rf"{file}\.tsv, line {line}: 1 column", output=tmp_path / "new"):
        start(place, data=tmp_path / "glue", output=tmp_path / "new", names=("mnli",))


# Tables and scores


def outcome(rate, seed, why=None, **measures):
    place = {"learning_rate": rate, "batch_size": 32, "epochs": 3, "seed": seed}
    return Outcome(name="x", task="x", place=place, path=Path("x"), measures=measures, degenerate=why)


MRPC = [
    outcome(5e-5, 1, "equivalent for 100.0% of dev", f1=0.81, accuracy=0.68),
    outcome(5e-5, 2, f1=0.90, accuracy=0.86),
    outcome(2e-5, 1, f1=0.80, accuracy=0.75),
    outcome(2e-5, 2, f1=0.88, accuracy=0.84),
]


MNLI = Summary(
    task="mnli",
    measure="accuracy",
    outcomes=(outcome(1e-5, 1, accuracy=0.8),),
    measures={"validation_matched": {"accuracy": 0.8}, "validation_mismatched": {"accuracy": 0.82}},
    baseline=0.35,
)


def summarize(*given):
    """The summary of runs of a task whose most common answer has 0.81."""
    return protocol.summarize(*given, baseline=0.81, hparams=HPARAMS)


def test_a_degenerate_run_is_counted_and_left_out():
    summary = summarize(TextClassification.open("mrpc"), MRPC)
    assert summary.best is MRPC[1]
    assert summary.values == [0.90, 0.80, 0.88] and summary.median == 0.88
    assert summary.score == pytest.approx(0.88)  # F1 and accuracy first
    table, stuck, _ = summary_tables([summary])
    assert table.rows == [
        ("mrpc", 4, 1, "f1 90.0, accuracy 86.0", "5e-05, 2", "f1 88.0", "80.0 - 90.0", "81.0")
    ]
    assert stuck.rows == [("mrpc", "5e-05, 1", "equivalent for 100.0% of dev")]
    assert "bias correction" in stuck.title and "more epochs" in stuck.title
    kept = glue_json([summary])["tasks"]["mrpc"]
    assert kept["degenerate"] == 1 and kept["runs"][0]["degenerate"] == "equivalent for 100.0% of dev"
    assert kept["median"] == 0.88 and len(kept["runs"]) == 4
    # A run that learned comes before a majority class with the higher F1.
    assert summarize(TextClassification.open("mrpc"), [MRPC[0], MRPC[2]]).best is MRPC[2]


def test_all_degenerate():
    summary = summarize(TextClassification.open("mrpc"), MRPC[:1])
    assert summary.best is MRPC[0] and summary.median is None
    table, stuck, _ = summary_tables([summary])
    assert table.rows[0][-3:] == ("-", "-", "81.0") and len(stuck.rows) == 1
    kept = json.loads(json.dumps(glue_json([summary]), allow_nan=False))["tasks"]["mrpc"]
    assert kept["median"] is kept["lowest"] is kept["highest"] is None


def test_glue_score():
    """Measures of a task first, then both splits of MNLI, then the tasks."""
    mrpc = summarize(TextClassification.open("mrpc"), MRPC)
    assert glue_score([MNLI, mrpc]) == pytest.approx((0.81 + (0.90 + 0.86) / 2) / 2)
    assert glue_json([MNLI, mrpc])["glue_score_on_dev"] == {
        "score": pytest.approx(0.845),
        "tasks": 2,
        "of": 9,
    }


@pytest.mark.long
def test_missing_test_files_are_logged(place, done, tmp_path):
    lines = []
    stsb = done[0][1]
    (tmp_path / "none").mkdir()
    assert submit([stsb], data=tmp_path / "none", output=tmp_path, log=lines.append) == []
    assert len(lines) == 1 and lines[0].startswith("no STS-B.tsv: ")
    assert not (tmp_path / "submission.zip").exists()


@pytest.fixture
def wnli(tmp_path):
    """A folder of GLUE with the test file of WNLI, and results that are there already."""
    (tmp_path / "glue" / "WNLI").mkdir(parents=True)
    (tmp_path / "glue" / "WNLI" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tgood\tbad\n")
    (tmp_path / "submission").mkdir()
    for name in ("submission.zip", "submission/WNLI.tsv"):
        (tmp_path / name).write_text("before")
    return {"data": tmp_path / "glue", "output": tmp_path, "majority": {"wnli": "entailment"}}


@pytest.mark.parametrize(
    ("name", "owner", "method"),
    [("submission.zip", zipfile.ZipFile, "write"), ("submission/WNLI.tsv", Path, "write_text")],
)
def test_a_file_of_the_leaderboard_is_whole_or_as_before(wnli, monkeypatch, name, owner, method):
    file, write = wnli["output"] / name, getattr(owner, method)

    def stops(self, *given, **how):
        write(self, *given, **how)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, method, stops)
    with pytest.raises(KeyboardInterrupt):
        submit([], **wnli, log=lambda line: None)
    assert file.read_text() == "before" and {*file.parent.iterdir()} <= {
        wnli["output"] / path for path in ("glue", "submission", "submission.zip", "submission/WNLI.tsv")
    }
    monkeypatch.undo()
    submit([], **wnli, log=lambda line: None)
    assert (wnli["output"] / "submission" / "WNLI.tsv").read_text() == "index\tprediction\n0\t1\n"
    with zipfile.ZipFile(wnli["output"] / "submission.zip") as archive:
        assert archive.read("WNLI.tsv") == b"index\tprediction\n0\t1\n"


@pytest.mark.parametrize("part", ["submit", "draw"])
def test_results_are_written_after_all_other_files(place, tmp_path, monkeypatch, part):
    def stops(*given, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run_cells", lambda *given, **how: [replace(MNLI.best, task="mnli")])
    monkeypatch.setattr(protocol, "_check_has_weights", lambda best: None)
    monkeypatch.setattr(protocol, "summarize", lambda *given, **how: MNLI)
    monkeypatch.setattr(glue, "submit", lambda *given, **how: [])
    monkeypatch.setattr(glue if part == "submit" else report, part, stops)
    with pytest.raises(KeyboardInterrupt):
        start(place, names=("mnli",), output=tmp_path)
    assert not (tmp_path / "results.json").exists()


# The command


@pytest.mark.long
@pytest.mark.slow
def test_by_command(place, done, capfd):
    flags = ("--data", place / "glue", "--checkpoint", place / "checkpoint", "--output", place / "runs")
    flags += ("--learning-rates", *RATES, "--epochs", 1, "--batch-size", 16, "--seq-length", 40, "--seed", 5)
    code, out, err = runs.run_command(capfd, "glue", "--tasks", *NAMES, *flags)
    assert (code, err) == (0, "")
    assert out.count("is finished already") == 2
    words = " ".join(out.split())
    assert "GLUE; percent; the best run" in words and "one seed for each setting" in words
    score = glue_score(done[0])
    assert f"GLUE score on dev: {100 * score:.1f}, the mean of 2 of 9 tasks" in out
    code, _, err = runs.run_command(capfd, "glue", "--tasks", *NAMES, *flags, "--epochs", 2)
    assert code == 1 and "was made with another epochs: 1, not 2; give the same, or another folder" in err
