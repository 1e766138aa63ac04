"""Models by name: the real client of the Hugging Face Hub, on a loopback server; archives and presets without a network."""

import functools
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub, Repository, serving
from random_checkpoints import refused
from runs import ROOT, SIZES, bare_environment, run_command, write_checkpoint, write_data
from tensorflow_files import write_tf_h5

from bert_keras import checkpoints
from bert_keras.checkpoints import downloads
from bert_keras.checkpoints.published import (
    ADDRESSES,
    GOOGLE_ARCHIVES,
    KNOWN,
    MODEL_GARDEN_ARCHIVES,
    TF_HUB_URL,
)
from bert_keras.checkpoints.sentence_transformers import (
    read_sentence_settings,
    sentence_folder,
    write_sentence_settings,
)
from bert_keras.errors import MissingFileError
from bert_keras.io import archives
from bert_keras.tasks.problems.embedding import Embedding

FIRST, SECOND = "a" * 40, "b" * 40  # commits
CHUNK = 10 * 1024 * 1024  # bytes that the client writes at a time; it resumes after whole chunks

# Reads each of argv[1:] and prints what came: the origin, the number of tokens and tensors, or the error's type and text.
READ = """
import json, sys
from bert_keras import checkpoints
for name in sys.argv[1:]:
    try:
        found = checkpoints.read(name)
        made = {**found.origin, "tokens": len(found.vocabulary.tokens or ()), "tensors": len(found.tensors)}
    except ValueError as error:
        made = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """The files of a tiny checkpoint."""
    return contents(write_checkpoint(tmp_path_factory.mktemp("tiny"), num_layers=1))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def environment(hub: Hub | str, home: Path, **more: str) -> dict[str, str]:
    """Of a process that asks this server and has its cache in `home`; huggingface_hub reads it once."""
    address = hub if isinstance(hub, str) else hub.address
    kept = {name: value for name, value in bare_environment().items() if not name.startswith("HF_")}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_ENDPOINT": address, "HF_HOME": str(home)} | more


def read(hub: Hub | str, home: Path, *names: str, code: str = READ, **more: str) -> list[dict[str, Any]]:
    """Calls `checkpoints.read` with each name, in a separate process in an empty folder."""
    home.mkdir(exist_ok=True)
    how = {"env": environment(hub, home, **more), "cwd": home, "timeout": 60}
    line = [sys.executable, "-c", code, *names]
    done = subprocess.run(line, capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def asked_for(hub: Hub, *, method: str = "GET") -> list[str]:
    """The files that were downloaded, in order."""
    return [line.split("/")[-1] for line in hub.log if line.startswith(method) and "/resolve/" in line]


def test_a_name_an_address_and_a_revision(tmp_path, files):
    card = {"license": "mit"}
    others = ("README.md", "tf_model.h5", "pytorch_model.bin", "onnx/model.onnx")
    whole = files | dict.fromkeys(others, b"x")
    served = {
        "google-bert/bert-base-uncased": Repository(whole, revisions={"main": FIRST, "v1": SECOND}),
        "org/own": Repository(files, card=card),
    }
    names = ("bert-base-uncased", "google-bert/bert-base-uncased@v1", "hf://org/own", f"org/own@{FIRST}")
    with serving(served) as hub:
        plain, tagged, own, commit = read(hub, tmp_path / "home", *names)
        downloaded = asked_for(hub)
    address = "hf://google-bert/bert-base-uncased"
    assert (plain["model"], plain["revision"], plain["license"]) == (address, FIRST, "apache-2.0")
    assert (tagged["model"], tagged["revision"]) == (address, SECOND)
    assert (own["model"], own["revision"], own["license"]) == ("hf://org/own", FIRST, "mit")
    assert commit == own
    assert plain["tokens"] == own["tokens"] == SIZES["vocab_size"] and plain["tensors"] == own["tensors"] > 20
    # The second commit has the first one's files, and the other frameworks' weights are left on the server.
    assert sorted(name.split(":")[0] for name in downloaded) == sorted([*files, *files])


def test_a_connection_that_breaks_is_resumed_from_where_it_broke(tmp_path):
    large = contents(write_checkpoint(tmp_path / "large", vocab_size=60_000))
    size = len(large["model.safetensors"])
    assert size > CHUNK + 1000
    cut = {"model.safetensors": CHUNK + 1000}
    with serving({"org/large": Repository(large, cut=cut)}) as hub:
        (found,) = read(hub, tmp_path / "home", "org/large")
        first, second = (line for line in hub.log if line.startswith("GET") and "safetensors" in line)
    assert found["tensors"] > 20
    assert first.endswith(f"200, closed after {CHUNK + 1000:,} of {size:,} bytes")
    assert second.endswith(f"bytes={CHUNK}-: 206")


def test_a_download_that_was_killed_leaves_no_model_and_the_next_one_is_whole(tmp_path, files):
    home = tmp_path / "home"
    home.mkdir()
    with serving({"org/own": Repository(files, stall={"model.safetensors": 1000})}) as hub:
        how = {"env": environment(hub, home), "cwd": home, "stderr": subprocess.DEVNULL}
        with subprocess.Popen([sys.executable, "-c", READ, "org/own"], **how) as process:
            while not any("closed after 1,000" in line for line in hub.log):
                assert process.poll() is None
                time.sleep(0.05)
            process.kill()
        (offline,) = read(hub, home, "org/own", HF_HUB_OFFLINE="1")
        hub.log.clear()
        (found,) = read(hub, home, "org/own")
        assert asked_for(hub) == ["model.safetensors: 200"]
    assert offline["error"] == "MissingFileError" and "not in the cache" in offline["text"]
    assert found["tensors"] > 20


def test_without_a_network_the_cache_is_read_or_the_error_says_what_to_run(tmp_path, files):
    home = tmp_path / "home"
    with serving({"org/own": Repository(files)}) as hub:
        (online,) = read(hub, home, "org/own")
        closed = hub.address
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        cached, absent = read(closed, home, "org/own", "bert-base-uncased@v1", **more)
        assert {**cached, "license": ""} == {**online, "license": ""}
        assert absent["error"] == "MissingFileError"
        advice = "hf download google-bert/bert-base-uncased --revision v1 --local-dir bert-base-uncased"
        assert advice in absent["text"] and str(home) in absent["text"]
        assert ("HF_HUB_OFFLINE is set" if more else "no connection") in absent["text"]


def test_refusals_of_the_hub_are_one_line_that_says_what_to_do(tmp_path, files):
    bare = {name: content for name, content in files.items() if name != "model.safetensors"}
    config = json.loads(files["config.json"])
    served = {
        "org/own": Repository(files),
        "org/private": Repository(files, token="open sesame"),
        "org/gated": Repository(files, token="open sesame", gated=True),
        "org/flax": Repository(bare | {"flax_model.msgpack": b""}),
        "org/torch": Repository(bare | {"pytorch_model.bin": b"no such bytes"}),
        "org/bart": Repository(files | {"config.json": json.dumps(config | {"model_type": "bart"}).encode()}),
    }
    wanted = {
        "org/absent": ("MissingFileError", "has no model org/absent", "hf auth login"),
        "bert-base-uncsed": ("MissingFileError", "did you mean bert-base-uncased"),
        "org/private": ("MissingFileError", "has no model org/private, or it is private", "HF_TOKEN"),
        "org/gated": ("BertKerasError", "is gated", "/org/gated", "HF_TOKEN"),
        "org/own@v9": ("MissingFileError", "hf://org/own has no revision v9"),
        "org/flax": (
            "BertKerasError",
            "no weights that can be read",
            "flax_model.msgpack",
            "model.safetensors",
            "tf_model.h5",
        ),
        "org/torch": ("BertKerasError", "hf://org/torch", "pytorch_model.bin", "torch is not installed"),
        "org/bart": ("BertKerasError", "model_type", "bart", "albert"),
    }
    without_torch = "import sys; sys.modules['torch'] = None\n" + READ
    with serving(served) as hub:
        found = read(hub, tmp_path / "home", *wanted, code=without_torch)
        weights = [name for name in asked_for(hub) if name.startswith(("model.", "pytorch_model."))]
        (opened,) = read(hub, tmp_path / "home", "org/private", HF_TOKEN="open sesame")
        (unknown,) = read(hub, tmp_path / "home", "org/absent", HF_TOKEN="open sesame")
    for (name, (kind, *facts)), answer in zip(wanted.items(), found, strict=True):
        assert answer.get("error") == kind, (name, answer)
        assert not [fact for fact in facts if fact not in answer["text"]], (name, answer)
        assert "\n" not in answer["text"]
    assert weights == []  # nothing large was downloaded for an error
    assert opened["revision"] == FIRST
    assert "has no model org/absent" in unknown["text"]


def test_weights_of_tensorflow_are_downloaded_where_there_are_no_safetensors(tmp_path, files):
    (tmp_path / "own").mkdir()
    for name, content in files.items():
        (tmp_path / "own" / name).write_bytes(content)
    write_tf_h5(tmp_path / "own")
    served = {file.name: file.read_bytes() for file in (tmp_path / "own").iterdir()}
    with serving({"org/own": Repository(served | {"pytorch_model.bin": b"x"})}) as hub:
        (found,) = read(hub, tmp_path / "home", "org/own")
        downloaded = asked_for(hub)
    assert (
        found["tensors"] > 20
        and "tf_model.h5" in str(downloaded)
        and "pytorch_model.bin" not in str(downloaded)
    )


@pytest.mark.parametrize("online", [True, False])
def test_a_misspelled_name_ends_in_our_line_alone(ask_here, monkeypatch, capfd, online):
    with serving({}) as hub:
        ask_here(hub)
        if not online:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(MissingFileError) as caught:
            checkpoints.read("bert-bse-uncasd")
    text = "".join(traceback.format_exception(caught.value))
    assert "did you mean bert-base-uncased" in text.splitlines()[-1]
    assert "huggingface_hub" not in text and "httpx" not in text, text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parity
def test_pytorch_weights_are_downloaded_where_there_are_no_others(tmp_path, files):
    torch = pytest.importorskip("torch")
    from safetensors.numpy import load

    tensors = {name: torch.from_numpy(array) for name, array in load(files["model.safetensors"]).items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    bare = {name: content for name, content in files.items() if name != "model.safetensors"}
    bare["pytorch_model.bin"] = (tmp_path / "pytorch_model.bin").read_bytes()
    with serving({"org/torch": Repository(bare)}) as hub:
        (found,) = read(hub, tmp_path / "home", "org/torch")
    assert found["tensors"] > 20


def test_shards_and_a_missing_vocabulary(tmp_path, files):
    tokenizer = ("vocab.txt", "tokenizer_config.json")
    bare = {name: content for name, content in files.items() if name not in tokenizer}
    from safetensors.numpy import load, save

    tensors = load(bare.pop("model.safetensors"))
    names = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for shard in set(names.values()):
        bare[shard] = save({name: tensors[name] for name in tensors if names[name] == shard})
    bare["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    with serving({"org/shards": Repository(bare)}) as hub:
        (found,) = read(hub, tmp_path / "home", "org/shards")
    assert (found["tensors"], found["tokens"]) == (len(tensors), 0)
    # In this process, which has TensorFlow.
    from_cache = checkpoints.read(tmp_path / "home" / "hub" / "models--org--shards" / "snapshots" / FIRST)
    refused("no vocabulary; put the model's vocab.txt into its folder", checkpoints.tokenizer_of, from_cache)


@pytest.fixture
def ask_here(monkeypatch, tmp_path):
    """Has huggingface_hub in this process, which has TensorFlow, ask a server."""

    def ask(hub: Hub) -> None:
        from huggingface_hub import constants

        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    return ask


def test_a_tokenizer_by_name_downloads_no_weights(ask_here, files):
    with serving({"org/own": Repository(files)}) as hub:
        ask_here(hub)
        assert checkpoints.load_tokenizer("org/own").vocab_size == SIZES["vocab_size"]
        assert "vocab.txt: 200" in asked_for(hub) and "model.safetensors: 200" not in asked_for(hub)


def test_the_files_of_sentence_transformers_come_along(ask_here, tmp_path, files):
    (tmp_path / "st").mkdir()
    arguments = vars(Embedding(pooling="cls", l2=True, dense_size=2, prompts={"query": "a "}))
    dense = [np.ones((8, 2), "float32"), np.ones(2, "float32")]
    write_sentence_settings(tmp_path / "st", arguments, dense, width=8, seq_length=9)
    of_modules = {
        str(file.relative_to(tmp_path / "st")): file.read_bytes()
        for file in (tmp_path / "st").rglob("*")
        if file.is_file()
    }
    with serving({"org/st": Repository(files | of_modules | {"2_Dense/pytorch_model.bin": b"x"})}) as hub:
        ask_here(hub)
        folder = checkpoints.resolve("org/st").path
        assert {file for file in asked_for(hub) if "pytorch" in file} == set()
    found = read_sentence_settings(folder)
    assert found.arguments["pooling"] == "cls" and found.arguments["dense_size"] == 2
    assert [one.shape for one in found.dense.values()] == [(8, 2), (2,)]
    assert sentence_folder(folder) == folder


@pytest.mark.long
def test_finetune_from_a_name_remembers_the_model_and_its_commit(ask_here, capfd, tmp_path, files):
    data, run = write_data(tmp_path / "data", "sst2", count=16), tmp_path / "run"
    flags = ["--task", "sst2", "--data", data, "--checkpoint", "org/own@v1", "--output", run]
    flags += ["--epochs", "1", "--batch-size", "8", "--seq-length", "16"]
    served = {"org/own": Repository(files, revisions={"main": FIRST, "v1": SECOND}, card={"license": "mit"})}
    with serving(served) as hub:
        ask_here(hub)
        code, _, err = run_command(capfd, "finetune", *flags)
    assert code == 0, err
    results = json.loads((run / "results.json").read_text())
    assert (
        results["origin"].items() >= {"model": "hf://org/own", "revision": SECOND, "license": "mit"}.items()
    )
    assert results["steps"] == 2
    from huggingface_hub import ModelCard

    card = ModelCard.load(run / "README.md")
    about = card.data.to_dict()
    wanted = {"license": "mit", "base_model": "org/own", "pipeline_tag": "text-classification"}
    assert about.items() >= wanted.items()
    assert about["metrics"] == ["accuracy"] and "sst2" in about["tags"]
    assert SECOND in card.text and f"| accuracy | {results['measures']['val_accuracy']:.4f} |" in card.text


# -----------------------------------------------------------------------------------------------------------
# Paths, tables and archives


def test_a_path_is_never_looked_up(tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    # Calling None is a TypeError.
    monkeypatch.setattr(downloads, "SCHEMES", dict.fromkeys(downloads.SCHEMES, None))
    (tmp_path / "bert-base-uncased").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "bert_model.ckpt.index").touch()
    paths = ("bert-base-uncased", "./x", "../x", "/x", "~/x", "runs/x", "a/b/c", "x y", "bert_model.ckpt")
    for path in paths:
        found = checkpoints.resolve(path)
        assert (found.path, found.origin) == (Path(os.path.expanduser(path)), {})
    assert checkpoints.resolve(Path("bert-base-cased")).path == Path("bert-base-cased")
    for name in ("bert-base-cased", "org/name", "hf://bert-base-uncased"):
        with pytest.raises(TypeError):
            checkpoints.resolve(name)


def test_files_with_close_names_are_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "minilm-sst2").mkdir(parents=True)
    refused(r"did you mean runs/minilm-sst2\?", checkpoints.read, "runs/minilm-sst", error=MissingFileError)
    message = "no address of a model; addresses are hf://NAME, google://NAME"
    refused(message, checkpoints.read, "ftp://bucket/model", error=MissingFileError)
    refused("s3://bucket/model: .* local disk; copy it there first", checkpoints.read, "s3://bucket/model")


def test_the_addresses_of_names():
    assert len(KNOWN) == len(ADDRESSES)
    wanted = {
        "bert-base-uncased": "hf://google-bert/bert-base-uncased",
        "bert-base-uncased@v1": "hf://google-bert/bert-base-uncased@v1",
        "albert-base-v2": "hf://albert/albert-base-v2",
        "org/name@refs/pr/4": "hf://org/name@refs/pr/4",
        "uncased_L-12_H-768_A-12": "google://uncased_L-12_H-768_A-12",
        "bert_tiny_en_uncased": "keras_hub://bert_tiny_en_uncased",
        f"{TF_HUB_URL}bert_zh_L-12_H-768_A-12/4": "model_garden://chinese_L-12_H-768_A-12",
        f"{TF_HUB_URL}small_bert/bert_en_uncased_L-2_H-128_A-2/2": f"{TF_HUB_URL}small_bert/bert_en_uncased_L-2_H-128_A-2/2",
        "google/electra/tensorFlow2/small/2": "kaggle://google/electra/tensorFlow2/small/2",
        "google://x": "google://x",
    }
    assert {name: downloads.find_address(name) for name in wanted} == wanted
    assert GOOGLE_ARCHIVES["uncased_L-12_H-768_A-12"] == "2018_10_18/uncased_L-12_H-768_A-12.zip"
    assert GOOGLE_ARCHIVES["uncased_L-8_H-512_A-8"] == "2020_02_20/uncased_L-8_H-512_A-8.zip"
    assert (len(GOOGLE_ARCHIVES), len(MODEL_GARDEN_ARCHIVES)) == (24 + 8, 8)


@pytest.mark.parametrize(("scheme", "suffix"), [("google", "zip"), ("model_garden", "gztar")])
def test_an_archive_is_downloaded_and_unpacked_once(tmp_path, monkeypatch, files, scheme, suffix):
    name = "uncased_L-12_H-768_A-12"
    content = tmp_path / "content" / name
    content.mkdir(parents=True)
    for file, data in files.items():
        (content / file).write_bytes(data)
    archive = Path(shutil.make_archive(str(tmp_path / "archive"), suffix, content.parent))
    path = (GOOGLE_ARCHIVES if scheme == "google" else MODEL_GARDEN_ARCHIVES)[name]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving({"archives/of": Repository({path: archive.read_bytes()})}) as hub:
        base = f"{hub.address}/archives/of/resolve/main/"
        files_by_name = {name: path, "absent": "absent.zip"}
        resolver = functools.partial(
            downloads._from_archives, scheme=scheme, archives=files_by_name, base=base
        )
        found = resolver(name, name, True)
        assert resolver(name, name, True) == found
        assert len(hub.log) == 1
        message = "absent.zip cannot be downloaded: 404 .* its path"
        refused(message, resolver, "absent", "absent", True, error=MissingFileError)
    assert found.origin == {"model": f"{scheme}://{name}", "license": "apache-2.0"}
    assert checkpoints.read(found).origin == found.origin
    assert [file.name for file in found.path.parent.parent.iterdir()] == [name]  # the archive is gone
    refused(f"{scheme} has {name}", resolver, "another", "another", True, error=MissingFileError)


def test_an_archive_cut_short_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 cut short")
    refused("x.zip cannot be unpacked: .* remove it", archives.unpack, tmp_path / "x.zip", tmp_path / "x")
    assert [file.name for file in tmp_path.iterdir()] == ["x.zip"]


def test_keras_hub_presets_are_the_librarys(tmp_path, monkeypatch, files):
    import kagglehub
    import keras_hub

    presets = keras_hub.models.BertBackbone.presets
    ours = {address: model for address, model in ADDRESSES.items() if address.startswith("keras_hub://")}
    for address, model in ours.items():
        assert presets[address.removeprefix("keras_hub://")]["metadata"]["params"] == model.parameters
    handles = []
    monkeypatch.setattr(kagglehub, "model_download", lambda handle: handles.append(handle) or str(tmp_path))
    found = downloads.resolve("bert_tiny_en_uncased")
    handle = presets["bert_tiny_en_uncased"]["kaggle_handle"].removeprefix("kaggle://")
    assert handles == [handle]
    assert found.origin == {
        "model": "keras_hub://bert_tiny_en_uncased",
        "revision": handle.rpartition("/")[2],
        "license": "apache-2.0",
    }
    message = "no preset of BERT named bert_tiny_uncased; .*bert_tiny_en_unc"
    refused(message, downloads.resolve, "keras_hub://bert_tiny_uncased", error=MissingFileError)

    def refuse(handle):
        raise ConnectionError("no route to Kaggle")

    monkeypatch.setattr(kagglehub, "model_download", refuse)
    message = f"no route to Kaggle.*versions download {handle}"
    refused(message, downloads.resolve, "bert_tiny_en_uncased", error=MissingFileError)


def test_the_list_of_models(capfd):
    code, out, err = run_command(capfd, "models", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, err, len(rows)) == (0, "", len(KNOWN))
    assert rows["bert-base-uncased"] == {
        "name": "bert-base-uncased", "address": "hf://google-bert/bert-base-uncased", "family": "bert",
        "cased": False, "layers": 12, "hidden": 768, "vocabulary": 30522, "parameters": 109_482_240,
        "license": "apache-2.0", "license_source": "github.com/google-research/bert, README",
    }  # fmt: skip
    code, out, err = run_command(capfd, "models")
    assert (code, err) == (0, "")
    assert not [name for name in KNOWN if f" {name} " not in out]  # none is cut
