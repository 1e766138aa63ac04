"""Checks of settings."""

from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError


def check_settings(settings: Any, wanted: Mapping[str, tuple[bool, str]]) -> None:
    """Raises ValueError at the first field that is not good; `wanted`: whether it is, and what it must be, by name."""
    for name, (good, want) in wanted.items():
        if not good:
            raise BertKerasError(f"{name} is {getattr(settings, name)!r}; {name} must be {want}.")
