"""One text as a model reads it: its features, its tokens, and the words that the tokens belong to.

In: a model that takes strings and a text or a pair. Out: the features of one example, tokens without padding, words as written.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError
from bert_keras.features import ENCODER_INPUTS, INPUT_MASK, INPUT_WORD_IDS
from bert_keras.tasks.runs.ensemble import members_of
from bert_keras.tasks.runs.run_folder import Run
from bert_keras.tasks.task import Features, Raw
from bert_keras.text.tokenizer import Tokenizer


def one_run(model: Any) -> Run:
    """A model that takes strings, as a Run. Raises BertKerasError for another object and for an ensemble."""
    run = model.as_run() if hasattr(model, "as_run") else model
    if not isinstance(run, Run):
        raise BertKerasError(
            f"the model is a {type(run).__name__}; give one that takes strings, such as bert_keras.load(path)."
        )
    if (count := len(members_of(run.model))) > 1:
        raise BertKerasError(
            f"an ensemble of {count} runs was given, and each has its own weights; give one run."
        )
    return run


def name_texts(run: Run, *texts: Any) -> dict[str, Any]:
    """The texts by the names that the problem reads. Raises BertKerasError where it reads another number of texts."""
    names = [*run.task.signature()]
    if len(names) != len(texts):
        raise BertKerasError(
            f"the model reads {' and '.join(names)}, and {len(texts)} texts were given; give one for each."
        )
    return dict(zip(names, texts, strict=True))


def read_examples(run: Run, columns: Mapping[str, Any]) -> tuple[Features, Raw]:
    """Features as the model reads them, [B, S] or [W, S], and raw examples [B]. columns: the texts by name, [B]."""
    raw = {name: tf.convert_to_tensor(column) for name, column in run.task.given(dict(columns)).items()}
    return run.task.features(run.preprocess, raw), raw


def rows_of(features: Features) -> Features:
    """The encoder's inputs as int32 [rows, S]; the K sequences of an example with choices are K rows."""
    return {name: tf.reshape(features[name], [-1, features[name].shape[-1]]) for name in ENCODER_INPUTS}


def one_row(rows: Features, number: int) -> Features:
    """One of the rows without its padding, int32 [1, S]."""
    length = int(tf.reduce_sum(rows[INPUT_MASK][number]))
    return {name: value[number : number + 1, :length] for name, value in rows.items()}


def token_names(tokenizer: Tokenizer, row: Features) -> list[str]:
    """The tokens of `one_row`, as the vocabulary spells them."""
    return [tokenizer.vocabulary[i] for i in row[INPUT_WORD_IDS][0].numpy().tolist()]


def find_words(tokenizer: Tokenizer, row: Features, texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The words of `one_row`, as the texts spell them, each with the positions of its tokens in the row.

    A mask is a word too, and special tokens at the ends are none.
    The row has parts of the texts: their starts, their ends, a window, or all but the masks. Equal runs of ids say which.
    """
    ids, special = row[INPUT_WORD_IDS][0].numpy().tolist(), tokenizer.special
    given = [text.encode() for text in texts]
    parts = tokenizer.tokenize_with_offsets(tf.constant(given))
    flat = (parts[0].value_rowids(), *(part.values for part in parts))
    tokens = [*zip(*(one.numpy().tolist() for one in flat), strict=True)]  # text, id, start, end
    matcher = difflib.SequenceMatcher(None, ids, [token[1] for token in tokens], autojunk=False)
    blocks = matcher.get_matching_blocks()
    places = {block.a + i: tokens[block.b + i] for block in blocks for i in range(block.size)}
    continues, groups = tokenizer.continues, list[list[int]]()
    for position, token in enumerate(ids):
        if position in places and position - 1 in places and continues[token]:
            (text, _, before, _), (same, _, start, _) = places[position - 1], places[position]
            if text == same and not given[text][before:start][-1:].isspace():
                groups[-1].append(position)
                continue
        if position in places or token not in (special.start, special.between, special.end):
            groups.append([position])

    def spelled(group: list[int]) -> str:
        if group[0] not in places:
            return tokenizer.vocabulary[ids[group[0]]]
        text, _, start, _ = places[group[0]]
        return given[text][start : places[group[-1]][3]].decode("utf-8", "replace").strip()

    return [(spelled(group), group) for group in groups]
