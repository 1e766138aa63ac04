"""The command attention, and the explanations of `predict --explain`.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from bert_keras.cli.console import PATH, Command, note, start, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.json_files import as_json
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.data.tables import FORMATS_NOTES
from bert_keras.tasks.inspection.offers import MEASURES, PAGE, PICTURES, check_output
from bert_keras.tasks.options import InferenceOptions

NOTES = """A text and --output draw the weights. Without --output, and for the texts of --input, a table says what each head
reads: the mean weight on the previous token, the next token, [SEP], [CLS], the token itself and other tokens of the same word,
and the entropy in bits. Layers and heads are numbered from 1.

"""
WORDS_SHOWN = 5  # words for an answer, and against it, that are named with their scores


def _add_attention(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="*", help="one text, or two texts that the model reads as a pair")
    add("--run", **PATH, help="folder that finetune wrote, or the .keras file of a TextModel")
    add("--checkpoint", **PATH, help="a checkpoint instead of --run, by path or name; it needs no head")
    add("--input", **PATH, help="summarize the texts of a file (see below), or - for lines of standard input")
    add("--output", **PATH, help="a picture, .png or .svg, or a page to explore, .html")
    for name in ("layer", "head"):
        add(f"--{name}", type=int, metavar="N", help=f"this {name} alone; the first is 1")
    add("--sort", choices=MEASURES, help="sort the table by a column, the largest number first")
    add_flags(parser, InferenceOptions, only=("batch_size",))
    add("--json", action="store_true", help="print the table as one JSON object per head")


def _check(args: argparse.Namespace) -> None:
    """Raises BertKerasError for flags that contradict each other, before TensorFlow is imported."""
    if bool(args.run) == bool(args.checkpoint):
        raise BertKerasError("give --run or --checkpoint.")
    if bool(args.text) == bool(args.input):
        raise BertKerasError("give a text, or a file as --input.")
    if len(args.text) > 2:
        raise BertKerasError(f"{len(args.text)} texts were given; give one, or two for a pair, in quotes.")
    if args.output:
        check_output(args.output, (*PICTURES, PAGE))
        if (args.layer is None) != (args.head is None):
            raise BertKerasError("one head is drawn by its layer and its head; give --layer and --head.")
    if args.output and args.input:
        raise BertKerasError("--output draws one text; give the text in place of --input.")
    check_paths(argparse.Namespace(run=[args.run] if args.run else [], checkpoint=args.checkpoint))


def _run_attention(args: argparse.Namespace) -> None:
    batch_size = InferenceOptions(**given_settings(args, InferenceOptions)).batch_size
    _check(args)
    start()
    from bert_keras.tasks.inspection.attention import attention, attention_summary
    from bert_keras.tasks.inspection.reading import name_texts

    run = _load(args)
    if args.output:
        found = attention(run, *args.text)
        found.save(args.output, layer=args.layer, head=args.head)
        if found.note:
            note(f"{args.output} has {found.note}")
        return
    examples = [*run.task.inputs(args.input)] if args.input else [name_texts(run, *args.text)]
    texts = {name: [example[name] for example in examples] for name in run.task.signature()}
    summary = attention_summary(run, texts, batch_size=batch_size)
    rows = [row for row in summary.rows if args.layer in (None, row[0]) and args.head in (None, row[1])]
    if not rows:
        layers, heads = summary.rows[-1][:2]
        raise BertKerasError(f"the model has layers 1 to {layers} and heads 1 to {heads}; give one of them.")
    if args.sort is not None:
        at = summary.columns.index(args.sort)
        rows.sort(key=lambda row: -(row[at] or 0.0))
    if args.json:
        for row in rows:
            print(as_json(dict(zip(summary.columns, row, strict=True))))
        return
    shown = [["" if value is None else value for value in row] for row in rows]
    table(summary.columns, shown, title=f"{summary.title}: {args.run or args.checkpoint}")


def _load(args: argparse.Namespace) -> Any:
    """The run of --run; of a checkpoint the run of its own task, or its encoder alone where it has no head."""
    from bert_keras import checkpoints
    from bert_keras.tasks.runs.own_head import own_kind, own_run
    from bert_keras.tasks.runs.run_folder import load_run
    from bert_keras.tasks.strings.models import embedder

    if args.run:
        return load_run(args.run)
    checkpoint = checkpoints.read(args.checkpoint)
    if own_kind(checkpoint) is not None:
        return own_run(checkpoint)
    return embedder(checkpoint, pooling="mean").as_run()  # the pooling is not looked at


def explainer(run: Any, method: str | None) -> Callable[[Mapping[str, Any]], list[Any]]:
    """A function: an example of a file -> the explanations of its answers; none without a method.

    Raises BertKerasError, before any prediction, for an ensemble and for a task that is not explained.
    """
    if method is None:
        return lambda example: []
    from bert_keras.tasks.inspection.answers import check_explained
    from bert_keras.tasks.inspection.explanation import explain_example
    from bert_keras.tasks.inspection.reading import one_run

    check_explained(one_run(run).task)
    names = [*run.task.signature()]
    return lambda example: explain_example(run, {name: example[name] for name in names}, method=method)


def show_explanation(explanation: Any) -> None:
    """Prints the words, colored and underlined by their scores, and the strongest words with their numbers."""
    from rich.console import Console
    from rich.text import Text

    console, line = Console(markup=False, emoji=False, highlight=False), Text(f"{explanation.answer}: ")
    for word, share in zip(explanation.words, explanation.shares, strict=True):
        style = "green underline" if share > 0 else "red strike"
        line.append(word, style if abs(share) > 0.05 else "").append(" ")
    console.print(line)
    for name, sign in (("for", 1), ("against", -1)):
        words = [f"{word} {score:+.3f}" for word, score in explanation.table().rows if score * sign > 0]
        console.print(f"  {name}: {', '.join(words[:WORDS_SHOWN]) or 'no word'}")


COMMANDS = {
    "attention": Command(
        "draw what the heads of a model read in a text, or summarize it over many texts",
        "--run runs/sst2 'a charming journey' --output attention.html",
        _add_attention,
        _run_attention,
        notes=NOTES + FORMATS_NOTES,
    )
}
