"""The choices of an encoder's layers to combine into a vector: the rows of Table 7, and layers by number.

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
MAX_DIGITS = 4  # of a layer's number


def _numbers(layers: str) -> tuple[int, ...]:
    """The numbers in "9" or "9,10,11,12". Raises BertKerasError for anything else."""
    parts = layers.split(",") if isinstance(layers, str) else []
    good = all(part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS for part in parts)
    if not parts or not good or len({*map(int, parts)}) < len(parts):
        raise BertKerasError(
            f"layers is {layers!r}; give one of {', '.join(LAYERS)}, or different numbers of layers such as 9 or 9,10,11,12 "
            "(0 is the embeddings)."
        )
    return tuple(map(int, parts))


def check_layers(layers: str) -> None:
    """Raises BertKerasError unless `layers` is a row of LAYERS, or numbers."""
    if layers not in LAYERS:
        _numbers(layers)


def is_mixed(layers: str) -> bool:
    """True for a weighted sum with learned weights; other layers are concatenated."""
    return layers in LAYERS and LAYERS[layers].mixed


def places_of(layers: str, *, num_layers: int) -> tuple[int, ...]:
    """The indices of the chosen layers among an encoder's outputs: 0 is the embeddings, n is block n.

    layers: a row of LAYERS, or numbers, such as "9" or "9,10,11,12"

    Raises BertKerasError for an unknown name, and for an encoder with too few blocks.
    """
    if layers not in LAYERS:
        numbers = _numbers(layers)
        if max(numbers) > num_layers:
            raise BertKerasError(
                f"layer {max(numbers)} was asked for and the encoder has {num_layers} blocks; choose other layers."
            )
        return numbers
    if num_layers < LAYERS[layers].needs:
        raise BertKerasError(
            f"{layers} needs {LAYERS[layers].needs} blocks and the encoder has {num_layers}; choose other layers."
        )
    return tuple(range(num_layers + 1))[LAYERS[layers].chosen]
