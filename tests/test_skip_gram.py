"""Skip-gram: its pairs, an update beside plain NumPy, a pre-training that resumes, and files that become checkpoints."""

import itertools
import random

import keras
import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, SEQUENCE_OUTPUT
from bert_keras.model.encoders import make_encoder
from bert_keras.optimization.pretrainers import Pretrainer
from bert_keras.tasks.ancestors import word_vectors
from bert_keras.tasks.ancestors.skip_gram import TARGETS, SkipGram
from bert_keras.tasks.ancestors.word_vectors import ENCODER, WordVectors
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain

SIZE = 12
CONFIG = BertConfig(vocab_size=SIZE, hidden_size=6, **ENCODER)
COUNTS = np.array([0, 3, 0, 0, 0, 400, 5, 5, 5, 5, 5, 5])


def rows(*ids):
    length = max(map(len, ids))
    padded = np.array([[*row, *[0] * (length - len(row))] for row in ids], np.int32)
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in ids], np.int32)
    features = {INPUT_WORD_IDS: padded, INPUT_MASK: mask, INPUT_TYPE_IDS: 0 * mask}
    return {name: tf.constant(value) for name, value in features.items()}


def test_the_pairs_are_words_within_a_center_s_own_window():
    objective = SkipGram(counts=COUNTS, window=2, negatives=3, subsample=None)
    found, labels, weights = objective.label(rows([2, 6, 7, 8, 9, 3], [2, 10, 3]), seed=(1, 2))
    centers, targets = found[INPUT_WORD_IDS].numpy(), found[TARGETS].numpy()
    assert centers.tolist() == [[6, 7, 8, 9], [10, 0, 0, 0]], "[CLS], [SEP] and padding are no centers"
    assert targets.shape == labels.shape == weights.shape == (2, 4, 4, 4)
    assert labels.numpy()[..., 0].all() and not labels.numpy()[..., 1:].any()
    for place, center in enumerate(centers[0]):
        known = {
            int(one)
            for one, weight in zip(targets[0, place, :, 0], weights.numpy()[0, place, :, 0], strict=True)
            if weight
        }
        near, far = ({*centers[0][max(0, place - n) : place + n + 1]} - {center} for n in (1, 2))
        assert near <= known <= far
    drawn, counted = targets[..., 1:], weights.numpy()[..., 1:]
    assert not counted[drawn == targets[..., :1]].any(), "a drawn word that stands there is no negative"


def test_words_are_dropped_and_drawn_by_their_frequency():
    objective = SkipGram(counts=COUNTS, window=1, negatives=4, subsample=0.01)
    kept = objective.kept()
    rate = COUNTS / COUNTS.sum()
    np.testing.assert_allclose(kept[5], np.sqrt(0.01 / rate[5]), rtol=1e-6)
    assert kept[0] == 0 and kept[6] == pytest.approx(min(1, np.sqrt(0.01 / rate[6])))
    many = rows(*[[5, 6] * 40] * 50)
    found, _, weights = objective.label(many, seed=(3, 4))
    centers = found[INPUT_WORD_IDS].numpy()
    assert (centers == 5).sum() / 2000 == pytest.approx(kept[5], rel=0.15)
    drawn = found[TARGETS].numpy()[..., 1:].ravel()
    wanted = COUNTS**0.75 / (COUNTS**0.75).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=SIZE) / drawn.size, wanted, atol=0.02)
    again = objective.label(many, seed=(3, 4))[0][TARGETS]
    np.testing.assert_array_equal(again, found[TARGETS])


def test_one_update_is_that_of_plain_numpy():
    keras.utils.set_random_seed(3)
    objective = SkipGram(counts=COUNTS, window=2, negatives=3, subsample=None)
    model = Pretrainer(make_encoder(CONFIG, outputs=(SEQUENCE_OUTPUT,)), [objective])
    table, out = model.encoder.embedding_table, model.heads["skip_gram"].vectors
    random = np.random.default_rng(0)
    for one in (table, out):
        one.assign(random.normal(size=one.shape).astype("float32"))
    v, u = (one.numpy().astype(np.float64) for one in (table, out))
    x, labels, weights = objective.label(rows([6, 7, 8, 9, 10], [11, 6, 5]), seed=(5, 6))
    model.compile(keras.optimizers.SGD(0.5))
    model.train_on_batch(x, {"skip_gram": labels}, {"skip_gram": weights})

    centers, targets = x[INPUT_WORD_IDS].numpy(), x[TARGETS].numpy()
    y, w = labels.numpy(), weights.numpy().astype(np.float64)
    new_v, new_u = v.copy(), u.copy()
    for place in np.ndindex(targets.shape):
        center, target = centers[place[:2]], targets[place]
        error = w[place] / w.sum() * (1 / (1 + np.exp(-v[center] @ u[target])) - y[place])
        new_v[center] -= 0.5 * error * u[target]
        new_u[target] -= 0.5 * error * v[center]
    np.testing.assert_allclose(table.numpy(), new_v, atol=1e-6)
    np.testing.assert_allclose(out.numpy(), new_u, atol=1e-6)


def test_a_new_word_has_a_vector_of_its_own_in_every_process():
    encoder = make_encoder(CONFIG, outputs=(SEQUENCE_OUTPUT,))
    found = encoder(rows([6, SIZE + 7, SIZE + 8, SIZE + 7]))[SEQUENCE_OUTPUT].numpy()[0]
    np.testing.assert_array_equal(found[0], encoder.embedding_table.numpy()[6])
    np.testing.assert_array_equal(found[1], found[3])
    assert np.abs(found[1] - found[2]).max() > 1e-3
    # Numbers of an earlier run of this test.
    np.testing.assert_allclose(found[1][:3], EARLIER, atol=1e-6)


EARLIER = (0.01634423, 0.02041863, -0.00742956)


def test_it_is_right_where_the_word_around_is_above_a_drawn_word_and_unigrams_compare_rates():
    """Most drawn words are told by "no": that is no accuracy to beat. Here each pair of words is compared by hand."""
    counts = np.array([0, 0, 6, 1, 3, 6])
    objective = SkipGram(counts=counts, subsample=0.05)
    logits = np.array([[[[1.0, 0.5, 2.0, 1.0]]]], "float32")
    found = objective.correct(np.zeros_like(logits, "int32"), tf.constant(logits))
    np.testing.assert_allclose(found, [[[[1 / 3, 1, 0, 0]]]], rtol=1e-6)
    text, drawn = objective.kept() * counts, counts**0.75
    right = 0.0
    for word, other in itertools.product(range(2, 6), repeat=2):
        chosen = np.sign(text[word] / drawn[word] - text[other] / drawn[other])
        right += text[word] / text.sum() * drawn[other] / drawn.sum() * (1 + chosen) / 2
    assert objective.baseline(found, found) == pytest.approx(right, rel=1e-6)
    assert right > 0.5


@pytest.mark.long
def test_it_learns_and_a_resumed_run_has_the_same_bits(tmp_path):
    changes = {"encoder": "word-vectors", "num_layers": 0, "num_heads": 1, "subsample": None, "window": 2}
    changes |= {"learning_rate": 3e-2, "warmup_proportion": 0.0, "steps": 60, "hidden_size": 16}
    words = [word for word in runs.VOCABULARY if word.isalpha()]
    topics = [words[i::4] for i in range(4)]  # a document has words of one
    draw = random.Random(1)
    made = [[" ".join(draw.choices(topics[i % 4], k=12)) for _ in range(4)] for i in range(80)]
    given = pretrainings.given("word-vectors", changes=changes, documents=made[8:], held_out=made[:8])
    lines: list[str] = []
    results = pretrain(Pretraining(**given), tmp_path / "run", save_every=1000, log=lines.append, verbose=0)
    learned = results["measures"]["held_out_skip_gram_accuracy"]
    assert learned > results["majority_baselines"]["skip_gram_accuracy"] + 0.1

    def stop(line):
        if line.startswith("step 40, held out"):
            raise KeyboardInterrupt

    for log in (stop, lines.append):
        try:
            pretrain(Pretraining(**given), tmp_path / "again", save_every=20, log=log, verbose=0)
        except KeyboardInterrupt:
            assert log is stop
    one, other = (checkpoints.read(tmp_path / name).tensors for name in ("run", "again"))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_file_of_vectors_becomes_a_checkpoint_and_a_file_again(tmp_path):
    words = ("the", "cat", "<UNK>", "<UNK-number>", "##s")
    vectors = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")
    for form in word_vectors.FORMATS:
        file = tmp_path / f"{form}.{'bin' if form.endswith('binary') else 'txt'}"
        word_vectors.write(WordVectors(words, vectors), file, format=form)
        folder, back = tmp_path / form, tmp_path / f"{form}-back.txt"
        assert runs.command(["convert", "--from", file, "--to", folder]) == 0
        found = checkpoints.read(folder)
        tokenizer = checkpoints.tokenizer_of(found)
        assert tokenizer.lower_case and found.config.num_layers == 0
        encoder = checkpoints.load_encoder(folder, outputs=(SEQUENCE_OUTPUT,), fresh=("pooler",))
        ids = tokenizer.tokenize(tf.constant(["The cat saw 12 s"])).values.numpy()
        states = encoder(rows(ids.tolist()))[SEQUENCE_OUTPUT].numpy()[0]
        np.testing.assert_array_equal(states, vectors[[0, 1, 2, 3, 2]])
        assert runs.command(["convert", "--from", folder, "--to", back, "--format", form]) == 0
        again = word_vectors.read(back)
        np.testing.assert_array_equal(again.vectors_of(words), vectors)
    with pytest.raises(BertKerasError, match="its encoder is bert; wanted word-vectors"):
        other = checkpoints.Checkpoint(config=BertConfig.named("tiny"), tensors={})
        word_vectors.write_checkpoint(other, tmp_path / "no.txt", format="glove")
