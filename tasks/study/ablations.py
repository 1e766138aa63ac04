"""The paper's ablations: pre-train and fine-tune each row of a table, then compare with the paper's orderings.

In: a key of ABLATIONS, text, a tokenizer, the tasks' data. Out: a folder

    OUTPUT/<row>/pretraining/          a run of tasks/pretraining/pretrain.py, unless the row uses another row's weights
    OUTPUT/<row>/<task>-<seed>/        runs of `finetune`, or a BiLSTM on frozen features
    OUTPUT/ablation.json               the identity of the ablation
    OUTPUT/results.json, results.png   all measures; a plot with a dot for each run

The runs are cells of tasks/study/cells.py. The rows are in tasks/study/ablation_definitions.py.
"""

import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import (
    OBJECT,
    list_of,
    read_object,
    typed,
)
from bert_keras.model.layer_choices import places_of
from bert_keras.tasks.batches import take_examples
from bert_keras.tasks.data.sources import Source, check_dev_split
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import check_fits
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.frozen.cache import extract
from bert_keras.tasks.frozen.tagger import train_tagger
from bert_keras.tasks.hparams import Hparams, TaggerHparams
from bert_keras.tasks.metrics import in_percent
from bert_keras.tasks.options import AblationOptions
from bert_keras.tasks.pretraining.instance_stream import Text, digest_documents
from bert_keras.tasks.pretraining.model import unread_settings
from bert_keras.tasks.pretraining.monitor import SNAPSHOTS
from bert_keras.tasks.pretraining.pretrain import Pretraining, check_replicas, pretrain
from bert_keras.tasks.pretraining.recipes import RECIPES, Recipe
from bert_keras.tasks.problems.tagging import Conll
from bert_keras.tasks.report_tables import Table
from bert_keras.tasks.runs.run_folder import open_task
from bert_keras.tasks.study.ablation_definitions import (
    ABLATIONS,
    FEATURE_LAYERS,
    FEATURES,
    SCALES,
    Row,
    Scale,
)
from bert_keras.tasks.study.ablation_report import (
    Compared,
    compared,
    draw_rows,
    orderings_as_json,
    orderings_table,
    spelled,
)
from bert_keras.tasks.study.cells import (
    Cell,
    check_once,
    check_same,
    check_used,
    identity_of_data,
    run_cells,
)
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.text.tokenizer import Tokenizer

ABLATION = Layout(name="an ablation", identity="ablation.json", results=RESULTS_FILE)
PERPLEXITY = "held_out_masked_lm_perplexity"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a row.

    perplexity: of the pre-training that it uses, on the held-out text; None for a snapshot
    measures: the measure of each restart in percent, by task; a restart whose loss diverged has no measure
    names: the name of that measure, by task
    lost: why restarts diverged, by run
    """

    row: Row
    perplexity: float | None
    measures: Mapping[str, list[float]]
    names: Mapping[str, str]
    lost: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """An ablation that is ready to run.

    names: the name of the measure to report, by task
    shared: the part of the identity that all cells have
    how: arguments for every training
    """

    output: pathlib.Path
    scale: Scale
    rows: Sequence[Row]
    recipes: Mapping[str, Recipe]
    tasks: Mapping[str, Task]
    names: Mapping[str, str]
    restarts: int
    shared: Mapping[str, Any]
    data: Mapping[str, Any]
    how: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Everything that decides the results."""
        return {
            **self.shared,
            "data": self.data,
            "finetuning": dict(self.scale.finetuning),
            "tagging": dict(self.scale.tagging),
            "options": {task: dict(given) for task, given in self.scale.options.items()},
            **{f"recipe of {row}": recipe.all_settings for row, recipe in self.recipes.items()},
            "tasks": list(self.tasks),
            "restarts": self.restarts,
        }

    def cells(self, pretraining: Callable[..., Pretraining]) -> Iterator[Cell]:
        """All pre-trainings, then the restarts of each row on each task."""
        for row in self.rows:
            if row.weights is None:
                identity = self._identity(row) | {"snapshots": self._snapshots(row)}
                given = pretraining(recipe=self.recipes[row.name], snapshots=self._snapshots(row))
                how = {name: self.how[name] for name in ("verbose", "log")}
                train = functools.partial(pretrain, given, **how)
                name = f"{row.name}: pre-training"
                yield Cell(name=name, path=self.pretraining(row), identity=identity, train=train)
        for row in self.rows:
            for task, seed in itertools.product(self.tasks, range(1, 1 + self.restarts)):
                identity = self._identity(row) | {
                    "task": {"name": task, **self.tasks[task].to_json()},
                    **self.data[task],
                    "hparams": self._hparams(task, seed).identity(),
                    "tagging": dataclasses.asdict(TaggerHparams(**{**self.scale.tagging, "seed": seed})),
                    "seed": seed,
                }
                yield Cell(
                    name=f"{row.name}: {task}, seed {seed}",
                    path=self.run(row, task, seed),
                    identity=identity,
                    train=functools.partial(self._train, row, task, seed),
                    alone=task.endswith(FEATURES),
                )

    def pretraining(self, row: Row) -> pathlib.Path:
        """The folder of the pre-training whose weights a row uses."""
        return self.output / _slug(row.weights or row.name) / "pretraining"

    def weights(self, row: Row) -> pathlib.Path:
        """The folder of the weights from which a row is fine-tuned."""
        if row.share == 1:
            return self.pretraining(row)
        return self.pretraining(row) / SNAPSHOTS / str(self._snapshot(row))

    def run(self, row: Row, task: str, seed: int) -> pathlib.Path:
        """The folder of a restart."""
        return self.output / _slug(row.name) / f"{task}-{seed}"

    def _identity(self, row: Row) -> dict[str, Any]:
        pretrained = self.recipes[row.weights or row.name]
        fields = {"share": row.share, "finetuned": dict(row.finetuned)}
        return {**self.shared, "recipe": pretrained.all_settings, **fields}

    def _snapshot(self, row: Row) -> int:
        return round(row.share * self.recipes[row.weights or row.name].hparams.steps)

    def _snapshots(self, row: Row) -> list[int]:
        return [self._snapshot(one) for one in self.rows if one.weights == row.name and one.share < 1]

    def _hparams(self, task: str, seed: int) -> Hparams:
        return Hparams(**{**self.tasks[task].defaults, **self.scale.finetuning, "seed": seed})

    def check_fits(self, tokenizer: Tokenizer) -> None:
        """Raises BertKerasError for a task whose examples a row's encoder cannot read, and for layers that it lacks."""
        for row, (name, task) in itertools.product(self.rows, self.tasks.items()):
            made = self.recipes[row.name].config(vocab_size=tokenizer.vocab_size)
            config = dataclasses.replace(made, **row.finetuned)
            check_fits(task, config, tokenizer, self._hparams(name, 1))
            if name.endswith(FEATURES):
                places_of(FEATURE_LAYERS, num_layers=config.num_layers)

    def _train(self, row: Row, name: str, seed: int, *, output: pathlib.Path) -> None:
        """One restart."""
        task, hparams = self.tasks[name], self._hparams(name, seed)
        source = checkpoints.read(self.weights(row))
        start = dataclasses.replace(source, config=dataclasses.replace(source.config, **row.finetuned))
        if not name.endswith(FEATURES):
            finetune(task, checkpoint=start, output=output, hparams=hparams, **self.how)
            return
        assert isinstance(task, Conll)
        caches = [
            extract(
                task,
                # All restarts share the cache, so that their vectors are computed once.
                take_examples(task.examples(split), count=count, seed=0),
                checkpoint=start,
                output=output.parent / f"{FEATURE_LAYERS}-{split}",
                layers=[FEATURE_LAYERS],
                seq_length=hparams.seq_length,
            )
            for split, count in (("train", hparams.max_examples), (task.validation_splits[0], None))
        ]
        tagging = TaggerHparams(**{**self.scale.tagging, "seed": seed})
        how = {name: self.how[name] for name in ("verbose", "log")}
        train_tagger(*caches, layers=FEATURE_LAYERS, output=output, hparams=tagging, **how)


@reports_lost_workers()
def run_ablation(
    name: str,
    *,
    documents: Iterable[Text],
    tokenizer: Tokenizer,
    data: Mapping[str, Source],
    output: str | pathlib.Path,
    scale: str = AblationOptions.scale,
    changes: Mapping[str, Any] | None = None,
    tasks: Sequence[str] | None = None,
    restarts: int | None = None,
    held_out: float = 0.05,
    strategy_name: str = "one",
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> list[Outcome]:
    """Trains all runs that have not finished, then writes the files of this module.

    name: a key of ABLATIONS; scale: a key of SCALES
    data: the source of each task, by name; other tasks come from TensorFlow Datasets
    changes: settings for every pre-training; they override those of the scale
    tasks, restarts: override those of the scale
    held_out: the fraction of the documents on which perplexity is measured

    Raises BertKerasError or MissingFileError, before any training, for an unknown name, for unreadable data, if another process
    writes to `output`, and if `output` was begun with other data or settings.
    """
    _check_names(name, scale, restarts)
    workers = Workers(strategy(strategy_name))
    log = workers.log(log)
    chosen, folder = SCALES[scale], Folder(output, ABLATION)
    folder.check(reopen=True)
    opened = {task: _open(task, data, chosen) for task in _checked(tasks or chosen.tasks[name], data)}
    recipes = _recipes(chosen.rows[name], chosen, changes or {})
    for recipe in recipes.values():
        check_replicas(recipe.hparams, strategy(strategy_name))
    plan = _Plan(
        output=folder.path,
        scale=chosen,
        rows=chosen.rows[name],
        recipes=recipes,
        tasks=opened,
        names={task: ABLATIONS[name].measures.get(task, one.measure) for task, one in opened.items()},
        restarts=chosen.restarts if restarts is None else restarts,
        shared={**_identity_of_text(documents, tokenizer), "held_out": held_out, "strategy": strategy_name},
        data={name: identity_of_data(task) for name, task in opened.items()},
        how={"strategy_name": strategy_name, "verbose": verbose, "log": log},
    )
    plan.check_fits(tokenizer)
    asked = {"ablation": name, "scale": scale, "changes": dict(changes or {})}
    pretraining = functools.partial(
        Pretraining, documents=documents, tokenizer=tokenizer, held_out=held_out, strategy_name=strategy_name
    )
    cells = [*plan.cells(pretraining)]
    check_same(cells, plan.identity() | asked, workers=workers)
    with workers.writing(folder.begin(plan.identity() | asked, reopen=True)):
        outcomes = _run(plan, cells, workers=workers, log=log)
        if workers.chief:
            _draw(outcomes, folder.path / "results.png")
            folder.finish(as_json(name, outcomes))
    return outcomes


def _identity_of_text(documents: Iterable[Text], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "text": digest_documents(documents),
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
    }


def _checked(names: Sequence[str], data: Mapping[str, Source]) -> Sequence[str]:
    """Returns the names of tasks. Raises BertKerasError for a repeated one, and for data that none of them reads."""
    check_once(names)
    check_used(data, (name.removesuffix(FEATURES) for name in names))
    return names


def _check_names(name: str, scale: str, restarts: int | None) -> None:
    for given, known in ((name, ABLATIONS), (scale, SCALES)):
        if given not in known:
            raise BertKerasError(f"unknown name {given!r}; give one of {', '.join(known)}.")
    if restarts is not None and restarts < 1:
        raise BertKerasError(f"restarts is {restarts}; give at least 1.")


def _recipes(rows: Sequence[Row], scale: Scale, changes: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipe of each row, by its name. Raises BertKerasError for a change that none of them reads."""
    recipes = {row.name: _recipe(row, scale, changes) for row in rows}
    # A recipe leaves out what its objectives do not read. seq_length has become phases.
    read = {"seq_length", *(name for recipe in recipes.values() for name in recipe.changes)}
    if unread := [name for name in changes if name not in read]:
        raise BertKerasError(f"no pre-training of this ablation reads {unread[0]}; leave {unread[0]} out.")
    return recipes


def _run(
    plan: _Plan, cells: Sequence[Cell], *, workers: Workers, log: Callable[[str], None]
) -> list[Outcome]:
    """Runs the cells. Raises BertKerasError if a pre-training's loss diverges, because other runs need its weights."""
    found = {}
    for ran in run_cells(cells, workers=workers, log=log):
        found[ran.cell.path] = ran
        if ran.degenerate and "task" not in ran.cell.identity:
            workers.wait_to_end()
            raise BertKerasError(
                f"{ran.cell.path}: {ran.degenerate}; remove this folder and give a lower learning_rate."
            )
    outcomes = []
    for row in plan.rows:
        measures: dict[str, list[float]] = {task: [] for task in plan.tasks}
        lost = {}
        for task, seed in itertools.product(plan.tasks, range(1, 1 + plan.restarts)):
            ran, kind = found[plan.run(row, task, seed)], plan.tasks[task].kind
            if ran.degenerate is not None:
                lost[f"{task}-{seed}"] = ran.degenerate
                continue
            measures[task].append(in_percent(ran.measures[plan.names[task]], kind=kind))
        perplexity = workers.from_chief(functools.partial(_perplexity, plan.weights(row)))
        outcomes.append(
            Outcome(row=row, perplexity=perplexity, measures=measures, names=plan.names, lost=lost)
        )
    return outcomes


def _slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def _recipe(row: Row, scale: Scale, changes: Mapping[str, Any]) -> Recipe:
    settings = {**scale.pretraining, **row.settings, **changes}
    if "phases" in changes and "seq_length" not in changes:
        settings.pop("seq_length", None)  # the scale's length would contradict the phases
    if "seq_length" in changes and "phases" not in changes:
        settings.pop("phases", None)  # and so would a row's phases the length
    recipe = RECIPES[row.recipe].changed(**settings)
    unread = {*unread_settings(recipe)} & {*changes}  # of the objectives of other rows
    return dataclasses.replace(
        recipe, changes={name: value for name, value in recipe.changes.items() if name not in unread}
    )


def _open(name: str, data: Mapping[str, Source], scale: Scale) -> Task:
    """Opens the task and reads its examples once, so that bad data raises an error before other rows are trained."""
    plain = name.removesuffix(FEATURES)
    check_dev_split(data.get(plain))
    task = open_task(plain, data.get(plain), **scale.options.get(plain, {}))
    if plain != name and not isinstance(task, Conll):
        raise BertKerasError(f"{name} is not a task; only {Conll.kind} has the feature-based approach.")
    for split in ("train", task.validation_splits[0]):
        task.examples(split)
    return task


def _perplexity(weights: pathlib.Path) -> float | None:
    """The perplexity of the held-out text at the end of a pre-training; None for a snapshot."""
    file = weights / RESULTS_FILE
    if not file.is_file():
        return None
    history = typed(read_object(file), {"history": list_of(OBJECT)}, where=file, others=True)["history"]
    return next((row[PERPLEXITY] for row in reversed(history) if PERPLEXITY in row), None)


def _orderings(name: str, outcomes: Sequence[Outcome]) -> list[Compared]:
    """The pairs of the ablation, in the paper's order where it has figures; equal rows are left out."""
    pairs = []
    for task in outcomes[0].measures:
        figures = ABLATIONS[name].figures.get(task)
        for better, worse in ABLATIONS[name].pairs:
            if figures is not None and figures[better] == figures[worse]:
                continue
            if figures is not None and figures[better] < figures[worse]:
                better, worse = worse, better
            pairs.append((task, outcomes[better].row.name, outcomes[worse].row.name))
    return [*compared({one.row.name: one.measures for one in outcomes}, pairs)]


def as_json(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The content of results.json; measures and differences in percent."""
    rows = [
        {"row": one.row.name, "perplexity": one.perplexity, "measures": one.measures, "lost": one.lost}
        for one in outcomes
    ]
    return {
        "ablation": name,
        "measures": dict(outcomes[0].names),
        "rows": rows,
        "orderings": orderings_as_json(_orderings(name, outcomes)),
    }


def tables(name: str, outcomes: Sequence[Outcome]) -> list[Table]:
    """Tables to print: our results with their spread and the paper's figures, then the orderings."""
    tasks, ablation = tuple(outcomes[0].measures), ABLATIONS[name]
    rows = []
    for i, one in enumerate(outcomes):
        figures = {task: values[i] for task, values in ablation.figures.items()}
        cells = [spelled(one.measures[task], figures.get(task)) for task in tasks]
        rows.append((one.row.name, "-" if one.perplexity is None else f"{one.perplexity:.1f}", *cells))
    title = f"{ablation.title}: mean, standard deviation and (the paper's)"
    columns = [f"{task}, {outcomes[0].names[task]}" for task in tasks]
    return [
        Table(title, ("row", "held-out perplexity", *columns), rows),
        orderings_table(_orderings(name, outcomes)),
    ]


def _draw(outcomes: Sequence[Outcome], path: pathlib.Path) -> None:
    """Plots a dot for each run, one panel per task; the x axis is the fraction of the steps if rows differ in it, or the row."""
    if all(one.row.share == 1 for one in outcomes):
        rows = {
            one.row.name: {f"{task}, {one.names[task]}": values for task, values in one.measures.items()}
            for one in outcomes
        }
        draw_rows(rows, path)
        return
    # Imported here because it is slow to import.
    from matplotlib.figure import Figure

    tasks = tuple(outcomes[0].measures)
    figure = Figure(figsize=(5 * len(tasks) + 1, 0.4 * len(outcomes) + 2), layout="constrained")
    for panel, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        _draw_shares(panel, outcomes, task)
        panel.set_title(f"{task}, {outcomes[0].names[task]}")
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_shares(panel: Any, outcomes: Sequence[Outcome], task: str) -> None:
    """A curve for each pre-training."""
    for name in dict.fromkeys(one.row.weights or one.row.name for one in outcomes):
        points = sorted(
            (one.row.share, one.measures[task])
            for one in outcomes
            if name in (one.row.weights, one.row.name) and one.measures[task]
        )
        (line,) = panel.plot(
            [share for share, _ in points], [statistics.fmean(values) for _, values in points], label=name
        )
        for share, values in points:
            panel.plot([share] * len(values), values, "o", color=line.get_color(), alpha=0.6)
    panel.set(xlabel="fraction of the steps", ylabel="dev, %")
    panel.legend()
