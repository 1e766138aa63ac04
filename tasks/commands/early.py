"""Checks of a command's flags before TensorFlow is imported, which takes seconds: names of tasks, and paths where nothing is."""

import argparse

from bert_keras.errors import BertKerasError
from bert_keras.io.own_code import is_own
from bert_keras.io.paths import is_remote, to_path
from bert_keras.tasks.commands.flags import OF_RUN, task_settings
from bert_keras.tasks.data.sources import missing_source
from bert_keras.tasks.options import check_task_name


def check_model(args: argparse.Namespace) -> None:
    """Raises BertKerasError unless --run is given alone, or --checkpoint; and as `check_paths`."""
    of_task, own = {*task_settings(args)} - {*OF_RUN}, is_own(args.task or "")
    if bool(args.run) == bool(args.checkpoint) or (args.run and ((args.task and not own) or of_task)):
        raise BertKerasError("give --run alone, or --checkpoint; a run has its own task and its options.")
    check_paths(args)


def check_paths(args: argparse.Namespace) -> None:
    """Raises BertKerasError for an unknown --task, and for a --run, --checkpoint, --data or --dev-data that is not there.

    A folder without a checkpoint is refused too. The name of a model is not looked up.
    """
    given = vars(args)
    if (task := given.get("task")) and not is_own(task):
        check_task_name(task)
    from bert_keras import checkpoints  # NumPy

    for missing, paths in (
        (checkpoints.missing_run, (*(given.get("run") or ()), given.get("compare"))),
        (missing_source, (given.get("data"), given.get("dev_data"))),
    ):
        for path in paths:
            if path and not is_remote(path) and not to_path(path).exists():
                raise missing(to_path(path))
    if given.get("checkpoint"):
        checkpoints.check_there(given["checkpoint"])
