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
from runs import SIZES, VOCABULARY, write_checkpoint

from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.features import (
    END_BYTES,
    EXAMPLE_INDEX,
    INPUT_MASK,
    INPUT_WORD_IDS,
    MAX_CONTEXT,
    START_BYTES,
)
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece
from savedmodels.export import export
from tasks.batches import dataset, predict
from tasks.display import plain
from tasks.settings import Hparams
from tasks.squad.data import VERSIONS
from tasks.squad.task import PADDING_LOGIT, Squad
from tasks.task import model_inputs
from tasks.training.ensemble import load_runs
from tasks.training.finetune import finetune
from tasks.training.loop import RESULTS_FILE, TASK_FILE
from tasks.training.run_folder import Run, evaluate, load_run

NORMANS = "The Normans gave their name to Normandy, a region in France. Rollo led them."
CHINESE = "北京是中华人民共和国的首都,位于华北平原的北部。全市常住人口为2189万人,面积16410平方公里。"


def question(id_: str, context: str, *answers: str | tuple[str, int], text: str = "who?") -> dict:
    """A question about a context; an answer stands at its first place, or where it says."""
    places = [(a, context.index(a)) if isinstance(a, str) else a for a in answers]
    return {
        "id": id_,
        "question": text,
        "context": context,
        "answers": [{"text": answer, "answer_start": start} for answer, start in places],
    }


def write(path: Path, *questions: dict) -> Path:
    """A file in SQuAD's form, a paragraph for each question."""
    paragraphs = [
        {"context": entry["context"], "qas": [{k: v for k, v in entry.items() if k != "context"}]}
        for entry in questions
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "any", "data": [{"title": "any", "paragraphs": paragraphs}]}))
    return path


def read(task: Squad, split: str) -> dict[str, np.ndarray]:
    """All examples of a split, column by column."""
    return next(task.examples(split).batch(100_000).as_numpy_iterator())


@pytest.fixture(scope="module")
def small() -> WordPiece:
    return WordPiece(VOCABULARY, lower_case=True)


# Files


@pytest.mark.parametrize(
    ("file", "name", "count", "impossible"),
    [
        ("squad1.1_train_subset_11877.json", "squad1.1", 11877, 0),
        ("xquad.en.json", "squad1.1", 1190, 0),
        ("squad2.0_dev_subset_6078.json", "squad2.0", 6078, 3168),
        ("squad2.0_dev_small.json", "squad2.0", 14, 6),
    ],
)
def test_real_files(data_dir, file, name, count, impossible):
    """Every first answer is found, also as training data: nothing is left out."""
    raw = read(Squad(name, data_dir / "squad" / file), "train")
    golds = [json.loads(answers) for answers in raw["answers"]]
    assert len(golds) == count == len(set(raw["id"]))
    assert sum(not gold for gold in golds) == impossible
    for gold, context, start, end in zip(
        golds, raw["context"], raw["answer_start"], raw["answer_end"], strict=True
    ):
        assert (start, end) == (-1, -1) if not gold else context[start:end].decode() == gold[0]


def test_examples_of_a_small_file(tmp_path):
    path = write(
        tmp_path / "dev.json",
        question("q1", CHINESE, "华北平原", "平原", text="在哪里?"),
        question("q2", NORMANS) | {"is_impossible": True},
    )
    context = CHINESE.encode()
    expected = {
        "id": [b"q1", b"q2"],
        "question": ["在哪里?".encode(), b"who?"],
        "context": [context, NORMANS.encode()],
        "answers": ['["华北平原", "平原"]'.encode(), b"[]"],
        "answer_start": [context.index("华北".encode()), -1],
        "answer_end": [context.index("的北部".encode()), -1],
    }
    for source in (path, tmp_path, {"validation": path}):
        examples = Squad("squad2.0", source).examples("validation")
        assert examples.cardinality() == 2
        got = read(Squad("squad2.0", source), "validation")
        assert {name: value.tolist() for name, value in got.items()} == expected
    assert {name: (spec.shape, spec.dtype) for name, spec in examples.element_spec.items()} == {
        **dict.fromkeys(("id", "question", "context", "answers"), ((), tf.string)),
        **dict.fromkeys(("answer_start", "answer_end"), ((), tf.int32)),
    }


def test_official_file_names_take_precedence(tmp_path):
    write(tmp_path / "train.json", question("other", NORMANS, "France"))
    write(tmp_path / "train-v1.1.json", question("official", NORMANS, "France"))
    assert read(Squad("squad1.1", tmp_path), "train")["id"] == [b"official"]
    assert read(Squad("squad2.0", tmp_path), "train")["id"] == [b"other"]


def test_misplaced_answers(tmp_path):
    """Left out of training under one warning; kept elsewhere, with no weight, for only the text counts."""
    path = write(
        tmp_path / "any.json",
        question("q1", NORMANS, ("France", 3)),
        question("q2", NORMANS, "France"),
        question("q3", NORMANS, ("France", -1), "Rollo"),
        question("q4", NORMANS, ("France", 4000)),
        question("q5", NORMANS, (" ", 3)),
        question("q6", "Fra\u200bnce\n\x01", ("\u200b", 3)),
        question("q7", "Fra\u200bnce\n\x01", ("\n\x01", 7)),
    )
    task = Squad("squad1.1", path)
    with pytest.warns(UserWarning, match="any.json: skipped 6 questions .* first q1") as caught:
        assert read(task, "train")["id"] == [b"q2"]
    assert len(caught) == 1
    raw = read(task, "validation")
    assert raw["id"].tolist() == [b"q1", b"q2", b"q3", b"q4", b"q5", b"q6", b"q7"]
    assert raw["answer_start"].tolist() == [-1, NORMANS.index("France"), -1, -1, -1, -1, -1]


GOOD = question("q7", NORMANS, "France")
BAD = [
    (b'{"data": [', "any.json is not JSON: .* line 1 column 11"),
    (b"\xff{}", "any.json, line 1, byte 1: 0xff is not UTF-8"),
    ([], "any.json: 'data' is missing; .* list"),
    ({"data": [{"title": "x"}]}, r"any.json, data\[0\]: 'paragraphs' is missing; .* list"),
    (
        {"data": [{"paragraphs": [{"qas": []}]}]},
        r"data\[0\].paragraphs\[0\]: 'context' is missing; .* string",
    ),
    ({"data": []}, "any.json has no questions"),
    ([GOOD | {"id": 7}], r"data\[0\].paragraphs\[0\].qas\[0\]: 'id' is 7; .* string"),
    (
        [GOOD | {"answers": [{"text": "France", "answer_start": "2"}]}],
        r"'answer_start' is '2'; .* whole number",
    ),
    (
        [GOOD | {"answers": {"text": ["x" * 99]}}],
        r"q7: 'answers' is {'text': \['x{37}\.\.\.x{38}'\]}; .* list",
    ),
    ([GOOD | {"question": None}], "any.json, question q7: 'question' is None; .* string"),
    ([{k: v for k, v in GOOD.items() if k != "answers"}], "question q7: 'answers' is missing; .* list"),
    ([GOOD | {"answers": [{"text": "France"}]}], "question q7: 'answer_start' is missing; .* whole number"),
    ([GOOD | {"answers": [{"answer_start": 1}]}], "question q7: 'text' is missing; .* string"),
    ([GOOD | {"answers": ["France"]}], "question q7: 'text' is missing; .* string"),
    ([GOOD | {"is_impossible": True}], "question q7: is_impossible is true with 1 answers"),
    ([question("q7", NORMANS) | {"is_impossible": False}], "q7: is_impossible is false with 0 answers"),
    ([question("q7", NORMANS)], "question q7: .* no answer, but SQuAD 1.1 .* squad2.0"),
    ([GOOD, GOOD], "question q7: the id occurs twice"),
    ([question("q7", " \n")], "question q7: the context is empty"),
    ([question("q7", NORMANS, ("", 0))], "question q7: the text of an answer is empty"),
    ([GOOD | {"question": "\ud83d"}], r"question q7: \\ud83d is half a character"),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=range(len(BAD)))
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "any.json"
    if isinstance(content, list) and content:
        write(path, *content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(ValueError, match=message) as caught:
        Squad("squad1.1", path).examples("validation")
    assert "\n" not in str(caught.value)


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="there is no 'squad3'; .* squad1.1, squad2.0"):
        Squad("squad3")
    for option in Squad.options:
        with pytest.raises(ValueError, match=f"{option} is 0; {option} must be at least 1"):
            Squad("squad1.1", **{option: 0})
    with pytest.raises(FileNotFoundError, match="train-v1.1.json or train.json.* no files"):
        Squad("squad1.1", tmp_path).examples("train")
    with pytest.raises(ValueError, match="there is no split 'test'; the splits are train, validation"):
        Squad("squad1.1", tmp_path).examples("test")


@pytest.mark.parametrize("name", VERSIONS)
def test_tensorflow_datasets(tmp_path, name):
    """The real data set's features, filled with one example; answers stand at a character, not a byte."""
    tfds = pytest.importorskip("tensorflow_datasets")
    row = {"id": "q1", "title": "x", "context": CHINESE, "question": "?"}
    row["answers"] = {"text": ["首都", "平原"], "answer_start": [11, 18]}
    if VERSIONS[name].unanswerable:
        row |= {"is_impossible": False, "plausible_answers": {"text": [], "answer_start": []}}

    def filled(builder, *args, **kwargs) -> tf.data.Dataset:
        spec = builder.info.features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: [row], output_signature=spec)

    with tfds.testing.mock_data(data_dir=str(tmp_path), as_dataset_fn=filled):
        raw = read(Squad(name), "train")
    assert raw["answers"] == ['["首都", "平原"]'.encode()]
    assert raw["context"][0][raw["answer_start"][0] : raw["answer_end"][0]].decode() == "首都"


def test_files_and_tensorflow_datasets_give_equal_examples(tmp_path):
    write(tmp_path / "dev.json", GOOD)
    assert set(read(Squad("squad1.1", tmp_path), "validation")) == {
        *("id", "question", "context", "answers", "answer_start", "answer_end")
    }


# Labels


def pieces_of(tokenizer: WordPiece, context: str, start: int, end: int) -> list[int]:
    """The tokens that share a byte with an answer."""
    _, starts, ends = (values[0].numpy().tolist() for values in tokenizer.tokenize_with_offsets([context]))
    return [i for i, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < end and b > start]


def test_labels_of_drawn_windows(small, tmp_path):
    path = write(
        tmp_path / "dev.json",
        question("q1", "good bad warm dull film", "warm dull", text="the"),
        question("q2", "good bad warm", text="the"),
        question("q3", "good bad", ("warm", 0), text="the"),
        question("q4", "good \u0301 bad", "\u0301", text="the"),  # an accent alone, which goes
    )
    task = Squad("squad2.0", path, doc_stride=2, max_query_length=1)
    raw = {name: tf.constant(value) for name, value in read(task, "validation").items()}
    features = task.features(Preprocessor(small, seq_length=7), raw)
    labels, weights = task.labels(raw, features)
    #                       [CLS] the [SEP] good bad warm [SEP]; .. warm dull film ..; q2; q3; q4
    assert features[EXAMPLE_INDEX].numpy().tolist() == [0, 0, 1, 2, 3]
    assert labels.numpy().tolist() == [[0, 0], [3, 4], [0, 0], [0, 0], [0, 0]]
    assert weights.numpy().tolist() == [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]]
    assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)


def recovered(task: Squad, raw: dict[str, np.ndarray], preprocess: Preprocessor) -> list[bytes]:
    """The labels' spans in the original bytes, one for each question; b"" where no window holds the answer."""
    features = task.features(preprocess, raw)
    labels, _ = task.labels(raw, features)
    rows = {name: features[name].numpy() for name in (START_BYTES, END_BYTES, EXAMPLE_INDEX)}
    found = [b""] * len(raw["id"])
    for row, (first, last) in enumerate(labels.numpy()):
        example = rows[EXAMPLE_INDEX][row]
        if first > 0:
            context = raw["context"][example]
            found[example] = context[rows[START_BYTES][row, first] : rows[END_BYTES][row, last]]
    return found


def test_every_gold_answer_is_in_some_window(data_dir):
    """All of XQuAD's 1,190, and all but one of them byte for byte."""
    task = Squad("squad1.1", data_dir / "squad" / "xquad.en.json")
    raw = read(task, "validation")
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    found = recovered(task, raw, Preprocessor(tokenizer, seq_length=384, pad_to_longest=True))
    golds = [json.loads(answers)[0].encode() for answers in raw["answers"]]
    assert [gold in span for gold, span in zip(golds, found, strict=True)] == [True] * 1190
    wider = [pair for pair in zip(golds, found, strict=True) if pair[0] != pair[1]]
    # One gold answer ends inside a number, where no wordpiece does.
    assert wider == [(b"7,000,000 square kilometres (2,70", b"7,000,000 square kilometres (2,700")]


def test_every_chinese_answer_is_in_some_window(data_dir, tmp_path):
    answers = ["北京", "中华人民共和国", "首都", "华北平原的北部", "2189万人", "16410平方公里"]
    context = CHINESE * 3  # longer than a window; each answer is asked for in each third
    thirds = [(answer, i * len(CHINESE) + CHINESE.index(answer)) for i in range(3) for answer in answers]
    questions = [question(f"q{i}", context, place, text="什么?") for i, place in enumerate(thirds)]
    task = Squad("squad1.1", write(tmp_path / "dev.json", *questions), doc_stride=16, max_query_length=8)
    raw = read(task, "validation")
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "chinese_21128.txt"))
    found = recovered(task, raw, Preprocessor(tokenizer, seq_length=48))
    assert [span.decode() for span in found] == [answer for answer, _ in thirds]


def test_labels_against_plain_python(data_dir):
    """Small windows, so that many do not hold the answer, or hold a part of it."""
    task = Squad("squad1.1", data_dir / "squad" / "xquad.en.json", doc_stride=9, max_query_length=5)
    raw = {name: value[::40] for name, value in read(task, "validation").items()}
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "uncased_30522.txt"))
    features = task.features(Preprocessor(tokenizer, seq_length=32, pad_to_longest=True), raw)
    labels, weights = (value.numpy() for value in task.labels(raw, features))
    index, places = features[EXAMPLE_INDEX].numpy(), features[START_BYTES].numpy()
    kinds = set()
    for example in range(len(raw["id"])):
        context, start, end = (raw[name][example] for name in ("context", "answer_start", "answer_end"))
        pieces = pieces_of(tokenizer, context.decode(), start, end)
        for number, row in enumerate(np.flatnonzero(index == example)):
            shown = np.flatnonzero(places[row] >= 0)
            first = 9 * number  # the window's first piece
            inside = [first <= piece < first + len(shown) for piece in pieces]
            expected = [shown[0] + pieces[i] - first if all(inside) else 0 for i in (0, -1)]
            assert labels[row].tolist() == expected
            kinds.add((all(inside), any(inside)))
    assert kinds == {(True, True), (False, True), (False, False)}
    assert weights.min() == 1


def test_no_room_for_a_context(small, tmp_path):
    """The data set raises the error of `windows` unchanged."""
    task = Squad("squad1.1", write(tmp_path / "dev.json", GOOD))
    with pytest.raises(ValueError, match="^seq_length 64 leaves no room for the context beside 64 tokens"):
        dataset(task, Preprocessor(small, seq_length=64), task.examples("validation"), batch_size=4)


def test_truncated_questions_are_counted(small, tmp_path):
    asked = ("the film", "the film .", "the film . very dull")  # 2, 3 and 5 pieces
    path = write(
        tmp_path / "dev.json",
        *[question(text, "good bad", "bad", text=text) for text in asked],
    )
    task = Squad("squad1.1", path, max_query_length=2)
    preprocess, examples = Preprocessor(small, seq_length=12), task.examples("validation")
    message = "^2 of 3 questions are longer than max_query_length, 2 tokens, and are truncated"
    with pytest.warns(UserWarning, match=message):
        task.check(preprocess, examples)
    Squad("squad1.1", path, max_query_length=5).check(preprocess, examples)


def test_training_batches(small, tmp_path):
    """Batches of windows, labels beside them, padded as far as the longest."""
    contexts = [" ".join(random.Random(i).choices(["good", "bad"], k=5 * i + 1)) for i in range(6)]
    path = write(
        tmp_path / "train.json",
        *[question(str(i), c, "good", text="the") for i, c in enumerate(contexts) if "good" in c],
    )
    task = Squad("squad1.1", path, doc_stride=4, max_query_length=2)
    preprocess = Preprocessor(small, seq_length=12, pad_to_longest=True)
    for features, labels, weights in dataset(task, preprocess, task.examples("train"), batch_size=4, seed=1):
        count = len(labels)
        assert labels.shape == weights.shape == [count, 2]
        assert features[INPUT_MASK].shape == [
            count,
            int(tf.reduce_max(tf.reduce_sum(features[INPUT_MASK], 1))),
        ]
        at_label = tf.gather(features[INPUT_WORD_IDS], labels, batch_dims=1).numpy()
        assert set(at_label.ravel()) <= {VOCABULARY.index("good"), VOCABULARY.index("[CLS]")}


# Model


@pytest.fixture(scope="module")
def tiny() -> tuple[Squad, keras.Model]:
    keras.utils.set_random_seed(3)
    task = Squad("squad2.0", doc_stride=5, max_query_length=3, max_answer_length=4, n_best=6)
    return task, task.model(BertEncoder(BertConfig(**SIZES), outputs=task.outputs))


def test_outputs_do_not_depend_on_padding(small, tiny):
    task, model = tiny
    raw = {"context": tf.constant(["good bad film", "the " * 30]), "question": tf.constant(["the", "actor"])}
    outputs = {}
    for seq_length in (20, 40):
        features = task.features(Preprocessor(small, seq_length=seq_length), raw)
        outputs[seq_length] = model(model_inputs(features)).numpy()
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
    loss = Squad("squad1.1").loss()
    assert float(loss(labels, logits, np.ones((3, 2)))) == pytest.approx((starts + ends) / 2, rel=1e-6)
    weights = np.float32([[1, 1], [0, 0], [0, 0]])
    only = -np.mean([logs[0, side, labels[0, side]] for side in (0, 1)])
    assert float(loss(labels, logits, weights)) == pytest.approx(only, rel=1e-6)


# Spans


def by_brute_force(task: Squad, outputs, features, contexts: list[bytes]) -> list[dict]:
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
    task = Squad(name, doc_stride=3, max_query_length=3, max_answer_length=longest, n_best=8, tau=0.25)
    raw = {
        "context": tf.constant(CONTEXTS),
        "question": tf.constant(["the", "", "who is it", "a", "", "谁", "scene"]),
    }
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
        texts = [contexts[i][a:b] for _, a, b in spans]
        assert got["nbest_answers"][i].tolist() == texts + [b""] * (8 - count)
        weights = np.exp([score for score, _, _ in spans])
        total = weights.sum() + (math.exp(one["null"]) if name == "squad2.0" else 0)
        np.testing.assert_allclose(got["nbest_probabilities"][i, :count], weights / total, rtol=1e-4)
        assert (got["nbest_probabilities"][i, count:] == 0).all()

        best = spans[0][0] if spans else -math.inf
        answers = bool(spans) and (name == "squad1.1" or best > one["null"] + 0.25)
        expected = (texts[0], *spans[0][1:]) if answers else (b"", -1, -1)
        assert (got["answer"][i], got["start_byte"][i], got["end_byte"][i]) == expected
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
    no_odds = {"no_answer_probability", "null_odds"} - set(got)
    assert no_odds == (set() if name == "squad2.0" else {"no_answer_probability", "null_odds"})


def test_decoding_an_empty_batch(small):
    task = Squad("squad2.0", max_query_length=3)
    raw = {name: tf.constant([], tf.string) for name in ("question", "context")}
    features = task.features(Preprocessor(small, seq_length=16, pad_to_longest=True), raw)
    got = task.decode(tf.zeros([0, 2, features[INPUT_MASK].shape[1]]), features, raw)
    assert {name: value.shape.as_list() for name, value in got.items()} == {
        **dict.fromkeys(("answer", "score", "start_byte", "end_byte"), [0]),
        **dict.fromkeys(("no_answer_probability", "null_odds"), [0]),
        **dict.fromkeys(("nbest_answers", "nbest_starts", "nbest_ends", "nbest_probabilities"), [0, 20]),
    }


# Measures


def predictions_of(task: Squad, count: int, *, seed: int) -> tuple[dict, dict]:
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
    got = dict(Squad("squad1.1").evaluate(answered, {"answers": raw["answers"][[0, 1, 3]]}))
    assert got == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 0 + 2 / 3) / 3})

    predictions["nbest_answers"] = np.array([[b"film"], [b"a plot"], [b"a plot"], [b"warm film"]], object)
    predictions["null_odds"] = np.float32([-3, 2, 1, -1])
    got = dict(Squad("squad2.0").evaluate(predictions, raw))
    assert got == pytest.approx(
        {
            "exact_match": 100 * 2 / 4,
            "f1": 100 * (1 + 0 + 1 + 2 / 3) / 4,
            "HasAns_exact": 100 / 3,
            "HasAns_f1": 100 * (1 + 0 + 2 / 3) / 3,
            "NoAns_exact": 100,
            "NoAns_f1": 100,
            "best_exact": 100 * 2 / 4,  # the third unanswered, the first answered
            "best_exact_thresh": 0,
            "best_f1": 100 * (1 + 0 + 1 + 2 / 3) / 4,
            "best_f1_thresh": 0,
        }
    )


def test_google_predictions(data_dir):
    """Google's published ensemble on the questions that XQuAD shares with the dev set of SQuAD 1.1."""
    task = Squad("squad1.1", data_dir / "squad" / "xquad.en.json")
    published = json.loads((data_dir / "squad/predictions/v1.1_BERT_ensemble_GoogleAI.json").read_text())
    raw = read(task, "validation")
    answers = np.array([published[id_.decode()].encode() for id_ in raw["id"]], object)
    got = dict(task.evaluate({"answer": answers}, raw))
    assert got == {
        "exact_match": pytest.approx(74.8739, abs=5e-5),
        "f1": pytest.approx(86.3247, abs=5e-5),
    }


@pytest.mark.parametrize("kind", ["random", "empty"])
def test_thresholds_of_6078_questions(data_dir, kind):
    """Against the definition: a question whose odds are over the threshold scores as unanswered; try every threshold."""
    task = Squad("squad2.0", data_dir / "squad" / "squad2.0_dev_subset_6078.json")
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
        reached = np.where(odds > got[f"best_{name}_thresh"], ~has_answer, raw_scores).mean()
        assert 100 * reached == pytest.approx(got[f"best_{name}"])
    sizes = {"HasAns": 2910, "NoAns": 3168}
    mean = sum(count * got[f"{group}_f1"] for group, count in sizes.items()) / 6078
    assert mean == pytest.approx(got["f1"])
    if kind == "empty":
        assert (got["HasAns_f1"], got["NoAns_f1"]) == (0, 100)
        assert got["best_f1"] == pytest.approx(100 * 3168 / 6078) and got["best_f1_thresh"] == pytest.approx(
            0, abs=1
        )


@pytest.mark.parametrize("seed", range(3))
def test_calibrate_returns_a_task_with_the_best_threshold(seed):
    """The new task has the best of all thresholds, decodes by it, and leaves the old task as it was."""
    task = Squad("squad2.0", n_best=2)
    predictions, raw = predictions_of(task, 60, seed=seed)
    before = dict(task.evaluate(predictions, raw))
    new, calibrated = task.calibrate(predictions, raw)
    after = dict(new.evaluate(calibrated, raw))
    assert new.tau == -before["best_f1_thresh"] < -1
    assert task.tau == 0 and dict(task.evaluate(predictions, raw)) == before
    assert after["f1"] == pytest.approx(before["best_f1"]) and after["f1"] > before["f1"]
    for odds in predictions["null_odds"]:  # no other threshold does better
        trial = Squad("squad2.0", n_best=2, tau=-float(odds))
        decided = {name: value.numpy() for name, value in trial._answered(predictions).items()}
        assert dict(trial.evaluate(predictions | decided, raw))["f1"] <= after["f1"] + 1e-9

    kept = Squad.from_json(json.loads(json.dumps(new.to_json())))
    decided = kept._answered(predictions)
    for name, value in decided.items():
        np.testing.assert_array_equal(calibrated[name], value.numpy())
    assert set(calibrated) == set(predictions)


def test_calibrate_of_squad_1_1_does_nothing():
    task = Squad("squad1.1")
    predictions = {"answer": np.array([b"x"], object)}
    assert task.calibrate(predictions, {}) == (task, predictions) and task.calibrated == ()


# For people


def test_record_and_show():
    task = Squad("squad2.0", n_best=3)
    context = f"{'很' * 50}\n{NORMANS}"
    start = context.encode().index(b"France")
    decoded = {
        "answer": np.array(b"France", object)[()],
        "score": np.float32(0.75),
        "start_byte": np.int32(start),
        "end_byte": np.int32(start + 6),
        "no_answer_probability": np.float32(0.125),
        "null_odds": np.float32(-2),
        "nbest_answers": np.array([b"France", b"Rollo", b""], object),
        "nbest_starts": np.int32([start, start + 8, -1]),
        "nbest_ends": np.int32([start + 6, start + 13, -1]),
        "nbest_probabilities": np.float32([0.75, 0.125, 0]),
    }
    record = task.record(decoded)
    assert record == {
        "answer": "France",
        "score": 0.75,
        "start": start,
        "end": start + 6,
        "no_answer_probability": 0.125,
        "nbest": [
            {"answer": "France", "probability": 0.75, "start": start, "end": start + 6},
            {"answer": "Rollo", "probability": 0.125, "start": start + 8, "end": start + 13},
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
        task = Squad(name, n_best=2)
        predictions, raw = predictions_of(Squad("squad2.0", n_best=2), 60, seed=1)
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
    results = finetune(
        Squad("squad2.0", folder / "data", **OPTIONS),
        checkpoint=write_checkpoint(folder / "checkpoint"),
        output=folder / "run",
        hparams=Hparams(batch_size=8, epochs=2, learning_rate=2e-3, seq_length=24),
        verbose=0,
        log=lambda line: None,
    )
    return Trained(data=folder / "data", run=folder / "run", results=results)


@pytest.fixture(scope="module")
def run(trained) -> Run:
    return load_run(trained.run, data=trained.data)


def test_a_tiny_model_learns(trained):
    measures = trained.results["measures"]
    assert measures["val_f1"] > 90 and measures["val_NoAns_f1"] > 80 and measures["val_HasAns_f1"] > 80
    assert json.loads((trained.run / RESULTS_FILE).read_text())["measures"] == measures


def test_a_reloaded_run_has_the_same_measures(trained, run):
    assert run.task.to_json() == json.loads((trained.run / TASK_FILE).read_text())["task"]
    assert run.task.to_json().items() >= (OPTIONS | {"name": "squad2.0"}).items()
    measures = evaluate(run, "validation", batch_size=7)
    kept = {name.removeprefix("val_"): value for name, value in trained.results["measures"].items()}
    kept.pop("loss", None)
    for name in ("exact_match", "f1", "HasAns_f1", "NoAns_f1"):
        assert measures[name] == pytest.approx(kept[name], abs=1e-4), name


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


@pytest.mark.slow  # tests/test_serving_safety.py asks an untrained one of every task the same
def test_export_predicts_the_same(run, tmp_path):
    """`export` compares a fresh process on awkward texts; here, what is served is what `predict` says."""
    folder = export(run, tmp_path / "served")
    entries = marked(6, seed=3)
    raw = {name: [entry[name] for entry in entries] for name in ("question", "context")}
    raw["context"][2] = ""
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    served = serve(**{name: tf.constant(texts) for name, texts in raw.items()})
    expected, _ = predict(run.task, run.preprocess, run.model, tf.data.Dataset.from_tensor_slices(raw))
    assert set(served) == set(expected)
    for name, value in expected.items():
        if value.dtype == object:
            assert served[name].numpy().tolist() == value.tolist(), name
        else:
            np.testing.assert_allclose(served[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert expected["answer"][2] == b"" and any(expected["answer"])
