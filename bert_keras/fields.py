"""Settings as dataclass fields, each with its type, help, choices and bounds. No TensorFlow, no Keras.

    class Hparams(Checked):
        batch_size: int = setting(32, help="examples in a batch", at_least=1)

A setting is declared once. Its check, its flag and help (`add_flags`) and its type in a JSON file (`field_types`) follow from it;
`like` reuses it in another class.
"""

import argparse
import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import (
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    FieldType,
    fixed_list,
    list_of,
    one_of,
    or_null,
    parse_json,
    shortened,
    within,
)
from bert_keras.io.own_code import is_own


def setting(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    choices: Sequence[str] = (),
    own: bool = False,
    at_least: float | None = None,
    over: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """A dataclass field. If the annotation allows None, choices and bounds do not apply to None.

    own: besides the choices, MODULE:NAME of a user's own code
    """
    bounds = {"at_least": at_least, "over": over, "at_most": at_most, "below": below}
    return dataclasses.field(
        default=default, metadata={"help": help, "choices": tuple(choices), "own": own, "bounds": bounds}
    )


def like(settings: type, name: str, **changes: Any) -> Any:
    """The field of another class, in this one. changes: those arguments of `setting` that differ."""
    (field,) = (field for field in dataclasses.fields(settings) if field.name == name)
    known = {"default": field.default, "help": field.metadata["help"], "choices": field.metadata["choices"]}
    return setting(**known | field.metadata["bounds"] | changes)


@functools.cache
def field_types(settings: type) -> dict[str, FieldType]:
    """The values that each field may have, by its name. A JSON list stands for a tuple."""
    return {
        name: _field_type(annotation, field.metadata)
        for name, (field, annotation) in _fields(settings).items()
    }


@functools.cache
def _fields(settings: type) -> dict[str, tuple[dataclasses.Field, Any]]:
    """Each field with its annotation."""
    hints = typing.get_type_hints(settings)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(settings)}


def _field_type(annotation: Any, rule: Any) -> FieldType:
    if isinstance(annotation, types.UnionType):
        return or_null(_field_type(_without_none(annotation), rule), "None")
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if items[-1] is Ellipsis:
            return list_of(_field_type(items[0], rule))
        return fixed_list(*(_field_type(item, rule) for item in items))
    if rule.get("choices"):
        known = one_of(rule["choices"])
        if not rule.get("own"):
            return known
        return FieldType(
            f"{known.wanted}, or MODULE:NAME",
            lambda value: known.accepts(value) or (isinstance(value, str) and is_own(value)),
        )
    if typing.get_origin(annotation) is dict:
        return FieldType("an object", lambda value: isinstance(value, dict))
    if annotation not in _KINDS:
        raise BertKerasError(
            f"a setting is annotated {annotation}; give bool, str, int, float, a tuple of them, or one of them with `| None`."
        )
    return within(_KINDS[annotation], **rule.get("bounds", {}))


_KINDS = {bool: FLAG, str: TEXT, int: INTEGER, float: NUMBER}


def _without_none(annotation: Any) -> Any:
    """int | None -> int."""
    (kind,) = (kind for kind in typing.get_args(annotation) if kind is not types.NoneType)
    return kind


def checked_value(settings: type, name: str, value: Any) -> Any:
    """The value of a field in its own type: lists as tuples, numbers of numpy as Python's, floats where the field is a float.

    Raises BertKerasError for a value of another type, or outside its choices or bounds.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not field_types(settings)[name].accepts(value):
        raise BertKerasError(
            f"{name} is {shortened(value)}; {name} must be {field_types(settings)[name].wanted}."
        )
    return _converted(_fields(settings)[name][1], value)


def _converted(annotation: Any, value: Any) -> Any:
    if isinstance(annotation, types.UnionType):
        return None if value is None else _converted(_without_none(annotation), value)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        items = items[:1] * len(value) if items[-1] is Ellipsis else items
        return tuple(map(_converted, items, value))
    return float(value) if annotation is float else value


class Checked:
    """Settings that check every field at construction, and convert it as `checked_value` does."""

    def __post_init__(self) -> None:
        for name in names_of(type(self)):
            object.__setattr__(self, name, checked_value(type(self), name, getattr(self, name)))


def wrong_setting(settings: Any, name: str, wanted: str) -> BertKerasError:
    """The error about a field that does not fit the others."""
    return BertKerasError(f"{name} is {getattr(settings, name)!r}; {name} must be {wanted}.")


def names_of(settings: type) -> tuple[str, ...]:
    """The names of the fields, in order."""
    return tuple(field.name for field in dataclasses.fields(settings))


# -----------------------------------------------------------------------------------------------------------
# Flags


def flag_of(name: str) -> str:
    """batch_size -> --batch-size."""
    return f"--{name.replace('_', '-')}"


def add_flags(
    parser: Any,
    settings: Any,
    *,
    only: Sequence[str] | None = None,
    without: Sequence[str] = (),
    negatable: bool = False,
) -> None:
    """Adds a flag for each field; a flag that is not given is not in the parsed arguments.

    parser: an argparse parser or group
    settings: a class, or an instance whose values the help shows as the defaults, unless they are None or False
    only, without: names of the fields that get a flag, and of those that get none
    negatable: a switch has the form --no-NAME too, for settings that are on by default in some recipe
    """
    kind = settings if isinstance(settings, type) else type(settings)
    for name, (field, annotation) in _fields(kind).items():
        if name in without or (only is not None and name not in only):
            continue
        form = _form(annotation, field.metadata.get("choices", ()), negatable=negatable)
        if field.metadata.get("own"):
            form = {"type": str, "metavar": f"{{{','.join(field.metadata['choices'])},MODULE:NAME}}"}
        default = getattr(settings, name, None)
        known = default is not None and default is not False
        text = field.metadata.get("help", "") + (f" (default: {format_value(default)})" if known else "")
        flag = parser.add_argument(flag_of(name), **form, default=argparse.SUPPRESS, help=text)
        if choices := field.metadata.get("choices"):
            complete_with(flag, choices)


def complete_with(flag: Any, words: Iterable[str]) -> None:
    """Has a shell offer these words for a flag of argparse that has no `choices`, since it takes other values too."""
    flag.completer = lambda **_: words  # argcomplete reads it


def _form(annotation: Any, choices: tuple[str, ...], *, negatable: bool) -> dict[str, Any]:
    """The arguments of argparse for a field. A number or choice that may be None is given as `none`; text is not."""
    if isinstance(annotation, types.UnionType):
        form = _form(_without_none(annotation), choices, negatable=negatable)
        if choices:
            return {"type": _or_none(_choice(choices)), "metavar": f"{{{','.join(choices)}}}"}
        return form | {"type": _or_none(form["type"])} if form.get("type") in (int, float) else form
    if typing.get_origin(annotation) is dict:
        return {"type": _json, "metavar": "JSON"}
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction if negatable else "store_true"}
    if choices:
        return {"choices": choices}
    if typing.get_origin(annotation) is not tuple:
        return {"type": annotation}
    item = typing.get_args(annotation)[0]
    if typing.get_origin(item) is tuple:
        return {"type": _json, "metavar": "JSON"}
    return {"type": item, "nargs": "+", "action": "extend"}


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads `none` as None, and any other word as `kind` does."""

    @functools.wraps(kind, updated=())  # argparse names it in an error
    def read(word: str) -> Any:
        return None if word == "none" else kind(word)

    return read


def _choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Reads one of the choices. argparse's own `choices` would print the None of an optional field."""

    def read(word: str) -> str:
        if word not in choices:
            known = ", ".join(map(repr, (*choices, "none")))
            raise argparse.ArgumentTypeError(f"invalid choice: {word!r} (choose from {known})")
        return word

    return read


def _json(text: str) -> Any:
    try:
        return parse_json(text, source=repr(text))
    except BertKerasError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def format_value(value: Any) -> str:
    """A value as a person writes it: 5e-05 as 5e-5, 1.0 as 1, (1, 2) as 1 2, pairs as JSON."""
    if isinstance(value, tuple):
        nested = any(isinstance(item, tuple) for item in value)
        return str([*map(list, value)]) if nested else " ".join(map(format_value, value))
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else str(value)


def given_settings(args: argparse.Namespace, *settings: type) -> dict[str, Any]:
    """The values of the flags that were given, by the names of the fields."""
    return {name: getattr(args, name) for kind in settings for name in names_of(kind) if hasattr(args, name)}


# -----------------------------------------------------------------------------------------------------------
# Masking


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking(Checked):
    """The settings of masking (defaults: Devlin et al. 2019, sec. 3.1 and A.1; google-research/bert).

    hide, keep, replace: fractions of the masked positions that become [MASK], keep their token, or get a random token
        (Devlin et al. 2019, table 8). ELECTRA's own code hides 0.85 and keeps the rest.
    max_ngram: an n-gram of n words, or tokens, has a probability proportional to 1 / n (ALBERT: 3; Lan et al. 2020, sec. 4.1).
    random_pieces: "vocabulary" draws from all tokens as the original does, "real" from tokens that can occur in text.

    Unlike the textbook: of the predicted tokens, 80 % become [MASK], 10 % stay and 10 % are random. [MASK] never occurs in
    fine-tuning; and as no token shows whether it must be predicted, the encoder learns a state in context for each.

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
        super().__post_init__()
        rates = (self.hide, self.keep, self.replace)
        if abs(sum(rates) - 1) > 1e-6:
            raise BertKerasError(f"hide, keep and replace are {rates}; give rates that sum to 1.")
