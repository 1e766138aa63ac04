"""A training's graph goes when its model goes, so that a grid of many runs needs the memory of one."""

import functools
import gc
import weakref

import pytest
import runs
import tensorflow as tf

from bert_keras.encoder import BertEncoder
from tasks.glue.data_sets import ROWS
from tasks.glue.task import Glue
from tasks.settings import Hparams
from tasks.training.finetune import finetune
from tasks.training.task_model import free_memory

FEATURES = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 4}


@pytest.mark.parametrize(
    "how", [{}, {"micro_batch": 4}, FEATURES], ids=["plain", "micro-batches", "features"]
)
def test_graphs_of_a_finished_training_are_freed(how, tmp_path, monkeypatch):
    graphs, call = [], BertEncoder.call

    @functools.wraps(call)
    def recorded(self, *given, **options):
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return call(self, *given, **options)

    monkeypatch.setattr(BertEncoder, "call", recorded)
    runs.write_checkpoint(tmp_path / "checkpoint", num_layers=1)
    runs.write_data(tmp_path / "data", "sst2")
    hparams = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=24, **how)
    task = Glue(ROWS["sst2"], tmp_path / "data")
    finetune(task, checkpoint=tmp_path / "checkpoint", output=tmp_path / "run", hparams=hparams, verbose=0)
    free_memory()
    gc.collect()
    assert graphs and not [graph() for graph in graphs if graph() is not None]
