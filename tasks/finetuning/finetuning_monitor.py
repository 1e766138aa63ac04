"""The monitor of a fine-tuning: measures the dev split after every epoch and keeps the best epoch."""

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras

from bert_keras.checkpoints.hugging_face import SAFETENSORS
from bert_keras.cli.console import counter
from bert_keras.errors import BertKerasError, LossDiverged, first_line
from bert_keras.io.files import atomic_file
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.devices.workers import Workers
from bert_keras.tasks.evaluation.model_report import CHOSEN, make_report, write_reports
from bert_keras.tasks.finetuning.examples import Examples
from bert_keras.tasks.frozen.row_vectors import RowVectors, on_vectors
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.report import Arrays
from bert_keras.tasks.runs.run_card import CARD, run_card
from bert_keras.tasks.runs.run_folder import (
    DEGENERATE,
    FILES,
    ORIGIN,
    Run,
    digests,
    load_run,
    save_checkpoint,
    save_run,
)
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import LOGS
from bert_keras.tasks.training.plan import Monitor
from bert_keras.text.preprocessing import Preprocessor

REPORT = "report"  # a folder in the run
MIX = "mix"  # a key in results.json: the learned weights of a weighted sum of layers


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
        trained: Any,
        task: Task,
        preprocess: Preprocessor,
        examples: Examples,
        hparams: Hparams,
        strategy_name: str,
        origin: Mapping[str, str],
        log: Callable[[str], None],
        workers: Workers,
        vectors: RowVectors | None = None,
        report: bool = False,
    ) -> None:
        super().__init__()
        self._path, self._workers, self._log = path, workers, log
        self._run = Run(task=task, preprocess=preprocess, model=trained.network, path=path)
        self._trained, self._vectors, self._examples, self._hparams = trained, vectors, examples, hparams
        self._strategy_name, self._origin, self._report = strategy_name, origin, report
        # The task, predictions and raw examples of the best epoch, for its report.
        self._kept: tuple[Task, Arrays, Arrays] | None = None
        answers = trained.network if vectors is None else on_vectors(trained, vectors)
        self._predict = predictor(task, preprocess, answers)
        self.others = [keras.callbacks.TensorBoard(path / LOGS, write_graph=False)]
        if hparams.unfreeze == "gradual":
            self.others.append(GradualUnfreezing())
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None  # value, epoch from 0, SHA-256 of the files of that epoch

    def begin(self, stage: int, step: int) -> None:
        """Writes the encoder of a feature-based run, which no step changes or reads."""
        if self._vectors is not None:
            if not (self._path / SAFETENSORS).is_file():
                tokenizer, encoder = self._run.preprocess.tokenizer, self._vectors.extractor.checkpoint()
                save_checkpoint(self._path, tokenizer, encoder)
            self._vectors.forget_encoder()

    def memory(self) -> Any:
        return self.history, self.best

    def recall(self, memory: Any) -> None:
        self.history, self.best = memory
        if (best := self.best) is None:
            return
        self._check_kept(lambda name: (self._path / name).is_file())
        if self._workers.from_chief(lambda: digests(self._path) != best[FILES]):
            # Any epoch from here on may be the one that wrote them, and its value is not known yet.
            best["value"] = -math.inf
            self._log(
                f"warning: the weights in {self._path} are not those of epoch {best['epoch'] + 1}, the best so far: a later "
                "epoch replaced them before the run stopped, or they were changed; the best epoch from here on is kept"
            )

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
            batch_size=self._rows_at_once(),
            progress=counter("evaluating", self._examples.dev_count, log=self._log),
        )
        task, predictions = run.task.calibrate(predictions, raw)
        measures = self._workers.from_chief(lambda: _plain(dict(task.evaluate(predictions, raw))))
        if bad := [f"{name} is {value}" for name, value in measures.items() if not math.isfinite(value)]:
            raise LossDiverged(bad[0], step=self._step())
        logs = {} if logs is None else logs
        logs.update({f"val_{name}": value for name, value in measures.items()})
        self.history.append(_plain(logs))
        value = measures[task.measure]
        if self.best is None or value > self.best["value"] or self._hparams.keep == "last":
            save_run(self._path, task, run.preprocess, run.model)
            self._kept = (task, predictions, raw) if self._report and self._workers.chief else None
            why = task.degenerate(predictions, raw)
            self.best = {"value": float(value), "epoch": epoch, FILES: digests(self._path), DEGENERATE: why}
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
            # The last epoch, from 1, and its step, if that is not the last of the settings.
            "stopped_early": {"epoch": len(self.history), "step": self._step()} if self.stopped else None,
            "history": self.history,
            "train_examples": self._examples.train_count,
            "dev_examples": self._examples.dev_count,
            "data": self._examples.fingerprint,
            "strategy": self._strategy_name,
            "hparams": self._hparams.fingerprint(),
            FILES: self.best[FILES],
        }
        results |= {name: self.best[name] for name in (DEGENERATE, MIX) if name in self.best}
        with atomic_file(self._path / CARD) as temporary:
            temporary.write_text(run_card(self._run, results), encoding="utf-8")
        if self._report and self._workers.chief:
            self._write_report()
        return results

    def _write_report(self) -> None:
        """Writes the report of the kept epoch. A report that fails, in the code of a task of one's own, ends no training."""
        try:
            task, predictions, raw = self._kept or self._predict_kept()
            about: Any = {"name": task.name, "model": str(self._path), "split": "the dev split"}
            about["caution"] = CHOSEN if len(self.history) > 1 else ""
            made = make_report(task, predictions, raw, history=self.history, **about)
            write_reports({"dev": made}, self._path / REPORT, existing="overwrite")
        except OSError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            self._log(f"warning: {self._path} gets no {REPORT}: {why}; the run is complete without it")

    def _predict_kept(self) -> tuple[Task, Arrays, Arrays]:
        """The same from the files of the best epoch, which another process has measured."""
        run = load_run(self._path, task=type(self._run.task), unfinished=True)
        predict = predictor(run.task, run.preprocess, run.model)
        return run.task, *predict(self._examples.dev, batch_size=self._rows_at_once())

    def _rows_at_once(self) -> int:
        """The rows of an evaluation's batch: as many as all replicas compute at once in a training step."""
        batch_size, micro_batch = self._hparams.batch_size, self._hparams.micro_batch
        if micro_batch is None:
            return batch_size
        return min(batch_size, micro_batch * self._run.model.distribute_strategy.num_replicas_in_sync)

    def _step(self) -> int:
        return int(self._trained.optimizer.iterations.numpy())

    def _check_kept(self, is_kept: Callable[[str], bool]) -> None:
        """Raises BertKerasError in all workers if a file of the best epoch is missing or was changed."""
        assert self.best is not None
        lost = [name for name in self.best[FILES] if not is_kept(name)]
        if not self._workers.greatest(len(lost)):
            return
        self._workers.wait_to_end()
        if self._workers.chief and lost:
            raise BertKerasError(
                f"{self._path / lost[0]}, part of the best epoch, is missing or was changed; remove {self._path} and train again."
            )
        raise BertKerasError(
            "a file of the best epoch is missing or was changed in a worker; remove the run's folder and train again."
        )


def _plain(measures: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in measures.items()}
