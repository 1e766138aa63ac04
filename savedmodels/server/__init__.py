"""A development server: TensorFlow Serving's REST and gRPC Predict on loopback, for an exported folder.

    POST /v1/models/NAME[/versions/N]:predict      {"signature_name": ..., "instances": [...]} or {"inputs": {...}}
    GET  /v1/models/NAME[/versions/N][/metadata]
    gRPC PredictionService Predict and GetModelMetadata, ModelService GetModelStatus

It limits rows, text and time. It does not batch requests or serve several models: use TensorFlow Serving in production.
gRPC needs the `serving` extra.

Source: TensorFlow Serving, RESTful API and tensorflow_serving/apis.
"""

import concurrent.futures
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from bert_keras.errors import MissingPackageError
from bert_keras.savedmodels.server.http import Http
from bert_keras.savedmodels.server.served import HOST, Limits, Served

WORKERS = 8  # requests decoded or encoded at the same time; the model runs one batch at a time


class Server:
    """A context manager that runs the REST and the gRPC server, each on its own thread.

    port, grpc_port: ports for REST and gRPC; 0 picks a free port, a grpc_port of None turns gRPC off
    limits: the limits of every request
    hosts: names that a Host header may have besides localhost, 127.0.0.1 and [::1]

    Raises OSError if a port is in use, MissingPackageError for gRPC without the `serving` extra.
    """

    def __init__(
        self,
        served: Served,
        *,
        port: int = 8501,
        grpc_port: int | None = 8500,
        limits: Limits | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        limits = limits or Limits()
        self._ended = threading.Event()
        self._work = concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="request")
        self._http = Http(served, port, limits=limits, hosts=hosts, work=self._work)
        self.port = self._http.port
        self._grpc: Any = None
        self.grpc_port: int | None = None
        if grpc_port is not None:
            try:
                self._grpc, self.grpc_port = _grpc(served, grpc_port, limits, self._work)
            except (OSError, ImportError):
                self._http.close()
                raise

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._http.close()
        if self._grpc is not None:
            self._grpc.stop(grace=None).wait()
        self._work.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Blocks until a signal interrupts it or the server ends."""
        self._ended.wait()


def _grpc(served: Served, port: int, limits: Limits, work: concurrent.futures.Executor) -> tuple[Any, int]:
    """A listening gRPC server, and its port."""
    try:
        from bert_keras.savedmodels.server.grpc import serve
    except ImportError as error:
        raise MissingPackageError(
            "gRPC needs TensorFlow Serving's API; pip install 'bert-keras[serving]', or serve REST alone with --no-grpc."
        ) from error
    return serve(served, f"{HOST}:{port}", limits=limits, work=work)
