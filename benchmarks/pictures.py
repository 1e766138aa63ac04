"""Writes the pictures and the tables of docs/performance.md from the JSON files of peers.py and cost.py.

    python benchmarks/peers.py --json benchmarks/figures/MACHINE/float32.json
    python benchmarks/peers.py --precision bfloat16 --json benchmarks/figures/MACHINE/bfloat16.json
    python benchmarks/cost.py --json benchmarks/figures/MACHINE/cost.json
    python benchmarks/pictures.py

In: the folder `figures`, with a folder for each machine. Out: docs/performance/*.png, and every section of docs/performance.md
between the lines `<!-- figures: NAME -->` and `<!-- end of figures -->`, where NAME is a key of what `sections` returns.
"""

import argparse
import json
import pathlib
import re
from typing import Any

import machine
from precision import spelled

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
# The peers with a column in the tables; the others take part in few cases.
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
# Tables


def rows_of(heading: tuple[str, ...], rows: list[tuple[str, ...]], *, numbers: int) -> str:
    """A table in Markdown. numbers: the last columns, which are aligned to the right."""
    rule = ["---"] * (len(heading) - numbers) + ["---:"] * numbers
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, tuple(rule), *rows))


def ratios_table(content: Content) -> str:
    """A line for each case and form of ours: how many times faster than each peer, and the range."""
    peers = [*dict.fromkeys(result["peer"] for result in content["results"])]
    columns = [peer for peer in COLUMNS if peer in peers]
    lines: dict[tuple[str, str], dict[str, Content]] = {}
    for result in content["results"]:
        lines.setdefault((result["case"], result["ours"]), {})[result["peer"]] = result
    rows = []
    for (case, ours), found in lines.items():
        cells = [ratio_of(found[peer]) if peer in found else "" for peer in columns]
        others = [f"{peer} {ratio_of(result)}" for peer, result in found.items() if peer not in columns]
        apart = [result["agreement"] for peer, result in found.items() if result["agreement"]]
        rows.append((f"`{case}`", ours, *cells, "; ".join(others), widest(apart)))
    heading = ("case", "ours", *columns, "also against", "outputs apart, at most")
    return rows_of(heading, rows, numbers=len(columns) + 2)


def ratio_of(result: Content) -> str:
    """The median, and the range of the rounds."""
    low, high = min(result["rounds"]), max(result["rounds"])
    return f"{result['median']:.2f} ({low:.2f} to {high:.2f})" if len(result["rounds"]) > 1 else f"{low:.2f}"


def widest(agreements: list[str]) -> str:
    """The largest difference; counts as they are."""
    numbers = [text for text in agreements if re.fullmatch(r"[\d.e+-]+", text)]
    return max(numbers, key=float) if numbers else ", ".join(dict.fromkeys(agreements))


def slower(content: Content) -> str:
    """The cases in which a peer is faster than the best of our forms that do the same work."""
    lines = []
    for case in content["cases"]:
        best: dict[str, tuple[float, str]] = {}
        results = [result for result in content["results"] if result["case"] == case]
        # A training leaves out padding, unless its form is padded.
        less = {*LESS_WORK, ONE_THREAD, *([OURS] if PADDED in {result["ours"] for result in results} else [])}
        for result in results:
            if result["ours"] not in less and not result["peer"].startswith(OURS):
                best[result["peer"]] = max(
                    best.get(result["peer"], (0.0, "")), (result["median"], result["ours"])
                )
        behind = [f"{peer} ({ratio:.2f}, {ours})" for peer, (ratio, ours) in best.items() if ratio < 0.97]
        if behind:
            lines.append(f"- `{case}`: {', '.join(behind)}")
    return "\n".join(lines) or "None."


def machine_lines(machines: Machines) -> str:
    """The machine, the settings and the versions of each run."""
    lines = []
    for content in runs_of(machines):
        most = max((case["others"] or 0.0 for case in content["cases"].values()), default=0.0)
        versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
        of_garden = (case.get("model_garden", {}) for case in content["cases"].values())
        others = ", ".join({f"{name} {version}": None for one in of_garden for name, version in one.items()})
        lines.append(
            f"- `{content['name']}`, {content['precision']}: {content['machine']}; {content['threads']} threads, "
            f"{content['clock']} clock, {content['rounds']} rounds; other processes took at most {most:.2f} CPU seconds a second"
            + (
                f"; left out, because they took more: {', '.join(content['left_out'])}"
                if content["left_out"]
                else ""
            )
            + ("; **a quick look, not a measurement**" if content["quick"] else "")
            + f". {versions}."
            + (f" Model Garden: {others}." if others else "")
        )
    return "\n".join(lines)


def runs_of(machines: Machines) -> list[Content]:
    """The contents of peers.py of all machines, each with the name of its folder."""
    return [
        content | {"name": name}
        for name, run in machines.items()
        for content in run.values()
        if "cases" in content
    ]


def rates_table(machines: Machines) -> str:
    """The share of the matrix rate that each implementation reaches in an encoder's products."""
    found = [
        (content, case, one)
        for content in runs_of(machines)
        for case, one in content["cases"].items()
        if one["gflops"]
    ]
    names = [*dict.fromkeys(name for _, _, one in found for name in one["gflops"])]
    rows = []
    for content, case, one in found:
        rates = one["matrix_gflops"]
        shares = (one["gflops"].get(name) for name in names)
        cells = (f"{share / rates[content['precision']]:.0%}" if share else "" for share in shares)
        gain = f"{rates['bfloat16'] / rates['float32']:.1f}"
        rows.append((f"`{content['name']}`", f"`{case}`", content["precision"], gain, *cells))
    heading = ("run", "case", "format", "bfloat16 over float32", *names)
    return rows_of(heading, rows, numbers=len(names) + 1)


def memory_table(machines: Machines) -> str:
    """Peak resident sizes."""
    found = [
        (content["name"], content["precision"], case, one["figures"])
        for content in runs_of(machines)
        for case, one in content["cases"].items()
        if one["kind"] == "memory"
    ]
    names = [*dict.fromkeys(name for *_, figures in found for name in figures)]
    rows = [
        (
            f"`{run}`",
            f"`{case}`",
            precision,
            *(f"{figures[name] / 2**20:,.0f} MiB" if name in figures else "" for name in names),
        )
        for run, precision, case, figures in found
    ]
    return rows_of(("run", "case", "format", *names), rows, numbers=len(names))


def cost_table(content: Content) -> str:
    """The slopes of all axes."""
    names = [*dict.fromkeys(name for axis in content["axes"].values() for name in axis["growth"])]
    rows = []
    for axis in content["axes"].values():
        slopes = (axis["growth"].get(name) for name in names)
        ends = f"{axis['values'][0]:,} to {axis['values'][-1]:,} {axis['unit']}"
        rows.append((ends, *(f"{row['slope']:.2f}" if row else "" for row in slopes)))
    return rows_of(("what grows", *names), rows, numbers=len(names))


def growth_in_words(content: Content) -> str:
    """A sentence for each axis: what twice the value costs us, and the cheapest and the dearest peer."""
    lines = []
    for axis in content["axes"].values():
        costs = {name: 2 ** row["slope"] for name, row in axis["growth"].items()}
        ours, peers = (
            costs.pop(OURS),
            {name: cost for name, cost in costs.items() if not name.startswith(OURS)},
        )
        least, most = min(peers, key=peers.__getitem__), max(peers, key=peers.__getitem__)
        theirs = f"{most} {peers[most]:.2f} times"
        if least != most:
            theirs = f"{least}, the least of the peers, {peers[least]:.2f}, and {most}, the most, {peers[most]:.2f} times"
        ends = f"{axis['values'][0]:,} to {axis['values'][-1]:,} {axis['unit']}"
        lines.append(f"- {ends}: twice as much takes us {ours:.2f} times the time; it takes {theirs}.")
    return "\n".join(lines)


def precision_table(content: Content) -> str:
    """The accuracy of both formats, from equal seeds, in percent."""
    rows = []
    for task, measures in content.items():
        formats = [measures[name] for name in ("float32", "bfloat16")]
        differences = [narrow - wide for wide, narrow in zip(*formats, strict=True)]
        rows.append((*TASKS[task], *map(spelled, (*formats, differences))))
    heading = ("task, training examples", "measure", "float32", "bfloat16", "difference, same seed")
    return rows_of(heading, rows, numbers=3)


def exports_table(content: Content) -> str:
    """The forms of an export: size, answers, accuracy and speed beside the default SavedModel."""
    rows = [
        (
            f"`{name}`",
            f"{row['megabytes']:.1f}",
            f"{row['max_difference']:.1e}",
            f"{100 * row['equal_labels']:.1f}",
            f"{100 * row['accuracy']:.2f}",
            *(f"{row[size]:.2f}" for size in ("speed_1", "speed_32")),
        )
        for name, row in content["forms"].items()
    ]
    numbers = (
        "MB",
        "probabilities apart, at most",
        "equal labels, %",
        "accuracy, %",
        "speed, 1 text",
        "speed, 32 texts",
    )
    return rows_of(("form", *numbers), rows, numbers=len(numbers))


def sections(machines: Machines, folder: pathlib.Path = FIGURES) -> dict[str, str]:
    """The text of each section of the page."""
    made = {
        "machine": machine_lines(machines),
        "rates": rates_table(machines),
        "memory": memory_table(machines),
        "precision": precision_table(json.loads((folder / "precision.json").read_text(encoding="utf-8"))),
        "exports": exports_table(json.loads((folder / "exports.json").read_text(encoding="utf-8"))),
    }
    for name, run in machines.items():
        for kind, content in run.items():
            if kind == COST:
                made[f"{kind}-{name}"] = f"{cost_table(content)}\n\n{growth_in_words(content)}"
            else:
                made[f"{kind}-{name}"] = ratios_table(content)
                made[f"slower-{kind}-{name}"] = slower(content)
    return made


def with_sections(page: str, made: dict[str, str]) -> str:
    """The page with each section in its place. Raises KeyError for a section that is not made."""
    return re.sub(
        r"(?s)(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)",
        lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}",
        page,
    )


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
    """Draws the pictures and writes the tables."""
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
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_sections(page, sections(machines)), encoding="utf-8")


if __name__ == "__main__":
    main()
