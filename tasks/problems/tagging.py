"""Named entities: a tag for every word, and the entities of a text.

Tags are read in IOB1, IOB2 or BIOES; the model learns IOB2. The first token of a word has the word's label, in the window that
shows it with the most context (Devlin et al. 2019, sec. 5.3: no CRF, the maximal document context).
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX, SEQUENCE_OUTPUT, WORD_INDEX
from bert_keras.fields import names_of
from bert_keras.io.json_files import TEXT as WORD
from bert_keras.io.json_files import (
    list_of,
    one_of,
    short,
    typed,
    whole,
)
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import TokenHead
from bert_keras.tasks import metrics
from bert_keras.tasks.data.columns import values_of
from bert_keras.tasks.data.conll import (
    DOCSTART,
    Corpus,
    Sentence,
    check_tags,
    corpus_of,
    detect_scheme,
    misfits,
)
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.data.tag_schemes import (
    OUTSIDE,
    SCHEMES,
    convert,
    entities_of,
)
from bert_keras.tasks.options import MAX_OPTION, TAGGING_DEFAULTS, TaggingOptions
from bert_keras.tasks.problems.tag_decoding import (
    Letters,
    decode_entities,
    decode_words,
    joined_tags,
)
from bert_keras.tasks.report_tables import ERRORS_SHOWN, Table, plain
from bert_keras.tasks.task import (
    Arrays,
    Features,
    Raw,
    Task,
)
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, TOKENS, find_words, split_words, take_text

TAGS = "tags"


class Conll(Task):
    """Named entity recognition on files in CoNLL's format.

    labels: IOB2 tags, "O" first
    scheme: a key of SCHEMES, the scheme of the files
    context: "document" reads a sentence within its document, "sentence" reads it alone
    doc_stride: tokens from the start of one window to the start of the next
    source: a folder of FILES, one file, or a file for each split; None for TensorFlow Datasets

    Raises BertKerasError for an unknown context.
    """

    kind = "conll"
    names = ("conll2003",)
    options = names_of(TaggingOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure = "f1"
    windowed = True
    lists = {"entity": "entity_start_byte"}

    def __init__(
        self,
        labels: Sequence[str],
        *,
        scheme: str,
        context: str = TaggingOptions.context,
        doc_stride: int = TaggingOptions.doc_stride,
        source: Source | None = None,
        name: str = "conll2003",
    ) -> None:
        TaggingOptions(context=context, doc_stride=doc_stride)
        self.name, self.source = name, source
        self.label_names, self.scheme = tuple(labels), scheme
        self.context, self.doc_stride = context, doc_stride
        self.defaults = TAGGING_DEFAULTS[context]

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "Conll":
        """The task with the scheme and the tags of the training file.

        Raises BertKerasError for a file in another format, with its line, and for a file without entities.
        """
        corpus = corpus_of(source, "train")
        sentences = [sentence for document in corpus.documents for sentence in document]
        scheme = detect_scheme(sentences)
        check_tags(sentences, scheme)
        labels = {tag for sentence in sentences for tag in convert(sentence.tags, "IOB2")} - {OUTSIDE}
        if not labels:
            raise BertKerasError(
                f"{_file_of(sentences)} has no entities: every tag is O; give a file with entities."
            )
        made = cls([OUTSIDE, *sorted(labels)], scheme=scheme, source=source, name=name, **options)
        made._units(corpus)  # refuses unmarked documents before any training
        return made

    def _units(self, corpus: Corpus) -> list[list[Sentence]]:
        """The documents or single sentences that are examples. Raises BertKerasError for unmarked documents."""
        if self.context == "sentence":
            return [[sentence] for document in corpus.documents for sentence in document]
        if not corpus.marked:
            raise BertKerasError(
                f"{_file_of(corpus.documents[0])} has no {DOCSTART} lines to mark documents; give --context sentence to train "
                "on sentences, or a file with these lines to measure a run on documents."
            )
        return corpus.documents

    def examples(self, split: str) -> tf.data.Dataset:
        """{"tokens": string [], "tags": string []}: words and their IOB2 tags, joined by spaces; newlines join sentences.

        Raises BertKerasError for an unreadable file, with its line, and MissingFileError for a missing one. Warns about tags
        that do not fit the scheme, and about tags that are not in the training file.
        """
        units = self._units(corpus_of(self.source, split))
        sentences = [sentence for unit in units for sentence in unit]
        check_tags(sentences, self.scheme)
        if odd := list(misfits(sentences, self.scheme)):
            warnings.warn(
                f"{odd[0]}: the first of {len(odd)} tags that do not fit {self.scheme}, the scheme of the training file; "
                "entities are read as conlleval reads them",
                stacklevel=2,
            )
        tags = [[convert(sentence.tags, "IOB2") for sentence in unit] for unit in units]
        unknown = [tag for unit in tags for row in unit for tag in row if tag not in self.label_names]
        if unknown:
            warnings.warn(
                f"{_file_of(sentences)}: {len(unknown)} words have tags that are not in the training file "
                f"({', '.join(sorted(set(unknown)))}); they cannot be predicted",
                stacklevel=2,
            )
        columns = {TOKENS: [[sentence.words for sentence in unit] for unit in units], TAGS: tags}
        return tf.data.Dataset.from_tensor_slices(
            {
                name: ["\n".join(" ".join(row) for row in unit) for unit in column]
                for name, column in columns.items()
            }
        )

    def given(self, x: Any) -> dict[str, np.ndarray]:
        """The column "tokens" for lists of words, or "text" for strings, which the model splits into words."""
        rows = None if hasattr(x, "columns") or isinstance(x, Mapping) else values_of(x)
        if not rows or isinstance(rows[0], str | bytes):
            return super().given(x)
        return {TOKENS: _joined(rows, "word")}

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tags of each text in IOB2, a list for each list of words."""
        if TOKENS not in columns:
            raise BertKerasError("tags need words: give each text as a list of words.")
        tags = values_of(y)
        for row, (words, given) in enumerate(zip(columns[TOKENS], tags, strict=False)):
            if (count := len(words.split(b" "))) != len(values_of(given)):
                raise BertKerasError(
                    f"row {row}: {count} words and {len(values_of(given))} tags; give one tag for each word."
                )
            if unknown := [tag for tag in values_of(given) if tag not in self.label_names]:
                raise BertKerasError(
                    f"row {row}: unknown tag {unknown[0]!r}; the tags are {', '.join(self.label_names)} (IOB2)."
                )
        return {TAGS: _joined(tags, "tag")}

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Windows of the text with `word_index`: raw [B] -> [W, S]."""
        starts, _ = find_words(raw)
        return preprocess.words(take_text(raw), starts, doc_stride=self.doc_stride)

    def labels_of(self, raw: Raw) -> tf.RaggedTensor:
        """The label ids of the words: ragged int32 [B, (N)], -1 for a tag that `label_names` lacks."""
        tags = split_words(raw[TAGS])
        equal = tf.equal(tags.values[:, tf.newaxis], tf.constant(self.label_names))
        ids = tf.argmax(equal, axis=1, output_type=tf.int32)
        return tags.with_values(tf.where(tf.reduce_any(equal, axis=1), ids, -1))

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [W, S], and weights float32 [W, S], which are 1 at the first token of each word in one window."""
        words = self.labels_of(raw)
        index = tf.cast(features[WORD_INDEX], tf.int64)
        row_starts = tf.gather(words.row_starts(), features[EXAMPLE_INDEX])[:, tf.newaxis]
        labels = tf.gather(words.values, tf.where(index >= 0, row_starts + index, 0))
        return tf.maximum(labels, 0), tf.cast((index >= 0) & (labels >= 0), tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [W, S, C]."""
        inputs = encoder_inputs()
        head = TokenHead(len(self.label_names), config=encoder.config, dtype=encoder.dtype_policy)
        return keras.Model(inputs, head(encoder(inputs)[SEQUENCE_OUTPUT]), name="token_model")

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits float32 [W, S, C] -> the best tag of each word, and the entities of these tags.

        "tags": string [B], joined like the words; a word without a token is O
        "entity_text", "entity_label": string [B, E], padded with ""
        "entity_start_byte", "entity_end_byte": int32 [B, E], bytes of the text, the end exclusive; padded with -1
        "entity_score": float32 [B, E], the mean probability of its words; padded with 0

        E is the largest number of entities in an example. As in conlleval, an "I-" that continues no entity starts one.
        """
        letters = Letters(take_text(raw))
        words = decode_words(outputs, features, raw, letters)
        entities = decode_entities(words, self.label_names, letters)
        return {TAGS: joined_tags(words, self.label_names)} | entities

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields F1, precision and recall of entities, and the accuracy of tags."""
        gold, predicted = _sentences(raw[TAGS]), _sentences(predictions[TAGS])
        scores = metrics.entity_scores(gold, predicted)
        yield "f1", scores.f1
        yield "precision", scores.precision
        yield "recall", scores.recall
        yield "accuracy", metrics.accuracy(np.concatenate(gold), np.concatenate(predicted))

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The entities with text, label, bytes and score, and the tags of the words."""
        names = {
            "text": "entity_text",
            "label": "entity_label",
            "start": "entity_start_byte",
            "end": "entity_end_byte",
            "score": "entity_score",
        }
        columns = [plain(decoded[name]) for name in names.values()]
        entities = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return {
            "entities": [entity for entity in entities if entity["start"] >= 0],
            TAGS: plain(decoded[TAGS]),
        }

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The text with its entities marked: "[Ada Lovelace PER] met ..."."""
        text = example[TEXT].encode()
        for entity in reversed(record["entities"]):
            start, end = entity["start"], entity["end"]
            marked = b"[%s %s]" % (text[start:end], entity["label"].encode())
            text = text[:start] + marked + text[end:]
        return {TEXT: text.decode("utf-8", "replace")}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """F1 by type, and the most confident wrong entities."""
        gold, predicted = _sentences(raw[TAGS]), _sentences(predictions[TAGS])
        by_type = metrics.entity_scores_by_type(gold, predicted)
        columns = ("type", "f1", "precision", "recall", "entities")
        rows = [(kind, s.f1, s.precision, s.recall, s.entities) for kind, s in by_type.items()]
        yield Table("entities by type", columns, rows)
        errors = sorted(self._errors(predictions, raw), key=lambda error: -error[0])[:ERRORS_SHOWN]
        yield Table("the most confident errors", ("score", "entity", "predicted", "tags"), errors)

    def _errors(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[float, str, str, str]]:
        """Yields each wrong entity: its score, text, type, and the gold tags of its words."""
        for i, (gold, predicted) in enumerate(zip(raw[TAGS], predictions[TAGS], strict=True)):
            column = 0  # decoded entities have the order of the words
            for truth, guess in zip(_sentences([gold]), _sentences([predicted]), strict=True):
                right = entities_of(truth)
                for entity in entities_of(guess):
                    if entity not in right:
                        score = float(predictions["entity_score"][i][column])
                        text = plain(predictions["entity_text"][i][column])
                        yield score, text, entity.type, " ".join(truth[entity.first : entity.last + 1])
                    column += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "labels": list(self.label_names),
            "scheme": self.scheme,
            "context": self.context,
            "doc_stride": self.doc_stride,
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Conll":
        kinds = {
            "name": one_of(cls.names),
            "labels": list_of(WORD),
            "scheme": one_of(SCHEMES),
            "context": one_of(tuple(TAGGING_DEFAULTS)),
            "doc_stride": whole(1, MAX_OPTION),
        }
        kept = typed(kept, kinds, where="task")
        labels = [OUTSIDE, *(label for label in kept["labels"] if re.fullmatch("[BI]-.+", label, re.DOTALL))]
        if list(kept["labels"]) != labels or len({*labels}) < len(labels):
            raise BertKerasError(
                f"task: labels is {short(kept['labels'])}; expected {OUTSIDE!r} first, then B-TYPE and I-TYPE, each once."
            )
        return cls(source=source, **kept)


def _joined(rows: Sequence[Any], kind: str) -> np.ndarray:
    """Lists of words or tags as bytes [N], separated by spaces. Raises BertKerasError, with the row, for one that is no word."""
    joined = []
    for row, words in enumerate(rows):
        words = [word.decode() if isinstance(word, bytes) else word for word in values_of(words)]
        if not words:
            raise BertKerasError(f"row {row} has no {kind}; give at least one.")
        for word in words:
            if not isinstance(word, str) or len(word.split()) != 1 or word.split()[0] != word:
                raise BertKerasError(
                    f"row {row}: {word!r} is not one {kind}; give a string without white space."
                )
        joined.append(" ".join(words).encode())
    return np.array(joined, object)


def _file_of(sentences: Sequence[Sentence]) -> str:
    return sentences[0].source.rpartition(",")[0]


def _sentences(tags: Iterable[bytes]) -> list[list[str]]:
    return [sentence.split(" ") for text in tags for sentence in text.decode().split("\n")]
