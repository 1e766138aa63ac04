"""Pre-training: text or files of instances in; a run directory for fine-tuning out.

    documents -> tasks/pretraining/instance_stream.py -------
                                                   |-> label(objectives) -> Pretrainer.fit -> RUN
    TFRecord files -> tasks/pretraining/records.py

A recipe is a row of RECIPES: its objectives, and settings of model, instances, masks and training in one flat namespace,
`SETTINGS`. The batch of a step depends only on the seed and the step.

RUN has `config.json`, `vocab.txt`, `model.safetensors` with the heads, `task.json` (fill-mask, if there is a masked LM head),
`results.json` (measures, baselines, history), `curves.png`, `logs/` for TensorBoard and `checkpoints/`
(tasks/training/saver.py). ELECTRA's generator is in the subfolder `generator/`, with the same files.
Source: Devlin et al. 2019, figure 1, sec. 3.1.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import WorkerRows
from bert_keras.io.folders import Folder
from bert_keras.io.own_code import digests_of
from bert_keras.optimization.objectives import Objective
from bert_keras.tasks.batches import set_row_count
from bert_keras.tasks.devices.strategies import check_micro_batch, divided, lines_about, rows_for, strategy
from bert_keras.tasks.devices.workers import SAME_IN_ALL, Workers, reports_lost_workers
from bert_keras.tasks.hparams import PretrainHparams
from bert_keras.tasks.pretraining.corpus import Document
from bert_keras.tasks.pretraining.instance_sources import (
    HELD_OUT_SEED,
    InstanceSource,
    RecordInstances,
    TextInstances,
    check_data,
    make_batches,
)
from bert_keras.tasks.pretraining.instance_stream import (
    Segmenter,
    check_segments_are_read,
    describe_segmenter,
)
from bert_keras.tasks.pretraining.model import (
    Start,
    assign,
    build_model,
    check_direction,
    check_saves,
    check_settings_are_read,
    grow,
    make_objectives,
    masks_whole_words,
    read_start,
    save,
    step_warnings,
)
from bert_keras.tasks.pretraining.monitor import PretrainingMonitor, RunInputs
from bert_keras.tasks.pretraining.processes import check_sendable, check_workers
from bert_keras.tasks.pretraining.recipes import FIELDS, Recipe
from bert_keras.tasks.pretraining.records import RecordFiles
from bert_keras.tasks.pretraining.samplers import sampler_of
from bert_keras.tasks.pretraining.unfinished import describe
from bert_keras.tasks.pretraining.vocabulary import describe_changes
from bert_keras.tasks.runs.run_folder import ORIGIN
from bert_keras.tasks.training.loop import RUN, check_save_every, train
from bert_keras.tasks.training.plan import Plan, Stage, origin_of
from bert_keras.tasks.training.task_model import check_sizes
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import Preprocessor, pad_batches
from bert_keras.text.tokenizer import Tokenizer

SAVE_EVERY = 1_000  # steps, unless a user gives another number
HELD_OUT_BATCH = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining:
    """Everything that decides the result of a pre-training.

    documents: a `Corpus`, or another iterable that can be read several times; or
    records: a folder from `write_records`, or TFRecord files; several for several phases, whose lengths are those of the records
    held_out: documents or records to evaluate on, or the fraction of the documents to hold out; records evaluate only phases of
        their length
    tokenizer: None takes the checkpoint's
    segment: splits a line into words, for whole-word masking
    checkpoint: initial weights with heads, and a generator from a run of ELECTRA; its configuration replaces the recipe's
    snapshots: steps after which the weights are also written to `snapshots/STEP`
    workers: processes that make instances of text; the result does not depend on their number. With more than one, a script must
        call `pretrain` under `if __name__ == "__main__"`
    """

    recipe: Recipe
    documents: Iterable[Document] | None = None
    records: RecordFiles | Sequence[RecordFiles] | None = None
    held_out: float | Iterable[Document] | RecordFiles | None = None
    tokenizer: Tokenizer | None = None
    segment: Segmenter | None = None
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None = None
    snapshots: Sequence[int] = ()
    strategy_name: str = "one"
    workers: int = 1


# -----------------------------------------------------------------------------------------------------------
# Checks before any data is read


def check_replicas(hparams: PretrainHparams, distribution: tf.distribute.Strategy) -> None:
    """Raises ValueError if the batch size is not a multiple of the number of replicas."""
    replicas = distribution.num_replicas_in_sync
    if hparams.batch_size % replicas:
        raise BertKerasError(
            f"batch_size is {hparams.batch_size} and there are {replicas} replicas; give a multiple of {replicas}."
        )


def _check_settings(given: Pretraining, distribution: tf.distribute.Strategy) -> None:
    hparams = given.recipe.hparams
    check_replicas(hparams, distribution)
    check_micro_batch(distribution, batch_size=hparams.batch_size, micro_batch=hparams.micro_batch)
    check_workers(given.workers)
    check_settings_are_read(given.recipe)
    if given.records is None:
        check_segments_are_read(given.segment, whole_word=masks_whole_words(given.recipe))
    if wrong := [step for step in given.snapshots if not 1 <= step <= hparams.steps]:
        raise BertKerasError(f"snapshots has {wrong[0]}; give steps from 1 to {hparams.steps}.")


def _tokenizer(given: Tokenizer | None, start: checkpoints.Checkpoint | None) -> tuple[Tokenizer, list[str]]:
    """The tokenizer for training, and lines about its words that the checkpoint's lacks.

    Raises ValueError if it is missing or contradicts the checkpoint's tokenizer.
    """
    if given is None:
        if start is None:
            raise BertKerasError("there is neither a tokenizer nor a checkpoint with one; give a vocabulary.")
        return checkpoints.tokenizer_of(start), []
    if start is None or not start.vocabulary.has_tokens:
        return given, []
    lower_case = start.vocabulary.lower_case
    own = checkpoints.tokenizer_of(start, lower_case=given.lower_case if lower_case is None else lower_case)
    lines = describe_changes(own, given)
    if given.lower_case != own.lower_case:
        raise BertKerasError(
            f"the checkpoint's tokenizer has lower_case={own.lower_case}, the given one {given.lower_case}; leave the "
            "vocabulary out."
        )
    return given, lines


# -----------------------------------------------------------------------------------------------------------
# Data


def _source(given: Pretraining, tokenizer: Tokenizer, config: BertConfig) -> InstanceSource:
    """The instances. Raises ValueError for data that is missing, and for lengths or a vocabulary over the encoder's."""
    if (given.documents is None) == (given.records is None):
        raise BertKerasError("give either documents or records.")

    def check_lengths(lengths: Iterable[int]) -> None:
        for length in lengths:
            check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=length)

    known: dict[str, Any] = {"recipe": given.recipe, "tokenizer": tokenizer, "vocab_size": config.vocab_size}
    if given.documents is not None:
        if given.workers > 1:
            check_sendable(segment=given.segment, tokenizer=tokenizer)
        check_lengths(length for length, _ in given.recipe.hparams.phases)  # before the whole text is read
        held_out: Any = given.held_out
        return TextInstances(given.documents, held_out, segment=given.segment, workers=given.workers, **known)
    if given.segment is not None:
        raise BertKerasError("segment applies only to text; give segment where the records are written.")
    if given.workers > 1:
        raise BertKerasError(f"workers is {given.workers}, which applies only to text; leave workers out.")
    records: Any = given.records
    sets = [records] if isinstance(records, str | pathlib.Path) else records
    source = RecordInstances(sets, given.held_out, **known)  # type: ignore[arg-type]
    check_lengths(phase.seq_length for phase in source.phases)
    return source


def _held_out(
    source: InstanceSource,
    phase: int,
    objectives: Sequence[Objective],
    *,
    hparams: PretrainHparams,
    multiple_of: int,
) -> tf.data.Dataset | None:
    """Evaluation batches, padded to a multiple of some number of rows; None if nothing is held out."""
    instances = source.held_out(phase)
    if instances is None:
        return None
    batches = make_batches(
        instances.take(hparams.held_out_instances),
        objectives=objectives,
        vocab_size=source.vocab_size,
        batch_size=HELD_OUT_BATCH,
        seed=HELD_OUT_SEED,
        drop_remainder=False,
    )
    batches = pad_batches(batches, multiple_of=multiple_of)
    if multiple_of >= HELD_OUT_BATCH:
        batches = set_row_count(batches, multiple_of)
    batches = batches.cache()
    count, totals = 0, dict.fromkeys((one.name for one in objectives), 0.0)
    with source.reading(None):
        for _, _, weights in batches:
            count += 1
            totals = {name: total + float(tf.reduce_sum(weights[name])) for name, total in totals.items()}
    if count and (nothing := [name for name, total in totals.items() if not total]):
        raise BertKerasError(
            f"the held-out data has nothing for {nothing[0]} to predict, such as [UNK] alone; hold out other text."
        )
    if not count:
        raise BertKerasError(
            "the held-out data gives no instances; hold out more documents, or documents with several lines, separated by "
            "blank lines."
        )
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _held_out_phases(
    source: InstanceSource,
    objectives: Sequence[Sequence[Objective]],
    *,
    hparams: PretrainHparams,
    multiple_of: int,
) -> list[tf.data.Dataset | None]:
    """The evaluation batches of every phase.

    Raises ValueError for records that an objective cannot use, and for a patience without data to watch.
    """
    for phase, predicted in enumerate(objectives):
        source.check_held_out(phase, objectives=predicted)
    held = [
        _held_out(source, phase, predicted, hparams=hparams, multiple_of=multiple_of)
        for phase, predicted in enumerate(objectives)
    ]
    if hparams.patience is not None and held[-1] is None:
        raise BertKerasError(
            f"patience is {hparams.patience} and the last phase has no held-out data; give held_out, or leave patience out."
        )
    return held


def _check_executions(
    source: InstanceSource, hparams: PretrainHparams, snapshots: Sequence[int], *, evaluates: bool
) -> None:
    """Raises ValueError unless executions of several steps end where the run logs, evaluates or writes a snapshot."""
    count = hparams.steps_per_execution
    steps = [("log_every", hparams.log_every), *(("snapshots", step) for step in snapshots)]
    steps += [("eval_every", hparams.eval_every)] if evaluates else []
    steps += [(f"the end of phase {i} at step", one.end) for i, one in enumerate(source.phases[:-1], start=1)]
    if uneven := [f"{name} {step}" for name, step in steps if step % count]:
        raise BertKerasError(
            f"steps_per_execution is {count}, and does not divide {', '.join(uneven)}; give a number that does, or change those."
        )


# -----------------------------------------------------------------------------------------------------------
# The plan, and the training


def plan_pretraining(given: Pretraining) -> Plan:
    """Reads and checks everything and builds the model, without training. Raises the errors of `pretrain`."""
    recipe, hparams = given.recipe, given.recipe.hparams
    distribution = strategy(given.strategy_name)
    _check_settings(given, distribution)
    start = read_start(given.checkpoint, recipe)
    origin = origin_of(start.checkpoint)
    tokenizer, lines = _tokenizer(given.tokenizer, start.checkpoint)
    config = recipe.config(vocab_size=tokenizer.vocab_size, source=start.config)
    if start.checkpoint is not None:
        config = dataclasses.replace(config, vocab_size=max(config.vocab_size, tokenizer.vocab_size))
        start, grown = grow(start, config, seed=hparams.seed)
        lines += grown
    check_direction(recipe, config)
    source = _source(given, tokenizer, config)
    lengths = [phase.seq_length for phase in source.phases]
    known: Any = {"pieces": Pieces.of(tokenizer), "config": config, "counts": source.token_counts}
    objectives = [make_objectives(recipe, length, **known) for length in lengths]
    lines += source.lines
    for phase, predicted in enumerate(objectives):
        lines += check_data(source, phase, objectives=predicted, batch_size=hparams.batch_size)
    lines += step_warnings(hparams)
    lines += lines_about(distribution, strategy_name=given.strategy_name, precision=hparams.precision)
    rows = rows_for(distribution, HELD_OUT_BATCH)
    held = _held_out_phases(source, objectives, hparams=hparams, multiple_of=rows)
    _check_executions(source, hparams, given.snapshots, evaluates=any(one is not None for one in held))
    fingerprint = _fingerprint(given, config, tokenizer, source.fingerprint, start)
    # Before the variables: workers that create them in other shapes fail, and the error names no setting.
    Workers(distribution).check_same(fingerprint, SAME_IN_ALL)
    keras.utils.set_random_seed(hparams.seed)
    with distribution.scope():
        model = build_model(recipe, config, objectives[0])
        check_saves(model)
        lines += assign(start, model)
    count = sum(math.prod(one.shape) for one in model.trainable_variables)
    lines.append(
        f"pre-training {count:,} parameters, {hparams.steps:,} steps of {hparams.batch_size} instances"
    )
    inputs = RunInputs(
        source=source,
        hparams=hparams,
        objectives=objectives,
        held_out=held,
        snapshots=given.snapshots,
        save=functools.partial(
            save,
            model=model,
            preprocess=Preprocessor(tokenizer, seq_length=lengths[-1]),
            sampler=recipe.sampling().sampler,
            start=start.checkpoint,
        ),
        describe=functools.partial(describe, model=model, tokenizer=tokenizer),
        about={"strategy": given.strategy_name, "settings": fingerprint, ORIGIN: origin},
    )
    stages = [_stage(inputs, number, distribution) for number in range(len(source.phases))]
    monitor = functools.partial(PretrainingMonitor, inputs=inputs)
    return Plan(fingerprint=fingerprint, model=model, stages=stages, monitor=monitor, lines=lines)


def _fingerprint(
    given: Pretraining, config: BertConfig, tokenizer: Tokenizer, data: Mapping[str, Any], start: Start
) -> dict[str, Any]:
    """Everything that decides the result, plain JSON. data: the fingerprint of the instances' source."""
    recipe, settings = given.recipe, dict[str, Any]()
    # The last has the max_predictions of all lengths.
    for kind in (recipe.masking(), recipe.sampling(), recipe.hparams):
        settings |= dataclasses.asdict(kind)
    del settings["seq_length"]
    fingerprint = {
        "objectives": recipe.names,
        **{name: value for name, value in recipe.all_settings.items() if name not in FIELDS},
        **dict(sorted(settings.items())),
        "config": config.to_dict(),
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "segmenter": given.segment is not None and describe_segmenter(given.segment),
        "snapshots": list(given.snapshots),
    }
    own = (*recipe.objectives, given.segment, sampler_of(recipe.sampling().sampler).sample)
    code = digests_of(*[one for one in own if callable(one)])
    fingerprint |= {"code": code} if code else {}
    fingerprint = dict(json.loads(json.dumps(fingerprint)))
    return {**fingerprint, **data, **start.fingerprint(), "strategy": given.strategy_name}


def fingerprint_of_pretraining(given: Pretraining, *, text: str) -> dict[str, Any]:
    """The fingerprint of a plan from random weights, with a fraction of the documents held out; it reads no text.

    text: the digest of the documents
    """
    tokenizer, _ = _tokenizer(given.tokenizer, None)
    config = given.recipe.config(vocab_size=tokenizer.vocab_size)
    data = {"text": text, "held_out": given.held_out}
    return _fingerprint(given, config, tokenizer, data, Start(None, {}))


def _stage(inputs: RunInputs, number: int, distribution: tf.distribute.Strategy) -> Stage:
    """The training of one phase."""
    source, hparams, phase = inputs.source, inputs.hparams, inputs.source.phases[number]

    def batches(done: int) -> Any:
        place, inputs.place = inputs.place, None
        # The save at the end of a phase has the place of that phase.
        return divided(distribution, functools.partial(part_of_batches, done, place if done else None))

    def part_of_batches(done: int, place: Sequence[int] | None, worker_rows: WorkerRows) -> tf.data.Dataset:
        return make_batches(
            source.train(number, skip=done * hparams.batch_size, place=place, worker_rows=worker_rows),
            objectives=inputs.objectives[number],
            vocab_size=source.vocab_size,
            batch_size=hparams.batch_size,
            seed=hparams.seed,
            start=phase.start + done,
            worker_rows=worker_rows,
        )

    return Stage(
        steps=phase.end - phase.start,
        name="phase",
        batches=batches,
        reading=functools.partial(source.reading, number),
    )


@reports_lost_workers()
def pretrain(
    given: Pretraining,
    output: str | pathlib.Path,
    *,
    save_every: int | None = None,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Pre-trains by a recipe, or resumes the unfinished run in `output`; returns the content of results.json.

    save_every: steps between two saves, for resuming, which stay when the training has finished; 0 saves nothing; None saves
        every SAVE_EVERY steps, and removes the saves at the end
    verbose: 0 for no lines inside phases, 1 for a progress bar, 2 for lines inside long phases; "auto" is 1 where a
        bar can be drawn, as in a notebook, else 2
    log: receives progress messages: each evaluation, each phase

    On one device with deterministic ops, equal arguments give bit-identical results, even if the run was interrupted.
    Ctrl-C stops after the running step and saves it; a second one stops at once. KeyboardInterrupt says where the same call
    resumes. Raises ValueError or FileNotFoundError, before any training, for wrong data, sizes, settings or folders.
    """
    check_save_every(save_every)
    Folder(output, RUN).check()
    how: Any = {"keep_saves": save_every is not None, "verbose": verbose, "log": log}
    every = SAVE_EVERY if save_every is None else save_every
    return train(plan_pretraining(given), output, save_every=every, **how)
