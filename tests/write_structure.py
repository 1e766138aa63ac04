"""Writes the imports of the sources where they are written down a second time: BUILD and the floors of docs/architecture.md.

    PYTHONPATH=. .venv/bin/python tests/write_structure.py

tests/test_architecture.py compares both with the sources. A new module needs a row in its FLOORS first. Rows of modules that are
gone are removed; a comment in BUILD stays with the row under it.
"""

import ast
import re
from collections.abc import Iterable

from test_architecture import ARROWS, FLOORS, ROOT, SOURCES, arrows, label

_LISTED = re.compile(r"    ((?:bert_keras|tasks|savedmodels)/\S+\.py) ")


def dependencies(modules: Iterable[str]) -> str:
    return " ".join(sorted(label(module) for module in modules))


def written(text: str, name: str, rows: dict[str, str]) -> str:
    """The text of BUILD with these rows in the dictionary `name`; comments stay above the row that follows them."""
    start = text.index(f"{name} = {{\n") + len(f"{name} = {{\n")
    end = text.index("\n}\n", start) + 1
    comments, held = {}, []
    for line in text[start:end].splitlines():
        if line.strip().startswith("#"):
            held.append(line)
        elif held:
            key = line.split('"')[1]
            comments[key], held = held, []
    lines = [
        line for key, value in rows.items() for line in (*comments.get(key, ()), f'    "{key}": "{value}",')
    ]
    return text[:start] + "\n".join(lines) + "\n" + text[end:]


def listed(text: str) -> str:
    """The text of docs/architecture.md with the first sentence of each module; a new one stands after its neighbour of FLOORS."""
    lines = text.splitlines()
    known = [found[1] for line in lines if (found := _LISTED.match(line))]
    for _, names in FLOORS:
        before = None
        for path in (str(SOURCES[name].relative_to(ROOT)) for name in names):
            if before in known and path not in known and has_a_line(path):
                at = next(i for i, line in enumerate(lines) if line.startswith(f"    {before} "))
                lines.insert(at + 1, f"    {path} ")
                known.append(path)
            before = path if path in known else before
    made = [
        f"    {found[1]:<44} {first_sentence(found[1])}" if (found := _LISTED.match(line)) else line
        for line in lines
        if not (found := _LISTED.match(line)) or (ROOT / found[1]).exists()
    ]
    return "\n".join(made) + "\n"


def has_a_line(path: str) -> bool:
    """False for an `__init__.py` without code."""
    tree = ast.parse((ROOT / path).read_text())
    return not path.endswith("__init__.py") or len(tree.body) > 1


def first_sentence(path: str) -> str:
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text()))
    assert docstring, f"{path} has no docstring"
    return re.split(r"\.(?:\s|$)|:?\n\n", docstring)[0].replace("\n", " ").removesuffix(":")


def main() -> None:
    file = ROOT / "BUILD"
    text = file.read_text()
    modules = [module for _, names in FLOORS for module in names if module != "bert_keras.__main__"]
    text = written(text, "LIBRARIES", {label(module): dependencies(ARROWS[module]) for module in modules})
    tests = {path.stem: dependencies(arrows(path)) for path in sorted((ROOT / "tests").glob("test_*.py"))}
    file.write_text(written(text, "TESTS", tests))
    document = ROOT / "docs/architecture.md"
    document.write_text(listed(document.read_text()))


if __name__ == "__main__":
    main()
