"""Weights in and out: tables against real files, round trips bit for bit, one line for every bad input."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parity import assert_equal, hugging_face, hugging_face_outputs, random_features, random_weights, seeded

from bert_keras import checkpoints
from bert_keras.checkpoints import FORMATS
from bert_keras.checkpoints.variables import Checkpoint, Row, head_shapes, numpy_dtype, variable_shapes
from bert_keras.config import BertConfig
from bert_keras.config_files import MODEL_TYPES
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.folders import PARTIAL
from bert_keras.heads import (
    ChoiceHead,
    ClassifierHead,
    ConcatClassifierHead,
    MaskedLMHead,
    NextSentenceHead,
    ReplacedTokenHead,
    SpanHead,
    TokenHead,
)

# Keras saves its own variables by a call that numpy 2 warns of.
saves_with_keras = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

guesses_the_case = pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")

GOLDEN = Path(__file__).parent / "golden" / "variables_tiny.json"
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "a", "b", "\u2028", "é", "##s")
TINY = BertConfig(
    vocab_size=13,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    max_positions=10,
    type_vocab_size=3,
)


def random_checkpoint(
    config: BertConfig = TINY, *, heads: tuple[str, ...] = ("masked_lm", "next_sentence")
) -> Checkpoint:
    """Every variable drawn at random, so that no two tensors and no two rows are alike."""
    rng = np.random.default_rng(7)
    known = head_shapes(config).items()
    shapes = variable_shapes(config) | {name: shape for name, shape in known if name.split("/")[0] in heads}
    tensors = {
        name: rng.standard_normal([size or 5 for size in shape]).astype("float32")
        for name, shape in shapes.items()
    }
    return Checkpoint(config=config, tensors=tensors, vocabulary=PIECES, lower_case=False)


def assert_same(given: Checkpoint, wanted: Checkpoint) -> None:
    assert given.config == wanted.config
    assert sorted(given.tensors) == sorted(wanted.tensors)
    for name, tensor in wanted.tensors.items():
        assert given.tensors[name].dtype == tensor.dtype, name
        assert given.tensors[name].tobytes() == tensor.tobytes(), name
    assert given.vocabulary == wanted.vocabulary
    assert given.unknown == ()


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
    assert {name: tensor.shape for name, tensor in collected.items()} == {
        name: tuple(size or 5 for size in shape) for name, shape in wanted.items()
    }


# The differences of each kind of model from BERT.
KINDS = {
    "bert": {},
    "albert": {"embedding_size": 4, "share_layers": True, "classifier_dropout": 0.1},
    "electra": {"embedding_size": 4, "activation": "gelu_erf"},
    "roberta": {"position_offset": 2, "type_vocab_size": 1, "norm_epsilon": 1e-5, "activation": "gelu_erf"},
    "bert_keras": {"causal": True, "embedding_size": 4},
}
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
    left_out = {"pooler/kernel", "pooler/bias"} if names.model_type == "electra" else set()
    assert set(variable_shapes(config)) - {row.ours for row in rows} == left_out
    assert len({row.theirs for row in rows}) == len({row.ours for row in rows}) == len(rows)


@pytest.mark.parametrize(("names", "config"), TABLES)
def test_a_layout_there_and_back_changes_nothing(names, config):
    for row in names.rows(config):
        array = np.random.default_rng(0).standard_normal([size or 5 for size in row.shape])
        theirs = row.to_theirs(array, config)
        assert all(
            wanted in (0, given) for wanted, given in zip(row.their_shape(config), theirs.shape, strict=True)
        )
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
    rows = names.rows(config)
    wanted = {
        row.theirs: row.their_shape(config)
        for row in rows
        if row.ours.split("/")[0] not in ("classifier", "qa_outputs")
    }
    assert weights == wanted


def test_a_google_index_without_its_data_is_one_line(data_dir):
    with pytest.raises(ValueError, match="cannot be read") as error:
        checkpoints.read(data_dir / "tf1_checkpoint_indexes" / "google-bert-medium-uncased")
    assert "\n" not in str(error.value)


# --- round trips -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
@pytest.mark.parametrize("heads", [(), ("masked_lm",)], ids=["encoder", "masked_lm"])
def test_round_trip_is_bit_for_bit(tmp_path, form, heads):
    checkpoint = random_checkpoint(heads=heads)
    assert checkpoints.write(checkpoint, tmp_path / "out", format=form) == ()
    again = checkpoints.read(tmp_path / "out")
    assert again.format == form
    assert_same(again, checkpoint)


@pytest.mark.parametrize("form", ["hugging-face", "google"])
def test_round_trip_of_every_head(tmp_path, form):
    checkpoint = random_checkpoint(heads=("masked_lm", "next_sentence", "classifier", "qa_outputs"))
    assert checkpoints.write(checkpoint, tmp_path / "out", format=form) == ()
    assert_same(checkpoints.read(tmp_path / "out"), checkpoint)


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


@pytest.mark.parametrize("form", [*FORMATS])
def test_weights_that_are_nan_or_infinite_are_not_written(tmp_path, form):
    for value in (np.nan, -np.inf):
        with pytest.raises(
            BertKerasError, match="block_1/attention/query/bias.* 1 .*NaN or infinite"
        ) as error:
            checkpoints.write(spoiled(random_checkpoint(heads=()), value), tmp_path / "out", format=form)
        assert str(tmp_path / "out") in str(error.value) and not (tmp_path / "out").exists()


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
    with pytest.raises(BertKerasError, match="NaN or infinite") as error:
        checkpoints.read(tmp_path / "given")
    assert str(error.value).startswith(f"{theirs} in {tmp_path / 'given'}")


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
        ("bert_keras", ("masked_lm",), "bert_keras", "BertForMaskedLM"),
    ],
)
def test_the_model_type_written_is_the_first_that_holds_the_checkpoint(
    tmp_path, kind, heads, model_type, architecture
):
    checkpoint = random_checkpoint(dataclasses.replace(TINY, **KINDS[kind]), heads=heads)
    checkpoint = dataclasses.replace(checkpoint, vocabulary=PADDING_SECOND)
    left_out = checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    assert left_out == (("pooler/kernel", "pooler/bias") if model_type == "electra" else ())
    again = checkpoints.read(tmp_path / "out")
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in left_out}
    assert_same(again, dataclasses.replace(checkpoint, tensors=kept))
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == (model_type, [architecture])


@pytest.mark.parametrize("kind", ["electra", "roberta"])
def test_a_masked_lm_head_with_another_gelu(tmp_path, kind):
    """Theirs is written into the code: the head goes under our model_type, and is not read under theirs."""
    erf = random_checkpoint(dataclasses.replace(TINY, **KINDS[kind]), heads=("masked_lm",))
    erf = dataclasses.replace(erf, vocabulary=None)
    tanh = dataclasses.replace(erf, config=dataclasses.replace(erf.config, activation="gelu_tanh"))
    checkpoints.write(tanh, tmp_path / "ours", format="hugging-face")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "bert_keras"
    assert_same(checkpoints.read(tmp_path / "ours"), tanh)
    checkpoints.write(erf, tmp_path / "theirs", format="hugging-face")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "gelu_new"}))
    again = checkpoints.read(tmp_path / "theirs")
    assert {name.split(".")[0] for name in again.unknown} <= {
        "generator_predictions",
        "generator_lm_head",
        "lm_head",
    }
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
def test_keras_hub_preset_round_trip(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    config = dataclasses.replace(TINY, hidden_dropout=0.2, attention_dropout=0.2)
    checkpoint = random_checkpoint(config, heads=("masked_lm",))
    left_out = checkpoints.write(checkpoint, tmp_path / "out", format="keras-hub")
    assert left_out and all(name.startswith("masked_lm/") for name in left_out)
    again = checkpoints.read(tmp_path / "out")
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in left_out}
    assert again.format == "keras-hub"
    assert again.lower_case is False
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
    assert_same(again, dataclasses.replace(checkpoint, vocabulary=None))


# --- what is in real files ---------------------------------------------------------------------------------


def test_real_bert_tiny_in_the_old_spelling(data_dir):
    folder = data_dir / "weights" / "bert-tiny-splade-uncased"
    checkpoint = checkpoints.read(folder)
    assert checkpoint.config == BertConfig.named("tiny", activation="gelu_erf")
    assert checkpoint.architecture == "ForMaskedLM"
    assert (len(checkpoint.vocabulary), checkpoint.lower_case, checkpoint.unknown) == (30522, True, ())
    with pytest.raises(ValueError, match="has no pooler/kernel, pooler/bias; fresh="):
        checkpoints.load_encoder(folder, log=lambda line: None)
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
    with pytest.raises(ValueError, match="the checkpoint has no bilstm/"):
        checkpoints.assign(checkpoint, encoder)
    report = checkpoints.assign(checkpoint, encoder, fresh=("bilstm",))
    assert {name.split("/")[0] for name in report.fresh} == {"bilstm"}
    collected = checkpoints.collect(encoder.config, encoder)
    assert checkpoints.write(collected, tmp_path / "out", format="hugging-face") == ()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert_keras"
    again = checkpoints.read(tmp_path / "out")
    assert again.config == encoder.config
    assert_same(again, collected)


def safetensors_folder(path: Path, tensors: dict, config: BertConfig = TINY, **more) -> Path:
    from safetensors.numpy import save_file

    path.mkdir(exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(config.to_hugging_face() | more))
    return path


def their_tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    rows = {row.ours: row for row in FORMATS["hugging-face"].names_for(checkpoint).rows(checkpoint.config)}
    return {
        rows[name].theirs: rows[name].to_theirs(tensor, checkpoint.config)
        for name, tensor in checkpoint.tensors.items()
    }


def test_old_names_no_prefix_buffers_and_repeated_tables(tmp_path):
    checkpoint = random_checkpoint()
    theirs = their_tensors(checkpoint)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta")
        .removeprefix("bert."): v
        for name, v in theirs.items()
    }
    old["embeddings.position_ids"] = np.arange(10)[None]
    old["cls.predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = theirs["cls.predictions.bias"]
    old["something.else"] = np.zeros(3, "float32")
    again = checkpoints.read(safetensors_folder(tmp_path / "old", old))
    assert again.unknown == ("something.else",)
    assert_same(dataclasses.replace(again, unknown=(), vocabulary=PIECES), checkpoint)
    report = checkpoints.assign(again, BertEncoder(TINY))
    assert report.unused[-1] == "something.else"
    assert "something.else" in str(report)

    old["embeddings.LayerNorm.weight"] = old["embeddings.LayerNorm.gamma"] + 1
    with pytest.raises(ValueError, match=r"LayerNorm.weight and embeddings.LayerNorm.gamma .* differ"):
        checkpoints.read(safetensors_folder(tmp_path / "two", old))


def test_a_masked_lm_head_with_embeddings_of_its_own_is_left_out(tmp_path):
    """Ours computes with the encoder's; the encoder is read all the same."""
    checkpoint = dataclasses.replace(random_checkpoint(), architecture="ForPreTraining")
    theirs = their_tensors(checkpoint)
    theirs["cls.predictions.decoder.weight"] = theirs["bert.embeddings.word_embeddings.weight"] + 1
    theirs["cls.predictions.decoder.bias"] = theirs["cls.predictions.bias"]
    folder = safetensors_folder(
        tmp_path / "untied", theirs, tie_word_embeddings=False, architectures=["BertForPreTraining"]
    )
    again = checkpoints.read(folder)
    left = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("masked_lm/")}
    assert {name for name in theirs if name.startswith("cls.predictions.")} == {*again.unknown}
    assert again.architecture is None
    assert_same(
        dataclasses.replace(again, unknown=()), dataclasses.replace(checkpoint, tensors=left, vocabulary=None)
    )
    encoder = BertEncoder(TINY)
    assert "cls.predictions.decoder.weight" in checkpoints.assign(again, encoder).unused
    with pytest.raises(ValueError, match="untied: the checkpoint has no masked_lm/.*unknown names: cls"):
        checkpoints.assign(again, encoder, masked_lm=MaskedLMHead(encoder))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_the_names_of_a_wrapped_module(tmp_path, prefix):
    checkpoint = random_checkpoint()
    theirs = {prefix + name: tensor for name, tensor in their_tensors(checkpoint).items()}
    again = checkpoints.read(safetensors_folder(tmp_path / "out", theirs))
    assert_same(dataclasses.replace(again, vocabulary=PIECES), checkpoint)


def test_shards(tmp_path):
    from safetensors.numpy import save_file

    checkpoint = random_checkpoint()
    theirs = their_tensors(checkpoint)
    names = sorted(theirs)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    (tmp_path / "config.json").write_text(json.dumps(TINY.to_hugging_face()))
    for file, part in shards.items():
        save_file({name: theirs[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(checkpoints.read(tmp_path), dataclasses.replace(checkpoint, vocabulary=None))
    for bad in ("../model-1.safetensors", "/etc/passwd", "absent.safetensors"):
        index["weight_map"][names[0]] = bad
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="not a file in its folder"):
            checkpoints.read(tmp_path)


@pytest.mark.parity
def test_pytorch_files_are_read_without_running_them(tmp_path):
    torch = pytest.importorskip("torch")
    checkpoint = dataclasses.replace(random_checkpoint(), vocabulary=None)
    theirs = {name: torch.from_numpy(tensor) for name, tensor in their_tensors(checkpoint).items()}
    (tmp_path / "config.json").write_text(json.dumps(TINY.to_hugging_face()))
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    assert_same(checkpoints.read(tmp_path), checkpoint)

    torch.save({name: tensor.bfloat16() for name, tensor in theirs.items()}, tmp_path / "pytorch_model.bin")
    narrow = numpy_dtype("bfloat16")
    cast = {name: tensor.astype(narrow) for name, tensor in checkpoint.tensors.items()}
    assert_same(checkpoints.read(tmp_path), dataclasses.replace(checkpoint, tensors=cast))

    torch.save({"model": theirs, "step": 1}, tmp_path / "pytorch_model.bin")
    raises(ValueError, "plain tensors: it holds model, step; save the model", checkpoints.read, tmp_path)

    torch.save(theirs | {"evil": Evil(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="not a PyTorch file of plain tensors") as error:
        checkpoints.read(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


class Evil:
    """Makes a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


# --- bad input: one line each ------------------------------------------------------------------------------


def raises(error: type[Exception], match: str, call, *args, **kwargs) -> None:
    with pytest.raises(error, match=match) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value).strip(), str(caught.value)


def test_missing_checkpoints(tmp_path):
    raises(FileNotFoundError, "no such file or folder", checkpoints.read, tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("x")
    raises(
        FileNotFoundError,
        "looked for model.safetensors or pytorch_model.bin .*keras-hub",
        checkpoints.read,
        tmp_path,
    )
    raises(FileNotFoundError, "; found notes.txt.$", checkpoints.read, tmp_path)
    raises(
        ValueError,
        "no checkpoint format 'onnx'; the formats are hugging-face",
        checkpoints.write,
        random_checkpoint(),
        tmp_path / "out",
        format="onnx",
    )


def test_two_tensorflow_checkpoints_in_one_folder(tmp_path):
    (tmp_path / "ckpt-1.index").touch()
    (tmp_path / "ckpt-2.index").touch()
    raises(ValueError, r"holds 2 TensorFlow checkpoints \(ckpt-1, ckpt-2\)", checkpoints.read, tmp_path)
    raises(ValueError, "is not a TensorFlow checkpoint", checkpoints.read, tmp_path / "ckpt-1")


@pytest.mark.parametrize("keep", [0, 4, 200, 0.5, -1])
def test_safetensors_cut_short(tmp_path, keep):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    file = tmp_path / "out" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")


def test_a_safetensors_header_that_claims_more_than_there_is(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    file = tmp_path / "out" / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")
    huge = json.dumps(
        {"bert.x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    ).encode()
    file.write_bytes(len(huge).to_bytes(8, "little") + huge)
    raises(ValueError, "cut short or not a safetensors file", checkpoints.read, tmp_path / "out")


def test_tensorflow_data_cut_short(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    file = tmp_path / "out" / "bert_model.ckpt.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[:100])
    raises(ValueError, "cannot be read", checkpoints.read, tmp_path / "out")


@pytest.mark.parametrize("part", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_any_file_of_a_tensorflow_checkpoint_names_it(tmp_path, part):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    (tmp_path / "out" / "bert_model.ckpt.meta").touch()
    assert checkpoints.read(tmp_path / "out" / f"bert_model.ckpt{part}").format == "google"


@saves_with_keras
def test_a_keras_hub_preset_in_shards_with_a_head_or_quantized(tmp_path):
    import h5py

    keras_hub = pytest.importorskip("keras_hub")
    checkpoint = random_checkpoint(heads=())
    checkpoints.write(checkpoint, tmp_path / "whole", format="keras-hub")
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "whole"))
    backbone.save_to_preset(str(tmp_path / "shards"), max_shard_size=4e-6)
    assert not (tmp_path / "shards" / "model.weights.h5").exists()
    for path in (tmp_path / "shards", tmp_path / "shards" / "model.weights.json"):
        again = dataclasses.replace(checkpoints.read(path), vocabulary=PIECES)
        assert_same(again, checkpoint)
    with h5py.File(tmp_path / "whole" / "task.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((8, 3))
        file["optimizer/vars/0"] = 1
    assert checkpoints.read(tmp_path / "whole").unknown == ("task.weights.h5/layers/dense/vars/0",)
    (tmp_path / "whole" / "task.weights.h5").write_bytes(b"x")
    raises(
        ValueError, "task.weights.h5 is cut short or not an HDF5 file", checkpoints.read, tmp_path / "whole"
    )
    path = tmp_path / "whole" / "config.json"
    content = json.loads(path.read_text())
    content["config"]["dtype"] = {"class_name": "QuantizedDTypePolicy", "config": {"mode": "int8"}}
    path.write_text(json.dumps(content))
    raises(ValueError, "config.json is quantized", checkpoints.read, tmp_path / "whole")


@saves_with_keras
def test_keras_hub_weights_cut_short_or_of_another_config(tmp_path):
    pytest.importorskip("keras_hub")
    checkpoints.write(random_checkpoint(heads=()), tmp_path / "out", format="keras-hub")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    large = dict(config, config=dict(config["config"], vocabulary_size=10**6))
    (tmp_path / "out" / "config.json").write_text(json.dumps(large))
    raises(ValueError, "needs .* numbers: it is cut short", checkpoints.read, tmp_path / "out")
    other = dict(config, config=dict(config["config"], intermediate_dim=16))
    (tmp_path / "out" / "config.json").write_text(json.dumps(other))
    raises(ValueError, "does not hold this config's weights", checkpoints.read, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(dict(config, class_name="GemmaBackbone")))
    raises(ValueError, "wanted a KerasHub BertBackbone", checkpoints.read, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "out" / "model.weights.h5"
    file.write_bytes(file.read_bytes()[:5000])
    raises(ValueError, "does not hold this config's weights", checkpoints.read, tmp_path / "out")


def test_a_shape_that_is_not_the_configs(tmp_path):
    theirs = their_tensors(random_checkpoint())
    folder = safetensors_folder(tmp_path / "out", theirs, dataclasses.replace(TINY, vocab_size=14))
    raises(
        ValueError,
        r"word_embeddings.weight .* has shape \[13, 8\]; the config wants \[14, 8\]",
        checkpoints.read,
        folder,
    )


def test_a_missing_weight(tmp_path):
    theirs = their_tensors(random_checkpoint(heads=()))
    del theirs["bert.encoder.layer.1.output.dense.weight"]
    folder = safetensors_folder(tmp_path / "out", theirs)
    missing = "the checkpoint has no block_1/feed_forward/output/kernel"
    raises(ValueError, missing, checkpoints.load_encoder, folder, fresh=("pooler",), log=print)
    whole = random_checkpoint(heads=())
    del whole.tensors["block_1/feed_forward/output/kernel"]
    raises(
        ValueError, "lacks block_1/feed_forward/output/kernel",
        checkpoints.write, whole, tmp_path / "again", format="google",
    )  # fmt: skip


def test_names_of_another_model(tmp_path):
    folder = safetensors_folder(tmp_path / "out", {"gpt.wte": np.zeros((3, 2), "float32")})
    raises(
        ValueError,
        "no tensor in .* has a name of the hugging-face format; .* gpt.wte",
        checkpoints.read,
        folder,
    )


@pytest.mark.parametrize(("kind", "said"), [("bert", "'electra'"), ("electra", "'bert' or 'bert_keras'")])
def test_a_model_type_that_is_not_the_weights(tmp_path, kind, said):
    """The names are another's, and which is said."""
    prefix = {"bert": "electra.", "electra": "bert."}[kind]
    bert = their_tensors(random_checkpoint(heads=()))
    theirs = {prefix + name.removeprefix("bert."): tensor for name, tensor in bert.items()}
    folder = safetensors_folder(tmp_path / "out", theirs, model_type=kind)
    message = f"and model_type '{kind}'; .* of {said}: correct its config"
    raises(ValueError, message, checkpoints.read, folder)


def test_more_layers_in_the_config_than_in_the_file(tmp_path):
    theirs = their_tensors(random_checkpoint(heads=()))
    folder = safetensors_folder(tmp_path / "out", theirs, dataclasses.replace(TINY, num_layers=4))
    message = "out: the checkpoint has no block_2/.*; it has 2 layers, and num_hidden_layers is 4"
    raises(ValueError, message, checkpoints.load_encoder, folder, log=print)


def test_a_dtype_that_numpy_lacks(tmp_path):
    folder = safetensors_folder(tmp_path / "out", their_tensors(random_checkpoint()))
    file = folder / "model.safetensors"
    header = json.dumps(
        {"bert.pooler.dense.bias": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}
    )
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    raises(ValueError, "pooler.dense.bias of .* is F8_E4M3; wanted float16", checkpoints.read, folder)


def test_integer_weights_are_refused(tmp_path):
    theirs = their_tensors(random_checkpoint())
    theirs["bert.pooler.dense.bias"] = np.ones(8, "int8")
    raises(
        ValueError,
        "pooler.dense.bias .* is int8",
        checkpoints.read,
        safetensors_folder(tmp_path / "out", theirs),
    )


def test_a_head_of_another_size_or_name():
    checkpoint = random_checkpoint(heads=("classifier",))
    encoder = BertEncoder(TINY)
    before = np.asarray(encoder.embedding_table).copy()
    wrong = ClassifierHead(3, config=TINY)
    raises(
        ValueError, r"classifier/dense/\w+ has shape \[(8, )?5\] in the checkpoint; the model wants",
        checkpoints.assign, checkpoint, encoder, classifier=wrong,
    )  # fmt: skip
    raises(ValueError, "unknown head sentiment", checkpoints.assign, checkpoint, encoder, sentiment=wrong)
    raises(
        ValueError,
        "the checkpoint has no question answering head; give",
        checkpoints.assign,
        checkpoint,
        encoder,
        qa_outputs=SpanHead(config=TINY),
    )
    np.testing.assert_array_equal(
        np.asarray(encoder.embedding_table), before
    )  # refused before anything was assigned
    report = checkpoints.assign(checkpoint, encoder, fresh=("qa_outputs",))
    assert report.fresh == ("qa_outputs",)


def test_a_vocabulary_larger_than_the_table(tmp_path):
    checkpoint = dataclasses.replace(random_checkpoint(), vocabulary=(*PIECES, "x", "y"))
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    for call in (checkpoints.read, checkpoints.load_tokenizer):
        raises(ValueError, "has 14 tokens and the config's vocab_size is 13", call, tmp_path / "out")


def test_a_vocabulary_that_is_not_utf8(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    (tmp_path / "out" / "vocab.txt").write_bytes("é".encode("latin-1"))
    raises(ValueError, "vocab.txt, line 1: not UTF-8; save", checkpoints.read, tmp_path / "out")


def test_no_config(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    (tmp_path / "out" / "bert_config.json").unlink()
    raises(FileNotFoundError, "no bert_config.json", checkpoints.read, tmp_path / "out")


def test_writing_to_an_existing_folder(tmp_path):
    checkpoint = random_checkpoint()
    (tmp_path / "out").mkdir()
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")  # an empty folder will do
    raises(
        FileExistsError, "not empty", checkpoints.write, checkpoint, tmp_path / "out", format="hugging-face"
    )
    (tmp_path / "out" / "task.json").write_text("kept")
    other = dataclasses.replace(
        checkpoint, tensors={name: tensor + 1 for name, tensor in checkpoint.tensors.items()}
    )
    checkpoints.write(other, tmp_path / "out", format="hugging-face", overwrite=True)
    assert_same(checkpoints.read(tmp_path / "out"), other)
    assert (tmp_path / "out" / "task.json").read_text() == "kept"
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        checkpoints.write(checkpoint, tmp_path / "file" / "out", format="google")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]  # nothing half-written is left


def test_a_failed_write_leaves_nothing(tmp_path):
    checkpoint = random_checkpoint(heads=())
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("pooler/")}
    pytest.importorskip("keras_hub")
    raises(
        ValueError, "has no pooled_dense/kernel", checkpoints.write,
        dataclasses.replace(checkpoint, tensors=bare), tmp_path / "out", format="keras-hub",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        ("google", {"norm_epsilon": 1e-5}),
        ("google", {"causal": True}),
        ("google", {"bilstm": True}),
        ("google", {"embedding_size": 4}),
        ("model-garden", {"share_layers": True}),
        ("keras-hub", {"activation": "gelu_erf"}),
        ("keras-hub", {"norm_epsilon": 1e-5}),
        ("keras-hub", {"attention_dropout": 0.0}),
    ],
)
def test_conversions_that_change_the_numbers_are_refused(tmp_path, form, changes):
    checkpoint = random_checkpoint(dataclasses.replace(TINY, **changes))
    raises(
        ValueError,
        f"{next(iter(changes))}|embedding_width",
        checkpoints.write,
        checkpoint,
        tmp_path / "out",
        format=form,
    )


@pytest.mark.parametrize("made", [False, True])
def test_leftovers_of_a_killed_process_are_removed(tmp_path, made):
    out = tmp_path / "out[1]"
    left = out / PARTIAL if made else tmp_path / f".{out.name}{PARTIAL}"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    checkpoints.write(random_checkpoint(), out, format="hugging-face")
    assert list(tmp_path.iterdir()) == [out] and "config.json" in [path.name for path in out.iterdir()]
    assert not list(out.glob(".*"))


def test_compare_says_where_there_is_no_library(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="google")
    raises(ValueError, "no library can run a google checkpoint", checkpoints.compare, tmp_path / "out")


# --- tokenizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
@pytest.mark.parametrize("lower_case", [False, True])
def test_the_tokenizer_comes_along(tmp_path, form, lower_case):
    """Its case too, which the pieces, all of them lower-case, do not tell."""
    checkpoint = dataclasses.replace(random_checkpoint(), lower_case=lower_case)
    checkpoints.write(checkpoint, tmp_path / "out", format=form)
    assert checkpoints.read(tmp_path / "out").lower_case is lower_case
    for path in (tmp_path / "out", tmp_path / "out" / "vocab.txt"):
        tokenizer = checkpoints.load_tokenizer(path)
        assert (tokenizer.vocabulary, tokenizer.lower_case) == (PIECES, lower_case)
    assert checkpoints.load_tokenizer(tmp_path / "out", lower_case=True).lower_case is True
    if form == "google":
        (tmp_path / "out" / "vocab.txt").unlink()
        raises(FileNotFoundError, "no vocab.txt", checkpoints.load_tokenizer, tmp_path / "out")
        raises(ValueError, "has no vocabulary", checkpoints.tokenizer_of, checkpoints.read(tmp_path / "out"))


@pytest.mark.parametrize("form", ["google", "model-garden"])
def test_the_case_survives_a_conversion_there_and_back(tmp_path, form):
    checkpoints.write(random_checkpoint(), tmp_path / "first", format="hugging-face")
    for source, target, target_form in (("first", "second", form), ("second", "third", "hugging-face")):
        checkpoints.write(checkpoints.read(tmp_path / source), tmp_path / target, format=target_form)
    first, third = (
        json.loads((tmp_path / name / "tokenizer_config.json").read_text()) for name in ("first", "third")
    )
    assert first == third and first["do_lower_case"] is False


@pytest.mark.parametrize("form", ["google", "model-garden"])
def test_settings_beside_another_librarys_vocabulary_are_checked(tmp_path, form):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format=form)
    (tmp_path / "out" / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    raises(ValueError, "tokenize_chinese_chars is False in", checkpoints.read, tmp_path / "out")


def unused_filled(lines: list[str], count: int) -> list[str]:
    """A vocabulary with upper-case terms in the first of its [unusedN]."""
    slots = [i for i, line in enumerate(lines) if re.fullmatch(r"\[unused\d+\]", line)]
    terms = {slot: f"TERM{i}" for i, slot in enumerate(slots[:count])}
    return [terms.get(i, line) for i, line in enumerate(lines)]


@guesses_the_case
@pytest.mark.parametrize(
    ("name", "lower_case"),
    [
        ("uncased_30522", True),
        ("cased_28996", False),
        ("chinese_21128", True),
        ("multi_cased_119547", False),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_the_case_is_guessed_from_a_fraction_of_the_vocabulary(data_dir, tmp_path, name, lower_case, count):
    """Domain terms in one or in all of the [unusedN] do not make an uncased vocabulary cased."""
    lines = (data_dir / "vocab" / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "vocab.txt").write_text("\n".join(unused_filled(lines, count)), encoding="utf-8")
    assert checkpoints.load_tokenizer(tmp_path / "vocab.txt").lower_case is lower_case


def test_a_guessed_case_is_logged_once_and_a_setting_overrides_it(tmp_path):
    pieces = (*PIECES[:-1], "A")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    said = (
        r"the files of .* do not say whether to lower-case text; guessed lower_case=False: 1 of its 6 tokens"
    )
    with pytest.warns(UserWarning, match=f"^{said}.*do_lower_case") as caught:
        assert checkpoints.load_tokenizer(tmp_path).lower_case is False
    assert len(caught) == 1 and str(tmp_path) in str(caught[0].message) and "\n" not in str(caught[0].message)
    assert checkpoints.load_tokenizer(tmp_path, lower_case=True).lower_case is True  # nothing is guessed
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert checkpoints.load_tokenizer(tmp_path).lower_case is True


@guesses_the_case
@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
def test_converting_a_folder_that_does_not_say_whether_it_is_cased(tmp_path, form):
    for pieces, lower_case in ((PIECES, True), ((*PIECES[:-1], "A"), False)):
        checkpoint = dataclasses.replace(random_checkpoint(heads=()), vocabulary=pieces, lower_case=None)
        checkpoints.write(checkpoint, tmp_path / "out", format=form, overwrite=True)
        settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
        assert settings["do_lower_case"] is lower_case  # transformers would take true for granted


@saves_with_keras
@guesses_the_case
def test_a_keras_hub_preset_has_its_tokenizer(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    checkpoint = dataclasses.replace(random_checkpoint(heads=()), lower_case=None)
    checkpoints.write(checkpoint, tmp_path / "out", format="keras-hub")
    theirs = keras_hub.models.BertTokenizer.from_preset(str(tmp_path / "out"))
    text = "UNABLE Á b"
    assert np.asarray(theirs(text)).tolist() == [PIECES.index(piece) for piece in ("un", "##able", "a", "b")]
    ours = checkpoints.load_tokenizer(tmp_path / "out")
    assert ours.tokenize([text]).to_list() == [np.asarray(theirs(text)).tolist()]


def pipeline() -> dict:
    """A tokenizer.json of PIECES, uncased, as transformers writes it."""
    return {
        "added_tokens": [{"id": i, "content": piece, "special": True} for i, piece in enumerate(PIECES[:5])],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: i for i, piece in reversed(list(enumerate(PIECES)))},
        },
    }


@pytest.mark.parametrize("with_vocab_txt", [False, True])
@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("normalizer", {"strip_accents": False}, "strip_accents is False"),
        ("normalizer", {"lowercase": False, "strip_accents": True}, "strip_accents is True"),
        ("normalizer", {"lowercase": "no"}, "lowercase is 'no'"),
        ("normalizer", {"handle_chinese_chars": False}, "handle_chinese_chars is False"),
        ("normalizer", {"clean_text": False}, "clean_text is False"),
        ("normalizer", {"type": "Lowercase"}, "type is 'Lowercase'"),
        ("normalizer", None, "type is None"),
        ("pre_tokenizer", {"type": "WhitespaceSplit"}, "type is 'WhitespaceSplit'"),
        ("pre_tokenizer", None, "type is None"),
        ("model", {"continuing_subword_prefix": "@@"}, "continuing_subword_prefix is '@@'"),
        ("model", {"unk_token": "<unk>"}, "unk_token is '<unk>'"),
        ("model", {"max_input_chars_per_word": 10}, "max_input_chars_per_word is 10"),
    ],
)
def test_a_tokenizer_json_that_gives_other_ids_is_refused(tmp_path, part, changes, said, with_vocab_txt):
    content = pipeline()
    content[part] = None if changes is None else content[part] | changes
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    if with_vocab_txt:
        (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    raises(
        ValueError,
        f"{said} in the {part} of .*tokenizer.json, which changes the ids",
        checkpoints.load_tokenizer,
        tmp_path,
    )


@pytest.mark.parametrize("lower_case", [False, True])
def test_the_tokenizer_json_beside_a_vocab_txt_says_the_case(tmp_path, lower_case):
    content = pipeline()
    content["normalizer"]["lowercase"] = lower_case
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    assert checkpoints.load_tokenizer(tmp_path).lower_case is lower_case
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lower_case}))
    message = f"do_lower_case is {not lower_case} in .*tokenizer_config.json"
    raises(ValueError, message, checkpoints.load_tokenizer, tmp_path)


@guesses_the_case
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"covid": 12, "[MASK]": 4}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"4": {"content": "[MASK]"}, "12": {"content": "covid"}}}),
        ("tokenizer.json", pipeline() | {"added_tokens": [{"content": "covid"}, {"content": "[MASK]"}]}),
    ],
)  # fmt: skip
def test_added_tokens_that_the_vocabulary_lacks_are_named(tmp_path, name, content):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=" adds covid to its vocabulary; text that holds them is split"):
        assert checkpoints.load_tokenizer(tmp_path).vocabulary == PIECES


@pytest.mark.parametrize("content", [{"added_tokens_decoder": {"4": "x"}}, {"added_tokens_decoder": ["x"]}])
def test_malformed_added_tokens(tmp_path, content):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    raises(
        ValueError,
        "tokenizer_config.json: added_tokens_decoder is .*; wanted an object, each value an object with its text",
        checkpoints.load_tokenizer,
        tmp_path,
    )


@guesses_the_case
@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("kind", ["BertJapaneseTokenizer", "RobertaTokenizer"])
def test_another_tokenizer_class_is_named_and_the_weights_are_read(tmp_path, name, kind):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    path = tmp_path / "out" / name
    (tmp_path / "out" / "tokenizer_config.json").write_text("{}")
    content = json.loads(path.read_text()) | {"tokenizer_class": kind}
    path.write_text(json.dumps(content))
    assert_same(checkpoints.read(tmp_path / "out"), dataclasses.replace(random_checkpoint(), vocabulary=None))
    raises(
        ValueError,
        f"out: the checkpoint's tokenizer is {kind}, which is not supported",
        checkpoints.load_tokenizer,
        tmp_path / "out",
    )
    path.write_text(json.dumps(content | {"tokenizer_class": "ElectraTokenizerFast"}))
    assert checkpoints.load_tokenizer(tmp_path / "out").vocabulary == PIECES


@guesses_the_case
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((*PIECES, "a"), "line 13: 'a' .* line 8"),
        (("[PAD]", "", *PIECES[1:]), "line 2: blank"),
        (("a b", *PIECES), "line 1: 'a b' holds a space"),
        (PIECES[1:], r"\[PAD\] missing"),
    ],
)
@pytest.mark.parametrize("name", ["", "vocab.txt"])
def test_an_error_of_a_vocabulary_names_its_line(tmp_path, lines, said, name):
    (tmp_path / "vocab.txt").write_text("\n".join(lines))
    message = f"{tmp_path / name}: vocabulary.*{said}"
    raises(ValueError, message, checkpoints.load_tokenizer, tmp_path / name)


def test_tokenizer_json_serves_where_vocab_txt_is_missing(tmp_path):
    folder = safetensors_folder(tmp_path / "out", their_tensors(random_checkpoint()))
    content = pipeline()
    vocab = content["model"]["vocab"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = checkpoints.load_tokenizer(folder)
    assert (tokenizer.vocabulary, tokenizer.lower_case) == (PIECES, True)
    # transformers writes a piece of separators as "": the ids behind it keep their offsets.
    vocab[""] = vocab.pop("\u2028")
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert checkpoints.load_tokenizer(folder).vocabulary == PIECES
    vocab["gap"] = 12 + 5
    (folder / "tokenizer.json").write_text(json.dumps(content))
    raises(ValueError, "ids .* without a gap", checkpoints.read, folder)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece"}}))
    raises(ValueError, "holds no WordPiece vocabulary", checkpoints.read, folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}},
            "is BPE with type=None in its pre_tokenizer",
        ),
        ({"merges.txt": "a b"}, "is byte-level BPE without its vocab.json"),
        ({"tokenizer.json": {"model": {"type": "WordLevel"}}}, "is a WordLevel model"),
    ],
)
def test_a_tokenizer_of_another_kind_is_named_and_the_weights_are_read(tmp_path, files, said):
    config = dataclasses.replace(TINY, **KINDS["roberta"])
    checkpoint = dataclasses.replace(random_checkpoint(config, heads=("masked_lm",)), vocabulary=None)
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    for name, content in files.items():
        (tmp_path / "out" / name).write_text(json.dumps(content))
    assert_same(checkpoints.read(tmp_path / "out"), checkpoint)
    for call in (
        checkpoints.load_tokenizer,
        lambda folder: checkpoints.tokenizer_of(checkpoints.read(folder)),
    ):
        raises(ValueError, f"tokenizer {said}, which is not supported", call, tmp_path / "out")


@pytest.mark.parametrize(
    "settings",
    [
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
        {"do_basic_tokenize": False},
        {"never_split": ["covid"]},
        {"do_lower_case": "false"},
        {"word_tokenizer_type": "mecab"},
        {"wordpieces_prefix": "@@"},
    ],
)
def test_tokenizer_settings_that_give_other_ids_are_refused(tmp_path, settings):
    checkpoints.write(
        dataclasses.replace(random_checkpoint(), lower_case=True), tmp_path / "out", format="hugging-face"
    )
    path = tmp_path / "out" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    ((key, value),) = settings.items()
    raises(ValueError, re.escape(f"{key} is {value!r}"), checkpoints.read, tmp_path / "out")


def test_reading_safetensors_needs_no_tensorflow(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    code = (
        "import sys; sys.modules['tensorflow'] = None; from bert_keras import checkpoints; "
        f"print(len(checkpoints.read({str(tmp_path / 'out')!r}).tensors), 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=GOLDEN.parents[2]
    )
    assert done.stdout.split() == [str(len(random_checkpoint().tensors)), "False"]


# --- a second implementation -------------------------------------------------------------------------------

PARITY = dataclasses.replace(TINY, vocab_size=67, hidden_size=32, intermediate_size=48, max_positions=16)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh"])
def test_checkpoints_of_transformers_give_equal_outputs(tmp_path, activation):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = dataclasses.replace(PARITY, activation=activation)
    ours = seeded(config)
    theirs = hugging_face(config, random_weights(ours.shapes(), seed=3))
    theirs.save_pretrained(tmp_path / "saved")
    checkpoint = checkpoints.read(tmp_path / "saved")
    assert (checkpoint.config, checkpoint.architecture) == (config, "ForPreTraining")
    report = checkpoints.assign(checkpoint, ours.encoder, masked_lm=ours.mlm, next_sentence=ours.nsp)
    assert (report.fresh, report.unused) == ((), ())
    features = random_features(config, seed=0, batch=3, length=11)
    assert_equal(ours.outputs(features), hugging_face_outputs(theirs, features), bound=1e-5)
    differences = checkpoints.compare(tmp_path / "saved")
    assert list(differences) == [
        "embeddings",
        "block_0",
        "block_1",
        "pooled_output",
        "masked_lm",
        "next_sentence",
    ]
    assert max(differences.values()) <= 1e-4, differences


@pytest.mark.parity
def test_our_checkpoints_give_equal_outputs_in_transformers(tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours = seeded(PARITY)
    checkpoint = checkpoints.collect(PARITY, ours.encoder, masked_lm=ours.mlm, next_sentence=ours.nsp)
    pieces = tuple(piece for piece in PIECES if piece.strip())  # transformers strips the lines of a vocab.txt
    checkpoint = dataclasses.replace(checkpoint, vocabulary=pieces, lower_case=True)
    checkpoints.write(checkpoint, tmp_path / "saved", format="hugging-face")
    theirs, loading = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "saved", attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    features = random_features(PARITY, seed=0, batch=3, length=11)
    assert_equal(ours.outputs(features), hugging_face_outputs(theirs.eval(), features), bound=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.convert_tokens_to_ids(list(pieces)) == list(range(len(pieces)))
    assert tokenizer.tokenize("Unable A") == ["un", "##able", "a"]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("head", "name", "architecture"),
    [
        (lambda config: ClassifierHead(5, config=config), "classifier", "BertForSequenceClassification"),
        (lambda config: TokenHead(5, config=config), "classifier", "BertForTokenClassification"),
        (lambda config: ChoiceHead(4, config=config), "classifier", "BertForMultipleChoice"),
        (lambda config: SpanHead(config=config), "qa_outputs", "BertForQuestionAnswering"),
    ],
    ids=["classifier", "token", "choice", "span"],
)
def test_task_heads_load_into_transformers_class_for_them(tmp_path, head, name, architecture):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours, layer = seeded(PARITY), head(PARITY)
    checkpoint = checkpoints.collect(PARITY, ours.encoder, **{name: layer})
    checkpoints.write(checkpoint, tmp_path / "saved", format="hugging-face")
    assert f"Bert{checkpoints.read(tmp_path / 'saved').architecture}" == architecture
    theirs, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not loading["missing_keys"], loading
    kernel = getattr(theirs, name).weight.detach().numpy().T
    np.testing.assert_array_equal(kernel, checkpoint.tensors[f"{name}/dense/kernel"])


@pytest.mark.parity
def test_transformers_refuses_what_it_would_compute_differently(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    checkpoints.write(
        random_checkpoint(dataclasses.replace(TINY, causal=True)), tmp_path / "out", format="hugging-face"
    )
    with pytest.raises(ValueError, match="bert_keras"):
        transformers.AutoModel.from_pretrained(tmp_path / "out")
    raises(ValueError, "no model of model_type 'bert_keras'", checkpoints.compare, tmp_path / "out")


@pytest.mark.parity
def test_real_bert_tiny_against_transformers(data_dir):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    differences = checkpoints.compare(data_dir / "weights" / "bert-tiny-splade-uncased")
    assert list(differences) == ["embeddings", "block_0", "block_1", "masked_lm"]
    assert max(differences[name] for name in ("embeddings", "block_0", "block_1")) <= 6e-5, differences
    assert differences["masked_lm"] <= 3e-4, differences  # its logits reach 31


@pytest.mark.parity
@saves_with_keras
def test_a_keras_hub_preset_made_there_computes_the_same_here(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    theirs = keras_hub.models.BertBackbone(
        vocabulary_size=67,
        num_layers=3,
        num_heads=4,
        hidden_dim=32,
        intermediate_dim=48,
        max_sequence_length=16,
    )
    theirs.save_to_preset(str(tmp_path / "preset"))
    lines: list[str] = []
    encoder = checkpoints.load_encoder(
        tmp_path / "preset", outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT), log=lines.append
    )
    assert encoder.config.num_layers == 3
    assert "from a keras-hub checkpoint\nrandomly initialized: none\nunused: none" in lines[0]
    assert max(checkpoints.compare(tmp_path / "preset").values()) <= 1e-5
