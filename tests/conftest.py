"""Shared by all tests: a quiet TensorFlow, fixed seeds and the folder of the real data."""

import contextlib
import functools
import gc
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before any test imports TensorFlow or Keras, which read these once.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# Triton, which torch imports late, crashes a process that has TensorFlow.
sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
# No test asks a server on the network for a model.
os.environ["HF_HUB_OFFLINE"] = "1"
# A shell that starts tests in its background has them ignore Ctrl-C, and nohup SIGHUP; so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import forked  # noqa: E402
import pytest  # noqa: E402
import runs  # noqa: E402
import small_tasks  # noqa: E402
from browser import browser  # noqa: E402, F401 - one Chromium for all files
from filelock import FileLock  # noqa: E402

ROOT = Path(__file__).parents[1]

# The files that take longest. They start first, so that no process is left with one of them at the end.
LONGEST = (
    "test_jax_training test_every_task test_worker_commands test_precision test_text_model_measures test_progress "
    "test_long_texts test_serving_safety test_page test_text_models test_frozen_features test_pretrain test_train_replicas "
    "test_protocol test_feature_based test_processes test_resume test_xla test_glue_protocol test_own_data test_vocabulary "
    "test_multiworker test_cli test_approaches test_export test_train_errors "
    "test_frozen_exports test_pretrain_records test_rematerialization test_train test_pretrain_errors test_hub "
    "test_serve test_keras_idioms test_fill_mask test_ablations test_objectives test_run_folders"
).split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the files by LONGEST; the tests of a file keep their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def spare_what_is_alive() -> None:
    """Keeps the garbage collector off all objects of now, most of them TensorFlow's and Keras'.

    A pass over them takes half a second, and Keras collects whenever a layer deletes a variable, as `quantize` does.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """All test files are imported."""
    spare_what_is_alive()
    if "tensorflow" in sys.modules:
        give_ops_one_stack()


def give_ops_one_stack() -> None:
    """Gives every op of a graph the stack of this line.

    TensorFlow keeps the Python stack of each op for its errors. Below pytest, whose own frames are many, that is a sixth of the
    time that a trace takes.
    """
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # private to TensorFlow; without it tests are slower
        from tensorflow.python.util import tf_stack

        here = tf_stack.extract_stack()
        tf_stack.extract_stack = lambda stacklevel=1: here


@pytest.fixture(scope="module", autouse=True)
def frozen_after_each_file() -> Iterator[None]:
    """Functions that TensorFlow and Keras keep for ever do not slow down the files after this one."""
    yield
    spare_what_is_alive()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data: $BERT_KERAS_TEST_DATA, or ../shared/data beside the repository."""
    folder = Path(os.environ.get("BERT_KERAS_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: set BERT_KERAS_TEST_DATA to its folder ({folder} is none)")
    return folder


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Callable[..., Any]:
    """Makes a folder once for all processes of a session: shared(name, make) is make(folder), which reads what is made."""
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent

    def once(name: str, make: Callable[[Path], Any]) -> Any:
        with FileLock(base / f"{name}.lock"):
            return make(base / name)

    return once


# The fixtures that follow are made when a test first asks for them, and serve all tests of the session. Tests read them and
# leave them as they are; copy a folder with shutil.copytree to change it.


@pytest.fixture(scope="session")
def sst2(shared) -> runs.Finetuned:
    """A small run of SST-2 by `bert-keras finetune` in its own process, with its data, its checkpoint and what it printed."""
    return shared("sst2", runs.finetuned_by_command)


@pytest.fixture(scope="session")
def published(shared) -> Path:
    """Files that other libraries wrote (golden/make_published.py), each folder with their outputs in expected.npz.

    hub/encoder and hub/preprocess of Model Garden's exporter, transformers of save_pretrained(saved_model=True), and
    keras_2/keras-bert and keras_2/bert-for-tf2.
    """

    def make(folder: Path) -> Path:
        if not folder.is_dir():
            with tarfile.open(ROOT / "tests" / "golden" / "published.tar.xz") as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
                archive.extractall(folder)
        return folder

    return shared("published", make)


@pytest.fixture(scope="session")
def tiny(shared) -> Path:
    """A checkpoint folder as `runs.write_checkpoint` makes it: one layer of random weights, with dropout."""
    return shared("tiny", lambda folder: folder if folder.exists() else runs.write_checkpoint(folder))


@pytest.fixture(scope="session")
def finished(shared, tiny) -> Callable[[str], runs.Finetuned]:
    """A finished run of a case of small_tasks.CASES, with its data and its checkpoint: finished("tags")."""

    def made(name: str) -> runs.Finetuned:
        start = small_tasks.CASES[name].start
        checkpoint = made(start).run if start else tiny
        return shared(f"run-{name}", functools.partial(small_tasks.train, name, checkpoint=checkpoint))

    return made


@pytest.fixture
def forked_answers() -> Iterator[None]:
    """Exports are compared with the answers of a forked process, which has TensorFlow imported already."""
    with forked.publishing():
        yield


@pytest.fixture(autouse=True)
def graphs(request) -> None:
    """Graphs run as they are traced: TensorFlow would optimize them for a sixth of the time of all tests, to run them once.

    Tests of fused kernels, tests against other implementations, and processes of their own (commands, servers, exports that are
    compared with `predict`) run optimized graphs, as users do.
    """
    if "tensorflow" in sys.modules:
        fused = any(request.node.get_closest_marker(name) for name in ("fused", "parity"))
        options = {"disable_meta_optimizer": not fused}
        sys.modules["tensorflow"].config.optimizer.set_experimental_options(options)


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)


if __name__ == "__main__":  # `bazel test` starts this file with the path of one test file
    sys.exit(pytest.main(["-p", "no:cacheprovider", "-n0", "-m", "not slow", *sys.argv[1:]]))
