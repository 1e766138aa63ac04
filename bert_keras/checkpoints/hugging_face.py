"""The folders of Hugging Face: names for each model_type, config.json, safetensors or PyTorch files."""

import contextlib
import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.torch_file import open_torch
from bert_keras.checkpoints.variables import (
    BILSTM,
    KNOWN_ARCHITECTURES,
    LINEAR,
    PROBLEM_TYPES,
    Checkpoint,
    Format,
    Names,
    Source,
    architecture_of,
)
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.io.files import write_json
from bert_keras.io.json_files import TEXT, Kind, object_of, one_of, or_null, read_object, short, typed

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
TOP = "top.safetensors"  # of a run with features: the weights above the encoder, which is in model.safetensors unchanged

# -----------------------------------------------------------------------------------------------------------
# Names

# The names of transformers below the name of the model (`bert.`); heads are beside it.
_EMBEDDINGS_THERE = {
    "embeddings/word_embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embeddings": "embeddings.position_embeddings.weight",
    "embeddings/type_embeddings": "embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "embeddings.LayerNorm",
}
_BLOCK_THERE = {
    "block_{i}/attention/query": "encoder.layer.{i}.attention.self.query",
    "block_{i}/attention/key": "encoder.layer.{i}.attention.self.key",
    "block_{i}/attention/value": "encoder.layer.{i}.attention.self.value",
    "block_{i}/attention/output": "encoder.layer.{i}.attention.output.dense",
    "block_{i}/attention_layer_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "block_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "block_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "block_{i}/feed_forward_layer_norm": "encoder.layer.{i}.output.LayerNorm",
}
_ALBERT_BLOCK_THERE = {
    f"block_{{i}}/{ours}": f"encoder.albert_layer_groups.0.albert_layers.0.{theirs}"
    for ours, theirs in {
        "attention/query": "attention.query",
        "attention/key": "attention.key",
        "attention/value": "attention.value",
        "attention/output": "attention.dense",
        "attention_layer_norm": "attention.LayerNorm",
        "feed_forward/intermediate": "ffn",
        "feed_forward/output": "ffn_output",
        "feed_forward_layer_norm": "full_layer_layer_norm",
    }.items()
}
_DISTILBERT_BLOCK_THERE = {
    f"block_{{i}}/{ours}": f"transformer.layer.{{i}}.{theirs}"
    for ours, theirs in {
        "attention/query": "attention.q_lin",
        "attention/key": "attention.k_lin",
        "attention/value": "attention.v_lin",
        "attention/output": "attention.out_lin",
        "attention_layer_norm": "sa_layer_norm",
        "feed_forward/intermediate": "ffn.lin1",
        "feed_forward/output": "ffn.lin2",
        "feed_forward_layer_norm": "output_layer_norm",
    }.items()
}
_TASK_HEADS_THERE = {
    "classifier/dense": "classifier",
    "concat_classifier/dense": "concat_classifier",  # transformers has no such head
    "qa_outputs/dense": "qa_outputs",
}
_BERT_HEADS_THERE = {
    "masked_lm/dense": "cls.predictions.transform.dense",
    "masked_lm/layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm/bias": "cls.predictions.bias",
    "next_sentence/dense": "cls.seq_relationship",
    **_TASK_HEADS_THERE,
}
_REPLACED_TOKEN_THERE = {
    "replaced_token/dense": "discriminator_predictions.dense",
    "replaced_token/prediction": "discriminator_predictions.dense_prediction",
}
_ENCODER_PARTS = ("embeddings.", "embeddings_project.", "encoder.", "transformer.", "pooler.")


def _current(name: str, *, model: str) -> str | None:
    """The current spelling of an old name or of a wrapped module's name; None for buffers."""
    if name.endswith(("position_ids", "token_type_ids")):
        return None
    name = re.sub(r"^((module|_orig_mod)\.)+", "", name)  # DataParallel, torch.compile
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"{model}.{name}" if name.startswith(_ENCODER_PARTS) else name


def _names(
    model_type: str, *, encoder: dict[str, str], heads: dict[str, str], model: str | None = None, **more: Any
) -> Names:
    """The table of one model_type.

    model: the model's name in a file with heads; None means `model_type`
    """
    model = model_type if model is None else model
    return Names(
        model_type=model_type,
        table={ours: f"{model}.{theirs}" for ours, theirs in encoder.items()} | heads,
        parts={"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"},
        layouts=LINEAR,
        current=functools.partial(_current, model=model),
        **more,
    )


def _tied(weight: str, bias: str | None = None) -> dict[str, str]:
    """Second names of the weights that the masked-LM head ties."""
    return {weight: "embeddings/word_embeddings"} | ({bias: "masked_lm/bias"} if bias else {})


_BERT_THERE = _names(
    "bert",
    encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
    heads=_BERT_HEADS_THERE,
    duplicates=_tied("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    classes=dict.fromkeys(KNOWN_ARCHITECTURES, frozenset[str]()),
)
# The code of transformers fixes this activation, whatever hidden_act says.
_GELU_HEAD = {"masked_lm": {"activation": "gelu_erf"}}
_FIRST_TOKENS = ("[PAD]", "<pad>")  # of padding, from whose id RoBERTa counts positions
_NO_POOLER = frozenset({"pooler"})
_NAMES = (
    _BERT_THERE,
    _names(
        "albert",
        model_class="Albert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler"}
        | _ALBERT_BLOCK_THERE,
        heads={
            "masked_lm/dense": "predictions.dense",
            "masked_lm/layer_norm": "predictions.LayerNorm",
            "masked_lm/bias": "predictions.bias",
            "next_sentence/dense": "sop_classifier.classifier",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("predictions.decoder.weight", "predictions.decoder.bias"),
        classes=dict.fromkeys(KNOWN_ARCHITECTURES - {"ForNextSentencePrediction"}, frozenset[str]()),
    ),
    # ELECTRA has no pooler, and classifies texts with two dense layers and a gelu between them.
    _names(
        "electra",
        model_class="Electra",
        encoder=_EMBEDDINGS_THERE | {"embeddings/projection": "embeddings_project"} | _BLOCK_THERE,
        heads={
            "masked_lm/dense": "generator_predictions.dense",
            "masked_lm/layer_norm": "generator_predictions.LayerNorm",
            "masked_lm/bias": "generator_lm_head.bias",
            **_REPLACED_TOKEN_THERE,
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("generator_lm_head.weight"),
        head_keeps=_GELU_HEAD,
        classes=dict.fromkeys(
            ("ForPreTraining", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"), _NO_POOLER
        )
        | {"Model": frozenset()},
    ),
    _names(
        "roberta",
        model_class="Roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE | {"pooler": "pooler.dense"},
        heads={
            "masked_lm/dense": "lm_head.dense",
            "masked_lm/layer_norm": "lm_head.layer_norm",
            "masked_lm/bias": "lm_head.bias",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("lm_head.decoder.weight", "lm_head.decoder.bias"),
        head_keeps=_GELU_HEAD,
        classes=dict.fromkeys(
            ("ForMaskedLM", "ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering", "Model"),
            frozenset[str](),
        ),
        padding=_FIRST_TOKENS,
    ),
    # RoBERTa's classifier of texts has the pooler inside it; a pooler elsewhere in the file is of its pre-training.
    _names(
        "roberta",
        model_class="Roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE,
        heads={"pooler": "classifier.dense", "classifier/dense": "classifier.out_proj"},
        classes={"ForSequenceClassification": frozenset[str]()},
        padding=_FIRST_TOKENS,
    ),
    _names(
        "distilbert",
        model_class="DistilBert",
        encoder=_EMBEDDINGS_THERE | _DISTILBERT_BLOCK_THERE,
        heads={
            "masked_lm/dense": "vocab_transform",
            "masked_lm/layer_norm": "vocab_layer_norm",
            "masked_lm/bias": "vocab_projector.bias",
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("vocab_projector.weight"),
        classes=dict.fromkeys(("ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"), _NO_POOLER)
        | {"Model": frozenset()},
    ),
    # DistilBERT has a pooler, of relu, only in its classifiers of texts.
    _names(
        "distilbert",
        model_class="DistilBert",
        encoder=_EMBEDDINGS_THERE | _DISTILBERT_BLOCK_THERE,
        heads={"pooler": "pre_classifier", "classifier/dense": "classifier"},
        classes=dict.fromkeys(("ForSequenceClassification", "ForMultipleChoice"), frozenset[str]()),
    ),
    # Our own model_type, for configurations that no model of transformers computes; transformers refuses to read it.
    _names(
        "bert_keras",
        model="bert",
        encoder=_EMBEDDINGS_THERE
        | {"embeddings/projection": "encoder.embedding_hidden_mapping_in", "pooler": "pooler.dense"}
        | _BLOCK_THERE
        | {name: name.replace("_lstm/lstm_cell", "").replace("/", ".") for name in BILSTM},
        heads=_BERT_HEADS_THERE | _REPLACED_TOKEN_THERE,
        duplicates=_BERT_THERE.duplicates,
        classes=_BERT_THERE.classes,
    ),
)


# -----------------------------------------------------------------------------------------------------------
# Files


def _find(path: pathlib.Path) -> pathlib.Path | None:
    folder = path if path.is_dir() else path.parent
    there = (SAFETENSORS, f"{SAFETENSORS}.index.json", TORCH, f"{TORCH}.index.json")
    found = any((folder / name).is_file() and path in (folder, folder / name) for name in there)
    return folder if found else None


def _model_type_of_folder(folder: pathlib.Path) -> str:
    path = folder / "config.json"
    return read_object(path).get("model_type", "bert") if path.is_file() else "bert"


def _architecture_of_folder(folder: pathlib.Path) -> str | None:
    path = folder / "config.json"
    named = read_object(path).get("architectures") if path.is_file() else None
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    found = re.fullmatch(rf"(?:{'|'.join({names.model_class for names in _NAMES})})(\w+)", first)
    return found.group(1) if found and found.group(1) in KNOWN_ARCHITECTURES else None


def _in_config(folder: pathlib.Path, key: str, kind: Kind) -> Any:
    """A value of config.json; None if there is none. Raises BertKerasError for a value of another kind."""
    path = folder / "config.json"
    known = {key: or_null(kind)}
    fields = read_object(path) if path.is_file() else {}
    return typed(fields, known, where=path, optional=known, others=True).get(key)


def _labels_of_folder(folder: pathlib.Path) -> tuple[str, ...] | None:
    names = _in_config(folder, "id2label", object_of(TEXT))
    if not isinstance(names, dict) or names.keys() != {str(i) for i in range(len(names))}:
        return None
    return tuple(names[str(i)] for i in range(len(names)))


@contextlib.contextmanager
def _open(folder: pathlib.Path, config: BertConfig) -> Iterator[Source]:
    """Opens the safetensors files, else the PyTorch files; either may have several shards."""
    opener: Any = _open_safetensors
    files = _shards(folder, SAFETENSORS)
    if not files:
        opener, files = open_torch, _shards(folder, TORCH)
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(opener(file)) for file in files]
        where = {name: source for source in sources for name in source.shapes}
        shapes = {name: source.shapes[name] for name, source in where.items()}
        yield Source(
            file=files[0] if len(files) == 1 else folder,
            shapes=shapes,
            get=lambda name: where[name].get(name),
            architecture=_architecture_of_folder(folder),
            labels=_labels_of_folder(folder),
            problem_type=_in_config(folder, "problem_type", one_of(PROBLEM_TYPES)),
        )


def _shards(folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    if (folder / stem).is_file():
        return [folder / stem]
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return []
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BertKerasError(f"{index} has no weight_map of file names.")
    for name in set(names.values()):
        if pathlib.PurePath(name).name != name or not (folder / name).is_file():
            raise BertKerasError(f"{index} names the shard {short(name)}, which is not a file in its folder.")
    return [folder / name for name in sorted(set(names.values()))]


@contextlib.contextmanager
def _open_safetensors(file: pathlib.Path) -> Iterator[Source]:
    import ml_dtypes  # noqa: F401  numpy then knows bfloat16
    import safetensors

    try:
        # The library compares header and length: a file that opens can be read.
        with safetensors.safe_open(file, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
            yield Source(file=file, shapes=shapes, get=functools.partial(_safetensor, opened, file=file))
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{file} is cut short or not a safetensors file: {error}.") from error


def _safetensor(opened: Any, name: str, *, file: pathlib.Path) -> np.ndarray:
    try:
        return opened.get_tensor(name)
    except (AttributeError, TypeError) as error:  # numpy has no such dtype
        raise BertKerasError(
            f"{name} of {file} is {opened.get_slice(name).get_dtype()}; wanted float16, bfloat16, float32 or float64."
        ) from error


def _save(checkpoint: Checkpoint, names: Names, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import safetensors
    import safetensors.numpy

    fields = checkpoint.config.to_hugging_face(names.model_type)
    fields["architectures"] = [names.model_class + architecture_of(checkpoint)]
    if "classifier/dense/bias" in checkpoint.tensors:
        fields["num_labels"] = len(checkpoint.tensors["classifier/dense/bias"])
    if checkpoint.labels is not None:
        fields["id2label"] = dict(enumerate(checkpoint.labels))
        fields["label2id"] = {label: i for i, label in enumerate(checkpoint.labels)}
    if checkpoint.problem_type is not None:
        fields["problem_type"] = checkpoint.problem_type
    write_json(folder / "config.json", fields)
    write_tokenizer(checkpoint, folder)
    try:
        safetensors.numpy.save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        # safetensors lets only the owner read the file, but a server may run as another user.
        (folder / SAFETENSORS).chmod(0o644)
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {SAFETENSORS}: {error}.") from error


HUGGING_FACE = Format(
    name="hugging-face",
    names=_NAMES,
    keeps={},
    files=f"{SAFETENSORS} or {TORCH} (or their .index.json)",
    find=_find,
    load_config=BertConfig.load,
    load_tokenizer=read_tokenizer,
    open=_open,
    save=_save,
    has_labels=True,
    model_type=_model_type_of_folder,
    architecture=_architecture_of_folder,
)
