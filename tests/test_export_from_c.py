"""Exports answer a C program as they answer Python: TensorFlow's C library, TensorFlow Text's op libraries, nothing else."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, meta_graph, untrained
from runs import write_checkpoint

from bert_keras.savedmodels import reload
from bert_keras.savedmodels.export import save, servable_of
from bert_keras.savedmodels.verify import NARROW
from bert_keras.tasks.runs.ensemble import at_precision

SOURCE = Path(__file__).with_name("export_from_c.c")
TEXTS = {
    "Classification": {"sentence": "a good, warm film \N{GRINNING FACE}"},
    "Question answering": {
        "question": "which plot?",
        "context": "Naïve ﬁlm: the plot is very good, and the scene is dull. " * 3,
    },
}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The compiled program; skipped where there is no compiler or the wheel has no C library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: set CC, or install gcc")
    package = Path(tf.__file__).parent
    if not (package / "libtensorflow_cc.so.2").exists():
        pytest.skip(f"{package} has no libtensorflow_cc.so.2")
    made = tmp_path_factory.mktemp("c") / "export_from_c"
    libraries = [f"-Wl,-rpath,{package}", *(f"-l:libtensorflow_{name}.so.2" for name in ("cc", "framework"))]
    command = [compiler, "-Wall", SOURCE, "-I", package / "include", "-L", package, *libraries, "-o", made]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize(
    ("case", "frozen", "precision"),
    [
        ("Classification", False, None),
        pytest.param("Classification", True, None, marks=pytest.mark.long),
        pytest.param("Classification", False, "bfloat16", marks=pytest.mark.long),
        pytest.param("Classification", True, "bfloat16", marks=pytest.mark.long),
        pytest.param("Question answering", False, None, marks=pytest.mark.slow),
        pytest.param("Question answering", True, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_same_answers(case, frozen, precision, program, tmp_path):
    run = at_precision(untrained(CASES[case], write_checkpoint(tmp_path / "checkpoint")), precision)
    servable, folder = servable_of(run, frozen=frozen), tmp_path / "served"
    folder.mkdir()
    save(run, servable, folder, name="served", version=1)
    signature = meta_graph(folder).signature_def["serving_default"]
    given = [f"{info.name.removesuffix(':0')}={TEXTS[case][name]}" for name, info in signature.inputs.items()]
    wanted = [f"{name}={info.name}" for name, info in signature.outputs.items()]
    kernels = Path(importlib.util.find_spec("tensorflow_text").origin).parent / "python" / "ops"
    libraries = ",".join(str(kernels / name) for name in reload.KERNELS)
    done = subprocess.run(
        [program, folder, libraries, *given, "--", *wanted], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    found = {name: values for name, *values in lines}
    expected = servable.serve(**{name: tf.constant([text]) for name, text in TEXTS[case].items()})
    assert set(found) == set(expected)
    for name, value in expected.items():
        value = value.numpy().ravel()
        if value.dtype == object:
            assert found[name] == [text.decode() for text in value], name
        else:
            near = {"rtol": NARROW, "atol": NARROW} if precision else {"rtol": 1e-6, "atol": 1e-7}
            np.testing.assert_allclose(np.float64(found[name]), value, **near, err_msg=name)
