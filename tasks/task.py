"""What a task is, and the one dataset() that turns its examples into batches.

In: raw strings and labels. Out: (features, labels, weights) batches of like length; and, for prediction, what
`Task.decode` says of every example, in the examples' order.

Where a task cuts its examples into windows, a batch of B examples has W windows: features, labels and outputs are [W, ...], what
`decode` returns is [B, ...].
"""

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, Self

import keras
import numpy as np
import tensorflow as tf

from bert_keras.encoder import BertEncoder, encoder_inputs
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import (
    ENCODER_INPUTS,
    INPUT_MASK,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.heads import ClassifierHead, ConcatClassifierHead
from bert_keras.paths import path_of
from bert_keras.text.preprocessing import pad_batches
from tasks.reading import bounded_lines

Features = dict[str, tf.Tensor]
Raw = dict[str, tf.Tensor]
# Where a task's files are: a folder of files by their official names, one file for any split, or a file for each split.
Source = str | Path | Mapping[str, str | Path]

# Batches whose examples are sorted by length together: enough for like lengths, few enough for random order.
POOL = 50
MAX_UNPACKED_BYTES = 250_000_000  # of a file that is read as a whole, and of a packed one that is examples
ERRORS_SHOWN = 10  # of the errors that a report lists
MODEL_INPUTS = (*ENCODER_INPUTS, MASKED_LM_POSITIONS)
_ROW = "row"  # the example's place in the data set, int64 [B]


class Table(NamedTuple):
    """What `bert-keras evaluate` prints beside the measures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Task(Protocol):
    """One data set with its features, labels, model, loss, decoding and measures.

    kind: what task.json calls the class
    names: what the command line calls its data sets
    options: the settings that `open` takes beside the source
    name: which of `names` this is
    outputs: the encoder outputs that its model reads
    measure: the name in `evaluate` by which the best epoch is chosen
    validation_splits: the labelled splits to measure; the first chooses the best epoch
    defaults: the Hparams of its recipe that differ from those of Hparams
    windowed: whether examples are cut into windows
    calibrated: the numbers in `to_json` that `calibrate` chose
    pretrained_head: whether pre-training made the head too, so that fine-tuning starts from it where the checkpoint has it
    lists: where `decode` lists several things of each example: how their names begin, and the one that is -1 where it only
        fills up
    example_texts: by the names of `signature`, what an example request asks where the usual text would ask nothing
    label_names: what the head's rows stand for, where they are labels
    """

    kind: str
    names: tuple[str, ...]
    options: tuple[str, ...] = ()
    name: str
    outputs: tuple[str, ...]
    measure: str
    validation_splits: tuple[str, ...]
    defaults: Mapping[str, Any] = {}
    windowed: bool = False
    calibrated: tuple[str, ...] = ()
    pretrained_head: bool = False
    lists: Mapping[str, str] = {}
    example_texts: Mapping[str, str] = {}
    label_names: tuple[str, ...] = ()

    @classmethod
    def open(cls, name: str, source: Source | None, **options: Any) -> Self:
        """The task of that name with its examples in `source` (None: TensorFlow Datasets)."""
        ...

    def examples(self, split: str) -> tf.data.Dataset:
        """Raw examples, one at a time: a dict of scalar tensors, or of tensors that have one shape in all examples."""
        ...

    def check(self, preprocess: Callable[..., Features], examples: tf.data.Dataset) -> None:
        """Warns of what `features` will not keep of the examples to train on or to measure. Most keep all."""
        return

    def features(self, preprocess: Callable[..., Features], raw: Raw) -> Features:
        """Raw [B] -> Features int32 [B, S]."""
        ...

    def labels(self, raw: Raw, features: Features) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels and weights float32, of the logits' leading shape."""
        ...

    def model(self, encoder: BertEncoder) -> keras.Model:
        """Features -> outputs."""
        ...

    def loss(self) -> keras.losses.Loss:
        """The loss of outputs and labels under weights."""
        ...

    def decode(self, outputs: Any, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        """What is served, [B, ...]; in graph."""
        ...

    def signature(self) -> dict[str, tf.TensorSpec]:
        """The raw strings that serving takes."""
        ...

    def decode_features(self, outputs: Any) -> dict[str, tf.Tensor]:
        """What is served to those who send features and no text, [B, ...] or [W, ...]; in graph."""
        return {"logits": outputs}

    def evaluate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, float]]:
        """Yields (name, value) from what `decode` returned and the raw examples."""
        ...

    def record(self, decoded: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What `decode` says of one example, for JSON: its arrays [...] as plain values, without what only fills up."""
        return {name: plain(value) for name, value in decoded.items()}

    def show(self, example: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, str]:
        """One line of a table for people: the example's texts, by the names of `signature`, and its `record`."""
        cells = {**example, **record}
        return {name: _cell(value) for name, value in cells.items()}

    def report(self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]) -> Iterator[Table]:
        """Tables for people beside the measures, of the arguments of `evaluate`."""
        return iter(())

    def calibrate(
        self, predictions: Mapping[str, np.ndarray], raw: Mapping[str, np.ndarray]
    ) -> Mapping[str, np.ndarray]:
        """Chooses what is chosen on a dev split (a threshold) and returns the predictions under it. Most have nothing."""
        return predictions

    def to_json(self) -> dict[str, Any]:
        """What task.json keeps, enough to make the task again without its data."""
        ...

    @classmethod
    def from_json(cls, kept: Mapping[str, Any], source: Source | None = None) -> Self:
        """The task that `to_json` was called on, with its examples in `source`."""
        ...


def plain(value: Any) -> Any:
    """Arrays, NumPy's numbers and bytes as lists, numbers and strings; what is no UTF-8 is replaced."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def split_file(source: Source, split: str, names: Mapping[str, tuple[str, ...]]) -> Path:
    """The file of a split.

    names: the splits and, for each, the names that its file may have in a folder

    Raises ValueError on a split that is not among `names` or `source`, FileNotFoundError where there is no such file.
    """
    if split not in names:
        raise BertKerasError(f"there is no split {split!r}; the splits are {', '.join(names)}.")
    if isinstance(source, Mapping):
        if split not in source:
            raise BertKerasError(
                f"no file was given for the {split} split; there is one for {', '.join(source)}."
            )
        return split_file(source[split], split, names)
    path = path_of(source)
    if path.is_dir():
        found = next((path / name for name in names[split] if (path / name).is_file()), None)
        if found is None:
            there = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
            raise MissingFileError(
                f"{path} has no file for the {split} split; wanted is {' or '.join(names[split])}, there is {there}."
            )
        return found
    if not path.is_file():
        raise MissingFileError(f"there is no {path}; give a file, or a folder of files.")
    return path


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], bool]]:
    """The bytes of a file, unpacked where it is gzipped, and whether it is. Raises ValueError where it cannot be unpacked."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacked: Any = gzip.GzipFile(fileobj=file) if packed else file
            yield unpacked, packed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BertKerasError(f"{path} cannot be unpacked ({error}); fetch it again.") from error


def read_text(path: Path) -> str:
    """The text of a file of at most MAX_UNPACKED_BYTES, plain or gzipped, without a byte order mark.

    Raises ValueError where it is longer, is not UTF-8, naming line and byte, or cannot be unpacked.
    """
    read = bytearray()
    with _opened(path) as (file, _):
        while chunk := file.read(io.DEFAULT_BUFFER_SIZE):
            read += chunk
            if len(read) > MAX_UNPACKED_BYTES:
                raise BertKerasError(
                    f"{path} has over {MAX_UNPACKED_BYTES:,} bytes of text; give several files."
                )
    data = read.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        at = error.start
        line, byte = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
        raise _not_utf8(path, line, byte, data[at]) from error


def _not_utf8(path: Path, line: int, byte: int, value: int) -> BertKerasError:
    where = f"{path}, line {line}, byte {byte}"
    return BertKerasError(f"{where}: 0x{value:02x} is not UTF-8; save the file as UTF-8.")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, and their numbers from 1. Only a newline ends a line: U+2028 is text.

    Raises ValueError as `read_text`, at a line over MAX_LINE_BYTES, and where a gzipped file unpacks to more than
    MAX_UNPACKED_BYTES.
    """
    unpacked = 0
    with _opened(path) as (file, packed):
        for number, line in enumerate(bounded_lines(file, path), start=1):
            unpacked += len(line)
            if packed and unpacked > MAX_UNPACKED_BYTES:
                raise BertKerasError(
                    f"{path} unpacks to over {MAX_UNPACKED_BYTES:,} bytes; unpack it, if you trust it."
                )
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error.start + 1, line[error.start]) from error
            yield number, text.removesuffix("\n").removesuffix("\r")


def check_text(where: str, *texts: str) -> None:
    """Raises ValueError on half of a surrogate pair, which JSON's escapes can write."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BertKerasError(f"{where}: {half} is half a character; wanted is text.") from error


def model_inputs(features: Features) -> Features:
    """The features that a model reads, without those that only `labels` and `decode` do."""
    return {name: features[name] for name in MODEL_INPUTS if name in features}


# How a classifier reads an encoder, and the encoder output that it needs.
POOLINGS = {"pooled": POOLED_OUTPUT, "concat": SEQUENCE_OUTPUT}


def classifier_model(encoder: BertEncoder, num_classes: int, *, pooling: str = "pooled") -> keras.Model:
    """Features -> logits float32 [B, C].

    pooling: "pooled", the pooled output; "concat", the states at all real positions as in ConcatClassifierHead
    """
    inputs, config, dtype = encoder_inputs(), encoder.config, encoder.dtype_policy
    read = encoder(inputs)[POOLINGS[pooling]]
    if pooling == "concat":
        logits = ConcatClassifierHead(num_classes, config=config, dtype=dtype)(read, inputs[INPUT_MASK])
    else:
        logits = ClassifierHead(num_classes, config=config, dtype=dtype)(read)
    return keras.Model(inputs, logits, name="classifier_model")


def take_examples(examples: tf.data.Dataset, *, count: int | None, seed: int) -> tf.data.Dataset:
    """`count` examples drawn without replacement, the same for the same seed; all of them where count is None."""
    if count is None:
        return examples
    return examples.shuffle(cardinality(examples), seed=seed, reshuffle_each_iteration=False).take(count)


def count(elements: tf.data.Dataset) -> int:
    """How many elements there are; they are gone through where the data set does not say."""
    known = int(elements.cardinality())
    return known if known >= 0 else sum(1 for _ in elements)


def cardinality(examples: tf.data.Dataset) -> int:
    """How many examples there are. Raises ValueError on none."""
    found = count(examples)
    if found == 0:
        raise BertKerasError("the data set is empty; at least one example is wanted.")
    return found


def batches(examples: tf.data.Dataset, *, batch_size: int, seed: int | None = None) -> tf.data.Dataset:
    """Raw [B], examples of like length together.

    With a seed the order is random and another in every epoch, equal for equal seeds; without one it is fixed. Lengths are
    compared in bytes of raw text, so nothing is tokenized twice.
    """
    found = cardinality(examples)
    if seed is not None:
        examples = examples.shuffle(found, seed=seed)
    made = examples.batch(POOL * batch_size).map(_sort_by_length).rebatch(batch_size)
    if seed is not None:
        made = made.shuffle(POOL, seed=seed + 1)
    return made.apply(tf.data.experimental.assert_cardinality(-(-found // batch_size)))


def dataset(
    task: Task,
    preprocess: Callable[..., Features],
    examples: tf.data.Dataset,
    *,
    batch_size: int,
    seed: int | None = None,
    multiple_of: int = 1,
    labelled: bool = True,
) -> tf.data.Dataset:
    """What `fit` takes, (features, labels, weights) [B or W, ...]; where `labelled` is False, (features, raw).

    multiple_of: rows; labelled batches are padded to a multiple of it by `pad_batches`, and have one shape where it is
        `batch_size` or more

    The order is that of `batches`; `preprocess` pads each batch to its own longest, or to one length. Where the task cuts
    windows, `batch_size` counts windows with labels and examples without, and how many batches there are is not known.
    """

    @tf.autograph.experimental.do_not_convert  # it would hide a ValueError of `features` in a traceback of its own
    def featurize(raw: Raw) -> tuple[Any, ...]:
        features = task.features(preprocess, raw)
        if not labelled:
            return features, raw
        return (model_inputs(features), *task.labels(raw, features))

    if labelled and task.windowed:
        if seed is not None:
            examples = examples.shuffle(cardinality(examples), seed=seed)
        made = _by_window(
            examples.batch(batch_size).map(
                featurize, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            ),
            batch_size=batch_size,
            seed=seed,
        )
    else:
        made = batches(examples, batch_size=batch_size, seed=seed)
        made = made.map(featurize, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if labelled and multiple_of > 1:
        made = pad_batches(made, multiple_of=multiple_of)
        if multiple_of >= batch_size:  # the graph does not know it, and a TPU must
            made = made.map(lambda *batch: tf.nest.map_structure(lambda x: _of_rows(x, multiple_of), batch))
    return made.prefetch(tf.data.AUTOTUNE)


def _of_rows(values: tf.Tensor, count: int) -> tf.Tensor:
    return tf.ensure_shape(values, [count, *values.shape[1:]])


def _by_window(groups: tf.data.Dataset, *, batch_size: int, seed: int | None) -> tf.data.Dataset:
    """(features, labels, weights) of a few examples' windows -> batches of `batch_size` windows of like length."""
    windows = groups.unbatch()
    if seed is not None:  # or the windows of one text would stay together
        windows = windows.shuffle(POOL * batch_size, seed=seed + 1)
    made = windows.padded_batch(POOL * batch_size).map(_sort_by_mask).rebatch(batch_size).map(_trim)
    return made if seed is None else made.shuffle(POOL, seed=seed + 2)


def _sort_by_mask(features: Features, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
    order = tf.argsort(tf.reduce_sum(features[INPUT_MASK], axis=1), stable=True)
    return tf.nest.map_structure(lambda x: tf.gather(x, order), (features, labels, weights))


def _trim(features: Features, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
    """Drops the positions that are padding in every row; a length that is fixed stays."""
    longest = tf.reduce_max(tf.reduce_sum(features[INPUT_MASK], axis=1))
    per_position = tuple(features[INPUT_MASK].shape)

    def cut(x: tf.Tensor) -> tf.Tensor:
        return x[:, :longest] if per_position[1] is None and tuple(x.shape[:2]) == per_position else x

    return tf.nest.map_structure(cut, (features, labels, weights))


def _sort_by_length(raw: Raw) -> Raw:
    texts = [tf.strings.length(value) for value in raw.values() if value.dtype == tf.string]
    lengths = tf.add_n([tf.reduce_sum(tf.reshape(text, [tf.shape(text)[0], -1]), axis=1) for text in texts])
    order = tf.argsort(lengths, stable=True)
    return {name: tf.gather(value, order) for name, value in raw.items()}


Arrays = dict[str, np.ndarray]


def predict(
    task: Task,
    preprocess: Callable[..., Features],
    model: keras.Model,
    examples: tf.data.Dataset,
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Arrays, Arrays]:
    """What `task.decode` says of every example, and the raw examples, both [N, ...] in the examples' order.

    `progress` is called with the number of examples done since its last call.
    """
    return predictor(task, preprocess, model)(examples, batch_size=batch_size, progress=progress)


def predictor(
    task: Task, preprocess: Callable[..., Features], model: keras.Model
) -> Callable[..., tuple[Arrays, Arrays]]:
    """`predict` for one set of examples after another: model and decoding are traced once for all that are alike."""

    @tf.function(autograph=False)
    def forward(inputs: Features) -> Any:
        return model(inputs, training=False)

    @tf.function(autograph=False)
    def decode(outputs: Any, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        return task.decode(outputs, features, raw)

    def call(
        examples: tf.data.Dataset,
        *,
        batch_size: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> tuple[Arrays, Arrays]:
        numbered = examples.enumerate().map(lambda row, raw: raw | {_ROW: row})
        made = dataset(task, preprocess, numbered, batch_size=batch_size, labelled=False)
        feature_spec, raw_spec = made.element_spec
        # Of unknown length: one trace for all.
        run = forward.get_concrete_function(model_inputs(feature_spec))
        finish = decode.get_concrete_function(run.structured_outputs, feature_spec, raw_spec)
        parts = []
        for features, raw in made:
            inputs = model_inputs(features)
            # One text may have any number of windows, which must not all be in memory at once.
            outputs = [
                run({name: value[start : start + batch_size] for name, value in inputs.items()})
                for start in range(0, len(inputs[INPUT_MASK]), batch_size)
            ]
            joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)
            decoded = {name: value.numpy() for name, value in finish(joined, features, raw).items()}
            parts.append((decoded, {name: value.numpy() for name, value in raw.items()}))
            progress(len(parts[-1][1][_ROW]))
        return _in_order(parts)

    return call


def _in_order(parts: Sequence[tuple[Arrays, Arrays]]) -> tuple[Arrays, Arrays]:
    """Both of all batches joined, in the order of the rows that the second has, without these."""
    order = np.argsort(np.concatenate([raw[_ROW] for _, raw in parts]))
    decoded, raw = (
        {name: concatenated([part[side][name] for part in parts])[order] for name in parts[0][side]}
        for side in (0, 1)
    )
    raw.pop(_ROW)
    return decoded, raw


def concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """[B, ...] of several batches -> [N, ...]; lists of unequal length are filled up with b"", -1 or 0.0."""
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    fill: Any = {"O": b"", "i": -1}.get(parts[0].dtype.kind, 0)
    filled = [
        np.pad(
            part,
            [(0, 0), *((0, most - length) for most, length in zip(shape, part.shape[1:], strict=True))],
            constant_values=fill,
        )
        for part in parts
    ]
    return np.concatenate(filled)
