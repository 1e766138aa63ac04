"""The shape of the repository, read from its sources: rooms without circles, imports that point down, columns that part.

A room is a folder, or a file directly under bert_keras/, tasks/ or savedmodels/.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_keras import features

ROOT = Path(__file__).parents[1]
BASE = dict(os.environ)
PACKAGES = ("bert_keras", "tasks", "savedmodels")  # lowest first: imports point down
# The tables that name modules above their own: public names, commands, Keras classes, encoders.
TABLES = ("bert_keras", "bert_keras.cli.main", "bert_keras.model.registered", "bert_keras.model.encoders")
STRINGS, TENSORS = ("tensorflow", "tensorflow_text"), ("keras", "keras_hub", "keras_nlp")


def module_name(path: Path) -> str:
    """`tasks/data/conll.py` -> `bert_keras.tasks.data.conll`, `tasks/__init__.py` -> `bert_keras.tasks`."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("bert_keras") else f"bert_keras.{name}"


SOURCES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def room(module: str) -> str:
    """`bert_keras.tasks.data.conll` -> `tasks/data`, `bert_keras.tasks.task` -> `tasks/task`."""
    return "/".join(SOURCES[module].relative_to(ROOT).with_suffix("").parts[:2])


def imports(path: Path, *, nested: bool = True) -> Iterator[str]:
    """Every module that a file imports, `from package import module` as `package.module`.

    nested: False leaves out imports inside functions and conditions
    """
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}: import by the full name"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in submodules if name in SOURCES]
            yield from known
            if len(known) < len(submodules):
                yield node.module


def strings(path: Path) -> Iterator[str]:
    """Every module of ours that a file names in a string: it could import it by that name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split(".")
            yield from (name for i in range(1, len(words) + 1) if (name := ".".join(words[:i])) in SOURCES)


def arrows(module: str) -> set[str]:
    """The modules of ours that a module imports, or names in a string; nothing for the package, which every module imports."""
    path = SOURCES[module]
    named = () if module in TABLES else strings(path)
    found = {name for name in (*imports(path), *named) if name in SOURCES and name != "bert_keras"}
    return found - {module, module.rpartition(".")[0]}


ARROWS = {module: arrows(module) for module in SOURCES}
ROOMS: dict[str, set[str]] = {room(module): set() for module in SOURCES if module != "bert_keras"}
for _module in SOURCES:
    if _module != "bert_keras":
        ROOMS[room(_module)] |= {room(name) for name in ARROWS[_module]} - {room(_module)}


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """All that the arrows of a graph lead to from a node."""
    found, waiting = set(), [*graph[start]]
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            waiting += graph[node]
    return found


@pytest.mark.parametrize("graph", [ROOMS, ARROWS], ids=["rooms", "modules"])
def test_no_circle(graph):
    circles = {node for node in graph if node in reached(node, graph)}
    assert not circles, f"each of these leads back to itself: {sorted(circles)}"


@pytest.mark.parametrize("module", [name for name in SOURCES if name not in TABLES])
def test_imports_point_down(module):
    place = PACKAGES.index(room(module).split("/")[0])
    upward = [name for name in ARROWS[module] if PACKAGES.index(room(name).split("/")[0]) > place]
    assert not upward, f"{module} imports {upward} from a higher package"


def test_the_root_of_the_package_is_small():
    assert len([*(ROOT / "bert_keras").glob("*.py")]) <= 10


def test_nothing_imports_a_folder_of_ours_under_a_second_name():
    """Keras would register its classes twice. ruff says so too, but reads no string."""
    files = [
        path
        for name in (*PACKAGES, "tests", "benchmarks", "examples")
        for path in (ROOT / name).rglob("*.py")
    ]
    second = re.compile(r"(?m)^\s*(?:import|from) (?:tasks|savedmodels)\b")
    assert not [str(path) for path in files if second.search(path.read_text())]


@pytest.mark.skipif("TEST_SRCDIR" in os.environ, reason="Bazel's runfiles have links to files alone")
@pytest.mark.parametrize("name", ["tasks", "savedmodels"])
def test_the_folders_at_the_top_are_linked_into_the_package(name):
    assert (ROOT / "bert_keras" / name).is_symlink() and (ROOT / "bert_keras" / name).samefile(ROOT / name)


# -----------------------------------------------------------------------------------------------------------
# The two columns: text knows no Keras, the model knows TensorFlow only in modules that have a form for it.

NAMES_TENSORFLOW = ("kernels", "tensorflow_layers")


def column(folder: str) -> list[str]:
    return [name for name in SOURCES if room(name) == f"bert_keras/{folder}"]


@pytest.mark.parametrize("module", [*column("text"), *column("io"), *column("model")])
def test_columns_know_nothing_of_each_other(module):
    folder, name = module.split(".")[1], module.rpartition(".")[2]
    banned = STRINGS if folder == "model" else TENSORS
    # tf.io.gfile is imported where a remote path is read: paths on this machine need no TensorFlow.
    nested = not (folder == "io" or name in NAMES_TENSORFLOW)
    met = {found for found in imports(SOURCES[module], nested=nested) if found.partition(".")[0] in banned}
    assert not met or name == "tensorflow_layers", f"{module} imports {sorted(met)}"


# Preparing text for pre-training needs no model.
TEXT_HALF = [
    f"bert_keras.tasks.pretraining.{name}"
    for name in (
        "corpus_files corpus samplers processes instance_stream records write_records beam_records"
    ).split()
]


# A model of features and its training on another backend of Keras, and weights in and out, need no TensorFlow.
TENSOR_HALF = [
    "bert_keras",
    "bert_keras.checkpoints",
    *(f"bert_keras.model.{name}" for name in ("crf", "encoder", "heads")),
    *(f"bert_keras.optimization.{name}" for name in ("losses", "optimizers", "pretrainers", "schedules")),
]


@pytest.mark.parametrize(
    ("half", "others"), [(TEXT_HALF, TENSORS), (TENSOR_HALF, STRINGS)], ids=["text", "tensors"]
)
def test_each_half_imports_nothing_of_the_other(half, others):
    assert {*half} <= {*SOURCES}
    importers: dict[str, str] = {}  # every module that is imported, and by which one
    waiting = [(module, "the test") for module in half]
    while waiting:
        module, importer = waiting.pop()
        if module in SOURCES and module not in importers:
            parents = [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
            found = [*imports(SOURCES[module], nested=False), *parents]
            waiting += [(name, module) for name in found]
        importers.setdefault(module, importer)
    met = {name: by for name, by in importers.items() if name.partition(".")[0] in others}
    assert not met and {*half} <= {*importers}


@pytest.mark.parametrize("module", [name for name in SOURCES if name != "bert_keras.features"])
def test_feature_names_are_spelled_once(module):
    names = {value for key, value in vars(features).items() if key.isupper() and isinstance(value, str)}
    tree = ast.parse(SOURCES[module].read_text())
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    spelled = [
        f"line {node.lineno}: {node.value}" for node in literals if node.value in names - {features.DTYPE}
    ]
    assert not spelled, f"{module} spells a feature name; import it from bert_keras.features: {spelled}"


@pytest.mark.parametrize("module", SOURCES)
def test_modules_say_what_they_do(module):
    assert ast.get_docstring(ast.parse(SOURCES[module].read_text())), f"{module} has no docstring"


def test_no_path_of_one_machine():
    machine_path = re.compile(r"/(?:home|root|work|Users)/\w")
    names = (
        *PACKAGES,
        "tests",
        "benchmarks",
        "docs",
        ".ci",
        "setup.cfg",
        "pyproject.toml",
        "BUILD",
        "README.md",
    )
    files = [file for name in names for file in (ROOT / name, *(ROOT / name).rglob("*"))]
    texts = [
        file for file in files if file.is_file() and file.suffix in {"", ".py", ".md", ".cfg", ".toml", ".sh"}
    ]
    assert not [str(file) for file in texts if machine_path.search(file.read_text())]


# -----------------------------------------------------------------------------------------------------------
# BUILD


def build_rules() -> dict[str, dict]:
    """The rules of BUILD by name. BUILD is valid Python: run it with functions that take notes."""
    rules: dict[str, dict] = {}

    def note(**rule) -> None:
        rules[rule["name"]] = rule

    def glob(include: list[str], exclude: tuple[str, ...] = ()) -> list[str]:
        found = {path for pattern in include for path in ROOT.glob(pattern)}
        return sorted(path.relative_to(ROOT).as_posix() for path in found)

    names = dict.fromkeys(("py_library", "py_binary", "py_test", "filegroup"), note)
    rest = dict.fromkeys(("load", "package", "licenses", "exports_files"), lambda *_, **__: None)
    exec((ROOT / "BUILD").read_text(), {**names, **rest, "glob": glob})
    return rules


RULES = build_rules()


def test_build_has_a_target_for_each_room():
    wanted: dict[str, list[str]] = {}
    for module, path in SOURCES.items():
        if module != "bert_keras.__main__" and (path.stem != "__init__" or room(module).count("/") == 1):
            file = path.relative_to(ROOT).as_posix()
            linked = file if file.startswith("bert_keras/") else f"bert_keras/{file}"
            wanted.setdefault(room(module) if module != "bert_keras" else "bert_keras/__init__", []).append(
                linked
            )
    found = {name: rule["srcs"] for name, rule in RULES.items() if name in wanted}
    assert {name: sorted(files) for name, files in found.items()} == {
        name: sorted(files) for name, files in wanted.items()
    }


@pytest.mark.parametrize("name", ROOMS)
def test_build_deps_lead_to_the_imports(name):
    if name == "bert_keras/__main__":
        pytest.skip("a binary")
    graph = {key: {dep.removeprefix(":") for dep in rule.get("deps", ())} for key, rule in RULES.items()}
    assert ROOMS[name] <= reached(name, graph), "a target lacks what its sources import"
    assert graph[name] <= ROOMS[name], "a target names what its sources do not import"


def test_build_runs_every_test():
    files = {f"tests/{file.stem}" for file in (ROOT / "tests").glob("test_*.py")}
    assert {name for name in RULES if name.startswith("tests/test_")} == files


def test_tests_that_need_the_parity_extra_are_marked():
    extra, unmarked = {"accelerate", "jax", "tokenizers", "torch", "transformers"}, []
    for file in sorted((ROOT / "tests").glob("test_*.py")):
        tests = (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef))
        for test in (test for test in tests if test.name.startswith("test_")):
            calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
            asked = {call.args[0].value for call in calls if ast.unparse(call.func) == "pytest.importorskip"}
            if asked & extra and "pytest.mark.parity" not in map(ast.unparse, test.decorator_list):
                unmarked.append(f"{file.name}::{test.name}")
    assert not unmarked, "`pytest -m parity` would leave these out"


def python(code: str, **environment: str) -> str:
    """The output of a fresh interpreter; its error output if it fails."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env={**BASE, **environment}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Makes `import tensorflow` (and what is built on it) fail as on a machine that lacks it.
WITHOUT_TENSORFLOW = """
import sys
sys.modules.update(dict.fromkeys(["tensorflow", "tensorflow_text", "tf_keras", "tensorflow_datasets"]))
"""


def test_importing_the_package_is_light():
    loaded = python(
        "import sys, bert_keras; print(*{name.partition('.')[0] for name in sys.modules})"
    ).split()
    assert not {"tensorflow", "tensorflow_text", "keras", "numpy"} & set(loaded)


def test_help_answers_without_tensorflow():
    code = (
        WITHOUT_TENSORFLOW
        + "import runpy; sys.argv[1:] = ['--help']; runpy.run_module('bert_keras', run_name='__main__')"
    )
    printed = python(code)
    for command in ("finetune", "evaluate", "predict", "export", "convert", "demo", "info"):
        assert command in printed


def test_flags_need_neither_tensorflow_nor_keras():
    code = "import sys; from bert_keras.cli import main; main.parser(main.COMMANDS); print(*sys.modules)"
    loaded = {*python(code).split()}
    assert "bert_keras.tasks" in loaded and not {"tensorflow", "tensorflow_text", "keras", "rich"} & loaded


def test_a_command_imports_its_own_module_alone():
    code = "import sys; from bert_keras.cli import main; main.parser(['vocab']); print(*sys.modules)"
    assert not {"bert_keras.savedmodels", "bert_keras.tasks.commands.study"} & {*python(code).split()}
