"""Exports a run as a versioned SavedModel, which a fresh process checks before it gets its name.

In: a Run and a folder. Out: the next version of the folder, for TensorFlow Serving:

    BASE/models.config             for --model_config_file in the container of the model card
    BASE/batching_parameters.txt   for --batching_parameters_file
    BASE/1/saved_model.pb, variables/
    BASE/1/assets.extra/           TensorFlow's loader ignores this folder
        manifest.json              the size and SHA-256 of every other file of the version
        model_card.md              the task, its measures, the signatures, and requests to copy
        example.json               the input of those requests
        tf_serving_warmup_requests requests that a server runs before it accepts others
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_keras.io.files import file_errors, write_json
from bert_keras.io.folders import check_folder
from bert_keras.io.paths import to_path
from bert_keras.savedmodels import op_support
from bert_keras.savedmodels.model_card import example_of, model_card, precision_of, server_files
from bert_keras.savedmodels.servable import Servable
from bert_keras.savedmodels.verify import (
    CARD,
    EXAMPLE,
    EXTRA,
    NARROW,
    ROUNDING,
    SAMPLES,
    TOLERANCE,
    ask,
    compare,
    publishing,
    write_manifest,
)
from bert_keras.tasks.runs.run_folder import Run, load_run
from bert_keras.tasks.task import Raw, model_inputs
from bert_keras.text.preprocessing import Preprocessor

# Lengths are rounded up: a short text costs little, and an accelerator compiles few lengths.
LENGTHS = 8  # tokens


def export(
    run: Run | str | pathlib.Path,
    directory: str | pathlib.Path,
    *,
    target: str | None = None,
    freeze: bool = False,
) -> pathlib.Path:
    """Writes the next version below `directory` and returns its folder.

    run: a Run, or the folder that a fine-tuning wrote
    target: a key of op_support.TARGETS, the server that must support all ops of the graph
    freeze: True writes the weights as constants of the graph, which run faster on CPU and cannot be trained

    Raises BertKerasError if the target lacks an op, if the folder cannot be written, if another process writes to it, and if
    the weights to freeze do not fit into one graph; ExportError if the reloaded model answers differently. The folder then stays
    unchanged.
    """
    run = run if isinstance(run, Run) else load_run(run)
    directory = to_path(directory)
    check_export(directory, target=target)
    servable = servable_of(run, frozen=freeze)
    if target is not None:
        op_support.check(ops_of(servable), target)
    name = directory.resolve().name
    with publishing(directory) as new:
        for file, text in server_files(name).items():
            if not (directory / file).exists():
                (new / file).write_text(text, encoding="utf-8")
        version = next_version(directory)
        save(run, servable, new / str(version), name=name, version=version)
        compare_in_fresh_process(run, servable, new / str(version))
    return directory / str(version)


def check_export(directory: pathlib.Path, *, target: str | None = None) -> None:
    """Raises BertKerasError for a folder or a target that `export` would refuse: call it before long work."""
    check_folder(directory, existing="keep")
    if target is not None:
        op_support.check_target(target)


def servable_of(run: Run, *, frozen: bool = False) -> Servable:
    """The Servable of a run, with lengths rounded up to a multiple of LENGTHS."""
    preprocess = Preprocessor(
        run.preprocess.tokenizer,
        seq_length=run.preprocess.seq_length,
        truncation=run.preprocess.truncation,
        pad_to_longest=True,
        multiple_of=LENGTHS,
    )
    return Servable(run.task, preprocess, run.model, frozen=frozen)


def ops_of(servable: Servable) -> set[str]:
    """The ops of every saved function."""
    graphs = [function.graph.as_graph_def() for function in servable.functions()]
    return set().union(*map(op_support.ops_of, graphs))


def save(run: Run, servable: Servable, folder: pathlib.Path, *, name: str, version: int) -> None:
    """Writes a version to a new or empty folder. Raises OSError if writing fails."""
    with file_errors():
        tf.saved_model.save(servable.saved, str(folder), signatures=servable.signatures())
        write_extra(run, servable, folder, name=name, version=version)


def write_extra(run: Run, servable: Servable, folder: pathlib.Path, *, name: str, version: int) -> None:
    """Writes assets.extra of a saved version."""
    extra = folder / EXTRA
    extra.mkdir()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    write_warmup(extra / WARMUP, sample_inputs(run.task.signature()), name=name)
    card = model_card(
        run, servable.signatures(), name=name, version=version, size=size, frozen=servable.frozen
    )
    (extra / CARD).write_text(card, encoding="utf-8")
    write_json(extra / EXAMPLE, example_of(run.task))
    write_manifest(folder)


def compare_in_fresh_process(run: Run, servable: Servable, folder: pathlib.Path) -> None:
    """Raises ExportError unless a fresh process gives the answers of this process to SAMPLES.

    A frozen graph must give the answers of the run's own model within ROUNDING. A model that computes in bfloat16 or float16 must
    give those of its graph with variables in this process within NARROW: op by op it rounds elsewhere, and may choose another
    label.
    """
    raw = sample_inputs(run.task.signature())
    texts = {name: tf.constant(rows) for name, rows in raw.items()}
    narrow = precision_of(run.model) != "float32"
    own = servable.frozen and not narrow
    traced = servable_of(run) if servable.frozen and narrow else servable
    expected = answers_of(run, servable, texts) if own else traced.serve(**texts)
    compare(
        {name: value.numpy() for name, value in expected.items()},
        ask(folder, raw),
        tolerance=NARROW if narrow else ROUNDING if own else TOLERANCE,
    )


def answers_of(run: Run, servable: Servable, raw: Raw) -> Raw:
    """The answers of the run's own model, which runs op by op; `servable` gives the text processing."""
    features = run.task.features(servable.preprocess, raw)
    return run.task.decode(run.model(model_inputs(features), training=False), features, raw)


def sample_inputs(signature: Mapping[str, tf.TensorSpec]) -> dict[str, list[Any]]:
    """SAMPLES for every input, each in a different order, so that the texts of an example differ in length."""
    orders = [[*SAMPLES[i:], *SAMPLES[:i]] for i in range(len(SAMPLES))]
    return {
        name: orders[i]
        if len(spec.shape) == 1
        else [[orders[i + k][row] for k in range(spec.shape[1])] for row in range(len(SAMPLES))]
        for i, (name, spec) in enumerate(signature.items())
    }


def next_version(directory: pathlib.Path) -> int:
    """One more than the largest version number in the folder; 1 if there is no folder."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


# -----------------------------------------------------------------------------------------------------------
# Warm-up requests: TensorFlow Serving runs them before it accepts others. A TFRecord file of PredictionLogs.

WARMUP = "tf_serving_warmup_requests"  # the file's name in assets.extra

Texts = Mapping[str, list[Any]]


def write_warmup(path: pathlib.Path, texts: Texts, *, name: str) -> None:
    """Writes one request for each example, and one request with all examples.

    name: the model's name
    """
    count = len(next(iter(texts.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for rows in (*(slice(i, i + 1) for i in range(count)), slice(None)):
            writer.write(prediction_log({key: values[rows] for key, values in texts.items()}, name=name))


def prediction_log(texts: Texts, *, name: str) -> bytes:
    """The serialized PredictionLog of a request for `serving_default`.

    We encode it ourselves because only tensorflow-serving-api has its protocol buffer, and nothing else here needs that package.
    Source: tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto.
    """
    model_spec = _field(1, name.encode()) + _field(3, b"serving_default")
    inputs = [
        _field(1, key.encode()) + _field(2, tf.make_tensor_proto(values, tf.string).SerializeToString())
        for key, values in texts.items()
    ]
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in inputs)
    return _field(6, _field(1, request))


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a protocol buffer. number: at most 15."""
    size, length = bytearray(), len(payload)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + payload
