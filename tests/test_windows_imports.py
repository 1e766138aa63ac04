"""The package imports nothing that Windows lacks. Windows itself is not run here."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Imports every module, with the modules and names of POSIX taken away from ours; what we import may use them here.
CODE = """
import builtins, importlib, os, pkgutil, signal, sys
import bert_keras.errors

POSIX = {"fcntl", "grp", "pwd", "posix", "pty", "resource", "termios", "tty", "syslog", "crypt"}
given = builtins.__import__

def refusing(name, globals=None, *rest, **more):
    if name.partition(".")[0] in POSIX and (globals or {}).get("__name__", "").startswith("bert_keras"):
        raise ImportError(f"{globals['__name__']} imports {name}")
    return given(name, globals, *rest, **more)

builtins.__import__ = refusing
for name in "SIGHUP SIGKILL SIGQUIT SIGUSR1 pthread_sigmask SIG_BLOCK SIG_UNBLOCK SIG_SETMASK setitimer".split():
    delattr(signal, name)
for name in "sync getuid geteuid setsid killpg getpgid nice mkfifo chown".split():
    delattr(os, name)
done = 0
for found in pkgutil.walk_packages(bert_keras.__path__, "bert_keras."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
        done += 1
    except (ModuleNotFoundError, bert_keras.errors.MissingPackageError) as error:  # of an extra
        cause = error.__cause__ or error
        assert isinstance(cause, ModuleNotFoundError) and not cause.name.startswith("bert_keras"), error
print(done)
"""


def test_every_module_imports_without_posix():
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 100
