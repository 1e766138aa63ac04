"""Settings as dataclass fields: errors, flags and help come from one place."""

import argparse
import dataclasses

import pytest

from bert_keras.fields import (
    Masking,
    add_flags,
    check_settings,
    describe,
    given_settings,
    setting,
)
from bert_keras.optimization.schedules import SCHEDULES
from bert_keras.tasks import hparams as settings
from bert_keras.tasks import options
from bert_keras.tasks.frozen.extract import DTYPES
from bert_keras.tasks.frozen.extract_file import WRITERS
from bert_keras.tasks.hparams import Hparams, PretrainHparams, Sampling
from bert_keras.tasks.pretraining.model import OPTIMIZERS
from bert_keras.tasks.pretraining.samplers import SAMPLERS
from bert_keras.tasks.pretraining.vocabulary import KINDS
from bert_keras.tasks.problems import embedding
from bert_keras.tasks.study.ablation_definitions import ABLATIONS, SCALES
from bert_keras.tasks.task import POOLINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    count: int = setting(3, help="a count", at_least=1, at_most=5)
    rate: float = setting(5e-5, help="a rate", over=0, below=1)
    name: str = setting("a", help="a name", choices=("a", "b"))
    only: str | None = setting(None, help="one choice or none", choices=("x",))
    most: int | None = setting(None, help="a limit (default: all)", at_least=1)
    fast: bool = setting(False, help="a switch")
    rates: tuple[float, ...] = setting((1e-3, 1.0), help="several rates")
    free: int = setting(0, help="any number")

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count is 0; count must be at least 1, at most 5."),
        ({"count": 6}, "count is 6; count must be at least 1, at most 5."),
        ({"count": None}, "count is None; count must be"),
        ({"rate": 0.0}, "rate is 0.0; rate must be over 0, below 1."),
        ({"rate": 1.0}, "rate is 1.0; rate must be over 0, below 1."),
        ({"rate": float("nan")}, "rate is nan; rate must be"),
        ({"name": "c"}, "name is 'c'; name must be one of a, b."),
        ({"only": "y"}, "only is 'y'; only must be 'x'."),
        ({"most": 0}, "most is 0; most must be at least 1."),
    ],
)
def test_an_error_names_the_field_the_value_and_the_rule(change, message):
    with pytest.raises(ValueError) as error:
        Example(**change)
    assert str(error.value).startswith(message)


def test_a_seed_of_examples_that_are_not_drawn():
    with pytest.raises(ValueError, match="data_seed is 5; data_seed must be None without max_examples"):
        Hparams(data_seed=5)
    assert Hparams(data_seed=5, max_examples=10).data_seed == 5


@pytest.mark.parametrize("change", [{}, {"count": 5}, {"only": "x"}, {"most": None}, {"free": -7}])
def test_settings_inside_their_bounds(change):
    assert dataclasses.asdict(Example(**change)) == dataclasses.asdict(Example()) | change


def parse(*arguments: str, without: tuple[str, ...] = ()) -> dict:
    parser = argparse.ArgumentParser()
    add_flags(parser, Example, without=without)
    return given_settings(parser.parse_args(arguments), Example)


def test_flags_have_the_types_of_the_fields():
    assert parse() == {}
    words = "--count 2 --rate 1e-3 --name b --most 4 --fast --rates 1 2 --rates 3"
    assert parse(*words.split()) == {
        "count": 2,
        "rate": 1e-3,
        "name": "b",
        "most": 4,
        "fast": True,
        "rates": [1.0, 2.0, 3.0],
    }


def test_wrong_flags(capsys):
    with pytest.raises(SystemExit):
        parse("--name", "c")
    assert "invalid choice: 'c'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse("--name", "b", without=("name",))
    assert "unrecognized arguments: --name b" in capsys.readouterr().err


def test_help_has_the_default_as_a_person_writes_it():
    parser = argparse.ArgumentParser()
    add_flags(parser, Example)
    helps = {action.dest: action.help for action in parser._actions}
    assert helps["rate"] == "a rate (default: 5e-5)"
    assert helps["rates"] == "several rates (default: 0.001 1)"
    assert helps["most"] == "a limit (default: all)"
    assert helps["fast"] == "a switch"


def test_settings_are_described_with_the_values_of_an_instance():
    lines = describe(Example(count=2), without=("rates",)).splitlines()
    assert lines[0].split() == "count a count (default: 2)".split()
    assert "one of a, b" in [line.strip() for line in lines]
    assert not any("rates" in line for line in lines)


def choices(kind: type, name: str) -> set[str]:
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    return {*field.metadata["choices"]}


@pytest.mark.parametrize(
    ("kind", "name", "implemented"),
    [
        (Hparams, "schedule", SCHEDULES),
        (PretrainHparams, "optimizer", OPTIMIZERS),
        (Sampling, "sampler", SAMPLERS),
        (options.ClassifierOptions, "pooling", POOLINGS),
        (options.ExportOptions, "embedding", [*embedding.POOLINGS, "word"]),
        (options.FeatureOptions, "format", WRITERS),
        (options.FeatureOptions, "dtype", DTYPES),
        (options.VocabularyOptions, "kind", KINDS),
        (options.TaggingOptions, "context", options.TAGGING_DEFAULTS),
        (options.AblationOptions, "scale", SCALES),
    ],
)
def test_every_choice_is_implemented(kind, name, implemented):
    assert choices(kind, name) == {*implemented}


def test_every_ablation_is_implemented():
    assert options.ABLATIONS == tuple(ABLATIONS)


def test_every_field_of_the_settings_has_help():
    kinds = [
        kind for kind in [*vars(settings).values(), *vars(options).values()] if dataclasses.is_dataclass(kind)
    ]
    assert len(kinds) > 10
    for kind in (*kinds, Masking):
        assert all(field.metadata["help"] for field in dataclasses.fields(kind)), kind
