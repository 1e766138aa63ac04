"""The model that makes the vectors of an index and of its queries.

In: a run, a .keras file or a checkpoint, and texts. Out: float32 vectors [N, D], of length 1 for the cosine.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_keras import checkpoints
from bert_keras.checkpoints.labels import count_outputs
from bert_keras.errors import BertKerasError
from bert_keras.io.files import digest
from bert_keras.io.paths import to_path
from bert_keras.tasks.batches import predictor
from bert_keras.tasks.options import COSINE, SIMILARITIES
from bert_keras.tasks.problems.embedding import PROMPT, VECTOR, Embedding
from bert_keras.tasks.problems.vector_measures import unit
from bert_keras.tasks.runs.run_folder import KERAS, Run, is_run
from bert_keras.tasks.strings.models import embedder, load
from bert_keras.tasks.training.plan import digest_of_tensors
from bert_keras.tasks.training.task_model import config_of, encoder_of


def load_model(path: str | pathlib.Path, make: Callable[..., Any], kind: type[Any], lacks: str) -> Run:
    """A run or a .keras file of a kind of task; what `make` makes of any other checkpoint, by path or name.

    Raises BertKerasError for a model of another task, which `lacks` something.
    """
    folder = to_path(path)
    trained = folder.suffix == KERAS or is_run(folder)
    run = (load if trained else make)(path).as_run(path)
    if not isinstance(run.task, kind):
        raise BertKerasError(f"{path} is a model of {run.task.name}, which {lacks}.")
    return run


def _encoder_alone(path: str | pathlib.Path) -> Any:
    """`embedder` of a checkpoint. Raises BertKerasError for a cross-encoder."""
    source = checkpoints.source_of(path)
    if source.score_function and count_outputs(source, "classifier") == 1:
        raise BertKerasError(
            f"{path} is a cross-encoder, which gives a score of two texts and no vectors; give an embedding, or --reranker."
        )
    return embedder(source)


def load_text_encoder(path: str | pathlib.Path, *, dimension: int | None = None) -> Run:
    """`load_model` of an embedding, or the vectors of `embedder`. dimension: of Embedding; None takes the model's own choice."""
    lacks = "gives no vectors of texts; give an embedding, or a checkpoint"
    run: Any = load_model(path, _encoder_alone, Embedding, lacks)
    if dimension is not None and dimension != run.model.output_shape[-1]:
        run.task.dimension = dimension
    return run


def digest_of_model(run: Run) -> str:
    """SHA-256 of all that decides a model's vectors: weights, vocabulary, lengths, pooling."""
    weights = {f"{i:06d}": np.asarray(value) for i, value in enumerate(run.model.get_weights())}
    tokenizer, preprocess = run.preprocess.tokenizer, run.preprocess
    settings = sorted(run.task.to_json().items())
    decides = (tokenizer.digest, tokenizer.lower_case, preprocess.seq_length, preprocess.truncation, settings)
    config = sorted(config_of(run.model).to_dict().items())
    return digest(
        [digest_of_tensors(weights), repr(decides), repr(config), encoder_of(run.model).compute_dtype]
    )


def choose_similarity(run: Run, given: str | None = None) -> str:
    """The similarity: the given one, the embedding's own, or else the cosine."""
    found = given or run.task.similarity or COSINE  # type: ignore[attr-defined]
    if found not in SIMILARITIES:
        raise BertKerasError(f"the similarity is {found!r}; give one of {', '.join(SIMILARITIES)}.")
    return found


class TextEncoder:
    """Texts -> vectors float32 [N, D].

    similarity: "cosine" gives vectors of length 1
    prompt: a text before each text
    """

    def __init__(self, run: Run, *, similarity: str, prompt: str = "", batch_size: int = 32) -> None:
        self.run, self.similarity, self.prompt = run, similarity, prompt
        self._batch_size = batch_size
        self._predict = predictor(run.task, run.preprocess, run.model, fixed=True)

    @property
    def dimension(self) -> int:
        """D."""
        return self.run.task.dimension or self.run.model.output_shape[-1]  # type: ignore[attr-defined]

    def __call__(
        self, texts: Sequence[str], *, progress: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """The vectors of one text or more. Raises BertKerasError for a vector that is not finite.

        progress: called with the number of texts done since its last call
        """
        column = np.array([text.encode() for text in texts], object)
        columns = {self.run.task.text[0]: column, PROMPT: np.full(len(texts), self.prompt.encode(), object)}
        answers, _ = self._predict(columns, batch_size=self._batch_size, progress=progress)
        vectors = answers[VECTOR].astype(np.float32)
        return unit(vectors) if self.similarity == COSINE else vectors
