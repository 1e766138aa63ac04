"""BertConfig: strict values, and both published file forms both ways."""

import dataclasses
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from random_checkpoints import refused

from bert_keras.config import ACTIVATIONS, SIZES, BertConfig
from bert_keras.config_files import MODEL_TYPES

SMALL = BertConfig(
    vocab_size=20, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=12, max_positions=10
)
GOOGLE = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3, "max_position_embeddings": 256, "type_vocab_size": 3,
    "initializer_range": 0.01,
}  # fmt: skip


# --- values -----------------------------------------------------------------------------------------------


def test_it_is_frozen_keyword_only_and_knows_its_fields():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.vocab_size = 3
    with pytest.raises(TypeError):
        BertConfig(30522)
    with pytest.raises(TypeError):
        BertConfig(vocab_size=30522, layers=2)
    assert hash(SMALL) == hash(dataclasses.replace(SMALL))


def test_the_defaults_are_berts():
    config = BertConfig(vocab_size=30522)
    assert config == BertConfig.named("base")
    assert (config.num_layers, config.hidden_size) == (12, 768)
    assert (config.num_heads, config.intermediate_size) == (12, 3072)
    assert (config.max_positions, config.type_vocab_size, config.activation) == (512, 2, "gelu_tanh")
    assert (config.hidden_dropout, config.attention_dropout, config.head_dropout) == (0.1, 0.1, 0.1)
    assert (config.initializer_range, config.norm_epsilon, config.position_offset) == (0.02, 1e-12, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 0}, "vocab_size is 0; vocab_size must be a whole number of at least 1"),
        ({"vocab_size": 20.0}, "vocab_size is 20.0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_layers": -1}, "num_layers is -1"),
        ({"hidden_size": "8"}, "hidden_size is '8'"),
        ({"type_vocab_size": -1}, "type_vocab_size is -1; .* at least 0"),
        ({"pooler_activation": None}, "pooler_activation is None; pooler_activation must be one of .* relu"),
        ({"embedding_size": 0}, "embedding_size is 0"),
        ({"num_heads": 3}, "hidden_size 8 is not a multiple of num_heads 3"),
        ({"hidden_dropout": 1.0}, "hidden_dropout is 1.0; .* must be a .* at least 0 and below 1"),
        ({"attention_dropout": -0.1}, "attention_dropout is -0.1"),
        ({"classifier_dropout": 2}, "classifier_dropout is 2"),
        ({"initializer_range": 0}, "initializer_range is 0"),
        ({"norm_epsilon": float("nan")}, "norm_epsilon is nan"),
        ({"activation": "gelu"}, "activation is 'gelu'; activation must be one of gelu_tanh, gelu_erf"),
        ({"share_layers": 1}, "share_layers is 1; share_layers must be true or false"),
        ({"causal": "no"}, "causal is 'no'"),
        ({"position_offset": 10}, "position_offset is 10; .* below max_positions, 10"),
    ],
)
def test_invalid_values_raise_one_line(changes, said):
    refused(said, dataclasses.replace, SMALL, **changes)


def test_derived_values():
    config = dataclasses.replace(
        SMALL, embedding_size=4, position_offset=2, hidden_dropout=0.3, classifier_dropout=0.0
    )
    assert (config.embedding_width, config.max_length, config.head_dropout) == (4, 8, 0.0)
    assert (SMALL.embedding_width, SMALL.max_length, SMALL.head_dropout) == (8, 10, 0.1)


def test_dict_round_trip_and_unknown_fields():
    config = dataclasses.replace(SMALL, causal=True, embedding_size=4)
    assert BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(
        ValueError, match="unknown configuration field num_hidden_layers; the fields are activation,"
    ):
        BertConfig.from_dict(config.to_dict() | {"num_hidden_layers": 3})


# --- the two file forms -----------------------------------------------------------------------------------


def test_every_number_of_a_google_file_is_honoured():
    dropouts = {"hidden_dropout": 0.2, "attention_dropout": 0.3}
    others = {
        "max_positions": 256,
        "type_vocab_size": 3,
        "initializer_range": 0.01,
        "activation": "gelu_tanh",
    }
    assert BertConfig.from_google(GOOGLE) == BertConfig(vocab_size=30522, **dropouts, **others)
    # modeling.py's own default, where a file leaves it out
    less = {key: value for key, value in GOOGLE.items() if key != "type_vocab_size"}
    assert BertConfig.from_google(less).type_vocab_size == 16


def test_every_number_of_a_hugging_face_file_is_honoured():
    fields = GOOGLE | {"layer_norm_eps": 1e-7, "classifier_dropout": 0.4, "model_type": "bert"}
    config = BertConfig.from_hugging_face(fields)
    google = BertConfig.from_google(GOOGLE)
    assert config == dataclasses.replace(
        google, activation="gelu_erf", norm_epsilon=1e-7, classifier_dropout=0.4
    )
    less = {k: v for k, v in GOOGLE.items() if k not in ("type_vocab_size", "hidden_act")}
    assert BertConfig.from_hugging_face(less).type_vocab_size == 2
    assert BertConfig.from_hugging_face(less).activation == "gelu_erf"


GOOGLES = {"gelu": "gelu_tanh", "relu": "relu", "tanh": "tanh", "linear": "linear"}
HUGGING_FACES = {
    "gelu": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip


def test_the_form_decides_what_an_activation_means():
    for read, words in ((BertConfig.from_google, GOOGLES), (BertConfig.from_hugging_face, HUGGING_FACES)):
        assert {word: read(GOOGLE | {"hidden_act": word}).activation for word in words} == words


def test_converting_keeps_the_function_and_changes_the_word():
    config = BertConfig.from_google(GOOGLE)
    assert config.to_google()["hidden_act"] == "gelu"
    assert config.to_hugging_face()["hidden_act"] == "gelu_new"
    erf = dataclasses.replace(config, activation="gelu_erf")
    assert erf.to_hugging_face()["hidden_act"] == "gelu"
    assert erf.to_google()["hidden_act"] == "gelu_erf"


@pytest.mark.parametrize("form", ["google", "hugging_face"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 4, "share_layers": True, "classifier_dropout": 0.3},
        {"causal": True},
        {"position_offset": 2, "type_vocab_size": 1, "norm_epsilon": 1e-5},
        {
            "hidden_dropout": 0.0,
            "attention_dropout": 0.5,
            "classifier_dropout": 0.25,
            "initializer_range": 0.1,
        },
        *({"activation": activation} for activation in ACTIVATIONS),
    ],
)
def test_every_field_round_trips_through_json(form, changes):
    config = dataclasses.replace(SMALL, **changes)
    fields = json.loads(json.dumps(getattr(config, f"to_{form}")()))
    assert getattr(BertConfig, f"from_{form}")(fields) == config


@pytest.mark.parametrize(
    ("changes", "model_types"),
    [
        ({}, ("bert", "electra", "bert_keras")),
        ({"embedding_size": 8}, ("bert", "electra", "bert_keras")),  # as wide as the hidden states
        ({"embedding_size": 4}, ("electra", "bert_keras")),
        ({"embedding_size": 4, "share_layers": True}, ("albert", "bert_keras")),
        ({"share_layers": True}, ("bert_keras",)),  # an ALBERT would project them
        ({"position_offset": 1}, ("roberta", "bert_keras")),
        ({"position_offset": 2, "embedding_size": 4}, ("bert_keras",)),
        ({"causal": True}, ("bert_keras",)),
        ({"type_vocab_size": 0, "pooler_activation": "relu"}, ("distilbert", "bert_keras")),
        ({"type_vocab_size": 0}, ("bert_keras",)),
        ({"pooler_activation": "relu"}, ("electra", "bert_keras")),
    ],
)
def test_the_model_types_that_compute_what_a_configuration_says(changes, model_types):
    config = dataclasses.replace(SMALL, **changes)
    assert config.model_types() == model_types
    assert config.to_hugging_face()["model_type"] == model_types[0]
    for model_type in model_types:
        again = BertConfig.from_hugging_face(json.loads(json.dumps(config.to_hugging_face(model_type))))
        assert again.head_dropout == config.head_dropout  # which an ALBERT's file always says
        assert (
            dataclasses.replace(again, classifier_dropout=None, embedding_size=config.embedding_size)
            == config
        )
    for other in set(MODEL_TYPES) - set(model_types):
        refused(f"no .* {other} computes .*; {model_types[0]}.* can", config.to_hugging_face, other)


DISTILBERT = {"model_type": "distilbert", "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12}
DISTILBERT["hidden_dim"] = 3072
ALBERT = GOOGLE | {"model_type": "albert", "embedding_size": 128}


def test_missing_keys_have_the_defaults_of_the_model_type():
    less = {k: v for k, v in GOOGLE.items() if "dropout" not in k and k != "hidden_act"}
    albert = BertConfig.from_hugging_face(less | {"model_type": "albert"})
    assert (albert.embedding_size, albert.share_layers, albert.activation) == (128, True, "gelu_tanh")
    assert (albert.hidden_dropout, albert.attention_dropout, albert.classifier_dropout) == (0.0, 0.0, 0.1)
    electra = BertConfig.from_hugging_face(less | {"model_type": "electra"})
    assert (electra.embedding_size, electra.share_layers, electra.activation) == (128, False, "gelu_erf")
    assert BertConfig.from_hugging_face(less | {"model_type": "electra", "embedding_size": 768}) == (
        dataclasses.replace(BertConfig.from_hugging_face(less), pooler_activation="gelu_erf")
    )
    roberta = BertConfig.from_hugging_face(less | {"model_type": "roberta"})
    assert (roberta.position_offset, roberta.max_length, roberta.activation) == (2, 254, "gelu_erf")
    first = BertConfig.from_hugging_face(less | {"model_type": "roberta", "pad_token_id": 0})
    assert first.position_offset == 1
    distilbert = BertConfig.from_hugging_face(DISTILBERT)
    assert distilbert == BertConfig.named("distilbert-base")
    assert (distilbert.type_vocab_size, distilbert.pooler_activation) == (0, "relu")


NOT_SUPPORTED = "is .*changes the numbers and is not supported; wanted"
WRONG = [
    (ALBERT | {"num_hidden_groups": 2}, "num_hidden_groups is 2 .* not supported; wanted 1"),
    (ALBERT | {"inner_group_num": 2}, "inner_group_num is 2 .* not supported; wanted 1"),
    (
        ALBERT | {"embedding_size": 768},
        "embedding_size .* hidden_size, 768, .*: wanted another embedding_size",
    ),
    (
        GOOGLE | {"model_type": "roberta", "pad_token_id": None},
        r"^pad_token_id in a config.json \(Hugging Face\): position_offset is None",
    ),
    (GOOGLE | {"layer_norm_eps": "1e-12"}, "^layer_norm_eps in a config.json .*norm_epsilon is '1e-12'"),
    (GOOGLE | {"num_attention_heads": 0}, "^num_attention_heads in a config.json .*num_heads is 0"),
    (GOOGLE | {"hidden_size": 0}, "^hidden_size is 0"),
    (GOOGLE | {"type_vocab_size": 0}, "^type_vocab_size is 0 .*; wanted at least 1"),
    (GOOGLE | {"hidden_act": "mish"}, "hidden_act is 'mish' .*; wanted one of gelu"),
    (GOOGLE | {"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\] .*; wanted one of gelu"),
    (GOOGLE | {"model_type": "distilbert"}, "^dim, n_layers, n_heads, hidden_dim missing"),
    (DISTILBERT | {"activation": "mish"}, "^activation is 'mish'"),
    (DISTILBERT | {"n_heads": 0}, "^n_heads in a config.json .*num_heads is 0"),
    (GOOGLE | {"position_embedding_type": "relative_key"}, f"position_embedding_type {NOT_SUPPORTED}"),
    (GOOGLE | {"is_decoder": True}, f"is_decoder {NOT_SUPPORTED}"),
    (GOOGLE | {"add_cross_attention": True}, f"add_cross_attention {NOT_SUPPORTED}"),
    (GOOGLE | {"pruned_heads": {"0": [1]}}, f"pruned_heads {NOT_SUPPORTED}"),
    (GOOGLE | {"quantization_config": {"bits": 8}}, f"quantization_config {NOT_SUPPORTED}"),
    (GOOGLE | {"model_type": "xlm"}, f"model_type {NOT_SUPPORTED}"),
    (GOOGLE | {"model_type": ["bert"]}, f"model_type {NOT_SUPPORTED}"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_unsupported_configurations_are_an_error(fields, said):
    refused(said, BertConfig.from_hugging_face, fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (GOOGLE | {"hidden_act": "mish"}, "hidden_act is 'mish' .*; wanted one of gelu"),
        (GOOGLE | {"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\] .*; wanted one of gelu"),
        ({"hidden_size": 8}, r"vocab_size, .* missing from a bert_config.json \(Google\)"),
    ],
)
def test_errors_of_a_google_file(fields, said):
    refused(said, BertConfig.from_google, fields)


def test_metadata_is_ignored_in_silence_and_anything_else_is_named_in_a_warning():
    # The head's weights say whether they are tied.
    metadata = {
        "architectures": ["BertModel"], "transformers_version": "5.0", "directionality": "bidi",
        "pooler_fc_size": 768, "pooler_type": "first_token_transform", "id2label": {"0": "no"},
        "torch_dtype": "float32", "position_embedding_type": "absolute", "is_decoder": False, "pad_token_id": 0,
        "use_cache": True, "tie_word_embeddings": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BertConfig.from_hugging_face(GOOGLE | metadata) == BertConfig.from_hugging_face(GOOGLE)
    with pytest.warns(UserWarning, match=r"ignoring unknown key a_new_trick, hidden_szie in a config.json"):
        BertConfig.from_hugging_face(GOOGLE | {"hidden_szie": 3, "a_new_trick": 1})


@pytest.mark.parity
def test_transformers_reads_what_is_written_and_the_reverse():
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(SMALL, activation="gelu_tanh", norm_epsilon=1e-6, classifier_dropout=0.3)
    theirs = transformers.BertConfig(**config.to_hugging_face())
    assert (theirs.hidden_act, theirs.layer_norm_eps, theirs.classifier_dropout) == ("gelu_new", 1e-6, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every key that transformers writes today is known
        assert BertConfig.from_hugging_face(theirs.to_dict()) == config


# --- files ------------------------------------------------------------------------------------------------


def test_the_files_name_decides_the_form(tmp_path):
    for name in ("config.json", "bert_config.json"):
        (tmp_path / name).write_text(json.dumps(GOOGLE))
    assert BertConfig.load(tmp_path / "bert_config.json").activation == "gelu_tanh"
    assert BertConfig.load(tmp_path / "config.json").activation == "gelu_erf"
    assert BertConfig.load(tmp_path).activation == "gelu_erf"


def test_missing_and_malformed_files(tmp_path):
    """The rest of the faults of JSON are in test_checkpoint_errors.py."""
    refused(r"no config.json .* in ", BertConfig.load, tmp_path, error=FileNotFoundError)
    refused("no configuration file at", BertConfig.load, tmp_path / "absent", error=FileNotFoundError)
    for content, said in (
        (b"{", "is not a JSON file in UTF-8"),
        (b"[1, 2]", "holds a list, .*; wanted an object of named fields"),
        (b"{}", "config.json: vocab_size, hidden_size, .* missing"),
    ):
        (tmp_path / "config.json").write_bytes(content)
        refused(said, BertConfig.load, tmp_path)


def test_real_files(data_dir):
    medium = BertConfig.load(data_dir / "tf1_checkpoint_indexes" / "google-bert-medium-uncased")
    assert medium == BertConfig.named("medium")
    chinese = BertConfig.load(data_dir / "tf1_checkpoint_indexes" / "chinese-bert-wwm")
    assert chinese == BertConfig.named("base", vocab_size=21128)
    tiny = BertConfig.load(data_dir / "weights" / "bert-tiny-splade-uncased")
    assert tiny == BertConfig.named("tiny", activation="gelu_erf")


def test_an_unknown_size_is_an_error():
    assert len({tuple(size) for size in SIZES.values()}) == 25
    refused(
        "no size named 'huge'; the sizes are tiny, .*, and L-LAYERS_H-WIDTH of 2, 4, .* set num_layers, ",
        BertConfig.named,
        "huge",
    )
    refused("no size named 'lage': did you mean large; the", BertConfig.named, "lage")


def test_config_and_features_import_nothing_heavy():
    code = (
        "import sys; import bert_keras.config, bert_keras.features; "
        "print([name for name in ('keras', 'tensorflow', 'numpy') if name in sys.modules])"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
