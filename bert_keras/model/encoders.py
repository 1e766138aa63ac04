"""The encoders by name: BertEncoder, and the ancestors, whose blocks are not BERT's.

    config.encoder -> a row of ENCODERS -> the encoder

A class has BertEncoder's interface: it takes (config, outputs=..., dtype=...), is called on the features of `config.inputs`, and
returns the outputs. An ancestor's `shapes(config)` tells the names and shapes of its variables without making them.
"""

import importlib
from typing import Any

from bert_keras.config import BERT, BertConfig
from bert_keras.errors import BertKerasError

# Name -> module and class. A module is imported when a configuration names its encoder.
ENCODERS = {
    BERT: ("bert_keras.model.encoder", "BertEncoder"),
    "cove": ("bert_keras.tasks.ancestors.cove", "CoveEncoder"),
}


def encoder_class(config: BertConfig) -> Any:
    """The class of a configuration's encoder. Raises BertKerasError for a name that has no row."""
    if config.encoder not in ENCODERS:
        raise BertKerasError(f"encoder is {config.encoder!r}; the encoders are {', '.join(ENCODERS)}.")
    module, name = ENCODERS[config.encoder]
    return getattr(importlib.import_module(module), name)


def make_encoder(config: BertConfig, **how: Any) -> Any:
    """An encoder with random weights. how: the arguments of BertEncoder."""
    return encoder_class(config)(config, **how)
