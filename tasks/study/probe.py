"""Probes of each layer of a frozen encoder: how well a linear classifier reads labels of words and texts from it.

In: a checkpoint and labelled data. Out: a folder

    OUTPUT/results.json   for each probe the measure of every layer and restart, of random weights, and of the most common label
    OUTPUT/results.png    a panel for each probe: the measure over the layers

A probe is a linear classifier (ridge regression on the labels) that reads the vectors of one layer; the encoder does not learn. A
word has the vector of its first token, a text the mean of its tokens' vectors. Each restart learns from other examples.

Sources: Liu et al. 2019b; Tenney et al. 2019.
"""

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bert_keras import checkpoints
from bert_keras.cli.console import counter
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io import formats
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import shortened
from bert_keras.io.own_code import digests_of, is_own, load_own
from bert_keras.io.paths import to_path
from bert_keras.tasks.data.conll import FILES, read_corpus
from bert_keras.tasks.data.glue import LABEL, ROWS
from bert_keras.tasks.data.sources import check_dev_split, split_file
from bert_keras.tasks.frozen.extractor import Extractor, Pieces, TextUnits, text_units
from bert_keras.tasks.metrics import ONE_SEED, accuracy, entity_scores, ordering, percent
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.report import Table
from bert_keras.tasks.study.grid import Cell, Study
from bert_keras.tasks.study.study_options import ProbeOptions
from bert_keras.tasks.study.work import Work, forward
from bert_keras.tasks.training.plan import fingerprint_of_checkpoint
from bert_keras.text.words import TEXT, TOKENS

PROBE = Layout(
    name="results of probes", artifact=formats.STUDY, fingerprint="probe.json", results=formats.RESULTS_FILE
)
PICTURE = "results.png"
# Probe -> the column of its labels in a file of CoNLL-2003's format, and the least and the largest number of columns. With five,
# as in German CoNLL-2003, lemmas are in column 2.
COLUMNS = {"pos": ("2", 3, 4), "chunk": ("3", 3, 4), "entities": (None, 2, None)}
# Probes of one text: GLUE's tasks with classes.
TEXTS = tuple(name for name, row in ROWS.items() if len(row.text) == 1 and row.labels)
CHECKPOINT, RANDOM = "checkpoint", "random weights"
RULE = "(Welch's t-test over the draws of training examples, 5 %; the dev examples are the same)"
CHUNK = 256  # examples between two looks at the clock


class Example(NamedTuple):
    """A text with one label, or a sentence with a label for each of its words."""

    raw: Mapping[str, bytes]
    labels: Sequence[str]


class Probe(NamedTuple):
    """A kind of probe. One of a user's own is given by MODULE:NAME.

    read: (path, split) -> the Examples of "train" and of "validation": raw is {"tokens": words}, with a list of a label for each
        word, or {"text": text}, with a list of one label; white space separates words, as in `bytes.split`
    words: True for a label of each word
    measure: the name of the score
    score: (gold, predicted), the labels of each dev example as lists -> a number from 0 to 1
    """

    read: Callable[[str | pathlib.Path, str], Sequence[Example]]
    words: bool = True
    measure: str = "accuracy"
    score: Callable[[list[list[str]], list[list[str]]], float] = lambda gold, predicted: accuracy(
        np.concatenate(gold), np.concatenate(predicted)
    )


def probe_named(name: str) -> Probe:
    """The probe of a key of COLUMNS, of one of TEXTS, or of MODULE:NAME. Raises BertKerasError for another name or object."""
    if is_own(name):
        found = load_own(name, given="--data")
        if not isinstance(found, Probe):
            raise BertKerasError(
                f"--data {name} is {type(found).__name__}; give a Probe (bert_keras.tasks.study.probe)."
            )
        return found
    if name in COLUMNS:
        read = functools.partial(_read_words, name)
        if name != "entities":
            return Probe(read)
        return Probe(read, measure="f1", score=lambda gold, predicted: entity_scores(gold, predicted).f1)
    if name in TEXTS:
        return Probe(functools.partial(_read_texts, name), words=False)
    known = ", ".join((*COLUMNS, *TEXTS))
    raise BertKerasError(
        f"there is no probe {name!r}; the probes are {known}, or MODULE:NAME for one of your own."
    )


def _read_words(name: str, path: str | pathlib.Path, split: str) -> list[Example]:
    """The sentences of a split with the labels of their words."""
    tag, least, most = COLUMNS[name]
    found = read_corpus(split_file(path, split, FILES), tag=tag, least=least, most=most)
    sentences = itertools.chain.from_iterable(found.documents)
    return [Example({TOKENS: " ".join(one.words).encode()}, one.tags) for one in sentences]


def _read_texts(name: str, path: str | pathlib.Path, split: str) -> list[Example]:
    """The labelled texts of a split."""
    task = TextClassification.open(name, path)
    (text,), rows = task.text, task.examples(split).as_numpy_iterator()
    return [
        Example({TEXT: row[text]}, [task.label_names[int(row[LABEL])]]) for row in rows if row[LABEL] >= 0
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The measures of one probe.

    measure: that of its kind
    layers: weights (CHECKPOINT, RANDOM) -> for each layer, 0 for the embeddings, the measure of each restart
    baseline: of the most common training label
    dev_labels: the number of labels that the measure counts
    places: the layers
    """

    name: str
    measure: str
    layers: Mapping[str, Sequence[Sequence[float]]]
    baseline: float
    dev_labels: int
    places: Sequence[int]

    def best(self) -> int | None:
        """The layer whose mean exceeds that of every other layer (RULE), or None."""
        found = dict(zip(self.places, self.layers[CHECKPOINT], strict=True))
        first, *others = sorted(found, key=lambda place: -statistics.fmean(found[place]))
        return first if others and all(_exceeds(found[first], found[other]) for other in others) else None

    def learned(self) -> list[int]:
        """The layers whose mean exceeds that of the same layer at random weights (RULE)."""
        found = zip(self.places, self.layers[CHECKPOINT], self.layers[RANDOM], strict=True)
        return [place for place, trained, control in found if _exceeds(trained, control)]

    def dev_error(self) -> float:
        """The standard error that the dev labels give to the highest mean, as if it were an accuracy of independent labels."""
        highest = max(statistics.fmean(values) for values in self.layers[CHECKPOINT])
        return math.sqrt(highest * (1 - highest) / self.dev_labels)


def _exceeds(values: Sequence[float], others: Sequence[float]) -> bool:
    return ordering(values, others).verdict == "holds"


def _places(config: BertConfig, options: ProbeOptions) -> Sequence[int]:
    """The layers that are probed, in order. Raises BertKerasError for a layer that the encoder lacks, and for one given twice."""
    known = range(config.num_layers + 1)
    if options.rows is None:
        return known
    if not options.rows or len({*options.rows}) < len(options.rows) or not {*options.rows} <= {*known}:
        given = " ".join(map(str, options.rows)) or "nothing"
        raise BertKerasError(f"rows is {given}; give layers from 0 to {config.num_layers}, each once.")
    return sorted(options.rows)


def _layer(number: int) -> str:
    return "embeddings" if number == 0 else f"layer {number}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Probe:
    """The examples of a probe: parts to train on, one for each restart, and those of the dev split."""

    name: str
    kind: Probe
    parts: Sequence[Sequence[Example]]
    dev: Sequence[Example]

    def units(self, source: checkpoints.Checkpoint, options: ProbeOptions) -> TextUnits:
        """A vector for each word, or for each token of a text."""
        return text_units("word" if self.kind.words else "piece", source, seq_length=options.seq_length)

    def measure(self, predicted: np.ndarray) -> float:
        """The score of a probe. predicted: the labels of all dev examples in a row."""
        ends = np.cumsum([len(one.labels) for one in self.dev])
        rows = [part.tolist() for part in np.split(predicted, ends[:-1])]
        return self.kind.score([[*one.labels] for one in self.dev], rows)

    def baseline(self) -> float:
        """The measure of the most common training label, the mean over the restarts."""
        most = [collections.Counter(sorted(_labels(part))).most_common(1)[0][0] for part in self.parts]
        return statistics.fmean(self.measure(np.full(len(_labels(self.dev)), label)) for label in most)

    def on_layers(self, part: Sequence[Example], x: np.ndarray, y: np.ndarray) -> list[float]:
        """The measure of a probe on each layer. x, y: the vectors [N, K, H] of a part and of the dev examples."""
        values = []
        for layer in range(x.shape[1]):
            probe = make_pipeline(StandardScaler(), RidgeClassifier())
            probe.fit(x[:, layer], _labels(part))
            values.append(self.measure(probe.predict(y[:, layer])))
        return values


def _labels(examples: Sequence[Example]) -> np.ndarray:
    """The labels of all examples in a row."""
    return np.concatenate([one.labels for one in examples])


def _drawn(
    examples: Sequence[Example], *, count: int, parts: int, seed: int, name: str
) -> list[list[Example]]:
    """Disjoint random parts of `count` examples each. Raises BertKerasError if there are too few."""
    if len(examples) < count * parts:
        raise BertKerasError(
            f"{name} has {len(examples)} training examples, and {parts} restarts of {count} read {count * parts}; give a "
            "lower --max-examples or fewer --restarts."
        )
    order = np.random.default_rng(seed).permutation(len(examples)).tolist()
    chosen = [order[part * count : (part + 1) * count] for part in range(parts)]
    return [[examples[row] for row in rows] for rows in chosen]


def _vectors(
    extractor: Extractor, examples: Sequence[Example], *, about: str, log: Callable[[str], None]
) -> np.ndarray:
    """The vectors [N, K, H] of all words in a row, or of all texts."""
    advance, made = counter(about, len(examples), log=log), []
    chunks = ([one.raw for one in examples[i : i + CHUNK]] for i in range(0, len(examples), CHUNK))
    for found in itertools.chain.from_iterable(map(extractor, chunks)):
        vectors = found["vectors"].astype(np.float32)
        if isinstance(extractor.units, Pieces):
            count = max(len(vectors), 1)  # a text without a token has zeros
            vectors = vectors.sum(axis=0, keepdims=True) / count
        made.append(vectors)
        advance(1)
    return np.concatenate(made)


def _check(data: Mapping[str, Any]) -> None:
    known = (*COLUMNS, *TEXTS)
    if not data:
        raise BertKerasError(f"no probe was asked for; give the data of at least one of {', '.join(known)}.")
    for name in data:
        probe_named(name)
    for source in data.values():
        check_dev_split(source)


def plan_probes(
    data: Mapping[str, str | pathlib.Path],
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    log: Callable[[str], None] = print,
    **settings: Any,
) -> Study[list[Result]]:
    """Reads and checks everything; its `run` probes every layer and writes the files of this module. A stopped run starts again.

    data: probe -> the folder of its files: CoNLL-2003's for a key of COLUMNS, GLUE's for one of TEXTS, any for
        MODULE:NAME
    settings: fields of ProbeOptions

    Raises BertKerasError for an unknown probe or layer, too few examples, a length that does not fit, and a folder with other
    files; MissingFileError for missing data.
    """
    options = ProbeOptions(**settings)
    _check(data)
    folder = Folder(to_path(output), PROBE)
    folder.check()
    source = checkpoints.source_of(checkpoint)
    count = len(_places(source.config, options))
    probes = [_open(name, path, options) for name, path in data.items()]
    for probe in probes:  # raises an error unless an example becomes features that the encoder can read
        probe.units(source, options).read([probe.parts[0][0].raw])
    start = fingerprint_of_checkpoint(source, checkpoints.tokenizer_of(source))
    fingerprint = dataclasses.asdict(options) | start | {"probes": list(data)}
    if code := digests_of(*[probe.kind.read for probe in probes]):
        fingerprint["code"] = code

    def run() -> list[Result]:
        with folder.begin(fingerprint):
            results = [_result(probe, source, options, log=log) for probe in probes]
            draw(results, folder.path / PICTURE)
            found = {one.name: dataclasses.asdict(one) for one in results}
            folder.finish({**found, formats.MADE_BY: formats.made_by()})
        return results

    return Study(cells=[*_cells(probes, source.config, count, folder.path, run)], train=run)


def run_probes(data: Mapping[str, str | pathlib.Path], **settings: Any) -> list[Result]:
    """Runs the study that `plan_probes` makes of these settings."""
    return plan_probes(data, **settings).run()


def _cells(
    probes: Sequence[_Probe], config: BertConfig, count: int, path: pathlib.Path, run: Callable[[], object]
) -> Iterator[Cell]:
    """The restarts of each probe; a step is a linear classifier on one of `count` layers of one encoder."""
    for probe, (seed, part) in itertools.product(probes, enumerate(probes[0].parts)):
        steps = 2 * count  # of the checkpoint and of random weights
        texts = [*part, *(probe.dev if seed == 0 else ())]
        tokens = sum(len(text.split()) for one in texts for text in one.raw.values())
        work = functools.partial(Work, steps, 2 * tokens * forward(config))
        yield Cell(name=f"{probe.name}, seed {seed}", path=path, train=run, work=work)


def _open(name: str, path: str | pathlib.Path, options: ProbeOptions) -> _Probe:
    kind = probe_named(name)
    train, dev = (_read(name, kind, path, split) for split in ("train", "validation"))
    how: dict[str, Any] = {"seed": options.seed, "name": name}
    parts = _drawn(train, count=options.max_examples, parts=options.restarts, **how)
    most = options.max_dev_examples or options.max_examples
    (drawn,) = _drawn(dev, count=min(most, len(dev)), parts=1, **how)
    return _Probe(name=name, kind=kind, parts=parts, dev=drawn)


def _read(name: str, kind: Probe, path: str | pathlib.Path, split: str) -> list[Example]:
    """The examples of a split that have a label. Raises BertKerasError for a wrong one, and where `read` finds no file."""
    try:
        examples = [*kind.read(path, split)]
    except OSError as error:
        if isinstance(error, BertKerasError):
            raise
        raise BertKerasError(f"the probe {name} cannot read its {split} split: {error}.") from error
    found = [_checked(one, kind, f"{name}, {split}, example {i}") for i, one in enumerate(examples, start=1)]
    if not any(len(one.labels) for one in found):
        raise BertKerasError(f"the probe {name} has no labelled example in its {split} split; give some.")
    return [one for one in found if len(one.labels)]


def _checked(example: Example, kind: Probe, where: str) -> Example:
    """The example with its words separated by one space. Raises BertKerasError unless each word, or the text, has a label."""
    column, each = (TOKENS, "for each word") if kind.words else (TEXT, "for the text")
    if column not in example.raw:
        raise BertKerasError(f"{where}: raw has {', '.join(example.raw) or 'nothing'}; give {column!r}.")
    if isinstance(example.labels, str | bytes):
        raise BertKerasError(f"{where}: labels is {example.labels!r}; give a list, with one label {each}.")
    text = example.raw[column]
    text = text.encode() if isinstance(text, str) else text
    words = text.split() if kind.words else [text]
    if len(words) != len(example.labels):
        counted = f"{len(words)} words" if kind.words else "one text"
        raise BertKerasError(
            f"{where}, {shortened(text.decode('utf-8', 'replace'))}, has {counted} and {len(example.labels)} labels; give "
            f"one label {each}."
        )
    return Example({column: b" ".join(words)}, example.labels)


def _result(
    probe: _Probe, source: checkpoints.Checkpoint, options: ProbeOptions, *, log: Callable[[str], None]
) -> Result:
    """The measures on the checkpoint's layers, and as a control on those of its encoder at random weights."""
    layers = {}
    for weights, start in {CHECKPOINT: source, RANDOM: dataclasses.replace(source, tensors={})}.items():
        keras.utils.set_random_seed(options.seed)  # of random weights
        places, units = _places(source.config, options), probe.units(source, options)
        extractor = Extractor(source=start, units=units, places=places, dtype="float32")
        about = f"{probe.name}, {weights}"
        y = _vectors(extractor, probe.dev, about=f"{about}, dev", log=log)
        restarts = []
        for number, part in enumerate(probe.parts, start=1):
            x = _vectors(extractor, part, about=f"{about}, restart {number}", log=log)
            restarts.append(probe.on_layers(part, x, y))
        layers[weights] = [list(values) for values in zip(*restarts, strict=True)]
    return Result(
        name=probe.name,
        measure=probe.kind.measure,
        layers=layers,
        baseline=probe.baseline(),
        dev_labels=len(_labels(probe.dev)),
        places=[*places],
    )


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """A table for each probe: the mean and standard error of each layer, in percent.

    The error covers the draws of training examples; dev examples and weights, random ones too, are the same in all restarts.
    """
    for one in results:
        rows: list[tuple[Any, ...]] = []
        for place, *cells in zip(one.places, one.layers[CHECKPOINT], one.layers[RANDOM], strict=True):
            best = ", the best" if place == one.best() else ""
            rows.append((f"{_layer(place)}{best}", *map(_percent, cells)))
        rows.append(("most common label", percent(one.baseline), ""))
        restarts = len(one.layers[CHECKPOINT][0])
        runs = ONE_SEED if restarts < 2 else f"mean ± standard error of {restarts} draws of training examples"
        dev = f"the {one.dev_labels:,} dev labels have an error of about {percent(one.dev_error())} besides"
        title = f"{one.name}: {one.measure} on dev, percent; {runs}; {dev}"
        yield Table(title, ("layer", CHECKPOINT, RANDOM), rows)


def conclusions(one: Result) -> list[str]:
    """The lines below the table of a probe: its best layer, the layers over random weights, and the rule for both."""
    if len(one.layers[CHECKPOINT][0]) < 2:
        return [f"{one.name}: {ONE_SEED}, so no layer is marked; give more --restarts"]
    best = one.best()
    learned = ", ".join(map(_layer, one.learned())) or "no layer"
    return [
        f"{one.name}: {'no layer exceeds all others' if best is None else f'{_layer(best)} exceeds all others'} {RULE}",
        f"{one.name}: over the same layer at random weights {RULE}: {learned}",
    ]


def _percent(values: Sequence[float]) -> str:
    """The mean, and with several values its standard error."""
    mean = percent(statistics.fmean(values))
    if len(values) < 2:
        return mean
    return f"{mean} ± {percent(statistics.stdev(values) / len(values) ** 0.5)}"


def draw(results: Sequence[Result], path: pathlib.Path) -> None:
    """Draws a panel for each probe: the mean over the restarts for each layer, random weights and the most common label."""
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(results) + 0.8, 3.2), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for panel, one in zip(panels, results, strict=True):
        for (weights, layers), style in zip(one.layers.items(), ("o-", "s--"), strict=True):
            means = [100 * statistics.fmean(values) for values in layers]
            panel.plot(one.places, means, style, label=weights)
        panel.axhline(100 * one.baseline, color="gray", linestyle=":", label="most common label")
        panel.set_ylim(0, 102)  # a small difference looks small
        panel.set_title(one.name)
        panel.set_xlabel("layer (0: embeddings)")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylabel(f"{one.measure} on dev, percent")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
