"""Gradients that are accumulated over micro-batches make the updates of whole batches, on one device and on two replicas."""

from pathlib import Path

import jobs
import numpy as np
import pytest

from bert_keras.errors import BertKerasError
from bert_keras.tasks.hparams import Hparams

KINDS = ("classifier", "answers", "tagger", "pretraining", "lamb", "electra")
# A key's bias and the biases of start and end add the same to all scores: their gradients are rounding, which Adam scales up.
WITHOUT_GRADIENT = ("key/bias", "qa_outputs/dense/bias")


def made_by(
    strategy: str, output: Path, *kinds: str, replicas: int = 2, workers: int = 1
) -> dict[str, np.ndarray]:
    """The output of distributed_steps.py for kinds with their micro-batches."""
    arguments = {"strategy_name": strategy, "output": output, "jobs": kinds}
    made = jobs.call(
        "distributed_steps:train_all", arguments, replicas=replicas, workers=workers, seconds=3600
    )
    jobs.check(made)
    return dict(np.load(output))


def differences(found: dict, job: str, wanted: dict, kind: str) -> dict[str, float]:
    """By weight and by log, the greatest difference of a job from the whole batches of one device."""
    names = [name.removeprefix(f"{kind}:0 ") for name in wanted if name.startswith(f"{kind}:0 ")]
    compared = [one for one in names if not one.endswith((*WITHOUT_GRADIENT, "tokens", "perplexity"))]
    assert len(compared) > 20
    return {one: float(np.abs(found[f"{job} {one}"] - wanted[f"{kind}:0 {one}"]).max()) for one in compared}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_steps_are_those_of_whole_batches(kind, tmp_path):
    whole = made_by("one", tmp_path / "one.npz", f"{kind}:0", f"{kind}:5")
    two = made_by("mirrored", tmp_path / "two.npz", f"{kind}:0", f"{kind}:2")
    for found, job in ((whole, f"{kind}:5"), (two, f"{kind}:0"), (two, f"{kind}:2")):
        worst = differences(found, job, whole, kind)
        assert max(worst.values()) < 1e-5, (job, max(worst, key=worst.get), max(worst.values()))


def test_a_resume_checks_the_micro_batch():
    assert Hparams(micro_batch=2).fingerprint()["micro_batch"] == 2
    for micro_batch in (0, -1):
        with pytest.raises(BertKerasError, match="micro_batch"):
            Hparams(micro_batch=micro_batch)
