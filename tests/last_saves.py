"""The last saves of two runs, compared bit for bit."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.tasks.training.saver import CHECKPOINTS


def last_save(run: Path) -> tuple[int, dict[str, np.ndarray]]:
    """The step of the last save, and every number in it; beside them stands the run's memory, which holds times."""
    saves = {int(file.stem.rpartition("-")[2]): file for file in (run / CHECKPOINTS).glob("ckpt-*.index")}
    reader = tf.train.load_checkpoint(str(saves[max(saves)].with_suffix("")))
    kinds = reader.get_variable_to_dtype_map()
    return max(saves), {name: reader.get_tensor(name) for name in sorted(kinds) if kinds[name] != tf.string}


def differences(run: Path, unbroken: Path) -> dict:
    (step, found), (last, wanted) = last_save(run), last_save(unbroken)
    differing = {
        name: float(np.abs(np.subtract(found[name], wanted[name], dtype="float64")).max())
        for name in wanted
        if found[name].tobytes() != wanted[name].tobytes()
    }
    return {"steps": [step, last], "variables": len(wanted), "differing": differing}
