"""Measures how fast one core makes instances, with and without Beam, and the memory for ten times the text.

    python benchmarks/instances.py --text corpus.txt --vocab vocab.txt

Every row is a process with one thread. Its rate counts CPU seconds, so that other load on the machine changes it little. Its
memory is the peak resident size less that before the text. The recipe is bert: 128 tokens, static masks, --passes over the
text, a file of paragraphs, two and twenty times. `plan` only measures its documents, as the first step of Beam does; `send` reads
them, groups them and pickles them, as the first process of `instances --workers N` does for the others; `stream` makes the
instances of an epoch for a training, without masks and files.
The last line applies the rates to the paper's corpus of 3.3 billion words (Devlin et al. 2019, sec. 3.1).
"""

import argparse
import hashlib
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

from machine import resident

from bert_keras.tasks.pretraining.instance_stream import InstanceMaker

WORDS = 3.3e9  # BooksCorpus and Wikipedia


def measure(kind: str, copies: int, args: argparse.Namespace, output: str) -> None:
    """Writes the instances of `copies` times the text; prints rate and memory."""
    import functools

    import tensorflow as tf

    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import Corpora, Corpus, corpus_ranges, document_sizes, shards
    from bert_keras.tasks.pretraining.instance_stream import SHARD_BYTES, SHARD_DOCUMENTS, stream
    from bert_keras.tasks.pretraining.recipes import RECIPES
    from bert_keras.tasks.pretraining.write_records import Job, write_records

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    corpora = Corpora((Corpus([args.text] * copies, lines="paragraph"),))
    recipe = RECIPES["bert"].changed(dupe_factor=args.passes)
    options = {
        "make_tokenizer": functools.partial(checkpoints.load_tokenizer, args.vocab, lower_case=True),
        "settings": recipe.sampling(128),
        "masking": recipe.masking(128),
        "segment": None,
        "seed": 12345,
        "compress": False,
    }
    if kind == "beam":
        from bert_keras.tasks.pretraining.beam_records import write_records_with_beam
    before, start = resident("VmRSS"), time.process_time()
    if kind == "plan":
        for source in corpus_ranges(corpora):
            document_sizes(corpora, source)
        instances = 0
    elif kind == "send":
        for task in enumerate(shards(corpora, size=SHARD_BYTES, least=SHARD_DOCUMENTS)):
            pickle.dumps(task)
        instances = 0
    elif kind == "stream":
        made = stream(
            corpora,
            InstanceMaker(tokenizer=options["make_tokenizer"](), settings=options["settings"]),
            seed=1,
            epochs=1,
        )
        instances = sum(int(batch.shape[0]) for batch in made.batch(1000).map(lambda one: one["input_mask"]))
    elif kind == "beam":
        instances = write_records_with_beam(corpora, Job(path=pathlib.Path(output), **options)).instances
    else:
        instances = write_records(corpora, Job(path=pathlib.Path(output), **options)).instances
    seconds = time.process_time() - start
    size = copies * pathlib.Path(args.text).stat().st_size
    found = {"seconds": seconds, "bytes": size, "instances": instances, "peak": resident("VmHWM") - before}
    print(json.dumps(found))


def digests(folder: str) -> list[str]:
    """SHA-256 of the files of a folder, in order of their names."""
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(pathlib.Path(folder).iterdir())]


def main() -> None:
    """Prints a row for each process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], int(args.measure[1]), args, args.measure[2])
        return
    print("process        text MB   instances   instances/s   text MB/s   peak MiB")
    with tempfile.TemporaryDirectory() as folder:
        kinds = (
            ("plan", 2),
            ("send", 2),
            ("local", 2),
            ("beam", 2),
            ("stream", 2),
            ("local", 20),
            ("stream", 20),
            ("beam", 20),
        )
        for kind, copies in kinds:
            output = f"{folder}/{kind}{copies}"
            command = [sys.executable, __file__, "--text", args.text, "--vocab", args.vocab]
            command += ["--passes", str(args.passes), "--measure", kind, str(copies), output]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{kind:6} {copies:>2} x  {found['bytes'] / 1e6:10.1f} {found['instances']:11,}"
                f" {found['instances'] / found['seconds']:13,.0f} {found['bytes'] / 1e6 / found['seconds']:11.2f}"
                f" {found['peak'] / 2**20:10.0f}",
                flush=True,
            )
        same = all(digests(f"{folder}/local{n}") == digests(f"{folder}/beam{n}") for n in (2, 20))
        written = sum(file.stat().st_size for file in pathlib.Path(f"{folder}/beam20").iterdir())
    print(f"the files are {'the same' if same else 'DIFFERENT'} with and without Beam")
    words = len(pathlib.Path(args.text).read_text(encoding="utf-8").split())
    more = WORDS / (20 * words)
    print(
        f"{WORDS:.1e} words are {more * found['bytes'] / 1e9:.1f} GB like this text: {args.passes} pass(es) give"
        f" {more * found['instances']:.3g} instances and {more * written / 1e9:,.0f} GB of files,"
        f" in {more * found['seconds'] / 3600:,.0f} core-hours with Beam"
    )


if __name__ == "__main__":
    main()
