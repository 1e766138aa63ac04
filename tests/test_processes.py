"""A function in several processes: closing the results ends the calls that run, and so does the end of a process."""

import atexit
import itertools
import multiprocessing
import os
import signal
import time

import pytest

from bert_keras.tasks.pretraining.processes import RESULTS, in_order

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]  # far below the seconds of the calls


def _start():
    return _slow


def _start_with_a_slow_end():
    atexit.register(time.sleep, 3000)  # TensorFlow's takes a second
    return _slow


def _start_with_places():
    def place(number):
        time.sleep(0.01)
        return number, os.getpid()

    return place


def _start_slow_elsewhere():
    def place(parent):
        time.sleep(0.01 if os.getpid() == parent else 3)
        return os.getpid()

    return place


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


def test_closing_ends_calls_whose_results_nobody_wants():
    results = in_order(_start, [(0,), (3000,), (3000,), (3000,)], workers=2, interruptible=False)
    assert next(results) == 0
    results.close()
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_nobody_waits_for_a_worker_whose_calls_are_done():
    assert list(in_order(_start_with_a_slow_end, [(0,), (1,), (0,)], workers=2)) == [0, 1, 0]
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_process_that_takes_part_works_while_others_start_and_keeps_the_order():
    results = in_order(_start_with_places, zip(itertools.count()), workers=2, takes_part=True)
    found = [next(results) for _ in range(3)]
    assert {place for _, place in found} == {os.getpid()}  # the other one still imports TensorFlow
    while len({place for _, place in found}) < 2:
        found.append(next(results))
    found += [next(results) for _ in range(20)]
    assert [number for number, _ in found] == [*range(len(found))]
    results.close()
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_an_error_in_a_process_that_takes_part_has_its_turn():
    results = in_order(_start_with_a_fault, [(number,) for number in range(9)], workers=2, takes_part=True)
    assert [next(results) for _ in range(3)] == [None] * 3
    with pytest.raises(ValueError, match="no result for 3"):
        next(results)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_few_results_wait_for_a_slow_process():
    read, waited, elsewhere = [], [], 0

    def tasks():
        while True:
            read.append(1)
            yield (os.getpid(),)

    results = in_order(_start_slow_elsewhere, tasks(), workers=2, takes_part=True)
    while elsewhere < 2:
        elsewhere += next(results) != os.getpid()
        waited.append(len(read) - len(waited))
    results.close()
    assert RESULTS // 2 < max(waited) <= RESULTS + 1


@pytest.mark.slow
def test_workers_have_tasks_while_a_result_is_used():
    read = []

    def tasks():
        for number in range(12):
            read.append(number)
            yield (0.0,)

    for number, _ in enumerate(in_order(_start, tasks(), workers=2)):
        time.sleep(0.2)  # every call is done by now
        assert len(read) == min(12, number + 3)


@pytest.mark.parametrize("interruptible", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_killed_process_is_named(interruptible):
    results = in_order(_start, [(0,), (30,), (30,)], workers=2, interruptible=interruptible)
    assert next(results) == 0
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="a worker process ended .* give fewer workers"):
        list(results)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_function_that_cannot_be_made_is_named():
    with pytest.raises(ChildProcessError, match="a worker process ended"):
        list(in_order(_fail, [(0,), (0,)], workers=2, interruptible=False))
    assert not multiprocessing.active_children()


def test_signals_to_all_processes_do_not_end_results_that_are_still_needed():
    results = in_order(_start, [(0,), (3,), (3,)], workers=2, interruptible=False)
    assert next(results) == 0
    for child in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, number)
    assert list(results) == [3, 3]
