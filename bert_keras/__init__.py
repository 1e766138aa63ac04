"""BERT for TensorFlow and Keras 3. Each public name is imported at its first use (PEP 562)."""

import importlib
import importlib.abc
import sys
from typing import TYPE_CHECKING, Any

from bert_keras.model.registered import CLASSES, register_with_keras

if TYPE_CHECKING:  # editors and type checkers read these lines; they do not run `__getattr__`
    from bert_keras.checkpoints import load_encoder, load_tokenizer
    from bert_keras.config import BertConfig
    from bert_keras.errors import BertKerasError
    from bert_keras.fields import Masking
    from bert_keras.model.crf import CRF, crf_loss
    from bert_keras.model.encoder import BertEncoder, encoder_inputs
    from bert_keras.model.feature_bilstm import LayerMix
    from bert_keras.model.heads import (
        ChoiceHead,
        ClassifierHead,
        ConcatClassifierHead,
        MaskedLMHead,
        MeanPooling,
        NextSentenceHead,
        ReplacedTokenHead,
        SpanHead,
        TokenHead,
    )
    from bert_keras.model.tensorflow_layers import HubLayer, PreprocessorLayer
    from bert_keras.optimization.losses import GlobalMean, cross_entropy, squared_error
    from bert_keras.optimization.objectives import (
        LeftToRight,
        MaskedLM,
        Objective,
        ReplacedTokens,
        SentencePair,
    )
    from bert_keras.optimization.optimizers import LAMB, AdamW
    from bert_keras.optimization.pretrainers import ElectraPretrainer, Pretrainer
    from bert_keras.optimization.replicas import without_autotuning
    from bert_keras.optimization.schedules import (
        InverseSquareRoot,
        LinearAfterWarmup,
        SlantedTriangular,
        WarmupLinearDecay,
    )
    from bert_keras.savedmodels.export import export
    from bert_keras.tasks.inspection.attention import attention, attention_summary
    from bert_keras.tasks.inspection.explanation import explain
    from bert_keras.tasks.report import Report
    from bert_keras.tasks.strings.models import (
        chooser,
        classifier,
        embedder,
        load,
        masked_lm,
        next_sentence,
        question_answerer,
        regressor,
        replaced_tokens,
        reranker,
        sentence_order,
        tagger,
    )
    from bert_keras.tasks.strings.text_model import TextModel
    from bert_keras.tasks.task import Data, Problem, Task
    from bert_keras.text.byte_bpe import ByteBPE
    from bert_keras.text.masking import Pieces
    from bert_keras.text.preprocessing import Preprocessor, pad_batches
    from bert_keras.text.rules import AddedToken, Rules
    from bert_keras.text.sentencepiece import SentencePiece
    from bert_keras.text.word_bpe import WordBPE
    from bert_keras.text.wordpiece import WordPiece

__version__ = "0.1.0"  # setup.cfg reads it; RELEASING.md names the files that repeat it
__all__ = [
    "CRF",
    "LAMB",
    "AdamW",
    "AddedToken",
    "BertConfig",
    "BertEncoder",
    "BertKerasError",
    "ByteBPE",
    "ChoiceHead",
    "ClassifierHead",
    "ConcatClassifierHead",
    "Data",
    "ElectraPretrainer",
    "GlobalMean",
    "HubLayer",
    "InverseSquareRoot",
    "LayerMix",
    "LeftToRight",
    "LinearAfterWarmup",
    "MaskedLM",
    "MaskedLMHead",
    "Masking",
    "MeanPooling",
    "NextSentenceHead",
    "Objective",
    "Pieces",
    "Preprocessor",
    "PreprocessorLayer",
    "Pretrainer",
    "Problem",
    "ReplacedTokenHead",
    "ReplacedTokens",
    "Report",
    "Rules",
    "SentencePair",
    "SentencePiece",
    "SlantedTriangular",
    "SpanHead",
    "Task",
    "TextModel",
    "TokenHead",
    "WarmupLinearDecay",
    "WordBPE",
    "WordPiece",
    "attention",
    "attention_summary",
    "chooser",
    "classifier",
    "crf_loss",
    "cross_entropy",
    "embedder",
    "encoder_inputs",
    "explain",
    "export",
    "load",
    "load_encoder",
    "load_tokenizer",
    "masked_lm",
    "next_sentence",
    "pad_batches",
    "question_answerer",
    "regressor",
    "replaced_tokens",
    "reranker",
    "sentence_order",
    "squared_error",
    "tagger",
    "without_autotuning",
]

_HOMES = {
    "bert_keras.errors": ("BertKerasError",),
    "bert_keras.config": ("BertConfig",),
    "bert_keras.text.byte_bpe": ("ByteBPE",),
    "bert_keras.text.rules": ("AddedToken", "Rules"),
    "bert_keras.text.sentencepiece": ("SentencePiece",),
    "bert_keras.text.word_bpe": ("WordBPE",),
    "bert_keras.text.wordpiece": ("WordPiece",),
    "bert_keras.text.preprocessing": ("Preprocessor", "pad_batches"),
    "bert_keras.model.crf": ("CRF", "crf_loss"),
    "bert_keras.model.encoder": ("BertEncoder", "encoder_inputs"),
    "bert_keras.model.heads": CLASSES["bert_keras.model.heads"],
    "bert_keras.fields": ("Masking",),
    "bert_keras.text.masking": ("Pieces",),
    "bert_keras.optimization.objectives": (
        "LeftToRight",
        "MaskedLM",
        "Objective",
        "ReplacedTokens",
        "SentencePair",
    ),
    "bert_keras.optimization.pretrainers": ("ElectraPretrainer", "Pretrainer"),
    "bert_keras.optimization.replicas": ("without_autotuning",),
    "bert_keras.optimization.schedules": (
        "InverseSquareRoot",
        "LinearAfterWarmup",
        "SlantedTriangular",
        "WarmupLinearDecay",
    ),
    "bert_keras.optimization.losses": ("GlobalMean", "cross_entropy", "squared_error"),
    "bert_keras.optimization.optimizers": ("AdamW", "LAMB"),
    "bert_keras.checkpoints": ("load_encoder", "load_tokenizer"),
    "bert_keras.model.feature_bilstm": ("LayerMix",),
    "bert_keras.tasks.inspection.attention": ("attention", "attention_summary"),
    "bert_keras.tasks.inspection.explanation": ("explain",),
    "bert_keras.tasks.report": ("Report",),
    "bert_keras.tasks.task": ("Data", "Problem", "Task"),
    "bert_keras.tasks.strings.text_model": ("TextModel",),
    "bert_keras.tasks.strings.models": (
        "chooser",
        "classifier",
        "embedder",
        "load",
        "masked_lm",
        "next_sentence",
        "question_answerer",
        "regressor",
        "replaced_tokens",
        "reranker",
        "sentence_order",
        "tagger",
    ),
    "bert_keras.model.tensorflow_layers": ("HubLayer", "PreprocessorLayer"),
    "bert_keras.savedmodels.export": ("export",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def _about_missing(name: str) -> str:
    import difflib

    from bert_keras.io.other_names import our_name

    ours = our_name(name)
    close = difflib.get_close_matches(name, __all__, n=1)
    there = f"did you mean {close[0]}?" if close else f"it has {', '.join(__all__)}"
    there = f"bert_keras.{ours} takes its place: docs/migrate.md" if ours else there
    return f"module 'bert_keras' has no attribute {name!r}; {there}."


if not TYPE_CHECKING:  # else a type checker takes any name for a public one

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(_about_missing(name))
        return getattr(importlib.import_module(_HOME_OF[name]), name)


class _MissingNames(importlib.abc.MetaPathFinder):
    """Has `from bert_keras import NAME` say what `bert_keras.NAME` says.

    Python hides the AttributeError of `__getattr__`, and looks for a module of this name before it gives up.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        package, _, last = name.rpartition(".")
        if package == __name__:
            raise ModuleNotFoundError(_about_missing(last))  # with its name, Python would hide it too


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


register_with_keras()
sys.meta_path.append(_MissingNames())
