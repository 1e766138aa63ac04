"""The losses of text vectors against loops in NumPy, their gradients against finite differences, and sentence-transformers."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.model.choices import CLASSES, PAIRS, SCORES, VECTOR_LOSSES, VECTORS
from bert_keras.optimization.vector_losses import RULES, BatchLoss

ROWS, WIDTH = 6, 5
DRAW = np.random.default_rng(3)
TEXTS = DRAW.normal(size=(ROWS, 3, WIDTH))
LABELS = {
    PAIRS: np.arange(3 * ROWS).reshape(ROWS, 3),
    SCORES: np.array([0.1, 0.9, -0.3, 0.5, 0.5, -1.0]),
    CLASSES: np.array([0, 1, 0, 2, 1, 1], np.int32),
    VECTORS: DRAW.normal(size=(ROWS, WIDTH)),
}


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def ranking(texts, vectors, temperature=0.05):
    made, losses = unit(vectors), []
    for i in range(len(texts)):
        candidates, seen = [made[i, 1]], {texts[i, 0], texts[i, 1]}
        for t in range(1, texts.shape[1]):
            for j in range(len(texts)):
                if (j, t) == (i, 1) or (t == 1 and texts[j, 0] == texts[i, 0]) or texts[j, t] in seen:
                    continue
                seen.add(texts[j, t])
                candidates.append(made[j, t])
        logits = np.array([made[i, 0] @ one for one in candidates]) / temperature
        losses.append(np.log(np.exp(logits).sum()) - logits[0])
    return np.mean(losses)


def symmetric(texts, vectors):
    """The positives as queries among the queries are the same loss of swapped pairs."""
    swapped = [1, 0]
    return (ranking(texts, vectors) + ranking(texts[:, swapped], vectors[:, swapped])) / 2


def cosines(vectors):
    made = unit(vectors)
    return (made[:, 0] * made[:, 1]).sum(-1)


def cosent(scores, vectors):
    found = cosines(vectors) * 20
    pairs = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if scores[i] > scores[j]]
    return np.log(1 + sum(np.exp(found[j] - found[i]) for i, j in pairs))


def triplet(texts, vectors):
    near, far = (np.linalg.norm(vectors[:, 0] - vectors[:, t], axis=-1) for t in (1, 2))
    return np.maximum(near - far + 5, 0).mean()


def batch_hard(classes, vectors):
    points, losses = vectors[:, 0], []
    for i, own in enumerate(classes):
        distances = np.linalg.norm(points[i] - points, axis=-1)
        others = [j for j in np.flatnonzero(classes == own) if j != i]
        if others:
            losses.append(max(distances[others].max() - distances[classes != own].min() + 5, 0))
    return np.mean(losses)


BY_HAND = {
    "multiple_negatives_ranking": ranking,
    "symmetric_ranking": symmetric,
    "triplet": triplet,
    "cosent": cosent,
    "cosine_similarity": lambda scores, vectors: np.mean((cosines(vectors) - scores) ** 2),
    "batch_hard_triplet": batch_hard,
    "mean_squared_error": lambda teacher, vectors: np.mean((vectors - teacher[:, None]) ** 2),
}


def given(name):
    """Labels and vectors for a loss: pairs without negatives where its loop has none."""
    form = VECTOR_LOSSES[name].form
    texts = {SCORES: 2, CLASSES: 1, VECTORS: 2}.get(form, 2 if name == "symmetric_ranking" else 3)
    labels = LABELS[form][:, :texts] if form == PAIRS else LABELS[form]
    return labels, TEXTS[:, :texts]


def loss_and_gradient(name, labels, vectors, weights=None, **settings):
    made = tf.constant(vectors, tf.float32)
    labels = tf.constant(labels, tf.float32 if VECTOR_LOSSES[name].form in (SCORES, VECTORS) else None)
    with tf.GradientTape() as tape:
        tape.watch(made)
        loss = BatchLoss(name, **settings)(labels, made, weights)
    return float(loss), tape.gradient(loss, made).numpy()


@pytest.mark.parametrize("name", RULES)
def test_each_loss_and_its_gradient(name):
    labels, vectors = given(name)
    loss, gradient = loss_and_gradient(name, labels, vectors)
    call = BY_HAND[name]
    assert loss == pytest.approx(call(labels, vectors), rel=1e-5)
    wanted, step = np.zeros_like(vectors), 1e-5
    for place in np.ndindex(vectors.shape):
        shifted = [vectors.copy(), vectors.copy()]
        shifted[0][place] += step
        shifted[1][place] -= step
        wanted[place] = (call(labels, shifted[0]) - call(labels, shifted[1])) / (2 * step)
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(gradient, wanted, atol=2e-5)


@pytest.mark.parametrize("name", RULES)
def test_a_row_of_padding_changes_nothing(name):
    """It repeats the first row, with weight 0."""
    labels, vectors = given(name)
    loss, gradient = loss_and_gradient(name, labels, vectors)
    more = [np.concatenate([one, one[:1], one[:1]]) for one in (labels, vectors)]
    weights = tf.constant([1.0] * ROWS + [0.0, 0.0])
    padded, by_vectors = loss_and_gradient(name, *more, weights)
    assert padded == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(by_vectors[:ROWS], gradient, rtol=1e-5, atol=1e-6)
    assert not by_vectors[ROWS:].any()


@pytest.mark.parametrize("name", ["multiple_negatives_ranking", "symmetric_ranking"])
def test_equal_texts_are_no_negatives(name):
    labels, vectors = given(name)
    labels, vectors = labels.copy(), vectors.copy()
    for row, column, other in (
        (1, 1, (0, 1)),
        (3, 0, (2, 0)),
        (4, 1, (5, 0)),
    ):  # (4, 1) is the query of row 5
        labels[row, column], vectors[row, column] = labels[other], vectors[other]
    loss, _ = loss_and_gradient(name, labels, vectors)
    assert loss == pytest.approx(BY_HAND[name](labels, vectors), rel=1e-5)
    alone, _ = loss_and_gradient(name, np.arange(labels.size).reshape(labels.shape), vectors)
    assert alone > loss + 0.1


def test_settings_of_the_losses():
    labels, vectors = given("multiple_negatives_ranking")
    loss, _ = loss_and_gradient("multiple_negatives_ranking", labels, vectors, temperature=0.5)
    assert loss == pytest.approx(ranking(labels, vectors, 0.5), rel=1e-5)
    labels, vectors = given("triplet")
    loss, _ = loss_and_gradient("triplet", labels, vectors, margin=1e-3)
    assert loss < triplet(labels, vectors) - 1
    kept = BatchLoss.from_config(BatchLoss("triplet", margin=2.0).get_config())
    assert (kept.rule, kept.margin, kept.temperature) == ("triplet", 2.0, None)


def test_the_labels_choose_the_default():
    for form, name in (
        (PAIRS, "multiple_negatives_ranking"),
        (SCORES, "cosent"),
        (CLASSES, "batch_hard_triplet"),
        (VECTORS, "mean_squared_error"),
    ):
        labels, vectors = given(name)
        labels = tf.constant(labels, tf.float32 if form in (SCORES, VECTORS) else None)
        chosen = BatchLoss()(labels, tf.constant(vectors, tf.float32))
        assert float(chosen) == pytest.approx(BY_HAND[name](labels.numpy(), vectors), rel=1e-5)
    with pytest.raises(BertKerasError, match="triplet learns from pairs and the labels are those of scores"):
        BatchLoss("triplet")(tf.zeros([2]), tf.zeros([2, 2, 3]))
    with pytest.raises(BertKerasError, match="teacher's vectors have 4 dimensions and the model's 3"):
        BatchLoss()(tf.zeros([2, 4]), tf.zeros([2, 3]))


def test_matryoshka_sums_the_losses_of_the_first_numbers():
    for name in RULES:
        if VECTOR_LOSSES[name].form == VECTORS:
            continue
        labels, vectors = given(name)
        loss, _ = loss_and_gradient(name, labels, vectors, matryoshka=[5, 3, 2])
        parts = [BY_HAND[name](labels, unit(vectors[..., :size])) for size in (5, 3, 2)]
        assert loss == pytest.approx(sum(parts), rel=1e-5), name
    with pytest.raises(BertKerasError, match="matryoshka is 9 and the vectors have 5 dimensions"):
        loss_and_gradient(name="cosent", labels=LABELS[SCORES], vectors=TEXTS, matryoshka=[9])
    with pytest.raises(BertKerasError, match="does not apply to a teacher's vectors"):
        loss_and_gradient("mean_squared_error", *given("mean_squared_error"), matryoshka=[2])


def test_a_vector_of_zeros_has_a_finite_gradient():
    for name in RULES:
        labels, vectors = given(name)
        vectors = vectors.copy()
        vectors[0] = vectors[2] = 0
        assert np.isfinite(loss_and_gradient(name, labels, vectors)[1]).all()


@pytest.mark.parity
def test_the_losses_of_sentence_transformers():
    """Loss and gradient at equal vectors."""
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    symmetric_ranking = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    theirs = {
        "multiple_negatives_ranking": losses.MultipleNegativesRankingLoss(None),
        "symmetric_ranking": losses.MultipleNegativesRankingLoss(None, **symmetric_ranking),
        "triplet": losses.TripletLoss(None),
        "cosent": losses.CoSENTLoss(None),
        "cosine_similarity": losses.CosineSimilarityLoss(None),
        "batch_hard_triplet": losses.BatchHardTripletLoss(None),
        "mean_squared_error": losses.MSELoss(None),
    }
    assert {*theirs} == {*RULES}
    for name, their in theirs.items():
        labels, vectors = given(name)
        if name == "batch_hard_triplet":
            labels = np.array(
                [0, 1, 0, 2, 1, 2], np.int32
            )  # theirs counts a text without another one of its class
        parts = [
            torch.tensor(vectors[:, t], dtype=torch.float32, requires_grad=True)
            for t in range(vectors.shape[1])
        ]
        wanted = torch.tensor(labels, dtype=torch.float32 if labels.dtype.kind == "f" else torch.int64)
        if name == "batch_hard_triplet":
            loss = their.batch_hard_triplet_loss(wanted, parts[0])
        elif name == "mean_squared_error":
            loss = their.compute_loss_from_embeddings(parts, [wanted] * len(parts))
        else:
            loss = their.compute_loss_from_embeddings(parts, wanted)
        loss.backward()
        ours, gradient = loss_and_gradient(name, labels, vectors)
        assert ours == pytest.approx(loss.item(), rel=1e-5), name
        by_theirs = np.stack([part.grad.numpy() for part in parts], axis=1)
        np.testing.assert_allclose(gradient, by_theirs, atol=1e-5, err_msg=name)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["multiple_negatives_ranking", "triplet", "cosent"])
def test_the_matryoshka_loss_of_sentence_transformers(name):
    """Loss and gradient at equal vectors."""
    torch = pytest.importorskip("torch")
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Given(torch.nn.Module):
        """A model whose features are its vectors."""

        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self):
            return WIDTH

    classes = {
        "multiple_negatives_ranking": losses.MultipleNegativesRankingLoss,
        "triplet": losses.TripletLoss,
        "cosent": losses.CoSENTLoss,
    }
    labels, vectors = given(name)
    parts = [torch.tensor(one, dtype=torch.float32, requires_grad=True) for one in np.moveaxis(vectors, 1, 0)]
    model = Given()
    their = losses.MatryoshkaLoss(model, classes[name](model), [WIDTH, 3, 2])
    loss = their([{"vectors": one} for one in parts], torch.tensor(labels, dtype=torch.float32))
    loss.backward()
    ours, gradient = loss_and_gradient(name, labels, vectors, matryoshka=[WIDTH, 3, 2])
    assert ours == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, np.stack([one.grad.numpy() for one in parts], axis=1), atol=1e-5)
