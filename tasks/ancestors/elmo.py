"""ELMo: a language model in both directions, from the characters of words (Peters et al. 2018).

    words string [B, N] -> characters int32 [B, N + 2, C] -> word vectors [B, N + 2, P] -> layers float32 [B, L + 1, N, 2 P]

A word is its bytes. Their vectors go through filters of several widths, and the largest value of each filter through highways and
a projection (Kim et al. 2016). Each LSTM projects its output, and clips it. Layer 0 is the word vector, twice; layer k
is the output of LSTM k from the left, then from the right.

The numbers follow allenai/bilm-tf: gates in the order i, j, f, o; 1 is added to the forget gate; `<S>` and `</S>` around a
sentence are read, and their outputs are dropped. The state goes on from batch to batch: a vector depends on the sentences before.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from bert_keras.checkpoints.tensorflow_classes import open_h5
from bert_keras.checkpoints.weights import refuse_not_finite
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.fields import Checked, setting
from bert_keras.io.files import write_json
from bert_keras.io.folders import atomic_folder
from bert_keras.io.json_files import read_object
from bert_keras.text.spelling import SENTENCE_END, SENTENCE_START, spell, spell_mark

CHARACTERS = 261  # rows of `char_embed` in a file, which has none for id 0
ACTIVATIONS = ("relu", "tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLMConfig(Checked):
    """The sizes of a biLM; the defaults are those of the published model."""

    character_size: int = setting(16, help="numbers of a character's vector", at_least=1)
    filter_widths: tuple[int, ...] = setting((1, 2, 3, 4, 5, 6, 7), help="characters that a filter reads")
    filter_counts: tuple[int, ...] = setting((32, 32, 64, 128, 256, 512, 1024), help="filters of each width")
    activation: str = setting("relu", help="of the filters", choices=ACTIVATIONS)
    highways: int = setting(2, help="highway layers", at_least=0)
    max_characters: int = setting(50, help="bytes of a word that are read, with its two marks", at_least=3)
    units: int = setting(4096, help="numbers of an LSTM's cell", at_least=1)
    projection: int = setting(512, help="numbers of an LSTM's output and of a word vector", at_least=1)
    layers: int = setting(2, help="LSTMs of each direction", at_least=1)
    cell_clip: float | None = setting(3.0, help="bound of a cell's numbers", over=0)
    projection_clip: float | None = setting(3.0, help="bound of an LSTM's output", over=0)
    residual: bool = setting(True, help="add the input of an LSTM to its output, from the second on")


# -----------------------------------------------------------------------------------------------------------
# Words -> characters


def characters(words: Any, config: BiLMConfig) -> tf.Tensor:
    """Words string [B, N] -> int32 [B, N + 2, C], with `<S>` before and `</S>` after them. "" is padding at the end of a row."""
    words = tf.convert_to_tensor(words, tf.string)
    size = config.max_characters
    ids, none = spell(words, size), tf.zeros([tf.shape(words)[0], 1, size], tf.int32)
    count = tf.reduce_sum(tf.cast(words != b"", tf.int32), -1)
    start, end = (spell_mark(mark, size) for mark in (SENTENCE_START, SENTENCE_END))
    ids = tf.concat([none + start, ids, none], 1)
    at_end = (tf.range(tf.shape(ids)[1]) == count[:, None] + 1)[..., None]
    return tf.where(at_end, end, ids)


# -----------------------------------------------------------------------------------------------------------
# Characters -> word vectors


class CharacterCNN(keras.layers.Layer):
    """Characters int32 [B, N, C] -> word vectors float32 [B, N, P]."""

    def __init__(self, config: BiLMConfig, *, name: str = "character_cnn", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config, width = config, sum(config.filter_counts)
        self.embedding = keras.layers.Embedding(CHARACTERS, config.character_size, name="char_embed")
        self.filters = [
            keras.layers.Conv1D(count, size, activation=config.activation, name=f"cnn_{i}")
            for i, (size, count) in enumerate(zip(config.filter_widths, config.filter_counts, strict=True))
        ]
        # The carry's bias of -2 lets a highway begin as the identity.
        carry = {"activation": "sigmoid", "bias_initializer": keras.initializers.Constant(-2.0)}
        self.carries = [keras.layers.Dense(width, name=f"carry_{i}", **carry) for i in range(config.highways)]
        self.transforms = [
            keras.layers.Dense(width, activation="relu", name=f"transform_{i}")
            for i in range(config.highways)
        ]
        self.projection = keras.layers.Dense(config.projection, name="projection")

    def build(self, input_shape: Any) -> None:
        width, size = sum(self.config.filter_counts), self.config.character_size
        self.embedding.build(None)
        for one in self.filters:
            one.build((None, self.config.max_characters, size))
        for one in (*self.carries, *self.transforms, self.projection):
            one.build((None, width))
        self.built = True

    def call(self, characters: Any) -> Any:
        count, most = ops.shape(characters)[1], self.config.max_characters
        there = ops.cast(characters > 0, "float32")[..., None]
        vectors = self.embedding(ops.maximum(characters - 1, 0)) * there  # the row of id 0 is zero
        vectors = ops.reshape(vectors, (-1, most, self.config.character_size))
        x = ops.concatenate([ops.max(one(vectors), axis=1) for one in self.filters], axis=-1)
        for carry, transform in zip(self.carries, self.transforms, strict=True):
            gate = carry(x)
            x = gate * transform(x) + (1 - gate) * x
        return ops.reshape(self.projection(x), (-1, count, self.config.projection))


# -----------------------------------------------------------------------------------------------------------
# Word vectors -> layers


class ProjectedLSTMCell(keras.layers.Layer):
    """An LSTM whose output is projected and clipped: float32 [B, D] and its state -> [B, P] (Sak et al. 2014)."""

    def __init__(self, config: BiLMConfig, *, name: str = "cell", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.output_size = config.projection
        self.state_size = [config.projection, config.units]  # of the output, and of the cell

    def build(self, input_shape: Any) -> None:
        units, out = self.config.units, self.config.projection
        self.kernel = self.add_weight(shape=(input_shape[-1] + out, 4 * units), name="kernel")
        self.bias = self.add_weight(shape=(4 * units,), initializer="zeros", name="bias")
        self.projection = self.add_weight(shape=(units, out), name="projection")
        self.built = True

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        before, cell = states
        gates = ops.matmul(ops.concatenate([inputs, before], axis=-1), self.kernel) + self.bias
        i, j, f, o = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(f + 1) * cell + ops.sigmoid(i) * ops.tanh(j)
        cell = _clipped(cell, self.config.cell_clip)
        output = ops.matmul(ops.sigmoid(o) * ops.tanh(cell), self.projection)
        output = _clipped(output, self.config.projection_clip)
        return output, [output, cell]


def _clipped(x: Any, bound: float | None) -> Any:
    return x if bound is None else ops.clip(x, -bound, bound)


class BiLM(keras.Model):
    """Characters int32 [B, N + 2, C], states -> layers float32 [B, L + 1, N, 2 P], the next states.

    states: what the last batch of as many rows returned; None begins with zeros
    """

    def __init__(self, config: BiLMConfig, *, name: str = "bilm", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.words = CharacterCNN(config, dtype=dtype)
        self.lstms = {
            side: [
                keras.layers.RNN(
                    ProjectedLSTMCell(config, dtype=dtype),
                    return_sequences=True,
                    return_state=True,
                    go_backwards=side == "right",
                    name=f"from_the_{side}_{i}",
                )
                for i in range(config.layers)
            ]
            for side in ("left", "right")
        }

    def build(self, input_shape: Any = None) -> None:
        self.words.build(None)
        for lstm in (*self.lstms["left"], *self.lstms["right"]):
            lstm.build((None, None, self.config.projection))
        self.built = True

    def call(self, characters: Any, states: Sequence[Any] | None = None) -> tuple[Any, list[Any]]:
        mask = ops.any(characters > 0, axis=-1)
        vectors = self.words(characters)
        given = iter(states or [None] * 2 * self.config.layers)
        sides, after = [], []
        for side in ("left", "right"):
            x, outputs = vectors, [vectors]
            for i, lstm in enumerate(self.lstms[side]):
                output, *state = lstm(x, mask=mask, initial_state=next(given))
                if side == "right":
                    output = ops.flip(output, axis=1)
                x = output + x if self.config.residual and i else output
                outputs.append(x)
                after.append(state)
            sides.append(ops.stack(outputs, axis=1))
        return ops.concatenate(sides, axis=-1)[:, :, 1:-1], after


# -----------------------------------------------------------------------------------------------------------
# Files of bilm-tf: options.json has the sizes, weights.hdf5 the weights

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
# Names in options.json -> fields.
LSTM = {
    "dim": "units",
    "projection_dim": "projection",
    "n_layers": "layers",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
    "use_skip_connections": "residual",
}
CHARS = {"activation": "activation", "n_highway": "highways", "max_characters_per_token": "max_characters"}


def read(folder: str | pathlib.Path) -> BiLM:
    """The biLM of a folder with options.json and weights.hdf5 (or one other .hdf5 file), as bilm-tf and AllenNLP publish it.

    Raises MissingFileError, and BertKerasError for a file that is damaged, or for sizes and weights that do not fit.
    """
    folder = pathlib.Path(folder)
    config = _read_options(folder / OPTIONS)
    with open_h5(_weights_in(folder)) as (shapes, get):
        wanted = _names(config)
        if lacking := sorted(wanted.keys() - shapes.keys()):
            raise BertKerasError(
                f"{folder} has no {lacking[0]}, which {OPTIONS} asks for; give the two files of one model."
            )
        if wrong := [name for name in wanted if shapes[name] != wanted[name]]:
            raise BertKerasError(
                f"{wrong[0]} of {folder} is {shapes[wrong[0]]}, and {OPTIONS} asks for {wanted[wrong[0]]}; give the two files of "
                "one model."
            )
        tensors = {name: np.asarray(get(name), np.float32) for name in wanted}
    for name, tensor in tensors.items():
        refuse_not_finite(tensor, named=f"{folder}: {name}")
    model = BiLM(config)
    model.build()
    for name, variable in _variables(model).items():
        variable.assign(tensors[name].reshape(variable.shape))
    return model


def write(model: BiLM, folder: str | pathlib.Path) -> None:
    """Writes options.json and weights.hdf5, as `read` and bilm-tf read them. Raises TakenError for a folder with files."""
    config, shapes = model.config, _names(model.config)
    with atomic_folder(pathlib.Path(folder)) as made:
        write_json(made / OPTIONS, _options(config))
        with h5py.File(made / WEIGHTS, "w") as file:
            for name, variable in _variables(model).items():
                file[name] = variable.numpy().reshape(shapes[name])


def _weights_in(folder: pathlib.Path) -> pathlib.Path:
    found = [folder / WEIGHTS] if (folder / WEIGHTS).exists() else sorted(folder.glob("*weights*.hdf5"))
    if len(found) != 1:
        raise MissingFileError(
            f"{folder} has {len(found)} files of weights; wanted {WEIGHTS} beside {OPTIONS}."
        )
    return found[0]


def _read_options(file: pathlib.Path) -> BiLMConfig:
    """The sizes. Raises BertKerasError for a value that no biLM has, and for a model without characters."""
    options = read_object(file)
    lstm, chars = options.get("lstm"), options.get("char_cnn")
    if not isinstance(lstm, Mapping) or not isinstance(chars, Mapping):
        raise BertKerasError(
            f"{file}: wanted the objects lstm and char_cnn; a biLM without characters is not read."
        )
    fields = {ours: lstm[name] for name, ours in LSTM.items() if name in lstm}
    fields |= {ours: chars[name] for name, ours in CHARS.items() if name in chars}
    try:
        widths, counts = zip(*chars["filters"], strict=True)
        fields |= {
            "filter_widths": widths,
            "filter_counts": counts,
            "character_size": chars["embedding"]["dim"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise BertKerasError(
            f"{file}: char_cnn needs filters, as [width, count], and embedding.dim."
        ) from error
    return BiLMConfig(**fields)


def _options(config: BiLMConfig) -> dict[str, Any]:
    lstm = {name: getattr(config, ours) for name, ours in LSTM.items()}
    chars = {name: getattr(config, ours) for name, ours in CHARS.items()}
    chars["filters"] = [list(one) for one in zip(config.filter_widths, config.filter_counts, strict=True)]
    # 262 with id 0, as a released model has it; a model in training counts 261.
    return {
        "lstm": lstm,
        "char_cnn": {**chars, "embedding": {"dim": config.character_size}, "n_characters": CHARACTERS + 1},
    }


def _variables(model: BiLM) -> dict[str, Any]:
    """The variables by their names in a file."""
    words = model.words
    found = {"char_embed": words.embedding.embeddings}
    for i, one in enumerate(words.filters):
        found |= {f"CNN/W_cnn_{i}": one.kernel, f"CNN/b_cnn_{i}": one.bias}
    for i, (carry, transform) in enumerate(zip(words.carries, words.transforms, strict=True)):
        for name, one in (("carry", carry), ("transform", transform)):
            found |= {f"CNN_high_{i}/W_{name}": one.kernel, f"CNN_high_{i}/b_{name}": one.bias}
    found |= {"CNN_proj/W_proj": words.projection.kernel, "CNN_proj/b_proj": words.projection.bias}
    for side, name in enumerate(("left", "right")):
        for i, lstm in enumerate(model.lstms[name]):
            at = f"RNN_{side}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            cell = lstm.cell
            found |= {f"{at}/W_0": cell.kernel, f"{at}/B": cell.bias, f"{at}/W_P_0": cell.projection}
    return found


def _names(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    """The shapes in a file, by name, without the variables: a file cannot make a model larger than itself."""
    width, size, out = sum(config.filter_counts), config.character_size, config.projection
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (CHARACTERS, size)}
    for i, (reach, count) in enumerate(zip(config.filter_widths, config.filter_counts, strict=True)):
        shapes |= {f"CNN/W_cnn_{i}": (1, reach, size, count), f"CNN/b_cnn_{i}": (count,)}
    for i in range(config.highways):
        for name in ("carry", "transform"):
            shapes |= {f"CNN_high_{i}/W_{name}": (width, width), f"CNN_high_{i}/b_{name}": (width,)}
    shapes |= {"CNN_proj/W_proj": (width, out), "CNN_proj/b_proj": (out,)}
    for side in (0, 1):
        for i in range(config.layers):
            at = f"RNN_{side}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            shapes |= {
                f"{at}/W_0": (2 * out, 4 * config.units),
                f"{at}/B": (4 * config.units,),
                f"{at}/W_P_0": (config.units, out),
            }
    return shapes
