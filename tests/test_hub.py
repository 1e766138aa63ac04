"""TensorFlow Hub's pair: what is written, and the Keras 3 layer that loads it or any module of that form."""

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from exports import meta_graph
from runs import ROOT, SIZES, VOCABULARY, contents, full_disk, run_command, texts

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.cli.main import main
from bert_keras.config import BertConfig
from bert_keras.features import ENCODER_INPUTS, INPUT_WORD_IDS, MASKED_LM_POSITIONS
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.optimization.optimizers import AdamW
from bert_keras.savedmodels import hub, reload
from bert_keras.savedmodels.export import foreign_ops, ops_of
from bert_keras.savedmodels.verify import ask
from bert_keras.tasks.pretraining.vocabulary import write_vocabulary
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.vocabulary import Vocabulary
from bert_keras.text.wordpiece import WordPiece

SEQ_LENGTH = 24
ROUNDING = 5e-6  # of hidden states up to 3: the fused kernels of a graph round otherwise than the eager pass
HOSTILE = [
    b"",
    b"\xff\xfe good",
    b"good \xc3",
    b"a\x00b good",
    "真好 film, naïve ﬁlm \N{GRINNING FACE}".encode(),
    b"[MASK] good [SEP] [CLS]",
    b"good bad " * 50,
    b"x" * 100_000,
]
TEXTS = [text.encode() for text in texts(6, seed=3)] + HOSTILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A checkpoint and the two modules that were written from it, at a place of their own."""

    checkpoint: Checkpoint
    model: BertEncoder
    head: MaskedLMHead
    folder: Path
    printed: str  # by the command that wrote them

    @property
    def preprocess(self) -> Path:
        return self.folder / "preprocess"

    @property
    def encoder(self) -> Path:
        return self.folder / "encoder"


def checkpoint_of(config: BertConfig, *, masked_lm: bool) -> tuple[Checkpoint, BertEncoder, MaskedLMHead]:
    keras.utils.set_random_seed(0)
    model = BertEncoder(config)
    head = MaskedLMHead(model)
    collected = checkpoints.collect(config, model, **({"masked_lm": head} if masked_lm else {}))
    return dataclasses.replace(collected, vocabulary=Vocabulary(VOCABULARY, lower_case=True)), model, head


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    place = tmp_path_factory.mktemp("hub")
    checkpoint, model, head = checkpoint_of(BertConfig(**SIZES), masked_lm=True)
    checkpoints.write(checkpoint, place / "checkpoint", format="hugging-face")
    flags = ("--checkpoint", place / "checkpoint", "--output", place / "written", "--seq-length", SEQ_LENGTH)
    with (
        forked.publishing(),
        contextlib.redirect_stdout(io.StringIO()) as printed,
        pytest.raises(SystemExit) as end,
    ):
        main(["bert-keras", "hub", *map(str, flags)])
    assert not end.value.code
    moved = place / "elsewhere" / "a pair"
    moved.parent.mkdir()
    (place / "written").rename(moved)
    return Pair(checkpoint=checkpoint, model=model, head=head, folder=moved, printed=printed.getvalue())


@pytest.fixture(scope="module")
def module(pair):
    """The preprocessor as TensorFlow alone loads it."""
    return tf.saved_model.load(str(pair.preprocess))


def preprocessed(*strings: list[bytes], seq_length: int = SEQ_LENGTH) -> dict[str, tf.Tensor]:
    """The package's own features."""
    return Preprocessor(WordPiece(VOCABULARY), seq_length=seq_length)(*map(tf.constant, strings))


def assert_equal_features(found, expected) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.fixture(scope="module")
def features() -> dict[str, tf.Tensor]:
    return preprocessed(TEXTS)


@pytest.fixture(scope="module")
def expected(pair, features) -> dict:
    """The outputs of the package's own encoder, in a graph as the module's are."""
    return tf.function(pair.model)(features)


# ----------------------------------------------------------------------------------------------------------
# Written files

# In a process where neither this package nor Keras can be imported: everything that the modules offer, as JSON.
ASK = """
import json, sys
sys.path.insert(0, sys.argv[2])
import reload
import tensorflow as tf
reload.load_kernels()
sys.modules.update(dict.fromkeys(reload.FORBIDDEN))

texts = tf.constant([text.encode("latin-1") for text in json.load(sys.stdin)])
preprocess, encoder = (tf.saved_model.load(f"{sys.argv[1]}/{name}") for name in ("preprocess", "encoder"))
features = preprocess(texts)
positions = tf.tile([[0, 2]], [len(texts), 1])
masked = encoder.mlm(features | {"masked_lm_positions": positions})
found = {
    "features": features,
    "tokens": preprocess.tokenize(texts),
    "places": preprocess.tokenize_with_offsets(texts),
    "special": preprocess.tokenize.get_special_tokens_dict(),
    "outputs": encoder(features),
    "masked": masked,
}

labels = features["input_word_ids"][:, 1] % 2
def loss(training):
    logits = encoder(features, training=training)["pooled_output"][:, :2]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
found["losses"] = [loss(False), loss(False), loss(True), loss(True)]
for _ in range(20):
    with tf.GradientTape() as tape:
        value = loss(True)
    for variable, gradient in zip(encoder.trainable_variables, tape.gradient(value, encoder.trainable_variables)):
        variable.assign_sub(0.2 * tf.convert_to_tensor(gradient))
found["losses"].append(loss(False))

def plain(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
json.dump(tf.nest.map_structure(plain, found), sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(pair, tmp_path_factory) -> dict:
    script = tmp_path_factory.mktemp("ask") / "script.py"
    script.write_text(ASK)
    given = json.dumps([text.decode("latin-1") for text in TEXTS])
    done = forked.run(script, pair.folder, Path(reload.__file__).parent, input=given)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_fresh_process_has_the_package_s_own_features(answers, features):
    assert set(features) == set(ENCODER_INPUTS)
    assert_equal_features(answers["features"], features)


@pytest.mark.long
def test_a_fresh_process_has_the_package_s_own_outputs(answers, pair, expected):
    names = {"pooled_output", "sequence_output", "encoder_outputs", "default"}
    assert set(answers["outputs"]) == names
    assert set(answers["masked"]) == names | {"mlm_logits"}
    for key, name in {**{name: name for name in names}, "default": "pooled_output"}.items():
        for found in (answers["outputs"], answers["masked"]):
            np.testing.assert_allclose(found[key], np.asarray(expected[name]), rtol=0, atol=ROUNDING)
    positions = np.tile([[0, 2]], (len(TEXTS), 1)).astype("int32")
    logits = pair.head(expected["sequence_output"], positions)
    np.testing.assert_allclose(answers["masked"]["mlm_logits"], logits, rtol=0, atol=1e-5)


@pytest.mark.long
def test_it_can_be_trained_where_keras_is_not(answers):
    still, again, dropped, other, after = answers["losses"]
    assert still == pytest.approx(again, rel=1e-6)
    assert dropped != other  # dropout
    assert after < 0.9 * still


@pytest.mark.long
def test_tokens_lie_in_words(answers, module):
    ids, *places = WordPiece(VOCABULARY).tokenize_with_offsets(tf.constant(TEXTS))
    for found, expected in zip(answers["places"], (ids, *places), strict=True):
        assert [[one for word in row for one in word] for row in found] == expected.to_list()
    assert answers["places"][0] == answers["tokens"]

    number = {piece: i for i, piece in enumerate(VOCABULARY)}
    found = module.tokenize(tf.constant(["film, fi", "", "good"]))
    assert (found.dtype, found.shape.as_list()) == (tf.int32, [3, None, None])
    expected = [[["film"], [","], ["f", "##i"]], [], [["good"]]]
    assert found.to_list() == [[[number[piece] for piece in word] for word in row] for row in expected]
    starts, ends = module.tokenize_with_offsets(tf.constant(["film, fi"]))[1:]
    assert starts.dtype == ends.dtype == tf.int64
    assert (starts.to_list(), ends.to_list()) == ([[[0], [4], [6, 7]]], [[[4], [5], [7, 8]]])


@pytest.mark.long
def test_special_tokens(answers):
    assert answers["special"] == {
        "vocab_size": len(VOCABULARY),
        "padding_id": 0,
        "start_of_sequence_id": 2,
        "end_of_segment_id": 3,
        "mask_id": 4,
    }


@pytest.mark.long
@pytest.mark.parametrize("seq_length", [None, 5, 16, 40])
@pytest.mark.parametrize("segments", [1, 2])
def test_packing(segments, seq_length, module):
    strings = [TEXTS, TEXTS[::-1]][:segments]
    expected = preprocessed(*strings, seq_length=seq_length or SEQ_LENGTH)
    given = {} if seq_length is None else {"seq_length": seq_length}
    for tokenize in (module.tokenize, WordPiece(VOCABULARY).tokenize):  # [B, (words), (pieces)] and [B, (T)]
        packed = module.bert_pack_inputs([tokenize(tf.constant(one)) for one in strings], **given)
        assert_equal_features(packed, expected)


@pytest.mark.long
def test_unequal_batches_are_an_error(module):
    strings = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[strings, strings])
    def pack(first, second):
        return module.bert_pack_inputs([module.tokenize(first), module.tokenize(second)])

    assert pack(tf.constant(["a", "b"]), tf.constant(["c", "d"]))[INPUT_WORD_IDS].shape == (2, SEQ_LENGTH)
    for sizes in ((2, 1), (1, 2), (0, 1), (3, 2)) * 5:
        given = [tf.constant(["good bad"] * size, tf.string, [size]) for size in sizes]
        with pytest.raises(tf.errors.InvalidArgumentError):
            pack(*given)
        # If TensorFlow knows the sizes while tracing, it raises the error then.
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="[Ss]hapes .*must"):
            module.bert_pack_inputs([module.tokenize(one) for one in given])


@pytest.mark.long
@pytest.mark.parametrize(("segments", "seq_length"), [(1, 2), (2, 4), (1, 0)])
def test_a_length_without_room_is_an_error(segments, seq_length, module):
    ids = module.tokenize(tf.constant(["good"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="seq_length must hold"):
        module.bert_pack_inputs([ids] * segments, seq_length=seq_length)


@pytest.mark.long
def test_only_two_kernels_of_tensorflow_text(pair):
    foreign = set()
    for folder in (pair.preprocess, pair.encoder):
        foreign |= foreign_ops(ops_of(meta_graph(folder).graph_def))
    assert foreign == {"NormalizeUTF8", "FastWordpieceTokenizeWithOffsets"}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"causal": True},
        {"embedding_size": 16, "share_layers": True},
        {"type_vocab_size": 1, "position_offset": 2, "activation": "gelu_erf"},
        {"type_vocab_size": 0, "pooler_activation": "relu"},
    ],
    ids=["causal", "albert", "roberta", "distilbert"],
)
def test_variants(changes, features, tmp_path):
    checkpoint, model, _ = checkpoint_of(BertConfig(**(SIZES | changes)), masked_lm=False)
    module, _ = hub.encoder(checkpoint, log=lambda line: None)
    tf.saved_model.save(module, str(tmp_path))
    layer = HubLayer(tmp_path)
    assert not hasattr(layer.module, "mlm")
    assert len(layer.trainable_weights) == len(model.trainable_weights)
    expected, found = tf.function(model)(features), layer(features)
    for name in ("pooled_output", "sequence_output"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=ROUNDING)


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_sentencepiece(tmp_path):
    lines = ["the film is good", "a dull plot and a bad actor", "very warm, and good!"] * 20
    tokenizer = write_vocabulary([lines], tmp_path / "pieces", kind="sentencepiece", size=38).tokenizer
    module, serve = hub.preprocessor(tokenizer, seq_length=SEQ_LENGTH)
    tf.saved_model.save(module, str(tmp_path / "module"), signatures={"serving_default": serve})
    loaded = HubLayer(tmp_path / "module")
    strings = tf.constant(TEXTS)
    assert loaded.module.tokenize(strings).shape.as_list() == [len(TEXTS), None]
    packed = loaded.module.bert_pack_inputs([loaded.module.tokenize(strings)] * 2, seq_length=16)
    assert_equal_features(loaded(strings), Preprocessor(tokenizer, seq_length=SEQ_LENGTH)(strings))
    assert_equal_features(packed, Preprocessor(tokenizer, seq_length=16)(strings, strings))
    given = {"sentences": [text.decode("latin-1") for text in TEXTS[:10]]}
    features = serve(tf.constant([text.encode() for text in given["sentences"]]))
    assert ask(tmp_path / "module", given) == {
        name: value.numpy().tolist() for name, value in features.items()
    }


@pytest.mark.long
def test_bad_input_of_write_pair(pair, tmp_path):
    def refused(error: type[Exception], message: str, checkpoint=pair.checkpoint, **options) -> None:
        options = {"directory": tmp_path / "new" / "pair", "seq_length": SEQ_LENGTH} | options
        with pytest.raises(error, match=message):
            hub.write_pair(checkpoint, log=lambda line: None, **options)

    refused(FileExistsError, "preprocess already exists; give another folder", directory=pair.folder)
    refused(ValueError, "seq_length is 49 and the encoder has 48 positions; give at most 48", seq_length=49)
    refused(ValueError, "has no vocabulary", dataclasses.replace(pair.checkpoint, vocabulary=Vocabulary()))
    without = {name: one for name, one in pair.checkpoint.tensors.items() if not name.startswith("pooler/")}
    without = dataclasses.replace(pair.checkpoint, tensors=without)
    refused(ValueError, r"has no pooler/.*fresh=\('pooler',\), or .* initializes it randomly", without)
    with full_disk(10_000):
        refused(ValueError, "cannot export to .*pair: .*; give a writable folder")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_command(pair, tmp_path, capfd):
    assert sorted(path.name for path in pair.folder.iterdir()) == ["encoder", "preprocess"]
    first, *_, last = pair.printed.splitlines()
    assert first.startswith("loaded: 28 tensors")
    assert last.endswith("a fresh process without this package gave the same answers")
    before = contents(pair.folder)
    checkpoints.write(pair.checkpoint, tmp_path / "checkpoint", format="hugging-face")
    flags = ("--checkpoint", tmp_path / "checkpoint", "--output", pair.folder, "--seq-length", 16)
    code, _, err = run_command(capfd, "hub", *flags)
    assert (code, contents(pair.folder) == before) == (1, True)
    assert err.startswith("bert-keras: error: ") and "already exists; give another folder" in err


def test_quiet_leaves_out_the_report_of_loading(pair, tmp_path, monkeypatch, capfd):
    def write_pair(*args, log=print, **kwargs):
        log("loaded: 28 tensors")

    monkeypatch.setattr(hub, "write_pair", write_pair)
    checkpoints.write(pair.checkpoint, tmp_path / "checkpoint", format="hugging-face")
    flags = ("--checkpoint", tmp_path / "checkpoint", "--output", tmp_path / "pair", "--quiet")
    code, out, _ = run_command(capfd, "hub", *flags)
    assert (code, len(out.splitlines())) == (0, 1) and out.startswith("preprocess and encoder in ")


# ----------------------------------------------------------------------------------------------------------
# The layer


def examples(count: int = 64) -> tuple[tf.Tensor, tf.Tensor]:
    """Sentences, and whether one speaks of something good."""
    rows = texts(count, seed=5)
    return tf.constant(rows), tf.constant([int("good" in row or "warm" in row) for row in rows])


def classifier(pair: Pair, **options) -> tuple[keras.Model, HubLayer]:
    """Raw strings -> two logits."""
    encode = HubLayer(pair.encoder, outputs="pooled_output", **options)
    text = keras.Input((), dtype="string")
    model = keras.Model(text, keras.layers.Dense(2, name="head")(encode(HubLayer(pair.preprocess)(text))))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(AdamW(2e-3, weight_decay=0.01), loss)
    return model, encode


@pytest.mark.long
def test_keras_trains_the_module_s_own_variables(pair):
    keras.utils.set_random_seed(0)
    model, encode = classifier(pair)
    assert len(encode.trainable_weights) == len(pair.model.trainable_weights)
    assert len(model.trainable_weights) == len(pair.model.trainable_weights) + 2
    assert sum(np.prod(one.shape) for one in encode.trainable_weights) == pair.model.count_params()
    variables = encode.module.trainable_variables
    assert all(one.value is other for one, other in zip(encode.trainable_weights, variables, strict=True))
    before = [one.numpy() for one in variables]
    sentences, labels = examples()
    losses = model.fit(sentences, labels, epochs=8, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert not any(np.array_equal(one, other) for one, other in zip(before, variables, strict=True))
    # The module itself answers as the layer does.
    given = HubLayer(pair.preprocess)(sentences)
    np.testing.assert_array_equal(encode(given), encode.module(given)["pooled_output"])


@pytest.mark.long
def test_variables_keep_their_paths(pair):
    layer = HubLayer(pair.encoder, name="text")
    paths = [one.path for one in layer.trainable_weights]
    assert paths == [f"text/{one.path}" for one in pair.model.trainable_weights]
    optimizer = AdamW(1e-3, weight_decay=0.01)
    decayed = {one.path for one in layer.trainable_weights if optimizer.is_decayed(one)}
    assert decayed == {path for path in paths if path.endswith(("kernel", "_embeddings"))}


@pytest.mark.long
def test_a_frozen_module_keeps_every_bit(pair):
    model, encode = classifier(pair, trainable=False)
    assert not encode.trainable_weights and len(model.trainable_weights) == 2
    before, head = [one.numpy() for one in encode.module.variables], model.get_layer("head").kernel.numpy()
    model.fit(*examples(32), epochs=1, batch_size=16, verbose=0)
    for one, other in zip(before, encode.module.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(head, model.get_layer("head").kernel.numpy())
    encode.trainable = True
    assert len(encode.trainable_weights) == len(pair.model.trainable_weights)


@pytest.mark.long
def test_training_flag(pair, features):
    layer, frozen = HubLayer(pair.encoder), HubLayer(pair.encoder, trainable=False)
    still = layer(features)["pooled_output"]
    np.testing.assert_array_equal(still, layer(features, training=False)["pooled_output"])
    dropped = [layer(features, training=True)["pooled_output"] for _ in range(2)]
    assert np.abs(dropped[0] - still).max() > 0.1 and np.abs(dropped[0] - dropped[1]).max() > 0.1
    np.testing.assert_array_equal(still, frozen(features, training=True)["pooled_output"])

    inputs = {name: keras.Input((SEQ_LENGTH,), dtype="int32", name=name) for name in ENCODER_INPUTS}
    model = keras.Model(inputs, layer(inputs)["pooled_output"])
    model.compile("sgd", "mse")
    np.testing.assert_allclose(model.predict(features, verbose=0), still, rtol=0, atol=ROUNDING)
    assert model.test_on_batch(features, still) < 1e-9  # evaluate does not drop
    assert model.train_on_batch(features, still) > 1e-3  # fit does


@pytest.mark.long
def test_outputs_by_key(pair, features):
    everything = HubLayer(pair.encoder)(features)
    assert set(everything) == {"pooled_output", "sequence_output", "encoder_outputs", "default"}
    two = HubLayer(pair.encoder, outputs=("default", "encoder_outputs"))
    found, symbolic = two(features), two({name: keras.Input((8,), dtype="int32") for name in ENCODER_INPUTS})
    assert list(found) == list(symbolic) == ["default", "encoder_outputs"]
    assert len(found["encoder_outputs"]) == len(symbolic["encoder_outputs"]) == SIZES["num_layers"]
    assert (symbolic["default"].shape, symbolic["default"].dtype) == ((None, 48), "float32")
    np.testing.assert_array_equal(found["default"], everything["pooled_output"])
    with pytest.raises(ValueError, match="has outputs .*pooled_output.*; wanted pooled"):
        HubLayer(pair.encoder, outputs="pooled")(features)
    with pytest.raises(ValueError, match="has outputs without keys; wanted ids"):
        HubLayer(pair.preprocess, endpoint="tokenize", outputs="ids")(tf.constant(["good"]))


@pytest.mark.long
def test_endpoints(pair, features, expected):
    served = HubLayer(pair.encoder, endpoint="serving_default")(features)
    np.testing.assert_allclose(served["default"], expected["pooled_output"], rtol=0, atol=ROUNDING)
    ids = HubLayer(pair.preprocess, endpoint="serving_default")(tf.constant(["a"]))[INPUT_WORD_IDS]
    assert ids.shape == (1, SEQ_LENGTH)
    masked = HubLayer(pair.encoder, endpoint="mlm", outputs="mlm_logits")
    assert len(masked.trainable_weights) == len(pair.model.trainable_weights) + len(pair.head.weights)
    asked = features | {MASKED_LM_POSITIONS: tf.zeros([len(TEXTS), 3], tf.int32)}
    assert masked(asked).shape == (len(TEXTS), 3, len(VOCABULARY))
    message = "no endpoint nothing in .*; it has __call__, mlm, serving_default"
    with pytest.raises(ValueError, match=message):
        HubLayer(pair.encoder, endpoint="nothing")
    with pytest.raises(FileNotFoundError, match="no SavedModel at .*; give .*the folder that holds"):
        HubLayer(pair.folder)


@pytest.mark.long
def test_two_segments_in_one_model(pair):
    first, second = (keras.Input((), dtype="string") for _ in range(2))
    tokenize = HubLayer(pair.preprocess, endpoint="tokenize")
    assert (tokenize(first).ragged, tokenize(first).shape) == (True, (None, None, None))
    pack = HubLayer(pair.preprocess, endpoint="bert_pack_inputs", arguments={"seq_length": 16})
    model = keras.Model([first, second], pack([tokenize(first), tokenize(second)]))
    strings = [TEXTS, TEXTS[::-1]]
    assert_equal_features(model([*map(tf.constant, strings)]), preprocessed(*strings, seq_length=16))


@pytest.mark.long
def test_a_preprocessor_in_a_dataset(pair, features):
    preprocess = HubLayer(pair.preprocess)
    rows = [*tf.data.Dataset.from_tensor_slices(TEXTS).batch(4).map(preprocess).unbatch()]
    assert_equal_features({name: np.stack([row[name] for row in rows]) for name in rows[0]}, features)
    assert preprocess.compute_output_spec(keras.Input((), dtype="string"))[INPUT_WORD_IDS].shape == (None, 24)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_model_that_holds_modules_is_saved_and_loaded(pair, tmp_path):
    model, _ = classifier(pair)
    sentences, labels = examples(16)
    model.fit(sentences, labels, verbose=0)
    expected, file = model.predict(sentences, verbose=0), tmp_path / "model.keras"
    model.save(file)
    with pytest.raises(ValueError, match="can run any code; if you trust both, load it with safe_mode=False"):
        keras.models.load_model(file)
    again = bk.load(file, safe_mode=False)
    np.testing.assert_array_equal(again.predict(sentences, verbose=0), expected)

    # And as a SavedModel of strings.
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(sentences), expected, rtol=0, atol=ROUNDING)

    gone = pair.folder.with_name("gone")
    pair.folder.rename(gone)
    try:
        with pytest.raises(FileNotFoundError, match=f"no SavedModel at {pair.preprocess}"):
            keras.models.load_model(file, safe_mode=False)
    finally:
        gone.rename(pair.folder)


class Scaled(tf.Module):
    """A module from another library: it has no training argument, but a loss."""

    variables = trainable_variables = regularization_losses = None

    def __init__(self):
        super().__init__()
        self.scale = tf.Variable(3.0, name="scale")
        self.count = tf.Variable(7, trainable=False, name="count")
        self.variables, self.trainable_variables = [self.scale, self.count], [self.scale]
        self.regularization_losses = [tf.function(lambda: self.scale**2, input_signature=[])]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def __call__(self, x):
        return self.scale * x


def test_any_reusable_module(tmp_path):
    tf.saved_model.save(Scaled(), str(tmp_path))
    layer = HubLayer(tmp_path)
    assert [one.name for one in layer.trainable_weights] == ["scale"]
    assert [one.name for one in layer.non_trainable_weights] == ["count"]
    np.testing.assert_allclose(layer(tf.constant([2.0]), training=True), [6.0])
    np.testing.assert_allclose([float(loss) for loss in layer.losses], [9.0])
    layer.trainable = False
    layer(tf.constant([2.0]))
    assert not layer.losses


@pytest.mark.parity
def test_another_backend_is_one_clear_error():
    pytest.importorskip("jax")
    code = "import bert_keras; bert_keras.HubLayer('anywhere')"
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == (
        "bert_keras.errors.BertKerasError: Keras runs on jax; a SavedModel needs TensorFlow: set KERAS_BACKEND=tensorflow."
    )


# ----------------------------------------------------------------------------------------------------------
# TensorFlow Hub's own loaders, which need the `hub` extra


@pytest.mark.long
@pytest.mark.hub
@pytest.mark.filterwarnings("ignore")  # theirs
def test_hub_load(pair, features, expected):
    tensorflow_hub = pytest.importorskip("tensorflow_hub")
    preprocess, encoder = tensorflow_hub.load(str(pair.preprocess)), tensorflow_hub.load(str(pair.encoder))
    given = preprocess(tf.constant(TEXTS))
    np.testing.assert_array_equal(given[INPUT_WORD_IDS], features[INPUT_WORD_IDS])
    found = encoder(given, training=False)["pooled_output"]
    np.testing.assert_allclose(found, expected["pooled_output"], rtol=0, atol=ROUNDING)


@pytest.mark.long
@pytest.mark.hub
@pytest.mark.filterwarnings("ignore")  # theirs
def test_hub_keras_layer_trains_it(pair):
    tensorflow_hub = pytest.importorskip("tensorflow_hub")
    tf_keras = pytest.importorskip("tf_keras")
    preprocess = tensorflow_hub.KerasLayer(str(pair.preprocess))
    encode = tensorflow_hub.KerasLayer(str(pair.encoder), trainable=True)
    text = tf_keras.Input((), dtype=tf.string)
    model = tf_keras.Model(text, tf_keras.layers.Dense(2)(encode(preprocess(text))["pooled_output"]))
    assert len(encode.trainable_weights) == len(pair.model.trainable_weights)
    sentences, labels = examples()
    given = preprocess(sentences)
    still = encode(given)["pooled_output"]
    assert np.abs(encode(given, training=True)["pooled_output"] - still).max() > 0.1  # dropout
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(2e-3), loss)
    before = model.evaluate(sentences, labels, verbose=0)  # without dropout, unlike the losses of `fit`
    model.fit(sentences, labels, epochs=8, batch_size=16, verbose=0)
    assert model.evaluate(sentences, labels, verbose=0) < 0.8 * before
    assert np.abs(encode(given)["pooled_output"] - still).max() > 1e-3

    tokenize = tensorflow_hub.KerasLayer(preprocess.resolved_object.tokenize)
    pack = preprocess.resolved_object.bert_pack_inputs
    pack = tensorflow_hub.KerasLayer(pack, arguments={"seq_length": 16})
    assert pack([tokenize(text), tokenize(text)])[INPUT_WORD_IDS].shape == (None, 16)


def test_a_module_on_another_file_system_is_loaded():
    module = tf.Module()
    module.__call__ = tf.function(lambda x: {"twice": 2 * x}, input_signature=[tf.TensorSpec([None])])
    folder = f"ram://{uuid.uuid4().hex}/twice"
    tf.saved_model.save(module, folder)
    np.testing.assert_array_equal(HubLayer(folder)(tf.constant([3.0]))["twice"], [6.0])
