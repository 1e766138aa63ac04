"""Entities as people have them: columns of files, schemes of tags, spans of characters; and their offsets in predictions."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import bert_keras as bk
from bert_keras.errors import BertKerasError
from bert_keras.tasks.data.conll import read_corpus
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.text.characters import to_characters

ANNA = "Anna B-PER | sang O"
# The lines of a file -> the columns that are given, and the words with their tags, sentences apart, or the error.
FILES = {
    "two columns": ("Anna B-PER\nsang O", {}, ANNA),
    "CoNLL-2003": ("Anna NNP B-NP B-PER\nsang VBD B-VP O", {}, ANNA),
    "CoNLL-2003, German": ("Anna Anna NE I-NC B-PER\nsang singen VV I-VC O", {}, ANNA),
    "CoNLL-2002": ("Anna N B-PER\nsang V O", {}, ANNA),
    "WNUT, tabs": ("Anna\tB-PER\nsang\tO", {}, ANNA),
    "GermEval": ("#\thttp://de [2009]\n1\tAnna\tB-PER\tO\n2\tsang\tO\tO", {}, ANNA),
    "MultiCoNER": ("# id 1f\tdomain=en\nAnna _ _ B-PER\nsang _ _ O", {}, ANNA),
    "numbers, five columns": ("1 Anna NNP I-NP B-PER\n2 sang VBD I-VP O\n\n1 Oh UH B-INTJ O", {}, ANNA + " || Oh O"),
    "numbers from 0": ("0 Anna B-PER\n1 sang O", {}, ANNA),
    "numbers over the file": ("7 Anna B-PER\n8 sang O\n\n9 Oh O", {}, ANNA + " || Oh O"),
    "tags before other columns": ("Anna B-PER NNP x\nsang O VBD y", {}, ANNA),
    "a header": ("Token\tPOS\tNER\nAnna\tNNP\tB-PER\nsang\tVBD\tO", {}, ANNA),
    "CoNLL-U Plus": ("# global.columns = ID FORM NER X\n# text = Anna sang\n1 Anna B-PER _\n2 sang O _", {}, ANNA),
    "numbers given": ("x Anna B-PER O\ny sang O O", {"word": "2", "tag": "3"}, ANNA),
    "names given": ("i w t u\n1 Anna B-PER O\n2 sang O O", {"word": "w", "tag": "t"}, ANNA),
    "a no-break space": ("Anna\u00a0M. B-PER\nsang O", {}, "Anna\u00a0M. B-PER | sang O"),
    "two columns of numbers": ("1 B-PER\n2 O", {}, "1 B-PER | 2 O"),
    "numbers that do not count": ("3 Anna B-PER\n9 sang O", {}, "the first column holds only numbers; give .* --word-column"),
    "a name of the file": ("d1 Anna B-PER\nd1 sang O\n\nd1 Oh O", {}, "first column is 'd1' in every line; .* --word-column"),
    "nested tags": ("1 Anna B-PER B-X\n2 sang O O", {}, "the columns 3 and 4 hold tags; give .* --tag-column, such as 3"),
    "an unknown name": ("Anna B-PER", {"tag": "ner"}, "--tag-column is 'ner', and the file has 2 columns without names"),
    "a number too large": ("Anna B-PER", {"word": "3"}, "--word-column is '3', .* a number from 1 to 2"),
    "one for both": ("Anna B-PER", {"word": "2"}, "column 2 cannot be the words and the tags"),
    "only a header": ("token ner", {}, "has no words"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_columns_of_files(name, tmp_path):
    text, columns, wanted = FILES[name]
    (tmp_path / "train.txt").write_text(text + "\n", encoding="utf-8")
    try:
        ((*sentences,),) = read_corpus(tmp_path / "train.txt", **columns).documents
    except BertKerasError as error:
        assert re.search(wanted, str(error)) and len(str(error).splitlines()) == 1, error
        return
    found = [" | ".join(map(" ".join, zip(one.words, one.tags, strict=True))) for one in sentences]
    assert " || ".join(found) == wanted


def test_a_run_keeps_the_columns_and_shows_the_first_sentence(tmp_path):
    (tmp_path / "train.txt").write_text("1 Anna B-PER B-X\n2 sang O O\n")
    task = Tagging.open("conll2003", tmp_path, context="sentence", tag_column="3")
    assert task.about_data() == "IOB2; the first sentence: Anna sang; its tags: B-PER O"
    again = Tagging.from_json(json.loads(json.dumps(task.to_json())), tmp_path)
    (raw,) = again.examples("train").as_numpy_iterator()
    assert raw == {"tokens": b"Anna sang", "tags": b"B-PER O"}
    assert "word_column" not in task.to_json()


SCHEMES = {
    "IOB1": "I-A I-A B-A O I-B",
    "IOB2": "B-A I-A B-A O B-B",
    "BIOES": "B-A E-A S-A O S-B",
    "BILOU": "B-A L-A U-A O U-B",
    "BMES": "B-A E-A S-A O S-B",
    "BMEWO": "B-A E-A W-A O W-B",
    "IOE2": "I-A E-A E-A O E-B",
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tags_of_python_are_read_in_each_scheme(scheme):
    task = Tagging(["O", "B-A", "B-B", "I-A", "I-B"], scheme="IOB2")
    words = {"tokens": np.array([b"a b c d e"], object)}
    assert task.targets([SCHEMES[scheme].split()], words)["tags"].tolist() == [b"B-A I-A B-A O B-B"]


# -----------------------------------------------------------------------------------------------------------
# Spans

TEXT = "Äda met Bob-Lee in Bath."
SPANS = [[0, 3, "PER"], [8, 15, "PER"], [19, 23, "LOC"]]
NAMED = [dict(zip(("start", "end", "label"), span, strict=True)) for span in SPANS]
STUDIO = [{"value": {"start": a, "end": b, "text": TEXT[a:b], "labels": [c]}, "type": "labels"} for a, b, c in SPANS]  # fmt: skip
LINES = {
    "lists": {"text": TEXT, "entities": SPANS},
    "dicts": {"text": TEXT, "entities": NAMED},
    "doccano": {"id": 1, "text": TEXT, "label": SPANS, "Comments": []},
    "Prodigy": {"text": TEXT, "spans": [{**span, "token_start": 1} for span in NAMED[::-1]]},
    "offsets": {"text": TEXT, "entities": [{"start_offset": a, "end_offset": b, "label": c} for a, b, c in SPANS]},
    "spaCy": [TEXT, {"entities": SPANS}],
    "Label Studio": {"id": 3, "data": {"text": TEXT}, "annotations": [{"result": STUDIO, "was_cancelled": False}]},
    "Label Studio's short form": {"text": TEXT, "label": [one["value"] for one in STUDIO]},
}  # fmt: skip


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize("name", LINES)
def test_files_with_spans(name, ending, tmp_path):
    rows = [LINES[name], *([LINES["lists"]] if name != "lists" else [])]
    content = json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows))
    (tmp_path / f"train.{ending}").write_text(content)
    task = Tagging.open("conll2003", tmp_path)
    assert task.label_names == ("O", "B-LOC", "B-PER")
    for raw in task.examples("train").as_numpy_iterator():
        assert raw == {"text": TEXT.encode(), "tags": b"B-PER O B-PER O B-LOC O"}


WRONG = {
    "outside": ([[0, 40, "PER"]], r"entity \[0, 40, 'PER'\] is not in the text, which has 24 characters"),
    "empty": ([[3, 3, "PER"]], r"entity \[3, 3, 'PER'\] is not in the text"),
    "over another": ([[8, 15, "PER"], [0, 9, "LOC"]], r"entities \[0, 9, 'LOC'\] and \[8, 15, 'PER'\] overlap"),
    "no label": ([[0, 3]], r"entity is .* give \[start, end, .label.\]"),
    "no numbers": ([["0", "3", "PER"]], "entity is .*give"),
    "another text": ([{"start": 0, "end": 3, "label": "PER", "text": "Bob"}], "says 'Bob', and the text has 'Äda' there"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_spans_are_named_with_their_row(name, tmp_path):
    spans, message = WRONG[name]
    rows = [{"text": TEXT, "entities": SPANS}, {"text": TEXT, "entities": spans}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(BertKerasError, match=f"train.jsonl, line 2: the .*{message}"):
        Tagging.open("conll2003", tmp_path)
    task = Tagging(["O", "B-LOC", "B-PER", "I-LOC", "I-PER"], scheme="IOB2")
    with pytest.raises(BertKerasError, match=f"row 1: the .*{message}"):
        task.targets([SPANS, spans], {"text": np.array([TEXT.encode()] * 2, object)})


def test_spans_inside_of_words_are_counted_and_texts_without_annotation_are_left_out(tmp_path):
    rows = [
        {"data": {"review": TEXT}, "annotations": [{"result": [{"value": {"start": 8, "end": 11, "labels": ["PER"]}}]}]},
        {"data": {"review": TEXT}, "annotations": []},
    ]  # fmt: skip
    (tmp_path / "train.json").write_text(json.dumps(rows))
    with pytest.warns(UserWarning) as caught:
        task = Tagging.open("conll2003", tmp_path)
    messages = sorted(str(one.message).partition("train.json, ")[2] for one in caught)
    assert re.match("item 0: 'Bob' is the first of 1 entities, among 1, that do not start", messages[0])
    assert re.match("item 1: the first of 1 texts without an annotation", messages[1])
    assert task.about_data().endswith("tags: O O B-PER O O O")


def test_labels_with_blanks():
    task = Tagging(["O", "B-Job_Title"], scheme="IOB2")
    texts = {"text": np.array([b"a clerk"], object)}
    assert task.targets([[(2, 7, "Job Title")]], texts)["tags"].tolist() == [b"O B-Job_Title"]
    with pytest.raises(BertKerasError, match="'B-Job Title' has a blank.*write 'B-Job_Title'"):
        Tagging(["O", "B-Job Title"], scheme="IOB2")


# -----------------------------------------------------------------------------------------------------------
# Characters


def test_characters_are_those_of_python():
    texts = ["", "naïve 北京 \N{GRINNING FACE}!", "a\u0301b", "plain"]
    ends = [[len(text[:i].encode()) for i in range(len(text) + 1)] for text in texts]
    offsets = tf.ragged.constant(ends, tf.int32).to_tensor(-1)
    found = to_characters(tf.constant(texts), offsets).numpy()
    for text, row in zip(texts, found.tolist(), strict=True):
        assert row == [*range(len(text) + 1), *[-1] * (len(row) - len(text) - 1)]
    assert to_characters(tf.constant([], tf.string), tf.zeros([0, 2], tf.int32)).shape == (0, 2)


@pytest.fixture(scope="module")
def tagger(tiny):
    model = bk.tagger(tiny, ["PER", "LOC"], seq_length=24)
    model.compile(learning_rate=1e-2)
    texts = ["ïx actor is good", "the film", "a\u00a0plot of warm actor"] * 8
    spans = [[(3, 8, "PER")], [], [{"start": 15, "end": 20, "label": "PER"}]] * 8
    model.fit(texts, spans, epochs=3, verbose=0, validation_data=(texts[:3], spans[:3]))
    return model


@pytest.mark.long
def test_fit_on_spans_and_records_with_python_slices(tagger):
    texts = ["ïx actor is good", "北 actor", "the film"]
    found, predicted = tagger.records(texts), tagger.predict(texts, verbose=0)
    assert sum(len(record["entities"]) for record in found) == np.sum(predicted["entity_start"] >= 0)
    assert {entity["label"] for record in found for entity in record["entities"]} == {"PER"}
    for text, record in zip(texts, found, strict=True):
        for entity in record["entities"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert text.encode()[entity["start_byte"] : entity["end_byte"]].decode() == entity["text"]
    json.dumps(found)
    again = [record["entities"] for record in found]  # what it predicts is what it learns from
    assert tagger.evaluate(texts, again, verbose=0, return_dict=True)["f1"] == 1.0


REFUSED = {
    "tags for strings": (["a b"], [["O", "O"]], "row 0: tags need words, and the text is a string"),
    "an unknown label": (["a b"], [[(0, 1, "ORG")]], "row 0: unknown entity 'ORG'; the entities are LOC, PER"),
    "too few": (["a b", "c"], [[]], "there are 2 texts and 1 lists of entities"),
    "no words": (["  "], [[]], "row 0: the text '  ' has no words"),
    "a word with a space": ([["a b"]], [["O"]], "row 0: 'a b' is not one word"),
    "an unknown tag": ([["a"]], [["X-PER"]], "row 0: unknown tag 'X-PER'"),
    "None": (["a b"], [None], "row 0: the entities are None; give a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_fit_refuses(name, tagger):
    texts, labels, message = REFUSED[name]
    with pytest.raises(BertKerasError, match=message):
        tagger.fit(texts, labels, verbose=0)


def test_words_with_a_no_break_space_are_words(tagger):
    assert tagger.evaluate([["a\u00a0b", "actor"]], [["O", "B-PER"]], verbose=0)
