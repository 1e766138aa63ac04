"""A pre-training that is not finished, as a checkpoint: its last save, for `info` and `fill-mask`.

    RUN/checkpoints/model/   config.json, the vocabulary, and names.json: our name of a weight -> its number in a save

The training writes the folder when it begins; a save has the values (tasks/training/saver.py).
"""

import pathlib
from typing import NamedTuple

import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.weights import named_variables, refuse_not_finite
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io import formats
from bert_keras.io.files import write_json
from bert_keras.io.json_files import INTEGER, checked_fields, object_of, read_object
from bert_keras.io.paths import for_tensorflow
from bert_keras.optimization.pretrainers import Pretrainer
from bert_keras.tasks.pretraining.model import heads_on
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.tasks.training.saver import CHECKPOINTS, SETTINGS, saves_in
from bert_keras.text.tokenizer import Tokenizer

MODEL, NAMES = "model", "names.json"


def describe(path: pathlib.Path, model: Pretrainer, tokenizer: Tokenizer) -> None:
    """Writes the folder below that of the run."""
    folder, encoder = path / CHECKPOINTS / MODEL, model.encoder
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {id(variable): number for number, variable in enumerate(model.variables)}
    named = named_variables(encoder, heads_on(model, encoder))
    write_json(folder / "config.json", encoder.config.to_hugging_face())
    write_tokenizer(tokenizer.to_vocabulary(), folder, max_length=encoder.config.max_length)
    write_json(folder / NAMES, {name: numbers[id(variable)] for name, variable in named.items()})


class Unfinished(NamedTuple):
    """A pre-training at the step of its last save, of so many steps."""

    step: int
    steps: int
    checkpoint: checkpoints.Checkpoint

    def __str__(self) -> str:
        return f"an unfinished pre-training, at step {self.step:,} of {self.steps:,}"


def read_unfinished(path: pathlib.Path) -> Unfinished | None:
    """The last save of an unfinished pre-training; None for another folder.

    Raises BertKerasError where nothing is saved yet, for a save that is damaged, and for a format of another version.
    """
    folder = path / CHECKPOINTS
    if (path / RESULTS_FILE).is_file() or not (folder / MODEL / NAMES).is_file():
        return None
    settings = read_object(folder / SETTINGS)
    formats.check_format(formats.RUN, settings, where=folder / SETTINGS)
    if not (saves := saves_in(folder)):
        raise BertKerasError(f"{path} is an unfinished pre-training without a save; run its command again.")
    file = folder / MODEL / NAMES
    names = checked_fields({"names": read_object(file)}, {"names": object_of(INTEGER)}, where=file)["names"]
    config = BertConfig.from_hugging_face(read_object(folder / MODEL / "config.json"), strict=True)
    try:
        with for_tensorflow(folder) as named:
            save = tf.train.load_checkpoint(str(named / f"ckpt-{saves[0]}"))
            tensors = {
                name: save.get_tensor(f"variables/{number}/.ATTRIBUTES/VARIABLE_VALUE")
                for name, number in names.items()
            }
    except (tf.errors.OpError, ValueError) as error:
        raise BertKerasError(
            f"the save of step {saves[0]:,} in {folder} is damaged; run the command again."
        ) from error
    for name, tensor in tensors.items():
        refuse_not_finite(tensor, named=f"{name} in {folder}")
    steps = checked_fields(settings, {"steps": INTEGER}, where=folder / SETTINGS, others=True)
    made = checkpoints.Checkpoint(
        config=config, tensors=tensors, vocabulary=read_tokenizer(folder / MODEL), path=str(path)
    )
    return Unfinished(saves[0], steps["steps"], made)
