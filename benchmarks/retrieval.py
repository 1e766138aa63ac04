"""Trains MiniLM's vectors on SQuAD's questions and measures them, beside sentence-transformers with the same settings.

    python benchmarks/retrieval.py --checkpoint minilm --data $BERT_KERAS_TEST_DATA --output runs/retrieval --rows before ours-1

In: a checkpoint, and a folder with `squad/` and `glue/STS-B`. Out: OUTPUT/ROW.json for each row, and a table of all rows there.
The pairs are --pairs questions with their paragraphs, one epoch of the ranking loss. The queries are XQuAD's questions, among
the paragraphs of all files. No paragraph of XQuAD is in a pair: the table counts those of the collection that are.

    before              the checkpoint as it is, on STS-B's dev set too
    random              random weights, trained by us with seed 1
    ours-SEED           trained by us
    theirs-SEED         trained by sentence-transformers: its loss and its model in a plain loop, with our optimizer's settings
"""

import argparse
import dataclasses
import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

BATCH, RATE, WARMUP, TEMPERATURE, LENGTH = 32, 2e-5, 0.1, 0.05, 128
MEASURES = ("recall@1", "recall@10", "mrr@10")
Encode = Callable[[list[str]], np.ndarray]


def squad(path: pathlib.Path) -> list[tuple[str, str]]:
    """The questions of a file of SQuAD with their paragraphs."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return [(asked["question"], one["context"]) for one in paragraphs for asked in one["qas"]]


class Material:
    """The pairs, the queries with their paragraphs, and the collection."""

    def __init__(self, data: pathlib.Path, count: int) -> None:
        names = ("squad1.1_train_subset_11877", "xquad.en", "squad2.0_dev_subset_6078")
        train, queries, others = (squad(data / "squad" / f"{name}.json") for name in names)
        self.pairs, self.queries = random.Random(0).sample(train, count), queries
        self.collection = [*dict.fromkeys(text for _, text in (*queries, *train, *others))]
        self.scored = data / "glue/STS-B/dev.tsv"

    def batches(self, seed: int) -> list[list[tuple[str, str]]]:
        """Batches of pairs in a drawn order, without a paragraph twice; the rest that fits no batch is left out."""
        rows, batches = [*self.pairs], []
        random.Random(seed).shuffle(rows)
        while len(rows) >= BATCH:
            batch, left = dict[str, tuple[str, str]](), []
            for pair in rows:
                kept = len(batch) < BATCH and pair[1] not in batch
                batch[pair[1]] = pair if kept else batch.get(pair[1], pair)
                if not kept:
                    left.append(pair)
            if len(batch) < BATCH:
                break
            batches.append([*batch.values()])
            rows = left
        return batches

    def measure(self, encode: Encode) -> dict[str, float]:
        """The measures of MEASURES by the cosine."""
        from bert_keras.tasks.retrieval.measures import ranking_measures

        place = {text: i for i, text in enumerate(self.collection)}
        scores = encode([query for query, _ in self.queries]) @ encode(self.collection).T
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, :100]
        right = np.array([place[text] for _, text in self.queries])
        found = ranking_measures((ranked == right[:, None]).astype(int), np.ones((len(right), 1), int))
        return {name: float(found[name].mean()) for name in MEASURES}


def ours(checkpoint: pathlib.Path, material: Material, seed: int | None, *, fresh: bool = False) -> Encode:
    """`bk.embedder`, and `fit` where there is a seed. fresh: random weights of the same sizes."""
    import keras

    import bert_keras as bk
    from bert_keras import checkpoints

    keras.utils.set_random_seed(seed or 0)
    source = checkpoints.read(checkpoint)
    settings: dict[str, Any] = {"pooling": "mean", "l2": True, "seq_length": LENGTH}
    settings |= {"loss": "multiple_negatives_ranking", "temperature": TEMPERATURE}
    model = bk.embedder(dataclasses.replace(source, tensors={}) if fresh else source, **settings)
    if seed is not None:
        model.compile(learning_rate=RATE, warmup_proportion=WARMUP)
        model.fit(*zip(*material.pairs, strict=True), batch_size=BATCH, verbose=2)
    return lambda texts: model.predict(texts, verbose=0)["embedding"]


def theirs(checkpoint: pathlib.Path, material: Material, seed: int) -> Encode:
    """SentenceTransformer with MultipleNegativesRankingLoss. AdamW and its schedule are those of our optimizer."""
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    torch.manual_seed(seed)
    words = Transformer(str(checkpoint), max_seq_length=LENGTH)
    pool = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[words, pool, Normalize()], device="cpu")
    batches, loss = material.batches(seed), MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    weights = [*model.parameters()]
    groups = [
        {"params": [one for one in weights if one.ndim > 1], "weight_decay": 0.01},
        {"params": [one for one in weights if one.ndim == 1], "weight_decay": 0.0},
    ]
    step = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    total = len(batches)
    schedule = transformers.get_linear_schedule_with_warmup(step, int(WARMUP * total), total)
    model.train()
    for number, batch in enumerate(batches):
        found = loss([model.preprocess([*side]) for side in zip(*batch, strict=True)], labels=None)
        found.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        step.step()
        schedule.step()
        step.zero_grad()
        if number % 10 == 0:
            print(f"step {number} of {total}: loss {found.item():.4f}", flush=True)
    return lambda texts: model.encode(texts, show_progress_bar=False)


def measure_scores(encode: Encode, path: pathlib.Path) -> dict[str, float]:
    """The correlations of cosines with the scores of STS-B."""
    from bert_keras.tasks import metrics

    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    first, second = (encode([row[place] for row in rows]) for place in (-3, -2))
    labels = np.array([float(row[-1]) for row in rows])
    cosines = (first * second).sum(axis=1)
    return {f"STS-B {name}": metrics.MEASURES[name](labels, cosines) for name in ("spearman", "pearson")}


def run(row: str, args: argparse.Namespace, material: Material) -> dict[str, float]:
    """Trains and measures a row."""
    side, _, seed = row.partition("-")
    if side == "theirs":
        encode = theirs(args.checkpoint, material, int(seed))
    else:
        number = {"before": None, "random": 1}[row] if not seed else int(seed)
        encode = ours(args.checkpoint, material, number, fresh=row == "random")
    found = material.measure(encode)
    return found | (measure_scores(encode, material.scored) if row == "before" else {})


def main() -> None:
    """Runs the rows that have no file, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="see above")
    parser.add_argument("--pairs", type=int, default=4_000)
    args = parser.parse_args()
    material = Material(args.data, args.pairs)
    args.output.mkdir(parents=True, exist_ok=True)
    for row in args.rows:
        path = args.output / f"{row}.json"
        if not path.exists():
            path.write_text(json.dumps(run(row, args, material), indent=2) + "\n", encoding="utf-8")
    seen = len({*material.collection} & {text for _, text in material.pairs})
    title = f"{len(material.queries):,} questions among {len(material.collection):,} paragraphs, {seen:,} seen in training"
    made = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(args.output.glob("*.json"))
    }
    names = [*dict.fromkeys(name for found in made.values() for name in found)]
    table = Table("row", *names, title=title)
    for row, found in made.items():
        table.add_row(row, *(f"{found[name]:.4f}" if name in found else "-" for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
