"""Answers texts with an exported model: NumPy, tokenizers, and its runtime; no TensorFlow, and not this package.

The runtime is ONNX Runtime, OpenVINO or LiteRT (TensorFlow Lite).

    python example.py "a charming journey" "a dull plot"    the inputs of a request; the two texts of a pair follow each other
    python example.py < inputs.json                         {"sentence": ["a charming journey"]} -> outputs and answers as JSON

An export for another runtime has this file as example.py, beside the model, tokenizer.json and settings.json.
"""

import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Kept = list[tuple[int, int]]
FOLDER = pathlib.Path(__file__).resolve().parent


def _head_tail(room: int, length: int) -> Kept:
    head = min(length, (room * 128 + 255) // 510)
    return [(head, min(length - head, room - head))]


def _longest_first(room: int, first: int, second: int) -> Kept:
    kept = min(first, max((room + 1) // 2, room - second))
    return [(kept, 0), (min(second, room - kept), 0)]


def _waterfall(room: int, first: int, second: int) -> Kept:
    return [(min(first, room), 0), (min(second, room - min(first, room)), 0)]


# Room and the length of each text -> the tokens to keep of its start and of its end, as the training cut texts that do not fit.
TRUNCATION: dict[str, Callable[..., Kept]] = {
    "head": lambda room, length: [(min(length, room), 0)],
    "tail": lambda room, length: [(0, min(length, room))],
    "head_tail": _head_tail,
    "longest_first": _longest_first,
    "waterfall": _waterfall,
    # The start of each text is cut off.
    "longest_first_left": lambda room, *lengths: [(0, head) for head, _ in _longest_first(room, *lengths)],
    "waterfall_left": lambda room, *lengths: [(0, head) for head, _ in _waterfall(room, *lengths)],
}


def framed(settings: dict[str, Any], texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The ids of one or two texts -> the ids and types of one row: [CLS] a [SEP], or [CLS] a [SEP] b [SEP]."""
    start, end, separators = settings["start"], settings["end"], settings["separators"]
    room = settings["seq_length"] - 2 - (len(texts) - 1) * separators
    kept = TRUNCATION[settings["truncation"]](room, *map(len, texts))
    cut = [[*ids[:head], *ids[len(ids) - tail :]] for ids, (head, tail) in zip(texts, kept, strict=True)]
    ids = [start, *cut[0], *([settings.get("between", end)] * separators if len(cut) > 1 else [end])]
    types = [0] * len(ids)
    for second in cut[1:]:
        ids += [*second, end]
        types += [settings["second_type"]] * (len(second) + 1)
    return ids, types


@functools.cache
def read_tokenizer(path: str) -> Any:
    """The tokenizer of a tokenizer.json."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True  # a literal "[SEP]" is text, as in training
    return tokenizer


def features(settings: dict[str, Any], texts: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Strings [B] for each input, in their order -> the three int32 [B, S] of the model, padded to the longest row."""
    tokenizer = read_tokenizer(str(FOLDER / settings["tokenizer"]))
    encoded = [tokenizer.encode_batch(list(column), add_special_tokens=False) for column in texts]
    rows = [framed(settings, [text.ids for text in row]) for row in zip(*encoded, strict=True)]
    shape = len(rows), max(len(ids) for ids, _ in rows)
    word_ids = np.full(shape, settings["padding"], np.int32)
    mask, type_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, (ids, types) in enumerate(rows):
        word_ids[row, : len(ids)], mask[row, : len(ids)], type_ids[row, : len(ids)] = ids, 1, types
    return dict(zip(settings["features"], (word_ids, mask, type_ids), strict=True))


def load(settings: dict[str, Any]) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The model: features -> its output, float32 [B, ...]."""
    path, output = str(FOLDER / settings["model"]), settings["output"]
    if settings["runtime"] == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda given: session.run([output], given)[0]
    if settings["runtime"] == "litert":
        from ai_edge_litert.interpreter import Interpreter

        runner = Interpreter(path, num_threads=os.cpu_count()).get_signature_runner()
        return lambda given: runner(**given)[output]
    import openvino

    # By itself OpenVINO computes in bfloat16 where the processor can.
    hint = {"float32": "f32", "bfloat16": "bf16"}[settings["precision"]]
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    return lambda given: compiled(given)[output]


def answers(settings: dict[str, Any], output: np.ndarray) -> list[Any]:
    """The output [B, ...] -> an answer for each text: labels with probabilities, a score, or a vector."""
    kind, names = settings["answer"], settings["labels"]
    if not np.isfinite(output).all():
        sys.exit("the outputs of the model are NaN or infinite, so it has no answer.")
    if kind == "embedding":
        return output.tolist()
    if kind == "score":
        return [{"score": score} for score in output[:, 0].tolist()]
    if kind == "multi":
        probabilities = 1 / (1 + np.exp(-output))
        chosen = [[name for name, logit in zip(names, row, strict=True) if logit > 0] for row in output]
        return [
            {"labels": labels, "probabilities": row.tolist(), "label_names": names}
            for labels, row in zip(chosen, probabilities, strict=True)
        ]
    powers = np.exp(output - output.max(axis=-1, keepdims=True))
    probabilities = powers / powers.sum(axis=-1, keepdims=True)
    return [
        {"label": names[row.argmax()], "probabilities": row.tolist(), "label_names": names}
        for row in probabilities
    ]


def checked_features(settings: dict[str, Any], given: dict[str, Any]) -> dict[str, np.ndarray]:
    """Lists of rows by feature -> int32 [B, S]. Exits with one line for numbers that the model would read as others."""
    ids, most = ", ".join(given), settings["max_length"]
    shapes = [
        [len(row) if isinstance(row, list) else -1 for row in rows] if isinstance(rows, list) else [-1]
        for rows in given.values()
    ]
    if any(shape != shapes[0] for shape in shapes) or len({*shapes[0]}) != 1 or min(shapes[0]) < 1:
        sys.exit(f"{ids} have rows of other lengths; give lists of as many rows, all of one length.")
    if shapes[0][0] > most:
        sys.exit(f"{ids} have rows of {shapes[0][0]} tokens; the model reads at most {most}.")
    for name, rows in given.items():
        limit, values = settings["limits"][name], [value for row in rows for value in row]
        if wrong := [value for value in values if type(value) is not int]:
            sys.exit(f"{ids} are not all whole numbers: {name} has {wrong[0]!r:.40}; give rows of numbers.")
        if wrong := [value for value in values if not 0 <= value < limit]:
            sys.exit(f"{name} has {str(wrong[0]):.40}; give numbers from 0 to {limit - 1}.")
        if name == settings["features"][1] and not all(map(any, rows)):
            sys.exit(f"{name} has a row without a token; give each row at least one 1.")
    return {name: np.array(rows, np.int32) for name, rows in given.items()}


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in JSON. Raises ValueError for a name that it has twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


def is_text(value: Any) -> bool:
    """True for text without half of a surrogate pair, which is no character."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def read_inputs(settings: dict[str, Any], given: Any) -> dict[str, np.ndarray]:
    """The input in JSON -> int32 [B, S] for each feature. Exits with one line for another form."""
    names, ids = settings["inputs"], settings["features"]
    if isinstance(given, dict) and {*given} == {*ids}:  # of another tokenizer
        return checked_features(settings, given)
    wanted = json.dumps({name: ["..."] for name in names})
    if settings["tokenizer"] is None:
        sys.exit(f"this model has no tokenizer.json: give {', '.join(ids)} as JSON on standard input.")
    if not isinstance(given, dict) or {*given} != {*names}:
        found = ", ".join(given) if isinstance(given, dict) else type(given).__name__
        sys.exit(f"the input has {found or 'nothing'}; give {wanted}.")
    texts = [given[name] for name in names]
    if not all(isinstance(one, list) and all(map(is_text, one)) for one in texts):
        sys.exit(f"the input is not lists of texts; give {wanted}.")
    if len({len(column) for column in texts}) != 1 or not texts[0]:
        counts = ", ".join(f"{len(column)} of {name}" for name, column in zip(names, texts, strict=True))
        sys.exit(f"the input has {counts}; give as many of each, and at least one.")
    return features(settings, texts)


def main(arguments: list[str]) -> None:
    """Prints the answers to the arguments, or to the inputs in JSON on standard input."""
    settings = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
    names = settings["inputs"]
    if list(arguments) in (["--help"], ["-h"]) or (not arguments and sys.stdin.isatty()):
        print(__doc__)
        return
    given: Any = {name: arguments[i :: len(names)] for i, name in enumerate(names)}
    if not arguments:
        try:
            given = json.load(sys.stdin, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
            wanted = json.dumps({name: ["..."] for name in names})
            sys.exit(f"standard input is no JSON ({error}); give texts as arguments, or {wanted}.")
    try:
        output = load(settings)(read_inputs(settings, given))
    except ModuleNotFoundError as error:
        sys.exit(f"{error}; pip install {error.name}")
    found = answers(settings, output)
    print(json.dumps(found if arguments else {settings["output"]: output.tolist(), "answers": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
