"""Sends thousands of real and hostile requests to a served classifier: it must not crash, answer wrongly or leak memory.

    python benchmarks/serving.py --run runs/sst2 --served served/sst2 --text $BERT_KERAS_TEST_DATA/glue/SST-2/dev.tsv

In: a run of one text and its export, and a file of real lines. `bert-keras serve` runs in a process of its own; each request
goes over REST or gRPC, has one to eight texts, and one in ten is malformed. Out: a table of what was sent and how it was
answered, and the server's resident size after a tenth of the requests and at the end. The exit status is 1 where an answer is
wrong, a good request is refused or a malformed one is not, or memory grows by over 5 %.

An answer is right if `predict` gives the same label for the same bytes, and probabilities within 1e-5.
"""

import argparse
import base64
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from machine import resident
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from bert_keras.tasks.batches import predict
from bert_keras.tasks.runs.run_folder import load_run

SEED = 1
BOUND = 1e-5  # for probabilities
GROWTH = 0.05  # allowed growth of resident memory, as a fraction
MALFORMED = 0.1  # fraction of malformed requests


def hostile(draw: random.Random) -> bytes:
    """A text that breaks naive tokenizers."""
    letters = "aé\u0301ß你𠜎ﬁ\u200b\u202e\x00\x07\ufffd\u2028 \t\n#[]"
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: draw.randbytes(draw.randrange(1, 300)),
        lambda: "".join(draw.choices(letters, k=draw.randrange(1, 200))).encode(),
        lambda: ("x" * draw.choice((99, 100, 101, 200, 201, 5000))).encode(),
        lambda: b"[CLS] [SEP] [MASK] [PAD] ##a",
        lambda: ("e" + "\u0301" * draw.randrange(1, 400)).encode(),
        lambda: ("word " * draw.randrange(500, 3000)).encode(),
        lambda: chr(draw.choice([*range(0x20), *range(0x7F, 0xA0), 0x1F600, 0x10FFFF])).encode() * 9,
    )
    return draw.choice(kinds)()


class Client:
    """A client for REST and gRPC. It returns a dict of arrays for an answer, and a string for an error."""

    def __init__(self, name: str, text: str, *, port: int, grpc_port: int) -> None:
        self._name, self._text = name, text
        self._url = f"http://127.0.0.1:{port}/v1/models/{name}:predict"
        channel = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def rest(self, texts: list[bytes]) -> Any:
        """UTF-8 as a JSON string, other bytes as base64."""
        return self.post(json.dumps({"inputs": {self._text: [_json_of(text) for text in texts]}}).encode())

    def post(self, body: bytes) -> Any:
        """Posts any body."""
        try:
            with urllib.request.urlopen(self._url, data=body) as response:
                outputs = json.load(response)["outputs"]
        except urllib.error.HTTPError as error:
            return json.load(error)["error"] if error.code < 500 else f"status {error.code}"
        return {
            "label": np.array([label.encode() for label in outputs["label"]], object),
            "probabilities": np.array(outputs["probabilities"]),
        }

    def grpc(self, texts: list[bytes]) -> Any:
        """A PredictRequest."""
        return self.call({self._text: tf.make_tensor_proto(texts, tf.string)})

    def call(self, inputs: dict[str, Any], *, signature: str = "") -> Any:
        """Calls Predict with any inputs."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name, request.model_spec.signature_name = self._name, signature
        for name, proto in inputs.items():
            request.inputs[name].CopyFrom(proto)
        try:
            outputs = self._stub.Predict(request).outputs
        except grpc.RpcError as error:
            return error.details()
        return {name: tf.make_ndarray(proto) for name, proto in outputs.items()}

    def malformed(self, draw: random.Random) -> Any:
        """Sends a malformed request, which the server must refuse."""
        text = tf.make_tensor_proto(["a"])
        return draw.choice(
            (
                lambda: self.post(draw.randbytes(50)),
                lambda: self.post(b'{"instances": [3]}'),
                lambda: self.post(b'{"instances": []}'),
                lambda: self.post(json.dumps({"inputs": {"other": ["a"]}}).encode()),
                lambda: self.post(json.dumps({"inputs": {self._text: [["a"]]}}).encode()),
                lambda: self.post(b'{"signature_name": "x", "instances": ["a"]}'),
                lambda: self.call({}),
                lambda: self.call({self._text: tf.make_tensor_proto([1.0])}),
                lambda: self.call({self._text: tf.make_tensor_proto([["a"]])}),
                lambda: self.call({self._text: text, "other": text}),
                lambda: self.call({self._text: text}, signature="x"),
            )
        )()


def _json_of(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(text).decode()}


def main() -> int:
    """Starts the server, sends the requests and prints the counts; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="folder that finetune wrote")
    parser.add_argument("--served", required=True, help="folder that export wrote from it")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a file of real lines")
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    draw = random.Random(SEED)
    real = [line.encode() for line in args.text.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = draw.sample(real, min(1000, len(real))) + [hostile(draw) for _ in range(1000)]
    run = load_run(args.run)
    (name,) = run.task.signature()
    expected, _ = predict(
        run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices({name: texts})
    )

    options = ("--name", "m", "--port", "0", "--grpc-port", "0")
    command = [sys.executable, "-m", "bert_keras", "serve", args.served, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    sizes = []
    try:
        _, listening = server.stdout.readline(), server.stdout.readline()
        port, grpc_port = map(int, re.findall(r"127\.0\.0\.1:(\d+)", listening))
        client = Client("m", name, port=port, grpc_port=grpc_port)
        for i in track(range(args.requests), "asking", console=Console(stderr=True)):
            if draw.random() < MALFORMED:
                answer = client.malformed(draw)
                refused = isinstance(answer, str) and not answer.startswith("status")
                counts["malformed", "refused" if refused else f"not refused: {answer}"] += 1
            else:
                rows = draw.sample(range(len(texts)), draw.randint(1, 8))
                way = draw.choice(("rest", "grpc"))
                answer = getattr(client, way)([texts[row] for row in rows])
                counts[way, _verdict(answer, {key: value[rows] for key, value in expected.items()})] += 1
            if i + 1 in (args.requests // 10, args.requests):
                sizes.append(resident(process=server.pid))
        alive = server.poll() is None
    finally:
        server.kill()
        server.wait()
    table = Table("request", "answer", "count")
    for (kind, verdict), count in sorted(counts.items()):
        table.add_row(kind, verdict, f"{count:,}")
    Console().print(table)
    growth = sizes[-1] / sizes[0] - 1
    print(
        f"resident: {sizes[0] / 1e6:.0f} MB after a tenth, {sizes[-1] / 1e6:.0f} MB at the end ({growth:+.1%})"
    )
    good = all(verdict in ("right", "refused") for _, verdict in counts)
    return 0 if good and alive and growth <= GROWTH else 1


def _verdict(answer: Any, expected: dict[str, np.ndarray]) -> str:
    if isinstance(answer, str):
        return f"refused: {answer}"
    near = np.abs(answer["probabilities"] - expected["probabilities"]).max() <= BOUND
    return "right" if near and answer["label"].tolist() == expected["label"].tolist() else "wrong"


if __name__ == "__main__":
    sys.exit(main())
