"""TensorFlow Hub's text pair from a checkpoint: a preprocessor and an encoder, as reusable SavedModels.

In: a Checkpoint and a folder. Out: folder/preprocess and folder/encoder, for `tf.saved_model.load`, `hub.load`, `hub.KerasLayer`
and `bert_keras.HubLayer`:

    preprocess   strings [B] -> Features [B, S]
      .tokenize, .tokenize_with_offsets, .bert_pack_inputs, .tokenize.get_special_tokens_dict
    encoder      Features -> pooled_output, sequence_output, encoder_outputs, default
      .mlm       Features and masked_lm_positions -> mlm_logits too

Source: TensorFlow Hub, "Reusable SavedModels" and "Common SavedModel APIs for text tasks"; what goes beyond those (`.mlm`,
`encoder_outputs`, the special tokens) is named as Model Garden's official/nlp/tools/export_tfhub_lib.py names it.
"""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.formats import Checkpoint, file_errors
from bert_keras.encoder import BertEncoder
from bert_keras.errors import BertKerasError, TakenError
from bert_keras.features import (
    DTYPE,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    MASKED_LM_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.heads import MaskedLMHead
from bert_keras.paths import path_of
from bert_keras.text.preprocessing import MAX_SEGMENTS, Features, Preprocessor
from bert_keras.text.tokenizers import Tokenizer, WordPiece
from savedmodels.export import SAMPLES, ask, compare, workplace
from tasks.settings import HubOptions

PREPROCESS, ENCODER = "preprocess", "encoder"  # the two folders
SENTENCES = "sentences"  # string [B], what the preprocessor takes
DEFAULT, MLM_LOGITS = "default", "mlm_logits"
_OUTPUTS = (POOLED_OUTPUT, SEQUENCE_OUTPUT, ENCODER_OUTPUTS)


class Reusable(tf.Module):
    """A callable that is saved, with the attributes that whoever loads it looks for.

    function: what it computes
    layers: those whose variables it uses
    """

    # Plain attributes in place of tf.Module's properties: attributes are saved, properties are not.
    variables: Any = None
    trainable_variables: Any = None

    def __init__(self, function: Callable[..., Any], *layers: keras.layers.Layer) -> None:
        super().__init__()
        self.__call__ = tf.function(function, autograph=False)
        # Every state, dropout's seeds among them: a trace with training=True cannot be saved without these.
        self.variables = [variable.value for layer in layers for variable in layer.variables]
        self.trainable_variables = [
            variable.value for layer in layers for variable in layer.trainable_variables
        ]
        self.regularization_losses: list[Callable[[], tf.Tensor]] = []

    def trace(self, *inputs: Any, **keywords: Any) -> Any:
        """Makes calls of this form part of what is saved. Returns the concrete function."""
        return self.__call__.get_concrete_function(*inputs, **keywords)


def write_pair(
    checkpoint: Checkpoint,
    directory: str | pathlib.Path,
    *,
    seq_length: int = HubOptions.seq_length,
    fresh: Iterable[str] = (),
    log: Callable[[str], None] = print,
) -> None:
    """Writes directory/preprocess and directory/encoder, after a fresh process answered from both as this one does.

    seq_length: positions that the preprocessor cuts and pads to, where a call does not say another number
    fresh, log: as of `load_encoder`

    Raises FileExistsError where one of the two is there already; ValueError where the folder cannot be written or the encoder has
    fewer than seq_length positions, and as `tokenizer_of` and `assign` do; ExportError where the fresh process answers
    otherwise. Nothing is left behind then.
    """
    directory = path_of(directory)
    if taken := [name for name in (PREPROCESS, ENCODER) if (directory / name).exists()]:
        raise TakenError(f"{directory / taken[0]} is there already; give another folder.")
    if seq_length > (most := checkpoint.config.max_length):
        raise BertKerasError(
            f"seq_length is {seq_length} and the encoder has {most} positions; give at most {most}."
        )
    modules = {
        PREPROCESS: preprocessor(checkpoints.tokenizer_of(checkpoint), seq_length=seq_length),
        ENCODER: encoder(checkpoint, fresh=fresh, log=log),
    }
    with workplace(directory) as (temporary, _):
        inputs: dict[str, list[Any]] = {SENTENCES: list(SAMPLES)}
        for name, (module, serve) in modules.items():
            with file_errors():
                tf.saved_model.save(module, str(temporary / name), signatures={"serving_default": serve})
            outputs = serve(**{key: tf.constant(rows) for key, rows in inputs.items()})
            expected = {key: value.numpy() for key, value in outputs.items()}
            compare(expected, ask(temporary / name, inputs))
            # The preprocessor's features are what the encoder is asked with.
            inputs = {key: rows.tolist() for key, rows in expected.items()}
        for name in modules:
            (temporary / name).rename(directory / name)


def preprocessor(tokenizer: Tokenizer, *, seq_length: int) -> tuple[Reusable, Callable[..., Features]]:
    """The text preprocessor, and its serving signature: strings [B] -> Features [B, seq_length]."""
    preprocess = Preprocessor(tokenizer, seq_length=seq_length)
    strings = tf.TensorSpec([None], tf.string, name=SENTENCES)

    def tokenize(sentences: tf.Tensor) -> tf.RaggedTensor:
        return _by_word(tokenizer, tokenizer.tokenize(sentences))[0]

    def tokenize_with_offsets(sentences: tf.Tensor) -> list[tf.RaggedTensor]:
        ids, *places = tokenizer.tokenize_with_offsets(sentences)
        return _by_word(tokenizer, ids, *(tf.cast(place, tf.int64) for place in places))

    def pack(inputs: Sequence[tf.RaggedTensor], seq_length: int | tf.Tensor = seq_length) -> Features:
        shortest = tf.debugging.assert_greater(
            seq_length,
            2 * len(inputs),
            f"seq_length has to hold [CLS], a piece and [SEP] for {len(inputs)} segments",
        )
        with tf.control_dependencies([shortest]):
            room = Preprocessor(tokenizer, seq_length=tf.identity(seq_length))
        return room.pack(*[one.merge_dims(1, -1) if one.ragged_rank > 1 else one for one in inputs])

    root = Reusable(preprocess)
    root._tokenizer = tokenizer  # a SentencePiece model is a resource, which has to be on the root
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
    """Ragged [B, (T)] -> ragged [B, (words), (pieces)]; the published SentencePiece modules keep [B, (T)], and so do these."""
    if not isinstance(tokenizer, WordPiece):
        return [ids, *others]
    first = ~tf.gather(tf.constant(tokenizer.continues), ids.values)
    starts = tf.concat([tf.where(first)[:, 0], [tf.size(first, tf.int64)]], axis=0)
    words_before = tf.concat([[0], tf.cumsum(tf.cast(first, tf.int64))], axis=0)  # each piece
    rows = tf.gather(words_before, ids.row_splits)
    return [tf.RaggedTensor.from_nested_row_splits(one.values, (rows, starts)) for one in (ids, *others)]


def _special_tokens(tokenizer: Tokenizer) -> Reusable:
    special = tokenizer.special
    ids = {
        "vocab_size": tokenizer.vocab_size,
        "start_of_sequence_id": special.start,
        "end_of_segment_id": special.end,
        "padding_id": special.padding,
        "mask_id": special.mask,
    }
    part = Reusable(lambda: ids)
    part.trace()
    return part


def encoder(
    checkpoint: Checkpoint, *, fresh: Iterable[str] = (), log: Callable[[str], None] = print
) -> tuple[Reusable, Callable[..., dict[str, tf.Tensor]]]:
    """The encoder, with `.mlm` where the checkpoint has that head, and its serving signature, which lists no blocks.

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
        outputs = encode(features)
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
