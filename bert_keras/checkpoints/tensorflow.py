"""TensorFlow checkpoints with a bert_config.json and a vocab.txt: Google's, of TensorFlow 1, and Model Garden's, of TensorFlow 2.

Google's (google-research/bert) have variables by name; Model Garden's have variables by their path in an object graph.
"""

import contextlib
import functools
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import (
    EINSUM,
    ORIGINAL,
    TRANSPOSED,
    Checkpoint,
    Format,
    Names,
    OpenFile,
    slashed,
)
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io.files import file_errors, write_json
from bert_keras.io.paths import for_tensorflow

TENSORFLOW_NAME = "bert_model.ckpt"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


def _find(path: pathlib.Path, *, object_graph: bool) -> pathlib.Path | None:
    """The prefix of the checkpoint at a path; None if there is none of this kind.

    object_graph: True for a checkpoint with an object graph (TensorFlow 2), False for one without
    """
    if (prefix := _prefix_at(path)) is None:
        return None
    with _reader(prefix) as reader:
        return prefix if reader.has_tensor(OBJECT_GRAPH) == object_graph else None


def _prefix_at(path: pathlib.Path) -> pathlib.Path | None:
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        if path / f"{TENSORFLOW_NAME}.index" in indexes:
            return path / TENSORFLOW_NAME
        if latest := _latest(path):
            return latest
        if len(indexes) > 1:
            names = ", ".join(file.stem for file in indexes[:4])
            raise BertKerasError(
                f"{path} holds {len(indexes)} TensorFlow checkpoints ({names}); give the path of one."
            )
        return indexes[0].with_suffix("") if indexes else None
    for prefix in (path, path.with_name(_PART.sub("", path.name))):
        if prefix.with_name(f"{prefix.name}.index").is_file():
            return prefix
    return None


def _latest(folder: pathlib.Path) -> pathlib.Path | None:
    """The checkpoint in a folder that its `checkpoint` file names as the latest. It may name the place of its training."""
    file = folder / "checkpoint"
    named = (
        re.search(r'^model_checkpoint_path: "([^"]+)"', file.read_text("utf-8", "replace"), re.M)
        if file.is_file()
        else None
    )
    prefix = folder / pathlib.PurePath(named[1].replace("\\", "/")).name if named else None
    return prefix if prefix and prefix.with_name(f"{prefix.name}.index").is_file() else None


@contextlib.contextmanager
def _reader(prefix: pathlib.Path) -> Iterator[Any]:
    import tensorflow as tf

    with for_tensorflow(prefix) as found:
        try:
            reader = tf.train.load_checkpoint(str(found))
        except Exception as error:  # TensorFlow raises RuntimeError, IndexError, ...
            raise BertKerasError(
                f"{prefix}.index is not a TensorFlow checkpoint: {first_line(error)}"
            ) from error
        yield reader


@contextlib.contextmanager
def open_variables(
    prefix: pathlib.Path, config: BertConfig | None = None, *, names: Names
) -> Iterator[OpenFile]:
    """Opens a checkpoint, of whatever config. Raises BertKerasError before TensorFlow allocates more than the data files have."""
    with _reader(prefix) as reader:

        def get(name: str) -> np.ndarray:
            try:
                return reader.get_tensor(name)
            except Exception as error:  # TensorFlow raises RuntimeError, IndexError, ...
                raise BertKerasError(f"{name} of {prefix} cannot be read: {first_line(error)}") from error

        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        dtypes = reader.get_variable_to_dtype_map()
        # A string has size 0.
        size = sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items())
        parts = [part for part in prefix.parent.iterdir() if part.name.startswith(f"{prefix.name}.data-")]
        there = sum(part.stat().st_size for part in parts if part.is_file())
        if size > there:
            raise BertKerasError(
                f"{prefix} cannot be read: its data has {there:,} bytes and its index needs {size:,}; bring all its files again."
            )
        yield OpenFile(file=prefix, names=names, shapes=dict(sorted(shapes.items())), get=get)


def load_config(prefix: pathlib.Path) -> BertConfig:
    """The bert_config.json beside a checkpoint."""
    path = prefix.parent / "bert_config.json"
    if not path.is_file():
        raise MissingFileError(
            f"no bert_config.json in {prefix.parent}, which holds {prefix.name}; put the model's bert_config.json there."
        )
    return BertConfig.load(path)


def _save_beside(checkpoint: Checkpoint, folder: pathlib.Path) -> None:
    write_json(folder / "bert_config.json", checkpoint.config.to_google())
    write_tokenizer(checkpoint.vocabulary, folder, max_length=checkpoint.config.max_length)


# -----------------------------------------------------------------------------------------------------------
# Google

_GOOGLE_TABLE = {
    "embeddings/word_embeddings": "bert/embeddings/word_embeddings",
    "embeddings/position_embeddings": "bert/embeddings/position_embeddings",
    "embeddings/type_embeddings": "bert/embeddings/token_type_embeddings",
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "block_{i}/attention/query": "bert/encoder/layer_{i}/attention/self/query",
    "block_{i}/attention/key": "bert/encoder/layer_{i}/attention/self/key",
    "block_{i}/attention/value": "bert/encoder/layer_{i}/attention/self/value",
    "block_{i}/attention/output": "bert/encoder/layer_{i}/attention/output/dense",
    "block_{i}/attention_layer_norm": "bert/encoder/layer_{i}/attention/output/LayerNorm",
    "block_{i}/feed_forward/intermediate": "bert/encoder/layer_{i}/intermediate/dense",
    "block_{i}/feed_forward/output": "bert/encoder/layer_{i}/output/dense",
    "block_{i}/feed_forward_layer_norm": "bert/encoder/layer_{i}/output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm/dense": "cls/predictions/transform/dense",
    "masked_lm/layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm/bias": "cls/predictions/output_bias",
    "next_sentence/dense/kernel": "cls/seq_relationship/output_weights",
    "next_sentence/dense/bias": "cls/seq_relationship/output_bias",
    "classifier/dense/kernel": "output_weights",
    "classifier/dense/bias": "output_bias",
    "qa_outputs/dense/kernel": "cls/squad/output_weights",
    "qa_outputs/dense/bias": "cls/squad/output_bias",
}
_OUTPUT_WEIGHTS = {
    f"{head}/dense/kernel": TRANSPOSED for head in ("next_sentence", "classifier", "qa_outputs")
}
_NO_WEIGHT = re.compile(
    r"(^|/)(adam_[mv]|lamb_[mv]|global_step|beta[12]_power|good_steps|loss_scale|current_loss_scale)$"
)


def _save_google(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import tensorflow as tf

    _save_beside(checkpoint, folder)
    order = sorted(tensors)
    with file_errors(), tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(folder / TENSORFLOW_NAME),
            tensor_names=order,
            shape_and_slices=[""] * len(order),
            tensors=[tf.constant(tensors[name]) for name in order],
        )


# -----------------------------------------------------------------------------------------------------------
# Model Garden

_GARDEN_TABLE = {
    "embeddings/word_embeddings": "encoder/_embedding_layer/embeddings",
    "embeddings/position_embeddings": "encoder/_position_embedding_layer/embeddings",
    "embeddings/type_embeddings": "encoder/_type_embedding_layer/embeddings",
    "embeddings/layer_norm": "encoder/_embedding_norm_layer",
    "block_{i}/attention/query": "encoder/_transformer_layers/{i}/_attention_layer/_query_dense",
    "block_{i}/attention/key": "encoder/_transformer_layers/{i}/_attention_layer/_key_dense",
    "block_{i}/attention/value": "encoder/_transformer_layers/{i}/_attention_layer/_value_dense",
    "block_{i}/attention/output": "encoder/_transformer_layers/{i}/_attention_layer/_output_dense",
    "block_{i}/attention_layer_norm": "encoder/_transformer_layers/{i}/_attention_layer_norm",
    "block_{i}/feed_forward/intermediate": "encoder/_transformer_layers/{i}/_intermediate_dense",
    "block_{i}/feed_forward/output": "encoder/_transformer_layers/{i}/_output_dense",
    "block_{i}/feed_forward_layer_norm": "encoder/_transformer_layers/{i}/_output_layer_norm",
    "pooler": "encoder/_pooler_layer",
    "masked_lm/dense": "masked_lm/dense",
    "masked_lm/layer_norm": "masked_lm/layer_norm",
    "masked_lm/bias": "masked_lm/output_bias.Sbias",  # TensorFlow writes a slash inside a name as .S
}
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ENCODER_ROOT = re.compile(r"^(model/)?(encoder_network|encoder|model)/(?=_|layer_with_weights-)")
_FIRST_LAYERS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)


def _garden_name(name: str) -> str | None:
    """The name under `Checkpoint(encoder=)`, from any name of the root; None for a name that is not a weight."""
    if not name.endswith(VALUE) or ".OPTIMIZER_SLOT" in name:
        return None
    name = name.removesuffix(VALUE)
    if name.startswith(("optimizer/", "save_counter", "global_step", "train_")):
        return None
    name = _ENCODER_ROOT.sub("encoder/", name)
    name = re.sub(r"^model/masked_lm/", "masked_lm/", name)
    # The older functional encoder numbers its layers: four for the embeddings, then the blocks, then the pooler.
    if numbered := re.match(r"encoder/layer_with_weights-(\d+)/(.*)", name):
        number, rest = int(numbered.group(1)), numbered.group(2)
        if number < len(_FIRST_LAYERS):
            return f"encoder/{_FIRST_LAYERS[number]}/{rest}"
        if rest in ("kernel", "bias"):
            return f"encoder/_pooler_layer/{rest}"
        return f"encoder/_transformer_layers/{number - len(_FIRST_LAYERS)}/{rest}"
    return name


def _save_model_garden(checkpoint: Checkpoint, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    """An object graph with the edges of `tf.train.Checkpoint(encoder=...)`: Model Garden matches edges."""
    import tensorflow as tf

    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        *parents, leaf = (part.replace(".S", "/") for part in name.split("/"))
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = array
    if "masked_lm" in tree:
        tree["masked_lm"]["embedding_table"] = tensors[_GARDEN_TABLE["embeddings/word_embeddings"]]

    def tracked(node: Any) -> Any:
        if isinstance(node, dict):
            return tf.train.Checkpoint(**{name: tracked(child) for name, child in node.items()})
        return tf.Variable(node)

    _save_beside(checkpoint, folder)
    with file_errors(), tf.device("CPU"):
        tracked(tree).write(str(folder / TENSORFLOW_NAME))


# -----------------------------------------------------------------------------------------------------------
# Formats


def _format(name: str, names: Names, save: Callable[..., None], *, files: str, object_graph: bool) -> Format:
    return Format(
        name=name,
        names=(names,),
        keeps=ORIGINAL,
        files=files,
        find=functools.partial(_find, object_graph=object_graph),
        load_config=load_config,
        load_tokenizer=read_tokenizer,
        open=functools.partial(open_variables, names=names),
        save=save,
    )


GOOGLE = _format(
    "google",
    slashed(
        table=_GOOGLE_TABLE,
        layouts=_OUTPUT_WEIGHTS,
        current=lambda name: None if _NO_WEIGHT.search(name) else name,
    ),
    _save_google,
    files="one *.index of variable names",
    object_graph=False,
)
MODEL_GARDEN = _format(
    "model-garden",
    slashed(
        table=_GARDEN_TABLE,
        layouts=EINSUM,
        current=_garden_name,
        duplicates={"masked_lm/embedding_table": "embeddings/word_embeddings"},
    ),
    _save_model_garden,
    files="one *.index of an object graph",
    object_graph=True,
)
