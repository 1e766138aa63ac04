"""Checkpoints of random weights, and the checks that tests of checkpoints share."""

import dataclasses
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints import FORMATS
from bert_keras.checkpoints.checkpoint import Checkpoint, head_shapes, variable_shapes
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.text.vocabulary import Vocabulary

# Keras saves its own variables by a call that numpy 2 warns of.
saves_with_keras = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

GOLDEN = Path(__file__).parent / "golden" / "variables_tiny.json"


PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "a", "b", "\u2028", "é", "##s")


SIZES = {"vocab_size": 13, "hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 12}
TINY = BertConfig(**SIZES, max_positions=10, type_vocab_size=3)


def random_checkpoint(
    config: BertConfig = TINY, *, heads: tuple[str, ...] = ("masked_lm", "next_sentence")
) -> Checkpoint:
    """Every variable drawn at random, so that no two tensors and no two rows are alike."""
    rng = np.random.default_rng(7)
    known = head_shapes(config).items()
    shapes = variable_shapes(config) | {name: shape for name, shape in known if name.split("/")[0] in heads}
    tensors = {
        name: rng.standard_normal([size or 5 for size in shape]).astype("float32")
        for name, shape in shapes.items()
    }
    vocabulary = Vocabulary(tokens=PIECES, lower_case=False)
    return Checkpoint(config=config, tensors=tensors, vocabulary=vocabulary)


def with_vocabulary(checkpoint: Checkpoint, **fields) -> Checkpoint:
    """The checkpoint with other fields of its vocabulary."""
    return dataclasses.replace(checkpoint, vocabulary=checkpoint.vocabulary._replace(**fields))


def assert_same(given: Checkpoint, wanted: Checkpoint) -> None:
    assert given.config == wanted.config
    assert sorted(given.tensors) == sorted(wanted.tensors)
    for name, tensor in wanted.tensors.items():
        assert given.tensors[name].dtype == tensor.dtype, name
        assert given.tensors[name].tobytes() == tensor.tobytes(), name
    assert given.vocabulary.tokens == wanted.vocabulary.tokens
    assert given.unknown == ()


# The differences of each kind of model from BERT.
ERF = {"activation": "gelu_erf"}
KINDS = {
    "bert": {},
    "albert": {"embedding_size": 4, "share_layers": True, "classifier_dropout": 0.1},
    "electra": {"embedding_size": 4} | ERF,
    "roberta": {"position_offset": 2, "type_vocab_size": 1, "norm_epsilon": 1e-5} | ERF,
    "distilbert": {"type_vocab_size": 0, "pooler_activation": "relu", "classifier_dropout": 0.2} | ERF,
    "openai-gpt": {
        "type_vocab_size": 0,
        "causal": True,
        "embedding_norm": False,
        "plain_heads": True,
        "norm_epsilon": 1e-5,
    },
    "bert_keras": {"causal": True, "embedding_size": 4},
}


def safetensors_folder(path: Path, tensors: dict, config: BertConfig = TINY, **more) -> Path:
    from safetensors.numpy import save_file

    path.mkdir(exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(config.to_hugging_face() | more))
    return path


def their_tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    rows = {row.ours: row for row in FORMATS["hugging-face"].names_for(checkpoint).rows(checkpoint.config)}
    return {
        rows[name].theirs: rows[name].to_theirs(tensor, checkpoint.config)
        for name, tensor in checkpoint.tensors.items()
    }


def refused(
    message: str, call: Callable, *args, error: type[Exception] = BertKerasError, named: str = "", **kwargs
) -> None:
    """The call raises an error of one line, not too long, with this message (a pattern) and this text."""
    with pytest.raises(error, match=message) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    del caught  # else the circle of the error and this frame keeps what the call held, such as a socket
    assert "\n" not in text and len(text) < 3000 and named in text, text


def peak(call: Callable, *args, **kwargs) -> int:
    """Bytes that Python allocated at most while the call ran."""
    tracemalloc.start()
    try:
        call(*args, **kwargs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
