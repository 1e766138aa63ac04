"""The paper's ablations: pre-train and fine-tune each row of a table, then compare with the paper's orderings.

In: a key of ABLATIONS, text, a tokenizer, the tasks' data. Out: a folder

    OUTPUT/<row>/pretraining/          a run of tasks/pretraining/pretrain.py, unless the row uses another row's weights
    OUTPUT/<row>/<task>-<seed>/        runs of `finetune`; further pre-trainings add `-<number>` to both names
    OUTPUT/ablation.json               the fingerprint of the ablation
    OUTPUT/results.json, results.png   all measures; a plot with a dot for each run

The runs are cells of tasks/study/grid.py. The rows are in tasks/study/rows.py.
"""

import dataclasses
import functools
import itertools
import pathlib
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.fields import checked_value
from bert_keras.io import formats
from bert_keras.io.folders import Folder, Layout
from bert_keras.io.json_files import MEASURE, OBJECT, checked_fields, list_of, object_of, read_object
from bert_keras.io.own_code import is_own
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.devices.strategies import strategy
from bert_keras.tasks.devices.workers import Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import check_fits
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.frozen.row_vectors import check_feature_based
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams, hparams_of
from bert_keras.tasks.pretraining.corpus import Document, HashSplit, digest_documents
from bert_keras.tasks.pretraining.monitor import BASELINES, HELD_OUT, SNAPSHOTS, against_baselines
from bert_keras.tasks.pretraining.pretrain import (
    Pretraining,
    check_replicas,
    fingerprint_of_pretraining,
    pretrain,
)
from bert_keras.tasks.pretraining.recipes import Recipe
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.tasks.study import grid, work
from bert_keras.tasks.study.chosen_rows import chosen_rows, folder_name, recipes_of
from bert_keras.tasks.study.comparison import Comparison, compare, write_comparison
from bert_keras.tasks.study.grid import Cell, Outcome, Study
from bert_keras.tasks.study.report import COMMONEST
from bert_keras.tasks.study.rows import (
    ABLATIONS,
    CONTROL,
    FEATURE_LAYERS,
    FEATURES,
    SCALES,
    Row,
    Scale,
    check_once,
)
from bert_keras.tasks.study.study_options import AblationOptions
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.text.tokenizer import Tokenizer

ABLATION = Layout(
    name="an ablation", artifact=formats.STUDY, fingerprint="ablation.json", results=RESULTS_FILE
)
PERPLEXITY = "_perplexity"  # ends the name of the measure of an objective
FIRST_SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pretrained:
    """An ablation with pre-training that is ready to run.

    documents, tokenizers: by the text and the vocabulary that rows name
    table: the rows that have figures; rows: those to fine-tune
    recipes: of each pre-training, by the name of its row
    given: the settings of fine-tuning that override those of the scale
    seeds: of each fine-tuning
    pretrainings: of each row, from the recipe's seed on
    learned: as in Ablation
    how: arguments for every training: strategy_name, verbose, log
    """

    output: pathlib.Path
    documents: Mapping[str | None, Iterable[Document]]
    tokenizers: Mapping[str | None, Tokenizer]
    held_out: float
    scale: Scale
    table: Sequence[Row]
    rows: Sequence[Row]
    recipes: Mapping[str, Recipe]
    tasks: Mapping[str, Task]
    given: Mapping[str, Any]
    seeds: Sequence[int]
    pretrainings: int
    learned: bool
    how: Mapping[str, Any]

    def check(self) -> None:
        """Raises BertKerasError for a row that cannot be pre-trained, or whose encoder cannot read a task's examples."""
        for recipe in self.recipes.values():
            check_replicas(recipe.hparams, strategy(self.how["strategy_name"]))
        least = dict[str | None, int]()
        for row in self.rows:
            text, need = self._origin(row).text, sampler_of(self._recipe(row).sampling().sampler).documents
            least[text] = max(need, least.get(text, 0))
        sides = ((True, "to evaluate on"), (False, "to train on"))
        for (text, need), (inside, side) in itertools.product(least.items(), sides):
            part = HashSplit(self.documents[text], self.held_out, inside=inside)
            if (count := len([*itertools.islice(part, need)])) < need:
                raise BertKerasError(
                    f"held_out is {self.held_out}, which leaves {count} documents {side}, and these rows need {need}; give "
                    "another --held-out, or more documents, separated by blank lines."
                )
        for row, name in self._trained:
            task, config, hparams = (
                self.tasks[name],
                self._config(row),
                self.hparams(row, name, self.seeds[0]),
            )
            check_fits(task, config, self._tokenizer(row), hparams)
            check_feature_based(task, config, hparams, keep_head=False, feature_cache=None)

    def _config(self, row: Row) -> BertConfig:
        """The configuration of a row's fine-tuning."""
        made = self._recipe(row).config(vocab_size=self._tokenizer(row).vocab_size)
        return dataclasses.replace(made, **row.finetuned)

    @property
    def _trained(self) -> list[tuple[Row, str]]:
        """The rows, with the tasks that each has a form for."""
        return [(row, name) for row, name in itertools.product(self.rows, self.tasks) if row.has(name)]

    def _origin(self, row: Row | str) -> Row:
        """The row of the pre-training whose weights a row uses, or of the name of a pre-training."""
        name = row if isinstance(row, str) else row.weights or row.name
        return next(one for one in (*self.rows, *self.table) if one.name == name)

    def _tokenizer(self, row: Row | str) -> Tokenizer:
        """The tokenizer of a pre-training."""
        return self.tokenizers[self._origin(row).vocabulary]

    def _recipe(self, row: Row) -> Recipe:
        """The recipe of the pre-training whose weights a row uses."""
        return self.recipes[row.weights or row.name]

    @functools.cached_property
    def _texts(self) -> dict[str | None, str]:
        return {name: digest_documents(one) for name, one in self.documents.items()}

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the results, besides the arguments of `run_ablation` that name them."""
        return {
            **{f"text {name or ''}".strip(): digest for name, digest in self._texts.items()},
            "vocabulary": {name or "": one.digest for name, one in self.tokenizers.items()},
            "lower_case": {name or "": one.lower_case for name, one in self.tokenizers.items()},
            "strategy": self.how["strategy_name"],
            "data": {
                name: grid.fingerprint_of_data(task, tokenizer, self.hparams(None, name, self.seeds[0]))
                for tokenizer in [next(iter(self.tokenizers.values()))]
                for name, task in self.tasks.items()
            },
            "finetuning": {**self.scale.finetuning, **self.given},
            "features": dict(self.scale.features),
            "options": {task: dict(given) for task, given in self.scale.options.items()},
            **{f"recipe of {row}": recipe.all_settings for row, recipe in self.recipes.items()},
        }

    def cells(self) -> Iterator[Cell]:
        """All pre-trainings, then the restarts of each row on each task from each of its pre-trainings."""
        numbers, several = range(1, self.pretrainings + 1), self.pretrainings > 1
        used = {row.weights or row.name for row in self.rows}
        for name, number in itertools.product(self.recipes, numbers):
            if name in used:
                given = self._settings(name, number)
                yield Cell(
                    name=f"{name}: pre-training" + (f", seed {given.recipe.hparams.seed}" if several else ""),
                    path=self._pretraining(name, number),
                    train=functools.partial(self._pretrain, given),
                    fingerprint=fingerprint_of_pretraining(given, text=self._texts[self._origin(name).text]),
                    work=functools.partial(
                        work.of_pretraining, given.recipe, vocab_size=self._tokenizer(name).vocab_size
                    ),
                )
        for (row, task), number, seed in itertools.product(self._trained, numbers, self.seeds):
            if row.share == 0 and number > 1:  # random weights have no pre-training to repeat
                continue
            of = {"pretraining": number} if several and row.share else {}
            hparams = self.hparams(row, task, seed)
            yield Cell(
                name=f"{row.name}: {task}, seed {seed}" + (f", pre-training {number}" if of else ""),
                path=self.output / folder_name(row.name) / f"{task}-{seed}{_suffix(number)}",
                task=task,
                place={"row": row.name, "seed": seed, **of},
                train=functools.partial(self._finetune, row, task, seed, number),
                work=functools.partial(
                    work.of_finetuning, self.tasks[task], self._config(row), self._tokenizer(row), hparams
                ),
            )

    def _pretraining(self, row: str, number: int) -> pathlib.Path:
        """The folder of a row's own pre-training."""
        return self.output / folder_name(row) / f"pretraining{_suffix(number)}"

    def _weights(self, row: Row, number: int) -> pathlib.Path:
        """The folder of the weights from which a row is fine-tuned; those of random weights say its sizes."""
        folder = self._pretraining(row.weights or row.name, number)
        return folder / SNAPSHOTS / str(self._snapshot(row)) if 0 < row.share < 1 else folder

    def _snapshot(self, row: Row) -> int:
        return round(row.share * self._recipe(row).hparams.steps)

    def hparams(self, row: Row | None, task: str, seed: int) -> Hparams:
        """The settings of a run. Restarts on features learn from the same examples, whose vectors are computed once.

        row: None for the settings that decide the examples
        """
        given = {**self.scale.finetuning, **self.given, "seed": seed}
        if row is not None and row.on_features(task) or task.endswith(FEATURES):
            given |= {"feature_layers": FEATURE_LAYERS, "learning_rate": FEATURE_RATE, **self.scale.features}
        given |= row.training if row is not None else {}
        if given.get("feature_layers") is not None:
            given |= {"data_seed": self.seeds[0]} if given.get("max_examples") is not None else {}
        return hparams_of(self.tasks[task].defaults, given)

    def _settings(self, row: str, number: int) -> Pretraining:
        """Everything that decides a pre-training of a row."""
        recipe = self.recipes[row]
        recipe = recipe if number == 1 else recipe.changed(seed=recipe.hparams.seed + number - 1)
        cuts = [one for one in self.rows if (one.weights or one.name) == row and 0 < one.share < 1]
        return Pretraining(
            documents=self.documents[self._origin(row).text],
            tokenizer=self._tokenizer(row),
            held_out=self.held_out,
            recipe=recipe,
            snapshots=[self._snapshot(one) for one in cuts],
            strategy_name=self.how["strategy_name"],
        )

    def _pretrain(self, given: Pretraining, *, output: pathlib.Path) -> None:
        pretrain(given, output, verbose=self.how["verbose"], log=self.how["log"])

    def _finetune(self, row: Row, name: str, seed: int, number: int, *, output: pathlib.Path) -> None:
        source, cache = checkpoints.read(self._weights(row, number)), None
        start = dataclasses.replace(source, config=dataclasses.replace(source.config, **row.finetuned))
        if row.share == 0:
            start = dataclasses.replace(start, tensors={})
        elif row.on_features(name):  # each seed has other random weights, which share no vectors
            cache = output.parent / f"vectors-{name}{_suffix(number)}"
        how = {"hparams": self.hparams(row, name, seed), "feature_cache": cache, **self.how}
        finetune(self.tasks[name], checkpoint=start, output=output, **how)

    def outcomes(self, cells: Sequence[Cell], *, workers: Workers) -> Iterator[Outcome]:
        """Runs the cells. Raises BertKerasError if the loss of a pre-training diverged: other runs need its weights."""
        for ran in grid.run_cells(cells, workers=workers, log=self.how["log"]):
            if ran.degenerate and not ran.task:
                workers.wait_to_end()
                raise BertKerasError(
                    f"{ran.path}: {ran.degenerate}; remove this folder and give a lower learning_rate."
                )
            if (
                self.learned
                and not ran.task
                and (worse := workers.from_chief(functools.partial(_unlearned, ran.path)))
            ):
                workers.wait_to_end()
                raise BertKerasError(
                    f"{ran.path}: {worse}, so it has learned nothing to compare; remove this folder and give it more steps, or "
                    "leave its row out."
                )
            yield ran

    def perplexities(self) -> dict[str, dict[str, float | None]]:
        """Objective -> row -> the perplexity of the held-out text at the end of its pre-training; None for a snapshot.

        COMMONEST has that of the unigrams. Several pre-trainings, and the unigrams of several rows, have their mean. Perplexities
        of different objectives, or masks, do not compare.
        """
        found = dict[str, dict[str, list[float]]]()
        for row, number in itertools.product(self.rows, range(1, self.pretrainings + 1)):
            if row.share:
                values = found.setdefault(self._predicted(row), {})
                ends = _perplexities(self._weights(row, number) / RESULTS_FILE)
                for name, value in zip((row.name, COMMONEST), ends, strict=True):
                    values.setdefault(name, []).extend([] if value is None else [value])
        return {
            objective: {name: statistics.fmean(known) if known else None for name, known in values.items()}
            for objective, values in found.items()
        }

    def _predicted(self, row: Row) -> str:
        """The tokens that a row's perplexity is of: of other vocabularies they differ too."""
        vocabulary = self._origin(row).vocabulary
        return _objective(self._recipe(row)) + (f", {vocabulary}" if vocabulary else "")

    def run(
        self,
        name: str,
        cells: Sequence[Cell],
        folder: Folder,
        fingerprint: Mapping[str, Any],
        workers: Workers,
    ) -> Comparison:
        """Runs the cells and writes the files of this module."""
        with workers.writing(folder.begin(fingerprint, reopen=True)):
            outcomes = [*self.outcomes(cells, workers=workers)]
            of_rows = workers.from_chief(self.perplexities)
            baselines = {
                task: grid.baseline(
                    one, self.hparams(None, task, self.seeds[0]), measure=ABLATIONS[name].measures.get(task)
                )
                for task, one in self.tasks.items()
            }
            about = {"baselines": baselines, "perplexities": of_rows, "covers": self._covers}
            found = compared(name, [row.name for row in self.scale.rows[name]], self.tasks, outcomes, **about)
            if workers.chief:
                write_comparison(found, folder.path)
        return found

    @property
    def _covers(self) -> str:
        if self.pretrainings > 1:
            return f"the error is that of {self.pretrainings} pre-trainings of each row"
        return "each row has one pre-training: the error covers the seeds of fine-tuning only"


def _unlearned(run: pathlib.Path) -> str | None:
    """The line about a pre-training that is no better on held-out text than unigrams, or than its baseline; None if it is."""
    results = read_object(run / RESULTS_FILE)
    lines = against_baselines(results["measures"], results[BASELINES])
    of_words = [line for line in lines if " unigrams: " in line] or lines
    return next((line for line in of_words if " does not beat " in line), None)


def _suffix(number: int) -> str:
    """The end of the names of a row's second and further pre-trainings, and of their runs."""
    return "" if number == 1 else f"-{number}"


def _objective(recipe: Recipe) -> str:
    """The tokens that a perplexity is of: they differ between objectives, between masks and after another objective's changes."""
    if "left_to_right" in recipe.objectives:
        return "left to right"
    if "masked_lm" not in recipe.objectives:
        return " and ".join(recipe.names).replace("_", " ")
    before = itertools.takewhile(lambda name: name != "masked_lm", recipe.names)
    changed = "".join(f" after {name}" for name in before if is_own(name))
    masking = recipe.masking()
    rates = "/".join(f"{100 * rate:.0f}" for rate in (masking.hide, masking.keep, masking.replace))
    return f"masked LM{changed}, {masking.share:.0%}, {rates}"


def _perplexities(file: pathlib.Path) -> tuple[float | None, float | None]:
    """The perplexity of the held-out text at the end of a pre-training, and that of the unigrams; None for a snapshot."""
    if not file.is_file():
        return None, None
    known = {"history": list_of(OBJECT), BASELINES: object_of(MEASURE)}
    results = checked_fields(read_object(file), known, where=file, others=True)
    names = [name for row in results["history"] for name in row]
    name = next((one for one in names if one.startswith(HELD_OUT) and one.endswith(PERPLEXITY)), "")
    last = next((row[name] for row in reversed(results["history"]) if name in row), None)
    return last, results[BASELINES].get(name.removeprefix(HELD_OUT))


@reports_lost_workers()
def plan_ablation(
    name: str,
    *,
    documents: Iterable[Document] | Mapping[str | None, Iterable[Document]],
    tokenizer: Tokenizer | Mapping[str | None, Tokenizer],
    data: Mapping[str, Source],
    output: str | pathlib.Path,
    scale: str = AblationOptions.scale,
    changes: Mapping[str, Any] | None = None,
    finetuning: Mapping[str, Any] | None = None,
    rows: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    restarts: int | None = None,
    pretrainings: int = AblationOptions.pretrainings,
    held_out: float = AblationOptions.held_out,
    strategy_name: str = "one",
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> Study[Comparison]:
    """Reads and checks everything; its `run` trains all runs that have not finished, then writes the files of this module.

    name, scale: keys of ABLATIONS and SCALES
    documents, tokenizer: one for all rows, or by the names of texts and vocabularies that rows have; None is the name of the rows
        without one
    data: the source of each task, by name; other tasks come from TensorFlow Datasets
    changes, finetuning: settings for every pre-training, whose seed is also the first of fine-tuning, and fields of Hparams
    rows, tasks, restarts: override those of the scale, as changes and finetuning do; rows and tasks are names. The tasks are
        those that have data, where `data` is given and `tasks` is not
    pretrainings: of each row, each with another seed; the error is then that of their means
    held_out: the fraction of the documents on which perplexity is measured

    `output` may hold runs of other rows and of more or fewer restarts and pretrainings: only what is new is trained.

    Raises BertKerasError or MissingFileError for an unknown name, for unreadable data, and if `output` was begun with other data
    or settings. `run` raises BertKerasError if another process writes to `output`, and if the loss of a pre-training diverges.
    """
    grid.check_name(name, ABLATIONS)
    grid.check_name(scale, SCALES)
    restarts = checked_value(AblationOptions, "restarts", restarts)
    pretrainings = checked_value(AblationOptions, "pretrainings", pretrainings)
    held_out = checked_value(AblationOptions, "held_out", held_out)
    workers, chosen, folder = Workers(strategy(strategy_name)), SCALES[scale], Folder(output, ABLATION)
    folder.check(reopen=True)
    texts: Any = documents if isinstance(documents, Mapping) else {None: documents}
    table, changes = [row for row in chosen.rows[name] if row.text in texts], dict(changes or {})
    of_study = _with_text(
        chosen_rows(chosen.rows[name], rows), chosen.rows[name], texts, named=rows is not None
    )
    first = changes.get("seed", FIRST_SEED)
    plan = _Pretrained(
        output=folder.path,
        documents=texts,
        tokenizers=_tokenizers_of((*table, *of_study), tokenizer),
        held_out=held_out,
        scale=chosen,
        table=table,
        rows=of_study,
        tasks=_open_tasks(tasks or _tasks_with_data(chosen.tasks[name], data), data, chosen),
        recipes=recipes_of({row.name: row for row in (*table, *of_study)}.values(), chosen, changes),
        given=dict(finetuning or {}),
        seeds=range(first, first + (chosen.restarts if restarts is None else restarts)),
        pretrainings=pretrainings,
        learned=ABLATIONS[name].learned,
        how={"strategy_name": strategy_name, "verbose": verbose, "log": workers.log(log)},
    )
    plan.check()
    named = {"ablation": name, "scale": scale, "changes": changes, "held_out": held_out}
    cells, fingerprint = [*plan.cells()], named | plan.fingerprint()
    grid.check_same(cells, fingerprint, workers=workers)
    return Study(cells=cells, train=functools.partial(plan.run, name, cells, folder, fingerprint, workers))


def _with_text(
    rows: Sequence[Row], table: Sequence[Row], texts: Collection[str | None], *, named: bool
) -> list[Row]:
    """The rows whose pre-training has a text. Raises BertKerasError for rows without one that a user named."""
    text = {row.name: row.text for row in (*table, *rows)}
    lacking = [row for row in rows if text[row.weights or row.name] not in texts]
    if lacking and named:
        name = text[lacking[0].weights or lacking[0].name]
        raise BertKerasError(
            f"the row {lacking[0].name} learns from the text {name or 'without a name'}, which is not given; give --text "
            f"{f'{name}=PATH' if name else 'PATH'} too."
        )
    return [row for row in rows if row not in lacking]


def _tokenizers_of(
    rows: Iterable[Row], given: Tokenizer | Mapping[str | None, Tokenizer]
) -> dict[str | None, Tokenizer]:
    """The tokenizer of each vocabulary that rows name. Raises BertKerasError for one that is not given."""
    by_name: Mapping[str | None, Tokenizer] = given if isinstance(given, Mapping) else {None: given}
    wanted = dict.fromkeys(row.vocabulary for row in rows if row.weights is None)
    if lacking := [name for name in wanted if name not in by_name]:
        named = [row.name for row in rows if row.vocabulary == lacking[0]]
        raise BertKerasError(
            f"the row {named[0]} reads the vocabulary {lacking[0] or 'without a name'}, which is not given; give --vocab "
            f"{f'{lacking[0]}=PATH' if lacking[0] else 'PATH'} too."
        )
    return {name: by_name[name] for name in wanted}


def run_ablation(name: str, **settings: Any) -> Comparison:
    """Runs the study that `plan_ablation` makes of these settings."""
    return plan_ablation(name, **settings).run()


def _tasks_with_data(names: Sequence[str], data: Mapping[str, Source]) -> Sequence[str]:
    """The table's tasks that have data, then others with data; where no data was given, all of the table."""
    plain = {name: name.removesuffix(FEATURES) for name in names}
    chosen = [name for name, one in plain.items() if one in data]
    return [*chosen, *(one for one in data if one not in plain.values())] or names


def _open_tasks(names: Sequence[str], data: Mapping[str, Source], scale: Scale) -> dict[str, Task]:
    """Opens the tasks, by their names, which may have the suffix FEATURES."""
    plain = {name: name.removesuffix(FEATURES) for name in names}
    check_once("tasks", names)
    grid.check_used(data, plain.values())
    return {name: grid.opened(one, data, **scale.options.get(one, {})) for name, one in plain.items()}


def compared(
    name: str, names: Sequence[str], tasks: Mapping[str, Task], outcomes: Sequence[Outcome], **about: Any
) -> Comparison:
    """The outcomes of an ablation with pre-training beside the paper's figures, and each row over random weights.

    A row of a user's own is compared with the first row of the table too.

    names: of all rows of the table, in order
    about: covers, baselines and perplexities of the Comparison
    """
    ablation = ABLATIONS[name]
    measures = {task: ablation.measures.get(task, one.measure) for task, one in tasks.items()}
    pairs = [(names[better], names[worse]) for better, worse in ablation.pairs]
    of_user = dict.fromkeys(
        one.place["row"] for one in outcomes if one.task and one.place["row"] not in (*names, CONTROL)
    )
    return compare(
        outcomes,
        tasks,
        name=name,
        title=ablation.title,
        measures=measures,
        figures={
            (row, task): value
            for task, figures in ablation.figures.items()
            for row, value in zip(names, figures, strict=True)
            if value is not None
        },
        pairs=[
            *pairs,
            *((row, names[0]) for row in of_user),
            *((row, CONTROL) for row in (*names, *of_user)),
        ],
        **about,
    )
