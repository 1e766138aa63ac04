"""The `bert-keras` command: finds a command's module by its name, reads the flags and runs it.

COMMANDS names the module of each command, beside the code that it runs. No command imports TensorFlow before it runs.
"""

import argparse
import contextlib
import difflib
import importlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import app
from absl.flags import argparse_flags

from bert_keras import __version__
from bert_keras.cli.completion import ASKED, answer
from bert_keras.cli.console import (
    COMMON,
    Command,
    EndNow,
    add_parser,
    escape_missing_characters,
    flush_streams,
    one_line_errors,
    open_closed_streams,
    reporting,
    show_warnings,
    text_ops_of,
)
from bert_keras.io.formats import running
from bert_keras.io.signals import interruptible, terminable

# The modules of the commands, in the order of `--help`.
COMMANDS = {
    "finetune": "bert_keras.tasks.commands.finetuning",
    "pretrain": "bert_keras.tasks.commands.pretraining",
    "instances": "bert_keras.tasks.commands.data",
    "plan": "bert_keras.tasks.commands.pretraining",
    "vocab": "bert_keras.tasks.commands.data",
    "triviaqa": "bert_keras.tasks.commands.data",
    "ablate": "bert_keras.tasks.commands.study",
    "probe": "bert_keras.tasks.commands.study",
    "protocol": "bert_keras.tasks.commands.study",
    "glue": "bert_keras.tasks.commands.study",
    "evaluate": "bert_keras.tasks.commands.finetuning",
    "predict": "bert_keras.tasks.commands.finetuning",
    "attention": "bert_keras.tasks.commands.inspection",
    "fill-mask": "bert_keras.tasks.commands.fill_mask",
    "translate": "bert_keras.tasks.commands.translate",
    "generate": "bert_keras.tasks.commands.generate",
    "index": "bert_keras.tasks.commands.retrieval",
    "search": "bert_keras.tasks.commands.retrieval",
    "mine": "bert_keras.tasks.commands.retrieval",
    "measure": "bert_keras.tasks.commands.retrieval",
    "export": "bert_keras.savedmodels.commands",
    "hub": "bert_keras.savedmodels.commands",
    "serve": "bert_keras.savedmodels.commands",
    "convert": "bert_keras.cli.checkpoint_commands",
    "features": "bert_keras.tasks.commands.data",
    "demo": "bert_keras.savedmodels.commands",
    "info": "bert_keras.savedmodels.commands",
    "doctor": "bert_keras.cli.doctor",
    "models": "bert_keras.cli.checkpoint_commands",
    "completion": "bert_keras.cli.completion",
}

EXAMPLES = """examples:
  bert-keras demo --quick
  bert-keras vocab --text corpus.txt --output vocab
  bert-keras fill-mask --checkpoint bert-base-uncased 'The capital of France is [MASK].'
  bert-keras pretrain --text corpus.txt --vocab vocab --size small --output runs/bert
  bert-keras finetune --task sst2 --data glue/SST-2 --checkpoint bert-base-uncased --output runs/sst2
  bert-keras evaluate --run runs/sst2 --data glue/SST-2
  echo "a charming journey" | bert-keras predict --run runs/sst2
  bert-keras export --run runs/sst2 --output served/sst2
  bert-keras convert --from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check
"""


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point of the console script; exits with 0, 1 (an error), 2 (a wrong flag) or 128 + a signal.

    argv: like sys.argv, starts with the program's name
    """
    open_closed_streams()
    escape_missing_characters()
    try:
        with running((sys.argv if argv is None else argv)[1:]):
            app.run(_run, argv=list(argv) if argv is not None else None, flags_parser=_parse)
    except SystemExit as end:
        flush_streams()
        if isinstance(end, EndNow) and argv is None:
            os._exit(0)
        raise


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    words = argv[1:]
    if ASKED in os.environ:
        answer(lambda line: parser(_named(line)))
    with one_line_errors(debug="--debug" in words):
        made = parser(_named(words), words)
    args, unknown = made.parse_known_args(words)
    if unknown:
        found = _meant(unknown, args.flags)
        mean = f"; did you mean {found[1]}?" if found else ""
        args.refuse(f"unrecognized arguments: {' '.join(unknown)}{mean}")
    return args


def _named(words: Sequence[str]) -> Sequence[str]:
    """The command that the words name; all commands where they name none."""
    return words[:1] if words and words[0] in COMMANDS else tuple(COMMANDS)


def _meant(words: Sequence[str], flags: Iterable[str]) -> tuple[str, str] | None:
    """The first misspelt flag among the words, and the flag that it may mean."""
    named = [word.partition("=")[0] for word in words if word.startswith("--")]
    close = [(name, difflib.get_close_matches(name, flags, 1)) for name in named if name not in flags]
    return next(((name, found[0]) for name, found in close if found), None)


class _Parser(argparse_flags.ArgumentParser):
    """argparse says that a required flag is missing before it says that another one is misspelt."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = [*(args or ())]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> Any:
        if "required" in message and (found := _meant(self._words, self._option_string_actions)):
            message += f"; {found[0]} is no flag: did you mean {found[1]}?"
        super().error(message)


def _run(args: argparse.Namespace) -> None:
    show_warnings(args.flags)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_line_errors(debug=args.debug))
        stack.enter_context(interruptible())
        if args.trains:
            stack.enter_context(terminable())
        stack.enter_context(reporting(quiet=args.quiet))
        stack.enter_context(text_ops_of(args.text_ops))
        args.run_command(args)
        sys.stdout.flush()


def parser(names: Sequence[str], words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of these commands; imports their modules. words: the command line, which may name a user's own code."""
    made = _Parser(
        prog="bert-keras",
        description="BERT for TensorFlow and Keras 3: pre-train, fine-tune, evaluate, predict, export and convert.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # absl's own --run_with_pdb would make --run ambiguous
    )
    for flag, settings in COMMON.items():
        made.add_argument(flag, **settings)
    made.add_argument("--version", action="version", version=f"bert-keras {__version__}")
    group = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        command: Command = importlib.import_module(COMMANDS[name]).COMMANDS[name]
        own = add_parser(
            group,
            name,
            command.help,
            epilog=f"{command.notes}example:\n  bert-keras {name} {command.example}",
        )
        command.add_flags(own)
        command.add_own(own, words)
        own.set_defaults(run_command=command.run, trains=command.trains)
        own.set_defaults(refuse=own.error, flags=[*_flags_of(own)])
    return made


def _flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the flags of a parser and of the parsers below it."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from itertools.chain.from_iterable(map(_flags_of, action.choices.values()))


if __name__ == "__main__":
    main()
