"""The types that an editor shows: mypy and pyright on a user's script. A misspelt name is an error for both."""

import json
import os
import re
import subprocess
import sys

import pytest
import runs

pytestmark = pytest.mark.long

# An expression -> its type, in the words of both checkers.
TYPES = {
    'bk.classifier("minilm", ["bad", "good"])': "TextModel",
    'bk.tagger("minilm", ["PER"])': "TextModel",
    'bk.load("run")': "TextModel | Any",
    'bk.load("run").labels': "tuple[str, ...] | Any",
    'bk.embedder("minilm").predict(["a"])': "Predictions | Any",
    'bk.embedder("minilm").records(["a"])': "list[dict[str, Any]]",
    'bk.embedder("minilm").encoder.config': "BertConfig",
    'bk.embedder("minilm").export("served")': "Path",
    'bk.load_encoder("minilm")': "BertEncoder",
    'bk.load_tokenizer("minilm").vocab_size': "int",
}
MISSPELT = "bk.clasifier"


def mypy(script, environment):
    """(line, message) of what mypy finds."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--cache-dir",
        os.devnull,
        script.name,
    ]
    environment = environment | {"MYPYPATH": str(runs.ROOT)}
    done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True)
    found = re.findall(rf"^{script.name}:(\d+): (.*)$", done.stdout, re.MULTILINE)
    return [(int(line), message) for line, message in found]


def basedpyright(script, environment):
    """(line, message) of what pyright finds."""
    settings = {"extraPaths": [str(runs.ROOT)], "include": [script.name]}
    (script.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        script.name,
    ]
    done = subprocess.run(command, cwd=script.parent, env=environment, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(one["range"]["start"]["line"] + 1, f"{one['severity']}: {one['message']}") for one in found]


@pytest.mark.parametrize("checker", [mypy, basedpyright])
def test_a_type_checker_knows_models_and_finds_misspelt_names(checker, tmp_path):
    pytest.importorskip(checker.__name__)
    script = tmp_path / "script.py"
    lines = ["import bert_keras as bk", *(f"reveal_type({code})" for code in TYPES), MISSPELT]
    script.write_text("\n".join(lines) + "\n")
    found = checker(script, runs.bare_environment())
    types = [
        re.sub(r"\b(?:\w+\.)+", "", message.rsplit('"', 2)[-2]) for _, message in found if " is " in message
    ]
    errors = [line for line, message in found if message.startswith("error")]
    assert dict(zip(TYPES, types, strict=False)) == TYPES
    assert errors == [len(lines)], found
