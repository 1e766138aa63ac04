"""One artifact of every kind that this package writes and reads back, with the answers that it gives.

    PYTHONPATH=.:tests .venv-wheel/bin/python tests/artifacts/make.py

Each release runs this once. Out: tests/artifacts/VERSION/, which no later commit changes:

    files.tar.xz     a folder or a file of each kind: the names of READERS
    expected.json    what `READERS[kind]` returned on the version that wrote it
"""

import contextlib
import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import runs
import small_tasks
import tensorflow as tf

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.io.folders import Folder
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.savedmodels.converters import RUNTIMES
from bert_keras.savedmodels.verify import verify_files
from bert_keras.tasks.frozen.cache import CacheReader, open_cache
from bert_keras.tasks.pretraining import pretrain as pretraining
from bert_keras.tasks.pretraining.records import load_shards, load_summary, read_manifest, read_records
from bert_keras.tasks.pretraining.unfinished import read_unfinished
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.run_folder import run_of
from bert_keras.tasks.study.grid import earlier_results
from bert_keras.tasks.study.probe import PROBE
from bert_keras.text.vocabulary import Vocabulary

HERE = Path(__file__).resolve().parent
FILES, EXPECTED = "files.tar.xz", "expected.json"
TEXTS = ["a good film", "very bad , dull plot !", "the actor is warm and the scene is good"]
MASKED = ["the [MASK] is good"]
UNREAD = re.compile(r"/(logs|report)$|\.png$")


# -----------------------------------------------------------------------------------------------------------
# Reading: a path in the folder of the artifacts -> its answers, plain JSON


def plain(value: Any) -> Any:
    """Arrays and bytes as JSON, floats with the digits that float32 has."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.8g}")
    return (
        plain(np.asarray(value).tolist()) if isinstance(value, np.ndarray | np.generic | tf.Tensor) else value
    )


def read_model(path: Path) -> Any:
    return bk.load(path).predict(TEXTS)


def read_masks(path: Path, checkpoint: Any = None) -> Any:
    run = run_of(FillMask(), checkpoint or path)
    return bk.TextModel(run.task, run.preprocess, run.model).predict(MASKED)


def read_unfinished_run(path: Path) -> Any:
    found = read_unfinished(path)
    return {"step": found.step, "steps": found.steps, **read_masks(path, found.checkpoint)}


def read_checkpoint(path: Path) -> Any:
    tokenizer = bk.load_tokenizer(path)
    features = bk.Preprocessor(tokenizer, seq_length=16)(tf.constant(TEXTS))
    return {"ids": features["input_word_ids"], "pooled": bk.load_encoder(path)(features)["pooled_output"]}


def read_layers(path: Path) -> Any:
    ids = np.array([[2, 5, 6, 3]])
    return keras.models.load_model(path)(
        {"input_word_ids": ids, "input_mask": ids // ids, "input_type_ids": 0 * ids}
    )


def read_export(path: Path) -> Any:
    verify_files(path)
    return bk.load(path).signatures["serving_default"](sentence=tf.constant(TEXTS))


def read_pair(path: Path) -> Any:
    features = HubLayer(str(path / "preprocess"))(tf.constant(TEXTS))
    return HubLayer(str(path / "encoder"))(features)["pooled_output"]


def read_runtime(path: Path) -> Any:
    raw = json.dumps({"sentence": TEXTS})
    done = subprocess.run([sys.executable, path / "example.py"], input=raw, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["answers"]


def read_instances(path: Path) -> Any:
    manifest = read_manifest(path)
    rows = read_records(path, tokenizer=bk.load_tokenizer(path.with_name("vocab")))
    shards = [[one.instances, one.sha256] for one in load_shards(manifest)]
    return {"shards": shards, "documents": load_summary(manifest).documents, "first": next(iter(rows))}


def read_vectors(path: Path) -> Any:
    cache = open_cache(path)
    return CacheReader(cache, layers=cache.header["layers"]).vectors([0])[0][:2]


def read_vocabulary(path: Path) -> Any:
    return bk.Preprocessor(bk.load_tokenizer(path), seq_length=12)(tf.constant(TEXTS))["input_word_ids"]


def read_probe(path: Path) -> Any:
    folder = Folder(path, PROBE)
    return {"probes": folder.fingerprint()["probes"], "results": folder.results()["sst2"]}


def read_grid(path: Path) -> Any:
    found = earlier_results(path, lambda found: "tasks" in found)["tasks"]["sst2"]
    return {name: found[name] for name in ("measure", "best", "measures", "degenerate")}


READERS: dict[str, Callable[[Path], Any]] = {
    "vocab": read_vocabulary,
    "sentencepiece": read_vocabulary,
    "hugging-face": read_checkpoint,
    "google": read_checkpoint,
    "keras-hub": read_checkpoint,
    "model-garden": read_checkpoint,
    "run": read_model,
    "features-run": read_model,
    "vectors": read_vectors,
    "text-model.keras": read_model,
    "layers.keras": read_layers,
    "pretraining": read_masks,
    "unfinished": read_unfinished_run,
    "instances": read_instances,
    "protocol": read_grid,
    "probe": read_probe,
    "export": read_export,
    "hub": read_pair,
    **dict.fromkeys(RUNTIMES, read_runtime),
}

# -----------------------------------------------------------------------------------------------------------
# Writing: all kinds into one folder, by the commands that users run where there is one


def bert_keras(words: str, *paths: Any) -> None:
    """Runs a command: its words, then pairs of a flag and a path."""
    code = runs.command([*words.split(), *map(str, paths)])
    assert code == 0, f"bert-keras {words} ended with {code}"


def write_all(folder: Path, work: Path) -> None:
    start, data, text = work / "checkpoint", ("--data", work / "data"), ("--text", work / "text" / "text.txt")
    tokens = Vocabulary(runs.VOCABULARY[:75], lower_case=True)
    tiny = {"hidden_size": 8, "intermediate_size": 16, "max_positions": 32, "initializer_range": 0.5}
    runs.write_checkpoint(start, vocabulary=tokens, masked_lm=True, **tiny)
    runs.write_data(work / "data", "sst2", count=16)
    small_tasks.write_documents(work / "text", count=6)

    bert_keras("vocab --size 90", *text, "--output", folder / "vocab")
    bert_keras("vocab --kind sentencepiece --size 40", *text, "--output", folder / "sentencepiece")
    for name in ("hugging-face", "google", "keras-hub", "model-garden"):
        checkpoints.write(checkpoints.read(start), folder / name, format=name)

    quick = "--batch-size 8 --seq-length 24 --learning-rate 1e-3 --task sst2 --epochs 1 --quiet"
    given = (*data, "--checkpoint", start, "--output")
    bert_keras(f"finetune {quick}", *given, folder / "run")
    features = f"finetune {quick} --feature-layers 0,1 --lstm-layers 1 --lstm-units 2"
    bert_keras(features, "--feature-cache", work / "cache", *given, folder / "features-run")
    (vectors,) = (file.parent for file in (work / "cache").rglob("header.json"))
    vectors.rename(folder / "vectors")
    grid = "--task sst2 --epoch-counts 1 --batch-sizes 8 --learning-rates 1e-3 --restarts 2 --seq-length 24 --quiet"
    bert_keras(f"protocol {grid}", *given, work / "protocol")
    (folder / "protocol").mkdir()
    shutil.copy(work / "protocol" / "results.json", folder / "protocol")
    (work / "probe").mkdir()
    probed = ("--data", f"sst2={work / 'data'}", "--checkpoint", start, "--output", folder / "probe")
    bert_keras("probe --max-examples 16 --restarts 1 --seq-length 24 --quiet", *probed)

    bk.load(folder / "run").save(folder / "text-model.keras")
    encoder, inputs = bk.load_encoder(start), bk.encoder_inputs()
    keras.Model(inputs, encoder(inputs)["pooled_output"]).save(folder / "layers.keras")

    small = "--num-layers 1 --hidden-size 8 --num-heads 2 --intermediate-size 16 --max-positions 32"
    small += " --seq-length 24 --batch-size 4 --steps 4 --save-every 2 --quiet"
    vocab = ("--vocab", folder / "vocab", *text, "--output")
    bert_keras("instances --seq-length 24 --masks --workers 1 --quiet", *vocab, folder / "instances")
    bert_keras(f"pretrain {small}", *vocab, folder / "pretraining")
    results = pretraining.PretrainingMonitor.results
    pretraining.PretrainingMonitor.results = lambda self: 1 / 0  # the training stops before its last file
    with contextlib.suppress(ZeroDivisionError):
        bert_keras(f"pretrain {small}", *vocab, folder / "unfinished")
    pretraining.PretrainingMonitor.results = results

    bert_keras("export", "--run", folder / "run", "--output", work / "export")
    shutil.move(work / "export" / "1", folder / "export")
    bert_keras("hub --seq-length 24", "--checkpoint", start, "--output", folder / "hub")
    for name in RUNTIMES:
        bert_keras(f"export --format {name}", "--run", folder / "run", "--output", folder / name)


def keep(folder: Path, place: Path) -> None:
    """Packs artifacts, without what no reader of ours reads, and their answers."""
    answers = {name: plain(read(folder / name)) for name, read in READERS.items()}
    place.mkdir()
    with tarfile.open(place / FILES, "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name, filter=lambda member: None if UNREAD.search(member.name) else member)
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
    (place / EXPECTED).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    place = HERE / bk.__version__
    if place.exists():
        sys.exit(f"{place} is there already, and a release never changes its artifacts.")
    with (
        tempfile.TemporaryDirectory() as made,
        contextlib.chdir(made),
    ):  # files that name their paths name relative ones
        folder, work = Path("files"), Path("work")
        folder.mkdir()
        work.mkdir()
        write_all(folder, work)
        keep(folder, place)


if __name__ == "__main__":
    main()
