"""The facts about a run that its card and a notebook show: task, labels, layers, length, vocabulary, measures.

In: a Run, or the content of its results.json. Out: texts by the name of their row.
"""

import math
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.io.formats import version_of
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.tasks.data.glue import CUSTOM
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.next_sentence import NextSentence
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.replaced_tokens import ReplacedTokens
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.training.task_model import config_of, has_encoder, members_of

# The Hub's names of tasks.
PIPELINES = {
    TextClassification.kind: "text-classification",
    QuestionAnswering.kind: "question-answering",
    MultipleChoice.kind: "multiple-choice",
    Tagging.kind: "token-classification",
    FillMask.kind: "fill-mask",
    NextSentence.kind: "text-classification",
    ReplacedTokens.kind: "token-classification",
}
# The settings in task.json in words, by name; a false one is left out. "" for those that another row of the card tells, or that
# concern files alone.
SETTINGS = {
    **dict.fromkeys(("name", "label_type", "label_column", "words"), ""),
    "doc_stride": "long texts are read in windows, which start {} tokens apart",
    "truncation": "of a text that does not fit, {} is kept",
    "max_query_length": "a question is cut after {} tokens",
    "max_answer_length": "an answer has at most {} tokens",
    "n_best": "the {} best answers are listed",
    "tau": "an answer must score {} more than no answer",
    "scheme": "tags in the {} scheme",
    "context": "a sentence is read in its {}",
    "crf": "the tags of a sentence are chosen together, by a conditional random field",
    "iob_constraints": "no I- tag without a tag of its entity before it",
    "num_choices": "{} choices",
    "top_k": "the {} best tokens are listed",
    "l2": "vectors are scaled to length 1",
}


def facts_of(run: Any) -> dict[str, Any]:
    """The task, the encoder, the vocabulary and the versions, by the name of the row."""
    task, tokenizer = run.task.to_json(), run.preprocess.tokenizer
    members = members_of(run.model)
    configs = [config_of(member) for member in members]
    sizes = dict.fromkeys(
        f"{config.num_layers} {'layer' if config.num_layers == 1 else 'layers'} of {config.hidden_size}"
        for config in configs
    )
    parameters = run.model.count_params()
    if not has_encoder(members[0]):  # at the end of a training on stored vectors
        parameters += sum(math.prod(shape) for shape in variable_shapes(configs[0]).values())
    return {
        "task": _task_of(run),
        "input": ", ".join(run.task.signature()),
        "labels": ", ".join(map(str, task.get("labels") or ())),
        "settings": "; ".join(_settings_of(task)),
        "ensemble": f"{len(members)} models, outputs averaged" if len(members) > 1 else "",
        "encoder": f"{' and '.join(sizes)}, {parameters:,} parameters",
        "features": describe(run) or "",
        "longest window" if run.task.windowed else "longest text": f"{run.preprocess.seq_length} tokens",
        "vocabulary": f"{tokenizer.vocab_size:,} tokens",
        "SHA-256 of its file": tokenizer.digest,
        "lower-cased": "yes" if tokenizer.lower_case else "no",
        "made with": f"bert-keras {version_of('bert-keras')}, TensorFlow {tf.__version__}, Python {platform.python_version()}",
    }


def _task_of(run: Any) -> str:
    """The kind of task in words, after the name of the data set where that says more."""
    kind = PIPELINES.get(run.task.kind, run.task.kind).replace("-", " ")
    return kind if run.task.name in (CUSTOM, kind.replace(" ", "-")) else f"{run.task.name} ({kind})"


def _settings_of(task: Mapping[str, Any]) -> Iterator[str]:
    """Yields the settings of a task.json in words."""
    for name, value in task.items():
        words = SETTINGS.get(name, f"{name.replace('_', ' ')}: {{}}")
        if words and value is not False and isinstance(value, int | float | str):
            yield words.format(value)


def describe(run: Any) -> str | None:
    """The layers and the BiLSTM of a feature-based run in words; None for a fine-tuned one."""
    bilstm = bilstm_of(members_of(run.model)[0])
    return None if bilstm is None else f"{bilstm.described}; the encoder is frozen"


def measured(results: Mapping[str, Any]) -> dict[str, float]:
    """The measures of the kept epoch. results: the content of results.json."""
    return {name.removeprefix("val_"): value for name, value in results.get("measures", {}).items()}
