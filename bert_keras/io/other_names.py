"""Names of other libraries, and the name here that does their work: for the error about a name that this package lacks.

docs/migrate.md has each of them.
"""

import fnmatch

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
