"""The detector: says what a file or a folder is, and the command that brings it in, or why it does not come in.

kinds.py is its table. `bert-keras info` prints the answer, and the refusals of checkpoints, runs and files quote it. Nothing is
executed and no TensorFlow is imported, so it answers at once; a look is bounded (look.py).
"""

import pathlib
import re
import shlex
from typing import Any, NamedTuple

from bert_keras.checkpoints.kinds import DATA, ROWS, WEIGHTS, Facts, Row
from bert_keras.checkpoints.look import FAMILIES, Look, list_names, match
from bert_keras.errors import MissingFileError, first_names
from bert_keras.io.paths import did_you_mean


class Found(NamedTuple):
    """The detector's answer. file: the file of a folder that shows it; facts: family, size, layers, hidden_size, task, labels."""

    path: pathlib.Path
    file: pathlib.Path
    kind: str
    what: str
    facts: Facts
    advice: str
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind with the facts: "Keras 2 weights of keras-bert, BERT base (12 layers of 768), 3 labels"."""
        facts, parts = self.facts, [self.what]
        family = FAMILIES.get(facts.get("family", ""), facts.get("family"))
        if family or "layers" in facts:
            shape = [f"{facts['layers']} layer{'s' * (facts['layers'] > 1)}"] if "layers" in facts else []
            shape += [f"hidden size {facts['hidden_size']}"] if "hidden_size" in facts else []
            sized = " ".join(filter(None, (family or "an encoder", facts.get("size"))))
            parts.append(f"{sized} ({', '.join(shape)})" if shape else sized)
        parts += [facts["task"]] if "task" in facts else []
        if names := facts.get("labels"):
            parts.append(f"{len(names)} labels ({first_names(names, 5)})")
        elif number := facts.get("num_labels"):
            parts.append(f"{number} labels")
        return ", ".join(parts)

    @property
    def inside(self) -> str:
        """The file in the folder."""
        return str(self.file.relative_to(self.path) if self.path in self.file.parents else self.file.name)

    @property
    def sentence(self) -> str:
        """The end of an error: the file, what it is, and what to do."""
        return f"{self.inside} is {self.name}: {self.advice or f'run `{self.commands[0]}`'}"

    def to_json(self) -> dict[str, Any]:
        """The answer for a machine."""
        known = {"path": str(self.path), "file": str(self.file), "kind": self.kind, "what": self.what}
        return known | self.facts | {"commands": [*self.commands], "advice": self.advice}


def detect(path: pathlib.Path) -> Found | None:
    """The kind of a file or a folder on this machine; None where it is not known."""
    folder, names = path.parent, [path.name]
    if path.is_dir():
        folder, names = path, list_names(path)
    elif not path.exists():  # the prefix of a TensorFlow checkpoint
        names = [f"{path.name}.index"] if path.with_name(f"{path.name}.index").is_file() else []
    looks: dict[pathlib.Path, Look] = {}
    for row in ROWS:
        patterns = row.files or (WEIGHTS if path.is_dir() else ("*",))
        file = match(folder, names, patterns)
        if file is not None and row.test(look := looks.setdefault(file, Look(file))):
            return _answer(row, path, look)
    return None


def _answer(row: Row, path: pathlib.Path, look: Look) -> Found:
    words = {
        name: shlex.quote(str(one))
        for name, one in (("path", path), ("file", look.file), ("folder", look.folder))
    }
    ways = [re.sub(r"\{(path|file|folder)\}", lambda found: words[found[1]], way) for way in row.way]
    commands = tuple(way for way in ways if way.startswith(("bert-keras ", "python ")))
    advice = "; ".join(way for way in ways if way not in commands)
    what = row.what.format(row.named(look))
    return Found(path, look.file, row.kind, what, row.facts(look), advice, commands)


def describe(path: pathlib.Path) -> str:
    """The detector's sentence, an end of an error; "" where the kind is not known, and for a folder with data alone."""
    found = detect(path)
    return "" if found is None or (path.is_dir() and found.kind in DATA) else found.sentence


def missing_run(path: pathlib.Path) -> MissingFileError:
    """The error about a path that is no run, and is not there or is something else."""
    close = "" if path.exists() else did_you_mean(path)
    if path.suffix == ".keras":
        return MissingFileError(f"no such file: {path}{close}.")
    other = f" ({other})" if (other := describe(path)) else ""
    return MissingFileError(
        f"no task.json in {path}{close}; give the folder that `bert-keras finetune --output` wrote{other}."
    )


def describe_content(file: pathlib.Path) -> str:
    """The end of an error: the kind of a file by its content, whatever its name, and the advice. "" where that is not known."""
    look = Look(file)
    row = next((row for row in ROWS if not row.files and row.kind != "cut" and row.test(look)), None)
    return "" if row is None else f"is {row.what}: {row.way[0]}"
