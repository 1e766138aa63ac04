"""Training on two workers of one core each beside one process with both cores: the ratio, and where the time goes.

    python benchmarks/two_workers.py [--size mini] [--batch-size 32] [--length 128] [--steps 8]    # on two idle cores

All read the same global batches of random ids. A worker computes half of the rows on one core, and adds up its gradients with the
other's over loopback. Times are medians of a step, as multiples of the one process's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def measure(cores: list[int], rows: int, given: argparse.Namespace) -> None:
    """Prints the times of this process: a step, the sum of gradients, the agreement of all workers about signals."""
    os.sched_setaffinity(0, cores)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(len(cores))
    tf.config.threading.set_inter_op_parallelism_threads(len(cores))
    from bert_keras.tasks.devices.strategies import strategy
    from bert_keras.tasks.devices.workers import Workers

    distribution = strategy("multiworker" if "TF_CONFIG" in os.environ else "one")
    import keras
    import numpy as np

    import bert_keras as bk
    from bert_keras.optimization.losses import GlobalMean, cross_entropy
    from bert_keras.optimization.replicas import replica_sum
    from bert_keras.optimization.training_model import TrainingModel
    from bert_keras.tasks.task import classifier_model

    ids = np.random.default_rng(0).integers(5, 30522, (rows, given.length), dtype=np.int32)
    features = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": 0 * ids}
    labels = np.arange(rows, dtype=np.int32) % 2
    batches = tf.data.Dataset.from_tensors((features, labels)).repeat()
    with distribution.scope():
        config = bk.BertConfig.named(given.size, vocab_size=30522)
        made = classifier_model(bk.BertEncoder(config, outputs=("pooled_output",)), 2)
        model = TrainingModel(made._inputs_struct, made._outputs_struct)
        model.compile(bk.AdamW(1e-4), GlobalMean(cross_entropy), jit_compile=False)
    times = list[float]()

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            times.append(time.perf_counter())

    model.fit(batches, steps_per_epoch=given.steps + 2, verbose=0, shuffle=False, callbacks=[Times()])
    gradients = [tf.zeros(one.shape) for one in model.trainable_variables]

    def add_up() -> list[tf.Tensor]:
        return replica_sum(gradients)

    found = {"step": median(times[1:]), "weights": int(model.count_params())}
    if "TF_CONFIG" in os.environ:
        added = tf.function(lambda: distribution.run(add_up), autograph=False)
        found |= {"sum": timed(added, given.steps)}
        found |= {"agree": timed(lambda: Workers(distribution).greatest(0), given.steps)}
    print(json.dumps(found), flush=True)


def median(times: list[float]) -> float:
    """The median time between neighbours, in milliseconds."""
    return 1000 * statistics.median(after - before for before, after in zip(times, times[1:], strict=False))


def timed(call: Callable[[], object], steps: int) -> float:
    """The median time of a call after the first, in milliseconds."""
    times = []
    for _ in range(steps + 2):
        call()
        times.append(time.perf_counter())
    return median(times[1:])


def run(cores: list[list[int]], rows: int, given: argparse.Namespace) -> dict[str, float]:
    """The times of the first of the processes, one for each list of cores."""
    import jobs

    with jobs.ports(len(cores)) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
    processes = []
    for i, own in enumerate(cores):
        environment = jobs.environment() | jobs.cluster(addresses, index=i)
        if len(cores) == 1:
            environment.pop("TF_CONFIG")
        command = [sys.executable, __file__, "--measure", json.dumps([own, rows]), "--size", given.size]
        command += ["--length", str(given.length), "--steps", str(given.steps)]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    printed = [one.communicate() for one in processes]
    if failed := [errors for one, (_, errors) in zip(processes, printed, strict=True) if one.returncode]:
        sys.exit(failed[0][-2000:])
    return json.loads(printed[0][0].splitlines()[-1])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="mini", help="of the encoder (default: mini)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of both workers (default: 32)")
    parser.add_argument("--length", type=int, default=128, help="tokens in a row (default: 128)")
    parser.add_argument("--steps", type=int, default=8, help="steps to measure (default: 8)")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(*given.measure, given)
    first, second, *_ = sorted(os.sched_getaffinity(0))
    whole = run([[first, second]], given.batch_size, given)
    half = run([[first]], given.batch_size // 2, given)
    two = run([[first], [second]], given.batch_size, given)
    print(
        f"{given.size}, {whole['weights']:,} parameters, batches of {given.batch_size} x {given.length} tokens"
    )
    for name, value in (
        ("one process, two cores", whole["step"]),
        ("two workers, one core each", two["step"]),
        ("one process, one core, half of the rows", half["step"]),
        ("the sum of gradients alone", two["sum"]),
        ("the agreement about signals", two["agree"]),
    ):
        print(f"{name:42}{value / whole['step']:9.3f}")


if __name__ == "__main__":
    main()
