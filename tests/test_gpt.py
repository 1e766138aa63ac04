"""GPT: its files and numbers against transformers, its pre-training, fine-tuning and continuations."""

import dataclasses
import inspect
import json

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from parity import array
from pretrainings import train
from random_checkpoints import refused
from runs import write_checkpoint, write_data
from trainings import QUICK, write_reviews

from bert_keras import Preprocessor, WordBPE, checkpoints
from bert_keras.checkpoints.checkpoint import variable_shapes
from bert_keras.checkpoints.look import Look, sizes
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import (
    ENCODER_OUTPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)
from bert_keras.model.encoder import BertEncoder, encoder_inputs
from bert_keras.model.heads import ClassifierHead, MaskedLMHead
from bert_keras.optimization import auxiliary
from bert_keras.optimization.auxiliary import with_auxiliary_loss
from bert_keras.tasks.finetuning.finetune import finetune
from bert_keras.tasks.pretraining.vocabulary import write_vocabulary
from bert_keras.tasks.problems.classification import TextClassification
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.pair_orders import BothOrders
from bert_keras.tasks.runs.run_folder import load_run
from bert_keras.text.vocabulary import WORD_END, Vocabulary

SMALL = {"vocab_size": 67, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 128}
CONFIG = BertConfig.named("openai-gpt", **SMALL, max_positions=18)


def gpt_features(*, seed=2):
    random = np.random.default_rng(seed)
    mask = (np.arange(16) < np.array([[16], [11], [1]])).astype("int32")
    ids = random.integers(0, CONFIG.vocab_size, mask.shape).astype("int32")
    return {INPUT_WORD_IDS: ids * mask, INPUT_MASK: mask, INPUT_TYPE_IDS: 0 * mask}


def test_heads_read_the_states_as_they_are():
    """The pooled output is the last token's state, and the logits are its products with the rows of the embeddings."""
    encoder = BertEncoder(CONFIG)
    features = gpt_features()
    outputs = encoder(features)
    states = array(outputs[SEQUENCE_OUTPUT])
    last = features[INPUT_MASK].sum(axis=1) - 1
    np.testing.assert_array_equal(array(outputs[POOLED_OUTPUT]), states[np.arange(3), last])
    head = MaskedLMHead(encoder)
    assert head.weights == []
    np.testing.assert_allclose(array(head(states)), states @ array(encoder.embedding_table).T, atol=1e-5)
    shapes = {
        name: tuple(variable.shape) for name, variable in checkpoints.collect(CONFIG, encoder).tensors.items()
    }
    assert shapes == variable_shapes(CONFIG)


def test_a_folder_is_read_as_it_was_written(tmp_path):
    checkpoint = checkpoints.collect(CONFIG, BertEncoder(CONFIG))
    assert checkpoints.write(checkpoint, tmp_path / "gpt", format="hugging-face") == ()
    fields = json.loads((tmp_path / "gpt" / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == ("openai-gpt", ["OpenAIGPTLMHeadModel"])
    again = checkpoints.read(tmp_path / "gpt")
    assert again.config == CONFIG and again.unknown == ()
    for name, tensor in checkpoint.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], tensor, err_msg=name)
    wide = dataclasses.replace(CONFIG, intermediate_size=96)
    assert wide.model_types() == ("bert_keras",)
    for form in ("google", "keras-hub", "model-garden"):
        refused("library", checkpoints.write, checkpoint, tmp_path / form, format=form)


def change(folder, *, fields=None, **tensors):
    """Changes keys of the config.json of a folder, and tensors of its file."""
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | (fields or {}))
    )
    file = folder / "model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(file) | tensors, file)


@pytest.fixture
def folder(tmp_path):
    checkpoints.write(
        checkpoints.collect(CONFIG, BertEncoder(CONFIG)), tmp_path / "gpt", format="hugging-face"
    )
    return tmp_path / "gpt"


def test_a_head_with_weights_of_its_own_is_refused(folder):
    table = safetensors.numpy.load_file(folder / "model.safetensors")["transformer.tokens_embed.weight"]
    change(folder, **{"lm_head.weight": table.copy()})
    assert checkpoints.read(folder).unknown == ()
    change(folder, **{"lm_head.weight": table + 1})
    refused("lm_head.weight and transformer.tokens_embed.weight in .* differ", checkpoints.read, folder)


@pytest.mark.parametrize(
    "fields",
    [{"resid_pdrop": 0.2}, {"embd_pdrop": 0.3, "resid_pdrop": 0.2}, {"embd_pdrop": 0.0, "resid_pdrop": None}],
)
def test_two_rates_of_dropout_are_refused(folder, fields):
    content = json.loads((folder / "config.json").read_text()) | {"embd_pdrop": 0.1} | fields
    if fields.get("embd_pdrop") is None:
        del content["embd_pdrop"]  # its default is that of transformers, 0.1
    (folder / "config.json").write_text(json.dumps(content))
    refused("embd_pdrop and resid_pdrop differ", checkpoints.read, folder)


def test_the_family_is_known_by_the_configuration_and_by_the_tensors(folder):
    wanted = {"family": "openai-gpt", "layers": 2, "hidden_size": 32}
    assert sizes(Look(folder / "model.safetensors")) == wanted
    assert "GPT (2 layers, hidden size 32)" in checkpoints.describe(folder)
    (folder / "config.json").unlink()
    assert sizes(Look(folder / "model.safetensors")) == wanted


def test_a_classifier_without_a_bias_is_written_in_the_form_of_transformers(tmp_path):
    encoder, head = BertEncoder(CONFIG), ClassifierHead(3, config=CONFIG)
    plain = checkpoints.collect(CONFIG, encoder, classifier=head)
    checkpoints.write(plain, tmp_path / "plain", format="hugging-face")
    fields = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert fields["architectures"] == ["OpenAIGPTForSequenceClassification"] and fields["num_labels"] == 3
    names = safetensors.numpy.load_file(tmp_path / "plain" / "model.safetensors")
    assert names["score.weight"].shape == (3, 32) and "score.bias" not in names
    bias = {"classifier/dense/bias": np.array([0, 1, 0], np.float32)}
    biased = dataclasses.replace(plain, tensors=plain.tensors | bias)
    checkpoints.write(biased, tmp_path / "biased", format="hugging-face")
    assert json.loads((tmp_path / "biased" / "config.json").read_text())["model_type"] == "bert_keras"
    for written, name in ((plain, "plain"), (biased, "biased")):
        again = checkpoints.read(tmp_path / name)
        assert again.unknown == () and again.tensors.keys() == written.tensors.keys()
        for tensor, values in written.tensors.items():
            np.testing.assert_array_equal(again.tensors[tensor], values, err_msg=tensor)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    output = tmp_path_factory.mktemp("gpt") / "run"
    words = "good film plot actor scene warm dull bad".split()
    lines = [" ".join(words[(i + j) % 8] for j in range(12)) for i in range(60)]
    documents = [[lines[i], lines[i + 1]] for i in range(59)]
    found = train(
        output, "gpt", documents=documents, held_out=0.2, changes={"steps": 90, "intermediate_size": 128}
    )
    return output, found


def test_pretraining_beats_unigrams(pretrained):
    """Each word follows from the word before it."""
    output, found = pretrained
    perplexity = found["measures"]["held_out_masked_lm_perplexity"]
    assert perplexity < 0.8 * found["majority_baselines"]["masked_lm_perplexity"]
    fields = json.loads((output / "config.json").read_text())
    assert (fields["model_type"], fields["architectures"]) == ("openai-gpt", ["OpenAIGPTLMHeadModel"])


def test_the_loss_of_the_language_model_is_added(pretrained, tmp_path):
    """L3 = L2 + lambda L1, of the states of every real token but the last."""
    features = gpt_features()
    encoder = BertEncoder(CONFIG, outputs=(POOLED_OUTPUT, SEQUENCE_OUTPUT))
    inputs = encoder_inputs()
    network = keras.Model(inputs, ClassifierHead(2, config=CONFIG)(encoder(inputs)[POOLED_OUTPUT]))
    trained = with_auxiliary_loss(network, encoder, weight=0.5)
    ids, mask = features[INPUT_WORD_IDS], features[INPUT_MASK]
    logits = array(MaskedLMHead(encoder)(encoder(features)[SEQUENCE_OUTPUT])).astype("float64")
    rates = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(rates[:, :-1], ids[:, 1:, None], -1)[..., 0]
    wanted = 0.5 * (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()
    for layer in encoder._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    trained(features, training=True)
    np.testing.assert_allclose(float(sum(trained.losses)), wanted, rtol=0.02)
    np.testing.assert_allclose(array(trained(features)), array(network(features)), atol=1e-6)
    assert trained.losses == []
    assert "._inbound" not in inspect.getsource(auxiliary), (
        "Keras has a public name for the tensors of a call"
    )

    hparams = dataclasses.replace(QUICK, lm_weight=0.5)
    data = write_reviews(tmp_path / "data", train=16, dev=8)
    with pytest.raises(BertKerasError, match="lm_weight 0.5 needs a language model from left to right"):
        small_finetune(data, write_checkpoint(tmp_path / "bert"), tmp_path / "none", hparams)
    results = [
        small_finetune(data, pretrained[0], tmp_path / name, one)
        for name, one in (("with", hparams), ("without", QUICK))
    ]
    assert results[0]["history"][0]["loss"] > results[1]["history"][0]["loss"] + 0.5
    fields = json.loads((tmp_path / "with" / "config.json").read_text())
    assert fields["plain_heads"] and fields["causal"]
    load_run(tmp_path / "with")


def small_finetune(data, checkpoint, output, hparams):
    task = TextClassification.open("sst2", data)
    return finetune(
        task, checkpoint=checkpoint, output=output, hparams=hparams, verbose=0, log=lambda line: None
    )


# -----------------------------------------------------------------------------------------------------------
# GPT's own vocabulary, and its forms of input


def test_the_second_row_of_a_pair_has_its_texts_the_other_way_round():
    rows = BothOrders()(
        {
            INPUT_WORD_IDS: np.array([[1, 5, 6, 2, 7, 3, 0], [1, 5, 3, 0, 0, 0, 0]], "int32"),
            INPUT_MASK: np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]], "int32"),
            INPUT_TYPE_IDS: np.array([[0, 0, 0, 0, 1, 1, 0], [0] * 7], "int32"),
        }
    )
    ids = [[1, 5, 6, 2, 7, 3, 0], [1, 7, 2, 5, 6, 3, 0], *[[1, 5, 3, 0, 0, 0, 0]] * 2]
    assert array(rows[INPUT_WORD_IDS]).tolist() == ids
    assert array(rows[INPUT_TYPE_IDS]).tolist()[1:3] == [[0, 0, 0, 1, 1, 1, 0], [0] * 7]
    assert array(rows[INPUT_MASK]).tolist()[1] == [1, 1, 1, 1, 1, 1, 0]


def test_each_choice_is_a_row_of_the_context_a_delimiter_and_the_choice():
    tokenizer = WordBPE(("<unk>", "a</w>", "b</w>", "c</w>"), ())
    raw = {"context": tf.constant(["a a"]), "endings": tf.constant([["b", "c"]])}
    found = MultipleChoice(num_choices=2).features(Preprocessor(tokenizer, seq_length=8), raw)
    start, delimiter, extract = 4, 5, 6
    rows = [[start, 1, 1, delimiter, ending, extract, 0, 0] for ending in (2, 3)]
    assert array(found[INPUT_WORD_IDS]).tolist() == [rows]


def test_a_folder_without_marks_gets_rows_for_them_and_pairs_are_read_in_both_orders(tmp_path):
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ("<unk>", *letters, *(f"{letter}</w>" for letter in letters))
    vocabulary = Vocabulary(tokens, (), lower_case=True, suffix=WORD_END)
    changes = dataclasses.asdict(CONFIG) | {"vocab_size": len(tokens), "max_positions": 40}
    folder = write_checkpoint(tmp_path / "gpt", vocabulary=vocabulary, **changes)
    task = TextClassification.open("mrpc", write_data(tmp_path / "data", "mrpc", count=16), both_orders=True)
    lines, hparams = [], dataclasses.replace(QUICK, lm_weight=0.5)
    finetune(task, checkpoint=folder, output=tmp_path / "run", hparams=hparams, verbose=0, log=lines.append)
    [line] = [line for line in "\n".join(lines).splitlines() if line.startswith("randomly initialized")]
    assert "the rows of _start_, _delimiter_, _classify_" in line
    before, after = checkpoints.read(folder), checkpoints.read(tmp_path / "run")
    assert (before.config.vocab_size, after.config.vocab_size) == (len(tokens), len(tokens) + 3)
    run = load_run(tmp_path / "run")
    assert run.task.both_orders and run.preprocess.tokenizer.special.delimiter == len(tokens) + 1
    pairs = [["one text", "another"], ["another", "one text"]]
    answers = [array(run.model(run.preprocess([one], [two]))) for one, two in pairs]
    np.testing.assert_allclose(*answers, atol=1e-6)
    for wrong in ({"name": "sst2"}, {"name": "mrpc", "pooling": "concat"}):
        with pytest.raises(BertKerasError, match="both_orders"):
            TextClassification.open(wrong.pop("name"), both_orders=True, **wrong)


def test_a_pretraining_on_its_own_vocabulary_has_the_marks_from_the_start(tmp_path):
    documents = [["the good film", "a warm plot"], ["the bad actor", "a dull scene"]] * 10
    made = write_vocabulary(documents, tmp_path / "vocab", kind="gpt-bpe", size=40)
    train(tmp_path / "run", "gpt", documents=documents, tokenizer=made.tokenizer, changes={"steps": 2})
    read = checkpoints.read(tmp_path / "run")
    assert read.config.vocab_size == made.tokenizer.vocab_size == 40
    assert checkpoints.tokenizer_of(read).digest == made.tokenizer.digest


# -----------------------------------------------------------------------------------------------------------
# Against transformers


def theirs_at_random(kind="OpenAIGPTLMHeadModel", *, seed=5):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 67, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 18}
    model = getattr(transformers, kind)(transformers.OpenAIGPTConfig(**sizes)).eval()
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            draw = random.standard_normal(parameter.shape)
            if parameter.ndim == 1:
                scaled = 0.3 * draw + (".ln_" in name and name.endswith("weight"))
            else:
                scaled = 0.5 * draw if "embed" in name else draw / np.sqrt(parameter.shape[0])
            parameter.copy_(torch.from_numpy(scaled))
    return model


def their_outputs(model, features):
    import torch

    ids, mask = (torch.from_numpy(features[name].astype("int64")) for name in (INPUT_WORD_IDS, INPUT_MASK))
    with torch.no_grad():
        found = model(ids, attention_mask=mask, output_hidden_states=True)
    return [*(one.numpy() for one in found.hidden_states[1:]), found.logits.numpy()]


@pytest.mark.parity
def test_states_and_logits_are_those_of_transformers(tmp_path):
    theirs, features = theirs_at_random(), gpt_features()
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = checkpoints.read(tmp_path / "theirs")
    assert checkpoint.unknown == () and checkpoint.config == CONFIG
    encoder = BertEncoder(CONFIG)
    report = checkpoints.assign(checkpoint, encoder, masked_lm=(head := MaskedLMHead(encoder)))
    assert report.unused == report.fresh == ()
    outputs = encoder(features)
    ours = [*map(array, outputs[ENCODER_OUTPUTS]), array(head(outputs[SEQUENCE_OUTPUT]))]
    real = features[INPUT_MASK] > 0
    for one, two in zip(ours, their_outputs(theirs, features), strict=True):
        assert np.abs(two[real]).max() > 0.3
        np.testing.assert_allclose(one[real], two[real], atol=1e-5)
    assert max(checkpoints.compare(tmp_path / "theirs").values()) < 1e-4


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["OpenAIGPTLMHeadModel", "OpenAIGPTModel", "OpenAIGPTDoubleHeadsModel"])
def test_transformers_reads_our_folders(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    theirs, features = theirs_at_random(kind), gpt_features()
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoints.write(checkpoints.read(tmp_path / "theirs"), tmp_path / "ours", format="hugging-face")
    again, loading = transformers.OpenAIGPTLMHeadModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading
    wanted = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "theirs")
    for one, two in zip(their_outputs(wanted, features), their_outputs(again, features), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parity
def test_the_classifier_is_that_of_transformers(tmp_path):
    """It reads the state of the last token before the padding; here the mask tells it, there the padding id."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs, features = theirs_at_random("OpenAIGPTForSequenceClassification"), gpt_features()
    features[INPUT_WORD_IDS] = np.maximum(features[INPUT_WORD_IDS], 1) * features[INPUT_MASK]
    theirs.config.pad_token_id = 0
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = checkpoints.read(tmp_path / "theirs")
    assert checkpoint.unknown == () and checkpoint.architecture == "ForSequenceClassification"
    encoder, head = BertEncoder(CONFIG, outputs=(POOLED_OUTPUT,)), ClassifierHead(2, config=CONFIG)
    assert checkpoints.assign(checkpoint, encoder, classifier=head).unused == ()
    ids, mask = (torch.from_numpy(features[name].astype("int64")) for name in (INPUT_WORD_IDS, INPUT_MASK))
    with torch.no_grad():
        wanted = theirs(ids, attention_mask=mask).logits.numpy()
    assert np.abs(wanted).max() > 0.3
    np.testing.assert_allclose(array(head(encoder(features)[POOLED_OUTPUT])), wanted, atol=1e-5)
    checkpoints.write(checkpoint, tmp_path / "ours", format="hugging-face")
    again = transformers.OpenAIGPTForSequenceClassification.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        np.testing.assert_array_equal(again(ids, attention_mask=mask).logits.numpy(), wanted)
