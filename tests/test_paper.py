"""docs/paper.md: the citations of the code, held to the parts that the papers have, to tests and to commands that exist."""

import importlib.util

import pytest
import runs


@pytest.fixture(scope="module")
def make_paper():
    """The script docs/make_paper.py as a module."""
    path = runs.ROOT / "docs" / "make_paper.py"
    spec = importlib.util.spec_from_file_location("make_paper", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_code_cites(make_paper):
    made = make_paper.page(make_paper.read_papers(), make_paper.sources())
    assert made == make_paper.PAGE.read_text(encoding="utf-8"), (
        "docs/paper.md is old: python docs/make_paper.py"
    )


def test_the_story_links_to_the_lines_of_the_code(make_paper):
    text = make_paper.STORY.read_text(encoding="utf-8")
    assert len(make_paper.NAME_LINK.findall(text)) > 10
    assert make_paper.with_lines(text) == text, "docs/story.md has old lines: python docs/make_paper.py"
    name = next(make_paper.NAME_LINK.finditer(text))["name"]
    with pytest.raises(ValueError, match=r"\.py has no gone"):
        make_paper.with_lines(text.replace(f"`{name}`", "`gone`"))


CODE = '''"""A file (Doe et al. 2020, sec. 1)."""

# Doe et al. 2020 (DOE), table 2
# and A.1.
SIZES = {"base": 12}


class Head:
    """Doe et al. 2020, eq. in sec. 1, sec. 2 and 3.1. Roe and Doe 2019.

    Unlike the textbook: no bias,
    as it was.

    The rest.
    """

    width: int = 1  # Doe et al. 2020, task 1

    def call(self):
        """Doe et al. 2020,
        figures 1 and 2."""
'''


def test_citations_of_docstrings_and_comments_have_their_places(make_paper):
    found = [(one.paper, one.part, one.place.name) for one in make_paper.read_citations("a.py", CODE)]
    assert found == [
        ("Doe et al. 2020", "sec. 1", ""),
        ("Doe et al. 2020", "table 2", "SIZES"),
        ("Doe et al. 2020", "sec. A.1", "SIZES"),
        ("Doe et al. 2020", "eq. in sec. 1", "Head"),
        ("Doe et al. 2020", "sec. 2", "Head"),
        ("Doe et al. 2020", "sec. 3.1", "Head"),
        ("Roe and Doe 2019", "", "Head"),
        ("Doe et al. 2020", "task 1", "Head"),
        ("Doe et al. 2020", "figure 1", "Head.call"),
        ("Doe et al. 2020", "figure 2", "Head.call"),
    ]
    assert [(said, place.name) for said, place in make_paper.read_differences("a.py", CODE)] == [
        ("no bias, as it was.", "Head")
    ]


TEST = "test_paper.py::test_the_page_is_what_the_code_cites"
TESTED = {"refs": ["sec. 1", "table 2"], "title": "One", "test": TEST, "command": "plan --size base"}
# What the code cites, the change of the row of sec. 1 and table 2, and the error.
WRONG = {
    "part": ("Doe et al. 2020, sec. 1, table 2 and 3", {}, "cites Doe et al. 2020, table 3, which papers.toml lacks"),
    "paper": ("Doe et al. 2020, sec. 1, table 2; Roe and Doe 2019", {}, "cites Roe and Doe 2019, , which"),
    "form": ("Doe et al. 2020, Table 2", {}, "write Doe et al. 2020 and its parts as"),
    "test": ("Doe et al. 2020, sec. 1, table 2", {"test": "test_paper.py::test_none"}, "no test test_paper.py::test_none"),
    "file": ("Doe et al. 2020, sec. 1, table 2", {"test": "test_no.py::test_none"}, "no test test_no.py::test_none"),
    "command": ("Doe et al. 2020, sec. 1, table 2", {"command": "plan --sizes base"}, "plan --sizes base does not parse"),
    "name": ("Doe et al. 2020, sec. 1, table 2", {"command": "plans"}, "plans does not parse"),
    "stale": ("Doe et al. 2020, sec. 1", {}, "a test for Doe et al. 2020, table 2, which no file cites"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_citations_and_rows_are_refused(make_paper, case):
    cited, change, message = WRONG[case]
    papers = {"Doe et al. 2020": {"name": "DOE", "parts": [TESTED | change]}}
    with pytest.raises(ValueError, match=message):
        make_paper.page(papers, {"a.py": f'"""{cited}."""'})


def test_a_part_that_is_cited_needs_a_test_and_others_are_listed(make_paper):
    untested = {"refs": ["sec. 3"], "title": "Three"}
    papers = {"Doe et al. 2020": {"name": "DOE", "parts": [TESTED, untested]}}
    cites = '"""Doe et al. 2020, sec. 1, table 2."""'
    assert "No place in the code: 3 Three." in make_paper.page(papers, {"a.py": cites})
    with pytest.raises(ValueError, match="has no test for Doe et al. 2020, sec. 3"):
        make_paper.page(papers, {"a.py": cites, "b.py": '"""Doe et al. 2020, sec. 3."""'})
