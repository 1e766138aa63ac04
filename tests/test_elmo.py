"""A biLM equals the original code's vectors, and its files come back equal."""

import dataclasses
import json

import h5py
import numpy as np
import pretrainings
import pytest
import runs
import small_tasks

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.checkpoints.weights import named_variables
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS
from bert_keras.tasks.ancestors import elmo
from bert_keras.tasks.frozen.extractor import FEATURES, Extractor, Rows, rows_in
from bert_keras.tasks.pretraining.pretrain import Pretraining, pretrain
from bert_keras.text.preprocessing import Preprocessor


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


# -----------------------------------------------------------------------------------------------------------
# The encoder: ELMo in the tasks, and its training

SENTENCES = ["good film , sapphires", "Z\u00fcrich"]
ROWS = [["<S>", "good", "film", ",", "sapphires", "</S>"], ["<S>", "Z\u00fcrich", "</S>"]]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The two files of a small biLM, its model, and the checkpoint that `convert` makes of it."""
    folder = tmp_path_factory.mktemp("elmo")
    model = filled(SMALL)
    elmo.write(model, folder / "published")
    assert runs.command(["convert", "--from", folder / "published", "--to", folder / "made"]) == 0
    return folder, model


def test_published_files_become_a_checkpoint_for_tasks_and_come_back(published):
    folder, model = published
    encoder = checkpoints.load_encoder(folder / "made", fresh=("pooler",))
    assert isinstance(encoder, elmo.ElmoEncoder) and elmo.bilm_config(encoder.config) == SMALL
    assert elmo.encoder_config(SMALL, vocab_size=6) == encoder.config
    found = {name: tuple(one.shape) for name, one in named_variables(encoder, {}).items()}
    assert found == elmo.ElmoEncoder.shapes(encoder.config)
    back = folder / "back"
    assert runs.command(["convert", "--from", folder / "made", "--to", back, "--format", "elmo"]) == 0
    assert json.loads((back / "options.json").read_text()) == json.loads(
        (folder / "published" / "options.json").read_text()
    )
    for one, other in zip(model.weights, elmo.read(back).weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    with pytest.raises(BertKerasError, match="its encoder is bert; wanted elmo"):
        elmo.write_checkpoint(checkpoints.Checkpoint(config=BertConfig.named("tiny"), tensors={}), back)


def test_frozen_vectors_of_raw_sentences_are_the_bilms_at_each_word_and_mark(published):
    folder, model = published
    source = checkpoints.read(folder / "made")
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=10, pad_to_longest=True)
    features = {name: value.numpy() for name, value in preprocess(SENTENCES).items()}
    assert set(features["input_word_ids"][0, 1:5]) == {1}  # [UNK]: a vector does not need a word's id
    extractor = Extractor(source=source, units=Rows(SMALL.max_characters), places=[0, 1, 2], dtype="float32")
    found = [one["vectors"] for one in extractor([{FEATURES: row} for row in rows_in(features)])]
    for row, words in zip(found, ROWS, strict=True):
        layers, _ = model.layers_of(elmo.characters([words[1:-1]], SMALL))
        wanted = np.stack(layers, axis=2)[0]
        assert row.shape == wanted.shape == (len(words), 3, 10)
        np.testing.assert_allclose(row, wanted, atol=1e-6)


def test_an_encoder_without_characters_or_of_wrong_settings_is_refused(published):
    folder, _ = published
    encoder = checkpoints.load_encoder(folder / "made", fresh=("pooler",))
    three = {name: np.ones((1, 2), np.int32) for name in ENCODER_INPUTS}
    with pytest.raises(BertKerasError, match="elmo reads input_characters too"):
        encoder(three)
    for change, message in (
        ({"hidden_size": 9}, "hidden_size is 9"),
        ({"encoder_settings": {"units": 3}}, "encoder_settings has units, which elmo has not; wanted"),
        ({"max_characters": 2}, "max_characters is 2"),
    ):
        with pytest.raises(BertKerasError, match=message):
            elmo.bilm_config(dataclasses.replace(encoder.config, **change))


TINY = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 1,
    "intermediate_size": 24,
    "max_characters": 8,
    "encoder_settings": {
        "character_size": 4,
        "filter_widths": [1, 2, 3],
        "filter_counts": [8, 8, 16],
        "highways": 1,
    },
    "softmax_samples": 0,
    "hidden_dropout": 0.0,
    "learning_rate": 4e-2,
    "steps": 80,
    "eval_every": 40,
    "log_every": 20,
    "seq_length": 24,
    "held_out_instances": 16,
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    run = tmp_path_factory.mktemp("elmo") / "run"
    held_out = pretrainings.documents(6, seed=5)
    return run, pretrainings.train(run, "elmo", changes=TINY, held_out=held_out)


@pytest.mark.long
def test_the_recipe_beats_unigrams_and_resumes_to_the_bit(pretrained, tmp_path):
    run, results = pretrained
    measures, baselines = results["measures"], results["majority_baselines"]
    assert measures["held_out_next_words_perplexity"] < baselines["next_words_perplexity"]

    def stop(line):
        if line.startswith("step 40, held out"):
            raise KeyboardInterrupt

    again = Pretraining(
        **pretrainings.given("elmo", changes=TINY, held_out=pretrainings.documents(6, seed=5))
    )
    with pytest.raises(KeyboardInterrupt):
        pretrain(again, tmp_path / "run", save_every=20, log=stop, verbose=0)
    pretrain(again, tmp_path / "run", save_every=20, log=lambda line: None, verbose=0)
    one, other = checkpoints.read(run).tensors, checkpoints.read(tmp_path / "run").tensors
    assert {*one} == {*other} and any(name.startswith("next_words/") for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.long
@pytest.mark.slow
def test_its_frozen_vectors_tag_entities_and_an_export_answers_raw_sentences(pretrained, tmp_path):
    data = small_tasks.write_entities(tmp_path / "data", count=8)
    flags = "--feature-layers 0+1+2 --lstm-layers 1 --lstm-units 4 --epochs 1 --seq-length 24"
    train = ["finetune", "--task", "conll2003", "--data", data, "--checkpoint", pretrained[0], *flags.split()]
    assert runs.command([*train, "--output", tmp_path / "run"]) == 0
    answers = bk.load(tmp_path / "run").predict(["a sapphire actor"])
    export = ["export", "--run", tmp_path / "run", "--output", tmp_path / "served"]
    assert runs.command([str(one) for one in export]) == 0
    assert len(answers["tags"][0].split()) == 3  # and `export` compared its answers, in a process of its own
