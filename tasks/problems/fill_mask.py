"""Fill-mask: the tokens that a masked language model predicts for each "[MASK]" in a text.

In: texts with any number of literal "[MASK]" or, as in RoBERTa's vocabulary, "<mask>"; or cloze tests in files of texts and
answers. Out, for up to M masks in a text and the k best tokens: "mask_tokens" string and "mask_scores" float32 [B, M, k], and the
text with the best tokens filled in. Only this task turns both names in a text into the mask's id; other tasks tokenize them as
text.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import (
    DTYPE,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    SEQUENCE_OUTPUT,
    VOCABULARY,
    VOCABULARY_TEXTS,
)
from bert_keras.fields import field_types, names_of
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import MaskedLMHead
from bert_keras.tasks.batches import count
from bert_keras.tasks.data.columns import read_columns
from bert_keras.tasks.data.sources import Source, split_file
from bert_keras.tasks.data.tables import checked_text, read_table
from bert_keras.tasks.options import FillMaskOptions
from bert_keras.tasks.problems.views import name_sizes, size_groups
from bert_keras.tasks.report import Arrays, Judged, Table, list_errors, plain
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.byte_bpe import BPE_TOKENS
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.rules import MASK
from bert_keras.text.tokenizer import Tokenizer

TEXT, ANSWER = "text", "answer"
TOKENS, SCORES, START, FILLED, RANK = "mask_tokens", "mask_scores", "mask_start_byte", "filled", "rank"
UNKNOWN = -1  # the label of an answer that is not one token
CHECKED = 1024  # examples that `check_targets` tokenizes together
NEAR = 5  # the last rank that counts for "top_5"

FAR = 10  # ranks of a report
RANKS = (1, 2, 6, 11, 101, 1001)
WORD_KINDS = ("word", "stop word", "number", "punctuation")
_UP_TO_RANK = (
    "The fraction of the answers that are among the model's best tokens, up to each rank; in brackets the number of answers. "
    "Stop words are frequent English words, such as the and of, from scikit-learn's list."
)
_RANKS = "Rank 1 is the token with the highest probability."

FILES: dict[str, tuple[str, ...]] = {
    "train": ("train.jsonl", "train.tsv"),
    "validation": ("validation.jsonl", "validation.tsv", "dev.jsonl", "dev.tsv"),
    "test": ("test.jsonl", "test.tsv"),
}


class FillMask(Task):
    """The task of predicting masked tokens.

    source: as in `split_file`; None to predict without examples
    top_k: the number of tokens listed for each mask

    A labelled example has one "[MASK]" and an answer. It is evaluated if the answer is one token of the vocabulary and the mask
    is within seq_length; "skipped" counts the others.
    Raises BertKerasError for a top_k under 1.
    """

    kind = "fill-mask"
    names = (kind,)
    options = names_of(FillMaskOptions)
    kinds = field_types(FillMaskOptions)
    name = kind
    outputs = (SEQUENCE_OUTPUT,)
    model_features = (MASKED_LM_POSITIONS,)
    measure, measures = "accuracy", ("accuracy", f"top_{NEAR}", "mean_reciprocal_rank")
    lists = {"mask": START}
    pretrained_head = True
    head = "masked_lm"
    architectures = ("ForMaskedLM", "ForPreTraining")
    labels_needed = (
        "texts were given without labels; give y, the token of each text's one [MASK]. `bert-keras pretrain` and "
        "bert_keras.Pretrainer mask texts at random and need no labels."
    )
    example_texts = {TEXT: "The capital of France is [MASK]."}

    def __init__(self, source: Source | None = None, *, top_k: int = FillMaskOptions.top_k) -> None:
        FillMaskOptions(top_k=top_k)
        self.source, self.top_k = source, top_k

    def examples(self, split: str) -> tf.data.Dataset:
        """{"text": string [], "answer": string []}; a withheld answer is empty."""
        if self.source is None:
            raise BertKerasError(
                f"{self.name} is read from files; give a folder of them, or a file for each split."
            )
        path = split_file(self.source, split, FILES)
        rows = list(_read_rows(path, labelled=split != "test"))
        if not rows:
            raise BertKerasError(f"{path} has no examples; give at least one.")
        texts, answers = zip(*rows, strict=True)
        return tf.data.Dataset.from_tensor_slices({TEXT: [*texts], ANSWER: [*answers]})

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answers, strings: one for the one "[MASK]" of each text."""
        for row, text in enumerate(columns[TEXT]):
            if (masks := count_masks(text.decode("utf-8", "replace"))) != 1:
                raise BertKerasError(f"row {row}: {masks} {MASK} in the text; give one, for one answer.")
        return {ANSWER: read_columns(y, [ANSWER])[ANSWER]}

    def check_targets(self, preprocess: Preprocessor, columns: Mapping[str, np.ndarray]) -> None:
        """Raises BertKerasError for the first answer that is not one token, or whose mask is cut off."""
        tokenizer = preprocess.tokenizer
        for start in range(0, len(columns[TEXT]), CHECKED):
            raw = {name: tf.constant(columns[name][start : start + CHECKED]) for name in (TEXT, ANSWER)}
            _, weights = self.labels(raw, self.features(preprocess, raw))
            for row in np.flatnonzero(np.all(weights.numpy() == 0, axis=1)):
                answer = columns[ANSWER][start + row].decode()
                texts = _answers({name: raw[name][row : row + 1] for name in raw}, tokenizer)
                tokens = [tokenizer.vocabulary[i] for i in tokenizer.tokenize(texts)[0].numpy()]
                if len(tokens) != 1:
                    reason = f"the answer {answer!r} is {len(tokens)} tokens ({', '.join(tokens) or 'none'}), not one"
                elif tokens[0] == tokenizer.vocabulary[tokenizer.special.unknown]:
                    reason = f"the answer {answer!r} is not in the vocabulary"
                else:
                    reason = f"the {MASK} is not in the first {preprocess.seq_length} tokens, which the model reads"
                raise BertKerasError(
                    f"row {start + row}: {reason}; give an answer of one token, whose {MASK} is read, or leave the row out."
                )

    def check(self, preprocess: Preprocessor, examples: tf.data.Dataset) -> None:
        """Warns about labelled examples that are neither learned nor measured, with their number."""

        def skipped(raw: Raw) -> tf.Tensor:
            _, weights = self.labels(raw, self.features(preprocess, raw))
            return tf.math.count_nonzero(tf.reduce_all(weights == 0, axis=1) & (raw[ANSWER] != ""))

        counted = examples.batch(CHECKED).map(skipped, num_parallel_calls=tf.data.AUTOTUNE)
        if found := int(sum(counted.as_numpy_iterator())):
            warnings.warn(
                f"{found:,} of {count(examples):,} examples are skipped: their answer is not one token of the vocabulary, or "
                f"their {MASK} is not in the first {preprocess.seq_length} tokens; give answers of one token",
                stacklevel=2,
            )

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S], the masks within seq_length [B, P] and the vocabulary [V].

        The `masked_lm_weights` are 0 in padding. With answers in raw, `masked_lm_ids` are their ids, or -1 for an answer that is
        not one token.
        """
        tokenizer = preprocess.tokenizer
        parts = _parts(raw[TEXT])
        features = preprocess.pack(_with_masks(parts, tokenizer))
        masks = tf.where(features[INPUT_WORD_IDS] == tokenizer.special.mask_id)
        found = tf.RaggedTensor.from_value_rowids(
            tf.cast(masks[:, 1], tf.int32), masks[:, 0], nrows=parts.nrows(), validate=False
        )
        most = _longest(tf.cast(found.row_lengths(), tf.int32))
        positions = _padded(found, 0, width=most)
        features |= {
            MASKED_LM_POSITIONS: positions,
            MASKED_LM_WEIGHTS: _padded(tf.ones_like(found, tf.float32), 0.0, width=most),
            VOCABULARY: tf.constant(tokenizer.vocabulary),
            VOCABULARY_TEXTS: tf.constant(tokenizer.texts),
        }
        if ANSWER in raw:
            tokens = tokenizer.tokenize(_answers(raw, tokenizer))
            first = tokens[:, :1].to_tensor(tokenizer.special.unknown, shape=[None, 1])
            single = (tokens.row_lengths()[:, tf.newaxis] == 1) & (first != tokenizer.special.unknown)
            features[MASKED_LM_IDS] = tf.broadcast_to(tf.where(single, first, UNKNOWN), tf.shape(positions))
        return features

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids of the answers int32 [B, P]; weights float32 [B, P], 0 in padding and for an answer that is not one token."""
        ids = features[MASKED_LM_IDS]
        return tf.maximum(ids, 0), features[MASKED_LM_WEIGHTS] * tf.cast(ids >= 0, tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, P, V]. Raises BertKerasError for a causal encoder."""
        if encoder.config.causal:
            raise BertKerasError(
                "the encoder is causal: it does not read the text after a mask; give a bidirectional encoder."
            )
        positions = keras.Input((None,), dtype=DTYPE, name=MASKED_LM_POSITIONS)
        inputs = encoder_inputs(config=encoder.config)
        head = MaskedLMHead(encoder, dtype=encoder.dtype_policy)
        logits = head(encoder(inputs)[SEQUENCE_OUTPUT], positions)
        return keras.Model({**inputs, MASKED_LM_POSITIONS: positions}, logits, name="fill_mask_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, P, V] -> the predictions for each mask, and "filled" string [B], the text with the best tokens.

        "mask_start_byte": int32 [B, M], the byte of the mask in the text, -1 in padding
        "mask_tokens" string, "mask_scores" float32 [B, M, k]: tokens and probabilities, b"" and 0 in padding and for truncated
            masks
        "rank": float32 [B], with answers in raw, the rank of the answer among all tokens, from 1; ties share their mean
            rank, and a skipped example has 0
        """
        vocabulary, parts = features[VOCABULARY], _parts(raw[TEXT])
        logits = outputs[..., : tf.size(vocabulary)]  # the embedding table may have more rows
        scores, ids = tf.math.top_k(tf.nn.softmax(logits), k=min(self.top_k, vocabulary.shape[0]))
        read = features[MASKED_LM_WEIGHTS][..., tf.newaxis] > 0
        starts = _mask_starts(parts)
        cut_off = [[0, 0], [0, tf.shape(starts)[1] - tf.shape(ids)[1]], [0, 0]]
        tokens = tf.pad(tf.where(read, tf.gather(vocabulary, ids), ""), cut_off)
        best = tf.where(read[..., 0], tf.gather(features[VOCABULARY_TEXTS], ids[..., 0]), "")
        decoded = {
            START: starts,
            TOKENS: tokens,
            SCORES: tf.pad(tf.where(read, scores, 0.0), cut_off),
            FILLED: _filled(parts, tf.pad(best, cut_off[:2])),
        }
        if MASKED_LM_IDS in features:
            labels, weights = self.labels(raw, features)
            answer = tf.gather(logits, labels[:, :1], axis=2, batch_dims=1)[:, 0]  # [B, 1]
            decoded[RANK] = tf.where(weights[:, 0] > 0, _ranks(logits[:, 0], answer), 0)
        return decoded

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields the fractions of answers at rank 1 and up to rank 5, the mean of 1 / rank, and the number of skipped examples.

        Raises BertKerasError if all examples are skipped.
        """
        ranks = predictions[RANK][predictions[RANK] > 0]
        if not ranks.size:
            raise BertKerasError(
                f"all {len(predictions[RANK])} examples are skipped: no answer is one token of the vocabulary with its mask "
                "within seq_length; give answers of one word, or a larger seq_length."
            )
        yield from self.resampled(predictions, raw)(np.arange(len(predictions[RANK]))).items()

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
        """The skipped examples are counted once, not in each sample."""
        skipped = float(np.sum(predictions[RANK] == 0))

        def measure(rows: np.ndarray) -> dict[str, float]:
            ranks = predictions[RANK][rows]
            ranks = ranks[ranks > 0]
            near = {self.measure: float(np.mean(ranks == 1)), f"top_{NEAR}": float(np.mean(ranks <= NEAR))}
            return near | {"mean_reciprocal_rank": float(np.mean(1 / ranks)), "skipped": skipped}

        return measure

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """{"filled": text, "masks": [{"start_byte": ..., "tokens": [...], "scores": [...]}, ...]}."""
        masks = []
        for start, tokens, scores in zip(decoded[START], decoded[TOKENS], decoded[SCORES], strict=True):
            real = tokens != b""
            mask = {"start_byte": int(start), "tokens": plain(tokens[real]), "scores": plain(scores[real])}
            masks += [mask] if start >= 0 else []
        return {FILLED: plain(decoded[FILLED]), "masks": masks}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The text, and the tokens of each mask with their probabilities."""
        pairs = (zip(mask["tokens"], mask["scores"], strict=True) for mask in record["masks"])
        listed = (", ".join(f"{token} {score:.3f}" for token, score in mask) for mask in pairs)
        return {TEXT: example[TEXT], "masks": "; ".join(listed)}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        confidence = predictions[SCORES][:, 0, 0]
        wrong = np.flatnonzero(predictions[RANK] > 1)

        def describe(i: int) -> tuple[str, ...]:
            texts = (raw[TEXT][i], predictions[TOKENS][i, 0, 0], raw[ANSWER][i])
            return (*map(plain, texts), f"{predictions[RANK][i]:g}")

        columns = (TEXT, "best", ANSWER, "rank of the answer", "probability of the best")
        yield from list_errors(wrong, confidence, columns, describe)

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The fraction of answers up to each rank by kind of word, and the ranks of the answers."""
        known = np.flatnonzero(predictions[RANK] > 0)
        ranks = predictions[RANK][known]
        kinds = np.array([kind_of_word(plain(answer)) for answer in raw[ANSWER][known]])
        groups = {"all": np.full(len(known), True)} | {
            name: kinds == name for name in WORD_KINDS if name in kinds
        }
        columns = ("rank", *(f"{name} ({group.sum()})" for name, group in groups.items()))
        places = range(1, FAR + 1)
        rows = [(at, *(float(np.mean(ranks[group] <= at)) for group in groups.values())) for at in places]
        yield Table("Answers up to a rank", columns, rows, "lines", _UP_TO_RANK)
        counts = Counter(name_sizes(np.ceil(ranks), RANKS))
        listed = [(name, counts[name]) for name in size_groups(RANKS)]
        yield Table("Ranks of the answers", ("rank of the answer", "answers"), listed, "bars", _RANKS)

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged:
        """A row for each answer of one token whose mask is read."""
        rows = np.flatnonzero(predictions[RANK] > 0)
        return Judged(
            rows=rows,
            texts={TEXT: plain(raw[TEXT][rows])},
            gold=plain(raw[ANSWER][rows]),
            predicted=plain(predictions[TOKENS][rows, 0, 0]),
            right=(predictions[RANK][rows] == 1).astype(np.float64),
            confidence=predictions[SCORES][rows, 0, 0].astype(np.float64),
        )


def kind_of_word(answer: str) -> str:
    """One of WORD_KINDS."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # slow to import

    if any(letter.isdigit() for letter in answer):
        return "number"
    if not any(letter.isalpha() for letter in answer):
        return "punctuation"
    return "stop word" if answer.strip().lower() in ENGLISH_STOP_WORDS else "word"


def _ranks(logits: tf.Tensor, answer: tf.Tensor) -> tf.Tensor:
    """The ranks of answers from 1: logits [B, V], answer [B, 1] -> float32 [B].

    Ties share their mean rank: with equal logits, every answer is in the middle. NaN is last.
    """
    above = tf.reduce_sum(tf.cast(~(logits <= answer), tf.float32), axis=1)
    # The answer is one of them, unless it is NaN.
    equal = tf.reduce_sum(tf.cast(logits == answer, tf.float32), axis=1)
    return tf.where(equal > 0, above + (equal + 1) / 2, above)


def _parts(text: tf.Tensor) -> tf.RaggedTensor:
    """The parts of texts before, between and after the masks: string [B] -> ragged string [B, (M + 1)]."""
    return tf.strings.split(tf.strings.regex_replace(text, BPE_TOKENS["mask"], MASK), MASK)


def count_masks(text: str) -> int:
    """The number of masks in a text."""
    return text.count(MASK) + text.count(BPE_TOKENS["mask"])


def _answers(raw: Raw, tokenizer: Tokenizer) -> tf.Tensor:
    """The answers with the part of the text before each mask that the mask takes: string [B]."""
    parts = _parts(raw[TEXT])
    before = tf.gather(parts.values, parts.row_starts())
    taken = tf.strings.regex_replace(before, tokenizer.before_mask, "") != before
    return tf.strings.join([tf.where(taken, " ", ""), raw[ANSWER]])


def _longest(lengths: tf.Tensor) -> tf.Tensor:
    """The largest length of a row; at least 1."""
    return tf.maximum(tf.reduce_max(tf.concat([[0], lengths], axis=0)), 1)


def _padded(rows: tf.RaggedTensor, padding: Any, *, width: tf.Tensor) -> tf.Tensor:
    """Ragged [B, (N)] -> [B, width]."""
    return tf.ensure_shape(rows.to_tensor(padding, shape=tf.stack([-1, width])), [None, None])


def _with_masks(parts: tf.RaggedTensor, tokenizer: Tokenizer) -> tf.RaggedTensor:
    """The token ids of texts with the mask's id between their parts: ragged string [B, (M + 1)] -> ragged int32 [B, (T)]."""
    # No mask follows the last part of a text.
    number = tf.range(tf.size(parts.values, tf.int64))
    last = tf.equal(number, tf.gather(parts.row_limits() - 1, parts.value_rowids()))
    cut = tf.strings.regex_replace(parts.values, tokenizer.before_mask, "")
    tokens = tokenizer.tokenize(tf.where(last, parts.values, cut))
    followed = tf.concat([tokens, tf.fill([tokens.nrows(), 1], tokenizer.special.mask_id)], axis=1)
    rows = tf.gather(followed.row_splits, parts.row_splits)
    return tf.RaggedTensor.from_row_splits(followed.values, rows, validate=False)[:, :-1]


def _mask_starts(parts: tf.RaggedTensor) -> tf.Tensor:
    """The first byte of each mask: int32 [B, M], -1 in padding."""
    ends = tf.cumsum(tf.strings.length(parts.values) + len(MASK))  # of masks, in all texts as one
    row_starts = tf.gather(tf.concat([[0], ends], axis=0), parts.row_starts())
    starts = parts.with_values(ends - len(MASK) - tf.gather(row_starts, parts.value_rowids()))
    return _padded(starts[:, :-1], -1, width=_longest(parts.row_lengths() - 1))


def _filled(parts: tf.RaggedTensor, best: tf.Tensor) -> tf.Tensor:
    """The texts with masks replaced by the texts of tokens: string [B, M] -> string [B]. A mask without a token stays."""
    most = _longest(parts.row_lengths() - 1)
    exists = tf.sequence_mask(parts.row_lengths() - 1, most)
    continues = tf.strings.regex_full_match(best, r"(?s)[^ ].*")
    words = tf.strings.regex_replace(best, "^ ", "")
    words = tf.where(exists, tf.where(best == "", MASK, words), "")
    texts = _padded(parts, "", width=most + 1)
    before = tf.where(continues, tf.strings.regex_replace(texts[:, :-1], r"\s+$", ""), texts[:, :-1])
    # After the last mask of a text, and in padding, there is no more text.
    filled = tf.concat([tf.strings.join([before, words]), texts[:, -1:]], axis=1)
    return tf.strings.reduce_join(filled, axis=1)


def _read_rows(path: Path, *, labelled: bool) -> Iterator[tuple[str, str]]:
    """Yields text and answer of each example, "" for a withheld one."""
    required, optional = ([TEXT, ANSWER], []) if labelled else ([TEXT], [ANSWER])
    for where, _, (text, answer) in read_table(path, required, optional=optional):
        checked_text(text, where, TEXT)
        answer = "" if answer is None and not labelled else checked_text(answer, where, ANSWER)
        if (masks := count_masks(text)) != 1:
            raise BertKerasError(f"{where}: the text has {masks} {MASK}; give exactly one.")
        yield text, answer
