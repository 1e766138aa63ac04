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

from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.checkpoints.tensorflow_classes import open_h5
from bert_keras.checkpoints.weights import refuse_not_finite, weights_of
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import INPUT_CHARACTERS
from bert_keras.fields import Checked, names_of, setting
from bert_keras.io.files import write_json
from bert_keras.io.folders import atomic_folder
from bert_keras.io.json_files import read_object
from bert_keras.tasks.ancestors.encoder import AncestorEncoder, Shapes
from bert_keras.text.spelling import SENTENCE_END, SENTENCE_START, spell, spell_mark
from bert_keras.text.vocabulary import Vocabulary

CHARACTERS = 261  # rows of `char_embed` in a file, which has none for id 0
ACTIVATIONS = ("relu", "tanh")


# The fields of BertConfig that every ELMo has, and those that a size of the biLM stands in.
ELMO: dict[str, Any] = {"encoder": "elmo", "num_heads": 1, "type_vocab_size": 0, "max_positions": 8_192}
OF_CONFIG = {
    "layers": "num_layers",
    "units": "intermediate_size",
    "max_characters": "max_characters",
    "dropout": "hidden_dropout",
}


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
    dropout: float = setting(
        0.0, help="of the inputs of each LSTM and of the last output, in training", at_least=0, below=1
    )


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
    """Characters int32 [B, N, C] -> word vectors float32 [B, N, P]; without the projection, P is the number of filters."""

    def __init__(
        self, config: BiLMConfig, *, project: bool = True, name: str = "character_cnn", dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config, width = config, sum(config.filter_counts)
        wide = keras.initializers.RandomUniform(-1.0, 1.0)  # allenai/bilm-tf training.py
        self.embedding = keras.layers.Embedding(CHARACTERS, config.character_size, wide, name="char_embed")
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
        self.projections = [keras.layers.Dense(config.projection, name="projection")] if project else []

    def build(self, input_shape: Any) -> None:
        width, size = sum(self.config.filter_counts), self.config.character_size
        self.embedding.build(None)
        for one in self.filters:
            one.build((None, self.config.max_characters, size))
        for one in (*self.carries, *self.transforms, *self.projections):
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
        for projection in self.projections:
            x = projection(x)
        return ops.reshape(x, (-1, count, x.shape[-1]))


# -----------------------------------------------------------------------------------------------------------
# Word vectors -> layers


class ProjectedLSTMCell(keras.layers.Layer):
    """An LSTM whose output is projected and clipped: gates float32 [B, 4 U] and its state -> [B, P] (Sak et al. 2014).

    The gates are the part that the input decides: `gates` computes them for all words at once, before the words take their turns.
    """

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

    def gates(self, inputs: Any) -> Any:
        """Float32 [B, N, D] -> [B, N, 4 U]."""
        return ops.matmul(inputs, self.kernel[: inputs.shape[-1]]) + self.bias

    def call(self, gates: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        before, cell = states
        gates += ops.matmul(before, self.kernel[-self.config.projection :])
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
        self.dropout = keras.layers.Dropout(config.dropout, name="dropout", dtype=dtype)
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

    @property
    def parts(self) -> list[Any]:
        """The layers with variables, from below."""
        return [self.words, *self.lstms["left"], *self.lstms["right"]]

    def build(self, input_shape: Any = None) -> None:
        for part in self.parts:
            part.build((None, None, self.config.projection))
        self.built = True

    def call(self, characters: Any, states: Sequence[Any] | None = None) -> tuple[Any, list[Any]]:
        layers, after = self.layers_of(characters, states)
        return ops.stack(layers, axis=1)[:, :, 1:-1], after

    def layers_of(
        self, characters: Any, states: Sequence[Any] | None = None, *, training: bool = False
    ) -> tuple[list[Any], list[Any]]:
        """As `call`, but L + 1 layers float32 [B, N + 2, 2 P], with the outputs of `<S>` and `</S>`."""
        mask = ops.any(characters > 0, axis=-1)
        vectors = self.words(characters)
        given = iter(states or [None] * 2 * self.config.layers)
        sides, after = [], []
        for side in ("left", "right"):
            x, outputs = vectors, [vectors]
            for i, lstm in enumerate(self.lstms[side]):
                x = self.dropout(x, training=training)
                output, *state = lstm(lstm.cell.gates(x), mask=mask, initial_state=next(given))
                if side == "right":
                    output = ops.flip(output, axis=1)
                x = output + x if self.config.residual and i else output
                outputs.append(x)
                after.append(state)
            sides.append([*outputs[:-1], self.dropout(x, training=training)])
        return [ops.concatenate(pair, axis=-1) for pair in zip(*sides, strict=True)], after


class ElmoEncoder(AncestorEncoder):
    """ELMo as an encoder: the biLM's layers at every position of a row, [CLS] and [SEP] included.

    hidden_size is 2 P, num_layers the LSTMs of a direction, intermediate_size their units, hidden_dropout that before and after
    each LSTM, and encoder_settings has the other fields of BiLMConfig. [CLS] reads as `<S>` and [SEP] as `</S>`.

    The states are zeros before each row. The original's are those after the batch before, in training and where it computes
    vectors; here the batch of a step depends on the seed and the step alone, and a vector on its row.
    """

    directions = 2

    def make(self, config: BertConfig) -> list[Any]:
        self.bilm = BiLM(bilm_config(config), dtype=self.dtype_policy)
        self.bilm.build()
        return self.bilm.parts

    def states(self, features: Mapping[str, Any], training: bool = False) -> list[Any]:
        if INPUT_CHARACTERS not in features:
            raise BertKerasError(
                f"the inputs are {', '.join(features)}, and elmo reads {INPUT_CHARACTERS} too, the bytes of each word; take the "
                "preprocessor of its checkpoint."
            )
        return self.bilm.layers_of(features[INPUT_CHARACTERS], training=training)[0]

    @classmethod
    def layer_shapes(cls, config: BertConfig) -> Shapes:
        return {ours: shape for ours, (_, shape, _) in _rows(bilm_config(config)).items()}


def bilm_config(config: BertConfig) -> BiLMConfig:
    """The sizes of the biLM of a configuration. Raises BertKerasError for a setting or a size that no biLM has."""
    given, known = config.encoder_settings or {}, {*names_of(BiLMConfig)} - {*OF_CONFIG, "projection"}
    if wrong := sorted({*given} - known):
        raise BertKerasError(
            f"encoder_settings has {wrong[0]}, which elmo has not; wanted {', '.join(sorted(known))}."
        )
    if config.hidden_size % 2:
        raise BertKerasError(
            f"hidden_size is {config.hidden_size}; each direction of elmo has half of it: make it even."
        )
    sizes = {name: getattr(config, theirs) for name, theirs in OF_CONFIG.items()}
    return BiLMConfig(**given, **sizes, projection=config.hidden_size // 2)


def encoder_config(config: BiLMConfig, *, vocab_size: int) -> BertConfig:
    """The inverse of `bilm_config`."""
    sizes = {theirs: getattr(config, name) for name, theirs in OF_CONFIG.items()}
    given = {name: value for name, value in dataclasses.asdict(config).items() if name not in OF_CONFIG}
    hidden_size = 2 * given.pop("projection")
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return BertConfig(vocab_size=vocab_size, hidden_size=hidden_size, encoder_settings=given, **ELMO, **sizes)


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
    config, tensors = _read_tensors(pathlib.Path(folder))
    model = BiLM(config)
    model.build()
    for name, variable in _variables(model).items():
        variable.assign(tensors[name])
    return model


def read_checkpoint(folder: str | pathlib.Path, vocabulary: Vocabulary) -> Checkpoint:
    """The same files as a checkpoint for tasks, whose encoder is an ElmoEncoder. Raises the errors of `read`.

    vocabulary: of whole words; words that it lacks have vectors too, by their characters
    """
    config, tensors = _read_tensors(pathlib.Path(folder))
    made = encoder_config(config, vocab_size=len(vocabulary.tokens or ()))
    return Checkpoint(config=made, tensors=tensors, vocabulary=vocabulary, format="elmo", path=str(folder))


def write(model: BiLM, folder: str | pathlib.Path) -> None:
    """Writes options.json and weights.hdf5, as `read` and bilm-tf read them. Raises TakenError for a folder with files."""
    tensors = {name: variable.numpy() for name, variable in _variables(model).items()}
    _write_tensors(model.config, tensors, pathlib.Path(folder))


def write_checkpoint(
    checkpoint: Checkpoint, folder: str | pathlib.Path, *, format: str = "elmo"
) -> list[str]:
    """As `write`, for a checkpoint of an ElmoEncoder; returns the weights that the files have no place for.

    Raises BertKerasError for a checkpoint of another encoder.
    """
    if checkpoint.config.encoder != ELMO["encoder"]:
        raise BertKerasError(f"{checkpoint.prefix}its encoder is {checkpoint.config.encoder}; wanted elmo.")
    config = bilm_config(checkpoint.config)
    _write_tensors(config, checkpoint.tensors, pathlib.Path(folder))
    return sorted({*checkpoint.tensors} - {*_rows(config)})


def _read_tensors(folder: pathlib.Path) -> tuple[BiLMConfig, dict[str, np.ndarray]]:
    """The sizes, and our name -> array. Both files are checked before an array is read."""
    config = _read_options(folder / OPTIONS)
    rows = _rows(config)
    wanted = {theirs: shape for theirs, _, shape in rows.values()}
    with open_h5(_weights_in(folder)) as (shapes, get):
        if lacking := sorted(wanted.keys() - shapes.keys()):
            raise BertKerasError(
                f"{folder} has no {lacking[0]}, which {OPTIONS} asks for; give the two files of one model."
            )
        if wrong := [name for name in wanted if shapes[name] != wanted[name]]:
            raise BertKerasError(
                f"{wrong[0]} of {folder} is {shapes[wrong[0]]}, and {OPTIONS} asks for {wanted[wrong[0]]}; give the two files of "
                "one model."
            )
        tensors = {
            ours: np.asarray(get(theirs), np.float32).reshape(shape)
            for ours, (theirs, shape, _) in rows.items()
        }
    for name, tensor in tensors.items():
        refuse_not_finite(tensor, named=f"{folder}: {rows[name][0]}")
    return config, tensors


def _write_tensors(config: BiLMConfig, tensors: Mapping[str, np.ndarray], folder: pathlib.Path) -> None:
    with atomic_folder(folder) as made:
        write_json(made / OPTIONS, _options(config))
        with h5py.File(made / WEIGHTS, "w") as file:
            for ours, (theirs, _, shape) in _rows(config).items():
                file[theirs] = np.asarray(tensors[ours], np.float32).reshape(shape)


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
    """Our name -> variable."""
    return {name: one for part in model.parts for name, one in weights_of(part, part.name).items()}


def _rows(config: BiLMConfig) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Our name -> the name in a file, our shape, and the shape in a file. A file cannot make a model larger than itself."""
    width, size, out, units = (
        sum(config.filter_counts),
        config.character_size,
        config.projection,
        config.units,
    )
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "char_embed/embeddings": ("char_embed", (CHARACTERS, size))
    }
    for i, (reach, count) in enumerate(zip(config.filter_widths, config.filter_counts, strict=True)):
        shapes[f"cnn_{i}/kernel"] = (f"CNN/W_cnn_{i}", (1, reach, size, count))
        shapes[f"cnn_{i}/bias"] = (f"CNN/b_cnn_{i}", (count,))
    for i in range(config.highways):
        for name in ("carry", "transform"):
            shapes[f"{name}_{i}/kernel"] = (f"CNN_high_{i}/W_{name}", (width, width))
            shapes[f"{name}_{i}/bias"] = (f"CNN_high_{i}/b_{name}", (width,))
    shapes |= {
        "projection/kernel": ("CNN_proj/W_proj", (width, out)),
        "projection/bias": ("CNN_proj/b_proj", (out,)),
    }
    shapes = {f"character_cnn/{ours}": row for ours, row in shapes.items()}
    for side, name in enumerate(("left", "right")):
        for i in range(config.layers):
            cell, theirs = f"from_the_{name}_{i}/cell", f"RNN_{side}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            shapes[f"{cell}/kernel"] = (f"{theirs}/W_0", (2 * out, 4 * units))
            shapes[f"{cell}/bias"] = (f"{theirs}/B", (4 * units,))
            shapes[f"{cell}/projection"] = (f"{theirs}/W_P_0", (units, out))
    # A filter of text is an image's of height 1 there.
    return {ours: (name, shape[-3:], shape) for ours, (name, shape) in shapes.items()}
