"""Wrong, damaged and untrusted checkpoints: one line for each, before memory is allocated, and nothing half-written."""

import dataclasses
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from random_checkpoints import (
    PIECES,
    TINY,
    assert_same,
    peak,
    random_checkpoint,
    refused,
    saves_with_keras,
    with_vocabulary,
)
from safetensors.numpy import load, save

from bert_keras import checkpoints
from bert_keras.io import json_files
from bert_keras.io.folders import PARTIAL
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import ClassifierHead, SpanHead

# -----------------------------------------------------------------------------------------------------------
# Reading: the format of a whole checkpoint, what becomes of its files, and the error

Change = Callable[[bytes], bytes]
WEIGHTS, DATA = "model.safetensors", "bert_model.ckpt.data-00000-of-00001"
NOT_SAFETENSORS = "cut short or not a safetensors file"
BACKBONE = {
    "vocabulary_size": len(PIECES), "hidden_dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 8,
    "dropout": 0.1, "max_sequence_length": 8, "num_segments": 2,
}  # fmt: skip


def cut(keep: int | float) -> Change:
    return lambda data: data[: int(len(data) * keep) if isinstance(keep, float) else keep]


def changed(**fields) -> Change:
    return lambda data: json.dumps(json.loads(data) | fields).encode()


def backbone(**fields) -> Change:
    """Changes fields of a KerasHub backbone."""

    def change(data: bytes) -> bytes:
        content = json.loads(data)
        return json.dumps(content | {"config": content["config"] | fields}).encode()

    return change


def tensors(change: Callable[[dict], dict]) -> Change:
    return lambda data: save(change(load(data)))


def header(content: dict, more: bytes = b"") -> bytes:
    """A safetensors file."""
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + more


def inflating(_: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(30_000_000))
    return packed.getvalue()


def without(name: str) -> Change:
    return tensors(lambda theirs: {key: value for key, value in theirs.items() if key != name})


HUGE = {"bert.x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
FLOAT8 = {"bert.pooler.dense.bias": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}
SAFETENSORS = [
    (cut(0), "model.safetensors is empty: bring the file again"),
    *[(cut(keep), NOT_SAFETENSORS) for keep in (4, 200, 0.5, -1)],
    (lambda data: b"\xff" * 8 + data[8:], NOT_SAFETENSORS),
    (header(HUGE), NOT_SAFETENSORS),
    (header(FLOAT8, bytes(8)), "pooler.dense.bias of .* is F8_E4M3; wanted float16"),
    (without("bert.encoder.layer.1.output.dense.weight"), "the checkpoint has no block_1/feed_forward/output/kernel"),
    (tensors(lambda theirs: theirs | {"bert.pooler.dense.bias": np.ones(8, "int8")}), "pooler.dense.bias .* is int8"),
    (
        tensors(lambda theirs: {"gpt.wte": np.zeros((3, 2), "float32")}),
        "no tensor in .* has a name of the hugging-face format; .* gpt.wte",
    ),
    (
        tensors(lambda theirs: {name.replace("bert.", "electra.", 1): value for name, value in theirs.items()}),
        "and model_type 'bert'; .* of 'electra': correct its config",
    ),
]  # fmt: skip
CONFIGS = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers .*: num_layers is 1000000000; .* and at most 1,000"),
    ({"num_hidden_layers": 1000}, "has no block_2/.*; it has 2 layers, and num_hidden_layers is 1000"),
    ({"hidden_size": 10**30}, "hidden_size is 1000.*0; .* at most 65,536"),
    ({"vocab_size": "373"}, "vocab_size is '373'; .* whole number"),
    ({"vocab_size": 14}, r"word_embeddings.weight .* has shape \[13, 8\]; the config wants \[14, 8\]"),
    ({"layer_norm_eps": float("inf")}, "norm_epsilon is inf; .* of at least 1e-30 and at most 1,000"),
    ({"layer_norm_eps": 1e308}, r"norm_epsilon is 1e\+308"),
    ({"initializer_range": 10**400}, "initializer_range is 1000.*0; .* of at least 1e-30 and at most 1,000"),
    ({"hidden_dropout_prob": float("nan")}, "hidden_dropout is nan; .* of at least 0 and below 1"),
    ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
    ({"model_type": {"bert": 1}}, "model_type is {'bert': 1}"),
    ({"model_type": "electra"}, "and model_type 'electra'; .* of 'bert' or 'bert_keras': correct its config"),
    ({"tokenizer_class": 5}, "config.json: tokenizer_class is 5; wanted text, or null"),
    ({"id2label": 5}, "config.json: id2label is 5; wanted an object, each value text"),
]
SETTINGS = [
    {"do_basic_tokenize": False},
    {"never_split": ["covid"]},
    {"do_lower_case": "false"},
    {"word_tokenizer_type": "mecab"},
    {"wordpieces_prefix": "@@"},
]
KERAS_HUB_SETTINGS = [
    {"split": False},
    {"suffix_indicator": "@@"},
    {"oov_token": "[MASK]"},
    {"special_tokens_in_strings": True},
    {"lowercase": False, "strip_accents": True},
]


def last(fields: dict) -> str:
    """The error about the last of some settings."""
    key, value = [*fields.items()][-1]
    return f"{key} is {re.escape(repr(value))}"


OTHER_JSON = [
    ("tokenizer_config.json", {"tokenizer_class": ["x"]}, r"tokenizer_class is \['x'\]; wanted text"),
    ("tokenizer_config.json", {"do_lower_case": "no"}, "do_lower_case is 'no'; wanted true or false"),
    ("tokenizer_config.json", {"do_lower_case": 1}, "do_lower_case is 1; wanted true or false"),
    *(
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": content},
            "added_tokens_decoder is .* with its text",
        )
        for content in ({"1": {"content": 1}}, {"4": "x"}, ["x"])
    ),
    ("tokenizer_config.json", [1], r"holds a list, \[1\]; wanted an object"),
    ("tokenizer.json", {"model": "x"}, "model is 'x'; wanted an object"),
    ("tokenizer.json", {"model": {"vocab": {"[PAD]": 0}}, "normalizer": 5}, "normalizer is 5; wanted an"),
    ("tokenizer.json", None, "holds null, None; wanted an object"),
    ("added_tokens.json", {"a": "x"}, "a is 'x'; wanted a whole number"),
    ("added_tokens.json", ["x"], r"holds a list, \['x'\]; wanted an object"),
]
NOT_JSON = [
    (b"[" * 100_000, "is nested too deep; wanted at most 64"),
    (b"[" * 300 + b"]" * 300, "is nested too deep"),
    (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not a JSON file in UTF-8: Exceeds the limit"),
    (b'{"vocab_size": "\\ud800"}', r"\\ud800 is half a character"),
    (b"\xff{}", "is not a JSON file in UTF-8"),
    (b"", "is not a JSON file in UTF-8"),
]
NOT_A_SHARD = "model.weights.json.*(which is not a file in its folder|wanted a list)"
PRESET = [
    ({"config.json": backbone(num_layers=10**9)}, "num_layers is 1000000000; .* at most 1,000"),
    ({"config.json": backbone(hidden_dim="8")}, "hidden_dim is '8'; wanted a finite number"),
    ({"config.json": backbone(num_segments=0)}, "config.json has num_segments 0; a BertBackbone has 1 or more"),
    ({"config.json": backbone(dropout=[0.1])}, r"dropout is \[0.1\]; wanted a finite number"),
    ({"config.json": backbone(dtype={"class_name": "QuantizedDTypePolicy"})}, "config.json is quantized"),
    ({"config.json": changed(class_name="GemmaBackbone")}, "wanted a KerasHub BertBackbone"),
    ({"tokenizer.json": b'{"config": null}'}, "tokenizer.json: config is None; wanted an object"),
    ({"tokenizer.json": b'{"config": {"lowercase": "no"}}'}, "tokenizer.json: lowercase is 'no'; wanted true"),
    ({"tokenizer.json": b"[]"}, "tokenizer.json holds a list"),
    ({"tokenizer.json": b'{"config": {"lowercase": true, "strip_accents": true}}'}, "has 1 bytes and its config needs .*"),
    *(
        ({"model.weights.h5": None, "model.weights.json": json.dumps({"weight_map": {"a": names}}).encode()}, NOT_A_SHARD)
        for names in (["../evil.h5"], "../evil.h5", [5], {"a": 1})
    ),
]  # fmt: skip
REFUSED = [
    *(("hugging-face", {WEIGHTS: change}, message) for change, message in SAFETENSORS),
    *(
        ("hugging-face", {"config.json": changed(**fields), "tokenizer_config.json": None}, message)
        for fields, message in CONFIGS
    ),
    *(
        ("hugging-face", {name: json.dumps(content).encode()}, f"{name}.*{message}")
        for name, content, message in OTHER_JSON
    ),
    *(
        ("hugging-face", {name: data}, f"{name}.*{message}")
        for data, message in NOT_JSON
        for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json")
    ),
    ("hugging-face", {"config.json": b'{"a\\nb\\u001b[2J": 1}'}, r"its keys are a\\nb\\x1b\[2J"),
    (
        "hugging-face",
        {WEIGHTS: None, f"{WEIGHTS}.index.json": b'{"weight_map": {"a": 5}}'},
        "index.json has no weight_map of file names",
    ),
    # An encoder is never made of sizes that the file does not hold.
    (
        "hugging-face",
        {
            WEIGHTS: tensors(
                lambda theirs: {n: t for n, t in theirs.items() if n.endswith("embeddings.LayerNorm.weight")}
            ),
            "config.json": changed(vocab_size=4_000_000, max_position_embeddings=1_000_000),
        },
        "has no embeddings/word_embeddings",
    ),
    (
        "hugging-face",
        {WEIGHTS: None, "pytorch_model.bin": inflating},
        "pytorch_model.bin has .* unpacks to 30,000,000",
    ),
    *(
        ("preset", {"tokenizer.json": json.dumps({"config": fields}).encode()}, f"{last(fields)} in .*tokenizer.json")
        for fields in KERAS_HUB_SETTINGS
    ),
    ("hugging-face", {"vocab.txt": "é".encode("latin-1")}, "vocab.txt, line 1: not UTF-8; save"),
    ("google", {DATA: cut(1000)}, "its data has 1,000 bytes and its index needs"),
    ("google", {"bert_config.json": None}, "no bert_config.json"),
    *(("preset", files, message) for files, message in PRESET),
    ("keras-hub", {"config.json": backbone(vocabulary_size=10**6)}, "needs .* numbers: it is cut short"),
    ("keras-hub", {"config.json": backbone(intermediate_dim=16)}, "does not hold this config's weights"),
    ("keras-hub", {"model.weights.h5": cut(5000)}, "does not hold this config's weights"),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A format -> the folder of a whole checkpoint; "preset" has a KerasHub preset whose weights are one byte."""
    folder = tmp_path_factory.mktemp("whole")

    def write(form):
        if (path := folder / form).exists():
            return path
        if form != "preset":
            if form == "keras-hub":
                pytest.importorskip("keras_hub")
            checkpoints.write(random_checkpoint(heads=()), path, format=form)
            return path
        (path / "assets" / "tokenizer").mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({"class_name": "BertBackbone", "config": BACKBONE}))
        (path / "tokenizer.json").write_text("{}")
        (path / "model.weights.h5").write_bytes(b"x")
        (path / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(PIECES))
        return path

    return write


@saves_with_keras
@pytest.mark.filterwarnings("ignore:the vocabulary in .* more weights than tokens")
@pytest.mark.parametrize(("form", "files", "message"), REFUSED)
def test_a_spoilt_checkpoint_is_refused(tmp_path, whole, form, files, message):
    folder = shutil.copytree(whole(form), tmp_path / "out")
    (tmp_path / "evil.h5").write_bytes(b"x")
    for name, content in files.items():
        file = folder / name
        if content is None:
            file.unlink()
        else:
            old = file.read_bytes() if file.exists() else b""
            file.write_bytes(content(old) if callable(content) else content)
    most = 20e6 if form != "keras-hub" else float("inf")  # its library makes the model
    assert peak(refused, message, checkpoints.read, folder, named=str(folder)) < most


@pytest.mark.parametrize("fields", SETTINGS)
def test_a_setting_that_changes_ids_is_refused_with_the_tokenizer(tmp_path, whole, fields):
    folder = shutil.copytree(whole("hugging-face"), tmp_path / "out")
    file = folder / "tokenizer_config.json"
    file.write_bytes(changed(**fields)(file.read_bytes()))
    [(key, value)] = fields.items()
    message = rf"{key}(=| is ){re.escape(repr(value))}.*( in |; wanted )"
    refused(message, checkpoints.load_tokenizer, folder)


def test_a_json_file_over_the_limit_is_not_read(tmp_path, whole, monkeypatch):
    folder = shutil.copytree(whole("hugging-face"), tmp_path / "out")
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 1_000_000)
    with (folder / "config.json").open("wb") as file:
        file.truncate(500_000_000)
    assert peak(refused, "config.json has over 1,000,000 bytes", checkpoints.read, folder) < 10e6


def test_missing_checkpoints(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for path, message in (
        ("absent", "no such file or folder"),
        ("", "looked for model.safetensors, tf_model.h5, pytorch_model.bin .*keras-hub.*; found notes.txt.$"),
    ):
        refused(message, checkpoints.read, tmp_path / path, error=FileNotFoundError)
    message = "no checkpoint format 'onnx'; the formats are hugging-face"
    refused(message, checkpoints.write, random_checkpoint(), tmp_path / "out", format="onnx")


def test_two_tensorflow_checkpoints_in_one_folder(tmp_path):
    (tmp_path / "ckpt-1.index").touch()
    (tmp_path / "ckpt-2.index").touch()
    refused(r"holds 2 TensorFlow checkpoints \(ckpt-1, ckpt-2\)", checkpoints.read, tmp_path)
    refused("is not a TensorFlow checkpoint", checkpoints.read, tmp_path / "ckpt-1")


@pytest.mark.parametrize("part", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_any_file_of_a_tensorflow_checkpoint_names_it(tmp_path, part):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    (tmp_path / "out" / "bert_model.ckpt.meta").touch()
    assert checkpoints.read(tmp_path / "out" / f"bert_model.ckpt{part}").format == "google"


@saves_with_keras
def test_a_keras_hub_preset_in_shards_or_with_a_head(tmp_path, whole):
    import h5py

    keras_hub = pytest.importorskip("keras_hub")
    folder = shutil.copytree(whole("keras-hub"), tmp_path / "whole")
    preset = keras_hub.models.BertBackbone.from_preset(str(folder))
    preset.save_to_preset(str(tmp_path / "shards"), max_shard_size=4e-6)
    assert not (tmp_path / "shards" / "model.weights.h5").exists()
    for path in (tmp_path / "shards", tmp_path / "shards" / "model.weights.json"):
        assert_same(with_vocabulary(checkpoints.read(path), tokens=PIECES), random_checkpoint(heads=()))
    with h5py.File(folder / "task.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((8, 3))
        file["optimizer/vars/0"] = 1
    assert checkpoints.read(folder).unknown == ("task.weights.h5/layers/dense/vars/0",)
    (folder / "task.weights.h5").write_bytes(b"x")
    refused("task.weights.h5 is cut short or not an HDF5 file", checkpoints.read, folder)


def test_a_folder_that_was_overwritten_in_part_is_not_read(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    left = tmp_path / "out" / PARTIAL
    (left / "new").mkdir(parents=True)
    (tmp_path / "out" / WEIGHTS).rename(left / "new" / WEIGHTS)
    (left / "moving.json").write_text('{"names": ["model.safetensors"], "overwrite": true}')
    for read in (checkpoints.read, checkpoints.load_tokenizer):
        refused("out has only some of its new files", read, tmp_path / "out")


def test_a_vocabulary_larger_than_the_table(tmp_path):
    checkpoint = with_vocabulary(random_checkpoint(), tokens=(*PIECES, "x", "y"))
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    for call in (checkpoints.read, checkpoints.load_tokenizer):
        refused("has 14 tokens and the config's vocab_size is 13", call, tmp_path / "out")


def test_compare_says_where_there_is_no_library(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    refused("no library can run a google checkpoint", checkpoints.compare, tmp_path / "out")


# -----------------------------------------------------------------------------------------------------------
# Assigning and writing


def test_a_head_of_another_size_or_name():
    checkpoint = random_checkpoint(heads=("classifier",))
    encoder = BertEncoder(TINY)
    before = np.asarray(encoder.embedding_table).copy()
    wrong = ClassifierHead(3, config=TINY)
    for message, heads in (
        (r"classifier/dense/\w+ has shape \[(8, )?5\] in the checkpoint; the model wants", {"classifier": wrong}),
        ("the checkpoint has no sentiment/dense/kernel", {"sentiment": wrong}),
        ("a head is named pooler, which is a part of the encoder", {"pooler": wrong}),
        ("the checkpoint has no question answering head; give", {"qa_outputs": SpanHead(config=TINY)}),
    ):  # fmt: skip
        refused(message, checkpoints.assign, checkpoint, encoder, **heads)
    # Refused before anything was assigned.
    np.testing.assert_array_equal(np.asarray(encoder.embedding_table), before)
    report = checkpoints.assign(checkpoint, encoder, fresh=("qa_outputs",))
    assert report.fresh == ("qa_outputs",)


def lacking(name):
    """A checkpoint without a variable, or without those of a layer."""
    checkpoint = random_checkpoint(heads=())
    kept = {key: value for key, value in checkpoint.tensors.items() if not key.startswith(name)}
    return dataclasses.replace(checkpoint, tensors=kept)


@pytest.mark.parametrize(
    ("form", "checkpoint", "message"),
    [
        ("google", lacking("block_1/feed_forward/output/kernel"), "lacks block_1/feed_forward/output/kernel"),
        ("keras-hub", lacking("pooler/"), "has no pooled_dense/kernel"),
        *(
            ("keras-hub", with_vocabulary(random_checkpoint(heads=()), **tokenizer), f"has no {name} tokenizer")
            for tokenizer, name in (
                ({"tokens": None, "sentencepiece": b""}, "SentencePiece"),
                ({"merges": ("a b",)}, "byte-level BPE"),
            )
        ),
        *(
            (form, random_checkpoint(dataclasses.replace(TINY, **changes)), f"{next(iter(changes))}|embedding_width")
            for form, changes in (
                ("google", {"norm_epsilon": 1e-5}),
                ("google", {"causal": True}),
                ("google", {"bilstm": True}),
                ("google", {"embedding_size": 4}),
                ("model-garden", {"share_layers": True}),
                ("keras-hub", {"activation": "gelu_erf"}),
                ("keras-hub", {"norm_epsilon": 1e-5}),
                ("keras-hub", {"attention_dropout": 0.0}),
            )
        ),
    ],
)  # fmt: skip
def test_a_checkpoint_that_a_format_cannot_hold_is_refused_and_leaves_nothing(
    tmp_path, form, checkpoint, message
):
    if form == "keras-hub":
        pytest.importorskip("keras_hub")
    refused(message, checkpoints.write, checkpoint, tmp_path / "out", format=form)
    assert list(tmp_path.iterdir()) == []


def test_writing_to_an_existing_folder(tmp_path):
    checkpoint = random_checkpoint()
    (tmp_path / "out").mkdir()
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")  # an empty folder will do
    call, to = checkpoints.write, {"format": "hugging-face", "error": FileExistsError}
    refused("not empty", call, checkpoint, tmp_path / "out", **to)
    (tmp_path / "out" / "task.json").write_text("kept")
    more = {name: tensor + 1 for name, tensor in checkpoint.tensors.items()}
    other = dataclasses.replace(checkpoint, tensors=more)
    checkpoints.write(other, tmp_path / "out", format="hugging-face", overwrite=True)
    assert_same(checkpoints.read(tmp_path / "out"), other)
    assert (tmp_path / "out" / "task.json").read_text() == "kept"
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        checkpoints.write(checkpoint, tmp_path / "file" / "out", format="google")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]  # nothing half-written is left


@pytest.mark.parametrize("made", [False, True])
def test_leftovers_of_a_killed_process_are_removed(tmp_path, made):
    out = tmp_path / "out[1]"
    left = out / PARTIAL if made else tmp_path / f".{out.name}{PARTIAL}"
    left.mkdir(parents=True)
    (left / WEIGHTS).write_bytes(b"half")
    checkpoints.write(random_checkpoint(), out, format="hugging-face")
    assert list(tmp_path.iterdir()) == [out] and "config.json" in [path.name for path in out.iterdir()]
    assert not list(out.glob(".*"))
