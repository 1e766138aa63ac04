"""docs/migrate.md: our code runs, its counts and recorded numbers are right, and the names in its tables exist."""

import argparse
import ast
import fnmatch
import functools
import inspect
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from runs import ROOT, run_command, write_checkpoint

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.cli import main as cli
from bert_keras.io import other_names
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.savedmodels.hub import write_pair
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.options import SquadOptions
from bert_keras.tasks.training.task_model import OPTIMIZER_SETTINGS

# Keras' variables under numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

PAGE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
JOBS, OTHERS = PAGE.split("\n## Equal numbers")[0].split("\n## Other scripts")
OLD_SIDES = ROOT / "benchmarks" / "old_sides"
THEIR_JOBS = (OLD_SIDES / "jobs.md").read_text(encoding="utf-8")
LIBRARIES = ("bert_keras", "KerasHub", "transformers")
NEW_PROCESS = "# In a new process\n"
DATA = re.search(r"```python\n(.*?)```", JOBS, re.DOTALL)[1]
DATA = DATA.replace("] * 8", "] * 2")  # fewer rows, to be fast
SIZES = {"max_positions": 512, "hidden_size": 16, "intermediate_size": 32, "num_layers": 1}


def blocks(library: str) -> dict[int, str]:
    """The code of one library, by job."""
    found, ours = {}, library == "bert_keras"
    for section in re.split(r"\n###? (?=\d)", JOBS if ours else THEIR_JOBS)[1:]:
        if code := re.search(rf"\*\*{library}\*\*\n\n```python\n(.*?)```", section, re.DOTALL):
            found[int(section.split(".")[0])] = code[1]
    return found


def run(library: str, jobs=None) -> dict[int, dict]:
    """The names after each job. The blocks run in order; the part for a new process gets none of the names before it."""
    names: dict = {}
    exec(DATA, names)
    after = {}
    for job, code in blocks(library).items():
        if jobs is None or job in jobs:
            here, _, fresh = code.partition(NEW_PROCESS)
            exec(here, names)
            if fresh:
                exec(fresh, alone := {})
                names |= alone
            after[job] = dict(names)
    return after


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`minilm`, and the same weights as `bert-base`: a tiny encoder with a masked-LM head."""
    folder = tmp_path_factory.mktemp("migrate")
    write_checkpoint(folder / "encoder", **SIZES)
    checkpoint = checkpoints.read(folder / "encoder")
    encoder = BertEncoder(checkpoint.config)
    checkpoints.assign(checkpoint, encoder)
    head = MaskedLMHead(encoder)
    whole = checkpoints.collect(checkpoint.config, encoder, masked_lm=head)
    whole = checkpoints.with_tokenizer(whole, checkpoints.tokenizer_of(checkpoint))
    checkpoints.write(whole, folder / "minilm", format="hugging-face")
    (folder / "bert-base").symlink_to(folder / "minilm")
    return folder


@pytest.fixture
def there(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


OLD_BLOCKS = re.findall(r'(?s)```python title="old"\n(.*?)```', PAGE)


def test_the_old_code_is_python():
    assert len(OLD_BLOCKS) >= 11
    for block in OLD_BLOCKS:
        ast.parse(block)


def test_the_table_counts_the_lines_of_each_job():
    counted = {library: blocks(library) for library in LIBRARIES}
    rows = re.findall(r"(?m)^\| (\d+) \| [^|]+ \| (\w+) \| (\w+) \| (\w+) \|", JOBS)
    assert [int(job) for job, *_ in rows] == [*counted["bert_keras"]] == [*range(1, 12)]
    for job, *written in rows:
        lines = [
            [line for line in counted[library].get(int(job), "").splitlines() if is_counted(line)]
            for library in LIBRARIES
        ]
        assert [str(len(code) or "none") for code in lines] == written, f"job {job}"


def is_counted(line: str) -> bool:
    return bool(line.strip()) and not re.match(r"\s*#|import |from ", line)


@pytest.mark.slow
@pytest.mark.timeout(600)  # five trainings and an export
def test_our_code_runs(there, forked_answers, capfd):
    after = run("bert_keras")
    names = after[11]
    assert after[1]["hidden"].shape == (2, 13, 16)  # [CLS], 11 letters, where "a" is one, and [SEP]
    assert int(after[2]["classifier"].optimizer.iterations) == 3  # one batch in each epoch
    assert after[3]["answer"]["label"].tolist()[0] in ("bad", "good")
    assert after[3]["answer"]["probabilities"].sum() == pytest.approx(1)
    assert after[5]["found"]["answer"][0] in names["long_context"]
    sentence = "Anna Smith lives in Paris"
    assert all(text in sentence for text in after[6]["found"]["entity_text"][0])
    assert "[MASK]" not in after[7]["filled"]["filled"][0]
    assert np.linalg.norm(names["vectors"], axis=1) == pytest.approx(np.ones(2), abs=1e-5)
    (settings,) = re.findall(r"```python\n(classifier\.compile\(.*\)\n)```", JOBS)
    exec(settings + "classifier.fit(texts, labels)", after[4])
    assert (
        after[4]["classifier"].optimizer.bias_correction
        and after[4]["classifier"].optimizer.clip_norm is None
    )
    again = after[9]["classifier"].predict(["a warm film"], verbose=0)["probabilities"]
    np.testing.assert_allclose(again, after[3]["answer"]["probabilities"], atol=1e-6)
    assert (there / "served/classifier/1/saved_model.pb").is_file()
    assert names["model"].optimizer.iterations == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_our_code_beside_other_scripts_runs(there, forked_answers):
    whole = checkpoints.read("minilm")
    checkpoints.write(whole, "google", format="google")
    write_pair(whole, "hub/minilm", seq_length=32, fresh=("pooler",), log=str)
    names: dict = {}
    exec(DATA, names)
    steps = []
    for code in re.findall(r"(?s)```python\n(.*?)```", OTHERS):
        exec(code, names)
        optimizer = getattr(names["model"], "optimizer", None)
        steps.append(optimizer and int(optimizer.iterations))
    assert steps == [5, 1, None, None]  # the last two blocks train nothing
    assert names["model"].output_shape == (None, 2) and names["tagger"].output_shape[-1] == 9


def recorded_rows() -> dict[str, str]:
    """The row of each old library that the page must have, from what the old sides recorded."""
    rows = {}
    for name, row in json.loads((OLD_SIDES / "recorded.json").read_text()).items():
        versions = ", ".join(f"{library} {version}" for library, version in row["versions"].items())
        cells = [f"{row['logits_difference']:.0e}", f"{row['losses_difference']:.0e}"]
        both = [row.get(key, []) for key in ("accuracies", "our_accuracies")]
        cells += [", ".join(f"{100 * one:.1f}" for one in accuracies) for accuracies in both]
        rows[name] = f"| `{name}.py` | {versions} | {' | '.join(cells)} |"
    return rows


def test_the_old_sides_have_our_numbers():
    for name, line in recorded_rows().items():
        assert (OLD_SIDES / f"{name}.py").is_file() and line in PAGE, line
        row = json.loads((OLD_SIDES / "recorded.json").read_text())[name]
        assert row["logits_difference"] <= 1e-5 * max(1, row["largest_logit"])
        assert row["losses_difference"] <= 1e-4
        if theirs := row.get("accuracies"):
            ours = row["our_accuracies"]
            spread = max(np.ptp(theirs), np.ptp(ours))
            assert len(theirs) == len(ours) == 3 and abs(np.mean(theirs) - np.mean(ours)) <= spread


# -----------------------------------------------------------------------------------------------------------
# Names


def tables(title: str) -> list[tuple[list[str], list[list[str]]]]:
    """The tables of one part of the page: cells of the header, cells of each row."""
    part = PAGE.split(f"\n## {title}")[1].split("\n## ")[0]
    found = []
    for table in re.findall(r"(?m)(?:^\|.*\|\n?)+", part):
        header, _, *rows = (
            [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.split("\n") if line
        )
        found.append((header, rows))
    return found


def code_of(cells: list[str]) -> list[str]:
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@functools.cache
def flags(command: str) -> frozenset[str]:
    """The flags of a command of ours."""
    parsers = [cli.parser([command])]
    for one in parsers:  # an ablation has a parser of its own
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return frozenset(flag for one in parsers for flag in one._option_string_actions)


def arguments(called) -> set[str]:
    """The keyword arguments of a callable of ours."""
    known = inspect.signature(called).parameters
    more = {bk.question_answerer: SquadOptions.__dataclass_fields__, bk.TextModel.compile: OPTIMIZER_SETTINGS}
    return {*known, *more.get(called, ())}


def exists(code: str, commands: list[str]) -> bool | None:
    """Is this a name of ours? None for code that is no name of ours, such as a feature's name."""
    if code.startswith("--") or code.startswith("bert-keras "):
        if code.startswith("bert-keras "):
            commands = [code.split()[1]]
        wanted = re.findall(r"--[\w-]+", code)
        known = frozenset().union(*(flags(command) for command in commands))
        return {*wanted} <= known
    if called := re.fullmatch(
        r"(bk\.\w+|compile|fit|predict|evaluate|export|save)(?:\(((?:\w+=(?:, )?)*)\))?", code
    ):
        name, given = called[1].removeprefix("bk."), re.findall(r"\w+", called[2] or "")
        home = bk if called[1].startswith("bk.") else bk.TextModel
        return hasattr(home, name) and {*given} <= arguments(getattr(home, name))
    return None


def test_our_names_and_flags_exist():
    checked, wrong = 0, []
    for header, rows in tables("Names"):
        for row in rows:
            commands = re.findall(r"bert-keras ([\w-]+)", " ".join([*header, *row]))
            for code in code_of(row[1:]):
                known = exists(code, commands)
                checked += known is not None
                if known is False:
                    wrong.append(code)
    assert not wrong and checked > 100


@pytest.mark.parametrize("pattern", other_names._OURS)
def test_a_name_of_another_library_is_answered_with_ours(pattern):
    ours = other_names._OURS[pattern]
    assert hasattr(bk, ours)
    theirs = {name for name in re.findall(r"\w+", PAGE) if fnmatch.fnmatchcase(name, pattern)} - {*bk.__all__}
    assert theirs, "the page has no such name"
    for name in theirs:
        answer = rf"bert_keras\.{other_names.our_name(name)} takes its place: docs/migr"
        with pytest.raises(AttributeError, match=answer):
            getattr(bk, name)
        with pytest.raises(ImportError, match=answer):
            exec(f"from bert_keras import {name}")


def test_a_name_or_flag_that_does_not_exist_is_found():
    assert exists("--learning-rate", ["finetune"]) and exists("bk.Preprocessor(seq_length=)", [])
    for code in ("--learning-rat", "bk.Nothing", "bk.Preprocessor(length=)", "compile(rate=)"):
        assert exists(code, ["finetune"]) is False
    assert exists("input_word_ids", []) is None


def test_names_of_keras_hub_exist():
    keras_hub = pytest.importorskip("keras_hub")
    wrong = []
    for header, rows in tables("Names"):
        if header[0] == "KerasHub":
            wrong += [code for code in code_of([row[0] for row in rows]) if not in_peer(code, keras_hub)]
    assert not wrong


def in_peer(code: str, module) -> bool:
    """Is `module.Name(argument=)` a name of a peer? Code without a class or argument, such as a feature's name, passes."""
    path, _, given = code.partition("(")
    if not given and not re.match(r"[A-Z]|models\.|layers\.|tokenizers\.", path):
        return True
    found = functools.reduce(lambda home, name: getattr(home, name, None), path.split("."), module)
    if found is None:
        return False
    known = inspect.signature(found).parameters
    return {*re.findall(r"\w+(?==)", given)} <= {*known}


# -----------------------------------------------------------------------------------------------------------
# Defaults


def defaults(library: str) -> dict[str, str]:
    """The column of a library in the table of defaults, by row."""
    ((header, rows),) = tables("Defaults that change results")
    return {row[0]: row[header.index(library)] for row in rows}


def number(cell: str) -> float:
    """The first number of a cell; "none" is 0."""
    return 0.0 if cell == "none" else float(re.match(r"[\d.e-]+", cell)[0])


def assert_defaults(library: str, values: dict[str, float]) -> None:
    """The numbers of a library's column are these."""
    written = defaults(library)
    assert {row: number(written[row]) for row in values} == values


def test_the_defaults_of_bert_keras_and_keras_hub():
    keras_hub = pytest.importorskip("keras_hub")
    hparams, optimizer = Hparams(), bk.AdamW()
    assert_defaults(
        "bert_keras",
        {
            "Adam's epsilon": optimizer.epsilon,
            "weight decay": hparams.weight_decay,
            "clipping, global norm": hparams.clip_norm,
            "learning rate": hparams.learning_rate,
            "batch": hparams.batch_size,
            "epochs": hparams.epochs,
            "longest text, in tokens": hparams.seq_length,
        },
    )
    assert not hparams.bias_correction and defaults("bert_keras")["Adam's bias correction"] == "no"
    adam, models = keras.optimizers.Adam(), keras_hub.models
    known = inspect.signature(models.BertTextClassifierPreprocessor.__init__).parameters
    assert_defaults(
        "KerasHub",
        {
            "Adam's epsilon": adam.epsilon,
            "clipping, global norm": float(adam.global_clipnorm or 0),
            "longest text, in tokens": known["sequence_length"].default,
        },
    )
    assert known["truncate"].default == "round_robin"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe"]
    tokenizer = models.BertTokenizer(vocabulary=vocabulary, lowercase=True)
    kept = defaults("KerasHub")["accents of lower-cased text"].startswith("kept")
    assert kept and list(tokenizer("café")) == [1]


# -----------------------------------------------------------------------------------------------------------
# The other two libraries


def real_tokens(hidden) -> list[np.ndarray]:
    """The states of both texts without padding: 13 and 6 tokens."""
    return [np.asarray(hidden)[0, :13], np.asarray(hidden)[1, :6]]


def ours_with_the_same_numbers(theirs: dict[int, dict]) -> dict[int, dict]:
    """Our jobs that need no training, after a comparison of the states and the vectors."""
    ours = run("bert_keras", jobs=(1, 7, 8))
    for mine, other in zip(real_tokens(ours[1]["hidden"]), real_tokens(theirs[1]["hidden"]), strict=True):
        np.testing.assert_allclose(other, mine, atol=1e-5)
    np.testing.assert_allclose(np.asarray(theirs[8]["vectors"]), ours[8]["vectors"], atol=1e-5)
    return ours


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(600)
def test_the_code_of_keras_hub_runs_and_computes_our_numbers(there, capfd):
    pytest.importorskip("keras_hub")
    import tensorflow as tf

    convert = re.search(r"`bert-keras (convert [^`]+)`", THEIR_JOBS)[1]
    assert run_command(capfd, *convert.split())[0] == 0
    after = run("KerasHub")
    ours_with_the_same_numbers(after)
    assert int(after[2]["classifier"].optimizer.iterations) == 3
    assert after[3]["probabilities"].shape == after[4]["logits"].shape == (1, 2)
    np.testing.assert_allclose(keras.ops.softmax(after[9]["logits"]), after[3]["probabilities"], atol=1e-5)
    served = tf.saved_model.load(str(there / "served/classifier-preset/1"))
    answers = served.signatures["serving_default"](text=tf.constant(["a warm film"]))
    np.testing.assert_allclose(answers["probabilities"], after[3]["probabilities"], atol=1e-5)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_the_code_of_transformers_runs_and_computes_our_numbers(there, capfd):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers", minversion="5")
    after = run("transformers")
    mine = ours_with_the_same_numbers(after)[7]["filled"]
    assert after[2]["classifier"].config.id2label == {0: "bad", 1: "good"}
    assert after[5]["answer"] in after[5]["long_context"]
    tokenizer = after[5]["tokenizer"]
    for row, answer in zip(after[5]["data"], after[5]["answers"], strict=True):
        span = row["input_ids"][row["start_positions"] : row["end_positions"] + 1]
        assert tokenizer.decode(span) == answer["text"].lower()
    for row, tags in zip(after[6]["data"], after[6]["tags"], strict=True):
        assert [after[6]["names"][label] for label in row["labels"] if label >= 0] == tags
    arguments = transformers.TrainingArguments()
    assert_defaults(
        "transformers",
        {
            "Adam's epsilon": arguments.adam_epsilon,
            "weight decay": arguments.weight_decay,
            "clipping, global norm": arguments.max_grad_norm,
            "learning rate": arguments.learning_rate,
            "warm-up": arguments.warmup_steps,
            "batch": arguments.per_device_train_batch_size,
            "epochs": arguments.num_train_epochs,
        },
    )
    assert [row["token_str"] for row in after[7]["filled"]] == mine["mask_tokens"][0, 0].tolist()
    scores = [row["score"] for row in after[7]["filled"]]
    np.testing.assert_allclose(scores, mine["mask_scores"][0, 0], atol=1e-5)

    places = {"tokenizer": transformers.PreTrainedTokenizerBase.__call__}
    wrong = []
    for header, rows in tables("Names"):
        if header[0] == "transformers":
            for code in code_of([row[0] for row in rows]):
                if code.startswith(("TF", "AdamWeightDecay", "WarmUp")):  # transformers 4 had them
                    continue
                home = argparse.Namespace(**places) if code.startswith("tokenizer(") else transformers
                wrong += [] if in_peer(code, home) else [code]
    assert not wrong
