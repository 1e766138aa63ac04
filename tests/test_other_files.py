"""Folders of weights as people have them: what is read, what is refused, and what the refusal says to do."""

import json
import shutil
import zipfile

import numpy as np
import pytest
import runs
import safetensors.numpy

import bert_keras
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.tasks.runs.run_folder import load_run

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return runs.write_checkpoint(tmp_path_factory.mktemp("weights") / "checkpoint", num_layers=2)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change(file, **fields):
    content = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def tensors(folder):
    return safetensors.numpy.load_file(folder / WEIGHTS)


def save(folder, content, name=WEIGHTS, **metadata):
    safetensors.numpy.save_file(content, folder / name, metadata={"format": "pt"} | metadata)


# The first bytes of a weight file, and facts of the refusal.
CONTENTS = [
    (b"", "is empty | bring the file again"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer | git lfs pull"),
    (b"\n<!DOCTYPE html><html>Not found</html>", "page of HTML | download"),
    (b"GGUF\x03\x00", "GGUF"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
]


@pytest.mark.parametrize("name", [WEIGHTS, "pytorch_model.bin"])
@pytest.mark.parametrize(("content", "facts"), CONTENTS)
def test_a_refusal_says_what_the_content_is(content, facts, name, copy):
    (copy / WEIGHTS).unlink()
    (copy / name).write_bytes(content)
    with pytest.raises(BertKerasError) as error:
        checkpoints.read(copy)
    assert all(fact in str(error.value) for fact in [name, *facts.split(" | ")]), error.value


def two_encoders(copy):
    save(copy, {f"{tower}.{name}": value for tower in "ab" for name, value in tensors(copy).items()})


def own_file_with(**fields):
    def damage(copy):
        change(copy / "config.json", model_type="bert_keras", **fields)

    return damage


def lost_tensor(copy):
    shards(copy)
    change(copy / f"{WEIGHTS}.index.json", weight_map={"bert.lost": "a.safetensors"})


REFUSED = [
    (two_encoders, "2 encoders | a., b."),
    (own_file_with(gain=2), "unknown key gain | this package"),
    (lost_tensor, "lacks bert.lost | index"),
]


@pytest.mark.parametrize(("damage", "facts"), REFUSED)
def test_weights_that_are_refused(damage, facts, copy):
    damage(copy)
    with pytest.raises(BertKerasError) as error:
        checkpoints.read(copy)
    assert all(fact in str(error.value) for fact in facts.split(" | ")), error.value


def prefixed(prefix):
    def rename(copy):
        save(copy, {f"{prefix}{name}": value for name, value in tensors(copy).items()})

    return rename


def without_model(prefix):
    def rename(copy):
        save(copy, {name.replace("bert.", prefix, 1): value for name, value in tensors(copy).items()})

    return rename


def old_name_of_the_config(copy):
    (copy / "config.json").rename(copy / "bert_config.json")
    change(copy / "bert_config.json", model_type=..., architectures=...)


def shards(copy):
    """Two files that hold all tensors; the wrong values are in the one that the index does not name."""
    right = tensors(copy)
    save(copy, right, "a.safetensors")
    save(copy, {name: value + 1 for name, value in right.items()}, "b.safetensors")
    names = {name: "a.safetensors" for name in right}
    (copy / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": names}))
    (copy / WEIGHTS).unlink()


def two_shards(copy):
    """Each file has a tensor that the index takes from it, and other values of the rest."""
    shards(copy)
    right = safetensors.numpy.load_file(copy / "a.safetensors")
    last = max(right)
    save(copy, {name: value + (name != last) for name, value in right.items()}, "b.safetensors")
    save(copy, {name: value + (name == last) for name, value in right.items()}, "a.safetensors")
    names = {name: "b.safetensors" if name == last else "a.safetensors" for name in right}
    change(copy / f"{WEIGHTS}.index.json", weight_map=names)


READ = [
    *map(prefixed, ("model.", "bert.", "module.", "_orig_mod.module.", "student.net.")),
    *map(without_model, ("0.auto_model.", "encoder_q.", "")),
    old_name_of_the_config,
    two_shards,
    *(
        lambda copy, fields=fields: change(copy / "config.json", **fields)
        for fields in (
            {"position_embedding_type": None},
            {"id2label": {"0": 1, "1": 2.5}},
            {"problem_type": "token_classification"},
            {"is_decoder": None},
        )
    ),
]


@pytest.mark.parametrize("make", READ)
def test_weights_that_are_read(make, folder, copy):
    make(copy)
    wanted, found = checkpoints.read(folder), checkpoints.read(copy)
    assert found.config == wanted.config and found.unknown == ()
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, value in wanted.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], value, err_msg=name)


def test_layers_that_the_config_leaves_out_are_said(copy):
    change(copy / "config.json", num_hidden_layers=1)
    with pytest.warns(UserWarning, match="more layers than num_hidden_layers, 1"):
        assert checkpoints.read(copy).config.num_layers == 1


def test_a_run_with_an_unknown_key_is_refused(sst2, tmp_path):
    run = shutil.copytree(sst2.run, tmp_path / "run")
    change(run / "config.json", gain=2)
    with pytest.raises(BertKerasError, match="unknown key gain"):
        load_run(run)


def test_the_latest_of_several_tensorflow_checkpoints_is_read(folder, tmp_path):
    given = checkpoints.read(folder)
    for number in (1, 2):
        checkpoints.write(given, tmp_path / str(number), format="google")
    for part in (tmp_path / "1").glob("bert_model.ckpt.*"):
        part.rename(tmp_path / "2" / part.name.replace("bert_model.ckpt", "model.ckpt-1"))
    for part in (tmp_path / "2").glob("bert_model.ckpt.*"):
        part.rename(part.with_name(part.name.replace("bert_model.ckpt", "model.ckpt-2")))
    with pytest.raises(BertKerasError, match="2 TensorFlow checkpoints"):
        checkpoints.read(tmp_path / "2")
    (tmp_path / "2" / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-1"\n')
    assert checkpoints.read(tmp_path / "2").path.endswith("model.ckpt-1")


# -----------------------------------------------------------------------------------------------------------
# The constructor accepts what the reader accepts

MADE = [
    (lambda folder: bert_keras.tagger(folder, ["PER", "PER"]), "labels"),
    (lambda folder: bert_keras.question_answerer(folder, n_best=3.0), "n_best"),
    (lambda folder: bert_keras.masked_lm(folder, top_k=1_000_001), "top_k"),
    (lambda folder: bert_keras.classifier(folder, ["a", "\ud800"]), "labels"),
    (lambda folder: bert_keras.classifier(folder, ["a", "a"]), "labels"),
    (lambda folder: bert_keras.chooser(folder, 1_000_000), "num_choices"),
]


@pytest.mark.parametrize(("make", "named"), MADE)
def test_a_model_that_no_reader_would_take_is_not_made(make, named, folder):
    with pytest.raises(ValueError, match=named):
        make(folder)


def test_numbers_of_numpy_are_saved(folder, tmp_path):
    model = bert_keras.classifier(folder, ["a", "b"], seq_length=np.int64(16))
    for name in ("model.keras", "run"):
        model.save(tmp_path / name)
        assert bert_keras.load(tmp_path / name).preprocess.seq_length == 16


# -----------------------------------------------------------------------------------------------------------
# Damaged `.keras` files


@pytest.fixture(scope="module")
def saved(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    bert_keras.classifier(folder, ["a", "b", "c"]).save(path)
    return path


def rewritten(path, changed):
    """The archive with changed members. changed: name, bytes -> bytes, or None to leave the member out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if (content := changed(name, content)) is not None:
                archive.writestr(name, content)


def one_bit(path):
    with zipfile.ZipFile(path) as archive:
        member = next(
            one for one in archive.infolist() if one.filename.startswith("assets/") and one.file_size
        )
    content = bytearray(path.read_bytes())
    content[member.header_offset + 30 + len(member.filename) + 5] ^= 1
    path.write_bytes(content)


def without(member):
    return lambda path: rewritten(path, lambda name, content: None if name == member else content)


def emptied(member):
    return lambda path: rewritten(path, lambda name, content: b"" if name == member else content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def configured(edit):
    """Another config of the model."""

    def changed(name, content):
        if name != "config.json":
            return content
        fields = json.loads(content)
        edit(fields["config"])
        return json.dumps(fields).encode()

    return lambda path: rewritten(path, changed)


DAMAGED = [
    *(one_bit, cut),
    *map(without, ("config.json", "model.weights.h5")),
    *map(emptied, ("config.json", "model.weights.h5")),
    configured(lambda config: config["problem"]["task"].update(labels=["a", "b"])),
    configured(lambda config: config["problem"]["task"].update(labels=[], label_type="score")),
    configured(lambda config: config.update(seq_length=10**9)),
    configured(lambda config: config.pop("problem")),
    configured(lambda config: config["problem"].update(kind="no")),
]


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_damaged_file_is_one_line(damage, saved, tmp_path, monkeypatch, capfd):
    path, left = tmp_path / "model.keras", tmp_path / "unpacked"
    shutil.copyfile(saved, path)
    damage(path)
    left.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(left))
    with pytest.raises(BertKerasError) as error:
        bert_keras.load(path)
    assert "\n" not in str(error.value)
    assert not [*left.iterdir()]
    (tmp_path / "texts.txt").write_text("a\n")
    code, _, err = runs.run_command(capfd, "predict", "--run", path, "--input", tmp_path / "texts.txt")
    assert code == 1 and err.count("\n") == 1, err


def test_a_network_with_other_logits_than_labels_is_refused(folder):
    model = bert_keras.classifier(folder, ["a", "b", "c"])
    two = type(model.problem)(["a", "b"])
    with pytest.raises(BertKerasError, match="3 logits and its problem 2 labels"):
        type(model)(two, model.preprocess, model.network)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "logs"])
def test_a_run_that_names_other_files_is_refused(name, sst2, tmp_path):
    run = shutil.copytree(sst2.run, tmp_path / "run")
    change(run / "results.json", files={name: "0"})
    with pytest.raises(BertKerasError, match="no file of a run"):
        load_run(run)
