"""The types of a checkpoint, and our variables: the name table of each format maps them to the file's names.

Our names are the variables' paths below the encoder or the head: `block_3/attention/query/kernel`, `masked_lm/dense/bias`.
"""

import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_keras.config import BERT, BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import shortened
from bert_keras.text.vocabulary import Vocabulary

# -----------------------------------------------------------------------------------------------------------
# Our variables. H hidden, E embedding, I intermediate, V vocabulary, P positions, T types; 0 stands for any size.


def _dense(name: str, fan_in: str, fan_out: str | int) -> dict[str, tuple]:
    return {f"{name}/kernel": (fan_in, fan_out), f"{name}/bias": (fan_out,)}


def _norm(name: str, width: str) -> dict[str, tuple]:
    return {f"{name}/gamma": (width,), f"{name}/beta": (width,)}


_TYPES = "embeddings/type_embeddings"  # only where there are types
_POSITIONS = "embeddings/position_embeddings"  # only where they are learned
_EMBEDDINGS = {
    "embeddings/word_embeddings": ("V", "E"),
    _POSITIONS: ("P", "E"),
    _TYPES: ("T", "E"),
    **_norm("embeddings/layer_norm", "E"),
}
_PROJECTION = _dense("embeddings/projection", "E", "H")  # only where E is not H
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
BILSTM = {  # only with `bilstm`
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
    """Name -> shape of every variable of the encoder, computed from the config alone."""
    if config.encoder != BERT:
        from bert_keras.model.encoders import encoder_class  # which imports Keras

        return encoder_class(config).shapes(config)
    blocks = 1 if config.share_layers else config.num_layers
    patterns = _EMBEDDINGS | (_PROJECTION if config.embedding_width != config.hidden_size else {})
    left_out = {_TYPES: config.has_types, _POSITIONS: config.positions == "learned"}
    left_out |= dict.fromkeys(_norm("embeddings/layer_norm", "E"), config.embedding_norm)
    patterns = {name: shape for name, shape in patterns.items() if left_out.get(name, True)}
    for i in range(blocks):
        patterns |= {name.format(i=i): shape for name, shape in _BLOCK.items()}
    above = (BILSTM if config.bilstm else {}) | ({} if config.plain_heads else _POOLER)
    return _sized(patterns | above, config)


def head_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every variable that a known head may have; 0 stands for any size."""
    left_out = "masked_lm/" if config.plain_heads else "-"  # the embeddings are this head
    return _sized({name: shape for name, shape in _HEADS.items() if not name.startswith(left_out)}, config)


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
# Rows: one variable here and in a file

# Layouts of the file's array, relative to ours. Einsum layers split the kernels of attention by heads.
SAME, TRANSPOSED = "same", "transposed"
HEADS_OUT, HEADS_IN, HEADS_BIAS = "heads out", "heads in", "heads bias"
EINSUM = {
    **{f"block_{{i}}/attention/{part}/kernel": HEADS_OUT for part in ("query", "key", "value")},
    **{f"block_{{i}}/attention/{part}/bias": HEADS_BIAS for part in ("query", "key", "value")},
    "block_{i}/attention/output/kernel": HEADS_IN,
}
LINEAR = {name: TRANSPOSED for name in (_PROJECTION | _BLOCK | _POOLER | _HEADS) if name.endswith("/kernel")}


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of a name, which may be bfloat16."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One variable: our name and the file's name, our shape, and the layout of the file's array."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    layout: str

    def their_shape(self, config: BertConfig) -> tuple[int, ...]:
        """The shape that the file must have; 0 stands for any size."""
        heads = (config.num_heads, config.hidden_size // config.num_heads)
        return {
            SAME: self.shape,
            TRANSPOSED: self.shape[::-1],
            HEADS_OUT: (self.shape[0], *heads),
            HEADS_IN: (*heads, self.shape[-1]),
            HEADS_BIAS: heads,
        }[self.layout]

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """The file's array in our layout, the values unchanged."""
        if self.layout in (SAME, TRANSPOSED):
            return array.T if self.layout == TRANSPOSED else array
        return array.reshape(self.shape)

    def to_theirs(self, array: np.ndarray, config: BertConfig) -> np.ndarray:
        """The inverse of `to_ours`, contiguous."""
        if self.layout in (SAME, TRANSPOSED):
            return np.ascontiguousarray(array.T if self.layout == TRANSPOSED else array)
        return np.ascontiguousarray(array).reshape(self.their_shape(config))


# -----------------------------------------------------------------------------------------------------------
# Checkpoints

# Hugging Face's class for a checkpoint, without the model's name: the class of our head decides if the tensors do not, else the
# first row whose heads the checkpoint has.
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
# Heads -> class, for every known class.
ARCHITECTURES = (
    *_BY_HEADS,
    *(({"classifier"}, architecture) for architecture in HEAD_ARCHITECTURES.values()),
)
KNOWN_ARCHITECTURES = frozenset(architecture for _, architecture in ARCHITECTURES)

# The values of problem_type, from which transformers chooses a loss, and a softmax, a sigmoid or neither.
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The weights, configuration and tokenizer of a model, independent of any Keras model.

    tensors: our name -> array in our layout, in the file's dtype
    vocabulary: of its tokenizer; empty where it has none
    format: the name of the format that it was read from, or ""
    path: the path that it was read from, or ""; errors name it
    architecture: Hugging Face's class without the model's name (ForTokenClassification), where known
    labels: the names of the classifier's logits, in order, where Hugging Face's id2label has names
    problem_type: Hugging Face's name for the classifier's type of labels, one of PROBLEM_TYPES, where the file has it
    score_function: the function of the classifier's only output, where the file names it: "sigmoid", "identity" for the logit
    unknown: names in the file that no row of the table has
    fresh: what has random weights that no file holds, in words, such as the rows of new tokens
    origin: of a model found by name: its address, revision and license (see `downloads.LocalModel.origin`); of a path: its last
        name, since cards with it go to others
    """

    config: BertConfig
    tensors: dict[str, np.ndarray]
    vocabulary: Vocabulary = Vocabulary()
    format: str = ""
    path: str = ""
    architecture: str | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
    score_function: str | None = None
    unknown: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    origin: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """The start of an error about it: its path."""
        return f"{self.path}: " if self.path else ""

    @property
    def parts(self) -> set[str]:
        """The parts that have weights and a name in the formats: block_0, pooler, masked_lm."""
        return {name.split("/")[0] for name in self.tensors if name not in self.own}

    @functools.cached_property
    def own(self) -> frozenset[str]:
        """The names of the weights that no format has a name for: those of a user's own heads or variant of the encoder.

        A head is a user's own as a whole if one of its weights has another name or another shape than the known head's.
        """
        known, of_bert = head_shapes(self.config), self.config.encoder == BERT
        ours = variable_shapes(self.config) if of_bert else {}  # the formats have no names for an ancestor's
        found = {
            name
            for name, tensor in self.tensors.items()
            if name not in ours and not fits(tensor.shape, known.get(name))
        }
        heads = {name.split("/")[0] for name in found} & {*HEADS}
        return frozenset(found | {name for name in self.tensors if name.split("/")[0] in heads})


def numbered(name: str) -> str:
    """A file's name with {i} for each number that stands alone: encoder.layer.{i}.output."""
    return re.sub(r"(?<=[._/-])\d+(?=[./-])", "{i}", name)


def known_end(path: Sequence[str], known: frozenset[str], *, by: str = "/") -> str | None:
    """The longest end of a path that is a known name, as `numbered`; None if there is none."""
    ends = (by.join(path[start:]) for start in range(len(path)))
    return next((end for end in ends if numbered(end) in known), None)


def fits(shape: Sequence[int], wanted: Sequence[int] | None) -> bool:
    """True for the wanted shape, in which 0 stands for any size."""
    if wanted is None or len(shape) != len(wanted):
        return False
    return all(size in (0, found) for size, found in zip(wanted, shape, strict=True))


def choose_architecture(checkpoint: Checkpoint) -> str:
    """Hugging Face's class without the model's name."""
    if checkpoint.architecture is not None:
        return checkpoint.architecture
    parts = checkpoint.parts
    return next(architecture for heads, architecture in _BY_HEADS if heads <= parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenFile:
    """An open file: first the shapes, which are checked before any array is read.

    file: its name in errors; the folder of several files, the prefix of TensorFlow's
    names: the table of its names
    own: names of weights that have no row in the table, and are ours as they stand: see `Checkpoint.own`
    described: fields of the Checkpoint that it tells, beside its weights
    """

    file: pathlib.Path
    names: "Names"
    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], np.ndarray]
    own: tuple[str, ...] = ()
    described: dict[str, Any] = dataclasses.field(default_factory=dict)


def refuse_shards_outside(index: pathlib.Path, names: Iterable[str]) -> None:
    """Raises BertKerasError unless each file that an index of shards names is in its folder."""
    for name in names:
        if pathlib.PurePath(name).name != name or not (index.parent / name).is_file():
            raise BertKerasError(
                f"{index} names the shard {shortened(name)}, which is not a file in its folder."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """The reversible name table of one model_type.

    model_type: one of MODEL_TYPES
    model_class: the start of the names of Hugging Face's classes: DistilBert in DistilBertForMaskedLM
    table: our name (a variable, or a layer with several) -> the file's name
    parts: kernel, bias, gamma and beta -> the suffix of the file's name
    layouts: our variable -> layout, if the layout differs
    current: a file's spelling of a name -> the table's, or None for a name that is not a weight
    duplicates: second names in the file -> our variable; both tensors must be equal
    head_keeps: head -> config field -> the value that the format's own head always uses; other values have no rows
    keeps: config field -> the value that these classes always use, whatever the file says
    only: key of the file's configuration -> the values that these classes may have here
    classes: Hugging Face's classes, as in `Checkpoint.architecture`, that compute the same numbers
    needs_pooler: False if a checkpoint with a head may have a pooler, which the file has no place for
    fused: a layer in the file that holds several of the table's, side by side: the end of its name -> the ends of theirs
    no_bias: our layers whose bias the file lacks: it is 0
    bare: the class of a checkpoint without a head that has weights
    padding: for models that count positions from the padding id: tokens that may have that id, `position_offset` - 1
    """

    model_type: str
    table: dict[str, str]
    parts: dict[str, str]
    layouts: dict[str, str]
    current: Callable[[str], str | None]
    duplicates: dict[str, str] = dataclasses.field(default_factory=dict)
    head_keeps: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    keeps: dict[str, Any] = dataclasses.field(default_factory=dict)
    only: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    classes: frozenset[str] = frozenset()
    needs_pooler: bool = True
    model_class: str = "Bert"
    fused: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    no_bias: tuple[str, ...] = ()
    bare: str = "Model"
    padding: tuple[str, ...] = ()

    def rows(self, config: BertConfig) -> list[Row]:
        """The table for this config: one row for each variable that the format can hold."""
        found = []
        for ours, shape in (variable_shapes(config) | head_shapes(config)).items():
            kept = self.head_keeps.get(ours.split("/")[0], {})
            if any(getattr(config, field) != value for field, value in kept.items()):
                continue
            block = re.match(r"block_(\d+)/", ours)
            pattern = re.sub(r"^block_\d+/", "block_{i}/", ours)
            stem, _, part = pattern.rpartition("/")
            theirs = self.table.get(pattern)
            if theirs is None and stem in self.table:
                theirs = self.table[stem] + self.parts[part]
            if theirs is not None:
                theirs = theirs.replace("{i}", block[1] if block else "")
                layout = self.layouts.get(pattern, SAME)
                found.append(Row(ours=ours, theirs=theirs, shape=shape, layout=layout))
        return found

    def readable_rows(self, config: BertConfig) -> dict[str, Row]:
        """The file's name -> row, duplicates included."""
        rows = {row.theirs: row for row in self.rows(config)}
        ours = {row.ours: row for row in rows.values()}
        return rows | {
            theirs: dataclasses.replace(ours[name], theirs=theirs, layout=SAME)
            for theirs, name in self.duplicates.items()
            if name in ours
        }

    def holds(self, checkpoint: Checkpoint) -> bool:
        """True if a model of this model_type computes the same numbers from all weights that matter."""
        config, tokens = checkpoint.config, checkpoint.vocabulary.tokens
        rows, architecture = {row.ours for row in self.rows(config)}, choose_architecture(checkpoint)
        lacking = {name.split("/")[0] for name in checkpoint.tensors if name not in (rows | checkpoint.own)}
        if self.padding and tokens:
            at_padding = tokens[max(0, config.position_offset - 1) : config.position_offset]
            if not set(at_padding) & set(self.padding):  # none if the id is past the vocabulary
                return False
        if any(getattr(config, field) != value for field, value in self.keeps.items()):
            return False
        if any(np.any(checkpoint.tensors.get(f"{layer}/bias", 0)) for layer in self.no_bias):
            return False
        may_lack = set() if self.needs_pooler or architecture == "Model" else {"pooler"}
        return (
            self.model_type in config.model_types() and architecture in self.classes and lacking <= may_lack
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One published checkpoint format.

    names: the tables of each model_type, which may have several for different classes; a checkpoint is written by the first that
        holds it, else by the last
    keeps: config field -> the value, or the other field, that the format's own library always uses
    files: the files that `find` looks for, in words
    find: a path -> its folder or, for TensorFlow, its prefix; None if there is no checkpoint
    has_labels: True if the format has a place for the names of labels
    has_own: True if the format has a place for weights that no table has: see `Checkpoint.own`
    load_config, load_tokenizer, open: read the files
    save: writes a folder: (checkpoint, the file's name -> array, folder); None for a format that is only read
    """

    name: str
    names: tuple[Names, ...]
    keeps: dict[str, Any]
    files: str
    find: Callable[[pathlib.Path], pathlib.Path | None]
    load_config: Callable[[pathlib.Path], BertConfig]
    load_tokenizer: Callable[[pathlib.Path], Vocabulary]
    open: Callable[[pathlib.Path, BertConfig], contextlib.AbstractContextManager[OpenFile]]
    save: Callable[[Checkpoint, dict[str, np.ndarray], pathlib.Path], None] | None = None
    has_labels: bool = False
    has_own: bool = False

    def names_for(self, checkpoint: Checkpoint) -> Names:
        """The table for writing a checkpoint."""
        return next((names for names in self.names if names.holds(checkpoint)), self.names[-1])


# The values that google-research/bert always uses: its config file cannot change them. It refuses unknown activations.
ORIGINAL = {
    "norm_epsilon": 1e-12,
    "share_layers": False,
    "causal": False,
    "bilstm": False,
    "position_offset": 0,
    "pooler_activation": "tanh",
    "has_types": True,
    "embedding_width": "hidden_size",
    "positions": "learned",
    "embedding_norm": True,
    "plain_heads": False,
    "scale_embeddings": False,
    "encoder": BERT,
}


def slashed(**more: Any) -> Names:
    """BERT's table for a format with Keras' names of parts."""
    parts = {part: f"/{part}" for part in ("kernel", "bias", "gamma", "beta")}
    return Names(model_type="bert", parts=parts, **more)
