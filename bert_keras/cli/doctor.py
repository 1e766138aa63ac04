"""The command doctor: what is installed on this machine, and what does not fit together.

A row is ok, a note or a fault, with what to do. Packages are imported in a process of its own, so that doctor also answers where
one of them is missing, fails or kills the process.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple

from bert_keras.cli.console import Command, table
from bert_keras.io.json_files import as_json, read_object
from bert_keras.io.paths import cache_folder, files_below
from bert_keras.model.choices import cpu_flags
from bert_keras.text.rules import CORE, TENSORFLOW_TEXT, TEXT_OPS_VARIABLE

_OURS = "bert-keras"
# Distribution -> its module, in the order of the imports: each needs those before it.
_IMPORTED = {
    "numpy": "numpy",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "tensorflow-text": "tensorflow_text",
    "keras-nlp": "keras_nlp",
}
_MAY_LACK = ("tensorflow-text", "keras-nlp")  # see bert_keras.text.text_ops; only presets need the last
# Prints a line of JSON before and after each import, so that a process that dies names the package.
_PROBE = """
import importlib, json, sys
for name, module in json.loads(sys.argv[1]).items():
    print(json.dumps({name: "the process died"}), flush=True)
    try:
        made = importlib.import_module(module)
        print(json.dumps({name: ""}), flush=True)
    except BaseException as error:
        line = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        print(json.dumps({name: line[:300]}), flush=True)
if "tensorflow" in sys.modules:
    gpus = sys.modules["tensorflow"].config.list_physical_devices("GPU")
    print(json.dumps({"gpus": [gpu.name for gpu in gpus]}), flush=True)
"""
_SECONDS = 300  # for these imports
_CPU_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
# Variables that decide where files come from, and how. A proxy may hold a password.
_VARIABLES = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
)
# For work on this package; `gpu` asks for an extra of TensorFlow, whose GPUs have a row.
_NO_EXTRAS = ("", "dev", "test", "parity", "model-garden", "gpu")


class Row(NamedTuple):
    """A part of the machine, what was found, and what to do about a fault or a note; "" where it fits."""

    part: str
    found: str
    fault: str = ""
    note: str = ""

    @property
    def state(self) -> str:
        """One of ok, note and fault."""
        return "fault" if self.fault else "note" if self.note else "ok"

    def to_json(self) -> dict[str, str]:
        """The row for a machine."""
        return {
            "part": self.part,
            "found": self.found,
            "state": self.state,
            "advice": self.fault or self.note,
        }


def examine() -> Iterator[Row]:
    """Every row."""
    fits = (3, 11) <= sys.version_info[:2] < (3, 14)
    python = f"{platform.python_version()}, {sys.executable}"
    yield Row("Python", python, fault="" if fits else "use Python 3.11 to 3.13")
    windows = "not tried on Windows; WSL 2 is Linux" if os.name == "nt" else ""
    yield Row("platform", f"{platform.system()} {platform.release()}, {platform.machine()}", note=windows)
    yield _processor()
    imported = import_all()
    yield from packages(imported)
    yield from _keras()
    yield _text_ops(can=imported.get("tensorflow-text") == "")
    yield _gpus(imported.get("gpus"))
    yield from _extras()
    yield from _room()
    for name in _VARIABLES:
        if value := os.environ.get(name) or os.environ.get(name.lower()):
            hides = (
                urllib.parse.urlsplit(value).netloc.rpartition("@")[2] if name.endswith("PROXY") else value
            )
            yield Row(name, hides or "set")


# -----------------------------------------------------------------------------------------------------------
# Packages


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def import_all() -> dict[str, Any]:
    """Package -> "" or why it cannot be imported; "gpus" -> their names."""
    command = [sys.executable, "-c", _PROBE, json.dumps(_IMPORTED)]
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        printed = subprocess.run(command, env=env, capture_output=True, timeout=_SECONDS, check=False).stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
    found: dict[str, Any] = {}
    for line in printed.decode("utf-8", "replace").splitlines():
        if line.startswith("{"):  # a package may print too
            found |= json.loads(line)
    return found


def requirements() -> dict[str, dict[str, str]]:
    """Extra, or "" -> package -> the versions wanted on this machine; empty where `packaging` or our own metadata is missing."""
    try:
        from packaging.requirements import Requirement

        given = [Requirement(line) for line in metadata.requires(_OURS) or ()]
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for extra in ("", *(metadata.metadata(_OURS).get_all("Provides-Extra") or ())):
        of_extra = [one for one in given if ("extra ==" in str(one.marker)) == bool(extra)]
        wanted = [one for one in of_extra if one.marker is None or one.marker.evaluate({"extra": extra})]
        found[extra] = {one.name: str(one.specifier) for one in wanted}
    return found


def _misfit(package: str, wanted: str) -> str:
    """Why the version of a package does not meet a requirement; "" if it does."""
    from packaging.specifiers import SpecifierSet

    version = _version(package)
    if version is None:
        return "not installed"
    return "" if SpecifierSet(wanted).contains(version, prereleases=True) else f"{version}, wanted {wanted}"


def packages(imported: Mapping[str, Any]) -> Iterator[Row]:
    """The packages that are needed.

    imported: of `import_all`
    """
    needed = requirements().get("", {})
    unknown = "" if needed else "install it with pip, so that the versions of its packages are checked"
    yield Row(_OURS, _version(_OURS) or "run from its sources", note=unknown)
    for package in dict.fromkeys((*_IMPORTED, *needed)):
        wanted = needed.get(package, "")
        install = f"pip install '{package}{wanted}'"
        why = imported.get(package, "its import did not end") if package in _IMPORTED else ""
        misfit = _misfit(package, wanted) if package in needed else ""
        if why and _version(package) is None:
            lacks = {"note": install} if package in _MAY_LACK else {"fault": install}
            yield Row(package, f"cannot be imported: {why}", **lacks)
        elif why or misfit:
            again = install if misfit else install.replace("install", "install --force-reinstall")
            yield Row(package, misfit or f"{_version(package)} cannot be imported: {why}", fault=again)
        elif package in _IMPORTED:
            yield Row(package, _version(package) or "found, without a version")
    tensorflow, text = ((_version(name) or "").split(".")[:2] for name in ("tensorflow", "tensorflow-text"))
    if tensorflow != text and [""] not in (tensorflow, text):
        install = f"pip install 'tensorflow-text=={'.'.join(tensorflow)}.*'"
        yield Row("tensorflow-text", f"is for TensorFlow {'.'.join(text)}", fault=install)


def _keras() -> Iterator[Row]:
    """Keras' backend, and a second Keras."""
    file = pathlib.Path(os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras") / "keras.json"
    try:
        saved = read_object(file).get("backend")
    except (ValueError, OSError):
        saved = None
    backend = str(os.environ.get("KERAS_BACKEND") or saved or "tensorflow")
    other = "" if backend == "tensorflow" else "export KERAS_BACKEND=tensorflow, which all commands need"
    yield Row("Keras backend", backend, fault=other)
    if os.environ.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        yield Row("TF_USE_LEGACY_KERAS", "set: tf.keras is Keras 2", fault="unset TF_USE_LEGACY_KERAS")
    if version := _version("tf-keras"):
        yield Row("tf-keras", f"{version}, Keras 2", note="with bert_keras, import keras, not tf_keras")


def _text_ops(*, can: bool) -> Row:
    """The ops of tokenizers. can: TensorFlow Text can be imported."""
    chosen = os.environ.get(TEXT_OPS_VARIABLE) or (TENSORFLOW_TEXT if can else CORE)
    lost = chosen == TENSORFLOW_TEXT and not can
    lacks = "" if can else "SentencePiece needs tensorflow-text; WordPiece has equal ids without it"
    return Row("text ops", chosen, fault=f"unset {TEXT_OPS_VARIABLE}" if lost else "", note=lacks)


def _gpus(names: list[str] | None) -> Row:
    """The GPUs of the driver and of TensorFlow. names: as TensorFlow sees them."""
    there = []
    if program := shutil.which("nvidia-smi"):
        asked = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            there = subprocess.run(
                asked, capture_output=True, text=True, timeout=20, check=True
            ).stdout.splitlines()
    lost = "pip install 'tensorflow[and-cuda]', of the same version" if there and not names else ""
    found = "; ".join(there or names or ("none",))
    return Row("GPU", f"{found}, which TensorFlow does not see" if lost else found, fault=lost)


def _extras() -> Iterator[Row]:
    for extra, wanted in requirements().items():
        if extra not in _NO_EXTRAS:
            lacks = ", ".join(name for name, versions in wanted.items() if _misfit(name, versions))
            install = f"for its commands: pip install '{_OURS}[{extra}]'" if lacks else ""
            yield Row(f"extra {extra}", f"lacks {lacks}" if lacks else "installed", note=install)


# -----------------------------------------------------------------------------------------------------------
# The machine


def _processor() -> Row:
    flags = cpu_flags()
    found = "instructions not known" if flags is None else " ".join(one for one in _CPU_FLAGS if one in flags)
    old = flags is not None and not {"avx", "asimd"} & {*flags}
    need = "TensorFlow's wheels need AVX: use another machine"
    return Row("processor", f"{os.cpu_count()} cores, {found}", fault=need if old else "")


def _room() -> Iterator[Row]:
    """Free memory and disk."""
    with contextlib.suppress(OSError):  # another system than Linux
        lines = pathlib.Path("/proc/meminfo").read_text("ascii")
        free, total = (
            int(re.findall(rf"{name}: +(\d+)", lines)[0]) / 2**20 for name in ("MemAvailable", "MemTotal")
        )
        small = "BERT base trains in about 6 GiB: give a smaller --batch-size" if free < 6 else ""
        yield Row("memory", f"{free:.1f} of {total:.1f} GiB free", note=small)
    for part, folder in {"this folder": pathlib.Path.cwd(), "cache": cache_folder()}.items():
        there = next(one for one in (folder, *folder.parents) if one.exists())
        free = shutil.disk_usage(there).free / 2**30
        held = sum(file.stat().st_size for file in files_below(folder)) / 2**30 if part == "cache" else None
        holds = "" if held is None else f"{held:.2f} GiB, "
        small = "a run of BERT base with its saves needs about 3 GiB" if free < 3 else ""
        yield Row(part, f"{folder}: {holds}{free:.1f} GiB free", note=small)


# -----------------------------------------------------------------------------------------------------------
# The command


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print an array of objects instead of a table")


def _run_doctor(args: argparse.Namespace) -> None:
    rows = [row.to_json() for row in examine()]
    faults = sum(row["state"] == "fault" for row in rows)
    if args.json:
        print(as_json(rows))
    else:
        table(("part", "found", "", "what to do"), [[*row.values()] for row in rows])
        print(f"{faults} fault{'s' * (faults != 1)}")
    if faults:
        sys.exit(1)


COMMANDS = {
    "doctor": Command(
        "say what fits together on this machine, and what to do where it does not",
        "--json",
        _add_doctor,
        _run_doctor,
        notes="It exits with 1 if it finds a fault.\n\n",
    )
}
