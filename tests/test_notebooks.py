"""The notebooks of examples/notebooks, each as a script on its small data; and what a cell of a kernel shows."""

import json
import shutil

import forked
import pytest
import runs

FOLDER = runs.ROOT / "examples" / "notebooks"
NOTEBOOKS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.ipynb"))
}
LARGE, SMALL = "SMALL = False", "SMALL = True"


def code_of(notebook):
    """The source of each code cell."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_no_outputs_and_one_parameter(name):
    notebook = NOTEBOOKS[name]
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"]] == []
    (parameters,) = (cell for cell in cells if "parameters" in cell["metadata"].get("tags", ()))
    assert parameters["source"] == [LARGE] and (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


# What the last cell prints.
PRINTED = {
    "features_and_table_7": "concat_last_four",
    "mistakes_and_heads": "strongest head: layer",
    "pretrain_and_look": "anna: ",
    "string_to_answer": "'label_names': ['bad', 'good']",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_small_data(name, tmp_path):
    shutil.copy(FOLDER / "toy.py", tmp_path)
    code = "\n\n".join(code_of(NOTEBOOKS[name]))
    (tmp_path / "notebook.py").write_text(code.replace(LARGE, SMALL), encoding="utf-8")
    done = forked.run(tmp_path / "notebook.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert PRINTED[name] in done.stdout


# A cell of a notebook -> what it does.
CELLS = {
    "fit": "model.fit(texts, labels, batch_size=1, epochs=2);",
    "evaluate": "model.evaluate(texts, labels, batch_size=1);",
    "finetune": "finetune(open_task('sst2', {data!r}), checkpoint={checkpoint!r}, output={output!r}, hparams=hparams);",
    "progress": "with progress('reading', 40) as advance:\n    [advance(1) for _ in range(40)]",
    "model": "model",
    "predictions": "model.predict(texts[:2])",
}
SETUP = """
import bert_keras as bk
from bert_keras.cli.console import progress
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.task_types import open_task
texts, labels = ["good film", "bad plot"] * 20, [1, 0] * 20
model = bk.classifier({checkpoint!r}, ["bad", "good"], seq_length=16)
hparams = Hparams(batch_size=1, seq_length=16, epochs=2)
"""


@pytest.fixture(scope="module")
def cells(tiny, tmp_path_factory):
    """The outputs of each of CELLS in a kernel."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("kernel")
    names = {"checkpoint": str(tiny), "output": str(folder / "run")}
    names["data"] = str(runs.write_data(folder / "data", "sst2", count=40))
    sources = [code.format(**names) for code in (SETUP, *CELLS.values())]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(runs.ROOT))
        nbclient.NotebookClient(
            notebook, kernel_name="python3", resources={"metadata": {"path": folder}}
        ).execute()
    return dict(zip(CELLS, (cell.outputs for cell in notebook.cells[1:]), strict=True))


def lines_in(outputs):
    """The lines that a person sees: each carriage return starts its line again."""
    text = "".join(one.text for one in outputs if one.output_type == "stream")
    return [line.rpartition("\r")[2].strip("\b") for line in text.split("\n") if line]


@pytest.mark.long
@pytest.mark.parametrize("name", ["fit", "evaluate", "finetune", "progress"])
def test_a_cell_shows_a_bar_and_no_line_for_each_step(cells, name):
    lines = lines_in(cells[name])
    assert len([line for line in lines if "40/40" in line]) == (2 if name in ("fit", "finetune") else 1)
    assert len(lines) <= 14, lines
    if name == "finetune":
        assert len([line for line in lines if line.startswith(("epoch 1/2: ", "epoch 2/2: "))]) == 2


@pytest.mark.long
def test_a_cell_shows_tables(cells):
    for name in ("model", "predictions"):
        (shown,) = cells[name]
        assert {"text/html", "text/plain"} == {*shown.data} and "<table>" in shown.data["text/html"]
