"""Moves weights: from an open file to our names, from a Checkpoint to a Keras model (`assign`), and back (`collect`)."""

import dataclasses
import itertools
import math
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.checkpoints.checkpoint import (
    HEAD_ARCHITECTURES,
    HEADS,
    Checkpoint,
    Format,
    OpenFile,
    Row,
    fits,
    numpy_dtype,
)
from bert_keras.config import BERT, MAX_LAYERS, BertConfig
from bert_keras.errors import BertKerasError, first_names
from bert_keras.features import POOLED_OUTPUT
from bert_keras.text.rules import GPT_FRAME

MAY_LACK = ("pooler", "bilstm")  # parts of an encoder that `assign` may leave randomly initialized
_TRAINED = "give a checkpoint that was trained with it."
# Each head in an error about a checkpoint without it, and the checkpoints that have it.
_HEAD_WORDS = {
    "masked_lm": "masked LM head, which predicts the words for [MASK]; give a checkpoint that was pre-trained with it, such as "
    "bert-base-uncased, or a run of `bert-keras pretrain`: a fine-tuned model or a bare encoder has none.",
    "next_sentence": f"next sentence head; {_TRAINED}",
    "classifier": f"classifier; {_TRAINED}",
    "concat_classifier": f"classifier for concat pooling; {_TRAINED}",
    "qa_outputs": f"question answering head; {_TRAINED}",
    "replaced_token": f"replaced token head; {_TRAINED}",
}

# Keras is not imported here: reading a safetensors file needs neither Keras nor TensorFlow.
if TYPE_CHECKING:
    import keras

    from bert_keras.model.encoder import BertEncoder
    from bert_keras.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The result of loading: our names, and the file's names for tensors that no row of the table has.

    matched: assigned variables
    fresh: variables that keep their random initial values, as allowed
    unused: tensors of the checkpoint without a variable
    """

    matched: tuple[str, ...]
    numbers: int
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    format: str = ""

    def __str__(self) -> str:
        """Three lines to print."""
        source = f" from a {self.format} checkpoint" if self.format else ""
        return (
            f"loaded: {len(self.matched)} tensors, {self.numbers:,} numbers{source}\n"
            f"randomly initialized: {first_names(self.fresh)}\n"
            f"unused: {first_names(self.unused)}"
        )


def assign(
    checkpoint: Checkpoint,
    encoder: "BertEncoder",
    *,
    fresh: Iterable[str] = (),
    **heads: "keras.layers.Layer",
) -> Report:
    """Assigns a checkpoint's weights to an encoder and heads. Every variable must have a weight.

    fresh: parts that may stay randomly initialized if the checkpoint lacks them: "pooler", "bilstm" or names of heads,
        which the report lists. The pooler of an encoder that does not compute `pooled_output` may always be missing.
    heads: masked_lm, next_sentence, classifier, concat_classifier, qa_outputs, replaced_token, or a head of your own of any name,
        loaded beside the encoder

    Raises ValueError for a missing weight, another shape, an int8 kernel or one with LoRA, before anything is assigned.
    """
    variables = named_variables(encoder, heads)
    if changed := [name for name, dense in _denses(encoder, heads).items() if dense.lora_enabled]:
        raise BertKerasError(f"{first_names(changed)} has LoRA; load the weights before enable_lora.")
    _refuse_quantized(encoder, heads, do="load the weights before quantize")
    allowed = {*fresh} | (set() if POOLED_OUTPUT in encoder.outputs_wanted else {"pooler"})
    missing = [name for name in variables if name not in checkpoint.tensors]
    fatal = [name for name in missing if name.split("/")[0] not in allowed]
    refuse_lacking(fatal, checkpoint, layers=encoder.config.num_layers, named=checkpoint.prefix)
    matched = [name for name in variables if name in checkpoint.tensors]
    for name in matched:
        given, wanted = checkpoint.tensors[name].shape, tuple(variables[name].shape)
        if given != wanted:
            raise BertKerasError(
                f"{checkpoint.prefix}{name} has shape {list(given)} in the checkpoint; the model wants {list(wanted)}."
            )
    for name in matched:
        variables[name].assign(checkpoint.tensors[name].astype(numpy_dtype(variables[name].dtype)))
    heads_at_random = [head for head in fresh if head not in (*MAY_LACK, *heads)]
    return Report(
        matched=tuple(matched),
        numbers=sum(math.prod(checkpoint.tensors[name].shape) for name in matched),
        fresh=(*missing, *heads_at_random, *checkpoint.fresh),
        unused=(*(name for name in checkpoint.tensors if name not in variables), *checkpoint.unknown),
        format=checkpoint.format,
    )


def refuse_lacking(lacking: Sequence[str], checkpoint: Checkpoint, *, layers: int, named: str) -> None:
    """Raises BertKerasError if variables have no tensor. layers: those of the model; named: the prefix of the error."""
    if not lacking:
        return
    parts = sorted({name.split("/")[0] for name in lacking})
    if not checkpoint.unknown and {*parts} <= {*HEADS} - checkpoint.parts:
        first = "masked_lm" if "masked_lm" in parts else parts[0]
        generator = pathlib.Path(checkpoint.path) / "generator"  # of an ELECTRA that was pre-trained here
        if first == "masked_lm" and checkpoint.path and generator.is_dir():
            raise BertKerasError(
                f"{named}the checkpoint has no masked LM head; its generator has one: give {generator}."
            )
        raise BertKerasError(f"{named}the checkpoint has no {_HEAD_WORDS[first]}")
    hint = ""
    if parts == ["pooler"]:
        hint = "; fresh=('pooler',), or `bert-keras hub --fresh-pooler`, initializes it randomly"
    there = {part for part in checkpoint.parts if part.startswith("block_")}
    if there and not there & {*parts} and all(part.startswith("block_") for part in parts):
        hint = f"; it has {len(there)} layers, and num_hidden_layers is {layers}"
    elif checkpoint.unknown:
        hint += f"; it has tensors of unknown names: {first_names(checkpoint.unknown, 4)}"
    raise BertKerasError(f"{named}the checkpoint has no {first_names(lacking)}{hint}.")


def collect(config: BertConfig, encoder: "BertEncoder", **heads: "keras.layers.Layer") -> Checkpoint:
    """The inverse of `assign`: a Checkpoint with the weights of an encoder and heads.

    heads: as in `assign`; all weights of a head are collected, trainable or not

    Kernels with LoRA are merged. Raises ValueError for int8 kernels, which no format has a place for.
    """
    _refuse_quantized(encoder, heads, do="write the checkpoint before quantize, or save the model as .keras")
    variables = named_variables(encoder, heads)
    tensors = {name: np.asarray(variable).copy() for name, variable in variables.items()}
    names = {id(variable): name for name, variable in variables.items()}
    for dense in _denses(encoder, heads).values():
        if dense.lora_enabled:
            tensors[names[id(dense._kernel)]] = np.asarray(dense.kernel).astype(
                numpy_dtype(dense.variable_dtype)
            )
    known = {type(head).__name__: None for head in heads.values()}
    architecture = next((HEAD_ARCHITECTURES[name] for name in known if name in HEAD_ARCHITECTURES), None)
    return Checkpoint(config=config, tensors=tensors, architecture=architecture)


def _denses(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> dict[str, Any]:
    """Our name of each Dense layer -> the layer."""
    from bert_keras.model.layers import denses_in

    return {
        f"{name}/{path}".strip("/"): dense
        for name, layer in _parts(encoder, heads)
        for path, dense in denses_in(layer).items()
    }


def _parts(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> list[tuple[str, Any]]:
    return [(part.name, part) for part in encoder.parts] + [*heads.items()]


def _refuse_quantized(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"], *, do: str) -> None:
    for name, dense in _denses(encoder, heads).items():
        if dense.quantization_mode is not None:
            raise BertKerasError(f"{name} is quantized to {dense.quantization_mode}; {do}.")


def named_variables(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> dict[str, Any]:
    """Name -> variable: the path below the encoder, or the head's name and the path below the head. LoRA's are left out.

    Raises BertKerasError for a head with the name of a part of the encoder, and as `weights_of`.
    """
    parts = {part.name for part in encoder.parts}
    if taken := sorted(parts & {*heads}):
        raise BertKerasError(
            f"a head is named {taken[0]}, which is a part of the encoder; name the head differently."
        )
    # One part at a time: the parts of a generator may hold variables of another encoder, with that encoder's paths.
    named = (weights_of(layer, part) for part, layer in _parts(encoder, heads))
    found = {name: variable for part in named for name, variable in part.items()}
    return {name: variable for name, variable in found.items() if not variable.name.startswith("lora_")}


def weights_of(layer: "keras.layers.Layer", name: str) -> dict[str, Any]:
    """The weights of a layer, trainable or not, by the layer's `name` and their path below it: "classifier/dense/kernel".

    Raises BertKerasError for two weights of one name: a file would hold one of them.
    """
    below = [f"/{one.path}".rpartition(f"/{layer.name}/")[2] for one in layer.weights]
    plain = plain_paths(below, layer._flatten_layers(include_self=False))
    named = [f"{name}/{plain[path]}" for path in below]
    if twice := sorted({one for one in named if named.count(one) > 1}):
        raise BertKerasError(
            f"{name} has two weights named {twice[0]}, and a file holds one of a name; give its layers different names."
        )
    return dict(zip(named, layer.weights, strict=True))


def plain_paths(paths: Iterable[str], layers: Iterable["keras.layers.Layer"]) -> dict[str, str]:
    """Path -> the same without what the process decides: dense_7/kernel -> dense/kernel.

    Keras numbers the layers without a name by class, over all models of a process. Here they are numbered in the order of the
    paths, among the layers in the same place.

    layers: those that the paths go through
    """
    automatic = {layer.name for layer in layers if _has_automatic_name(layer)}
    found, taken, paths = {"": ""}, set[str](), [*paths]
    for path in paths:
        above = ""
        for part in path.split("/"):
            raw = f"{above}/{part}".strip("/")
            if raw not in found:
                stem = re.sub(r"_\d+$", "", part) if part in automatic else part
                name = f"{found[above]}/{stem}".strip("/")
                numbered = (f"{name}_{number}" if number else name for number in itertools.count())
                found[raw] = next(one for one in numbered if one not in taken or part not in automatic)
                taken.add(found[raw])
            above = raw
    return {path: found[path] for path in paths}


def _has_automatic_name(layer: "keras.layers.Layer") -> bool:
    """True for a name that Keras made of the layer's class; the layers of this package are named."""
    if type(layer).__module__.startswith("bert_keras."):
        return False
    return re.sub(r"_\d+$", "", layer.name).replace("_", "") == type(layer).__name__.lower()


def with_vocab_size(checkpoint: Checkpoint, vocab_size: int, *, seed: int | None = None) -> Checkpoint:
    """The checkpoint with rows for more tokens, for a tokenizer with added ones.

    vocab_size: rows of the word embeddings. New rows are drawn as at the start of a pre-training, from the truncated normal
        distribution of `initializer_range`; the head of a language model gets new biases of 0. The vocabulary stays: see
        `with_tokenizer`.
    seed: of the new rows; None draws others each time

    Raises ValueError for a size under that of the checkpoint.
    """
    tensors = ("embeddings/word_embeddings", "masked_lm/bias", "next_words/table", "next_words/bias")
    return _with_rows(checkpoint, "vocab_size", vocab_size, tensors, words="tokens", seed=seed)


def with_marks(checkpoint: Checkpoint, tokenizer: "Tokenizer", *, seed: int | None = None) -> Checkpoint:
    """The checkpoint with rows for GPT's start, delimiter and extract tokens, if it has none; its tokenizer has ids for them.

    Drawn as `with_vocab_size` draws. Source: Radford et al. 2018, sec. 3.3.
    """
    new = tokenizer.vocabulary[checkpoint.config.vocab_size :]
    if not new or not {*new} <= {*GPT_FRAME.values()}:
        return checkpoint
    grown = with_vocab_size(checkpoint, tokenizer.vocab_size, seed=seed)
    rows = f"the rows of {', '.join(new)}"
    return dataclasses.replace(grown, fresh=(rows,) if checkpoint.tensors else ())


def with_max_positions(checkpoint: Checkpoint, max_positions: int, *, seed: int | None = None) -> Checkpoint:
    """The checkpoint with rows for more positions, drawn as `with_vocab_size` draws. Raises as it does."""
    tensors = ("embeddings/position_embeddings",)
    return _with_rows(checkpoint, "max_positions", max_positions, tensors, words="positions", seed=seed)


def _with_rows(
    checkpoint: Checkpoint, name: str, size: int, tensors: Sequence[str], *, words: str, seed: int | None
) -> Checkpoint:
    """The checkpoint whose tensors have `size` rows, the value of a field of its config. words: the name of the rows."""
    import keras

    config = checkpoint.config
    added = size - getattr(config, name)
    if added < 0:
        raise BertKerasError(
            f"{checkpoint.prefix}{name} is {size} and the checkpoint has {getattr(config, name)} {words}; rows can be added, not "
            "removed."
        )
    draw = keras.initializers.TruncatedNormal(stddev=config.initializer_range, seed=seed)
    grown = {}
    for tensor in tensors:
        if (old := checkpoint.tensors.get(tensor)) is not None:
            shape = (added, *old.shape[1:])
            new = np.asarray(draw(shape, dtype="float32")) if len(shape) > 1 else np.zeros(shape)
            grown[tensor] = np.concatenate([old, new.astype(old.dtype)])
    sizes: dict[str, Any] = {name: size}
    config = dataclasses.replace(config, **sizes)
    return dataclasses.replace(checkpoint, config=config, tensors=checkpoint.tensors | grown)


# -----------------------------------------------------------------------------------------------------------
# From an open file: checks shapes, dtypes, values and tied weights


def read_tensors(
    form: Format, config: BertConfig, source: OpenFile
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Our name -> array in our layout, and the file's names that no row of the table has.

    Raises BertKerasError for a tensor of another shape or dtype, with NaN or infinite numbers, or for two names of one weight
    whose values differ.
    """
    names = source.names
    known, unknown = _known_rows(config, source)
    tensors: dict[str, np.ndarray] = {}
    first: dict[str, str] = {}  # our name -> the name in the file that was read first
    tied = True
    for raw, row in sorted(known, key=lambda pair: pair[1].theirs in names.duplicates):
        array = row.to_ours(source.get(raw))
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise BertKerasError(
                f"{raw} in {source.file} is {array.dtype}; wanted float16, bfloat16, float32 or float64."
            )
        refuse_not_finite(array, named=f"{raw} in {source.file}")
        if row.ours in tensors and not np.array_equal(tensors[row.ours], array):
            # With plain heads, the embeddings are the head, and no head without a weight of its own can be left out.
            if row.theirs not in names.duplicates or config.plain_heads:
                raise BertKerasError(
                    f"{raw} and {first[row.ours]} in {source.file} differ; they are two names of one weight and must be equal."
                )
            tied = False
        tensors.setdefault(row.ours, array)
        first.setdefault(row.ours, raw)
    # The weights of an ancestor have our names in every file, and `assign` says which of them lack.
    if config.encoder == BERT and not any(name.startswith("embeddings/") for name in tensors):
        raise BertKerasError(
            f"no tensor in {source.file} has a name of the {form.name} format"
            f"{_other_model_types(form, config, source)}; its tensors are {first_names(source.shapes, 4)}."
        )
    if not tied:  # the file's masked-LM head has its own weights; our head shares the embeddings
        unknown += [
            raw for raw, row in known if row.ours.startswith("masked_lm/") or row.theirs in names.duplicates
        ]
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked_lm/")}
    for name in source.own:
        if name in tensors:
            raise BertKerasError(
                f"{source.file} has {name} twice, under the format's name and its own; bring another copy."
            )
        array = source.get(name)
        refuse_not_finite(array, named=f"{name} in {source.file}")
        tensors[name] = array
    return tensors, tuple(sorted(unknown))


def warn_of_layers(config: BertConfig, source: OpenFile, unknown: Sequence[str]) -> None:
    """Warns where the file has more layers than the config: they are left out, as in transformers.

    unknown: the file's names that no row of the config's table has
    """
    if config.num_layers == MAX_LAYERS:
        return
    taller = dataclasses.replace(config, num_layers=config.num_layers + 1)
    more = source.names.readable_rows(taller).keys() - source.names.readable_rows(config).keys()
    if any(source.names.current(raw) in more for raw in unknown):
        warnings.warn(
            f"{source.file} has more layers than num_hidden_layers, {config.num_layers}; the layers above are left out. Correct "
            "num_hidden_layers if this is not meant.",
            stacklevel=4,
        )


def refuse_not_finite(array: np.ndarray, *, named: str) -> None:
    """Raises BertKerasError for an array with NaN or infinite numbers; `named` is the prefix of the error."""
    if (wrong := array.size - np.count_nonzero(np.isfinite(array))) > 0:
        raise BertKerasError(
            f"{named} has {wrong:,} numbers that are NaN or infinite, of {array.size:,}; wanted finite weights: "
            "bring another copy, or train the model again."
        )


def check_weights(variables: Iterable["keras.Variable"], *, where: str) -> None:
    """Raises BertKerasError for a variable with NaN or infinite numbers; `where` follows its name in the error.

    Every form of a model calls it when it is saved, loaded or exported.
    """
    for variable in variables:
        if "float" in str(variable.dtype):
            refuse_not_finite(np.asarray(variable), named=f"{variable.path}{where}")


def _known_rows(config: BertConfig, source: OpenFile) -> tuple[list[tuple[str, Row]], list[str]]:
    """The file's names with their rows, and those without a row. Raises BertKerasError for another shape."""
    rows = source.names.readable_rows(config)
    known: list[tuple[str, Row]] = []
    unknown = []
    for raw, shape in source.shapes.items():
        name = source.names.current(raw)
        if name is None or raw in source.own:
            continue
        if name not in rows:
            unknown.append(raw)
            continue
        wanted = rows[name].their_shape(config)
        if not fits(shape, wanted):
            raise BertKerasError(
                f"{raw} in {source.file} has shape {list(shape)}; the config wants {list(wanted)}: "
                "weights and config belong to different models; bring both of one model."
            )
        known.append((raw, rows[name]))
    return known, unknown


def _other_model_types(form: Format, config: BertConfig, source: OpenFile) -> str:
    """The other model_types with the embedding names of the file, for an error."""
    fitting = {
        repr(other.model_type): None
        for other in form.names
        if {row.theirs for row in other.rows(config) if row.ours.startswith("embeddings/")}
        & {other.current(raw) for raw in source.shapes}
    }
    if not fitting:
        return ""
    return f" and model_type {source.names.model_type!r}; its names are those of {' or '.join(fitting)}: correct its config"
