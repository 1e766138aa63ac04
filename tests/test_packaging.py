"""The installed package: the files of wheel and sdist, its dependencies, the platforms, and no folder called `build`."""

import ast
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import bert_keras

ROOT = Path(__file__).parents[1]
PACKAGES = ("bert_keras", "savedmodels", "tasks")
COPIED = (
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "BUILD",
    "CHANGELOG.md",
    "SECURITY.md",
)
BUILD = """
from setuptools import build_meta
build_meta.build_wheel("wheels")
build_meta.build_sdist("sdists")
build_meta.build_editable("editable")
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of the repository in which setuptools has built a wheel, an sdist and an editable wheel."""
    clone = tmp_path_factory.mktemp("clone")
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in COPIED:
        shutil.copy(ROOT / name, clone)
    for name in ("wheels", "sdists", "editable"):
        (clone / name).mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=clone, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return clone


@pytest.fixture(scope="module")
def wheel(clone) -> zipfile.ZipFile:
    (path,) = (clone / "wheels").glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def core_requirements(metadata: Message) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return {item.name: item for item in requirements if "extra" not in str(item.marker)}


def test_wheel_holds_the_three_packages_and_nothing_else(wheel, metadata):
    names = [
        name
        for name in wheel.namelist()
        if not name.startswith(f"bert_keras-{metadata['Version']}.dist-info/")
    ]
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for kind in ("*.py", "templates/*")
        for path in (ROOT / package).rglob(kind)
    }
    linked = {name if name.startswith("bert_keras/") else f"bert_keras/{name}" for name in sources}
    assert sorted(names) == sorted({*linked, "bert_keras/py.typed"})


def test_sdist_holds_the_files_of_the_wheel_and_no_tests(clone, wheel, metadata):
    """Two folders of the package are links, which an sdist must hold as folders."""
    (path,) = (clone / "sdists").glob("*.tar.gz")
    root = f"bert_keras-{metadata['Version']}"
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.removeprefix(f"{root}/") for member in members if member.isfile()}
    made = {name for name in names if name.startswith("bert_keras.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    beside = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "MANIFEST.in"}
    assert names - made - beside == {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_version_stands_in_one_place(metadata):
    assert metadata["Version"] == bert_keras.__version__


def test_wheel_has_the_command_and_the_license(wheel, metadata):
    info = f"bert_keras-{metadata['Version']}.dist-info"
    assert "bert-keras = bert_keras.cli.main:main" in wheel.read(f"{info}/entry_points.txt").decode()
    (license,) = (name for name in wheel.namelist() if name.startswith(info) and name.endswith("/LICENSE"))
    assert "Apache License" in wheel.read(license).decode()
    assert metadata["License-Expression"] == "Apache-2.0"


def test_no_folder_takes_the_name_of_the_build_file(clone):
    assert [path.name for path in clone.iterdir() if path.name.lower() == "build"] == ["BUILD"]


@pytest.mark.parametrize(
    ("version", "supported"), [("3.10", 0), ("3.11", 1), ("3.12", 1), ("3.13", 1), ("3.14", 0)]
)
def test_python_versions(metadata, version, supported):
    assert SpecifierSet(metadata["Requires-Python"]).contains(version) == bool(supported)


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("2.19.1", 0), ("2.20.0", 0), ("2.20.1", 1), ("2.21.0", 0), ("2.21.1", 1), ("2.22.0", 0)],
)
def test_tensorflow_text_versions(metadata, version, allowed):
    assert core_requirements(metadata)["tensorflow-text"].specifier.contains(version) == bool(allowed)


def test_tensorflow_text_and_tensorflow_have_one_minor():
    tensorflow, text = (
        importlib.metadata.version(name).split(".") for name in ("tensorflow", "tensorflow-text")
    )
    assert tensorflow[:2] == text[:2]


PLATFORMS = [  # sys_platform, platform_machine, has tensorflow, has tensorflow-text
    ("linux", "x86_64", True, True),
    ("linux", "aarch64", True, True),
    ("linux", "riscv64", True, False),
    ("darwin", "arm64", True, True),
    ("darwin", "x86_64", False, False),
    ("win32", "AMD64", True, False),
]


@pytest.mark.parametrize(("sys_platform", "platform_machine", "tensorflow", "tensorflow_text"), PLATFORMS)
def test_platforms(metadata, sys_platform, platform_machine, tensorflow, tensorflow_text):
    machine = {"sys_platform": sys_platform, "platform_machine": platform_machine}
    expected = {"tensorflow": tensorflow, "tensorflow-text": tensorflow_text, "keras-nlp": tensorflow_text}
    found = core_requirements(metadata)
    assert {name: found[name].marker.evaluate(machine) for name in expected} == expected


def test_sentencepiece_without_tensorflow_text_gets_one_clear_message():
    code = (
        "import sys; sys.modules['tensorflow_text'] = None; import bert_keras; bert_keras.SentencePiece(b'')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    for words in ("SentencePiece needs tensorflow-text", "x86_64", "aarch64", "macOS arm64"):
        assert words in message


def test_every_import_is_declared(metadata):
    declared = {
        Requirement(line).name.lower().replace("-", "_") for line in metadata.get_all("Requires-Dist", [])
    }
    # Names under which a distribution is imported, where they differ from its own.
    declared |= {"absl", "sklearn", "keras_hub", "official", *PACKAGES}
    declared |= {"google", "grpc", "tensorflow_serving"}  # protobuf, grpcio, tensorflow-serving-api
    imported = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names <= declared


def test_an_editor_finds_every_public_name():
    """Editors and type checkers run nothing: they read `__all__`, the imports beside it, and the definitions."""
    tree = ast.parse((ROOT / "bert_keras" / "__init__.py").read_text())
    (guard,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    read = {alias.name: node.module for node in guard.body for alias in node.names}
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert read == bert_keras._HOME_OF and sorted(listed) == sorted(read)
    for name, module in read.items():
        path = ROOT / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        defined = {getattr(node, "name", None) for node in ast.parse(source.read_text()).body}
        assert name in defined, f"{module} imports {name} from elsewhere"
