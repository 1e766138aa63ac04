"""The command fill-mask.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bert_keras.cli.console import PATH, Command, note, progress, start
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.json_files import as_json
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.finetuning import inference_of, records
from bert_keras.tasks.data.tables import STANDARD_INPUT, read_examples
from bert_keras.tasks.options import FillMaskOptions, InferenceOptions

FILL_MASK_NOTES = """Each [MASK], or <mask>, in a text is filled independently of the others. A token that starts with ##
continues the word before it. In RoBERTa's vocabulary, a token that starts with Ġ starts a word, and other tokens continue it.

"""


def _add_fill_mask(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="*", help="texts with [MASK] (default: lines of standard input)")
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="a checkpoint with a masked LM head, by path or name, or a run of pretrain",
    )
    add_flags(parser, FillMaskOptions)
    add("--json", action="store_true", help="print one JSON object per line instead of tables")
    add_flags(parser, InferenceOptions, only=("batch_size",))


def _run_fill_mask(args: argparse.Namespace) -> None:
    batch_size = inference_of(args).batch_size
    check_paths(args)
    start()
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.unfinished import read_unfinished
    from bert_keras.tasks.problems.fill_mask import TEXT, FillMask, count_masks
    from bert_keras.tasks.runs.run_folder import is_run, load_run, run_of
    from bert_keras.text.rules import MASK

    if unmasked := [text for text in args.text if not count_masks(text)]:
        raise BertKerasError(
            f"there is no {MASK} in {unmasked[0]!r}; write it in place of the word to predict."
        )
    model, options = checkpoints.resolve(args.checkpoint), given_settings(args, FillMaskOptions)
    if unfinished := read_unfinished(model.path):
        note(f"{model.path} is {unfinished}")
        run = run_of(FillMask(**options), unfinished.checkpoint)
    elif is_run(model):
        run = load_run(model)
        if not isinstance(run.task, FillMask):
            raise BertKerasError(
                f"{model.path} is a run of {run.task.name}; give a checkpoint with a masked LM head."
            )
        run = dataclasses.replace(run, task=FillMask(**options))
    else:
        run = run_of(FillMask(**options), model)
    given = iter([{TEXT: text} for text in args.text])
    examples = given if args.text else read_examples(STANDARD_INPUT, (TEXT,))
    with progress("filling", None) as advance:
        for example, record in records(run, examples, batch_size=batch_size, progress=advance):
            _warn_of_masks(example[TEXT], record["masks"], run.preprocess.seq_length)
            if args.json:
                print(as_json(example | record, ensure_ascii=False))
            else:
                _show_masks(example[TEXT], record["masks"])


def _warn_of_masks(text: str, masks: Sequence[Mapping[str, Any]], seq_length: int) -> None:
    cut = sum(not mask["tokens"] for mask in masks)
    if not masks:
        print(f"warning: there is no [MASK] in {text[:60]!r}", file=sys.stderr)
    elif cut:
        about = (
            f"{cut} of {len(masks)} [MASK] in {text[:60]!r} were cut off: the model reads {seq_length} tokens"
        )
        print(f"warning: {about}", file=sys.stderr)


def _show_masks(text: str, masks: Sequence[Mapping[str, Any]]) -> None:
    """Prints the text with its masks marked, then the tokens for each mask with their probabilities as bars."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, emoji=False, highlight=False)
    marked = Text(text)
    marked.highlight_words(["[MASK]", "<mask>"], "bold reverse")
    console.print(marked)
    answered = Table("mask", "token", "probability", "")
    for number, answers in enumerate(masks, start=1):
        for rank, (token, score) in enumerate(zip(answers["tokens"], answers["scores"], strict=True)):
            answered.add_row("" if rank else str(number), token, f"{score:.4f}", "█" * round(40 * score))
        answered.add_section()
    console.print(answered)


COMMANDS = {
    "fill-mask": Command(
        "predict the token for each [MASK] in a text",
        "--checkpoint bert-base-uncased 'The capital of France is [MASK].'",
        _add_fill_mask,
        _run_fill_mask,
        notes=FILL_MASK_NOTES,
    )
}
