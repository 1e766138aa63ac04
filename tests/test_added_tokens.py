"""Added tokens are whole in text, with the ids and offsets of the library `tokenizers`: a table, and random strings."""

import random
import unicodedata

import pytest
import tensorflow as tf
import tokenizers
from runs import learn_byte_bpe
from tokenizers import models, normalizers, pre_tokenizers, processors

from bert_keras import ByteBPE
from bert_keras.model.tensorflow_layers import PreprocessorLayer
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.rules import AddedToken, Rules
from bert_keras.text.wordpiece import WordPiece

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] [E1] [/E1] anna lives cov ##id a b ##a ##b x ##x new york 北 京 e ##e , !".split()
PARTS = [
    *(
        "[E1]",
        "[/E1]",
        "covid",
        "COVID",
        "Covid",
        " ",
        "  ",
        "\t",
        "\n",
        "a",
        "b",
        "ab",
        "北京",
        "北 京",
        "北",
        "new york",
    ),
    *(
        "New York",
        "new  york",
        "é",
        "e\u0301",
        "É",
        "_",
        "1",
        "²",
        "\u00a0",
        "!",
        ",",
        "anna",
        "<e>",
        "<e",
        "e>",
        "x",
    ),
    *("\u200d", "ⓐ", "ñ", "\u3000", "한국", "\x07", "\ufdd0", "x_", "'s", "🙂"),
]
TOKENS = [
    *(
        "[E1]",
        "[/E1]",
        "covid",
        "COVID",
        "ab",
        "a",
        "北京",
        "new york",
        "<e>",
        "<e",
        "e>",
        "é",
        "Én",
        "anna!",
        "한국",
        "ⓐx",
    ),
    *(" lead", "trail ", "_x", "x_", "b!", "'s", "🙂"),
]


def theirs(made: tokenizers.Tokenizer, added: tuple[AddedToken, ...]) -> tokenizers.Tokenizer:
    for token in added:
        given = tokenizers.AddedToken(
            *token[:1], **{k: v for k, v in token._asdict().items() if k != "content"}
        )
        (made.add_special_tokens if token.special else made.add_tokens)([given])
    return made


def wordpiece(rules: Rules, *, lower_case: bool) -> tuple[WordPiece, tokenizers.Tokenizer]:
    model = models.WordPiece({token: i for i, token in enumerate(WORDS)}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(
        lowercase=lower_case,
        strip_accents=bool(rules.accents(lower_case=lower_case)),
        handle_chinese_chars=rules.split_chinese,
        clean_text=rules.clean_text,
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return WordPiece(WORDS, lower_case=lower_case, rules=rules), theirs(made, rules.added)


@pytest.fixture(scope="module")
def learned():
    return learn_byte_bpe(["anna lives in new york covid ab x_y", "北京 한국 é <e>"] * 5, size=380)


def byte_bpe(learned, rules: Rules) -> tuple[ByteBPE, tokenizers.Tokenizer]:
    ids = {token: i for i, token in enumerate(learned[0])}
    made = tokenizers.Tokenizer(models.BPE(ids, [tuple(merge.split()) for merge in learned[1]]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=rules.prefix_space)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), True, rules.prefix_space
    )
    return ByteBPE(*learned, rules=rules), theirs(made, rules.added)


def without_accents(text: str, start: int, end: int) -> tuple[int, int]:
    """Offsets in bytes without the accents that follow a token's last letter, which ours include."""
    cut = text.encode()[start:end].decode()
    while len(cut) > 1 and unicodedata.category(cut[-1]) == "Mn":
        cut = cut[:-1]
    return start, start + len(cut.encode())


def assert_equal(ours, their, texts: list[str], *, offsets: bool = True) -> None:
    ids, starts, ends = (found.to_list() for found in ours.tokenize_with_offsets(texts))
    assert ours.tokenize(texts).to_list() == ids
    for text, row, *bytes_ in zip(texts, ids, starts, ends, strict=True):
        found = their.encode(text, add_special_tokens=False)
        assert row == found.ids, (text, found.tokens)
        if offsets:
            wanted = [tuple(len(text[:at].encode()) for at in pair) for pair in found.offsets]
            real = [(*pair, ours) for pair, ours in zip(wanted, zip(*bytes_, strict=True), strict=True)]
            kept = [(pair[:2], pair[2]) for pair in real if pair[0] < pair[1]]
            for their_bytes, our_bytes in kept:
                assert without_accents(text, *their_bytes) == without_accents(text, *our_bytes), text


def drawn_rules(draw: random.Random, **more) -> Rules:
    def flag(share: float) -> bool:
        return draw.random() < share

    added = [
        AddedToken(text, flag(0.3), flag(0.3), flag(0.3), flag(0.5), flag(0.3))
        for text in draw.sample(TOKENS, draw.randrange(1, 7))
    ]
    return Rules(
        added=tuple(sorted(added, key=lambda token: not token.special)), **more
    )  # as `tokenizers` adds them


def drawn_texts(draw: random.Random, count: int) -> list[str]:
    return ["", *("".join(draw.choices(PARTS, k=draw.randrange(1, 9))) for _ in range(count))]


# Tokens, text, and its tokens.
TABLE = [
    (["[E1]", "[/E1]"], {"normalized": False}, "[E1] anna [/E1] lives", ["[E1]", "anna", "[/E1]", "lives"]),
    (["COVID"], {}, "Covid covid1", ["COVID", "COVID", "[UNK]"]),
    (["COVID"], {"normalized": False}, "COVID covid", ["COVID", "cov", "##id"]),
    (
        ["ab"],
        {"single_word": True},
        "ab abx x_ab, ab!",
        ["ab", "a", "##b", "##x", "x", "[UNK]", "a", "##b", ",", "ab", "!"],
    ),
    (["ab"], {}, "xabx", ["x", "ab", "x"]),
    (["a", "ab"], {}, "aba", ["ab", "a"]),  # the longest of two
    (["北京"], {}, "在北京b", ["[UNK]", "北京", "b"]),
    (["new york"], {}, "New\tYork new  york", ["new york", "new", "york"]),
    (["é"], {}, "E\u0301 x", ["é", "x"]),
]


@pytest.mark.parametrize(("tokens", "flags", "text", "pieces"), TABLE)
def test_a_table(tokens, flags, text, pieces):
    rules = Rules(added=tuple(AddedToken(token, **flags) for token in tokens))
    ours, their = wordpiece(rules, lower_case=True)
    assert [ours.vocabulary[i] for i in ours.encode(text)] == pieces
    assert_equal(ours, their, [text, f" {text}\n", text.upper()])


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
def test_random_tokens_in_random_text_wordpiece(seed):
    draw = random.Random(seed)
    for _ in range(2 if seed == 0 else 6):
        accents = draw.choice([None, "", "Mn"])
        split, clean = draw.random() < 0.7, draw.random() < 0.8
        rules = drawn_rules(draw, strip_accents=accents, split_chinese=split, clean_text=clean)
        assert_equal(*wordpiece(rules, lower_case=draw.random() < 0.6), drawn_texts(draw, 150))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_random_tokens_in_random_text_byte_bpe(learned, seed):
    """`tokenizers` shifts offsets of words that got a space in front by a character; ours are compared without it."""
    draw = random.Random(seed)
    for _ in range(2 if seed == 0 else 6):
        rules = drawn_rules(draw, prefix_space=draw.random() < 0.3)
        assert_equal(*byte_bpe(learned, rules), drawn_texts(draw, 150), offsets=not rules.prefix_space)


def test_a_layer_and_a_batch_without_rows(learned):
    rules = Rules(
        added=(AddedToken("covid", True, True, True), AddedToken("[E1]", normalized=False)), left=True
    )
    for tokenizer in (WordPiece(WORDS, rules=rules), ByteBPE(*learned, rules=rules)):
        assert [
            column.to_list() for column in tokenizer.tokenize_with_offsets(tf.constant([], tf.string))
        ] == [[]] * 3
        layer = PreprocessorLayer(Preprocessor(tokenizer, seq_length=8))
        again = PreprocessorLayer.from_config(layer.get_config()).preprocess.tokenizer
        text = "anna covid [E1] x"
        assert (again.digest, again.encode(text)) == (tokenizer.digest, tokenizer.encode(text))
        cut = layer(["a b a b a b a b x", "x"])["input_word_ids"].numpy().tolist()
        assert cut[0][-2] == tokenizer.encode("b x")[-1]  # the end of the text stays


def test_many_tokens():
    tokens = [f"tok{i}en" for i in range(20_000)]
    tokenizer = WordPiece(WORDS, rules=Rules(added=tuple(map(AddedToken, tokens))))
    assert tokenizer.encode("tok19999en tok5en tok20000en")[:2] == [len(WORDS) + 19_999, len(WORDS) + 5]
