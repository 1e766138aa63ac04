"""Writes variables_tiny.json: names and shapes of all variables of the tiny encoder with every head, a variable a line.

    python tests/golden/make_variables_golden.py        (from the repository root)

The names stand in files that users keep: where this script changes the file, checkpoints of before are no longer read.
"""

import json
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import test_checkpoints  # noqa: E402

from bert_keras import checkpoints  # noqa: E402
from bert_keras.config import BertConfig  # noqa: E402
from bert_keras.model.encoder import BertEncoder  # noqa: E402


def main() -> None:
    config = BertConfig.named("tiny")
    encoder = BertEncoder(config)
    collected = checkpoints.collect(config, encoder, **test_checkpoints.make_heads(encoder))
    lines = [f"  {json.dumps(name)}: {list(tensor.shape)}" for name, tensor in collected.tensors.items()]
    test_checkpoints.GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{test_checkpoints.GOLDEN}: {len(lines)} variables")


if __name__ == "__main__":
    main()
