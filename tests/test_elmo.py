"""A biLM equals the original code's vectors, and its files come back equal."""

import dataclasses
import json

import h5py
import numpy as np
import pytest

from bert_keras.errors import BertKerasError
from bert_keras.tasks.ancestors import elmo


@pytest.fixture(scope="module")
def folder(data_dir):
    """A small biLM of the original code, and vectors that this code computed."""
    if not (data_dir / "elmo").is_dir():
        pytest.skip("no elmo in the real data")
    return data_dir / "elmo"


def test_vectors_equal_the_original_codes_with_the_state_of_the_batches_before(folder):
    model = elmo.read(folder)
    lists = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    states, worst = None, 0.0
    for i, sentences in enumerate(zip(*lists, strict=True)):
        words = [sentence.split() for sentence in sentences]
        longest = max(map(len, words))
        padded = [one + [""] * (longest - len(one)) for one in words]
        layers, states = model(elmo.characters(padded, model.config), states)
        for k, one in enumerate(words):
            with h5py.File(folder / f"lm_embeddings_{k}.hdf5") as file:
                wanted = np.concatenate(file[str(i)][()], axis=-1)
            worst = max(worst, np.abs(layers.numpy()[k, -1, : len(one)] - wanted).max())
    assert worst < 2e-6


SMALL = elmo.BiLMConfig(
    character_size=3,
    filter_widths=(1, 2),
    filter_counts=(4, 5),
    highways=1,
    max_characters=8,
    units=6,
    projection=5,
)


def filled(config, seed=0):
    """A biLM of random weights, large enough that clips, gates and biases matter."""
    model, draw = elmo.BiLM(config), np.random.default_rng(seed)
    model.build()
    for variable in model.weights:
        variable.assign(draw.normal(0, 0.7, variable.shape))
    return model


def test_a_word_is_its_bytes_between_two_marks():
    rows = elmo.characters([["ab", "\u00e9"], ["abcdefgh", ""]], SMALL).numpy()
    assert rows.tolist() == [
        [
            [259, 257, 260, 261, 261, 261, 261, 261],  # <S>
            [259, 98, 99, 260, 261, 261, 261, 261],  # a b
            [259, 196, 170, 260, 261, 261, 261, 261],  # two bytes of UTF-8
            [259, 258, 260, 261, 261, 261, 261, 261],  # </S>
        ],
        [
            [259, 257, 260, 261, 261, 261, 261, 261],
            [259, 98, 99, 100, 101, 102, 103, 260],  # cut to six bytes
            [259, 258, 260, 261, 261, 261, 261, 261],
            [0] * 8,
        ],
    ]


def test_a_file_comes_back_with_equal_weights_and_sizes(tmp_path):
    model = filled(SMALL)
    elmo.write(model, tmp_path / "made")
    again = elmo.read(tmp_path / "made")
    assert again.config == SMALL
    for one, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda options: options["lstm"].update(dim=7), "W_0"),
        (lambda options: options["lstm"].update(n_layers=3), "no RNN_0/RNN/MultiRNNCell/Cell2"),
        (lambda options: options["char_cnn"].update(activation="selu"), "activation"),
        (lambda options: options["char_cnn"].update(filters=[[1]]), "filters"),
        (lambda options: options.pop("char_cnn"), "without characters"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_model_is_made(tmp_path, change, message, monkeypatch):
    elmo.write(filled(SMALL), tmp_path / "made")
    options = json.loads((tmp_path / "made" / "options.json").read_text())
    change(options)
    (tmp_path / "made" / "options.json").write_text(json.dumps(options))
    monkeypatch.setattr(elmo, "BiLM", None)
    with pytest.raises(BertKerasError, match=message):
        elmo.read(tmp_path / "made")


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("residual", [False, True])
def test_every_layer_equals_torchs_lstm_without_clips(residual):
    torch = pytest.importorskip("torch")
    config = dataclasses.replace(SMALL, cell_clip=None, projection_clip=None, residual=residual)
    model = filled(config)
    words = elmo.characters([["a", "bc", "def"], ["gh", "", ""]], config)
    first, states = model(words)
    second, _ = model(words, states)
    x = torch.tensor(model.words(words).numpy())
    for side, name in enumerate(("left", "right")):
        lstms = [as_torch(torch, lstm.cell) for lstm in model.lstms[name]]
        for row, count in enumerate((5, 3)):  # with <S> and </S>
            given = x[row, :count] if name == "left" else x[row, :count].flip(0)
            after = [None] * config.layers
            for layers in (first, second):  # the second time with the states of the first
                outputs = [given]
                for i, lstm in enumerate(lstms):
                    output, after[i] = lstm(outputs[-1], after[i])
                    outputs.append(output + outputs[-1] if residual and i else output)
                for layer, wanted in enumerate(outputs):
                    wanted = wanted if name == "left" else wanted.flip(0)
                    found = layers.numpy()[row, layer, : count - 2, 5 * side : 5 * (side + 1)]
                    np.testing.assert_allclose(found, wanted[1:-1].detach().numpy(), atol=1e-5)


def as_torch(torch, cell):
    """torch's LSTM with the weights of ours."""
    kernel, bias, projection = (one.numpy() for one in (cell.kernel, cell.bias, cell.projection))
    size = len(kernel) - cell.config.projection
    lstm = torch.nn.LSTM(size, cell.config.units, proj_size=cell.config.projection)
    i, j, f, o = np.split(kernel, 4, axis=1)
    kernel = np.concatenate([i, f, j, o], axis=1).T  # torch: i, f, g, o
    i, j, f, o = np.split(bias, 4)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor(kernel[:, :size]))
        lstm.weight_hh_l0.copy_(torch.tensor(kernel[:, size:]))
        lstm.bias_ih_l0.copy_(torch.tensor(np.concatenate([i, f + 1, j, o])))
        lstm.bias_hh_l0.zero_()
        lstm.weight_hr_l0.copy_(torch.tensor(projection.T))
    return lstm
