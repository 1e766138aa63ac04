"""The four published forms of a checkpoint: a reversible name table for each kind of model, and the files that hold it.

In: a folder, or a TensorFlow prefix. Out: shapes and arrays by their names, and the rows that make them ours.
A form is a row of FORMATS; Hugging Face's has a table for each model_type. Our names are the variables' paths below the
encoder or the head: `block_3/attention/query/kernel`, `masked_lm/dense/bias`.
"""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.json_files import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    Kind,
    is_whole,
    list_of,
    object_of,
    or_null,
    read_bounded,
    read_object,
    short,
    typed,
)
from bert_keras.paths import for_tensorflow
from bert_keras.text.vocabulary_files import MAX_VOCABULARY_BYTES, SENTENCEPIECE, pieces_of


class Vocabulary(NamedTuple):
    """What a folder says of its tokenizer: see Checkpoint."""

    pieces: tuple[str, ...] | None = None
    lower_case: bool | None = None
    other: str | None = None
    sentencepiece: bytes | None = None

    @property
    def is_there(self) -> bool:
        """Whether the folder has any."""
        return any(found is not None for found in (self.pieces, self.other, self.sentencepiece))


# TensorFlow, torch and KerasHub are imported by the functions that need them: safetensors needs none.

# -----------------------------------------------------------------------------------------------------------
# Our variables. H hidden, E embedding, I intermediate, V vocabulary, P positions, T types; 0 is any size.


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
_BILSTM = {  # there only with `bilstm`
    f"bilstm/{direction}/lstm_cell/{part}": shape
    for direction in ("forward_lstm", "backward_lstm")
    for part, shape in (("kernel", ("H", "2H")), ("recurrent_kernel", ("H/2", "2H")), ("bias", ("2H",)))
}
_HEADS = {
    **_dense("masked_lm/dense", "H", "E"),
    **_norm("masked_lm/layer_norm", "E"),
    "masked_lm/bias": ("V",),
    **_dense("next_sentence/dense", "H", 2),
    **_dense("classifier/dense", "H", 0),
    **_dense("concat_classifier/dense", "3H", 0),
    **_dense("qa_outputs/dense", "H", 2),
    **_dense("replaced_token/dense", "H", "H"),
    **_dense("replaced_token/prediction", "H", 1),
}


HEADS = tuple(dict.fromkeys(name.split("/")[0] for name in _HEADS))


def variable_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Every variable of the encoder, by name, computed from the config alone."""
    blocks = 1 if config.share_layers else config.num_layers
    patterns = _EMBEDDINGS | (_PROJECTION if config.embedding_width != config.hidden_size else {})
    for i in range(blocks):
        patterns |= {name.format(i=i): shape for name, shape in _BLOCK.items()}
    return _sized(patterns | (_BILSTM if config.bilstm else {}) | _POOLER, config)


def head_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Every variable that a known head may have, by name; 0 stands for any size."""
    return _sized(_HEADS, config)


def _sized(patterns: Mapping[str, tuple], config: BertConfig) -> dict[str, tuple[int, ...]]:
    sizes = {
        "H": config.hidden_size,
        "H/2": config.hidden_size // 2,
        "2H": 2 * config.hidden_size,
        "3H": 3 * config.hidden_size,
        "E": config.embedding_width,
        "I": config.intermediate_size,
        "V": config.vocab_size,
        "P": config.max_positions,
        "T": config.type_vocab_size,
    }
    return {name: tuple(sizes.get(size, size) for size in shape) for name, shape in patterns.items()}


# -----------------------------------------------------------------------------------------------------------
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
# Of transformers, below the name of the model (`bert.`); heads stand beside it.
_EMBEDDINGS_THERE = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/type_embeddings": "embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "embeddings.LayerNorm",
}
_BLOCK_THERE = {
    "block_{i}/attention/query": "encoder.layer.{i}.attention.self.query",
    "block_{i}/attention/key": "encoder.layer.{i}.attention.self.key",
    "block_{i}/attention/value": "encoder.layer.{i}.attention.self.value",
    "block_{i}/attention/output": "encoder.layer.{i}.attention.output.dense",
    "block_{i}/attention_layer_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "block_{i}/feed_forward_layer_norm": "encoder.layer.{i}.output.LayerNorm",
}
_ALBERT_BLOCK_THERE = {
    f"block_{{i}}/{ours}": f"encoder.albert_layer_groups.0.albert_layers.0.{theirs}"
    for ours, theirs in {
        "attention/query": "attention.query",
        "attention/key": "attention.key",
        "attention/value": "attention.value",
        "attention/output": "attention.dense",
        "attention_layer_norm": "attention.LayerNorm",
        "feed_forward/intermediate": "ffn",
        "feed_forward/output": "ffn_output",
        "feed_forward_layer_norm": "full_layer_layer_norm",
    }.items()
}
_TASK_HEADS_THERE = {
    "classifier/dense": "classifier",
    "concat_classifier/dense": "concat_classifier",  # ours alone
    "qa_outputs/dense": "qa_outputs",
}
_BERT_HEADS_THERE = {
    "masked_lm/dense": "cls.predictions.transform.dense",
    "masked_lm/layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
    "next_sentence/dense": "cls.seq_relationship",
    **_TASK_HEADS_THERE,
}
_REPLACED_TOKEN_THERE = {
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
    "masked_lm/bias": "masked_lm/output_bias.Sbias",  # .S: a slash inside a name, as TensorFlow writes it
}

# Layouts: how their array is laid out against ours. Kernels of attention are split by heads in einsum layers.
SAME, TRANSPOSED, HEADS_OUT, HEADS_IN, HEADS_BIAS = (
    "same",
    "transposed",
    "heads out",
    "heads in",
    "heads bias",
)
_EINSUM = {
    **{f"block_{{i}}/attention/{part}/kernel": HEADS_OUT for part in ("query", "key", "value")},
    **{f"block_{{i}}/attention/{part}/bias": HEADS_BIAS for part in ("query", "key", "value")},
    "block_{i}/attention/output/kernel": HEADS_IN,
}
_LINEAR = {name: TRANSPOSED for name in (_PROJECTION | _BLOCK | _POOLER | _HEADS) if name.endswith("/kernel")}
_OUTPUT_WEIGHTS = {
    f"{head}/dense/kernel": TRANSPOSED for head in ("next_sentence", "classifier", "qa_outputs")
}


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of that name, bfloat16 among them."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


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
class Checkpoint:
    """A model's weights apart from any model.

    tensors: our name -> array in our layout, in the file's dtype
    vocabulary: the wordpieces in the order of their ids, where the folder has them
    sentencepiece: in their place, the bytes of a spiece.model
    lower_case: whether the text is to be lower-cased, where the folder says
    other_tokenizer: what the folder has in place of wordpieces, where no tokenizer here reads it
    format: the form it was read from, or ""
    path: where it was read from, or ""; errors name it
    architecture: Hugging Face's class for it without the model's name (ForTokenClassification), where that is known
    labels: what its classifier's logits stand for, in their order, where Hugging Face's id2label has names
    unknown: names in the file that no row of the table knows
    """

    config: BertConfig
    tensors: dict[str, np.ndarray]
    vocabulary: tuple[str, ...] | None = None
    lower_case: bool | None = None
    other_tokenizer: str | None = None
    sentencepiece: bytes | None = None
    format: str = ""
    path: str = ""
    architecture: str | None = None
    labels: tuple[str, ...] | None = None
    unknown: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """An opened file: shapes first, so that nothing is read before they are checked."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], np.ndarray]
    architecture: str | None = None
    labels: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """The reversible name table of one kind of model.

    model_type: the kind, one of MODEL_TYPES
    table: our name (a variable, or what carries a pair) -> theirs
    parts: what is put behind their name for each of kernel, bias, gamma and beta
    layouts: our variable -> layout, where it is not the same
    current: a file's spelling of a name -> the table's, or None for what is no weight
    duplicates: their second names of a variable of ours; both must be equal
    head_keeps: head -> config field -> what theirs always computes with; where ours would not, it has no rows
    classes: Hugging Face's classes, as in `Checkpoint.architecture`, that compute what we do -> parts of ours that each can
        leave out
    padding: where theirs count positions from padding's id on, the pieces that may stand there, under `position_offset`
    """

    model_type: str
    table: dict[str, str]
    parts: dict[str, str]
    layouts: dict[str, str]
    current: Callable[[str], str | None]
    duplicates: dict[str, str] = dataclasses.field(default_factory=dict)
    head_keeps: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    classes: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    padding: tuple[str, ...] = ()

    def rows(self, config: BertConfig) -> list[Row]:
        """The table for this config: one row for each variable that the form has a place for."""
        found = []
        for ours, shape in (variable_shapes(config) | head_shapes(config)).items():
            kept = self.head_keeps.get(ours.split("/")[0], {})
            if any(getattr(config, field) != value for field, value in kept.items()):
                continue
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
            if name in ours
        }

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether a model of this kind computes what the checkpoint does, from all of its weights that matter."""
        config, vocabulary = checkpoint.config, checkpoint.vocabulary
        rows, architecture = {row.ours for row in self.rows(config)}, architecture_of(checkpoint)
        lacking = {name.split("/")[0] for name in checkpoint.tensors if name not in rows}
        if self.padding and vocabulary and vocabulary[config.position_offset - 1] not in self.padding:
            return False
        return (
            self.model_type in config.model_types()
            and architecture in self.classes
            and lacking <= self.classes[architecture]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One published form.

    names: a table for each kind of model; of those that hold a checkpoint the first is written, else the last
    keeps: config field -> what the form's own library always computes, a value or another field's
    files: what `find` looks for, in words
    find: a path -> its folder or, for TensorFlow, its prefix; None where there is none
    model_type: the kind of model that is there
    load_config, load_tokenizer, open, save: the files themselves
    """

    name: str
    names: tuple[Names, ...]
    keeps: dict[str, Any]
    files: str
    find: Callable[[pathlib.Path], pathlib.Path | None]
    load_config: Callable[[pathlib.Path], BertConfig]
    load_tokenizer: Callable[[pathlib.Path], Vocabulary]
    open: Callable[[pathlib.Path, BertConfig], contextlib.AbstractContextManager[Source]]
    save: Callable[[Checkpoint, dict[str, np.ndarray], pathlib.Path], None]
    model_type: Callable[[pathlib.Path], str] = lambda root: "bert"

    def names_in(self, root: pathlib.Path) -> Names:
        """The table of what is there; `load_config` has checked its kind."""
        return {names.model_type: names for names in self.names}[self.model_type(root)]

    def names_for(self, checkpoint: Checkpoint) -> Names:
        """The table that a checkpoint is written by."""
        return next((names for names in self.names if names.holds(checkpoint)), self.names[-1])


# -----------------------------------------------------------------------------------------------------------
# Vocabularies


def read_vocabulary(path: pathlib.Path) -> tuple[str, ...]:
    """The pieces of a vocab.txt as they stand; WordPiece checks them."""
    return tuple(pieces_of(read_bounded(path, MAX_VOCABULARY_BYTES), source=path))


# From this fraction of upper case among its tokens with letters on, a vocabulary is taken for cased. BERT's English one has 0.31,
# its multilingual one 0.23; its uncased one 0, or 0.04 with domain terms in all of the [unusedN].
_CASED = 0.05
_SPECIAL_TOKEN = re.compile(r"[\[<].*[\]>]")


def lower_cases(checkpoint: Checkpoint) -> bool:
    """Whether to lower-case text: as the folder said or, where it did not, guessed from the vocabulary, with a warning.

    Raises ValueError where the checkpoint's SentencePiece model is none.
    """
    if checkpoint.lower_case is not None:
        return checkpoint.lower_case
    pieces = checkpoint.vocabulary
    if pieces is None and checkpoint.sentencepiece is not None:
        from bert_keras.text.tokenizers import SentencePiece

        pieces = SentencePiece(checkpoint.sentencepiece).vocabulary
    tokens = [piece for piece in pieces or () if not _SPECIAL_TOKEN.fullmatch(piece)]
    lettered = [token for token in tokens if token.lower() != token.upper()]
    upper = sum(token != token.lower() for token in lettered)
    guessed = upper < _CASED * max(1, len(lettered))
    where = f"the files of {checkpoint.path} do" if checkpoint.path else "the vocabulary's files do"
    warnings.warn(
        f"{where} not say whether to lower-case text; guessed lower_case={guessed}: {upper:,} of its {len(lettered):,} tokens "
        'with letters have upper case. "do_lower_case" in a tokenizer_config.json beside the vocabulary settles it.',
        stacklevel=1,  # one place, so that Python says it once
    )
    return guessed


def write_tokenizer(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    """Writes the vocabulary and, as Hugging Face does, a tokenizer_config.json beside it."""
    _write_vocabulary(checkpoint, folder)
    if checkpoint.vocabulary is None and checkpoint.sentencepiece is None:
        return
    settings = {
        "tokenizer_class": "BertTokenizer" if checkpoint.sentencepiece is None else "AlbertTokenizer",
        "do_lower_case": lower_cases(checkpoint),
        "model_max_length": checkpoint.config.max_length,
    }
    _write_json(settings, folder / "tokenizer_config.json")


def _write_vocabulary(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    if checkpoint.vocabulary is not None:
        (folder / "vocab.txt").write_bytes(("\n".join(checkpoint.vocabulary) + "\n").encode())
    if checkpoint.sentencepiece is not None:
        (folder / SENTENCEPIECE).write_bytes(checkpoint.sentencepiece)


def _write_json(fields: Mapping[str, Any], path: pathlib.Path) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _vocab_txt(folder: pathlib.Path) -> Vocabulary:
    path = folder / "vocab.txt"
    return Vocabulary(pieces=read_vocabulary(path) if path.is_file() else None)


# -----------------------------------------------------------------------------------------------------------
# Hugging Face

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"

# Hugging Face's class for a checkpoint, without the model's name: by our head's class where tensors do not tell, else the
# first whose heads are there.
HEAD_ARCHITECTURES = {"TokenHead": "ForTokenClassification", "ChoiceHead": "ForMultipleChoice"}
_BY_HEADS: tuple[tuple[set[str], str], ...] = (
    ({"masked_lm", "next_sentence"}, "ForPreTraining"),
    ({"replaced_token"}, "ForPreTraining"),
    ({"masked_lm"}, "ForMaskedLM"),
    ({"next_sentence"}, "ForNextSentencePrediction"),
    ({"classifier"}, "ForSequenceClassification"),
    ({"qa_outputs"}, "ForQuestionAnswering"),
    (set(), "Model"),
)
# The heads of every class that is known.
ARCHITECTURES = (
    *_BY_HEADS,
    *(({"classifier"}, architecture) for architecture in HEAD_ARCHITECTURES.values()),
)
_KNOWN_ARCHITECTURES = {architecture for _, architecture in ARCHITECTURES}
_ENCODER_PARTS = ("embeddings.", "embeddings_project.", "encoder.", "pooler.")


def architecture_of(checkpoint: Checkpoint) -> str:
    """Hugging Face's class without the model's name."""
    if checkpoint.architecture is not None:
        return checkpoint.architecture
    parts = {name.split("/")[0] for name in checkpoint.tensors}
    return next(architecture for heads, architecture in _BY_HEADS if heads <= parts)


def _current_hugging_face(name: str, *, model: str) -> str | None:
    """Old spellings, and those of a wrapped module, to the current one; None for buffers."""
    if name.endswith(("position_ids", "token_type_ids")):
        return None
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name)  # DataParallel's, torch.compile's
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"{model}.{name}" if name.startswith(_ENCODER_PARTS) else name


def _hugging_face_names(
    model_type: str, *, encoder: dict[str, str], heads: dict[str, str], model: str | None = None, **more: Any
) -> Names:
    """The table of one model_type; `model`, its name in a file that holds heads, is the type's unless given."""
    model = model_type if model is None else model
    return Names(
        model_type=model_type,
        table={ours: f"{model}.{theirs}" for ours, theirs in encoder.items()} | heads,
        parts={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
        layouts=_LINEAR,
        current=functools.partial(_current_hugging_face, model=model),
        **more,
    )


def _tied(weight: str, bias: str | None = None) -> dict[str, str]:
    """Second names of what the masked-LM head ties."""
    return {weight: "embeddings/word_embeddings"} | ({bias: "masked_lm/bias"} if bias else {})


_BERT_THERE = _hugging_face_names(
    "bert",
    encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
    heads=_BERT_HEADS_THERE,
    duplicates=_tied("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    classes=dict.fromkeys(_KNOWN_ARCHITECTURES, frozenset[str]()),
)
# Theirs is written into the code, whatever hidden_act says.
_GELU_HEAD = {"masked_lm": {"activation": "gelu_erf"}}
_NO_POOLER = frozenset({"pooler"})
_HUGGING_FACE = (
    _BERT_THERE,
    _hugging_face_names(
        "albert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"}
        | _ALBERT_BLOCK_THERE,
        heads={
            "masked_lm/dense": "predictions.dense",
            "masked_lm/layer_norm": "predictions.LayerNorm",
            "masked_lm/bias": "predictions.bias",
            "next_sentence/dense": "sop_classifier.classifier",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("predictions.decoder.weight", "predictions.decoder.bias"),
        classes=dict.fromkeys(_KNOWN_ARCHITECTURES - {"ForNextSentencePrediction"}, frozenset[str]()),
    ),
    # Has no pooler. Its classifier of texts is another one: of a dense layer, gelu and a second.
    _hugging_face_names(
        "electra",
        encoder=_EMBEDDINGS_THERE | {"embeddings/projection": "embeddings_project"} | _BLOCK_THERE,
        heads={
            "masked_lm/dense": "generator_predictions.dense",
            "masked_lm/layer_norm": "generator_predictions.LayerNorm",
            "masked_lm/bias": "generator_lm_head.bias",
            **_REPLACED_TOKEN_THERE,
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("generator_lm_head.weight"),
        head_keeps=_GELU_HEAD,
        classes=dict.fromkeys(
            ("ForPreTraining", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"), _NO_POOLER
        )
        | {"Model": frozenset()},
    ),
    # Its classifier of texts has the pooler's weights under other names.
    _hugging_face_names(
        "roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
        heads={
            "masked_lm/dense": "lm_head.dense",
            "masked_lm/layer_norm": "lm_head.layer_norm",
            "masked_lm/bias": "lm_head.bias",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("lm_head.decoder.weight", "lm_head.decoder.bias"),
        head_keeps=_GELU_HEAD,
        classes=dict.fromkeys(
            ("ForMaskedLM", "ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering", "Model"),
            frozenset[str](),
        ),
        padding=("[PAD]", "<pad>"),
    ),
    # Ours alone, for what none of transformers' computes; it refuses to read them.
    _hugging_face_names(
        "bert_keras",
        model="bert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler.dense"}
        | _BLOCK_THERE
        | {name: name.replace("_lstm/lstm_cell", "").replace("/", ".") for name in _BILSTM},
        heads=_BERT_HEADS_THERE | _REPLACED_TOKEN_THERE,
        duplicates=_BERT_THERE.duplicates,
        classes=_BERT_THERE.classes,
    ),
)


def _find_hugging_face(path: pathlib.Path) -> pathlib.Path | None:
    folder = path if path.is_dir() else path.parent
    there = (SAFETENSORS, f"{SAFETENSORS}.index.json", TORCH, f"{TORCH}.index.json")
    found = any((folder / name).is_file() and path in (folder, folder / name) for name in there)
    return folder if found else None


def _model_type_of_folder(folder: pathlib.Path) -> str:
    path = folder / "config.json"
    return read_object(path).get("model_type", "bert") if path.is_file() else "bert"


def _architecture_of_folder(folder: pathlib.Path) -> str | None:
    path = folder / "config.json"
    named = read_object(path).get("architectures") if path.is_file() else None
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    found = re.fullmatch(r"(?:Bert|Albert|Electra|Roberta)(\w+)", first)
    return found.group(1) if found and found.group(1) in _KNOWN_ARCHITECTURES else None


def _labels_of_folder(folder: pathlib.Path) -> tuple[str, ...] | None:
    path = folder / "config.json"
    known = {"id2label": or_null(object_of(TEXT))}
    fields = read_object(path) if path.is_file() else {}
    names = typed(fields, known, where=path, optional=known, others=True).get("id2label")
    if not isinstance(names, dict) or names.keys() != {str(i) for i in range(len(names))}:
        return None
    return tuple(names[str(i)] for i in range(len(names)))


# The fields of a tokenizer_config.json that are read here and compared with no list of values.
_TOKEN = Kind(
    "an object with its text as content",
    lambda value: isinstance(value, dict) and isinstance(value.get("content"), str),
)
_SETTINGS = {
    "tokenizer_class": or_null(TEXT),
    "do_lower_case": or_null(FLAG),
    "strip_accents": or_null(FLAG),
    "added_tokens_decoder": or_null(object_of(_TOKEN)),
}
_OTHER_TOKENIZERS = {"BPE": "byte-level BPE", "Unigram": "a SentencePiece unigram model"}
# Classes that split text as WordPiece and SentencePiece do here; the last two leave it to tokenizer.json.
_TOKENIZER_CLASSES = {
    f"{model}Tokenizer{kind}"
    for model in "Albert Bert ConvBert DistilBert Electra Lxmert MobileBert SqueezeBert".split()
    for kind in ("", "Fast", "Legacy")
} | {"PreTrainedTokenizerFast", "TokenizersBackend"}
# What a tokenizer_config.json may say, beside the case and accents: other values give other ids.
_TOKENIZER_SETTINGS = {
    "clean_text": (None, True),
    "tokenize_chinese_chars": (None, True),
    "keep_accents": (None, False),
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "wordpieces_prefix": (None, "##"),
}
# The same of the parts of a tokenizer.json. A longer word is one [UNK]: at 100 characters in transformers, 200 in the original.
_PIPELINE: dict[str, dict[str, tuple]] = {
    "normalizer": {
        "type": ("BertNormalizer",),
        "clean_text": (None, True),
        "handle_chinese_chars": (None, True),
        "lowercase": (None, False, True),
    },
    "pre_tokenizer": {"type": ("BertPreTokenizer",)},
    "model": {
        "unk_token": (None, "[UNK]"),
        "continuing_subword_prefix": (None, "##"),
        "max_input_chars_per_word": (None, 100, 200),
    },
}
_ID = Kind("a whole number", is_whole)
# Where transformers writes a piece of separators alone, it writes "". This is one that text never matches, the Chinese one's.
_SEPARATOR = "\u2028"


def _hugging_face_tokenizer(folder: pathlib.Path) -> Vocabulary:
    """A folder's tokenizer. Google's and Model Garden's have the vocab.txt and, if written here, the settings beside it."""
    found, model = _vocab_txt(folder), folder / SENTENCEPIECE
    pipeline = _tokenizer_json(folder, has_pieces=found.is_there or model.is_file())
    if found.pieces is None and model.is_file():
        found = Vocabulary(sentencepiece=read_bounded(model, MAX_VOCABULARY_BYTES))
    elif found.pieces is None or pipeline.other is not None:
        found = pipeline
    if not found.is_there and (folder / "merges.txt").is_file():
        found = Vocabulary(other=_OTHER_TOKENIZERS["BPE"])
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    typed(settings, _SETTINGS, where=path, optional=_SETTINGS, others=True)
    kind = settings.get("tokenizer_class") or _tokenizer_class_of_model(folder)
    if found.is_there and kind is not None and kind not in _TOKENIZER_CLASSES:
        found = Vocabulary(other=str(kind))
    if found.pieces is None and found.sentencepiece is None:
        return found
    cases = (None, False, True) if pipeline.lower_case is None else (None, pipeline.lower_case)
    _refuse_other_ids(settings, {"do_lower_case": cases} | _TOKENIZER_SETTINGS, where=path)
    lower_case = settings.get("do_lower_case")
    lower_case = pipeline.lower_case if lower_case is None else lower_case
    _refuse_other_ids(settings, {"strip_accents": (None, lower_case)}, where=path)
    if found.pieces is not None:
        _warn_of_added_tokens(folder, settings, found.pieces)
    return found._replace(lower_case=lower_case)


def _tokenizer_class_of_model(folder: pathlib.Path) -> str | None:
    path = folder / "config.json"
    fields = read_object(path) if path.is_file() else {}
    known = {"tokenizer_class": _SETTINGS["tokenizer_class"]}
    return typed(fields, known, where=path, optional=known, others=True).get("tokenizer_class")


def _refuse_other_ids(settings: Mapping[str, Any], allowed: Mapping[str, tuple], *, where: object) -> None:
    for key, values in allowed.items():
        found = settings.get(key)
        # 0 and 1 equal false and true in Python, and are neither in JSON.
        if not any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values):
            raise BertKerasError(
                f"{key} is {short(found)} in {where}, which changes the ids and is not supported; "
                f"wanted {' or '.join(map(repr, values))}."
            )


def _tokenizer_json(folder: pathlib.Path, *, has_pieces: bool) -> Vocabulary:
    """What a tokenizer.json holds, BERT's own pipeline or another model; its pieces, where the folder has none beside it."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return Vocabulary()
    content = read_object(path)
    parts = {part: content.get(part) or {} for part in _PIPELINE}
    typed(parts, dict.fromkeys(_PIPELINE, OBJECT), where=path)
    kinds = {"type": or_null(TEXT), "vocab": or_null(object_of(_ID))}
    kind = parts["model"].get("type", "WordPiece")
    if isinstance(kind, str) and kind != "WordPiece" and "model" in content:
        return Vocabulary(other=_OTHER_TOKENIZERS.get(kind, f"a {kind:.80} model"))
    ids = (
        {}
        if has_pieces
        else typed(parts["model"], kinds, where=f"the model of {path}", optional=kinds, others=True).get(
            "vocab"
        )
    )
    if ids is None or "model" not in content:
        raise BertKerasError(f"{path} holds no WordPiece vocabulary; put a vocab.txt beside it.")
    pieces = tuple(sorted(ids, key=ids.__getitem__))
    complete = [ids[piece] for piece in pieces] == list(range(len(ids)))
    lower_case = parts["normalizer"].get("lowercase")
    for part, allowed in _PIPELINE.items():
        _refuse_other_ids(parts[part], allowed, where=f"the {part} of {path}")
    _refuse_other_ids(
        parts["normalizer"], {"strip_accents": (None, lower_case)}, where=f"the normalizer of {path}"
    )
    if not complete:
        raise BertKerasError(f"the ids of {path} do not run from 0 without a gap; put a vocab.txt beside it.")
    found = None if has_pieces else tuple(piece or _SEPARATOR for piece in pieces)
    return Vocabulary(pieces=found, lower_case=lower_case)


def _warn_of_added_tokens(folder: pathlib.Path, settings: Mapping[str, Any], pieces: tuple[str, ...]) -> None:
    """transformers finds added tokens in text before it looks for pieces, which no tokenizer here does."""
    pipeline, listed = (
        read_object(folder / name) if (folder / name).is_file() else {}
        for name in ("tokenizer.json", "added_tokens.json")
    )
    known = {"added_tokens": or_null(list_of(_TOKEN))}
    typed(pipeline, known, where=folder / "tokenizer.json", optional=known, others=True)
    typed(listed, dict.fromkeys(listed, _ID), where=folder / "added_tokens.json")
    tokens = [
        *(pipeline.get("added_tokens") or ()),
        *(settings.get("added_tokens_decoder") or {}).values(),
    ]
    added = [*(token["content"] for token in tokens), *listed]
    if strange := sorted(set(added) - set(pieces)):
        warnings.warn(
            f"{folder} adds {', '.join(strange)[:1000]} to its vocabulary; "
            "text that holds them is split into the vocabulary's pieces.",
            stacklevel=3,
        )


@contextlib.contextmanager
def _open_hugging_face(folder: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    """Safetensors where there are any, else a PyTorch file; either may be in several shards."""
    opener: Any = _open_safetensors
    files = _shards(folder, SAFETENSORS)
    if not files:
        opener, files = _open_torch, _shards(folder, TORCH)
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(opener(file)) for file in files]
        where = {name: source for source in sources for name in source.shapes}
        shapes = {name: source.shapes[name] for name, source in where.items()}
        yield Source(
            shapes=shapes,
            get=lambda name: where[name].get(name),
            architecture=_architecture_of_folder(folder),
            labels=_labels_of_folder(folder),
        )


def _shards(folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    if (folder / stem).is_file():
        return [folder / stem]
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return []
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BertKerasError(f"{index} has no weight_map of file names.")
    for name in set(names.values()):
        if pathlib.PurePath(name).name != name or not (folder / name).is_file():
            raise BertKerasError(f"{index} names the shard {name!r}, which is no file of its folder.")
    return [folder / name for name in sorted(set(names.values()))]


@contextlib.contextmanager
def _open_safetensors(file: pathlib.Path) -> Iterator[Source]:
    import safetensors

    try:
        # The library holds header and length together: what it opens, it can read.
        with safetensors.safe_open(file, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
            yield Source(shapes=shapes, get=functools.partial(_safetensor, opened, file=file))
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{file} is cut short or no safetensors file: {error}.") from error


def _safetensor(opened: Any, name: str, *, file: pathlib.Path) -> np.ndarray:
    try:
        return opened.get_tensor(name)
    except (AttributeError, TypeError) as error:  # numpy has no such dtype
        raise BertKerasError(
            f"{name} of {file} is {opened.get_slice(name).get_dtype()}; wanted float16, bfloat16, float32 or float64."
        ) from error


@contextlib.contextmanager
def _open_torch(file: pathlib.Path) -> Iterator[Source]:
    _refuse_packed(file)
    try:
        import torch
    except ImportError as error:
        raise BertKerasError(
            f"{file.name} is a PyTorch file and torch is not installed; install it, or bring {SAFETENSORS}."
        ) from error
    try:
        # A pickle runs code when read; weights_only refuses every one that does more than rebuild tensors.
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, zip, runtime and attribute errors
        reason = str(error).strip().split("\n")[0]
        raise BertKerasError(f"{file} is no PyTorch file of plain tensors: {reason}") from error
    if not isinstance(tensors, dict) or not all(torch.is_tensor(tensor) for tensor in tensors.values()):
        held = ", ".join(map(str, tensors)) if isinstance(tensors, dict) else f"a {type(tensors).__name__}"
        raise BertKerasError(
            f"{file} is no PyTorch file of plain tensors: it holds {held:.200}; save the model's state_dict alone."
        )
    # Strides of 0 make a tensor of any size of one number; what the embeddings are tied to may count twice.
    size, there = (
        sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        file.stat().st_size,
    )
    if size > 2 * there:
        raise BertKerasError(
            f"{file} has {there:,} bytes and its tensors ask for {size:,}; save the model again."
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    def get(name: str) -> np.ndarray:
        try:
            return _torch_to_numpy(tensors[name])
        except (RuntimeError, TypeError) as error:  # a sparse tensor, one of no device
            raise BertKerasError(f"{name} of {file} is no plain tensor: {_first_line(error)}") from error

    yield Source(shapes=shapes, get=get)


def _refuse_packed(file: pathlib.Path) -> None:
    """Raises BertKerasError where a zip holds more than its own bytes: torch.save compresses nothing."""
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BertKerasError(f"{file} is no PyTorch file of plain tensors: {error}") from error
    if size > (there := file.stat().st_size):
        raise BertKerasError(
            f"{file} has {there:,} bytes and unpacks to {size:,}; wanted is a file of torch.save, which compresses nothing."
        )


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.detach().numpy()
    return tensor.detach().contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))


def _save_hugging_face(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import safetensors
    import safetensors.numpy

    model_type = FORMATS["hugging-face"].names_for(checkpoint).model_type
    model = model_type.partition("_")[0].capitalize()
    fields = checkpoint.config.to_hugging_face(model_type)
    fields["architectures"] = [model + architecture_of(checkpoint)]
    if "classifier/dense/bias" in checkpoint.tensors:
        fields["num_labels"] = len(checkpoint.tensors["classifier/dense/bias"])
    if checkpoint.labels is not None:
        fields["id2label"] = dict(enumerate(checkpoint.labels))
        fields["label2id"] = {label: i for i, label in enumerate(checkpoint.labels)}
    _write_json(fields, folder / "config.json")
    write_tokenizer(checkpoint, folder)
    try:
        safetensors.numpy.save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        (folder / SAFETENSORS).chmod(
            0o644
        )  # it is made for its owner alone, and a server may be another user
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {SAFETENSORS}: {error}.") from error


# -----------------------------------------------------------------------------------------------------------
# TensorFlow checkpoints: Google's by variable name, Model Garden's by object

TENSORFLOW_NAME = "bert_model.ckpt"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NO_WEIGHT = re.compile(
    r"(^|/)(adam_[mv]|lamb_[mv]|global_step|beta[12]_power|good_steps|loss_scale|current_loss_scale)$"
)


def _current_google(name: str) -> str | None:
    return None if _NO_WEIGHT.search(name) else name


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ENCODER_ROOT = re.compile(r"^(model/)?(encoder_network|encoder|model)/(?=_|layer_with_weights-)")
_FIRST_LAYERS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)


def _current_model_garden(name: str) -> str | None:
    """The names under `Checkpoint(encoder=)`, whatever the root was called; None for what is no weight."""
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


_TENSORFLOW_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def _tensorflow_prefix(path: pathlib.Path) -> pathlib.Path | None:
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        if path / f"{TENSORFLOW_NAME}.index" in indexes:
            return path / TENSORFLOW_NAME
        if len(indexes) > 1:
            names = ", ".join(file.stem for file in indexes[:4])
            raise BertKerasError(
                f"{path} holds {len(indexes)} TensorFlow checkpoints ({names}); give the path of one."
            )
        return indexes[0].with_suffix("") if indexes else None
    for prefix in (path, path.with_name(_TENSORFLOW_PART.sub("", path.name))):
        if prefix.with_name(f"{prefix.name}.index").is_file():
            return prefix
    return None


def _find_google(path: pathlib.Path) -> pathlib.Path | None:
    prefix = _tensorflow_prefix(path)
    return None if prefix is None or _has_object_graph(prefix) else prefix


def _find_model_garden(path: pathlib.Path) -> pathlib.Path | None:
    prefix = _tensorflow_prefix(path)
    return prefix if prefix is not None and _has_object_graph(prefix) else None


def _has_object_graph(prefix: pathlib.Path) -> bool:
    with _tensorflow_reader(prefix) as reader:
        return reader.has_tensor(_OBJECT_GRAPH)


@contextlib.contextmanager
def _tensorflow_reader(prefix: pathlib.Path) -> Iterator[Any]:
    import tensorflow as tf

    with for_tensorflow(prefix) as found:
        try:
            reader = tf.train.load_checkpoint(str(found))
        except Exception as error:  # TensorFlow gives a status as RuntimeError, IndexError, ...
            raise BertKerasError(
                f"{prefix}.index is no TensorFlow checkpoint: {_first_line(error)}"
            ) from error
        yield reader


def _first_line(error: BaseException) -> str:
    return str(getattr(error, "message", error)).strip().split("\n")[0]


@contextlib.contextmanager
def _open_tensorflow(prefix: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    with _tensorflow_reader(prefix) as reader:

        def get(name: str) -> np.ndarray:
            try:
                return reader.get_tensor(name)
            except Exception as error:  # TensorFlow gives a status as RuntimeError, IndexError, ...
                raise BertKerasError(f"{name} of {prefix} cannot be read: {_first_line(error)}") from error

        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        dtypes = reader.get_variable_to_dtype_map()
        size = sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items())  # 0 of strings
        there = sum(part.stat().st_size for part in prefix.parent.iterdir() if _is_data_of(prefix, part))
        if size > there:  # before TensorFlow makes room for them
            raise BertKerasError(
                f"{prefix} cannot be read: its data has {there:,} bytes and its index asks for {size:,}; bring the whole files."
            )
        yield Source(shapes=dict(sorted(shapes.items())), get=get)


def _is_data_of(prefix: pathlib.Path, part: pathlib.Path) -> bool:
    return part.name.startswith(f"{prefix.name}.data-") and part.is_file()


def _bert_config_json(prefix: pathlib.Path) -> BertConfig:
    path = prefix.parent / "bert_config.json"
    if not path.is_file():
        raise MissingFileError(
            f"no bert_config.json in {prefix.parent}, which holds {prefix.name}; put the model's own there."
        )
    return BertConfig.load(path)


def _save_google(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import tensorflow as tf

    _write_json(checkpoint.config.to_google(), folder / "bert_config.json")
    write_tokenizer(checkpoint, folder)
    names = sorted(tensors)
    with file_errors(), tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(folder / TENSORFLOW_NAME),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name]) for name in names],
        )


def _save_model_garden(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """An object graph with the edges of `tf.train.Checkpoint(encoder=...)`: their library matches edges."""
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
    write_tokenizer(checkpoint, folder)
    with file_errors(), tf.device("CPU"):
        tracked(tree).write(str(folder / TENSORFLOW_NAME))


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """TensorFlow's errors of writing, such as those of a full disk, as Python's: OSError, in one line."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        reason = re.sub(r"^\{\{.*?\}\} | \[Op:\w+\]", "", _first_line(error))  # without the graph's nodes
        raise OSError(f"cannot write {reason}") from error


# -----------------------------------------------------------------------------------------------------------
# KerasHub presets, through the library: its file numbers the layers, its model names them

_KERAS_HUB_WEIGHTS = ("model.weights.h5", "model.weights.json")  # the second lists shards
_KERAS_HUB_HEADS = "task.weights.h5"  # which are read by no table
_FILES = Kind(
    "a file's name or a list of such",
    lambda value: TEXT.accepts(value) or list_of(TEXT).accepts(value),
)
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


def _find_keras_hub(path: pathlib.Path) -> pathlib.Path | None:
    folder = path if path.is_dir() else path.parent
    found = any((folder / name).is_file() and path in (folder, folder / name) for name in _KERAS_HUB_WEIGHTS)
    return folder if found else None


def keras_hub() -> Any:
    """The library; ValueError where it is not installed."""
    try:
        import keras_hub as library
    except ImportError as error:
        raise BertKerasError(
            "a keras-hub checkpoint needs keras-hub, which is not installed: pip install keras-hub."
        ) from error
    return library


def _keras_hub_config(folder: pathlib.Path) -> BertConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise MissingFileError(f"no config.json in {folder}, which holds a KerasHub preset.")
    content = read_object(path)
    if content.get("class_name") != "BertBackbone" or not isinstance(content.get("config"), dict):
        raise BertKerasError(
            f"{path} is of class {short(content.get('class_name'))}; wanted a KerasHub BertBackbone."
        )
    fields = content["config"]
    typed(
        fields,
        dict.fromkeys(_KERAS_HUB_KEYS, NUMBER),
        where=f"the config of {path}",
        others=True,
        optional=_KERAS_HUB_KEYS,
    )
    if "Quantized" in json.dumps(fields.get("dtype")):
        raise BertKerasError(
            f"the weights of {path} are quantized, by its dtype; wanted is a preset of floats."
        )
    if missing := sorted(set(_KERAS_HUB_KEYS) - set(fields)):
        raise BertKerasError(f"{', '.join(missing)} missing from {path}.")
    ours = {name: fields[key] for key, name in _KERAS_HUB_KEYS.items()}
    # One rate for both dropouts; tanh gelu and epsilon 1e-12 are written into its layers.
    try:
        return BertConfig(**ours, attention_dropout=ours["hidden_dropout"])
    except ValueError as error:
        # The error opens with our name.
        theirs = {name: f"{key} in " for key, name in _KERAS_HUB_KEYS.items() if key != name}
        raise BertKerasError(f"{theirs.get(str(error).split()[0], '')}{path}: {error}") from error


def _keras_hub_backbone(config: BertConfig) -> Any:
    return keras_hub().models.BertBackbone(
        **{key: getattr(config, name) for key, name in _KERAS_HUB_KEYS.items()}, dtype="float32"
    )


@contextlib.contextmanager
def _open_keras_hub(folder: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    file = next(folder / name for name in _KERAS_HUB_WEIGHTS if (folder / name).is_file())
    if file.suffix == ".json":
        _check_shards(file)
    numbers = sum(math.prod(shape) for shape in variable_shapes(config).values())
    size = sum(part.stat().st_size for part in folder.glob("model*.weights.h5"))
    if size < numbers:  # before the model is made: not even one byte a number
        raise BertKerasError(
            f"{file} has {size:,} bytes and its config asks for {numbers:,} numbers: it is cut short."
        )
    backbone = _keras_hub_backbone(config)
    try:
        backbone.load_weights(file)
    except (ValueError, OSError, KeyError) as error:
        raise BertKerasError(f"{file} does not hold this config's weights: {_first_line(error)}") from error
    variables = {variable.path: variable for variable in backbone.weights}
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    shapes |= _keras_hub_heads(folder / _KERAS_HUB_HEADS)
    yield Source(shapes=shapes, get=lambda name: np.array(variables[name].numpy()))


def _check_shards(file: pathlib.Path) -> None:
    """Raises BertKerasError where a list of shards names what is no file of its folder: Keras would open it."""
    content = typed(read_object(file), {"weight_map": OBJECT}, where=file, others=True)
    names = content["weight_map"].values()
    typed({"weight_map": list(names)}, {"weight_map": list_of(_FILES)}, where=file)
    for name in {name for found in names for name in (found if isinstance(found, list) else [found])}:
        if pathlib.PurePath(name).name != name or not (file.parent / name).is_file():
            raise BertKerasError(f"{file} names the shard {short(name)}, which is no file of its folder.")


def _keras_hub_heads(file: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """The weights of a task's layers, by the file's name and theirs in it."""
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
    except OSError as error:
        raise BertKerasError(f"{file} is cut short or no HDF5 file: {_first_line(error)}") from error
    return found


def _keras_hub_tokenizer(folder: pathlib.Path) -> Vocabulary:
    path = folder / "assets" / "tokenizer" / "vocabulary.txt"
    settings = folder / "tokenizer.json"
    lower_case = None
    if settings.is_file():
        content = typed(
            read_object(settings), {"config": OBJECT}, where=settings, optional=("config",), others=True
        )
        known = {"lowercase": or_null(FLAG)}
        found = typed(content.get("config", {}), known, where=settings, optional=known, others=True)
        lower_case = found.get("lowercase")
    return Vocabulary(pieces=read_vocabulary(path) if path.is_file() else None, lower_case=lower_case)


def _save_keras_hub(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    backbone = _keras_hub_backbone(checkpoint.config)
    for variable in backbone.weights:
        if variable.path not in tensors:
            raise BertKerasError(
                f"the checkpoint has no {variable.path}, which a keras-hub preset must have."
            )
        variable.assign(tensors[variable.path])
    backbone.save_to_preset(str(folder))
    if checkpoint.vocabulary is not None:
        lower_case = lower_cases(checkpoint)
        tokenizer = keras_hub().models.BertTokenizer(
            vocabulary=list(checkpoint.vocabulary), lowercase=lower_case, strip_accents=lower_case
        )
        tokenizer.save_to_preset(str(folder))


# -----------------------------------------------------------------------------------------------------------
# The forms

# What google-research/bert computes and its config file cannot change. Unknown activations it refuses.
_ORIGINAL = {
    "norm_epsilon": 1e-12,
    "share_layers": False,
    "causal": False,
    "bilstm": False,
    "position_offset": 0,
    "embedding_width": "hidden_size",
}


def _slashed(**more: Any) -> Names:
    """BERT's table in a form that spells parts as Keras does."""
    parts = {part: f"/{part}" for part in ("kernel", "bias", "gamma", "beta")}
    return Names(model_type="bert", parts=parts, **more)


FORMATS = {
    form.name: form
    for form in (
        Format(
            name="hugging-face",
            names=_HUGGING_FACE,
            keeps={},
            files=f"{SAFETENSORS} or {TORCH} (or their .index.json)",
            find=_find_hugging_face,
            load_config=BertConfig.load,
            load_tokenizer=_hugging_face_tokenizer,
            open=_open_hugging_face,
            save=_save_hugging_face,
            model_type=_model_type_of_folder,
        ),
        Format(
            name="google",
            names=(_slashed(table=_GOOGLE, layouts=_OUTPUT_WEIGHTS, current=_current_google),),
            keeps=_ORIGINAL,
            files="one *.index of variable names",
            find=_find_google,
            load_config=_bert_config_json,
            load_tokenizer=_hugging_face_tokenizer,
            open=_open_tensorflow,
            save=_save_google,
        ),
        Format(
            name="keras-hub",
            names=(_slashed(table=_KERAS_HUB, layouts=_EINSUM, current=lambda name: name),),
            keeps=_ORIGINAL | {"activation": "gelu_tanh", "attention_dropout": "hidden_dropout"},
            files=" or ".join(_KERAS_HUB_WEIGHTS),
            find=_find_keras_hub,
            load_config=_keras_hub_config,
            load_tokenizer=_keras_hub_tokenizer,
            open=_open_keras_hub,
            save=_save_keras_hub,
        ),
        Format(
            name="model-garden",
            names=(
                _slashed(
                    table=_MODEL_GARDEN,
                    layouts=_EINSUM,
                    current=_current_model_garden,
                    duplicates={"masked_lm/embedding_table": "embeddings/word_embeddings"},
                ),
            ),
            keeps=_ORIGINAL,
            files="one *.index of an object graph",
            find=_find_model_garden,
            load_config=_bert_config_json,
            load_tokenizer=_hugging_face_tokenizer,
            open=_open_tensorflow,
            save=_save_model_garden,
        ),
    )
}
