"""Each artifact says its format and its writer, and its readers refuse another format by naming both."""

import json
import zipfile

import pytest
import runs
import tensorflow as tf
from random_checkpoints import refused

import bert_keras as bk
from bert_keras.io import formats
from bert_keras.io.folders import Folder
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.savedmodels.server.served import load
from bert_keras.savedmodels.verify import verify_files as verify
from bert_keras.savedmodels.verify import write_manifest
from bert_keras.tasks.frozen.cache import CACHE, open_cache
from bert_keras.tasks.pretraining.records import INSTANCES, InstancesFolder, read_manifest
from bert_keras.tasks.retrieval.index import INDEX, open_index
from bert_keras.tasks.runs.run_folder import load_run, save_task, task_of
from bert_keras.tasks.study import grid
from bert_keras.tasks.study.ablations import ABLATION
from bert_keras.tasks.study.probe import PROBE
from bert_keras.tasks.training.loop import RESULTS_FILE, RUN

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def begun(layout):
    """A folder of a layout, whose fingerprint is read when it is begun again."""

    def begin(path):
        with Folder(path, layout).begin({"seed": 1}):
            pass

    return begin


def write_module(path):
    module = tf.Module()
    module.__call__ = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, str(path))
    write_manifest(path)


def write_task(path):
    problem = bk.classifier(runs.write_checkpoint(path / "checkpoint"), ["bad", "good"])
    save_task(path, problem.problem, problem.preprocess)


def write_instances(path):
    with InstancesFolder(path).begin({"compress": False}):
        InstancesFolder(path).write({"compress": False}, [])


def write_study(path):
    grid.write_results(path, {"tasks": {}})


def read_study(path):
    return grid.earlier_results(path, lambda found: "tasks" in found)


# Artifact, its file, writer, readers.
ARTIFACTS = [
    (formats.RUN, "task.json", write_task, (load_run, task_of)),
    (formats.RUN, RUN.fingerprint, begun(RUN), (begun(RUN),)),
    (formats.SAVED_MODEL, formats.MANIFEST, write_module, (verify, lambda path: HubLayer(str(path)), load)),
    (formats.INSTANCES, INSTANCES.fingerprint, write_instances, (read_manifest, write_instances)),
    (formats.VECTORS, CACHE.fingerprint, begun(CACHE), (begun(CACHE), open_cache)),
    (formats.INDEX, INDEX.fingerprint, begun(INDEX), (begun(INDEX), open_index)),
    (formats.STUDY, RESULTS_FILE, write_study, (read_study,)),
    *((formats.STUDY, one.fingerprint, begun(one), (begun(one),)) for one in (ABLATION, PROBE)),
]


def test_every_artifact_is_here():
    assert {artifact for artifact, *_ in ARTIFACTS} | {formats.STRING_MODEL} == {*formats.VERSIONS}


@pytest.mark.parametrize(("artifact", "name", "write", "readers"), ARTIFACTS)
def test_readers_refuse_another_format_by_both_versions(artifact, name, write, readers, tmp_path):
    write(tmp_path)
    file = tmp_path / name
    written = json.loads(file.read_text())
    stamp = {"format_version": 1, "written_by": f"bert-keras {formats.version_of('bert-keras')}"}
    assert {field: written[field] for field in stamp} == stamp == formats.stamp(artifact)
    newer = "has format_version 99, written by bert-keras 9.1, and bert-keras .* reads format_version 1; "
    newer += "upgrade: pip install -U bert-keras"
    for version, writer, message in (
        (99, "bert-keras 9.1", newer),
        (0, "bert-keras 0.0", "has format_version 0, written by .*; read it with the version that wrote it"),
        ("1", written["written_by"], "has format_version '1', written by"),
        (None, None, "has no format_version, and"),
    ):
        file.write_text(json.dumps(written | {"format_version": version, "written_by": writer}))
        for read in readers:
            refused(f"{name}: this {artifact} {message}", read, tmp_path)


def test_a_run_is_resumed_by_another_version_that_reads_its_format(tmp_path):
    begun(RUN)(tmp_path)
    file = tmp_path / RUN.fingerprint
    file.write_text(json.dumps(json.loads(file.read_text()) | {"written_by": "bert-keras 9.1"}))
    begun(RUN)(tmp_path)


def test_a_string_model_of_another_format(tmp_path):
    model = bk.classifier(runs.write_checkpoint(tmp_path / "checkpoint"), ["bad", "good"])
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    assert config["config"].items() >= formats.stamp(formats.STRING_MODEL).items()
    config["config"] |= {"format_version": 2, "written_by": "bert-keras 9.1"}
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as file:
        for name, part in (parts | {"config.json": json.dumps(config).encode()}).items():
            file.writestr(name, part)
    message = "string model has format_version 2, written by bert-keras 9.1"
    refused(message, bk.load, tmp_path / "other.keras")
