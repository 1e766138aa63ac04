"""The other runtimes that a model can be exported to: the conversion of each, its int8 quantizer, and the packages for both.

In: a concrete function with constants, from savedmodels/freezing.py. Out: a model file. RUNTIMES has a row for each runtime.
"""

import contextlib
import dataclasses
import importlib.util
import io
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingPackageError

OPSET = 18  # of ONNX; ONNX Runtime reads it from 1.14 on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """One runtime.

    file: the name of the model's file
    packages: modules that the conversion needs; quantizers: the modules that int8 needs too
    precisions: the formats that it can compute a float32 model in
    convert: a concrete function, the name of its output and a path -> the written file
    quantize: the path of the float32 model and a path -> the written int8 model
    """

    file: str
    packages: tuple[str, ...]
    quantizers: tuple[str, ...]
    precisions: tuple[str, ...]
    convert: Callable[[Any, str, pathlib.Path], None]
    quantize: Callable[[pathlib.Path, pathlib.Path], None]


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


RUNTIMES = {
    "onnx": Runtime(
        file="model.onnx",
        packages=("onnx", "onnxruntime", "tf2onnx", "tokenizers"),
        quantizers=(),
        precisions=("float32",),
        convert=_to_onnx,
        quantize=_onnx_int8,
    ),
    "openvino": Runtime(
        file="model.xml",
        packages=("openvino", "tokenizers"),
        quantizers=("nncf",),
        precisions=("float32", "bfloat16"),
        convert=_to_openvino,
        quantize=_openvino_int8,
    ),
}


def check_packages(name: str, *, quantize: str | None = None) -> None:
    """Raises MissingPackageError, with the command that installs it, if a package of a runtime is not installed."""
    runtime = RUNTIMES[name]
    wanted = (*runtime.packages, *(runtime.quantizers if quantize else ()))
    if lacking := [module for module in wanted if importlib.util.find_spec(module) is None]:
        raise MissingPackageError(
            f"an export for {name} needs {', '.join(lacking)}; pip install 'bert-keras[{name}]'."
        )


def check_precision(name: str, precision: str) -> None:
    """Raises BertKerasError if a runtime does not compute in a format."""
    if precision not in (known := RUNTIMES[name].precisions):
        raise BertKerasError(
            f"precision is {precision}, and a model for {name} computes in {' or '.join(known)}; give one of these, or export a "
            "SavedModel."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the lines that the converters print and log to themselves."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _in_one_line(who: str, remedy: str) -> Iterator[None]:
    """Turns an error of a converter or a quantizer, which have classes of their own, into a BertKerasError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "operation" in line), lines[0]).strip("- ")
        raise BertKerasError(f"{who} cannot carry this model: {reason:.300}; {remedy}.") from error


def write_model(
    name: str, function: Any, folder: pathlib.Path, *, output: str, quantize: str | None = None
) -> None:
    """Writes the model file of a runtime to a folder.

    function: features -> one tensor, without variables; output: the name that its result gets
    quantize: "int8", or None for float32

    Raises BertKerasError for an op that the converter or the quantizer cannot carry.
    """
    runtime = RUNTIMES[name]
    path = folder / runtime.file
    whole = folder / f"float-{runtime.file}" if quantize else path
    with _quiet():
        with _in_one_line(f"the converter for {name}", "export a SavedModel"):
            runtime.convert(function, output, whole)
        if quantize:
            with _in_one_line(f"the {quantize} quantizer for {name}", "leave --quantize out"):
                runtime.quantize(whole, path)
    if quantize:
        for file in folder.glob(f"{whole.stem}.*"):
            file.unlink()
