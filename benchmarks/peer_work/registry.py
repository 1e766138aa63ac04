"""The implementations of each kind of work.

The name of an implementation begins with its library, which has one process for all of them: "bert_keras, frozen". Our names
start with OURS; the others are peers.
"""

import functools
import importlib.util
import pathlib
import shutil
from collections.abc import Callable, Collection
from typing import Any

from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from peer_work import (
    fresh,
    hugging_face,
    hugging_face_text,
    keras_hub,
    model_garden,
    ours,
    ours_text,
    ours_training,
    plain_instances,
    runtimes,
    text_tokenizers,
    text_vectors,
    work,
)
from peer_work.work import FRESH, Arrays, Case, Prepared

OURS, KERAS_HUB, HUGGING_FACE = "bert_keras", "KerasHub", "Hugging Face"
MODEL_GARDEN = "Model Garden"
SENTENCE_TRANSFORMERS = f"{HUGGING_FACE}, sentence-transformers"
AUTOCAST, COMPILED, ONNX, OPENVINO = (
    f"{HUGGING_FACE}, autocast",
    f"{HUGGING_FACE}, compiled",
    "ONNX Runtime",
    "OpenVINO",
)
# Libraries of their own, because threads are a setting of the process. For one text.
ALONE = " on one thread"
ONE_THREAD, HUGGING_FACE_ONE_THREAD = f"{OURS}{ALONE}", f"{HUGGING_FACE}{ALONE}"
COMPILERS = (COMPILED, f"{HUGGING_FACE_ONE_THREAD}, compiled")
FROZEN, TWO_WORKERS, EXPORT = f"{OURS}, frozen", f"{OURS}, 2 workers", f"{OURS}, export"
PREDICT = f"{OURS}, predict"
POOLED, PADDED, XLA = f"{OURS}, pooled only", f"{OURS}, padded", f"{OURS}, XLA"
ONNX_EXPORT, OPENVINO_EXPORT = f"{OURS}, {ONNX} export", f"{OURS}, {OPENVINO} export"
PLAIN = "plain Python"

Prepare = Callable[[Case, pathlib.Path], Prepared]
_BOTH = (SEQUENCE_OUTPUT, POOLED_OUTPUT)


def _finetuned(finetune: Prepare) -> Callable[[Case, pathlib.Path], Arrays]:
    """Fine-tuning for a process that ends then."""

    def run(case: Case, folder: pathlib.Path) -> Arrays:
        call, found = finetune(case, folder)
        call()
        return found

    return run


# What a fresh process does.
IN_A_FRESH_PROCESS: dict[str, dict[str, Callable[[Case, pathlib.Path], Arrays]]] = {
    "start": {
        OURS: functools.partial(work.first_answer, ours.export_asker),
        FROZEN: functools.partial(work.first_answer, functools.partial(ours.export_asker, freeze=True)),
        ONNX_EXPORT: functools.partial(work.first_answer, functools.partial(runtimes.asker, format="onnx")),
        OPENVINO_EXPORT: functools.partial(
            work.first_answer, functools.partial(runtimes.asker, format="openvino")
        ),
        KERAS_HUB: functools.partial(work.first_answer, keras_hub.asker),
        HUGGING_FACE: functools.partial(work.first_answer, hugging_face.asker),
    },
    "import": {
        OURS: ours.import_library,
        f"{OURS}, for an export": ours.import_ops,
        KERAS_HUB: keras_hub.import_library,
        HUGGING_FACE: hugging_face.import_library,
    },
    "memory": {
        OURS: _finetuned(ours_training.finetune),
        PADDED: _finetuned(functools.partial(ours_training.finetune, padded=True)),
        KERAS_HUB: _finetuned(keras_hub.finetune),
        HUGGING_FACE: _finetuned(hugging_face.finetune),
    },
}
# What must be written before.
_BEFORE: dict[tuple[str, str], Callable[[Case, pathlib.Path], Any]] = {
    ("start", OURS): functools.partial(ours.exported, freeze=False),
    ("start", FROZEN): functools.partial(ours.exported, freeze=True),
    ("start", ONNX_EXPORT): functools.partial(runtimes.exported, format="onnx"),
    ("start", OPENVINO_EXPORT): functools.partial(runtimes.exported, format="openvino"),
    ("start", KERAS_HUB): keras_hub.exported,
    ("memory", KERAS_HUB): keras_hub.prepare_memory,
}


def _fresh(kind: str) -> dict[str, Prepare]:
    return {
        name: functools.partial(fresh.prepared, name=name, prepare=_BEFORE.get((kind, name), _nothing))
        for name in IN_A_FRESH_PROCESS[kind]
    }


def _nothing(case: Case, folder: pathlib.Path) -> None:
    pass


# Kind -> implementation -> the function that prepares a case.
IMPLEMENTATIONS: dict[str, dict[str, Prepare]] = {
    "encoder": {
        OURS: functools.partial(ours.encoder, outputs=_BOTH),
        FROZEN: ours.frozen_encoder,
        f"{ONE_THREAD}, frozen": ours.frozen_encoder,
        f"{OURS}, unpadded": functools.partial(ours.encoder, outputs=_BOTH, unpadded=True),
        POOLED: functools.partial(ours.encoder, outputs=(POOLED_OUTPUT,)),
        KERAS_HUB: keras_hub.encoder,
        MODEL_GARDEN: model_garden.encoder,
        HUGGING_FACE: hugging_face.encoder,
        AUTOCAST: functools.partial(hugging_face.encoder, autocast=True),
        COMPILED: functools.partial(hugging_face.encoder, compiled=True),
        HUGGING_FACE_ONE_THREAD: hugging_face.encoder,
        f"{HUGGING_FACE_ONE_THREAD}, compiled": functools.partial(hugging_face.encoder, compiled=True),
        ONNX: functools.partial(runtimes.encoder, format="onnx"),
        OPENVINO: functools.partial(runtimes.encoder, format="openvino"),
    },
    "finetune": {
        OURS: ours_training.finetune,
        PADDED: functools.partial(ours_training.finetune, padded=True),
        KERAS_HUB: keras_hub.finetune,
        MODEL_GARDEN: model_garden.finetune,
        HUGGING_FACE: hugging_face.finetune,
        COMPILED: functools.partial(hugging_face.finetune, compiled=True),
    },
    "pretrain": {
        OURS: ours_training.pretrain,
        PADDED: functools.partial(ours_training.pretrain, padded=True),
        KERAS_HUB: keras_hub.pretrain,
        MODEL_GARDEN: model_garden.pretrain,
        HUGGING_FACE: hugging_face.pretrain,
        COMPILED: functools.partial(hugging_face.pretrain, compiled=True),
    },
    "xla-finetune": {
        PADDED: functools.partial(ours_training.finetune, padded=True),
        XLA: functools.partial(ours_training.finetune, xla=True),
    },
    "xla-pretrain": {
        PADDED: functools.partial(ours_training.pretrain, padded=True),
        XLA: functools.partial(ours_training.pretrain, xla=True),
    },
    "serving": {
        OURS: functools.partial(work.serving, ours.export_asker),
        PREDICT: functools.partial(work.serving, ours.predict_asker),
        FROZEN: functools.partial(work.serving, functools.partial(ours.export_asker, freeze=True)),
        f"{ONE_THREAD}, frozen": functools.partial(
            work.serving, functools.partial(ours.export_asker, freeze=True)
        ),
        KERAS_HUB: functools.partial(work.serving, keras_hub.asker),
        HUGGING_FACE: functools.partial(work.serving, hugging_face.asker),
        COMPILED: functools.partial(work.serving, functools.partial(hugging_face.asker, compiled=True)),
        HUGGING_FACE_ONE_THREAD: functools.partial(work.serving, hugging_face.asker),
        f"{HUGGING_FACE_ONE_THREAD}, compiled": functools.partial(
            work.serving, functools.partial(hugging_face.asker, compiled=True)
        ),
        ONNX: functools.partial(work.serving, functools.partial(runtimes.asker, format="onnx")),
        OPENVINO: functools.partial(work.serving, functools.partial(runtimes.asker, format="openvino")),
    },
    "tokenize": {
        OURS: functools.partial(ours.tokenize, method="tokenize"),
        f"{OURS}, offsets": functools.partial(ours.tokenize, method="tokenize_with_offsets"),
        KERAS_HUB: keras_hub.tokenize,
        "tokenizers": functools.partial(text_tokenizers.wordpiece, method="encode_batch"),
        "tokenizers, no offsets": functools.partial(text_tokenizers.wordpiece, method="encode_batch_fast"),
        "FastBertTokenizer": text_tokenizers.fast_bert_tokenizer,
    },
    "byte-bpe": {
        OURS: functools.partial(ours.byte_bpe, method="tokenize"),
        f"{OURS}, offsets": functools.partial(ours.byte_bpe, method="tokenize_with_offsets"),
        KERAS_HUB: keras_hub.byte_bpe,
        "tokenizers": functools.partial(text_tokenizers.byte_bpe, method="encode_batch"),
        "tokenizers, no offsets": functools.partial(text_tokenizers.byte_bpe, method="encode_batch_fast"),
    },
    "answers": {
        OURS: ours_text.answers,
        EXPORT: ours_text.served_answers,
        HUGGING_FACE: hugging_face_text.answers,
    },
    "features": {
        OURS: ours_text.features,
        KERAS_HUB: keras_hub.layers,
        HUGGING_FACE: hugging_face_text.layers,
    },
    "vectors": {OURS: text_vectors.encode, SENTENCE_TRANSFORMERS: text_vectors.encode_by_torch},
    "pairs": {OURS: text_vectors.train, SENTENCE_TRANSFORMERS: text_vectors.train_by_torch},
    "search": {OURS: text_vectors.search, SENTENCE_TRANSFORMERS: text_vectors.search_by_torch},
    "instances": {
        OURS: functools.partial(ours_text.instances, workers=1),
        TWO_WORKERS: functools.partial(ours_text.instances, workers=2),
        PLAIN: plain_instances.instances,
    },
    **{kind: _fresh(kind) for kind in FRESH},
}
# Our own forms that are compared with another one of ours too: the one that does the same work.
AGAINST_OURS = {FROZEN: OURS, TWO_WORKERS: OURS, XLA: PADDED, ONNX_EXPORT: OURS, OPENVINO_EXPORT: OURS}
# Of ours and a peer, those that compute different outputs.
UNLIKE = {(POOLED, "ONNX Runtime"), (POOLED, "OpenVINO")}
# The modules that a library or an implementation needs, besides our own dependencies.
NEEDS = {
    HUGGING_FACE: ("torch", "transformers"),
    SENTENCE_TRANSFORMERS: ("torch", "sentence_transformers"),
    "tokenizers": ("tokenizers",),
    ONNX: ("onnx", "onnxruntime", "tf2onnx", "tokenizers"),
    OPENVINO: ("openvino", "tokenizers"),
}
NEEDS |= {ONNX_EXPORT: NEEDS[ONNX], OPENVINO_EXPORT: NEEDS[OPENVINO]}


def by_torch(name: str) -> bool:
    """True for an implementation whose products are torch's, with all threads."""
    return library_of(name) == HUGGING_FACE


def library_of(name: str) -> str:
    """The library of an implementation."""
    return name.split(",")[0]


def implementations_of(case: Case) -> list[str]:
    """The names of a case's implementations in its format. Autocast is one of a narrow format, ONNX Runtime of float32.

    Trainings on text have batches of many lengths, for which no compiler is asked; Model Garden trains on ready features. One
    thread is for one text.
    """
    left_out = {ONNX, ONNX_EXPORT} if case.precision != "float32" else {AUTOCAST}
    if case.batch > 1:
        left_out |= {name for name in IMPLEMENTATIONS[case.kind] if ALONE in name}
    if case.texts:
        left_out |= {COMPILED, MODEL_GARDEN}
    return [name for name in IMPLEMENTATIONS[case.kind] if name not in left_out]


def missing(case: Case, name: str, interpreters: Collection[str]) -> str | None:
    """The reason why an implementation cannot run a case here; None if it can.

    interpreters: the libraries with an environment of their own
    """
    if name == MODEL_GARDEN and name not in interpreters:
        return "needs an environment of its own, given by --model-garden"
    needed = NEEDS.get(name) or NEEDS.get(library_of(name).removesuffix(ALONE), ())
    absent = [module for module in needed if importlib.util.find_spec(module) is None]
    if absent:
        return f"needs {' and '.join(absent)}"
    if name in COMPILERS and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        return "needs a C++ compiler"
    if case.kind in FRESH and not fresh.STATUS.exists():
        return "needs Linux's /proc"
    return None
