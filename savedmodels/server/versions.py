"""The versions of a model that answer requests: found in a folder, loaded, warmed up, retired.

In: a folder of versions, or one version, and the models.config beside them. Out: `Versions`, which finds the version of a
request. A `Watcher` looks at the folder again and again and changes the versions without a pause, as TensorFlow Serving does.
"""

import dataclasses
import json
import pathlib
import threading
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import tensorflow as tf
from google.protobuf import message, text_format
from tensorflow.core.framework import tensor_pb2

from bert_keras.errors import BertKerasError, MissingFileError, first_line
from bert_keras.io.paths import for_tensorflow, to_path
from bert_keras.optimization.replicas import without_autotuning
from bert_keras.savedmodels.server.served import (
    DEFAULT_SIGNATURE,
    Call,
    RequestError,
    Served,
    example_of,
    find_versions,
    load_version,
)
from bert_keras.savedmodels.serving_protos import MODELS, WARMUP, ModelServerConfig, PredictionLog
from bert_keras.savedmodels.verify import EXTRA
from bert_keras.tasks.options import ServerOptions

MAX_WARMUP = 1_000  # records, as in TensorFlow Serving


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What models.config says of a model.

    name: in requests; None takes the folder's name
    latest: the number of newest versions to serve; None serves all
    specific: the versions to serve; None goes by `latest`
    labels: names of versions in requests
    """

    name: str | None = None
    latest: int | None = 1
    specific: Collection[int] | None = None
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def choose(self, found: Collection[int]) -> list[int]:
        """The versions to serve, of those that are there."""
        if self.specific is not None:
            return sorted({*self.specific} & {*found})
        return sorted(found)[-self.latest :] if self.latest else sorted(found)


def read_settings(file: pathlib.Path) -> ModelSettings:
    """The settings in a models.config; the defaults where there is none.

    `base_path` is not followed: it is a place in a container. Raises BertKerasError for fields and values that we do not follow.
    """
    if not file.is_file():
        return ModelSettings()
    try:
        parsed = text_format.Parse(file.read_text(encoding="utf-8"), ModelServerConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise BertKerasError(
            f"{file}: {error}; this server follows name, model_version_policy and version_labels of a model."
        ) from error
    models = parsed.model_config_list.config
    if len(models) != 1:
        raise BertKerasError(f"{file} has {len(models)} models; this server serves one: give one `config`.")
    (model,) = models
    if model.model_platform not in ("", "tensorflow"):
        raise BertKerasError(f'{file}: model_platform is {model.model_platform!r}; give "tensorflow".')
    policy = model.model_version_policy
    chosen = [field.name for field, _ in policy.ListFields()]
    if len(chosen) > 1:
        raise BertKerasError(f"{file}: model_version_policy has {' and '.join(chosen)}; give one of them.")
    if chosen == ["specific"] and not policy.specific.versions:
        raise BertKerasError(f"{file}: model_version_policy has no version in `specific`; give one or more.")
    return ModelSettings(
        name=model.name or None,
        latest=None if chosen == ["all"] else policy.latest.num_versions or 1,
        specific=[*policy.specific.versions] if chosen == ["specific"] else None,
        labels=dict(model.version_labels),
    )


class Versions:
    """The loaded versions of a model by their numbers. One thread replaces them while others find them.

    labels: names of versions in requests
    """

    def __init__(self, *served: Served, labels: Mapping[str, int] | None = None) -> None:
        self.replace({one.version: one for one in served}, labels or {})

    def replace(self, served: Mapping[int, Served], labels: Mapping[str, int]) -> None:
        """Takes other versions and labels, both at once; requests that run keep theirs."""
        self._now = dict(sorted(served.items())), dict(labels)

    @property
    def served(self) -> dict[int, Served]:
        """The versions by rising numbers."""
        return self._now[0]

    @property
    def labels(self) -> dict[str, int]:
        """The versions of the labels."""
        return self._now[1]

    @property
    def newest(self) -> Served:
        """The version that answers requests without a version."""
        return [*self.served.values()][-1]

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.newest.name

    @property
    def address(self) -> str:
        """The model's path in REST, with the name quoted."""
        return f"/v1/models/{urllib.parse.quote(self.name, safe='')}"

    def example_request(self, host: str) -> tuple[str, str]:
        """The address and the JSON that ask the newest version for its example. host: of the server, with its port."""
        names = self.newest.signatures
        signature = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else next(iter(names), DEFAULT_SIGNATURE)
        named = {} if signature == DEFAULT_SIGNATURE else {"signature_name": signature}
        body = json.dumps(named | {"instances": [example_of(self.newest, signature)]})
        return f"http://{host}{self.address}:predict", body

    def find(self, name: str, version: int | None = None, label: str | None = None) -> Served:
        """The version that a request asks for. Raises RequestError where there is none."""
        served, assigned = self._now
        known = f"this server has {self.name} version{'s' * (len(served) > 1)} {', '.join(map(str, served))}"
        if label is not None:
            if label not in assigned:
                labels = (
                    f"the labels are {', '.join(sorted(assigned))}" if assigned else "there are no labels"
                )
                raise RequestError(f"Unrecognized servable version label: {label}; {labels}, and {known}.")
            version = assigned[label]
        if name != self.name or version is not None and version not in served:
            wanted = name if version is None else f"{name} version {version}"
            raise RequestError(f"there is no model {wanted}; {known}.", "NOT_FOUND")
        return [*served.values()][-1] if version is None else served[version]

    def status(self) -> dict[str, Any]:
        """The GetModelStatusResponse of the available versions, as JSON, the newest first."""
        status = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [
                {"version": str(version), "state": "AVAILABLE", "status": status}
                for version in reversed(self.served)
            ]
        }


class Watcher:
    """A context manager with a thread that looks for versions, and at models.config, every `seconds`; 0 looks once.

    path: a folder of versions, or one version
    config: the models.config to follow; None takes the file in the folder
    name: the model's name in requests; None takes that of models.config, or the folder's
    log: takes a line about each version that is loaded, retired or damaged

    A new version answers only after its warm-up; the versions that it replaces are retired then. A version that cannot be loaded
    is tried again when its files have changed; at the start, where the policy asks for the newest versions, older ones take its
    place. A label moves when its version is loaded. If no version is left, or models.config is damaged or away, the last
    versions and labels go on.
    Raises MissingFileError if there is no version, BertKerasError for a wrong models.config, and if no version can be loaded.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        *,
        name: str | None = None,
        config: str | pathlib.Path | None = None,
        seconds: float = 0,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._path, self._seconds, self._log = to_path(path), seconds, log
        self._config = to_path(config) if config else self._path / MODELS
        if config and not self._config.is_file():
            raise MissingFileError(
                f"there is no {config}; give a models.config such as `bert-keras export` writes."
            )
        self._settings = read_settings(self._config)
        self._configured, self._name = self._config.is_file(), name or self._settings.name
        self._failed: dict[int, tuple[Any, str]] = {}  # version -> the state of its files, and the reason
        self._last_line = ""
        self._ended = threading.Event()
        self.versions = Versions(*self._first(find_versions(self._path)), labels=self._settings.labels)

    def __enter__(self) -> Self:
        if self._seconds:
            threading.Thread(target=self._watch, name="versions", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self.look()
            except (
                OSError,
                BertKerasError,
            ) as error:  # such as too many open files, or a folder that is away
                self._say(f"warning: cannot look for versions: {first_line(error)}")

    def _say(self, line: str) -> None:
        if line != self._last_line:
            self._log(line)
        self._last_line = line

    def _try_to_load(self, version: int, folder: pathlib.Path) -> Served | None:
        """The version after its warm-up; None, with a line, if it cannot be loaded, and while its files stay as they are."""
        state = _state(folder)
        if self._failed.get(version, (None,))[0] == state:
            return None
        try:
            served = load_version(folder, name=self._name)
            warm_up(served)
        except tf.errors.CancelledError:  # a request was stopped meanwhile; TensorFlow cancels in all threads
            return None
        except Exception as error:  # whatever is wrong with its files, the other versions go on
            self._failed[version] = state, first_line(error)
            self._say(f"warning: version {version} cannot be loaded: {first_line(error)}")
            return None
        return served

    def _first(self, found: Mapping[int, pathlib.Path]) -> list[Served]:
        """The versions to begin with. Raises BertKerasError if none of them can be loaded."""
        chosen, left, loaded = self._chosen(found), {*found}, list[Served]()
        while not loaded:
            made = [self._try_to_load(version, found[version]) for version in chosen]
            loaded = [one for one in made if one is not None]
            left -= {*chosen}
            if not loaded and not (chosen := self._settings.choose(left)):
                known = [(number, reason) for number, (_, reason) in self._failed.items()]
                version, reason = known[-1] if known else (max(found), "its load was cancelled")
                raise BertKerasError(
                    f"no version of {self._path} can be loaded (version {version}: {reason}); export it again, or serve another."
                )
        return loaded

    def _chosen(self, found: Collection[int]) -> list[int]:
        """The versions to serve, of those that are there. Raises BertKerasError if there is none, or a label has another one."""
        if not (chosen := self._settings.choose(found)):
            raise BertKerasError(
                f"{self._config} asks for the versions {', '.join(map(str, self._settings.specific or ()))}; "
                f"the folder has {', '.join(map(str, sorted(found)))}."
            )
        served = {*chosen, *(self._settings.specific or ())}
        if lost := [pair for pair in self._settings.labels.items() if pair[1] not in served]:
            raise BertKerasError(
                f"{self._config} gives the label {lost[0][0]} to version {lost[0][1]}, and its model_version_policy serves "
                f"{', '.join(map(str, sorted(served)))}; serve that version too, or move the label."
            )
        return chosen

    def _follow(self) -> None:
        """Reads models.config again. Raises BertKerasError if it is damaged or away, or renames the model."""
        if self._configured and not self._config.is_file():
            raise BertKerasError(f"{self._config} is away; its last versions and labels stay.")
        settings = read_settings(self._config)
        if settings.name not in (None, self._settings.name, self.versions.name):
            raise BertKerasError(
                f"{self._config} names the model {settings.name}; start the server again to rename {self.versions.name}."
            )
        self._settings, self._configured = settings, self._config.is_file()

    def look(self) -> None:
        """Loads the versions that the folder has and the server should have, then retires the others."""
        self._follow()
        settings = self._settings
        found, served, labels = find_versions(self._path), self.versions.served, self.versions.labels
        chosen = self._chosen(found)
        loaded = {version: served[version] for version in chosen if version in served}
        for version in [one for one in chosen if one not in served]:
            if (made := self._try_to_load(version, found[version])) is not None:
                loaded[version] = made
        if loaded.keys() - served.keys():
            self._follow()
            # It has changed meanwhile: the loaded version may not be wanted any more.
            if self._settings != settings:
                self.look()
                return
        if away := sorted({*(settings.specific or ())} - {*found}):
            self._say(f"warning: {self._config} asks for version {away[0]}, which {self._path} does not have")
        moved = {
            label: version if version in loaded else labels.get(label, version)
            for label, version in self._settings.labels.items()
        }
        if loaded and (loaded.keys() != served.keys() or moved != labels):
            self.versions.replace(loaded, moved)
            shown = "".join(f", {label} is {version}" for label, version in sorted(moved.items()))
            self._say(
                f"{self.versions.name}: now version{'s' * (len(loaded) > 1)} {', '.join(map(str, sorted(loaded)))}{shown}"
            )


def _state(folder: pathlib.Path) -> Any:
    """The sizes and times of a version's files, which change while it is copied."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sorted((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def warm_up(served: Served) -> None:
    """Runs the requests in assets.extra/tf_serving_warmup_requests, which a version may have, so that the first answer is fast.

    Raises BertKerasError, with the record, for a request that the version does not answer.
    """
    file = served.folder / EXTRA / WARMUP
    if not file.is_file():
        return
    with for_tensorflow(served.folder) as found:
        records = without_autotuning(tf.data.TFRecordDataset(str(pathlib.Path(found) / EXTRA / WARMUP)))
        try:
            for number, record in enumerate(records):
                if number == MAX_WARMUP:
                    raise BertKerasError(
                        f"{file} has over {MAX_WARMUP:,} records; TensorFlow Serving takes no more."
                    )
                try:
                    _answer(served, record.numpy())
                except (RequestError, message.DecodeError, ValueError, TypeError) as error:
                    raise BertKerasError(f"{file}, record {number}: {first_line(error)}") from error
        except tf.errors.DataLossError as error:
            raise BertKerasError(
                f"{file} is damaged: {first_line(error)}; export the model again."
            ) from error


def _answer(served: Served, record: bytes) -> None:
    """Runs a PredictionLog. Raises ValueError for bytes that are none, RequestError as `Served.predict`."""
    log = PredictionLog.FromString(record)
    if not log.HasField("predict_log"):
        kinds = [field.name for field, _ in log.ListFields()]
        raise BertKerasError(f"a {kinds[0] if kinds else 'record without a request'}; give predict_log alone")
    request = log.predict_log.request
    inputs = {
        name: tf.constant(tf.make_ndarray(tensor_pb2.TensorProto.FromString(proto)))
        for name, proto in request.inputs.items()
    }
    served.predict(request.model_spec.signature_name or DEFAULT_SIGNATURE, inputs, Call(ServerOptions()))
