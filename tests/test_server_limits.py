"""The development server under attack, over real sockets: framing, foreign pages, limits, clients that disconnect."""

import base64
import contextlib
import http.client
import itertools
import json
import re
import shutil
import signal
import socket
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from runs import run_command
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DT_INT8, DT_STRING

from bert_keras.errors import BertKerasError
from bert_keras.savedmodels import reload
from bert_keras.savedmodels.server import Server, rest
from bert_keras.savedmodels.server.served import ROWS_AT_A_TIME, Call, Limits, RequestError, Served, load
from bert_keras.savedmodels.verify import EXAMPLE, EXTRA
from bert_keras.tasks.options import MAX_TEXT

SPEC = tf.TensorSpec([None], tf.string, name="text")
PREDICT = "/v1/models/tiny:predict"
LIMITS = Limits(rows=500, text_bytes=1_000_000, seconds=3.0)


class Tiny(tf.Module):
    """Words of texts, in lists of a row; and a loop that counts its steps for as long as it is let."""

    def __init__(self):
        self.steps, self.calls = tf.Variable(0), tf.Variable(0)

    @tf.function(input_signature=[SPEC])
    def words(self, text):
        words = tf.strings.split(text)
        starts = tf.ragged.range(words.row_lengths())
        return {"word_text": words.to_tensor(b""), "word_start": tf.cast(starts, tf.int32).to_tensor(-1)}

    @tf.function(input_signature=[SPEC])
    def ragged(self, text):
        words = tf.strings.split(text)
        return {"word_text": words.values, "word_row_splits": words.row_splits}

    @tf.function(input_signature=[SPEC])
    def loop(self, text):
        def step(i, x):
            self.steps.assign_add(1)
            return i + 1, tf.tanh(x @ x)

        i, _ = tf.while_loop(lambda i, _: i < 100_000, step, [0, tf.ones([300, 300])], parallel_iterations=1)
        return {"count": tf.fill(tf.shape(text), i)}

    @tf.function(input_signature=[SPEC])
    def slow(self, text):
        self.calls.assign_add(1)
        x = tf.fill([700, 700], tf.cast(tf.shape(text)[0], tf.float32))
        for _ in range(20):
            x = tf.tanh(x @ x)
        return {"sum": tf.fill(tf.shape(text), tf.reduce_sum(x))}

    @tf.function(input_signature=[tf.TensorSpec([], tf.int8, name="number")])
    def byte(self, number):
        return {"number": number}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def examples(self, examples):
        return tf.io.parse_example(examples, {"text": tf.io.FixedLenFeature([], tf.string)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, tiny = tmp_path_factory.mktemp("server") / "tiny", Tiny()
    signatures = {"serving_default": tiny.words} | {
        name: getattr(tiny, name) for name in ("ragged", "loop", "slow", "byte", "examples")
    }
    tf.saved_model.save(tiny, str(folder / "1"), signatures=signatures)
    (folder / "1" / EXTRA).mkdir(exist_ok=True)
    (folder / "1" / EXTRA / EXAMPLE).write_text('{"text": "a text"}')  # as an export of ours has it
    return folder


@pytest.fixture(scope="module")
def served(folder):
    return load(folder)


@pytest.fixture(scope="module")
def whole(served):
    """Answers to all of TEXTS at once. No server runs yet: what stops a request would stop this too."""
    signatures = ("serving_default", "ragged")
    return {name: served.signatures[name](text=tf.constant(TEXTS)) for name in signatures}


@pytest.fixture(scope="module")
def server(served, whole):
    pytest.importorskip("tensorflow_serving")
    with Server(served, port=0, grpc_port=0, limits=LIMITS, hosts=["model.test"]) as running:
        yield running


def ask(server, method, path, body=None, **headers):
    """Status, headers and content."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        body = json.dumps(body) if isinstance(body, dict | list) else body
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def raw(server, data, *, end=False):
    """All bytes that come back. end: the client sends no more."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
        return received


GOOD = json.dumps({"instances": ["a text"]}).encode()


def post(*headers, body=b""):
    lines = [f"POST {PREDICT} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


HIDDEN = post(f"Content-Length: {len(GOOD)}", body=GOOD)  # a second request, behind or inside the first
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
FRAMING = {
    "length and chunks": post("Content-Length: 5", "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN),
    "chunks and length": post(
        "Transfer-Encoding: chunked", f"Content-Length: {len(CHUNKS)}", body=CHUNKS + HIDDEN
    ),
    "two lengths": post(f"Content-Length: {len(GOOD)}", "Content-Length: 200", body=GOOD + HIDDEN),
    "two lengths in one": post(f"Content-Length: {len(GOOD)}, 200", body=GOOD + HIDDEN),
    "a signed length": post(f"Content-Length: +{len(GOOD)}", body=GOOD + HIDDEN),
    "unknown coding": post("Transfer-Encoding: xchunked", body=CHUNKS + HIDDEN),
    "space before a colon": post(f"Content-Length : {len(GOOD)}", body=GOOD + HIDDEN),
    "two hosts": post("Host: evil.test", f"Content-Length: {len(GOOD)}", body=GOOD),
}


@pytest.mark.parametrize("case", FRAMING)
def test_ambiguous_framing_is_refused_and_the_rest_is_not_run(server, case):
    received = raw(server, FRAMING[case])
    assert received.startswith(b"HTTP/1.") and received.split()[1] == b"400"
    assert received.count(b"HTTP/1.") == 1 and b"predictions" not in received


@pytest.mark.parametrize(
    "data",
    [
        post("Content-Length: 500", body=GOOD),
        post("Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n" % (len(GOOD), GOOD)),
    ],
)
def test_a_body_cut_short_gets_no_answer(server, data):
    received = raw(server, data, end=True)
    assert b" 200 " not in received and b"predictions" not in received


def test_chunks_alone_and_pipelined_requests_are_answered(server):
    received = raw(server, post("Transfer-Encoding: chunked", body=CHUNKS) + HIDDEN)
    assert received.count(b" 200 ") == 2 and received.count(b"predictions") == 2


ADDRESSES = {
    "5,000 digits": ("GET", f"/v1/models/tiny/versions/{'9' * 5000}", 400, "Failed to convert version"),
    "over int64": ("GET", f"/v1/models/tiny/versions/{2**63}", 400, "Failed to convert version"),
    "a long name": ("GET", f"/v1/models/{'a' * 5000}", 404, "there is no model"),
    "a query": ("GET", "/v1/models/tiny?x=1", 200, "AVAILABLE"),
    "a query of predict": ("POST", f"{PREDICT}?x=1", 200, "predictions"),
    "a label": ("GET", "/v1/models/tiny/labels/stable", 400, "Unrecognized servable version label: stable"),
    "a label's predict": ("POST", "/v1/models/tiny/labels/stable:predict", 400, "Unrecognized servable"),
    "classify": ("POST", "/v1/models/tiny:classify", 501, "/v1/models/tiny:predict"),
    "regress": ("POST", "/v1/models/tiny/versions/1:regress", 501, "/v1/models/tiny:predict"),
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_addresses(server, case):
    method, path, status, wanted = ADDRESSES[case]
    found, headers, content = ask(server, method, path, GOOD if method == "POST" else None)
    assert (found, headers["Content-Type"].partition(";")[0]) == (status, "application/json")
    assert wanted in content.decode() and len(content) < 600
    assert status == 200 or list(json.loads(content)) == ["error"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
def test_other_methods_get_a_json_error(server, method):
    status, headers, content = ask(server, method, PREDICT)
    assert (status, headers["Content-Type"].partition(";")[0]) == (405, "application/json")
    assert headers["Allow"] == "GET, POST"
    assert content == b"" if method == "HEAD" else "GET or POST" in json.loads(content)["error"]


JSON = "application/json"
SENDERS = {
    "the address": ({"Host": "127.0.0.1"}, 200),
    "with a port": ({"Host": "127.0.0.1:8501"}, 200),
    "localhost": ({"Host": "LocalHost:1"}, 200),
    "IPv6": ({"Host": "[::1]:8501"}, 200),
    "an allowed name": ({"Host": "model.test:8501"}, 200),
    "a page of this machine": ({"Origin": "http://localhost:3000", "Content-Type": JSON}, 200),
    "a rebound name": ({"Host": "evil.test"}, 403),
    "a longer name": ({"Host": "localhost.evil.test"}, 403),
    "a user": ({"Host": "localhost@evil.test"}, 403),
    "no name": ({"Host": ""}, 403),
    "a foreign page": ({"Origin": "http://evil.test", "Content-Type": JSON}, 403),
    "a page of a file": ({"Origin": "null", "Content-Type": JSON}, 403),
    "a form": ({"Origin": "http://localhost:3000", "Content-Type": "text/plain"}, 403),
}


@pytest.mark.parametrize("case", SENDERS)
def test_allowed_hosts_and_origins(server, case):
    headers, status = SENDERS[case]
    found, answered, content = ask(server, "POST", PREDICT, GOOD, **headers)
    assert found == status and "Access-Control-Allow-Origin" not in answered
    assert status == 200 or next(iter(headers)) in json.loads(content)["error"] or case == "a form"


TOO_MUCH = {
    "rows": (json.dumps({"instances": ["a"] * 200_000}), 400, "instances has 200,000 rows"),
    "rows of a column": (json.dumps({"inputs": {"text": ["a"] * 501}}), 400, "text has 501 rows"),
    "text": (json.dumps({"instances": ["é" * 250_000] * 3}), 400, "the texts have 1,500,000 bytes"),
    "lists": ('{"instances": [[' + "[]," * 2_100_000 + "[]]]}", 400, "over 1,100,000 brackets"),
    "numbers": ('{"instances": [[' + "0," * 2_100_000 + "0]]}", 400, "over 2,000,000 values"),
    "a body of lists": ("[" + "[]," * 21_000_000 + "[]]", 413, "the body is too long"),
    "an answer of one batch": (
        json.dumps({"instances": ["a " * 400_000, *["a"] * 31]}),
        400,
        "the answer has 25,600,000 numbers and texts, padding included",
    ),
    "an answer of padding": (
        json.dumps({"instances": ["a " * 10_000, *["a"] * 499]}),
        400,
        "and may have at most 5,000,000; send fewer rows",
    ),
    "deep": ('{"inputs": ' + "[" * 33 + "]" * 33 + "}", 400, "too deep"),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_oversized_requests_are_refused_at_once(server, case):
    body, status, wanted = TOO_MUCH[case]
    started = time.monotonic()
    found, _, content = ask(server, "POST", PREDICT, body)
    assert time.monotonic() - started < 10
    assert found == status and wanted in json.loads(content)["error"]


def test_a_packed_body_is_bounded(server):
    import gzip

    body = gzip.compress(b"[" * 50_000_000)
    status, _, _ = ask(server, "POST", PREDICT, body, Content_Encoding="gzip")
    assert len(body) < 100_000 and status == 413


def still(variable):
    """True where nothing counts any more."""
    before = int(variable.numpy())
    time.sleep(0.3)
    return before > 0 and int(variable.numpy()) == before


def test_a_request_ends_when_its_time_is_over(server, served):
    started = time.monotonic()
    status, _, content = ask(server, "POST", PREDICT, {"signature_name": "loop", "instances": ["a"]})
    assert (status, LIMITS.seconds <= time.monotonic() - started < 10) == (504, True)
    assert "3 seconds" in json.loads(content)["error"]
    until(lambda: still(served.loaded.steps))


@pytest.mark.parametrize(("signature", "counter"), [("loop", "steps"), ("slow", "calls")])
def test_a_client_that_leaves_stops_its_work(server, served, signature, counter):
    counter = getattr(served.loaded, counter)
    counter.assign(0)
    body = json.dumps({"signature_name": signature, "instances": ["a"] * 500}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body))
        until(lambda: counter.numpy() > 0)
    until(lambda: still(counter))
    assert signature == "loop" or counter.numpy() < 500 / ROWS_AT_A_TIME


@pytest.mark.long
def test_a_client_that_does_not_read_is_disconnected(server):
    body = json.dumps({"instances": ["a " * 35_000, *["a"] * 31]}).encode()
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body))
        time.sleep(LIMITS.seconds + 1)
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    head, _, content = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(content) < int(re.search(rb"Content-Length: (\d+)", head)[1])


def test_a_stopped_request_makes_no_json(served, monkeypatch):
    """The time may run out after the model's last batch."""
    call = Call(LIMITS)
    monkeypatch.setattr(rest, "_jsonable", None)

    def predict(self, signature, inputs, call):
        call.stop()
        return {"word_text": np.array([b"a"], object)}

    monkeypatch.setattr(Served, "predict", predict)
    with pytest.raises(RequestError, match="the request was stopped"):
        rest.answer(served, GOOD, call)


def test_metadata_is_read_before_the_server_listens(folder, tmp_path):
    """The graph of a frozen export has up to 2 GB."""
    served = load(shutil.copytree(folder, tmp_path / "tiny"))
    (tmp_path / "tiny" / "1" / "saved_model.pb").unlink()
    signatures = rest.metadata_of(served)["metadata"]["signature_def"]["signature_def"]
    assert {*signatures} >= {"serving_default", "ragged"}


def until(condition):
    deadline = time.monotonic() + 2.5  # less than LIMITS.seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


TEXTS = [" ".join("abcdefg"[: i % 7]) for i in range(100)]


@pytest.mark.parametrize("signature", ["serving_default", "ragged"])
def test_rows_in_groups_are_answered_as_all_at_once(server, whole, signature):
    status, _, content = ask(
        server, "POST", PREDICT, {"signature_name": signature, "inputs": {"text": TEXTS}}
    )
    assert status == 200
    wanted = {name: reload.plain(value.numpy().tolist()) for name, value in whole[signature].items()}
    assert json.loads(content)["outputs"] == wanted


def test_32_clients_at_once(served):
    running = Server(served, port=0, grpc_port=None)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=0.5))
            for _ in range(32)  # before anything is accepted
        ]
        with running:
            for client in clients:
                client.settimeout(10)
                client.sendall(HIDDEN)
            assert all(client.recv(100).startswith(b"HTTP/1.1 200") for client in clients)
            started = time.monotonic()  # with 32 connections that are kept alive
        assert time.monotonic() - started < 10  # an idle connection is kept for a minute


def test_metadata_has_the_names_of_the_protos(server):
    _, _, content = ask(server, "GET", "/v1/models/tiny/metadata")
    answer = json.loads(content)
    signature = answer["metadata"]["signature_def"]["signature_def"]["ragged"]
    assert answer["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }


def damaged():
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"a secret text")
    return example.SerializeToString()[:-1]


def test_the_error_of_a_damaged_example_does_not_repeat_it(server):
    row = {"b64": base64.b64encode(damaged()).decode()}
    status, _, content = ask(server, "POST", PREDICT, {"signature_name": "examples", "instances": [row]})
    assert status == 400 and "Could not parse example input" in json.loads(content)["error"]
    assert b"secret" not in content


@pytest.mark.parametrize("changes", [{"rows": 0}, {"text_bytes": -1}, {"seconds": float("nan")}])
def test_a_limit_is_over_0(changes):
    with pytest.raises(BertKerasError, match=f"limit of {next(iter(changes))} is .*above 0"):
        Limits(**changes)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_command_ends_cleanly(folder, capfd, monkeypatch, name):
    kept = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Server, "wait", lambda self: signal.raise_signal(getattr(signal, name)))
    try:
        code, out, err = run_command(capfd, "serve", folder, "--port", "0", "--no-grpc", "--max-rows", "5")
    finally:
        signal.signal(signal.SIGTERM, kept)
    assert (code, err) == (0, "") and "REST on 127.0.0.1" in out


@pytest.mark.parametrize(
    ("flag", "value", "wanted"),
    [
        ("--max-rows", "0", "a whole number over 0"),
        ("--port", "70000", "a whole number of at least 0 and at most 65,535"),
        ("--grpc-port", "-1", "a whole number of at least 0 and at most 65,535"),
        ("--max-text", "268427264", "a whole number over 0 and at most 268,427,263"),
        ("--max-seconds", "1e10", "a finite number over 0 and at most 86,400"),
    ],
)
def test_the_command_refuses_what_no_server_can_have(folder, capfd, flag, value, wanted):
    code, _, err = run_command(capfd, "serve", folder, flag, value)
    name = flag.removeprefix("--").replace("-", "_")
    assert (code, err.partition("; ")[2]) == (1, f"{name} must be {wanted}.\n")


def test_the_longest_message_is_one_that_grpc_can_count():
    assert Limits(text_bytes=MAX_TEXT).message_bytes < 2**31 <= Limits(text_bytes=MAX_TEXT + 1).message_bytes


# -----------------------------------------------------------------------------------------------------------
# gRPC


@pytest.fixture(scope="module")
def stub(server):
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def predict_request(signature="", label="", **inputs):
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "tiny", signature
    if label:
        request.model_spec.version_label = label
    for name, proto in inputs.items():
        request.inputs[name].CopyFrom(proto)
    return request


def strings(*sizes, values=(b"a",)):
    proto = TensorProto(dtype=DT_STRING, string_val=values)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


UNKNOWN_RANK = TensorProto(dtype=DT_STRING, string_val=[b"a"])
UNKNOWN_RANK.tensor_shape.unknown_rank = True
REFUSED = {
    "rows that unfold": (predict_request(text=strings(9_999_999)), "text has 9,999,999 rows"),
    "columns that unfold": (predict_request(text=strings(1, 9_999_999)), "9,999,999 elements"),
    "sizes that cancel out": (predict_request(text=strings(0, 10**12)), "elements; send at most"),
    "text that unfolds": (
        predict_request(text=strings(500, values=[b"a" * 10_000])),
        "the texts have 5,000,000 bytes",
    ),
    "a negative size": (predict_request(text=strings(-1)), "give every size"),
    "no rank": (predict_request(text=UNKNOWN_RANK), "give every size"),
    "too many inputs": (
        predict_request(**{f"x{i}": strings(500) for i in range(100)}),
        "serving_default takes text",
    ),
    "a label": (predict_request(label="stable", text=strings(1)), "Unrecognized servable version label"),
    "numbers over their type": (
        predict_request(text=TensorProto(dtype=DT_INT8, int_val=[300])),
        "text has the data type DT_INT8; expected DT_STRING",
    ),
    "no known type": (predict_request(text=TensorProto(dtype=99)), "text has the data type 99; expected"),
    "a number over an int8": (
        predict_request("byte", number=TensorProto(dtype=DT_INT8, int_val=[300])),
        "number is not a complete TensorProto",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_grpc_refuses_before_it_unfolds(stub, case):
    import grpc

    request, wanted = REFUSED[case]
    assert request.ByteSize() < 20_000
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(request, timeout=10)
    assert (caught.value.code(), wanted in caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.long
def test_grpc_ends_when_the_time_is_over(stub, served):
    import grpc

    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(predict_request("loop", text=strings(1)), timeout=15)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no answer within 3 seconds" in caught.value.details()
    until(lambda: still(served.loaded.steps))


@pytest.mark.parametrize(("signature", "counter"), [("loop", "steps"), ("slow", "calls")])
def test_a_grpc_client_that_leaves_stops_its_work(stub, served, signature, counter):
    counter = getattr(served.loaded, counter)
    counter.assign(0)
    future = stub.Predict.future(predict_request(signature, text=strings(500)))
    until(lambda: counter.numpy() > 0)
    future.cancel()
    until(lambda: still(counter))
    assert signature == "loop" or counter.numpy() < 500 / ROWS_AT_A_TIME


def test_grpc_says_what_to_call_instead(stub):
    import grpc
    from tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2

    for method, request in (
        (stub.Classify, classification_pb2.ClassificationRequest()),
        (stub.Regress, regression_pb2.RegressionRequest()),
        (stub.MultiInference, inference_pb2.MultiInferenceRequest()),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            method(request, timeout=10)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "call Predict" in caught.value.details()


def test_parallel_requests_do_not_stop_each_other(server, stub):
    """TensorFlow's cancellation is global: a stopped request must not end its neighbour."""
    failures, ended = [], threading.Event()

    def asking():
        for _ in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            status, _, _ = ask(server, "POST", PREDICT, {"instances": ["a b"] * 100})
            failures.extend([status] if status != 200 else [])

    threads = [threading.Thread(target=asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        future = stub.Predict.future(predict_request("slow", text=strings(500)))
        time.sleep(0.05)
        future.cancel()
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures
