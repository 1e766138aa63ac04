"""bert_keras: the encoder, served classifiers and the tokenizers."""

import pathlib
from collections.abc import Callable
from typing import Any

import filelock
import numpy as np

from bert_keras.features import ENCODER_INPUTS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from peer_work.work import Arrays, Case, Prepared, encoded, features, lines, pieces

LINES_A_BATCH = 256  # lines in one call of a tokenizer in Dataset.map


def ready_features(case: Case) -> dict[str, Any]:
    """Token ids, mask and type ids as tensors."""
    import tensorflow as tf

    return {name: tf.constant(value) for name, value in features(case).items()}


def encoder(
    case: Case, folder: pathlib.Path, *, outputs: tuple[str, ...], unpadded: bool = False
) -> Prepared:
    """`tf.function`, one trace for every length, as in training and serving."""
    import tensorflow as tf

    from bert_keras.checkpoints import load_encoder

    loaded = load_encoder(folder / case.size, outputs=outputs, dtype=case.precision)
    loaded.unpadded = unpadded
    anything = {name: tf.TensorSpec([None, None], tf.int32) for name in ENCODER_INPUTS}
    run = tf.function(lambda given: loaded(given, training=False), input_signature=[anything])
    given = ready_features(case)
    return lambda: run(given), encoded(case, run(given))


def constant_encoder(
    case: Case, folder: pathlib.Path, *, outputs: tuple[str, ...], packed: bool = True
) -> Any:
    """A concrete function without variables: features -> the outputs, in their order. It computes padding too."""
    import keras
    import tensorflow as tf

    from bert_keras import encoder_inputs
    from bert_keras.checkpoints import load_encoder
    from bert_keras.savedmodels.servable import with_constants

    loaded = load_encoder(folder / case.size, outputs=outputs, dtype=case.precision)
    inputs = encoder_inputs()
    encoded_inputs = loaded(inputs)
    found = [encoded_inputs[name] for name in outputs]
    model = keras.Model(inputs, found if len(found) > 1 else found[0])
    return with_constants(
        model, {name: tf.TensorSpec([None, None], tf.int32, name) for name in ENCODER_INPUTS}, packed=packed
    )


def frozen_encoder(case: Case, folder: pathlib.Path) -> Prepared:
    """The weights are constants of the graph, as in `bert-keras export --freeze`."""
    names = (SEQUENCE_OUTPUT, POOLED_OUTPUT)
    packed = case.precision == "bfloat16"
    run, given = constant_encoder(case, folder, outputs=names, packed=packed), ready_features(case)
    return lambda: run(given), encoded(case, dict(zip(names, run(given), strict=True)))


def classifier_run(case: Case, folder: pathlib.Path) -> Any:
    """A run of SST-2 with the weights of the folder."""
    from bert_keras import checkpoints
    from bert_keras.tasks.problems.classification import TextClassification
    from bert_keras.tasks.runs.run_folder import Run
    from bert_keras.tasks.training.task_model import heads_of, network_of
    from bert_keras.text.preprocessing import Preprocessor

    task, checkpoint = TextClassification.open("sst2"), checkpoints.read(folder / case.size)
    layers, model = network_of(task, checkpoint.config)
    checkpoints.assign(checkpoint, layers, **heads_of(model))
    tokenizer = checkpoints.tokenizer_of(checkpoint)
    preprocess = Preprocessor(tokenizer, seq_length=case.length, pad_to_longest=True)
    return Run(task=task, preprocess=preprocess, model=model, path=folder / case.size)


def exported(case: Case, folder: pathlib.Path, *, freeze: bool) -> pathlib.Path:
    """The exported version of that run, which takes raw strings; written once."""
    from bert_keras.savedmodels.export import export
    from bert_keras.tasks.runs.ensemble import at_precision

    kind = "frozen" if freeze else "served"
    served = folder / f"{case.size}-{case.length}-{case.precision}-{kind}"
    with filelock.FileLock(f"{served}.lock"):  # another process may ask for it too
        if not served.exists():
            export(at_precision(classifier_run(case, folder), case.precision), served, freeze=freeze)
    return served / "1"


def asker(version: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """Loads an export: sentences -> probabilities. Needs TensorFlow and TensorFlow Text alone."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its ops

    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    return lambda texts: serve(sentence=tf.constant(texts))["probabilities"].numpy()


def export_asker(
    case: Case, folder: pathlib.Path, *, freeze: bool = False
) -> Callable[[list[str]], np.ndarray]:
    """The exported SavedModel, which takes raw strings."""
    return asker(exported(case, folder, freeze=freeze))


def predict_asker(case: Case, folder: pathlib.Path) -> Callable[[list[str]], np.ndarray]:
    """`TextModel.predict` of the same run."""
    import bert_keras as bk

    run = classifier_run(case, folder)
    model = bk.TextModel(run.task, run.preprocess, run.model)
    return lambda texts: model.predict(texts, verbose=0)["probabilities"]


def import_library(case: Case, folder: pathlib.Path) -> Arrays:
    """In a fresh process: the package with all that a classifier needs."""
    import bert_keras

    assert bert_keras.classifier
    return {}


def import_ops(case: Case, folder: pathlib.Path) -> Arrays:
    """In a fresh process: all that an export needs."""
    import tensorflow
    import tensorflow_text

    assert tensorflow and tensorflow_text
    return {}


def tokenize(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    """WordPiece in `Dataset.map`."""
    from bert_keras.text.wordpiece import WordPiece

    tokenizer = WordPiece.from_file(str(folder / "vocab.txt"))
    text = lines(case, folder)
    return mapped(getattr(tokenizer, method), text), pieces(tokenizer.tokenize(text).to_list())


def byte_bpe(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    """Byte-level BPE in `Dataset.map`."""
    from bert_keras import checkpoints

    tokenizer = checkpoints.load_tokenizer(folder / "byte-bpe")
    text = lines(case, folder)
    return mapped(getattr(tokenizer, method), text), pieces(tokenizer.tokenize(text).to_list())


def mapped(tokenize: Callable, text: list[str]) -> Callable[[], Any]:
    """One pass over all lines in `Dataset.map`; the results are discarded."""
    import tensorflow as tf

    from bert_keras.optimization.replicas import without_autotuning

    batches = tf.data.Dataset.from_tensor_slices(text).batch(LINES_A_BATCH).cache()
    made = batches.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    steady = without_autotuning(made)
    return lambda: sum(1 for _ in steady)
