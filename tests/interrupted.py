"""Commands that are killed at their first write, and commands that stay alive in the middle of one. Run by test_run_folders.py.

In: a folder that `write_inputs` made. Out, below `killed`, `halfway` and `alive`: what each command had written by then. The line
"ready" says that all are there; the process then waits.
"""

import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import runs

KILLED, HALFWAY, ALIVE = "killed", "halfway", "alive"
# The write at which a process is killed: the first, or the second of several that fill a folder. `convert` finds it empty, and
# writes a list of the files before it moves them.
KILLS = [(KILLED, name, 1) for name in ("convert", "instances", "features", "ablate", "glue")]
KILLS += [(HALFWAY, "convert", 3)]


def write_inputs(folder: Path, *, run: Path) -> Path:
    """The input of the commands."""
    runs.write_checkpoint(folder / "checkpoint", num_layers=1)
    runs.write_data(folder / "data", "sst2")
    runs.write_data(folder / "glue" / "SST-2", "sst2")
    documents = ("\n".join(runs.texts(8, seed=seed)) for seed in range(40))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    shutil.copytree(run, folder / "run")
    return folder


def commands(folder: Path, output: Path) -> dict[str, list[str]]:
    """The arguments of each command, which writes below OUTPUT/<its name>."""
    vocab, text = f"{folder / 'checkpoint' / 'vocab.txt'}", f"{folder / 'text.txt'}"
    start = f"--checkpoint {folder / 'checkpoint'}"
    quick = "--epochs 1 --batch-size 8 --seq-length 40"
    sizes = "--num-layers 1 --hidden-size 32 --num-heads 2 --intermediate-size 64"
    sizes += " --seq-length 32 --batch-size 8 --steps 4"
    asked = {
        "convert": f"--from {folder / 'checkpoint'} --format google --to",
        "export": f"--run {folder / 'run'} --output",
        "instances": f"--text {text} --vocab {vocab} --seq-length 32 --workers 1 --output",
        "features": f"{start} --input {text} --output",
        "finetune": f"--task sst2 --data {folder / 'data'} {start} {quick} --learning-rate 1e-3 --save-every 2 --output",
        "pretrain": f"--text {text} --vocab {vocab} {sizes} --save-every 2 --output",
        "ablate": f"steps --text {text} --vocab {vocab} --data sst2={folder / 'data'} {sizes} --output",
        "glue": f"--tasks sst2 --data {folder / 'glue'} {start} {quick} --learning-rates 1e-3 --output",
    }
    return {name: [name, *arguments.split(), str(output / name / "out")] for name, arguments in asked.items()}


# The write at which a command of ALIVE stands still, where not the first: at that, what is there is refused for other reasons.
WRITES = {"instances": 2, "features": 2, "ablate": 2}


def at_write(number: int, folder: Path, act: Callable[[], None]) -> None:
    """Has `act` called before the rename of that number into a folder, counted from 1, or after a SavedModel is written there."""
    import tensorflow as tf

    left = number

    def count(target) -> None:
        nonlocal left
        if Path(target).is_relative_to(folder):
            left -= 1
            if not left:
                act()

    def before(rename):
        def counted(source, target, **how):
            count(target)
            return rename(source, target, **how)

        return counted

    def after(save):
        def counted(module, target, *rest, **how):
            saved = save(module, target, *rest, **how)
            count(target)
            return saved

        return counted

    os.replace, os.rename = before(os.replace), before(os.rename)
    tf.saved_model.save = after(tf.saved_model.save)


def start(arguments: list[str]) -> None:
    from bert_keras.cli.main import main

    main(["bert-keras", *arguments])


def kill(arguments: list[str], number: int) -> None:
    """Starts a command in its own process, which is killed at write number `number`."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        at_write(number, Path(arguments[-1]).parent, lambda: os._exit(0))
        start(arguments)
        print(f"{arguments[0]} wrote nothing", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def keep_alive(waiting: list[list[str]]) -> None:
    """Starts a command, the next one in the middle of its write, and so on; waits in the middle of the last one's."""
    if not waiting:
        print("ready", flush=True)
        sys.stdin.read()
        return
    (name, *_), rest = waiting[0], waiting[1:]
    at_write(WRITES.get(name, 1), Path(waiting[0][-1]).parent, lambda: keep_alive(rest))
    start(waiting[0])


def main() -> None:
    import tensorflow  # noqa: F401 (once, for all processes)

    import bert_keras.cli.main  # noqa: F401

    folder = Path(sys.argv[1])
    for place in (KILLED, HALFWAY, ALIVE):
        for arguments in commands(folder, folder / place).values():
            Path(arguments[-1]).parent.mkdir(parents=True)
    for place, name, number in KILLS:
        arguments = commands(folder, folder / place)[name]
        if name == "convert":
            Path(arguments[-1]).mkdir()
        kill(arguments, number)
    keep_alive(list(commands(folder, folder / ALIVE).values()))


if __name__ == "__main__":
    main()
