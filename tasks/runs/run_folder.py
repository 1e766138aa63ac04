"""A run on disk: the folder that a training writes, and that evaluate, predict, features and export read.

`config.json`, `vocab.txt`, `model.safetensors` (Hugging Face's names), `tokenizer_config.json`, `task.json` (the task, its labels
and preprocessing), `results.json` (measures, history and the files' SHA-256), `logs/` for TensorBoard and `checkpoints/`
(tasks/training/saver.py). A BiLSTM on frozen features and its head are in `top.safetensors`.
"""

import dataclasses
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from bert_keras import checkpoints
from bert_keras.checkpoints.detect import describe_content
from bert_keras.checkpoints.hugging_face import TASK_FILE, TOP
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.checkpoints.sentence_transformers import DENSE, DENSE_FILE, write_sentence_settings
from bert_keras.checkpoints.weights import check_weights
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.fields import field_types
from bert_keras.io import formats
from bert_keras.io.files import digest_file, write_json
from bert_keras.io.json_files import (
    MAX_JSON_BYTES,
    NUMBER,
    OBJECT,
    TEXT,
    FieldType,
    checked_fields,
    list_of,
    object_of,
    one_of,
    or_null,
    read_bounded,
    read_object,
    shortened,
)
from bert_keras.io.own_code import is_own, name_of
from bert_keras.io.paths import refuse_remote_weights, to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import bilstm_of, bilstm_parameters
from bert_keras.tasks.batches import check_examples, predict
from bert_keras.tasks.hparams import BILSTM_SETTINGS, Hparams
from bert_keras.tasks.options import FeatureOptions
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.runs.facts import measured
from bert_keras.tasks.runs.notebook import show_run
from bert_keras.tasks.runs.task_types import TASKS, task_type, type_of_kind
from bert_keras.tasks.task import Task
from bert_keras.tasks.training.loop import LOGS, RESULTS_FILE
from bert_keras.tasks.training.task_model import (
    NEW_PARTS,
    check_sizes,
    encoder_of,
    freeze,
    has_encoder,
    heads_of,
    members_of,
    network_of,
    paths_of,
    read_weights,
    write_weights,
)
from bert_keras.text.preprocessing import TRUNCATION, Preprocessor
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.vocabulary import MERGES_TXT, SENTENCEPIECE, VOCAB_JSON, VOCAB_TXT

# Keys in results.json: file name -> SHA-256; the model that the run started from (`origin_of`); the reason why the kept
# epoch did not learn, or null. A run of a grid whose loss diverged has only the reason.
FILES, ORIGIN, DEGENERATE = "files", "origin", "degenerate"
FROZEN = "frozen"  # a key in task.json: the paths of layers that do not train
FEATURES = "features"  # a key in task.json: the settings of a BiLSTM on frozen features
KERAS = ".keras"
GIVEN_TASK = "bert_keras task"  # the name under which `load_file` gives Keras the class of a user's own task
_NOT_A_RUN = f"{{}} is not the {TASK_FILE} of a run"
CHECKED = ("model.safetensors", TOP, DENSE_FILE, VOCAB_TXT, SENTENCEPIECE, VOCAB_JSON, MERGES_TXT)


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

    def _repr_html_(self) -> str:
        kept = len(members_of(self.model)) == 1 and is_run(self.path) and (self.path / RESULTS_FILE).is_file()
        results = read_object(self.path / RESULTS_FILE) if kept else {}
        return show_run(self, measured(results), title="Run", measured="on the dev split")


def save_checkpoint(path: pathlib.Path, tokenizer: Tokenizer, checkpoint: checkpoints.Checkpoint) -> None:
    """Writes weights, config and vocabulary.

    Raises OSError if the disk is full; earlier files stay. Raises BertKerasError if a weight is not finite.
    """
    checkpoint = checkpoints.with_tokenizer(checkpoint, tokenizer)
    checkpoints.write(checkpoint, path, format="hugging-face", overwrite=True)


def save_weights(
    path: pathlib.Path,
    tokenizer: Tokenizer,
    encoder: BertEncoder,
    heads: Mapping[str, keras.layers.Layer],
    *,
    without: Sequence[str] = (),
    labels: Sequence[str] = (),
    problem_type: str | None = None,
    score_function: str | None = None,
) -> None:
    """Writes an encoder with its heads, config and vocabulary. Raises as `save_checkpoint`.

    without: untrained parts to leave out
    labels: the names of a classifier's classes, in the order of its logits
    problem_type, score_function: see `Checkpoint`
    """
    checkpoint = checkpoints.collect(encoder.config, encoder, **heads)
    kept = {name: value for name, value in checkpoint.tensors.items() if name.split("/")[0] not in without}
    named: dict[str, Any] = {"labels": tuple(labels) or None, "problem_type": problem_type}
    named |= {"tensors": kept, "score_function": score_function}
    save_checkpoint(path, tokenizer, dataclasses.replace(checkpoint, **named))


def save_run(
    path: pathlib.Path,
    task: Task,
    preprocess: Preprocessor,
    model: keras.Model,
    *,
    frozen: Sequence[str] = (),
) -> None:
    """Writes weights, config, vocabulary and task.json. Raises as `save_weights`.

    An embedding gets the files of sentence-transformers too, which has no combined layers: these are of this package alone.

    model: has no encoder if it learned from stored vectors; the folder then has the weights of the encoder already
    frozen: paths of layers that `load_run` freezes
    """
    heads, bilstm, tokenizer = heads_of(model), bilstm_of(model), preprocess.tokenizer
    if isinstance(task, Embedding) and task.layers == FeatureOptions.layers:
        _save_sentence_settings(path, task, preprocess, heads.pop(DENSE, None), encoder_of(model).config)
    if bilstm is None:
        named: dict[str, Any] = {"labels": task.label_names, "problem_type": task.problem_type}
        named["score_function"] = task.score_function
        save_weights(path, tokenizer, encoder_of(model), heads, **named)
        if task.score_function is not None:  # sentence-transformers cuts pairs at the tokenizer's length
            write_tokenizer(tokenizer.to_vocabulary(), path, max_length=preprocess.seq_length)
    else:
        if has_encoder(model):
            save_weights(path, tokenizer, encoder_of(model), {})
        write_weights(path / TOP, paths_of(heads))
    save_task(path, task, preprocess, frozen=frozen, features=bilstm.settings if bilstm else None)


def _save_sentence_settings(
    path: pathlib.Path, task: Embedding, preprocess: Preprocessor, dense: Any, config: BertConfig
) -> None:
    """Writes the files of sentence-transformers. dense: the layer after the pooling, or None."""
    check_weights(dense.weights if dense else (), where=f", to be written to {path},")
    arguments = vars(task) | ({"pooling": "last"} if task.pooling == "cls" and config.causal else {})
    weights = dense.get_weights() if dense else ()
    sizes = {"width": config.hidden_size, "seq_length": preprocess.seq_length}
    write_sentence_settings(path, arguments, weights, **sizes)


def save_task(
    path: pathlib.Path,
    task: Task,
    preprocess: Preprocessor,
    *,
    frozen: Sequence[str] = (),
    features: Mapping[str, Any] | None = None,
) -> None:
    """Writes the task.json of a run."""
    content = formats.stamp(formats.RUN) | {"kind": task.kind, "task": task.to_json()}
    content |= {"seq_length": preprocess.seq_length, "truncation": preprocess.truncation}
    content |= {FEATURES: dict(features)} if features else {}
    write_json(path / TASK_FILE, content | ({FROZEN: [*frozen]} if frozen else {}))


def check_readable(task: Task) -> None:
    """Raises BertKerasError for a task that lacks a member, or that no reader of its task.json would take."""
    task_type(type(task))
    if lacking := [name for name in ("name", "measure") if not hasattr(task, name)]:
        raise BertKerasError(
            f"{name_of(task)} lacks {', '.join(lacking)}; help(bert_keras.Task) describes its members."
        )
    for name, value in task.to_json().items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            raise BertKerasError(
                f"{name} is {shortened(value)}, which cannot be saved ({first_line(error)}); give plain text and finite numbers."
            ) from error
    type(task).from_json(json.loads(json.dumps(task.to_json())))


def digests(path: pathlib.Path) -> dict[str, str]:
    """The SHA-256 of a run's weights and vocabulary, by file name."""
    return {name: digest_file(path / name) for name in CHECKED if (path / name).is_file()}


def is_run(path: str | os.PathLike[str]) -> bool:
    """True if a folder is a run. KerasHub's presets have a task.json too, which names a registered class."""
    file = to_path(path) / TASK_FILE
    return file.is_file() and b'"registered_name"' not in read_bounded(file, MAX_JSON_BYTES)


def check_finished(path: pathlib.Path) -> None:
    """Raises BertKerasError if a run is unfinished, if its loss diverged, or if a file was changed after training."""
    results = path / RESULTS_FILE
    if not results.is_file():
        if (path / LOGS).is_dir():
            raise BertKerasError(
                f"{path} is an unfinished run: it has no {RESULTS_FILE}; rerun its training command to finish it."
            )
        return  # a snapshot, or an ELECTRA's generator
    kinds = {FILES: object_of(TEXT), "task": TEXT, DEGENERATE: or_null(TEXT)}
    recorded = checked_fields(read_object(results), kinds, where=results, optional=kinds, others=True)
    if {*recorded} == {DEGENERATE}:
        raise BertKerasError(
            f"{path} has no trained model: {recorded[DEGENERATE]}; train again with a lower learning rate."
        )
    if "task" in recorded and not is_run(path):
        raise MissingFileError(f"{path} has no {TASK_FILE}; train again.")
    for name, wanted in recorded.get(FILES, {}).items():
        if name not in CHECKED:
            raise BertKerasError(
                f"{results} names {shortened(name)}, which is no file of a run; train again."
            )
        if not (path / name).is_file():
            raise MissingFileError(f"{path} has no {name}; train again.")
        if digest_file(path / name) != wanted:
            raise BertKerasError(
                f"{path / name} was changed after training (its SHA-256 differs from {RESULTS_FILE}); train again, or remove "
                f"{FILES!r} from {RESULTS_FILE} if you changed it yourself."
            )


def read_history(path: pathlib.Path) -> list[dict[str, float]]:
    """The losses and measures of each epoch of a run, by name; [] for a model that has none."""
    file = path / RESULTS_FILE
    kinds = {"history": list_of(OBJECT)}
    found = read_object(file) if file.is_file() else {}
    epochs = checked_fields(found, kinds, where=file, optional=kinds, others=True).get("history", [])
    return [{name: value for name, value in epoch.items() if NUMBER.accepts(value)} for epoch in epochs]


def load_file(
    path: pathlib.Path, *, compile: bool = True, safe_mode: bool = True, task: str | type[Task] | None = None
) -> Any:
    """The Keras model of a `.keras` file; arguments as Keras' `load_model`.

    task: as in `type_of_kind`

    Raises MissingFileError if there is none, BertKerasError for a damaged one.
    """
    refuse_remote_weights(path)
    if not path.is_file():
        raise checkpoints.missing_run(path)
    _check_archive(path)
    own = {} if task is None else {GIVEN_TASK: task_type(task)}
    try:
        model = keras.saving.load_model(path, own, compile=compile, safe_mode=safe_mode)
    # Keras' readers raise all of these for a file that lacks a part, or whose parts contradict each other.
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, BertKerasError) or getattr(error, "errno", None):  # a full disk is no damage
            raise
        raise BertKerasError(
            f"{path} cannot be loaded: {first_line(error)}; save the model again, with this version of Keras."
        ) from error
    check_weights(model.weights, where=f" in {path}")
    return model


def _check_archive(path: pathlib.Path) -> None:
    """Raises BertKerasError unless every member of a `.keras` file is whole. Keras unpacks members before it reads them."""
    with path.open("rb"):  # an error about permission is not one about damage
        pass
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, RuntimeError) as error:
        if other := describe_content(path):
            raise BertKerasError(f"{path} {other}.") from error
        raise BertKerasError(
            f"{path} is no Keras file, or is cut short or damaged: {first_line(error)}; save the model again."
        ) from error
    if wrong:
        raise BertKerasError(f"{path} is damaged in {wrong}; save the model again.")


def _run_of_file(path: pathlib.Path, data: str | pathlib.Path | None, task: str | type[Task] | None) -> Run:
    """The run of a TextModel's `.keras` file. Raises as `load_file`, and for a model of another class."""
    model = load_file(path, compile=False, task=task)
    if not hasattr(model, "as_run"):
        other = f" ({other})" if (other := checkpoints.describe(path)) else ""
        raise BertKerasError(
            f"{path} holds a {type(model).__name__}, and a run is a TextModel{other}; give a file that a model of bert_keras "
            "wrote, such as bert_keras.classifier, or the folder of a run."
        )
    run: Run = model.as_run(path)
    return dataclasses.replace(run, task=type(run.task).from_json(run.task.to_json(), data))


def task_of(
    path: str | os.PathLike[str],
    *,
    data: str | pathlib.Path | None = None,
    task: str | type[Task] | None = None,
) -> Task:
    """The task of a run's folder, without its weights, which may be large. Arguments and errors as in `load_run`."""
    return _task_in(to_path(path), data, task)[0]


def _task_in(
    path: pathlib.Path, data: str | pathlib.Path | None, given: str | type[Task] | None
) -> tuple[Task, dict[str, Any]]:
    """The task of a run's folder, and the content of its task.json."""
    file = path / TASK_FILE
    if not is_run(path):
        check_finished(path)  # it may say more: a run whose loss diverged has no task
        raise checkpoints.missing_run(path)
    kinds = {
        "kind": FieldType(
            one_of(TASKS).wanted, lambda kind: isinstance(kind, str) and (kind in TASKS or is_own(kind))
        ),
        "task": OBJECT,
        "seq_length": field_types(Hparams)["seq_length"],
        "truncation": one_of(TRUNCATION),
        FROZEN: list_of(TEXT),
        FEATURES: OBJECT,
    }
    where = _NOT_A_RUN.format(file)
    content = read_object(file)
    formats.check_format(formats.RUN, content, where=file)
    content = checked_fields(content, kinds, where=where, optional=(FROZEN, FEATURES), others=True)
    kind = type_of_kind(content["kind"], given, where=path)
    try:
        task = kind.from_json(content["task"], data)
    except FileNotFoundError:  # of the data
        raise
    except BertKerasError as error:
        raise BertKerasError(f"{where}: {error}") from error
    return task, content


def load_run(
    path: str | os.PathLike[str],
    *,
    data: str | pathlib.Path | None = None,
    task: str | type[Task] | None = None,
    unfinished: bool = False,
) -> Run:
    """Loads a run that `finetune` wrote, with the task's examples in `data` (None: TensorFlow Datasets).

    path: its folder, or the `.keras` file of a TextModel
    task: the class of a task of your own, or its name MODULE:CLASS; the code that a run names is never imported
    unfinished: accept a run whose training goes on: its best epoch so far

    Raises FileNotFoundError or ValueError for a missing or wrong file, with its name.
    """
    path = to_path(path)
    refuse_remote_weights(path)
    if path.suffix == KERAS:
        return _run_of_file(path, data, task)
    made, content = _task_in(path, data, task)
    if not unfinished:
        check_finished(path)
    where = _NOT_A_RUN.format(path / TASK_FILE)
    features = _features_in(content[FEATURES], where=where) if FEATURES in content else None
    sizes = {name: content[name] for name in ("seq_length", "truncation")}
    try:
        run = run_of(made, path, **sizes, features=features)
    except BertKerasError as error:
        if str(path) in str(error):
            raise
        raise BertKerasError(f"{path / TASK_FILE}: {error}") from error  # about one of its settings
    freeze(run.model, content.get(FROZEN, ()))
    return run


def _features_in(content: Mapping[str, Any], *, where: str) -> dict[str, Any] | None:
    """The settings of a BiLSTM in task.json. Raises BertKerasError for a wrong one."""
    kinds = field_types(Hparams)
    kinds = {"feature_layers": TEXT, **{name: kinds[name] for name in BILSTM_SETTINGS}}
    newer = ("mix_norm", "feature_reader")  # runs of older versions lack them
    given = checked_fields(content, kinds, where=f"{where}: {FEATURES}", optional=newer)
    try:
        return Hparams(**given).features
    except BertKerasError as error:
        raise BertKerasError(f"{where}: {FEATURES}: {error}") from error


def _check_size(file: pathlib.Path, config: BertConfig, features: Mapping[str, Any]) -> None:
    """Raises an error if a file has too few bytes for its BiLSTM, before any memory is allocated for it."""
    if not file.is_file():
        raise MissingFileError(f"no {file.name} in {file.parent}; train again.")
    needed, there = 2 * bilstm_parameters(config, features), file.stat().st_size  # 2 bytes: float16
    if needed > there:
        raise BertKerasError(
            f"{file} has {there:,} bytes, and the BiLSTM in {TASK_FILE} needs {needed:,}; train again."
        )


def run_of(
    task: Task,
    path: str | os.PathLike[str] | checkpoints.Checkpoint,
    *,
    seq_length: int | None = None,
    truncation: str = "longest_first",
    features: Mapping[str, Any] | None = None,
) -> Run:
    """Makes a run from a task and a checkpoint's weights, including heads, without training.

    path: a path or a name for `checkpoints.read`, or a Checkpoint
    seq_length: in tokens; None takes all positions of the encoder
    features: the settings of a BiLSTM on frozen features, whose weights are in the folder's TOP

    Raises FileNotFoundError or ValueError for a missing or wrong file, with its name.
    """
    checkpoint = path if isinstance(path, checkpoints.Checkpoint) else checkpoints.read(path)
    folder = to_path(checkpoint.path)
    task.check_checkpoint(checkpoint)
    task, checkpoint = task.started_from(checkpoint)
    tokenizer = checkpoints.tokenizer_of(checkpoint)
    longest = min(
        checkpoint.config.max_length, checkpoint.vocabulary.max_length or checkpoint.config.max_length
    )
    seq_length = longest if seq_length is None else seq_length
    check_sizes(checkpoint.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    if features is not None:
        _check_size(folder / TOP, checkpoint.config, features)
    encoder, made = network_of(task, checkpoint.config, features)
    if features is None:
        checkpoints.assign(checkpoint, encoder, **heads_of(made))
    else:
        checkpoints.assign(checkpoint, encoder, fresh=NEW_PARTS)
        read_weights(folder / TOP, paths_of(heads_of(made)), wanted_by=TASK_FILE)
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, truncation=truncation, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=made, path=folder)


def evaluate(run: Run, split: str, *, batch_size: int = 32) -> dict[str, float]:
    """The task's measures on one split, from what `decode` returns."""
    examples = run.task.examples(split)
    check_examples(run.task, run.preprocess, examples)
    predictions, raw = predict(run.task, run.preprocess, run.model, examples, batch_size=batch_size)
    return dict(run.task.evaluate(predictions, raw))
