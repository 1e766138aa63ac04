"""Exports a run as a versioned SavedModel, which a fresh process checks before it gets its name.

In: a Run and a folder. Out: the next version of the folder, for TensorFlow Serving:

    BASE/models.config             for --model_config_file in the container of the model card
    BASE/batching_parameters.txt   for --batching_parameters_file
    BASE/1/saved_model.pb, variables/
    BASE/1/assets.extra/           TensorFlow's loader ignores this folder
        manifest.json              the size and SHA-256 of every other file of the version
        model_card.md              the task, its measures, the signatures, and requests to copy
        example.json               the input of those requests
        score_bounds.json          the lowest and the highest score, where the task knows them
        tf_serving_warmup_requests requests that a server runs before it accepts others

A target such as "tfserving-2.10" refuses a graph with ops that this version of TensorFlow Serving lacks.
"""

import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from bert_keras.errors import BertKerasError
from bert_keras.io.files import file_errors, write_json
from bert_keras.io.folders import check_folder
from bert_keras.io.paths import to_path
from bert_keras.savedmodels.model_card import VERSIONS, example_of, model_card, precision_of, server_files
from bert_keras.savedmodels.servable import Servable
from bert_keras.savedmodels.serving_protos import WARMUP, PredictionLog
from bert_keras.savedmodels.verify import (
    BOUNDS,
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
from bert_keras.tasks.task import checked_outputs, graph_errors, model_inputs, with_label_names
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
    target: a key of TARGETS, the server that must support all ops of the graph
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
        graphs = [function.graph.as_graph_def() for function in servable.functions()]
        check_ops(set().union(*map(ops_of, graphs)), target)
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
    if target not in (None, *TARGETS):
        raise BertKerasError(f"target is {target!r}; give one of {', '.join(TARGETS)}.")


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


def save(run: Run, servable: Servable, folder: pathlib.Path, *, name: str, version: int) -> None:
    """Writes a version to a new or empty folder. Raises OSError if writing fails."""
    signatures = servable.signatures()
    with file_errors():
        tf.saved_model.save(servable.saved, str(folder), signatures=signatures)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        card = model_card(run, signatures, name=name, version=version, size=size, frozen=servable.frozen)
        extra = folder / EXTRA
        extra.mkdir()
        write_warmup(extra / WARMUP, sample_inputs(run.task.signature()), name=name)
        (extra / CARD).write_text(card, encoding="utf-8")
        write_json(extra / EXAMPLE, example_of(run.task))
        if run.task.score_bounds is not None:
            write_json(extra / BOUNDS, run.task.score_bounds)
        write_manifest(folder)


def compare_in_fresh_process(run: Run, servable: Servable, folder: pathlib.Path) -> None:
    """Raises ExportError unless a fresh process gives the answers of this process to SAMPLES.

    A frozen graph must give the answers of the run's own model, op by op, within ROUNDING. A model that computes in bfloat16 or
    float16 must give the answers of its graph with variables within NARROW: op by op it rounds elsewhere, and may choose another
    label.
    """
    raw = sample_inputs(run.task.signature())
    texts = {name: tf.constant(rows) for name, rows in raw.items()}
    narrow = precision_of(run.model) != "float32"
    with graph_errors():
        if servable.frozen and not narrow:
            features = run.task.features(servable.preprocess, texts)
            outputs = run.model(model_inputs(run.task, features), training=False)
            decoded = run.task.decode(checked_outputs(outputs), features, texts)
            expected, tolerance = with_label_names(run.task, decoded, tf.broadcast_to), ROUNDING
        else:
            traced = servable_of(run) if servable.frozen else servable
            expected, tolerance = traced.serve(**texts), NARROW if narrow else TOLERANCE
    compare({name: value.numpy() for name, value in expected.items()}, ask(folder, raw), tolerance=tolerance)


def sample_inputs(
    signature: Mapping[str, tf.TensorSpec], texts: Sequence[str] = SAMPLES
) -> dict[str, list[Any]]:
    """The same texts for every input, each in a different order, so that the texts of an example differ in length."""
    orders = [[*texts[i:], *texts[:i]] for i in range(len(texts))]
    return {
        name: orders[i]
        if len(spec.shape) == 1
        else [[orders[(i + k) % len(orders)][row] for k in range(spec.shape[1])] for row in range(len(texts))]
        for i, (name, spec) in enumerate(signature.items())
    }


def next_version(directory: pathlib.Path) -> int:
    """One more than the largest version number in the folder; 1 if there is no folder."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return 1 + max((int(name) for name in names if name.isdecimal()), default=0)


# -----------------------------------------------------------------------------------------------------------
# Warm-up requests: TensorFlow Serving runs them before it accepts others. A TFRecord file of PredictionLogs.


def write_warmup(path: pathlib.Path, texts: Mapping[str, list[Any]], *, name: str) -> None:
    """Writes one request for each example, and one request with all examples. name: the model's name."""
    count = len(next(iter(texts.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for rows in (*(slice(i, i + 1) for i in range(count)), slice(None)):
            writer.write(prediction_log({key: values[rows] for key, values in texts.items()}, name=name))


def prediction_log(texts: Mapping[str, list[Any]], *, name: str) -> bytes:
    """The serialized PredictionLog of a request for `serving_default`."""
    log = PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = name, "serving_default"
    for key, values in texts.items():
        request.inputs[key] = tf.make_tensor_proto(values, tf.string).SerializeToString()
    return log.SerializeToString(deterministic=True)


# -----------------------------------------------------------------------------------------------------------
# The ops that each version of TensorFlow Serving supports

TARGETS = {f"tfserving-{version}": version for version in VERSIONS}

# The ops of TensorFlow Text in TensorFlow Serving, with the first version that has each. A server links the ops of `ops_lib`
# in tensorflow_text/BUILD at the version that it pins (2.7.3 and 2.8.2 in 2.10 and 2.11, 2.12.1 from 2.12 to
# 2.19, 2.20.0 in 2.20); tensorflow-text's wheels of 2.7.3, 2.8.2, 2.12.1 and 2.20.0 register these names.
TEXT_OPS = {
    "NormalizeUTF8": "2.10",
    "CaseFoldUTF8": "2.10",
    "RegexSplitWithOffsets": "2.10",
    "WordpieceTokenizeWithOffsets": "2.10",
    "FastWordpieceTokenizeWithOffsets": "2.10",
    "SentencepieceOp": "2.10",
    "SentencepieceTokenizeOp": "2.10",
    "SentencepieceTokenizeWithOffsetsOp": "2.10",
    "SentencepieceVocabSizeOp": "2.10",
    "FastBertNormalize": "2.12",
    "RoundRobinTrim": "2.20",
}

# TensorFlow's own ops that 2.10 lacks, with the first version that has each, from tf.raw_ops in the wheels of tensorflow-cpu
# 2.10.1, 2.11.1, 2.12.1, 2.13.1, 2.14.1, 2.15.1, 2.16.2, 2.17.1, 2.18.1, 2.19.1, 2.20.0 and 2.21.0. Every version has the
# other ops of 2.21. Version 2.19 added no op; TPU ops are left out.
CORE_OPS = {
    op: version
    for version, ops in {
        "2.11": "UniformDequantize UniformQuantize UniformQuantizedClipByValue UniformQuantizedDot "
        "UniformQuantizedDotHybrid UniformRequantize",
        "2.12": "CollectiveReduceScatterV2 Conv2DBackpropFilterV2 Conv2DBackpropInputV2 DistributedSave RandomDatasetV2 "
        "SegmentProdV2 SegmentSumV2 StatelessRandomGammaV3 SyncDevice UniformQuantizedAdd UniformQuantizedConvolution "
        "UniformQuantizedConvolutionHybrid",
        "2.13": "CollectiveAllToAllV2 DebugIdentityV3 RaggedFillEmptyRows RaggedFillEmptyRowsGrad SegmentMaxV2 SegmentMinV2 "
        "SnapshotChunkDataset",
        "2.14": "Conv SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2 SparseSegmentSumGradV2 TFRecordDatasetV2",
        "2.15": "FFTND IFFTND IRFFTND RFFTND",
        "2.16": "DatasetFingerprint GlobalIterId ListSnapshotChunksDataset",
        "2.17": "GlobalShuffleDataset IndexFlatMapDataset IteratorGetModelProto WeightedFlatMapDataset",
        "2.18": "CheckPinned",
        "2.20": "DecodeWebP",
        "2.21": "DecodeJxl",
    }.items()
    for op in ops.split()
}


def ops_of(graph: graph_pb2.GraphDef) -> set[str]:
    """The ops of a graph and of the functions in its library; the prefix `TFText>` of TensorFlow Text's ops is removed."""
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {node.op.rpartition(">")[2] for node in nodes} - functions


def foreign_ops(ops: Collection[str]) -> set[str]:
    """The ops that are not TensorFlow's own."""
    return {op for op in ops if not hasattr(tf.raw_ops, op)}


def missing_ops(ops: Collection[str], target: str) -> Iterator[str]:
    """Describes each op that a target lacks, with the first version that has it."""
    wanted, foreign = VERSIONS.index(TARGETS[target]), foreign_ops(ops)
    for op in sorted(ops):
        first = TEXT_OPS.get(op) if op in foreign else CORE_OPS.get(op, VERSIONS[0])
        if first not in VERSIONS:
            yield f"{op}, which no known server up to {VERSIONS[-1]} has"
        elif VERSIONS.index(first) > wanted:
            yield f"{op}, which comes with {first}"


def check_ops(ops: Collection[str], target: str) -> None:
    """Raises BertKerasError if the target lacks ops, with their names and versions."""
    if lacking := list(missing_ops(ops, target)):
        raise BertKerasError(
            f"{target} lacks {'; '.join(lacking)}; choose a later target, or a model without these ops."
        )
