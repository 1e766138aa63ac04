"""Fine-tunes real weights on the paper's tasks, beside random controls; prints dev figures with their spread.

    python benchmarks/paper_tasks.py --data $BERT_KERAS_TEST_DATA
    python benchmarks/paper_tasks.py --data $BERT_KERAS_TEST_DATA --groups sst2 --picture docs/sst2.png

In: a folder with `glue/`, `squad/`, `swag/`, `conll2003/` and `weights/`; MiniLM-L6 comes from the demo's cache (it is fetched
when it is not there). Out: a table for each group of CASES. Every run is one `bert-keras finetune` in a process of its own,
under 40 minutes on 2 cores; a finished run is read and an unfinished one resumed, so the script can be stopped and started.
Each run has a control: the same run from random weights, or the most frequent answer where no training is needed.

`prepare` splits data sets that have no test split: SQuAD v2.0's questions by article into train, dev (to choose tau) and test
(reported with and without tau); CoNLL-2003's first documents with at most 1,000 sentences, the same for every row. MiniLM-L6 is
uncased, but the paper's model for CoNLL-2003 is cased. `bert-keras ablate layers` runs the paper's Table 7.
"""

import argparse
import dataclasses
import functools
import gzip
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.table import Table

from bert_keras.savedmodels import demo
from bert_keras.tasks import metrics
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.tasks.runs.task_types import TASKS

CONLL_SENTENCES = 1_000
XQUAD = "squad/xquad.en.json"
SQUAD2_SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}  # of the articles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of a group's table.

    data, dev_data, test_data: paths below --data, or below the folder of `prepare` where they begin with "made/"
    measures: names in the results, the first is drawn
    flags: further flags of `bert-keras finetune`, besides task, data, checkpoint, seed and output
    """

    group: str
    name: str
    task: str
    data: str
    measures: tuple[str, ...]
    flags: tuple[str, ...]
    dev_data: str | None = None
    test_data: str | None = None
    checkpoint: str = "minilm"
    random: bool = False
    seeds: tuple[int, ...] = (1, 2, 3)

    @property
    def slug(self) -> str:
        """The first part of the names of its runs' folders."""
        return f"{self.group}-{self.name}".lower().replace(", ", "-").replace(" ", "-")


def _flags(**settings: object) -> tuple[str, ...]:
    return tuple(
        text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))
    )


def _with_control(case: Case, *, seeds: tuple[int, ...] = (1,)) -> tuple[Case, Case]:
    return case, dataclasses.replace(case, name=f"{case.name}, random", random=True, seeds=seeds)


def _glue(
    name: str,
    folder: str,
    measures: tuple[str, ...],
    *,
    control_seeds: tuple[int, ...] = (1,),
    **settings: object,
) -> tuple[Case, Case]:
    settings = {"epochs": 3, "learning_rate": 5e-5, "seq_length": 128} | settings
    return _with_control(
        Case(
            group=name,
            name="MiniLM-L6",
            task=name,
            data=f"glue/{folder}",
            measures=measures,
            flags=_flags(**settings),
        ),
        seeds=control_seeds,
    )


_SQUAD = Case(
    group="squad1.1",
    name="MiniLM-L6",
    task="squad1.1",
    data="squad/squad1.1_train_subset_11877.json",
    dev_data=XQUAD,
    measures=("f1", "exact_match"),
    flags=_flags(epochs=1, learning_rate=5e-5, batch_size=16, max_examples=6_000),
)
# The paper trains on TriviaQA first. Without such a step, MiniLM learns to answer nothing.
# Each seed goes on from the same seed of SQuAD 1.1.
_SQUAD2 = Case(
    group="squad2.0",
    name="MiniLM-L6 after SQuAD 1.1",
    task="squad2.0",
    data="made/squad2.0-train.json",
    dev_data="made/squad2.0-dev.json",
    test_data="made/squad2.0-test.json",
    checkpoint="squad1.1",
    measures=("f1", "exact_match", "f1_at_tau_0", "exact_match_at_tau_0"),
    flags=(*_flags(epochs=2, learning_rate=3e-5, batch_size=16), "--keep-head"),
)
_SWAG = Case(
    group="swag",
    name="MiniLM-L6",
    task="swag",
    data="swag/codah/full_data.tsv",
    dev_data="swag/swag_500.jsonl",
    measures=("accuracy",),
    flags=_flags(epochs=3, learning_rate=2e-5, batch_size=16, seq_length=80),
)
_CONLL = Case(
    group="conll2003",
    name="document context",
    task="conll2003",
    data="made/eng.train.gz",
    dev_data="conll2003/eng.testa.gz",
    measures=("f1", "precision", "recall"),
    flags=_flags(epochs=6, learning_rate=5e-5, batch_size=2, context="document"),
)
_TINY = Case(
    group="sst2",
    name="BERT-tiny",
    task="sst2",
    data="glue/SST-2",
    checkpoint="tiny",
    measures=("accuracy",),
    flags=_flags(epochs=1, learning_rate=1e-4, seq_length=128),
)
CASES = (
    *_glue("sst2", "SST-2", ("accuracy",), control_seeds=(1, 2, 3), epochs=1, max_examples=10_000),
    *_with_control(_TINY, seeds=(1, 2, 3)),
    *_glue("cola", "CoLA", ("matthews",)),
    *_glue("mrpc", "MRPC", ("f1", "accuracy")),
    *_glue("stsb", "STS-B", ("spearman", "pearson")),
    *_glue("rte", "RTE", ("accuracy",)),
    *_glue("wnli", "WNLI", ("accuracy",)),
    *_with_control(_SQUAD),
    _SQUAD2,
    _SWAG,
    *_with_control(_CONLL),
    dataclasses.replace(
        _CONLL,
        name="sentence only",
        flags=_flags(epochs=6, learning_rate=5e-5, batch_size=32, context="sentence", seq_length=128),
    ),
)
KINDS = {name: task.kind for task in TASKS.values() for name in task.names}
GROUPS = tuple(dict.fromkeys(case.group for case in CASES))


def prepare(data: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the files in "made/" that CASES need."""
    folder.mkdir(parents=True, exist_ok=True)
    source = json.loads((data / "squad/squad2.0_dev_subset_6078.json").read_text(encoding="utf-8"))
    articles, start = source["data"], 0.0
    for part, share in SQUAD2_SHARES.items():
        chosen = articles[round(start * len(articles)) : round((start + share) * len(articles))]
        start += share
        text = json.dumps({"version": "v2.0", "data": chosen}, ensure_ascii=False)
        (folder / f"squad2.0-{part}.json").write_text(text, encoding="utf-8")
    with (
        gzip.open(data / "conll2003/eng.train.gz", "rt", encoding="utf-8") as lines,
        gzip.open(folder / "eng.train.gz", "wt", encoding="utf-8") as out,
    ):
        out.writelines(_first_documents(lines, sentences=CONLL_SENTENCES))


def _first_documents(lines: Iterable[str], *, sentences: int) -> Iterable[str]:
    """The lines of the first complete documents that together have at most that many sentences."""
    document: list[str] = []
    total = 0
    for line in [*lines, "-DOCSTART- -X- -X- O\n"]:
        if line.startswith("-DOCSTART-") and document:
            blocks = "".join(document).split("\n\n")[1:]
            total += sum(bool(block.strip()) for block in blocks)
            if total > sentences:
                return
            yield from document
            document = []
        document.append(line)


def results_of(case: Case, seed: int, args: argparse.Namespace) -> dict:
    """The results.json of this run, or its measures on the test file; trains it first if it has not finished."""
    output = pathlib.Path(args.output) / f"{case.slug}-{seed}"

    def place(path: str) -> str:
        return str(pathlib.Path(args.output if path.startswith("made/") else args.data) / path)

    if not (output / "results.json").exists():
        weights = {
            "minilm": args.minilm,
            "tiny": args.data / "weights/bert-tiny-splade-uncased",
            "squad1.1": pathlib.Path(args.output) / f"{_SQUAD.slug}-{seed}",
        }
        if case.checkpoint == "squad1.1":
            results_of(_SQUAD, seed, args)
        command = ["finetune", "--task", case.task, "--data", place(case.data)]
        command += ["--checkpoint", str(weights[case.checkpoint])]
        command += [] if case.dev_data is None else ["--dev-data", place(case.dev_data)]
        command += ["--output", str(output), "--seed", str(seed), *case.flags]
        command += ["--random-weights"] if case.random else []
        subprocess.run([sys.executable, "-m", "bert_keras", *command], check=True)
    results = json.loads((output / "results.json").read_text(encoding="utf-8"))
    figures = {name.removeprefix("val_"): value for name, value in results["measures"].items()}
    if case.test_data is not None:
        kept = output / "test.json"
        if not kept.exists():
            kept.write_text(json.dumps(_test_figures(output, place(case.test_data))), encoding="utf-8")
        figures = json.loads(kept.read_text(encoding="utf-8"))
    return results | {"figures": figures}


def _test_figures(run_folder: pathlib.Path, data: str) -> dict[str, float]:
    """A question-answering run's measures on a test file, with the tau of its dev split and with 0."""
    run = load_run(run_folder, data=data)
    assert isinstance(run.task, QuestionAnswering)
    figures = {"tau": run.task.tau} | evaluate(run, "validation")
    task = QuestionAnswering.from_json(run.task.to_json() | {"tau": 0.0}, data)
    without = evaluate(dataclasses.replace(run, task=task), "validation")
    return figures | {f"{name}_at_tau_0": value for name, value in without.items()}


def _questions(file: pathlib.Path) -> list[dict]:
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    return [qa for article in articles for part in article["paragraphs"] for qa in part["qas"]]


def commonest_answer(group: str, args: argparse.Namespace) -> float | None:
    """The first measure of a group for a trivial baseline, which always gives the same answer.

    The answer is none in SQuAD v2.0, the most frequent text in v1.1 and the most frequent index in SWAG.
    """
    if group == "squad2.0":
        asked = _questions(pathlib.Path(args.output) / "made/squad2.0-test.json")
        return 100 * statistics.mean(bool(qa["is_impossible"]) for qa in asked)
    if group == "squad1.1":
        golds = [[answer["text"] for answer in qa["answers"]] for qa in _questions(args.data / XQUAD)]
        texts = list(itertools.chain(*golds))
        commonest = max(texts, key=texts.count)
        return 100 * metrics.answer_scores([commonest] * len(golds), golds, unanswerable=False)[1].mean()
    if group == "swag":
        task = MultipleChoice.open("swag", {"validation": args.data / "swag/swag_500.jsonl"})
        labels = [int(raw["label"]) for raw in task.examples("validation").as_numpy_iterator()]
        return 100 * max(map(labels.count, labels)) / len(labels)
    return None


def draw(rows: list[tuple[str, list[float]]], *, label: str, file: str) -> None:
    """Plots a dot for each run, one row per case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 0.55 * len(rows) + 1.1), layout="constrained")
    for y, (name, values) in enumerate(reversed(rows)):
        colour = "#8a8f98" if "random" in name else "#1f6fb2"
        axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.75)
        mean = statistics.mean(values)
        axes.annotate(f"{mean:.1f}", (mean, y), (0, 8), textcoords="offset points", ha="center")
    axes.set(yticks=range(len(rows)), yticklabels=[name for name, _ in reversed(rows)], xlabel=label)
    axes.set_ylim(-0.6, len(rows) - 0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


Runs = list[Callable[[], dict]]


def runs_of(group: str, args: argparse.Namespace) -> Iterator[tuple[str, tuple[str, ...], Runs]]:
    """Yields the name, the measures and the results of each seed for each row of a group's table."""

    def chosen(seeds: Iterable[int]) -> list[int]:
        return [seed for seed in seeds if args.seeds is None or seed in args.seeds]

    for case in (case for case in CASES if case.group == group):
        yield (
            case.name,
            case.measures,
            [functools.partial(results_of, case, seed, args) for seed in chosen(case.seeds)],
        )


def main() -> None:
    """Trains, prints the tables and plots them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the data sets")
    parser.add_argument("--minilm", help="a MiniLM-L6 checkpoint (default: the demo's)")
    parser.add_argument("--output", default="runs/paper", help="folder of the runs (default: runs/paper)")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS, metavar="GROUP")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of each case's seeds")
    parser.add_argument("--picture", help="where to draw the (last) group's runs")
    args = parser.parse_args()
    args.minilm = args.minilm or str(demo.fetch(demo.WEIGHTS, demo.cache_folder()))
    prepare(args.data, pathlib.Path(args.output) / "made")
    for group in args.groups:
        table = Table(
            *("start", "train", "dev", "measure", "mean", "sd", "each seed", "minutes each"), title=group
        )
        rows, kind = [], KINDS[group]
        for name, measures, runs in runs_of(group, args):
            results = [run() for run in runs]
            if not results:
                continue
            for measure in measures:
                fractions = [metrics.as_fractions(one["figures"], kind=kind) for one in results]
                values = [100 * one[measure] for one in fractions]
                if measure == measures[0]:
                    rows.append((name, values))
                table.add_row(
                    name,
                    f"{results[0]['train_examples']:,}",
                    f"{results[0]['dev_examples']:,}",
                    measure,
                    f"{statistics.mean(values):.2f}",
                    f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-",
                    " ".join(f"{value:.2f}" for value in values),
                    f"{statistics.mean(one['seconds'] for one in results) / 60:.1f}",
                )
        if (share := commonest_answer(group, args)) is not None:
            table.add_row("commonest answer", "", "", measures[0], f"{share:.2f}", "", "", "")
        Console().print(table)
        if args.picture:
            draw(rows, label=f"{group}, {measures[0]}, %", file=args.picture)


if __name__ == "__main__":
    main()
