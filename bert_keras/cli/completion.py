"""Completion in a shell: the lines that a shell reads at its start, and the answer to each press of the Tab key.

argcomplete does both. The shell runs `bert-keras` with the line so far in $COMP_LINE; the answer needs the parser of one
command, and no TensorFlow.
"""

import argparse
import os
from collections.abc import Callable, Sequence

from bert_keras.cli.console import Command

ASKED = "_ARGCOMPLETE"  # the shell sets it when it asks
SHELLS = {
    "bash": 'eval "$(bert-keras completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(bert-keras completion zsh)" in ~/.zshrc, after compinit',
    "fish": "bert-keras completion fish | source in ~/.config/fish/config.fish",
}


def answer(make_parser: Callable[[Sequence[str]], argparse.ArgumentParser]) -> None:
    """Writes the words that may follow the line so far, and exits. make_parser: the words of the line -> their parser."""
    import argcomplete

    argcomplete.autocomplete(make_parser(os.environ.get("COMP_LINE", "").split()[1:]))


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the output")


def _run(args: argparse.Namespace) -> None:
    import argcomplete

    print(argcomplete.shellcode(["bert-keras"], shell=args.shell))


COMMANDS = {
    "completion": Command(
        help="print the lines that make a shell complete commands, flags and their values",
        example="bash",
        add_flags=_add_flags,
        run=_run,
        notes="where each shell reads them:\n" + "".join(f"  {line}\n" for line in SHELLS.values()) + "\n",
    )
}
