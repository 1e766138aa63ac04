"""The detector: what each file and folder is, the way in, and that no code runs and no TensorFlow is imported."""

import json
import pickle
import shlex
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest
import runs
import safetensors.numpy

import bert_keras
from bert_keras import checkpoints
from bert_keras.checkpoints.kinds import READ, ROWS
from bert_keras.cli import main as cli
from bert_keras.errors import BertKerasError
from bert_keras.tasks.runs.run_folder import load_run

SIZES = {"num_hidden_layers": 12, "hidden_size": 768}
BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **SIZES}


def h5(shapes, *attributes):
    def write(file):
        with h5py.File(file, "w") as opened:
            for name, shape in shapes.items():
                opened.create_dataset(name, shape, "float32")  # no chunk is written
            opened.attrs.update(dict.fromkeys(attributes, "{}"))

    return write


def archive(**members):
    def write(file):
        with zipfile.ZipFile(file, "w") as opened:
            for name, content in members.items():
                opened.writestr(
                    name.replace("__", "."), content if isinstance(content, str) else json.dumps(content)
                )

    return write


def tensors(**shapes):
    return lambda file: safetensors.numpy.save_file(
        {name: np.zeros(shape, "f") for name, shape in shapes.items()}, file
    )


def cut(make, count=20):
    def write(file):
        make(file)
        file.write_bytes(file.read_bytes()[:-count])

    return write


class Trap:
    def __reduce__(self):
        return sys.exit, (9,)


TRAP = pickle.dumps(Trap())
LAYERS = range(1, 13)
TOKEN = "Embedding-Token/Embedding-Token/embeddings:0"
ATTENTION = "Encoder-{0}-MultiHeadSelfAttention/Encoder-{0}-MultiHeadSelfAttention/Encoder-{0}-MultiHeadSelfAttention_Wq:0"
KERAS_BERT = {
    TOKEN: (99, 768),
    **{ATTENTION.format(i): (768, 768) for i in LAYERS},
    "dense/dense/bias:0": (3,),
}
OF_TF2 = {f"bert/bert/encoder/layer_{i - 1}/attention/self/query/kernel:0": (768, 768) for i in LAYERS}
TF = "bert/tf_bert_for_token_classification/bert/"
TF_CLASS = {f"{TF}encoder/layer_._{i - 1}/attention/self/query/kernel:0": (768, 768) for i in LAYERS} | {
    f"{TF}embeddings/word_embeddings/weight:0": (9, 768),
    "classifier/classifier/bias:0": (5,),
}
KERAS_3 = {"encoder/blocks/block/attention/key/vars/0": (4, 4)}
TASK = {"kind": "text-classification", "task": {"labels": ["bad", "good"]}}
TEXT_MODEL = {
    "module": "bert_keras.tasks.strings.text_model",
    "class_name": "TextModel",
    "config": {"problem": TASK, "network": {"config": {"num_layers": 2, "hidden_size": 128}}},
}
PRESET = {"class_name": "BertBackbone", "config": {"num_layers": 12, "hidden_dim": 768}}
WHOLE = tensors(a=(2,))
# Kinds that are refused when the weights are read, or whose weights are read.
READ_LATER = ("other-family", "ktrain", "cut", "shards", "git-lfs", "empty", "tensorflow")
BASE = "BERT base (12 layers, hidden size 768)"

# The files of a folder, the first of which is also given alone; the kind; words of the answer.
HELD = [
    ({"model.safetensors": WHOLE, "config.json": BERT | {"id2label": {"0": "a", "1": "b"}}}, "hugging-face",
     f"BertForSequenceClassification, {BASE}, 2 labels (a, b) | finetune --task custom"),
    ({"tf_model.h5": h5(TF_CLASS), "config.json": BERT},
     "tf-keras", "TFBertForSequenceClassification | 5 labels | convert --from"),
    ({"x.h5": h5(TF_CLASS)}, "tf-keras", f"TFBertForTokenClassification, {BASE}, 5 labels | name it tf_model.h5"),
    ({"model.safetensors": WHOLE, "config.json": BERT | {"model_type": "gpt2"}},
     "other-family", "the families are BERT, ALBERT"),
    ({"x.h5": h5(KERAS_BERT)}, "keras-bert", f"Keras 2 weights of keras-bert, {BASE}, 3 labels | convert | bert_config"),
    ({"x.h5": h5({f"model_weights/{name}": shape for name, shape in KERAS_BERT.items()}, "model_config")},
     "keras-bert", "3 labels"),
    ({"x.hdf5": h5(OF_TF2)}, "bert-for-tf2", "bert-for-tf2, BERT (12 layers)"),
    ({"x.h5": h5({"dense/dense/bias:0": (2,)}, "model_config")}, "keras-2", "a model that Keras 2 saved"),
    ({"x.h5": h5({"dense/dense/bias:0": (2,)}, "layer_names")}, "keras-2", "weights that Keras 2 saved"),
    ({"tf_model.preproc": TRAP, "tf_model.h5": h5(TF_CLASS), "config.json": BERT},
     "ktrain", "pickle | vocabulary | convert --from"),
    ({"tf_model.preproc": TRAP, "tf_model.h5": h5(KERAS_BERT)}, "ktrain", "Keras 2 weights, BERT base"),
    ({"x.weights.h5": h5(KERAS_3)}, "keras-3-weights", "load_weights"),
    ({"model.weights.h5": h5(KERAS_3), "config.json": PRESET}, "keras-hub", f"BertBackbone, {BASE} | convert"),
    ({"model.weights.h5": h5(KERAS_3), "config.json": PRESET | {"class_name": "GPT2Backbone"}}, "other-family", "GPT2Backbone"),
    ({"x.keras": archive(config__json=TEXT_MODEL)}, "keras-file",
     "a text model of bert_keras | BERT tiny | text-classification, 2 labels (bad, good) | predict --run | bert_keras.load"),
    ({"x.keras": archive(config__json={"registered_name": "keras_hub>BertTextClassifier", "class_name": "T"})},
     "keras-file", "save_to_preset"),
    ({"x.keras": archive(config__json={"class_name": "Functional"})}, "keras-file", "of class Functional, without an encoder"),
    ({"x.keras": cut(archive(config__json=TEXT_MODEL))}, "cut", "cut short | bring the file again, whole"),
    ({"model.safetensors": cut(WHOLE, 3), "config.json": BERT}, "cut", "cut short"),
    ({"x.h5": cut(h5(KERAS_BERT), 900)}, "cut", "cut short"),
    ({"model.safetensors.index.json": {"weight_map": {"a": "b.safetensors"}}, "config.json": BERT},
     "shards", "bring all files"),
    ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n", "config.json": BERT}, "git-lfs", "git lfs pull"),
    ({"x.keras": b"\n<!DOCTYPE html>"}, "html", "download the file again"),
    ({"pytorch_model.bin": b""}, "empty", "bring the file again"),
    ({"model.safetensors.incomplete": b"x"}, "partial", "did not end"),
    ({"x.safetensors": WHOLE}, "weights", "put the model's config.json"),
    ({"x.pt": TRAP}, "weights", "model.safetensors or pytorch_model.bin"),
    ({"best-model.pt": TRAP}, "flair", "flair"),
    ({"config.cfg": b"[nlp]\nlang = en\n"}, "spacy", "spaCy"),
    ({"adapter_config.json": {"peft_type": "LORA"}}, "adapter", "PEFT adapter | merge_and_unload"),
    ({"modules.json": b"[]"}, "sentence-transformers", "bert_keras.embedder"),
    ({"flax_model.msgpack": b"\x00"}, "flax", "from_flax=True"),
    ({"saved_model.pb": b"..tf_bert_for_masked_lm/bert/encoder/layer_._0/.."},
     "transformers-saved-model", "TFBertForMaskedLM | convert --from"),
    ({"saved_model/1/saved_model.pb": b"..tf_albert_model/albert/albert_layers_._0..", "vocab.txt": b"[PAD]"},
     "transformers-saved-model", "TFAlbertModel, ALBERT | /saved_model/1 --to NEW"),
    ({"saved_model.pb": b"..input_word_ids..pooled_output.."}, "tf-hub", "encoder | convert --from"),
    ({"saved_model.pb": b"..input_word_ids.."}, "tf-hub-preprocessor", "without weights"),
    ({"tfhub_module.pb": b"\x08\x03", "saved_model.pb": b".."}, "tf-hub-1", "google://NAME"),
    ({"saved_model.pb": b"\x00"}, "saved-model", "without an encoder of ours | HubLayer"),
    ({"1/saved_model.pb": b"\x00", "1/assets.extra/manifest.json": {"written_by": "bert-keras"}}, "export", "bert-keras serve"),
    ({"bert_model.ckpt.index": b"\0bert/embeddings", "bert_config.json": SIZES},
     "google", f"TensorFlow 1, {BASE} | convert --from"),
    ({"bert_model.ckpt.index": b"_CHECKPOINTABLE_OBJECT_GRAPH", "bert_config.json": SIZES}, "model-garden", "Model Garden"),
    ({"model.ckpt-7.index": b"\0bert"}, "tensorflow", "put the model's bert_config.json"),
    ({"bert_model.ckpt.data-00000-of-00001": b"\0"}, "tensorflow", "without its .index"),
    ({"x.zip": archive(**{"uncased/bert_model.ckpt.index": "x"})}, "google-zip", "python -m zipfile -e"),
    ({"checkpoints/ckpt-5.index": b"x", "checkpoints/ckpt-40.index": b"x"},
     "training", "ckpt-40.index is the last save of an unfinished training"),
    ({"task.json": TASK, "model.safetensors": WHOLE, "config.json": BERT},
     "run", "a run of bert_keras, BERT base | text-classification, 2 labels | evaluate --run"),
    ({"ablation.json": {}}, "study", "give one of them"),
    ({"manifest.json": {"shards": []}}, "instances", "pretrain --records"),
    ({"model.onnx": b"\x08"}, "onnx", "ONNX"),
    ({"openvino_model.xml": b"<?xml"}, "openvino", "OpenVINO"),
    ({"model-q4.gguf": b"GGUF\x03"}, "gguf", "GGUF"),
    ({"x.tflite": b"\x1c\x00\x00\x00TFL3"}, "litert", "Lite"),
    ({"rust_model.ot": b"PK"}, "rust-bert", "rust-bert"),
    ({"x.tfrecord": b"\x01"}, "instances", "pretrain --records"),
    ({"vocab.txt": b"[PAD]\n[UNK]\na\n"}, "wordpiece", "--vocab"),
    ({"spiece.model": b"\x0a"}, "sentencepiece", "--vocab"),
    ({"train.json": {"data": [{"paragraphs": [{"is_impossible": True}]}]}}, "squad", "--task squad2.0"),
    ({"train.json": {"data": [{"paragraphs": []}]}}, "squad", "--task squad1.1"),
    ({"train.csv": b"text,label\n"}, "table", "--task custom"),
    ({"train.jsonl": b'{"text": "a"}\n'}, "json-lines", "--task custom"),
    ({"train.txt": b"EU NNP B-ORG\nrejects VBZ O\n"}, "conll", "--task conll2003"),
    ({"x.parquet": b"PAR1"}, "parquet", "--task custom"),
    ({"data.arrow": b"\xff\xff\xff\xff"}, "arrow", "to_parquet"),
    ({"books.txt": "naïve\n".encode()}, "text", "vocab --text"),
]  # fmt: skip


def fill(folder, files):
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(file)
        else:
            file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


@pytest.mark.parametrize(
    ("files", "kind", "words"), HELD, ids=[f"{row[1]}-{i}" for i, row in enumerate(HELD)]
)
def test_a_file_and_its_folder_are_known(files, kind, words, tmp_path):
    fill(tmp_path, files)
    given = [tmp_path] if "/" in next(iter(files)) else [tmp_path, tmp_path / next(iter(files))]
    for path in given:
        found = checkpoints.detect(path)
        assert found is not None and found.kind == kind
        said = " ".join((found.sentence, found.advice, *found.commands))
        assert all(word in said for word in words.split(" | ")), said
        assert json.loads(json.dumps(found.to_json()))["kind"] == kind and "\n" not in said
        if kind not in (*READ, *READ_LATER) and checkpoints.describe(path):
            with pytest.raises(BertKerasError) as error:  # the refusal has the detector's sentence
                checkpoints.check_there(path)
            assert found.sentence in str(error.value)


STRANGE = {
    "model_type": ["x"],
    "architectures": {"a": 1},
    "num_hidden_layers": "x",
    "id2label": 3,
    "hidden_size": -1,
}
HEADER = b'{"a": {"shape": ["x", 2], "data_offsets": ["y"]}, "b": 3}'
LENGTH = len(HEADER).to_bytes(8, "little")
# Files that no writer wrote.
HOSTILE = [
    {"config.json": STRANGE, "tf_model.h5": h5({"a": ()})},
    {"config.json": b"[" * 100_000, "model.safetensors": (9 << 40).to_bytes(8, "little") + b"{"},
    {"config.json": BERT, "model.safetensors": LENGTH + HEADER},
    {"x.keras": archive(config__json={"config": [STRANGE], "module": 3, "registered_name": {}})},
    {"x.keras": archive(config__json="[]")},
    {
        "task.json": {"kind": [], "task": 3},
        "model.safetensors": b"x",
        "config.json": {"num_layers": {}, "dim": []},
    },
    {"model.safetensors.index.json": {"weight_map": {"a": ["../../x"]}}, "config.json": BERT},
]


@pytest.mark.parametrize("files", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_file_gives_an_answer(files, tmp_path):
    fill(tmp_path, files)
    for path in (tmp_path, *tmp_path.iterdir()):
        found = checkpoints.detect(path)
        assert found is None or (json.dumps(found.to_json()) and found.sentence)


@pytest.mark.parametrize(
    "command", sorted({way for row in ROWS for way in row.way if way.startswith("bert-keras")})
)
def test_each_command_parses(command):
    words = shlex.split(command.format(path="x", folder="x"))[1:]
    cli.parser(words[:1]).parse_args(words)


@pytest.mark.parametrize("read", [load_run, bert_keras.load, checkpoints.read, checkpoints.load_tokenizer])
def test_each_reader_says_what_is_there(read, tmp_path):
    fill(tmp_path, {"model.onnx": b"\x08"})
    with pytest.raises(FileNotFoundError, match="model.onnx is an ONNX graph: give the checkpoint"):
        read(tmp_path)


def test_info_of_a_model_that_is_no_checkpoint_answers(tmp_path, capfd):
    named = {"kind": "tagging", "task": {"labels": ["\x1b[2J", "good"]}}
    fill(tmp_path, {"x.keras": archive(config__json=TEXT_MODEL | {"config": {"problem": named}})})
    code, out, err = runs.run_command(capfd, "info", tmp_path / "x.keras")
    assert (code, err) == (0, "") and "tagging, 2 labels (\\x1b[2J, good)" in out and "--run" in out


def test_info_of_a_damaged_file_is_an_error(tmp_path, capfd):
    fill(tmp_path, {"model.safetensors": cut(WHOLE, 3), "config.json": BERT})
    code, out, err = runs.run_command(capfd, "info", tmp_path)
    assert (code, out) == (1, "") and "model.safetensors is cut short" in err


def test_what_is_unknown_is_said(tmp_path, capfd):
    (tmp_path / "a.xyz").write_bytes(b"\x00")
    for path in (tmp_path, tmp_path / "a.xyz", tmp_path / "nowhere"):
        code, out, err = runs.run_command(capfd, "info", path)
        assert (code, out) == (1, "") and err.count("\n") == 1 and "no checkpoint" in err


def test_it_needs_no_tensorflow(tmp_path):
    fill(tmp_path, HELD[0][0])
    code = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'keras'])); from bert_keras.cli.main import main; main()"
    line = [sys.executable, "-c", code, "info", str(tmp_path), "--json"]
    done = subprocess.run(line, cwd=runs.ROOT, env=runs.bare_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["size"], found["labels"]) == ("hugging-face", "base", ["a", "b"])


@pytest.mark.parametrize("name", ["bert-classifier", "bert-answers", "electra"])
def test_genuine_files(name, data_dir):
    found = checkpoints.detect(data_dir / "tf_model_h5" / name / "tf_model.h5")
    assert (
        found.kind == "tf-keras"
        and found.facts["layers"] == 2
        and found.what.startswith("weights of transformers' TF")
    )
    for index in (data_dir / "tf1_checkpoint_indexes").iterdir():
        assert checkpoints.detect(index).kind == "google"
