"""Weights in and out of the four published forms: one reversible name table for each.

    folder -> read -> Checkpoint (our names, our layout) -> assign -> encoder and heads
    encoder and heads -> collect -> Checkpoint -> write -> folder

A form is a row of FORMATS: its table, its layouts, and the two functions that open and save its container. Our names are the
variables' paths below the encoder or the head: `block_3/attention/query/kernel`, `masked_lm/dense/bias`.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.config import BertConfig

# Keras and TensorFlow are imported where they are needed, so that the tables and the files need neither.
if TYPE_CHECKING:
    import keras

    from bert_keras.encoder import BertEncoder
    from bert_keras.tokenizers import WordPiece

Path = str | pathlib.Path

# ---------------------------------------------------------------------------------------------------------------------------
# Our variables. H hidden, E embedding, I intermediate, V vocabulary, P positions, T types; 0 is any size (a task's classes).


def _dense(name: str, fan_in: str, fan_out: str | int) -> dict[str, tuple]:
    return {f"{name}/kernel": (fan_in, fan_out), f"{name}/bias": (fan_out,)}


def _norm(name: str, width: str) -> dict[str, tuple]:
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


_EMBEDDINGS = {
    "embeddings/word_embeddings": ("V", "E"),
    "embeddings/position_embeddings": ("P", "E"),
    "embeddings/type_embeddings": ("T", "E"),
    **_norm("embeddings/layer_norm", "E"),
}
_PROJECTION = _dense("embeddings/projection", "E", "H")  # there only where E is not H
_BLOCK = {
    **_dense("block_{i}/attention/query", "H", "H"),
    **_dense("block_{i}/attention/key", "H", "H"),
    **_dense("block_{i}/attention/value", "H", "H"),
    **_dense("block_{i}/attention/output", "H", "H"),
    **_norm("block_{i}/attention_layer_norm", "H"),
    **_dense("block_{i}/feed_forward/intermediate", "H", "I"),
    **_dense("block_{i}/feed_forward/output", "I", "H"),
    **_norm("block_{i}/feed_forward_layer_norm", "H"),
}
_POOLER = _dense("pooler", "H", "H")
_HEADS = {
    **_dense("masked_lm/dense", "H", "E"),
    **_norm("masked_lm/layer_norm", "E"),
    "masked_lm/bias": ("V",),
    **_dense("next_sentence/dense", "H", 2),
    **_dense("classifier/dense", "H", 0),
    **_dense("qa_outputs/dense", "H", 2),
    **_dense("replaced_token/dense", "H", "H"),
    **_dense("replaced_token/prediction", "H", 1),
}


def variable_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Every variable of the encoder, by name, computed from the config alone."""
    blocks = 1 if config.share_layers else config.num_layers
    patterns = _EMBEDDINGS | (_PROJECTION if config.embedding_width != config.hidden_size else {})
    for i in range(blocks):
        patterns |= {name.format(i=i): shape for name, shape in _BLOCK.items()}
    return _sized(patterns | _POOLER, config)


def head_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Every variable that a known head may have, by name; 0 stands for any size."""
    return _sized(_HEADS, config)


def _sized(patterns: Mapping[str, tuple], config: BertConfig) -> dict[str, tuple[int, ...]]:
    sizes = {
        "H": config.hidden_size,
        "E": config.embedding_width,
        "I": config.intermediate_size,
        "V": config.vocab_size,
        "P": config.max_positions,
        "T": config.type_vocab_size,
    }
    return {name: tuple(sizes.get(size, size) for size in shape) for name, shape in patterns.items()}


# ---------------------------------------------------------------------------------------------------------------------------
# Their names. A row maps either one variable or what carries a kernel and bias, or a gamma and beta.

_GOOGLE = {
    "embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "embeddings/position_embeddings": "bert/embeddings/position_embeddings",
    "embeddings/type_embeddings": "bert/embeddings/token_type_embeddings",
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "block_{i}/attention/query": "bert/encoder/layer_{i}/attention/self/query",
    "block_{i}/attention/key": "bert/encoder/layer_{i}/attention/self/key",
    "block_{i}/attention/value": "bert/encoder/layer_{i}/attention/self/value",
    "block_{i}/attention/output": "bert/encoder/layer_{i}/attention/output/dense",
    "block_{i}/attention_layer_norm": "bert/encoder/layer_{i}/attention/output/LayerNorm",
    "block_{i}/feed_forward/intermediate": "bert/encoder/layer_{i}/intermediate/dense",
    "block_{i}/feed_forward/output": "bert/encoder/layer_{i}/output/dense",
    "block_{i}/feed_forward_layer_norm": "bert/encoder/layer_{i}/output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm/dense": "cls/predictions/transform/dense",
    "masked_lm/layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/bias": "cls/predictions/output_bias",
    "next_sentence/dense/kernel": "cls/seq_relationship/output_weights",
    "next_sentence/dense/bias": "cls/seq_relationship/output_bias",
    "classifier/dense/kernel": "output_weights",
    "classifier/dense/bias": "output_bias",
    "qa_outputs/dense/kernel": "cls/squad/output_weights",
    "qa_outputs/dense/bias": "cls/squad/output_bias",
}
_HUGGING_FACE = {
    "embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "bert.embeddings.position_embeddings.weight",
    "embeddings/type_embeddings": "bert.embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "bert.embeddings.LayerNorm",
    # The names of other models' files; written only where the config says `model_type: bert_keras`.
    "embeddings/projection": "bert.encoder.embedding_hidden_mapping_in",
    "block_{i}/attention/query": "bert.encoder.layer.{i}.attention.self.query",
    "block_{i}/attention/key": "bert.encoder.layer.{i}.attention.self.key",
    "block_{i}/attention/value": "bert.encoder.layer.{i}.attention.self.value",
    "block_{i}/attention/output": "bert.encoder.layer.{i}.attention.output.dense",
    "block_{i}/attention_layer_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "block_{i}/feed_forward/intermediate": "bert.encoder.layer.{i}.intermediate.dense",
    "block_{i}/feed_forward/output": "bert.encoder.layer.{i}.output.dense",
    "block_{i}/feed_forward_layer_norm": "bert.encoder.layer.{i}.output.LayerNorm",
    "pooler": "bert.pooler.dense",
    "masked_lm/dense": "cls.predictions.transform.dense",
    "masked_lm/layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
    "next_sentence/dense": "cls.seq_relationship",
    "classifier/dense": "classifier",
    "qa_outputs/dense": "qa_outputs",
    "replaced_token/dense": "discriminator_predictions.dense",
    "replaced_token/prediction": "discriminator_predictions.dense_prediction",
}
_KERAS_HUB = {
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
_MODEL_GARDEN = {
    "embeddings/word_embeddings": "encoder/_embedding_layer/embeddings",
    "embeddings/position_embeddings": "encoder/_position_embedding_layer/embeddings",
    "embeddings/type_embeddings": "encoder/_type_embedding_layer/embeddings",
    "embeddings/layer_norm": "encoder/_embedding_norm_layer",
    "block_{i}/attention/query": "encoder/_transformer_layers/{i}/_attention_layer/_query_dense",
    "block_{i}/attention/key": "encoder/_transformer_layers/{i}/_attention_layer/_key_dense",
    "block_{i}/attention/value": "encoder/_transformer_layers/{i}/_attention_layer/_value_dense",
    "block_{i}/attention/output": "encoder/_transformer_layers/{i}/_attention_layer/_output_dense",
    "block_{i}/attention_layer_norm": "encoder/_transformer_layers/{i}/_attention_layer_norm",
    "block_{i}/feed_forward/intermediate": "encoder/_transformer_layers/{i}/_intermediate_dense",
    "block_{i}/feed_forward/output": "encoder/_transformer_layers/{i}/_output_dense",
    "block_{i}/feed_forward_layer_norm": "encoder/_transformer_layers/{i}/_output_layer_norm",
    "pooler": "encoder/_pooler_layer",
    "masked_lm/dense": "masked_lm/dense",
    "masked_lm/layer_norm": "masked_lm/layer_norm",
    "masked_lm/bias": "masked_lm/output_bias.Sbias",  # .S is how a TensorFlow checkpoint spells a slash inside a name
}

# Layouts: how their array is laid out against ours. Kernels of attention are split by heads in einsum layers.
SAME, TRANSPOSED, HEADS_OUT, HEADS_IN, HEADS_BIAS = "same", "transposed", "heads out", "heads in", "heads bias"
_EINSUM = {
    **{f"block_{{i}}/attention/{part}/kernel": HEADS_OUT for part in ("query", "key", "value")},
    **{f"block_{{i}}/attention/{part}/bias": HEADS_BIAS for part in ("query", "key", "value")},
    "block_{i}/attention/output/kernel": HEADS_IN,
}
_LINEAR = {name: TRANSPOSED for name in (_PROJECTION | _BLOCK | _POOLER | _HEADS) if name.endswith("/kernel")}
_OUTPUT_WEIGHTS = {f"{head}/dense/kernel": TRANSPOSED for head in ("next_sentence", "classifier", "qa_outputs")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One variable in both worlds: names, our shape and the layout of theirs."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    layout: str

    def their_shape(self, config: BertConfig) -> tuple[int, ...]:
        """What their file must say; 0 is any size."""
        heads = (config.num_heads, config.hidden_size // config.num_heads)
        return {
            SAME: self.shape,
            TRANSPOSED: self.shape[::-1],
            HEADS_OUT: (self.shape[0], *heads),
            HEADS_IN: (*heads, self.shape[-1]),
            HEADS_BIAS: heads,
        }[self.layout]

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Their array in our layout, the values untouched."""
        if self.layout in (SAME, TRANSPOSED):
            return array.T if self.layout == TRANSPOSED else array
        return array.reshape(self.shape)

    def to_theirs(self, array: np.ndarray, config: BertConfig) -> np.ndarray:
        """The inverse of `to_ours`, contiguous."""
        if self.layout in (SAME, TRANSPOSED):
            return np.ascontiguousarray(array.T if self.layout == TRANSPOSED else array)
        return np.ascontiguousarray(array).reshape(self.their_shape(config))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An opened container: shapes first, so that nothing is read before they are checked."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One published form.

    table: our name (a variable, or what carries a pair) -> theirs
    parts: what is put behind their name for each of kernel, bias, gamma and beta
    layouts: our variable -> layout, where it is not the same
    current: their name as a file spells it -> as the table does, or None for what is no weight
    duplicates: their second names of a variable of ours; both must be equal
    keeps: config field -> the only value that the form's own library computes, or another field that it must equal
    load_config, tokenizer_files, open, save: the container
    """

    name: str
    table: dict[str, str]
    parts: dict[str, str]
    layouts: dict[str, str]
    current: Callable[[str], str | None]
    duplicates: dict[str, str]
    keeps: dict[str, Any]
    load_config: Callable[[pathlib.Path], BertConfig]
    load_tokenizer: Callable[[pathlib.Path], tuple[tuple[str, ...] | None, bool | None]]
    open: Callable[[pathlib.Path, BertConfig], contextlib.AbstractContextManager[Source]]
    save: Callable[["Checkpoint", dict[str, np.ndarray], pathlib.Path], None]

    def rows(self, config: BertConfig) -> list[Row]:
        """The table for this config: one row for each variable that the form has a place for."""
        found = []
        for ours, shape in (variable_shapes(config) | head_shapes(config)).items():
            block = re.match(r"block_(\d+)/", ours)
            number = block.group(1) if block else ""
            pattern = ours.replace(f"block_{number}/", "block_{i}/", 1) if block else ours
            stem, _, part = pattern.rpartition("/")
            if pattern in self.table:
                theirs = self.table[pattern]
            elif stem in self.table:
                theirs = self.table[stem] + self.parts[part]
            else:
                continue
            layout = self.layouts.get(pattern, SAME)
            found.append(Row(ours=ours, theirs=theirs.replace("{i}", number), shape=shape, layout=layout))
        return found

    def readable_rows(self, config: BertConfig) -> dict[str, Row]:
        """Their name -> row, the duplicates among them."""
        rows = {row.theirs: row for row in self.rows(config)}
        ours = {row.ours: row for row in rows.values()}
        return rows | {
            theirs: dataclasses.replace(ours[name], theirs=theirs, layout=SAME)
            for theirs, name in self.duplicates.items()
        }


# ---------------------------------------------------------------------------------------------------------------------------
# What users hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model's weights apart from any model.

    tensors: our name -> array in our layout, in the file's dtype
    vocabulary: the wordpieces in the order of their ids, where the folder has them
    lower_case: whether the text is to be lower-cased, where the folder says
    format: the form it was read from, or ""
    architecture: Hugging Face's class for it, where the tensors alone do not tell
    unknown: names in the file that no row of the table knows
    """

    config: BertConfig
    tensors: dict[str, np.ndarray]
    vocabulary: tuple[str, ...] | None = None
    lower_case: bool | None = None
    format: str = ""
    architecture: str | None = None
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What loading did: our names, and the file's own for those that no row knows.

    matched: assigned; fresh: left at their random start, as was asked; unused: in the checkpoint and given to nothing.
    """

    matched: tuple[str, ...]
    numbers: int
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    format: str = ""

    def __str__(self) -> str:
        """Three lines for a person."""
        source = f" from a {self.format} checkpoint" if self.format else ""
        return (
            f"loaded    {len(self.matched)} tensors, {self.numbers:,} numbers{source}\n"
            f"at random {_listed(self.fresh)}\n"
            f"unused    {_listed(self.unused)}"
        )


def _listed(names: Iterable[str], limit: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest if names else "none"


def read(path: Path, *, format: str | None = None) -> Checkpoint:
    """Reads a checkpoint: a folder, or a file inside it.

    path: a Hugging Face folder, a KerasHub preset folder, or the folder, prefix or .index file of a TensorFlow checkpoint
    format: one of FORMATS; None looks at what is there

    Raises FileNotFoundError where there is no checkpoint, and ValueError, in one line, where it is cut short, does not fit its
    config or is of another form.
    """
    form, root = _locate(pathlib.Path(path), format)
    config = form.load_config(root)
    vocabulary, lower_case = _tokenizer_of_folder(form, root, config)
    with form.open(root, config) as source:
        tensors, unknown = _read_tensors(form, config, source, where=root)
    return Checkpoint(
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        lower_case=lower_case,
        format=form.name,
        architecture=_architecture_of_folder(root) if form.name == "hugging-face" else None,
        unknown=unknown,
    )


def _read_tensors(
    form: Format, config: BertConfig, source: Source, *, where: pathlib.Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    rows = form.readable_rows(config)
    known: list[tuple[str, Row]] = []
    unknown = []
    for raw, shape in source.shapes.items():
        name = form.current(raw)
        if name is None:
            continue
        if name not in rows:
            unknown.append(raw)
            continue
        wanted = rows[name].their_shape(config)
        if len(shape) != len(wanted) or any(w not in (0, s) for s, w in zip(shape, wanted, strict=True)):
            raise ValueError(
                f"{raw} in {where} has shape {list(shape)}; the config wants {list(wanted)}: "
                "weights and config are not of one model."
            )
        known.append((raw, rows[name]))
    tensors: dict[str, np.ndarray] = {}
    for raw, row in known:
        array = row.to_ours(source.get(raw))
        if not _is_float(array):
            raise ValueError(f"{raw} in {where} is {array.dtype}; wanted float16, bfloat16, float32 or float64.")
        if row.ours in tensors and not np.array_equal(tensors[row.ours], array):
            raise ValueError(
                f"{raw} in {where} differs from {row.ours}, which it must repeat; untied tables are not supported."
            )
        tensors.setdefault(row.ours, array)
    if not any(name.startswith("embeddings/") for name in tensors):
        raise ValueError(
            f"no tensor in {where} has a name of the {form.name} form; there are {_listed(source.shapes, 4)}."
        )
    return tensors, tuple(sorted(unknown))


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def write(checkpoint: Checkpoint, path: Path, *, format: str, overwrite: bool = False) -> tuple[str, ...]:
    """Writes a folder of another form, or the same: weights, config, vocabulary.

    path: the folder; where it holds files, `overwrite=True` replaces those of the same names and leaves the rest

    Everything is written under a temporary name first. Returns our names of the heads that the form has no place for.
    Raises ValueError where the form's library would compute other numbers from this config, FileExistsError where the folder
    is not empty, OSError where it cannot be written.
    """
    form, path, config = _format(format), pathlib.Path(path), checkpoint.config
    _refuse_inexpressible(form, config)
    rows = {row.ours: row for row in form.rows(config)}
    wanted = variable_shapes(config)
    if lacking := [name for name in wanted if name not in checkpoint.tensors and not name.startswith("pooler/")]:
        raise ValueError(f"the checkpoint lacks {_listed(lacking)}; an encoder has every one of them.")
    if path.exists() and not (path.is_dir() and (overwrite or not any(path.iterdir()))):
        raise FileExistsError(f"{path} is there already and not empty; give another folder.")
    theirs = {
        rows[name].theirs: rows[name].to_theirs(np.asarray(array), config)
        for name, array in checkpoint.tensors.items()
        if name in rows
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.partial-{os.getpid()}"
    partial.mkdir()
    try:
        form.save(checkpoint, theirs, partial)
        _move_in(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return tuple(name for name in checkpoint.tensors if name not in rows)


def _move_in(partial: pathlib.Path, path: pathlib.Path) -> None:
    if not path.exists():
        partial.rename(path)
        return
    # Files one by one: a run's folder holds more than the weights.
    for file in sorted(file for file in partial.rglob("*") if file.is_file()):
        target = path / file.relative_to(partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)


def _refuse_inexpressible(form: Format, config: BertConfig) -> None:
    for field, only in form.keeps.items():
        value = getattr(config, field)
        wanted = getattr(config, only) if isinstance(only, str) and hasattr(config, only) else only
        if value != wanted:
            raise ValueError(
                f"{field} is {value!r}; the library of the {form.name} form computes with {wanted!r} and could not be told: "
                "write hugging-face instead."
            )


def collect(
    config: BertConfig, encoder: "BertEncoder", **heads: "keras.layers.Layer"
) -> Checkpoint:
    """The inverse of `assign`: the weights of an encoder and of heads, by their table names.

    heads: masked_lm, next_sentence, classifier, qa_outputs or replaced_token
    """
    import keras

    tensors = {
        name: keras.ops.convert_to_numpy(variable) for name, variable in _variables(encoder, heads).items()
    }
    known = {type(head).__name__: None for head in heads.values()}
    architecture = next((_HEAD_ARCHITECTURES[name] for name in known if name in _HEAD_ARCHITECTURES), None)
    return Checkpoint(config=config, tensors=tensors, architecture=architecture)


def assign(
    checkpoint: Checkpoint, encoder: "BertEncoder", *, fresh: Iterable[str] = (), **heads: "keras.layers.Layer"
) -> Report:
    """Gives an encoder and heads their weights. Every variable is matched or the call raises.

    fresh: what may keep its random start where the checkpoint lacks it: "pooler" or names of heads. They are reported. The
        pooler of an encoder that does not compute `pooled_output` needs no leave.
    heads: masked_lm, next_sentence, classifier, qa_outputs or replaced_token, loaded beside the encoder

    Raises ValueError where a weight is missing or of another shape, before anything is assigned.
    """
    variables = _variables(encoder, heads)
    allowed = {*fresh} | (set() if _reads_pooler(encoder) else {"pooler"})
    missing = [name for name in variables if name not in checkpoint.tensors]
    if fatal := [name for name in missing if name.split("/")[0] not in allowed]:
        parts = sorted({name.split("/")[0] for name in fatal})
        hint = "; fresh=('pooler',) starts it at random" if parts == ["pooler"] else ""
        raise ValueError(f"the checkpoint has no {_listed(fatal)}{hint}.")
    matched = [name for name in variables if name in checkpoint.tensors]
    for name in matched:
        given, wanted = checkpoint.tensors[name].shape, tuple(variables[name].shape)
        if given != wanted:
            raise ValueError(f"{name} has shape {list(given)} in the checkpoint; the model wants {list(wanted)}.")
    for name in matched:
        variables[name].assign(checkpoint.tensors[name].astype(_numpy_dtype(variables[name].dtype)))
    heads_at_random = [head for head in fresh if head != "pooler" and head not in heads]
    return Report(
        matched=tuple(matched),
        numbers=sum(math.prod(checkpoint.tensors[name].shape) for name in matched),
        fresh=(*missing, *heads_at_random),
        unused=(*(name for name in checkpoint.tensors if name not in variables), *checkpoint.unknown),
        format=checkpoint.format,
    )


def _numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _reads_pooler(encoder: "BertEncoder") -> bool:
    from bert_keras.features import POOLED_OUTPUT

    return POOLED_OUTPUT in encoder.outputs_wanted


def _variables(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> dict[str, Any]:
    """Name -> variable: the path below the encoder, or the head's name and the path below the head."""
    if unknown := sorted(set(heads) - {name.split("/")[0] for name in _HEADS}):
        known = sorted({name.split("/")[0] for name in _HEADS})
        raise ValueError(f"no head is called {', '.join(unknown)}; the heads are {', '.join(known)}.")
    found = {_below(encoder, variable.path): variable for variable in encoder.weights}
    for head, layer in heads.items():
        found |= {f"{head}/{_below(layer, variable.path)}": variable for variable in layer.weights}
    return found


def _below(layer: "keras.layers.Layer", path: str) -> str:
    """A variable's path without what stands above the layer; a sublayer built early has no prefix at all."""
    _, prefix, rest = f"/{path}".rpartition(f"/{layer.name}/")
    return rest if prefix else path


def load_encoder(
    path: Path,
    *,
    outputs: Iterable[str] | None = None,
    fresh: Iterable[str] = (),
    log: Callable[[str], None] = print,
) -> "BertEncoder":
    """An encoder with the weights of a checkpoint folder.

    outputs: as of BertEncoder, None meaning its default
    fresh: ("pooler",) lets a missing pooler start at random; without it that is an error
    log: receives the three lines that say what was loaded

    Raises as `read` and `assign` do.
    """
    from bert_keras.encoder import ALL, BertEncoder

    checkpoint = read(path)
    encoder = BertEncoder(checkpoint.config, outputs=ALL if outputs is None else tuple(outputs))
    log(str(assign(checkpoint, encoder, fresh=fresh)))
    return encoder


def load_tokenizer(path: Path, *, lower_case: bool | None = None) -> "WordPiece":
    """The tokenizer of a checkpoint folder, or of a vocab.txt.

    lower_case: None takes what the folder says or, where it says nothing, True unless the vocabulary has upper-case letters

    Raises FileNotFoundError where there is no vocabulary, ValueError where it has more pieces than the config has rows.
    """
    path = pathlib.Path(path)
    if path.is_file() and path.suffix == ".txt":
        checkpoint = Checkpoint(config=BertConfig(vocab_size=1), tensors={}, vocabulary=_read_vocabulary(path))
    else:
        form, root = _locate(path, None)
        config = form.load_config(root)
        vocabulary, said = _tokenizer_of_folder(form, root, config)
        checkpoint = Checkpoint(config=config, tensors={}, vocabulary=vocabulary, lower_case=said)
        if vocabulary is None:
            raise FileNotFoundError(f"no vocab.txt in {_folder(root)}; put the model's own vocabulary there.")
    return tokenizer_of(checkpoint, lower_case=lower_case)


def tokenizer_of(checkpoint: Checkpoint, *, lower_case: bool | None = None) -> "WordPiece":
    """The tokenizer that a checkpoint carries; `lower_case` as of `load_tokenizer`. Raises ValueError where it carries none."""
    from bert_keras.tokenizers import WordPiece

    if checkpoint.vocabulary is None:
        raise ValueError("the checkpoint came without a vocabulary; put the model's vocab.txt into its folder.")
    said = checkpoint.lower_case if lower_case is None else lower_case
    if said is None:
        specials = re.compile(r"[\[<].*[\]>]")
        said = all(piece == piece.lower() for piece in checkpoint.vocabulary if not specials.fullmatch(piece))
    return WordPiece(checkpoint.vocabulary, lower_case=said)


# ---------------------------------------------------------------------------------------------------------------------------
# Finding a checkpoint

_SAFETENSORS, _TORCH = "model.safetensors", "pytorch_model.bin"
_HUGGING_FACE_FILES = (_SAFETENSORS, f"{_SAFETENSORS}.index.json", _TORCH, f"{_TORCH}.index.json")
_KERAS_HUB_WEIGHTS = "model.weights.h5"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_TENSORFLOW_NAME = "bert_model.ckpt"


def _locate(path: pathlib.Path, format: str | None) -> tuple[Format, pathlib.Path]:
    """The form, and its folder or, for a TensorFlow checkpoint, its prefix."""
    wanted = _format(format).name if format is not None else None
    prefix = _tensorflow_prefix(path)
    folder = path if path.is_dir() else path.parent
    files = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if not path.is_dir():
        files &= {path.name}
    found: dict[str, pathlib.Path] = {}
    if files & set(_HUGGING_FACE_FILES):
        found["hugging-face"] = folder
    if _KERAS_HUB_WEIGHTS in files:
        found["keras-hub"] = folder
    if prefix is not None:
        found["model-garden" if _OBJECT_GRAPH in _tensorflow_reader(prefix).get_variable_to_shape_map() else "google"] = prefix
    if wanted is None and found:
        wanted = next(iter(found))
    if wanted not in found:
        if not path.exists() and not found:
            raise FileNotFoundError(f"no checkpoint at {path}: no such file or folder.")
        what = "checkpoint" if format is None else f"{format} checkpoint"
        raise FileNotFoundError(
            f"no {what} in {path}; looked for {', '.join(_HUGGING_FACE_FILES)} (hugging-face), {_KERAS_HUB_WEIGHTS} (keras-hub) "
            "and one *.index (google, model-garden)."
        )
    return FORMATS[wanted], found[wanted]


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"no checkpoint format {name!r}; the formats are {', '.join(FORMATS)}.")
    return FORMATS[name]


def _tensorflow_prefix(path: pathlib.Path) -> pathlib.Path | None:
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        if path / f"{_TENSORFLOW_NAME}.index" in indexes:
            return path / _TENSORFLOW_NAME
        if len(indexes) > 1:
            names = _listed(file.stem for file in indexes)
            raise ValueError(f"{path} holds {len(indexes)} TensorFlow checkpoints ({names}); give the path of one of them.")
        return indexes[0].with_suffix("") if indexes else None
    if path.suffix == ".index":
        return path.with_suffix("") if path.is_file() else None
    return path if path.with_name(f"{path.name}.index").is_file() else None


def _folder(root: pathlib.Path) -> pathlib.Path:
    return root if root.is_dir() else root.parent


# ---------------------------------------------------------------------------------------------------------------------------
# Vocabularies


def _tokenizer_of_folder(
    form: Format, root: pathlib.Path, config: BertConfig
) -> tuple[tuple[str, ...] | None, bool | None]:
    vocabulary, lower_case = form.load_tokenizer(_folder(root))
    if vocabulary is not None and len(vocabulary) > config.vocab_size:
        raise ValueError(
            f"the vocabulary in {_folder(root)} has {len(vocabulary)} pieces and the config's vocab_size is {config.vocab_size}; "
            "they are not of one model."
        )
    return vocabulary, lower_case


def _read_vocabulary(path: pathlib.Path) -> tuple[str, ...]:
    """The lines of a vocab.txt; WordPiece checks what they hold."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a vocabulary in UTF-8: {error}.") from error
    # Not splitlines(): a piece may be a character that it takes for a line end.
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))


def _write_vocabulary(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    if checkpoint.vocabulary is not None:
        (folder / "vocab.txt").write_bytes(("\n".join(checkpoint.vocabulary) + "\n").encode())


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a JSON file in UTF-8: {error}.") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a JSON {type(fields).__name__}; wanted an object of named fields.")
    return fields


def _write_json(fields: Mapping[str, Any], path: pathlib.Path) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _vocab_txt(folder: pathlib.Path) -> tuple[tuple[str, ...] | None, bool | None]:
    path = folder / "vocab.txt"
    return (_read_vocabulary(path) if path.is_file() else None), None


# ---------------------------------------------------------------------------------------------------------------------------
# Hugging Face

_HEAD_ARCHITECTURES = {"TokenHead": "BertForTokenClassification", "ChoiceHead": "BertForMultipleChoice"}
# The heads of a checkpoint -> the class that has them, the first that fits.
_ARCHITECTURES = (
    ({"masked_lm", "next_sentence"}, "BertForPreTraining"),
    ({"masked_lm"}, "BertForMaskedLM"),
    ({"next_sentence"}, "BertForNextSentencePrediction"),
    ({"classifier"}, "BertForSequenceClassification"),
    ({"qa_outputs"}, "BertForQuestionAnswering"),
    (set(), "BertModel"),
)
_ENCODER_PARTS = ("embeddings.", "encoder.", "pooler.")


def _current_hugging_face(name: str) -> str | None:
    """Old spellings to the current one; None for buffers."""
    if name.endswith(("position_ids", "token_type_ids")):
        return None
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"bert.{name}" if name.startswith(_ENCODER_PARTS) else name


def _architecture_of_folder(folder: pathlib.Path) -> str | None:
    named = _read_json(folder / "config.json").get("architectures") or [None]
    return named[0] if isinstance(named, list) and isinstance(named[0], str) else None


def _architecture(checkpoint: Checkpoint) -> str:
    if checkpoint.architecture is not None:
        return checkpoint.architecture
    parts = {name.split("/")[0] for name in checkpoint.tensors}
    return next(architecture for heads, architecture in _ARCHITECTURES if heads <= parts)


def _hugging_face_tokenizer(folder: pathlib.Path) -> tuple[tuple[str, ...] | None, bool | None]:
    vocabulary, lower_case = _vocab_txt(folder)
    tokenizer = folder / "tokenizer.json"
    if vocabulary is None and tokenizer.is_file():
        content = _read_json(tokenizer)
        try:
            ids = content["model"]["vocab"]
            vocabulary = tuple(sorted(ids, key=ids.__getitem__))
            lower_case = (content.get("normalizer") or {}).get("lowercase")
            complete = [ids[piece] for piece in vocabulary] == list(range(len(ids)))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{tokenizer} holds no WordPiece vocabulary; put a vocab.txt beside it.") from error
        if not complete:
            raise ValueError(f"the ids of {tokenizer} do not run from 0 without a gap; put a vocab.txt beside it.")
    settings = _read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    lower_case = settings.get("do_lower_case", lower_case)
    for key, wanted in (("strip_accents", (None, lower_case)), ("tokenize_chinese_chars", (None, True))):
        if settings.get(key) not in wanted:
            raise ValueError(
                f"{key} is {settings[key]} in {folder / 'tokenizer_config.json'}, which gives other ids than BERT's and is not "
                f"supported; wanted {wanted[1]}."
            )
    return vocabulary, lower_case


@contextlib.contextmanager
def _open_hugging_face(folder: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    """Safetensors where there are any, else a PyTorch file; either may be in several shards."""
    with contextlib.ExitStack() as stack:
        for stem, open_file in ((_SAFETENSORS, _open_safetensors), (_TORCH, _open_torch)):
            files = _shards(folder, stem)
            if files:
                break
        sources = [stack.enter_context(open_file(file)) for file in files]
        where = {name: source for source in sources for name in source.shapes}
        shapes = {name: shape for source in sources for name, shape in source.shapes.items()}
        yield Source(shapes=shapes, get=lambda name: where[name].get(name))


def _shards(folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    if (folder / stem).is_file():
        return [folder / stem]
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return []
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index} has no weight_map of file names.")
    files = [folder / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != folder or file.name in ("", "..") or not file.is_file():
            raise ValueError(f"{index} names the shard {str(file.relative_to(folder, walk_up=False)) if file.is_relative_to(folder) else str(file)!r}, which is no file of its folder.")
    return files


@contextlib.contextmanager
def _open_safetensors(file: pathlib.Path) -> Iterator[Source]:
    import safetensors

    try:
        # The library holds header and length together: what it opens, it can read.
        with safetensors.safe_open(file, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
            yield Source(shapes=shapes, get=opened.get_tensor)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is cut short or no safetensors file: {error}.") from error


@contextlib.contextmanager
def _open_torch(file: pathlib.Path) -> Iterator[Source]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{file.name} is a PyTorch file and torch is not installed; install it, or convert the file to safetensors."
        ) from error
    try:
        # A pickle runs code when read; weights_only refuses every one that does more than rebuild tensors.
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    except Exception as error:  # noqa: BLE001: torch raises pickle, zip, runtime and attribute errors
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"{file} is no PyTorch file of plain tensors: {reason}") from error
    yield Source(shapes=shapes, get=lambda name: _torch_to_numpy(tensors[name]))


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.detach().numpy()
    return tensor.detach().contiguous().view(torch.int16).numpy().view(_numpy_dtype("bfloat16"))


def _save_hugging_face(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import safetensors
    import safetensors.numpy

    fields = checkpoint.config.to_hugging_face() | {"architectures": [_architecture(checkpoint)]}
    if "classifier/dense/bias" in checkpoint.tensors:
        fields["num_labels"] = len(checkpoint.tensors["classifier/dense/bias"])
    _write_json(fields, folder / "config.json")
    _write_vocabulary(checkpoint, folder)
    if checkpoint.lower_case is not None:
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": checkpoint.lower_case}
        settings["model_max_length"] = checkpoint.config.max_length
        _write_json(settings, folder / "tokenizer_config.json")
    try:
        safetensors.numpy.save_file(tensors, folder / _SAFETENSORS, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {_SAFETENSORS}: {error}.") from error


# ---------------------------------------------------------------------------------------------------------------------------
# TensorFlow checkpoints: Google's by variable name, Model Garden's by object

_NO_WEIGHT = re.compile(r"(^|/)(adam_[mv]|lamb_[mv]|global_step|beta[12]_power|good_steps|loss_scale|current_loss_scale)$")


def _current_google(name: str) -> str | None:
    return None if _NO_WEIGHT.search(name) else name


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ENCODER_ROOT = re.compile(r"^(model/)?(encoder_network|encoder|model)/(?=_|layer_with_weights-)")
_FIRST_LAYERS = ("_embedding_layer", "_position_embedding_layer", "_type_embedding_layer", "_embedding_norm_layer")


def _current_model_garden(name: str) -> str | None:
    """The names under `Checkpoint(encoder=)`, whichever root the object was saved under; None for what is no weight."""
    if not name.endswith(_VALUE) or ".OPTIMIZER_SLOT" in name:
        return None
    name = name.removesuffix(_VALUE)
    if name.startswith(("optimizer/", "save_counter", "global_step", "train_")):
        return None
    name = _ENCODER_ROOT.sub("encoder/", name)
    name = re.sub(r"^model/masked_lm/", "masked_lm/", name)
    # The older, functional encoder numbers its layers: four of the embeddings, the blocks, the pooler.
    if numbered := re.match(r"encoder/layer_with_weights-(\d+)/(.*)", name):
        number, rest = int(numbered.group(1)), numbered.group(2)
        if number < len(_FIRST_LAYERS):
            return f"encoder/{_FIRST_LAYERS[number]}/{rest}"
        if rest in ("kernel", "bias"):
            return f"encoder/_pooler_layer/{rest}"
        return f"encoder/_transformer_layers/{number - len(_FIRST_LAYERS)}/{rest}"
    return name


def _tensorflow_reader(prefix: pathlib.Path) -> Any:
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(str(prefix))
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ValueError(f"{prefix}.index is no TensorFlow checkpoint: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(getattr(error, "message", error)).strip().split("\n")[0]


@contextlib.contextmanager
def _open_tensorflow(prefix: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    import tensorflow as tf

    reader = _tensorflow_reader(prefix)

    def get(name: str) -> np.ndarray:
        try:
            return reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name} of {prefix} cannot be read: {_first_line(error)}") from error

    shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    yield Source(shapes=dict(sorted(shapes.items())), get=get)


def _bert_config_json(prefix: pathlib.Path) -> BertConfig:
    path = prefix.parent / "bert_config.json"
    if not path.is_file():
        raise FileNotFoundError(f"no bert_config.json in {prefix.parent}, which holds {prefix.name}; put the model's own there.")
    return BertConfig.load(path)


def _save_google(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import tensorflow as tf

    _write_json(checkpoint.config.to_google(), folder / "bert_config.json")
    _write_vocabulary(checkpoint, folder)
    names = sorted(tensors)
    with _tensorflow_writes(), tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(folder / _TENSORFLOW_NAME),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name]) for name in names],
        )


def _save_model_garden(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """An object graph with the edges of `tf.train.Checkpoint(encoder=...)`: their library matches edges, not names."""
    import tensorflow as tf

    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        *parents, leaf = (part.replace(".S", "/") for part in name.split("/"))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = array
    if "masked_lm" in tree:
        tree["masked_lm"]["embedding_table"] = tensors[_MODEL_GARDEN["embeddings/word_embeddings"]]

    def tracked(node: Any) -> Any:
        if isinstance(node, dict):
            return tf.train.Checkpoint(**{name: tracked(child) for name, child in node.items()})
        return tf.Variable(node)

    _write_json(checkpoint.config.to_google(), folder / "bert_config.json")
    _write_vocabulary(checkpoint, folder)
    with _tensorflow_writes(), tf.device("CPU"):
        tracked(tree).write(str(folder / _TENSORFLOW_NAME))


@contextlib.contextmanager
def _tensorflow_writes() -> Iterator[None]:
    """TensorFlow's errors on writing as the operating system's."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"cannot write the checkpoint: {_first_line(error)}") from error


# ---------------------------------------------------------------------------------------------------------------------------
# KerasHub presets, through the library: its file numbers the layers, its model names them

_KERAS_HUB_KEYS = {
    "vocabulary_size": "vocab_size",
    "hidden_dim": "hidden_size",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout",
    "max_sequence_length": "max_positions",
    "num_segments": "type_vocab_size",
}


def _keras_hub() -> Any:
    try:
        import keras_hub
    except ImportError as error:
        raise ValueError("a keras-hub checkpoint is read and written by keras-hub, which is not installed: pip install keras-hub.") from error
    return keras_hub


def _keras_hub_config(folder: pathlib.Path) -> BertConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"no config.json in {folder}, which holds {_KERAS_HUB_WEIGHTS}.")
    content = _read_json(path)
    if content.get("class_name") != "BertBackbone" or not isinstance(content.get("config"), dict):
        raise ValueError(f"{path} is of class {content.get('class_name')!r}; wanted a KerasHub BertBackbone.")
    fields = content["config"]
    if missing := sorted(set(_KERAS_HUB_KEYS) - set(fields)):
        raise ValueError(f"{', '.join(missing)} missing from {path}.")
    ours = {name: fields[key] for key, name in _KERAS_HUB_KEYS.items()}
    # One rate for both dropouts; tanh gelu and epsilon 1e-12 are written into its layers.
    return BertConfig(**ours, attention_dropout=ours["hidden_dropout"])


def _keras_hub_backbone(config: BertConfig) -> Any:
    return _keras_hub().models.BertBackbone(
        **{key: getattr(config, name) for key, name in _KERAS_HUB_KEYS.items()}, dtype="float32"
    )


@contextlib.contextmanager
def _open_keras_hub(folder: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    file = folder / _KERAS_HUB_WEIGHTS
    numbers, size = sum(math.prod(shape) for shape in variable_shapes(config).values()), file.stat().st_size
    if size < numbers:  # before the model is made: not even one byte a number
        raise ValueError(f"{file} has {size:,} bytes and the config asks for {numbers:,} numbers: it is cut short or another's.")
    backbone = _keras_hub_backbone(config)
    try:
        backbone.load_weights(file)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"{file} does not hold this config's weights: {_first_line(error)}") from error
    variables = {variable.path: variable for variable in backbone.weights}
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    yield Source(shapes=shapes, get=lambda name: np.array(variables[name].numpy()))


def _keras_hub_tokenizer(folder: pathlib.Path) -> tuple[tuple[str, ...] | None, bool | None]:
    path = folder / "assets" / "tokenizer" / "vocabulary.txt"
    settings = folder / "tokenizer.json"
    lower_case = _read_json(settings).get("config", {}).get("lowercase") if settings.is_file() else None
    return (_read_vocabulary(path) if path.is_file() else None), lower_case


def _save_keras_hub(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    backbone = _keras_hub_backbone(checkpoint.config)
    for variable in backbone.weights:
        if variable.path not in tensors:
            raise ValueError(f"the checkpoint has no {variable.path}, which a keras-hub preset must have.")
        variable.assign(tensors[variable.path])
    backbone.save_to_preset(str(folder))
    if checkpoint.vocabulary is not None:
        tokenizer = _keras_hub().models.BertTokenizer(
            vocabulary=list(checkpoint.vocabulary), lowercase=bool(checkpoint.lower_case)
        )
        tokenizer.save_to_preset(str(folder))


# ---------------------------------------------------------------------------------------------------------------------------
# The forms

# What google-research/bert computes and its config file cannot change. An activation it does not know it refuses by itself.
_ORIGINAL = {"norm_epsilon": 1e-12, "share_layers": False, "causal": False, "position_offset": 0, "embedding_width": "hidden_size"}
_SLASHED = {part: f"/{part}" for part in ("kernel", "bias", "gamma", "beta")}

FORMATS = {
    form.name: form
    for form in (
        Format(
            name="hugging-face",
            table=_HUGGING_FACE,
            parts={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
            layouts=_LINEAR,
            current=_current_hugging_face,
            duplicates={
                "cls.predictions.decoder.weight": "embeddings/word_embeddings",
                "cls.predictions.decoder.bias": "masked_lm/bias",
            },
            keeps={},
            load_config=BertConfig.load,
            load_tokenizer=_hugging_face_tokenizer,
            open=_open_hugging_face,
            save=_save_hugging_face,
        ),
        Format(
            name="google",
            table=_GOOGLE,
            parts=_SLASHED,
            layouts=_OUTPUT_WEIGHTS,
            current=_current_google,
            duplicates={},
            keeps=_ORIGINAL,
            load_config=_bert_config_json,
            load_tokenizer=_vocab_txt,
            open=_open_tensorflow,
            save=_save_google,
        ),
        Format(
            name="keras-hub",
            table=_KERAS_HUB,
            parts=_SLASHED,
            layouts=_EINSUM,
            current=lambda name: name,
            duplicates={},
            keeps=_ORIGINAL | {"activation": "gelu_tanh", "attention_dropout": "hidden_dropout"},
            load_config=_keras_hub_config,
            load_tokenizer=_keras_hub_tokenizer,
            open=_open_keras_hub,
            save=_save_keras_hub,
        ),
        Format(
            name="model-garden",
            table=_MODEL_GARDEN,
            parts=_SLASHED,
            layouts=_EINSUM,
            current=_current_model_garden,
            duplicates={"masked_lm/embedding_table": "embeddings/word_embeddings"},
            keeps=_ORIGINAL,
            load_config=_bert_config_json,
            load_tokenizer=_vocab_txt,
            open=_open_tensorflow,
            save=_save_model_garden,
        ),
    )
}
