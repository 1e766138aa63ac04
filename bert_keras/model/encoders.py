"""The encoders by name: BertEncoder, and the ancestors, whose blocks are not BERT's.

    config.encoder -> a row of ENCODERS -> the encoder

A class has BertEncoder's interface: it takes (config, outputs=..., dtype=...), is called on the features of `config.inputs`, and
returns the outputs. An ancestor's `shapes(config)` tells the names and shapes of its variables without making them.
"""

import importlib
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from bert_keras.config import BERT, BertConfig
from bert_keras.errors import BertKerasError

# Name -> module and class. A module is imported when a configuration names its encoder.
ENCODERS = {
    BERT: ("bert_keras.model.encoder", "BertEncoder"),
    "word-vectors": ("bert_keras.tasks.ancestors.skip_gram", "WordVectorsEncoder"),
    "cove": ("bert_keras.tasks.ancestors.cove", "CoveEncoder"),
    "awd-lstm": ("bert_keras.tasks.ancestors.awd_lstm", "AwdLstmEncoder"),
    "elmo": ("bert_keras.tasks.ancestors.elmo", "ElmoEncoder"),
}

# The networks that a task puts on the vectors of a frozen encoder, as ENCODERS.
BILSTM = "bilstm"
READERS = {
    BILSTM: ("bert_keras.model.feature_bilstm", "FeatureBiLSTM"),
    "taglm": ("bert_keras.tasks.ancestors.taglm", "TagLM"),
}

_NUMBER = re.compile(rb"[-+]?[0-9.]+(e[-+]?[0-9]+)?")
VECTORS = "bert_keras.tasks.ancestors.word_vectors"
# Models of ancestors as their own libraries publish them: format -> the module with `read_checkpoint` and `write_checkpoint`.
ORIGINALS = {
    "elmo": "bert_keras.tasks.ancestors.elmo",
    "word2vec": VECTORS,
    "word2vec-binary": VECTORS,
    "glove": VECTORS,
}
_OF_VECTORS = (".bin", ".vec", ".txt")  # how names of files of word vectors end


def original_in(path: Any) -> str | None:
    """The format of ORIGINALS of a folder, or of a file of word vectors; None for another path."""
    place = pathlib.Path(path)
    if (place / "options.json").is_file():
        return "elmo"
    if place.suffix not in _OF_VECTORS or not place.is_file():
        return None
    with place.open("rb") as file:
        first = file.readline(100_000).split()
    numbers = first[-2:]  # the sizes, or the end of a vector; a file of PyTorch begins with neither
    return "word2vec" if len(first) > 1 and all(_NUMBER.fullmatch(one) for one in numbers) else None


def original(name: str) -> Any:
    """The module of a format of ORIGINALS."""
    return importlib.import_module(ORIGINALS[name])


def encoder_class(config: BertConfig) -> Any:
    """The class of a configuration's encoder. Raises BertKerasError for a name that has no row."""
    if config.encoder not in ENCODERS:
        raise BertKerasError(f"encoder is {config.encoder!r}; the encoders are {', '.join(ENCODERS)}.")
    return _load(*ENCODERS[config.encoder])


def reader_class(name: str) -> Any:
    """The class of a row of READERS."""
    return _load(*READERS[name])


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def make_encoder(config: BertConfig, **how: Any) -> Any:
    """An encoder with random weights. how: the arguments of BertEncoder."""
    return encoder_class(config)(config, **how)


def check_layer_widths(config: BertConfig, places: Sequence[int]) -> None:
    """Raises BertKerasError for layers whose vectors are not `hidden_size` wide. places: numbers, 0 is the embeddings."""
    if config.encoder == BERT:
        return
    widths = (config.hidden_size, *encoder_class(config).layer_widths(config))
    if others := [place for place in places if widths[place] != config.hidden_size]:
        fit = [str(place) for place, width in enumerate(widths) if width == config.hidden_size]
        raise BertKerasError(
            f"layer {others[0]} of {config.encoder} has vectors of {widths[others[0]]} numbers, and hidden_size is "
            f"{config.hidden_size}; give layers of that width: {', '.join(fit)}."
        )
