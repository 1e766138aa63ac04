"""The rows of an ablation of one checkpoint: fine-tuning, features of any layers, and random weights, by name.

Source: Devlin et al. 2019, table 7.
"""

import dataclasses
from typing import NamedTuple

from bert_keras.errors import BertKerasError
from tasks.features.layers import LAYERS, check_layers
from tasks.options import TAGGING_DEFAULTS

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
