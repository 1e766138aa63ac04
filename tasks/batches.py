"""Turns the raw examples of a task into batches, and batches into predictions.

In: raw strings and labels. Out: (features, labels, weights) batches with examples of similar length; for prediction, the outputs
of `Problem.decode` for every example, in the order of the examples.

A task with windows turns a batch of B examples into W windows: features, labels and outputs are [W, ...], decoded outputs [B,
...]. If its loss reads them together, labelled batches are [B, K, ...], with the K windows of each example in one row.
"""

import concurrent.futures
import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import ALL_ROWS, EXAMPLE_INDEX, INPUT_MASK, WorkerRows
from bert_keras.io.own_code import is_own
from bert_keras.model.kernels import packed_weights
from bert_keras.optimization.replicas import without_autotuning
from bert_keras.tasks.devices.strategies import in_replicas, padded_for
from bert_keras.tasks.joined_windows import join_texts, join_windows
from bert_keras.tasks.report import Arrays
from bert_keras.tasks.task import Features, Problem, Raw, Task, checked_outputs, graph_errors, model_inputs
from bert_keras.text.preprocessing import Preprocessor, own_rows, pad_batches

# Batches that are sorted by length together: enough for similar lengths, few enough for random order.
POOL = 50
EMPTY = "the data set is empty; give at least one example."
_ROW = "row"  # the position of the example in the data set, int64 [B]
# A tf.data.Dataset of raw examples one at a time, or their columns [N, ...] by name.
Examples: TypeAlias = Any


def take_examples(examples: tf.data.Dataset, *, count: int | None, seed: int) -> tf.data.Dataset:
    """Draws `count` examples without replacement. Equal seeds draw equal examples; None takes all."""
    if count is None:
        return examples
    # TensorFlow's shuffle reads the global seed too: after a training from another seed, it would draw others.
    kept, _ = tf.compat.v1.get_seed(0)
    tf.random.set_seed(seed)
    drawn = examples.shuffle(cardinality(examples), seed=seed, reshuffle_each_iteration=False).take(count)
    tf.random.set_seed(kept)
    return drawn


def hold_out(
    examples: tf.data.Dataset, *, fraction: float, seed: int
) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Splits examples at random into the rest and the held-out fraction, both in their order. Equal seeds split equally.

    Raises BertKerasError if a part would be empty.
    """
    found = cardinality(examples)
    held = round(found * fraction)
    if not 0 < held < found:
        raise BertKerasError(
            f"a dev_fraction of {fraction:g} of {found} example(s) is {held}; give another fraction, or more examples."
        )
    chosen = np.zeros(found, bool)
    chosen[np.random.default_rng(seed).permutation(found)[:held]] = True
    where = tf.constant(chosen)

    def part(wanted: bool, size: int) -> tf.data.Dataset:
        kept = examples.enumerate().filter(lambda row, _: where[row] == wanted).map(lambda _, raw: raw)
        return kept.apply(tf.data.experimental.assert_cardinality(size))

    return part(False, found - held), part(True, held)


def count(elements: tf.data.Dataset) -> int:
    """The number of elements. Iterates over a data set of unknown cardinality."""
    known = int(elements.cardinality())
    return known if known >= 0 else sum(1 for _ in elements)


def cardinality(examples: tf.data.Dataset) -> int:
    """The number of examples. Raises BertKerasError for an empty data set."""
    found = count(examples)
    if found == 0:
        raise BertKerasError(EMPTY)
    return found


def batches(
    examples: tf.data.Dataset,
    *,
    batch_size: int,
    seed: int | None = None,
    arrange: Callable[[Raw], tf.Tensor] | None = None,
) -> tf.data.Dataset:
    """Batches of raw examples [B] with similar lengths.

    arrange: of `Problem.arranger`, for the examples of POOL batches

    A seed makes the order random, different in every epoch and equal for equal seeds; None keeps it fixed. Lengths are compared
    in bytes of raw text, so no text is tokenized twice. A fixed order needs no number of examples: an unknown one stays unknown.
    """
    found = int(examples.cardinality()) if seed is None else cardinality(examples)
    if found == 0:
        raise BertKerasError(EMPTY)
    if seed is not None:
        examples = examples.shuffle(found, seed=seed)
    made = examples.batch(POOL * batch_size).map(_sort_by_length)
    if arrange is not None:
        made = made.map(lambda raw: _in_order_of(raw, arrange(raw)))
    made = made.rebatch(batch_size)
    if seed is not None:
        made = made.shuffle(POOL, seed=seed + 1)
    return made if found < 0 else made.apply(tf.data.experimental.assert_cardinality(-(-found // batch_size)))


def dataset(
    task: Problem,
    preprocess: Preprocessor,
    examples: tf.data.Dataset,
    *,
    batch_size: int,
    seed: int | None = None,
    multiple_of: int = 1,
    labelled: bool = True,
    worker_rows: WorkerRows = ALL_ROWS,
) -> tf.data.Dataset:
    """The input of `fit`: (features, labels, weights), [B or W, ...]; (features, raw) with `labelled=False`.

    multiple_of: rows; `pad_batches` pads labelled batches to a multiple of it. With `batch_size` or more, all batches have one
        shape
    worker_rows: of labelled batches, whose rows `multiple_of` makes divisible. Other rows are not tokenized, except for a task
        with windows, whose batches are known only after that

    The order is that of `batches`. `preprocess` pads each batch to its longest row, or to one length. For a task with windows,
    `batch_size` counts windows in labelled batches, unless these are joined, and examples in unlabelled ones; the number of
    batches of windows is unknown.
    """
    fixed = worker_rows == ALL_ROWS and multiple_of >= max(batch_size, 2)
    rows: Any = {"multiple_of": multiple_of, "worker_rows": worker_rows}
    if labelled and task.windowed and not task.joins_windows:
        if seed is not None:
            examples = examples.shuffle(cardinality(examples), seed=seed)
        made = _map(examples.batch(batch_size), _featurizer(task, preprocess, labelled=True))
        made = _in_rows(_by_window(made, batch_size=batch_size, seed=seed), **rows)
    else:
        arrange = task.arranger(batch_size) if labelled and seed is not None else None
        raw = batches(examples, batch_size=batch_size, seed=seed, arrange=arrange)
        if not labelled:
            return _prefetched(_map(raw, _featurizer(task, preprocess, labelled=False)))
        made = _featurized(task, preprocess, raw, **rows)
    return _prefetched(set_row_count(made, multiple_of) if fixed else made)


def featurized(
    task: Problem,
    preprocess: Preprocessor,
    raw: tf.data.Dataset,
    *,
    multiple_of: int = 1,
    worker_rows: WorkerRows = ALL_ROWS,
) -> tf.data.Dataset:
    """(features, labels, weights) of a user's own batches of raw examples, in their order.

    A task with windows has all windows of a batch's examples in one batch. multiple_of, worker_rows: as in `dataset`
    """
    return _prefetched(_featurized(task, preprocess, raw, multiple_of=multiple_of, worker_rows=worker_rows))


def _featurized(
    task: Problem,
    preprocess: Preprocessor,
    raw: tf.data.Dataset,
    *,
    multiple_of: int,
    worker_rows: WorkerRows,
) -> tf.data.Dataset:
    featurize = _featurizer(task, preprocess, labelled=True)
    if worker_rows == ALL_ROWS or task.windowed:
        return _in_rows(_map(raw, featurize), multiple_of=multiple_of, worker_rows=worker_rows)
    # Only this worker's rows are tokenized. Copies of the first row fill up, with weight 0.
    labelled = raw.map(lambda raw: (raw, next(iter(raw.values()))))  # in the form of `pad_batches`
    padded = pad_batches(labelled, multiple_of=multiple_of)

    @tf.autograph.experimental.do_not_convert
    def own(raw: Raw, _: tf.Tensor, of_rows: tf.Tensor) -> tuple[Any, ...]:
        features, labels, weights = featurize(raw)

        def weighted(given: tf.Tensor) -> tf.Tensor:
            return given * tf.reshape(tf.cast(of_rows, given.dtype), [-1] + [1] * (len(given.shape) - 1))

        return features, labels, tf.nest.map_structure(weighted, weights)

    return _map(own_rows(padded, worker_rows), own)


def _in_rows(made: tf.data.Dataset, *, multiple_of: int, worker_rows: WorkerRows) -> tf.data.Dataset:
    """Batches in a number of rows that `multiple_of` divides, or the worker's rows of them."""
    if multiple_of > 1 or worker_rows != ALL_ROWS:
        made = pad_batches(made, multiple_of=multiple_of)
    return made if worker_rows == ALL_ROWS else own_rows(made, worker_rows)


def _map(made: tf.data.Dataset, call: Callable[..., Any]) -> tf.data.Dataset:
    return made.map(call, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _prefetched(made: tf.data.Dataset) -> tf.data.Dataset:
    """Batches that are made while a step runs."""
    return without_autotuning(made.prefetch(tf.data.AUTOTUNE))


def _featurizer(
    task: Problem, preprocess: Preprocessor, *, labelled: bool
) -> Callable[[Raw], tuple[Any, ...]]:
    """Raw examples [B] -> (features, labels, weights), or (features, raw)."""

    @tf.autograph.experimental.do_not_convert  # AutoGraph would hide an error of `features` in its own traceback
    def featurize(raw: Raw) -> tuple[Any, ...]:
        features = task.features(preprocess, raw)
        if not labelled:
            return features, raw
        made = (model_inputs(task, features), *task.labels(raw, features))
        if task.joins_texts:
            return join_texts(made[0], raw[task.text[-1]].shape[1]), *made[1:]
        return join_windows(*made, features[EXAMPLE_INDEX]) if task.joins_windows else made

    return featurize


def set_row_count(batches: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Batches of `count` rows, with that number in their shapes: a graph cannot infer it, and a TPU needs it."""

    def known(*batch: Any) -> Any:
        return tf.nest.map_structure(lambda x: tf.ensure_shape(x, [count, *x.shape[1:]]), batch)

    return batches.map(known)


def _by_window(groups: tf.data.Dataset, *, batch_size: int, seed: int | None) -> tf.data.Dataset:
    """(features, labels, weights) with the windows of a few examples -> batches of `batch_size` windows with similar lengths."""
    windows = groups.unbatch()
    if seed is not None:  # separates the windows of one text
        windows = windows.shuffle(POOL * batch_size, seed=seed + 1)
    made = windows.padded_batch(POOL * batch_size).map(_sort_by_mask).rebatch(batch_size).map(_trim)
    return made if seed is None else made.shuffle(POOL, seed=seed + 2)


def _sort_by_mask(features: Features, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
    order = tf.argsort(tf.reduce_sum(features[INPUT_MASK], axis=1), stable=True)
    return tf.nest.map_structure(lambda x: tf.gather(x, order), (features, labels, weights))


def _trim(features: Features, labels: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
    """Drops the positions that are padding in every row; keeps a fixed length."""
    longest = tf.reduce_max(tf.reduce_sum(features[INPUT_MASK], axis=1))
    per_position = tuple(features[INPUT_MASK].shape)

    def cut(x: tf.Tensor) -> tf.Tensor:
        return x[:, :longest] if per_position[1] is None and tuple(x.shape[:2]) == per_position else x

    return tf.nest.map_structure(cut, (features, labels, weights))


def _sort_by_length(raw: Raw) -> Raw:
    texts = [tf.strings.length(value) for value in raw.values() if value.dtype == tf.string]
    lengths = tf.add_n([tf.reduce_sum(tf.reshape(text, [tf.shape(text)[0], -1]), axis=1) for text in texts])
    return _in_order_of(raw, tf.argsort(lengths, stable=True))


def _in_order_of(raw: Raw, order: tf.Tensor) -> Raw:
    return {name: tf.gather(value, order) for name, value in raw.items()}


def check_examples(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset) -> None:
    """Checks labelled examples as the task does, and warns of those that a task of a user's own gives weight 0."""
    task.check(preprocess, examples)
    if not is_own(task.kind) or task.windowed:
        return

    def left_out(raw: Raw) -> tf.Tensor:
        _, weights = task.labels(raw, task.features(preprocess, raw))
        rows = tf.reshape(weights > 0, [tf.shape(weights)[0], -1])
        return tf.math.count_nonzero(~tf.reduce_any(rows, axis=1))

    counted = _map(examples.batch(POOL), tf.autograph.experimental.do_not_convert(left_out))
    if found := int(sum(counted.as_numpy_iterator())):
        warnings.warn(
            f"{found:,} of {count(examples):,} examples of {task.name} have weight 0: no training learns from them, and "
            "`evaluate` gets them too, so the measures count them unless it leaves them out",
            stacklevel=2,
        )


def predict(
    task: Problem,
    preprocess: Preprocessor,
    model: keras.Model,
    examples: tf.data.Dataset,
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[Arrays, Arrays]:
    """The decoded outputs for all examples, and the raw examples, both [N, ...] in the order of the examples.

    progress: called with the number of examples done since its last call
    """
    return predictor(task, preprocess, model, fixed=True)(examples, batch_size=batch_size, progress=progress)


def predictor(
    task: Problem, preprocess: Preprocessor, model: keras.Model, *, fixed: bool = False
) -> Callable[..., tuple[Arrays, Arrays]]:
    """Returns a `predict` for several data sets, which traces features, model and decoding once for equal shapes.

    fixed: True if the weights stay as they are between its calls

    Each replica of the model's strategy computes a share of each batch; all workers get all answers, so all must call it.
    """
    distribution = getattr(model, "distribute_strategy", tf.distribute.get_strategy())
    read = _featurizer(task, padded_for(distribution, preprocess), labelled=False)
    featurize = tf.function(read, autograph=False)
    packed = fixed and distribution.num_replicas_in_sync == 1

    @functools.cache
    def forward(batch_size: int) -> Any:
        def network(inputs: Features) -> Any:
            with packed_weights(model) if packed else contextlib.nullcontext():
                return model(inputs, training=False)

        return tf.function(in_replicas(distribution, network, batch_size=batch_size), autograph=False)

    @tf.function(autograph=False)
    def decode(outputs: Any, features: Features, raw: Raw) -> dict[str, tf.Tensor]:
        return task.decode(checked_outputs(outputs), features, raw)

    def trace(spec: Any) -> tuple[Any, Callable[..., tuple[Arrays, Arrays]]]:
        """One trace for all batches, since the specification has no sizes. A data set would prepare its own in every call."""
        prepare = featurize.get_concrete_function(spec)
        feature_spec, raw_spec = prepare.structured_outputs

        def answer(features: Features, raw: Raw, batch_size: int) -> tuple[Arrays, Arrays]:
            run = forward(batch_size).get_concrete_function(model_inputs(task, feature_spec))
            finish = decode.get_concrete_function(run.structured_outputs, feature_spec, raw_spec)
            outputs = _in_groups(run, model_inputs(task, features), batch_size)
            decoded = {name: value.numpy() for name, value in finish(outputs, features, raw).items()}
            return decoded, {name: value.numpy() for name, value in raw.items()}

        return prepare, answer

    def call(
        examples: Examples, *, batch_size: int, progress: Callable[[int], None] = lambda done: None
    ) -> tuple[Arrays, Arrays]:
        parts = []
        if (few := _one_batch(examples, batch_size)) is not None:
            prepare, answer = trace(_spec_of(few))
            batches_ahead: Iterable[Any] = [prepare(few)]
        else:
            grouped = _numbered(examples, batch_size)
            prepare, answer = trace(grouped.element_spec)
            batches_ahead = _ahead(prepare, without_autotuning(grouped))
        for features, raw in batches_ahead:
            with graph_errors():
                parts.append(answer(features, raw, batch_size))
            progress(len(parts[-1][1][_ROW]))
        if not parts:
            raise BertKerasError(EMPTY)
        return _in_order(parts)

    return call


def _one_batch(examples: Examples, batch_size: int) -> Raw | None:
    """The tensors of columns that fit into one batch, as a batch of `_numbered`; None for more of them, and for a data set.

    A data set traces its functions in each call, which takes several times as long as the answer to one text.
    """
    if isinstance(examples, tf.data.Dataset):
        return None
    count = len(next(iter(examples.values())))
    if not 0 < count <= batch_size:
        return None
    raw = {name: tf.constant(column) for name, column in examples.items()}
    raw[_ROW] = tf.range(count, dtype=tf.int64)
    return raw if count == 1 else _sort_by_length(raw)


def _spec_of(raw: Raw) -> dict[str, tf.TensorSpec]:
    """The specification of a batch of any number of rows."""
    return {name: tf.TensorSpec([None, *value.shape[1:]], value.dtype) for name, value in raw.items()}


def _numbered(examples: Examples, batch_size: int) -> tf.data.Dataset:
    """Batches of examples with their positions."""
    if not isinstance(examples, tf.data.Dataset):
        examples = tf.data.Dataset.from_tensor_slices({**examples})
    return batches(examples.enumerate().map(lambda row, raw: raw | {_ROW: row}), batch_size=batch_size)


def _in_groups(run: Callable[[Features], Any], inputs: Features, batch_size: int) -> Any:
    """The outputs of all rows, `batch_size` at a time: a text may have any number of windows, and groups bound the memory."""
    count = len(inputs[INPUT_MASK])
    if count <= batch_size:
        return run(inputs)
    outputs = [
        run({name: value[start : start + batch_size] for name, value in inputs.items()})
        for start in range(0, count, batch_size)
    ]
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)


def _ahead(call: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """The results of a call for each item; a thread makes the next one meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        before = None
        for item in items:
            following = executor.submit(call, item)
            if before is not None:
                yield before.result()
            before = following
        if before is not None:
            yield before.result()


def _in_order(parts: Sequence[tuple[Arrays, Arrays]]) -> tuple[Arrays, Arrays]:
    """Joins decoded outputs and raw examples of all batches in the order of `_ROW`, which it drops."""
    order = np.argsort(np.concatenate([raw[_ROW] for _, raw in parts]))
    decoded, raw = (
        {name: concatenated([part[side][name] for part in parts])[order] for name in parts[0][side]}
        for side in (0, 1)
    )
    raw.pop(_ROW)
    return decoded, raw


def concatenated(parts: list[np.ndarray]) -> np.ndarray:
    """Joins batches [B, ...] to [N, ...]; pads lists of unequal length with b"", -1 or 0.0."""
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    fill: Any = {"O": b"", "i": -1}.get(parts[0].dtype.kind, 0)

    def pad(part: np.ndarray) -> np.ndarray:
        missing = [(0, most - length) for most, length in zip(shape, part.shape[1:], strict=True)]
        return np.pad(part, [(0, 0), *missing], constant_values=fill)

    return np.concatenate([*map(pad, parts)])
