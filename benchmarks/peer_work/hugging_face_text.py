"""Hugging Face's transformers: answers to questions, and features of texts."""

import pathlib

import numpy as np

from peer_work.hugging_face import TORCH, stored
from peer_work.work import Case, Prepared, in_turn, questions, requests

MAX_ANSWER = 30  # tokens, the default of run_squad.py and ours


def answers(case: Case, folder: pathlib.Path) -> Prepared:
    """The tokenizer with overflow, BertForQuestionAnswering, and the best span over the windows of each question.

    The tokenizer's `stride` is the overlap of two windows; ours, as in google-research/bert, is the distance of their starts.
    Each question is tokenized with the overlap that gives the same windows.
    """
    import torch
    import transformers

    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    kind = transformers.BertForQuestionAnswering
    model = kind.from_pretrained(folder / case.size, dtype=stored(case), **TORCH).eval()
    pairs = list(zip(*questions(case, folder), strict=True))

    def windows() -> tuple[dict, list, np.ndarray]:
        """The model's inputs [W, S], the offsets of each window, and the question of each window."""
        made, places, owners = [], [], []
        for i, (question, context) in enumerate(pairs):
            room = case.length - len(tokenizer(question, add_special_tokens=False)["input_ids"]) - 3
            found = tokenizer(
                question,
                context,
                truncation="only_second",
                max_length=case.length,
                stride=max(0, room - case.doc_stride),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for window, offsets in enumerate(found.pop("offset_mapping")):
                made.append({name: found[name][window] for name in tokenizer.model_input_names})
                places.append(
                    [
                        place if second == 1 else None
                        for place, second in zip(offsets, found.sequence_ids(window), strict=True)
                    ]
                )
                owners.append(i)
        return dict(tokenizer.pad(made, return_tensors="pt")), places, np.array(owners)

    @torch.inference_mode()
    def logits(inputs: dict) -> np.ndarray:
        """Start and end float32 [W, 2, S]; 0 in padding."""
        found = model(**inputs)
        stacked = torch.stack([found.start_logits, found.end_logits], dim=1).float()
        return (stacked * inputs["attention_mask"][:, None]).numpy()

    def ask() -> list[str]:
        inputs, places, owners = windows()
        found = logits(inputs)
        best = [_best_span(one, offsets) for one, offsets in zip(found, places, strict=True)]
        chosen = [max(best[i] for i in np.flatnonzero(owners == j)) for j in range(len(pairs))]
        return [context[start:end] for (_, context), (_, start, end) in zip(pairs, chosen, strict=True)]

    return ask, {"logits": logits(windows()[0])}


def _best_span(logits: np.ndarray, offsets: list) -> tuple[float, int, int]:
    """The score of a window's best span, and its characters in the context."""
    inside = np.array([place is not None for place in offsets])
    start, end = (np.where(inside, side[: len(inside)], -np.inf) for side in logits)
    apart = np.subtract.outer(np.arange(len(inside)), np.arange(len(inside))).T  # end - start
    scores = np.where((apart >= 0) & (apart < MAX_ANSWER), start[:, None] + end, -np.inf)
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return float(scores[first, last]), offsets[first][0], offsets[last][1]


def layers(case: Case, folder: pathlib.Path) -> Prepared:
    """`output_hidden_states`, without padding and special tokens."""
    import torch
    import transformers

    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    model = transformers.BertModel.from_pretrained(folder / case.size, dtype=stored(case), **TORCH).eval()

    @torch.inference_mode()
    def ask(texts: list[str]) -> np.ndarray:
        given = tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=case.length,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        token = given.pop("special_tokens_mask") == 0  # padding is special too
        states = model(**given, output_hidden_states=True).hidden_states
        return torch.stack(states, dim=2)[token].float().numpy()

    asked = requests(case, folder)
    return in_turn(ask, asked), {"vectors": ask(asked[0])}
