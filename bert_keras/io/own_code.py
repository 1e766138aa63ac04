"""A user's own code by name: `MODULE:NAME` -> the class, function or object; and the files that decide what it computes.

The name is imported only where a user gives it, in a command or in Python: a file that names code never imports it.
"""

import functools
import importlib
import os
import pathlib
import sys
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.io.files import digest_file

OURS = "bert_keras"


def is_own(name: str) -> bool:
    """True for MODULE:NAME, the name of a user's own code."""
    return ":" in name


def load_own(name: str, *, given: str) -> Any:
    """Imports the object that MODULE:NAME names; the current folder counts as a place of modules.

    given: the flag or the setting, for errors. Raises BertKerasError if it cannot be imported.
    """
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(
            os.getcwd()
        )  # last, so that no file there hides an installed package, in the workers too
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        found = getattr(sys.modules.get(module), "__file__", None)
        raise BertKerasError(
            f"{given} {name}: {error}{f' of {found}' if found else ''}; give MODULE:NAME that can be imported."
        ) from error


def name_of(code: Any) -> str:
    """MODULE:NAME of a class, a function, or the class of another object."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{getattr(named, '__module__', 'builtins')}:{named.__qualname__}"


def digests_of(*codes: Any) -> dict[str, str]:
    """Module -> the SHA-256 of its file, for classes with their bases, functions, and partials; none for this package.

    It is a part of what decides a result: changed code is found like changed data.
    """
    found, without = {}, {OURS, *sys.stdlib_module_names} - {"__main__"}
    for code in codes:
        code = code.func if isinstance(code, functools.partial) else code
        named = code if hasattr(code, "__qualname__") else type(code)
        for one in getattr(named, "__mro__", (named,)):
            module = getattr(one, "__module__", None) or "builtins"
            file = pathlib.Path(getattr(sys.modules.get(module), "__file__", None) or "")
            if module.split(".")[0] not in without and file.is_file():
                found[module] = digest_file(file)
    return dict(sorted(found.items()))
