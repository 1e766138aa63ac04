"""A look inside a model: true attention weights, the logit of an answer divided among its words, pages and pictures."""

import dataclasses
import json
import random
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import tensorflow as tf
from browser import check_accessible, errors_of, requests_of, sideways, visit
from runs import ROOT, run_command, texts, write_checkpoint, write_distilbert, write_roberta
from string_tasks import TASKS

import bert_keras as bk
import bert_keras.tasks.inspection.attention as inspected
from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import ATTENTION_PROBABILITIES
from bert_keras.tasks.inspection.attention import Attention
from bert_keras.tasks.inspection.explanation import explain_example
from bert_keras.tasks.inspection.offers import MEASURES
from bert_keras.tasks.inspection.reading import find_words, one_row
from bert_keras.tasks.runs.ensemble import load_runs

TEXT = "The film isn't dull, and the plot is warm !"
HOSTILE = ["</script><b>&amp;", "\N{HEBREW LETTER ALEF}\N{RIGHT-TO-LEFT OVERRIDE}abc", "x" * 10_000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("two"), num_layers=2, masked_lm=True)


@pytest.fixture(scope="module")
def model(folder):
    return bk.classifier(folder, ["bad", "good"])


# -----------------------------------------------------------------------------------------------------------
# Attention


def test_weights_times_values_are_the_output_of_each_layer(model):
    found, encoder = bk.attention(model, TEXT, "a dull plot"), model.encoder
    row = model.preprocess([TEXT], ["a dull plot"])
    states = encoder.embeddings(row["input_word_ids"], row["input_type_ids"])
    mask = tf.zeros((1, 1, 1, states.shape[1]))
    for weights, block in zip(found.weights, encoder.blocks, strict=True):
        layer = block.attention
        values = tf.reshape(layer.value(states), (states.shape[1], layer.config.num_heads, -1))
        context = np.einsum("aqs,sad->qad", weights, values).reshape(states.shape[1:])
        np.testing.assert_allclose(layer.output_dense(context), layer(states, states, mask)[0], atol=1e-5)
        states, _ = block(states, states, mask)
    assert found.weights.dtype == np.float32 and found.weights.shape == (2, 2, *2 * [len(found.tokens)])
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1, atol=1e-5)
    assert encoder.outputs_wanted != (ATTENTION_PROBABILITIES,), "the encoder is left as it was"


def write_electra(folder):
    """A discriminator without head and pooler, as ELECTRA's encoders are."""
    changes = {"embedding_size": 16, "activation": "gelu_erf", "pooler_activation": "gelu_erf"}
    source = checkpoints.read(write_checkpoint(folder.with_name("pooled"), **changes))
    kept = {name: value for name, value in source.tensors.items() if not name.startswith("pooler")}
    checkpoints.write(dataclasses.replace(source, tensors=kept), folder, format="hugging-face")
    return folder


WRITERS = {
    "bert": write_checkpoint,
    "albert": lambda to: write_checkpoint(to, share_layers=True, embedding_size=16),
    "electra": write_electra,
    "roberta": write_roberta,
    "distilbert": write_distilbert,
}


@pytest.mark.parity
@pytest.mark.long
@pytest.mark.parametrize("family", WRITERS)
def test_weights_are_those_of_transformers(family, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = bk.embedder(WRITERS[family](tmp_path / "model"))
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    row = {name: torch.from_numpy(value.numpy()).long() for name, value in model.preprocess([TEXT]).items()}
    given = {"input_ids": row["input_word_ids"], "attention_mask": row["input_mask"]}
    with torch.no_grad():
        wanted = theirs(**given, output_attentions=True).attentions
    wanted = np.stack([one[0].numpy() for one in wanted])
    np.testing.assert_allclose(bk.attention(model, TEXT).weights, wanted, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("title", TASKS)
def test_every_string_model_shows_its_attention_and_explains_its_answer(title, folder):
    make, given, _ = TASKS[title]
    made = make(folder)
    columns = given if isinstance(given, dict) else {"text": given}
    first = [column[0] if isinstance(column[0], str) else [*column[0]] for column in columns.values()]
    first = [" ".join(one) if title == "tags" else one for one in first]
    assert bk.attention(made, *(one if isinstance(one, str) else one[0] for one in first)).weights.size
    example = dict(zip(made.problem.signature(), first, strict=True))
    explained = explain_example(made.as_run(), example, steps=32)
    assert explained or title in ("labels", "tags")
    for one in explained:
        assert one.completeness_error < 0.01 and len(one.words) == len(one.scores)
        assert one.scores.sum() == pytest.approx(one.logit - one.baseline_logit, rel=0.01, abs=1e-5)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("name", ["model.keras", "run"])
def test_files_have_the_weights_and_the_scores_of_their_model(name, model, tmp_path):
    model.save(tmp_path / name)
    again = bk.load(tmp_path / name)
    np.testing.assert_allclose(
        bk.attention(again, TEXT).weights, bk.attention(model, TEXT).weights, atol=1e-6
    )
    found, wanted = (bk.explain(one, TEXT, method="gradient-input").scores for one in (again, model))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_part_of_a_long_text_is_said(folder):
    long = " ".join(texts(30, seed=0))
    assert bk.attention(bk.classifier(folder, ["a", "b"]), long).note.startswith("a text of ")
    windowed = bk.classifier(folder, ["a", "b"], doc_stride=8, seq_length=24)
    assert "first of" in bk.attention(windowed, long).note and "window" in bk.explain(windowed, long).note
    assert not bk.attention(windowed, "good").note


def test_a_summary_has_the_means_of_a_plain_loop(model, monkeypatch):
    """Over texts of two lengths in one batch: padding does not count."""
    given = ["good film", "good plot good good is very dull"]
    seen = {name: [] for name in MEASURES}
    for found in (bk.attention(model, text) for text in given):
        tokens, last = found.tokens, len(found.tokens) - 1
        for i, row in enumerate(found.head(2, 1).astype("float64")):
            seen["previous"] += [row[i - 1]] if i > 0 else []
            seen["next"] += [row[i + 1]] if i < last else []
            seen["sep"].append(row[last])
            seen["cls"].append(row[0])
            seen["itself"].append(row[i])
            same = [row[j] for j in range(1, last) if j != i and tokens[j] == tokens[i]]
            seen["same-word"] += [sum(same)] if same else []
            seen["entropy"].append(-sum(weight * np.log2(weight) for weight in row))
    table = bk.attention_summary(model, given)
    assert table.columns == ("layer", "head", *MEASURES) and table.rows[2][:2] == (2, 1)
    assert table.rows[2][2:] == pytest.approx([np.mean(seen[name]) for name in MEASURES], abs=1e-5)
    assert bk.attention_summary(model, given[:1]).rows[0][7] is None, "no word comes twice"
    monkeypatch.setattr(inspected, "PAIRS_AT_ONCE", 1)
    assert bk.attention_summary(model, given).rows[2][2:] == pytest.approx(table.rows[2][2:], abs=1e-6)


# -----------------------------------------------------------------------------------------------------------
# Explanations


def test_scores_are_those_of_a_plain_loop_in_float64(folder):
    """500 midpoints, one at a time, on an encoder that is called part by part."""
    model = bk.classifier(folder, ["bad", "good"], dtype="float64")
    found, encoder = bk.explain(model, TEXT), model.encoder
    ids, _, types = model.preprocess([TEXT]).values()
    table = tf.convert_to_tensor(encoder.embedding_table)
    text, baseline = tf.gather(table, ids), tf.gather(table, [[2] + [0] * (ids.shape[1] - 2) + [3]])
    column, total = model.labels.index(found.answer), 0.0
    embeddings, head = encoder.embeddings, model.network.layers[-1]

    @tf.function(autograph=False)
    def gradient(point):
        with tf.GradientTape() as tape:
            tape.watch(point)
            places = embeddings.position_embeddings[: ids.shape[1]]
            states = embeddings.norm(point + places + embeddings.type_embeddings[0])
            for block in encoder.blocks:
                states, _ = block(states, states, tf.zeros((1, 1, 1, ids.shape[1]), "float64"))
            logit = head(tf.tanh(encoder.pooler(states[:, 0])))[0, column]
        return tape.gradient(logit, point)

    for i in range(500):
        total += gradient(baseline + (i + 0.5) / 500 * (text - baseline)) / 500
    scores = tf.reduce_sum((text - baseline) * total, axis=-1)[0]
    np.testing.assert_allclose(found.token_scores, scores, atol=1e-5 * np.abs(scores).max())


@pytest.mark.long
def test_a_planted_word_is_found(tmp_path):
    """The label is decided by one word, at a random place in random text."""
    draw = random.Random(0)
    others = "film plot actor scene the its is and very warm dull".split()

    def sentence(word):
        words = draw.choices(others, k=9)
        words[draw.randrange(9)] = word
        return " ".join(words)

    planted = [("good", "bad")[i % 2] for i in range(220)]
    given = [sentence(word) for word in planted]
    model = bk.classifier(write_checkpoint(tmp_path / "model", num_layers=2), ["good", "bad"])
    model.compile(learning_rate=1e-3)
    model.fit(given[20:], planted[20:], batch_size=20, epochs=8, verbose=0)
    assert (model.predict(given[:20], verbose=0)["label"] == planted[:20]).all(), "the word was not learned"
    explained = [bk.explain(model, text) for text in given[:20]]
    ranks = [
        [word for word, _ in one.table().rows].index(word)
        for one, word in zip(explained, planted, strict=False)
    ]
    assert sum(rank < 3 for rank in ranks) >= 18, ranks
    assert max(one.completeness_error for one in explained) < 0.01


@pytest.mark.parametrize(
    "write, text, words",
    [
        (write_checkpoint, "Isn't Café warm", ["Isn", "'", "t", "Café", "warm"]),
        (write_roberta, "The Plot\tis warm !", ["The", "Plot", "is", "warm", "!"]),
    ],
)
def test_words_are_spelled_as_in_the_text(write, text, words, tmp_path):
    model = bk.embedder(write(tmp_path / "model"))
    found = find_words(model.preprocess.tokenizer, one_row(model.preprocess([text]), 0), [text])
    assert [word for word, _ in found] == words


@pytest.mark.parametrize("truncation", [None, "tail", "head_tail"])
def test_words_of_the_part_that_is_read(truncation, folder):
    model = bk.classifier(folder, ["a", "b"], truncation=truncation, seq_length=12)
    text = "good bad warm dull film plot actor scene the its is and very good bad warm"
    words = list(bk.explain(model, text, method="gradient-input").words)
    wanted = {
        None: text.split()[:10],
        "tail": text.split()[-10:],
        "head_tail": text.split()[:3] + text.split()[-7:],
    }
    assert words == wanted[truncation]


# -----------------------------------------------------------------------------------------------------------
# Hostile texts, and errors in one line


@pytest.mark.parametrize("text", [*HOSTILE, "", "  "], ids=["markup", "direction", "long", "empty", "blank"])
def test_hostile_text_is_text_or_is_refused(text, model, tmp_path):
    found = bk.attention(model, text)
    found.save(tmp_path / "a.html")
    pages = [found._repr_html_(), (tmp_path / "a.html").read_text()]
    try:
        pages.append(bk.explain(model, text, method="gradient-input").render())
    except BertKerasError as error:
        assert not text.strip() and "no tokens" in str(error) and "\n" not in str(error)
    assert not any("<b>" in page for page in pages)
    assert pages[1].count("</script>") == 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m, to: bk.attention(m, ["a"]), "the text is a list"),
        (lambda m, to: bk.attention("model", "a"), "the model is a str"),
        (lambda m, to: bk.attention(m, "a").save(to / "a.gif"), "ends in .png or .svg or .html"),
        (lambda m, to: bk.attention(m, "a").save(to / "no" / "a.png"), "there is no folder"),
        (lambda m, to: bk.attention(m, "a").save(to / "a.png", layer=1), "give both"),
        (lambda m, to: bk.attention(m, "a").save(to / "a.png", layer=3, head=1), "layers 1 to 2"),
        (lambda m, to: bk.explain(m, "a", "b"), "the model reads text, and 2 texts were given"),
        (lambda m, to: bk.explain(m, "a", method="lime"), "give integrated-gradients or gradient-input"),
        (lambda m, to: bk.explain(m, "a", steps=0), "at least 1"),
        (lambda m, to: bk.explain(m, "a", method="gradient-input").save(to / "a.png"), "ends in .html"),
    ],
)
def test_wrong_arguments_are_named(call, message, model, tmp_path):
    with pytest.raises(BertKerasError, match=message):
        call(model, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_task_without_a_logit_is_refused(folder):
    with pytest.raises(BertKerasError, match="explain knows no logit of embedding"):
        bk.explain(bk.embedder(folder), "a")


@pytest.mark.parametrize("call", [bk.attention, bk.explain])
def test_an_ensemble_is_refused(call, sst2):
    with pytest.raises(BertKerasError, match="an ensemble of 2 runs was given"):
        call(load_runs([sst2.run, sst2.run]), "a")


# -----------------------------------------------------------------------------------------------------------
# Pictures and pages


@pytest.mark.parametrize("name", ["all.png", "all.svg", "one.png", "one.svg"])
def test_pictures(name, model, tmp_path):
    chosen = {"layer": 2, "head": 1} if name.startswith("one") else {}
    bk.attention(model, "a $film$ _x^ dull").save(tmp_path / name, **chosen)
    if name.endswith(".png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        return
    told = {one.strip() for one in ET.parse(tmp_path / name).getroot().itertext()}
    assert {"head", "layer"} <= told if not chosen else {"dull", "Layer 2, head 1"} <= told


def test_a_page_of_144_heads_over_128_tokens_is_under_two_megabytes(tmp_path):
    logits = np.random.default_rng(0).normal(size=(12, 12, 128, 128)).astype(np.float32)
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    Attention(tokens=("token",) * 128, weights=weights).save(tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size < 2_000_000


@pytest.fixture(scope="module")
def pages(model, tmp_path_factory):
    to = tmp_path_factory.mktemp("pages")
    for name, text in {"plain": TEXT, "hostile": " ".join(HOSTILE)}.items():
        bk.attention(model, text).save(to / f"attention-{name}.html")
        bk.explain(model, text, method="gradient-input").save(to / f"explanation-{name}.html")
    return to


@pytest.mark.long
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(
    "name", ["attention-plain", "attention-hostile", "explanation-plain", "explanation-hostile"]
)
def test_pages_in_a_browser(name, dark, pages, browser):
    visit(browser, pages / f"{name}.html", width=360, dark=dark)
    check_accessible(browser)
    assert sideways(browser) == 0 and not errors_of(browser)
    assert [one for one in requests_of(browser) if not one.startswith(("file:", "blob:"))] == []


@pytest.mark.long
def test_the_keyboard_alone_explores_the_heads(pages, browser):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    visit(browser, pages / "attention-plain.html")

    def press(*keys):
        ActionChains(browser).send_keys(*keys).perform()
        return browser.execute_script("return document.getElementById('said').textContent")

    def count_lines():
        return browser.execute_script("return document.querySelectorAll('#picture line').length")

    assert count_lines() > 20
    assert press(Keys.TAB, Keys.TAB, Keys.TAB).startswith("Layer 1 of 2, head 1 of 2. “[CLS]” reads")
    assert 0 < count_lines() <= 20
    assert "“the” reads" in press(Keys.ARROW_DOWN)
    assert press(Keys.ARROW_RIGHT).startswith("Layer 1 of 2, head 2 of 2. “the” reads")
    assert press(Keys.ARROW_RIGHT).startswith("Layer 2 of 2, head 1 of 2. “the” reads")
    assert press(Keys.ESCAPE).endswith("All tokens.") and count_lines() > 20


@pytest.mark.long
def test_a_page_without_scripts_has_the_strongest_weights(pages, browser):
    visit(browser, pages / "attention-plain.html", scripts=False)
    told = (pages / "attention-plain.html").read_text()
    assert "hidden>" in told and "Layer 2: the token that each token reads most" in told
    visit(browser, "about:blank")


# -----------------------------------------------------------------------------------------------------------
# The document, and commands


def test_the_python_of_the_document_runs(sst2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "sst2").symlink_to(sst2.run)
    page, names = (ROOT / "docs" / "look_inside.md").read_text(), {}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", page):
        exec(compile(block, "look_inside.md", "exec"), names)
    assert (tmp_path / "journey.html").exists() and (tmp_path / "why.html").exists()


def test_commands(sst2, tmp_path, capfd):
    run = ["--run", sst2.run]
    code, out, err = run_command(capfd, "attention", *run, "a dull plot", "--output", tmp_path / "a.html")
    assert (code, out) == (0, "") and (tmp_path / "a.html").exists(), err
    (tmp_path / "texts.txt").write_text("a dull plot\nvery good\n \n")
    given = ["--input", tmp_path / "texts.txt"]
    code, out, err = run_command(capfd, "attention", *run, *given, "--json", "--sort", "entropy")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(rows) == 2 and rows[0]["entropy"] >= rows[1]["entropy"], err
    code, out, err = run_command(capfd, "predict", *run, *given, "--explain", "--format", "jsonl")
    assert code == 0, err
    (first,) = json.loads(out.splitlines()[0])["explanations"]
    assert (first["words"], first["answer"]) == (
        ["a", "dull", "plot"],
        json.loads(out.splitlines()[0])["label"],
    )
    code, out, err = run_command(
        capfd, "predict", *run, *given, "--explain", "gradient-input", "--format", "table"
    )
    assert code == 0 and "for:" in out + "against:", err


@pytest.mark.parametrize(
    "flags, message",
    [
        ("x", "give --run or --checkpoint"),
        ("--checkpoint {0}", "give a text, or a file as --input"),
        ("--checkpoint {0} a b c", "3 texts were given"),
        ("--checkpoint {0} a --output a.gif", "ends in .png or .svg or .html"),
        ("--checkpoint {0} --input x --output a.png", "--output draws one text"),
        ("--checkpoint {0} a --output a.png --layer 1", "give --layer and --head"),
        ("--checkpoint {0} a b", "the model reads text, and 2 texts"),
        ("--checkpoint {0} a --layer 9", "the model has layers 1 to 1"),
    ],
)
def test_wrong_flags_are_named(flags, message, tiny, capfd):
    code, _, err = run_command(capfd, "attention", *flags.format(tiny).split())
    assert code == 1 and message in err and len(err.strip().splitlines()) == 1
