"""The process of one library: prepares cases and runs them when asked.

    python -m peer_work.worker LIBRARY --threads 2 --clock wall      from the folder of peers.py

In: lines of JSON, such as {"do": "prepare", "name", "case", "folder", "outputs"}. Out: a line of JSON for each.
"""

import argparse
import gc
import pathlib
from collections.abc import Callable
from typing import Any

import interleave
import numpy as np

from peer_work.registry import ALONE, COMPILERS, HUGGING_FACE, IMPLEMENTATIONS
from peer_work.work import FRESH, WARM, Case

MAY_FAIL = COMPILERS  # on a compiler that they do not know; the others must run

MATRIX_SIZES = (1024, 2048)  # either may be faster, by the processor and the format


def _product(library: str, precision: str, size: int) -> Callable[[], Any]:
    """A library's product of two square matrices."""
    if library.removesuffix(ALONE) == HUGGING_FACE:
        import torch

        ready = torch.randn(size, size).to(getattr(torch, precision))
        return torch.inference_mode()(lambda: torch.matmul(ready, ready))
    import tensorflow as tf

    matrix = tf.cast(tf.random.normal([size, size]), precision)
    return tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)


def matrix_rate(library: str, precision: str, *, clock: str) -> float:
    """The speed of a library's fastest product of two square matrices on this machine, in 10^9 operations a second."""
    rates = []
    for size in MATRIX_SIZES:
        product = _product(library, precision, size)
        product()
        rates.append(2e-9 * size**3 / interleave.seconds_per_call(product, at_least=0.5, clock=clock))
    return max(rates)


def set_threads(library: str, threads: int) -> None:
    """Limits the process to that many cores, and the library to as many threads."""
    interleave.hold_to(threads)
    if library.endswith(ALONE):
        library, threads = library.removesuffix(ALONE), 1
    if library == HUGGING_FACE:
        import torch

        torch.set_num_threads(threads)
    elif library != "tokenizers":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


class Worker:
    """Answers requests."""

    def __init__(self, library: str, *, clock: str) -> None:
        self._library, self._clock = library, clock
        self._case: Case | None = None
        self._calls: dict[str, Callable[[], Any]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One of "rate", "prepare" and "time"."""
        if request["do"] == "rate":
            return {"rate": matrix_rate(self._library, request["precision"], clock=self._clock)}
        if request["do"] == "prepare":
            return self._prepare(
                request["name"],
                Case(**request["case"]),
                pathlib.Path(request["folder"]),
                outputs=request["outputs"],
            )
        call, case = self._calls[request["name"]], self._case
        assert case is not None
        if case.kind in FRESH:
            return {"figure": call()["bytes" if case.kind == "memory" else self._clock]}
        return {"figure": interleave.seconds_per_call(call, at_least=request["at_least"], clock=self._clock)}

    def _prepare(self, name: str, case: Case, folder: pathlib.Path, *, outputs: str) -> dict[str, Any]:
        """{}, or the reason why an implementation of MAY_FAIL does not run."""
        if case != self._case:  # the models of the last case are not needed
            self._calls.clear()
            self._case = case
            gc.collect()
        try:
            call, found = IMPLEMENTATIONS[case.kind][name](case, folder)
            if case.kind not in WARM:
                call()  # traces, compiles and allocates
        except Exception as error:
            if name not in MAY_FAIL:
                raise
            return {"failed": f"{type(error).__name__}: {error}"[:300]}
        np.savez(outputs, **found)
        self._calls[name] = call
        return {}


def main() -> None:
    """Serves until the input ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--clock", choices=interleave.CLOCKS, required=True)
    args = parser.parse_args()
    set_threads(args.library, args.threads)
    interleave.serve(Worker(args.library, clock=args.clock).answer)


if __name__ == "__main__":
    main()
