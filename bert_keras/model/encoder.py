"""BertEncoder: features in, hidden states and a pooled vector out.

    Features int32 [B, S] -> embeddings -> L blocks -> sequence_output [B, S, H], pooled_output [B, H]

Every variant is a BertConfig field; there is no encoder subclass.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ATTENTION_PROBABILITIES,
    DTYPE,
    EMBEDDING_OUTPUT,
    ENCODER_INPUTS,
    ENCODER_OUTPUTS,
    INPUT_CHARACTERS,
    INPUT_MASK,
    INPUT_WORD_IDS,
    OUTPUT_POSITIONS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
    check_names,
)
from bert_keras.model.kernels import (
    ACTIVATIONS,
    RealTokens,
    drop_padding,
    on_tensorflow,
    real_tokens,
    restore_padding,
)
from bert_keras.model.layers import (
    LORA_TARGETS,
    MASKED_SCORE,
    BiLSTM,
    Block,
    Dense,
    Embeddings,
    FromBertConfig,
)

ALL = (SEQUENCE_OUTPUT, POOLED_OUTPUT, ENCODER_OUTPUTS, EMBEDDING_OUTPUT)
_KNOWN = (*ALL, ATTENTION_PROBABILITIES)


def pooled_position(mask: Any, *, causal: bool) -> Any:
    """The position that stands for the whole sequence: int32 [B].

    mask: int32 [B, S]. Position 0, or the last real one where attention is causal: there position 0 sees nothing of the text.
    """
    if not causal:
        return ops.zeros_like(mask[:, 0], dtype="int32")
    places = ops.arange(ops.shape(mask)[1], dtype="int32")
    return ops.max(ops.cast(mask > 0, "int32") * ops.expand_dims(places, 0), axis=1)


def gather_positions(states: Any, positions: Any) -> Any:
    """Rows of each sequence: float [B, S, H] and int32 [B, P] -> float [B, P, H].

    Whole rows of [B*S, H]: `take_along_axis` gathers number by number, seven times slower on CPU.
    """
    batch, length, width = ops.shape(states)
    starts = ops.expand_dims(ops.arange(batch, dtype="int32") * length, -1)
    return ops.take(ops.reshape(states, (-1, width)), starts + ops.cast(positions, "int32"), axis=0)


def make_pooler(config: BertConfig, *, dtype: Any = None) -> keras.layers.Layer:
    """The dense layer on the state that stands for the whole sequence; with `plain_heads`, a layer that gives back the state."""
    if config.plain_heads:
        return keras.layers.Identity(name="pooler", dtype=dtype)
    return Dense(config.hidden_size, config=config, name="pooler", dtype=dtype)


def _check_backend(setting: str, wanted: bool) -> None:
    if wanted and not on_tensorflow():
        raise BertKerasError(f"{setting} needs the backend tensorflow; this is {keras.backend.backend()}.")


def _padded(states: Any, tokens: RealTokens | None, mask: Any) -> Any:
    """States with padding, float [B, S, H], as they are without `tokens`; with them, from [N, H], with zeros at padding."""
    if tokens is None:
        return states
    padded = restore_padding(states, tokens, zeros=True)
    return ops.reshape(padded, (*ops.shape(mask), states.shape[-1]))


@keras.saving.register_keras_serializable("bert_keras")
class BertEncoder(FromBertConfig, keras.Model):
    """BERT's encoder with its pooler (Devlin et al. 2019, sec. 3; google-research/bert modeling.py BertModel).

    Unlike the textbook: a pooler, a dense layer with tanh, is between the state of [CLS] and the classifiers. Next-sentence
    prediction trains it, and fine-tuning starts from it.

    config: BertConfig
    outputs: which of `sequence_output`, `pooled_output`, `encoder_outputs`, `embedding_output` and
        `attention_probabilities` to compute; all but the last by default. With `pooled_output` alone the last block runs
        for one position only.
    embeddings: of another encoder, whose tables and norm this one reads instead of its own. `get_config` leaves them out.

    Called on Features (`input_word_ids`, `input_mask`, `input_type_ids`: int32 [B, S]) it returns a dict of the outputs:
    `sequence_output` [B, S, H], `pooled_output` [B, H], `encoder_outputs` L x [B, S, H] (the last equals
    `sequence_output`, if no `bilstm` is on it), `embedding_output` [B, S, H], `attention_probabilities` L x [B, A, S, S].

    With the feature `output_positions`, int32 [B, P], `sequence_output` has these positions alone, [B, P, H], and the last block
    computes no others. They are positions of real tokens, or 0. The numbers are equal up to rounding.
    Raises ValueError on an output of another name, a sequence longer than the positions or embeddings of other sizes; and on
    `output_positions` with a `bilstm`, or beside outputs of all positions of the last block.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        outputs: Sequence[str] = ALL,
        embeddings: Embeddings | None = None,
        name: str = "bert_encoder",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if unknown := [output for output in outputs if output not in _KNOWN] or not outputs:
            raise BertKerasError(
                f"outputs {unknown or list(outputs)} given; wanted one or more of {', '.join(_KNOWN)}."
            )
        self.config = config
        self._rematerialize = self._unpadded = False
        self.outputs_wanted = tuple(outputs)
        self.embeddings = Embeddings(config, shared=embeddings, dtype=dtype)
        self.blocks = [
            Block(config, name=f"block_{i}", dtype=dtype)
            for i in range(1 if config.share_layers else config.num_layers)
        ]
        self.bilstm = BiLSTM(config=config, dtype=dtype) if config.bilstm else None
        self.pooler = make_pooler(config, dtype=dtype)
        self.pooler.trainable = POOLED_OUTPUT in outputs  # without a gradient, Keras would warn
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Makes every variable; the config knows all shapes."""
        self.embeddings.build()
        for part in self.parts[1:-1]:
            part.build((None, None, self.config.hidden_size))
        self.pooler.build((None, self.config.hidden_size))
        self.built = True

    @property
    def parts(self) -> tuple[keras.layers.Layer, ...]:
        """The layers that hold the variables, from below."""
        above = (self.pooler,) if self.bilstm is None else (self.bilstm, self.pooler)
        return (self.embeddings, *self.blocks, *above)

    @property
    def embedding_table(self) -> keras.Variable:
        """The word embeddings, [V, E], which the masked-LM head multiplies by."""
        return self.embeddings.word_embeddings

    def enable_lora(
        self, rank: int, *, lora_alpha: float | None = None, targets: Sequence[str] = LORA_TARGETS
    ) -> None:
        """Freezes the encoder but for new matrices of rank `rank` in every block: see `Block.enable_lora`.

        Call it after the weights are loaded and before the model is compiled. `.keras` files and checkpoints hold the merged
        kernels. Raises ValueError as `Block.enable_lora` does.
        """
        if self.lora_enabled:
            raise BertKerasError(f"{self.name} has LoRA already; it is enabled once.")
        self.trainable = True  # else no layer inside could train
        for part in self.parts:
            part.trainable = False
        for block in self.blocks:
            block.enable_lora(rank, lora_alpha=lora_alpha, targets=targets)

    @property
    def lora_enabled(self) -> bool:
        """True after `enable_lora`."""
        return any(block.lora_enabled for block in self.blocks)

    def compute_mask(self, inputs: Mapping[str, Any], previous_mask: Any = None) -> dict[str, Any]:
        """Keras' padding mask, bool [B, S], of each output with a position for each token; None for the others."""
        real = ops.cast(inputs[INPUT_MASK], "bool")
        layers = range(self.config.num_layers)
        masks = {
            SEQUENCE_OUTPUT: None if OUTPUT_POSITIONS in inputs else real,
            EMBEDDING_OUTPUT: real,
            POOLED_OUTPUT: None,
            ENCODER_OUTPUTS: [real for _ in layers],
            ATTENTION_PROBABILITIES: [None for _ in layers],
        }
        return {name: masks[name] for name in self.outputs_wanted}

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        check_names(features)
        word_ids, mask, type_ids = (ops.cast(features[name], DTYPE) for name in ENCODER_INPUTS)
        self._check_length(word_ids.shape[1])
        position = pooled_position(mask, causal=self.config.causal)
        scores_mask = self._scores_mask(mask)
        states = self.embeddings(word_ids, type_ids, training=training)
        tokens = real_tokens(mask) if self.unpadded else None
        # Held here, a tensor stays in memory to the end of an eager call.
        results: dict[str, Any] = {name: [] for name in (ENCODER_OUTPUTS, ATTENTION_PROBABILITIES)}
        if EMBEDDING_OUTPUT in self.outputs_wanted:
            results[EMBEDDING_OUTPUT] = states
        if tokens is not None:
            states = drop_padding(ops.reshape(states, (-1, self.config.hidden_size)), tokens)
        asked = self._asked_positions(features, position)
        for i in range(self.config.num_layers):
            queries, queries_mask = states, scores_mask
            if asked is not None and i == self.config.num_layers - 1:
                # No other position is read after the last block.
                queries = self._asked(states, asked, tokens, mask)
                queries_mask = self._scores_mask(mask, asked)
            block, given = self.blocks[0 if self.config.share_layers else i], (queries, states, queries_mask)
            if training and self.rematerialize:
                wanted = ATTENTION_PROBABILITIES in self.outputs_wanted
                states, probabilities = rematerialized(block, *given, tokens=tokens, probabilities=wanted)
            else:
                states, probabilities = block(*given, training=training, tokens=tokens)
            if ENCODER_OUTPUTS in self.outputs_wanted:
                results[ENCODER_OUTPUTS].append(_padded(states, tokens, mask))
            if ATTENTION_PROBABILITIES in self.outputs_wanted:
                results[ATTENTION_PROBABILITIES].append(probabilities)
            del probabilities  # before the next block makes its own, as large
        if asked is None:
            states = _padded(states, tokens, mask)
        if self.bilstm is not None:
            states = self.bilstm(states, mask=mask > 0)
        if POOLED_OUTPUT in self.outputs_wanted:
            pooled = gather_positions(states, ops.expand_dims(position, -1)) if asked is None else states
            first = pooled[:, 0]
            results[POOLED_OUTPUT] = self.pooler(first)
            if not self.config.plain_heads:
                results[POOLED_OUTPUT] = ACTIVATIONS[self.config.pooler_activation](results[POOLED_OUTPUT])
            if asked is not None:
                states = states[:, 1:]
        results[SEQUENCE_OUTPUT] = states
        return {name: results[name] for name in self.outputs_wanted}

    def _asked_positions(self, features: Mapping[str, Any], position: Any) -> Any:
        """The positions that the last block computes, int32 [B, P], that of the pooler first; None where it computes all.

        position: int32 [B], of the pooler
        """
        pooled = [ops.expand_dims(position, -1)] if POOLED_OUTPUT in self.outputs_wanted else []
        if OUTPUT_POSITIONS in features:
            self._check_output_positions()
            return ops.concatenate([*pooled, ops.cast(features[OUTPUT_POSITIONS], DTYPE)], axis=1)
        return pooled[0] if self.outputs_wanted == (POOLED_OUTPUT,) and self.bilstm is None else None

    def _check_output_positions(self) -> None:
        """Raises BertKerasError where other outputs need all positions of the last block."""
        if not self.takes_output_positions:
            others = "a bilstm" if self.bilstm is not None else f"outputs {', '.join(self.outputs_wanted)}"
            raise BertKerasError(
                f"{OUTPUT_POSITIONS} was given to an encoder with {others}, which needs all positions; leave it out, or build "
                f"the encoder with outputs {SEQUENCE_OUTPUT} and {POOLED_OUTPUT} alone."
            )

    @property
    def takes_output_positions(self) -> bool:
        """True where the encoder accepts the feature `output_positions`; a `call` of a user's own may need all positions."""
        others = {*self.outputs_wanted} - {SEQUENCE_OUTPUT, POOLED_OUTPUT}
        return type(self).call is BertEncoder.call and self.bilstm is None and not others

    def _asked(self, states: Any, positions: Any, tokens: RealTokens | None, mask: Any) -> Any:
        """The states of some positions of each sequence: float [B, P, H]. positions: int32 [B, P]."""
        if tokens is None:
            return gather_positions(states, positions)
        batch, length = ops.shape(mask)
        places = ops.expand_dims(ops.arange(batch, dtype="int32") * length, -1) + positions
        return ops.take(states, ops.take(tokens.rows, places), axis=0)

    @property
    def unpadded(self) -> bool:
        """True where the blocks compute the real tokens alone, without the rows of padding.

        It saves about the share of padding in a batch. The outputs are equal up to rounding, and 0 at padding, but for the first
        position and for rows of padding alone, which are computed. Set it before the first call. Attention probabilities keep
        their shape. XLA cannot compile it, so `jit_compile="auto"` does not.
        Raises ValueError on another backend than TensorFlow. No file holds it.
        """
        return self._unpadded

    @unpadded.setter
    def unpadded(self, value: bool) -> None:
        _check_backend("unpadded", value)
        self._unpadded = value
        self.supports_jit = not value

    @property
    def rematerialize(self) -> bool:
        """True where training keeps only the inputs of each block and computes the block again for its gradient.

        It takes about a third more computation; the gradients are equal up to rounding. Set it before the first step.
        Raises ValueError on another backend than TensorFlow. No file holds it.
        """
        return self._rematerialize

    @rematerialize.setter
    def rematerialize(self, value: bool) -> None:
        _check_backend("rematerialize", value)
        self._rematerialize = value

    def _scores_mask(self, mask: Any, positions: Any = None) -> Any:
        """Int32 [B, S] -> float [B, 1, 1, S], or [B, 1, Q, S] where attention is causal, to be added to attention scores.

        positions: int32 [B, Q], of the queries; all unless given
        """
        read = ops.expand_dims(mask, (1, 2))  # TensorFlow Lite has no slice with two new axes
        if self.config.causal:
            places = ops.arange(ops.shape(mask)[1], dtype="int32")
            asked = places[None] if positions is None else positions
            seen = places <= ops.expand_dims(asked, (1, 3))
            read = seen & (read > 0)
        return (1.0 - ops.cast(read, self.compute_dtype)) * MASKED_SCORE

    def _check_length(self, length: int | None) -> None:
        if length is not None and length > self.config.max_length:
            raise BertKerasError(
                f"a sequence of {length} tokens was given; this encoder has {self.config.max_length} positions: "
                f"preprocess with seq_length={self.config.max_length} or less."
            )

    def compute_output_spec(self, features: Mapping[str, Any], training: bool = False) -> dict[str, Any]:
        """Shapes without running, so that `keras.Input` with an unknown length works on any backend."""
        check_names(features)
        batch, length = features[INPUT_WORD_IDS].shape
        self._check_length(length)
        asked = length
        if OUTPUT_POSITIONS in features:
            self._check_output_positions()
            asked = features[OUTPUT_POSITIONS].shape[1]

        def spec(*shape: int | None) -> keras.KerasTensor:
            return keras.KerasTensor((batch, *shape), self.compute_dtype)

        width, layers = self.config.hidden_size, range(self.config.num_layers)
        specs = {
            SEQUENCE_OUTPUT: spec(asked, width),
            EMBEDDING_OUTPUT: spec(length, width),
            POOLED_OUTPUT: spec(width),
            ENCODER_OUTPUTS: [spec(length, width) for _ in layers],
            ATTENTION_PROBABILITIES: [spec(self.config.num_heads, length, length) for _ in layers],
        }
        return {name: specs[name] for name in self.outputs_wanted}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"outputs": list(self.outputs_wanted)}


def encoder_inputs(
    *, seq_length: int | None = None, prefix: str = "", config: BertConfig | None = None
) -> dict[str, keras.KerasTensor]:
    """Symbolic Features for the functional API: int32 [B, S], S unknown unless `seq_length` fixes it.

    prefix: begins the inputs' own names, which must differ within a model: "question_" makes `question_input_word_ids`. The keys
        of the dict are the features' names either way.
    config: of an encoder that may read more than these three features, such as ELMo, which reads characters, int32 [B, S, C]
    """
    names = ENCODER_INPUTS if config is None else config.inputs
    more = {INPUT_CHARACTERS: (config.max_characters,)} if config is not None else {}
    return {
        name: keras.Input((seq_length, *more.get(name, ())), dtype=DTYPE, name=f"{prefix}{name}")
        for name in names
    }


# -----------------------------------------------------------------------------------------------------------
# Rematerialization (Chen et al. 2016): the backward pass computes a block's activations again, and only the inputs of a block
# stay in memory. The gradients are equal, since dropout draws its seeds once. TensorFlow only.


def rematerialized(
    block: keras.layers.Layer,
    queries: Any,
    states: Any,
    scores_mask: Any,
    *,
    tokens: Any = None,
    probabilities: bool,
) -> tuple[Any, Any]:
    """`block(queries, states, scores_mask, training=True, tokens=tokens)`, whose gradient computes the block again.

    probabilities: returns the attention probabilities too, else None in their place
    """
    generators = [
        layer.seed_generator
        for layer in block._flatten_layers()
        if isinstance(layer, keras.layers.Dropout) and layer.rate > 0
    ]
    seeds = [generator.next() for generator in generators]
    asks_all = queries is states  # a block tells the two apart by `is`

    def compute(states: Any, scores_mask: Any, *asked: Any) -> Any:
        with _drawing(generators, seeds):
            made = block(states if asks_all else asked[0], states, scores_mask, training=True, tokens=tokens)
        return made if probabilities else made[0]

    made = keras.remat(compute)(states, scores_mask, *(() if asks_all else (queries,)))
    return made if probabilities else (made, None)


@contextlib.contextmanager
def _drawing(generators: Sequence[Any], seeds: Sequence[Any]) -> Iterator[None]:
    """Each seed generator gives the seed that was drawn, however often it is asked."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = lambda ordered=True, seed=seed: seed
    try:
        yield
    finally:
        for generator in generators:
            del generator.next
