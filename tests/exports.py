"""A small untrained run of every task, for the tests of exports and for the tables of docs/serving.md.

In: a checkpoint folder of `runs.write_checkpoint`. Out: runs, and their signatures in Markdown.

    PYTHONPATH=. python tests/exports.py    writes those tables anew
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runs import ROOT, write_checkpoint
from tensorflow.core.protobuf import saved_model_pb2

from bert_keras import checkpoints
from bert_keras.features import ENCODER_INPUTS
from bert_keras.savedmodels.export import servable_of
from bert_keras.savedmodels.model_card import answers_of, signature_table
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.next_sentence import NextSentence
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.task_model import network_of
from bert_keras.text.preprocessing import Preprocessor

DOCUMENT = ROOT / "docs" / "serving.md"
OPENS, CLOSES = "<!-- tables: tests/exports.py writes them -->\n", "<!-- end of tables -->\n"
# The inputs that docs/serving.md names once.
FEATURES = sorted(f"`{name}` int32 [?, ?]" for name in ENCODER_INPUTS)
SPANS = {"doc_stride": 16, "max_query_length": 8, "max_answer_length": 4, "n_best": 4}

# Every kind of answer that is served, under the heading of its table.
CASES: dict[str, Task] = {
    "Classification": TextClassification.open("sst2"),
    "Classification of pairs": TextClassification.open("mnli"),
    "Regression": TextClassification.open("stsb"),
    "Choice": MultipleChoice(),
    "Question answering": QuestionAnswering("squad2.0", **SPANS),
    "Named entities": Tagging(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], scheme="IOB2", doc_stride=16),
    "Fill-mask": FillMask(top_k=3),
    "Next sentence": NextSentence(),
    "Sentence embedding": Embedding(l2=True),
    "Word features": WordEmbedding(doc_stride=16),
}


def untrained(task: Task, checkpoint: Path) -> Run:
    """A run as `load_run` makes it, from a checkpoint and a head that starts at random."""
    source = checkpoints.read(checkpoint)
    encoder, model = network_of(task, source.config)
    checkpoints.assign(source, encoder)
    preprocess = Preprocessor(checkpoints.tokenizer_of(source), seq_length=40, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=model, path=checkpoint)


def meta_graph(folder: Path) -> Any:
    """The only MetaGraphDef of a SavedModel."""
    (graph,) = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes()).meta_graphs
    return graph


def section(title: str, signatures: Mapping[str, Any]) -> str:
    """The meaning of a case's outputs, and the part of its signatures that differs from case to case."""
    meaning = answers_of(CASES[title])
    first = next(name for name, task in CASES.items() if answers_of(task) == meaning)
    if first != title:
        meaning = f"The outputs are those of [{first}](#{first.lower().replace(' ', '-')})."
    values: dict[str, dict[str, list[str]]] = {}
    for row in signature_table(signatures).splitlines()[2:]:
        signature, side, *value = row.strip("| ").split(" | ")
        values.setdefault(signature, {"input": [], "output": []})[side].append(" ".join(value))
    assert values["`examples`"]["output"] == values["`serving_default`"]["output"], "docs/serving.md says so"
    del values["`examples`"]
    if values["`features`"]["input"] == FEATURES:
        values["`features`"]["input"] = ["the usual three"]
    rows = [
        f"| {name} | {'; '.join(one['input'])} | {'; '.join(one['output'])} |" for name, one in values.items()
    ]
    table = "\n".join(["| signature | inputs | outputs |", "|---|---|---|", *rows])
    return f"### {title}\n\n{meaning}\n\n{table}\n\n"


def written(document: str) -> str:
    """The sections in a document."""
    return document.partition(OPENS)[2].partition(CLOSES)[0]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(Path(folder))
        made = "".join(
            section(title, servable_of(untrained(task, checkpoint)).signatures())
            for title, task in CASES.items()
        )
    document = DOCUMENT.read_text()
    DOCUMENT.write_text(document.replace(OPENS + written(document), OPENS + made))
