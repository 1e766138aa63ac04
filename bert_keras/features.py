"""The contract between text and numbers: feature names, dtypes and shapes. Every other file imports them from here.

Letters for shapes, used in every docstring: B batch, S sequence, T ragged tokens, P predictions, H hidden, E embedding,
V vocabulary, L layers, K choices, C classes, W windows.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bert_keras.errors import BertKerasError

INPUT_WORD_IDS = "input_word_ids"  # int32 [B, S], vocabulary ids
INPUT_MASK = "input_mask"  # int32 [B, S], 1 on real tokens, 0 on padding
INPUT_TYPE_IDS = "input_type_ids"  # int32 [B, S], 0 on the first segment, 1 on the second
INPUT_CHARACTERS = (
    "input_characters"  # int32 [B, S, C], the bytes of each word; only for encoders that read them
)
MASKED_LM_POSITIONS = "masked_lm_positions"  # int32 [B, P], positions that the masked LM predicts
MASKED_LM_IDS = "masked_lm_ids"  # int32 [B, P], the original tokens at these positions
MASKED_LM_WEIGHTS = "masked_lm_weights"  # float32 [B, P], 0 on padding
NEXT_SENTENCE_LABEL = "next_sentence_labels"  # int32 [B] or [B, 1], 0: the second segment follows the first
LABEL_RATE_TOLERANCE = 0.1  # we warn if the fraction of next-sentence labels 1 differs by more from one half
OUTPUT_POSITIONS = "output_positions"  # int32 [B, P], optional: `sequence_output` has these positions alone
POOLING_MASK = "pooling_mask"  # int32 [B, S], the input mask without [CLS] and the tokens of a prompt
WORD_STARTS = "word_starts"  # int32 [B, S], 1 where a segmenter starts a word; for whole-word masking

# The inputs of every encoder, in this order. The names are TF Hub's.
ENCODER_INPUTS = (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)
DTYPE = "int32"
CHARACTER_LIMIT = 262  # 256 bytes, 5 marks, and 0 for no word
# Hugging Face's names of the same inputs.
RENAMED = dict(zip(("input_ids", "attention_mask", "token_type_ids"), ENCODER_INPUTS, strict=True))


def inputs_in(features: Mapping[str, Any]) -> dict[str, Any]:
    """The features that an encoder reads: the three of every encoder, and the characters where they are there."""
    names = (*ENCODER_INPUTS, *([INPUT_CHARACTERS] if INPUT_CHARACTERS in features else []))
    return {name: features[name] for name in names}


def input_limits(config: Any) -> dict[str, int]:
    """Encoder input -> the first number that is too large for it; the least is 0. config: a BertConfig.

    A row has at least one token and at most `config.max_length`. Every reader of features from outside checks these ranges:
    an embedding counts a negative id from the end of its table, and attention adds a mask of 7 to its scores.
    """
    # An encoder without types does not read them.
    limits = {INPUT_WORD_IDS: config.vocab_size, INPUT_MASK: 2, INPUT_TYPE_IDS: config.type_vocab_size or 2}
    return limits | ({INPUT_CHARACTERS: CHARACTER_LIMIT} if config.max_characters else {})


# The outputs of preprocessing, beside the encoder's inputs, for text that is cut into windows.
EXAMPLE_INDEX = "example_index"  # int32 [W], the example that a window was cut from
START_BYTES = "start_bytes"  # int32 [W, S], the start of a token in its text; -1 outside the context
END_BYTES = "end_bytes"  # int32 [W, S], its end (exclusive); -1 outside the context
MAX_CONTEXT = "max_context"  # int32 [W, S], 1 where no other window shows this token with more context
WORD_INDEX = "word_index"  # int32 [W, S], the word whose first token is here; -1 elsewhere

# The vocabulary, for a `decode` that returns tokens.
VOCABULARY = "vocabulary_pieces"  # string [V], in the order of their ids
VOCABULARY_TEXTS = "vocabulary_texts"  # string [V], their bytes in a text

# The outputs of an encoder.
SEQUENCE_OUTPUT = "sequence_output"  # float [B, S, H], the last block
POOLED_OUTPUT = "pooled_output"  # float [B, H], dense + tanh of one position; DistilBERT's classifier: relu
ENCODER_OUTPUTS = "encoder_outputs"  # L x float [B, S, H], every block
EMBEDDING_OUTPUT = "embedding_output"  # float [B, S, H], the input of the first block
NOT_FINITE = "the outputs of the model are NaN or infinite, so it has no answer"  # an error in place of a decoded answer
ATTENTION_PROBABILITIES = "attention_probabilities"  # L x float [B, A, S, S], A heads; only on request


def check_names(inputs: Collection[str]) -> None:
    """Raises BertKerasError unless the inputs of an encoder are there, by these names."""
    missing = [name for name in ENCODER_INPUTS if name not in inputs]
    if not missing:
        return
    renamed = [f"{theirs} is {ours}" for theirs, ours in RENAMED.items() if theirs in inputs]
    zeros = (
        f"; {INPUT_TYPE_IDS} of one segment are zeros"
        if missing == [INPUT_TYPE_IDS] or len(renamed) == 2
        else ""
    )
    named = f"; docs/migrate.md: transformers' {', '.join(renamed)}" if renamed else ""
    raise BertKerasError(
        f"the inputs are {', '.join(inputs) or 'none'}; an encoder reads {', '.join(ENCODER_INPUTS)}{named}{zeros}."
    )


@dataclasses.dataclass(frozen=True)
class WorkerRows:
    """The rows of each batch for one of several processes: number `index` of `count` equal parts."""

    index: int
    count: int

    def rows(self, batch_size: int) -> range:
        """The rows of this part in a batch, whose size `count` divides."""
        size = batch_size // self.count
        return range(self.index * size, (self.index + 1) * size)

    def count_before(self, row: int, batch_size: int) -> int:
        """The number of this part's rows among the first rows of all batches."""
        rows = self.rows(batch_size)
        return row // batch_size * len(rows) + min(max(row % batch_size - rows.start, 0), len(rows))


ALL_ROWS = WorkerRows(0, 1)

# Our names -> the names inside Google's TFRecord files (google-research/bert create_pretraining_data.py).
TFRECORD_NAMES = {
    INPUT_WORD_IDS: "input_ids",
    INPUT_MASK: "input_mask",
    INPUT_TYPE_IDS: "segment_ids",
    MASKED_LM_POSITIONS: "masked_lm_positions",
    MASKED_LM_IDS: "masked_lm_ids",
    MASKED_LM_WEIGHTS: "masked_lm_weights",
    NEXT_SENTENCE_LABEL: "next_sentence_labels",
}
