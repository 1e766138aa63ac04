"""Hugging Face files in other forms: old names, prefixes, shards, PyTorch."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from random_checkpoints import (
    PIECES,
    TINY,
    assert_same,
    random_checkpoint,
    refused,
    safetensors_folder,
    their_tensors,
    with_vocabulary,
)

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import numpy_dtype
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead


def test_old_names_no_prefix_buffers_and_repeated_tables(tmp_path):
    checkpoint = random_checkpoint()
    theirs = their_tensors(checkpoint)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta")
        .removeprefix("bert."): v
        for name, v in theirs.items()
    }
    old["embeddings.position_ids"] = np.arange(10)[None]
    old["cls.predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = theirs["cls.predictions.bias"]
    old["something.else"] = np.zeros(3, "float32")
    again = checkpoints.read(safetensors_folder(tmp_path / "old", old))
    assert again.unknown == ("something.else",)
    assert_same(with_vocabulary(dataclasses.replace(again, unknown=()), tokens=PIECES), checkpoint)
    report = checkpoints.assign(again, BertEncoder(TINY))
    assert report.unused[-1] == "something.else"
    assert "something.else" in str(report)

    old["embeddings.LayerNorm.weight"] = old["embeddings.LayerNorm.gamma"] + 1
    folder = safetensors_folder(tmp_path / "two", old)
    refused("LayerNorm.weight and embeddings.LayerNorm.gamma .* differ", checkpoints.read, folder)


def test_a_masked_lm_head_with_embeddings_of_its_own_is_left_out(tmp_path):
    """Ours computes with the encoder's; the encoder is read all the same."""
    checkpoint = dataclasses.replace(random_checkpoint(), architecture="ForPreTraining")
    theirs = their_tensors(checkpoint)
    theirs["cls.predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"] + 1
    theirs["cls.predictions.decoder.bias"] = theirs["cls.predictions.bias"]
    folder = safetensors_folder(
        tmp_path / "untied", theirs, tie_word_embeddings=False, architectures=["BertForPreTraining"]
    )
    again = checkpoints.read(folder)
    left = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("masked_lm/")}
    assert {name for name in theirs if name.startswith("cls.predictions.")} == {*again.unknown}
    assert again.architecture is None
    assert_same(
        dataclasses.replace(again, unknown=()),
        with_vocabulary(dataclasses.replace(checkpoint, tensors=left), tokens=None),
    )
    encoder = BertEncoder(TINY)
    assert "cls.predictions.decoder.weight" in checkpoints.assign(again, encoder).unused
    message = "untied: the checkpoint has no masked_lm/.*unknown names: cls"
    refused(message, checkpoints.assign, again, encoder, masked_lm=MaskedLMHead(encoder))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_the_names_of_a_wrapped_module(tmp_path, prefix):
    checkpoint = random_checkpoint()
    theirs = {prefix + name: tensor for name, tensor in their_tensors(checkpoint).items()}
    again = checkpoints.read(safetensors_folder(tmp_path / "out", theirs))
    assert_same(with_vocabulary(again, tokens=PIECES), checkpoint)


def test_shards(tmp_path):
    from safetensors.numpy import save_file

    checkpoint = random_checkpoint()
    theirs = their_tensors(checkpoint)
    names = sorted(theirs)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    (tmp_path / "config.json").write_text(json.dumps(TINY.to_hugging_face()))
    for file, part in shards.items():
        save_file({name: theirs[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(checkpoints.read(tmp_path), with_vocabulary(checkpoint, tokens=None))
    for bad in ("../model-1.safetensors", "/etc/passwd", "absent.safetensors"):
        index["weight_map"][names[0]] = bad
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        refused("not a file in its folder", checkpoints.read, tmp_path)


@pytest.mark.parity
def test_pytorch_files_are_read_without_running_them(tmp_path):
    torch = pytest.importorskip("torch")
    checkpoint = with_vocabulary(random_checkpoint(), tokens=None)
    theirs = {name: torch.from_numpy(tensor) for name, tensor in their_tensors(checkpoint).items()}
    (tmp_path / "config.json").write_text(json.dumps(TINY.to_hugging_face()))
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    assert_same(checkpoints.read(tmp_path), checkpoint)

    torch.save({name: tensor.bfloat16() for name, tensor in theirs.items()}, tmp_path / "pytorch_model.bin")
    narrow = numpy_dtype("bfloat16")
    cast = {name: tensor.astype(narrow) for name, tensor in checkpoint.tensors.items()}
    assert_same(checkpoints.read(tmp_path), dataclasses.replace(checkpoint, tensors=cast))

    torch.save({"model": theirs, "step": 1}, tmp_path / "pytorch_model.bin")
    refused("plain tensors: it holds model, step; save the model", checkpoints.read, tmp_path)

    torch.save(theirs | {"evil": Evil(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    refused("not a PyTorch file of plain tensors", checkpoints.read, tmp_path)
    assert not (tmp_path / "ran").exists()


class Evil:
    """Makes a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
