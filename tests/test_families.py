"""RoBERTa and DistilBERT from raw strings: every task, training and exports, and the logits of transformers."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES
from runs import texts, write_distilbert, write_roberta

import bert_keras as bk
from bert_keras import ByteBPE, Preprocessor, checkpoints
from bert_keras.model import heads
from bert_keras.model.encoder import BertEncoder
from bert_keras.tasks.hparams import Sampling
from bert_keras.tasks.pretraining import instance_stream
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.task import model_inputs

SENTENCES = ["the film is very good , and the plot isn't dull !", "café\u3000 warm  scene", "", " \n"]
SENTENCES.append("\N{GRINNING FACE}s")


@dataclasses.dataclass(frozen=True)
class Family:
    """One model_type: its folder with a masked-LM head, and the start of the names of its classes in transformers."""

    model_type: str
    write: Callable
    model_class: str


FAMILIES = [Family("roberta", write_roberta, "Roberta"), Family("distilbert", write_distilbert, "DistilBert")]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.model_type)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return family.write(tmp_path_factory.mktemp(family.model_type), hidden_dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def preprocess(folder):
    return Preprocessor(checkpoints.load_tokenizer(folder), seq_length=40, pad_to_longest=True)


@pytest.mark.parametrize("title", CASES)
def test_every_task_reads_raw_strings(preprocess, folder, title):
    task, checkpoint = CASES[title], checkpoints.read(folder)
    encoder = BertEncoder(checkpoint.config, outputs=task.outputs)
    checkpoints.assign(checkpoint, encoder, fresh=("pooler",))
    raw = {}
    for name, spec in task.signature().items():
        rows = SENTENCES if spec.shape.rank == 1 else [SENTENCES[: spec.shape[1]]] * len(SENTENCES)
        raw[name] = tf.constant(rows)
    features = task.features(preprocess, raw)
    answers = task.decode(task.model(encoder)(model_inputs(task, features)), features, raw)
    assert answers and all(len(value) == len(SENTENCES) for value in answers.values())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_classifier_is_trained_saved_and_exported(family, folder, tmp_path):
    """The export compares its answers with those of a fresh process, before it is written."""
    given = texts(16, seed=0)
    model = bk.classifier(folder, ["bad", "good"])
    model.compile(learning_rate=1e-3)
    model.fit(given, [int("good" in text) for text in given], batch_size=8, epochs=1, verbose=0)
    predicted = model.predict(given, verbose=0)["probabilities"]
    model.save(tmp_path / "model.keras")
    again = bk.load(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(given, verbose=0)["probabilities"], predicted)
    model.export(tmp_path / "export", target="tfserving-2.10")
    model.save(tmp_path / "run")
    fields = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == (
        family.model_type,
        [f"{family.model_class}ForSequenceClassification"],
    )
    again = bk.load(tmp_path / "run").predict(given, verbose=0)["probabilities"]
    np.testing.assert_allclose(again, predicted, atol=1e-6)


# -----------------------------------------------------------------------------------------------------------
# RoBERTa's byte-level vocabulary in fill-mask and in pre-training


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """The preprocessor of a RoBERTa."""
    tokenizer = checkpoints.load_tokenizer(write_roberta(tmp_path_factory.mktemp("bytes")))
    return Preprocessor(tokenizer, seq_length=40, pad_to_longest=True)


def test_masks_take_the_space_before_them(roberta):
    """Both names of a mask mean the same, and the filled text has the space of the token."""
    tokenizer, task = roberta.tokenizer, FillMask(top_k=2)
    reference = ByteBPE(tokenizer.vocabulary, tokenizer.merges, special_tokens_in_text=True)
    given = ["the film \n <mask> good", "<mask> film", "(<mask>)", "good<mask><mask> .", "no"]
    raw = {"text": tf.constant(given)}
    features = task.features(roberta, raw)
    for name, values in Preprocessor(reference, seq_length=40, pad_to_longest=True)(given).items():
        np.testing.assert_array_equal(features[name], values, err_msg=name)
    bert = {"text": tf.constant([text.replace("<mask>", "[MASK]") for text in given])}
    np.testing.assert_array_equal(task.features(roberta, bert)["input_word_ids"], features["input_word_ids"])

    def filled(token):
        best = tokenizer.vocabulary.index(token)
        logits = tf.one_hot([[best] * features["masked_lm_positions"].shape[1]] * 5, tokenizer.vocab_size) * 9
        return [text.decode() for text in task.decode(logits, features, raw)["filled"].numpy()]

    assert filled("Ġgood") == ["the film \n good good", "good film", "(good)", "goodgoodgood .", "no"]
    assert filled("s") == ["the films good", "s film", "(s)", "goodss .", "no"]


def test_an_answer_has_the_space_that_its_mask_takes(roberta):
    raw = {"text": tf.constant(["the <mask> is", "<mask> is"]), "answer": tf.constant(["film", "t"])}
    features = FillMask().features(roberta, raw)
    ids = features["masked_lm_ids"].numpy()[:, 0]
    assert [roberta.tokenizer.vocabulary[id_] for id_ in ids] == ["Ġfilm", "t"]


def test_instances_of_two_segments_have_room_for_both_separators(roberta):
    documents = [texts(30, seed=seed) for seed in range(3)]
    settings = Sampling(seq_length=32, short_seq_prob=0.0, dupe_factor=1)
    tokenizer = roberta.tokenizer
    maker = instance_stream.InstanceMaker(tokenizer=tokenizer, settings=settings, segment=None)
    made, *_ = maker.instances(documents, seed=[0])
    ids = np.concatenate([batch["input_word_ids"] for batch in instance_stream.Packer(maker)(made)])
    assert ((ids == tokenizer.special.end).sum(axis=1) == 3).all()
    assert max(np.diff(made.places).sum(axis=(1, 2))) == 32 - 4


# -----------------------------------------------------------------------------------------------------------
# transformers

# Class -> the name of our head, and the head. The first two read the pooler.
HEADS = {
    "ForSequenceClassification": (
        "classifier",
        lambda encoder: heads.ClassifierHead(3, config=encoder.config),
    ),
    "ForMultipleChoice": ("classifier", lambda encoder: heads.ChoiceHead(2, config=encoder.config)),
    "ForTokenClassification": ("classifier", lambda encoder: heads.TokenHead(3, config=encoder.config)),
    "ForQuestionAnswering": ("qa_outputs", lambda encoder: heads.SpanHead(config=encoder.config)),
    "ForMaskedLM": ("masked_lm", heads.MaskedLMHead),
}
POOLED = ("ForSequenceClassification", "ForMultipleChoice")


def their_model(transformers, family, folder, architecture):
    """A model of transformers at random, with weights large enough that a wrong layout shows, and the files of `folder`."""
    import torch

    labels = 2 if architecture == "ForQuestionAnswering" else 3
    config = getattr(transformers, f"{family.model_class}Config").from_pretrained(folder, num_labels=labels)
    model = getattr(transformers, family.model_class + architecture)(config).eval()
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name and "layer_norm" not in name:
                parameter.copy_(torch.from_numpy(draw.normal(0, 0.2, tuple(parameter.shape))))
        model.tie_weights()
    return model


def our_logits(checkpoint, architecture, features):
    encoder = BertEncoder(checkpoint.config)
    encoder(features)
    name, make = HEADS[architecture]
    head, fresh = make(encoder), () if architecture in POOLED else ("pooler",)
    report = checkpoints.assign(checkpoint, encoder, fresh=fresh, **{name: head})
    assert report.unused == () and {name.split("/")[0] for name in report.fresh} == {*fresh}
    outputs = encoder(features)
    if name == "masked_lm":
        rows, length = features["input_word_ids"].shape
        return outputs, head(outputs["sequence_output"], np.tile(np.arange(length, dtype="int32"), (rows, 1)))
    return outputs, head(outputs["pooled_output" if architecture in POOLED else "sequence_output"])


@pytest.mark.parity
@pytest.mark.parametrize("architecture", HEADS)
def test_raw_strings_give_the_logits_of_transformers(family, folder, tmp_path, architecture):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from parity import assert_equal

    theirs = their_model(transformers, family, folder, architecture)
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path / "theirs")
    checkpoint = checkpoints.read(tmp_path / "theirs")
    preprocess = Preprocessor(checkpoints.tokenizer_of(checkpoint), seq_length=40, pad_to_longest=True)
    pairs = [(one, two) for one in SENTENCES for two in SENTENCES if one and two][:12]
    features = preprocess(*zip(*pairs, strict=True))
    how = {"padding": True, "truncation": True, "max_length": 40, "return_tensors": "pt"}
    encoded = tokenizer(*map(list, zip(*pairs, strict=True)), **how)
    np.testing.assert_array_equal(features["input_word_ids"], encoded["input_ids"])
    np.testing.assert_array_equal(features["input_mask"], encoded["attention_mask"])
    if not checkpoint.config.has_types:
        encoded.pop("token_type_ids", None)
    choices = architecture == "ForMultipleChoice"
    with torch.no_grad():
        given = {name: value.reshape(6, 2, -1) if choices else value for name, value in encoded.items()}
        outputs = theirs(**given)
        states = theirs.base_model(**encoded).last_hidden_state
    real = encoded["attention_mask"].numpy() > 0
    names = ("start_logits", "end_logits") if "QuestionAnswering" in architecture else ("logits",)
    ours, logits = our_logits(checkpoint, architecture, features)
    found = [*logits] if len(names) == 2 else [logits]

    def kept(value):
        value = np.asarray(value)
        return [value[real] if value.shape[:2] == real.shape else value]

    wanted = {name: kept(outputs[name]) for name in names} | {"states": kept(states)}
    got = {name: kept(value) for name, value in zip(names, found, strict=True)}
    assert_equal(got | {"states": kept(ours["sequence_output"])}, wanted, bound=1e-5)
    # And back: transformers loads what we write, with every tensor.
    checkpoints.write(checkpoint, tmp_path / "ours", format="hugging-face")
    again, loading = getattr(transformers, family.model_class + architecture).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    with torch.no_grad():
        for name in names:
            np.testing.assert_array_equal(again.eval()(**given)[name], outputs[name])


@pytest.mark.parity
def test_the_tokenizer_of_transformers_reads_our_folder_and_we_read_its(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = write_roberta(tmp_path / "roberta")
    ours = checkpoints.load_tokenizer(folder)
    given = [*SENTENCES, *texts(50, seed=3), "x <mask>"]
    for name in ("AutoTokenizer", "RobertaTokenizer", "RobertaTokenizerFast"):
        theirs = getattr(transformers, name).from_pretrained(folder)
        special = ByteBPE(ours.vocabulary, ours.merges, special_tokens_in_text=True)
        assert theirs(given, add_special_tokens=False)["input_ids"] == special.tokenize(given).to_list()
        assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.special.padding, ours.special.mask)
        theirs.save_pretrained(tmp_path / name)
        assert checkpoints.load_tokenizer(tmp_path / name).digest == ours.digest
