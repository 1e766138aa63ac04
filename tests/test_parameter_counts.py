"""Parameter counts of the published models."""

import dataclasses

import pytest

from bert_keras.config import SIZES, BertConfig
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead, NextSentenceHead

# size, encoder with pooler, with the masked-LM and next-sentence heads
PUBLISHED = [
    ("tiny", 4_385_920, 4_433_468),
    ("mini", 11_170_560, 11_267_900),
    ("small", 28_763_648, 29_058_876),
    ("medium", 41_373_184, 41_668_412),
    ("base", 109_482_240, 110_106_428),
    pytest.param("large", 335_141_888, 336_226_108, marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize(("size", "expected", "with_heads"), PUBLISHED)
def test_parameter_count_of_a_built_model(size, expected, with_heads):
    encoder = BertEncoder(BertConfig.named(size))
    assert encoder.count_params() == expected
    heads = (MaskedLMHead(encoder), NextSentenceHead(config=encoder.config))
    assert encoder.count_params() + sum(head.count_params() for head in heads) == with_heads


def count(config):
    """One layer is built; every further one repeats it."""
    encoder = BertEncoder(dataclasses.replace(config, num_layers=1))
    repeats = 0 if config.share_layers else config.num_layers - 1
    return encoder.count_params() + repeats * encoder.blocks[0].count_params()


# Encoder with pooler, L = 2, 4, ..., 12 by row, H = 128, 256, 512, 768 by column.
GRID = """
    4385920  9591040 22458880  38603520
    4782464 11170560 28763648  52779264
    5179008 12750080 35068416  66955008
    5575552 14329600 41373184  81130752
    5972096 15909120 47677952  95306496
    6368640 17488640 53982720 109482240
"""


@pytest.mark.parametrize(("column", "hidden"), list(enumerate((128, 256, 512, 768))))
def test_parameter_counts_of_the_published_grid(column, hidden):
    one = BertEncoder(BertConfig.named(f"L-2_H-{hidden}", num_layers=1))
    whole, block = one.count_params(), one.blocks[0].count_params()
    expected = [int(row.split()[column]) for row in GRID.strip().splitlines()]
    layers = [SIZES[f"L-{n}_H-{hidden}"][0] for n in (2, 4, 6, 8, 10, 12)]
    assert [whole + (n - 1) * block for n in layers] == expected


ALBERT = {"vocab_size": 30000, "embedding_size": 128, "share_layers": True}
ROBERTA = {"vocab_size": 50265, "max_positions": 514, "type_vocab_size": 1, "position_offset": 2}
MINILM = {"vocab_size": 30522, "hidden_size": 384, "num_heads": 12, "intermediate_size": 1536}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BertConfig.named("large"), 335_141_888),
        pytest.param(BertConfig.named("large", vocab_size=28996), 333_579_264, marks=pytest.mark.slow),
        (BertConfig.named("base", vocab_size=28996), 108_310_272),
        (BertConfig.named("base", vocab_size=21128), 102_267_648),
        pytest.param(BertConfig.named("base", vocab_size=119547), 177_853_440, marks=pytest.mark.slow),
        (BertConfig(**MINILM, num_layers=3), 17_389_824),
        (BertConfig(**MINILM, num_layers=6), 22_713_216),
        (BertConfig(**MINILM, num_layers=12), 33_360_000),
        (BertConfig.named("base", **ALBERT), 11_683_584),
        (BertConfig.named("large", **ALBERT), 17_683_968),
        (BertConfig.named("base", **ROBERTA), 124_645_632),
        pytest.param(BertConfig.named("large", **ROBERTA), 355_359_744, marks=pytest.mark.slow),
        # 312 / 12: no A = H / 64 here.
        (
            BertConfig(vocab_size=30522, hidden_size=312, num_layers=4, num_heads=12, intermediate_size=1200),
            14_350_248,
        ),
    ],
    ids=lambda value: (
        None if isinstance(value, int) else f"V{value.vocab_size}-{value.hidden_size}x{value.num_layers}"
    ),
)
def test_parameter_counts_of_published_models(config, expected):
    assert count(config) == expected


def test_parameter_count_of_electra_small_without_pooler():
    config = BertConfig.named("L-12_H-256", embedding_size=128)
    assert count(config) - (256 * 256 + 256) == 13_483_008
