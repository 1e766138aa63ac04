"""Every option of the tasks, and of commands that do not train: defaults, help, choices and bounds. No TensorFlow, no Keras.

Those of studies are in tasks/study/study_options.py.
"""

import dataclasses
import difflib
import ipaddress
from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError
from bert_keras.fields import Checked, like, setting, wrong_setting
from bert_keras.model.choices import DENSE_ACTIVATIONS, LAYERS, VECTOR_LOSSES, VECTOR_POOLINGS
from bert_keras.tasks.hparams import Hparams

MAX_OPTION = 1_000_000  # the upper bound for options that are counts
MAX_CHOICES = 1_000
OWN = "own"  # the pooling that a sentence-transformers folder says

# -----------------------------------------------------------------------------------------------------------
# Options of the tasks. An option of several tasks means the same in all of them.


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowOptions(Checked):
    """Options for long texts, which are read in windows that overlap."""

    doc_stride: int = setting(
        128, help="tokens between the starts of two windows", at_least=1, at_most=MAX_OPTION
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(WindowOptions):
    """Options for question answering."""

    max_query_length: int = setting(
        64, help="longest question in tokens; longer ones are truncated", at_least=1, at_most=MAX_OPTION
    )
    max_answer_length: int = setting(30, help="longest answer in tokens", at_least=1, at_most=MAX_OPTION)
    n_best: int = setting(20, help="answers to list for each question", at_least=1, at_most=MAX_OPTION)
    answer_language: str | None = setting(
        None,
        help="compare answers by MLQA's rules for this language (default: by SQuAD's rules, which are for English)",
        choices=("ar", "de", "en", "es", "hi", "vi", "zh"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(WindowOptions):
    """Options for named entities."""

    context: str = setting(
        "document", help="the context of each tagged sentence", choices=("document", "sentence")
    )
    word_column: str | None = setting(
        None,
        help="conll2003: the column of the words, by its number from 1 or its name in the first line (default: the first, or the "
        "second after numbers)",
    )
    tag_column: str | None = setting(
        None,
        help="conll2003: the column of the tags, likewise (default: the only one with tags of entities; else the last)",
    )
    crf: bool = setting(
        False,
        help="conll2003: choose the tags of a sentence together, by a conditional random field; a batch then counts documents or "
        "sentences, not windows",
    )
    iob_constraints: bool = setting(
        False, help="with crf: no I- tag without a tag of its entity before it, in training and in answers"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.iob_constraints and not self.crf:
            raise wrong_setting(self, "iob_constraints", "False without crf, whose transitions it constrains")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceOptions(Checked):
    """Options for multiple choice."""

    num_choices: int = setting(4, help="endings in every example", at_least=2, at_most=MAX_CHOICES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions(Checked):
    """Options for GLUE's tasks and for custom."""

    pooling: str = setting(
        "pooled",
        help="input of the classifier: the pooled output, or concat with maximum and mean too",
        choices=("pooled", "concat"),
    )
    doc_stride: int | None = like(
        WindowOptions,
        "doc_stride",
        default=None,
        help="tokens between the starts of two windows over a long text (default: 128 for questions and tags; GLUE's tasks and "
        "custom truncate long texts unless it is given)",
    )
    truncation: str | None = setting(
        None,
        help="GLUE and custom, single texts: the part to keep of a text that is too long: tail, or head_tail, a quarter from "
        "the start and the rest from the end (default: the start)",
        choices=("tail", "head_tail"),
    )
    both_orders: bool = setting(
        False,
        help="GLUE and custom, pairs: read both orders, and add their vectors, as GPT does where the texts are alike",
    )

    def __post_init__(self) -> None:
        if self.truncation is not None and self.doc_stride is not None:
            raise wrong_setting(self, "truncation", "None if doc_stride is set: windows read the whole text")
        if self.both_orders and (self.doc_stride is not None or self.pooling != "pooled"):
            raise wrong_setting(
                self, "both_orders", "False with doc_stride, and with another pooling than pooled"
            )
        super().__post_init__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnOptions(Checked):
    """Options for examples in the columns of a table: GLUE's tasks and custom. label_type applies only to custom."""

    text_column: tuple[str, ...] | None = setting(
        None,
        help="GLUE and custom: the column of the text, or the two columns of a pair (default for custom: all columns but the "
        "label's, idx, index and id)",
    )
    label_column: str | None = setting(
        None, help="GLUE and custom: the column of the label (default for custom: label)"
    )
    label_type: str | None = setting(
        None,
        help="custom: each text has one class, a score, or any number of labels (a list, or separated by |); needed if "
        "all labels are numbers",
        choices=("class", "score", "multi"),
    )
    quoting: str | None = setting(
        None,
        help="GLUE, custom and predict: quotes in a .tsv are CSV's or text (default: CSV's if a CSV writer such as pandas wrote "
        "the file; text in GLUE's files)",
        choices=("csv", "text"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column is not None and len({*self.text_column}) != len(self.text_column):
            raise wrong_setting(self, "text_column", "different columns")
        if self.text_column is not None and len(self.text_column) not in (1, 2):
            raise wrong_setting(self, "text_column", "one column, or two for a pair")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions(Checked):
    """The measure of a classifier that chooses the best epoch."""

    measure: str | None = setting(
        None,
        help="GLUE and custom: the dev measure that chooses the best epoch: accuracy, matthews, spearman or pearson; precision, "
        "recall or f1, alone for two labels, else with _macro, _micro, _weighted or _ and a label, as in f1_macro (default: "
        "the data set's)",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMaskOptions(Checked):
    """Options for fill-mask."""

    top_k: int = setting(5, help="tokens to list for each [MASK]", at_least=1, at_most=MAX_OPTION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingOptions(Checked):
    """Options for vectors of texts and their learning. None of a temperature or a margin takes that of the loss.

    include_prompt: False leaves [CLS] and the tokens of the prompt out of the pooling, not out of the encoder
    """

    pooling: str | None = setting(
        None, help="embedding: pool the tokens of a text into one vector", choices=VECTOR_POOLINGS
    )
    l2: bool | None = setting(None, help="embedding: scale vectors to length 1")
    layers: str | None = setting(
        None, help="embedding: the layers of a vector, as in features (default: last)"
    )
    dense_size: int | None = setting(
        None,
        help="embedding: numbers that a dense layer makes of a pooled vector (default: no such layer)",
        at_least=1,
        at_most=1 << 20,
    )
    dense_activation: str | None = setting(
        None, help="embedding: of the dense layer (default: tanh)", choices=DENSE_ACTIVATIONS
    )
    dense_bias: bool | None = setting(None, help="embedding: a bias in the dense layer (default: yes)")
    prompts: dict[str, str] | None = setting(
        None,
        help="embedding: the name of a prompt and the text that it puts before a text; of pairs, the query gets query, and the "
        "others document, passage or corpus",
    )
    prompt: str | None = setting(
        None, help="embedding: the name of the prompt before other texts (default: none)"
    )
    include_prompt: bool | None = setting(
        None, help="embedding: pool the tokens of the prompt too (default: yes)"
    )
    similarity: str | None = setting(
        None, help="embedding: how a search compares the vectors: cosine or dot (default: cosine)"
    )
    loss: str | None = setting(
        None,
        help="embedding: what the vectors learn (default: multiple_negatives_ranking of pairs, cosent of pairs with scores, "
        "batch_hard_triplet of texts with classes, mean_squared_error of texts with a teacher's vectors)",
        choices=tuple(VECTOR_LOSSES),
    )
    temperature: float | None = setting(
        None, help="embedding: divide cosines by this in the loss (default: 0.05)", over=0
    )
    margin: float | None = setting(
        None,
        help="embedding: how much farther a negative is to be than a positive, in the triplet losses (default: 5)",
        over=0,
    )
    matryoshka: tuple[int, ...] | None = setting(
        None,
        help="embedding: sum the losses of the first numbers of each vector, as many as each of these, so that fewer do too",
        at_least=1,
    )
    dimension: int | None = setting(
        None,
        help="embedding: give the first numbers of each vector, as many as this (default: all)",
        at_least=1,
    )
    negative_column: tuple[str, ...] | None = setting(
        None,
        help="embedding and reranking: the columns of negatives beside the pair of --text-column (default: those that begin with "
        "negative)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(text, str) for text in (self.prompts or {}).values()):
            raise wrong_setting(self, "prompts", "an object of texts")
        for name in ("temperature", "margin"):
            if getattr(self, name) is not None and (
                self.loss is None or getattr(VECTOR_LOSSES[self.loss], name) is None
            ):
                having = ", ".join(
                    one for one, row in VECTOR_LOSSES.items() if getattr(row, name) is not None
                )
                raise BertKerasError(
                    f"{name} is {getattr(self, name)}; give it with a loss that has one: {having}."
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationOptions(Checked):
    """Options for translating (defaults: Vaswani et al. 2017, sec. 6.1). A beam of 1 and a length penalty of 0 are greedy."""

    beam: int = setting(
        4, help="prefixes that the search keeps of each length", at_least=1, at_most=MAX_OPTION
    )
    length_penalty: float = setting(
        0.6, help="divide log p by ((5 + length) / 6) to this power; 0 prefers short translations", at_least=0
    )
    extra_tokens: int = setting(
        50, help="the most tokens that a translation has more than its source", at_least=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationOptions(Checked):
    """Options for continuing texts. Without temperature, top_k and top_p, the most probable token is taken: greedy.

    Source: Holtzman et al. 2020.
    """

    tokens: int = setting(50, help="the most tokens to add to a text", at_least=1, at_most=MAX_OPTION)
    temperature: float | None = setting(
        None,
        help="sample, with the logits divided by this; 0 takes the most probable token (default: 1 with top_k or top_p, else 0)",
        at_least=0,
    )
    top_k: int | None = setting(
        None,
        help="sample from this many of the most probable tokens (default: all)",
        at_least=1,
        at_most=MAX_OPTION,
    )
    top_p: float | None = setting(
        None,
        help="sample from the fewest most probable tokens whose probabilities sum to this (default: all)",
        over=0,
        at_most=1,
    )
    seed: int = like(Hparams, "seed", help="seed of the sampling; each text has draws of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise wrong_setting(self, "temperature", "over 0 with top_k or top_p, which sample")

    @property
    def greedy(self) -> bool:
        """True where nothing is drawn."""
        return not self.temperature and self.top_k is None and self.top_p is None


# The labels of the two heads on sentence pairs, by the name of the task; label 0 is a second text that follows the first.
SENTENCE_PAIR_LABELS = {"next-sentence": ("is_next", "not_next"), "sentence-order": ("in_order", "swapped")}
# The tasks that a pre-trained checkpoint can do without fine-tuning.
PRETRAINED_TASKS = ("fill-mask", *SENTENCE_PAIR_LABELS)

# The names that --task takes, besides MODULE:CLASS, in the order of an error.
TASK_NAMES = (
    *("cola sst2 mrpc qqp stsb mnli qnli rte wnli ax custom squad1.1 squad2.0 swag codah conll2003".split()),
    *(*PRETRAINED_TASKS, "replaced-tokens", "embedding", "reranking"),
)


def check_task_name(name: str) -> None:
    """Raises BertKerasError for an unknown task, without TensorFlow."""
    if name not in TASK_NAMES:
        close = difflib.get_close_matches(name, TASK_NAMES, 1)
        mean = f": did you mean {close[0]}" if close else ""
        raise BertKerasError(
            f"no task named {name!r}{mean}; the tasks are {', '.join(TASK_NAMES)}, or MODULE:CLASS for one of your own."
        )


# If several classes have an option, the flag shows the help of the first class.
TASK_OPTIONS = (
    ClassifierOptions,
    ColumnOptions,
    MeasureOptions,
    SquadOptions,
    TaggingOptions,
    ChoiceOptions,
    FillMaskOptions,
    EmbeddingOptions,
)

# The hyperparameters of a task's paper that differ from the defaults of Hparams, by task.
TASK_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "squad1.1": {"epochs": 3, "learning_rate": 5e-5, "batch_size": 32, "seq_length": 384},
    "squad2.0": {"epochs": 2, "learning_rate": 5e-5, "batch_size": 48, "seq_length": 384},
    "swag": {"learning_rate": 2e-5, "batch_size": 16},  # Devlin et al. 2019, sec. 4.4
    "codah": {"learning_rate": 2e-5, "batch_size": 16},
}
# The same for conll2003, by context. A batch of 8 documents has about as many words as a batch of 128 sentences.
TAGGING_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "document": {"seq_length": 512, "batch_size": 8, "epochs": 4},
    "sentence": {"seq_length": 128, "batch_size": 32, "epochs": 4},
}


# -----------------------------------------------------------------------------------------------------------
# Options of commands that do not train

MAX_PORT = 2**16 - 1
DAY = 86_400.0  # seconds
MESSAGE_PER_TEXT = 8  # bytes of a message for each byte of text: JSON may need six for a letter
MESSAGE_EXTRA = 65_536  # bytes of a message besides its texts
MAX_TEXT = (2**31 - 1 - MESSAGE_EXTRA) // MESSAGE_PER_TEXT  # gRPC counts the bytes of a message in an int32

SAVED_MODEL = "savedmodel"  # the format of an export by default


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyOptions(Checked):
    """Options for learning a vocabulary. unused is for WordPiece alone, alphabet also for GPT's BPE, min_count for words."""

    kind: str = setting(
        "wordpiece", help="the kind of vocabulary", choices=("wordpiece", "sentencepiece", "words", "gpt-bpe")
    )
    size: int = setting(30_522, help="tokens in the vocabulary", at_least=1)
    cased: bool = setting(False, help="keep upper case (and accents, but for SentencePiece)")
    unused: int = setting(0, help="WordPiece: number of [unused] tokens", at_least=0)
    alphabet: int = setting(
        1000, help="WordPiece and GPT's BPE: keep this many of the most frequent characters", at_least=1
    )
    # The default of word2vec.c.
    min_count: int = setting(5, help="words: leave out words that the text has fewer times", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(Checked):
    """Options for estimating a pre-training."""

    devices: int = setting(1, help="devices that share each batch", at_least=1)
    teraflops: float | None = setting(
        None, help="throughput of one device, to estimate the days (see below)", over=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriviaQaOptions(Checked):
    """Options for converting TriviaQA."""

    split: str = setting("train", help="the split to write", choices=("train", "validation"))
    tokens: int = setting(400, help="words in a paragraph, separated by white space", at_least=1)
    limit: int | None = setting(None, help="number of questions to read (default: all)", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureOptions(WindowOptions):
    """Options for extracting features from a frozen encoder."""

    layers: str = setting(
        "last", help="layers to combine into a vector; sums have equal weights", choices=tuple(LAYERS)
    )
    level: str = setting("word", help="one vector for each word or token", choices=("word", "piece"))
    format: str = setting("jsonl", help="format of the file", choices=("jsonl", "parquet"))
    dtype: str = setting("float32", help="type of the numbers", choices=("float16", "float32"))
    precision: str = like(Hparams, "precision", help="format of the computation")
    seq_length: int | None = like(
        Hparams,
        "seq_length",
        default=None,
        help="tokens in a window (default: 512, or the encoder's maximum)",
    )
    batch_size: int = like(Hparams, "batch_size", default=8, help="lines or windows in a batch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceOptions(Checked):
    """Options for a model that is not trained: batches of evaluate and predict, and the precision of exports too."""

    batch_size: int = like(Hparams, "batch_size", help="examples in a batch")
    precision: str | None = like(
        Hparams,
        "precision",
        default=None,
        help="format of weights and computation; logits stay float32 (default: that of a .keras file, else float32)",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedOptions(Checked):
    """Settings of a trained task that change its answers and not its weights."""

    tau: float | None = setting(
        None,
        help="SQuAD 2.0: answer where the best span scores this much more than no answer (default: chosen on dev by finetune)",
    )
    dimension: int | None = like(EmbeddingOptions, "dimension")
    logits: bool = setting(
        False, help="give logits too: of the classes of a text, or of the n best answers and of no answer"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(Checked):
    """Options for exports. Those before format apply to a checkpoint without training, layers and l2 only to vectors."""

    embedding: str | None = setting(
        None,
        help="with --checkpoint: pool the tokens of a text into one vector (own: as its sentence-transformers folder does), or "
        "give one vector for each word",
        choices=(*VECTOR_POOLINGS, OWN, "word"),
    )
    l2: bool = setting(False, help="scale the vectors of texts to length 1")
    layers: str | None = like(
        FeatureOptions,
        "layers",
        default=None,
        help="layers to combine into a vector; sums have equal weights (default: last)",
    )
    seq_length: int | None = like(
        Hparams,
        "seq_length",
        default=None,
        help="most tokens in a text or a window (default: the encoder's maximum)",
    )
    format: str = setting(
        SAVED_MODEL,
        help="a SavedModel that takes raw strings, or the part without strings for another runtime, with the tokenizer beside "
        "it; litert is TensorFlow Lite (TFLite)",
        choices=(SAVED_MODEL, "onnx", "openvino", "litert"),
    )
    freeze: bool = setting(
        False,
        help="SavedModel: write the weights as constants of the graph, which run faster on CPU and cannot be trained",
    )
    quantize: str | None = setting(
        None,
        help="onnx, openvino and litert: int8 weights, by the runtime's own quantizer",
        choices=("int8",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format == SAVED_MODEL and self.quantize is not None:
            raise wrong_setting(
                self, "quantize", f"None for a {SAVED_MODEL}: give format onnx, openvino or litert"
            )
        if self.format != SAVED_MODEL and self.freeze:
            raise wrong_setting(
                self, "freeze", f"False for {self.format}, whose weights are always constants"
            )


COSINE, SIMILARITIES = "cosine", ("cosine", "dot")
# The prompts of a model that are used where none is named, if it has one: the names of sentence-transformers.
QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions(Checked):
    """Options for an index of texts and for its queries."""

    column: str = setting("text", help="the column of the texts in a table")
    similarity: str | None = setting(
        None,
        help="compare vectors by the cosine of their angle, or by their dot product (default: that of the model, else cosine)",
        choices=SIMILARITIES,
    )
    prompt: str | None = setting(
        None,
        help="the name of the model's prompt before each text (default: document, passage or corpus for the texts of an index, "
        "and query for queries, where the model has one; else the model's own prompt)",
    )
    dimension: int | None = like(EmbeddingOptions, "dimension")
    k: int = setting(10, help="texts in an answer, the nearest first", at_least=1, at_most=MAX_OPTION)
    rerank: int | None = setting(
        None,
        help="with a reranker: the nearest texts that it scores (default: 50, or k or all texts if that is nearer)",
        at_least=1,
        at_most=MAX_OPTION,
    )
    vectors: str = setting(
        "float32",
        help="format of the vectors in memory; int8 takes a quarter of it",
        choices=("float32", "int8"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningOptions(Checked):
    """Options for hard negatives from an index."""

    negatives: int = setting(1, help="negatives for each pair", at_least=1, at_most=100)
    skip: int = setting(0, help="leave out this many of the nearest texts", at_least=0, at_most=MAX_OPTION)
    depth: int = setting(100, help="look at this many of the nearest texts", at_least=1, at_most=MAX_OPTION)
    margin: float = setting(
        0.05,
        help="leave out a text whose score with the query is over the positive's less this fraction",
        at_least=0,
        below=1,
    )
    duplicate: float = setting(
        0.95, help="leave out a text whose cosine with a positive is this or more", over=0, at_most=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubOptions(Checked):
    """Options for TensorFlow Hub's preprocessor and encoder."""

    seq_length: int = like(Hparams, "seq_length", help="truncate and pad texts to this many tokens")
    fresh_pooler: bool = setting(False, help="initialize the pooler randomly if the checkpoint has none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions(Checked):
    """Options for `serve`."""

    host: str = setting("127.0.0.1", help="IP address to listen on; 0.0.0.0 is every address of this machine")
    port: int = setting(8501, help="port for REST; 0 picks a free port", at_least=0, at_most=MAX_PORT)
    grpc_port: int = setting(8500, help="port for gRPC; 0 picks a free port", at_least=0, at_most=MAX_PORT)
    no_grpc: bool = setting(False, help="serve only REST, which needs no extra package")
    no_page: bool = setting(False, help="serve no page to try the model in a browser")
    no_access_log: bool = setting(False, help="print no line for each request")
    poll_seconds: float = setting(
        1.0, help="seconds between two looks for new versions; 0 looks once", at_least=0, at_most=DAY
    )
    max_rows: int = setting(1_000, help="most rows in a request", over=0)
    max_text: int = setting(1_000_000, help="most bytes of text in a request", over=0, at_most=MAX_TEXT)
    max_seconds: float = setting(60.0, help="time limit for a request in seconds", over=0, at_most=DAY)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise wrong_setting(self, "host", "an IP address, such as 127.0.0.1, 0.0.0.0 or ::") from None

    @property
    def beyond_loopback(self) -> bool:
        """True if other machines may reach the server."""
        return not ipaddress.ip_address(self.host).is_loopback

    @property
    def own_host(self) -> str:
        """The host of the server's addresses, as this machine reaches it."""
        address = ipaddress.ip_address(self.host)
        if address.is_unspecified:
            return "127.0.0.1"
        return f"[{address}]" if address.version == 6 else str(address)

    @property
    def max_message(self) -> int:
        """The most bytes of an HTTP body or a gRPC message."""
        return MESSAGE_PER_TEXT * self.max_text + MESSAGE_EXTRA
