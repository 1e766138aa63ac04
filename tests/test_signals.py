"""Signals that TensorFlow's C++ drops: the error that follows is the signal's."""

import os
import signal

import pytest

from bert_keras.io.signals import HungUp, Terminated, interruptible, postponed, terminable


def dropped(number):
    """A signal whose error is dropped."""
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, HungUp)],
)
def test_an_error_after_a_dropped_signal_is_the_signals(number, kind):
    with pytest.raises(KeyboardInterrupt) as raised, interruptible(), terminable():
        dropped(number)
        raise AttributeError("'list' object has no attribute '_type_spec'")
    assert type(raised.value) is kind and isinstance(raised.value.__cause__, AttributeError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_without_a_signal_stays():
    with pytest.raises(AttributeError), interruptible():
        raise AttributeError
    with interruptible():
        dropped(signal.SIGINT)
    with pytest.raises(AttributeError), interruptible():  # the signal was of another command
        raise AttributeError


def test_a_signal_that_waits_is_no_cause_of_an_error():
    with pytest.raises(AttributeError), interruptible(), postponed():
        os.kill(os.getpid(), signal.SIGINT)
        raise AttributeError
