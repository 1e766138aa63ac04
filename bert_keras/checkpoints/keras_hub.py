"""Reads and writes the presets of KerasHub through the library: the file only numbers the layers, the model names them."""

import contextlib
import dataclasses
import json
import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import (
    EINSUM,
    ORIGINAL,
    Checkpoint,
    Format,
    OpenFile,
    refuse_shards_outside,
    slashed,
    variable_shapes,
)
from bert_keras.checkpoints.letter_case import lower_cases
from bert_keras.checkpoints.tokenizer_tables import WORDPIECE, kind_of
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io.json_files import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    FieldType,
    checked_fields,
    known_fields,
    list_of,
    or_null,
    read_object,
    read_optional,
    shortened,
)
from bert_keras.text.rules import Rules
from bert_keras.text.vocabulary import Vocabulary, read_pieces, refuse_other_ids

_TABLE = {
    "embeddings/word_embeddings": "token_embedding/embeddings",
    "embeddings/position_embeddings": "position_embedding/embeddings",
    "embeddings/type_embeddings": "segment_embedding/embeddings",
    "embeddings/layer_norm": "embeddings_layer_norm",
    "block_{i}/attention/query": "transformer_layer_{i}/self_attention_layer/query",
    "block_{i}/attention/key": "transformer_layer_{i}/self_attention_layer/key",
    "block_{i}/attention/value": "transformer_layer_{i}/self_attention_layer/value",
    "block_{i}/attention/output": "transformer_layer_{i}/self_attention_layer/attention_output",
    "block_{i}/attention_layer_norm": "transformer_layer_{i}/self_attention_layer_norm",
    "block_{i}/feed_forward/intermediate": "transformer_layer_{i}/feedforward_intermediate_dense",
    "block_{i}/feed_forward/output": "transformer_layer_{i}/feedforward_output_dense",
    "block_{i}/feed_forward_layer_norm": "transformer_layer_{i}/feedforward_layer_norm",
    "pooler": "pooled_dense",
}
_NAMES = slashed(table=_TABLE, layouts=EINSUM, current=lambda name: name)
_WEIGHTS = ("model.weights.h5", "model.weights.json")  # the second lists shards
_HEADS = "task.weights.h5"  # its tensors are in no table
_FILES = FieldType(
    "a file's name or a list of such", lambda value: TEXT.accepts(value) or list_of(TEXT).accepts(value)
)
_KEYS = {
    "vocabulary_size": "vocab_size",
    "hidden_dim": "hidden_size",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout",
    "max_sequence_length": "max_positions",
    "num_segments": "type_vocab_size",
}

# The values of a tokenizer.json that give our ids, besides case and accents.
_TOKENIZER_SETTINGS = {
    "split": (None, True),
    "suffix_indicator": (None, "##"),
    "oov_token": (None, "[UNK]"),
    "special_tokens_in_strings": (None, False),
}


def _find(path: pathlib.Path) -> pathlib.Path | None:
    folder = path if path.is_dir() else path.parent
    found = any((folder / name).is_file() and path in (folder, folder / name) for name in _WEIGHTS)
    return folder if found else None


def keras_hub() -> Any:
    """The keras_hub library. Raises ValueError if it is not installed."""
    try:
        import keras_hub as library
    except ImportError as error:
        raise BertKerasError(
            "a keras-hub checkpoint needs keras-hub, which is not installed: pip install keras-hub."
        ) from error
    return library


def _load_config(folder: pathlib.Path) -> BertConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise MissingFileError(f"no config.json in {folder}, which holds a KerasHub preset.")
    content = read_object(path)
    if content.get("class_name") != "BertBackbone" or not isinstance(content.get("config"), dict):
        raise BertKerasError(
            f"{path} is of class {shortened(content.get('class_name'))}; wanted a KerasHub BertBackbone."
        )
    fields = content["config"]
    known_fields(fields, dict.fromkeys(_KEYS, NUMBER), where=f"the config of {path}")
    if "Quantized" in json.dumps(fields.get("dtype")):
        raise BertKerasError(f"the dtype in {path} is quantized; wanted a preset with float weights.")
    if missing := sorted(set(_KEYS) - set(fields)):
        raise BertKerasError(f"{', '.join(missing)} missing from {path}.")
    if fields["num_segments"] == 0:  # valid in a BertConfig
        raise BertKerasError(f"{path} has num_segments 0; a BertBackbone has 1 or more.")
    ours = {name: fields[key] for key, name in _KEYS.items()}
    # KerasHub has one rate for both dropouts; its layers always use tanh gelu and epsilon 1e-12.
    try:
        return BertConfig(**ours, attention_dropout=ours["hidden_dropout"])
    except ValueError as error:
        # The error starts with our name of the field.
        theirs = {name: f"{key} in " for key, name in _KEYS.items() if key != name}
        raise BertKerasError(f"{theirs.get(str(error).split()[0], '')}{path}: {error}") from error


def _backbone(config: BertConfig) -> Any:
    return keras_hub().models.BertBackbone(
        **{key: getattr(config, name) for key, name in _KEYS.items()}, dtype="float32"
    )


@contextlib.contextmanager
def _open(folder: pathlib.Path, config: BertConfig) -> Iterator[OpenFile]:
    file = next(folder / name for name in _WEIGHTS if (folder / name).is_file())
    if file.suffix == ".json":
        _check_shards(file)
    numbers = sum(math.prod(shape) for shape in variable_shapes(config).values())
    size = sum(part.stat().st_size for part in folder.glob("model*.weights.h5"))
    if size < numbers:  # under one byte per number; checked before the model is made
        raise BertKerasError(
            f"{file} has {size:,} bytes and its config needs {numbers:,} numbers: it is cut short; bring it again."
        )
    backbone = _backbone(config)
    try:
        backbone.load_weights(file)
    except Exception as error:  # h5py raises RuntimeError, KeyError, OSError, ...
        raise BertKerasError(f"{file} does not hold this config's weights: {first_line(error)}") from error
    variables = {variable.path: variable for variable in backbone.weights}
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    shapes |= _heads(folder / _HEADS)
    yield OpenFile(file=file, names=_NAMES, shapes=shapes, get=lambda name: np.array(variables[name].numpy()))


def _check_shards(file: pathlib.Path) -> None:
    """Raises BertKerasError for a list of shards with a file outside its folder, which Keras would open."""
    content = checked_fields(read_object(file), {"weight_map": OBJECT}, where=file, others=True)
    names = [*content["weight_map"].values()]
    checked_fields({"weight_map": names}, {"weight_map": list_of(_FILES)}, where=file)
    refuse_shards_outside(
        file, {name for found in names for name in (found if isinstance(found, list) else [found])}
    )


def _heads(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the weights of a task's layers; each name starts with the file's name."""
    if not file.is_file():
        return {}
    import h5py

    found = {}

    def look(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset) and not name.startswith("optimizer/"):
            found[f"{file.name}/{name}"] = tuple(entry.shape)

    try:
        with h5py.File(file) as opened:
            opened.visititems(look)
    except Exception as error:  # as above
        raise BertKerasError(f"{file} is cut short or not an HDF5 file: {first_line(error)}") from error
    return found


def _load_tokenizer(folder: pathlib.Path) -> Vocabulary:
    path = folder / "assets" / "tokenizer" / "vocabulary.txt"
    settings = folder / "tokenizer.json"
    content = known_fields(read_optional(settings), {"config": OBJECT}, where=settings)
    lower_case = _lower_case_of(content.get("config", {}), settings)
    pieces = read_pieces(path) if path.is_file() else None
    return Vocabulary(tokens=pieces, lower_case=lower_case, file=str(path))


def _lower_case_of(config: Mapping[str, Any], where: pathlib.Path) -> bool | None:
    """The case of a preset's tokenizer. Raises BertKerasError for a setting that gives other ids; warns of accents that stay."""
    known_fields(config, dict.fromkeys(("lowercase", "strip_accents"), or_null(FLAG)), where=where)
    lower_case, strips = config.get("lowercase"), config.get("strip_accents")
    accents = (None, False, True) if lower_case else (None, False)
    refuse_other_ids(config, _TOKENIZER_SETTINGS | {"strip_accents": accents}, where=where)
    if lower_case and not strips:
        # So are the presets that KerasHub publishes, whose weights Google trained on text without accents.
        warnings.warn(
            f"the tokenizer of {where} keeps accents when it lower-cases; here they are removed, as Google's uncased models were "
            "trained, so that text with accents gets other ids than in KerasHub.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    return lower_case


def _save(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    vocabulary = checkpoint.vocabulary
    if (other := kind_of(vocabulary)) != WORDPIECE:
        raise BertKerasError(
            f"a keras-hub preset of BERT has no {other} tokenizer; write hugging-face, or leave the tokenizer out."
        )
    if changed := [*dataclasses.replace(vocabulary.rules, max_word=Rules.max_word).to_json()]:
        raise BertKerasError(
            f"a keras-hub preset has no place for {', '.join(changed)} of the tokenizer; write hugging-face, or leave the "
            "tokenizer out."
        )
    backbone = _backbone(checkpoint.config)
    for variable in backbone.weights:
        if variable.path not in tensors:
            raise BertKerasError(
                f"the checkpoint has no {variable.path}, which a keras-hub preset must have."
            )
        variable.assign(tensors[variable.path])
    backbone.save_to_preset(str(folder))
    if vocabulary.tokens is not None:
        lower_case = lower_cases(vocabulary)
        tokenizer = keras_hub().models.BertTokenizer(
            vocabulary=list(vocabulary.tokens), lowercase=lower_case, strip_accents=lower_case
        )
        tokenizer.save_to_preset(str(folder))


KERAS_HUB = Format(
    name="keras-hub",
    names=(_NAMES,),
    keeps=ORIGINAL | {"activation": "gelu_tanh", "attention_dropout": "hidden_dropout"},
    files=" or ".join(_WEIGHTS),
    find=_find,
    load_config=_load_config,
    load_tokenizer=_load_tokenizer,
    open=_open,
    save=_save,
)
