"""The notebooks of examples/notebooks: committed without outputs, and each runs as a script on its small data."""

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
