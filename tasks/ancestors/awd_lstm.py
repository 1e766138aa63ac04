"""AWD-LSTM, the encoder of ULMFiT: LSTM layers from the left, and four ways to drop (Merity et al. 2018; Howard and Ruder 2018).

    word ids int32 [B, S] -> embeddings [B, S, H] -> block_0 .. [B, S, I] -> the last block [B, S, H]

A state has read the words up to its own, so the encoder is `causal`, and the state of the last token stands for a text.
Its softmax is the table of the embeddings: set tied_softmax.

Unlike the paper: the state of a row does not go on to the next row, as rows are drawn at random; the two penalties on
activations and the averaged SGD of Merity et al. are left out, and Adam takes their place, as in ULMFiT.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import DTYPE, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.fields import Checked, setting
from bert_keras.model.kernels import dropout, wide
from bert_keras.tasks.ancestors.encoder import AncestorEncoder, Shapes, WordTable, checked_settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class AwdLstmSettings(Checked):
    """The dropout rates, as `encoder_settings`. The defaults are those of ULMFiT (Howard and Ruder 2018).

    Its code has them for the classifier alone (fastai/fastai courses/dl2/imdb_scripts/train_clas.py), and about half of them for
    the language model (finetune_lm.py): 0.02 of words, 0.25 of inputs, 0.15 between layers, 0.1 of outputs, 0.2 of weights.
    """

    embedding_dropout: float = setting(0.05, help="rate of words without a vector", at_least=0, below=1)
    input_dropout: float = setting(0.4, help="dropout of the embeddings' numbers", at_least=0, below=1)
    layer_dropout: float = setting(0.3, help="dropout between LSTM layers", at_least=0, below=1)
    output_dropout: float = setting(0.4, help="dropout of the last layer's states", at_least=0, below=1)
    weight_dropout: float = setting(
        0.5, help="dropout of the weights from state to state", at_least=0, below=1
    )


class DroppedWords(WordTable):
    """Word ids int32 [B, S] -> float [B, S, H].

    rate: of words, each a row of the table, that have the vector 0 in the whole batch. The others grow by 1 / (1 - rate)
    """

    def __init__(self, config: BertConfig, *, rate: float, dtype: Any = None) -> None:
        super().__init__(config, width=config.hidden_size, dtype=dtype)
        self.rate, self.seeds = rate, keras.random.SeedGenerator()

    def call(self, ids: Any, training: bool = False) -> Any:
        vectors = super().call(ids)
        if not training or not self.rate:
            return vectors
        kept = dropout(ops.ones((self.config.vocab_size,), vectors.dtype), self.rate, self.seeds)
        return vectors * ops.expand_dims(ops.take(kept, ids, axis=0), -1)


class WeightDropLSTM(keras.layers.LSTM):
    """Keras' LSTM, but training drops weights from state to state: DropConnect (Merity et al. 2018).

    weight_dropout: the rate. One mask holds for all rows and steps of a batch, and the weights that stay grow by 1 / (1 - rate).
        So the loop over the steps is as fast as Keras'. `recurrent_dropout` of Keras is another thing: it drops the state
    """

    def __init__(self, units: int, *, weight_dropout: float, **kwargs: Any) -> None:
        # cuDNN's op has no CPU kernel: an export that was traced on a GPU would run nowhere else.
        super().__init__(units, return_sequences=True, use_cudnn=False, **kwargs)
        self.weight_dropout, self.seeds = weight_dropout, keras.random.SeedGenerator()

    def dropped(self) -> Any:
        """The weights from state to state, float [U, 4U], under a new mask. Their gradient is that of the raw weights."""
        return dropout(ops.convert_to_tensor(self.cell.recurrent_kernel), self.weight_dropout, self.seeds)

    def call(
        self, sequences: Any, initial_state: Any = None, mask: Any = None, training: bool = False
    ) -> Any:
        given: dict[str, Any] = {"initial_state": initial_state, "mask": mask, "training": training}
        if not training or not self.weight_dropout:
            return super().call(sequences, **given)
        values = {one.name: ops.convert_to_tensor(one) for one in self.cell.weights}
        values[self.cell.recurrent_kernel.name] = self.dropped()
        # Within the scope, a variable of the cell has this value.
        with keras.StatelessScope(state_mapping=[(one, values[one.name]) for one in self.cell.weights]):
            return super().call(sequences, **given)


class AwdLstmEncoder(AncestorEncoder):
    """Embeddings and `num_layers` LSTM layers: H is `hidden_size`, and I of the inner layers is `intermediate_size`.

    Dropout of inputs, between layers and of outputs is variational: a number is dropped at all steps of a text
    (Merity et al. 2018). `max_positions` only bounds a text.
    """

    def make(self, config: BertConfig) -> list[Any]:
        if not config.causal or config.num_layers < 1:
            raise BertKerasError("awd-lstm reads from the left; set causal, and num_layers 1 or more.")
        rates, wider = checked_settings(AwdLstmSettings, config), wide(self.dtype_policy)
        self.embeddings = DroppedWords(config, rate=rates.embedding_dropout, dtype=self.dtype_policy)
        self.embeddings.build()
        widths = (config.hidden_size, *self.layer_widths(config))
        # float32: a cell adds to its state, and its gradients add up, over all tokens of a text.
        self.blocks = [
            WeightDropLSTM(width, weight_dropout=rates.weight_dropout, name=f"block_{i}", dtype=wider)
            for i, width in enumerate(widths[1:])
        ]
        for below, block in zip(widths[:-1], self.blocks, strict=True):
            block.build((None, None, below))
        between = [rates.layer_dropout] * (config.num_layers - 1)
        # One draw for all steps of a text. Named, for Keras numbers layers without a name through a process.
        self.dropouts = [
            keras.layers.SpatialDropout1D(rate, name=f"dropout_{i}", dtype=wider)
            for i, rate in enumerate((rates.input_dropout, *between, rates.output_dropout))
        ]
        return [self.embeddings, *self.blocks]

    def states(self, features: Mapping[str, Any], training: bool = False) -> list[Any]:
        """Float [B, S, H], then [B, S, I] of each inner layer, then [B, S, H]. At padding, the state stays as it was."""
        ids, real = ops.cast(features[INPUT_WORD_IDS], DTYPE), features[INPUT_MASK] > 0
        self._check_length(ids.shape[1])
        states = [self.dropouts[0](self.embeddings(ids, training=training), training=training)]
        for block, drop in zip(self.blocks, self.dropouts[1:], strict=True):
            states.append(drop(block(states[-1], mask=real, training=training), training=training))
        return [ops.cast(one, self.compute_dtype) for one in states]

    @classmethod
    def layer_widths(cls, config: BertConfig) -> tuple[int, ...]:
        return (config.intermediate_size,) * (config.num_layers - 1) + (config.hidden_size,)

    @classmethod
    def layer_shapes(cls, config: BertConfig) -> Shapes:
        widths = (config.hidden_size, *cls.layer_widths(config))
        shapes: Shapes = {"embeddings/word_embeddings": (config.vocab_size, config.hidden_size)}
        for i, (below, width) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            cell, gates = f"block_{i}/lstm_cell", 4 * width
            shapes |= {f"{cell}/kernel": (below, gates), f"{cell}/recurrent_kernel": (width, gates)}
            shapes[f"{cell}/bias"] = (gates,)
        return shapes
