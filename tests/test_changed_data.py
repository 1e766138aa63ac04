"""Data, checkpoints and records that changed under the same path: a run is not resumed, and old and new data are not mixed."""

import contextlib
import functools
from pathlib import Path

import pretrainings
import pytest
import runs
import tensorflow as tf
from instance_texts import write_examples
from runs import Begun, no_training

from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.errors import BertKerasError
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.study.ablations import run_ablation
from bert_keras.tasks.study.rows import SCALES, Row, Scale
from bert_keras.text.wordpiece import WordPiece

ROWS_READ = 1000  # by the digest that let changes behind them pass


def refusal(start) -> str:
    """The error of a start; empty if it began to train, or had nothing left to do."""
    try:
        with no_training():
            start()
    except BertKerasError as error:
        return str(error)
    except Begun:
        return ""
    return ""


@contextlib.contextmanager
def changed(file: Path, content: bytes):
    """Another content meanwhile."""
    before = file.read_bytes()
    if content == before:
        raise RuntimeError(f"nothing changes in {file}")
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def flipped(file: Path, *, line: int):
    """Another label meanwhile in one line of SST-2, counted from 1 behind the header."""
    lines = file.read_text().splitlines(keepends=True)
    text, label = lines[line].rstrip("\n").split("\t")
    lines[line] = f"{text}\t{1 - int(label)}\n"
    return changed(file, "".join(lines).encode())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A checkpoint, and data of which the digest does not read all."""
    folder = tmp_path_factory.mktemp("inputs")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "data", "sst2", count=ROWS_READ + 20)
    return folder


@pytest.mark.long
def test_a_label_far_down_is_noticed_on_resume(inputs, tmp_path):
    def start():
        finetune(
            TextClassification.open("sst2", inputs / "data"),
            checkpoint=inputs / "checkpoint",
            output=tmp_path / "run",
            hparams=Hparams(epochs=1, batch_size=64, learning_rate=1e-3, seq_length=40),
            save_every=1,
            verbose=0,
            log=lambda line: None,
        )

    with no_training(), pytest.raises(Begun):
        start()
    for split in ("train", "dev"):
        with flipped(inputs / "data" / f"{split}.tsv", line=ROWS_READ + 10):
            assert f"was made with another {split}" in refusal(start)
    assert not refusal(start), "what did not change is gone on with"


def test_records_under_the_same_manifest_are_noticed_on_resume(tmp_path):
    folder = pretrainings.write(tmp_path / "records")
    start = functools.partial(pretrainings.train, tmp_path / "run", records=folder)

    for _ in range(2):  # what did not change is gone on with
        with no_training(), pytest.raises(Begun):
            start()
    file = folder / "00000.tfrecord"
    content = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    write_examples(file, reversed(content))  # another training, a file of the same size
    assert "another" in refusal(start)


# -----------------------------------------------------------------------------------------------------------
# Many runs in one folder


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    """The folder of a `glue` that has finished, with its data and its checkpoint."""
    folder = tmp_path_factory.mktemp("protocol")
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "data" / "SST-2", "sst2")
    return folder


def glue(folder: Path, *rates: str) -> list[str]:
    flags = f"glue --tasks sst2 --data {folder / 'data'} --checkpoint {folder / 'checkpoint'} --output {folder / 'out'}"
    return [*flags.split(), *"--epochs 1 --batch-size 16 --seq-length 40 --learning-rates".split(), *rates]


def other_weights(folder: Path):
    other = runs.write_checkpoint(folder / "other", num_layers=1, initializer_range=0.1)
    return changed(folder / "checkpoint" / SAFETENSORS, (other / SAFETENSORS).read_bytes())


def other_vocabulary(folder: Path):
    file = folder / "checkpoint" / "vocab.txt"
    return changed(file, file.read_bytes().replace(b"good\nbad\n", b"bad\ngood\n"))


CHANGES = {
    "train": lambda folder: flipped(folder / "data" / "SST-2" / "train.tsv", line=5),
    "dev": lambda folder: flipped(folder / "data" / "SST-2" / "dev.tsv", line=5),
    "weights": other_weights,
    "vocabulary": other_vocabulary,
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_glue_does_not_mix_runs_of_old_and_new(capfd, protocol, change):
    if not (protocol / "out").exists():
        code, _, err = runs.run_command(capfd, *glue(protocol, "1e-3"))
        if code:
            raise RuntimeError(err)
    results = (protocol / "out" / "results.json").read_bytes()
    with CHANGES[change](protocol), no_training():
        code, _, err = runs.run_command(capfd, *glue(protocol, "1e-3"))
    assert (code, err.count("\n")) == (1, 1)
    assert "another" in err and "lr-0.001" in err
    assert (protocol / "out" / "results.json").read_bytes() == results


@pytest.mark.long
def test_ablate_does_not_mix_runs_of_old_and_new(inputs, tmp_path, monkeypatch):
    sizes = pretrainings.SMALL | {"max_positions": 128}
    scale = Scale(pretraining=sizes, restarts=1, rows={"steps": (Row(name="masked LM"),)}, tasks={})
    monkeypatch.setitem(SCALES, "tiny", scale)

    def log(line: str) -> None:
        if "pre-training" in line:  # sooner than `fit`
            raise Begun

    def start():
        run_ablation(
            "steps",
            documents=[runs.texts(8, seed=seed) for seed in range(40)],
            tokenizer=WordPiece(runs.VOCABULARY),
            data={"sst2": inputs / "data"},
            output=tmp_path / "out",
            scale="tiny",
            tasks=("sst2",),
            verbose=0,
            log=log,
        )

    with no_training(), pytest.raises(Begun):
        start()
    asked = (tmp_path / "out" / "ablation.json").read_bytes()
    for split, line in (("train", ROWS_READ + 10), ("dev", 5)):
        with flipped(inputs / "data" / f"{split}.tsv", line=line):
            assert "another data" in refusal(start)
    assert (tmp_path / "out" / "ablation.json").read_bytes() == asked
    assert not refusal(start), "what did not change is gone on with"
