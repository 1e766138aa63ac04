"""The kinds of files and folders that people hold, as a table: how each is seen, what it is, and the way in.

The tests look at names, first bytes, keys and names of tensors (look.py): nothing is executed.
"""

import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_keras.checkpoints.look import FAMILIES, Look, labels, sizes
from bert_keras.config_files import MODEL_TYPES
from bert_keras.io.formats import MANIFEST, WRITTEN_BY

# Commands that bring a kind in; {path} is its path, {file} and {folder} are those of its file.
_TUNE = "bert-keras finetune --task {task} --data {data} --checkpoint {checkpoint} --output RUN"
_TRAIN = _TUNE.format(task="custom", data="DATA", checkpoint="{path}")
_TABLE, _SQUAD_1, _SQUAD_2, _TAGS = (
    _TUNE.format(task=task, data="{path}", checkpoint="CHECKPOINT")
    for task in ("custom", "squad1.1", "squad2.0", "conll2003")
)
_CONVERT = "bert-keras convert --from {path} --to NEW"
_CONVERT_GRAPH = "bert-keras convert --from {folder} --to NEW"
_PRETRAIN = "bert-keras pretrain --text TEXT --vocab {path} --output RUN"
_RECORDS = "bert-keras pretrain --records {path} --vocab VOCAB --output RUN"
_TEXT = ("bert-keras predict --run RUN --input {path}", "bert-keras vocab --text {path} --output VOCAB")
_OF_RUN = (
    "bert-keras predict --run {path} --input TEXT",
    "bert-keras evaluate --run {path} --data DATA",
    "bert-keras export --run {path} --output SERVED",
)
# Advice where a kind does not come in.
_AGAIN = "bring the file again"
_EXPORTED, _MADE = (f"give the checkpoint that it was {word} from" for word in ("exported", "made"))
_KERAS_2 = "these names are not read; give the checkpoint that its training started from, and train it again"
_ASK = "bert_keras.load(FOLDER) asks it; to train or convert, give the checkpoint or the run that it was exported from"
_OLD_H5 = (_CONVERT, "put the bert_config.json and vocab.txt of its checkpoint beside it")
_CONFIG = "put the model's config.json and vocabulary beside it, and name it"

WEIGHTS = ("*.safetensors", "*.h5", "*.hdf5", "*.bin", "*.pt", "*.pth", "*.keras", "*.zip")
_WHOLE = ("model.safetensors", "tf_model.h5", "pytorch_model.bin")
_SHARDS = tuple(f"{name}.index.json" for name in _WHOLE)
_GRAPH = ("saved_model.pb", "*/saved_model.pb", "saved_model/1/saved_model.pb")
_INDEX = ("bert_model.ckpt.index", "*.ckpt*.index", "*.index")
_H5 = ("*.h5", "*.hdf5")
_PRESET = ("model.weights.h5", "model.weights.json")
Facts = dict[str, Any]


class Row(NamedTuple):
    """One kind of file or folder.

    kind: its name for machines
    what: the format and its maker; {0} stands for `named`
    files: patterns of names; of a folder, the last file of the first pattern that fits. () is any file, of a folder the weights
    way: the commands that bring it in; and words: the reason why it does not come in, or what to do besides
    test: True if the content is of this kind; named: the word in `what`; facts: what else is known
    """

    kind: str
    what: str
    files: tuple[str, ...]
    way: tuple[str, ...]
    test: Callable[[Look], Any] = lambda look: True
    named: Callable[[Look], str] = lambda look: ""
    facts: Callable[[Look], Facts] = lambda look: {}


# -----------------------------------------------------------------------------------------------------------
# Tests and facts


def _has(pattern: str) -> Callable[[Look], bool]:
    """A tensor of the file has a name with this pattern."""
    return lambda look: any(re.search(pattern, name) for name in look.tensors)


def _starts(*marks: bytes) -> Callable[[Look], bool]:
    return lambda look: look.start.lstrip().startswith(marks)


def _holds(*marks: bytes) -> Callable[[Look], bool]:
    """The file has all these bytes, such as names in the graph of a SavedModel."""
    return lambda look: all(mark in look.graph for mark in marks)


def _line(pattern: str, least: int = 1) -> Callable[[Look], bool]:
    """So many of the first lines match."""
    return lambda look: sum(bool(re.search(pattern, line.rstrip("\r"))) for line in look.lines[:200]) >= least


def _saved_by(package: str, class_name: str = "") -> Callable[[Look], bool]:
    """A `.keras` file of a class of this package, of any name or of this one."""
    return lambda look: (
        (
            re.match(package, str(look.config.get("registered_name") or "")) is not None
            or str(look.config.get("module")).startswith(package)
        )
        and class_name in ("", _class_name(look))
    )


def _class_name(look: Look) -> str:
    return str(look.config.get("class_name") or "?")[:80]


_of_tensorflow = _has(r"(^|/)tf_\w+/.*:0$|layers?_\._\d+/")


def _transformers_class(look: Look) -> str:
    """transformers' class: of the configuration, else of the scope in which TensorFlow made the variables."""
    named = look.config.get("architectures")
    first = str(named[0])[:80] if isinstance(named, list) and named else ""
    if first:
        return f"TF{first.removeprefix('TF')}" if look.file.suffix == ".h5" else first
    names = "\n".join(look.tensors) or "\n".join(map(str, re.findall(rb"tf_[a-z_]+", look.graph)))
    scope = re.search(r"tf_((?:distil_bert|[a-z]+)(?:_for(?:_[a-z]+)+|_model))(?![a-z_])", names)
    title = scope[1].replace("_", " ").title().replace(" ", "").replace("Lm", "LM") if scope else ""
    return f"TF{title}" if title else "models"


def _ktrain(look: Look) -> Look:
    return Look(look.folder / "tf_model.h5")


def _model_facts(look: Look) -> Facts:
    return sizes(look) | labels(look)


def _task_facts(look: Look) -> Facts:
    """Of a run's task.json, or of the config.json of a `.keras` file."""
    content: Any = look.config.get("config") if look.members else look.object
    content = content.get("problem") if look.members and isinstance(content, dict) else content
    content = content if isinstance(content, dict) else {}
    task: Any = content.get("task")
    task = task if isinstance(task, dict) else {}
    names = task.get("labels")
    found = {"labels": [str(name) for name in names]} if isinstance(names, list) and names else {}
    return sizes(look) | {"task": str(content.get("kind"))[:80]} | found


def _lost_shard(look: Look) -> bool:
    shards = look.object.get("weight_map")
    names = {str(name) for name in shards.values()} if isinstance(shards, dict) else set()
    return any(not (look.folder / pathlib.PurePath(name).name).is_file() for name in names)


def _supported(look: Look) -> bool:
    """A configuration of a family that is read here."""
    return bool(look.config) and look.config.get("model_type", "bert") in MODEL_TYPES


def _tokens(look: Look) -> Facts:
    return {"tokens": len(look.read(1 << 24).splitlines())}


# -----------------------------------------------------------------------------------------------------------
# The table. The first row that fits counts: ours, broken files, models of others, single files, data.
# fmt: off
_OURS = (
    Row("unfinished-pretraining", "an unfinished pre-training of bert_keras", ("checkpoints/model",),
        ("rerun its command, which resumes; `bert-keras fill-mask --checkpoint FOLDER TEXT` asks its last save",),
        lambda look: not (look.folder.parent / "results.json").is_file()),
    Row("run", "a run of bert_keras", ("task.json",), _OF_RUN,
        lambda look: "kind" in look.object and look.beside("model.safetensors"), facts=_task_facts),
    Row("runtime-export", "an export of bert_keras for another runtime", ("example.py",), ("python {file}",),
        lambda look: look.beside("settings.json", "model.*")),
    Row("export", "a SavedModel of bert_keras, a graph that takes strings", _GRAPH,
        (_ASK, "bert-keras serve {path} --no-grpc"),
        lambda look: WRITTEN_BY in Look(look.folder / MANIFEST).object),
    Row("instances", "instances of bert_keras", ("manifest.json",), (_RECORDS,), lambda look: "shards" in look.object),
    Row("study", "results of bert_keras", ("ablation.json", "protocol.json", "probe.json"),
        ("its runs are in subfolders: give one of them",)),
    Row("keras-file", "a saved Keras model, a text model of bert_keras", ("*.keras",),
        ("bert_keras.load(FILE) or `--run FILE` reads it; as a checkpoint, give the folder that its save() writes for a path "
        "without a suffix", *_OF_RUN),
        _saved_by("bert_keras", "TextModel"), facts=_task_facts),
    Row("keras-file", "a saved Keras model of class {0} with layers of bert_keras", ("*.keras",),
        ("import bert_keras, and keras.models.load_model(FILE) reads it",), lambda look: "bert_keras" in str(look.config),
        _class_name, sizes),
)
_BROKEN = (
    Row("empty", "empty", (), (_AGAIN,), lambda look: look.file.is_file() and not look.file.stat().st_size),
    Row("git-lfs", "a Git LFS pointer, not the file", (), ("run `git lfs pull` in its folder",),
        _starts(b"version https://git-lfs")),
    Row("html", "a page of HTML, not the file", (), ("download the file again",), _starts(b"<!DOCTYPE", b"<!doctype", b"<html")),
)
_MODELS = (
    Row("sentence-transformers", "of a sentence-transformers folder, whose encoder is in a subfolder", ("modules.json",),
        ("bert_keras.embedder(FOLDER) follows it; as a checkpoint, give the subfolder",),
        lambda look: not look.beside("config.json")),
    Row("adapter", "a PEFT adapter, which holds only changes of another model", ("adapter_*",),
        ("bring its adapter_config.json too, and merge it with peft "
        "(PeftModel.from_pretrained(base, FOLDER).merge_and_unload().save_pretrained(NEW)); give NEW",)),
    Row("keras-hub", "a preset of KerasHub, {0}", _PRESET, (_TRAIN, _CONVERT),
        lambda look: _class_name(look) == "BertBackbone", _class_name, sizes),
    Row("other-family", "a preset of KerasHub, {0}", _PRESET,
        ("only presets of BertBackbone are read; give the same model of the Hugging Face Hub",),
        lambda look: "Backbone" in _class_name(look), _class_name),
    Row("ktrain", "a predictor of ktrain on transformers' {0}", ("tf_model.preproc",),
        ("its .preproc is a pickle, which runs code and is not read; put the vocabulary of the model that it was trained from "
        "beside tf_model.h5", _CONVERT),
        lambda look: _of_tensorflow(_ktrain(look)), lambda look: _transformers_class(_ktrain(look)),
        lambda look: _model_facts(_ktrain(look))),
    Row("ktrain", "a predictor of ktrain on Keras 2 weights", ("tf_model.preproc",), (_KERAS_2,),
        facts=lambda look: _model_facts(_ktrain(look))),
    Row("shards", "an index of shards, which are not all in the folder", _SHARDS, ("bring all files",), _lost_shard),
    Row("tf-keras", "weights of transformers' {0}", ("tf_model.h5", *_SHARDS[1:2]), (_CONVERT, _TRAIN),
        lambda look: _supported(look) and not look.is_cut, _transformers_class, _model_facts),
    Row("hugging-face", "weights of transformers' {0}", (*_WHOLE, *_SHARDS), (_TRAIN, _CONVERT),
        lambda look: _supported(look) and not look.is_cut, _transformers_class, _model_facts),
    Row("other-family", "weights of transformers' {0}", (*_WHOLE, *_SHARDS),
        (f"its family is not read; the families are {', '.join(FAMILIES.values())}",),
        lambda look: "model_type" in look.config and not look.is_cut, _transformers_class, sizes),
    Row("tf-hub-1", "a TensorFlow Hub module for TensorFlow 1 (hub.Module)", ("tfhub_module.pb",),
        ("give its version for TensorFlow 2, or its weights by `bert-keras convert --from google://NAME --to NEW`",)),
    Row("transformers-saved-model", "a SavedModel of transformers' {0}", _GRAPH, (_CONVERT_GRAPH,),
        lambda look: re.search(rb"layers?_\._\d", look.graph),
        _transformers_class, sizes),
    Row("tf-hub", "a TensorFlow Hub or Model Garden encoder, a SavedModel", _GRAPH, (_CONVERT_GRAPH,),
        _holds(b"input_word_ids", b"pooled_output"), facts=sizes),
    Row("tf-hub-preprocessor", "a TensorFlow Hub preprocessor, a SavedModel without weights", _GRAPH,
        ("give the encoder that it belongs to, or in Keras bert_keras.HubLayer(FOLDER)",), _holds(b"input_word_ids")),
    Row("saved-model", "a SavedModel without an encoder of ours", _GRAPH,
        ("bert_keras.HubLayer(FOLDER) runs and trains it in a Keras model",)),
    Row("training", "the last save of an unfinished training", ("checkpoints/ckpt-*.index",),
        ("rerun the training's command, which goes on from there",)),
    Row("model-garden", "a checkpoint of Model Garden, TensorFlow 2", _INDEX, (_CONVERT, _TRAIN),
        lambda look: b"_CHECKPOINTABLE_OBJECT_GRAPH" in look.start and look.config, facts=sizes),
    Row("google", "a checkpoint of google-research/bert, TensorFlow 1", _INDEX, (_CONVERT, _TRAIN),
        lambda look: look.start and look.config, facts=sizes),
    Row("tensorflow", "a TensorFlow checkpoint without a bert_config.json", _INDEX,
        ("put the model's bert_config.json and vocab.txt there",), lambda look: look.start),
    Row("tensorflow", "a TensorFlow checkpoint without its .index file", ("*.data-00000-of-*",),
        ("bring all files of the checkpoint",)),
    Row("google-zip", "a zip file with a checkpoint of google-research/bert", ("*.zip",),
        ("unpack it (python -m zipfile -e {path} FOLDER) and give the folder",),
        lambda look: any(name.endswith(".ckpt.index") for name in look.members)),
    Row("flax", "weights of transformers' Flax classes", ("*.msgpack*",),
        ("convert them with transformers 4 (from_pretrained(FOLDER, from_flax=True).save_pretrained(NEW)); give NEW",)),
    Row("spacy", "a pipeline of spaCy", ("config.cfg",), (_MADE,), _line(r"^\[nlp\]")),
    Row("flair", "a model of flair, a pickle", ("final-model.pt", "best-model.pt"), (_MADE,)),
    Row("diffusers", "a diffusion pipeline", ("model_index.json",), ("give its text encoder's folder, if a BERT",)),
)
_FILES = (
    Row("partial", "a download that did not end", ("*.incomplete", "*.part", "*.crdownload"), (_AGAIN,)),
    Row("keras-file", "a saved Keras model of KerasHub, {0}", ("*.keras",), ("give the folder that its save_to_preset() writes",),
        _saved_by("keras_(hub|nlp)"), _class_name),
    Row("keras-file", "a saved Keras model of class {0}, without an encoder of bert_keras", ("*.keras",),
        ("keras.models.load_model(FILE) reads it",), lambda look: look.config, _class_name),
    Row("keras-bert", "Keras 2 weights of keras-bert", _H5, _OLD_H5, _has(r"Encoder-\d+-MultiHeadSelfAttention"),
        facts=_model_facts),
    Row("bert-for-tf2", "Keras 2 weights of bert-for-tf2", _H5, _OLD_H5, _has(r"encoder/layer_\d+/"), facts=_model_facts),
    Row("tf-keras", "weights of transformers' {0}", _H5, (f"{_CONFIG} tf_model.h5",), _of_tensorflow, _transformers_class,
        _model_facts),
    Row("keras-2", "a model that Keras 2 saved", _H5, (_KERAS_2,), lambda look: "model_config" in look.attributes),
    Row("keras-3-weights", "weights that Keras saved without a model", _H5, ("make the model and call its load_weights(FILE)",),
        _has(r"(^|/)vars/\d+$"), facts=sizes),
    Row("keras-2", "weights that Keras 2 saved", _H5, (_KERAS_2,), lambda look: "layer_names" in look.attributes),
    Row("cut", "cut short, or not what its name says", (), (f"{_AGAIN}, whole",), lambda look: look.is_cut),
    Row("hdf5", "an HDF5 file", (), ("convert it with the library that wrote it, or name it tf_model.h5 if that",),
        _starts(b"\x89HDF")),
    Row("weights", "weights without a config.json", ("*.safetensors", "pytorch_model*.bin", "*.pt", "*.pth"),
        (f"{_CONFIG} model.safetensors or pytorch_model.bin",), facts=_model_facts),
    Row("gguf", "a GGUF file of llama.cpp", (), (_MADE,), _starts(b"GGUF")),
    Row("gguf", "a GGUF file of llama.cpp", ("*.gguf",), (_MADE,)),
    Row("onnx", "an ONNX graph", ("*.onnx",), (_EXPORTED,)),
    Row("openvino", "an OpenVINO graph", ("*.xml",), (_EXPORTED,)),
    Row("litert", "a TensorFlow Lite graph", ("*.tflite",), (_EXPORTED,)),
    Row("core-ml", "a Core ML graph", ("*.mlmodel", "*.mlpackage"), (_EXPORTED,)),
    Row("rust-bert", "weights of rust-bert", ("rust_model.ot",), (_MADE,)),
    Row("trainer", "a trainer's folder without weights", ("training_args.bin",), ("bring its model.safetensors",)),
)
_DATA = (
    Row("instances", "instances for pre-training", ("*.tfrecord*",), (_RECORDS,)),
    Row("wordpiece", "a WordPiece vocabulary", ("vocab.txt", "*.txt"), (_PRETRAIN,), _line(r"^\[(PAD|UNK|CLS)\]$"),
        facts=_tokens),
    Row("sentencepiece", "a SentencePiece vocabulary", ("*.model",), (_PRETRAIN,)),
    Row("tokenizer", "a tokenizer of the library tokenizers", ("tokenizer.json",), (_PRETRAIN,)),
    Row("squad", "questions in the form of SQuAD 2.0", ("*.json",), (_SQUAD_2,), _holds(b'"paragraphs"', b'"is_impossible"')),
    Row("squad", "questions in the form of SQuAD 1.1", ("*.json",), (_SQUAD_1,), _holds(b'"paragraphs"')),
    Row("config", "a configuration without weights", ("config.json", "bert_config.json"), ("bring the model's weights too",),
        lambda look: look.config, facts=sizes),
    Row("json-lines", "JSON lines", ("*.jsonl",), (_TABLE,), _line(r"^\s*\{.*\}\s*$")),
    Row("json-lines", "JSON lines", ("*.json",), (_TABLE,), _line(r"^\s*\{.*\}\s*$", least=2)),
    Row("packed", "a packed file", ("*.gz", "*.bz2", "*.xz", "*.zip"), ("--text reads it as it is; unpack it for another use",)),
    Row("table", "a table", ("*.csv", "*.tsv"), (_TABLE,)),
    Row("parquet", "a Parquet table", ("*.parquet",), (_TABLE,)),
    Row("arrow", "an Arrow table of the library datasets", ("*.arrow", "*.feather"),
        ("write Parquet (datasets.load_from_disk(FOLDER)[SPLIT].to_parquet(FILE)) and give that",)),
    Row("conll", "words and tags in columns", ("*.conll", "*.bio", "*.iob", "*.txt", "*.train*"), (_TAGS,),
        _line(r"^\S+([ \t]+\S+)*[ \t]+([BIES]-\S+|O)$")),
    Row("text", "plain text", ("*.txt",), _TEXT, lambda look: look.lines),
)
# fmt: on
# The kinds that `checkpoints.read` reads, or a command that takes a checkpoint.
READ = (
    *(
        "hugging-face",
        "tf-keras",
        "keras-hub",
        "google",
        "model-garden",
        "transformers-saved-model",
        "tf-hub",
    ),
    *("keras-bert", "bert-for-tf2", "run", "unfinished-pretraining"),
)
BROKEN = ("partial", "empty", "git-lfs", "html", "cut", "shards")
DATA = frozenset(row.kind for row in _DATA)
ROWS = (*_OURS, *_BROKEN, *_MODELS, *_FILES, *_DATA)
