"""Fill-mask: which pieces of the vocabulary a masked language model puts where a text says "[MASK]".

In: texts with any number of literal "[MASK]", or files of texts and answers, a cloze test. Out, for M masks in the text that has
most of them and the k best pieces: "mask_tokens" string and "mask_scores" float32 [B, M, k], and the text with the best ones in.
A "[MASK]" in a text becomes the mask's id here, between the pieces of what stands before and after it; everywhere else it is
text like any other.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.encoder import BertEncoder, encoder_inputs
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    DTYPE,
    INPUT_WORD_IDS,
    MASKED_LM_IDS,
    MASKED_LM_POSITIONS,
    MASKED_LM_WEIGHTS,
    SEQUENCE_OUTPUT,
    VOCABULARY,
)
from bert_keras.heads import MaskedLMHead
from bert_keras.json_files import parse_json, typed, whole
from bert_keras.losses import GlobalMean, cross_entropy
from bert_keras.settings import names_of
from bert_keras.text.sentencepiece import SPACE
from bert_keras.text.tokenizer import MASK, Tokenizer
from bert_keras.text.wordpiece import CONTINUATION
from tasks.settings import MAX_OPTION, FillMaskOptions
from tasks.task import (
    ERRORS_SHOWN,
    Features,
    Raw,
    Source,
    Table,
    Task,
    check_text,
    numbered_lines,
    plain,
    split_file,
)

TEXT, ANSWER = "text", "answer"
TOKENS, SCORES, START, FILLED, RANK = "mask_tokens", "mask_scores", "mask_start_byte", "filled", "rank"
UNKNOWN = -1  # the label of an answer that is not one piece
NEAR = 5  # places within which an answer counts for "top_5"

FILES: dict[str, tuple[str, ...]] = {
    "train": ("train.jsonl", "train.tsv"),
    "validation": ("validation.jsonl", "validation.tsv", "dev.jsonl", "dev.tsv"),
    "test": ("test.jsonl", "test.tsv"),
}


class FillMask(Task):
    """The Task of naming what is hidden.

    source: as `split_file` takes it; None for texts of one's own
    top_k: pieces that are listed for each mask

    An example to learn or to measure has one "[MASK]" and an answer. It counts only where the answer is one piece of the
    vocabulary and the mask lies within seq_length; the others are in "skipped".
    Raises ValueError on a top_k under 1.
    """

    kind = "fill-mask"
    names = (kind,)
    options = names_of(FillMaskOptions)
    name = kind
    outputs = (SEQUENCE_OUTPUT,)
    measure = "accuracy"
    validation_splits = ("validation",)
    lists = {"mask": START}
    pretrained_head = True
    example_texts = {TEXT: "The capital of France is [MASK]."}

    def __init__(self, source: Source | None = None, *, top_k: int = FillMaskOptions.top_k) -> None:
        FillMaskOptions(top_k=top_k)
        self.source, self.top_k = source, top_k

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "FillMask":
        """Raises ValueError without a source."""
        if source is None:
            raise BertKerasError(
                f"{name} is read from files; give a folder of them, or a file for each split."
            )
        return cls(source, **options)

    def examples(self, split: str) -> tf.data.Dataset:
        """{"text": string [], "answer": string []}; an answer that test data withholds is empty.

        Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the line.
        """
        if self.source is None:
            raise BertKerasError(f"{self.name} was opened without data; give a folder or a file.")
        path = split_file(self.source, split, FILES)
        rows = list(_rows(path, labelled=split != "test"))
        if not rows:
            raise BertKerasError(f"{path} has no examples; wanted is at least one.")
        texts, answers = zip(*rows, strict=True)
        return tf.data.Dataset.from_tensor_slices(
            {
                TEXT: np.array([text.encode() for text in texts], object),
                ANSWER: np.array([answer.encode() for answer in answers], object),
            }
        )

    def features(self, preprocess: Any, raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]; of the P masks at most that are not cut off, [B, P]; and the vocabulary, [V].

        The `masked_lm_weights` are 0 for what only fills up. With answers in raw, the `masked_lm_ids` are theirs, or -1
        where an answer is not one piece.
        """
        tokenizer = preprocess.tokenizer
        parts = _parts(raw[TEXT])
        features = preprocess.pack(_with_masks(parts, tokenizer))
        places = tf.where(features[INPUT_WORD_IDS] == tokenizer.special.mask)
        found = tf.RaggedTensor.from_value_rowids(
            tf.cast(places[:, 1], tf.int32), places[:, 0], nrows=parts.nrows(), validate=False
        )
        most = tf.maximum(tf.reduce_max(tf.concat([[0], tf.cast(found.row_lengths(), tf.int32)], axis=0)), 1)
        positions = _padded(found, 0, width=most)
        features |= {
            MASKED_LM_POSITIONS: positions,
            MASKED_LM_WEIGHTS: _padded(tf.ones_like(found, tf.float32), 0.0, width=most),
            VOCABULARY: tf.constant(tokenizer.vocabulary),
        }
        if ANSWER in raw:
            pieces = tokenizer.tokenize(raw[ANSWER])
            first = pieces[:, :1].to_tensor(tokenizer.special.unknown, shape=[None, 1])
            single = (pieces.row_lengths()[:, tf.newaxis] == 1) & (first != tokenizer.special.unknown)
            features[MASKED_LM_IDS] = tf.broadcast_to(tf.where(single, first, UNKNOWN), tf.shape(positions))
        return features

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """The answers' ids int32 [B, P] and weights float32 [B, P]: 0 where there is no mask or no one piece."""
        ids = features[MASKED_LM_IDS]
        return tf.maximum(ids, 0), features[MASKED_LM_WEIGHTS] * tf.cast(ids >= 0, tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [B, P, V]. Raises ValueError where the encoder reads to the left only."""
        if encoder.config.causal:
            raise BertKerasError(
                "the encoder is causal: it reads what stands before a mask and not what follows; give one that reads both sides."
            )
        positions = keras.Input((None,), dtype=DTYPE, name=MASKED_LM_POSITIONS)
        inputs = encoder_inputs()
        head = MaskedLMHead(encoder, dtype=encoder.dtype_policy)
        logits = head(encoder(inputs)[SEQUENCE_OUTPUT], positions)
        return keras.Model({**inputs, MASKED_LM_POSITIONS: positions}, logits, name="fill_mask_model")

    def loss(self) -> keras.losses.Loss:
        """The mean over the weights of cross-entropy between the pieces."""
        return GlobalMean(cross_entropy)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [B, P, V] -> what is served of each mask, and the text "filled" string [B] with the best pieces.

        "mask_start_byte" int32 [B, M], where it stands in the text, -1 on what only fills up; "mask_tokens" string and
        "mask_scores" float32 [B, M, k], probabilities, b"" and 0 also for a mask that is cut off. With answers in raw, "rank"
        int32 [B] is the answer's place among all pieces, from 1; 0 where it does not count.
        """
        vocabulary, parts = features[VOCABULARY], _parts(raw[TEXT])
        logits = outputs[..., : tf.size(vocabulary)]  # an encoder may have more rows
        scores, ids = tf.math.top_k(tf.nn.softmax(logits), k=min(self.top_k, vocabulary.shape[0]))
        read = features[MASKED_LM_WEIGHTS][..., tf.newaxis] > 0
        starts = _mask_starts(parts)
        cut_off = [[0, 0], [0, tf.shape(starts)[1] - tf.shape(ids)[1]], [0, 0]]
        tokens = tf.pad(tf.where(read, tf.gather(vocabulary, ids), ""), cut_off)
        decoded = {
            START: starts,
            TOKENS: tokens,
            SCORES: tf.pad(tf.where(read, scores, 0.0), cut_off),
            FILLED: _filled(parts, tokens[..., 0]),
        }
        if MASKED_LM_IDS in features:
            labels, weights = self.labels(raw, features)
            answer = tf.gather(logits, labels[:, :1], axis=2, batch_dims=1)[:, 0]  # [B, 1]
            above = tf.reduce_sum(tf.cast(logits[:, 0] > answer, tf.int32), axis=1)
            decoded[RANK] = tf.where(weights[:, 0] > 0, above + 1, 0)
        return decoded

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {TEXT: tf.TensorSpec([None], tf.string, name=TEXT)}

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields how often the answer is the best piece and among the best 5, the mean of 1 / rank, and how many were skipped.

        Raises ValueError where no answer counts.
        """
        ranks = predictions[RANK][predictions[RANK] > 0]
        if not ranks.size:
            raise BertKerasError(
                f"none of the {len(predictions[RANK])} answers is one piece of the vocabulary with its mask within seq_length; "
                "give answers of one word, or a longer seq_length."
            )
        yield self.measure, float(np.mean(ranks == 1))
        yield f"top_{NEAR}", float(np.mean(ranks <= NEAR))
        yield "mean_reciprocal_rank", float(np.mean(1 / ranks))
        yield "skipped", float(len(predictions[RANK]) - len(ranks))

    def record(self, decoded: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """{"filled": text, "masks": [{"start_byte": ..., "tokens": [...], "scores": [...]}, ...]}."""
        masks = [
            {
                "start_byte": int(start),
                "tokens": plain(tokens[tokens != b""]),
                "scores": plain(scores[tokens != b""]),
            }
            for start, tokens, scores in zip(decoded[START], decoded[TOKENS], decoded[SCORES], strict=True)
            if start >= 0
        ]
        return {FILLED: plain(decoded[FILLED]), "masks": masks}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The text, and each mask's pieces with their probabilities."""
        listed = (
            ", ".join(
                f"{token} {score:.3f}" for token, score in zip(mask["tokens"], mask["scores"], strict=True)
            )
            for mask in record["masks"]
        )
        return {TEXT: example[TEXT], "masks": "; ".join(listed)}

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """The errors that the model was surest of."""
        sure = predictions[SCORES][:, 0, 0]
        wrong = np.flatnonzero(predictions[RANK] > 1)
        rows: list[tuple[Any, ...]] = [
            (
                plain(raw[TEXT][i]),
                plain(predictions[TOKENS][i, 0, 0]),
                plain(raw[ANSWER][i]),
                int(predictions[RANK][i]),
                float(sure[i]),
            )
            for i in wrong[np.argsort(-sure[wrong], kind="stable")][:ERRORS_SHOWN]
        ]
        if rows:
            title = f"the most confident of {len(wrong)} errors in {len(sure)} examples"
            yield Table(title, (TEXT, "best", ANSWER, "rank of the answer", "probability of the best"), rows)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "top_k": self.top_k}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "FillMask":
        """The task that `to_json` was called on, with `source` as in FillMask."""
        kept = typed(kept, {"top_k": whole(1, MAX_OPTION)}, where="task", optional=cls.options, others=True)
        return cls(source, **kept)


def _parts(text: tf.Tensor) -> tf.RaggedTensor:
    """What stands before, between and behind the masks: string [B] -> ragged string [B, (M + 1)]."""
    return tf.strings.split(text, MASK)


def _most_masks(parts: tf.RaggedTensor) -> tf.Tensor:
    """M, the masks of the text that has most of them; at least 1."""
    return tf.maximum(tf.reduce_max(tf.concat([[0], parts.row_lengths() - 1], axis=0)), 1)


def _padded(rows: tf.RaggedTensor, filling: Any, *, width: tf.Tensor) -> tf.Tensor:
    """Ragged [B, (N)] -> [B, width]."""
    return tf.ensure_shape(rows.to_tensor(filling, shape=tf.stack([-1, width])), [None, None])


def _with_masks(parts: tf.RaggedTensor, tokenizer: Tokenizer) -> tf.RaggedTensor:
    """The pieces of each text, the mask's id between its parts: ragged string [B, (M + 1)] -> ragged int32 [B, (T)]."""
    pieces = tokenizer.tokenize(parts.values)
    followed = tf.concat([pieces, tf.fill([pieces.nrows(), 1], tokenizer.special.mask)], axis=1)
    rows = tf.gather(followed.row_splits, parts.row_splits)
    masked = tf.RaggedTensor.from_row_splits(followed.values, rows, validate=False)
    return masked[:, :-1]  # none behind the last part


def _mask_starts(parts: tf.RaggedTensor) -> tf.Tensor:
    """The byte where each mask starts: int32 [B, M], -1 on what only fills up."""
    ends = tf.cumsum(tf.strings.length(parts.values) + len(MASK))  # of the masks, as if all texts were one
    row_starts = tf.gather(tf.concat([[0], ends], axis=0), parts.row_starts())
    starts = parts.with_values(ends - len(MASK) - tf.gather(row_starts, parts.value_rowids()))
    return _padded(starts[:, :-1], -1, width=_most_masks(parts))


def _filled(parts: tf.RaggedTensor, best: tf.Tensor) -> tf.Tensor:
    """The texts with a piece in place of each mask, which stays where there is none. best: string [B, M] -> string [B]."""
    most = _most_masks(parts)
    exists = tf.sequence_mask(parts.row_lengths() - 1, most)
    goes_on = tf.strings.regex_full_match(best, f"{CONTINUATION}.+")
    pieces = tf.strings.regex_replace(best, f"^(?:{CONTINUATION}|{SPACE})(.)", r"\1")
    pieces = tf.where(exists, tf.where(best == "", MASK, pieces), "")
    texts = _padded(parts, "", width=most + 1)
    before = tf.where(goes_on, tf.strings.regex_replace(texts[:, :-1], r"\s+$", ""), texts[:, :-1])
    # Behind the last mask of a text, and behind every mask that only fills up, stands nothing more.
    return tf.strings.reduce_join(
        tf.concat([tf.strings.join([before, pieces]), texts[:, -1:]], axis=1), axis=1
    )


def _rows(path: Path, *, labelled: bool) -> Iterator[tuple[str, str]]:
    """Text and answer of each example. Raises ValueError naming the line."""
    if path.suffix not in READERS:
        raise BertKerasError(f"{path} is none of {', '.join(READERS)}; give a file of these.")
    lines = ((number, line) for number, line in numbered_lines(path) if line.strip())
    for number, row in READERS[path.suffix](lines, path):
        text, answer = row.get(TEXT), row.get(ANSWER, "" if not labelled else None)
        if not isinstance(text, str) or not isinstance(answer, str):
            raise BertKerasError(
                f"{path}, line {number}: no {TEXT} or no {ANSWER}; wanted are both, as strings."
            )
        check_text(f"{path}, line {number}", text, answer)
        if (masks := text.count(MASK)) != 1:
            raise BertKerasError(
                f"{path}, line {number}: {masks} {MASK} in the text; wanted is one, for one answer."
            )
        yield text, answer


def _from_jsonl(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        row = parse_json(line, source=f"{path}, line {number}")
        yield number, row if isinstance(row, dict) else {}


def _from_tsv(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first line names the columns; quotes mean nothing."""
    _, header = next(lines, (1, ""))
    for number, line in lines:
        yield number, dict(zip(header.split("\t"), line.split("\t"), strict=False))


READERS: dict[str, Callable[[Iterator[tuple[int, str]], Path], Iterator[tuple[int, dict[str, Any]]]]] = {
    ".jsonl": _from_jsonl,
    ".tsv": _from_tsv,
}
