"""The page at `/` of the server: every kind of model is asked in a real browser, and what it shows is what REST answers.

Texts of strangers, other sites, a stopped server and a browser without scripts included.
"""

import ast
import contextlib
import dataclasses
import functools
import html
import http.client
import http.server
import json
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from browser import check_accessible, errors_of, requests_of, sideways, visit
from exports import CASES, untrained
from servers import ask
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo

from bert_keras.io.files import write_json
from bert_keras.savedmodels.export import servable_of
from bert_keras.savedmodels.model_card import example_of
from bert_keras.savedmodels.server import Server
from bert_keras.savedmodels.server.served import Served
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.savedmodels.verify import BOUNDS, EXAMPLE, EXTRA
from bert_keras.tasks.options import ServerOptions
from bert_keras.tasks.problems.classification import TextClassification

OPTIONS = ServerOptions(port=0, no_grpc=True, max_text=20_000)
SEVERAL = TextClassification(["good", "bad", "dull"], text=("text",), label_type="multi")
HOSTILE_NAME = "</script><img src=x onerror=alert(1)>\"'"


def doubled():
    """The signatures of a model of another kind: numbers in, numbers out."""
    spec = tf.TensorSpec([None, 2], tf.float32, name="x")
    return {
        "serving_default": tf.function(lambda **given: {"y": 2 * given["x"]}).get_concrete_function(x=spec)
    }


def served_from(name, signatures, folder):
    """A model in memory, as `load` reads it from a folder."""

    def infos(specs):
        return {
            key: TensorInfo(dtype=spec.dtype.as_datatype_enum, tensor_shape=spec.shape.as_proto())
            for key, spec in specs.items()
        }

    definitions = {
        key: SignatureDef(inputs=infos(f.structured_input_signature[1]), outputs=infos(f.structured_outputs))
        for key, f in signatures.items()
    }
    return Served(
        name=name, version=1, folder=folder, loaded=None, signatures=signatures, signature_defs=definitions
    )


@pytest.fixture(scope="module")
def serve(tiny, tmp_path_factory):
    """serve(case) is a running server of an untrained model of exports.CASES; one server for each case. Its log is `lines`."""
    folder, running = tmp_path_factory.mktemp("page"), {}

    def start(case):
        if case in running:
            return running[case]
        place = folder / case.replace(" ", "")
        (place / EXTRA).mkdir(parents=True)
        if case == "Numbers":
            signatures = doubled()
        else:
            task = CASES.get(case, SEVERAL)
            signatures = servable_of(untrained(task, tiny)).signatures()
            write_json(place / EXTRA / EXAMPLE, example_of(task))
            write_json(place / EXTRA / BOUNDS, task.score_bounds)
        served, lines = served_from(case, signatures, place), []
        server = stack.enter_context(Server(Versions(served), OPTIONS, log=lines.append))
        found = {"port": server.port, "lines": lines, "served": served}
        return running.setdefault(
            case, SimpleNamespace(predict=f"{Versions(served).address}:predict", **found)
        )

    with contextlib.ExitStack() as stack:
        yield start


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A server of the model that takes numbers, without a browser."""
    served = served_from("x", doubled(), tmp_path_factory.mktemp("x"))
    with Server(Versions(served), OPTIONS) as server:
        yield SimpleNamespace(port=server.port, served=served)


def address(server):
    return f"http://127.0.0.1:{server.port}/"


def texts_of(browser, selector):
    """The text of each element, as a script reads it: also of what is scrolled away."""
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )


def send(browser, values, *, signature=None):
    """Types values into the fields of these names and asks; waits for the answer."""
    browser.execute_script(
        """const [values, signature] = arguments, get = (id) => document.getElementById(id);
        if (signature) { get("signature").value = signature; get("signature").onchange(); }
        for (const [id, value] of Object.entries(values)) get(id).value = value;
        get("ask").requestSubmit();""",
        {f"{name}-{i}": one for name in values for i, one in enumerate(np.ravel(values[name]).tolist())},
        signature,
    )
    wait(browser)


def wait(browser):
    until = time.monotonic() + 60
    while not browser.execute_script("return document.getElementById('answer').ariaBusy === 'false'"):
        assert time.monotonic() < until, "no answer"
        time.sleep(0.02)


def shown(values):
    return [f"{100 * value:.1f} %" for value in values]


# Offsets count an emoji and a combining mark as characters of Python.
TEXT = "👩‍🎓 Ame\u0301lie: good actor, dull plot 🎬 and a warm scene"
LINE, SAID, PERCENT, FAILED = "#answer tbody th bdi", "#answer .said", "#answer .share", "#answer .failed"


def best(row):
    """The labels by falling probability, the chosen ones marked."""
    chosen = row.get("labels", [row.get("label")])
    order = np.argsort([-p for p in row["probabilities"]], kind="stable")
    names = row["label_names"]
    return {
        SAID: [", ".join(filter(None, chosen)) or "No label applies."],
        LINE: [f"{'✓ ' if names[i] in chosen else ''}{names[i]}" for i in order],
        PERCENT: shown(row["probabilities"][i] for i in order),
    }


def entities(row):
    real = [text for text, start in zip(row["entity_text"], row["entity_start"], strict=True) if start >= 0]
    return {"#answer mark > bdi": real, "#answer mark small": row["entity_label"][: len(real)], LINE: real}


YES, NO = "Yes: the second text follows the first.", "No: the second text does not follow the first."
# Case -> what is typed, by field, and what is shown, from the answer of REST.
ASKED = {
    "Classification": ({"sentence": TEXT}, best),
    "Classification of pairs": ({"premise": TEXT, "hypothesis": "the actor"}, best),
    "Several": ({"text": TEXT}, best),
    "Regression": (
        {"sentence1": TEXT, "sentence2": "good"},
        lambda score: {SAID: [f"{score:.4g}"], LINE: ["0 to 5"], PERCENT: [f"{score:.4g}"]},
    ),
    "Choice": (
        {"context": TEXT, "endings": ["good", "bad 🎬", "dull", "warm"]},
        lambda row: {SAID: [row["ending"]], PERCENT: shown(sorted(row["probabilities"])[::-1])},
    ),
    "Question answering": (
        {"question": "actor?", "context": TEXT},
        lambda row: {SAID: [row["answer"]], "#answer mark": [row["answer"]], LINE: row["nbest_answers"]},
    ),
    "Named entities": ({"text": TEXT}, entities),
    "Fill-mask": (
        {"text": "🎬 the [MASK] is [MASK]"},
        lambda row: {
            SAID: [row["filled"]],
            "#answer mark > bdi": ["[MASK]", "[MASK]"],
            LINE: sum(row["mask_tokens"], []),
            PERCENT: shown(sum(row["mask_scores"], [])),
        },
    ),
    "Next sentence": (
        {"sentence": TEXT, "next_sentence": "good"},
        lambda row: best(row) | {SAID: [YES if row["label"] == "is_next" else NO]},
    ),
    "Sentence embedding": (
        {"text": TEXT},
        lambda vector: {SAID: ["A vector of 48 numbers"], LINE: ["text 1"]},
    ),
    "Numbers": ({"x": "[[1, 2.5]]"}, lambda row: {LINE: ["y"], "#answer td": ["float32 [?, 2]", "[[2,5]]"]}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", ASKED)
def test_every_kind_shows_what_rest_answers(serve, browser, case):
    server, (values, expected) = serve(case), ASKED[case]
    visit(browser, address(server), width=360)
    send(browser, values)
    typed = {name: json.loads(value)[0] if case == "Numbers" else value for name, value in values.items()}
    instance = typed if len(typed) > 1 else next(iter(typed.values()))
    row = ask(server, server.predict, {"instances": [instance]})[2]["predictions"][0]
    for selector, wanted in expected(row).items():
        assert texts_of(browser, selector) == wanted, selector
    assert sideways(browser) == 0
    assert_quiet(browser, server)
    for scheme in ("light", "dark"):
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        check_accessible(browser)


def assert_quiet(browser, server):
    """Nothing was refused by the policy, and nothing was asked for from elsewhere."""
    assert errors_of(browser) == []
    files = {"", "page.css", "page.js", server.predict[1:]}
    assert {one.removeprefix(address(server)) for one in requests_of(browser)} == files


@pytest.mark.long
def test_two_texts_are_compared(serve, browser):
    server = serve("Sentence embedding")
    visit(browser, address(server))
    send(browser, {"text": ["good plot", "bad 🎬"]})
    a, b = np.array(ask(server, server.predict, {"instances": ["good plot", "bad 🎬"]})[2]["predictions"])
    assert texts_of(browser, SAID) == [f"Cosine: {a @ b / np.linalg.norm(a) / np.linalg.norm(b):.3f}"]


HOSTILE = {
    "a script": "</script><script>alert(1)</script>",
    "an image": "\"><img src=x onerror=alert(1)> '; $(touch x) `id` \\ !x",
    "right to left": "\u202eabc\u202c שלום actor עולם",
    "emoji and marks": TEXT,
    "10,000 letters": "a" * 10_000,
    "NUL": "good\0plot \x7f \x9b",
    "spaces": "   ",
    "empty": "",
}


@pytest.mark.long
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_of_strangers_is_shown_as_it_is_and_its_commands_send_it(serve, browser, text):
    server = serve("Named entities")
    visit(browser, address(server))
    send(browser, {"text": text})
    (found,) = browser.execute_script(
        """const shown = document.querySelector("#answer .marked").cloneNode(true);
        shown.querySelectorAll("small").forEach((label) => { label.previousSibling.remove(); label.remove(); });
        return [shown.textContent];"""
    )
    assert found == text
    assert texts_of(browser, "#answer img, #answer script") == []
    assert_quiet(browser, server)
    expected = ask(server, server.predict, {"inputs": [text]})[2]
    curl, python = (texts_of(browser, f"#{name}")[0] for name in ("curl", "python"))
    assert curl.isprintable()
    for command, read in (
        (["sh", "-c", curl], json.loads),
        ([sys.executable, "-c", python], ast.literal_eval),
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and read(done.stdout) == expected


@pytest.mark.long
def test_errors_are_words(serve, browser):
    server = serve("Classification")
    visit(browser, address(server))
    send(browser, {"sentence": "a" * 20_001})
    (told,) = texts_of(browser, FAILED)
    assert "400" in told and "the texts have 20,001 bytes; a request may have at most 20,000" in told
    send(browser, {"input_word_ids": "[[1]"}, signature="features")
    assert "input word ids is not JSON: write numbers" in texts_of(browser, FAILED)[0]
    send(browser, {"input_word_ids": "[[1.5]]"})
    assert "input_word_ids is not a tensor of int32" in texts_of(browser, FAILED)[0]
    send(browser, {"input_word_ids": "[[5]]"})
    assert len(texts_of(browser, LINE)) == 2
    with Server(Versions(server.served), OPTIONS) as ended:
        visit(browser, address(ended))
    send(browser, {"sentence": "good"})
    assert "The server does not answer" in texts_of(browser, FAILED)[0]


@pytest.mark.long
def test_the_keyboard_alone_suffices(serve, browser):
    from selenium.webdriver.common.keys import Keys

    visit(browser, address(serve("Classification")))
    met = []
    while "Copy curl" not in met:
        browser.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.switch_to.active_element
        assert focused.value_of_css_property("outline-style") != "none" and len(met) < 12
        met.append(focused.get_attribute("id") or focused.text)
        if met[-1] == "sentence-0":
            for keys in (Keys.CONTROL + "a", "dull plot", Keys.CONTROL + Keys.ENTER):
                focused.send_keys(keys)
            wait(browser)
            assert '"dull plot"' in texts_of(browser, "#curl")[0] and len(texts_of(browser, SAID)) == 1
        if met[-1] == "send":
            browser.execute_script("document.getElementById('answer').replaceChildren()")
            focused.send_keys(Keys.ENTER)
            wait(browser)
            assert len(texts_of(browser, SAID)) == 1
    assert met.index("example") < met.index("sentence-0") < met.index("send")


@pytest.mark.long
def test_a_version_is_chosen(serve, browser):
    served = serve("Regression").served
    versions = Versions(served, dataclasses.replace(served, version=12))
    with Server(versions, OPTIONS) as server:
        visit(browser, address(server))
        send(browser, {"sentence1": "a"})
        assert "/v1/models/Regression:predict" in texts_of(browser, "#curl")[0]
        assert texts_of(browser, "#version option") == ["12 (the newest)", "1"]
        browser.execute_script("document.getElementById('version').selectedIndex = 1")
        send(browser, {"sentence1": "a"})
        assert "/v1/models/Regression/versions/1:predict" in texts_of(browser, "#curl")[0]
        assert len(texts_of(browser, SAID)) == 1


@pytest.mark.long
def test_without_scripts_it_says_what_is_served(serve, browser):
    server = serve("Classification")
    visit(browser, address(server), scripts=False)
    text = browser.find_element("tag name", "body").text
    assert "runs no scripts" in text and "Model Classification, version 1." in text and "Copy" not in text
    assert f"http://127.0.0.1:{server.port}{server.predict}" in text and "Ask the model" not in text


@pytest.fixture
def elsewhere(tmp_path):
    """The address of a page of another site. Browsers resolve names below localhost to this machine."""
    (tmp_path / "index.html").write_text("<!doctype html><title>another site</title><iframe></iframe>")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://evil.localhost:{server.server_port}/"
        server.shutdown()


@pytest.mark.long
def test_another_site_can_neither_read_nor_post_nor_frame(serve, browser, elsewhere):
    server = serve("Classification")
    visit(browser, elsewhere)
    before = len(server.lines)
    results = browser.execute_async_script(
        """const [page, done] = arguments, predict = `${page}v1/models/Classification:predict`;
        const tried = (...given) => fetch(...given).then(() => "answered", () => "refused");
        const body = JSON.stringify({inputs: ["good"]});
        const frame = document.querySelector("iframe");
        frame.onload = async () => done([
          await tried(page), await tried(page, {mode: "no-cors"}), await tried(`${page}page.js`, {mode: "no-cors"}),
          await tried(predict, {method: "POST", body, headers: {"Content-Type": "application/json"}}),
          await tried(predict, {method: "POST", body, mode: "no-cors"}).then(() => "sent"),
        ]);
        frame.src = page;""",
        address(server),
    )
    assert results == ["refused", "refused", "refused", "refused", "sent"]
    assert any("frame-ancestors" in error for error in errors_of(browser))
    posts = [line.split()[2] for line in server.lines[before:] if line.startswith(("POST", "OPTIONS"))]
    assert posts == ["405", "403"]


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
# What is asked for -> the status, and a part of the answer.
GETS = {
    "the page": ("GET", "/", {}, 200, "<h1>"),
    "with a query": ("GET", "/?x=</script>", {}, 200, "<h1>"),
    "its script": ("GET", "/page.js", {}, 200, "textContent"),
    "its style": ("GET", "/page.css", {}, 200, "--ink"),
    "a rebound name": ("GET", "/", {"Host": "evil.test"}, 403, "Host is evil.test"),
    "a rebound name's script": ("GET", "/page.js", {"Host": "evil.test"}, 403, "Host is evil.test"),
    "a foreign page": ("GET", "/", {"Origin": "http://evil.test"}, 403, "Origin is http://evil.test"),
    "no such file": ("GET", "/page.html", {}, 404, "there is no address"),
    "a way out": ("GET", "/../page.py", {}, 404, "there is no address"),
    "a POST": ("POST", "/", {}, 404, "there is no address"),
    "a HEAD": ("HEAD", "/", {}, 405, ""),
}


def get(server, method, path, headers):
    """The response, and its text."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read().decode()


@pytest.mark.parametrize("case", GETS)
def test_the_pages_addresses(numbers, case):
    method, path, headers, status, part = GETS[case]
    response, text = get(numbers, method, path, headers)
    assert response.status == status and part in text
    assert "Access-Control-Allow-Origin" not in response.headers
    if status == 200:
        assert response.headers["Content-Security-Policy"] == POLICY
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "same-origin"
        assert response.headers["Content-Type"].endswith("charset=utf-8")


def test_a_name_cannot_leave_its_place(numbers):
    named = dataclasses.replace(numbers.served, name=HOSTILE_NAME)
    with Server(Versions(named), OPTIONS) as server:
        _, text = get(server, "GET", "/", {})
    assert "<img" not in text and text.count("<script") == 1 and "style=" not in text


def test_a_model_without_a_default_signature_is_served(numbers):
    spec = tf.TensorSpec(None, tf.string, name="text")
    other = tf.function(lambda **given: given).get_concrete_function(text=spec)
    served = served_from("x", {"other": other}, numbers.served.folder)
    with Server(Versions(served), OPTIONS) as server:
        _, text = get(server, "GET", "/", {})
        (body,) = re.findall(r'<span id="body">(.*)</span>', text)
        assert ask(server, "/v1/models/x:predict", html.unescape(body))[2] == {"predictions": ["a text"]}


def test_without_the_page_the_addresses_are_as_before(numbers):
    with Server(Versions(numbers.served), dataclasses.replace(OPTIONS, no_page=True)) as server:
        for path in ("/", "/page.js", "/page.css"):
            assert get(server, "GET", path, {})[0].status == 404
