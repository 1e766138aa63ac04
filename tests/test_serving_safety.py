"""Exports of every task in a process that has neither this package nor Keras: their answers, hostile requests, fine-tuning."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, DOCUMENT, meta_graph, section, untrained, written
from runs import ROOT, texts, write_checkpoint

from bert_keras.savedmodels import reload
from bert_keras.savedmodels.export import check_ops, foreign_ops, ops_of, sample_inputs, save, servable_of
from bert_keras.savedmodels.verify import BOUNDS, EXTRA
from bert_keras.tasks.batches import predict
from bert_keras.tasks.task import model_inputs, with_label_names

# Each differs from another case by its labels or texts alone; its signatures are compared with the document all the same.
ALIKE = ("Classification of pairs", "Regression", "Next sentence", "Sentence embedding")
# Everything is asked at once, in the first test.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TEXTS = [*texts(6, seed=1), "", "Naïve ﬁlm: 真好 \N{GRINNING FACE}", "[SEP] good [MASK]", "bad " * 200]
FEATURES = slice(0, 3)  # the texts that are asked as features too


def plain(outputs) -> dict:
    return {name: reload.plain(np.asarray(value).tolist()) for name, value in outputs.items()}


def named(task, answers) -> dict:
    return with_label_names(
        task, {name: np.asarray(value) for name, value in answers.items()}, np.broadcast_to
    )


@pytest.fixture(scope="module")
def asked(request, tmp_path_factory) -> dict[str, dict]:
    """For each case what is expected of it and, if a chosen test asks it, what a fresh process found."""
    folder, checkpoint = tmp_path_factory.mktemp("exports"), tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(checkpoint)
    requests, expected = {}, {}
    for case, task in CASES.items():
        run = untrained(task, checkpoint)
        servable, raw, place = (
            servable_of(run),
            sample_inputs(task.signature(), TEXTS),
            folder / "written" / case,
        )
        place.mkdir(parents=True)
        save(run, servable, place, name="model", version=1)
        few = {name: tf.constant(values[FEATURES]) for name, values in raw.items()}
        features = model_inputs(task, task.features(run.preprocess, few))
        asked = {name: value.numpy().tolist() for name, value in features.items()}
        requests[case] = {"folder": str(folder / "else where" / case), "raw": raw, "features": asked}
        answers, _ = predict(
            task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(raw), batch_size=4
        )
        expected[case] = {
            "answers": plain(named(task, answers)),
            "features": plain(named(task, task.decode_features(run.model(features)))),
            "trainable": len(run.model.trainable_variables),
            "section": section(case, servable.signatures()),
            "folder": folder / "else where" / case,
        }
    own = (item for item in request.session.items if item.path == request.path)
    chosen = {*CASES} - {*ALIKE} | {
        item.callspec.params.get("case") for item in own if hasattr(item, "callspec")
    }
    (folder / "written").rename(folder / "else where")  # nothing is where it was written
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fresh_process.py")), str(ROOT / "savedmodels")],
        input=json.dumps({case: asked for case, asked in requests.items() if case in chosen}),
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    return {case: {"wanted": expected[case], **found.get(case, {})} for case in CASES}


@pytest.fixture(
    params=[pytest.param(case, marks=pytest.mark.slow) if case in ALIKE else case for case in CASES]
)
def case(request, asked) -> dict:
    return asked[request.param]


def assert_equal(found: dict, wanted: dict) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        value = np.asarray(value)
        if value.dtype.kind in "US":
            assert found[name] == value.tolist(), name
        else:
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)


def test_it_answers_as_predict_does(case):
    assert_equal(case["answers"], case["wanted"]["answers"])
    # The texts are told apart.
    assert any(len({json.dumps(value) for value in values}) > 1 for values in case["answers"].values())


def test_every_signature_and_loader_answers_alike(case):
    assert_equal(case["examples"], case["answers"])
    assert_equal(case["session"], case["answers"])
    assert_equal(case["features"], case["wanted"]["features"])
    assert {len(value) for value in case["no examples"].values()} == {0}


def test_ragged_lists_are_the_padded_ones_without_filling(asked):
    for title, task in CASES.items():
        if title in ALIKE:
            continue
        ragged, padded = asked[title]["ragged"], asked[title]["answers"]
        assert (ragged is None) == (not task.lists)
        for prefix, filling in task.lists.items():
            splits = ragged[f"{prefix}_row_splits"]
            assert len(splits) == len(TEXTS) + 1 and splits[-1] == len(ragged[filling]) > 0
            for row, kept in enumerate(padded[filling]):
                count = sum(value >= 0 for value in kept)
                assert splits[row + 1] - splits[row] == count
                for name in (name for name in padded if name.startswith(f"{prefix}_")):
                    assert ragged[name][splits[row] : splits[row + 1]] == padded[name][row][:count]


def test_spans_are_bytes_and_characters_of_the_text(asked):
    found = 0
    for title, texts_of, start, end, source in (
        ("Question answering", "nbest_answers", "nbest_starts", "nbest_ends", "context"),
        ("Question answering", "nbest_answers", "nbest_character_starts", "nbest_character_ends", "context"),
        ("Named entities", "entity_text", "entity_start_byte", "entity_end_byte", "text"),
        ("Named entities", "entity_text", "entity_start", "entity_end", "text"),
        ("Word features", "word_text", "word_start_byte", "word_end_byte", "text"),
    ):
        answers, raw = asked[title]["answers"], sample_inputs(CASES[title].signature(), TEXTS)
        for text, cut, first, last in zip(
            raw[source], *(answers[name] for name in (texts_of, start, end)), strict=True
        ):
            spans = zip(*(np.ravel(values).tolist() for values in (cut, first, last)), strict=True)
            for piece, a, b in spans:
                characters = start.endswith("start") or "character" in start
                cut_again = text[a:b] if characters else text.encode()[a:b].decode()
                assert piece == (cut_again if a >= 0 else "")
                found += a >= 0
    assert found > 100


def test_scores_have_their_bounds_beside_them(asked):
    files = {case: asked[case]["wanted"]["folder"] / EXTRA / BOUNDS for case in CASES}
    assert {case: json.loads(file.read_text()) for case, file in files.items() if file.is_file()} == {
        "Regression": [0.0, 5.0]
    }


def test_no_string_crashes_the_process(case):
    assert len(case["hostile"]) == 9 and all(case["hostile"].values())
    assert case["after all that"]


def test_the_documented_signatures_are_these(asked):
    assert written(DOCUMENT.read_text()) == "".join(asked[case]["wanted"]["section"] for case in CASES), (
        "docs/serving.md is old: PYTHONPATH=. python tests/exports.py"
    )


# The error of each wrong request.
REFUSED = {
    "another batch": "InvalidArgumentError.* differ in shape",
    "another length": "InvalidArgumentError.* differ in shape",
    "an id too large": "InvalidArgumentError.*input_word_ids has a number outside of 0 to ",
    "a negative id": "InvalidArgumentError.*input_word_ids has a number outside of 0 to ",
    "a type too large": "InvalidArgumentError.*input_type_ids has a number outside of 0 to ",
    "longer than the encoder": "InvalidArgumentError.*has rows of over ",
    "garbage": "InvalidArgumentError.*examples: expected serialized tf.Example",
    "no feature": r"InvalidArgumentError.*Feature: \w+ \(data type: string\) is required",
    "half of an example": "InvalidArgumentError",
    "dtype": "InvalidArgumentError.*expected to be a string tensor",
    "rank": "InvalidArgumentError.*is not compatible with expected shape",
    "no rank": "InvalidArgumentError.*is not compatible with expected shape",
    "rank of examples": "InvalidArgumentError.*is not compatible with expected shape",
    "no such input": "TypeError.*missing a required argument",
    "no such signature": "KeyError",
}


def test_wrong_requests_are_refused(case):
    kinds = {name: case["refused"].pop(name) for name in REFUSED}
    for name, pattern in REFUSED.items():
        assert kinds[name] and re.search(pattern, kinds[name], re.DOTALL), (name, kinds[name])
    for name, error in case["refused"].items():  # one input shorter than the other
        assert re.search("InvalidArgumentError.* differ in shape", error, re.DOTALL), (name, error)


def test_ops_of_every_server_since_2_10(case):
    ops = ops_of(meta_graph(case["wanted"]["folder"]).graph_def)
    assert foreign_ops(ops) == {"NormalizeUTF8", "FastWordpieceTokenizeWithOffsets"}
    check_ops(ops, "tfserving-2.10")


def test_it_can_be_trained_on(case):
    found = case["training"]
    assert found["trainable"] == case["wanted"]["trainable"] < found["variables"]
    assert found["unused"] == 0
    assert found["dropout"] > 1e-5 and found["without"] < 1e-6
    assert found["after"] < 0.98 * found["before"]
    assert case["serving what was learned"]
