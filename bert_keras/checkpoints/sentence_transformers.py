"""The files of a sentence-transformers folder that say how vectors are made: modules.json and the files of its modules.

Each file is a table, as in `hugging_face_tokenizer`: key -> FOLLOWED, HARMLESS, or the values that give our vectors.
"""

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import TEXT, FieldType, checked_fields, read_json, read_optional
from bert_keras.text.tokenizer_json import FOLLOWED, HARMLESS, Refused, Table, check_table

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
# The ways of pooling that we have, by the key that turns each on; other keys must be off.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
_OTHER_MODES = ("mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
_POOLING: Table = {
    **dict.fromkeys(_MODES, FOLLOWED),
    "pooling_mode": FOLLOWED,
    **{f"pooling_mode_{name}": (None, False) for name in _OTHER_MODES},
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "include_prompt"), HARMLESS),
}
_SETTINGS: Table = {
    "default_prompt_name": (None,),
    "truncate_dim": (None,),
    **dict.fromkeys(("__version__", "prompts", "similarity_fn_name", "model_type"), HARMLESS),
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

    pooling: "mean", "cls" or "max"
    l2: True for vectors of length 1
    model: the folder of the encoder, the folder itself in newer ones
    """

    pooling: str
    l2: bool
    model: pathlib.Path


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
    types = [module["type"].rpartition(".")[2] for module in modules]
    kept = [name for name in types if name != "Dropout"]
    if kept not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BertKerasError(
            f"{path} has the modules {', '.join(types)}; wanted Transformer, Pooling and, after them, Normalize."
        )
    pooling, unknown = "mean", []
    try:
        settings = read_optional(folder / SETTINGS)
        unknown += check_table(settings, _SETTINGS, where=SETTINGS)
        if "Pooling" in types:
            pooling = _read_pooling(paths[types.index("Pooling")], unknown)
    except Refused as refused:
        raise BertKerasError(
            f"{folder} makes its vectors with {refused}, which is not supported; wanted the mean, the maximum or the "
            "first of the tokens' states."
        ) from None
    if unknown:
        warnings.warn(
            f"{folder} has settings of its vectors that are not known here and not followed: {', '.join(unknown)[:1000]}.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    return SentenceSettings(pooling=pooling, l2="Normalize" in types, model=paths[types.index("Transformer")])


def _read_pooling(folder: pathlib.Path, unknown: list[str]) -> str:
    """The way of pooling in the folder of a module; adds unknown keys to a list. Raises Refused."""
    path, where = folder / "config.json", f"{folder.name}/config.json"
    fields: Mapping[str, Any] = read_optional(path)
    unknown += check_table(fields, _POOLING, where=where)
    if "pooling_mode" in fields:
        checked_fields(fields, {"pooling_mode": TEXT}, where=path, others=True)
        found = [fields["pooling_mode"]]
    else:
        found = [mode for key, mode in _MODES.items() if fields.get(key, key == "pooling_mode_mean_tokens")]
    if len(found) != 1 or found[0] not in _MODES.values():
        raise Refused(f"the pooling {' and '.join(found) or 'of nothing'} in {where}")
    return found[0]
