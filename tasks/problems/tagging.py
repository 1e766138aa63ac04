"""Named entities: a tag for every word, and the entities of a text.

Tags are read in any of SCHEMES, or made of entities as spans of characters; the model learns IOB2. The first token of a word has
the word's label, in the window that shows it with the most context (Devlin et al. 2019, sec. 5.3: no CRF, the maximal document
context). With `crf`, the tags of a sentence are chosen together: in training and in decoding, its words are joined from the
windows.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.checkpoints.labels import own_labels
from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX, SEQUENCE_OUTPUT, WORD_INDEX
from bert_keras.fields import field_types, names_of
from bert_keras.io.json_files import TEXT as WORD
from bert_keras.io.json_files import checked_fields, list_of, one_of, shortened
from bert_keras.io.paths import to_path
from bert_keras.model.crf import CRF
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import TokenHead
from bert_keras.optimization.losses import GlobalMean, name_of
from bert_keras.tasks import metrics
from bert_keras.tasks.batches import count
from bert_keras.tasks.data import conll, spans
from bert_keras.tasks.data.columns import list_values
from bert_keras.tasks.data.conll import DOCSTART, OUTSIDE, SCHEMES, Corpus, Sentence
from bert_keras.tasks.data.sources import Source, split_file
from bert_keras.tasks.options import TAGGING_DEFAULTS, TaggingOptions
from bert_keras.tasks.problems import entity_errors
from bert_keras.tasks.problems.class_metrics import keras_metrics
from bert_keras.tasks.problems.entity_errors import TAGS, as_entities, mark_entities, split_sentences
from bert_keras.tasks.problems.tag_decoding import (
    TOKEN_WORDS,
    Letters,
    decode_entities,
    decode_words,
    find_words_of_tokens,
)
from bert_keras.tasks.problems.tag_sentences import label_sentences, sentence_losses
from bert_keras.tasks.problems.tagged_texts import join_words, read_tagged, tag_texts
from bert_keras.tasks.report import Arrays, Judged, Table, plain
from bert_keras.tasks.task import Features, Raw, Task
from bert_keras.text.characters import to_characters
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, TOKENS, find_words, split_words, take_text

# Where a word of raw text starts: by rules of white space and punctuation, as in CoNLL's files; or at each token that continues
# no other, as transformers' pipelines have it.
WORDS_OF_TEXT, WORDS_OF_TOKENS = "text", "tokens"
_ENTITY = ("text", "label", "start", "end", "start_byte", "end_byte", "score")
ENTITY = tuple(f"entity_{name}" for name in _ENTITY)
# Of a CRF on a fine-tuned encoder, at whose rates, such as 5e-5, a transition would hardly move; a BiLSTM is trained at 1e-3.
CRF_SCALE = 20.0
_BY_TYPE = (
    "Precision is the fraction of the predicted entities that are right, recall the fraction of the labelled entities that are "
    "found, and F1 their harmonic mean."
)
SHOWN = 20  # words of the first sentence that are shown before a training


class Tagging(Task):
    """Named entity recognition on files in CoNLL's format, or on texts with entities as spans of characters.

    labels: IOB2 tags, "O" first; or the tags of a checkpoint as they are
    scheme: a key of SCHEMES, the scheme of the files
    words: the words of raw text, WORDS_OF_TEXT or WORDS_OF_TOKENS
    context: "document" reads a sentence within its document, "sentence" reads it alone
    doc_stride: tokens from the start of one window to the start of the next
    word_column, tag_column: those of the files, as `conll.read_corpus` takes them
    crf, iob_constraints: choose the tags of a sentence together, as TaggingOptions says
    source: a folder of FILES, one file, or a file for each split; None for TensorFlow Datasets

    Raises BertKerasError for an unknown context.
    """

    kind = "tagging"
    names = ("conll2003",)
    head = "classifier"
    architectures = ("ForTokenClassification",)
    options = names_of(TaggingOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure, measures = "f1", ("f1", "precision", "recall", "accuracy")
    windowed = True
    lists = {"entity": "entity_start_byte"}
    optional = ("word_column", "tag_column")
    _about = ""
    kinds = {
        "scheme": one_of(SCHEMES),
        "words": one_of((WORDS_OF_TEXT, WORDS_OF_TOKENS)),
        **field_types(TaggingOptions),
    }

    def __init__(
        self,
        labels: Sequence[str],
        *,
        scheme: str,
        context: str = TaggingOptions.context,
        doc_stride: int = TaggingOptions.doc_stride,
        word_column: str | None = None,
        tag_column: str | None = None,
        crf: bool = TaggingOptions.crf,
        iob_constraints: bool = TaggingOptions.iob_constraints,
        words: str = WORDS_OF_TEXT,
        source: Source | None = None,
        name: str = "conll2003",
    ) -> None:
        chosen: dict[str, Any] = {"crf": crf, "iob_constraints": iob_constraints, "context": context}
        TaggingOptions(doc_stride=doc_stride, word_column=word_column, tag_column=tag_column, **chosen)
        if blank := [label for label in labels if not conll.is_word(label)]:
            raise BertKerasError(
                f"the label {blank[0]!r} has a blank, which separates tags; write {'_'.join(blank[0].split())!r}."
            )
        self.name, self.source = name, source
        self.label_names, self.scheme, self.words = tuple(labels), scheme, words
        self.context, self.doc_stride = context, doc_stride
        self.word_column, self.tag_column = word_column, tag_column
        self.crf, self.iob_constraints = crf, iob_constraints
        self.joins_windows, self.other_layers = crf, ("crf",) if crf else ()
        self.defaults = TAGGING_DEFAULTS[context]

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> "Tagging":
        """The task with the scheme and the tags of the training file.

        Raises BertKerasError for a file in another format, with its line, and for a file without entities.
        """
        unread = cls([OUTSIDE], scheme="IOB2", source=source, name=name, **options)
        path, scheme = unread._span_file("train"), unread.scheme
        if path is not None:
            texts, rows = read_tagged(path)
            about = f"the first text: {shortened(texts[0])}, tags: {' '.join(rows[0][:SHOWN])}"
        else:
            corpus = unread._corpus("train")
            sentences = [sentence for document in corpus.documents for sentence in document]
            path, scheme = Path(_get_file(sentences)), conll.detect_scheme(sentences)
            conll.check_tags(sentences, scheme)
            unread._units(corpus)  # refuses unmarked documents before any training
            rows = [conll.convert_tags(sentence.tags, "IOB2") for sentence in sentences]
            words, tags = (" ".join(part[:SHOWN]) for part in sentences[0][:2])
            about = f"{scheme}; the first sentence: {words}; its tags: {tags}"
        labels = {tag for tags in rows for tag in tags} - {OUTSIDE}
        if not labels:
            raise BertKerasError(f"{path} has no entities: every tag is O; give a file with entities.")
        made = cls([OUTSIDE, *sorted(labels)], scheme=scheme, source=source, name=name, **options)
        made._about = about
        return made

    def about_data(self) -> str:
        return self._about

    def _span_file(self, split: str) -> Path | None:
        """The file of a split if it has entities as spans, else None."""
        path = None if self.source is None else split_file(self.source, split, conll.FILES)
        return path if path is not None and spans.holds_spans(path) else None

    def _corpus(self, split: str) -> Corpus:
        return conll.load_corpus(self.source, split, word=self.word_column, tag=self.tag_column)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, source: Source | None = None, **options: Any
    ) -> "Tagging":
        """The tags of a checkpoint as they are, for words of its tokens."""
        labels = own_labels(checkpoint, cls.head)
        return cls(labels, scheme="IOB2", words=WORDS_OF_TOKENS, source=source, **options)

    def _units(self, corpus: Corpus) -> list[list[Sentence]]:
        """The documents or single sentences that are examples. Raises BertKerasError for unmarked documents."""
        if self.context == "sentence":
            return [[sentence] for document in corpus.documents for sentence in document]
        if not corpus.marked:
            raise BertKerasError(
                f"{_get_file(corpus.documents[0])} has no {DOCSTART} lines to mark documents; give --context sentence to train "
                "on sentences, or a file with these lines to measure a run on documents."
            )
        return corpus.documents

    def examples(self, split: str) -> tf.data.Dataset:
        """{"tokens": string [], "tags": string []}: words and their IOB2 tags, joined by spaces; newlines join sentences.

        Texts with spans have "text", the text as it stands, in place of "tokens".
        Warns about tags that do not fit the scheme, and about tags that are not in the training file.
        """
        if (path := self._span_file(split)) is not None:
            texts, rows = read_tagged(path)
            self._warn_of_unknown(rows, path)
            return tf.data.Dataset.from_tensor_slices({TEXT: texts, TAGS: [*map(" ".join, rows)]})
        units = self._units(self._corpus(split))
        sentences = [sentence for unit in units for sentence in unit]
        conll.check_tags(sentences, self.scheme)
        if odd := list(conll.find_misfits(sentences, self.scheme)):
            warnings.warn(
                f"{odd[0]}: the first of {len(odd)} tags that do not fit {self.scheme}, the scheme of the training file; "
                "entities are read as conlleval reads them",
                stacklevel=2,
            )
        tags = [[conll.convert_tags(sentence.tags, "IOB2") for sentence in unit] for unit in units]
        self._warn_of_unknown([row for unit in tags for row in unit], _get_file(sentences))
        words = [[sentence.words for sentence in unit] for unit in units]

        def join(column: list[list[list[str]]]) -> list[str]:
            return ["\n".join(map(" ".join, unit)) for unit in column]

        return tf.data.Dataset.from_tensor_slices({TOKENS: join(words), TAGS: join(tags)})

    def _warn_of_unknown(self, rows: Sequence[Sequence[str]], where: object) -> None:
        if unknown := [tag for row in rows for tag in row if tag not in self.label_names]:
            warnings.warn(
                f"{where}: {len(unknown)} words have tags that are not in the training file "
                f"({', '.join(sorted(set(unknown)))}); they cannot be predicted",
                stacklevel=3,
            )

    def given(self, x: Any) -> dict[str, np.ndarray]:
        """The column "tokens" for lists of words, or "text" for strings, which the model splits into words."""
        rows = None if hasattr(x, "columns") or isinstance(x, Mapping) else list_values(x)
        if not rows or isinstance(rows[0], str | bytes):
            return super().given(x)
        return {TOKENS: join_words(rows, "word")}

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tags of each text in IOB2: from a list of tags in any of SCHEMES for each list of words, or from spans for a text.

        Spans are lists (start, end, label) in characters of the text, or dicts of these, as `spans.checked_spans` takes them.
        """
        rows = list_values(y)
        if TOKENS not in columns:
            return {TAGS: self._tag_texts(columns[TEXT], rows)}
        tags = []
        for row, (words, given) in enumerate(zip(columns[TOKENS], rows, strict=False)):
            given = [tag.decode() if isinstance(tag, bytes) else tag for tag in list_values(given)]
            if (count := len(words.split(b" "))) != len(given):
                raise BertKerasError(
                    f"row {row}: {count} words and {len(given)} tags; give one tag for each word."
                )
            wrong = [tag for tag in given if not isinstance(tag, str) or not conll.is_tag(tag)]
            tags.append([] if wrong else conll.convert_tags(given, "IOB2"))
            if unknown := wrong or [tag for tag in tags[-1] if tag not in self.label_names]:
                raise BertKerasError(
                    f"row {row}: unknown tag {unknown[0]!r}; the tags are {', '.join(self.label_names)} (IOB2)."
                )
        return {TAGS: join_words(tags + rows[len(tags) :], "tag")}

    def _tag_texts(self, texts: np.ndarray, rows: Sequence[Any]) -> np.ndarray:
        """The tags of texts by their spans. Raises BertKerasError, with the row, for spans that do not fit the text."""
        if len(rows) != len(texts):
            raise BertKerasError(
                f"there are {len(texts)} texts and {len(rows)} lists of entities; give one for each text."
            )
        wanted = (
            'give a list of (start, end, "label") for each text, or each text as a list of words beside tags'
        )
        strings, found = [text.decode("utf-8", "replace") for text in texts], []
        for row, (text, given) in enumerate(zip(strings, rows, strict=True)):
            if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
                raise BertKerasError(f"row {row}: the entities are {shortened(given)}; {wanted}.")
            given = list_values(given)
            if given and all(isinstance(one, str | bytes) for one in given):
                raise BertKerasError(f"row {row}: tags need words, and the text is a string; {wanted}.")
            found.append(spans.checked_spans(given, text, f"row {row}"))
            types = {label[2:] for label in self.label_names if label != OUTSIDE}
            if unknown := [span.label for span in found[-1] if span.label not in types]:
                raise BertKerasError(
                    f"row {row}: unknown entity {unknown[0]!r}; the entities are {', '.join(sorted(types))}."
                )
        tags = tag_texts(strings, found, [f"row {row}" for row in range(len(rows))])
        return np.array([" ".join(row).encode() for row in tags], object)

    def features(self, preprocess: Preprocessor, raw: Raw) -> Features:
        """Windows of the text with `word_index`: raw [B] -> [W, S]; words of tokens with TOKEN_WORDS."""
        text = take_text(raw)
        if self.words == WORDS_OF_TEXT or TOKENS in raw:
            return preprocess.words(text, find_words(raw)[0], doc_stride=self.doc_stride)
        spans = find_words_of_tokens(text, preprocess.tokenizer)
        features = preprocess.words(text, spans[0], doc_stride=self.doc_stride)
        padded = (tf.ensure_shape(span.to_tensor(-1), [None, None]) for span in spans)
        return features | dict(zip(TOKEN_WORDS, padded, strict=True))

    def look_up_labels(self, raw: Raw) -> tf.RaggedTensor:
        """The label ids of the words: ragged int32 [B, (N)], -1 for a tag that `label_names` lacks."""
        tags = split_words(raw[TAGS])
        equal = tf.equal(tags.values[:, tf.newaxis], tf.constant(self.label_names))
        ids = tf.argmax(equal, axis=1, output_type=tf.int32)
        return tags.with_values(tf.where(tf.reduce_any(equal, axis=1), ids, -1))

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [W, S], and weights float32 [W, S], which are 1 at the first token of each word in one window.

        For a CRF, those of `label_sentences`.
        """
        words = self.look_up_labels(raw)
        if self.crf:
            return label_sentences(words, raw, features, count=len(self.label_names))
        index = tf.cast(features[WORD_INDEX], tf.int64)
        row_starts = tf.gather(words.row_starts(), features[EXAMPLE_INDEX])[:, tf.newaxis]
        labels = tf.gather(words.values, tf.where(index >= 0, row_starts + index, 0))
        return tf.maximum(labels, 0), tf.cast((index >= 0) & (labels >= 0), tf.float32)

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> logits float32 [W, S, C], or the potentials of a CRF, [W, S + 2 + C, C]."""
        inputs, count = encoder_inputs(config=encoder.config), len(self.label_names)
        head = TokenHead(count, config=encoder.config, dtype=encoder.dtype_policy)
        outputs = head(encoder(inputs)[SEQUENCE_OUTPUT])
        if self.crf:
            scale = CRF_SCALE if isinstance(encoder, BertEncoder) else 1.0
            settings: dict[str, Any] = {"iob": self.iob_constraints, "dtype": encoder.dtype_policy}
            outputs = CRF(self.label_names, scale=scale, **settings)(outputs)
        return keras.Model(inputs, outputs, name="token_model")

    def loss(self) -> keras.losses.Loss:
        """The mean cross-entropy of words, or, for a CRF, the mean negative log-likelihood of sentences."""
        return GlobalMean(sentence_losses) if self.crf else super().loss()

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits float32 [W, S, C], or the potentials of a CRF -> the best tags of the words, and the entities of these tags.

        "tags": string [B], joined like the words; a word without a token is O
        "entity_text", "entity_label": string [B, E], padded with ""
        "entity_start", "entity_end": int32 [B, E], characters of the text, as Python slices it; padded with -1
        "entity_start_byte", "entity_end_byte": int32 [B, E], bytes of the text, the end exclusive; padded with -1
        "entity_score": float32 [B, E], the mean probability of its words' tags, of a CRF over all paths; padded with 0

        E is the largest number of entities in an example. As in conlleval, an "I-" that continues no entity starts one.
        """
        letters = Letters(take_text(raw))
        words = decode_words(outputs, features, raw, crf=self.crf)
        between = tf.where(words.first_in_row, "", tf.where(words.first_in_sentence, "\n", " "))
        names = tf.gather(tf.constant(self.label_names), words.labels)
        tags = between + tf.where(words.scores > 0, names, OUTSIDE)
        rows, count = words.starts.value_rowids(), words.starts.nrows()
        joined = tf.strings.unsorted_segment_join(tags, rows, num_segments=count)
        found = {TAGS: joined} | decode_entities(words, self.label_names, letters)
        for name in ("entity_start", "entity_end"):
            found[name] = to_characters(take_text(raw), found[f"{name}_byte"])
        return found

    def decode_features(self, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Logits [W, S, C]; of a CRF, "logits" and "transitions" [W, 2 + C, C]: the start, the end, and a row for each tag."""
        if not self.crf:
            return super().decode_features(outputs)
        rows = 2 + len(self.label_names)
        return {"logits": outputs[:, :-rows], "transitions": outputs[:, -rows:]}

    def keras_metrics(self, given: Any) -> tuple[Any, tuple[str, ...]]:
        """Keras' metrics of ids, and the accuracy of tags; `evaluate` gives the measures of entities.

        Raises BertKerasError for a metric beside a CRF, whose outputs are no logits.
        """
        own = self.measures if self.crf else self.measures[:-1]
        others = [one for one in keras.tree.flatten(given) if one not in own]
        if self.crf and others:
            raise BertKerasError(
                f"metric {name_of(others[0])}: a CRF chooses the tags of a sentence together, and a metric of Keras reads them "
                f"one by one; leave it out: evaluate gives {', '.join(self.measures)}."
            )
        return keras_metrics(others, self.label_names, "tags")

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields F1, precision and recall of entities, and the accuracy of tags."""
        yield from self.resampled(predictions, raw)(np.arange(len(raw[TAGS]))).items()

    def resampled(self, predictions: Arrays, raw: Arrays) -> Callable[[np.ndarray], dict[str, float]]:
        """It counts the entities and the tags of each text once."""
        texts = ([split_sentences([text]) for text in side] for side in (raw[TAGS], predictions[TAGS]))
        counts = np.array(
            [
                (*metrics.count_entities(*map(as_entities, both)), *metrics.count_tags(*both))
                for both in zip(*texts, strict=True)
            ]
        )
        return lambda rows: metrics.scores_of_counts(counts[rows].sum(axis=0))

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The entities with text, label, characters, bytes and score, and the tags of the words."""
        columns = (plain(decoded[name]) for name in ENTITY)
        entities = [dict(zip(_ENTITY, values, strict=True)) for values in zip(*columns, strict=True)]
        found = [entity for entity in entities if entity["start"] >= 0]
        return {"entities": found, TAGS: plain(decoded[TAGS])}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """The text with its entities marked: "[Ada Lovelace PER] met ..."."""
        marks = [(entity["start"], entity["end"], entity["label"]) for entity in record["entities"]]
        return {TEXT: mark_entities(example[TEXT], marks)}

    def report(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """F1 by type, and the most confident wrong entities."""
        gold, predicted = split_sentences(raw[TAGS]), split_sentences(predictions[TAGS])
        by_type = metrics.entity_scores_by_type(*map(as_entities, (gold, predicted)))
        columns = ("type", "f1", "precision", "recall", "entities")
        rows = [(kind, s.f1, s.precision, s.recall, s.entities) for kind, s in by_type.items()]
        yield Table("entities by type", columns, rows, "dots", _BY_TYPE)
        yield entity_errors.list_confident_errors(predictions, raw)

    def views(self, predictions: Arrays, raw: Arrays) -> Iterator[Table]:
        """The kinds of error, of each type, by length and by texts of the training file, with examples."""
        return entity_errors.views(predictions, raw, self._training_texts())

    def judge(self, predictions: Arrays, raw: Arrays) -> Judged:
        return entity_errors.judge(predictions, raw)

    def _training_texts(self) -> set[str] | None:
        """The texts of the entities of the training file; None for one file of all splits and where no file is readable."""
        if self.source is None or (
            not isinstance(self.source, Mapping) and not to_path(self.source).is_dir()
        ):
            return None
        try:
            with warnings.catch_warnings(action="ignore"):  # the training itself warned
                examples = self.examples("train")
        except BertKerasError:
            return None
        columns = next(examples.batch(count(examples)).as_numpy_iterator())
        return entity_errors.find_texts(columns)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"labels": list(self.label_names)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Tagging":
        kinds = {"name": one_of(cls.names), "labels": list_of(WORD), **cls.kinds}
        kept = checked_fields(kept, kinds, where="task", optional=cls.optional)
        labels = list(kept["labels"])
        if len({*labels}) < len(labels) or len(labels) < 2 or any(tag.split() != [tag] for tag in labels):
            raise BertKerasError(
                f"task: labels is {shortened(labels)}; expected two or more tags without white space, each once."
            )
        return cls(source=source, **kept)


def _get_file(sentences: Sequence[Sentence]) -> str:
    return sentences[0].source.rpartition(",")[0]
