"""Checkpoints in the formats' own libraries give equal outputs, both ways."""

import dataclasses
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from parity import assert_equal, hugging_face, hugging_face_outputs, random_features, random_weights, seeded
from random_checkpoints import (
    GOLDEN,
    PIECES,
    TINY,
    random_checkpoint,
    refused,
    saves_with_keras,
    with_vocabulary,
)

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.features import POOLED_OUTPUT, SEQUENCE_OUTPUT
from bert_keras.model.heads import ChoiceHead, ClassifierHead, SpanHead, TokenHead


def test_reading_safetensors_needs_no_tensorflow(tmp_path):
    checkpoints.write(random_checkpoint(), tmp_path / "out", format="hugging-face")
    code = (
        "import sys; sys.modules['tensorflow'] = None; from bert_keras import checkpoints; "
        f"print(len(checkpoints.read({str(tmp_path / 'out')!r}).tensors), 'keras' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=GOLDEN.parents[2]
    )
    assert done.stdout.split() == [str(len(random_checkpoint().tensors)), "False"]


def test_a_bfloat16_file_is_read_in_a_fresh_process(tmp_path):
    checkpoint = random_checkpoint()
    half = {name: array.astype(ml_dtypes.bfloat16) for name, array in checkpoint.tensors.items()}
    checkpoints.write(dataclasses.replace(checkpoint, tensors=half), tmp_path / "out", format="hugging-face")
    code = (
        "from bert_keras import checkpoints; "
        f"print({{str(one.dtype) for one in checkpoints.read({str(tmp_path / 'out')!r}).tensors.values()}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=GOLDEN.parents[2])
    assert (done.stdout, done.stderr) == ("{'bfloat16'}\n", "")


PARITY = dataclasses.replace(TINY, vocab_size=67, hidden_size=32, intermediate_size=48, max_positions=16)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh"])
def test_checkpoints_of_transformers_give_equal_outputs(tmp_path, activation):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = dataclasses.replace(PARITY, activation=activation)
    ours = seeded(config)
    theirs = hugging_face(config, random_weights(ours.shapes(), seed=3))
    theirs.save_pretrained(tmp_path / "saved")
    checkpoint = checkpoints.read(tmp_path / "saved")
    assert (checkpoint.config, checkpoint.architecture) == (config, "ForPreTraining")
    report = checkpoints.assign(checkpoint, ours.encoder, masked_lm=ours.mlm, next_sentence=ours.nsp)
    assert (report.fresh, report.unused) == ((), ())
    features = random_features(config, seed=0, batch=3, length=11)
    assert_equal(ours.outputs(features), hugging_face_outputs(theirs, features), bound=1e-5)
    differences = checkpoints.compare(tmp_path / "saved")
    names = ("embeddings", "block_0", "block_1", "pooled_output", "masked_lm", "next_sentence")
    assert (*differences,) == names
    assert max(differences.values()) <= 1e-4, differences


@pytest.mark.parity
def test_our_checkpoints_give_equal_outputs_in_transformers(tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours = seeded(PARITY)
    checkpoint = checkpoints.collect(PARITY, ours.encoder, masked_lm=ours.mlm, next_sentence=ours.nsp)
    pieces = tuple(piece for piece in PIECES if piece.strip())  # transformers strips the lines of a vocab.txt
    checkpoint = with_vocabulary(checkpoint, tokens=pieces, lower_case=True)
    checkpoints.write(checkpoint, tmp_path / "saved", format="hugging-face")
    theirs, loading = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "saved", attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    features = random_features(PARITY, seed=0, batch=3, length=11)
    assert_equal(ours.outputs(features), hugging_face_outputs(theirs.eval(), features), bound=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert tokenizer.convert_tokens_to_ids(list(pieces)) == list(range(len(pieces)))
    assert tokenizer.tokenize("Unable A") == ["un", "##able", "a"]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("head", "name", "architecture"),
    [
        (lambda config: ClassifierHead(5, config=config), "classifier", "BertForSequenceClassification"),
        (lambda config: TokenHead(5, config=config), "classifier", "BertForTokenClassification"),
        (lambda config: ChoiceHead(4, config=config), "classifier", "BertForMultipleChoice"),
        (lambda config: SpanHead(config=config), "qa_outputs", "BertForQuestionAnswering"),
    ],
    ids=["classifier", "token", "choice", "span"],
)
def test_task_heads_load_into_transformers_class_for_them(tmp_path, head, name, architecture):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours, layer = seeded(PARITY), head(PARITY)
    checkpoint = checkpoints.collect(PARITY, ours.encoder, **{name: layer})
    checkpoints.write(checkpoint, tmp_path / "saved", format="hugging-face")
    assert f"Bert{checkpoints.read(tmp_path / 'saved').architecture}" == architecture
    theirs, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not loading["missing_keys"], loading
    kernel = getattr(theirs, name).weight.detach().numpy().T
    np.testing.assert_array_equal(kernel, checkpoint.tensors[f"{name}/dense/kernel"])


@pytest.mark.parity
@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda checkpoint: bk.classifier(checkpoint, ["no", "yes"]), "probabilities"),
        (lambda checkpoint: bk.classifier(checkpoint, ["no", "yes"], multi=True), "probabilities"),
        (bk.regressor, "score"),
    ],
    ids=["class", "multi", "score"],
)
def test_a_pipeline_of_transformers_gives_the_scores_of_a_run(tmp_path, make, output):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pieces = tuple(piece if piece.strip() else "x" for piece in PIECES)
    model = make(with_vocabulary(random_checkpoint(heads=()), tokens=pieces, lower_case=True))
    model.save(tmp_path / "run")
    predict = transformers.pipeline("text-classification", str(tmp_path / "run"), top_k=None)
    theirs = {row["label"]: row["score"] for row in predict(["unable a b"])[0]}
    wanted = np.ravel(model.predict(["unable a b"])[output])
    found = [theirs[label] for label in (["no", "yes"] if len(wanted) == 2 else ["LABEL_0"])]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parity
def test_transformers_refuses_what_it_would_compute_differently(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    checkpoints.write(
        random_checkpoint(dataclasses.replace(TINY, causal=True)), tmp_path / "out", format="hugging-face"
    )
    with pytest.raises(ValueError, match="bert_keras"):
        transformers.AutoModel.from_pretrained(tmp_path / "out")
    refused("no model of model_type 'bert_keras'", checkpoints.compare, tmp_path / "out")


@pytest.mark.parity
def test_real_bert_tiny_against_transformers(data_dir):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    differences = checkpoints.compare(data_dir / "weights" / "bert-tiny-splade-uncased")
    assert list(differences) == ["embeddings", "block_0", "block_1", "masked_lm"]
    assert max(differences[name] for name in ("embeddings", "block_0", "block_1")) <= 6e-5, differences
    assert differences["masked_lm"] <= 3e-4, differences  # its logits reach 31


@pytest.mark.parity
@saves_with_keras
def test_a_keras_hub_preset_made_there_computes_the_same_here(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    sizes = {"vocabulary_size": 67, "num_layers": 3, "num_heads": 4, "max_sequence_length": 16}
    theirs = keras_hub.models.BertBackbone(**sizes, hidden_dim=32, intermediate_dim=48)
    theirs.save_to_preset(str(tmp_path / "preset"))
    lines: list[str] = []
    encoder = checkpoints.load_encoder(
        tmp_path / "preset", outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT), log=lines.append
    )
    assert encoder.config.num_layers == 3
    assert "from a keras-hub checkpoint\nrandomly initialized: none\nunused: none" in lines[0]
    assert max(checkpoints.compare(tmp_path / "preset").values()) <= 1e-5
