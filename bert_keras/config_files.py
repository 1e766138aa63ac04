"""Google's `bert_config.json` and Hugging Face's `config.json` (BERT and its variants): their keys, values and defaults.

In: the contents of such a file. Out: the fields of a BertConfig; and back. The form decides the meaning of a value: `gelu` is the
tanh gelu in a Google file, the erf gelu in a Hugging Face file.
"""

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import is_integer, shortened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """One published form of a configuration file: its keys and values, mapped to ours."""

    name: str
    keys: dict[str, str]  # key -> our field
    optional: frozenset[str]  # keys that are written only if the value is not our default
    required: tuple[str, ...]  # keys
    defaults: dict[str, Any]  # key -> the value that an absent key means, if it is not our default
    activations: dict[str, str]  # hidden_act -> our activation; the first spelling of each is written
    fixed: dict[str, tuple[Any, ...]]  # key -> the values that change nothing; any other value is an error
    metadata: frozenset[str]  # keys that change no number
    # key -> our property that is written for a field that may be None
    written_as: dict[str, str] = dataclasses.field(default_factory=dict)
    # key -> the least value that its models can compute with
    least: dict[str, int] = dataclasses.field(default_factory=dict)
    # key -> the number to add to its value to get ours
    shifts: dict[str, int] = dataclasses.field(default_factory=dict)
    # our field -> the value that every file of this form implies
    means: dict[str, Any] = dataclasses.field(default_factory=dict)
    # our field -> another field and the factor by which every model of this form is larger
    multiples: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    # True if the form also projects embeddings as wide as the hidden states; our encoder does not
    projects: bool = False

    def says(self, ours: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
        """True if a file of this form can hold the configuration.

        ours: every field of a configuration; defaults: their default values
        """
        factorised = ours["embedding_size"] not in (None, ours["hidden_size"])
        ours = dict(ours) if factorised else {**ours, "embedding_size": None}
        unsaid = {**defaults, **self.means, **self._multiplied(ours)}
        return (
            (factorised or not self.projects)
            and all(ours[self.keys[key]] >= least for key, least in (self.shifts | self.least).items())
            and all(ours[name] == unsaid[name] for name in set(ours) - set(self.keys.values()))
        )

    def _multiplied(self, ours: Mapping[str, Any]) -> dict[str, int]:
        return {name: ours[other] * factor for name, (other, factor) in self.multiples.items()}

    def read(self, fields: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        """The contents of a file -> our fields.

        strict: True makes an unknown key an error; else one warning names all

        Raises BertKerasError for a missing key, and for a value that changes the numbers and is not supported.
        """
        if missing := [key for key in self.required if key not in fields]:
            raise BertKerasError(
                f"{', '.join(missing)} missing from a {self.name}; its keys are {_some(fields) or 'none'}."
            )
        for key, allowed in self.fixed.items():
            if key in fields and fields[key] not in allowed:
                raise BertKerasError(
                    f"{key} is {shortened(fields[key])} in a {self.name}, which changes the numbers and is not supported; "
                    f"wanted {' or '.join(repr(value) for value in allowed)}."
                )
        known = set(self.keys) | set(self.fixed) | self.metadata
        unknown = _some(set(fields) - known)
        if unknown and strict:
            raise BertKerasError(
                f"unknown key {unknown} in a {self.name} that this package wrote; read it with the version that wrote it."
            )
        if unknown:
            warnings.warn(f"ignoring unknown key {unknown} in a {self.name}", stacklevel=5)
        ours: dict[str, Any] = {}
        for key, value in (self.defaults | dict(fields)).items():
            first = ours.setdefault(self.keys[key], value) if key in self.keys else value
            if first is not value and first != value:  # NaN is not itself
                twins = [one for one, name in self.keys.items() if name == self.keys[key]]
                raise BertKerasError(
                    f"{' and '.join(twins)} differ in a {self.name}; a model here has one {self.keys[key]}: give both one value."
                )
        ours |= self.means
        for key, shift in self.shifts.items():
            name = self.keys[key]
            ours[name] = ours[name] + shift if is_integer(ours[name]) else ours[name]
        for key, name in self._activation_keys.items():
            activation = ours.get(name, "gelu")
            if not isinstance(activation, str) or activation not in self.activations:
                raise BertKerasError(
                    f"{key} is {shortened(activation)} in a {self.name}; "
                    f"wanted one of {', '.join(self.activations)}."
                )
            ours[name] = self.activations[activation]
        for key, least in self.least.items():
            if is_integer(value := fields.get(key, least)) and value < least:
                raise BertKerasError(
                    f"{key} is {shortened(value)} in a {self.name}; wanted at least {least}."
                )
        if ours.get("embedding_size") == ours["hidden_size"]:
            if self.projects:
                raise BertKerasError(
                    f"embedding_size equals hidden_size, {ours['hidden_size']}, in a {self.name}; this model_type also projects "
                    "embeddings of that width, which is not supported: wanted another embedding_size."
                )
            ours["embedding_size"] = None
        if all(is_integer(ours[other]) for other, _ in self.multiples.values()):
            ours |= self._multiplied(ours)
        return ours

    @property
    def _activation_keys(self) -> dict[str, str]:
        """The keys whose values are the form's own words for activations -> our fields."""
        return {
            key: name
            for key, name in self.keys.items()
            if name == "activation" or (name == "pooler_activation" and key != name)
        }

    def write(self, ours: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Our fields, with embedding_width and head_dropout -> the contents of a file."""
        written = {}
        for key, name in self.keys.items():
            if key not in self.optional or ours[name] != defaults[name]:
                written[key] = ours[self.written_as.get(key, name)]
        for key, shift in self.shifts.items():
            written[key] -= shift
        words = {name: theirs for theirs, name in reversed(self.activations.items())}  # the first of each
        return written | {key: words[ours[name]] for key, name in self._activation_keys.items()}


def _some(names: Iterable[str]) -> str:
    """Names for an error of one line, cut to 2000 characters."""
    return ", ".join(sorted(names))[:2000]


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
# Keys that only this package writes, if the value is not the default.
_OURS = {
    name: name
    for name in (
        "embedding_size",
        "share_layers",
        "causal",
        "position_offset",
        "bilstm",
        "pooler_activation",
        "positions",
        "embedding_norm",
        "plain_heads",
        "scale_embeddings",
        "encoder",
        "encoder_settings",
        "max_characters",
    )
}
_TYPES = {"type_vocab_size": 1}  # their models look a type up for every token
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_FIXED = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
_METADATA = frozenset(
    """
    transformers_version architectures own_weights directionality finetuning_task problem_type num_labels id2label label2id
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
    summary_type summary_use_proj summary_proj_to_labels summary_activation summary_first_dropout summary_last_dropout
    function_to_apply sbert_ce_default_activation_function
    net_structure_type gap_size num_memory_blocks down_scale_factor
    """.split()
)
GOOGLE = Form(
    name="bert_config.json (Google)",
    keys=_KEYS | _CLASSIFIER_DROPOUT | _OURS,
    optional=frozenset(_OURS) | {"classifier_dropout", "layer_norm_eps"},
    required=_REQUIRED,
    defaults={"type_vocab_size": 16},  # modeling.py's own default; the released files all say 2
    # Only we write "gelu_erf": google-research/bert refuses it, which is better than computing another function.
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
    least=_TYPES,
)
_BERT = Form(
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
    least=_TYPES,
)
_EMBEDDING_SIZE = {"embedding_size": "embedding_size"}
# By model_type. We write the first form that can hold a configuration; the last form, our own, can hold all.
HUGGING_FACE = {
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
        # The pooler that only its classifiers of texts and of choices have.
        keys=_BERT.keys | _EMBEDDING_SIZE | {"summary_activation": "pooler_activation"},
        defaults={"embedding_size": 128, "hidden_act": "gelu", "summary_activation": "gelu"},
        written_as={"embedding_size": "embedding_width"},
    ),
    "roberta": dataclasses.replace(
        _BERT,
        # Positions start one after the padding id.
        keys=_BERT.keys | {"pad_token_id": "position_offset"},
        defaults={"pad_token_id": 1, "hidden_act": "gelu"},
        shifts={"pad_token_id": 1},
    ),
    "distilbert": dataclasses.replace(
        _BERT,
        keys={
            "vocab_size": "vocab_size",
            "dim": "hidden_size",
            "n_layers": "num_layers",
            "n_heads": "num_heads",
            "hidden_dim": "intermediate_size",
            "max_position_embeddings": "max_positions",
            "activation": "activation",
            "dropout": "hidden_dropout",
            "attention_dropout": "attention_dropout",
            "seq_classif_dropout": "classifier_dropout",
            "initializer_range": "initializer_range",
        },
        optional=frozenset(),
        required=("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim"),
        defaults={"activation": "gelu", "seq_classif_dropout": 0.2},
        # Sinusoidal positions are only an initial value: the file has the table. Our heads of spans have no dropout.
        metadata=_BERT.metadata | {"sinusoidal_pos_embds", "qa_dropout", "tie_weights_"},
        written_as={"seq_classif_dropout": "head_dropout"},
        means={"type_vocab_size": 0, "pooler_activation": "relu"},
        least={},
    ),
    "openai-gpt": dataclasses.replace(
        _BERT,
        keys={
            "vocab_size": "vocab_size",
            "n_embd": "hidden_size",
            "n_layer": "num_layers",
            "n_head": "num_heads",
            "n_positions": "max_positions",
            "afn": "activation",
            "embd_pdrop": "hidden_dropout",
            "resid_pdrop": "hidden_dropout",
            "attn_pdrop": "attention_dropout",
            "initializer_range": "initializer_range",
            "layer_norm_epsilon": "norm_epsilon",
        },
        optional=frozenset(),
        required=("vocab_size", "n_embd", "n_layer", "n_head"),
        defaults={"afn": "gelu", "layer_norm_epsilon": 1e-5, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
        activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
        fixed=_FIXED | {"tie_word_embeddings": (True, None)},
        metadata=_BERT.metadata - {"tie_word_embeddings"} | {"n_ctx", "n_special", "predict_special_tokens"},
        means={"type_vocab_size": 0, "causal": True, "embedding_norm": False, "plain_heads": True},
        multiples={"intermediate_size": ("hidden_size", 4)},
        least={},
    ),
    "bert_keras": dataclasses.replace(
        _BERT, keys=_BERT.keys | _OURS, optional=_BERT.optional | frozenset(_OURS), least={}
    ),
}
MODEL_TYPES = tuple(HUGGING_FACE)
