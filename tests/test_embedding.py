"""Vectors of texts and words, against their definition in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from exports import untrained
from random_checkpoints import refused
from runs import texts, write_checkpoint

import bert_keras as bk
from bert_keras.features import ENCODER_OUTPUTS, EXAMPLE_INDEX, INPUT_MASK, WORD_INDEX
from bert_keras.tasks.batches import predict
from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
from bert_keras.tasks.runs.run_folder import run_of
from bert_keras.tasks.task import model_inputs

TEXTS = [*texts(4, seed=3), "", "good " * 60]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("embedding") / "checkpoint", num_layers=2)


def vectors(run, name):
    answers, _ = predict(
        run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices({"text": TEXTS})
    )
    return answers[name]


def states_of(run, features, layers=slice(-1, None)):
    """The mean of some blocks' states and the real positions."""
    blocks = run.encoder(model_inputs(run.task, features))[ENCODER_OUTPUTS][layers]
    return np.mean([block.numpy() for block in blocks], axis=0), features[INPUT_MASK].numpy() > 0


@pytest.mark.parametrize("l2", [False, True])
@pytest.mark.parametrize(
    ("pooling", "define"),
    [
        ("mean", lambda states: states.mean(axis=0)),
        ("cls", lambda states: states[0]),
        ("max", lambda states: states.max(axis=0)),
    ],
)
def test_definitions(pooling, define, l2, checkpoint):
    run = untrained(Embedding(pooling=pooling, l2=l2, layers="weighted_sum_all"), checkpoint)
    states, real = states_of(run, run.preprocess(tf.constant(TEXTS)), slice(None))
    expected = np.stack([define(row[kept]) for row, kept in zip(states, real, strict=True)])
    if l2:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(run, "embedding"), expected, rtol=1e-4, atol=1e-5)
    assert np.std(expected, axis=0).max() > 1e-3


def test_a_causal_encoder_is_pooled_at_the_last_position(tmp_path):
    run = untrained(Embedding(pooling="cls"), write_checkpoint(tmp_path / "causal", causal=True))
    states, real = states_of(run, run.preprocess(tf.constant(TEXTS)))
    last = [row[kept][-1] for row, kept in zip(states, real, strict=True)]
    found = vectors(run, "embedding")
    np.testing.assert_allclose(found, last, rtol=1e-4, atol=1e-5)
    assert np.std(found, axis=0).max() > 1e-3  # position 0 sees [CLS] alone, of every text


def test_words_have_the_vector_of_their_first_token(checkpoint):
    run = untrained(WordEmbedding(doc_stride=16), checkpoint)
    features = run.task.features(run.preprocess, {"text": tf.constant(TEXTS)})
    states, _ = states_of(run, features)
    expected = {
        (int(features[EXAMPLE_INDEX][window]), int(features[WORD_INDEX][window, position])): states[
            window, position
        ]
        for window, position in np.argwhere(features[WORD_INDEX].numpy() >= 0)
    }
    found = vectors(run, "word_embedding")
    assert found.shape[:2] == (len(TEXTS), 60)
    for (row, word), vector in expected.items():
        np.testing.assert_allclose(found[row, word], vector, rtol=1e-4, atol=1e-5)
    empty = [(row, word) for row, word in np.ndindex(*found.shape[:2]) if (row, word) not in expected]
    assert empty and not any(found[place].any() for place in empty)
    assert len(expected) == sum(len(text.split()) for text in TEXTS)


def test_training_without_files_is_refused():
    task = Embedding(pooling="max", l2=True)
    assert Embedding.from_json(task.to_json()).to_json() == task.to_json()
    refused("embedding is read from files", task.examples, "train")
    refused("word-embedding has no examples", WordEmbedding().examples, "train")


def test_bad_settings(checkpoint):
    refused("pooling is 'median'; .* mean, cls, max", Embedding, pooling="median")
    refused("needs 4 blocks and the encoder has 2", run_of, Embedding(layers="concat_last_four"), checkpoint)
    message = "seq_length is 500 and the encoder has 48 positions"
    refused(message, run_of, Embedding(), checkpoint, seq_length=500)


PROMPTS = {"query": "good film ", "document": ""}


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_dense_and_weights_are_those_of_numpy(checkpoint, include_prompt):
    options = {"prompts": PROMPTS, "include_prompt": include_prompt, "dense_size": 5}
    model = bk.embedder(checkpoint, pooling="weighted_mean", l2=True, seq_length=40, **options)
    dense = model.network.get_layer("sentence_dense")
    run = untrained(Embedding(layers="last"), checkpoint)
    states, real = states_of(run, run.preprocess(tf.constant([PROMPTS["query"] + text for text in TEXTS])))
    left = 0 if include_prompt else 3  # [CLS] good film
    weights = (np.arange(real.shape[1]) + 1.0) * real * (np.arange(real.shape[1]) >= left)
    pooled = (states * weights[..., None]).sum(1) / weights.sum(1, keepdims=True)
    expected = np.tanh(pooled @ dense.kernel.numpy() + dense.bias.numpy())
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = model.predict(TEXTS, prompt="query", verbose=0)["embedding"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    plain = model.predict(TEXTS, verbose=0)["embedding"]
    assert abs(plain - found).max() > 1e-3
    np.testing.assert_array_equal(model.predict(TEXTS, prompt="document", verbose=0)["embedding"], plain)
    refused("no prompt 'x'; the prompts are query, document", model.predict, TEXTS, prompt="x")


def test_an_embedding_says_what_it_assumes_and_refuses(checkpoint, capfd):
    bk.embedder(checkpoint)
    assert "does not say how to pool: the mean" in capfd.readouterr().err
    bk.embedder(checkpoint, pooling="mean")
    assert "pool" not in capfd.readouterr().err
    refused("there is no argument promts; an embedding has pooling", bk.embedder, checkpoint, promts={})
    refused("prompts is {'a': 1}; prompts must be an object of texts", Embedding, prompts={"a": 1})
    refused("no prompt 'a'; the prompts are none", Embedding, prompt="a")
    texts = bk.classifier(checkpoint, labels=["a", "b"])
    refused("has no prompts; leave prompt out", texts.predict, ["a"], prompt="query")


def test_pairs_get_the_prompts_of_queries_and_documents(checkpoint):
    """The words of the texts that the loss sees; scores and classes get the usual prompt."""
    task = Embedding(prompts={"query": "good ", "passage": "dull ", "all": "the "}, prompt="all")
    preprocess = bk.embedder(checkpoint, pooling="mean").preprocess
    words = preprocess.tokenizer.vocabulary
    texts = tf.constant([["actor", "film", "scene"], ["film", "actor", "scene"]])

    def first_words(**raw):
        ids = task.features(preprocess, {"text": texts} | raw)["input_word_ids"].numpy()
        return [" ".join(words[i] for i in row[1:3]) for row in ids]

    pairs = ["good actor", "dull film", "dull scene", "good film", "dull actor", "dull scene"]
    assert first_words() == pairs
    of_scores = first_words(text=texts[:, :2], label=tf.constant([0.5, 1.0]))
    assert of_scores == ["the actor", "the film", "the film", "the actor"]
    assert first_words(text=texts[:, 0]) == ["the actor", "the film"]
    assert first_words(text=texts[:, 0], prompt=tf.constant("dull ")) == ["dull actor", "dull film"]
