"""The weights, texts and vocabularies that all workers of peers.py read.

In: a folder with text (`corpus/`, `glue/SST-2/`, `vocab/`), without which a paragraph in this file serves. Out, in a new folder:

    lines.txt        text for tokenizers; documents.txt, its sentences, for instances of pre-training
    examples.tsv     sentences with labels
    vocab.txt, byte-bpe/
    SIZE/            an encoder with heads, in Hugging Face's format
"""

import dataclasses
import pathlib
import random
from collections.abc import Iterable, Mapping

import numpy as np
from cases import CASES
from peer_work.work import SEED

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import Checkpoint, head_shapes, variable_shapes
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.config import BertConfig
from bert_keras.tasks.pretraining.corpus import split_sentences
from bert_keras.text.vocabulary import Vocabulary, read_pieces

WORDS = range(
    8, 37
)  # of the sentences that are fine-tuned on: 10 to about 40 wordpieces, as most rows of SST-2
DOCUMENT = 10  # paragraphs in a document that instances are made of
HEADS = ("masked_lm", "next_sentence", "qa_outputs")
LABELS = 2
PARAGRAPH = """A river rises in the hills above the town and falls three hundred metres before it meets the sea.
In spring its water is cold and grey; by late summer children wade across it without getting their knees wet.
Two mills stood here in 1790, one for flour and one for paper, and the older still turns on the first of May.
The museum next to it ("small but honest") keeps a letter in which the miller complains of the price of oats.
Nobody expects the engine room: it smells of oil, it is louder than a train, and it works as on its first day.
"""


def write_text(folder: pathlib.Path, data: pathlib.Path, *, size: int) -> None:
    """Writes `lines.txt` (`size` characters), `documents.txt` and `examples.tsv` for the workers."""
    corpus, rows = data / "corpus/enwiki_plain_paragraphs.txt", data / "glue/SST-2/train.tsv"
    text = (
        corpus.read_text(encoding="utf-8") if corpus.is_file() else PARAGRAPH * (size // len(PARAGRAPH) + 1)
    )
    lines = [line for line in text[:size].split("\n") if line.strip()]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    documents = [lines[start : start + DOCUMENT] for start in range(0, len(lines), DOCUMENT)]
    (folder / "documents.txt").write_text("\n\n".join(map(_sentences, documents)), encoding="utf-8")

    if rows.is_file():
        pairs = [line.rstrip("\n").split("\t") for line in rows.open(encoding="utf-8")][1:]
    else:
        pairs = [[line.strip(), str(i % 2)] for i, line in enumerate(PARAGRAPH.splitlines() * 200)]
    pairs = [pair for pair in pairs if len(pair[0].split()) in WORDS]
    chosen = random.Random(SEED).sample(pairs, 32 * max(case.steps for case in CASES.values()))
    (folder / "examples.tsv").write_text(
        "".join(f"{text}\t{label}\n" for text, label in chosen), encoding="utf-8"
    )


def _sentences(paragraphs: Iterable[str]) -> str:
    return "\n".join(sentence for paragraph in paragraphs for sentence in split_sentences(paragraph))


def english_vocabulary(data: pathlib.Path) -> tuple[str, ...]:
    """BERT's uncased vocabulary; without data, the words and letters of the paragraph."""
    path = data / "vocab/uncased_30522.txt"
    if path.is_file():
        return read_pieces(path)
    words = sorted({*PARAGRAPH.lower().replace(".", " ").replace(",", " ").split()})
    letters = sorted({*PARAGRAPH.lower()} - {" ", "\n"})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return (*dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words]),)


def write_byte_bpe(folder: pathlib.Path, given: pathlib.Path | None) -> None:
    """Writes a byte-level vocabulary to `byte-bpe`: the given one, or one of 8,192 tokens learned from `lines.txt`."""
    if given is None:
        from tokenizers import ByteLevelBPETokenizer

        learned = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        learned.train(str(folder / "lines.txt"), vocab_size=8192, special_tokens=special, show_progress=False)
        given = folder / "learned"
        given.mkdir()
        learned.save_model(str(given))
    (folder / "byte-bpe").mkdir()
    write_tokenizer(checkpoints.load_tokenizer(given).to_vocabulary(), folder / "byte-bpe")


def _drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """Draws all weights, including biases and norms, so that each affects the outputs."""
    draw = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
        around = 1.0 if name.endswith("gamma") else 0.0
        return draw.normal(around, 0.02, shape).astype("float32")

    return {name: values(name, shape) for name, shape in shapes.items()}


def random_checkpoint(config: BertConfig) -> Checkpoint:
    """An encoder with random weights."""
    return Checkpoint(config=config, tensors=_drawn(variable_shapes(config), SEED))


def write_weights(folder: pathlib.Path, source: Checkpoint, vocabulary: tuple[str, ...]) -> None:
    """Writes the encoder, a classifier, the other heads and the vocabulary in Hugging Face's format.

    The activation is always the tanh gelu and epsilon 1e-12, because KerasHub supports only these.
    """
    config = dataclasses.replace(
        source.config,
        activation="gelu_tanh",
        norm_epsilon=1e-12,
        attention_dropout=source.config.hidden_dropout,
    )
    fresh = _drawn(variable_shapes(config), SEED)
    encoder = {name: source.tensors.get(name, fresh[name]) for name in fresh}
    heads = {name: shape for name, shape in head_shapes(config).items() if name.split("/")[0] in HEADS}
    kernel = np.random.default_rng(SEED).normal(0.0, 0.02, (config.hidden_size, LABELS)).astype("float32")
    classifier = {"classifier/dense/kernel": kernel, "classifier/dense/bias": np.zeros(LABELS, "float32")}
    tensors = encoder | _drawn(heads, SEED + 1) | classifier
    tokens = Vocabulary(tokens=vocabulary, lower_case=True)
    whole = Checkpoint(config=config, tensors=tensors, vocabulary=tokens)
    checkpoints.write(whole, folder, format="hugging-face")
