"""The ablations: rows that are the paper's, one pass through a small one, and orderings that its figures decide."""

import dataclasses
import functools
import json
import types

import pytest
from own_relations import Lengths
from runs import VOCABULARY, Begun, no_training, refused, results, texts, unlike, write_data

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.tasks.commands.early import texts_by_name
from bert_keras.tasks.finetuning.examples import check_fits
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.recipes import RECIPES, Recipe
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.study import ablations, grid
from bert_keras.tasks.study.ablations import compared, plan_ablation, run_ablation
from bert_keras.tasks.study.chosen_rows import recipe_of, recipes_of
from bert_keras.tasks.study.comparison import UNIGRAMS, comparison_json, comparison_tables
from bert_keras.tasks.study.grid import Outcome
from bert_keras.tasks.study.report import COMMONEST
from bert_keras.tasks.study.rows import ABLATIONS, CONTROL, SCALES, Row, Scale
from bert_keras.text.wordpiece import WordPiece

pytestmark = pytest.mark.long

TINY = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 64,
    "seq_length": 32,
    "batch_size": 8,
    "steps": 4,
    "log_every": 2,
    "eval_every": 2,
    "held_out_instances": 16,
    "learning_rate": 1e-3,
}
ROWS = (
    Row(name="masked LM"),
    Row(name="half", weights="masked LM", share=0.5),
    Row(name="with BiLSTM", weights="masked LM", finetuned={"bilstm": True}),
)


@pytest.fixture
def small(monkeypatch):
    """A scale of three rows on one task, of which one shares weights and one is a snapshot."""
    scale = Scale(
        pretraining=TINY,
        finetuning={"seq_length": 32, "epochs": 1, "batch_size": 16},
        restarts=1,
        rows={"steps": ROWS},
        tasks={"steps": ("sst2",)},
    )
    monkeypatch.setitem(SCALES, "tiny", scale)
    monkeypatch.setitem(ABLATIONS, "steps", ABLATIONS["steps"]._replace(pairs=((0, 1), (0, 2))))


def arguments(tmp_path):
    return {
        "documents": [texts(6, seed=seed) for seed in range(40)],
        "tokenizer": WordPiece(VOCABULARY, lower_case=True),
        "data": {"sst2": tmp_path / "data"},
        "output": tmp_path / "out",
        "scale": "tiny",
        "verbose": 0,
    }


def test_rows_are_run_once_and_share_weights(tmp_path, small, monkeypatch):
    write_data(tmp_path / "data", "sst2")
    lines: list[str] = []
    found = run_ablation("steps", **arguments(tmp_path), log=lines.append)
    names = [*(row.name for row in ROWS), CONTROL]
    begun = [line for line in lines if line.startswith(tuple(names))]
    assert begun == [
        "masked LM: pre-training (run 1 of 5)",
        *(f"{name}: sst2, seed 1 (run {i} of 5)" for i, name in enumerate(names, start=2)),
    ]
    assert [*found.values] == names
    ((objective, perplexities),) = found.perplexities.items()
    assert objective == "masked LM, 15%, 80/10/10" and {*perplexities} == {*names[:-1], COMMONEST}
    first, half, last = (perplexities[name] for name in names[:-1])
    trained = results(tmp_path / "out" / "masked-lm" / "pretraining")
    assert perplexities[COMMONEST] == trained["majority_baselines"]["masked_lm_perplexity"] > 1
    assert first == last > 1 and half is None
    for values in found.values.values():
        assert all(0 < value <= 1 for value in values["sst2"])
    assert 0.4 < found.baselines["sst2"] < 1
    assert lines.count("weights: random") == 1  # of the control
    bilstm = checkpoints.read(tmp_path / "out" / "with-bilstm" / "sst2-1")
    assert bilstm.config.bilstm and any(name.startswith("bilstm/") for name in bilstm.tensors)
    assert (tmp_path / "out" / "results.png").stat().st_size > 1000

    lines.clear()
    with no_training():
        assert run_ablation("steps", **arguments(tmp_path), log=lines.append) == found
    assert sum(line.endswith("is finished already") for line in lines) == 5
    with no_training():  # fewer rows are read; more seeds, and then fewer again, train only what is new
        assert [*run_ablation("steps", **arguments(tmp_path), rows=["half"]).values] == ["half"]
        with pytest.raises(Begun):
            run_ablation("steps", **arguments(tmp_path), restarts=2)
        assert run_ablation("steps", **arguments(tmp_path)) == found
    with pytest.raises(ValueError, match="made with another text"):
        more = [*arguments(tmp_path)["documents"], texts(6, seed=99)]
        run_ablation("steps", **arguments(tmp_path) | {"documents": more})
    other = {"data": {"sst2": write_data(tmp_path / "other", "sst2", count=8)}}
    with pytest.raises(ValueError, match="made with another data"):
        run_ablation("steps", **arguments(tmp_path) | other)
    changed = SCALES["tiny"].pretraining | {"learning_rate": 0.1}
    monkeypatch.setitem(SCALES, "tiny", dataclasses.replace(SCALES["tiny"], pretraining=changed))
    with pytest.raises(ValueError, match="made with another recipe of masked LM"):
        run_ablation("steps", **arguments(tmp_path))


def test_workers_compare_their_ablations_before_a_folder_is_made(tmp_path, small, monkeypatch):
    write_data(tmp_path / "data", "sst2")
    start = functools.partial(run_ablation, "steps", **arguments(tmp_path))
    assert unlike(monkeypatch, start, {"restarts": 2}) == {"runs"}
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_row_of_a_users_own_has_its_own_pretraining(tmp_path, small):
    """And a run of other settings in the place of its pre-training is refused."""
    write_data(tmp_path / "data", "sst2")
    given = arguments(tmp_path) | {"rows": ["own_relations:ROW"]}
    found = run_ablation("steps", **given, log=lambda line: None)
    assert [*found.values] == ["lengths"] and found.restarts == 1
    tensors = checkpoints.read(tmp_path / "out" / "lengths" / "pretraining").tensors
    assert tensors["length/kernel"].shape == (32, 2)
    (file,) = (tmp_path / "out" / "lengths" / "pretraining").rglob("settings.json")
    file.write_text(file.read_text().replace('"long": 10', '"long": 11'))
    with (
        no_training(),
        pytest.raises(ValueError, match="lengths/pretraining was made with another long: 11, not 10"),
    ):
        run_ablation("steps", **given)


@pytest.mark.slow
def test_the_measure_is_that_of_the_papers_figures(tmp_path, monkeypatch):
    """Tables 5 and 6 give the accuracy of MRPC, whose main measure in GLUE is F1."""
    tiny = Scale(
        pretraining=TINY,
        finetuning={"seq_length": 32, "epochs": 1},
        restarts=1,
        rows={"tasks": SCALES["small"].rows["tasks"]},
        tasks={"tasks": ("mrpc", "sst2")},
    )
    monkeypatch.setitem(SCALES, "tiny", tiny)
    ended = functools.partial(Outcome, degenerate=None, measures={"f1": 0.81, "accuracy": 0.68})
    monkeypatch.setattr(
        grid,
        "run_cells",
        lambda cells, **_: [
            ended(name=one.name, task=one.task, place=one.place, path=one.path) for one in cells
        ],
    )
    data = {task: write_data(tmp_path / task, task) for task in ("mrpc", "sst2")}
    found = run_ablation("tasks", **arguments(tmp_path) | {"data": data})
    assert {value for row in found.values.values() for values in row.values() for value in values} == {0.68}
    columns = comparison_tables(found)[0].columns
    assert columns[1:3] == (
        "held-out perplexity, masked LM, 15%, 80/10/10",
        "held-out perplexity, left to right",
    )
    assert columns[3:] == ("mrpc, accuracy", "sst2, accuracy")


def test_a_batch_that_replicas_do_not_divide(tmp_path, small, monkeypatch):
    """Refused for all rows before the first is pre-trained."""
    write_data(tmp_path / "data", "sst2")
    three = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr("bert_keras.tasks.study.ablations.strategy", lambda name: three)
    with pytest.raises(ValueError, match=r"batch_size is \d+ and there are 3 replicas; give a multiple of 3"):
        run_ablation("steps", **arguments(tmp_path))
    assert not (tmp_path / "out").exists()


def recipes(name, scale, changes=None):
    """The recipes of the rows of an ablation."""
    return [recipe_of(row, SCALES[scale], changes or {}) for row in SCALES[scale].rows[name]]


def test_settings_of_masks_are_for_the_rows_with_masks():
    left_to_right, masked = (Row(name="a", recipe=name) for name in ("ltr-no-nsp", "bert-no-nsp"))
    changes = {"share": 0.3, "steps": 5}
    for row, share in ((left_to_right, 0.15), (masked, 0.3)):
        recipe = recipe_of(row, SCALES["small"], changes)
        assert recipe.masking(64).share == share and recipe.hparams.steps == 5


BAD = {
    "there is no .*missing": {"data": {"sst2": "missing"}},
    "'huge'; give one of small, paper": {"scale": "huge"},
    "'table'; give one of tasks, size, masking": {"name": "table"},
    "no setting stepps": {"changes": {"stepps": 3}},
    "no task named 'sst3'": {"tasks": ["sst3"], "data": {}},
    "restarts is 0; restarts must be a whole number of at least 1, or None": {"restarts": 0},
    "the tasks are sst2, sst2; give at least one, each once": {"tasks": ["sst2", "sst2"]},
    "data was given for sst2, and the tasks are rte; name it in tasks, or leave it out": {"tasks": ["rte"]},
    "data was given for sst2-features, and the tasks are sst2, mprc; name it": {
        "data": dict.fromkeys(("sst2", "mprc", "sst2-features"), "x")
    },
    "held_out is 0.001, which leaves 0 documents to evaluate on, and these rows need 2": {"held_out": 0.001},
    "held_out is 0.999, which leaves . documents to train on, and these rows need 2": {"held_out": 0.999},
    "held_out is 1; held_out must be": {"held_out": 1},
    "no pre-training of this ablation reads generator_share": {"changes": {"generator_share": 0.5}},
    "concat_last_four needs 4 blocks and the encoder has 1": {"tasks": ["sst2-features"]},
    "seq_length is 32 and the encoder has 16 positions": {"changes": {"max_positions": 16, "seq_length": 16}},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_before_any_pretraining(message, tmp_path, small):
    write_data(tmp_path / "data", "sst2")
    with refused(message, output=tmp_path / "out"):
        run_ablation(**{"name": "steps", **arguments(tmp_path), **BAD[message]})


def test_a_folder_of_something_else_is_refused(tmp_path, small):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="neither empty nor an ablation"):
        run_ablation("steps", **arguments(tmp_path))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ABLATIONS)
def test_every_row_is_a_recipe_and_has_its_figures(name, scale):
    rows, ablation = SCALES[scale].rows[name], ABLATIONS[name]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        recipe = recipe_of(row, SCALES[scale], {})
        assert recipe.hparams.steps > 0 and row.recipe in RECIPES
        assert row.weights is None or row.weights in [one.name for one in rows]
    for task, figures in ablation.figures.items():
        assert len(figures) == len(rows), task
    assert {place for pair in ablation.pairs for place in pair} <= set(range(len(rows)))


def test_a_setting_of_the_scale_is_left_out_where_the_sampler_has_none():
    row = Row(name="own", recipe="bert-no-nsp", settings={"sampler": "full_sentences"})
    assert SCALES["small"].pretraining["strict"]
    assert not recipes_of([row], SCALES["small"], {})["own"].sampling().strict


def test_settings_reach_the_pre_training():
    rates = [one.masking(64) for one in recipes("masking", "small")]
    assert [(one.hide, one.keep, one.replace) for one in rates[:3]] == [
        (0.8, 0.1, 0.1),
        (1, 0, 0),
        (0.8, 0, 0.2),
    ]
    phases = ((32, 0.5), (64, 0.5))
    assert recipes("masking", "small", {"phases": phases})[0].hparams.phases == phases
    last, largest = (one.config(vocab_size=9) for one in recipes("size", "paper")[-2:])
    assert (last.num_layers, last.hidden_size, last.num_heads) == (12, 1024, 16)
    assert (largest.num_layers, largest.hidden_size, largest.num_heads) == (24, 1024, 16)


@pytest.mark.parametrize(("scale", "layers"), [("small", 4), ("paper", 24)])
def test_the_rows_of_the_masking_rate_mask_so_much(scale, layers):
    found = recipes("masking-rate", scale)
    assert [row.name for row in SCALES[scale].rows["masking-rate"]] == [
        f"{rate} %" for rate in (5, 10, 15, 20, 30, 40, 80)
    ]
    assert [one.masking(64).share for one in found] == [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.8]
    # Enough predictions for the rate, in place of the 20 of 128 that 15 % needs.
    assert [one.masking(100).max_predictions for one in found] == [5, 10, 15, 20, 30, 40, 80]
    assert {one.config(vocab_size=100).num_layers for one in found} == {layers}


def test_the_rows_of_the_input_format_are_robertas():
    samplers = ("next_sentence", "sentence_pair", "full_sentences", "contiguous")
    for scale in ("small", "paper"):
        found = recipes("input-format", scale)
        assert tuple(one.sampling(128).sampler for one in found) == samplers
        assert ["sentence_pair" in one.objectives for one in found] == [True, True, False, False]
    assert [one.hparams.batch_size for one in found] == [256, 2048, 256, 256]
    assert {one.hparams.phases for one in found} == {((512, 1.0),)}


def compare(name, tasks, rows, *, stuck=(), table=None):
    """The comparison of rows, by name, with the same percentages on each task. stuck: row and seed of degenerate runs."""
    opened = {task: types.SimpleNamespace(kind="glue", measure="accuracy") for task in tasks}
    outcomes = [
        Outcome(
            name=row,
            task=task,
            place={"row": row, "seed": seed},
            path=None,
            degenerate="one class" if (row, seed) in stuck else None,
            measures={} if value is None else {"accuracy": value / 100},
        )
        for task in tasks
        for row, values in rows.items()
        for seed, value in enumerate(values)
    ]
    about = {"baselines": dict.fromkeys(tasks, 0.5), "perplexities": {}, "covers": "one pre-training"}
    return compared(name, table or [*rows], opened, outcomes, **about)


LARGER = {str(i): (60 + i, 60.1 + i) for i in range(6)}
ORDERINGS = {
    "a rate without figures": (
        "masking-rate",
        {f"{rate} %": (i, i + 0.1) for i, rate in enumerate((5, 10, 15, 20, 30, 40, 80))},
        {"mrpc": ["40 % > 15 %: holds", "15 % > 80 %: fails"]},
    ),
    # SQuAD 1.1 has 90.4, 88.7, 90.4 and 90.6, SST-2 92.9, 92.1, 92.5 and 92.7.
    "RoBERTa's table 2": (
        "input-format",
        dict.fromkeys("abcd", (80, 80.1)),
        {
            "squad1.1": ["a > b: not resolved", "d > c: not resolved"],
            "sst2": ["a > b: not resolved", "a > c: not resolved", "d > c: not resolved"],
        },
    ),
    # MRPC has 86.7, 86.5, 77.5, 75.7: each row over the next.
    "table 5": (
        "tasks",
        {"a": (80, 82), "b": (81, 81), "c": (90, 90.1), "d": (60, 60.1)},
        {"mrpc": ["a > b: not resolved", "b > c: fails", "c > d: holds"]},
    ),
    "two equal figures of table 5": (
        "tasks",
        dict.fromkeys("abcd", (80, 81)),
        {"mnli": ["a > b: not resolved", "b > c: not resolved"]},
    ),
    "table 6": ("size", LARGER, {"mrpc": [f"{i + 1} > {i}: holds" for i in range(5)]}),
}


@pytest.mark.parametrize(("name", "rows", "orderings"), ORDERINGS.values(), ids=ORDERINGS)
def test_orderings_are_those_of_the_papers_figures(name, rows, orderings):
    content = comparison_json(compare(name, orderings, rows))
    found = {task: [] for task in orderings}
    for one in content["orderings"]:
        found[one["task"]].append(f"{one['better']} > {one['worse']}: {one['verdict']}")
    assert found == orderings


def test_the_error_of_several_pretrainings_is_that_of_their_means():
    """Two seeds of one pre-training are no independent runs of a row."""
    outcomes = [
        Outcome(
            name="",
            task="sst2",
            place={"row": row, "seed": seed, **({"pretraining": number} if row != CONTROL else {})},
            path=None,
            degenerate="one class" if (row, number, seed) == ("a", 2, 2) else None,
            measures={"accuracy": mean + number / 10 + seed / 100},
        )
        for row, mean, numbers in (("a", 0.5, (1, 2)), ("b", 0.4, (1, 2)), (CONTROL, 0.3, (1,)))
        for number in numbers
        for seed in (1, 2)
    ]
    opened = {"sst2": types.SimpleNamespace(kind="glue", measure="accuracy")}
    objectives = {"masked LM, 15%, 80/10/10": {"a": 9.0, COMMONEST: 30.0}, "left to right": {"b": None}}
    about = {"baselines": {"sst2": 0.5}, "perplexities": objectives, "covers": "two pre-trainings"}
    found = compared("tasks", ["a", "b", "c", "d"], opened, outcomes, **about)
    assert found.repeated["a"]["sst2"] == pytest.approx([0.615, 0.71])  # the second has one run that learned
    assert [*found.failed] == ["sst2, a, pre-training 2, seed 2"]
    first, orders, _ = comparison_tables(found)
    assert "two pre-trainings" in first.title
    masked = f"held-out perplexity, masked LM, 15%, 80/10/10{UNIGRAMS}"
    assert first.columns == ("row", masked, "sst2, accuracy")  # no row has a perplexity of "left to right"
    assert first.rows[0] == ("a", "9.0", "66.2 ± 6.7, 1 of 4 failed, all 66.5 (92.7)")
    assert first.rows[1][1] == "-"
    assert first.rows[-1] == (COMMONEST, "30.0", "50.0")
    assert [row[1] for row in orders.rows] == ["a over b", f"a over {CONTROL}", f"b over {CONTROL}"]
    content = json.loads(json.dumps(comparison_json(found), allow_nan=False))
    assert content["tasks"][0]["rows"][0]["pretrainings"] == pytest.approx([0.615, 0.71])
    assert content["error_covers"] == "two pre-trainings" and content["tasks"][0]["most_common_answer"] == 0.5


def test_chosen_rows_and_a_dry_run(tmp_path, small):
    """The row "half" needs the pre-training of "masked LM", which is not a row of its own here."""
    from bert_keras.tasks.study.dry_run import dry_run

    write_data(tmp_path / "data", "sst2")
    chosen = {"rows": [CONTROL, "half"], "pretrainings": 2, "restarts": 3, "changes": {"seed": 7}}
    given = {"finetuning": {"max_examples": 24, "max_dev_examples": 10}}
    with no_training():
        study = ablations.plan_ablation("steps", **arguments(tmp_path) | chosen | given)
        (table,) = dry_run(study.cells)
    assert not (tmp_path / "out").exists()
    assert [row[:4] for row in table.rows] == [
        ("masked LM: pre-training", 2, 0, "4"),
        ("half: sst2", 6, 0, "2"),  # 24 examples in batches of 16
        ("random weights: sst2", 3, 0, "2"),
        ("all", 11, 0, "26"),
    ]
    assert [cell.place["seed"] for cell in study.cells[-3:]] == [7, 8, 9]
    assert all(" s" in row[-1] or "min" in row[-1] for row in table.rows)
    with refused(
        r"unknown row 'whole'; give some of masked LM; half; with BiLSTM; random weights, a recipe \(bert, ",
        output=tmp_path / "out",
    ):
        run_ablation("steps", **arguments(tmp_path), rows=["whole"])


def test_recipes_are_rows_with_pre_trainings_of_their_own(tmp_path, small):
    write_data(tmp_path / "data", "sst2")
    given = {
        "rows": ["masked LM", "bert-no-nsp", "own_relations:LENGTHS"],
        "finetuning": {"max_examples": 24},
    }
    study = ablations.plan_ablation("steps", **arguments(tmp_path) | given)
    names = ["masked LM", "bert-no-nsp", "own_relations:LENGTHS"]
    assert [cell.name for cell in study.cells if not cell.task] == [f"{name}: pre-training" for name in names]
    assert [cell.place["row"] for cell in study.cells if cell.task] == names


def test_a_row_of_ones_own_is_compared_with_the_first_row_and_with_random_weights():
    rows = {"BERT": [60, 61, 62], CONTROL: [50, 51, 52], "own:RECIPE": [70, 71, 72]}
    found = compare("tasks", ["sst2"], rows, table=["BERT", "no NSP", "LTR", "BiLSTM"])
    orders = [(one.better, one.worse, one.found.verdict) for one in found.orderings()]
    assert orders == [
        ("own:RECIPE", "BERT", "holds"), ("BERT", CONTROL, "holds"), ("own:RECIPE", CONTROL, "holds")
    ]  # fmt: skip


def test_a_perplexity_after_changes_of_tokens_has_a_column_of_its_own():
    recipes = [
        Recipe(objectives=names, settings={})
        for names in (("masked_lm", Lengths), ("masked_lm",), (Lengths, "masked_lm"))
    ]
    assert [*map(ablations._objective, recipes)] == [
        *["masked LM, 15%, 80/10/10"] * 2,
        "masked LM after own_relations:Lengths, 15%, 80/10/10",
    ]


def test_the_report_has_the_figures_of_the_paper():
    found = compare("size", ["mrpc"], LARGER)
    (task,) = comparison_json(found)["tasks"]
    assert (task["task"], task["measure"]) == ("mrpc", "accuracy")
    assert [row["paper"] for row in task["rows"]] == [0.798, 0.822, 0.848, 0.867, 0.869, 0.878]
    table, _ = comparison_tables(found)
    assert table.columns == ("row", "mrpc, accuracy")
    assert table.rows[0] == ("0", "60.1 ± 0.1 (79.8)") and table.rows[-1] == ("most common answer", "50.0")


STUCK = {
    "two of three": (
        (80, 51.7, 51.7),
        (1, 2),
        "80.0, 2 of 3 failed, all 61.1 (86.7)",
        [0.517, 0.517],
        "one seed",
        0.2,
    ),
    "all": (
        (51.7, 51.7),
        (0, 1),
        "-, 2 of 2 failed, all 51.7 (86.7)",
        [0.517, 0.517],
        "a row did not learn",
        None,
    ),
    "a diverged one": ((80, None), (1,), "80.0, 1 of 2 failed (86.7)", [None], "one seed", 0.2),
    "no measure": ((80, None), (), "80.0, 1 of 2 failed (86.7)", [None], "one seed", 0.2),
}


@pytest.mark.parametrize("name", STUCK)
def test_degenerate_runs_have_no_part_in_means_and_orderings(name):
    """Their equal measures would look like a mean without any spread."""
    values, seeds, cell, degenerate, verdict, difference = STUCK[name]
    rows = {"a": values, "b": (60, 60.0), "c": (50, 50), "d": (40, 40)}
    found = compare("tasks", ["mrpc"], rows, stuck=[("a", seed) for seed in seeds])
    content = json.loads(json.dumps(comparison_json(found), allow_nan=False))
    first, ordered = content["tasks"][0]["rows"][0], content["orderings"][0]
    assert first["degenerate"] == pytest.approx(degenerate)
    assert first["measures"] == pytest.approx([0.8] * (len(values) - len(degenerate)))
    assert (ordered["verdict"], ordered["error"]) == (verdict, None)
    assert ordered["difference"] == (None if difference is None else pytest.approx(difference))
    table, orders, failures = comparison_tables(found)
    assert table.rows[0][-1] == cell
    assert orders.rows[0][2:] == ("-" if difference is None else "+20.0", "-", verdict)
    assert len(failures.rows) == len(degenerate) and failures.title.startswith(
        f"{len(degenerate)} runs failed"
    )


@pytest.mark.parametrize("name", ["squad1.1", "squad2.0"])
def test_squad_fits_into_the_small_scale(name, data_dir):
    scale = SCALES["small"]
    file = str(data_dir / "squad" / "xquad.en.json")
    task = QuestionAnswering.open(name, {"train": file, "validation": file}, **scale.options[name])
    hparams = Hparams(**{**task.defaults, **scale.finetuning})
    config = RECIPES["bert"].changed(**scale.pretraining).config(vocab_size=len(VOCABULARY))
    check_fits(task, config, WordPiece(VOCABULARY, lower_case=True), hparams)


@pytest.fixture
def own_rows(tmp_path, small, monkeypatch):
    """The arguments of an ablation whose rows have a vocabulary, a text, tasks and settings of their own."""
    rows = (
        Row(name="masked LM"),
        Row(
            name="from the left",
            recipe="ltr-no-nsp",
            vocabulary="cased",
            text="other",
            training={"feature_layers": "last", "lstm_units": 8, "epochs": 2},
            tasks=("sst2",),
        ),
        Row(name="no form", weights="from the left", tasks=()),
        Row(name="no text", text="absent"),
    )
    monkeypatch.setitem(SCALES, "tiny", dataclasses.replace(SCALES["tiny"], rows={"steps": rows}))
    write_data(tmp_path / "data", "sst2")
    given = arguments(tmp_path) | {"log": lambda line: None}
    given["documents"] = {None: given["documents"], "other": given["documents"][:30]}
    return given


CASED = WordPiece([*VOCABULARY, "more"], lower_case=False)


def with_cased(given):
    return plan_ablation("steps", **given | {"tokenizer": {None: given["tokenizer"], "cased": CASED}})


def test_a_row_has_its_own_vocabulary_and_text(own_rows):
    given = own_rows
    with refused("from the left reads the vocabulary cased.*--vocab cased=PATH", output=given["output"]):
        run_ablation("steps", **given)
    with refused("no text learns from the text absent.*--text absent=PATH", output=given["output"]):
        run_ablation("steps", **given, rows=["no text"])
    study = with_cased(given)
    read = {cell.path.parent.name: cell.fingerprint["text"] for cell in study.cells if not cell.task}
    assert len({*read.values()}) == 2 and [*read] == ["masked-lm", "from-the-left"]


@pytest.mark.slow
def test_a_row_has_its_own_training_and_tasks(own_rows, tmp_path):
    found = with_cased(own_rows).run()
    assert {
        row: len(values["sst2"]) + len(found.stuck[row]["sst2"]) for row, values in found.values.items()
    } == {"masked LM": 1, "from the left": 1, CONTROL: 1}
    settings = results(tmp_path / "out" / "from-the-left" / "sst2-1")["hparams"]
    assert (settings["feature_layers"], settings["epochs"]) == ("last", 2)
    tokenizer = checkpoints.load_tokenizer(tmp_path / "out" / "from-the-left" / "sst2-1")
    assert tokenizer.vocabulary == CASED.vocabulary and not tokenizer.lower_case
    assert any(title.endswith(", cased") for title in found.perplexities)


def test_a_text_of_a_name_that_rows_have_is_their_own():
    given = ["a.txt,lines=wrapped", "pairs=b.txt,lines=document", "c=d.txt", "pairs=e"]
    found = texts_by_name(given, {"pairs"})
    assert found == {None: ["a.txt,lines=wrapped", "c=d.txt"], "pairs": ["b.txt,lines=document", "e"]}


def test_a_pretraining_that_learned_nothing_is_refused(tmp_path, small, monkeypatch):
    monkeypatch.setitem(ABLATIONS, "steps", ABLATIONS["steps"]._replace(learned=True))
    write_data(tmp_path / "data", "sst2")
    with pytest.raises(BertKerasError, match="masked_lm does not beat unigrams"):
        run_ablation(
            "steps", **arguments(tmp_path) | {"changes": {"learning_rate": 1e-9}}, log=lambda line: None
        )
