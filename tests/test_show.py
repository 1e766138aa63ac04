"""Instances as a person reads them: what masking did to each token, and the label of the pair."""

import re

import pytest
import runs

from bert_keras.tasks.pretraining.recipes import RECIPES
from bert_keras.tasks.pretraining.show import show_instances
from bert_keras.text.wordpiece import WordPiece

DOCUMENTS = [runs.texts(6, seed=seed) for seed in range(30)]
MARK = re.compile(r"\{(\S+) (kept|-> (\S+))\}")


def shown(recipe="bert", *, count=20, **changes):
    """Pairs of lines."""
    known = {"documents": DOCUMENTS, "tokenizer": WordPiece(runs.VOCABULARY, lower_case=True)}
    lines = [*show_instances(RECIPES[recipe].changed(seq_length=32, **changes), count=count, **known)]
    return [*zip(lines[::2], lines[1::2], strict=True)]


def test_masks_and_pairs_are_marked_and_counted():
    found, labels = shown(share=0.4), set()
    assert len(found) == 20
    totals = {"masked": 0, "replaced": 0, "kept": 0}
    for about, line in found:
        label, counts = re.fullmatch(r"next-sentence: (\w+); (.*)", about).groups()
        labels.add(label)
        kinds = [
            "kept" if end == "kept" else "masked" if now == "[MASK]" else "replaced"
            for _, end, now in MARK.findall(line)
        ]
        assert counts == ", ".join(f"{kinds.count(kind)} {kind}" for kind in totals)
        for kind in kinds:
            totals[kind] += 1
        original = MARK.sub(lambda mark: mark[1], line).split()
        assert original[0] == "[CLS]" and original.count("[SEP]") == 2 and "[MASK]" not in original
    assert labels == {"is_next", "not_next"}
    assert totals["masked"] > 4 * totals["replaced"] > 0 < totals["kept"]


@pytest.mark.parametrize(
    ("recipe", "changes", "about"),
    [
        ("bert-no-nsp", {}, r"\d+ masked, \d+ replaced, \d+ kept"),
        ("bert-no-nsp", {"hide": 0.0, "keep": 1.0, "replace": 0.0}, r"0 masked, 0 replaced, \d+ kept"),
        ("ltr-no-nsp", {}, "each token is predicted from those before it"),
        ("albert", {}, r"sentence-order: (in_order|swapped); .* masked, .*"),
    ],
)
def test_every_recipe_shows_what_it_predicts(recipe, changes, about):
    (found,) = shown(recipe, count=1, **changes)
    assert re.fullmatch(about, found[0])
    assert (recipe == "ltr-no-nsp") == ("{" not in found[1])


@pytest.mark.filterwarnings("ignore:.*do not say whether to lower-case")
@pytest.mark.parametrize("command", ["pretrain", "instances"])
def test_the_commands_show_and_write_nothing(command, tmp_path, capfd):
    text, vocabulary = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    vocabulary.write_text("\n".join(runs.VOCABULARY))
    flags = ["--text", text, "--vocab", vocabulary, "--output", tmp_path / "out", "--seq-length", "32"]
    code, out, err = runs.run_command(capfd, command, *flags, "--show", 2)
    assert code == 0, err
    assert out.count("next-sentence: ") == 2 and out.count("[CLS]") == 2
    assert not (tmp_path / "out").exists()
    code, _, err = runs.run_command(capfd, command, *flags, "--show", 0)
    assert code == 1 and "0 instances were asked for; give at least 1" in err
