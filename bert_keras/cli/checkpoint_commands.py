"""Commands of checkpoints: convert and models.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import itertools
import json
import os

from bert_keras.cli.console import PATH, Command, start, table

MODELS_NOTES = """Every command that reads the weights of a checkpoint takes the path of a folder, a name or an address:
  bert-base-uncased                   a model of this list
  org/name, hf://org/name@revision    the Hugging Face Hub; a revision is a branch, a tag or a commit
  google://NAME, model_garden://NAME  the archives that Google publishes
  keras_hub://NAME                    a preset of KerasHub
A path that exists comes first. Only plan, which reads a configuration alone, needs a path.

"""


def _add_convert(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--from",
        **PATH,
        dest="source",
        required=True,
        help="the checkpoint: a folder, the prefix of a TensorFlow checkpoint, a model's name, or a file of word vectors",
    )
    add("--to", **PATH, dest="target", required=True, help="folder to write to, new or empty")
    add(
        "--format",
        default="hugging-face",
        help="hugging-face, google, keras-hub or model-garden (default: hugging-face); or the format of an ancestor's own "
        "library: elmo (options.json and weights.hdf5), word2vec, word2vec-binary or glove (one file)",
    )
    add(
        "--vocab",
        **PATH,
        help="from elmo: a vocab.txt of words for ids; without it each word has the id of [UNK], and a vector by its characters",
    )
    add(
        "--check",
        action="store_true",
        help="compare each layer with the library of the source format, if it is installed",
    )


def _run_convert(args: argparse.Namespace) -> None:
    from bert_keras import checkpoints  # NumPy
    from bert_keras.checkpoints.hugging_face import TOP
    from bert_keras.checkpoints.sentence_transformers import MODULES, sentence_folder
    from bert_keras.io.folders import check_folder
    from bert_keras.io.paths import to_path
    from bert_keras.model.encoders import ORIGINALS, original_in

    if args.format in ORIGINALS or original_in(args.source):
        _convert_original(args)
        return
    checkpoints.format_named(args.format)
    check_folder(to_path(args.target))
    checkpoints.check_there(args.source)
    start()
    source = checkpoints.resolve(args.source)
    form = checkpoints.find_format(source)
    # Google, Model Garden and Keras 2 have no library that runs here, and a SavedModel is not run.
    no_library = form in ("google", "model-garden", "saved-model", "keras-2")
    path, compared = (args.target, args.format) if no_library else (source, form)
    if args.check:
        checkpoints.check_reference(compared)
    checkpoint = checkpoints.read(source)
    left = [*checkpoints.write(checkpoint, args.target, format=args.format), *checkpoint.unknown]
    count = len(checkpoint.tensors.keys() - {*left})
    print(f"{form} -> {args.format}: {count} tensors in {args.target}")
    folder = source.path if source.path.is_dir() else source.path.parent
    if (folder / TOP).is_file():
        left.append(f"{TOP}, the BiLSTM and the head of a run with feature layers")
    if sentence_folder(checkpoint.path):
        left.append(f"{MODULES} and its modules, which make the vectors of texts")
    if left:
        print(f"left out: {', '.join(left)}")
    if args.check:
        rows = [(name, f"{value:.1e}") for name, value in checkpoints.compare(path).items()]
        table(
            ("output", "max |difference|"),
            rows,
            title=f"{os.fspath(path)}: this package and the library of {compared}",
        )


def _convert_original(args: argparse.Namespace) -> None:
    """From the files of an ancestor's own library, or to them."""
    from bert_keras import checkpoints
    from bert_keras.model.encoders import original, original_in
    from bert_keras.text.rules import CLASS, Rules
    from bert_keras.text.vocabulary import Vocabulary, read_vocabulary
    from bert_keras.text.wordpiece import BERT_TOKENS

    if given := original_in(args.source):
        # A tokenizer needs a word.
        words = (
            Vocabulary(tokens=(*BERT_TOKENS.values(), "."))
            if args.vocab is None
            else read_vocabulary(args.vocab)
        )
        words = words._replace(lower_case=False, rules=Rules(new_words=CLASS))
        checkpoint, left = original(given).read_checkpoint(args.source, words), []
        checkpoints.write(checkpoint, args.target, format=args.format)
    else:
        checkpoint = checkpoints.read(args.source)
        write = original(args.format).write_checkpoint
        given, left = checkpoint.format, write(checkpoint, args.target, format=args.format)
    print(f"{given} -> {args.format}: {len(checkpoint.tensors) - len(left)} tensors in {args.target}")
    if left:
        print(f"left out: {', '.join(left)}")


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print an array of objects instead of a table")


def _run_models(args: argparse.Namespace) -> None:
    from bert_keras.checkpoints.published import KNOWN

    if args.json:
        print(json.dumps([model.to_json() for model in KNOWN.values()]))
        return
    cased = {True: "yes", False: "no", None: ""}
    for scheme, models in itertools.groupby(KNOWN.values(), lambda model: model.address.partition("://")[0]):
        rows = [
            (model.name, f"{model.parameters / 1e6:,.1f} M", cased[model.cased], model.licence[0])
            for model in models
        ]
        table(("name", "parameters", "cased", "license"), rows, title=f"{scheme}://")
    sources = dict.fromkeys(model.licence[1] for model in KNOWN.values())
    print(f"licenses: {'; '.join(sources)}")


COMMANDS = {
    "convert": Command(
        "convert a checkpoint to another format",
        "--from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check",
        _add_convert,
        _run_convert,
    ),
    "models": Command(
        "list the published models that can be given by name",
        "--json",
        _add_models,
        _run_models,
        notes=MODELS_NOTES,
    ),
}
