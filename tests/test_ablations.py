"""The ablations: rows that are the paper's, one pass through a small one, and orderings that its figures decide."""

import dataclasses
import functools
import json
import types

import pytest
from runs import VOCABULARY, no_training, texts, write_data

from bert_keras import checkpoints
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.finetuning.examples import check_fits
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.problems.question_answering import Squad
from bert_keras.tasks.study import ablations
from bert_keras.tasks.study.ablation_definitions import (
    ABLATIONS,
    SCALES,
    Row,
    Scale,
)
from bert_keras.tasks.study.ablations import (
    Outcome,
    as_json,
    run_ablation,
    tables,
)
from bert_keras.tasks.study.cells import Outcome as CellOutcome
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
    outcomes = run_ablation("steps", **arguments(tmp_path), log=lines.append)
    begun = [line for line in lines if line.startswith(tuple(row.name for row in ROWS))]
    assert begun == [
        "masked LM: pre-training (run 1 of 4)",
        *(f"{row.name}: sst2, seed 1 (run {i} of 4)" for i, row in enumerate(ROWS, start=2)),
    ]
    assert [one.row for one in outcomes] == list(ROWS)
    assert outcomes[0].perplexity == outcomes[2].perplexity > 1
    assert outcomes[1].perplexity is None
    for one in outcomes:
        assert 1 < one.measures["sst2"][0] <= 100  # percent
    bilstm = checkpoints.read(tmp_path / "out" / "with-bilstm" / "sst2-1")
    assert bilstm.config.bilstm and any(name.startswith("bilstm/") for name in bilstm.tensors)
    assert (tmp_path / "out" / "results.png").stat().st_size > 1000

    lines.clear()
    with no_training():
        assert run_ablation("steps", **arguments(tmp_path), log=lines.append) == outcomes
    assert sum(line.endswith("is finished already") for line in lines) == 4
    with pytest.raises(ValueError, match="made with another restarts"):
        run_ablation("steps", **arguments(tmp_path), restarts=2)
    with pytest.raises(ValueError, match="made with another text"):
        run_ablation("steps", **arguments(tmp_path) | {"documents": [texts(6, seed=99)] * 40})
    other = {"data": {"sst2": write_data(tmp_path / "other", "sst2", count=8)}}
    with pytest.raises(ValueError, match="made with another data"):
        run_ablation("steps", **arguments(tmp_path) | other)
    changed = SCALES["tiny"].pretraining | {"learning_rate": 0.1}
    monkeypatch.setitem(SCALES, "tiny", dataclasses.replace(SCALES["tiny"], pretraining=changed))
    with pytest.raises(ValueError, match="made with another recipe of masked LM"):
        run_ablation("steps", **arguments(tmp_path))


def test_workers_compare_their_ablations_before_a_folder_is_made(tmp_path, small, monkeypatch):
    class Compared(Exception):
        pass

    def raised(self, facts, remedy):
        raise Compared(json.dumps(facts))

    write_data(tmp_path / "data", "sst2")
    monkeypatch.setattr(Workers, "check_same", raised)
    found = []
    for given in ({}, {"restarts": 2}):
        with pytest.raises(Compared) as error:
            run_ablation("steps", **arguments(tmp_path) | given)
        found.append(json.loads(str(error.value)))
    names = {name for name in found[0] if found[0][name] != found[1][name]}
    assert names == {"restarts", "seed", "hparams", "runs"}
    assert not (tmp_path / "out").exists()


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
    found = {"f1": 0.81, "accuracy": 0.68}
    ended = functools.partial(CellOutcome, degenerate=None, measures=found)
    monkeypatch.setattr(ablations, "run_cells", lambda cells, **_: [ended(cell=cell) for cell in cells])
    data = {task: write_data(tmp_path / task, task) for task in ("mrpc", "sst2")}
    outcomes = run_ablation("tasks", **arguments(tmp_path) | {"data": data})
    assert {value for one in outcomes for values in one.measures.values() for value in values} == {68}
    assert tables("tasks", outcomes)[0].columns[2:] == ("mrpc, accuracy", "sst2, accuracy")


def test_a_batch_that_replicas_do_not_divide(tmp_path, small, monkeypatch):
    """Refused for all rows before the first is pre-trained."""
    write_data(tmp_path / "data", "sst2")
    three = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr("bert_keras.tasks.study.ablations.strategy", lambda name: three)
    with pytest.raises(ValueError, match=r"batch_size is \d+ and there are 3 replicas; give a multiple of 3"):
        run_ablation("steps", **arguments(tmp_path))
    assert not (tmp_path / "out").exists()


def test_settings_of_masks_are_for_the_rows_with_masks():
    left_to_right, masked = (Row(name="a", recipe=name) for name in ("ltr-no-nsp", "bert-no-nsp"))
    changes = {"share": 0.3, "steps": 5}
    for row, share in ((left_to_right, 0.15), (masked, 0.3)):
        recipe = ablations._recipe(row, SCALES["small"], changes)
        assert recipe.masking(64).share == share and recipe.hparams.steps == 5


def test_bad_input_is_named_first(tmp_path, small):
    given = arguments(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no .*data"):
        run_ablation("steps", **given)
    write_data(tmp_path / "data", "sst2")
    for changes, wanted in (
        ({"scale": "huge"}, "'huge'; give one of small, paper"),
        ({"changes": {"stepps": 3}}, "no setting stepps"),
        ({"tasks": ["sst3"], "data": {}}, "no task named 'sst3'"),
        ({"restarts": 0}, "restarts is 0; give at least 1"),
        ({"tasks": ["sst2", "sst2"]}, "the tasks are sst2, sst2; give at least one, each once"),
        (
            {"tasks": ["rte"]},
            "data was given for sst2, and the tasks are rte; name it in tasks, or leave it out",
        ),
        (
            {"data": dict.fromkeys(("sst2", "mprc", "sst2-features"), "x")},
            "data was given for mprc, sst2-features, and the tasks are sst2; name it",
        ),
        ({"changes": {"generator_share": 0.5}}, "no pre-training of this ablation reads generator_share"),
        ({"tasks": ["sst2-features"]}, "only conll has the feature-based approach"),
    ):
        with pytest.raises(ValueError, match=wanted):
            run_ablation("steps", **(given | changes))
    with pytest.raises(ValueError, match="'table'"):
        run_ablation("table", **given)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="neither empty nor an ablation"):
        run_ablation("steps", **given)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ABLATIONS)
def test_every_row_is_a_recipe_and_has_its_figures(name, scale):
    rows, ablation = SCALES[scale].rows[name], ABLATIONS[name]
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        recipe = ablations._recipe(row, SCALES[scale], {})
        assert recipe.hparams.steps > 0 and row.recipe in RECIPES
        assert row.weights is None or row.weights in [one.name for one in rows]
    for task, figures in ablation.figures.items():
        assert len(figures) == len(rows), task
    assert {place for pair in ablation.pairs for place in pair} <= set(range(len(rows)))


def test_settings_reach_the_pre_training():
    rows = SCALES["small"].rows["masking"]
    rates = [ablations._recipe(row, SCALES["small"], {}).masking(64) for row in rows]
    assert [(one.hide, one.keep, one.replace) for one in rates[:3]] == [
        (0.8, 0.1, 0.1),
        (1, 0, 0),
        (0.8, 0, 0.2),
    ]
    phases = ((32, 0.5), (64, 0.5))
    assert ablations._recipe(rows[0], SCALES["small"], {"phases": phases}).hparams.phases == phases
    sizes = [
        ablations._recipe(row, SCALES["paper"], {}).config(vocab_size=30522)
        for row in SCALES["paper"].rows["size"]
    ]
    assert [(one.num_layers, one.hidden_size, one.num_heads) for one in sizes][-2:] == [
        (12, 1024, 16),
        (24, 1024, 16),
    ]


def test_the_rows_of_the_masking_rate_mask_so_much():
    for scale, layers in (("small", 4), ("paper", 24)):
        rows = SCALES[scale].rows["masking-rate"]
        recipes = [ablations._recipe(row, SCALES[scale], {}) for row in rows]
        assert [row.name for row in rows] == [f"{rate} %" for rate in (5, 10, 15, 20, 30, 40, 80)]
        assert [one.masking(64).share for one in recipes] == [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.8]
        # Enough predictions for the rate, in place of the 20 of 128 that 15 % needs.
        assert [one.masking(100).max_predictions for one in recipes] == [5, 10, 15, 20, 30, 40, 80]
        assert {one.config(vocab_size=100).num_layers for one in recipes} == {layers}
    found = as_json("masking-rate", [outcome(row.name, i, i + 0.1) for i, row in enumerate(rows)])[
        "orderings"
    ]
    assert [(one["better"], one["worse"], one["verdict"]) for one in found] == [
        ("40 %", "15 %", "holds"),
        ("15 %", "80 %", "fails"),
    ]


def test_the_rows_of_the_input_format_are_robertas():
    for scale in ("small", "paper"):
        recipes = [ablations._recipe(row, SCALES[scale], {}) for row in SCALES[scale].rows["input-format"]]
        found = [(one.sampling(128).sampler, "sentence_pair" in one.objectives) for one in recipes]
        assert found == [
            ("next_sentence", True),
            ("sentence_pair", True),
            ("full_sentences", False),
            ("contiguous", False),
        ]
    assert [one.hparams.batch_size for one in recipes] == [256, 2048, 256, 256]
    assert {one.hparams.phases for one in recipes} == {((512, 1.0),)}
    same = {"squad1.1": [80, 80.1], "sst2": [80, 80.1]}
    rows = [dataclasses.replace(outcome(name), measures=same) for name in ("a", "b", "c", "d")]
    found = as_json("input-format", rows)["orderings"]
    # Table 2: SQuAD 1.1 has 90.4, 88.7, 90.4 and 90.6, SST-2 92.9, 92.1, 92.5 and 92.7.
    assert [(one["task"], one["better"], one["worse"]) for one in found] == [
        ("squad1.1", "a", "b"),
        ("squad1.1", "d", "c"),
        ("sst2", "a", "b"),
        ("sst2", "a", "c"),
        ("sst2", "d", "c"),
    ]


def outcome(name, *values):
    return Outcome(
        row=Row(name=name), perplexity=None, measures={"mrpc": list(values)}, names={"mrpc": "accuracy"}
    )


def test_orderings_are_those_of_the_papers_figures():
    """Table 5 has MRPC 86.7, 86.5, 77.5, 75.7: each row over the next."""
    rows = [outcome("a", 80, 82), outcome("b", 81, 81), outcome("c", 90, 90.1), outcome("d", 60, 60.1)]
    found = as_json("tasks", rows)["orderings"]
    assert [(one["better"], one["worse"], one["verdict"]) for one in found] == [
        ("a", "b", "not resolved"),
        ("b", "c", "fails"),
        ("c", "d", "holds"),
    ]
    # Table 6 has a larger model over the next smaller one.
    sizes = [outcome(str(i), 60 + i, 60.1 + i) for i in range(6)]
    found = as_json("size", sizes)["orderings"]
    assert [(one["better"], one["worse"]) for one in found] == [(str(i + 1), str(i)) for i in range(5)]
    assert {one["verdict"] for one in found} == {"holds"}
    table, _ = tables("size", sizes)
    assert table.columns[2] == "mrpc, accuracy" and table.rows[0][2].endswith("± 0.1 (79.8)")
    assert as_json("size", sizes)["measures"] == {"mrpc": "accuracy"}


def test_rows_that_are_equal_in_the_paper_have_no_ordering():
    rows = [
        dataclasses.replace(outcome(name, 80, 81), measures={"mnli": [80, 81]})
        for name in ("a", "b", "c", "d")
    ]
    found = as_json("tasks", rows)["orderings"]
    assert [(one["better"], one["worse"]) for one in found] == [("a", "b"), ("b", "c")]  # 82.1 and 82.1


def test_a_task_that_the_encoder_cannot_serve_is_refused_before_any_pretraining(tmp_path, small):
    write_data(tmp_path / "data", "sst2")
    with no_training(), pytest.raises(ValueError, match="seq_length is 32 and the encoder has 16 positions"):
        run_ablation("steps", **arguments(tmp_path), changes={"max_positions": 16, "seq_length": 16})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["squad1.1", "squad2.0"])
def test_squad_fits_into_the_small_scale(name, data_dir):
    scale = SCALES["small"]
    file = str(data_dir / "squad" / "xquad.en.json")
    task = Squad.open(name, {"train": file, "validation": file}, **scale.options[name])
    hparams = Hparams(**{**task.defaults, **scale.finetuning})
    config = RECIPES["bert"].changed(**scale.pretraining).config(vocab_size=len(VOCABULARY))
    check_fits(task, config, WordPiece(VOCABULARY, lower_case=True), hparams)
