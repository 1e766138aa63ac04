"""ALBERT, ELECTRA, RoBERTa and DistilBERT against transformers: states, logits and parameter counts, through both's files."""

import dataclasses
import json

import numpy as np
import pytest
from parity import MLM_LOGITS, NSP_LOGITS, array, assert_equal
from random_checkpoints import refused

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.config import SIZES, VARIANTS, BertConfig
from bert_keras.features import (
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import ALL, BertEncoder
from bert_keras.model.heads import MaskedLMHead, NextSentenceHead, ReplacedTokenHead

REPLACED_LOGITS = "replaced_logits"
BOTH = {"vocab_size": 67, "max_position_embeddings": 18}
COMMON = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48} | BOTH
# COMMON by DistilBERT's keys.
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48} | BOTH
# model_type -> the start of the names of its classes.
CLASSES = {"albert": "Albert", "electra": "Electra", "roberta": "Roberta", "distilbert": "DistilBert"}
CLASSES |= {"bert": "Bert", "openai-gpt": "OpenAIGPT"}
ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
ROBERTA |= {"bos_token_id": 0, "eos_token_id": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """One class of transformers, and what it has.

    fields: of its configuration, beside COMMON, if it has no `dim`
    logits: our head -> its output
    pooled: whether its encoder has a pooler
    """

    architecture: str
    fields: dict
    logits: dict[str, str]
    pooled: bool = False

    @property
    def model_type(self) -> str:
        return self.architecture.split("For")[0].removesuffix("Model").lower()


CASES = {
    "albert, pre-training": Case(
        "AlbertForPreTraining",
        {"embedding_size": 8},
        {MLM_LOGITS: "prediction_logits", NSP_LOGITS: "sop_logits"},
        pooled=True,
    ),
    "albert, erf gelu": Case("AlbertModel", {"embedding_size": 48, "hidden_act": "gelu"}, {}, pooled=True),
    "albert, masked LM": Case("AlbertForMaskedLM", {"embedding_size": 8}, {MLM_LOGITS: "logits"}),
    "electra small": Case("ElectraForPreTraining", {"embedding_size": 8}, {REPLACED_LOGITS: "logits"}),
    "electra base": Case("ElectraForPreTraining", {"embedding_size": 32}, {REPLACED_LOGITS: "logits"}),
    "electra, tanh gelu": Case(
        "ElectraForPreTraining", {"embedding_size": 8, "hidden_act": "gelu_new"}, {REPLACED_LOGITS: "logits"}
    ),
    "electra, generator": Case("ElectraForMaskedLM", {"embedding_size": 48}, {MLM_LOGITS: "logits"}),
    "roberta, masked LM": Case("RobertaForMaskedLM", ROBERTA, {MLM_LOGITS: "logits"}),
    "roberta, two types": Case("RobertaModel", ROBERTA | {"type_vocab_size": 2}, {}, pooled=True),
    "distilbert, encoder": Case("DistilBertModel", DISTILBERT, {}),
    "distilbert, masked LM": Case("DistilBertForMaskedLM", DISTILBERT, {MLM_LOGITS: "logits"}),
    "distilbert, relu": Case(
        "DistilBertForMaskedLM", DISTILBERT | {"activation": "relu"}, {MLM_LOGITS: "logits"}
    ),
    "roberta, padding first": Case("RobertaModel", ROBERTA | {"pad_token_id": 0}, {}, pooled=True),
}
HEADS = {"masked_lm": MLM_LOGITS, "next_sentence": NSP_LOGITS, "replaced_token": REPLACED_LOGITS}


def theirs_at_random(case: Case, *, seed: int = 5):
    """transformers' model with weights so large that each of them is seen; biases and norms among them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, f"{CLASSES[case.model_type]}Config")
    fields = case.fields if "dim" in case.fields else COMMON | case.fields
    model = getattr(transformers, case.architecture)(kind(**fields, attn_implementation="eager")).eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = generator.standard_normal(parameter.shape)
            if parameter.ndim == 1:
                scaled = 0.3 * draw + name.lower().endswith(("layernorm.weight", "layer_norm.weight"))
            else:
                scaled = 0.5 * draw if "embeddings.weight" in name else draw / np.sqrt(parameter.shape[1])
            parameter.copy_(torch.from_numpy(scaled))
    return model


def padded_features(config: BertConfig, *, seed: int = 2) -> dict[str, np.ndarray]:
    """Four rows of 11, 16, 5 and 1 real tokens; padding, which RoBERTa counts by its id, is that id."""
    generator = np.random.default_rng(seed)
    mask = (np.arange(16) < np.array([[11], [16], [5], [1]])).astype("int32")
    padding = max(0, config.position_offset - 1)
    ids = generator.integers(3, config.vocab_size, mask.shape)
    types = generator.integers(0, max(1, config.type_vocab_size), mask.shape)
    return {
        INPUT_WORD_IDS: np.where(mask, ids, padding).astype("int32"),
        INPUT_MASK: mask,
        INPUT_TYPE_IDS: (types * mask).astype("int32"),
    }


def real(value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The values at real positions; all values if there are no positions."""
    return value[mask > 0] if value.shape[:2] == mask.shape else value


def their_outputs(case: Case, model, features) -> dict[str, list[np.ndarray]]:
    import torch

    ids, mask, types = (torch.from_numpy(np.asarray(features[name], "int64")) for name in ENCODER_INPUTS)
    given = {"attention_mask": mask} | ({} if case.model_type == "distilbert" else {"token_type_ids": types})
    with torch.no_grad():
        outputs = model(ids, **given, output_hidden_states=True)
        base = model.base_model(ids, **given)
    embedded, *blocks = outputs.hidden_states
    found = {EMBEDDING_OUTPUT: [embedded], ENCODER_OUTPUTS: blocks, SEQUENCE_OUTPUT: [base.last_hidden_state]}
    if case.pooled:
        found[POOLED_OUTPUT] = [base.pooler_output]
    found |= {name: [getattr(outputs, output)] for name, output in case.logits.items()}
    return {
        name: [real(one.numpy(), features[INPUT_MASK]) for one in values] for name, values in found.items()
    }


MAKE = {
    "masked_lm": MaskedLMHead,
    "next_sentence": lambda encoder: NextSentenceHead(config=encoder.config),
    "replaced_token": lambda encoder: ReplacedTokenHead(config=encoder.config),
}


def our_model(checkpoint: checkpoints.Checkpoint, case: Case):
    """Encoder and heads with all of the checkpoint's weights."""
    outputs = tuple(name for name in ALL if case.pooled or name != POOLED_OUTPUT)
    encoder = BertEncoder(checkpoint.config, outputs=outputs)
    heads = {head: make(encoder) for head, make in MAKE.items() if HEADS[head] in case.logits}
    report = checkpoints.assign(checkpoint, encoder, **heads)
    assert report.unused == () and report.fresh == (() if case.pooled else ("pooler/kernel", "pooler/bias"))
    return encoder, heads


def our_outputs(encoder, heads, features) -> dict[str, list[np.ndarray]]:
    outputs = dict(encoder(features))
    rows, length = features[INPUT_WORD_IDS].shape
    reads = {
        "masked_lm": (SEQUENCE_OUTPUT, np.tile(np.arange(length, dtype="int32"), (rows, 1))),
        "next_sentence": (POOLED_OUTPUT,),
        "replaced_token": (SEQUENCE_OUTPUT,),
    }
    for name, head in heads.items():
        read, *more = reads[name]
        outputs[HEADS[name]] = head(outputs[read], *more)
    return {
        name: [real(array(one), features[INPUT_MASK]) for one in (v if isinstance(v, list) else [v])]
        for name, v in outputs.items()
    }


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_states_and_logits_equal_transformers(tmp_path, case):
    theirs = theirs_at_random(case)
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = checkpoints.read(tmp_path / "theirs")
    features = padded_features(checkpoint.config)
    wanted = their_outputs(case, theirs, features)
    ours = our_outputs(*our_model(checkpoint, case), features)
    assert set(ours) == set(wanted) and len(wanted[ENCODER_OUTPUTS]) == 3
    assert_equal(ours, wanted, bound=1e-5)
    # Large enough for a wrong layout to be seen, and no two layers alike.
    assert min(np.abs(one).max() for values in wanted.values() for one in values) > 0.3
    errors = checkpoints.compare(tmp_path / "theirs").values()
    assert 0 <= max(errors) < 1e-4


@pytest.mark.parity
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_transformers_reads_our_checkpoints(tmp_path, case):
    transformers = pytest.importorskip("transformers")

    theirs = theirs_at_random(case)
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoints.write(checkpoints.read(tmp_path / "theirs"), tmp_path / "ours", format="hugging-face")
    fields = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == (case.model_type, [case.architecture])
    again, loading = getattr(transformers, case.architecture).from_pretrained(
        tmp_path / "ours", attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "ours")).__name__ == (
        f"{CLASSES[case.model_type]}Model"
    )
    features = padded_features(BertConfig.load(tmp_path / "ours"))
    for name, values in their_outputs(case, theirs, features).items():
        for one, two in zip(values, their_outputs(case, again.eval(), features)[name], strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name)
    for key, value in theirs.config.to_dict().items():
        if key in fields:
            assert fields[key] == value, key


@pytest.mark.parametrize("changes", [{"type_vocab_size": 0}, {"pooler_activation": "relu"}])
@pytest.mark.parametrize("form", ["google", "keras-hub", "model-garden"])
def test_other_formats_refuse_what_their_libraries_do_not_compute(tmp_path, form, changes):
    config = BertConfig.named("tiny", vocab_size=67, num_layers=1, **changes)
    checkpoint = checkpoints.collect(config, BertEncoder(config))
    field = "has_types" if "type_vocab_size" in changes else "pooler_activation"
    refused(f"^{field} is .*{form} library", checkpoints.write, checkpoint, tmp_path / "folder", format=form)


def test_without_types_the_type_ids_change_nothing():
    config = BertConfig.named("distilbert-base", vocab_size=67, hidden_size=32, num_heads=4, num_layers=1)
    encoder = BertEncoder(config)
    assert not [variable.path for variable in encoder.weights if "type" in variable.path]
    features = padded_features(config)
    pair = features | {INPUT_TYPE_IDS: features[INPUT_MASK]}
    for name in (SEQUENCE_OUTPUT, POOLED_OUTPUT):
        np.testing.assert_array_equal(array(encoder(pair)[name]), array(encoder(features)[name]))
    assert (array(encoder(features)[POOLED_OUTPUT]) == 0).any()  # of relu


def test_one_type_is_every_type():
    """A pair's second text is of type 1 whatever the model; RoBERTa has type 0 alone, and knows no difference."""
    config = BertConfig.named("roberta-base", vocab_size=67, hidden_size=32, num_heads=4, num_layers=1)
    encoder = BertEncoder(config, outputs=(SEQUENCE_OUTPUT,))
    features = padded_features(config)
    pair = features | {INPUT_TYPE_IDS: features[INPUT_MASK]}
    np.testing.assert_array_equal(
        array(encoder(pair)[SEQUENCE_OUTPUT]), array(encoder(features)[SEQUENCE_OUTPUT])
    )


# --- Parameter counts ---------------------------------------------------------------------------------------

# Of encoder and pooler, ELECTRA's and DistilBERT's of the encoder alone: computed from the published configurations.
COUNTS = {
    "tiny": 4_385_920, "mini": 11_170_560, "small": 28_763_648, "medium": 41_373_184, "base": 109_482_240,
    "large": 335_141_888, "albert-base": 11_683_584, "albert-large": 17_683_968,
    "albert-xlarge": 58_724_864, "albert-xxlarge": 222_595_584, "electra-small": 13_483_008,
    "electra-base": 108_891_648, "electra-large": 334_092_288, "roberta-base": 124_645_632,
    "roberta-large": 355_359_744, "distilbert-base": 66_362_880, "openai-gpt": 116_534_784,
}  # fmt: skip


def has_pooler(name: str) -> bool:
    return not name.startswith(("electra", "distilbert", "openai-gpt"))


def numbers(config: BertConfig, *, pooler: bool) -> int:
    shapes = variable_shapes(config).items()
    return sum(int(np.prod(shape)) for name, shape in shapes if pooler or not name.startswith("pooler/"))


@pytest.mark.parametrize("name", [*SIZES, *VARIANTS])
def test_a_named_size_has_the_published_parameters(name):
    """The grid of Turc et al. is counted in tests/test_parameter_counts.py."""
    config = BertConfig.named(name)
    width = 128 if name == "albert-xlarge" else 64
    assert (config.num_heads, config.intermediate_size) == (
        config.hidden_size // width,
        4 * config.hidden_size,
    )
    assert name.startswith("L-") or numbers(config, pooler=has_pooler(name)) == COUNTS[name]


@pytest.mark.parity
@pytest.mark.parametrize("name", COUNTS)
def test_a_named_size_has_as_many_parameters_as_transformers_model(name):
    """Theirs is built without memory, on torch's meta device."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = BertConfig.named(name)
    model_type = config.model_types()[0]
    model = CLASSES[model_type]
    fields = config.to_hugging_face(model_type)
    with torch.device("meta"):
        theirs = getattr(transformers, f"{model}Model")(getattr(transformers, f"{model}Config")(**fields))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", ["albert-base", "electra-small", "roberta-base", "distilbert-base"])
def test_an_encoder_has_the_variables_that_are_counted(name):
    config = BertConfig.named(name, vocab_size=200, num_layers=2)
    encoder = BertEncoder(config)
    collected = checkpoints.collect(config, encoder).tensors
    assert {name: tensor.shape for name, tensor in collected.items()} == variable_shapes(config)
    assert encoder.count_params() == numbers(config, pooler=True)
