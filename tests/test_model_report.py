"""Reports of measured models: intervals, comparisons, what a page shows, and how it stands hostile text in a browser."""

import csv
import io
import json
import math
import re

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from browser import check_accessible, errors_of, requests_of, sideways, visit
from measured_texts import HOSTILE, KINDS, classes, scores, sets, strings

from bert_keras.errors import BertKerasError
from bert_keras.tasks.evaluation import tables
from bert_keras.tasks.evaluation.intervals import interval, mcnemar, mean_interval, resample
from bert_keras.tasks.evaluation.measured import check_comparable
from bert_keras.tasks.evaluation.model_report import make_report, write_reports
from bert_keras.tasks.report import Report

ABOUT = {"name": "restaurants", "model": "runs/a", "split": "validation"}
HISTORY = [{"loss": 0.9, "val_accuracy": 0.6, "tokens": 7.0}, {"loss": 0.4, "val_accuracy": 0.8}]


def taken(columns, rows):
    return {name: values[rows] for name, values in columns.items()}


def table_of(report, title):
    (found,) = (table for made in report.sections.values() for table in made if table.title.startswith(title))
    return found


# -----------------------------------------------------------------------------------------------------------
# Measures of samples, intervals, tests


@pytest.mark.parametrize("kind", KINDS)
def test_the_measures_of_a_sample_are_those_of_evaluate(kind):
    task, predictions, raw = KINDS[kind]
    measure, count = task.resampled(predictions, raw), len(next(iter(raw.values())))
    draw = np.random.default_rng(0)
    for rows in (np.arange(count), draw.integers(0, count, count), draw.integers(0, count, 5)):
        known = taken(predictions, rows), taken(raw, rows)
        wanted = dict(task.evaluate(*known)) | (
            {"skipped": measure(rows)["skipped"]} if kind == "masks" else {}
        )
        assert measure(rows) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    assert dict(Report.resampled(task, predictions, raw)(rows)) == dict(task.evaluate(*known))


def test_intervals_against_scipy_and_against_a_formula():
    values = np.float64(np.random.default_rng(1).random(800) < 0.8)
    ours = mean_interval(values)
    draw = {"n_resamples": 2000, "method": "percentile", "rng": np.random.default_rng(2)}
    theirs = scipy.stats.bootstrap((values,), np.mean, **draw).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.004)
    error = 1.96 * math.sqrt(values.mean() * (1 - values.mean()) / len(values))
    assert ours == pytest.approx((values.mean() - error, values.mean() + error), abs=0.004)
    assert mean_interval(values) == ours, "the draws have a seed"
    pairs = np.random.default_rng(3).multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 400)
    found = resample(lambda rows: {"r": scipy.stats.pearsonr(*pairs[rows].T).statistic}, np.arange(400))["r"]
    fisher = np.tanh(np.arctanh(np.corrcoef(pairs.T)[0, 1]) + np.array([-1.96, 1.96]) / math.sqrt(397))
    assert interval(found) == pytest.approx(tuple(fisher), abs=0.02)


def test_an_example_is_drawn_with_all_its_entities():
    task, *_ = KINDS["tags"]
    gold = strings(["B-PER " * 50 + "O", "B-PER " * 50 + "O"])
    predictions = {"tags": strings([gold[0].decode(), "O " * 50 + "O"]), "entity_score": np.ones((2, 50))}
    report = make_report(task, predictions, {"tags": gold, "tokens": strings(["a " * 50 + "a"] * 2)}, **ABOUT)
    recall = report.content["measures"]["recall"]
    assert (recall["value"], recall["low"], recall["high"]) == (0.5, 0.0, 1.0)  # over entities: 0.4 to 0.6


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 5), (3, 9), (9, 3), (40, 41), (120, 60)])
def test_mcnemar_against_the_sum_of_binomial_probabilities(one, other):
    n = one + other
    tail = sum(math.comb(n, i) for i in range(min(one, other) + 1)) / 2**n
    assert mcnemar(one, other) == pytest.approx(min(1.0, 2 * tail))


# -----------------------------------------------------------------------------------------------------------
# Content


def test_a_report_of_classes():
    task, predictions, raw = classes(300)
    raw["label"][::10] = -1
    report = make_report(task, predictions, raw, history=HISTORY, **ABOUT)
    content, known = report.content, raw["label"] >= 0
    assert (content["examples"], content["unlabelled"]) == (270, 30)
    found = content["measures"]["accuracy"]
    assert found["low"] < found["value"] < found["high"] and found["value"] == content["right"] / 270
    assert content["baseline"] == task.baseline(raw)
    assert "clearly better" in content["sentence"] and f"{found['value']:.4f}" in report.page()
    losses, measures = report.sections["Training"]
    assert losses.rows == [(1, 0.9), (2, 0.4)] and measures.rows == [(1, 0.6), (2, 0.8)]
    lengths = table_of(report, "Errors by length")
    assert sum(row[4] for row in lengths.rows) == 270
    assert sum(row[1] * row[4] for row in lengths.rows) == pytest.approx(270 - content["right"])
    matrix = np.array([row[1:] for row in table_of(report, "gold in rows").rows])
    gold = raw["label"][known]
    chosen = [task.label_names.index(label.decode()) for label in predictions["label"][known]]
    np.testing.assert_array_equal(matrix, sklearn.metrics.confusion_matrix(gold, chosen))
    mistakes = table_of(report, "The most confident mistakes").rows
    assert len(mistakes) == 270 - content["right"]
    assert [row[-1] for row in mistakes] == sorted((row[-1] for row in mistakes), reverse=True)
    assert all(int(row[0]) % 10 for row in mistakes), "an example without a label"
    assert (
        json.loads(json.dumps(content, allow_nan=False))["tables"][-1]["title"]
        == "The most confident mistakes"
    )


def test_calibration_against_scikit_learn():
    report = make_report(*classes(2000, names=("no", "yes")), **ABOUT)
    judged, shown = report.judged, table_of(report, "Confidence and truth")
    right, sure = sklearn.calibration.calibration_curve(judged.right, judged.confidence, n_bins=tables.BINS)
    assert [row[:2] for row in shown.rows] == [pytest.approx(pair) for pair in zip(sure, right, strict=True)]
    error = sum(abs(row[0] - row[1]) * row[3] for row in shown.rows) / 2000
    assert f"is {error:.4f}." in shown.about and sum(row[3] for row in shown.rows) == 2000


def test_a_report_of_several_labels_and_of_scores():
    report = make_report(*sets(200), **ABOUT)
    rows = table_of(report, "gold in rows").rows
    gold = KINDS["several"][2]["label"]
    assert len(gold) == 70 and rows[0][0] == "food" and rows[0][1] == max(rows[0][1:])
    judged = report.judged
    assert "(no label)" in judged.gold and {*judged.right} == {0.0, 1.0}
    report = make_report(*scores(1500), **ABOUT)
    assert len(table_of(report, "scores beside labels").rows) == 1000
    assert report.content["right"] is None and report.judged.confidence is None
    first, *_, last = table_of(report, "The largest errors").rows
    assert abs(float(first[2]) - float(first[3])) > abs(float(last[2]) - float(last[3]))


@pytest.mark.parametrize(
    ("count", "right", "said"),
    [(1, 1.0, "all right"), (1, 0.0, "all wrong"), (30, 1.0, "all right"), (30, 0.0, "all wrong")],
)
def test_few_examples_all_right_or_all_wrong(count, right, said):
    task, predictions, raw = classes(count, right=right)
    report = make_report(task, predictions, raw, **ABOUT)
    measures, mistakes = report.content["measures"]["accuracy"], report.sections.get("Mistakes")
    assert measures == {"value": right, "low": right, "high": right}
    assert (mistakes is None) == (said == "all right")
    assert "<svg" in report.page()


def test_one_class_and_150_classes():
    task, predictions, raw = classes(40)
    raw["label"][:] = 1
    assert make_report(task, predictions, raw, **ABOUT).content["baseline"] == 1.0
    names = tuple(f"intent {i}" for i in range(150))
    report = make_report(*classes(2000, names=names), **ABOUT)
    matrix, pairs = table_of(report, "gold in rows"), table_of(report, "the most frequent confusions")
    assert (
        len(matrix.rows) == len(matrix.columns) - 1 == 15 and sum(sum(row[1:]) for row in matrix.rows) == 2000
    )
    assert pairs.rows[0][2] == max(row[2] for row in pairs.rows) and all(
        row[0] != row[1] for row in pairs.rows
    )
    assert len(table_of(report, "labels and averages").rows) == 153 and len(report.page()) < 1_000_000


def test_a_score_that_is_not_a_number_is_refused():
    task, predictions, raw = scores(30)
    predictions["score"][3] = np.nan
    with pytest.raises(BertKerasError, match="is nan: a prediction is not a finite number"):
        make_report(task, predictions, raw, **ABOUT)


def test_a_task_whose_evaluate_is_its_own_is_resampled_by_it():
    task, predictions, raw = classes(60)
    task.evaluate = lambda predictions, raw: iter([("accuracy", 1.0), ("rows", float(len(raw["label"])))])
    assert make_report(task, predictions, raw, **ABOUT).content["measures"]["rows"]["low"] == 60


# -----------------------------------------------------------------------------------------------------------
# Two models


def test_two_models_on_the_same_examples():
    task, predictions, raw = classes(400, right=0.9)
    other = {name: values.copy() for name, values in predictions.items()}
    wrong = np.flatnonzero(other["label"] != strings([task.label_names[i] for i in raw["label"]]))
    other["label"][wrong[-3:]] = strings([task.label_names[i] for i in raw["label"][wrong[-3:]]])
    other["label"][:40] = strings([task.label_names[(i + 1) % 3] for i in raw["label"][:40]])
    report = make_report(task, predictions, raw, compared=("runs/b", task, other), **ABOUT)
    found, (counts, better, worse) = report.content["comparison"], report.sections["Comparison"]
    right = [
        np.array(side["label"] == strings([task.label_names[i] for i in raw["label"]]))
        for side in (predictions, other)
    ]
    only = [int((right[i] & ~right[1 - i]).sum()) for i in (0, 1)]
    assert [row[1] for row in counts.rows] == [
        int((right[0] & right[1]).sum()),
        *only,
        int((~right[0] & ~right[1]).sum()),
    ]
    assert (len(better.rows), len(worse.rows)) == tuple(only)
    assert found["p_value"] == mcnemar(*only) < 0.001
    assert found["difference"] == pytest.approx((only[0] - only[1]) / 400)
    error = 1.96 * math.sqrt(sum(only) - (only[0] - only[1]) ** 2 / 400) / 400  # of paired proportions
    assert (found["low"], found["high"]) == pytest.approx(
        (found["difference"] - error, found["difference"] + error), abs=0.01
    )
    assert "Chance does not explain this: exact McNemar test, p < 0.0001" in found["sentence"]


def test_two_models_of_scores_are_compared_by_the_bootstrap():
    task, predictions, raw = scores(300)
    other = {"score": predictions["score"] + np.float32(np.random.default_rng(1).normal(0, 2, 300))}
    found = make_report(task, predictions, raw, compared=("b", task, other), **ABOUT).content["comparison"]
    assert "p_value" not in found and 0 < found["low"] < found["difference"] < found["high"]
    assert "paired bootstrap" in found["sentence"]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (classes(3, names=("a", "b"))[0], "labels: a, b, not bad, so-so, good"),
        (classes(3, text=("first", "second"))[0], "texts: first, second, not text"),
        (KINDS["choice"][0], "task: multiple-choice, not text-classification"),
        (sets(3, names=("bad", "so-so", "good"))[0], "type of labels: multi, not class"),
    ],
)
def test_runs_of_different_tasks_are_not_compared(other, what):
    with pytest.raises(BertKerasError, match=f"runs/b has another {what}"):
        check_comparable(classes(3)[0], other, name="runs/b")


# -----------------------------------------------------------------------------------------------------------
# Files, and the page in a browser


def hostile_report(count=40, **how):
    """The mistakes are hostile texts and names."""
    task, predictions, raw = classes(count, names=("</script>", "$a$_b", "=x"), right=1.0)
    raw["text"][: len(HOSTILE)] = strings(HOSTILE)
    raw["label"][: len(HOSTILE)] = (raw["label"][: len(HOSTILE)] + 1) % 3
    return make_report(task, predictions, raw, history=HISTORY, **(ABOUT | how))


def test_the_table_of_examples_is_safe_in_a_spreadsheet(tmp_path):
    write_reports({"": hostile_report()}, tmp_path / "report")
    content = (tmp_path / "report" / "examples.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf") and b"\0" not in content
    rows = [*csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))]
    assert len(rows) == 40 and {row["right"] for row in rows[: len(HOSTILE)]} == {"0.0"}
    assert [row["text"] for row in rows[7:12]] == ["'=1+1", "-1", "'@SUM(A1)", "'\t=1+1", "'＝1+1"]
    assert rows[3]["text"] == "m" * 10_000 and rows[5]["text"] == "a␀b␇c␛[31m" and rows[6]["text"] == ""
    for cell in (cell for row in rows for cell in row.values()):
        assert not cell.lstrip().startswith(("=", "+", "@")) and (cell == "-1" or not cell.startswith("-"))


def test_a_folder_with_files_is_refused_and_stays(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BertKerasError, match="not empty"):
        write_reports({"": make_report(*classes(9), **ABOUT)}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_several_splits_have_a_folder_each(tmp_path):
    report = make_report(*classes(9), **ABOUT)
    write_reports({"matched": report, "mismatched": report}, tmp_path / "report")
    names = {str(path.relative_to(tmp_path / "report")) for path in (tmp_path / "report").rglob("*.*")}
    assert names == {
        f"{split}/{name}"
        for split in ("matched", "mismatched")
        for name in ("report.html", "report.json", "examples.csv")
    }


@pytest.mark.parametrize(
    "made", [classes, *(pytest.param(made, marks=pytest.mark.long) for made in (scores, sets))]
)
def test_a_page_of_10_000_examples_is_small(made):
    task, predictions, raw = made(10_000)
    raw["text"][:] = strings(["a word of a long text " * 200] * 10_000)
    report = make_report(task, predictions, raw, compared=("b", task, predictions), **ABOUT)
    assert len(report.page().encode()) < 2_000_000
    assert len(json.dumps(report.content)) < 2_000_000


def test_hostile_text_in_a_browser(browser, tmp_path):
    report = hostile_report(compared=None)
    write_reports({"": report}, tmp_path / "report")
    page = tmp_path / "report" / "report.html"
    for dark in (False, True):
        visit(browser, page, width=360, dark=dark)
        assert (sideways(browser), errors_of(browser), requests_of(browser)) == (0, [], [page.as_uri()])
        check_accessible(browser)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('h2 ~ section:last-of-type tbody tr')].map(r => r.cells[1].textContent)"
    )
    cut = [f"{text[:299]}…" if len(text) > 300 else text for text in HOSTILE]
    assert {text.replace("\0", "␀").replace("\x07", "␇").replace("\x1b", "␛") for text in cut} == {*shown}
    assert browser.title == "restaurants, validation"


def test_a_page_without_scripts_in_a_browser_and_in_a_notebook(browser, tmp_path):
    report = make_report(*classes(60), history=HISTORY, **ABOUT)
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><meta charset=utf-8>{report._repr_html_()}", encoding="utf-8")
    assert not re.search(r"<script|\son\w+=", report.page())
    visit(browser, page, scripts=False)
    assert errors_of(browser) == [] and requests_of(browser) == [page.as_uri()]
    browser.switch_to.frame(0)
    assert browser.find_element("css selector", "h1").text == "restaurants, validation"
    assert len(browser.find_elements("css selector", "figure svg")) == 6
    browser.switch_to.default_content()
