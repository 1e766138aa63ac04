"""mkdocs' hook of the site: notebooks become pages, and files outside docs/ that pages link to are published beside them.

A page keeps its links as they work in the repository: docs/x.md becomes /x/, any other file its path from the top.
"""

import json
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")  # pages outside docs/
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")


def notebook(path: Path) -> str:
    """The cells of a notebook as Markdown: text as it stands, code as a block. The notebooks have no outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    body = "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts)
    title, _, rest = body.partition("\n")
    return f"{title}\n\n[Download the notebook]({path.name})\n{rest}"


def on_files(files, config, **_):
    """Adds what is outside docs/."""
    linked = {*PAGES}
    for page in files.documentation_pages():
        linked |= {*OUTSIDE.findall(page.content_string)}
    for path in sorted(ROOT.glob("examples/notebooks/*")):
        linked.add(path.relative_to(ROOT).as_posix())
        if path.suffix == ".ipynb":
            name = path.relative_to(ROOT).with_suffix(".md").as_posix()
            files.append(File.generated(config, name, content=notebook(path)))
    for name in sorted(linked):
        if (ROOT / name).is_file():
            files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown, page, **_):
    """Links as the site has its files: without docs/."""
    if page.file.src_dir == str(ROOT):
        markdown = re.sub(
            r"(?m)^(\*\*.+\*\*)\n- ", r"\1\n\n- ", markdown
        )  # a list after a line of text, as GitHub reads it
        return re.sub(r"(\]\((?:\.\./)*)docs/", r"\1", markdown)
    return markdown.replace("](../", "](") if "/" not in page.file.src_uri else markdown
