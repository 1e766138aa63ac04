"""Compares WordPiece and byte-level BPE with other implementations on real text: the lines that differ, as one table.

    nice python benchmarks/tokenizer_parity.py --data DIR [--original FOLDER] [--vocabularies chinese ...]

DIR holds `vocab/*.txt` and text: every distinct line of its .txt and .tsv files, plain, gzipped or zipped, and every
string of its .json and .jsonl files, is tokenized, and so is one line per Unicode code point. References: `tokenizers`
(the BERT normalizer, word limit 200) for ids and offsets, and with --original google-research/bert for ids: FOLDER is
its package, `bert/` in the wheel that `pip download --no-deps bert-tensorflow==1.0.4` fetches.

A differing line is explained if it agrees without the characters of a class of EXPLAINED; any other is unexplained.
Offsets of WordPiece are checked by cutting: the bytes between start and end have the token as their normal form.

The vocabulary "byte-level" is learned from the text. Its ids and offsets are compared with `tokenizers`, also on random bytes,
where `tokenizers` gets the valid characters alone.

The exit status is 1 if a line is unexplained or a cut or an offset is wrong. Takes about an hour on one core with
both references, 25 minutes with `tokenizers` alone, 6 of them for "byte-level".
"""

import argparse
import collections
import contextlib
import functools
import gzip
import importlib
import itertools
import json
import os
import pathlib
import random
import sys
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf  # noqa: E402
import tokenizers  # noqa: E402

from bert_keras.text.byte_bpe import BPE_TOKENS, ByteBPE  # noqa: E402
from bert_keras.text.wordpiece import MAX_WORD_CHARACTERS, WordPiece  # noqa: E402

VOCABULARIES = {  # name: (file, lower_case)
    "uncased": ("uncased_30522.txt", True),
    "cased": ("cased_28996.txt", False),
    "multilingual": ("multi_cased_119547.txt", False),
    "chinese": ("chinese_21128.txt", True),
}
BYTE_LEVEL, BYTE_LEVEL_SIZE = "byte-level", 30_000
RANDOM_LINES = 200_000  # of random bytes
BATCH = 512
Ids = list[list[int]]


def without(keep: Callable[[str], bool]) -> Callable[[str], str]:
    """A function that removes characters from a line, except those for which `keep` is true."""
    return lambda line: "".join(c for c in line if keep(c))


_OFF = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
_CLEAN = tokenizers.normalizers.BertNormalizer(**{**_OFF, "clean_text": True})
_STRIP = tokenizers.normalizers.BertNormalizer(**{**_OFF, "strip_accents": True})
_SPLIT = tokenizers.pre_tokenizers.BertPreTokenizer()


@functools.cache
def known(character: str) -> bool:
    """True if `tokenizers` and Python agree that a character is an accent, punctuation or a format character."""
    category = unicodedata.category(character)
    accent = _STRIP.normalize_str(f"a{character}") == "a"
    removed = _CLEAN.normalize_str(f"a{character}") == "a"
    punctuation = len(_SPLIT.pre_tokenize_str(f"a{character}a")) == 3
    return (
        accent == (category == "Mn")
        and (removed or category != "Cf")
        and (character.isascii() or punctuation == category.startswith("P"))
    )


# Reasons for differences -> a function that removes the characters that cause them.
EXPLAINED = {
    "tokenizers": {
        "private use or unassigned": without(lambda c: unicodedata.category(c) not in ("Co", "Cn")),
        "newer than its Unicode tables": without(known),
        "final sigma": without(lambda c: c not in "\u03a3\u03c2\u03c3"),
        "CJK U+2B820-2B91F": without(lambda c: not "\U0002b820" <= c <= "\U0002b91f"),
    },
    "original": {"unassigned": without(lambda c: unicodedata.category(c) != "Cn")},
    BYTE_LEVEL: {"unassigned": without(lambda c: unicodedata.category(c) != "Cn")},
}


def strings(value: object) -> Iterator[str]:
    """Every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def texts(name: str, raw: bytes) -> Iterator[str]:
    """The lines of a text file, or the strings of a JSON file."""
    text = raw.decode("utf-8", "ignore")
    if name.endswith(".json"):
        yield from strings(json.loads(text))
    elif name.endswith(".jsonl"):
        for line in text.splitlines():
            yield from strings(json.loads(line))
    else:
        yield from text.split("\n")


def read(data: pathlib.Path) -> Iterator[str]:
    """Every text under a folder."""
    for path in sorted(path for path in data.rglob("*") if path.is_file() and "weights" not in path.parts):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    yield from texts("member.txt", archive.read(member))
        elif path.suffix == ".gz":
            yield from texts("member.txt", gzip.decompress(path.read_bytes()))
        elif path.suffix in (".txt", ".tsv", ".json", ".jsonl"):
            yield from texts(path.name, path.read_bytes())


def code_points() -> Iterator[str]:
    """Each Unicode code point inside a word, alone, and twice in a row."""
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code <= 0xDFFF:
            yield f"a{chr(code)}b {chr(code)} {chr(code)}{chr(code)}c"


def random_bytes(texts: list[str], count: int) -> Iterator[bytes]:
    """Lines of random bytes, and of pieces of text, single characters and random bytes."""
    draw = random.Random(0)
    for number in range(count):
        line = b""
        while len(line) < 40:
            text = draw.choice(texts).encode()
            at = draw.randrange(len(text) + 1)
            character = chr(draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000))))
            line += draw.choice((text[at : at + 9], character.encode(), draw.randbytes(draw.randint(1, 4))))
        yield line if number % 4 else draw.randbytes(draw.randint(0, 60))


class HuggingFace:
    """`tokenizers` without added tokens, so that a literal [SEP] in the text stays text as in the original."""

    def __init__(self, path: pathlib.Path, vocabulary: tuple[str, ...], lower_case: bool):
        ids = {piece: i for i, piece in enumerate(vocabulary)}
        model = tokenizers.models.WordPiece(
            ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS
        )
        self.tokenizer = tokenizers.Tokenizer(model)
        self.tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)
        self.tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def ids(self, lines: list[str]) -> Ids:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(lines)]


class Original:
    """google-research/bert's FullTokenizer."""

    def __init__(self, path: pathlib.Path, vocabulary: tuple[str, ...], lower_case: bool):
        self.tokenization = importlib.import_module("tokenization")
        if not self.tokenization.FLAGS.is_parsed():
            self.tokenization.FLAGS(["tokenizer_parity"])
        self.tokenizer = self.tokenization.FullTokenizer(str(path), do_lower_case=lower_case)
        self.tokenizer.vocab = {piece: i for i, piece in enumerate(vocabulary)}
        self.tokenizer.wordpiece_tokenizer.tokenize = functools.lru_cache(1 << 20)(
            self.tokenizer.wordpiece_tokenizer.tokenize
        )

    def ids(self, lines: list[str]) -> Ids:
        split, vocab = self.tokenizer.tokenize, self.tokenizer.vocab
        return [[vocab[piece] for piece in split(line)] for line in lines]


@functools.lru_cache(1 << 20)
def normal_form(cut: bytes, lower_case: bool) -> str:
    """The normal form of a few bytes, with one form of sigma, because its form depends on letters outside the cut."""
    text = "".join(
        c
        for c in cut.decode("utf-8", "ignore")
        if unicodedata.category(c) not in ("Cc", "Cf") and c != "\ufffd"
    )
    if lower_case:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return text.replace("\u03c2", "\u03c3")


@functools.lru_cache(1 << 20)
def cut_is_right(cut: bytes, piece: str, lower_case: bool) -> bool:
    """True if a cut is the token, or the shortest sequence of whole characters with it; [UNK] is any word."""
    form = normal_form(cut, lower_case)
    if piece == "[UNK]":
        return bool(form) and not any(c.isspace() for c in form)
    piece = (piece.removeprefix("##") or piece).replace("\u03c2", "\u03c3")
    if form == piece:
        return True
    text = cut.decode("utf-8", "ignore")
    smaller = normal_form(text[1:].encode(), lower_case), normal_form(text[:-1].encode(), lower_case)
    return piece in form and not any(piece in part for part in smaller)


def in_bytes(line: str, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts offsets in characters to offsets in bytes."""
    if line.isascii():
        return places
    at = [0]
    for character in line:
        at.append(at[-1] + len(character.encode()))
    return [(at[start], at[end]) for start, end in places]


def same_places(line: str, ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> bool:
    """True if offsets agree. Ours include stripped accents after a letter; those of `tokenizers` do not."""
    raw = line.encode()

    def accents(start: int, end: int) -> bool:
        return all(unicodedata.category(c) == "Mn" for c in raw[start:end].decode())

    return len(ours) == len(theirs) and all(
        a == b or (a[0] == b[0] and a[1] > b[1] and accents(b[1], a[1]))
        for a, b in zip(ours, theirs, strict=True)
    )


def differences(
    tokenizer: WordPiece, witness: HuggingFace | Original, name: str, lines: list[str], ours: Ids
) -> Iterator[tuple[str, str]]:
    """Yields (class, line) for every line whose ids differ from the reference's."""
    for line, mine, theirs in zip(lines, ours, witness.ids(lines), strict=True):
        if mine == theirs:
            continue
        for kind, repair in EXPLAINED[name].items():
            repaired = [repair(line)]
            if tokenizer.tokenize(repaired).to_list() == witness.ids(repaired):
                yield kind, line
                break
        else:
            yield "unexplained", line


def compare(
    tokenizer: WordPiece, witnesses: dict[str, HuggingFace | Original], lines: list[str], show: int
) -> collections.Counter[str]:
    """Counts all differences; prints the first `show` unexplained lines."""
    counts: collections.Counter[str] = collections.Counter()
    pieces, lower_case = tokenizer.vocabulary, tokenizer.lower_case

    def report(kind: str, line: str) -> None:
        counts[kind] += 1
        if counts[kind] <= show:
            print(f"  {kind}: {ascii(line[:200])}", file=sys.stderr)

    for at in range(0, len(lines), BATCH):
        batch = lines[at : at + BATCH]
        raw = [line.encode() for line in batch]
        alone = tokenizer.tokenize(raw).to_list()
        ours, starts, ends = (ragged.to_list() for ragged in tokenizer.tokenize_with_offsets(raw))
        counts["pieces"] += sum(map(len, ours))
        if alone != ours:
            report("ids with and without offsets differ", "")
        for name, witness in witnesses.items():
            for kind, line in differences(tokenizer, witness, name, batch, ours):
                if kind == "unexplained":
                    report(f"{name}: {kind}", line)
                else:
                    counts[f"{name}: {kind}"] += 1
        places = [list(zip(s, e, strict=True)) for s, e in zip(starts, ends, strict=True)]
        theirs = witnesses["tokenizers"]
        for i, encoding in enumerate(theirs.tokenizer.encode_batch(batch)):
            line = batch[i]
            if not all(
                cut_is_right(raw[i][s:e], pieces[k], lower_case)
                for k, (s, e) in zip(ours[i], places[i], strict=True)
            ):
                if any(unicodedata.category(c) == "Cn" for c in line):
                    counts["cut: unassigned"] += 1
                else:
                    report("wrong cut", line)
            if encoding.ids == ours[i] and not same_places(line, places[i], in_bytes(line, encoding.offsets)):
                report("other places", line)
    return counts


# -----------------------------------------------------------------------------------------------------------
# Byte-level BPE


def learn_byte_level(texts: list[str], size: int) -> tuple[ByteBPE, tokenizers.Tokenizer]:
    """A vocabulary learned from text, in both implementations."""
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = split
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*BPE_TOKENS.values()],
        initial_alphabet=split.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    vocabulary, merges = sorted(model["vocab"], key=model["vocab"].__getitem__), model["merges"]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(model["vocab"], [tuple(merge) for merge in merges]))
    theirs.pre_tokenizer = split
    theirs.post_processor = tokenizers.processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    return ByteBPE(vocabulary, [" ".join(merge) for merge in merges]), theirs


def characters(raw: bytes) -> list[tuple[int, str]]:
    """The valid characters of UTF-8, each with its first byte; other bytes are left out."""
    with contextlib.suppress(UnicodeDecodeError):
        text = raw.decode()
        return list(zip(itertools.accumulate((len(c.encode()) for c in text), initial=0), text, strict=False))
    found, end = [], 0
    for at in range(len(raw)):
        for width in range(1, 5 if at >= end else 0):
            with contextlib.suppress(UnicodeDecodeError):
                found.append((at, raw[at : at + width].decode()))
                end = at + width
                break
    return found


def in_raw_bytes(valid: list[tuple[int, str]], places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts offsets in valid characters to offsets in bytes; an empty token stands at the end of the character before it."""
    ends = [at + len(character.encode()) for at, character in valid]
    return [(valid[start][0] if start < end else ends[end - 1], ends[end - 1]) for start, end in places]


def compare_byte_level(
    tokenizer: ByteBPE, theirs: tokenizers.Tokenizer, lines: list[str] | list[bytes], show: int
) -> collections.Counter[str]:
    """Counts all differences; prints the first `show` lines of each kind."""
    counts: collections.Counter[str] = collections.Counter()
    repairs = EXPLAINED[BYTE_LEVEL].items()

    def agree(text: str) -> bool:
        return tokenizer.tokenize([text]).to_list() == [theirs.encode(text).ids]

    def report(kind: str, line: object) -> None:
        counts[kind] += 1
        if counts[kind] <= show:
            print(f"  {kind}: {ascii(line)[:200]}", file=sys.stderr)

    for at in range(0, len(lines), BATCH):
        raw = [line if isinstance(line, bytes) else line.encode() for line in lines[at : at + BATCH]]
        valid = [characters(line) for line in raw]
        clean = ["".join(character for _, character in line) for line in valid]
        ours, starts, ends = (ragged.to_list() for ragged in tokenizer.tokenize_with_offsets(raw))
        counts["pieces"] += sum(map(len, ours))
        if tokenizer.tokenize(raw).to_list() != ours:
            report("ids with and without offsets differ", "")
        for i, encoding in enumerate(theirs.encode_batch(clean)):
            if ours[i] != encoding.ids:
                kinds = (kind for kind, repair in repairs if agree(repair(clean[i])))
                report(f"tokenizers: {next(kinds, 'unexplained')}", raw[i])
            elif [*zip(starts[i], ends[i], strict=True)] != in_raw_bytes(valid[i], encoding.offsets):
                report("other places", raw[i])
    return counts


# -----------------------------------------------------------------------------------------------------------
# The table


def main() -> int:
    """Prints the table; returns 1 if a difference is unexpected."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the texts and of vocab/")
    parser.add_argument(
        "--original", type=pathlib.Path, help="folder of google-research/bert's tokenization.py"
    )
    names = [*VOCABULARIES, BYTE_LEVEL]
    parser.add_argument("--vocabularies", nargs="+", choices=names, default=names)
    parser.add_argument("--every", type=int, default=1, help="take every n-th line only")
    parser.add_argument("--show", type=int, default=5, help="lines to print of each unexpected kind")
    args = parser.parse_args()
    makers: dict[str, type] = {"tokenizers": HuggingFace}
    if args.original:
        sys.path.insert(0, str(args.original))
        makers["original"] = Original
    corpora: dict[str, Any] = {
        "text": sorted(set(read(args.data)))[:: args.every],
        "code points": list(code_points())[:: args.every],
    }
    print(
        f"Python's Unicode {unicodedata.unidata_version}, tokenizers {tokenizers.__version__}, TF {tf.__version__}"
    )
    bad = 0
    for vocabulary in args.vocabularies:
        if vocabulary == BYTE_LEVEL:
            check: Callable[..., collections.Counter[str]] = functools.partial(
                compare_byte_level, *learn_byte_level(corpora["text"], BYTE_LEVEL_SIZE)
            )
            corpora |= {"random bytes": list(random_bytes(corpora["text"], RANDOM_LINES // args.every))}
        else:
            check = wordpiece_check(args.data / "vocab", vocabulary, makers)
        for corpus in ("text", "code points", *(["random bytes"] if vocabulary == BYTE_LEVEL else [])):
            bad += print_row(vocabulary, corpus, corpora[corpus], functools.partial(check, show=args.show))
    print(f"unexplained lines, wrong cuts and wrong offsets: {bad}")
    return int(bad > 0)


def wordpiece_check(
    folder: pathlib.Path, vocabulary: str, makers: dict[str, type]
) -> Callable[..., collections.Counter[str]]:
    """The comparison of a WordPiece vocabulary."""
    file, lower_case = VOCABULARIES[vocabulary]
    tokenizer = WordPiece.from_file(str(folder / file), lower_case=lower_case)
    witnesses = {name: make(folder / file, tokenizer.vocabulary, lower_case) for name, make in makers.items()}
    return functools.partial(compare, tokenizer, witnesses)


def print_row(
    vocabulary: str, corpus: str, lines: list[Any], check: Callable[[list[Any]], collections.Counter[str]]
) -> int:
    """Prints a row of the table; returns the number of unexpected differences."""
    begin = time.time()
    counts = check(lines)
    pieces = counts.pop("pieces")
    failures = {k: n for k, n in counts.items() if k.split(": ")[-1] not in expected()}
    kinds = ", ".join(f"{k} {n}" for k, n in sorted(counts.items())) or "none"
    seconds = time.time() - begin
    print(
        f"{vocabulary:12} {corpus:12} lines {len(lines):8} pieces {pieces:9} differing: {kinds} ({seconds:.0f} s)",
        flush=True,
    )
    return sum(failures.values())


def expected() -> set[str]:
    """The classes that may differ."""
    return {kind for kinds in EXPLAINED.values() for kind in kinds}


if __name__ == "__main__":
    sys.exit(main())
