"""The paper's ablations: pre-train and fine-tune each row of a table, then compare with the paper's orderings.

In: a key of ABLATIONS, text, a tokenizer, the tasks' data. Out: a folder

    OUTPUT/<row>/pretraining/          a run of tasks/pretraining/pretrain.py, unless the row uses another row's weights
    OUTPUT/<row>/<task>-<seed>/        runs of `finetune`
    OUTPUT/ablation.json               the fingerprint of the ablation
    OUTPUT/results.json, results.png   all measures; a plot with a dot for each run

The runs are cells of tasks/study/grid.py. The rows are in tasks/study/rows.py.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.fields import checked_value
from bert_keras.io import formats
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import OBJECT, checked_fields, list_of, read_object
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import check_fits
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.frozen.row_vectors import check_feature_based
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams, hparams_of
from bert_keras.tasks.options import AblationOptions
from bert_keras.tasks.pretraining.corpus import Document, digest_documents
from bert_keras.tasks.pretraining.model import unread_settings
from bert_keras.tasks.pretraining.monitor import SNAPSHOTS
from bert_keras.tasks.pretraining.pretrain import Pretraining, check_replicas, pretrain
from bert_keras.tasks.pretraining.recipes import Recipe, recipe_named
from bert_keras.tasks.study import grid
from bert_keras.tasks.study.grid import Cell, Outcome
from bert_keras.tasks.study.report import Comparison, compare, write_comparison
from bert_keras.tasks.study.rows import ABLATIONS, FEATURE_LAYERS, FEATURES, SCALES, Row, Scale, check_once
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.text.tokenizer import Tokenizer

ABLATION = Layout(
    name="an ablation", artifact=formats.STUDY, fingerprint="ablation.json", results=RESULTS_FILE
)
PERPLEXITY = "held_out_masked_lm_perplexity"
FIRST_SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pretrained:
    """An ablation with pre-training that is ready to run.

    recipes: of each row's pre-training, by the row's name
    how: arguments for every training: strategy_name, verbose, log
    """

    output: pathlib.Path
    documents: Iterable[Document]
    tokenizer: Tokenizer
    held_out: float
    scale: Scale
    rows: Sequence[Row]
    recipes: Mapping[str, Recipe]
    tasks: Mapping[str, Task]
    restarts: int
    how: Mapping[str, Any]

    def check(self) -> None:
        """Raises BertKerasError for a row that cannot be pre-trained, or whose encoder cannot read a task's examples."""
        for recipe in self.recipes.values():
            check_replicas(recipe.hparams, strategy(self.how["strategy_name"]))
        for row, (name, task) in itertools.product(self.rows, self.tasks.items()):
            made = self.recipes[row.name].config(vocab_size=self.tokenizer.vocab_size)
            config, hparams = dataclasses.replace(made, **row.finetuned), self.hparams(name, FIRST_SEED)
            check_fits(task, config, self.tokenizer, hparams)
            check_feature_based(task, config, hparams, keep_head=False, feature_cache=None)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the results, besides the arguments of `run_ablation` that name them."""
        return {
            "text": digest_documents(self.documents),
            "vocabulary": self.tokenizer.digest,
            "lower_case": self.tokenizer.lower_case,
            "strategy": self.how["strategy_name"],
            "data": {
                name: grid.fingerprint_of_data(task, self.tokenizer, self.hparams(name, FIRST_SEED))
                for name, task in self.tasks.items()
            },
            "finetuning": dict(self.scale.finetuning),
            "features": dict(self.scale.features),
            "options": {task: dict(given) for task, given in self.scale.options.items()},
            **{f"recipe of {row}": recipe.all_settings for row, recipe in self.recipes.items()},
            "tasks": list(self.tasks),
            "restarts": self.restarts,
        }

    def cells(self) -> Iterator[Cell]:
        """All pre-trainings, then the restarts of each row on each task."""
        for row in self.rows:
            if row.weights is None:
                yield Cell(
                    name=f"{row.name}: pre-training",
                    path=self._pretraining(row),
                    train=functools.partial(self._pretrain, row),
                )
        seeds = range(FIRST_SEED, FIRST_SEED + self.restarts)
        for row, task, seed in itertools.product(self.rows, self.tasks, seeds):
            yield Cell(
                name=f"{row.name}: {task}, seed {seed}",
                path=self.output / _slug(row.name) / f"{task}-{seed}",
                task=task,
                place={"row": row.name, "seed": seed},
                train=functools.partial(self._finetune, row, task, seed),
            )

    def _pretraining(self, row: Row) -> pathlib.Path:
        """The folder of the pre-training whose weights a row uses."""
        return self.output / _slug(row.weights or row.name) / "pretraining"

    def _weights(self, row: Row) -> pathlib.Path:
        """The folder of the weights from which a row is fine-tuned."""
        folder = self._pretraining(row)
        return folder if row.share == 1 else folder / SNAPSHOTS / str(self._snapshot(row))

    def _snapshot(self, row: Row) -> int:
        return round(row.share * self.recipes[row.weights or row.name].hparams.steps)

    def hparams(self, task: str, seed: int) -> Hparams:
        """The settings of a run. Restarts on features learn from the same examples, whose vectors are computed once."""
        given = {**self.scale.finetuning, "seed": seed}
        if task.endswith(FEATURES):
            given |= {"feature_layers": FEATURE_LAYERS, "learning_rate": FEATURE_RATE, **self.scale.features}
            given |= {"data_seed": FIRST_SEED} if given.get("max_examples") is not None else {}
        return hparams_of(self.tasks[task].defaults, given)

    def _pretrain(self, row: Row, *, output: pathlib.Path) -> None:
        settings = Pretraining(
            documents=self.documents,
            tokenizer=self.tokenizer,
            held_out=self.held_out,
            recipe=self.recipes[row.name],
            snapshots=[self._snapshot(one) for one in self.rows if one.weights == row.name and one.share < 1],
            strategy_name=self.how["strategy_name"],
        )
        pretrain(settings, output, verbose=self.how["verbose"], log=self.how["log"])

    def _finetune(self, row: Row, name: str, seed: int, *, output: pathlib.Path) -> None:
        source = checkpoints.read(self._weights(row))
        start = dataclasses.replace(source, config=dataclasses.replace(source.config, **row.finetuned))
        cache = output.parent / f"vectors-{name}" if name.endswith(FEATURES) else None
        how = {"hparams": self.hparams(name, seed), "feature_cache": cache, **self.how}
        finetune(self.tasks[name], checkpoint=start, output=output, **how)

    def outcomes(self, cells: Sequence[Cell], *, workers: Workers) -> Iterator[Outcome]:
        """Runs the cells. Raises BertKerasError if the loss of a pre-training diverged: other runs need its weights."""
        for ran in grid.run_cells(cells, workers=workers, log=self.how["log"]):
            if ran.degenerate and not ran.task:
                workers.wait_to_end()
                raise BertKerasError(
                    f"{ran.path}: {ran.degenerate}; remove this folder and give a lower learning_rate."
                )
            yield ran

    def perplexities(self) -> dict[str, float | None]:
        """Row -> the perplexity of the held-out text at the end of its pre-training; None for a snapshot."""
        return {row.name: _perplexity(self._weights(row) / RESULTS_FILE) for row in self.rows}


def _slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def _perplexity(file: pathlib.Path) -> float | None:
    if not file.is_file():
        return None
    results = checked_fields(read_object(file), {"history": list_of(OBJECT)}, where=file, others=True)
    return next((row[PERPLEXITY] for row in reversed(results["history"]) if PERPLEXITY in row), None)


@reports_lost_workers()
def run_ablation(
    name: str,
    *,
    documents: Iterable[Document],
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
) -> Comparison:
    """Trains all runs that have not finished, then writes the files of this module.

    name, scale: keys of ABLATIONS and SCALES
    data: the source of each task, by name; other tasks come from TensorFlow Datasets
    changes: settings for every pre-training; they override those of the scale
    tasks, restarts: override those of the scale
    held_out: the fraction of the documents on which perplexity is measured

    Raises BertKerasError or MissingFileError, before any training, for an unknown name, for unreadable data, if another process
    writes to `output`, and if `output` was begun with other data or settings; later if the loss of a pre-training diverges.
    """
    grid.check_name(name, ABLATIONS)
    grid.check_name(scale, SCALES)
    restarts = checked_value(AblationOptions, "restarts", restarts)
    workers, chosen, folder = Workers(strategy(strategy_name)), SCALES[scale], Folder(output, ABLATION)
    folder.check(reopen=True)
    log = workers.log(log)
    plan = _Pretrained(
        output=folder.path,
        documents=documents,
        tokenizer=tokenizer,
        held_out=held_out,
        scale=chosen,
        rows=chosen.rows[name],
        tasks=_open_tasks(tasks or chosen.tasks[name], data, chosen),
        recipes=_recipes(chosen.rows[name], chosen, changes or {}),
        restarts=chosen.restarts if restarts is None else restarts,
        how={"strategy_name": strategy_name, "verbose": verbose, "log": log},
    )
    plan.check()
    named = {"ablation": name, "scale": scale, "changes": dict(changes or {}), "held_out": held_out}
    cells, fingerprint = [*plan.cells()], named | plan.fingerprint()
    grid.check_same(cells, fingerprint, workers=workers)
    with workers.writing(folder.begin(fingerprint, reopen=True)):
        outcomes = [*plan.outcomes(cells, workers=workers)]
        perplexities = workers.from_chief(plan.perplexities)
        found = compared(name, plan.rows, plan.tasks, outcomes, perplexities=perplexities)
        if workers.chief:
            write_comparison(found, folder.path)
    return found


def _open_tasks(names: Sequence[str], data: Mapping[str, Source], scale: Scale) -> dict[str, Task]:
    """Opens the tasks, by their names, which may have the suffix FEATURES."""
    plain = {name: name.removesuffix(FEATURES) for name in names}
    check_once("tasks", names)
    grid.check_used(data, plain.values())
    return {name: grid.opened(one, data, **scale.options.get(one, {})) for name, one in plain.items()}


def _recipes(rows: Sequence[Row], scale: Scale, changes: Mapping[str, Any]) -> dict[str, Recipe]:
    """The recipe of each row, by its name. Raises BertKerasError for a change that none of them reads."""
    recipes = {row.name: _recipe(row, scale, changes) for row in rows}
    # A recipe leaves out what its objectives do not read. seq_length has become phases.
    read = {"seq_length", *(name for recipe in recipes.values() for name in recipe.changes)}
    if unread := [name for name in changes if name not in read]:
        raise BertKerasError(f"no pre-training of this ablation reads {unread[0]}; leave {unread[0]} out.")
    return recipes


def _recipe(row: Row, scale: Scale, changes: Mapping[str, Any]) -> Recipe:
    settings = {**scale.pretraining, **row.settings, **changes}
    # A length and phases contradict each other: the given one replaces that of the scale or the row.
    for given, other in (("phases", "seq_length"), ("seq_length", "phases")):
        if given in changes and other not in changes:
            settings.pop(other, None)
    recipe = recipe_named(row.recipe).changed(**settings)
    unread = {*unread_settings(recipe)} & {*changes}  # of the objectives of other rows
    return dataclasses.replace(
        recipe, changes={name: value for name, value in recipe.changes.items() if name not in unread}
    )


def compared(
    name: str,
    rows: Sequence[Row],
    tasks: Mapping[str, Task],
    outcomes: Sequence[Outcome],
    *,
    perplexities: Mapping[str, float | None],
) -> Comparison:
    """The outcomes of an ablation with pre-training beside the paper's figures."""
    ablation, names = ABLATIONS[name], [row.name for row in rows]
    return compare(
        outcomes,
        tasks,
        name=name,
        title=ablation.title,
        measures={task: ablation.measures.get(task, one.measure) for task, one in tasks.items()},
        figures={
            (row, task): value
            for task, figures in ablation.figures.items()
            for row, value in zip(names, figures, strict=True)
        },
        pairs=[(names[better], names[worse]) for better, worse in ablation.pairs],
        perplexities=perplexities,
    )
