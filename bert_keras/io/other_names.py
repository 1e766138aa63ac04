"""Names of other libraries, and the name here that does their work: for the error about a name that this package lacks.

docs/migrate.md has each of them.
"""

import fnmatch
from typing import TYPE_CHECKING, Any

# A pattern of names -> ours. The first that matches counts.
_OURS = {
    "*ForSequenceClassification": "classifier",  # TFBert..., TFAutoModel..., and the same of PyTorch
    "*ForTokenClassification": "tagger",
    "*ForQuestionAnswering": "question_answerer",
    "*ForMultipleChoice": "chooser",
    "*ForMaskedLM": "masked_lm",
    "*ForNextSentencePrediction": "next_sentence",
    "*ForPreTraining": "Pretrainer",
    "TF*Tokenizer": "PreprocessorLayer",
    "*Tokenizer": "load_tokenizer",
    "*Model": "load_encoder",
    "*Backbone": "load_encoder",
    "BertModelLayer": "load_encoder",
    "load_trained_model_from_checkpoint": "load_encoder",
    "load_stock_weights": "load_encoder",
    "pipeline": "load",
    "from_pretrained": "load",
    "from_preset": "load",
    "create_optimizer": "AdamW",
    "AdamW*": "AdamW",
    "WarmUp": "LinearAfterWarmup",
    "KerasLayer": "HubLayer",
    "BertClassifier": "classifier",
    "*TextClassifier": "classifier",
    "Transformer": "classifier",
    "BertTokenClassifier": "tagger",
    "BertSpanLabeler": "question_answerer",
    "BertPretrainer*": "Pretrainer",
    "*TextEmbedder": "embedder",
}


def our_name(name: str) -> str:
    """The name of this package that does the work of another library's; "" where it is not known."""
    return next((ours for pattern, ours in _OURS.items() if fnmatch.fnmatchcase(name, pattern)), "")


# An attribute of a model or a tokenizer elsewhere -> an expression of ours.
FEATURES = "bert_keras.Preprocessor(tokenizer, seq_length=128)(texts)"
ATTRIBUTES = {
    **dict.fromkeys(("batch_encode_plus", "encode_plus", "prepare_for_model", "pad"), FEATURES),
    **dict.fromkeys(("from_pretrained", "from_preset"), 'bert_keras.load("folder")'),
    **dict.fromkeys(("save_pretrained", "save_to_preset"), 'model.save("folder")'),
    **dict.fromkeys(("decode", "batch_decode"), "tokenizer.detokenize(ids)"),
    "convert_tokens_to_ids": "tokenizer.encode(text)",
    "get_vocab": "tokenizer.vocabulary",
}
# An argument elsewhere -> ours.
ARGUMENTS = {
    **dict.fromkeys(
        ("num_labels", "num_classes", "label_names", "id2label", "label2id"), 'labels=["bad", "good"]'
    ),
    **dict.fromkeys(
        ("max_length", "max_seq_length", "sequence_length", "maxlen", "model_max_length"), "seq_length="
    ),
    **dict.fromkeys(
        ("problem_type", "multi_label", "multilabel"), "multi=True, or take bert_keras.regressor for scores"
    ),
    "preset": "the checkpoint first",
}


class AnswersOtherNames:
    """An object whose missing attributes are answered with ours, where they are names of other libraries."""

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name in ATTRIBUTES:
                raise AttributeError(
                    f"{type(self).__name__} has no {name}; {ATTRIBUTES[name]} takes its place: docs/migrate.md"
                )
            return object.__getattribute__(self, name)  # raises Python's own error, or that of a property
