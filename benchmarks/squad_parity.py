"""Compares the answers of a SQuAD 1.1 run with those of google-research/bert's run_squad.py, from the same weights.

    python benchmarks/squad_parity.py --run runs/squad --data dev-v1.1.json --original FOLDER

FOLDER holds `bert/`, the package that `pip download --no-deps bert-tensorflow==1.0.4` fetches, unpacked. Its code reads the file,
cuts the windows and chooses the answers; the run computes the logits. Prints both scores and every answer that differs.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import types
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.tasks.batches import predict
from bert_keras.tasks.metrics import answer_scores
from bert_keras.tasks.runs.run_folder import Run, load_run

BATCH = 16


def original(folder: str) -> tuple[Any, Any]:
    """Google's run_squad and tokenization modules: TensorFlow 1 code, run with `tf.compat.v1`."""
    sys.path.insert(0, folder)
    contrib = types.ModuleType("tensorflow.contrib")
    for name in ("layers", "cluster_resolver", "tpu", "data"):
        module = types.ModuleType(f"tensorflow.contrib.{name}")
        setattr(contrib, name, module)
        sys.modules[module.__name__] = module
    here = sys.modules["tensorflow"]
    sys.modules |= {"tensorflow": tf.compat.v1, "tensorflow.contrib": contrib}
    from bert import run_squad, tokenization

    sys.modules["tensorflow"] = here
    tf.compat.v1.flags.FLAGS(["run_squad"], known_only=True)
    run_squad.FLAGS.version_2_with_negative = run_squad.FLAGS.verbose_logging = False
    return run_squad, tokenization


def original_answers(run: Run, *, data: str, folder: str) -> tuple[dict[str, str], int]:
    """Answers by question id, and the number of windows."""
    run_squad, tokenization = original(folder)
    examples = run_squad.read_squad_examples(data, is_training=False)
    tokenizer = tokenization.FullTokenizer(
        vocab_file=str(run.path / "vocab.txt"), do_lower_case=run.preprocess.tokenizer.lower_case
    )
    windows: list[Any] = []
    task = run.task
    settings = (run.preprocess.seq_length, task.doc_stride, task.max_query_length)
    run_squad.convert_examples_to_features(examples, tokenizer, *settings, False, windows.append)
    results = []
    for start in range(0, len(windows), BATCH):
        batch = windows[start : start + BATCH]
        columns = {INPUT_WORD_IDS: "input_ids", INPUT_MASK: "input_mask", INPUT_TYPE_IDS: "segment_ids"}
        inputs = {
            ours: np.array([getattr(w, theirs) for w in batch], "int32") for ours, theirs in columns.items()
        }
        for window, logits in zip(batch, run.model.predict_on_batch(inputs).tolist(), strict=True):
            results.append(run_squad.RawResult(window.unique_id, *logits))
    with tempfile.TemporaryDirectory() as place:
        answers, *rest = (str(pathlib.Path(place) / name) for name in ("answers", "nbest", "odds"))
        limits = (task.n_best, task.max_answer_length)
        lower = run.preprocess.tokenizer.lower_case
        run_squad.write_predictions(examples, windows, results, *limits, lower, answers, *rest)
        return json.loads(pathlib.Path(answers).read_text(encoding="utf-8")), len(windows)


def main() -> None:
    """Compares and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="a run of squad1.1")
    parser.add_argument("--data", required=True, help="a JSON file of SQuAD 1.1's form")
    parser.add_argument("--original", required=True, help="folder that holds google-research/bert's package")
    args = parser.parse_args()
    run = load_run(args.run, data=args.data)
    theirs, windows = original_answers(run, data=args.data, folder=args.original)
    predictions, raw = predict(run.task, run.preprocess, run.model, run.task.examples("validation"))
    ids = [id_.decode() for id_ in raw["id"]]
    ours = {id_: answer.decode() for id_, answer in zip(ids, predictions["answer"], strict=True)}
    golds = [json.loads(answers) for answers in raw["answers"]]
    for name, answers in (("ours", ours), ("run_squad.py", theirs)):
        exact, f1 = answer_scores([answers[id_] for id_ in ids], golds, unanswerable=False)
        print(f"{name}: EM {100 * exact.mean():.4f}, F1 {100 * f1.mean():.4f}")
    differing = [id_ for id_ in ids if ours[id_] != theirs[id_]]
    print(f"{len(differing)} of {len(ids)} answers differ, over {windows} windows")
    for id_ in differing:
        print(f"  {id_}: {ours[id_]!r}, {theirs[id_]!r}")


if __name__ == "__main__":
    main()
