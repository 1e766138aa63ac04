"""The ways to a report: finetune, evaluate --report and --compare, and TextModel.report, which finds planted label errors."""

import json
import re

import pytest
from runs import ROOT, command, run_command, write_checkpoint
from small_tasks import CASES
from small_tasks import command as training

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.tasks.finetuning import finetuning_monitor
from bert_keras.tasks.runs.run_folder import load_run

FILES = {"report.html", "report.json", "examples.csv"}


def content(folder):
    assert {path.name for path in folder.iterdir()} == FILES
    return json.loads((folder / "report.json").read_text())


def test_a_finished_run_has_the_report_of_its_dev_split(sst2):
    found = content(sst2.run / "report")
    results = json.loads((sst2.run / "results.json").read_text())
    assert found["measures"]["accuracy"]["value"] == results["measures"]["val_accuracy"]
    assert [table["title"] for table in found["tables"]][:3] == [
        "All measures",
        "Loss by epoch",
        "Measures by epoch",
    ]
    assert f"its report is {sst2.run}/report/report.html" in sst2.stdout
    assert load_run(sst2.run).path == sst2.run


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_was_resumed_has_the_same_report_and_a_failing_report_ends_no_training(
    finished, tmp_path, monkeypatch, capfd
):
    made = finished("class")
    forgotten = property(lambda self: None, lambda self, value: None)
    monkeypatch.setattr(finetuning_monitor.FineTuningMonitor, "_kept", forgotten, raising=False)
    assert command(training("class", made, tmp_path / "run")) == 0
    first, second = (content(run / "report") for run in (made.run, tmp_path / "run"))
    assert first["measures"] == second["measures"] and first["tables"] == second["tables"]
    monkeypatch.setattr(finetuning_monitor, "make_report", lambda *a, **k: 1 / 0)
    code, out, err = run_command(capfd, *training("class", made, tmp_path / "other"))
    assert code == 0 and "gets no report: ZeroDivisionError" in out + err and "its report is" not in out
    assert (tmp_path / "other" / "results.json").is_file()


# They have the pages of `class`, and of `tags`.
ALIKE = ("pair", "score", "several", "paths")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name
        for name, case in CASES.items()
        if case.flags.startswith("finetune")
    ],
)
@pytest.mark.long
def test_every_kind_of_run_has_a_page(finished, kind):
    folder = finished(kind).run / "report"
    assert FILES - {"examples.csv"} <= {path.name for path in folder.iterdir()}
    assert "<svg" in (folder / "report.html").read_text()


@pytest.mark.long
def test_evaluate_writes_a_report_and_compares_two_runs(sst2, tmp_path, capfd):
    of = ("evaluate", "--run", sst2.run, "--data", sst2.data)
    code, out, err = run_command(capfd, *of, "--report", tmp_path / "report", "--compare", sst2.run)
    assert (code, err) == (0, "") and f"the report is in {tmp_path}/report" in out
    found = content(tmp_path / "report")
    assert found["comparison"]["difference"] == 0 and found["comparison"]["p_value"] == 1
    assert found["comparison"]["sentence"] in out.replace("\n", " ")
    code, out, _ = run_command(capfd, *of, "--json")
    shown = json.loads(out)
    assert shown.keys() == {"validation", "tables"} and shown["validation"].keys() == {"accuracy"}
    by_label, matrix, errors = shown["tables"]["validation"]
    assert by_label["columns"][0] == "label" and matrix["title"].startswith("gold in rows")
    assert sum(sum(row[1:]) for row in matrix["rows"]) == 48 and errors["rows"]


def test_flags_of_a_report_are_refused_before_any_prediction(sst2, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("bert_keras.tasks.batches.predict", None)
    (tmp_path / "file").write_text("mine")
    of = ("evaluate", "--run", sst2.run, "--data", sst2.data)
    for flags, said in (
        (["--report", tmp_path], "is there already and not empty"),
        (["--compare", sst2.run], "--compare was given without --report"),
        (["--report", tmp_path / "new", "--compare", tmp_path / "none"], f"no task.json in {tmp_path}/none"),
    ):
        code, _, err = run_command(capfd, *of, *flags)
        assert code == 1 and err.count("\n") == 1 and said in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# -----------------------------------------------------------------------------------------------------------
# In Python


@pytest.mark.long
def test_planted_label_errors_are_the_most_confident_mistakes(tmp_path, monkeypatch):
    """The code of docs/report.md, with a larger learning rate: the small model has random weights."""
    (code,) = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "docs" / "report.md").read_text())
    monkeypatch.chdir(tmp_path)
    tiny = write_checkpoint(tmp_path / "minilm", max_positions=128)
    exec(code.replace("learning_rate=1e-4", "learning_rate=3e-3"), given := {})
    assert sorted(given["found"]) == sorted(given["planted"])
    model, report, labelled = given["model"], given["report"], (given["texts"], given["labels"])
    losses = report.sections["Training"][0].rows
    assert [row[0] for row in losses] == [1, 2, 3, 4] and losses[0][1] > losses[3][1]
    assert content(tmp_path / "report")["measures"] == report.content["measures"]
    assert report._repr_html_().startswith("<iframe") and "<h1>" not in report._repr_html_()
    texts = pytest.importorskip("pandas").Series(given["texts"], [f"r{i}" for i in range(200)])
    named = model.report(texts, given["labels"], tmp_path / "named").sections["Mistakes"][0].rows
    assert {row[0] for row in named[:5]} == {f"r{i}" for i in given["planted"]}
    assert "\nr199," in (tmp_path / "named" / "examples.csv").read_text(encoding="utf-8-sig")
    other = model.report(*labelled, compare=bk.classifier(tiny, ["bad", "good"])).content["comparison"]
    assert (
        other["low"] > 0 and other["p_value"] < 0.01 and other["models"] == ["this model", "the other model"]
    )
    with pytest.raises(BertKerasError, match="the other model has another labels: a, b, not bad, good"):
        model.report(*labelled, compare=bk.classifier(tiny, ["a", "b"]))
    with pytest.raises(BertKerasError, match="not empty"):
        model.report(*labelled, "report")
