"""Fine-tuning: a task, a checkpoint and settings in; a run directory out, and back in.

A run directory is `config.json`, `vocab.txt`, `model.safetensors` (Hugging Face's names), `tokenizer_config.json`, `task.json`
(the task, its labels and preprocessing), `results.json` (measures and history), `logs/` for TensorBoard and, where asked for,
`checkpoints/` (tasks/training/saver.py).
"""

import dataclasses
import functools
import gc
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import LIMITS, BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.features import POOLED_OUTPUT
from bert_keras.json_files import MAX_JSON_BYTES, OBJECT, one_of, read_bounded, read_object, typed, whole
from bert_keras.optimization import SCHEDULES, AdamW
from bert_keras.paths import path_of
from bert_keras.text.preprocessing import TRUNCATION, Preprocessor
from bert_keras.text.tokenizer import Tokenizer
from tasks.choice import Swag
from tasks.files import write_json
from tasks.fill_mask import FillMask
from tasks.glue.task import Glue
from tasks.ner.conll import Conll
from tasks.squad.task import Squad
from tasks.task import Hparams, Source, Task, cardinality, count, dataset, predict, take_examples
from tasks.training.saver import (
    LOGS,
    RESULTS_FILE,
    TASK_FILE,
    Saver,
    check_save_every,
    digest_of_examples,
    digest_of_tensors,
    prepare_output,
)

# What task.json's "kind" names. A new task is a line here.
TASKS: dict[str, type[Task]] = {task.kind: task for task in (Glue, Squad, Swag, Conll, FillMask)}

STRATEGIES = ("one", "mirrored", "tpu")
# Not every checkpoint has them: what was trained on the masked LM alone has no pooler, and a BiLSTM is put on afterwards.
NEW_PARTS = ("pooler", "bilstm")


def open_task(name: str, source: Source | None, **options: Any) -> Task:
    """The task of that name. Raises ValueError on another name, or an option that the task has not."""
    task = next((task for task in TASKS.values() if name in task.names), None)
    if task is None:
        listed = ", ".join(name for task in TASKS.values() for name in task.names)
        raise BertKerasError(f"no task named {name!r}; the tasks are {listed}.")
    if unknown := [f"--{option.replace('_', '-')}" for option in options if option not in task.options]:
        raise BertKerasError(f"{', '.join(unknown)} says nothing to the task {name}; leave it out.")
    return task.open(name, source, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A trained task, ready to predict, evaluate or export."""

    task: Task
    preprocess: Preprocessor
    model: keras.Model
    path: pathlib.Path

    @property
    def encoder(self) -> BertEncoder:
        """The encoder inside the model."""
        return encoder_of(self.model)


@functools.cache  # a second one would number its collectives from 1 again and meet the first one's shapes
def _mirrored() -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def strategy(name: str) -> tf.distribute.Strategy:
    """The strategy of that name: one device, every GPU (or logical CPU) mirrored, or the TPU that TPU_NAME points to."""
    if name not in STRATEGIES:
        raise BertKerasError(f"strategy is {name!r}; wanted one of {', '.join(STRATEGIES)}.")
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        return _mirrored()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def rows_for(distribution: tf.distribute.Strategy, batch_size: int) -> int:
    """The number that must divide the rows of every batch: the replicas, or on a TPU the rows of a full batch.

    The batches of a TPU have one shape; its full batch is `batch_size`, rounded up to a multiple of the replicas.
    """
    replicas = distribution.num_replicas_in_sync
    if isinstance(distribution, tf.distribute.TPUStrategy):
        return -(-batch_size // replicas) * replicas
    return replicas


def differ_between_replicas(model: keras.Model) -> None:
    """Moves the seeds of dropout and other draws by each replica's number, for Keras starts all replicas with the same.

    Call it after anything that sets the seeds: a model's building, or its restoring, which reads those of the first replica.
    """
    for first, *others in seed_states(model):
        for number, copy in enumerate(others, 1):
            copy.assign(first + tf.constant([number, 0], first.dtype))


def seed_states(model: keras.Model) -> list[Sequence[tf.Variable]]:
    """The state of each generator of random numbers in a model, such as dropout's: a variable for each replica."""
    states = [variable.value for variable in model.variables if variable.name == "seed_generator_state"]
    return [getattr(state, "values", [state]) for state in states]


def encoder_of(model: keras.Model) -> BertEncoder:
    """The one BertEncoder in a task's model."""
    return next(layer for layer in model.layers if isinstance(layer, BertEncoder))


def heads_of(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a task's model that have weights and are not the encoder, by name."""
    return {
        layer.name: layer for layer in model.layers if layer.weights and not isinstance(layer, BertEncoder)
    }


def free_memory() -> None:
    """Lets go of the models and graphs that runs left behind."""
    keras.utils.clear_session()
    gc.collect()


def check_sizes(config: BertConfig, *, vocab_size: int, seq_length: int) -> None:
    """Raises ValueError where text could ask for an embedding row that the encoder has not."""
    if vocab_size > config.vocab_size:
        raise BertKerasError(
            f"the vocabulary has {vocab_size} tokens and the encoder {config.vocab_size} embedding rows; "
            "give the vocabulary that the checkpoint was trained with."
        )
    if seq_length > config.max_length:
        raise BertKerasError(
            f"seq_length is {seq_length} and the encoder has {config.max_length} positions; "
            f"wanted seq_length {config.max_length} or less."
        )


def check_labelled(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, split: str) -> None:
    """Raises ValueError where a split has no label to learn or to measure."""
    batches = dataset(task, preprocess, examples, batch_size=256)
    if not any(bool(tf.reduce_any(weights > 0)) for _, _, weights in batches):
        raise BertKerasError(
            f"no example in the {split} split of {task.name} has a label; give a labelled split."
        )


def save_weights(
    path: pathlib.Path,
    tokenizer: Tokenizer,
    encoder: BertEncoder,
    heads: Mapping[str, keras.layers.Layer],
    *,
    without: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> None:
    """An encoder with its heads, config and vocabulary. Raises OSError where the disk is full; what was there stays.

    without: parts that are left out, for nothing has trained them
    labels: what a classifier's logits stand for, in their order
    """
    checkpoint = checkpoints.collect(encoder.config, encoder, **heads)
    kept = {name: value for name, value in checkpoint.tensors.items() if name.split("/")[0] not in without}
    checkpoint = dataclasses.replace(checkpoint, tensors=kept, labels=tuple(labels) or None)
    checkpoint = checkpoints.with_tokenizer(checkpoint, tokenizer)
    checkpoints.write(checkpoint, path, format="hugging-face", overwrite=True)


def save_run(path: pathlib.Path, task: Task, preprocess: Preprocessor, model: keras.Model) -> None:
    """Weights, config, vocabulary and task.json. Raises OSError where the disk is full; what was there stays."""
    encoder, heads = encoder_of(model), heads_of(model)
    save_weights(path, preprocess.tokenizer, encoder, heads, labels=task.label_names)
    save_task(path, task, preprocess)


def save_task(path: pathlib.Path, task: Task, preprocess: Preprocessor) -> None:
    """The task.json of a run."""
    content = {"kind": task.kind, "task": task.to_json()}
    write_json(
        path / TASK_FILE, content | {"seq_length": preprocess.seq_length, "truncation": preprocess.truncation}
    )


def is_run(path: str | pathlib.Path) -> bool:
    """Whether a folder is a run. KerasHub's presets have a task.json too, which names a registered class."""
    file = path_of(path) / TASK_FILE
    return file.is_file() and b'"registered_name"' not in read_bounded(file, MAX_JSON_BYTES)


def load_run(path: str | pathlib.Path, *, data: str | pathlib.Path | None = None) -> Run:
    """The run that `finetune` left in a folder, with the task's examples in `data` (None: TensorFlow Datasets).

    Raises FileNotFoundError or ValueError, naming what is missing or wrong.
    """
    path = path_of(path)
    file = path / TASK_FILE
    if not is_run(path):
        raise MissingFileError(
            f"no {TASK_FILE} in {path}; give the folder that `bert-keras finetune --output` wrote."
        )
    kinds = {
        "kind": one_of(TASKS),
        "task": OBJECT,
        "seq_length": whole(1, LIMITS["max_positions"]),
        "truncation": one_of(TRUNCATION),
    }
    content = typed(read_object(file), kinds, where=f"{file} is not the {TASK_FILE} of a run", others=True)
    try:
        task = TASKS[content["kind"]].from_json(content["task"], data)
    except FileNotFoundError:  # of the data
        raise
    except BertKerasError as error:
        raise BertKerasError(f"{file} is not the {TASK_FILE} of a run: {error}") from error
    return run_of(task, path, seq_length=content["seq_length"], truncation=content["truncation"])


def run_of(
    task: Task,
    path: str | pathlib.Path,
    *,
    seq_length: int | None = None,
    truncation: str = "longest_first",
) -> Run:
    """The run of a task with the weights of a checkpoint as they are, its heads' among them.

    seq_length: in wordpieces; None takes all positions of the encoder

    Raises FileNotFoundError or ValueError, naming what is missing or wrong.
    """
    checkpoint = checkpoints.read(path)
    tokenizer = checkpoints.tokenizer_of(checkpoint)
    seq_length = checkpoint.config.max_length if seq_length is None else seq_length
    check_sizes(checkpoint.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    encoder = BertEncoder(checkpoint.config, outputs=task.outputs)
    # Nothing would train the pooler of a model that does not read it.
    encoder.pooler.trainable = POOLED_OUTPUT in task.outputs
    model = task.model(encoder)
    checkpoints.assign(checkpoint, encoder, **heads_of(model))
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, truncation=truncation, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=model, path=path_of(path))


class Ensemble(keras.Model):
    """The mean of several models' outputs."""

    def __init__(self, models: Sequence[keras.Model]) -> None:
        super().__init__(name="ensemble")
        self.members = list(models)
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = [member(inputs, training=training) for member in self.members]
        return keras.tree.map_structure(lambda *parts: sum(parts) / len(parts), *outputs)


def load_runs(paths: Sequence[str | pathlib.Path], *, data: str | pathlib.Path | None = None) -> Run:
    """One run, or several of one task as an ensemble: the mean of outputs and of what was chosen on dev splits.

    Raises as `load_run`, and ValueError where they differ in more than that.
    """
    runs = [load_run(path, data=data) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        if _reads(run) != _reads(first):
            raise BertKerasError(
                f"{run.path} differs from {first.path} in its task, labels or preprocessing; "
                "an ensemble takes runs that differ in their weights alone."
            )
    if len(runs) == 1:
        return first
    kept = [run.task.to_json() for run in runs]
    means = {name: statistics.fmean(one[name] for one in kept) for name in first.task.calibrated}
    task = type(first.task).from_json(kept[0] | means, data)
    return dataclasses.replace(first, task=task, model=Ensemble([run.model for run in runs]))


def _reads(run: Run) -> Any:
    """What must be equal in the runs of an ensemble."""
    tokenizer, task = run.preprocess.tokenizer, run.task
    return (
        (task.kind, {name: value for name, value in task.to_json().items() if name not in task.calibrated}),
        (run.preprocess.seq_length, run.preprocess.truncation),
        (tokenizer.digest, tokenizer.lower_case),
    )


def evaluate(run: Run, split: str, *, batch_size: int = 32) -> dict[str, float]:
    """The task's measures on one split, from what `decode` returns."""
    examples = run.task.examples(split)
    run.task.check(run.preprocess, examples)
    predictions, raw = predict(run.task, run.preprocess, run.model, examples, batch_size=batch_size)
    return dict(run.task.evaluate(predictions, raw))


class _Evaluate(keras.callbacks.Callback):
    """Measures the dev split after every epoch and keeps the best epoch's weights on disk.

    Raises ValueError at the first batch whose loss is not a number, before such weights are kept.
    """

    def __init__(self, run: Run, split: str, *, hparams: Hparams, log: Callable[[str], None]) -> None:
        super().__init__()
        self._run, self._split, self._hparams, self._log = run, split, hparams, log
        self.history: list[dict[str, float]] = []
        self.best: Sequence[Any] | None = None  # the value, and the epoch it was measured after

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise BertKerasError(
                f"the loss is {loss} after step {batch + 1} of epoch {len(self.history) + 1}; give a lower learning_rate."
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        run = self._run
        predictions, raw = predict(
            run.task,
            run.preprocess,
            run.model,
            run.task.examples(self._split),
            batch_size=self._hparams.batch_size,
        )
        measures = dict(run.task.evaluate(run.task.calibrate(predictions, raw), raw))
        logs = {} if logs is None else logs
        logs.update({f"val_{name}": value for name, value in measures.items()})
        self.history.append({name: float(value) for name, value in logs.items()})
        value = measures[self._run.task.measure]
        if self.best is None or value > self.best[0]:
            self.best = (value, epoch)
            save_run(self._run.path, self._run.task, self._run.preprocess, self._run.model)
        listed = ", ".join(f"{name} {value:.4f}" for name, value in measures.items())
        self._log(f"epoch {epoch + 1}/{self._hparams.epochs}: {listed}")


class GradualUnfreezing(keras.callbacks.Callback):
    """Epoch e, counted from 1, trains heads, pooler and the top e blocks; epoch L + 1 the embeddings too.

    For a model whose optimizer is `AdamW(gradual=True)`. Source: Howard and Ruder 2018, sec. 3.3.
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.model.optimizer.learn_to_depth(epoch + 1)


class _Learner(keras.Model):
    """A task's model that logs as `loss` the mean over all weights of an epoch.

    Keras weighs the mean of each batch by its rows, of which `pad_batches` adds some.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model.input, model.output, name=model.name)
        self._mean_loss = keras.metrics.Mean(name="loss")  # its value takes the place of Keras' own

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """The values to log, with this batch."""
        self._mean_loss.update_state(self.loss.call(y, y_pred), sample_weight)
        return self.get_metrics_result()


def _in_order_of(task: Task, source: checkpoints.Checkpoint, heads: Sequence[str]) -> checkpoints.Checkpoint:
    """The checkpoint with what its heads have for each label in the task's order.

    Raises ValueError where the checkpoint does not name the task's labels, in upper or lower case: its order is unknown then.
    """
    wanted, there = task.label_names, source.labels or ()
    if not wanted or not any(name.split("/")[0] in heads for name in source.tensors):  # `assign` says so
        return source
    places = {label.casefold(): place for place, label in enumerate(there)}
    order = [places.get(label.casefold(), -1) for label in wanted]
    if sorted(order) != list(range(len(there))):
        named = f"labels are {', '.join(there)} and" if there else "labels have no names;"
        convert = "" if source.format in ("", "hugging-face") else "convert it to hugging-face and "
        raise BertKerasError(
            f"the checkpoint's {named} those of {task.name} are {', '.join(wanted)}; leave keep_head out, or "
            f"{convert}name them in config.json's id2label as the task does, in the head's order."
        )
    tensors = {
        name: value[..., order]
        if name.split("/")[0] in heads and value.shape[-1] == len(order)  # else `assign` says so
        else value
        for name, value in source.tensors.items()
    }
    return dataclasses.replace(source, tensors=tensors, labels=tuple(wanted))


def _compiled_model(
    task: Task,
    source: checkpoints.Checkpoint,
    hparams: Hparams,
    *,
    total_steps: int,
    keep_head: bool,
    log: Callable[[str], None],
) -> keras.Model:
    """The task's model with the checkpoint's weights and BERT's optimizer; make it in the strategy's scope."""
    encoder = BertEncoder(source.config, outputs=task.outputs)
    model = _Learner(task.model(encoder))
    if source.tensors:
        heads = heads_of(model)
        if keep_head:
            ordered = _in_order_of(task, source, list(heads))
            log(str(checkpoints.assign(ordered, encoder, fresh=NEW_PARTS, **heads)))
        else:
            kept = heads if task.pretrained_head else {}
            log(str(checkpoints.assign(source, encoder, fresh=(*NEW_PARTS, *heads), **kept)))
    else:
        log("weights: random, no checkpoint was given")
    encoder.trainable = hparams.freeze != "encoder"
    if POOLED_OUTPUT not in task.outputs:  # without a gradient, Keras would warn
        encoder.pooler.trainable = False
    warmup_steps = int(total_steps * hparams.warmup_proportion)
    optimizer = AdamW(
        SCHEDULES[hparams.schedule](
            hparams.learning_rate, total_steps=total_steps, warmup_steps=warmup_steps
        ),
        weight_decay=hparams.weight_decay,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
        layer_decay=hparams.layer_decay,
        gradual=hparams.unfreeze == "gradual",
    )
    # Variables made inside `fit` would have it trace the step twice.
    optimizer.build(model.trainable_variables)
    # XLA is no gain on CPU, and fails under MirroredStrategy.
    model.compile(optimizer=optimizer, loss=task.loss(), jit_compile=False)
    return model


def finetune(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    hparams: Hparams,
    strategy_name: str = "one",
    dev_split: str | None = None,
    keep_head: bool = False,
    save_every: int | None = None,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains `task` from `checkpoint`, keeps the best epoch in the run directory `output`, returns what results.json says.

    Goes on with a run in `output` that was begun with `save_every` and the same settings, and did not finish.

    checkpoint: a path that `checkpoints.read` takes, or a Checkpoint; one without tensors starts at random
    dev_split: measured after every epoch; None takes the task's first validation split
    keep_head: start the head from the checkpoint too, as for one question-answering set after another; its labels are
        brought into the task's order, so it must name them (`id2label` in config.json)
    save_every: steps between two saves in `checkpoints/`, of three times the weights' size; None saves nothing
    log: receives lines for a person: what was loaded, what each epoch measured

    Raises ValueError or FileNotFoundError, before any training, on data, sizes or folders that cannot work.
    """
    output = path_of(output)
    check_save_every(save_every)
    dev_split = dev_split or next(iter(task.validation_splits), "validation")
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    keras.utils.set_random_seed(hparams.seed)  # of the examples drawn and of their order too
    dev = task.examples(dev_split)
    examples = take_examples(task.examples("train"), count=hparams.max_examples, seed=hparams.seed)
    example_count, dev_count = cardinality(examples), cardinality(dev)
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=True)
    for split, some in (("train", examples), (dev_split, dev)):
        check_labelled(task, preprocess, some, split)
        task.check(preprocess, some)

    distribution = strategy(strategy_name)
    fixed = strategy_name == "tpu"  # one shape
    batches = functools.partial(
        dataset,
        task,
        Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=not fixed),
        examples,
        batch_size=hparams.batch_size,
        seed=hparams.seed,
        multiple_of=rows_for(distribution, hparams.batch_size),
    )
    steps = count(batches())
    total_steps = steps * hparams.epochs
    with distribution.scope():
        model = _compiled_model(task, source, hparams, total_steps=total_steps, keep_head=keep_head, log=log)
    settings = save_every and {
        "task": {"kind": task.kind, **task.to_json()},
        **dataclasses.asdict(hparams),
        "train_examples": [example_count, digest_of_examples(task.examples("train"))],
        "dev_examples": [dev_count, digest_of_examples(dev)],
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "config": source.config.to_dict(),
        "checkpoint": digest_of_tensors(source.tensors),
        "keep_head": keep_head,
        "strategy": strategy_name,
    }
    prepare_output(output, settings=settings or None)
    log(
        f"training {task.name} on {example_count:,} examples, {total_steps:,} steps; dev {dev_count:,} examples"
    )
    run = Run(task=task, preprocess=preprocess, model=model, path=output)
    evaluation = _Evaluate(run, dev_split, hparams=hparams, log=log)
    callbacks = [evaluation, keras.callbacks.TensorBoard(output / LOGS, write_graph=False)]
    if hparams.unfreeze == "gradual":
        callbacks.append(GradualUnfreezing())
    began, done = time.monotonic(), 0
    if save_every:
        saver = Saver(output, model, every=save_every, remember=lambda: (evaluation.history, evaluation.best))
        callbacks.append(saver)
        if (memory := saver.restore()) is not None:
            evaluation.history, evaluation.best = memory
            done = saver.step
            log(f"going on with {output} at step {done:,} of {total_steps:,}")
    differ_between_replicas(model)
    while done < total_steps:  # once, or twice where an epoch was begun
        epoch, begun = divmod(done, steps)
        last = epoch + 1 if begun else hparams.epochs
        model.fit(
            # A new data set: the order of an epoch follows from the seed and how many came before.
            batches().repeat().skip(done),
            initial_epoch=epoch,
            epochs=last,
            steps_per_epoch=steps - begun,
            callbacks=callbacks,
            verbose=verbose,
            shuffle=False,
        )
        done = last * steps
    seconds = time.monotonic() - began

    assert evaluation.best is not None  # every epoch is measured
    best = evaluation.best[1]
    results = {
        "task": task.name,
        "measures": {
            name: value for name, value in evaluation.history[best].items() if name.startswith("val_")
        },
        "best_epoch": best + 1,
        "history": evaluation.history,
        "train_examples": example_count,
        "dev_examples": dev_count,
        "steps": total_steps,
        "seconds": round(seconds, 1),
        "strategy": strategy_name,
        "hparams": dataclasses.asdict(hparams),
    }
    write_json(output / RESULTS_FILE, results)
    return results
