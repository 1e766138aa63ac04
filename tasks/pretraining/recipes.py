"""Recipes of pre-training: the papers' objectives and settings, in one flat namespace, SETTINGS."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.fields import Checked, Masking, checked_value, like, names_of, setting
from bert_keras.io.own_code import is_own, load_own, name_of
from bert_keras.tasks.hparams import PretrainHparams, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shorthands(Checked):
    """Settings that stand for several others."""

    size: str | None = setting(
        None, help="tiny, mini, small, medium, base, large, L-2_H-128 ... (default: the paper's)"
    )
    seq_length: int | None = like(
        Sampling, "seq_length", default=None, help="one length in place of --phases, in tokens"
    )


CLASSES = (BertConfig, Sampling, Masking, PretrainHparams, Shorthands)
# Setting -> the class that has the field; of several, the last: `seq_length` is a phase, `max_predictions` may be None.
FIELDS = {name: kind for kind in CLASSES for name in names_of(kind)}
SETTINGS = tuple(sorted(FIELDS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The objectives and settings of a pre-training.

    objectives: keys of OBJECTIVES, or classes of your own; with "replaced_token", a second encoder, the generator, learns the
        masked LM. The fields of your own class are settings of the recipe
    settings: the SETTINGS that differ from their defaults, by name
    changes: the user's settings, which override `settings`. If training starts from a checkpoint, only these override the
        checkpoint's configuration
    """

    objectives: tuple[str | type, ...]
    settings: Mapping[str, Any]
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changed(self, **changes: Any) -> "Recipe":
        """The recipe with changed settings. Raises ValueError for a name that is not in SETTINGS, or a wrong value."""
        fields = FIELDS | {name: kind for kind in self.own_settings for name in names_of(kind)}
        if unknown := [name for name in changes if name not in fields]:
            raise BertKerasError(
                f"there is no setting {', '.join(unknown)}; the settings are {', '.join(sorted(fields))}."
            )
        given = {name: checked_value(fields[name], name, value) for name, value in changes.items()}
        if (length := given.pop("seq_length", None)) is not None:
            if "phases" in given:
                raise BertKerasError(
                    "seq_length is one phase of that length; give seq_length or phases, not both."
                )
            given["phases"] = ((length, 1.0),)
        found = dataclasses.replace(self, changes={**self.changes, **given})
        _ = found.hparams, found.sampling(), found.masking()  # which raise on a wrong value
        return found

    def _of(self, kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if FIELDS.get(name) is kind}

    @property
    def names(self) -> list[str]:
        """The names of the objectives, in a fingerprint and in errors."""
        return [one if isinstance(one, str) else name_of(one) for one in self.objectives]

    @property
    def own_settings(self) -> list[type]:
        """For each objective of your own, a dataclass of its fields that are settings of no other class."""
        return [_own_settings(one) for one in self.objectives if isinstance(one, type)]

    @property
    def all_settings(self) -> dict[str, Any]:
        """The recipe's settings, overridden by the user's."""
        return {**self.settings, **self.changes}

    @property
    def hparams(self) -> PretrainHparams:
        """The settings of the training."""
        return PretrainHparams(**self._of(PretrainHparams, self.all_settings))

    def sampling(self, seq_length: int = Sampling.seq_length) -> Sampling:
        """The sampling settings for a length. An epoch is one pass, because its masks are new."""
        return Sampling(**({"dupe_factor": 1} | self._of(Sampling, self.all_settings)), seq_length=seq_length)

    def masking(self, seq_length: int = Sampling.seq_length) -> Masking:
        """The masking settings for a length, which decides max_predictions alone."""
        made = Masking(**self._of(Masking, self.all_settings))
        most = self.hparams.max_predictions or max(1, math.ceil(made.share * seq_length))
        return dataclasses.replace(made, max_predictions=most)

    def config(self, *, vocab_size: int, source: BertConfig | None = None) -> BertConfig:
        """The encoder's configuration, from the checkpoint if there is one, else from `size`.

        Raises ValueError if both are given.
        """
        if source is not None:
            if "size" in self.changes:
                raise BertKerasError("size and a checkpoint were given; leave one out.")
            return dataclasses.replace(source, **self._of(BertConfig, self.changes))
        fields = {"vocab_size": vocab_size} | self._of(BertConfig, self.all_settings)
        return BertConfig.named(self.all_settings.get("size", "base"), **fields)


# Fields of an objective that follow from the vocabulary, the masks and the encoder.
NOT_SETTINGS = ("pieces", "masking", "directions", "counts")


def _own_settings(objective: type) -> type:
    # Without the modules that only type checkers import.
    hints = typing.get_type_hints(objective, localns={"Pieces": object})
    own = [field for field in dataclasses.fields(objective) if field.name not in (*FIELDS, *NOT_SETTINGS)]
    if lacking := [field for field in own if field.default is field.default_factory is dataclasses.MISSING]:
        raise BertKerasError(
            f"{objective.__name__} has a field {lacking[0].name} without a default; a field is a setting with a flag, so give it "
            f"a default. Only {', '.join(NOT_SETTINGS)}, and settings of the training, are filled in by name."
        )
    fields = [
        (field.name, hints[field.name], dataclasses.field(default=field.default, metadata=field.metadata))
        for field in own
    ]
    return dataclasses.make_dataclass(objective.__name__, fields, bases=(Checked,), frozen=True, kw_only=True)


def recipe_named(name: str) -> Recipe:
    """A row of RECIPES, or a Recipe of your own by MODULE:NAME.

    Raises BertKerasError for an unknown name, for another object, and for a class that is no objective or lacks a member.
    """
    if not is_own(name):
        if name not in RECIPES:
            raise BertKerasError(
                f"no recipe named {name!r}; the recipes are {', '.join(RECIPES)}, or MODULE:NAME for one of your own."
            )
        return RECIPES[name]
    found = load_own(name, given="--recipe")
    if not isinstance(found, Recipe):
        raise BertKerasError(
            f"--recipe {name} is {type(found).__name__}; give a Recipe (bert_keras.tasks.pretraining.recipes)."
        )
    for one in found.objectives:
        if isinstance(one, type):
            one.check_members()  # type: ignore[attr-defined]
    return found


# Two phases: 128 positions for 90 % of the steps, 512 for the rest (Devlin et al. 2019, A.2), with at most 20 and 77 masks.
RECIPES = {
    # Devlin et al. 2019, A.2: the defaults of PretrainHparams.
    "bert": Recipe(objectives=("masked_lm", "sentence_pair"), settings={}),
    # Devlin et al. 2019, sec. 5.1: the same pairs, but without their labels.
    "bert-no-nsp": Recipe(objectives=("masked_lm",), settings={}),
    "ltr-no-nsp": Recipe(objectives=("left_to_right",), settings={"causal": True}),
    # Liu et al. 2019, sec. 3.1 and 4.3, table 9 (base); positions, types, gelu, epsilon and bias correction: fairseq.
    "roberta": Recipe(
        objectives=("masked_lm",),
        settings={
            "sampler": "full_sentences",
            "short_seq_prob": 0.0,
            "phases": ((512, 1.0),),
            "batch_size": 8192,
            "steps": 500_000,
            "learning_rate": 6e-4,
            "warmup_proportion": 0.048,  # 24,000 steps
            "beta_2": 0.98,
            "clip_norm": None,
            "bias_correction": True,
            "type_vocab_size": 1,
            "position_offset": 1,  # fairseq counts positions from the padding id, which is 1 there and 0 here
            "max_positions": 513,
            "activation": "gelu_erf",
            "norm_epsilon": 1e-5,
        },
    ),
    # Lan et al. 2020, sec. 3.1 and 4.1; warm-up of 3,125 steps: google-research/albert README and run_pretraining.py.
    "albert": Recipe(
        objectives=("masked_lm", "sentence_pair"),
        settings={
            "sampler": "sentence_order",
            "whole_word": True,
            "max_ngram": 3,
            "phases": ((512, 1.0),),
            "batch_size": 4096,
            "steps": 125_000,
            "learning_rate": 1.76e-3,
            "warmup_proportion": 0.025,
            "optimizer": "lamb",
            "embedding_size": 128,
            "share_layers": True,
        },
    ),
    # Clark et al. 2020, table 6 (small); google-research/electra configure_pretraining.py. 85 % [MASK]: its pretrain_helpers.py;
    # the erf gelu: its modeling.py.
    "electra": Recipe(
        objectives=("masked_lm", "replaced_token"),
        settings={
            "size": "L-12_H-256",
            "sampler": "contiguous",
            "hide": 0.85,
            "keep": 0.15,
            "replace": 0.0,
            "phases": ((128, 1.0),),
            "batch_size": 128,
            "learning_rate": 5e-4,
            "embedding_size": 128,
            "activation": "gelu_erf",
        },
    ),
    # Mikolov et al. 2013, the window, the negatives and the size. Unlike the paper: Adam, and subsampling for a text of millions
    # of words, not billions.
    "word-vectors": Recipe(
        objectives=("skip_gram",),
        settings={
            "encoder": "word-vectors",
            "max_positions": 8192,
            "num_layers": 0,
            "hidden_size": 300,
            "num_heads": 1,
            "type_vocab_size": 0,
            "sampler": "contiguous",
            "short_seq_prob": 0.0,
            "phases": ((128, 1.0),),
            "batch_size": 32,
            "steps": 100_000,
            "learning_rate": 5e-3,
            "warmup_proportion": 0.0,
            "weight_decay": 0.0,
            "clip_norm": None,
            "bias_correction": True,
        },
    ),
    # Howard and Ruder 2018, sec. 3.1: the AWD-LSTM of Merity et al. 2018 with ULMFiT's dropout, the defaults of AwdLstmSettings.
    # Rate, batch and the 70 tokens of a row: fastai/fastai courses/dl2/imdb_scripts/finetune_lm.py, where beta_1 is 0.8.
    # Embeddings start uniform in [-0.1, 0.1] (salesforce/awd-lstm-lm), whose deviation is 0.058.
    "ulmfit": Recipe(
        objectives=("next_words",),
        settings={
            "tied_softmax": True,
            "encoder": "awd-lstm",
            "causal": True,
            "hidden_size": 400,
            "num_layers": 3,
            "intermediate_size": 1150,
            "num_heads": 1,
            "initializer_range": 0.058,
            "sampler": "contiguous",
            "short_seq_prob": 0.0,
            "phases": ((72, 1.0),),
            "batch_size": 64,
            "learning_rate": 4e-3,
            "schedule": "slanted_triangular",
            "warmup_proportion": 0.1,
            "beta_1": 0.7,
            "beta_2": 0.99,
            "bias_correction": True,
        },
    ),
    # The model of the 1 Billion Word Benchmark: allenai/bilm-tf bin/train_elmo.py, of 10 passes over 768,648,884 tokens in steps
    # of 3 x 128 rows of 20 tokens. A row has more tokens here, and a step as many, since no state is carried on to the next
    # row. The original's optimizer is Adagrad at 0.2 (its bilm/training.py); ours and its rate are no paper's.
    "elmo": Recipe(
        objectives=("next_words",),
        settings={
            "encoder": "elmo",
            "hidden_size": 1024,
            "num_layers": 2,
            "num_heads": 1,
            "intermediate_size": 4096,
            "max_characters": 50,
            "max_positions": 8192,
            "type_vocab_size": 0,
            "hidden_dropout": 0.1,
            "softmax_samples": 8192,
            "sampler": "contiguous",
            "short_seq_prob": 0.0,
            "phases": ((128, 1.0),),
            "batch_size": 60,
            "steps": 1_000_000,
            "learning_rate": 1e-3,
            "bias_correction": True,
            "weight_decay": 0.0,
            "clip_norm": 10.0,
        },
    ),
    # Radford et al. 2018, sec. 4.1; bias correction and epsilon: openai/finetune-transformer-lm opt.py. Its train.py fine-tunes
    # by 3 epochs of 32 examples at 6.25e-5, with a warm-up of 0.2 % and lm_weight 0.5. The steps are 100 epochs of the 800M
    # words of BooksCorpus (Devlin et al. 2019, sec. 3.1), counted as one token a word. Unlike the paper: the rate falls
    # in a line, not in a cosine.
    "gpt": Recipe(
        objectives=("left_to_right",),
        settings={
            "sampler": "contiguous",
            "short_seq_prob": 0.0,
            "phases": ((512, 1.0),),
            "batch_size": 64,
            "steps": 2_441_000,
            "learning_rate": 2.5e-4,
            "warmup_proportion": 2_000 / 2_441_000,
            "epsilon": 1e-8,
            "bias_correction": True,
            "type_vocab_size": 0,
            "causal": True,
            "embedding_norm": False,
            "plain_heads": True,
            "norm_epsilon": 1e-5,
        },
    ),
    # Vaswani et al. 2017, sec. 3.4, 5.1, 5.3, 5.4 and table 3 (base): 1,024 pairs have about the 25,000 tokens of a side. Epsilon
    # of the norms, no dropout of attention, no clipping, and initial weights of a deviation of about 512^-0.5:
    # transformer_base_v1 of tensor2tensor.
    "transformer": Recipe(
        objectives=("translation",),
        settings={
            "sampler": "translation",
            "short_seq_prob": 0.0,
            "num_layers": 6,
            "hidden_size": 512,
            "num_heads": 8,
            "intermediate_size": 2048,
            "max_positions": 1024,
            "positions": "sinusoids",
            "scale_embeddings": True,
            "embedding_norm": False,
            "type_vocab_size": 0,
            "activation": "relu",
            "attention_dropout": 0.0,
            "norm_epsilon": 1e-6,
            "initializer_range": 0.044,
            "phases": ((256, 1.0),),
            "batch_size": 1024,
            "steps": 100_000,
            "schedule": "inverse_square_root",
            "learning_rate": 7e-4,
            "warmup_proportion": 0.04,  # 4,000 steps
            "beta_2": 0.98,
            "epsilon": 1e-9,
            "bias_correction": True,
            "weight_decay": 0.0,
            "clip_norm": None,
        },
    ),
    # McCann et al. 2017: 300 units a direction, dropout 0.2, Multi30k as the smallest of three sets. The paper trains by SGD; the
    # rate, the batch and the steps for Adam are ours. OpenNMT's weights start uniform
    # in [-0.1, 0.1] (its train.lua), whose deviation is 0.058.
    "cove": Recipe(
        objectives=("translation",),
        settings={
            "encoder": "cove",
            "sampler": "translation",
            "short_seq_prob": 0.0,
            "num_layers": 2,
            "hidden_size": 600,
            "embedding_size": 300,
            "type_vocab_size": 0,
            "hidden_dropout": 0.2,
            "initializer_range": 0.058,
            "phases": ((128, 1.0),),
            "batch_size": 64,
            "steps": 20_000,
            "learning_rate": 1e-3,
            "bias_correction": True,
            "weight_decay": 0.0,
            "label_smoothing": 0.0,
        },
    ),
}
