"""Compares the speed of bert_keras, KerasHub and Hugging Face in one interleaved run, as ratios.

    python benchmarks/peers.py                                     every default case, 2 threads, 5 rounds
    python benchmarks/peers.py --quick                             a look, not a measurement
    python benchmarks/peers.py --cases encoder-8x128 tokenize --threads 1 --clock cpu --json out.json

In: cases, and a folder with text (`corpus/`, `glue/SST-2/`, `vocab/`), without which a paragraph in this file serves.
Out: for every case and peer how many times faster we are, as median and range over the rounds, and how far the two outputs
are apart. Weights are random, or of `--checkpoint`, and the same in every library. KerasHub comes with the package, torch and
transformers with its `parity` extra; what is not installed is skipped by name. The exit status is 1 where outputs differ.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata

import implementations
import numpy as np
from implementations import NEEDS, OURS, ROOT, SEED, Case, implementations_of
from interleave import CLOCKS, Ratios, Worker, take_turns
from rich.console import Console
from rich.table import Table

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.checkpoints.variables import Checkpoint, variable_shapes
from bert_keras.config import BertConfig
from bert_keras.text.vocabulary_files import read_pieces

CASES = {
    case.name: case
    for case in (
        Case(name="encoder-1x128", kind="encoder", batch=1),
        Case(name="encoder-8x128", kind="encoder", batch=8),
        Case(name="encoder-32x128", kind="encoder"),
        Case(name="encoder-base-8x128", kind="encoder", size="base", batch=8, default=False),
        Case(name="finetune-32x128", kind="finetune"),
        Case(name="finetune-sst2", kind="finetune", texts=True, steps=8),
        Case(name="serving-1", kind="serving", batch=1),
        Case(name="serving-32", kind="serving"),
        Case(name="tokenize", kind="tokenize"),
        Case(name="byte-bpe", kind="byte-bpe"),
    )
}
SIZES = {
    "minilm": {"hidden_size": 384, "num_layers": 6, "num_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072},
}
# On max |difference|, relative to the larger of 1 and max |ours|, by precision.
BOUNDS = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
WORDS = range(
    8, 37
)  # of the sentences that are fine-tuned on: 10 to about 40 wordpieces, as most rows of SST-2
TEXT_SIZE, QUICK_TEXT_SIZE = 3_000_000, 500_000  # characters
BUSY = 0.5  # a higher load average before the run means that other work disturbs it
PARAGRAPH = """A river rises in the hills above the town and falls three hundred metres before it meets the sea.
In spring its water is cold and grey; by late summer children wade across it without getting their knees wet.
Two mills stood here in 1790, one for flour and one for paper, and the older still turns on the first of May.
The museum next to it ("small but honest") keeps a letter in which the miller complains of the price of oats.
Nobody expects the engine room: it smells of oil, it is louder than a train, and it works as on its first day.
"""
VERSIONS = ("tensorflow", "tensorflow-text", "keras", "keras-hub", "torch", "transformers", "tokenizers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table: our time in a case against a peer's."""

    case: str
    ours: str
    peer: str
    ratios: Ratios
    agreement: str
    agrees: bool
    gflops: float | None = None  # that we reach, of an encoder's products

    def to_json(self) -> dict:
        """The line with the ratio of every round."""
        names = ("case", "ours", "peer", "agreement", "agrees", "gflops")
        fields = {name: getattr(self, name) for name in names}
        return fields | {"median": self.ratios.median, "rounds": self.ratios.values}


def write_text(folder: pathlib.Path, data: pathlib.Path, *, size: int) -> None:
    """Writes `lines.txt` (`size` characters) and `examples.tsv` for the workers."""
    corpus, rows = data / "corpus/enwiki_plain_paragraphs.txt", data / "glue/SST-2/train.tsv"
    text = (
        corpus.read_text(encoding="utf-8") if corpus.is_file() else PARAGRAPH * (size // len(PARAGRAPH) + 1)
    )
    lines = [line for line in text[:size].split("\n") if line.strip()]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")

    if rows.is_file():
        pairs = [line.rstrip("\n").split("\t") for line in rows.open(encoding="utf-8")][1:]
    else:
        pairs = [[line.strip(), str(i % 2)] for i, line in enumerate(PARAGRAPH.splitlines() * 200)]
    pairs = [pair for pair in pairs if len(pair[0].split()) in WORDS]
    chosen = random.Random(SEED).sample(pairs, 32 * max(case.steps for case in CASES.values()))
    (folder / "examples.tsv").write_text(
        "".join(f"{text}\t{label}\n" for text, label in chosen), encoding="utf-8"
    )


def english_vocabulary(data: pathlib.Path) -> tuple[str, ...]:
    """BERT's uncased vocabulary; without data, the words and letters of the paragraph."""
    path = data / "vocab/uncased_30522.txt"
    if path.is_file():
        return read_pieces(path)
    words = sorted({*PARAGRAPH.lower().replace(".", " ").replace(",", " ").split()})
    letters = sorted({*PARAGRAPH.lower()} - {" ", "\n"})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return (*dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words]),)


def write_byte_bpe(folder: pathlib.Path, given: pathlib.Path | None) -> None:
    """Writes a byte-level vocabulary to `byte-bpe`: the given one, or one of 8,192 tokens learned from `lines.txt`."""
    if given is None:
        from tokenizers import ByteLevelBPETokenizer

        learned = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        learned.train(str(folder / "lines.txt"), vocab_size=8192, special_tokens=special, show_progress=False)
        given = folder / "learned"
        given.mkdir()
        learned.save_model(str(given))
    (folder / "byte-bpe").mkdir()
    empty = Checkpoint(config=BertConfig(vocab_size=1), tensors={})
    tokenizer = checkpoints.load_tokenizer(given)
    write_tokenizer(checkpoints.with_tokenizer(empty, tokenizer), folder / "byte-bpe")


def random_checkpoint(config: BertConfig) -> Checkpoint:
    """Draws all weights, including biases and norms, so that each affects the outputs."""
    draw = np.random.default_rng(SEED)

    def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
        around = 1.0 if name.endswith("gamma") else 0.0
        return draw.normal(around, 0.02, shape).astype("float32")

    return Checkpoint(
        config=config, tensors={name: values(name, shape) for name, shape in variable_shapes(config).items()}
    )


def write_weights(folder: pathlib.Path, source: Checkpoint, vocabulary: tuple[str, ...]) -> None:
    """Writes the encoder, a classifier and the vocabulary in Hugging Face's format.

    The activation is always the tanh gelu and epsilon 1e-12, because KerasHub supports only these.
    """
    config = dataclasses.replace(
        source.config,
        activation="gelu_tanh",
        norm_epsilon=1e-12,
        attention_dropout=source.config.hidden_dropout,
    )
    fresh = random_checkpoint(config).tensors
    encoder = {name: source.tensors.get(name, fresh[name]) for name in fresh}
    kernel = np.random.default_rng(SEED).normal(0.0, 0.02, (config.hidden_size, 2)).astype("float32")
    head = {"classifier/dense/kernel": kernel, "classifier/dense/bias": np.zeros(2, "float32")}
    whole = Checkpoint(config=config, tensors=encoder | head, vocabulary=vocabulary, lower_case=True)
    checkpoints.write(whole, folder, format="hugging-face")


def compare(ours: pathlib.Path, peer: pathlib.Path, *, bound: float) -> tuple[str, bool]:
    """The difference between two workers' outputs, as text, and True if it is within the bound."""
    with np.load(ours) as mine, np.load(peer) as theirs:
        if "lengths" in mine:
            rows = [np.split(each["ids"], np.cumsum(each["lengths"])[:-1]) for each in (mine, theirs)]
            differing = sum(not np.array_equal(a, b) for a, b in zip(*rows, strict=True))
            return f"{differing} of {len(rows[0]):,} lines", True  # the peers' ids are their own
        shared = [name for name in mine if name in theirs]
        differences = [float(np.abs(mine[name] - theirs[name]).max()) for name in shared]
        sizes = [max(1.0, float(np.abs(mine[name]).max())) for name in shared]
    same = all(difference <= bound * size for difference, size in zip(differences, sizes, strict=True))
    return f"{max(differences):.1e}" + ("" if same else " OVER"), same


class Workers:
    """The worker of each implementation, started at its first use."""

    def __init__(self, folder: pathlib.Path, *, threads: int, clock: str) -> None:
        self._folder, self._threads, self._clock = folder, threads, clock
        self._started: dict[str, Worker] = {}

    def __getitem__(self, name: str) -> Worker:
        if name not in self._started:
            command = [sys.executable, implementations.__file__, name]
            command += ["--threads", str(self._threads), "--clock", self._clock]
            log = self._folder / f"{len(self._started)}.log"
            self._started[name] = Worker(command, threads=self._threads, log=log)
        return self._started[name]

    def close(self) -> None:
        """Stops all workers."""
        for worker in self._started.values():
            worker.close()


def measure(
    case: Case, workers: Workers, folder: pathlib.Path, *, rounds: int, at_least: float
) -> Iterator[Result]:
    """Prepares the case in every worker, compares their outputs, then lets them take turns."""
    names = [name for name in implementations_of(case) if not missing(name)]
    outputs = {name: folder / f"{case.name}-{i}.npz" for i, name in enumerate(names)}
    for name in names:
        workers[name].ask(
            do="prepare", case=dataclasses.asdict(case), folder=str(folder), outputs=str(outputs[name])
        )

    def turn(name: str) -> float:
        return workers[name].ask(do="time", at_least=at_least)["seconds"]

    figures = take_turns({name: functools.partial(turn, name) for name in names}, rounds=rounds)
    for ours in names:
        for peer in names:
            if ours.startswith(OURS) and not peer.startswith(OURS):
                bound = BOUNDS[case.precision]
                agreement, agrees = compare(outputs[ours], outputs[peer], bound=bound)
                ratios = Ratios.of(figures[ours], figures[peer])
                yield Result(
                    case=case.name,
                    ours=ours,
                    peer=peer,
                    ratios=ratios,
                    agreement=agreement,
                    agrees=agrees,
                    gflops=encoder_gflop(case) / statistics.median(figures[ours]) if ours == OURS else None,
                )


def encoder_gflop(case: Case) -> float:
    """10^9 operations in an encoder's products, for one batch."""
    sizes = SIZES[case.size]
    width, tokens = sizes["hidden_size"], case.batch * case.length
    a_token = 8 * width**2 + 4 * width * sizes["intermediate_size"] + 4 * case.length * width
    return sizes["num_layers"] * tokens * a_token / 1e9


def missing(name: str) -> list[str]:
    """The missing modules of an implementation."""
    return [module for module in NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]


def table(results: list[Result], title: str) -> Table:
    """Ratios over 1: we are faster. Outputs are apart by max |difference|, or by lines whose ids are not the same."""
    made = Table(title=title)
    for heading in ("case", "ours", "peer"):
        made.add_column(heading, no_wrap=True)
    for heading in ("ours / peer", "min..max", "outputs apart"):
        made.add_column(heading, justify="right", no_wrap=True)
    for before, result in zip([None, *results], results, strict=False):
        if before and before.case != result.case:
            made.add_section()
        row = (
            result.case,
            result.ours,
            result.peer,
            f"{result.ratios.median:.2f}",
            str(result.ratios),
            result.agreement,
        )
        made.add_row(*row)
    return made


def installed(package: str) -> str | None:
    """The installed version; None if the package is missing."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = [case.name for case in CASES.values() if case.default]
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=default, metavar="CASE", help=", ".join(CASES)
    )
    parser.add_argument(
        "--precision",
        default="float32",
        choices=BOUNDS,
        help="format of the computation; trainings keep float32 weights (default: float32)",
    )
    parser.add_argument("--threads", type=int, default=2, help="cores and threads a worker gets (default: 2)")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu, with --threads 1: for a machine that is not quiet",
    )
    parser.add_argument("--rounds", type=int, help="turns of every worker (default: 5; with --quick 2)")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="real weights for all but the base case")
    parser.add_argument(
        "--byte-bpe",
        type=pathlib.Path,
        help="folder of RoBERTa's vocab.json and merges.txt (default: learned from the text, by `tokenizers`)",
    )
    place = os.environ.get("BERT_KERAS_TEST_DATA", ROOT.parent / "shared" / "data")
    parser.add_argument(
        "--data", type=pathlib.Path, default=place, help="folder of text (default: BERT_KERAS_TEST_DATA)"
    )
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="where to write the ratios of every round"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter turns, less text")
    return parser.parse_args()


def main() -> int:
    """Runs the cases, prints and writes the ratios; returns 1 if outputs differ."""
    args = arguments()
    rounds = args.rounds or (2 if args.quick else 5)
    cases = [dataclasses.replace(CASES[name], precision=args.precision) for name in args.cases]
    if args.quick:
        cases = [dataclasses.replace(case, steps=2 if case.texts else 1) for case in cases]
    console = Console()
    console = Console(width=max(console.width, 120))  # a pipe has no width of its own
    results: list[Result] = []
    rates: dict[str, float] = {}
    failure = ""
    for name in {name: None for case in cases for name in implementations_of(case)}:
        if absent := missing(name):
            console.print(f"skipped: {name}, which needs {' and '.join(absent)} (the `parity` extra)")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary, console.status("writing weights and text") as status:
        folder = pathlib.Path(temporary)
        write_text(folder, args.data, size=QUICK_TEXT_SIZE if args.quick else TEXT_SIZE)
        given = checkpoints.read(args.checkpoint) if args.checkpoint else None
        vocabulary = (given and given.vocabulary) or english_vocabulary(args.data)
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        if any(case.kind == "byte-bpe" for case in cases):
            write_byte_bpe(folder, args.byte_bpe)
        for size in {case.size for case in cases if case.kind not in ("tokenize", "byte-bpe")}:
            drawn = random_checkpoint(BertConfig(vocab_size=max(30522, len(vocabulary)), **SIZES[size]))
            write_weights(folder / size, given if given and size == "minilm" else drawn, vocabulary)
        workers = Workers(folder, threads=args.threads, clock=args.clock)
        try:
            rates = {
                name: workers[OURS].ask(do="rate", precision=name)["rate"]
                for name in dict.fromkeys(("float32", args.precision))
            }
            for case in cases:
                status.update(case.name)
                results += measure(case, workers, folder, rounds=rounds, at_least=0.3 if args.quick else 2.0)
        except RuntimeError as error:
            failure = str(error)  # earlier results are still shown
        finally:
            workers.close()
    title = f"times faster than the peer, {args.threads} thread(s), {args.clock} clock, {rounds} rounds, {args.precision}"
    console.print(table(results, title))
    for name, rate in rates.items():
        console.print(f"products of 1024 x 1024 matrices in {name}: {rate:,.0f} GFLOP/s")
    encoders = {
        result.case: result.gflops
        for result in results
        if result.gflops and result.case.startswith("encoder")
    }
    for name, reached in encoders.items():
        share = reached / rates[args.precision]
        console.print(f"{name}: {reached:,.0f} GFLOP/s in its products, {share:.0%} of that")
    console.print(f"load before: {before:.1f}")
    if before > BUSY and args.clock == "wall":
        console.print(
            "The machine was not quiet: torch's threads wait in a loop and suffer most. Do not quote these."
        )
    if args.json:
        content = {
            "threads": args.threads,
            "clock": args.clock,
            "rounds": rounds,
            "load": before,
            "precision": args.precision,
            "matrix_gflops": rates,
            "machine": platform.processor() or platform.machine(),
            "versions": {package: installed(package) for package in VERSIONS},
            "results": [result.to_json() for result in results],
        }
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if failure:
        print(failure, file=sys.stderr)
    return 0 if not failure and all(result.agrees for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
