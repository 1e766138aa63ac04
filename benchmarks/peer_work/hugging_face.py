"""Hugging Face's transformers on PyTorch."""

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_keras.features import INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS, POOLED_OUTPUT, SEQUENCE_OUTPUT
from peer_work.ours_training import COMPARED
from peer_work.work import (
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Arrays,
    Case,
    Prepared,
    encoded,
    examples,
    features,
    labels,
    masked,
)

# `gelu_new`, their tanh gelu, takes six operations; this computes the same function in one.
TORCH = {"hidden_act": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}


def _features(case: Case) -> dict[str, Any]:
    import torch

    given = {name: torch.from_numpy(value).long() for name, value in features(case).items()}
    return {
        "input_ids": given[INPUT_WORD_IDS],
        "attention_mask": given[INPUT_MASK],
        "token_type_ids": given[INPUT_TYPE_IDS],
    }


def _autocast(case: Case) -> Any:
    """torch's mixed precision: weights in float32, products in the case's format."""
    import torch

    return torch.autocast("cpu", getattr(torch, case.precision), enabled=case.precision != "float32")


def stored(case: Case) -> Any:
    """The type of weights that compute in the case's format."""
    import torch

    return getattr(torch, case.precision)


def encoder(case: Case, folder: pathlib.Path, *, autocast: bool = False, compiled: bool = False) -> Prepared:
    """`inference_mode` and SDPA. compiled: by torch.compile, at this shape, with the weights as packed constants."""
    import torch
    import transformers

    kept = torch.float32 if autocast else stored(case)
    model = transformers.BertModel.from_pretrained(folder / case.size, dtype=kept, **TORCH).eval()
    if compiled:
        model = torch.compile(model, dynamic=False, options={"freezing": True})
    given = _features(case)

    @torch.inference_mode()
    def run() -> Any:
        with _autocast(case) if autocast else contextlib.nullcontext():
            return model(**given)

    found = run()
    outputs = {SEQUENCE_OUTPUT: found.last_hidden_state.float(), POOLED_OUTPUT: found.pooler_output.float()}
    return run, encoded(case, outputs)


def optimizer(model: Any) -> Any:
    """AdamW in one kernel; biases and norms do not decay."""
    import torch

    weights = [*model.parameters()]
    groups = [
        {"params": [one for one in weights if one.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in weights if one.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=EPSILON, fused=True)


def _training(case: Case, model: Any, batches: Any, *, compiled: bool) -> Callable[[], None]:
    """One pass over the batches, in a plain loop."""
    import torch

    step = optimizer(model)
    call = torch.compile(model, dynamic=False) if compiled else model

    def train() -> None:
        for batch in batches:
            with _autocast(case):
                loss = call(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            step.step()
            step.zero_grad()

    return train


def _inference(case: Case, model: Any, given: dict[str, Any]) -> Any:
    """The outputs without dropout; the model is left ready to train."""
    import torch

    with torch.no_grad(), _autocast(case):
        found = model.eval()(**given)
    model.train()
    return found


def finetune(case: Case, folder: pathlib.Path, *, compiled: bool = False) -> Prepared:
    """A plain loop over ready features, or over sentences that were tokenized beforehand, as `datasets.map` does it.

    compiled: the forward and backward pass by torch.compile, at this shape
    """
    import torch
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(folder / case.size, **TORCH)
    # The first call would set it, and torch.compile would compile the second one again.
    model.config.problem_type = "single_label_classification"
    if case.texts:
        tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
        texts, targets = examples(folder)
        count = case.batch * case.steps
        collate = transformers.DataCollatorWithPadding(tokenizer)
        ready = [
            {**tokenizer(text, truncation=True, max_length=case.length), "labels": label}
            for text, label in zip(texts[:count], targets[:count], strict=True)
        ]
        batches: Any = torch.utils.data.DataLoader(
            ready, batch_size=case.batch, shuffle=True, collate_fn=collate
        )
        first = dict(collate(ready[: case.batch]))
        first.pop("labels")
    else:
        first = _features(case)
        batches = [first | {"labels": torch.from_numpy(labels(case)).long()}] * case.steps
    logits = _inference(case, model, first).logits.float().numpy()
    return _training(case, model, batches, compiled=compiled), {"logits": logits}


def pretrain(case: Case, folder: pathlib.Path, *, compiled: bool = False) -> Prepared:
    """BertForPreTraining, which compares every position with the vocabulary; the loss reads the masked ones."""
    import torch
    import transformers

    model = transformers.BertForPreTraining.from_pretrained(folder / case.size, **TORCH)
    given = _features(case)
    positions, ids = (torch.from_numpy(value).long() for value in masked(case))
    targets = torch.full_like(given["input_ids"], -100).scatter_(1, positions, ids)
    batch = given | {"labels": targets, "next_sentence_label": torch.from_numpy(labels(case)).long()}
    found = _inference(case, model, given)
    rows = torch.arange(min(COMPARED, case.batch))[:, None]
    compared = {
        "masked_lm": found.prediction_logits[rows, positions[:COMPARED]].float().numpy(),
        "next_sentence": found.seq_relationship_logits.float().numpy(),
    }
    return _training(case, model, [batch] * case.steps, compiled=compiled), compared


def asker(case: Case, folder: pathlib.Path, *, compiled: bool = False) -> Callable[[list[str]], np.ndarray]:
    """The pipeline, which pads to the longest text of a request: sentences -> probabilities.

    compiled: by torch.compile, for any length
    """
    import torch
    import transformers

    path = folder / case.size
    model = transformers.BertForSequenceClassification.from_pretrained(path, dtype=stored(case), **TORCH)
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    pipe = transformers.pipeline("text-classification", model=model.eval(), tokenizer=tokenizer, device="cpu")
    if compiled:
        pipe.model.forward = torch.compile(pipe.model.forward, dynamic=True)

    @torch.inference_mode()
    def ask(texts: list[str]) -> np.ndarray:
        found = pipe(texts, batch_size=case.batch, top_k=None, truncation=True, max_length=case.length)
        ordered = [sorted(labels, key=lambda one: one["label"]) for labels in found]
        return np.array([[one["score"] for one in labels] for labels in ordered])

    return ask


def import_library(case: Case, folder: pathlib.Path) -> Arrays:
    """In a fresh process: the classes that the pipeline of a classifier needs."""
    import torch
    import transformers

    assert torch and transformers.BertForSequenceClassification and transformers.pipeline
    return {}
