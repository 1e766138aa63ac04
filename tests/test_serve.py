"""The development server, asked as TensorFlow Serving is: real HTTP and gRPC on loopback, real messages."""

import base64
import contextlib
import http.client
import json
import subprocess
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from runs import ROOT, bare_environment, shell_command, texts, write_checkpoint
from tensorflow.core.framework.tensor_pb2 import TensorProto

from bert_keras import checkpoints
from bert_keras.encoder import BertEncoder
from bert_keras.preprocessing import Preprocessor
from savedmodels.export import export
from savedmodels.serve import Server, load
from tasks.glue import ROWS, Glue
from tasks.train import Run

ROWS_OF_TEXT = [
    {"premise": premise, "hypothesis": hypothesis}
    for premise, hypothesis in zip(
        texts(6, seed=1), [*texts(3, seed=2), "", "Naïve 真好", "[SEP]"], strict=True
    )
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An exported classifier of pairs, untrained; the folder of its versions."""
    place = tmp_path_factory.mktemp("serve")
    source = checkpoints.read(write_checkpoint(place / "checkpoint"))
    task = Glue(ROWS["mnli"])
    encoder = BertEncoder(source.config, outputs=task.outputs)
    checkpoints.assign(source, encoder)
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=40, pad_to_longest=True)
    return export(
        Run(task=task, preprocess=preprocess, model=task.model(encoder), path=place), place / "nli"
    ).parent


@pytest.fixture(scope="module")
def served(folder):
    return load(folder)


@pytest.fixture(scope="module")
def server(served):
    pytest.importorskip("tensorflow_serving")
    with Server(served, port=0, grpc_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def expected(served):
    """What the SavedModel itself says to ROWS_OF_TEXT."""
    columns = {name: tf.constant([row[name] for row in ROWS_OF_TEXT]) for name in ROWS_OF_TEXT[0]}
    answers = served.signatures["serving_default"](**columns)
    return {name: value.numpy() for name, value in answers.items()}


def ask(server, path, body=None):
    """Status and JSON."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", data=data) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


PREDICT = "/v1/models/nli:predict"


@pytest.mark.parametrize("path", [PREDICT, "/v1/models/nli/versions/1:predict"])
def test_rest_rows(server, expected, path):
    status, answer = ask(server, path, {"instances": ROWS_OF_TEXT})
    assert status == 200
    assert [row["label"].encode() for row in answer["predictions"]] == expected["label"].tolist()
    found = [row["probabilities"] for row in answer["predictions"]]
    np.testing.assert_allclose(found, expected["probabilities"], atol=1e-6)


def test_rest_columns_and_base64(server, expected):
    columns = {name: [row[name] for row in ROWS_OF_TEXT] for name in ROWS_OF_TEXT[0]}
    coded = [{"b64": base64.b64encode(text.encode()).decode()} for text in columns["premise"]]
    status, answer = ask(
        server, PREDICT, {"signature_name": "serving_default", "inputs": columns | {"premise": coded}}
    )
    assert status == 200
    assert [label.encode() for label in answer["outputs"]["label"]] == expected["label"].tolist()
    np.testing.assert_allclose(answer["outputs"]["probabilities"], expected["probabilities"], atol=1e-6)


def test_rest_describes_itself(server):
    assert ask(server, "/v1/models/nli")[1]["model_version_status"][0]["state"] == "AVAILABLE"
    _, answer = ask(server, "/v1/models/nli/metadata")
    inputs = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert {name: value["dtype"] for name, value in inputs.items()} == dict.fromkeys(
        ("premise", "hypothesis"), "DT_STRING"
    )


PAIR = {"premise": "a", "hypothesis": "b"}
REFUSED = {
    "no JSON": (PREDICT, b"{", 400, "no JSON"),
    "no UTF-8": (PREDICT, b'{"instances": ["\xff"]}', 400, "no JSON"),
    "too deep": (PREDICT, b'{"inputs": ' + b"[" * 100_000, 400, "no JSON"),
    "no form": (PREDICT, {}, 400, "either instances or inputs"),
    "no instance": (PREDICT, {"instances": []}, 400, "at least one"),
    "one text of two": (PREDICT, {"instances": [{"premise": "a"}]}, 400, "takes"),
    "unlike rows": (PREDICT, {"instances": [PAIR, {"premise": "a"}]}, 400, "each instance"),
    "a number": (PREDICT, {"instances": [PAIR | {"premise": 3}]}, 400, "no string tensor"),
    "a null": (PREDICT, {"instances": [PAIR | {"premise": None}]}, 400, "no string tensor"),
    "no base64": (PREDICT, {"instances": [PAIR | {"premise": {"b64": "?"}}]}, 400, "b64"),
    "wrong rank": (PREDICT, {"inputs": {"premise": [["a"]], "hypothesis": [["b"]]}}, 400, "wanted is"),
    "unequal batches": (PREDICT, {"inputs": {"premise": ["a", "b"], "hypothesis": ["c"]}}, 400, ""),
    "unknown signature": (PREDICT, {"signature_name": "x", "inputs": {}}, 400, "serving_default"),
    "unknown model": ("/v1/models/other:predict", {"instances": [PAIR]}, 404, "nli version 1 is served"),
    "unknown version": ("/v1/models/nli/versions/7:predict", {"instances": [PAIR]}, 404, "version 7"),
    "unknown address": ("/v1/model", None, 404, "/v1/models/nli"),
    "unknown method": ("/v1/models/nli", {"instances": [PAIR]}, 400, ":predict"),
    "a GET": (PREDICT, None, 400, "POST"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rest_refuses(server, case):
    path, body, status, wanted = REFUSED[case]
    found, answer = ask(server, path, body)
    assert found == status
    assert wanted in answer["error"]


def test_rest_wants_a_length(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    with contextlib.closing(connection):
        connection.putrequest("POST", PREDICT)
        connection.putheader("Content-Length", str(10**12))
        connection.endheaders()
        assert connection.getresponse().status == 413


@pytest.fixture(scope="module")
def stubs(server):
    grpc = pytest.importorskip("grpc")
    from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield (
            prediction_service_pb2_grpc.PredictionServiceStub(channel),
            model_service_pb2_grpc.ModelServiceStub(channel),
        )


def request(columns, *, name="nli", version=None, signature="", output_filter=()):
    from tensorflow_serving.apis import predict_pb2

    made = predict_pb2.PredictRequest(output_filter=output_filter)
    made.model_spec.name, made.model_spec.signature_name = name, signature
    if version is not None:
        made.model_spec.version.value = version
    for column, value in columns.items():
        made.inputs[column].CopyFrom(value if isinstance(value, TensorProto) else tf.make_tensor_proto(value))
    return made


def test_grpc_predict(stubs, expected):
    columns = {name: [row[name].encode() for row in ROWS_OF_TEXT] for name in ROWS_OF_TEXT[0]}
    response = stubs[0].Predict(request(columns, version=1))
    assert response.model_spec.version.value == 1
    assert tf.make_ndarray(response.outputs["label"]).tolist() == expected["label"].tolist()
    np.testing.assert_allclose(
        tf.make_ndarray(response.outputs["probabilities"]), expected["probabilities"], atol=1e-6
    )
    assert set(stubs[0].Predict(request(columns, output_filter=["label"])).outputs) == {"label"}


def test_grpc_describes_itself(stubs):
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "nli"
    kept = get_model_metadata_pb2.SignatureDefMap()
    assert stubs[0].GetModelMetadata(asked).metadata["signature_def"].Unpack(kept)
    assert set(kept.signature_def["serving_default"].outputs) == {"label", "probabilities"}
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "nli"
    (status,) = stubs[1].GetModelStatus(asked).model_version_status
    assert status.state == status.AVAILABLE


def _huge():
    proto = tf.make_tensor_proto(["a"])
    proto.tensor_shape.dim[0].size = 10**12
    return proto


GRPC_REFUSED = {
    "unequal batches": ({"premise": ["a", "b"], "hypothesis": ["c"]}, {}, "INVALID_ARGUMENT"),
    "wrong dtype": ({"premise": [1], "hypothesis": ["c"]}, {}, "INVALID_ARGUMENT"),
    "missing": ({"premise": ["a"]}, {}, "INVALID_ARGUMENT"),
    "signature": ({"premise": ["a"], "hypothesis": ["c"]}, {"signature": "x"}, "INVALID_ARGUMENT"),
    "output": ({"premise": ["a"], "hypothesis": ["c"]}, {"output_filter": ["x"]}, "INVALID_ARGUMENT"),
    "model": ({"premise": ["a"], "hypothesis": ["c"]}, {"name": "x"}, "NOT_FOUND"),
    "version": ({"premise": ["a"], "hypothesis": ["c"]}, {"version": 9}, "NOT_FOUND"),
    "a tensor that unfolds": ({"premise": _huge(), "hypothesis": _huge()}, {}, "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("case", GRPC_REFUSED)
def test_grpc_refuses(stubs, case):
    import grpc

    columns, more, code = GRPC_REFUSED[case]
    with pytest.raises(grpc.RpcError) as caught:
        stubs[0].Predict(request(columns, **more))
    assert caught.value.code() == grpc.StatusCode[code]


def test_a_taken_port_is_named(server, served):
    with pytest.raises(OSError, match=f"port {server.port} .*--port"):
        Server(served, port=server.port, grpc_port=None)
    with pytest.raises(OSError, match=f"port {server.grpc_port}; give another --grpc-port"):
        Server(served, port=0, grpc_port=server.grpc_port)


def test_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no SavedModel"):
        load(tmp_path)


def test_the_command(folder):
    """It says where it listens, that it is no production server, and answers what its own example asks."""
    command = shell_command("serve", folder, "--port", "0", "--no-grpc")
    with subprocess.Popen(
        command, cwd=ROOT, env=bare_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            assert "TensorFlow Serving is for production" in "".join(lines)
            example = next(line for line in lines if line.startswith("curl"))
            done = subprocess.run(example, shell=True, capture_output=True, text=True)
            assert len(json.loads(done.stdout)["predictions"]) == 1
        finally:
            process.terminate()
