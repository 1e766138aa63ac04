"""BertConfig: the numbers that make one encoder, and the two published file forms it is read from and written to.

In: Google's `bert_config.json` or Hugging Face's `config.json` (of a BERT, ALBERT, ELECTRA or RoBERTa). Out: a frozen, strict
`BertConfig`, and both forms back. The reader of a form decides what a name means: `gelu` is the tanh form in a Google file,
the erf form in a Hugging Face one.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.json_files import is_finite, is_whole, or_null, read_object, short, whole
from bert_keras.paths import path_of

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu", "tanh", "linear")

# The largest value of each size. None of a published model comes near; beyond, memory would be asked for that no file backs.
LIMITS = {
    "vocab_size": 4_194_304,  # of the tokenizer's kernel, too
    "hidden_size": 65_536,
    "num_layers": 1_000,
    "num_heads": 65_536,
    "intermediate_size": 1_048_576,
    "max_positions": 1_048_576,
    "type_vocab_size": 1_024,
    "embedding_size": 65_536,
}
SMALLEST = 1e-30  # of initializer_range and norm_epsilon: float32 holds it
LARGEST = 1e3

# The published grid of Turc et al. 2019 (L x H), plus large. A = H / 64 and I = 4 H throughout.
_GRID = {
    f"L-{layers}_H-{hidden}": (layers, hidden)
    for layers in range(2, 13, 2)
    for hidden in (128, 256, 512, 768)
}
SIZES = _GRID | {
    "tiny": _GRID["L-2_H-128"],
    "mini": _GRID["L-4_H-256"],
    "small": _GRID["L-4_H-512"],
    "medium": _GRID["L-8_H-512"],
    "base": _GRID["L-12_H-768"],
    "large": (24, 1024),
}


def _shape(num_layers: int, hidden_size: int) -> dict[str, int]:
    return {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": hidden_size // 64,
        "intermediate_size": 4 * hidden_size,
    }


_NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.1}
# Version 2 of google-research/albert; google-research/electra, whose gelu is the erf form; fairseq's RoBERTa.
_ALBERT = {"vocab_size": 30000, "embedding_size": 128, "share_layers": True, **_NO_DROPOUT}
_ELECTRA = {"vocab_size": 30522, "activation": "gelu_erf"}
_ROBERTA = {
    "vocab_size": 50265,
    "max_positions": 514,
    "position_offset": 2,
    "type_vocab_size": 1,
    "norm_epsilon": 1e-5,
    "activation": "gelu_erf",
}
# The published descendants, as the fields in which they differ from BERT base; an ELECTRA's are its discriminator's.
VARIANTS: dict[str, dict[str, Any]] = {
    "albert-base": _ALBERT | _shape(*SIZES["base"]),
    "albert-large": _ALBERT | _shape(*SIZES["large"]),
    "albert-xlarge": _ALBERT | _shape(24, 2048) | {"num_heads": 16},
    "albert-xxlarge": _ALBERT | _shape(12, 4096),
    "electra-small": _ELECTRA | _shape(12, 256) | {"embedding_size": 128},
    "electra-base": _ELECTRA | _shape(*SIZES["base"]),
    "electra-large": _ELECTRA | _shape(*SIZES["large"]),
    "roberta-base": _ROBERTA | _shape(*SIZES["base"]),
    "roberta-large": _ROBERTA | _shape(*SIZES["large"]),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Every number that defines an encoder (defaults: BERT base, Devlin et al. 2019, sec. 3).

    Raises ValueError on a value that no encoder can be built from, naming the field, what was given and what is wanted.
    """

    vocab_size: int
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_positions: int = 512
    type_vocab_size: int = 2
    embedding_size: int | None = None  # ALBERT: factorised embeddings of this width; None means hidden_size
    share_layers: bool = False  # ALBERT: one block's weights for every layer
    causal: bool = False  # a position sees itself and what is left of it; pooled at the last real position
    activation: str = "gelu_tanh"  # google-research/bert modeling.py `gelu`
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float | None = None  # before a task's dense layer; None means hidden_dropout
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    norm_epsilon: float = 1e-12  # tf.contrib.layers.layer_norm's, which trained the released weights
    position_offset: int = 0  # RoBERTa: 2
    bilstm: bool = False  # a BiLSTM of H / 2 units per direction on the last block (Devlin et al. 2019, sec. 5.1, table 5)

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            kind = or_null(whole(1, most)) if name == "embedding_size" else whole(1, most)
            _want(self, name, kind.wanted, kind.accepts)
        _want(self, "position_offset", "a whole number of at least 0", lambda v: is_whole(v) and v >= 0)
        for name in ("share_layers", "causal", "bilstm"):
            _want(self, name, "true or false", lambda v: isinstance(v, bool))
        for name in ("hidden_dropout", "attention_dropout"):
            _want(self, name, "a rate in [0, 1)", _is_rate)
        _want(self, "classifier_dropout", "a rate in [0, 1), or None", lambda v: v is None or _is_rate(v))
        for name in ("initializer_range", "norm_epsilon"):
            _want(
                self,
                name,
                f"a number over 0, from {SMALLEST:g} to {LARGEST:g}",
                lambda v: is_finite(v) and SMALLEST <= v <= LARGEST,
            )
        _want(
            self,
            "activation",
            f"one of {', '.join(ACTIVATIONS)}",
            lambda v: isinstance(v, str) and v in ACTIVATIONS,
        )
        if self.hidden_size % self.num_heads:
            raise BertKerasError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; change one of the two."
            )
        if self.bilstm and self.hidden_size % 2:
            raise BertKerasError(
                f"hidden_size {self.hidden_size} has no half for each direction of bilstm; make it even."
            )
        if self.position_offset >= self.max_positions:
            raise BertKerasError(
                f"position_offset {short(self.position_offset)} leaves no position of max_positions {self.max_positions}."
            )

    @property
    def embedding_width(self) -> int:
        """E, the width of the embedding table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens: the positions less the offset."""
        return self.max_positions - self.position_offset

    @property
    def head_dropout(self) -> float:
        """The rate in front of a task's dense layer."""
        return self.hidden_dropout if self.classifier_dropout is None else self.classifier_dropout

    @classmethod
    def named(cls, size: str, **changes: Any) -> "BertConfig":
        """One of SIZES, uncased English vocabulary unless `vocab_size` is among the changes, or one of VARIANTS."""
        if size not in SIZES and size not in VARIANTS:
            raise BertKerasError(f"no size named {size!r}; the sizes are {', '.join([*SIZES, *VARIANTS])}.")
        fields = VARIANTS[size] if size in VARIANTS else {"vocab_size": 30522, **_shape(*SIZES[size])}
        return cls(**(fields | changes))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From `to_dict`'s keys; an unknown key is a ValueError."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise BertKerasError(
                f"unknown configuration field {', '.join(unknown)}; the fields are {', '.join(sorted(known))}."
            )
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Every field under its own name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_google(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From the contents of a `bert_config.json` (google-research/bert modeling.py BertConfig)."""
        return _read(fields, _GOOGLE)

    def to_google(self) -> dict[str, Any]:
        """The contents of a `bert_config.json`."""
        return _write(self, _GOOGLE)

    @classmethod
    def from_hugging_face(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From the contents of a Hugging Face `config.json`; `model_type` is one of MODEL_TYPES, `bert` where it is absent.

        Raises ValueError where the model of that type would compute another thing than an encoder here.
        """
        model_type = fields.get("model_type", "bert")
        if model_type not in MODEL_TYPES:
            raise BertKerasError(
                f"model_type is {short(model_type)} in a config.json (Hugging Face), which changes the numbers and is not "
                f"supported; wanted {' or '.join(repr(known) for known in MODEL_TYPES)}."
            )
        return _read(fields, _HUGGING_FACE[model_type])

    def to_hugging_face(self, model_type: str | None = None) -> dict[str, Any]:
        """The contents of a Hugging Face `config.json`.

        model_type: one of `model_types()`; None takes the first. `bert_keras`, the last, is no model of transformers.

        Raises ValueError where the model of that type would compute another thing.
        """
        able = self.model_types()
        model_type = able[0] if model_type is None else model_type
        if model_type not in able:
            raise BertKerasError(
                f"no {model_type} computes what this configuration says; {', '.join(able)} can."
            )
        fields = _write(self, _HUGGING_FACE[model_type])
        return {"model_type": model_type, **fields, "position_embedding_type": "absolute"}

    def model_types(self) -> tuple[str, ...]:
        """The MODEL_TYPES that compute what this configuration says."""
        return tuple(name for name, form in _HUGGING_FACE.items() if form.says(self))

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "BertConfig":
        """From a file or from a folder that holds one: `bert_config.json` is Google's form, any other name Hugging Face's.

        Raises FileNotFoundError where there is none and ValueError where it is not such a file.
        """
        path = path_of(path)
        if path.is_dir():
            found = [path / name for name in ("config.json", "bert_config.json") if (path / name).is_file()]
            if not found:
                raise MissingFileError(
                    f"no config.json (Hugging Face) or bert_config.json (Google) in {path}."
                )
            path = found[0]
        if not path.is_file():
            raise MissingFileError(f"no configuration file at {path}.")
        fields = read_object(path)
        try:
            return (
                cls.from_google(fields) if path.name == "bert_config.json" else cls.from_hugging_face(fields)
            )
        except ValueError as error:
            raise BertKerasError(f"{path}: {error}") from error


def _some(names: Iterable[str]) -> str:
    """The first names of many, for an error of one line."""
    return ", ".join(sorted(names))[:2000]


def _is_rate(value: Any) -> bool:
    return is_finite(value) and 0 <= value < 1


def _want(config: BertConfig, name: str, wanted: str, accepts: Callable[[Any], bool]) -> None:
    value = getattr(config, name)
    if not accepts(value):
        raise BertKerasError(f"{name} is {short(value)}; {name} must be {wanted}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Form:
    """One published file form: how its keys and words map to ours."""

    name: str
    keys: dict[str, str]  # theirs -> ours
    optional: frozenset[str]  # theirs, written only where the value is not our default
    required: tuple[str, ...]  # theirs
    defaults: dict[str, Any]  # theirs -> what an absent key means there, where that is not our default
    activations: dict[str, str]  # theirs -> ours; the first spelling of each is written
    fixed: dict[str, tuple[Any, ...]]  # theirs -> the values that change nothing; any other is an error
    metadata: frozenset[str]  # theirs, known to change no number
    written_as: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # theirs -> what a None of ours comes to
    shifts: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # theirs -> what is added to make it ours
    means: dict[str, Any] = dataclasses.field(
        default_factory=dict
    )  # ours -> what a file of this form always means
    projects: bool = (
        False  # embeddings as wide as the hidden states are projected too; an encoder here does not
    )

    def says(self, config: BertConfig) -> bool:
        """Whether a file of this form can say the configuration."""
        ours, factorised = config.to_dict(), config.embedding_width != config.hidden_size
        if not factorised:
            ours["embedding_size"] = None
        unsaid = {field.name: field.default for field in dataclasses.fields(BertConfig)} | self.means
        return (
            (factorised or not self.projects)
            and all(ours[self.keys[key]] >= shift for key, shift in self.shifts.items())
            and all(ours[name] == unsaid[name] for name in set(ours) - set(self.keys.values()))
        )


_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "type_vocab_size",
    "hidden_act": "activation",
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "norm_epsilon",
}
_CLASSIFIER_DROPOUT = {"classifier_dropout": "classifier_dropout"}
# Keys that only we write, where they are not the default.
_OURS = {name: name for name in ("embedding_size", "share_layers", "causal", "position_offset", "bilstm")}

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

_FIXED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}

_METADATA = frozenset(
    """
    transformers_version architectures directionality finetuning_task problem_type num_labels id2label label2id
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    _name_or_path name_or_path _attn_implementation attn_implementation _attn_implementation_autoset
    torch_dtype dtype torchscript use_bfloat16 use_cache gradient_checkpointing chunk_size_feed_forward
    output_attentions output_hidden_states output_past return_dict
    pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id tokenizer_class prefix task_specific_params language auto_map sentence_transformers
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate remove_invalid_values suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty cross_attention_hidden_size tie_encoder_decoder
    tf_legacy_loss use_return_dict model_name backward tie_word_embeddings
    summary_type summary_use_proj summary_activation summary_last_dropout
    net_structure_type gap_size num_memory_blocks down_scale_factor
    """.split()
)

_GOOGLE = _Form(
    name="bert_config.json (Google)",
    keys=_KEYS | _CLASSIFIER_DROPOUT | _OURS,
    optional=frozenset(_OURS) | {"classifier_dropout", "layer_norm_eps"},
    required=_REQUIRED,
    defaults={"type_vocab_size": 16},  # modeling.py's own default; the released files all say 2
    # "gelu_erf" is ours: google-research/bert refuses it, which is better than running another function.
    activations={
        "gelu": "gelu_tanh",
        "relu": "relu",
        "tanh": "tanh",
        "linear": "linear",
        "gelu_erf": "gelu_erf",
        "silu": "silu",
    },
    fixed=_FIXED | {"model_type": ("bert",)},
    metadata=_METADATA,
)

_BERT = _Form(
    name="config.json (Hugging Face)",
    keys=_KEYS | _CLASSIFIER_DROPOUT,
    optional=frozenset(_CLASSIFIER_DROPOUT),
    required=_REQUIRED,
    defaults={"hidden_act": "gelu"},
    activations={
        "gelu": "gelu_erf",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_python": "gelu_erf",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
        "tanh": "tanh",
        "linear": "linear",
    },
    fixed=_FIXED,
    metadata=_METADATA | {"model_type"},
)
_EMBEDDING_SIZE = {"embedding_size": "embedding_size"}
# By model_type; the first that can say a configuration is written. The last is ours, and can say every one.
_HUGGING_FACE = {
    "bert": _BERT,
    "albert": dataclasses.replace(
        _BERT,
        keys=_KEYS | _EMBEDDING_SIZE | {"classifier_dropout_prob": "classifier_dropout"},
        optional=frozenset(),
        defaults={
            "embedding_size": 128,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "classifier_dropout_prob": 0.1,
        },
        fixed=_FIXED | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
        written_as={"classifier_dropout_prob": "head_dropout"},
        means={"share_layers": True},
        projects=True,
    ),
    "electra": dataclasses.replace(
        _BERT,
        keys=_BERT.keys | _EMBEDDING_SIZE,
        defaults={"embedding_size": 128, "hidden_act": "gelu"},
        written_as={"embedding_size": "embedding_width"},
    ),
    "roberta": dataclasses.replace(
        _BERT,
        # Its positions count from the one after padding's id.
        keys=_BERT.keys | {"pad_token_id": "position_offset"},
        defaults={"pad_token_id": 1, "hidden_act": "gelu"},
        shifts={"pad_token_id": 1},
    ),
    "bert_keras": dataclasses.replace(
        _BERT, keys=_BERT.keys | _OURS, optional=_BERT.optional | frozenset(_OURS)
    ),
}
MODEL_TYPES = tuple(_HUGGING_FACE)


def _read(fields: Mapping[str, Any], form: _Form) -> BertConfig:
    if missing := [key for key in form.required if key not in fields]:
        raise BertKerasError(
            f"{', '.join(missing)} missing from a {form.name}; its keys are {_some(fields) or 'none'}."
        )
    for key, allowed in form.fixed.items():
        if key in fields and fields[key] not in allowed:
            raise BertKerasError(
                f"{key} is {short(fields[key])} in a {form.name}, which changes the numbers and is not supported; "
                f"wanted {' or '.join(repr(value) for value in allowed)}."
            )
    known = set(form.keys) | set(form.fixed) | form.metadata
    if unknown := sorted(set(fields) - known):
        warnings.warn(f"ignoring unknown key {_some(unknown)} in a {form.name}", stacklevel=3)
    ours = {
        form.keys[key]: value for key, value in (form.defaults | dict(fields)).items() if key in form.keys
    } | form.means
    for key, shift in form.shifts.items():
        name = form.keys[key]
        ours[name] = ours[name] + shift if is_whole(ours[name]) else ours[name]
    activation = ours.get("activation", "gelu")
    if not isinstance(activation, str) or activation not in form.activations:
        raise BertKerasError(
            f"hidden_act is {short(activation)} in a {form.name}; wanted one of {', '.join(form.activations)}."
        )
    ours["activation"] = form.activations[activation]
    if form.projects and ours["embedding_size"] == ours["hidden_size"]:
        raise BertKerasError(
            f"embedding_size is hidden_size, {ours['hidden_size']}, in a {form.name} of this model_type, which projects "
            "embeddings of any width; that is not supported: wanted another width."
        )
    if ours.get("embedding_size") == ours["hidden_size"]:
        ours["embedding_size"] = None
    try:
        return BertConfig(**ours)
    except ValueError as error:
        # The error opens with our name.
        theirs = {name: f"{key} in a {form.name}: " for key, name in form.keys.items() if key != name}
        raise BertKerasError(f"{theirs.get(str(error).split()[0], '')}{error}") from error


def _write(config: BertConfig, form: _Form) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(BertConfig)}
    written = {}
    for key, name in form.keys.items():
        if key not in form.optional or getattr(config, name) != defaults[name]:
            written[key] = getattr(config, form.written_as.get(key, name))
    for key, shift in form.shifts.items():
        written[key] -= shift
    written["hidden_act"] = next(
        theirs for theirs, ours in form.activations.items() if ours == config.activation
    )
    return written
