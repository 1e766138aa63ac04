"""The ops that each version of TensorFlow Serving supports, and a check of a graph against them.

In: a graph, and a target such as "tfserving-2.10". Out: nothing, or an error with the missing ops and the version.
"""

from collections.abc import Collection, Iterator

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from bert_keras.errors import BertKerasError

VERSIONS = tuple(f"2.{minor}" for minor in range(10, 21))
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


def missing(ops: Collection[str], target: str) -> Iterator[str]:
    """Describes each op that a target lacks, with the first version that has it."""
    wanted, foreign = VERSIONS.index(TARGETS[target]), foreign_ops(ops)
    for op in sorted(ops):
        first = TEXT_OPS.get(op) if op in foreign else CORE_OPS.get(op, VERSIONS[0])
        if first not in VERSIONS:
            yield f"{op}, which no known server up to {VERSIONS[-1]} has"
        elif VERSIONS.index(first) > wanted:
            yield f"{op}, which comes with {first}"


def check_target(target: str) -> None:
    """Raises BertKerasError for an unknown target."""
    if target not in TARGETS:
        raise BertKerasError(f"target is {target!r}; give one of {', '.join(TARGETS)}.")


def check(ops: Collection[str], target: str) -> None:
    """Raises BertKerasError for an unknown target, and if the target lacks ops, with their names and versions."""
    check_target(target)
    if lacking := list(missing(ops, target)):
        raise BertKerasError(
            f"{target} lacks {'; '.join(lacking)}; choose a later target, or a model without these ops."
        )
