"""Choices that settings make about an encoder: layers to combine into a vector, losses of vectors, and the number format.

No TensorFlow, no Keras.
"""

import pathlib
import platform
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


# Devlin et al. 2019, table 7, row by row.
LAYERS = {
    "embeddings": Layers(slice(0, 1), 0),
    "second_to_last": Layers(slice(-2, -1), 2),
    "last": Layers(slice(-1, None), 1),
    "weighted_sum_last_four": Layers(slice(-4, None), 4, mixed=True),
    "concat_last_four": Layers(slice(-4, None), 4),
    "weighted_sum_all": Layers(slice(1, None), 1, mixed=True),
}
MAX_DIGITS = 4  # of a layer's number
# The ways of pooling the tokens of a text into one vector, and the activations of a dense layer on it.
VECTOR_POOLINGS = ("mean", "cls", "max", "weighted_mean", "mean_sqrt_length", "last")
DENSE_ACTIVATIONS = ("tanh", "linear", "relu", "gelu_erf", "silu")

# The forms of data that vectors of texts learn from: queries with positives, and perhaps negatives; pairs with scores; texts with
# classes; texts with a teacher's vectors.
PAIRS, SCORES, CLASSES, VECTORS = "pairs", "scores", "classes", "vectors"


class VectorLoss(NamedTuple):
    """A loss of vectors of texts.

    form: of its data
    texts: the least number of texts in a row
    temperature: what it divides cosines by, by default; None for a loss that has none
    margin: by default; None for a loss that has none
    lowest, highest: the bounds of its scores
    """

    form: str
    texts: int
    temperature: float | None = None
    margin: float | None = None
    lowest: float = -float("inf")
    highest: float = float("inf")


# The first row of a form is its default. Temperatures and margins are those that sentence-transformers has by default.
VECTOR_LOSSES = {
    "multiple_negatives_ranking": VectorLoss(PAIRS, 2, temperature=0.05),
    "symmetric_ranking": VectorLoss(PAIRS, 2, temperature=0.05),
    "triplet": VectorLoss(PAIRS, 3, margin=5.0),
    "cosent": VectorLoss(SCORES, 2, temperature=0.05),
    "cosine_similarity": VectorLoss(SCORES, 2, lowest=-1.0, highest=1.0),
    "batch_hard_triplet": VectorLoss(CLASSES, 1, margin=5.0),
    "mean_squared_error": VectorLoss(VECTORS, 1),
}


def vector_loss_of(form: str) -> str:
    """The default loss of a form of data."""
    return next(name for name, row in VECTOR_LOSSES.items() if row.form == form)


def _numbers(layers: str) -> tuple[int, ...]:
    """The numbers in "9", "9,10,11,12" or "0+1+2". Raises BertKerasError for anything else."""
    parts = layers.split("+" if is_mixed(layers) else ",") if isinstance(layers, str) else []
    good = all(part.isascii() and part.isdecimal() and len(part) <= MAX_DIGITS for part in parts)
    if not parts or not good or len({*map(int, parts)}) < len(parts):
        raise BertKerasError(
            f"layers is {layers!r}; give one of {', '.join(LAYERS)}, or different numbers of layers such as 9 or 9,10,11,12 "
            "(0 is the embeddings), or 0+1+2 for their weighted sum."
        )
    return tuple(map(int, parts))


def check_layers(layers: str) -> None:
    """Raises BertKerasError unless `layers` is a row of LAYERS, or numbers."""
    if layers not in LAYERS:
        _numbers(layers)


def is_mixed(layers: str) -> bool:
    """True for a weighted sum with learned weights; other layers are concatenated."""
    return LAYERS[layers].mixed if layers in LAYERS else "+" in str(layers)


def places_of(layers: str, *, num_layers: int) -> tuple[int, ...]:
    """The indices of the chosen layers among an encoder's outputs: 0 is the embeddings, n is block n.

    layers: a row of LAYERS, or numbers, such as "9", "9,10,11,12" or "0+1+2", ELMo's weighted sum (Peters et al. 2018, eq. 1)

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


# -----------------------------------------------------------------------------------------------------------
# Precisions: the number formats that a model computes in, as Keras' dtype policies
#
# A training in bfloat16 or float16 keeps its weights in float32 and computes in the narrow format ("mixed_bfloat16"); an
# inference keeps the weights in it too ("bfloat16"). Norms, losses, BiLSTMs and logits are float32 in both. Only the masked LM's
# product with the vocabulary is narrow, and its logits are rounded to the narrow format.

PRECISIONS = ("float32", "bfloat16", "float16")
CPU_INFO = pathlib.Path("/proc/cpuinfo")
# Format -> the names in CPU_INFO of instructions that multiply matrices of it: x86-64, then 64-bit ARM.
_INSTRUCTIONS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def training_policy(precision: str) -> str:
    """The name of Keras' dtype policy for a training: its variables are float32."""
    return precision if precision == "float32" else f"mixed_{precision}"


def is_fast(precision: str) -> bool | None:
    """True where the processor has instructions for matrices of this format; None where it does not say."""
    if precision not in _INSTRUCTIONS:
        return True
    flags = cpu_flags()
    return None if flags is None else not _INSTRUCTIONS[precision].isdisjoint(flags)


def cpu_flags() -> list[str] | None:
    """The names in CPU_INFO of the processor's instructions; None where it does not say."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return None
    try:
        lines = CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return None
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else flags.split()


def slowness(precision: str, *, accelerated: bool) -> list[str]:
    """A line of warning if the processor has no instructions for this format, in a list; else an empty list.

    accelerated: True where a GPU or TPU computes
    """
    slow = not accelerated and is_fast(precision) is False
    warning = (
        f"warning: this processor has no {precision} instructions; {precision} may be slower than float32"
    )
    return [warning] if slow else []
