"""The .h5 files of keras-bert and bert-for-tf2, genuine: equal states, and one line for what cannot be read."""

import shutil

import numpy as np
import pytest
from random_checkpoints import refused

from bert_keras import checkpoints
from bert_keras.features import ENCODER_INPUTS, SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder

LIBRARIES = ["keras-bert", "bert-for-tf2"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_states_equal_those_of_the_library_that_wrote_the_file(name, published):
    folder = published / "keras_2" / name
    with np.load(folder / "expected.npz") as kept:
        expected = dict(kept)
    for path in (folder, folder / "trained.h5"):
        checkpoint = checkpoints.read(path)
        assert (checkpoint.format, checkpoint.config.activation) == ("keras-2", "gelu_tanh")
        assert [name.rpartition("/")[2] for name in checkpoint.unknown] == [
            "bias:0",
            "kernel:0",
        ]  # the user's dense layer
    encoder = BertEncoder(checkpoint.config, outputs=[SEQUENCE_OUTPUT])
    checkpoints.assign(checkpoint, encoder)
    found = encoder({name: expected[name] for name in ENCODER_INPUTS})[SEQUENCE_OUTPUT]
    wanted = expected[SEQUENCE_OUTPUT]
    assert np.max(np.abs(found - wanted)) <= 1e-5 * max(1, np.max(np.abs(wanted)))
    assert checkpoint.vocabulary.tokens[:2] == ("[PAD]", "[UNK]")


FAULTS = [
    (lambda folder: (folder / "bert_config.json").unlink(), "no bert_config.json in .*, which holds trained.h5"),
    (lambda folder: (folder / "trained.h5").write_bytes(b"\x89HDF\r\n\x1a\n"), "no checkpoint at .*trained.h5 is cut short"),
    (lambda folder: shutil.copy(folder / "trained.h5", folder / "again.h5"), "has again.h5, trained.h5; give one of"),
    (lambda folder: shrink(folder / "bert_config.json"), "has shape .*; the config wants"),
]  # fmt: skip


def shrink(file):
    file.write_text(file.read_text().replace('"intermediate_size": 24', '"intermediate_size": 32'))


@pytest.mark.parametrize("case", range(len(FAULTS)))
def test_other_files_are_refused_in_one_line(case, published, tmp_path):
    damage, message = FAULTS[case]
    folder = shutil.copytree(published / "keras_2" / "keras-bert", tmp_path / "own")
    damage(folder)
    refused(message, checkpoints.read, folder, error=ValueError)
