"""CoNLL's files, words and entities: every word is labelled once and predicted once, whatever its document's length."""

import gzip
import json
import random
import re

import numpy as np
import pytest
import runs
import tensorflow as tf
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities

from bert_keras.features import EXAMPLE_INDEX, INPUT_MASK, WORD_INDEX
from bert_keras.tasks.batches import dataset, predict
from bert_keras.tasks.data.conll import SCHEMES, convert_tags, find_entities, write_tags
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.run_folder import evaluate, load_run
from bert_keras.text.preprocessing import Preprocessor
from bert_keras.text.wordpiece import WordPiece
from bert_keras.text.words import split_text, split_tokens

LABELS = ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
OF_WORD = {"actor": "PER", "plot": "LOC", "film": "LOC"}  # what the training file has to teach


def sentences(count: int, *, seed: int) -> list[list[str]]:
    return [text.split() for text in runs.texts(count, seed=seed)]


def tagged(words: list[str], scheme: str) -> list[str]:
    return convert_tags([f"I-{OF_WORD[word]}" if word in OF_WORD else "O" for word in words], scheme)


def write_file(path, documents: list[list[list[str]]], *, scheme: str = "IOB1", marks: bool = True) -> None:
    lines = []
    for document in documents:
        lines += ["-DOCSTART- -X- O", ""] if marks else []
        for words in document:
            rows = zip(words, tagged(words, scheme), strict=True)
            lines += [*(f"{word} NN {tag}" for word, tag in rows), ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def document_of(words: int, *, seed: int) -> dict[str, str]:
    """A raw example of sentences with random tags, some of which continue nothing."""
    draw = random.Random(seed)
    rows, left = [], words
    while left:
        rows.append(min(left, draw.randint(1, 12)))
        left -= rows[-1]
    words = ["actor", "film", "naïve", "x.y", "\u200b", "真好"]
    return {
        name: "\n".join(" ".join(draw.choices(drawn, k=n)) for n in rows)
        for name, drawn in (("tokens", words), ("tags", LABELS))
    }


def stacked(*examples: dict[str, str]) -> dict[str, tf.Tensor]:
    return {name: tf.constant([example[name] for example in examples]) for name in examples[0]}


@pytest.fixture(scope="module")
def tokenizer():
    return WordPiece(runs.VOCABULARY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Training and dev files of one-sentence to five-sentence documents."""
    folder = tmp_path_factory.mktemp("conll")
    for name, count, seed in (("train.txt", 1800, 1), ("valid.txt", 60, 2)):
        rows = sentences(count, seed=seed)
        write_file(folder / name, [rows[i : i + 3] for i in range(0, count, 3)])
    return folder


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    task = Tagging.open("conll2003", folder, doc_stride=8)
    hparams = Hparams(batch_size=4, epochs=1, learning_rate=1e-3, seq_length=24)
    places = {"checkpoint": runs.write_checkpoint(place / "checkpoint"), "output": place / "run"}
    results = finetune(task, **places, hparams=hparams, verbose=0, log=lambda line: None)
    return load_run(place / "run", data=folder), results


def entities_by_hand(tags):
    """conlleval's rules in a second form: a type that changes, "B", "S", "U" and the tag after "E", "S", "L" or "U" start one."""
    found, before, closed = [], "", True
    for word, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if kind and (closed or prefix in ("B", "S", "U") or kind != before):
            found.append((kind, word, word))
        elif kind:
            found[-1] = (*found[-1][:2], word)
        before, closed = kind, prefix in ("E", "S", "L", "U")
    return found


def test_entities_and_schemes_agree_with_a_second_implementation():
    draw = random.Random(0)
    letters = [f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC-X")]
    for _ in range(500):
        tags = draw.choices([*letters, "O", "O", "O"], k=draw.randint(1, 12))
        entities = find_entities(tags)
        assert entities == entities_by_hand(tags)
        for scheme in SCHEMES:
            written = write_tags(entities, length=len(tags), scheme=scheme)
            assert find_entities(written) == entities_by_hand(written) == entities
            assert convert_tags(tags, scheme) == written


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-A I-A B-A I-A O I-A I-B I-B"),
        ("IOB2", "B-A I-A B-A I-A O B-A B-B I-B"),
        ("BIOES", "B-A E-A B-A E-A O S-A B-B E-B"),
    ],
)
def test_the_same_entities_in_each_scheme(scheme, tags):
    entities = [("A", 0, 1), ("A", 2, 3), ("A", 5, 5), ("B", 6, 7)]
    assert find_entities(tags.split()) == entities
    assert write_tags(find_entities(tags.split()), length=8, scheme=scheme) == tags.split()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_is_detected_from_the_training_file(scheme, tmp_path):
    write_file(tmp_path / "train.txt", [sentences(40, seed=1)], scheme=scheme)
    task = Tagging.open("conll2003", tmp_path)
    assert task.scheme == scheme
    assert task.label_names == LABELS
    raw = next(task.examples("train").as_numpy_iterator())
    rows = sentences(40, seed=1)
    assert raw["tokens"].decode() == "\n".join(map(" ".join, rows))
    assert raw["tags"].decode() == "\n".join(" ".join(tagged(words, "IOB2")) for words in rows)


def test_documents_and_sentences(tmp_path):
    text = "-DOCSTART- O\n\nAda I-PER\r\nmet O\n\n\n \nBob\t I-PER\n-DOCSTART-\n\n-DOCSTART- O\nRome I-LOC"
    (tmp_path / "eng.train.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    wanted = {"document": ["Ada met\nBob", "Rome"], "sentence": ["Ada met", "Bob", "Rome"]}
    for context, texts in wanted.items():
        examples = Tagging.open("conll2003", tmp_path, context=context).examples("train")
        assert [raw["tokens"].decode() for raw in examples.as_numpy_iterator()] == texts


def test_rows_of_words_and_tags(tmp_path):
    rows = '{"id": "0", "tokens": ["Ada", "met"], "ner_tags": ["B-PER", "O"]}\n\n{"words": ["Rome"], "labels": ["B-LOC"]}\n'
    (tmp_path / "train.jsonl").write_text(rows)
    task = Tagging.open("conll2003", tmp_path, context="sentence")
    raws = [*task.examples("train").as_numpy_iterator()]
    assert [(raw["tokens"], raw["tags"]) for raw in raws] == [(b"Ada met", b"B-PER O"), (b"Rome", b"B-LOC")]


def test_rows_with_text_and_tokens_are_spans(tmp_path):
    row = '{"text": "Ada met", "tokens": [{"text": "Ada", "id": 0}], "spans": [{"start": 0, "end": 3, "label": "PER"}]}'
    (tmp_path / "train.jsonl").write_text(row)
    (raw,) = Tagging.open("conll2003", tmp_path, context="sentence").examples("train").as_numpy_iterator()
    assert (raw["text"], raw["tags"]) == (b"Ada met", b"B-PER O")


def test_comments_before_a_sentence_are_no_words(tmp_path):
    text = "# id 3f8a\tdomain=en\nAda B-PER\n# O\n\n# source: a # list\nRome B-LOC\n\n# O\n1 O\n"
    (tmp_path / "train.txt").write_text(text)
    examples = Tagging.open("conll2003", tmp_path, context="sentence").examples("train")
    assert [raw["tokens"].decode() for raw in examples.as_numpy_iterator()] == ["Ada #", "Rome", "# 1"]


def test_bad_settings(tmp_path):
    with pytest.raises(ValueError, match="context is 'page'; .* document, sentence"):
        Tagging(LABELS, scheme="IOB2", context="page")
    with pytest.raises(FileNotFoundError, match="has no file for the validation split"):
        Tagging(LABELS, scheme="IOB2", source=tmp_path).examples("validation")


def test_tags_outside_the_scheme_or_the_labels_are_counted(tmp_path):
    (tmp_path / "dev.txt").write_text("-DOCSTART-\n\nAda B-PER\nX I-LOC\nY B-LOC\n\nB I-PER\nZ B-ORG")
    task = Tagging(LABELS, scheme="IOB1", source=tmp_path)
    with pytest.warns() as caught:
        raw = next(task.examples("validation").batch(1).as_numpy_iterator())
    misfit, unknown = (str(warning.message).partition("dev.txt")[2] for warning in caught)
    assert re.match(", line 3: .* 2 tags .* IOB1", misfit) and re.match(r": 1 words .* \(B-ORG\)", unknown)
    assert raw["tags"].tolist() == [b"B-PER B-LOC B-LOC\nB-PER B-ORG"]
    assert task.look_up_labels(raw).to_list() == [[2, 1, 1, 2, -1]]


SPLITS = {
    "": "",
    " \t\u00a0\u3000\r\n": "",
    "Ada met Bob": "Ada met Bob",
    '"Ada," she said (twice): [no!]': '" Ada , " she said ( twice ) : [ no ! ]',
    "in the U.S. today, J. Smith Inc.": "in the U.S. today , J. Smith Inc .",
    "It's Rome's end.": "It 's Rome 's end .",
    "'Tis dogs' 's ’s": "' Tis dogs ' 's ’s",
    "10:30 1,000 3.5 9. x@y.org http://a.b/c?": "10:30 1,000 3.5 9 . x@y.org http://a.b/c ?",
    "wait... what?! ...": "wait ... what ? ! ...",
    "“Ça va” «œuvre» ¿qué?": "“ Ça va ” « œuvre » ¿ qué ?",
    "我在北京。OK": "我 在 北 京 。 OK",
    "hi\N{GRINNING FACE} \N{GRINNING FACE}!": "hi\N{GRINNING FACE} \N{GRINNING FACE} !",
    "a\u00a0b\u2003c\r\nd\ne": "a b c d e",
    "\x01a\x01 \x00": "\x01a\x01 \x00",
    ".": ".",
    "?!": "? !",
}


def test_splitting_text():
    texts = [text.encode() for text in SPLITS]
    starts, ends = split_text(tf.constant(texts))
    for text, *spans, wanted in zip(texts, starts.to_list(), ends.to_list(), SPLITS.values(), strict=True):
        assert [text[a:b].decode() for a, b in zip(*spans, strict=True)] == wanted.split(" ") * bool(wanted)
    assert starts.dtype == ends.dtype == tf.int32


def test_splitting_bytes_that_are_not_utf8():
    starts, ends = split_text(tf.constant([b"\xff", b"a \xff b\xe7", b""]))
    assert (starts.to_list(), ends.to_list()) == ([[], [0, 4], []], [[], [1, 5], []])


def test_splitting_tokens():
    starts, ends = split_tokens(tf.constant(["Ada, met\nBöb . x\u00a0y", "a"]))
    assert starts.to_list() == [[0, 5, 9, 14, 16], [0]]
    assert ends.to_list() == [[4, 8, 13, 15, 20], [1]]


@pytest.mark.parametrize(("seq_length", "doc_stride", "words"), [(12, 3, 90), (16, 100, 64), (512, 128, 900)])
def test_every_word_is_labelled_once(tokenizer, seq_length, doc_stride, words):
    """A model that answers what is labelled predicts every tag of documents far longer than a window."""
    task = Tagging(LABELS, scheme="IOB2", doc_stride=doc_stride)
    preprocess = Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True)
    raw = stacked(document_of(words, seed=1), document_of(1, seed=2), document_of(words // 2, seed=3))
    features = task.features(preprocess, raw)
    labels, weights = task.labels(raw, features)
    shown = tf.reduce_sum(tf.cast(weights, tf.int32)).numpy()
    control = sum(text.count("\u200b".encode()) for text in raw["tokens"].numpy())
    assert control and shown == words + 1 + words // 2 - control  # a word of control characters has no piece
    assert labels.shape == weights.shape == features[WORD_INDEX].shape
    assert (labels.dtype, weights.dtype) == (tf.int32, tf.float32)
    answers = task.decode(20.0 * tf.one_hot(labels, len(LABELS)), features, raw)["tags"].numpy()
    for answer, tags, tokens in zip(answers, raw["tags"].numpy(), raw["tokens"].numpy(), strict=True):
        answered, wanted = (text.decode().split("\n") for text in (answer, tags))
        assert [row.count(" ") for row in answered] == [row.count(" ") for row in wanted]
        for given, tag, word in zip(
            " ".join(answered).split(), tags.decode().split(), tokens.decode().split(), strict=True
        ):
            assert given == ("O" if word == "\u200b" else tag)


def test_a_sentence_longer_than_512(tokenizer):
    task = Tagging(LABELS, scheme="IOB2", context="sentence")
    raw = stacked({"tokens": " ".join(["actor"] * 700), "tags": " ".join(["B-PER"] * 700)})
    _, weights = task.labels(raw, task.features(Preprocessor(tokenizer, seq_length=512), raw))
    assert weights.shape[0] == 3 and tf.reduce_sum(weights).numpy() == 700


def test_words_are_read_with_context_on_both_sides(tokenizer):
    """Stride 8 in windows of 22 tokens: inside a document a word has at least (22 - 8) / 2 tokens on either side."""
    task = Tagging(LABELS, scheme="IOB2", doc_stride=8)
    words = " ".join(["actor"] * 120)
    features = task.features(Preprocessor(tokenizer, seq_length=24), {"tokens": tf.constant([words])})
    index = features[WORD_INDEX].numpy()
    for window, row in enumerate(index):
        places = np.flatnonzero(row >= 0) - 1  # [CLS] stands before the pieces
        if 0 < window < len(index) - 1:
            assert places.min() >= 7 and 21 - places.max() >= 6
    assert sorted(index[index >= 0]) == list(range(120))


def test_a_document_is_read_as_one(tokenizer, folder):
    preprocess = Preprocessor(tokenizer, seq_length=48, pad_to_longest=True)
    lengths = {}
    for context in ("document", "sentence"):
        task = Tagging.open("conll2003", folder, context=context)
        raw = next(iter(task.examples("validation").batch(1)))
        lengths[context] = int(tf.reduce_sum(task.features(preprocess, raw)[INPUT_MASK]))
        words = raw["tokens"].numpy()[0].decode().split()
        assert lengths[context] == len(words) + 2
    assert lengths["document"] > lengths["sentence"]


def test_decoded_entities_agree_with_seqeval(tokenizer):
    """Any tags: entities, their bytes and the mean of their words' probabilities."""
    task = Tagging(LABELS, scheme="IOB2", doc_stride=5)
    preprocess = Preprocessor(tokenizer, seq_length=20)
    raw = stacked(*[document_of(words, seed=words) for words in (40, 3, 1, 17)])
    features = task.features(preprocess, raw)
    logits = np.random.default_rng(0).normal(size=(*features[WORD_INDEX].shape, len(LABELS))) * 3
    decoded = {k: v.numpy() for k, v in task.decode(tf.constant(logits, tf.float32), features, raw).items()}
    best = tf.reduce_max(tf.nn.softmax(logits), axis=-1).numpy()
    found = 0
    for i, text in enumerate(raw["tokens"].numpy()):
        starts, ends = (spans[i].numpy() for spans in split_tokens(raw["tokens"]))
        at = (features[WORD_INDEX].numpy() >= 0) & (features[EXAMPLE_INDEX].numpy() == i)[:, None]
        score = dict(zip(features[WORD_INDEX].numpy()[at], best[at], strict=True))
        wanted, before = [], 0
        for row in decoded["tags"][i].decode().split("\n"):
            for kind, first, last in get_entities(row.split(" ")):
                words = range(before + first, before + last + 1)
                span = (int(starts[words[0]]), int(ends[words[-1]]))
                places = [len(text[:end].decode()) for end in span]
                mean = np.mean([score[word] for word in words])
                found_text = text[slice(*span)].decode()
                wanted.append((found_text, kind, *places, *span, pytest.approx(mean, abs=1e-6)))
            before += row.count(" ") + 1
        record = task.record({name: value[i] for name, value in decoded.items()})
        assert [tuple(entity.values()) for entity in record["entities"]] == wanted
        json.dumps(record)
        found += len(wanted)
    assert found > 15
    assert decoded["entity_text"].shape[1] == max(np.sum(decoded["entity_start_byte"] >= 0, axis=1))
    assert set(decoded["entity_label"][decoded["entity_start_byte"] < 0]) == {b""}


def test_measures_agree_with_seqeval():
    draw = random.Random(0)
    task = Tagging(LABELS, scheme="IOB2")
    rows = [[[draw.choices(LABELS, k=n) for n in (5, 1, 9)] for _ in range(30)] for _ in range(2)]
    gold, predicted = (
        np.array(["\n".join(map(" ".join, document)).encode() for document in side], object) for side in rows
    )
    flat = [[sentence for document in side for sentence in document] for side in rows]
    measured = dict(task.evaluate({"tags": predicted}, {"tags": gold}))
    assert measured["f1"] == pytest.approx(f1_score(*flat), abs=1e-12)
    assert measured["precision"] == pytest.approx(precision_score(*flat), abs=1e-12)
    assert measured["recall"] == pytest.approx(recall_score(*flat), abs=1e-12)
    same = [a == b for x, y in zip(*flat, strict=True) for a, b in zip(x, y, strict=True)]
    assert measured["accuracy"] == pytest.approx(np.mean(same))


@pytest.mark.long
def test_training_learns_and_reloads(run):
    loaded, results = run
    assert results["measures"]["val_f1"] > 0.9
    assert evaluate(loaded, "validation")["f1"] == pytest.approx(results["measures"]["val_f1"])
    kept = loaded.task.to_json()
    named = {"name": "conll2003", "labels": list(LABELS), "scheme": "IOB1"}
    named |= {"crf": False, "iob_constraints": False}
    assert kept == named | {"context": "document", "doc_stride": 8, "words": "text"}
    assert Tagging.from_json(json.loads(json.dumps(kept))).to_json() == kept


@pytest.mark.long
def test_batches_contain_every_word_once(run):
    loaded, _ = run
    examples = loaded.task.examples("validation")
    words = sum(len(raw["tokens"].split()) for raw in examples.as_numpy_iterator())
    for settings in ({}, {"seed": 1}):
        made = dataset(loaded.task, loaded.preprocess, examples, batch_size=4, **settings)
        assert sum(float(tf.reduce_sum(weights)) for _, _, weights in made) == words


@pytest.mark.long
def test_predicting_raw_text(run):
    loaded, _ = run
    texts = ["the actor, very good. And the film!", "", "\u3000", "good " * 60 + "actor"]
    examples = tf.data.Dataset.from_tensor_slices({"text": texts})
    answers, _ = predict(loaded.task, loaded.preprocess, loaded.model, examples, batch_size=3)
    records = [loaded.task.record({name: value[i] for name, value in answers.items()}) for i in range(4)]
    assert [[(e["text"], e["label"]) for e in record["entities"]] for record in records] == [
        [("actor", "PER"), ("film", "LOC")],
        [],
        [],
        [("actor", "PER")],
    ]
    assert [len(record["tags"].split()) for record in records] == [10, 0, 0, 61]
    assert loaded.task.show({"text": texts[0]}, records[0]) == {
        "text": "the [actor PER], very good. And the [film LOC]!"
    }


@pytest.mark.long
def test_report(run):
    loaded, _ = run
    task = Tagging(LABELS, scheme="IOB2")
    gold = {"tags": np.array([b"B-PER O\nO B-LOC I-LOC"], object)}
    predictions = {
        "tags": np.array([b"B-PER O\nB-LOC B-LOC O"], object),
        "entity_text": np.array([[b"Ada", b"in", b"New", b""]], object),
        "entity_score": np.float32([[0.5, 0.6, 0.7, 0]]),
    }
    by_type, errors = task.report(predictions, gold)
    assert by_type.rows == [("LOC", 0.0, 0.0, 0.0, 1), ("PER", 1.0, 1.0, 1.0, 1)]
    assert errors.rows == [
        (pytest.approx(0.7), "New", "LOC", "B-LOC"),
        (pytest.approx(0.6), "in", "LOC", "O"),
    ]
    dev = loaded.task.examples("validation")
    answers = predict(loaded.task, loaded.preprocess, loaded.model, dev, batch_size=8)
    assert [table.title for table in loaded.task.report(*answers)]


def test_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    names = ["O", "B-PER", "I-PER"]

    def made(self, *args, **kwargs):
        rows = {"tokens": [["Ada", "Lovelace"], ["met"]], "ner": [[1, 2], [0]]}
        spec = {"tokens": tf.TensorSpec([None], tf.string), "ner": tf.TensorSpec([None], tf.int64)}
        return tf.data.Dataset.from_generator(
            lambda: ({name: rows[name][i] for name in rows} for i in range(2)), output_signature=spec
        )

    with tfds.testing.mock_data(as_dataset_fn=made, data_dir=str(tmp_path)):
        task = Tagging.open("conll2003", None, context="sentence")
        assert {*names[1:]} >= {*task.label_names[1:]} and len(task.label_names) == 3
        tokens = [raw["tokens"] for raw in task.examples("validation").as_numpy_iterator()]
        assert tokens == [b"Ada Lovelace", b"met"]
        with pytest.raises(ValueError, match="-DOCSTART- lines.*give --context sentence"):
            Tagging.open("conll2003", None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*do not fit IOB1")  # two tags of eng.train
def test_the_real_files(data_dir):
    folder = data_dir / "conll2003"
    task = Tagging.open("conll2003", folder)
    assert task.scheme == "IOB1"
    assert [label[2:] for label in task.label_names[1:5]] == ["LOC", "MISC", "ORG", "PER"]
    counts = {}
    for split in ("train", "validation"):
        raw = list(task.examples(split).as_numpy_iterator())
        tags = [row.split() for example in raw for row in example["tags"].decode().split("\n")]
        counts[split] = len(raw), len(tags), sum(len(get_entities(row)) for row in tags)
        alone = Tagging(task.label_names, scheme="IOB1", context="sentence", source=folder)
        assert len(alone.examples(split)) == len(tags)
    assert counts == {"train": (946, 14041, 23499), "validation": (216, 3250, 5942)}
