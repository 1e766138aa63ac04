"""Training on two workers of one core each beside one process with both cores: the ratio, and where the time goes.

    PYTHONPATH=. python benchmarks/two_workers.py          # on an idle machine with two cores or more; a minute

All read the same global batches of random ids. A worker computes half of the rows on one core, and adds up its gradients with the
other's over loopback. Times are medians of a step, in milliseconds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

SIZE, BATCH, LENGTH, STEPS = "mini", 32, 128, 8


def measure(cores: list[int], rows: int) -> None:
    """Prints the times of this process: a step, the sum of gradients, the agreement of all workers about signals."""
    os.sched_setaffinity(0, cores)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(len(cores))
    tf.config.threading.set_inter_op_parallelism_threads(len(cores))
    from tasks.training.strategies import strategy
    from tasks.training.workers import Workers

    distribution = strategy("multiworker" if "TF_CONFIG" in os.environ else "one")
    import keras
    import numpy as np

    import bert_keras as bk
    from bert_keras.losses import GlobalMean, cross_entropy
    from bert_keras.training_model import TrainingModel
    from tasks.task import classifier_model

    ids = np.random.default_rng(0).integers(5, 30522, (rows, LENGTH), dtype=np.int32)
    features = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": 0 * ids}
    labels = np.arange(rows, dtype=np.int32) % 2
    batches = tf.data.Dataset.from_tensors((features, labels)).repeat()
    with distribution.scope():
        config = bk.BertConfig.named(SIZE, vocab_size=30522)
        made = classifier_model(bk.BertEncoder(config, outputs=("pooled_output",)), 2)
        model = TrainingModel(made._inputs_struct, made._outputs_struct)
        model.compile(bk.AdamW(1e-4), GlobalMean(cross_entropy), jit_compile=False)
    times = list[float]()

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            times.append(time.perf_counter())

    model.fit(batches, steps_per_epoch=STEPS + 2, verbose=0, shuffle=False, callbacks=[Times()])
    gradients = [tf.zeros(one.shape) for one in model.trainable_variables]

    def add_up() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", gradients)

    found = {"step": median(times[1:]), "weights": int(model.count_params())}
    if "TF_CONFIG" in os.environ:
        added = tf.function(lambda: distribution.run(add_up), autograph=False)
        found |= {"sum": timed(added), "agree": timed(lambda: Workers(distribution).greatest(0))}
    print(json.dumps(found), flush=True)


def median(times: list[float]) -> float:
    """The median time between neighbours, in milliseconds."""
    return 1000 * statistics.median(after - before for before, after in zip(times, times[1:], strict=False))


def timed(call: object) -> float:
    """The median time of a call after the first, in milliseconds."""
    times = []
    for _ in range(STEPS + 2):
        call()
        times.append(time.perf_counter())
    return median(times[1:])


def run(cores: list[list[int]], rows: int) -> dict[str, float]:
    """The times of the first of the processes, one for each list of cores."""
    import clusters

    addresses = [f"127.0.0.1:{port}" for port in clusters.ports(len(cores))]
    processes = []
    for i, own in enumerate(cores):
        environment = clusters.environment(i, addresses)
        if len(cores) == 1:
            environment.pop("TF_CONFIG")
        command = [sys.executable, __file__, "--measure", json.dumps(own), str(rows)]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    printed = [one.communicate() for one in processes]
    if any(one.returncode for one in processes):
        sys.exit(printed[0][1][-2000:])
    return json.loads(printed[0][0].splitlines()[-1])


def main() -> None:
    """Prints the table."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    whole = run([[first, second]], BATCH)
    half = run([[first]], BATCH // 2)
    two = run([[first], [second]], BATCH)
    print(f"{SIZE}, {whole['weights']:,} parameters, batches of {BATCH} x {LENGTH} tokens")
    for name, value in (
        ("one process, two cores", whole["step"]),
        ("two workers, one core each", two["step"]),
        ("one process, one core, half of the rows", half["step"]),
        ("the sum of gradients alone", two["sum"]),
        ("the agreement about signals", two["agree"]),
    ):
        print(f"{name:42}{value:9.1f} ms")
    print(f"two workers take {two['step'] / whole['step']:.2f} times as long as one process")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
