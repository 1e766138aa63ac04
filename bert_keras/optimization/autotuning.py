"""Data sets of `tf.data` without autotuning, whose thread can make the end of an iterator wait.

The thread sleeps 10 ms, then twice as long each time. With TensorFlow 2.21, we saw iterators that ended only when it woke: `fit`
took up to twice its time. Without the thread, `AUTOTUNE` stands for the number of cores.
"""

from typing import Any


def without_autotuning(data: Any) -> Any:
    """A tf.data.Dataset without autotuning, unless its options turn it on or off."""
    import tensorflow as tf

    if data.options().autotune.enabled is not None:
        return data
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)
