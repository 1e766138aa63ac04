"""Unicode's normal forms NFD and NFKD from TensorFlow's own ops.

In: string [B], valid UTF-8. Out: string [B]. They are those of TensorFlow Text's ICU, of Unicode 16. Python 3.11 has Unicode 14,
Python 3.13 has 15.1: the newer characters stand here.
Source: Unicode Standard Annex 15.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from bert_keras.text.ragged import repeats, row_numbers

# The decompositions of Unicode 15 and 16: characters, then the characters of each.
_NEWER_NFD = """
    105C9=105D2+307 105E4=105DA+307 11383=11382+113C9 11385=11384+113BB 1138E=1138B+113C2 11391=11390+113C9
    113C5=113C2+113C2 113C7=113C2+113B8 113C8=113C2+113C9 16121=1611E+1611E 16122=1611E+16129 16123=1611E+1611F
    16124=16129+1611F 16125=1611E+16120 16126=1611E+1611E+1611F 16127=1611E+16129+1611F 16128=1611E+1611E+16120
    16D68=16D67+16D67 16D69=16D63+16D67 16D6A=16D63+16D67+16D67
"""
_NEWER_NFKD = {
    0x1CCD6: "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    0x1E030: "абвгдежзиклмопрстуфхцчшыэюꚉәіјөүӏабвгдежзиклопсуфхцчшъыґіѕџҫꙑұ",
}
# The combining classes of Unicode 15 and 16.
_NEWER_CLASSES = {
    9: "113CE 113CF 113D0 11F41 11F42 1612F",
    220: "10EFD 10EFE 10EFF 1E4EE 1E5EF",
    230: "897 10D69 10D6A 10D6B 10D6C 10D6D 1E08F 1E4EF 1E5EE",
    232: "1E4EC 1E4ED",
}
_CLASSES = 256


class CoreDecomposition(tf.Module):
    """form: "NFD" or "NFKD"."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        rows, splits, characters, classes = tables(form)
        with tf.device("CPU"):
            self._rows, self._splits = tf.constant(rows), tf.constant(splits)
            self._characters, self._classes = tf.constant(characters), tf.constant(classes)

    def __call__(self, text: tf.Tensor) -> tf.Tensor:
        """Valid UTF-8, string [B] -> its normal form, string [B]."""
        given = tf.strings.unicode_decode(text, "UTF-8")
        row = tf.gather(self._rows, tf.minimum(given.values, tf.size(self._rows) - 1))
        first = tf.gather(self._splits, row)
        lengths = tf.where(row > 0, tf.gather(self._splits, row + 1) - first, 1)
        source = repeats(lengths)
        before = tf.cumsum(lengths, exclusive=True)
        place = tf.range(tf.size(source)) - tf.gather(before, source)
        split = tf.gather(row, source) > 0
        at = tf.where(split, tf.gather(first, source) + place, 0)
        codes = tf.where(split, tf.gather(self._characters, at), tf.gather(given.values, source))
        splits = tf.gather(tf.pad(tf.cumsum(lengths), [[1, 0]]), given.row_splits)
        codes = self._ordered(codes, row_numbers(splits))
        return tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(codes, splits, validate=False), "UTF-8"
        )

    def _ordered(self, codes: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        """Sorts the marks that follow a character by their classes. text: the row of each code point, int32 [N]."""
        mark = tf.cast(tf.gather(self._classes, tf.minimum(codes, tf.size(self._classes) - 1)), tf.int32)
        # A run begins at each character that is no mark, and at each text.
        opens = (mark == 0) | (text != tf.concat([[-1], text[:-1]], 0))
        run = tf.cast(tf.cumsum(tf.cast(opens, tf.int32)), tf.int64) * _CLASSES + tf.cast(mark, tf.int64)
        in_order = tf.reduce_all(run[1:] >= run[:-1])
        return tf.cond(in_order, lambda: codes, lambda: tf.gather(codes, tf.argsort(run, stable=True)))


@functools.cache
def tables(
    form: Literal["NFC", "NFD", "NFKC", "NFKD"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The decompositions of code points and their combining classes.

    Returns the row of each code point, int32 [C], 0 for those that stay; the splits of the rows, int32 [R + 1]; their characters,
    int32 [N]; and the classes, uint8 [C]. The last code point stays and has the class 0.
    """
    found = {
        code: form_of
        for code in range(sys.maxunicode)
        if not 0xD800 <= code <= 0xDFFF and (form_of := unicodedata.normalize(form, chr(code))) != chr(code)
    }
    for line in _NEWER_NFD.split():
        code, _, parts = line.partition("=")
        found[int(code, 16)] = "".join(chr(int(part, 16)) for part in parts.split("+"))
    for first, newer in _NEWER_NFKD.items() if form == "NFKD" else ():
        found |= {first + i: character for i, character in enumerate(newer)}
    marks = {code: unicodedata.combining(chr(code)) for code in range(sys.maxunicode)}
    marks |= {int(code, 16): kind for kind, codes in _NEWER_CLASSES.items() for code in codes.split()}
    size = max(*found, *(code for code, kind in marks.items() if kind)) + 2
    rows, classes = np.zeros(size, "int32"), np.zeros(size, "uint8")
    rows[[*found]] = np.arange(1, len(found) + 1)
    for mark, kind in marks.items():
        if kind:
            classes[mark] = kind
    lengths = [0, *map(len, found.values())]  # of row 0 too
    characters = np.frombuffer("".join(found.values()).encode("utf-32-le"), "<u4").astype("int32")
    return rows, np.cumsum([0, *lengths]).astype("int32"), characters, classes
