"""Writes docs/api.md from docstrings.

    python docs/make_api.py

In: the public names, their signatures and docstrings, the fields of settings. Out: one page of Markdown.
"""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import bert_keras
from bert_keras.tasks import hparams as settings
from bert_keras.tasks import options
from bert_keras.tasks.study import study_options

PAGE = Path(__file__).with_name("api.md")
HEAD = """# API

`import bert_keras as bk`. Letters of shapes: B batch, S sequence, H hidden, V vocabulary, L layers, K choices, C classes,
P predictions, W windows, N examples. `python docs/make_api.py` writes this page from the docstrings.
"""
# The names of `bert_keras`, by the title of their section.
SECTIONS = {
    "Models that take strings": (
        *("classifier", "regressor", "question_answerer", "tagger", "chooser", "masked_lm"),
        *("next_sentence", "sentence_order", "replaced_tokens", "embedder", "load", "TextModel"),
    ),
    "A look inside": ("attention", "attention_summary", "explain"),
    "Text": (
        "load_tokenizer",
        "WordPiece",
        "SentencePiece",
        "ByteBPE",
        "Rules",
        "AddedToken",
        "Preprocessor",
        "PreprocessorLayer",
        "pad_batches",
        "without_autotuning",
    ),
    "Encoder": (
        "load_encoder",
        "BertEncoder",
        "BertConfig",
        "encoder_inputs",
        "LayerMix",
        "MeanPooling",
        "HubLayer",
    ),
    "Heads": (*bert_keras.model.registered.CLASSES["bert_keras.model.heads"], "CRF"),
    "Training": (
        *("AdamW", "LAMB", "WarmupLinearDecay", "LinearAfterWarmup", "SlantedTriangular"),
        *("GlobalMean", "cross_entropy", "squared_error", "crf_loss"),
    ),
    "Pre-training": (
        *("Pretrainer", "ElectraPretrainer", "MaskedLM", "LeftToRight", "ReplacedTokens", "SentencePair"),
        *("Masking", "Pieces"),
    ),
    "Your own tasks and objectives": ("Task", "Data", "Problem", "Report", "Objective"),
    "Exports": ("export",),
    "Errors": ("BertKerasError",),
}
# What is imported from its module.
FUNCTIONS = {
    "bert_keras.checkpoints": (
        *("read", "tokenizer_of", "assign", "collect", "write", "with_tokenizer"),
        *("with_vocab_size", "with_max_positions"),
    ),
    "bert_keras.optimization.objectives": ("label",),
    "bert_keras.tasks.strings.predictions": ("Predictions",),
    "bert_keras.tasks.runs.task_types": ("open_task",),
    "bert_keras.tasks.runs.run_folder": ("load_run",),
    "bert_keras.tasks.finetuning.finetune": ("finetune",),
    "bert_keras.tasks.pretraining.pretrain": ("pretrain",),
    "bert_keras.savedmodels.runtimes": ("export_to",),
}
# Keras calls these; users do not.
KERAS_OWN = set(
    """build get_config from_config compute_mask compute_output_shape compute_output_spec get_compile_config compile_from_config
    save_assets load_assets layers quantize train_step test_step make_train_function make_test_function""".split()
)


def _text(documented: Any) -> str:
    """The docstring as Markdown: a line "name: meaning" becomes an item, an indented block stays a block."""
    lines: list[str] = []
    for line in (inspect.getdoc(documented) or "").splitlines():
        argument = re.match(r"((?:\w+)(?:, \w+)*): (.*)", line)
        if argument and argument[1] not in (
            "Predictions",
            "Texts",
            "Arguments",
            "Sources",
            "Source",
            "In",
            "Out",
        ):
            line = f"- `{argument[1]}`: {argument[2]}"
            if lines and lines[-1] and not lines[-1].startswith(("- ", "  ")):
                lines.append("")
        elif line.startswith("    ") and lines and lines[-1].startswith(("- ", "  ")):
            line = "  " + line.strip()
        elif line and lines and lines[-1].startswith(("- ", "  ")):
            lines.append("")
        lines.append(line)
    return "\n".join(lines).replace("<", "\\<")


class _Named:
    """A default that is a function or an object, as a person would write it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _readable(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is parameter.empty or not callable(default):
        return parameter
    name = getattr(default, "__name__", "")
    return parameter.replace(default=_Named(name if name.isidentifier() else "..."))


def _signature(named: str, documented: Any) -> str:
    """The call with its defaults, without types; one argument a line where it is long."""
    if isinstance(documented, type) and issubclass(documented, Exception):
        return ""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(documented).parameters.values()]
    parameters = [_readable(p) for p in parameters if p.name != "self"]
    short = str(inspect.Signature(parameters))
    if len(named + short) > 110:
        inside, star = [], False
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and not star:
                inside.append("*")
            star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
            inside.append(str(p))
        short = "(\n    " + ",\n    ".join(inside) + ",\n)"
    return f"```text\n{named}{short}\n```"


def _entry(name: str, documented: Any) -> list[str]:
    """A function, or a class with its methods."""
    parts = [f"### `{name}`", _signature(name, documented), _text(documented)]
    if not inspect.isclass(documented):
        return parts
    members: dict[str, Any] = {}
    for base in reversed(documented.__mro__):
        if base.__module__.split(".")[0] in ("bert_keras", "tasks", "savedmodels"):
            members |= vars(base)
    for method, value in members.items():
        called = inspect.unwrap(getattr(value, "__func__", value))
        if method.startswith("_") or method in KERAS_OWN or not inspect.getdoc(called):
            continue
        if isinstance(value, property):
            parts.append(f"**`.{method}`**: {_text(value)}")
        elif callable(called):
            parts += [_signature(f".{method}", getattr(documented, method)), _text(called)]
    return parts


def _table(kind: type) -> list[str]:
    """The fields of a class of settings."""
    rows = [
        f"| `{field.name}` | `{field.default!r}` | {field.metadata['help']} |"
        for field in dataclasses.fields(kind)
        if "help" in field.metadata
    ]
    head = "| field | default | |\n|---|---|---|\n"
    return [f"### `{kind.__module__}.{kind.__name__}`", _text(kind), head + "\n".join(rows)]


def page() -> str:
    """The page in Markdown."""
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += _entry(f"bk.{name}", getattr(bert_keras, name))
    parts.append("## Functions behind the commands")
    for module, names in FUNCTIONS.items():
        for name in names:
            parts += _entry(f"{module}.{name}", getattr(importlib.import_module(module), name))
    parts.append("## Settings")
    parts.append("The commands have a flag for each field: `learning_rate` is `--learning-rate`.")
    for module in (settings, options, study_options):
        for kind in vars(module).values():
            if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                parts += _table(kind)
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
