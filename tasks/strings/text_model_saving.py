"""Saving of a TextModel: `.keras` files, run folders, and exports of raw strings.

In: a problem, its text processing and its network, as attributes. Out: files that `bert_keras.load` reads.
"""

import os
import pathlib
from typing import Any, Self

import keras

import bert_keras
from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.errors import BertKerasError, MissingFileError, TakenError
from bert_keras.io.files import atomic_file
from bert_keras.io.folders import atomic_folder
from bert_keras.io.paths import to_path
from bert_keras.model.feature_bilstm import bilstm_of
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.runs.run_folder import (
    KERAS,
    TASKS,
    Run,
    save_run,
)
from bert_keras.tasks.task import Problem
from bert_keras.tasks.training.task_model import (
    encoder_of,
    freeze,
    frozen_layers,
    heads_of,
)
from bert_keras.text.preprocessing import Preprocessor


class _NoVocabularyError(BertKerasError, AttributeError):
    """An AttributeError too, since Keras reads an attribute, where there is one, before it sets it."""


def check_callbacks(callbacks: Any) -> None:
    """Raises BertKerasError for a ModelCheckpoint that would fail at the end of its first epoch."""
    for callback in keras.tree.flatten(callbacks):
        whole = isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only
        if whole and callback.filepath.endswith(".h5"):
            raise BertKerasError(
                f"ModelCheckpoint writes {callback.filepath}, and a TextModel is saved as .keras; give such a name, "
                "or .weights.h5 with save_weights_only=True."
            )


def check_monitors(callbacks: Any, measure: str) -> None:
    """Raises BertKerasError for a callback on a measure of ours that Keras cannot tell to be better when it is higher."""
    for callback in keras.tree.flatten(callbacks):
        unknown = isinstance(callback, keras.callbacks.EarlyStopping | keras.callbacks.ReduceLROnPlateau)
        unknown |= isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_best_only
        if unknown and callback.monitor == f"val_{measure}" and callback.mode == "auto":
            raise BertKerasError(
                f"{type(callback).__name__} monitors {callback.monitor}, which Keras cannot tell to be better when it is "
                "higher; give mode='max'."
            )


class SavedTextModel(keras.Model):
    """The part of a TextModel that writes and reads files.

    problem, preprocess, network: those of a TextModel
    """

    problem: Problem
    network: keras.Model
    _preprocess: Preprocessor | None

    @property
    def preprocess(self) -> Any:
        """The text processing. Raises BertKerasError in a copy by `clone_model` or `from_config` until it is set."""
        if self._preprocess is None:
            raise _NoVocabularyError(
                "the model has no vocabulary: clone_model and from_config copy only its configuration; set preprocess to that of "
                "the first model."
            )
        return self._preprocess

    @preprocess.setter
    def preprocess(self, preprocess: Preprocessor | None) -> None:
        self._preprocess = preprocess

    def save(
        self, filepath: Any, overwrite: bool | None = None, zipped: bool | None = None, **kwargs: Any
    ) -> None:
        """Writes a `.keras` file, or, for a path without a suffix, a run folder as `bert-keras finetune` writes it.

        overwrite: False refuses an existing `.keras` file. None and True replace it, whole or not at all. A folder that holds
            files is never replaced: True is then refused too

        Raises TakenError for an output that exists, BertKerasError for a path of another kind.
        """
        if kwargs:
            raise BertKerasError(
                f"save() has no argument {next(iter(kwargs))!r}; to leave the optimizer's state out, call compile() before it."
            )
        path = to_path(filepath)
        if path.suffix == KERAS:
            if not path.parent.is_dir():
                raise MissingFileError(f"there is no folder {path.parent} for {path.name}; make it first.")
            self._save_file(path, overwrite=overwrite is not False, zipped=zipped)
            return
        if path.suffix:
            raise BertKerasError(
                f"{path} ends in {path.suffix}; give a name that ends in .keras, or a folder."
            )
        if self.problem.kind not in TASKS or "://" in os.fspath(filepath):
            raise BertKerasError(
                f"a run of {self.problem.kind} cannot be written to {filepath}; give a .keras file."
            )
        bilstm = bilstm_of(self.network)
        if own := {*heads_of(self.network)} - {*checkpoints.HEADS, bilstm and bilstm.name}:
            raise BertKerasError(
                f"the network has layers of its own ({', '.join(sorted(own))}), and a run folder holds only an encoder and the "
                "head of its problem; give a .keras file, or use export()."
            )
        if overwrite and path.is_dir() and any(path.iterdir()):
            raise TakenError(
                f"{path} is there already, and overwrite applies only to .keras files; remove the folder first, or give another."
            )
        with atomic_folder(path) as new:
            save_run(
                new,
                self.problem,  # type: ignore[arg-type]
                self.preprocess,
                self.network,
                frozen=frozen_layers(self.network),
            )

    def _save_file(self, path: pathlib.Path, *, overwrite: bool, zipped: bool | None, **kwargs: Any) -> None:
        if not overwrite and path.exists():
            raise TakenError(f"{path} is there already; give another name, or overwrite=True.")
        if zipped is False:  # a folder, which Keras writes in place
            super().save(path, overwrite=overwrite, zipped=zipped, **kwargs)
            return
        with atomic_file(path) as temporary:
            written = temporary.with_name(f"{temporary.name}{path.suffix}")  # Keras wants the suffix
            try:
                super().save(written, zipped=zipped, **kwargs)
                os.replace(written, temporary)
            finally:
                written.unlink(missing_ok=True)

    def export(
        self, filepath: Any, *, target: str | None = None, freeze: bool = False, **kwargs: Any
    ) -> pathlib.Path:
        """Writes the next version of a SavedModel that takes raw strings, as `bert-keras export` does; returns its folder.

        target, freeze: as in `bert_keras.export`, which names its errors too
        """
        if kwargs:
            raise BertKerasError(f"export() has no argument {next(iter(kwargs))!r}; it writes a SavedModel.")
        return bert_keras.export(self.as_run(), filepath, target=target, freeze=freeze)

    def as_run(self, path: Any = "") -> Run:
        """The model as the commands hold it."""
        return Run(
            task=self.problem,  # type: ignore[arg-type]
            preprocess=self.preprocess,
            model=self.network,
            path=pathlib.Path(path),
        )

    def get_config(self) -> dict[str, Any]:
        """The problem and the network; the vocabulary is an asset."""
        return {
            "problem": {"kind": self.problem.kind, "task": self.problem.to_json()},
            "seq_length": self.preprocess.seq_length,
            "truncation": self.preprocess.truncation,
            "network": keras.saving.serialize_keras_object(self.network),
            "frozen": frozen_layers(self.network),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The model without its vocabulary, which `load_assets` reads."""
        kept = config["problem"]
        problems = TASKS | {Embedding.kind: Embedding}
        if kept["kind"] not in problems:
            raise BertKerasError(
                f"the model's problem is of the kind {kept['kind']!r}, which TASKS of "
                "tasks/runs/run_folder.py does not have; add its class there before you load the model."
            )
        problem = problems[kept["kind"]].from_json(kept["task"])
        network = keras.saving.deserialize_keras_object(config["network"], custom_objects=custom_objects)
        freeze(network, config["frozen"])
        made = cls(problem, None, network, name=config["name"])
        made._sizes = {name: config[name] for name in ("seq_length", "truncation")}
        return made

    def save_assets(self, dir_path: str) -> None:
        """Writes the vocabulary."""
        vocabulary, config = self.preprocess.tokenizer.to_vocabulary(), encoder_of(self).config
        write_tokenizer(vocabulary, pathlib.Path(dir_path), max_length=config.max_length)

    def load_assets(self, dir_path: str) -> None:
        """Reads the vocabulary."""
        self.preprocess = Preprocessor(
            checkpoints.load_tokenizer(dir_path), pad_to_longest=True, **self._sizes
        )
