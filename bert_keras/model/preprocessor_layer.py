"""A Preprocessor as a Keras layer: strings become features inside a model, and its `.keras` file holds the vocabulary.

In: string [B], such as `keras.Input((), dtype="string")`, or two of them for pairs. Out: Features, int32 [B, S].
"""

import base64
from collections.abc import Mapping
from typing import Any

import keras

from bert_keras.errors import BertKerasError
from bert_keras.features import DTYPE, ENCODER_INPUTS
from bert_keras.text.byte_bpe import ByteBPE
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.sentencepiece import SentencePiece
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.wordpiece import WordPiece


@keras.saving.register_keras_serializable("bert_keras")
class PreprocessorLayer(keras.layers.Layer):
    """Calls a Preprocessor inside a functional or Sequential model, on the TensorFlow backend.

    preprocess: its settings and its vocabulary are part of the layer's config

    Called on string [B] or [B, 1], or on a list of two of them, the segments, it returns the encoder's inputs: int32 [B, S]. A
    list of Python strings is one batch. Raises ValueError on another backend.
    """

    def __init__(
        self, preprocess: Preprocessor, *, name: str | None = None, dtype: Any = None, trainable: bool = True
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise BertKerasError(
                f"Keras runs on {keras.backend.backend()}, which has no strings; call the Preprocessor itself on the data, or "
                "set KERAS_BACKEND=tensorflow."
            )
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.preprocess = preprocess
        self.supports_jit = False  # XLA takes no strings
        # As in keras.layers.TextVectorization: Python strings are no tensors yet.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    def call(self, text: Any) -> dict[str, Any]:
        """Strings, one segment or a list of two -> Features, int32 [B, S]."""
        return self.preprocess(*map(_row, _segments(text)))

    def compute_output_spec(self, text: Any) -> dict[str, Any]:
        """Shapes without running."""
        length = None if self.preprocess.pad_to_longest else self.preprocess.seq_length
        return {
            name: keras.KerasTensor((_segments(text)[0].shape[0], length), DTYPE) for name in ENCODER_INPUTS
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments from which `from_config` rebuilds the layer, its vocabulary among them."""
        preprocess = self.preprocess
        return super().get_config() | {
            "preprocess": {
                "tokenizer": _tokenizer_config(preprocess.tokenizer),
                "seq_length": preprocess.seq_length,
                "pad_to_longest": preprocess.pad_to_longest,
                "multiple_of": preprocess.multiple_of,
                "truncation": preprocess.truncation,
            }
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PreprocessorLayer":
        """The inverse of `get_config`."""
        settings = dict(config["preprocess"])
        tokenizer = _tokenizer(settings.pop("tokenizer"))
        return cls(**(config | {"preprocess": Preprocessor(tokenizer, **settings)}))


def _segments(text: Any) -> list[Any]:
    """One or two batches of strings."""
    several = isinstance(text, list | tuple) and not all(isinstance(one, str | bytes) for one in text)
    return list(text) if several else [text]


def _row(text: Any) -> Any:
    """String [B, 1] -> [B]."""
    return keras.ops.squeeze(text, -1) if len(getattr(text, "shape", ())) == 2 else text


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    if isinstance(tokenizer, WordPiece):
        # One string: Keras would visit every item of a list.
        return {
            "wordpiece": "\n".join(tokenizer.vocabulary),
            "lower_case": tokenizer.lower_case,
            "special_tokens_in_text": tokenizer.special_tokens_in_text,
        }
    if isinstance(tokenizer, SentencePiece):
        return {
            "sentencepiece": base64.b64encode(tokenizer.model).decode(),
            "lower_case": tokenizer.lower_case,
        }
    if isinstance(tokenizer, ByteBPE):
        return {
            "byte_bpe": "\n".join(tokenizer.vocabulary),
            "merges": "\n".join(tokenizer.merges),
            "special_tokens_in_text": tokenizer.special_tokens_in_text,
        }
    raise BertKerasError(
        f"a model with a {type(tokenizer).__name__} cannot be saved; WordPiece, SentencePiece and ByteBPE can."
    )


def _tokenizer(config: Mapping[str, Any]) -> Tokenizer:
    settings = dict(config)
    if "wordpiece" in settings:
        return WordPiece(settings.pop("wordpiece").split("\n"), **settings)
    if "byte_bpe" in settings:
        return ByteBPE(settings.pop("byte_bpe").split("\n"), settings.pop("merges").splitlines(), **settings)
    return SentencePiece(base64.b64decode(settings.pop("sentencepiece")), **settings)
