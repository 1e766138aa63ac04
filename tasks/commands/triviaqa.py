"""The command that makes data for SQuAD: triviaqa.

TensorFlow is imported when the command runs; flags and help need none.
"""

import argparse

from bert_keras.cli.console import (
    PATH,
    Command,
    progress,
    start,
)
from bert_keras.fields import add_flags, given_settings
from bert_keras.tasks.options import TriviaQaOptions

TRIVIAQA_NOTES = """The BERT paper fine-tunes on this data before SQuAD: a paragraph is the first 400 tokens of a Wikipedia
document, if one of the question's possible answers is in them. TensorFlow Datasets fetches trivia_qa/rc. Use the file as
`finetune --task squad1.1 --data`, with SQuAD's dev file as `--dev-data`.

"""


def _add_triviaqa(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", **PATH, required=True, help="the file to write; it must not exist")
    add_flags(parser, TriviaQaOptions)


def _run_triviaqa(args: argparse.Namespace) -> None:
    start()
    from bert_keras.tasks.data.triviaqa import convert

    options = TriviaQaOptions(**given_settings(args, TriviaQaOptions))
    with progress("reading", None, unit="questions") as advance:
        counts = convert(
            options.split, args.output, tokens=options.tokens, limit=options.limit, progress=advance
        )
    print(
        f"{args.output}: {counts.paragraphs:,} of {counts.documents:,} documents have an answer, for {counts.answered:,} of "
        f"{counts.questions:,} questions"
    )


COMMANDS = {
    "triviaqa": Command(
        "write TriviaQA's Wikipedia paragraphs as a SQuAD 1.1 file",
        "--output triviaqa/train-v1.1.json",
        _add_triviaqa,
        _run_triviaqa,
        notes=TRIVIAQA_NOTES,
    ),
}
