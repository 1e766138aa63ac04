"""The tokenizer files beside a checkpoint: its case, its added tokens, and settings that give other ids."""

import dataclasses
import json
import re

import numpy as np
import pytest
from random_checkpoints import (
    KINDS,
    PIECES,
    TINY,
    assert_same,
    random_checkpoint,
    refused,
    safetensors_folder,
    saves_with_keras,
    their_tensors,
    with_vocabulary,
)

from bert_keras import checkpoints

guesses_the_case = pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")


@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
@pytest.mark.parametrize("lower_case", [False, True])
def test_the_tokenizer_comes_along(tmp_path, form, lower_case):
    """Its case too, which the pieces, all of them lower-case, do not tell."""
    checkpoint = with_vocabulary(random_checkpoint(), lower_case=lower_case)
    checkpoints.write(checkpoint, tmp_path / "out", format=form)
    assert checkpoints.read(tmp_path / "out").vocabulary.lower_case is lower_case
    for path in (tmp_path / "out", tmp_path / "out" / "vocab.txt"):
        tokenizer = checkpoints.load_tokenizer(path)
        assert (tokenizer.vocabulary, tokenizer.lower_case) == (PIECES, lower_case)
    assert checkpoints.load_tokenizer(tmp_path / "out", lower_case=True).lower_case is True
    if form == "google":
        (tmp_path / "out" / "vocab.txt").unlink()
        refused("no vocab.txt", checkpoints.load_tokenizer, tmp_path / "out", error=FileNotFoundError)
        refused("has no vocabulary", checkpoints.tokenizer_of, checkpoints.read(tmp_path / "out"))


def unused_filled(lines: list[str], count: int) -> list[str]:
    """A vocabulary with upper-case terms in the first of its [unusedN]."""
    slots = [i for i, line in enumerate(lines) if re.fullmatch(r"\[unused\d+\]", line)]
    terms = {slot: f"TERM{i}" for i, slot in enumerate(slots[:count])}
    return [terms.get(i, line) for i, line in enumerate(lines)]


@guesses_the_case
@pytest.mark.parametrize(
    ("name", "lower_case"),
    [("uncased_30522", True), ("cased_28996", False), ("chinese_21128", True), ("multi_cased_119547", False)],
)
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_the_case_is_guessed_from_a_fraction_of_the_vocabulary(data_dir, tmp_path, name, lower_case, count):
    """Domain terms in one or in all of the [unusedN] do not make an uncased vocabulary cased."""
    lines = (data_dir / "vocab" / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "vocab.txt").write_text("\n".join(unused_filled(lines, count)), encoding="utf-8")
    assert checkpoints.load_tokenizer(tmp_path / "vocab.txt").lower_case is lower_case


def test_a_guessed_case_is_logged_once_and_a_setting_overrides_it(tmp_path):
    pieces = (*PIECES[:-1], "A")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    said = (
        r"the files of .* do not say whether to lower-case text; guessed lower_case=False: 1 of its 6 tokens"
    )
    with pytest.warns(UserWarning, match=f"^{said}.*do_lower_case") as caught:
        assert checkpoints.load_tokenizer(tmp_path).lower_case is False
    assert len(caught) == 1 and str(tmp_path) in str(caught[0].message) and "\n" not in str(caught[0].message)
    assert checkpoints.load_tokenizer(tmp_path, lower_case=True).lower_case is True  # nothing is guessed
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert checkpoints.load_tokenizer(tmp_path).lower_case is True


@guesses_the_case
@pytest.mark.parametrize("form", ["hugging-face", "google", "model-garden"])
def test_converting_a_folder_that_does_not_say_whether_it_is_cased(tmp_path, form):
    for pieces, lower_case in ((PIECES, True), ((*PIECES[:-1], "A"), False)):
        checkpoint = with_vocabulary(random_checkpoint(heads=()), tokens=pieces, lower_case=None)
        checkpoints.write(checkpoint, tmp_path / "out", format=form, overwrite=True)
        settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
        assert settings["do_lower_case"] is lower_case  # transformers would take true for granted


@saves_with_keras
@guesses_the_case
def test_a_keras_hub_preset_has_its_tokenizer(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    checkpoint = with_vocabulary(random_checkpoint(heads=()), lower_case=None)
    checkpoints.write(checkpoint, tmp_path / "out", format="keras-hub")
    theirs = keras_hub.models.BertTokenizer.from_preset(str(tmp_path / "out"))
    text = "UNABLE Á b"
    assert np.asarray(theirs(text)).tolist() == [PIECES.index(piece) for piece in ("un", "##able", "a", "b")]
    ours = checkpoints.load_tokenizer(tmp_path / "out")
    assert ours.tokenize([text]).to_list() == [np.asarray(theirs(text)).tolist()]


@saves_with_keras
def test_a_lower_casing_keras_hub_tokenizer_that_keeps_accents_is_read_with_a_warning(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    checkpoints.write(random_checkpoint(heads=()), tmp_path / "out", format="keras-hub")
    keras_hub.models.BertTokenizer(list(PIECES), lowercase=True).save_to_preset(str(tmp_path / "out"))
    with pytest.warns(UserWarning, match=r"tokenizer\.json keeps accents .*; here") as caught:
        assert checkpoints.load_tokenizer(tmp_path / "out").lower_case is True
    assert len(caught) == 1 and "\n" not in str(caught[0].message)


def pipeline() -> dict:
    """A tokenizer.json of PIECES, uncased, as transformers writes it."""
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    model |= {"max_input_chars_per_word": 100}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    ids = {piece: i for i, piece in enumerate(PIECES)}
    return {
        "added_tokens": [{"id": i, "content": piece, "special": True} for i, piece in enumerate(PIECES[:5])],
        "normalizer": normalizer | {"strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            **{name: [token, ids[token]] for name, token in (("sep", "[SEP]"), ("cls", "[CLS]"))},
        },
        "model": model | {"vocab": {piece: i for i, piece in reversed(list(enumerate(PIECES)))}},
    }


@pytest.mark.parametrize("lower_case", [False, True])
def test_the_tokenizer_json_beside_a_vocab_txt_says_the_case(tmp_path, lower_case):
    content = pipeline()
    content["normalizer"]["lowercase"] = lower_case
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    assert checkpoints.load_tokenizer(tmp_path).lower_case is lower_case
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not lower_case}))
    message = f"do_lower_case={not lower_case} beside {lower_case} in its tokenizer.json"
    refused(message, checkpoints.load_tokenizer, tmp_path)


@guesses_the_case
@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("kind", ["BertJapaneseTokenizer", "RobertaTokenizer"])
def test_another_tokenizer_class_is_named_and_the_weights_are_read(tmp_path, name, kind):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    path = tmp_path / "out" / name
    (tmp_path / "out" / "tokenizer_config.json").write_text("{}")
    content = json.loads(path.read_text()) | {"tokenizer_class": kind}
    path.write_text(json.dumps(content))
    assert_same(checkpoints.read(tmp_path / "out"), with_vocabulary(random_checkpoint(), tokens=None))
    message = f"out/{name}: the checkpoint's tokenizer is {kind}, which is not supported"
    refused(message, checkpoints.load_tokenizer, tmp_path / "out")
    path.write_text(json.dumps(content | {"tokenizer_class": "ElectraTokenizerFast"}))
    assert checkpoints.load_tokenizer(tmp_path / "out").vocabulary == PIECES


def test_tokenizer_json_serves_where_vocab_txt_is_missing(tmp_path):
    folder = safetensors_folder(tmp_path / "out", their_tensors(random_checkpoint()))
    content = pipeline()
    vocab = content["model"]["vocab"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = checkpoints.load_tokenizer(folder)
    assert (tokenizer.vocabulary, tokenizer.lower_case) == (PIECES, True)
    # transformers writes a piece of separators as "": the ids behind it keep their offsets.
    vocab[""] = vocab.pop("\u2028")
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert checkpoints.load_tokenizer(folder).vocabulary == PIECES
    vocab["gap"] = 12 + 5  # as a repeated line of a vocab.txt leaves it
    (folder / "tokenizer.json").write_text(json.dumps(content))
    refused("17|18", checkpoints.read, folder)  # more than vocab_size
    vocab["gap"] = 3
    (folder / "tokenizer.json").write_text(json.dumps(content))
    refused("ids .* without a gap", checkpoints.read, folder)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece"}}))
    refused("holds no WordPiece vocabulary", checkpoints.read, folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}},
            "is byte-level BPE with null as the pre_tokenizer of tokenizer.json",
        ),
        ({"merges.txt": "a b"}, "is byte-level BPE without its vocab.json"),
        ({"tokenizer.json": {"model": {"type": "WordLevel"}}}, "is a WordLevel model"),
    ],
)
def test_a_tokenizer_of_another_kind_is_named_and_the_weights_are_read(tmp_path, files, said):
    config = dataclasses.replace(TINY, **KINDS["roberta"])
    checkpoint = with_vocabulary(random_checkpoint(config, heads=("masked_lm",)), tokens=None)
    checkpoints.write(checkpoint, tmp_path / "out", format="hugging-face")
    for name, content in files.items():
        (tmp_path / "out" / name).write_text(json.dumps(content))
    assert_same(checkpoints.read(tmp_path / "out"), checkpoint)
    for call in (
        checkpoints.load_tokenizer,
        lambda folder: checkpoints.tokenizer_of(checkpoints.read(folder)),
    ):
        refused(f"tokenizer {said}, which is not supported", call, tmp_path / "out")
