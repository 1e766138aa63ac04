"""Checkpoints with a head of a task: the head, its labels and its task come with the folder.

The values are those of NumPy on an encoder's states, and of transformers' models and pipelines.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from random_checkpoints import ERF, KINDS, SIZES, random_checkpoint, refused
from runs import VOCABULARY, run_command

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.features import SEQUENCE_OUTPUT
from bert_keras.text.vocabulary import Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

TEXTS = ["the film is good", "warm, but the actor's plot", "u.s. dull"]
PAIRS = {"question": ["the film", "a plot"], "context": ["is good and dull .", "the actor is warm"]}
CHOICES = {"context": ["the film", "dull"], "endings": [["good actor", "is a plot ."], ["very warm", "u.s."]]}
MASKED = ["the film is [MASK] .", "[MASK] actor, very warm"]
LETTERS = ("a", "b", "c")

# -----------------------------------------------------------------------------------------------------------
# Against NumPy: the checkpoints are ours


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


POOLERS = {
    "bert": np.tanh,
    "albert": np.tanh,
    "electra": gelu,
    "roberta": np.tanh,
    "distilbert": lambda x: np.maximum(x, 0),
}
FAMILIES = KINDS | {
    "electra": KINDS["electra"] | {"pooler_activation": "gelu_erf"},
    "roberta": ERF | {"position_offset": 1, "type_vocab_size": 1},  # [PAD] is the first token
}


def write(
    folder, kind="bert", *, architecture="ForSequenceClassification", outputs=3, head="classifier", **fields
):
    """A folder of one family with a head of random numbers."""
    config = BertConfig(**(SIZES | {"max_positions": 40, "vocab_size": len(VOCABULARY)} | FAMILIES[kind]))
    source = random_checkpoint(config, heads=(head,))
    if head == "classifier":
        sized = {
            f"{head}/dense/{part}": source.tensors[f"{head}/dense/{part}"] for part in ("kernel", "bias")
        }
        tensors = source.tensors | {name: tensor[..., :outputs] for name, tensor in sized.items()}
        source = dataclasses.replace(source, tensors=tensors)
    vocabulary = Vocabulary(VOCABULARY, lower_case=True)
    named = {"architecture": architecture, "vocabulary": vocabulary, **fields}
    checkpoints.write(dataclasses.replace(source, **named), folder, format="hugging-face")
    return folder


def expected(folder, model, texts, *, kind="bert"):
    """The logits of a classifier by NumPy, float [B, C]."""
    encoder, source = bk.load_encoder(folder, outputs=(SEQUENCE_OUTPUT,)), checkpoints.read(folder)
    first = np.asarray(encoder(model.preprocess(texts))[SEQUENCE_OUTPUT])[:, 0].astype(float)
    pooled = POOLERS[kind](first @ source.tensors["pooler/kernel"] + source.tensors["pooler/bias"])
    return pooled @ source.tensors["classifier/dense/kernel"] + source.tensors["classifier/dense/bias"]


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.long
@pytest.mark.parametrize("kind", POOLERS)
def test_the_classifier_of_each_family(kind, tmp_path):
    folder = write(tmp_path / "there", kind, labels=LETTERS)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == kind and config["architectures"][0].endswith("ForSequenceClassification")
    model = bk.load(folder)
    logits = expected(folder, model, TEXTS, kind=kind)
    predicted = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(predicted["probabilities"], softmax(logits), atol=1e-5)
    assert predicted["label"].tolist() == [LETTERS[i] for i in logits.argmax(-1)]
    np.testing.assert_allclose(bk.classifier(folder)(TEXTS), logits, atol=1e-4)


# problem_type, outputs, other keys of config.json -> the column of the answer, and its function of the logits.
MEANINGS = {
    "several": (None, 3, {}, "probabilities", softmax),
    "one of several": ("single_label_classification", 3, {}, "probabilities", softmax),
    "any of several": ("multi_label_classification", 3, {}, "probabilities", sigmoid),
    "one": (None, 1, {}, "score", lambda logits: logits[:, 0]),
    "a score": ("regression", 1, {}, "score", lambda logits: logits[:, 0]),
    "any of one": ("multi_label_classification", 1, {}, "probabilities", sigmoid),
    "class of one": ("single_label_classification", 1, {}, "probabilities", sigmoid),
    "sigmoid": (None, 1, {"function_to_apply": "sigmoid"}, "probabilities", sigmoid),
    "none": (None, 1, {"function_to_apply": "none"}, "score", lambda logits: logits[:, 0]),
    "cross-encoder": (
        None, 1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "probabilities", sigmoid,
    ),
    "raw cross-encoder": (
        None, 1, {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "score",
        lambda logits: logits[:, 0],
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", MEANINGS)
def test_the_meaning_of_the_outputs(case, tmp_path, capsys):
    problem_type, outputs, more, column, function = MEANINGS[case]
    folder = write(tmp_path / "there", outputs=outputs, labels=LETTERS[:outputs], problem_type=problem_type)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    model = bk.load(folder)
    assert f"(problem_type: {problem_type or 'not given'}" in capsys.readouterr().err
    logits = expected(folder, model, TEXTS)
    np.testing.assert_allclose(model.predict(TEXTS, verbose=0)[column], function(logits), atol=1e-4)


def test_a_regression_of_several_outputs_is_refused(tmp_path):
    folder = write(tmp_path / "there", labels=LETTERS, problem_type="regression")
    refused("problem_type is regression and the classifier has 3 outputs", bk.load, folder)


# labels in the file, given labels, other arguments -> the columns of the file's logits (None for a new head), the line.
RULES = {
    "left out": (LETTERS, None, {}, [0, 1, 2], "labels: a, b, c"),
    "equal": (LETTERS, ["a", "b", "c"], {}, [0, 1, 2], ""),
    "in another order": (LETTERS, ["c", "a", "b"], {}, [2, 0, 1], ""),
    "in upper case": (LETTERS, ["B", "A", "C"], {}, [1, 0, 2], ""),
    "unnamed": (None, ["x", "y", "z"], {}, [0, 1, 2], "LABEL_0 is x, LABEL_1 is y, LABEL_2 is z"),
    "unnamed, left out": (None, None, {}, [0, 1, 2], "labels: LABEL_0, LABEL_1, LABEL_2"),
    "unnamed, others": (None, ["x", "y"], {}, None, "randomly initialized: classifier (the checkpoint's labels are LABEL_0"),
    "others": (LETTERS, ["a", "b", "x"], {}, None, "randomly initialized: classifier (the checkpoint's labels are a, b, c"),
    "fewer": (LETTERS, ["a", "b"], {}, None, "randomly initialized: classifier"),
    "renewed": (LETTERS, ["a", "b", "c"], {"keep_head": False}, None, "randomly initialized: classifier;"),
    "another reading": (LETTERS, None, {"pooling": "concat"}, None, "randomly initialized: concat_classifier"),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
def test_the_rule_that_keeps_a_head(case, tmp_path, capsys):
    there, labels, arguments, columns, line = RULES[case]
    folder = write(tmp_path / "there", labels=there)
    model = bk.classifier(folder, labels, **arguments)
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == bool(line), said
    if labels is not None:
        assert list(model.problem.label_names) == labels
    logits, started = expected(folder, model, TEXTS), model(TEXTS).numpy()
    if columns is not None:
        np.testing.assert_allclose(started, logits[:, columns], atol=1e-4)
        return
    assert not any(np.allclose(started[:, 0], logits[:, i], atol=0.1) for i in range(3))
    if not arguments:
        refused("leave keep_head out", bk.classifier, folder, labels, keep_head=True)


# tags in the file, given entities -> the tags of the model, True for the file's own head.
TAGS = {
    "left out": (("I-PER", "O", "B-PER"), None, ("I-PER", "O", "B-PER"), True),
    "raw, left out": (("PER", "LOC", "O"), None, ("PER", "LOC", "O"), True),
    "the same types": (("I-PER", "O", "B-PER"), ["PER"], ("I-PER", "O", "B-PER"), True),
    "unnamed": (None, ["PER"], ("O", "B-PER", "I-PER"), True),
    "other types": (("I-PER", "O", "B-PER"), ["LOC"], ("O", "B-LOC", "I-LOC"), False),
}


@pytest.mark.long
@pytest.mark.parametrize("case", TAGS)
def test_the_tags_of_a_checkpoint(case, tmp_path, capsys):
    there, entities, tags, kept = TAGS[case]
    folder = write(tmp_path / "there", architecture="ForTokenClassification", labels=there)
    model = bk.tagger(folder, entities)
    assert model.problem.label_names == tags
    assert ("randomly initialized: classifier" in capsys.readouterr().err) is not kept
    source, encoder = checkpoints.read(folder), bk.load_encoder(folder, outputs=(SEQUENCE_OUTPUT,))
    states = np.asarray(encoder(model.preprocess(["the film"]))[SEQUENCE_OUTPUT])
    logits = states @ source.tensors["classifier/dense/kernel"] + source.tensors["classifier/dense/bias"]
    assert np.allclose(model(["the film"]), logits, atol=1e-4) is kept


def test_what_starts_at_random_is_named(tmp_path, capsys):
    """Pre-training without sentence pairs trains no pooler."""
    source = random_checkpoint(heads=("masked_lm",))
    bare = {name: tensor for name, tensor in source.tensors.items() if not name.startswith("pooler/")}
    checkpoints.write(dataclasses.replace(source, tensors=bare), tmp_path / "there", format="hugging-face")
    bk.classifier(tmp_path / "there", ["a", "b"], seq_length=8)
    assert capsys.readouterr().err == "randomly initialized: pooler, classifier; train before you predict\n"


def test_a_checkpoint_without_a_head_names_what_to_use(tmp_path):
    folder = write(tmp_path / "there", head="", architecture=None)
    refused(r"no head.*load_encoder.*classifier\(checkpoint, labels=", bk.load, folder, named=str(folder))
    refused("no head of text-classification.*give labels", bk.classifier, folder)
    refused("no head of tagging.*give entities", bk.tagger, folder)


@pytest.mark.long
def test_a_choice_head_of_electra_that_reads_otherwise_is_refused(tmp_path):
    folder = write(tmp_path / "there", "electra", architecture="ForMultipleChoice", outputs=1)
    assert bk.chooser(folder, 2).predict(CHOICES, verbose=0)["probabilities"].shape == (2, 2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"summary_type": "mean"}))
    refused("summary_type is 'mean', which changes the numbers of ElectraForMultipleChoice", bk.load, folder)


# A checkpoint, the texts, and arguments of the functions that load it.
FORMS = {
    "classes": ({"labels": LETTERS, "kind": "electra"}, {"text": TEXTS}),
    "replaced": (
        {"head": "replaced_token", "architecture": "ForPreTraining", "kind": "electra"},
        {"text": TEXTS},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", ["classes", pytest.param("replaced", marks=pytest.mark.slow)])
def test_runs_keras_files_exports_and_commands_answer_the_same(case, tmp_path, forked_answers):
    made, texts = FORMS[case]
    folder = write(tmp_path / "there", **made)
    model = bk.load(folder)
    answers = model.predict(texts, verbose=0)
    model.save(tmp_path / "m.keras")
    model.save(tmp_path / "run")
    again = {name: bk.load(tmp_path / name).predict(texts, verbose=0) for name in ("m.keras", "run")}
    served = bk.load(model.export(tmp_path / "served")).signatures["serving_default"]
    inputs = {name: tf.constant(values) for name, values in texts.items()}
    again["export"] = {name: np.asarray(values) for name, values in served(**inputs).items()}
    for form, others in again.items():
        for name, values in answers.items():
            given = others[name].astype(str) if others[name].dtype == object else others[name]
            if values.dtype == object:
                assert [*map(str, given.ravel())] == [*map(str, values.ravel())], (form, name)
            else:
                np.testing.assert_allclose(given, values, atol=1e-5, err_msg=f"{form}: {name}")


@pytest.mark.long
def test_commands_take_a_checkpoint_alone(tmp_path, capfd):
    """The task, the labels and the numbers are those of the checkpoint."""
    folder = write(tmp_path / "there", labels=LETTERS)
    answers = bk.load(folder).predict(TEXTS, verbose=0)
    file = tmp_path / "texts.jsonl"
    rows = [{"review": text, "stars": label} for text, label in zip(TEXTS, answers["label"], strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    of = ("--checkpoint", folder, "--text-column", "review")
    code, out, err = run_command(capfd, "predict", *of, "--input", file, "--format", "jsonl")
    assert code == 0 and "labels: a, b, c" in err, err
    given = [json.loads(line) for line in out.splitlines()]
    np.testing.assert_allclose([row["probabilities"] for row in given], answers["probabilities"], atol=1e-5)
    code, out, err = run_command(capfd, "evaluate", *of, "--label-column", "stars", "--data", file, "--json")
    assert (code, json.loads(out)["validation"]) == (0, {"accuracy": 1.0}), err
    code, _, err = run_command(capfd, "predict", *of, "--n-best", "3", "--input", file)
    assert code == 1 and "--n-best does not apply to the checkpoint's task, text-classification" in err


# -----------------------------------------------------------------------------------------------------------
# Against transformers: the checkpoints are its own

PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *"good bad warm dull film plot actor scene the is and very . , ' -".split(),
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
)
SIZE = {"vocab_size": len(PIECES), "max_position_embeddings": 144, "initializer_range": 0.3}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
THEIRS = {
    "Bert": WIDE,
    "Albert": WIDE | {"embedding_size": 16},
    "Electra": WIDE | {"embedding_size": 16},
    "Roberta": WIDE | {"pad_token_id": 0, "type_vocab_size": 2},
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48},
}
SPAN_TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def theirs(folder, family, kind, labels=LETTERS, **more):
    """A folder that transformers writes, its model and its tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    config = getattr(transformers, f"{family}Config")(**SIZE, **THEIRS[family], **named, **more)
    model = getattr(transformers, family + kind)(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    return folder, model, tokenizer


def their_logits(model, tokenizer, *texts):
    import torch

    given = tokenizer(*texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**given), given["attention_mask"].numpy() > 0


def pipe(kind, model, tokenizer, **more):
    import transformers

    return transformers.pipeline(kind, model=model, tokenizer=tokenizer, device="cpu", **more)


THEIR_TYPES = (None, "single_label_classification", "multi_label_classification")
EACH = [(family, THEIR_TYPES[i % 3]) for i, family in enumerate(THEIRS)]


@pytest.mark.parity
@pytest.mark.parametrize(("family", "problem_type"), EACH)
def test_texts_as_transformers_classifies_them(family, problem_type, tmp_path):
    folder, model, tokenizer = theirs(
        tmp_path / "there", family, "ForSequenceClassification", problem_type=problem_type
    )
    found = pipe("text-classification", model, tokenizer, top_k=None)(TEXTS)
    wanted = [[{one["label"]: one["score"] for one in row}[label] for label in LETTERS] for row in found]
    predicted = bk.classifier(folder).predict(TEXTS, verbose=0)
    np.testing.assert_allclose(predicted["probabilities"], wanted, atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "tags"),
    [
        ("Bert", SPAN_TAGS), pytest.param("Albert", ("PER", "LOC", "O"), marks=pytest.mark.slow),
        pytest.param("Electra", ("I-PER", "O", "B-PER", "I-LOC"), marks=pytest.mark.slow),
        pytest.param("Roberta", SPAN_TAGS, marks=pytest.mark.slow), ("DistilBert", ("NOUN", "VERB", "DET")),
        ("Bert", ("O", "B-PER", "I-PER", "L-PER", "U-PER")),
    ],
)  # fmt: skip
def test_entities_as_transformers_finds_them(family, tags, tmp_path):
    texts = [*TEXTS, "the actor is very very good - bad-ish , u.s. film", "a"]
    folder, model, tokenizer = theirs(tmp_path / "there", family, "ForTokenClassification", tags)
    found = pipe("token-classification", model, tokenizer, aggregation_strategy="first")(texts)
    predicted = bk.tagger(folder).predict(texts, verbose=0)
    columns = ("entity_label", "entity_start_byte", "entity_end_byte", "entity_score")
    for row, entities in enumerate(found):
        given = [one for one in zip(*(predicted[name][row] for name in columns), strict=True) if one[1] >= 0]
        assert [one[:3] for one in given] == [
            (one["entity_group"], one["start"], one["end"]) for one in entities
        ]
        np.testing.assert_allclose([one[3] for one in given], [one["score"] for one in entities], atol=1e-5)


def best_span(start, end, mask, types, most):
    """The first and the last position of the best answer, by SQuAD's rules: in the context, in order, not too long."""
    spans = [
        (start[i] + end[j], i, j)
        for i in range(len(start))
        for j in range(i, min(i + most, len(start)))
        if mask[i] and mask[j] and types[i] and types[j]
    ]
    return max(spans)[1:]


@pytest.mark.parity
@pytest.mark.parametrize("family", THEIRS)
def test_spans_choices_and_masks_as_transformers_scores_them(family, tmp_path):
    folder, model, tokenizer = theirs(tmp_path / "answers", family, "ForQuestionAnswering", ("a", "b"))
    answerer = bk.load(folder)
    wanted, real = their_logits(model, tokenizer, PAIRS["question"], PAIRS["context"])
    start, end = answerer(PAIRS).numpy().transpose(1, 0, 2)  # from [B, 2, S]
    for given, logits in ((start, wanted.start_logits), (end, wanted.end_logits)):
        np.testing.assert_allclose(given[real], logits.numpy()[real], atol=1e-5)
    given = tokenizer(PAIRS["question"], PAIRS["context"], padding=True, return_offsets_mapping=True)
    predicted = answerer.predict(PAIRS, verbose=0)
    for row, context in enumerate(PAIRS["context"]):
        context_only = [i == 1 for i in given.sequence_ids(row)]
        first, last = best_span(
            wanted.start_logits.numpy()[row], wanted.end_logits.numpy()[row], real[row], context_only, 30
        )
        offsets = given["offset_mapping"][row]
        assert predicted["answer"][row] == context[offsets[first][0] : offsets[last][1]]

    folder, model, tokenizer = theirs(tmp_path / "choices", family, "ForMultipleChoice")
    import torch

    pairs = [(context, end) for context, ends in zip(*CHOICES.values(), strict=True) for end in ends]
    given = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = model(**{name: value.view(2, 2, -1) for name, value in given.items()}).logits.numpy()
    np.testing.assert_allclose(bk.chooser(folder, 2)(CHOICES), wanted, atol=1e-5)

    folder, model, tokenizer = theirs(tmp_path / "masks", family, "ForMaskedLM")
    found = pipe("fill-mask", model, tokenizer, top_k=5)(MASKED)
    predicted = bk.load(folder).predict(MASKED, verbose=0)
    assert predicted["mask_tokens"][:, 0].tolist() == [[one["token_str"] for one in row] for row in found]
    scores = [[one["score"] for one in row] for row in found]
    np.testing.assert_allclose(predicted["mask_scores"][:, 0], scores, atol=1e-5)


@pytest.mark.parity
def test_replaced_tokens_as_transformers_scores_them(tmp_path):
    folder, model, tokenizer = theirs(tmp_path / "there", "Electra", "ForPreTraining")
    wanted, real = their_logits(model, tokenizer, TEXTS)
    ours = bk.replaced_tokens(folder)
    np.testing.assert_allclose(ours(TEXTS).numpy()[real], wanted.logits.numpy()[real], atol=1e-5)
    scores = sigmoid(wanted.logits.numpy()[0][1 : real[0].sum() - 1])
    np.testing.assert_allclose(
        ours.predict(TEXTS, verbose=0)["token_score"][0, : len(scores)], scores, atol=1e-5
    )
