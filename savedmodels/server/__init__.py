"""A server for an exported folder: TensorFlow Serving's REST and gRPC Predict, on loopback unless `--host` says otherwise.

    POST /v1/models/NAME[/versions/N]:predict      {"signature_name": ..., "instances": [...]} or {"inputs": {...}}
    GET  /v1/models/NAME[/versions/N][/metadata]
    GET  /healthz, /readyz, /metrics
    GET  /                                         a page for people
    gRPC PredictionService Predict and GetModelMetadata, ModelService GetModelStatus

It limits rows, text and time: the limits are the fields of `bert_keras.tasks.options.ServerOptions`. It does not batch requests
or serve several models: docs/deploy.md compares it with TensorFlow Serving.
gRPC needs the `serving` extra.

Source: TensorFlow Serving, RESTful API and tensorflow_serving/apis.
"""

import concurrent.futures
import threading
from collections.abc import Collection
from typing import Any, Self

from bert_keras.errors import MissingPackageError
from bert_keras.savedmodels.server.log import Log
from bert_keras.savedmodels.server.metrics import Metrics
from bert_keras.savedmodels.server.rest import DRAIN, Http
from bert_keras.savedmodels.server.senders import Senders
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.tasks.options import ServerOptions

WORKERS = 8  # requests decoded or encoded at the same time; the model runs one batch at a time


class Server:
    """A context manager that runs the REST and the gRPC server, each on its own thread.

    versions: of a model; a `Watcher` may change them
    options: the ports, and the limits of every request
    hosts: names that a Host header may have besides localhost, 127.0.0.1 and [::1]
    origins: web pages of other origins that may send requests and read answers
    log: takes a line for each request, unless the options leave these out, and a line about an error outside of a request

    At its end it takes no new requests, and waits up to DRAIN seconds for those that run.
    Raises OSError if a port is in use, MissingPackageError for gRPC without the `serving` extra.
    """

    def __init__(
        self,
        versions: Versions,
        options: ServerOptions,
        *,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        log: Log = lambda line: None,
    ) -> None:
        senders, metrics = Senders((*hosts, options.own_host), origins), Metrics(versions)
        self._ended = threading.Event()
        self._work = concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="request")
        self._http = Http(versions, options, senders=senders, work=self._work, metrics=metrics, log=log)
        self.port = self._http.port
        self._grpc: Any = None
        self.grpc_port: int | None = None
        if options.no_grpc:
            return
        try:
            from bert_keras.savedmodels.server.grpc import serve

            self._grpc, self.grpc_port = serve(versions, options, work=self._work, metrics=metrics, log=log)
        except ImportError as error:
            self._http.close()
            raise MissingPackageError(
                "gRPC needs TensorFlow Serving's API; pip install 'bert-keras[serving]', or serve REST alone with --no-grpc."
            ) from error
        except OSError:
            self._http.close()
            raise

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        stopped = None if self._grpc is None else self._grpc.stop(grace=DRAIN)
        self._http.close()
        if stopped is not None:
            stopped.wait()
        self._work.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Blocks until a signal interrupts it or the server ends."""
        self._ended.wait()
