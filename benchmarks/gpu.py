"""Compares our encoder and a training step on a GPU, by Keras on JAX and on TensorFlow, with transformers on PyTorch.

    python benchmarks/gpu.py --fetch --wheels wheels --python 3.12     where there is a network: what JAX and torch lack
    python benchmarks/gpu.py --wheels wheels --json gpu.json           on the machine with the GPU: within 8 minutes
    python benchmarks/gpu.py --quick                                   on tiny models: does all of it run?

In: an environment with JAX and torch, and a folder of wheels for what is missing there. TensorFlow takes part where it is
installed and sees the GPU. Out: for each case the differences of the outputs, from equal random weights, and of the gradients
after one step; the times as ratios, peer over ours, in turns (`interleave.py`). A call ends when its result is on the device.
The JSON file is written after every case. After `--minutes` the script ends with the cases that are measured. The exit status
is 1 where outputs differ, or a case failed. Without a GPU, `--quick` is set.

Formats, the same in all libraries: float32 without TF32; tf32, float32 weights with products in TF32; bfloat16. An inference in
bfloat16 has bfloat16 weights, a training float32 weights (`mixed_bfloat16`, autocast). A training's last block computes one
position in our model, and all positions in transformers'. Its batches come from the host in `fit`, and are on the device in
torch's loop.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import gc
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import interleave
import machine
import numpy as np
from interleave import Ratios, Worker, take_turns

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 64  # MiB of wheels
# Keras for our side, transformers for torch's; pip adds what they need. The rest comes with JAX and torch.
WANTED, COME_WITH_JAX = ("keras>=3.15,<4", "transformers>=4.50"), ("numpy",)
JAX, TENSORFLOW, TORCH = "bert_keras, JAX", "bert_keras, TensorFlow", "transformers"
NEEDS = {JAX: ("jax", "keras"), TENSORFLOW: ("tensorflow", "keras"), TORCH: ("torch", "transformers")}
BACKENDS = {JAX: "jax", TENSORFLOW: "tensorflow", TORCH: "torch"}
XLA = f"{TENSORFLOW}, XLA"
EAGER, SDPA, COMPILED = f"{TORCH}, eager attention", f"{TORCH}, SDPA", f"{TORCH}, SDPA, compiled"
FORMS = {JAX: (JAX,), TENSORFLOW: (TENSORFLOW, XLA), TORCH: (EAGER, SDPA, COMPILED)}
FORMATS = ("bfloat16", "tf32", "float32")
# On max |difference| of outputs relative to the largest, and on the length of the difference of gradients relative to theirs.
BOUNDS = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 0.1}
LEARNING_RATE = (
    1024.0  # of the step whose change is the gradient: a power of 2, so that the weights do not round it away
)
STEPS = 20  # of a call of a training
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "keras", "numpy"),
    *("tensorflow", "torch", "transformers", "triton"),
)
Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """kind: encoder, train or gradients; steps: of a call of a training."""

    kind: str
    size: str
    batch: int
    length: int
    precision: str
    steps: int = STEPS

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}-{self.batch}x{self.length}, {self.precision}"

    @property
    def forms(self) -> list[str]:
        """The implementations. To compile takes torch up to a minute: it compiles 32x128, and 8x128 in bfloat16."""
        if self.kind == "gradients":
            return [JAX, TENSORFLOW, SDPA]
        compiled = self.length < 512 and (self.batch == 32 or self.precision == "bfloat16")
        compiled &= self.precision != "float32"
        return [form for forms in FORMS.values() for form in forms if form != COMPILED or compiled]


def cases(*, quick: bool, gpu: bool) -> list[Case]:
    """The cases, those that tell most first: time may run out."""
    if quick:
        made = [Case(kind, "tiny", 2, 16, "float32", 2) for kind in ("gradients", "encoder", "train")]
        return [*made, *(dataclasses.replace(one, precision="bfloat16") for one in made)]
    sizes, formats = ("base", "minilm"), [name for name in FORMATS if gpu or name != "tf32"]
    exact = [
        Case(kind, size, 8, 128, "float32", 1 if kind == "gradients" else STEPS)
        for size in sizes
        for kind in ("gradients", "encoder")
    ]
    rest = [
        Case(kind, size, batch, length, precision, 1 if kind == "gradients" else STEPS)
        for precision in formats
        for size in sizes
        for kind, batch, length in (
            ("encoder", 32, 128),
            ("train", 32, 128),
            ("gradients", 8, 128),
            ("encoder", 8, 128),
            ("encoder", 32, 512),
        )
    ]
    return [*dict.fromkeys([*exact, *rest])]


# -----------------------------------------------------------------------------------------------------------
# The worker's side


def inputs_of(case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random ids in rows that are half full or more, and labels."""
    from peer_work import work

    one = work.Case(name="", kind=case.kind, batch=case.batch, length=case.length)
    return work.features(one), work.labels(one)


class Ours:
    """bert_keras on one of Keras' backends."""

    def __init__(self, backend: str) -> None:
        self._on_jax = backend == "jax"
        self._peak = 0

    def about(self) -> dict[str, Any]:
        """The device and its kind."""
        if self._on_jax:
            import jax

            return {"gpu": jax.default_backend() != "cpu", "device": jax.devices()[0].device_kind}
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        details = tf.config.experimental.get_device_details(found[0]) if found else {}
        return {"gpu": bool(found), "device": details.get("device_name", "cpu")}

    def set_format(self, precision: str) -> None:
        """Products of float32 matrices, in TF32 or not. The peak of memory counts from here."""
        if self._on_jax:
            import jax

            how = "tensorfloat32" if precision == "tf32" else "highest"
            jax.config.update("jax_default_matmul_precision", None if precision == "bfloat16" else how)
            self._peak = self._peak_now()
            return
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        if self.about()["gpu"]:
            tf.config.experimental.reset_memory_stats("GPU:0")

    def _peak_now(self) -> int:
        import jax

        return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)

    def peak(self) -> int | None:
        """Bytes on the device; None where the backend does not tell: JAX has the peak of the process, so only a new one."""
        if self._on_jax:
            return self._peak_now() if self._peak_now() > self._peak else None
        import tensorflow as tf

        return tf.config.experimental.get_memory_info("GPU:0")["peak"] if self.about()["gpu"] else None

    def prepare(self, form: str, case: Case, folder: pathlib.Path) -> tuple[Call, dict[str, np.ndarray]]:
        """The call to time, and what is compared."""
        if case.kind == "encoder":
            return self._encoder(case, folder, xla=form == XLA)
        return self._training(case, folder, xla=form == XLA)

    def _encoder(self, case: Case, folder: pathlib.Path, *, xla: bool) -> tuple[Call, dict[str, np.ndarray]]:
        from bert_keras import load_encoder
        from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT

        dtype = "bfloat16" if case.precision == "bfloat16" else "float32"
        encoder = load_encoder(folder, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT), dtype=dtype)
        given, _ = inputs_of(case)
        if self._on_jax:
            import jax

            variables = (encoder.trainable_variables, encoder.non_trainable_variables)
            values = jax.device_put([[one.value for one in part] for part in variables])
            features = jax.device_put(given)
            forward = jax.jit(lambda weights, x: encoder.stateless_call(*weights, x, training=False)[0])
            call = lambda: jax.block_until_ready(forward(values, features))  # noqa: E731
        else:
            import tensorflow as tf

            features = {name: tf.constant(value) for name, value in given.items()}
            traced = tf.function(lambda x: encoder(x, training=False), jit_compile=xla)
            call = functools.partial(self._waited, lambda: traced(features))
        found = call()
        return call, {name: np.asarray(value).astype("float32") for name, value in found.items()}

    def _waited(self, run: Call) -> Any:
        import tensorflow as tf

        found = run()
        tf.test.experimental.sync_devices()
        return found

    def _training(self, case: Case, folder: pathlib.Path, *, xla: bool) -> tuple[Call, dict[str, np.ndarray]]:
        import keras
        from peer_work.ours_training import optimizer

        import bert_keras as bk
        from bert_keras import checkpoints
        from bert_keras.features import POOLED_OUTPUT

        read, gradients = checkpoints.read(folder), case.kind == "gradients"
        config = without_dropout(read.config) if gradients else read.config
        dtype = "mixed_bfloat16" if case.precision == "bfloat16" else "float32"
        encoder = bk.BertEncoder(config, outputs=(POOLED_OUTPUT,), dtype=dtype)
        head, inputs = bk.ClassifierHead(2, config=config, dtype=dtype), bk.encoder_inputs()
        model = keras.Model(inputs, head(encoder(inputs)[POOLED_OUTPUT]))
        checkpoints.assign(read, encoder, classifier=head)
        step = keras.optimizers.SGD(LEARNING_RATE) if gradients else optimizer()
        compiled = {} if self._on_jax else {"jit_compile": xla}
        model.compile(step, loss=bk.GlobalMean(bk.cross_entropy), **compiled)
        given, labels = inputs_of(case)
        times = 1 if gradients else case.steps
        x = {name: np.tile(value, (times, 1)) for name, value in given.items()}
        y = np.tile(labels, times)
        call = functools.partial(model.fit, x, y, batch_size=case.batch, shuffle=False, verbose=0)
        call()
        if not gradients:
            return call, {}
        after = checkpoints.collect(config, encoder, classifier=head).tensors
        return call, {name: read.tensors[name] - value for name, value in after.items()}


def without_dropout(config: Any) -> Any:
    """The config of a model whose training draws nothing."""
    return dataclasses.replace(config, hidden_dropout=0.0, attention_dropout=0.0)


class Torch:
    """transformers' BERT on PyTorch."""

    def __init__(self) -> None:
        import torch

        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    def about(self) -> dict[str, Any]:
        """The device and its kind."""
        import torch

        found = self._device == "cuda"
        about = {"gpu": found, "device": torch.cuda.get_device_name() if found else "cpu"}
        return about | {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}

    def set_format(self, precision: str) -> None:
        """Products of float32 matrices, in TF32 or not. The peak of memory counts from here."""
        import torch

        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch._dynamo.reset()
        if self._device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int | None:
        """Bytes on the device, of the case's forms together."""
        import torch

        return torch.cuda.max_memory_allocated() if self._device == "cuda" else None

    def _wait(self) -> None:
        import torch

        if self._device == "cuda":
            torch.cuda.synchronize()

    def prepare(self, form: str, case: Case, folder: pathlib.Path) -> tuple[Call, dict[str, np.ndarray]]:
        """The call to time, and what is compared."""
        import torch
        import transformers

        how = {"hidden_act": "gelu_pytorch_tanh", "attn_implementation": "eager" if form == EAGER else "sdpa"}
        given, labels = inputs_of(case)
        named = dict(zip(("input_ids", "attention_mask", "token_type_ids"), given.values(), strict=True))
        x = {name: torch.from_numpy(value).long().to(self._device) for name, value in named.items()}
        if case.kind == "encoder":
            dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
            model = transformers.BertModel.from_pretrained(folder, dtype=dtype, **how).eval().to(self._device)
            return self._encoder(model, x, compiled=form == COMPILED)
        if case.kind == "gradients":
            how |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = transformers.BertForSequenceClassification.from_pretrained(folder, dtype=torch.float32, **how)
        model.config.problem_type = "single_label_classification"
        y = torch.from_numpy(labels).long().to(self._device)
        return self._training(model.train().to(self._device), x | {"labels": y}, case, form, folder)

    def _encoder(
        self, model: Any, x: dict[str, Any], *, compiled: bool
    ) -> tuple[Call, dict[str, np.ndarray]]:
        import torch

        from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT

        # On a GPU, one CUDA graph in place of a launch for each kernel.
        mode = "reduce-overhead" if self._device == "cuda" else "default"
        forward = torch.compile(model, dynamic=False, mode=mode) if compiled else model

        @torch.inference_mode()
        def call() -> Any:
            found = forward(**x)
            self._wait()
            return found

        for _ in range(3):  # a CUDA graph is recorded in the second call or the third
            found = call()
        outputs = {SEQUENCE_OUTPUT: found.last_hidden_state, POOLED_OUTPUT: found.pooler_output}
        return call, {name: value.float().cpu().numpy() for name, value in outputs.items()}

    def _training(
        self, model: Any, batch: dict[str, Any], case: Case, form: str, folder: pathlib.Path
    ) -> tuple[Call, dict[str, np.ndarray]]:
        import torch
        from peer_work.hugging_face import optimizer
        from peer_work.work import CLIP_NORM

        from bert_keras import checkpoints

        gradients = case.kind == "gradients"
        step = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE) if gradients else optimizer(model)
        forward = torch.compile(model, dynamic=False) if form == COMPILED else model
        narrow = case.precision == "bfloat16"

        def call() -> None:
            for _ in range(case.steps):
                with torch.autocast(self._device, torch.bfloat16, enabled=narrow):
                    loss = forward(**batch).loss
                loss.backward()
                if not gradients:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
                step.step()
                step.zero_grad()
            self._wait()

        call()
        if not gradients:
            return call, {}
        with tempfile.TemporaryDirectory() as temporary:
            model.save_pretrained(temporary)
            after = checkpoints.read(temporary).tensors
        before = checkpoints.read(folder).tensors
        return call, {name: before[name] - value for name, value in after.items()}


def serve(side: str) -> None:
    """A worker: answers requests until the input ends."""
    library = Torch() if side == TORCH else Ours(BACKENDS[side])
    calls: dict[str, Call] = {}
    current: list[Case] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "about":
            return library.about()
        if request["do"] == "peak":
            return {"peak": library.peak()}
        if request["do"] == "time":
            call = calls[request["form"]]
            return {"figure": interleave.seconds_per_call(call, at_least=request["at_least"], clock="wall")}
        case = Case(**request["case"])
        if current != [case]:
            calls.clear()
            gc.collect()
            current[:] = [case]
            library.set_format(case.precision)
        start = time.perf_counter()
        try:
            call, found = library.prepare(request["form"], case, pathlib.Path(request["folder"]))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:300]}
        taken = time.perf_counter() - start
        np.savez(request["outputs"], **found)
        calls[request["form"]] = call
        return {"prepared": taken}

    interleave.serve(answer)


# -----------------------------------------------------------------------------------------------------------
# The side that asks


def python_path(wheels: pathlib.Path | None, into: pathlib.Path) -> str:
    """The import path of the workers: this repository, this folder, and the unpacked wheels that are not installed here."""
    for wheel in sorted(wheels.glob("*.whl")) if wheels else ():
        try:
            metadata.version(wheel.name.split("-")[0])
        except metadata.PackageNotFoundError:
            with zipfile.ZipFile(wheel) as file:
                file.extractall(into)
    return os.pathsep.join([str(HERE.parent), str(HERE), str(into)])


def fetch(wheels: pathlib.Path, python: str) -> int:
    """Downloads what an environment with JAX and torch lacks, for Linux on x86-64; returns 1 over the limit."""
    tags = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in (17, 24, 27, 28, 31, 34))]
    command = [sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp"]
    command += [word for tag in tags for word in ("--platform", f"{tag}_x86_64")]
    subprocess.run([*command, *WANTED], check=True)
    for wheel in wheels.glob("*.whl"):
        if wheel.name.split("-")[0] in COME_WITH_JAX:
            wheel.unlink()
    size = sum(wheel.stat().st_size for wheel in wheels.glob("*.whl")) / 2**20
    print(f"{wheels}: {len([*wheels.glob('*.whl')])} wheels, {size:.1f} MiB of {LIMIT}")
    return 0 if size <= LIMIT else 1


def driver() -> list[str]:
    """The GPUs that the driver names, with its version and their memory."""
    if not (program := shutil.which("nvidia-smi")):
        return []
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.splitlines()


class Sides:
    """A worker for each side, started at its first use."""

    def __init__(self, folder: pathlib.Path, path: str) -> None:
        self.folder, self._path = folder, path
        self._started: dict[str, Worker] = {}
        self.stopped = threading.Event()

    def __getitem__(self, side: str) -> Worker:
        if self.stopped.is_set():
            raise RuntimeError("the time is over")
        if side not in self._started:
            environment = {
                "KERAS_BACKEND": BACKENDS[side],
                "PYTHONPATH": self._path,
                "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0"),
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            }
            self._started[side] = Worker(
                [sys.executable, str(HERE / "gpu.py"), "--worker", side],
                threads=os.cpu_count() or 1,
                log=self.folder / f"{side}.log",
                folder=HERE,
                environment=environment,
            )
        return self._started[side]

    def close(self) -> None:
        for worker in [*self._started.values()]:
            worker.close()
        self._started.clear()

    def stop(self) -> None:
        """Ends all workers, also in the middle of an answer."""
        self.stopped.set()
        self.close()


def side_of(form: str) -> str:
    """The side, and process, of an implementation."""
    return next(side for side, forms in FORMS.items() if form in forms)


def difference(case: Case, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float | None:
    """The largest difference of outputs, relative to the largest output; that of gradients by their lengths."""
    shared = [name for name in ours if name in theirs]
    if not shared:
        return None
    if case.kind == "gradients":
        apart = sum(float(np.sum(np.square(ours[name] - theirs[name], dtype="float64"))) for name in shared)
        whole = sum(float(np.sum(np.square(theirs[name], dtype="float64"))) for name in shared)
        return (apart / whole) ** 0.5
    real = inputs_of(case)[0]["input_mask"][..., None]  # libraries may differ in padding
    parts = [(real if ours[name].ndim == 3 else 1.0, ours[name], theirs[name]) for name in shared]
    return max(float(np.abs((a - b) * kept).max() / max(1.0, np.abs(b).max())) for kept, a, b in parts)


def measure(case: Case, sides: Sides, present: list[str], *, rounds: int, at_least: float) -> dict[str, Any]:
    """Prepares the case in all sides at the same time, compares, and lets them take turns."""
    forms = [form for form in case.forms if side_of(form) in present]
    outputs = {form: sides.folder / f"{i}.npz" for i, form in enumerate(forms)}

    def prepare(side: str) -> dict[str, dict[str, Any]]:
        asked = {"do": "prepare", "case": dataclasses.asdict(case), "folder": str(sides.folder / case.size)}
        return {
            form: sides[side].ask(**asked, form=form, outputs=str(outputs[form]))
            for form in forms
            if side_of(form) == side
        }

    with concurrent.futures.ThreadPoolExecutor() as executor:
        answers = {form: one for part in executor.map(prepare, present) for form, one in part.items()}
    ready = [form for form in forms if "failed" not in answers[form]]
    arrays = {form: dict(np.load(outputs[form])) for form in ready}
    pairs = [(ours, peer) for ours in ready for peer in ready if side_of(ours) != TORCH == side_of(peer)]
    apart = {f"{ours} | {peer}": difference(case, arrays[ours], arrays[peer]) for ours, peer in pairs}
    found: dict[str, Any] = {
        **dataclasses.asdict(case),
        "prepared": {form: one["prepared"] for form, one in answers.items() if form in ready},
        "failed": {form: one["failed"] for form, one in answers.items() if form not in ready},
        "apart": apart,
        "agrees": all(one is None or one <= BOUNDS[case.precision] for one in apart.values()),
    }
    if case.kind == "gradients":
        return found

    def turn(form: str) -> float:
        return sides[side_of(form)].ask(do="time", form=form, at_least=at_least)["figure"]

    turns = {form: functools.partial(turn, form) for form in ready}
    figures = take_turns(turns, rounds=rounds, pause=0.05)
    ratios = {f"{ours} | {peer}": Ratios.of(figures[ours], figures[peer]) for ours, peer in pairs}
    peaks = {side: sides[side].ask(do="peak")["peak"] for side in present}
    return found | {
        "seconds": {form: sorted(one)[len(one) // 2] for form, one in figures.items()},
        "ratios": {name: {"median": one.median, "rounds": one.values} for name, one in ratios.items()},
        "peak_bytes": peaks,
    }


def lines(case: Case, found: dict[str, Any]) -> Iterator[str]:
    """Yields the printed lines of a case."""
    yield f"{case.name}{'' if found['agrees'] else ': OVER'}"
    for pair, apart in found["apart"].items():
        ratio = found.get("ratios", {}).get(pair)
        words = [] if apart is None else [f"apart {apart:.1e}"]
        if ratio:
            words.insert(0, f"{ratio['median']:.2f} ({min(ratio['rounds']):.2f}..{max(ratio['rounds']):.2f})")
        yield f"    {pair}: {', '.join(words)}"
    yield from (f"    {form} failed: {why}" for form, why in found["failed"].items())


def versions() -> dict[str, str]:
    """The installed packages that matter."""
    every = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    return {"python": platform.python_version()} | {name: every[name] for name in PACKAGES if name in every}


def write_models(folder: pathlib.Path, sizes: set[str]) -> None:
    """Random weights of each size, in Hugging Face's format."""
    import material
    from cases import SIZES

    from bert_keras.config import BertConfig

    for size in sizes:
        config = BertConfig(vocab_size=30522, **SIZES[size])
        tokens = tuple(f"[unused{i}]" for i in range(config.vocab_size))
        material.write_weights(folder / size, material.random_checkpoint(config), tokens)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=pathlib.Path, metavar="FOLDER", help="wheels of what is missing")
    parser.add_argument("--fetch", action="store_true", help="download the wheels, and measure nothing")
    parser.add_argument(
        "--python", default=f"3.{sys.version_info.minor}", help="with --fetch: the other machine's Python"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="when to end (default: 8)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every form (default: 5)")
    parser.add_argument("--quick", action="store_true", help="tiny models: does all of it run?")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where to write the figures")
    parser.add_argument("--worker", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fetch and not args.wheels:
        parser.error("--fetch needs --wheels FOLDER")
    return args


def main() -> int:
    """Measures until the cases or the minutes end."""
    args = arguments()
    if args.worker:
        serve(args.worker)
        return 0
    if args.fetch:
        return fetch(args.wheels, args.python)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        path = python_path(args.wheels, folder / "site")
        sys.path[:0] = path.split(os.pathsep)
        sides = Sides(folder, path)
        timer = threading.Timer(60 * args.minutes, sides.stop)
        timer.start()
        try:
            return run(args, sides)
        finally:
            timer.cancel()
            sides.close()


def run(args: argparse.Namespace, sides: Sides) -> int:
    """Runs the cases; returns 1 if outputs differ or a case failed."""
    present, about, skipped = [], {}, {}
    for side, needs in NEEDS.items():
        absent = [module for module in needs if importlib.util.find_spec(module) is None]
        if absent:
            skipped[side] = f"{' and '.join(absent)} not installed"
            continue
        about[side] = sides[side].ask(do="about")
        present.append(side)
    gpu = any(one["gpu"] for one in about.values())
    for side in [side for side in present if gpu and not about[side]["gpu"]]:
        skipped[side] = "it sees no GPU, and others do"
        present.remove(side)
    quick = args.quick or not gpu
    content: dict[str, Any] = {
        "gpus": driver(),
        "machine": machine.facts(),
        "versions": versions(),
        "sides": {side: about[side] for side in present},
        "skipped": skipped,
        "quick": quick,
        "cases": {},
    }
    print(f"{', '.join(content['gpus']) or 'no GPU'}; {content['versions']}")
    print(*(f"skipped: {side}: {why}" for side, why in skipped.items()), sep="\n")
    if not gpu:
        print("No GPU is found: tiny models show that the script runs. The ratios mean nothing.")
    wanted = cases(quick=quick, gpu=gpu)
    write_models(sides.folder, {case.size for case in wanted})
    rounds, at_least = (1, 0.0) if quick else (args.rounds, 0.15)
    failures = []
    for case in wanted:
        try:
            found = measure(case, sides, present, rounds=rounds, at_least=at_least)
        except RuntimeError as error:
            if sides.stopped.is_set():
                break
            failed = {"failed": {"all": str(error)[-1000:]}, "apart": {}, "agrees": False}
            found = dataclasses.asdict(case) | failed
            sides.close()  # the next case starts the workers again
        content["cases"][case.name] = found
        print(*lines(case, found), sep="\n", flush=True)
        if found["failed"] or not found["agrees"]:
            failures.append(case.name)
        if args.json:
            args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(
        f"{len(content['cases'])} of {len(wanted)} cases measured"
        + "; the time is over" * sides.stopped.is_set()
    )
    return 1 if failures or not present else 0


if __name__ == "__main__":
    sys.exit(main())
