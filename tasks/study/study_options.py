"""Every option of the studies: defaults, help, choices and bounds. No TensorFlow, no Keras."""

import dataclasses

from bert_keras.fields import Checked, like, setting
from bert_keras.tasks.hparams import FEATURE_RATE, Hparams


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProtocolOptions(Checked):
    """Options for the protocol. Every combination is trained. The first seed is that of Hparams; restarts count it up."""

    learning_rates: tuple[float, ...] | None = setting(
        None, help="learning rates to try (default: 5e-5 4e-5 3e-5 2e-5, or 1e-3 with --feature-layers)"
    )
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
    best_only: bool = setting(False, help="keep only the weights of the best run and of the ensemble's runs")
    control: bool = setting(
        False, help="also train from random weights, with the first setting and seed, and show the measure"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(Checked):
    """Options for the protocol on all of GLUE."""

    wnli: str = setting(
        "train",
        help="majority predicts WNLI's most frequent label without training and leaves WNLI out of the score, as the paper does",
        choices=("train", "majority"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeOptions(Checked):
    """Options for probes of every layer."""

    rows: tuple[int, ...] | None = setting(
        None, help="layers to probe, 0 for the embeddings (default: all)", at_least=0
    )
    max_examples: int = like(Hparams, "max_examples", default=1_000, help="training examples of each restart")
    max_dev_examples: int | None = like(
        Hparams, "max_dev_examples", help="most dev examples, drawn at random (default: as --max-examples)"
    )
    restarts: int = like(
        ProtocolOptions, "restarts", default=3, help="probes of each layer, each on its own random examples"
    )
    seq_length: int = like(Hparams, "seq_length", help="tokens in a window")
    seed: int = like(Hparams, "seed", help="seed of the examples that are drawn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationOptions(Checked):
    """Options for the ablations."""

    scale: str = setting("small", help="size of all runs; small is for 2 cores", choices=("small", "paper"))
    restarts: int | None = like(
        ProtocolOptions,
        "restarts",
        default=None,
        help="seeds for each training (default: from --scale; layers, approaches: 3)",
    )
    pretrainings: int = setting(
        1, help="pre-trainings of each row, from other seeds, so that errors cover them too", at_least=1
    )
    held_out: float = setting(0.05, help="fraction of the documents to evaluate on", over=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ApproachOptions(Checked):
    """Options for the ablations of one checkpoint. The other settings of its trainings are fields of Hparams."""

    rows: tuple[str, ...] | None = setting(
        None,
        help="fine-tuning, or layers as in finetune --feature-layers (last, 9 or 9,10,11,12); random-ROW starts at random "
        "weights; document-ROW and sentence-ROW set --context (default: the paper's rows and controls)",
    )
    feature_learning_rate: float = like(
        Hparams, "learning_rate", default=FEATURE_RATE, help="learning rate of rows with layers"
    )
    feature_epochs: int | None = like(
        Hparams, "epochs", default=None, help="epochs of rows with layers (default: --epochs)"
    )
