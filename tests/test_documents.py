"""The code of README.md and docs/: Python runs as it stands, commands run or have flags that exist, and the rest has a reason.

One folder stands for the reader's: it holds what the documents name, as small as it gets.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import sys

import keras
import pytest
import runs
import tensorflow as tf
from test_hub_layer import Lengths, saved

import bert_keras
from bert_keras.cli.main import parser
from bert_keras.tasks import hparams, options
from bert_keras.tasks.study import study_options

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{f.name}" for f in (runs.ROOT / "docs").glob("*.md")),
]
# The documents whose Python another test runs, and that test's file.
RUN_ELSEWHERE = {
    "docs/migrate.md": "test_migrate.py",
    "docs/report.md": "test_reports_of_runs.py",
    "docs/features.md": "test_frozen_features.py",
    "docs/look_inside.md": "test_inspection.py",
    "docs/search.md": "test_search.py",
    "docs/scale.md": "test_multiworker.py",
    "docs/text_models.md": "test_text_models.py",
    "docs/your_own_task.md": "test_your_own_task.py",
}
RUN_HERE = {
    "README.md",
    "docs/embeddings.md",
    "docs/recipes.md",
    "docs/keras.md",
    "docs/serving.md",
    "docs/hub.md",
}
# Lines that are no command of ours, by their first word: why they do not run here.
NOT_RUN = {
    "python3": "sets up an environment; `.ci/run` runs the two of README.md",
    ".venv/bin/pip": "installs from the network",
    ".venv/bin/python": "unpacks what pip has downloaded",
    ".venv-lowest/bin/pytest": "needs an environment of its own; CONTRIBUTING.md says what was run",
    "uv": "makes an environment",
    "npm": "fetches Bazel; docs/bazel.md says which versions were run",
    "cd": "belongs to the Bazel of docs/bazel.md",
    "touch": "belongs to the Bazel of docs/bazel.md",
    "printf": "belongs to the Bazel of docs/bazel.md",
    "echo": "belongs to the Bazel of docs/bazel.md",
    "docker": "needs Docker; test_deploy.py checks the files, and docs/deploy.md says what was run",
    "kubectl": "needs a cluster; test_deploy.py checks the manifests",
    "hf": "downloads from the Hugging Face Hub",
    "python": "trains for hours; benchmarks/README.md says when it was run",
}
# Our commands that are read by their own parser but do not run here. All others of docs/commands.md run.
NOT_RUN_HERE = {
    "bert-keras demo": "downloads 90 MB; `.ci/run` or a person runs it",
    "bert-keras serve": "waits for requests; test_serve.py",
    "bert-keras probe": "test_probe.py",
    "bert-keras protocol": "trains 9 times; test_protocol.py",
    "bert-keras glue": "trains 60 times; test_glue_protocol.py",
    "bert-keras vocab": "test_vocabulary.py",
    "bert-keras instances": "test_dataset.py",
    "bert-keras pretrain": "trains a million steps; test_pretrain.py",
    "bert-keras fill-mask": "reads what pretrain wrote; test_fill_mask.py",
    "bert-keras translate": "reads what pretrain wrote; test_transformer.py",
    "bert-keras generate": "reads what pretrain wrote; test_generation.py",
    "bert-keras ablate": "pre-trains; test_ablations.py",
    "bert-keras triviaqa": "downloads 2.7 GB; test_triviaqa.py",
    "bert-keras features": "test_feature_based.py",
    "bert-keras index": "test_search.py",
    "bert-keras search": "test_search.py",
    "bert-keras mine": "test_search.py",
    "bert-keras measure": "test_retrieval_measures.py",
}


def text_of(document):
    return (runs.ROOT / document).read_text(encoding="utf-8")


def fenced(document, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text_of(document))


def indented(document):
    """The lines of indented blocks; a backslash joins two."""
    rest = re.sub(r"(?ms)^```.*?^```$", "", text_of(document)).replace("\\\n", " ")
    return [
        line.strip()
        for block in re.findall(r"(?:^|\n)\n((?:    .*\n)+)", rest)
        for line in block.splitlines()
    ]


def commands(document):
    """Our commands in blocks, and at the head of the rows of a table."""
    listed = re.findall(r"(?m)^\| `(bert-keras [^`]+)`", text_of(document))
    blocks = [*indented(document), *"\n".join(fenced(document, "(?:bash|sh)?")).splitlines()]
    return listed + [
        line.split("    #")[0].removeprefix(".venv/bin/")
        for line in blocks
        if line.startswith(("bert-keras ", ".venv/bin/bert-keras "))
    ]


def parses(command):
    """True where each word is a flag that exists, with a value that it takes."""
    words = shlex.split(command.split(" | ")[0].split(" > ")[0].split(" && ")[0])
    try:
        parser(words[1:2], words[1:]).parse_args(words[1:])
    except SystemExit:
        return False
    return True


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if commands(name)])
def test_the_flags_of_every_documented_command_exist(document, capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in re.findall(r"(?s)`(\w+)\.py`:\n\n```python\n(.*?)^```", text_of(document), re.M):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code)
    wrong = [command for command in commands(document) if not parses(command)]
    assert wrong == [], capsys.readouterr().err


def test_a_wrong_flag_is_noticed(capsys):
    assert parses("bert-keras finetune --task sst2 --checkpoint minilm --output run")
    assert not parses("bert-keras finetune --task sst2 --checkpoint minilm --output run --no-such-flag")


def test_documented_servers_start_after_the_install_of_the_readme_and_from_any_folder():
    from bert_keras.savedmodels.commands import COMMANDS
    from bert_keras.savedmodels.model_card import VERSIONS

    lines = [line for document in DOCUMENTS for line in indented(document)]
    ours = [line for line in lines if line.startswith("bert-keras serve ")]
    assert [line for line in [*ours, COMMANDS["serve"].example] if "--no-grpc" not in line] == []
    theirs = [line for line in lines if line.startswith(("tensorflow_model_server ", "docker run "))]
    assert len(theirs) >= 2
    for line in theirs:  # a server refuses a relative path, and docker takes one for the name of a volume
        paths = re.findall(r"--\w+_(?:path|file)=(\S+)|-v (\S+)", line)
        assert paths and all("".join(path).startswith(('"$PWD', "/")) for path in paths), line
    assert {tag for line in theirs for tag in re.findall(r"serving:(\S+)", line)} == {f"{VERSIONS[-1]}.0"}


def test_the_python_of_every_document_runs_somewhere():
    assert {*RUN_ELSEWHERE} | RUN_HERE == {name for name in DOCUMENTS if fenced(name, "python")}
    for document, test in RUN_ELSEWHERE.items():
        assert document.removeprefix("docs/") in (runs.ROOT / "tests" / test).read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_python_or_a_command_or_a_listing(document):
    first = {line.split()[0] for line in indented(document) if line}
    shell = {
        word
        for word in first
        if re.match(r"[.\w/-]*(python3?|pip|pytest|uv|npm|cd|touch|printf|echo|hf|docker|kubectl)$", word)
    }
    assert shell <= {*NOT_RUN}, "give the command a reason in NOT_RUN, or run it"
    languages = set(re.findall(r"(?m)^```(\w*)\n", text_of(document)))
    assert languages <= {"", "python", "text", "json", "csv", "tsv"}
    code = [
        line for line in indented(document) if re.match(r"(import|from|with) \w|\w+ = \w+\.|model\.", line)
    ]
    assert code == [], "Python stands in ```python blocks, which run"


def test_every_public_name_and_every_class_of_settings_is_on_a_page_of_the_api():
    pages = [path.read_text(encoding="utf-8") for path in (runs.ROOT / "docs" / "api").glob("*.md")]
    named = re.findall(r"(?m)^::: (\S+)$", "\n".join(pages))
    assert len(named) == len({*named})
    assert {f"bert_keras.{name}" for name in bert_keras.__all__} <= {*named}
    listed = re.findall(r"(?m)\]\[([\w.]+)\]|^::: ([\w.]+)", text_of("docs/api/index.md"))
    assert {f"bert_keras.{name}" for name in bert_keras.__all__} <= {one for pair in listed for one in pair}
    classes = [kind for module in (hparams, options, study_options) for kind in vars(module).values()]
    settings = {f"{kind.__module__}.{kind.__name__}" for kind in classes if dataclasses.is_dataclass(kind)}
    assert {name for name in settings if "options" in name or "hparams" in name} <= {*named}


# -----------------------------------------------------------------------------------------------------------
# Running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The reader's folder."""
    folder = tmp_path_factory.mktemp("reader")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 4, "max_positions": 512}
    runs.write_checkpoint(folder / "minilm", **sizes, initializer_range=0.02)
    for name in ("bert-base", "bert-base-cased", "bert-base-uncased"):
        (folder / name).symlink_to("minilm")
    runs.write_data(folder / "glue" / "SST-2", "sst2")
    (folder / "reviews.txt").write_text("a good film\na dull plot\n")
    return folder


@pytest.fixture
def reader(folder, monkeypatch):
    monkeypatch.chdir(folder)
    yield folder
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def only_data_sets_that_do_not_wait(monkeypatch):
    """The thread of tf.data's autotuning can hold up each epoch for half a minute: a reader would copy that."""
    fit = keras.Model.fit

    def checked_fit(self, x=None, *arguments, **keywords):
        if isinstance(x, tf.data.Dataset):
            assert x.options().autotune.enabled is False
        return fit(self, x, *arguments, **keywords)

    monkeypatch.setattr(keras.Model, "fit", checked_fit)


def run_python(document, names=None):
    names = names or {}
    for block in fenced(document, "python"):
        exec(compile(block, f"{document}: {block.splitlines()[0]}", "exec"), names)
    return names


def test_the_parts_in_a_model_train_without_a_word_but_keras_bar(tmp_path, monkeypatch, capfd):
    runs.write_checkpoint(tmp_path / "minilm", max_positions=64)
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in fenced("docs/keras.md", "python") if "ClassifierHead" in block)
    exec(compile(block, "docs/keras.md", "exec"), {})  # warnings are errors here
    assert "Epoch 3/3" in (out := capfd.readouterr().out) and out.startswith("Epoch 1/3")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Keras' own
def test_the_list_of_commands_and_the_readme_run(reader, capfd):
    runnable = [line for line in commands("docs/commands.md") if not line.startswith(tuple(NOT_RUN_HERE))]
    assert len(runnable) >= 8
    for line in sorted(runnable, key=lambda line: not line.startswith("bert-keras finetune")):
        code, _, err = runs.run_command(capfd, *shlex.split(line)[1:])
        assert code == 0, f"{line}: {err[-2000:]}"
    names = run_python("README.md")
    assert names["answers"]["probabilities"].shape == (1, 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Keras' own
@pytest.mark.parametrize("document", ["docs/recipes.md", "docs/keras.md", "docs/embeddings.md"])
def test_python_runs(document, reader, capfd):
    run_python(document)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Keras' own
def test_the_python_of_serving_and_hub_runs(reader, capfd, monkeypatch):
    addresses = []

    def find_module(address):  # of a text module, which is not downloaded here
        addresses.append(address)
        return pathlib.Path(saved(Lengths(), reader / "nnlm", tf.TensorSpec([None], tf.string)))

    monkeypatch.setattr("bert_keras.model.tensorflow_layers.find_module", find_module)
    exported = ["finetune --task sst2 --data glue/SST-2 --checkpoint minilm --output runs/s --epochs 1"]
    exported += [
        "export --run runs/s --output served/sst2",
        *(line.split(" ", 1)[1] for line in commands("docs/hub.md")),
    ]
    for line in exported:
        if line.startswith(("export", "hub")) or not os.path.exists("runs/s"):
            code, _, err = runs.run_command(capfd, *shlex.split(line))
            assert code == 0, err[-2000:]
    assert all(gradient is not None for gradient in run_python("docs/serving.md")["gradients"])
    run_python("docs/hub.md")
    assert addresses == ["https://tfhub.dev/google/nnlm-en-dim128/2"]
