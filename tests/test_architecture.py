"""The shape of the repository, read from its sources: imports point down, columns part, names stand once."""

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
PACKAGES = ("bert_keras", "tasks", "savedmodels")

# A module imports from the rows above its own or, without a circle, from its own row. Lowest floor first.
FLOORS = (
    (
        "contract",
        [
            "bert_keras.errors",
            "bert_keras.remote_paths",
            "bert_keras.files",
            "bert_keras.paths",
            "bert_keras.features",
            "bert_keras.precision",
            "bert_keras.json_files",
            "bert_keras.signals",
            "bert_keras.settings",
            "bert_keras.atomic_folders",
            "bert_keras.config_files",
            "bert_keras.config",
        ],
    ),
    (
        "string column",
        [
            "bert_keras.text",
            "bert_keras.text.text_ops",
            "bert_keras.text.ragged_ops",
            "bert_keras.text.vocabulary_files",
            "bert_keras.text.tokenizer",
            "bert_keras.text.normal_forms",
            "bert_keras.text.wordpiece",
            "bert_keras.text.sentencepiece",
            "bert_keras.text.byte_level",
            "bert_keras.text.merges",
            "bert_keras.text.bpe",
            "bert_keras.text.preprocessing",
            "bert_keras.text.masking",
        ],
    ),
    (
        "tensor column",
        [
            "bert_keras.unpadding",
            "bert_keras.gradients",
            "bert_keras.kernels",
            "bert_keras.packed_weights",
            "bert_keras.layers",
            "bert_keras.rematerialization",
            "bert_keras.encoder",
            "bert_keras.heads",
        ],
    ),
    (
        "floor 2",
        [
            "bert_keras.schedules",
            "bert_keras.autotuning",
            "bert_keras.replicas",
            "bert_keras.losses",
            "bert_keras.update_kernels",
            "bert_keras.optimizers",
            "bert_keras.logit_checks",
            "bert_keras.executions",
            "bert_keras.training_model",
            "bert_keras.objectives",
            "bert_keras.pretrainers",
            "bert_keras.tensorflow_errors",
            "bert_keras.checkpoints.variables",
            "bert_keras.checkpoints.letter_case",
            "bert_keras.checkpoints.torch_file",
            "bert_keras.checkpoints.hugging_face_tokenizer",
            "bert_keras.checkpoints.hugging_face",
            "bert_keras.checkpoints.tensorflow_checkpoint",
            "bert_keras.checkpoints.google",
            "bert_keras.checkpoints.model_garden",
            "bert_keras.checkpoints.keras_hub",
            "bert_keras.checkpoints.assignment",
            "bert_keras.checkpoints.tensors",
            "bert_keras.checkpoints.parity",
            "bert_keras.checkpoints.known_models",
            "bert_keras.checkpoints.downloads",
            "bert_keras.checkpoints",
            "bert_keras.hub_layer",
            "bert_keras.preprocessor_layer",
            "bert_keras.pooling",
            "bert_keras.registration",
            "bert_keras.console",
            "bert_keras.checkpoint_commands",
            "bert_keras.cli",
            "bert_keras.__main__",
        ],
    ),
    (
        "floor 3",
        [
            "tasks",
            "tasks.features",
            "tasks.features.layers",
            "tasks.features.mix",
            "tasks.features.parquet_file",
            "tasks.features.frozen",
            "tasks.features.weights_file",
            "tasks.settings",
            "tasks.options",
            "tasks.output_folder",
            "tasks.tfrecord",
            "tasks.example_protos",
            "tasks.display",
            "tasks.data_files",
            "tasks.table_files",
            "tasks.text_columns",
            "tasks.metrics",
            "tasks.degenerate",
            "tasks.task",
            "tasks.training",
            "tasks.training.cluster",
            "tasks.training.strategies",
            "tasks.batches",
            "tasks.glue",
            "tasks.glue.data_sets",
            "tasks.glue.label_types",
            "tasks.glue.files",
            "tasks.glue.custom",
            "tasks.glue.task",
            "tasks.squad",
            "tasks.squad.data",
            "tasks.squad.triviaqa",
            "tasks.squad.commands",
            "tasks.squad.decoding",
            "tasks.squad.task",
            "tasks.choice",
            "tasks.ner",
            "tasks.ner.schemes",
            "tasks.ner.files",
            "tasks.ner.word_splitting",
            "tasks.ner.decoding",
            "tasks.ner.task",
            "tasks.fill_mask",
            "tasks.next_sentence",
            "tasks.training.workers",
            "tasks.training.plan",
            "tasks.training.progress",
            "tasks.training.identity",
            "tasks.training.loop",
            "tasks.training.unpadding",
            "tasks.training.task_model",
            "tasks.training.run_folder",
            "tasks.training.ensemble",
            "tasks.training.run_precision",
            "tasks.training.evaluation_splits",
            "tasks.training.run_card",
            "tasks.features.extract",
            "tasks.embedding",
            "tasks.features.cache",
            "tasks.features.token_vectors",
            "tasks.training.feature_based",
            "tasks.features.extract_file",
            "tasks.features.tagger",
            "tasks.training.optimizer",
            "tasks.text_data",
            "tasks.text_model_saving",
            "tasks.truncation",
            "tasks.text_model_compile",
            "tasks.text_model",
            "tasks.training.examples",
            "tasks.training.fine_tuning_monitor",
            "tasks.training.finetune",
            "tasks.text_model_factories",
            "tasks.experiments",
            "tasks.experiments.cells",
            "tasks.experiments.paper_figures",
            "tasks.experiments.summary",
            "tasks.experiments.protocol",
            "tasks.experiments.ablation_report",
            "tasks.experiments.approach_rows",
            "tasks.experiments.approach_results",
            "tasks.experiments.approaches",
            "tasks.experiments.glue_protocol",
            "tasks.pretraining",
            "tasks.pretraining.sentences",
            "tasks.pretraining.wiki",
            "tasks.pretraining.corpus_files",
            "tasks.pretraining.corpus",
            "tasks.pretraining.samplers",
            "tasks.pretraining.processes",
            "tasks.pretraining.instance_stream",
            "tasks.pretraining.manifest",
            "tasks.pretraining.shard_writer",
            "tasks.pretraining.write_records",
            "tasks.pretraining.shard_plan",
            "tasks.pretraining.beam_records",
            "tasks.pretraining.read_records",
            "tasks.training.replica_values",
            "tasks.training.saver",
            "tasks.pretraining.recipes",
            "tasks.pretraining.estimate",
            "tasks.pretraining.recipe_objectives",
            "tasks.pretraining.optimizer",
            "tasks.pretraining.written_records",
            "tasks.pretraining.instance_sources",
            "tasks.pretraining.monitor",
            "tasks.pretraining.weights",
            "tasks.pretraining.pretrain",
            "tasks.experiments.ablation_definitions",
            "tasks.experiments.ablations",
            "tasks.experiments.probe",
            "tasks.pretraining.vocabulary",
            "tasks.example_files",
            "tasks.flags",
            "tasks.pretraining.flags",
            "tasks.commands",
            "tasks.features.commands",
            "tasks.pretraining.commands",
            "tasks.pretraining.data_commands",
            "tasks.experiments.commands",
        ],
    ),
    (
        "floor 4",
        [
            "savedmodels",
            "savedmodels.freezing",
            "savedmodels.servable",
            "savedmodels.op_support",
            "savedmodels.server_config",
            "savedmodels.warmup",
            "savedmodels.manifest",
            "savedmodels.model_card",
            "savedmodels.reload",
            "savedmodels.checked_write",
            "savedmodels.export",
            "savedmodels.runtimes",
            "savedmodels.runtime_example",
            "savedmodels.runtime_export",
            "savedmodels.hub",
            "savedmodels.server.served",
            "savedmodels.server.rest",
            "savedmodels.server.http",
            "savedmodels.server.grpc",
            "savedmodels.server",
            "savedmodels.demo",
            "savedmodels.commands",
        ],
    ),
    ("public names", ["bert_keras"]),
)
FLOOR_OF = {module: floor for floor, (_, modules) in enumerate(FLOORS) for module in modules}
STRINGS, TENSORS = ("tensorflow", "tensorflow_text"), ("keras", "keras_hub", "keras_nlp")
BANNED = {
    "contract": STRINGS + TENSORS,
    "string column": TENSORS,
    "tensor column": STRINGS,
}


def module_name(path: Path) -> str:
    """`tasks/glue/task.py` -> `tasks.glue.task`, `tasks/__init__.py` -> `tasks`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


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


def arrows(path: Path) -> set[str]:
    """The imports that stay in this repository. A package that imports lazily has its modules in strings."""
    lazy = ast.walk(ast.parse(path.read_text())) if path.name == "__init__.py" else ()
    names = {*imports(path), *(node.value for node in lazy if isinstance(node, ast.Constant))}
    return {name for name in names if name in SOURCES}


ARROWS = {module: arrows(path) for module, path in SOURCES.items()}


def build_rules() -> dict[str, dict]:
    """The rules of BUILD by name. BUILD is valid Python: run it with functions that take notes."""
    rules: dict[str, dict] = {}

    def note(**rule) -> None:
        rules[rule["name"]] = rule

    names = dict.fromkeys(("py_library", "py_binary", "py_test", "filegroup"), note)
    rest = dict.fromkeys(("load", "package", "licenses", "exports_files"), lambda *_, **__: None)
    exec((ROOT / "BUILD").read_text(), {**names, **rest, "glob": lambda include, exclude=(): [*include]})
    return rules


RULES = build_rules()


def label(module: str) -> str:
    """The name of a module's BUILD target: its path without `.py`."""
    return SOURCES[module].relative_to(ROOT).with_suffix("").as_posix()


def test_every_module_has_a_floor():
    assert sorted(FLOOR_OF) == sorted(SOURCES)


@pytest.mark.parametrize("module", SOURCES)
def test_imports_point_down(module):
    upward = sorted(name for name in ARROWS[module] if FLOOR_OF[name] > FLOOR_OF[module])
    assert not upward, f"{module} imports {upward} from a higher floor"


def test_columns_do_not_meet():
    columns = {"string column", "tensor column"}
    for module, targets in ARROWS.items():
        for target in targets:
            floors = {FLOORS[FLOOR_OF[module]][0], FLOORS[FLOOR_OF[target]][0]}
            assert floors != columns, f"{module} imports {target}"


def test_no_circle():
    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"circle: {' -> '.join((*trail, module))}"
        for target in ARROWS[module]:
            visit(target, (*trail, module))

    for module in SOURCES:
        visit(module, ())


@pytest.mark.parametrize("module", [name for floor, names in FLOORS if floor in BANNED for name in names])
def test_columns_know_nothing_of_each_other(module):
    banned = BANNED[FLOORS[FLOOR_OF[module]][0]]
    # A remote path imports tf.io.gfile when it is read: paths on this machine need no TensorFlow.
    # The kernels have a form for TensorFlow and one for every backend; padding is left out on TensorFlow alone, which alone has
    # gradients of our own and packs weights.
    names = ("remote_paths", "kernels", "packed_weights", "gradients", "unpadding")
    own = {f"bert_keras.{name}" for name in names}
    nested = module not in own
    met = {name for name in imports(SOURCES[module], nested=nested) if name.partition(".")[0] in banned}
    assert not met, f"{module} imports {sorted(met)}"


# Preparing text for pre-training needs no model.
TEXT_HALF = [
    f"tasks.pretraining.{name}"
    for name in (
        "sentences wiki corpus_files corpus samplers processes instance_stream manifest shard_writer write_records shard_plan "
        "beam_records read_records"
    ).split()
]


def test_the_text_half_imports_no_keras():
    assert {*TEXT_HALF} <= {*SOURCES}
    importers: dict[str, str] = {}  # every module that is imported, and by which one
    waiting = [(module, "the test") for module in TEXT_HALF]
    while waiting:
        module, importer = waiting.pop()
        if module in SOURCES and module not in importers:
            parents = [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
            found = [*imports(SOURCES[module], nested=False), *parents]
            waiting += [(name, module) for name in found]
        importers.setdefault(module, importer)
    met = {name: by for name, by in importers.items() if name.partition(".")[0] in TENSORS}
    assert not met and {*TEXT_HALF} <= {*importers}


def test_nothing_imports_the_command_line():
    importers = {module for module, targets in ARROWS.items() if "bert_keras.cli" in targets}
    assert importers <= {"bert_keras.__main__"}


@pytest.mark.parametrize("module", [name for name in SOURCES if name != "bert_keras.features"])
def test_feature_names_are_spelled_once(module):
    names = {value for key, value in vars(features).items() if key.isupper() and isinstance(value, str)}
    tree = ast.parse(SOURCES[module].read_text())
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    spelled = [
        f"line {node.lineno}: {node.value}" for node in literals if node.value in names - {features.DTYPE}
    ]
    assert not spelled, f"{module} spells a feature name; import it from bert_keras.features: {spelled}"


def test_the_document_lists_every_module():
    listed = re.findall(
        r"(?m)^    ((?:bert_keras|tasks|savedmodels)/[\w/]+\.py) ",
        (ROOT / "docs/architecture.md").read_text(),
    )
    packages = {"bert_keras", "bert_keras.checkpoints", "savedmodels.server"}  # whose __init__ has code
    wanted = [path for name, path in SOURCES.items() if path.stem != "__init__" or name in packages]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)) for path in wanted)


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


@pytest.mark.parametrize("module", SOURCES)
def test_build_deps_are_the_imports(module):
    wanted = sorted(f":{label(target)}" for target in ARROWS[module])
    rule = RULES.get(label(module), {})
    assert (rule.get("srcs"), rule.get("deps", [])) == ([f"{label(module)}.py"], wanted)


def test_build_runs_every_test():
    files = sorted((ROOT / "tests").glob("test_*.py"))
    wanted = {
        f"tests/{file.stem}": sorted([*(f":{label(name)}" for name in arrows(file)), ":tests/support"])
        for file in files
    }
    assert {name: rule["deps"] for name, rule in RULES.items() if name.startswith("tests/test_")} == wanted


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
    code = "import sys; from bert_keras import cli; cli.parser(cli.COMMANDS); print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in python(code).split()}
    assert "tasks" in loaded and not {"tensorflow", "tensorflow_text", "keras", "rich"} & loaded


def test_a_command_imports_its_own_module_alone():
    code = "import sys; from bert_keras import cli; cli.parser(['vocab']); print(*sys.modules)"
    assert not {"savedmodels", "tasks.experiments.commands"} & {*python(code).split()}
