"""Parts that commands share: flags of tasks, checkpoints, runs, recipes, text and strategies, and the start of a training.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import copy
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from bert_keras.cli.console import PATH, SEVERAL, note, print_errors_only, quiet_start, start
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, complete_with, flag_of, format_value, given_settings, names_of
from bert_keras.io.own_code import is_own, load_own
from bert_keras.io.paths import to_path
from bert_keras.model.choices import VECTOR_POOLINGS, slowness
from bert_keras.tasks.devices.cluster import CLUSTER, check_cluster
from bert_keras.tasks.hparams import STRATEGIES, Hparams
from bert_keras.tasks.options import (
    PRETRAINED_TASKS,
    TAGGING_DEFAULTS,
    TASK_DEFAULTS,
    TASK_NAMES,
    TASK_OPTIONS,
    EmbeddingOptions,
    SquadOptions,
    TrainedOptions,
)
from bert_keras.tasks.pretraining.recipes import RECIPES, Recipe, Shorthands, recipe_named

CHECKPOINT_HELP = (
    "Hugging Face, Google, KerasHub or Model Garden checkpoint, by path or name (bert-base-uncased)"
)
DATA_HELP = (
    "folder of the task's files, or one file (default for GLUE, SQuAD and CoNLL-2003: TensorFlow Datasets fetches them). "
    "GLUE and custom read .csv, .tsv, .jsonl, .json and .parquet"
)
RUNS_HELP = (
    "folder that finetune wrote, or the .keras file of a TextModel; several runs form an ensemble: their outputs are "
    "averaged"
)
SAVE_HELP = (
    "steps between two saves, each three times the size of the weights; 0 saves nothing; rerun the same command to resume an "
    "interrupted run; the saves stay after the end only if the flag was given"
)
TEXT_HELP = "files, folders or tfds:NAME (format: see below)"
VOCAB_HELP = "a vocab.txt, a spiece.model or a folder with one of them"
TEXT_NOTES = """text:
  SOURCE[,lines=KEY][,encoding=NAME][,split=NAME]; several sources form one corpus. Folders, .zip files and MediaWiki
  dumps (.xml) are read completely; .gz, .bz2 and .xz are unpacked. By default each line is a sentence and a blank line
  ends a document. lines=paragraph: each line is a paragraph and a blank line ends a document. lines=document: each
  line is a document. lines=wrapped: a blank line ends a paragraph and each file is a document.

"""


def add_strategy(parser: argparse.ArgumentParser, *, trains: bool = True) -> None:
    """Adds --strategy. trains: False leaves multiworker out: each process can take a part of the input instead."""
    text = "tf.distribute strategy (default: one)"
    choices = [name for name in STRATEGIES if trains or name != "multiworker"]
    parser.add_argument("--strategy", default="one", choices=choices, help=text)


def start_strategy(strategy_name: str, *, deterministic: bool = True) -> None:
    """Starts TensorFlow, and joins the cluster of a strategy that has one. Only the chief then reports."""
    if strategy_name == "multiworker":
        if others := check_cluster(os.environ.get(CLUSTER)):
            note(f"waiting for the other workers, {', '.join(others)}; Ctrl-C stops")

    def join() -> None:
        from bert_keras.tasks.devices.strategies import strategy

        strategy(strategy_name)

    start(deterministic=deterministic, join=join)
    from bert_keras.tasks.devices.strategies import strategy
    from bert_keras.tasks.devices.workers import Workers

    workers = Workers(strategy(strategy_name))
    if workers.count > 1:
        note(
            f"all {workers.count} workers are here; {'this one' if workers.chief else 'another one'} is the chief, which reports"
        )
    if not workers.chief:
        print_errors_only()


def slow_precision(precision: str | None) -> None:
    """Prints a warning if the processor has no instructions for a format. It imports TensorFlow."""
    from bert_keras.tasks.devices.strategies import is_accelerated

    for line in slowness(precision or "float32", accelerated=is_accelerated()):
        print(line, file=sys.stderr)


def default_notes() -> str:
    """The tasks whose defaults differ from those of Hparams, with the equivalent flags."""
    common = Hparams()
    tasks = TASK_DEFAULTS | {
        f"conll2003 --context {context}": defaults for context, defaults in TAGGING_DEFAULTS.items()
    }
    lines = []
    for task, defaults in tasks.items():
        flags = [
            f"{flag_of(name)} {format_value(value)}"
            for name, value in defaults.items()
            if value != getattr(common, name)
        ]
        lines.append(f"  {task:31}{' '.join(flags)}\n")
    return "Some tasks have defaults from their papers:\n" + "".join(lines) + "\n"


def add_task(parser: argparse.ArgumentParser, *, holds_out: bool = True) -> None:
    """Adds --task, --data and --dev-data. holds_out: True if the command has --dev-fraction too."""
    instead = "; or give --dev-fraction" if holds_out else ""
    add = parser.add_argument
    task = add(
        "--task",
        required=True,
        help="a GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), custom, squad1.1, squad2.0, swag, codah, "
        "conll2003, fill-mask, next-sentence, sentence-order or embedding; or MODULE:CLASS, a task of your own",
    )
    complete_with(task, TASK_NAMES)
    add("--data", **PATH, help=DATA_HELP)
    add("--dev-data", **PATH, help=f"file of the dev split, if --data is the training file{instead}")


def add_task_options(parser: Any, *, without: Iterable[str] = ()) -> None:
    """Adds a flag for each option of each task. without: names of options that the command does not have."""
    seen = {*without}
    for options in TASK_OPTIONS:
        add_flags(parser, options, without=tuple(seen), negatable=options is EmbeddingOptions)
        seen |= {*names_of(options)}
    if (
        flag := parser._option_string_actions.get("--pooling")
    ) is not None:  # of two tasks, which check its value
        flag.choices = (*flag.choices, *VECTOR_POOLINGS)
        flag.help += f"; or how an embedding pools the tokens: {', '.join(VECTOR_POOLINGS)}"


def add_own_settings(parser: Any, words: Sequence[str]) -> None:
    """Adds the flags of the user's own task or recipe that a command line names, and hides flags that --run does not take.

    words: of the command line; `--task MODULE:CLASS` and `--recipe MODULE:NAME` are imported
    """
    if any(word.partition("=")[0] == "--run" for word in words):  # which has its own task
        for action in parser._actions:
            if action.container.title == OF_CHECKPOINT and action.dest not in OF_RUN:
                action.help = argparse.SUPPRESS
    for flag, settings_of in {"--task": _settings_of_task, "--recipe": _settings_of_recipe}.items():
        given = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        given.add_argument(flag, dest="name", nargs="?")
        name = given.parse_known_args(words)[0].name or ""
        if not is_own(name):
            continue
        with quiet_start():
            found = settings_of(name)
        for settings in found:
            add_flags(parser.add_argument_group(f"settings of {name}"), settings, negatable=True)


def _settings_of_task(name: str) -> list[type]:
    from bert_keras.tasks.runs.task_types import task_type

    settings = task_type(name).settings
    return [] if settings is None else [settings]


def _settings_of_recipe(name: str) -> list[type]:
    return [*recipe_named(name).own_settings]


def task_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The given options of the task of --task, a user's own too."""
    own = _settings_of_task(args.task) if args.task and is_own(args.task) else []
    found = given_settings(args, *TASK_OPTIONS, *own)
    # The commands of `add_model` have flags of their own with the names of options of vectors.
    return {name: value for name, value in found.items() if not ("run" in args and name in OF_VECTORS)}


def add_feature_cache(parser: argparse.ArgumentParser) -> None:
    """Adds --feature-cache."""
    parser.add_argument(
        "--feature-cache",
        **PATH,
        help="folder that keeps the vectors of --feature-layers for further trainings on the same data and checkpoint (default: "
        "they are removed when the training is finished)",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds --run; and --checkpoint, whose task is that of its own head or --task, with the options of its task."""
    add = parser.add_argument
    add("--run", **PATH, **SEVERAL, help=RUNS_HELP)
    add("--checkpoint", **PATH, help="a checkpoint with a head instead of --run, by path or name")
    group = parser.add_argument_group(OF_CHECKPOINT)
    add_task_options(group, without=("measure", *OF_VECTORS))


OF_VECTORS = names_of(EmbeddingOptions)
OF_CHECKPOINT = "options of a checkpoint's task, with --checkpoint"
# Options of a task that a run takes too: they say how data is read or measured, and what an answer shows.
OF_RUN = ("quoting", "answer_language", "n_best")


def adjusted(task: Any, args: argparse.Namespace) -> Any:
    """The task with the settings of a trained task that were given. Raises BertKerasError for one that it does not have."""
    given = given_settings(args, SquadOptions, TrainedOptions)
    known = {name: value for name, value in given.items() if name in (*OF_RUN, *names_of(TrainedOptions))}
    if unknown := [flag_of(name) for name in known if name not in task.adjustable]:
        raise BertKerasError(f"{unknown[0]} does not apply to {task.name}; leave it out.")
    changed = copy.copy(task)
    changed.asked = frozenset(known)
    for name, value in known.items():
        if hasattr(task, name):
            setattr(changed, name, value)
    return changed


def check_tau_curve(task: Any, path: str | None) -> None:
    """Raises BertKerasError for a curve of a task without tau, or into a file that cannot be written."""
    if path is None:
        return
    if "tau" not in task.calibrated:
        raise BertKerasError(f"--tau-curve does not apply to {task.name}, which has no tau; leave it out.")
    if to_path(path).suffix not in (".svg", ".png") or not to_path(path).parent.is_dir():
        raise BertKerasError(f"--tau-curve {path} is no .svg or .png file in a folder that exists; give one.")


_HEADS = (*PRETRAINED_TASKS, "embedding")  # of which a checkpoint has several; any encoder is an embedding


def add_pretrained_task(parser: Any) -> None:
    """Adds --task, for a checkpoint with several heads."""
    text = (
        f"with --checkpoint: use this head, {', '.join(_HEADS)} (default: the head that its config.json names); with a "
        "run of a task of your own: MODULE:CLASS"
    )
    task = parser.add_argument("--task", type=_task_name, metavar="TASK", help=text)
    complete_with(task, _HEADS)


def _task_name(given: str) -> str:
    if given not in _HEADS and not is_own(given):
        raise argparse.ArgumentTypeError(f"{given!r} is not {', '.join(_HEADS)} or MODULE:CLASS")
    return given


# -----------------------------------------------------------------------------------------------------------
# Recipes and text of pre-training

BERT = RECIPES["bert"]
# The groups of flags in the help, and the defaults in it.
RECIPE_GROUPS: dict[str, Any] = {
    "several settings in one": Shorthands,
    "training": BERT.hparams,
    "encoder, unless --size or --checkpoint decides": BertConfig,
    "instances": BERT.sampling(),
    "masks": BERT.masking(),
}


class _Gone(argparse.Action):
    """--set NAME=VALUE, in place of which there are flags."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.error(f"--set is gone: give {', '.join(flag_of(value.partition('=')[0]) for value in values)}")


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Adds --recipe."""
    text = f"objectives and settings of a paper: {', '.join(RECIPES)} (default: bert)"
    text += "; or MODULE:NAME, a recipe of your own"
    recipe = parser.add_argument("--recipe", default="bert", type=_recipe_name, metavar="RECIPE", help=text)
    complete_with(recipe, RECIPES)


def _recipe_name(given: str) -> str:
    if given not in RECIPES and not is_own(given):
        raise argparse.ArgumentTypeError(
            f"invalid choice: {given!r} (choose from {', '.join(RECIPES)}, or MODULE:NAME)"
        )
    return given


def recipe_of(args: argparse.Namespace, *settings: type) -> Recipe:
    """The recipe of --recipe with the settings that were given, a user's own too. settings: classes of settings."""
    recipe = recipe_named(args.recipe)
    return recipe.changed(**given_settings(args, *settings, *recipe.own_settings))


def add_recipe_settings(
    parser: argparse.ArgumentParser,
    titles: Iterable[str] = RECIPE_GROUPS,
    *,
    note: str = "defaults: those of the recipe bert",
) -> None:
    """Adds a flag for each setting of a recipe. titles: keys of RECIPE_GROUPS; note: follows each title in the help."""
    parser.add_argument("--set", nargs="+", action=_Gone, help=argparse.SUPPRESS)
    seen: set[str] = set()
    for title in titles:
        group, settings = parser.add_argument_group(f"{title} ({note})"), RECIPE_GROUPS[title]
        add_flags(group, settings, without=tuple(seen), negatable=True)
        seen |= {*names_of(settings)}


def add_segmenter(parser: argparse.ArgumentParser) -> None:
    """Adds --segmenter."""
    text = "splits a line into words (str -> list of str), for whole-word masking in languages without spaces"
    parser.add_argument("--segmenter", metavar="MODULE:FUNCTION", help=text)


def add_show(parser: argparse.ArgumentParser) -> None:
    """Adds --show."""
    text = "print this many instances, with masks as training draws them and the labels of pairs, and write nothing"
    parser.add_argument("--show", type=int, metavar="N", help=text)


def show_all(recipe: Recipe, **known: Any) -> None:
    """Prints instances, two lines for each. known: the arguments of `show_instances`."""
    from bert_keras.tasks.pretraining.show import show_instances

    for line in show_instances(recipe, **known):
        print(line)


def segmenter(given: str) -> Any:
    """Imports the function that MODULE:FUNCTION names."""
    return load_own(given, given="--segmenter")
