"""SavedModels as checkpoints: the files of their variables, by the names in their object graph. Nothing is loaded or run.

    FOLDER/saved_model/1   of transformers' TFBertFor*.save_pretrained(FOLDER, saved_model=True), with FOLDER/config.json
    an encoder of TensorFlow Hub, as Model Garden's export_tfhub writes it: sizes from the variables, activation and epsilon
    from the operations of its graph, the vocabulary from its assets

A variable keeps the name that its layer gave it, wherever the object graph holds it; the end of the name decides.
"""

import collections
import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bert_keras.checkpoints import hugging_face
from bert_keras.checkpoints.checkpoint import EINSUM, Format, OpenFile, known_end, numbered, slashed
from bert_keras.checkpoints.hugging_face_names import NAMES
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer
from bert_keras.checkpoints.tensorflow import OBJECT_GRAPH, VALUE, open_variables
from bert_keras.checkpoints.tensorflow_classes import as_pytorch
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, first_line, first_names
from bert_keras.text.vocabulary import Vocabulary, read_vocabulary

GRAPH, VARIABLES = "saved_model.pb", "variables/variables"
MAX_GRAPH = 2**31 - 1  # bytes of a protocol buffer, which the graph is
_WORDS = {
    "hugging-face": re.compile(r"embeddings/word_embeddings/"),
    "hub": re.compile(r"(^|/)word_embeddings/embeddings$"),
}

# -----------------------------------------------------------------------------------------------------------
# The names of Model Garden's layers

_BLOCK = "transformer/layer_{i}"
_HUB = slashed(
    table={
        "embeddings/word_embeddings": "word_embeddings/embeddings",
        "embeddings/position_embeddings": "position_embedding/embeddings",
        "embeddings/type_embeddings": "type_embeddings/embeddings",
        "embeddings/layer_norm": "embeddings/layer_norm",
        "embeddings/projection": "embedding_projection",
        "block_{i}/attention/query": f"{_BLOCK}/self_attention/query",
        "block_{i}/attention/key": f"{_BLOCK}/self_attention/key",
        "block_{i}/attention/value": f"{_BLOCK}/self_attention/value",
        "block_{i}/attention/output": f"{_BLOCK}/self_attention/attention_output",
        "block_{i}/attention_layer_norm": f"{_BLOCK}/self_attention_layer_norm",
        "block_{i}/feed_forward/intermediate": f"{_BLOCK}/intermediate",
        "block_{i}/feed_forward/output": f"{_BLOCK}/output",
        "block_{i}/feed_forward_layer_norm": f"{_BLOCK}/output_layer_norm",
        "pooler": "pooler_transform",
        "masked_lm/dense": "cls/predictions/transform/dense",
        "masked_lm/layer_norm": "cls/predictions/transform/LayerNorm",
        "masked_lm/bias": "cls/predictions/output_bias/bias",
    },
    layouts=EINSUM,
    current=lambda name: _hub_name(name),
)


@functools.cache
def _known() -> frozenset[str]:
    parts = ("", *_HUB.parts.values())
    return frozenset(numbered(theirs + part) for theirs in _HUB.table.values() for part in parts)


def _hub_name(name: str) -> str:
    """The table's name at the end of a variable's name; unchanged for any other name. ALBERT's only block has no number."""
    path = re.sub(r"(^|/)transformer/(?!layer_)", r"\1transformer/layer_0/", name).split("/")
    return known_end(path, _known()) or name


# -----------------------------------------------------------------------------------------------------------
# The files of a SavedModel


@contextlib.contextmanager
def _variables(folder: pathlib.Path) -> Iterator[OpenFile]:
    """The variables of a SavedModel by the names that their layers gave them, without scalars, which are no weights."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    with open_variables(folder / VARIABLES, names=_HUB) as found:
        keys: dict[str, str] = {}
        try:
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
                found.get(OBJECT_GRAPH) if OBJECT_GRAPH in found.shapes else b""
            )
        except DecodeError as error:
            raise BertKerasError(
                f"{found.file} has a damaged object graph: {first_line(error)}; bring the SavedModel again."
            ) from error
        for node in graph.nodes:
            for part in node.attributes:
                if part.checkpoint_key.endswith(VALUE) and found.shapes.get(part.checkpoint_key):
                    keys.setdefault(part.full_name or part.checkpoint_key, part.checkpoint_key)
        yield dataclasses.replace(
            found,
            shapes={name: found.shapes[key] for name, key in keys.items()},
            get=lambda name: found.get(keys[name]),
        )


class _Graph(NamedTuple):
    """The operations of a SavedModel that decide the numbers of an encoder and are no variables."""

    operations: collections.Counter[str]  # of the function with the most softmaxes: each layer has one
    epsilons: frozenset[float]
    before: bool  # True if a block normalizes before its products (pre-LN)

    @classmethod
    def read(cls, folder: pathlib.Path) -> "_Graph":
        """Parses saved_model.pb. Raises BertKerasError for a damaged file."""
        from google.protobuf.message import DecodeError
        from tensorflow.core.protobuf import saved_model_pb2

        file = folder / GRAPH
        if (size := file.stat().st_size) > MAX_GRAPH:
            raise BertKerasError(f"{file} has {size:,} bytes; no graph has more than {MAX_GRAPH:,}.")
        try:
            found = saved_model_pb2.SavedModel.FromString(file.read_bytes())
        except DecodeError as error:
            raise BertKerasError(
                f"{file} is damaged: {first_line(error)}; bring the SavedModel again."
            ) from error
        graphs = [graph.graph_def for graph in found.meta_graphs]
        functions = [one.node_def for graph in graphs for one in graph.library.function]
        nodes = [node for function in functions for node in function]
        epsilons = {
            node.attr["value"].tensor.float_val[0]
            for node in nodes
            if node.op == "Const"
            and re.search(r"batchnorm/add(_\d+)?/y$", node.name)
            and node.attr["value"].tensor.float_val
        } | {node.attr["epsilon"].f for node in nodes if node.op.startswith("FusedBatchNorm")}
        counts = (collections.Counter(node.op for node in function) for function in functions)
        return cls(
            operations=max(counts, key=lambda count: count["Softmax"], default=collections.Counter()),
            epsilons=frozenset(float(f"{value:.3g}") for value in epsilons),
            before=any(
                "/self_attention/query/" in node.name
                and any("self_attention_layer_norm" in one for one in node.input)
                for node in nodes
            ),
        )

    @property
    def layers(self) -> int:
        return self.operations["Softmax"]

    @property
    def activation(self) -> str:
        """The activation that stands in every layer, "" for one that we lack; the pooler has one more Tanh."""
        counts = self.operations - collections.Counter(Tanh=1)
        return next((ours for name, ours in _ACTIVATIONS.items() if 0 < self.layers <= counts[name]), "")


_ACTIVATIONS = {"Erf": "gelu_erf", "Erfc": "gelu_erf", "Tanh": "gelu_tanh", "Relu": "relu", "Sigmoid": "silu"}


def _hub_config(folder: pathlib.Path) -> BertConfig:
    """The configuration of an encoder of TensorFlow Hub, which no file has: from its variables and its operations."""
    with _variables(folder) as found:
        shapes = {_hub_name(name): shape for name, shape in found.shapes.items()}
    graph = _Graph.read(folder)
    _refuse_other(folder, shapes, graph)
    first = _BLOCK.format(i=0)
    query = _shape(shapes, f"{first}/self_attention/query/kernel", 3, folder)
    words = _shape(shapes, "word_embeddings/embeddings", 2, folder)
    hidden, blocks = query[0], {name.split("/")[1] for name in shapes if name.startswith("transformer/")}
    try:
        return BertConfig(
            vocab_size=words[0],
            hidden_size=hidden,
            num_layers=graph.layers,
            num_heads=query[1],
            intermediate_size=_shape(shapes, f"{first}/intermediate/kernel", 2, folder)[1],
            max_positions=_shape(shapes, "position_embedding/embeddings", 2, folder)[0],
            type_vocab_size=_shape(shapes, "type_embeddings/embeddings", 2, folder)[0],
            embedding_size=None if words[1] == hidden else words[1],
            share_layers=len(blocks) == 1 < graph.layers,
            activation=graph.activation,
            norm_epsilon=next(iter(graph.epsilons)),
        )
    except ValueError as error:
        raise BertKerasError(f"{folder}: {error}") from error


def _shape(
    shapes: Mapping[str, tuple[int, ...]], name: str, rank: int, folder: pathlib.Path
) -> tuple[int, ...]:
    if len(found := shapes.get(name, ())) != rank:
        raise BertKerasError(
            f"{folder} has no {name} of {rank} dimensions{f' but {list(found)}' if found else ''}; bring the SavedModel again."
        )
    return found


def _refuse_other(folder: pathlib.Path, shapes: Mapping[str, tuple[int, ...]], graph: _Graph) -> None:
    """Raises BertKerasError for an encoder that computes other numbers than ours."""
    unknown = sorted(name for name in shapes if numbered(name) not in _known())
    why = {
        f"it has {first_names(unknown, 3)}": unknown,
        "its blocks normalize before attention (pre-LN)": graph.before,
        f"its layer norms have {len(graph.epsilons)} epsilons": len(graph.epsilons) != 1,
        f"its {graph.layers} layers have no activation of ours": not graph.activation,
    }
    if found := [reason for reason, wrong in why.items() if wrong]:
        raise BertKerasError(
            f"{folder} is an encoder of TensorFlow Hub that is no BERT of ours: {found[0]}; bert_keras.HubLayer runs and "
            "trains it."
        )


# -----------------------------------------------------------------------------------------------------------
# The format


def _find(path: pathlib.Path) -> pathlib.Path | None:
    """The folder of a SavedModel with names of one of the tables."""
    folder = path if path.is_dir() else path.parent
    if path not in (folder, folder / GRAPH):
        return None
    versions = [file.parent for file in folder.glob(f"saved_model/*/{GRAPH}")]
    versions.sort(key=lambda version: (len(version.name), version.name))  # 10 is after 9
    for place in (folder, *versions[-1:]):
        if (place / GRAPH).is_file() and _kind_of(place):
            return place
    return None


def _kind_of(folder: pathlib.Path) -> str:
    """A key of _WORDS; "" for a SavedModel of another kind."""
    if not (folder / f"{VARIABLES}.index").is_file():
        return ""
    with _variables(folder) as found:
        return next(
            (kind for kind, words in _WORDS.items() if any(words.search(name) for name in found.shapes)), ""
        )


def _config_folder(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the config.json: the SavedModel's, or the one that save_pretrained put it into."""
    above = folder.parent.parent
    inside = folder.parent.name == "saved_model" and hugging_face.config_file(above).is_file()
    return above if inside and not hugging_face.config_file(folder).is_file() else folder


def _load_config(folder: pathlib.Path) -> BertConfig:
    if _kind_of(folder) == "hub":
        return _hub_config(folder)
    return hugging_face.load_config(_config_folder(folder))


def _load_tokenizer(folder: pathlib.Path) -> Vocabulary:
    """The tokenizer beside config.json, else the vocabulary in the assets, with the SavedModel's own word on lower case."""
    found = read_tokenizer(_config_folder(folder))
    assets = [*folder.glob("assets/*.txt"), *folder.glob("assets/*.model")]
    if found.is_there or len(assets) != 1:
        return found
    with open_variables(folder / VARIABLES, names=_HUB) as opened:
        flag = f"do_lower_case{VALUE}"
        lower = bool(opened.get(flag)) if opened.shapes.get(flag) == () else None
    return read_vocabulary(assets[0])._replace(lower_case=lower)


@contextlib.contextmanager
def _open(folder: pathlib.Path, config: BertConfig) -> Iterator[OpenFile]:
    with _variables(folder) as found:
        if _kind_of(folder) == "hub":
            yield found
            return
        shapes, get = as_pytorch(
            {f"{name}:0": shape for name, shape in found.shapes.items()}, lambda name: found.get(name[:-2])
        )
        file = hugging_face.config_file(_config_folder(folder))
        yield hugging_face.described(file, shapes, get, file=found.file)


SAVED_MODEL = Format(
    name="saved-model",
    names=(*NAMES, _HUB),
    keeps={},
    files=f"{GRAPH} of a TFBertFor... class, or of an encoder of TensorFlow Hub",
    find=_find,
    load_config=_load_config,
    load_tokenizer=_load_tokenizer,
    open=_open,
)
