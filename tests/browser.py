"""One headless Chromium for all tests of pages, and what a page does in it: requests, errors, width, accessibility.

A test asks for the fixture `browser`, which conftest.py has, and opens a page with `visit`.
"""

import importlib.util
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """selenium's driver of Chromium; the test is skipped where Chromium or its driver is missing."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"no {missing[0]}: install Chromium and its chromedriver to test pages")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs["chromedriver"]))
    yield driver
    driver.quit()


def visit(
    browser: Any, page: Path | str, *, width: int = 900, dark: bool = False, scripts: bool = True
) -> None:
    """Opens a file or an address in a window of that width in pixels. Forgets the requests and errors of earlier pages."""
    browser.get("about:blank")
    requests_of(browser), errors_of(browser)
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    browser.get(page.resolve().as_uri() if isinstance(page, Path) else page)


def requests_of(browser: Any) -> list[str]:
    """The addresses that pages have asked for since the last call, data: addresses apart."""
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in sent if not one["request"]["url"].startswith("data:")]


def errors_of(browser: Any) -> list[str]:
    """The errors and warnings in the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser")]


def sideways(browser: Any) -> int:
    """The pixels by which the page is wider than its window: 0 if it does not scroll sideways."""
    return browser.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )


# The standards of axe-core's rules: WCAG's contrast, names and labels, and the best practices for landmarks and headings.
RULES = ("wcag2a", "wcag2aa", "wcag21aa", "best-practice")


def check_accessible(browser: Any, *, rules: Sequence[str] = RULES, but: Sequence[str] = ()) -> None:
    """Fails with the rules of axe-core that the open page breaks, which must have scripts on; skips without axe-core.

    but: names of rules that are left out
    """
    found = importlib.util.find_spec("axe_core_python")  # its file alone: we drive Chromium with selenium
    if found is None or found.origin is None:
        pytest.skip("no axe-core: install the `test` extra, which has axe-core-python")
    browser.execute_script(Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    broken = browser.execute_async_script(
        "const [runOnly, rules, done] = arguments;"
        "axe.run(document, {runOnly, rules}).then(found => done(found.violations), error => done([String(error)]))",
        list(rules),
        {name: {"enabled": False} for name in but},
    )
    told = [
        f"{rule['id']}: {rule['help']}: {[node['html'][:200] for node in rule['nodes'][:3]]}"
        if isinstance(rule, dict)
        else rule
        for rule in broken
    ]
    assert not told, "\n".join(told)
