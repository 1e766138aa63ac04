"""The command doctor, in a process that lacks packages: rows, advice and the exit code."""

import json
import subprocess
import sys

import pytest
import runs

from bert_keras.cli import doctor

HIDDEN = "raise ImportError('no such wheel')\n"


def answer(folder, hidden, **variables):
    """The rows of doctor by part, and its exit code, where these modules cannot be imported. hidden: module -> its source"""
    for name, source in hidden.items():
        (folder / f"{name}.py").write_text(source)
    env = runs.bare_environment()
    env |= {"PYTHONPATH": f"{folder}:{env.get('PYTHONPATH', '')}:{runs.ROOT}"} | variables
    line = [sys.executable, "-c", "from bert_keras.cli.main import main; main()", "doctor", "--json"]
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return {row["part"]: row for row in json.loads(done.stdout)}, done.returncode


ALL = ("numpy", "tensorflow", "keras", "tensorflow_text", "keras_nlp")
DIES = "import os\nos._exit(3)\n"
# Hidden modules, variables, and the part that is wrong, its state, and words of what is found and advised.
CASES = [
    (dict.fromkeys(ALL, HIDDEN), {}, "tensorflow", "fault", "no such wheel | pip install"),
    (dict.fromkeys(ALL, HIDDEN), {}, "text ops", "note", "core"),
    (dict.fromkeys(ALL, DIES), {}, "numpy", "fault", "the process died"),
    (dict.fromkeys(ALL, ""), {"TF_USE_LEGACY_KERAS": "1"}, "TF_USE_LEGACY_KERAS", "fault", "unset"),
    (dict.fromkeys(ALL, ""), {"KERAS_BACKEND": "torch"}, "Keras backend", "fault", "torch | KERAS_BACKEND=tensorflow"),
    (dict.fromkeys(ALL, ""), {"HTTPS_PROXY": "http://me:secret@proxy:8080"}, "HTTPS_PROXY", "ok", "proxy:8080"),
    (dict.fromkeys(ALL, ""), {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE", "ok", "1"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("hidden", "variables", "part", "state", "words"), CASES)
def test_what_does_not_fit_is_said(hidden, variables, part, state, words, tmp_path):
    rows, code = answer(tmp_path, hidden, **variables)
    row = rows[part]
    assert row["state"] == state, row
    assert all(word in row["found"] + row["advice"] for word in words.split(" | ")), row
    assert "secret" not in str(rows) and "extra gpu" not in rows and "extra onnx" in rows
    assert code == any(row["state"] == "fault" for row in rows.values())


# Versions of packages, and the package that is wrong.
VERSIONS = [
    ({"tensorflow": "2.20.0", "tensorflow-text": "2.21.1"}, "tensorflow-text==2.20.*"),
    ({"tensorflow": "2.21.0", "tensorflow-text": "2.21.1"}, None),
    ({"keras": "2.15.0"}, "keras<4,>=3.15"),
    ({"tensorflow": None}, "tensorflow<2.22,>=2.20"),
]


@pytest.mark.parametrize(("versions", "advice"), VERSIONS)
def test_versions_that_do_not_fit(versions, advice, monkeypatch):
    fitting = {"tensorflow": "2.21.0", "tensorflow-text": "2.21.1", "keras": "3.15.0"} | versions
    needed = {"tensorflow": "<2.22,>=2.20", "tensorflow-text": "<2.22,>=2.20.1", "keras": "<4,>=3.15"}
    monkeypatch.setattr(doctor, "requirements", lambda: {"": needed})
    monkeypatch.setattr(doctor, "_version", lambda package: fitting.get(package, "1"))
    found = dict.fromkeys(doctor._IMPORTED, "") | {
        name: "lost" for name, version in fitting.items() if version is None
    }
    faults = [row.fault for row in doctor.packages(found) if row.fault]
    assert faults == ([] if advice is None else [f"pip install '{advice}'"])
