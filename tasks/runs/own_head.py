"""The head that a checkpoint brings: the task that it was trained for, and the rule that keeps the head or starts a new one.

In: a Checkpoint. Out: its task; or, for a problem, the checkpoint with the head's logits in the problem's order.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import choose_architecture
from bert_keras.checkpoints.labels import count_outputs, in_order, is_unnamed, order_of, own_labels
from bert_keras.checkpoints.sentence_transformers import DENSE
from bert_keras.cli.console import note
from bert_keras.errors import BertKerasError, first_names
from bert_keras.fields import flag_of
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.runs.run_folder import Run, is_run, run_of
from bert_keras.tasks.runs.task_types import TASKS
from bert_keras.tasks.task import Problem, Task
from bert_keras.tasks.training.task_model import NEW_PARTS, heads_of


def has_head(problem: Problem | type[Problem], checkpoint: checkpoints.Checkpoint) -> bool:
    """True if the checkpoint has a head for this kind of problem, and its class names no other kind for a head of that name."""
    others = {name for kind in TASKS.values() if kind.head == problem.head for name in kind.architectures}
    unlike = others - {*problem.architectures}
    return problem.head in checkpoint.parts and choose_architecture(checkpoint) not in unlike


def own_kind(checkpoint: checkpoints.Checkpoint) -> type[Task] | None:
    """The class of the task that a checkpoint's own head was trained for; None for a checkpoint without a head."""
    architecture, kinds = choose_architecture(checkpoint), TASKS.values()
    named = (kind for kind in kinds if architecture in kind.architectures and kind.head in checkpoint.parts)
    return next(named, None)


def own_task(checkpoint: checkpoints.Checkpoint, source: Source | None = None, **options: Any) -> Task:
    """The task that a checkpoint's own head was trained for.

    source: the task's examples; None to predict without examples
    options: of the task; `ColumnOptions`, `SquadOptions` and so on

    Raises BertKerasError for a checkpoint without a head, and for an option that its task does not have.
    """
    kind = own_kind(checkpoint)
    if kind is None:
        raise BertKerasError(
            f"{checkpoint.prefix}the checkpoint has no head, so it predicts nothing; use bert_keras.load_encoder(checkpoint) for "
            "its vectors, or train a head: bert_keras.classifier(checkpoint, labels=[...]), `bert-keras finetune`."
        )
    if unknown := [flag_of(option) for option in options if option not in kind.options]:
        raise BertKerasError(
            f"{', '.join(unknown)} does not apply to the checkpoint's task, {kind.kind}; leave it out."
        )
    return kind.from_checkpoint(checkpoint, source, **options)


def own_run(
    path: str | os.PathLike[str] | checkpoints.Checkpoint,
    *,
    data: Source | None = None,
    seq_length: int | None = None,
    log: Callable[[str], None] = note,
    **options: Any,
) -> Run:
    """A checkpoint as a run of the task of its own head. Arguments as in `own_task` and `run_of`; log: receives a line.

    Raises BertKerasError for the folder of a run, whose task.json has settings that its config.json lacks.
    """
    if not isinstance(path, checkpoints.Checkpoint):
        path = checkpoints.resolve(path)
        if is_run(path):
            raise BertKerasError(
                f"{path.path} is a run, which has its own task and settings; give it as --run."
            )
    checkpoint = path if isinstance(path, checkpoints.Checkpoint) else checkpoints.read(path)
    task = own_task(checkpoint, data, **options)
    log(describe(task, checkpoint))
    return run_of(task, checkpoint, seq_length=seq_length)


def describe(task: Problem, checkpoint: checkpoints.Checkpoint) -> str:
    """A line about a checkpoint's own task: the meaning of its numbers, and its labels."""
    parts = [f"the checkpoint's own task: {task.kind}"]
    if task.answers:
        named = checkpoint.problem_type or "not given"
        named += "" if checkpoint.score_function is None else f", {checkpoint.score_function}"
        parts.append(f"{task.answers} (problem_type: {named})" if task.problem_type else task.answers)
    if task.label_names:
        parts.append(f"labels: {first_names(task.label_names)}")
    return "; ".join(parts)


class OwnHead(NamedTuple):
    """The decision about a checkpoint's head.

    source: the checkpoint, with the logits of a kept head in the problem's order
    kept: True if the problem starts with the checkpoint's head
    line: the reason, for the user; "" where there is nothing to tell
    """

    source: checkpoints.Checkpoint
    kept: bool
    line: str = ""


def choose_head(
    problem: Problem, source: checkpoints.Checkpoint, *, keep_head: bool | None = None
) -> OwnHead:
    """Decides whether a problem starts with a checkpoint's own head.

    keep_head: None keeps a head of the problem's own kind and labels, in any order; a head whose labels have no names gets an
        equal number of the problem's names in their order. False starts a new head. True raises BertKerasError where None would
        start a new one
    """
    if problem.pretrained_head or not problem.trains:
        return OwnHead(source, problem.pretrained_head and problem.head in source.parts)
    if keep_head is False or not source.tensors:
        return OwnHead(source, False)
    found = _matched(problem, source)
    if keep_head and not found.kept:
        named = "; leave keep_head out, or name the labels in config.json's id2label as the task does, in the head's order."
        lacking = f"the checkpoint has no head of {problem.name}; leave keep_head out, or give a checkpoint with one."
        raise BertKerasError(f"{source.prefix}{found.line + named if found.line else lacking}")
    return found


def _matched(problem: Problem, source: checkpoints.Checkpoint) -> OwnHead:
    if problem.head == DENSE:
        return OwnHead(source, f"{DENSE}/kernel" in source.tensors)
    if not has_head(problem, source):
        return OwnHead(source, False)
    wanted, outputs = problem.label_names, count_outputs(source, problem.head)
    if not wanted:
        fits = outputs == (2 if problem.head == "qa_outputs" else 1)
        return OwnHead(source, fits, "" if fits else f"the checkpoint's head has {outputs} logits, not one")
    there = own_labels(source, problem.head)
    if (order := order_of(wanted, there)) is not None:
        return OwnHead(in_order(source, problem.head, order, wanted), True)
    if is_unnamed(there) and len(there) == len(wanted):
        named = ", ".join(f"{old} is {new}" for old, new in zip(there, wanted, strict=True))
        line = f"the checkpoint's labels have no names: {named}"
        return OwnHead(in_order(source, problem.head, range(outputs), wanted), True, line)
    line = f"the checkpoint's labels are {first_names(there)} and the task's are {first_names(wanted)}"
    return OwnHead(source, False, line)


def assign(
    head: OwnHead, encoder: BertEncoder, network: keras.Model, *, fresh: Iterable[str] = NEW_PARTS
) -> tuple[checkpoints.Report, list[str]]:
    """Assigns a checkpoint's weights to a problem's network.

    fresh: the parts, besides a new head, that the checkpoint may lack

    Returns the report, and the lines for the user: about the head, and about all that starts at random.
    Raises as `checkpoints.assign`.
    """
    heads = heads_of(network)
    kept = heads if head.kept else {}
    there = {name.split("/")[0] for name in head.source.tensors}
    new = tuple(name for name in heads if not head.kept or name not in {*checkpoints.HEADS, *there})
    report = checkpoints.assign(head.source, encoder, fresh=(*fresh, *new), **kept)
    lines = [head.line] if head.kept and head.line else []
    random = dict.fromkeys(name.split("/")[0] for name in report.fresh)
    if random:
        because = f" ({head.line})" if head.line and not head.kept else ""
        lines.append(f"randomly initialized: {', '.join(random)}{because}; train before you predict")
    return report, lines
