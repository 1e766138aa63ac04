"""deploy/: its files pass their own tools and fit the servers; metrics, a scrape by Prometheus, a second version, a rollback."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path

import jobs
import pytest
import yaml
from google.protobuf import text_format
from packaging.requirements import Requirement
from runs import ROOT
from servers import ask, grpc_error, predict_request, prediction_stub
from test_server_versions import PREDICT, REST_ALONE, add, base, config, made  # noqa: F401

import bert_keras
from bert_keras.cli.main import parser
from bert_keras.errors import BertKerasError
from bert_keras.savedmodels.model_card import VERSIONS
from bert_keras.savedmodels.server import Server, rest
from bert_keras.savedmodels.server.metrics import BUCKETS
from bert_keras.savedmodels.server.versions import Versions, Watcher, load_version
from bert_keras.savedmodels.serving_protos import MODELS
from bert_keras.tasks.options import ServerOptions

DEPLOY = ROOT / "deploy"
DOCKERFILES = [DEPLOY / "Dockerfile", DEPLOY / "tensorflow-serving.Dockerfile"]
MANIFESTS = {
    f"{file.stem} {doc['kind']}": doc
    for file in sorted(DEPLOY.glob("kubernetes/*.yaml"))
    for doc in yaml.safe_load_all(file.read_text())
}
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
# The flags of tensorflow_serving/model_servers/main.cc at commit 9d981c5 (2026-07-30) that deploy/ may use.
SERVING_FLAGS = set(
    """port rest_api_port model_config_file model_config_file_poll_wait_seconds monitoring_config_file enable_batching
    allow_version_labels_for_unavailable_models batching_parameters_file tensorflow_intra_op_parallelism""".split()
)


# -----------------------------------------------------------------------------------------------------------
# The files


def program(name):
    """The path of a program on PATH or beside this Python; skips the test where it is missing."""
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    return found or pytest.skip(f"{name} is not installed")


def checked(*command, **how):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_accepts_the_manifests(name):
    tool, manifest = pytest.importorskip("kubernetes_validate"), MANIFESTS[name]
    tool.validate(manifest, tool.latest_version(), strict=True)
    labels = manifest["metadata"]["labels"]
    assert {"app.kubernetes.io/name", "app.kubernetes.io/part-of"} <= {*labels}
    if "selector" in (spec := manifest.get("spec", {})) and manifest["kind"] != "Deployment":
        chosen = spec["selector"].get("matchLabels", spec["selector"])
        assert chosen.items() <= labels.items(), "it selects the pods of its own server"


def test_hadolint_accepts_the_dockerfiles():
    checked(program("hadolint"), *DOCKERFILES)


def test_compose_accepts_its_file():
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked(*command, DEPLOY / "compose.yaml")


def test_prometheus_accepts_its_files():
    assert "SUCCESS: 5 rules found" in checked(
        program("promtool"), "check", "config", DEPLOY / "prometheus.yml"
    )


def test_both_servers_read_the_config_of_the_models():
    configs = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    mounted = MANIFESTS["models ConfigMap"]["data"]
    texts = (mounted[MODELS], (DEPLOY / MODELS).read_text())
    first, second = (text_format.Parse(text, configs.ModelServerConfig()) for text in texts)
    assert first == second, "Compose and Kubernetes start with the same"
    assert mounted["monitoring.config"] in (DEPLOY / "monitoring.config").read_text()
    (model,) = first.model_config_list.config
    assert {*model.version_labels.values()} <= {*model.model_version_policy.specific.versions}
    job = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][1]
    assert job["metrics_path"] in mounted["monitoring.config"]


def instruction(dockerfile, word):
    """The words of an ENTRYPOINT or CMD of a Dockerfile, or of the CMD of a HEALTHCHECK. They are JSON: no shell is between."""
    (words,) = re.findall(rf"(?m)^{word} (?:[^\[\n]*\\\n *CMD )?(\[.*\])$", dockerfile.read_text())
    return json.loads(words)


def container(name):
    return MANIFESTS[f"{name} Deployment"]["spec"]["template"]["spec"]["containers"][0]


ENTRY = instruction(DOCKERFILES[0], "ENTRYPOINT")
OURS = {
    "Dockerfile": instruction(DOCKERFILES[0], "CMD"),
    "Compose": SERVICES["bert-keras"]["command"],
    "Kubernetes": container("bert-keras")["args"],
}
THEIRS = {
    "Dockerfile": instruction(DOCKERFILES[1], "ENTRYPOINT")[1:],
    "Compose": SERVICES["tensorflow-serving"]["command"],
    "Kubernetes": container("tensorflow-serving")["args"],
}


@pytest.mark.parametrize("place", OURS)
def test_the_commands_have_flags_of_the_servers(place):
    assert ENTRY[0] in {point.name for point in metadata.entry_points(group="console_scripts")}
    words = [*ENTRY[1:], *OURS[place]]
    read = parser(words[:1], words).parse_args(words)
    assert read.host == "0.0.0.0" and read.folder.startswith("/models/")
    flags = [word.removeprefix("--").partition("=")[0] for word in THEIRS[place]]
    assert {*flags} <= SERVING_FLAGS and len({*flags}) == len(flags)


def test_versions_are_those_of_the_project():
    text = "".join(file.read_text() for file in DEPLOY.rglob("*") if file.is_file())
    assert {*re.findall(r"tensorflow/serving:(\d[\w.]*)", text)} == {f"{VERSIONS[-1]}.0"}
    assert {*re.findall(r"bert-keras:(\d+\.[\w.]*)", text)} == {bert_keras.__version__}
    (python,) = re.findall(r"=python:([\d.]+)-slim", DOCKERFILES[0].read_text())
    lines = [line for line in (DEPLOY / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pinned = dict(line.split("==") for line in lines)
    machine = {"python_version": python.rpartition(".")[0], "python_full_version": python, "extra": "serving"}
    machine |= {"sys_platform": "linux", "platform_machine": "x86_64"}
    needed = [Requirement(line) for line in metadata.requires("bert-keras")]
    needed = [one for one in needed if one.marker is None or one.marker.evaluate(machine)]
    assert len(needed) > 20
    assert [
        str(one) for one in needed if not one.specifier.contains(pinned.get(one.name.replace("_", "-"), "0"))
    ] == []


def test_ports_and_limits_are_those_of_the_server():
    ports = {str(ServerOptions.grpc_port), str(ServerOptions.port)}
    for file in DOCKERFILES:
        assert {*re.findall(r"(?m)^EXPOSE (.*)$", file.read_text())[0].split()} == ports
    for name in ("bert-keras", "tensorflow-serving"):
        assert {str(port["containerPort"]) for port in container(name)["ports"]} == ports
        assert {port.split(":")[-1] for port in SERVICES[name]["ports"]} == ports
        pod = MANIFESTS[f"{name} Deployment"]["spec"]["template"]["spec"]
        asleep = int(container(name)["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > asleep + rest.DRAIN
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > rest.DRAIN


# -----------------------------------------------------------------------------------------------------------
# Metrics


def read(server, path, *, host="10.0.0.7:8501", method="GET"):
    """Status and text. host: as a probe in a cluster has it."""
    url = f"http://127.0.0.1:{server.port}{path}"
    request = urllib.request.Request(url, headers={"Host": host}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def series(server):
    """The samples of GET /metrics: name and labels -> value."""
    text = read(server, "/metrics")[1]
    return {key: float(value) for key, value in re.findall(r"(?m)^([^#\s][^\n]*) (\S+)$", text)}


def of(name, **labels):
    """A series as Prometheus keeps it: sorted labels, none that is empty."""
    pairs = [f'{key}="{value}"' for key, value in sorted(labels.items()) if value]
    return f"{name}{{{','.join(pairs)}}}"


def samples(found):
    """The same with the labels sorted."""
    return {of(name, **dict(re.findall(r'(\w+)="([^"]*)"', rest))): value for (name, _, rest), value in found}


def counted(server):
    return samples(((key.partition("{"), value) for key, value in series(server).items() if "{" in key))


def requests(protocol, method, code, *, signature="", version=""):
    return of(
        "bert_keras_requests_total",
        protocol=protocol,
        method=method,
        code=code,
        signature=signature,
        version=version,
    )


@pytest.fixture(scope="module")
def server(made):
    pytest.importorskip("tensorflow_serving")
    versions = Watcher(made).versions
    with Server(versions, ServerOptions(host="0.0.0.0", port=0, grpc_port=0), hosts=["sst2"]) as running:
        yield running


@pytest.mark.parametrize("path", ["probe", "/metrics"])
def test_probes_and_scrapes_are_answered_under_any_name(server, path):
    probes = [
        container("bert-keras")[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")
    ]
    paths = {probe["path"] for probe in probes} if path == "probe" else {path}
    assert {"/healthz", "/readyz"} == paths or path in paths
    assert [read(server, one)[0] for one in paths] == [200] * len(paths)
    assert read(server, "/v1/models/tiny")[0] == 403, "all else needs a name that is allowed"
    assert read(server, "/v1/models/tiny", host="sst2:8501")[0] == 200


def test_both_protocols_are_counted(server):
    before = counted(server)
    named = {"signature": "serving_default", "version": "3"}
    for _ in range(3):
        assert ask(server, PREDICT, {"instances": ["a", "b"]})[0] == 200
    assert ask(server, PREDICT, {"instances": [1]})[0] == 400
    assert ask(server, "/v1/models/tiny/metadata")[0] == 200
    with prediction_stub(server) as stub:
        stub.Predict(predict_request("tiny", {"text": ["a"] * 5}))
        assert grpc_error(stub.Predict, predict_request("tiny", {"text": [1]}))[0] == "INVALID_ARGUMENT"
    until, wanted = (
        time.monotonic() + 20,
        {
            requests("rest", "Predict", "200", **named): 3,
            requests("rest", "Predict", "400", version="3"): 1,
            requests("rest", "GetModelMetadata", "200", version="3"): 1,
            requests("grpc", "Predict", "OK", **named): 1,
            requests("grpc", "Predict", "INVALID_ARGUMENT", version="3"): 1,
            of("bert_keras_rows_total", protocol="rest", **named): 6,
            of("bert_keras_rows_total", protocol="grpc", **named): 5,
            of("bert_keras_request_duration_seconds_count", protocol="rest", method="Predict"): 4,
            of("bert_keras_request_duration_seconds_bucket", protocol="grpc", method="Predict", le="60.0"): 2,
        },
    )
    while True:  # a request ends a moment after its client has the answer
        found = counted(server)
        grown = {key: found.get(key, 0) - before.get(key, 0) for key in wanted}
        if grown == wanted or time.monotonic() > until:
            break
    assert grown == wanted
    assert found[of("bert_keras_loaded_version", model="tiny", version="3")] == 1
    assert {found[of("bert_keras_requests_in_progress", protocol=one)] for one in ("rest", "grpc")} == {0}
    assert min(BUCKETS) == 0.001 and max(BUCKETS) == ServerOptions.max_seconds
    if Path("/proc").exists():
        assert series(server)["process_resident_memory_bytes"] > 1e6


def test_a_client_cannot_add_a_series(server):
    def send(i):
        ask(server, PREDICT, {"instances": [1]})  # what is counted for a request that goes wrong
        ask(server, f"/v1/models/evil{i}:predict", {"instances": ["a"]})
        ask(server, f"/v1/models/tiny/versions/{i + 10}:predict", {"instances": ["a"]})
        ask(server, f"/v1/models/tiny/labels/l{i}:predict", {"instances": ["a"]})
        ask(server, PREDICT, {"signature_name": f"evil{i}", "instances": ["a"]})
        ask(server, f"/evil{i}%0a%22%7d", {"instances": ["a"]})
        read(server, f"/evil{i}", host="localhost", method="EVIL" + "L" * i)
        with prediction_stub(server) as stub:
            for request in (
                predict_request(f"evil{i}", {"text": ["a"]}),
                predict_request("tiny", {"text": ["a"]}, signature=f"evil{i}"),
                predict_request("tiny", {"text": ["a"]}, label=f"evil{i}"),
            ):
                grpc_error(stub.Predict, request)

    def names():
        time.sleep(0.2)  # a request ends a moment after its client has the answer
        found = series(server)
        return {key for key in found if not key.startswith("process_")}

    send(0)
    first = names()
    for i in range(1, 4):
        send(i)
    assert names() == first and "evil" not in "".join(first)


def test_the_metrics_keep_the_conventions_of_prometheus(server):
    ask(server, PREDICT, {"instances": ["a"]})
    tool, text = program("promtool"), read(server, "/metrics")[1]
    checked(tool, "check", "metrics", input=text)
    rules = (DEPLOY / "alerts.yml").read_text()
    used = {*re.findall(r"bert_keras_\w+", rules)}
    assert len(used) == 3 and all(f"\n{name}{{" in text for name in used), "alerts watch series that exist"


REQUESTS = 'bert_keras_requests_total{job="bert-keras",method="Predict",code='
BUCKET = 'bert_keras_request_duration_seconds_bucket{job="bert-keras",method="Predict",le='
LOADED = 'bert_keras_loaded_version{job="bert-keras",model="sst2",version='
UP = {'up{job="bert-keras",instance="a"}': "1x30", 'up{job="bert-keras",instance="b"}': "1x30"}
# The series of half an hour -> the alerts at its end.
ALERTS = {
    "a server is down": (UP | {'up{job="bert-keras",instance="b"}': "0x30"}, ["ServerDown"]),
    "few requests fail": (UP | {f'{REQUESTS}"200"}}': "0+1000x30", f'{REQUESTS}"504"}}': "0+5x30"}, []),
    "requests fail": (
        UP | {f'{REQUESTS}"200"}}': "0+1000x30", f'{REQUESTS}"504"}}': "0+50x30"},
        ["RequestsFail"],
    ),
    "requests are wrong": (UP | {f'{REQUESTS}"200"}}': "0+1000x30", f'{REQUESTS}"400"}}': "0+50x30"}, []),
    "requests are fast": (UP | {f'{BUCKET}"1.0"}}': "0+1000x30", f'{BUCKET}"+Inf"}}': "0+1001x30"}, []),
    "requests are slow": (
        UP
        | {f'{BUCKET}"1.0"}}': "0+900x30", f'{BUCKET}"2.5"}}': "0+1000x30", f'{BUCKET}"+Inf"}}': "0+1000x30"},
        ["RequestsAreSlow"],
    ),
    "no server is known": ({'up{job="prometheus"}': "1x30"}, ["ServerDown"]),
    "much memory": (
        UP | {'process_resident_memory_bytes{job="bert-keras",instance="a"}': "3.3e9x30"},
        ["MemoryIsHigh"],
    ),
    "two versions": (
        UP | {f'{LOADED}"{version}",instance="{one}"}}': "1x30" for version in (1, 2) for one in "ab"},
        [],
    ),
    "one replica is behind": (
        UP | {f'{LOADED}"1",instance="a"}}': "1x30", f'{LOADED}"2",instance="b"}}': "1x30"},
        ["ReplicasServeOtherVersions"] * 2,
    ),
}


def test_alerts_fire_when_they_should(tmp_path):
    """promtool computes each alert of the file from made series."""
    names = [
        rule["alert"] for rule in yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    ]
    cases = [
        {
            "name": case,
            "interval": "1m",
            "input_series": [{"series": key, "values": values} for key, values in given.items()],
            # The expression, not the alert: promtool would compare the texts of the alerts too.
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": "30m",
                    "exp_samples": [{"labels": "{}", "value": fired.count(name)}] if name in fired else [],
                }
                for name in names
            ],
        }
        for case, (given, fired) in ALERTS.items()
    ]
    rules = {"rule_files": [str(DEPLOY / "alerts.yml")], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(rules))
    assert {name for _, fired in ALERTS.values() for name in fired} == {*names}
    checked(program("promtool"), "test", "rules", tmp_path / "tests.yml")


def query(port, path, **parameters):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20) as response:
        return json.load(response)["data"]


def test_prometheus_scrapes_what_was_sent(server, tmp_path):
    prometheus = program("prometheus")
    for _ in range(4):
        ask(server, PREDICT, {"instances": ["a", "b"]})
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["global"] = dict.fromkeys(settings["global"], "1s")
    (job,) = (job for job in settings["scrape_configs"] if job["job_name"] == "bert-keras")
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    settings["scrape_configs"] = [job]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    with jobs.ports(1) as (port,), open(tmp_path / "log", "w") as log:
        command = [
            prometheus,
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        command += [f"--web.listen-address=127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until = time.monotonic() + 120
            while time.monotonic() < until and process.poll() is None:
                found = query(port, "query", query='{__name__=~"bert_keras_.*_total"}') or {"result": []}
                rules = [
                    rule
                    for group in (query(port, "rules") or {"groups": []})["groups"]
                    for rule in group["rules"]
                ]
                scraped = {
                    of(
                        one["metric"].pop("__name__"),
                        **{k: v for k, v in one["metric"].items() if k not in ("job", "instance")},
                    ): float(one["value"][1])
                    for one in found["result"]
                }
                if scraped and {rule["health"] for rule in rules} == {"ok"}:
                    break
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait()
    here = {key: value for key, value in counted(server).items() if key.partition("{")[0].endswith("_total")}
    here = {key: value for key, value in here.items() if key.startswith("bert_keras_")}
    sent = requests("rest", "Predict", "200", signature="serving_default", version="3")
    assert scraped == here and scraped[sent] >= 4, (tmp_path / "log").read_text()[-2000:]
    assert [rule["health"] for rule in rules] == ["ok"] * 5
    assert "firing" not in [rule["state"] for rule in rules]


# -----------------------------------------------------------------------------------------------------------
# A second version, and the way back


def models(*versions, **labels):
    chosen = " ".join(f"versions: {version}" for version in versions)
    named = " ".join(f'version_labels {{ key: "{key}" value: {value} }}' for key, value in labels.items())
    return config(f"model_version_policy {{ specific {{ {chosen} }} }} {named}")


def replace(file, text):
    """As an editor or Kubernetes does: clients of the file see the old text or the new one."""
    file.with_suffix(".new").write_text(text)
    os.replace(file.with_suffix(".new"), file)


def test_a_rollback_is_one_change_and_no_request_fails(made, base, tmp_path):
    """The steps of docs/deploy.md: version 1, version 2 for those who ask, for everybody, and back."""
    add(made, base, 1)
    place = tmp_path / "config"
    place.mkdir()
    file, lines, failed, seen, ended = place / MODELS, [], [], [], threading.Event()
    replace(file, models(1, stable=1))
    paths = ("tiny", "tiny/labels/stable")

    def asking(server):
        while not ended.is_set():
            answers = [ask(server, f"/v1/models/{path}:predict", {"instances": ["a"]}) for path in paths]
            failed.extend(answer for answer in answers if answer[0] != 200)
            seen.append(tuple(answer[2]["predictions"][0] for answer in answers if answer[0] == 200))

    def until_seen(*wanted):
        deadline = time.monotonic() + 60
        while seen[-1:] != [wanted] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen[-1] == wanted

    watcher = Watcher(base, config=file, seconds=0.05, log=lines.append)
    with watcher, Server(watcher.versions, REST_ALONE) as server:
        client = threading.Thread(target=asking, args=(server,))
        client.start()
        try:
            until_seen(1, 1)
            add(made, base, 2)
            replace(file, models(1, 2, stable=1, canary=2))
            until_seen(2, 1)
            canary = ask(server, "/v1/models/tiny/labels/canary:predict", {"instances": ["a"]})
            replace(file, models(1, 2, stable=2, canary=2))
            until_seen(2, 2)
            for damage in ("model_config_list { config {", "", None):
                replace(file, damage) if damage is not None else file.unlink()
                time.sleep(0.3)
            replace(file, models(1, stable=1))
            until_seen(1, 1)
        finally:
            ended.set()
            client.join()
    assert failed == [] and canary[2] == {"predictions": [2]}
    assert lines[:2] == [
        "tiny: now versions 1, 2, canary is 2, stable is 1",
        "tiny: now versions 1, 2, canary is 2, stable is 2",
    ]
    assert lines[-1] == "tiny: now version 1, stable is 1"
    warnings = [line for line in lines[2:-1] if line.startswith("warning: cannot look for versions: ")]
    assert (
        len(warnings) == len(lines) - 3 == 3
        and f"{file} is away; its last versions and labels stay" in warnings[-1]
    )


KEPT = {
    "another name": (
        config("").replace('"tiny"', '"other"'),
        "names the model other; start the server again",
    ),
    "no such version": (models(7, stable=7), "asks for the versions 7; the folder has 1"),
    "a label without its version": (
        models(1, stable=2),
        "the label stable to version 2, and its .* serves 1; serve",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_config_that_cannot_be_followed_changes_nothing(case, made, base):
    add(made, base, 1)
    replace(base / MODELS, models(1, stable=1))
    watcher = Watcher(base)
    text, message = KEPT[case]
    replace(base / MODELS, text)
    with pytest.raises(BertKerasError, match=message):
        watcher.look()
    assert [*watcher.versions.served] == [1] and watcher.versions.labels == {"stable": 1}


def test_a_label_waits_for_its_version(made, base):
    add(made, base, 1, 2)
    (base / "2" / "saved_model.pb").write_bytes(b"damage")
    replace(base / MODELS, models(1, stable=1))
    watcher = Watcher(base)
    replace(base / MODELS, models(1, 2, stable=2))
    watcher.look()
    assert watcher.versions.labels == {"stable": 1}
    shutil.copy(made / "2" / "saved_model.pb", base / "2" / "saved_model.pb")
    watcher.look()
    assert watcher.versions.labels == {"stable": 2}


def test_a_version_that_is_not_there_is_named(made, base):
    add(made, base, 1)
    replace(base / MODELS, models(1, 9, canary=9))
    lines = []
    watcher = Watcher(base, log=lines.append)
    watcher.look()
    watcher.look()
    assert len(lines) == 1 and f"{base / MODELS} asks for version 9, which {base} does not have" in lines[0]


def test_a_server_starts_with_the_newest_version_that_can_be_loaded(made, base):
    add(made, base, 1, 2)
    (base / "2" / "saved_model.pb").write_bytes(b"damage")
    lines = []
    watcher = Watcher(base, log=lines.append)
    assert [*watcher.versions.served] == [1] and lines[0].startswith("warning: version 2 cannot be loaded")
    watcher.look()
    assert [*watcher.versions.served] == [1] and len(lines) == 1
    shutil.copy(made / "2" / "saved_model.pb", base / "2" / "saved_model.pb")
    watcher.look()
    assert [*watcher.versions.served] == [2]
    (base / "1" / "saved_model.pb").write_bytes(b"damage")
    replace(base / MODELS, models(1))
    with pytest.raises(
        BertKerasError, match=r"no version of .* can be loaded \(version 1: .*\); export"
    ) as error:
        Watcher(base)
    assert "\n" not in str(error.value)


def test_a_rollback_during_a_load_wins(made, base, monkeypatch):
    add(made, base, 1, 2)
    replace(base / MODELS, models(1, stable=1))
    lines = []
    watcher = Watcher(base, log=lines.append)

    def load_and_roll_back(folder, **how):
        replace(base / MODELS, models(1, stable=1))
        return load_version(folder, **how)

    monkeypatch.setattr("bert_keras.savedmodels.server.versions.load_version", load_and_roll_back)
    replace(base / MODELS, models(2, stable=2))
    watcher.look()
    assert [*watcher.versions.served] == [1] and watcher.versions.labels == {"stable": 1} and lines == []


def test_a_missing_config_is_named(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no \S+models.config; give a models.config"):
        Watcher(made, config=tmp_path / MODELS)


# -----------------------------------------------------------------------------------------------------------
# Addresses


@pytest.mark.parametrize("host", ["localhost", "model.test", "127.0.0.1:80", "", "300.0.0.1"])
def test_a_host_that_is_no_address_is_refused(host):
    with pytest.raises(
        BertKerasError, match=f"host is '{host}'; host must be an IP address, such as 127.0.0.1"
    ):
        ServerOptions(host=host)


def test_an_address_of_another_machine_is_named(made):
    with pytest.raises(OSError, match=r"REST cannot listen on 192.0.2.1, port 0 .*--port or --host"):
        Server(Watcher(made).versions, ServerOptions(host="192.0.2.1", port=0, no_grpc=True))


def test_ipv6_is_listened_to(server):
    options = ServerOptions(host="::1", port=0, grpc_port=0)
    try:
        with Server(Versions(*server._http._versions.served.values()), options) as running:
            url = f"http://{options.own_host}:{running.port}/v1/models/tiny"
            assert json.load(urllib.request.urlopen(url, timeout=20))["model_version_status"]
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


def test_the_health_check_of_the_image_tells_a_server_that_runs(server):
    code = instruction(DOCKERFILES[0], "HEALTHCHECK")[-1].replace("8501", str(server.port))
    checked(sys.executable, "-S", "-c", code)
    wrong = [sys.executable, "-S", "-c", code.replace("healthz", "none")]
    assert subprocess.run(wrong, capture_output=True, timeout=60).returncode == 1


# -----------------------------------------------------------------------------------------------------------
# The load test

FIGURES = ROOT / "benchmarks" / "figures" / "load.json"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import load

    return load


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_the_load_test_counts_answers_and_errors(protocol, load, server, monkeypatch):
    monkeypatch.setattr(load, "NAME", "tiny")
    monkeypatch.setattr(load, "WARM_UP", 0.1)
    port = {"rest": server.port, "grpc": server.grpc_port}[protocol]
    before = counted(server)
    good = load.measure(protocol, port, load.bodies(protocol, ["text"], ["a", "b", "c"], 2), 2, 0.3)
    code, rows = (
        {"rest": "200", "grpc": "OK"}[protocol],
        of("bert_keras_rows_total", protocol=protocol, signature="serving_default", version="3"),
    )
    key = requests(protocol, "Predict", code, signature="serving_default", version="3")
    sent = counted(server)[key] - before.get(key, 0)
    assert good["errors"] == 0 and 0 < good["requests/s"] * 0.3 <= sent
    assert counted(server)[rows] - before.get(rows, 0) == pytest.approx(2 * sent, abs=4)
    assert 0 < good["p50 ms"] <= good["p95 ms"] <= good["p99 ms"]
    bad = load.measure(protocol, port, load.bodies(protocol, ["other"], ["a"], 1), 1, 0.2)
    assert bad["errors"] > 0 and bad["requests/s"] == 0


def test_the_page_shows_the_figures_of_the_load_test(load):
    page = (ROOT / "docs" / "deploy.md").read_text()
    content = json.loads(FIGURES.read_text())
    assert load.with_sections(page, {"load": load.table(content)}) == page
    assert load.as_csv(load.rows_of(content)) == FIGURES.with_suffix(".csv").read_text()
    assert len(content["rows"]) == 2 * len(load.ROWS) * len(load.CLIENTS)
