"""The folders of Hugging Face: names for each model_type, config.json, safetensors or PyTorch files."""

import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import (
    BILSTM,
    KNOWN_ARCHITECTURES,
    LINEAR,
    Checkpoint,
    Format,
    Names,
    OpenFile,
    choose_architecture,
    refuse_shards_outside,
)
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.torch_files import Tensors, open_torch
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.files import atomic_file, write_json
from bert_keras.io.json_files import (
    TEXT,
    FieldType,
    known_fields,
    object_of,
    or_null,
    read_object,
    read_optional,
    shortened,
)
from bert_keras.io.other_files import describe_content

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
_CONFIG, _OLD_CONFIG = "config.json", "bert_config.json"
OWN_TYPE = "bert_keras"  # our own model_type
TASK_FILE = "task.json"  # of a run, whose files this package wrote
_LABEL = FieldType("text or a number", lambda value: isinstance(value, str | int | float))
_DESCRIBED = {"id2label": or_null(object_of(_LABEL)), "problem_type": or_null(TEXT)}
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
# The names in a block: ours, then those of BERT, ALBERT and DistilBERT.
_BLOCK_ROWS = (
    ("attention/query", "attention.self.query", "attention.query", "attention.q_lin"),
    ("attention/key", "attention.self.key", "attention.key", "attention.k_lin"),
    ("attention/value", "attention.self.value", "attention.value", "attention.v_lin"),
    ("attention/output", "attention.output.dense", "attention.dense", "attention.out_lin"),
    ("attention_layer_norm", "attention.output.LayerNorm", "attention.LayerNorm", "sa_layer_norm"),
    ("feed_forward/intermediate", "intermediate.dense", "ffn", "ffn.lin1"),
    ("feed_forward/output", "output.dense", "ffn_output", "ffn.lin2"),
    ("feed_forward_layer_norm", "output.LayerNorm", "full_layer_layer_norm", "output_layer_norm"),
)
_BLOCKS = ("encoder.layer.{i}", "encoder.albert_layer_groups.0.albert_layers.0", "transformer.layer.{i}")
_BLOCK_THERE, _ALBERT_BLOCK_THERE, _DISTILBERT_BLOCK_THERE = (
    {f"block_{{i}}/{row[0]}": f"{block}.{row[column]}" for row in _BLOCK_ROWS}
    for column, block in enumerate(_BLOCKS, 1)
)
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
    classes=KNOWN_ARCHITECTURES,
)
# The code of transformers fixes this activation, whatever hidden_act says.
_GELU_HEAD = {"masked_lm": {"activation": "gelu_erf"}}
_TOKEN_CLASSES = frozenset({"ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering", "Model"})
_ELECTRA_THERE = _EMBEDDINGS_THERE | {"embeddings/projection": "embeddings_project"} | _BLOCK_THERE
_FIRST_TOKENS = ("[PAD]", "<pad>")  # of padding, from whose id RoBERTa counts positions
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
        classes=KNOWN_ARCHITECTURES - {"ForNextSentencePrediction"},
    ),
    # ELECTRA has a pooler only in its classifiers of texts, where it is of gelu, and of choices.
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={
            "masked_lm/dense": "generator_predictions.dense",
            "masked_lm/layer_norm": "generator_predictions.LayerNorm",
            "masked_lm/bias": "generator_lm_head.bias",
            **_REPLACED_TOKEN_THERE,
            **_TASK_HEADS_THERE,
        },
        duplicates=_tied("generator_lm_head.weight"),
        head_keeps=_GELU_HEAD,
        classes=_TOKEN_CLASSES | {"ForPreTraining"},
        needs_pooler=False,
    ),
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={"pooler": "classifier.dense", "classifier/dense": "classifier.out_proj"},
        keeps={"pooler_activation": "gelu_erf"},
        classes=frozenset({"ForSequenceClassification"}),
    ),
    _names(
        "electra",
        model_class="Electra",
        encoder=_ELECTRA_THERE,
        heads={"pooler": "sequence_summary.summary", "classifier/dense": "classifier"},
        only={
            "summary_type": ("first",),
            "summary_use_proj": (True,),
            "summary_proj_to_labels": (False, None),
        },
        classes=frozenset({"ForMultipleChoice"}),
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
        classes=_TOKEN_CLASSES | {"ForMultipleChoice"},
        padding=_FIRST_TOKENS,
    ),
    # RoBERTa's classifier of texts has the pooler inside it; a pooler elsewhere in the file is of its pre-training.
    _names(
        "roberta",
        model_class="Roberta",
        encoder=_EMBEDDINGS_THERE | _BLOCK_THERE,
        heads={"pooler": "classifier.dense", "classifier/dense": "classifier.out_proj"},
        classes=frozenset({"ForSequenceClassification"}),
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
        classes=_TOKEN_CLASSES,
        needs_pooler=False,
    ),
    # DistilBERT has a pooler, of relu, only in its classifiers of texts.
    _names(
        "distilbert",
        model_class="DistilBert",
        encoder=_EMBEDDINGS_THERE | _DISTILBERT_BLOCK_THERE,
        heads={"pooler": "pre_classifier", "classifier/dense": "classifier"},
        classes=frozenset({"ForSequenceClassification", "ForMultipleChoice"}),
    ),
    # For configurations that no model of transformers computes; transformers refuses to read it.
    _names(
        OWN_TYPE,
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


def _config_file(folder: pathlib.Path) -> pathlib.Path:
    """The configuration beside weights of Hugging Face; the first releases of its library named it as Google does."""
    file = folder / _CONFIG
    return file if file.is_file() or not (folder / _OLD_CONFIG).is_file() else folder / _OLD_CONFIG


def _load_config(folder: pathlib.Path) -> BertConfig:
    """The configuration, with the values that the file's class always uses.

    Raises BertKerasError as `BertConfig.from_hugging_face`, and for a setting of the class that changes its numbers.
    """
    file = _config_file(folder)
    if not file.is_file():
        raise MissingFileError(f"no {_CONFIG} in {folder}; put the model's {_CONFIG} there.")
    fields = read_object(file)
    names = _names_of(fields)
    strict = (folder / TASK_FILE).is_file() or fields.get("model_type") == OWN_TYPE
    try:
        config = BertConfig.from_hugging_face(fields, strict=strict)
    except ValueError as error:
        raise BertKerasError(f"{file}: {error}") from error
    for key, allowed in names.only.items():
        if (value := fields.get(key, allowed[0])) not in allowed:
            raise BertKerasError(
                f"{file}: {key} is {shortened(value)}, which changes the numbers of "
                f"{names.model_class}{_architecture(fields)} and is not supported; wanted {allowed[0]!r}."
            )
    return dataclasses.replace(config, **names.keeps)


def names_in(folder: pathlib.Path) -> Names:
    """The table of a folder; `BertConfig.from_hugging_face` has checked its model_type."""
    return _names_of(read_optional(_config_file(folder)))


def _names_of(fields: Mapping[str, Any]) -> Names:
    architecture = _architecture(fields)
    fitting = [names for names in _NAMES if names.model_type == fields.get("model_type", "bert")] or _NAMES[
        :1
    ]
    return next((names for names in fitting if architecture in names.classes), fitting[0])


def _architecture(fields: Mapping[str, Any]) -> str | None:
    """Hugging Face's class without the model's name, from a config.json; None for an unknown one."""
    named = fields.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    found = re.fullmatch(rf"(?:{'|'.join({names.model_class for names in _NAMES})})(\w+)", first)
    return found[1] if found and found[1] in KNOWN_ARCHITECTURES else None


def _labels(names: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The names of the labels in the order of their ids; None for an id2label with other ids than 0, 1, 2."""
    if names is None or names.keys() != {str(i) for i in range(len(names))}:
        return None
    return tuple(str(names[str(i)]) for i in range(len(names)))


def _sigmoid(fields: Mapping[str, Any]) -> bool | None:
    """True or False where a config.json names the function of a score: sigmoid, or none.

    transformers has `function_to_apply`; sentence-transformers names a class of torch, in one of two places.
    """
    own = fields.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or fields.get("sbert_ce_default_activation_function") or fields.get("function_to_apply")
    return named.rpartition(".")[2].casefold() == "sigmoid" if isinstance(named, str) else None


@contextlib.contextmanager
def _open(folder: pathlib.Path, config: BertConfig) -> Iterator[OpenFile]:
    """Opens the safetensors files, else the PyTorch files; either may have several shards."""
    opener: Any = _open_safetensors
    files, index = _shards(folder, SAFETENSORS)
    if not files:
        opener, (files, index) = open_torch, _shards(folder, TORCH)
    with contextlib.ExitStack() as stack:
        get: dict[str, Callable[[str], np.ndarray]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            if other := describe_content(file):
                raise BertKerasError(f"{file} {other}.")
            own, getter = stack.enter_context(opener(file))
            # The index decides where several files hold a tensor.
            own = {name: shape for name, shape in own.items() if index.get(name, file.name) == file.name}
            get |= dict.fromkeys(own, getter)
            shapes |= own
        if lost := [name for name in index if name not in shapes]:
            raise BertKerasError(
                f"{folder} lacks {first_names(lost)}, which its index names; bring all files of the model again."
            )
        fields = read_optional(_config_file(folder))
        known = known_fields(fields, _DESCRIBED, where=_config_file(folder))
        yield OpenFile(
            file=files[0] if len(files) == 1 else folder,
            names=_without_prefix(_names_of(fields), shapes, where=folder),
            shapes=shapes,
            get=lambda name: get[name](name),
            described={
                "architecture": _architecture(fields),
                "labels": _labels(known.get("id2label")),
                "problem_type": known.get("problem_type"),
                "sigmoid": _sigmoid(fields),
            },
        )


_WORDS = "embeddings.word_embeddings.weight"


def _without_prefix(names: Names, shapes: Iterable[str], *, where: pathlib.Path) -> Names:
    """The table for a file whose names have a prefix, as a model inside another module has: `model.bert.`, `0.auto_model.`.

    Raises BertKerasError for a file of several encoders.
    """
    model = names.table["embeddings/word_embeddings"].removesuffix(_WORDS)  # "bert."
    found = [name.removesuffix(_WORDS) for name in shapes if name.endswith(_WORDS)]
    prefixes = sorted({stem.removesuffix(model) for stem in found})
    if len(prefixes) > 1:
        raise BertKerasError(
            f"{where} has the weights of {len(prefixes)} encoders, whose names begin with {first_names(prefixes)}; save the one "
            "that you want alone."
        )
    prefix = prefixes[0] if prefixes else ""
    return dataclasses.replace(names, current=lambda raw: names.current(raw.removeprefix(prefix)))


def _shards(folder: pathlib.Path, stem: str) -> tuple[list[pathlib.Path], dict[str, str]]:
    """The files of the weights, and the file of each tensor where an index says it."""
    if (folder / stem).is_file():
        return [folder / stem], {}
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return [], {}
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BertKerasError(f"{index} has no weight_map of file names.")
    refuse_shards_outside(index, set(names.values()))
    return [folder / name for name in sorted(set(names.values()))], names


@contextlib.contextmanager
def _open_safetensors(file: pathlib.Path) -> Iterator[Tensors]:
    import ml_dtypes  # noqa: F401  numpy then knows bfloat16
    import safetensors

    try:
        # The library compares header and length: a file that opens can be read.
        with safetensors.safe_open(file, framework="np") as opened:
            if (opened.metadata() or {}).get("format") == "tf":
                raise BertKerasError(
                    f"{file} has the names of transformers' TensorFlow classes; convert it with transformers 4 "
                    "(AutoModelForPreTraining.from_pretrained(FOLDER, from_tf=True).save_pretrained(NEW)) and give NEW."
                )
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
            yield shapes, functools.partial(_safetensor, opened, file=file)
    except safetensors.SafetensorError as error:
        raise BertKerasError(f"{file} is cut short or not a safetensors file: {error}.") from error


def _safetensor(opened: Any, name: str, *, file: pathlib.Path) -> np.ndarray:
    try:
        return opened.get_tensor(name)
    except (AttributeError, TypeError) as error:  # numpy has no such dtype
        raise BertKerasError(
            f"{name} of {file} is {opened.get_slice(name).get_dtype()}; wanted float16, bfloat16, float32 or float64."
        ) from error


def _save(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import safetensors
    import safetensors.numpy

    names = HUGGING_FACE.names_for(checkpoint)
    fields = checkpoint.config.to_hugging_face(names.model_type)
    fields["architectures"] = [names.model_class + choose_architecture(checkpoint)]
    if "classifier/dense/bias" in checkpoint.tensors:
        fields["num_labels"] = len(checkpoint.tensors["classifier/dense/bias"])
    if checkpoint.labels is not None:
        fields["id2label"] = dict(enumerate(checkpoint.labels))
        fields["label2id"] = {label: i for i, label in enumerate(checkpoint.labels)}
    if checkpoint.problem_type is not None:
        fields["problem_type"] = checkpoint.problem_type
    write_json(folder / _CONFIG, fields)
    write_tokenizer(checkpoint.vocabulary, folder, max_length=checkpoint.config.max_length)
    try:
        # safetensors lets only the owner read the file; `atomic_file` gives it the mode of all files.
        with atomic_file(folder / SAFETENSORS) as temporary:
            safetensors.numpy.save_file(tensors, temporary, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {SAFETENSORS}: {error}.") from error


HUGGING_FACE = Format(
    name="hugging-face",
    names=_NAMES,
    keeps={},
    files=f"{SAFETENSORS} or {TORCH} (or their .index.json)",
    find=_find,
    load_config=_load_config,
    load_tokenizer=read_tokenizer,
    open=_open,
    save=_save,
    has_labels=True,
)
