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
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from pretrainings import train, write_google
from random_checkpoints import TINY, peak, random_checkpoint, refused, saves_with_keras
from runs import VOCABULARY, learn_byte_bpe, texts, write_checkpoint, write_roberta

import bert_keras.tasks.data.sources
import bert_keras.tasks.data.tables
import bert_keras.tasks.options
import bert_keras.tasks.pretraining.corpus_files
import bert_keras.tasks.task
from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    NEXT_SENTENCE_LABEL,
    TFRECORD_NAMES,
)
from bert_keras.io import archives, formats, json_files
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


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("untrusted") / "checkpoint", num_layers=2)


@pytest.fixture
def checkpoint(untouched, tmp_path) -> Path:
    """A copy of a whole checkpoint, to be spoilt."""
    return Path(shutil.copytree(untouched, tmp_path / "checkpoint"))


# -----------------------------------------------------------------------------------------------------------
# Tokenizers. The refusals of checkpoints are in test_checkpoint_errors.py.


@pytest.mark.parametrize("token", [["<s>"], None, {"a": 1}])
def test_a_special_token_of_another_type_in_a_tokenizer_json(tmp_path, token):
    write_roberta(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["cls"] = [token, 0]
    path.write_text(json.dumps(content))
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).unlink()
    refused("tokenizer.json: cls is .*; wanted a token and its id", checkpoints.load_tokenizer, tmp_path)


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
    ("text-classification", GLUE | {"measures": ["x"]}, "measure 'x' does not fit these labels; give one of accuracy"),
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
    ("tagging", CONLL | {"labels": ["B-PER", "B-PER"]}, "labels is .*; expected two or more tags .* each once"),
    ("tagging", CONLL | {"scheme": "IOB9"}, "scheme is 'IOB9'; wanted one of IOB2"),
    ("fill-mask", {"name": "fill-mask", "top_k": "5"}, "top_k is '5'; wanted a whole number"),
    (["text-classification"], GLUE, r"kind is \['text-classification'\]; wanted one of"),
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


@pytest.mark.parametrize(
    ("name", "content", "task", "message"),
    [
        ("train.json", DEEP, QuestionAnswering("squad2.0"), "is nested too deep"),
        ("train.json", b'{"data": 5}', QuestionAnswering("squad2.0"), "'data' is 5; give a list"),
        ("train.jsonl", DEEP, MultipleChoice(), "line 1 is nested too deep"),
        ("train.jsonl", b'{"startphrase": "a", "choices": 5}', MultipleChoice(), "no list but 5, expected 4"),
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
    fast = lambda data: lzma.compress(data, preset=0)  # noqa: E731
    packs = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": fast, "": bytes}
    path.write_bytes(packs[suffix](data))
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zip"])
def test_a_line_over_the_limit_is_refused_before_it_is_in_memory(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(bert_keras.tasks.data.sources, "MAX_LINE_BYTES", 100_000)
    path = packed(suffix, tmp_path / "text.txt", b"good\n" + b"x" * LONG)
    assert peak(refused, r"text.txt.*, line 2: .*over 100,000 bytes", list, Corpus(path)) < LONG


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
    swag = b'{"startphrase": "a", "choices": ["a", "b", "c", "d"], "answer": 0}\n'
    line = swag if task.kind == "multiple-choice" else b"a O\n"
    data = b"x" * LONG if limit == "MAX_LINE_BYTES" else line * (LONG // len(line))
    (tmp_path / name).write_bytes(gzip.compress(data))
    task.source = tmp_path / name
    message = "over 100,000 bytes" if task.kind != "fill-mask" or limit == "MAX_LINE_BYTES" else ".*"
    assert peak(refused, f"{name}.*{message}", task.examples, "train") < LONG


@pytest.mark.parametrize("zeros", [0, 8, 20_000, 1 << 20])
def test_several_xz_streams_are_one_text(zeros, tmp_path):
    streams = lzma.compress(b"one\n") + bytes(zeros) + lzma.compress(b"two\n")
    (tmp_path / "text.txt.xz").write_bytes(streams)
    assert list(Corpus(tmp_path / "text.txt.xz")) == [["one", "two"]]
    (tmp_path / "text.txt.xz").write_bytes(streams[:-9])
    refused("text.txt.xz cannot be unpacked", list, Corpus(tmp_path / "text.txt.xz"))


def test_an_xz_file_that_asks_for_a_large_dictionary(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    small = [filters[0] | {"dict_size": 1 << 20}]
    data = bytearray(lzma.compress(b"one\n", filters=small, check=lzma.CHECK_NONE))
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
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_mask has a number outside of 0 to 1"):
        servable.serve_features(**features | {"input_mask": ids * 0 + 5})


# -----------------------------------------------------------------------------------------------------------
# Instances, and damage that benchmarks/fuzz.py found to be read, or to end in another library's error


def damage(path, change, *, record=15):
    """Changes one record; `change` returns its bytes from a tf.Example."""
    records = [one.numpy() for one in tf.data.TFRecordDataset(str(path))]
    records[record] = change(tf.train.Example.FromString(records[record]))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (INPUT_WORD_IDS, 2**32 + 5, "there is a token of id 2147483647 and vocab_size is"),
        (INPUT_WORD_IDS, -1, f"file.tfrecord: a value of {INPUT_WORD_IDS} is out of range"),
        (MASKED_LM_IDS, -(2**63), f"file.tfrecord: a value of {MASKED_LM_IDS} is out of range"),
        (INPUT_MASK, 2, f"file.tfrecord: a value of {INPUT_MASK} is out of range"),
        (INPUT_TYPE_IDS, 2, f"file.tfrecord: a value of {INPUT_TYPE_IDS} is out of range"),
        (MASKED_LM_POSITIONS, 16, f"file.tfrecord: a value of {MASKED_LM_POSITIONS} is out of range"),
        (NEXT_SENTENCE_LABEL, 2**32, f"file.tfrecord: a value of {NEXT_SENTENCE_LABEL} is out of range"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tmp_path, name, value, message):
    write_google(tmp_path / "file.tfrecord", highest=4)

    def change(example):
        example.features.feature[TFRECORD_NAMES[name]].int64_list.value[0] = value
        return example.SerializeToString()

    damage(tmp_path / "file.tfrecord", change)
    settings = {"seq_length": 16, "batch_size": 4, "steps": 10}
    refused(message, train, tmp_path / "run", records=[tmp_path / "file.tfrecord"], changes=settings)


@pytest.mark.parametrize("data", [b"\xe6\x01\xff", b"no tf.Example"], ids=["bytes", "text"])
def test_a_record_that_is_no_example_is_refused(tmp_path, data):
    write_google(tmp_path / "file.tfrecord", highest=4)
    damage(tmp_path / "file.tfrecord", lambda example: data, record=3)
    settings = {"seq_length": 16, "batch_size": 4}
    given = {"records": [tmp_path / "file.tfrecord"], "changes": settings}
    refused("file.tfrecord: a record", train, tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_numbers_of_a_whole_record_are_unchanged(tmp_path):
    write_google(tmp_path / "file.tfrecord", highest=2**31 - 1)
    first = next(read_records(tmp_path / "file.tfrecord").as_numpy_iterator())
    assert first[INPUT_WORD_IDS].dtype == np.int32 and first[INPUT_WORD_IDS].max() == 2**31 - 1


@pytest.mark.parametrize("part", ["text", "name"])
def test_a_parquet_file_whose_text_is_not_utf8_is_refused(tmp_path, part):
    path = tmp_path / "train.parquet"
    texts = ["a good film", "dull"] * 4
    plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    table = pyarrow.table({"text": texts, "label": ["x", "y"] * 4})
    pyarrow.parquet.write_table(table, path, compression="none", **plain)
    data = path.read_bytes()
    right, wrong = {"text": (b"dull", b"d\xffll"), "name": (b"text", b"t\xffxt")}[part]
    assert right in data
    path.write_bytes(data.replace(right, wrong))

    def read():
        columns = {"text_column": ["text"], "label_column": "label"}
        list(TextClassification.open("custom", path, **columns).examples("train"))

    refused("train.parquet (cannot be read|is not a Parquet file)", read)


@saves_with_keras
@pytest.mark.long
def test_hdf5_weights_with_a_damaged_list_of_links_are_refused(tmp_path):
    config = dataclasses.replace(TINY, type_vocab_size=2, attention_dropout=TINY.hidden_dropout)
    checkpoints.write(random_checkpoint(config, heads=()), tmp_path, format="keras-hub")
    path = tmp_path / "model.weights.h5"
    damaged = re.sub(b"(?s)(HEAP.{12}).{8}", lambda found: found[1] + b"\xfe" * 8, path.read_bytes())
    path.write_bytes(damaged)  # the first free place of every local heap
    refused("model.weights.h5 does not hold", checkpoints.read, tmp_path)


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
        "archives.MAX_ARCHIVE_BYTES": archives.MAX_ARCHIVE_BYTES,
        "archives.MAX_MEMBERS": archives.MAX_MEMBERS,
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
