"""Reads texts with entities as spans of characters, as annotation tools write them, and turns spans into tags of words.

    {"text": "Anna sang", "entities": [[0, 4, "PER"]]}                          JSON lines; doccano: "label" for "entities"
    ["Anna sang", {"entities": [[0, 4, "PER"]]}]                                spaCy's training data, in a list
    {"text": "Anna sang", "spans": [{"start": 0, "end": 4, "label": "PER"}]}    Prodigy
    {"data": {"text": "Anna sang"}, "annotations": [{"result": [{"value": {"start": 0, "end": 4, "labels": ["PER"]}}]}]}

The last is Label Studio's export. An end is exclusive.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError, first_names
from bert_keras.io.json_files import is_integer, parse_json, shortened
from bert_keras.tasks.data.conll import OUTSIDE, holds_rows
from bert_keras.tasks.data.sources import check_text, nonblank_lines, read_text

# The names of the spans of a text, and of the start, the end and the label of a span.
SPANS = ("entities", "spans", "label", "labels")
START, END, LABEL = ("start", "start_offset"), ("end", "end_offset"), ("label", "labels", "type")
ENDINGS = (".jsonl", ".json")
MAX_FILE_BYTES = 500_000_000
FORMS = 'give {"text": ..., "entities": [[start, end, "label"], ...]}, spaCy\'s [text, {"entities": ...}] or Label Studio\'s JSON'


class Span(NamedTuple):
    """An entity: characters of its text, the end exclusive."""

    start: int
    end: int
    label: str


class SpannedText(NamedTuple):
    """A text with its entities by start. where: the file and the row, for errors."""

    text: str
    spans: list[Span]
    where: str


def holds_spans(path: Path) -> bool:
    """True for a file that `read_spans` reads, by its name, and by its first row where rows of words have the same name."""
    return path.name.lower().removesuffix(".gz").endswith(ENDINGS) and not holds_rows(path)


def read_spans(path: Path) -> list[SpannedText]:
    """The texts of a file. Warns about texts that nobody annotated, which are left out.

    Raises BertKerasError, with the row, for another form and for spans outside the text, that overlap, or without a label.
    """
    found, skipped = [], []
    for where, value in _read_rows(path):
        parts = _split_row(value, where)
        if parts is None:
            skipped.append(where)
        else:
            text, spans = parts
            check_text(where, text)
            found.append(SpannedText(text, checked_spans(spans, text, where), where))
    if skipped:
        warnings.warn(
            f"{skipped[0]}: the first of {len(skipped)} texts without an annotation, which are left out",
            stacklevel=2,
        )
    if not found:
        raise BertKerasError(f"{path} has no annotated texts; {FORMS}.")
    return found


def _read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    if path.name.lower().removesuffix(".gz").endswith(ENDINGS[0]):
        for number, line in nonblank_lines(path):
            yield f"{path}, line {number}", parse_json(line, source=f"{path}, line {number}")
        return
    content = parse_json(read_text(path, limit=MAX_FILE_BYTES, instead="give fewer texts"), source=path)
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):  # beside its "classes"
        content = [row for row in content["annotations"] if row is not None]
    if not isinstance(content, list):
        raise BertKerasError(f"{path} holds no list of texts; {FORMS}, in a list.")
    yield from ((f"{path}, item {i}", row) for i, row in enumerate(content))


def _split_row(row: Any, where: str) -> tuple[str, Any] | None:
    """The text and the spans of a row; None without an annotation. Raises BertKerasError for another form."""
    text, spans = None, None
    if isinstance(row, list) and len(row) == 2:
        text, spans = row
        spans = spans.get(SPANS[0]) if isinstance(spans, dict) else spans
    elif isinstance(row, dict) and isinstance(row.get("data"), dict):
        return _split_label_studio(row, where)
    elif isinstance(row, dict):
        text = row.get("text")
        there = [name for name in SPANS if name in row]
        spans = row[there[0]] if there else None
    if not isinstance(text, str) or not isinstance(spans, list):
        named = f"has {first_names(map(shortened, row))}" if isinstance(row, dict) else f"is {shortened(row)}"
        raise BertKerasError(f"{where}: the row {named}; {FORMS}.")
    return text, spans


def _split_label_studio(row: Mapping[str, Any], where: str) -> tuple[str, Any] | None:
    texts = {name: value for name, value in row["data"].items() if isinstance(value, str)}
    if "text" not in texts and len(texts) != 1:
        raise BertKerasError(
            f"{where}: the data has {first_names(texts) or 'no text'}; name the text to read text."
        )
    text = texts.get("text", next(iter(texts.values())))
    given = [one for one in row.get("annotations") or () if isinstance(one, dict)]
    given = [one for one in given if not one.get("was_cancelled")]
    if not given:
        return None
    if len(given) > 1:
        raise BertKerasError(f"{where}: {len(given)} annotations of one text; keep one of them.")
    results = [one.get("value") for one in given[0].get("result") or () if isinstance(one, dict)]
    return text, [value for value in results if isinstance(value, dict) and "labels" in value]


def checked_spans(values: Any, text: str, where: str) -> list[Span]:
    """Spans by start, from lists or tuples (start, end, label) or dicts. White space in a label becomes "_".

    Raises BertKerasError, with `where`, for another form, and for a span that is empty, outside the text, over another one, or
    not the text that it names.
    """
    spans = sorted(_read_span(value, text, where) for value in values)
    for before, span in zip(spans, spans[1:], strict=False):
        if span.start < before.end:
            raise BertKerasError(
                f"{where}: the entities {[*before]} and {[*span]} overlap; keep one of them."
            )
    return spans


def _read_span(value: Any, text: str, where: str) -> Span:
    parts: list[Any]
    if isinstance(value, Mapping):
        parts = [
            next((value[name] for name in names if name in value), None) for names in (START, END, LABEL)
        ]
    else:
        parts = [*value] if isinstance(value, list | tuple) else []
    if len(parts) == 3 and isinstance(parts[2], list | tuple) and len(parts[2]) == 1:
        parts[2] = parts[2][0]
    if (
        len(parts) != 3
        or not all(map(is_integer, parts[:2]))
        or not isinstance(parts[2], str)
        or not parts[2]
    ):
        raise BertKerasError(
            f'{where}: the entity is {shortened(value)}; give [start, end, "label"], or start, end and label by name.'
        )
    span = Span(int(parts[0]), int(parts[1]), re.sub(r"\s+", "_", parts[2].strip()))
    if not 0 <= span.start < span.end <= len(text):
        raise BertKerasError(
            f"{where}: the entity {[*span]} is not in the text, which has {len(text)} characters; count them from 0, the end "
            "exclusive."
        )
    said = value.get("text") if isinstance(value, Mapping) else None
    if isinstance(said, str) and said.split() != text[span.start : span.end].split():
        raise BertKerasError(
            f"{where}: the entity {[*span]} says {shortened(said)}, and the text has "
            f"{shortened(text[span.start : span.end])} there; count characters from 0, the end exclusive."
        )
    return span


# -----------------------------------------------------------------------------------------------------------
# Spans -> tags of words


def tag_words(
    text: str, spans: Sequence[Span], starts: Sequence[int], ends: Sequence[int]
) -> tuple[list[str], list[Span]]:
    """The IOB2 tags of a text's words, and the spans that do not start and end with a word, whose tags are those of whole words.

    spans: by start, without overlap
    starts, ends: the bytes of the words in the text's UTF-8, by start

    A word of two spans has the tag of the first one.
    """
    tags, uneven, word = [OUTSIDE] * len(starts), [], 0
    for span in spans:
        first, last = (len(text[:at].encode()) for at in (span.start, span.end))
        while word < len(starts) and ends[word] <= first:
            word += 1
        begin = word
        while word < len(starts) and starts[word] < last:
            tags[word] = f"{'B' if word == begin else 'I'}-{span.label}"
            word += 1
        if word == begin or starts[begin] != first or ends[word - 1] != last:
            uneven.append(span)
    return tags, uneven
