"""Exports a checkpoint for TensorFlow Hub: a preprocessor and an encoder, as reusable SavedModels.

In: a Checkpoint and a folder. Out: folder/preprocess and folder/encoder, for `tf.saved_model.load`, `hub.load`, `hub.KerasLayer`
and `bert_keras.HubLayer`:

    preprocess   strings [B] -> Features [B, S]
      .tokenize, .tokenize_with_offsets, .bert_pack_inputs, .tokenize.get_special_tokens_dict
    encoder      Features -> pooled_output, sequence_output, encoder_outputs, default
      .mlm       Features and masked_lm_positions -> mlm_logits too

Source: TensorFlow Hub, "Reusable SavedModels" and "Common SavedModel APIs for text tasks"; other names (`.mlm`,
`encoder_outputs`, the special tokens) are from Model Garden's official/nlp/tools/export_tfhub_lib.py.
"""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import Checkpoint
from bert_keras.errors import BertKerasError, TakenError
from bert_keras.features import (
    DTYPE,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.io.files import file_errors
from bert_keras.io.paths import to_path
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.savedmodels.servable import Reusable
from bert_keras.savedmodels.verify import SAMPLES, ask, compare, publishing, write_manifest
from bert_keras.tasks.options import HubOptions
from bert_keras.tasks.task import checked_inputs
from bert_keras.text.preprocessing import MAX_SEGMENTS, Features, Preprocessor
from bert_keras.text.tokenizer import Tokenizer
from bert_keras.text.wordpiece import WordPiece

PREPROCESS, ENCODER = "preprocess", "encoder"  # the two folders
SENTENCES = "sentences"  # string [B], the preprocessor's input
DEFAULT, MLM_LOGITS = "default", "mlm_logits"
_OUTPUTS = (POOLED_OUTPUT, SEQUENCE_OUTPUT, ENCODER_OUTPUTS)


def write_pair(
    checkpoint: Checkpoint,
    directory: str | pathlib.Path,
    *,
    seq_length: int = HubOptions.seq_length,
    fresh: Iterable[str] = (),
    log: Callable[[str], None] = print,
) -> None:
    """Writes directory/preprocess and directory/encoder, after a fresh process has checked their answers.

    seq_length: the preprocessor's default length, in tokens
    fresh, log: see `load_encoder`

    Raises TakenError if preprocess or encoder exists; BertKerasError if the folder cannot be written, if another process writes
    to it, or if the encoder has fewer than seq_length positions, and as `tokenizer_of` and `assign` do; ExportError if the fresh
    process answers differently. The folder then stays unchanged.
    """
    directory = to_path(directory)
    if seq_length > (most := checkpoint.config.max_length):
        raise BertKerasError(
            f"seq_length is {seq_length} and the encoder has {most} positions; give at most {most}."
        )
    with publishing(directory) as new:
        if taken := [name for name in (PREPROCESS, ENCODER) if (directory / name).exists()]:
            raise TakenError(f"{directory / taken[0]} already exists; give another folder.")
        modules = {
            PREPROCESS: preprocessor(checkpoints.tokenizer_of(checkpoint), seq_length=seq_length),
            ENCODER: encoder(checkpoint, fresh=fresh, log=log),
        }
        inputs: dict[str, list[Any]] = {SENTENCES: list(SAMPLES)}
        for name, (module, serve) in modules.items():
            with file_errors():
                tf.saved_model.save(module, str(new / name), signatures={"serving_default": serve})
            outputs = serve(**{key: tf.constant(rows) for key, rows in inputs.items()})
            expected = {key: value.numpy() for key, value in outputs.items()}
            compare(expected, ask(new / name, inputs))
            write_manifest(new / name)
            # The preprocessor's outputs are the encoder's inputs.
            inputs = {key: rows.tolist() for key, rows in expected.items()}


def preprocessor(tokenizer: Tokenizer, *, seq_length: int) -> tuple[Reusable, Callable[..., Features]]:
    """The text preprocessor, and its serving signature: strings [B] -> Features [B, seq_length]."""
    preprocess = Preprocessor(tokenizer, seq_length=seq_length)
    strings = tf.TensorSpec([None], tf.string, name=SENTENCES)

    def tokenize(sentences: tf.Tensor) -> tf.RaggedTensor:
        return _by_word(tokenizer, tokenizer.tokenize(sentences))[0]

    def tokenize_with_offsets(sentences: tf.Tensor) -> list[tf.RaggedTensor]:
        ids, *offsets = tokenizer.tokenize_with_offsets(sentences)
        return _by_word(tokenizer, ids, *(tf.cast(offset, tf.int64) for offset in offsets))

    def pack(inputs: Sequence[tf.RaggedTensor], seq_length: int | tf.Tensor = seq_length) -> Features:
        shortest = tf.debugging.assert_greater(
            seq_length,
            tokenizer.pair.added(len(inputs)) + len(inputs) - 1,
            f"seq_length must hold the special tokens and a token of each of {len(inputs)} segments",
        )
        with tf.control_dependencies([shortest]):
            room = Preprocessor(tokenizer, seq_length=tf.identity(seq_length))
        return room.pack(*[one.merge_dims(1, -1) if one.ragged_rank > 1 else one for one in inputs])

    root = Reusable(preprocess)
    root._tokenizer = tokenizer  # a SentencePiece model is a resource, so the root must keep it
    root.tokenize = Reusable(tokenize)
    root.tokenize_with_offsets = Reusable(tokenize_with_offsets)
    for part in (root.tokenize, root.tokenize_with_offsets):
        part.trace(strings)
        part.get_special_tokens_dict = _special_tokens(tokenizer)
    root.bert_pack_inputs = Reusable(pack)
    for segments in range(1, MAX_SEGMENTS + 1):
        for rank in (1, 2):
            ids = tf.RaggedTensorSpec([None] * (rank + 1), tf.int32)
            root.bert_pack_inputs.trace([ids] * segments, seq_length=tf.TensorSpec([], tf.int32))
    return root, root.trace(strings)


def _by_word(tokenizer: Tokenizer, ids: tf.RaggedTensor, *others: tf.RaggedTensor) -> list[tf.RaggedTensor]:
    """Ragged [B, (T)] -> ragged [B, (words), (tokens)]; with other kinds [B, (T)], like SentencePiece's published modules."""
    if type(tokenizer) is not WordPiece:
        return [ids, *others]
    first = ~tf.gather(tf.constant(tokenizer.continues), ids.values)
    starts = tf.concat([tf.where(first)[:, 0], [tf.size(first, tf.int64)]], axis=0)
    words_before = tf.concat([[0], tf.cumsum(tf.cast(first, tf.int64))], axis=0)  # [T + 1], of each token
    rows = tf.gather(words_before, ids.row_splits)
    return [tf.RaggedTensor.from_nested_row_splits(one.values, (rows, starts)) for one in (ids, *others)]


def _special_tokens(tokenizer: Tokenizer) -> Reusable:
    special = tokenizer.special
    ids = {
        "vocab_size": tokenizer.vocab_size,
        "start_of_sequence_id": special.start,
        "end_of_segment_id": special.end,
        "padding_id": special.padding,
    }
    if special.mask is not None:
        ids["mask_id"] = special.mask
    part = Reusable(lambda: ids)
    part.trace()
    return part


def encoder(
    checkpoint: Checkpoint, *, fresh: Iterable[str] = (), log: Callable[[str], None] = print
) -> tuple[Reusable, Callable[..., dict[str, tf.Tensor]]]:
    """The encoder, with `.mlm` if the checkpoint has a masked LM head, and its serving signature without encoder_outputs.

    Raises as `assign` does.
    """
    model = BertEncoder(checkpoint.config, outputs=_OUTPUTS)
    head = MaskedLMHead(model)
    heads = {head.name: head} if any(name.startswith(f"{head.name}/") for name in checkpoint.tensors) else {}
    log(str(checkpoints.assign(checkpoint, model, fresh=fresh, **heads)))

    def encode(features: Features, training: bool = False) -> dict[str, Any]:
        outputs = model(features, training=training)
        return outputs | {DEFAULT: outputs[POOLED_OUTPUT]}

    def predict_masked(features: Features, training: bool = False) -> dict[str, Any]:
        outputs = encode({name: features[name] for name in ENCODER_INPUTS}, training)
        return outputs | {MLM_LOGITS: head(outputs[SEQUENCE_OUTPUT], features[MASKED_LM_POSITIONS])}

    def serve(**features: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = encode(checked_inputs(features, checkpoint.config))
        return {name: value for name, value in outputs.items() if name != ENCODER_OUTPUTS}

    def specs(*names: str) -> Features:
        return {name: tf.TensorSpec([None, None], DTYPE, name=name) for name in names}

    root = Reusable(encode, model)
    if heads:
        root.mlm = Reusable(predict_masked, model, head)
    for training in (False, True):
        root.trace(specs(*ENCODER_INPUTS), training=training)
        if heads:
            root.mlm.trace(specs(*ENCODER_INPUTS, MASKED_LM_POSITIONS), training=training)
    return root, tf.function(serve, autograph=False).get_concrete_function(**specs(*ENCODER_INPUTS))
