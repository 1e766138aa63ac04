"""Scripts of benchmarks/: peers.py and cost.py on tiny models, a few faults of soak.py; and the page that pictures.py writes."""

import importlib.util
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from runs import ROOT

BENCHMARKS = ROOT / "benchmarks"
# A case of each kind (`--smoke` alone runs all), and the peers that are installed with the extra `parity`.
BOTH = ("KerasHub", "Hugging Face")
CASES = {
    "encoder-1x128": (*BOTH, "Hugging Face on one thread"),
    "finetune-32x128": BOTH,
    "finetune-sst2": BOTH,
    "pretrain-32x128": BOTH,
    "xla-finetune-32x128": (),
    "xla-pretrain-32x128": (),
    "serving-1": BOTH,
    "answers": BOTH[1:],
    "features": BOTH,
    **dict.fromkeys(("vectors-1000", "pairs-64", "search-100000"), ("Hugging Face, sentence-transformers",)),
    "tokenize": ("KerasHub", "tokenizers"),
    "byte-bpe": ("KerasHub", "tokenizers"),
    "instances": ("plain Python",),
    "import": BOTH,
    "start": BOTH,
    "memory-8x128": BOTH,
}
SOME = ("encoder-1x128", "pretrain-32x128")  # each case starts a process for each library
SERVED = {"encoder-1x128", "serving-1"}
RUNTIMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}  # with the extras `onnx` and `openvino`


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(tmp_path, *command, **how):
    """The exit status, the JSON and the output of a script."""
    written = tmp_path / "out.json"
    words = [sys.executable, *map(str, command), "--json", str(written)]
    done = subprocess.run(words, capture_output=True, text=True, **how)
    assert written.exists(), done.stderr[-3000:]
    return done.returncode, json.loads(written.read_text()), done.stdout + done.stderr


def smoke(tmp_path, script, *options):
    """A script on tiny models, without real text."""
    return run(tmp_path, BENCHMARKS / script, "--smoke", "--data", tmp_path, *options, cwd=tmp_path)


@pytest.mark.parity
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cases", [SOME, pytest.param([*CASES.keys() - SOME], marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_every_library_computes_the_same(cases, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("sentence_transformers")
    code, found, output = smoke(tmp_path, "peers.py", "--cases", *cases)
    assert code == 0 and {*found["cases"]} == {*cases}, output[-3000:]
    assert all(result["agrees"] for result in found["results"])
    compared = {(result["case"], result["peer"]) for result in found["results"]}
    assert {(case, peer) for case in cases for peer in CASES[case]} <= compared
    runtimes = [name for module, name in RUNTIMES.items() if importlib.util.find_spec(module)]
    assert {(case, name) for case in SERVED.intersection(cases) for name in runtimes} <= compared


def test_a_case_of_each_kind_runs(benchmarks):
    from cases import CASES as ALL

    assert {ALL[name].kind for name in CASES} == {case.kind for case in ALL.values()}


@pytest.mark.parity
@pytest.mark.slow
def test_costs_grow_along_an_axis(tmp_path):
    pytest.importorskip("tokenizers")
    code, found, output = smoke(tmp_path, "cost.py", "--axes", "tokenize")
    assert code == 0, output[-3000:]
    axis = found["axes"]["tokenize"]
    assert axis["growth"]["bert_keras"]["cost"][0] == 1.0
    assert {"KerasHub", "tokenizers"} <= {*axis["growth"]}


def test_a_worker_imports_no_library_but_its_own():
    """Else a peer's start and memory would be another library's too."""
    code = "import sys, peer_work.registry; print(*{name.partition('.')[0] for name in sys.modules})"
    environment = {"PYTHONPATH": f"{ROOT}:{BENCHMARKS}"}
    words = [sys.executable, "-c", code]
    loaded = subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()
    assert "peer_work" in loaded and not {"tensorflow", "keras", "torch", "transformers"} & {*loaded}


def test_gradients_and_outputs_on_a_gpu_are_compared(benchmarks):
    import gpu

    def apart(kind, value, other):
        return gpu.difference(
            gpu.Case(kind, "tiny", 2, 16, "float32"), {"x": value}, {"x": other, "y": value}
        )

    ones, zeros = np.ones((3, 4), "float32"), np.zeros((3, 4), "float32")
    assert apart("gradients", ones * 1e-3, ones * 1.1e-3) == pytest.approx(1 / 11, rel=1e-4)
    assert apart("gradients", zeros, ones) == 1.0
    assert apart("encoder", ones * 10, ones * 8) == 0.25 and apart("encoder", ones, ones) == 0.0
    padded = (
        np.ones((2, 16, 1), "float32")
        * gpu.inputs_of(gpu.Case("encoder", "tiny", 2, 16, "float32"))[0]["input_mask"][..., None]
    )
    assert apart("encoder", padded, np.ones_like(padded)) == 0.0  # padding does not count


def test_only_wheels_that_are_missing_are_unpacked(tmp_path, benchmarks):
    import gpu

    for name in ("numpy", "absent_package"):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
    path = gpu.python_path(tmp_path, tmp_path / "site")
    assert [file.name for file in (tmp_path / "site").iterdir()] == ["absent_package"]
    assert str(tmp_path / "site") in path


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_check_of_a_gpu_runs_on_a_cpu(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("transformers")
    code, found, output = run(tmp_path, BENCHMARKS / "gpu.py", "--quick", "--minutes", "20")
    assert code == 0 and len(found["cases"]) == 6, output[-3000:]
    assert all(case["agrees"] and not case["failed"] for case in found["cases"].values())
    (jax,) = (name for name in found["sides"] if "JAX" in name)
    assert any(pair.startswith(jax) for pair in found["cases"]["gradients-tiny-2x16, float32"]["apart"])


def test_outputs_that_differ_are_found(tmp_path, benchmarks):
    from comparison import compare

    def written(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / f"{name}.npz"

    ours = written("ours", logits=np.ones((2, 3), "float32"))
    assert compare(ours, written("near", logits=np.ones((2, 3)) + 5e-5), bound=1e-4)[1]
    far, agrees = compare(ours, written("far", logits=np.ones((2, 3)) + 2e-4), bound=1e-4)
    assert not agrees and "OVER" in far
    assert not compare(ours, written("short", logits=np.ones((2, 2))), bound=1e-4)[1]
    assert not compare(ours, written("other", states=np.ones((2, 3))), bound=1e-4)[1]
    counted = written("counted", instances=np.array(100))
    assert compare(counted, written("few_less", instances=np.array(97)), bound=1e-4)[1]
    assert not compare(counted, written("half", instances=np.array(50)), bound=1e-4)[1]


def test_a_slope_is_the_power_of_the_growth(benchmarks):
    from cost import slope

    assert slope([1, 2, 4], [3.0, 6.0, 12.0]) == pytest.approx(1.0)
    assert slope([1, 2, 4], [1.0, 4.0, 16.0]) == pytest.approx(2.0)


def test_the_page_and_the_csv_files_show_the_committed_figures(benchmarks):
    import pictures

    page = pictures.PAGE.read_text(encoding="utf-8")
    machines = pictures.read(pictures.FIGURES)
    made = pictures.sections(machines)
    assert all(f"<!-- figures: {name} -->\n" in page for name in made)
    old = [
        name
        for name, text in pictures.csv_files(machines).items()
        if text != text_of(pictures.FIGURES / name)
    ]
    assert pictures.with_sections(page, made) == page and not old, (
        "docs/performance.md or its figures are old: python benchmarks/pictures.py"
    )
    rows = [line for line in made["table"].splitlines() if line.startswith("| `")]
    assert len(rows) <= 25, "the page has one short table; the CSV files have the rest"


def text_of(path):
    """The text of a file, "" where it is missing."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# -----------------------------------------------------------------------------------------------------------
# soak.py

# Loads the script as a module, and has every command lose a line of its output when it runs again.
FORGETFUL = """
import pathlib, sys
sys.path.insert(0, sys.argv.pop(1))
import soak
result_of, seen = soak.result_of, []
def forgetful(output):
    seen.append(output)
    found = result_of(output)
    if "try" in output.parts:
        found.pop(next(iter(found)))
    return found
soak.result_of = forgetful
soak.main()
"""
COMMANDS = ["--commands", "convert", "instances"]


@pytest.mark.slow
def test_commands_survive_a_few_faults(tmp_path):
    code, rows, _ = run(tmp_path, BENCHMARKS / "soak.py", "--faults", "5", *COMMANDS)
    assert code == 0
    assert len(rows) == 5 and {row["outcome"] for row in rows} <= {"as unbroken", "refused in one line"}


@pytest.mark.slow
def test_a_lost_file_is_found(tmp_path):
    script = ["-c", FORGETFUL, BENCHMARKS, "--faults", "1", "--seed", "6"]
    code, (row,), _ = run(tmp_path, *script, *COMMANDS)
    assert code == 1 and row["outcome"] == "LOST OR CHANGED" and "missing" in row["detail"]
