"""The errors of entities: pairs and their kinds by hand, their sums, the tables of a report, and marked texts."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_keras.pages.charts import draw
from bert_keras.tasks import metrics
from bert_keras.tasks.data.conll import find_entities
from bert_keras.tasks.problems import entity_errors
from bert_keras.tasks.problems.entity_errors import INVENTED, MISSED, RIGHT, pair_entities
from bert_keras.tasks.problems.tagging import Tagging


def texts(*rows: str) -> np.ndarray:
    return np.array([row.encode() for row in rows], object)


# Labelled tags | predicted tags -> the kinds of their pairs.
PAIRS = {
    "O B-A I-A O | O B-A I-A O": "right",
    "O B-A I-A O | O B-B I-B O": "wrong type",
    "O B-A I-A O | O B-A O O": "wrong words",
    "O B-A I-A O | B-A I-A I-A O": "wrong words",
    "O B-A I-A O | O O B-B I-B": "both wrong",
    "O B-A I-A O | O O O B-A": "missed, invented",
    "O B-A I-A O | O O O O": "missed",
    "O O O O | O B-A I-A O": "invented",
    "B-A I-A I-A I-A | B-A B-A I-A I-A": "wrong words, invented",
    "B-A B-A I-A O | B-A I-A I-A O": "wrong words, missed",
    "B-A I-A B-B O | B-A I-A I-A O": "wrong words, missed",
    "B-A I-A B-B O | B-B I-B B-A O": "wrong type, wrong type",
    "B-A I-A B-B I-B | O B-B I-B I-B": "missed, wrong words",
    "O O O O | O O O O": "",
}


@pytest.mark.parametrize("tags", PAIRS)
def test_kinds_of_errors_of_entities(tags):
    pairs = pair_entities(*(find_entities(side.split()) for side in tags.split(" | ")))
    assert sorted(pair.kind for pair in pairs) == sorted(filter(None, PAIRS[tags].split(", ")))


def test_of_several_predicted_entities_the_one_with_most_shared_words_is_the_partner():
    (gold,), predicted = find_entities("B-A I-A I-A".split()), find_entities("B-B B-B I-B".split())
    pairs = {pair.kind: pair for pair in pair_entities([gold], predicted)}
    assert pairs["both wrong"].predicted == predicted[1] and pairs[INVENTED].predicted == predicted[0]


SENTENCES = st.lists(st.tuples(*[st.sampled_from("O B-A I-A B-B I-B".split())] * 2), min_size=1, max_size=9)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # by the clock
@given(st.lists(st.lists(SENTENCES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_every_entity_is_in_one_pair_and_the_sums_are_those_of_seqeval(documents):
    gold, predicted = (
        texts(
            *("\n".join(" ".join(pair[side] for pair in sentence) for sentence in row) for row in documents)
        )
        for side in (0, 1)
    )
    pairs = [pair for row in entity_errors.pair_rows({"tags": predicted}, {"tags": gold}) for pair in row]
    sides = [entity_errors.split_sentences(tags) for tags in (gold, predicted)]
    for side, alone in enumerate((MISSED, INVENTED)):
        found = Counter(entity.type for tags in sides[side] for entity in find_entities(tags))
        assert Counter(pair[1:][side].type for pair in pairs if pair[1:][side]) == found
        assert sum(pair.kind != (INVENTED, MISSED)[side] for pair in pairs) == found.total()
        assert all(pair[1:][1 - side] is None for pair in pairs if pair.kind == alone)
    outcomes = {row[0]: row[1:] for row in entity_errors.count_outcomes(pairs).rows}
    for kind, scores in metrics.entity_scores_by_type(*sides).items():
        right = sum(pair.kind == RIGHT and pair.gold.type == kind for pair in pairs)
        assert scores.entities == sum(outcomes.get(kind, ()))
        assert right == outcomes.get(kind, (0,))[0] == pytest.approx(scores.recall * scores.entities)


RAW = {
    "tokens": texts("Ada Lovelace met Ada\nin Turin", "Zoé sang", "no one"),
    "tags": texts("B-PER I-PER O B-PER\nO B-LOC", "B-PER O", "O O"),
}
TAGGED = {
    "tags": texts("B-PER O O B-PER\nO B-PER", "O B-LOC", "O O"),
    "entity_text": np.array([[b"Ada", b"Ada", b"Turin"], [b"sang", b"", b""], [b"", b"", b""]], object),
    "entity_score": np.float32([[0.9, 0.5, 0.3], [0.8, 0, 0], [0, 0, 0]]),
}


def test_the_tables_of_entities():
    task = Tagging(["O", "B-LOC", "B-PER", "I-PER"], scheme="IOB2")
    kinds, outcomes, types, lengths, scores, examples = task.views(TAGGED, RAW)
    assert kinds.rows == [
        ("wrong type", 1), ("wrong words", 1), ("both wrong", 0), ("missed", 1), ("invented", 1)
    ]  # fmt: skip
    assert outcomes.rows == [("LOC", 0, 1, 0, 0, 0), ("PER", 1, 0, 1, 0, 1)]
    assert types.columns == ("", "LOC", "PER", "(none)")
    assert types.rows == [("LOC", 0, 1, 0), ("PER", 0, 2, 1), ("(none)", 1, 0, 0)]
    assert scores.rows == [("0.2 to 0.4", 0.0, 1), ("0.4 to 0.6", 1.0, 1), ("0.8 to 1.0", 0.0, 2)]
    assert lengths.rows == [("1", 2 / 7, 3), ("2", 0.0, 1)]
    assert examples.rows == [
        ("wrong type", "Turin (LOC)", "Turin (PER)", "Ada Lovelace met Ada in Turin"),
        ("wrong words", "Ada Lovelace (PER)", "Ada (PER)", "Ada Lovelace met Ada in Turin"),
        ("missed", "Zoé (PER)", "", "Zoé sang"),
        ("invented", "", "sang (LOC)", "Zoé sang"),
    ]
    assert [draw(table) for table in (kinds, outcomes, types, scores, lengths)]
    nothing = {"tokens": texts("a"), "tags": texts("O")}
    assert [*task.views({"tags": texts("O")}, nothing)] == []


def test_entities_of_the_training_file_are_seen(tmp_path):
    (tmp_path / "train.txt").write_text("-DOCSTART- O\n\nTurin B-LOC\nmet O\nAda B-LOC\n")
    labels = ["O", "B-LOC", "B-PER", "I-PER"]

    def seen(source, **options):
        tables = Tagging(labels, scheme="IOB2", source=source, **options).views(TAGGED, RAW)
        return [table.rows for table in tables if "seen" in table.title]

    wanted = [[("seen in training", 0.5, 2), ("new", 0.0, 2)]]
    assert seen(tmp_path) == seen({"train": tmp_path / "train.txt"}) == wanted
    assert seen(tmp_path / "train.txt") == seen({"validation": tmp_path / "train.txt"}) == seen(None) == []
    rows = [{"text": "Ada, of Turin", "spans": [{"start": 8, "end": 13, "label": "LOC"}]}]
    (tmp_path / "train.txt").unlink()
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert seen(tmp_path) == [[("seen in training", 0.0, 1), ("new", 1 / 3, 3)]]


def test_judged_entities_are_marked_in_their_texts():
    judged = Tagging(["O", "B-PER"], scheme="IOB2").judge(TAGGED, RAW)
    assert judged.texts == {"text": ["Ada Lovelace met Ada\nin Turin", "Zoé sang", "no one"]}
    assert judged.gold == ["[Ada Lovelace PER] met [Ada PER]\nin [Turin LOC]", "[Zoé PER] sang", "no one"]
    assert judged.predicted == [
        "[Ada PER] Lovelace met [Ada PER]\nin [Turin PER]",
        "Zoé [sang LOC]",
        "no one",
    ]
    assert judged.right.tolist() == [1 / 3, 0, 1] and judged.rows.tolist() == [0, 1, 2]
    (raw,) = [{"text": texts("“Zoé”, sang."), "tags": texts("O B-PER O O O O")}]
    assert Tagging(["O"], scheme="IOB2").judge({"tags": raw["tags"]}, raw).gold == ["“[Zoé PER]”, sang."]
