"""Vocabularies learned from text: WordPiece, GPT's BPE, SentencePiece and words; and a checkpoint's with words of one's own.

In: documents. Out: a folder for `--vocab`: the files of the vocabulary and tokenizer_config.json. The tokenizer of the vocabulary
normalizes the text. Equal text and settings give equal bytes.
"""

import collections
import io
import itertools
import json
import pathlib
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_keras.checkpoints.hugging_face_tokenizer import write_tokenizer
from bert_keras.errors import BertKerasError, MissingPackageError, first_names
from bert_keras.io.folders import atomic_folder
from bert_keras.io.paths import to_path
from bert_keras.tasks.options import VocabularyOptions
from bert_keras.text.rules import CLASS, END, GPT_FRAME, GPT_TOKENS, MASK, PADDING, START, UNKNOWN, Rules
from bert_keras.text.sentencepiece import SENTENCEPIECE_TOKENS, SentencePiece, sentencepiece_texts
from bert_keras.text.tokenizer import Normalizer, Tokenizer
from bert_keras.text.vocabulary import WORD_END
from bert_keras.text.word_bpe import WordBPE
from bert_keras.text.word_tokenizer import CLASSES, class_of
from bert_keras.text.wordpiece import BERT_TOKENS, CONTINUATION, MAX_PIECE_BYTES, WordPiece, wordpiece_words

LINES = 1024  # lines to normalize together
WORDS = 10_000  # words to pass to the trainer at a time
MAX_SENTENCES = 10_000_000  # to learn a SentencePiece model from (google-research/albert README)
SEED = 12345  # for drawing these sentences, if there are more

# google-research/albert README, "Sentence Piece". The number of threads is fixed because it affects rounding.
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
    "max_sentence_length": 2**30,  # the trainer skips longer lines
    "num_threads": 16,
    "minloglevel": 2,
}


_UNUSED = re.compile(r"\[unused\d+\]")


class LearnedVocabulary(NamedTuple):
    """A learned tokenizer, and the number of documents read."""

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
    """A WordPiece vocabulary: [PAD] [UNK] [CLS] [SEP] [MASK], [unused0] .., the alphabet, then tokens in the order of merges.

    texts: words joined by spaces, from `wordpiece_words`
    size: most tokens; a small corpus gives fewer
    unused: number of [unused] tokens
    alphabet: number of characters to keep, the most frequent; words with other characters are [UNK]

    Raises ValueError if the size is too small for the alphabet or the text has no words, ImportError without the `vocabulary`
    extra.
    """
    special = [PADDING, UNKNOWN, START, END, MASK, *(f"[unused{i}]" for i in range(unused))]
    inner = CONTINUATION + "{}"
    vocabulary, _ = _learned("WordPiece", texts, special, inner, UNKNOWN, size=size, alphabet=alphabet)
    return WordPiece(vocabulary, lower_case=lower_case)


def learn_gpt_bpe(
    texts: Iterable[str], *, size: int, lower_case: bool, alphabet: int = VocabularyOptions.alphabet
) -> WordBPE:
    """A vocabulary of GPT: <unk>, the alphabet, the alphabet at the ends of words, tokens in the order of merges, three marks.

    Arguments and errors as in `learn_wordpiece`. Source: Radford et al. 2018, sec. 4.1.
    """
    unknown, last = GPT_TOKENS["unknown"], "{}" + WORD_END
    sizes = {"size": size, "alphabet": alphabet, "beyond": len(GPT_FRAME)}
    vocabulary, merges = _learned(
        "BPE", texts, [unknown], last, unknown, **sizes, end_of_word_suffix=WORD_END
    )
    return WordBPE(vocabulary, merges, lower_case=lower_case)


def _learned(
    model: str,
    texts: Iterable[str],
    special: list[str],
    form: str,
    unknown: str,
    *,
    size: int,
    alphabet: int,
    beyond: int = 0,
    **settings: Any,
) -> tuple[list[str], list[str]]:
    """The tokens, the given special ones first, and the merges, of a model of the library `tokenizers`.

    form: of a character in the other place of a word than where its token is the character itself
    beyond: tokens of the size that the model does not have
    """
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingPackageError(
            f"learning a {model} vocabulary needs tokenizers; pip install 'bert-keras[vocabulary]'."
        ) from error
    counts = _counted(texts)
    common: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for character in word:
            common[character] += count
    known = set(sorted(common, key=lambda character: (-common[character], character))[:alphabet])
    words = sorted(word for word in counts if known.issuperset(word))
    if not words:
        raise BertKerasError("the text has no words; give a corpus with words.")
    # The trainer breaks ties by the numbers of characters, and assigns these numbers in an order that differs between runs. As
    # special tokens, the characters get fixed numbers.
    there = slice(1, None) if form.startswith(CONTINUATION) else slice(-1, None)
    opening = [*special, *sorted(known)]
    opening += sorted({form.format(character) for word in words for character in word[there]})
    if (least := len(opening) + beyond) > size:
        raise BertKerasError(
            f"size is {size}, but special tokens and alphabet need {least}; give a larger size or a smaller alphabet."
        )
    made = tokenizers.Tokenizer(getattr(models, model)(unk_token=unknown, **settings))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = getattr(trainers, {"BPE": "BpeTrainer"}.get(model, f"{model}Trainer"))
    made.train_from_iterator(
        _repeated(words, counts),
        trainer(vocab_size=size - beyond, special_tokens=opening, show_progress=False, **settings),
    )
    ids = made.get_vocab(with_added_tokens=False)
    merges = json.loads(made.to_str())["model"].get("merges", [])
    return sorted(ids, key=ids.__getitem__), [" ".join(merge) for merge in merges]


def _repeated(words: Iterable[str], counts: collections.Counter[str]) -> Iterator[str]:
    """Yields each word as often as it was counted."""
    every = itertools.chain.from_iterable(itertools.repeat(word, counts[word]) for word in words)
    return iter(lambda: " ".join(itertools.islice(every, WORDS)), "")


def _counted(texts: Iterable[str]) -> collections.Counter[str]:
    return collections.Counter(sys.intern(word) for text in texts for word in text.split(" ") if word)


def learn_words(
    texts: Iterable[str], *, size: int, lower_case: bool, min_count: int = VocabularyOptions.min_count
) -> WordPiece:
    """A vocabulary of whole words: the five special tokens, the classes of left-out words, then the most frequent words first.

    texts: words joined by spaces, from `wordpiece_words`
    size: most tokens; a small corpus gives fewer
    min_count: leave out words that the text has fewer times, and classes that it has fewer times

    Raises ValueError if no word is left. Source: Mikolov et al. 2013, word2vec.c.
    """
    counts = _counted(texts)
    fit = [
        word for word, count in counts.items() if count >= min_count and len(word.encode()) <= MAX_PIECE_BYTES
    ]
    words = sorted(fit, key=lambda word: (-counts[word], word))[
        : max(0, size - len(BERT_TOKENS) - len(CLASSES))
    ]
    if not words:
        raise BertKerasError(
            f"no word is left of {len(counts):,}: each must be in the text {min_count} times, and {size:,} tokens must hold the "
            "special tokens; give more text, a smaller min_count or a larger size."
        )
    rare: collections.Counter[str] = collections.Counter()
    for word in counts.keys() - {*words}:
        rare[class_of(word)] += counts[word]
    classes = [name for name in CLASSES if rare[name] >= min_count]
    return WordPiece(
        [*BERT_TOKENS.values(), *classes, *words], lower_case=lower_case, rules=Rules(new_words=CLASS)
    )


def learn_sentencepiece(texts: Iterable[str], *, size: int, lower_case: bool) -> SentencePiece:
    """A SentencePiece model with ALBERT's settings: <pad> <unk> [CLS] [SEP] [MASK], eight signs, then tokens by probability.

    texts: from `sentencepiece_texts`; if there are more than MAX_SENTENCES, a random sample is used
    size: number of tokens

    Raises ValueError if the text has too few or too many characters for the size.
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
            f"cannot learn a SentencePiece model of {size} tokens from this text: {reason}"
        ) from error
    return SentencePiece(model.getvalue(), lower_case=lower_case)


def _drawn(texts: Iterable[str], most: int) -> list[str]:
    """A random sample of `most` texts, or all if there are fewer. Equal texts give equal samples."""
    draw, drawn = random.Random(SEED), []
    for number, text in enumerate(text for text in texts if text.strip(" ")):
        if number < most:
            drawn.append(text)
        elif (place := draw.randrange(number + 1)) < most:
            drawn[place] = text
    return drawn


# For each kind: the function that normalizes text, and the learner.
KINDS: dict[str, tuple[Callable[..., Normalizer], Callable[..., Tokenizer]]] = {
    "wordpiece": (wordpiece_words, learn_wordpiece),
    "sentencepiece": (sentencepiece_texts, learn_sentencepiece),
    "words": (wordpiece_words, learn_words),
    "gpt-bpe": (wordpiece_words, learn_gpt_bpe),
}


def write_vocabulary(
    documents: Iterable[Sequence[str]],
    path: str | pathlib.Path,
    *,
    kind: str = VocabularyOptions.kind,
    size: int = VocabularyOptions.size,
    lower_case: bool = True,
    progress: Callable[[int], None] = lambda done: None,
    **settings: int,
) -> LearnedVocabulary:
    """Learns a vocabulary and writes the folder that `checkpoints.load_tokenizer` reads.

    documents: such as a `Corpus`; read once
    path: a new or empty folder
    kind: a key of KINDS; settings: arguments of its learner
    progress: called with the number of documents read since its last call

    Raises ValueError if the folder has files, and as the learners do; then nothing is written.
    """
    path = to_path(path)
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

    with atomic_folder(path) as new:  # before the long work, because it may raise an error
        tokenizer = learn(texts(), size=size, lower_case=lower_case, **settings)
        write_tokenizer(tokenizer.to_vocabulary(), new)
    return LearnedVocabulary(tokenizer, count)


# -----------------------------------------------------------------------------------------------------------
# Words of one's own in the vocabulary of a checkpoint. Source: google-research/bert README, "Learning a new WordPiece vocabulary"


def describe_changes(own: Tokenizer, given: Tokenizer) -> list[str]:
    """A line about the words that a vocabulary has in place of a checkpoint's [unusedN] tokens and after its end; else none.

    Raises BertKerasError where other tokens differ, and for fewer tokens.
    """
    if given.digest == own.digest:
        return []
    problem = "the checkpoint was trained with another vocabulary"
    if {type(own), type(given)} != {WordPiece}:
        raise BertKerasError(f"{problem}; leave the vocabulary out.")
    advice = "only [unusedN] tokens can be replaced, and tokens added at the end"
    before, after = own.vocabulary, given.vocabulary
    if len(after) < len(before):
        raise BertKerasError(f"{problem}: it has {len(before):,} tokens and yours {len(after):,}; {advice}.")
    changed = [i for i, token in enumerate(before) if token != after[i]]
    if wrong := [i for i in changed if not _UNUSED.fullmatch(before[i])]:
        at = wrong[0]
        raise BertKerasError(
            f"{problem}: its token {at} is {before[at]!r} and yours {after[at]!r}; {advice}."
        )
    replaced, added = [after[i] for i in changed], after[len(before) :]
    return [
        f"the vocabulary has {len(replaced):,} words in place of [unusedN] tokens, whose weights stay ({first_names(replaced)}), "
        f"and {len(added):,} tokens more ({first_names(added)})"
    ]
