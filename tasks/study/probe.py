"""Probes of each layer of a frozen encoder: how well a linear classifier reads labels of words and texts from it.

In: a checkpoint and labelled data. Out: a folder

    OUTPUT/results.json   for each probe the measure of every layer and restart, of random weights, and of the most common label
    OUTPUT/results.png    a panel for each probe: the measure over the layers

A probe is a linear classifier (ridge regression on the labels) that reads the vectors of one layer; the encoder does not learn. A
word has the vector of its first token, a text the mean of its tokens' vectors. Each restart learns from other examples.

Sources: Liu et al. 2019, "Linguistic Knowledge and Transferability of Contextual Representations"; Tenney et al. 2019, "BERT
Rediscovers the Classical NLP Pipeline".
"""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.conll import FILES, read
from bert_keras.tasks.data.glue_rows import LABEL, ROWS
from bert_keras.tasks.data.sources import check_dev_split, split_file
from bert_keras.tasks.frozen.extract import (
    Extractor,
    Pieces,
    Units,
    Words,
)
from bert_keras.tasks.metrics import accuracy, entity_scores
from bert_keras.tasks.options import ProbeOptions
from bert_keras.tasks.problems.classification import Glue
from bert_keras.tasks.report_tables import Table
from bert_keras.tasks.training.identity import identity_of_checkpoint
from bert_keras.tasks.training.progress import counter
from bert_keras.tasks.training.task_model import check_sizes
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.words import TEXT, TOKENS

PROBE = Layout(name="results of probes", identity="probe.json", results="results.json")
PICTURE = "results.png"
# Probe -> the column of its labels in a file of CoNLL-2003's format, and the least and the largest number of columns. With five,
# as in German CoNLL-2003, lemmas are in column 1.
COLUMNS = {"pos": (1, 3, 4), "chunk": (2, 3, 4), "entities": (-1, 2, None)}
# Probes of one text: GLUE's tasks with classes.
TEXTS = tuple(name for name, row in ROWS.items() if len(row.text) == 1 and row.labels)
CHECKPOINT, RANDOM = "checkpoint", "random weights"
CHUNK = 256  # examples between two looks at the clock


class Examples(NamedTuple):
    """Examples with labels: one for the text, or one for each of its words."""

    raw: Sequence[Mapping[str, bytes]]
    labels: Sequence[Sequence[str]]

    def chosen(self, rows: Sequence[int]) -> "Examples":
        """Some of the examples, in the order of the rows."""
        return Examples([self.raw[row] for row in rows], [self.labels[row] for row in rows])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The measures of one probe.

    measure: "f1" of entities, else "accuracy"
    layers: weights (CHECKPOINT, RANDOM) -> for each layer, 0 for the embeddings, the measure of each restart
    baseline: of the most common training label
    """

    name: str
    measure: str
    layers: Mapping[str, Sequence[Sequence[float]]]
    baseline: float

    def best(self) -> int:
        """The layer with the highest mean."""
        means = [statistics.fmean(values) for values in self.layers[CHECKPOINT]]
        return means.index(max(means))


def _words(path: str | pathlib.Path, split: str, *, column: int, least: int, most: int | None) -> Examples:
    """The sentences of a split, with the labels of their words."""
    sentences = itertools.chain.from_iterable(
        read(split_file(path, split, FILES), column=column, least=least, most=most).documents
    )
    rows = [({TOKENS: " ".join(one.words).encode()}, one.tags) for one in sentences]
    return Examples([raw for raw, _ in rows], [tags for _, tags in rows])


def _texts(path: str | pathlib.Path, split: str, name: str) -> Examples:
    """The labelled texts of a split."""
    task = Glue(ROWS[name], path)
    rows = [row for row in task.examples(split).as_numpy_iterator() if row[LABEL] >= 0]
    (text,) = task.text
    return Examples(
        [{TEXT: row[text]} for row in rows], [[task.label_names[int(row[LABEL])]] for row in rows]
    )


def _read(name: str, path: str | pathlib.Path, split: str) -> Examples:
    if name in COLUMNS:
        column, least, most = COLUMNS[name]
        return _words(path, split, column=column, least=least, most=most)
    return _texts(path, split, name)


def _drawn(examples: Examples, *, count: int, parts: int, seed: int, name: str) -> list[Examples]:
    """Disjoint random parts of `count` examples each. Raises BertKerasError if there are too few."""
    if len(examples.raw) < count * parts:
        raise BertKerasError(
            f"{name} has {len(examples.raw)} training examples, and {parts} restarts of {count} read {count * parts}; give a "
            "lower max_examples or fewer restarts."
        )
    order = np.random.default_rng(seed).permutation(len(examples.raw))
    return [examples.chosen(order[part * count : (part + 1) * count].tolist()) for part in range(parts)]


def _vectors(
    extractor: Extractor, examples: Examples, *, about: str, log: Callable[[str], None]
) -> list[np.ndarray]:
    """For each example its vectors [N, K, H] of N words, or [1, K, H] of the text."""
    advance, made = counter(about, len(examples.raw), log=log), []
    chunks = (examples.raw[start : start + CHUNK] for start in range(0, len(examples.raw), CHUNK))
    for found in itertools.chain.from_iterable(map(extractor, chunks)):
        vectors = found["vectors"].astype(np.float32)
        if isinstance(extractor.units, Pieces):
            count = max(len(vectors), 1)  # a text without a token has zeros
            vectors = vectors.sum(axis=0, keepdims=True) / count
        made.append(vectors)
        advance(1)
    return made


def _measure(name: str, gold: Sequence[Sequence[str]], predicted: np.ndarray) -> float:
    """F1 of entities, or accuracy. predicted: the labels of all examples in a row."""
    if name != "entities":
        return accuracy(np.concatenate(gold), predicted)
    ends = np.cumsum([len(tags) for tags in gold])
    rows = [part.tolist() for part in np.split(predicted, ends[:-1])]
    return entity_scores([[*tags] for tags in gold], rows).f1


def _probed(
    name: str, train: Examples, dev: Examples, x: list[np.ndarray], y: list[np.ndarray]
) -> list[float]:
    """The measure of a probe on each layer. x, y: the vectors of the training and dev examples."""
    joined, asked, labels = np.concatenate(x), np.concatenate(y), np.concatenate(train.labels)
    values = []
    for layer in range(joined.shape[1]):
        probe = make_pipeline(StandardScaler(), RidgeClassifier())
        probe.fit(joined[:, layer], labels)
        values.append(_measure(name, dev.labels, probe.predict(asked[:, layer])))
    return values


def _baseline(name: str, train: Examples, dev: Examples) -> float:
    labels, counts = np.unique(np.concatenate(train.labels), return_counts=True)
    predicted = np.full(sum(map(len, dev.labels)), labels[counts.argmax()])
    return _measure(name, dev.labels, predicted)


def _check(data: Mapping[str, Any]) -> None:
    known = (*COLUMNS, *TEXTS)
    if not data:
        raise BertKerasError(f"no probe was asked for; give the data of at least one of {', '.join(known)}.")
    if unknown := [name for name in data if name not in known]:
        raise BertKerasError(f"there is no probe {unknown[0]!r}; the probes are {', '.join(known)}.")
    for source in data.values():
        check_dev_split(source)


def run_probes(
    data: Mapping[str, str | pathlib.Path],
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    log: Callable[[str], None] = print,
    **settings: Any,
) -> list[Result]:
    """Runs probes of every layer and writes the files of this module; a stopped call starts again.

    data: probe -> the folder of its files: CoNLL-2003's for a key of COLUMNS, GLUE's for one of TEXTS
    settings: fields of ProbeOptions

    Raises BertKerasError for an unknown probe, too few examples, a length that does not fit, and a folder with other files;
    MissingFileError for missing data.
    """
    options = ProbeOptions(**settings)
    _check(data)
    folder = Folder(to_path(output), PROBE)
    folder.check()
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    read = {name: (_parts(name, path, options), _dev(name, path, options)) for name, path in data.items()}
    for name, (parts, _) in read.items():
        _check_fits(name, source, parts[0], options)
    identity = dataclasses.asdict(options) | identity_of_checkpoint(source, checkpoints.tokenizer_of(source))
    with folder.begin(identity | {"probes": list(data)}):
        results = []
        for name, (parts, dev) in read.items():
            layers = {
                weights: _all_layers(name, one, parts, dev, options, about=f"{name}, {weights}", log=log)
                for weights, one in _weights(source).items()
            }
            base = statistics.fmean(_baseline(name, part, dev) for part in parts)
            measure = "f1" if name == "entities" else "accuracy"
            results.append(Result(name=name, measure=measure, layers=layers, baseline=base))
        draw(results, folder.path / PICTURE)
        folder.finish({one.name: dataclasses.asdict(one) for one in results})
    return results


def _parts(name: str, path: str | pathlib.Path, options: ProbeOptions) -> list[Examples]:
    train = _read(name, path, "train")
    return _drawn(train, count=options.max_examples, parts=options.restarts, seed=options.seed, name=name)


def _dev(name: str, path: str | pathlib.Path, options: ProbeOptions) -> Examples:
    dev = _read(name, path, "validation")
    count = min(options.max_examples, len(dev.raw))
    return _drawn(dev, count=count, parts=1, seed=options.seed, name=name)[0]


def _units(name: str) -> Units:
    """A vector for each word, or for each token of a text."""
    return Words() if name in COLUMNS else Pieces()


def _check_fits(name: str, source: checkpoints.Checkpoint, examples: Examples, options: ProbeOptions) -> None:
    """Raises BertKerasError unless an example becomes features that the encoder can read."""
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=options.seq_length)
    raw = {field: tf.constant([text]) for field, text in examples.raw[0].items()}
    _units(name).features(Preprocessor(tokenizer, seq_length=options.seq_length), raw)


def _weights(source: checkpoints.Checkpoint) -> dict[str, checkpoints.Checkpoint]:
    """The checkpoint, and as a control its encoder at random weights."""
    return {CHECKPOINT: source, RANDOM: dataclasses.replace(source, tensors={})}


def _all_layers(
    name: str,
    source: checkpoints.Checkpoint,
    parts: Sequence[Examples],
    dev: Examples,
    options: ProbeOptions,
    *,
    about: str,
    log: Callable[[str], None],
) -> list[list[float]]:
    """For each layer, the measure of each restart."""
    keras.utils.set_random_seed(options.seed)  # of random weights
    extractor = Extractor(source, units=_units(name), dtype="float32", seq_length=options.seq_length)
    asked = _vectors(extractor, dev, about=f"{about}, dev", log=log)
    restarts = []
    for number, part in enumerate(parts, start=1):
        vectors = _vectors(extractor, part, about=f"{about}, restart {number}", log=log)
        restarts.append(_probed(name, part, dev, vectors, asked))
    return [list(values) for values in zip(*restarts, strict=True)]


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """A table for each probe: the mean and standard error of each layer, in percent."""
    for one in results:
        rows: list[tuple[Any, ...]] = []
        for layer in range(len(one.layers[CHECKPOINT])):
            cells = [_spelled(one.layers[weights][layer]) for weights in (CHECKPOINT, RANDOM)]
            label = "embeddings" if layer == 0 else f"layer {layer}"
            rows.append((f"{label}, the best" if layer == one.best() else label, *cells))
        rows.append(("most common label", f"{100 * one.baseline:.1f}", ""))
        yield Table(f"{one.name}: {one.measure} on dev, percent", ("layer", CHECKPOINT, RANDOM), rows)


def _spelled(values: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.1f}"
    if len(values) < 2:
        return mean
    return f"{mean} +- {100 * statistics.stdev(values) / len(values) ** 0.5:.1f}"


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
    """Draws a panel for each probe: the mean over the restarts for each layer, random weights and the most common label."""
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(results) + 0.8, 3.2), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, one in zip(panels, results, strict=True):
        for (weights, layers), style in zip(one.layers.items(), ("o-", "s--"), strict=True):
            means = [100 * statistics.fmean(values) for values in layers]
            panel.plot(range(len(means)), means, style, label=weights)
        panel.axhline(100 * one.baseline, color="gray", linestyle=":", label="most common label")
        panel.set_title(one.name)
        panel.set_xlabel("layer (0: embeddings)")
        panel.set_ylabel(f"{one.measure} on dev, percent")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
