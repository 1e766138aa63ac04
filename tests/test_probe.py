"""Probes: every layer is measured on its own vectors, beside random weights and the most common label."""

import random
import re

import matplotlib.figure
import numpy as np
import pytest
import runs
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

import bert_keras as bk
from bert_keras.tasks.study.probe import (
    CHECKPOINT,
    RANDOM,
    RULE,
    Example,
    Probe,
    Result,
    _drawn,
    _read,
    conclusions,
    draw,
    run_probes,
    tables,
)

WORDS = runs._WORDS
SMALL = {"max_examples": 60, "restarts": 2, "seq_length": 32}


def write_conll(path, *, count, seed):
    """Parts of speech follow from the word, chunks from the word before; entities are drawn at random."""
    draw = random.Random(seed)
    lines = ["-DOCSTART- -X- O O", ""]
    for _ in range(count):
        words, before = draw.choices(WORDS, k=draw.randint(3, 8)), 0
        for word in words:
            place = WORDS.index(word)
            lines.append(f"{word} P{place % 3} C{before % 2} {draw.choice(['O', 'O', 'I-X'])}")
            before = place
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    runs.write_checkpoint(folder / "checkpoint", num_layers=2)
    (folder / "conll").mkdir()
    for seed, name in enumerate(("train.txt", "valid.txt")):
        write_conll(folder / "conll" / name, count=120, seed=seed)
    runs.write_data(folder / "sst2", "sst2", count=120)
    return folder


def start(place, output, data, **settings):
    """The results by name."""
    how = {"checkpoint": place / "checkpoint", "log": lambda line: None, **SMALL}
    return {one.name: one for one in run_probes(data, output=output, **how | settings)}


@pytest.fixture(scope="module")
def results(place):
    data = dict.fromkeys(("pos", "chunk", "entities"), place / "conll") | {"sst2": place / "sst2"}
    return start(place, place / "out", data)


@pytest.mark.long
def test_each_layer_has_a_measure_of_each_restart(place, results):
    for one in results.values():
        for weights in (CHECKPOINT, RANDOM):
            assert np.shape(one.layers[weights]) == (3, 2)  # the embeddings and two blocks
            assert np.all((0 <= np.array(one.layers[weights])) & (np.array(one.layers[weights]) <= 1))
    assert results["entities"].measure == "f1" and results["pos"].measure == "accuracy"
    kept = runs.results(place / "out")
    assert kept["pos"]["layers"] == {name: [*map(list, rows)] for name, rows in results["pos"].layers.items()}
    assert (place / "out" / "results.png").stat().st_size > 1000


@pytest.mark.long
def test_what_a_word_says_is_read_from_its_embedding(results):
    """A part of speech is a function of the word; a chunk is one of the word before, which the embeddings lack."""
    pos, chunk = results["pos"], results["chunk"]
    assert min(pos.layers[CHECKPOINT][0]) > 0.95 > pos.baseline + 0.3
    assert max(chunk.layers[CHECKPOINT][0]) < 0.7  # near one half
    assert np.mean(chunk.layers[CHECKPOINT][1]) > np.mean(
        chunk.layers[CHECKPOINT][0]
    )  # a block reads other words
    assert results["entities"].baseline == 0


@pytest.mark.long
def test_a_text_s_measure_is_that_of_a_classifier_on_the_mean_of_its_vectors(place, tmp_path):
    """By another route: the encoder called on the texts, the mean over its tokens without padding."""
    one_part = {"max_examples": 120, "restarts": 1}
    found = start(place, tmp_path / "out", {"sst2": place / "sst2"}, **one_part)["sst2"]
    encoder = bk.load_encoder(place / "checkpoint", outputs=["embedding_output", "encoder_outputs"])
    preprocess = bk.Preprocessor(bk.load_tokenizer(place / "checkpoint"), seq_length=32)

    def read(name):
        rows = [line.split("\t") for line in (place / "sst2" / name).read_text().splitlines()[1:]]
        inputs = preprocess([text for text, _ in rows])
        outputs = encoder(inputs)
        states = [np.array(one) for one in (outputs["embedding_output"], *outputs["encoder_outputs"])]
        ids = np.array(inputs["input_word_ids"])
        special = np.isin(ids, [runs.VOCABULARY.index(mark) for mark in ("[PAD]", "[CLS]", "[SEP]")])
        kept = (~special)[..., None]
        return [(one * kept).sum(1) / kept.sum(1) for one in states], [label for _, label in rows]

    (x, labels), (y, gold) = read("train.tsv"), read("dev.tsv")
    for layer in range(3):
        scaler = StandardScaler().fit(x[layer])
        probe = RidgeClassifier().fit(scaler.transform(x[layer]), labels)
        right = np.mean(probe.predict(scaler.transform(y[layer])) == np.array(gold))
        assert found.layers[CHECKPOINT][layer][0] == pytest.approx(right, abs=1 / 120)


@pytest.mark.long
def test_chosen_layers_have_the_measures_that_they_have_among_all(place, results, tmp_path):
    one = start(place, tmp_path / "out", {"sst2": place / "sst2"}, rows=(2, 0))["sst2"]
    assert one.places == [0, 2]
    for weights, layers in results["sst2"].layers.items():
        assert one.layers[weights] == [layers[0], layers[2]]
    (table,) = tables([one])
    assert [row[0].partition(",")[0] for row in table.rows] == ["embeddings", "layer 2", "most common label"]


def test_restarts_learn_from_different_examples():
    examples = [Example({"text": b"%d" % i}, ["a"]) for i in range(10)]
    parts = _drawn(examples, count=3, parts=3, seed=1, name="pos")
    texts = [one.raw["text"] for part in parts for one in part]
    assert len({*texts}) == 9
    with pytest.raises(ValueError, match="pos has 10 training examples, and 4 restarts of 3 read 12"):
        _drawn(examples, count=3, parts=4, seed=1, name="pos")


LAYERS = {  # three restarts of the embeddings and two layers; then those at random weights
    "clear": (
        ((0.50, 0.51, 0.52), (0.60, 0.61, 0.62), (0.70, 0.71, 0.72)),
        ((0.50, 0.51, 0.52), (0.50, 0.51, 0.52), (0.70, 0.75, 0.68)),
        ["embeddings", "layer 1", "layer 2, the best"],
        ["layer 2 exceeds all others", "layer 1"],
    ),
    "within the noise": (
        ((0.50, 0.51, 0.52), (0.55, 0.57, 0.56), (0.56, 0.58, 0.56)),
        ((0.50, 0.51, 0.52), (0.54, 0.58, 0.55), (0.55, 0.59, 0.55)),
        ["embeddings", "layer 1", "layer 2"],
        ["no layer exceeds all others", "no layer"],
    ),
}


@pytest.mark.parametrize(("trained", "control", "names", "said"), LAYERS.values(), ids=LAYERS)
def test_a_best_layer_exceeds_the_noise_of_the_others(trained, control, names, said, monkeypatch):
    layers = {CHECKPOINT: trained, RANDOM: control}
    result = Result(
        name="pos", measure="accuracy", layers=layers, baseline=0.4, dev_labels=300, places=range(3)
    )
    (table,) = tables([result])
    assert [row[0] for row in table.rows] == [*names, "most common label"] and table.rows[-1][1] == "40.0"
    assert re.search(
        r"± standard error of 3 draws of .*; the 300 dev labels have an error of about 2\.\d besides",
        table.title,
    )
    best, learned = conclusions(result)
    assert best == f"pos: {said[0]} {RULE}" and learned.endswith(f"{RULE}: {said[1]}")
    figures = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda figure, *given, **named: figures.append(figure)
    )
    draw([result], "any")
    assert all(tick == int(tick) for tick in figures[0].axes[0].get_xticks())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "no probe was asked for"),
        ({"syntax": "conll"}, "no probe 'syntax'; the probes are pos, chunk, entities"),
        ({"pos": "missing"}, "missing"),
        ({"pos": "two"}, "line 1: 2 column.*expected 3: word, part of speech"),
        ({"chunk": "five"}, "line 1: 5 columns, expected at most 4: word, part of speech"),
        ({"sst2": "sst2", "seq_length": 600}, "seq_length is 600 and the encoder has 48 positions"),
        ({"sst2": "sst2", "seq_length": 2}, "seq_length"),
        ({"sst2": "sst2", "rows": (0, 3)}, "rows is 0 3; give layers from 0 to 2, each once"),
        ({"sst2": "sst2", "rows": (1, 1)}, "rows is 1 1; give layers"),
    ],
)
def test_bad_input_is_refused_before_any_work(place, tmp_path, data, message):
    for name, line in (("two", "good O\n"), ("five", "Filme Film NN I-NC O\n")):
        (place / name).mkdir(exist_ok=True)
        (place / name / "train.txt").write_text(line)
    settings = {name: value for name, value in data.items() if name in ("seq_length", "rows")}
    paths = {name: place / path for name, path in data.items() if name not in settings}
    with runs.refused(message, output=tmp_path / "new"):
        start(place, tmp_path / "new", paths, **settings)


@pytest.mark.parametrize(
    ("words", "raw", "labels", "message"),
    [
        (
            True,
            {"tokens": b"a  good film "},
            ["x"],
            "own, train, example 1, 'a  good film ', has 3 words and 1 labels; give one",
        ),
        (True, {"tokens": b"a film"}, "ab", "labels is 'ab'; give a list, with one label for each word"),
        (False, {"text": b"a film"}, "ab", "labels is 'ab'; give a list, with one label for the text"),
        (False, {"text": b"a film"}, ["x", "y"], "has one text and 2 labels; give one label for the text"),
        (True, {"text": b"a film"}, ["x", "y"], "raw has text; give 'tokens'"),
    ],
)
def test_an_example_with_wrong_labels_is_refused_by_name(words, raw, labels, message):
    with pytest.raises(ValueError, match=message):
        _read("own", Probe(lambda path, split: [Example(raw, labels)], words=words), "any", "train")


def test_words_are_counted_as_python_splits_them():
    lines = ["  a  good\tfilm ", "", "so bad"]
    examples = [Example({"tokens": line.encode()}, line.split()) for line in lines]
    read = _read("own", Probe(lambda path, split: examples), "any", "train")
    assert [one.raw["tokens"] for one in read] == [b"a good film", b"so bad"]


def test_a_file_that_a_probe_does_not_find_is_named_with_its_split(tmp_path):
    probe = Probe(lambda path, split: (tmp_path / f"{split}.txt").read_text())
    with pytest.raises(ValueError, match="the probe own cannot read its validation split: .*validation.txt'"):
        _read("own", probe, tmp_path, "validation")


def test_a_repeated_probe_is_refused(tmp_path, capfd):
    flags = ["--data", "pos=a", "sst2=b", "pos=c", "--checkpoint", "none", "--output", tmp_path / "out"]
    code, _, err = runs.run_command(capfd, "probe", *flags)
    assert code == 1 and err == "bert-keras: error: --data has pos more than once; give each name once.\n"


@pytest.mark.long
def test_the_command(place, tmp_path, capfd):
    flags = ["--data", f"pos={place / 'conll'}", "--checkpoint", place / "checkpoint", "--seq-length", "32"]
    code, out, err = runs.run_command(
        capfd, "probe", *flags, "--max-examples", "20", "--restarts", "1", "--output", tmp_path / "out"
    )
    assert code == 0, err
    assert "most common label" in out and (tmp_path / "out" / "results.json").is_file()
    assert "percent; one seed" in " ".join(out.split()) and "±" not in out


def test_a_dry_run_counts_the_probes(place, tmp_path, capfd):
    flags = ["--data", f"pos={place / 'conll'}", "--checkpoint", place / "checkpoint", "--seq-length", "32"]
    code, out, err = runs.run_command(
        capfd,
        "probe",
        *flags,
        "--max-examples",
        "20",
        "--output",
        tmp_path / "out",
        "--dry-run",
        "--rows",
        "0",
        "2",
    )
    assert code == 0, err
    assert "│ pos      │ 3     │ 0        │ 4 " in out  # three restarts of two layers of two encoders
    assert not (tmp_path / "out").exists()
