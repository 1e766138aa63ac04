"""benchmarks/soak.py in short: a few faults, and a loss that it must find."""

import json
import subprocess
import sys

import pytest
from runs import ROOT

SOAK = ROOT / "benchmarks" / "soak.py"
# Loads the script as a module, and has every command lose a line of its output when it runs again.
FORGETFUL = """
import pathlib, sys
sys.path.insert(0, sys.argv.pop(1))
import soak
result_of, seen = soak.result_of, []
def forgetful(output):
    seen.append(output)
    found = result_of(output)
    if "try" in output.parts:
        found.pop(next(iter(found)))
    return found
soak.result_of = forgetful
soak.main()
"""


def run(command, tmp_path):
    rows = tmp_path / "rows.json"
    done = subprocess.run([sys.executable, *command, "--json", str(rows)], capture_output=True, text=True)
    assert rows.exists(), done.stderr[-2000:]
    return done.returncode, json.loads(rows.read_text())


@pytest.mark.long
def test_commands_survive_a_few_faults(tmp_path):
    code, rows = run([str(SOAK), "--faults", "5", "--commands", "convert", "instances"], tmp_path)
    assert code == 0
    assert len(rows) == 5 and {row["outcome"] for row in rows} <= {"as unbroken", "refused in one line"}


@pytest.mark.slow
def test_a_lost_file_is_found(tmp_path):
    script = [
        "-c",
        FORGETFUL,
        str(SOAK.parent),
        "--faults",
        "1",
        "--seed",
        "6",
        "--commands",
        "convert",
        "instances",
    ]
    code, (row,) = run(script, tmp_path)
    assert code == 1 and row["outcome"] == "LOST OR CHANGED" and "missing" in row["detail"]
