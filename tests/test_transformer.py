"""The Transformer: pairs, its loss and schedule, the search against all sequences, torch's numbers, and a learned translation."""

import itertools
import json
import shutil

import instance_texts
import numpy as np
import pretrainings
import pytest
import runs
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.optimization.schedules import SCHEDULES
from bert_keras.tasks.ancestors.transformer import (
    TARGET_IDS,
    Translation,
    Translator,
    average,
    search,
    smoothed_cross_entropy,
    split_pairs,
)
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.monitor import SNAPSHOTS
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.pretraining.samplers import make_instances

CLS, SEP = 2, 3


def config_of(**changes):
    """The paper's encoder, small."""
    small = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "max_positions": 40}
    return RECIPES["transformer"].changed(**small | changes).config(vocab_size=changes.get("vocab_size", 50))


# -----------------------------------------------------------------------------------------------------------
# Pairs, loss and schedule


def test_a_document_of_two_lines_is_a_pair_and_a_long_one_is_skipped():
    texts = instance_texts.documents(20, segments=(2, 2), pieces=(3, 9))
    settings = Sampling(sampler="translation", seq_length=17, dupe_factor=1)
    found, skipped = make_instances(texts, seed=[1], settings=settings, separator=0)
    lengths = [one.bounds[-1] - one.bounds[0] for one in texts.found]
    assert 0 < len(found) == sum(length <= 14 for length in lengths) and skipped == 20 - len(found)
    wanted = {tuple(one.bounds) for one in texts.found if one.bounds[-1] - one.bounds[0] <= 14}
    assert {(a, b, d) for (a, b), (c, d) in found.places.tolist() if b == c} == wanted
    three = instance_texts.documents(3, segments=(3, 3))
    with pytest.raises(BertKerasError, match="a document has 3 lines; the sampler translation wants two"):
        make_instances(three, seed=[1], settings=settings, separator=0)


def test_a_row_is_a_source_what_the_decoder_reads_and_its_labels():
    features = {
        INPUT_WORD_IDS: [[CLS, 11, 12, SEP, 21, 22, 23, SEP, 0, 0], [CLS, 13, SEP, 24, SEP, 0, 0, 0, 0, 0]],
        INPUT_TYPE_IDS: [[0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]],
        INPUT_MASK: [[1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]],
    }
    found, labels, weights = split_pairs({name: tf.constant(rows) for name, rows in features.items()})
    assert found[INPUT_WORD_IDS].numpy().tolist() == [[CLS, 11, 12, SEP], [CLS, 13, SEP, 0]]
    assert found[INPUT_MASK].numpy().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert found[TARGET_IDS].numpy().tolist() == [[CLS, 21, 22, 23], [CLS, 24, SEP, 0]]
    assert labels.numpy().tolist() == [[21, 22, 23, SEP], [24, SEP, 0, 0]]
    assert weights.numpy().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_smoothed_loss_is_the_cross_entropy_with_the_smoothed_distribution():
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(0, 2, (3, 4, 7)), draw.integers(0, 7, (3, 4))
    target = 0.9 * np.eye(7)[labels] + 0.1 / 7
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = smoothed_cross_entropy(labels, logits.astype(np.float32), smoothing=0.1)
    np.testing.assert_allclose(found, -(target * log_p).sum(-1), rtol=1e-5)
    plain = Translation().surprise(labels, logits.astype(np.float32), found)
    np.testing.assert_allclose(plain, -(np.eye(7)[labels] * log_p).sum(-1), rtol=1e-5)


def test_the_schedule_is_the_formula_of_the_paper():
    recipe = RECIPES["transformer"].hparams
    rates = SCHEDULES[recipe.schedule](512**-0.5 * 4000**-0.5, total_steps=100_000, warmup_steps=4000)
    numbers = np.array([1, 2, 1000, 4000, 4001, 50_000, 100_000])
    wanted = 512**-0.5 * np.minimum(numbers**-0.5, numbers * 4000**-1.5)
    np.testing.assert_allclose(rates(numbers - 1), wanted, rtol=1e-5)
    assert recipe.learning_rate == pytest.approx(wanted.max(), rel=0.01) and recipe.warmup_steps == 4000


# -----------------------------------------------------------------------------------------------------------
# The search


def toy(seed, *, vocabulary=4):
    """A table of logits by row, length and last token: [2, n, V, V]."""
    return np.random.default_rng(seed).normal(0, 1.5, (2, 8, vocabulary, vocabulary)).astype(np.float32)


def found_by(table, *, beam, length_penalty, limit):
    def next_logits(prefixes):
        rows = tf.repeat(tf.range(2), beam)
        return tf.gather_nd(
            table, tf.stack([rows, tf.fill(tf.shape(rows), tf.shape(prefixes)[1]), prefixes[:, -1]], axis=1)
        )

    how = {"beam": beam, "length_penalty": length_penalty, "limit": limit}
    sequences, scores = tf.function(lambda: search(next_logits, rows=2, start=1, end=0, **how))()
    cut = [row[1:] for row in sequences.numpy().tolist()]
    return [row[: row.index(0) + 1] if 0 in row else row for row in cut], scores.numpy()


def all_ended(table, row, *, length_penalty, limit):
    """Score -> sequence, of all sequences that end in token 0 within the limit."""
    log_p = table - np.log(np.exp(table).sum(-1, keepdims=True))
    for length in range(1, limit + 1):
        for begun in itertools.product(range(1, table.shape[-1]), repeat=length - 1):
            sequence = (1, *begun, 0)
            total = sum(log_p[row, i + 1, a, b] for i, (a, b) in enumerate(itertools.pairwise(sequence)))
            yield total / ((5 + length) / 6) ** length_penalty, [*sequence[1:]]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(length_penalty):
    for seed in range(3):
        table = toy(seed)
        sequences, scores = found_by(table, beam=108, length_penalty=length_penalty, limit=4)
        for row in range(2):
            score, best = max(all_ended(table, row, length_penalty=length_penalty, limit=4))
            assert sequences[row] == best and scores[row] == pytest.approx(score, abs=1e-5)


def test_a_beam_of_one_without_penalty_is_greedy_and_a_wider_beam_is_no_worse():
    for seed in range(3):
        table = toy(seed, vocabulary=6)
        sequences, scores = found_by(table, beam=1, length_penalty=0.0, limit=7)
        for row in range(2):
            greedy = [1]
            while len(greedy) < 8 and greedy[-1] != 0:
                greedy.append(int(table[row, len(greedy), greedy[-1]].argmax()))
            assert sequences[row] == greedy[1:]
        if all(0 in row for row in sequences):
            assert (found_by(table, beam=4, length_penalty=0.0, limit=7)[1] >= scores - 1e-6).all()


# -----------------------------------------------------------------------------------------------------------
# torch.nn.Transformer


def fill_torch(layer, block, *, norms):
    """Gives a layer of torch the weights of a block. norms: our layers, in the order of torch's norm1, norm2 ..."""
    import torch

    def assign(theirs, *ours):
        with torch.no_grad():
            theirs.copy_(torch.tensor(np.concatenate([np.asarray(one) for one in ours], axis=0)))

    attentions = {"self_attn": block.attention}
    attentions |= {"multihead_attn": block.source_attention} if hasattr(block, "source_attention") else {}
    for name, ours in attentions.items():
        theirs, three = getattr(layer, name), (ours.query, ours.key, ours.value)
        assign(theirs.in_proj_weight, *(np.asarray(one.kernel).T for one in three))
        assign(theirs.in_proj_bias, *(one.bias for one in three))
        assign(theirs.out_proj.weight, np.asarray(ours.output_dense.kernel).T)
        assign(theirs.out_proj.bias, ours.output_dense.bias)
    dense = {"linear1": block.feed_forward.intermediate, "linear2": block.feed_forward.output_dense}
    for name, ours in dense.items():
        assign(getattr(layer, name).weight, np.asarray(ours.kernel).T)
        assign(getattr(layer, name).bias, ours.bias)
    for number, ours in enumerate(norms, start=1):
        assign(getattr(layer, f"norm{number}").weight, ours.gamma)
        assign(getattr(layer, f"norm{number}").bias, ours.beta)


@pytest.mark.parity
def test_states_and_logits_equal_torch():
    torch = pytest.importorskip("torch")
    config = config_of(norm_epsilon=1e-5, initializer_range=0.3)
    encoder = BertEncoder(config, outputs=(SEQUENCE_OUTPUT,))
    decoder, draw = Translation().head(encoder), np.random.default_rng(0)
    for one in (*encoder.weights, *decoder.weights):
        one.assign(one + draw.normal(0, 0.1, one.shape))
    sizes = {"d_model": 16, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
    theirs = torch.nn.Transformer(num_encoder_layers=2, num_decoder_layers=2, **sizes).eval()
    theirs.encoder.norm, theirs.decoder.norm, theirs.encoder.use_nested_tensor = None, None, False
    for layer, block in zip(theirs.encoder.layers, encoder.blocks, strict=True):
        fill_torch(layer, block, norms=(block.attention_norm, block.feed_forward_norm))
    for layer, block in zip(theirs.decoder.layers, decoder.blocks, strict=True):
        fill_torch(layer, block, norms=(block.attention_norm, block.source_norm, block.feed_forward_norm))
    ids, target = draw.integers(4, 50, (3, 9)), draw.integers(4, 50, (3, 6))
    mask = (np.arange(9) < [[9], [5], [7]]).astype(np.int32)
    table = np.asarray(encoder.embedding_table)
    angles = np.arange(9)[:, None] / 10_000 ** (np.arange(0, 16, 2) / 16)
    places = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(9, 16)
    embedded = [
        torch.tensor(table[one] * 4.0 + places[: one.shape[1]], dtype=torch.float32) for one in (ids, target)
    ]
    padding, earlier = torch.tensor(mask == 0), torch.nn.Transformer.generate_square_subsequent_mask(6)
    with torch.no_grad():
        states = theirs.encoder(embedded[0], src_key_padding_mask=padding)
        last = theirs.decoder(embedded[1], states, tgt_mask=earlier, memory_key_padding_mask=padding)
        wanted = (last @ torch.tensor(table).T).numpy()
    features = {INPUT_WORD_IDS: ids, INPUT_MASK: mask, INPUT_TYPE_IDS: np.zeros_like(mask)}
    ours = encoder({name: tf.constant(rows, tf.int32) for name, rows in features.items()})[SEQUENCE_OUTPUT]
    real = mask > 0
    np.testing.assert_allclose(ours.numpy()[real], states.numpy()[real], atol=1e-5)
    logits = decoder(tf.constant(target, tf.int32), ours, tf.constant(mask))
    np.testing.assert_allclose(logits, wanted, atol=1e-5 * np.abs(wanted).max())
    assert np.abs(wanted).max() > 3
    one = decoder(tf.constant(target, tf.int32), ours, tf.constant(mask), last=True)
    np.testing.assert_allclose(one[:, 0], logits[:, -1], atol=1e-5)


# -----------------------------------------------------------------------------------------------------------
# A pre-training

WORDS = {"good": "g o", "bad": "b a", "film": "f", "plot": "p", "actor": "a c"}
SENTENCES = [" ".join(words) for words in itertools.permutations(WORDS, 2)]
PAIRS = [[one, " ".join(WORDS[word] for word in reversed(one.split()))] for one in SENTENCES]
TINY = {
    "num_layers": 1,
    "seq_length": 16,
    "batch_size": 10,
    "steps": 240,
    "learning_rate": 5e-3,
    "hidden_dropout": 0.0,
    "initializer_range": 0.18,
    "eval_every": 240,
    "held_out_instances": 20,
}


def pretrain(output, **options):
    changes = TINY | options.pop("changes", {})
    return pretrainings.train(output, "transformer", changes=changes, documents=PAIRS, **options)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    results = pretrain(folder / "run", held_out=PAIRS, snapshots=[200, 240])
    return folder / "run", results


def test_it_translates_what_it_learned(learned):
    run, results = learned
    assert results["measures"]["held_out_translation_perplexity"] < 1.2
    assert results["majority_baselines"]["translation_perplexity"] > 5
    assert results["measures"]["held_out_translation_loss"] > 0.1  # of the smoothed labels
    for beam in (1, 4):
        translate = Translator(checkpoints.read(run), beam=beam)
        assert translate(SENTENCES, batch_size=8) == [target for _, target in PAIRS]


def test_the_mean_of_snapshots(learned, tmp_path):
    found = [checkpoints.read(learned[0] / SNAPSHOTS / str(step)) for step in (200, 240)]
    mean = average(found)
    for name, tensor in mean.tensors.items():
        np.testing.assert_allclose(tensor, (found[0].tensors[name] + found[1].tensors[name]) / 2, atol=1e-7)
    assert Translator(mean)(SENTENCES[:3]) == [target for _, target in PAIRS[:3]]
    other = runs.write_checkpoint(tmp_path / "other")
    with pytest.raises(BertKerasError, match="give snapshots of one pre-training"):
        average([checkpoints.read(other), mean])


@pytest.mark.slow
def test_a_resumed_translation_has_the_same_bits(tmp_path):
    changes = {"steps": 6, "hidden_dropout": 0.1}
    whole, run = tmp_path / "whole", tmp_path / "run"
    pretrain(whole, changes=changes, save_every=3)
    shutil.copytree(whole, run)
    for file in (run / "results.json", *(run / "checkpoints").glob("ckpt-6.*")):
        file.unlink()
    pretrain(run, changes=changes, save_every=3)
    ended, resumed = (checkpoints.read(folder).tensors for folder in (whole, run))
    assert ended.keys() == resumed.keys() and any(name.startswith("translation/decoder_0/") for name in ended)
    assert all(np.array_equal(ended[name], resumed[name]) for name in ended)


def test_command(learned, tmp_path, capfd):
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(SENTENCES[:4]) + "\n")
    command = ["translate", "--checkpoint", learned[0], "--input", text, "--beam", "2"]
    code, out, err = runs.run_command(capfd, *command)
    assert code == 0, err
    assert out.splitlines() == [target for _, target in PAIRS[:4]]


def test_records_without_pairs_and_a_checkpoint_without_a_decoder(tmp_path):
    pretrainings.refused(
        tmp_path, "have no second segment to predict", "transformer", changes=TINY | {"sampler": "contiguous"}
    )
    other = runs.write_checkpoint(tmp_path / "other")
    with pytest.raises(BertKerasError, match="translation"):
        Translator(checkpoints.read(other))
    with pytest.raises(BertKerasError, match="leave embedding_size out"):
        Translation().head(BertEncoder(config_of(embedding_size=8)))


def test_the_encoder_is_written_in_the_first_form_that_computes_it():
    assert config_of().model_types() == ("bert_keras",)
    assert BertConfig.from_hugging_face(json.loads(json.dumps(config_of().to_hugging_face()))) == config_of()
