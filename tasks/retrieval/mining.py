"""Hard negatives: texts of an index that are near to a query and do not answer it.

In: pairs of a query and its positive, and an index. Out: rows of texts [2 + n], the negatives from near to far.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from bert_keras.tasks.options import MiningOptions
from bert_keras.tasks.problems.vector_measures import unit
from bert_keras.tasks.retrieval.index import Index
from bert_keras.tasks.retrieval.nearest import Nearest
from bert_keras.tasks.retrieval.text_encoder import TextEncoder


def mine_negatives(
    pairs: Sequence[tuple[str, str]],
    index: Index,
    queries: TextEncoder,
    documents: TextEncoder,
    options: MiningOptions,
) -> Iterator[tuple[str, ...]]:
    """Yields (query, positive, negatives...) for each pair that has as many negatives as are wanted.

    queries, documents: the encoders of both sides, with their prompts

    A text may be an answer that nobody marked. It is no negative where it equals the query or a positive of the query, but for
    case and white space; where its cosine with one of these positives is `duplicate` or more; or where its score with the query
    is over the positive's less `margin` of it. Source of the margin: Moreira et al. 2024.
    """
    positives = defaultdict[str, list[str]](list)
    for query, positive in pairs:
        positives[query].append(positive)
    listed, answers = [*positives], [*dict.fromkeys(positive for _, positive in pairs)]
    asked, made = queries(listed), documents(answers)
    vectors, place = index.vectors(), {text: i for i, text in enumerate(answers)}
    _, rows = Nearest(vectors, k=min(options.depth, index.count)).search(asked)
    for query, vector, near in zip(listed, asked, rows[:, options.skip :], strict=True):
        own = made[[place[text] for text in positives[query]]]
        texts = [text for _, text in index.texts(near.tolist())]
        known = {_plain(text) for text in (query, *positives[query])}
        far = (unit(vectors[near]) @ unit(own).T).max(axis=1) < options.duplicate
        scores = vectors[near] @ vector
        for positive, score in zip(positives[query], own @ vector, strict=True):
            kept = far & (scores <= score - abs(score) * options.margin)
            found = (
                text for text, keep in zip(texts, kept, strict=True) if keep and _plain(text) not in known
            )
            negatives = [*dict.fromkeys(found)][: options.negatives]
            if len(negatives) == options.negatives:
                yield query, positive, *negatives


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
