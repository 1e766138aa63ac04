"""Which share of a batch is padding, in pre-training, fine-tuning and serving, and what a pre-training gains by leaving it out.

    python benchmarks/padding.py --text corpus.txt --vocab vocab.txt --checkpoint minilm --data sst2=glue/SST-2 ...

In: text for pre-training, and GLUE data sets. Out: two tables. The shares count tokens. The steps are those of a recipe with
MiniLM's sizes and no dropout, on equal batches; both forms take turns in one process, so a ratio hardly depends on other work
of the machine. The last column is the greatest difference between the weights of both after all steps.
"""

import argparse
import itertools
import pathlib
import statistics
import time
from collections.abc import Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf
from cases import SIZES

import bert_keras as bk
from bert_keras.config import BertConfig
from bert_keras.features import INPUT_MASK
from bert_keras.tasks.batches import featurized
from bert_keras.tasks.finetuning.finetune import plan_finetuning
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.instance_sources import make_batches
from bert_keras.tasks.pretraining.instance_stream import InstanceMaker, stream
from bert_keras.tasks.pretraining.model import make_objectives, objective_classes
from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.runs.task_types import open_task
from bert_keras.text.tokenizer import Tokenizer

LENGTHS, REQUESTS = (128, 512), (1, 8, 32)
SAMPLED = ("bert", "albert", "roberta", "electra")  # a recipe for each way to sample instances
TIMED = (("bert", 128, 16), ("bert", 512, 4), ("roberta", 512, 4))  # recipe, tokens, rows
ROUNDS, WARM_UP = 15, 3  # steps


def share(masks: Iterable[np.ndarray]) -> float:
    """The share of padding in batches of masks, int32 [B, S]."""
    places, tokens = 0, 0
    for mask in masks:
        places, tokens = places + mask.size, tokens + int(mask.sum())
    return 1 - tokens / places


def shares(tokenizer: Tokenizer, args: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yields the name of a kind of batches, and the share of padding in these batches."""
    for name, length in itertools.product(SAMPLED, LENGTHS):
        settings = RECIPES[name].sampling(length)
        made = stream(
            Corpus([args.text], lines="paragraph"),
            InstanceMaker(tokenizer=tokenizer, settings=settings),
            seed=1,
            epochs=1,
        )
        yield (
            f"pre-training, {settings.sampler}, {length} tokens",
            share(one[INPUT_MASK].numpy() for one in made.batch(256)),
        )
    for given in args.data:
        name, _, folder = given.partition("=")
        task = open_task(name, pathlib.Path(folder))
        plan = plan_finetuning(task, checkpoint=args.checkpoint, hparams=Hparams(max_examples=6400))
        (stage,) = plan.stages
        batches = stage.batches(0).take(stage.steps)  # one epoch
        yield (
            f"fine-tuning, {name}, 32 of like length in bytes",
            share(features[INPUT_MASK].numpy() for features, *_ in batches),
        )
        preprocess = bk.Preprocessor(tokenizer, seq_length=128, pad_to_longest=True)
        examples = task.examples("validation")
        for size in REQUESTS:
            rows = featurized(task, preprocess, examples.batch(size))
            yield (
                f"serving, {name}, {size} in the order of the file",
                share(features[INPUT_MASK].numpy() for features, *_ in rows),
            )


def pretrainer(name: str, length: int, *, tokenizer: Tokenizer, unpadded: bool) -> bk.Pretrainer:
    """A compiled model of a recipe, with the same weights in each call."""
    config = BertConfig(
        vocab_size=len(tokenizer.vocabulary),
        max_positions=max(LENGTHS),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **SIZES["minilm"],
    )
    objectives = make_objectives(RECIPES[name], length, pieces=bk.Pieces.of(tokenizer))
    keras.utils.set_random_seed(1)
    encoder = bk.BertEncoder(config, outputs=[*dict.fromkeys(one.reads for one in objectives)])
    encoder.unpadded = unpadded
    model = bk.Pretrainer(encoder, objectives)
    model.compile(bk.AdamW(1e-4))
    return model


def gain(name: str, length: int, rows: int, *, tokenizer: Tokenizer, text: str) -> tuple[float, float, float]:
    """The share of padding, the time of a step with padding over that without, and the difference of the weights."""
    recipe = RECIPES[name]
    instances = stream(
        Corpus([text], lines="paragraph"),
        InstanceMaker(tokenizer=tokenizer, settings=recipe.sampling(length)),
        seed=1,
    )
    objectives = make_objectives(recipe, length, pieces=bk.Pieces.of(tokenizer))
    assert len(objectives) == len(objective_classes(recipe))
    made = make_batches(
        instances, objectives=objectives, vocab_size=len(tokenizer.vocabulary), batch_size=rows, seed=1
    )
    batches = [*made.take(WARM_UP + ROUNDS)]
    models = [pretrainer(name, length, tokenizer=tokenizer, unpadded=one) for one in (False, True)]
    seconds: list[list[float]] = [[], []]
    for number, batch in enumerate(batches):
        for one in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            models[one].train_on_batch(*batch)
            seconds[one].append(time.perf_counter() - began)
    ratios = [padded / without for padded, without in zip(*(one[WARM_UP:] for one in seconds), strict=True)]
    apart = max(
        float(np.abs(np.subtract(a, b)).max())
        for a, b in zip(*(one.get_weights() for one in models), strict=True)
    )
    return share(batch[0][INPUT_MASK].numpy() for batch in batches), statistics.median(ratios), apart


def main() -> None:
    """Prints both tables, as Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="a text file with a paragraph on each line")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--data", nargs="*", default=[], metavar="TASK=FOLDER")
    args = parser.parse_args()
    tokenizer = bk.load_tokenizer(args.vocab, lower_case=True)
    print("| batches | padding |\n|---|---|")
    for what, found in shares(tokenizer, args):
        print(f"| {what} | {found:.1%} |", flush=True)
    print(
        "\n| pre-training step | padding | with it, over without | weights apart, at most |\n|---|---|---|---|"
    )
    for name, length, rows in TIMED:
        padding, ratio, apart = gain(name, length, rows, tokenizer=tokenizer, text=args.text)
        print(f"| `{name}`, {rows} x {length} | {padding:.1%} | {ratio:.2f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
