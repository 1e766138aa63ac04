"""Every reader of files as a row: how to make valid files, how to mutate one, how to read it, and what a result must fulfil.

`outcome` reads one mutated file. It is a result, or one BertKerasError of one line; anything else is raised as Finding.
"""

import bz2
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import json
import lzma
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tensorflow as tf
from mutations import (
    Mutate,
    mutated_bytes,
    mutated_json,
    mutated_json_lines,
    mutated_records,
    mutated_safetensors,
    mutated_text,
)
from pretrainings import given, write, write_google
from random_checkpoints import KINDS, TINY, random_checkpoint
from runs import VOCABULARY, learn_byte_bpe, texts

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io.formats import RUN, stamp
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.instance_sources import RecordInstances, check_data, make_batches
from bert_keras.tasks.pretraining.model import make_objectives
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.text.masking import Pieces
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.wordpiece import WordPiece

LONGEST = 3000  # characters of an error


class Finding(Exception):
    """An outcome that no reader may have."""


@dataclasses.dataclass(frozen=True)
class Reader:
    """One reader of one file.

    file: its name in the folder
    make: writes the other files into a folder; returns the valid contents of the file
    read: the folder -> a value that says what was read
    named: further names that an error may give the file: another file that must fit it, or TensorFlow's prefix
    checked: True if checksums protect the file: what is read is what was written, or an error
    """

    file: str
    make: Callable[[Path], list[bytes]]
    mutate: Mutate
    read: Callable[[Path], Any]
    named: tuple[str, ...] = ()
    checked: bool = False


def mutated(reader: Reader, originals: list[bytes], random: Random) -> bytes:
    """One of the valid contents with some changes."""
    return reader.mutate(originals[random.randrange(len(originals))], random)


def outcome(reader: Reader, folder: Path, data: bytes) -> Any:
    """Reads the file with this content; None if the reader refuses it. Raises Finding."""
    (folder / reader.file).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return reader.read(folder)
        except BertKerasError as error:
            check_error(reader, error)
            return None
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}") from error


def check_error(reader: Reader, error: BertKerasError) -> None:
    """Raises Finding unless an error is one line, not too long, and names the file."""
    text = str(error)
    # A name in the file may have one or two, which BertKerasError escapes.
    if str(error.args[0]).count("\n") > 2:
        raise Finding(f"an error of several lines: {text}") from error
    if not 0 < len(text) < LONGEST:
        raise Finding(f"an error of {len(text)} characters: {text}") from error
    if not any(name in text for name in (Path(reader.file).name, *reader.named)):
        raise Finding(f"an error that does not name the file: {text}") from error


def check_result(reader: Reader, found: Any, wanted: Iterable[Any]) -> None:
    """Raises Finding where a checksum should have told that what is read is not what was written."""
    if reader.checked and found is not None and found not in wanted:
        raise Finding("another result than from the valid file, with no error")


# -----------------------------------------------------------------------------------------------------------
# Checkpoints


def _digest(checkpoint: checkpoints.Checkpoint) -> str:
    hashed = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(checkpoint.tensors[name]).tobytes())
    return hashed.hexdigest()


def _checkpoint(folder: Path) -> str:
    checkpoint = checkpoints.read(folder)
    for name, shape in checkpoints.variable_shapes(checkpoint.config).items():
        if name in checkpoint.tensors and checkpoint.tensors[name].shape != shape:
            raise AssertionError(f"{name} has shape {checkpoint.tensors[name].shape}, wanted {shape}")
    return _digest(checkpoint)


def _written(form: str, file: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        # KerasHub builds all layers.
        heads, layers = (("masked_lm",), TINY.num_layers) if form != "keras-hub" else ((), 1)
        config = dataclasses.replace(TINY, type_vocab_size=2, num_layers=layers)
        checkpoints.write(random_checkpoint(config, heads=heads), folder, format=form, overwrite=True)
        return [(folder / file).read_bytes()]

    return make


def _configs(folder: Path) -> list[bytes]:
    """The config.json of each model_type."""
    made = [dataclasses.replace(TINY, **changes) for changes in KINDS.values()]
    return [json.dumps(config.to_hugging_face()).encode() for config in made]


def _google_config(folder: Path) -> list[bytes]:
    return [json.dumps(TINY.to_google()).encode()]


def _config(folder: Path) -> Any:
    config = BertConfig.load(folder)
    if BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) != config:
        raise AssertionError("another configuration from its own dict")
    return config


# -----------------------------------------------------------------------------------------------------------
# Tokenizers


def _tokenizer(folder: Path) -> Any:
    tokenizer = checkpoints.load_tokenizer(folder)
    if int(tokenizer.digest[:2], 16) % 16:  # a sixteenth of the tokenizers is run: it takes 30 times as long
        return tokenizer.digest
    ids = tokenizer.tokenize(tf.constant(["A good film, isn't it?", "\u4e2de\u0301 \0", ""])).to_list()
    if any(not 0 <= one < tokenizer.vocab_size for row in ids for one in row):
        raise AssertionError(f"ids {ids} of a vocabulary of {tokenizer.vocab_size}")
    return ids


def _vocabulary(folder: Path) -> list[bytes]:
    return ["\n".join(VOCABULARY[:80]).encode() + b"\n"]


def _byte_level(name: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        vocabulary, merges = learn_byte_bpe(texts(100, seed=7), size=300)
        config = BertConfig(**dataclasses.asdict(TINY) | {"vocab_size": len(vocabulary)})
        checkpoint = dataclasses.replace(
            random_checkpoint(config), vocabulary=Vocabulary(vocabulary, merges, lower_case=False)
        )
        checkpoints.write(checkpoint, folder, format="hugging-face", overwrite=True)
        data = (folder / name).read_bytes()
        others = {"vocab.json", "merges.txt"} if name == "tokenizer.json" else {"tokenizer.json"}
        for other in ("model.safetensors", "config.json", *others):
            (folder / other).unlink()
        return [data]

    return make


def _wordpiece_json(folder: Path) -> list[bytes]:
    """The tokenizer.json of an uncased WordPiece vocabulary, as transformers writes it."""
    from tokenizers import BertWordPieceTokenizer

    (folder / "vocab.txt").write_bytes(_vocabulary(folder)[0])
    made = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    (folder / "vocab.txt").unlink()
    return [made.to_str().encode()]


def _tokenizer_config(folder: Path) -> list[bytes]:
    (folder / "vocab.txt").write_bytes(_vocabulary(folder)[0])
    token = {"content": "[PAD]", "special": True}
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None}
    settings |= {"model_max_length": 48, "added_tokens_decoder": {"0": token}, "clean_text": True}
    return [json.dumps(settings).encode()]


def _sentencepiece(folder: Path) -> list[bytes]:
    return [learn_sentencepiece(texts(200, seed=7), size=50, lower_case=True).model]


# -----------------------------------------------------------------------------------------------------------
# Runs

# A random classifier has five classes.
TASKS = (
    TextClassification("abcde", text=("sentence",)),
    QuestionAnswering("squad2.0"),
    Tagging(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], scheme="IOB2"),
    FillMask(top_k=3),
)


def _tasks(folder: Path) -> list[bytes]:
    config = dataclasses.replace(TINY, num_layers=1, vocab_size=len(VOCABULARY), max_positions=48)
    drawn = random_checkpoint(config, heads=("masked_lm", "classifier", "qa_outputs"))
    checkpoint = dataclasses.replace(drawn, vocabulary=Vocabulary(VOCABULARY, lower_case=True))
    checkpoints.write(checkpoint, folder, format="hugging-face", overwrite=True)
    sizes = {"seq_length": 16, "truncation": "longest_first"}
    return [
        json.dumps(stamp(RUN) | {"kind": task.kind, "task": task.to_json(), **sizes}).encode()
        for task in TASKS
    ]


def _run(folder: Path) -> Any:
    return json.dumps(load_run(folder).task.to_json())


# -----------------------------------------------------------------------------------------------------------
# Data sets


def _examples(task: Any, folder: Path, file: str) -> Any:
    task.source = folder / file
    return _all_of(task)


def _all_of(task: Any) -> str:
    """Every example of the task, as text."""
    return repr(list(task.examples("train").as_numpy_iterator()))


def _squad_file(folder: Path) -> list[bytes]:
    questions = [
        {"id": "1", "question": "who ?", "answers": [{"text": "e\u0301a", "answer_start": 2}]},
        {"id": "2", "question": "what ?", "answers": [], "is_impossible": True},
    ]
    article = {"title": "t", "paragraphs": [{"context": "a e\u0301a \u4e2d b", "qas": questions}]}
    return [json.dumps({"version": "v2.0", "data": [article]}).encode()]


_CONLL = (
    "-DOCSTART- -X- -X- O\n\nU.N. NNP B-NP B-PER\nof IN I-NP I-PER\nx NN B-NP O\n\na b c O\nb b c B-PER\n"
)
_SWAG = "".join(
    f'{{"startphrase": "{start}", "choices": ["a", "b", "c", "d"], "answer": {answer}}}\n'
    for start, answer in (("a", 0), ("b", 3))
)
_TABLE = [("text", "label"), ("a good film", "x"), ("e\u0301 \u4e2d", "y"), ("bad, very", "x"), ("dull", "y")]


def _table(ending: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        head, *rows = _TABLE
        if ending == ".jsonl":
            return ["\n".join(json.dumps(dict(zip(head, row, strict=True))) for row in rows).encode() + b"\n"]
        if ending == ".csv":
            return ["".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in _TABLE).encode()]
        if ending == ".tsv":
            return ["".join("\t".join(row) + "\n" for row in _TABLE).encode()]
        import pyarrow
        import pyarrow.parquet

        columns = dict(zip(head, zip(*rows, strict=True), strict=True))
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "made.parquet")
        return [(folder / "made.parquet").read_bytes()]

    return make


def _custom(file: str) -> Callable[[Path], Any]:
    return lambda folder: _all_of(TextClassification.open("custom", folder / file))


_DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en"><siteinfo>
<namespaces><namespace key="0" case="first-letter" /><namespace key="6" case="first-letter">File</namespace></namespaces>
</siteinfo><page><title>A</title><ns>0</ns><id>1</id><revision><id>2</id><timestamp>2020-01-01T00:00:00Z</timestamp>
<contributor><username>a</username><id>3</id></contributor><model>wikitext</model><format>text/x-wiki</format>
<text bytes="9" xml:space="preserve">'''A''' is [[b|a b]]. {{t|x=1}} &lt;ref&gt;c&lt;/ref&gt;

== H ==
* one [[File:x.jpg|thumb|d]]
{| class="t"
| x
|}
The end.</text><sha1>x</sha1></revision></page></mediawiki>
"""


def _corpus(file: str) -> Callable[[Path], Any]:
    return lambda folder: hashlib.sha256(repr(list(Corpus(folder / file))).encode()).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Instances

_RECIPE = given()["recipe"]


@functools.cache
def _wordpiece() -> WordPiece:
    return WordPiece(VOCABULARY)


def _records(source: Path) -> Any:
    """The batches of an epoch, checked as a training checks them."""
    config = BertConfig(**dataclasses.asdict(TINY) | {"vocab_size": len(VOCABULARY), "max_positions": 48})
    tokenizer = _wordpiece()
    read = RecordInstances([source], None, recipe=_RECIPE, tokenizer=tokenizer, vocab_size=config.vocab_size)
    objectives = make_objectives(_RECIPE, read.phases[0].seq_length, pieces=Pieces.of(tokenizer))
    list(check_data(read, 0, objectives=objectives, batch_size=4))
    seen = hashlib.sha256()
    with read.reading(0):
        # Without objectives, whose graphs take seconds to make.
        how = {"objectives": (), "vocab_size": config.vocab_size, "batch_size": 4, "seed": 1}
        batches = make_batches(read.sample(0), drop_remainder=False, **how)
        for features, *_ in batches.as_numpy_iterator():
            _check_batch(features, config)
            seen.update(repr({name: value.tolist() for name, value in features.items()}).encode())
    return seen.hexdigest()


def _check_batch(features: Any, config: BertConfig) -> None:
    bounds = {"input_word_ids": config.vocab_size, "input_mask": 2, "input_type_ids": 2}
    bounds["masked_lm_positions"] = features["input_word_ids"].shape[1]
    for name, most in bounds.items():
        if name in features and not ((features[name] >= 0) & (features[name] < most)).all():
            raise AssertionError(f"{name} outside of 0 to {most - 1}: {np.unique(features[name])[:5]}")


def _our_records(file: str) -> Callable[[Path], list[bytes]]:
    def make(folder: Path) -> list[bytes]:
        write(folder / "instances", settings={"seq_length": 16}, texts=[texts(12, seed=i) for i in range(8)])
        return [(folder / file).read_bytes()]

    return make


def _google_records(folder: Path) -> list[bytes]:
    write_google(folder / "made.tfrecord", highest=20, count=6)
    return [(folder / "made.tfrecord").read_bytes()]


def _packed(pack: Callable[[bytes], bytes]) -> Callable[[Path], list[bytes]]:
    return lambda folder: [pack(b"".join(b"a line of text %d\n\n" % i for i in range(20)))]


# Errors about the instances of all sources together.
OF_ALL_RECORDS = ("fewer than a batch of", "sentence-pair labels are")

_TENSORFLOW = "bert_model.ckpt"
_DATA = f"{_TENSORFLOW}.data-00000-of-00001"
_RECORDS = lambda folder: _records(folder / "instances")  # noqa: E731
_TABLES = dict.fromkeys((".tsv", ".csv"), mutated_text)
_TABLES |= {".jsonl": mutated_json_lines, ".parquet": mutated_bytes}
_PACKS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def _checkpoint_file(form: str, file: str, mutate: Mutate, *named: str, checked: bool = False) -> Reader:
    return Reader(file, _written(form, file), mutate, _checkpoint, named, checked)


READERS: dict[str, Reader] = {
    "config.json": Reader("config.json", _configs, mutated_json, _config),
    "bert_config.json": Reader("bert_config.json", _google_config, mutated_json, _config),
    "config.json with weights": _checkpoint_file(
        "hugging-face", "config.json", mutated_json, "model.safetensors", "the config's vocab_size"
    ),
    "model.safetensors": _checkpoint_file("hugging-face", "model.safetensors", mutated_safetensors),
    **{
        name: _checkpoint_file(form, file, mutated_bytes, _TENSORFLOW, checked=True)
        for name, form, file in (
            ("TensorFlow 1 index", "google", f"{_TENSORFLOW}.index"),
            ("TensorFlow 1 data", "google", _DATA),
            ("Model Garden index", "model-garden", f"{_TENSORFLOW}.index"),
        )
    },
    "KerasHub config.json": _checkpoint_file(
        "keras-hub", "config.json", mutated_json, "model.weights.h5", "the config's vocab_size"
    ),
    "KerasHub tokenizer.json": _checkpoint_file("keras-hub", "tokenizer.json", mutated_json),
    "KerasHub weights": _checkpoint_file("keras-hub", "model.weights.h5", mutated_bytes),
    "vocab.txt": Reader("vocab.txt", _vocabulary, mutated_text, _tokenizer),
    "vocab.json": Reader("vocab.json", _byte_level("vocab.json"), mutated_json, _tokenizer),
    "merges.txt": Reader("merges.txt", _byte_level("merges.txt"), mutated_text, _tokenizer),
    "tokenizer.json, byte-level": Reader(
        "tokenizer.json", _byte_level("tokenizer.json"), mutated_json, _tokenizer
    ),
    "tokenizer.json, WordPiece": Reader("tokenizer.json", _wordpiece_json, mutated_json, _tokenizer),
    "tokenizer_config.json": Reader("tokenizer_config.json", _tokenizer_config, mutated_json, _tokenizer),
    "spiece.model": Reader("spiece.model", _sentencepiece, mutated_bytes, _tokenizer),
    # An error may be about weights for another number of labels.
    "task.json": Reader("task.json", _tasks, mutated_json, _run, ("in the checkpoint; the model wants",)),
    "SQuAD JSON": Reader(
        "train.json",
        _squad_file,
        mutated_json,
        lambda folder: _examples(QuestionAnswering("squad2.0"), folder, "train.json"),
    ),
    "CoNLL": Reader(
        "train.txt",
        lambda folder: [_CONLL.encode()],
        mutated_text,
        lambda folder: _examples(Tagging(["O", "B-PER", "I-PER"], scheme="IOB2"), folder, "train.txt"),
    ),
    "SWAG JSON lines": Reader(
        "train.jsonl",
        lambda folder: [_SWAG.encode()],
        mutated_json_lines,
        lambda folder: _examples(MultipleChoice(), folder, "train.jsonl"),
    ),
    **{
        f"table {ending}": Reader(f"train{ending}", _table(ending), mutate, _custom(f"train{ending}"))
        for ending, mutate in _TABLES.items()
    },
    "MediaWiki dump": Reader("wiki.xml", lambda folder: [_DUMP.encode()], mutated_text, _corpus("wiki.xml")),
    "corpus": Reader("text.txt", _packed(bytes), mutated_text, _corpus("text.txt")),
    **{
        # An error may give the line of the text in the file.
        f"corpus {ending}": Reader(
            f"text.txt{ending}", _packed(pack), mutated_bytes, _corpus(f"text.txt{ending}"), ("text.txt",)
        )
        for ending, pack in _PACKS.items()
    },
    "TFRecord, ours": Reader(
        "instances/00000.tfrecord",
        _our_records("instances/00000.tfrecord"),
        mutated_records,
        _RECORDS,
        OF_ALL_RECORDS,
    ),
    # An error may be about a folder of another vocabulary.
    "manifest.json": Reader(
        "instances/manifest.json",
        _our_records("instances/manifest.json"),
        mutated_json,
        _RECORDS,
        ("instances was made with another",),
    ),
    "TFRecord, Google's": Reader(
        "google.tfrecord",
        _google_records,
        mutated_records,
        lambda folder: _records(folder / "google.tfrecord"),
        OF_ALL_RECORDS,
    ),
}


@contextlib.contextmanager
def made(reader: Reader, folder: Path) -> Any:
    """The valid contents of the file and their results, with the other files in the folder."""
    originals = reader.make(folder)
    results = [outcome(reader, folder, data) for data in originals]
    if any(result is None for result in results):
        raise AssertionError("a valid file is refused")
    yield originals, results
