"""Runs that train in seconds, for tests of what reads a run, and the command line that makes and reads them.

In: a row of bert_keras.tasks.data.glue. Out: a checkpoint folder, the row's TSV files, a run; what a command printed.
"""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bert_keras.text.vocabulary import Vocabulary

ROOT = Path(__file__).parents[1]

_WORDS = "good bad warm dull film plot actor scene the its is and very . , !".split()
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *_WORDS,
    *_LETTERS,
    *(f"##{letter}" for letter in _LETTERS),
    *(f"[unused{i}]" for i in range(300)),
)
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 48,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 96,
    "max_positions": 48,
    "initializer_range": 0.2,  # wide, so that the answers to different texts differ
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetuned:
    """Three folders side by side: what was started from, what was learned from, what came out."""

    folder: Path
    stdout: str = ""
    stderr: str = ""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def run(self) -> Path:
        return self.folder / "run"


def write_checkpoint(
    folder: Path, *, vocabulary: Vocabulary | None = None, masked_lm: bool = False, **changes: Any
) -> Path:
    """A Hugging Face folder: random weights of SIZES with changes, and an uncased VOCABULARY unless one is given."""
    import keras

    from bert_keras import checkpoints
    from bert_keras.config import BertConfig
    from bert_keras.model.encoders import make_encoder
    from bert_keras.model.heads import MaskedLMHead

    keras.utils.set_random_seed(0)  # a module's fixtures come before the seeds of its first test
    vocabulary = vocabulary or Vocabulary(VOCABULARY, lower_case=True)
    config = BertConfig(**(SIZES | {"vocab_size": len(vocabulary.tokens)} | changes))
    encoder = make_encoder(config)
    heads = {"masked_lm": MaskedLMHead(encoder)} if masked_lm else {}
    checkpoint = checkpoints.collect(config, encoder, **heads)
    checkpoints.write(dataclasses.replace(checkpoint, vocabulary=vocabulary), folder, format="hugging-face")
    return folder


ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")


def learn_byte_bpe(texts: list[str], *, size: int = 512) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A byte-level vocabulary in RoBERTa's order of ids, and its merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,
        min_frequency=1,
        special_tokens=list(ROBERTA_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    ids = learned.get_vocab()
    merges = json.loads(learned.to_str())["model"]["merges"]
    return (*sorted(ids, key=ids.__getitem__), "<mask>"), tuple(" ".join(pair) for pair in merges)


def write_roberta(folder: Path, **changes: Any) -> Path:
    """A checkpoint with a small byte-level vocabulary, and RoBERTa's positions, types and masked LM head."""
    vocabulary = Vocabulary(*learn_byte_bpe(texts(400, seed=7), size=400), lower_case=False)
    roberta = {"position_offset": 2, "type_vocab_size": 1, "norm_epsilon": 1e-5, "activation": "gelu_erf"}
    roberta |= {"max_positions": 50} | changes
    return write_checkpoint(folder, vocabulary=vocabulary, masked_lm=True, **roberta)


def write_distilbert(folder: Path, **changes: Any) -> Path:
    """A checkpoint in DistilBERT's form, with its masked LM head: no types, no pooler."""
    distilbert = {"type_vocab_size": 0, "activation": "gelu_erf", "pooler_activation": "relu"}
    distilbert |= {"classifier_dropout": 0.2} | changes
    return write_checkpoint(folder, masked_lm=True, **distilbert)


def texts(count: int, *, seed: int) -> list[str]:
    """Sentences of two to nine words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(2, 9))) for _ in range(count)]


def write_data(folder: Path, name: str, *, count: int = 48) -> Path:
    """The files of a GLUE row that have labels; the first word of the last segment says the label."""
    from bert_keras.tasks.data.glue import ROWS

    folder.mkdir(parents=True)
    labels = ROWS[name].file_labels or ("0.0", "5.0")
    for seed, tsv in enumerate(tsv for tsv in ROWS[name].splits.values() if tsv.label):
        segments = [texts(count, seed=10 * seed + i) for i in range(len(tsv.text))]
        written = [labels[_WORDS.index(text.split()[0]) % len(labels)] for text in segments[-1]]
        table = [(*tsv.text, tsv.label), *zip(*segments, written, strict=True)]
        (folder / tsv.file).write_text("".join("\t".join(line) + "\n" for line in table), encoding="utf-8")
    return folder


def finetuned_by_command(folder: Path) -> Finetuned:
    """One epoch of SST-2 from a random checkpoint, by `bert-keras finetune` in its own process.

    A folder that holds such a run already is read.
    """
    made, printed = Finetuned(folder=folder), folder / "printed.json"
    if not printed.exists():
        write_data(made.data, "sst2")
        write_checkpoint(made.checkpoint)
        flags = ["--task", "sst2", "--data", made.data, "--checkpoint", made.checkpoint, "--output", made.run]
        flags += ["--epochs", "1", "--batch-size", "8", "--learning-rate", "1e-3", "--seq-length", "40"]
        command = shell_command("finetune", *flags)
        done = subprocess.run(command, cwd=ROOT, env=bare_environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed.write_text(json.dumps({"stdout": done.stdout, "stderr": done.stderr}))
    return dataclasses.replace(made, **json.loads(printed.read_text()))


def shell_command(*arguments: str | Path) -> list[str]:
    """`bert-keras ...` for subprocess; run it in ROOT."""
    return [sys.executable, "-m", "bert_keras", *map(str, arguments)]


def bare_environment() -> dict[str, str]:
    """The environment without what tests set to keep TensorFlow quiet: the command has to do that itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS_"))}


def command(arguments: Sequence[str | Path]) -> int:
    """The exit code of `bert-keras ARGUMENTS...` in this process."""
    from tensorflow.python.framework import config as tensorflow_config

    from bert_keras.cli.main import main

    try:
        main(["bert-keras", *map(str, arguments)])
    except SystemExit as end:
        return end.code or 0
    finally:
        # `finetune` makes every op of its process deterministic; the tests that follow are not to notice.
        tensorflow_config.disable_op_determinism()
    return 0


def run_command(capfd, *arguments: str | Path) -> tuple[int, str, str]:
    """`bert-keras ...` in this process: exit code, standard output, standard error."""
    capfd.readouterr()
    code = command(arguments)
    out, err = capfd.readouterr()
    return code, out, err


class Begun(Exception):
    """Training would start now."""


@contextlib.contextmanager
def no_training() -> Iterator[None]:
    """Raises Begun where anything would train."""
    import keras

    def fit(self, *args, **kwargs):
        raise Begun

    kept, keras.Model.fit = keras.Model.fit, fit
    try:
        yield
    finally:
        keras.Model.fit = kept


@contextlib.contextmanager
def refused(message: str, *, output: Path) -> Iterator[None]:
    """Something is refused before any training, and leaves no folder."""
    with no_training(), pytest.raises((ValueError, FileNotFoundError), match=message):
        yield
    assert not output.exists()


class Compared(Exception):
    """The facts that a worker compares with those of the others."""


def unlike(monkeypatch, start: Callable[..., object], changes: dict) -> set[str]:
    """The names of the facts in which a worker with changed arguments would differ from another one; it writes nothing."""
    from bert_keras.tasks.devices.workers import Workers

    def raised(self, facts, remedy):
        raise Compared(json.dumps(facts))

    monkeypatch.setattr(Workers, "check_same", raised)
    found = []
    for settings in ({}, changes):
        with pytest.raises(Compared) as error:
            start(**settings)
        found.append(json.loads(str(error.value)))
    return {name for name in found[0] if found[0][name] != found[1][name]}


@contextlib.contextmanager
def full_disk(free: int) -> Iterator[None]:
    """No file grows past `free` bytes meanwhile: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def mounted(folder: Path, *, size: int) -> Iterator[Path]:
    """A disk of `size` bytes mounted at a folder; the test is skipped where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def leave_half(folder: Path, name: str) -> None:
    """What a writer of a file leaves in a folder when it is killed."""
    left = folder / f".{name}.{'0a' * 16}.tmp"
    left.mkdir()
    (left / ".lock").write_text("")
    (left / name).write_bytes(b"half a file")


def results(folder: Path) -> dict:
    """The content of results.json in a folder."""
    return json.loads((folder / "results.json").read_text())


# Fields that a clock decides, and the command with its own --output.
TIMES = ("seconds", "tokens_per_second", "made_by")


def without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: without_times(value) for name, value in content.items() if name not in TIMES}
    return [*map(without_times, content)] if isinstance(content, list) else content


def outcome(run: Path) -> dict:
    """Everything that a training decides: its results without times, and its weights, byte for byte."""
    weights = {name: file for name, file in contents(run).items() if name.endswith(".safetensors")}
    return {"results": without_times(results(run)), **weights}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
