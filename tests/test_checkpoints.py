"""Weights in and out: tables against real files, and round trips bit for bit."""

import dataclasses
import json

import numpy as np
import pytest
from random_checkpoints import (
    GOLDEN,
    KINDS,
    PIECES,
    TINY,
    assert_same,
    random_checkpoint,
    refused,
    saves_with_keras,
    with_vocabulary,
)

from bert_keras import checkpoints
from bert_keras.checkpoints import FORMATS, WRITTEN
from bert_keras.checkpoints.checkpoint import Checkpoint, Row, head_shapes, numpy_dtype, variable_shapes
from bert_keras.config import BertConfig
from bert_keras.config_files import MODEL_TYPES
from bert_keras.features import SEQUENCE_OUTPUT
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import (
    ClassifierHead,
    ConcatClassifierHead,
    MaskedLMHead,
    NextSentenceHead,
    ReplacedTokenHead,
    SpanHead,
)
from bert_keras.text.vocabulary import Vocabulary


def make_heads(encoder: BertEncoder) -> dict:
    return {
        "masked_lm": MaskedLMHead(encoder),
        "next_sentence": NextSentenceHead(config=encoder.config),
        "classifier": ClassifierHead(5, config=encoder.config),
        "concat_classifier": ConcatClassifierHead(5, config=encoder.config),
        "qa_outputs": SpanHead(config=encoder.config),
        "replaced_token": ReplacedTokenHead(config=encoder.config),
    }


# --- names and shapes --------------------------------------------------------------------------------------


def test_the_variables_of_a_tiny_model_are_the_golden_list():
    config = BertConfig.named("tiny")
    encoder = BertEncoder(config)
    collected = checkpoints.collect(config, encoder, **make_heads(encoder))
    shapes = {name: list(tensor.shape) for name, tensor in collected.tensors.items()}
    assert shapes == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    "changes", [{}, {"embedding_size": 4}, {"share_layers": True, "embedding_size": 4}, {"bilstm": True}]
)
def test_the_shapes_computed_from_the_config_are_the_encoders(changes):
    config = dataclasses.replace(TINY, **changes)
    encoder = BertEncoder(config)
    heads = make_heads(encoder)
    collected = checkpoints.collect(config, encoder, **heads).tensors
    wanted = variable_shapes(config) | head_shapes(config)
    shapes = {name: tuple(size or 5 for size in shape) for name, shape in wanted.items()}
    assert {name: tensor.shape for name, tensor in collected.items()} == shapes


TABLES = [
    pytest.param(names, dataclasses.replace(TINY, **KINDS[names.model_type]), id=f"{form}-{names.model_type}")
    for form in FORMATS
    for names in FORMATS[form].names
]


def test_there_is_a_table_for_every_model_type():
    found = dict.fromkeys(names.model_type for names in FORMATS["hugging-face"].names)
    assert tuple(found) == MODEL_TYPES == tuple(KINDS)


@pytest.mark.parametrize(("names", "config"), TABLES)
def test_a_table_names_every_variable_of_the_encoder_once(names, config):
    rows = names.rows(config)
    without = names.model_type in ("electra", "distilbert") and "Model" in names.classes
    without |= names is FORMATS["keras-2"].names[-1]  # of bert-for-tf2, whose layer has no pooler
    left_out = {"pooler/kernel", "pooler/bias"} if without else set()
    assert set(variable_shapes(config)) - {row.ours for row in rows} == left_out
    assert len({row.theirs for row in rows}) == len({row.ours for row in rows}) == len(rows)


@pytest.mark.parametrize(("names", "config"), TABLES)
def test_a_layout_there_and_back_changes_nothing(names, config):
    for row in names.rows(config):
        array = np.random.default_rng(0).standard_normal([size or 5 for size in row.shape])
        theirs = row.to_theirs(array, config)
        shapes = zip(row.their_shape(config), theirs.shape, strict=True)
        assert all(wanted in (0, given) for wanted, given in shapes)
        np.testing.assert_array_equal(row.to_ours(theirs), array)


# Of a kernel [in = 2, out = 2 heads x 1], by hand:      theirs           ours
@pytest.mark.parametrize(
    ("layout", "theirs"),
    [
        ("same", [[1, 2], [3, 4]]),
        ("transposed", [[1, 3], [2, 4]]),
        ("heads out", [[[1], [2]], [[3], [4]]]),
        ("heads in", [[[1, 2]], [[3, 4]]]),
    ],
)
def test_layouts_by_hand(layout, theirs):
    config = dataclasses.replace(TINY, hidden_size=2)
    row = Row(ours="k", theirs="k", shape=(2, 2), layout=layout)
    assert row.to_ours(np.array(theirs)).tolist() == [[1, 2], [3, 4]]
    assert row.to_theirs(np.array([[1, 2], [3, 4]]), config).tolist() == theirs


@pytest.mark.parametrize("name", ["google-bert-medium-uncased", "chinese-bert-wwm"])
def test_googles_own_files_hold_every_variable_under_the_tables_name(data_dir, name):
    import tensorflow as tf

    folder = data_dir / "tf1_checkpoint_indexes" / name
    config = BertConfig.load(folder)
    names = FORMATS["google"].names[0]
    stored = dict(tf.train.list_variables(str(folder / "bert_model.ckpt")))
    weights = {name: tuple(shape) for name, shape in stored.items() if names.current(name) is not None}
    skipped = set(stored) - set(weights)
    assert all(name.endswith(("adam_m", "adam_v")) or name == "global_step" for name in skipped)
    rows = [row for row in names.rows(config) if not row.ours.startswith(("classifier", "qa_outputs"))]
    assert weights == {row.theirs: row.their_shape(config) for row in rows}
    refused("cannot be read", checkpoints.read, folder)  # without its data


# --- round trips -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
def test_round_trip_is_bit_for_bit(tmp_path, form):
    """Model Garden has no heads of tasks."""
    every = ("masked_lm", "next_sentence", "classifier", "qa_outputs") if form != "model-garden" else ()
    for number, heads in enumerate([(), ("masked_lm",), every]):
        checkpoint = random_checkpoint(heads=heads)
        assert checkpoints.write(checkpoint, tmp_path / str(number), format=form) == ()
        again = checkpoints.read(tmp_path / str(number))
        assert again.format == form
        assert_same(again, checkpoint)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("form", ["hugging-face", "google"])
def test_round_trip_keeps_the_dtype(tmp_path, form, dtype):
    checkpoint = random_checkpoint(heads=())
    narrow = {name: tensor.astype(numpy_dtype(dtype)) for name, tensor in checkpoint.tensors.items()}
    checkpoint = dataclasses.replace(checkpoint, tensors=narrow)
    checkpoints.write(checkpoint, tmp_path / "out", format=form)
    assert_same(checkpoints.read(tmp_path / "out"), checkpoint)
    encoder = checkpoints.load_encoder(tmp_path / "out", log=lambda line: None)
    table = np.asarray(encoder.embedding_table)
    np.testing.assert_array_equal(table, narrow["embeddings/word_embeddings"].astype("float32"))


def spoiled(checkpoint: Checkpoint, value: float, dtype: str = "float32") -> Checkpoint:
    """One bias of the second block with one wrong number."""
    tensors = {name: tensor.astype(numpy_dtype(dtype)) for name, tensor in checkpoint.tensors.items()}
    tensors["block_1/attention/query/bias"][-1] = value
    return dataclasses.replace(checkpoint, tensors=tensors)


@pytest.mark.parametrize("form", [*WRITTEN])
def test_weights_that_are_nan_or_infinite_are_not_written(tmp_path, form):
    out, message = tmp_path / "out", "block_1/attention/query/bias.* 1 .*NaN or infinite"
    for value in (np.nan, -np.inf):
        bad = spoiled(random_checkpoint(heads=()), value)
        refused(message, checkpoints.write, bad, out, format=form, named=str(out))
        assert not out.exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    ("form", "theirs"),
    [
        ("hugging-face", "bert.encoder.layer.1.attention.self.query.bias"),
        ("google", "bert/encoder/layer_1/attention/self/query/bias"),
    ],
)
def test_weights_that_are_nan_or_infinite_are_not_read(tmp_path, monkeypatch, form, theirs, dtype):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "refuse_not_finite", lambda *args, **kwargs: None)
        bad = spoiled(random_checkpoint(heads=()), np.inf, dtype)
        checkpoints.write(bad, tmp_path / "given", format=form)
    refused(f"^{theirs} in {tmp_path / 'given'}.*NaN or infinite", checkpoints.read, tmp_path / "given")


PADDING_SECOND = ("[UNK]", "[PAD]", *PIECES[2:])


@pytest.mark.parametrize(
    ("kind", "heads", "model_type", "architecture"),
    [
        ("bert", ("masked_lm", "next_sentence"), "bert", "BertForPreTraining"),
        ("bert", ("concat_classifier",), "bert", "BertModel"),
        ("bert", ("replaced_token",), "electra", "ElectraForPreTraining"),
        ("albert", ("masked_lm", "next_sentence"), "albert", "AlbertForPreTraining"),
        ("albert", ("classifier",), "albert", "AlbertForSequenceClassification"),
        ("albert", (), "albert", "AlbertModel"),
        ("albert", ("next_sentence",), "bert_keras", "BertForNextSentencePrediction"),
        ("electra", ("replaced_token",), "electra", "ElectraForPreTraining"),
        ("electra", ("masked_lm",), "electra", "ElectraForMaskedLM"),
        ("electra", ("qa_outputs",), "electra", "ElectraForQuestionAnswering"),
        ("electra", ("classifier",), "bert_keras", "BertForSequenceClassification"),
        ("electra", (), "bert_keras", "BertModel"),  # its pooler would be lost
        ("roberta", ("masked_lm",), "roberta", "RobertaForMaskedLM"),
        ("roberta", (), "roberta", "RobertaModel"),
        ("roberta", ("classifier",), "roberta", "RobertaForSequenceClassification"),
        ("distilbert", ("masked_lm",), "distilbert", "DistilBertForMaskedLM"),
        ("distilbert", ("qa_outputs",), "distilbert", "DistilBertForQuestionAnswering"),
        ("distilbert", ("classifier",), "distilbert", "DistilBertForSequenceClassification"),
        ("distilbert", ("masked_lm", "next_sentence"), "bert_keras", "BertForPreTraining"),
        ("distilbert", (), "bert_keras", "BertModel"),  # its pooler would be lost
        ("bert_keras", ("masked_lm",), "bert_keras", "BertForMaskedLM"),
    ],
)
def test_the_model_type_written_is_the_first_that_holds_the_checkpoint(
    tmp_path, kind, heads, model_type, architecture
):
    checkpoint = random_checkpoint(dataclasses.replace(TINY, **KINDS[kind]), heads=heads)
    checkpoint = with_vocabulary(checkpoint, tokens=PADDING_SECOND)
    left_out = checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    without = model_type == "electra" or (model_type == "distilbert" and "classifier" not in heads)
    assert left_out == (("pooler/kernel", "pooler/bias") if without else ())
    again = checkpoints.read(tmp_path / "out")
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in left_out}
    assert_same(again, dataclasses.replace(checkpoint, tensors=kept))
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == (model_type, [architecture])


@pytest.mark.parametrize("kind", ["electra", "roberta"])
def test_a_masked_lm_head_with_another_gelu(tmp_path, kind):
    """Theirs is written into the code: the head goes under our model_type, and is not read under theirs."""
    erf = random_checkpoint(dataclasses.replace(TINY, **KINDS[kind]), heads=("masked_lm",))
    erf = with_vocabulary(erf, tokens=None)
    tanh = dataclasses.replace(erf, config=dataclasses.replace(erf.config, activation="gelu_tanh"))
    checkpoints.write(tanh, tmp_path / "ours", format="hugging-face")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "bert_keras"
    assert_same(checkpoints.read(tmp_path / "ours"), tanh)
    checkpoints.write(erf, tmp_path / "theirs", format="hugging-face")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu_new"}))
    again = checkpoints.read(tmp_path / "theirs")
    parts = {name.split(".")[0] for name in again.unknown}
    assert parts <= {"generator_predictions", "generator_lm_head", "lm_head"}
    assert len(again.unknown) == 5 and "block_0/attention/query/kernel" in again.tensors
    # The rest is an encoder, which transformers has too.
    assert again.architecture is None
    checkpoints.write(again, tmp_path / "left", format="hugging-face")
    fields = json.loads((tmp_path / "left" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == (kind, [f"{kind.capitalize()}Model"])


def test_positions_that_do_not_count_from_the_padding_id(tmp_path):
    config = dataclasses.replace(TINY, **KINDS["roberta"])
    checkpoint = random_checkpoint(config, heads=("masked_lm",))  # its piece 1 is [UNK]
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert_keras"
    after_padding = dataclasses.replace(checkpoint, config=dataclasses.replace(config, position_offset=1))
    checkpoints.write(after_padding, tmp_path / "one", format="hugging-face")
    fields = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (fields["model_type"], fields["pad_token_id"]) == ("roberta", 0)
    # transformers has no such model: its padding must be a row of the embeddings.
    far = dataclasses.replace(config, position_offset=301, max_positions=514)
    checkpoint = random_checkpoint(far, heads=("masked_lm",))
    checkpoints.write(checkpoint, tmp_path / "far", format="hugging-face")
    assert json.loads((tmp_path / "far" / "config.json").read_text())["model_type"] == "bert_keras"
    assert_same(checkpoints.read(tmp_path / "far"), checkpoint)


def test_assign_and_collect_are_inverse(tmp_path):
    encoder = BertEncoder(TINY)
    heads = make_heads(encoder)
    checkpoint = random_checkpoint(heads=tuple(heads))
    report = checkpoints.assign(checkpoint, encoder, **heads)
    assert sorted(report.matched) == sorted(checkpoint.tensors)
    assert (report.fresh, report.unused) == ((), ())
    again = checkpoints.collect(TINY, encoder, **heads)
    for name, tensor in checkpoint.tensors.items():
        assert again.tensors[name].tobytes() == tensor.tobytes(), name


@saves_with_keras
@pytest.mark.parametrize("form", [*WRITTEN])
def test_labels_and_a_tokenizer_without_a_place_are_listed_as_left_out(tmp_path, form):
    other = {"labels": ("no", "yes"), "vocabulary": Vocabulary(other="a Unigram model")}
    checkpoint = dataclasses.replace(random_checkpoint(heads=()), **other)
    left_out = ("the tokenizer (a Unigram model)", "the labels")
    wanted = left_out[:1] if form == "hugging-face" else left_out
    assert checkpoints.write(checkpoint, tmp_path / "out", format=form) == wanted


@saves_with_keras
def test_keras_hub_preset_round_trip(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    config = dataclasses.replace(TINY, hidden_dropout=0.2, attention_dropout=0.2)
    checkpoint = random_checkpoint(config, heads=("masked_lm",))
    left_out = checkpoints.write(checkpoint, tmp_path / "out", format="keras-hub")
    assert left_out and all(name.startswith("masked_lm/") for name in left_out)
    again = checkpoints.read(tmp_path / "out")
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in left_out}
    assert again.format == "keras-hub"
    assert again.vocabulary.lower_case is False
    assert_same(again, dataclasses.replace(checkpoint, tensors=bare))
    theirs = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "out"))
    np.testing.assert_array_equal(
        np.asarray(theirs.token_embedding.embeddings), checkpoint.tensors["embeddings/word_embeddings"]
    )
    differences = checkpoints.compare(tmp_path / "out")
    assert list(differences) == ["embeddings", "block_0", "block_1", "pooled_output"]
    assert max(differences.values()) <= 1e-5, differences


@pytest.mark.parametrize("save_root", ["encoder", "model", "functional", "pretrainer"])
def test_model_garden_names_of_every_kind_of_root(tmp_path, save_root):
    """The names that its encoders and pretrainer were seen to write, spelled from the table's."""
    import tensorflow as tf

    checkpoint = random_checkpoint(heads=())
    checkpoints.write(checkpoint, tmp_path / "ours", format="model-garden")
    reader = tf.train.load_checkpoint(str(tmp_path / "ours" / "bert_model.ckpt"))
    tensors = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    functional = {
        "_embedding_layer": 0, "_position_embedding_layer": 1, "_type_embedding_layer": 2,
        "_embedding_norm_layer": 3,
        "_transformer_layers/0": 4, "_transformer_layers/1": 5, "_pooler_layer": 6,
    }  # fmt: skip

    def renamed(name: str) -> str:
        if save_root == "functional":
            for part, number in functional.items():
                name = name.replace(f"encoder/{part}/", f"model/layer_with_weights-{number}/")
            return name
        root = {"encoder": "encoder/", "model": "model/", "pretrainer": "model/encoder_network/"}[save_root]
        return name.replace("encoder/", root, 1)

    other = {renamed(name): tensor for name, tensor in tensors.items()}
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    other[f"save_counter{value}"] = np.int64(1)
    other[f"optimizer/iter{value}"] = np.int64(1)
    path = tmp_path / "theirs"
    path.mkdir()
    names = sorted(other)
    tf.raw_ops.SaveV2(
        prefix=str(path / "ckpt-1"), tensor_names=names, shape_and_slices=[""] * len(names),
        tensors=[tf.constant(other[name]) for name in names],
    )  # fmt: skip
    (path / "bert_config.json").write_text(json.dumps(TINY.to_google()))
    again = checkpoints.read(path)
    assert again.format == "model-garden"
    assert_same(again, with_vocabulary(checkpoint, tokens=None))


# --- what is in real files ---------------------------------------------------------------------------------


def test_real_bert_tiny_in_the_old_spelling(data_dir):
    folder = data_dir / "weights" / "bert-tiny-splade-uncased"
    checkpoint = checkpoints.read(folder)
    assert checkpoint.config == BertConfig.named("tiny", activation="gelu_erf")
    assert checkpoint.architecture == "ForMaskedLM"
    vocabulary = checkpoint.vocabulary
    assert (len(vocabulary.tokens), vocabulary.lower_case, checkpoint.unknown) == (30522, True, ())
    refused("has no pooler/kernel, pooler/bias; fresh=", checkpoints.load_encoder, folder)
    lines: list[str] = []
    encoder = checkpoints.load_encoder(folder, fresh=("pooler",), log=lines.append)
    assert "37 tensors, 4,369,408 numbers from a hugging-face checkpoint" in lines[0]
    assert "randomly initialized: pooler/kernel, pooler/bias" in lines[0]
    head = MaskedLMHead(encoder)
    report = checkpoints.assign(checkpoint, encoder, fresh=("pooler",), masked_lm=head)
    assert report.unused == ()
    np.testing.assert_array_equal(np.asarray(head.bias), checkpoint.tensors["masked_lm/bias"])
    assert checkpoints.load_tokenizer(folder).vocab_size == 30522


def test_real_bert_tiny_converts_there_and_back(data_dir, tmp_path):
    checkpoint = checkpoints.read(data_dir / "weights" / "bert-tiny-splade-uncased")
    current = checkpoint
    for form in ("google", "model-garden", "hugging-face"):
        checkpoints.write(current, tmp_path / form, format=form)
        current = checkpoints.read(tmp_path / form)
    assert_same(current, checkpoint)
    from safetensors import safe_open

    with safe_open(tmp_path / "hugging-face" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert "bert.embeddings.LayerNorm.weight" in file.keys()


def test_an_encoder_without_a_pooled_output_needs_no_pooler(tmp_path):
    checkpoint = random_checkpoint(heads=())
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("pooler/")}
    checkpoints.write(dataclasses.replace(checkpoint, tensors=bare), tmp_path / "out", format="hugging-face")
    lines: list[str] = []
    checkpoints.load_encoder(tmp_path / "out", outputs=(SEQUENCE_OUTPUT,), log=lines.append)
    assert "randomly initialized: pooler/kernel, pooler/bias" in lines[0]


def test_a_bilstm_is_put_on_and_kept(tmp_path):
    checkpoint = random_checkpoint(heads=())
    encoder = BertEncoder(dataclasses.replace(TINY, bilstm=True))
    refused("the checkpoint has no bilstm/", checkpoints.assign, checkpoint, encoder)
    report = checkpoints.assign(checkpoint, encoder, fresh=("bilstm",))
    assert {name.split("/")[0] for name in report.fresh} == {"bilstm"}
    collected = checkpoints.collect(encoder.config, encoder)
    assert checkpoints.write(collected, tmp_path / "out", format="hugging-face") == ()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert_keras"
    again = checkpoints.read(tmp_path / "out")
    assert again.config == encoder.config
    assert_same(again, collected)
