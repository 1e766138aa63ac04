"""Converts a graph to the file of another runtime; RUNTIMES has a row for each.

In: a concrete function without variables, features -> one tensor. Out: model.onnx, model.xml and model.bin, or model.tflite,
whose inputs have the names of the features.
"""

import contextlib
import dataclasses
import functools
import io
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError

OPSET = 18  # of ONNX; ONNX Runtime reads it from 1.14 on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """One runtime.

    file: the name of the model's file
    packages: modules that the conversion needs; quantizers: the modules that int8 needs too
    precisions: the formats of --precision: of its computation, or of the weights that `convert` writes
    convert: for each format of weights, a concrete function, the name of its output and a path -> the written file
    quantize: the path of the float32 model and a path -> the written int8 model; None where `convert` has int8
    """

    file: str
    packages: tuple[str, ...]
    quantizers: tuple[str, ...]
    precisions: tuple[str, ...]
    convert: Mapping[str, Callable[[Any, str, pathlib.Path], None]]
    quantize: Callable[[pathlib.Path, pathlib.Path], None] | None = None

    def weights(self, *, quantize: str | None, precision: str) -> str:
        """The format of the weights in the file."""
        return quantize or (precision if precision in self.convert else "float32")


def _to_onnx(function: Any, output: str, path: pathlib.Path) -> None:
    import tf2onnx

    (features,), _ = function.structured_input_signature
    specs = [tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in features.items()]

    def named(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {output: function(dict(zip(features, tensors, strict=True)))}

    tf2onnx.convert.from_function(
        tf.function(named, autograph=False), input_signature=specs, opset=OPSET, output_path=str(path)
    )


def _onnx_int8(source: pathlib.Path, path: pathlib.Path) -> None:
    """Int8 kernels with a scale for each column; activations are quantized in each call. The embeddings stay float32."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        source, path, per_channel=True, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"]
    )


def _to_openvino(function: Any, output: str, path: pathlib.Path) -> None:
    import openvino

    converted = openvino.convert_model(function)
    # Each op that nothing reads becomes an output too; Identity is what the function returns.
    (result,) = (found for found in converted.outputs if "Identity:0" in found.names)
    model = openvino.Model([result.node], converted.get_parameters())
    model.output(0).get_tensor().set_names({output})
    for parameter in model.inputs:
        (name,) = {name.partition(":")[0] for name in parameter.names}
        parameter.get_tensor().set_names({name})
    openvino.save_model(model, path, compress_to_fp16=False)


def _openvino_int8(source: pathlib.Path, path: pathlib.Path) -> None:
    """Int8 weights, embeddings too, with a scale for each row."""
    import nncf
    import openvino

    model = openvino.Core().read_model(source)
    compressed = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    openvino.save_model(compressed, path, compress_to_fp16=False)


def _to_litert(function: Any, output: str, path: pathlib.Path, *, weights: str) -> None:
    """TensorFlow Lite's built-in ops alone, which every build of the runtime has.

    weights: "float32"; "float16", which a CPU widens before it computes; or "int8", with a scale for each output of a matrix:
        activations are quantized in each call
    """
    (features,), _ = function.structured_input_signature
    module = tf.Module()
    module.serve = tf.function(lambda **given: {output: function(given)}, autograph=False)
    signature = module.serve.get_concrete_function(**features)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([signature], module)
    if weights != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if weights == "float16":
        converter.target_spec.supported_types = [tf.float16]
    path.write_bytes(converter.convert())


RUNTIMES = {
    "onnx": Runtime(
        file="model.onnx",
        packages=("onnx", "onnxruntime", "tf2onnx", "tokenizers"),
        quantizers=(),
        precisions=("float32",),
        convert={"float32": _to_onnx},
        quantize=_onnx_int8,
    ),
    "openvino": Runtime(
        file="model.xml",
        packages=("openvino", "tokenizers"),
        quantizers=("nncf",),
        precisions=("float32", "bfloat16"),
        convert={"float32": _to_openvino},
        quantize=_openvino_int8,
    ),
    "litert": Runtime(
        file="model.tflite",
        packages=("ai_edge_litert", "tokenizers"),
        quantizers=(),
        precisions=("float32", "float16"),
        convert={
            weights: functools.partial(_to_litert, weights=weights)
            for weights in ("float32", "float16", "int8")
        },
    ),
}


@contextlib.contextmanager
def _converting(who: str, remedy: str) -> Iterator[None]:
    """Drops the lines that a converter or a quantizer prints and logs, and turns its own errors into a BertKerasError."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), _quiet():
            yield
    except OSError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        named = (line for word in (" ops: ", "operation") for line in lines if word in line)
        reason = next(named, lines[0]).rpartition("error: ")[2].strip("- ")
        raise BertKerasError(f"{who} cannot carry this model: {reason:.300}; {remedy}.") from error
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what native code writes to standard error: TensorFlow Lite's converter prints the graph that it cannot carry."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def write_model(
    name: str,
    function: Any,
    folder: pathlib.Path,
    *,
    output: str,
    quantize: str | None = None,
    precision: str = "float32",
) -> None:
    """Writes the model file of a runtime to a folder.

    function: features -> one tensor, without variables; output: the name that its result gets
    quantize: "int8", or None for weights in the precision, where the file can have it, else in float32

    Raises BertKerasError for an op that the converter or the quantizer cannot carry.
    """
    runtime = RUNTIMES[name]
    path, weights = folder / runtime.file, runtime.weights(quantize=quantize, precision=precision)
    quantizer = None if weights in runtime.convert else runtime.quantize
    converted = folder / f"float-{runtime.file}" if quantizer else path
    with _converting(f"the converter for {name}", "export a SavedModel"):
        runtime.convert["float32" if quantizer else weights](function, output, converted)
    if quantizer:
        with _converting(f"the {quantize} quantizer for {name}", "leave --quantize out"):
            quantizer(converted, path)
        for file in folder.glob(f"{converted.stem}.*"):
            file.unlink()
