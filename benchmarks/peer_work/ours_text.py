"""bert_keras: answers to questions, features of texts, and instances for pre-training."""

import functools
import itertools
import pathlib
import shutil
from typing import Any

import numpy as np

from peer_work.work import SEED, Arrays, Case, Prepared, documents, in_turn, questions, requests


def _answerer(case: Case, folder: pathlib.Path) -> Any:
    """A model of strings with the head of the folder."""
    import bert_keras as bk
    from bert_keras import checkpoints
    from bert_keras.tasks.training.task_model import heads_of

    checkpoint = checkpoints.read(folder / case.size)
    model = bk.question_answerer(
        checkpoint, seq_length=case.length, doc_stride=case.doc_stride, dtype=case.precision
    )
    checkpoints.assign(checkpoint, model.encoder, **heads_of(model.network))
    return model


def _compared(model: Any, texts: dict[str, list[str]]) -> Arrays:
    from bert_keras.tasks.problems.question_answering import PADDING_LOGIT

    logits = np.asarray(model(texts, training=False), "float32")
    return {"logits": np.where(logits == PADDING_LOGIT, 0, logits)}


def answers(case: Case, folder: pathlib.Path) -> Prepared:
    """`question_answerer(...).predict`, which cuts the windows and joins their answers."""
    model = _answerer(case, folder)
    asked, contexts = questions(case, folder)
    texts = {"question": asked, "context": contexts}
    return lambda: model.predict(texts, verbose=0), _compared(model, texts)


def served_answers(case: Case, folder: pathlib.Path) -> Prepared:
    """The same model as an exported SavedModel, which does all of it in its graph."""
    import tensorflow as tf

    from bert_keras.savedmodels.export import export
    from bert_keras.tasks.runs.run_folder import Run

    model = _answerer(case, folder)
    run = Run(task=model.problem, preprocess=model.preprocess, model=model.network, path=folder / case.size)
    version = export(run, folder / f"{case.size}-{case.length}-{case.precision}-answers")
    serve = tf.saved_model.load(str(version)).signatures["serving_default"]
    asked, contexts = questions(case, folder)
    given = {"question": tf.constant(asked), "context": tf.constant(contexts)}
    compared = _compared(model, {"question": asked, "context": contexts})
    return lambda: serve(**given)["answer"].numpy(), compared


def features(case: Case, folder: pathlib.Path) -> Prepared:
    """The command `features`, without its file: every token of all layers."""
    from bert_keras import checkpoints
    from bert_keras.tasks.frozen.extractor import Extractor, text_units
    from bert_keras.text.words import TEXT

    source = checkpoints.read(folder / case.size)
    extractor = Extractor(
        source=source,
        units=text_units("piece", source, seq_length=case.length, doc_stride=case.length // 2),
        places=range(source.config.num_layers + 1),
        dtype="float32",
        precision=case.precision,
        batch_size=case.batch,
    )

    def ask(texts: list[str]) -> np.ndarray:
        found = extractor([{TEXT: text.encode()} for text in texts])
        return np.concatenate([one["vectors"] for one in found])

    asked = requests(case, folder)
    return in_turn(ask, asked), {"vectors": ask(asked[0])}


def instances(case: Case, folder: pathlib.Path, *, workers: int) -> Prepared:
    """The command `instances`, with static masks."""
    from bert_keras import checkpoints
    from bert_keras.tasks.pretraining.corpus import Corpus
    from bert_keras.tasks.pretraining.recipes import RECIPES
    from bert_keras.tasks.pretraining.write_records import Job, write_records

    corpus, recipe, number = Corpus(documents(case, folder)), RECIPES["bert"], itertools.count()

    def make() -> dict[str, np.ndarray]:
        output = folder / f"instances-{workers}-{next(number)}"
        found = write_records(
            corpus,
            Job(
                path=output,
                make_tokenizer=functools.partial(
                    checkpoints.load_tokenizer, str(folder / "vocab.txt"), lower_case=True
                ),
                settings=recipe.sampling(case.length),
                masking=recipe.masking(case.length),
                seed=SEED,
            ),
            workers=workers,
        )
        shutil.rmtree(output)
        return {"instances": np.array(found.instances)}

    return make, make()
