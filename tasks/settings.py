"""Every hyperparameter and option of the tasks: defaults, help, choices and bounds. No TensorFlow, no Keras.

The tasks, the training and the commands read them from here. `bert_keras.settings.Masking` has the settings of masks.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_keras.settings import check_settings, setting, wrong_setting
from tasks.features.layers import LAYERS

MAX_OPTION = 1_000_000  # the largest value of an option that counts something
MAX_CHOICES = 1_000
MAX_SEED = 2**32 - 1
STRATEGIES = ("one", "mirrored", "tpu")
ABLATIONS = ("tasks", "size", "masking", "steps")
# The samplers of pre-training, and how many segments their instances have; two segments have a label.
SEGMENTS = {"next_sentence": 2, "sentence_order": 2, "full_sentences": 1, "contiguous": 1}


class _Checked:
    """Checks every field at construction."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams(_Checked):
    """The settings of one fine-tuning (defaults: Devlin et al. 2019, sec. 4.1 and A.3).

    layer_decay, schedule and unfreeze are the three aids of Howard and Ruder 2018, ULMFiT. With unfreeze, epoch e, from 1, trains
    heads, pooler and the top e blocks.
    """

    batch_size: int = setting(32, help="examples in a batch, over all replicas", at_least=1)
    epochs: int = setting(3, help="passes over the training split", at_least=1)
    learning_rate: float = setting(5e-5, help="the highest learning rate", over=0)
    warmup_proportion: float = setting(0.1, help="fraction of all steps for warm-up", at_least=0, at_most=1)
    weight_decay: float = setting(
        0.01, help="decay of kernels; biases and LayerNorm are never decayed", at_least=0
    )
    clip_norm: float = setting(1.0, help="global norm that gradients are clipped to", over=0)
    seq_length: int = setting(128, help="longest sequence in tokens, special tokens counted")
    seed: int = setting(12345, help="seed of weights, order and dropout", at_least=0, at_most=MAX_SEED)
    max_examples: int | None = setting(
        None, help="train on this many examples, drawn at random (default: all)", at_least=1
    )
    freeze: str | None = setting(None, help="train the head alone", choices=("encoder",))
    lora_rank: int | None = setting(
        None, help="train the head and LoRA matrices of this rank; the encoder stays fixed", at_least=1
    )
    bias_correction: bool = setting(False, help="correct the bias of Adam's moments, which BERT leaves out")
    layer_decay: float = setting(
        1.0, help="learning rate of each lower layer: that of the layer above, times this", over=0, at_most=1
    )
    schedule: str = setting(
        "linear", help="schedule of the learning rate", choices=("linear", "slanted_triangular")
    )
    unfreeze: str | None = setting(
        None, help="epoch e trains the head and the top e blocks", choices=("gradual",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unfreeze is not None and self.freeze is not None:
            raise wrong_setting(self, "unfreeze", "'gradual', without freeze, or nothing")
        if self.lora_rank is not None and self.freeze is not None:
            raise wrong_setting(self, "lora_rank", "a rank, without freeze, or nothing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerHparams(_Checked):
    """The settings of the BiLSTM tagger. The paper gives layers and units and is silent on the rest.

    Adam at 1e-3 on batches of 32 sentences is Keras' default and a common choice for BiLSTM taggers.
    """

    units: int = setting(768, help="units of each direction", at_least=1)
    layers: int = setting(2, help="BiLSTM layers", at_least=1)
    dropout: float = setting(
        0.3, help="dropout before each BiLSTM and before the tag layer", at_least=0, below=1
    )
    learning_rate: float = setting(1e-3, help="learning rate of Adam", over=0)
    clip_norm: float = setting(1.0, help="global norm that gradients are clipped to", over=0)
    batch_size: int = setting(32, help="sentences in a batch", at_least=1)
    epochs: int = setting(10, help="passes over the training split", at_least=1)
    seed: int = setting(12345, help="seed of weights, order and dropout", at_least=0, at_most=MAX_SEED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(_Checked):
    """The settings that make pre-training instances from documents."""

    seq_length: int = setting(128, help="length of an instance in tokens, special tokens counted", at_least=5)
    short_seq_prob: float = setting(
        0.1, help="probability of a random shorter target length", at_least=0, at_most=1
    )
    sampler: str = setting("next_sentence", help="how segments are combined", choices=tuple(SEGMENTS))
    strict: bool = setting(
        False, help="next_sentence only: give both labels probability 1/2, skip chunks of one segment"
    )
    dupe_factor: int = setting(10, help="passes over the documents, each with its own draws", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict and self.sampler != "next_sentence":
            raise wrong_setting(self, "strict", "False unless the sampler is next_sentence")

    @property
    def room(self) -> int:
        """Tokens beside [CLS] and a [SEP] after each segment."""
        return self.seq_length - 1 - SEGMENTS[self.sampler]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHparams(_Checked):
    """The settings of one pre-training (defaults: Devlin et al. 2019, A.2).

    phases: pairs of a length in tokens and its fraction of the steps, in order
    """

    batch_size: int = setting(256, help="instances in a batch, over all replicas", at_least=1)
    steps: int = setting(1_000_000, help="optimizer steps", at_least=1)
    learning_rate: float = setting(1e-4, help="the highest learning rate", over=0)
    optimizer: str = setting("adamw", help="the optimizer", choices=("adamw", "lamb"))
    warmup_proportion: float = setting(0.01, help="fraction of all steps for warm-up", at_least=0, at_most=1)
    weight_decay: float = setting(0.01, help="decay of kernels", at_least=0)
    clip_norm: float | None = setting(1.0, help="global norm that gradients are clipped to, or null", over=0)
    beta_2: float = setting(0.999, help="decay of Adam's second moment", at_least=0, below=1)
    bias_correction: bool = setting(False, help="correct the bias of Adam's moments")
    phases: tuple[tuple[int, float], ...] = setting(
        ((128, 0.9), (512, 0.1)), help="[[length, fraction of the steps], ...], or give seq_length"
    )
    max_predictions: int | None = setting(
        None, help="masked positions of a text at most (default: the fewest that never cut share)", at_least=1
    )
    seed: int = setting(12345, help="seed of all draws", at_least=0, at_most=2**31 - 1)
    log_every: int = setting(100, help="steps between two log entries, each a mean", at_least=1)
    eval_every: int = setting(1000, help="steps between two held-out evaluations", at_least=1)
    held_out_instances: int = setting(2000, help="held-out instances at most", at_least=1)
    replaced_weight: float = setting(50.0, help="ELECTRA: weight of the discriminator's loss", over=0)
    generator_share: float = setting(
        0.25, help="ELECTRA: width of the generator, as a fraction", over=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        good = all(len(phase) == 2 and phase[0] >= 5 and phase[1] > 0 for phase in self.phases)
        if not good or abs(sum(phase[1] for phase in self.phases) - 1) >= 1e-6:
            raise wrong_setting(self, "phases", "pairs of a length and a share of the steps, which sum to 1")

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        return int(self.steps * self.warmup_proportion)

    def phase_steps(self, count: int) -> list[int]:
        """The step at which each of `count` phases ends."""
        shares = [share for _, share in self.phases] if count > 1 else [1.0]
        return [round(self.steps * sum(shares[: i + 1])) for i in range(count)]


# -----------------------------------------------------------------------------------------------------------
# Options of the tasks. Several tasks share a name: there its meaning is the same.


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOptions(_Checked):
    """Long texts are read in windows that overlap."""

    doc_stride: int = setting(
        128, help="tokens from one window of a long text to the next", at_least=1, at_most=MAX_OPTION
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(WindowOptions):
    """Options of question answering."""

    max_query_length: int = setting(
        64, help="tokens of a question that are kept", at_least=1, at_most=MAX_OPTION
    )
    max_answer_length: int = setting(30, help="tokens of the longest answer", at_least=1, at_most=MAX_OPTION)
    n_best: int = setting(
        20, help="answers that are listed for each question", at_least=1, at_most=MAX_OPTION
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(WindowOptions):
    """Options of named entities."""

    context: str = setting(
        "document", help="the text that a tagged sentence is read with", choices=("document", "sentence")
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceOptions(_Checked):
    """Options of multiple choice."""

    num_choices: int = setting(4, help="endings of every example", at_least=2, at_most=MAX_CHOICES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions(_Checked):
    """Options of GLUE's tasks and of custom."""

    pooling: str = setting(
        "pooled",
        help="input of a classifier: one position, or maximum and mean too",
        choices=("pooled", "concat"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskOptions(_Checked):
    """Options of fill-mask."""

    top_k: int = setting(5, help="tokens that are listed for each [MASK]", at_least=1)


TASK_OPTIONS = (SquadOptions, TaggingOptions, ChoiceOptions, ClassifierOptions, FillMaskOptions)

# Hparams of a task's paper where they differ from those of Hparams, by the task, and of conll2003 by its context.
TASK_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "squad1.1": {"epochs": 3, "learning_rate": 5e-5, "batch_size": 32, "seq_length": 384},
    "squad2.0": {"epochs": 2, "learning_rate": 5e-5, "batch_size": 48, "seq_length": 384},
    "swag": {"learning_rate": 2e-5, "batch_size": 16},  # Devlin et al. 2019, sec. 4.4
    "codah": {"learning_rate": 2e-5, "batch_size": 16},
}
# A batch of 8 documents holds about as many words as one of 128 sentences.
TAGGING_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "document": {"seq_length": 512, "batch_size": 8, "epochs": 4},
    "sentence": {"seq_length": 128, "batch_size": 32, "epochs": 4},
}


# -----------------------------------------------------------------------------------------------------------
# Options of commands that train nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyOptions(_Checked):
    """Options of a vocabulary that is learned. unused and alphabet are of WordPiece alone."""

    kind: str = setting("wordpiece", help="the kind of vocabulary", choices=("wordpiece", "sentencepiece"))
    size: int = setting(30_522, help="tokens of the vocabulary", at_least=1)
    cased: bool = setting(False, help="keep upper case (with WordPiece, accents too)")
    unused: int = setting(0, help="WordPiece: [unused] tokens", at_least=0)
    alphabet: int = setting(1000, help="WordPiece: characters, the most frequent", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOptions(WindowOptions):
    """Options of the features that a frozen encoder gives."""

    layers: str = setting(
        "last", help="layers that make a vector; a weighted sum is the mean", choices=tuple(LAYERS)
    )
    level: str = setting("word", help="the units that get a vector", choices=("word", "piece"))
    format: str = setting("jsonl", help="format of the file", choices=("jsonl", "npz", "parquet"))
    dtype: str = setting("float32", help="type of the numbers", choices=("float16", "float32"))
    seq_length: int | None = setting(None, help="tokens of a window (default: 512, or the encoder's most)")
    batch_size: int = setting(8, help="lines, and windows, in a batch", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(_Checked):
    """Options of an export of a checkpoint as it is. layers and l2 belong to vectors."""

    embedding: str | None = setting(
        None,
        help="with --checkpoint: one vector for each text, over its tokens, or one for each word",
        choices=("mean", "cls", "max", "word"),
    )
    l2: bool = setting(False, help="normalize the vectors of texts to length 1")
    layers: str | None = setting(
        None,
        help="layers that make a vector; a weighted sum is the mean (default: last)",
        choices=tuple(LAYERS),
    )
    seq_length: int | None = setting(
        None, help="longest text, or window, in tokens (default: the encoder's most)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubOptions(_Checked):
    """Options of TensorFlow Hub's text pair."""

    seq_length: int = setting(128, help="tokens that texts are truncated and padded to")
    fresh_pooler: bool = setting(False, help="initialize at random a pooler that the checkpoint lacks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(_Checked):
    """Options of the development server."""

    port: int = setting(8501, help="port of REST; 0 takes a free port")
    grpc_port: int = setting(8500, help="port of gRPC; 0 takes a free port")
    no_grpc: bool = setting(False, help="REST alone, which needs no further package")
    max_rows: int = setting(1_000, help="rows of one request", over=0)
    max_text: int = setting(1_000_000, help="bytes of text of one request", over=0)
    max_seconds: float = setting(60.0, help="seconds until a request is answered", over=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolOptions(_Checked):
    """Options of GLUE's protocol. Seeds count up from that of Hparams."""

    learning_rates: tuple[float, ...] = setting((5e-5, 4e-5, 3e-5, 2e-5), help="each is tried")
    restarts: int = setting(1, help="seeds for each learning rate, from --seed on")
    best_only: bool = setting(False, help="remove the weights of all runs but each task's best")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationOptions(_Checked):
    """Options of the ablations."""

    scale: str = setting(
        "small", help="the size of all runs; small is for 2 cores", choices=("small", "paper")
    )
    restarts: int | None = setting(None, help="seeds of each fine-tuning (default: the scale's)")
