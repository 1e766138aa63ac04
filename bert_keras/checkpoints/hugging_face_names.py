"""The names of weights in Hugging Face's files: a table for each model_type, some with several for different classes."""

import functools
import re
from typing import Any

from bert_keras.checkpoints.checkpoint import BILSTM, KNOWN_ARCHITECTURES, LINEAR, Names

OWN_TYPE = "bert_keras"  # our own model_type

# The names of transformers below the name of the model (`bert.`); heads are beside it.
_EMBEDDINGS_THERE = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/type_embeddings": "embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "embeddings.LayerNorm",
}
# The names in a block: ours, then those of BERT, ALBERT, DistilBERT and GPT.
_BLOCK_ROWS = (
    ("attention/query", "attention.self.query", "attention.query", "attention.q_lin", "attn.query"),
    ("attention/key", "attention.self.key", "attention.key", "attention.k_lin", "attn.key"),
    ("attention/value", "attention.self.value", "attention.value", "attention.v_lin", "attn.value"),
    ("attention/output", "attention.output.dense", "attention.dense", "attention.out_lin", "attn.c_proj"),
    ("attention_layer_norm", "attention.output.LayerNorm", "attention.LayerNorm", "sa_layer_norm", "ln_1"),
    ("feed_forward/intermediate", "intermediate.dense", "ffn", "ffn.lin1", "mlp.c_fc"),
    ("feed_forward/output", "output.dense", "ffn_output", "ffn.lin2", "mlp.c_proj"),
    ("feed_forward_layer_norm", "output.LayerNorm", "full_layer_layer_norm", "output_layer_norm", "ln_2"),
)
_BLOCKS = (
    "encoder.layer.{i}",
    "encoder.albert_layer_groups.0.albert_layers.0",
    "transformer.layer.{i}",
    "h.{i}",
)
_BLOCK_THERE, _ALBERT_BLOCK_THERE, _DISTILBERT_BLOCK_THERE, _GPT_BLOCK_THERE = (
    {f"block_{{i}}/{row[0]}": f"{block}.{row[column]}" for row in _BLOCK_ROWS}
    for column, block in enumerate(_BLOCKS, 1)
)
_TASK_HEADS_THERE = {
    "classifier/dense": "classifier",
    "concat_classifier/dense": "concat_classifier",  # transformers has no such head
    "qa_outputs/dense": "qa_outputs",
}
_BERT_HEADS_THERE = {
    "masked_lm/dense": "cls.predictions.transform.dense",
    "masked_lm/layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
    "next_sentence/dense": "cls.seq_relationship",
    **_TASK_HEADS_THERE,
}
_REPLACED_TOKEN_THERE = {
    "replaced_token/dense": "discriminator_predictions.dense",
    "replaced_token/prediction": "discriminator_predictions.dense_prediction",
}
_ENCODER_PARTS = ("embeddings.", "embeddings_project.", "encoder.", "transformer.", "pooler.")
_GPT_PARTS = ("tokens_embed.", "positions_embed.", "h.")
_BUFFERS = (
    "position_ids",
    "token_type_ids",
    ".attn.bias",
    ".attn.masked_bias",
)  # the last two: GPT's causal mask


def _current(name: str, *, model: str, parts: tuple[str, ...]) -> str | None:
    """The current spelling of an old name or of a wrapped module's name; None for buffers."""
    if name.endswith(_BUFFERS):
        return None
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name)  # DataParallel, torch.compile
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"{model}.{name}" if name.startswith(parts) else name


def _names(
    model_type: str,
    *,
    encoder: dict[str, str],
    heads: dict[str, str],
    model: str | None = None,
    parts: tuple[str, ...] = _ENCODER_PARTS,
    layouts: dict[str, str] = LINEAR,
    **more: Any,
) -> Names:
    """The table of one model_type.

    model: the model's name in a file with heads; None means `model_type`
    parts: the starts of the names below it
    """
    model = model_type if model is None else model
    return Names(
        model_type=model_type,
        table={ours: f"{model}.{theirs}" for ours, theirs in encoder.items()} | heads,
        parts={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
        layouts=layouts,
        current=functools.partial(_current, model=model, parts=parts),
        **more,
    )


def _tied(weight: str, bias: str | None = None) -> dict[str, str]:
    """Second names of the weights that the masked-LM head ties."""
    return {weight: "embeddings/word_embeddings"} | ({bias: "masked_lm/bias"} if bias else {})


_BERT_THERE = _names(
    "bert",
    encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
    heads=_BERT_HEADS_THERE,
    duplicates=_tied("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    classes=KNOWN_ARCHITECTURES,
)
# The code of transformers fixes this activation, whatever hidden_act says.
_GELU_HEAD = {"masked_lm": {"activation": "gelu_erf"}}
_TOKEN_CLASSES = frozenset({"ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering", "Model"})
_ELECTRA_THERE = _EMBEDDINGS_THERE | {"embeddings/projection": "embeddings_project"} | _BLOCK_THERE
_FIRST_TOKENS = ("[PAD]", "<pad>")  # of padding, from whose id RoBERTa counts positions
NAMES = (
    _BERT_THERE,
    _names(
        "albert",
        model_class="Albert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"}
        | _ALBERT_BLOCK_THERE,
        heads={
            "masked_lm/dense": "predictions.dense",
            "masked_lm/layer_norm": "predictions.LayerNorm",
            "masked_lm/bias": "predictions.bias",
            "next_sentence/dense": "sop_classifier.classifier",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("predictions.decoder.weight", "predictions.decoder.bias"),
        classes=KNOWN_ARCHITECTURES - {"ForNextSentencePrediction"},
    ),
    # ELECTRA has a pooler only in its classifiers of texts, where it is of gelu, and of choices.
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={
            "masked_lm/dense": "generator_predictions.dense",
            "masked_lm/layer_norm": "generator_predictions.LayerNorm",
            "masked_lm/bias": "generator_lm_head.bias",
            **_REPLACED_TOKEN_THERE,
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("generator_lm_head.weight"),
        head_keeps=_GELU_HEAD,
        classes=_TOKEN_CLASSES | {"ForPreTraining"},
        needs_pooler=False,
    ),
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={"pooler": "classifier.dense", "classifier/dense": "classifier.out_proj"},
        keeps={"pooler_activation": "gelu_erf"},
        classes=frozenset({"ForSequenceClassification"}),
    ),
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={"pooler": "sequence_summary.summary", "classifier/dense": "classifier"},
        only={
            "summary_type": ("first",),
            "summary_use_proj": (True,),
            "summary_proj_to_labels": (False, None),
        },
        classes=frozenset({"ForMultipleChoice"}),
    ),
    _names(
        "roberta",
        model_class="Roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
        heads={
            "masked_lm/dense": "lm_head.dense",
            "masked_lm/layer_norm": "lm_head.layer_norm",
            "masked_lm/bias": "lm_head.bias",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("lm_head.decoder.weight", "lm_head.decoder.bias"),
        head_keeps=_GELU_HEAD,
        classes=_TOKEN_CLASSES | {"ForMultipleChoice"},
        padding=_FIRST_TOKENS,
    ),
    # RoBERTa's classifier of texts has the pooler inside it; a pooler elsewhere in the file is of its pre-training.
    _names(
        "roberta",
        model_class="Roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE,
        heads={"pooler": "classifier.dense", "classifier/dense": "classifier.out_proj"},
        classes=frozenset({"ForSequenceClassification"}),
        padding=_FIRST_TOKENS,
    ),
    _names(
        "distilbert",
        model_class="DistilBert",
        encoder=_EMBEDDINGS_THERE | _DISTILBERT_BLOCK_THERE,
        heads={
            "masked_lm/dense": "vocab_transform",
            "masked_lm/layer_norm": "vocab_layer_norm",
            "masked_lm/bias": "vocab_projector.bias",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("vocab_projector.weight"),
        classes=_TOKEN_CLASSES,
        needs_pooler=False,
    ),
    # DistilBERT has a pooler, of relu, only in its classifiers of texts.
    _names(
        "distilbert",
        model_class="DistilBert",
        encoder=_EMBEDDINGS_THERE | _DISTILBERT_BLOCK_THERE,
        heads={"pooler": "pre_classifier", "classifier/dense": "classifier"},
        classes=frozenset({"ForSequenceClassification", "ForMultipleChoice"}),
    ),
    # Its layers are of the class Conv1D, whose kernels stand as ours; the language-model head is the embeddings. Its classifier
    # reads the state of the last token before padding, as ours does where attention is causal, and has no bias.
    _names(
        "openai-gpt",
        model_class="OpenAIGPT",
        model="transformer",
        parts=_GPT_PARTS,
        encoder={
            "embeddings/word_embeddings": "tokens_embed.weight",
            "embeddings/position_embeddings": "positions_embed.weight",
        }
        | _GPT_BLOCK_THERE,
        heads={"classifier/dense": "score"},
        layouts={"classifier/dense/kernel": LINEAR["classifier/dense/kernel"]},
        fused={"attn.c_attn": ("attn.query", "attn.key", "attn.value")},
        no_bias=("classifier/dense",),
        duplicates=_tied("lm_head.weight"),
        classes=frozenset({"Model", "ForSequenceClassification"}),
        bare="LMHeadModel",
    ),
    # For configurations that no model of transformers computes; transformers refuses to read it.
    _names(
        OWN_TYPE,
        model="bert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler.dense"}
        | _BLOCK_THERE
        | {name: name.replace("_lstm/lstm_cell", "").replace("/", ".") for name in BILSTM},
        heads=_BERT_HEADS_THERE | _REPLACED_TOKEN_THERE,
        duplicates=_BERT_THERE.duplicates,
        classes=_BERT_THERE.classes,
    ),
)
