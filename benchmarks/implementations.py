"""The work that each library does in a worker of peers.py.

In: a request that names a kind of work, an implementation and a case, and a folder of weights, texts and a vocabulary that
`peers.py` wrote. Out: a call to time, and the arrays that it computes, to compare the implementations.
Each library reads the weights by its own loader.

    encoder    features int32 [B, S] -> sequence_output [B, S, H], pooled_output [B, H]
    finetune   one pass over a few batches: forward, backward, clip by norm, AdamW
    tokenize   one pass over lines of text -> ids, by WordPiece
    byte-bpe   the same by byte-level BPE, in RoBERTa's form
    serving    one request of raw sentences, different in each call -> probabilities [B, 2]
"""

import argparse
import dataclasses
import functools
import itertools
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import interleave
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's bert_keras, installed or not

from bert_keras.features import (  # noqa: E402
    ENCODER_INPUTS,
    INPUT_MASK,
    INPUT_TYPE_IDS,
    INPUT_WORD_IDS,
    POOLED_OUTPUT,
    SEQUENCE_OUTPUT,
)

# Imported by the functions below: a worker loads one library, not all.
Arrays = dict[str, np.ndarray]
Prepared = tuple[Callable[[], Any], Arrays]

SEED = 7
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, EPSILON = 5e-5, 0.01, 1.0, 1e-6  # Devlin et al. 2019, A.2
LINES_A_BATCH = 256  # lines in one call of a tokenizer in Dataset.map


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One case of work.

    kind: a key of IMPLEMENTATIONS
    size: the folder of weights
    length: the padded length, for libraries that pad all batches to one length
    texts: True if `finetune` starts from raw text, and each library pads with its own pipeline
    steps: batches in one call of `finetune`
    precision: the format of the computation; a training keeps float32 weights
    """

    name: str
    kind: str
    size: str = "minilm"
    batch: int = 32
    length: int = 128
    texts: bool = False
    steps: int = 2
    precision: str = "float32"
    default: bool = True


def features(case: Case) -> Arrays:
    """Random ids in two segments; the first row is full, the rest half full or more."""
    random, shape = np.random.default_rng(SEED), (case.batch, case.length)
    lengths = random.integers(case.length // 2, case.length, (case.batch, 1), endpoint=True)
    lengths[0] = case.length
    mask = (np.arange(case.length) < lengths).astype("int32")
    second = (np.arange(case.length) >= lengths // 2).astype("int32")
    # Ids from 5: any vocabulary has five special tokens, and a thousand tokens more.
    ids = random.integers(5, 1000, shape).astype("int32")
    return {INPUT_WORD_IDS: ids * mask, INPUT_MASK: mask, INPUT_TYPE_IDS: second * mask}


def labels(case: Case) -> np.ndarray:
    """int32 [B], 0 or 1."""
    return np.arange(case.batch, dtype="int32") % 2


def examples(folder: pathlib.Path) -> tuple[list[str], list[int]]:
    """Sentences and labels of `examples.tsv`."""
    rows = [line.split("\t") for line in (folder / "examples.tsv").read_text(encoding="utf-8").splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def requests(case: Case, folder: pathlib.Path) -> list[list[str]]:
    """Sentences, one batch per request."""
    texts, _ = examples(folder)
    return [texts[start : start + case.batch] for start in range(0, len(texts) - case.batch + 1, case.batch)]


def in_turn(ask: Callable[[list[str]], Any], asked: list[list[str]]) -> Callable[[], Any]:
    """A call that sends the next request."""
    cycle = itertools.cycle(asked)
    return lambda: ask(next(cycle))


def lines(folder: pathlib.Path) -> list[str]:
    """The text that tokenizers read."""
    return (folder / "lines.txt").read_text(encoding="utf-8").split("\n")


def encoded(case: Case, outputs: Mapping[str, Any]) -> Arrays:
    """An encoder's outputs as arrays. The sequence output is 0 in padding, where libraries may differ."""
    found = {name: np.asarray(value, "float32") for name, value in outputs.items()}
    if SEQUENCE_OUTPUT in found:
        found[SEQUENCE_OUTPUT] = found[SEQUENCE_OUTPUT] * features(case)[INPUT_MASK][..., None]
    return found


def pieces(rows: list[list[int]]) -> Arrays:
    """Ids of all lines, concatenated, and the number of ids in each line."""
    return {
        "ids": np.array([*itertools.chain(*rows)], "int32"),
        "lengths": np.array([*map(len, rows)], "int32"),
    }


# -----------------------------------------------------------------------------------------------------------
# bert_keras


def _ours_features(case: Case) -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.constant(value) for name, value in features(case).items()}


def _our_encoder(
    case: Case, folder: pathlib.Path, *, outputs: tuple[str, ...], unpadded: bool = False
) -> Prepared:
    import tensorflow as tf

    from bert_keras.checkpoints import load_encoder

    encoder = load_encoder(folder / case.size, outputs=outputs, dtype=case.precision)
    encoder.unpadded = unpadded
    # One trace for every length, as in training and serving.
    anything = {name: tf.TensorSpec([None, None], tf.int32) for name in ENCODER_INPUTS}
    run = tf.function(lambda given: encoder(given, training=False), input_signature=[anything])
    given = _ours_features(case)
    return lambda: run(given), encoded(case, run(given))


def _our_finetune(case: Case, folder: pathlib.Path) -> Prepared:
    import tensorflow as tf

    from bert_keras import checkpoints
    from bert_keras.optimizers import AdamW
    from bert_keras.precision import training_policy
    from bert_keras.schedules import WarmupLinearDecay
    from bert_keras.text.preprocessing import Preprocessor
    from tasks.batches import dataset
    from tasks.glue.data_sets import ROWS
    from tasks.glue.task import Glue
    from tasks.training.run_folder import heads_of, network_of

    task = Glue(ROWS["sst2"])
    checkpoint = checkpoints.read(folder / case.size)
    policy = training_policy(case.precision)
    encoder, model = network_of(task, checkpoint.config, dtype=policy)
    checkpoints.assign(checkpoint, encoder, **heads_of(model))
    schedule = WarmupLinearDecay(LEARNING_RATE, total_steps=1_000_000, warmup_steps=0)
    model.compile(
        AdamW(schedule, weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM), loss=task.loss(), jit_compile=False
    )
    if case.texts:
        preprocess = Preprocessor(
            checkpoints.tokenizer_of(checkpoint), seq_length=case.length, pad_to_longest=True
        )
        texts, targets = examples(folder)
        rows = tf.data.Dataset.from_tensor_slices({"sentence": texts, "label": targets}).take(
            case.batch * case.steps
        )
        batches = dataset(task, preprocess, rows, batch_size=case.batch, seed=SEED)
        first = preprocess(tf.constant(texts[: case.batch]))
    else:
        first = _ours_features(case)
        one = (first, labels(case), np.ones(case.batch, "float32"))
        batches = tf.data.Dataset.from_tensors(one).repeat(case.steps)
    return lambda: model.fit(batches, verbose=0), {"logits": model(first, training=False).numpy()}


def _our_tokenize(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    from bert_keras.text.wordpiece import WordPiece

    tokenizer = WordPiece.from_file(str(folder / "vocab.txt"))
    call = _mapped(getattr(tokenizer, method), folder)
    return call, pieces(tokenizer.tokenize(lines(folder)).to_list())


def _our_byte_bpe(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    from bert_keras import checkpoints

    tokenizer = checkpoints.load_tokenizer(folder / "byte-bpe")
    call = _mapped(getattr(tokenizer, method), folder)
    return call, pieces(tokenizer.tokenize(lines(folder)).to_list())


def _our_serving(case: Case, folder: pathlib.Path) -> Prepared:
    """The exported SavedModel, which takes raw strings."""
    import tensorflow as tf

    from bert_keras import checkpoints
    from bert_keras.text.preprocessing import Preprocessor
    from savedmodels.export import export
    from tasks.glue.data_sets import ROWS
    from tasks.glue.task import Glue
    from tasks.training.run_folder import Run, heads_of, network_of
    from tasks.training.run_precision import at_precision

    served = folder / f"{case.size}-{case.precision}-served"
    if not served.exists():
        task, checkpoint = Glue(ROWS["sst2"]), checkpoints.read(folder / case.size)
        encoder, model = network_of(task, checkpoint.config)
        checkpoints.assign(checkpoint, encoder, **heads_of(model))
        tokenizer = checkpoints.tokenizer_of(checkpoint)
        preprocess = Preprocessor(tokenizer, seq_length=case.length, pad_to_longest=True)
        run = Run(task=task, preprocess=preprocess, model=model, path=folder / case.size)
        export(at_precision(run, case.precision), served)
    serve = tf.saved_model.load(str(served / "1")).signatures["serving_default"]

    def ask(texts: list[str]) -> np.ndarray:
        return serve(sentence=tf.constant(texts))["probabilities"].numpy()

    asked = requests(case, folder)
    return in_turn(ask, asked), {"probabilities": ask(asked[0])}


def _mapped(tokenize: Callable, folder: pathlib.Path) -> Callable[[], Any]:
    """One pass over all lines in `Dataset.map`; the results are discarded."""
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices(lines(folder)).batch(LINES_A_BATCH).cache()
    made = batches.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return lambda: sum(1 for _ in made)


# -----------------------------------------------------------------------------------------------------------
# KerasHub


def _keras_hub_preset(folder: pathlib.Path) -> str:
    """The same weights in KerasHub's format."""
    from bert_keras import checkpoints

    preset = folder.with_name(f"{folder.name}-keras-hub")
    if not preset.exists():
        checkpoints.write(checkpoints.read(folder), preset, format="keras-hub")
    return str(preset)


def _keras_hub_features(case: Case) -> Arrays:
    given = features(case)
    return {
        "token_ids": given[INPUT_WORD_IDS],
        "padding_mask": given[INPUT_MASK],
        "segment_ids": given[INPUT_TYPE_IDS],
    }


def _keras_hub_encoder(case: Case, folder: pathlib.Path) -> Prepared:
    import keras_hub
    import tensorflow as tf

    preset = _keras_hub_preset(folder / case.size)
    backbone = keras_hub.models.BertBackbone.from_preset(preset, dtype=case.precision)
    run = tf.function(lambda given: backbone(given, training=False))
    given = {name: tf.constant(value) for name, value in _keras_hub_features(case).items()}
    return lambda: run(given), encoded(case, run(given))


def _keras_hub_classifier(folder: pathlib.Path, policy: str) -> Any:
    import keras_hub

    from bert_keras import checkpoints

    backbone = keras_hub.models.BertBackbone.from_preset(_keras_hub_preset(folder), dtype=policy)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None, dropout=0.1)
    head = checkpoints.read(folder).tensors  # a preset of a backbone has none
    model.get_layer("logits").set_weights([head["classifier/dense/kernel"], head["classifier/dense/bias"]])
    return model


def _keras_hub_finetune(case: Case, folder: pathlib.Path) -> Prepared:
    import keras
    import keras_hub
    import tensorflow as tf

    from bert_keras.precision import training_policy

    preset = _keras_hub_preset(folder / case.size)
    model = _keras_hub_classifier(folder / case.size, training_policy(case.precision))
    optimizer = keras.optimizers.AdamW(
        LEARNING_RATE, weight_decay=WEIGHT_DECAY, epsilon=EPSILON, global_clipnorm=CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=False)  # XLA, its default, is slower on a CPU
    if case.texts:
        preprocess = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
            preset, sequence_length=case.length
        )
        texts, targets = examples(folder)
        count = case.batch * case.steps
        rows = (
            tf.data.Dataset.from_tensor_slices((texts[:count], targets[:count]))
            .shuffle(count)
            .batch(case.batch)
        )
        batches = rows.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
        first = preprocess(texts[: case.batch])
    else:
        first = _keras_hub_features(case)
        batches = tf.data.Dataset.from_tensors((first, labels(case))).repeat(case.steps)
    return lambda: model.fit(batches, verbose=0), {"logits": np.asarray(model(first, training=False))}


def _keras_hub_serving(case: Case, folder: pathlib.Path) -> Prepared:
    """KerasHub's preprocessor, which is not exported, and the SavedModel that `export` writes."""
    import keras_hub
    import tensorflow as tf

    served = folder / f"{case.size}-{case.precision}-keras-hub-served"
    if not served.exists():
        _keras_hub_classifier(folder / case.size, case.precision).export(str(served), verbose=False)
    serve = tf.saved_model.load(str(served)).signatures["serving_default"]
    preprocess = keras_hub.models.BertTextClassifierPreprocessor.from_preset(
        _keras_hub_preset(folder / case.size), sequence_length=case.length
    )
    names = tuple(serve.structured_input_signature[1])

    def ask(texts: list[str]) -> np.ndarray:
        given = preprocess(texts)
        (logits,) = serve(**{name: tf.cast(given[name], tf.int32) for name in names}).values()
        return tf.nn.softmax(logits).numpy()

    asked = requests(case, folder)
    return in_turn(ask, asked), {"probabilities": ask(asked[0])}


def _keras_hub_tokenize(case: Case, folder: pathlib.Path) -> Prepared:
    import keras_hub

    tokenizer = keras_hub.models.BertTokenizer(vocabulary=str(folder / "vocab.txt"), lowercase=True)
    return _mapped(tokenizer, folder), pieces([[int(id) for id in row] for row in tokenizer(lines(folder))])


def _keras_hub_byte_bpe(case: Case, folder: pathlib.Path) -> Prepared:
    import keras_hub

    files = {"vocabulary": str(folder / "byte-bpe/vocab.json"), "merges": str(folder / "byte-bpe/merges.txt")}
    tokenizer = keras_hub.models.RobertaTokenizer(**files)
    return _mapped(tokenizer, folder), pieces([[int(id) for id in row] for row in tokenizer(lines(folder))])


# -----------------------------------------------------------------------------------------------------------
# Hugging Face

# `gelu_new`, their tanh gelu, takes six operations; this computes the same function in one.
_TORCH = {"hidden_act": "gelu_pytorch_tanh", "attn_implementation": "sdpa"}


def _torch_features(case: Case) -> dict[str, Any]:
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


def _hugging_face_encoder(case: Case, folder: pathlib.Path, *, autocast: bool = False) -> Prepared:
    import torch
    import transformers

    path, stored = folder / case.size, torch.float32 if autocast else getattr(torch, case.precision)
    model = transformers.BertModel.from_pretrained(path, dtype=stored, **_TORCH).eval()
    run, given = torch.inference_mode()(model), _torch_features(case)
    run = _autocast(case)(run) if autocast else run
    found = run(**given)
    outputs = {
        SEQUENCE_OUTPUT: found.last_hidden_state.float(),
        POOLED_OUTPUT: found.pooler_output.float(),
    }
    return lambda: run(**given), encoded(case, outputs)


def _hugging_face_finetune(case: Case, folder: pathlib.Path) -> Prepared:
    import torch
    import transformers

    path = folder / case.size
    model = transformers.BertForSequenceClassification.from_pretrained(path, **_TORCH)
    named = [*model.named_parameters()]
    groups = [
        {"params": [one for _, one in named if one.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for _, one in named if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=EPSILON, fused=True)
    if case.texts:
        tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
        texts, targets = examples(folder)
        count = case.batch * case.steps
        collate = transformers.DataCollatorWithPadding(tokenizer)
        # Tokenized before training, as `datasets.map` does it.
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
        first = _torch_features(case)
        batches = [first | {"labels": torch.from_numpy(labels(case)).long()}] * case.steps

    def train() -> None:
        for batch in batches:
            with _autocast(case):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()

    with torch.no_grad(), _autocast(case):
        logits = model.eval()(**first).logits.float().numpy()
    model.train()
    return train, {"logits": logits}


def _hugging_face_serving(case: Case, folder: pathlib.Path) -> Prepared:
    """The pipeline, which pads to the longest text of a request."""
    import torch
    import transformers

    path, stored = folder / case.size, getattr(torch, case.precision)
    model = transformers.BertForSequenceClassification.from_pretrained(path, dtype=stored, **_TORCH).eval()
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=True)
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")

    @torch.inference_mode()
    def ask(texts: list[str]) -> np.ndarray:
        found = pipe(texts, batch_size=case.batch, top_k=None, truncation=True, max_length=case.length)
        ordered = [sorted(labels, key=lambda one: one["label"]) for labels in found]
        return np.array([[one["score"] for one in labels] for labels in ordered])

    asked = requests(case, folder)
    return in_turn(ask, asked), {"probabilities": ask(asked[0])}


def _tokenizers(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)._tokenizer
    return _encoding(getattr(tokenizer, method), folder)


def _tokenizers_byte_bpe(case: Case, folder: pathlib.Path, *, method: str) -> Prepared:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "byte-bpe/tokenizer.json"))
    return _encoding(getattr(tokenizer, method), folder)


def _encoding(method: Callable, folder: pathlib.Path) -> Prepared:
    encode = functools.partial(method, add_special_tokens=False)
    text = lines(folder)
    return lambda: encode(text), pieces([one.ids for one in encode(text)])


# -----------------------------------------------------------------------------------------------------------
# TensorFlow Text


def _fast_bert_tokenizer(case: Case, folder: pathlib.Path) -> Prepared:
    import tensorflow as tf
    import tensorflow_text

    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = tensorflow_text.FastBertTokenizer(
        vocabulary, lower_case_nfd_strip_accents=True, token_out_type=tf.int32
    )
    return _mapped(tokenizer.tokenize, folder), pieces(tokenizer.tokenize(lines(folder)).to_list())


# -----------------------------------------------------------------------------------------------------------

# Kind -> implementation -> the function that prepares a case. Our names start with OURS; the others are peers.
OURS, AUTOCAST = "bert_keras", "Hugging Face, autocast"
IMPLEMENTATIONS: dict[str, dict[str, Callable[[Case, pathlib.Path], Prepared]]] = {
    "encoder": {
        OURS: functools.partial(_our_encoder, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT)),
        f"{OURS}, unpadded": functools.partial(
            _our_encoder, outputs=(SEQUENCE_OUTPUT, POOLED_OUTPUT), unpadded=True
        ),
        f"{OURS}, pooled only": functools.partial(_our_encoder, outputs=(POOLED_OUTPUT,)),
        "KerasHub": _keras_hub_encoder,
        "Hugging Face": _hugging_face_encoder,
        AUTOCAST: functools.partial(_hugging_face_encoder, autocast=True),
    },
    "finetune": {
        OURS: _our_finetune,
        "KerasHub": _keras_hub_finetune,
        "Hugging Face": _hugging_face_finetune,
    },
    "serving": {
        OURS: _our_serving,
        "KerasHub": _keras_hub_serving,
        "Hugging Face": _hugging_face_serving,
    },
    "tokenize": {
        OURS: functools.partial(_our_tokenize, method="tokenize"),
        f"{OURS}, offsets": functools.partial(_our_tokenize, method="tokenize_with_offsets"),
        "KerasHub": _keras_hub_tokenize,
        "tokenizers": functools.partial(_tokenizers, method="encode_batch"),
        "tokenizers, no offsets": functools.partial(_tokenizers, method="encode_batch_fast"),
        "FastBertTokenizer": _fast_bert_tokenizer,
    },
    "byte-bpe": {
        OURS: functools.partial(_our_byte_bpe, method="tokenize"),
        f"{OURS}, offsets": functools.partial(_our_byte_bpe, method="tokenize_with_offsets"),
        "KerasHub": _keras_hub_byte_bpe,
        "tokenizers": functools.partial(_tokenizers_byte_bpe, method="encode_batch"),
        "tokenizers, no offsets": functools.partial(_tokenizers_byte_bpe, method="encode_batch_fast"),
    },
}
# The packages that an implementation needs, besides our own dependencies.
NEEDS = {
    **dict.fromkeys(("Hugging Face", AUTOCAST), ("torch", "transformers")),
    "tokenizers": ("tokenizers",),
    "tokenizers, no offsets": ("tokenizers",),
}


def implementations_of(case: Case) -> list[str]:
    """The names of a case's implementations; autocast is one of a narrow format alone."""
    return [name for name in IMPLEMENTATIONS[case.kind] if name != AUTOCAST or case.precision != "float32"]


def matrix_rate(precision: str, *, clock: str, size: int = 1024) -> float:
    """The speed of TensorFlow's product of two square matrices on this machine, in 10^9 operations a second."""
    import tensorflow as tf

    matrix = tf.cast(tf.random.normal([size, size]), precision)
    product = tf.function(lambda: tf.matmul(matrix, matrix), autograph=False)
    product()
    return 2e-9 * size**3 / interleave.seconds_per_call(product, at_least=1.0, clock=clock)


def _set_threads(name: str, threads: int) -> None:
    interleave.hold_to(threads)
    if name.startswith("Hugging Face"):
        import torch

        torch.set_num_threads(threads)
    elif not name.startswith("tokenizers"):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def main() -> None:
    """A worker: prepares cases and runs them when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--clock", choices=interleave.CLOCKS, required=True)
    args = parser.parse_args()
    _set_threads(args.name, args.threads)
    call: Callable[[], Any] = lambda: None  # noqa: E731

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal call
        if request["do"] == "time":
            return {
                "seconds": interleave.seconds_per_call(call, at_least=request["at_least"], clock=args.clock)
            }
        if request["do"] == "rate":
            return {"rate": matrix_rate(request["precision"], clock=args.clock)}
        case = Case(**request["case"])
        call, found = IMPLEMENTATIONS[case.kind][args.name](case, pathlib.Path(request["folder"]))
        np.savez(request["outputs"], **found)
        call()  # traces, compiles and allocates
        return {}

    interleave.serve(answer)


if __name__ == "__main__":
    main()
