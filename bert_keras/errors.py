"""The errors that this package raises on purpose, each in one line: what was given, what is wanted, what to do.

    BertKerasError       a value, a file's content or a combination of settings that cannot work
    MissingFileError     a file or folder that does not exist
    MissingPackageError  an optional package that is not installed
    TakenError           an output that already exists
    LossDiverged         a training whose loss or weights became infinite or NaN
    WorkerLost           a training of several processes, one of which has ended

All derive from ValueError. The second to the fourth also derive from the error that Python itself raises in this case. Any other
error is a bug or comes from another library: the command line shows its traceback.
"""

import re
from collections.abc import Iterable

# Line breaks and what moves a terminal's cursor: names in files may hold them.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    """The text with control characters escaped, for a terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class BertKerasError(ValueError):
    """An input that the package refuses. Its text is one line: control characters are escaped as Python does."""

    def __str__(self) -> str:
        return one_line(super().__str__())


# Ours is first, for its text.
class MissingFileError(BertKerasError, FileNotFoundError):
    """A file or folder that does not exist."""


class TakenError(BertKerasError, FileExistsError):
    """An output that already exists."""


class MissingPackageError(BertKerasError, ImportError):
    """An optional package that is not installed."""


class LossDiverged(BertKerasError):
    """A training whose loss or weights became infinite or NaN.

    what: the name of the value that is not finite; step: the optimizer step, from 1
    """

    def __init__(self, what: str, *, step: int) -> None:
        super().__init__(f"{what} at step {step}; give a lower learning_rate or a longer warm-up.")
        self.what, self.step = what, step


class WorkerLost(BertKerasError):
    """A training of several processes, one of which has ended or cannot be reached."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, to quote in an error of one line."""
    return str(getattr(error, "message", error)).strip().split("\n")[0]


def first_names(names: Iterable[str], limit: int = 8) -> str:
    """The first names and the number of the rest, for an error of one line."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest if names else "none"
