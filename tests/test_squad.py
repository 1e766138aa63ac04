"""SQuAD: files, labels, spans, the threshold, measures, and a small run from training to export."""

import dataclasses
import itertools
import json
import math
import random
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from questions import NORMANS, question, read, small, write  # noqa: F401
from runs import SIZES, write_checkpoint

from bert_keras.checkpoints.hugging_face import TASK_FILE
from bert_keras.config import BertConfig
from bert_keras.features import END_BYTES, EXAMPLE_INDEX, INPUT_MASK, MAX_CONTEXT, START_BYTES
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.batches import predict
from bert_keras.tasks.data.squad import VERSIONS
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.question_answering import NBEST, OFFSETS, PADDING_LOGIT, QuestionAnswering
from bert_keras.tasks.report import plain
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import Run, evaluate, load_run
from bert_keras.tasks.task import model_inputs
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.text.preprocessing import Preprocessor

# Model


@pytest.fixture(scope="module")
def tiny() -> tuple[QuestionAnswering, keras.Model]:
    keras.utils.set_random_seed(3)
    task = QuestionAnswering("squad2.0", doc_stride=5, max_query_length=3, max_answer_length=4, n_best=6)
    return task, task.model(BertEncoder(BertConfig(**SIZES), outputs=task.outputs))


def test_outputs_do_not_depend_on_padding(small, tiny):
    task, model = tiny
    raw = {"context": tf.constant(["good bad film", "the " * 30]), "question": tf.constant(["the", "actor"])}
    outputs = {}
    for seq_length in (20, 40):
        features = task.features(Preprocessor(small, seq_length=seq_length), raw)
        outputs[seq_length] = model(model_inputs(task, features)).numpy()
        assert outputs[seq_length].shape == (len(features[EXAMPLE_INDEX]), 2, seq_length)
        padding = np.broadcast_to(features[INPUT_MASK].numpy()[:, None] == 0, outputs[seq_length].shape)
        assert (outputs[seq_length][padding] == PADDING_LOGIT).all()
        assert (np.abs(outputs[seq_length][~padding]) < 100).all()
    np.testing.assert_allclose(outputs[20][0], outputs[40][0, :, :20], atol=1e-5)
    answers = [task.decode(outputs[n][:1], *decoding_inputs(task, small, raw, n)) for n in (20, 40)]
    for name in answers[0]:
        if answers[0][name].dtype == tf.string:
            assert answers[0][name].numpy().tolist() == answers[1][name].numpy().tolist()
        else:
            np.testing.assert_allclose(answers[0][name], answers[1][name], atol=1e-5)


def decoding_inputs(task, tokenizer, raw, seq_length):
    """Features and raw of the first example."""
    first = {name: value[:1] for name, value in raw.items()}
    return task.features(Preprocessor(tokenizer, seq_length=seq_length), first), first


def test_loss_is_the_mean_of_both_cross_entropies():
    """google-research/bert run_squad.py: half the sum of the starts' and the ends' mean."""
    logits = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    labels = np.array([[1, 2], [0, 0], [3, 4]])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    starts, ends = (-np.mean([logs[i, side, labels[i, side]] for i in range(3)]) for side in (0, 1))
    loss = QuestionAnswering("squad1.1").loss()
    assert float(loss(labels, logits, np.ones((3, 2)))) == pytest.approx((starts + ends) / 2, rel=1e-6)
    weights = np.float32([[1, 1], [0, 0], [0, 0]])
    only = -np.mean([logs[0, side, labels[0, side]] for side in (0, 1)])
    assert float(loss(labels, logits, weights)) == pytest.approx(only, rel=1e-6)


# Spans


def by_brute_force(task: QuestionAnswering, outputs, features, contexts: list[bytes]) -> list[dict]:
    """For each context its null score and every legal span, the best first."""
    found = [{"null": math.inf, "spans": []} for _ in contexts]
    rows = {name: value.numpy() for name, value in features.items()}
    for row, example in enumerate(rows[EXAMPLE_INDEX]):
        starts, ends = outputs[row].astype(np.float64)
        found[example]["null"] = min(found[example]["null"], starts[0] + ends[0])
        width = len(starts)
        for first, last in itertools.product(range(width), range(width)):
            legal = rows[MAX_CONTEXT][row, first] and rows[END_BYTES][row, last] >= 0
            if legal and first <= last < first + task.max_answer_length:
                place = rows[START_BYTES][row, first], rows[END_BYTES][row, last]
                found[example]["spans"].append((starts[first] + ends[last], *place))
    for one in found:
        one["spans"] = sorted(one["spans"], reverse=True)[: task.n_best]
    return found


CONTEXTS = [
    "good bad warm dull film plot actor scene the its is and very good bad warm dull film plot actor scene",
    "",
    "a",
    "\u0001 \u0002",
    "Çà et là: naïve ﬁlm",
    "这部电影很好看" * 3,
    "very very",
]


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("longest", [1, 4, 100])
def test_spans_against_brute_force(small, name, longest):
    task = QuestionAnswering(
        name, doc_stride=3, max_query_length=3, max_answer_length=longest, n_best=8, tau=0.25
    )
    questions = ["the", "", "who is it", "a", "", "谁", "scene"]
    raw = {"context": tf.constant(CONTEXTS), "question": tf.constant(questions)}
    features = task.features(Preprocessor(small, seq_length=16, pad_to_longest=True), raw)
    shape = (len(features[EXAMPLE_INDEX]), 2, features[INPUT_MASK].shape[1])
    outputs = np.random.default_rng(longest).normal(size=shape).astype(np.float32) * 3
    outputs[np.isin(features[EXAMPLE_INDEX], [0, 5]), :, 0] += 9  # so that some are better left unanswered
    decode = tf.function(task.decode, autograph=False)
    got = {key: value.numpy() for key, value in decode(outputs, features, raw).items()}
    assert all(np.isfinite(value).all() for value in got.values() if value.dtype == np.float32)

    answered = set()
    contexts = [context.encode() for context in CONTEXTS]
    for i, one in enumerate(by_brute_force(task, outputs, features, contexts)):
        spans, count = one["spans"], len(one["spans"])
        assert got["nbest_starts"][i].tolist() == [a for _, a, _ in spans] + [-1] * (8 - count)
        assert got["nbest_ends"][i].tolist() == [b for _, _, b in spans] + [-1] * (8 - count)
        places = (got[f"nbest_character_{side}"][i, :count] for side in ("starts", "ends"))
        sliced = [CONTEXTS[i][a:b].encode() for a, b in zip(*places, strict=True)]
        texts = [contexts[i][a:b] for _, a, b in spans]
        assert sliced == texts
        assert got["nbest_answers"][i].tolist() == texts + [b""] * (8 - count)
        weights = np.exp([score for score, _, _ in spans])
        total = weights.sum() + (math.exp(one["null"]) if name == "squad2.0" else 0)
        np.testing.assert_allclose(got["nbest_probabilities"][i, :count], weights / total, rtol=1e-4)
        assert (got["nbest_probabilities"][i, count:] == 0).all()

        best = spans[0][0] if spans else -math.inf
        answers = bool(spans) and (name == "squad1.1" or best > one["null"] + 0.25)
        expected = (texts[0], *spans[0][1:]) if answers else (b"", -1, -1)
        assert (got["answer"][i], got["start_byte"][i], got["end_byte"][i]) == expected
        assert CONTEXTS[i][slice(got["start"][i], got["end"][i])] == expected[0].decode() or not answers
        shares = weights / total
        score = shares[0] if answers else 1 - shares.sum() if name == "squad2.0" else 0
        assert got["score"][i] == pytest.approx(score, rel=1e-4, abs=1e-6)
        if name == "squad2.0":
            odds = one["null"] - best
            no_answer = 1 / (1 + math.exp(-min(odds + 0.25, 500)))
            assert got["no_answer_probability"][i] == pytest.approx(no_answer, rel=1e-4)
            assert got["null_odds"][i] == pytest.approx(min(odds, 1e9), rel=1e-4)
        answered.add((bool(spans), answers))
    assert (False, False) in answered and (True, True) in answered
    assert ((True, False) in answered) == (name == "squad2.0")
    assert (got.keys() >= {"no_answer_probability", "null_odds"}) == (name == "squad2.0")


def test_decoding_an_empty_batch(small):
    task = QuestionAnswering("squad2.0", max_query_length=3)
    raw = {name: tf.constant([], tf.string) for name in ("question", "context")}
    features = task.features(Preprocessor(small, seq_length=16, pad_to_longest=True), raw)
    got = task.decode(tf.zeros([0, 2, features[INPUT_MASK].shape[1]]), features, raw)
    assert {name: value.shape.as_list() for name, value in got.items()} == {
        **dict.fromkeys(("answer", "score", *OFFSETS), [0]),
        **dict.fromkeys(("no_answer_probability", "null_odds"), [0]),
        **dict.fromkeys(NBEST, [0, 20]),
    }


# Measures


def predictions_of(task: QuestionAnswering, count: int, *, seed: int) -> tuple[dict, dict]:
    """Possible outputs of decode, and the questions; the odds say something about which have an answer."""
    draw = np.random.default_rng(seed)
    texts = np.array(["the film", "a plot", "scene", "film plot scene", "warm"])
    gold = draw.integers(-3, 5, count)
    best = np.where(draw.random(count) < 0.6, np.maximum(gold, 0), draw.integers(0, 5, count))
    odds = (np.where(gold < 0, 5, 3) + draw.normal(size=count)).astype(np.float32)
    starts = np.tile(np.arange(task.n_best, dtype=np.int32), (count, 1))
    nbest = {
        "nbest_answers": np.array([[texts[i].encode()] * task.n_best for i in best], object),
        "nbest_starts": starts,
        "nbest_ends": starts + 1,
        "nbest_character_starts": starts,
        "nbest_character_ends": starts + 1,
        "nbest_probabilities": np.full((count, task.n_best), 0.01, np.float32),
        "null_odds": odds,
    }
    answers = [json.dumps([] if i < 0 else [texts[i]]) for i in gold]
    raw = {"answers": np.array([text.encode() for text in answers], object)}
    raw["question"] = np.array([b"Who is it?", b"What, then?"] * count, object)[:count]
    decoded = {name: value.numpy() for name, value in task._answered(nbest).items()}
    return nbest | decoded, raw


def test_measures_of_both_versions():
    rows = [("The film.", ["film"]), ("a plot", ["scene"]), ("", []), ("warm film", ["dull film", "film"])]
    predictions = {"answer": np.array([answer.encode() for answer, _ in rows], object)}
    raw = {"answers": np.array([json.dumps(golds).encode() for _, golds in rows], object)}
    answered = {name: value[[0, 1, 3]] for name, value in predictions.items()}
    got = dict(QuestionAnswering("squad1.1").evaluate(answered, {"answers": raw["answers"][[0, 1, 3]]}))
    assert got == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 0 + 2 / 3) / 3})

    predictions["nbest_answers"] = np.array([[b"film"], [b"a plot"], [b"a plot"], [b"warm film"]], object)
    predictions["null_odds"] = np.float32([-3, 2, 1, -1])
    got = dict(QuestionAnswering("squad2.0").evaluate(predictions, raw))
    exact, f1 = 100 * 2 / 4, 100 * (1 + 0 + 1 + 2 / 3) / 4
    wanted = {"exact_match": exact, "f1": f1, "HasAns_exact": 100 / 3, "HasAns_f1": 100 * (1 + 0 + 2 / 3) / 3}
    wanted |= {"NoAns_exact": 100, "NoAns_f1": 100}
    # Best with the third unanswered and the first answered.
    wanted |= {"best_exact": exact, "best_exact_tau": 0, "best_f1": f1, "best_f1_tau": 0}
    assert got == pytest.approx(wanted)


def test_google_predictions(data_dir):
    """Google's published ensemble on the questions that XQuAD shares with the dev set of SQuAD 1.1."""
    task = QuestionAnswering("squad1.1", data_dir / "squad" / "xquad.en.json")
    published = json.loads((data_dir / "squad/predictions/v1.1_BERT_ensemble_GoogleAI.json").read_text())
    raw = read(task, "validation")
    answers = np.array([published[id_.decode()].encode() for id_ in raw["id"]], object)
    got = dict(task.evaluate({"answer": answers}, raw))
    assert got == {"exact_match": pytest.approx(74.8739, abs=5e-5), "f1": pytest.approx(86.3247, abs=5e-5)}


@pytest.mark.parametrize("kind", ["random", "empty"])
def test_thresholds_of_6078_questions(data_dir, kind):
    """Against the definition: a question whose odds are over the threshold scores as unanswered; try every threshold."""
    task = QuestionAnswering("squad2.0", data_dir / "squad" / "squad2.0_dev_subset_6078.json")
    raw = read(task, "validation")
    golds = [json.loads(answers) for answers in raw["answers"]]
    draw = np.random.default_rng(1)
    texts = [
        "" if kind == "empty" else draw.choice([*gold, context.decode()[:12], "the"])
        for gold, context in zip(golds, raw["context"], strict=True)
    ]
    answers = np.array([text.encode() for text in texts], object)
    has_answer = np.array([bool(gold) for gold in golds])
    odds = (draw.normal(size=len(golds)) - has_answer).astype(np.float32)
    predictions = {"answer": answers, "nbest_answers": answers[:, np.newaxis], "null_odds": odds}
    got = dict(task.evaluate(predictions, raw))
    for name, measure in (("exact", "exact_match"), ("f1", "f1")):
        raw_scores = task._scores(answers, raw)[measure]
        tried = [np.where(odds > t, ~has_answer, raw_scores).mean() for t in [-np.inf, *odds]]
        assert got[f"best_{name}"] == pytest.approx(100 * max(tried))
        reached = np.where(odds > -got[f"best_{name}_tau"], ~has_answer, raw_scores).mean()
        assert 100 * reached == pytest.approx(got[f"best_{name}"])
    sizes = {"HasAns": 2910, "NoAns": 3168}
    mean = sum(count * got[f"{group}_f1"] for group, count in sizes.items()) / 6078
    assert mean == pytest.approx(got["f1"])
    if kind == "empty":
        assert (got["HasAns_f1"], got["NoAns_f1"]) == (0, 100)
        assert got["best_f1"] == pytest.approx(100 * 3168 / 6078)
        assert got["best_f1_tau"] == pytest.approx(0, abs=1)


@pytest.mark.parametrize("seed", range(3))
def test_calibrate_returns_a_task_with_the_best_threshold(seed):
    """The new task has the best of all thresholds, decodes by it, and leaves the old task as it was."""
    task = QuestionAnswering("squad2.0", n_best=2)
    predictions, raw = predictions_of(task, 60, seed=seed)
    before = dict(task.evaluate(predictions, raw))
    new, calibrated = task.calibrate(predictions, raw)
    after = dict(new.evaluate(calibrated, raw))
    assert new.tau == before["best_f1_tau"] < -1
    assert task.tau == 0 and dict(task.evaluate(predictions, raw)) == before
    assert after["f1"] == pytest.approx(before["best_f1"]) and after["f1"] > before["f1"]
    for odds in predictions["null_odds"]:  # no other threshold does better
        trial = QuestionAnswering("squad2.0", n_best=2, tau=-float(odds))
        decided = {name: value.numpy() for name, value in trial._answered(predictions).items()}
        assert dict(trial.evaluate(predictions | decided, raw))["f1"] <= after["f1"] + 1e-9

    kept = QuestionAnswering.from_json(json.loads(json.dumps(new.to_json())))
    decided = kept._answered(predictions)
    for name, value in decided.items():
        np.testing.assert_array_equal(calibrated[name], value.numpy())
    assert set(calibrated) == set(predictions)


def test_calibrate_of_squad_1_1_does_nothing():
    task = QuestionAnswering("squad1.1")
    predictions = {"answer": np.array([b"x"], object)}
    assert task.calibrate(predictions, {}) == (task, predictions) and task.calibrated == ()


# For people


def test_record_and_show():
    task = QuestionAnswering("squad2.0", n_best=3)
    context = f"{'很' * 50}\n{NORMANS}"
    start, first = context.encode().index(b"France"), context.index("France")
    decoded = {
        "answer": np.array(b"France", object)[()],
        "score": np.float32(0.75),
        "start": np.int32(first),
        "end": np.int32(first + 6),
        "start_byte": np.int32(start),
        "end_byte": np.int32(start + 6),
        "no_answer_probability": np.float32(0.125),
        "null_odds": np.float32(-2),
        "nbest_answers": np.array([b"France", b"Rollo", b""], object),
        "nbest_starts": np.int32([start, start + 8, -1]),
        "nbest_ends": np.int32([start + 6, start + 13, -1]),
        "nbest_character_starts": np.int32([first, first + 8, -1]),
        "nbest_character_ends": np.int32([first + 6, first + 13, -1]),
        "nbest_probabilities": np.float32([0.75, 0.125, 0]),
    }
    record = task.record(decoded)

    def place(ahead, length):
        starts = {"start": first + ahead, "start_byte": start + ahead}
        return starts | {"end": first + ahead + length, "end_byte": start + ahead + length}

    assert record == {
        "answer": "France",
        "score": 0.75,
        **place(0, 6),
        "no_answer_probability": 0.125,
        "null_odds": -2.0,
        "nbest": [
            {"answer": "France", "probability": 0.75, **place(0, 6)},
            {"answer": "Rollo", "probability": 0.125, **place(8, 5)},
        ],
    }
    assert json.loads(json.dumps(record)) == record == plain(record)
    example = {"question": "Where?", "context": context}
    assert task.show(example, record) == {
        "question": "Where?",
        "answer": "… ave their name to Normandy, a region in [France]. Rollo led them.",
        "probability": "0.7500",
    }
    nothing = record | {"answer": "", "start": -1, "end": -1}
    assert task.show(example, nothing)["answer"] == "(none)"
    assert task.show(example, nothing)["probability"] == "0.1250"


def test_report():
    for name in VERSIONS:
        task = QuestionAnswering(name, n_best=2)
        predictions, raw = predictions_of(QuestionAnswering("squad2.0", n_best=2), 60, seed=1)
        if name == "squad1.1":
            raw["answers"] = np.array(
                [answers.replace(b"[]", b'["x"]') for answers in raw["answers"]], object
            )
        groups, errors = task.report(predictions, raw)
        kinds = {"answerable", "unanswerable"} if name == "squad2.0" else {"who", "what"}
        assert {row[0] for row in groups.rows} == kinds and sum(row[1] for row in groups.rows) == 60
        measures = dict(task.evaluate(predictions, raw))
        for column, measure in ((2, "exact_match"), (3, "f1")):
            mean = sum(row[1] * row[column] for row in groups.rows) / 60
            assert mean == pytest.approx(measures[measure])
        assert len(errors.rows) == 10 and len(errors.columns) == len(errors.rows[0]) == 4
        assert [row[3] for row in errors.rows] == sorted((row[3] for row in errors.rows), reverse=True)
        for _, gold, predicted, _ in errors.rows:
            assert gold != predicted


# From a checkpoint to a SavedModel

WORDS = "good bad warm dull scene the its is and very".split()


OPTIONS = {"doc_stride": 8, "max_query_length": 4, "max_answer_length": 4, "n_best": 4}


def marked(count: int, *, seed: int) -> list[dict]:
    """The answer is "film plot" or "actor", in a context of several windows; every third question has none."""
    draw = random.Random(seed)
    made = []
    for i in range(count):
        words = draw.choices(WORDS, k=draw.randint(12, 36))
        answers = draw.choices(("film plot", "actor")) if i % 3 else []
        words[draw.randrange(len(words))] = "".join(answers) or "the"
        made.append(question(f"{seed}-{i}", " ".join(words), *answers, text="the scene"))
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    data: Path
    run: Path
    results: dict


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("squad")
    write(folder / "data" / "train.json", *marked(48, seed=1))
    write(folder / "data" / "dev.json", *marked(30, seed=2))
    task, checkpoint = QuestionAnswering("squad2.0", folder / "data", **OPTIONS), folder / "checkpoint"
    hparams = Hparams(batch_size=8, epochs=2, learning_rate=2e-3, seq_length=24)
    places = {"checkpoint": write_checkpoint(checkpoint), "output": folder / "run"}
    results = finetune(task, **places, hparams=hparams, verbose=0, log=lambda line: None)
    return Trained(data=folder / "data", run=folder / "run", results=results)


@pytest.fixture(scope="module")
def run(trained) -> Run:
    return load_run(trained.run, data=trained.data)


@pytest.mark.long
def test_a_tiny_model_learns(trained):
    measures = trained.results["measures"]
    assert measures["val_f1"] > 90 and measures["val_NoAns_f1"] > 80 and measures["val_HasAns_f1"] > 80
    assert json.loads((trained.run / RESULTS_FILE).read_text())["measures"] == measures


@pytest.mark.long
def test_a_reloaded_run_has_the_same_measures(trained, run):
    assert run.task.to_json() == json.loads((trained.run / TASK_FILE).read_text())["task"]
    assert run.task.to_json().items() >= (OPTIONS | {"name": "squad2.0"}).items()
    measures = evaluate(run, "validation", batch_size=7)
    kept = {name.removeprefix("val_"): value for name, value in trained.results["measures"].items()}
    kept.pop("loss", None)
    for name in ("exact_match", "f1", "HasAns_f1", "NoAns_f1"):
        assert measures[name] == pytest.approx(kept[name], abs=1e-4), name


@pytest.mark.long
def test_an_ensemble_averages_tau(trained, tmp_path):
    other = shutil.copytree(trained.run, tmp_path / "other")
    content = json.loads((other / TASK_FILE).read_text())
    tau = content["task"]["tau"]
    content["task"]["tau"] = tau + 3
    (other / TASK_FILE).write_text(json.dumps(content))
    both = load_runs([trained.run, other], data=trained.data)
    assert both.task.tau == pytest.approx(tau + 1.5)
    examples = both.task.examples("validation").take(5)
    got, _ = predict(both.task, both.preprocess, both.model, examples)
    probability = 1 / (1 + np.exp(-(got["null_odds"] + tau + 1.5)))
    np.testing.assert_allclose(got["no_answer_probability"], probability, rtol=1e-3, atol=1e-7)
