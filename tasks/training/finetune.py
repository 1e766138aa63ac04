"""Fine-tuning: a task, a checkpoint and settings in; a plan out, or a run directory from `finetune`."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.errors import BertKerasError, LossDiverged
from bert_keras.features import POOLED_OUTPUT
from bert_keras.files import whole_file
from bert_keras.precision import slowness, training_policy
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.tokenizer import Tokenizer
from tasks.batches import Part, cardinality, count, dataset, hold_out, predictor, take_examples
from tasks.cut_texts import CUT_SAMPLE, cut_texts
from tasks.features.frozen import bilstm_of
from tasks.features.token_vectors import RowVectors
from tasks.folders import Folder
from tasks.settings import Hparams
from tasks.task import Task, check_stride
from tasks.text_model import TextModel
from tasks.training.card import CARD, run_card
from tasks.training.feature_based import check_feature_based, computed, folder_of, vectors_of
from tasks.training.identity import digest_of_examples, identity_of_checkpoint
from tasks.training.loop import LOGS, RUN, check_save_every, train
from tasks.training.optimizer import optimizer_of
from tasks.training.plan import Monitor, Plan, Stage
from tasks.training.progress import counter
from tasks.training.run_folder import (
    FILES,
    ORIGIN,
    check_sizes,
    digests,
    heads_of,
    network_of,
    save_run,
)
from tasks.training.strategies import divided, is_accelerated, rows_for, strategy
from tasks.training.workers import Workers, reports_lost_workers

# Checkpoints may lack them: pre-training with only the masked LM trains no pooler, and a BiLSTM is added later.
NEW_PARTS = ("pooler", "bilstm")
DEGENERATE = "degenerate"  # a key in results.json: the reason why the kept epoch did not learn, or null
MIX = "mix"  # a key in results.json: the learned weights of a weighted sum of layers


def check_labelled(task: Task, preprocess: Preprocessor, examples: tf.data.Dataset, split: str) -> None:
    """Raises BertKerasError if a split has no labelled example."""
    batches = dataset(task, preprocess, examples, batch_size=256)
    if not any(bool(tf.reduce_any(weights > 0)) for _, _, weights in batches):
        raise BertKerasError(
            f"no example in the {split} split of {task.name} has a label; give a labelled split."
        )


class GradualUnfreezing(keras.callbacks.Callback):
    """Epoch e, counted from 1, trains heads, pooler and the top e blocks; epoch L + 1 also trains the embeddings.

    For a model whose optimizer is `AdamW(gradual=True)`. Source: Howard and Ruder 2018, sec. 3.3.
    """

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        optimizer.learn_to_depth(epoch + 1)


class FineTuningMonitor(Monitor):
    """Measures the dev split after every epoch and keeps the best epoch's weights on disk."""

    def __init__(
        self,
        path: pathlib.Path,
        *,
        trained: TextModel,
        examples: "_Examples",
        hparams: Hparams,
        strategy_name: str,
        origin: Mapping[str, str],
        log: Callable[[str], None],
        workers: Workers,
        vectors: RowVectors | None = None,
    ) -> None:
        super().__init__()
        self._workers = workers
        self._trained, self._run = trained, trained.as_run(path)
        self._examples, self._hparams = examples, hparams
        self._path, self._strategy_name, self._origin, self._log = path, strategy_name, origin, log
        answers = self._run.model if vectors is None else trained.on_vectors(vectors)
        self._predict = predictor(self._run.task, self._run.preprocess, answers)
        self.others = [keras.callbacks.TensorBoard(path / LOGS, write_graph=False)]
        if hparams.unfreeze == "gradual":
            self.others.append(GradualUnfreezing())
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None  # value, epoch from 0, SHA-256 of the files of that epoch

    def memory(self) -> Any:
        return self.history, self.best

    def recall(self, memory: Any) -> None:
        self.history, self.best = memory
        if self.best is not None:
            self._check_kept(lambda name: (self._path / name).is_file())

    @property
    def stopped(self) -> bool:
        patience = self._hparams.patience
        if patience is None or self.best is None or len(self.history) == self._hparams.epochs:
            return False
        return len(self.history) - 1 - self.best["epoch"] >= patience

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        run = self._run
        predictions, raw = self._predict(
            self._examples.dev,
            batch_size=self._hparams.batch_size,
            progress=counter("evaluating", self._examples.dev_count, log=self._log),
        )
        task, predictions = run.task.calibrate(predictions, raw)
        measures = self._workers.from_chief(lambda: _plain(dict(task.evaluate(predictions, raw))))
        if bad := [f"{name} is {value}" for name, value in measures.items() if not math.isfinite(value)]:
            raise LossDiverged(bad[0], step=int(self.model.optimizer.iterations.numpy()))
        logs = {} if logs is None else logs
        logs.update({f"val_{name}": value for name, value in measures.items()})
        self.history.append(_plain(logs))
        value = measures[task.measure]
        if self.best is None or value > self.best["value"] or self._hparams.keep == "last":
            save_run(self._path, task, run.preprocess, run.model)
            why = task.degenerate(predictions, raw)
            self.best = {
                "value": float(value),
                "epoch": epoch,
                FILES: digests(self._path),
                DEGENERATE: why,
            }
            if (bilstm := bilstm_of(run.model)) is not None and bilstm.weights_of_layers is not None:
                self.best[MIX] = bilstm.weights_of_layers
        if self.stopped:
            self.model.stop_training = True
            self._log(f"stopped early: {self._hparams.patience} epochs without a better {task.measure}")

    def results(self) -> Mapping[str, Any]:
        assert self.best is not None  # every epoch is measured
        kept, wanted = digests(self._path), self.best[FILES]
        self._check_kept(lambda name: kept.get(name) == wanted[name])
        best = self.history[self.best["epoch"]]
        measures = {name: value for name, value in best.items() if name.startswith("val_")}
        results = {
            "task": self._run.task.name,
            ORIGIN: dict(self._origin),
            "measures": measures,
            "best_epoch": self.best["epoch"] + 1,
            "stopped_early": self._stopped_early(),
            "history": self.history,
            "train_examples": self._examples.train_count,
            "dev_examples": self._examples.dev_count,
            "strategy": self._strategy_name,
            "hparams": self._hparams.identity(),
            FILES: self.best[FILES],
        }
        results |= {name: self.best[name] for name in (DEGENERATE, MIX) if name in self.best}
        with whole_file(self._path / CARD) as temporary:
            temporary.write_text(run_card(self._run, results), encoding="utf-8")
        return results

    def _stopped_early(self) -> dict[str, int] | None:
        """The last epoch, from 1, and its step, if that is not the last of the settings."""
        if not self.stopped:
            return None
        return {"epoch": len(self.history), "step": int(self._trained.optimizer.iterations.numpy())}

    def _check_kept(self, is_kept: Callable[[str], bool]) -> None:
        """Raises BertKerasError if a file of the best epoch is missing or was changed."""
        assert self.best is not None
        for name in self.best[FILES]:
            if not is_kept(name):
                raise BertKerasError(
                    f"{self._path / name}, part of the best epoch, is missing or was changed; remove {self._path} and "
                    "train again."
                )


def _plain(measures: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in measures.items()}


def _in_order_of(task: Task, source: checkpoints.Checkpoint, heads: Sequence[str]) -> checkpoints.Checkpoint:
    """The checkpoint, with the label rows of its heads in the task's order.

    Raises ValueError unless the checkpoint names the task's labels, in upper or lower case; else their order is unknown.
    """
    wanted, there = task.label_names, source.labels or ()
    if not wanted or not any(
        name.split("/")[0] in heads for name in source.tensors
    ):  # `assign` raises an error
        return source
    places = {label.casefold(): place for place, label in enumerate(there)}
    order = [places.get(label.casefold(), -1) for label in wanted]
    if sorted(order) != list(range(len(there))):
        named = f"labels are {', '.join(there)} and" if there else "labels have no names;"
        convert = "" if source.format in ("", "hugging-face") else "convert it to hugging-face and "
        raise BertKerasError(
            f"the checkpoint's {named} the labels of {task.name} are {', '.join(wanted)}; leave keep_head out, or "
            f"{convert}name them in config.json's id2label as the task does, in the head's order."
        )
    tensors = {
        name: value[..., order]
        if name.split("/")[0] in heads and value.shape[-1] == len(order)  # else `assign` raises an error
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
    preprocess: Preprocessor | None = None,
) -> TextModel:
    """The task's model with the checkpoint's weights and BERT's optimizer; call it in the strategy's scope."""
    policy = training_policy(hparams.precision)
    encoder, network = network_of(task, source.config, hparams.features, dtype=policy)
    model = TextModel(task, preprocess, network)
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
    if (bilstm := bilstm_of(network)) is not None:
        log(f"training on {bilstm.described}; the encoder is frozen")
    encoder.trainable = hparams.freeze != "encoder" and hparams.features is None
    encoder.rematerialize = hparams.rematerialize
    if hparams.lora_rank is not None:
        encoder.enable_lora(hparams.lora_rank)
    if POOLED_OUTPUT not in task.outputs:  # without a gradient, Keras would warn
        encoder.pooler.trainable = False
    optimizer = optimizer_of(hparams, total_steps=total_steps)
    # XLA is not faster on CPU, and fails under MirroredStrategy.
    model.compile(optimizer=optimizer, loss=task.loss(), micro_batch=hparams.micro_batch, jit_compile=False)
    # In `fit`, it would trace the step twice. In float16, Keras has put an optimizer that scales the loss around ours.
    model.optimizer.build(model.trainable_variables)
    return model


class _Examples(NamedTuple):
    """The examples for training and evaluation.

    about: for the identity of the run, the number of examples of each split and their SHA-256
    """

    train: tf.data.Dataset
    dev: tf.data.Dataset
    train_count: int
    dev_count: int
    about: dict[str, Any]


def _read_examples(
    task: Task, preprocess: Preprocessor, hparams: Hparams, dev_split: str | None
) -> _Examples:
    """Reads both splits once. Raises BertKerasError if a split is empty or has no label."""
    if hparams.dev_fraction is None:
        dev_split = dev_split or next(iter(task.validation_splits), "validation")
        dev, everything = task.examples(dev_split), task.examples("train")
    elif dev_split is None:
        dev_split = "held-out"
        everything, dev = hold_out(task.examples("train"), fraction=hparams.dev_fraction, seed=hparams.seed)
    else:
        raise BertKerasError("dev_split and dev_fraction were given; give one of them.")
    draw = hparams.seed if hparams.data_seed is None else hparams.data_seed
    train = take_examples(everything, count=hparams.max_examples, seed=draw)
    counts = cardinality(train), cardinality(dev)
    about = {
        "train_examples": [counts[0], digest_of_examples(everything)],
        "dev_examples": [counts[1], digest_of_examples(dev)],
    }
    for split, some in (("train", train), (dev_split, dev)):
        check_labelled(task, preprocess, some, split)
        task.check(preprocess, some)
    return _Examples(train, dev, *counts, about)


def _batches_of(
    task: Task,
    preprocess: Preprocessor,
    examples: tf.data.Dataset,
    hparams: Hparams,
    distribution: tf.distribute.Strategy,
) -> Callable[..., tf.data.Dataset]:
    """Makes the batches of an epoch, or a part of their rows, a new data set at each call."""
    return functools.partial(
        dataset,
        task,
        preprocess,
        examples,
        batch_size=hparams.batch_size,
        seed=hparams.seed,
        multiple_of=rows_for(distribution, hparams.batch_size),
    )


def _checked_tokenizer(task: Task, source: checkpoints.Checkpoint, hparams: Hparams) -> Tokenizer:
    """The checkpoint's tokenizer. Raises BertKerasError unless checkpoint, task and settings fit together."""
    if source.tensors:
        task.check_checkpoint(source)
    tokenizer = checkpoints.tokenizer_of(source)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=hparams.seq_length)
    check_stride(task, tokenizer, seq_length=hparams.seq_length)
    return tokenizer


def _lines_about(task: Task, preprocess: Preprocessor, examples: _Examples, *, steps: int) -> list[str]:
    """The lines about the data of a plan."""
    cut = cut_texts(task, preprocess, next(iter(examples.train.batch(CUT_SAMPLE))))
    counts = f"{examples.train_count:,} examples, {steps:,} steps; dev {examples.dev_count:,} examples"
    return [*([cut] if cut else []), f"training {task.name} on {counts}"]


def _from_step(
    batches: Callable[..., tf.data.Dataset],
    vectors: RowVectors | None,
    distribution: tf.distribute.Strategy,
) -> Callable[[int], Any]:
    """Step -> the batches of all epochs from there on, with their vectors."""

    def from_step(done: int) -> Any:
        def made(part: Part) -> tf.data.Dataset:
            # A new data set each time: an epoch's order depends on the seed and the number of epochs before it.
            those = batches(part=part).repeat().skip(done)
            return those if vectors is None else vectors.attached(those)

        return divided(distribution, made)

    return from_step


def plan_finetuning(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    hparams: Hparams,
    strategy_name: str = "one",
    dev_split: str | None = None,
    keep_head: bool = False,
    feature_cache: str | pathlib.Path | None = None,
    output: str | pathlib.Path | None = None,
) -> Plan:
    """Reads and checks everything and builds the model, without training. Arguments and errors: those of `finetune`."""
    distribution = strategy(strategy_name)
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    tokenizer = _checked_tokenizer(task, source, hparams)
    check_feature_based(task, source.config, hparams, keep_head=keep_head, feature_cache=feature_cache)
    keras.utils.set_random_seed(hparams.seed)  # also decides which examples are drawn, and their order
    preprocess = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=True)
    examples = _read_examples(task, preprocess, hparams, dev_split)
    # A TPU needs one shape.
    padded = Preprocessor(tokenizer, seq_length=hparams.seq_length, pad_to_longest=strategy_name != "tpu")
    batches = _batches_of(task, padded, examples.train, hparams, distribution)
    steps = count(batches())
    lines = slowness(hparams.precision, accelerated=is_accelerated())
    with distribution.scope():
        model = _compiled_model(
            task,
            source,
            hparams,
            total_steps=steps * hparams.epochs,
            keep_head=keep_head,
            log=lines.append,
            preprocess=preprocess,
        )
    vectors = vectors_of(model, preprocess, examples.train, examples.dev, hparams)
    if vectors is not None and output is not None:
        vectors.check_room(folder_of(output, feature_cache))
    stage = Stage(steps=steps, epochs=hparams.epochs, batches=_from_step(batches, vectors, distribution))
    lines += _lines_about(task, preprocess, examples, steps=stage.total)
    monitor = functools.partial(
        FineTuningMonitor,
        trained=model,
        examples=examples,
        hparams=hparams,
        strategy_name=strategy_name,
        origin=source.origin if source.tensors else {},
        vectors=vectors,
    )
    identity = {
        "task": {"kind": task.kind, **task.to_json()},
        **hparams.identity(),
        **{"keep_head": keep_head, "strategy": strategy_name},
        **examples.about,
        **identity_of_checkpoint(source, tokenizer),
    }
    plan = Plan(identity=identity, model=model, stages=[stage], monitor=monitor, lines=lines)
    if vectors is not None:
        plan = dataclasses.replace(plan, prepared=functools.partial(computed, vectors, feature_cache))
    return plan


@reports_lost_workers()
def finetune(
    task: Task,
    *,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint,
    output: str | pathlib.Path,
    hparams: Hparams,
    strategy_name: str = "one",
    dev_split: str | None = None,
    keep_head: bool = False,
    feature_cache: str | pathlib.Path | None = None,
    save_every: int | None = None,
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Trains `task` from `checkpoint`, keeps the best epoch in the run directory `output`, returns the content of results.json.

    An unfinished run in `output` is resumed from its last save if everything else is the same.

    checkpoint: a path or a name for `checkpoints.read`, or a Checkpoint; without tensors, the weights start at random
    dev_split: evaluated after every epoch; None takes the task's first validation split
    keep_head: start the head from the checkpoint too, for example to train on a second question-answering set. The checkpoint
        must name the head's labels (`id2label` in config.json); they are reordered for the task
    feature_cache: with hparams.feature_layers, a folder that keeps the vectors for further trainings on the same examples, layers
        and checkpoint; None keeps them in `output` until the training is finished
    save_every: steps between two saves in `checkpoints/`, each three times the size of the weights; None saves at the end of each
        epoch, 0 never
    verbose: 0 for no lines inside epochs, 1 for a progress bar, 2 for lines inside long epochs; "auto" is 1 in a terminal, else 2
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
    )
    return train(plan, output, save_every=save_every, verbose=verbose, log=log)
