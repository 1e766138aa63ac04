"""Models that take strings, by the name of their problem: a checkpoint in, a TextModel out.

model = classifier("minilm", labels=["bad", "good"])
model.fit(texts, labels, epochs=3)
model.predict(["a joy to watch"])["label"]
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.sentence_transformers import read_sentence_settings
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.io.paths import did_you_mean, for_tensorflow, to_path
from bert_keras.model.choices import PRECISIONS
from bert_keras.tasks.data.conll import OUTSIDE
from bert_keras.tasks.hparams import BILSTM_SETTINGS, Hparams
from bert_keras.tasks.options import (
    ChoiceOptions,
    ClassifierOptions,
    FeatureOptions,
    FillMaskOptions,
    SquadOptions,
    TaggingOptions,
)
from bert_keras.tasks.problems.classification import NextSentence, TextClassification
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.ensemble import at_precision
from bert_keras.tasks.runs.run_folder import KERAS, is_run, load_file, load_run
from bert_keras.tasks.strings.text_model import TextModel
from bert_keras.tasks.task import Problem, check_stride
from bert_keras.tasks.training.task_model import check_sizes, heads_of, network_of
from bert_keras.text.preprocessing import Preprocessor

Checkpoint = str | pathlib.Path | checkpoints.Checkpoint


def classifier(
    checkpoint: Checkpoint,
    labels: Sequence[str],
    *,
    text: str | Sequence[str] = "text",
    multi: bool = False,
    pooling: str = ClassifierOptions.pooling,
    doc_stride: int | None = ClassifierOptions.doc_stride,
    truncation: str | None = ClassifierOptions.truncation,
    seq_length: int | None = None,
    dtype: Any = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """A classifier of texts, or of pairs of texts.

    checkpoint: a path that `checkpoints.read` takes, or a Checkpoint; the classifier itself starts at random
    labels: the names of the classes, in the order of their ids
    text: the name of the text, or the two names of a pair
    multi: True where a text has any number of the labels
    pooling: "pooled" or "concat", the way in which the classifier reads the encoder
    doc_stride: tokens between the starts of two windows over a long text, or over the second text of a pair; None truncates
    truncation: the part to keep of one text that does not fit: "tail", or "head_tail" for a quarter of head and the rest of tail;
        None keeps its head
    seq_length: longest text, pair or window in tokens, special tokens counted; None takes 128, or the encoder's length if that is
        less
    dtype: a dtype policy of Keras or its name: "mixed_bfloat16" trains in bfloat16 with float32 weights, "bfloat16" only
        predicts; None takes the global policy
    feature_layers: trains a BiLSTM on these layers of the frozen encoder in place of the encoder: a row of the paper's Table 7 or
        numbers of layers, as in `bert-keras finetune --feature-layers`
    bilstm: with feature_layers, its lstm_layers, lstm_units and lstm_dropout; the defaults are those of Hparams

    Predictions: "label" and "probabilities" [N, C]; with `multi`, "labels" [N, C], "" where a label does not apply.
    """
    # A set has no order, and a dict's order is not that of its ids.
    several = isinstance(labels, Iterable) and not isinstance(labels, str | bytes | Set | Mapping)
    names = tuple(labels) if several else ()
    if len(names) < (1 if multi else 2) or not all(isinstance(name, str) for name in names):
        raise BertKerasError(
            f"labels is {labels!r}; give a list of {'one' if multi else 'two'} or more strings in the order of their ids, for "
            'example ["bad", "good"].'
        )
    problem = TextClassification(
        names,
        text=(text,) if isinstance(text, str) else text,
        label_type="multi" if multi else "class",
        pooling=pooling,
        doc_stride=doc_stride,
        truncation=truncation,
    )
    return _build(problem, checkpoint, seq_length, dtype, feature_layers, bilstm)


def regressor(
    checkpoint: Checkpoint,
    *,
    text: str | Sequence[str] = "text",
    pooling: str = ClassifierOptions.pooling,
    doc_stride: int | None = ClassifierOptions.doc_stride,
    truncation: str | None = ClassifierOptions.truncation,
    seq_length: int | None = None,
    dtype: Any = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """A score, any finite number, for a text or a pair of texts. Arguments: those of `classifier`. Predictions: "score" [N]."""
    problem = TextClassification(
        text=(text,) if isinstance(text, str) else text,
        label_type="score",
        pooling=pooling,
        doc_stride=doc_stride,
        truncation=truncation,
    )
    return _build(problem, checkpoint, seq_length, dtype, feature_layers, bilstm)


def question_answerer(
    checkpoint: Checkpoint,
    *,
    unanswerable: bool = False,
    seq_length: int | None = None,
    dtype: Any = None,
    feature_layers: str | None = None,
    **options: Any,
) -> TextModel:
    """Answers to questions, as spans of a context of any length.

    unanswerable: True where a question may have no answer, as in SQuAD 2.0
    feature_layers: as in `classifier`
    options: the fields of SquadOptions: doc_stride, max_query_length, max_answer_length, n_best, answer_language; and those of a
        BiLSTM on feature_layers, as in `classifier`

    Texts: the columns "question" and "context". Predictions: "answer", "score", "start", "end" [N] in characters of the context,
    "start_byte", "end_byte" [N], the n best.
    """
    bilstm = {name: options.pop(name) for name in BILSTM_SETTINGS if name in options}
    chosen = dataclasses.asdict(SquadOptions(**options))
    problem = QuestionAnswering("squad2.0" if unanswerable else "squad1.1", **chosen)
    return _build(problem, checkpoint, seq_length, dtype, feature_layers, bilstm)


def tagger(
    checkpoint: Checkpoint,
    entities: Sequence[str],
    *,
    doc_stride: int = TaggingOptions.doc_stride,
    seq_length: int | None = None,
    dtype: Any = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """The named entities of texts of any length.

    entities: the types, such as ["PER", "LOC"]; the tags are "O" and, for each type, "B-TYPE" and "I-TYPE"
    feature_layers, bilstm: as in `classifier`

    `fit` takes lists of words and lists of tags, or strings and lists of (start, end, label) in characters; `predict` takes words
    or strings, which the model splits into words. Predictions: "tags" [N], joined like the words, and "entity_text",
    "entity_label", "entity_score", "entity_start", "entity_end" in characters, and bytes [N, E].
    """
    if not entities or isinstance(entities, str):
        raise BertKerasError('give the types of entities as a list, for example ["PER", "LOC"].')
    labels = [OUTSIDE, *sorted(f"{prefix}-{kind}" for kind in entities for prefix in "BI")]
    problem = Tagging(labels, scheme="IOB2", context="sentence", doc_stride=doc_stride)
    return _build(problem, checkpoint, seq_length, dtype, feature_layers, bilstm)


def chooser(
    checkpoint: Checkpoint,
    num_choices: int = ChoiceOptions.num_choices,
    *,
    seq_length: int | None = None,
    dtype: Any = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """The ending that fits a context best.

    feature_layers, bilstm: as in `classifier`

    Texts: the columns "context" [N] and "endings" [N, K]. Predictions: "label", an index, "ending" and "probabilities" [N, K].
    """
    problem = MultipleChoice(num_choices=num_choices)
    return _build(problem, checkpoint, seq_length, dtype, feature_layers, bilstm)


def masked_lm(
    checkpoint: Checkpoint,
    *,
    top_k: int = FillMaskOptions.top_k,
    seq_length: int | None = None,
    dtype: Any = None,
) -> TextModel:
    """The tokens that fill each "[MASK]" in a text, by the checkpoint's own masked language model.

    `fit` takes texts with one "[MASK]" and answers of one token. Predictions: "filled" [N], and "mask_tokens" and "mask_scores"
    [N, M, k] of the M masks of a text.
    """
    return _build(FillMask(top_k=top_k), checkpoint, seq_length, dtype)


def next_sentence(checkpoint: Checkpoint, *, seq_length: int | None = None, dtype: Any = None) -> TextModel:
    """The second text of a pair follows the first, or not, by the checkpoint's own head (Devlin et al. 2019, sec. 3.1).

    Texts: the columns "sentence" and "next_sentence". Predictions: "label", which is "is_next" or "not_next", and "probabilities"
    [N, 2] in this order. Raises BertKerasError for a checkpoint without a next-sentence head.
    """
    return _build(NextSentence(), checkpoint, seq_length, dtype)


def sentence_order(checkpoint: Checkpoint, *, seq_length: int | None = None, dtype: Any = None) -> TextModel:
    """The two texts of a pair are in their order, or swapped, by ALBERT's sentence-order head (Lan et al. 2020, sec. 3.1).

    As `next_sentence`, with the labels "in_order" and "swapped".
    """
    return _build(NextSentence("sentence-order"), checkpoint, seq_length, dtype)


def embedder(
    checkpoint: Checkpoint,
    *,
    pooling: str | None = None,
    l2: bool | None = None,
    layers: str = FeatureOptions.layers,
    seq_length: int | None = None,
    dtype: Any = None,
) -> TextModel:
    """One vector for each text; nothing to train.

    pooling: "mean", "cls" or "max" over the tokens; None takes that of a sentence-transformers folder, else the mean
    l2: True scales vectors to length 1; None takes a sentence-transformers folder's choice, else False
    seq_length: as in `classifier`; None takes the length of a sentence-transformers folder, if the encoder has as many positions
    layers: a row of the paper's Table 7: "last", "second_to_last", "embeddings", "concat_last_four", or, for the
        mean, "weighted_sum_last_four" or "weighted_sum_all"

    Predictions: "embedding" float32 [N, H].
    """
    if isinstance(checkpoint, checkpoints.Checkpoint):
        settings, source = None, checkpoint
    else:
        settings = read_sentence_settings(checkpoints.resolve(checkpoint).path)
        source = checkpoints.read(checkpoint if settings is None else settings.model)
    if settings is not None:
        pooling = settings.pooling if pooling is None else pooling
        l2 = settings.l2 if l2 is None else l2
        if seq_length is None and source.vocabulary.max_length:
            seq_length = min(source.vocabulary.max_length, source.config.max_length)
    problem = Embedding(pooling=pooling or "mean", l2=bool(l2), layers=layers)
    return _build(problem, source, seq_length, dtype)


def load(
    path: str | pathlib.Path, *, compile: bool = True, dtype: str | None = None, safe_mode: bool = True
) -> Any:
    """A saved model: a `.keras` file or the folder of a run as a TextModel, an exported SavedModel as TensorFlow loads it.

    compile: False leaves out the optimizer, the loss and the metrics of a `.keras` file, as in Keras' `load_model`; the other two
        have none
    safe_mode: False lets a `.keras` file run code, such as a Lambda or the SavedModel of a HubLayer: only if you trust it
    dtype: of a run: "bfloat16" or "float16" rounds its weights, to predict only; None takes float32. The other two have a format
        of their own

    Raises MissingFileError where there is none of these, BertKerasError for one that is damaged.
    """
    path = to_path(path)
    if dtype is not None and dtype not in PRECISIONS:
        raise BertKerasError(f"dtype is {dtype!r}; give one of {', '.join(PRECISIONS)}.")
    if dtype is not None and path.exists() and not is_run(path):
        raise BertKerasError(
            f"dtype is {dtype!r} and {path} is no run; a .keras file and an export have a format of their own."
        )
    if path.suffix == KERAS:
        return load_file(path, compile=compile, safe_mode=safe_mode)
    if is_run(path):
        run = at_precision(load_run(path), dtype)
        return TextModel(run.task, run.preprocess, run.model)
    versions = [found for found in path.glob("*/saved_model.pb") if found.parent.name.isdecimal()]
    file = path / "saved_model.pb"
    if not file.is_file() and versions:
        file = max(versions, key=lambda found: int(found.parent.name))
    if not file.is_file():
        close = "" if path.exists() else did_you_mean(path)
        raise MissingFileError(
            f"{path} is no .keras file, no run and no exported model{close}; give one of them."
        )
    from bert_keras.text import normal_forms  # noqa: F401  registers the ops of the graph

    with for_tensorflow(file.parent) as named:
        return tf.saved_model.load(str(named))


def _build(
    problem: Problem,
    checkpoint: Checkpoint,
    seq_length: int | None,
    dtype: Any,
    feature_layers: str | None = None,
    bilstm: Mapping[str, Any] | None = None,
) -> TextModel:
    """The problem's model with the weights of a checkpoint. Raises as `checkpoints.read`, and for sizes that do not fit."""
    bilstm = bilstm or {}
    if unknown := [name for name in bilstm if name not in BILSTM_SETTINGS]:
        raise BertKerasError(
            f"there is no argument {unknown[0]}; a BiLSTM on feature_layers has {', '.join(BILSTM_SETTINGS)}."
        )
    features = Hparams(feature_layers=feature_layers, **bilstm).features  # None for fine-tuning
    source = checkpoint if isinstance(checkpoint, checkpoints.Checkpoint) else checkpoints.read(checkpoint)
    if source.tensors:
        problem.check_checkpoint(source)
    tokenizer = checkpoints.tokenizer_of(source)
    if seq_length is None:
        usual = problem.defaults.get("seq_length", Hparams.seq_length)  # type: ignore[attr-defined]
        seq_length = min(usual, source.config.max_length, source.vocabulary.max_length or usual)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    check_stride(problem, tokenizer, seq_length=seq_length)
    encoder, network = network_of(problem, source.config, features, dtype=dtype)
    if source.tensors:
        heads = heads_of(network)
        kept = heads if problem.pretrained_head else {}
        report = checkpoints.assign(source, encoder, fresh=("pooler", "bilstm", *heads), **kept)
        if lost := [name for name in kept if any(at.split("/")[0] == name for at in report.fresh)]:
            warnings.warn(
                f"the checkpoint has no {', '.join(lost)} head, which {problem.name} reads: it starts at random and its "
                "predictions mean nothing before fit(); give a checkpoint that was pre-trained with it, such as "
                "bert-base-uncased.",
                stacklevel=3,
            )
    return TextModel(problem, Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True), network)
