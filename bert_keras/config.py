"""BertConfig, the numbers that define one encoder, with their limits; the named sizes and variants."""

import dataclasses
import difflib
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_keras.config_files import GOOGLE, HUGGING_FACE, MODEL_TYPES, Form
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import ENCODER_INPUTS, INPUT_CHARACTERS
from bert_keras.fields import Checked, names_of, setting
from bert_keras.io.json_files import read_object, shortened
from bert_keras.io.paths import to_path

BERT = "bert"  # the encoder whose blocks are Transformer blocks; bert_keras/model/encoders.py has the others
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu", "tanh", "linear")

# The largest sizes. Published models are far below; larger sizes would allocate memory that no file fills.
MAX_LAYERS = 1_000
MAX_WIDTH = 65_536
MAX_LENGTH = 1_048_576
MAX_VOCABULARY = 4_194_304  # also the limit of the tokenizer's kernel

# The published grid of Turc et al. 2019 (L x H), plus large. A = H / 64 and I = 4 H throughout.
_WIDTHS = (128, 256, 512, 768)
_GRID = {f"L-{layers}_H-{hidden}": (layers, hidden) for layers in range(2, 13, 2) for hidden in _WIDTHS}
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


# Lan et al. 2020, sec. 4.8.
_NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.1}
# Version 2 of google-research/albert (Lan et al. 2020, sec. 3.1); google-research/electra, whose gelu is the erf form; fairseq's
# RoBERTa.
_ALBERT = {"vocab_size": 30000, "embedding_size": 128, "share_layers": True, **_NO_DROPOUT}
_ELECTRA = {"vocab_size": 30522, "activation": "gelu_erf", "pooler_activation": "gelu_erf"}
_ROBERTA = {
    "vocab_size": 50265,
    "max_positions": 514,
    "position_offset": 2,
    "type_vocab_size": 1,
    "norm_epsilon": 1e-5,
    "activation": "gelu_erf",
}
# Sanh et al. 2019, sec. 3.
_DISTILBERT = {
    "vocab_size": 30522,
    "type_vocab_size": 0,
    "activation": "gelu_erf",
    "pooler_activation": "relu",
    "classifier_dropout": 0.2,
}
# Radford et al. 2018, sec. 4.1; the tanh gelu, the epsilon and the vocabulary: openai/finetune-transformer-lm train.py.
_GPT = {
    "vocab_size": 40478,
    "type_vocab_size": 0,
    "causal": True,
    "embedding_norm": False,
    "plain_heads": True,
    "norm_epsilon": 1e-5,
}
# The published variants, as the fields that differ from BERT base; for ELECTRA, the fields of the discriminator.
# ALBERT's: Lan et al. 2020, sec. 3.2.
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
    "distilbert-base": _DISTILBERT | _shape(*SIZES["L-6_H-768"]),
    "openai-gpt": _GPT | _shape(*SIZES["base"]),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(Checked):
    """Every number that defines an encoder (defaults: BERT base, Devlin et al. 2019, sec. 3).

    Raises ValueError for a value that no encoder can have; the error names the field, the value and the values wanted.
    """

    vocab_size: int = setting(
        help="tokens in the vocabulary (default: those of --vocab)", at_least=1, at_most=MAX_VOCABULARY
    )
    hidden_size: int = setting(768, help="width of the hidden states", at_least=1, at_most=MAX_WIDTH)
    num_layers: int = setting(12, help="blocks", at_least=0, at_most=MAX_LAYERS)
    num_heads: int = setting(12, help="attention heads in a block", at_least=1, at_most=MAX_WIDTH)
    intermediate_size: int = setting(
        3072, help="width inside the feed-forward layers", at_least=1, at_most=1_048_576
    )
    max_positions: int = setting(512, help="rows of the position table", at_least=1, at_most=MAX_LENGTH)
    type_vocab_size: int = setting(
        2, help="token types; 0, as in DistilBERT, has no type embeddings", at_least=0, at_most=1_024
    )
    embedding_size: int | None = setting(
        None,
        help="width of factorized embeddings, as in ALBERT (default: the hidden size)",
        at_least=1,
        at_most=MAX_WIDTH,
    )
    share_layers: bool = setting(False, help="one block's weights for every layer, as in ALBERT")
    # Pooled at the last token before padding (Devlin et al. 2019, figure 3 and A.4: OpenAI GPT is left to right).
    causal: bool = setting(False, help="a position attends only to itself and to the positions before it")
    # google-research/bert modeling.py `gelu`
    activation: str = setting(
        "gelu_tanh", help="activation of the feed-forward layers and heads", choices=ACTIVATIONS
    )
    pooler_activation: str = setting(
        "tanh", help="activation of the pooler; DistilBERT's is relu", choices=ACTIVATIONS
    )
    hidden_dropout: float = setting(0.1, help="dropout of the hidden states", at_least=0, below=1)
    attention_dropout: float = setting(0.1, help="dropout of the attention weights", at_least=0, below=1)
    classifier_dropout: float | None = setting(
        None,
        help="dropout before a task's dense layer (default: that of the hidden states)",
        at_least=0,
        below=1,
    )
    # float32 holds the bounds of the next two.
    initializer_range: float = setting(
        0.02, help="standard deviation of initial weights, a truncated normal", at_least=1e-30, at_most=1e3
    )
    # Unlike the textbook: the epsilon of layer normalization is 1e-12, the default of tf.contrib.layers.layer_norm, with which
    # the released weights were trained.
    norm_epsilon: float = setting(1e-12, help="epsilon of layer normalization", at_least=1e-30, at_most=1e3)
    position_offset: int = setting(0, help="first position of a text; RoBERTa's is 2", at_least=0)
    bilstm: bool = setting(
        False,
        help="a BiLSTM of half the hidden size per direction on the last block (Devlin et al. 2019, table 5)",
    )
    positions: str = setting(
        "learned",
        help="learned, or the sinusoids of the first Transformer, which have no weights",
        choices=("learned", "sinusoids"),
    )
    embedding_norm: bool = setting(
        True, help="norm the sum of the embeddings; GPT and the first Transformer do not"
    )
    # Radford et al. 2018, sec. 3.1 and 3.2: one matrix stands between the states and the labels, and only the embeddings stand
    # between the states and the next word.
    plain_heads: bool = setting(
        False,
        help="heads read the states: no pooler, and only the embeddings in a language model's head, as in GPT",
    )
    scale_embeddings: bool = setting(
        False, help="multiply word embeddings by the root of their width, as the first Transformer does"
    )
    encoder: str = setting(BERT, help="bert, or the name of an ancestor, whose blocks are not BERT's")
    encoder_settings: dict[str, Any] | None = setting(
        None, help="the settings that an ancestor has beside these, as a JSON object"
    )
    max_characters: int = setting(
        0,
        help="bytes of a word that the encoder reads beside its id, as ELMo does",
        at_least=0,
        at_most=1_024,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_heads:
            raise BertKerasError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}; change one of the two."
            )
        if self.bilstm and self.hidden_size % 2:
            raise BertKerasError(
                f"hidden_size {self.hidden_size} is odd; each direction of bilstm has half of it: make it even."
            )
        if self.position_offset >= self.max_positions:
            raise BertKerasError(
                f"position_offset is {shortened(self.position_offset)}; it must be below max_positions, {self.max_positions}."
            )
        if self.plain_heads and self.embedding_width != self.hidden_size:
            raise BertKerasError(
                f"embedding_size is {self.embedding_size} with plain_heads, whose product with the embeddings needs the hidden "
                f"size, {self.hidden_size}; leave one of the two out."
            )
        if self.encoder == BERT and (self.num_layers == 0 or self.encoder_settings or self.max_characters):
            raise BertKerasError(
                "num_layers is 0, or encoder_settings or max_characters is set, which only the encoders of ancestors have; name "
                "one as encoder, or give a block."
            )

    @property
    def embedding_width(self) -> int:
        """E, the width of the embedding table."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def has_types(self) -> bool:
        """True if embeddings of the token types are added to those of words and positions."""
        return self.type_vocab_size > 0

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens: the positions minus the offset."""
        return self.max_positions - self.position_offset

    @property
    def inputs(self) -> tuple[str, ...]:
        """The features that the encoder reads."""
        return (*ENCODER_INPUTS, INPUT_CHARACTERS) if self.max_characters else ENCODER_INPUTS

    @property
    def head_dropout(self) -> float:
        """The dropout rate before a task's dense layer."""
        return self.hidden_dropout if self.classifier_dropout is None else self.classifier_dropout

    @classmethod
    def named(cls, size: str, **changes: Any) -> "BertConfig":
        """A size of SIZES, with the uncased English vocabulary unless `vocab_size` is given, or a variant of VARIANTS."""
        if size not in SIZES and size not in VARIANTS:
            named = [name for name in (*SIZES, *VARIANTS) if name not in _GRID]
            close = difflib.get_close_matches(size, named, 1)
            mean = f": did you mean {close[0]}" if close else ""
            raise BertKerasError(
                f"no size named {size!r}{mean}; the sizes are {', '.join(named)}, and L-LAYERS_H-WIDTH of 2, 4, 6, 8, 10 or 12 "
                f"layers and a width of {', '.join(map(str, _WIDTHS))}; for others set num_layers, hidden_size, num_heads and "
                "intermediate_size."
            )
        fields = VARIANTS[size] if size in VARIANTS else {"vocab_size": 30522, **_shape(*SIZES[size])}
        return cls(**(fields | changes))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From `to_dict`'s keys; an unknown key is a ValueError."""
        if unknown := sorted(set(fields) - {*names_of(cls)}):
            raise BertKerasError(
                f"unknown configuration field {', '.join(unknown)}; the fields are {', '.join(sorted(names_of(cls)))}."
            )
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Every field under its own name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_google(cls, fields: Mapping[str, Any]) -> "BertConfig":
        """From the contents of a `bert_config.json` (google-research/bert modeling.py BertConfig)."""
        return cls._from_form(fields, GOOGLE)

    def to_google(self) -> dict[str, Any]:
        """The contents of a `bert_config.json`."""
        return self._to_form(GOOGLE)

    @classmethod
    def from_hugging_face(cls, fields: Mapping[str, Any], *, strict: bool = False) -> "BertConfig":
        """From the contents of a Hugging Face `config.json`; `model_type` is one of MODEL_TYPES, `bert` if it is absent.

        strict: True makes an unknown key an error

        Raises ValueError if a model of that type would compute other numbers than our encoder.
        """
        model_type = fields.get("model_type", "bert")
        if model_type not in MODEL_TYPES:
            raise BertKerasError(
                f"model_type is {shortened(model_type)} in a config.json (Hugging Face), which changes the numbers and is not "
                f"supported; wanted {' or '.join(repr(known) for known in MODEL_TYPES)}."
            )
        return cls._from_form(fields, HUGGING_FACE[model_type], strict=strict)

    def to_hugging_face(self, model_type: str | None = None) -> dict[str, Any]:
        """The contents of a Hugging Face `config.json`.

        model_type: one of `model_types()`; None takes the first. The last, `bert_keras`, is not a model of transformers.

        Raises ValueError if a model of that type would compute other numbers.
        """
        able = self.model_types()
        if not able:
            unsaid = [
                f"{name} {getattr(self, name)!r}"
                for name, default in _defaults().items()
                if name not in HUGGING_FACE[MODEL_TYPES[-1]].keys.values() and getattr(self, name) != default
            ]
            raise BertKerasError(
                f"no config.json can hold {', '.join(unsaid)}; add a row to _OURS of bert_keras/config_files.py, or leave the "
                "default."
            )
        model_type = able[0] if model_type is None else model_type
        if model_type not in able:
            raise BertKerasError(
                f"no model of model_type {model_type} computes this configuration; {', '.join(able)} can."
            )
        fields = self._to_form(HUGGING_FACE[model_type])
        # GPT's classifier of transformers refuses batches without a padding id; that of other models is 0 unless they say it.
        return {"model_type": model_type, "pad_token_id": 0, **fields, "position_embedding_type": "absolute"}

    def model_types(self) -> tuple[str, ...]:
        """The MODEL_TYPES that can hold this configuration and compute the same numbers."""
        ours, defaults = dataclasses.asdict(self), _defaults()
        return tuple(name for name, form in HUGGING_FACE.items() if form.says(ours, defaults))

    @classmethod
    def _from_form(cls, fields: Mapping[str, Any], form: Form, *, strict: bool = False) -> "BertConfig":
        ours = form.read(fields, strict=strict)
        try:
            return cls(**ours)
        except ValueError as error:
            # The error starts with our name of the field.
            theirs = {name: f"{key} in a {form.name}: " for key, name in form.keys.items() if key != name}
            raise BertKerasError(f"{theirs.get(str(error).split()[0], '')}{error}") from error

    def _to_form(self, form: Form) -> dict[str, Any]:
        derived = {"embedding_width": self.embedding_width, "head_dropout": self.head_dropout}
        return form.write(dataclasses.asdict(self) | derived, _defaults())

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "BertConfig":
        """Reads a file, or the file in a folder. A `bert_config.json` has Google's form, any other file has Hugging Face's.

        Raises FileNotFoundError for a missing file and ValueError for a file of another form.
        """
        path = to_path(path)
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
        read = cls.from_google if path.name == "bert_config.json" else cls.from_hugging_face
        try:
            return read(fields)
        except ValueError as error:
            raise BertKerasError(f"{path}: {error}") from error


def generator_config(config: BertConfig, *, share: float = 0.25) -> BertConfig:
    """The generator's configuration for a discriminator: a fraction of its width, heads and intermediate size.

    share: the fraction, 1/4 at ELECTRA small and large, 1/3 at base (google-research/electra configure_pretraining.py).
    """
    heads = max(1, round(config.num_heads * share))
    return dataclasses.replace(
        config,
        embedding_size=config.embedding_width,
        hidden_size=max(1, round(config.hidden_size * share / heads)) * heads,
        num_heads=heads,
        intermediate_size=max(1, round(config.intermediate_size * share)),
    )


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(BertConfig)}
