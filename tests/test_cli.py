"""The `bert-keras` command: what it prints, what it makes, how it reads text, and how it ends."""

import argparse
import csv
import importlib
import io
import json
import re
import shutil
import subprocess
import sys

import filelock
import forked
import numpy as np
import pytest
import runs
import tensorflow as tf
from runs import ROOT, VOCABULARY, bare_environment, contents, run_command, shell_command

import bert_keras
from bert_keras import checkpoints
from bert_keras.checkpoints.published import KNOWN
from bert_keras.cli import console
from bert_keras.cli import main as cli
from bert_keras.fields import Masking, given_settings, names_of
from bert_keras.savedmodels.verify import ask
from bert_keras.tasks.commands.finetuning import CHUNK
from bert_keras.tasks.data.tables import read_examples
from bert_keras.tasks.hparams import OF_FEATURES, Hparams, Sampling
from bert_keras.tasks.options import (
    TASK_NAMES,
    TASK_OPTIONS,
    ClassifierOptions,
    ExportOptions,
    FeatureOptions,
    FillMaskOptions,
    GenerationOptions,
    HubOptions,
    PlanOptions,
    ServerOptions,
    TranslationOptions,
    TriviaQaOptions,
    VocabularyOptions,
)
from bert_keras.tasks.pretraining.recipes import CLASSES as RECIPE_CLASSES
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.tasks.runs.task_types import TASKS
from bert_keras.tasks.study.rows import NOT_IN_APPROACHES
from bert_keras.tasks.study.study_options import (
    AblationOptions,
    ApproachOptions,
    GlueOptions,
    ProtocolOptions,
)

COMMANDS = (
    "finetune probe protocol glue triviaqa evaluate predict features export serve hub convert triviaqa demo info doctor models "
    "vocab instances plan pretrain fill-mask translate generate attention ablate completion index search mine measure"
).split()
# Possible content of texts: nothing, tabs and carriage returns, markup, other scripts.
TEXTS = ["good film", "", "bad\rplot", "[bold]a\tb[/x] [SEP]", "\u2028 真好 \N{GRINNING FACE}"]
TEXTS.append(" very very dull ")
ABLATE = "ablate tasks --text t --vocab v --output o"


@pytest.fixture
def command(capfd):
    """Runs `bert-keras ...` in this process: exit code, standard output, standard error."""
    return lambda *arguments: run_command(capfd, *arguments)


def run_in(folder, *command, **environment) -> subprocess.CompletedProcess:
    """Runs Python in a process of its own."""
    line, env = [sys.executable, *map(str, command)], bare_environment() | environment
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def stdin(monkeypatch):
    """Sets what standard input holds, in bytes."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help(command, name):
    code, out, err = command(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: bert-keras {name} ")
    assert f"bert-keras {name} " in out.partition("example:")[2]


def test_help_lists_every_command(command):
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"^    ([a-z-]+)(?:\s|$)", out, re.MULTILINE)) == {*COMMANDS}


def flags_of(name: str) -> dict[str, argparse.Action]:
    """The flags of a command, by the names that the parsed arguments have."""
    parser = cli.parser([name.split()[0]])
    for word in name.split():
        (parser,) = (action.choices[word] for action in parser._actions if action.nargs == argparse.PARSER)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize(
    ("name", "settings", "without"),
    [
        ("finetune", (Hparams, *TASK_OPTIONS), ()),
        ("protocol", (Hparams, *TASK_OPTIONS, ProtocolOptions), ("learning_rate", "dev_fraction")),
        (
            "glue",
            (Hparams, ClassifierOptions, ProtocolOptions, GlueOptions),
            ("learning_rate", "dev_fraction", "doc_stride", "truncation", "feature_layers", *OF_FEATURES),
        ),
        ("features", (FeatureOptions,), ()),
        ("vocab", (VocabularyOptions,), ()),
        ("fill-mask", (FillMaskOptions,), ()),
        ("translate", (TranslationOptions,), ()),
        ("generate", (GenerationOptions,), ()),
        ("export", (ExportOptions,), ()),
        ("hub", (HubOptions,), ()),
        ("serve", (ServerOptions,), ()),
        ("pretrain", RECIPE_CLASSES, ()),
        ("plan", (*RECIPE_CLASSES, PlanOptions), ()),
        ("instances", (Sampling, Masking), ()),
        ("ablate tasks", (*RECIPE_CLASSES, AblationOptions), ()),
        ("ablate layers", (Hparams, *TASK_OPTIONS, ApproachOptions), (*NOT_IN_APPROACHES, "scale")),
        ("triviaqa", (TriviaQaOptions,), ()),
    ],
)
def test_every_setting_is_a_flag(name, settings, without):
    flags = flags_of(name)
    assert {field for kind in settings for field in names_of(kind)} - {*without} <= {*flags}
    assert not {*without} & {*flags}


def test_settings_of_a_recipe_in_help_have_its_defaults():
    flags = flags_of("pretrain")
    assert flags["phases"].help.endswith("(default: [[128, 0.9], [512, 0.1]])")
    assert flags["dupe_factor"].help.endswith("(default: 1)"), "that of the recipe"
    assert flags_of("instances")["max_predictions"].help.endswith("(default: 20)")


def test_a_flag_that_is_not_given_leaves_the_default():
    given = parsed("finetune", "--task", "sst2", "--checkpoint", "x", "--output", "y", "--epochs", "5")
    assert given_settings(given, Hparams, *TASK_OPTIONS) == {"epochs": 5}
    assert given.output == "y"


def parsed(name: str, *arguments: str) -> argparse.Namespace:
    return cli.parser([name]).parse_args([name, *arguments])


def test_the_examples_of_help_work_as_written():
    examples = [
        f"{name} {importlib.import_module(module).COMMANDS[name].example}"
        for name, module in cli.COMMANDS.items()
    ] + cli.EXAMPLES.splitlines()
    given = {found for line in examples for found in re.findall(r"--checkpoint (\S+)", line)}
    named = {one for one in given if not one.startswith("runs/")}
    assert named and named <= {*KNOWN}, "a name that is downloaded"
    servers = [line for line in examples if line.startswith("serve ")]
    assert servers and all("--no-grpc" in line for line in servers), "gRPC needs an extra"


def test_help_lists_the_defaults_of_tasks(command):
    _, out, _ = command("finetune", "--help")
    assert re.search(r"squad2.0 +--epochs 2 --batch-size 48 --seq-length 384\n", out)
    assert re.search(r"swag +--learning-rate 2e-5 --batch-size 16\n", out)
    assert re.search(r"conll2003 --context sentence +--epochs 4\n", out)


@pytest.mark.parametrize(
    "command_line",
    ["pretrain --text t --output o", "instances --text t --vocab v --output o", "plan", ABLATE],
)
def test_the_flag_in_place_of_set_is_named(command, command_line):
    code, _, err = command(*command_line.split(), "--set", "whole_word=true", "max_ngram=3")
    assert code == 2 and err.endswith("error: --set is gone: give --whole-word, --max-ngram\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("fly",), "invalid choice: 'fly'"),
        (("convert",), "the following arguments are required: --from, --to"),
        (("info", "x", "--fast"), "unrecognized arguments: --fast"),
        (("evaluate", "--run", "x", "--batch-sizes=4"), "--batch-sizes=4; did you mean --batch-size?"),
        (("evaluate", "--run", "x", "--batch-size", "many"), "--batch-size: invalid int value: 'many'"),
        (("ablate", "--text", "x"), "invalid choice: 'x'"),
        (
            ("hub", "--checkpoint", "x", "--ouput", "y"),
            "required: --output; --ouput is no flag: did you mean --output?",
        ),
        (("info",), "the following arguments are required: path"),
        ((*ABLATE.split(), "--restart=1"), "--restart=1; did you mean --restarts?"),
    ],
)
def test_wrong_flags(command, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("seq_length is 9; give seq_length 8 or less.", "--seq-length is 9; give --seq-length 8 or less."),
        ("restarts is 0; restarts must be at least 1.", "--restarts is 0; --restarts must be at least 1."),
        ("learning_rate is high; give more restarts.", "--learning-rate is high; give more restarts."),
        2 * ("run/config.json: seq_length is 9; seq_length must be 8.",),
        2 * ("task: no 'seq_length' in seq_length.txt; num_hidden_layers is 2.",),
    ],
)
def test_messages_name_the_flags_of_the_command(message, shown, monkeypatch):
    monkeypatch.setattr(console, "_flags", ["--seq-length", "--restarts", "--learning-rate"])
    assert console.name_flags(message) == shown


@pytest.mark.parametrize("line", ["evaluate --run x", "predict --run x", "fill-mask --checkpoint x",
                                  "finetune --task cola --checkpoint x --output x"])  # fmt: skip
@pytest.mark.parametrize("rows", ["0", "-1"])
def test_a_batch_has_a_row(command, line, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*line.split(), "--batch-size", rows)
    said = f"--batch-size is {rows}; --batch-size must be a whole number of at least 1."
    assert (code, out, err) == (1, "", f"bert-keras: error: {said}\n")


# Command lines with a mistake that is found without TensorFlow, and words of the error.
EARLY = [
    ("finetune --task sst3 --checkpoint x --output y", "no task named 'sst3': did you mean sst2"),
    ("finetune --task sst2 --data nowhere --checkpoint x --output y", "there is no nowhere"),
    ("evaluate --run nowhere", "no task.json in nowhere"),
    ("evaluate --run nowhere.keras", "no such file: nowhere.keras"),
    ("evaluate --run x --checkpoint y", "give --run alone"),
    ("predict --checkpoint ./nowhere", "no checkpoint at nowhere: no such file or folder"),
    ("predict --checkpoint docs", "no checkpoint in docs; looked for"),
    ("predict --checkpoint org/name --input nowhere.csv", "no file at nowhere.csv; give a file of examples"),
    ("features --checkpoint org/name --input docs --output x", "no file at docs, which is a folder with"),
    (
        "pretrain --text nowhere.txt --vocab x --output y",
        "there is no nowhere.txt; give a file, a folder or tfds:NAME",
    ),
    ("pretrain --text README.md --held-out nowhere.txt --output y", "there is no nowhere.txt"),
    ("pretrain --records nowhere --output y", "there is no nowhere"),
    ("pretrain --text README.md --checkpoint ./nowhere --output y", "no checkpoint at nowhere"),
    ("vocab --text nowhere.txt --output y", "there is no nowhere.txt"),
    (
        "instances --text README.md,lines=document --vocab ./nowhere.txt --output y",
        "no checkpoint at nowhere.txt",
    ),
    ("ablate tasks --text nowhere.txt --vocab x --output y", "there is no nowhere.txt"),
    ("ablate layers --checkpoint org/name --data conll2003=nowhere --output y", "there is no nowhere"),
    ("probe --checkpoint ./nowhere --data pos=docs --output y", "no checkpoint at nowhere"),
    ("glue --data nowhere --checkpoint org/name --output y", "there is no nowhere"),
    ("export --run nowhere --output y", "no task.json in nowhere"),
    ("hub --checkpoint ./nowhere --output y", "no checkpoint at nowhere"),
    ("serve nowhere", "there is no nowhere; give the folder that `bert-keras export` wrote"),
    ("convert --from ./nowhere --to y", "no checkpoint at nowhere"),
]


@pytest.mark.parametrize(("line", "words"), EARLY)
def test_mistakes_that_are_found_before_tensorflow_is_imported(command, monkeypatch, line, words):
    monkeypatch.chdir(ROOT)
    for name in "finetuning.start_strategy pretraining.start_strategy study.start_strategy study.start data.start".split():
        monkeypatch.setattr(f"bert_keras.tasks.commands.{name}", None)
    for name in ("savedmodels.commands", "cli.checkpoint_commands"):
        monkeypatch.setattr(f"bert_keras.{name}.start", None)
    code, out, err = command(*line.split())
    assert (code, out, err.count("\n")) == (1, "", 1) and words in err


def test_task_names_are_those_of_the_classes():
    assert [name for one in TASKS.values() for name in one.names] == [*TASK_NAMES]


def test_the_help_with_a_run_leaves_out_what_a_run_does_not_take(command):
    for line, there in (("predict --help", True), ("predict --run x --help", False)):
        assert ("--context" in command(*line.split())[1]) == there


def test_a_fresh_process_keeps_tensorflow_quiet(sst2):
    warned = [line for line in sst2.stderr.splitlines() if not line.startswith("warning: the model did not")]
    assert not warned and "0000 00:00" not in sst2.stdout
    for line in ("loaded: ", "training sst2 on 48 examples, 6 steps; dev 48 examples", "epoch 1/1: loss"):
        assert line in sst2.stdout
    assert sst2.stdout.splitlines()[-1] == f"the run is in {sst2.run}"


@pytest.mark.long
def test_evaluate_measures_what_training_measured(command, sst2):
    results = json.loads((sst2.run / "results.json").read_text())
    code, out, err = command("evaluate", "--run", sst2.run, "--data", sst2.data, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["validation"] == {"accuracy": results["measures"]["val_accuracy"]}
    code, out, _ = command("evaluate", "--run", sst2.run, "--data", sst2.data, "--split", "train")
    assert code == 0 and "train" in out and "accuracy" in out
    code, _, err = command("evaluate", "--run", sst2.run, "--data", sst2.data, "--split", "dev")
    assert (code, err.count("\n")) == (1, 1)
    assert "no split 'dev'; it has train, validation, test" in err


def test_a_split_without_labels_is_refused_before_anything_is_predicted(command, sst2, tmp_path, monkeypatch):
    shutil.copytree(sst2.data, tmp_path / "data")
    (tmp_path / "data" / "test.tsv").write_text("index\tsentence\n0\tgood film\n")
    monkeypatch.setattr("bert_keras.tasks.batches.predict", None)
    code, out, err = command("evaluate", "--run", sst2.run, "--data", tmp_path / "data", "--split", "test")
    assert (code, out, err.count("\n")) == (1, "", 1) and "no example in the test split" in err


@pytest.fixture(scope="module")
def answers(sst2) -> list[dict]:
    """The model's predictions for TEXTS, without the command line."""
    run = load_run(sst2.run)
    raw = {"sentence": tf.constant(TEXTS)}
    features = run.task.features(run.preprocess, raw)
    decoded = run.task.decode(run.model(features), features, raw)
    label, probabilities = decoded["label"].numpy(), decoded["probabilities"].numpy()
    names = {"label_names": ["negative", "positive"]}
    return [
        {"sentence": text, "label": label[i].decode(), "probabilities": probabilities[i].tolist()} | names
        for i, text in enumerate(TEXTS)
    ]


def as_csv(texts: list[str]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["id", "sentence"], *enumerate(texts)])
    return file.getvalue().encode()


def as_json_lines(texts: list[str]) -> bytes:
    return "\n\n".join(json.dumps({"sentence": text, "id": 1}) for text in texts).encode()


INPUTS = {
    "texts.txt": lambda texts: "\n".join(texts).encode(),
    "windows.txt": lambda texts: "\ufeff".encode() + "\r\n".join([*texts, ""]).encode(),
    "texts.csv": as_csv,
    "texts.jsonl": as_json_lines,
    "-": lambda texts: "\n".join([*texts, ""]).encode(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_reaches_the_model_as_written(command, stdin, sst2, answers, tmp_path, name):
    data = INPUTS[name](TEXTS)
    stdin(data)
    if name != "-":
        (tmp_path / name).write_bytes(data)
    code, out, err = command("predict", "--run", sst2.run, "--input", "-" if name == "-" else tmp_path / name)
    assert (code, err) == (0, "")
    got = [json.loads(line) for line in out.split("\n")[:-1]]
    assert [answer["sentence"] for answer in got] == TEXTS
    assert [answer["label"] for answer in got] == [answer["label"] for answer in answers]
    found, wanted = ([answer["probabilities"] for answer in rows] for rows in (got, answers))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_tsv_and_a_table(command, sst2, tmp_path):
    (tmp_path / "x.tsv").write_bytes(b'id\tsentence\n1\t[bold]"good" film[/x]\n\n2\t\n')
    code, out, err = command("predict", "--run", sst2.run, "--input", tmp_path / "x.tsv", "--format", "table")
    assert (code, err) == (0, "")
    assert '[bold]"good" film[/x]' in out
    assert len([line for line in out.splitlines() if "ative" in line or "itive" in line]) == 2


def test_answers_go_to_stdout_and_progress_to_stderr(command, monkeypatch, stdin, sst2):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("bert_keras.cli.console.shows_bars", lambda stream: True)  # as in a terminal
    stdin(b"good film\n")
    code, out, err = command("predict", "--run", sst2.run)
    assert (code, json.loads(out)["sentence"]) == (0, "good film")
    assert "predicting" in err and "good film" not in err


def test_tasks_of_two_texts_split_at_the_first_tab(tmp_path):
    (tmp_path / "pairs").write_bytes(b"a\tb\tc\r\n\t\n")
    rows = list(read_examples(str(tmp_path / "pairs"), ("premise", "hypothesis")))
    assert rows == [{"premise": "a", "hypothesis": "b\tc"}, {"premise": "", "hypothesis": ""}]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("-", b"1\t2\n\xff\n", "standard input, line 2, byte 1: 0xff is not UTF-8;"),
        ("x.json", b'{"data": []}', "x.json holds a JSON dict; give an array of objects"),
        ("x.txt", b'{"data": []}', r"x.txt, line 1: 1 text\(s\), expected 2, separated by tabs: a, b;"),
        ("x.tsv", b"a\tc\n1\t2\n", "x.tsv has no column 'b'; the tab-separated columns are 'a', 'c'"),
        ("x.tsv", b"a\tb\n1\n", r"x.tsv, line 2: 1 column\(s\), expected 2"),
        ("x.tsv", b"a\tb\n\n1\t2\n1\t2\t3\n", r"x.tsv, line 4: 3 column\(s\), expected 2"),
        ("x.tsv", b"a\tb\tb\n1\t2\t3\n", "x.tsv has more than one column 'b';"),
        ("X.CSV", b"a,b\n\n1\n", r"X.CSV, line 3: 1 column\(s\), expected 2, separated by commas: a, b"),
        ("x.csv", b"a,b\n1,Well, no\n", r"x.csv, line 2: 3 column\(s\), expected 2"),
        ("x.csv", b"a,a,b\n1,2,3\n", "x.csv has more than one column 'a';"),
        ("x.csv", b'a,b\n0,"x\ny"\n1,"2\n', "x.csv, line 4: a quote is opened .* not closed"),
        # Two stray quotes, and all between them is one field.
        ("x.csv", b'a,b\n1,"2\n3,4\n5",6\n', r"x.csv, line 2: 3 column\(s\), expected 2"),
        ("x.jsonl", b'{"a": "1", "b": 2}', "x.jsonl, line 1: 'b' is 2, not text; give text"),
        ("x.jsonl", b'["a"]', "x.jsonl, line 1: a JSON list; give one object per line"),
        ("x.jsonl", b'\n{"a": ', "x.jsonl, line 2 is not JSON: Expecting value"),
        ("x.jsonl", b'{"a": "", "b": ""}\n{"a": ""}', "x.jsonl, line 2: no 'b'; the fields are 'a'"),
        ("x.jsonl", b'{"a": "\\ud800", "b": ""}', r"x.jsonl, line 1: 'a': \\ud800 is half a character"),
    ],
)
def test_input_that_cannot_be_read(stdin, tmp_path, name, data, message):
    stdin(data)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        list(read_examples("-" if name == "-" else str(tmp_path / name), ("a", "b")))


@pytest.mark.long
def test_predict_streams_and_ends_quietly_when_its_reader_leaves(sst2):
    line = shell_command("predict", "--run", sst2.run, "--batch-size", "512")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(line, cwd=ROOT, env=bare_environment(), **pipes) as process:
        process.stdin.write(b"good film\n" * CHUNK)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["sentence"] == "good film"  # before the input has ended
        process.stdout.close()
        process.stdin.write(b"bad film\n" * CHUNK)
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_export_writes_what_predict_answers(command, sst2, answers, tmp_path):
    code, out, err = command("export", "--run", sst2.run, "--output", tmp_path / "served")
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'served' / '1'}: ")
    served = ask(tmp_path / "served" / "1", {"sentence": TEXTS})
    assert served["label"] == [answer["label"] for answer in answers]
    expected = [answer["probabilities"] for answer in answers]
    np.testing.assert_allclose(served["probabilities"], expected, rtol=0, atol=1e-6)


def test_convert_there_and_back(command, sst2, tmp_path):
    google, back = tmp_path / "google", tmp_path / "back"
    code, out, err = command("convert", "--from", sst2.run, "--to", google, "--format", "google")
    assert (code, err) == (0, "")
    start = checkpoints.read(sst2.run)
    count = len(start.tensors)
    assert out == f"hugging-face -> google: {count} tensors in {google}\nleft out: the labels\n"
    code, out, err = command("convert", "--from", google, "--to", back)
    assert (code, out, err) == (0, f"google -> hugging-face: {count} tensors in {back}\n", "")
    end = checkpoints.read(back)
    assert start.config == end.config
    assert start.vocabulary._replace(file="") == end.vocabulary._replace(file="")
    assert set(start.tensors) == set(end.tensors)
    assert all((start.tensors[name] == end.tensors[name]).all() for name in start.tensors)


@pytest.mark.parametrize("name", ["info", "convert"])
@pytest.mark.filterwarnings("default:.*do not say whether to lower-case")
def test_a_guessed_case_is_printed(command, sst2, tmp_path, name):
    """Google's own folders have a vocabulary and nothing that says its case."""
    google = tmp_path / "google"
    checkpoints.write(checkpoints.read(sst2.checkpoint), google, format="google")
    (google / "tokenizer_config.json").unlink()
    arguments = {"info": (google,), "convert": ("--from", google, "--to", tmp_path / "back")}[name]
    code, out, err = command(name, *arguments)
    said = rf"warning: the files of {google}.* do not say .* guessed lower_case=True: 0 of .*\n"
    assert code == 0 and re.fullmatch(said, err), err
    assert name != "info" or re.search(r"lower_case\W+True", out)


def test_convert_names_what_it_leaves_out(command, sst2, tmp_path):
    from safetensors.numpy import load_file, save_file

    source = shutil.copytree(sst2.run, tmp_path / "source")
    file = source / "model.safetensors"
    save_file(load_file(file) | {"a.new.head": np.zeros(3, "float32")}, file)
    save_file({"head/kernel": np.zeros(3, "float32")}, source / "top.safetensors")
    code, out, err = command("convert", "--from", source, "--to", tmp_path / "out")
    assert (code, err) == (0, "")
    top = "top.safetensors, the BiLSTM and the head of a run with feature layers"
    assert re.search(rf"hugging-face: \d+ tensors in {tmp_path / 'out'}\nleft out: a.new.head, {top}\n", out)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "googel"], "no checkpoint format 'googel'; the formats are hugging-face, google"),
        (["--format", "google", "--check"], "no library can run a google checkpoint"),
        (["--format", "keras-hub", "--check"], "comparing a keras-hub checkpoint needs keras_hub; install"),
    ],
)
def test_convert_refuses_before_the_work(command, sst2, tmp_path, monkeypatch, flags, message):
    checkpoints.write(checkpoints.read(sst2.checkpoint), tmp_path / "google", format="google")
    monkeypatch.setattr(checkpoints, "read", None)  # calling it would be a traceback
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    code, out, err = command("convert", "--from", tmp_path / "google", "--to", tmp_path / "out", *flags)
    assert (code, out) == (1, "") and message in err
    assert not (tmp_path / "out").exists()


def test_convert_refuses_a_full_folder_before_it_looks_for_the_source(command, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = command("convert", "--from", tmp_path / "none", "--to", tmp_path)
    assert code == 1 and "is there already and not empty" in err


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_convert_checks_against_the_other_library(command, sst2, tmp_path):
    pytest.importorskip("keras_hub")
    target = tmp_path / "preset"
    for arguments in (
        ("--from", sst2.checkpoint, "--to", tmp_path / "google", "--format", "google"),
        ("--from", tmp_path / "google", "--to", target, "--format", "keras-hub", "--check"),
    ):
        code, out, err = command("convert", *arguments)
        assert (code, err) == (0, "")
    rows = [line.split("│") for line in out.splitlines() if "block_" in line or "pooled" in line]
    assert len(rows) == 2
    assert all(float(row[2]) <= 1e-5 for row in rows)


def test_info(command, sst2):
    code, out, err = command("info", sst2.run)
    assert (code, err) == (0, "")
    for words in ("hugging-face", f"{len(VOCABULARY)} tokens", "sst2", "sentence", "hidden_size"):
        assert words in out


def test_info_of_a_folder_with_another_librarys_task_json(command, sst2, tmp_path):
    folder = shutil.copytree(sst2.checkpoint, tmp_path / "preset")
    content = {"class_name": "BertMaskedLM", "config": {}, "registered_name": "keras_hub>BertMaskedLM"}
    (folder / "task.json").write_text(json.dumps(content))
    code, out, err = command("info", folder)
    assert (code, err) == (0, "")
    assert "hidden_size" in out and "seq_length" not in out
    with pytest.raises(FileNotFoundError, match=r"no task.json in .*; give the folder that"):
        load_run(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sst3", "no task named 'sst3': did you mean sst2; the tasks are cola, sst2,"),
        ("custom", "custom reads its labels from files"),
        ("ax --data DATA", "ax has no split '"),
        ("sst2 --learning-rate -1", "--learning-rate is -1.0; --learning-rate must be"),
    ],
)
def test_errors_are_one_line(command, sst2, tmp_path, arguments, message):
    output, words = tmp_path / "new", arguments.replace("DATA", str(sst2.data)).split()
    places = ("--checkpoint", sst2.checkpoint, "--output", output, "--seq-length", "40")
    code, out, err = command("finetune", "--task", *words, *places)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("bert-keras: error: ") and message in err
    assert not output.exists()


@pytest.mark.long
def test_debug_shows_where_an_error_was_raised(command):
    done = run_in(ROOT, "-m", "bert_keras", "info", "nowhere", "--debug")
    assert (done.returncode, "Traceback" in done.stderr) == (1, True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bert_keras.errors.MissingFileError: no checkpoint at nowhere")
    with pytest.raises(FileNotFoundError, match="no checkpoint at nowhere"):
        command("--debug", "info", "nowhere")


@pytest.mark.long
def test_a_run_is_left_as_it_was(command, sst2):
    before = contents(sst2.folder)
    command("evaluate", "--run", sst2.run, "--data", sst2.data)
    command("info", sst2.run)
    assert contents(sst2.folder) == before


# -----------------------------------------------------------------------------------------------------------
# A current folder with modules of a user's own


@pytest.fixture
def invoke(tmp_path):
    """A folder as Invoke's and Celery's users have it, with a tasks.py that must not run, and a text."""
    (tmp_path / "tasks.py").write_text('raise SystemExit("tasks.py was run")\n')
    (tmp_path / "words.py").write_text("def of(line):\n    return line.split()\n")
    text = "good film\ndull plot\nbad actor\n\nwarm scene\nthe plot\nis dull\n"
    (tmp_path / "corpus.txt").write_text(text * 9)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("name", ["tasks.py", "savedmodels.py"])
def test_a_users_own_module_under_the_name_of_a_folder_of_ours_does_no_harm(invoke, name):
    (invoke / "tasks.py").rename(invoke / name)
    code = f"import sys; sys.path.append({str(ROOT)!r}); import bert_keras; bert_keras.classifier"
    for command in (("-c", code), ("-m", "bert_keras", "info", "--help"), ("-m", "bert_keras", "--help")):
        done = run_in(invoke, *command, PYTHONPATH=str(invoke))
        assert done.returncode == 0 and "tasks.py was run" not in done.stderr, done.stderr


@pytest.mark.long
def test_a_users_own_tasks_py_does_not_replace_our_package(invoke, sst2):
    settings = ("--vocab", sst2.checkpoint, "--seq-length", "16", "--masks", "--whole-word")
    settings += ("--segmenter", "words:of", "--workers", "2")
    given = ("-m", "bert_keras", "instances", "--text", "corpus.txt", "--output", "out", *settings)
    done = run_in(invoke, *given)
    assert done.returncode == 0 and "tasks.py was run" not in done.stderr, done.stderr
    assert json.loads((invoke / "out" / "manifest.json").read_text())["summary"]["documents"] == 10


def test_a_segmenter_that_an_installed_module_hides_is_named(invoke, sst2, command, monkeypatch):
    monkeypatch.chdir(invoke)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ("--text", "corpus.txt", "--output", "out", "--vocab", sst2.checkpoint)
    (invoke / "filelock.py").write_text("def of(line):\n    return line.split()\n")
    code, _, err = command("instances", *arguments, "--segmenter", "filelock:of")
    assert (code, err.count("\n")) == (1, 1)
    assert f"of {filelock.__file__}; give MODULE:NAME" in err


# -----------------------------------------------------------------------------------------------------------
# The start of the process, and its output


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [("info RUN >&-", 0, ""), ("info RUN 2>&-", 0, "hidden_size"), ("info nowhere >&- 2>&- <&-", 1, "")],
)
def test_closed_streams(sst2, streams, code, said):
    line = f"{sys.executable} -m bert_keras {streams.replace('RUN', str(sst2.run))}"
    line = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(line, cwd=ROOT, env=bare_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    assert said in done.stdout


NOT_ASCII = ["café", "真好 \N{GRINNING FACE}"]


@pytest.mark.parametrize("flags", [[], ["--format", "table"]])
def test_output_that_is_not_utf_8(sst2, monkeypatch, tmp_path, flags):
    """As with PYTHONIOENCODING=ascii. JSON lines stay JSON."""
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in NOT_ASCII))
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert runs.command(["predict", "--run", sst2.run, "--input", tmp_path / "texts", *flags]) == 0
    sys.stdout.flush()
    out = raw.getvalue().decode("ascii")
    if not flags:
        assert [json.loads(line)["sentence"] for line in out.splitlines()] == NOT_ASCII
    assert all(json.dumps(text)[1:-1] in out for text in NOT_ASCII)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("models", 0, ""),
        (
            "info ./nowhere",
            1,
            "bert-keras: error: the current folder has been deleted; change to another folder.",
        ),
    ],
)
def test_a_current_folder_that_is_gone(arguments, code, said, tmp_path):
    lines = ["import os, runpy, sys", "os.mkdir('gone')", "os.chdir('gone')", "os.rmdir('../gone')"]
    lines += [
        f"sys.argv = {['bert-keras', *arguments.split()]}",
        "runpy.run_module('bert_keras', run_name='__main__')",
    ]
    (tmp_path / "script.py").write_text("\n".join(lines))
    done = forked.run(tmp_path / "script.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.strip()) == (code, said)


def test_version(command):
    assert command("--version") == (0, f"bert-keras {bert_keras.__version__}\n", "")


@pytest.mark.slow
def test_without_docstrings_and_asserts(sst2):
    given = ("--run", sst2.run, "--data", sst2.data, "--json")
    done = run_in(ROOT, "-OO", "-m", "bert_keras", "evaluate", *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "accuracy" in json.loads(done.stdout)["validation"]


@pytest.mark.parametrize("error", [ValueError("a bug"), UnicodeError("of Keras")])
def test_an_error_that_is_not_ours_keeps_its_traceback(command, monkeypatch, capfd, tiny, error):
    def fails(path):
        raise error

    monkeypatch.setattr(checkpoints, "read", fails)
    with pytest.raises(type(error)) as raised:
        command("info", tiny)
    assert raised.value is error
    assert "bert-keras: error" not in capfd.readouterr().err
