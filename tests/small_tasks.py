"""The smallest training of every task: its files, and its command, which is done in a few seconds.

In: the name of a case. Out: a folder with `checkpoint`, `data` and `run`. Tests take a finished one from the session's fixture
`finished`, which they leave as it is:

    made = finished("tags")  # a runs.Finetuned
    run = load_run(made.run, data=made.data)
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import runs

ROWS = 16  # examples of a split
SIZES = "--num-layers 1 --hidden-size 32 --num-heads 2 --intermediate-size 64 --max-positions 48"
PRETRAINING = f"{SIZES} --seq-length 24 --batch-size 8 --steps 4"


def write_columns(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """A JSON line for each row."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, **options) + "\n" for row in rows))
    return path


def write_sets(folder: Path, *, count: int = ROWS) -> Path:
    """Texts with any number of the labels good and bad."""
    for seed, split in enumerate(("train", "dev")):
        texts = runs.texts(count, seed=seed)
        labels = [[name for name in ("good", "bad") if name in text.split()] for text in texts]
        write_columns(folder / f"{split}.jsonl", {"text": texts, "label": labels})
    return folder


def write_entities(folder: Path, *, count: int = ROWS) -> Path:
    """Files in CoNLL's form: three sentences a document, each actor a person."""
    folder.mkdir(parents=True)
    for seed, stem in enumerate(("train", "valid")):
        lines = []
        for i, text in enumerate(runs.texts(count, seed=seed)):
            lines += ["-DOCSTART- -X- O", ""] * (i % 3 == 0)
            lines += [f"{word} NN {'I-PER' if word == 'actor' else 'O'}" for word in text.split()] + [""]
        (folder / f"{stem}.txt").write_text("\n".join(lines))
    return folder


def write_questions(folder: Path, *, count: int = ROWS, unanswerable: int = 0) -> Path:
    """SQuAD's files: contexts of two windows or more, a word of each the answer.

    unanswerable: every question of that number has no answer; 0 for none
    """
    folder.mkdir(parents=True)
    for seed, split in enumerate(("train", "dev")):
        draw, paragraphs = random.Random(seed), []
        for i, question in enumerate(runs.texts(count, seed=seed)):
            context = " ".join(runs.texts(9, seed=100 * seed + i))
            answer = draw.choice(context.split())
            entry = {"id": f"{split}{i}", "question": question}
            entry["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
            if unanswerable and i % unanswerable == 0:
                entry |= {"answers": [], "is_impossible": True}
            paragraphs.append({"context": context, "qas": [entry]})
        version = "v2.0" if unanswerable else "v1.1"
        content = {"version": version, "data": [{"title": "any", "paragraphs": paragraphs}]}
        (folder / f"{split}-{version}.json").write_text(json.dumps(content))
    return folder


def write_choices(folder: Path, *, count: int = ROWS) -> Path:
    """Files in CODAH's form, which say nothing worth learning."""
    folder.mkdir(parents=True)
    for seed, stem in enumerate(("train", "dev")):
        columns = [runs.texts(count, seed=10 * seed + i) for i in range(5)]
        lines = ["\t".join(("o", *texts, str(i % 4))) for i, texts in enumerate(zip(*columns, strict=True))]
        (folder / f"{stem}.tsv").write_text("\n".join(lines))
    return folder


def write_masks(folder: Path, *, count: int = ROWS) -> Path:
    """A cloze test: the first word of a text is masked."""
    for seed, split in enumerate(("train", "validation")):
        words = [text.split() for text in runs.texts(count, seed=seed)]
        columns = {
            "text": [" ".join(("[MASK]", *rest)) for _, *rest in words],
            "answer": [w for w, *_ in words],
        }
        write_columns(folder / f"{split}.jsonl", columns)
    return folder


def write_pairs(folder: Path, *, count: int = ROWS) -> Path:
    """Queries and positives; the dev split has scores."""
    for seed, split in enumerate(("train", "dev")):
        first, second = (runs.texts(count, seed=10 * seed + i) for i in range(2))
        names = ("query", "positive") if split == "train" else ("sentence1", "sentence2")
        columns: dict[str, Any] = dict(zip(names, (first, second), strict=True))
        columns |= {"score": [i / count for i in range(count)]} if split == "dev" else {}
        write_columns(folder / f"{split}.jsonl", columns)
    return folder


def write_candidates(folder: Path, *, count: int = ROWS) -> Path:
    """Queries with a positive and two negatives; the dev split has pairs with labels."""
    for seed, split in enumerate(("train", "dev")):
        query, *found = (runs.texts(count, seed=10 * seed + i) for i in range(4))
        named = dict(zip(("positive", "negative", "negative_2"), found, strict=True))
        pairs = {"text": found[0], "label": [i % 2 for i in range(count)]}
        write_columns(folder / f"{split}.jsonl", {"query": query} | (named if split == "train" else pairs))
    return folder


def write_documents(folder: Path, *, count: int = 30) -> Path:
    """A file of documents."""
    folder.mkdir(parents=True)
    documents = ("\n".join(runs.texts(8, seed=seed)) for seed in range(count))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    return folder


class Case(NamedTuple):
    """One kind of training.

    flags: those that differ from the usual ones
    start: the case whose run is the checkpoint, "" for random weights
    """

    write: Callable[[Path], Path]
    flags: str
    start: str = ""


def glue(name: str) -> Callable[[Path], Path]:
    return lambda folder: runs.write_data(folder, name, count=ROWS)


CASES = {
    "class": Case(glue("sst2"), "finetune --task sst2"),
    "score": Case(glue("stsb"), "finetune --task stsb"),
    "pair": Case(glue("rte"), "finetune --task rte"),
    "several": Case(write_sets, "finetune --task custom --label-type multi"),
    "tags": Case(write_entities, "finetune --task conll2003 --doc-stride 8"),
    "paths": Case(write_entities, "finetune --task conll2003 --doc-stride 8 --crf --iob-constraints"),
    "answers": Case(
        lambda folder: write_questions(folder, unanswerable=4),
        "finetune --task squad2.0 --doc-stride 16 --max-query-length 12 --max-answer-length 4 --n-best 4",
    ),
    "choice": Case(write_choices, "finetune --task codah"),
    "vectors": Case(glue("sst2"), "finetune --task sst2 --feature-layers 0,1 --lstm-layers 1 --lstm-units 4"),
    "pretraining": Case(
        write_documents, f"pretrain --recipe bert {PRETRAINING} --held-out 0.3 --held-out-instances 8"
    ),
    "electra": Case(write_documents, f"pretrain --recipe electra {PRETRAINING}"),
    "embedding": Case(
        write_pairs,
        "finetune --task embedding --micro-batch 3 --pooling weighted_mean --dense-size 6 --no-include-prompt "
        '--prompts {"query":"good"}',
    ),
    "reranking": Case(write_candidates, "finetune --task reranking --micro-batch 3"),
    "masks": Case(write_masks, "finetune --task fill-mask", start="pretraining"),
}


def command(name: str, made: runs.Finetuned, output: Path) -> list[str]:
    """The arguments of `bert-keras` that train a case into a folder."""
    flags = CASES[name].flags.split()
    if flags[0] == "pretrain":
        flags += ["--text", made.data / "text.txt", "--vocab", made.checkpoint / "vocab.txt"]
    else:
        flags += ["--data", made.data, "--checkpoint", made.checkpoint]
        flags += ["--epochs", "1", "--batch-size", "4", "--seq-length", "32", "--learning-rate", "1e-3"]
    return [*map(str, flags), "--quiet", "--output", str(output)]


def train(name: str, folder: Path, *, checkpoint: Path) -> runs.Finetuned:
    """A finished run of a case, in this process. A folder that holds one already is read."""
    made = runs.Finetuned(folder=folder)
    if not (made.run / "results.json").exists():
        CASES[name].write(made.data)
        shutil.copytree(checkpoint, made.checkpoint)
        code = runs.command(command(name, made, made.run))
        assert code == 0, f"the training of {name} ended with {code}"
    return made
