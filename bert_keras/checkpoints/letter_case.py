"""Decides if text is lower-cased when a checkpoint's files do not say."""

import re
import warnings

from bert_keras.checkpoints.variables import Checkpoint

# A vocabulary counts as cased if at least this fraction of its tokens with letters has upper case. BERT's English cased
# vocabulary has 0.31, the multilingual vocabulary 0.23, the uncased vocabulary 0, or 0.04 with domain terms in place of all
# [unusedN].
_CASED = 0.05
_SPECIAL_TOKEN = re.compile(r"[\[<].*[\]>]")


def lower_cases(checkpoint: Checkpoint) -> bool:
    """True to lower-case text. If the folder does not say, guesses from the vocabulary and warns.

    Raises ValueError if the checkpoint's SentencePiece model is damaged.
    """
    if checkpoint.lower_case is not None:
        return checkpoint.lower_case
    pieces = checkpoint.vocabulary
    if pieces is None and checkpoint.sentencepiece is not None:
        from bert_keras.text.sentencepiece import SentencePiece

        pieces = SentencePiece(checkpoint.sentencepiece).vocabulary
    tokens = [piece for piece in pieces or () if not _SPECIAL_TOKEN.fullmatch(piece)]
    lettered = [token for token in tokens if token.lower() != token.upper()]
    upper = sum(token != token.lower() for token in lettered)
    guessed = upper < _CASED * max(1, len(lettered))
    where = f"the files of {checkpoint.path} do" if checkpoint.path else "the vocabulary's files do"
    warnings.warn(
        f"{where} not say whether to lower-case text; guessed lower_case={guessed}: {upper:,} of its {len(lettered):,} tokens "
        'with letters have upper case. To choose, set "do_lower_case" in a tokenizer_config.json beside the vocabulary.',
        stacklevel=1,  # always this line, so that Python warns once
    )
    return guessed
