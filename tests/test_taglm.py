"""TagLM: its states in NumPy, and a run that trains, stops, resumes, measures, answers and serves as others do."""

import signal

import keras
import numpy as np
import pytest
import runs
import small_tasks
import tensorflow as tf
from test_every_task import stopped_after

import bert_keras as bk
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.model.feature_bilstm import bilstm_of, bilstm_parameters
from bert_keras.savedmodels.export import export
from bert_keras.tasks.ancestors.taglm import FILTERS, WORD_SIZE, TagLM
from bert_keras.tasks.batches import predict
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.run_folder import load_run

ELMO = {
    "encoder": "elmo",
    "num_layers": 2,
    "num_heads": 1,
    "hidden_size": 16,
    "intermediate_size": 12,
    "type_vocab_size": 0,
    "max_characters": 8,
    "encoder_settings": {
        "character_size": 4,
        "filter_widths": [1, 2],
        "filter_counts": [4, 8],
        "highways": 1,
    },
}
READER = {"feature_layers": "1,2", "lstm_layers": 3, "lstm_units": 3, "lstm_dropout": 0.0}
LENGTHS, SIZE = (6, 4), 7  # of the rows; bytes of a word with its marks


def filled(max_characters=SIZE):
    """A TagLM whose weights all matter, and its arguments: two rows of words and the vectors of two layers."""
    draw = np.random.default_rng(5)
    layer = TagLM(vocab_size=9, max_characters=max_characters, **READER)
    layer.build((None, None, 2, 5))
    for one in layer.weights:
        one.assign(draw.normal(0, 0.5, one.shape))
    mask = np.arange(6) < np.array(LENGTHS)[:, None]
    characters = draw.integers(1, 262, (2, 6, SIZE)) * mask[..., None]
    vectors = draw.normal(0, 1, (2, 6, 2, 5)).astype("float32")
    return layer, [vectors, mask, draw.integers(1, 9, (2, 6)) * mask, characters]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, cell):
    """Keras' LSTM: [N, D] -> [N, U]; gates in the order i, f, c, o."""
    kernel, recurrent, bias = (np.float64(one) for one in (cell.kernel, cell.recurrent_kernel, cell.bias))
    h = c = np.zeros(len(recurrent))
    found = []
    for one in x:
        i, f, new, o = np.split(one @ kernel + h @ recurrent + bias, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return np.array(found)


def bilstm(x, layer):
    backward = lstm(x[::-1], layer.backward_layer.cell)[::-1]
    return np.concatenate([lstm(x, layer.forward_layer.cell), backward], axis=-1)


def of_characters(rows, layer):
    """The largest value of each filter over the characters of a word: [N, C] -> [N, 30]."""
    letters = np.float64(layer.embedding.embeddings)[rows - 1]
    kernel, bias = (np.float64(one) for one in layer.filters[0].weights)
    windows = np.stack([letters[:, i : i + 3] for i in range(rows.shape[1] - 2)], axis=1)
    return np.tanh(np.einsum("nwcd,cdf->nwf", windows, kernel) + bias).max(1)


@pytest.mark.parametrize("max_characters", [SIZE, 0])
def test_states_equal_numpy_and_the_vectors_join_before_the_second_bilstm(max_characters):
    layer, given = filled(max_characters)
    vectors, mask, ids, characters = given
    given = given if max_characters else given[:3]
    found = np.asarray(layer(*given))
    for row, length in enumerate(LENGTHS):
        words = np.float64(layer.words.word_embeddings)[ids[row, :length]]
        if max_characters:
            words = np.concatenate([words, of_characters(characters[row, :length], layer.characters)], -1)
        states = bilstm(words, layer.bilstms[0])
        states = bilstm(
            np.concatenate([states, vectors[row, :length].reshape(length, -1)], -1), layer.bilstms[1]
        )
        np.testing.assert_allclose(found[row, :length], bilstm(states, layer.bilstms[2]), atol=1e-5)
    assert layer.compute_output_shape(vectors.shape) == found.shape == (2, 6, 6)


def test_its_file_and_its_size():
    layer, given = filled()
    again = TagLM.from_config(layer.get_config())
    again.build((None, None, 2, 5))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*given), layer(*given))
    config = BertConfig(**ELMO | {"vocab_size": 9, "hidden_size": 5, "num_layers": 3, "max_characters": SIZE})
    counted = bilstm_parameters(config, layer.settings)
    assert counted == sum(one.count_params() for one in layer.bilstms)
    assert layer.input_widths(10) == [WORD_SIZE + FILTERS, 16, 6]


def test_a_new_word_has_a_vector_and_one_layer_has_no_place_for_the_vectors():
    layer, (vectors, mask, ids, characters) = filled()
    beyond = np.asarray(layer(vectors, mask, np.where(ids == 3, 1000, ids), characters))
    assert np.isfinite(beyond).all()
    with pytest.raises(BertKerasError, match="lstm_layers must be 2 or more if feature_reader is taglm"):
        Hparams(feature_layers="last", feature_reader="taglm", lstm_layers=1)
    with pytest.raises(BertKerasError, match="feature_reader must be bilstm without feature_layers"):
        Hparams(feature_reader="taglm")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a small ELMo and entities, and the command that trains a tagger on them, without its output."""
    folder = tmp_path_factory.mktemp("taglm")
    runs.write_checkpoint(folder / "checkpoint", **ELMO)
    small_tasks.write_entities(folder / "data", count=8)
    flags = "--feature-layers last --feature-reader taglm --lstm-units 4 --epochs 2 --batch-size 4 --seq-length 24 --crf --quiet"
    given = ["--task", "conll2003", "--data", folder / "data", "--checkpoint", folder / "checkpoint"]
    return folder, ["finetune", *given, *flags.split()]


@pytest.fixture(scope="module")
def run(made):
    folder, command = made
    assert runs.command([*command, "--output", folder / "run"]) == 0
    return folder / "run"


@pytest.mark.long
@pytest.mark.slow
def test_a_run_learns_its_words_and_measures_as_it_was_measured(made, run):
    loaded = load_run(run, data=made[0] / "data")
    assert not loaded.encoder.trainable_variables
    layer = bilstm_of(loaded.model)
    assert isinstance(layer, TagLM)
    assert np.abs(layer.words.word_embeddings).max() > 0.5 / WORD_SIZE  # where every word began
    answers, raw = predict(loaded.task, loaded.preprocess, loaded.model, loaded.task.examples("validation"))
    measures = {f"val_{name}": value for name, value in loaded.task.evaluate(answers, raw)}
    assert measures == pytest.approx(runs.results(run)["measures"], rel=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_a_stopped_run_resumes_to_the_same_bits_and_serves_raw_sentences(made, run, tmp_path):
    command = [*made[1], "--output", tmp_path / "run"]
    with stopped_after(2):
        assert runs.command(command) == 128 + signal.SIGINT
    assert runs.command(command) == 0
    assert runs.outcome(tmp_path / "run") == runs.outcome(run)
    texts = ["a good actor", "the film"]
    answers = bk.load(run).predict(texts)["tags"]
    folder = export(load_run(run), tmp_path / "served")
    served = tf.saved_model.load(str(folder)).signatures["serving_default"](text=tf.constant(texts))
    assert served["tags"].numpy().tolist() == [one.encode() for one in answers]


def test_a_word_piece_encoder_has_a_table_of_its_pieces(tiny):
    """A string model: an encoder without characters, its words, and a file."""
    keras.utils.set_random_seed(1)
    reader = {"feature_layers": "last", "feature_reader": "taglm", "lstm_units": 4}
    model = bk.tagger(tiny, ["PER"], **reader)
    layer = bilstm_of(model.network)
    assert layer.characters is None and layer.words.word_embeddings.shape == (
        model.encoder.config.vocab_size,
        WORD_SIZE,
    )
