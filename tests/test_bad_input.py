"""Bad input through the real command: one line that says what was given and what is expected; no file is changed."""

import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A command, what is broken before it runs, and what its line must match."""

    command: list[str]
    message: str
    broken: Callable[[], object] = lambda: None  # called in a folder with copies of data, checkpoint and run


def rewrite(path: str, **fields) -> Callable[[], object]:
    """Sets fields of a JSON file; None takes one out."""

    def edit() -> None:
        content = json.loads(Path(path).read_text()) | fields
        Path(path).write_text(
            json.dumps({name: value for name, value in content.items() if value is not None})
        )

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


CASES = {
    # The data.
    "no data folder": Case(
        command=[*FINETUNE, "--data", "none"], message="there is no none .*run.*; give a file, or a folder"
    ),
    "no data file": Case(
        command=FINETUNE, broken=remove("data/train.tsv"), message="data has no train.tsv; it has"
    ),
    "data not UTF-8": Case(
        command=FINETUNE,
        broken=append("data/train.tsv", b"caf\xe9\t1\n"),
        message="train.tsv, line 50, byte 4: 0xe9 is not UTF-8; save the file as UTF-8",
    ),
    "missing column": Case(
        command=FINETUNE,
        broken=write("data/train.tsv", b"text\tlabel\ngood\t1\n"),
        message="train.tsv has no column 'sentence'; .* 'text', 'label'",
    ),
    "unknown label": Case(
        command=FINETUNE,
        broken=append("data/train.tsv", b"good\tgreat\n"),
        message="train.tsv, line 50: unknown label 'great'; .* 0, 1",
    ),
    "a column too few": Case(
        command=FINETUNE, broken=append("data/train.tsv", b"good\n"), message="train.tsv, line 50: 1 column"
    ),
    "no example": Case(
        command=FINETUNE,
        broken=write("data/train.tsv", b"sentence\tlabel\n"),
        message="train.tsv has no examples",
    ),
    "empty file": Case(
        command=FINETUNE, broken=write("data/dev.tsv", b""), message="dev.tsv is empty; .* tab-separated"
    ),
    "no labels to measure": Case(
        command=[*EVALUATE, "--split", "test"],
        broken=write("data/test.tsv", b"index\tsentence\n0\tgood\n"),
        message="no example in the test split of sst2 has a label; .* labelled split",
    ),
    # The checkpoint.
    "no checkpoint": Case(
        command=[*FINETUNE, "--checkpoint", "none"], message="no checkpoint at none: no such file"
    ),
    "no known format": Case(
        command=[*FINETUNE, "--checkpoint", "data"],
        message="no checkpoint in data; looked for model.safetensors",
    ),
    "no vocabulary": Case(
        command=FINETUNE, broken=remove("checkpoint/vocab.txt"), message="has no vocabulary; put .* vocab.txt"
    ),
    "vocabulary too large": Case(
        command=FINETUNE,
        broken=append("checkpoint/vocab.txt", b"more\nand\xc3\xa9\n"),
        message="vocab.* has 375 .* 373",
    ),
    "vocabulary without a special token": Case(
        command=FINETUNE, broken=write("checkpoint/vocab.txt", b"[PAD]\ngood\n"), message=r"\[UNK\].* missing"
    ),
    "vocabulary not UTF-8": Case(
        command=FINETUNE, broken=append("checkpoint/vocab.txt", b"\xff\n"), message="vocab.txt.*not.* UTF-8"
    ),
    "cut weights": Case(
        command=FINETUNE,
        broken=cut("checkpoint/model.safetensors", 0.5),
        message="model.safetensors is cut short or not a safetensors file",
    ),
    "empty weights": Case(
        command=INFO,
        broken=cut("checkpoint/model.safetensors", 0),
        message="model.safetensors is cut short or not",
    ),
    "weights of another model": Case(
        command=FINETUNE,
        broken=rewrite("checkpoint/config.json", hidden_size=64),
        message=r"has shape \[.*48\]; the config wants \[.*64\]: weights and config belong to different models",
    ),
    "fewer layers than the config": Case(
        command=FINETUNE,
        broken=rewrite("checkpoint/config.json", num_hidden_layers=2),
        message="the checkpoint has no block_1/",
    ),
    "no config": Case(command=FINETUNE, broken=remove("checkpoint/config.json"), message="no config.json"),
    "config not JSON": Case(
        command=FINETUNE,
        broken=cut("checkpoint/config.json", 0.5),
        message="config.json is not a JSON file in UTF-8",
    ),
    "config field not supported": Case(
        command=FINETUNE,
        broken=rewrite("checkpoint/config.json", position_embedding_type="relative_key"),
        message="position_embedding_type is 'relative_key' .* is not supported; wanted 'absolute'",
    ),
    "config field missing": Case(
        command=FINETUNE,
        broken=rewrite("checkpoint/config.json", hidden_size=None),
        message="config.json: hidden_size missing from a config.json",
    ),
    "config value out of range": Case(
        command=FINETUNE,
        broken=rewrite("checkpoint/config.json", num_attention_heads=5),
        message="hidden_size 48 is not a multiple of num_heads 5; change one",
    ),
    "sequence too long": Case(
        command=[*FINETUNE, "--seq-length", "49"],
        message="seq_length is 49 and the encoder has 48 positions; give seq_length 48 or less",
    ),
    "sequence too short": Case(
        command=[*FINETUNE, "--seq-length", "2"], message="seq_length is 2; give at least"
    ),
    # The output.
    "output holds a run": Case(
        command=[*FINETUNE, "--output", "run"], message="run already holds a run; give another folder"
    ),
    "output is a file": Case(
        command=[*FINETUNE, "--output", "lines.txt"], message="lines.txt is a file; give a folder"
    ),
    "output below a file": Case(
        command=[*FINETUNE, "--output", "lines.txt/out"],
        message="cannot write to lines.txt/out: Not a directory; give",
    ),
    "export below a file": Case(
        command=[*EXPORT, "--output", "lines.txt/out"],
        message="cannot export to lines.txt/out: Not a directory; give",
    ),
    "convert below a file": Case(command=[*CONVERT, "--to", "lines.txt/out"], message="lines.txt"),
    "convert into a full folder": Case(
        command=[*CONVERT, "--to", "run"], message="run is there already and not empty; give another folder"
    ),
    "convert to no format": Case(
        command=[*CONVERT, "--format", "onnx"],
        message="no checkpoint format 'onnx'; the formats are hugging-face",
    ),
    # The run.
    "no run": Case(command=[*PREDICT, "--run", "none"], message="no task.json in none; give the folder that"),
    "run without task.json": Case(
        command=EXPORT, broken=remove("run/task.json"), message="no task.json in run; give"
    ),
    "half-written task.json": Case(
        command=PREDICT, broken=cut("run/task.json", 0.5), message="task.json is not a JSON file in UTF-8"
    ),
    "task.json of no task": Case(
        command=EVALUATE,
        broken=rewrite("run/task.json", kind="other"),
        message="task.json is not the task.json of a run",
    ),
    "task.json without a field": Case(
        command=EXPORT,
        broken=rewrite("run/task.json", seq_length=None),
        message="task.json is not .* 'seq_length'",
    ),
    "cut weights of a run": Case(
        command=EXPORT,
        broken=cut("run/model.safetensors", 0.9),
        message="model.safetensors was changed after training",
    ),
    "run without weights": Case(
        command=PREDICT, broken=remove("run/model.safetensors"), message="run has no model.safetensors"
    ),
    # The input of predict.
    "no input": Case(command=[*PREDICT, "--input", "none.txt"], message="no file at none.txt; give a file"),
    "input is a folder": Case(
        command=[*PREDICT, "--input", "data"],
        message="data, which is a folder with dev.tsv, train.tsv; give a file",
    ),
    "input not UTF-8": Case(
        command=PREDICT,
        broken=append("lines.txt", b"\xe9\n"),
        message="lines.txt, line 2, byte 1: 0xe9 is not UTF-8; save",
    ),
}


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


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_nothing_touched(name, workplace, capfd):
    case = CASES[name]
    case.broken()
    before = everything(workplace)
    code, out, err = run_command(capfd, *case.command)
    assert_one_line(code, err, case.message)
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
