"""WordPiece from TensorFlow's own ops beside TensorFlow Text's: the time of the same lines, in turns, and equal ids.

    python benchmarks/text_ops.py --vocab vocab.txt --text corpus.txt [--cased] [--batch 32 256 2048] [--repeats 7]

Each repeat times both, one after the other, over all batches of lines; the ratio is that of one repeat, and the table has its
median and range. Both must give equal ids and offsets, or the script ends with 1.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf  # noqa: E402

from bert_keras import load_tokenizer  # noqa: E402
from bert_keras.text.rules import TEXT_OPS  # noqa: E402


def seconds(function, batches: list[tf.Tensor]) -> float:
    """The time of one pass over all batches."""
    begun = time.perf_counter()
    for batch in batches:
        function(batch)
    return time.perf_counter() - begun


def main() -> None:
    """Prints a line for each size of batches and each function."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--text", required=True, help="one text a line, UTF-8")
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256, 2048])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    lines = pathlib.Path(args.text).read_bytes().splitlines()[: args.lines]
    made = {name: load_tokenizer(args.vocab, lower_case=not args.cased, text_ops=name) for name in TEXT_OPS}
    wanted, found = (one.tokenize_with_offsets(tf.constant(lines)) for one in made.values())
    if any(first.to_list() != second.to_list() for first, second in zip(wanted, found, strict=True)):
        sys.exit("the ids or the offsets differ")
    print(f"{len(lines):,} lines, {wanted[0].values.shape[0]:,} tokens: ids and offsets are equal")
    for size in args.batch:
        batches = [tf.constant(lines[i : i + size]) for i in range(0, len(lines), size)]
        for method in ("tokenize", "tokenize_with_offsets"):
            functions = [getattr(one, method) for one in made.values()]
            for function in functions:
                seconds(function, batches[:3])  # traces
            pairs = [[seconds(function, batches) for function in functions] for _ in range(args.repeats)]
            ratios = [core / text for text, core in pairs]
            text, core = (len(lines) / statistics.median(column) for column in zip(*pairs, strict=True))
            print(
                f"{method}, batches of {size:,}: {text:,.0f} lines/s with {TEXT_OPS[0]}, {core:,.0f} with {TEXT_OPS[1]}: "
                f"{statistics.median(ratios):.2f} times the time ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
