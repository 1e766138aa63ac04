"""The objective of a language model: its loss in numpy, the sampled softmax, pieces, and a run against unigrams."""

import collections
import dataclasses

import keras
import numpy as np
import pretrainings
import pytest
import tensorflow as tf

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, MASKED_LM_IDS
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.pretrainers import Pretrainer
from bert_keras.tasks.ancestors import language_model
from bert_keras.tasks.ancestors.language_model import NextWords, NextWordsHead
from bert_keras.tasks.pretraining.recipes import RECIPES, Recipe

V, H = 50, 8
CONFIG = BertConfig(
    vocab_size=V,
    hidden_size=H,
    num_layers=1,
    num_heads=2,
    intermediate_size=8,
    max_positions=8,
    causal=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.5,
)
IDS = np.array([[2, 7, 9, 3, 0, 0], [2, 30, 49, 8, 11, 3]], np.int32)
FEATURES = {INPUT_WORD_IDS: IDS, INPUT_MASK: np.minimum(IDS, 1), INPUT_TYPE_IDS: 0 * IDS}


def head_of(directions=1, *, seed=0, **how):
    """A head whose table and bias matter, and its encoder."""
    encoder, draw = BertEncoder(CONFIG), np.random.default_rng(seed)
    head = NextWordsHead(encoder, directions=directions, **how)
    for one in head.trainable_variables:
        one.assign(draw.normal(0, 0.7, one.shape))
    return encoder, head


def losses(states, words, table, bias):
    """Minus the logarithm of the softmax, in float64: [..., P] and [...] -> [...]."""
    scores = states.astype(np.float64) @ table.T.astype(np.float64) + bias
    whole = np.log(np.exp(scores).sum(-1))
    return whole - np.take_along_axis(scores, words[..., None], -1)[..., 0]


@pytest.mark.parametrize("directions", [1, 2])
def test_the_loss_is_the_softmax_of_the_next_word_and_of_the_word_before(directions):
    objective = NextWords(directions=directions)
    _, head = head_of(directions)
    states = np.random.default_rng(1).normal(0, 1, (2, 6, H)).astype(np.float32)
    features, labels, weights = objective.label(FEATURES, seed=(0, 0))
    logits = objective.logits(head, {"sequence_output": states}, features)
    table, bias = head.table.numpy(), head.bias.numpy()
    width = H // directions
    found, count = 0.0, 0
    for row, length in enumerate((4, 6)):
        for i in range(length - 1):
            found += losses(states[row, i, :width], IDS[row, i + 1], table, bias)
            count += 1
            if directions == 2:
                found += losses(states[row, i + 1, width:], IDS[row, i], table, bias)
                count += 1
    assert float(np.sum(weights)) == count
    loss = objective.loss()(labels, logits, weights)
    np.testing.assert_allclose(float(loss), found / count, rtol=1e-6)
    real = np.asarray(weights) > 0
    assert np.asarray(labels)[real].min() > 0 and not np.asarray(labels)[~real].any()


def test_correct_is_the_largest_logit():
    objective, (_, head) = NextWords(), head_of()
    states = np.random.default_rng(2).normal(0, 2, (4, 40, H)).astype(np.float32)
    words = np.random.default_rng(3).integers(0, 4, (4, 40)).astype(np.int32)
    best = np.argmax(states @ head.table.numpy().T + head.bias.numpy(), -1)
    right = objective.correct(words, head(states, words))
    np.testing.assert_array_equal(np.asarray(right), best == words)
    assert 0 < right.numpy().mean() < 1


def test_pieces_have_the_values_and_the_gradients_of_the_whole(monkeypatch):
    _, head = head_of()
    states = tf.constant(np.random.default_rng(4).normal(0, 1, (3, 7, H)), tf.float32)
    words = tf.constant(np.random.default_rng(5).integers(0, V, (3, 7)), tf.int32)
    weights = [head.table.value, head.bias.value]

    def both():
        # A batch of unknown size, as in training on text.
        @tf.function(input_signature=[tf.TensorSpec([None, 7, H]), tf.TensorSpec([None, 7], tf.int32)])
        def run(states, words):
            with tf.GradientTape() as tape:
                tape.watch(states)
                made = head(states, words)
                total = tf.reduce_sum(made[..., 0])
            return [made, *map(tf.convert_to_tensor, tape.gradient(total, [states, *weights]))]

        return run(states, words)

    whole = both()
    monkeypatch.setattr(language_model, "AT_ONCE", 5 * V)  # 21 rows are 5 pieces
    for one, other in zip(whole, both(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def sums_without_order(graph):
    """The sums of three or more, in a traced graph and its functions, whose first two terms are both read by another op.

    TensorFlow adds them in the order in which their buffers are free, so that two runs differ in the last bit.
    """
    definition = graph.as_graph_def()
    for nodes in (definition.node, *(one.node_def for one in definition.library.function)):
        readers = collections.Counter(name for node in nodes for name in node.input)
        for node in nodes:
            terms = [name for name in node.input if not name.startswith("^")]
            if node.op == "AddN" and len(terms) > 2 and min(readers[name] for name in terms[:2]) > 1:
                yield node.name


@pytest.mark.parametrize("samples", [0, 20])
def test_the_gradient_is_summed_in_one_order(samples):
    _, head = head_of(samples=samples)

    @tf.function(input_signature=[tf.TensorSpec([2, 7, H]), tf.TensorSpec([2, 7], tf.int32)])
    def gradient(states, words):
        with tf.GradientTape() as tape:
            tape.watch(states)
            total = tf.reduce_sum(head(states, words, training=True)[..., 0])
        return tape.gradient(total, [states, head.table.value, head.bias.value])

    assert [*sums_without_order(gradient.get_concrete_function().graph)] == []


def test_a_sampled_softmax_is_that_of_tensorflow_given_the_same_words(monkeypatch):
    """The loss and its gradients, with words that are drawn and true; evaluation has the whole softmax."""
    keras.utils.set_random_seed(1)
    _, head = head_of(samples=20)
    drawn, counts = head._draw()
    monkeypatch.setattr(head, "_draw", lambda: (drawn, counts))
    states = tf.constant(np.random.default_rng(6).normal(0, 1, (30, H)), tf.float32)
    words = tf.constant(np.random.default_rng(7).integers(0, V, 30), tf.int32)
    assert 0 < np.isin(words, drawn).sum() < 30
    of_both = [tf.gather(counts, one) for one in (words[:, None], drawn)]
    weights = [states, head.table.value, head.bias.value]
    found = []
    for theirs in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(states)
            if theirs:
                given = (tf.cast(drawn, tf.int64), *of_both)
                made = tf.nn.sampled_softmax_loss(
                    *weights[1:], tf.cast(words[:, None], tf.int64), states, 20, V, sampled_values=given
                )
            else:
                made = -head(states[None], words[None], training=True)[0, :, 0]
            total = tf.reduce_sum(made)
        found.append([made, *map(tf.convert_to_tensor, tape.gradient(total, weights))])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    whole = losses(states.numpy(), words.numpy(), head.table.numpy(), head.bias.numpy())
    np.testing.assert_allclose(-head(states[None], words[None], training=False)[0, :, 0], whole, atol=1e-5)


def test_a_draw_has_no_word_twice_and_each_by_its_probability():
    keras.utils.set_random_seed(1)
    _, head = head_of(samples=20)
    times, sums = np.zeros(V), np.zeros(V)
    for _ in range(120):
        ids, counts = map(np.asarray, head._draw())
        assert len({*ids}) == 20 and counts.max() <= 1
        times[ids] += 1 / 120
        sums += counts / 120
    assert (np.diff(sums) < 0).all(), "the rate falls with the id"
    np.testing.assert_allclose(times, sums, atol=0.15)
    np.testing.assert_allclose(times.sum(), sums.sum(), rtol=0.05)


def test_a_tied_softmax_is_the_embedding_table():
    encoder, head = head_of(tied=True)
    assert [one.name for one in head.trainable_variables] == ["bias"]
    states = np.random.default_rng(8).normal(0, 1, (1, 4, H)).astype(np.float32)
    words = np.array([[4, 0, 9, 49]], np.int32)
    wanted = losses(states, words, encoder.embedding_table.numpy(), head.bias.numpy())
    np.testing.assert_allclose(-head(states, words)[..., 0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "change, objective, message",
    [
        ({"causal": False}, NextWords(), "have 0 that read no word to predict.*set causal"),
        ({}, NextWords(directions=2), r"2 direction\(s\), and the states of the encoder bert have 1"),
        ({}, NextWords(softmax_samples=50), "softmax_samples is 50, and the vocabulary has 50 words"),
        ({"embedding_size": 4}, NextWords(tied_softmax=True), r"\(50, 4\) and the softmax needs \(50, 8\)"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(change, objective, message):
    encoder = BertEncoder(dataclasses.replace(CONFIG, **change))
    with pytest.raises(BertKerasError, match=message):
        objective.head(encoder)


def test_records_with_masks_are_refused():
    with pytest.raises(BertKerasError, match="have masks"):
        [*NextWords().check({MASKED_LM_IDS: IDS})]


def test_it_learns_from_earlier_words_alone():
    keras.utils.set_random_seed(1)
    model = Pretrainer(BertEncoder(CONFIG), [NextWords(softmax_samples=40)])
    model.compile(AdamW(3e-2, bias_correction=True))
    draw = np.random.default_rng(9)
    start = draw.integers(5, 40, (64, 1))
    ids = np.concatenate([np.full((64, 1), 2), start + np.arange(4), np.full((64, 1), 3)], 1).astype("int32")
    features = {INPUT_WORD_IDS: ids, INPUT_MASK: np.ones_like(ids), INPUT_TYPE_IDS: 0 * ids}
    data = NextWords().label(features, seed=(0, 0))
    data = (data[0], {"next_words": data[1]}, {"next_words": data[2]})
    batches = tf.data.Dataset.from_tensors(data).repeat(120)
    model.fit(batches, shuffle=False, verbose=0)
    found = model.evaluate(batches.take(1), return_dict=True, verbose=0)
    # The first word of a row is one of 35, and each other follows from the one before: 1 of 5 is a guess.
    assert found["next_words_accuracy"] > 0.7
    np.testing.assert_allclose(found["next_words_perplexity"], np.exp(found["loss"]), rtol=1e-5)


@pytest.mark.long
def test_a_run_beats_unigrams_and_its_perplexity_is_that_of_the_held_out_words(tmp_path, monkeypatch):
    settings = {"causal": True, "sampler": "contiguous"}
    monkeypatch.setitem(RECIPES, "next-words", Recipe(objectives=("next_words",), settings=settings))
    changes = {"steps": 60, "hidden_dropout": 0.0}
    results = pretrainings.train(
        tmp_path / "run", "next-words", changes=changes, held_out=pretrainings.documents(8, seed=5)
    )
    measures, baselines = results["measures"], results["majority_baselines"]
    assert measures["held_out_next_words_perplexity"] < baselines["next_words_perplexity"]
    np.testing.assert_allclose(
        measures["held_out_next_words_perplexity"], np.exp(measures["held_out_next_words_loss"]), rtol=1e-5
    )
