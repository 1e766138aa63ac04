"""BERT for TensorFlow and Keras 3. Each public name is imported at its first use (PEP 562)."""

import importlib
from typing import Any

from bert_keras.paths import check_own_packages
from bert_keras.registration import CLASSES, register_with_keras

_HOMES = {
    "bert_keras.errors": ("BertKerasError",),
    "bert_keras.config": ("BertConfig",),
    "bert_keras.text.bpe": ("ByteBPE",),
    "bert_keras.text.sentencepiece": ("SentencePiece",),
    "bert_keras.text.wordpiece": ("WordPiece",),
    "bert_keras.text.preprocessing": ("Preprocessor", "pad_batches"),
    "bert_keras.encoder": ("BertEncoder", "encoder_inputs"),
    "bert_keras.heads": CLASSES["bert_keras.heads"],
    "bert_keras.settings": ("Masking",),
    "bert_keras.text.masking": ("Pieces",),
    "bert_keras.objectives": ("LeftToRight", "MaskedLM", "ReplacedTokens", "SentencePair"),
    "bert_keras.pretrainers": ("ElectraPretrainer", "Pretrainer"),
    "bert_keras.schedules": ("SlantedTriangular", "WarmupLinearDecay"),
    "bert_keras.losses": ("GlobalMean", "cross_entropy", "squared_error"),
    "bert_keras.optimizers": ("AdamW", "LAMB"),
    "bert_keras.checkpoints": ("load_encoder", "load_tokenizer"),
    "bert_keras.hub_layer": ("HubLayer",),
    "tasks.features.mix": ("LayerMix",),
    "tasks.text_model": ("TextModel",),
    "tasks.text_model_factories": (
        "chooser",
        "classifier",
        "embedder",
        "load",
        "masked_lm",
        "next_sentence",
        "question_answerer",
        "regressor",
        "sentence_order",
        "tagger",
    ),
    "bert_keras.preprocessor_layer": ("PreprocessorLayer",),
    "bert_keras.pooling": ("MeanPooling",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bert_keras' has no attribute {name!r}; it has {', '.join(__all__)}.")
    if not _HOME_OF[name].startswith("bert_keras."):  # a user's own tasks.py could stand in its place
        check_own_packages()
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


register_with_keras()
