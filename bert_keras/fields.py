"""Settings as dataclass fields, each with its help, choices and bounds. No TensorFlow, no Keras.

    class Hparams:
        batch_size: int = setting(32, help="examples in a batch", at_least=1)

`check_settings` derives errors from the fields; `add_flags` derives the flags of a command.
"""

import argparse
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from bert_keras.errors import BertKerasError


def setting(
    default: Any,
    *,
    help: str,
    choices: Sequence[Any] = (),
    at_least: float | None = None,
    over: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field. If the annotation allows None, the bounds do not apply to None."""
    bounds = {"at_least": at_least, "over": over, "at_most": at_most, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, "choices": tuple(choices), **bounds})


def wrong_setting(settings: Any, name: str, wanted: str) -> BertKerasError:
    """The error about one field."""
    return BertKerasError(f"{name} is {getattr(settings, name)!r}; {name} must be {wanted}.")


def check_settings(settings: Any) -> None:
    """Raises BertKerasError at the first field outside its choices or bounds."""
    optional = {name for name, kinds in _kinds(type(settings)).items() if types.NoneType in kinds}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not (value is None and field.name in optional) and not _fits(value, field.metadata):
            raise wrong_setting(settings, field.name, _wanted(field.metadata))


def _fits(value: Any, rule: Mapping[str, Any]) -> bool:
    """True if the value is one of the choices and inside the bounds; NaN is outside."""
    if rule.get("choices"):
        return value in rule["choices"]
    bounds = {name: rule.get(name) for name in ("at_least", "over", "at_most", "below")}
    if all(bound is None for bound in bounds.values()):
        return True
    return value is not None and (
        (bounds["at_least"] is None or value >= bounds["at_least"])
        and (bounds["over"] is None or value > bounds["over"])
        and (bounds["at_most"] is None or value <= bounds["at_most"])
        and (bounds["below"] is None or value < bounds["below"])
    )


def _wanted(rule: Mapping[str, Any]) -> str:
    """The choices or bounds in words."""
    if choices := rule["choices"]:
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else repr(choices[0])
    words = {"at_least": "at least", "over": "over", "at_most": "at most", "below": "below"}
    return ", ".join(f"{word} {rule[name]:,}" for name, word in words.items() if rule[name] is not None)


def _kinds(settings: type) -> dict[str, tuple[Any, ...]]:
    """The types of each field; a union has several."""
    hints = typing.get_type_hints(settings)
    return {
        field.name: typing.get_args(hints[field.name])
        if isinstance(hints[field.name], types.UnionType)
        else (hints[field.name],)
        for field in dataclasses.fields(settings)
    }


class Checked:
    """Checks every field at construction."""

    def __post_init__(self) -> None:
        check_settings(self)


def names_of(settings: type) -> tuple[str, ...]:
    """The names of the fields, in order."""
    return tuple(field.name for field in dataclasses.fields(settings))


def add_flags(parser: Any, settings: type, *, without: Sequence[str] = ()) -> None:
    """Adds a flag for each field; a flag that is not given is not in the parsed arguments.

    parser: an argparse parser or group
    without: names of fields that get no flag
    """
    kinds = _kinds(settings)
    for field in dataclasses.fields(settings):
        if field.name in without:
            continue
        (kind,) = (kind for kind in kinds[field.name] if kind is not types.NoneType)
        form: dict[str, Any] = {"type": kind}
        if kind is bool:
            form = {"action": "store_true"}
        elif field.metadata["choices"]:
            form = {"choices": field.metadata["choices"]}
        elif typing.get_origin(kind) is tuple:
            form = {"type": typing.get_args(kind)[0], "nargs": "+", "action": "extend"}
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, **form, default=argparse.SUPPRESS, help=_help(field, field.default))


def _help(field: dataclasses.Field, default: Any) -> str:
    """The help of a field, with its default unless that is None or False."""
    known = default is not None and default is not False
    return field.metadata["help"] + (f" (default: {spelled(default)})" if known else "")


def describe(settings: Any, *, without: Sequence[str] = ()) -> str:
    """Lines of help for settings that are given as NAME=VALUE; the defaults are the values of this instance."""
    fields = [field for field in dataclasses.fields(settings) if field.name not in without]
    width = 2 + max(len(field.name) for field in fields)
    lines = []
    for field in fields:
        lines.append(f"    {field.name:{width}}{_help(field, getattr(settings, field.name))}")
        if field.metadata["choices"]:
            lines.append(f"    {'':{width}}one of {', '.join(field.metadata['choices'])}")
    return "\n".join(lines)


def spelled(value: Any) -> str:
    """A value as a person writes it: 5e-05 as 5e-5, 1.0 as 1, (1, 2) as 1 2, pairs as JSON."""
    if isinstance(value, tuple):
        nested = any(isinstance(item, tuple) for item in value)
        return str([*map(list, value)]) if nested else " ".join(map(spelled, value))
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def given_settings(args: argparse.Namespace, *settings: type) -> dict[str, Any]:
    """The values of the flags that were given, by the names of the fields."""
    return {name: getattr(args, name) for kind in settings for name in names_of(kind) if hasattr(args, name)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """The settings of masking (defaults: Devlin et al. 2019, sec. 3.1 and A.1; google-research/bert).

    hide, keep, replace: fractions of the masked positions that become [MASK], keep their token, or get a random token
        (Devlin et al. 2019, Table 8). ELECTRA's own code hides 0.85 and keeps the rest.
    max_ngram: an n-gram of n words, or tokens, has a probability proportional to 1 / n (ALBERT: 3).
    random_pieces: "vocabulary" draws from all tokens as the original does, "real" from tokens that can occur in text.

    Raises BertKerasError for a value out of range or rates that do not sum to 1.
    """

    share: float = setting(
        0.15, help="fraction of a text's tokens to mask, [CLS] and [SEP] included", over=0, at_most=1
    )
    max_predictions: int = setting(20, help="the most masked positions in a text", at_least=1)
    hide: float = setting(0.8, help="fraction of masked positions that become [MASK]", at_least=0, at_most=1)
    keep: float = setting(
        0.1, help="fraction of masked positions that keep their token", at_least=0, at_most=1
    )
    replace: float = setting(
        0.1, help="fraction of masked positions that get a random token", at_least=0, at_most=1
    )
    whole_word: bool = setting(False, help="mask all tokens of a word or none")
    max_ngram: int = setting(1, help="the most words, or tokens, masked in a row", at_least=1)
    random_pieces: str = setting(
        "vocabulary",
        help="the source of random tokens: the vocabulary, or tokens that can occur in text",
        choices=("vocabulary", "real"),
    )

    def __post_init__(self) -> None:
        check_settings(self)
        rates = (self.hide, self.keep, self.replace)
        if abs(sum(rates) - 1) > 1e-6:
            raise BertKerasError(f"hide, keep and replace are {rates}; give rates that sum to 1.")
