"""Wrong and damaged checkpoints: one line for each, and nothing half-written."""

import dataclasses
import json

import numpy as np
import pytest
from random_checkpoints import (
    PIECES,
    TINY,
    assert_same,
    raises,
    random_checkpoint,
    safetensors_folder,
    saves_with_keras,
    their_tensors,
    with_vocabulary,
)

from bert_keras import checkpoints
from bert_keras.io.folders import PARTIAL
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import ClassifierHead, SpanHead


def test_missing_checkpoints(tmp_path):
    raises(FileNotFoundError, "no such file or folder", checkpoints.read, tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("x")
    raises(
        FileNotFoundError,
        "looked for model.safetensors or pytorch_model.bin .*keras-hub",
        checkpoints.read,
        tmp_path,
    )
    raises(FileNotFoundError, "; found notes.txt.$", checkpoints.read, tmp_path)
    raises(
        ValueError,
        "no checkpoint format 'onnx'; the formats are hugging-face",
        checkpoints.write,
        random_checkpoint(),
        tmp_path / "out",
        format="onnx",
    )


def test_two_tensorflow_checkpoints_in_one_folder(tmp_path):
    (tmp_path / "ckpt-1.index").touch()
    (tmp_path / "ckpt-2.index").touch()
    raises(ValueError, r"holds 2 TensorFlow checkpoints \(ckpt-1, ckpt-2\)", checkpoints.read, tmp_path)
    raises(ValueError, "is not a TensorFlow checkpoint", checkpoints.read, tmp_path / "ckpt-1")


@pytest.mark.parametrize("keep", [0, 4, 200, 0.5, -1])
def test_safetensors_cut_short(tmp_path, keep):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    file = tmp_path / "out" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")


def test_a_safetensors_header_that_claims_more_than_there_is(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")
    huge = json.dumps(
        {"bert.x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    ).encode()
    file.write_bytes(len(huge).to_bytes(8, "little") + huge)
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")


def test_tensorflow_data_cut_short(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    file = tmp_path / "out" / "bert_model.ckpt.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[:100])
    raises(ValueError, "cannot be read", checkpoints.read, tmp_path / "out")


@pytest.mark.parametrize("part", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_any_file_of_a_tensorflow_checkpoint_names_it(tmp_path, part):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    (tmp_path / "out" / "bert_model.ckpt.meta").touch()
    assert checkpoints.read(tmp_path / "out" / f"bert_model.ckpt{part}").format == "google"


@saves_with_keras
def test_a_keras_hub_preset_in_shards_with_a_head_or_quantized(tmp_path):
    import h5py

    keras_hub = pytest.importorskip("keras_hub")
    checkpoint = random_checkpoint(heads=())
    checkpoints.write(checkpoint, tmp_path / "whole", format="keras-hub")
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "whole"))
    backbone.save_to_preset(str(tmp_path / "shards"), max_shard_size=4e-6)
    assert not (tmp_path / "shards" / "model.weights.h5").exists()
    for path in (tmp_path / "shards", tmp_path / "shards" / "model.weights.json"):
        again = with_vocabulary(checkpoints.read(path), tokens=PIECES)
        assert_same(again, checkpoint)
    with h5py.File(tmp_path / "whole" / "task.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((8, 3))
        file["optimizer/vars/0"] = 1
    assert checkpoints.read(tmp_path / "whole").unknown == ("task.weights.h5/layers/dense/vars/0",)
    (tmp_path / "whole" / "task.weights.h5").write_bytes(b"x")
    raises(
        ValueError, "task.weights.h5 is cut short or not an HDF5 file", checkpoints.read, tmp_path / "whole"
    )
    path = tmp_path / "whole" / "config.json"
    content = json.loads(path.read_text())
    content["config"]["dtype"] = {"class_name": "QuantizedDTypePolicy", "config": {"mode": "int8"}}
    path.write_text(json.dumps(content))
    raises(ValueError, "config.json is quantized", checkpoints.read, tmp_path / "whole")


@saves_with_keras
def test_keras_hub_weights_cut_short_or_of_another_config(tmp_path):
    pytest.importorskip("keras_hub")
    checkpoints.write(random_checkpoint(heads=()), tmp_path / "out", format="keras-hub")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    large = dict(config, config=dict(config["config"], vocabulary_size=10**6))
    (tmp_path / "out" / "config.json").write_text(json.dumps(large))
    raises(ValueError, "needs .* numbers: it is cut short", checkpoints.read, tmp_path / "out")
    other = dict(config, config=dict(config["config"], intermediate_dim=16))
    (tmp_path / "out" / "config.json").write_text(json.dumps(other))
    raises(ValueError, "does not hold this config's weights", checkpoints.read, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(dict(config, class_name="GemmaBackbone")))
    raises(ValueError, "wanted a KerasHub BertBackbone", checkpoints.read, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "out" / "model.weights.h5"
    file.write_bytes(file.read_bytes()[:5000])
    raises(ValueError, "does not hold this config's weights", checkpoints.read, tmp_path / "out")


def test_a_shape_that_is_not_the_configs(tmp_path):
    theirs = their_tensors(random_checkpoint())
    folder = safetensors_folder(tmp_path / "out", theirs, dataclasses.replace(TINY, vocab_size=14))
    raises(
        ValueError,
        r"word_embeddings.weight .* has shape \[13, 8\]; the config wants \[14, 8\]",
        checkpoints.read,
        folder,
    )


def test_a_missing_weight(tmp_path):
    theirs = their_tensors(random_checkpoint(heads=()))
    del theirs["bert.encoder.layer.1.output.dense.weight"]
    folder = safetensors_folder(tmp_path / "out", theirs)
    missing = "the checkpoint has no block_1/feed_forward/output/kernel"
    raises(ValueError, missing, checkpoints.load_encoder, folder, fresh=("pooler",), log=print)
    whole = random_checkpoint(heads=())
    del whole.tensors["block_1/feed_forward/output/kernel"]
    raises(
        ValueError, "lacks block_1/feed_forward/output/kernel",
        checkpoints.write, whole, tmp_path / "again", format="google",
    )  # fmt: skip


def test_names_of_another_model(tmp_path):
    folder = safetensors_folder(tmp_path / "out", {"gpt.wte": np.zeros((3, 2), "float32")})
    raises(
        ValueError,
        "no tensor in .* has a name of the hugging-face format; .* gpt.wte",
        checkpoints.read,
        folder,
    )


@pytest.mark.parametrize(("kind", "said"), [("bert", "'electra'"), ("electra", "'bert' or 'bert_keras'")])
def test_a_model_type_that_is_not_the_weights(tmp_path, kind, said):
    """The names are another's, and which is said."""
    prefix = {"bert": "electra.", "electra": "bert."}[kind]
    bert = their_tensors(random_checkpoint(heads=()))
    theirs = {prefix + name.removeprefix("bert."): tensor for name, tensor in bert.items()}
    folder = safetensors_folder(tmp_path / "out", theirs, model_type=kind)
    message = f"and model_type '{kind}'; .* of {said}: correct its config"
    raises(ValueError, message, checkpoints.read, folder)


def test_more_layers_in_the_config_than_in_the_file(tmp_path):
    theirs = their_tensors(random_checkpoint(heads=()))
    folder = safetensors_folder(tmp_path / "out", theirs, dataclasses.replace(TINY, num_layers=4))
    message = (
        "out/model.safetensors: the checkpoint has no block_2/.*; it has 2 layers, and num_hidden_layers is 4"
    )
    raises(ValueError, message, checkpoints.load_encoder, folder, log=print)


def test_a_dtype_that_numpy_lacks(tmp_path):
    folder = safetensors_folder(tmp_path / "out", their_tensors(random_checkpoint()))
    file = folder / "model.safetensors"
    header = json.dumps(
        {"bert.pooler.dense.bias": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}
    )
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    raises(ValueError, "pooler.dense.bias of .* is F8_E4M3; wanted float16", checkpoints.read, folder)


def test_integer_weights_are_refused(tmp_path):
    theirs = their_tensors(random_checkpoint())
    theirs["bert.pooler.dense.bias"] = np.ones(8, "int8")
    raises(
        ValueError,
        "pooler.dense.bias .* is int8",
        checkpoints.read,
        safetensors_folder(tmp_path / "out", theirs),
    )


def test_a_head_of_another_size_or_name():
    checkpoint = random_checkpoint(heads=("classifier",))
    encoder = BertEncoder(TINY)
    before = np.asarray(encoder.embedding_table).copy()
    wrong = ClassifierHead(3, config=TINY)
    raises(
        ValueError, r"classifier/dense/\w+ has shape \[(8, )?5\] in the checkpoint; the model wants",
        checkpoints.assign, checkpoint, encoder, classifier=wrong,
    )  # fmt: skip
    raises(ValueError, "unknown head sentiment", checkpoints.assign, checkpoint, encoder, sentiment=wrong)
    raises(
        ValueError,
        "the checkpoint has no question answering head; give",
        checkpoints.assign,
        checkpoint,
        encoder,
        qa_outputs=SpanHead(config=TINY),
    )
    np.testing.assert_array_equal(
        np.asarray(encoder.embedding_table), before
    )  # refused before anything was assigned
    report = checkpoints.assign(checkpoint, encoder, fresh=("qa_outputs",))
    assert report.fresh == ("qa_outputs",)


def test_a_vocabulary_larger_than_the_table(tmp_path):
    checkpoint = with_vocabulary(random_checkpoint(), tokens=(*PIECES, "x", "y"))
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    for call in (checkpoints.read, checkpoints.load_tokenizer):
        raises(ValueError, "has 14 tokens and the config's vocab_size is 13", call, tmp_path / "out")


def test_a_vocabulary_that_is_not_utf8(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    (tmp_path / "out" / "vocab.txt").write_bytes("é".encode("latin-1"))
    raises(ValueError, "vocab.txt, line 1: not UTF-8; save", checkpoints.read, tmp_path / "out")


def test_no_config(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    (tmp_path / "out" / "bert_config.json").unlink()
    raises(FileNotFoundError, "no bert_config.json", checkpoints.read, tmp_path / "out")


def test_writing_to_an_existing_folder(tmp_path):
    checkpoint = random_checkpoint()
    (tmp_path / "out").mkdir()
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")  # an empty folder will do
    raises(
        FileExistsError, "not empty", checkpoints.write, checkpoint, tmp_path / "out", format="hugging-face"
    )
    (tmp_path / "out" / "task.json").write_text("kept")
    other = dataclasses.replace(
        checkpoint, tensors={name: tensor + 1 for name, tensor in checkpoint.tensors.items()}
    )
    checkpoints.write(other, tmp_path / "out", format="hugging-face", overwrite=True)
    assert_same(checkpoints.read(tmp_path / "out"), other)
    assert (tmp_path / "out" / "task.json").read_text() == "kept"
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        checkpoints.write(checkpoint, tmp_path / "file" / "out", format="google")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]  # nothing half-written is left


def test_a_failed_write_leaves_nothing(tmp_path):
    checkpoint = random_checkpoint(heads=())
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("pooler/")}
    pytest.importorskip("keras_hub")
    raises(
        ValueError, "has no pooled_dense/kernel", checkpoints.write,
        dataclasses.replace(checkpoint, tensors=bare), tmp_path / "out", format="keras-hub",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [({"tokens": None, "sentencepiece": b""}, "SentencePiece"), ({"merges": ("a b",)}, "byte-level BPE")],
)
def test_a_tokenizer_that_a_keras_hub_preset_cannot_hold_is_refused(tmp_path, tokenizer, name):
    checkpoint = with_vocabulary(random_checkpoint(heads=()), **tokenizer)
    raises(
        ValueError,
        f"has no {name} tokenizer",
        checkpoints.write,
        checkpoint,
        tmp_path / "out",
        format="keras-hub",
    )


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("google", {"norm_epsilon": 1e-5}),
        ("google", {"causal": True}),
        ("google", {"bilstm": True}),
        ("google", {"embedding_size": 4}),
        ("model-garden", {"share_layers": True}),
        ("keras-hub", {"activation": "gelu_erf"}),
        ("keras-hub", {"norm_epsilon": 1e-5}),
        ("keras-hub", {"attention_dropout": 0.0}),
    ],
)
def test_conversions_that_change_the_numbers_are_refused(tmp_path, form, changes):
    checkpoint = random_checkpoint(dataclasses.replace(TINY, **changes))
    raises(
        ValueError,
        f"{next(iter(changes))}|embedding_width",
        checkpoints.write,
        checkpoint,
        tmp_path / "out",
        format=form,
    )


@pytest.mark.parametrize("made", [False, True])
def test_leftovers_of_a_killed_process_are_removed(tmp_path, made):
    out = tmp_path / "out[1]"
    left = out / PARTIAL if made else tmp_path / f".{out.name}{PARTIAL}"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    checkpoints.write(random_checkpoint(), out, format="hugging-face")
    assert list(tmp_path.iterdir()) == [out] and "config.json" in [path.name for path in out.iterdir()]
    assert not list(out.glob(".*"))


def test_a_folder_that_was_overwritten_in_part_is_not_read(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    left = tmp_path / "out" / PARTIAL
    (left / "new").mkdir(parents=True)
    (tmp_path / "out" / "model.safetensors").rename(left / "new" / "model.safetensors")
    (left / "moving.json").write_text('{"names": ["model.safetensors"], "overwrite": true}')
    for read in (checkpoints.read, checkpoints.load_tokenizer):
        raises(ValueError, "out has only some of its new files", read, tmp_path / "out")


def test_compare_says_where_there_is_no_library(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    raises(ValueError, "no library can run a google checkpoint", checkpoints.compare, tmp_path / "out")
