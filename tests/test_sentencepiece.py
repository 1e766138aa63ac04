"""SentencePiece against the sentencepiece package behind ALBERT's normalizing, its own bytes, bad strings and bad models."""

import dataclasses
import json
import random
import unicodedata

import keras
import numpy as np
import pytest
import runs
import sentencepiece
import tensorflow as tf
from random_checkpoints import refused, with_vocabulary
from sentencepiece import sentencepiece_model_pb2

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.heads import MaskedLMHead
from bert_keras.savedmodels.export import export
from bert_keras.tasks.batches import predict
from bert_keras.tasks.pretraining.corpus import Corpus
from bert_keras.tasks.pretraining.vocabulary import learn_sentencepiece
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.runs.ensemble import load_runs
from bert_keras.tasks.runs.run_folder import load_run, run_of, save_run
from bert_keras.text.masking import Pieces
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.sentencepiece import SPACE, SentencePiece, sentencepiece_texts

CASES = {"uncased": True, "cased": False}
# Difficult input for normalizing, splitting and the rule for digits and commas.
AWKWARD = (
    *("hello", "Élan ", "e\u0301", "o\u0308x", "ﬁ", "½", "İ", "Σας ", "漢字", "한국", "\u1100\u1161", "Å"),
    *(" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\x85", "\x1c"),
    *("''", "``", "'", "`", '"', "9,", "1,234", "19,5 ", "٣,", "2,", ",", "-", "£"),
    *("\x00", "\x01", "\xad", "\ufe0f", "\ufffd", "\U0001f600", "▁", "[MASK]", "[CLS]", "<unk>", "<pad>"),
)


def sentences(count: int) -> list[str]:
    draw = random.Random(0)
    words = "low lower lowest new newer wide widely hello elan 1,234 9, 19,5 don't 漢字 a x".split()
    words += ["".join(draw.choices("la ne ro ti sum ba d".split(), k=draw.randint(2, 4))) for _ in range(100)]
    return [" ".join(draw.choices(words, k=8)) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> bytes:
    texts = sentencepiece_texts(lower_case=True)(sentences(400))
    return learn_sentencepiece(texts, size=105, lower_case=True).model


@pytest.fixture(scope="module", params=CASES)
def tokenizer(request, model) -> SentencePiece:
    return SentencePiece(model, lower_case=CASES[request.param])


def reference(model: bytes, text: str, *, lower_case: bool) -> list[int]:
    """ALBERT's steps in Python, of strings: see the source that SentencePiece names."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if unicodedata.combining(c) == 0)
    ids = []
    for piece in processor.encode(text.lower() if lower_case else text, out_type=str):
        if piece.endswith(",") and piece[-2:-1].isdigit():
            opened = piece.startswith(SPACE)
            parts = processor.encode(piece[:-1].replace(SPACE, ""), out_type=str)
            if not opened and parts[0].startswith(SPACE):
                parts = [*([parts[0][1:]] if parts[0][1:] else []), *parts[1:]]
            ids += [processor.piece_to_id(part) for part in (*parts, ",")]
        else:
            ids.append(processor.piece_to_id(piece))
    # Unknown characters that spell "[CLS]" become it there, by the name of the piece.
    return [processor.unk_id() if processor.is_control(id_) else id_ for id_ in ids]


def fuzz(count: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices(AWKWARD, k=draw.randrange(12))) for _ in range(count)]


def test_ids_are_those_of_albert(tokenizer, model):
    texts = [*sentences(50), *fuzz(3000)]
    ours = tokenizer.tokenize(tf.constant(texts)).to_list()
    theirs = [reference(model, text, lower_case=tokenizer.lower_case) for text in texts]
    differ = [text for text, one, other in zip(texts, ours, theirs, strict=True) if one != other]
    assert not differ


def test_a_digit_and_a_comma_are_two_tokens(tokenizer):
    is_joined = [piece[-1] == "," and piece[-2:-1].isdigit() for piece in tokenizer.vocabulary]
    joined = np.flatnonzero(is_joined).tolist()
    assert joined  # the vocabulary has such pieces
    texts = ["9, and 1,234 or 19,5 x9,", "x"]
    assert not np.isin(tokenizer.tokenize(texts).values, joined).any()
    ids, starts, ends = (found.to_list()[0] for found in tokenizer.tokenize_with_offsets(texts))
    cuts = ["".join(texts[0][a:b]) for a, b in zip(starts, ends, strict=True)]
    assert "".join(cuts) == texts[0].replace(" ", "")
    assert cuts.count(",") == 4


def test_cuts_are_the_tokens(tokenizer):
    texts = [*sentences(50), *fuzz(3000)]
    raw = [text.encode() for text in texts]
    found = tokenizer.tokenize_with_offsets(tf.constant(raw))
    assert found[0].to_list() == tokenizer.tokenize(tf.constant(raw)).to_list()
    plain = 0
    for text, *row in zip(raw, *(values.to_list() for values in found), strict=True):
        for id_, start, end in zip(*row, strict=True):
            assert 0 <= start <= end <= len(text)
            cut = text[start:end].decode().replace("''", '"').replace("``", '"').replace("\x01", "")
            assert not cut[:1].isspace()
            piece = tokenizer.vocabulary[id_].replace(SPACE, "")
            if id_ == tokenizer.special.unknown or not piece:
                continue
            form = "".join(c for c in unicodedata.normalize("NFKD", cut) if not unicodedata.combining(c))
            form = "".join(form.lower() if tokenizer.lower_case else form)
            # Left out: of what pieces are parts, and what the model drops or joins.
            if not set(cut) & set("\u200b\ufeff\ufffd\xad\ufe0f½ﬁ\u1100\u1161한국٣▁"):
                assert form == piece, (text, cut)
                plain += 1
    assert plain > 10_000


def test_offsets_in_the_original(tokenizer):
    text = "  É''low  ﬁ"
    ids, starts, ends = (found.to_list()[0] for found in tokenizer.tokenize_with_offsets([text]))
    raw = text.encode()
    assert raw[starts[0] :].startswith("É".encode())
    quote = next(i for i, id_ in enumerate(ids) if tokenizer.vocabulary[id_] == '"')
    assert raw[starts[quote] : ends[quote]] == b"''"


def test_no_text_holds_a_special_token(tokenizer):
    special = set(dataclasses.astuple(tokenizer.special)) - {tokenizer.special.unknown}
    assert not special & set(tokenizer.tokenize(tf.constant(fuzz(3000))).values.numpy().tolist())


def test_bad_strings(tokenizer):
    texts = [b"low\xffer", b"lower", b"", b"\xff\xfe", b"lo\x00w", b"\xed\xa0\x80 low", b"'\xff'"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(texts))
    assert ids[0].numpy().tolist() == ids[1].numpy().tolist()
    assert (starts[0].numpy()[0], ends[0].numpy()[-1]) == (0, 6)
    assert ids.row_lengths().numpy()[[2, 3]].tolist() == [0, 0]
    assert tokenizer.special.unknown in ids[4].numpy()
    assert ids[5].numpy().tolist() == tokenizer.tokenize([" low"])[0].numpy().tolist()
    assert tokenizer.tokenize(tf.constant([], tf.string)).nrows() == 0
    assert tokenizer.tokenize_with_offsets(tf.constant([], tf.string))[1].nrows() == 0


def test_a_megabyte(tokenizer):
    texts = ["lower " * 170_000, "é" * 500_000, "x" * 1_000_000, "low"]
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(texts))
    assert [ids[i].numpy().tolist() for i in (0, 3)] == [
        tokenizer.tokenize(["lower"])[0].numpy().tolist() * 170_000,
        tokenizer.tokenize(["low"])[0].numpy().tolist(),
    ]
    assert [int(row[-1]) for row in ends] == [170_000 * 6 - 1, 1_000_000, 1_000_000, 3]


def test_models_are_independent(model):
    other = learn_sentencepiece(sentences(300)[::2], size=70, lower_case=True)
    first = SentencePiece(model)
    text = tf.constant(["hello lower 1,234"])
    apart = [one.tokenize(text)[0].numpy().tolist() for one in (first, other)]
    assert apart == [reference(one.model, "hello lower 1,234", lower_case=True) for one in (first, other)]
    assert first.digest != other.digest


def changed(model: bytes, change) -> bytes:
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    change(proto)
    return proto.SerializeToString()


def set_type(token: str, kind: int):
    def change(proto):
        next(piece for piece in proto.pieces if piece.piece == token).type = kind

    return change


def keep_spaces(proto):
    proto.normalizer_spec.remove_extra_whitespaces = False


def test_bytes_that_are_no_model_are_refused(model, tmp_path):
    draw = random.Random(2)
    for bad in (b"", b"garbage", draw.randbytes(500), *(model[:n] for n in (1, 50, 300, 700))):
        refused("not a SentencePiece model|is missing", SentencePiece, bad)
    for wrong, message in (
        (set_type("[MASK]", 4), r"\[MASK\] is a USER_DEFINED piece; wanted a CONTROL piece"),
        (set_type("<pad>", 1), "<pad> is a NORMAL piece"),
        (lambda proto: proto.pieces.pop(2), r"\[CLS\] is missing"),
        (keep_spaces, "one space before each word"),
    ):
        refused(message, SentencePiece, changed(model, wrong))
    file = tmp_path / "spiece.model"
    refused("model's spiece.model", SentencePiece.from_file, str(file), error=FileNotFoundError)
    file.write_bytes(b"garbage")
    refused("spiece.model: model is not a SentencePiece model", SentencePiece.from_file, str(file))


def test_vocabulary_properties_for_masking(model):
    tokenizer = SentencePiece(model)
    pieces = Pieces.of(tokenizer)
    goes_on = {tokenizer.vocabulary[i] for i in np.flatnonzero(pieces.continues)}
    assert {"s", "sum"} <= goes_on
    assert not {f"{SPACE}a", SPACE, ".", "9,", "<unk>"} & goes_on
    assert pieces.is_special[[*tokenizer.special.ids]].all()
    left_out = set(range(len(tokenizer.vocabulary))) - set(pieces.real.tolist())
    assert {tokenizer.vocabulary[i] for i in left_out} == {"<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, model):
    """A random encoder with a masked LM head, and the model's vocabulary."""
    keras.utils.set_random_seed(0)
    tokenizer = SentencePiece(model)
    config = BertConfig(**(runs.SIZES | {"vocab_size": tokenizer.vocab_size}))
    encoder = BertEncoder(config)
    made = checkpoints.collect(config, encoder, masked_lm=MaskedLMHead(encoder))
    folder = tmp_path_factory.mktemp("albert") / "checkpoint"
    checkpoints.write(checkpoints.with_tokenizer(made, tokenizer), folder, format="hugging-face")
    return folder


def test_a_folder_keeps_it(checkpoint, model, tmp_path):
    assert (checkpoint / "spiece.model").read_bytes() == model
    assert not (checkpoint / "vocab.txt").exists()
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    assert (settings["tokenizer_class"], settings["do_lower_case"]) == ("AlbertTokenizer", True)
    for path in (checkpoint, checkpoint / "spiece.model"):
        read = checkpoints.load_tokenizer(path)
        assert isinstance(read, SentencePiece)
        assert (read.model, read.lower_case) == (model, True)
    assert checkpoints.load_tokenizer(checkpoint, lower_case=False).lower_case is False
    read = checkpoints.read(checkpoint)
    assert (read.vocabulary.sentencepiece, read.vocabulary.tokens) == (model, None)
    copy = tmp_path / "copy"
    checkpoints.write(with_vocabulary(read, lower_case=False), copy, format="hugging-face")
    assert checkpoints.load_tokenizer(copy).lower_case is False
    (copy / "tokenizer_config.json").write_text('{"keep_accents": true}')
    refused("keep_accents=True", checkpoints.load_tokenizer, copy)
    (copy / "spiece.model").write_bytes(b"garbage")
    (copy / "tokenizer_config.json").unlink()
    refused("not a SentencePiece model", checkpoints.load_tokenizer, copy)


@pytest.mark.parametrize("lower_case", [False, True])
def test_a_model_without_settings_tells_its_case(tmp_path, lower_case):
    texts = ["The House saw A new Act", "the house saw a new act of May"] * 20
    made = learn_sentencepiece(
        sentencepiece_texts(lower_case=lower_case)(texts), size=30, lower_case=lower_case
    )
    (tmp_path / "spiece.model").write_bytes(made.model)
    for path in (tmp_path, tmp_path / "spiece.model"):
        with pytest.warns(UserWarning, match=f"guessed lower_case={lower_case}"):
            assert checkpoints.load_tokenizer(path).lower_case is lower_case


def test_googles_format_keeps_it(checkpoint, model, tmp_path):
    checkpoints.write(checkpoints.read(checkpoint), tmp_path / "google", format="google")
    assert checkpoints.load_tokenizer(tmp_path / "google").model == model


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_a_run_keeps_it_answers_and_is_exported(checkpoint, model, tmp_path):
    task = FillMask(top_k=2)
    run = run_of(task, checkpoint, seq_length=24)
    save_run(tmp_path / "run", task, run.preprocess, run.model)
    assert (tmp_path / "run" / "spiece.model").read_bytes() == model
    read = load_run(tmp_path / "run")
    examples = tf.data.Dataset.from_tensor_slices({"text": ["hello [MASK] lower", "[MASK][MASK]"]})
    ours, theirs = (predict(task, one.preprocess, one.model, examples)[0] for one in (run, read))
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])
    assert ours["mask_start_byte"].tolist() == [[6, -1], [0, 6]]
    assert SPACE.encode() not in b"".join(ours["filled"].tolist())
    export(read, tmp_path / "served", target="tfserving-2.10")
    both = load_runs([tmp_path / "run", tmp_path / "run"])
    assert both.preprocess.tokenizer.digest == run.preprocess.tokenizer.digest


def test_preprocessing_takes_it(tokenizer):
    features = Preprocessor(tokenizer, seq_length=8)(tf.constant(["low"]), tf.constant(["low"]))
    row = features["input_word_ids"].numpy()[0]
    named = [tokenizer.vocabulary[i] for i in row]
    assert named == ["[CLS]", f"{SPACE}low", "[SEP]", f"{SPACE}low", "[SEP]", "<pad>", "<pad>", "<pad>"]


@pytest.mark.long
def test_real_text(data_dir):
    """Ties between equally likely splits are all that two versions of the library may break otherwise."""
    lines = [line for document in Corpus(data_dir / "corpus" / "wikitext2_valid.txt") for line in document]
    made = learn_sentencepiece(sentencepiece_texts(lower_case=True)(lines), size=3000, lower_case=True)
    ours = made.tokenize(tf.constant(lines)).to_list()
    theirs = [reference(made.model, line, lower_case=True) for line in lines[::4]]
    differ = [one != other for one, other in zip(ours[::4], theirs, strict=True)]
    assert sum(differ) <= len(differ) / 500


def test_it_outlives_tensorflows_caches(model):
    tokenizer = SentencePiece(model)
    text = tf.constant(["hello lower"])
    before = tokenizer.tokenize(text).to_list()
    keras.utils.set_random_seed(1)  # which clears them
    assert tokenizer.tokenize(text).to_list() == before
    assert tokenizer.tokenize_with_offsets(text)[0].to_list() == before
