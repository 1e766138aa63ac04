"""The classes of tasks, by the names that commands and files have for them.

TASKS has those of this package. A user's own task is a subclass of Task in a module of the user's, `MODULE:CLASS`; it is imported
only where the user gives this name, never because a file has it.
"""

from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.fields import flag_of
from bert_keras.io.json_files import shortened
from bert_keras.io.own_code import is_own, load_own, name_of
from bert_keras.tasks.data.sources import Source
from bert_keras.tasks.options import check_task_name
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.next_sentence import NextSentence
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.replaced_tokens import ReplacedTokens
from bert_keras.tasks.problems.reranking import Reranker
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.task import Task

# task.json's "kind" -> the task. A user's own task needs no line: see `task_type`.
TASKS: dict[str, type[Task]] = {
    task.kind: task
    for task in (
        TextClassification,
        QuestionAnswering,
        MultipleChoice,
        Tagging,
        FillMask,
        NextSentence,
        ReplacedTokens,
        Embedding,
        Reranker,
    )
}


def task_type(task: str | type[Task]) -> type[Task]:
    """The class of a task, by its name in TASKS or MODULE:CLASS.

    Raises BertKerasError for an unknown name, and for a class that is no task or lacks a member.
    """
    if isinstance(task, str) and not is_own(task):
        check_task_name(task)
        return next(one for one in TASKS.values() if task in one.names)
    made = load_own(task, given="--task") if isinstance(task, str) else task
    if not (isinstance(made, type) and Task in made.__mro__):
        raise BertKerasError(f"{task} is no subclass of bert_keras.Task; give the class of a task.")
    if lacking := sorted(getattr(made, "__abstractmethods__", ())):
        raise BertKerasError(
            f"{name_of(made)} lacks {', '.join(lacking)}; help(bert_keras.Task) describes its members."
        )
    return made


def type_of_kind(kind: str, task: str | type[Task] | None, *, where: object) -> type[Task]:
    """The class of a saved task. It is never imported by the name in a file.

    task: the class, or MODULE:CLASS, that the user gives; None for one of TASKS

    Raises BertKerasError for a task of a user's own that was not given, and for another one.
    """
    if task is None and kind in TASKS:
        return TASKS[kind]
    if task is None:
        named = is_own(kind) and all(part.isidentifier() for part in kind.replace(":", ".").split("."))
        raise BertKerasError(
            f"{where} is of the task {shortened(kind)}, whose code is not imported from a file: give --task "
            f"{kind if named else 'MODULE:CLASS'}, or task=CLASS in Python."
        )
    found = task_type(task)
    if found.kind.rpartition(":")[2] != kind.rpartition(":")[2]:
        raise BertKerasError(
            f"{where} is of the task {shortened(kind)}, not {found.kind}; give the task of the run."
        )
    return found


def open_task(name: str, source: Source | None, **options: Any) -> Task:
    """Opens the task named `name`. Raises BertKerasError for an unknown name, or an option that the task does not have."""
    task = task_type(name)
    if unknown := [flag_of(option) for option in options if option not in task.options]:
        raise BertKerasError(f"{', '.join(unknown)} does not apply to the task {name}; leave it out.")
    return task.open(name, source, **options)
