"""Continuations of texts: greedy against a plain loop and transformers, sampling against the softmax, and the command."""

import copy
import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
import runs
import tensorflow as tf
from parity import array
from random_checkpoints import refused
from test_gpt import theirs_at_random

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, SEQUENCE_OUTPUT
from bert_keras.model.encoders import make_encoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.tasks.ancestors.language_model import NextWordsHead
from bert_keras.tasks.options import GenerationOptions
from bert_keras.tasks.pretraining.generation import TextGenerator, choose, draws_of
from bert_keras.text.wordpiece import WordPiece

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = (*runs.VOCABULARY[:63], *(f"[unused{i}]" for i in range(4)))
TOKENIZER = WordPiece(VOCABULARY)
NEVER = [PAD, UNK, CLS, MASK, *range(63, 67)]
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 48,
    "max_positions": 24,
    "causal": True,
    "initializer_range": 0.3,  # wide, so that the answers to different texts differ
}
CONFIGS = {
    "gpt": {"type_vocab_size": 0, "embedding_norm": False, "plain_heads": True},
    "bert": {},
    "awd-lstm": {"encoder": "awd-lstm", "num_heads": 1, "initializer_range": 1.0},
}
TEXTS = ["good film", "the plot is very dull , the actor", "its scene", "a"]


@functools.cache
def made(name):
    """A language model with random weights: the generator, its checkpoint, and the logits of its states."""
    keras.utils.set_random_seed(3)
    config = BertConfig(**SIZES | CONFIGS[name])
    encoder = make_encoder(config)
    if name == "awd-lstm":
        heads = {"next_words": (head := NextWordsHead(encoder, tied=True))}
        head.bias.assign(np.random.default_rng(3).normal(0, 0.2, head.bias.shape))
        logits = head.scores
    else:
        heads = {"masked_lm": (logits := MaskedLMHead(encoder))}
    checkpoint = checkpoints.with_tokenizer(checkpoints.collect(config, encoder, **heads), TOKENIZER)
    return TextGenerator(checkpoint), checkpoint, lambda given: array(logits(encoder(given)[SEQUENCE_OUTPUT]))


@pytest.fixture
def generate():
    """GPT's generator, whose attributes a test may change."""
    generator = copy.copy(made("gpt")[0])
    generator.options = GenerationOptions(tokens=8)
    return generator


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_takes_the_most_probable_token_in_a_batch_as_alone(name):
    generate, _, logits = made(name)
    generate.options = GenerationOptions(tokens=8)
    prompts = [[CLS, *TOKENIZER.encode(text)] for text in TEXTS]
    found = generate.continue_ids(prompts)
    assert len({*map(tuple, found)}) > 2, "the texts should differ"
    assert generate.continue_ids(prompts, batch_size=1) == found
    assert generate.continue_ids(prompts[::-1], batch_size=3) == found[::-1]
    for prompt, new in zip(prompts, found, strict=True):
        row = np.array([prompt + new], np.int32)
        given = {INPUT_WORD_IDS: row, INPUT_MASK: np.ones_like(row), INPUT_TYPE_IDS: 0 * row}
        scores = logits(given)[0].copy()
        scores[:, NEVER] = -np.inf
        assert scores[len(prompt) - 1 : -1].argmax(axis=1).tolist() == new
        assert SEP not in new[:-1] and len(new) == 8 or new[-1] == SEP


def test_sampling_repeats_itself_whatever_the_batch(generate):
    texts = [*TEXTS, TEXTS[0]]
    generate.options = GenerationOptions(tokens=8, temperature=3.0, seed=1)
    found = generate(texts)
    assert found == generate(texts, batch_size=2)
    assert found[0] != found[-1], "each text has draws of its own"
    generate.options = GenerationOptions(tokens=8, temperature=3.0, seed=2)
    assert found != generate(texts)


LOGITS = np.array([[0.5, 2.0, -1.0, 2.0, 0.0, -np.inf, 1.0]], np.float32)


def wanted_rates(*, temperature=1.0, top_k=None, top_p=None):
    """The distribution of LOGITS after both filters, token by token."""
    rates = np.exp(LOGITS[0].astype("float64") / temperature)
    ranked = sorted(range(len(rates)), key=lambda i: -rates[i])
    kept = ranked[:top_k]
    whole, total, nucleus = sum(rates[i] for i in kept), 0.0, []
    for i in kept:
        if top_p is None or total < top_p * whole:
            nucleus.append(i)
        total += rates[i]
    found = np.array([rates[i] if i in nucleus else 0.0 for i in range(len(rates))])
    return found / found.sum()


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_p": 0.05},
        {"top_k": 4, "top_p": 0.9, "temperature": 2.0},
    ],
    ids=str,
)
def test_draws_have_the_distribution_of_the_softmax(given):
    options, count = GenerationOptions(tokens=100, seed=7, **given), 200
    draws = np.concatenate([draws_of(row, options) for row in range(count)])
    drawn = choose(np.repeat(LOGITS, len(draws), axis=0), draws, options)
    counts, rates = np.bincount(drawn, minlength=LOGITS.shape[1]), wanted_rates(**given)
    assert counts[rates == 0].sum() == 0
    expected = rates[rates > 0] * len(draws)
    chi_square = ((counts[rates > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 20.5, "0.1 % of samples are over this with 5 degrees of freedom"


def test_the_last_draw_takes_the_last_token_that_is_kept():
    options = GenerationOptions(top_k=2)
    assert choose(LOGITS, np.array([1.0]), options).tolist() == [3]
    assert choose(LOGITS, np.array([0.0]), options).tolist() == [1]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_marks_are_never_chosen_and_the_end_stops_a_text(generate, options):
    generate.options = GenerationOptions(tokens=6, **options)
    plot, ends = VOCABULARY.index("plot"), {4: SEP, 7: SEP}

    def fake(ids, lengths):
        """After `plot` up to a text's 4th or 7th token; marks seem likelier than both."""
        scores = np.full((len(ids), len(VOCABULARY)), -100.0, np.float32)
        scores[:, [PAD, UNK, CLS, MASK, 65]] = 200
        for row, length in zip(scores, lengths, strict=True):
            row[ends.get(length, plot)] = 100
        return tf.constant(scores)

    generate.next_logits = fake
    one, two = generate(["good film", "good good good good"])
    assert one == (" plot", ["plot"], True)
    assert two == (" plot plot", ["plot", "plot"], True)
    ends.clear()
    assert generate(["good"]) == [(" plot" * 6, ["plot"] * 6, False)]
    assert generate([]) == []


def test_a_model_without_a_vector_for_the_start_begins_with_the_text(generate):
    assert generate.start == [CLS]
    ids = []
    generate.start, generate.options = [], GenerationOptions(tokens=1)
    next_logits = generate.next_logits
    generate.next_logits = lambda given, lengths: ids.append(given) or next_logits(given, lengths)
    generate(["good film"])
    assert [one.tolist() for one in ids] == [[TOKENIZER.encode("good film")]]
    refused("text 2 has no token, and the model has no start token", generate, ["good", ""])


def test_texts_and_models_that_cannot_be_continued(generate):
    generate.options, generate.next_logits = GenerationOptions(tokens=18), None
    refused(
        "text 2 has 9 tokens, and 18 more do not fit max_positions: the model reads 24", generate, TEXTS[:2]
    )
    _, bert, _ = made("bert")
    for changes, encoder in (
        ({"causal": False}, "bert"),
        ({"bilstm": True}, "bert"),
        ({"encoder": "elmo", "max_characters": 10}, "elmo"),
    ):
        other = dataclasses.replace(bert, config=dataclasses.replace(bert.config, **changes))
        refused(f"encoder {encoder} does not read from left to right alone", TextGenerator, other)
    tensors = {name: tensor for name, tensor in bert.tensors.items() if not name.startswith("masked_lm/")}
    tuned = dataclasses.replace(bert, tensors=tensors)
    refused("has no head that predicts the next token", TextGenerator, tuned)
    refused("temperature must be over 0 with top_k", GenerationOptions, temperature=0.0, top_k=5)


def test_command(generate, tmp_path, capfd):
    checkpoints.write(made("gpt")[1], tmp_path / "gpt", format="hugging-face")
    given = ["generate", "--checkpoint", tmp_path / "gpt", "--tokens", "8"]
    wanted = generate(TEXTS)
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    code, out, err = runs.run_command(capfd, *given, "--input", file, "--batch-size", "2")
    assert code == 0, err
    assert out.splitlines() == [text + one.continuation for text, one in zip(TEXTS, wanted, strict=True)]
    code, out, err = runs.run_command(capfd, *given, "--json", *TEXTS[:2], "--top-k", "1")
    assert code == 0, err
    assert [json.loads(line) for line in out.splitlines()] == [
        {"text": text} | one._asdict() for text, one in zip(TEXTS[:2], wanted[:2], strict=True)
    ]
    code, out, err = runs.run_command(capfd, *given, "--input", file, "good")
    assert (code, out) == (1, "") and "give one of the two" in err


# -----------------------------------------------------------------------------------------------------------
# Against transformers


@pytest.mark.parity
def test_greedy_ids_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    theirs, count, draw = theirs_at_random(), 0, np.random.default_rng(4)
    with torch.no_grad():
        for block in theirs.transformer.h:  # else a token follows itself, by its own embedding
            block.mlp.c_proj.weight.mul_(4)
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = checkpoints.with_tokenizer(checkpoints.read(tmp_path / "theirs"), TOKENIZER)
    prompts = [[CLS, *draw.integers(5, 63, length).tolist()] for length in (1, 3, 3, 5, 7, 7, 8)]
    ours = TextGenerator(checkpoint, GenerationOptions(tokens=9)).continue_ids(prompts, batch_size=4)
    for prompt, found in zip(prompts, ours, strict=True):
        made = theirs.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=9,
            eos_token_id=SEP,
            pad_token_id=PAD,
            suppress_tokens=NEVER,
        )
        assert found == made[0, len(prompt) :].tolist()
        count += len({*found})
    assert count > 20, "the continuations should vary"


@pytest.mark.parity
def test_the_tokens_that_are_kept_are_those_of_transformers():
    torch, process = (
        pytest.importorskip("torch"),
        pytest.importorskip("transformers.generation.logits_process"),
    )
    logits = np.random.default_rng(5).normal(0, 2, (20, 50)).astype("float32")
    options = GenerationOptions(temperature=1.5, top_k=20, top_p=0.8)
    theirs = torch.from_numpy(logits)
    for one in (
        process.TemperatureLogitsWarper(1.5),
        process.TopKLogitsWarper(20),
        process.TopPLogitsWarper(0.8),
    ):
        theirs = one(None, theirs)
    rates = torch.softmax(theirs.double(), dim=-1).numpy()
    draws = np.linspace(0, 1, 4000, endpoint=False)
    for row, wanted in zip(logits, rates, strict=True):
        drawn = choose(np.repeat(row[None], len(draws), axis=0), draws, options)
        np.testing.assert_allclose(np.bincount(drawn, minlength=50) / len(draws), wanted, atol=3e-4)
