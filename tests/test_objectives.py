"""Pre-training objectives: labels, losses written again in numpy, what `fit` logs and learns, and ELECTRA's two models."""

import dataclasses

import jobs
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    NEXT_SENTENCE_LABEL,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.fields import Masking
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.objectives import (
    LeftToRight,
    MaskedLM,
    ReplacedTokens,
    SentencePair,
    binary_cross_entropy,
    label,
)
from bert_keras.optimization.optimizers import AdamW
from bert_keras.optimization.pretrainers import (
    REPLACED,
    ElectraPretrainer,
    Pretrainer,
    choose_pretrainer,
    generator_config,
)
from bert_keras.text.masking import Pieces
from bert_keras.text.tokenizer import SpecialTokens

BOTH = (SEQUENCE_OUTPUT, POOLED_OUTPUT)
CONFIG = BertConfig(
    vocab_size=30,
    hidden_size=32,
    num_layers=1,
    num_heads=4,
    intermediate_size=64,
    max_positions=16,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.2,
)
PIECES = Pieces(
    special=SpecialTokens(padding=0, unknown=1, start=2, end=3, mask=4),
    continues=np.zeros(30, bool),
    real=np.arange(5, 30, dtype="int32"),
)
MASKED_LM = MaskedLM(pieces=PIECES, masking=Masking(max_predictions=3, share=0.2))
SEED = tf.constant([1, 2])


def repeating(rows, *, seed=0):
    """Two segments of 2 to 5 tokens that are all one word, of 25; label 1: the second is of another word."""
    generator = np.random.default_rng(seed)
    features = {name: np.zeros((rows, 13), "int32") for name in (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)}
    labels = generator.integers(0, 2, (rows, 1)).astype("int32")
    for row in range(rows):
        lengths = generator.integers(1, 6, 2)
        first, away = generator.integers(0, 25), generator.integers(3, 23)
        start = first + lengths[0] + (away if labels[row, 0] else 0)
        one, two = (5 + (begin + np.arange(n)) % 25 for begin, n in zip((first, start), lengths, strict=True))
        ids = [2, *one, 3, *two, 3]
        features[INPUT_WORD_IDS][row, : len(ids)] = ids
        features[INPUT_MASK][row, : len(ids)] = 1
        features[INPUT_TYPE_IDS][row, lengths[0] + 2 : len(ids)] = 1
    return {name: tf.constant(value) for name, value in features.items()} | {
        NEXT_SENTENCE_LABEL: tf.constant(labels)
    }


def numbers(tree):
    return tf.nest.map_structure(lambda x: x.numpy(), tree)


def log_softmax(logits):
    logits = np.float64(logits)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def nll(logits, labels):
    return -np.take_along_axis(log_softmax(logits), labels[..., None], axis=-1)[..., 0]


def pretrainer(*objectives, config=CONFIG, **options):
    return Pretrainer(BertEncoder(config, outputs=BOTH), objectives, **options)


# Labels -----------------------------------------------------------------------------------------------------


def test_label_of_both_objectives():
    features = repeating(8)
    x, y, weights = label(features, objectives=[MASKED_LM, SentencePair()], seed=SEED)
    shapes = {name: value.shape.as_list() for name, value in y.items()}
    assert shapes == {"masked_lm": [8, 3], "next_sentence": [8]}
    np.testing.assert_array_equal(y["next_sentence"], features[NEXT_SENTENCE_LABEL][:, 0])
    np.testing.assert_array_equal(weights["next_sentence"], np.ones(8))
    asked = weights["masked_lm"].numpy() > 0
    places = x[MASKED_LM_POSITIONS].numpy()
    stood = np.take_along_axis(features[INPUT_WORD_IDS].numpy(), places, axis=1)
    np.testing.assert_array_equal(y["masked_lm"].numpy()[asked], stood[asked])
    assert (x[INPUT_WORD_IDS] != features[INPUT_WORD_IDS]).numpy().any()
    again, other = (label(features, objectives=[MASKED_LM], seed=seed)[0] for seed in (SEED, SEED + 1))
    np.testing.assert_array_equal(x[INPUT_WORD_IDS], again[INPUT_WORD_IDS])
    assert (x[INPUT_WORD_IDS] != other[INPUT_WORD_IDS]).numpy().any()


def test_masks_from_a_file_stay():
    stored, _, _ = label(repeating(4), objectives=[MASKED_LM], seed=SEED)
    x, y, _ = label(stored, objectives=[MASKED_LM], seed=SEED + 7)
    np.testing.assert_array_equal(x[INPUT_WORD_IDS], stored[INPUT_WORD_IDS])
    np.testing.assert_array_equal(y["masked_lm"], stored[MASKED_LM_IDS])


# Checks of data, baselines, models ----------------------------------------------------------------------------


def sample(ones, count=20, **more):
    """Instances of 8 positions, of which so many have label 1."""
    labels = np.arange(count) < ones
    return {INPUT_WORD_IDS: np.ones((count, 8), "int32"), NEXT_SENTENCE_LABEL: labels.astype("int32")} | more


def test_pairs_need_both_labels():
    assert [*SentencePair().check(sample(10))] == []
    (warning,) = SentencePair().check(sample(14))
    assert "70.0% of 20" in warning
    for ones, label_ in ((20, 1), (0, 0)):
        with pytest.raises(ValueError, match=f"all of 20 .* labels are {label_}, .* seq_length, 8"):
            [*SentencePair().check(sample(ones))]


def test_left_to_right_refuses_masks():
    masked = sample(10, **{MASKED_LM_IDS: np.ones((20, 2), "int32")})
    assert [*LeftToRight().check(sample(10)), *MASKED_LM.check(masked)] == []
    with pytest.raises(ValueError, match="records have masks"):
        [*LeftToRight().check(masked)]


class Own(SentencePair):
    """An objective of a user's own, which changes no token."""

    name = "own"


def test_an_objective_of_ones_own_changes_no_mask():
    """Perplexities of two recipes are of the same masks, wherever the objective stands."""
    alone, *with_own = (
        label(repeating(4), objectives=objectives, seed=SEED)[1]["masked_lm"]
        for objectives in ([MASKED_LM], [Own(), MASKED_LM], [MASKED_LM, Own()])
    )
    for one in with_own:
        np.testing.assert_array_equal(one, alone)


class WithoutParts(SentencePair):
    """As users wrote objectives before workers labelled their own rows alone."""

    def label(self, features, *, seed):
        return super().label(features, seed=seed)


def test_an_objective_that_knows_no_parts_labels_whole_batches():
    _, y, _ = label(repeating(4), objectives=[WithoutParts()], seed=SEED)
    assert y["next_sentence"].shape == [4]


class Shuffled(SentencePair):
    name = "shuffled"

    def label(self, features, *, seed, **how):
        moved = features | {"input_word_ids": tf.roll(features["input_word_ids"], 1, axis=1)}
        return super().label(moved, seed=seed)


def test_tokens_are_changed_before_they_are_masked():
    label(repeating(4), objectives=[Shuffled(), MASKED_LM], seed=SEED)
    with pytest.raises(
        ValueError, match="shuffled changes input_word_ids after tokens were masked, .*before the masked LM"
    ):
        label(repeating(4), objectives=[MASKED_LM, Shuffled()], seed=SEED)


def test_the_baseline_is_the_most_frequent_label():
    labels, weights = np.array([[5, 5, 9], [9, 7, 9]]), np.array([[1.0, 1, 0], [0, 1, 0]])
    assert MASKED_LM.baseline(labels, weights) == pytest.approx(2 / 3)
    assert MASKED_LM.baseline(labels, np.zeros_like(weights)) is None
    assert ReplacedTokens().baseline(labels, weights) is None


def test_objectives_choose_their_model():
    assert choose_pretrainer([MaskedLM, SentencePair]) is Pretrainer
    assert choose_pretrainer([MaskedLM, ReplacedTokens]) is ElectraPretrainer
    encoder = BertEncoder(CONFIG, outputs=[SEQUENCE_OUTPUT])
    replaced = ReplacedTokens(replaced_weight=3.0, generator_share=0.5)
    model = ElectraPretrainer.of(encoder, [MASKED_LM, replaced])
    assert model.objective_weights == {"masked_lm": 1, "replaced_token": 3}
    assert model.generator.config.hidden_size == CONFIG.hidden_size / 2
    with pytest.raises(ValueError, match="objectives are SentencePair, ReplacedTokens; give"):
        ElectraPretrainer.of(encoder, [SentencePair(), replaced])


# Losses -----------------------------------------------------------------------------------------------------


def measured(model, x, y, weights, batch_size=8):
    model.compile(AdamW(0.0))
    return model.evaluate(x, y, sample_weight=weights, batch_size=batch_size, verbose=0, return_dict=True)


def test_loss_is_the_mean_over_the_masked_plus_the_mean_over_the_pairs():
    model = pretrainer(MASKED_LM, SentencePair())
    x, y, weights = label(repeating(8), objectives=model.objectives, seed=SEED)
    logits = numbers(model(x))
    assert logits["masked_lm"].shape == (8, 3, 30) and logits["next_sentence"].shape == (8, 2)
    y, weights = numbers(y), numbers(weights)
    assert 0 < weights["masked_lm"].sum() < 24  # some slots are filling
    mlm = (nll(logits["masked_lm"], y["masked_lm"]) * weights["masked_lm"]).sum() / weights["masked_lm"].sum()
    nsp = nll(logits["next_sentence"], y["next_sentence"]).mean()
    logs = measured(model, x, y, weights)
    right = logits["masked_lm"].argmax(-1) == y["masked_lm"]
    expected = {
        "loss": mlm + nsp,
        "masked_lm_loss": mlm,
        "masked_lm_perplexity": np.exp(mlm),
        "masked_lm_accuracy": (right * weights["masked_lm"]).sum() / weights["masked_lm"].sum(),
        "next_sentence_loss": nsp,
        "next_sentence_accuracy": (logits["next_sentence"].argmax(-1) == y["next_sentence"]).mean(),
    }
    assert {*logs} == {*expected}
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, rel=1e-5), name


def test_measures_are_means_over_the_weights_of_all_batches():
    """Batches of 5, 5 and 1 texts ask for different numbers of tokens: not the mean of the batches' means."""
    model = pretrainer(MASKED_LM)
    x, y, weights = label(repeating(11), objectives=model.objectives, seed=SEED)
    losses, w = nll(model(x)["masked_lm"].numpy(), y["masked_lm"].numpy()), weights["masked_lm"].numpy()
    logs = measured(model, x, y, weights, batch_size=5)
    assert logs["masked_lm_loss"] == pytest.approx((losses * w).sum() / w.sum(), rel=1e-5)
    assert {*logs} == {"loss", "masked_lm_loss", "masked_lm_accuracy", "masked_lm_perplexity"}


def test_a_mean_of_nothing_is_no_number():
    model = pretrainer(MASKED_LM, SentencePair())
    x, y, weights = label(repeating(8), objectives=model.objectives, seed=SEED)
    nothing = {**weights, "masked_lm": tf.zeros_like(weights["masked_lm"])}
    logs = measured(model, x, y, nothing)
    assert {name for name, value in logs.items() if np.isnan(value)} == {
        "masked_lm_loss",
        "masked_lm_accuracy",
        "masked_lm_perplexity",
    }
    assert logs["loss"] == logs["next_sentence_loss"] > 0


def test_negative_labels_are_not_measured():
    """Users' own labels, -100 where nothing is predicted and a weight of 1 everywhere: as with weights of 0 there."""
    model = pretrainer(MASKED_LM)
    x, y, weights = label(repeating(8), objectives=model.objectives, seed=SEED)
    asked = weights["masked_lm"].numpy() > 0
    theirs = {"masked_lm": np.where(asked, y["masked_lm"], -100)}
    ones = {"masked_lm": np.ones_like(asked, "float32")}
    assert not asked.all()
    assert measured(model, x, theirs, ones) == pytest.approx(measured(model, x, y, weights))


def test_objective_weights():
    model = pretrainer(MASKED_LM, SentencePair(), objective_weights={"next_sentence": 0.25})
    x, y, weights = label(repeating(8), objectives=model.objectives, seed=SEED)
    logits = model(x)
    total = model.compute_loss(x=x, y=y, y_pred=logits, sample_weight=weights)
    masked, pairs = (
        float(one.loss()(y[one.name], logits[one.name], weights[one.name])) for one in model.objectives
    )
    assert float(total) == pytest.approx(masked + 0.25 * pairs, rel=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pretrainer(), "give one or more objectives of different names"),
        (lambda: pretrainer(MASKED_LM, MASKED_LM), "give one or more objectives of different names"),
        (lambda: pretrainer(MASKED_LM, objective_weights={"sop": 1.0}), "weights for these only"),
        (
            lambda: Pretrainer(BertEncoder(CONFIG, outputs=[SEQUENCE_OUTPUT]), [SentencePair()]),
            r"next_sentence reads pooled_output; this encoder computes sequence_output: add it",
        ),
        (lambda: pretrainer(LeftToRight()), r"LeftToRight .* BertConfig\(causal=True\)"),
    ],
)
def test_wrong_objectives(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# Learning ---------------------------------------------------------------------------------------------------


def batches(objectives, *, rows=1024, batch_size=64, seed=0):
    """Masked anew in every epoch, as a function of the batch's number."""
    data = tf.data.Dataset.from_tensor_slices(repeating(rows, seed=seed)).batch(batch_size).repeat()
    return data.enumerate().map(
        lambda i, features: label(
            features, objectives=objectives, seed=tf.stack([tf.constant(5, tf.int64), i])
        )
    )


def fitted(model, *, epochs):
    model.compile(AdamW(2e-3, weight_decay=0.0))
    data = batches(model.objectives)
    return model.fit(data, steps_per_epoch=60, epochs=epochs, verbose=0, shuffle=False).history


@pytest.mark.long
def test_pretrainer_learns_through_fit():
    """The rest of a segment tells a hidden word; the two segments tell whether they belong together."""
    history = fitted(pretrainer(MASKED_LM, SentencePair()), epochs=5)
    assert history["masked_lm_accuracy"][0] < 0.3 and history["masked_lm_accuracy"][-1] > 0.7
    assert history["next_sentence_accuracy"][0] < 0.7 and history["next_sentence_accuracy"][-1] > 0.8
    np.testing.assert_allclose(np.exp(history["masked_lm_loss"]), history["masked_lm_perplexity"], rtol=1e-4)


@pytest.mark.long
def test_left_to_right_learns_only_from_earlier_tokens():
    """The first word of a segment cannot be known, each later one can, but for where the segment ends."""
    model = pretrainer(LeftToRight(), config=dataclasses.replace(CONFIG, causal=True))
    x, y, weights = label(repeating(4), objectives=model.objectives, seed=SEED)
    assert model(x)["masked_lm"].shape == (4, 12, 30)
    ids = x[INPUT_WORD_IDS]
    changed = x | {INPUT_WORD_IDS: tf.concat([ids[:, :3], ids[:, 3:] * 0 + 7], axis=1)}
    before, after = model(x)["masked_lm"].numpy(), model(changed)["masked_lm"].numpy()
    # Nothing after the third token is seen.
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-5)
    assert np.abs(before[:, 3:] - after[:, 3:]).max() > 0.1
    history = fitted(model, epochs=3)
    assert history["masked_lm_accuracy"][-1] > 0.55 and history["masked_lm_perplexity"][-1] < 3.5


# ELECTRA ----------------------------------------------------------------------------------------------------

ELECTRA_LM = dataclasses.replace(
    MASKED_LM, masking=Masking(max_predictions=3, share=0.2, hide=0.85, keep=0.15, replace=0.0)
)


def electra(config=CONFIG, **options):
    return ElectraPretrainer(BertEncoder(config, outputs=BOTH), ELECTRA_LM, **options)


def electra_batch(model, rows=256):
    return label(repeating(rows), objectives=model.objectives, seed=SEED)


def test_generator_is_a_quarter():
    base = BertConfig.named("base")
    quarter, third = generator_config(base), generator_config(base, share=1 / 3)
    assert (quarter.hidden_size, quarter.num_heads, quarter.intermediate_size) == (192, 3, 768)
    assert (third.hidden_size, third.num_heads, third.intermediate_size) == (256, 4, 1024)
    assert (third.num_layers, third.embedding_size, third.vocab_size) == (12, 768, 30522)
    small = generator_config(dataclasses.replace(base, hidden_size=256, num_heads=4, embedding_size=128))
    assert (small.hidden_size, small.num_heads, small.embedding_size) == (64, 1, 128)


def test_the_tables_are_shared_and_counted_once():
    model = electra()
    tables = ("word_embeddings", "position_embeddings", "type_embeddings")
    for name in tables:
        assert getattr(model.generator.embeddings, name) is getattr(model.encoder.embeddings, name)
    shapes = [tuple(variable.shape) for variable in model.trainable_variables]
    assert shapes.count((30, 32)) == 1 and len({id(v) for v in model.variables}) == len(model.variables)
    assert model.generator.embeddings.norm is model.encoder.embeddings.norm  # as in google-research/electra
    assert model.generator.config.hidden_size == 8
    assert model.generator.embeddings.projection.kernel.shape == (32, 8)
    paths = [variable.path for variable in model.trainable_variables]
    assert len(set(paths)) == len(paths)


# Keras' own save calls numpy on its variables, which numpy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_both_models_save_and_load(tmp_path):
    """All weights to Keras' file; the generator alone, the encoder's tables among its own, to a checkpoint."""
    model, other = electra(), electra()
    model.save_weights(tmp_path / "all.weights.h5")
    other.load_weights(tmp_path / "all.weights.h5")
    x, _, _ = electra_batch(model, rows=4)
    for encoder, head in ((model.encoder, "replaced_token"), (model.generator, "masked_lm")):
        checkpoint = checkpoints.collect(encoder.config, encoder, **{head: model.heads[head]})
        alone = BertEncoder(encoder.config, outputs=(SEQUENCE_OUTPUT,))
        made = MASKED_LM.head(alone) if head == "masked_lm" else ReplacedTokens().head(alone)
        report = checkpoints.assign(checkpoint, alone, **{head: made})
        assert (report.fresh, report.unused) == ((), ())
        states = encoder(x)[SEQUENCE_OUTPUT]
        np.testing.assert_array_equal(states, alone(x)[SEQUENCE_OUTPUT])
        asked = (x[MASKED_LM_POSITIONS],) if head == "masked_lm" else ()
        np.testing.assert_array_equal(made(states, *asked), model.heads[head](states, *asked))
        np.testing.assert_array_equal(made(states, *asked), other.heads[head](states, *asked))


def test_sampled_tokens_replace_only_masked_positions():
    model = electra()
    features = repeating(256)
    x, _, _ = electra_batch(model)
    seen = {}

    def spy(features, training=False):
        seen.update(features)
        return BertEncoder.call(model.encoder, features, training=training)

    model.encoder.call = spy
    replaced = model(x)[REPLACED].numpy()
    original, filled = features[INPUT_WORD_IDS].numpy(), seen[INPUT_WORD_IDS].numpy()
    asked = np.zeros_like(original, bool)
    rows, slots = np.nonzero(x[MASKED_LM_WEIGHTS].numpy())
    asked[rows, x[MASKED_LM_POSITIONS].numpy()[rows, slots]] = True
    assert (filled == original)[~asked].all()
    np.testing.assert_array_equal(replaced, filled != original)
    assert 0.8 < replaced[asked].mean() <= 1  # 30 tokens, an untrained generator
    assert (filled[asked] == original[asked]).any()  # drawn right by chance: not replaced
    again = model(x)[REPLACED].numpy()
    assert (again != replaced).any()  # another draw


def test_draws_follow_the_generator():
    model = electra()
    x, _, _ = electra_batch(model, rows=4)
    logits = np.full((4, 3, 30), -1e9, "float32")
    logits[..., 7], logits[..., 9] = np.log(0.75), np.log(0.25)
    asked = int(x[MASKED_LM_WEIGHTS].numpy().sum())
    drawn = np.concatenate([model._fill(x, tf.constant(logits))[0].numpy().ravel() for _ in range(300)])
    original = np.tile(repeating(4)[INPUT_WORD_IDS].numpy().ravel(), 300)
    new = drawn[drawn != original]
    assert {*new.tolist()} <= {7, 9} and len(new) > 0.8 * 300 * asked
    sevens, nines = (((drawn == token) & (original != token)).sum() for token in (7, 9))
    assert sevens / (sevens + nines) == pytest.approx(0.75, abs=0.06)


def test_electra_loss_is_the_sum_with_weight_50():
    model = electra()
    x, y, weights = electra_batch(model)
    logits = model(x)
    found, labels = logits["replaced_token"].numpy().astype("float64"), logits[REPLACED].numpy()
    bce = np.log1p(np.exp(-np.abs(found))) + np.maximum(found, 0) - found * labels
    np.testing.assert_allclose(binary_cross_entropy(labels, found), bce, rtol=1e-5)
    real = x[INPUT_MASK].numpy()
    w = weights["masked_lm"].numpy()
    mlm = (nll(logits["masked_lm"].numpy(), y["masked_lm"].numpy()) * w).sum() / w.sum()
    loss = model.compute_loss(x=x, y=y, y_pred=logits, sample_weight=weights)
    assert float(loss) == pytest.approx(mlm + 50 * (bce * real).sum() / real.sum(), rel=1e-5)


def test_the_discriminator_s_loss_moves_the_generator_in_the_tables_alone():
    model = electra()
    x, y, weights = electra_batch(model)
    own = [v.value for v in model.trainable_variables if "generator" in v.path or "masked_lm" in v.path]
    table = model.encoder.embeddings.word_embeddings.value
    block = [v.value for v in model.encoder.blocks[0].variables]
    with tf.GradientTape(persistent=True) as tape:
        logits = model(x)
        replaced = ReplacedTokens().loss()(
            logits[REPLACED], logits["replaced_token"], weights["replaced_token"]
        )
        guessed = ELECTRA_LM.loss()(y["masked_lm"], logits["masked_lm"], weights["masked_lm"])
    assert len(own) > 20
    assert all(grad is None for grad in tape.gradient(replaced, own))
    assert tape.gradient(replaced, table) is not None
    assert all(grad is not None for grad in tape.gradient(guessed, own))
    assert tape.gradient(guessed, table) is not None
    assert all(grad is None for grad in tape.gradient(guessed, block))


@pytest.mark.long
def test_electra_learns_through_fit():
    history = fitted(electra(replaced_weight=10.0), epochs=5)
    assert history["masked_lm_accuracy"][0] < 0.2 and history["masked_lm_accuracy"][-1] > 0.5
    assert history["replaced_token_loss"][-1] < 0.7 * history["replaced_token_loss"][0]


def test_a_generator_that_cannot_read_the_tables():
    other = generator_config(dataclasses.replace(CONFIG, vocab_size=31))
    with pytest.raises(ValueError, match="vocab_size is 31 and the embeddings to share have 30; give"):
        electra(generator=other)


# Two replicas -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_replicas():
    return jobs.value("distributed_pretraining:compare", replicas=2)


@pytest.mark.long
def test_replicas_draw_other_dropout_masks(two_replicas):
    for alone, first, second in two_replicas["dropped"]:
        assert alone == first and {*first} == {*second} == {0.0, 2.0}
        different = sum(a != b for a, b in zip(first, second, strict=True))
        assert 16 < different < 48  # 32 where they are independent
    once, again = two_replicas["dropped"]
    assert once != again


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_two_replicas_are_one_device(two_replicas, optimizer):
    """Ten steps of masked LM and sentence pairs. One replica masks over twice the other's tokens; every step is clipped."""
    got = two_replicas[optimizer]
    assert got["steps"] == 10 and got["least_norm"] > 2 * got["clip"]
    assert all(long > 2 * short for short, long in two_replicas["asked"])
    assert got["difference"] < 1e-5
    assert {*got["logs"]} == {*got["logs_of_two"]} and len(got["logs"]) == 7  # and tokens
    for name, values in got["logs"].items():
        np.testing.assert_allclose(values, got["logs_of_two"][name], rtol=1e-5, err_msg=name)


@pytest.mark.long
def test_logs_of_pretraining_on_two_replicas(two_replicas):
    """Losses, accuracies, tokens and the held-out measures are those of one device; a second passes between two logs."""
    one, two = two_replicas["watched"], two_replicas["watched_of_two"]
    assert [row["step"] for row in one] == [row["step"] for row in two] == [4, 8, 10, 10]
    assert [row["tokens_per_second"] for row in one[:3]] == two_replicas["tokens"]
    for ours, theirs in zip(two, one, strict=True):
        assert {*ours} == {*theirs}
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("after", ["evaluated", "restored"])
def test_an_evaluation_and_a_restore_leave_each_replica_its_seeds(two_replicas, after):
    before, after = two_replicas[after]
    assert before and all(first != second for first, second in before)
    assert after == before


@pytest.mark.long
def test_a_restore_keeps_the_sums_of_each_replica(two_replicas):
    """One sum divided anew among the replicas would round differently in the next step."""
    before, after = two_replicas["sums"], two_replicas["restored_sums"]
    assert any(first != second for first, second in before), "as two replicas with other rows have them"
    assert after == before


# What a Pretrainer leaves to its user, and what it refuses ------------------------------------------------------


def test_a_pooler_that_nothing_reads_is_not_trained_and_not_frozen():
    def ids(variables):
        return {id(one) for one in variables}

    model = pretrainer(MASKED_LM)
    pooler, trained = model.encoder.pooler, ids(model.trainable_variables)
    assert pooler.trainable and not trained & ids(pooler.variables)
    assert ids(model.non_trainable_variables) == ids(model.variables) - trained
    assert ids(model.trainable_weights) == trained
    read = pretrainer(MASKED_LM, SentencePair())
    assert ids(read.encoder.pooler.variables) < ids(read.trainable_variables)


@pytest.mark.parametrize("name", ["loss", "loss_weights", "metrics", "weighted_metrics"])
def test_a_loss_and_metrics_beside_those_of_the_objectives_are_refused(name):
    with pytest.raises(BertKerasError, match=f"{name}.*objective_weights"):
        pretrainer(MASKED_LM).compile("adam", **{name: ["mse"]})


def test_a_loss_that_a_layer_adds_is_refused():
    model = pretrainer(MASKED_LM)
    model.heads["masked_lm"].dense.add_loss(tf.constant(1.0))
    with pytest.raises(BertKerasError, match="adds a loss of its own"):
        model.compute_loss(None, {}, {}, {})
