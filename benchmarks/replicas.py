"""Compares 50 training steps on several replicas and processes with those of one device: the greatest difference of a weight.

    python benchmarks/replicas.py                    # every kind of training; some minutes
    python benchmarks/replicas.py --kinds classifier

All read the same global batches of 12 rows, the fifth of 7, which no number of replicas here divides. Weights of rows differ a
thousandfold, every step is clipped, and there is no dropout. Logical CPUs stand for GPUs, processes on loopback for machines.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_accumulation import KINDS, differences, made_by  # noqa: E402

# Name, strategy, logical CPUs of each process, rows of a micro-batch (0: all).
CASES = (
    ("one device", "one", 1, 3),
    ("two replicas", "mirrored", 2, 0),
    ("two replicas", "mirrored", 2, 2),
    ("two processes", "multiworker", 1, 0),
    ("two processes", "multiworker", 1, 2),
    ("two processes of two replicas", "multiworker", 2, 0),
    ("two processes of two replicas", "multiworker", 2, 2),
)


def main() -> None:
    """Prints a row for each case, with a column for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    kinds = parser.parse_args().kinds
    print(" | ".join(["", "rows at once", *kinds]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.npz"
        whole = made_by("one", file, *(f"{kind}:0" for kind in kinds))
        for strategy, cpus in dict.fromkeys((case[1], case[2]) for case in CASES):
            chosen = [case for case in CASES if case[1:3] == (strategy, cpus)]
            jobs = [f"{kind}:{case[3]}" for case in chosen for kind in kinds]
            workers = 2 if strategy == "multiworker" else 1
            found = made_by(strategy, file, *jobs, replicas=cpus, workers=workers)
            for name, _, _, rows in chosen:
                worst = [max(differences(found, f"{kind}:{rows}", whole, kind).values()) for kind in kinds]
                cells = [name, str(rows or "all"), *(f"{value:.1e}" for value in worst)]
                print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
