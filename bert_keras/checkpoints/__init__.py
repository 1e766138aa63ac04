"""Weights in and out: a folder becomes a Checkpoint, a Checkpoint fills a model; and back.

    folder -> read -> Checkpoint (our names, our layout) -> assign -> encoder and heads
    encoder and heads -> collect -> Checkpoint -> write -> folder

The forms themselves are in checkpoint_formats.py.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.checkpoints.formats import (
    ARCHITECTURES,
    FORMATS,
    HEAD_ARCHITECTURES,
    HEADS,
    Checkpoint,
    Format,
    Names,
    Row,
    Source,
    Vocabulary,
    keras_hub,
    lower_cases,
    numpy_dtype,
    read_vocabulary,
    variable_shapes,
)
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.folders import whole_folder
from bert_keras.json_files import read_bounded
from bert_keras.paths import path_of
from bert_keras.text.vocabulary_files import MAX_VOCABULARY_BYTES, SENTENCEPIECE

# Keras and TensorFlow are imported by the functions that need them: reading a safetensors file needs neither.
if TYPE_CHECKING:
    import keras

    from bert_keras.encoder import BertEncoder
    from bert_keras.text.tokenizers import Tokenizer

Path = str | pathlib.Path
_MAY_LACK = ("pooler", "bilstm")  # what `assign` may start at random


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What loading did: our names, and the file's own for those that no row knows.

    matched: assigned
    fresh: left at their random start, as was asked
    unused: in the checkpoint and given to nothing
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


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint: a folder, or a file inside it.

    path: a Hugging Face folder, a KerasHub preset folder, or the folder or prefix of a TensorFlow checkpoint

    Raises FileNotFoundError where there is no checkpoint, and ValueError where it is cut short, does not fit
    its config or is of another form.
    """
    form, root = _locate(path_of(path))
    config = form.load_config(root)
    vocabulary = _tokenizer_of_folder(form, root, config)
    with form.open(root, config) as source:
        tensors, unknown = _read_tensors(form, config, source, where=root)
    # Before an encoder of the config's sizes is made: these are then those of the file.
    lacking = [
        name
        for name in variable_shapes(config)
        if name not in tensors and name.split("/")[0] not in _MAY_LACK
    ]
    _refuse_lacking(lacking, tensors, config, unknown=unknown, named=f"{root}: ")
    # What it says of a head that was not read is not so of what was.
    has_its_heads = any(
        architecture == source.architecture and heads <= {name.split("/")[0] for name in tensors}
        for heads, architecture in ARCHITECTURES
    )
    return Checkpoint(
        config=config,
        tensors=tensors,
        **_tokenizer_fields(vocabulary),
        format=form.name,
        path=str(root),
        architecture=source.architecture if has_its_heads else None,
        labels=source.labels,
        unknown=unknown,
    )


def _read_tensors(
    form: Format, config: BertConfig, source: Source, *, where: pathlib.Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    names = form.names_in(where)
    rows = names.readable_rows(config)
    known: list[tuple[str, Row]] = []
    unknown = []
    for raw, shape in source.shapes.items():
        name = names.current(raw)
        if name is None:
            continue
        if name not in rows:
            unknown.append(raw)
            continue
        wanted = rows[name].their_shape(config)
        if len(shape) != len(wanted) or any(w not in (0, s) for s, w in zip(shape, wanted, strict=True)):
            raise BertKerasError(
                f"{raw} in {where} has shape {list(shape)}; the config wants {list(wanted)}: "
                "weights and config are not of one model."
            )
        known.append((raw, rows[name]))
    tensors: dict[str, np.ndarray] = {}
    first: dict[str, str] = {}  # ours -> the name in the file that it was first read from
    tied = True
    for raw, row in sorted(known, key=lambda pair: pair[1].theirs in names.duplicates):
        array = row.to_ours(source.get(raw))
        if not _is_float(array):
            raise BertKerasError(
                f"{raw} in {where} is {array.dtype}; wanted float16, bfloat16, float32 or float64."
            )
        if row.ours in tensors and not np.array_equal(tensors[row.ours], array):
            if row.theirs not in names.duplicates:
                raise BertKerasError(
                    f"{raw} and {first[row.ours]} in {where} differ and are names of one weight."
                )
            tied = False
        tensors.setdefault(row.ours, array)
        first.setdefault(row.ours, raw)
    if not any(name.startswith("embeddings/") for name in tensors):
        raise BertKerasError(
            f"no tensor in {where} has a name of the {form.name} form"
            f"{_other_model_types(form, names, config, source)}; there are {_listed(source.shapes, 4)}."
        )
    if not tied:  # the masked-LM head has weights of its own where ours has the embeddings'
        unknown += [raw for raw, row in known if _is_masked_lm(row, names)]
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked_lm/")}
    return tensors, tuple(sorted(unknown))


def _is_masked_lm(row: Row, names: Names) -> bool:
    return row.ours.startswith("masked_lm/") or row.theirs in names.duplicates


def _other_model_types(form: Format, names: Names, config: BertConfig, source: Source) -> str:
    """Says which other kinds of model have the embeddings' names that are there."""
    fitting = [
        repr(other.model_type)
        for other in form.names
        if {row.theirs for row in other.rows(config) if row.ours.startswith("embeddings/")}
        & {other.current(raw) for raw in source.shapes}
    ]
    if not fitting:
        return ""
    return f" and model_type {names.model_type!r}; it has those of {' or '.join(fitting)}: correct its config"


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def write(checkpoint: Checkpoint, path: Path, *, format: str, overwrite: bool = False) -> tuple[str, ...]:
    """Writes a checkpoint folder in any format: weights, config, vocabulary.

    path: the folder; where it holds files, `overwrite=True` replaces those of the same names and keeps the others

    Everything is written under a temporary name first, under the folder's lock. In Hugging Face's format, model_type is the first
    of MODEL_TYPES that computes the same numbers. Returns our names of the tensors that the format has no place for: heads, an
    ELECTRA's pooler.

    Raises BertKerasError where the format's library would compute other numbers from the config, TakenError where the folder is
    not empty, OSError where it cannot be written.
    """
    form, path, config = _format(format), path_of(path), checkpoint.config
    _refuse_inexpressible(form, config)
    rows = {row.ours: row for row in form.names_for(checkpoint).rows(config)}
    wanted = variable_shapes(config)
    if lacking := [
        name for name in wanted if name not in checkpoint.tensors and not name.startswith("pooler/")
    ]:
        raise BertKerasError(
            f"{_named(checkpoint)}the checkpoint lacks {_listed(lacking)}; an encoder has every one of them."
        )
    with whole_folder(path, existing="overwrite" if overwrite else "refuse") as new:
        theirs = {
            rows[name].theirs: rows[name].to_theirs(np.asarray(array), config)
            for name, array in checkpoint.tensors.items()
            if name in rows
        }
        form.save(checkpoint, theirs, new)
    return tuple(name for name in checkpoint.tensors if name not in rows)


def _refuse_inexpressible(form: Format, config: BertConfig) -> None:
    for field, only in form.keeps.items():
        value = getattr(config, field)
        wanted = getattr(config, only) if isinstance(only, str) and hasattr(config, only) else only
        if value != wanted:
            raise BertKerasError(
                f"{field} is {value!r}; the {form.name} library always computes with {wanted!r}: "
                "write hugging-face instead."
            )


def collect(config: BertConfig, encoder: "BertEncoder", **heads: "keras.layers.Layer") -> Checkpoint:
    """The inverse of `assign`: the weights of an encoder and of heads, by their table names.

    heads: masked_lm, next_sentence, classifier, concat_classifier, qa_outputs or replaced_token
    """
    variables = _variables(encoder, heads)
    tensors = {name: np.asarray(variable).copy() for name, variable in variables.items()}
    known = {type(head).__name__: None for head in heads.values()}
    architecture = next((HEAD_ARCHITECTURES[name] for name in known if name in HEAD_ARCHITECTURES), None)
    return Checkpoint(config=config, tensors=tensors, architecture=architecture)


def assign(
    checkpoint: Checkpoint,
    encoder: "BertEncoder",
    *,
    fresh: Iterable[str] = (),
    **heads: "keras.layers.Layer",
) -> Report:
    """Gives an encoder and heads their weights. Every variable is matched or the call raises.

    fresh: what may keep its random start where the checkpoint lacks it: "pooler", "bilstm" or names of heads, which
        the report repeats. The pooler of an encoder that does not compute `pooled_output` needs no leave.
    heads: masked_lm, next_sentence, classifier, concat_classifier, qa_outputs or replaced_token, loaded beside the encoder

    Raises ValueError where a weight is missing or of another shape, before anything is assigned.
    """
    variables = _variables(encoder, heads)
    allowed = {*fresh} | (set() if _reads_pooler(encoder) else {"pooler"})
    missing = [name for name in variables if name not in checkpoint.tensors]
    fatal = [name for name in missing if name.split("/")[0] not in allowed]
    _refuse_lacking(
        fatal, checkpoint.tensors, encoder.config, unknown=checkpoint.unknown, named=_named(checkpoint)
    )
    matched = [name for name in variables if name in checkpoint.tensors]
    for name in matched:
        given, wanted = checkpoint.tensors[name].shape, tuple(variables[name].shape)
        if given != wanted:
            raise BertKerasError(
                f"{name} has shape {list(given)} in the checkpoint; the model wants {list(wanted)}."
            )
    for name in matched:
        variables[name].assign(checkpoint.tensors[name].astype(numpy_dtype(variables[name].dtype)))
    heads_at_random = [head for head in fresh if head in HEADS and head not in heads]
    return Report(
        matched=tuple(matched),
        numbers=sum(math.prod(checkpoint.tensors[name].shape) for name in matched),
        fresh=(*missing, *heads_at_random),
        unused=(*(name for name in checkpoint.tensors if name not in variables), *checkpoint.unknown),
        format=checkpoint.format,
    )


def _refuse_lacking(
    lacking: Sequence[str],
    tensors: Mapping[str, np.ndarray],
    config: BertConfig,
    *,
    unknown: Sequence[str],
    named: str,
) -> None:
    """Raises BertKerasError where variables of ours have no tensor; `named` opens it."""
    if not lacking:
        return
    parts = sorted({name.split("/")[0] for name in lacking})
    hint = "; fresh=('pooler',) starts it at random" if parts == ["pooler"] else ""
    layers = {name.split("/")[0] for name in tensors if name.startswith("block_")}
    if layers and not layers & set(parts) and all(part.startswith("block_") for part in parts):
        hint = f"; it has {len(layers)} layers, and num_hidden_layers is {config.num_layers}"
    elif unknown:
        hint += f"; nothing here reads its {_listed(unknown, 4)}"
    raise BertKerasError(f"{named}the checkpoint has no {_listed(lacking)}{hint}.")


def _named(checkpoint: Checkpoint) -> str:
    """What opens an error about a checkpoint: where it is from."""
    return f"{checkpoint.path}: " if checkpoint.path else ""


def _reads_pooler(encoder: "BertEncoder") -> bool:
    return POOLED_OUTPUT in encoder.outputs_wanted


def _variables(encoder: "BertEncoder", heads: Mapping[str, "keras.layers.Layer"]) -> dict[str, Any]:
    """Name -> variable: the path below the encoder, or the head's name and the path below the head."""
    if unknown := sorted(set(heads) - set(HEADS)):
        raise BertKerasError(f"no head is called {', '.join(unknown)}; the heads are {', '.join(HEADS)}.")
    # By the parts of the encoder: those of a generator may have variables of another encoder, with its paths.
    found = {
        f"{part.name}/{_below(part, variable.path)}": variable
        for part in encoder.parts
        for variable in part.weights
    }
    for head, layer in heads.items():
        found |= {f"{head}/{_below(layer, variable.path)}": variable for variable in layer.weights}
    return found


def _below(layer: "keras.layers.Layer", path: str) -> str:
    """A variable's path without what stands above the layer and without the layer itself."""
    return f"/{path}".rpartition(f"/{layer.name}/")[2]


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


def load_tokenizer(path: Path, *, lower_case: bool | None = None) -> "Tokenizer":
    """The tokenizer of a checkpoint folder, of a folder of a vocabulary alone, of a vocab.txt or a spiece.model.

    lower_case: None takes what the files beside the vocabulary say or, where they say nothing, guesses it from the number of
        tokens with upper case and warns

    Raises FileNotFoundError where there is no vocabulary, ValueError where it outgrows the config.
    """
    path = path_of(path)
    if path.is_file() and path.suffix == ".txt":
        vocabulary = Vocabulary(pieces=read_vocabulary(path), lower_case=_case_beside(path))
    elif path.is_file() and path.suffix == ".model":
        vocabulary = Vocabulary(
            sentencepiece=read_bounded(path, MAX_VOCABULARY_BYTES), lower_case=_case_beside(path)
        )
    else:
        vocabulary = _vocabulary_at(path)
    checkpoint = Checkpoint(
        config=BertConfig(vocab_size=1), tensors={}, **_tokenizer_fields(vocabulary), path=str(path)
    )
    return tokenizer_of(checkpoint, lower_case=lower_case)


def _case_beside(file: pathlib.Path) -> bool | None:
    """The lower_case that a folder says of its vocabulary, this file; None of files of other names."""
    if file.name not in ("vocab.txt", SENTENCEPIECE):
        return None
    return FORMATS["hugging-face"].load_tokenizer(file.parent).lower_case


def _vocabulary_at(path: pathlib.Path) -> Vocabulary:
    """Of a checkpoint, or of a folder that has Hugging Face's files of a tokenizer and no weights."""
    try:
        form, root = _locate(path)
    except FileNotFoundError:
        vocabulary = FORMATS["hugging-face"].load_tokenizer(path)
        if not vocabulary.is_there:
            raise
        return vocabulary
    vocabulary = _tokenizer_of_folder(form, root, form.load_config(root))
    if not vocabulary.is_there:
        raise MissingFileError(f"no vocab.txt in {_folder(root)}; put the model's own vocabulary there.")
    return vocabulary


def _tokenizer_fields(vocabulary: Vocabulary) -> dict[str, Any]:
    """What a Checkpoint keeps of a vocabulary."""
    return {
        "vocabulary": vocabulary.pieces,
        "lower_case": vocabulary.lower_case,
        "other_tokenizer": vocabulary.other,
        "sentencepiece": vocabulary.sentencepiece,
    }


def with_tokenizer(checkpoint: Checkpoint, tokenizer: "Tokenizer") -> Checkpoint:
    """The checkpoint with that tokenizer, which `tokenizer_of` gives back."""
    from bert_keras.text.tokenizers import SentencePiece

    if isinstance(tokenizer, SentencePiece):
        vocabulary = Vocabulary(sentencepiece=tokenizer.model, lower_case=tokenizer.lower_case)
    else:
        vocabulary = Vocabulary(pieces=tokenizer.vocabulary, lower_case=tokenizer.lower_case)
    return dataclasses.replace(checkpoint, **_tokenizer_fields(vocabulary))


def tokenizer_of(checkpoint: Checkpoint, *, lower_case: bool | None = None) -> "Tokenizer":
    """The tokenizer that a checkpoint carries, as `load_tokenizer` makes it. ValueError without one."""
    from bert_keras.text.tokenizers import SentencePiece, WordPiece

    if checkpoint.vocabulary is None and checkpoint.other_tokenizer is not None:
        raise BertKerasError(
            f"{_named(checkpoint)}the checkpoint's tokenizer is {checkpoint.other_tokenizer}, which no tokenizer here "
            "reads; its weights can be used with ids made elsewhere."
        )
    if checkpoint.vocabulary is None and checkpoint.sentencepiece is None:
        raise BertKerasError(
            f"{_named(checkpoint)}the checkpoint came without a vocabulary; put the model's vocab.txt into its folder."
        )
    try:
        lower_case = lower_cases(checkpoint) if lower_case is None else lower_case
        if checkpoint.sentencepiece is not None:
            return SentencePiece(checkpoint.sentencepiece, lower_case=lower_case)
        return WordPiece(checkpoint.vocabulary or (), lower_case=lower_case)
    except ValueError as error:
        raise BertKerasError(f"{_named(checkpoint)}{error}") from error


# -----------------------------------------------------------------------------------------------------------
# Finding a checkpoint


def _locate(path: pathlib.Path) -> tuple[Format, pathlib.Path]:
    """The form, and its folder or, for a TensorFlow checkpoint, its prefix."""
    for form in FORMATS.values():
        root = form.find(path)
        if root is not None:
            return form, root
    if not path.exists():
        raise MissingFileError(f"no checkpoint at {path}: no such file or folder.")
    looked_for = "; ".join(f"{form.files} ({form.name})" for form in FORMATS.values())
    there = _listed(sorted(found.name for found in path.iterdir()), 4) if path.is_dir() else "one file"
    raise MissingFileError(f"no checkpoint in {path}; looked for {looked_for}; there is {there}.")


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise BertKerasError(f"no checkpoint format {name!r}; the formats are {', '.join(FORMATS)}.")
    return FORMATS[name]


def _folder(root: pathlib.Path) -> pathlib.Path:
    return root if root.is_dir() else root.parent


def _tokenizer_of_folder(form: Format, root: pathlib.Path, config: BertConfig) -> Vocabulary:
    vocabulary = form.load_tokenizer(_folder(root))
    if vocabulary.pieces is not None and len(vocabulary.pieces) > config.vocab_size:
        raise BertKerasError(
            f"the vocabulary in {_folder(root)} has {len(vocabulary.pieces)} pieces and the config's vocab_size is "
            f"{config.vocab_size}: they are not of one model."
        )
    return vocabulary


# -----------------------------------------------------------------------------------------------------------
# Holding a checkpoint to its own library


def compare(path: Path, *, seed: int = 0) -> dict[str, float]:
    """Runs a checkpoint here and in the library it comes from, on the same random tokens.

    Returns max |ours - theirs| over the real positions, by output: the embeddings, each block, the pooled
    output and each pre-training head that the checkpoint has. Raises ValueError where no library runs the
    form, or where it is not installed.
    """
    form, root = _locate(path_of(path))
    if form.name not in _REFERENCES:
        raise BertKerasError(
            f"no library here runs a {form.name} checkpoint; {' and '.join(_REFERENCES)} can be compared."
        )
    checkpoint = read(path)
    features = _random_features(checkpoint.config, seed=seed)
    theirs = _REFERENCES[form.name](checkpoint, root, features)
    ours = _our_outputs(checkpoint, features)
    real = features[INPUT_MASK].astype(bool)
    differences = {name: np.abs(ours[name] - reference) for name, reference in theirs.items()}
    return {
        name: float(np.max(values[real] if values.shape[:2] == real.shape else values))
        for name, values in differences.items()
    }


def _random_features(config: BertConfig, *, seed: int) -> dict[str, np.ndarray]:
    """Three rows of random tokens and types, the second and third padded."""
    random, length = np.random.default_rng(seed), min(24, config.max_length)
    lengths = np.array([length, max(1, length // 2), 1])
    return {
        # Under the offset lies padding's id, which RoBERTa does not count where it is real.
        INPUT_WORD_IDS: random.integers(config.position_offset, config.vocab_size, (3, length)).astype(
            "int32"
        ),
        INPUT_MASK: (np.arange(length) < lengths[:, None]).astype("int32"),
        INPUT_TYPE_IDS: random.integers(0, config.type_vocab_size, (3, length)).astype("int32"),
    }


def _parts(checkpoint: Checkpoint) -> set[str]:
    return {name.split("/")[0] for name in checkpoint.tensors}


def _our_outputs(checkpoint: Checkpoint, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from bert_keras.encoder import ALL, BertEncoder
    from bert_keras.heads import MaskedLMHead, NextSentenceHead, ReplacedTokenHead

    parts = _parts(checkpoint)
    wanted = ALL if "pooler" in parts else tuple(name for name in ALL if name != POOLED_OUTPUT)
    encoder = BertEncoder(checkpoint.config, outputs=wanted)
    heads: dict[str, Any] = {
        "masked_lm": MaskedLMHead(encoder),
        "next_sentence": NextSentenceHead(config=checkpoint.config),
        "replaced_token": ReplacedTokenHead(config=checkpoint.config),
    }
    assign(checkpoint, encoder, **{name: head for name, head in heads.items() if name in parts})
    outputs = encoder(features)
    rows, length = features[INPUT_WORD_IDS].shape
    everywhere = np.tile(np.arange(length, dtype="int32"), (rows, 1))
    found = {"embeddings": outputs[EMBEDDING_OUTPUT]}
    found |= {f"block_{i}": states for i, states in enumerate(outputs[ENCODER_OUTPUTS])}
    found["masked_lm"] = heads["masked_lm"](outputs[SEQUENCE_OUTPUT], everywhere)
    found["replaced_token"] = heads["replaced_token"](outputs[SEQUENCE_OUTPUT])
    if "pooler" in parts:
        found[POOLED_OUTPUT] = outputs[POOLED_OUTPUT]
        found["next_sentence"] = heads["next_sentence"](outputs[POOLED_OUTPUT])
    return {name: np.asarray(value) for name, value in found.items()}


# Our heads in transformers, by model_type: the class that has one, and its output.
_LOGITS = {
    "bert": {
        "masked_lm": ("ForMaskedLM", "logits"),
        "next_sentence": ("ForNextSentencePrediction", "logits"),
    },
    "albert": {"masked_lm": ("ForMaskedLM", "logits"), "next_sentence": ("ForPreTraining", "sop_logits")},
    "electra": {"masked_lm": ("ForMaskedLM", "logits"), "replaced_token": ("ForPreTraining", "logits")},
    "roberta": {"masked_lm": ("ForMaskedLM", "logits")},
}


def _transformers_outputs(
    checkpoint: Checkpoint, folder: pathlib.Path, features: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise BertKerasError(
            "comparing a hugging-face checkpoint needs torch and transformers: install the parity extra."
        ) from error
    model_type = FORMATS["hugging-face"].names_in(folder).model_type
    if model_type not in _LOGITS:
        raise BertKerasError(
            f"transformers has no model of model_type {model_type!r}: none of {', '.join(_LOGITS)} computes this configuration."
        )
    word_ids, mask, type_ids = (torch.from_numpy(array.astype("int64")) for array in features.values())

    def run(architecture: str) -> Any:
        """The outputs of one class; what the checkpoint lacks is not looked at."""
        model = getattr(transformers, model_type.capitalize() + architecture).from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            return model.eval()(
                word_ids, attention_mask=mask, token_type_ids=type_ids, output_hidden_states=True
            )

    parts, verbosity = _parts(checkpoint), transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it reports the heads that the checkpoint lacks
    try:
        outputs = run("Model")
        embedded, *blocks = outputs.hidden_states
        found = {"embeddings": embedded} | {f"block_{i}": states for i, states in enumerate(blocks)}
        if "pooler" in parts:
            found[POOLED_OUTPUT] = outputs.pooler_output
        for head, (architecture, output) in _LOGITS[model_type].items():
            if head in parts and (head != "next_sentence" or "pooler" in parts):
                found[head] = getattr(run(architecture), output)
    finally:
        transformers.logging.set_verbosity(verbosity)
    return {name: value.numpy() for name, value in found.items()}


def _keras_hub_outputs(
    checkpoint: Checkpoint, folder: pathlib.Path, features: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    import keras

    backbone = keras_hub().models.BertBackbone.from_preset(str(folder), dtype="float32")
    layers = {f"block_{i}": f"transformer_layer_{i}" for i in range(checkpoint.config.num_layers)}
    outputs = {
        name: backbone.get_layer(layer).output
        for name, layer in ({"embeddings": "embeddings_layer_norm"} | layers).items()
    }
    model = keras.Model(backbone.inputs, outputs | {POOLED_OUTPUT: backbone.get_layer("pooled_dense").output})
    inputs = dict(zip(("token_ids", "padding_mask", "segment_ids"), features.values(), strict=True))
    # By the input's own name: the order in which Keras flattens a dict is not this one.
    return {
        name: np.asarray(value) for name, value in model([inputs[one.name] for one in model.inputs]).items()
    }


_REFERENCES = {"hugging-face": _transformers_outputs, "keras-hub": _keras_hub_outputs}
