"""Everything that an exported folder must do where neither this package nor Keras is; run as a file, by tests.

    python fresh_process.py FOLDER_OF_RELOAD < {case: {"folder", "raw", "features"}} > {case: findings}

In: folders of SavedModels, and by name the strings and the features to ask them with. Out: answers, and what hostile requests
got. That it ends in JSON proves that nothing ended the process.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path[0] = sys.argv[1]  # instead of the folder of this file
import reload  # noqa: E402
import tensorflow as tf  # noqa: E402

reload.load_kernels()
sys.path.pop(0)
sys.modules.update(dict.fromkeys(reload.FORBIDDEN))
serving = tf.compat.v1.saved_model

HOSTILE = {
    "none": [],
    "empty": [b""],
    "not UTF-8": [b"\xff\xfe good", b"good \xc3", b"\xed\xa0\x80", b"\xff"],
    "NUL": [b"a\x00b", b"\x00"],
    "special tokens": [b"[SEP] [CLS] [MASK]", b"[MASK]" * 1000, b"good"],
    "a word of 1 MB": [b"x" * 1_000_000],
    "a text of 1 MB": [b"good film " * 100_000],
    "unlike each other": [b"", b"\xff" * 1_000_000, "\u0130\u0301\ufb01".encode()],
    "many": [b"good"] * 300,
}


def specs_of(signature):
    return signature.structured_input_signature[1]


def tensors(signature, texts):
    """The same texts for every input: [B] or, of a choice, [B, K]."""
    made = {}
    for name, spec in specs_of(signature).items():
        shape = [len(texts), *spec.shape[1:]]
        flat = [text for text in texts for _ in range(shape[1] if len(shape) > 1 else 1)]
        made[name] = tf.constant(flat, tf.string, shape)
    return made


def example(raw, row):
    """A serialized tf.Example of one row of raw inputs."""
    columns = {name: tf.reshape(value[row], [-1]).numpy().tolist() for name, value in raw.items()}
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
                for name, values in columns.items()
            }
        )
    ).SerializeToString()


def plain(outputs):
    return {name: reload.plain(value.numpy().tolist()) for name, value in outputs.items()}


def error_of(ask):
    """The kind and the message of the error that a request gets; None for an answer."""
    try:
        ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refused(signatures, features):
    """Requests that are wrong in themselves."""
    serve, parse, tokenized = (signatures[name] for name in ("serving_default", "examples", "features"))
    two, one = tensors(serve, [b"good", b"film"]), tensors(serve, [b"good"])
    whole = example(two, 0)
    ids, mask = tokenized_names(features)
    changed = {
        "another batch": {mask: features[mask][:-1]},
        "another length": {mask: features[mask][..., :-1]},
        "an id too large": {ids: features[ids] * 0 + 10_000_000},
        "a negative id": {ids: features[ids] * 0 - 1},
        "a type too large": {name: value * 0 + 7 for name, value in features.items() if "type" in name},
    }
    found = {
        name: error_of(lambda change=change: tokenized(**features | change))
        for name, change in changed.items()
    }
    longer = {name: tf.repeat(value, 8, axis=-1) for name, value in features.items()}
    found["longer than the encoder"] = error_of(lambda: tokenized(**longer))
    for name in two if len(two) > 1 else ():
        found[f"less of {name}"] = error_of(lambda name=name: serve(**two | {name: one[name]}))
        found[f"none of {name}"] = error_of(lambda name=name: serve(**one | {name: two[name][:0]}))
    for name, texts in {
        "garbage": [whole, b"\xff\xfe garbage"],
        "no feature": [whole, b""],
        "half of an example": [whole[: len(whole) // 2]],
    }.items():
        found[name] = error_of(lambda texts=texts: parse(examples=tf.constant(texts)))
    found["dtype"] = error_of(lambda: serve(**{name: tf.zeros([1], tf.int32) for name in two}))
    found["rank"] = error_of(lambda: serve(**{name: value[tf.newaxis] for name, value in two.items()}))
    found["no rank"] = error_of(lambda: serve(**dict.fromkeys(two, tf.constant("good"))))
    found["rank of examples"] = error_of(lambda: parse(examples=tf.constant([[whole]])))
    found["no such input"] = error_of(lambda: serve(other=tf.constant(["good"])))
    found["no such signature"] = error_of(lambda: signatures["other"])
    return found


def tokenized_names(features):
    """Those of ids and of the mask."""
    return next(n for n in features if "word" in n), next(n for n in features if "mask" in n)


def in_session(folder, raw):
    """The answers of the loader that TensorFlow Serving uses."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = serving.load(session, ["serve"], folder).signature_def["serving_default"]
        names = list(signature.inputs)
        fetches = {name: output.name for name, output in signature.outputs.items()}
        ask = session.make_callable(fetches, [signature.inputs[name].name for name in names])
        answers = ask(*[raw[name].numpy() for name in names])
    return {name: reload.plain(value.tolist()) for name, value in answers.items()}


def training(loaded, raw):
    """Pushing the first output down for some steps: losses, and whether dropout is active."""

    def loss(training):
        return tf.reduce_mean(tf.sigmoid(loaded(raw, training=training)[..., 0]))

    found = {
        "dropout": float(abs(loss(True) - loss(True))),
        "without": float(abs(loss(False) - loss(False))),
        "before": float(loss(False)),
        "variables": len(loaded.variables),
        "trainable": len(loaded.trainable_variables),
        "unused": 0,
    }
    for _ in range(6):
        with tf.GradientTape() as tape:
            value = loss(True)
        gradients = tape.gradient(value, loaded.trainable_variables)
        found["unused"] = sum(gradient is None for gradient in gradients)
        for variable, gradient in zip(loaded.trainable_variables, gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(0.3 * tf.convert_to_tensor(gradient))
    return found | {"after": float(loss(False))}


def findings(folder, raw, features):
    loaded = tf.saved_model.load(folder)
    signatures = loaded.signatures
    serve = signatures["serving_default"]
    raw = {name: tf.constant(texts, tf.string) for name, texts in raw.items()}
    features = {name: tf.constant(values, tf.int32) for name, values in features.items()}
    count = next(iter(raw.values())).shape[0]
    sizes = {}
    for name, texts in HOSTILE.items():
        answers = serve(**tensors(serve, texts))
        sizes[name] = [value.shape[0] for value in answers.values()] == [len(texts)] * len(answers)
    before = plain(serve(**raw))
    return {
        "answers": before,
        "examples": plain(signatures["examples"](examples=[example(raw, row) for row in range(count)])),
        "no examples": plain(signatures["examples"](examples=tf.zeros([0], tf.string))),
        "features": plain(signatures["features"](**features)),
        "ragged": plain(signatures["ragged"](**raw)) if "ragged" in signatures else None,
        "hostile": sizes,
        "refused": refused(signatures, features),
        "session": in_session(folder, raw),
        "after all that": plain(serve(**raw)) == before,
        "training": training(loaded, raw),
        "serving what was learned": plain(serve(**raw)) != before,
    }


if __name__ == "__main__":
    json.dump({case: findings(**request) for case, request in json.load(sys.stdin).items()}, sys.stdout)
