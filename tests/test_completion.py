"""Completion in the shell: what bash offers for a line, zsh and fish too where they are installed."""

import shutil
import subprocess
import sys

import pytest
import runs

pytest.importorskip("argcomplete")

# Calls the function that bash calls for the Tab key, with the variables that bash sets, and prints the offers.
BASH = """
eval "$(bert-keras completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1)
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
_python_argcomplete bert-keras
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = "bert-keras completion fish | source; complete --do-complete $argv[1]"
# The start of a line -> words among the offers, and words that are not.
LINES = {
    "bert-keras fin": (["finetune"], ["features", "setup.cfg"]),
    "bert-keras finetune --check": (["--checkpoint"], ["--data"]),
    "bert-keras finetune --task s": (["sst2", "squad2.0", "sentence-order"], ["cola", "setup.cfg"]),
    "bert-keras finetune --truncation ": (["tail", "head_tail"], ["setup.cfg"]),
    "bert-keras export --run setup": (["setup.cfg"], ["--output"]),
    "bert-keras completion f": (["fish"], ["bash"]),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The variables of a shell that finds `bert-keras`. No TensorFlow can be imported, and no file below it is cached."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "tensorflow.py").write_text("raise SystemExit('completion imports TensorFlow')\n")
    command = folder / "bert-keras"
    command.write_text(
        f'#!/bin/sh\nPYTHONPATH={folder}:{runs.ROOT} exec {sys.executable} -m bert_keras "$@"\n'
    )
    command.chmod(0o755)
    found = runs.bare_environment()
    return found | {"PATH": f"{folder}:{found['PATH']}", "HOME": str(folder)}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell, script", [("bash", ["--norc", "-c", BASH, "-"]), ("fish", ["-c", FISH])])
def test_a_shell_offers_commands_flags_values_and_files(shell, script, line, environment):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = [shell, *script, line]
    done = subprocess.run(command, cwd=runs.ROOT, env=environment, capture_output=True, text=True)
    offered = {one.split("\t")[0].strip() for one in done.stdout.splitlines()}
    wanted, others = LINES[line]
    assert done.returncode == 0, done.stderr
    assert {*wanted} <= offered and not {*others} & offered
