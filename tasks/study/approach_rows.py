"""The rows of an ablation of one checkpoint: fine-tuning, features of any layers, and random weights, by name.

Source: Devlin et al. 2019, table 7.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError
from bert_keras.model.layer_choices import LAYERS, check_layers
from bert_keras.tasks.hparams import OF_FEATURES, Hparams
from bert_keras.tasks.options import TAGGING_DEFAULTS

# Settings that the rows decide, that apply only to some of them, or that take the dev split from the training file.
NOT_IN_APPROACHES = ("feature_layers", "freeze", "lora_rank", "unfreeze", "layer_decay", "dev_fraction")
# Settings that rows with layers do not read: they have a rate of their own, and their encoder has no gradient.
OF_FINE_TUNING = ("learning_rate", "rematerialize")
FINE_TUNING = "fine-tuning"
RANDOM = "random-"  # prefix of a row: its weights start at random


class Approaches(NamedTuple):
    """An ablation. tasks: None takes those with data."""

    title: str
    rows: tuple[str, ...]
    tasks: tuple[str, ...] | None


APPROACHES = {
    "layers": Approaches(
        "layers for the feature-based approach (table 7)",
        (FINE_TUNING, *LAYERS, f"{RANDOM}{FINE_TUNING}", f"{RANDOM}last"),
        ("conll2003",),
    ),
    "approaches": Approaches(
        "fine-tuning, features and random weights",
        (FINE_TUNING, "concat_last_four", f"{RANDOM}{FINE_TUNING}"),
        None,
    ),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to train a task from a checkpoint.

    name: FINE_TUNING, or layers as `--feature-layers` takes them, after any of the prefixes RANDOM and "<context>-"

    Raises BertKerasError for other names.
    """

    name: str

    def __post_init__(self) -> None:
        if self.layers is None:
            return
        try:
            check_layers(self.layers)
        except BertKerasError:
            raise BertKerasError(
                f"unknown row {self.name!r}; give {FINE_TUNING}, {', '.join(LAYERS)}, or numbers of layers such as 9 or "
                f"9,10,11,12; with {RANDOM} before it for random weights, document- or sentence- for the context of tags."
            ) from None

    @property
    def random(self) -> bool:
        """True if all weights start at random."""
        return self.name.startswith(RANDOM)

    @property
    def context(self) -> str | None:
        """The context of tags; None for that of the task."""
        rest = self.name.removeprefix(RANDOM)
        return next((context for context in TAGGING_DEFAULTS if rest.startswith(f"{context}-")), None)

    @property
    def layers(self) -> str | None:
        """The layers of the frozen encoder; None for fine-tuning."""
        rest = self.name.removeprefix(RANDOM)
        if self.context is not None:
            rest = rest.removeprefix(f"{self.context}-")
        return None if rest == FINE_TUNING else rest


def check_settings(rows: Sequence[Row], settings: Mapping[str, Any], options: Collection[str]) -> None:
    """Raises BertKerasError for settings that do not apply to an ablation, and for those that none of its rows reads.

    settings: fields of Hparams; options: the names of the fields of ApproachOptions that were given
    """
    given = [name for name, value in settings.items() if value is not None]
    refused = [
        name for name in given if name in NOT_IN_APPROACHES and settings[name] != getattr(Hparams, name)
    ]
    if refused:
        raise BertKerasError(
            f"{', '.join(refused)} does not apply to an ablation, whose rows name the layers and share all other settings; leave "
            f"{'it' if len(refused) == 1 else 'them'} out."
        )
    unread = set[str]()
    if all(row.layers is not None for row in rows):
        reader = f"the row {FINE_TUNING}"
        unread = {*OF_FINE_TUNING} | ({"epochs"} if "feature_epochs" in options else set())
    if all(row.layers is None for row in rows):
        reader = "a row with layers, such as last"
        unread = {*OF_FEATURES, "feature_learning_rate", "feature_epochs"}
    if flags := [f"--{name.replace('_', '-')}" for name in (*given, *options) if name in unread]:
        raise BertKerasError(
            f"no row of {', '.join(row.name for row in rows)} reads {', '.join(flags)}; leave "
            f"{'it' if len(flags) == 1 else 'them'} out, or add {reader}."
        )
