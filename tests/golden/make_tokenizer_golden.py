"""Makes tokenizer.json: what google-research/bert's own tokenizer says of awkward strings, with a small vocabulary.

    pip download --no-deps bert-tensorflow==1.0.4 && unzip bert_tensorflow-1.0.4-*.whl
    python tests/golden/make_tokenizer_golden.py bert

The file holds the vocabulary and, for every string, the ids of `FullTokenizer` uncased and cased. JSON knows no bytes:
"text" is the string's bytes, each as the Latin-1 character of its number.
"""

import json
import pathlib
import sys
import tempfile

import absl.flags

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = """
the a ab b e i k o s x cafe café naive Naïve ecole École hello Hello world un aff able unaffable mask MASK sep cls
##s ##a ##b ##e ##i ##o ##k ##x ##able ##aff ##é ##ï ##ing ##ss ##ß ##ς ##σ ##Σ
α ο δ σ ς Σ Ο ##α ##ο ##δ ##Δ ##Α
и ий ##й ##и ё Ё Й ж ##ж
ß ſ æ Æ ø İ ı I ﬁ ＡＢ ａｂ 中 国 語 が か ##か 한 ##국 ᄒ ##ᅡ ##ᆫ ไ ##ท ##ย हि ##ह ह ##ि
. , ! ? - ' " [ ] # $ ^ ` ~ + < = > | _ / ( ) “ ” ’ — … € × 。 、 ， · ¿
1 2 ##2 ##3 3.5 don't e.g ## ##' [unused1] ##. 😀 ##😀 \ue000 中国 ##中 x\u200by
""".split()

STRINGS: dict[str, list[str | bytes]] = {
    "plain": ["", " ", "hello world", "Hello, World!", "unaffable unaffables", "don't e.g. 3.5 [unused1] ##able ## #", "e-e_e/e"],
    "accents": ["Café École Naïve", "cafe\u0301 e\u0301cole", "\u0301cafe", "e\u0301\u0323 e\u0323\u0301", "Ё ё й Й Жж", "\u1e69 \u01d5"],
    "case": ["ΟΔΟΣ ΟΔΟΣ. Σ ΑΣΑ ΑΣ\u200b ΑΣ\u0301 ΑΣ'Α ΑΣ 'Α", "İI ıi", "ẞß ſs ǅ K Å", "ＡＢ ａｂ ﬁ ℌ 𝐇", "ΑΣ中 中Σ"],
    "removed": ["a\x00b", "a\x01b \x7f \x85 \x9fa\x1cb\x0bb\x0cb", "a\u200bb a\u00adb \ufeffab a\u202eb", "a\ufffdb \ufffd", "a\u200db"],
    "spaces": ["a\tb\nb\rb", "a\xa0b a\u3000b a\u2028b a\u2029b a\u1680b a\u2003b a\u202fb", "\u2028", "a\u180eb"],
    "CJK": ["中国語がか", "a中b", "\u4e00\u9fff\u3400\u4dbf", "\U00020000\U0002b81f\U0002f800", "\uf900\ufa30", "한국 한국어", "、。，·"],
    "other scripts": ["ไทย", "हिन्दी हि", "עִבְרִית", "العَرَبِيَّة", "\u302e\u302f a\u302f\U0001d165", "ก" * 70],
    "symbols": ["😀😀 a😀", "👩\u200d👩\u200d👧 🏽 ✊🏿 ❤\ufe0f 🇩🇪", "€5 × ¿a? “a” ’s — …", "$^`~+<=>|", "\ue000 a\ue000 \U0010ffff \U000e0041"],
    "special": ["[CLS] a [SEP] b [MASK] [PAD] [UNK]", "a[MASK]b [mask]", "[CLS][SEP]", "[ MASK ]"],
    "invalid": [b"a\xffb", b"\xc3", b"a\xc3", b"a\xe2\x82b", b"\xed\xa0\x80a", b"\xc0\x80a", b"\xf4\x90\x80\x80a",
                b"\xf0\x9f\x98a", b"\xe0\x80\xafa", b"\x80\x80a\xfe", b"cafe\xcc", b"\xf8\x88\x80\x80\x80a", b"\xc3\xc3\xa9", b"\xef\xbb\xbfa"],
    "long": ["a" * 200, "a" * 201, "a" * 200 + " " + "a" * 201 + " a", "é" * 200, "é" * 201, "e\u0301" * 200, "e\u0301" * 201,
             "😀" * 200, "😀" * 201, "ж" * 200, "ж" * 201, "a" * 150 + "-" + "a" * 150, "a" * 150 + "中" + "a" * 150, "한" * 66,
             "한" * 67, "a" * 150 + "\xa0" + "a" * 150, "a" * 199 + "\u200b\u200b" + "a", "z" * 300, "a" * 201 + "." + "a" * 201,
             "中" * 250, "a" * 900, "." * 250],
}  # fmt: skip


def main(original: str) -> None:
    """original: folder that holds tokenization.py."""
    sys.path.insert(0, original)
    import tokenization

    absl.flags.FLAGS(["make_tokenizer_golden"])
    vocabulary = SPECIAL + sorted(set(WORDS))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "vocab.txt"
        path.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        both = {
            case: tokenization.FullTokenizer(str(path), do_lower_case=case == "uncased")
            for case in ("uncased", "cased")
        }
    cases = []
    for kind, strings in STRINGS.items():
        for string in strings:
            raw = string.encode() if isinstance(string, str) else string
            case = {"kind": kind, "text": raw.decode("latin-1")}
            for name, tokenizer in both.items():
                case[name] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(raw))
            cases.append(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    golden = f'{{"vocabulary": {json.dumps(vocabulary)},\n"cases": [\n{lines}\n]}}\n'
    pathlib.Path(__file__).with_name("tokenizer.json").write_text(golden, encoding="ascii")


if __name__ == "__main__":
    main(sys.argv[1])
