"""ONNX Runtime and OpenVINO, on the tensor part of our model as `bert-keras export --format` converts it."""

import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_keras.features import SEQUENCE_OUTPUT
from peer_work.ours import classifier_run, constant_encoder
from peer_work.work import Arrays, Case, Prepared, encoded, features

Model = Callable[[Arrays], np.ndarray]  # features -> the output
OPENVINO_FORMATS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _onnx(path: pathlib.Path, case: Case, *, output: str) -> Model:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = cores(), 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda given: session.run([output], given)[0]


def _openvino(path: pathlib.Path, case: Case, *, output: str) -> Model:
    import openvino

    # Without the hint OpenVINO computes in bfloat16 where the processor can.
    settings = {
        "INFERENCE_PRECISION_HINT": OPENVINO_FORMATS[case.precision],
        "INFERENCE_NUM_THREADS": cores(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda given: compiled(given)[output]


_LOADERS = {"onnx": _onnx, "openvino": _openvino}


def encoder(case: Case, folder: pathlib.Path, *, format: str) -> Prepared:
    """The sequence output. The conversion is in float32; OpenVINO computes in the case's format."""
    from bert_keras.model.kernels import plain_operations
    from bert_keras.savedmodels.converters import RUNTIMES, write_model

    written = folder / f"{case.size}-{format}"
    if not written.exists():
        written.mkdir()
        converted = dataclasses.replace(case, precision="float32")
        with plain_operations():
            function = constant_encoder(converted, folder, outputs=(SEQUENCE_OUTPUT,))
        write_model(format, function, written, output=SEQUENCE_OUTPUT)
    model = _LOADERS[format](written / RUNTIMES[format].file, case, output=SEQUENCE_OUTPUT)
    given = features(case)
    return lambda: model(given), encoded(case, {SEQUENCE_OUTPUT: model(given)})


def exported(case: Case, folder: pathlib.Path, *, format: str) -> pathlib.Path:
    """The run of SST-2 exported for this runtime; written once."""
    written = folder / f"{case.size}-{case.length}-{format}-served"
    if not written.exists():
        from bert_keras.savedmodels.runtimes import export_to

        export_to(classifier_run(case, folder), written, format)
    return written


def asker(case: Case, folder: pathlib.Path, *, format: str) -> Callable[[list[str]], np.ndarray]:
    """The export for this runtime: sentences -> probabilities. Needs no TensorFlow.

    It tokenizes and decodes as the example.py of the export does.
    """
    written = exported(case, folder, format=format)
    example = _module(written / "example.py")
    settings = json.loads((written / "settings.json").read_text(encoding="utf-8"))
    model = _LOADERS[format](written / settings["model"], case, output=settings["output"])

    def ask(texts: list[str]) -> np.ndarray:
        found = example.answers(settings, model(example.features(settings, [texts])))
        return np.array([answer["probabilities"] for answer in found])

    return ask


@functools.cache
def _module(path: pathlib.Path) -> Any:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(path.parent.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
