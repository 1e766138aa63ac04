"""Fine-tuning: a task, a checkpoint and settings in; a run directory out, and back in.

A run directory is `config.json`, `vocab.txt`, `model.safetensors` (Hugging Face's names), `tokenizer_config.json`, `task.json`
(the task, its labels and preprocessing), `results.json` (measures and history) and `logs/` for TensorBoard.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.features import POOLED_OUTPUT
from bert_keras.optimization import SCHEDULES, AdamW
from bert_keras.preprocessing import Preprocessor
from bert_keras.tokenizers import WordPiece
from tasks.conll import Conll
from tasks.glue import Glue
from tasks.squad import Squad
from tasks.swag import Swag
from tasks.task import Hparams, Task, cardinality, count, dataset, predict, take_examples

TASK_FILE, RESULTS_FILE, LOGS = "task.json", "results.json", "logs"

# What task.json's "kind" names. A new task is a line here.
TASKS: dict[str, type[Task]] = {Glue.kind: Glue, Squad.kind: Squad, Swag.kind: Swag, Conll.kind: Conll}

STRATEGIES = ("one", "mirrored", "tpu")


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
        raise ValueError(f"strategy is {name!r}; wanted one of {', '.join(STRATEGIES)}.")
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        return _mirrored()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def encoder_of(model: keras.Model) -> BertEncoder:
    """The one BertEncoder in a task's model."""
    return next(layer for layer in model.layers if isinstance(layer, BertEncoder))


def heads_of(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers of a task's model that have weights and are not the encoder, by name."""
    return {
        layer.name: layer for layer in model.layers if layer.weights and not isinstance(layer, BertEncoder)
    }


def check_sizes(config: BertConfig, *, vocab_size: int, seq_length: int) -> None:
    """Raises ValueError where text could ask for an embedding row that the encoder has not."""
    if vocab_size > config.vocab_size:
        raise ValueError(
            f"the vocabulary has {vocab_size} tokens and the encoder {config.vocab_size} embedding rows; "
            "give the vocabulary that the checkpoint was trained with."
        )
    if seq_length > config.max_length:
        raise ValueError(
            f"seq_length is {seq_length} and the encoder has {config.max_length} positions; "
            f"wanted seq_length {config.max_length} or less."
        )


def check_labelled(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, split: str) -> None:
    """Raises ValueError where a split has no label to learn or to measure."""
    batches = dataset(task, preprocess, examples, batch_size=256)
    if not any(bool(tf.reduce_any(weights > 0)) for _, _, weights in batches):
        raise ValueError(
            f"no example in the {split} split of {task.name} has a label; give a labelled split."
        )


def prepare_output(path: pathlib.Path) -> None:
    """Makes the folder and proves that it can be written. Raises ValueError where it holds a run or refuses a file."""
    if (path / RESULTS_FILE).exists() or (path / TASK_FILE).exists():
        raise ValueError(f"{path} already holds a run; give another folder, or remove this one first.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.write_bytes(b"0")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"cannot write to {path}: {error.strerror}; give a folder that can be written."
        ) from error


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes to a temporary name, then renames: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def save_run(path: pathlib.Path, task: Task, preprocess: Preprocessor, model: keras.Model) -> None:
    """Weights, config, vocabulary and task.json. Raises OSError where the disk is full; what was there stays."""
    encoder = encoder_of(model)
    tokenizer = preprocess.tokenizer
    assert isinstance(tokenizer, WordPiece)  # what vocab.txt and tokenizer_config.json can hold
    checkpoint = dataclasses.replace(
        checkpoints.collect(encoder.config, encoder, **heads_of(model)),
        vocabulary=tokenizer.vocabulary,
        lower_case=tokenizer.lower_case,
    )
    checkpoints.write(checkpoint, path, format="hugging-face", overwrite=True)
    content = {"kind": task.kind, "task": task.to_json()}
    write_json(
        path / TASK_FILE, content | {"seq_length": preprocess.seq_length, "truncation": preprocess.truncation}
    )


def load_run(
    path: str | pathlib.Path,
    *,
    data: str | pathlib.Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Run:
    """The run that `finetune` left in a folder, with the task's examples in `data` (None: TensorFlow Datasets).

    Raises FileNotFoundError or ValueError, naming what is missing or wrong.
    """
    path = pathlib.Path(path)
    file = path / TASK_FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"no {TASK_FILE} in {path}; give the folder that `bert-keras finetune --output` wrote."
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        task = TASKS[content["kind"]].from_json(content["task"], data)
        seq_length, truncation = content["seq_length"], content["truncation"]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} is not the {TASK_FILE} of a run: {type(error).__name__} {error}."
        ) from error
    checkpoint = checkpoints.read(path)
    tokenizer = checkpoints.tokenizer_of(checkpoint)
    check_sizes(checkpoint.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    encoder = BertEncoder(checkpoint.config, outputs=task.outputs)
    model = task.model(encoder)
    log(str(checkpoints.assign(checkpoint, encoder, **heads_of(model))))
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, truncation=truncation, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=model, path=path)


class Ensemble(keras.Model):
    """The mean of several models' outputs."""

    def __init__(self, models: Sequence[keras.Model]) -> None:
        super().__init__(name="ensemble")
        self.members = list(models)
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = [member(inputs, training=training) for member in self.members]
        return keras.tree.map_structure(lambda *parts: sum(parts) / len(parts), *outputs)


def load_runs(
    paths: Sequence[str | pathlib.Path],
    *,
    data: str | pathlib.Path | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Run:
    """One run, or several of one task as an ensemble: the mean of outputs and of what was chosen on dev splits.

    Raises as `load_run`, and ValueError where they differ in more than that.
    """
    runs = [load_run(path, data=data, log=log) for path in paths]
    first = runs[0]
    for run in runs[1:]:
        if _reads(run) != _reads(first):
            raise ValueError(
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
    assert isinstance(tokenizer, WordPiece)
    return (
        (task.kind, {name: value for name, value in task.to_json().items() if name not in task.calibrated}),
        (run.preprocess.seq_length, run.preprocess.truncation),
        (tokenizer.vocabulary, tokenizer.lower_case),
    )


def evaluate(
    run: Run, split: str, *, batch_size: int = 32, progress: Callable[[int], None] = lambda done: None
) -> dict[str, float]:
    """The task's measures on one split, from what `decode` returns."""
    predictions, raw = predict(
        run.task,
        run.preprocess,
        run.model,
        run.task.examples(split),
        batch_size=batch_size,
        progress=progress,
    )
    return dict(run.task.evaluate(predictions, raw))


class _Evaluate(keras.callbacks.Callback):
    """Measures the dev split after every epoch and keeps the best epoch's weights on disk.

    Raises ValueError at the first batch whose loss is not a number, before such weights are kept.
    """

    def __init__(self, run: Run, split: str, *, hparams: Hparams, log: Callable[[str], None]) -> None:
        super().__init__()
        self._run, self._split, self._hparams, self._log = run, split, hparams, log
        self.history: list[dict[str, float]] = []
        self.best: tuple[float, int] | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise ValueError(
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
    model = task.model(encoder)
    if source.tensors:
        # Not every checkpoint has a pooler: what was trained on the masked LM alone has none.
        heads = heads_of(model)
        if keep_head:
            log(str(checkpoints.assign(source, encoder, fresh=("pooler",), **heads)))
        else:
            log(str(checkpoints.assign(source, encoder, fresh=("pooler", *heads))))
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
    train_split: str = "train",
    dev_split: str = "validation",
    keep_head: bool = False,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains `task` from `checkpoint`, keeps the best epoch in the run directory `output`, returns what results.json says.

    checkpoint: a path that `checkpoints.read` takes, or a Checkpoint; one without tensors starts at random
    keep_head: start the head from the checkpoint too, as for one question-answering set after another
    log: receives lines for a person: what was loaded, what each epoch measured

    Raises ValueError or FileNotFoundError, before any training, on data, sizes or folders that cannot work.
    """
    output = pathlib.Path(output)
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    keras.utils.set_random_seed(hparams.seed)  # of the examples drawn and of their order too
    dev = task.examples(dev_split)
    examples = take_examples(task.examples(train_split), count=hparams.max_examples, seed=hparams.seed)
    example_count, dev_count = cardinality(examples), cardinality(dev)
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=True)
    check_labelled(task, preprocess, examples, train_split)
    check_labelled(task, preprocess, dev, dev_split)

    fixed = strategy_name == "tpu"  # one shape, and no partial batch
    batches = dataset(
        task,
        Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=not fixed),
        examples,
        batch_size=hparams.batch_size,
        seed=hparams.seed,
        drop_remainder=fixed,
    )
    steps = count(batches)
    batches = batches.apply(tf.data.experimental.assert_cardinality(steps))
    total_steps = steps * hparams.epochs
    if total_steps == 0:
        raise ValueError(
            f"{example_count} examples do not fill one batch of {hparams.batch_size}; give a smaller batch_size."
        )
    distribution = strategy(strategy_name)

    with distribution.scope():
        model = _compiled_model(task, source, hparams, total_steps=total_steps, keep_head=keep_head, log=log)
    prepare_output(output)
    log(
        f"training {task.name} on {example_count:,} examples, {total_steps:,} steps; dev {dev_count:,} examples"
    )
    run = Run(task=task, preprocess=preprocess, model=model, path=output)
    evaluation = _Evaluate(run, dev_split, hparams=hparams, log=log)
    callbacks = [evaluation, keras.callbacks.TensorBoard(output / LOGS, write_graph=False)]
    if hparams.unfreeze == "gradual":
        callbacks.append(GradualUnfreezing())
    began = time.monotonic()
    model.fit(batches, epochs=hparams.epochs, callbacks=callbacks, verbose=verbose, shuffle=False)
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
