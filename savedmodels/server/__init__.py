"""A development server: TensorFlow Serving's REST and gRPC Predict on loopback, from an exported folder alone.

    POST /v1/models/NAME[/versions/N]:predict      {"signature_name": ..., "instances": [...]} or {"inputs": {...}}
    GET  /v1/models/NAME[/versions/N][/metadata]
    gRPC PredictionService Predict and GetModelMetadata, ModelService GetModelStatus

It has limits on rows, text and time, but no batching and no second model: TensorFlow Serving is for production. gRPC needs the
`serving` extra.

Source: TensorFlow Serving, RESTful API and tensorflow_serving/apis.
"""

import concurrent.futures
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from bert_keras.errors import MissingPackageError
from savedmodels.server.http import Http
from savedmodels.server.served import HOST, Limits, Served

WORKERS = 8  # requests that are decoded and encoded at a time; the model runs one batch at a time


class Server:
    """Both servers on threads of their own, from `with` to its end.

    port, grpc_port: of REST and gRPC; 0 takes a free one, a grpc_port of None has no gRPC
    limits: of every request
    hosts: names in a Host header that are answered besides localhost, 127.0.0.1 and [::1]

    Raises OSError where a port is taken, ImportError where gRPC is wanted without the `serving` extra.
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
    """A gRPC server that listens, and its port."""
    try:
        from savedmodels.server.grpc import serve
    except ImportError as error:
        raise MissingPackageError(
            "gRPC needs TensorFlow Serving's API; pip install 'bert-keras[serving]'."
        ) from error
    return serve(served, f"{HOST}:{port}", limits=limits, work=work)
