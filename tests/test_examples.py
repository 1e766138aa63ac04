"""The scripts of examples/, each run in a process of its own on a small checkpoint and small files."""

import json

import forked
import keras
import numpy as np
import pytest
import runs
import tensorflow as tf

import bert_keras as bk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
EXAMPLES = {file.name: file for file in (runs.ROOT / "examples").glob("*.py")}
TEXTS = runs.texts(48, seed=3)
PEOPLE = [["the", "actor", "is", "good"], ["bad", "plot", "and", "dull"]] * 12
TAGS = [["O", "B-PER", "O", "O"], ["O", "B-LOC", "I-LOC", "O"]] * 12

# The thread of tf.data's autotuning can hold up each epoch for half a minute: a reader would copy that.
BEFORE = """
import keras, tensorflow
keras.utils.set_random_seed(0)
fit = keras.Model.fit
def checked_fit(self, x=None, *arguments, **keywords):
    assert not isinstance(x, tensorflow.data.Dataset) or x.options().autotune.enabled is False
    return fit(self, x, *arguments, **keywords)
keras.Model.fit = checked_fit
"""


@pytest.fixture
def run(tmp_path):
    """Runs an example in a folder with a checkpoint and returns what it printed."""
    sizes = {"max_positions": 512, "initializer_range": 0.02}

    def run(name, *files, num_layers=1, **changes):
        runs.write_checkpoint(tmp_path / "checkpoint", num_layers=num_layers, **sizes)
        code = BEFORE + EXAMPLES[name].read_text()
        for old, new in changes.values():
            assert old in code
            code = code.replace(old, new)
        (tmp_path / name).write_text(code)
        done = forked.run(tmp_path / name, "checkpoint", *files, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def test_each_example_has_under_40_lines():
    assert len(EXAMPLES) == 9
    assert {name for name, file in EXAMPLES.items() if len(file.read_text().splitlines()) >= 40} == set()


def test_classify(run, tmp_path):
    rows = [f'"{text}, {text}",{"good" if "good" in text else "bad"}' for text in TEXTS]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    printed = run("classify.py", "reviews.csv")
    model = bk.load(tmp_path / "classifier.keras")
    assert model.problem.label_names == ("bad", "good")
    served = tf.saved_model.load(str(tmp_path / "served/classifier/1")).signatures["serving_default"]
    answer = served(text=tf.constant([TEXTS[0]]))["label"].numpy()[0].decode()
    assert model.predict([TEXTS[0]], verbose=0)["label"][0] == answer and "served/classifier/1" in printed


def test_answer_questions_measures_all_answers_of_a_question(run, tmp_path):
    context = "good very dull"
    spans = ["good", "very", "dull", "good very", "very dull", context]
    golds = [{"text": span, "answer_start": context.index(span)} for span in spans]
    for name, count in {"train": 1, "dev": len(spans)}.items():
        rows = [
            (golds[i % 6 :] + golds[: i % 6])[:count] for i in range(12)
        ]  # each span is the first of two rows
        questions = [{"id": str(i), "question": "the film", "answers": row} for i, row in enumerate(rows)]
        written = {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(written))
    printed = run("answer_questions.py", "train.json", "dev.json")
    assert "'exact_match': 100.0" in printed and printed.count("->") == 5
    assert (tmp_path / "question_answerer.keras").is_file()


def test_bilstm_on_frozen_bert(run, tmp_path):
    blocks = ["\n".join(map(" ".join, zip(*pair, strict=True))) for pair in zip(PEOPLE, TAGS, strict=True)]
    (tmp_path / "words.txt").write_text("\n\n".join(blocks) + "\n")
    small = {"units": ("units=768", "units=16"), "rate": ("rate=1e-3", "rate=2e-2")}
    small["epochs"] = ("epochs=10, validation_split=0.1", "epochs=40")  # of one step each
    printed = run("bilstm_on_frozen_bert.py", "words.txt", num_layers=4, **small)
    assert "O B-PER O O" in printed, "it learned the first sentence"
    model = bk.load(tmp_path / "tagger.keras")
    before = bk.load_encoder(tmp_path / "checkpoint", outputs=["embedding_output", "encoder_outputs"])
    for old, new in zip(before.weights, model.encoder.weights, strict=True):
        np.testing.assert_array_equal(old, new, err_msg=old.path)  # the encoder was frozen
    served = tf.saved_model.load(str(tmp_path / "served/tagger/1")).signatures["serving_default"]
    assert served(text=tf.constant(["the actor is good"]))["entity_label"].numpy().tolist() == [[b"PER"]]


def test_continue_pretraining(run, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join([*TEXTS, ""]))
    run("continue_pretraining.py", "text.txt", "continued")
    old, new = (bk.load_encoder(tmp_path / name).get_weights() for name in ("checkpoint", "continued"))
    assert any(np.abs(a - b).max() > 1e-6 for a, b in zip(old, new, strict=True)), "it trained"
    model = bk.masked_lm(tmp_path / "continued")
    assert model.predict(["the [MASK] is"], verbose=0)["mask_tokens"].shape == (1, 1, 5)


def test_continue_pretraining_refuses_a_folder_with_files_before_it_reads_anything(tmp_path):
    done = forked.run(
        EXAMPLES["continue_pretraining.py"], "missing", "missing.txt", tmp_path.parent, cwd=tmp_path
    )
    assert done.returncode == 1 and f"TakenError: {tmp_path.parent} is there already" in done.stderr


def test_two_towers(run, tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    printed = run("two_towers.py", "pairs.tsv")
    assert [line.split(" -> ")[0] for line in printed.splitlines() if " -> " in line] == TEXTS[:5]
    tower = keras.models.load_model(tmp_path / "tower.keras")
    preprocess = bk.Preprocessor(bk.load_tokenizer(tmp_path / "checkpoint"), seq_length=16)
    vectors = tower.predict(preprocess(tf.constant(TEXTS)), verbose=0)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_semantic_search(run, tmp_path):
    (tmp_path / "manual.txt").write_text("\n\n".join(TEXTS[:9]))
    (tmp_path / "faq.txt").write_text(f"the good\nactor !\n\n{TEXTS[9]}\n")
    printed = run("semantic_search.py", "the good actor !", "manual.txt", "faq.txt")
    assert "1.00 faq.txt: the good actor !\n" in printed and "[1] the good actor !" in printed
    assert printed.rstrip().endswith("Question: the good actor !")


def test_near_duplicates(run, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(["the good actor", "The good actor", *TEXTS[:6]]))
    printed = run("near_duplicates.py", "texts.txt")
    assert "1.00 the good actor = The good actor" in printed and "group 0, " in printed


def test_few_shot(run, tmp_path):
    rows = [f"{text},{'good' if 'good' in text else 'bad'}" for text in TEXTS]
    (tmp_path / "few.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    printed = run("few_shot.py", "few.csv", TEXTS[0])
    assert "accuracy on texts left out: " in printed
    assert printed.rstrip().endswith(f"{'good' if 'good' in TEXTS[0] else 'bad'}: {TEXTS[0]}")


def test_mirrored(run, tmp_path):
    fetched = "from tensorflow_datasets.testing import mock_data\nmock = mock_data(num_examples=40)\nmock.__enter__()\n"
    run("mirrored.py", data=("import bert_keras as bk\n", f"import bert_keras as bk\n{fetched}"))
    assert keras.models.load_model(tmp_path / "sst2.keras").output_shape == (None, 2)
