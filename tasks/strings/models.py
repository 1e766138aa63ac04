"""Models that take strings, by the name of their problem: a checkpoint in, a TextModel out.

model = classifier("minilm", labels=["bad", "good"])
model.fit(texts, labels, epochs=3)
model.predict(["a joy to watch"])["label"]
"""

import dataclasses
import difflib
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.checkpoints.checkpoint import choose_architecture
from bert_keras.checkpoints.cross_encoder import SIGMOID, check_modules
from bert_keras.checkpoints.labels import is_unnamed, order_of, own_labels
from bert_keras.checkpoints.sentence_transformers import sentence_folder
from bert_keras.cli.console import note
from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.fields import names_of
from bert_keras.io.json_files import is_integer
from bert_keras.io.other_names import ARGUMENTS
from bert_keras.io.paths import for_tensorflow, to_path
from bert_keras.model.choices import PRECISIONS
from bert_keras.tasks.data.conll import OUTSIDE
from bert_keras.tasks.hparams import BILSTM_SETTINGS, Hparams
from bert_keras.tasks.options import (
    ChoiceOptions,
    ClassifierOptions,
    EmbeddingOptions,
    FillMaskOptions,
    SquadOptions,
    TaggingOptions,
    WindowOptions,
)
from bert_keras.tasks.problems.classification import TextClassification, own_type
from bert_keras.tasks.problems.embedding import Embedding
from bert_keras.tasks.problems.fill_mask import FillMask
from bert_keras.tasks.problems.multiple_choice import MultipleChoice
from bert_keras.tasks.problems.next_sentence import NextSentence
from bert_keras.tasks.problems.question_answering import QuestionAnswering
from bert_keras.tasks.problems.replaced_tokens import ReplacedTokens
from bert_keras.tasks.problems.reranking import Reranker
from bert_keras.tasks.problems.tag_decoding import type_of
from bert_keras.tasks.problems.tagging import Tagging
from bert_keras.tasks.runs.ensemble import at_precision
from bert_keras.tasks.runs.own_head import assign, choose_head, describe, has_head, own_run
from bert_keras.tasks.runs.run_folder import KERAS, Run, check_readable, is_run, load_file, load_run
from bert_keras.tasks.strings.text_model import TextModel
from bert_keras.tasks.task import Problem, Task, check_stride
from bert_keras.tasks.training.task_model import check_sizes, network_of
from bert_keras.text.preprocessing import Preprocessor

Checkpoint = str | pathlib.Path | checkpoints.Checkpoint


def classifier(
    checkpoint: Checkpoint,
    labels: Sequence[str] | None = None,
    *,
    text: str | Sequence[str] = "text",
    multi: bool | None = None,
    pooling: str = ClassifierOptions.pooling,
    doc_stride: int | None = ClassifierOptions.doc_stride,
    truncation: str | None = ClassifierOptions.truncation,
    seq_length: int | None = None,
    dtype: Any = None,
    keep_head: bool | None = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """A classifier of texts, or of pairs of texts.

    checkpoint: a path that `checkpoints.read` takes, or a Checkpoint
    labels: the names of the classes, in the order of their ids; None takes the checkpoint's own, with its classifier
    text: the name of the text, or the two names of a pair
    multi: True where a text has any number of the labels; None takes what the checkpoint says of the same labels, else False
    keep_head: None starts with the checkpoint's own classifier where it has these labels, in any order; labels without names
        (LABEL_0) get an equal number of yours. Else a new classifier starts at random. False always starts a new one, True
        raises an error where None would
    pooling: "pooled" or "concat", the way in which the classifier reads the encoder
    doc_stride: tokens between the starts of two windows over a long text, or over the second text of a pair; None truncates
    truncation: the part to keep of one text that does not fit: "tail", or "head_tail" for a quarter of head and the rest of tail;
        None keeps its head
    seq_length: longest text, pair or window in tokens, special tokens counted; None takes the encoder's length for a checkpoint's
        own classifier, else 128 at most
    dtype: a dtype policy of Keras or its name: "mixed_bfloat16" trains in bfloat16 with float32 weights, "bfloat16" only
        predicts; None takes the global policy
    feature_layers: trains a BiLSTM on these layers of the frozen encoder in place of the encoder: a row of the paper's Table 7 or
        numbers of layers, as in `bert-keras finetune --feature-layers`
    bilstm: with feature_layers, its lstm_layers, lstm_units, lstm_dropout, mix_norm and feature_reader; the defaults are those of
        Hparams

    Predictions: "label" and "probabilities" [N, C]; with `multi`, "labels" [N, C], "" where a label does not apply; "score" [N]
    for a checkpoint's own classifier of one output. One line says what was kept, and what starts at random.
    """
    source = _read(checkpoint, bilstm)
    options: dict[str, Any] = {"pooling": pooling, "doc_stride": doc_stride, "truncation": truncation}
    options["text"] = (text,) if isinstance(text, str) else text
    if labels is None:
        _check_own(TextClassification, source, give="labels")
        options |= {} if multi is None else {"label_type": "multi" if multi else "class"}
        problem = TextClassification.from_checkpoint(source, **options)
        return _build(problem, source, seq_length, dtype, keep_head, feature_layers, bilstm, own=True)
    # A set has no order, and a dict's order is not that of its ids.
    several = isinstance(labels, Iterable) and not isinstance(labels, str | bytes | Set | Mapping)
    given: Iterable[Any] = labels if several and labels is not None else ()
    names = tuple(str(one) if is_integer(one) else one for one in given)  # such as numbers of stars
    if multi is None and has_head(TextClassification, source):
        there = own_labels(source, TextClassification.head)
        multi = order_of(names, there) is not None and own_type(source, TextClassification.head) == "multi"
    if len(names) < (1 if multi else 2) or not all(isinstance(name, str) for name in names):
        raise BertKerasError(
            f"labels is {labels!r}; give a list of {'one' if multi else 'two'} or more strings in the order of their ids, for "
            'example ["bad", "good"].'
        )
    problem = TextClassification(names, label_type="multi" if multi else "class", **options)
    return _build(problem, source, seq_length, dtype, keep_head, feature_layers, bilstm)


def regressor(
    checkpoint: Checkpoint,
    *,
    text: str | Sequence[str] = "text",
    pooling: str = ClassifierOptions.pooling,
    doc_stride: int | None = ClassifierOptions.doc_stride,
    truncation: str | None = ClassifierOptions.truncation,
    seq_length: int | None = None,
    dtype: Any = None,
    keep_head: bool | None = None,
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
    return _build(problem, _read(checkpoint, bilstm), seq_length, dtype, keep_head, feature_layers, bilstm)


def question_answerer(
    checkpoint: Checkpoint,
    *,
    unanswerable: bool = False,
    seq_length: int | None = None,
    dtype: Any = None,
    keep_head: bool | None = None,
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
    chosen = {name: options.pop(name) for name in names_of(SquadOptions) if name in options}
    source = _read(checkpoint, options)
    chosen = dataclasses.asdict(SquadOptions(**chosen))
    problem = QuestionAnswering("squad2.0" if unanswerable else "squad1.1", **chosen)
    return _build(problem, source, seq_length, dtype, keep_head, feature_layers, options)


def tagger(
    checkpoint: Checkpoint,
    entities: Sequence[str] | None = None,
    *,
    doc_stride: int = TaggingOptions.doc_stride,
    crf: bool = TaggingOptions.crf,
    iob_constraints: bool = TaggingOptions.iob_constraints,
    seq_length: int | None = None,
    dtype: Any = None,
    keep_head: bool | None = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """The named entities of texts of any length.

    entities: the types, such as ["PER", "LOC"]; the tags are "O" and, for each type, "B-TYPE" and "I-TYPE". None, or the
        types of the checkpoint's own tags, take these tags as they are
    crf: choose the tags of a sentence together; with iob_constraints, only tags that are valid IOB2
    feature_layers, bilstm: as in `classifier`

    `fit` takes lists of words and lists of tags, or strings and lists of (start, end, label) in characters; `predict` takes words
    or strings, which the model splits into words. Predictions: "tags" [N], joined like the words, and "entity_text",
    "entity_label", "entity_score", "entity_start", "entity_end" in characters, and bytes [N, E].
    """
    source = _read(checkpoint, bilstm)
    options: dict[str, Any] = {"context": "sentence", "doc_stride": doc_stride, "crf": crf}
    options |= {"iob_constraints": iob_constraints}
    if entities is None:
        _check_own(Tagging, source, give="entities")
        problem = Tagging.from_checkpoint(source, **options)
        return _build(problem, source, seq_length, dtype, keep_head, feature_layers, bilstm, own=True)
    if not entities or isinstance(entities, str):
        raise BertKerasError('give the types of entities as a list, for example ["PER", "LOC"].')
    labels = [OUTSIDE, *(f"{prefix}-{kind}" for kind in entities for prefix in "BI")]
    there = own_labels(source, Tagging.head) if has_head(Tagging, source) else ()
    if {*map(type_of, there)} - {OUTSIDE} == {*entities}:
        problem = Tagging.from_checkpoint(source, **options)
    else:  # tags without names have the order of the types
        labels = (
            labels if is_unnamed(there) and len(there) == len(labels) else sorted(labels, key=_outside_first)
        )
        problem = Tagging(labels, scheme="IOB2", **options)
    return _build(problem, source, seq_length, dtype, keep_head, feature_layers, bilstm)


def chooser(
    checkpoint: Checkpoint,
    num_choices: int = ChoiceOptions.num_choices,
    *,
    seq_length: int | None = None,
    dtype: Any = None,
    keep_head: bool | None = None,
    feature_layers: str | None = None,
    **bilstm: Any,
) -> TextModel:
    """The ending that fits a context best.

    feature_layers, bilstm: as in `classifier`

    Texts: the columns "context" [N] and "endings" [N, K]. Predictions: "label", an index, "ending" and "probabilities" [N, K].
    """
    problem = MultipleChoice(num_choices=num_choices)
    return _build(problem, _read(checkpoint, bilstm), seq_length, dtype, keep_head, feature_layers, bilstm)


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
    return _build(FillMask(top_k=top_k), _read(checkpoint), seq_length, dtype)


def replaced_tokens(
    checkpoint: Checkpoint,
    *,
    doc_stride: int = WindowOptions.doc_stride,
    seq_length: int | None = None,
    dtype: Any = None,
) -> TextModel:
    """The probability of each token that a generator wrote it, by ELECTRA's discriminator (Clark et al. 2020); nothing to train.

    Predictions: "token_text", "token_score" and bytes [N, T]. Raises BertKerasError for a checkpoint without the head.
    """
    return _build(ReplacedTokens(doc_stride=doc_stride), _read(checkpoint), seq_length, dtype)


def next_sentence(checkpoint: Checkpoint, *, seq_length: int | None = None, dtype: Any = None) -> TextModel:
    """The second text of a pair follows the first, or not, by the checkpoint's own head (Devlin et al. 2019, task 2).

    Texts: the columns "sentence" and "next_sentence". Predictions: "label", which is "is_next" or "not_next", and "probabilities"
    [N, 2] in this order. Raises BertKerasError for a checkpoint without a next-sentence head.
    """
    return _build(NextSentence(), _read(checkpoint), seq_length, dtype)


def sentence_order(checkpoint: Checkpoint, *, seq_length: int | None = None, dtype: Any = None) -> TextModel:
    """The two texts of a pair are in their order, or swapped, by ALBERT's sentence-order head (Lan et al. 2020, sec. 3.1).

    As `next_sentence`, with the labels "in_order" and "swapped".
    """
    return _build(NextSentence("sentence-order"), _read(checkpoint), seq_length, dtype)


def embedder(
    checkpoint: Checkpoint,
    *,
    pooling: str | None = None,
    l2: bool | None = None,
    layers: str | None = None,
    seq_length: int | None = None,
    dtype: Any = None,
    loss: str | None = None,
    temperature: float | None = None,
    margin: float | None = None,
    matryoshka: Sequence[int] | None = None,
    dimension: int | None = None,
    **options: Any,
) -> TextModel:
    """One vector for each text.

    pooling: over the tokens: "mean", "cls", "max", "weighted_mean" (position t weighs t), "mean_sqrt_length" (the sum over the
        square root of the length) or "last"; None takes that of a sentence-transformers folder, else the mean
    l2: True scales vectors to length 1; None takes a sentence-transformers folder's choice, else False
    seq_length: as in `classifier`; None takes the length of a sentence-transformers folder, if the encoder has as many positions
    layers: a row of the paper's Table 7: "last", "second_to_last", "embeddings", "concat_last_four", or, for the
        mean, "weighted_sum_last_four" or "weighted_sum_all"
    loss: a row of VECTOR_LOSSES (bert_keras/model/choices.py); None takes the default for the form of the data
    temperature, margin: of the loss; None takes its own
    matryoshka: such as [384, 128, 64]: the loss is the sum of those of the first 384, 128 and 64 numbers of each vector, scaled
        to length 1, so that the first ones do for a smaller index. Source: Kusupati et al. 2022
    dimension: give the first numbers of each vector, as many as this; None gives all
    options: dense_size, dense_activation, dense_bias: of a dense layer after the pooling. prompts: the name of a prompt and the
        text that it puts before a text; prompt: the name of the usual one; include_prompt: False leaves the prompt out of the
        pooling. similarity: "cosine" or "dot", for a search. What is left out is that of a sentence-transformers folder

    `predict(texts, prompt="query")` puts a prompt before the texts. In training, the queries of pairs get the prompt "query" and
    the other texts "document", "passage" or "corpus", if there are such; all else gets the usual prompt.
    `fit` takes queries and their positives, fit(queries, positives); fit({"query": ..., "positive": ..., "negative": ...}) with
    any number of columns that begin with "negative"; fit((a, b), scores); fit(texts, classes), where classes are whole numbers,
    or names with a loss of classes; or fit(texts, vectors), where vectors [N, H] are those of a teacher. A text is compared with
    those of its batch, in which no two are equal.
    `evaluate` gives the Spearman and Pearson correlation of scores and cosines, and "average_precision" where all labels are 0 or
    1; for pairs, "mrr" and "accuracy" of each positive among all texts that were given; for classes, "accuracy" of the nearest
    text and "v_measure" of k-means; for vectors, the mean "cosine" with them.
    Predictions: "embedding" float32 [N, H].
    """
    if unknown := [name for name in options if name not in names_of(EmbeddingOptions)]:
        raise BertKerasError(
            f"there is no argument {unknown[0]}; an embedding has {', '.join(names_of(EmbeddingOptions))}."
        )
    source = checkpoints.source_of(checkpoint)
    if seq_length is None and source.vocabulary.max_length and sentence_folder(source.path):
        seq_length = min(source.vocabulary.max_length, source.config.max_length)
    options |= {"loss": loss, "temperature": temperature, "margin": margin}
    options |= {"matryoshka": matryoshka and tuple(matryoshka), "dimension": dimension}
    problem = Embedding(pooling=pooling, l2=l2, layers=layers, **options)
    return _build(problem, source, seq_length, dtype)


def reranker(
    checkpoint: Checkpoint, *, seq_length: int | None = None, dtype: Any = None, keep_head: bool | None = None
) -> TextModel:
    """A cross-encoder: one score for a query and a text, which it reads together.

    checkpoint: as in `classifier`; of the folder of a CrossEncoder by sentence-transformers, the scores are the same
    keep_head, seq_length: as in `classifier`; a classifier of one output is kept

    `fit` takes the columns "query" and "text" with labels, 1 for a relevant text and 0 for another one, or numbers between; or,
    without labels, the columns "query", "positive" and any number that begin with "negative", and learns to score the positive
    above the negatives of its row.
    `evaluate` gives "average_precision" and "accuracy" of labels; of negatives, "mrr" and "accuracy" of the positive in its row.
    Texts: the columns "query" and "text". Predictions: "score" float32 [N], the sigmoid of the logit, or the logit where a
    CrossEncoder's folder says so. `rank` sorts texts by their scores.
    """
    source = _read(checkpoint)
    if keep_head is not False and (folder := sentence_folder(source.path)):
        check_modules(folder)
    problem = Reranker(score_function=SIGMOID if keep_head is False else None)
    return _build(problem, source, seq_length, dtype, keep_head)


def load(
    path: str | pathlib.Path,
    *,
    compile: bool = True,
    dtype: str | None = None,
    safe_mode: bool = True,
    task: str | type[Task] | None = None,
) -> TextModel | Any:
    """A saved model, or a checkpoint with the task of its head.

    A `.keras` file, the folder of a run, and a checkpoint by path or name are a TextModel; an exported SavedModel is loaded as
    TensorFlow does it.

    compile: False leaves out the optimizer, the loss and the metrics of a `.keras` file, as in Keras' `load_model`; the others
        have none
    safe_mode: False lets a `.keras` file run code, such as a Lambda or the SavedModel of a HubLayer: only if you trust it
    task: for a run or a `.keras` file of a task of your own: its class, or MODULE:CLASS; the code that a file names is never
        imported
    dtype: of a run or a checkpoint: "bfloat16" or "float16" rounds its weights, to predict only; None takes float32. The others
        have a format of their own

    Raises MissingFileError where there is none of these, BertKerasError for one that is damaged, and for a checkpoint without a
    head.
    """
    given, path = path, to_path(path)
    if dtype is not None and dtype not in PRECISIONS:
        raise BertKerasError(f"dtype is {dtype!r}; give one of {', '.join(PRECISIONS)}.")
    file = _find_export(path)
    if dtype is not None and (file is not None or (path.suffix == KERAS and path.exists())):
        raise BertKerasError(
            f"dtype is {dtype!r} and {path} is no run; a .keras file and an export have a format of their own."
        )
    if path.suffix == KERAS:
        return load_file(path, compile=compile, safe_mode=safe_mode, task=task)
    if file is None:
        run = at_precision(load_run(path, task=task) if is_run(path) else _load_own(given), dtype)
        return TextModel(run.task, run.preprocess, run.model)
    from bert_keras.text.text_ops import text_ops_needed  # registers the ops of the graph

    with for_tensorflow(file.parent) as named, text_ops_needed(file.parent):
        return tf.saved_model.load(str(named))


def _find_export(path: pathlib.Path) -> pathlib.Path | None:
    """The graph of an exported version, or of the newest version in a folder; None where there is none."""
    if (file := path / "saved_model.pb").is_file():
        return file
    numbers = [one for one in path.iterdir() if one.name.isdecimal()] if path.is_dir() else []
    versions = sorted(numbers, key=lambda one: int(one.name))
    return next((one / file.name for one in reversed(versions) if (one / file.name).is_file()), None)


def _load_own(path: str | pathlib.Path) -> Run:
    """A checkpoint as a run of its own task. Raises MissingFileError where nothing that can be loaded is there."""
    try:
        return own_run(path)
    except MissingFileError as error:
        if not to_path(path).is_dir():
            raise
        other = f": {other}" if (other := checkpoints.describe(to_path(path))) else ""
        raise MissingFileError(
            f"{path} is no .keras file, no run, no exported model and no checkpoint{other or '; give one of them'}."
        ) from error


def _read(checkpoint: Checkpoint, others: Iterable[str] = ()) -> checkpoints.Checkpoint:
    """The checkpoint. others: names of arguments. Raises BertKerasError for those that are none of a BiLSTM's."""
    if unknown := [name for name in others if name not in BILSTM_SETTINGS]:
        close = difflib.get_close_matches(
            unknown[0], ("labels", "seq_length", "multi", *BILSTM_SETTINGS), n=1
        )
        known = f"did you mean {close[0]}?" if close else f"a BiLSTM has {', '.join(BILSTM_SETTINGS)}"
        ours = f"give {ARGUMENTS[unknown[0]]}" if unknown[0] in ARGUMENTS else known
        raise BertKerasError(f"there is no argument {unknown[0]}; {ours}.")
    return checkpoints.source_of(checkpoint)


def _check_own(problem: type[Task], source: checkpoints.Checkpoint, *, give: str) -> None:
    """Raises BertKerasError for a checkpoint without a head of the problem, whose labels were left out."""
    if not has_head(problem, source):
        raise BertKerasError(
            f"{source.prefix}the checkpoint has no head of {problem.kind} (its class is {choose_architecture(source)}), so it "
            f"has no labels of its own; give {give}."
        )


def _outside_first(tag: str) -> tuple[bool, str]:
    return tag != OUTSIDE, tag


def _build(
    problem: Problem,
    source: checkpoints.Checkpoint,
    seq_length: int | None,
    dtype: Any,
    keep_head: bool | None = None,
    feature_layers: str | None = None,
    bilstm: Mapping[str, Any] | None = None,
    *,
    own: bool = False,
) -> TextModel:
    """The problem's model with the weights of a checkpoint. Raises as `checkpoints.read`, and for sizes that do not fit.

    own: True says in a line which task the checkpoint has
    """
    features = Hparams(feature_layers=feature_layers, **(bilstm or {})).features  # None for fine-tuning
    problem, source = problem.started_from(source)
    check_readable(problem)  # type: ignore[arg-type]
    if features is not None and keep_head:
        raise BertKerasError(
            "keep_head does not apply with feature_layers, whose head is on a new BiLSTM; leave it out."
        )
    if source.tensors:
        problem.check_checkpoint(source)
    head = choose_head(problem, source, keep_head=keep_head if features is None else False)
    tokenizer = checkpoints.tokenizer_of(source)
    if seq_length is None:
        usual = problem.defaults.get("seq_length", Hparams.seq_length)  # type: ignore[attr-defined]
        longest = min(source.config.max_length, source.vocabulary.max_length or source.config.max_length)
        seq_length = longest if head.kept else min(usual, longest)
    check_sizes(source.config, vocab_size=tokenizer.vocab_size, seq_length=seq_length)
    check_stride(problem, tokenizer, seq_length=seq_length)
    encoder, network = network_of(problem, source.config, features, dtype=dtype)
    if source.tensors:
        _, lines = assign(head, encoder, network)
        for line in [describe(problem, source), *lines] if own and head.kept else lines:
            note(line)
        if problem.pretrained_head and not head.kept:
            warnings.warn(
                f"the checkpoint has no {problem.head} head, which {problem.name} reads: it starts at random and its "
                "predictions mean nothing before fit(); give a checkpoint that was pre-trained with it, such as "
                "bert-base-uncased.",
                stacklevel=3,
            )
    return TextModel(problem, Preprocessor(tokenizer, seq_length=seq_length, pad_to_longest=True), network)
