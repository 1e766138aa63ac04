"""Exports the tensor part of a run to another runtime, with its tokenizer beside it; a fresh process checks it.

In: a Run, a new folder and the name of a row of RUNTIMES. Out:

    OUT/model.onnx, model.xml or model.tflite     features -> logits, or vectors; model.bin has the weights of model.xml
    OUT/tokenizer.json                            for the tokenizers library; vocab.txt and the other files for this package
    OUT/settings.json                             how texts become features, and logits answers
    OUT/example.py                                does both, without TensorFlow: savedmodels/runtime_example.py
    OUT/model_card.md
"""

import dataclasses
import importlib.util
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.checkpoints.tokenizer_tables import special_names
from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.features import ENCODER_INPUTS, input_limits
from bert_keras.io.files import write_json
from bert_keras.io.folders import check_folder
from bert_keras.io.paths import to_path
from bert_keras.model.kernels import plain_operations
from bert_keras.savedmodels import runtime_example
from bert_keras.savedmodels.converters import RUNTIMES, write_model
from bert_keras.savedmodels.export import sample_inputs, servable_of
from bert_keras.savedmodels.model_card import example_of, measures_table, precision_of
from bert_keras.savedmodels.servable import with_constants
from bert_keras.savedmodels.verify import CARD, ROUNDING, ask, compare, publishing, relative
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.runs.ensemble import at_precision, members_of
from bert_keras.tasks.runs.facts import facts_of
from bert_keras.tasks.runs.run_card import fact_rows
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Problem, model_inputs
from bert_keras.tasks.training.task_model import config_of, encoder_of, with_padding
from bert_keras.text.sentencepiece import SentencePiece
from bert_keras.text.vocabulary import TOKENIZER_JSON
from bert_keras.text.write_tokenizer_json import write_pipeline


def check_packages(name: str, *, quantize: str | None = None) -> None:
    """Raises MissingPackageError, with the command that installs it, if a package of a runtime is not installed."""
    runtime = RUNTIMES[name]
    wanted = (*runtime.packages, *(runtime.quantizers if quantize else ()))
    if lacking := [module for module in wanted if importlib.util.find_spec(module) is None]:
        raise MissingPackageError(
            f"an export for {name} ({runtime.file}) needs {', '.join(lacking)}; pip install 'bert-keras[{name}]'."
        )


def check_runtime(
    directory: pathlib.Path, name: str, *, quantize: str | None = None, precision: str = "float32"
) -> None:
    """Raises BertKerasError for what `export_to` would refuse before it sees the run: call it before long work."""
    if name not in RUNTIMES or quantize not in (None, "int8"):
        raise BertKerasError(
            f"format is {name!r} and quantize is {quantize!r}; give format {', '.join(RUNTIMES)} (TensorFlow Lite), and quantize "
            "None or 'int8'."
        )
    runtime = RUNTIMES[name]
    if precision not in (known := runtime.precisions):
        raise BertKerasError(
            f"precision is {precision}, and a model for {name} computes in {' or '.join(known)}; give one of these, or export a "
            "SavedModel."
        )
    if quantize in runtime.convert and precision != "float32":
        raise BertKerasError(
            f"precision is {precision} and quantize is {quantize}; the weights of {runtime.file} have one format: leave one out."
        )
    check_packages(name, quantize=quantize)
    check_folder(directory)


# -----------------------------------------------------------------------------------------------------------
# The folder

SETTINGS, SCRIPT = "settings.json", "example.py"
# The difference that a format may make, relative as in `relative`: more is a broken conversion, not a loss of digits.
TOLERANCES = {"float32": ROUNDING, "float16": 1e-2, "bfloat16": 0.25, "int8": 0.25}
LOGITS, EMBEDDING = "logits", "embedding"

_CARD = """# {name}

| | |
|---|---|
{facts}

{measures}
## Use

    pip install numpy {packages}
    python example.py {arguments}

{tokenizer}
"""
_TOKENIZER = (
    "`example.py` is all that a program needs: it has no TensorFlow in it. `tokenizer.json` is read by the library tokenizers, "
    "version 0.21 or newer."
)
_NO_TOKENIZER = (
    "`example.py` has no TensorFlow in it. It takes features, not texts, because the library tokenizers does not compute the ids "
    "of this SentencePiece vocabulary. Compute {features} with `bert_keras.Preprocessor` and write them to features.json, each "
    "as a list of equally long rows."
)


def export_to(
    run: Run,
    directory: str | pathlib.Path,
    format: str,
    *,
    quantize: str | None = None,
    precision: str = "float32",
) -> dict[str, Any]:
    """Writes a model of RUNTIMES to a new or empty folder, and returns the comparison with the run's own outputs.

    format: a key of RUNTIMES
    quantize: "int8" for int8 weights, by the runtime's own quantizer; None for float32
    precision: "bfloat16" has OpenVINO compute in it, on processors that have it; the file is the same. "float16" is for LiteRT
        (TensorFlow Lite): weights in float16, with which a CPU computes in float32

    A run in bfloat16 or float16, such as the `.keras` file of a mixed training, is exported in float32, with the same weights.

    Returns "max_difference", the largest difference of an example's logits, relative to the largest of them if that exceeds 1;
    and "bytes", the size of the model's files.
    Raises MissingPackageError without the runtime's packages, BertKerasError for a format or precision that is not known, for a
    task whose answers need the text or windows of it, for a run whose weights have no float32 form, for an op that the converter
    cannot carry, and if the folder cannot be written; ExportError if the model answers differently in a fresh process. The folder
    then stays unchanged.
    """
    directory = to_path(directory)
    check_runtime(directory, format, quantize=quantize, precision=precision)
    check_task(run.task)
    run = in_float32(run, format)
    servable = servable_of(run)
    with with_padding(run.model), plain_operations():
        function = with_constants(run.model, servable.features_signature())
    raw = sample_inputs(run.task.signature())
    texts = {name: tf.constant(rows) for name, rows in raw.items()}
    features = model_inputs(run.task, run.task.features(servable.preprocess, texts))
    expected = np.asarray(run.model(features, training=False))
    settings = settings_of(run, format, precision=precision)
    output, tolerance = settings["output"], max(TOLERANCES[quantize or "float32"], TOLERANCES[precision])
    with publishing(directory, existing="refuse") as new:
        write_model(format, function, new, output=output, quantize=quantize, precision=precision)
        size = sum(file.stat().st_size for file in new.iterdir())
        write_beside(run, new, settings, name=directory.resolve().name, size=size, quantize=quantize)
        given = raw if settings["tokenizer"] else {k: v.numpy().tolist() for k, v in features.items()}
        found = ask(new, given, script=new / SCRIPT)[output]
        compare({output: expected}, {output: found}, tolerance=tolerance)
    return {"max_difference": float(relative(expected, np.asarray(found)).max()), "bytes": size}


def check_task(task: Problem) -> None:
    """Raises BertKerasError for a task whose answers need more than the logits: call it before a long read."""
    if task.windowed:
        reason = "cuts texts into windows and puts the answers together from the text"
    elif not isinstance(task, (TextClassification, Embedding)):
        reason = "finds its answers in the text"
    elif isinstance(task, Embedding) and task.dimension is not None:
        reason = "gives some numbers of its vectors"
    elif isinstance(task, Embedding) and (task.find_prompt() or not task.include_prompt):
        reason = f"puts the prompt {task.prompt!r} before texts" if task.include_prompt else "pools no prompt"
    else:
        return
    raise BertKerasError(
        f"{task.name} {reason}, which only a SavedModel does: leave --format out, or export a classifier, a score or vectors."
    )


def in_float32(run: Run, format: str) -> Run:
    """The run with its weights, in a model that computes in float32. Raises BertKerasError for weights that have no such form."""
    precision = precision_of(run.model)
    if precision == "float32":
        return run
    try:
        return at_precision(run, "float32")
    except BertKerasError as error:
        raise BertKerasError(
            f"the run computes in {precision} and cannot be converted to float32, in which a model for {format} computes: train "
            "it in float32, or export a SavedModel."
        ) from error


def settings_of(run: Run, format: str, *, precision: str = "float32") -> dict[str, Any]:
    """The content of settings.json."""
    task, preprocess = run.task, run.preprocess
    special, pair = preprocess.tokenizer.special, preprocess.tokenizer.pair
    configs = [config_of(member) for member in members_of(run.model)]
    limits = [*map(input_limits, configs)]
    label_type = task.label_type if isinstance(task, TextClassification) else None
    return {
        "runtime": format,
        "precision": precision,
        "model": RUNTIMES[format].file,
        "inputs": [*task.signature()],
        "features": [*ENCODER_INPUTS],
        "output": LOGITS if label_type else EMBEDDING,
        "answer": label_type or EMBEDDING,
        "labels": list(task.label_names),
        "tokenizer": None if isinstance(preprocess.tokenizer, SentencePiece) else TOKENIZER_JSON,
        "limits": {name: min(one[name] for one in limits) for name in ENCODER_INPUTS},
        "max_length": min(config.max_length for config in configs),
        "seq_length": preprocess.seq_length,
        "truncation": _truncation(run),
        "padding": special.padding,
        "start": special.start,
        "between": special.between,
        "end": special.end,
        "separators": pair.separators,
        "second_type": pair.second_type,
    }


def _truncation(run: Run) -> str:
    """A key of the example's TRUNCATION."""
    left = run.preprocess.tokenizer.rules.left
    if len(run.task.signature()) > 1:
        return f"{run.preprocess.truncation}_left" if left else run.preprocess.truncation
    return getattr(run.task, "truncation", None) or ("tail" if left else "head")


def write_beside(
    run: Run, folder: pathlib.Path, settings: dict[str, Any], *, name: str, size: int, quantize: str | None
) -> None:
    """Writes the files beside the model: tokenizer, settings, example and card."""
    tokenizer = run.preprocess.tokenizer
    encoder = encoder_of(members_of(run.model)[0])
    vocabulary = tokenizer.to_vocabulary()
    write_tokenizer(vocabulary, folder, max_length=encoder.config.max_length)
    if settings["tokenizer"]:
        # The example splits special tokens in text, but not added ones.
        added = tuple(token._replace(special=False) for token in vocabulary.rules.added)
        vocabulary = vocabulary._replace(rules=dataclasses.replace(vocabulary.rules, added=added))
        pipeline = write_pipeline(vocabulary, special_names(vocabulary), lower_case=tokenizer.lower_case)
        write_json(folder / TOKENIZER_JSON, pipeline)
    write_json(folder / SETTINGS, settings)
    shutil.copyfile(runtime_example.__file__, folder / SCRIPT)
    runtime = RUNTIMES[settings["runtime"]]
    facts = facts_of(run) | {
        "runtime": settings["runtime"],
        "weights": runtime.weights(quantize=quantize, precision=settings["precision"]),
        "precision": settings["precision"],
        "size": f"{size / 1e6:.1f} MB",
    }
    narrow = [format for format in (quantize, settings["precision"]) if format not in (None, "float32")]
    packages = {"onnxruntime", "openvino", "ai_edge_litert"}
    if settings["tokenizer"]:
        packages.add("tokenizers")
        arguments = " ".join(json.dumps(text) for text in example_of(run.task).values())
        about_tokenizer = _TOKENIZER
    else:
        arguments = "< features.json"
        about_tokenizer = _NO_TOKENIZER.format(features=", ".join(settings["features"]))
    card = _CARD.format(
        name=name,
        facts=fact_rows(facts),
        measures=measures_table(run, rounded=" and ".join(map(str, narrow))),
        packages=" ".join(name for name in runtime.packages if name in packages),
        arguments=arguments,
        tokenizer=about_tokenizer,
    )
    (folder / CARD).write_text(card, encoding="utf-8")
