"""The paper's ablations: pre-train each row of a table, fine-tune each, say which of the paper's orderings hold.

In: a key of ABLATIONS, text, a tokenizer, the tasks' data. Out: a folder

    OUTPUT/<row>/pretraining/          a run of tasks/pretraining/pretrain.py; a row that shares another's weights has none
    OUTPUT/<row>/<task>-<seed>/        runs of `finetune`, or a BiLSTM on frozen features
    OUTPUT/ablation.json               what all of it was asked for
    OUTPUT/results.json, results.png   every figure; a dot for every run

What has finished is not run again. Source: Devlin et al. 2019, tables 5, 6 and 8, and C.1.
"""

import dataclasses
import itertools
import json
import pathlib
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.files import write_json
from bert_keras.json_files import MEASURE, OBJECT, list_of, read_object, typed
from bert_keras.paths import path_of
from bert_keras.text.tokenizers import Tokenizer
from tasks.batches import take_examples
from tasks.data_files import Source
from tasks.features.extract import extract
from tasks.features.tagger import TaggerHparams, train_tagger
from tasks.folders import check_equal
from tasks.metrics import Ordering, ordering
from tasks.ner.task import Conll
from tasks.pretraining.instances import Text
from tasks.pretraining.pretrain import SNAPSHOTS, check_replicas, pretrain
from tasks.pretraining.recipes import RECIPES, Recipe
from tasks.pretraining.records import digest_of_documents
from tasks.report import Table
from tasks.squad.task import Squad  # whose scorers count in percent
from tasks.task import Hparams, Task
from tasks.training.finetune import finetune
from tasks.training.identity import digest_of_examples
from tasks.training.loop import RESULTS_FILE
from tasks.training.run import free_memory, open_task
from tasks.training.strategies import strategy

ABLATION_FILE = "ablation.json"
PERPLEXITY = "held_out_masked_lm_perplexity"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table.

    recipe: a key of RECIPES
    settings: of its pre-training, beside the scale's
    weights: the name of the row whose pre-training it takes; None for its own
    share: of the steps of that pre-training, after which it is fine-tuned
    finetuned: fields of the encoder's configuration that are changed for fine-tuning; what they add starts at random
    """

    name: str
    recipe: str = "bert"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: str | None = None
    share: float = 1.0
    finetuned: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Ablation(NamedTuple):
    """A table of the paper.

    pairs: places of rows that are compared, the better one first where `figures` do not say it
    figures: the paper's, by task, in the order of the rows
    """

    title: str
    pairs: tuple[tuple[int, int], ...]
    figures: Mapping[str, tuple[float, ...]] = {}


SHARES = (1.0, 0.75, 0.5, 0.25)
ABLATIONS = {
    "tasks": Ablation(
        "pre-training tasks (table 5)",
        ((0, 1), (1, 2), (2, 3)),
        {
            "mnli": (84.4, 83.9, 82.1, 82.1),
            "qnli": (88.4, 84.9, 84.3, 84.1),
            "mrpc": (86.7, 86.5, 77.5, 75.7),
            "sst2": (92.7, 92.6, 92.1, 91.6),
            "squad1.1": (88.5, 87.9, 77.8, 84.9),
        },
    ),
    "size": Ablation(
        "model size (table 6)",
        tuple((i + 1, i) for i in range(5)),
        {
            "mnli": (77.9, 80.6, 81.9, 84.4, 85.7, 86.6),
            "mrpc": (79.8, 82.2, 84.8, 86.7, 86.9, 87.8),
            "sst2": (88.4, 90.7, 91.3, 92.9, 93.3, 93.7),
        },
    ),
    "masking": Ablation(
        "what becomes of the chosen tokens, masked/kept/replaced in percent (table 8)",
        tuple((0, i) for i in range(1, 6)),
        {
            "mnli": (84.2, 84.3, 84.1, 84.4, 83.7, 83.6),
            "conll2003": (95.4, 94.9, 95.2, 95.2, 94.8, 94.9),
            "conll2003-features": (94.9, 94.0, 94.6, 94.7, 94.6, 94.6),
        },
    ),
    # The masked LM is over left to right at every step, and better for the second half of its steps.
    "steps": Ablation(
        "steps of pre-training (C.1)", (*((i, i + len(SHARES)) for i in range(len(SHARES))), (0, 2))
    ),
}

FEATURES = "-features"  # after a tagging task's name: the feature-based approach on it
FEATURE_LAYERS = "concat_last_four"  # table 8


def _sizes(*shapes: tuple[int, int, int]) -> tuple[Row, ...]:
    """Rows of table 6: layers, width and heads."""
    names = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    return tuple(
        Row(
            name=f"{layers} x {width}, {heads} heads",
            settings=dict(zip(names, (layers, width, heads, 4 * width), strict=True)),
        )
        for layers, width, heads in shapes
    )


def _shares(name: str, recipe: str) -> Iterator[Row]:
    yield Row(name=name, recipe=recipe)
    for share in SHARES[1:]:
        yield Row(name=f"{name}, {share:.0%} of the steps", recipe=recipe, weights=name, share=share)


_LTR = "LTR and no NSP"
_ROWS = {
    "tasks": (
        Row(name="BERT"),
        Row(name="no NSP", recipe="bert-no-nsp"),
        Row(name=_LTR, recipe="ltr-no-nsp"),
        Row(name=f"{_LTR}, BiLSTM", recipe="ltr-no-nsp", weights=_LTR, finetuned={"bilstm": True}),
    ),
    "masking": tuple(
        Row(
            name=f"{hide}/{keep}/{replace}",
            settings={"hide": hide / 100, "keep": keep / 100, "replace": replace / 100},
        )
        for hide, keep, replace in (
            (80, 10, 10),
            (100, 0, 0),
            (80, 0, 20),
            (80, 20, 0),
            (0, 20, 80),
            (0, 0, 100),
        )
    ),
    "steps": (*_shares("masked LM", "bert"), *_shares("left to right", "ltr-no-nsp")),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the ablations are.

    pretraining: settings of every row's recipe
    finetuning, tagging: fields of Hparams and TaggerHparams, before a task's own defaults
    options: of a task, by its name
    restarts: seeds of each fine-tuning
    rows, tasks: by ablation
    """

    pretraining: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    finetuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tagging: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    restarts: int
    rows: Mapping[str, tuple[Row, ...]]
    tasks: Mapping[str, tuple[str, ...]]


SCALES = {
    # For 2 cores, where no row takes over 25 minutes.
    "small": Scale(
        pretraining={
            "size": "L-4_H-128",
            "seq_length": 64,
            "strict": True,  # where a sentence fills a chunk, nearly all next ones are random without it
            "batch_size": 32,
            "steps": 2000,
            "learning_rate": 1e-3,
            # Without it the first steps are some times as long as the rate says, which the paper's 10,000 steps of warm-up
            # make good and 200 do not: the next sentence is learned at once, and all positions become alike.
            "bias_correction": True,
            "warmup_proportion": 0.1,
            "eval_every": 500,
            "held_out_instances": 500,
        },
        finetuning={"seq_length": 64, "learning_rate": 1e-4, "epochs": 3, "max_examples": 3000},
        tagging={"units": 128, "epochs": 5},
        options={"conll2003": {"context": "sentence"}},
        restarts=3,
        rows=_ROWS
        | {"size": _sizes((1, 128, 2), (2, 128, 1), (2, 128, 2), (4, 128, 2), (4, 192, 3), (6, 192, 3))},
        tasks={
            "tasks": ("sst2", "mrpc"),
            "size": ("sst2", "mrpc"),
            "masking": ("sst2", "conll2003", "conll2003-features"),
            "steps": ("sst2",),
        },
    ),
    # The paper's own: BERT base, its recipe and its tasks.
    "paper": Scale(
        restarts=5,
        rows=_ROWS
        | {
            "size": _sizes(
                (3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)
            )
        },
        tasks={name: tuple(ablation.figures) or ("mnli",) for name, ablation in ABLATIONS.items()},
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The figures of a row: the held-out perplexity of its pre-training, and each restart's measure, by task, in percent."""

    row: Row
    perplexity: float | None
    measures: Mapping[str, list[float]]


def run_ablation(
    name: str,
    *,
    documents: Iterable[Text],
    tokenizer: Tokenizer,
    data: Mapping[str, Source],
    output: str | pathlib.Path,
    scale: str = "small",
    changes: Mapping[str, Any] | None = None,
    tasks: Sequence[str] | None = None,
    restarts: int | None = None,
    held_out: float = 0.05,
    strategy_name: str = "one",
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> list[Outcome]:
    """Runs what has not been run, then writes the files of this module.

    name: a key of ABLATIONS; scale: one of SCALES
    data: the source of each task, by its name; TensorFlow Datasets where there is none
    changes: settings of every pre-training, before those of the scale
    tasks: instead of the scale's; restarts: instead of the scale's
    held_out: the share of the documents on which perplexity is measured

    Raises ValueError or FileNotFoundError, before any training, on another name, on data that cannot be read, and where
    `output` was begun with other settings.
    """
    for given, known in ((name, ABLATIONS), (scale, SCALES)):
        if given not in known:
            raise BertKerasError(f"there is no {given!r}; wanted is one of {', '.join(known)}.")
    output, chosen = path_of(output), SCALES[scale]
    tasks, restarts = tuple(tasks or chosen.tasks[name]), chosen.restarts if restarts is None else restarts
    if restarts < 1:
        raise BertKerasError(f"restarts is {restarts}; give at least 1.")
    if output.exists() and not (output / ABLATION_FILE).is_file() and any(output.iterdir()):
        raise BertKerasError(f"{output} is neither empty nor an ablation; give another output.")
    opened = {task: _open(task, data, chosen) for task in tasks}
    rows = chosen.rows[name]
    recipes = {row.name: _recipe(row, chosen, changes or {}) for row in rows}
    for recipe in recipes.values():
        check_replicas(recipe.hparams, strategy(strategy_name))
    _prepare(
        output,
        {
            "text": digest_of_documents(documents),
            "data": {task: digest_of_examples(opened[task].examples("train")) for task in tasks},
            "vocabulary": tokenizer.digest,
            "ablation": name,
            "scale": scale,
            "finetuning": dict(chosen.finetuning),
            "tagging": dict(chosen.tagging),
            "options": {task: dict(given) for task, given in chosen.options.items()},
            "changes": dict(changes or {}),
            **{f"recipe of {row}": recipe.all_settings for row, recipe in recipes.items()},
            "tasks": list(tasks),
            "restarts": restarts,
            "held_out": held_out,
        },
    )
    how = {"strategy_name": strategy_name, "verbose": verbose, "log": log}
    for row in rows:
        folder = _pretraining(output, row.name)
        if row.weights is None and not (folder / RESULTS_FILE).exists():
            log(f"{row.name}: pre-training")
            shares = [one.share for one in rows if one.weights == row.name and one.share < 1]
            steps = recipes[row.name].hparams.steps
            pretrain(
                recipe=recipes[row.name],
                documents=documents,
                held_out=held_out,
                tokenizer=tokenizer,
                output=folder,
                snapshots=[round(share * steps) for share in shares],
                **how,  # type: ignore[arg-type]
            )
            free_memory()
    outcomes = []
    for row in rows:
        weights = _pretraining(output, row.weights or row.name)
        if row.share < 1:
            weights = weights / SNAPSHOTS / str(round(row.share * recipes[row.name].hparams.steps))
        measures: dict[str, list[float]] = {task: [] for task in tasks}
        for task, seed in itertools.product(tasks, range(1, 1 + restarts)):
            run = output / _slug(row.name) / f"{task}-{seed}"
            if not (run / RESULTS_FILE).exists():
                log(f"{row.name}: {task}, seed {seed}")
                _train(task, opened[task], _start(weights, row), run, chosen, seed=seed, **how)  # type: ignore[arg-type]
                free_memory()
            file, measure = run / RESULTS_FILE, f"val_{opened[task].measure}"
            found = typed(read_object(file), {"measures": OBJECT}, where=file, others=True)["measures"]
            value = typed(found, {measure: MEASURE}, where=f"{file}: measures", others=True)[measure]
            measures[task].append(value if isinstance(opened[task], Squad) else 100 * value)
        outcomes.append(Outcome(row=row, perplexity=_perplexity(weights), measures=measures))
    write_json(output / RESULTS_FILE, as_json(name, outcomes))
    _draw(outcomes, output / "results.png")
    return outcomes


def _pretraining(output: pathlib.Path, row: str) -> pathlib.Path:
    return output / _slug(row) / "pretraining"


def _slug(name: str) -> str:
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def _recipe(row: Row, scale: Scale, changes: Mapping[str, Any]) -> Recipe:
    settings = {**scale.pretraining, **row.settings, **changes}
    if "phases" in changes and "seq_length" not in changes:
        settings.pop("seq_length", None)  # the scale's, which is a phase
    return RECIPES[row.recipe].changed(**settings)


def _open(name: str, data: Mapping[str, Source], scale: Scale) -> Task:
    """The task, its examples read once: bad data ends here, not after the training of other rows."""
    plain = name.removesuffix(FEATURES)
    task = open_task(plain, data.get(plain), **scale.options.get(plain, {}))
    if plain != name and not isinstance(task, Conll):
        raise BertKerasError(f"{name} is no task; the feature-based approach is that of {Conll.kind}.")
    for split in ("train", task.validation_splits[0]):
        task.examples(split)
    return task


def _prepare(output: pathlib.Path, settings: Mapping[str, Any]) -> None:
    """Writes down what is asked for. Raises ValueError where the folder was asked for another."""
    settings = json.loads(json.dumps(settings))  # as it will be read
    file = output / ABLATION_FILE
    if file.is_file():
        check_equal(output, read_object(file), settings)
        return
    output.mkdir(parents=True, exist_ok=True)
    write_json(file, settings)


def _start(weights: pathlib.Path, row: Row) -> checkpoints.Checkpoint:
    """What is fine-tuned."""
    checkpoint = checkpoints.read(weights)
    return dataclasses.replace(checkpoint, config=dataclasses.replace(checkpoint.config, **row.finetuned))


def _train(
    name: str,
    task: Task,
    start: checkpoints.Checkpoint,
    output: pathlib.Path,
    scale: Scale,
    *,
    seed: int,
    strategy_name: str,
    verbose: int | str,
    log: Callable[[str], None],
) -> None:
    """One restart: a run that was cut short is begun again."""
    hparams = Hparams(**{**task.defaults, **scale.finetuning, "seed": seed})
    shutil.rmtree(output, ignore_errors=True)
    if not name.endswith(FEATURES):
        finetune(
            task,
            checkpoint=start,
            output=output,
            hparams=hparams,
            strategy_name=strategy_name,
            verbose=verbose,
            log=log,
        )
        return
    assert isinstance(task, Conll)
    caches = [
        extract(
            task,
            # The same for every restart, so that their vectors are computed once.
            take_examples(task.examples(split), count=count, seed=0),
            checkpoint=start,
            output=output.parent / f"{FEATURE_LAYERS}-{split}",
            layers=[FEATURE_LAYERS],
            seq_length=hparams.seq_length,
        )
        for split, count in (("train", hparams.max_examples), (task.validation_splits[0], None))
    ]
    tagging = TaggerHparams(**{**scale.tagging, "seed": seed})
    train_tagger(*caches, layers=FEATURE_LAYERS, output=output, hparams=tagging, verbose=verbose, log=log)


def _perplexity(weights: pathlib.Path) -> float | None:
    """Of the held-out text, at the end of a pre-training; None of a snapshot."""
    file = weights / RESULTS_FILE
    if not file.is_file():
        return None
    history = typed(read_object(file), {"history": list_of(OBJECT)}, where=file, others=True)["history"]
    return next((row[PERPLEXITY] for row in reversed(history) if PERPLEXITY in row), None)


def _orderings(name: str, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, str, Ordering]]:
    """Task, better row, worse row by the paper, and how they stand here. What the paper has equal is left out."""
    for task in outcomes[0].measures:
        figures = ABLATIONS[name].figures.get(task)
        for better, worse in ABLATIONS[name].pairs:
            if figures is not None and figures[better] == figures[worse]:
                continue
            if figures is not None and figures[better] < figures[worse]:
                better, worse = worse, better
            first, second = outcomes[better], outcomes[worse]
            found = ordering(first.measures[task], second.measures[task])
            yield task, first.row.name, second.row.name, found


def as_json(name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What results.json says; measures and differences in percent."""
    rows = [{"row": one.row.name, "perplexity": one.perplexity, "measures": one.measures} for one in outcomes]
    orderings = [
        {"task": task, "better": better, "worse": worse, **found._asdict()}
        for task, better, worse, found in _orderings(name, outcomes)
    ]
    return {"ablation": name, "rows": rows, "orderings": orderings}


def tables(name: str, outcomes: Sequence[Outcome]) -> list[Table]:
    """For people: the paper's table with the spread over restarts and the paper's figure, and what became of its orderings."""
    tasks, ablation = tuple(outcomes[0].measures), ABLATIONS[name]
    rows = []
    for i, one in enumerate(outcomes):
        cells = [_cell(one.measures[task], ablation.figures.get(task), i) for task in tasks]
        rows.append((one.row.name, "-" if one.perplexity is None else f"{one.perplexity:.1f}", *cells))
    listed = [
        (task, f"{better} over {worse}", f"{found.difference:+.2f}", f"{found.error:.2f}", found.verdict)
        for task, better, worse, found in _orderings(name, outcomes)
    ]
    columns = ("task", "the paper's order", "difference", "standard error", "here")
    return [
        Table(
            f"{ablation.title}: mean, standard deviation and (the paper's)",
            ("row", "held-out perplexity", *tasks),
            rows,
        ),
        Table("orderings hold, or fail, by more than two standard errors", columns, listed),
    ]


def _cell(values: Sequence[float], figures: Sequence[float] | None, row: int) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}" + ("" if figures is None else f" ({figures[row]})")


def _draw(outcomes: Sequence[Outcome], path: pathlib.Path) -> None:
    """A dot for every run, a panel for each task; over the steps where rows are shares of a pre-training, else by row."""
    # Imported here: slow to import, and not needed before.
    from matplotlib.figure import Figure

    tasks = tuple(outcomes[0].measures)
    figure = Figure(figsize=(5 * len(tasks) + 1, 0.4 * len(outcomes) + 2), layout="constrained")
    by_share = any(one.row.share < 1 for one in outcomes)
    for panel, task in zip(
        figure.subplots(1, len(tasks), squeeze=False, sharey=not by_share)[0], tasks, strict=True
    ):
        if by_share:
            _draw_shares(panel, outcomes, task)
        else:
            for y, one in enumerate(reversed(outcomes)):
                values = one.measures[task]
                panel.plot(values, [y] * len(values), "o", color="tab:blue", alpha=0.6)
            panel.set_yticks(range(len(outcomes)), [one.row.name for one in reversed(outcomes)])
            panel.set_xlabel("dev, %")
        panel.set_title(task)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_shares(panel: Any, outcomes: Sequence[Outcome], task: str) -> None:
    """A curve for each pre-training."""
    for name in dict.fromkeys(one.row.weights or one.row.name for one in outcomes):
        points = sorted(
            (one.row.share, one.measures[task]) for one in outcomes if name in (one.row.weights, one.row.name)
        )
        (line,) = panel.plot(
            [share for share, _ in points], [statistics.fmean(values) for _, values in points], label=name
        )
        for share, values in points:
            panel.plot([share] * len(values), values, "o", color=line.get_color(), alpha=0.6)
    panel.set(xlabel="share of the steps", ylabel="dev, %")
    panel.legend()
