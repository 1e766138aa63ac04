"""A function in several processes: closing the results ends the calls that run."""

import multiprocessing
import time

import pytest

from tasks.pretraining.processes import in_order


def _start():
    return _slow


def _slow(seconds):
    time.sleep(seconds)
    return seconds


@pytest.mark.long
@pytest.mark.timeout(200)  # far below the seconds of the calls
def test_closing_ends_calls_whose_results_nobody_wants():
    results = in_order(_start, [(0,), (3000,), (3000,), (3000,)], workers=2, interruptible=False)
    assert next(results) == 0
    results.close()
    assert not multiprocessing.active_children()
