"""Mutations of small valid files: bytes in, bytes out, every choice from one random generator.

`random` is `random.Random` or what stands in for it, such as a draw of Hypothesis.
"""

import copy
import json
import struct
import tempfile
from collections.abc import Callable
from random import Random
from typing import Any

# Pieces of text that formats treat in their own way, or that decoders get wrong.
WORDS = (
    *("", " ", "\t", "\n", "\r", "\r\n", "\n\n", "\0", "\x0b", "\x1c", "\x85", "\u2028", "\ufeff", "\ufffd"),
    *("e\u0301", "\u4e2d", "\U0001f600", '"', '""', "'", ",", ";", "{", "}", "[", "]", "<", ">", "&", "&#0;"),
    *"</ --> <!-- <![CDATA[ ]]> {{ }} [[ ]] {| |} == null NaN 1e999 -1 0 99999999999999999999".split(),
    *("[PAD]", "[MASK]", "##", "##a", "Ġ", "O", "B-PER", "-DOCSTART- O", "\\", "\\ud800", "\\u0000"),
    *("x" * 300, "\u0301" * 300, "[" * 300, "{{" * 300, "[[" * 300),
)
RAW = (
    *(b"\xff", b"\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"),
    *(b"\x1f\x8b", b"PK\x03\x04", b"\x89HDF"),
)
NUMBERS = (
    *(0, 1, -1, 2, 3, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32),
    *(2**53, 2**63 - 1, 2**63, 2**64, 10**30),
)
VALUES = (
    *(None, True, False, 0.0, -0.0, 0.5, 1.0, 1.5, 1e308, 1e-320, float("nan"), float("inf"), -float("inf")),
    *("", "x", "\0", "a\nb", "../x", "/etc/passwd", [], {}, [[]], [None], [0], ["x"], {"": None}, {"a": {"b": []}}),
)  # fmt: skip
MOST = 4  # mutations of one file


def _some(random: Random) -> range:
    return range(random.randint(1, MOST))


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """Flips, cuts, copies and overwrites bytes anywhere."""
    for _ in _some(random):
        data = _BYTES[random.randrange(len(_BYTES))](data, random)
    return data


def _place(data: bytes, random: Random) -> int:
    return random.randint(0, len(data))


def _slice(data: bytes, random: Random) -> slice:
    start = _place(data, random)
    return slice(start, start + random.choice((1, 2, 4, 16, 64, 1024)))


def _flipped(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _overwritten(data: bytes, random: Random) -> bytes:
    """A little- or big-endian number over 1, 2, 4 or 8 bytes."""
    size, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
    number = random.choice(NUMBERS) % (1 << 8 * size)
    at = _place(data, random)
    return data[:at] + number.to_bytes(size, order) + data[at + size :]


def _deleted(data: bytes, random: Random) -> bytes:
    gone = _slice(data, random)
    return data[: gone.start] + data[gone.stop :]


def _copied(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + data[_slice(data, random)] * random.choice((1, 1, 2, 50)) + data[at:]


def _inserted(data: bytes, random: Random) -> bytes:
    at = _place(data, random)
    word = random.choice([*(word.encode(errors="surrogatepass") for word in WORDS), *RAW])
    return data[:at] + word + data[at:]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


_BYTES = (_flipped, _flipped, _overwritten, _deleted, _copied, _inserted, _inserted, _cut)


def mutated_text(data: bytes, random: Random) -> bytes:
    """Deletes, copies, swaps and edits whole lines and their columns; at times bytes, as `mutated_bytes`."""
    for _ in _some(random):
        if random.random() < 0.3:
            data = _BYTES[random.randrange(len(_BYTES))](data, random)
            continue
        lines = data.split(b"\n")
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        kind = random.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[other])
        elif kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 3:
            lines.insert(at, random.choice(WORDS).encode())
        elif kind == 4:
            mark = random.choice((b"\t", b",", b" "))
            columns = lines[at].split(mark)
            columns[random.randrange(len(columns))] = random.choice(WORDS).encode()
            lines[at] = mark.join(columns)
        else:
            lines[at] = lines[at] * random.choice((0, 2, 20))
        data = b"\n".join(lines)
    return data


def mutated_json(data: bytes, random: Random) -> bytes:
    """Changes values, keys and their nesting in a JSON text; one time in eight its bytes."""
    if random.random() < 0.125:
        return mutated_bytes(data, random)
    value = json.loads(data)
    for _ in _some(random):
        value = mutated_value(value, random)
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")


def mutated_json_lines(data: bytes, random: Random) -> bytes:
    """One line as `mutated_json`, or lines as `mutated_text`."""
    if random.random() < 0.3:
        return mutated_text(data, random)
    lines = data.strip().split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = mutated_json(lines[at], random)
    return b"\n".join(lines) + b"\n"


def mutated_value(value: Any, random: Random) -> Any:
    """A JSON value with one change at a random place."""
    value = copy.deepcopy(value)
    places = [(holder, key) for holder in _holders(value) for key in _keys(holder)]
    if not places or random.random() < 0.02:
        return _replaced(value, random)
    holder, key = places[random.randrange(len(places))]
    kind = random.randrange(8)
    if kind <= 3:
        holder[key] = _replaced(holder[key], random)
    elif kind == 4:
        del holder[key]
    elif kind == 5:
        other, its = places[random.randrange(len(places))]
        holder[key] = copy.deepcopy(other[its])
    elif isinstance(holder, dict):
        new = random.choice((*WORDS, str(key) + "_", str(key).upper()))
        holder[new] = holder[key] if kind == 6 else holder.pop(key)
    elif kind == 6:
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[:] = holder * random.choice((0, 2, 30))
    return value


def _holders(value: Any) -> list[Any]:
    """Every list and object in a value."""
    found, rest = [], [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict | list):
            found.append(one)
            rest += one.values() if isinstance(one, dict) else one
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _replaced(value: Any, random: Random) -> Any:
    kind = random.randrange(6)
    if kind == 0 and isinstance(value, int | float) and not isinstance(value, bool):
        return random.choice(
            (-value, value + 1, value - 1, value * 2, value * 1000, str(value), float(value))
        )
    if kind == 1 and isinstance(value, str):
        at = random.randint(0, len(value))
        return value[:at] + random.choice(WORDS) + value[at:]
    if kind == 2:
        return [copy.deepcopy(value)]
    if kind == 3:
        deep: Any = value
        for _ in range(random.choice((2, 30, 70, 90))):
            deep = [deep]
        return deep
    if kind == 4:
        return random.choice(NUMBERS)
    return copy.deepcopy(random.choice(VALUES))


def mutated_safetensors(data: bytes, random: Random) -> bytes:
    """Changes the JSON header and gives its new length; at times bytes anywhere."""
    if random.random() < 0.4:
        return mutated_bytes(data, random)
    size = struct.unpack("<Q", data[:8])[0]
    header = mutated_json(data[8 : 8 + size], random)
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def mutated_records(data: bytes, random: Random) -> bytes:
    """Changes features of one tf.Example in a TFRecord file, with right checksums; at times bytes anywhere."""
    if random.random() < 0.4:
        return mutated_bytes(data, random)
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/records"
        with open(path, "wb") as file:
            file.write(data)
        records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
        at = random.randrange(len(records))
        records[at] = _mutated_example(records[at], random)
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        with open(path, "rb") as file:
            return file.read()


def _mutated_example(record: bytes, random: Random) -> bytes:
    import tensorflow as tf

    if random.random() < 0.2:
        return mutated_bytes(record, random)
    example = tf.train.Example.FromString(record)
    features = example.features.feature
    name = random.choice(sorted(features))
    kind = random.randrange(5)
    values = features[name].int64_list.value or features[name].float_list.value
    if kind == 0:
        del features[name]
    elif kind == 1:
        features[name].CopyFrom(features[random.choice(sorted(features))])
    elif kind == 2:
        features[name].bytes_list.value.append(random.choice(RAW))
    elif kind == 3:
        del values[random.randrange(len(values)) :]
    else:
        number = random.choice([number for number in NUMBERS if -(2**63) <= number < 2**63])
        values[random.randrange(len(values))] = number
    return example.SerializeToString()


Mutate = Callable[[bytes, Random], bytes]
