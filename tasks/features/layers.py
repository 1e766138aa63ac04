"""The rows of Table 7: which outputs of an encoder make a vector.

Source: Devlin et al. 2019, sec. 5.3 and Table 7.
"""

from typing import NamedTuple

from bert_keras.errors import BertKerasError


class Layers(NamedTuple):
    """Which of an encoder's outputs [embedding_output, *encoder_outputs] are read, and how they become one vector.

    needs: the blocks that an encoder must have
    mixed: a weighted sum with learned weights; else side by side
    """

    chosen: slice
    needs: int
    mixed: bool = False


# Table 7, row by row.
LAYERS = {
    "embeddings": Layers(slice(0, 1), 0),
    "second_to_last": Layers(slice(-2, -1), 2),
    "last": Layers(slice(-1, None), 1),
    "weighted_sum_last_four": Layers(slice(-4, None), 4, mixed=True),
    "concat_last_four": Layers(slice(-4, None), 4),
    "weighted_sum_all": Layers(slice(1, None), 1, mixed=True),
}


def places_of(name: str, *, num_layers: int) -> tuple[int, ...]:
    """The places of a row of LAYERS among an encoder's outputs: 0 the embeddings, n the nth block.

    Raises ValueError on another name, and on an encoder with fewer blocks than the row needs.
    """
    if name not in LAYERS:
        raise BertKerasError(f"layers are {name!r}; wanted one of {', '.join(LAYERS)}.")
    if num_layers < LAYERS[name].needs:
        raise BertKerasError(
            f"{name} needs {LAYERS[name].needs} blocks and the encoder has {num_layers}; choose other layers."
        )
    return tuple(range(num_layers + 1))[LAYERS[name].chosen]
