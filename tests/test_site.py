"""The site: it is built strictly without a network, and its pages ask no other host, log no error and can be searched.

The build needs the extra `docs`.
"""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading

import pytest
import runs
from browser import check_accessible, errors_of, requests_of, sideways, visit

pytest.importorskip("mkdocs", reason="no mkdocs: install the `docs` extra")
pytestmark = pytest.mark.long

# mkdocs in a process where any connection is an error.
BUILD = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError(f"the build of the site asks the network: {arguments}")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli

cli(["build", "--strict", "--site-dir", sys.argv[1]])
"""

# Without the best practices, which the theme's search dialog and menus break. Browsers focus a box that scrolls by themselves.
WCAG = {"rules": ("wcag2a", "wcag2aa", "wcag21aa"), "but": ("scrollable-region-focusable",)}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=runs.ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def site(folder):
    """The address of the built site, on this machine."""
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


# An entry of the API -> an argument, with the value of its default, and its meaning.
ENTRIES = {
    "api/strings/#bert_keras.classifier": "doc_stride (int | None, default: None ) – tokens between",
    "api/encoder/#bert_keras.BertConfig": "norm_epsilon (float, default: 1e-12 ) – epsilon of layer",
    "api/settings/#bert_keras.tasks.hparams.PretrainHparams": "learning_rate (float, default: 0.0001 ) – the highest",
    "api/tasks/#bert_keras.Problem": "model_features (tuple[str, ...]) – ",
}


@pytest.mark.parametrize("place", ENTRIES)
def test_docstrings_and_settings_become_arguments_with_defaults(folder, place):
    index = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))
    (text,) = (entry["text"] for entry in index["docs"] if entry["location"] == place)
    assert ENTRIES[place] in " ".join(re.sub(r"<[^>]+>", "", text).split())


PAGES = {
    "": "Two commands",
    "api/inspection/": "as predict takes them",
    "examples/notebooks/string_to_answer/": "The tokenizer runs in TensorFlow's graph.",
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_its_own_host_alone_and_is_accessible(site, browser, page):
    for dark, width in ((False, 1200), (True, 400)):
        visit(browser, site + page, width=width, dark=dark)
        assert PAGES[page] in browser.find_element("tag name", "article").text
        scheme = browser.find_element("tag name", "body").get_attribute("data-md-color-scheme")
        assert scheme == ("slate" if dark else "default")
        assert sideways(browser) == 0
        assert errors_of(browser) == []
        asked = requests_of(browser)
        assert asked and [address for address in asked if not address.startswith(site)] == []
        check_accessible(browser, **WCAG)


def test_the_search_finds_an_argument(site, browser):
    visit(browser, f"{site}?q=doc_stride", width=1200)
    from selenium.webdriver.support.ui import WebDriverWait

    found = WebDriverWait(browser, 30).until(
        lambda page: page.find_elements("css selector", ".md-search-result__link")
    )
    assert any("doc_stride" in link.text for link in found), [link.text for link in found]
    assert [address for address in requests_of(browser) if not address.startswith((site, "blob:"))] == []
    assert errors_of(browser) == []
