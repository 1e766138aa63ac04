"""Published models that can be given by name: their addresses, sizes, case and licences, as tables.

An address is `scheme://name`; `downloads` resolves it to a folder.
"""

import dataclasses
import math
from typing import Any

from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.config import SIZES, BertConfig

# Family -> the owner of its repositories on the Hugging Face Hub; the licence of the weights, and the page that names it.
_FAMILIES = {
    "bert": ("google-bert", ("apache-2.0", "github.com/google-research/bert, README")),
    "albert": ("albert", ("apache-2.0", "huggingface.co/albert, model cards")),
    "electra": ("google", ("apache-2.0", "huggingface.co/google, model cards")),
    "roberta": ("FacebookAI", ("mit", "huggingface.co/FacebookAI, model cards")),
    "distilbert": ("distilbert", ("apache-2.0", "huggingface.co/distilbert, model cards")),
}
_Row = tuple[str, str, int, bool | None]  # name, size, vocabulary in tokens, cased

# The sizes of the published vocabularies, in tokens.
UNCASED, CASED, CHINESE = 30522, 28996, 21128
MULTILINGUAL_UNCASED, MULTILINGUAL_CASED = 105879, 119547


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownModel:
    """One published model.

    name: the short name
    address: the address that the name stands for
    config: the sizes of the encoder
    cased: False where text is lower-cased; None for Chinese, where the publishers' own files differ
    licence: the SPDX id in lower case, as on the Hub, and the page that says so; "" where no page does
    """

    name: str
    address: str
    family: str
    config: BertConfig
    cased: bool | None
    licence: tuple[str, str]

    @property
    def parameters(self) -> int:
        """The number of weights of the encoder with its pooler."""
        return sum(math.prod(shape) for shape in variable_shapes(self.config).values())

    def to_json(self) -> dict[str, Any]:
        """The row for a machine."""
        licence, source = self.licence
        about = {"name": self.name, "address": self.address, "family": self.family, "cased": self.cased}
        sizes = {"layers": self.config.num_layers, "hidden": self.config.hidden_size}
        sizes |= {"vocabulary": self.config.vocab_size, "parameters": self.parameters}
        return about | sizes | {"license": licence, "license_source": source}


def _known(base: str, row: _Row, *, family: str = "bert") -> KnownModel:
    """The model of a row. base: the address without the name."""
    name, size, vocab_size, cased = row
    config, licence = BertConfig.named(size, vocab_size=vocab_size), _FAMILIES[family][1]
    return KnownModel(
        name=name, address=base + name, family=family, config=config, cased=cased, licence=licence
    )


# -----------------------------------------------------------------------------------------------------------
# Hugging Face

# By family. The repositories are OWNER/NAME.
_REPOSITORIES: dict[str, tuple[_Row, ...]] = {
    "bert": (
        ("bert-base-uncased", "base", UNCASED, False),
        ("bert-base-cased", "base", CASED, True),
        ("bert-large-uncased", "large", UNCASED, False),
        ("bert-large-cased", "large", CASED, True),
        ("bert-large-uncased-whole-word-masking", "large", UNCASED, False),
        ("bert-large-cased-whole-word-masking", "large", CASED, True),
        ("bert-base-multilingual-uncased", "base", MULTILINGUAL_UNCASED, False),
        ("bert-base-multilingual-cased", "base", MULTILINGUAL_CASED, True),
        ("bert-base-chinese", "base", CHINESE, None),
    ),
    "albert": tuple(
        (f"albert-{size}-v2", f"albert-{size}", 30000, False)
        for size in ("base", "large", "xlarge", "xxlarge")
    ),
    "electra": tuple(
        (f"electra-{size}-discriminator", f"electra-{size}", UNCASED, False)
        for size in ("small", "base", "large")
    ),
    "roberta": tuple((f"roberta-{size}", f"roberta-{size}", 50265, True) for size in ("base", "large")),
    "distilbert": (
        ("distilbert-base-uncased", "distilbert-base", UNCASED, False),
        ("distilbert-base-cased", "distilbert-base", CASED, True),
        ("distilbert-base-multilingual-cased", "distilbert-base", MULTILINGUAL_CASED, True),
        ("distilbert-base-uncased-finetuned-sst-2-english", "distilbert-base", UNCASED, False),
        ("distilbert-base-cased-distilled-squad", "distilbert-base", CASED, True),
    ),
}
_MINILM_L6 = BertConfig(
    vocab_size=UNCASED, hidden_size=384, num_layers=6, num_heads=12, intermediate_size=1536
)
_HUGGING_FACE = (
    *(
        _known(f"hf://{_FAMILIES[family][0]}/", row, family=family)
        for family, rows in _REPOSITORIES.items()
        for row in rows
    ),
    KnownModel(
        name="all-MiniLM-L6-v2",
        address="hf://sentence-transformers/all-MiniLM-L6-v2",
        family="bert",
        config=_MINILM_L6,
        cased=False,
        licence=("apache-2.0", "huggingface.co/sentence-transformers, model cards"),
    ),
)

# -----------------------------------------------------------------------------------------------------------
# Google's archives: google-research/bert README.md

GOOGLE_URL = "https://storage.googleapis.com/bert_models/"
# Each row, and the release in the archive's address.
_RELEASES: tuple[tuple[_Row, str], ...] = (
    (("uncased_L-24_H-1024_A-16", "large", UNCASED, False), "2018_10_18"),
    (("cased_L-12_H-768_A-12", "base", CASED, True), "2018_10_18"),
    (("cased_L-24_H-1024_A-16", "large", CASED, True), "2018_10_18"),
    (("multilingual_L-12_H-768_A-12", "base", MULTILINGUAL_UNCASED, False), "2018_11_03"),
    (("chinese_L-12_H-768_A-12", "base", CHINESE, None), "2018_11_03"),
    (("multi_cased_L-12_H-768_A-12", "base", MULTILINGUAL_CASED, True), "2018_11_23"),
    (("wwm_uncased_L-24_H-1024_A-16", "large", UNCASED, False), "2019_05_30"),
    (("wwm_cased_L-24_H-1024_A-16", "large", CASED, True), "2019_05_30"),
    # The 24 sizes of Turc et al. 2019. Base was trained anew for them; the name alone stands for the first release.
    *(
        (
            (f"uncased_{size}_A-{width // 64}", size, UNCASED, False),
            "2018_10_18" if size == "L-12_H-768" else "2020_02_20",
        )
        for size, (_, width) in SIZES.items()
        if size.startswith("L-")
    ),
)
_GOOGLE = tuple(_known("google://", row) for row, _ in _RELEASES)
GOOGLE_ARCHIVES = {row[0]: f"{release}/{row[0]}.zip" for row, release in _RELEASES}

# -----------------------------------------------------------------------------------------------------------
# Model Garden's archives, the same weights for TensorFlow 2: tensorflow/models official/nlp/docs/pretrained_models.md

MODEL_GARDEN_URL = "https://storage.googleapis.com/tf_model_garden/nlp/bert/v3/"
# Name -> the handle of the same weights on TensorFlow Hub.
_TF_HUB = {
    "uncased_L-12_H-768_A-12": "bert_en_uncased_L-12_H-768_A-12",
    "cased_L-12_H-768_A-12": "bert_en_cased_L-12_H-768_A-12",
    "uncased_L-24_H-1024_A-16": "bert_en_uncased_L-24_H-1024_A-16",
    "cased_L-24_H-1024_A-16": "bert_en_cased_L-24_H-1024_A-16",
    "wwm_uncased_L-24_H-1024_A-16": "bert_en_wwm_uncased_L-24_H-1024_A-16",
    "wwm_cased_L-24_H-1024_A-16": "bert_en_wwm_cased_L-24_H-1024_A-16",
    "multi_cased_L-12_H-768_A-12": "bert_multi_cased_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12": "bert_zh_L-12_H-768_A-12",
}
MODEL_GARDEN_ARCHIVES = {name: f"{name}.tar.gz" for name in _TF_HUB}
TF_HUB_URL = "https://tfhub.dev/tensorflow/"
TF_HUB = {handle: f"model_garden://{name}" for name, handle in _TF_HUB.items()}
_MODEL_GARDEN = tuple(
    dataclasses.replace(model, name=_TF_HUB[model.name], address=TF_HUB[_TF_HUB[model.name]])
    for model in _GOOGLE
    if model.name in _TF_HUB
)

# -----------------------------------------------------------------------------------------------------------
# KerasHub's presets of BERT. The library's own table has more, and their downloads.

_PRESETS: tuple[_Row, ...] = (
    ("bert_tiny_en_uncased", "tiny", UNCASED, False),
    ("bert_small_en_uncased", "small", UNCASED, False),
    ("bert_medium_en_uncased", "medium", UNCASED, False),
    ("bert_base_en_uncased", "base", UNCASED, False),
    ("bert_base_en", "base", CASED, True),
    ("bert_base_zh", "base", CHINESE, None),
    ("bert_base_multi", "base", MULTILINGUAL_CASED, True),
    ("bert_large_en_uncased", "large", UNCASED, False),
    ("bert_large_en", "large", CASED, True),
)
_KERAS_HUB = tuple(_known("keras_hub://", row) for row in _PRESETS)

KNOWN = {model.name: model for model in (*_HUGGING_FACE, *_GOOGLE, *_MODEL_GARDEN, *_KERAS_HUB)}
ADDRESSES = {model.address: model for model in KNOWN.values()}
