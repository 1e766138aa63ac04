"""The server under attack, over real sockets: framing, foreign pages, limits, clients that disconnect."""

import base64
import contextlib
import gzip
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
from servers import ask, grpc_error, predict_request, prediction_stub
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DT_INT8, DT_STRING

from bert_keras.savedmodels import reload
from bert_keras.savedmodels.server import Server, rest
from bert_keras.savedmodels.server.served import ROWS_AT_A_TIME, Call, RequestError, Served, load
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.savedmodels.verify import EXAMPLE, EXTRA
from bert_keras.tasks.options import MAX_TEXT, MESSAGE_PER_TEXT, ServerOptions

SPEC = tf.TensorSpec([None], tf.string, name="text")
PREDICT = "/v1/models/tiny:predict"
OPTIONS = ServerOptions(port=0, grpc_port=0, max_rows=500, max_text=1_000_000, max_seconds=3.0)


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
    with Server(Versions(served), OPTIONS, hosts=["model.test"]) as running:
        yield running


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
    "another model": ("POST", "/v1/models/other:predict", 404, "tiny version 1"),
    "another version": ("POST", "/v1/models/tiny/versions/7:predict", 404, "version 7"),
    "no address": ("GET", "/v1/model", 404, "/v1/models/tiny"),
    "a POST without a verb": ("POST", "/v1/models/tiny", 400, ":predict"),
    "a GET of predict": ("GET", PREDICT, 400, "POST"),
    **{method: (method, PREDICT, 405, "GET or POST") for method in ("OPTIONS", "PUT", "DELETE", "PATCH")},
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_addresses_and_methods(server, case):
    method, path, wanted, message = ADDRESSES[case]
    status, headers, answer = ask(server, path, GOOD if method == "POST" else None, method=method)
    assert status == wanted and message in json.dumps(answer)
    assert status == 200 or list(answer) == ["error"] and len(answer["error"]) < 500
    assert headers["Allow"] == ("GET, POST" if status == 405 else None)


def test_a_head_has_no_body(server):
    assert ask(server, PREDICT, method="HEAD")[::2] == (405, None)


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
    headers, wanted = SENDERS[case]
    status, answered, answer = ask(server, PREDICT, GOOD, headers=headers)
    assert status == wanted and "Access-Control-Allow-Origin" not in answered
    assert status == 200 or next(iter(headers)) in answer["error"] or case == "a form"


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
    body, wanted, message = TOO_MUCH[case]
    started = time.monotonic()
    status, _, answer = ask(server, PREDICT, body)
    assert time.monotonic() - started < 10
    assert status == wanted and message in answer["error"]


def test_a_packed_body_is_bounded(server):
    body = gzip.compress(b"[" * 50_000_000)
    assert len(body) < 100_000
    assert ask(server, PREDICT, body, headers={"Content-Encoding": "gzip"})[0] == 413


def still(variable):
    """True where nothing counts any more."""
    before = int(variable.numpy())
    time.sleep(0.3)
    return before > 0 and int(variable.numpy()) == before


def test_a_request_ends_when_its_time_is_over(server, served):
    started = time.monotonic()
    status, _, answer = ask(server, PREDICT, {"signature_name": "loop", "instances": ["a"]})
    assert (status, OPTIONS.max_seconds <= time.monotonic() - started < 10) == (504, True)
    assert "3 seconds" in answer["error"]
    until(lambda: still(served.loaded.steps))


@contextlib.contextmanager
def rest_client(server, signature):
    """A client that disconnects at the end of the block."""
    body = json.dumps({"signature_name": signature, "instances": ["a"] * 500}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body))
        yield


@contextlib.contextmanager
def grpc_client(server, signature):
    with prediction_stub(server) as stub:
        future = stub.Predict.future(request(signature, text=strings(500)))
        yield
        future.cancel()


@pytest.mark.parametrize("client", [rest_client, grpc_client])
@pytest.mark.parametrize(("signature", "counter"), [("loop", "steps"), ("slow", "calls")])
def test_a_client_that_leaves_stops_its_work(server, served, client, signature, counter):
    counter = getattr(served.loaded, counter)
    counter.assign(0)
    with client(server, signature):
        until(lambda: counter.numpy() > 0)
    until(lambda: still(counter))
    assert signature == "loop" or counter.numpy() < 500 / ROWS_AT_A_TIME


@pytest.mark.long
def test_a_client_that_does_not_read_is_disconnected(server):
    body = json.dumps({"instances": ["a " * 35_000, *["a"] * 31]}).encode()
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(post(f"Content-Length: {len(body)}", body=body))
        time.sleep(OPTIONS.max_seconds + 1)
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
    head, _, content = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(content) < int(re.search(rb"Content-Length: (\d+)", head)[1])


def test_a_stopped_request_makes_no_json(served, monkeypatch):
    """The time may run out after the model's last batch."""
    call = Call(OPTIONS)
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
    deadline = time.monotonic() + 2.5  # less than OPTIONS.max_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


TEXTS = [" ".join("abcdefg"[: i % 7]) for i in range(100)]


@pytest.mark.parametrize("signature", ["serving_default", "ragged"])
def test_rows_in_groups_are_answered_as_all_at_once(server, whole, signature):
    status, _, answer = ask(server, PREDICT, {"signature_name": signature, "inputs": {"text": TEXTS}})
    wanted = {name: reload.plain(value.numpy().tolist()) for name, value in whole[signature].items()}
    assert (status, answer) == (200, {"outputs": wanted})


def test_32_clients_at_once(served):
    running = Server(Versions(served), ServerOptions(port=0, no_grpc=True))
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
    answer = ask(server, "/v1/models/tiny/metadata")[2]
    signature = answer["metadata"]["signature_def"]["signature_def"]["ragged"]
    assert answer["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }


def test_the_error_of_a_damaged_example_does_not_repeat_it(server):
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"a secret text")
    row = {"b64": base64.b64encode(example.SerializeToString()[:-1]).decode()}
    status, _, answer = ask(server, PREDICT, {"signature_name": "examples", "instances": [row]})
    assert status == 400 and "Could not parse example input" in answer["error"]
    assert "secret" not in answer["error"]


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
    assert (code, err.partition("; ")[2]) == (1, f"{flag} must be {wanted}.\n")


def test_the_longest_message_is_one_that_grpc_can_count():
    longest = ServerOptions(max_text=MAX_TEXT).max_message
    assert longest < 2**31 <= longest + MESSAGE_PER_TEXT


# -----------------------------------------------------------------------------------------------------------
# gRPC


@pytest.fixture(scope="module")
def stub(server):
    with prediction_stub(server) as calls:
        yield calls


def request(signature="", *, model="tiny", version=None, label="", output_filter=(), **inputs):
    how = {"version": version, "label": label, "output_filter": output_filter}
    return predict_request(model, inputs, signature=signature, **how)


def strings(*sizes, values=(b"a",)):
    proto = TensorProto(dtype=DT_STRING, string_val=values)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


UNKNOWN_RANK = TensorProto(dtype=DT_STRING, string_val=[b"a"])
UNKNOWN_RANK.tensor_shape.unknown_rank = True
REFUSED = {
    "rows that unfold": (request(text=strings(9_999_999)), "text has 9,999,999 rows"),
    "columns that unfold": (request(text=strings(1, 9_999_999)), "9,999,999 elements"),
    "sizes that cancel out": (request(text=strings(0, 10**12)), "elements; send at most"),
    "text that unfolds": (
        request(text=strings(500, values=[b"a" * 10_000])),
        "the texts have 5,000,000 bytes",
    ),
    "a negative size": (request(text=strings(-1)), "give every size"),
    "no rank": (request(text=UNKNOWN_RANK), "give every size"),
    "too many inputs": (request(**{f"x{i}": strings(500) for i in range(100)}), "serving_default takes text"),
    "no input": (request(), "serving_default takes text; the request has none"),
    "a label": (request(label="stable", text=strings(1)), "Unrecognized servable version label"),
    "numbers over their type": (
        request(text=TensorProto(dtype=DT_INT8, int_val=[300])),
        "text has the data type DT_INT8; expected DT_STRING",
    ),
    "no known type": (request(text=TensorProto(dtype=99)), "text has the data type 99; expected"),
    "a number over an int8": (
        request("byte", number=TensorProto(dtype=DT_INT8, int_val=[300])),
        "number is not a complete TensorProto",
    ),
    "unknown signature": (request("x", text=strings(1)), "there is no signature 'x'"),
    "unknown output": (request(output_filter=["x"], text=strings(1)), "there is no output x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_grpc_refuses_before_it_unfolds(stub, case):
    refused, message = REFUSED[case]
    assert refused.ByteSize() < 20_000
    code, details = grpc_error(stub.Predict, refused)
    assert code == "INVALID_ARGUMENT" and message in details


@pytest.mark.parametrize("changes", [{"model": "other"}, {"version": 9}])
def test_grpc_does_not_find_another_model(stub, changes):
    code, details = grpc_error(stub.Predict, request(text=strings(1), **changes))
    assert code == "NOT_FOUND" and "this server has tiny version 1" in details


@pytest.mark.long
def test_grpc_ends_when_the_time_is_over(stub, served):
    code, details = grpc_error(stub.Predict, request("loop", text=strings(1)))
    assert code == "DEADLINE_EXCEEDED" and "no answer within 3 seconds" in details
    until(lambda: still(served.loaded.steps))


def test_grpc_says_what_to_call_instead(stub):
    from tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2

    for method, refused in (
        (stub.Classify, classification_pb2.ClassificationRequest()),
        (stub.Regress, regression_pb2.RegressionRequest()),
        (stub.MultiInference, inference_pb2.MultiInferenceRequest()),
    ):
        code, details = grpc_error(method, refused)
        assert code == "UNIMPLEMENTED" and "call Predict" in details


def test_parallel_requests_do_not_stop_each_other(server, stub):
    """TensorFlow's cancellation is global: a stopped request must not end its neighbour."""
    failures, ended = [], threading.Event()

    def asking():
        for _ in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            status = ask(server, PREDICT, {"instances": ["a b"] * 100})[0]
            failures.extend([status] if status != 200 else [])

    threads = [threading.Thread(target=asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        future = stub.Predict.future(request("slow", text=strings(500)))
        time.sleep(0.05)
        future.cancel()
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures
