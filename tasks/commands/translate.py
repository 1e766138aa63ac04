"""The command translate.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import importlib.util
from typing import Any

from bert_keras.cli.console import PATH, SEVERAL, Command, note, progress, start
from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.fields import add_flags, given_settings
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.finetuning import inference_of
from bert_keras.tasks.data.tables import STANDARD_INPUT, read_examples
from bert_keras.tasks.options import InferenceOptions, TranslationOptions

TRANSLATE_NOTES = """The input has one sentence per line, and the output one translation per line, in the same order. Words and
punctuation stand apart as the vocabulary's tokenizer splits them; punctuation and hyphens are joined to their words.

"""
TEXT = "text"


def _add_translate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--checkpoint",
        **PATH,
        **SEVERAL,
        required=True,
        help="a run of pretrain --recipe transformer; of several snapshots of a run the mean of the weights",
    )
    add(
        "--input",
        **PATH,
        default=STANDARD_INPUT,
        help="a file, or - for lines of standard input (default: -)",
    )
    add("--references", **PATH, help="a file of right translations: print the BLEU of sacrebleu at the end")
    add_flags(parser, TranslationOptions)
    add_flags(parser, InferenceOptions, only=("batch_size",))


def _run_translate(args: argparse.Namespace) -> None:
    batch_size = inference_of(args).batch_size
    paths, args.checkpoint = args.checkpoint, None
    for path in paths:
        check_paths(argparse.Namespace(checkpoint=path, input=args.input))
    if args.references and importlib.util.find_spec("sacrebleu") is None:
        raise MissingPackageError("--references needs sacrebleu; install the translation extra.")
    start()
    from bert_keras.tasks.ancestors.transformer import Translator, average, join_punctuation

    texts = [one[TEXT] for one in read_examples(args.input, (TEXT,))]
    wanted = [one[TEXT] for one in read_examples(args.references, (TEXT,))] if args.references else texts
    if len(wanted) != len(texts):
        raise BertKerasError(
            f"{len(texts):,} lines to translate and {len(wanted):,} references; give one of each."
        )
    options = given_settings(args, TranslationOptions)
    translate = Translator(average(map(read_pretrained, paths)), **options)
    with progress("translating", len(texts)) as advance:
        found = translate(texts, batch_size=batch_size, progress=advance)
    found = [join_punctuation(one) for one in found]
    print("\n".join(found))
    if args.references:
        import sacrebleu

        metric = sacrebleu.BLEU()
        note(f"{metric.corpus_score(found, [wanted])}  signature {metric.get_signature()}")


def read_pretrained(path: str) -> Any:
    """A checkpoint, or the last save of an unfinished pre-training."""
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.unfinished import read_unfinished

    model = checkpoints.resolve(path)
    if unfinished := read_unfinished(model.path):
        note(f"{model.path} is {unfinished}")
        return unfinished.checkpoint
    return checkpoints.read(model)


COMMANDS = {
    "translate": Command(
        "translate sentences with a Transformer that was pre-trained on pairs",
        "--checkpoint runs/transformer --input lines.txt --beam 4",
        _add_translate,
        _run_translate,
        notes=TRANSLATE_NOTES,
    )
}
