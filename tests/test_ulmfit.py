"""AWD-LSTM against a second implementation, its dropouts, and the three stages of ULMFiT by their commands."""

import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
import runs
import small_tasks
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.checkpoints.weights import weights_of
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.model.encoder import encoder_inputs
from bert_keras.model.encoders import make_encoder
from bert_keras.model.feature_bilstm import OUTPUTS, FeatureEncoder
from bert_keras.optimization.optimizers import AdamW, depths
from bert_keras.savedmodels.export import export
from bert_keras.tasks.batches import predict
from bert_keras.tasks.runs.run_folder import load_run

NO_DROPOUT = dict.fromkeys(
    ("embedding_dropout", "input_dropout", "layer_dropout", "output_dropout", "weight_dropout"), 0.0
)
CONFIG = BertConfig(
    encoder="awd-lstm",
    encoder_settings=NO_DROPOUT,
    causal=True,
    vocab_size=50,
    hidden_size=8,
    num_layers=3,
    num_heads=1,
    intermediate_size=12,
    max_positions=20,
    initializer_range=0.5,
)


def made(**rates):
    keras.utils.set_random_seed(3)
    config = dataclasses.replace(CONFIG, encoder_settings=NO_DROPOUT | rates)
    return make_encoder(config, outputs=OUTPUTS)


def features(ids, mask=None):
    ids = np.asarray(ids, np.int32)
    mask = np.ones_like(ids) if mask is None else np.asarray(mask, np.int32)
    return {INPUT_WORD_IDS: ids, INPUT_MASK: mask, INPUT_TYPE_IDS: np.zeros_like(ids)}


IDS = np.random.default_rng(0).integers(1, 50, (4, 9))


def states(encoder, given, **how):
    outputs = encoder(given, **how)
    return [one.numpy() for one in (outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS])]


def test_variables_and_widths_are_those_of_the_configuration():
    encoder = made()
    found = {
        path: tuple(one.shape) for part in encoder.parts for path, one in weights_of(part, part.name).items()
    }
    assert found == variable_shapes(encoder.config)
    assert [one.shape[-1] for one in states(encoder, features(IDS))] == [8, 12, 12, 8]
    symbolic = encoder(encoder_inputs())[ENCODER_OUTPUTS]
    assert [tuple(one.shape) for one in symbolic] == [(None, None, width) for width in (12, 12, 8)]


@pytest.mark.parity
def test_states_equal_torch_with_the_same_dropped_weights(monkeypatch):
    torch = pytest.importorskip("torch")
    encoder = made(weight_dropout=0.5)
    worst, x = 0.0, torch.tensor(encoder.embeddings(IDS).numpy())
    for block in encoder.blocks:
        kernel, dropped, bias = block.cell.kernel.numpy(), block.dropped().numpy(), block.cell.bias.numpy()
        assert (dropped == 0).mean() == pytest.approx(0.5, abs=0.15)
        monkeypatch.setattr(block, "dropped", lambda dropped=dropped: tf.constant(dropped))
        theirs = torch.nn.LSTM(kernel.shape[0], dropped.shape[0], batch_first=True)
        values = {
            "weight_ih_l0": kernel.T,
            "weight_hh_l0": dropped.T,
            "bias_ih_l0": bias,
            "bias_hh_l0": 0 * bias,
        }
        theirs.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
        x = theirs(x)[0].detach()
        ours = block(encoder.embeddings(IDS) if block is encoder.blocks[0] else ours, training=True)  # noqa: F821
        worst = max(worst, np.abs(ours.numpy() - x.numpy()).max())
    assert worst < 1e-5
    np.testing.assert_allclose(states(encoder, features(IDS), training=True)[-1], x.numpy(), atol=1e-5)


def test_states_read_no_later_word_and_no_padding():
    encoder = made()
    whole, later = states(encoder, features(IDS)), IDS.copy()
    later[:, 5:] = 1
    for one, other in zip(whole, states(encoder, features(later)), strict=True):
        np.testing.assert_allclose(one[:, :5], other[:, :5], atol=1e-6)
    mask = np.ones_like(IDS)
    mask[:, 6:] = 0
    for one, other in zip(whole[1:], states(encoder, features(IDS, mask))[1:], strict=True):
        np.testing.assert_allclose(one[:, :6], other[:, :6], atol=1e-6)
        np.testing.assert_array_equal(other[:, 5], other[:, 8])


def test_dropout_of_words_is_of_whole_words_and_that_of_states_is_the_same_at_all_steps():
    """In training, a number is 0 at every step of a text or at none; a word is 0 wherever it stands."""
    plain, ids = states(made(), features(IDS % 5)), IDS % 5
    inputs = states(made(input_dropout=0.4), features(ids), training=True)[0]
    ratio = np.round(inputs / plain[0], 4)
    assert {*np.unique(ratio)} == {0.0, np.float32(1.6667)} and (ratio == ratio[:, :1]).all()
    assert (ratio[0, 0] != ratio[1, 0]).any(), "each text has a mask of its own"
    words = states(made(embedding_dropout=0.5), features(ids), training=True)[0] / plain[0]
    by_word = {int(id_): {*np.unique(words[ids == id_])} for id_ in np.unique(ids)}
    assert all(len(values) == 1 for values in by_word.values()) and len({*words.ravel()}) == 2
    outputs = states(made(output_dropout=0.4), features(ids), training=True)[-1]
    assert ((outputs == 0) == (outputs == 0)[:, :1]).all() and 0 < (outputs == 0).mean() < 1


def test_evaluation_drops_nothing_and_weights_that_are_dropped_have_no_gradient(monkeypatch):
    every, none = made(**dict.fromkeys(NO_DROPOUT, 0.5)), made()
    for one, other in zip(states(every, features(IDS)), states(none, features(IDS)), strict=True):
        np.testing.assert_array_equal(one, other)
    block = made(weight_dropout=0.5).blocks[0]
    mask = (np.random.default_rng(1).random(block.cell.recurrent_kernel.shape) < 0.5).astype("float32")
    monkeypatch.setattr(block, "dropped", lambda: block.cell.recurrent_kernel * mask)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(tf.random.normal((2, 5, 8)), training=True) ** 2)
    gradient = tape.gradient(loss, block.cell.recurrent_kernel.value).numpy()
    assert (gradient[mask == 0] == 0).all() and (gradient[mask == 1] != 0).mean() > 0.9
    assert block.cell.recurrent_kernel.numpy()[mask == 0].any(), "the raw weights stay"


@pytest.mark.parametrize("layers", ["1", "weighted_sum_all"])
def test_layers_of_another_width_are_refused(layers):
    settings = {"feature_layers": layers, "lstm_layers": 0, "lstm_units": 4, "lstm_dropout": 0.0}
    with pytest.raises(BertKerasError, match=r"layer 1 of awd-lstm has vectors of 12 .* 8; .* width: 0, 3"):
        FeatureEncoder(CONFIG, **settings)
    FeatureEncoder(CONFIG, **settings | {"feature_layers": "last"})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"encoder_settings": {"dropout": 0.1}},
            "awd-lstm has no encoder_settings dropout; it has embedding_",
        ),
        ({"encoder_settings": {"weight_dropout": 1.0}}, "weight_dropout is 1.0"),
        ({"causal": False}, "awd-lstm reads from the left; set causal"),
    ],
)
def test_settings_that_no_encoder_has(changes, match):
    with pytest.raises(BertKerasError, match=match):
        make_encoder(dataclasses.replace(CONFIG, **changes))


def test_lower_layers_learn_less_and_gradual_unfreezing_freezes_them():
    encoder = made()
    variables = encoder.trainable_variables
    depth = {one.path.split("/")[-3 if "cell" in one.path else -2]: d for one, d in zip(
        variables, depths([one.path for one in variables]), strict=True
    )}  # fmt: skip
    assert depth == {"embeddings": 4, "block_0": 3, "block_1": 2, "block_2": 1}
    before = [one.numpy() for one in variables]
    optimizer = AdamW(
        1e-2, layer_decay=0.5, gradual=True, bias_correction=True, weight_decay=0, clip_norm=None
    )
    optimizer.build(variables)
    optimizer.learn_to_depth(2)
    optimizer.apply([tf.ones(one.shape) for one in variables], variables)
    for one, was in zip(variables, before, strict=True):
        (found,) = {float(step) for step in np.unique(np.round(was - one.numpy(), 5))}
        name = next(part for part in depth if part in one.path)
        assert found == pytest.approx(1e-2 * 0.5 ** depth[name] if depth[name] <= 2 else 0, abs=2e-5), (
            one.path
        )


# -----------------------------------------------------------------------------------------------------------
# The three stages

SIZES = [
    "--hidden-size",
    24,
    "--num-layers",
    2,
    "--intermediate-size",
    32,
    "--seq-length",
    12,
    "--max-positions",
    48,
]
STEPS = [
    "--batch-size",
    16,
    "--log-every",
    10,
    "--eval-every",
    20,
    "--held-out",
    0.2,
    "--held-out-instances",
    40,
]


def write_text(path, *, seed):
    """Text in which a word decides the next one but for one word of three."""
    draw, follows = (
        np.random.default_rng(seed),
        dict(zip(runs._WORDS, runs._WORDS[5:] + runs._WORDS[:5], strict=True)),
    )
    documents = []
    for _ in range(40):
        words = ["good"]
        for _ in range(60):
            words.append(follows[words[-1]] if draw.random() < 0.8 else str(draw.choice(runs._WORDS)))
        documents.append(" ".join(words[:30]) + "\n" + " ".join(words[30:]))
    path.write_text("\n\n".join(documents) + "\n")
    return path


def stage_1(folder, output):
    vocabulary = ["--vocab", folder / "vocab", "--text", folder / "general.txt"]
    flags = ["--recipe", "ulmfit", *vocabulary, *SIZES, *STEPS, "--steps", 40, "--output", output]
    rates = json.dumps(dict.fromkeys(NO_DROPOUT, 0.05))
    flags += ["--initializer-range", 0.3, "--learning-rate", 5e-2]  # so that 40 steps are enough
    return ["pretrain", *flags, "--encoder-settings", rates, "--save-every", 20]


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A folder with the runs of stages 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("ulmfit")
    for name, more in {"vocab": (), "larger": ("superb",)}.items():
        (folder / name).mkdir()
        (folder / name / "vocab.txt").write_text("\n".join((*runs.VOCABULARY[:-200], *more)) + "\n")
        (folder / name / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    write_text(folder / "general.txt", seed=1)
    write_text(folder / "task.txt", seed=2)
    runs.write_data(folder / "data", "sst2", count=small_tasks.ROWS)
    assert runs.command(stage_1(folder, folder / "one")) == 0
    flags = ["--recipe", "ulmfit", "--checkpoint", folder / "one", "--text", folder / "task.txt"]
    flags += ["--vocab", folder / "larger", "--layer-decay", 0.4, "--seq-length", 12, *STEPS, "--steps", 20]
    assert runs.command(["pretrain", *flags, "--output", folder / "two"]) == 0
    flags = ["--task", "sst2", "--data", folder / "data", "--checkpoint", folder / "two", "--epochs", 3]
    flags += ["--pooling", "concat", "--unfreeze", "gradual", "--layer-decay", 0.4, "--batch-size", 4]
    flags += [
        "--schedule",
        "slanted_triangular",
        "--seq-length",
        32,
        "--learning-rate",
        1e-2,
        "--keep",
        "last",
    ]
    assert runs.command(["finetune", *flags, "--output", folder / "three"]) == 0
    return folder


def held_out(run):
    content = json.loads((run / "results.json").read_text())
    (name,) = (name for name in content["majority_baselines"] if name.endswith("_perplexity"))
    found = [row[f"held_out_{name}"] for row in content["history"] if f"held_out_{name}" in row]
    return found, content["majority_baselines"][name]


def test_the_recipe_learns_more_than_unigrams(stages):
    found, unigrams = held_out(stages / "one")
    assert found[-1] < 0.75 * unigrams  # each word follows from the one before it
    again, _ = held_out(stages / "two")
    assert again[-1] <= found[-1] * 1.05


def test_a_stopped_pre_training_resumes_to_the_same_bits(stages, tmp_path):
    """From the save of step 20 of 40."""
    shutil.copytree(stages / "one", tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    for file in (tmp_path / "run" / "checkpoints").glob("ckpt-40.*"):
        file.unlink()
    assert runs.command(stage_1(stages, tmp_path / "run")) == 0
    assert runs.outcome(tmp_path / "run") == runs.outcome(stages / "one")
    ours, theirs = (checkpoints.read(folder).tensors for folder in (tmp_path / "run", stages / "one"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_the_second_stage_grows_the_tables(stages):
    one, two = (checkpoints.read(stages / name) for name in ("one", "two"))
    rows = [len(run.tensors["embeddings/word_embeddings"]) for run in (one, two)]
    assert rows[1] == rows[0] + 1 and two.vocabulary.tokens[-1] == "superb"


@pytest.mark.slow
def test_the_classifier_answers_the_same_after_a_reload_and_from_an_export(stages, tmp_path):
    """The measures of the training are those of the reloaded run; the export answers raw strings as `predict` does."""
    run = load_run(stages / "three", data=stages / "data")
    assert run.model.get_layer("concat_classifier").dense.kernel.shape == (3 * 24, 2)
    examples = run.task.examples("validation")
    expected, raw = predict(run.task, run.preprocess, run.model, examples, batch_size=7)
    measures = {f"val_{key}": value for key, value in run.task.evaluate(expected, raw)}
    assert measures == pytest.approx(runs.results(run.path)["measures"], rel=1e-5)
    asked = next(iter(examples.batch(small_tasks.ROWS)))
    serve = tf.saved_model.load(str(export(run, tmp_path / "served"))).signatures["serving_default"]
    served = serve(**{key: tf.constant(asked[key]) for key in serve.structured_input_signature[1]})
    for key in expected.keys() & {"probabilities", "logits"}:
        np.testing.assert_allclose(served[key], expected[key], rtol=1e-4, atol=1e-5)
    assert expected.keys() & {"probabilities", "logits"}
