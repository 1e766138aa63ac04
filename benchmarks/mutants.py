"""Do the tests notice a small error in the code? Makes one error at a time in a copy of the repository, and runs a few tests.

    git worktree add ../mutated
    python benchmarks/mutants.py --tree ../mutated --output mutants.json

In: a copy of the repository, which nobody else uses meanwhile. Out: a line for each mutant, and with --output all of it as JSON.
A mutant is killed if its tests fail; a mutant that survives is an error that these tests do not notice.

A snippet is found by its text, in whatever file it is, and however its lines are broken: code may move to another file or be
formatted anew. After a rename inside a snippet, the mutant is "not found": write the new names into MUTANTS. The tests are
arguments of pytest, which run once without a mutant too: they must pass, and one of them at least must not be skipped. With
--output, the file remembers that they passed, for as long as no file of the packages and of the tests changes.

Tests that read real data need BERT_KERAS_TEST_DATA, as the others do.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

PACKAGES = ("bert_keras", "tasks", "savedmodels")
Result = dict[str, Any]
SECONDS = 300  # most time of one run of pytest; a mutant that needs more is killed


class Mutant(NamedTuple):
    """One small change that makes the code wrong.

    path: the file that had the snippet when this table was written; nothing reads it
    old, new: the snippet, which only one place in all packages has, and what stands there instead
    tests: arguments of pytest: those that should fail
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


# fmt: off
MUTANTS = (
    # Text and tokenizers
    Mutant("wordpiece-limit", "bert_keras/text/wordpiece.py", "length > self.rules.max_word", "length >= self.rules.max_word",
           ("tests/test_tokenizers.py", "-k", "word_limit or equal_the_originals")),
    Mutant("accents-lose-their-letter", "bert_keras/text/normal_forms.py",
           "original_ends = _with_accents(original_ends, tf.where(accent)[:, 0], codes.row_splits)",
           "original_ends = original_ends + 0",
           ("tests/test_tokenizers.py", "-k", "count_bytes_of_the_original or cut_the_pieces")),
    Mutant("bpe-offsets-with-spaces", "bert_keras/text/byte_bpe.py",
           "tf.minimum(starts + tf.gather(self._leading, ids.values), stops)", "tf.minimum(starts, stops)",
           ("tests/test_byte_bpe.py::test_ids_and_offsets_are_those_of_the_tokenizers_library",)),
    Mutant("sentencepiece-comma", "bert_keras/text/sentencepiece.py",
           'if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():', 'if len(piece) < 2 or piece[-1] != ",":',
           ("tests/test_sentencepiece.py", "-k", "ids_are_those_of_albert or digit_and_a_comma or cuts_are")),
    Mutant("max-context", "bert_keras/text/preprocessing.py", "tf.minimum(left, lengths - 1 - left)",
           "tf.minimum(left, lengths - left)", ("tests/test_windows.py", "-k", "published_rule or random_windows")),
    # Encoder, layers, heads and kernels
    Mutant("causal-mask", "bert_keras/encoder.py", "seen = places <= asked[:, None, :, None]",
           "seen = places < asked[:, None, :, None]", ("tests/test_encoder.py", "-k", "causal")),
    Mutant("attention-scale", "bert_keras/layers.py", "(self.config.hidden_size // self.config.num_heads) ** -0.5",
           "self.config.hidden_size ** -0.5", ("tests/test_encoder.py", "-k", "attention_probabilities_are_softmax")),
    Mutant("position-offset", "bert_keras/layers.py", "ops.slice(table, (start, 0),", "ops.slice(table, (0, 0),",
           ("tests/test_encoder.py::test_position_offset_skips_the_first_rows",)),
    Mutant("pooling-of-padding", "bert_keras/heads.py", 'most = ops.max(ops.where(real, states, float("-inf")), axis=1)',
           "most = ops.max(states, axis=1)", ("tests/test_heads.py::test_concat_pooling_by_hand",)),
    Mutant("dropout-scale", "bert_keras/kernels.py", "tf.where(stays, x * (1 / (1 - threshold / 2**16)),", "tf.where(stays, x,",
           ("tests/test_kernels.py", "-k", "dropout")),
    Mutant("norm-gradient", "bert_keras/gradients.py",
           "(scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True) - normed * along) * scale",
           "(scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True)) * scale",
           ("tests/test_kernels.py::test_gradients_equal_those_of_the_plain_operations",)),
    # Masking, samplers and instances
    Mutant("keep-is-replace", "bert_keras/text/masking.py", "draw < 1 - masking.keep", "draw < 1 - masking.replace",
           ("tests/test_masking.py", "-k", "rates_over_real_text")),
    Mutant("words-over-special-tokens", "bert_keras/text/masking.py", "continues &= selectable & before",
           "continues &= selectable", ("tests/test_masking.py", "-k", "special_token_ends_a_word")),
    Mutant("random-next-of-the-same", "tasks/pretraining/samplers.py", "documents[(index + 1 + int(rng",
           "documents[(index + int(rng", ("tests/test_samplers.py", "-k", "random_next or two_documents")),
    Mutant("sentence-order-label", "tasks/pretraining/samplers.py", "int(swapped)", "int(not swapped)",
           ("tests/test_samplers.py", "-k", "sentence_order")),
    Mutant("part-of-a-batch", "tasks/pretraining/instance_stream.py", "(made + number) % batch_size in rows",
           "number % batch_size in rows", ("tests/test_instance_stream.py", "-k", "parts_together")),
    # Optimizers, schedules, losses and the step
    Mutant("bias-correction", "bert_keras/optimizers.py", "rate * ops.sqrt(1 - ops.power(self.beta_2, step))",
           "rate * (1 - ops.power(self.beta_2, step))", ("tests/test_optimization.py", "-k", "bias_correction_is_adams")),
    Mutant("decay-from-the-warm-up", "bert_keras/schedules.py", "1.0 - step / self.total_steps",
           "1.0 - (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)",
           ("tests/test_losses_and_schedules.py::test_schedule",)),
    Mutant("loss-of-padding", "bert_keras/losses.py", "weights if mask is None else ops.where(mask, weights, 0.0)", "weights",
           ("tests/test_training_model.py::test_masked_labels_have_no_weight",)),
    Mutant("epoch-loss-by-rows", "bert_keras/training_model.py",
           "keras.ops.sum(sample_weight) if means and keras.ops.is_tensor(sample_weight) else count", "count",
           ("tests/test_training_model.py::test_the_loss_of_an_epoch_with_weights",)),
    Mutant("clips-small-gradients", "bert_keras/optimizers.py", "self.clip_norm / ops.maximum(norm, self.clip_norm)",
           "self.clip_norm / norm", ("tests/test_optimization.py", "-k", "clipping_is_by_the_norm or ten_steps")),
    # Checkpoints
    Mutant("heads-in-layout", "bert_keras/checkpoints/checkpoint.py", "HEADS_IN: (*heads, self.shape[-1])",
           "HEADS_IN: (*heads[::-1], self.shape[-1])", ("tests/test_checkpoints.py", "-k", "layout")),
    Mutant("shape-check", "bert_keras/checkpoints/weights.py",
           "given, wanted = checkpoint.tensors[name].shape, tuple(variables[name].shape)",
           "given = wanted = tuple(variables[name].shape)",
           ("tests/test_checkpoint_errors.py::test_a_head_of_another_size_or_name",)),
    Mutant("padding-id", "bert_keras/checkpoints/checkpoint.py",
           "tokens[max(0, config.position_offset - 1) : config.position_offset]",
           "tokens[config.position_offset : config.position_offset + 1]",
           ("tests/test_checkpoints.py::test_positions_that_do_not_count_from_the_padding_id",)),
    # Checks of configurations and settings
    Mutant("offset-check", "bert_keras/config.py", "self.position_offset >= self.max_positions",
           "self.position_offset > self.max_positions", ("tests/test_config.py", "-k", "invalid_values")),
    Mutant("open-bound", "bert_keras/settings.py", '"below": ("below", operator.lt)', '"below": ("below", operator.le)',
           ("tests/test_settings.py", "-k", "an_error_names")),
    Mutant("phases-sum", "tasks/settings.py",
           "if not good or abs(sum(phase[1] for phase in self.phases) - 1) >= 1e-6:", "if not good:",
           ("tests/test_pretrain.py", "-k", "invalid_settings")),
    # Tasks: labels, decoding and measures
    Mutant("weights-of-windows", "tasks/glue/task.py", "tf.gather(weights / windows, text)", "tf.gather(weights, text)",
           ("tests/test_long_texts.py", "-k", "share_its_label")),
    Mutant("f1-of-repeated-words", "tasks/metrics.py",
           "(collections.Counter(left) & collections.Counter(right)).total()", "len({*left} & {*right})",
           ("tests/test_metrics.py", "-k", "answer_scores or official_scorers")),
    Mutant("answers-without-max-context", "tasks/squad/decoding.py", "features[MAX_CONTEXT] > 0, outputs[:, 0], NO_SPAN",
           "features[START_BYTES] >= 0, outputs[:, 0], NO_SPAN", ("tests/test_squad.py", "-k", "brute_force")),
    Mutant("sign-of-tau", "tasks/squad/task.py", "task.tau = -threshold", "task.tau = threshold",
           ("tests/test_squad.py", "-k", "calibrate_returns")),
    Mutant("entities-across-sentences", "tasks/ner/decoding.py",
           "tf.where(words.first_in_sentence, -1, tf.concat([[-1], kind[:-1]], axis=0))", "tf.concat([[-1], kind[:-1]], axis=0)",
           ("tests/test_conll.py", "-k", "decoded_entities")),
    Mutant("withheld-labels", "tasks/choice.py", "tf.cast(raw[LABEL] >= 0, tf.float32)", "tf.ones_like(raw[LABEL], tf.float32)",
           ("tests/test_swag.py", "-k", "decode_and_loss")),
    # The training loop, saves, resumed runs and replicas
    Mutant("measures-of-a-begun-epoch", "tasks/training/saver.py", "if self._measures is not None:", "if False:",
           ("tests/test_frozen_features.py", "-k", "stopped_training_is_resumed")),
    Mutant("epochs-after-a-resume", "tasks/training/loop.py", "epoch + 1 if begun else stage.epochs", "stage.epochs",
           ("tests/test_resume.py", "-k", "class and replicas")),
    Mutant("instances-before-the-shard", "tasks/pretraining/instance_sources.py",
           "worker_rows.count_before(skip, size) - worker_rows.count_before(start.instances, size)",
           "worker_rows.count_before(skip, size)",
           ("tests/test_instance_stream.py", "-k", "resume_in_the_middle")),
    Mutant("mean-of-one-replica", "bert_keras/losses.py", "own = ops.divide_no_nan(loss_sum, all_weights)",
           "own = ops.divide_no_nan(loss_sum, weight_sum)",
           ("tests/test_objectives.py", "-k", "two_replicas_are_one_device and adamw")),
    # Exports and the server
    Mutant("rows-limit", "savedmodels/server/served.py", "if rows > self.options.max_rows:", "if rows >= self.options.max_rows:",
           ("tests/test_server_limits.py", "-k", "oversized or in_groups")),
    Mutant("last-windows", "savedmodels/servable.py", "tf.maximum(1, -(-count // WINDOWS))", "tf.maximum(1, count // WINDOWS)",
           ("tests/test_long_texts.py", "-k", "saved_and_served and class")),
    Mutant("any-host", "savedmodels/server/rest.py", 'if sender is None or sender["host"].lower() not in self._hosts:',
           "if sender is None:", ("tests/test_server_limits.py", "-k", "allowed_hosts")),
)
# fmt: on


class Found(NamedTuple):
    """The result of one run of pytest. passed: the tests that passed; first: the first that failed, or why none did."""

    code: int
    passed: int
    first: str
    seconds: float


def pattern(snippet: str) -> re.Pattern[str]:
    """A pattern of a snippet that matches it however its lines are broken, with or without a comma before a closing bracket."""
    made, before = "", ""
    for token in re.findall(r"\w+|[^\w\s]", snippet):
        made += r"\s+" if before.isidentifier() and token.isidentifier() else r"\s*" if before else ""
        made += r"(?:,\s*)?" if token in ")]}" and before != "," else ""
        made += re.escape(token)
        before = token
    return re.compile((r"\b" if snippet[0].isidentifier() else "") + made + (r"\b" * before.isidentifier()))


def sources(tree: pathlib.Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[pathlib.Path]:
    """The Python files in some folders of a tree, in order; no links, and nothing behind them."""
    for top in (tree / folder for folder in folders):
        for folder, inside, names in os.walk(top) if not top.is_symlink() else ():
            inside[:] = sorted(name for name in inside if name != "__pycache__")
            files = (pathlib.Path(folder, name) for name in sorted(names) if name.endswith(".py"))
            yield from (file for file in files if not file.is_symlink())


def places(tree: pathlib.Path, snippet: str) -> list[tuple[pathlib.Path, int, int]]:
    """Every file that has a snippet, and where it begins and ends."""
    wanted, texts = pattern(snippet), ((file, file.read_bytes().decode()) for file in sources(tree))
    return [(file, *match.span()) for file, text in texts for match in wanted.finditer(text)]


def digest(tree: pathlib.Path) -> str:
    """SHA-256 of all files of the packages and of the tests."""
    found = hashlib.sha256()
    for file in sources(tree, (*PACKAGES, "tests")):
        found.update(f"{file.relative_to(tree)}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()


@contextlib.contextmanager
def mutated(file: pathlib.Path, start: int, end: int, new: str) -> Iterator[None]:
    """Within it, a file has other text from `start` to `end`. Then it is as before, with its time, by which Python compiles."""
    data, times = file.read_bytes(), file.stat()
    text = data.decode()
    try:
        file.write_bytes((text[:start] + new + text[end:]).encode())
        yield
    finally:
        file.write_bytes(data)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def tested(tree: pathlib.Path, tests: list[str]) -> Found:
    """Runs pytest up to the first failure. Its processes end with it, whatever ends it."""
    command = [sys.executable, *"-m pytest -n0 -x -q -rfE -p no:cacheprovider -m".split(), "not slow", *tests]
    how: Any = {"cwd": tree, "env": os.environ | {"PYTHONPATH": str(tree)}, "start_new_session": True}
    began, pipe = time.monotonic(), subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, **how) as running:
        try:
            output = running.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            return Found(1, 0, f"no end after {SECONDS} seconds", time.monotonic() - began)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, flags=re.MULTILINE)
    passed = re.search(r"(\d+) passed", output)
    last = (output.strip().splitlines() or ["no output"])[-1]
    seconds = time.monotonic() - began
    return Found(running.returncode, int(passed[1]) if passed else 0, failed[1] if failed else last, seconds)


def checked(tree: pathlib.Path, tests: list[str], known: dict[str, Any], now: str) -> str:
    """Empty if tests pass without a mutant, else the first that fails. known: what earlier checks found, by the tests."""
    key = " ".join(tests)
    if known.get(key, {}).get("digest") != now:
        found = tested(tree, tests)
        good = found.code == 0 and found.passed > 0
        known[key] = {"digest": now, "wrong": "" if good else found.first, "seconds": round(found.seconds, 1)}
    return known[key]["wrong"]


def result_of(mutant: Mutant, tree: pathlib.Path, known: dict[str, Any], now: str, *, clean: bool) -> Result:
    """The result of one mutant: its verdict, and what it is about. clean: only checks that the tests pass without it."""
    found, about = places(tree, mutant.old), {"tests": [*mutant.tests]}
    if len(found) != 1:
        files = [str(file.relative_to(tree)) for file, *_ in found]
        return about | {"verdict": "ambiguous" if found else "not found", "files": files}
    file, start, end = found[0]
    about["file"] = str(file.relative_to(tree))
    if wrong := checked(tree, [*mutant.tests], known, now):
        return about | {"verdict": "tests fail without it", "first": wrong}
    if clean:
        return about | {"verdict": "clean"}
    with mutated(file, start, end, mutant.new):
        run = tested(tree, [*mutant.tests])
    # 2 is a file that cannot be imported, a number under 0 a crash; over 2, pytest has another error.
    verdict = "survived" if run.code == 0 else "killed" if run.code <= 2 else "pytest failed"
    first = {} if run.code == 0 else {"first": run.first}
    return about | {"verdict": verdict, **first, "seconds": round(run.seconds, 1)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Makes one small error at a time, and runs tests.")
    add, names = parser.add_argument, [one.name for one in MUTANTS]
    add("--tree", type=pathlib.Path, required=True, help="a copy of the repository, to be changed")
    add("--only", nargs="+", metavar="NAME", choices=names, default=names, help="these mutants alone")
    add("--output", type=pathlib.Path, help="JSON; the results of mutants that do not run now stay in it")
    add("--check-clean", action="store_true", help="only check that the tests pass without a mutant")
    arguments = parser.parse_args()
    # The file is restored, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    tree, output = arguments.tree.resolve(), arguments.output
    kept = json.loads(output.read_text(encoding="utf-8")) if output and output.is_file() else {}
    mutants, clean = kept.setdefault("mutants", {}), kept.setdefault("clean", {})
    now, counts = digest(tree), dict[str, int]()
    for mutant in (one for one in MUTANTS if one.name in arguments.only):
        found = result_of(mutant, tree, clean, now, clean=arguments.check_clean)
        counts[found["verdict"]] = counts.get(found["verdict"], 0) + 1
        print(f"{mutant.name:30} {found['verdict']:12} {found.get('first', '')}", flush=True)
        if not arguments.check_clean:
            mutants[mutant.name] = found
        if output:
            output.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


if __name__ == "__main__":
    main()
