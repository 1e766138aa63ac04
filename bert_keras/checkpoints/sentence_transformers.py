"""The files of a sentence-transformers folder that say how vectors are made: modules.json and the files of its modules.

Read alike: the names of versions before 6, and those of version 6.

Each file is a table, as in `hugging_face_tokenizer`: key -> FOLLOWED, HARMLESS, or the values that give our vectors.
"""

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from bert_keras.checkpoints.torch_files import open_torch
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.json_files import (
    FLAG,
    TEXT,
    FieldType,
    checked_fields,
    integer,
    known_fields,
    object_of,
    or_null,
    read_json,
    read_object,
    read_optional,
    shortened,
)
from bert_keras.text.tokenizer_json import FOLLOWED, HARMLESS, Refused, Table, check_table

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# A module's type in a file -> ours. A type is a key of this table and never imported.
_OLD, _BASE = "sentence_transformers.models", "sentence_transformers.base.modules"
_TYPES = {f"{_OLD}.{name}": name for name in ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")} | {
    f"{_BASE}.transformer.Transformer": "Transformer",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling": "Pooling",
    f"{_BASE}.dense.Dense": "Dense",
    f"{_BASE}.normalize.Normalize": "Normalize",
    "sentence_transformers.sentence_transformer.modules.dropout.Dropout": "Dropout",
}
_ORDERS = tuple(
    ["Transformer", *rest]
    for rest in (
        [],
        ["Pooling"],
        *(["Pooling", *more] for more in (["Normalize"], ["Dense"], ["Dense", "Normalize"])),
    )
)
# The ways of pooling: the names since version 6 -> ours, and the keys of older versions, each of which turns one on.
_MODES = {
    **{"cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len_tokens": "mean_sqrt_length"},
    **{"weightedmean": "weighted_mean", "lasttoken": "last"},
}
_KEYS = {
    **{"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean"},
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    **{"pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken"},
}
_POOLING: Table = {
    **dict.fromkeys((*_KEYS, "pooling_mode", "include_prompt"), FOLLOWED),
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension"), HARMLESS),
}
# The dense layer's activation in a file -> a key of ACTIVATIONS.
_ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu_erf",
    "torch.nn.modules.activation.SiLU": "silu",
}
_VECTOR = (None, "sentence_embedding")
_DENSE: Table = {
    **dict.fromkeys(("in_features", "out_features", "bias", "activation_function"), FOLLOWED),
    **{"module_input_name": _VECTOR, "module_output_name": _VECTOR, "use_residual": (None, False)},
}
_SETTINGS: Table = {
    "truncate_dim": (None,),
    **dict.fromkeys(("prompts", "default_prompt_name"), FOLLOWED),
    **dict.fromkeys(("__version__", "similarity_fn_name", "model_type"), HARMLESS),
}
_MODULE = FieldType(
    "a list of modules with a type and a path",
    lambda value: (
        isinstance(value, list)
        and all(
            isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("type", "path"))
            for one in value
        )
    ),
)


class SentenceSettings(NamedTuple):
    """The vectors of a folder.

    pooling: a key of POOLINGS
    l2: True for vectors of length 1
    model: the folder of the encoder, the folder itself in newer ones
    options: the other arguments of `Embedding`: the prompts and the dense layer
    dense: the weights of the dense layer, kernel [H, D] and, if there is one, bias [D]; empty without a layer
    similarity: the name of the similarity that the vectors were made for; None where the folder does not say it
    """

    pooling: str
    l2: bool
    model: pathlib.Path
    options: Mapping[str, Any] = {}
    dense: tuple[np.ndarray, ...] = ()
    similarity: str | None = None


def read_sentence_settings(folder: pathlib.Path) -> SentenceSettings | None:
    """The settings of a sentence-transformers folder; None for another folder.

    Raises BertKerasError for a module or a setting that makes other vectors than ours.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = checked_fields({"modules": read_json(path)}, {"modules": _MODULE}, where=path)["modules"]
    if outside := [
        one["path"] for one in modules if one["path"] and pathlib.PurePath(one["path"]).name != one["path"]
    ]:
        raise BertKerasError(f"{path} names the folder {outside[0]!r}, which is not in its folder.")
    paths = [folder / module["path"] for module in modules]
    if unnamed := [module["type"] for module in modules if module["type"] not in _TYPES]:
        raise BertKerasError(
            f"{path} has a module of the type {shortened(unnamed[0])}, which is not supported; wanted Transformer, Pooling, "
            "Dense and Normalize of sentence-transformers."
        )
    types = [_TYPES[module["type"]] for module in modules]
    if [name for name in types if name != "Dropout"] not in _ORDERS:
        raise BertKerasError(
            f"{path} has the modules {', '.join(types)}; wanted Transformer, Pooling and, after them, Dense, Normalize or both, "
            "in this order."
        )
    pooling, unknown = "mean", list[str]()
    dense: tuple[np.ndarray, ...] = ()
    try:
        settings = read_optional(folder / SETTINGS)
        unknown += check_table(settings, _SETTINGS, where=SETTINGS)
        options, similarity = _read_prompts(settings, where=folder / SETTINGS)
        if "Pooling" in types:
            pooling, options["include_prompt"] = _read_pooling(paths[types.index("Pooling")], unknown)
        if "Dense" in types:
            shape, dense = _read_dense(paths[types.index("Dense")], unknown)
            options |= shape
    except Refused as refused:
        raise BertKerasError(
            f"{folder} makes its vectors with {refused}, which is not supported; wanted one of the poolings "
            f"{', '.join(_MODES)}, and a dense layer with one of {', '.join(_ACTIVATIONS)}."
        ) from None
    if unknown:
        warnings.warn(
            f"{folder} has settings of its vectors that are not known here and not followed: {', '.join(unknown)[:1000]}.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    model = paths[types.index("Transformer")]
    return SentenceSettings(pooling, "Normalize" in types, model, options, dense, similarity)


def _read_prompts(settings: Mapping[str, Any], *, where: pathlib.Path) -> tuple[dict[str, Any], str | None]:
    """The prompts and the prompt of texts, as arguments of `Embedding`, and the similarity. Raises BertKerasError."""
    kinds = {"prompts": or_null(object_of(TEXT)), "default_prompt_name": or_null(TEXT)}
    kinds["similarity_fn_name"] = or_null(TEXT)
    given = known_fields(settings, kinds, where=where)
    prompts, prompt = given.get("prompts") or {}, given.get("default_prompt_name")
    if prompt is not None and prompt not in prompts:
        raise BertKerasError(
            f"{where}: default_prompt_name is {shortened(prompt)}, which prompts lacks; wanted one of {', '.join(prompts)}."
        )
    return {"prompts": prompts, "prompt": prompt}, given.get("similarity_fn_name")


def _read_pooling(folder: pathlib.Path, unknown: list[str]) -> tuple[str, bool]:
    """The way of pooling, and `include_prompt`, of a module; adds unknown keys to a list. Raises Refused."""
    path, where = folder / "config.json", f"{folder.name}/config.json"
    fields: Mapping[str, Any] = read_optional(path)
    unknown += check_table(fields, _POOLING, where=where)
    given = known_fields(fields, {"include_prompt": FLAG, **dict.fromkeys(_KEYS, or_null(FLAG))}, where=path)
    named = fields.get("pooling_mode")
    if named is None:
        named = [mode for key, mode in _KEYS.items() if given.get(key)] or ["mean"]
    found = named if isinstance(named, list) else [named]
    if len(found) != 1 or not isinstance(found[0], str) or found[0] not in _MODES:
        raise Refused(f"the pooling {' and '.join(map(str, found)) or 'of nothing'} in {where}")
    return _MODES[found[0]], given.get("include_prompt", True)


def _read_dense(folder: pathlib.Path, unknown: list[str]) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """A dense layer as arguments of `Embedding`, and its weights; adds unknown keys to a list. Raises Refused."""
    path, where = folder / "config.json", f"{folder.name}/config.json"
    size = integer(1, 1 << 20)
    kinds = {"in_features": size, "out_features": size, "bias": FLAG, "activation_function": TEXT}
    fields = read_object(path)
    unknown += check_table(fields, _DENSE, where=where)
    found = checked_fields(fields, kinds, where=path, optional=("bias", "activation_function"), others=True)
    name = found.get("activation_function", "torch.nn.modules.activation.Tanh")
    if name not in _ACTIVATIONS:
        raise Refused(f"the activation {shortened(name)} in {where}")
    bias = found.get("bias", True)
    wanted: dict[str, tuple[int, ...]] = {"linear.weight": (found["out_features"], found["in_features"])}
    wanted |= {"linear.bias": (found["out_features"],)} if bias else {}
    tensors = _read_tensors(folder)
    if {one: tensor.shape for one, tensor in tensors.items()} != wanted:
        raise BertKerasError(
            f"{folder} has other weights than its config.json says; bring both files of one model."
        )
    weights = tuple(tensors[one].astype(np.float32).T for one in wanted)
    return {
        "dense_size": found["out_features"],
        "dense_activation": _ACTIVATIONS[name],
        "dense_bias": bias,
    }, weights


def _read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """The tensors of a module by name."""
    if (file := folder / "model.safetensors").is_file():
        try:
            return safetensors.numpy.load_file(file)
        except (safetensors.SafetensorError, OSError) as error:
            raise BertKerasError(f"{file} is damaged: {error}; bring the file again.") from error
    if not (file := folder / "pytorch_model.bin").is_file():
        raise MissingFileError(f"{folder} has no model.safetensors; bring the file.")
    with open_torch(file) as (shapes, get):
        return {name: get(name) for name in shapes}
