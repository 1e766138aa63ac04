"""Versions of a served model: those that models.config asks for, warmed up, loaded and retired while the server answers."""

import atexit
import json
import os
import re
import resource
import shutil
import signal
import threading
import time
from pathlib import Path

import jobs
import pytest
import tensorflow as tf
from google.protobuf import text_format
from servers import ask, predict_request, prediction_stub

from bert_keras.errors import BertKerasError
from bert_keras.savedmodels.export import prediction_log, write_warmup
from bert_keras.savedmodels.model_card import server_files
from bert_keras.savedmodels.server import Server
from bert_keras.savedmodels.server.log import one_line_exceptions
from bert_keras.savedmodels.server.served import ROWS_AT_A_TIME, load
from bert_keras.savedmodels.server.versions import Versions, Watcher
from bert_keras.savedmodels.serving_protos import MODELS, WARMUP
from bert_keras.savedmodels.verify import EXTRA
from bert_keras.tasks.options import ServerOptions

PREDICT = "/v1/models/tiny:predict"
REST_ALONE = ServerOptions(port=0, no_grpc=True)
SPEC = tf.TensorSpec([None], tf.string, name="text")


class Numbered(tf.Module):
    """Its number, and the calls that it has answered; and an answer that takes a moment."""

    def __init__(self, number):
        self.number, self.calls = tf.constant(number), tf.Variable(0)

    @tf.function(input_signature=[SPEC])
    def answer(self, text):
        self.calls.assign_add(1)
        return {"number": tf.fill(tf.shape(text), self.number)}

    @tf.function(input_signature=[SPEC])
    def slow(self, text):
        x = tf.while_loop(
            lambda i, x: i < 300, lambda i, x: (i + 1, tf.tanh(x @ x)), [0, tf.ones([300, 300])]
        )[1]
        return {"number": tf.fill(tf.shape(text), self.number) + tf.cast(x[0, 0] * 0, tf.int32)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The versions 1 to 3, each with two requests that warm it up."""
    folder = tmp_path_factory.mktemp("versions") / "tiny"
    for number in (1, 2, 3):
        module = Numbered(number)
        signatures = {"serving_default": module.answer, "slow": module.slow}
        tf.saved_model.save(module, str(folder / str(number)), signatures=signatures)
        (folder / str(number) / EXTRA).mkdir()
        write_warmup(folder / str(number) / EXTRA / WARMUP, {"text": ["a"]}, name="tiny")
    return folder


@pytest.fixture
def base(made, tmp_path):
    """A folder to which `add` copies versions."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    return folder


def add(made, base, *numbers):
    for number in numbers:
        shutil.copytree(made / str(number), base / f"copy-{number}")
        os.rename(base / f"copy-{number}", base / str(number))


def config(fields):
    return f'model_config_list {{ config {{ name: "tiny" base_path: "/models/tiny" {fields} }} }}'


@pytest.mark.parametrize(
    ("fields", "at_first", "later"),
    [
        (None, [2], [3]),
        ("", [2], [3]),
        ("model_version_policy { latest { num_versions: 2 } }", [1, 2], [2, 3]),
        ("model_version_policy { all {} }", [1, 2], [1, 2, 3]),
        ("model_version_policy { specific { versions: 1 versions: 3 } }", [1], [1, 3]),
    ],
)
def test_models_config_chooses_the_versions(fields, at_first, later, made, base):
    add(made, base, 1, 2)
    if fields is not None:
        (base / MODELS).write_text(config(fields))
    watcher = Watcher(base)
    assert [*watcher.versions.served] == at_first
    add(made, base, 3)
    watcher.look()
    assert [*watcher.versions.served] == later


def test_a_version_is_loaded_when_it_is_whole_and_the_last_one_stays(made, base):
    lines = []
    add(made, base, 1)
    watcher = Watcher(base, log=lines.append)
    add(made, base, 2)
    data = (base / "2" / "saved_model.pb").read_bytes()
    (base / "2" / "saved_model.pb").write_bytes(data[:1000])
    for _ in range(3):
        watcher.look()
    assert [*watcher.versions.served] == [1]
    assert len(lines) == 1 and "version 2 cannot be loaded" in lines[0] and "\n" not in lines[0]
    (base / "2" / "saved_model.pb").write_bytes(data)
    watcher.look()
    assert [*watcher.versions.served] == [2] and lines[1:] == ["tiny: now version 2"]
    shutil.rmtree(base / "2")
    watcher.look()
    assert [*watcher.versions.served] == [1], "as after a roll-back"
    shutil.rmtree(base / "1")
    with pytest.raises(BertKerasError, match="no SavedModel"):
        watcher.look()
    assert [*watcher.versions.served] == [1]


def test_labels_of_models_config_name_versions(made, base):
    add(made, base, 1, 2)
    labels = 'version_labels { key: "stable" value: 1 }'
    (base / MODELS).write_text(config(f"{labels} model_version_policy {{ all {{}} }}"))
    with Server(Watcher(base).versions, REST_ALONE) as server:
        found = {}
        for path in ("tiny", "tiny/labels/stable", "tiny/versions/2", "tiny/versions/7", "tiny/labels/new"):
            status, _, answer = ask(server, f"/v1/models/{path}:predict", {"instances": ["a"]})
            found[path] = answer["predictions"] if status == 200 else (status, answer["error"])
        states = ask(server, "/v1/models/tiny")[2]["model_version_status"]
    assert [found[path] for path in [*found][:3]] == [[2], [1], [2]]
    assert found["tiny/versions/7"] == (
        404,
        "there is no model tiny version 7; this server has tiny versions 1, 2.",
    )
    assert found["tiny/labels/new"][0] == 400 and "the labels are stable" in found["tiny/labels/new"][1]
    assert [(one["version"], one["state"]) for one in states] == [("2", "AVAILABLE"), ("1", "AVAILABLE")]


WRONG = {
    config("logging_config { }"): '"bert_keras.serving.ModelConfig" has no field named "logging_config"',
    config("model_type: TENSORFLOW"): 'no field named "model_type"',
    config('model_platform: "torch"'): "model_platform is 'torch'",
    config("model_version_policy { latest {} all {} }"): "model_version_policy has latest and all",
    config("model_version_policy { specific {} }"): "no version in `specific`",
    config("model_version_policy { newest {} }"): 'no field named "newest"',
    config("model_version_policy { latest { num_versions: -1 } }"): "-1",
    config("} config { "): "has 2 models",
    "": "has 0 models",
    "custom_model_config { }": 'no field named "custom_model_config"',
    "{": "1:1",
    config("model_version_policy { specific { versions: 7 } }"): "asks for the versions 7; the folder has 1",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_models_config_is_refused(text, made, base):
    add(made, base, 1)
    (base / MODELS).write_text(text)
    with pytest.raises(BertKerasError) as error:
        Watcher(base)
    assert WRONG[text] in str(error.value) and MODELS in str(error.value)


def test_the_messages_are_those_of_tensorflow_serving():
    """What its own classes read and write is what ours read and write."""
    configs = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    from bert_keras.savedmodels import serving_protos

    text = config(
        'version_labels { key: "a" value: 2 } model_version_policy { specific { versions: [1, 3] } }'
    )
    texts = [
        text,
        server_files("tiny")[MODELS],
        config("model_version_policy { latest { num_versions: 2 } }"),
    ]
    for text in (*texts, config("model_version_policy { all {} }")):
        theirs = text_format.Parse(text, configs.ModelServerConfig())
        ours = text_format.Parse(text, serving_protos.ModelServerConfig())
        assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    theirs = logs.PredictionLog.FromString(prediction_log({"text": ["a"], "other": ["b"]}, name="tiny"))
    ours = serving_protos.PredictionLog.FromString(theirs.SerializeToString())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    for field in serving_protos.PredictionLog.DESCRIPTOR.fields:
        assert logs.PredictionLog.DESCRIPTOR.fields_by_name[field.name].number == field.number


# BatchingParameters of tensorflow_serving/servables/tensorflow/session_bundle_config.proto at commit 9d981c5 (2026-07-30): no
# package has this message, so its fields stand here. The wrapped types hold one field, `value`.
WRAPPED = (
    "max_batch_size batch_timeout_micros max_enqueued_batches num_batch_threads thread_pool_name "
    "enable_large_batch_splitting max_execution_batch_size"
).split()
PLAIN = ("allowed_batch_sizes", "pad_variable_length_inputs")


def test_the_batching_parameters_take_the_requests_that_our_server_takes():
    text = re.sub("#.*", "", server_files("tiny")["batching_parameters.txt"])
    found = dict(re.findall(r"(\w+) \{ value: (\w+) \}\n", text))
    assert {*found} <= {*WRAPPED} and re.sub(r"\w+ \{ value: \w+ \}", "", text).split() == []
    assert not {*PLAIN} & {*found}
    batch, longest, queue = (
        int(found[name]) for name in ("max_execution_batch_size", "max_batch_size", "max_enqueued_batches")
    )
    assert found["enable_large_batch_splitting"] == "true", "without it, a larger request is refused"
    assert (batch, longest) == (ROWS_AT_A_TIME, ServerOptions.max_rows)
    assert batch * queue >= longest, "the parts of a request have room in the queue"


# -----------------------------------------------------------------------------------------------------------
# Requests that warm a version up


def test_warm_up_requests_run_before_the_first_answer(made, base):
    add(made, base, 1)
    served = Watcher(base / "1").versions.newest  # a version alone
    assert served.loaded.calls.numpy() == 2 and served.name == "tiny"
    assert load(base).loaded.calls.numpy() == 0


def records(*data):
    def write(path):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for one in data:
                writer.write(one)

    return write


BAD_WARMUP = {
    "another kind": (records(b"\x12\x02\x0a\x00"), "record 0: a classify_log; give predict_log"),
    "no record": (records(b"\xff\xff"), "record 0"),
    "an empty record": (records(b""), "record 0: a record without a request"),
    "another input": (
        records(prediction_log({"txt": ["a"]}, name="tiny")),
        "takes text; the request has txt",
    ),
    "too many": (records(*[prediction_log({"text": ["a"]}, name="tiny")] * 1001), "over 1,000 records"),
    "damage": (lambda path: path.write_bytes(path.read_bytes()[:-3]), "is damaged"),
}


@pytest.mark.parametrize("case", BAD_WARMUP)
def test_wrong_warm_up_requests_are_refused(case, made, base):
    write, message = BAD_WARMUP[case]
    add(made, base, 1)
    write(base / "1" / EXTRA / WARMUP)
    with pytest.raises(BertKerasError, match=re.escape(message)) as error:
        Watcher(base)
    assert WARMUP in str(error.value) and "\n" not in str(error.value)


# -----------------------------------------------------------------------------------------------------------
# A server that runs


def test_a_new_version_takes_over_without_a_refused_request(made, base):
    add(made, base, 1)
    ended, answers = threading.Event(), []

    def asking(server):
        while not ended.is_set():
            answers.append(ask(server, PREDICT, {"instances": ["a"]})[::2])

    watcher = Watcher(base, seconds=0.05)
    with watcher, Server(watcher.versions, REST_ALONE) as server:
        client = threading.Thread(target=asking, args=(server,))
        client.start()
        add(made, base, 2)
        until = time.monotonic() + 60
        while (200, {"predictions": [2]}) not in answers[-1:] and time.monotonic() < until:
            time.sleep(0.01)
        ended.set()
        client.join()
    numbers = [answer["predictions"][0] for status, answer in answers if status == 200]
    assert len(numbers) == len(answers) and numbers == sorted(numbers) and {*numbers} == {1, 2}


@pytest.fixture(scope="module")
def logged(made):
    """A server with a page that may ask, and its lines."""
    pytest.importorskip("tensorflow_serving")
    lines = []
    options = ServerOptions(port=0, grpc_port=0)
    with Server(Versions(load(made)), options, origins=["http://page.test:3000"], log=lines.append) as server:
        yield server, lines


def lines_after(lines, count=1):
    until = time.monotonic() + 20
    while len(lines) < count and time.monotonic() < until:
        time.sleep(0.01)
    return [re.sub(r"\d+ ms", "N ms", line) for line in lines]


def test_each_request_is_a_line(logged, made):
    server, lines = logged
    lines.clear()
    ask(server, PREDICT, {"instances": ["a"]})
    ask(server, "/v1/models/%C3%A9%0aGET")
    with prediction_stub(server) as stub:
        stub.Predict(predict_request("tiny", {"text": ["a"]}))
    answered = "N ms version=3 signature=serving_default rows=1"
    wanted = [
        f"POST {PREDICT} 200 {answered}",
        "GET /v1/models/%C3%A9%0aGET 404 N ms",
        f"gRPC Predict OK {answered}",
    ]
    assert sorted(lines_after(lines, 3)) == sorted(wanted)
    silent = []
    with Server(
        Versions(load(made)), ServerOptions(port=0, no_grpc=True, no_access_log=True), log=silent.append
    ) as quiet:
        ask(quiet, PREDICT, {"instances": ["a"]})
    assert silent == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_is_answered_under_any_name(logged, path):
    status, _, answer = ask(logged[0], path, headers={"Host": "10.0.0.7:8501"})
    assert (status, answer) == (200, {"status": "ok"})


PAGES = {
    "the page": ("http://page.test:3000", "POST", 200),
    "its preflight": ("http://page.test:3000", "OPTIONS", 204),
    "another port": ("http://page.test:3001", "POST", 403),
    "another scheme": ("https://page.test:3000", "OPTIONS", 405),
    "another page": ("http://evil.test", "POST", 403),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_page_reads_answers_only_if_a_flag_allows_it(logged, case):
    origin, method, wanted = PAGES[case]
    headers = {"Origin": origin, "Content-Type": "application/json", "Access-Control-Request-Method": "POST"}
    body = json.dumps({"instances": ["a"]}).encode() if method == "POST" else None
    status, answered, _ = ask(logged[0], PREDICT, body, method=method, headers=headers)
    allowed = {200: origin, 204: origin}.get(wanted)
    assert (status, answered["Access-Control-Allow-Origin"]) == (wanted, allowed)
    assert (answered["Access-Control-Allow-Headers"] == "Content-Type") == (wanted == 204)


@pytest.mark.parametrize("origin", ["*", "page.test", "http://page.test/", "null", "http://a b"])
def test_an_origin_of_another_form_is_refused(origin, made):
    with pytest.raises(BertKerasError, match="allow_origin is .*http://localhost:3000"):
        Server(Versions(load(made)), REST_ALONE, origins=[origin])


UNKNOWN_KEYS = {
    "an input": ({"instances": [{"txt": "a"}]}, "an object with text; instance 0 has 'txt'"),
    "in a later row": ({"instances": ["a", {"txt": "a"}]}, "an object with text; instance 0 is a str"),
    "one too many": ({"instances": [{"text": "a", "x": 1}]}, "instance 0 has 'text', 'x'"),
    "a column": ({"inputs": {"txt": ["a"]}}, "takes text; the request has txt"),
    "of the body": (
        {"signature": "slow", "instances": ["a"]},
        "'signature'; a request has signature_name, instances, inputs",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN_KEYS)
def test_an_unknown_key_is_named_with_the_wanted_ones(logged, case):
    body, wanted = UNKNOWN_KEYS[case]
    status, _, answer = ask(logged[0], PREDICT, body)
    assert status == 400 and wanted in answer["error"]


def test_out_of_file_descriptors_is_one_line_and_the_server_goes_on(made):
    lines, soft_hard = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    with Server(Versions(load(made)), REST_ALONE, log=lines.append) as server:
        os.close(free := os.dup(0))
        answers = []
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (free + 1, soft_hard[1])
        )  # the client's socket takes the last one
        try:
            client = threading.Thread(
                target=lambda: answers.append(ask(server, PREDICT, {"instances": ["a"]})[0])
            )
            client.start()
            first = lines_after(lines)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, soft_hard)
        client.join()
    assert answers == [200]
    assert len(first) == 1 and re.match(
        r"warning: socket.accept\(\) out of system resource: .*Too many open", first[0]
    )


def test_an_error_that_goes_on_is_not_repeated():
    lines = []
    handle = one_line_exceptions(lines.append)
    for _ in range(3):
        handle(None, {"message": "no", "exception": OSError(24, "Too many\nopen files")})
    assert len(lines) == 1 and "\n" not in lines[0]


def serve(arguments):
    """`bert-keras serve` as the entry point runs it; prints a line if Python comes to its own end."""
    import sys

    from bert_keras.cli.main import main

    atexit.register(print, "collected", flush=True)
    sys.argv = ["bert-keras", "serve", *arguments]
    main()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_the_requests_that_run(number, made):
    """Python's last garbage collection goes through the graphs of the model for seconds; a container is killed meanwhile."""
    code = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import test_server_versions as t; t.serve(sys.argv[1:])"
    arguments = ["-c", code, made, "--port", "0", "--no-grpc", "--host", "0.0.0.0"]
    with jobs.started(arguments, workers=1, fresh=True) as (process,):
        out, until = Path(process.paths[0]), time.monotonic() + 120
        while "curl" not in out.read_text() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        warning = "warning: other machines reach this server on 0.0.0.0: no password, no TLS\n"
        assert out.read_text().startswith(warning)
        port = int(re.search(r"REST on 127.0.0.1:(\d+)", out.read_text())[1])
        server = type("Running", (), {"port": port})
        answers = []
        body = {"signature_name": "slow", "instances": ["a"]}
        client = threading.Thread(target=lambda: answers.append(ask(server, PREDICT, body)[::2]))
        client.start()
        time.sleep(0.3)
        process.send_signal(number)
        (ended,) = jobs.ended([process])
        client.join()
    assert answers == [(200, {"predictions": [3]})]
    assert ended.returncode == 0 and "collected" not in ended.stdout and "Traceback" not in ended.stderr
    line = r"^\d{4}-\d\d-\d\dT[\d:.]{12}Z POST /v1/models/tiny:predict 200 \d+ ms version=3 signature=slow rows=1$"
    assert re.search(line, ended.stderr, re.MULTILINE)
