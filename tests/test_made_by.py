"""Results name the command, the versions, the initial weights and the data that made them; the citation file is whole."""

import json
import shlex

import pytest
import runs
import yaml
from runs import run_command

from bert_keras import __version__, checkpoints
from bert_keras.cli.main import parser
from bert_keras.io import formats
from bert_keras.tasks.training.plan import origin_of


def parsed(words):
    """The settings of a command."""
    found = vars(parser(words[:1]).parse_args(words))
    return {name: value for name, value in found.items() if name != "refuse"}  # each parser's own method


def test_info_prints_the_command_of_a_run(sst2, capfd):
    code, out, err = run_command(capfd, "info", sst2.run, "--command")
    assert code == 0, err
    program, *words = shlex.split(out)
    folders = ["--data", sst2.data, "--checkpoint", sst2.checkpoint, "--output", sst2.run]
    given = ["--epochs", "1", "--batch-size", "8", "--learning-rate", "1e-3", "--seq-length", "40"]
    wanted = ["finetune", "--task", "sst2", *map(str, folders), *given]
    assert (program, words, parsed(words)) == ("bert-keras", wanted, parsed(wanted))


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "--task", "custom", "--text-column", "a $b", "it's", "--data=x y", "--checkpoint", "~/c", "--output", "ü"],
        ["pretrain", "--phases", "[[64, 0.9], [128, 0.1]]", "--text", "a.txt,lines=paragraph", "--output", 'a"b\\'],
        ["ablate", "tasks", "--text", "*.txt", "--vocab", "v", "--output", "o;p", "--data", "sst2=a b"],
    ],
)  # fmt: skip
def test_a_printed_command_gives_the_same_settings(words, tmp_path, capfd):
    with formats.running(words):
        (tmp_path / "results.json").write_text(json.dumps({formats.MADE_BY: formats.made_by()}))
    code, out, _ = run_command(capfd, "info", tmp_path, "--command")
    again = shlex.split(out)[1:]
    assert (code, again, parsed(again)) == (0, words, parsed(words))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--command needs the folder of a finished run or study; {} has no results.json."),
        ({}, "{}/results.json names no command; a result of Python code"),
        ({"made_by": {"command": None}}, "{}/results.json names no command; a result of Python code"),
        ({"made_by": {"command": "rm -r"}}, "command is 'rm -r'"),
    ],
)
def test_a_folder_without_a_command_is_an_error_of_one_line(content, message, tmp_path, capfd):
    if content is not None:
        (tmp_path / "results.json").write_text(json.dumps(content))
    code, _, err = run_command(capfd, "info", tmp_path, "--command")
    assert code == 1 and err.count("\n") == 1 and message.format(tmp_path) in err


def test_results_name_weights_data_versions_and_time(sst2, capfd):
    results = runs.results(sst2.run)
    source = checkpoints.read(sst2.checkpoint)
    digest = origin_of(source)["weights_sha256"]
    assert results["origin"] == {"model": "checkpoint", "weights_sha256": digest}
    counts = {name: (count, len(digest)) for name, (count, digest) in results["data"].items()}
    assert counts == {"train_examples": (48, 64), "dev_examples": (48, 64)}
    assert results["made_by"]["versions"].keys() == {"python", *formats.PACKAGES}
    assert results["seconds"] > 0
    _, out, _ = run_command(capfd, "info", sst2.checkpoint)
    assert digest in out  # a reader compares a checkpoint with that of a result


def test_the_digest_of_weights_does_not_depend_on_their_format(tiny, tmp_path):
    source = checkpoints.read(tiny)
    checkpoints.write(source, tmp_path / "google", format="google")
    assert (
        origin_of(checkpoints.read(tmp_path / "google"))["weights_sha256"]
        == origin_of(source)["weights_sha256"]
    )


def test_a_card_names_base_rate_batch_epochs_and_seed(sst2):
    card = (sst2.run / "README.md").read_text()
    digest = runs.results(sst2.run)["origin"]["weights_sha256"]
    assert f"| base | `checkpoint`, SHA-256 of the weights {digest} |" in card
    assert "| training | learning rate 0.001, batch size 8, epochs 1, seed 12345 |" in card


def test_the_citation_file_has_the_fields_that_cff_requires():
    cited = yaml.safe_load((runs.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited.keys() >= {"cff-version", "message", "title", "authors", "type", "version", "license"}
    assert cited["version"] == __version__ and cited["license"] == "Apache-2.0"
    assert all(author.keys() & {"name", "family-names"} for author in cited["authors"])
    reference = cited["references"][0]
    assert reference["title"].startswith("BERT: Pre-training") and len(reference["authors"]) == 4
