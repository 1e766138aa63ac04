"""Files of strangers: what they ask for is bounded before it is allocated, and every field has its type.

Each case is one class of faults; the error is ours, of one line, and names the file and the field.
"""

import bz2
import dataclasses
import gzip
import json
import lzma
import re
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from runs import VOCABULARY, learn_byte_bpe, texts, write_checkpoint

import bert_keras.tasks.data.sources
import bert_keras.tasks.data.tables
import bert_keras.tasks.options
import bert_keras.tasks.pretraining.corpus_files
import bert_keras.tasks.task
from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io import formats, json_files
from bert_keras.io.folders import Folder
from bert_keras.savedmodels.verify import verify_files
from bert_keras.tasks.frozen.cache import open_cache
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.records import read_manifest, read_records
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.training.loop import RUN
from bert_keras.text import vocabulary
from bert_keras.text.byte_bpe import ByteBPE
from bert_keras.text.vocabulary import read_model, read_pieces
from bert_keras.text.wordpiece import MAX_PIECE_BYTES, MAX_PIECES, WordPiece

ROOT = Path(__file__).parents[1]
DEEP = b"[" * 100_000
INFINITY = float("inf")


def refused(message: str, call: Callable, *args, **kwargs) -> None:
    """The call raises our error, and it has one short line."""
    with pytest.raises(BertKerasError, match=message) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value) and len(str(error.value)) < 3000


def peak(call: Callable) -> int:
    """Bytes that Python allocated at most while the call ran."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("untrusted") / "checkpoint", num_layers=2)


@pytest.fixture
def checkpoint(untouched, tmp_path) -> Path:
    """A copy of a whole checkpoint, to be spoilt."""
    return Path(shutil.copytree(untouched, tmp_path / "checkpoint"))


def change(path: Path, **fields) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields))


# -----------------------------------------------------------------------------------------------------------
# Checkpoints


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers .*: num_layers is 1000000000; .* and at most 1,000",
        ),
        ({"num_hidden_layers": 1000}, "has no block_2/.*; it has 2 layers, and num_hidden_layers is 1000"),
        ({"hidden_size": 10**30}, "hidden_size is 1000.*0; .* at most 65,536"),
        ({"vocab_size": "373"}, "vocab_size is '373'; .* whole number"),
        ({"layer_norm_eps": INFINITY}, "norm_epsilon is inf; .* of at least 1e-30 and at most 1,000"),
        ({"layer_norm_eps": 1e308}, r"norm_epsilon is 1e\+308"),
        (
            {"initializer_range": 10**400},
            "initializer_range is 1000.*0; .* of at least 1e-30 and at most 1,000",
        ),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout is nan; .* of at least 0 and below 1"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
        ({"model_type": {"bert": 1}}, "model_type is {'bert': 1}"),
        ({"tokenizer_class": 5}, "config.json: tokenizer_class is 5; wanted text, or null"),
        ({"id2label": 5}, "config.json: id2label is 5; wanted an object, each value text"),
        ({"id2label": {"0": 1}}, "config.json: id2label is .*; wanted an object, each value text"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_that_asks_for_too_much_or_is_of_another_type(checkpoint, changes, message):
    change(checkpoint / "config.json", **changes)
    (checkpoint / "tokenizer_config.json").unlink()
    assert peak(lambda: refused(f"checkpoint.*{message}", checkpoints.read, checkpoint)) < 20e6


def test_sizes_without_a_matching_tensor(checkpoint):
    """An encoder is never made of sizes that the file does not hold."""
    import safetensors.numpy

    tensors = safetensors.numpy.load_file(checkpoint / "model.safetensors")
    few = {name: tensor for name, tensor in tensors.items() if name.endswith("embeddings.LayerNorm.weight")}
    safetensors.numpy.save_file(few, checkpoint / "model.safetensors")
    change(checkpoint / "config.json", vocab_size=4_000_000, max_position_embeddings=1_000_000)
    refused("checkpoint has no embeddings/word_embeddings", checkpoints.read, checkpoint)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": ["x"]}, r"tokenizer_class is \['x'\]; wanted text"),
        ("tokenizer_config.json", {"do_lower_case": "no"}, "do_lower_case is 'no'; wanted true or false"),
        ("tokenizer_config.json", {"do_lower_case": 1}, "do_lower_case is 1; wanted true or false"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": {"content": 1}}}, "added_tokens_decoder is"),
        ("tokenizer_config.json", [1], r"holds a list, \[1\]; wanted an object"),
        ("tokenizer.json", {"model": "x"}, "model is 'x'; wanted an object"),
        ("tokenizer.json", {"model": {"vocab": {"[PAD]": 0}}, "normalizer": 5}, "normalizer is 5; wanted an"),
        ("tokenizer.json", None, "holds null, None; wanted an object"),
        ("added_tokens.json", {"a": "x"}, "a is 'x'; wanted a whole number"),
        ("added_tokens.json", ["x"], r"holds a list, \['x'\]; wanted an object"),
        ("model.safetensors.index.json", {"weight_map": {"a": 5}}, "has no weight_map of file names"),
    ],
)
def test_json_of_another_type_beside_the_weights(checkpoint, name, content, message):
    if name.startswith("model."):
        (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_text(json.dumps(content))
    refused(f"{re.escape(name)}.*{message}", checkpoints.read, checkpoint)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP, "is nested too deep; wanted at most 64"),
        (b"[" * 300 + b"]" * 300, "is nested too deep"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not a JSON file in UTF-8: Exceeds the limit"),
        (b'{"vocab_size": "\\ud800"}', r"\\ud800 is half a character"),
        (b"\xff{}", "is not a JSON file in UTF-8"),
        (b"", "is not a JSON file in UTF-8"),
    ],
    ids=["deep", "nested", "digits", "half", "bytes", "empty"],
)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "added_tokens.json"]
)
def test_text_that_is_not_json(checkpoint, name, content, message):
    (checkpoint / name).write_bytes(content)
    refused(f"{name}.*{message}", checkpoints.read, checkpoint)


def test_a_json_file_over_the_limit_is_not_read(checkpoint, monkeypatch):
    monkeypatch.setattr(json_files, "MAX_JSON_BYTES", 1_000_000)
    with (checkpoint / "config.json").open("wb") as file:
        file.truncate(500_000_000)
    call = lambda: refused("config.json has over 1,000,000 bytes", checkpoints.read, checkpoint)  # noqa: E731
    assert peak(call) < 10e6


def keras_hub_preset(folder: Path, *, config: object, tokenizer: object) -> Path:
    folder.mkdir()
    for name, content in (("config.json", config), ("tokenizer.json", tokenizer)):
        (folder / name).write_text(json.dumps(content))
    (folder / "model.weights.h5").write_bytes(b"x")
    (folder / "assets" / "tokenizer").mkdir(parents=True)
    (folder / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(VOCABULARY))
    return folder


BACKBONE = {
    "vocabulary_size": len(VOCABULARY), "hidden_dim": 8, "num_layers": 2, "num_heads": 2, "intermediate_dim": 8,
    "dropout": 0.1, "max_sequence_length": 8, "num_segments": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "tokenizer", "message"),
    [
        ({"num_layers": 10**9}, {}, "num_layers is 1000000000; .* at most 1,000"),
        ({"hidden_dim": "8"}, {}, "hidden_dim is '8'; wanted a finite number"),
        ({"num_segments": 0}, {}, "config.json has num_segments 0; a BertBackbone has 1 or more"),
        ({"dropout": [0.1]}, {}, r"dropout is \[0.1\]; wanted a finite number"),
        ({}, {"config": None}, "tokenizer.json: config is None; wanted an object"),
        ({}, {"config": {"lowercase": "no"}}, "tokenizer.json: lowercase is 'no'; wanted true or false"),
        ({}, [], "tokenizer.json holds a list"),
        (
            {},
            {"config": {"lowercase": True, "strip_accents": True}},
            "has 1 bytes and its config needs .* numbers",
        ),
    ],
)
def test_json_of_another_type_in_a_keras_hub_preset(tmp_path, config, tokenizer, message):
    content = {"class_name": "BertBackbone", "config": BACKBONE | config}
    folder = keras_hub_preset(tmp_path / "preset", config=content, tokenizer=tokenizer)
    refused(f"preset.*{message}", checkpoints.read, folder)


@pytest.mark.parametrize("names", [["../evil.h5"], "../evil.h5", [5], {"a": 1}])
def test_shards_of_a_keras_hub_preset_outside_of_its_folder(tmp_path, names):
    content = {"class_name": "BertBackbone", "config": BACKBONE}
    folder = keras_hub_preset(tmp_path / "preset", config=content, tokenizer={})
    (folder / "model.weights.h5").unlink()
    (tmp_path / "evil.h5").write_bytes(b"x")
    (folder / "model.weights.json").write_text(json.dumps({"weight_map": {"a": names}}))
    refused("model.weights.json.*(which is not a file in its folder|wanted a list)", checkpoints.read, folder)


def test_a_tensorflow_index_that_asks_for_more_than_its_data(tmp_path, untouched):
    checkpoints.write(checkpoints.read(untouched), tmp_path / "google", format="google")
    data = next((tmp_path / "google").glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:1000])
    refused("its data has 1,000 bytes and its index needs", checkpoints.read, tmp_path / "google")


def test_a_pytorch_file_that_inflates(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with zipfile.ZipFile(checkpoint / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(30_000_000))
    call = lambda: refused("pytorch_model.bin has .* unpacks to 30,000,000", checkpoints.read, checkpoint)  # noqa: E731
    assert peak(call) < 10e6


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ("a\0b", "line 374: .* holds a NUL byte"),
        ("x" * 257, "line 374: .* has 257 bytes; wanted at most 256"),
        ("##" + "é" * 129, "line 374: .* has 258 bytes"),
    ],
)
def test_pieces_that_the_kernel_refuses(checkpoint, piece, message):
    (checkpoint / "vocab.txt").write_text("\n".join([*VOCABULARY, piece]), encoding="utf-8")
    refused(message, WordPiece.from_file, str(checkpoint / "vocab.txt"))
    change(checkpoint / "config.json", vocab_size=len(VOCABULARY) + 1)
    refused(message, checkpoints.load_tokenizer, checkpoint / "vocab.txt")


def test_a_long_token_is_cut_in_the_error():
    vocabulary, merges = learn_byte_bpe(texts(100, seed=7), size=300)
    long = "[" * 10_000
    for wrong in (f"{long} a", f"a {long}"):
        with pytest.raises(BertKerasError, match="merge .* is not in the vocabulary") as found:
            ByteBPE(vocabulary, (*merges, wrong))
        assert len(str(found.value)) < 400


def test_a_piece_of_a_sentencepiece_model_that_is_not_utf_8(tmp_path):
    model = learn_sentencepiece(texts(200, seed=7), size=50, lower_case=True).model
    piece = b"\n\x01e\x15"  # the field, its length, the token, the next field
    assert piece in model
    (tmp_path / "spiece.model").write_bytes(model.replace(piece, piece.replace(b"e", b"\xec")))
    refused("spiece.model: .*token .* is not UTF-8", checkpoints.load_tokenizer, tmp_path / "spiece.model")


def test_a_vocabulary_of_special_tokens_alone(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n")
    message = "vocab.txt: .*has no word and no character"
    refused(message, WordPiece.from_file, str(tmp_path / "vocab.txt"))
    refused(message, checkpoints.load_tokenizer, tmp_path / "vocab.txt", lower_case=True)


def test_the_longest_piece_is_the_kernels():
    longest = "##" + "x" * MAX_PIECE_BYTES
    assert WordPiece([*VOCABULARY, longest]).vocabulary[-1] == longest


def test_a_vocabulary_over_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_VOCABULARY_BYTES", 1000)
    for name, call in (("vocab.txt", read_pieces), ("spiece.model", read_model)):
        (tmp_path / name).write_bytes(b"x\n" * 600)
        refused(f"{name} has over 1,000 bytes", call, str(tmp_path / name))
    refused("spiece.model has over 1,000 bytes", checkpoints.load_tokenizer, tmp_path / "spiece.model")


# -----------------------------------------------------------------------------------------------------------
# Runs and other folders of ours

GLUE = TextClassification.open("sst2").to_json()
SQUAD = QuestionAnswering("squad2.0").to_json()
SWAG = MultipleChoice().to_json()
CONLL = Tagging(["O", "B-PER", "I-PER"], scheme="IOB2").to_json()
TASK_FAULTS = [
    ("text-classification", 5, "task is 5; wanted an object"),
    ("text-classification", GLUE | {"text": 5}, "text is 5; wanted a list, each item text"),
    ("text-classification", GLUE | {"text": []}, r"text is \(\); .* one or two names"),
    ("text-classification", GLUE | {"labels": ["a"]}, "labels is .*; .* two or more"),
    ("text-classification", GLUE | {"labels": ["a", "b", "c"]}, "labels is .*; .* those of its data set"),
    ("text-classification", GLUE | {"measures": ["x"]}, "measures is .*; wanted a list, each item one of"),
    ("text-classification", GLUE | {"label_type": "set"}, "label_type is 'set'; wanted one of class, score, multi"),
    ("text-classification", GLUE | {"text_column": [None]}, "text_column is .*; wanted a list, each item text"),
    ("text-classification", GLUE | {"text_column": ["a", "b"]}, "text_column is a, b; sst2 reads 1"),
    ("text-classification", GLUE | {"pooling": ["concat"]}, "pooling is .*; wanted one of"),
    ("text-classification", GLUE | {"more": 1}, "unknown field 'more'"),
    ("question-answering", SQUAD | {"n_best": 10**12}, "n_best is 1000000000000; .* at most 1,000,000"),
    ("question-answering", SQUAD | {"doc_stride": True}, "doc_stride is True; wanted a whole number"),
    ("question-answering", SQUAD | {"tau": float("nan")}, "tau is nan; wanted a finite number"),
    ("multiple-choice", SWAG | {"num_choices": 10**9}, "num_choices is 1000000000; .* at most 1,000"),
    ("tagging", CONLL | {"labels": ["O", float("nan")]}, r"labels is \['O', nan\]; wanted a list"),
    ("tagging", CONLL | {"labels": ["B-PER", "O"]}, "labels is .*; .* 'O' first"),
    ("tagging", CONLL | {"scheme": "IOB9"}, "scheme is 'IOB9'; wanted one of IOB2"),
    ("fill-mask", {"name": "fill-mask", "top_k": "5"}, "top_k is '5'; wanted a whole number"),
    (["text-classification"], GLUE, r"kind is \['text-classification'\]; wanted one of text-class"),
]  # fmt: skip


SIZES = formats.stamp(formats.RUN) | {"seq_length": 16, "truncation": "longest_first"}


@pytest.mark.parametrize(("kind", "task", "message"), TASK_FAULTS)
def test_a_task_json_of_other_types(checkpoint, kind, task, message):
    content = SIZES | {"kind": kind, "task": task}
    (checkpoint / "task.json").write_text(json.dumps(content))
    refused(f"task.json is not the task.json of a run: .*{message}", load_run, checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_length": "16"}, "seq_length is '16'; wanted a whole"),
        ({"truncation": []}, r"truncation is \[\]"),
    ],
)
def test_settings_of_a_task_json_of_other_types(checkpoint, changes, message):
    content = SIZES | {"kind": "text-classification", "task": GLUE}
    (checkpoint / "task.json").write_text(json.dumps(content | changes))
    refused(f"task.json.*{message}", load_run, checkpoint)


@pytest.mark.parametrize("task", [TextClassification.open("stsb"), TextClassification.open("mnli"),
                                  TextClassification("ab", label_type="multi"),
                                  QuestionAnswering("squad1.1", tau=0.5), MultipleChoice("codah"),
                                  Tagging(["O", "B-A-B"], scheme="IOB1"), FillMask(top_k=3), Embedding(l2=True),
                                  WordEmbedding()], ids=lambda task: task.kind)  # fmt: skip
def test_every_task_is_made_again_from_its_json(task):
    assert type(task).from_json(json.loads(json.dumps(task.to_json()))).to_json() == task.to_json()
    assert type(task).from_json(task.to_json()).to_json() == task.to_json()


COUNTS = dict.fromkeys(("bytes", "documents", "instances", "positions", "ones", "skipped"), 1)
RECORDS = formats.stamp(formats.INSTANCES) | dict.fromkeys(("summary", "masking")) | {"compress": False}
RECORDS["shards"] = [COUNTS | {"text": "", "sha256": ""}]
HEADER = formats.stamp(formats.VECTORS) | {
    "config": BertConfig(vocab_size=9).to_dict(), "texts": ["text"], "listed": ["starts"],
    "layers": [0], "shards": [1], "dtype": "float16",
}  # fmt: skip
OURS = [
    ("manifest.json", RECORDS | {"shards": 5}, read_manifest, "shards is 5; wanted a list"),
    ("manifest.json", RECORDS | {"shards": [{}]}, read_manifest, r"shards\[0\]: 'bytes' is missing"),
    ("manifest.json", RECORDS | {"masking": ["x"]}, read_manifest, "masking is"),
    ("manifest.json", ["x"], read_manifest, "holds a list"),
    ("manifest.json", RECORDS | {"shards": [], "summary": {}}, read_records, "has no instances"),
    ("header.json", HEADER | {"layers": ["x"]}, open_cache, "layers is"),
    ("header.json", HEADER | {"config": 5}, open_cache, "config is 5"),
    ("header.json", HEADER | {"config": {"x": 1}}, open_cache, "config: unknown configuration field x"),
    ("header.json", HEADER | {"shards": [-1]}, open_cache, "shards is"),
    ("checkpoints/settings.json", 5, lambda path: Folder(path, RUN).begin({}).__enter__(), "holds a number, 5"),
    (formats.MANIFEST, formats.stamp(formats.SAVED_MODEL) | {"files": [1]}, verify_files, r"files is \[1\]; wanted an object"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "call", "message"), OURS)
def test_json_of_another_type_in_our_other_folders(tmp_path, name, content, call, message):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    for text, said in ((json.dumps(content).encode(), message), (DEEP, "is nested too deep")):
        file.write_bytes(text)
        refused(f"{said}.*{name}" if "no instances" in said else f"{name}.*{said}", call, tmp_path)


# -----------------------------------------------------------------------------------------------------------
# Data

GOOD_SQUAD = {
    "data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "a", "answers": []}]}]}]
}


@pytest.mark.parametrize(
    ("name", "content", "task", "message"),
    [
        ("train.json", DEEP, QuestionAnswering("squad2.0"), "is nested too deep"),
        ("train.json", b'{"data": 5}', QuestionAnswering("squad2.0"), "'data' is 5; give a list"),
        ("train.jsonl", DEEP, MultipleChoice(), "line 1 is nested too deep"),
        (
            "train.jsonl",
            b'{"startphrase": "a", "choices": 5}',
            MultipleChoice(),
            "line 1: no list but 5, expected 4",
        ),
        ("train.jsonl", DEEP, FillMask(), "line 1 is nested too deep"),
        ("train.jsonl", b'{"text": 5, "answer": "a"}', FillMask(), "line 1: 'text' is 5, not text"),
        (
            "train.jsonl",
            b'{"text": "[MASK] \\ud800", "answer": "a"}',
            FillMask(),
            "line 1: .* half a character",
        ),
    ],
)
def test_data_in_json_of_another_form(tmp_path, name, content, task, message):
    (tmp_path / name).write_bytes(content)
    task.source = tmp_path / name
    refused(f"{name}.*{message}", task.examples, "train")


LONG = 3_000_000  # bytes in one line, over what the tests below allow


def packed(suffix: str, path: Path, data: bytes) -> Path:
    path = path.with_name(path.name + suffix)
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("text.txt", data)
        return path
    pack = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lambda data: lzma.compress(data, preset=0),
        "": lambda data: data,
    }[suffix]
    path.write_bytes(pack(data))
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zip"])
def test_a_line_over_the_limit_is_refused_before_it_is_in_memory(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(bert_keras.tasks.data.sources, "MAX_LINE_BYTES", 100_000)
    path = packed(suffix, tmp_path / "text.txt", b"good\n" + b"x" * LONG)
    call = lambda: refused(r"text.txt.*, line 2: .*over 100,000 bytes", list, Corpus(path))  # noqa: E731
    assert peak(call) < LONG


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Tagging(["O"], scheme="IOB2"), "train.txt.gz"),
        (MultipleChoice(), "train.jsonl"),
        (FillMask(), "train.tsv"),
        (QuestionAnswering("squad1.1"), "train.json"),
    ],
    ids=["conll", "swag", "fill-mask", "squad"],
)
@pytest.mark.parametrize("limit", ["MAX_LINE_BYTES", "MAX_UNPACKED_BYTES"])
def test_packed_data_over_the_limit_is_refused_before_it_is_in_memory(
    tmp_path, monkeypatch, task, name, limit
):
    if task.kind == "question-answering":  # read as a whole
        monkeypatch.setattr(bert_keras.tasks.data.squad, "MAX_FILE_BYTES", 100_000)
    monkeypatch.setattr(bert_keras.tasks.data.sources, limit, 100_000)
    line = (
        b'{"startphrase": "a", "choices": ["a", "b", "c", "d"], "answer": 0}\n'
        if task.kind == "multiple-choice"
        else b"a O\n"
    )
    data = b"x" * LONG if limit == "MAX_LINE_BYTES" else line * (LONG // len(line))
    (tmp_path / name).write_bytes(gzip.compress(data))
    task.source = tmp_path / name
    message = "over 100,000 bytes" if task.kind != "fill-mask" or limit == "MAX_LINE_BYTES" else ".*"
    assert peak(lambda: refused(f"{name}.*{message}", task.examples, "train")) < LONG


@pytest.mark.parametrize("zeros", [0, 8, 20_000, 1 << 20])
def test_several_xz_streams_are_one_text(zeros, tmp_path):
    streams = lzma.compress(b"one\n") + bytes(zeros) + lzma.compress(b"two\n")
    (tmp_path / "text.txt.xz").write_bytes(streams)
    assert list(Corpus(tmp_path / "text.txt.xz")) == [["one", "two"]]
    (tmp_path / "text.txt.xz").write_bytes(streams[:-9])
    refused("text.txt.xz cannot be unpacked", list, Corpus(tmp_path / "text.txt.xz"))


def test_an_xz_file_that_asks_for_a_large_dictionary(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    data = bytearray(
        lzma.compress(b"one\n", filters=[filters[0] | {"dict_size": 1 << 20}], check=lzma.CHECK_NONE)
    )
    at = bytes(data).index(b"\x21\x01") + 2  # the filter's one property, the dictionary's size
    data[at] = 36  # 1 GiB
    header = data[12 : 12 + (data[12] + 1) * 4 - 4]
    struct.pack_into("<I", data, 12 + len(header), zipfile.crc32(bytes(header)))
    (tmp_path / "text.txt.xz").write_bytes(bytes(data))
    refused("cannot be unpacked .Memory usage limit exceeded", list, Corpus(tmp_path / "text.txt.xz"))


@pytest.mark.parametrize("text", [b"x" * LONG, b"<![CDATA[" + b"</revision>" * (LONG // 11) + b"]]>"])
def test_a_dump_whose_revision_does_not_end(tmp_path, monkeypatch, text):
    pytest.importorskip("mwxml")
    monkeypatch.setattr(bert_keras.tasks.pretraining.corpus_files, "MAX_REVISION_BYTES", 100_000)
    page = b"<page><title>a</title><ns>0</ns><id>1</id><revision><id>1</id><text>%s</text></revision></page>"
    (tmp_path / "wiki.xml.gz").write_bytes(gzip.compress(b"<mediawiki><siteinfo></siteinfo>" + page % text))
    refused("wiki.xml: a revision has over 100,000 bytes", list, Corpus(tmp_path / "wiki.xml.gz"))


def test_a_mask_over_one_is_refused_by_the_features_signature(untouched):
    from exports import untrained

    from bert_keras.savedmodels.export import servable_of

    servable = servable_of(untrained(TextClassification.open("sst2"), untouched))
    ids = tf.constant(np.full((1, 4), 7, "int32"))
    features = {"input_word_ids": ids, "input_mask": tf.ones_like(ids), "input_type_ids": ids * 0}
    assert servable.serve_features(**features)["label"].shape == [1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_mask: a number is above 1"):
        servable.serve_features(**features | {"input_mask": ids * 0 + 5})


# -----------------------------------------------------------------------------------------------------------
# The document


def test_the_limits_in_the_document_are_the_codes():
    table = dict(
        re.findall(r"^\| `([\w.]+)` \| ([\d,]+) \|", (ROOT / "docs" / "security.md").read_text(), re.M)
    )
    largest = {field.name: field.metadata["bounds"]["at_most"] for field in dataclasses.fields(BertConfig)}
    constants = {
        "json_files.MAX_JSON_BYTES": json_files.MAX_JSON_BYTES,
        "json_files.MAX_JSON_DEPTH": json_files.MAX_JSON_DEPTH,
        "vocabulary.MAX_VOCABULARY_BYTES": vocabulary.MAX_VOCABULARY_BYTES,
        "wordpiece.MAX_PIECES": MAX_PIECES,
        "wordpiece.MAX_PIECE_BYTES": MAX_PIECE_BYTES,
        "sources.MAX_LINE_BYTES": bert_keras.tasks.data.sources.MAX_LINE_BYTES,
        "sources.MAX_UNPACKED_BYTES": bert_keras.tasks.data.sources.MAX_UNPACKED_BYTES,
        "squad.MAX_FILE_BYTES": bert_keras.tasks.data.squad.MAX_FILE_BYTES,
        "tables.MAX_RATIO": bert_keras.tasks.data.tables.MAX_RATIO,
        "options.MAX_OPTION": bert_keras.tasks.options.MAX_OPTION,
        "options.MAX_CHOICES": bert_keras.tasks.options.MAX_CHOICES,
        "corpus_files.MAX_DOCUMENT": bert_keras.tasks.pretraining.corpus_files.MAX_DOCUMENT,
        "corpus_files.MAX_REVISION_BYTES": bert_keras.tasks.pretraining.corpus_files.MAX_REVISION_BYTES,
        "corpus_files.MAX_UNPACKER_BYTES": bert_keras.tasks.pretraining.corpus_files.MAX_UNPACKER_BYTES,
        "corpus_files.MAX_WHOLE_BYTES": bert_keras.tasks.pretraining.corpus_files.MAX_WHOLE_BYTES,
        **{f"config.{name}": most for name, most in largest.items() if isinstance(most, int)},
    }
    assert table == {name: f"{value:,}" for name, value in constants.items()}
