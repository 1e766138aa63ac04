"""The model card of a run: README.md as the Hugging Face Hub reads it, with license, base model, tags and metrics as YAML.

In: a Run and the content of its results.json. Out: the text. An exported version's card has the same parts.
"""

import math
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.fields import format_value
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
from bert_keras.tasks.runs.ensemble import members_of
from bert_keras.tasks.runs.run_folder import ORIGIN, Run
from bert_keras.tasks.training.plan import WEIGHTS_SHA256
from bert_keras.tasks.training.task_model import config_of, has_encoder

CARD = "README.md"
HUB = "hf://"
# The Hub's names of tasks, and of measures where they differ from ours.
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
# The settings of a training that a card names.
TRAINING = {"learning_rate": "learning rate", "batch_size": "batch size", "epochs": "epochs", "seed": "seed"}
METRICS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}

_TEMPLATE = """
# {name}

{summary}

| | |
|---|---|
{facts}

{measures}## Use

    bert-keras predict --run {name} --input examples.jsonl
    bert-keras export --run {name} --output served/{name}
"""


def run_card(run: Run, results: Mapping[str, Any]) -> str:
    """The card of a fine-tuned run. results: the content of its results.json."""
    from huggingface_hub import ModelCardData

    origin = results[ORIGIN]
    model, revision = origin.get("model", ""), origin.get("revision", "")
    data = ModelCardData(
        license=origin.get("license"),
        base_model=model.removeprefix(HUB) if model.startswith(HUB) else None,
        library_name="keras",
        pipeline_tag=PIPELINES.get(run.task.kind),
        tags=["bert", "bert-keras", run.task.name],
        metrics=[METRICS.get(name, name) for name in _measured(results)],
    )
    start = f"`{model}`{f' at revision `{revision}`' if revision else ''}" if model else "a checkpoint"
    how = "fine-tuned" if describe(run) is None else "trained a model on the vectors of"
    body = _TEMPLATE.format(
        name=run.path.name,
        summary=f"bert-keras {how} {start} on {run.task.name}{' data' if run.task.name == CUSTOM else ''}.",
        facts=fact_rows(facts_of(run) | training_of(results)),
        measures=measures_of(run, results),
    )
    return f"---\n{data.to_yaml()}\n---\n{body}"


def fact_rows(facts: Mapping[str, Any]) -> str:
    """The rows of a Markdown table of two columns, those without a value left out."""
    return "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value != "")


def facts_of(run: Run) -> dict[str, Any]:
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


def training_of(results: Mapping[str, Any]) -> dict[str, str]:
    """The initial weights and the settings to train from them again, by the name of the row. results: of results.json."""
    origin, hparams = results.get(ORIGIN, {}), results.get("hparams", {})
    base = [f"`{origin['model']}`"] if "model" in origin else []
    base += [f"SHA-256 of the weights {origin[WEIGHTS_SHA256]}"] if WEIGHTS_SHA256 in origin else []
    settings = [
        f"{words} {format_value(hparams[name])}" for name, words in TRAINING.items() if name in hparams
    ]
    return {"base": ", ".join(base), "training": ", ".join(settings)}


def _task_of(run: Run) -> str:
    """The kind of task in words, after the name of the data set where that says more."""
    kind = PIPELINES.get(run.task.kind, run.task.kind).replace("-", " ")
    return kind if run.task.name in (CUSTOM, kind.replace(" ", "-")) else f"{run.task.name} ({kind})"


def _settings_of(task: Mapping[str, Any]) -> Iterator[str]:
    """Yields the settings of a task.json in words."""
    for name, value in task.items():
        words = SETTINGS.get(name, f"{name.replace('_', ' ')}: {{}}")
        if words and value is not False and isinstance(value, int | float | str):
            yield words.format(value)


def describe(run: Run) -> str | None:
    """The layers and the BiLSTM of a feature-based run in words; None for a fine-tuned one."""
    bilstm = bilstm_of(members_of(run.model)[0])
    return None if bilstm is None else f"{bilstm.described}; the encoder is frozen"


def measures_of(run: Run, results: Mapping[str, Any]) -> str:
    """The section of the task's measures; empty where results.json has none of this task."""
    if results.get("task") == run.task.name:
        of = f"On the dev split ({results.get('dev_examples', '?')} examples):"
        measures = _measured(results)
    elif run.task.kind == FillMask.kind and "majority_baselines" in results:
        of = "On instances held out of pre-training; a majority baseline reads no text:"
        prefix, baselines = "held_out_", results["majority_baselines"]
        held_out = {name: value for name, value in _measured(results).items() if name.startswith(prefix)}
        measures = {name.removeprefix(prefix): value for name, value in held_out.items()}
        measures |= {f"{name}, majority baseline": value for name, value in baselines.items()}
    else:
        return ""
    if not measures:
        return ""
    rows = [f"| {name} | {value:.4f} |" for name, value in measures.items()]
    why = results.get("degenerate")
    notes = [f"**The model did not learn**: {why}.", ""] if why else []
    settings = results.get("hparams") or {}
    if (precision := settings.get("precision", "float32")) != "float32":
        notes += [f"Measured in {precision}, as the run was trained. A loaded run computes in float32.", ""]
    return "\n".join(["## Measures", "", *notes, of, "", "| measure | value |", "|---|---|", *rows, "", ""])


def _measured(results: Mapping[str, Any]) -> dict[str, float]:
    return {name.removeprefix("val_"): value for name, value in results.get("measures", {}).items()}
