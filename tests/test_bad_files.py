"""Files that a task refuses, in one line that names the file, its line and what to do: one table for all readers.

Tables of text are read by one reader, so a fault of the format is listed once, whatever the task.
"""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from questions import GOOD, NORMANS, question, squad_json

from bert_keras.errors import BertKerasError
from bert_keras.tasks.data.tables import read_table
from bert_keras.tasks.runs.task_types import open_task


def as_jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_parquet(**columns):
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


QQP_LONG = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\ta\tb\t0\t0\n"
GUIDS = "guid,text,label\n" + "".join(f"train-{i},a b {i},{'xy'[i % 2]}\n" for i in range(20))
SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
FIRST = 'v,1,A film. It,"A ""good"" film, ok.",It,gold,is good,is bad,"ends,\rslowly",is dull,2\r\n'
SECOND = "v,2,x,The plot.,,gen,is warm,is bad,is dull,is good,0\n"
CODAH = 'o\tA "film. It\tis good\tis "bad\tis dull\tis warm\t3\n\np\tThe plot\t a\tb\tc\td\t0\r\n'
CHOICE = '{"startphrase": "A film. It", "answer": 1, "choices": ["a", "b", "c", "d"]}\n'
CLOZE = {"text": "a [MASK]", "answer": "b"}
AMONG = [{**CLOZE, "text": "a"}, {**CLOZE, "text": "[MASK] [MASK]"}]
DOC = b"-DOCSTART-\nAda I-PER\n"


# The task, the training file, its content, and facts of the error, separated by " | ".
ROWS = [
    # Tables: the format
    ("sst2", "tsv", "", "train.tsv is empty | tab-separated"),
    ("custom", "csv", "", "train.csv is empty | comma-separated"),
    ("fill-mask", "jsonl", "", "is empty; give one object per line"),
    ("sst2", "tsv", "sentence\tlabel\n", "train.tsv has no examples; give at least one line under the header"),
    ("custom", "csv", "text,label\n", "train.csv has no examples"),
    ("swag", "csv", SWAG, "train.csv has no examples"),
    ("sst2", "tsv", "text\tlabel\na\t1\n", "no column 'sentence' | 'text', 'label'"),
    ("sst2", "tsv", "sentence,label\na,1\n", "tab-separated | 'sentence,label'"),
    ("sst2", "tsv", b"sentence\tlabel\nfine\t1\ncaf\xe9\t1\n", "line 3, byte 4: 0xe9 is not UTF-8"),
    ("sst2", "tsv", "sentence\tlabel\n".encode("utf-16"), "line 1, byte 1: 0xff is not UTF-8"),
    ("sst2", "tsv", "sentence\tlabel\n\na\t1\t1\n", "line 3: 3 column(s) | expected 2 | tabs | sentence, label"),
    ("cola", "tsv", "a\t1\t\n", "line 1: 3 column(s) | expected 4"),
    ("cola", "tsv", "text\tlabel\na\t1\n", "no column 'sentence' | 'text', 'label'"),
    ("sst2", "tsv", "a\tb\n1\t2\n", "no columns 'sentence', 'label' | 'a', 'b' | rename those of the file"),
    ("qqp", "tsv", QQP_LONG, "line 2: 7 column(s) | expected 6"),
    ("custom", "csv", "text,label\na,x\nb\n", "train.csv, line 3: 1 column(s), expected 2, separated by commas: text, label"),
    ("custom", "csv", 'text,label\n"a\nb",x\nc,d,y\n', "train.csv, line 4: 3 column(s), expected 2"),
    ("custom", "csv", 'text,label\na,x\n"b,y\nc,x\n', "train.csv, line 3: a quote is opened | not closed"),
    ("custom", "csv", 'text,label\n"a" b,x\n', "train.csv, line 2: | after a closing quote"),
    ("custom", "csv", "text,label\ra,x\r", "train.csv, line 1: there is a carriage return"),
    ("custom", "csv", "text;a\nb;x\n", "no column 'label'; the semicolon-separated columns are 'text', 'a'"),
    ("custom", "csv", "text;label,x\na;x,y\n", "no column 'label' | 'text;label', 'x'"),
    ("custom", "csv", "text,label\ncafé,x\n".encode("latin-1"), "train.csv, line 2, byte 4: 0xe9 is not UTF-8"),
    ("custom", "csv", "text,text,label\na,b,x\n", "train.csv has more than one column 'text'"),
    ("custom", "tsv", "text,label\na,1\n", "no column 'label'; the tab-separated columns are 'text,label'"),
    ("custom", "csv", "a joy,good\ndull,bad\nwarm,good\n", "no column 'label' | 'a joy', 'good'; is the first line a header"),
    ("custom", "tsv", "a fine long day\tx\nrain\ty\n", "is the first line a header"),
    ("custom", "jsonl", as_jsonl({"text": "a", "label": "x"}, [1]), "line 2: a JSON list; give one object"),
    ("custom", "jsonl", as_jsonl({"text": "a", "label": "x"}) + "{oops\n", "line 2 is not JSON"),
    ("custom", "jsonl", as_jsonl({"text": "a", "label": "x"}, {"text": "b"}), "line 2: no 'label'; the fields are 'text'"),
    ("custom", "jsonl", as_jsonl({"text": 5, "label": "x"}, {"text": "b", "label": "y"}), "line 1: 'text' is 5, not text"),
    ("custom", "parquet", b"text,label", "train.parquet is not a Parquet file"),
    ("custom", "parquet", as_parquet(text=["a", None], label=["x", "y"]), "train.parquet, row 2: 'text' is empty"),
    ("custom", "txt", b"text,label", "train.txt does not end in .tsv, .csv, .jsonl, .json, .parquet; give such a file"),
    # GLUE's labels
    ("sst2", "tsv", "sentence\tlabel\na\t1\nb\t2\n", "line 3: unknown label '2' | 0, 1"),
    ("rte", "tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", "unknown label '1' | entailment, not_entailment"),
    ("stsb", "tsv", "sentence1\tsentence2\tscore\na\tb\t5.01\n", "line 2: score '5.01'"),
    ("stsb", "tsv", "sentence1\tsentence2\tscore\na\tb\t-1\n", "score '-1' | 0.0 to 5.0"),
    ("stsb", "tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "score 'nan'"),
    ("stsb", "tsv", "sentence1\tsentence2\tscore\na\tb\thigh\n", "score 'high'"),
    # A user's own columns and labels
    ("custom", "tsv", "text\ta\n", "no column 'label'"),
    ("custom", "tsv", "label\n1\n", "the text columns none | one or two"),
    ("custom", "csv", "a,b,c,label\n1,2,3,x\n", "text columns 'a', 'b', 'c' | one or two | --text-column"),
    ("custom text_column=c", "csv", "a,b,label\n1,2,x\n", "has no column 'c' | 'a', 'b', 'label'"),
    ("custom label_column=y", "csv", "a,b,label\n1,2,x\n", "has no column 'y' | 'a', 'b', 'label'"),
    ("custom", "csv", "review,stars\na,x\nb,y\n", "no column 'label' | 'review', 'stars' | label_column | text_column"),
    ("custom", "csv", "n,text,label\n1,a,x\n2,b,y\n", "the column 'n' holds only numbers | --text-column"),
    ("custom", "csv", "a,says,label\na,good,x\nb,bad,y\nc,good,x\nd,bad,y\n",
     "'says' says the same as the label | --text-column"),
    ("custom", "csv", GUIDS, "the column 'guid' has another word in each row | --text-column"),
    ("custom", "csv", "text,label\na,x\nb, \n", "train.csv, line 3: the label is empty"),
    ("custom label_type=class", "tsv", "text\tlabel\na\t1\n\nb\t \n", "train.tsv, line 4: the label is empty"),
    ("custom label_type=class", "tsv", "text\tlabel\na\t1\nb\t1\n", "the labels '1' in the column 'label' | two or more"),
    ("custom", "csv", "text,label\na,1\nb,0\n", "all labels | numbers (0, 1); give --label-type class | score"),
    ("custom label_type=score", "csv", "text,label\na,1\nb,1e99\n", "line 3: score '1e99' is not a number"),
    ("custom label_type=multi", "csv", "text,label\na,x||y\n", "line 2: the label is empty"),
    ("custom label_type=multi", "csv", 'text,label\na,x\nb,y\nc,"x, y"\n', "'x, y' joins other labels by ',' | as in 'x|y'"),
    ("custom", "jsonl", as_jsonl({"text": "a", "label": {}}), "line 1: the label is {}; give one label"),
    ("custom", "jsonl", as_jsonl({"text": "a", "label": 0}, {"text": "b", "label": 1}), "all labels | numbers"),
    ("custom", "parquet", as_parquet(text=["a", "b"], label=["x", None]), "train.parquet, row 2: the label is empty"),
    ("custom label_type=score", "parquet", as_parquet(text=["a"] * 9, label=[1.5] * 8 + [None]), "row 9: score None"),
    # Multiple choice
    ("swag", "csv", "text,label\na,0\n", "the columns text, label | sent1, sent2, ending0, ending1, ... and label"),
    ("swag", "csv", SWAG + FIRST + SECOND.replace(",is good,0", ",,0"), "line 3: ending 3 is empty | all 4"),
    ("swag", "csv", SWAG.replace(",ending3", "") + "v,1,x,a,b,g,c,d,e,0\n", "has 3 endings (ending0, ending1, ...) | expected 4"),
    ("swag", "csv", SWAG + SECOND.replace(",is good", ""), "line 2: 10 column(s) | expected 11, separated by commas: video-id"),
    ("swag", "csv", SWAG + SECOND.replace(",0\n", ",4\n"), "line 2: label '4' | 0 to 3"),
    ("swag", "csv", SWAG + SECOND.replace(",0\n", ",\n"), "line 2: label '' | 0 to 3"),
    # Two stray quotes, and all between them would be one field.
    ("swag", "csv", SWAG + SECOND + SECOND.replace("v,", '"v,', 1) + SECOND.replace("v,", 'v",', 1),
     "line 3: a quote stays open | quotes in pairs, within a line"),
    ("codah", "tsv", "o\ta\tb\tc\td\t0\n", "has 3 endings (ending0, ending1, ...) | expected 4 (--num-choices)"),
    ("codah", "tsv", CODAH + "o\ta\tb\tc\td\te\tf\t0\n", "line 4: 8 column(s) | expected 7"),
    ("codah", "tsv", "o\ta\tb\tc\td\te\t-1\n", "line 1: label '-1' | 0 to 3"),
    ("codah", "tsv", "o\ta\tb\tc\td\t \t1\n", "line 1: ending 3 is empty"),
    ("codah", "tsv", "o\ta\n", " has 0 endings | expected 4"),
    ("swag", "jsonl", "[]\n", "line 1: a JSON list"),
    ("swag", "jsonl", CHOICE.replace('"choices"', '"words"'), "has 0 endings (choices0, choices1, ...) | expected 4"),
    ("swag", "jsonl", CHOICE.replace('"a", ', ""), "line 1: 3 endings | expected 4"),
    ("swag", "jsonl", CHOICE.replace('"a"', "1"), "line 1: 'ending 0' is 1, not text"),
    ("swag", "jsonl", CHOICE.replace('"answer": 1', '"answer": 4'), "line 1: label 4"),
    ("swag", "jsonl", CHOICE.replace('"answer": 1', '"answer": true'), "line 1: label True"),
    ("swag", "jsonl", CHOICE.replace('"answer": 1, ', ""), "line 1: no label"),
    ("swag", "jsonl", CHOICE.replace('["a", "b", "c", "d"]', '"abcd"'), "line 1: no list but 'abcd', expected 4"),
    ("swag", "jsonl", CHOICE + CHOICE.replace("film", "\\ud83d"), "line 2: 'startphrase': \\ud83d is half a character"),
    ("swag", "jsonl", CHOICE.replace('"d"', '"\\udc00"'), "line 1: 'ending 3': \\udc00 is half a character"),
    ("swag", "jsonl", CHOICE.replace('"answer": 1', '"answer": 1, "answer": 2'), "line 1 | 'answer' is there twice"),
    ("swag", "json", "PAR1", "train.json is not JSON: | line 1 column 1"),
    ("custom", "json", "[]", "train.json is empty; give an array of objects"),
    ("custom", "json", '[{"text": "a", "label": "x"}, 5]', "train.json, object 2: a JSON int"),
    ("custom", "json", '[{"text": "a", "label": "x"}, {"text": "b"}]', "train.json, object 2: no 'label' | 'text'"),
    ("custom", "json", '{"text": {"0": "a"}}', "train.json holds a JSON dict; give an array of objects"),
    # Cloze tests
    ("fill-mask", "tsv", "text\tword\na [MASK]\tfilm\n", "no column 'answer' | 'text', 'word'"),
    ("fill-mask", "tsv", "text\tanswer\na\tfilm\n", "line 2: the text has 0 [MASK]"),
    ("fill-mask", "jsonl", as_jsonl({"text": "a [MASK]"}), "no column 'answer'"),
    ("fill-mask", "jsonl", as_jsonl({"text": "a [MASK]", "answer": 5}), "line 1: 'answer' is 5, not text"),
    ("fill-mask", "jsonl", as_jsonl(CLOZE, AMONG[0]), "line 2: | 0 [MASK]"),
    ("fill-mask", "jsonl", as_jsonl(AMONG[1]), "line 1: | 2 [MASK]"),
    ("fill-mask", "txt", "PAR1", "train.txt does not end in .tsv, .csv, .jsonl, .json, .parquet"),
    # CoNLL's format
    ("conll2003", "txt", b"-DOCSTART-\nAda I-PER\nmet\n", "train.txt, line 3: 1 column(s), expected 2"),
    ("conll2003", "txt", DOC + b"\nAda X I-PER\n", "line 4: 3 column(s), expected 2"),
    ("conll2003", "txt", DOC + b"X I-PER\nY B-PER\nB E-PER", "line 5: unknown tag 'E-PER'; | IOB1 | O, B-TYPE, I-TYPE"),
    ("conll2003", "txt", DOC + b"B PER", "line 3: unknown tag 'PER'"),
    ("conll2003", "txt", DOC + b"B I-", "line 3: unknown tag 'I-'"),
    ("conll2003", "txt", DOC + b"\xff O\n", "line 3, byte 1: 0xff is not UTF-8"),
    ("conll2003", "txt", gzip.compress(b"Ada I-PER\n" * 50)[:30], "cannot be unpacked"),
    ("conll2003", "txt", b"-DOCSTART- O\n\n\n", "train.txt has no words"),
    ("conll2003", "txt", b"-DOCSTART- O\n\nAda O\n", "train.txt has no entities: every tag is O"),
    ("conll2003", "txt", b"Ada I-PER\n", "train.txt has no -DOCSTART- lines | give --context sentence"),
    *(("conll2003", ending, "PAR1", f"train.{ending} is a .{ending} file; | one word and its tag a line | tagger")
      for ending in ("csv", "parquet")),
    ("conll2003", "jsonl", "PAR1", "train.jsonl, line 1 is not JSON"),
    ("conll2003", "jsonl", '{"tokens": ["Ada"], "ner_tags": ["B-PER"]}', "has no -DOCSTART- lines | give --context sentence"),
    ("conll2003", "jsonl", '{"tokens": ["Ada"], "pos": [1]}', "line 1: the row has 'tokens', 'pos'; give | ner_tags"),
    ("conll2003", "jsonl", '{"tokens": ["Ada"], "tags": ["O", "O"]}', "line 1: 1 words and 2 tags"),
    ("conll2003", "jsonl", '{"tokens": ["Ada"], "ner_tags": [1]}', "line 1: the tags are numbers; write their names"),
    ("conll2003", "jsonl", '{"words": ["a b"], "labels": ["O"]}', "line 1: 'a b' is no word"),
    ("conll2003", "jsonl", '{"text": "a"}', "line 1: the row has 'text'; give | entities | Label Studio"),
    ("conll2003", "json", '{"text": "a"}', "train.json holds no list of texts"),
    ("conll2003", "json", "[]", "train.json has no annotated texts"),
    ("conll2003", "json", '[["a", {"entities": []}]]', "train.json has no entities: every tag is O"),
    # SQuAD's JSON
    ("squad1.1", "json", b'{"data": [', "train.json is not JSON: | line 1 column 11"),
    ("squad1.1", "json", b"\xff{}", "train.json, line 1, byte 1: 0xff is not UTF-8"),
    ("squad1.1", "json", "[]", "train.json: 'data' is missing; give a list"),
    ("squad1.1", "json", '{"data": [{"title": "x"}]}', "train.json, data[0]: 'paragraphs' is missing; give a list"),
    ("squad1.1", "json", '{"data": [{"paragraphs": [{"qas": []}]}]}',
     "data[0].paragraphs[0]: 'context' is missing; give a string"),
    ("squad1.1", "json", '{"data": []}', "train.json has no questions"),
    ("squad1.1", "json", squad_json(GOOD | {"id": 7}), "data[0].paragraphs[0].qas[0]: 'id' is 7; give a string"),
    ("squad1.1", "json", squad_json(GOOD | {"answers": [{"text": "France", "answer_start": "2"}]}),
     "'answer_start' is '2'; give a whole number"),
    ("squad1.1", "json", squad_json(GOOD | {"answers": {"text": ["x" * 99]}}),
     f"q7: 'answers' is {{'text': ['{'x' * 37}...{'x' * 38}']}}; give a list"),
    ("squad1.1", "json", squad_json(GOOD | {"question": None}), "train.json, question q7: 'question' is None; give a string"),
    ("squad1.1", "json", squad_json({k: v for k, v in GOOD.items() if k != "answers"}),
     "question q7: 'answers' is missing; give a list"),
    ("squad1.1", "json", squad_json(GOOD | {"answers": [{"text": "France"}]}),
     "question q7: 'answer_start' is missing; give a whole number"),
    ("squad1.1", "json", squad_json(GOOD | {"answers": [{"answer_start": 1}]}), "question q7: 'text' is missing; give a string"),
    ("squad1.1", "json", squad_json(GOOD | {"answers": ["France"]}), "question q7: 'text' is missing; give a string"),
    ("squad1.1", "json", squad_json(GOOD | {"is_impossible": True}), "question q7: is_impossible is true with 1 answers"),
    ("squad1.1", "json", squad_json(question("q7", NORMANS) | {"is_impossible": False}),
     "q7: is_impossible is false with 0 answers"),
    ("squad1.1", "json", squad_json(question("q7", NORMANS)), "question q7: | no answer, but SQuAD 1.1 | squad2.0"),
    ("squad1.1", "json", squad_json(GOOD, GOOD), "question q7: the id occurs twice"),
    ("squad1.1", "json", squad_json(question("q7", " \n")), "question q7: the context is empty"),
    ("squad1.1", "json", squad_json(question("q7", NORMANS, ("", 0))), "question q7: the text of an answer is empty"),
    ("squad1.1", "json", squad_json(GOOD | {"question": "\ud83d"}), "question q7: \\ud83d is half a character"),
    *(("squad1.1", ending, "PAR1", f"train.{ending} is a .{ending} file; | SQuAD's .json; | question_answerer")
      for ending in ("csv", "parquet", "jsonl", "tsv")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "ending", "content", "facts"), ROWS, ids=[f"{row[0]}-{row[3][:40]}" for row in ROWS]
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(task, ending, content, facts, tmp_path):
    path = tmp_path / f"train.{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    name, *options = task.split()
    settings = dict(option.split("=") for option in options)
    if "text_column" in settings:
        settings["text_column"] = [settings["text_column"]]
    with pytest.raises(BertKerasError) as caught:
        open_task(name, path, **settings).examples("train")
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    assert [fact for fact in facts.split(" | ") if fact not in message] == [], message


def test_a_folder_without_the_file_names_its_files(tmp_path):
    (tmp_path / "other.txt").touch()
    for task in ("sst2", "custom"):
        with pytest.raises(FileNotFoundError, match=r"has no train\.tsv.*; it has other\.txt"):
            open_task(task, tmp_path).examples("train")


def test_semicolons_separate_the_columns_of_a_csv_without_commas_in_its_first_line(tmp_path):
    (tmp_path / "own.csv").write_text('label;text\nx;"a, b; c"\n', encoding="utf-8-sig")
    assert [row.values for row in read_table(tmp_path / "own.csv", ["text", "label"])] == [["a, b; c", "x"]]
