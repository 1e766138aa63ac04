"""One file at a time: several writers, killed writers, links and modes."""

import os
import signal
import stat
import threading
import time
import zipfile
from pathlib import Path

import filelock
import numpy as np
import pytest
from random_checkpoints import saves_with_keras

import bert_keras as bk
from bert_keras.io.files import atomic_file, write_json


def in_child(work) -> int:
    """The exit code of `work` in a forked process; negative for a signal."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_of_several_writers_publishes_a_whole_file(tmp_path):
    """All have one process number, as writers in two containers may have."""
    file, failures = tmp_path / "model", list[BaseException]()
    sizes = [10, 20_000, 30, 400_000]

    def write(size: int) -> None:
        try:
            for _ in range(10):
                with atomic_file(file) as temporary:
                    temporary.write_bytes(b"%d" % size + b" " * size)
                read = file.read_bytes()
                assert len(read) == len(read.split()[0]) + int(read.split()[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=[size]) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and names(tmp_path) == ["model"]


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_a_folder_that_another_writer_removed_is_made_again(error, tmp_path, monkeypatch):
    """pathlib's mkdir(exist_ok=True), which the lock calls, raises the second where the folder goes while it looks."""
    acquire, failures = filelock.FileLock.acquire, [error("gone")]

    def acquire_later(self, *given, **more):
        if failures:
            raise failures.pop()
        return acquire(self, *given, **more)

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire_later)
    with atomic_file(tmp_path / "model") as temporary:
        temporary.write_bytes(b"whole")
    assert (tmp_path / "model").read_bytes() == b"whole" and not failures


def test_the_next_write_removes_what_a_kill_has_left_and_spares_a_writer(tmp_path):
    def killed() -> None:
        with atomic_file(tmp_path / "model") as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == -signal.SIGKILL and len(names(tmp_path)) == 1
    with atomic_file(tmp_path / "model") as mine:
        mine.write_bytes(b"mine")
        assert len(names(tmp_path)) == 1  # what the kill left is gone
        with atomic_file(tmp_path / "other") as temporary:
            temporary.write_bytes(b"other")
    assert (tmp_path / "model").read_bytes() == b"mine" and names(tmp_path) == ["model", "other"]


@pytest.mark.parametrize("name", ["model", "é" * 120, ".hidden"])
@pytest.mark.parametrize(
    ("umask", "before", "after"), [(0o077, None, 0o600), (0o022, None, 0o644), (0o022, 0o600, 0o600)]
)
def test_a_mode_is_kept_and_a_new_file_follows_the_umask(tmp_path, name, umask, before, after):
    file, old = tmp_path / name, os.umask(umask)
    try:
        if before is not None:
            file.write_bytes(b"old")
            file.chmod(before)
        with atomic_file(file) as temporary:
            temporary.write_bytes(b"new")
            temporary.chmod(0o640)  # as a library may
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == after and file.read_bytes() == b"new"


def test_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/model")
    for content in (b"first", b"second"):  # at first there is no file behind the link
        with atomic_file(tmp_path / "link") as temporary:
            temporary.write_bytes(content)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "model").read_bytes() == content
    assert names(tmp_path) == ["disk", "link"] and names(tmp_path / "disk") == ["model"]


@pytest.mark.parametrize("wrong", [OSError, KeyboardInterrupt])
def test_an_error_changes_nothing(tmp_path, wrong):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(wrong), atomic_file(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise wrong
    assert names(tmp_path) == ["a.json"] and (tmp_path / "a.json").read_text() == "1\n"


@saves_with_keras
def test_every_file_of_a_model_follows_the_umask(tiny, tmp_path):
    old = os.umask(0o077)
    try:
        model = bk.classifier(tiny, ["bad", "good"], seq_length=16)
        model.save(tmp_path / "run")
        model.save(tmp_path / "model.keras")
    finally:
        os.umask(old)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} > {"model.safetensors", "model.keras"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@saves_with_keras
def test_a_clock_before_1980_is_no_zip_s_concern(tiny, tmp_path, monkeypatch):
    model = bk.classifier(tiny, ["bad", "good"], seq_length=16)
    monkeypatch.setattr(time, "localtime", lambda *seconds: time.gmtime(0))
    monkeypatch.setattr(zipfile.time, "localtime", time.localtime)
    model.save(tmp_path / "model.keras")
    assert names(tmp_path) == ["model.keras"]
    found = bk.load(tmp_path / "model.keras").predict(["a film"])["probabilities"]
    np.testing.assert_array_equal(found, model.predict(["a film"])["probabilities"])
