"""Writes the pictures, the table and the CSV files of docs/performance.md from the JSON files of peers.py and cost.py.

    python benchmarks/peers.py --json benchmarks/figures/MACHINE/float32.json
    python benchmarks/peers.py --precision bfloat16 --json benchmarks/figures/MACHINE/bfloat16.json
    python benchmarks/cost.py --json benchmarks/figures/MACHINE/cost.json
    python benchmarks/pictures.py

In: the folder `figures`, with a folder for each machine. Out: docs/performance/*.png; the CSV files of `csv_files`, beside the
JSON files; and every section of docs/performance.md between the lines `<!-- figures: NAME -->` and `<!-- end of figures -->`,
where NAME is a key of what `sections` returns.
"""

import argparse
import csv
import io
import json
import pathlib
import re
import statistics
from typing import Any

import machine

HERE = pathlib.Path(__file__).resolve().parent
FIGURES, PAGE = HERE / "figures", HERE.parent / "docs" / "performance.md"
PICTURES = PAGE.with_suffix("")
OURS, FROZEN, PADDED = "bert_keras", "bert_keras, frozen", "bert_keras, padded"
# Peer -> its colour and marker, the same in all pictures.
STYLES = {
    OURS: ("#111111", "o"),
    "KerasHub": ("#d1495b", "s"),
    "Model Garden": ("#c05a00", "<"),
    "Hugging Face": ("#e0a100", "D"),
    "Hugging Face, autocast": ("#b07d00", "d"),
    "Hugging Face, compiled": ("#7a8b00", "v"),
    "ONNX Runtime": ("#2e86ab", "^"),
    "OpenVINO": ("#6a4c93", "P"),
    "tokenizers": ("#3a7d44", "X"),
    "tokenizers, no offsets": ("#79b473", "x"),
    "FastBertTokenizer": ("#8a8f98", "*"),
    "plain Python": ("#a0522d", "h"),
}
# Ours that do less than the peers, or offsets besides.
LESS_WORK = tuple(f"{OURS}, {form}" for form in ("unpadded", "pooled only", "offsets"))
# A setting of threads that the peers have not.
ONE_THREAD = f"{OURS} on one thread, frozen"
# The peers with a column in the table; the others take part in few cases.
COLUMNS = (
    *("KerasHub", "Model Garden", "Hugging Face", "Hugging Face, autocast", "Hugging Face, compiled"),
    *("ONNX Runtime", "OpenVINO"),
)
WORDS = {
    "encoder": "encoder",
    "finetune": "fine-tuning step",
    "pretrain": "pre-training step",
    "xla-finetune": "fine-tuning step by XLA",
    "xla-pretrain": "pre-training step by XLA",
    "serving": "raw sentences served",
    "answers": "questions answered",
    "features": "hidden states of all layers",
    "tokenize": "WordPiece",
    "byte-bpe": "byte-level BPE",
    "instances": "pre-training instances",
    "start": "first answer of a new process",
    "import": "import in a new process",
    "memory": "peak memory of fine-tuning",
}

COST = "cost"
# Kinds of cases whose default form has a line beside that of the form that is compared.
DEFAULT_TOO = ("finetune", "pretrain", "instances", "start")
# The machine of the table on the page; the CSV files have all machines.
MACHINE = "epyc-avx512"
# Of precision.py.
TASKS = {
    "sst2": ("SST-2, 6,000", "accuracy"),
    "stsb": ("STS-B, all", "Spearman"),
    "squad1.1": ("SQuAD v1.1, 3,000, two epochs", "F1"),
    "conll2003": ("CoNLL-2003, 3,000", "F1"),
}
Content = dict[str, Any]
Machines = dict[str, dict[str, Content]]  # machine -> the name of a file -> its content


def against(content: Content, ours: str) -> dict[str, dict[str, list[float]]]:
    """Case -> peer -> the ratios of all rounds of one of our forms."""
    found: dict[str, dict[str, list[float]]] = {}
    for result in content["results"]:
        if result["ours"] == ours and not result["peer"].startswith(OURS):
            found.setdefault(result["case"], {})[result["peer"]] = result["rounds"]
    return found


def median(values: list[float]) -> float:
    """The middle value, or the mean of the two middle values."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


# -----------------------------------------------------------------------------------------------------------
# The page


def like_for_like(content: Content, case: str) -> dict[str, tuple[float, str]]:
    """Peer -> its ratio to the fastest of our forms that do the same work, and that form."""
    results = [result for result in content["results"] if result["case"] == case]
    # A training leaves out padding, unless its form is padded.
    less = {*LESS_WORK, ONE_THREAD, *([OURS] if PADDED in {result["ours"] for result in results} else [])}
    best: dict[str, tuple[float, str]] = {}
    for result in results:
        if result["ours"] not in less and not result["peer"].startswith(OURS):
            ratio = (result["median"], result["ours"])
            best[result["peer"]] = max(best.get(result["peer"], (0.0, "")), ratio)
    return best


def ratios_table(run: dict[str, Content]) -> str:
    """A line for each case: how many times faster we are than each peer, in float32 / bfloat16.

    Where the default does other work than the form that is compared, as a training without padding, it has a line of its own.
    """
    formats = [run[name] for name in ("float32", "bfloat16") if name in run]
    rows = []
    for case, about in formats[0]["cases"].items():
        best = [like_for_like(one, case) for one in formats]
        if not best[0]:  # XLA, beside our own form
            continue
        if about["kind"] in DEFAULT_TOO:
            ratios = [
                {peer: median(r) for peer, r in against(one, OURS).get(case, {}).items()} for one in formats
            ]
            rows.append((f"`{case}`", "default", *cells(ratios)))
        used = [form for found in best for _, form in found.values()]
        forms = dict.fromkeys(form.removeprefix(f"{OURS}, ").replace(OURS, "default") for form in used)
        ratios = [{peer: ratio for peer, (ratio, _) in found.items()} for found in best]
        rows.append((f"`{case}`", ", ".join(forms), *cells(ratios)))
    return rows_of(("case", "our form", *COLUMNS, "others"), rows, numbers=len(COLUMNS) + 1)


def cells(formats: list[dict[str, float]]) -> list[str]:
    """The ratios to each peer with a column, and those to the others in one cell."""
    both = {
        peer: " / ".join(f"{ratios[peer]:.2f}" if peer in ratios else "-" for ratios in formats if ratios)
        for peer in {peer: None for ratios in formats for peer in ratios}
    }
    others = [f"{peer} {ratio}" for peer, ratio in both.items() if peer not in COLUMNS]
    return [*(both.get(peer, "") for peer in COLUMNS), "; ".join(others)]


def rows_of(heading: tuple[str, ...], rows: list[tuple[str, ...]], *, numbers: int) -> str:
    """A table in Markdown. numbers: the last columns, which are aligned to the right."""
    rule = ["---"] * (len(heading) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, tuple(rule), *rows))


def slower(content: Content) -> str:
    """The cases in which a peer is faster than the best of our forms that do the same work."""
    lines = []
    for case in content["cases"]:
        best = like_for_like(content, case)
        behind = [f"{peer} {ratio:.2f}" for peer, (ratio, _) in best.items() if ratio < 0.97]
        if behind:
            lines.append(f"`{case}`: {', '.join(behind)}")
    return "; ".join(lines) or "none"


def slower_lines(machines: Machines) -> str:
    """The cases in which a peer is faster, for each run."""
    return "\n".join(
        f"- `{content['name']}`, {content['precision']}. {slower(content)}." for content in runs_of(machines)
    )


def machine_lines(machines: Machines) -> str:
    """The machine and the settings of each run, and the versions of all."""
    lines = []
    versions: dict[str, None] = {}
    garden: dict[str, None] = {}
    for content in runs_of(machines):
        most = max((case["others"] or 0.0 for case in content["cases"].values()), default=0.0)
        versions |= {f"{name} {version}": None for name, version in content["versions"].items() if version}
        of_garden = (case.get("model_garden", {}) for case in content["cases"].values())
        garden |= {f"{name} {version}": None for one in of_garden for name, version in one.items()}
        left_out = f"; left out, because they took more: {', '.join(content['left_out'])}"
        lines.append(
            f"- `{content['name']}`, {content['precision']}: {content['machine']}, {content['threads']} threads, "
            f"{content['clock']} clock, {content['rounds']} rounds; {most:.2f} CPU seconds a second for other processes at most"
            + (left_out if content["left_out"] else "")
            + ("; **a quick look, not a measurement**." if content["quick"] else ".")
        )
    lines.append(f"- versions: {', '.join(versions)}; Model Garden with {', '.join(garden)}.")
    return "\n".join(lines)


def runs_of(machines: Machines) -> list[Content]:
    """The contents of peers.py of all machines, each with the name of its folder."""
    return [
        content | {"name": name}
        for name, run in machines.items()
        for content in run.values()
        if "cases" in content
    ]


def sections(machines: Machines) -> dict[str, str]:
    """The text of each section of the page."""
    return {
        "machine": machine_lines(machines),
        "table": ratios_table(machines[MACHINE]),
        "slower": slower_lines(machines),
    }


def with_sections(page: str, made: dict[str, str]) -> str:
    """The page with each section in its place. Raises KeyError for a section that is not made."""
    return re.sub(
        r"(?s)(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)",
        lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}",
        page,
    )


# -----------------------------------------------------------------------------------------------------------
# CSV files

Rows = list[dict[str, Any]]


def ratios_rows(content: Content) -> Rows:
    """A row for each case, form of ours and peer: how many times faster, and the range of the rounds."""
    return [
        {
            "case": result["case"],
            "ours": result["ours"],
            "peer": result["peer"],
            "peer over ours": f"{result['median']:.2f}",
            "lowest": f"{min(result['rounds']):.2f}",
            "highest": f"{max(result['rounds']):.2f}",
            "outputs apart": result["agreement"],
        }
        for result in content["results"]
    ]


def rates_rows(machines: Machines) -> Rows:
    """The part of TensorFlow's own rate, and of torch's, that each implementation reaches in an encoder's products."""
    return [
        {
            "run": content["name"],
            "case": case,
            "format": content["precision"],
            "bfloat16 over float32": f"{one['matrix_gflops']['bfloat16'] / one['matrix_gflops']['float32']:.1f}",
            "library": library,
            "percent of the matrix rate": f"{100 * rate / one['matrix_gflops'][content['precision']]:.0f}",
            # Runs before this was measured have none.
            "percent of torch's": f"{100 * rate / one['torch_matrix_gflops']:.0f}"
            if library.partition(",")[0] == "Hugging Face" and one.get("torch_matrix_gflops")
            else "",
        }
        for content in runs_of(machines)
        for case, one in content["cases"].items()
        for library, rate in (one["gflops"] or {}).items()
    ]


def memory_rows(machines: Machines) -> Rows:
    """Peak resident sizes."""
    return [
        {
            "run": content["name"],
            "case": case,
            "format": content["precision"],
            "library": library,
            "MiB": f"{size / 2**20:.0f}",
        }
        for content in runs_of(machines)
        for case, one in content["cases"].items()
        if one["kind"] == "memory"
        for library, size in one["figures"].items()
    ]


def cost_rows(content: Content) -> Rows:
    """The slopes of all axes."""
    return [
        {
            "what grows": axis["unit"],
            "from": axis["values"][0],
            "to": axis["values"][-1],
            "library": library,
            "slope": f"{row['slope']:.2f}",
            "time of twice as much": f"{2 ** row['slope']:.2f}",
        }
        for axis in content["axes"].values()
        for library, row in axis["growth"].items()
    ]


def precision_rows(content: Content) -> Rows:
    """The measures of both formats in percent, and their differences, from equal seeds."""
    rows = []
    for task, measures in content.items():
        formats = {name: measures[name] for name in ("float32", "bfloat16")}
        formats["difference, same seed"] = [
            narrow - wide for wide, narrow in zip(*formats.values(), strict=True)
        ]
        for name, values in formats.items():
            range_ = {"lowest": f"{min(values):.2f}", "highest": f"{max(values):.2f}"}
            task_and_measure = dict(zip(("task, training examples", "measure"), TASKS[task], strict=True))
            mean = {"format": name, "mean": f"{statistics.mean(values):.2f}"}
            rows.append({**task_and_measure, **mean, **range_})
    return rows


def exports_rows(content: Content) -> Rows:
    """The forms of an export: size, answers, accuracy and speed beside the default SavedModel."""
    return [
        {
            "form": name,
            "MB": f"{row['megabytes']:.1f}",
            "probabilities apart, at most": f"{row['max_difference']:.1e}",
            "equal labels, %": f"{100 * row['equal_labels']:.1f}",
            "accuracy, %": f"{100 * row['accuracy']:.2f}",
            "speed, 1 text": f"{row['speed_1']:.2f}",
            "speed, 32 texts": f"{row['speed_32']:.2f}",
        }
        for name, row in content["forms"].items()
    ]


def csv_files(machines: Machines, folder: pathlib.Path = FIGURES) -> dict[str, str]:
    """The name of each CSV file under `figures`, and its text."""
    made: dict[str, Rows] = {
        "rates": rates_rows(machines),
        "memory": memory_rows(machines),
        "precision": precision_rows(json.loads((folder / "precision.json").read_text(encoding="utf-8"))),
        "exports": exports_rows(json.loads((folder / "exports.json").read_text(encoding="utf-8"))),
    }
    for name, run in machines.items():
        for kind, content in run.items():
            made[f"{name}/{kind}"] = cost_rows(content) if kind == COST else ratios_rows(content)
    return {f"{name}.csv": as_csv(rows) for name, rows in made.items()}


def as_csv(rows: Rows) -> str:
    """Rows as the text of a CSV file, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -----------------------------------------------------------------------------------------------------------
# Pictures


def draw_ratios(content: Content, path: pathlib.Path) -> None:
    """A row for each case: a mark for each peer at the median, a line over its rounds.

    Hollow marks are our frozen form, and our padded one in a training.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    forms = {form: against(content, form) for form in (OURS, FROZEN, PADDED)}
    cases = [case for case in content["cases"] if case in forms[OURS]]
    figure = Figure(figsize=(9, 0.52 * len(cases) + 1.8), layout="constrained")
    axes = figure.subplots()
    shown = set()
    for row, case in enumerate(reversed(cases)):
        peers = [*forms[OURS][case]]
        for i, peer in enumerate(peers):
            y = row + (len(peers) / 2 - i - 0.5) * 0.75 / max(len(peers), 4)
            colour, marker = STYLES[peer]
            for form, ratios in forms.items():
                if values := ratios.get(case, {}).get(peer):
                    label = peer if peer not in shown else None
                    shown.add(peer)
                    axes.plot([min(values), max(values)], [y, y], color=colour, linewidth=1.2, alpha=0.7)
                    face = colour if form == OURS else "white"
                    axes.plot(
                        median(values),
                        y,
                        marker,
                        color=colour,
                        markerfacecolor=face,
                        markersize=6,
                        label=label,
                    )
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="#f4f5f7", zorder=0)
    axes.axvline(1, color="#111111", linewidth=1)
    axes.set_xscale("log")
    ticks = [2.0**power for power in range(-6, 8)]
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    kinds = content["cases"]
    labels = [f"{WORDS[kinds[case]['kind']]}\n{case}" for case in reversed(cases)]
    axes.set_yticks(range(len(cases)), labels, fontsize=8)
    axes.set_ylim(-0.5, len(cases) - 0.5)
    axes.set_xlabel("times faster than the peer (memory: times less); left of 1, the peer is faster")
    axes.set_title(
        f"bert_keras against other libraries, {content['precision']}\nhollow: exported with --freeze, or trained with padding"
    )
    axes.spines[["top", "right"]].set_visible(False)
    marks = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    named = [peer for peer in STYLES if peer in marks]
    figure.legend(
        [marks[peer] for peer in named], named, loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=110, facecolor="white")


def draw_costs(content: Content, path: pathlib.Path) -> None:
    """A panel for each axis, both scales logarithmic, so that a power is a straight line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes = content["axes"]
    across, down = 3, -(-len(axes) // 3)
    figure = Figure(figsize=(9.5, 3.1 * down + 0.7), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    shown: dict[str, Any] = {}
    for panel, axis in zip(panels, axes.values(), strict=False):
        for name, row in axis["growth"].items():
            colour, marker = STYLES[OURS if name == FROZEN else name]
            face = "white" if name == FROZEN else colour
            (line,) = panel.plot(
                axis["values"], row["cost"], marker=marker, color=colour, markerfacecolor=face, markersize=5
            )
            shown.setdefault(name, line)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        names = [f"{value / 1e6:g} M" if value >= 100_000 else f"{value:,}" for value in axis["values"]]
        panel.set_xticks(axis["values"], names, fontsize=7)
        for direction in (panel.xaxis, panel.yaxis):
            direction.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_xlabel(axis["unit"], fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in list(figure.axes)[len(axes) :]:
        panel.set_visible(False)
    figure.supylabel("time, as a multiple of ours at the smallest value", fontsize=9)
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110, facecolor="white")


def read(folder: pathlib.Path) -> Machines:
    """The figures of each machine, of the quiet cases."""
    found: Machines = {}
    for kind in ("float32", "bfloat16", COST):
        for file in sorted(folder.glob(f"*/{kind}.json")):
            content = json.loads(file.read_text(encoding="utf-8"))
            found.setdefault(file.parent.name, {})[kind] = content if kind == COST else quiet_cases(content)
    return found


def quiet_cases(content: Content) -> Content:
    """The figures without the cases during which other processes, or the hypervisor, disturbed."""
    busy = {name for name, case in content["cases"].items() if (case["others"] or 0.0) > machine.BUSY_OTHERS}
    return content | {
        "cases": {name: case for name, case in content["cases"].items() if name not in busy},
        "results": [one for one in content["results"] if one["case"] not in busy],
        "left_out": sorted(busy),
    }


def main() -> None:
    """Draws the pictures, and writes the CSV files and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", type=pathlib.Path, default=FIGURES, help="folder of the JSON files")
    args = parser.parse_args()
    machines = read(args.figures)
    PICTURES.mkdir(exist_ok=True)
    for name, run in machines.items():
        for kind, content in run.items():
            (draw_costs if kind == COST else draw_ratios)(content, PICTURES / f"{kind}-{name}.png")
    for file, text in csv_files(machines, args.figures).items():
        (args.figures / file).write_text(text, encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_sections(page, sections(machines)), encoding="utf-8")


if __name__ == "__main__":
    main()
