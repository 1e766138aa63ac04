"""The `bert-keras` command: each subcommand reads its flags, calls the package and shows what came back.

TensorFlow is imported by the subcommands, never by `--help`.
"""

import argparse
import codecs
import contextlib
import csv
import dataclasses
import functools
import importlib
import io
import itertools
import json
import os
import pathlib
import shlex
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, logging
from absl.flags import argparse_flags

from bert_keras.errors import BertKerasError, MissingFileError, MissingPackageError
from bert_keras.json_files import parse_json
from bert_keras.paths import check_own_packages

PATH: dict[str, Any] = {"type": os.path.expanduser}  # a shell expands no ~ after `=`, nor where it is quoted
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}  # values after a flag, and after it again
# One line for a person. Anything else is a bug and keeps its traceback.
EXPECTED = (BertKerasError, OSError)
DATA_HELP = "folder of the task's files, or one file; without it TensorFlow Datasets fetches them"
RUNS_HELP = "folder that finetune wrote; of several the mean of their outputs is taken"
SAVE_HELP = "steps between two saves; the same command then goes on with a run that was killed"
TEXT_HELP = "files, folders or tfds:NAME, each as below"
VOCAB_HELP = "a vocab.txt, a spiece.model or a folder of one"
SEGMENTER_HELP = "splits a line into words, for whole-word masking where spaces do not: str -> list of str"
TEXT_NOTES = """text:
  SOURCE[,lines=KEY][,encoding=NAME][,split=NAME], several side by side as one corpus. A folder, a .zip and a MediaWiki
  dump (.xml) are read whole, .gz, .bz2 and .xz are unpacked. A line is a sentence, with lines=paragraph a paragraph,
  with lines=document a document; with lines=wrapped a piece of a paragraph, which runs up to a blank line, and a file
  is a document. A blank line ends the documents of the first two.

"""
RECIPES = ("bert", "bert-no-nsp", "ltr-no-nsp", "roberta", "albert", "electra")
CHUNK = 4096  # lines of input that `predict` holds at a time

EXAMPLES = """examples:
  bert-keras demo --quick
  bert-keras vocab --text corpus.txt --output vocab
  bert-keras fill-mask --checkpoint bert-base 'The capital of France is [MASK].'
  bert-keras pretrain --text corpus.txt --vocab vocab.txt --size small --output runs/bert
  bert-keras finetune --task sst2 --data glue/SST-2 --checkpoint minilm --output runs/sst2
  bert-keras evaluate --run runs/sst2 --data glue/SST-2
  echo "a charming journey" | bert-keras predict --run runs/sst2
  bert-keras export --run runs/sst2 --output served/sst2
  bert-keras convert --from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check
"""

# The settings of tasks: type or choices, and what they say.
TASK_OPTIONS: dict[str, tuple[Any, str]] = {
    "doc_stride": (int, "wordpieces from one window of a long text to the next (default: 128)"),
    "max_query_length": (int, "wordpieces of the question that are kept (default: 64)"),
    "max_answer_length": (int, "wordpieces of the longest answer (default: 30)"),
    "n_best": (int, "answers that are listed for each question (default: 20)"),
    "context": (("document", "sentence"), "what a tagged sentence is read with (default: document)"),
    "num_choices": (int, "endings of every example (default: 4)"),
    "pooling": (
        ("pooled", "concat"),
        "what a classifier reads: one position, or maximum and mean too (default: pooled)",
    ),
    "top_k": (int, "pieces that are listed for each [MASK] (default: 5)"),
}

# The fields of Hparams: type or choices, and what they say.
HPARAMS: dict[str, tuple[Any, str]] = {
    "batch_size": (int, "examples in a batch, over all replicas (default: 32)"),
    "epochs": (int, "passes over the training split (default: 3)"),
    "learning_rate": (float, "the highest rate (default: 5e-5)"),
    "warmup_proportion": (float, "share of all steps in which the rate rises (default: 0.1)"),
    "weight_decay": (float, "of kernels; biases and LayerNorm are never decayed (default: 0.01)"),
    "clip_norm": (float, "global norm that gradients are clipped to (default: 1)"),
    "seq_length": (int, "longest sequence in wordpieces (default: 128)"),
    "seed": (int, "of weights, order and dropout (default: 12345)"),
    "max_examples": (int, "train on this many, drawn at random (default: all)"),
    "freeze": (("encoder",), "train the head alone"),
    "bias_correction": (None, "correct Adam's moments for their start at 0"),
    "layer_decay": (float, "rate of each lower layer: that of the layer above, times this (default: 1)"),
    "schedule": (("linear", "slanted_triangular"), "how the rate rises and falls (default: linear)"),
    "unfreeze": (("gradual",), "epoch e trains the head and the top e blocks"),
}

LAYERS = (
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
)

INPUT_FILES = """input files, in UTF-8:
  .tsv .csv   the first line names the columns; those of the task's text are read, blank lines are passed over
  .jsonl      an object a line, with the task's text under its names
              (the endings of a choice: columns endings0, endings1, ...; in .jsonl a list)
  any other   an example a line, as it stands: a blank line is an empty text. Tasks of two texts have a tab
              between them, and further tabs belong to the second. A line ends at a newline, before which one
              carriage return is dropped.
Standard input is read as any other file. Each answer stands beside its text, in the order of the input.

"""

FINETUNE_NOTES = """Some tasks have defaults of their own, those of their papers:
  squad1.1                      --seq-length 384
  squad2.0                      --seq-length 384 --batch-size 48 --epochs 2
  swag, codah                   --batch-size 16 --learning-rate 2e-5
  conll2003                     --seq-length 512 --batch-size 8 --epochs 4
  conll2003 --context sentence  --epochs 4

"""

PRETRAIN_NOTES = """settings, NAME=VALUE with the value in JSON or a plain word:
  training     steps, batch_size, learning_rate, optimizer, warmup_proportion, weight_decay, clip_norm, beta_2,
               bias_correction, max_predictions, seed, log_every, eval_every, held_out_instances, phases ([[length, share
               of the steps], ...]) or seq_length; of ELECTRA replaced_weight, generator_share
  encoder      size, and the fields of its configuration: num_layers, hidden_size, num_heads, hidden_dropout, causal, ...
  instances    sampler, short_seq_prob, strict, dupe_factor
  masks        share, hide, keep, replace, whole_word, max_ngram, random_pieces
The run is a checkpoint: finetune --checkpoint takes it.

"""

INSTANCES_NOTES = """settings, NAME=VALUE with the value in JSON or a plain word:
  instances    sampler, short_seq_prob, strict, dupe_factor
  masks        share, max_predictions, hide, keep, replace, whole_word, max_ngram, random_pieces
The files do not depend on the number of processes. The same command goes on where it was stopped. pretrain --records and
Google's and Model Garden's own scripts read the folder.

"""

FEATURES_NOTES = """formats:
  jsonl     an object a line: text, tokens, starts and ends (bytes of the line), vectors
  parquet   the same columns, a row a line
  npz       vectors, starts and ends of all lines in a row; line i has rows row_splits[i] to row_splits[i + 1]
A word's vector is that of its first wordpiece. Lines longer than a window are read in several that overlap. Until the end
the work is in OUTPUT.part: the same command goes on from there.

"""


FILL_MASK_NOTES = """Several [MASK] in a text are filled independently of each other. ## opens a piece that goes on with the word
before it.

"""

VOCAB_NOTES = """The folder has vocab.txt, or ALBERT's spiece.model, and tokenizer_config.json; `pretrain --vocab` takes it. Equal
text gives equal bytes. WordPiece needs the `vocabulary` extra, and memory for the distinct words of the text.

"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse_flags.ArgumentParser(
        prog="bert-keras",
        description="BERT for TensorFlow and Keras 3: pre-train, fine-tune, evaluate, predict, export and convert.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # absl's own --run_with_pdb would make --run ambiguous
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, example: str, *, notes: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"{notes}example:\n  bert-keras {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        made.set_defaults(run_command=run)
        return made

    add = command(
        "finetune",
        _finetune,
        "fine-tune a checkpoint on a task and keep the best epoch",
        "--task mrpc --data glue/MRPC --checkpoint bert-base --output runs/mrpc --learning-rate 2e-5",
        notes=FINETUNE_NOTES,
    ).add_argument
    add(
        "--task",
        required=True,
        help="a GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli), custom, squad1.1, squad2.0, swag, codah, "
        "conll2003 or fill-mask",
    )
    add("--data", **PATH, help=DATA_HELP)
    add("--dev-data", **PATH, help="file of the dev split, where --data is the file to train on")
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="Hugging Face, Google, KerasHub or Model Garden checkpoint",
    )
    add(
        "--keep-head",
        action="store_true",
        help="start the head from the checkpoint too, which must name its labels",
    )
    add("--output", **PATH, required=True, help="folder of the run, new or empty")
    add(
        "--random-weights",
        action="store_true",
        help="take the checkpoint's sizes and vocabulary, not its weights",
    )
    add(
        "--dev-split",
        help="the split that chooses the best epoch (default: the task's first validation split)",
    )
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored", "tpu"),
        help="tf.distribute strategy (default: one)",
    )
    add("--save-every", type=int, help=SAVE_HELP)
    _add_settings(add, HPARAMS)
    _add_settings(add, TASK_OPTIONS)

    add = command(
        "pretrain",
        _pretrain,
        "pre-train on text or on files of instances, from scratch or from a checkpoint",
        "--recipe bert --size small --text corpus.txt --vocab vocab.txt --held-out 0.02 --output runs/bert \\\n"
        "    --set steps=20000 batch_size=64 bias_correction=true 'phases=[[64, 0.9], [128, 0.1]]'",
        notes=TEXT_NOTES + PRETRAIN_NOTES,
    ).add_argument
    add("--recipe", default="bert", choices=RECIPES, help="a paper's objectives and settings (default: bert)")
    source = commands.choices["pretrain"].add_mutually_exclusive_group(required=True)
    source.add_argument("--text", **PATH, **SEVERAL, help=TEXT_HELP)
    source.add_argument(
        "--records",
        **PATH,
        **SEVERAL,
        help="a folder of instances, one for each phase, or the files of one set",
    )
    add("--held-out", **PATH, help="share of the documents to evaluate on, or text or records of its own")
    add("--vocab", **PATH, help=f"{VOCAB_HELP} (default: the checkpoint's)")
    add("--checkpoint", **PATH, help="continue from it: Hugging Face, Google, KerasHub or Model Garden")
    add(
        "--output",
        **PATH,
        required=True,
        help="folder of the run: new, empty, or of the same run, unfinished",
    )
    add("--size", help="tiny, mini, small, medium, base, large, L-2_H-128 ... (default: the paper's)")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings (below)")
    add("--segmenter", metavar="MODULE:FUNCTION", help=SEGMENTER_HELP)
    add("--save-every", type=int, default=1000, help=f"{SAVE_HELP} (default: 1000)")
    add(
        "--snapshots",
        type=int,
        **SEVERAL,
        default=[],
        metavar="STEP",
        help="keep the weights after these steps too",
    )
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored"),
        help="tf.distribute strategy (default: one)",
    )

    add = command(
        "instances",
        _instances,
        "write pre-training instances as TFRecord files in Google's names",
        "--text corpus.txt --vocab vocab --seq-length 128 --output instances/128 --masks --set dupe_factor=10",
        notes=TEXT_NOTES + INSTANCES_NOTES,
    ).add_argument
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--vocab", **PATH, required=True, help=VOCAB_HELP)
    add(
        "--output",
        **PATH,
        required=True,
        help="folder of the files: new, empty, or begun by the same command",
    )
    add("--recipe", default="bert", choices=RECIPES, help="whose instances and masks (default: bert)")
    add("--seq-length", type=int, default=128, help="positions of an instance (default: 128)")
    add("--masks", action="store_true", help="mask here, the same in every epoch; else training masks anew")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings (below)")
    add("--segmenter", metavar="MODULE:FUNCTION", help=SEGMENTER_HELP)
    add("--seed", type=int, default=12345, help="of all draws (default: 12345)")
    add("--workers", type=int, default=os.cpu_count(), help="processes (default: one for each core)")
    add("--gzip", action="store_true", help="compress the files")

    add = command(
        "vocab",
        _vocab,
        "learn a WordPiece or SentencePiece vocabulary from text",
        "--text corpus.txt --output vocab --size 30522",
        notes=TEXT_NOTES + VOCAB_NOTES,
    ).add_argument
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--output", **PATH, required=True, help="folder of the vocabulary, new or empty")
    add("--kind", default="wordpiece", choices=("wordpiece", "sentencepiece"), help="default: wordpiece")
    add("--size", type=int, default=30_522, help="pieces (default: 30522)")
    add("--cased", action="store_true", help="keep upper case (and, of WordPiece, accents)")
    add("--unused", type=int, help="of WordPiece: [unused] rows (default: 0)")
    add("--alphabet", type=int, help="of WordPiece: characters, the commonest (default: 1000)")

    add = command(
        "ablate",
        _ablate,
        "run one of the paper's ablations and say which of its orderings hold",
        "tasks --text wiki.txt,lines=paragraph --vocab vocab --data sst2=glue/SST-2 mrpc=glue/MRPC \\\n"
        "    --output runs/ablation",
        notes=TEXT_NOTES,
    ).add_argument
    add(
        "ablation",
        choices=("tasks", "size", "masking", "steps"),
        help="table 5, 6 or 8, or figure C.1",
    )
    add("--text", **PATH, **SEVERAL, required=True, help=TEXT_HELP)
    add("--vocab", **PATH, required=True, help=VOCAB_HELP)
    add(
        "--data",
        **PATH,
        **SEVERAL,
        default=[],
        metavar="TASK=PATH",
        help="the files of tasks; others are fetched",
    )
    add(
        "--output", **PATH, required=True, help="folder of all runs; what has finished there is not run again"
    )
    add("--scale", default="small", choices=("small", "paper"), help="small is for 2 cores (default: small)")
    add("--tasks", **SEVERAL, help="tasks to fine-tune on (default: the scale's)")
    add("--restarts", type=int, help="seeds of each fine-tuning (default: the scale's)")
    add("--set", **SEVERAL, default=[], metavar="NAME=VALUE", help="settings of every pre-training")
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored"),
        help="tf.distribute strategy (default: one)",
    )

    add = command(
        "glue",
        _glue,
        "fine-tune on GLUE's tasks by the paper's protocol and write the leaderboard's files",
        "--tasks cola mrpc rte --data glue --checkpoint bert-base --output runs/glue --restarts 5",
    ).add_argument
    add("--tasks", **SEVERAL, help="tasks to train on (default: all nine)")
    add("--data", **PATH, help="folder of GLUE's folders; without it TensorFlow Datasets fetches them")
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="Hugging Face, Google, KerasHub or Model Garden checkpoint",
    )
    add(
        "--output", **PATH, required=True, help="folder of all runs; what has finished there is not run again"
    )
    add("--learning-rates", **SEVERAL, type=float, help="each is tried (default: 5e-5 4e-5 3e-5 2e-5)")
    add("--restarts", type=int, default=1, help="seeds for each learning rate, from --seed on (default: 1)")
    add("--best-only", action="store_true", help="remove the weights of all runs but each task's best")
    add(
        "--strategy",
        default="one",
        choices=("one", "mirrored", "tpu"),
        help="tf.distribute strategy (default: one)",
    )
    _add_settings(add, HPARAMS, without=("learning_rate",))
    _add_settings(add, {"pooling": TASK_OPTIONS["pooling"]})

    add = command(
        "evaluate", _evaluate, "measure a run on a split", "--run runs/mrpc --data glue/MRPC"
    ).add_argument
    add("--run", **PATH, required=True, **SEVERAL, help=RUNS_HELP)
    add("--data", **PATH, help=DATA_HELP)
    add("--split", help="split to measure (default: every validation split)")
    add("--batch-size", type=int, default=32, help="examples in a batch (default: 32)")
    add("--json", action="store_true", help="print JSON instead of a table")

    add = command(
        "predict",
        _predict,
        "label raw text from a file or standard input",
        "--run runs/sst2 --input reviews.txt",
        notes=INPUT_FILES,
    ).add_argument
    add("--run", **PATH, required=True, **SEVERAL, help=RUNS_HELP)
    add(
        "--input",
        **PATH,
        default="-",
        help="a file (below), or - for lines of standard input (default: -)",
    )
    add("--format", choices=("table", "jsonl"), help="default: a table on a terminal, JSON lines elsewhere")
    add("--batch-size", type=int, default=32, help="examples in a batch (default: 32)")

    add = command(
        "fill-mask",
        _fill_mask,
        "name what a masked language model expects where a text says [MASK]",
        "--checkpoint bert-base 'The capital of France is [MASK].'",
        notes=FILL_MASK_NOTES,
    ).add_argument
    add("text", nargs="*", help="texts with [MASK]; without any, lines of standard input")
    add(
        "--checkpoint", **PATH, required=True, help="a checkpoint with a masked LM head, or a run of pretrain"
    )
    add("--top-k", type=int, default=5, help=TASK_OPTIONS["top_k"][1])
    add("--json", action="store_true", help="print an object a line instead of tables")
    add("--batch-size", type=int, default=32, help="texts in a batch (default: 32)")

    add = command(
        "export", _export, "write a SavedModel that takes raw strings", "--run runs/sst2 --output served/sst2"
    ).add_argument
    add("--run", **PATH, **SEVERAL, help=RUNS_HELP)
    add("--checkpoint", **PATH, help="a checkpoint as it is, in place of --run")
    form = commands.choices["export"].add_mutually_exclusive_group()
    form.add_argument("--fill-mask", action="store_true", help="with --checkpoint: its masked LM head")
    form.add_argument(
        "--embedding",
        choices=("mean", "cls", "max", "word"),
        help="with --checkpoint: one vector for each text, over its wordpieces, or one for each word",
    )
    add("--l2", action="store_true", help="vectors of texts have length 1")
    add(
        "--layers",
        choices=LAYERS,
        help="which layers make a vector; a weighted sum is the mean (default: last)",
    )
    add(
        "--seq-length",
        type=int,
        help="longest text, or window, in wordpieces (default: what the encoder has)",
    )
    add("--output", **PATH, required=True, help="folder of the model; the next version number is made in it")
    add("--target", help="refuse a graph that this server cannot load: tfserving-2.10 to tfserving-2.20")

    add = command(
        "hub",
        _hub,
        "write TensorFlow Hub's text pair, a preprocessor and an encoder",
        "--checkpoint bert-base --output hub/bert-base",
    ).add_argument
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="Hugging Face, Google, KerasHub or Model Garden checkpoint, or a run",
    )
    add("--output", **PATH, required=True, help="folder in which preprocess/ and encoder/ are made")
    add(
        "--seq-length",
        type=int,
        default=128,
        help="wordpieces that texts are cut and padded to (default: 128)",
    )
    add("--fresh-pooler", action="store_true", help="start a pooler that the checkpoint lacks at random")

    add = command(
        "serve",
        _serve,
        "answer REST and gRPC requests from an exported model, for development",
        "served/sst2",
    ).add_argument
    add("folder", **PATH, help="folder that export wrote: of versions, the newest is taken, or one version")
    add("--name", help="what requests call the model (default: the folder's name)")
    add("--port", type=int, default=8501, help="of REST; 0 takes a free one (default: 8501)")
    add("--grpc-port", type=int, default=8500, help="of gRPC; 0 takes a free one (default: 8500)")
    add("--no-grpc", action="store_true", help="REST alone, which needs no further package")
    add("--max-rows", type=int, default=1_000, help="rows of one request (default: 1000)")
    add("--max-text", type=int, default=1_000_000, help="bytes of text of one request (default: 1000000)")
    add("--max-seconds", type=float, default=60.0, help="until a request is answered (default: 60)")
    add(
        "--allow-host",
        **SEVERAL,
        default=[],
        metavar="NAME",
        help="names of this machine that requests may ask, besides localhost, 127.0.0.1 and [::1]",
    )

    add = command(
        "convert",
        _convert,
        "turn a checkpoint of one format into another",
        "--from uncased_L-12_H-768_A-12 --to bert-base --format hugging-face --check",
    ).add_argument
    add(
        "--from",
        **PATH,
        dest="source",
        required=True,
        help="the checkpoint: a folder, or the prefix of a TensorFlow checkpoint",
    )
    add("--to", **PATH, dest="target", required=True, help="where to write; must not exist, or be empty")
    add(
        "--format",
        default="hugging-face",
        help="hugging-face, google, keras-hub or model-garden (default: hugging-face)",
    )
    add(
        "--check",
        action="store_true",
        help="compare each layer with the source's own library, where it is installed",
    )

    add = command(
        "features",
        _features,
        "write a frozen encoder's vectors of every word or wordpiece of a text",
        "--checkpoint bert-base --input corpus.txt --output corpus.parquet --format parquet",
        notes=FEATURES_NOTES,
    ).add_argument
    add(
        "--checkpoint",
        **PATH,
        required=True,
        help="Hugging Face, Google, KerasHub or Model Garden checkpoint",
    )
    add("--input", **PATH, required=True, help="text in UTF-8, an example a line")
    add("--output", **PATH, required=True, help="the file to write; it must not be there")
    add(
        "--layers",
        default="last",
        choices=LAYERS,
        help="which layers make a vector; a weighted sum is the mean (default: last)",
    )
    add("--level", default="word", choices=("word", "piece"), help="what has a vector (default: word)")
    add("--format", default="jsonl", choices=("jsonl", "npz", "parquet"), help="default: jsonl")
    add("--dtype", default="float32", choices=("float16", "float32"), help="default: float32")
    add("--seq-length", type=int, help="wordpieces of a window (default: 512, or what the encoder has)")
    add("--doc-stride", type=int, default=128, help=TASK_OPTIONS["doc_stride"][1])
    add("--batch-size", type=int, default=8, help="lines, and windows, in a batch (default: 8)")

    add = command(
        "demo", _demo, "fine-tune, export and serve real weights on real reviews", "--quick --work demo"
    ).add_argument
    size = commands.choices["demo"].add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under two minutes on 2 cores")
    size.add_argument("--full", action="store_true", help="every training example")
    add(
        "--work",
        **PATH,
        default="demo",
        help="folder for downloads, runs and the exported model (default: demo)",
    )
    add("--seed", type=int, default=1, help="of the split, the order and dropout (default: 1)")

    add = command(
        "info",
        _info,
        "describe a checkpoint or a run, verify an export, or describe this installation",
        "bert-base",
    ).add_argument
    add(
        "path",
        **PATH,
        nargs="?",
        help="checkpoint, run or version of an export; without it: versions, devices and sizes",
    )
    return parser


def _add_settings(
    add: Callable[..., Any], settings: Mapping[str, tuple[Any, str]], *, without: Sequence[str] = ()
) -> None:
    """A flag for each; what is not given is not in the arguments. None as a type is a switch."""
    for name, (kind, text) in settings.items():
        if name not in without:
            form: dict[str, Any] = {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
            form = {"action": "store_true"} if kind is None else form
            add(f"--{name.replace('_', '-')}", **form, default=argparse.SUPPRESS, help=text)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script's entry; exits with 0, 1 (an error) or 2 (a wrong flag).

    argv: as sys.argv, the program's name first
    """
    _open_closed_streams()
    try:
        app.run(
            _run,
            argv=list(argv) if argv is not None else None,
            flags_parser=lambda args: _parser().parse_args(args[1:]),
        )
    except SystemExit:
        # Where Python's own flush at the end fails, it prints a traceback and exits with 120.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                _discard(stream)
                sys.exit(1)
        raise


def _open_closed_streams() -> None:
    """Opens the null device in place of closed standard streams: else the next file to be opened would be, say, stderr."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # inherited by workers
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def _discard(stream: Any) -> None:
    """Sends what a stream still holds, and what follows, to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _run(args: argparse.Namespace) -> None:
    warnings.showwarning = lambda message, *rest, **more: print(f"warning: {message}", file=sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a log file is read while a training runs
    try:
        check_own_packages()
        args.run_command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has left, as `head` does
        _discard(sys.stdout)
        sys.exit(1)
    except EXPECTED as error:
        if args.debug:
            raise
        with contextlib.suppress(OSError):  # standard error may be what cannot be written
            print(f"bert-keras: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keeps TensorFlow's start-up lines from the terminal; C++ writes them, so the descriptor is moved."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # `export` starts a second process: the first must not take a GPU's whole memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _start(*, deterministic: bool = False) -> Any:
    """TensorFlow, imported without its noise; every op deterministic if asked for."""
    with quiet_start():
        try:
            import tensorflow as tf
        except ImportError as error:
            raise MissingPackageError(f"{error}; pip install tensorflow.") from error

        import bert_keras.text.tokenizers  # noqa: F401 (tensorflow-text, or what to do without it)

        tf.config.list_logical_devices()
        tf.get_logger().setLevel("ERROR")
        logging.set_verbosity(logging.ERROR)
        if deterministic:
            tf.config.experimental.enable_op_determinism()
    return tf


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row])
    Console(markup=False, emoji=False, highlight=False).print(table)


@contextlib.contextmanager
def _progress(text: str, total: int | None) -> Iterator[Any]:
    """A bar on standard error where that is a terminal; yields the function that moves it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # What is printed meanwhile belongs on standard output, not with the bar.
    with Progress(
        console=console, disable=not console.is_terminal, transient=True, redirect_stdout=False
    ) as bar:
        job = bar.add_task(text, total=total)
        yield lambda done: bar.update(job, advance=done)


def _finetune(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import checkpoints
    from tasks.task import Hparams
    from tasks.training.finetune import finetune
    from tasks.training.run import open_task

    given = vars(args)
    if args.data and not args.dev_data and pathlib.Path(args.data).is_file():
        raise BertKerasError(f"{args.data} is one file; give the file of the dev split too, as --dev-data.")
    source = {"train": args.data, "validation": args.dev_data} if args.dev_data else args.data
    options = {name: given[name] for name in TASK_OPTIONS if name in given}
    task = open_task(args.task, source, **options)
    hparams = Hparams(**(dict(task.defaults) | {name: given[name] for name in HPARAMS if name in given}))
    checkpoint = checkpoints.read(args.checkpoint)
    if args.random_weights:
        checkpoint = dataclasses.replace(checkpoint, tensors={})
    results = finetune(
        task,
        checkpoint=checkpoint,
        output=args.output,
        hparams=hparams,
        strategy_name=args.strategy,
        keep_head=args.keep_head,
        save_every=args.save_every,
        dev_split=args.dev_split,
    )
    rows = [(name.removeprefix("val_"), value) for name, value in results["measures"].items()]
    _table(
        ("measure", "dev"),
        rows,
        title=f"{task.name}, best of {hparams.epochs} epochs: {results['best_epoch']}",
    )
    print(f"the run is in {args.output}")


def _pretrain(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import checkpoints
    from tasks.pretraining.corpus import open_corpora
    from tasks.pretraining.pretrain import pretrain
    from tasks.pretraining.recipes import RECIPES

    held_out = args.held_out and _share(args.held_out)
    if args.held_out and held_out is None:
        held_out = args.held_out if args.records else open_corpora([args.held_out])
    settings = {"size": args.size} if args.size else {}
    settings |= dict(map(_setting, args.set))
    results = pretrain(
        recipe=RECIPES[args.recipe].changed(**settings),
        output=args.output,
        documents=args.text and open_corpora(args.text),
        records=args.records and _sets_of_records(args.records),
        held_out=held_out,
        tokenizer=args.vocab and checkpoints.load_tokenizer(args.vocab),
        segment=args.segmenter and _segmenter(args.segmenter),
        checkpoint=args.checkpoint,
        save_every=args.save_every,
        snapshots=args.snapshots,
        strategy_name=args.strategy,
    )
    baselines = results["majority_baselines"]
    rows = [
        (name, value, baselines.get(name.removeprefix("held_out_"), ""))
        for name, value in results["measures"].items()
        if name.endswith(("loss", "accuracy", "perplexity"))
    ]
    _table(
        ("measure", "value", "always the commonest"), rows, title=f"{args.recipe}, {results['steps']:,} steps"
    )
    print(f"the run is in {args.output}")


def _ablate(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from bert_keras import checkpoints
    from tasks.experiments import ablations
    from tasks.pretraining.corpus import open_corpora

    outcomes = ablations.run_ablation(
        args.ablation,
        documents=open_corpora(args.text),
        tokenizer=checkpoints.load_tokenizer(args.vocab),
        data=dict(map(_pair, args.data)),
        output=args.output,
        scale=args.scale,
        changes=dict(map(_setting, args.set)),
        tasks=args.tasks,
        restarts=args.restarts,
        strategy_name=args.strategy,
    )
    for title, columns, rows in ablations.tables(args.ablation, outcomes):
        _table(columns, rows, title=title)
    print(f"the runs are in {args.output}")


def _pair(given: str) -> tuple[str, str]:
    """`name=value`."""
    name, equals, value = given.partition("=")
    if not equals:
        raise BertKerasError(f"{given!r} names nothing; give NAME=VALUE.")
    return name, value


def _setting(given: str) -> tuple[str, Any]:
    """`name=value`, the value JSON or a plain word."""
    name, value = _pair(given)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _share(given: str) -> float | None:
    try:
        return float(given)
    except ValueError:
        return None


def _glue(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from tasks.experiments import glue_protocol
    from tasks.task import Hparams

    given = vars(args)
    summaries = glue_protocol.run_protocol(
        args.tasks or glue_protocol.SCORED,
        data=args.data,
        checkpoint=args.checkpoint,
        output=args.output,
        hparams=Hparams(**{name: given[name] for name in HPARAMS if name in given}),
        learning_rates=args.learning_rates or glue_protocol.LEARNING_RATES,
        restarts=args.restarts,
        pooling=given.get("pooling", "pooled"),
        strategy_name=args.strategy,
        best_only=args.best_only,
        verbose="auto",
    )
    for title, columns, rows in glue_protocol.tables(summaries):
        _table(columns, rows, title=title)
    score, tasks = glue_protocol.glue_score(summaries), len(glue_protocol.SCORED)
    print(f"GLUE score on dev: {score:.4f}, the mean of {len(summaries)} of {tasks} tasks")
    print(f"the runs are in {args.output}")


def _evaluate(args: argparse.Namespace) -> None:
    _start()
    from tasks.batches import cardinality, predict
    from tasks.training.run import load_runs

    run = load_runs(args.run, data=args.data)
    task, measured, tables = run.task, {}, []
    for split in [args.split] if args.split else task.validation_splits:
        examples = task.examples(split)
        task.check(run.preprocess, examples)
        with _progress(f"evaluating {split}", cardinality(examples)) as advance:
            predictions, raw = predict(
                task, run.preprocess, run.model, examples, batch_size=args.batch_size, progress=advance
            )
        measured[split] = dict(task.evaluate(predictions, raw))
        tables += [table._replace(title=f"{split}: {table.title}") for table in task.report(predictions, raw)]
    if args.json:
        print(json.dumps(measured))
        return
    rows = [(split, name, value) for split, values in measured.items() for name, value in values.items()]
    _table(("split", "measure", "value"), rows, title=f"{task.name}: {' '.join(args.run)}")
    for title, columns, rows in tables:
        _table(columns, rows, title=title)


def _predict(args: argparse.Namespace) -> None:
    _start()
    from tasks.training.run import load_runs

    run = load_runs(args.run)
    signature = run.task.signature()
    lists = {name: spec.shape[1] for name, spec in signature.items() if len(spec.shape) > 1}
    as_table = (args.format or ("table" if sys.stdout.isatty() else "jsonl")) == "table"
    shown: list[dict[str, str]] = []
    with _progress("predicting", None) as advance, _open_input(args.input) as lines:
        examples = _read_examples(lines, args.input, tuple(signature), lists)
        for example, record in _records(run, examples, batch_size=args.batch_size, progress=advance):
            if as_table:
                shown.append(run.task.show(example, record))
            else:
                print(json.dumps(example | record, ensure_ascii=False))
    if shown:
        _table(tuple(shown[0]), [tuple(cells.values()) for cells in shown])


def _records(
    run: Any, examples: Iterator[dict[str, Any]], *, batch_size: int, progress: Callable[[int], None]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each example with what the run says of it."""
    import tensorflow as tf

    from tasks.batches import predictor

    predict = predictor(run.task, run.preprocess, run.model)
    for chunk in iter(lambda: list(itertools.islice(examples, CHUNK)), []):
        raw = tf.data.Dataset.from_tensor_slices(
            {name: [example[name] for example in chunk] for name in run.task.signature()}
        )
        answers, _ = predict(raw, batch_size=batch_size, progress=progress)
        for i, example in enumerate(chunk):
            yield example, run.task.record({name: value[i] for name, value in answers.items()})
        sys.stdout.flush()


def _fill_mask(args: argparse.Namespace) -> None:
    _start()
    from tasks.fill_mask import MASK, TEXT, FillMask
    from tasks.training.run import is_run, load_run, run_of

    if unmasked := [text for text in args.text if MASK not in text]:
        raise BertKerasError(f"there is no {MASK} in {unmasked[0]!r}; write it where a word is asked.")
    path = pathlib.Path(args.checkpoint)
    if is_run(path):
        run = load_run(path)
        if not isinstance(run.task, FillMask):
            raise BertKerasError(
                f"{path} is a run of {run.task.name}; give a checkpoint with a masked LM head."
            )
        run = dataclasses.replace(run, task=FillMask(top_k=args.top_k))
    else:
        run = run_of(FillMask(top_k=args.top_k), path)
    given = iter([{TEXT: text} for text in args.text])
    examples = given if args.text else _read_examples(sys.stdin.buffer, "-", (TEXT,))
    with _progress("filling", None) as advance:
        for example, record in _records(run, examples, batch_size=args.batch_size, progress=advance):
            _warn_of_masks(example[TEXT], record["masks"], run.preprocess.seq_length)
            if args.json:
                print(json.dumps(example | record, ensure_ascii=False))
            else:
                _show_masks(example[TEXT], record["masks"])


def _warn_of_masks(text: str, masks: Sequence[Mapping[str, Any]], seq_length: int) -> None:
    cut = sum(not mask["tokens"] for mask in masks)
    if not masks:
        print(f"warning: there is no [MASK] in {text[:60]!r}", file=sys.stderr)
    elif cut:
        about = (
            f"{cut} of {len(masks)} [MASK] lie behind the {seq_length} pieces that are read of {text[:60]!r}"
        )
        print(f"warning: {about}", file=sys.stderr)


def _show_masks(text: str, masks: Sequence[Mapping[str, Any]]) -> None:
    """The text with its masks marked, then the pieces for each with their probabilities as bars."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, emoji=False, highlight=False)
    marked = Text(text)
    marked.highlight_words(["[MASK]"], "bold reverse")
    console.print(marked)
    table = Table("mask", "token", "probability", "")
    for number, answers in enumerate(masks, start=1):
        for rank, (token, score) in enumerate(zip(answers["tokens"], answers["scores"], strict=True)):
            table.add_row("" if rank else str(number), token, f"{score:.4f}", "█" * round(40 * score))
        table.add_section()
    console.print(table)


def _sets_of_records(given: Sequence[str]) -> list[Any]:
    """Folders are a set each, files are one set together."""
    folders = [path for path in given if pathlib.Path(path).is_dir()]
    if folders and len(folders) < len(given):
        raise BertKerasError(
            "folders and files of records were given; give folders, or the files of one set."
        )
    return folders or [list(given)]


def _segmenter(given: str) -> Any:
    """What MODULE:FUNCTION names."""
    module, _, name = given.partition(":")
    sys.path.append(os.getcwd())  # last: no file there stands for an installed package, in the workers too
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        found = getattr(sys.modules.get(module), "__file__", None)
        raise BertKerasError(
            f"--segmenter {given}: {error}{f' of {found}' if found else ''}; give MODULE:FUNCTION that can be imported."
        ) from error


def _instances(args: argparse.Namespace) -> None:
    _start()
    from bert_keras import checkpoints
    from bert_keras.text.masking import Masking
    from tasks.pretraining.corpus import open_corpora
    from tasks.pretraining.instances import Settings
    from tasks.pretraining.recipes import RECIPES
    from tasks.pretraining.records import write_records

    settings = dict(map(_setting, args.set))
    known = {field.name for kind in (Settings, Masking) for field in dataclasses.fields(kind)} - {
        "seq_length"
    }
    if unread := [name for name in settings if name not in known]:
        raise BertKerasError(
            f"{', '.join(unread)} says nothing to instances; known are {', '.join(sorted(known))}."
        )
    recipe = RECIPES[args.recipe].changed(**settings)
    lower_case = checkpoints.load_tokenizer(args.vocab).lower_case  # here, so that no worker guesses it
    with _progress("documents", None) as advance:
        summary = write_records(
            open_corpora(args.text),
            args.output,
            make_tokenizer=functools.partial(checkpoints.load_tokenizer, args.vocab, lower_case=lower_case),
            settings=recipe.sampling(args.seq_length),
            masking=recipe.masking(args.seq_length) if args.masks else None,
            segment=args.segmenter and _segmenter(args.segmenter),
            seed=args.seed,
            workers=args.workers,
            compress=args.gzip,
            progress=advance,
        )
    rows = [
        ("documents", f"{summary.documents:,}"),
        ("instances", f"{summary.instances:,}"),
        ("labels that are 1", "-" if summary.label_rate is None else f"{summary.label_rate:.1%}"),
        ("mean length", f"{summary.mean_length:.1f}"),
        ("padding", f"{summary.padding:.1%}"),
        ("chunks skipped", f"{summary.skipped:,}"),
    ]
    _table(("what", "value"), rows, title=str(args.output))
    for warning in summary.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _vocab(args: argparse.Namespace) -> None:
    _start()
    from tasks.pretraining.corpus import open_corpora
    from tasks.pretraining.vocabulary import write_vocabulary

    names = ("unused", "alphabet")
    settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if settings and args.kind != "wordpiece":
        raise BertKerasError(
            f"--{next(iter(settings))} says nothing to a {args.kind} vocabulary; leave it out."
        )
    with _progress("reading documents", None) as advance:
        tokenizer, documents = write_vocabulary(
            open_corpora(args.text),
            args.output,
            kind=args.kind,
            size=args.size,
            lower_case=not args.cased,
            progress=advance,
            **settings,
        )
    print(f"{args.output}: {tokenizer.vocab_size:,} pieces, learned from {documents:,} documents")
    if tokenizer.vocab_size < args.size:
        print(f"warning: the text has no more pieces; {args.size:,} were asked for", file=sys.stderr)


def _open_input(path: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if path == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if not pathlib.Path(path).exists() or pathlib.Path(path).is_dir():
        raise MissingFileError(f"no file at {path}; give a file of examples, or - for standard input.")
    return open(path, "rb")


def _read_examples(
    lines: Iterable[bytes], path: str, names: Sequence[str], lists: Mapping[str, int] | None = None
) -> Iterator[dict[str, Any]]:
    """Examples under the task's names. Raises ValueError naming the line and what is wrong with it.

    lists: those that hold several texts, and how many: lists in JSON, columns name0, name1, ... elsewhere
    """
    number, lists = 0, lists or {}
    rows_of, form = _FORMS.get(pathlib.Path(path).suffix.lower(), _LINES)
    columns = [
        column
        for name in names
        for column in ([f"{name}{i}" for i in range(lists[name])] if name in lists else [name])
    ]

    def texts() -> Iterator[str]:
        nonlocal number
        for number, line in enumerate(lines, start=1):
            yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode()

    try:
        for row in rows_of(texts(), columns):
            for name, length in lists.items():
                value = row.get(name)
                if isinstance(value, list) and len(value) == length:
                    row |= {f"{name}{i}": text for i, text in enumerate(value)}
            if missing := [column for column in columns if not isinstance(row.get(column), str)]:
                raise BertKerasError(f"no text for {' and '.join(missing)}")
            for column in columns:
                row[column].encode()  # a JSON escape can stand for half a character
            yield {
                name: [row[f"{name}{i}"] for i in range(lists[name])] if name in lists else row[name]
                for name in names
            }
    except (ValueError, csv.Error) as error:
        source = "standard input" if path == "-" else path
        raise BertKerasError(
            f"{source}, line {number}: {error}; wanted {' and '.join(columns)}, in UTF-8, {form}."
        ) from error


def _rows_of_lines(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield dict(zip(names, _without_end(line).split("\t", len(names) - 1), strict=False))


def _rows_of_tsv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    texts = (_without_end(line) for line in lines)
    return _under_names(text.split("\t") for text in texts if text)


def _rows_of_csv(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    # A record is one line: two stray quotes would make one field of all rows between them.
    return _under_names(row for line in lines for row in csv.reader([line], strict=True) if row)


def _under_names(rows: Iterator[list[str]]) -> Iterator[dict[str, Any]]:
    """Rows by the names in the first. Raises ValueError where a name is there twice, or a row has more or fewer columns."""
    header = next(rows, [])
    if repeated := [name for name in header if header.count(name) > 1]:
        raise BertKerasError(f"more than one column {repeated[0]!r}")
    for row in rows:
        if len(row) != len(header):
            raise BertKerasError(f"{len(row)} column(s), where the header names {len(header)}")
        yield dict(zip(header, row, strict=True))


def _rows_of_jsonl(lines: Iterator[str], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            row = parse_json(line, source="the line")
            if not isinstance(row, dict):
                raise BertKerasError(f"a JSON {type(row).__name__}, no object")
            yield row


# A suffix's reader, and how errors call what it reads.
_Form = tuple[Callable[[Iterator[str], Sequence[str]], Iterator[dict[str, Any]]], str]
_LINES: _Form = (
    _rows_of_lines,
    "an example a line, with a tab between two texts (.tsv, .csv and .jsonl name them)",
)
_FORMS: dict[str, _Form] = {
    ".tsv": (_rows_of_tsv, "in columns that the first line names"),
    ".csv": (_rows_of_csv, "in columns that the first line names"),
    ".jsonl": (_rows_of_jsonl, "in an object a line"),
}


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _export(args: argparse.Namespace) -> None:
    _start()
    from savedmodels.export import export

    folder = export(_run_to_export(args), args.output, target=args.target)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    print(f"{folder}: {size:.0f} MB; a fresh process without this package gave the same answers")


def _hub(args: argparse.Namespace) -> None:
    _start()
    from bert_keras import checkpoints
    from savedmodels.hub import write_pair

    fresh = ("pooler",) if args.fresh_pooler else ()
    write_pair(checkpoints.read(args.checkpoint), args.output, seq_length=args.seq_length, fresh=fresh)
    print(
        f"preprocess and encoder in {args.output}: a fresh process without this package gave the same answers"
    )


def _run_to_export(args: argparse.Namespace) -> Any:
    """The run of --run, or a task that a checkpoint answers as it is. Raises ValueError unless one of the two is asked for."""
    from tasks.embedding import Embedding, WordEmbedding
    from tasks.fill_mask import FillMask
    from tasks.training.run import load_runs, run_of

    of_vectors = {"--l2": args.l2, "--layers": args.layers}
    of_checkpoint = {
        "--embedding": args.embedding,
        "--fill-mask": args.fill_mask,
        "--seq-length": args.seq_length,
    }
    if args.run and not args.checkpoint and not any((of_checkpoint | of_vectors).values()):
        return load_runs(args.run)
    if args.run or not args.checkpoint or not (args.embedding or args.fill_mask):
        raise BertKerasError(
            "give --run, or --checkpoint and --embedding or --fill-mask; a run has its own task and length."
        )
    if unread := [
        flag
        for flag, value in of_vectors.items()
        if value and (args.fill_mask or (flag, args.embedding) == ("--l2", "word"))
    ]:
        raise BertKerasError(
            f"{' and '.join(unread)} say nothing here; --l2 is of texts' vectors, --layers of vectors."
        )
    layers = args.layers or "last"
    if args.fill_mask:
        task: Any = FillMask()
    elif args.embedding == "word":
        task = WordEmbedding(layers=layers)
    else:
        task = Embedding(pooling=args.embedding, l2=args.l2, layers=layers)
    return run_of(task, args.checkpoint, seq_length=args.seq_length)


def _serve(args: argparse.Namespace) -> None:
    _start()
    from savedmodels.server import Server
    from savedmodels.server.served import HOST, Limits, example_of, load

    limits = Limits(rows=args.max_rows, text_bytes=args.max_text, seconds=args.max_seconds)
    served = load(args.folder, name=args.name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ports = {"port": args.port, "grpc_port": None if args.no_grpc else args.grpc_port}
    with (
        contextlib.suppress(KeyboardInterrupt),
        Server(served, **ports, limits=limits, hosts=args.allow_host) as server,
    ):
        print("a development server on this machine alone; TensorFlow Serving is for production")
        listening = f"{served.name} version {served.version}: REST on {HOST}:{server.port}"
        print(listening + (f", gRPC on {HOST}:{server.grpc_port}" if server.grpc_port else ""))
        body = shlex.quote(json.dumps({"instances": [example_of(served)]}))
        print(f"curl -d {body} http://{HOST}:{server.port}{served.address}:predict", flush=True)
        server.wait()


def _convert(args: argparse.Namespace) -> None:
    _start()
    from bert_keras import checkpoints

    checkpoint = checkpoints.read(args.source)
    homeless = checkpoints.write(checkpoint, args.target, format=args.format)
    count = len(checkpoint.tensors) - len(homeless)
    print(f"{checkpoint.format} -> {args.format}: {count} tensors in {args.target}")
    if left := (*homeless, *checkpoint.unknown):
        print(f"{args.format} has no place for {', '.join(left)}")
    if args.check:
        # Whichever of the two has a library that runs here.
        has_none = checkpoint.format in ("google", "model-garden")
        path, form = (args.target, args.format) if has_none else (args.source, checkpoint.format)
        rows = [(name, f"{value:.1e}") for name, value in checkpoints.compare(path).items()]
        _table(("output", "max |difference|"), rows, title=f"{path} here and in the library of {form}")


def _features(args: argparse.Namespace) -> None:
    _start()
    from tasks.features.extract import extract_file

    names = ("checkpoint", "layers", "level", "format", "dtype", "seq_length", "doc_stride", "batch_size")
    total = None
    if pathlib.Path(args.input).is_file():  # else `extract_file` says so
        with open(args.input, "rb") as lines:
            total = sum(1 for _ in lines)
    with _progress("extracting", total) as advance:
        count = extract_file(
            args.input, args.output, progress=advance, **{name: getattr(args, name) for name in names}
        )
    print(f"{args.output}: vectors of {count:,} lines")


def _demo(args: argparse.Namespace) -> None:
    _start(deterministic=True)
    from savedmodels import demo

    demo.run(
        pathlib.Path(args.work),
        scale="quick" if args.quick else "full" if args.full else "normal",
        seed=args.seed,
    )


def _info(args: argparse.Namespace) -> None:
    if args.path is None:
        tf = _start()
        from bert_keras.config import SIZES, VARIANTS, BertConfig
        from savedmodels.kit import version_of

        names = ("bert-keras", "tensorflow", "tensorflow-text", "keras", "keras-nlp", "numpy")
        _table(("package", "version"), [(name, version_of(name)) for name in names])
        _table(
            ("device", "kind"),
            [(device.name, device.device_type) for device in tf.config.list_logical_devices()],
        )
        configs = {name: BertConfig.named(name) for name in (*SIZES, *VARIANTS)}
        sizes = [(name, config.num_layers, config.hidden_size) for name, config in configs.items()]
        _table(("size", "layers", "hidden"), sizes)
        return
    _start()
    if (pathlib.Path(args.path) / "saved_model.pb").is_file():
        from savedmodels import kit

        files = kit.verify(args.path)
        rows = [(name, f"{file['bytes']:,}", file["sha256"][:12]) for name, file in files.items()]
        _table(("file", "bytes", "SHA-256"), rows, title=f"{args.path}: every file is as it was written")
        return
    from bert_keras import checkpoints
    from bert_keras.checkpoints.formats import lower_cases
    from tasks.training.run import is_run, load_run

    checkpoint = checkpoints.read(args.path)
    count = sum(tensor.size for tensor in checkpoint.tensors.values())
    facts = {"format": checkpoint.format, "tensors": len(checkpoint.tensors), "parameters": f"{count:,}"}
    if checkpoint.vocabulary is not None:
        facts |= {
            "vocabulary": f"{len(checkpoint.vocabulary):,} tokens",
            "lower_case": lower_cases(checkpoint),
        }
    if checkpoint.sentencepiece is not None:
        facts |= {"vocabulary": "a SentencePiece model", "lower_case": lower_cases(checkpoint)}
    if is_run(args.path):
        run = load_run(args.path)
        facts |= {
            "task": run.task.name,
            "reads": ", ".join(run.task.signature()),
            "seq_length": run.preprocess.seq_length,
        }
    _table(
        ("field", "value"), [*facts.items(), *((k, str(v)) for k, v in checkpoint.config.to_dict().items())]
    )


if __name__ == "__main__":
    main()
