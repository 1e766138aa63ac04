"""The .h5 files that models of keras-bert and bert-for-tf2 saved under Keras 2, beside the bert_config.json of their checkpoint.

    keras-bert     Encoder-1-MultiHeadSelfAttention/Encoder-1-MultiHeadSelfAttention_Wq:0
    bert-for-tf2   bert/encoder/layer_0/attention/self/query/kernel:0

The end of a name decides, so that the names of a model around the encoder are free. Both compute Google's gelu. A dense layer of
the model, such as a classifier, has a name of its own: it is reported as unused.
"""

import contextlib
import functools
import pathlib
import re
from collections.abc import Iterator

from bert_keras.checkpoints.checkpoint import ORIGINAL, Format, Names, OpenFile, known_end, numbered, slashed
from bert_keras.checkpoints.hugging_face_tokenizer import read_tokenizer
from bert_keras.checkpoints.tensorflow import load_config
from bert_keras.checkpoints.tensorflow_classes import TF_H5, open_h5
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, first_names

_KERAS_HUB = "model.weights.h5"


def _keras_bert_table() -> dict[str, str]:
    attention, feed = "Encoder-{i}-MultiHeadSelfAttention", "Encoder-{i}-FeedForward"
    products = {
        "attention/query": f"{attention}_{{}}q",
        "attention/key": f"{attention}_{{}}k",
        "attention/value": f"{attention}_{{}}v",
        "attention/output": f"{attention}_{{}}o",
        "feed_forward/intermediate": f"{feed}_{{}}1",
        "feed_forward/output": f"{feed}_{{}}2",
    }
    letters = {"kernel": "W", "bias": "b"}
    return {
        "embeddings/word_embeddings": "Embedding-Token/embeddings",
        "embeddings/position_embeddings": "Embedding-Position/embeddings",
        "embeddings/type_embeddings": "Embedding-Segment/embeddings",
        "embeddings/layer_norm": "Embedding-Norm",
        "block_{i}/attention_layer_norm": f"{attention}-Norm",
        "block_{i}/feed_forward_layer_norm": f"{feed}-Norm",
        "pooler": "NSP-Dense",
        "masked_lm/dense": "MLM-Dense",
        "masked_lm/layer_norm": "MLM-Norm",
        "masked_lm/bias": "MLM-Sim/bias",
        "next_sentence/dense": "NSP",
    } | {
        f"block_{{i}}/{ours}/{part}": theirs.replace("{}", letter)
        for ours, theirs in products.items()
        for part, letter in letters.items()
    }


_BLOCK = "encoder/layer_{i}"
_TABLES = {
    "keras-bert": _keras_bert_table(),
    "bert-for-tf2": {
        "embeddings/word_embeddings": "word_embeddings/embeddings",
        "embeddings/position_embeddings": "position_embeddings/embeddings",
        "embeddings/type_embeddings": "token_type_embeddings/embeddings",
        "embeddings/layer_norm": "embeddings/LayerNorm",
        "block_{i}/attention/query": f"{_BLOCK}/attention/self/query",
        "block_{i}/attention/key": f"{_BLOCK}/attention/self/key",
        "block_{i}/attention/value": f"{_BLOCK}/attention/self/value",
        "block_{i}/attention/output": f"{_BLOCK}/attention/output/dense",
        "block_{i}/attention_layer_norm": f"{_BLOCK}/attention/output/LayerNorm",
        "block_{i}/feed_forward/intermediate": f"{_BLOCK}/intermediate",
        "block_{i}/feed_forward/output": f"{_BLOCK}/output/dense",
        "block_{i}/feed_forward_layer_norm": f"{_BLOCK}/output/LayerNorm",
    },
}


def _current(name: str, *, known: frozenset[str], first: int) -> str:
    """The table's name at the end of a dataset's path. first: the number of the first layer."""
    end = known_end(name.removesuffix(":0").split("/"), known)
    if end is None:
        return name
    return re.sub(r"(?<=Encoder-)\d+", lambda found: str(int(found[0]) - first), end)


def _names(table: dict[str, str], first: int) -> Names:
    parts = ("", "/kernel", "/bias", "/gamma", "/beta")
    known = frozenset(numbered(theirs + part) for theirs in table.values() for part in parts)
    return slashed(table=table, layouts={}, current=functools.partial(_current, known=known, first=first))


_NAMES = {name: _names(table, int(name == "keras-bert")) for name, table in _TABLES.items()}
_WORDS = {name: table["embeddings/word_embeddings"] for name, table in _TABLES.items()}


def _find(path: pathlib.Path) -> pathlib.Path | None:
    """A file of one of the two libraries, or the only one in a folder. Raises BertKerasError for a folder with several."""
    files = [path] if path.is_file() else sorted(path.glob("*.h5"))
    found = [file for file in files if file.name not in (TF_H5, _KERAS_HUB) and _library_of(file)]
    if len(found) > 1:
        raise BertKerasError(
            f"{path} has {first_names([file.name for file in found], 3)}; give one of the files."
        )
    return found[0] if found else None


def _library_of(file: pathlib.Path) -> str:
    """A key of _TABLES; "" for a file of another library, and for one that cannot be read."""
    if file.suffix != ".h5":
        return ""
    try:
        with open_h5(file) as (shapes, _):
            ends = {name for name, words in _WORDS.items() for raw in shapes if raw.endswith(f"/{words}:0")}
    except BertKerasError:
        return ""
    return next(iter(ends)) if len(ends) == 1 else ""


@contextlib.contextmanager
def _open(file: pathlib.Path, config: BertConfig) -> Iterator[OpenFile]:
    with open_h5(file) as (shapes, get):
        yield OpenFile(file=file, names=_NAMES[_library_of(file)], shapes=shapes, get=get)


KERAS_2 = Format(
    name="keras-2",
    names=tuple(_NAMES.values()),
    keeps=ORIGINAL,
    files="an .h5 of keras-bert or bert-for-tf2",
    find=_find,
    load_config=load_config,
    load_tokenizer=read_tokenizer,
    open=_open,
)
