"""Artifacts of every released version give the answers that they gave on it."""

import importlib.util
import json
import shutil
import tarfile
import warnings

import numpy as np
import pytest
from artifacts.make import EXPECTED, FILES, HERE, READERS, main, plain

import bert_keras
from bert_keras.errors import BertKerasError
from bert_keras.io.formats import MANIFEST
from bert_keras.savedmodels.converters import RUNTIMES

KEPT = sorted(path.parent for path in HERE.glob(f"*/{EXPECTED}"))
CASES = [(place, kind) for place in KEPT for kind in json.loads((place / EXPECTED).read_text())]

# The file with the number, by kind.
STAMPS = {
    "run": "task.json",
    "features-run": "task.json",
    "unfinished": "checkpoints/settings.json",
    "vectors": "header.json",
    "instances": "manifest.json",
    "protocol": "results.json",
    "probe": "probe.json",
    "export": MANIFEST,
    "hub": f"preprocess/{MANIFEST}",
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Version -> the folder with its artifacts."""
    made = {}
    for place in KEPT:
        made[place] = tmp_path_factory.mktemp("artifacts") / place.name
        with tarfile.open(place / FILES) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
            archive.extractall(made[place])
    return made


def compare(found, expected, where=""):
    """Texts and whole numbers are equal, other numbers to 1e-5."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), where  # a new version may add outputs
        for name, value in expected.items():
            compare(found[name], value, f"{where}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            compare(found[i], value, f"{where}/{i}")
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=where)
    else:
        assert found == expected, where


@pytest.mark.long
@pytest.mark.parametrize(("place", "kind"), CASES, ids=lambda one: getattr(one, "name", one))
def test_an_old_artifact_gives_its_old_answers(place, kind, unpacked):
    if kind in RUNTIMES:
        for package in RUNTIMES[kind].packages:
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
    expected = json.loads((place / EXPECTED).read_text())[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorFlow's and Keras' loaders
        found = plain(READERS[kind](unpacked[place] / kind))
    compare(json.loads(json.dumps(found)), expected)


@pytest.mark.parametrize(("kind", "file"), STAMPS.items())
def test_an_artifact_of_a_newer_format_is_refused(kind, file, unpacked, tmp_path):
    shutil.copytree(unpacked[KEPT[-1]] / kind, tmp_path / kind)
    content = json.loads((tmp_path / kind / file).read_text()) | {
        "format_version": 99,
        "written_by": "bert-keras 9",
    }
    (tmp_path / kind / file).write_text(json.dumps(content))
    newer = f"{file}: this .* has format_version 99, written by bert-keras 9, .*; upgrade: pip install -U bert-keras"
    with pytest.raises(BertKerasError, match=newer):
        READERS[kind](tmp_path / kind)


def test_every_version_keeps_every_kind():
    assert HERE / bert_keras.__version__ in KEPT
    for place in KEPT:
        with tarfile.open(place / FILES) as archive:
            kinds = {name.split("/")[0] for name in archive.getnames()}
        assert kinds == json.loads((place / EXPECTED).read_text()).keys()
        assert sum(file.stat().st_size for file in place.iterdir()) < 400_000
    assert kinds == READERS.keys()


def test_a_kept_version_is_never_written_again():
    with pytest.raises(SystemExit, match="is there already, and a release never changes its artifacts"):
        main()


def test_a_changed_answer_is_noticed():
    expected = {"label": ["good"], "p": [[0.25, 0.75]]}
    compare({**expected, "more": 1}, expected)
    for changed in ({"label": ["bad"]}, {"p": [[0.2501, 0.7499]]}, {"p": [[0.25]]}):
        with pytest.raises(AssertionError):
            compare(expected | changed, expected)
