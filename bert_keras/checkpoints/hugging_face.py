"""The folders of Hugging Face: config.json, and files of safetensors, PyTorch or transformers' TensorFlow classes."""

import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import (
    KNOWN_ARCHITECTURES,
    Checkpoint,
    Format,
    Names,
    OpenFile,
    choose_architecture,
    refuse_shards_outside,
)
from bert_keras.checkpoints.cross_encoder import FUNCTIONS, KEY, read_score_function
from bert_keras.checkpoints.detect import describe_content
from bert_keras.checkpoints.hugging_face_names import NAMES, OWN_TYPE
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.tensorflow_classes import TF_H5, as_pytorch, open_tf_h5, pytorch_name
from bert_keras.checkpoints.torch_files import TORCH, Tensors, open_torch
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.files import atomic_file, write_json
from bert_keras.io.json_files import (
    TEXT,
    FieldType,
    known_fields,
    list_of,
    object_of,
    or_null,
    read_object,
    read_optional,
    shortened,
)

SAFETENSORS = "model.safetensors"
_CONFIG, _OLD_CONFIG = "config.json", "bert_config.json"
TASK_FILE = "task.json"  # of a run, whose files this package wrote
OWN = "own_weights"  # a key in config.json: names of tensors that are not Hugging Face's
_LABEL = FieldType("text or a number", lambda value: isinstance(value, str | int | float))
_DESCRIBED = {"id2label": or_null(object_of(_LABEL)), "problem_type": or_null(TEXT), OWN: list_of(TEXT)}
TOP = "top.safetensors"  # of a run with features: the weights above the encoder, which is in model.safetensors unchanged


def _find(path: pathlib.Path) -> pathlib.Path | None:
    folder = path if path.is_dir() else path.parent
    there = [name for stem in OPENERS for name in (stem, f"{stem}.index.json")]
    found = any((folder / name).is_file() and path in (folder, folder / name) for name in there)
    return folder if found else None


def config_file(folder: pathlib.Path) -> pathlib.Path:
    """The configuration beside weights of Hugging Face; the first releases of its library named it as Google does."""
    file = folder / _CONFIG
    return file if file.is_file() or not (folder / _OLD_CONFIG).is_file() else folder / _OLD_CONFIG


def load_config(folder: pathlib.Path) -> BertConfig:
    """The configuration, with the values that the file's class always uses.

    Raises BertKerasError as `BertConfig.from_hugging_face`, and for a setting of the class that changes its numbers.
    """
    file = config_file(folder)
    if not file.is_file():
        raise MissingFileError(f"no {_CONFIG} in {folder}; put the model's {_CONFIG} there.")
    fields = read_object(file)
    names = _names_of(fields)
    strict = (folder / TASK_FILE).is_file() or fields.get("model_type") == OWN_TYPE
    try:
        config = BertConfig.from_hugging_face(fields, strict=strict)
    except ValueError as error:
        raise BertKerasError(f"{file}: {error}") from error
    for key, allowed in names.only.items():
        if (value := fields.get(key, allowed[0])) not in allowed:
            raise BertKerasError(
                f"{file}: {key} is {shortened(value)}, which changes the numbers of "
                f"{names.model_class}{_architecture(fields)} and is not supported; wanted {allowed[0]!r}."
            )
    return dataclasses.replace(config, **names.keeps)


def names_in(folder: pathlib.Path) -> Names:
    """The table of a folder; `BertConfig.from_hugging_face` has checked its model_type."""
    return _names_of(read_optional(config_file(folder)))


def _names_of(fields: Mapping[str, Any]) -> Names:
    architecture = _architecture(fields)
    fitting = [names for names in NAMES if names.model_type == fields.get("model_type", "bert")] or NAMES[:1]
    return next((names for names in fitting if architecture in names.classes), fitting[0])


def _architecture(fields: Mapping[str, Any]) -> str | None:
    """Hugging Face's class without the model's name, from a config.json; None for an unknown one."""
    named = fields.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    found = re.fullmatch(rf"(?:{'|'.join({names.model_class for names in NAMES})})(\w+)", first)
    return found[1] if found and found[1] in KNOWN_ARCHITECTURES else None


def _labels(names: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The names of the labels in the order of their ids; None for an id2label with other ids than 0, 1, 2."""
    if names is None or names.keys() != {str(i) for i in range(len(names))}:
        return None
    return tuple(str(names[str(i)]) for i in range(len(names)))


@contextlib.contextmanager
def _open(folder: pathlib.Path, config: BertConfig) -> Iterator[OpenFile]:
    """Opens the files of the first of OPENERS that is there; it may have several shards."""
    stem, (files, index) = next((stem, found) for stem in OPENERS if (found := _shards(folder, stem))[0])
    with contextlib.ExitStack() as stack:
        get: dict[str, Callable[[str], np.ndarray]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            if stem != TF_H5 and (other := describe_content(file)):
                raise BertKerasError(f"{file} {other}.")
            own, getter = stack.enter_context(OPENERS[stem](file))
            # The index decides where several files hold a tensor.
            own = {name: shape for name, shape in own.items() if index.get(name, file.name) == file.name}
            get |= dict.fromkeys(own, getter)
            shapes |= own
        if lost := [name for name in index if name not in shapes]:
            raise BertKerasError(
                f"{folder} lacks {first_names(lost)}, which its index names; bring all files of the model again."
            )
        yield described(
            config_file(folder),
            shapes,
            lambda name: get[name](name),
            file=files[0] if len(files) == 1 else folder,
        )


def described(
    config: pathlib.Path,
    shapes: dict[str, tuple[int, ...]],
    get: Callable[[str], np.ndarray],
    *,
    file: pathlib.Path,
) -> OpenFile:
    """Tensors by PyTorch's names, with the table and the fields that the config.json beside them names."""
    fields = read_optional(config)
    known = known_fields(fields, _DESCRIBED, where=config)
    names = _names_of(fields)
    shapes, get = _split(names, shapes, get)
    return OpenFile(
        file=file,
        names=_without_prefix(names, shapes, where=config.parent),
        shapes=shapes,
        get=get,
        own=_own(known.get(OWN, ()), shapes, where=config),
        described={
            "architecture": _architecture(fields),
            "labels": _labels(known.get("id2label")),
            "problem_type": known.get("problem_type"),
            "score_function": read_score_function(config.parent, fields),
        },
    )


def _split(names: Names, shapes: dict[str, tuple[int, ...]], get: Callable[[str], np.ndarray]) -> Tensors:
    """The tensors of a file, with the parts of each fused one in its place, and zeros for each bias that the format lacks."""
    weights = tuple(f"{names.table[layer]}{names.parts['kernel']}" for layer in names.no_bias)
    zeros = {
        f"{raw.removesuffix(names.parts['kernel'])}{names.parts['bias']}": shape[:1]
        for raw, shape in shapes.items()
        if weights and f".{raw}".endswith(tuple(f".{one}" for one in weights))
    }
    parts: dict[
        str, tuple[str, int, int]
    ] = {}  # name of a part -> the tensor, the number of the part, and of all parts
    for raw, shape in shapes.items():
        layer, _, kind = raw.rpartition(".")
        ends = next((end for end in names.fused if layer.endswith(end)), None)
        there = (
            names.fused[ends]
            if ends is not None and shape and shape[-1] % len(names.fused[ends]) == 0
            else ()
        )
        for number, part in enumerate(there):
            parts[f"{layer.removesuffix(str(ends))}{part}.{kind}"] = raw, number, len(there)
    fused = {raw for raw, _, _ in parts.values()}

    def read(name: str) -> np.ndarray:
        if name in zeros and name not in shapes:
            return np.zeros(zeros[name], np.float32)
        if name not in parts:
            return get(name)
        raw, number, count = parts[name]
        return np.split(get(raw), count, axis=-1)[number]

    kept = {name: shape for name, shape in (zeros | shapes).items() if name not in fused}
    return kept | {
        name: (*shapes[raw][:-1], shapes[raw][-1] // n) for name, (raw, _, n) in parts.items()
    }, read


def _join(names: Names, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of `_split`; `Names.holds` has checked that a bias that is left out is 0."""
    left_out = {f"{names.table[layer]}{names.parts['bias']}" for layer in names.no_bias}
    found = {name: tensor for name, tensor in tensors.items() if name not in left_out}
    for end, parts in names.fused.items():
        for first in [name for name in tensors if name.rpartition(".")[0].endswith(parts[0])]:
            layer, _, kind = first.rpartition(".")
            stem = layer.removesuffix(parts[0])
            found[f"{stem}{end}.{kind}"] = np.concatenate(
                [found.pop(f"{stem}{part}.{kind}") for part in parts], axis=-1
            )
    return found


def _own(named: Sequence[str], shapes: Iterable[str], *, where: pathlib.Path) -> tuple[str, ...]:
    """The names of a file's own weights. Raises BertKerasError for a weight that the file lacks."""
    if lost := sorted({*named} - {*shapes}):
        raise BertKerasError(
            f"{where} names {first_names(lost, 4)} in {OWN}, and the weights lack it; bring both files of one model."
        )
    return tuple(named)


def _words_of(names: Names) -> tuple[str, str]:
    """The model's name in a file with heads, and the name of the word embeddings below it: "bert." and "embeddings..."."""
    model, _, words = names.table["embeddings/word_embeddings"].partition(".")
    return f"{model}.", words


def _without_prefix(names: Names, shapes: Iterable[str], *, where: pathlib.Path) -> Names:
    """The table for a file whose names have a prefix, as a model inside another module has: `model.bert.`, `0.auto_model.`.

    Raises BertKerasError for a file of several encoders.
    """
    model, words = _words_of(names)
    found = [name.removesuffix(words) for name in shapes if name.endswith(words)]
    prefixes = sorted({stem.removesuffix(model) for stem in found})
    if len(prefixes) > 1:
        raise BertKerasError(
            f"{where} has the weights of {len(prefixes)} encoders, whose names begin with {first_names(prefixes)}; save the one "
            "that you want alone."
        )
    prefix = prefixes[0] if prefixes else ""
    others = {other for other, same in map(_words_of, NAMES) if same == words and other != model}
    if prefix.endswith(tuple(others)):
        return names  # which another model_type would read: the names are unknown to this one
    return dataclasses.replace(names, current=lambda raw: names.current(raw.removeprefix(prefix)))


def _shards(folder: pathlib.Path, stem: str) -> tuple[list[pathlib.Path], dict[str, str]]:
    """The files of the weights, and the file of each tensor where an index says it."""
    if (folder / stem).is_file():
        return [folder / stem], {}
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return [], {}
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BertKerasError(f"{index} has no weight_map of file names.")
    refuse_shards_outside(index, set(names.values()))
    return [folder / name for name in sorted(set(names.values()))], {
        pytorch_name(name): file for name, file in names.items()
    }


@contextlib.contextmanager
def _open_safetensors(file: pathlib.Path) -> Iterator[Tensors]:
    import ml_dtypes  # noqa: F401  numpy then knows bfloat16
    import safetensors

    try:
        # The library compares header and length: a file that opens can be read.
        with safetensors.safe_open(file, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
            get = functools.partial(_safetensor, opened, file=file)
            of_tensorflow = (opened.metadata() or {}).get("format") == "tf"
            yield as_pytorch(shapes, get) if of_tensorflow else (shapes, get)
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{file} is cut short or not a safetensors file: {error}.") from error


def _safetensor(opened: Any, name: str, *, file: pathlib.Path) -> np.ndarray:
    try:
        return opened.get_tensor(name)
    except (AttributeError, TypeError) as error:  # numpy has no such dtype
        raise BertKerasError(
            f"{name} of {file} is {opened.get_slice(name).get_dtype()}; wanted float16, bfloat16, float32 or float64."
        ) from error


# The first of these files that a folder has, whole or in shards, is read. A PyTorch file needs torch, so it is the last.
OPENERS = {SAFETENSORS: _open_safetensors, TF_H5: open_tf_h5, TORCH: open_torch}


def _save(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import safetensors
    import safetensors.numpy

    names = HUGGING_FACE.names_for(checkpoint)
    fields = checkpoint.config.to_hugging_face(names.model_type)
    architecture = choose_architecture(checkpoint)
    fields["architectures"] = [names.model_class + (names.bare if architecture == "Model" else architecture)]
    if own := sorted(checkpoint.own):
        fields[OWN] = own
    if "classifier/dense/bias" in {*checkpoint.tensors} - checkpoint.own:
        fields["num_labels"] = len(checkpoint.tensors["classifier/dense/bias"])
    if checkpoint.labels is not None:
        fields["id2label"] = dict(enumerate(checkpoint.labels))
        fields["label2id"] = {label: i for i, label in enumerate(checkpoint.labels)}
    if checkpoint.problem_type is not None:
        fields["problem_type"] = checkpoint.problem_type
    if checkpoint.score_function in FUNCTIONS:
        fields[KEY] = FUNCTIONS[checkpoint.score_function]
    write_json(folder / _CONFIG, fields)
    write_tokenizer(checkpoint.vocabulary, folder, max_length=checkpoint.config.max_length)
    try:
        # safetensors lets only the owner read the file; `atomic_file` gives it the mode of all files.
        with atomic_file(folder / SAFETENSORS) as temporary:
            safetensors.numpy.save_file(_join(names, tensors), temporary, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {SAFETENSORS}: {error}.") from error


HUGGING_FACE = Format(
    name="hugging-face",
    names=NAMES,
    keeps={},
    files=f"{', '.join(OPENERS)} (or their .index.json)",
    find=_find,
    load_config=load_config,
    load_tokenizer=read_tokenizer,
    open=_open,
    save=_save,
    has_labels=True,
    has_own=True,
)
