"""A run that did not learn says so: on the console, in its card, and in the card of its export."""

import json

import pytest
from runs import run_command, write_checkpoint, write_data


@pytest.mark.long
def test_a_run_that_did_not_learn_says_so(tmp_path, capfd):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", num_layers=1)
    data = write_data(tmp_path / "data", "sst2")
    flags = ["--task", "sst2", "--data", data, "--checkpoint", checkpoint, "--output", tmp_path / "run"]
    flags += ["--learning-rate", "1e-12", "--epochs", "1", "--seq-length", "24"]
    code, _, err = run_command(capfd, "finetune", *flags)
    assert code == 0, err
    why = json.loads((tmp_path / "run" / "results.json").read_text())["degenerate"]
    assert why and f"warning: the model did not learn: {why}" in err
    assert f"**The model did not learn**: {why}" in (tmp_path / "run" / "README.md").read_text()
    code, _, err = run_command(
        capfd, "export", "--run", tmp_path / "run", "--output", tmp_path / "served", "--precision", "bfloat16"
    )
    assert code == 0, err
    card = (tmp_path / "served" / "1" / "assets.extra" / "model_card.md").read_text()
    assert f"**The model did not learn**: {why}" in card
    assert "The export in bfloat16 was not measured" in card
