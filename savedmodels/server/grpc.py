"""gRPC: PredictionService and ModelService. Needs the `serving` extra.

Source: tensorflow_serving/apis.
"""

import concurrent.futures
import math
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

from bert_keras.savedmodels.server.served import (
    DEFAULT_SIGNATURE,
    MAX_ELEMENTS,
    Call,
    Limits,
    RequestError,
    Served,
)

THREADS = 32  # the most requests that wait for an answer


def serve(
    served: Served, address: str, *, limits: Limits, work: concurrent.futures.Executor
) -> tuple[Any, int]:
    """A listening server, and its port. work: runs the requests. Raises OSError if it cannot listen."""
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="grpc"),
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ],
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        Prediction(served, limits, work), server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Status(served, limits, work), server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        port = address.rpartition(":")[2]
        raise OSError(f"gRPC cannot listen on port {port}; give another --grpc-port.") from error
    server.start()
    return server, bound


class _Service:
    def __init__(self, served: Served, limits: Limits, work: concurrent.futures.Executor) -> None:
        self._served, self._limits, self._work = served, limits, work

    def _reply(self, make: Callable[[Any, Call], Any], request: Any, context: Any) -> Any:
        """The result of `make`; stops when the time limit ends or the client disconnects."""
        call = Call(self._limits)
        if not context.add_callback(call.stop):  # the client has already disconnected
            call.stop()
        future = self._work.submit(self._checked, make, request, call)
        try:
            return future.result(self._limits.seconds)
        except RequestError as error:
            context.abort(getattr(grpc.StatusCode, error.code), str(error))
        except TimeoutError:
            late = f"no answer within {self._limits.seconds:g} seconds."
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, late)
        finally:
            call.stop()
            future.cancel()

    def _describe(self, make: Callable[[Any, Call], Any], request: Any, context: Any) -> Any:
        """The result of `make`, without a worker, because all workers may be busy."""
        try:
            return self._checked(make, request, Call(self._limits))
        except RequestError as error:
            context.abort(getattr(grpc.StatusCode, error.code), str(error))

    def _checked(self, make: Callable[[Any, Call], Any], request: Any, call: Call) -> Any:
        spec = request.model_spec
        self._served.check(
            spec.name,
            spec.version.value if spec.HasField("version") else None,
            spec.version_label if spec.HasField("version_label") else None,
        )
        return make(request, call)


class Prediction(_Service, prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata."""

    def Predict(self, request: Any, context: Any) -> Any:
        return self._reply(self._predict, request, context)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        return self._describe(self._metadata, request, context)

    def Classify(self, request: Any, context: Any) -> None:
        _unimplemented("Classify", context)

    def Regress(self, request: Any, context: Any) -> None:
        _unimplemented("Regress", context)

    def MultiInference(self, request: Any, context: Any) -> None:
        _unimplemented("MultiInference", context)

    def _predict(self, request: Any, call: Call) -> Any:
        signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
        self._served.check_names(signature, request.inputs)
        inputs = dict(_parsed(request.inputs, self._served.inputs_of(signature), call.limits))
        outputs = self._served.predict(signature, inputs, call)
        if unknown := sorted(set(request.output_filter) - set(outputs)):
            raise RequestError("INVALID_ARGUMENT", f"there is no output {', '.join(unknown)}.")
        response = predict_pb2.PredictResponse()
        response.model_spec.name, response.model_spec.signature_name = self._served.name, signature
        response.model_spec.version.value = self._served.version
        for name in request.output_filter or outputs:
            call.check()
            array = outputs[name]
            dtype = tf.string if array.dtype == object else tf.dtypes.as_dtype(array.dtype)
            response.outputs[name].CopyFrom(tf.make_tensor_proto(array, dtype))
        return response

    def _metadata(self, request: Any, call: Call) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise RequestError("INVALID_ARGUMENT", "metadata_field must be signature_def.")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name = self._served.name
        response.model_spec.version.value = self._served.version
        signatures = get_model_metadata_pb2.SignatureDefMap()
        for name, value in self._served.signature_defs.items():
            signatures.signature_def[name].CopyFrom(value)
        response.metadata["signature_def"].Pack(signatures)
        return response


class Status(_Service, model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus."""

    def GetModelStatus(self, request: Any, context: Any) -> Any:
        return self._describe(self._status, request, context)

    def _status(self, request: Any, call: Call) -> Any:
        return json_format.ParseDict(self._served.status(), get_model_status_pb2.GetModelStatusResponse())


def _unimplemented(method: str, context: Any) -> None:
    context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        f"{method} needs a signature that TensorFlow 2 SavedModels do not have; call Predict, with the signature "
        "examples for serialized tf.Example.",
    )


def _parsed(
    inputs: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec], limits: Limits
) -> Iterator[tuple[str, tf.Tensor]]:
    """TensorProtos as tensors of the signature's dtypes.

    Raises RequestError for another dtype and above a limit, before it makes a tensor: few bytes may expand to many.
    """
    for name, proto in inputs.items():
        if proto.dtype != specs[name].dtype.as_datatype_enum:
            raise RequestError(
                "INVALID_ARGUMENT",
                f"{name} has the data type {_name_of(proto.dtype)}; expected {_name_of(specs[name].dtype.as_datatype_enum)}.",
            )
        sizes = [dim.size for dim in proto.tensor_shape.dim]
        if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
            raise RequestError("INVALID_ARGUMENT", f"{name} has shape {sizes[:8]}; give every size.")
        limits.check_rows(name, sizes[0] if sizes else 1)
        elements = math.prod(sizes)
        if max(elements, *sizes, 0) > MAX_ELEMENTS:
            raise RequestError(
                "INVALID_ARGUMENT", f"{name} has {elements:,} elements; send at most {MAX_ELEMENTS:,}."
            )
        if strings := proto.string_val:  # the last string is repeated for all missing strings
            repeated = max(0, elements - len(strings)) * len(strings[-1])
            limits.check_text(sum(map(len, strings)) + repeated)
        try:
            yield name, tf.constant(tf.make_ndarray(proto), tf.dtypes.as_dtype(proto.dtype))
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise RequestError(
                "INVALID_ARGUMENT", f"{name} is not a complete TensorProto ({error})."
            ) from error


def _name_of(data_type: int) -> str:
    """The name of a data type such as "DT_INT8"; its number if TensorFlow does not know it."""
    known = types_pb2.DataType.values()
    return types_pb2.DataType.Name(data_type) if data_type in known else str(data_type)
