"""Lower-casing, where the files of a tokenizer do not say it."""

import re
import warnings

from bert_keras.text.vocabulary import Vocabulary

# A vocabulary counts as cased if at least this fraction of its tokens with letters has upper case. BERT's English cased
# vocabulary has 0.31, the multilingual vocabulary 0.23, the uncased vocabulary 0, or 0.04 with domain terms in place of all
# [unusedN].
_CASED = 0.05
_SPECIAL_TOKEN = re.compile(r"[\[<].*[\]>]")


def lower_cases(vocabulary: Vocabulary) -> bool:
    """True to lower-case text. If the files do not say, guesses from the tokens and warns.

    Raises ValueError if a SentencePiece model is damaged.
    """
    if vocabulary.lower_case is not None:
        return vocabulary.lower_case
    tokens = vocabulary.tokens
    if tokens is None and vocabulary.sentencepiece is not None:
        from bert_keras.text.sentencepiece import SentencePiece

        tokens = SentencePiece(vocabulary.sentencepiece).vocabulary
    plain = [token for token in tokens or () if not _SPECIAL_TOKEN.fullmatch(token)]
    lettered = [token for token in plain if token.lower() != token.upper()]
    upper = sum(token != token.lower() for token in lettered)
    guessed = upper < _CASED * max(1, len(lettered))
    where = f"the files of {vocabulary.file} do" if vocabulary.file else "the vocabulary's files do"
    warnings.warn(
        f"{where} not say whether to lower-case text; guessed lower_case={guessed}: {upper:,} of its {len(lettered):,} tokens "
        'with letters have upper case. To choose, set "do_lower_case" in a tokenizer_config.json beside the vocabulary.',
        stacklevel=1,  # always this line, so that Python warns once
    )
    return guessed
