"""The development server gets the same requests as TensorFlow Serving: real HTTP and gRPC on loopback, real messages."""

import base64
import contextlib
import dataclasses
import http.client
import json
import re
import subprocess
import urllib.error
import urllib.request

import forked
import numpy as np
import pytest
import tensorflow as tf
from exports import untrained
from runs import ROOT, VOCABULARY, bare_environment, shell_command, texts, write_checkpoint
from tensorflow.core.framework.tensor_pb2 import TensorProto

from bert_keras import checkpoints
from bert_keras.model.encoder import BertEncoder
from bert_keras.savedmodels.export import export
from bert_keras.savedmodels.model_card import model_card
from bert_keras.savedmodels.server import Server
from bert_keras.savedmodels.server.served import example_of, load, reason_of
from bert_keras.savedmodels.verify import CARD, EXAMPLE, EXTRA
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.text.preprocessing import Preprocessor

ROWS_OF_TEXT = [
    {"premise": premise, "hypothesis": hypothesis}
    for premise, hypothesis in zip(
        texts(6, seed=1), [*texts(3, seed=2), "", "Naïve 真好", "[SEP]"], strict=True
    )
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A classifier of pairs, untrained."""
    place = tmp_path_factory.mktemp("serve")
    source = checkpoints.read(write_checkpoint(place / "checkpoint"))
    task = TextClassification.open("mnli")
    encoder = BertEncoder(source.config, outputs=task.outputs)
    checkpoints.assign(source, encoder)
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=40, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=task.model(encoder), path=place)


@pytest.fixture(scope="module")
def folder(run):
    """The folder of the exported versions."""
    with forked.publishing():
        return export(run, run.path / "nli").parent


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
    """The SavedModel's own answers to ROWS_OF_TEXT."""
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


@pytest.mark.parametrize("signature", [{}, {"signature_name": ""}, {"signature_name": "serving_default"}])
@pytest.mark.parametrize("path", [PREDICT, "/v1/models/nli/versions/1:predict"])
def test_rest_rows(server, expected, path, signature):
    status, answer = ask(server, path, {"instances": ROWS_OF_TEXT} | signature)
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


ODD = "my model, é: 100 %"


@pytest.mark.parametrize(
    "path", ["my%20model%2C%20%C3%A9%3A%20100%20%25", "my%20model,%20%c3%a9%3a%20100%20%25"]
)
def test_a_name_is_quoted_in_an_address(served, path):
    with Server(dataclasses.replace(served, name=ODD), port=0, grpc_port=None) as running:
        assert ask(running, f"/v1/models/{path}/versions/1")[0] == 200
        assert ask(running, f"/v1/models/{path}:predict", {"instances": [PAIR]})[0] == 200
        status, answer = ask(running, "/v1/models/my")
        assert status == 404 and ODD in answer["error"]


def test_the_request_in_the_card_is_answered(served, run):
    card = model_card(run, served.signatures, name=ODD, version=1, size=1)
    (request,) = [line for line in card.splitlines() if line.startswith("    curl")]
    with Server(dataclasses.replace(served, name=ODD), port=0, grpc_port=None) as running:
        request = request.replace("localhost:8501", f"127.0.0.1:{running.port}")
        done = subprocess.run(request, shell=True, capture_output=True, text=True)
    assert len(json.loads(done.stdout)["predictions"]) == 1


PAIR = {"premise": "a", "hypothesis": "b"}


def of_ids(*ids, masks=1):
    """A request of the signature of one's own ids."""
    columns = {
        "input_word_ids": [ids],
        "input_mask": [[1] * len(ids)] * masks,
        "input_type_ids": [[0] * len(ids)],
    }
    return {"signature_name": "features", "inputs": columns}


def nested(depth):
    return b'{"inputs": ' + b"[" * depth + b"]" * depth + b"}"


def of_example(data):
    return {"signature_name": "examples", "instances": [{"b64": base64.b64encode(data).decode()}]}


INT32 = "between -2147483648 and 2147483647"
REFUSED = {
    "no JSON": (PREDICT, b"{", 400, "not JSON"),
    "no UTF-8": (PREDICT, b'{"instances": ["\xff"]}', 400, "not JSON"),
    "deep": (PREDICT, nested(40), 400, "too deep"),
    "too deep for a tensor": (PREDICT, nested(600), 400, "too deep"),
    "too deep for JSON": (PREDICT, nested(100_000), 400, "too deep"),
    "no form": (PREDICT, {}, 400, "either instances or inputs"),
    "no instance": (PREDICT, {"instances": []}, 400, "at least one"),
    "one text of two": (PREDICT, {"instances": [{"premise": "a"}]}, 400, "takes"),
    "unlike rows": (PREDICT, {"instances": [PAIR, {"premise": "a"}]}, 400, "each instance"),
    "a number": (PREDICT, {"instances": [PAIR | {"premise": 3}]}, 400, "not a tensor of string"),
    "a null": (PREDICT, {"instances": [PAIR | {"premise": None}]}, 400, "not a tensor of string"),
    "no base64": (PREDICT, {"instances": [PAIR | {"premise": {"b64": "?"}}]}, 400, "b64"),
    "wrong rank": (PREDICT, {"inputs": {"premise": [["a"]], "hypothesis": [["b"]]}}, 400, "expected "),
    "unequal batches": (
        PREDICT,
        {"inputs": {"premise": ["a", "b"], "hypothesis": ["c"]}},
        400,
        "differ in shape",
    ),
    "unequal features": (PREDICT, of_ids(5, masks=2), 400, "differ in shape"),
    "an id too large": (PREDICT, of_ids(5, 10**7), 400, f"= 10000000 is not in [0, {len(VOCABULARY)})"),
    "an id under 0": (PREDICT, of_ids(-1), 400, "a number is below 0"),
    "an id that would wrap": (PREDICT, of_ids(2**32 + 5), 400, f"4294967301 is not {INT32}"),
    "the first that would wrap": (PREDICT, of_ids(2**31), 400, "input_word_ids is not a tensor of int32"),
    "the last that would wrap": (PREDICT, of_ids(-(2**31) - 1), 400, f"-2147483649 is not {INT32}"),
    "an infinite id": (PREDICT, of_ids(float("inf")), 400, f"inf is not {INT32}"),
    "no example": (PREDICT, of_example(b"ab"), 400, "examples: expected serialized tf.Example"),
    "an empty example": (
        PREDICT,
        of_example(b""),
        400,
        "Feature: hypothesis (data type: string) is required",
    ),
    "half an example": (PREDICT, of_example(b"\n\x05\nab"), 400, "Could not parse example input"),
    "no UTF-8 example": (PREDICT, of_example(b"\n\xff\xfe"), 400, "Could not parse example input"),
    "a long example": (PREDICT, of_example(b"\na" + b"b" * 10**5), 400, "Could not parse example input"),
    "unknown signature": (PREDICT, {"signature_name": "x", "inputs": {}}, 400, "serving_default"),
    "a signature that is no string": (PREDICT, {"signature_name": 1, "inputs": {}}, 400, "expected a string"),
    "unknown model": ("/v1/models/other:predict", {"instances": [PAIR]}, 404, "nli version 1"),
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
    assert len(answer["error"]) < 500 and not re.search(r"\n|Graph execution|node|\[Op:", answer["error"])


def test_the_reason_among_several_errors():
    message = (
        "Graph execution error:\n\nDetected at node a/b defined at (most recent call last):\n"
        "<stack traces unavailable>\nDetected at node c defined at (most recent call last):\n"
        "<stack traces unavailable>\n2 root error(s) found.\n"
        "  (0) INVALID_ARGUMENT:  {{function_node __inference_f_1}} it is\nso\n\t [[{{node a/b}}]]\n"
        "  (1) INVALID_ARGUMENT:  it is so\n\t [[{{node c}}]]\n0 successful operations. [Op:__inference_g_2]"
    )
    assert reason_of(message) == "it is so"


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
    assert "Graph execution" not in caught.value.details()


def test_a_taken_port_is_named(server, served):
    with pytest.raises(OSError, match=f"port {server.port} .*--port"):
        Server(served, port=server.port, grpc_port=None)
    with pytest.raises(OSError, match=f"port {server.grpc_port}; give another --grpc-port"):
        Server(served, port=0, grpc_port=server.grpc_port)


def test_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no SavedModel"):
        load(tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_the_example_of_fill_mask_has_a_mask(run, tmp_path):
    folder = export(untrained(FillMask(top_k=2), run.path / "checkpoint"), tmp_path / "mlm")
    served = load(folder)
    example = example_of(served)
    asked = served.signatures["serving_default"](text=tf.constant([example]))
    assert asked["mask_start_byte"].numpy().tolist() == [[example.index("[MASK]")]]
    card = (folder / EXTRA / CARD).read_text()
    assert json.dumps({"instances": [{"text": example}]}) in card
    (folder / EXTRA / EXAMPLE).unlink()
    assert example_of(served) == "a text"  # of a SavedModel from elsewhere


@pytest.mark.long
def test_the_command(folder):
    """It says where it listens, that it is no production server, and answers what its own example asks."""
    command = shell_command("serve", folder, "--port", "0", "--no-grpc")
    with subprocess.Popen(
        command, cwd=ROOT, env=bare_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            assert "use TensorFlow Serving in production" in "".join(lines)
            example = next(line for line in lines if line.startswith("curl"))
            done = subprocess.run(example, shell=True, capture_output=True, text=True)
            assert len(json.loads(done.stdout)["predictions"]) == 1
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0
