"""The model card of a run: README.md as the Hugging Face Hub reads it, with license, base model, tags and metrics as YAML.

In: a Run and the content of its results.json. Out: the text. An exported version's card has the same parts.
"""

from collections.abc import Mapping
from typing import Any

from bert_keras.fields import format_value
from bert_keras.tasks.data.glue import CUSTOM
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.facts import PIPELINES, describe, facts_of, measured
from bert_keras.tasks.runs.run_folder import ORIGIN, Run
from bert_keras.tasks.training.plan import WEIGHTS_SHA256

CARD = "README.md"
HUB = "hf://"
# The settings of a training that a card names.
TRAINING = {"learning_rate": "learning rate", "batch_size": "batch size", "epochs": "epochs", "seed": "seed"}
# The Hub's names of measures where they differ from ours.
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
        metrics=[METRICS.get(name, name) for name in measured(results)],
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


def training_of(results: Mapping[str, Any]) -> dict[str, str]:
    """The initial weights and the settings to train from them again, by the name of the row. results: of results.json."""
    origin, hparams = results.get(ORIGIN, {}), results.get("hparams", {})
    base = [f"`{origin['model']}`"] if "model" in origin else []
    base += [f"SHA-256 of the weights {origin[WEIGHTS_SHA256]}"] if WEIGHTS_SHA256 in origin else []
    settings = [
        f"{words} {format_value(hparams[name])}" for name, words in TRAINING.items() if name in hparams
    ]
    return {"base": ", ".join(base), "training": ", ".join(settings)}


def measures_of(run: Run, results: Mapping[str, Any]) -> str:
    """The section of the task's measures; empty where results.json has none of this task."""
    if results.get("task") == run.task.name:
        of = f"On the dev split ({results.get('dev_examples', '?')} examples):"
        measures = measured(results)
    elif run.task.kind == FillMask.kind and "majority_baselines" in results:
        of = "On instances held out of pre-training; a majority baseline reads no text:"
        prefix, baselines = "held_out_", results["majority_baselines"]
        held_out = {name: value for name, value in measured(results).items() if name.startswith(prefix)}
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
