"""The cases of peers.py, the sizes of their models, and how far outputs may be apart."""

import dataclasses

from peer_work.work import Case

CASES = {
    case.name: case
    for case in (
        Case(name="encoder-1x128", kind="encoder", batch=1),
        Case(name="encoder-8x128", kind="encoder", batch=8),
        Case(name="encoder-32x128", kind="encoder"),
        Case(name="encoder-base-8x128", kind="encoder", size="base", batch=8, default=False),
        Case(name="finetune-32x128", kind="finetune"),
        Case(name="finetune-base-8x128", kind="finetune", size="base", batch=8, steps=1, default=False),
        Case(name="finetune-sst2", kind="finetune", texts=True, steps=8, rounds=3),
        Case(name="pretrain-32x128", kind="pretrain", steps=1),
        Case(name="xla-finetune-32x128", kind="xla-finetune", steps=1),
        Case(name="xla-pretrain-32x128", kind="xla-pretrain", steps=1),
        Case(name="serving-1", kind="serving", batch=1),
        Case(name="serving-32", kind="serving"),
        Case(name="answers", kind="answers", batch=4, length=384),
        Case(name="features", kind="features"),
        Case(name="vectors-1000", kind="vectors", narrow=False),
        Case(name="pairs-64", kind="pairs", batch=64, steps=4, narrow=False),
        Case(name="search-100000", kind="search", batch=100_000, narrow=False),
        Case(name="tokenize", kind="tokenize", narrow=False),
        Case(name="byte-bpe", kind="byte-bpe", characters=600_000, narrow=False),
        Case(name="instances", kind="instances", characters=480_000_000, narrow=False, rounds=2),
        Case(name="import", kind="import", rounds=2, narrow=False),
        Case(name="start", kind="start", batch=1, rounds=2, narrow=False),
        Case(name="memory-8x128", kind="memory", batch=8, steps=2, rounds=1),
        Case(name="memory-base-8x128", kind="memory", size="base", batch=8, steps=2, rounds=1),
    )
}
_WIDTH = {"hidden_size": 384, "num_heads": 12, "intermediate_size": 1536}  # of MiniLM
LAYERS = (1, 2, 4, 8, 16)
SIZES = {
    "tiny": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64},
    "minilm": {**_WIDTH, "num_layers": 6},
    "base": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "intermediate_size": 3072},
    **{f"{layers}-layers": {**_WIDTH, "num_layers": layers} for layers in LAYERS},
}
WITHOUT_WEIGHTS = ("tokenize", "byte-bpe", "instances", "import")  # kinds
# On max |difference|, relative to the larger of 1 and max |ours|, by precision.
BOUNDS = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
# The kinds with ready features, whose rows may be as short as one wants.
READY = ("encoder", "finetune", "pretrain", "xla-finetune", "xla-pretrain", "memory")
COUNTS = 0.1  # on the numbers of instances, whose random draws differ


def default_cases(precision: str) -> list[Case]:
    """The cases that run unless cases are named. In a narrow format, those that a format changes."""
    return [case for case in CASES.values() if case.default and (case.narrow or precision == "float32")]


def smallest(case: Case) -> Case:
    """The case on a tiny model, two rows and little text: it shows that it runs, not how fast."""
    length = 16 if case.kind in READY else 96
    return dataclasses.replace(
        case, size="tiny", batch=min(case.batch, 2), length=length, steps=1, characters=20_000, rounds=1
    )


def encoder_gflop(case: Case, sizes: dict[str, int]) -> float:
    """10^9 operations in an encoder's products, for one batch."""
    width, tokens = sizes["hidden_size"], case.batch * case.length
    a_token = 8 * width**2 + 4 * width * sizes["intermediate_size"] + 4 * case.length * width
    return sizes["num_layers"] * tokens * a_token / 1e9
