"""Pre-training: text or files of instances in; a run directory out, which fine-tuning starts from.

    documents -> tasks/pretraining/instances.py ----
                                        |-> label(objectives) -> Pretrainer.fit -> RUN
    TFRecord files -> tasks/pretraining/records.py -

A recipe is a row of RECIPES: its objectives, and settings of the model, the instances, the masks and the training in one flat
namespace, `SETTINGS`. The batch of a step is a function of the seed and the step alone.

RUN is `config.json`, `vocab.txt`, `model.safetensors` with the heads, `task.json` (fill-mask, where a head can), `results.json`
(measures, baselines, history), `curves.png`, `logs/` for TensorBoard and `checkpoints/`
(tasks/training/saver.py). ELECTRA's generator has such a folder inside: `generator/`.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK
from bert_keras.objectives import (
    ElectraPretrainer,
    LeftToRight,
    MaskedLM,
    Objective,
    Pretrainer,
    ReplacedTokens,
    SentencePair,
    generator_config,
)
from bert_keras.paths import path_of
from bert_keras.settings import Masking
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import Preprocessor, pad_batches
from bert_keras.text.tokenizers import Tokenizer
from tasks.fill_mask import FillMask
from tasks.folders import Folder
from tasks.pretraining.instances import Segmenter, Text
from tasks.pretraining.optimizer import OPTIMIZERS, longest_step, schedule
from tasks.pretraining.recipes import Recipe
from tasks.pretraining.records import (
    RecordFiles,
)
from tasks.pretraining.sources import (
    HELD_OUT_SEED,
    Documents,
    RecordFileSource,
    Source,
    batches_of,
    check_data,
)
from tasks.settings import PretrainHparams
from tasks.training.identity import digest_of_tensors
from tasks.training.loop import LOGS, RUN, check_save_every, train
from tasks.training.plan import Monitor, Plan, Stage
from tasks.training.run import FILES, check_sizes, digests, save_task, save_weights
from tasks.training.strategies import drawing_from, rows_for, strategy

CURVES, GENERATOR, SNAPSHOTS = "curves.png", "generator", "snapshots"
SAMPLE = 1000  # instances that are looked at before training
SAMPLE_BYTES = 200_000  # of text that they are made of, at least
HELD_OUT_BATCH = 32
HELD_OUT_BATCH = 32
LONG_STEP = 2.0  # in learning rates: longer steps are warned of


class _CountsTokens(Pretrainer):
    """A Pretrainer that logs how many tokens it read, padding not counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens = keras.metrics.Sum(name="tokens")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        self.tokens.update_state(x[INPUT_MASK])
        return super().compute_metrics(x, y, y_pred, sample_weight)


class _Electra(_CountsTokens, ElectraPretrainer):
    pass


OBJECTIVES: dict[str, Callable[[Pieces, Masking], Objective]] = {
    "masked_lm": lambda pieces, masking: MaskedLM(pieces=pieces, masking=masking),
    "left_to_right": lambda pieces, masking: LeftToRight(),
    "sentence_pair": lambda pieces, masking: SentencePair(),
    "replaced_token": lambda pieces, masking: ReplacedTokens(),
}


def _model(recipe: Recipe, config: BertConfig, objectives: Sequence[Objective]) -> Pretrainer:
    """Compiled, model and optimizer built; make it in the strategy's scope."""
    hparams = recipe.hparams
    wanted = tuple(dict.fromkeys(one.reads for one in objectives))
    encoder = BertEncoder(config, outputs=wanted)
    if "replaced_token" in recipe.objectives:
        masked_lm = next(one for one in objectives if isinstance(one, MaskedLM))
        generator = generator_config(config, share=hparams.generator_share)
        weight = hparams.replaced_weight
        model: Pretrainer = _Electra(encoder, masked_lm, generator=generator, replaced_weight=weight)
    else:
        model = _CountsTokens(encoder, objectives)
    optimizer = OPTIMIZERS[hparams.optimizer](
        schedule(hparams),
        weight_decay=hparams.weight_decay,
        beta_2=hparams.beta_2,
        clip_norm=hparams.clip_norm,
        bias_correction=hparams.bias_correction,
    )
    optimizer.build(model.trainable_variables)
    # XLA is no gain on CPU, and fails under MirroredStrategy.
    model.compile(optimizer, jit_compile=False)
    return model


def _heads(model: Pretrainer, encoder: BertEncoder) -> dict[str, keras.layers.Layer]:
    """The heads that stand on this encoder."""
    return {name: head for name, head in model.heads.items() if model.encoders[name] is encoder}


def _save(
    path: pathlib.Path, model: Pretrainer, preprocess: Preprocessor, *, start: checkpoints.Checkpoint | None
) -> None:
    """A run directory's weights, and the generator's where there is one; poolers only where they are not random."""
    encoders = {path: model.encoder}
    if isinstance(model, ElectraPretrainer):
        encoders[path / GENERATOR] = model.generator
    masked = any(isinstance(one, MaskedLM) for one in model.objectives)
    for folder, encoder in encoders.items():
        heads = _heads(model, encoder)
        known = encoder.pooler.trainable or (
            encoder is model.encoder and start is not None and "pooler/kernel" in start.tensors
        )
        without = () if known else ("pooler",)
        save_weights(folder, preprocess.tokenizer, encoder, heads, without=without)
        if masked and MaskedLM.name in heads:
            save_task(folder, FillMask(), preprocess)


class PretrainingMonitor(Monitor):
    """Logs, measures the held-out instances and keeps snapshots.

    history: a row for each time something was logged: step, rate, tokens_per_second, measures; those of the held-out
        instances have `held_out_` before their names
    """

    def __init__(
        self,
        path: pathlib.Path,
        *,
        plan: "_Prepared",
        log: Callable[[str], None],
        verbose: int | str,
    ) -> None:
        super().__init__()
        self._path, self._plan = path, plan
        self._log_line = log if verbose == 2 else lambda line: None
        self._writer = tf.summary.create_file_writer(str(path / LOGS))
        self.history: list[dict[str, float]] = []
        self.step = 0
        self._phase = 0
        self._since = time.monotonic()

    def begin(self, stage: int, step: int) -> None:
        self._phase, self.step = stage, step
        self._since = time.monotonic()

    def memory(self) -> Any:
        """The rows, and what makes it cheap to read on from this step."""
        phase = next(phase for phase in self._plan.source.phases if self.step <= phase.end)
        read = (self.step - phase.start) * self._plan.hparams.batch_size
        return self.history, self._plan.source.place(read)

    def recall(self, memory: Any) -> None:
        self.history, self._plan.place = memory

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        hparams, held_out = self._plan.hparams, self._plan.held_out[self._phase]
        self.step += 1
        last = batch + 1 == self.params["steps"]  # of the phase
        evaluates = held_out is not None and (last or self.step % hparams.eval_every == 0)
        if last or evaluates or self.step % hparams.log_every == 0:
            self._log({name: float(value) for name, value in (logs or {}).items()})
            if held_out is not None and evaluates:
                self._evaluate(held_out)
            self.model.reset_metrics()
            self._since = time.monotonic()
        if self.step in self._plan.snapshots:
            self._plan.save(self._path / SNAPSHOTS / str(self.step))

    def _log(self, measures: dict[str, float]) -> None:
        seconds = time.monotonic() - self._since
        rate = float(schedule(self._plan.hparams)(self.step - 1))
        tokens = measures.pop("tokens")
        self._add({"learning_rate": rate, "tokens_per_second": tokens / seconds, **measures})

    def _add(self, measures: dict[str, float]) -> None:
        self.history.append({"step": self.step, **measures})
        figures = (f"{name} {value:.4g}" for name, value in measures.items())
        self._log_line(f"step {self.step:,}: {', '.join(figures)}")
        with self._writer.as_default():
            for name, value in measures.items():
                tf.summary.scalar(name, value, step=self.step)

    def _evaluate(self, held_out: tf.data.Dataset) -> None:
        """With the same random draws each time, and none of the training's."""
        with drawing_from(self.model, HELD_OUT_SEED % 2**16):
            measures = self.model.evaluate(held_out, verbose=0, return_dict=True)
        measures.pop("tokens")
        self._add({f"held_out_{name}": float(value) for name, value in measures.items()})

    def results(self) -> Mapping[str, Any]:
        plan = self._plan
        plan.save(self._path)
        evaluated = [
            (batches, objectives)
            for batches, objectives in zip(plan.held_out, plan.objectives, strict=True)
            if batches is not None
        ]
        draw_curves(self.history, self._path / CURVES)
        return {
            "measures": dict(itertools.chain.from_iterable(row.items() for row in self.history)),
            "majority_baselines": _baselines(*evaluated[-1])
            if evaluated
            else {},  # of the last phase that has them
            "history": self.history,
            "strategy": plan.strategy_name,
            "settings": plan.identity,
            FILES: digests(self._path),
        }


@dataclasses.dataclass(kw_only=True)
class _Prepared:
    """What a pre-training's monitor and stages share.

    objectives, held_out: by phase
    place: where the source reads on, for the first stage that runs
    """

    source: Source
    hparams: PretrainHparams
    objectives: Sequence[Sequence[Objective]]
    held_out: Sequence[tf.data.Dataset | None]
    snapshots: Sequence[int]
    save: Callable[[pathlib.Path], None]
    strategy_name: str
    identity: Mapping[str, Any]
    place: Sequence[int] | None = None


def _baselines(batches: Iterable[Any], objectives: Sequence[Objective]) -> dict[str, float]:
    """The accuracy of always answering what is commonest, for every objective whose labels do not depend on the model."""
    counts: dict[str, dict[int, float]] = {}
    for _, labels, weights in batches:
        for one in objectives:
            if isinstance(one, ReplacedTokens):
                continue
            found = counts.setdefault(one.name, {})
            asked = labels[one.name].numpy()[weights[one.name].numpy() > 0]
            for value, count in zip(*np.unique(asked, return_counts=True), strict=True):
                found[int(value)] = found.get(int(value), 0) + int(count)
    return {f"{name}_accuracy": max(found.values()) / sum(found.values()) for name, found in counts.items()}


def draw_curves(history: Sequence[Mapping[str, float]], path: pathlib.Path) -> None:
    """Loss and accuracy of training and of the held-out instances over the steps, as a picture."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(10, 4), layout="constrained")
    measures = [
        [name for name in dict.fromkeys(itertools.chain(*history)) if name.endswith(ending)]
        for ending in ("_loss", "_accuracy")
    ]
    for axes, names, title in zip(figure.subplots(1, 2), measures, ("loss", "accuracy"), strict=True):
        for name in names:
            rows = [row for row in history if name in row]
            style = "o--" if name.startswith("held_out_") else "-"
            axes.plot(
                [row["step"] for row in rows], [row[name] for row in rows], style, markersize=3, label=name
            )
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def check_replicas(hparams: PretrainHparams, distribution: tf.distribute.Strategy) -> None:
    """Raises ValueError where the replicas do not divide a batch."""
    replicas = distribution.num_replicas_in_sync
    if hparams.batch_size % replicas:
        raise BertKerasError(
            f"batch_size is {hparams.batch_size} and there are {replicas} replicas; give a multiple of {replicas}."
        )


def _source(
    documents: Iterable[Text] | None,
    records: RecordFiles | Sequence[RecordFiles] | None,
    held_out: Any,
    *,
    recipe: Recipe,
    tokenizer: Tokenizer,
    segment: Segmenter | None,
) -> Source:
    if (documents is None) == (records is None):
        raise BertKerasError("give documents or records, one of the two.")
    if documents is not None:
        return Documents(documents, held_out, recipe=recipe, tokenizer=tokenizer, segment=segment)
    assert records is not None
    if segment is not None:
        raise BertKerasError("records are made of words already; give segment where they are written.")
    sets = [records] if isinstance(records, str | pathlib.Path) else records
    return RecordFileSource(sets, held_out, recipe=recipe, tokenizer=tokenizer)


def _held_out(
    source: Source,
    phase: int,
    *,
    objectives: Sequence[Objective],
    vocab_size: int,
    hparams: PretrainHparams,
    multiple_of: int = 1,
) -> tf.data.Dataset | None:
    """Batches to evaluate on, padded to a multiple of so many rows, or None where nothing is held out."""
    instances = source.held_out(phase)
    if instances is None:
        return None
    batches = batches_of(
        instances.take(hparams.held_out_instances),
        objectives=objectives,
        vocab_size=vocab_size,
        batch_size=HELD_OUT_BATCH,
        seed=HELD_OUT_SEED,
        drop_remainder=False,
    )
    batches = pad_batches(batches, multiple_of=multiple_of).cache()
    with source.reading(None, vocab_size=vocab_size):
        count = sum(1 for _ in batches)
    if not count:
        raise BertKerasError(
            "nothing held out gives an instance; hold out more, or documents of several lines each, ended by a blank line."
        )
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def _read_start(
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None, recipe: Recipe
) -> tuple[checkpoints.Checkpoint | None, checkpoints.Checkpoint | None]:
    """The checkpoint to start from, and the one of an ELECTRA's generator that a run has beside it."""
    if checkpoint is None or isinstance(checkpoint, checkpoints.Checkpoint):
        return checkpoint, None
    beside = path_of(checkpoint) / GENERATOR
    wanted = "replaced_token" in recipe.objectives and beside.is_dir()
    return checkpoints.read(checkpoint), checkpoints.read(beside) if wanted else None


def _tokenizer(given: Tokenizer | None, start: checkpoints.Checkpoint | None) -> Tokenizer:
    """The one to train with. Raises ValueError where there is none, or the checkpoint's own is another."""
    if given is None:
        if start is None:
            raise BertKerasError("there is no tokenizer and no checkpoint that has one; give a vocabulary.")
        return checkpoints.tokenizer_of(start)
    if start is None or (start.vocabulary is None and start.sentencepiece is None):
        return given
    own = checkpoints.tokenizer_of(
        start, lower_case=given.lower_case if start.lower_case is None else start.lower_case
    )
    if given.digest != own.digest:
        raise BertKerasError(
            "the checkpoint's own vocabulary is another, and its weights are of that; leave the vocabulary out."
        )
    if given.lower_case != own.lower_case:
        raise BertKerasError(
            f"the checkpoint's tokenizer has lower_case={own.lower_case}, the one given {given.lower_case}; leave the "
            "vocabulary out."
        )
    return given


def plan_pretraining(
    *,
    recipe: Recipe,
    documents: Iterable[Text] | None = None,
    records: RecordFiles | Sequence[RecordFiles] | None = None,
    held_out: float | Iterable[Text] | RecordFiles | None = None,
    tokenizer: Tokenizer | None = None,
    segment: Segmenter | None = None,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None = None,
    snapshots: Sequence[int] = (),
    strategy_name: str = "one",
) -> Plan:
    """Reads and checks everything, builds the model, and trains nothing.

    Arguments and errors: those of `pretrain`
    """
    hparams, distribution = recipe.hparams, strategy(strategy_name)
    check_replicas(hparams, distribution)
    if wrong := [step for step in snapshots if not 1 <= step <= hparams.steps]:
        raise BertKerasError(f"snapshots has {wrong[0]}; give steps from 1 to {hparams.steps}.")
    start, generator = _read_start(checkpoint, recipe)
    tokenizer = _tokenizer(tokenizer, start)
    config = recipe.config(vocab_size=tokenizer.vocab_size, source=None if start is None else start.config)
    if documents is not None:  # which are read as a whole, once, by _source
        for length, _ in hparams.phases:
            check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=length)
    source = _source(documents, records, held_out, recipe=recipe, tokenizer=tokenizer, segment=segment)
    for phase in source.phases:
        check_sizes(config, vocab_size=tokenizer.vocab_size, seq_length=phase.seq_length)
    about = {
        "objectives": list(recipe.objectives),
        **{name: value for name, value in sorted(recipe.all_settings.items())},
        "config": config.to_dict(),
        "vocabulary": tokenizer.digest,
        "lower_case": tokenizer.lower_case,
        "segmenter": segment is not None,
        **source.about,
        "checkpoint": start and digest_of_tensors(start.tensors),
        **({} if generator is None else {"generator": digest_of_tensors(generator.tensors)}),
        "snapshots": list(snapshots),
        "strategy": strategy_name,
    }
    settings = json.loads(json.dumps(about))  # as they are read again
    pieces = Pieces.of(tokenizer)
    asked = [
        [OBJECTIVES[name](pieces, recipe.masking(phase.seq_length)) for name in recipe.objectives]
        for phase in source.phases
    ]
    held, lines = [], list[str]()
    for i, objectives in enumerate(asked):
        for line in check_data(
            source, i, objectives=objectives, config=config, batch_size=hparams.batch_size
        ):
            lines.append(line)
        held.append(
            _held_out(
                source,
                i,
                objectives=objectives,
                vocab_size=config.vocab_size,
                hparams=hparams,
                multiple_of=rows_for(distribution, HELD_OUT_BATCH),
            )
        )

    if (longest := longest_step(hparams)) > LONG_STEP:
        lines.append(
            f"warning: in a warm-up of {hparams.warmup_steps:,} steps, steps of AdamW without bias correction are up to "
            f"{longest:.1f} times as long as learning_rate says, where a masked LM may learn no more than how common each "
            "piece is; set bias_correction=true, or a larger warmup_proportion"
        )
    keras.utils.set_random_seed(hparams.seed)
    with distribution.scope():
        model = _model(recipe, config, asked[0])
        if start is not None and start.tensors:
            heads = _heads(model, model.encoder)
            lines.append(str(checkpoints.assign(start, model.encoder, fresh=("pooler", *heads), **heads)))
        if generator is not None:
            assert isinstance(model, ElectraPretrainer)
            checkpoints.assign(generator, model.generator, **_heads(model, model.generator))
        elif start is not None and isinstance(model, ElectraPretrainer):
            lines.append(f"the generator starts at random: the checkpoint has no {GENERATOR}/")
    preprocess = Preprocessor(tokenizer, seq_length=source.phases[-1].seq_length)
    prepared = _Prepared(
        source=source,
        hparams=hparams,
        objectives=asked,
        held_out=held,
        snapshots=snapshots,
        save=functools.partial(_save, model=model, preprocess=preprocess, start=start),
        strategy_name=strategy_name,
        identity=settings,
    )
    count = sum(math.prod(one.shape) for one in model.trainable_variables)
    lines.append(
        f"pre-training {count:,} parameters, {hparams.steps:,} steps of {hparams.batch_size} instances"
    )
    return Plan(
        identity=settings,
        model=model,
        stages=[
            _stage(prepared, number, vocab_size=config.vocab_size) for number in range(len(source.phases))
        ],
        monitor=functools.partial(PretrainingMonitor, plan=prepared),
        lines=lines,
    )


def _stage(prepared: _Prepared, number: int, *, vocab_size: int) -> Stage:
    """The training of one phase."""
    source, hparams, phase = prepared.source, prepared.hparams, prepared.source.phases[number]

    def batches(done: int) -> tf.data.Dataset:
        place, prepared.place = prepared.place, None
        return batches_of(
            source.train(number, skip=done * hparams.batch_size, place=place),
            objectives=prepared.objectives[number],
            vocab_size=vocab_size,
            batch_size=hparams.batch_size,
            seed=hparams.seed,
            start=phase.start + done,
        )

    return Stage(
        steps=phase.end - phase.start,
        batches=batches,
        reading=functools.partial(source.reading, number, vocab_size=vocab_size),
    )


def pretrain(
    *,
    recipe: Recipe,
    output: str | pathlib.Path,
    documents: Iterable[Text] | None = None,
    records: RecordFiles | Sequence[RecordFiles] | None = None,
    held_out: float | Iterable[Text] | RecordFiles | None = None,
    tokenizer: Tokenizer | None = None,
    segment: Segmenter | None = None,
    checkpoint: str | pathlib.Path | checkpoints.Checkpoint | None = None,
    save_every: int = 1000,
    snapshots: Sequence[int] = (),
    strategy_name: str = "one",
    verbose: int | str = "auto",
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Pre-trains by a recipe, or goes on with the unfinished run in `output`; returns what results.json says.

    documents: a `Corpus`, or anything that gives documents anew at each iteration; or
    records: a folder of `write_records` or TFRecord files; several for as many phases, whose lengths are those of the records
    held_out: documents, or records, to evaluate on, or the share of the documents that are held out; with records of one length
        only the phases of that length are evaluated
    tokenizer: None takes the checkpoint's
    segment: splits a line into words, for whole-word masking
    checkpoint: what to start from, with the heads that it has, and of an ELECTRA's run with the generator; its configuration
        counts, not the recipe's
    save_every: steps between two saves, from which a killed run goes on
    snapshots: steps after which the weights are kept in `snapshots/STEP`, too
    verbose: 0 for silence, 1 for a progress bar, 2 for a line each time something is measured; "auto" is 1 in a terminal, else 2
    log: receives lines for a person

    Equal arguments give equal bits on one device where ops are deterministic, however often the run was killed.
    Raises ValueError or FileNotFoundError, before any training, on data, sizes, settings or folders that cannot work.
    """
    check_save_every(save_every)
    Folder(output, RUN).check()
    plan = plan_pretraining(
        recipe=recipe,
        documents=documents,
        records=records,
        held_out=held_out,
        tokenizer=tokenizer,
        segment=segment,
        checkpoint=checkpoint,
        snapshots=snapshots,
        strategy_name=strategy_name,
    )
    return train(plan, output, save_every=save_every, verbose=verbose, log=log)
