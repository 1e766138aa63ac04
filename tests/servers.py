"""Requests to our server: real HTTP and gRPC on loopback, real messages."""

import contextlib
import http.client
import json
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from bert_keras.savedmodels.server import Server


def ask(
    server: Server, path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str] = {}
) -> tuple[int, Message, Any]:
    """Status, headers and JSON. body: JSON or bytes, which are sent with POST unless there is a method."""
    if body is not None and not isinstance(body, bytes | str):
        body = json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        response = connection.getresponse()
        content = response.read()
        assert (
            response.status == 204 or response.headers["Content-Type"].partition(";")[0] == "application/json"
        )
        return response.status, response.headers, json.loads(content or b"null")


def predict_request(
    model: str,
    inputs: Mapping[str, Any],
    *,
    signature: str = "",
    version: int | None = None,
    label: str = "",
    output_filter: tuple[str, ...] = (),
) -> Any:
    """A PredictRequest. inputs: TensorProtos, or values for them."""
    from tensorflow_serving.apis import predict_pb2

    made = predict_pb2.PredictRequest(output_filter=output_filter)
    made.model_spec.name, made.model_spec.signature_name = model, signature
    if version is not None:
        made.model_spec.version.value = version
    if label:
        made.model_spec.version_label = label
    for name, value in inputs.items():
        made.inputs[name].CopyFrom(value if isinstance(value, TensorProto) else tf.make_tensor_proto(value))
    return made


@contextlib.contextmanager
def prediction_stub(server: Server) -> Any:
    """Calls of the gRPC PredictionService."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def grpc_error(method: Callable[..., Any], request: Any) -> tuple[str, str]:
    """The code and the details with which a gRPC method refuses a request."""
    import grpc
    import pytest

    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=15)
    return caught.value.code().name, caught.value.details()
