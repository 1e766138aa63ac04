"""Folders appear complete or not at all: neighbours, kills between two renames, errors, one process that enters twice."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_checkpoints import refused
from runs import ROOT, contents, leave_half

from bert_keras.errors import BertKerasError, TakenError
from bert_keras.io.files import LOCK, locked
from bert_keras.io.folders import PARTIAL, Folder, Layout, atomic_folder, check_folder, refuse_partial
from bert_keras.io.formats import RUN

FILES = {"a.txt": b"a", "b/c.txt": b"c", "d.txt": b"d"}


def fill(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


class Killed(BaseException):
    """The end of the process, which cleans nothing up."""


def kill_at_rename(output: Path, number: int, existing: str) -> bool:
    """Writes FILES in a child that dies before a rename. False: it finished before."""
    child = os.fork()
    if not child:
        left = number

        def dying(rename):
            def counted(source, target):
                nonlocal left
                left -= 1
                if not left:
                    os._exit(7)
                return rename(source, target)

            return counted

        os.replace, os.rename = dying(os.replace), dying(os.rename)
        with contextlib.suppress(BaseException), atomic_folder(output, existing=existing) as new:
            fill(new)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


OTHERS = {"kept.txt": b"kept"}


@pytest.mark.parametrize(
    ("existing", "before", "renames"),
    [
        ("refuse", None, 1),  # the whole folder
        ("keep", None, 1),
        ("overwrite", None, 1),
        ("refuse", {}, 4),  # the journal and three entries
        ("keep", {}, 4),
        ("keep", OTHERS, 4),
        ("overwrite", OTHERS, 4),
    ],
)
def test_a_kill_at_any_rename_is_repaired_by_the_next_writer(tmp_path, existing, before, renames):
    number = 1
    while True:
        output = tmp_path / str(number) / "out"
        if before is not None:
            output.mkdir(parents=True)
            for name, content in before.items():
                (output / name).write_bytes(content)
        if not kill_at_rename(output, number, existing):
            break
        with atomic_folder(output, existing=existing) as new:
            fill(new)
        assert contents(output.parent) == {f"out/{name}": b for name, b in ((before or {}) | FILES).items()}
        number += 1
    assert number == renames + 1


def test_a_killed_overwrite_has_all_new_files_or_none_at_the_next_write(tmp_path):
    old = {"a.txt": b"old", "d.txt": b"old", "kept.txt": b"kept"}
    for number in range(1, 5):
        output = tmp_path / str(number)
        output.mkdir()
        for name, content in old.items():
            (output / name).write_bytes(content)
        assert kill_at_rename(output, number, "overwrite")
        moved = number > 1  # the first rename is the journal's
        if moved:
            refused(f"{output} has .*write to it again", refuse_partial, output)
        else:
            refuse_partial(output)
        with pytest.raises(Killed), atomic_folder(output, existing="overwrite"):
            raise Killed
        refuse_partial(output)
        assert contents(output) == old | (FILES if moved else {})


def test_an_overwrite_that_cannot_finish_changes_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "d.txt").mkdir()
    with pytest.raises(TakenError, match=r"d\.txt is a folder"):
        with atomic_folder(tmp_path, existing="overwrite") as new:
            fill(new)
    assert contents(tmp_path) == {"a.txt": b"old"}


@pytest.mark.parametrize("there", [False, True])
def test_a_neighbour_is_left_alone(tmp_path, there):
    output = tmp_path / "out"
    if there:
        output.mkdir()
    code = f"""
import pathlib, sys
from bert_keras.io.folders import atomic_folder
with atomic_folder(pathlib.Path({str(output)!r})) as new:
    (new / "a.txt").write_text("theirs")
    print("ready", flush=True)
    sys.stdin.read()
"""
    neighbour = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with neighbour:
        assert neighbour.stdout.readline() == b"ready\n"
        before = contents(tmp_path)
        for existing in ("refuse", "keep", "overwrite"):
            with pytest.raises(BertKerasError, match=rf"another process is writing to {output};"):
                with atomic_folder(output, existing=existing):
                    raise RuntimeError("not refused")
        assert contents(tmp_path) == before
        neighbour.stdin.close()
    assert contents(tmp_path) == {"out/a.txt": b"theirs"}


def test_a_process_overwrites_in_the_folder_that_it_holds(monkeypatch, tmp_path):
    """By any of its names."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    (tmp_path / "run" / "a.txt").write_text("old")
    monkeypatch.chdir(tmp_path)
    with locked(Path("run")):
        for name in ("run", "link", tmp_path / "run"):
            with atomic_folder(Path(name), existing="overwrite") as new:
                fill(new)
            assert (tmp_path / "run" / LOCK).exists()
    assert contents(tmp_path / "run") == FILES


def test_an_error_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.txt").write_text("mine")
    before = contents(tmp_path)
    for name, existing in (("there", "keep"), ("there", "overwrite"), ("new/below/out", "refuse")):
        with pytest.raises(Killed), atomic_folder(tmp_path / name, existing=existing) as new:
            fill(new)
            raise Killed
    with (
        pytest.raises(TakenError, match="there is there already and not empty"),
        atomic_folder(tmp_path / "there"),
    ):
        raise RuntimeError("not refused")
    with pytest.raises(TakenError, match=r"a\.txt is there already"):
        with atomic_folder(tmp_path / "there", existing="keep") as new:
            fill(new)
    with pytest.raises(TakenError, match=r"a\.txt is a file"), atomic_folder(tmp_path / "there" / "a.txt"):
        raise RuntimeError("not refused")
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_journal_of_strangers_removes_nothing_else(tmp_path):
    (tmp_path / "mine").write_text("kept")
    work = tmp_path / "out" / PARTIAL
    (work / "new").mkdir(parents=True)
    (work / "new" / "left").write_text("")
    (work / "moving.json").write_text('{"names": ["left", "../mine", "..", "."]}')
    with atomic_folder(tmp_path / "out") as new:
        fill(new)
    assert contents(tmp_path) == {"mine": b"kept"} | {
        f"out/{name}": content for name, content in FILES.items()
    }


LAYOUT = Layout(name="a run", artifact=RUN, fingerprint="task.json", results="results.json")
OWN = ["notes.tmp", "notes.1.tmp", "00002.tmp", ".notes.tmp", "2026.tmp", "notes.json.1.tmp.txt"]


def test_opening_a_folder_removes_only_incomplete_files(tmp_path):
    folder = tmp_path / "run"
    with Folder(folder, LAYOUT).begin({"seed": 1}):
        pass
    for name in OWN:
        (folder / name).write_text("")
    (folder / "00003.tmp").mkdir()
    leave_half(folder, "results.json")
    with Folder(folder, LAYOUT).begin({"seed": 1}) as begun:
        assert begun
    assert sorted(path.name for path in folder.iterdir()) == sorted([*OWN, "00003.tmp", "task.json"])


@pytest.mark.parametrize("name", ["notes.tmp", "00003.tmp/a file"])
def test_files_of_others_with_this_ending_are_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    leave_half(tmp_path, "notes")
    with pytest.raises(BertKerasError, match=f"neither empty nor a run: it holds {Path(name).parts[0]}"):
        Folder(tmp_path, LAYOUT).check()
    assert (tmp_path / name).read_text() == "mine"


def test_the_check_before_long_work_refuses_what_the_write_refuses(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "empty").mkdir()
    refused("not empty", check_folder, tmp_path, error=TakenError)
    refused(r"a\.txt is a file", check_folder, tmp_path / "a.txt", existing="keep", error=TakenError)
    check_folder(tmp_path, existing="keep")
    check_folder(tmp_path / "empty")
    check_folder(tmp_path / "new")
    (tmp_path / PARTIAL).mkdir()  # a move that stopped, which the next writer undoes
    check_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [PARTIAL, "a.txt", "empty"]


@pytest.mark.parametrize(("error", "file", "left"), [
    (BertKerasError, None, []),
    (BertKerasError, "00000.tfrecord", ["00000.tfrecord", "task.json"]),
    (KeyboardInterrupt, None, ["task.json"]),
])  # fmt: skip
def test_a_refusal_leaves_a_new_folder_only_with_files_that_cost_work(tmp_path, error, file, left):
    path = tmp_path / "out"
    with pytest.raises(error), Folder(path, LAYOUT).begin({"seed": 1}):
        if file is not None:
            (path / file).touch()
        raise error("no instances")
    assert path.exists() == bool(left)
    assert sorted(found.name for found in path.glob("*.*")) == left
