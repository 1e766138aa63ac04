"""BERT for TensorFlow and Keras 3. Each public name is imported at its first use (PEP 562)."""

import importlib
from typing import Any

from bert_keras.model.registered import CLASSES, register_with_keras

_HOMES = {
    "bert_keras.errors": ("BertKerasError",),
    "bert_keras.config": ("BertConfig",),
    "bert_keras.text.byte_bpe": ("ByteBPE",),
    "bert_keras.text.sentencepiece": ("SentencePiece",),
    "bert_keras.text.wordpiece": ("WordPiece",),
    "bert_keras.text.preprocessing": ("Preprocessor", "pad_batches"),
    "bert_keras.model.encoder": ("BertEncoder", "encoder_inputs"),
    "bert_keras.model.heads": CLASSES["bert_keras.model.heads"],
    "bert_keras.fields": ("Masking",),
    "bert_keras.text.masking": ("Pieces",),
    "bert_keras.optimization.objectives": ("LeftToRight", "MaskedLM", "ReplacedTokens", "SentencePair"),
    "bert_keras.optimization.pretrainers": ("ElectraPretrainer", "Pretrainer"),
    "bert_keras.optimization.schedules": ("SlantedTriangular", "WarmupLinearDecay"),
    "bert_keras.optimization.losses": ("GlobalMean", "cross_entropy", "squared_error"),
    "bert_keras.optimization.optimizers": ("AdamW", "LAMB"),
    "bert_keras.checkpoints": ("load_encoder", "load_tokenizer"),
    "bert_keras.model.feature_bilstm": ("LayerMix",),
    "bert_keras.tasks.strings.text_model": ("TextModel",),
    "bert_keras.tasks.strings.models": (
        "chooser",
        "classifier",
        "embedder",
        "load",
        "masked_lm",
        "next_sentence",
        "question_answerer",
        "regressor",
        "replaced_tokens",
        "sentence_order",
        "tagger",
    ),
    "bert_keras.model.tensorflow_layers": ("HubLayer", "PreprocessorLayer"),
    "bert_keras.savedmodels.export": ("export",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bert_keras' has no attribute {name!r}; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


register_with_keras()
