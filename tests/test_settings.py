"""Settings as dataclass fields: errors, flags and help come from one place."""

import argparse
import dataclasses

import numpy as np
import pytest

from bert_keras.config import BertConfig
from bert_keras.fields import Checked, Masking, add_flags, field_types, given_settings, like, setting
from bert_keras.io.json_files import checked_fields
from bert_keras.optimization.schedules import SCHEDULES
from bert_keras.tasks import hparams as settings
from bert_keras.tasks import options
from bert_keras.tasks.frozen.extract_file import WRITERS
from bert_keras.tasks.hparams import Hparams, PretrainHparams, Sampling
from bert_keras.tasks.pretraining.model import OPTIMIZERS
from bert_keras.tasks.pretraining.samplers import SAMPLERS
from bert_keras.tasks.pretraining.vocabulary import KINDS
from bert_keras.tasks.problems import embedding
from bert_keras.tasks.study import study_options
from bert_keras.tasks.study.rows import SCALES
from bert_keras.tasks.task import POOLINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example(Checked):
    count: int = setting(3, help="a count", at_least=1, at_most=5)
    rate: float = setting(5e-5, help="a rate", over=0, below=1)
    name: str = setting("a", help="a name", choices=("a", "b"))
    only: str | None = setting(None, help="one choice or none", choices=("x",))
    most: int | None = setting(None, help="a limit (default: all)", at_least=1)
    fast: bool = setting(False, help="a switch")
    rates: tuple[float, ...] = setting((1e-3, 1.0), help="several rates")
    free: int = setting(0, help="any number")
    text: str | None = setting(None, help="any text, or none")
    pairs: tuple[tuple[int, float], ...] = setting(((128, 0.9), (512, 0.1)), help="pairs")
    limit: float | None = setting(1.0, help="a limit, or none", over=0)


WRONG = [
    ({"count": 0}, "count is 0; wanted a whole number of at least 1 and at most 5"),
    ({"count": 6}, "count is 6; wanted a whole number of at least 1 and at most 5"),
    ({"count": 2.0}, "count is 2.0; wanted a whole number of at least 1"),
    ({"count": True}, "count is True; wanted a whole number of at least 1"),
    ({"count": None}, "count is None; wanted a whole number of at least 1"),
    ({"rate": 0.0}, "rate is 0.0; wanted a finite number over 0 and below 1"),
    ({"rate": 1.0}, "rate is 1.0; wanted a finite number over 0 and below 1"),
    ({"rate": float("nan")}, "rate is nan; wanted a finite number"),
    ({"rate": "0.1"}, "rate is '0.1'; wanted a finite number"),
    ({"name": "c"}, "name is 'c'; wanted one of a, b"),
    ({"only": "y"}, "only is 'y'; wanted one of x, or None"),
    ({"most": 0}, "most is 0; wanted a whole number of at least 1, or None"),
    ({"fast": 1}, "fast is 1; wanted true or false"),
    ({"rates": [1.0, "2"]}, "rates is [1.0, '2']; wanted a list, each item a finite number"),
    ({"text": 3}, "text is 3; wanted text, or None"),
    ({"pairs": [[1]]}, "pairs is [[1]]; wanted a list, each item a list of a whole number and a finite"),
    ({"limit": float("inf")}, "limit is inf; wanted a finite number over 0, or None"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_an_error_names_the_field_the_value_and_the_rule(change, message):
    with pytest.raises(ValueError) as error:
        Example(**change)
    (name,) = change
    assert str(error.value).startswith(message.replace("wanted", f"{name} must be"))


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_json_file_is_held_to_the_fields(change, message):
    kinds = field_types(Example)
    with pytest.raises(ValueError) as error:
        checked_fields(change, kinds, where="file", optional=kinds)
    assert str(error.value).startswith(f"file: {message}")


def test_values_take_the_types_of_their_fields():
    made = Example(rates=[1, 2.5], pairs=[[128, 1]], limit=2)
    assert (made.rates, made.pairs, made.limit) == ((1.0, 2.5), ((128, 1.0),), 2.0)
    given = Example(count=np.int64(2), rate=np.float32(0.5))
    assert (type(given.count), type(given.rate)) == (int, float)
    assert {type(made.rates[0]), type(made.pairs[0][1]), type(made.limit)} == {float}


def test_a_field_of_another_class_differs_only_in_what_is_changed():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Other(Checked):
        count: int = like(Example, "count", default=4, help="others")
        name: str = like(Example, "name")

    assert dataclasses.asdict(Other()) == {"count": 4, "name": "a"}
    types = field_types(Other)
    assert [types[name].wanted for name in types] == [field_types(Example)[name].wanted for name in types]
    with pytest.raises(ValueError, match="count is 6; count must be .* at most 5"):
        Other(count=6)


def test_a_seed_of_examples_that_are_not_drawn():
    with pytest.raises(ValueError, match="data_seed is 5; data_seed must be None without max_examples"):
        Hparams(data_seed=5)
    assert Hparams(data_seed=5, max_examples=10).data_seed == 5


@pytest.mark.parametrize("change", [{}, {"count": 5}, {"only": "x"}, {"most": None}, {"free": -7}])
def test_settings_inside_their_bounds(change):
    assert dataclasses.asdict(Example(**change)) == dataclasses.asdict(Example()) | change


def parse(*arguments: str, **options) -> dict:
    parser = argparse.ArgumentParser()
    add_flags(parser, Example, **options)
    return given_settings(parser.parse_args(arguments), Example)


def test_flags_have_the_types_of_the_fields():
    assert parse() == {}
    words = "--count 2 --rate 1e-3 --name b --most 4 --fast --rates 1 2 --rates 3"
    wanted = {"count": 2, "rate": 1e-3, "name": "b", "most": 4, "fast": True, "rates": [1.0, 2.0, 3.0]}
    assert parse(*words.split()) == wanted
    assert parse("--pairs", "[[64, 1]]") == {"pairs": [[64, 1]]}


def test_none_is_a_word_for_numbers_and_choices():
    words = "--most none --only none --limit none --text none"
    assert parse(*words.split()) == {"most": None, "only": None, "limit": None, "text": "none"}
    assert parse("--only", "x", "--limit", "2") == {"only": "x", "limit": 2.0}


def test_a_switch_that_may_be_on_by_default_can_be_turned_off():
    assert parse("--no-fast", negatable=True) == {"fast": False}
    assert parse("--fast", negatable=True) == {"fast": True}


def test_wrong_flags(capsys):
    for given, how, said in (
        ("--name c", {}, "invalid choice: 'c'"),
        ("--name b", {"without": ("name",)}, "unrecognized arguments: --name b"),
        ("--name b", {"only": ("count",)}, "unrecognized arguments: --name b"),
        ("--no-fast", {}, "unrecognized arguments: --no-fast"),
        ("--most many", {}, "argument --most: invalid int value: 'many'"),
        ("--only y", {}, "argument --only: invalid choice: 'y'"),
        ("--pairs [64", {}, "argument --pairs: '[64' is not JSON"),
    ):
        with pytest.raises(SystemExit):
            parse(*given.split(), **how)
        assert said in capsys.readouterr().err


def helps_of(settings) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    add_flags(parser, settings)
    return {action.dest: action.help for action in parser._actions}


def test_help_has_the_default_as_a_person_writes_it():
    helps = helps_of(Example)
    assert helps["rate"] == "a rate (default: 5e-5)"
    assert helps["rates"] == "several rates (default: 0.001 1)"
    assert helps["most"] == "a limit (default: all)"
    assert helps["fast"] == "a switch"


def test_help_has_the_values_of_an_instance():
    helps = helps_of(Example(count=2, limit=None))
    assert (helps["count"], helps["limit"]) == ("a count (default: 2)", "a limit, or none")
    assert helps["pairs"] == "pairs (default: [[128, 0.9], [512, 0.1]])"


def choices(kind: type, name: str) -> set[str]:
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    return {*field.metadata["choices"]}


@pytest.mark.parametrize(
    ("kind", "name", "implemented"),
    [
        (Hparams, "schedule", SCHEDULES),
        (PretrainHparams, "optimizer", OPTIMIZERS),
        (PretrainHparams, "schedule", SCHEDULES),
        (Sampling, "sampler", SAMPLERS),
        (options.ClassifierOptions, "pooling", POOLINGS),
        (options.ExportOptions, "embedding", [*embedding.POOLINGS, options.OWN, "word"]),
        (options.FeatureOptions, "format", WRITERS),
        (options.VocabularyOptions, "kind", KINDS),
        (options.TaggingOptions, "context", options.TAGGING_DEFAULTS),
        (study_options.AblationOptions, "scale", SCALES),
    ],
)
def test_every_choice_is_implemented(kind, name, implemented):
    assert choices(kind, name) == {*implemented}


def test_every_field_of_the_settings_has_help():
    kinds = [
        kind for kind in [*vars(settings).values(), *vars(options).values()] if dataclasses.is_dataclass(kind)
    ]
    assert len(kinds) > 10
    for kind in (*kinds, Masking, BertConfig):
        assert all(field.metadata["help"] for field in dataclasses.fields(kind)), kind
