"""A user's own data: CSV, TSV, JSON lines and Parquet, columns by name, types of labels, and a held-out dev split."""

import gzip
import json
import re
import shutil

import numpy as np
import pytest
import runs
import tensorflow as tf
from test_bad_files import as_jsonl, as_parquet

from bert_keras.errors import BertKerasError
from bert_keras.tasks.batches import hold_out
from bert_keras.tasks.data.columns import class_ids
from bert_keras.tasks.data.tables import read_examples
from bert_keras.tasks.finetuning.finetune import finetune, plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.training.plan import digest_of_examples

ROWS = [('a "b", c\nd', "no"), ("b", "yes"), ("ж\u2028x", "no")]


def as_csv(rows, names=("text", "label")):
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in [names, *rows]]
    return "\n".join(quoted).encode()


def write(folder, **files):
    """`train_csv=b"..."` -> train.csv"""
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def read(task, split="train"):
    (batch,) = task.examples(split).batch(1000).as_numpy_iterator()
    return batch


TABLES = {
    "csv": as_csv(ROWS),
    "csv_gz": gzip.compress(as_csv(ROWS)),
    "jsonl": as_jsonl(*({"text": text, "label": label} for text, label in ROWS)),
    "json": json.dumps([{"text": text, "label": label} for text, label in ROWS], indent=1),
    "parquet": as_parquet(text=[text for text, _ in ROWS], label=[label for _, label in ROWS]),
}


@pytest.mark.parametrize("ending", TABLES)
def test_every_format_gives_the_same_examples(tmp_path, ending):
    task = TextClassification.open("custom", write(tmp_path, **{f"train_{ending}": TABLES[ending]}))
    got = read(task)
    assert [text.decode() for text in got["text"]] == [text for text, _ in ROWS]
    assert got["label"].tolist() == [0, 1, 0] and task.label_names == ("no", "yes")


def test_ndjson_is_another_name_of_jsonl(tmp_path):
    path = write(tmp_path, x_ndjson=TABLES["jsonl"]) / "x.ndjson"
    assert [row["text"] for row in read_examples(str(path), ["text"])] == [text for text, _ in ROWS]


# A .tsv -> its texts as they are read: with CSV's quotes where a CSV writer wrote the whole file.
QUOTED = {
    "pandas": ('text\tlabel\n"a ""b"" c"\tx\nd\ty\n', ['a "b" c', "d"], True),
    "a tab and a newline": ('text\tlabel\n"a\tb\nc"\tx\nd\ty\n', ["a\tb\nc", "d"], True),
    "a spreadsheet": ('text\tlabel\r\n"a ""b"""\tx\r\n"c, d"\ty\r\n', ['a "b"', "c, d"], True),
    "every cell": ('"text"\t"label"\n"a"\t"x"\n"b"\t"y"\n', ["a", "b"], True),
    "quotes at both ends": ('text\tlabel\n"a b"\tx\nc\ty\n', ['"a b"', "c"], False),
    "quotes inside": ('text\tlabel\n"a ""b"""\tx\nsay "c"\ty\n', ['"a ""b"""', 'say "c"'], False),
    "a quote alone": ('text\tlabel\n"a\tx\n"b ""c"""\ty\n', ['"a', '"b ""c"""'], False),
    "quotes and a comma": ('text\tlabel\n"a, b"\tx\nc\ty\n', ['"a, b"', "c"], False),
}


@pytest.mark.parametrize("name", QUOTED)
@pytest.mark.filterwarnings("ignore:.*quotes around cells are left out, as in CSV")
def test_quotes_of_a_tsv(name, tmp_path):
    content, texts, quoted = QUOTED[name]
    path = write(tmp_path, train_tsv=content) / "train.tsv"
    assert [text.decode() for text in read(TextClassification.open("custom", path))["text"]] == texts
    assert [row["text"] for row in read_examples(str(path), ["text"])] == texts
    opposite = "text" if quoted else "csv"
    for given in ("text", "csv"):
        if name in ("a tab and a newline", "every cell", "a quote alone") and given == opposite:
            continue  # the other reading is no table
        task = TextClassification.open("custom", path, quoting=given)
        again = TextClassification.from_json(json.loads(json.dumps(task.to_json())), path)
        found = [text.decode() for text in read(again)["text"]]
        assert (found == texts) == (given != opposite)
        assert [row["text"] for row in again.inputs(str(path))] == found


def test_csv_quotes_are_said_and_glue_s_own_files_have_none(tmp_path):
    content = 'sentence\tlabel\n"a ""b"" c"\t1\nd\t0\n'
    path = write(tmp_path, train_tsv=content) / "train.tsv"
    with pytest.warns(
        UserWarning, match="train.tsv: quotes around cells are left out, .*--quoting text keeps them"
    ):
        TextClassification.open("custom", path, label_type="class")
    assert read(TextClassification.open("sst2", path))["sentence"][0] == b'"a ""b"" c"'
    assert read(TextClassification.open("sst2", path, quoting="csv"))["sentence"][0] == b'a "b" c'


# The labels of a file -> those of its examples, and the labels of the task.
LABELS_OF_FILES = {
    "SNLI": ("a b - a", [0, 1, 0], ("a", "b")),
    "signs": ("+ - 0", [0, 1, 2], ("+", "-", "0")),
    "two": ("- a -", [0, 1, 0], ("-", "a")),
}


@pytest.mark.parametrize("name", LABELS_OF_FILES)
def test_a_dash_beside_words_is_no_label(name, tmp_path, recwarn):
    written, ids, labels = LABELS_OF_FILES[name]
    rows = "".join(f"{i} words,{label}\n" for i, label in enumerate(written.split()))
    path = write(tmp_path, train_csv=f"text,label\n{rows}") / "train.csv"
    task = TextClassification.open("custom", path)
    assert task.label_names == labels and read(task)["label"].tolist() == ids
    said = [str(one.message).partition("train.csv, ")[2] for one in recwarn]
    left_out = "line 4: the first of 1 rows with the label '-', no label; they are left out"
    assert said == ([left_out] if len(ids) < len(written.split()) else [])


def test_empty_texts_are_counted_with_the_first_row(tmp_path):
    path = write(tmp_path, train_csv="text,label\na,x\n,y\n  ,x\n") / "train.csv"
    with pytest.warns(UserWarning, match="train.csv, line 3: the first of 2 rows with an empty text"):
        assert read(TextClassification.open("custom", path))["text"].tolist() == [b"a", b"", b"  "]


@pytest.mark.parametrize(
    "text",
    [
        "text,label\r\na,x\r\nb,y\r\n",
        "\ufefftext,label\na,x\n\ufeff\nb,y",
        ",text,label,id\n0,a, x,7\n1,b,y ,8\n",  # pandas' index has no name
        "label,text\n\nx,a\n\ny,b\n",
    ],
)
def test_csv_as_people_have_it(tmp_path, text):
    task = TextClassification.open("custom", write(tmp_path, train_csv=text) / "train.csv")
    got = read(task)
    assert got["text"].tolist() == [b"a", b"b"] and got["label"].tolist() == [0, 1]


def test_a_cell_of_200_000_characters(tmp_path):
    long = "a b " * 50_000
    task = TextClassification.open("custom", write(tmp_path, train_csv=as_csv([(long, "x"), ("b", "y")])))
    assert read(task)["text"][0].decode() == long


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [("ID,text", ("text",)), ("Unnamed: 0,text", ("text",)), ("text,reply", ("text", "reply"))],
)
def test_an_index_is_no_text_and_two_texts_are_a_pair(columns, wanted, tmp_path):
    first = "1234" if len(wanted) == 1 else ("a", "b", "a", "b")
    rows = "".join(f"{one},{i} words,{'xxyy'[i]}\n" for i, one in enumerate(first))
    path = write(tmp_path, train_csv=f"{columns},label\n{rows}") / "train.csv"
    assert TextClassification.open("custom", path).text == wanted


def test_names_that_no_line_repeats_are_a_header(tmp_path):
    path = write(tmp_path, train_csv="review,stars\na,x\nb,y\n") / "train.csv"
    with pytest.raises(BertKerasError) as caught:
        TextClassification.open("custom", path)
    assert "header" not in str(caught.value)


def test_a_parquet_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_keras.tasks.data.tables.MAX_UNPACKED_BYTES", 100_000)
    monkeypatch.setattr("bert_keras.tasks.data.tables.MAX_RATIO", 10)
    bomb = as_parquet(text=["a" * 1000] * 4000, label=["x", "y"] * 2000)
    path = write(tmp_path, train_parquet=bomb) / "train.parquet"
    assert len(bomb) < 100_000
    with pytest.raises(BertKerasError, match="train.parquet unpacks to over"):
        TextClassification.open("custom", path).examples("train")


def test_a_row_of_csv_is_bounded_where_a_quote_stays_open(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_keras.tasks.data.tables.MAX_LINE_BYTES", 1000)
    path = write(tmp_path, train_csv='text,label\na,x\n"b,y\n' + "c,x\n" * 1000) / "train.csv"
    message = "train.csv, line 3: the row has over 1,000 bytes; close its quote"
    with pytest.raises(BertKerasError, match=message):
        TextClassification.open("custom", path)


def test_columns_by_name_and_names_that_are_no_identifiers(tmp_path):
    table = as_csv([("1", "p", "q", "x"), ("2", "r", "s", "y")], ("label", "my text", "row", "kind"))
    path = write(tmp_path, train_csv=table) / "train.csv"
    task = TextClassification.open("custom", path, text_column=["row", "my text"], label_column="kind")
    assert list(task.signature()) == ["text_row", "my_text"]
    assert task.columns == {"text_row": "row", "my_text": "my text"}
    again = TextClassification.from_json(json.loads(json.dumps(task.to_json())), path)
    got = read(again, "validation")
    assert (got["text_row"].tolist(), got["my_text"].tolist()) == ([b"q", b"s"], [b"p", b"r"])
    assert got["label"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["Review Text"], ["Review_Text"]),
        (["текст"], ["text"]),
        (["вопрос", "ответ"], ["text_1", "text_2"]),
        (["class", "7"], ["text_class", "text_7"]),
    ],
)
def test_names_that_a_saved_model_can_have(tmp_path, columns, names):
    rows = [row[-len(columns) - 1 :] for row in (("a", "b", "x"), ("c", "d", "y"))]
    table = as_csv(rows, (*columns, "label"))
    task = TextClassification.open("custom", write(tmp_path, train_csv=table) / "train.csv")
    assert list(task.signature()) == names
    served = tf.function(lambda **texts: texts, input_signature=None)
    arguments = {name: tf.TensorSpec([None], tf.string, name=name) for name in names}
    module = tf.Module()
    module.serve = served.get_concrete_function(**arguments)
    tf.saved_model.save(module, tmp_path / "saved", signatures={"serving_default": module.serve})


def test_columns_of_files_need_files():
    with pytest.raises(BertKerasError, match="give the files too"):
        TextClassification.open("sst2", None, text_column=["a"])


def test_any_number_of_labels_in_text_and_in_lists(tmp_path):
    written = as_csv([("a", "x|y z"), ("b", ""), ("c", " x ")])
    lists = (("a", ["x", "y z"]), ("b", []), ("c", ["x"]))
    listed = as_jsonl(*({"text": text, "label": label} for text, label in lists))
    write(tmp_path, train_csv=written, train_jsonl=listed)
    for name, options in (("train.csv", {"label_type": "multi"}), ("train.jsonl", {})):
        task = TextClassification.open("custom", tmp_path / name, **options)
        assert task.label_names == ("x", "y z") and task.measure == "f1"
        assert read(task)["label"].tolist() == [[1, 1], [0, 0], [1, 0]]


def test_scores_of_any_size(tmp_path):
    folder = write(tmp_path, train_csv="text,label\na,-7\nb,1e3\n")
    task = TextClassification.open("custom", folder, label_type="score")
    assert task.label_names == () and read(task)["label"].tolist() == [-7, 1000]


def test_a_label_of_the_dev_file_that_the_training_file_lacks(tmp_path):
    write(tmp_path, train_csv="text,label\na,x\nb,y\n", dev_jsonl=as_jsonl({"text": "c", "label": "z"}))
    source = {"train": tmp_path / "train.csv", "validation": tmp_path / "dev.jsonl"}
    for given in (tmp_path, source):
        with pytest.raises(BertKerasError, match="dev.jsonl, line 1: unknown label 'z'; the labels are x, y"):
            TextClassification.open("custom", given).examples("validation")


def test_a_folder_with_other_files_names_them(tmp_path):
    write(tmp_path, dev_csv="", notes_txt="")
    with pytest.raises(FileNotFoundError, match="has no train.tsv, .* it has dev.csv, notes.txt"):
        TextClassification.open("custom", tmp_path)
    write(tmp_path, train_csv="text,label\na,x\n", train_tsv="text\tlabel\na\tx\n")
    with pytest.raises(BertKerasError, match="has train.tsv and train.csv"):
        TextClassification.open("custom", tmp_path)


def test_a_glue_task_reads_tables_with_other_columns(tmp_path):
    table = as_parquet(sentence1=["a", "b"], sentence2=["c", "d"], label=[0, 1], idx=[5, 6])
    path = write(tmp_path, mrpc_parquet=table) / "mrpc.parquet"
    columns = {"text_column": ["sentence1", "sentence2"], "label_column": "label"}
    assert read(TextClassification.open("mrpc", path, **columns))["label"].tolist() == [0, 1]
    with pytest.raises(BertKerasError, match="label_type applies only to custom"):
        TextClassification.open("mrpc", path, label_type="class")
    with pytest.raises(BertKerasError, match="text_column is a; mrpc reads 2"):
        TextClassification.open("mrpc", path, text_column=["a"])


# Labels -> labels as people have them and their ids, or the row and the words of the error.
NAMED = {
    "names": (("bad", "good"), ["good", b"bad", "good"], [1, 0, 1]),
    "ids": (("bad", "good"), [1, 0.0, np.float32(1)], [1, 0, 1]),
    "NaN among ids": (
        ("bad", "good"),
        [1.0, 0.0, float("nan")],
        "label nan, of type float, in row 2; give one of 'bad'",
    ),
    "numbers": (("1", "2", "5"), [1, 2.0, "5"], [0, 1, 2]),
    "numbers with a point": (("0.5", "1.0"), [1, 0.5, "1.0"], [1, 0, 1]),
    "a number as text": (
        ("1.0", "2.0"),
        ["1"],
        "label '1', of type str, in row 0; give one of '1.0', '2.0'.$",
    ),
    "an id as text": (
        ("bad", "good"),
        ["bad", "1"],
        "label '1', of type str, in row 1; .* a number from 0 to 1",
    ),
    "half": (("bad", "good"), [0.5], "label 0.5, of type float, in row 0"),
    "equal numbers": (("1", "1.0"), [1, "1.0"], [1, 1]),
}


@pytest.mark.parametrize("name", NAMED)
def test_labels_of_python(name):
    labels, given, wanted = NAMED[name]
    if isinstance(wanted, list):
        assert class_ids(given, labels).tolist() == wanted
        return
    with pytest.raises(BertKerasError, match=wanted):
        class_ids(given, labels)


def test_equal_numbers_are_one_label_in_files(tmp_path):
    write(tmp_path, train_csv="text,label\na,1.0\nb,2.0\n", dev_csv="text,label\na,2\nb,1\n")
    task = TextClassification.open("custom", tmp_path, label_type="class")
    assert read(task, "validation")["label"].tolist() == [1, 0]


def test_held_out_examples_are_decided_by_the_seed_and_are_no_training_examples():
    examples = tf.data.Dataset.from_tensor_slices({"n": np.arange(100)})

    def drawn(seed):
        parts = hold_out(examples, fraction=0.1, seed=seed)
        return [[int(one["n"]) for one in part.as_numpy_iterator()] for part in parts]

    train, dev = drawn(1)
    assert (len(train), len(dev)) == (90, 10)
    assert sorted(train + dev) == list(range(100)) and train == sorted(train)
    assert drawn(1) == [train, dev] != drawn(2)
    with pytest.raises(BertKerasError, match=r"0.001 of 100 example\(s\) is 0"):
        hold_out(examples, fraction=0.001, seed=1)


@pytest.mark.long
def test_a_resume_checks_the_held_out_fraction(tmp_path):
    checkpoint = runs.write_checkpoint(tmp_path / "checkpoint")
    rows = [(text, "xy"[len(text) % 2]) for text in runs.texts(40, seed=1)]
    task = TextClassification.open("custom", write(tmp_path, train_csv=as_csv(rows)) / "train.csv")

    def fingerprint(**settings):
        hparams = Hparams(seq_length=16, **settings)
        return plan_finetuning(task, checkpoint=checkpoint, hparams=hparams).fingerprint

    first, second = fingerprint(dev_fraction=0.2), fingerprint(dev_fraction=0.1)
    assert first == fingerprint(dev_fraction=0.2)
    assert (first["train_examples"][0], first["dev_examples"][0]) == (32, 8)
    differ = {name for name in first if first[name] != second[name]}
    assert differ == {"dev_fraction", "train_examples", "dev_examples"}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A folder with own.csv, other.csv and the run of a training that held out a quarter of own.csv."""
    folder = tmp_path_factory.mktemp("held")
    rows = [(text, "xy"[len(text) % 2]) for text in runs.texts(40, seed=1)]
    write(folder, own_csv=as_csv(rows), other_csv=as_csv(rows[::-1]))
    checkpoint = runs.write_checkpoint(folder / "checkpoint")
    task = TextClassification.open("custom", folder / "own.csv")
    for name, seed in (("run", Hparams.seed), ("again", 7)):
        hparams = Hparams(seq_length=16, epochs=1, dev_fraction=0.25, seed=seed)
        places = {"checkpoint": checkpoint, "output": folder / name}
        finetune(task, **places, hparams=hparams, verbose=0, log=lambda _: None)
    return folder


def measured(capfd, *arguments):
    code, out, err = runs.run_command(capfd, "evaluate", "--json", *arguments)
    assert code == 0, err
    content = json.loads(out)
    assert [*content.pop("tables")] == [*content]
    return content, err


@pytest.mark.long
def test_evaluate_measures_the_rows_that_were_held_out_of_the_training_file(held, capfd):
    wanted = json.loads((held / "run" / "results.json").read_text())["measures"]["val_accuracy"]
    (held / "renamed.csv").write_bytes((held / "own.csv").read_bytes())
    (held / "folder").mkdir()
    (held / "folder" / "train.csv").write_bytes((held / "own.csv").read_bytes())
    for name in ("own.csv", "renamed.csv", "folder"):
        found, err = measured(capfd, "--run", held / "run", "--data", held / name)
        assert found == {"held-out": {"accuracy": wanted}}
        assert "10 of its 40 examples" in err and "--split train" in err
    found, err = measured(capfd, "--run", held / "run", "--data", held / "own.csv", "--split", "held-out")
    assert found == {"held-out": {"accuracy": wanted}}
    found, err = measured(capfd, "--run", held / "run", "--data", held / "own.csv", "--split", "train")
    assert [*found] == ["train"] and err == ""


def test_evaluate_warns_where_another_split_is_the_training_file(held, capfd, tmp_path):
    """One file is every split: the rows of --split validation trained the run too."""
    found, err = measured(capfd, "--run", held / "run", "--data", held / "own.csv", "--split", "validation")
    assert [*found] == ["validation"] and err.startswith("warning: ") and "own.csv trained" in err
    found, err = measured(capfd, "--run", held / "run", "--data", held / "other.csv", "--split", "validation")
    assert [*found] == ["validation"] and err == ""
    # A folder has another file for it.
    for name, source in (("train.csv", "own.csv"), ("test.csv", "other.csv")):
        shutil.copy(held / source, tmp_path / name)
    found, err = measured(capfd, "--run", held / "run", "--data", tmp_path, "--split", "test")
    assert [*found] == ["test"] and err == ""


def test_evaluate_measures_all_rows_of_another_file(held, capfd):
    flags = ("--run", held / "run", "--data", held / "other.csv")
    found, err = measured(capfd, *flags)
    assert [*found] == ["validation"] and err == ""
    code, _, err = runs.run_command(capfd, "evaluate", *flags, "--split", "held-out")
    assert code == 1 and "other.csv is not training data" in err and len(err.splitlines()) == 1


@pytest.mark.long
def test_evaluate_warns_of_rows_that_trained_the_run(held, capfd, tmp_path):
    found, err = measured(capfd, "--run", held / "run", held / "again", "--data", held / "own.csv")
    assert [*found] == ["validation"] and "warning: " in err and "trained" in err
    run = shutil.copytree(held / "run", tmp_path / "run")
    kept = json.loads((run / "checkpoints" / "settings.json").read_text())
    whole = digest_of_examples(TextClassification.open("custom", held / "own.csv").examples("train"))
    kept |= {"dev_fraction": None, "train_examples": [40, whole]}
    (run / "checkpoints" / "settings.json").write_text(json.dumps(kept))
    found, err = measured(capfd, "--run", run, "--data", held / "own.csv")
    assert [*found] == ["validation"] and "warning: " in err and "trained" in err
    shutil.rmtree(run / "checkpoints")  # of a run without its settings, nothing is known
    assert measured(capfd, "--run", run, "--data", held / "own.csv")[1] == ""


DEV = {
    "neither": ([], "--dev-data, or --dev-fraction"),
    "both": (["--dev-data", "own.csv", "--dev-fraction", "0.1"], "give one of them"),
    "a fraction out of range": (["--dev-fraction", "1"], "--dev-fraction is 1.0; --dev-fraction must be"),
    "a folder with a dev split": (["--data", "both", "--dev-fraction", "0.1"], "both has a dev split"),
    "no training file": (["--data", "none.csv", "--dev-fraction", "0.1"], "there is no none.csv .*own.csv"),
    "another task": (["--task", "swag", "--dev-fraction", "0.1", "--text-column", "a"], "--text-column does not"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEV)
def test_one_file_needs_one_source_of_a_dev_split(tmp_path, capfd, monkeypatch, name):
    flags, message = DEV[name]
    monkeypatch.chdir(tmp_path)
    write(tmp_path, own_csv=as_csv(ROWS))
    (tmp_path / "both").mkdir()
    write(tmp_path / "both", train_csv=as_csv(ROWS), dev_csv=as_csv(ROWS))
    command = ["finetune", "--task", "custom", "--checkpoint", "none", "--output", "run", "--data", "own.csv"]
    code, _, err = runs.run_command(capfd, *command, *flags)
    assert code == 1 and err.count("\n") == 1
    assert re.search(message, err), err


@pytest.mark.long
def test_csv_from_training_to_export_by_command(tmp_path, capfd):
    rows = [(text + ", or\nso", "good one" if "good" in text else "bad") for text in runs.texts(60, seed=3)]
    path = write(tmp_path, own_csv=as_csv(rows, ("Review Text", "mood"))) / "own.csv"
    runs.write_checkpoint(tmp_path / "checkpoint")
    run, flags = tmp_path / "run", ["--epochs", "1", "--seq-length", "24", "--batch-size", "16"]
    start = ["--checkpoint", tmp_path / "checkpoint", "--output", run, "--dev-fraction", "0.2"]
    columns = ["--text-column", "Review Text", "--label-column", "mood"]
    command = ["finetune", "--task", "custom", "--data", path, *columns, *start, *flags]
    code, out, err = runs.run_command(capfd, *command)
    assert code == 0, err  # one epoch may not learn, which is a warning
    assert "text: Review Text; labels: bad, good one" in out
    results = json.loads((run / "results.json").read_text())
    assert (results["train_examples"], results["dev_examples"]) == (48, 12)

    evaluate = ["evaluate", "--run", run, "--data", path, "--json", "--split", "validation"]
    code, out, err = runs.run_command(capfd, *evaluate)
    warned = r"warning: .*own\.csv trained .*run: the measures do not tell .*\n"
    assert code == 0 and re.fullmatch(warned, err), err
    measured = json.loads(out)["validation"]["accuracy"]
    code, out, err = runs.run_command(capfd, "predict", "--run", run, "--data", path, "--format", "jsonl")
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["Review_Text"] for answer in answers] == [text for text, _ in rows]
    right = [answer["label"] == label for answer, (_, label) in zip(answers, rows, strict=True)]
    assert np.mean(right) == pytest.approx(measured)
    code, out, err = runs.run_command(capfd, "export", "--run", run, "--output", tmp_path / "served")
    assert code == 0, err
    assert "fresh process" in out
    assert load_run(run, data=path).task.validation_splits == ("validation",)


@pytest.mark.slow
def test_every_command_of_the_page_works_as_it_stands(tmp_path, capfd, monkeypatch):
    page = (runs.ROOT / "docs" / "data.md").read_text()
    monkeypatch.chdir(tmp_path)
    for name, content in re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```", page, re.M | re.S):
        (tmp_path / name).write_text(content)
    runs.write_checkpoint(tmp_path / "minilm", max_positions=128)
    commands = re.findall(r"^    bert-keras (.*)", page, re.M)
    # Files of the paper's tasks are not on the page.
    commands = [command for command in commands if not re.search("--task (squad|conll)", command)]
    assert len(commands) == 7
    for command in commands:
        code, _, err = runs.run_command(capfd, *command.split())
        assert code == 0, (command, err)


def test_the_report_of_scores_has_the_errors_of_all():
    task = TextClassification(label_type="score")
    raw = {"text": np.array([b"a", b"b", b"c"], object), "label": np.float32([0.0, 1.0, np.nan])}
    titles = [table.title for table in task.report({"score": np.float32([0.5, 2.0, 9.0])}, raw)]
    assert "largest errors; of all: root mean square 0.7906, mean 0.75" in titles
