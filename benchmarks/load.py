"""Measures `bert-keras serve` under load: throughput and latency by rows of a request and clients, over REST and gRPC.

    python benchmarks/load.py --served served/minilm --text reviews.txt --json benchmarks/figures/load.json
    python benchmarks/load.py --from benchmarks/figures/load.json --document docs/deploy.md

In: an exported folder, and a file of texts, a line each; without the file, the export's own example. The server runs in a process
of its own, and this process runs the clients, each in a thread with one connection: a client sends its next request when it has
the answer to the last. Requests are made before the clock starts, and answers are read but not parsed, so that the clients take
little of the processor; the table shows how much. The first second of each row is left out. Out: a table, and with `--json` the
figures as JSON and CSV; `--document` writes the table between the lines `<!-- figures: load -->` and `<!-- end of figures -->` of
a page. `--from` reads the figures of an earlier run. Linux only.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import pathlib
import re
import resource
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import machine
import numpy as np
import tensorflow as tf
from pictures import as_csv, with_sections
from tensorflow_serving.apis import predict_pb2

from bert_keras.savedmodels.server.served import find_versions
from bert_keras.savedmodels.verify import EXAMPLE, EXTRA

ROWS, CLIENTS = (1, 8, 32), (1, 4, 16)
BODIES = 16  # different requests of a size
WARM_UP = 1.0  # seconds of each measurement that are left out
MOST = 20_000  # requests of a client in a measurement
NAME = "m"  # of the model in requests
PREDICT = "/tensorflow.serving.PredictionService/Predict"
Ask = Callable[[bytes], bool]  # a body -> True if it was answered
COLUMNS = {
    "protocol": "{}",
    "rows": "{}",
    "clients": "{}",
    "requests/s": "{:.1f}",
    "rows/s": "{:.0f}",
    "p50 ms": "{:.1f}",
    "p95 ms": "{:.1f}",
    "p99 ms": "{:.1f}",
    "errors": "{}",
    "client cores": "{:.2f}",
    "server cores": "{:.2f}",
}


def bodies(protocol: str, inputs: list[str], texts: list[str], rows: int) -> list[bytes]:
    """Requests of so many rows, with texts in turn."""
    endless, made = itertools.cycle(texts), []
    for _ in range(BODIES):
        columns = {name: [next(endless) for _ in range(rows)] for name in inputs}
        if protocol == "rest":
            instances = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            made.append(json.dumps({"instances": instances}).encode())
            continue
        request = predict_pb2.PredictRequest()
        request.model_spec.name = NAME
        for name, column in columns.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(column, tf.string))
        made.append(request.SerializeToString())
    return made


@contextlib.contextmanager
def client(protocol: str, port: int) -> Iterator[Ask]:
    """A connection of its own. Requests and answers stay bytes."""
    if protocol == "grpc":
        # gRPC would share a connection between the clients of a process.
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(PREDICT)

            def ask_grpc(body: bytes) -> bool:
                try:
                    return bool(call(body, timeout=60))
                except grpc.RpcError:
                    return False

            yield ask_grpc
        return
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:

        def ask_rest(body: bytes) -> bool:
            connection.request("POST", f"/v1/models/{NAME}:predict", body)
            response = connection.getresponse()
            return len(response.read()) > 0 and response.status == 200

        yield ask_rest


def measure(protocol: str, port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Lets the clients ask, and counts the requests that end within some seconds after the warm-up."""
    start = time.perf_counter() + WARM_UP
    end, times, errors = start + seconds, [], []

    def run(number: int) -> None:
        with client(protocol, port) as ask:
            for i in range(MOST):
                began = time.perf_counter()
                answered = ask(requests[(number + i) % len(requests)])
                if (ended := time.perf_counter()) >= end:
                    break
                if ended >= start:
                    (times if answered else errors).append(ended - began)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p95, p99 = np.percentile(times, (50, 95, 99)) * 1000 if times else (np.nan,) * 3
    return {
        "requests/s": len(times) / seconds,
        "p50 ms": float(p50),
        "p95 ms": float(p95),
        "p99 ms": float(p99),
        "errors": len(errors),
    }


def rows_of(content: dict[str, Any]) -> list[dict[str, str]]:
    """The figures as texts, a dict for each row of the table."""
    return [{name: form.format(row[name]) for name, form in COLUMNS.items()} for row in content["rows"]]


def table(content: dict[str, Any]) -> str:
    """The figures as a table in Markdown, and a line about the machine."""
    lines = [f"| {' | '.join(row.values())} |" for row in rows_of(content)]
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    about = f"{content['machine']}; {content['texts']}; {content['seconds']:g} seconds a row; other processes took "
    return "\n".join([*head, *lines, "", f"{about}{content['others']:.2f} of a core."])


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Starts the server, measures all rows of the table and ends the server."""
    versions = find_versions(args.served)
    example = json.loads((versions[max(versions)] / EXTRA / EXAMPLE).read_text(encoding="utf-8"))
    lines = args.text.read_text(encoding="utf-8").splitlines() if args.text else [*example.values()]
    texts = [line for line in lines if line.strip()][:1000]
    options = ("--name", NAME, "--port", "0", "--grpc-port", "0", "--poll-seconds", "0")
    command = [sys.executable, "-m", "bert_keras", "serve", args.served, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    rows = []
    try:
        _, listening = server.stdout.readline(), server.stdout.readline()
        ports = dict(
            zip(("rest", "grpc"), map(int, re.findall(r"127\.0\.0\.1:(\d+)", listening)), strict=True)
        )
        others = machine.Others(lambda: [server.pid])
        for protocol, size, clients in itertools.product(ports, ROWS, CLIENTS):
            requests = bodies(protocol, [*example], texts, size)
            before, began = (client_seconds(), server_seconds(ports["rest"])), time.perf_counter()
            row = {"protocol": protocol, "rows": size, "clients": clients}
            row |= measure(protocol, ports[protocol], requests, clients, args.seconds)
            wall = time.perf_counter() - began
            row["rows/s"] = size * row["requests/s"]
            row["client cores"] = (client_seconds() - before[0]) / wall
            row["server cores"] = (server_seconds(ports["rest"]) - before[1]) / wall
            rows.append(row)
            print(*(form.format(row[name]) for name, form in COLUMNS.items()), sep="\t", flush=True)
        share = others.share() or 0.0
    finally:
        server.terminate()
        server.wait()
    mean = np.mean([len(text.split()) for text in texts])
    said = f"{len(texts):,} texts of {mean:.0f} words in the mean"
    return {"machine": machine.name(), "texts": said, "seconds": args.seconds, "others": share, "rows": rows}


def client_seconds() -> float:
    """CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def server_seconds(port: int) -> float:
    """CPU seconds of the server, by its own metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    (found,) = re.findall(r"(?m)^process_cpu_seconds_total (\S+)$", text)
    return float(found)


def main() -> int:
    """Measures, or reads older figures, and writes what the flags ask for; returns 1 if a request failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--served", help="folder that export wrote")
    source.add_argument("--from", dest="older", type=pathlib.Path, help="a JSON file of an earlier run")
    parser.add_argument("--text", type=pathlib.Path, help="a file of texts, a line each")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each row of the table (default: 8)")
    parser.add_argument(
        "--json", type=pathlib.Path, help="write the figures to this file, and a CSV file beside it"
    )
    parser.add_argument("--document", type=pathlib.Path, help="write the table into this page")
    args = parser.parse_args()
    content = run(args) if args.served else json.loads(args.older.read_text(encoding="utf-8"))
    if args.json:
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        args.json.with_suffix(".csv").write_text(as_csv(rows_of(content)), encoding="utf-8")
    if args.document:
        page = args.document.read_text(encoding="utf-8")
        args.document.write_text(with_sections(page, {"load": table(content)}), encoding="utf-8")
    print(table(content))
    return 1 if any(row["errors"] for row in content["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
