"""Writes docs/paper.md from the code's citations and docs/papers.toml, and the lines of the code that docs/story.md links to.

    python docs/make_paper.py

In: docstrings, comments and help texts that cite ("Devlin et al. 2019, sec. 3.1 and A.1, table 8") or say what is "Unlike the
textbook: ..."; and papers.toml, which lists the parts that each paper has, with a test and a command. Out: one page of Markdown.
In story.md, a link [`NAME`](FILE.py) gets the first and last line of the class, function or method NAME.

Raises ValueError for a citation of a paper or a part that papers.toml lacks, a part with a place and without a test, or the
reverse, a test that does not exist, a command that the parser refuses, and a link to a name that its file lacks.
"""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.cli.main import parser

DOCS = Path(__file__).parent
PAGE, PAPERS, STORY = DOCS / "paper.md", DOCS / "papers.toml", DOCS / "story.md"
ROOT = DOCS.parent
TESTS = ROOT / "tests"
HEAD = """# From the papers to the code

`python docs/make_paper.py` writes this page from the citations in the code. A test FILE::NAME is
`pytest tests/test_FILE.py -k NAME`; paths in commands are examples, and [data.md](data.md) has the files of each task.
"""
_GAP = r"(?:\s+(?:#\s+)?)"  # a citation may go on in the next line of a comment
_KIND = rf"(?:sec\.|tables?|figures?|algorithm|task|eq\.(?:{_GAP}in{_GAP}sec\.)?)"
_NUMBER = r"(?:[A-H]\.\d|\d+(?:\.\d+)*|[A-H](?![\w.]))"
_JOIN = rf"(?:,{_GAP}and|,|{_GAP}and)"
CITATION = re.compile(
    rf"(?P<paper>[A-Z]\w+(?:{_GAP}et{_GAP}al\.|{_GAP}and{_GAP}[A-Z]\w+){_GAP}(?:19|20)\d\d[a-z]?)\b(?:{_GAP}\([\w -]+\))?"
    rf"(?P<parts>(?:{_JOIN}{_GAP}(?:{_KIND}{_GAP})?{_NUMBER})*)"
)
_UNREAD = re.compile(rf"{_JOIN}?{_GAP}\(?(?:sec\.|[Ss]ection|[Tt]able|[Ff]ig|[Aa]ppendix|eq\.|[A-H]\.\d)")
_PART = re.compile(rf"(?:(?P<kind>{_KIND}){_GAP})?(?P<number>{_NUMBER})")
NAME_LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<file>[\w./]+\.py)(?:#L\d+-L\d+)?\)")
UNLIKE = re.compile(r"Unlike the textbook: ((?:[^\n\"]+\n?)+)")


class Place(NamedTuple):
    """A class, function, table or file of the code. name: "" for the file."""

    file: str
    name: str


class Citation(NamedTuple):
    """part: a `ref` of papers.toml; "" for the whole paper."""

    paper: str
    part: str
    place: Place


def sources() -> dict[str, str]:
    """The text of every file of the package, by its path below bert_keras/."""
    folders = {"": ROOT / "bert_keras", "tasks/": ROOT / "tasks", "savedmodels/": ROOT / "savedmodels"}
    return {
        prefix + file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8")
        for prefix, folder in folders.items()
        for file in sorted(folder.rglob("*.py"))
        if prefix or file.relative_to(folder).parts[0] not in ("tasks", "savedmodels")
    }


def _name_at(tree: ast.Module, line: int) -> str:
    """The class, function or variable that a line is in or stands above; "" for the file's own docstring."""
    node = next((one for one in tree.body if (one.end_lineno or 0) >= line), None)
    if isinstance(node, ast.ClassDef):
        methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
        inside = next((one.name for one in methods if one.lineno <= line <= (one.end_lineno or 0)), "")
        return node.name + (f".{inside}" if inside and not inside.startswith("_") else "")
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target)
    return ""


def parts_of(text: str) -> Iterator[str]:
    """`sec. 3.1 and A.1, table 8` -> "sec. 3.1", "sec. A.1", "table 8": a number without a kind has that of the number before."""
    kind = "sec."
    for part in _PART.finditer(text):
        kind = re.sub(_GAP, " ", part["kind"]) if part["kind"] else kind
        kind = "sec." if part["number"][0].isalpha() else kind.removesuffix("s")
        yield f"{kind} {part['number']}"


def read_citations(file: str, text: str) -> Iterator[Citation]:
    """Yields the citations in a file, one for each part."""
    tree = ast.parse(text)
    for found in CITATION.finditer(text):
        place = Place(file, _name_at(tree, text.count("\n", 0, found.start()) + 1))
        if _UNREAD.match(text, found.end()):
            raise ValueError(f"{file}: write {found[0]} and its parts as in this file's docstring")
        for part in [*parts_of(found["parts"])] or [""]:
            yield Citation(re.sub(_GAP, " ", found["paper"]), part, place)


def read_differences(file: str, text: str) -> Iterator[tuple[str, Place]]:
    """Yields what a file says to be unlike the textbook."""
    tree = ast.parse(text)
    plain = re.sub(r"(?m)^( *)# ?", r"\1", text)
    for found in UNLIKE.finditer(plain):
        said = re.split(r"\n\s*\n|\n *\w[\w.]*(?:: .*)? = ", found[1])[0]
        yield " ".join(said.split()), Place(file, _name_at(tree, plain.count("\n", 0, found.start()) + 1))


def check_test(test: str) -> None:
    """Raises ValueError unless FILE::NAME is a test."""
    file, _, name = test.partition("::")
    path = TESTS / file
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
        raise ValueError(f"there is no test {test}")


def check_command(command: str) -> None:
    """Raises ValueError for a command that its parser refuses."""
    words = shlex.split(command)
    try:
        parser(words[:1]).parse_args(words)
    except (SystemExit, KeyError) as error:
        raise ValueError(f"bert-keras {command} does not parse") from error


def check(papers: dict[str, Any], citations: list[Citation]) -> None:
    """Raises ValueError as this file says."""
    cited = {(one.paper, one.part) for one in citations}
    known = {(paper, "") for paper in papers}
    for paper, about in papers.items():
        for row in about["parts"]:
            parts = {(paper, ref) for ref in row["refs"]}
            known |= parts
            if "test" in row and (stale := parts - cited):
                raise ValueError(f"papers.toml has a test for {_listed(stale)}, which no file cites")
            if "test" not in row and (untested := parts & cited):
                raise ValueError(f"papers.toml has no test for {_listed(untested)}")
            if "test" in row:
                check_test(row["test"])
            if "command" in row:
                check_command(row["command"])
    for paper, part, place in citations:
        if (paper, part) not in known:
            raise ValueError(f"{place.file} {place.name} cites {paper}, {part}, which papers.toml lacks")


def _listed(parts: set[tuple[str, str]]) -> str:
    return "; ".join(", ".join(part) for part in sorted(parts))


def _places(places: list[Place]) -> str:
    """The names by file, each once."""
    files: dict[str, dict[str, None]] = {}
    for place in places:
        files.setdefault(place.file.rpartition("/")[2], {})[place.name] = None
    return "; ".join(f"{file} {', '.join(filter(None, names))}".strip() for file, names in files.items())


def _table(papers: dict[str, Any], citations: list[Citation]) -> list[str]:
    """The table of the parts of some papers, and the parts without a place. Several papers are named, without titles of parts."""
    rows, without = ["| part | code | test | `bert-keras` |", "|---|---|---|---|"], []
    for paper, about in papers.items():
        for row in about["parts"]:
            places = [one.place for one in citations if one.paper == paper and one.part in row["refs"]]
            part = ", ".join(row["refs"]).removeprefix("sec. ")
            part = f"{about['name']} {part}" if len(papers) > 1 else f"{part} {row['title']}"
            if places:
                test = row["test"].removeprefix("test_").replace(".py::test_", "::")
                command = f" `{row['command']}`" if "command" in row else ""
                rows.append(f"| {part} | {_places(places)} | {test} |{command} |")
            else:
                without.append(part)
    return ["\n".join(rows), f"No place in the code: {'; '.join(without)}."]


def page(papers: dict[str, Any], texts: dict[str, str]) -> str:
    """The page in Markdown. texts: of `sources`. Raises ValueError as this file says."""
    citations = [one for file, text in texts.items() for one in read_citations(file, text)]
    check(papers, citations)
    parts = [HEAD]
    differences = [one for file, text in texts.items() for one in read_differences(file, text)]
    parts.append("## Where BERT differs from the textbook")
    parts.append(
        "\n".join(f"- {said[0].upper()}{said[1:]} ({_places([place])})" for said, place in differences)
    )
    bert, *_ = papers
    others = {paper: about for paper, about in papers.items() if about["parts"] and paper != bert}
    parts += [f"## {bert}", *_table({bert: papers[bert]}, citations), "## Other papers"]
    parts += _table(others, citations)
    parts.append("; ".join(f"{about['name']}: {paper}" for paper, about in others.items()) + ".")
    whole = "; ".join(paper for paper, about in papers.items() if not about["parts"])
    parts.append(f"Cited as a whole: {whole}.")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def with_lines(text: str) -> str:
    """The text of a page of docs/ whose links to names have their lines. Raises ValueError as this file says."""

    def found(link: re.Match[str]) -> str:
        node: ast.AST = ast.parse((DOCS / link["file"]).read_text(encoding="utf-8"))
        for name in link["name"].split("."):
            inside = (one for one in getattr(node, "body", []) if getattr(one, "name", "") == name)
            node = next(inside, node)
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name != name:
            raise ValueError(f"{link['file']} has no {link['name']}")
        return f"[`{link['name']}`]({link['file']}#L{node.lineno}-L{node.end_lineno})"

    return NAME_LINK.sub(found, text)


def read_papers() -> dict[str, Any]:
    """The content of papers.toml."""
    return tomllib.loads(PAPERS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(read_papers(), sources()), encoding="utf-8")
    STORY.write_text(with_lines(STORY.read_text(encoding="utf-8")), encoding="utf-8")
