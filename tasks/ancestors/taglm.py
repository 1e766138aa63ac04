"""TagLM: a tagger of words that reads the frozen vectors of a language model before its second BiLSTM (Peters et al. 2017).

    ids int32 [B, S]           -> w, word vectors          [B, S, 50]
    characters int32 [B, S, C] -> c, the largest of filters [B, S, 30]
    [w; c] -> BiLSTM -> h [B, S, 2U] -> [h; vectors of the language model] -> BiLSTM -> states [B, S, 2U]

Words and characters are those that the encoder reads. The tagger learns their vectors with the task, and the language model knows
what the task's few texts cannot teach. An encoder that reads no characters leaves c out.

Unlike the paper: word vectors start at random, not at those of another training; the language model is ELMo's, or any other
encoder, not two models that were trained apart. The sizes are those of the paper's chunker.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.features import INPUT_CHARACTERS, INPUT_WORD_IDS
from bert_keras.model.feature_bilstm import FeatureBiLSTM
from bert_keras.tasks.ancestors.elmo import BiLMConfig, CharacterCNN
from bert_keras.tasks.ancestors.skip_gram import OpenTable

WORD_SIZE, FILTERS = 50, 30  # numbers of a word's vector, and of its characters'
CHARACTERS: dict[str, Any] = {"character_size": 30, "filter_widths": (3,), "filter_counts": (FILTERS,)}


@keras.saving.register_keras_serializable("bert_keras")
class TagLM(FeatureBiLSTM):
    """A FeatureBiLSTM whose first layer reads words; the combined layers of the encoder join before the second.

    vocab_size, max_characters: of the encoder
    """

    reader: ClassVar[str] = "taglm"

    def __init__(self, *, vocab_size: int, max_characters: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.vocab_size, self.max_characters = vocab_size, max_characters
        config = BertConfig(vocab_size=vocab_size, hidden_size=WORD_SIZE, num_heads=1)
        self.words, self.characters = OpenTable(config, dtype=self.dtype_policy), None
        if max_characters:
            sizes = BiLMConfig(max_characters=max_characters, activation="tanh", highways=0, **CHARACTERS)
            self.characters = CharacterCNN(sizes, project=False, dtype=self.dtype_policy)

    @classmethod
    def on(cls, config: BertConfig, **settings: Any) -> "TagLM":
        return cls(vocab_size=config.vocab_size, max_characters=config.max_characters, **settings)

    def words_in(self, inputs: Mapping[str, Any]) -> list[Any]:
        return [inputs[name] for name in (INPUT_WORD_IDS, INPUT_CHARACTERS)[: 1 + bool(self.max_characters)]]

    def input_widths(self, combined: int) -> list[int]:
        words = WORD_SIZE + (FILTERS if self.max_characters else 0)
        states = 2 * self.lstm_units
        return [words, states + combined, *[states] * (self.lstm_layers - 2)]

    @property
    def described(self) -> str:
        return f"words and {super().described}"

    def build(
        self, vectors_shape: Any, mask_shape: Any = None, ids_shape: Any = None, characters_shape: Any = None
    ) -> None:
        self.words.build()
        if self.characters is not None:
            self.characters.build(characters_shape)
        super().build(vectors_shape)

    def call(  # type: ignore[override]
        self, vectors: Any, mask: Any, ids: Any, characters: Any = None, training: bool = False
    ) -> Any:
        """Float [B, S, K, H] of K layers, bool [B, S], ids and characters -> float [B, S, W]."""
        dtype = self.bilstms[0].compute_dtype
        words = [self.words(ids)] + ([] if self.characters is None else [self.characters(characters)])
        states = self.read(0, _joined(words, dtype), mask, training=training)
        states = _joined([states, self.combine(vectors, mask)], dtype)
        for i in range(1, self.lstm_layers):
            states = self.read(i, states, mask, training=training)
        return states

    def compute_output_shape(self, vectors_shape: Any, *others: Any) -> tuple[Any, ...]:
        return super().compute_output_shape(vectors_shape)

    def get_config(self) -> dict[str, Any]:
        sizes = {"vocab_size": self.vocab_size, "max_characters": self.max_characters}
        return super().get_config() | sizes


def _joined(parts: list[Any], dtype: str) -> Any:
    return ops.concatenate([ops.cast(part, dtype) for part in parts], axis=-1)
