"""Exchanges files of pre-training instances with Model Garden: its loader reads our files, and we read the files of its script.

    .venv-model-garden/bin/python benchmarks/model_garden_records.py --text corpus.txt --vocab vocab.txt

In: text with one sentence per line and a blank line between documents, and a WordPiece vocabulary. Out: the number of instances
that both readers read equally, one row per writer; the exit status is 1 if a number differs. The environment is that of
model_garden_parity.py, with tensorflow-datasets, importlib_resources and scikit-learn.
"""

import argparse
import functools
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping

import numpy as np
from official.nlp.data.pretrain_dataloader import BertPretrainDataConfig, BertPretrainDataLoader

from bert_keras.features import NEXT_SENTENCE_LABEL
from bert_keras.fields import Masking
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.records import read_records
from bert_keras.tasks.pretraining.write_records import Job, write_records
from bert_keras.text.wordpiece import WordPiece

SEQ_LENGTH, PREDICTIONS, BATCH = 128, 20, 16
THEIR_NAMES = {NEXT_SENTENCE_LABEL: "next_sentence_labels"}  # their names that differ from ours


def their_rows(files: str) -> Iterable[Mapping[str, np.ndarray]]:
    """Yields the instances of Model Garden's loader, one at a time."""
    config = BertPretrainDataConfig(
        input_path=files,
        global_batch_size=BATCH,
        is_training=False,
        drop_remainder=False,
        seq_length=SEQ_LENGTH,
        max_predictions_per_seq=PREDICTIONS,
    )
    return BertPretrainDataLoader(config).load().unbatch().as_numpy_iterator()


def compare(source: pathlib.Path, files: str) -> tuple[int, int]:
    """The number of instances, and the number of equal instances."""
    total = equal = 0
    for ours, theirs in zip(read_records(source).as_numpy_iterator(), their_rows(files), strict=True):
        total += 1
        equal += all(
            np.array_equal(np.ravel(value), np.ravel(theirs[THEIR_NAMES.get(name, name)]))
            for name, value in ours.items()
        )
    return total, equal


def main() -> int:
    """Writes and reads both ways and prints the table; returns 1 if something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--vocab", type=pathlib.Path, required=True)
    args = parser.parse_args()
    alike = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ours, theirs = folder / "ours", folder / "theirs"
        write_records(
            Corpus(args.text),
            Job(
                path=ours,
                make_tokenizer=functools.partial(WordPiece.from_file, str(args.vocab)),
                settings=Sampling(seq_length=SEQ_LENGTH),
                masking=Masking(max_predictions=PREDICTIONS),
            ),
        )
        theirs.mkdir()
        command = [sys.executable, "-m", "official.nlp.data.create_pretraining_data"]
        command += [f"--input_file={args.text}", f"--output_file={theirs / 'instances.tfrecord'}"]
        command += [f"--vocab_file={args.vocab}", f"--max_seq_length={SEQ_LENGTH}", "--dupe_factor=1"]
        command += [f"--max_predictions_per_seq={PREDICTIONS}"]
        subprocess.run(command, check=True, capture_output=True)
        for writer, source, files in (
            ("ours", ours, str(ours / "*.tfrecord")),
            ("Model Garden", theirs / "instances.tfrecord", str(theirs / "*.tfrecord")),
        ):
            total, equal = compare(source, files)
            print(f"written by {writer:12} {total:,} instances, {equal:,} equal in both readers")
            alike &= 0 < total == equal
    return int(not alike)


if __name__ == "__main__":
    sys.exit(main())
