"""The small world of the notebooks: documents, tagged sentences and reviews that a model can learn in a minute on two cores.

Nothing is downloaded. Every function of `count` and `seed` gives the same data again.
"""

import random
from pathlib import Path

import keras

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES

CITIES = {
    "rome": "italy",
    "berlin": "germany",
    "madrid": "spain",
    "oslo": "norway",
    "paris": "france",
    "florence": "italy",
}
SOUNDS = {"dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "horse": "neighs", "lion": "roars"}
NAMES = "anna ben clara david emma felix paris florence".split()  # two of them are cities too
GOOD, BAD = "warm funny clever touching bright".split(), "dull slow noisy empty stale".split()
PARTS = "plot cast music dialogue ending".split()
OTHERS = "the of in is a has and lives likes went to for not film was but . , !".split()
WORDS = sorted({*CITIES, *CITIES.values(), *SOUNDS, *SOUNDS.values(), *NAMES, *GOOD, *BAD, *PARTS, *OTHERS})
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
SIZES = {
    **{"hidden_size": 64, "num_layers": 4, "num_heads": 4, "intermediate_size": 128, "max_positions": 64},
    **{"hidden_dropout": 0.0, "attention_dropout": 0.0},  # so small a model learns faster without
}


def tokenizer() -> bk.WordPiece:
    """Every word of this file is a token; other words are spelled in letters."""
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "##s", "##ly"]
    return bk.WordPiece(list(dict.fromkeys([*SPECIAL, *WORDS, *pieces])), lower_case=True)


def documents(count: int, *, seed: int = 0) -> list[list[str]]:
    """Documents of six sentences: a person with an animal in a city, or opinions of one kind about a film."""
    draw, made = random.Random(seed), []
    for i in range(count):
        name, city, animal = draw.choice(NAMES), draw.choice([*CITIES]), draw.choice([*SOUNDS])
        country, sound, other = CITIES[city], SOUNDS[animal], draw.choice(NAMES)
        person = [
            f"{name} lives in {city} .",
            f"{city} is in {country} .",
            f"{name} has a {animal} .",
            f"the {animal} of {name} {sound} .",
            f"{other} went to {city} and likes {name} .",
            f"in {country} the {animal} {sound} .",
        ]
        good = draw.random() < 0.5
        made.append([_opinion(draw, good) for _ in range(6)] if i % 2 else person)
    return made


def _opinion(draw: random.Random, good: bool) -> str:
    negated = draw.random() < 0.3
    word, part = draw.choice(GOOD if good != negated else BAD), draw.choice(PARTS)
    return f"{draw.choice(['the', 'a film ! the'])} {part} is {'not ' if negated else ''}{word} ."


def tagged(count: int, *, seed: int = 0) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences as lists of words, and a tag for each word: PER, LOC or O. Here every city is the name of a person too."""
    draw, words, tags = random.Random(seed), [], []
    for _ in range(count):
        name, city = draw.choice([*NAMES, *CITIES]), draw.choice([*CITIES])
        sentence = draw.choice(
            ["{} lives in {} .", "{} went to {} .", "in {1} {0} has a dog .", "{} likes {} ."]
        )
        words.append(sentence.format("PER", "LOC").split())
        tags.append(["O" if word not in ("PER", "LOC") else f"B-{word}" for word in words[-1]])
        words[-1] = [{"PER": name, "LOC": city}.get(word, word) for word in words[-1]]
    return words, tags


def reviews(count: int, *, seed: int = 0) -> tuple[list[str], list[str]]:
    """One sentence about a film, and its label; `not` turns a word into its opposite."""
    draw = random.Random(seed)
    labels = [draw.choice(["bad", "good"]) for _ in range(count)]
    return [_opinion(draw, label == "good") for label in labels], labels


def random_checkpoint(folder: str | Path) -> Path:
    """A checkpoint of random weights, as a Hugging Face folder."""
    keras.utils.set_random_seed(0)
    config = bk.BertConfig(vocab_size=tokenizer().vocab_size, **SIZES)
    checkpoint = checkpoints.collect(config, bk.BertEncoder(config))
    checkpoint = checkpoints.with_tokenizer(checkpoint, tokenizer())
    checkpoints.write(checkpoint, folder, format="hugging-face")
    return Path(folder)


def pretrained(folder: str | Path, *, steps: int, count: int = 400) -> dict:
    """Pre-trains a BERT on `documents` into a folder; returns its results."""
    settings = {
        "seq_length": 48,
        "batch_size": 32,
        "steps": steps,
        "learning_rate": 2e-3,
        "warmup_proportion": 0.1,
    }
    settings |= {
        "bias_correction": True,
        "strict": True,
        "log_every": max(1, steps // 10),
        "eval_every": max(1, steps // 5),
    }
    recipe = RECIPES["bert"].changed(**SIZES, **settings, held_out_instances=200, max_predictions=8)
    given = Pretraining(recipe=recipe, documents=documents(count), held_out=0.1, tokenizer=tokenizer())
    return pretrain(given, folder, save_every=0, verbose=0, log=lambda line: None)
