"""Reads the tensors of an open file under our names, and checks shapes, dtypes, values and tied weights."""

import pathlib

import numpy as np

from bert_keras.checkpoints.variables import Format, Names, Row, Source
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, listed


def read_tensors(
    form: Format, config: BertConfig, source: Source, *, root: pathlib.Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Our name -> array in our layout, and the file's names that no row of the table has.

    root: the checkpoint's folder or prefix

    Raises BertKerasError for a tensor of another shape or dtype, with NaN or infinite numbers, or for two names of one weight
    whose values differ.
    """
    names = form.names_in(root)
    known, unknown = _known_rows(names, config, source)
    tensors: dict[str, np.ndarray] = {}
    first: dict[str, str] = {}  # our name -> the name in the file that was read first
    tied = True
    for raw, row in sorted(known, key=lambda pair: pair[1].theirs in names.duplicates):
        array = row.to_ours(source.get(raw))
        if not _is_float(array):
            raise BertKerasError(
                f"{raw} in {source.file} is {array.dtype}; wanted float16, bfloat16, float32 or float64."
            )
        refuse_not_finite(array, named=f"{raw} in {source.file}")
        if row.ours in tensors and not np.array_equal(tensors[row.ours], array):
            if row.theirs not in names.duplicates:
                raise BertKerasError(
                    f"{raw} and {first[row.ours]} in {source.file} differ; they are two names of one weight and must be equal."
                )
            tied = False
        tensors.setdefault(row.ours, array)
        first.setdefault(row.ours, raw)
    if not any(name.startswith("embeddings/") for name in tensors):
        raise BertKerasError(
            f"no tensor in {source.file} has a name of the {form.name} format"
            f"{_other_model_types(form, names, config, source)}; its tensors are {listed(source.shapes, 4)}."
        )
    if not tied:  # the file's masked-LM head has its own weights; our head shares the embeddings
        unknown += [raw for raw, row in known if _is_masked_lm(row, names)]
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("masked_lm/")}
    return tensors, tuple(sorted(unknown))


def refuse_not_finite(array: np.ndarray, *, named: str) -> None:
    """Raises BertKerasError for an array with NaN or infinite numbers; `named` is the prefix of the error."""
    if (wrong := array.size - np.count_nonzero(np.isfinite(array))) > 0:
        raise BertKerasError(
            f"{named} has {wrong:,} numbers that are NaN or infinite, of {array.size:,}; wanted finite weights: "
            "bring another copy, or train the model again."
        )


def _known_rows(names: Names, config: BertConfig, source: Source) -> tuple[list[tuple[str, Row]], list[str]]:
    """The file's names with their rows, and those without a row. Raises BertKerasError for another shape."""
    rows = names.readable_rows(config)
    known: list[tuple[str, Row]] = []
    unknown = []
    for raw, shape in source.shapes.items():
        name = names.current(raw)
        if name is None:
            continue
        if name not in rows:
            unknown.append(raw)
            continue
        wanted = rows[name].their_shape(config)
        if len(shape) != len(wanted) or any(w not in (0, s) for s, w in zip(shape, wanted, strict=True)):
            raise BertKerasError(
                f"{raw} in {source.file} has shape {list(shape)}; the config wants {list(wanted)}: "
                "weights and config belong to different models; bring both of one model."
            )
        known.append((raw, rows[name]))
    return known, unknown


def _is_masked_lm(row: Row, names: Names) -> bool:
    return row.ours.startswith("masked_lm/") or row.theirs in names.duplicates


def _other_model_types(form: Format, names: Names, config: BertConfig, source: Source) -> str:
    """The other model_types with the embedding names of the file, for an error."""
    fitting = {
        repr(other.model_type): None
        for other in form.names
        if {row.theirs for row in other.rows(config) if row.ours.startswith("embeddings/")}
        & {other.current(raw) for raw in source.shapes}
    }
    if not fitting:
        return ""
    return f" and model_type {names.model_type!r}; its names are those of {' or '.join(fitting)}: correct its config"


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
