"""The files of a sentence-transformers folder that say how vectors are made: modules.json and the files of its modules.

In: a folder with the names of versions before 6, or of version 6. Out: the arguments of `Embedding`, and the weights of a dense
layer. And back, in the older names, which version 6 reads too.

Each file is a table, as in `hugging_face_tokenizer`: key -> FOLLOWED, HARMLESS, or the values that give our vectors.
"""

import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from bert_keras.checkpoints.tokenizer_tables import SENTENCE_CONFIG
from bert_keras.checkpoints.torch_files import open_torch
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.files import write_json
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
DENSE = "sentence_dense"  # the name of the dense layer after the pooling
DENSE_FILE = "2_Dense/model.safetensors"  # where it is written
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
_PARTS = {"linear.weight": "kernel", "linear.bias": "bias"}
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

    arguments: of `Embedding`
    dense: the weights of the dense layer, our name -> array; empty without a layer
    """

    arguments: dict[str, Any]
    dense: dict[str, np.ndarray]


def sentence_folder(path: str | pathlib.Path) -> pathlib.Path | None:
    """The sentence-transformers folder of a checkpoint, its own or the one around it; None for another checkpoint."""
    own = pathlib.Path(path)
    there = [one for one in (own, own.parent) if path and (one / MODULES).is_file()]
    return next((one for one in there if encoder_folder(one) == own), None)


def encoder_folder(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the encoder: the folder itself, or the one inside it that modules.json of older versions names."""
    path = folder / MODULES
    if (folder / "config.json").is_file() or not path.is_file():
        return folder
    named = (one["path"] for one in read_modules(path) if _TYPES.get(one["type"]) == "Transformer")
    return folder / next(named, "")


def read_modules(path: pathlib.Path) -> list[dict[str, Any]]:
    """The modules of a folder, each in a folder inside it. Raises BertKerasError for another list."""
    modules = checked_fields({"modules": read_json(path)}, {"modules": _MODULE}, where=path)["modules"]
    if outside := [
        one["path"] for one in modules if one["path"] and pathlib.PurePath(one["path"]).name != one["path"]
    ]:
        raise BertKerasError(f"{path} names the folder {outside[0]!r}, which is not in its folder.")
    return modules


def read_sentence_settings(folder: pathlib.Path) -> SentenceSettings:
    """The settings of a sentence-transformers folder. Raises BertKerasError for what makes other vectors."""
    path = folder / MODULES
    modules = read_modules(path)
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
    paths = {name: folder / module["path"] for name, module in zip(types, modules, strict=True)}
    arguments: dict[str, Any] = {"pooling": "mean", "l2": "Normalize" in types}
    unknown, dense = list[str](), dict[str, np.ndarray]()
    try:
        settings = read_optional(folder / SETTINGS)
        unknown += check_table(settings, _SETTINGS, where=SETTINGS)
        arguments |= _read_prompts(settings, where=folder / SETTINGS)
        if "Pooling" in types:
            arguments |= _read_pooling(paths["Pooling"], unknown)
        if "Dense" in types:
            shape, dense = _read_dense(paths["Dense"], unknown)
            arguments |= shape
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
    return SentenceSettings(arguments, dense)


def _read_prompts(settings: Mapping[str, Any], *, where: pathlib.Path) -> dict[str, Any]:
    """The prompts, the prompt of texts and the similarity, as arguments of `Embedding`. Raises BertKerasError."""
    kinds = {"prompts": or_null(object_of(TEXT)), "default_prompt_name": or_null(TEXT)}
    kinds["similarity_fn_name"] = or_null(TEXT)
    given = known_fields(settings, kinds, where=where)
    prompts, prompt = given.get("prompts") or {}, given.get("default_prompt_name")
    if prompt is not None and prompt not in prompts:
        raise BertKerasError(
            f"{where}: default_prompt_name is {shortened(prompt)}, which prompts lacks; wanted one of {', '.join(prompts)}."
        )
    return {"prompts": prompts, "prompt": prompt, "similarity": given.get("similarity_fn_name")}


def _read_pooling(folder: pathlib.Path, unknown: list[str]) -> dict[str, Any]:
    """A module of pooling as arguments of `Embedding`; adds unknown keys to a list. Raises Refused."""
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
    return {"pooling": _MODES[found[0]], "include_prompt": given.get("include_prompt", True)}


def _read_dense(folder: pathlib.Path, unknown: list[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
    sizes = {"dense_size": found["out_features"], "dense_activation": _ACTIVATIONS[name], "dense_bias": bias}
    return sizes, {f"{DENSE}/{_PARTS[one]}": tensors[one].astype(np.float32).T for one in wanted}


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


def write_sentence_settings(
    folder: pathlib.Path,
    arguments: Mapping[str, Any],
    dense: Sequence[np.ndarray],
    *,
    width: int,
    seq_length: int,
) -> None:
    """Writes the files of modules beside the files of an encoder.

    arguments: of `Embedding`; dense: the kernel and, if there is one, the bias of its dense layer; width: of the pooled states
    """
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Dense": "2_Dense"} if dense else {})
    paths |= {"Normalize": f"{len(paths)}_Normalize"} if arguments["l2"] else {}
    for path in filter(None, paths.values()):
        (folder / path).mkdir(exist_ok=True)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_OLD}.{name}"}
        for i, (name, path) in enumerate(paths.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / SENTENCE_CONFIG, {"max_seq_length": seq_length, "do_lower_case": False})
    names = {"prompts": "prompts", "prompt": "default_prompt_name", "similarity": "similarity_fn_name"}
    write_json(folder / SETTINGS, {theirs: arguments[ours] for ours, theirs in names.items()})
    mode = {ours: theirs for theirs, ours in _MODES.items()}[arguments["pooling"]]
    pooling = {"word_embedding_dimension": width, **{key: name == mode for key, name in _KEYS.items()}}
    write_json(
        folder / paths["Pooling"] / "config.json", pooling | {"include_prompt": arguments["include_prompt"]}
    )
    if dense:
        activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[arguments["dense_activation"]]
        sizes = {"in_features": width, "out_features": arguments["dense_size"], "bias": len(dense) > 1}
        write_json(folder / paths["Dense"] / "config.json", sizes | {"activation_function": activation})
        tensors = {name: np.ascontiguousarray(one.T) for name, one in zip(_PARTS, dense, strict=False)}
        safetensors.numpy.save_file(tensors, folder / DENSE_FILE, metadata={"format": "pt"})
