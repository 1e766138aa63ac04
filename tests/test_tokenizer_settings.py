"""The keys of the tokenizer files: each is followed, harmless or refused by name, and the ids are those of transformers."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import TINY, random_checkpoint, refused, saves_with_keras, with_vocabulary

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer

_LINE = "[PAD] [UNK] [CLS] [SEP] [MASK] <cls> <sep> <unk> <pad> [E1] [/E1] anna lives e é Ann x covid ##id 北 京 北京 ! ( E"
WORDS = _LINE.split()
TEXT = "[E1] Anna livés 北京 <x> E!"
# Without a setting: lower-cased, no marks, ideographs apart.
PLAIN = "[UNK] [UNK] [UNK] anna lives 北 京 [UNK] x [UNK] e !".split()

CONFIG, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
SENTENCE, PIPELINE = "sentence_bert_config.json", "tokenizer.json"
MARKS = ["[E1]", "[/E1]"]
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
E1 = {"content": "[E1]", "special": True, "normalized": False}
# File, its fields, a text, and its tokens with the special tokens: followed. None: harmless, the same ids as without. A string:
# the words of the refusal.
ROWS = [
    (CONFIG, {"do_lower_case": False}, "Anna anna", "[CLS] [UNK] anna [SEP]"),
    (CONFIG, {"do_lower_case": True}, "é", "[CLS] e [SEP]"),
    (CONFIG, {"strip_accents": False}, "É e", "[CLS] é e [SEP]"),
    (CONFIG, {"do_lower_case": False, "strip_accents": True}, "é E", "[CLS] e E [SEP]"),
    (SENTENCE, {"do_lower_case": True}, "É E", "[CLS] e e [SEP]"),
    (CONFIG, {"tokenize_chinese_chars": False}, "北京 北!", "[CLS] 北京 北 ! [SEP]"),
    (CONFIG, {"cls_token": "<cls>", "sep_token": {"__type": "AddedToken", "content": "<sep>"}}, "x", "<cls> x <sep>"),
    (CONFIG, {"unk_token": "<unk>"}, "zzz", "[CLS] <unk> [SEP]"),
    (CONFIG, {"pad_token": "<pad>"}, "x", "[CLS] x [SEP]"),
    (CONFIG, {"additional_special_tokens": MARKS}, "[E1] anna [/E1]", "[CLS] [E1] anna [/E1] [SEP]"),
    (CONFIG, {"extra_special_tokens": MARKS}, "[E1]anna", "[CLS] [E1] anna [SEP]"),
    (CONFIG, {"extra_special_tokens": {"entity_token": "[E1]"}}, "[E1]anna", "[CLS] [E1] anna [SEP]"),
    (CONFIG, {"entity_token": "[E1]"}, "[E1]anna", "[CLS] [E1] anna [SEP]"),
    (CONFIG, {"bos_token": "[E1]", "eos_token": "<e>"}, "[E1] <e>", "[CLS] [E1] <e> [SEP]"),
    (CONFIG, {"added_tokens_decoder": {"9": E1, "25": {"content": "<e>"}}}, "[E1] a<E>", "[CLS] [E1] [UNK] <e> [SEP]"),
    (CONFIG, {"added_tokens_decoder": {"27": {"content": "<e>"}}}, "", "the id 27 of the added token '<e>'"),
    (CONFIG, {"never_split": ["x"]}, "", "never_split="),
    (CONFIG, {"do_basic_tokenize": False}, "", "do_basic_tokenize=False"),
    (CONFIG, {"split_special_tokens": True}, "", "split_special_tokens=True"),
    (CONFIG, {"padding_side": "left"}, "", "padding_side='left'"),
    (CONFIG, {"wordpieces_prefix": "@@"}, "", "wordpieces_prefix='@@'"),
    (CONFIG, {"mask_token": "[M]", "model_max_length": 1e30, "padding_side": "right", "never_split": None}, TEXT, None),
    (CONFIG, {"name_or_path": "x", "clean_up_tokenization_spaces": True, "auto_map": {}, "stride": 0}, TEXT, None),
    (CONFIG, {"max_length": 7, "truncation_strategy": "longest_first", "processor_class": None}, TEXT, None),
    (SPECIAL, {"cls_token": "<cls>", "additional_special_tokens": ["[E1]"]}, "[E1] x", "<cls> [E1] x [SEP]"),
    (SPECIAL, {"unk_token": {"content": "[UNK]", "lstrip": False}}, TEXT, None),
    (ADDED, {"<e>": 25, "[E1]": 9}, "[e1]<E>", "[CLS] [E1] <e> [SEP]"),
    (ADDED, {"<e>": 30}, "", "the id 30 of the added token '<e>'"),
    (SENTENCE, {"max_seq_length": 7, "do_lower_case": False}, TEXT, None),
]  # fmt: skip


def pipeline() -> dict:
    """A tokenizer.json of WORDS, uncased, as transformers writes it."""
    ids = {word: i for i, word in enumerate(WORDS)}
    special = [
        {"id": i, "content": token, "special": True, "normalized": False} for i, token in enumerate(WORDS[:5])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [FLAGS | token for token in special],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
        | {"strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100, "vocab": ids},
    }


def template(*, second: int = 1, start: str = "[CLS]", single: bool = True) -> dict:
    def mark(token: str, kind: int = 0) -> dict:
        return {"SpecialToken": {"id": token, "type_id": kind}}

    a, b = ({"Sequence": {"id": name, "type_id": kind}} for name, kind in (("A", 0), ("B", second)))
    return {
        "type": "TemplateProcessing",
        "single": [mark(start), a, mark("[SEP]")] if single else [a],
        "pair": [mark(start), a, mark("[SEP]"), b, mark("[SEP]", second)],
        "special_tokens": {
            token: {"id": token, "ids": [WORDS.index(token)], "tokens": [token]} for token in (start, "[SEP]")
        },
    }


BERT, LOWER, STRIP = ({"type": kind} for kind in ("BertNormalizer", "Lowercase", "StripAccents"))
BERT |= {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
NFD, NFC, NFKC = ({"type": kind} for kind in ("NFD", "NFC", "NFKC"))


def steps(*normalizers: dict) -> dict:
    return {"type": "Sequence", "normalizers": [*normalizers]}


# As ROWS, for a part of tokenizer.json.
PARTS = [
    ("normalizer", steps(BERT), TEXT, None),
    ("normalizer", steps(NFC, steps(BERT)), "É", "[CLS] e [SEP]"),
    ("normalizer", steps(NFD, LOWER, STRIP), "É 北京", "[CLS] e 北京 [SEP]"),
    ("normalizer", steps(NFKC, BERT), "Ｅ", "[CLS] e [SEP]"),
    ("normalizer", BERT | {"strip_accents": False}, "É", "[CLS] é [SEP]"),
    ("normalizer", BERT | {"lowercase": False, "strip_accents": True}, "é E", "[CLS] e E [SEP]"),
    ("normalizer", BERT | {"handle_chinese_chars": False}, "北京", "[CLS] 北京 [SEP]"),
    ("normalizer", BERT | {"clean_text": False}, "an\x01na anna", "[CLS] [UNK] anna [SEP]"),
    ("normalizer", None, "É é 北京 anna", "[CLS] [UNK] é 北京 anna [SEP]"),
    ("normalizer", steps(NFC, LOWER), "", "NFC without StripAccents"),
    ("normalizer", steps(STRIP), "", "StripAccents without NFD"),
    ("normalizer", steps(BERT, {"type": "Replace"}), "", "'Replace' in the normalizer"),
    ("pre_tokenizer", {"type": "WhitespaceSplit"}, "", "WhitespaceSplit as the pre_tokenizer"),
    ("pre_tokenizer", None, "", "null as the pre_tokenizer"),
    ("post_processor", template(), TEXT, None),
    ("post_processor", template(start="<cls>"), "x", "<cls> x [SEP]"),
    ("post_processor", None, "", "texts without special tokens"),
    ("post_processor", template(single=False), "", "the form 'A'"),
    ("post_processor", template() | {"special_tokens": {}}, "", r"the id None of \[CLS\]"),
    ("added_tokens", [FLAGS | E1 | {"id": 9}, FLAGS | {"id": 25, "content": "<e>"}], "[E1]<E>", "[CLS] [E1] <e> [SEP]"),
    ("added_tokens", [{"id": 26, "content": "<e>"}], "", "the id 26"),
    ("truncation", {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}, TEXT, None),
    ("padding", {"direction": "Left", "pad_type_id": 0}, "", "direction='Left' in the padding"),
    ("model", {"continuing_subword_prefix": "@@"}, "", "continuing_subword_prefix='@@'"),
    ("model", {"unk_token": "<unk>"}, "zzz", "[CLS] <unk> [SEP]"),
    ("model", {"max_input_chars_per_word": 4}, "anna lives", "[CLS] anna [UNK] [SEP]"),
    ("model", {"max_input_chars_per_word": 4000}, "", "max_input_chars_per_word=4000"),
]  # fmt: skip
CASES = [
    *((file, "", fields, text, wanted) for file, fields, text, wanted in ROWS),
    *((PIPELINE, part, value, text, wanted) for part, value, text, wanted in PARTS),
]


def write(folder: pathlib.Path, file: str, part: str, value: object) -> pathlib.Path:
    """A folder of WORDS with one file changed: uncased, unless the file says it."""
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    content = {"do_lower_case": True} if file == CONFIG else {}
    if file == PIPELINE:
        content = pipeline()
        content[part] = {**content["model"], **value} if part == "model" else value
    else:
        content |= value
    (folder / file).write_text(json.dumps(content), encoding="utf-8")
    if file != CONFIG and file != PIPELINE:
        (folder / CONFIG).write_text('{"do_lower_case": true}')
    return folder


def framed(tokenizer, text: str) -> list[str]:
    special = tokenizer.special
    return [tokenizer.vocabulary[i] for i in (special.start, *tokenizer.encode(text), special.end)]


@pytest.mark.parametrize(("file", "part", "value", "text", "wanted"), CASES)
def test_each_key_is_followed_harmless_or_refused(tmp_path, file, part, value, text, wanted):
    folder = write(tmp_path, file, part, value)
    if isinstance(wanted, str) and "[SEP]" not in wanted and "<sep>" not in wanted:
        refused(f"tokenizer is WordPiece with .*{wanted}.*not supported", checkpoints.load_tokenizer, folder)
        return
    found = checkpoints.load_tokenizer(folder)
    tokens = wanted.split() if wanted else ["[CLS]", *PLAIN, "[SEP]"]
    assert framed(found, text) == tokens
    copy = tmp_path / "copy"
    copy.mkdir()
    write_tokenizer(found.to_vocabulary(), copy)
    again = checkpoints.load_tokenizer(copy)
    assert (framed(again, text), again.digest) == (tokens, found.digest)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("file", "part", "value", "text", "wanted"),
    [case for case in CASES if case[4] is None or "[SEP]" in case[4] or "<sep>" in case[4]],
)
def test_transformers_gives_the_same_ids(tmp_path, file, part, value, text, wanted):
    """From the folder, and from what we write of it."""
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast if file == PIPELINE else transformers.BertTokenizer
    folder = write(tmp_path, file, part, value)
    found = checkpoints.load_tokenizer(folder)
    ids = [found.special.start, *found.encode(text), found.special.end]
    assert made.from_pretrained(folder)(text)["input_ids"] == ids
    copy = tmp_path / "copy"
    copy.mkdir()
    write_tokenizer(found.to_vocabulary(), copy)
    (copy / "config.json").write_text('{"model_type": "bert"}')
    assert transformers.AutoTokenizer.from_pretrained(copy)(text)["input_ids"] == ids


def test_unknown_keys_are_named_in_one_warning(tmp_path):
    folder = write(tmp_path, CONFIG, "", {"colour": 1, "shape": 2})
    (folder / SPECIAL).write_text('{"size": 3}')
    said = r"not known here and not followed: colour in tokenizer_config.json, shape in .*, size in special_tokens_map.json\.$"
    with pytest.warns(UserWarning, match=said) as caught:
        checkpoints.load_tokenizer(folder)
    assert len(caught) == 1


def test_tokenizer_json_counts_where_vocab_txt_has_other_ids(tmp_path):
    folder = write(tmp_path, PIPELINE, "decoder", None)
    (folder / "vocab.txt").write_text("\n".join([*WORDS[:11], *WORDS[:10:-1]]), encoding="utf-8")
    with pytest.warns(
        UserWarning, match=r"vocab.txt and the tokenizer.json beside it give other ids; tokenizer.json"
    ):
        assert checkpoints.load_tokenizer(folder).vocabulary == tuple(WORDS)
    ids = {word: i for i, word in enumerate(WORDS)} | {
        "(": 26,
        "E": 25,
    }  # a repeated line leaves a gap in the ids
    ids["!"] = 22
    (folder / PIPELINE).write_text(json.dumps(pipeline() | {"model": pipeline()["model"] | {"vocab": ids}}))
    (folder / "vocab.txt").unlink()
    assert checkpoints.load_tokenizer(folder).vocabulary[22:] == ("!", "", "", "E", "(")


@pytest.mark.parametrize(
    ("key", "value", "length"),
    [("model_max_length", 7, 7), ("max_len", 6, 6), ("model_max_length", 1e30, None)],
)
def test_lengths(tmp_path, key, value, length):
    folder = write(tmp_path, CONFIG, "", {key: value})
    assert checkpoints.hugging_face.read_tokenizer(folder).max_length == length
    (folder / SENTENCE).write_text('{"max_seq_length": 5}')
    assert checkpoints.hugging_face.read_tokenizer(folder).max_length == 5


def test_tokens_without_weights_are_named(tmp_path):
    checkpoint = with_vocabulary(random_checkpoint(), lower_case=True)
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    path = tmp_path / "out" / CONFIG
    rows = {str(i): {"content": f"<t{i}>", "special": False} for i in (12, 13, 14)}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": rows}))
    with pytest.warns(
        UserWarning,
        match=r"adds <t13>, <t14> to its tokenizer and has no weights for them \(vocab_size is 13\)",
    ):
        found = checkpoints.tokenizer_of(checkpoints.read(tmp_path / "out"))
    assert found.encode("<t12>") == [12] and len(found.encode("<t13>")) > 1
    path.unlink()
    vocabulary = tmp_path / "out" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "x\ny\n", encoding="utf-8")
    refused("has 14 tokens and the config's vocab_size is 13", checkpoints.read, tmp_path / "out")


@pytest.mark.long
@saves_with_keras
def test_every_form_of_a_model_gives_the_same_ids(tmp_path):
    """A `.keras` file, a run and an export keep added tokens, other special tokens and the side that is cut."""
    added = (bk.AddedToken("[E1]", normalized=False, special=True), bk.AddedToken("Ab", single_word=True))
    rules = bk.Rules(added=added, names={"mask": "\u2028"}, left=True, strip_accents="", max_word=3)
    config = dataclasses.replace(TINY, vocab_size=14)
    checkpoint = random_checkpoint(config, heads=())
    checkpoint = with_vocabulary(checkpoint, lower_case=True, rules=rules)
    model = bk.classifier(checkpoint, ["no", "yes"], seq_length=6)
    texts = ["[E1] ab é b", "unable AB!", "a b a b a [E1]"]
    tokens = [[12, 13, 10, 8], [1, 13, 1], [8, 7, 8, 7, 12]]
    wanted = model.predict(texts, verbose=0)["probabilities"]
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    for name in ("m.keras", "run"):
        again = bk.load(tmp_path / name)
        tokenizer = again.preprocess.tokenizer
        assert [tokenizer.encode(text)[-5:] for text in texts] == tokens
        assert (tokenizer.digest, tokenizer.special.mask) == (model.preprocess.tokenizer.digest, 9)
        np.testing.assert_allclose(again.predict(texts, verbose=0)["probabilities"], wanted, atol=1e-6)
    served = bk.load(model.export(tmp_path / "out")).signatures["serving_default"](text=tf.constant(texts))
    np.testing.assert_allclose(served["probabilities"], wanted, atol=1e-5)
