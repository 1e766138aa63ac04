"""Precisions: the number formats that a model computes in, as Keras' dtype policies. No TensorFlow, no Keras.

A training in bfloat16 or float16 keeps its weights in float32 and computes in the narrow format ("mixed_bfloat16"); an inference
keeps the weights in it too ("bfloat16"). Norms, losses, BiLSTMs and logits are float32 in both. Only the masked LM's product with
the vocabulary is narrow, and its logits are rounded to the narrow format.
"""

import pathlib
import platform

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
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return None
    try:
        lines = CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # another system than Linux
        return None
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), None)
    return None if flags is None else not _INSTRUCTIONS[precision].isdisjoint(flags.split())


def slowness(precision: str, *, accelerated: bool) -> list[str]:
    """A line of warning if the processor has no instructions for this format, in a list; else an empty list.

    accelerated: True where a GPU or TPU computes
    """
    if accelerated or is_fast(precision) is not False:
        return []
    return [
        f"warning: this processor has no {precision} instructions; {precision} may be slower than float32"
    ]
