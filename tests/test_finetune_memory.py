"""A training's graph goes when its model goes, so that a grid of many runs needs the memory of one."""

import functools
import gc
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import jobs
import pytest
import runs
import tensorflow as tf

from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.training.task_model import free_memory

FEATURES = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 4}


def graphs_made_and_left(folder: str | Path, strategy: str = "one", **how: Any) -> tuple[int, int]:
    """Fine-tunes a tiny encoder in a folder, and counts the graphs of the encoder. how: fields of Hparams."""
    folder = Path(folder)
    graphs, call = list[weakref.ref](), BertEncoder.call

    @functools.wraps(call)
    def recorded(self: BertEncoder, *given: Any, **options: Any) -> Any:
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return call(self, *given, **options)

    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "data", "sst2")
    hparams = Hparams(epochs=1, batch_size=8, learning_rate=1e-3, seq_length=24, **how)
    task = TextClassification.open("sst2", folder / "data")
    with mock.patch.object(BertEncoder, "call", recorded):
        finetune(
            task,
            checkpoint=folder / "checkpoint",
            output=folder / "run",
            hparams=hparams,
            strategy_name=strategy,
            verbose=0,
            log=lambda line: None,
        )
    free_memory()
    gc.collect()
    return len(graphs), sum(graph() is not None for graph in graphs)


@pytest.mark.parametrize(
    "how", [{}, {"micro_batch": 4}, FEATURES], ids=["plain", "micro-batches", "features"]
)
def test_graphs_of_a_finished_training_are_freed(how, tmp_path):
    made, left = graphs_made_and_left(tmp_path, **how)
    assert made and not left


def test_graphs_of_two_replicas_are_freed(tmp_path):
    arguments = {"folder": tmp_path, "strategy": "mirrored"}
    made, left = jobs.value("test_finetune_memory:graphs_made_and_left", arguments, replicas=2)
    assert made and not left
