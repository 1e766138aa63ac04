"""The files of transformers' TensorFlow classes: read with equal logits, and refused with one line where they are hostile."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import runs
from tensorflow_files import raw_names, write_tf_h5

from bert_keras import checkpoints
from bert_keras.checkpoints.tensorflow_classes import TF_H5, pytorch_name
from bert_keras.errors import BertKerasError
from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, POOLED_OUTPUT, SEQUENCE_OUTPUT


def outputs_of(folder, given):
    """The outputs of a folder's heads by transformers' names, for the inputs of an `expected.npz`."""
    from bert_keras.model import heads
    from bert_keras.model.encoder import BertEncoder

    checkpoint = checkpoints.read(folder)
    config, parts = checkpoint.config, checkpoint.parts
    made = {
        "classifier": heads.TokenHead if checkpoint.architecture == "ForTokenClassification" else heads.ClassifierHead,
        "qa_outputs": heads.SpanHead,
        "next_sentence": heads.NextSentenceHead,
        "replaced_token": heads.ReplacedTokenHead,
    }  # fmt: skip
    outputs = [SEQUENCE_OUTPUT] + ([POOLED_OUTPUT] if "pooler" in parts else [])
    encoder = BertEncoder(config, outputs=outputs)
    classes = {"num_classes": len(checkpoint.tensors.get("classifier/dense/bias", ()))}
    built = {
        name: made[name](config=config, **(classes if name == "classifier" else {}))
        for name in made
        if name in parts
    }
    if "masked_lm" in parts:
        built["masked_lm"] = heads.MaskedLMHead(encoder)
    checkpoints.assign(checkpoint, encoder, **built)
    ids = given["input_ids"]
    states = encoder(
        {INPUT_WORD_IDS: ids, INPUT_MASK: given["attention_mask"], INPUT_TYPE_IDS: np.zeros_like(ids)}
    )
    found = {"last_hidden_state": states[SEQUENCE_OUTPUT], "pooler_output": states.get(POOLED_OUTPUT)}
    for name, head in built.items():
        of_tokens = name in ("qa_outputs", "replaced_token", "masked_lm") or isinstance(head, heads.TokenHead)
        read = states[SEQUENCE_OUTPUT if of_tokens else POOLED_OUTPUT]
        where = (
            (np.tile(np.arange(ids.shape[1], dtype="int32"), (len(ids), 1)),) if name == "masked_lm" else ()
        )
        found[name] = head(read, *where)
    pretraining = "masked_lm" in built and "next_sentence" in built
    logits = {
        "logits": [name for name in built if name != "qa_outputs"],
        "prediction_logits": ["masked_lm"],
        "seq_relationship_logits": ["next_sentence"],
    }
    found |= {key: found[names[0]] for key, names in logits.items() if names and names[0] in found}
    if "qa_outputs" in found:
        start, end = found["qa_outputs"]
        found |= {"start_logits": start, "end_logits": end}
    assert pretraining or "prediction_logits" not in given
    return {name: np.asarray(found[name]) for name in given if name in found}


GENUINE = (
    *("bert-classifier", "bert-base", "bert-pretraining", "bert-tagger", "bert-answers", "electra"),
    *("distilbert-classifier", "albert-classifier", "roberta-classifier"),
)


@pytest.mark.filterwarnings("ignore:.*lines are equal to a line below")  # in these files
@pytest.mark.parametrize("name", GENUINE)
def test_logits_equal_those_of_the_class_that_wrote_the_file(name, data_dir):
    folder = data_dir / "tf_model_h5" / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    with np.load(folder / "expected.npz") as kept:
        expected = dict(kept)
    found = outputs_of(folder, expected)
    compared = expected.keys() - {"input_ids", "attention_mask"}
    assert found.keys() == compared
    real = expected["attention_mask"].astype(bool)
    for key in compared:
        wanted, got = expected[key], found[key].reshape(expected[key].shape)
        if wanted.shape[:2] == real.shape:
            wanted, got = wanted[real], got[real]
        assert np.max(np.abs(wanted - got)) <= 1e-5 * max(1, np.max(np.abs(wanted))), key


# Names in files of several versions, classes and nestings.
NAMES = [
    ("bert/tf_bert_for_pre_training/bert/encoder/layer_._3/output/dense/kernel:0", "bert.encoder.layer.3.output.dense.weight"),
    ("mlm___cls/tf_bert_for_pre_training_1/bert/embeddings/word_embeddings/weight:0", "bert.embeddings.word_embeddings.weight"),
    ("mlm___cls/tf_x/mlm___cls/predictions/transform/LayerNorm/gamma:0", "cls.predictions.transform.LayerNorm.weight"),
    ("nsp___cls/tf_x/nsp___cls/seq_relationship/bias:0", "cls.seq_relationship.bias"),
    ("bert/own_name/bert/embeddings/position_embeddings/embeddings:0", "bert.embeddings.position_embeddings.weight"),
    ("model/outer/tf_bert_model/bert/pooler/dense/kernel:0", "bert.pooler.dense.weight"),
    ("bert/embeddings/token_type_embeddings/embeddings:0", "bert.embeddings.token_type_embeddings.weight"),
    ("albert/tf_x/albert/encoder/albert_layer_groups_._0/albert_layers_._0/ffn/kernel:0",
     "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"),
    ("sop_classifier/tf_albert_for_pre_training/sop_classifier/classifier/kernel:0", "sop_classifier.classifier.weight"),
    ("roberta/tf_x/roberta/encoder/layer_._11/attention/self/query/bias:0", "roberta.encoder.layer.11.attention.self.query.bias"),
    ("classifier/tf_roberta_for_sequence_classification/classifier/out_proj/kernel:0", "classifier.out_proj.weight"),
    ("lm_head/tf_roberta_for_masked_lm/lm_head/layer_norm/beta:0", "lm_head.layer_norm.bias"),
    ("distilbert/tf_x/distilbert/transformer/layer_._5/ffn/lin1/kernel:0", "distilbert.transformer.layer.5.ffn.lin1.weight"),
    ("vocab_projector/tf_distil_bert_for_masked_lm/vocab_projector/bias:0", "vocab_projector.bias"),
    ("electra/tf_x/electra/embeddings_project/kernel:0", "electra.embeddings_project.weight"),
    ("a/someone/own/head/kernel:0", "a/someone/own/head/kernel:0"),
    ("bert.pooler.dense.weight", "bert.pooler.dense.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wanted"), NAMES)
def test_the_end_of_a_name_decides(name, wanted):
    assert pytorch_name(name) == wanted


# -----------------------------------------------------------------------------------------------------------
# Files made here


@pytest.fixture
def folder(tiny, tmp_path) -> pathlib.Path:
    """A copy of a checkpoint whose weights are in a tf_model.h5 alone."""
    new = tmp_path / "tensorflow"
    shutil.copytree(tiny, new)
    write_tf_h5(new)
    return new


def test_shards_and_safetensors_are_read_too(tiny, folder):
    import h5py
    import safetensors.numpy

    wanted, tensors = checkpoints.read(tiny), raw_names(tiny)

    def check():
        found = checkpoints.read(folder)
        assert found.tensors.keys() == wanted.tensors.keys() and found.unknown == ()
        assert all(np.array_equal(found.tensors[name], wanted.tensors[name]) for name in wanted.tensors)
        (folder / TF_H5).unlink(missing_ok=True)

    check()
    files = {f"tf_model-0000{number}-of-00002.h5": [*tensors][number - 1 :: 2] for number in (1, 2)}
    for file, names in files.items():
        with h5py.File(folder / file, "w") as opened:
            for name in names:
                opened[name] = tensors[name]
    index = {name: file for file, names in files.items() for name in names}
    (folder / f"{TF_H5}.index.json").write_text(json.dumps({"weight_map": index}))
    check()
    safetensors.numpy.save_file(
        {name.partition("/")[2]: array for name, array in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "tf"},
    )
    check()


WORDS = "bert/tf_bert_model/bert/embeddings/word_embeddings/weight:0"


def replaced(**options):
    """A change that puts another dataset in place of the word embeddings."""

    def change(file, path):
        del file[WORDS]
        file.create_dataset(WORDS, **options)

    return change


def external_link(file, path):
    import h5py

    shutil.copy(path, path.with_name("other.h5"))
    del file[WORDS]
    file[WORDS] = h5py.ExternalLink(str(path.with_name("other.h5")), WORDS)


def soft_link(file, path):
    import h5py

    file["more"] = h5py.SoftLink("/bert")


def loop(file, path):
    file["bert/again"] = file["bert"]
    del file[WORDS]


HOSTILE = [
    (lambda file, path: file.pop(WORDS), "has no .*embeddings/word_embeddings|no embeddings/word_embeddings"),
    (replaced(shape=(2**20, 2**20), dtype="f4"), "bytes and its tensors need"),
    (replaced(shape=(2**14, 2**14), dtype="f4", chunks=(64, 64), compression="gzip"), "bytes and its tensors need"),
    (replaced(shape=(9, 9), dtype="i4"), "int32|has shape"),
    (replaced(data="a text"), "wanted float16, float32 or float64"),
    (replaced(shape=(9, 9), dtype="f4"), r"has shape \[9, 9\]"),
    (replaced(shape=(9, 9), dtype="f4", external=[("/etc/hostname", 0, 324)]), "is kept in another file"),
    (external_link, "is a link to another place"),
    (soft_link, "is a link to another place"),
    (loop, "has no embeddings/word_embeddings|no embeddings/word_embeddings"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_hostile_files_are_refused_in_one_line(case, folder):
    import h5py

    change, message = HOSTILE[case]
    with h5py.File(folder / TF_H5, "a") as file:
        change(file, folder / TF_H5)
    with pytest.raises(BertKerasError, match=message) as caught:
        checkpoints.read(folder)
    assert "\n" not in str(caught.value) and TF_H5 in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "is a page of HTML"),
        (b"", "is empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "cut short or not an HDF5"),
    ],
)
def test_a_file_that_is_not_hdf5_is_refused(content, message, folder):
    (folder / TF_H5).write_bytes(content)
    with pytest.raises(BertKerasError, match=message):
        checkpoints.read(folder)


def test_the_commands_read_it(folder, capfd):
    code, out, _ = runs.run_command(capfd, "info", folder)
    assert code == 0 and "hugging-face" in out
