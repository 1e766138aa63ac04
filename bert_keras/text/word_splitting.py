"""Splits text into words, in graph, with byte offsets."""

import tensorflow as tf

TEXT, TOKENS = "text", "tokens"

# `_MARK` encloses each word of raw text. Marks in the text, which BERT drops, become another control character.
_MARK, _NOT_A_MARK = "\x01", "\x02"
_BLANK = r"\t\n\r\p{Z}"
_EDGE = r"\x22'`,;:!?\p{Ps}\p{Pe}\p{Pi}\p{Pf}…、。，；：！？¿¡"  # separate words at the ends of a word
_INNER = rf"[^{_BLANK}{_EDGE}\p{{Han}}]"
_RULES = (
    # A CJK ideograph and a separate "'s" are words; other words reach from the first to the last inner character.
    (rf"(['’][sS]\b|\p{{Han}}|{_INNER}(?:[^{_BLANK}\p{{Han}}]*{_INNER})?|[{_EDGE}])", rf"{_MARK}\1{_MARK}"),
    # "Hello..." ends in an ellipsis.
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}.])(\.\.+){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
    # A final period, but not in "U.S." or "J."
    (rf"{_MARK}([^{_MARK}.]{{2,}}|[^{_MARK}.\pL])\.{_MARK}", rf"{_MARK}\1{_MARK}.{_MARK}"),
    (rf"{_MARK}([^{_MARK}]*[^{_MARK}'’])(['’][sS]){_MARK}", rf"{_MARK}\1{_MARK}\2{_MARK}"),
)

Spans = tuple[tf.RaggedTensor, tf.RaggedTensor]


def split_text(text: tf.Tensor) -> Spans:
    """The words of raw text: string [B] -> starts and ends (exclusive), ragged int32 [B, (N)], bytes.

    Words end at white space; quotes, brackets and , ; : ! ? at their ends, a final period, "'s" and CJK ideographs are words.
    """
    marked = tf.strings.regex_replace(text, _MARK, _NOT_A_MARK)
    for pattern, rewritten in _RULES:
        marked = tf.strings.regex_replace(marked, pattern, rewritten)
    parts = tf.strings.split(marked, _MARK)
    words = parts.with_values(tf.strings.regex_full_match(parts.values, f"[^{_BLANK}]+"))
    starts, ends = _offsets(parts, gap=0)
    return tf.ragged.boolean_mask(starts, words), tf.ragged.boolean_mask(ends, words)


def split_tokens(tokens: tf.Tensor) -> Spans:
    """Like `split_text`, for words separated by one space or newline."""
    return _offsets(split_words(tokens), gap=1)


def text_of(raw: dict[str, tf.Tensor]) -> tf.Tensor:
    """The text of raw examples, string [B]: the joined words, or raw text."""
    return raw[TOKENS] if TOKENS in raw else raw[TEXT]


def words_of(raw: dict[str, tf.Tensor]) -> Spans:
    """The words of raw examples: starts and ends, ragged int32 [B, (N)], bytes."""
    return split_tokens(raw[TOKENS]) if TOKENS in raw else split_text(raw[TEXT])


def split_words(tokens: tf.Tensor) -> tf.RaggedTensor:
    """Words separated by one space or newline: string [B] -> ragged string [B, (N)]."""
    return tf.strings.split(tf.strings.regex_replace(tokens, "\n", " "), " ")


def _offsets(parts: tf.RaggedTensor, *, gap: int) -> Spans:
    """Consecutive parts with `gap` bytes between them: string [B, (N)] -> start and end of each part in its row."""
    lengths = tf.strings.length(parts.values)
    total = tf.concat([[0], tf.cumsum(lengths + gap)], axis=0)
    starts = total[:-1] - tf.gather(tf.gather(total, parts.row_starts()), parts.value_rowids())
    return parts.with_values(starts), parts.with_values(starts + lengths)
