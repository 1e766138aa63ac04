"""Every hyperparameter of the trainings: defaults, help, choices and bounds. No TensorFlow, no Keras.

Training and commands read them from here; tasks/options.py has the options of tasks and commands, and
`bert_keras.fields.Masking` the settings for masking.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_keras.config import BertConfig
from bert_keras.fields import Checked, Masking, like, setting, wrong_setting
from bert_keras.io.own_code import load_own
from bert_keras.model.choices import LAYERS, PRECISIONS, check_layers, is_mixed
from bert_keras.model.encoders import BILSTM, READERS

MAX_SEED = 2**32 - 1
MAX_UNITS = 16_384  # of a direction of a BiLSTM
STRATEGIES = ("one", "mirrored", "multiworker", "tpu")
# The learning rate of fine-tuning, and of a BiLSTM on frozen features. The paper has none for the latter; 1e-3 is Adam's default
# and a common choice for BiLSTM taggers.
FINE_TUNING_RATE, FEATURE_RATE = 5e-5, 1e-3
# The samplers of pre-training, and the number of segments in an instance; two segments have a label.
SEGMENTS = {
    "next_sentence": 2,
    "sentence_pair": 2,
    "sentence_order": 2,
    "translation": 2,
    "full_sentences": 1,
    "contiguous": 1,
}


def segments_of(sampler: str) -> int:
    """The number of segments in an instance of a sampler, which a user's own sampler says."""
    return SEGMENTS[sampler] if sampler in SEGMENTS else load_own(sampler, given="sampler").segments


STRICT = ("next_sentence", "sentence_pair")  # the samplers that have a strict form
# Fields of Hparams that apply only with feature_layers; the first describe the model.
BILSTM_SETTINGS = ("lstm_layers", "lstm_units", "lstm_dropout", "mix_norm", "feature_reader")
# LABEL=WEIGHT, up to a comma or the end: a label may have commas and equals signs.
_WEIGHT = re.compile(r"(.+?)=([^=,]+)(?:,|$)", re.DOTALL)
OF_FEATURES = (*BILSTM_SETTINGS, "feature_dtype")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepSettings(Checked):
    """The settings of a training's steps, which change no result but by rounding, and by the size of a batch."""

    batch_size: int = setting(32, help="examples in a batch, over all replicas", at_least=1)
    micro_batch: int | None = setting(
        None,
        help="rows that a device computes at once; the update is that of the whole batch (default: all)",
        at_least=1,
    )
    rematerialize: bool = setting(
        False,
        help="compute each block again for its gradient: less memory, a third more computation, equal gradients",
    )
    steps_per_execution: int = setting(
        1,
        help="steps that a device does before it gives the loss, as a TPU needs to be fast; saves and Ctrl-C wait for them",
        at_least=1,
    )
    precision: str = setting(
        "float32",
        help="format of the computation; weights, losses and the optimizer stay float32",
        choices=PRECISIONS,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams(StepSettings):
    """The settings of one fine-tuning (defaults: Devlin et al. 2019, sec. 4.1 and A.3).

    layer_decay, schedule and unfreeze are the three techniques of ULMFiT (Howard and Ruder 2018). With unfreeze, epoch e, counted
    from 1, trains heads, pooler and the top e blocks.

    patience ends a training early and changes nothing before: the learning rate decays over all epochs, so it is still high at an
    early end, and the best epoch lacks the last part of the decay. For a full decay, give fewer epochs instead.

    feature_layers selects the feature-based approach (Devlin et al. 2019, sec. 5.3): the encoder is frozen, its vectors are
    computed once, and only a BiLSTM and the head are trained. learning_rate is then 1e-3 unless it is given. The paper gives
    lstm_layers and lstm_units.
    """

    epochs: int = setting(3, help="passes over the training split", at_least=1)
    learning_rate: float = setting(
        None, help="the highest learning rate (default: 5e-5, or 1e-3 with --feature-layers)", over=0
    )
    warmup_proportion: float = setting(0.1, help="fraction of all steps for warm-up", at_least=0, at_most=1)
    weight_decay: float = setting(
        0.01, help="decay of kernels; biases and LayerNorm are never decayed", at_least=0
    )
    clip_norm: float | None = setting(1.0, help="global norm that gradients are clipped to, or none", over=0)
    seq_length: int = like(
        BertConfig, "max_positions", default=128, help="longest sequence in tokens, including special tokens"
    )
    seed: int = setting(12345, help="seed of weights, order and dropout", at_least=0, at_most=MAX_SEED)
    max_examples: int | None = setting(
        None, help="train on this many examples, drawn at random (default: all)", at_least=1
    )
    data_seed: int | None = setting(
        None,
        help="seed of the examples that --max-examples draws (default: --seed)",
        at_least=0,
        at_most=MAX_SEED,
    )
    max_dev_examples: int | None = setting(
        None,
        help="measure this many dev examples, drawn at random, the same for all seeds (default: all)",
        at_least=1,
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
        f"{', '.join(LAYERS)}, or numbers such as 9 or 9,10,11,12 (0 is the embeddings), or 0+1+2 for their weighted sum",
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
    mix_norm: bool = setting(
        False, help="normalize each layer of a weighted sum over the numbers of a text, before it is weighted"
    )
    feature_reader: str = setting(
        BILSTM,
        help="network on --feature-layers: taglm reads trained vectors of words and characters first, and joins the frozen ones "
        "before its second BiLSTM",
        choices=tuple(READERS),
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
        "linear",
        help="schedule of the learning rate",
        choices=("linear", "linear_after_warmup", "slanted_triangular", "inverse_square_root"),
    )
    unfreeze: str | None = setting(
        None, help="epoch e, from 1 on, trains the head and the top e blocks", choices=("gradual",)
    )
    patience: int | None = setting(
        None,
        help="stop after this many epochs without a better dev measure; the learning rate still decays over all --epochs",
        at_least=1,
    )

    lm_weight: float = setting(
        0.0,
        help="weight of the language model's loss beside the task's, for a GPT; 0.5 in its paper (default: none)",
        at_least=0,
    )
    class_weight: str | None = setting(
        None,
        help="factors of the losses of classes: balanced, the number of examples / (classes * examples of the class), or weights "
        "by label, as in good=1,bad=3",
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
        if self.freeze is not None:
            self._want_defaults("layer_decay", "rematerialize", "lm_weight", unless="if freeze is set")
        if self.lm_weight:
            self._want_defaults("micro_batch", unless="if lm_weight is set")
        if self.patience is not None and self.keep == "last":
            raise wrong_setting(self, "patience", 'None if keep is "last"')
        _ = self.class_weights
        if self.max_examples is None:
            self._want_defaults("data_seed", unless="without max_examples")
        if self.feature_layers is None:
            self._want_defaults(*OF_FEATURES, unless="without feature_layers")
        else:
            check_layers(self.feature_layers)
            if not is_mixed(self.feature_layers):
                self._want_defaults(
                    "mix_norm", unless="unless feature_layers is a weighted sum, such as 0+1+2"
                )
            if self.feature_reader != BILSTM and self.lstm_layers < 2:
                raise wrong_setting(
                    self, "lstm_layers", f"2 or more if feature_reader is {self.feature_reader}"
                )
            self._want_defaults(
                *("lora_rank", "unfreeze", "layer_decay", "rematerialize", "lm_weight"),
                unless="if feature_layers is set",
            )

    @property
    def class_weights(self) -> str | dict[str, float] | None:
        """`class_weight` as `fit` takes it: "balanced", or the weights by label. Raises BertKerasError for another form."""
        if self.class_weight in (None, "balanced"):
            return self.class_weight
        pairs = [pair.groups() for pair in _WEIGHT.finditer(self.class_weight)]
        labels = [label for label, _ in pairs]
        try:
            weights = {label: float(weight) for label, weight in pairs}
        except ValueError:
            weights = {}
        written = ",".join("=".join(pair) for pair in pairs)
        if not weights or len(weights) < len(labels) or written != self.class_weight:
            raise wrong_setting(
                self, "class_weight", "balanced, or weights such as good=1,bad=3, each label once"
            )
        return weights

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

    def fingerprint(self) -> dict[str, Any]:
        """The fields that decide the result of a training; settings of features only with feature_layers."""
        unread = OF_FEATURES if self.feature_layers is None else ()
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in unread}


def hparams_of(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Hparams:
    """The settings of a task's paper, replaced by those given.

    defaults: `Data.defaults` of a task; with feature_layers, their learning rate, which is for fine-tuning, does not apply
    """
    known = dict(defaults)
    if given.get("feature_layers") is not None:
        known.pop("learning_rate", None)
    return Hparams(**{**known, **given})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Checked):
    """The settings that make pre-training instances from documents."""

    seq_length: int = like(
        Hparams, "seq_length", help="length of an instance in tokens, including special tokens", at_least=5
    )
    short_seq_prob: float = setting(
        0.1, help="probability of a random shorter target length", at_least=0, at_most=1
    )
    sampler: str = setting(
        "next_sentence", help="the method that makes segments", choices=tuple(SEGMENTS), own=True
    )
    strict: bool = setting(
        False,
        help="next_sentence, sentence_pair: draw both labels with probability 1/2; skip a segment that none follows",
    )
    dupe_factor: int = setting(10, help="passes over the documents, each with its own draws", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strict and self.sampler not in STRICT:
            raise wrong_setting(self, "strict", f"False unless the sampler is {' or '.join(STRICT)}")

    @property
    def room(self) -> int:
        """Tokens of text in an instance: without [CLS], and without a [SEP] after each segment."""
        return self.seq_length - 1 - segments_of(self.sampler)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainHparams(StepSettings):
    """The settings of one pre-training (defaults: Devlin et al. 2019, A.2).

    phases: pairs of a length in tokens and a fraction of the steps, in order
    """

    batch_size: int = like(
        StepSettings, "batch_size", default=256, help="instances in a batch, over all replicas"
    )
    steps: int = setting(1_000_000, help="optimizer steps", at_least=1)
    learning_rate: float = like(Hparams, "learning_rate", default=1e-4, help="the highest learning rate")
    optimizer: str = setting("adamw", help="the optimizer", choices=("adamw", "lamb"))
    warmup_proportion: float = like(Hparams, "warmup_proportion", default=0.01)
    weight_decay: float = like(Hparams, "weight_decay")
    clip_norm: float | None = like(Hparams, "clip_norm")
    schedule: str = like(Hparams, "schedule")
    layer_decay: float = like(Hparams, "layer_decay")
    beta_1: float = setting(0.9, help="decay of Adam's first moment", at_least=0, below=1)
    beta_2: float = setting(0.999, help="decay of Adam's second moment", at_least=0, below=1)
    epsilon: float = setting(1e-6, help="added to the root of Adam's second moment", over=0)
    bias_correction: bool = like(Hparams, "bias_correction")
    phases: tuple[tuple[int, float], ...] = setting(
        ((128, 0.9), (512, 0.1)), help="[[length, fraction of the steps], ...]; --seq-length sets one length"
    )
    max_predictions: int | None = like(
        Masking,
        "max_predictions",
        default=None,
        help="the most masked positions in a text (default: as many as --share needs)",
    )
    seed: int = like(Hparams, "seed", help="seed of all draws", at_most=2**31 - 1)
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
    softmax_samples: int = setting(
        0, help="language models: words that a training step draws for its softmax; 0 takes all", at_least=0
    )
    tied_softmax: bool = setting(
        False, help="language models: the softmax has the encoder's word embeddings as weights"
    )
    label_smoothing: float = setting(
        0.1, help="translation: part of the target's probability that all tokens share", at_least=0, below=1
    )
    window: int = setting(
        5, help="word vectors: the most words on each side that a word predicts", at_least=1
    )
    negatives: int = setting(5, help="word vectors: words that are drawn for each of these", at_least=1)
    subsample: float | None = setting(
        1e-4, help="word vectors: frequency from which on a word is dropped at random; null keeps all", over=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        good = all(len(phase) == 2 and phase[0] >= 5 and phase[1] > 0 for phase in self.phases)
        if not good or abs(sum(phase[1] for phase in self.phases) - 1) >= 1e-6:
            raise wrong_setting(
                self, "phases", "pairs of a length and a fraction of the steps; the fractions must sum to 1"
            )
        if self.optimizer == "lamb" and self.layer_decay != 1:
            raise wrong_setting(self, "layer_decay", "1.0 if the optimizer is lamb")

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises."""
        return int(self.steps * self.warmup_proportion)

    def phase_steps(self, count: int) -> list[int]:
        """The step at which each of `count` phases ends."""
        shares = [share for _, share in self.phases] if count > 1 else [1.0]
        return [round(self.steps * sum(shares[: i + 1])) for i in range(count)]
