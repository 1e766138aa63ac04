"""The rows of the studies: pre-trainings with their scales, approaches to one checkpoint, and GLUE's tasks.

Sources: Devlin et al. 2019, sec. 5, 5.1, 5.2, C.1 and C.2, tables 5, 6, 7 and 8, figure 5; Wettig et al. 2023; Liu et al. 2019
(RoBERTa), table 2.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.errors import BertKerasError
from bert_keras.fields import flag_of
from bert_keras.model.choices import LAYERS, check_layers
from bert_keras.tasks.hparams import OF_FEATURES, Hparams
from bert_keras.tasks.options import TAGGING_DEFAULTS


def check_once(kind: str, names: Sequence[str]) -> None:
    """Raises BertKerasError unless there are names, each once. kind: tasks or rows."""
    if not names or len({*names}) < len(names):
        raise BertKerasError(f"the {kind} are {', '.join(names) or 'none'}; give at least one, each once.")


# -----------------------------------------------------------------------------------------------------------
# Ablations with pre-training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table.

    name: in tables and, in lower case, of its folder
    recipe: a key of RECIPES, or MODULE:NAME
    settings: of its pre-training, besides those of the scale
    weights: the row whose pre-training it uses; None for its own pre-training
    share: fine-tuning starts after this fraction of the pre-training's steps; 0 starts at random weights of the same sizes
    finetuned: fields of the encoder's configuration to change for fine-tuning; new layers are randomly initialized
    training: fields of Hparams for its fine-tunings, which override those of the scale
    vocabulary: the name of the vocabulary that it reads, of those that are given; None is the one without a name
    text: the name of the text that it is pre-trained on, as vocabulary; the table leaves out a row whose text is not given
    tasks: the tasks that it has a form for; None for all
    """

    name: str
    recipe: str = "bert"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: str | None = None
    share: float = 1.0
    finetuned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary: str | None = None
    text: str | None = None
    tasks: tuple[str, ...] | None = None

    def has(self, task: str) -> bool:
        """True for a task that the row has a form for."""
        return self.tasks is None or task.removesuffix(FEATURES) in self.tasks

    def on_features(self, task: str) -> bool:
        """True where a BiLSTM learns the task from frozen vectors."""
        return task.endswith(FEATURES) or "feature_layers" in self.training


class Ablation(NamedTuple):
    """A table of a paper.

    pairs: indices of rows to compare; the better row is first, unless `figures` decide it
    figures: the paper's measures by task, in the order of the rows
    measures: the names of the figures' measures, by task; other tasks have the main measure of `finetune`
    learned: True refuses a pre-training that is no better on held-out text than an answer that reads none
    """

    title: str
    pairs: tuple[tuple[int, int], ...]
    figures: Mapping[str, tuple[float | None, ...]] = {}
    measures: Mapping[str, str] = {}
    learned: bool = False


CONTROL = "random weights"  # a row beside those of every table: the first row's encoder without pre-training
SHARES = (1.0, 0.75, 0.5, 0.25)
MASKING_RATES = (5, 10, 15, 20, 30, 40, 80)
ABLATIONS = {
    "tasks": Ablation(
        "pre-training tasks (table 5)",
        ((0, 1), (1, 2), (2, 3)),
        {
            "mnli": (84.4, 83.9, 82.1, 82.1),
            "qnli": (88.4, 84.9, 84.3, 84.1),
            "mrpc": (86.7, 86.5, 77.5, 75.7),
            "sst2": (92.7, 92.6, 92.1, 91.6),
            "squad1.1": (88.5, 87.9, 77.8, 84.9),
        },
        {"mrpc": "accuracy"},
    ),
    "size": Ablation(
        "model size (table 6)",
        tuple((i + 1, i) for i in range(5)),
        {
            "mnli": (77.9, 80.6, 81.9, 84.4, 85.7, 86.6),
            "mrpc": (79.8, 82.2, 84.8, 86.7, 86.9, 87.8),
            "sst2": (88.4, 90.7, 91.3, 92.9, 93.3, 93.7),
        },
        {"mrpc": "accuracy"},
    ),
    "masking": Ablation(
        "masked/kept/replaced tokens in percent (table 8)",
        tuple((0, i) for i in range(1, 6)),
        {
            "mnli": (84.2, 84.3, 84.1, 84.4, 83.7, 83.6),
            "conll2003": (95.4, 94.9, 95.2, 95.2, 94.8, 94.9),
            "conll2003-features": (94.9, 94.0, 94.6, 94.7, 94.6, 94.6),
        },
    ),
    # The masked LM is better than left to right at every step, and the second half of its steps improves it.
    "steps": Ablation(
        "steps of pre-training (figure 5)", (*((i, i + len(SHARES)) for i in range(len(SHARES))), (0, 2))
    ),
    # In a large model, 40 % is better than 15 %, and 80 % keeps 95 % of the performance (the paper's abstract).
    "masking-rate": Ablation(
        "masking rate in percent (Wettig et al. 2023)",
        (
            (MASKING_RATES.index(40), MASKING_RATES.index(15)),
            (MASKING_RATES.index(15), MASKING_RATES.index(80)),
        ),
    ),
    # F1 of SQuAD; RACE, the table's fifth column, is left out.
    "input-format": Ablation(
        "input format and next-sentence prediction (Liu et al. 2019, table 2)",
        ((0, 1), (2, 0), (3, 2)),
        {
            "squad1.1": (90.4, 88.7, 90.4, 90.6),
            "squad2.0": (78.7, 76.2, 79.1, 79.7),
            "mnli": (84.0, 82.9, 84.7, 84.7),
            "sst2": (92.9, 92.1, 92.5, 92.7),
        },
    ),
    # Figures of Devlin et al. 2019: dev of table 7, test of table 1 (there ELMo's vectors are read by a BiLSTM with attention).
    # TagLM has 91.93 and ELMo 92.2 on CoNLL's test split, in their own papers.
    "story": Ablation(
        "the story: word vectors, ELMo, ULMFiT, GPT, BERT, TagLM, CoVe",
        ((4, 3), (4, 1), (3, 1), (1, 0), (1, 5), (6, 0)),
        {
            "sst2": (None, 90.4, None, 91.3, 93.5, None, None),
            "conll2003": (None, 95.7, None, None, 96.4, None, None),
        },
        learned=True,
    ),
}


FEATURES = "-features"  # suffix of a task's name: use the feature-based approach
FEATURE_LAYERS = "concat_last_four"  # table 8
BILSTM = {"batch_size": 32, "epochs": 10, "learning_rate": 1e-3}  # of the tagger on features


def _sizes(*shapes: tuple[int, int, int]) -> tuple[Row, ...]:
    """Rows of table 6: layers, width and heads."""
    names = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    return tuple(
        Row(
            name=f"{layers} x {width}, {heads} heads",
            settings=dict(zip(names, (layers, width, heads, 4 * width), strict=True)),
        )
        for layers, width, heads in shapes
    )


def _shares(name: str, recipe: str) -> Iterator[Row]:
    yield Row(name=name, recipe=recipe)
    for share in SHARES[1:]:
        yield Row(name=f"{name}, {share:.0%} of the steps", recipe=recipe, weights=name, share=share)


def _rates(**settings: Any) -> tuple[Row, ...]:
    """A row for each of MASKING_RATES. There is no next-sentence prediction, as in the paper."""
    return tuple(
        Row(name=f"{rate} %", recipe="bert-no-nsp", settings={"share": rate / 100, **settings})
        for rate in MASKING_RATES
    )


def _formats(*, pair_batch: int | None = None, **settings: Any) -> tuple[Row, ...]:
    """The rows of RoBERTa's table 2.

    pair_batch: batch size of SENTENCE-PAIR, whose instances are shorter: the paper keeps the number of tokens in a batch
    settings: of every row
    """
    more = {} if pair_batch is None else {"batch_size": pair_batch}
    rows = {"strict": False, "short_seq_prob": 0.0}
    return (
        Row(name="SEGMENT-PAIR + NSP", settings=settings),
        Row(name="SENTENCE-PAIR + NSP", settings={"sampler": "sentence_pair", **more, **settings}),
        Row(
            name="FULL-SENTENCES",
            recipe="bert-no-nsp",
            settings={"sampler": "full_sentences", **rows, **settings},
        ),
        Row(
            name="DOC-SENTENCES", recipe="bert-no-nsp", settings={"sampler": "contiguous", **rows, **settings}
        ),
    )


def _story(**sizes: Mapping[str, Any]) -> tuple[Row, ...]:
    """Word vectors and the language models in the order of their papers, TagLM on those of ELMo, and CoVe on pairs of sentences.

    sizes: the settings of a recipe; the paper's unless given. ULMFiT's and GPT's papers have no form for tags, and TagLM's none
        for texts
    """
    texts = ("sst2",)
    # The rate of its paper, sec. 4.1, and an epoch for each of its layers to thaw in; at BERT's rate it learns nothing.
    gradual = {"unfreeze": "gradual", "layer_decay": 0.4, "schedule": "slanted_triangular"}
    gradual |= {"learning_rate": 1e-2, "epochs": 5, "bias_correction": True}
    rows: tuple[tuple[str, str, str | None, Mapping[str, Any], tuple[str, ...] | None], ...] = (
        ("word vectors", "word-vectors", "words", {"feature_layers": "embeddings"}, None),
        ("ELMo", "elmo", "words", {"feature_layers": "0+1+2"}, None),
        ("ULMFiT", "ulmfit", "words", gradual, texts),
        ("GPT", "gpt", None, {"lm_weight": 0.5}, texts),
        ("BERT", "bert", None, {}, None),
    )
    joined = {"feature_layers": "last", "feature_reader": "taglm"}
    taglm = Row(name="TagLM", recipe="elmo", weights="ELMo", training=joined, tasks=("conll2003",))
    made = tuple(
        Row(
            name=name,
            recipe=recipe,
            vocabulary=words,
            training=how,
            tasks=tasks,
            settings=sizes.get(recipe, {}),
            # Random word vectors, the control, get the spread of trained ones: a BiLSTM learns nothing from tiny ones.
            finetuned={"initializer_range": 0.13} if recipe == "word-vectors" else {},
        )
        for name, recipe, words, how, tasks in rows
    )
    vectors = {"feature_layers": "0,2"}
    cove = Row(name="CoVe", recipe="cove", vocabulary="pairs", text="pairs", training=vectors)
    return (*made, taglm, dataclasses.replace(cove, settings=sizes.get("cove", {})))


def _fractions(percent: str) -> list[float]:
    """80/10/10 -> 0.8, 0.1, 0.1."""
    return [int(one) / 100 for one in percent.split("/")]


# Steps for 20 minutes of one core each, measured on an x86-64 core with AVX2. Small steps of an LSTM cost a core as much as large
# ones, so its batches are large.
_SMALL_STORY: dict[str, dict[str, Any]] = {
    "word-vectors": {"steps": 2200, "batch_size": 128, "hidden_size": 128, "learning_rate": 5e-3},
    "elmo": {
        "steps": 340,
        "batch_size": 128,
        "hidden_size": 256,
        "intermediate_size": 256,
        "max_characters": 20,
        "encoder_settings": {
            "character_size": 16,
            "filter_widths": [1, 2, 3, 4, 5],
            "filter_counts": [32, 32, 64, 128, 128],
            "highways": 1,
        },
        "hidden_dropout": 0.0,
        "softmax_samples": 1024,
        "learning_rate": 5e-3,
    },
    "ulmfit": {
        "steps": 540,
        "batch_size": 128,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_layers": 3,
        "softmax_samples": 1024,
        "learning_rate": 4e-3,
    },
    "gpt": {"steps": 1000},
    "bert": {"steps": 2400},
    "cove": {
        "steps": 310,
        "batch_size": 128,
        "hidden_size": 128,
        "embedding_size": 64,
        "num_layers": 2,
        # At 4e-3 the states of the encoder are near -1 and 1 for all words alike, and tell a task nothing.
        "learning_rate": 1e-3,
    },
}
_LTR = "LTR and no NSP"
_ROWS = {
    "tasks": (
        Row(name="BERT"),
        Row(name="no NSP", recipe="bert-no-nsp"),
        Row(name=_LTR, recipe="ltr-no-nsp"),
        Row(name=f"{_LTR}, BiLSTM", recipe="ltr-no-nsp", weights=_LTR, finetuned={"bilstm": True}),
    ),
    "masking": tuple(
        Row(name=name, settings=dict(zip(("hide", "keep", "replace"), _fractions(name), strict=True)))
        for name in ("80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
    ),
    "steps": (*_shares("masked LM", "bert"), *_shares("left to right", "ltr-no-nsp")),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of the ablations.

    pretraining: settings for every row's recipe
    finetuning, features: fields of Hparams, which override a task's defaults; features only where a task's name has FEATURES
    options: task options, by task name
    restarts: seeds for each fine-tuning
    rows, tasks: by ablation
    """

    pretraining: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    finetuning: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    features: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    restarts: int
    rows: Mapping[str, tuple[Row, ...]]
    tasks: Mapping[str, tuple[str, ...]]


SCALES = {
    # For 2 cores: a row takes at most 25 minutes.
    "small": Scale(
        pretraining={
            "size": "L-4_H-128",
            "seq_length": 64,
            "strict": True,  # else nearly all labels are "random" if each sentence fills a chunk
            "batch_size": 32,
            "steps": 2000,
            "learning_rate": 1e-3,
            # Without bias correction the first updates are several times too large. The paper's warm-up of 10,000 steps
            # compensates for this, ours of 200 does not: the states of all positions become equal.
            "bias_correction": True,
            "warmup_proportion": 0.1,
            "eval_every": 500,
            "held_out_instances": 500,
        },
        finetuning={"seq_length": 64, "learning_rate": 1e-4, "epochs": 3, "max_examples": 3000},
        features={"lstm_units": 128, "epochs": 5},
        # A question may take 24 of the 64 tokens.
        options={
            "conll2003": {"context": "sentence"},
            **dict.fromkeys(("squad1.1", "squad2.0"), {"max_query_length": 24}),
        },
        restarts=3,
        rows=_ROWS
        | {
            "size": _sizes((1, 128, 2), (2, 128, 1), (2, 128, 2), (4, 128, 2), (4, 192, 3), (6, 192, 3)),
            "masking-rate": _rates(),
            # Pairs of sentences, of 60 tokens on average in Wikipedia's articles, fill 64 positions as other rows do.
            "input-format": _formats(),
            "story": _story(**_SMALL_STORY),
        },
        tasks={
            "tasks": ("sst2", "mrpc"),
            "size": ("sst2", "mrpc"),
            "masking": ("sst2", "conll2003", "conll2003-features"),
            "steps": ("sst2",),
            "masking-rate": ("sst2", "mrpc"),
            "input-format": ("sst2", "mrpc"),
            "story": ("sst2", "conll2003"),
        },
    ),
    # As in the paper: BERT base, its recipe and its tasks.
    "paper": Scale(
        features={"epochs": 10},
        restarts=5,
        rows=_ROWS
        | {
            "size": _sizes(
                (3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)
            ),
            "masking-rate": _rates(size="large"),
            # All steps at 512 tokens, as in RoBERTa. In Wikipedia's articles, a pair of sentences has 60 tokens on average, and a
            # pair of segments 450.
            "input-format": _formats(pair_batch=8 * 256, phases=((512, 1.0),)),
            "story": _story(),
        },
        tasks={name: tuple(ablation.figures) or ("mnli",) for name, ablation in ABLATIONS.items()}
        | {"masking-rate": ("mnli", "squad1.1")},
    ),
}


# -----------------------------------------------------------------------------------------------------------
# Ablations of one checkpoint

# Settings that the rows decide, that apply only to some of them, or that take the dev split from the training file.
NOT_IN_APPROACHES = ("feature_layers", "freeze", "lora_rank", "unfreeze", "layer_decay", "dev_fraction")
# Settings that rows with layers do not read: they have a rate of their own, and their encoder has no gradient.
OF_FINE_TUNING = ("learning_rate", "rematerialize")
FINE_TUNING = "fine-tuning"
RANDOM = "random-"  # prefix of a row: its weights start at random


class Approaches(NamedTuple):
    """An ablation. tasks: None takes those with data."""

    title: str
    rows: tuple[str, ...]
    tasks: tuple[str, ...] | None


APPROACHES = {
    "layers": Approaches(
        "layers for the feature-based approach (table 7)",
        (FINE_TUNING, *LAYERS, f"{RANDOM}{FINE_TUNING}", f"{RANDOM}last"),
        ("conll2003",),
    ),
    "approaches": Approaches(
        "fine-tuning, features and random weights",
        (FINE_TUNING, "concat_last_four", f"{RANDOM}{FINE_TUNING}"),
        None,
    ),
}
_APPROACH = re.compile(rf"({RANDOM})?(?:({'|'.join(TAGGING_DEFAULTS)})-)?(.*)")


class Approach(NamedTuple):
    """One way to train a task from a checkpoint.

    random: all weights start at random
    context: the context of tags; None for that of the task
    layers: of the frozen encoder; None for fine-tuning
    """

    name: str
    random: bool
    context: str | None
    layers: str | None


def approach_of(name: str) -> Approach:
    """The approach of a row's name: FINE_TUNING or layers as `--feature-layers` takes them, after RANDOM and "<context>-" or not.

    Raises BertKerasError for other names.
    """
    found = _APPROACH.fullmatch(name)
    assert found is not None
    random, context, layers = found.groups()
    if layers != FINE_TUNING:
        try:
            check_layers(layers)
        except BertKerasError:
            raise BertKerasError(
                f"unknown row {name!r}; give {FINE_TUNING}, {', '.join(LAYERS)}, or numbers of layers such as 9 or 9,10,11,12; "
                f"with {RANDOM} before it for random weights, document- or sentence- for the context of tags."
            ) from None
    return Approach(name, random is not None, context, None if layers == FINE_TUNING else layers)


def chosen_approaches(
    names: Sequence[str], settings: Mapping[str, Any], options: Mapping[str, Any], *, context: str | None
) -> list[Approach]:
    """The rows with these names.

    settings, options: the given fields of Hparams and of ApproachOptions
    context: the context of tags in rows without their own; None leaves it to the task

    Raises BertKerasError for settings that do not apply to an ablation or to one of its rows, and for those that no row reads.
    """
    rows = [approach_of(one) for one in names]
    check_once("rows", names)
    if settings.get("max_examples") is not None and len({row.context or context for row in rows}) > 1:
        raise BertKerasError(
            "max_examples counts documents in rows with the context document and sentences in others, so these rows would learn "
            "from other words; give a smaller training file instead, or leave out the rows with a context of their own."
        )
    own = [row.name for row in rows if row.context is not None]
    sizes = [flag_of(name) for name in ("seq_length", "batch_size") if name in settings]
    if own and sizes:
        raise BertKerasError(
            f"{' and '.join(sizes)} would not fit {', '.join(own)}: each context has lengths and batches of its own; "
            f"leave {_it(sizes)} out, or the rows."
        )
    given = [name for name, value in {**settings, **options}.items() if value is not None]
    if refused := [
        name for name in given if name in NOT_IN_APPROACHES and settings[name] != getattr(Hparams, name)
    ]:
        raise BertKerasError(
            f"{', '.join(refused)} does not apply to an ablation, whose rows name the layers and share all other settings; leave "
            f"{_it(refused)} out."
        )
    _check_read(given, rows)
    return rows


def _check_read(given: Sequence[str], rows: Sequence[Approach]) -> None:
    """Raises BertKerasError for settings that none of the rows reads."""
    if all(row.layers is not None for row in rows):
        reader, unread = f"the row {FINE_TUNING}", {*OF_FINE_TUNING}
        unread |= {"epochs"} if "feature_epochs" in given else set()
    elif all(row.layers is None for row in rows):
        reader = "a row with layers, such as last"
        unread = {*OF_FEATURES, "feature_learning_rate", "feature_epochs"}
    else:
        return
    if flags := [flag_of(name) for name in given if name in unread]:
        raise BertKerasError(
            f"no row of {', '.join(row.name for row in rows)} reads {', '.join(flags)}; leave "
            f"{_it(flags)} out, or add {reader}."
        )


def _it(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


# -----------------------------------------------------------------------------------------------------------
# GLUE

# The GLUE score is the mean over these tasks.
SCORED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")

# Task, split, and the leaderboard's file name.
SUBMISSION = (
    ("cola", "test", "CoLA"),
    ("sst2", "test", "SST-2"),
    ("mrpc", "test", "MRPC"),
    ("stsb", "test", "STS-B"),
    ("qqp", "test", "QQP"),
    ("mnli", "test_matched", "MNLI-m"),
    ("mnli", "test_mismatched", "MNLI-mm"),
    ("qnli", "test", "QNLI"),
    ("rte", "test", "RTE"),
    ("wnli", "test", "WNLI"),
    ("ax", "test", "AX"),
)
WNLI, MAJORITY = "wnli", "majority"
PREDICTED_BY = {"ax": "mnli"}  # ax has no training data
