"""Ablations of one checkpoint: the grammar of rows, refusals, baselines, verdicts, and a small run of both kinds."""

import functools
import itertools
import json
import random
from dataclasses import replace

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.io import formats
from bert_keras.model.choices import LAYERS
from bert_keras.tasks.batches import cardinality, take_examples
from bert_keras.tasks.frozen.extractor import Extractor
from bert_keras.tasks.metrics import ordering
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.study.approaches import _open_contexts, compared_approaches, figure_of, run_approaches
from bert_keras.tasks.study.comparison import comparison_json, comparison_tables
from bert_keras.tasks.study.grid import Outcome
from bert_keras.tasks.study.report import Dot, draw
from bert_keras.tasks.study.rows import approach_of, chosen_approaches

# -----------------------------------------------------------------------------------------------------------
# Rows and flags


@pytest.mark.parametrize(
    "row",
    [
        ("fine-tuning", False, None, None),
        ("random-fine-tuning", True, None, None),
        ("concat_last_four", False, None, "concat_last_four"),
        ("9,10,11,12", False, None, "9,10,11,12"),
        ("random-9", True, None, "9"),
        ("sentence-fine-tuning", False, "sentence", None),
        ("random-document-last", True, "document", "last"),
    ],
)
def test_a_row_names_weights_context_and_layers(row):
    assert approach_of(row[0]) == row


@pytest.mark.parametrize(
    "name", ["finetuning", "last-random", "random-", "", "9,9", "sentence-random-last", "paragraph-last"]
)
def test_an_unknown_row_is_refused_with_the_known_ones(name):
    with pytest.raises(BertKerasError, match=r"unknown row .*fine-tuning, embeddings, .*9,10,11,12"):
        approach_of(name)


CONLL = Tagging(["O", "B-X"], scheme="IOB2")
CHECKPOINT_FLAGS = ["--checkpoint", "c", "--data", "conll2003=d", "--output", "o"]
TEXT_FLAGS = ["--text", "t", "--vocab", "v", "--output", "o"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["layers", *CHECKPOINT_FLAGS, "--text", "t"], "unrecognized arguments: --text t"),
        (["approaches", *CHECKPOINT_FLAGS, "--steps", "3"], "unrecognized arguments: --steps 3"),
        (["layers", "--data", "conll2003=d", "--output", "o"], "required: --checkpoint"),
        (["tasks", "--output", "o"], "required: --text, --vocab"),
        (["steps", *TEXT_FLAGS, "--checkpoint", "c"], "unrecognized arguments: --checkpoint c"),
        (["layers", *CHECKPOINT_FLAGS, "--dev-data", "sst2=d"], "without --data sst2=PATH"),
        (["layers", *CHECKPOINT_FLAGS, "--dev-data", "d"], "'d' has no name; give NAME=VALUE"),
        (["tasks", *TEXT_FLAGS, "--data", "sst2=d", "rte=d", "sst2=e"], "--data has sst2 more than once"),
        (["layers", *CHECKPOINT_FLAGS, "--dev-data", *2 * ["conll2003=d"]], "--dev-data has conll2003 more"),
    ],
)
def test_wrong_flags_of_an_ablation(arguments, named, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = runs.run_command(capfd, "ablate", *arguments)
    assert code and named in err
    assert not [*tmp_path.iterdir()]


# -----------------------------------------------------------------------------------------------------------
# The most common answer


def raw_of(task):
    examples = task.examples(task.validation_splits[0])
    return next(examples.batch(cardinality(examples)).as_numpy_iterator())


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_the_baseline_is_the_measure_of_the_most_common_label(name, tmp_path):
    task = TextClassification.open(name, runs.write_data(tmp_path / "data", name, count=40))
    raw, count = raw_of(task), len(task.label_names)
    label = task.label_names[np.bincount(raw["label"], minlength=count).argmax()]
    answers = {
        "label": np.full(len(raw["label"]), label.encode(), object),
        "probabilities": np.zeros((len(raw["label"]), count), np.float32),
    }
    assert task.baseline(raw) == dict(task.evaluate(answers, raw))[task.measure]


def questions(folder, *, version, unanswerable):
    """Three questions with the answer "a dog", one with another, then unanswerable ones."""
    context = "a dog saw the red car"
    answers = [["a dog"], ["dog", "a dog"], ["a dog"], ["red car"], *[[]] * unanswerable]
    qas = [
        {
            "id": str(i),
            "question": "who ?",
            "answers": [{"text": text, "answer_start": context.index(text)} for text in texts],
        }
        | ({"is_impossible": not texts} if version == "v2.0" else {})
        for i, texts in enumerate(answers)
    ]
    data = [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]
    file = folder / "questions.json"
    file.write_text(json.dumps({"version": version, "data": data}))
    return {"train": file, "validation": file}


def test_the_baseline_of_questions_is_the_most_common_answer_or_none(tmp_path):
    first = QuestionAnswering.open("squad1.1", questions(tmp_path, version="1.1", unanswerable=0))
    assert first.baseline(raw_of(first)) == 75  # three of four, in percent
    second = QuestionAnswering.open("squad2.0", questions(tmp_path, version="v2.0", unanswerable=6))
    assert second.baseline(raw_of(second)) == 60


def test_the_baselines_of_choices_tags_and_scores(tmp_path):
    file = tmp_path / "choices.jsonl"
    lines = [
        {"startphrase": "c", "choices": ["a", "b", "c", "d"], "answer": label} for label in (1, 1, 1, 0, 3)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    task = MultipleChoice.open("swag", {"train": file, "validation": file})
    assert task.baseline(raw_of(task)) == pytest.approx(0.6)
    scores = {"label": np.float32([1, 1, 4])}
    assert CONLL.baseline({}) == TextClassification.open("stsb").baseline(scores) == 0


# -----------------------------------------------------------------------------------------------------------
# Orderings

ROWS_RUN = ("fine-tuning", *LAYERS, "3,4", "random-fine-tuning", "random-last")


def made(rows=ROWS_RUN, *, restarts=4, failed=()):
    """A comparison of rows on CoNLL-2003. failed: row and seed of degenerate runs."""
    draw = random.Random(7)
    outcomes = [
        Outcome(
            name=row,
            task="conll2003",
            place={"row": row, "seed": seed},
            path=None,
            degenerate="f1 0.0000" if (row, seed) in failed else None,
            measures={"f1": draw.gauss(0.9 - i / 100, 0.004)},
        )
        for i, row in enumerate(rows)
        for seed in range(restarts)
    ]
    how = {"tasks": {"conll2003": CONLL}, "outcomes": outcomes, "baselines": {"conll2003": 0.0}}
    return compared_approaches("layers", [*map(approach_of, rows)], **how)


def compared(rows, **how):
    """The names in each pair."""
    return [(one.better, one.worse) for one in made(rows, **how).orderings()]


def test_orderings_are_those_of_table_7_and_over_random_weights():
    in_table_7 = (
        "fine-tuning",
        "concat_last_four",
        "weighted_sum_last_four",
        "second_to_last",
        "weighted_sum_all",
        "last",
        "embeddings",
    )
    controls = dict.fromkeys(["fine-tuning", *LAYERS, "3,4"], "random-fine-tuning") | {"last": "random-last"}
    assert compared(ROWS_RUN) == [*itertools.pairwise(in_table_7), *controls.items()]
    results = made()
    for one in results.orderings():
        values = (results.values[row]["conll2003"] for row in (one.better, one.worse))
        assert one.found == ordering(*values)
    assert {one.found.verdict for one in results.orderings()} >= {"holds", "fails"}


@pytest.mark.parametrize(
    ("rows", "pairs"),
    [
        (("fine-tuning", "sentence-fine-tuning", "last"), [("fine-tuning", "last")]),
        (("sentence-fine-tuning", "fine-tuning", "last"), [("fine-tuning", "last")]),
        (
            ("last", "document-last", "sentence-last", "random-fine-tuning", "random-document-fine-tuning"),
            [("last", "random-fine-tuning"), ("document-last", "random-document-fine-tuning")],
        ),
    ],
)
def test_rows_of_another_context_have_only_controls_of_their_own(rows, pairs):
    assert compared(rows) == pairs


def test_a_row_s_context_comes_before_the_option(place):
    rows = [approach_of("last"), approach_of("document-last")]
    tasks = _open_contexts(["conll2003"], rows, {"conll2003": place / "conll"}, {"context": "sentence"})
    assert [tasks["conll2003", row.context].context for row in rows] == ["sentence", "document"]


def test_options_are_known_when_a_custom_file_is_read_first(tmp_path):
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("note,text,y\na b,good film,1\nc d,dull plot,0\n")
    options = {"label_type": "class", "label_column": "y", "text_column": ("text",)}
    tasks = _open_contexts(["custom"], [approach_of("last")], {"custom": tmp_path}, options)
    assert tasks["custom", None].label_names == ("0", "1")


def test_the_report_has_figures_controls_and_failures():
    results = made(failed=[("last", 3)])
    content = json.loads(json.dumps(comparison_json(results), allow_nan=False))
    (task,) = content["tasks"]
    figures = {row["row"]: row["paper"] for row in task["rows"]}
    assert figures["fine-tuning"] == 0.964 and figures["embeddings"] == 0.91
    assert figures["3,4"] is figures["random-last"] is None
    assert content["failed"] == {"conll2003, last, seed 3": "f1 0.0000"}
    counts = {row["row"]: (len(row["measures"]), len(row["degenerate"])) for row in task["rows"]}
    assert counts.pop("last") == (3, 1) and {*counts.values()} == {(4, 0)}
    rows, orders, failures = comparison_tables(results)
    cells = dict(rows.rows)
    assert cells["fine-tuning"].endswith("(96.4)") and "(" not in cells["random-fine-tuning"]
    assert cells["most common answer"] == "0.0"
    assert len(orders.rows) == len(content["orderings"]) and failures.rows == [*results.failed.items()]


def test_more_tasks_than_rows_are_the_lines_of_the_table():
    few = made(("fine-tuning", "last"))
    many = {name: few.measures["conll2003"] for name in "abcd"}
    values = {row: dict.fromkeys(many, measures["conll2003"]) for row, measures in few.values.items()}
    stuck = {row: dict.fromkeys(many, ()) for row in values}
    changes = {"values": values, "stuck": stuck, "baselines": dict.fromkeys(many, 0.05)}
    table = comparison_tables(replace(few, measures=many, pairs=[], **changes))[0]
    assert table.columns == ("task", "fine-tuning", "last", "most common answer")
    assert [row[0] for row in table.rows] == ["a, f1", "b, f1", "c, f1", "d, f1"]
    assert table.rows[0][-1] == "5.0"


def test_one_restart_resolves_nothing():
    content = comparison_json(made(restarts=1))
    assert {one["verdict"] for one in content["orderings"]} == {"one seed"}
    assert {one["error"] for one in content["orderings"]} == {None}
    assert content["error_covers"] == "one seed: no error is known"
    tables = comparison_tables(made(restarts=1))
    assert "one seed: no error is known" in tables[0].title
    assert "nan" not in str(tables) and "±" not in str(tables)


def test_a_plot_begins_at_zero_and_has_the_most_common_answer(tmp_path, monkeypatch):
    """Between 92.4 and 92.6 an axis of these two alone would show a gulf."""
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *given, **how: drawn.append(self))
    rows = {"fine-tuning": [Dot(0.926)], "last": [Dot(0.924, degenerate=True)]}
    draw(
        {"sst2": rows, "cola": {"last": [Dot(-0.1)]}},
        tmp_path / "x.png",
        baselines={"sst2": 0.51, "cola": 0.0},
    )
    first, second = drawn[0].axes
    assert first.get_xlim()[0] <= 0 and first.get_xlim()[1] >= 100 and second.get_xlim()[0] < -10
    dots = {(line.get_marker(), round(float(line.get_xdata()[0]), 1)) for line in first.lines[:2]}
    assert dots == {("o", 92.6), ("x", 92.4)} and [*first.lines[2].get_xdata()] == [51.0, 51.0]


def test_figures_come_from_dev_before_test():
    assert figure_of("conll2003", "f1") == 96.4  # 92.4 on test
    assert figure_of("sst2", "accuracy") == 93.5
    assert figure_of("sst2", "accuracy", features="last") is None
    assert figure_of("wnli", "accuracy") is None


# -----------------------------------------------------------------------------------------------------------
# Runs


def test_equal_seeds_draw_equal_examples_after_any_training():
    def drawn():
        return [int(i) for i in take_examples(tf.data.Dataset.range(1000), count=20, seed=5)]

    keras.utils.set_random_seed(5)
    first = drawn()
    keras.utils.set_random_seed(6)
    numbers = tf.random.uniform([3]).numpy().tolist()
    keras.utils.set_random_seed(6)
    assert drawn() == first
    assert tf.random.uniform([3]).numpy().tolist() == numbers  # the global seed is as before


SETTINGS = {"epochs": 1, "batch_size": 8, "seq_length": 24, "lstm_layers": 0, "seed": 3, "max_examples": 24}
SMALL = {"restarts": 2, "settings": SETTINGS, "task_options": {"context": "sentence"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A checkpoint of four blocks, sentences whose words say their tags, and SST-2."""
    folder = tmp_path_factory.mktemp("approaches")
    runs.write_checkpoint(
        folder / "checkpoint", num_layers=4, hidden_size=16, num_heads=2, intermediate_size=32
    )
    (folder / "conll").mkdir()
    for seed, name in enumerate(("train.txt", "valid.txt")):
        lines = ["-DOCSTART- -X- -X- O", ""]
        for text in runs.texts(60, seed=seed):
            lines += [f"{word} X X {'I-PER' if word in ('actor', 'plot') else 'O'}" for word in text.split()]
            lines.append("")
        (folder / "conll" / name).write_text("\n".join(lines))
    runs.write_data(folder / "sst2", "sst2", count=48)
    return folder


def run(place, output, name="layers", **settings):
    """The results, and the lines of the log."""
    lines: list[str] = []
    data = settings.pop("data", {"conll2003": place / "conll"})
    results = run_approaches(
        name, checkpoint=place / "checkpoint", data=data, output=output, log=lines.append, **SMALL | settings
    )
    return results, lines


def run_sst2(place, output, **settings):
    """As `run`, on a task whose graphs are traced in less time."""
    given = {"tasks": ["sst2"], "data": {"sst2": place / "sst2"}, "task_options": {}} | settings
    return run(place, output, **given)


@pytest.mark.long
def test_rows_share_examples_and_one_pass_of_the_encoder_and_are_run_once(place, tmp_path, monkeypatch):
    computed, extract = [], Extractor.__call__

    def count(self, raw):
        computed.append((self.places, len(raw)))
        return extract(self, raw)

    monkeypatch.setattr(Extractor, "__call__", count)
    rows = ("fine-tuning", "last", "0,2")
    results, lines = run_sst2(place, tmp_path / "out", rows=rows)
    assert {places for places, _ in computed} == {(0, 2, 4)}
    cells = [line for line in lines if line.endswith("of 6)")]
    assert cells[:4] == [
        *(f"sst2: {row}, seed 3 (run {i} of 6)" for i, row in enumerate(rows, start=1)),
        "sst2: fine-tuning, seed 4 (run 4 of 6)",
    ]
    folders = [tmp_path / "out" / "sst2" / f"{row}_seed-{seed}" for row in ("last", "0-2") for seed in (3, 4)]
    assert all(folder.is_dir() for folder in folders) and not (tmp_path / "out" / "vectors").exists()
    digests = {
        json.loads((folder / "checkpoints" / "settings.json").read_text())["data_seed"] for folder in folders
    }
    assert digests == {3}
    for row, rate in (("fine-tuning", 5e-5), ("last", 1e-3)):
        used = runs.results(tmp_path / "out" / "sst2" / f"{row}_seed-4")["hparams"]
        assert (used["learning_rate"], used["seed"]) == (rate, 4)
    content = runs.results(tmp_path / "out")
    expected = formats.stamp(formats.STUDY) | json.loads(json.dumps(comparison_json(results)))
    assert runs.without_times(content) == runs.without_times(expected)
    for row in content["tasks"][0]["rows"]:
        assert row["measures"] == [
            100 * runs.results(folder)["measures"]["val_accuracy"]
            for folder in sorted((tmp_path / "out" / "sst2").glob(f"{row['row'].replace(',', '-')}_*"))
            if runs.results(folder)["degenerate"] is None
        ]
    assert (tmp_path / "out" / "results.png").stat().st_size > 1000

    computed.clear()
    with runs.no_training():
        again, lines = run_sst2(place, tmp_path / "out", rows=rows)
    assert comparison_json(again) == comparison_json(results) and not computed
    assert sum(line.endswith("is finished already") for line in lines) == 6
    with runs.no_training(), pytest.raises(runs.Begun):  # a wider call begins with what is new
        run_sst2(place, tmp_path / "out", rows=(*rows, "random-last"))
    with pytest.raises(BertKerasError, match="holds another run"):
        run_sst2(place, tmp_path / "out", name="approaches")
    with pytest.raises(BertKerasError, match="made with another epochs"):
        run_sst2(place, tmp_path / "out", rows=rows, settings=SETTINGS | {"epochs": 2})


@pytest.mark.slow
def test_vectors_of_more_layers_train_the_same_model(place, tmp_path):
    """Beside other rows, a row reads a cache of more layers than its own."""
    files = []
    for name, rows in (("together", ("last", "0,2")), ("alone", ("0,2",))):
        run_sst2(place, tmp_path / name, rows=rows, restarts=1)
        files.append(runs.results(tmp_path / name / "sst2" / "0-2_seed-3")["files"])
    assert files[0] == files[1]


@pytest.mark.slow
def test_the_command_takes_several_tasks(place, tmp_path, capfd):
    arguments = ["approaches", "--checkpoint", place / "checkpoint", "--output", tmp_path / "out"]
    arguments += ["--data", f"conll2003={place / 'conll'}", f"sst2={place / 'sst2'}", "--restarts", 1]
    for name, value in SETTINGS.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    rows = ["--rows", "last", "--context", "sentence", "--pooling", "concat"]
    code, out, err = runs.run_command(capfd, "ablate", *arguments, *rows)
    assert code == 0, err
    content = runs.results(tmp_path / "out")
    assert [(task["task"], task["measure"]) for task in content["tasks"]] == [
        ("conll2003", "f1"),
        ("sst2", "accuracy"),
    ]
    counts = [len(row["measures"] + row["degenerate"]) for task in content["tasks"] for row in task["rows"]]
    assert counts == [1, 1]
    assert "most common answer" in " ".join(out.split())
    tagger, classifier = (
        load_run(tmp_path / "out" / task / "last_seed-3").task for task in ("conll2003", "sst2")
    )
    assert tagger.context == "sentence" and classifier.pooling == "concat"


def test_only_fine_tuning_computes_its_blocks_again(place, tmp_path):
    settings = SETTINGS | {"rematerialize": True}
    with runs.no_training(), pytest.raises(runs.Begun):
        run_sst2(place, tmp_path / "out", rows=("fine-tuning", "last"), settings=settings)
    folder = tmp_path / "out" / "sst2" / "fine-tuning_seed-3"
    assert json.loads((folder / "checkpoints" / "settings.json").read_text())["rematerialize"] is True


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"restarts": 1}, {"restarts", "seed", "runs"}),
        ({"rows": ("last", "0,2")}, {"rows", "feature_layers", "runs"}),
        ({"settings": SETTINGS | {"epochs": 2}}, {"epochs"}),
    ],
)
def test_workers_compare_their_rows_before_a_folder_is_made(place, tmp_path, monkeypatch, changes, named):
    start = functools.partial(run_sst2, place, tmp_path / "out", rows=("last",))
    assert runs.unlike(monkeypatch, start, changes) == named
    assert not (tmp_path / "out").exists()


def test_rows_of_one_context_may_draw_examples():
    given = {"max_examples": 8}
    made = chosen_approaches(("last", "sentence-last"), given, {}, context="sentence")
    assert [row.context for row in made] == [None, "sentence"]
    with pytest.raises(BertKerasError, match="max_examples"):
        chosen_approaches(("last", "sentence-last"), given, {}, context=None)


LAST, TUNED = {"rows": ("last",)}, {"rows": ("fine-tuning",)}
REFUSED = {
    "each once": {"rows": ("last", "last")},
    "layer 5 was asked for and the encoder has 4 blocks": {"rows": ("last", "5")},
    "restarts is 0; restarts must be a whole number of at least 1": {"restarts": 0},
    "--pooling does not apply to conll2003": {"task_options": {"pooling": "concat"}},
    "data was given for conll2003": {"tasks": ["sst2"]},
    "no task named 'conll2004'": {"tasks": ["conll2004"], "data": {}},
    "max_examples counts documents": {"rows": ("last", "document-last")},
    "--seq-length would not fit document-last": {
        "rows": ("last", "document-last"),
        "settings": {"seq_length": 24},
    },
    "unknown name 'tables'; give one of layers, approaches": {"name": "tables"},
    "next-sentence": LAST | {"tasks": ["conll2003", "next-sentence"]},
    "epochs is 0": {"settings": {"epochs": 0}},
    "seq_length is 600 and the encoder has": LAST | {"settings": {"seq_length": 600}},
    "feature_epochs is 0": {"feature_epochs": 0},
    "no row of last reads --learning-rate; .* fine-tuning": LAST | {"settings": {"learning_rate": 5e-4}},
    "no row of last, 9 reads --rematerialize; ": {"rows": ("last", "9"), "settings": {"rematerialize": True}},
    "no row of last reads --epochs; ": LAST | {"settings": {"epochs": 2}, "feature_epochs": 9},
    "no row of fine-tuning reads --lstm-units, --feature-epochs; .* a row with layers, such as last": TUNED
    | {"settings": {"lstm_units": 0}, "feature_epochs": 9},
    "no row of fine-tuning reads --feature-learning-rate; ": TUNED
    | {"settings": {}, "feature_learning_rate": 1e-3},
    "feature_layers does not apply to an ablation, .* leave it out": TUNED
    | {"settings": {"feature_layers": "last"}},
    "freeze, lora_rank does not apply to an ablation": {"settings": {"freeze": "encoder", "lora_rank": 4}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_cannot_be_run_are_refused_before_any_run(message, place, tmp_path):
    with runs.refused(message, output=tmp_path / "out"):
        run(place, tmp_path / "out", **REFUSED[message])
