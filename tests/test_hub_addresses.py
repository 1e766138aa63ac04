"""HubLayer on addresses and Kaggle handles: what is downloaded once, and hostile archives and answers."""

import contextlib
import http.server
import io
import json
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import refused

from bert_keras.errors import MissingFileError
from bert_keras.io import archives
from bert_keras.model.tensorflow_layers import HubLayer


class Lengths(tf.Module):
    """A general text module: strings [B] -> float32 [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable([1.0, 2.0], name="scale")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        return tf.cast(tf.strings.length(text), tf.float32)[:, None] * self.scale


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("module")
    tf.saved_model.save(Lengths(), str(folder))
    return folder


def packed(folder: Path) -> bytes:
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            archive.add(folder, ".")
        return made.getvalue()


@contextlib.contextmanager
def serving(answers):
    """A server on loopback. answers: path -> (status, headers, body). Yields its address and the list of what was asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self._answer(*answers.get(self.path.partition("?")[0], (404, {}, b"no such model")))

        def do_POST(self):  # kagglesdk's calls: the last part of a path names the method
            given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(f"{self.path.rpartition('/')[2]} {given.get('path', '')}".strip())
            self._answer(*answers.get(asked[-1], (404, {}, b"no such model")))

        def _answer(self, status, headers, body):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    asked: list[str] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bert-keras" / "hub"


def test_an_address_is_downloaded_once(module, cache):
    with serving({"/google/lengths/1": (200, {}, packed(module))}) as (address, asked):
        given = f"{address}/google/lengths/1"
        first, second = HubLayer(given), HubLayer(given)
        moved = HubLayer.from_config(first.get_config())
    assert asked == ["/google/lengths/1?tf-hub-format=compressed"]
    assert first.get_config()["path"] == given  # an address, which another machine finds too
    for layer in (first, second, moved):
        assert np.array_equal(layer(tf.constant(["ab", ""])), [[2, 4], [0, 0]])
    assert len([*cache.iterdir()]) == 1  # the archive is gone


def test_answers_that_are_no_module(module, cache, monkeypatch):
    answers = {
        "/page": (200, {}, b"<!DOCTYPE html><p>Kaggle Models"),
        "/cut": (200, {}, packed(module)[:-100]),
        "/empty": (200, {}, b""),
        "/file": (302, {"Location": "file:///etc/passwd"}, b""),
        "/ftp": (302, {"Location": "ftp://127.0.0.1/x"}, b""),
        "/open": (302, {"Location": "http://example.invalid/x"}, b""),
        "/circle": (302, {"Location": "/circle"}, b""),
        "/large": (200, {}, bytes(2000)),
        "/other": (200, {}, packed(module / "variables")),
    }
    errors = {
        "/page": "is a page of HTML",
        "/cut": "cannot be unpacked",
        "/empty": "cannot be unpacked",
        "/file": "leads to file:///etc/passwd, which is not https",
        "/ftp": "leads to ftp://127.0.0.1/x, which is not https",
        "/open": "leads to http://example.invalid/x, which is not https",
        "/circle": "cannot be downloaded: Exceeded 30 redirects",
        "/absent": "cannot be downloaded: 404 Client Error",
        "/other": "no SavedModel at .*hub.KerasLayer.*https://tfhub.dev/.*Kaggle handle",
    }
    with serving(answers) as (address, _):
        for path, message in errors.items():
            refused(message, HubLayer, address + path, error=ValueError)
        monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 1000)
        refused("more than 1,000 bytes", HubLayer, f"{address}/large", error=ValueError)
    refused("cannot be downloaded", HubLayer, f"{address}/gone", error=MissingFileError)
    refused("http://example.com/x.*not https", HubLayer, "http://example.com/x", error=ValueError)
    assert not [found for found in cache.iterdir() if found.is_dir() and "other" not in found.name]


def entry(name, size=0, **fields):
    info = tarfile.TarInfo(name)
    info.size = size
    for field, value in fields.items():
        setattr(info, field, value)
    return info


HOSTILE = {
    "outside": ([entry("../outside")], "outside the destination"),
    "deep": ([entry("a/../../outside")], "outside the destination"),
    "link": ([entry("a", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "is a link or a device"),
    "hard": ([entry("a", type=tarfile.LNKTYPE, linkname="../outside")], "is a link or a device"),
    "device": ([entry("a", type=tarfile.CHRTYPE, devmajor=1, devminor=5)], "is a link or a device"),
    "pipe": ([entry("a", type=tarfile.FIFOTYPE)], "is a link or a device"),
    "bomb": ([entry("a", 3000)], "unpacks to 1 files of 3,000 bytes"),
    "parts": ([entry(f"a{i}", 400) for i in range(5)], "unpacks to 3 files of 1,200 bytes"),
    "sparse": ([entry("a", type=tarfile.GNUTYPE_SPARSE, size=1 << 40)], "unpacks to|cannot be unpacked"),
    "many": ([entry(f"a{i}") for i in range(8)], "unpacks to 7 files"),
    "header": ([entry("a", pax_headers={"comment": "x" * (2 << 20)})], "a header of 2,?09"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_leave_nothing(case, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_ARCHIVE_BYTES", 1000)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 6)
    members, message = HOSTILE[case]
    file = tmp_path / "x.tar.gz"
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            archive.addfile(
                member, io.BytesIO(bytes(member.size)) if member.type == tarfile.REGTYPE else None
            )
    refused(message, archives.unpack, file, tmp_path / "folder", error=ValueError)
    assert [found.name for found in tmp_path.iterdir()] == ["x.tar.gz"]


def test_an_absolute_path_stays_in_the_folder(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.addfile(entry(str(tmp_path / "outside")))
    archives.unpack(tmp_path / "x.tar.gz", tmp_path / "folder")
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


HANDLE = "google/lengths/tensorFlow2/small/3"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (HANDLE, HANDLE),
        (HANDLE.removesuffix("/3"), HANDLE.removesuffix("/3")),
        (f"kaggle://{HANDLE}", HANDLE),
        (f"https://www.kaggle.com/models/{HANDLE}", HANDLE),
        ("https://kaggle.com/models/google/lengths/frameworks/TensorFlow2/variations/small/versions/3",
         HANDLE.replace("tensorFlow2", "TensorFlow2")),
    ],
)  # fmt: skip
def test_the_spellings_of_a_kaggle_handle(given, wanted, monkeypatch, tmp_path):
    import kagglehub

    handles = []
    monkeypatch.setattr(kagglehub, "model_download", lambda handle: handles.append(handle) or str(tmp_path))
    assert archives.find_module(given) == tmp_path and handles == [wanted]


def test_a_kaggle_handle_is_downloaded_once(module, tmp_path, monkeypatch):
    """The real client. Its loopback port is 7777; each test here has a port of its own."""
    from kagglesdk import kaggle_env

    files = {str(file.relative_to(module)): file for file in module.rglob("*") if file.is_file()}
    listing = {"files": [{"name": name} for name in files], "nextPageToken": ""}
    answers = {
        "ListModelInstanceVersionFiles": (
            200,
            {"Content-Type": "application/json"},
            json.dumps(listing).encode(),
        )
    }
    answers |= {
        f"DownloadModelInstanceVersion {name}": (200, {}, file.read_bytes()) for name, file in files.items()
    }
    for name, value in {"KAGGLE_API_ENVIRONMENT": "TEST", "KAGGLEHUB_CACHE": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with serving(answers) as (address, asked):
        monkeypatch.setitem(kaggle_env._env_to_endpoint, kaggle_env.KaggleEnv.TEST, address)
        for _ in range(2):
            layer = HubLayer(HANDLE)
            assert np.array_equal(layer(tf.constant(["abc"])), [[3, 6]])
        assert len(asked) == 1 + len(files)
        answers.clear()
        refused(
            "is not in Kaggle's cache and cannot be downloaded",
            HubLayer,
            HANDLE.replace("3", "4"),
            error=MissingFileError,
        )
    assert layer.get_config()["path"] == HANDLE


def test_other_names_are_no_module():
    assert [archives.find_module(name) for name in ("runs/x", "org/name", "./a/b/keras/c", "gs://x/y")] == [
        None
    ] * 4
    refused(
        "names no Kaggle model; wanted OWNER/MODEL",
        archives.find_module,
        "kaggle://google/lengths",
        error=ValueError,
    )
