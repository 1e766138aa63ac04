"""The command generate.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse

from bert_keras.cli.console import PATH, Command, progress, start
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.json_files import as_json
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.finetuning import inference_of
from bert_keras.tasks.commands.translate import TEXT, read_pretrained
from bert_keras.tasks.data.tables import STANDARD_INPUT, read_examples
from bert_keras.tasks.options import GenerationOptions, InferenceOptions

GENERATE_NOTES = """The output has each text with its continuation on one line, in the order of the input. Equal texts and flags
give equal output, whatever the --batch-size.

"""


def _add_generate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("text", nargs="*", help="texts to continue (default: the lines of --input)")
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="a run of pretrain --recipe gpt, ulmfit or ltr-no-nsp, or the checkpoint of a GPT",
    )
    add(
        "--input",
        **PATH,
        default=STANDARD_INPUT,
        help="a file, or - for lines of standard input (default: -)",
    )
    add_flags(parser, GenerationOptions)
    add(
        "--json", action="store_true", help="print one JSON object per line, with the tokens, instead of text"
    )
    add_flags(parser, InferenceOptions, only=("batch_size",))


def _run_generate(args: argparse.Namespace) -> None:
    batch_size, options = (
        inference_of(args).batch_size,
        GenerationOptions(**given_settings(args, GenerationOptions)),
    )
    if args.text and args.input != STANDARD_INPUT:
        raise BertKerasError(f"texts and --input {args.input} were given; give one of the two.")
    check_paths(args)
    start()
    from bert_keras.tasks.pretraining.generation import TextGenerator

    texts = args.text or [one[TEXT] for one in read_examples(args.input, (TEXT,))]
    generate = TextGenerator(read_pretrained(args.checkpoint), options)
    with progress("generating", len(texts)) as advance:
        found = generate(texts, batch_size=batch_size, progress=advance)
    for text, one in zip(texts, found, strict=True):
        print(
            as_json({TEXT: text, **one._asdict()}, ensure_ascii=False)
            if args.json
            else text + one.continuation
        )


COMMANDS = {
    "generate": Command(
        "continue texts with a language model that reads from the left, such as GPT",
        "--checkpoint runs/gpt 'the film is' --tokens 20 --top-p 0.9",
        _add_generate,
        _run_generate,
        notes=GENERATE_NOTES,
    )
}
