"""BertConfig: the numbers that make one encoder, and the two published file forms it is read from and written to.

In: Google's `bert_config.json` or Hugging Face's `config.json`. Out: a frozen, strict `BertConfig`, and both forms back.
The reader of a form decides what a name means: `gelu` is the tanh form in a Google file, the erf form in a Hugging Face one.
"""

import dataclasses
import json
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu", "tanh", "linear")

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

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "max_positions",
        ):
            _want(self, name, "a whole number of at least 1", lambda v: _is_int(v) and v >= 1)
        _want(self, "type_vocab_size", "a whole number of at least 1", lambda v: _is_int(v) and v >= 1)
        _want(
            self,
            "embedding_size",
            "a whole number of at least 1, or None",
            lambda v: v is None or (_is_int(v) and v >= 1),
        )
        _want(self, "position_offset", "a whole number of at least 0", lambda v: _is_int(v) and v >= 0)
        for name in ("share_layers", "causal"):
            _want(self, name, "true or false", lambda v: isinstance(v, bool))
        for name in ("hidden_dropout", "attention_dropout"):
            _want(self, name, "a rate in [0, 1)", _is_rate)
        _want(self, "classifier_dropout", "a rate in [0, 1), or None", lambda v: v is None or _is_rate(v))
        for name in ("initializer_range", "norm_epsilon"):
            _want(self, name, "a number over 0", lambda v: _is_number(v) and v > 0)
        _want(self, "activation", f"one of {', '.join(ACTIVATIONS)}", lambda v: v in ACTIVATIONS)
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; change one of the two."
            )
        if self.position_offset >= self.max_positions:
            raise ValueError(
                f"position_offset {self.position_offset} leaves no position of max_positions {self.max_positions}."
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
        """One of SIZES, uncased English vocabulary unless `vocab_size` is among the changes."""
        if size not in SIZES:
            raise ValueError(f"no size named {size!r}; the sizes are {', '.join(SIZES)}.")
        num_layers, hidden_size = SIZES[size]
        fields = {
            "vocab_size": 30522,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "num_heads": hidden_size // 64,
            "intermediate_size": 4 * hidden_size,
        }
        return cls(**(fields | changes))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From `to_dict`'s keys; an unknown key is a ValueError."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(
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
        """From the contents of a Hugging Face `config.json` whose `model_type` is `bert`."""
        return _read(fields, _HUGGING_FACE)

    def to_hugging_face(self) -> dict[str, Any]:
        """The contents of a Hugging Face `config.json`; `model_type` is ours where their BERT would compute another thing."""
        fields = _write(self, _HUGGING_FACE)
        model_type = "bert_keras" if _OURS & set(fields) else "bert"
        return {"model_type": model_type, **fields, "position_embedding_type": "absolute"}

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "BertConfig":
        """From a file or from a folder that holds one: `bert_config.json` is Google's form, any other name Hugging Face's.

        Raises FileNotFoundError where there is none and ValueError where it is not such a file.
        """
        path = pathlib.Path(path)
        if path.is_dir():
            found = [path / name for name in ("config.json", "bert_config.json") if (path / name).is_file()]
            if not found:
                raise FileNotFoundError(
                    f"no config.json (Hugging Face) or bert_config.json (Google) in {path}."
                )
            path = found[0]
        if not path.is_file():
            raise FileNotFoundError(f"no configuration file at {path}.")
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not a JSON file in UTF-8: {error}.") from error
        if not isinstance(fields, dict):
            raise ValueError(
                f"{path} holds a JSON {type(fields).__name__}; a configuration is an object of named fields."
            )
        try:
            return (
                cls.from_google(fields) if path.name == "bert_config.json" else cls.from_hugging_face(fields)
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_rate(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _want(config: BertConfig, name: str, wanted: str, accepts: Callable[[Any], bool]) -> None:
    value = getattr(config, name)
    if not accepts(value):
        raise ValueError(f"{name} is {value!r}; {name} must be {wanted}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Form:
    """One published file form: how its keys and words map to ours."""

    name: str
    keys: dict[str, str]  # theirs -> ours
    required: tuple[str, ...]  # theirs
    defaults: dict[str, Any]  # theirs -> what an absent key means there, where that is not our default
    activations: dict[str, str]  # theirs -> ours; the first spelling of each is written
    fixed: dict[str, tuple[Any, ...]]  # theirs -> the values that change nothing; any other is an error
    metadata: frozenset[str]  # theirs, known to change no number


_SHARED_KEYS = {
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
    "classifier_dropout": "classifier_dropout",
    # Ours alone (_OURS), written only where they are not the default.
    "embedding_size": "embedding_size",
    "share_layers": "share_layers",
    "causal": "causal",
    "position_offset": "position_offset",
}
_OURS = {"embedding_size", "share_layers", "causal", "position_offset"}
# Written always, in this order; the rest only where they differ from the default.
_ALWAYS = tuple(_SHARED_KEYS)[:11]

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")

_FIXED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "model_type": ("bert",),
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
    tf_legacy_loss use_return_dict model_name backward
    """.split()
)

_GOOGLE = _Form(
    name="bert_config.json (Google)",
    keys=_SHARED_KEYS,
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
    fixed=_FIXED,
    metadata=_METADATA,
)

_HUGGING_FACE = _Form(
    name="config.json (Hugging Face)",
    keys=_SHARED_KEYS,
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
    fixed=_FIXED | {"model_type": ("bert", "bert_keras")},
    metadata=_METADATA,
)


def _read(fields: Mapping[str, Any], form: _Form) -> BertConfig:
    if missing := [key for key in form.required if key not in fields]:
        raise ValueError(
            f"{', '.join(missing)} missing from a {form.name}; its keys are {', '.join(sorted(fields)) or 'none'}."
        )
    for key, allowed in form.fixed.items():
        if key in fields and fields[key] not in allowed:
            raise ValueError(
                f"{key} is {fields[key]!r} in a {form.name}, which changes the numbers and is not supported; "
                f"wanted {' or '.join(repr(value) for value in allowed)}."
            )
    known = set(form.keys) | set(form.fixed) | form.metadata
    if unknown := sorted(set(fields) - known):
        warnings.warn(f"ignoring unknown key {', '.join(unknown)} in a {form.name}", stacklevel=3)
    ours = {
        form.keys[key]: value for key, value in (form.defaults | dict(fields)).items() if key in form.keys
    }
    activation = ours.get("activation", "gelu")
    if activation not in form.activations:
        raise ValueError(
            f"hidden_act is {activation!r} in a {form.name}; wanted one of {', '.join(form.activations)}."
        )
    ours["activation"] = form.activations[activation]
    return BertConfig(**ours)


def _write(config: BertConfig, form: _Form) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(BertConfig)}
    written = {}
    for key, name in form.keys.items():
        value = getattr(config, name)
        if key in _ALWAYS or value != defaults[name]:
            written[key] = value
    written["hidden_act"] = next(
        theirs for theirs, ours in form.activations.items() if ours == config.activation
    )
    if form is not _HUGGING_FACE:
        return written
    return written | {"layer_norm_eps": config.norm_epsilon}
