"""A function in several processes: closing the results ends the calls that run, and so does the end of a process."""

import atexit
import multiprocessing
import os
import signal
import time

import pytest

from bert_keras.errors import BertKerasError
from tasks.pretraining.processes import check_sendable, in_order


def _start():
    return _slow


def _start_with_a_slow_end():
    atexit.register(time.sleep, 3000)  # TensorFlow's takes a second
    return _slow


def _start_with_places():
    return lambda number: (number, os.getpid())


def _start_with_a_fault():
    def fault(number):
        if number == 3:
            raise ValueError(f"no result for {number}")

    return fault


def _fail():
    raise RuntimeError("no function")


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


@pytest.mark.long
@pytest.mark.timeout(200)
def test_nobody_waits_for_a_worker_whose_calls_are_done():
    assert list(in_order(_start_with_a_slow_end, [(0,), (1,), (0,)], workers=2)) == [0, 1, 0]
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_process_that_takes_part_calls_the_function_and_keeps_the_order():
    results = list(
        in_order(_start_with_places, [(number,) for number in range(40)], workers=2, takes_part=True)
    )
    assert [number for number, _ in results] == [*range(40)]
    processes = [process for _, process in results]
    assert len({*processes}) == 2  # two workers are this process and another
    # The other one still imports TensorFlow when this one begins.
    assert processes[2:4] == [os.getpid()] * 2
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_an_error_in_a_process_that_takes_part_ends_the_others():
    with pytest.raises(ValueError, match="no result for 3"):
        list(in_order(_start_with_a_fault, [(number,) for number in range(9)], workers=2, takes_part=True))
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("interruptible", [False, True])
def test_a_killed_process_is_named(interruptible):
    results = in_order(_start, [(0,), (30,), (30,)], workers=2, interruptible=interruptible)
    assert next(results) == 0
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="a worker process ended .* give fewer workers"):
        list(results)
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_function_that_cannot_be_made_is_named():
    with pytest.raises(ChildProcessError, match="a worker process ended"):
        list(in_order(_fail, [(0,), (0,)], workers=2, interruptible=False))
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_signals_to_all_processes_do_not_end_results_that_are_still_needed():
    results = in_order(_start, [(0,), (3,), (3,)], workers=2, interruptible=False)
    assert next(results) == 0
    for child in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, number)
    assert list(results) == [3, 3]


def test_an_argument_that_cannot_be_sent_is_named():
    check_sendable(segment=str.split, tokenizer=None)
    with pytest.raises(BertKerasError, match="segment cannot be sent to a worker process .* or workers=1"):
        check_sendable(segment=lambda line: line.split())
