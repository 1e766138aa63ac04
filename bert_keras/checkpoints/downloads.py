"""Models by name: a name, an address or a path -> a folder on this machine, downloaded where it is not there yet.

    runs/mrpc, ./x, /x, ~/x, a pathlib.Path      a path: never looked up
    bert-base-uncased, org/name                  a model of `published`, else a repository of the Hugging Face Hub
    hf://org/name@revision                       the Hub: a branch, a tag or a commit
    google://NAME, model_garden://NAME           the archives that Google publishes
    keras_hub://NAME                             a preset of KerasHub
    https://tfhub.dev/tensorflow/HANDLE/VERSION  the Model Garden archive with the weights of a TensorFlow Hub model
    https://..., kaggle://HANDLE, HANDLE         another module of TensorFlow Hub: see `archives`

A path that exists comes first. SCHEMES is the table of the rest. Each download has a cache: the Hub's and Kaggle's own, and
`paths.cache_folder` for archives.
"""

import contextlib
import dataclasses
import difflib
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_keras.checkpoints.hugging_face import HUGGING_FACE, OPENERS
from bert_keras.checkpoints.keras_hub import keras_hub
from bert_keras.checkpoints.published import (
    ADDRESSES,
    GOOGLE_ARCHIVES,
    GOOGLE_URL,
    KNOWN,
    MODEL_GARDEN_ARCHIVES,
    MODEL_GARDEN_URL,
    TF_HUB,
    TF_HUB_URL,
)
from bert_keras.checkpoints.sentence_transformers import MODULES, SETTINGS
from bert_keras.checkpoints.tokenizer_tables import (
    ADDED_TOKENS,
    SENTENCE_CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
)
from bert_keras.checkpoints.torch_files import TORCH, import_torch
from bert_keras.errors import BertKerasError, MissingFileError, first_line, first_names
from bert_keras.io.archives import (
    TIMEOUT,
    download,
    find_module,
    inner_folder,
    innermost_line,
    is_handle,
    kaggle_folder,
    unpack,
)
from bert_keras.io.paths import cache_folder, did_you_mean, is_remote, to_path
from bert_keras.text.vocabulary import MERGES_TXT, SENTENCEPIECE, TOKENIZER_JSON, VOCAB_JSON, VOCAB_TXT

_SEPARATOR = "://"
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?", re.ASCII)

_CONFIG = "config.json"
_TOKENIZER_FILES = (
    *(VOCAB_TXT, SENTENCEPIECE, VOCAB_JSON, MERGES_TXT, TOKENIZER_JSON, TOKENIZER_CONFIG),
    *(ADDED_TOKENS, SPECIAL_TOKENS, SENTENCE_CONFIG),
    *(MODULES, SETTINGS, "*_Pooling/config.json", "*_Dense/*.json"),  # of sentence-transformers
)
# The first group of which a repository has a file is downloaded. A PyTorch file needs torch to be read.
_WEIGHTS = tuple(
    (name, f"{name}.index.json", f"{stem}-*-of-*.{suffix}")
    for name in OPENERS
    for stem, suffix in [name.split(".")]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalModel(os.PathLike[str]):
    """A model that is on this machine; a path wherever one is accepted.

    path: its folder, or what else `checkpoints.read` takes
    address: the address that it was downloaded from, without a revision; "" for a path
    revision: the commit of a Hub repository, or the version of a Kaggle model; "" where there is none
    licence: its SPDX id in lower case; "" where it is not known
    """

    path: pathlib.Path
    address: str = ""
    revision: str = ""
    licence: str = ""

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def origin(self) -> dict[str, str]:
        """Address, revision and licence, those that are known, for JSON."""
        known = {"model": self.address, "revision": self.revision, "license": self.licence}
        return {name: value for name, value in known.items() if value}


def resolve(model: str | os.PathLike[str], *, weights: bool = True) -> LocalModel:
    """The model of a path, a name or an address (see above). A path is returned as it is, even where nothing is there.

    weights: False downloads the configuration and the tokenizer alone, where the source has them as files of their own

    Raises MissingFileError where no source has the model or none can be reached, and BertKerasError where the model needs a
    token or has no weights that can be read.
    """
    if isinstance(model, LocalModel):
        return model
    if not isinstance(model, str) or is_path(model):
        return LocalModel(path=to_path(model))
    scheme, separator, name = find_address(model).partition(_SEPARATOR)
    if not separator or scheme not in SCHEMES:
        raise MissingFileError(
            f"{_nothing_at(model)}, and no address of a model; addresses are "
            f"{', '.join(f'{scheme}{_SEPARATOR}NAME' for scheme in SCHEMES)}."
        )
    return SCHEMES[scheme](name, model, weights)


def find_address(name: str) -> str:
    """The address that a name stands for: a known model's, else that of a repository of the Hub."""
    name, at, revision = name.partition("@")
    handle = re.sub(r"/\d+/?$", "", name.removeprefix(TF_HUB_URL))
    if name.startswith(TF_HUB_URL) and handle in TF_HUB:
        return TF_HUB[handle]
    if name in KNOWN:
        return KNOWN[name].address + at + revision
    if is_handle(name):
        return f"kaggle{_SEPARATOR}{name}"
    is_repository = _REPOSITORY.fullmatch(name + at + revision)
    return (f"hf{_SEPARATOR}" if is_repository else "") + name + at + revision


def close_models(given: str) -> str:
    """The known models and the files beside a path with close names, in brackets for an error; else nothing."""
    scheme, _, rest = given.rpartition(_SEPARATOR)
    path = to_path(rest)
    name = path.name.partition("@")[0]
    if name in KNOWN:
        return ""
    known = difflib.get_close_matches(name, KNOWN, cutoff=0.7)
    if scheme:
        return f" (did you mean {' or '.join(known)}?)" if known else ""
    return did_you_mean(path, others=known)


def is_path(given: str) -> bool:
    """True for a path that exists, also as the prefix of a TensorFlow checkpoint, and for what only a path looks like."""
    if is_remote(given):
        return True
    if _SEPARATOR in given:
        return False
    path = to_path(given)
    return (
        path.exists()
        or path.with_name(f"{path.name}.index").exists()
        or not (_REPOSITORY.fullmatch(given) or is_handle(given))
        or given.startswith(".")
        # With its folder on this machine, a path has a typo.
        or (path.parent != pathlib.Path() and path.parent.is_dir())
    )


def _nothing_at(given: str) -> str:
    """The start of an error about a name: nothing is there on the disk."""
    return f"no checkpoint at {given}: no such file or folder"


def _licence(address: str) -> str:
    """The licence of a known model, else nothing."""
    return ADDRESSES[address].licence[0] if address in ADDRESSES else ""


# -----------------------------------------------------------------------------------------------------------
# The Hugging Face Hub


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """Within it, huggingface_hub logs errors alone: its warnings would bury our one line."""
    from huggingface_hub.utils import logging

    kept = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(kept)


@_errors_only()
def _from_hub(name: str, given: str, weights: bool) -> LocalModel:
    """A repository's configuration, tokenizer and weights in the cache of huggingface_hub, at one commit."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    repository, _, revision = name.partition("@")
    revision = revision or constants.DEFAULT_REVISION
    address = f"hf{_SEPARATOR}{repository}"
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision, timeout=TIMEOUT)
    except errors.HFValidationError as error:
        raise MissingFileError(
            f"{_nothing_at(given)}{close_models(given)}, and {first_line(error)}"
        ) from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise _refused(error, repository, revision, given) from None
        return _from_hub_cache(repository, revision, given, weights, why=error)
    except Exception as error:  # no connection; each version of the library has another HTTP client's errors
        return _from_hub_cache(repository, revision, given, weights, why=error)
    files = [file.rfilename for file in info.siblings or ()]
    there = (group for group in _WEIGHTS if {*group[:2]} & {*files})
    patterns = next(there, ()) if weights else ()
    if weights and not patterns:
        wanted = " or ".join(group[0] for group in _WEIGHTS)
        raise BertKerasError(
            f"{address} has no weights that can be read: it has {first_names(sorted(files), 12)}; wanted {wanted}."
        )
    if patterns and patterns[0] == TORCH:
        import_torch(f"{address} has only {TORCH}, which")
    try:
        download = huggingface_hub.snapshot_download
        # The named revision, so that the cache keeps its commit for use without a network; then that commit.
        folder = pathlib.Path(
            download(repository, revision=revision, allow_patterns=[_CONFIG, *_TOKENIZER_FILES])
        )
        if weights:
            HUGGING_FACE.load_config(folder)  # refuses a model_type before the weights are downloaded
            download(repository, revision=folder.name, allow_patterns=[*patterns, *_dense_files(files)])
    except BertKerasError:
        raise
    except errors.HfHubHTTPError as error:
        raise _refused(error, repository, revision, given) from None
    except Exception as error:
        raise BertKerasError(
            f"the download of {address} failed: {innermost_line(error)}; run the same command again."
        ) from error
    card = info.card_data
    licence = str(card.license) if card is not None and card.license else _licence(address)
    return LocalModel(path=folder, address=address, revision=folder.name, licence=licence)


def _dense_files(files: Sequence[str]) -> list[str]:
    """The weights of the dense layers of sentence-transformers, which are in folders of their own."""
    found = [file for file in files if "_Dense/" in file and file.endswith((".safetensors", TORCH))]
    return [file for file in found if file.endswith(".safetensors")] or found


def _from_hub_cache(
    repository: str, revision: str, given: str, weights: bool, *, why: Exception
) -> LocalModel:
    """The folder of an earlier download. Raises MissingFileError if it does not hold the whole model."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    address = f"hf{_SEPARATOR}{repository}"
    try:
        folder = pathlib.Path(
            huggingface_hub.snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=[_CONFIG]
            )
        )
        there = HUGGING_FACE.find(folder) is not None if weights else (folder / _CONFIG).is_file()
    except LocalEntryNotFoundError:
        there = False
    if not there:
        offline = constants.HF_HUB_OFFLINE
        reason = "HF_HUB_OFFLINE is set" if offline else f"no connection ({innermost_line(why)})"
        at = "" if revision == constants.DEFAULT_REVISION else f" --revision {revision}"
        copy = repository.rpartition("/")[2]
        close = close_models(given)
        raise MissingFileError(
            f"{_nothing_at(given)}, {address} is not in the cache {constants.HF_HUB_CACHE}, and it cannot be "
            f"downloaded: {reason}{close}. {f'If {given} is right, on' if close else 'On'} a machine with a network, run "
            f"`hf download {repository}{at} --local-dir {copy}`, copy that folder here and give its path."
        ) from None
    return LocalModel(path=folder, address=address, revision=folder.name, licence=_licence(address))


def _refused(error: Any, repository: str, revision: str, given: str) -> BertKerasError:
    """An answer of the Hub as one line. Without a token, the Hub says 401 for a repository that does not exist, too."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"
    log_in = "run `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return BertKerasError(f"hf://{repository} is gated: accept its terms on {page}, then {log_in}.")
    if isinstance(error, errors.RevisionNotFoundError):
        return MissingFileError(
            f"hf://{repository} has no revision {revision}; {page}/tree/main lists its branches and tags."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        close = close_models(given)
        private = f"{close}. If it is private, {log_in}." if close else f", or it is private: then {log_in}."
        return MissingFileError(
            f"{_nothing_at(given)}, and {constants.ENDPOINT} has no model {repository}{private}"
        )
    status = error.response.status_code
    token = f"; the token may be wrong or not allow this: {log_in}" if status in (401, 403) else ""
    return BertKerasError(f"{page} answered {status} {error.response.reason_phrase}{token}.")


# -----------------------------------------------------------------------------------------------------------
# KerasHub


def _from_keras_hub(name: str, given: str, weights: bool) -> LocalModel:
    """A preset that KerasHub lists, in Kaggle's cache."""
    presets = keras_hub().models.BertBackbone.presets
    handle = presets.get(name, {}).get("kaggle_handle", "").removeprefix("kaggle://")
    address = f"keras_hub{_SEPARATOR}{name}"
    if not handle:
        close = difflib.get_close_matches(name, presets, n=3) or list(presets)[:6]
        raise MissingFileError(
            f"KerasHub has no preset of BERT named {name}; it has {', '.join(close)} among {len(presets)}."
        )
    folder, revision = kaggle_folder(handle, address), handle.rpartition("/")[2]
    return LocalModel(path=folder, address=address, revision=revision, licence=_licence(address))


# -----------------------------------------------------------------------------------------------------------
# Google's archives


def _from_archives(
    name: str, given: str, weights: bool, *, scheme: str, archives: Mapping[str, str], base: str
) -> LocalModel:
    """An archive, unpacked into the cache. archives: name -> its address below `base`."""
    address = f"{scheme}{_SEPARATOR}{name}"
    if name not in archives:
        raise MissingFileError(
            f"no archive named {name}{close_models(given)}; {scheme} has {first_names(archives)}."
        )
    folder = cache_folder() / scheme / name
    if not folder.is_dir():
        unpack(download(base + archives[name], folder.parent, address), folder)
    return LocalModel(path=inner_folder(folder), address=address, licence=_licence(address))


def _from_address(name: str, given: str, weights: bool, *, scheme: str) -> LocalModel:
    """A module of TensorFlow Hub, at its address or by its Kaggle handle."""
    address = f"{scheme}{_SEPARATOR}{name}"
    found = find_module(address)
    assert found is not None  # each scheme of SCHEMES that comes here is one of its own
    return LocalModel(path=found, address=address)


# Scheme -> its resolver: (the name after the scheme, the name as given, with weights) -> LocalModel.
SCHEMES: dict[str, Callable[[str, str, bool], LocalModel]] = {
    "hf": _from_hub,
    "google": functools.partial(_from_archives, scheme="google", archives=GOOGLE_ARCHIVES, base=GOOGLE_URL),
    "model_garden": functools.partial(
        _from_archives, scheme="model_garden", archives=MODEL_GARDEN_ARCHIVES, base=MODEL_GARDEN_URL
    ),
    "keras_hub": _from_keras_hub,
    **{name: functools.partial(_from_address, scheme=name) for name in ("https", "http", "kaggle")},
}
