"""Vectors of texts, by bert_keras and by sentence-transformers: the mean of the tokens' states, of length 1."""

import json
import pathlib
from typing import Any

import numpy as np

from peer_work.hugging_face import TORCH, optimizer
from peer_work.work import CLIP_NORM, SEED, Case, Prepared, in_turn, mixed_texts

TEMPERATURE, NEAREST = 0.05, 10
COMPARED = 64  # texts whose vectors are compared


def _collection(case: Case) -> np.ndarray:
    """Random vectors of length 1, float32 [batch, H] of MiniLM's width or that of the smallest model."""
    width = 32 if case.size == "tiny" else 384
    drawn = np.random.default_rng(SEED).standard_normal((case.batch, width), "float32")
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


# -----------------------------------------------------------------------------------------------------------
# bert_keras


def _embedder(case: Case, folder: pathlib.Path, **settings: Any) -> Any:
    import bert_keras as bk

    return bk.embedder(folder / case.size, pooling="mean", l2=True, seq_length=case.length, **settings)


def encode(case: Case, folder: pathlib.Path) -> Prepared:
    """`predict`, which sorts the texts by their lengths."""
    model, texts = _embedder(case, folder), mixed_texts(case, folder)
    first = model.predict(texts[:COMPARED], verbose=0)["embedding"]
    return lambda: model.predict(texts, verbose=0), {"vectors": first}


def train(case: Case, folder: pathlib.Path) -> Prepared:
    """`fit` on pairs of strings, with AdamW, clipping and dropout."""
    from peer_work.ours_training import optimizer

    model, texts = (
        _embedder(case, folder, loss="multiple_negatives_ranking", temperature=TEMPERATURE),
        mixed_texts(case, folder),
    )
    first = model.predict(texts[:COMPARED], verbose=0)["embedding"]
    model.compile(optimizer())
    queries, positives = texts[::2], texts[1::2]
    return (
        lambda: model.fit(queries, positives, batch_size=case.batch, epochs=1, verbose=0),
        {"vectors": first},
    )


def search(case: Case, folder: pathlib.Path) -> Prepared:
    """The SavedModel of `export --index`, a query string in."""
    import tensorflow as tf

    from bert_keras.savedmodels.export import export
    from bert_keras.tasks.retrieval.collection import Collection
    from bert_keras.tasks.retrieval.index import write_index
    from bert_keras.tasks.retrieval.search_task import make_search
    from bert_keras.tasks.retrieval.text_encoder import TextEncoder, load_text_encoder

    vectors = iter(np.array_split(_collection(case), range(4096, case.batch, 4096)))

    class Drawn(TextEncoder):
        """Ready vectors, in the order of the texts."""

        def __call__(self, texts: Any, *, progress: Any = None) -> np.ndarray:
            return next(vectors)

    listed, index = folder / "collection.jsonl", folder / f"index-{case.size}"
    rows = (json.dumps({"id": str(i), "text": f"text {i}"}) for i in range(case.batch))
    listed.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = load_text_encoder(folder / case.size)
    write_index(index, Drawn(run, similarity="cosine"), Collection(listed))
    found = make_search(index, model=folder / case.size, k=min(NEAREST, case.batch))
    serve = tf.saved_model.load(str(export(found, folder / f"search-{case.size}"))).signatures[
        "serving_default"
    ]

    def ask(texts: list[str]) -> np.ndarray:
        answers = serve(text=tf.constant(texts))
        assert answers["text"].shape == answers["score"].shape
        return answers["score"].numpy()

    asked = [[text] for text in mixed_texts(case, folder)[:100]]
    return in_turn(ask, asked), {"scores": ask(asked[0])}


# -----------------------------------------------------------------------------------------------------------
# sentence-transformers


def _sentence_transformer(case: Case, folder: pathlib.Path) -> Any:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    path = str(folder / case.size)
    kwargs = {"attn_implementation": TORCH["attn_implementation"]}
    config = {"hidden_act": TORCH["hidden_act"]}
    words = Transformer(path, max_seq_length=case.length, model_kwargs=kwargs, config_kwargs=config)
    pool = Pooling(words.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[words, pool, Normalize()], device="cpu")


def encode_by_torch(case: Case, folder: pathlib.Path) -> Prepared:
    """`encode`, which sorts the texts by their lengths."""
    model, texts = _sentence_transformer(case, folder), mixed_texts(case, folder)
    first = model.encode(texts[:COMPARED], show_progress_bar=False)
    return lambda: model.encode(texts, show_progress_bar=False), {"vectors": first}


def train_by_torch(case: Case, folder: pathlib.Path) -> Prepared:
    """MultipleNegativesRankingLoss in a plain loop with fused AdamW, on texts that were tokenized beforehand."""
    import torch
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    model, texts = _sentence_transformer(case, folder), mixed_texts(case, folder)
    first = model.encode(texts[:COMPARED], show_progress_bar=False)
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    step, size = optimizer(model), case.batch
    ready = [
        [model.preprocess(side[start : start + size]) for side in (texts[::2], texts[1::2])]
        for start in range(0, len(texts) // 2, size)
    ]

    def train() -> None:
        model.train()
        for sides in ready:
            loss([dict(side) for side in sides], labels=None).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            step.step()
            step.zero_grad()

    return train, {"vectors": first}


def search_by_torch(case: Case, folder: pathlib.Path) -> Prepared:
    """`encode` and `semantic_search` over one tensor."""
    import torch
    from sentence_transformers.util import dot_score, semantic_search

    model, vectors = _sentence_transformer(case, folder), torch.from_numpy(_collection(case))
    listed = [f"text {i}" for i in range(case.batch)]

    def ask(texts: list[str]) -> np.ndarray:
        query = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
        hits = semantic_search(query, vectors, top_k=NEAREST, score_function=dot_score)
        assert all(listed[hit["corpus_id"]] for hit in hits[0])
        return np.array([[hit["score"] for hit in of_text] for of_text in hits], "float32")

    asked = [[text] for text in mixed_texts(case, folder)[:100]]
    return in_turn(ask, asked), {"scores": ask(asked[0])}
