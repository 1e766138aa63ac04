"""The shapes that a TPU needs, with a stand-in for its strategy: nothing of a TPU runs here."""

import pytest
import tensorflow as tf
from runs import VOCABULARY

from bert_keras.errors import BertKerasError
from bert_keras.io.files import file_errors
from bert_keras.optimization import replicas
from bert_keras.tasks.devices.strategies import check_micro_batch, in_replicas, padded_for, strategy
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece


class Tpu(tf.distribute.TPUStrategy):
    """Two replicas. `run` compiles on the CPU, as a TPU does, for one replica after the other."""

    num_replicas_in_sync = 2

    def __init__(self):
        pass

    def run(self, call, args=()):
        return tf.function(call, jit_compile=True)(*args)

    def experimental_local_results(self, value):
        return (value,)


class Replica:
    """The context of the second replica, whose rows are gathered as those of both."""

    num_replicas_in_sync, replica_id_in_sync_group = 2, 1


def test_rows_are_filled_up_to_one_shape(monkeypatch):
    monkeypatch.setattr(tf.distribute, "get_replica_context", Replica)
    monkeypatch.setattr(replicas, "replica_sum", lambda placed: tf.stack([placed[1], placed[1]]))
    shapes = []

    def call(rows):
        shapes.append(rows.shape)
        return rows * 2

    made = in_replicas(Tpu(), call, batch_size=7)
    traced = tf.function(made).get_concrete_function(tf.TensorSpec([None, 3]))
    assert shapes == [(4, 3)], "half of eight rows, known to XLA"
    # Rows 4 to 6 and a copy of the first, for each of the two replicas.
    assert traced(tf.reshape(tf.range(21.0), [7, 3]))[:, 0].numpy().tolist() == [24, 30, 36, 0, 24, 30, 36]


def test_texts_are_padded_to_one_length():
    longest = Preprocessor(WordPiece(VOCABULARY), seq_length=12, pad_to_longest=True, truncation="waterfall")
    made = padded_for(Tpu(), longest)
    assert (made.seq_length, made.truncation, made.pad_to_longest) == (12, "waterfall", False)
    assert padded_for(strategy("one"), longest) is longest


def test_micro_batches_that_do_not_divide_the_rows_are_refused():
    check_micro_batch(Tpu(), batch_size=7, micro_batch=2)
    check_micro_batch(strategy("one"), batch_size=7, micro_batch=3)
    with pytest.raises(BertKerasError, match="micro_batch is 3, and each replica of the TPU has 4 rows"):
        check_micro_batch(Tpu(), batch_size=7, micro_batch=3)


def test_a_lost_worker_is_no_error_of_a_file():
    with pytest.raises(tf.errors.UnavailableError), file_errors():
        raise tf.errors.UnavailableError(None, None, "a worker has ended")
    with pytest.raises(OSError, match="cannot write"), file_errors():
        raise tf.errors.ResourceExhaustedError(None, None, "no space")
