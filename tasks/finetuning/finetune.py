"""Fine-tuning: a task, a checkpoint and settings in; a plan out, or a run directory from `finetune`.

Source: Devlin et al. 2019, sec. 3.2.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError
from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT, WorkerRows
from bert_keras.io.folders import Folder
from bert_keras.io.own_code import digests_of
from bert_keras.model.choices import training_policy
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import FeatureEncoder, bilstm_of
from bert_keras.optimization.auxiliary import check_language_model, with_auxiliary_loss
from bert_keras.tasks.batches import count, dataset
from bert_keras.tasks.data.glue import CUSTOM
from bert_keras.tasks.devices.strategies import (
    check_micro_batch,
    divided,
    lines_about,
    padded_for,
    rows_for,
    strategy,
)
from bert_keras.tasks.devices.workers import SAME_IN_ALL, Workers, reports_lost_workers
from bert_keras.tasks.finetuning.examples import Examples, read_examples
from bert_keras.tasks.finetuning.finetuning_monitor import FineTuningMonitor
from bert_keras.tasks.frozen.row_vectors import (
    ModelOnVectors,
    RowVectors,
    check_feature_based,
    computed,
    folder_of,
    row_vectors,
)
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.own_head import assign, choose_head
from bert_keras.tasks.runs.run_folder import check_readable
from bert_keras.tasks.strings.text_batches import REGRESSION, Weighted, labels_in
from bert_keras.tasks.strings.text_data import CUT_SAMPLE, cut_texts
from bert_keras.tasks.strings.text_model import TextModel
from bert_keras.tasks.task import Task, check_stride
from bert_keras.tasks.training.loop import RUN, check_save_every, train
from bert_keras.tasks.training.plan import Plan, Stage, fingerprint_of_checkpoint, origin_of
from bert_keras.tasks.training.task_model import (
    check_saves,
    check_sizes,
    checked_model,
    network_of,
    optimizer_of,
    start_at_scores,
)
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer


def _new_parts(
    task: Task, encoder: BertEncoder, report: checkpoints.Report | None
) -> list[keras.layers.Layer]:
    """The parts of an encoder that the checkpoint lacks and the task reads: frozen, they would stay at random weights."""
    # Without a report all is random, as a baseline.
    names = {name.split("/")[0] for name in report.fresh} if report else ()
    read = {"bilstm": encoder.bilstm} | ({"pooler": encoder.pooler} if POOLED_OUTPUT in task.outputs else {})
    return [part for name, part in read.items() if name in names and part is not None]


def _text_model(
    task: Task,
    source: checkpoints.Checkpoint,
    preprocess: Preprocessor | None,
    hparams: Hparams,
    *,
    keep_head: bool | None,
    log: Callable[[str], None],
) -> TextModel:
    """The task's model with the checkpoint's weights."""
    more = (SEQUENCE_OUTPUT,) if hparams.lm_weight else ()
    encoder, network = network_of(task, source.config, dtype=training_policy(hparams.precision), more=more)
    model = TextModel(task, preprocess, network)
    if hparams.lm_weight:
        model.train_with(with_auxiliary_loss(network, encoder, weight=hparams.lm_weight))
    report = None
    if source.tensors:
        head = choose_head(task, source, keep_head=keep_head)
        report, _ = assign(head, encoder, model)
        log("\n".join([str(report), *([head.line] if head.line else [])]))
    else:
        log("weights: random")
    encoder.trainable = hparams.freeze != "encoder"
    encoder.rematerialize = hparams.rematerialize
    if hparams.lora_rank is not None:
        encoder.enable_lora(hparams.lora_rank)
    frozen = hparams.freeze is not None or hparams.lora_rank is not None
    for part in _new_parts(task, encoder, report) if frozen else ():
        part.trainable = True
        log(f"the checkpoint has no {part.name}: it is trained too")
    if POOLED_OUTPUT not in task.outputs:  # without a gradient, Keras would warn
        encoder.pooler.trainable = False
    return model


def _model_on_vectors(
    task: Task, source: checkpoints.Checkpoint, hparams: Hparams, *, log: Callable[[str], None]
) -> ModelOnVectors:
    """The task's model on a BiLSTM, without an encoder."""
    assert hparams.features is not None
    dtype = training_policy(hparams.precision)
    stand_in: Any = FeatureEncoder(source.config, dtype=dtype, **hparams.features)
    network = checked_model(task, stand_in)
    if not source.tensors:
        log("weights: random")
    if (bilstm := bilstm_of(network)) is not None:
        log(f"training on {bilstm.described}; the encoder is frozen")
    return ModelOnVectors(network)


def _compiled_model(
    task: Task,
    source: checkpoints.Checkpoint,
    hparams: Hparams,
    *,
    total_steps: int,
    keep_head: bool | None,
    log: Callable[[str], None],
    preprocess: Preprocessor | None = None,
) -> Any:
    """A TextModel, or with feature_layers a ModelOnVectors, with BERT's optimizer; call it in the strategy's scope."""
    model: Any
    if hparams.features is None:
        model = _text_model(task, source, preprocess, hparams, keep_head=keep_head, log=log)
    else:
        model = _model_on_vectors(task, source, hparams, log=log)
    optimizer = optimizer_of(hparams, total_steps=total_steps)
    # XLA is not faster on CPU, and fails under MirroredStrategy.
    model.compile(
        optimizer=optimizer,
        loss=task.loss(),
        micro_batch=hparams.micro_batch,
        steps_per_execution=hparams.steps_per_execution,
        jit_compile=False,
    )
    # In `fit`, it would trace the step twice. In float16, Keras has put an optimizer that scales the loss around ours.
    model.optimizer.build(model.trainable_variables)
    return model


def _checked_tokenizer(
    task: Task,
    source: checkpoints.Checkpoint,
    hparams: Hparams,
    *,
    keep_head: bool | None,
    feature_cache: str | pathlib.Path | None,
) -> Tokenizer:
    """The checkpoint's tokenizer. Raises BertKerasError unless checkpoint, task and settings fit together."""
    if source.tensors:
        task.check_checkpoint(source)
    elif keep_head:
        raise BertKerasError(
            "keep_head and random weights were given; a head is kept from a checkpoint's weights."
        )
    if hparams.lm_weight:
        check_language_model(source.config, given=f"lm_weight {hparams.lm_weight:g}")
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    check_stride(task, tokenizer, seq_length=hparams.seq_length)
    check_feature_based(task, source.config, hparams, keep_head=keep_head, feature_cache=feature_cache)
    return tokenizer


def _lines_about(
    task: Task, preprocess: Preprocessor, examples: Examples, hparams: Hparams, *, steps: int
) -> list[str]:
    """A warning about texts that are cut, if there are any, and the line that announces the training."""
    cut = cut_texts(task, preprocess, next(iter(examples.train.batch(CUT_SAMPLE))))
    counts = f"{examples.train_count:,} examples, {steps:,} steps; dev {examples.dev_count:,} examples"
    how = {
        hparams.precision: hparams.precision != "float32",
        f"micro-batches of {hparams.micro_batch}": hparams.micro_batch is not None,
        f"{hparams.steps_per_execution} steps at once": hparams.steps_per_execution > 1,
        "rematerialized blocks": hparams.rematerialize,
    }
    listed = ", ".join(words for words, applies in how.items() if applies)
    settings = f"; with {listed}" if listed else ""
    return [*([cut] if cut else []), f"training {task.name} on {counts}{settings}"]


def _stage(
    task: Task,
    preprocess: Preprocessor,
    examples: tf.data.Dataset,
    hparams: Hparams,
    distribution: tf.distribute.Strategy,
    vectors: RowVectors | None,
) -> Stage:
    """The only stage: all epochs, with the vectors of their rows."""
    weighted: Any = Weighted(task, hparams.class_weights, lambda: labels_in(examples))
    batches = functools.partial(
        dataset,
        weighted,
        padded_for(distribution, preprocess),
        examples,
        batch_size=hparams.batch_size,
        seed=hparams.seed,
        multiple_of=rows_for(distribution, hparams.batch_size),
    )

    def from_step(done: int) -> Any:
        def made(worker_rows: WorkerRows) -> tf.data.Dataset:
            # A new data set each time: an epoch's order depends on the seed and the number of epochs before it.
            those = batches(worker_rows=worker_rows).repeat().skip(done)
            return those if vectors is None else vectors.attached(those)

        return divided(distribution, made)

    return Stage(steps=count(batches()), epochs=hparams.epochs, batches=from_step)


def fingerprint_of_finetuning(
    task: Task,
    hparams: Hparams,
    *,
    start: Mapping[str, Any],
    examples: Mapping[str, Any],
    strategy_name: str,
    keep_head: bool | None = None,
) -> dict[str, Any]:
    """Everything that decides the result. start: of `fingerprint_of_checkpoint`; examples: `Examples.fingerprint`."""
    return {
        "task": {"kind": task.kind, **task.to_json()},
        **hparams.fingerprint(),
        "keep_head": keep_head,
        "strategy": strategy_name,
        **({"code": code} if (code := digests_of(type(task))) else {}),
        **examples,
        **start,
    }


def plan_finetuning(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    hparams: Hparams,
    strategy_name: str = "one",
    dev_split: str | None = None,
    keep_head: bool | None = None,
    feature_cache: str | pathlib.Path | None = None,
    output: str | pathlib.Path | None = None,
    report: bool = False,
) -> Plan:
    """Reads and checks everything and builds the model, without training. Arguments and errors as in `finetune`."""
    check_readable(task)
    distribution = strategy(strategy_name)
    check_micro_batch(distribution, batch_size=hparams.batch_size, micro_batch=hparams.micro_batch)
    task, source = task.started_from(checkpoints.source_of(checkpoint, seed=hparams.seed))
    tokenizer = _checked_tokenizer(task, source, hparams, keep_head=keep_head, feature_cache=feature_cache)
    keras.utils.set_random_seed(hparams.seed)  # also decides which examples are drawn, and their order
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=True)
    examples = read_examples(task, preprocess, hparams, dev_split)
    fingerprint = fingerprint_of_finetuning(
        task,
        hparams,
        start=fingerprint_of_checkpoint(source, tokenizer),
        examples=examples.fingerprint,
        strategy_name=strategy_name,
        keep_head=keep_head,
    )
    # Before the variables: workers that create them in other shapes fail, and the error names no setting.
    Workers(distribution).check_same(fingerprint, SAME_IN_ALL)
    lines = lines_about(distribution, strategy_name=strategy_name, precision=hparams.precision)
    vectors, prepared = None, {}
    if hparams.features is not None:
        vectors = row_vectors(source, task, preprocess, examples.train, examples.dev, hparams)
        prepared = {"prepared": functools.partial(computed, vectors, feature_cache)}
        if output is not None:
            vectors.check_room(folder_of(output, feature_cache))
    stage = _stage(task, preprocess, examples.train, hparams, distribution, vectors)
    build = functools.partial(
        _compiled_model, task, source, hparams, keep_head=keep_head, preprocess=preprocess
    )
    with distribution.scope():
        model = build(total_steps=stage.total, log=lines.append)
        check_saves(model.network)
        # GLUE's scores have the range that the paper learned.
        if task.problem_type == REGRESSION and task.name == CUSTOM:
            start_at_scores(model.network, labels_in(examples.train))
    lines += _lines_about(task, preprocess, examples, hparams, steps=stage.total)
    monitor = functools.partial(
        FineTuningMonitor,
        trained=model,
        task=task,
        preprocess=preprocess,
        examples=examples,
        hparams=hparams,
        strategy_name=strategy_name,
        origin=origin_of(source),
        vectors=vectors,
        report=report,
    )
    return Plan(
        fingerprint=fingerprint, model=model, stages=[stage], monitor=monitor, lines=lines, **prepared
    )


@reports_lost_workers()
def finetune(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    hparams: Hparams,
    strategy_name: str = "one",
    dev_split: str | None = None,
    keep_head: bool | None = None,
    feature_cache: str | pathlib.Path | None = None,
    save_every: int | None = None,
    report: bool = False,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains `task` from `checkpoint`, keeps the best epoch in the run directory `output`, returns the content of results.json.

    An unfinished run in `output` is resumed from its last save if everything else is the same.

    checkpoint: a path or a name for `checkpoints.read`, or a Checkpoint; without tensors, the weights start at random
    dev_split: evaluated after every epoch; None takes the task's first validation split
    keep_head: None starts with the checkpoint's own head where it has the task's kind and labels, which are reordered for the
        task; labels without names (LABEL_0) get an equal number of the task's. False starts a new head. True raises an error
        where None would start a new one
    feature_cache: with hparams.feature_layers, a folder that keeps the vectors for further trainings on the same examples, layers
        and checkpoint; None keeps them in `output` until the training is finished
    save_every: steps between two saves in `checkpoints/`, each three times the size of the weights; None saves at the end of each
        epoch, 0 never
    report: write the report of the dev split, of the kept epoch, to `report/` in the run, as `bert-keras finetune` does
    verbose: 0 for no lines inside epochs, 1 for a progress bar, 2 for lines inside long epochs; "auto" is 1 where a
        bar can be drawn, as in a notebook, else 2
    log: receives progress messages: the loaded weights, each epoch's loss and measures

    Ctrl-C stops after the running step and saves it; a second one stops at once. KeyboardInterrupt says from which step the same
    call resumes. Raises BertKerasError or MissingFileError, before any training, for wrong data, sizes or folders; LossDiverged.
    """
    check_save_every(save_every)
    Folder(output, RUN).check()
    plan = plan_finetuning(
        task,
        checkpoint=checkpoint,
        hparams=hparams,
        strategy_name=strategy_name,
        dev_split=dev_split,
        keep_head=keep_head,
        feature_cache=feature_cache,
        output=output,
        report=report,
    )
    how: Any = {"keep_saves": save_every is not None, "verbose": verbose, "log": log}
    return train(plan, output, save_every=save_every, **how)
