"""Runs on two replicas, stopped and taken up again, end with all variables of the run that was not, bit for bit."""

import json
from pathlib import Path

import forked
import pytest

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

SCRIPT = Path(__file__).with_name("resumed_replicas.py")


def resumed(*jobs: str) -> dict:
    done = forked.run(SCRIPT, *jobs)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def check(found: dict) -> None:
    for job, end in found.items():
        stopped = int(job.partition(":")[2])
        if not (end["steps"][0] == end["steps"][1] > stopped and end["variables"] > 60):
            raise RuntimeError(f"{job}: {end}")
        worst = max(end["differing"].values(), default=0.0)
        assert not worst, f"{job}: {len(end['differing'])} of {end['variables']} differ, by up to {worst:.3g}"
        assert not end["differing"], f"{job}: zeros of another sign"


def test_a_stopped_run_ends_with_the_same_variables():
    check(resumed("reviews:4"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    ["reviews:8", "vectors:4", "questions:4", "pretrain:4"],
    ids=["in the second epoch", "frozen features", "windows", "pre-training"],
)
def test_any_stopped_run_ends_with_the_same_variables(job):
    check(resumed(job))
