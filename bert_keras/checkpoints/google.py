"""The TensorFlow 1 checkpoints of google-research/bert: variables by name, bert_config.json, vocab.txt."""

import functools
import pathlib
import re

import numpy as np

from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer, write_tokenizer
from bert_keras.checkpoints.tensorflow_checkpoint import (
    TENSORFLOW_NAME,
    find_prefix,
    load_config,
    open_checkpoint,
)
from bert_keras.checkpoints.variables import ORIGINAL, TRANSPOSED, Checkpoint, Format, Names, slashed
from bert_keras.io.files import file_errors, write_json

_TABLE = {
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


def _current(name: str) -> str | None:
    return None if _NO_WEIGHT.search(name) else name


def _save(checkpoint: Checkpoint, names: Names, tensors: dict[str, np.ndarray], folder: pathlib.Path) -> None:
    import tensorflow as tf

    write_json(folder / "bert_config.json", checkpoint.config.to_google())
    write_tokenizer(checkpoint, folder)
    order = sorted(tensors)
    with file_errors(), tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(folder / TENSORFLOW_NAME),
            tensor_names=order,
            shape_and_slices=[""] * len(order),
            tensors=[tf.constant(tensors[name]) for name in order],
        )


GOOGLE = Format(
    name="google",
    names=(slashed(table=_TABLE, layouts=_OUTPUT_WEIGHTS, current=_current),),
    keeps=ORIGINAL,
    files="one *.index of variable names",
    find=functools.partial(find_prefix, object_graph=False),
    load_config=load_config,
    load_tokenizer=read_tokenizer,
    open=open_checkpoint,
    save=_save,
)
