"""Recipes of pre-training: the papers' objectives and settings, in one flat namespace, SETTINGS."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.objectives import LeftToRight, MaskedLM, Objective, ReplacedTokens, SentencePair
from bert_keras.optimizers import LAMB, AdamW
from bert_keras.schedules import WarmupLinearDecay
from bert_keras.text.masking import Masking, Pieces
from tasks.pretraining.samplers import Settings as Sampling
from tasks.settings import check_settings

OPTIMIZERS = {"adamw": AdamW, "lamb": LAMB}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHparams:
    """The settings of one pre-training (defaults: Devlin et al. 2019, A.2).

    phases: lengths in wordpieces, and the share of the steps at each, in order
    max_predictions: the most asked of a text; None: the least that never cuts the share of a phase's length
    log_every, eval_every: steps; what is logged is the mean over the steps since the last time
    held_out_instances: the most that are evaluated on
    replaced_weight, generator_share: of ELECTRA; the discriminator's weight, and the generator's width
    """

    batch_size: int = 256  # instances, over all replicas
    steps: int = 1_000_000
    learning_rate: float = 1e-4
    optimizer: str = "adamw"
    warmup_proportion: float = 0.01  # of all steps: 10,000
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    beta_2: float = 0.999
    bias_correction: bool = False
    phases: tuple[tuple[int, float], ...] = ((128, 0.9), (512, 0.1))
    max_predictions: int | None = None
    seed: int = 12345
    log_every: int = 100
    eval_every: int = 1000
    held_out_instances: int = 2000
    replaced_weight: float = 50.0
    generator_share: float = 0.25

    def __post_init__(self) -> None:
        good = all(len(phase) == 2 and phase[0] >= 5 and phase[1] > 0 for phase in self.phases)
        shares = sum(phase[1] for phase in self.phases) if good else 0
        wanted = {
            name: (getattr(self, name) >= 1, "at least 1")
            for name in ("batch_size", "steps", "log_every", "eval_every", "held_out_instances")
        } | {
            "learning_rate": (self.learning_rate > 0, "over 0"),
            "optimizer": (self.optimizer in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
            "warmup_proportion": (0 <= self.warmup_proportion <= 1, "from 0 to 1"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "over 0, or nothing"),
            "beta_2": (0 <= self.beta_2 < 1, "from 0 to under 1"),
            "phases": (abs(shares - 1) < 1e-6, "pairs of a length and a share of the steps, which sum to 1"),
            "max_predictions": (self.max_predictions is None or self.max_predictions >= 1, "at least 1"),
            "seed": (0 <= self.seed < 2**31, "from 0 to 2**31 - 1"),
            "replaced_weight": (self.replaced_weight > 0, "over 0"),
            "generator_share": (0 < self.generator_share <= 1, "over 0, at most 1"),
        }
        check_settings(self, wanted)

    @property
    def warmup_steps(self) -> int:
        """Steps in which the rate rises."""
        return int(self.steps * self.warmup_proportion)

    def schedule(self) -> WarmupLinearDecay:
        """The rate of each step, over all phases."""
        return WarmupLinearDecay(self.learning_rate, total_steps=self.steps, warmup_steps=self.warmup_steps)

    def longest_step(self) -> float:
        """The longest step of AdamW where a gradient stays the same, in `learning_rate`; over 1 without bias correction."""
        if self.optimizer != "adamw" or self.bias_correction:
            return 1.0
        done = np.arange(self.steps, dtype=np.float32)
        rates = np.asarray(self.schedule()(done)) / self.learning_rate
        beta_1 = 0.9  # AdamW's
        return float(np.max(rates * (1 - beta_1 ** (done + 1)) / np.sqrt(1 - self.beta_2 ** (done + 1))))

    def phase_steps(self, count: int) -> list[int]:
        """The step at which each phase ends, if there are so many phases."""
        shares = [share for _, share in self.phases] if count > 1 else [1.0]
        return [round(self.steps * sum(shares[: i + 1])) for i in range(count)]


# Setting -> the class that has the field. A phase sets `seq_length`; the last class here overrides `max_predictions` of Masking.
FIELDS = {
    field.name: kind
    for kind in (BertConfig, Sampling, Masking, PretrainHparams)
    for field in dataclasses.fields(kind)
    if (kind, field.name) != (Sampling, "seq_length")
}
_TYPES = {name: typing.get_type_hints(kind)[name] for name, kind in FIELDS.items()}
# seq_length: one phase of that length; size: a key of bert_keras.config.SIZES.
_SHORT = {"size": str, "seq_length": int}
SETTINGS = tuple(sorted({*FIELDS, *_SHORT}))


def _typed(name: str, value: Any) -> Any:
    """The value in the type of its field. Raises ValueError on another type."""
    wanted = _SHORT.get(name, _TYPES.get(name))
    if name == "phases":
        try:
            return tuple((int(length), float(share)) for length, share in value)
        except (TypeError, ValueError) as error:
            raise BertKerasError(f"phases is {value!r}; give [[length, share], ...].") from error
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not any(type(value) is kind for kind in kinds):
        named = " or ".join("nothing" if kind is types.NoneType else kind.__name__ for kind in kinds)
        raise BertKerasError(f"{name} is {value!r}; give {named}.")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The objectives and settings of a pre-training.

    objectives: keys of OBJECTIVES; with "replaced_token", a generator beside the encoder learns the masked LM
    settings: any of SETTINGS, by name, that differ from the defaults of their classes
    changes: the user's settings, which override `settings`. Where training starts from a checkpoint, only these override the
        checkpoint's configuration
    """

    objectives: tuple[str, ...]
    settings: Mapping[str, Any]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changed(self, **changes: Any) -> "Recipe":
        """The recipe with other settings. Raises ValueError on a name that is none of SETTINGS, or a wrong value."""
        if unknown := [name for name in changes if name not in SETTINGS]:
            raise BertKerasError(
                f"there is no setting {', '.join(unknown)}; the settings are {', '.join(SETTINGS)}."
            )
        typed = {name: _typed(name, value) for name, value in changes.items()}
        if {"seq_length", "phases"} <= {*typed}:
            raise BertKerasError(
                "seq_length is one phase of that length; give seq_length or phases, not both."
            )
        if "seq_length" in typed:
            typed["phases"] = ((typed.pop("seq_length"), 1.0),)
        found = dataclasses.replace(self, changes={**self.changes, **typed})
        _ = found.hparams, found.sampling(128), found.masking(128)  # which raise on a wrong value
        return found

    def _of(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if FIELDS.get(name) is kind}

    @property
    def all_settings(self) -> dict[str, Any]:
        """The recipe's settings, overridden by the user's."""
        return {**self.settings, **self.changes}

    @property
    def kinds(self) -> tuple[type[Objective], ...]:
        """The classes of the objectives."""
        return tuple(OBJECTIVES[name] for name in self.objectives)

    def objectives_for(self, seq_length: int, *, pieces: Pieces) -> list[Objective]:
        """The objectives for texts of a length, their fields set by name from `pieces`, `masking` and `hparams`."""
        known = {"pieces": pieces, "masking": self.masking(seq_length), **vars(self.hparams)}
        return [
            kind(**{field.name: known[field.name] for field in dataclasses.fields(kind)})  # type: ignore[arg-type]
            for kind in self.kinds
        ]

    @property
    def hparams(self) -> PretrainHparams:
        """The settings of the training."""
        return PretrainHparams(**self._of(PretrainHparams, self.all_settings))

    def sampling(self, seq_length: int) -> Sampling:
        """The settings of instances of a length; an epoch is one pass, since its masks are new."""
        return Sampling(**({"dupe_factor": 1} | self._of(Sampling, self.all_settings)), seq_length=seq_length)

    def masking(self, seq_length: int) -> Masking:
        """The masking of texts of a length."""
        made = Masking(**self._of(Masking, self.all_settings))
        most = self.hparams.max_predictions or max(1, math.ceil(made.share * seq_length))
        return dataclasses.replace(made, max_predictions=most)

    def config(self, *, vocab_size: int, source: BertConfig | None = None) -> BertConfig:
        """The encoder's configuration: the checkpoint's if there is one, else that of `size`.

        Raises ValueError where both are given.
        """
        if source is not None:
            if "size" in self.changes:
                raise BertKerasError("size and a checkpoint were given; leave one out.")
            return dataclasses.replace(source, **self._of(BertConfig, self.changes))
        fields = {"vocab_size": vocab_size} | self._of(BertConfig, self.all_settings)
        return BertConfig.named(self.all_settings.get("size", "base"), **fields)


OBJECTIVES: dict[str, type[Objective]] = {
    "masked_lm": MaskedLM,
    "left_to_right": LeftToRight,
    "sentence_pair": SentencePair,
    "replaced_token": ReplacedTokens,
}

# Two phases: 128 positions for 90 % of the steps, 512 for the rest (Devlin et al. 2019, A.2), with at most 20 and 77 masks.
RECIPES = {
    # Devlin et al. 2019, A.2: the defaults of PretrainHparams.
    "bert": Recipe(objectives=("masked_lm", "sentence_pair"), settings={}),
    # Devlin et al. 2019, sec. 5.1: the same pairs, their label unused.
    "bert-no-nsp": Recipe(objectives=("masked_lm",), settings={}),
    "ltr-no-nsp": Recipe(objectives=("left_to_right",), settings={"causal": True}),
    # Liu et al. 2019, sec. 3 and 4, and table 9 (base); positions, types, gelu, epsilon and bias correction: fairseq.
    "roberta": Recipe(
        objectives=("masked_lm",),
        settings={
            "sampler": "full_sentences",
            "short_seq_prob": 0.0,
            "phases": ((512, 1.0),),
            "batch_size": 8192,
            "steps": 500_000,
            "learning_rate": 6e-4,
            "warmup_proportion": 0.048,  # 24,000 steps
            "beta_2": 0.98,
            "clip_norm": None,
            "bias_correction": True,
            "type_vocab_size": 1,
            "position_offset": 1,  # fairseq counts positions from the padding id, which is 1 there and 0 here
            "max_positions": 513,
            "activation": "gelu_erf",
            "norm_epsilon": 1e-5,
        },
    ),
    # Lan et al. 2020, sec. 3.1 and 4.1; warm-up of 3,125 steps: google-research/albert README and run_pretraining.py.
    "albert": Recipe(
        objectives=("masked_lm", "sentence_pair"),
        settings={
            "sampler": "sentence_order",
            "whole_word": True,
            "max_ngram": 3,
            "phases": ((512, 1.0),),
            "batch_size": 4096,
            "steps": 125_000,
            "learning_rate": 1.76e-3,
            "warmup_proportion": 0.025,
            "optimizer": "lamb",
            "embedding_size": 128,
            "share_layers": True,
        },
    ),
    # Clark et al. 2020, table 6 (small); google-research/electra configure_pretraining.py. 85 % [MASK]: its pretrain_helpers.py;
    # the erf gelu: its modeling.py.
    "electra": Recipe(
        objectives=("masked_lm", "replaced_token"),
        settings={
            "size": "L-12_H-256",
            "sampler": "contiguous",
            "hide": 0.85,
            "keep": 0.15,
            "replace": 0.0,
            "phases": ((128, 1.0),),
            "batch_size": 128,
            "learning_rate": 5e-4,
            "embedding_size": 128,
            "activation": "gelu_erf",
        },
    ),
}
