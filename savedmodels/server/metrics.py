"""Metrics of a server, for Prometheus: requests, seconds, rows, loaded versions, and the process.

In: requests that have ended. Out: the text of `GET /metrics`. A client cannot add a series: the values of labels are names that
the server knows, and a model, a signature or an address that it does not know counts as "" or "other".
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bert_keras.savedmodels.server.served import Call
from bert_keras.savedmodels.server.versions import Versions

PATH = "/metrics"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # seconds
ANSWERED = ("200", "OK")


class _Loaded(Collector):
    """A series for each loaded version, while it is loaded."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "bert_keras_loaded_version",
            "1 for each loaded version of the model.",
            labels=("model", "version"),
        )
        for version in self._versions.served:
            gauge.add_metric((self._versions.name, str(version)), 1)
        yield gauge


class Metrics:
    """The metrics of one server, in a registry of its own. All methods may be called by several threads."""

    def __init__(self, versions: Versions) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "bert_keras_requests",
            "Requests that have ended; method has the names of gRPC for REST too.",
            ("protocol", "method", "signature", "version", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "bert_keras_request_duration_seconds",
            "Seconds from the start of a request to the end of its answer.",
            ("protocol", "method"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._rows = Counter(
            "bert_keras_rows",
            "Rows of the Predict requests that got an answer.",
            ("protocol", "signature", "version"),
            registry=self.registry,
        )
        self._in_progress = Gauge(
            "bert_keras_requests_in_progress",
            "Requests that run or wait for the model.",
            ("protocol",),
            registry=self.registry,
        )
        self.registry.register(_Loaded(versions))
        ProcessCollector(registry=self.registry)

    @contextlib.contextmanager
    def request(self, protocol: str, call: Call, code: Callable[[], int | str]) -> Iterator[None]:
        """Counts the request that runs inside. code: its status, asked at the end."""
        began = time.monotonic()
        with self._in_progress.labels(protocol).track_inprogress():
            try:
                yield
            finally:
                status = str(code())
                labels = (protocol, call.method, call.signature, call.version, status)
                self._requests.labels(*labels).inc()
                self._seconds.labels(protocol, call.method).observe(time.monotonic() - began)
                if call.rows and status in ANSWERED:
                    self._rows.labels(protocol, call.signature, call.version).inc(call.rows)

    def text(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its Content-Type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
