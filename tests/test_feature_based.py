"""Vectors of a frozen encoder: layers and their mix, the cache and what it refuses, and the `features` command."""

import dataclasses
import gzip
import json
import random
import shutil

import filelock
import numpy as np
import pyarrow.parquet
import pytest
import runs
import tensorflow as tf

import bert_keras.tasks.frozen.cache
from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_INPUTS, ENCODER_OUTPUTS
from bert_keras.model.choices import LAYERS, places_of
from bert_keras.model.encoder import BertEncoder
from bert_keras.model.feature_bilstm import FeatureBiLSTM, ScalarMix, bilstm_parameters, layer_norm
from bert_keras.tasks.frozen.cache import GroupFile, open_cache, write_rows, writing_cache
from bert_keras.tasks.frozen.extract_file import WRITERS, extract_file
from bert_keras.tasks.frozen.extractor import Extractor, text_units

HIDDEN, BLOCKS = 16, 4
LINES = ["good film, dull actor!", "", "warm plot " * 40, "naïve \N{GRINNING FACE} \u200b x", "真好"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    sizes = {"hidden_size": HIDDEN, "num_layers": BLOCKS, "intermediate_size": 32, "hidden_dropout": 0.1}
    return runs.write_checkpoint(tmp_path_factory.mktemp("features") / "checkpoint", **sizes)


def examples(count: int, *, seed: int, sentences: int = 3) -> list[dict[str, bytes]]:
    """Documents of words with tags."""
    draw = random.Random(seed)
    documents = [
        [text.split() for text in runs.texts(sentences, seed=draw.randrange(10**6))] for _ in range(count)
    ]
    tags = [[["O"] * len(row) for row in document] for document in documents]
    return [
        {name: "\n".join(map(" ".join, side)).encode() for name, side in (("tokens", words), ("tags", own))}
        for words, own in zip(documents, tags, strict=True)
    ]


def extract(texts, *, checkpoint, output, layers="0,1,2,3,4", seq_length=24, **settings):
    """The cache of the words' vectors."""
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    how = {
        name: settings.pop(name, default) for name, default in (("shard_examples", 64), ("progress", print))
    }
    units = text_units("word", source, seq_length=seq_length, doc_stride=8)
    places = places_of(layers, num_layers=source.config.num_layers)
    extractor = Extractor(source=source, units=units, places=places, **settings)
    with writing_cache(output, extractor, lambda: texts, **how) as cache:
        return cache


TEXTS = examples(10, seed=3)


@pytest.fixture(scope="module")
def cache(checkpoint, tmp_path_factory):
    """Vectors of every layer for the words of TEXTS, in three files."""
    folder = tmp_path_factory.mktemp("cache") / "cache"
    return extract(TEXTS, checkpoint=checkpoint, output=folder, shard_examples=4)


@pytest.mark.parametrize(
    ("name", "places", "mixed"),
    [
        ("embeddings", (0,), False),
        ("second_to_last", (11,), False),
        ("last", (12,), False),
        ("weighted_sum_last_four", (9, 10, 11, 12), True),
        ("concat_last_four", (9, 10, 11, 12), False),
        ("weighted_sum_all", tuple(range(1, 13)), True),
    ],
)
def test_the_six_choices_of_layers(name, places, mixed):
    assert places_of(name, num_layers=12) == places
    assert LAYERS[name].mixed == mixed
    assert len(LAYERS) == 6


def test_scalar_mix_by_hand():
    mix = ScalarMix()
    x = np.float32([[[1, 2], [3, 4], [5, 12]]])  # one word, three layers
    np.testing.assert_allclose(mix(x), [[3, 6]], rtol=1e-6)  # equal weights: the mean
    mix.set_weights([np.log(np.float32([1, 2, 5])), np.float32(2)])
    # 2 * (1/8 [1 2] + 2/8 [3 4] + 5/8 [5 12])
    np.testing.assert_allclose(mix(x), [[8, 17.5]], rtol=1e-6)
    assert [tuple(variable.shape) for variable in mix.trainable_variables] == [(3,), ()]


def test_layers_are_normalized_over_the_numbers_of_a_row_before_they_are_weighted():
    """Against NumPy, row by row without padding: neither the padding nor the other rows change a number."""
    draw, lengths = np.random.default_rng(3), (6, 4, 1)
    vectors = draw.normal(2, draw.uniform(1, 5, (1, 1, 3, 1)), (3, 6, 3, 5)).astype("float32")
    mask = np.arange(6) < np.array(lengths)[:, None]
    found = np.asarray(layer_norm(vectors, mask))
    layer = FeatureBiLSTM(
        feature_layers="0+1+2", lstm_layers=0, lstm_units=4, lstm_dropout=0.0, mix_norm=True
    )
    layer.build(vectors.shape)
    layer.mix.set_weights([np.log(np.float32([1, 2, 5])), np.float32(2)])
    mixed = np.asarray(layer(vectors, mask))
    for row, length in enumerate(lengths):
        x = vectors[row, :length].astype("float64")
        wanted = (x - x.mean((0, 2), keepdims=True)) / x.std((0, 2), keepdims=True)
        np.testing.assert_allclose(found[row, :length], wanted, atol=1e-5)
        sums = 2 * np.einsum("k,nkh->nh", np.float64([1, 2, 5]) / 8, wanted)
        np.testing.assert_allclose(mixed[row, :length], sums, atol=1e-5)
    assert not found[~mask].any()
    assert FeatureBiLSTM.from_config(layer.get_config()).mix_norm


def outputs_of(checkpoint, features) -> np.ndarray:
    """Embeddings and every block's output, [W, S, L + 1, H], from a separate encoder."""
    source = checkpoints.read(checkpoint)
    encoder = BertEncoder(source.config)
    checkpoints.assign(source, encoder)
    outputs = encoder({name: features[name] for name in ENCODER_INPUTS})
    return np.stack([outputs[EMBEDDING_OUTPUT], *outputs[ENCODER_OUTPUTS]], axis=2)


def extractor_of(source, level: str, **settings) -> Extractor:
    """Vectors of every layer in float32."""
    units = text_units(level, source, seq_length=20, doc_stride=6)
    return Extractor(source=source, units=units, places=range(BLOCKS + 1), dtype="float32", **settings)


@pytest.mark.long
@pytest.mark.parametrize("level", ["word", "piece"])
def test_vectors_are_the_encoders(checkpoint, level):
    """At every position that a unit has, found here window by window; a word without a piece has zeros."""
    extractor = extractor_of(checkpoints.read(checkpoint), level, batch_size=2)
    units = extractor.units
    for line, found in zip(LINES, extractor([{"text": line.encode()} for line in LINES]), strict=True):
        features = {
            name: value.numpy() for name, value in units.windows({"text": tf.constant([line])})[0].items()
        }
        states = outputs_of(checkpoint, features)
        starts = found["starts"].tolist()
        wanted = np.zeros((len(starts), BLOCKS + 1, HIDDEN), np.float32)
        for window, position in np.argwhere(features["max_context"]):
            start = features["start_bytes"][window, position]
            if start in starts:
                wanted[starts.index(start)] = states[window, position]
        assert found["vectors"].shape == wanted.shape
        np.testing.assert_allclose(found["vectors"], wanted, atol=2e-6)
        assert np.all(np.any(found["vectors"], axis=(1, 2))) != ("\u200b" in line and level == "word")


def test_a_document_longer_than_a_window_keeps_every_word(cache):
    for record in cache.rows():
        words = record["tokens"].decode().split()
        assert record["vectors"].shape == (len(words), BLOCKS + 1, HIDDEN)
        text = record["tokens"]
        spans = zip(record["starts"], record["ends"], strict=True)
        assert [text[start:end].decode() for start, end in spans] == words
    assert record["vectors"].dtype == np.float16


def test_a_cache_serves_a_checkpoint_with_another_pooler_or_number_format(checkpoint):
    """No vector reads a pooler. The file's float16 and the float32 of the same numbers are one."""
    whole = checkpoints.read(checkpoint)
    halved = {name: tensor.astype(np.float16) for name, tensor in whole.tensors.items()}
    found = []
    for tensors in (halved, {name: tensor.astype(np.float32) for name, tensor in halved.items()}):
        for pooler in (True, False):
            kept = {name: one for name, one in tensors.items() if pooler or not name.startswith("pooler/")}
            found.append(extractor_of(dataclasses.replace(whole, tensors=kept), "word").fingerprint())
    assert found == [found[0]] * 4
    assert found[0]["weights"] != extractor_of(whole, "word").fingerprint()["weights"]


class Interrupted(Exception):
    pass


@pytest.mark.long
def test_an_interrupted_extraction_is_resumed(cache, checkpoint, tmp_path):
    assert cache.header["shards"] == [4, 4, 2]
    done = []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise Interrupted

    part = tmp_path / "part"
    with pytest.raises(Interrupted):
        extract(TEXTS, checkpoint=checkpoint, output=part, progress=stop, shard_examples=4)
    with pytest.raises(ValueError, match=r"part lacks 1 of its 3 files, first 00002\.parquet; extract again"):
        open_cache(part)
    before = {path.name: path.stat().st_mtime_ns for path in part.iterdir()}
    runs.leave_half(part, "00002.parquet")
    extract(TEXTS, checkpoint=checkpoint, output=part, shard_examples=4)
    assert runs.contents(part) == runs.contents(cache.path)
    assert all((part / name).stat().st_mtime_ns == time for name, time in before.items())
    assert open_cache(part).header == cache.header


def rewritten(change):
    """Writes a file's table again, changed."""
    return lambda file: pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(file)), file)


def with_vectors(change):
    """The same with the list of the vectors' bytes changed."""

    def changed(table):
        place = table.column_names.index("vectors")
        return table.set_column(place, table.schema.field(place), [change(table["vectors"].to_pylist())])

    return rewritten(changed)


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGES = {
    "its number of examples is 3, and header.json says 4": rewritten(lambda table: table.slice(0, 3)),
    "magic bytes not found": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "size is 0 bytes": lambda file: file.write_bytes(b""),
    "CRC": flip_a_bit,
    "its columns are tags binary, .*; wanted tags binary, .*vectors binary": rewritten(
        lambda table: table.drop_columns("vectors")
    ),
    "cannot reshape": with_vectors(lambda vectors: [value[:-2] for value in vectors]),
    "example 2 has 0 vectors for another number": with_vectors(lambda some: [some[0], b"", *some[2:]]),
}


@pytest.mark.long
@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_file_is_named(reason, cache, checkpoint, tmp_path):
    shutil.copytree(cache.path, tmp_path / "cache")
    DAMAGES[reason](tmp_path / "cache" / "00001.parquet")
    for read in (
        open_cache,
        lambda path: extract(TEXTS, checkpoint=checkpoint, output=path, shard_examples=4),
    ):
        with pytest.raises(
            BertKerasError, match=rf"00001\.parquet is damaged: .*{reason}.*; remove this file and extract"
        ):
            read(tmp_path / "cache")


@pytest.mark.long
def test_a_removed_file_is_written_again(cache, checkpoint, tmp_path):
    shutil.copytree(cache.path, tmp_path / "cache")
    shard = tmp_path / "cache" / "00001.parquet"
    shard.unlink()
    shard.mkdir()
    with pytest.raises(BertKerasError, match="lacks 1 of its 3 files"):
        open_cache(tmp_path / "cache")
    shard.rmdir()
    extract(TEXTS, checkpoint=checkpoint, output=tmp_path / "cache", shard_examples=4)
    assert runs.contents(tmp_path / "cache") == runs.contents(cache.path)


@pytest.mark.long
def test_a_killed_first_write_and_a_second_process(checkpoint, tmp_path):
    """Leftovers of a kill are no obstacle; a cache that is being written is."""
    settings = {"checkpoint": checkpoint, "layers": "last", "output": tmp_path / "cache"}
    (tmp_path / "cache").mkdir()
    runs.leave_half(tmp_path / "cache", "header.json")
    lock = filelock.FileLock(
        tmp_path / "cache" / ".lock"
    )  # another object than ours counts as another process
    with lock, pytest.raises(BertKerasError, match="another process is writing to .*cache;"):
        extract(TEXTS, **settings)
    made = extract(TEXTS, **settings)
    assert made.header == open_cache(tmp_path / "cache").header
    assert {path.name for path in made.path.iterdir()} == {"header.json", "00000.parquet", "results.json"}


@pytest.mark.long
def test_vectors_that_overflow_float16(checkpoint, tmp_path):
    """Refused by layer and text before a shard is written; float32 then needs no other folder."""
    source = checkpoints.read(checkpoint)
    scale = f"block_{BLOCKS - 1}/feed_forward_layer_norm/gamma"
    assert scale in source.tensors, sorted(source.tensors)
    large = source.tensors | {scale: source.tensors[scale] * 1e6}
    large = dataclasses.replace(source, tensors=large)
    settings = {"checkpoint": large, "layers": "last", "output": tmp_path / "cache"}
    message = rf"a vector of layer {BLOCKS} for '.*' is infinite or NaN in float16; give dtype float32"
    with pytest.raises(BertKerasError, match=message):
        extract(examples(3, seed=1), **settings)
    assert not (tmp_path / "cache").exists()
    made = extract(examples(3, seed=1), dtype="float32", **settings)
    assert all(np.isfinite(record["vectors"]).all() for record in made.rows())


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("weights", {"scale": 2}),
        ("layers", {"layers": "embeddings"}),
        ("seq_length", {"seq_length": 32}),
        ("text", {"texts": TEXTS[1:]}),
    ],
)
def test_a_cache_of_something_else_is_refused(field, changed, cache, checkpoint):
    given = {"texts": TEXTS, "shard_examples": 4, "scale": 1} | changed
    source, scale = checkpoints.read(checkpoint), given.pop("scale")
    tensors = {name: scale * value for name, value in source.tensors.items()}
    given["checkpoint"] = dataclasses.replace(source, tensors=tensors)
    before = runs.contents(cache.path)
    with pytest.raises(ValueError, match=f"cache was made with another {field}: .*remove this one"):
        extract(output=cache.path, **given)
    assert runs.contents(cache.path) == before


def test_a_folder_of_something_else_is_refused(checkpoint, tmp_path):
    (tmp_path / "notes").write_text("")
    with pytest.raises(ValueError, match="neither empty nor a cache"):
        extract(TEXTS, checkpoint=checkpoint, output=tmp_path, shard_examples=4)
    with pytest.raises(FileNotFoundError, match=r"has no header\.json"):
        open_cache(tmp_path)


def test_other_programs_read_the_files(cache):
    """As the docstring of the module says, with nothing of this package."""
    header = json.loads((cache.path / "header.json").read_bytes())
    rows = pyarrow.parquet.read_table(cache.path / "00000.parquet").to_pydict()
    shape = -1, len(header["layers"]), header["config"]["hidden_size"]
    for i, row in zip(range(len(rows["vectors"])), cache.rows(), strict=False):
        vectors = np.frombuffer(rows["vectors"][i], header["dtype"]).reshape(shape)
        np.testing.assert_array_equal(vectors, row["vectors"])
        assert rows["tokens"][i] == row["tokens"] and rows["starts"][i] == row["starts"].tolist()
    assert i == 3


def test_a_group_of_rows_is_in_memory_at_once(tmp_path):
    """While writing and while reading, of 64 MiB of vectors."""
    schema = pyarrow.schema({"vectors": pyarrow.binary()}.items())
    row, held = {"vectors": np.ones(2**21, np.uint8)}, []
    start = pyarrow.total_allocated_bytes()

    def rows():
        for _ in range(32):
            held.append(pyarrow.total_allocated_bytes() - start)
            yield row

    write_rows(tmp_path / "x.parquet", schema, rows(), value_of=np.ndarray.tobytes)
    assert max(held) < 2**24
    held.clear()
    file = GroupFile(tmp_path / "x.parquet", schema)
    for group in map(file.read, range(len(file.sizes))):
        held.append(pyarrow.total_allocated_bytes() - start)
        assert group.num_rows == 1
    assert len(held) == 32 and 2**21 <= max(held) < 2**24


def test_an_example_over_the_limit_of_parquet(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(bert_keras.tasks.frozen.cache, "MAX_BYTES", 100)
    with pytest.raises(
        BertKerasError, match=r"vectors of '.*' have [\d,]+ bytes, .*may have 100; cut the text"
    ):
        extract(examples(3, seed=1), checkpoint=checkpoint, output=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.long
def test_a_full_disk_leaves_no_half_file(checkpoint, tmp_path):
    settings = {"checkpoint": checkpoint, "output": tmp_path / "cache"}
    with (
        runs.full_disk(5000),
        pytest.raises(OSError, match=r"cannot write .*00000\.parquet\..*tmp/00000\.parquet: .*too large"),
    ):
        extract(examples(20, seed=1), **settings)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"header.json"}
    assert len([*extract(examples(20, seed=1), **settings).rows()]) == 20


@pytest.mark.parametrize("layers", ["concat_last_four", "weighted_sum_last_four"])
def test_the_papers_sizes(layers):
    """Two BiLSTMs of 768 units a direction: 4 * 768 * (input + 768 + 1) weights each way."""
    settings = {"feature_layers": layers, "lstm_layers": 2, "lstm_units": 768, "lstm_dropout": 0.3}
    layer = FeatureBiLSTM(**settings)
    layer.build((None, None, 4, HIDDEN))
    width = HIDDEN * (4 if layers == "concat_last_four" else 1)
    lstm = sum(2 * 4 * 768 * (size + 768 + 1) for size in (width, 2 * 768))
    assert layer.count_params() == lstm + (4 + 1 if LAYERS[layers].mixed else 0)
    assert bilstm_parameters(BertConfig(vocab_size=9, hidden_size=HIDDEN, num_heads=1), settings) == lstm


def test_padding_changes_nothing():
    layer = FeatureBiLSTM(feature_layers="concat_last_four", lstm_layers=2, lstm_units=4, lstm_dropout=0.0)
    vectors = np.random.default_rng(0).normal(size=(1, 7, 4, 3)).astype("float32")
    mask = np.arange(7)[None] < 5
    short = layer(vectors[:, :5], mask[:, :5])
    np.testing.assert_allclose(layer(vectors, mask)[:, :5], short, atol=1e-6)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(LINES).encode())
    return path


def flags(checkpoint, text, output, **changes):
    given = {
        "checkpoint": checkpoint,
        "input": text,
        "output": output,
        "seq_length": 20,
        "doc_stride": 6,
    } | changes
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.mark.long
def test_each_format_says_the_same(capfd, checkpoint, text, tmp_path):
    made = {form: tmp_path / f"out.{form}" for form in ("jsonl", "parquet")}
    for form, path in made.items():
        code, out, err = runs.run_command(
            capfd, "features", *flags(checkpoint, text, path, format=form, layers="concat_last_four")
        )
        assert (code, err) == (0, "") and out.strip() == f"{path}: vectors of 5 lines"
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in made.values()}
    lines = [json.loads(line) for line in made["jsonl"].read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in lines] == LINES
    assert [line["tokens"] for line in lines[:2]] == [["good", "film", ",", "dull", "actor", "!"], []]
    rows = pyarrow.parquet.read_table(made["parquet"]).to_pylist()
    for row, line in zip(rows, lines, strict=True):
        np.testing.assert_array_equal(np.float32(row.pop("vectors")), np.float32(line["vectors"]))
        assert row == {name: line[name] for name in row} and len(row) == 4
    assert np.shape(lines[0]["vectors"]) == (6, 4 * HIDDEN)
    with pytest.raises(BertKerasError, match="format is 'npz'; .*jsonl, parquet"):
        extract_file(text, tmp_path / "out", checkpoint=checkpoint, format="npz")


@pytest.mark.long
def test_pieces_and_means(capfd, monkeypatch, checkpoint, text, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("bert_keras.cli.console.shows_bars", lambda stream: True)  # as in a terminal
    path = tmp_path / "out.jsonl"
    given = flags(checkpoint, text, path, level="piece", layers="weighted_sum_all", dtype="float16")
    code, _, err = runs.run_command(capfd, "features", *given)
    assert code == 0 and "extracting" in err and "5/5" in err
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[3]["tokens"][:5] == ["n", "##a", "##i", "##v", "##e"]
    extractor = extractor_of(checkpoints.read(checkpoint), "piece")
    for line, found in zip(lines, extractor([{"text": line.encode()} for line in LINES]), strict=True):
        assert len(line["vectors"]) == len(line["tokens"]) == len(found["vectors"])
        wanted = found["vectors"][:, 1:].mean(axis=1)
        np.testing.assert_allclose(np.reshape(line["vectors"], wanted.shape), wanted, atol=5e-3)


@pytest.mark.long
def test_an_interrupted_file_is_resumed(checkpoint, text, tmp_path, monkeypatch):
    """Stopped after the first vectors, then killed while it writes the file."""
    settings = {"checkpoint": checkpoint, "seq_length": 20, "shard_examples": 2, "doc_stride": 6}
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"

    def stop(*given) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        extract_file(text, output, progress=stop, **settings)
    assert part.is_dir() and not output.exists()
    kept = (part / "00000.parquet").stat().st_mtime_ns
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setitem(WRITERS, "jsonl", stop)
        extract_file(text, output, **settings)
    assert (part / "results.json").is_file() and not output.exists()

    def check(count: int) -> None:
        assert (part / "00000.parquet").stat().st_mtime_ns == kept

    assert extract_file(text, output, progress=check, **settings) == 5
    assert [json.loads(line)["text"] for line in output.read_text(encoding="utf-8").splitlines()] == LINES
    assert not part.exists()
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    extract_file(packed, tmp_path / "whole.jsonl", **settings)
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    part.mkdir()  # as after a kill at the very end
    with pytest.raises(
        ValueError, match=r"out\.jsonl already exists; .* left .*out\.jsonl\.part, .* remove it"
    ):
        extract_file(text, output, **settings)


def test_bad_input_of_the_command(capfd, checkpoint, text, tmp_path):
    there = tmp_path / "there"
    there.write_text("kept")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\nfil\xff\n")
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    new = tmp_path / "new"
    cases = [
        (flags(checkpoint, text, there), f"{there} already exists"),
        (flags(checkpoint, tmp_path / "none", new), "no file at"),
        (flags(checkpoint, bad, new), "bad.txt, line 2, byte 4: 0xff is not UTF-8"),
        (flags(checkpoint, empty, new), "there is no text"),
        (
            flags(checkpoint, text, new, seq_length=600),
            "--seq-length is 600 and the encoder has 48 positions",
        ),
    ]
    for given, message in cases:
        code, out, err = runs.run_command(capfd, "features", *given)
        assert code == 1 and not out and message in err and len(err.splitlines()) == 1
    assert there.read_text() == "kept" and not new.exists()
