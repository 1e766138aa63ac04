"""Writes published.tar.xz: modules of TensorFlow Hub, a folder of transformers, files of Keras 2, by the libraries that write them.

    python tests/golden/make_published.py FOLDER hub            with tf-models-official 2.19.1 and tensorflow-text
    python tests/golden/make_published.py FOLDER transformers   with transformers 4.57
    python tests/golden/make_published.py FOLDER keras_2        with keras-bert 0.89, bert-for-tf2 0.14.9, TensorFlow 2.15
    python tests/golden/make_published.py FOLDER pack

The first two need tf_keras. Each folder has inputs and outputs in expected.npz.
"""

import json
import os
import pathlib
import sys
import tarfile
import tempfile

os.environ["TF_KERAS" if "keras_2" in sys.argv else "TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

FILE = pathlib.Path(__file__).with_name("published.tar.xz")
WORDS = "a the charming dull journey plot film of and ##s ##ing is was it not very good bad great".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = ["a charming journey", "the film was not very good, it is dull!", "", "Great plots"]
SIZES = dict(
    vocab_size=len(VOCABULARY),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=20,
    type_vocab_size=2,
)


def randomize(model) -> None:
    random = np.random.default_rng(0)
    for variable in model.variables:
        if variable.dtype == tf.float32:
            middle = 1.0 if "gamma" in variable.name else 0.0
            variable.assign(random.normal(middle, 0.15, variable.shape).astype("float32").round(3))


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    ids = random.integers(5, len(VOCABULARY), (2, 12)).astype("int32")
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    ids[1, 8:], mask[1, 8:], types[:, 5:] = 0, 0, 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def write_hub(folder: pathlib.Path) -> None:
    """An encoder with .mlm and its preprocessor, as Model Garden's exporter writes them."""
    from model_garden_modules import write_modules
    from official.legacy.bert import configs
    from official.nlp.tools import export_tfhub_lib

    folder.mkdir(parents=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(VOCABULARY) + "\n")
    config = configs.BertConfig(hidden_act="gelu", **SIZES)
    _, model = export_tfhub_lib._create_model(bert_config=config, with_mlm=True)
    randomize(model)
    with tempfile.TemporaryDirectory() as temporary:
        saved = tf.train.Checkpoint(**model.checkpoint_items).save(f"{temporary}/x")
        write_modules(folder, seq_length=16, bert_config=config, model_checkpoint_path=saved)
    vocabulary.unlink()
    given = inputs()
    places = np.array([[1, 3], [2, 0]], "int32")
    features = {name: tf.constant(array) for name, array in given.items()}
    encoder = tf.saved_model.load(str(folder / "encoder"))
    outputs = encoder.mlm({**features, "masked_lm_positions": tf.constant(places)}, training=False)
    kept = {name: np.asarray(outputs[name]) for name in ("sequence_output", "pooled_output", "mlm_logits")}
    np.savez(folder / "encoder" / "expected.npz", masked_lm_positions=places, **given, **kept)
    made = tf.saved_model.load(str(folder / "preprocess"))(tf.constant(TEXTS))
    kept = {name: np.asarray(array) for name, array in made.items()}
    np.savez(folder / "preprocess" / "expected.npz", texts=TEXTS, **kept)


def write_transformers(folder: pathlib.Path) -> None:
    """A classifier as save_pretrained(saved_model=True) writes it, without its tf_model.h5."""
    import transformers

    config = transformers.BertConfig(num_labels=3, **SIZES)
    model = transformers.TFBertForSequenceClassification(config)
    given = inputs()
    named = {"input_ids": given["input_word_ids"], "attention_mask": given["input_mask"]}
    model(named)
    randomize(model)
    model.save_pretrained(folder, saved_model=True)
    (folder / "tf_model.h5").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    np.savez(folder / "expected.npz", **named, logits=np.asarray(model(named, training=False).logits))


def write_keras_2(folder: pathlib.Path) -> None:
    """Files of save_weights, each with a dense layer behind the encoder."""
    from tensorflow.python import keras as old_keras

    old_keras.layers.InputSpec = tf.keras.layers.InputSpec  # bert-for-tf2 takes this class alone from there
    import bert
    import keras_bert

    keras = tf.keras
    sizes = dict(SIZES, hidden_act="gelu", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    given = inputs()
    given["input_mask"][:] = 1  # bert-for-tf2 attends to padding
    given["input_word_ids"][1, 8:] = 7
    made = keras_bert.get_model(
        token_num=SIZES["vocab_size"],
        head_num=SIZES["num_attention_heads"],
        transformer_num=SIZES["num_hidden_layers"],
        embed_dim=SIZES["hidden_size"],
        feed_forward_dim=SIZES["intermediate_size"],
        seq_len=12,
        pos_num=SIZES["max_position_embeddings"],
        training=False,
        trainable=True,
    )
    ids, states = made if isinstance(made, tuple) else (made.inputs[:2], made.output)
    params = bert.BertModelLayer.Params(
        vocab_size=SIZES["vocab_size"],
        hidden_size=SIZES["hidden_size"],
        num_heads=SIZES["num_attention_heads"],
        num_layers=SIZES["num_hidden_layers"],
        intermediate_size=SIZES["intermediate_size"],
        intermediate_activation="gelu",
        use_token_type=True,
        max_position_embeddings=SIZES["max_position_embeddings"],
        token_type_vocab_size=SIZES["type_vocab_size"],
    )
    other_ids = [keras.Input((12,), dtype="int32") for _ in range(2)]
    other_states = bert.BertModelLayer.from_params(params, name="bert")(other_ids)
    for name, tokens, output in (("keras-bert", ids, states), ("bert-for-tf2", other_ids, other_states)):
        first = keras.layers.Lambda(lambda states: states[:, 0])(output)
        model = keras.Model(tokens, keras.layers.Dense(3)(first))
        randomize(model)
        (folder / name).mkdir(parents=True)
        model.save_weights(str(folder / name / "trained.h5"))
        (folder / name / "bert_config.json").write_text(json.dumps(sizes))
        (folder / name / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        found = keras.Model(tokens, output).predict([given["input_word_ids"], given["input_type_ids"]])
        np.savez(folder / name / "expected.npz", sequence_output=found, **given)


def pack(folder: pathlib.Path) -> None:
    with tarfile.open(FILE, "w:xz", preset=9) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name not in ("fingerprint.pb", "keras_metadata.pb"):
                archive.add(file, file.relative_to(folder))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


PARTS = {"hub": write_hub, "transformers": write_transformers, "keras_2": write_keras_2}

if __name__ == "__main__":
    _, given, part = sys.argv
    base = pathlib.Path(given)
    pack(base) if part == "pack" else PARTS[part](base / part)
