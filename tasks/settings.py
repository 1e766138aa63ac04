"""Every hyperparameter and option of the tasks: defaults, help, choices and bounds. No TensorFlow, no Keras.

Tasks, training and commands read them from here. `bert_keras.settings.Masking` has the settings for masking.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_keras.settings import check_settings, setting, wrong_setting
from tasks.features.layers import LAYERS, check_layers

MAX_OPTION = 1_000_000  # the upper bound for options that are counts
MAX_CHOICES = 1_000
MAX_SEED = 2**32 - 1
MAX_UNITS = 16_384  # of a direction of a BiLSTM
STRATEGIES = ("one", "mirrored", "tpu")
# The learning rate of fine-tuning, and of a BiLSTM on frozen features. The paper has none for the latter; 1e-3 is Adam's default
# and a common choice for BiLSTM taggers.
FINE_TUNING_RATE, FEATURE_RATE = 5e-5, 1e-3
ABLATIONS = ("tasks", "size", "masking", "steps", "masking-rate", "input-format")
# The samplers of pre-training, and the number of segments in an instance; two segments have a label.
SEGMENTS = {
    "next_sentence": 2,
    "sentence_pair": 2,
    "sentence_order": 2,
    "full_sentences": 1,
    "contiguous": 1,
}
STRICT = ("next_sentence", "sentence_pair")  # the samplers that have a strict form


class _Checked:
    """Checks every field at construction."""

    def __post_init__(self) -> None:
        check_settings(self)


# Fields of Hparams that apply only with feature_layers: first those of the model.
BILSTM_SETTINGS = ("lstm_layers", "lstm_units", "lstm_dropout")
OF_FEATURES = (*BILSTM_SETTINGS, "feature_dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams(_Checked):
    """The settings of one fine-tuning (defaults: Devlin et al. 2019, sec. 4.1 and A.3).

    layer_decay, schedule and unfreeze are the three techniques of ULMFiT (Howard and Ruder 2018). With unfreeze, epoch e, counted
    from 1, trains heads, pooler and the top e blocks.

    patience ends a training early and changes nothing before: the learning rate decays over all epochs, so it is still high at an
    early end, and the best epoch lacks the last part of the decay. For a full decay, give fewer epochs instead.

    feature_layers selects the feature-based approach (sec. 5.3): the encoder is frozen, its vectors are computed once, and only a
    BiLSTM and the head are trained. learning_rate is then 1e-3 unless it is given. The paper gives lstm_layers and lstm_units.
    """

    batch_size: int = setting(32, help="examples in a batch, over all replicas", at_least=1)
    epochs: int = setting(3, help="passes over the training split", at_least=1)
    learning_rate: float = setting(
        None, help="the highest learning rate (default: 5e-5, or 1e-3 with --feature-layers)", over=0
    )
    warmup_proportion: float = setting(0.1, help="fraction of all steps for warm-up", at_least=0, at_most=1)
    weight_decay: float = setting(
        0.01, help="decay of kernels; biases and LayerNorm are never decayed", at_least=0
    )
    clip_norm: float = setting(1.0, help="global norm that gradients are clipped to", over=0)
    seq_length: int = setting(128, help="longest sequence in tokens, including special tokens")
    seed: int = setting(12345, help="seed of weights, order and dropout", at_least=0, at_most=MAX_SEED)
    max_examples: int | None = setting(
        None, help="train on this many examples, drawn at random (default: all)", at_least=1
    )
    dev_fraction: float | None = setting(
        None,
        help="hold out this fraction of the training file, drawn at random, as dev split",
        over=0,
        below=1,
    )
    keep: str = setting(
        "best",
        help="keep the weights of the epoch with the best dev measure, or of the last",
        choices=("best", "last"),
    )
    freeze: str | None = setting(None, help="train only the head", choices=("encoder",))
    feature_layers: str | None = setting(
        None,
        help="freeze the encoder, compute the vectors of these layers once, and train a BiLSTM and the head on them: "
        f"{', '.join(LAYERS)}, or numbers such as 9 or 9,10,11,12 (0 is the embeddings)",
    )
    lstm_layers: int = setting(
        2, help="BiLSTM layers on --feature-layers; 0 trains only the head", at_least=0, at_most=100
    )
    lstm_units: int = setting(
        768, help="units of each direction of these BiLSTMs", at_least=1, at_most=MAX_UNITS
    )
    lstm_dropout: float = setting(
        0.3, help="dropout before each of these BiLSTMs and before the head", at_least=0, below=1
    )
    feature_dtype: str = setting(
        "float32",
        help="type of the stored vectors; float16 halves their size",
        choices=("float32", "float16"),
    )
    lora_rank: int | None = setting(
        None, help="train the head and LoRA matrices of this rank; the encoder stays fixed", at_least=1
    )
    bias_correction: bool = setting(False, help="apply Adam's bias correction, which BERT omits")
    layer_decay: float = setting(
        1.0, help="each layer's learning rate, as a fraction of the layer above", over=0, at_most=1
    )
    schedule: str = setting(
        "linear", help="schedule of the learning rate", choices=("linear", "slanted_triangular")
    )
    unfreeze: str | None = setting(
        None, help="epoch e trains the head and the top e blocks", choices=("gradual",)
    )
    patience: int | None = setting(
        None,
        help="stop after this many epochs without a better dev measure; the learning rate still decays over all --epochs",
        at_least=1,
    )

    def __post_init__(self) -> None:
        if self.learning_rate is None:
            rate = FINE_TUNING_RATE if self.feature_layers is None else FEATURE_RATE
            object.__setattr__(self, "learning_rate", rate)
        super().__post_init__()
        if self.unfreeze is not None and self.freeze is not None:
            raise wrong_setting(self, "unfreeze", "None if freeze is set")
        if self.lora_rank is not None and self.freeze is not None:
            raise wrong_setting(self, "lora_rank", "None if freeze is set")
        if self.patience is not None and self.keep == "last":
            raise wrong_setting(self, "patience", 'None if keep is "last"')
        if self.feature_layers is None:
            self._want_defaults(*OF_FEATURES, unless="without feature_layers")
        else:
            check_layers(self.feature_layers)
            self._want_defaults("lora_rank", "unfreeze", "layer_decay", unless="if feature_layers is set")

    def _want_defaults(self, *names: str, unless: str) -> None:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != defaults[name]:
                raise wrong_setting(self, name, f"{defaults[name]} {unless}")

    @property
    def features(self) -> dict[str, Any] | None:
        """The settings of the BiLSTM on frozen features, by name; None for fine-tuning."""
        if self.feature_layers is None:
            return None
        return {name: getattr(self, name) for name in ("feature_layers", *BILSTM_SETTINGS)}

    def identity(self) -> dict[str, Any]:
        """The fields that decide the result of a training, to compare with those of an unfinished run.

        Those of features only with feature_layers, and `keep` only where it is not "best": the runs of versions without them are
        still resumed.
        """
        unread = OF_FEATURES if self.feature_layers is None else ()
        kept = {name: value for name, value in dataclasses.asdict(self).items() if name not in unread}
        return {name: value for name, value in kept.items() if (name, value) != ("keep", "best")}


def hparams_of(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Hparams:
    """The settings of a task's paper, replaced by those given.

    defaults: `Data.defaults` of a task; with feature_layers, their learning rate, which is for fine-tuning, does not apply
    """
    known = dict(defaults)
    if given.get("feature_layers") is not None:
        known.pop("learning_rate", None)
    return Hparams(**{**known, **given})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerHparams(_Checked):
    """The settings of the BiLSTM tagger. The paper gives only layers and units.

    Adam at 1e-3 with batches of 32 sentences is Keras' default and a common choice for BiLSTM taggers.
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

    seq_length: int = setting(
        128, help="length of an instance in tokens, including special tokens", at_least=5
    )
    short_seq_prob: float = setting(
        0.1, help="probability of a random shorter target length", at_least=0, at_most=1
    )
    sampler: str = setting("next_sentence", help="how segments are combined", choices=tuple(SEGMENTS))
    strict: bool = setting(
        False,
        help="next_sentence, sentence_pair: both labels have probability 1/2; skip segments with none after them",
    )
    dupe_factor: int = setting(10, help="passes over the documents, each with its own draws", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict and self.sampler not in STRICT:
            raise wrong_setting(self, "strict", f"False unless the sampler is {' or '.join(STRICT)}")

    @property
    def room(self) -> int:
        """Tokens of text in an instance: without [CLS], and without a [SEP] after each segment."""
        return self.seq_length - 1 - SEGMENTS[self.sampler]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHparams(_Checked):
    """The settings of one pre-training (defaults: Devlin et al. 2019, A.2).

    phases: pairs of a length in tokens and a fraction of the steps, in order
    """

    batch_size: int = setting(256, help="instances in a batch, over all replicas", at_least=1)
    steps: int = setting(1_000_000, help="optimizer steps", at_least=1)
    learning_rate: float = setting(1e-4, help="the highest learning rate", over=0)
    optimizer: str = setting("adamw", help="the optimizer", choices=("adamw", "lamb"))
    warmup_proportion: float = setting(0.01, help="fraction of all steps for warm-up", at_least=0, at_most=1)
    weight_decay: float = setting(0.01, help="decay of kernels", at_least=0)
    clip_norm: float | None = setting(1.0, help="global norm that gradients are clipped to, or null", over=0)
    beta_2: float = setting(0.999, help="decay of Adam's second moment", at_least=0, below=1)
    bias_correction: bool = setting(False, help="apply Adam's bias correction")
    phases: tuple[tuple[int, float], ...] = setting(
        ((128, 0.9), (512, 0.1)), help="[[length, fraction of the steps], ...], or give seq_length"
    )
    max_predictions: int | None = setting(
        None, help="most masked positions in a text (default: enough for share)", at_least=1
    )
    seed: int = setting(12345, help="seed of all draws", at_least=0, at_most=2**31 - 1)
    log_every: int = setting(100, help="steps between two log entries, each a mean", at_least=1)
    eval_every: int = setting(1000, help="steps between two held-out evaluations", at_least=1)
    held_out_instances: int = setting(2000, help="most held-out instances to evaluate", at_least=1)
    patience: int | None = setting(
        None,
        help="end the last phase after this many evaluations without a lower held-out loss; the rate still decays over all steps",
        at_least=1,
    )
    replaced_weight: float = setting(50.0, help="ELECTRA: weight of the discriminator's loss", over=0)
    generator_share: float = setting(
        0.25, help="ELECTRA: width of the generator, as a fraction", over=0, at_most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        good = all(len(phase) == 2 and phase[0] >= 5 and phase[1] > 0 for phase in self.phases)
        if not good or abs(sum(phase[1] for phase in self.phases) - 1) >= 1e-6:
            raise wrong_setting(
                self, "phases", "pairs of a length and a fraction of the steps; the fractions must sum to 1"
            )

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        return int(self.steps * self.warmup_proportion)

    def phase_steps(self, count: int) -> list[int]:
        """The step at which each of `count` phases ends."""
        shares = [share for _, share in self.phases] if count > 1 else [1.0]
        return [round(self.steps * sum(shares[: i + 1])) for i in range(count)]


# -----------------------------------------------------------------------------------------------------------
# Options of the tasks. An option of several tasks means the same in all of them.


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOptions(_Checked):
    """Options for long texts, which are read in windows that overlap."""

    doc_stride: int = setting(
        128, help="tokens between the starts of two windows", at_least=1, at_most=MAX_OPTION
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(WindowOptions):
    """Options for question answering."""

    max_query_length: int = setting(
        64, help="longest question in tokens; longer ones are truncated", at_least=1, at_most=MAX_OPTION
    )
    max_answer_length: int = setting(30, help="longest answer in tokens", at_least=1, at_most=MAX_OPTION)
    n_best: int = setting(20, help="answers to list for each question", at_least=1, at_most=MAX_OPTION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(WindowOptions):
    """Options for named entities."""

    context: str = setting(
        "document", help="the context of each tagged sentence", choices=("document", "sentence")
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceOptions(_Checked):
    """Options for multiple choice."""

    num_choices: int = setting(4, help="endings in every example", at_least=2, at_most=MAX_CHOICES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions(_Checked):
    """Options for GLUE's tasks and for custom."""

    pooling: str = setting(
        "pooled",
        help="input of the classifier: the pooled output, or concat with maximum and mean too",
        choices=("pooled", "concat"),
    )
    doc_stride: int | None = setting(
        None,
        help="tokens between the starts of two windows over a long text (default: 128 for questions and tags; GLUE's tasks and "
        "custom truncate long texts unless it is given)",
        at_least=1,
        at_most=MAX_OPTION,
    )

    truncation: str | None = setting(
        None,
        help="GLUE and custom, for one text: the part to keep of a text that does not fit, its tail, or head_tail for a quarter "
        "of head and the rest of tail (default: its head)",
        choices=("tail", "head_tail"),
    )

    def __post_init__(self) -> None:
        if self.truncation is not None and self.doc_stride is not None:
            raise wrong_setting(self, "truncation", "None if doc_stride is set: windows read the whole text")
        if self.doc_stride is not None and type(self.doc_stride) is not int:
            raise wrong_setting(self, "doc_stride", "a whole number, or None")
        super().__post_init__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnOptions(_Checked):
    """Options for examples in the columns of a table: GLUE's tasks and custom. label_type applies only to custom."""

    text_column: tuple[str, ...] | None = setting(
        None,
        help="GLUE and custom: the column of the text, or the two columns of a pair (default for custom: all columns but the "
        "label's, idx, index and id)",
    )
    label_column: str | None = setting(
        None, help="GLUE and custom: the column of the label (default for custom: label)"
    )
    label_type: str | None = setting(
        None,
        help="custom: each text has one class, a score, or any number of labels (a list, or separated by |); needed if "
        "all labels are numbers",
        choices=("class", "score", "multi"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column is not None and len({*self.text_column}) != len(self.text_column):
            raise wrong_setting(self, "text_column", "different columns")
        if self.text_column is not None and len(self.text_column) not in (1, 2):
            raise wrong_setting(self, "text_column", "one column, or two for a pair")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskOptions(_Checked):
    """Options for fill-mask."""

    top_k: int = setting(5, help="tokens to list for each [MASK]", at_least=1)


# The labels of the two heads on sentence pairs, by the name of the task; label 0 is a second text that follows the first.
SENTENCE_PAIR_LABELS = {
    "next-sentence": ("is_next", "not_next"),
    "sentence-order": ("in_order", "swapped"),
}
# The tasks that a pre-trained checkpoint can do without fine-tuning.
PRETRAINED_TASKS = ("fill-mask", *SENTENCE_PAIR_LABELS)

# The help of a flag is that of the first class with its field.
TASK_OPTIONS = (
    ClassifierOptions,
    ColumnOptions,
    SquadOptions,
    TaggingOptions,
    ChoiceOptions,
    FillMaskOptions,
)

# The hyperparameters of a task's paper that differ from the defaults of Hparams, by task.
TASK_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "squad1.1": {"epochs": 3, "learning_rate": 5e-5, "batch_size": 32, "seq_length": 384},
    "squad2.0": {"epochs": 2, "learning_rate": 5e-5, "batch_size": 48, "seq_length": 384},
    "swag": {"learning_rate": 2e-5, "batch_size": 16},  # Devlin et al. 2019, sec. 4.4
    "codah": {"learning_rate": 2e-5, "batch_size": 16},
}
# The same for conll2003, by context. A batch of 8 documents has about as many words as a batch of 128 sentences.
TAGGING_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "document": {"seq_length": 512, "batch_size": 8, "epochs": 4},
    "sentence": {"seq_length": 128, "batch_size": 32, "epochs": 4},
}


# -----------------------------------------------------------------------------------------------------------
# Options of commands that do not train


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyOptions(_Checked):
    """Options for learning a vocabulary. unused and alphabet apply only to WordPiece."""

    kind: str = setting("wordpiece", help="the kind of vocabulary", choices=("wordpiece", "sentencepiece"))
    size: int = setting(30_522, help="tokens in the vocabulary", at_least=1)
    cased: bool = setting(False, help="keep upper case (with WordPiece, accents too)")
    unused: int = setting(0, help="WordPiece: number of [unused] tokens", at_least=0)
    alphabet: int = setting(
        1000, help="WordPiece: keep this many of the most frequent characters", at_least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriviaQaOptions(_Checked):
    """Options for converting TriviaQA."""

    split: str = setting("train", help="the split to write", choices=("train", "validation"))
    tokens: int = setting(400, help="tokens of a paragraph, words between white space", at_least=1)
    limit: int | None = setting(None, help="read only the first questions (default: all)", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOptions(WindowOptions):
    """Options for extracting features from a frozen encoder."""

    layers: str = setting(
        "last", help="layers to combine into a vector; a weighted sum is the mean", choices=tuple(LAYERS)
    )
    level: str = setting("word", help="one vector for each word or token", choices=("word", "piece"))
    format: str = setting("jsonl", help="format of the file", choices=("jsonl", "npz", "parquet"))
    dtype: str = setting("float32", help="type of the numbers", choices=("float16", "float32"))
    seq_length: int | None = setting(None, help="tokens in a window (default: 512, or the encoder's maximum)")
    batch_size: int = setting(8, help="lines, and windows, in a batch", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(_Checked):
    """Options for exporting a checkpoint without training. layers and l2 apply only to vectors."""

    embedding: str | None = setting(
        None,
        help="with --checkpoint: one vector for each text, pooled over its tokens, or (word) for each word",
        choices=("mean", "cls", "max", "word"),
    )
    l2: bool = setting(False, help="scale the vectors of texts to length 1")
    layers: str | None = setting(
        None,
        help="layers to combine into a vector; a weighted sum is the mean (default: last)",
        choices=tuple(LAYERS),
    )
    seq_length: int | None = setting(
        None, help="longest text, or window, in tokens (default: the encoder's maximum)"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubOptions(_Checked):
    """Options for TensorFlow Hub's preprocessor and encoder."""

    seq_length: int = setting(128, help="truncate and pad texts to this many tokens")
    fresh_pooler: bool = setting(False, help="initialize the pooler randomly if the checkpoint has none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(_Checked):
    """Options for the development server."""

    port: int = setting(8501, help="port for REST; 0 picks a free port")
    grpc_port: int = setting(8500, help="port for gRPC; 0 picks a free port")
    no_grpc: bool = setting(False, help="serve only REST, which needs no extra package")
    max_rows: int = setting(1_000, help="most rows in a request", over=0)
    max_text: int = setting(1_000_000, help="most bytes of text in a request", over=0)
    max_seconds: float = setting(60.0, help="time limit for a request in seconds", over=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolOptions(_Checked):
    """Options for the protocol. Every combination is trained. The first seed is that of Hparams; restarts count it up."""

    learning_rates: tuple[float, ...] = setting((5e-5, 4e-5, 3e-5, 2e-5), help="learning rates to try")
    batch_sizes: tuple[int, ...] | None = setting(
        None, help="batch sizes to try, such as 16 32 (default: --batch-size)"
    )
    epoch_counts: tuple[int, ...] | None = setting(
        None, help="numbers of epochs to try, such as 2 3 4 (default: --epochs)"
    )
    restarts: int = setting(1, help="seeds for each combination, starting at --seed", at_least=1)
    ensemble: int | None = setting(
        None, help="measure an ensemble of this many of the best runs on dev too", at_least=2
    )
    best_only: bool = setting(False, help="keep only the weights of the best run, and of the ensemble's")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(_Checked):
    """Options for the protocol on all of GLUE."""

    wnli: str = setting(
        "train",
        help="majority predicts WNLI's most frequent label without training and leaves WNLI out of the score, as the paper does",
        choices=("train", "majority"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeOptions(_Checked):
    """Options for probes of every layer."""

    max_examples: int = setting(
        1_000, help="training examples of each restart, and at most as many dev examples", at_least=1
    )
    restarts: int = setting(3, help="probes of each layer, each from other training examples", at_least=1)
    seq_length: int = setting(128, help="tokens in a window")
    seed: int = setting(12345, help="seed of the examples that are drawn", at_least=0, at_most=MAX_SEED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationOptions(_Checked):
    """Options for the ablations."""

    scale: str = setting("small", help="size of all runs; small is for 2 cores", choices=("small", "paper"))
    restarts: int | None = setting(None, help="seeds for each fine-tuning (default: from --scale)")
