"""The explanations of `predict --explain`: of an example of a file, and as words in a terminal."""

from collections.abc import Mapping
from typing import Any

SHOWN = 5  # words of each sign that are named with their scores


def explained(run: Any, example: Mapping[str, Any], method: str) -> list[Any]:
    """The explanations of all answers to an example; none for a text without an answer."""
    from bert_keras.tasks.inspection.explanation import explain_example

    texts = {name: example[name] for name in run.task.signature()}
    return explain_example(run, texts, method=method)


def show_explanation(explanation: Any) -> None:
    """Prints the words, colored and underlined by their scores, and the strongest words with their numbers."""
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False, emoji=False, highlight=False)
    line = Text(f"{explanation.answer}: ")
    for word, share in zip(explanation.words, explanation.shares, strict=True):
        style = "green underline" if share > 0 else "red strike"
        line.append(word, style if abs(share) > 0.05 else "").append(" ")
    console.print(line)
    ranked = [(word, score) for word, score in explanation.table().rows if score]
    for name, sign in (("for", 1), ("against", -1)):
        named = [f"{word} {score:+.3f}" for word, score in ranked if score * sign > 0][:SHOWN]
        if named:
            console.print(f"  {name}: {', '.join(named)}")
