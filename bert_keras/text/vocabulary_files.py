"""What a vocabulary's file is called and how a vocab.txt is read, without TensorFlow.

In: a file's bytes. Out: its pieces, in the order of their ids.
"""

from bert_keras.errors import BertKerasError

MAX_VOCABULARY_BYTES = 100_000_000  # of a vocab.txt or a SentencePiece model
SENTENCEPIECE = "spiece.model"  # Hugging Face's name for ALBERT's


def pieces_of(raw: bytes, *, source: object) -> list[str]:
    """The pieces of a vocab.txt: UTF-8, one a line, the line's place (from 0) being the id; WordPiece checks what they hold.

    source: what an error names, the file

    A byte order mark and Windows line ends are taken off. Raises ValueError that names the line.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BertKerasError(f"{source}, line {line}: not UTF-8; save the vocabulary as UTF-8 text") from None
    # Not splitlines(): a piece may be a character that it takes for a line end, such as U+2028.
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    return [line.removesuffix("\r") for line in lines]
