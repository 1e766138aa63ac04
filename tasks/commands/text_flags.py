"""Shared by the commands of pre-training: help about text, settings as NAME=VALUE, the segmenter."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from bert_keras.cli.console import SEVERAL
from bert_keras.errors import BertKerasError

TEXT_HELP = "files, folders or tfds:NAME (format: see below)"
VOCAB_HELP = "a vocab.txt, a spiece.model or a folder with one of them"
SEGMENTER_HELP = (
    "splits a line into words (str -> list of str), for whole-word masking in languages without spaces"
)
TEXT_NOTES = """text:
  SOURCE[,lines=KEY][,encoding=NAME][,split=NAME]; several sources form one corpus. Folders, .zip files and MediaWiki
  dumps (.xml) are read completely; .gz, .bz2 and .xz are unpacked. By default each line is a sentence and a blank line
  ends a document. lines=paragraph: each line is a paragraph and a blank line ends a document. lines=document: each
  line is a document. lines=wrapped: a blank line ends a paragraph and each file is a document.

"""
WITH_LENGTH = ("seq_length",)  # not in the notes: it is a flag, or the length of a phase


def pair(given: str) -> tuple[str, str]:
    """Splits `name=value`."""
    name, equals, value = given.partition("=")
    if not equals:
        raise BertKerasError(f"{given!r} has no name; give NAME=VALUE.")
    return name, value


def set_value(given: str) -> tuple[str, Any]:
    """Splits `name=value`; the value is JSON or a plain word."""
    name, value = pair(given)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def settings_of(given: Iterable[str], **flags: Any) -> dict[str, Any]:
    """The settings of --set and of flags of their own, which are None if they were not given.

    Raises BertKerasError for a setting that is given twice with other values.
    """
    found = {name: value for name, value in flags.items() if value is not None}
    for name, value in map(set_value, given):
        if found.setdefault(name, value) != value:
            one, other = (x if isinstance(x, str) else json.dumps(x) for x in (found[name], value))
            raise BertKerasError(f"{name} is given as {one} and as {other}; give it once.")
    return found


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds --set and --segmenter."""
    parser.add_argument("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings (below)")
    parser.add_argument("--segmenter", metavar="MODULE:FUNCTION", help=SEGMENTER_HELP)


def segmenter(given: str) -> Any:
    """Imports the function that MODULE:FUNCTION names."""
    module, _, name = given.partition(":")
    sys.path.append(os.getcwd())  # last, so that no file there hides an installed package, in the workers too
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        found = getattr(sys.modules.get(module), "__file__", None)
        raise BertKerasError(
            f"--segmenter {given}: {error}{f' of {found}' if found else ''}; give MODULE:FUNCTION that can be imported."
        ) from error
