"""gRPC: PredictionService and ModelService. Needs the `serving` extra.

Source: tensorflow_serving/apis.
"""

import concurrent.futures
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from bert_keras.savedmodels.server.log import Log, access_line
from bert_keras.savedmodels.server.metrics import Metrics
from bert_keras.savedmodels.server.served import DEFAULT_SIGNATURE, MAX_ELEMENTS, Call, RequestError, Served
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.tasks.options import ServerOptions

THREADS = 32  # the most requests that wait for an answer


def serve(
    versions: Versions,
    options: ServerOptions,
    *,
    work: concurrent.futures.Executor,
    metrics: Metrics,
    log: Log,
) -> tuple[Any, int]:
    """A listening server, and its port. work: runs the requests; log: as in `Http`. Raises OSError if it cannot listen."""
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="grpc"),
        options=[
            ("grpc.max_receive_message_length", options.max_message),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    services = Services(versions, options, work, metrics, None if options.no_access_log else log)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(services, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(services, server)
    try:
        host = f"[{options.host}]" if ":" in options.host else options.host
        bound = server.add_insecure_port(f"{host}:{options.grpc_port}")
    except RuntimeError as error:
        raise OSError(f"gRPC cannot listen on port {options.grpc_port}; give another --grpc-port.") from error
    server.start()
    return server, bound


class Services(
    prediction_service_pb2_grpc.PredictionServiceServicer, model_service_pb2_grpc.ModelServiceServicer
):
    """PredictionService and ModelService for the versions of a model."""

    def __init__(
        self,
        versions: Versions,
        options: ServerOptions,
        work: concurrent.futures.Executor,
        metrics: Metrics,
        log: Log | None,
    ) -> None:
        self._versions, self._options, self._work, self._log = versions, options, work, log
        self._metrics = metrics

    def Predict(self, request: Any, context: Any) -> Any:
        with self._access("Predict", context) as call:
            return self._reply(self._predict, request, call, context)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        with self._access("GetModelMetadata", context) as call:
            return self._describe(self._metadata, request, call, context)

    def GetModelStatus(self, request: Any, context: Any) -> Any:
        with self._access("GetModelStatus", context) as call:
            return self._describe(self._status, request, call, context)

    def Classify(self, request: Any, context: Any) -> None:
        with self._access("Classify", context):
            _unimplemented("Classify", context)

    def Regress(self, request: Any, context: Any) -> None:
        with self._access("Regress", context):
            _unimplemented("Regress", context)

    def MultiInference(self, request: Any, context: Any) -> None:
        with self._access("MultiInference", context):
            _unimplemented("MultiInference", context)

    @contextlib.contextmanager
    def _access(self, method: str, context: Any) -> Iterator[Call]:
        """Logs and counts the call that runs inside."""
        began, call = time.monotonic(), Call(self._options)
        call.method = method

        def status() -> str:
            return "OK" if context.code() is None else context.code().name

        try:
            with self._metrics.request("grpc", call, status):
                yield call
        finally:
            if self._log is not None:
                self._log(access_line("gRPC", method, status(), time.monotonic() - began, call))

    def _reply(self, make: Callable[[Served, Any, Call], Any], request: Any, call: Call, context: Any) -> Any:
        """The result of `make`; stops when the time limit ends or the client disconnects."""
        if not context.add_callback(call.stop):  # the client has already disconnected
            call.stop()
        future = self._work.submit(self._checked, make, request, call)
        try:
            return future.result(self._options.max_seconds)
        except RequestError as error:
            context.abort(grpc.StatusCode[error.code], str(error))
        except TimeoutError:
            late = f"no answer within {self._options.max_seconds:g} seconds."
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, late)
        finally:
            call.stop()
            future.cancel()

    def _describe(
        self, make: Callable[[Served, Any, Call], Any], request: Any, call: Call, context: Any
    ) -> Any:
        """The result of `make`, without a worker, because all workers may be busy."""
        try:
            return self._checked(make, request, call)
        except RequestError as error:
            context.abort(grpc.StatusCode[error.code], str(error))

    def _checked(self, make: Callable[[Served, Any, Call], Any], request: Any, call: Call) -> Any:
        spec = request.model_spec
        served = self._versions.find(
            spec.name,
            spec.version.value if spec.HasField("version") else None,
            spec.version_label if spec.HasField("version_label") else None,
        )
        call.version = str(served.version)
        return make(served, request, call)

    def _predict(self, served: Served, request: Any, call: Call) -> Any:
        signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
        specs = served.checked_inputs(signature, request.inputs)
        inputs = dict(_parsed(request.inputs, specs, call))
        outputs = served.predict(signature, inputs, call)
        if unknown := sorted(set(request.output_filter) - set(outputs)):
            raise RequestError(f"there is no output {', '.join(unknown)}.")
        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.signature_name = served.name, signature
        response.model_spec.version.value = served.version
        for name in request.output_filter or outputs:
            call.check()
            array = outputs[name]
            dtype = tf.string if array.dtype == object else tf.dtypes.as_dtype(array.dtype)
            response.outputs[name].CopyFrom(tf.make_tensor_proto(array, dtype))
        return response

    def _metadata(self, served: Served, request: Any, call: Call) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise RequestError("metadata_field must be signature_def.")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = served.name
        response.model_spec.version.value = served.version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, value in served.signature_defs.items():
            signatures.signature_def[name].CopyFrom(value)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _status(self, served: Served, request: Any, call: Call) -> Any:
        return json_format.ParseDict(self._versions.status(), get_model_status_pb2.GetModelStatusResponse())


def _unimplemented(method: str, context: Any) -> None:
    context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{method} needs a signature that TensorFlow 2 SavedModels do not have; call Predict, with the signature "
        "examples for serialized tf.Example.",
    )


def _parsed(
    inputs: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec], call: Call
) -> Iterator[tuple[str, tf.Tensor]]:
    """TensorProtos as tensors of the signature's dtypes.

    Raises RequestError for another dtype and above a limit, before it makes a tensor: few bytes may expand to many.
    """
    for name, proto in inputs.items():
        if proto.dtype != specs[name].dtype.as_datatype_enum:
            raise RequestError(
                f"{name} has the data type {_name_of(proto.dtype)}; expected {_name_of(specs[name].dtype.as_datatype_enum)}."
            )
        sizes = [dim.size for dim in proto.tensor_shape.dim]
        if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
            raise RequestError(f"{name} has shape {sizes[:8]}; give every size.")
        call.check_rows(name, sizes[0] if sizes else 1)
        elements = math.prod(sizes)
        if max(elements, *sizes, 0) > MAX_ELEMENTS:
            raise RequestError(f"{name} has {elements:,} elements; send at most {MAX_ELEMENTS:,}.")
        if strings := proto.string_val:  # the last string is repeated for all missing strings
            repeated = max(0, elements - len(strings)) * len(strings[-1])
            call.check_text(sum(map(len, strings)) + repeated)
        try:
            yield name, tf.constant(tf.make_ndarray(proto), tf.dtypes.as_dtype(proto.dtype))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise RequestError(f"{name} is not a complete TensorProto ({error}).") from error


def _name_of(data_type: int) -> str:
    """The name of a data type such as "DT_INT8"; its number if TensorFlow does not know it."""
    known = types_pb2.DataType.values()
    return types_pb2.DataType.Name(data_type) if data_type in known else str(data_type)
