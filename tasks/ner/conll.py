"""Named entities: files of one word a line in, a tag for every word and the entities in the text out.

    Ada   NNP I-NP I-PER     a line of a file: the word first, its tag last
    wrote VBD I-VP O         a blank line ends a sentence, -DOCSTART- opens a document

Tags are read in IOB1, IOB2 or BIOES; the model learns IOB2. A word is labelled at its first piece, in the one window that
shows it with the most context (Devlin et al. 2019, sec. 5.3: no CRF, the maximal document context).
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.encoder import BertEncoder, encoder_inputs
from bert_keras.errors import BertKerasError
from bert_keras.features import EXAMPLE_INDEX, SEQUENCE_OUTPUT, WORD_INDEX
from bert_keras.heads import TokenHead
from bert_keras.json_files import TEXT as WORD
from bert_keras.json_files import list_of, one_of, short, typed, whole
from bert_keras.losses import GlobalMean, cross_entropy
from bert_keras.paths import path_of
from bert_keras.settings import names_of
from tasks import metrics
from tasks.reading import load_tfds
from tasks.settings import MAX_OPTION, TAGGING_DEFAULTS, TaggingOptions
from tasks.task import (
    ERRORS_SHOWN,
    Features,
    Raw,
    Source,
    Table,
    Task,
    numbered_lines,
    plain,
    split_file,
)

TEXT, TOKENS, TAGS = "text", "tokens", "tags"
OUTSIDE = "O"
DOCSTART = "-DOCSTART-"
FILES = {
    "train": ("eng.train", "eng.train.gz", "train.txt", "train.txt.gz"),
    "validation": ("eng.testa", "eng.testa.gz", "valid.txt", "dev.txt", "valid.txt.gz", "dev.txt.gz"),
    "test": ("eng.testb", "eng.testb.gz", "test.txt", "test.txt.gz"),
}
TFDS_SPLITS = {"train": "train", "validation": "dev", "test": "test"}


class Scheme(NamedTuple):
    """How the words of an entity are tagged.

    adjoining: the first word of an entity right after another of its type, where that differs from `first` and `alone`
    """

    first: str
    inside: str
    last: str
    alone: str
    adjoining: str | None = None


SCHEMES = {
    "IOB2": Scheme("B", "I", "I", "B"),
    "IOB1": Scheme("I", "I", "I", "I", adjoining="B"),
    "BIOES": Scheme("B", "I", "E", "S"),
}


class Entity(NamedTuple):
    """An entity's type and its words, from `first` to `last`, both of it."""

    type: str
    first: int
    last: int


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence's tags, in any scheme, as conlleval finds them: "I-" after another type starts one."""
    found: list[Entity] = []
    before, closed = "", True
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if kind and (closed or prefix in ("B", "S") or kind != before):
            found.append(Entity(kind, place, place))
        elif kind:
            found[-1] = found[-1]._replace(last=place)
        before, closed = kind, prefix in ("E", "S")
    return found


def tags_of(entities: Iterable[Entity], *, length: int, scheme: str) -> list[str]:
    """The tags of a sentence of `length` words whose entities are known, in a scheme of SCHEMES."""
    form = SCHEMES[scheme]
    tags = [OUTSIDE] * length
    before = Entity("", -2, -2)
    for entity in entities:
        inside = entity.last - entity.first - 1
        prefixes = [form.alone] if inside < 0 else [form.first, *[form.inside] * inside, form.last]
        if form.adjoining and (before.type, before.last + 1) == (entity.type, entity.first):
            prefixes[0] = form.adjoining
        tags[entity.first : entity.last + 1] = [f"{prefix}-{entity.type}" for prefix in prefixes]
        before = entity
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """A sentence's tags, of whatever scheme, in another."""
    return tags_of(entities_of(tags), length=len(tags), scheme=scheme)


class Sentence(NamedTuple):
    """Words with their tags; `place` and `number` say where the first of them stands."""

    words: list[str]
    tags: list[str]
    place: str
    number: int

    def where(self, word: int) -> str:
        """The place of a word, for messages."""
        return f"{self.place} {self.number + word}"


class Corpus(NamedTuple):
    """Documents of sentences, and whether anything said where documents begin."""

    documents: list[list[Sentence]]
    marked: bool


def read(path: str | Path) -> Corpus:
    """Reads a file of the form above, gzipped or plain, in UTF-8; spaces and tabs part its columns.

    Raises ValueError, naming the file and the line, on a line without a tag or with more or fewer columns than the first.
    """
    documents: list[list[Sentence]] = [[]]
    marked, wanted, open_sentence = False, 0, False
    place = f"{path}, line"
    for number, line in numbered_lines(path_of(path)):
        columns = re.split("[ \t]+", line.strip(" \t\r"))
        if columns == [""]:
            open_sentence = False
        elif columns[0] == DOCSTART:
            marked, open_sentence = True, False
            documents.append([])
        else:
            wanted = wanted or len(columns)
            if len(columns) < 2 or len(columns) != wanted:
                raise BertKerasError(
                    f"{place} {number}: {len(columns)} column(s); wanted are {max(wanted, 2)}: a word first, its tag last."
                )
            if not open_sentence:
                documents[-1].append(Sentence([], [], place, number))
                open_sentence = True
            documents[-1][-1].words.append(columns[0])
            documents[-1][-1].tags.append(columns[-1])
    documents = [document for document in documents if document]
    if not documents:
        raise BertKerasError(f"{path} has no words; wanted is a word and its tag on each line.")
    return Corpus(documents, marked)


def _from_tfds(split: str) -> Corpus:
    if split not in TFDS_SPLITS:
        raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(TFDS_SPLITS)}.")
    examples, info = load_tfds("conll2003", TFDS_SPLITS[split], instead="a folder of its files")
    names = info.features["ner"].feature.names
    place, number, sentences = f"conll2003/{TFDS_SPLITS[split]}, word", 1, []
    for example in examples.as_numpy_iterator():
        words = [word.decode() for word in example["tokens"]]
        if bad := next((word for word in words if re.search("[ \n]", word) or not word), None):
            raise BertKerasError(f"{place} {number}: the word {bad!r} is blank or holds a blank.")
        if words:
            tags = [names[tag] for tag in example["ner"]]
            sentences.append(Sentence(words, tags, place, number))
            number += len(words)
    return Corpus([sentences], False)


def check_tags(sentences: Iterable[Sentence], scheme: str) -> None:
    """Raises ValueError, naming the line, at a tag that has no place in the scheme."""
    known = {prefix for prefix in SCHEMES[scheme] if prefix}
    for sentence in sentences:
        for place, tag in enumerate(sentence.tags):
            prefix, _, kind = tag.partition("-")
            if tag != OUTSIDE and not (prefix in known and kind):
                wanted = ", ".join(f"{prefix}-TYPE" for prefix in sorted(known))
                raise BertKerasError(
                    f"{sentence.where(place)}: tag {tag!r}; the training file's scheme is {scheme}, so wanted is O, {wanted}."
                )


def misfits(sentences: Iterable[Sentence], scheme: str) -> Iterator[str]:
    """The places of tags that the scheme would write otherwise. Their entities are clear all the same."""
    for sentence in sentences:
        for place, wanted in enumerate(convert(sentence.tags, scheme)):
            if sentence.tags[place] != wanted:
                yield sentence.where(place)


def detect_scheme(sentences: Sequence[Sentence]) -> str:
    """The scheme of SCHEMES that fits the most words."""
    return min(SCHEMES, key=lambda scheme: sum(1 for _ in misfits(sentences, scheme)))


# Text that nobody has split into words. `_MARK` is put around each word; its own occurrences, which BERT drops, become
# another control character.
_MARK, _NOT_A_MARK = "\x01", "\x02"
_BLANK = r"\t\n\r\p{Z}"
_EDGE = r"\x22'`,;:!?\p{Ps}\p{Pe}\p{Pi}\p{Pf}…、。，；：！？¿¡"  # words of their own at the ends of a word
_INNER = rf"[^{_BLANK}{_EDGE}\p{{Han}}]"
_RULES = (
    # A CJK ideograph is a word, and so is "'s" by itself; other words reach from the first to the last inner character.
    (rf"(['’][sS]\b|\p{{Han}}|{_INNER}(?:[^{_BLANK}\p{{Han}}]*{_INNER})?|[{_EDGE}])", rf"{_MARK}\1{_MARK}"),
    # "Hello..." ends in an ellipsis.
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}.])(\.\.+){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
    # A final period, but not that of "U.S." or "J."
    (rf"{_MARK}([^{_MARK}.]{{2,}}|[^{_MARK}.\pL])\.{_MARK}", rf"{_MARK}\1{_MARK}.{_MARK}"),
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}'’])(['’][sS]){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
)

Spans = tuple[tf.RaggedTensor, tf.RaggedTensor]


def split_text(text: tf.Tensor) -> Spans:
    """Where the words of text are: string [B] -> starts and ends (exclusive), ragged int32 [B, (N)], bytes.

    Words end at whitespace; quotes, brackets and , ; : ! ? at their ends, a final period, "'s" and CJK ideographs are words.
    """
    marked = tf.strings.regex_replace(text, _MARK, _NOT_A_MARK)
    for pattern, rewritten in _RULES:
        marked = tf.strings.regex_replace(marked, pattern, rewritten)
    parts = tf.strings.split(marked, _MARK)
    words = parts.with_values(tf.strings.regex_full_match(parts.values, f"[^{_BLANK}]+"))
    starts, ends = _laid_out(parts, gap=0)
    return tf.ragged.boolean_mask(starts, words), tf.ragged.boolean_mask(ends, words)


def split_tokens(tokens: tf.Tensor) -> Spans:
    """The same of words that one space or newline parts."""
    return _laid_out(_split(tokens), gap=1)


def text_of(raw: Raw) -> tf.Tensor:
    """The text of raw examples, string [B]: words that are known, or text as it comes."""
    return raw[TOKENS] if TOKENS in raw else raw[TEXT]


def words_of(raw: Raw) -> Spans:
    """Where its words are: starts and ends, ragged int32 [B, (N)], bytes."""
    return split_tokens(raw[TOKENS]) if TOKENS in raw else split_text(raw[TEXT])


def _split(tokens: tf.Tensor) -> tf.RaggedTensor:
    return tf.strings.split(tf.strings.regex_replace(tokens, "\n", " "), " ")


def _laid_out(parts: tf.RaggedTensor, *, gap: int) -> Spans:
    """Parts one after another, `gap` bytes between them: string [B, (N)] -> where each starts and ends in its row."""
    lengths = tf.strings.length(parts.values)
    total = tf.concat([[0], tf.cumsum(lengths + gap)], axis=0)
    starts = total[:-1] - tf.gather(tf.gather(total, parts.row_starts()), parts.value_rowids())
    return parts.with_values(starts), parts.with_values(starts + lengths)


class Conll(Task):
    """Named entity recognition on files of CoNLL's form.

    labels: IOB2 tags, "O" first
    scheme: of SCHEMES, the one that the files are written in
    context: "document" reads a sentence with all of its document around it, "sentence" by itself
    doc_stride: wordpieces from the start of one window to the start of the next, where an example has several
    source: a folder of FILES, one file, or a file for each split; None for TensorFlow Datasets

    Raises ValueError on an unknown context.
    """

    kind = "conll"
    names = ("conll2003",)
    options = names_of(TaggingOptions)
    outputs = (SEQUENCE_OUTPUT,)
    measure = "f1"
    validation_splits = ("validation",)
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
        self.types = tuple(sorted({label.partition("-")[2] for label in labels} - {""}))

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> "Conll":
        """The task with the scheme and the tags of the training file.

        Raises ValueError, naming file and line, on a file that cannot be read as one or has no entity.
        """
        corpus = _corpus(source, "train")
        sentences = [sentence for document in corpus.documents for sentence in document]
        scheme = detect_scheme(sentences)
        check_tags(sentences, scheme)
        labels = {tag for sentence in sentences for tag in convert(sentence.tags, "IOB2")} - {OUTSIDE}
        if not labels:
            raise BertKerasError(f"{_file_of(sentences)} has no entity; every tag is O.")
        made = cls([OUTSIDE, *sorted(labels)], scheme=scheme, source=source, name=name, **options)
        made._units(corpus)  # that documents are marked, before anything is trained
        return made

    def _units(self, corpus: Corpus) -> list[list[Sentence]]:
        """The examples: documents, or sentences one by one. Raises ValueError where documents are wanted and not marked."""
        if self.context == "sentence":
            return [[sentence] for document in corpus.documents for sentence in document]
        if not corpus.marked:
            raise BertKerasError(
                f"{_file_of(corpus.documents[0])} has no {DOCSTART} lines, which say where documents begin; "
                'give context "sentence".'
            )
        return corpus.documents

    def examples(self, split: str) -> tf.data.Dataset:
        """{"tokens": string [], "tags": string []}: words, or their IOB2 tags, joined by spaces, sentences by newlines.

        Raises ValueError or FileNotFoundError on what cannot be read, naming the file and the line. Warns, with their
        count, of tags that the scheme writes otherwise, and of those that training did not see and nothing can find.
        """
        units = self._units(_corpus(self.source, split))
        sentences = [sentence for unit in units for sentence in unit]
        check_tags(sentences, self.scheme)
        if odd := list(misfits(sentences, self.scheme)):
            warnings.warn(
                f"{odd[0]}: the first of {len(odd)} tags that {self.scheme}, the training file's scheme, writes otherwise; "
                "entities are read as conlleval reads them",
                stacklevel=2,
            )
        tags = [[convert(sentence.tags, "IOB2") for sentence in unit] for unit in units]
        unknown = [tag for unit in tags for row in unit for tag in row if tag not in self.label_names]
        if unknown:
            warnings.warn(
                f"{_file_of(sentences)}: {len(unknown)} words have tags that the training file has not "
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

    def features(self, preprocess: Any, raw: Raw) -> Features:
        """Windows of the text with `word_index`: raw [B] -> [W, S]."""
        starts, _ = words_of(raw)
        return preprocess.words(text_of(raw), starts, doc_stride=self.doc_stride)

    def labels_of(self, raw: Raw) -> tf.RaggedTensor:
        """The places of the words' tags in `label_names`: ragged int32 [B, (N)], -1 for a tag that is not there."""
        tags = _split(raw[TAGS])
        equal = tf.equal(tags.values[:, tf.newaxis], tf.constant(self.label_names))
        places = tf.argmax(equal, axis=1, output_type=tf.int32)
        return tags.with_values(tf.where(tf.reduce_any(equal, axis=1), places, -1))

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels int32 [W, S] and weights float32 [W, S]: 1 at the first piece of a word, once in all windows."""
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

    def loss(self) -> keras.losses.Loss:
        """The mean of the words' cross-entropy."""
        return GlobalMean(cross_entropy)

    def decode(self, outputs: tf.Tensor, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """Logits [W, S, C] -> each word's best tag, and the entities that these make.

        "tags": string [B], joined as the words are; a word without a piece is O
        "entity_text", "entity_label": string [B, E], filled up with ""
        "entity_start_byte", "entity_end_byte": int32 [B, E], bytes of the text, the end exclusive; filled up with -1
        "entity_score": float32 [B, E], the mean of its words' probabilities; filled up with 0

        E is the most entities of an example. As conlleval does, "I-" that continues nothing starts an entity.
        """
        at = tf.where(features[WORD_INDEX] >= 0)
        best = tf.gather_nd(tf.nn.softmax(outputs), at)  # [P, C], of the words that have a piece
        starts, ends = words_of(raw)
        row = tf.gather(features[EXAMPLE_INDEX], at[:, 0])
        word = tf.gather(starts.row_starts(), row) + tf.cast(tf.gather_nd(features[WORD_INDEX], at), tf.int64)
        size = tf.shape(starts.values, out_type=tf.int64)
        tags = tf.scatter_nd(word[:, tf.newaxis], tf.argmax(best, axis=-1, output_type=tf.int32), size)
        scores = tf.scatter_nd(word[:, tf.newaxis], tf.reduce_max(best, axis=-1), size)

        letters = _Letters(text_of(raw))
        opens_row = starts.value_rowids() > tf.concat([[-1], starts.value_rowids()[:-1]], axis=0)
        opens = opens_row
        if TOKENS in raw:
            opens |= tf.equal(letters.at(starts.with_values(tf.maximum(starts.values - 1, 0))), "\n")
        between = tf.where(opens_row, "", tf.where(opens, "\n", " "))
        written = tf.strings.unsorted_segment_join(
            between + tf.gather(tf.constant(self.label_names), tags),
            starts.value_rowids(),
            num_segments=starts.nrows(),
        )
        return {TAGS: written} | self._entities(tags, scores, opens, starts, ends, letters)

    def _entities(
        self,
        tags: tf.Tensor,
        scores: tf.Tensor,
        opens: tf.Tensor,
        starts: tf.RaggedTensor,
        ends: tf.RaggedTensor,
        letters: "_Letters",
    ) -> dict[str, tf.Tensor]:
        """What the tags [N] of all words make; `opens`: whether a word opens a sentence."""
        prefixes, kinds = zip(*[label.partition("-")[::2] for label in self.label_names], strict=True)
        kind = tf.gather([self.types.index(kind) if kind else -1 for kind in kinds], tags)
        begins = tf.gather([prefix == "B" for prefix in prefixes], tags)
        before = tf.where(opens, -1, tf.concat([[-1], kind[:-1]], axis=0))
        first = (kind >= 0) & (begins | (kind != before))
        inside = tf.where(kind >= 0)[:, 0]
        entity = tf.gather(tf.cumsum(tf.cast(first, tf.int32)) - 1, inside)
        first, last = tf.where(first)[:, 0], tf.math.segment_max(inside, entity)

        rows = tf.gather(starts.value_rowids(), first)
        start, end = tf.gather(starts.values, first), tf.gather(ends.values, last)
        columns = {
            "entity_text": (letters.cut(rows, start, end), ""),
            "entity_label": (tf.gather(tf.constant(self.types), tf.gather(kind, first)), ""),
            "entity_start_byte": (start, -1),
            "entity_end_byte": (end, -1),
            "entity_score": (tf.math.segment_mean(tf.gather(scores, inside), entity), 0.0),
        }
        return {
            name: tf.RaggedTensor.from_value_rowids(values, rows, nrows=starts.nrows()).to_tensor(filling)
            for name, (values, filling) in columns.items()
        }

    def signature(self) -> dict[str, tf.TensorSpec]:
        return {TEXT: tf.TensorSpec([None], tf.string, name=TEXT)}

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields F1, precision and recall of entities, and the accuracy of tags."""
        gold, predicted = _sentences(raw[TAGS]), _sentences(predictions[TAGS])
        scores = metrics.entity_scores(gold, predicted)
        yield "f1", scores.f1
        yield "precision", scores.precision
        yield "recall", scores.recall
        yield "accuracy", metrics.accuracy(np.concatenate(gold), np.concatenate(predicted))

    def record(self, decoded: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The entities, each with its text, label, bytes and score, and the words' tags."""
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

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """F1 by type, and the entities that were found with most confidence where there are none."""
        gold, predicted = _sentences(raw[TAGS]), _sentences(predictions[TAGS])
        by_type = metrics.entity_scores_by_type(gold, predicted)
        columns = ("type", "f1", "precision", "recall", "entities")
        rows = [(kind, s.f1, s.precision, s.recall, s.entities) for kind, s in by_type.items()]
        yield Table("entities by type", columns, rows)
        errors = sorted(self._errors(predictions, raw), key=lambda error: -error[0])[:ERRORS_SHOWN]
        yield Table("the most confident errors", ("score", "entity", "predicted", "tags"), errors)

    def _errors(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[float, str, str, str]]:
        """Every entity that is not there: its score, text, type, and the tags that its words have."""
        for i, (gold, predicted) in enumerate(zip(raw[TAGS], predictions[TAGS], strict=True)):
            place = 0  # entities stand in the order of the words
            for truth, guess in zip(_sentences([gold]), _sentences([predicted]), strict=True):
                right = entities_of(truth)
                for entity in entities_of(guess):
                    if entity not in right:
                        score = float(predictions["entity_score"][i][place])
                        text = plain(predictions["entity_text"][i][place])
                        yield score, text, entity.type, " ".join(truth[entity.first : entity.last + 1])
                    place += 1

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
                f"task: labels is {short(kept['labels'])}; wanted {OUTSIDE!r} first, then B-TYPE and I-TYPE, each once."
            )
        return cls(source=source, **kept)


class _Letters:
    """The bytes of all texts [B] in one list: cutting from it copies what is cut, never a text."""

    def __init__(self, text: tf.Tensor) -> None:
        letters = tf.strings.bytes_split(text)
        self._letters, self._starts = letters.values, letters.row_starts()

    def at(self, places: tf.RaggedTensor) -> tf.Tensor:
        """The bytes at `places`, ragged int32 [B, (N)] -> string [N]."""
        starts = tf.gather(self._starts, places.value_rowids())
        return tf.gather(self._letters, starts + tf.cast(places.values, tf.int64))

    def cut(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """From byte `starts` to byte `ends` of the texts in `rows`: all [E] -> string [E]."""
        offsets = tf.gather(self._starts, rows)
        spans = tf.ragged.range(offsets + tf.cast(starts, tf.int64), offsets + tf.cast(ends, tf.int64))
        return tf.strings.unsorted_segment_join(
            tf.gather(self._letters, spans.values), spans.value_rowids(), num_segments=tf.size(starts)
        )


def _corpus(source: Source | None, split: str) -> Corpus:
    return _from_tfds(split) if source is None else read(split_file(source, split, FILES))


def _file_of(sentences: Sequence[Sentence]) -> str:
    return sentences[0].place.rpartition(",")[0]


def _sentences(tags: Iterable[bytes]) -> list[list[str]]:
    return [sentence.split(" ") for text in tags for sentence in text.decode().split("\n")]
