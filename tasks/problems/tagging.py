"""Named entities: a tag for every word, and the entities of a text.

Tags are read in IOB1, IOB2 or BIOES; the model learns IOB2. The first token of a word has the word's label, in the window that
shows it with the most context (Devlin et al. 2019, sec. 5.3: no CRF, the maximal document context).
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import TokenHead
from bert_keras.tasks import metrics
from bert_keras.tasks.data import conll
from bert_keras.tasks.data.columns import list_values
from bert_keras.tasks.data.conll import DOCSTART, OUTSIDE, SCHEMES, Corpus, Sentence
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.metrics import ERRORS_SHOWN, Table, plain
from bert_keras.tasks.options import TAGGING_DEFAULTS, TaggingOptions
from bert_keras.tasks.task import Arrays, Features, Raw, Task
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.words import TEXT, TOKENS, find_words, split_words, take_text

TAGS = "tags"
# Where a word of raw text starts: by rules of white space and punctuation, as in CoNLL's files; or at each token that continues
# no other, as transformers' pipelines have it.
WORDS_OF_TEXT, WORDS_OF_TOKENS = "text", "tokens"
# Bytes of the words of tokens, int32 [B, N], -1 in padding.
TOKEN_WORDS = ("token_word_starts", "token_word_ends")
ENTITY = ("entity_text", "entity_label", "entity_start_byte", "entity_end_byte", "entity_score")


class Tagging(Task):
    """Named entity recognition on files in CoNLL's format.

    labels: IOB2 tags, "O" first; or the tags of a checkpoint as they are
    scheme: a key of SCHEMES, the scheme of the files
    words: the words of raw text, WORDS_OF_TEXT or WORDS_OF_TOKENS
    context: "document" reads a sentence within its document, "sentence" reads it alone
    doc_stride: tokens from the start of one window to the start of the next
    source: a folder of FILES, one file, or a file for each split; None for TensorFlow Datasets

    Raises BertKerasError for an unknown context.
    """

    kind = "tagging"
    names = ("conll2003",)
    head = "classifier"
    architectures = ("ForTokenClassification",)
    options = names_of(TaggingOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure = "f1"
    windowed = True
    lists = {"entity": "entity_start_byte"}
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
        words: str = WORDS_OF_TEXT,
        source: Source | None = None,
        name: str = "conll2003",
    ) -> None:
        TaggingOptions(context=context, doc_stride=doc_stride)
        self.name, self.source = name, source
        self.label_names, self.scheme, self.words = tuple(labels), scheme, words
        self.context, self.doc_stride = context, doc_stride
        self.defaults = TAGGING_DEFAULTS[context]

    @classmethod
    def open(cls, name: str, source: Source | None = None, **options: Any) -> "Tagging":
        """The task with the scheme and the tags of the training file.

        Raises BertKerasError for a file in another format, with its line, and for a file without entities.
        """
        corpus = conll.load_corpus(source, "train")
        sentences = [sentence for document in corpus.documents for sentence in document]
        scheme = conll.detect_scheme(sentences)
        conll.check_tags(sentences, scheme)
        tags = {tag for sentence in sentences for tag in conll.convert_tags(sentence.tags, "IOB2")}
        if not (labels := tags - {OUTSIDE}):
            raise BertKerasError(
                f"{_get_file(sentences)} has no entities: every tag is O; give a file with entities."
            )
        made = cls([OUTSIDE, *sorted(labels)], scheme=scheme, source=source, name=name, **options)
        made._units(corpus)  # refuses unmarked documents before any training
        return made

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

        Warns about tags that do not fit the scheme, and about tags that are not in the training file.
        """
        units = self._units(conll.load_corpus(self.source, split))
        sentences = [sentence for unit in units for sentence in unit]
        conll.check_tags(sentences, self.scheme)
        if odd := list(conll.find_misfits(sentences, self.scheme)):
            warnings.warn(
                f"{odd[0]}: the first of {len(odd)} tags that do not fit {self.scheme}, the scheme of the training file; "
                "entities are read as conlleval reads them",
                stacklevel=2,
            )
        tags = [[conll.convert_tags(sentence.tags, "IOB2") for sentence in unit] for unit in units]
        unknown = [tag for unit in tags for row in unit for tag in row if tag not in self.label_names]
        if unknown:
            warnings.warn(
                f"{_get_file(sentences)}: {len(unknown)} words have tags that are not in the training file "
                f"({', '.join(sorted(set(unknown)))}); they cannot be predicted",
                stacklevel=2,
            )
        words = [[sentence.words for sentence in unit] for unit in units]

        def join(column: list[list[list[str]]]) -> list[str]:
            return ["\n".join(map(" ".join, unit)) for unit in column]

        return tf.data.Dataset.from_tensor_slices({TOKENS: join(words), TAGS: join(tags)})

    def given(self, x: Any) -> dict[str, np.ndarray]:
        """The column "tokens" for lists of words, or "text" for strings, which the model splits into words."""
        rows = None if hasattr(x, "columns") or isinstance(x, Mapping) else list_values(x)
        if not rows or isinstance(rows[0], str | bytes):
            return super().given(x)
        return {TOKENS: _join_words(rows, "word")}

    def targets(self, y: Any, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tags of each text in IOB2, a list for each list of words."""
        if TOKENS not in columns:
            raise BertKerasError("tags need words: give each text as a list of words.")
        tags = list_values(y)
        for row, (words, given) in enumerate(zip(columns[TOKENS], tags, strict=False)):
            if (count := len(words.split(b" "))) != len(list_values(given)):
                raise BertKerasError(
                    f"row {row}: {count} words and {len(list_values(given))} tags; give one tag for each word."
                )
            if unknown := [tag for tag in list_values(given) if tag not in self.label_names]:
                raise BertKerasError(
                    f"row {row}: unknown tag {unknown[0]!r}; the tags are {', '.join(self.label_names)} (IOB2)."
                )
        return {TAGS: _join_words(tags, "tag")}

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
        """Labels int32 [W, S], and weights float32 [W, S], which are 1 at the first token of each word in one window."""
        words = self.look_up_labels(raw)
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
        between = tf.where(words.first_in_row, "", tf.where(words.first_in_sentence, "\n", " "))
        names = tf.gather(tf.constant(self.label_names), words.labels)
        tags = between + tf.where(words.scores > 0, names, OUTSIDE)
        rows, count = words.starts.value_rowids(), words.starts.nrows()
        joined = tf.strings.unsorted_segment_join(tags, rows, num_segments=count)
        return {TAGS: joined} | decode_entities(words, self.label_names, letters)

    def evaluate(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[str, float]]:
        """Yields F1, precision and recall of entities, and the accuracy of tags."""
        gold, predicted = _split_sentences(raw[TAGS]), _split_sentences(predictions[TAGS])
        scores = metrics.entity_scores(*map(_as_entities, (gold, predicted)))
        yield "f1", scores.f1
        yield "precision", scores.precision
        yield "recall", scores.recall
        yield "accuracy", metrics.accuracy(np.concatenate(gold), np.concatenate(predicted))

    def record(self, decoded: Arrays) -> dict[str, Any]:
        """The entities with text, label, bytes and score, and the tags of the words."""
        columns = (plain(decoded[name]) for name in ENTITY)
        names = ("text", "label", "start", "end", "score")
        entities = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        found = [entity for entity in entities if entity["start"] >= 0]
        return {"entities": found, TAGS: plain(decoded[TAGS])}

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
        gold, predicted = _split_sentences(raw[TAGS]), _split_sentences(predictions[TAGS])
        by_type = metrics.entity_scores_by_type(*map(_as_entities, (gold, predicted)))
        columns = ("type", "f1", "precision", "recall", "entities")
        rows = [(kind, s.f1, s.precision, s.recall, s.entities) for kind, s in by_type.items()]
        yield Table("entities by type", columns, rows)
        errors = sorted(self._errors(predictions, raw), key=lambda error: -error[0])[:ERRORS_SHOWN]
        yield Table("the most confident errors", ("score", "entity", "predicted", "tags"), errors)

    def _errors(self, predictions: Arrays, raw: Arrays) -> Iterator[tuple[float, str, str, str]]:
        """Yields each wrong entity: its score, text, type, and the gold tags of its words."""
        for i, (gold, predicted) in enumerate(zip(raw[TAGS], predictions[TAGS], strict=True)):
            column = 0  # decoded entities have the order of the words
            pairs = (_as_entities(_split_sentences([tags])) for tags in (gold, predicted))
            for truth, guess in zip(*pairs, strict=True):
                right = conll.find_entities(truth)
                for entity in conll.find_entities(guess):
                    if entity not in right:
                        score = float(predictions["entity_score"][i][column])
                        text = plain(predictions["entity_text"][i][column])
                        yield score, text, entity.type, " ".join(truth[entity.first : entity.last + 1])
                    column += 1

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"labels": list(self.label_names)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> "Tagging":
        kept = checked_fields(
            kept, {"name": one_of(cls.names), "labels": list_of(WORD), **cls.kinds}, where="task"
        )
        labels = list(kept["labels"])
        if len({*labels}) < len(labels) or len(labels) < 2 or any(tag.split() != [tag] for tag in labels):
            raise BertKerasError(
                f"task: labels is {shortened(labels)}; expected two or more tags without white space, each once."
            )
        return cls(source=source, **kept)


def _join_words(rows: Sequence[Any], kind: str) -> np.ndarray:
    """Lists of words or tags as bytes [N], separated by spaces. Raises BertKerasError, with the row, for one that is no word."""
    joined = []
    for row, words in enumerate(rows):
        words = [word.decode() if isinstance(word, bytes) else word for word in list_values(words)]
        if not words:
            raise BertKerasError(f"row {row} has no {kind}; give at least one.")
        for word in words:
            if not isinstance(word, str) or word.split() != [word]:
                raise BertKerasError(
                    f"row {row}: {word!r} is not one {kind}; give a string without white space."
                )
        joined.append(" ".join(words).encode())
    return np.array(joined, object)


def _get_file(sentences: Sequence[Sentence]) -> str:
    return sentences[0].source.rpartition(",")[0]


def _split_sentences(tags: Iterable[bytes]) -> list[list[str]]:
    return [sentence.split(" ") for text in tags for sentence in text.decode().split("\n")]


def type_of(tag: str) -> str:
    """The type of the entities of a tag, the text after its first hyphen; "O" has the type "O"."""
    return tag.partition("-")[2] or tag


def _as_entities(sentences: list[list[str]]) -> list[list[str]]:
    """Tags that measures read as entities: a tag of no scheme is a type that continues itself."""
    return [
        [tag if tag == OUTSIDE or conll.find_entities([tag]) else f"I-{tag}" for tag in sentence]
        for sentence in sentences
    ]


# -----------------------------------------------------------------------------------------------------------
# Decoding, in graph: logits of tokens into the tags of words, and these into entities


def find_words_of_tokens(text: tf.Tensor, tokenizer: Tokenizer) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """The words of text, string [B], that a tokenizer makes: starts and ends, ragged int32 [B, (N)], bytes."""
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    rows = ids.value_rowids()
    first = tf.not_equal(rows, tf.concat([[-1], rows[:-1]], axis=0))
    opens = [text.startswith(b" ") for text in tokenizer.texts]
    begins = first | tf.gather(tf.constant(opens), ids.values)
    last = tf.concat([begins[1:], [True]], axis=0)[: tf.size(begins)]
    return tf.ragged.boolean_mask(starts, ids.with_values(begins)), tf.ragged.boolean_mask(
        ends, ids.with_values(last)
    )


class TaggedWords(NamedTuple):
    """All words [N] of a batch, with their predicted label ids and probabilities.

    starts, ends: ragged int32 [B, (N)], bytes
    first_in_row, first_in_sentence: bool [N]
    """

    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    labels: tf.Tensor
    scores: tf.Tensor
    first_in_row: tf.Tensor
    first_in_sentence: tf.Tensor


def decode_words(outputs: tf.Tensor, features: Features, raw: Raw, letters: "Letters") -> TaggedWords:
    """Logits float32 [W, S, C] -> the words of the batch. A word without a token gets label 0 and score 0."""
    at = tf.where(features[WORD_INDEX] >= 0)
    best = tf.gather_nd(tf.nn.softmax(outputs), at)  # [P, C], for the words with a token
    if TOKEN_WORDS[0] in features:
        starts, ends = (tf.RaggedTensor.from_tensor(features[name], padding=-1) for name in TOKEN_WORDS)
    else:
        starts, ends = find_words(raw)
    row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
    word = tf.gather(starts.row_starts(), row) + tf.cast(tf.gather_nd(features[WORD_INDEX], at), tf.int64)
    size = tf.shape(starts.values, out_type=tf.int64)
    labels = tf.scatter_nd(word[:, tf.newaxis], tf.argmax(best, axis=-1, output_type=tf.int32), size)
    scores = tf.scatter_nd(word[:, tf.newaxis], tf.reduce_max(best, axis=-1), size)
    first_in_row = starts.value_rowids() > tf.concat([[-1], starts.value_rowids()[:-1]], axis=0)
    first_in_sentence = first_in_row
    if TOKENS in raw:
        before = letters.at(starts.with_values(tf.maximum(starts.values - 1, 0)))
        first_in_sentence |= tf.equal(before, "\n")
    return TaggedWords(starts, ends, labels, scores, first_in_row, first_in_sentence)


def decode_entities(
    words: TaggedWords, label_names: Sequence[str], letters: "Letters"
) -> dict[str, tf.Tensor]:
    """The entities of the words' tags, [B, E], as in `Tagging.decode`.

    "B-" begins an entity, and "I-" continues an entity of its type; a tag without them continues itself, and the text after its
    first hyphen is the type (transformers TokenClassificationPipeline.group_entities).
    """
    kinds = [tag[2:] if tag.startswith(("B-", "I-")) else tag for tag in label_names]
    inside_of = [
        -1 if tag == OUTSIDE else kinds.index(kind) for tag, kind in zip(label_names, kinds, strict=True)
    ]
    types = [type_of(tag) for tag in label_names]
    kind = tf.where(words.scores > 0, tf.gather(inside_of, words.labels), -1)
    begins = tf.gather([tag.startswith("B-") for tag in label_names], words.labels)
    before = tf.where(words.first_in_sentence, -1, tf.concat([[-1], kind[:-1]], axis=0))
    first = (kind >= 0) & (begins | (kind != before))
    inside = tf.where(kind >= 0)[:, 0]
    entity = tf.gather(tf.cumsum(tf.cast(first, tf.int32)) - 1, inside)
    first, last = tf.where(first)[:, 0], tf.math.segment_max(inside, entity)

    starts, ends = words.starts, words.ends
    rows = tf.gather(starts.value_rowids(), first)
    start, end = tf.gather(starts.values, first), tf.gather(ends.values, last)
    text, label = letters.cut(rows, start, end), tf.gather(tf.constant(types), tf.gather(words.labels, first))
    score = tf.math.segment_mean(tf.gather(words.scores, inside), entity)

    def pad(values: tf.Tensor, padding: Any) -> tf.Tensor:
        """[N] -> [B, E]."""
        return tf.RaggedTensor.from_value_rowids(values, rows, nrows=starts.nrows()).to_tensor(padding)

    columns = (pad(text, ""), pad(label, ""), pad(start, -1), pad(end, -1), pad(score, 0.0))
    return dict(zip(ENTITY, columns, strict=True))


class Letters:
    """The bytes of all texts [B] in one list, so that `cut` copies only the bytes that it returns."""

    def __init__(self, text: tf.Tensor) -> None:
        letters = tf.strings.bytes_split(text)
        self._letters, self._starts = letters.values, letters.row_starts()

    def at(self, offsets: tf.RaggedTensor) -> tf.Tensor:
        """The bytes at offsets: ragged int32 [B, (N)] -> string [N]."""
        starts = tf.gather(self._starts, offsets.value_rowids())
        return tf.gather(self._letters, starts + tf.cast(offsets.values, tf.int64))

    def cut(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """The bytes from `starts` to `ends` of the texts in `rows`: all [E] -> string [E]."""
        first = tf.gather(self._starts, rows)
        spans = tf.ragged.range(first + tf.cast(starts, tf.int64), first + tf.cast(ends, tf.int64))
        return tf.strings.unsorted_segment_join(
            tf.gather(self._letters, spans.values), spans.value_rowids(), num_segments=tf.size(starts)
        )
