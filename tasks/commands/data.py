"""Commands that make files from text: instances, vocab, triviaqa and features.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import functools
import os
import pathlib
import sys

from bert_keras.cli.console import PATH, SEVERAL, Command, progress, start, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import Masking, add_flags, flag_of, given_settings, names_of
from bert_keras.io.paths import to_path
from bert_keras.tasks.commands.early import check_paths, check_text
from bert_keras.tasks.commands.flags import (
    CHECKPOINT_HELP,
    TEXT_HELP,
    TEXT_NOTES,
    VOCAB_HELP,
    add_recipe,
    add_recipe_settings,
    add_segmenter,
    add_show,
    segmenter,
    show_all,
    slow_precision,
)
from bert_keras.tasks.hparams import PretrainHparams, Sampling
from bert_keras.tasks.options import FeatureOptions, TriviaQaOptions, VocabularyOptions
from bert_keras.tasks.pretraining.recipes import recipe_named

# -----------------------------------------------------------------------------------------------------------
# instances

INSTANCES_NOTES = """The files do not depend on the number of processes, nor on Beam. Rerun the same command to resume. pretrain
--records, and the scripts of Google and Model Garden, read the folder.

--beam runs an Apache Beam pipeline (the `beam` extra). Flags of Beam and its runner follow `--`; without --runner, the pipeline
runs in this process. Workers on other machines need bert-keras, and text, vocabulary and output that all of them can reach:
  bert-keras instances --text gs://BUCKET/text --vocab gs://BUCKET/vocab --output gs://BUCKET/instances \\
      --beam -- --runner=DataflowRunner --project=PROJECT --region=REGION --temp_location=gs://BUCKET/tmp

"""


def _add_instances(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--vocab", **PATH, required=True, help=VOCAB_HELP)
    add(
        "--output",
        **PATH,
        required=True,
        help="folder for the files: new, empty, or with the same command's unfinished files",
    )
    add_recipe(parser)
    add(
        "--masks",
        action="store_true",
        help="write static masks (default: new masks in every epoch of training)",
    )
    add_segmenter(parser)
    add_show(parser)
    add_flags(parser, PretrainHparams, only=("seed",))
    add("--workers", type=int, help="processes (default: one for each core)")
    add("--gzip", action="store_true", help="compress the files")
    add("--beam", action="store_true", help="run as an Apache Beam pipeline (see below)")
    add(
        "beam_options",
        nargs="*",
        metavar="-- BEAM_OPTION",
        help="flags of Beam and its runner, after --beam --",
    )
    add_recipe_settings(parser, ("instances", "masks"))


def _run_instances(args: argparse.Namespace) -> None:
    if args.beam_options and not args.beam:
        raise BertKerasError(
            f"{args.beam_options[0]} is no flag of instances; flags of Beam follow --beam --."
        )
    if args.beam and args.workers is not None:
        raise BertKerasError(
            "--workers does not apply to --beam; give the flags of its runner after --beam --."
        )
    check_text(args)
    start()
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.pretraining.write_records import Job, write_records

    settings = given_settings(args, Sampling, Masking)
    if not args.masks and (unread := [flag_of(name) for name in settings if name in names_of(Masking)]):
        raise BertKerasError(
            f"{unread[0]} applies only to static masks; give --masks, or give {unread[0]} to pretrain."
        )
    length = settings.pop("seq_length", Sampling.seq_length)
    recipe = recipe_named(args.recipe).changed(**settings)
    tokenizer, corpora = checkpoints.load_tokenizer(args.vocab), open_corpora(args.text)
    segment = args.segmenter and segmenter(args.segmenter)
    if args.show is not None:
        known = {"tokenizer": tokenizer, "documents": corpora, "segment": segment}
        settings = {"seq_length": length, **given_settings(args, PretrainHparams)}
        show_all(recipe.changed(**settings), count=args.show, **known)
        return
    lower_case = tokenizer.lower_case  # once, so that workers need not guess it
    job = Job(
        path=to_path(args.output),
        make_tokenizer=functools.partial(checkpoints.load_tokenizer, args.vocab, lower_case=lower_case),
        settings=recipe.sampling(length),
        masking=recipe.masking(length) if args.masks else None,
        segment=segment,
        seed=PretrainHparams(**given_settings(args, PretrainHparams)).seed,
        compress=args.gzip,
    )
    if args.beam:
        from bert_keras.tasks.pretraining.beam_records import write_records_with_beam

        summary = write_records_with_beam(
            corpora, job, options=args.beam_options, vocabulary=to_path(args.vocab)
        )
    else:
        workers = (os.cpu_count() or 1) if args.workers is None else args.workers
        with progress("writing", None, unit="documents") as advance:
            summary = write_records(corpora, job, workers=workers, progress=advance)
    rows = [
        ("documents", f"{summary.documents:,}"),
        ("instances", f"{summary.instances:,}"),
        ("labels that are 1", "-" if summary.label_rate is None else f"{summary.label_rate:.1%}"),
        ("mean length", f"{summary.mean_length:.1f}"),
        ("padding", f"{summary.padding:.1%}"),
        ("chunks skipped", f"{summary.skipped:,}"),
        ("tokens in no instance", _share(summary.cut, summary.tokens)),
        ("tokens that are [UNK]", _share(summary.unknown, summary.tokens)),
    ]
    table(("fact", "value"), rows, title=str(args.output))
    for warning in summary.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _share(count: int, total: int) -> str:
    return f"{count:,} of {total:,} ({count / max(total, 1):.1%})"


# -----------------------------------------------------------------------------------------------------------
# vocab

VOCAB_NOTES = """The folder has vocab.txt, ALBERT's spiece.model, or GPT's vocab.json and merges.txt, and tokenizer_config.json;
use it as `pretrain --vocab`. The same text gives the same bytes. WordPiece and GPT's BPE need the `vocabulary` extra, and memory
for the distinct words of the text. A vocabulary of words, for word vectors, has the most frequent ones.

"""
# The settings of some kinds alone.
OF_KIND = {"unused": ("wordpiece",), "alphabet": ("wordpiece", "gpt-bpe"), "min_count": ("words",)}


def _add_vocab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    parser.add_argument("--output", **PATH, required=True, help="folder for the vocabulary, new or empty")
    add_flags(parser, VocabularyOptions)


def _run_vocab(args: argparse.Namespace) -> None:
    check_text(args)
    start()
    from bert_keras.tasks.pretraining.corpus import open_corpora
    from bert_keras.tasks.pretraining.vocabulary import write_vocabulary

    given = given_settings(args, VocabularyOptions)
    options = VocabularyOptions(**given)
    settings = {name: value for name, value in given.items() if name not in ("kind", "size", "cased")}
    if others := [name for name in settings if options.kind not in OF_KIND[name]]:
        raise BertKerasError(
            f"{flag_of(others[0])} applies only to --kind {' or '.join(OF_KIND[others[0]])}; leave it out."
        )
    with progress("reading", None, unit="documents") as advance:
        tokenizer, documents = write_vocabulary(
            open_corpora(args.text),
            args.output,
            kind=options.kind,
            size=options.size,
            lower_case=not options.cased,
            progress=advance,
            **settings,
        )
    print(f"{args.output}: {tokenizer.vocab_size:,} tokens, learned from {documents:,} documents")
    if tokenizer.vocab_size < options.size:
        print(f"warning: the text has too few words for {options.size:,} tokens", file=sys.stderr)


# -----------------------------------------------------------------------------------------------------------
# triviaqa

TRIVIAQA_NOTES = """The BERT paper fine-tunes on this data before SQuAD: a paragraph is the first 400 tokens of a Wikipedia
document, if one of the question's possible answers is in them. TensorFlow Datasets fetches trivia_qa/rc. Use the file as
`finetune --task squad1.1 --data`, with SQuAD's dev file as `--dev-data`.

"""


def _add_triviaqa(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", **PATH, required=True, help="the file to write; it must not exist")
    add_flags(parser, TriviaQaOptions)


def _run_triviaqa(args: argparse.Namespace) -> None:
    start()
    from bert_keras.tasks.data.squad import convert_triviaqa

    options = TriviaQaOptions(**given_settings(args, TriviaQaOptions))
    with progress("reading", None, unit="questions") as advance:
        counts = convert_triviaqa(
            options.split, args.output, tokens=options.tokens, limit=options.limit, progress=advance
        )
    print(
        f"{args.output}: {counts.paragraphs:,} of {counts.documents:,} documents have an answer, for {counts.answered:,} of "
        f"{counts.questions:,} questions"
    )


# -----------------------------------------------------------------------------------------------------------
# features

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
    check_paths(args)
    start()
    from bert_keras.tasks.data.sources import numbered_lines
    from bert_keras.tasks.frozen.extract_file import extract_file

    slow_precision(getattr(args, "precision", None))
    total = None
    if pathlib.Path(args.input).is_file():  # else `extract_file` raises an error
        total = sum(1 for _ in numbered_lines(pathlib.Path(args.input)))
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
    "instances": Command(
        "write pre-training instances as TFRecord files with Google's feature names",
        "--text corpus.txt --vocab vocab --seq-length 128 --output instances/128 --masks --dupe-factor 10",
        _add_instances,
        _run_instances,
        notes=TEXT_NOTES + INSTANCES_NOTES,
    ),
    "vocab": Command(
        "learn a vocabulary of WordPiece, GPT's BPE, SentencePiece or words from text",
        "--text corpus.txt --output vocab --size 30522",
        _add_vocab,
        _run_vocab,
        notes=TEXT_NOTES + VOCAB_NOTES,
    ),
    "triviaqa": Command(
        "write TriviaQA's Wikipedia paragraphs as a SQuAD 1.1 file",
        "--output triviaqa/train-v1.1.json",
        _add_triviaqa,
        _run_triviaqa,
        notes=TRIVIAQA_NOTES,
    ),
    "features": Command(
        "write a frozen encoder's vectors for every word or token of a text",
        "--checkpoint bert-base-uncased --input corpus.txt --output corpus.parquet --format parquet",
        _add_features,
        _run_features,
        notes=FEATURES_NOTES,
    ),
}
