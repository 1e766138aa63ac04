"""Vocabularies learned from text: WordPiece for BERT, SentencePiece for ALBERT.

In: documents. Out: a folder that `--vocab` takes: vocab.txt or spiece.model, and tokenizer_config.json. Text is normalized by
the tokenizer that will read it, and equal text and settings give equal bytes.
"""

import collections
import io
import itertools
import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_keras.checkpoints import with_tokenizer
from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.checkpoints.names import Checkpoint
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError, MissingPackageError
from bert_keras.folders import whole_folder
from bert_keras.paths import path_of
from bert_keras.text.sentencepiece import SENTENCEPIECE_TOKENS, SentencePiece, sentencepiece_texts
from bert_keras.text.tokenizer import END, MASK, PADDING, START, UNKNOWN, Normalizer, Tokenizer
from bert_keras.text.wordpiece import CONTINUATION, WordPiece, wordpiece_words
from tasks.settings import VocabularyOptions

Document = Sequence[str]
Progress = Callable[[int], None]

LINES = 1024  # that are normalized together
WORDS = 10_000  # that the trainer is given at a time
MAX_SENTENCES = 10_000_000  # that a SentencePiece model is learned from (google-research/albert README)
SEED = 12345  # of their choice, where there are more

# google-research/albert README, "Sentence Piece". The number of threads decides how sums are rounded, whatever the machine has.
SENTENCEPIECE_SETTINGS: dict[str, Any] = {
    "model_type": "unigram",
    "character_coverage": 0.99995,
    "pad_id": 0,
    "pad_piece": SENTENCEPIECE_TOKENS["padding"],
    "unk_id": 1,
    "unk_piece": SENTENCEPIECE_TOKENS["unknown"],
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": [START, END, MASK],
    "user_defined_symbols": list('()"-.–£€'),
    "max_sentence_length": 2**30,  # longer lines would be left out
    "num_threads": 16,
    "minloglevel": 2,
}


class Summary(NamedTuple):
    """A learned tokenizer, and the number of documents that it was learned from."""

    tokenizer: Tokenizer
    documents: int


def learn_wordpiece(
    texts: Iterable[str],
    *,
    size: int,
    lower_case: bool,
    unused: int = VocabularyOptions.unused,
    alphabet: int = VocabularyOptions.alphabet,
) -> WordPiece:
    """A WordPiece vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK], [unused0] .., the alphabet, then pieces, the first merged first.

    texts: words joined by spaces, of `wordpiece_words`
    size: pieces at most; a small corpus has fewer
    unused: rows that are kept free
    alphabet: characters, the commonest; words with another are [UNK]

    Raises ValueError where the size does not hold the alphabet or there is no word, ImportError without the `vocabulary` extra.
    """
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingPackageError(
            "learning a WordPiece vocabulary needs tokenizers; pip install 'bert-keras[vocabulary]'."
        ) from error
    counts = collections.Counter(sys.intern(word) for text in texts for word in text.split(" ") if word)
    common: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for character in word:
            common[character] += count
    known = set(sorted(common, key=lambda character: (-common[character], character))[:alphabet])
    words = sorted(word for word in counts if known.issuperset(word))
    if not words:
        raise BertKerasError("there is no word in the text; give a corpus with some.")
    # The trainer numbers characters as it meets them, in an order that differs from run to run, and breaks ties by these
    # numbers. As special tokens they have numbers of ours.
    opening = [PADDING, UNKNOWN, START, END, MASK, *(f"[unused{i}]" for i in range(unused))]
    opening += sorted(known)
    opening += sorted({CONTINUATION + character for word in words for character in word[1:]})
    if len(opening) > size:
        raise BertKerasError(
            f"size is {size}; the special tokens and the alphabet alone are {len(opening)}: give more, or a smaller alphabet."
        )
    model = tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=opening, show_progress=False)
    model.train_from_iterator(_repeated(words, counts), trainer)
    ids = model.get_vocab(with_added_tokens=False)
    return WordPiece(sorted(ids, key=ids.__getitem__), lower_case=lower_case)


def _repeated(words: Iterable[str], counts: collections.Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted."""
    every = itertools.chain.from_iterable(itertools.repeat(word, counts[word]) for word in words)
    return iter(lambda: " ".join(itertools.islice(every, WORDS)), "")


def learn_sentencepiece(texts: Iterable[str], *, size: int, lower_case: bool) -> SentencePiece:
    """A SentencePiece model with ALBERT's settings: <pad> <unk> [CLS] [SEP] [MASK], eight signs, then pieces by probability.

    texts: of `sentencepiece_texts`; of more than MAX_SENTENCES a random choice is read
    size: pieces

    Raises ValueError where the text has too few or too many characters for the size.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_drawn(texts, MAX_SENTENCES)),
            model_writer=model,
            vocab_size=size,
            **SENTENCEPIECE_SETTINGS,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip() or "the text is empty"
        raise BertKerasError(
            f"no SentencePiece model of {size} pieces can be learned of this text: {reason}"
        ) from error
    return SentencePiece(model.getvalue(), lower_case=lower_case)


def _drawn(texts: Iterable[str], most: int) -> list[str]:
    """`most` of the texts, each with one chance, the same for the same texts; all where there are no more."""
    draw, drawn = random.Random(SEED), []
    for number, text in enumerate(text for text in texts if text.strip(" ")):
        if number < most:
            drawn.append(text)
        elif (place := draw.randrange(number + 1)) < most:
            drawn[place] = text
    return drawn


# How text is normalized, and what learns from it.
KINDS: dict[str, tuple[Callable[..., Normalizer], Callable[..., Tokenizer]]] = {
    "wordpiece": (wordpiece_words, learn_wordpiece),
    "sentencepiece": (sentencepiece_texts, learn_sentencepiece),
}


def write_vocabulary(
    documents: Iterable[Document],
    path: str | pathlib.Path,
    *,
    kind: str = VocabularyOptions.kind,
    size: int = VocabularyOptions.size,
    lower_case: bool = True,
    progress: Progress = lambda done: None,
    **settings: int,
) -> Summary:
    """Learns a vocabulary and writes the folder that `checkpoints.load_tokenizer` reads.

    documents: a `Corpus`; read once
    path: a folder that is not there yet, or empty
    kind: a key of KINDS; settings: of its learner
    progress: is called with the number of documents read since its last call

    Raises ValueError where the folder holds files, and as the learners do; nothing is written then.
    """
    path = path_of(path)
    if kind not in KINDS:
        raise BertKerasError(f"kind is {kind!r}; choose one of {', '.join(KINDS)}.")
    normalizer, learn = KINDS[kind]
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for document in documents:
            yield from document
            count += 1
            progress(1)

    def texts() -> Iterator[str]:
        normal, every = normalizer(lower_case=lower_case), lines()
        while batch := list(itertools.islice(every, LINES)):
            yield from normal(batch)

    with whole_folder(path) as new:  # before the long work: it may be refused
        tokenizer = learn(texts(), size=size, lower_case=lower_case, **settings)
        empty = Checkpoint(config=BertConfig(vocab_size=tokenizer.vocab_size), tensors={})
        write_tokenizer(with_tokenizer(empty, tokenizer), new)
    return Summary(tokenizer, count)
