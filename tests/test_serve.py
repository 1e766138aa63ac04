"""The server answers as the SavedModel does, in the forms of TensorFlow Serving."""

import argparse
import base64
import dataclasses
import http.client
import json
import re
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

import forked
import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, untrained
from runs import ROOT, VOCABULARY, bare_environment, run_command, shell_command, texts, write_checkpoint
from servers import ask, predict_request, prediction_stub

from bert_keras.savedmodels import commands
from bert_keras.savedmodels.export import export
from bert_keras.savedmodels.model_card import model_card
from bert_keras.savedmodels.server import Server
from bert_keras.savedmodels.server.served import example_of, load, reason_of
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.savedmodels.verify import CARD, EXAMPLE, EXTRA
from bert_keras.tasks.options import ServerOptions
from bert_keras.tasks.problems.fill_mask import FillMask

PREDICT = "/v1/models/nli:predict"
PAIR = {"premise": "a", "hypothesis": "b"}
COLUMNS = {"premise": texts(6, seed=1), "hypothesis": [*texts(3, seed=2), "", "Naïve 真好", "[SEP]"]}
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
REST_ALONE = ServerOptions(port=0, no_grpc=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A classifier of pairs, untrained."""
    place = tmp_path_factory.mktemp("serve")
    return untrained(CASES["Classification of pairs"], write_checkpoint(place / "checkpoint"))


@pytest.fixture(scope="module")
def folder(run):
    """The folder of the exported versions."""
    with forked.publishing():
        return export(run, run.path.with_name("nli")).parent


@pytest.fixture(scope="module")
def served(folder):
    return load(folder)


@pytest.fixture(scope="module")
def server(served):
    pytest.importorskip("tensorflow_serving")
    with Server(Versions(served), ServerOptions(port=0, grpc_port=0)) as running:
        yield running


@pytest.fixture(scope="module")
def assert_expected(served):
    """Compares labels and probabilities with the SavedModel's own answers to COLUMNS."""
    inputs = {name: tf.constant(column) for name, column in COLUMNS.items()}
    expected = {name: value.numpy() for name, value in served.signatures["serving_default"](**inputs).items()}

    def compare(labels, probabilities):
        assert labels == [label.decode() for label in expected["label"]]
        np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)

    return compare


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        (PREDICT, {}),
        (PREDICT, {"signature_name": ""}),
        ("/v1/models/nli/versions/1:predict", {"signature_name": "serving_default"}),
    ],
)
def test_rest_rows(server, assert_expected, path, signature):
    status, _, answer = ask(server, path, {"instances": ROWS} | signature)
    assert status == 200
    rows = answer["predictions"]
    assert_expected([row["label"] for row in rows], [row["probabilities"] for row in rows])


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


def test_rest_columns_and_base64(server, assert_expected):
    inputs = COLUMNS | {"premise": [b64(text.encode()) for text in COLUMNS["premise"]]}
    status, _, answer = ask(server, PREDICT, {"signature_name": "serving_default", "inputs": inputs})
    assert status == 200
    assert_expected(answer["outputs"]["label"], answer["outputs"]["probabilities"])


def test_rest_describes_itself(server):
    assert ask(server, "/v1/models/nli")[2]["model_version_status"][0]["state"] == "AVAILABLE"
    answer = ask(server, "/v1/models/nli/metadata")[2]
    inputs = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert {name: value["dtype"] for name, value in inputs.items()} == dict.fromkeys(COLUMNS, "DT_STRING")


ODD = "my model, é: 100 %"


@pytest.fixture(scope="module")
def odd(served):
    """A server whose model's name is quoted in an address."""
    with Server(Versions(dataclasses.replace(served, name=ODD)), REST_ALONE) as running:
        yield running


@pytest.mark.parametrize(
    "path", ["my%20model%2C%20%C3%A9%3A%20100%20%25", "my%20model,%20%c3%a9%3a%20100%20%25"]
)
def test_a_name_is_quoted_in_an_address(odd, path):
    assert ask(odd, f"/v1/models/{path}/versions/1")[0] == 200
    assert ask(odd, f"/v1/models/{path}:predict", {"instances": [PAIR]})[0] == 200
    status, _, answer = ask(odd, "/v1/models/my")
    assert status == 404 and ODD in answer["error"]


def test_the_request_in_the_card_is_answered(odd, served, run):
    card = model_card(run, served.signatures, name=ODD, version=1, size=1)
    (request,) = [line for line in card.splitlines() if line.startswith("    curl")]
    request = request.replace("localhost:8501", f"127.0.0.1:{odd.port}")
    done = subprocess.run(request, shell=True, capture_output=True, text=True)
    assert len(json.loads(done.stdout)["predictions"]) == 1


def instances(**changes):
    return {"instances": [PAIR | changes]}


def inputs(premise, hypothesis):
    return {"inputs": {"premise": premise, "hypothesis": hypothesis}}


def of_ids(*ids, masks=1):
    """A request of the signature for clients that tokenize texts."""
    columns = {
        "input_word_ids": [ids],
        "input_mask": [[1] * len(ids)] * masks,
        "input_type_ids": [[0] * len(ids)],
    }
    return {"signature_name": "features", "inputs": columns}


def of_example(data):
    return {"signature_name": "examples", "instances": [b64(data)]}


INT32 = "between -2147483648 and 2147483647"
REFUSED = {
    "no JSON": (b"{", "not JSON"),
    "no UTF-8": (b'{"instances": ["\xff"]}', "not JSON"),
    "too deep for JSON": (b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
    "no form": ({}, "either instances or inputs"),
    "no instance": ({"instances": []}, "at least one"),
    "one text of two": ({"instances": [{"premise": "a"}]}, "hypothesis, premise; instance 0 has 'premise'"),
    "unlike rows": ({"instances": [PAIR, {"premise": "a"}]}, "instance 1 has 'premise'"),
    "a text of two": ({"instances": [PAIR, "a"]}, "hypothesis, premise; instance 1 is a str"),
    "a number": (instances(premise=3), "not a tensor of string"),
    "a null": (instances(premise=None), "not a tensor of string"),
    "no base64": (instances(premise={"b64": "?"}), "b64"),
    "wrong rank": (inputs([["a"]], [["b"]]), "expected "),
    "unequal batches": (inputs(["a", "b"], ["c"]), "differ in shape"),
    "unequal features": (of_ids(5, masks=2), "differ in shape"),
    "an id too large": (
        of_ids(5, 10**7),
        f"input_word_ids has a number outside of 0 to {len(VOCABULARY) - 1}",
    ),
    "an id under 0": (of_ids(-1), "input_word_ids has a number outside of 0 to"),
    "half of an id": (of_ids(5.5), "input_word_ids is not a tensor of int32"),
    "no token": (of_ids(), "without a token"),
    "half a character": (
        b'{"instances": [{"premise": "\\ud83d", "hypothesis": "a"}]}',
        "half of a surrogate pair",
    ),
    "a name twice": (
        b'{"instances": [{"premise": "a", "premise": "b", "hypothesis": "c"}]}',
        "'premise' is there twice",
    ),
    "the first that would wrap": (of_ids(2**31), "input_word_ids is not a tensor of int32"),
    "the last that would wrap": (of_ids(-(2**31) - 1), f"-2147483649 is not {INT32}"),
    "an infinite id": (of_ids(float("inf")), f"inf is not {INT32}"),
    "no example": (of_example(b"ab"), "examples: expected serialized tf.Example"),
    "an empty example": (of_example(b""), "Feature: hypothesis (data type: string) is required"),
    "half an example": (of_example(b"\n\x05\nab"), "Could not parse example input"),
    "no UTF-8 example": (of_example(b"\n\xff\xfe"), "Could not parse example input"),
    "a long example": (of_example(b"\na" + b"b" * 10**5), "Could not parse example input"),
    "unknown signature": ({"signature_name": "x", "inputs": {}}, "serving_default"),
    "a signature that is no string": ({"signature_name": 1, "inputs": {}}, "expected a string"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rest_refuses(server, case):
    body, wanted = REFUSED[case]
    status, _, answer = ask(server, PREDICT, body)
    assert status == 400 and wanted in answer["error"]
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


def test_a_length_that_is_too_long_is_refused_before_the_body_comes(server):
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.putrequest("POST", PREDICT)
        connection.putheader("Content-Length", str(10**12))
        connection.endheaders()
        assert connection.getresponse().status == 413


def test_grpc_predicts_and_describes_itself(server, assert_expected):
    grpc = pytest.importorskip("grpc")
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, model_service_pb2_grpc

    with prediction_stub(server) as stub:
        response = stub.Predict(predict_request("nli", COLUMNS, version=1))
        assert response.model_spec.version.value == 1
        found = {name: tf.make_ndarray(value).tolist() for name, value in response.outputs.items()}
        assert_expected([label.decode() for label in found["label"]], found["probabilities"])
        response = stub.Predict(predict_request("nli", COLUMNS, output_filter=("label",)))
        assert set(response.outputs) == {"label"}

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "nli"
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert stub.GetModelMetadata(request).metadata["signature_def"].Unpack(signatures)
    outputs = set(signatures.signature_def["serving_default"].outputs)
    assert outputs == {"label", "label_names", "probabilities"}
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "nli"
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request)
    (status,) = answer.model_version_status
    assert status.state == status.AVAILABLE


def test_a_taken_port_is_named(server, served):
    with pytest.raises(OSError, match=f"port {server.port} .*--port"):
        Server(Versions(served), ServerOptions(port=server.port, no_grpc=True))
    with pytest.raises(OSError, match=f"port {server.grpc_port}; give another --grpc-port"):
        Server(Versions(served), ServerOptions(port=0, grpc_port=server.grpc_port))


def test_no_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no SavedModel"):
        load(tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.slow
def test_the_example_of_fill_mask_has_a_mask(run, tmp_path):
    folder = export(untrained(FillMask(top_k=2), run.path), tmp_path / "mlm")
    served = load(folder)
    example = example_of(served)
    answers = served.signatures["serving_default"](text=tf.constant([example]))
    assert answers["mask_start_byte"].numpy().tolist() == [[example.index("[MASK]")]]
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
            lines = [process.stdout.readline() for _ in range(4)]
            assert "reachable from this machine only; docs/deploy.md" in lines[0]
            page = re.search(r"browser: (http://127\.0\.0\.1:\d+/)\n", "".join(lines))[1]
            assert b"<h1>nli</h1>" in urllib.request.urlopen(page).read()
            example = next(line for line in lines if line.startswith("curl"))
            done = subprocess.run(example, shell=True, capture_output=True, text=True)
            assert len(json.loads(done.stdout)["predictions"]) == 1
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_a_run_is_exported_to_be_served_and_then_removed(finished):
    given = argparse.Namespace(folder=None, checkpoint=None, run=[str(finished("class").run)])
    with commands._folder_to_serve(given) as served:
        assert load(served).signatures["serving_default"](sentence=tf.constant(["a joy"]))[
            "probabilities"
        ].shape == (1, 2)
    assert not Path(served).exists()


@pytest.mark.parametrize("flags", [(), ("folder", "--run", "run"), ("--run", "run", "--checkpoint", "other")])
def test_one_thing_is_served(capfd, flags):
    code, _, err = run_command(capfd, "serve", *flags)
    assert code == 1 and "give the folder of an export, or --run, or --checkpoint" in err
