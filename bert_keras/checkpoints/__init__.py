"""Weights in and out: a folder becomes a Checkpoint, a Checkpoint fills a model; and back.

    folder -> read -> Checkpoint (our names, our layout) -> assign -> encoder and heads
    encoder and heads -> collect -> Checkpoint -> write -> folder

FORMATS is the table of formats; each has a file of its own beside this one.
"""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_keras.checkpoints.checkpoint import ARCHITECTURES, HEADS, Checkpoint, Format, variable_shapes
from bert_keras.checkpoints.detect import Found, describe, detect, missing_run
from bert_keras.checkpoints.downloads import LocalModel, close_models, is_path, resolve
from bert_keras.checkpoints.hugging_face import HUGGING_FACE
from bert_keras.checkpoints.hugging_face_tokenizer import own_tokens, read_tokenizer
from bert_keras.checkpoints.keras_2_files import KERAS_2
from bert_keras.checkpoints.keras_hub import KERAS_HUB
from bert_keras.checkpoints.kinds import READ
from bert_keras.checkpoints.letter_case import lower_cases
from bert_keras.checkpoints.parity import check_reference, differences
from bert_keras.checkpoints.saved_models import SAVED_MODEL
from bert_keras.checkpoints.sentence_transformers import encoder_folder
from bert_keras.checkpoints.tensorflow import GOOGLE, MODEL_GARDEN
from bert_keras.checkpoints.weights import (
    MAY_LACK,
    Report,
    assign,
    collect,
    read_tensors,
    refuse_lacking,
    refuse_not_finite,
    warn_of_layers,
    with_marks,
    with_max_positions,
    with_vocab_size,
)
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingFileError, first_names
from bert_keras.io.folders import atomic_folder, refuse_partial
from bert_keras.io.paths import is_remote, refuse_remote_weights, to_path
from bert_keras.text.vocabulary import SENTENCEPIECE, VOCAB_TXT, Vocabulary, read_vocabulary

# Keras and TensorFlow are imported by the functions that need them: reading a safetensors file needs neither.
if TYPE_CHECKING:
    from bert_keras.model.encoder import BertEncoder
    from bert_keras.text.tokenizer import Tokenizer

__all__ = [
    "FORMATS",
    "HEADS",
    "WRITTEN",
    "Checkpoint",
    "Found",
    "LocalModel",
    "Report",
    "assign",
    "check_reference",
    "check_there",
    "collect",
    "compare",
    "describe",
    "detect",
    "find_format",
    "format_named",
    "missing_run",
    "load_encoder",
    "load_tokenizer",
    "read",
    "source_of",
    "resolve",
    "tokenizer_of",
    "with_max_positions",
    "with_tokenizer",
    "with_marks",
    "with_vocab_size",
    "write",
]

Path = str | os.PathLike[str]
FORMATS = {form.name: form for form in (HUGGING_FACE, GOOGLE, KERAS_HUB, MODEL_GARDEN, SAVED_MODEL, KERAS_2)}
WRITTEN = {name: form for name, form in FORMATS.items() if form.save is not None}
_PADDED = 1_024  # rows of the embedding table without a token, which pad it to a multiple


def read(path: Path) -> Checkpoint:
    """Reads a checkpoint: a folder, or a file inside it.

    path: a Hugging Face folder, a KerasHub preset folder, the folder or prefix of a TensorFlow checkpoint, a SavedModel (see
        `saved_models`), or a model's name or address (see `downloads`), which is downloaded unless it is in the cache

    Raises FileNotFoundError if there is no checkpoint, and ValueError for a checkpoint that is cut short, does not fit its
    config, is of another format, has NaN or infinite weights, or is not on a local disk.
    """
    found = resolve(path)
    refuse_remote_weights(found.path)
    form, root = _locate(encoder_folder(found.path))
    config = form.load_config(root)
    vocabulary = _tokenizer_of_folder(form, root, config)
    with form.open(root, config) as source:
        tensors, unknown = read_tensors(form, config, source)
        warn_of_layers(config, source, unknown)
    checkpoint = Checkpoint(
        config=config,
        tensors=tensors,
        vocabulary=vocabulary,
        format=form.name,
        path=str(root),
        unknown=unknown,
        origin=found.origin or {"model": found.path.resolve().name},
        **source.described,
    )
    # Checked before an encoder of the config's sizes is made, so that the encoder is never larger than the file.
    must_be_there = (name for name in variable_shapes(config) if name.split("/")[0] not in MAY_LACK)
    lacking = [name for name in must_be_there if name not in tensors]
    refuse_lacking(lacking, checkpoint, layers=config.num_layers, named=f"{source.file}: ")
    # A class whose heads were not read does not describe these tensors.
    parts = checkpoint.parts
    if checkpoint.architecture in [name for heads, name in ARCHITECTURES if heads <= parts]:
        return checkpoint
    return dataclasses.replace(checkpoint, architecture=None)


def source_of(checkpoint: Path | Checkpoint, *, seed: int = 0) -> Checkpoint:
    """The checkpoint of a task, read unless it is one, with rows for marks that it lacks: see `with_marks`."""
    found = checkpoint if isinstance(checkpoint, Checkpoint) else read(checkpoint)
    return with_marks(found, tokenizer_of(found), seed=seed) if found.vocabulary.suffix else found


def write(checkpoint: Checkpoint, path: Path, *, format: str, overwrite: bool = False) -> tuple[str, ...]:
    """Writes a checkpoint folder in any format: weights, config, vocabulary.

    path: the folder; if it holds files, `overwrite=True` replaces files of the same names and keeps other files

    In Hugging Face's format, model_type is the first of MODEL_TYPES that computes the same numbers. Returns the parts that are
    left out: our names of the tensors that the format cannot hold, such as heads or the pooler of an ELECTRA; "the tokenizer
    (NAME)" for one that is not supported; "the labels". Heads of your own, of any name and shape, stand in Hugging Face's format
    under their own names, which its config.json lists.

    Raises BertKerasError if a weight is NaN or infinite, if another format is to hold a head of your own, or if the format's
    library would compute other numbers from the config;
    TakenError if the folder is not empty; OSError if it cannot be written.
    """
    form, path, config = format_named(format), to_path(path), checkpoint.config
    _refuse_inexpressible(form, config)
    own = sorted(checkpoint.own)
    if own and not form.has_own:
        raise BertKerasError(
            f"{checkpoint.prefix}{form.name} has no place for {first_names(own, 4)}; write hugging-face, or leave the head out."
        )
    rows = {row.ours: row for row in form.names_for(checkpoint).rows(config)}
    must_be_there = (name for name in variable_shapes(config) if not name.startswith("pooler/"))
    if lacking := [name for name in must_be_there if name not in checkpoint.tensors]:
        raise BertKerasError(
            f"{checkpoint.prefix}the checkpoint lacks {first_names(lacking)}; an encoder needs all of them."
        )
    for name, array in checkpoint.tensors.items():
        refuse_not_finite(np.asarray(array), named=f"{checkpoint.prefix}{name}, to be written to {path},")
    with atomic_folder(path, existing="overwrite" if overwrite else "refuse") as new:
        theirs = {
            rows[name].theirs: rows[name].to_theirs(np.asarray(array), config)
            for name, array in checkpoint.tensors.items()
            if name in rows and name not in own
        }
        theirs |= {name: np.array(checkpoint.tensors[name], order="C") for name in own}
        assert form.save is not None  # see `format_named`
        form.save(checkpoint, theirs, new)
    left_out = [name for name in checkpoint.tensors if name not in rows and name not in own]
    if checkpoint.vocabulary.other is not None:
        left_out.append(f"the tokenizer ({checkpoint.vocabulary.other})")
    if checkpoint.labels is not None and not form.has_labels:
        left_out.append("the labels")
    return tuple(left_out)


def _refuse_inexpressible(form: Format, config: BertConfig) -> None:
    for field, only in form.keeps.items():
        value, wanted = getattr(config, field), getattr(config, str(only), only)
        if value != wanted:
            raise BertKerasError(
                f"{field} is {value!r}; the {form.name} library always computes with {wanted!r}: "
                "write hugging-face instead."
            )


def load_encoder(
    path: Path,
    *,
    outputs: Iterable[str] | None = None,
    fresh: Iterable[str] = (),
    vocab_size: int | None = None,
    dtype: Any = None,
    log: Callable[[str], None] | None = None,
) -> "BertEncoder":
    """An encoder with the weights of a checkpoint folder.

    outputs: see BertEncoder; None means its default
    fresh: ("pooler",) initializes a missing pooler randomly; without it, a missing pooler is an error
    vocab_size: tokens of a larger vocabulary, for a tokenizer with added tokens: see `with_vocab_size`
    dtype: a dtype policy of Keras or its name, such as "mixed_bfloat16"; None takes the global policy
    log: receives the report, three lines, for example `print`

    Raises as `read`, `with_vocab_size` and `assign` do.
    """
    from bert_keras.model.encoder import ALL
    from bert_keras.model.encoders import make_encoder

    checkpoint = read(path)
    if vocab_size is not None:
        checkpoint = with_vocab_size(checkpoint, vocab_size)
    encoder: BertEncoder = make_encoder(
        checkpoint.config, outputs=ALL if outputs is None else tuple(outputs), dtype=dtype
    )
    report = assign(checkpoint, encoder, fresh=fresh)
    if log is not None:
        log(str(report))
    return encoder


def load_tokenizer(path: Path, *, lower_case: bool | None = None, text_ops: str | None = None) -> "Tokenizer":
    """The tokenizer of a checkpoint, of a folder with only a vocabulary, of a vocab.txt or of a spiece.model.

    path: as in `read`; for a model's name on the Hub, only the tokenizer and the configuration are downloaded
    lower_case: None reads it from the files beside the vocabulary or, if they do not say, guesses it from the number of
        tokens with upper case and warns
    text_ops: the ops of WordPiece's graph: "tensorflow-text", or "core", TensorFlow's own; None as for `WordPiece`

    Raises FileNotFoundError if there is no vocabulary, ValueError if it has more tokens than the config's vocab_size.
    """
    path = resolve(path, weights=False).path
    return _tokenizer(_vocabulary_at(path), lower_case, named=f"{path}: ", text_ops=text_ops)


def _vocabulary_at(path: pathlib.Path) -> Vocabulary:
    """The vocabulary of a file, of a checkpoint, or of a folder with Hugging Face's tokenizer files and no weights."""
    if path.is_file() and path.suffix in (".txt", ".model"):
        # A file of another name is not the folder's.
        is_the_folders = path.name in (VOCAB_TXT, SENTENCEPIECE)
        vocabulary = read_tokenizer(path.parent, file=path.name) if is_the_folders else Vocabulary()
        return vocabulary if vocabulary.has_tokens else read_vocabulary(path)
    try:
        form, root = _locate(path)
    except FileNotFoundError:
        vocabulary = read_tokenizer(path)
        if not vocabulary.is_there:
            raise
        return vocabulary
    config = form.load_config(root)
    vocabulary = _spelled(_tokenizer_of_folder(form, root, config), config)
    if not vocabulary.is_there:
        raise MissingFileError(f"no vocab.txt in {_folder(root)}; put the model's own vocabulary there.")
    return vocabulary


def with_tokenizer(checkpoint: Checkpoint, tokenizer: "Tokenizer") -> Checkpoint:
    """The checkpoint with another tokenizer, the inverse of `tokenizer_of`."""
    return dataclasses.replace(checkpoint, vocabulary=tokenizer.to_vocabulary())


def tokenizer_of(checkpoint: Checkpoint, *, lower_case: bool | None = None) -> "Tokenizer":
    """The tokenizer of a checkpoint, as `load_tokenizer` makes it. Raises ValueError if it has none."""
    if not checkpoint.vocabulary.is_there:
        raise BertKerasError(
            f"{checkpoint.prefix}the checkpoint has no vocabulary; put the model's vocab.txt into its folder."
        )
    spelled = _spelled(checkpoint.vocabulary, checkpoint.config)
    return _tokenizer(spelled, lower_case, named=checkpoint.prefix)


def _spelled(vocabulary: Vocabulary, config: BertConfig) -> Vocabulary:
    """The vocabulary whose tokenizer gives the characters that the encoder reads beside ids."""
    if not config.max_characters:
        return vocabulary
    rules = dataclasses.replace(vocabulary.rules, characters=config.max_characters)
    return vocabulary._replace(rules=rules)


def _tokenizer(
    vocabulary: Vocabulary, lower_case: bool | None, *, named: str, text_ops: str | None = None
) -> "Tokenizer":
    """The tokenizer of a vocabulary. named: the prefix of an error about one of no file."""
    from bert_keras.text.byte_bpe import ByteBPE
    from bert_keras.text.sentencepiece import SentencePiece
    from bert_keras.text.word_bpe import WordBPE
    from bert_keras.text.wordpiece import WordPiece

    named = f"{vocabulary.file}: " if vocabulary.file else named
    if vocabulary.other is not None:
        raise BertKerasError(
            f"{named}the checkpoint's tokenizer is {vocabulary.other}, which is not supported; use its weights with ids from "
            "another library's tokenizer."
        )
    try:
        lower_case = lower_cases(vocabulary) if lower_case is None else lower_case
        rules, tokens = vocabulary.rules, vocabulary.tokens or ()
        if vocabulary.sentencepiece is not None:
            return SentencePiece(vocabulary.sentencepiece, lower_case=lower_case, rules=rules)
        if vocabulary.merges is not None and not vocabulary.suffix:
            return ByteBPE(tokens, vocabulary.merges, rules=rules)
        settings: Any = {"lower_case": lower_case, "rules": rules, "text_ops": text_ops}
        if vocabulary.merges is not None:
            return WordBPE(tokens, vocabulary.merges, **settings)
        return WordPiece(tokens, **settings)
    except ValueError as error:
        raise BertKerasError(f"{named}{error}") from error


def compare(path: Path, *, seed: int = 0) -> dict[str, float]:
    """Runs a checkpoint here and in the format's own library, on the same random tokens.

    Returns the maximum absolute difference over the tokens that are not padding, for each output: the embeddings, each block,
    the pooled output and each pre-training head of the checkpoint. Raises ValueError if no library runs the format, or if the
    library is not installed.
    """
    found = resolve(path)
    form, root = _locate(found.path)
    check_reference(form.name)
    return differences(read(found), form, root, seed=seed)


# -----------------------------------------------------------------------------------------------------------
# Finding a checkpoint


def find_format(path: Path) -> str:
    """The format of a checkpoint, without reading it. Raises FileNotFoundError if there is no checkpoint."""
    return _locate(resolve(path).path)[0].name


def check_there(path: Path) -> None:
    """Raises BertKerasError, without TensorFlow, for a path without a checkpoint; the name of a model is not looked up."""
    if is_remote(path) or not is_path(os.fspath(path)):
        return
    found = detect(to_path(path))
    if found is None or found.kind not in (*READ, "tensorflow"):
        find_format(path)


def _locate(path: pathlib.Path) -> tuple[Format, pathlib.Path]:
    """The format, and its folder or, for a TensorFlow checkpoint, its prefix."""
    if not is_remote(path):
        refuse_partial(_folder(path))
    for form in FORMATS.values():
        root = form.find(path)
        if root is not None:
            return form, root
    if not path.exists():
        raise MissingFileError(f"no checkpoint at {path}: no such file or folder{close_models(str(path))}.")
    if other := describe(path):
        raise MissingFileError(f"no checkpoint at {path}: {other}.")
    looked_for = "; ".join(f"{form.files} ({form.name})" for form in FORMATS.values())
    there = first_names(sorted(found.name for found in path.iterdir()), 4) if path.is_dir() else "one file"
    raise MissingFileError(f"no checkpoint in {path}; looked for {looked_for}; found {there}.")


def format_named(name: str) -> Format:
    """A row of WRITTEN. Raises BertKerasError for another name."""
    if name not in WRITTEN:
        raise BertKerasError(f"no checkpoint format {name!r}; the formats are {', '.join(WRITTEN)}.")
    return WRITTEN[name]


def _folder(root: pathlib.Path) -> pathlib.Path:
    return root if root.is_dir() else root.parent


def _tokenizer_of_folder(form: Format, root: pathlib.Path, config: BertConfig) -> Vocabulary:
    """The tokenizer of a checkpoint, without added tokens that have no weights, which a warning names."""
    vocabulary = form.load_tokenizer(_folder(root))
    pieces = own_tokens(vocabulary) if vocabulary.tokens or vocabulary.rules.added else ()
    own, added = len(pieces), vocabulary.rules.beyond(pieces)
    sizes = f"the vocabulary in {_folder(root)} has {own:,} tokens and the config's vocab_size is {config.vocab_size:,}"
    if own > config.vocab_size:
        raise BertKerasError(
            f"{sizes}: the last tokens have no weights; bring the vocabulary and the config.json of one model."
        )
    if pieces and own + len(added) < config.vocab_size - _PADDED:
        warnings.warn(
            f"{sizes}: more weights than tokens are of another vocabulary, unless the model was made so.",
            stacklevel=1,  # always this line, so that Python warns once
        )
    if own + len(added) <= config.vocab_size:
        return vocabulary
    lost = {*added[config.vocab_size - own :]}
    warnings.warn(
        f"{_folder(root)} adds {', '.join(sorted(lost))[:1000]} to its tokenizer and has no weights for them (vocab_size is "
        f"{config.vocab_size:,}): text that holds them is split into other tokens.",
        stacklevel=1,  # always this line, so that Python warns once
    )
    kept = tuple(token for token in vocabulary.rules.added if token.content not in lost)
    return vocabulary._replace(rules=dataclasses.replace(vocabulary.rules, added=kept))
