"""A look at a file or a folder that someone takes for a model or for data: names, first bytes, keys, names of tensors.

Each look reads within limits, loads no weights and runs no code of the file: no pickle, no graph. It imports no TensorFlow.
"""

import contextlib
import fnmatch
import functools
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from bert_keras.config import SIZES, VARIANTS
from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import MAX_JSON_BYTES, parse_json, read_object

MANY = 20_000  # names of files, or of tensors
START_BYTES, GRAPH_BYTES = 1 << 16, 1 << 26
FAMILIES = {
    "bert": "BERT",
    "albert": "ALBERT",
    "electra": "ELECTRA",
    "roberta": "RoBERTa",
    "distilbert": "DistilBERT",
    "openai-gpt": "GPT",
}
# The keys of the layers and of the hidden size: Hugging Face's and Google's, DistilBERT's, KerasHub's and ours, and GPT's.
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")
_HIDDEN = ("hidden_size", "dim", "hidden_dim", "n_embd")
_BLOCK = re.compile(r"(?:layer_\._|layer_|layers?\.|Encoder-|layer_groups\.|(?:^|\.)h\.)(\d+)")
_WORDS = re.compile(r"word_embeddings|Embedding-Token|token_embedding|tokens_embed")
# The bias of a head with a logit for each label: of transformers, and a layer of Keras 2 beside the encoder.
_HEAD = re.compile(
    r"(^|[/.])classifier([/.]out_proj)?[/.]bias(:0)?$|^(model_weights/)?dense(_\d+)?/dense(_\d+)?/bias:0$"
)
_TORCH_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"  # the first bytes of torch.save before 1.6


class Look:
    """One file, and its folder. What cannot be read is empty: a look raises no error."""

    def __init__(self, file: pathlib.Path) -> None:
        self.file, self.folder = file, file.parent

    def beside(self, *patterns: str) -> bool:
        """True if the folder has a file of each pattern."""
        return all(any(True for _ in self.folder.glob(pattern)) for pattern in patterns)

    @functools.cached_property
    def start(self) -> bytes:
        """The first bytes of the file."""
        return self.read(START_BYTES)

    @functools.cached_property
    def graph(self) -> bytes:
        """The bytes of a SavedModel's graph, where the names of its variables and ops stand."""
        return self.read(GRAPH_BYTES)

    def read(self, limit: int) -> bytes:
        """The first bytes; none of a folder."""
        with contextlib.suppress(OSError):
            if self.file.is_file():  # a pipe would wait
                with self.file.open("rb") as opened:
                    return opened.read(limit)
        return b""

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines of text at the start; none where it is not UTF-8."""
        try:
            text = self.start.decode("utf-8-sig", "ignore" if len(self.start) == START_BYTES else "strict")
        except UnicodeDecodeError:
            return []
        return [] if "\0" in text else text.split("\n")

    @functools.cached_property
    def object(self) -> dict[str, Any]:
        """The object in a JSON file."""
        try:
            return read_object(self.file)
        except (BertKerasError, OSError):
            return {}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The configuration beside the file, or in its archive; of a preset and of a `.keras` file, the object of its class."""
        if self.members:
            return self.member("config.json")
        files = (self.folder / name for name in ("config.json", "bert_config.json"))
        return next((Look(file).object for file in files if file.is_file()), {})

    @functools.cached_property
    def members(self) -> list[str]:
        """The names in a zip file."""
        if not self.start.startswith(b"PK"):
            return []
        try:
            with zipfile.ZipFile(self.file) as archive:
                return archive.namelist()[:MANY]
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return []

    def member(self, name: str) -> dict[str, Any]:
        """The object in a JSON file of the archive."""
        try:
            with zipfile.ZipFile(self.file) as archive, archive.open(name) as opened:
                found = parse_json(opened.read(MAX_JSON_BYTES), source=name, form="JSON")
        except (KeyError, zipfile.BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
            return {}
        return found if isinstance(found, dict) else {}

    @functools.cached_property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape in an HDF5 or a safetensors file."""
        if self.start.startswith(b"\x89HDF"):
            return self._hdf5[0]
        return {
            name: tuple(size for size in entry["shape"] if isinstance(size, int))
            for name, entry in itertools.islice(self._header.items(), MANY)
            if isinstance(entry, dict) and isinstance(entry.get("shape"), list)
        }

    @functools.cached_property
    def attributes(self) -> frozenset[str]:
        """The names of the attributes of an HDF5 file's root: "model_config" where Keras 2 saved a whole model."""
        return self._hdf5[1] if self.start.startswith(b"\x89HDF") else frozenset()

    @functools.cached_property
    def _hdf5(self) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
        import h5py

        found: dict[str, tuple[int, ...]] = {}

        def note(name: str, entry: Any) -> bool | None:
            if isinstance(entry, h5py.Dataset):
                found[name] = tuple(entry.shape or ())
            return True if len(found) >= MANY else None  # True ends the visit

        try:
            with h5py.File(self.file, "r") as opened:
                opened.visititems(note)  # it follows no link to another file
                return found, frozenset(opened.attrs)
        except (OSError, RuntimeError, KeyError, ValueError):
            return {}, frozenset()

    @functools.cached_property
    def _header(self) -> dict[str, Any]:
        """The header of a safetensors file: 8 bytes with its length, then JSON."""
        length = int.from_bytes(self.start[:8], "little")
        if self.start[8:9] != b"{" or length > MAX_JSON_BYTES:
            return {}
        try:
            found = json.loads(self.read(8 + length)[8:])
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_cut(self) -> bool:
        """True for a file of weights that is cut short, or is not of the kind that its name says."""
        suffix, start = self.file.suffix, self.start
        if suffix == ".safetensors":
            entries = [one.get("data_offsets") for one in self._header.values() if isinstance(one, dict)]
            pairs = [one for one in entries if isinstance(one, list) and len(one) == 2]
            ends = [end for _, end in pairs if isinstance(end, int)]
            whole = 8 + int.from_bytes(start[:8], "little") + max(ends, default=0)
            return not self._header or self.file.stat().st_size < whole
        if suffix in (".h5", ".hdf5"):
            return not start.startswith(b"\x89HDF") or not (self.tensors or self.attributes)
        if suffix in (".bin", ".pt", ".pth"):
            return not (self.members or start.startswith(_TORCH_PICKLE) or start[:1] == b"\x80")
        return suffix in (".keras", ".zip") and not self.members


def sizes(look: Look) -> dict[str, Any]:
    """The family, the size, the layers and the hidden size, from the configuration or else the tensors; those that are known."""
    found: dict[str, Any] = next(_objects_with_sizes(look.config), {})
    layers = next((found[key] for key in _LAYERS if isinstance(found.get(key), int)), None)
    hidden = next((found[key] for key in _HIDDEN if isinstance(found.get(key), int)), None)
    names = [*look.tensors] or [
        match.decode("ascii") for match in re.findall(rb"layer_(?:\._)?\d+|tf_[a-z_]{1,40}", look.graph)
    ]
    named = look.config.get("model_type")
    family = (named if isinstance(named, str) else None) or _family(names) or ("bert" if found else None)
    if layers is None:
        numbers = {match[1] for name in names if (match := _BLOCK.search(name))}
        layers = len(numbers) or None
    if hidden is None:
        hidden = next(
            (shape[-1] for name, shape in look.tensors.items() if _WORDS.search(name) and shape), None
        )
    known = {"family": family, "size": _size(family, layers, hidden), "layers": layers, "hidden_size": hidden}
    return {key: value for key, value in known.items() if value}


def labels(look: Look) -> dict[str, Any]:
    """The names of the labels in a config.json, else their number in the last head of the tensors; those that are known."""
    names = look.config.get("id2label")
    if isinstance(names, dict) and names:
        return {"labels": [str(name) for name in names.values()][:MANY]}
    ends = {shape[0] for name, shape in look.tensors.items() if _HEAD.search(name) and len(shape) == 1}
    return {"num_labels": ends.pop()} if len(ends) == 1 else {}


def _objects_with_sizes(value: Any) -> Iterator[dict[str, Any]]:
    """The objects inside a configuration that have a number of layers and a hidden size."""
    waiting = [value]
    for _ in range(MANY):
        if not waiting:
            return
        one = waiting.pop(0)
        if isinstance(one, dict) and {*one} & {*_LAYERS} and {*one} & {*_HIDDEN}:
            yield one
        if isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one


def _family(names: list[str]) -> str | None:
    """The family that the names of tensors show."""
    joined = (
        "\n".join(names[:MANY]).replace("distil_bert", "distilbert").replace("tokens_embed", "openai-gpt")
    )
    signs = (
        "openai-gpt",
        "distilbert",
        "roberta",
        "albert",
        "electra",
        "bert",
        "Encoder-1-",
        "transformer_layer_0",
    )
    found = next((sign for sign in signs if sign in joined), None)
    return found if found in FAMILIES else found and "bert"


def _size(family: str | None, layers: int | None, hidden: int | None) -> str | None:
    """The published size, such as "base"; None for other sizes."""
    of_family = {
        name.partition("-")[2]: (fields["num_layers"], fields["hidden_size"])
        for name, fields in VARIANTS.items()
        if name.startswith(f"{family}-")
    }
    named = {name: size for name, size in SIZES.items() if not name.startswith("L-")}
    both = of_family or named
    return next((name for name, size in both.items() if size == (layers, hidden)), None)


def match(folder: pathlib.Path, names: list[str], patterns: tuple[str, ...]) -> pathlib.Path | None:
    """The first pattern's file in a folder; of several files the last, which has the highest step."""
    for pattern in patterns:
        found = [name for name in fnmatch.filter(names, pattern) if name.count("/") == pattern.count("/")]
        if found:
            return folder / max(found, key=lambda name: (len(name), name))
    return None


def list_names(folder: pathlib.Path) -> list[str]:
    """The names in a folder, and in the folders in it; at most MANY."""
    found: list[str] = []
    try:
        for entry in itertools.islice(sorted(folder.iterdir()), MANY):
            found.append(entry.name)
            if entry.is_dir():
                if entry.name == "saved_model" and (entry / "1/saved_model.pb").is_file():  # of transformers
                    found.append("saved_model/1/saved_model.pb")
                found += [f"{entry.name}/{one.name}" for one in itertools.islice(entry.iterdir(), MANY)]
    except OSError:
        pass
    return found[:MANY]
