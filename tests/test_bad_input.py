"""Bad input through the real command: one line that says what was given and what is expected; no file is changed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import ROOT, bare_environment, contents, full_disk, run_command

FINETUNE = (
    "finetune --task sst2 --data data --checkpoint checkpoint --output out --seq-length 40 --epochs 1".split()
)
EVALUATE = "evaluate --run run --data data".split()
PREDICT = "predict --run run --input lines.txt".split()
EXPORT = "export --run run --output served".split()
CONVERT = "convert --from checkpoint --to out --format google".split()
INFO = "info checkpoint".split()


def rewrite(path: str, **fields) -> Callable[[], object]:
    """Sets fields of a JSON file; None takes one out."""

    def edit() -> None:
        content = json.loads(Path(path).read_text()) | fields
        kept = {name: value for name, value in content.items() if value is not None}
        Path(path).write_text(json.dumps(kept))

    return edit


def write(path: str, data: bytes) -> Callable[[], object]:
    return lambda: Path(path).write_bytes(data)


def cut(path: str, share: float) -> Callable[[], object]:
    """Leaves the first part of a file."""
    return lambda: os.truncate(path, int(os.path.getsize(path) * share))


def append(path: str, data: bytes) -> Callable[[], object]:
    def add() -> None:
        with open(path, "ab") as file:
            file.write(data)

    return add


def remove(*paths: str) -> Callable[[], object]:
    return lambda: [Path(path).unlink() for path in paths]


# The name, the command, what breaks a file before it runs, and what its line must match. The command runs in a folder with copies
# of data, checkpoint and run. tests/test_bad_files.py has what the readers of data refuse.
CASES = [
    # The data
    ("no data folder", [*FINETUNE, "--data", "none"], None, "there is no none .*run.*; give a file, or a folder"),
    ("no data file", FINETUNE, remove("data/train.tsv"), "data has no train.tsv; it has"),
    ("data not UTF-8", FINETUNE, append("data/train.tsv", b"caf\xe9\t1\n"),
     "train.tsv, line 50, byte 4: 0xe9 is not UTF-8; save the file as UTF-8"),
    ("unknown label", FINETUNE, append("data/train.tsv", b"good\tgreat\n"), "train.tsv, line 50: unknown label 'great'; .* 0, 1"),
    ("empty file", FINETUNE, write("data/dev.tsv", b""), "dev.tsv is empty; .* tab-separated"),
    ("no labels to measure", [*EVALUATE, "--split", "test"], write("data/test.tsv", b"index\tsentence\n0\tgood\n"),
     "no example in the test split of sst2 has a label; .* labelled split"),
    # The checkpoint
    ("no checkpoint", [*FINETUNE, "--checkpoint", "none"], None, "no checkpoint at none: no such file"),
    ("no known format", [*FINETUNE, "--checkpoint", "data"], None, "no checkpoint in data; looked for model.safetensors"),
    ("no vocabulary", FINETUNE, remove("checkpoint/vocab.txt"), "has no vocabulary; put .* vocab.txt"),
    ("vocabulary too large", FINETUNE, append("checkpoint/vocab.txt", b"more\nand\xc3\xa9\n"), "vocab.* has 375 .* 373"),
    ("no special token", FINETUNE, write("checkpoint/vocab.txt", b"[PAD]\ngood\n"), r"\[UNK\].* missing"),
    ("vocabulary not UTF-8", FINETUNE, append("checkpoint/vocab.txt", b"\xff\n"), "vocab.txt.*not.* UTF-8"),
    ("cut weights", FINETUNE, cut("checkpoint/model.safetensors", 0.5),
     "model.safetensors is cut short or not a safetensors file"),
    ("empty weights", INFO, cut("checkpoint/model.safetensors", 0), "model.safetensors is empty"),
    ("weights of another model", FINETUNE, rewrite("checkpoint/config.json", hidden_size=64),
     r"has shape \[.*48\]; the config wants \[.*64\]: weights and config belong to different models"),
    ("fewer layers than the config", FINETUNE, rewrite("checkpoint/config.json", num_hidden_layers=2),
     "the checkpoint has no block_1/"),
    ("no config", FINETUNE, remove("checkpoint/config.json"), "no config.json"),
    ("config not JSON", FINETUNE, cut("checkpoint/config.json", 0.5), "config.json is not a JSON file in UTF-8"),
    ("config field not supported", FINETUNE, rewrite("checkpoint/config.json", position_embedding_type="relative_key"),
     "position_embedding_type is 'relative_key' .* is not supported; wanted 'absolute'"),
    ("config field missing", FINETUNE, rewrite("checkpoint/config.json", hidden_size=None),
     "config.json: hidden_size missing from a config.json"),
    ("config value out of range", FINETUNE, rewrite("checkpoint/config.json", num_attention_heads=5),
     "hidden_size 48 is not a multiple of num_heads 5; change one"),
    ("sequence too long", [*FINETUNE, "--seq-length", "49"], None,
     "--seq-length is 49 and the encoder has 48 positions; give --seq-length 48 or less"),
    ("sequence too short", [*FINETUNE, "--seq-length", "2"], None, "--seq-length is 2; give at least"),
    # The output
    ("output holds a run", [*FINETUNE, "--output", "run"], None, "run already holds a run; give another folder"),
    ("output is a file", [*FINETUNE, "--output", "lines.txt"], None, "lines.txt is a file; give a folder"),
    ("output below a file", [*FINETUNE, "--output", "lines.txt/out"], None,
     "cannot write to lines.txt/out: Not a directory; give"),
    ("export below a file", [*EXPORT, "--output", "lines.txt/out"], None,
     "cannot export to lines.txt/out: Not a directory; give"),
    ("convert below a file", [*CONVERT, "--to", "lines.txt/out"], None, "lines.txt"),
    ("convert into a full folder", [*CONVERT, "--to", "run"], None, "run is there already and not empty; give another folder"),
    ("convert to no format", [*CONVERT, "--format", "onnx"], None, "no checkpoint format 'onnx'; the formats are hugging-face"),
    # The run
    ("no run", [*PREDICT, "--run", "none"], None, "no task.json in none; give the folder that"),
    ("run without task.json", EXPORT, remove("run/task.json"), "run has no task.json; train again"),
    ("half-written task.json", PREDICT, cut("run/task.json", 0.5), "task.json is not a JSON file in UTF-8"),
    ("task.json of no task", EVALUATE, rewrite("run/task.json", kind="other"), "task.json is not the task.json of a run"),
    ("task.json without a field", EXPORT, rewrite("run/task.json", seq_length=None), "task.json is not .* 'seq_length'"),
    ("cut weights of a run", EXPORT, cut("run/model.safetensors", 0.9), "model.safetensors was changed after training"),
    ("run without weights", PREDICT, remove("run/model.safetensors"), "run has no model.safetensors"),
    # The input of predict
    ("no input", [*PREDICT, "--input", "none.txt"], None, "no file at none.txt; give a file"),
    ("input is a folder", [*PREDICT, "--input", "data"], None, "data, which is a folder with dev.tsv, train.tsv; give a file"),
    ("input not UTF-8", PREDICT, append("lines.txt", b"\xe9\n"), "lines.txt, line 2, byte 1: 0xe9 is not UTF-8; save"),
]  # fmt: skip


@pytest.fixture
def workplace(tmp_path, monkeypatch, sst2) -> Path:
    """A current folder with copies that may be broken."""
    for folder in (sst2.data, sst2.checkpoint, sst2.run):
        shutil.copytree(folder, tmp_path / folder.name)
    (tmp_path / "lines.txt").write_text("good film\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    return contents(folder), sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def assert_one_line(code: int, err: str, message: str) -> None:
    assert code == 1, err
    assert err.startswith("bert-keras: error: ") and err.count("\n") == 1, err
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("command", "breaks", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_line_and_nothing_touched(command, breaks, message, workplace, capfd):
    if breaks is not None:
        breaks()
    before = everything(workplace)
    code, _, err = run_command(capfd, *command)
    assert_one_line(code, err, message)
    assert everything(workplace) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("command", [FINETUNE, EXPORT, CONVERT], ids=lambda command: command[0])
def test_a_folder_that_is_read_only(command, workplace, capfd):
    before = everything(workplace)
    workplace.chmod(0o555)
    try:
        code, _, err = run_command(capfd, *command)
    finally:
        workplace.chmod(0o755)
    assert_one_line(code, err, "Permission denied")
    assert everything(workplace) == before


@pytest.mark.long
@pytest.mark.parametrize("command", [FINETUNE, EXPORT, CONVERT], ids=lambda command: command[0])
def test_a_disk_that_is_full(command, workplace, capfd):
    before = everything(workplace)
    with full_disk(100_000):  # too little for the weights, enough for what stands beside them
        code, _, err = run_command(capfd, *command)
    assert_one_line(code, err, "File too large|No space left")
    for name in ("logs", "checkpoints"):  # a run that can be resumed: its first epoch was trained
        shutil.rmtree(workplace / "out" / name, ignore_errors=True)
    if (workplace / "out").exists():
        (workplace / "out").rmdir()
    assert everything(workplace) == before


@pytest.mark.long
def test_in_a_process_of_its_own(workplace):
    (workplace / "checkpoint" / "config.json").write_text("{")
    before = everything(workplace)
    done = subprocess.run(
        [sys.executable, "-m", "bert_keras", *FINETUNE],
        cwd=workplace,
        env=bare_environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert_one_line(done.returncode, done.stderr, "config.json is not a JSON file in UTF-8")
    assert done.stdout == ""
    assert everything(workplace) == before
