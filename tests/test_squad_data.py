"""Questions from files and TensorFlow Datasets, and their windows and labels against plain Python."""

import json
import random

import numpy as np
import pytest
import runs
import tensorflow as tf
from questions import CHINESE, GOOD, NORMANS, question, read, small, write  # noqa: F401
from runs import VOCABULARY

from bert_keras.features import END_BYTES, EXAMPLE_INDEX, INPUT_MASK, INPUT_WORD_IDS, START_BYTES
from bert_keras.tasks.batches import dataset
from bert_keras.tasks.data.squad import VERSIONS
from bert_keras.tasks.metrics import answer_scores, normalize_answer
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece


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
    raw = read(QuestionAnswering(name, data_dir / "squad" / file), "train")
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
        examples = QuestionAnswering("squad2.0", source).examples("validation")
        assert examples.cardinality() == 2
        got = read(QuestionAnswering("squad2.0", source), "validation")
        assert {name: value.tolist() for name, value in got.items()} == expected
    assert {name: (spec.shape, spec.dtype) for name, spec in examples.element_spec.items()} == {
        **dict.fromkeys(("id", "question", "context", "answers"), ((), tf.string)),
        **dict.fromkeys(("answer_start", "answer_end"), ((), tf.int32)),
    }


def test_official_file_names_take_precedence(tmp_path):
    write(tmp_path / "train.json", question("other", NORMANS, "France"))
    write(tmp_path / "train-v1.1.json", question("official", NORMANS, "France"))
    assert read(QuestionAnswering("squad1.1", tmp_path), "train")["id"] == [b"official"]
    assert read(QuestionAnswering("squad2.0", tmp_path), "train")["id"] == [b"other"]


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
    task = QuestionAnswering("squad1.1", path)
    with pytest.warns(UserWarning, match="any.json: skipped 6 questions .* first q1") as caught:
        assert read(task, "train")["id"] == [b"q2"]
    assert len(caught) == 1
    raw = read(task, "validation")
    assert raw["id"].tolist() == [b"q1", b"q2", b"q3", b"q4", b"q5", b"q6", b"q7"]
    assert raw["answer_start"].tolist() == [-1, NORMANS.index("France"), -1, -1, -1, -1, -1]


def test_a_file_whose_answers_are_all_misplaced_says_so(tmp_path):
    path = write(tmp_path / "any.json", *(question(f"q{i}", NORMANS, ("France", 3)) for i in range(3)))
    message = "any.json: none of 3 answers stands at its answer_start, .* of q0, is 'France' at 3, where .* ' Norma'"
    with pytest.raises(ValueError, match=message):
        QuestionAnswering("squad1.1", path).examples("train")


# Language -> an answer, a gold answer, exact match and F1 by MLQA's rules.
ANSWERS = {
    None: ("北京", "北京天安门", 0, 0),
    "zh": ("北京", "北京天安门", 0, 4 / 7),
    "en": ("the “cat”", "Cat", 1, 1),
    "es": ("La casa ¡roja!", "una casa roja", 1, 1),
    "de": ("der alte Hund", "alte Hund", 1, 1),
    "vi": ("những con mèo", "con mèo", 1, 1),
    "hi": ("राम।", "राम", 1, 1),
    "ar": ("القط", "قط", 1, 1),
}


@pytest.mark.parametrize("language", ANSWERS)
def test_answers_in_the_languages_of_mlqa(language):
    answer, gold, exact, f1 = ANSWERS[language]
    scores = answer_scores([answer], [[gold]], unanswerable=False, language=language)
    assert [float(score[0]) for score in scores] == [exact, pytest.approx(f1)]


def test_mixed_chinese_is_split_into_characters_and_words():
    assert normalize_answer("BERT模型, 2019年", "zh") == "bert 模 型 2019 年"


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="there is no 'squad3'; .* squad1.1, squad2.0"):
        QuestionAnswering("squad3")
    for option in set(QuestionAnswering.options) - {"answer_language"}:
        with pytest.raises(ValueError, match=f"{option} is 0; {option} must be a whole number of at least 1"):
            QuestionAnswering("squad1.1", **{option: 0})
    with pytest.raises(FileNotFoundError, match="train-v1.1.json or train.json.* no files"):
        QuestionAnswering("squad1.1", tmp_path).examples("train")
    with pytest.raises(ValueError, match="there is no split 'test'; the splits are train, validation"):
        QuestionAnswering("squad1.1", tmp_path).examples("test")


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
        raw = read(QuestionAnswering(name), "train")
    assert {*raw} == {"id", "question", "context", "answers", "answer_start", "answer_end"}
    assert raw["answers"] == ['["首都", "平原"]'.encode()]
    assert raw["context"][0][raw["answer_start"][0] : raw["answer_end"][0]].decode() == "首都"


# -----------------------------------------------------------------------------------------------------------
# Windows and labels


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
    task = QuestionAnswering("squad2.0", path, doc_stride=2, max_query_length=1)
    raw = {name: tf.constant(value) for name, value in read(task, "validation").items()}
    features = task.features(Preprocessor(small, seq_length=7), raw)
    labels, weights = task.labels(raw, features)
    #                       [CLS] the [SEP] good bad warm [SEP]; .. warm dull film ..; q2; q3; q4
    assert features[EXAMPLE_INDEX].numpy().tolist() == [0, 0, 1, 2, 3]
    assert labels.numpy().tolist() == [[0, 0], [3, 4], [0, 0], [0, 0], [0, 0]]
    assert weights.numpy().tolist() == [[1, 1], [1, 1], [1, 1], [0, 0], [0, 0]]
    assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)


def recovered(task: QuestionAnswering, raw: dict[str, np.ndarray], preprocess: Preprocessor) -> list[bytes]:
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
    task = QuestionAnswering("squad1.1", data_dir / "squad" / "xquad.en.json")
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
    task = QuestionAnswering(
        "squad1.1", write(tmp_path / "dev.json", *questions), doc_stride=16, max_query_length=8
    )
    raw = read(task, "validation")
    tokenizer = WordPiece.from_file(str(data_dir / "vocab" / "chinese_21128.txt"))
    found = recovered(task, raw, Preprocessor(tokenizer, seq_length=48))
    assert [span.decode() for span in found] == [answer for answer, _ in thirds]


def test_labels_against_plain_python(data_dir):
    """Small windows, so that many do not hold the answer, or hold a part of it."""
    task = QuestionAnswering(
        "squad1.1", data_dir / "squad" / "xquad.en.json", doc_stride=9, max_query_length=5
    )
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
    task = QuestionAnswering("squad1.1", write(tmp_path / "dev.json", GOOD))
    with pytest.raises(ValueError, match="^seq_length 64 leaves no room for the context beside 64 tokens"):
        dataset(task, Preprocessor(small, seq_length=64), task.examples("validation"), batch_size=4)


def test_truncated_questions_are_counted(small, tmp_path):
    asked = ("the film", "the film .", "the film . very dull")  # 2, 3 and 5 pieces
    path = write(tmp_path / "dev.json", *[question(text, "good bad", "bad", text=text) for text in asked])
    task = QuestionAnswering("squad1.1", path, max_query_length=2)
    preprocess, examples = Preprocessor(small, seq_length=12), task.examples("validation")
    message = "^2 of 3 questions are longer than max_query_length, 2 tokens, and are truncated"
    with pytest.warns(UserWarning, match=message):
        task.check(preprocess, examples)
    QuestionAnswering("squad1.1", path, max_query_length=5).check(preprocess, examples)


def test_training_batches(small, tmp_path):
    """Batches of windows, labels beside them, padded as far as the longest."""
    contexts = [" ".join(random.Random(i).choices(["good", "bad"], k=5 * i + 1)) for i in range(6)]
    asked = [question(str(i), c, "good", text="the") for i, c in enumerate(contexts) if "good" in c]
    path = write(tmp_path / "train.json", *asked)
    task = QuestionAnswering("squad1.1", path, doc_stride=4, max_query_length=2)
    preprocess = Preprocessor(small, seq_length=12, pad_to_longest=True)
    for features, labels, weights in dataset(task, preprocess, task.examples("train"), batch_size=4, seed=1):
        count = len(labels)
        assert labels.shape == weights.shape == [count, 2]
        longest = int(tf.reduce_max(tf.reduce_sum(features[INPUT_MASK], 1)))
        assert features[INPUT_MASK].shape == [count, longest]
        at_label = tf.gather(features[INPUT_WORD_IDS], labels, batch_dims=1).numpy()
        assert set(at_label.ravel()) <= {VOCABULARY.index("good"), VOCABULARY.index("[CLS]")}


# -----------------------------------------------------------------------------------------------------------
# Commands


def without_answers(path, folder):
    """The questions of a file in SQuAD's form, as a test set has them, and their ids."""
    content = json.loads(path.read_text())
    entries = [entry for one in content["data"] for part in one["paragraphs"] for entry in part["qas"]]
    for entry in entries:
        entry.pop("answers")
        entry.pop("is_impossible", None)
    (folder / "test.json").write_text(json.dumps(content))
    return folder / "test.json", [entry["id"] for entry in entries]


def test_predict_reads_squad_s_json_and_writes_the_official_files(finished, tmp_path, capfd):
    made = finished("answers")
    file, ids = without_answers(made.data / "dev-v2.0.json", tmp_path)
    command = ["predict", "--run", made.run, "--input", file, "--format", "jsonl", "--predictions"]
    code, out, err = runs.run_command(capfd, *command, tmp_path / "answers.json")
    assert code == 0, err
    rows = {row["id"]: row for row in map(json.loads, out.splitlines())}
    assert [*rows] == ids
    answers, odds = (json.loads((tmp_path / name).read_text()) for name in ("answers.json", "null_odds.json"))
    assert answers == {id_: row["answer"] for id_, row in rows.items()}
    assert odds == {id_: row["null_odds"] for id_, row in rows.items()}
    for row in rows.values():
        assert row["context"][row["start"] : row["end"]] == row["answer"] or row["start"] == -1
    code, _, err = runs.run_command(capfd, *command, tmp_path / "answers.json")
    assert code == 1 and "answers.json already exists" in err
    (tmp_path / "some.jsonl").write_text('{"question": "a", "context": "b"}')
    command[4] = tmp_path / "some.jsonl"
    code, _, err = runs.run_command(capfd, *command, tmp_path / "other.json")
    assert code == 1 and "--predictions needs" in err and not (tmp_path / "other.json").exists()


def test_tau_n_best_and_logits_are_given_on_request(finished, tmp_path, capfd):
    made = finished("answers")
    file, ids = without_answers(made.data / "dev-v2.0.json", tmp_path)
    command = ["predict", "--run", made.run, "--input", file, "--format"]
    for tau, answered in ((-1e9, True), (1e9, False)):
        code, out, err = runs.run_command(capfd, *command, "jsonl", f"--tau={tau}", "--n-best", 2, "--logits")
        assert code == 0, err
        rows = [json.loads(line) for line in out.splitlines()]
        assert len(rows) == len(ids) and {row["start"] >= 0 for row in rows} == {answered}
        for row in rows:
            assert 1 <= len(row["nbest"]) <= 2
            assert row["null_odds"] == pytest.approx(row["null_score"] - row["nbest"][0]["score"], abs=1e-4)
    code, out, err = runs.run_command(capfd, *command, "table", "--logits")
    assert code == 0 and "n best" in out and "null score" in out, err


def test_evaluate_takes_tau_and_draws_f1_over_it(finished, tmp_path, capfd):
    made = finished("answers")
    command = ["evaluate", "--run", made.run, "--data", made.data, "--json"]
    code, out, err = runs.run_command(capfd, *command, "--tau", "1e9", "--tau-curve", tmp_path / "tau.svg")
    assert code == 0, err
    measures = json.loads(out)["validation"]
    assert measures["NoAns_f1"] == 100  # no question is answered
    assert "-0.0" not in out and "</svg>" in (tmp_path / "tau.svg").read_text()
    code, out, err = runs.run_command(capfd, *command, f"--tau={measures['best_f1_tau']}")
    # Higher where a gold answer is an article alone, which "no answer" equals.
    assert json.loads(out)["validation"]["f1"] >= measures["best_f1"] - 1e-3, err
    code, _, err = runs.run_command(capfd, *command, "--tau-curve", tmp_path / "tau.txt")
    assert code == 1 and "tau.txt is no .svg or .png file" in err


def test_a_run_without_tau_refuses_it(sst2, capfd):
    command = ["evaluate", "--run", sst2.run, "--data", sst2.data]
    for flags in (["--tau", "1"], ["--tau-curve", "x.svg"]):
        code, _, err = runs.run_command(capfd, *command, *flags)
        assert code == 1 and f"{flags[0]} does not apply to sst2" in err


def test_evaluate_says_by_which_rules_answers_are_compared(finished, capfd):
    made = finished("answers")
    command = ["evaluate", "--run", made.run, "--data", made.data]
    for flags, rules in (
        ((), "SQuAD's rules, for English"),
        (("--answer-language", "zh"), "MLQA's rules, for zh"),
    ):
        code, out, err = runs.run_command(capfd, *command, *flags)
        assert code == 0 and rules in " ".join(out.split()), err
    code, _, err = runs.run_command(
        capfd, "evaluate", "--run", finished("class").run, "--answer-language", "zh"
    )
    assert code == 1 and "--answer-language does not apply to sst2" in err
