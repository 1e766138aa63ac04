"""The rows of Table 7: the encoder's outputs that are combined into a vector.

Source: Devlin et al. 2019, Table 7.
"""

from typing import NamedTuple

from bert_keras.errors import BertKerasError


class Layers(NamedTuple):
    """A choice of the encoder's outputs [embedding_output, *encoder_outputs] to combine into one vector.

    needs: the least number of blocks in the encoder
    mixed: True for a weighted sum with learned weights; False concatenates
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
    """The indices of a row's layers among an encoder's outputs: 0 is the embeddings, n is block n.

    Raises ValueError for an unknown name, and for an encoder with too few blocks.
    """
    if name not in LAYERS:
        raise BertKerasError(f"layers is {name!r}; give one of {', '.join(LAYERS)}.")
    if num_layers < LAYERS[name].needs:
        raise BertKerasError(
            f"{name} needs {LAYERS[name].needs} blocks and the encoder has {num_layers}; choose other layers."
        )
    return tuple(range(num_layers + 1))[LAYERS[name].chosen]
