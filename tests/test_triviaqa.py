"""TriviaQA as a SQuAD file: where answers are found, and the file as this package reads it."""

import json

import pytest
import runs
import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.tasks.data.sources import load_tfds
from bert_keras.tasks.data.squad import (
    TRIVIAQA,
    TRIVIAQA_FEATURES,
    convert_triviaqa,
    find_answers,
    take_first_tokens,
)
from bert_keras.tasks.problems.question_answering import QuestionAnswering


@pytest.mark.parametrize(
    ("context", "answers", "found"),
    [
        ("Main Street is by Sinclair Lewis.", ["Sinclair Lewis"], [("Sinclair Lewis", 18)]),
        ("MAIN STREET, by SINCLAIR LEWIS", ["sinclair lewis"], [("SINCLAIR LEWIS", 16)]),
        ("by Harry  Sinclair\nLewis", ["harry sinclair lewis"], [("Harry  Sinclair\nLewis", 3)]),
        ("She saw St. Lucia and Lucia.", ["st lucia", "Lucia"], [("St. Lucia", 8), ("Lucia", 12)]),
        ("in the U.S.A. then", ["U.S.A.", "u s a"], [("U.S.A", 7)]),
        ("read The Lord of the Rings", ["The Lord of the Rings", "lord of rings"], [("Lord of the Rings", 9)]),
        ("Curaçao 東京 is 東京都", ["東京", "curaçao"], [("Curaçao", 0), ("東京", 8)]),
        ("smart arts", ["Art"], []),  # no part of a word
        ("Lewis, or Sinclair Lewis, or Lewis", ["Lewis"], [("Lewis", 0)]),
        ("Sinclair Lewis", ["Sinclair", "Sinclair Lewis"], [("Sinclair Lewis", 0), ("Sinclair", 0)]),
        ("The The is a band", ["The The", "the", "?"], []),  # nothing is left of them
        ("", ["x"], []),
    ],
)  # fmt: skip
def test_answers_are_found_by_their_words(context, answers, found):
    places = find_answers(context, answers)
    assert [(place["text"], place["answer_start"]) for place in places] == found
    assert all(context.startswith(place["text"], place["answer_start"]) for place in places)


def test_a_paragraph_is_the_take_first_tokens():
    document = "Title\n\n one  two\tthree four"
    wanted = {1: "Title", 3: "Title\n\n one  two", 5: document, 400: document}
    assert {count: take_first_tokens(document, count) for count in wanted} == wanted
    assert take_first_tokens("", 3) == ""


def example(number, value, *pages, aliases=(), normalized=()):
    """A question as TensorFlow Datasets has it; pages: titles and texts."""
    empty = {"description": [], "filename": [], "rank": [], "title": [], "url": [], "search_context": []}
    return {
        "question": f"Question {number}?",
        "question_id": f"q{number}",
        "question_source": "x",
        "entity_pages": {
            "doc_source": ["TagMe"] * len(pages),
            "filename": [f"{title}.txt" for title, _ in pages],
            "title": [title for title, _ in pages],
            "wiki_context": [text for _, text in pages],
        },
        "search_results": empty,
        "answer": {
            "aliases": list(aliases),
            "normalized_aliases": list(normalized),
            "matched_wiki_entity_name": "",
            "normalized_matched_wiki_entity_name": "",
            "normalized_value": value.lower(),
            "type": "WikipediaEntity",
            "value": value,
        },
    }


FIRST = example(1, "Sinclair Lewis", ("Lewis", "é 東京: Sinclair Lewis wrote."), ("Nobody", "Nobody wrote."))
EXAMPLES = [
    FIRST,
    example(2, "Tokyo", ("東京", "In 東京都, or Tōkyō."), aliases=["Edo", "Tōkyō"]),
    example(3, "USA", ("Union", "The u-s-a."), normalized=["u s a"]),
    example(4, "late", ("Long", "word " * 399 + "early late"), aliases=["absent"]),
    example(5, "early", ("Long", "word " * 399 + "early late")),
    FIRST,  # from the other of TriviaQA's files
]


@pytest.fixture
def triviaqa(tmp_path):
    """TensorFlow Datasets with EXAMPLES in place of the real data."""
    tfds = pytest.importorskip("tensorflow_datasets")

    def filled(builder, *args, **kwargs) -> tf.data.Dataset:
        spec = builder.info.features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: EXAMPLES, output_signature=spec)

    with tfds.testing.mock_data(data_dir=str(tmp_path / "tfds"), as_dataset_fn=filled):
        yield


def test_the_file_is_squads(triviaqa, tmp_path):
    file, advanced = tmp_path / "new" / "train.json", []
    counts = convert_triviaqa("train", file, progress=advanced.append)
    assert counts == (4, 5, 4, 6) and sum(advanced) == len(EXAMPLES)
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    found = [
        (article["title"], paragraph["context"], question["id"], question["answers"])
        for article in data
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    wanted = [
        ("Lewis", "é 東京: Sinclair Lewis wrote.", "q1--Lewis.txt", "Sinclair Lewis", 6),
        ("東京", "In 東京都, or Tōkyō.", "q2--東京.txt", "Tōkyō", 11),
        ("Union", "The u-s-a.", "q3--Union.txt", "u-s-a", 4),
        ("Long", "word " * 399 + "early", "q5--Long.txt", "early", 1995),
    ]
    assert found == [(*texts, [{"text": text, "answer_start": start}]) for *texts, text, start in wanted]
    rows = list(QuestionAnswering("squad1.1", file).examples("train").as_numpy_iterator())
    spans = [row["context"][row["answer_start"] : row["answer_end"]].decode() for row in rows]
    assert spans == ["Sinclair Lewis", "Tōkyō", "u-s-a", "early"]
    assert [json.loads(row["answers"])[0] for row in rows] == spans


def test_the_command_writes_whole_files(triviaqa, tmp_path, capfd):
    file = tmp_path / "train.json"
    code, out, err = runs.run_command(capfd, "triviaqa", "--output", file, "--limit", "2", "--tokens", "4")
    assert code == 0, err
    assert f"{file}: 2 of 3 documents have an answer, for 2 of 2 questions" in out
    kept = file.read_bytes()
    code, _, err = runs.run_command(capfd, "triviaqa", "--output", file)
    assert (code, "already exists" in err, file.read_bytes()) == (1, True, kept)
    other = tmp_path / "other" / "train.json"
    with pytest.raises(BertKerasError, match="none of 3 documents has an answer in its first 1 tokens"):
        convert_triviaqa("train", other, tokens=1, limit=2)

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_triviaqa("train", other, progress=stop)
    assert not [*other.parent.iterdir()]


def test_a_file_that_finetune_would_refuse_is_not_written(triviaqa, tmp_path, monkeypatch):
    """The limit is the reader's: the largest file that it lets through is read."""
    convert_triviaqa("train", tmp_path / "train.json")
    size = (tmp_path / "train.json").stat().st_size
    monkeypatch.setattr("bert_keras.tasks.data.squad.MAX_FILE_BYTES", size)
    convert_triviaqa("train", tmp_path / "again.json")
    assert len(list(QuestionAnswering("squad1.1", tmp_path / "again.json").examples("train"))) == 4
    monkeypatch.setattr("bert_keras.tasks.data.squad.MAX_FILE_BYTES", size - 1)
    with pytest.raises(BertKerasError, match=f"more than {size - 1:,} bytes.*give fewer tokens, or a limit"):
        convert_triviaqa("train", tmp_path / "third.json")
    assert not (tmp_path / "third.json").exists()
    with pytest.raises(BertKerasError, match=f"again.json has over {size - 1:,} bytes.*leave out questions"):
        QuestionAnswering("squad1.1", tmp_path / "again.json").examples("train")


def test_only_the_features_of_wikipedia_are_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    with tfds.testing.mock_data(num_examples=2, data_dir=str(tmp_path)):
        examples, _ = load_tfds(TRIVIAQA, "validation", instead="", only=TRIVIAQA_FEATURES)
        (first, _) = examples.as_numpy_iterator()
    assert {*first} == {*TRIVIAQA_FEATURES}
    for name in ("entity_pages", "answer"):
        assert {*first[name]} == TRIVIAQA_FEATURES[name]
