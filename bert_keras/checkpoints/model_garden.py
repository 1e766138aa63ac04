"""The TensorFlow 2 checkpoints of Model Garden: variables by their path in an object graph, bert_config.json, vocab.txt."""

import functools
import pathlib
import re
from typing import Any

import numpy as np

from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.tensorflow_checkpoint import (
    TENSORFLOW_NAME,
    find_prefix,
    load_config,
    open_checkpoint,
)
from bert_keras.checkpoints.variables import EINSUM, ORIGINAL, Checkpoint, Format, Names, slashed
from bert_keras.io.files import file_errors, write_json

_TABLE = {
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
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_ENCODER_ROOT = re.compile(r"^(model/)?(encoder_network|encoder|model)/(?=_|layer_with_weights-)")
_FIRST_LAYERS = (
    "_embedding_layer",
    "_position_embedding_layer",
    "_type_embedding_layer",
    "_embedding_norm_layer",
)


def _current(name: str) -> str | None:
    """The name under `Checkpoint(encoder=)`, from any name of the root; None for a name that is not a weight."""
    if not name.endswith(_VALUE) or ".OPTIMIZER_SLOT" in name:
        return None
    name = name.removesuffix(_VALUE)
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


def _save(checkpoint: Checkpoint, names: Names, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
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
        tree["masked_lm"]["embedding_table"] = tensors[_TABLE["embeddings/word_embeddings"]]

    def tracked(node: Any) -> Any:
        if isinstance(node, dict):
            return tf.train.Checkpoint(**{name: tracked(child) for name, child in node.items()})
        return tf.Variable(node)

    write_json(folder / "bert_config.json", checkpoint.config.to_google())
    write_tokenizer(checkpoint, folder)
    with file_errors(), tf.device("CPU"):
        tracked(tree).write(str(folder / TENSORFLOW_NAME))


MODEL_GARDEN = Format(
    name="model-garden",
    names=(
        slashed(
            table=_TABLE,
            layouts=EINSUM,
            current=_current,
            duplicates={"masked_lm/embedding_table": "embeddings/word_embeddings"},
        ),
    ),
    keeps=ORIGINAL,
    files="one *.index of an object graph",
    find=functools.partial(find_prefix, object_graph=True),
    load_config=load_config,
    load_tokenizer=read_tokenizer,
    open=open_checkpoint,
    save=_save,
)
