"""mkdocs' hook of the site: notebooks become pages, and files outside docs/ that pages link to are published beside them.

A page keeps its links as they work in the repository: docs/x.md becomes /x/, any other file its path from the top.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)#:\s]+)")  # to a file
NAMED = re.compile(r"\[[\w/]+\.md\]\(([\w/.]+\.md)")  # to a page, by its name
WHOLE = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)\)")


def links(path: Path) -> Iterator[Path]:
    """The files outside docs/ that a page links to."""
    found = {(path.parent / name).resolve() for name in LINK.findall(path.read_text(encoding="utf-8"))}
    yield from (file for file in sorted(found) if file.is_file() and not file.is_relative_to(ROOT / "docs"))


def notebook(path: Path) -> str:
    """The cells of a notebook as Markdown: text as it stands, code as a block. The notebooks have no outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    body = "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts)
    title, _, rest = body.partition("\n")
    module = " and [toy.py](toy.py), which it imports" if "import toy" in body else ""
    return f"{title}\n\n[Download the notebook]({path.name}){module}. It stands here without its outputs.\n{rest}"


def on_files(files, config, **_):
    """Adds what is outside docs/: the pages that the navigation names, all that pages link to, and the notebooks."""
    waiting = [ROOT / name for name in re.findall(r'"([\w/]+\.md)"', json.dumps(config.nav))]
    waiting = [path for path in waiting if path.is_file()]
    for page in files.documentation_pages():
        waiting += links(Path(page.abs_src_path))
    waiting += (path for path in ROOT.glob("examples/notebooks/*") if path.is_file())
    added: set[Path] = set()
    while waiting:
        path = waiting.pop()
        name = path.relative_to(ROOT)
        if path in added:
            continue
        added.add(path)
        if path.suffix == ".md":
            waiting += links(path)
        if path.suffix == ".ipynb":
            files.append(File.generated(config, name.with_suffix(".md").as_posix(), content=notebook(path)))
        place = (str(ROOT), config.site_dir, config.use_directory_urls)
        files.append(File(name.as_posix(), *place, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown, page, **_):
    """Links as the site has its files: without docs/, and without links to folders, which have no page.

    A link that shows the name of a page shows its title.
    """
    here = Path(page.file.abs_src_path).parent if page.file.abs_src_path else ROOT

    def titled(link):
        if not (here / link[1]).is_file():
            return link[0]
        title = (here / link[1]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}]({link[1]}"

    def unlinked(link):
        return link[1] if (here / link[2]).is_dir() else link[0]

    markdown = WHOLE.sub(unlinked, NAMED.sub(titled, markdown))
    if page.file.src_dir == str(ROOT):
        # A list may follow a line of text on GitHub; here a blank line stands between them.
        markdown = re.sub(r"(?m)^(\*\*.+\*\*)\n- ", r"\1\n\n- ", markdown)
        return re.sub(r"(\]\((?:\.\./)*)docs/", r"\1", markdown)
    return markdown.replace("](../", "](") if "/" not in page.file.src_uri else markdown
