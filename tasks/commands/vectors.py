"""The command `features`.

TensorFlow is imported when it runs; flags and help need none.
"""

import argparse
import pathlib

from bert_keras.cli.console import (
    PATH,
    Command,
    progress,
    start,
)
from bert_keras.fields import add_flags, given_settings
from bert_keras.tasks.commands.flags import CHECKPOINT_HELP, slow_precision
from bert_keras.tasks.options import FeatureOptions

FEATURES_NOTES = """formats:
  jsonl     one object per line: text, tokens, starts and ends (bytes of the line), vectors
  parquet   the same columns, one row per line
A word gets the vector of its first token. Longer lines are read in windows that overlap. Unfinished work is in OUTPUT.part:
rerun the same command to resume.

"""


def _add_features(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", **PATH, required=True, help=CHECKPOINT_HELP)
    add("--input", **PATH, required=True, help="text in UTF-8, one example per line")
    add("--output", **PATH, required=True, help="the file to write; it must not exist")
    add_flags(parser, FeatureOptions)


def _run_features(args: argparse.Namespace) -> None:
    start()
    from bert_keras.tasks.frozen.extract_file import extract_file

    slow_precision(getattr(args, "precision", None))
    total = None
    if pathlib.Path(args.input).is_file():  # else `extract_file` raises an error
        with open(args.input, "rb") as lines:
            total = sum(1 for _ in lines)
    with progress("extracting", total) as advance:
        count = extract_file(
            args.input,
            args.output,
            checkpoint=args.checkpoint,
            progress=advance,
            **given_settings(args, FeatureOptions),
        )
    print(f"{args.output}: vectors of {count:,} lines")


COMMANDS = {
    "features": Command(
        "write a frozen encoder's vectors for every word or token of a text",
        "--checkpoint bert-base-uncased --input corpus.txt --output corpus.parquet --format parquet",
        _add_features,
        _run_features,
        notes=FEATURES_NOTES,
    ),
}
