"""What lies beside the graph of an exported model: how to serve it, what it is, and whether it is whole.

    BASE/models.config             for tensorflow_model_server --model_config_file
    BASE/batching_parameters.txt   for --batching_parameters_file
    BASE/1/assets.extra/           what TensorFlow's loader passes over:
        manifest.json              the SHA-256 and size of every other file of the version
        model_card.md              the model, its measures and signatures, and requests to copy
        example.json               what those requests ask, by input
        tf_serving_warmup_requests what a server asks itself before it answers others

In: a Run, its signatures and a folder. Out: these files.
"""

import hashlib
import inspect
import json
import pathlib
import platform
import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import tensorflow as tf

from bert_keras.errors import BertKerasError, MissingFileError
from bert_keras.files import write_json
from bert_keras.json_files import ANYTHING, MEASURE, OBJECT, object_of, read_object, typed, whole
from bert_keras.paths import path_of
from savedmodels import servers
from tasks.fill_mask import FillMask
from tasks.task import Problem
from tasks.training.loop import RESULTS_FILE
from tasks.training.run import Ensemble, Run, encoder_of

EXTRA = "assets.extra"
MANIFEST, CARD, EXAMPLE = "manifest.json", "model_card.md", "example.json"
WARMUP = "tf_serving_warmup_requests"
MODELS, BATCHING = "models.config", "batching_parameters.txt"

Texts = Mapping[str, list[Any]]


# -----------------------------------------------------------------------------------------------------------
# Signatures


def tensors_of(signature: Any) -> Iterator[tuple[str, str, str, str]]:
    """("input" or "output", name, dtype, shape) of each tensor of a concrete function; "?" is any size."""
    _, inputs = signature.structured_input_signature
    for side, specs in (("input", inputs), ("output", signature.structured_outputs)):
        for name, spec in sorted(specs.items()):
            sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
            yield side, name, spec.dtype.name, f"[{sizes}]"


def signature_table(signatures: Mapping[str, Any]) -> str:
    """Every tensor of every signature, a row each, in Markdown."""
    rows = [
        f"| `{signature}` | {side} | `{name}` | {dtype} | {shape} |"
        for signature, function in signatures.items()
        for side, name, dtype, shape in tensors_of(function)
    ]
    return "\n".join(["| signature | | name | dtype | shape |", "|---|---|---|---|---|", *rows])


# -----------------------------------------------------------------------------------------------------------
# Warm-up


def _field(number: int, payload: bytes) -> bytes:
    """A protocol buffer's field of bytes; its number is under 16."""
    size, length = bytearray(), len(payload)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + payload


def prediction_log(texts: Texts, *, name: str) -> bytes:
    """The PredictionLog of one request for `serving_default`, serialized.

    By hand, for its protocol is in tensorflow-serving-api alone, which nothing else here needs.
    Source: tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto.
    """
    model_spec = _field(1, name.encode()) + _field(3, b"serving_default")
    inputs = [
        _field(1, key.encode()) + _field(2, tf.make_tensor_proto(values, tf.string).SerializeToString())
        for key, values in texts.items()
    ]
    request = _field(1, model_spec) + b"".join(_field(2, entry) for entry in inputs)
    return _field(6, _field(1, request))


def write_warmup(path: pathlib.Path, texts: Texts, *, name: str) -> None:
    """A request for each example by itself and one for all of them."""
    count = len(next(iter(texts.values())))
    with tf.io.TFRecordWriter(str(path)) as writer:
        for rows in (*(slice(i, i + 1) for i in range(count)), slice(None)):
            writer.write(prediction_log({key: values[rows] for key, values in texts.items()}, name=name))


# -----------------------------------------------------------------------------------------------------------
# For tensorflow_model_server

MODELS_CONFIG = """model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
}}
"""

BATCHING_PARAMETERS = """# Requests that wait together are run as one batch. A batch is padded to its longest text.
max_batch_size { value: 32 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
# Batches that run at a time: as many as the server has cores is a good start.
num_batch_threads { value: 4 }
"""


def server_files(name: str) -> dict[str, str]:
    """The texts of the files that stand beside the versions, by name."""
    quoted = {
        key: json.dumps(value, ensure_ascii=False)
        for key, value in {"name": name, "path": f"/models/{name}"}.items()
    }
    return {MODELS: MODELS_CONFIG.format(**quoted), BATCHING: BATCHING_PARAMETERS}


# -----------------------------------------------------------------------------------------------------------
# The card

CARD_TEMPLATE = """# {name}

| | |
|---|---|
{facts}

{measures}
## Signatures

`?` is any size; where it comes first it is the number of examples.

{signatures}

`examples` takes serialized `tf.Example` with the inputs of `serving_default` as bytes features, `features` what a client
tokenized itself{ragged}.

`serving_default` answers:

{answers}

## Serving

    docker run -p 8500:8500 -p 8501:8501 -v "$PWD"/{volume} tensorflow/serving:{server} \\
        --model_config_file={config} \\
        --enable_batching --batching_parameters_file={batching}

REST:

    curl -d '{{"instances": [{example}]}}' http://localhost:8501/v1/models/{address}:predict

gRPC, with `pip install tensorflow-serving-api`:

    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    request = predict_pb2.PredictRequest()
    request.model_spec.name = {quoted}
{grpc}
    channel = grpc.insecure_channel("localhost:8500")
    response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=10)
    print({{name: tf.make_ndarray(value) for name, value in response.outputs.items()}})

Python, with TensorFlow and TensorFlow Text alone:

    import tensorflow as tf
    import tensorflow_text

    model = tf.saved_model.load({path})
    model.signatures["serving_default"]({python})

A SavedModel is code: load those that you trust. `bert-keras info {shell_path}` says whether its files are as they were
written.
"""

# By input, where the task has no text of its own.
EXAMPLES = {
    "text": "Ada Lovelace was born in London.",
    "question": "Where was Ada Lovelace born?",
    "context": "Ada Lovelace was born in London.",
}

RAGGED = """, and `ragged` answers as `serving_default` does, but with the lists of all
examples in a row and where each example's begin. Its outputs have no batch dimension: with the server's batching, or REST's
`instances`, ask `serving_default`"""


def model_card(run: Run, signatures: Mapping[str, Any], *, name: str, version: int, size: int) -> str:
    """The model card, in Markdown. size: of the graph and the weights, in bytes."""
    example = example_of(run.task)
    return CARD_TEMPLATE.format(
        name=name,
        volume=shlex.quote(f"{name}:/models/{name}"),
        config=shlex.quote(f"/models/{name}/{MODELS}"),
        batching=shlex.quote(f"/models/{name}/{BATCHING}"),
        address=urllib.parse.quote(name, safe=""),
        quoted=json.dumps(name, ensure_ascii=False),
        path=json.dumps(f"{name}/{version}", ensure_ascii=False),
        shell_path=shlex.quote(f"{name}/{version}"),
        facts="\n".join(f"| {key} | {value} |" for key, value in _facts(run, size).items()),
        measures=_measures(run),
        signatures=signature_table(signatures),
        ragged=RAGGED if "ragged" in signatures else "",
        answers=answers_of(run.task),
        server=f"{servers.VERSIONS[-1]}.0",
        example=json.dumps(example),
        grpc="\n".join(
            f'    request.inputs["{key}"].CopyFrom(tf.make_tensor_proto([{json.dumps(value)}]))'
            for key, value in example.items()
        ),
        python=", ".join(f"{key}=tf.constant([{json.dumps(value)}])" for key, value in example.items()),
    )


def example_of(task: Problem) -> dict[str, Any]:
    """A text to ask with for each input, or the list of them that an input of a choice takes."""
    texts = {**EXAMPLES, **task.example_texts}
    example = {}
    for name, spec in task.signature().items():
        text = texts.get(name, "A charming and often affecting journey.")
        example[name] = text if len(spec.shape) == 1 else [text] * spec.shape[1]
    return example


def answers_of(task: Problem) -> str:
    """The description of the decoded outputs, from the docstring of `decode` or `decode_features`."""
    kind = type(task)
    decode = kind.decode_features if kind.decode is Problem.decode else kind.decode
    return inspect.cleandoc(decode.__doc__ or "")


def _facts(run: Run, size: int) -> dict[str, Any]:
    task, tokenizer = run.task.to_json(), run.preprocess.tokenizer
    members = run.model.members if isinstance(run.model, Ensemble) else [run.model]
    configs = [encoder_of(member).config for member in members]
    sizes = dict.fromkeys(f"{config.num_layers} layers of {config.hidden_size}" for config in configs)
    facts = {
        "task": f"{run.task.name} ({run.task.kind})",
        "labels": ", ".join(map(str, task.get("labels") or ())),
        "settings": ", ".join(
            f"{key} {value}"
            for key, value in task.items()
            if isinstance(value, int | float | str) and key != "name"
        ),
        "ensemble": f"of {len(members)} models, the mean of their outputs" if len(members) > 1 else "",
        "encoder": f"{' and '.join(sizes)}, {run.model.count_params():,} parameters",
        "longest text": f"{run.preprocess.seq_length} wordpieces",
        "vocabulary": f"{tokenizer.vocab_size:,} pieces",
        "SHA-256 of its file": tokenizer.digest,
        "lower-cased": tokenizer.lower_case,
        "size": f"{size / 1e6:.1f} MB",
        "made with": f"bert-keras {version_of('bert-keras')}, TensorFlow {tf.__version__}, Python {platform.python_version()}",
    }
    return {name: value for name, value in facts.items() if value != ""}


def version_of(package: str) -> str:
    """A package's version; "(sources)" where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return "(sources)"


def _measures(run: Run) -> str:
    """The section of what results.json says of the exported task; nothing where it says nothing of that."""
    path = run.path / RESULTS_FILE
    # Of an ensemble, only the members were measured.
    if isinstance(run.model, Ensemble) or not path.is_file():
        return ""
    kinds = {
        "task": ANYTHING,
        "dev_examples": whole(0, 2**63 - 1),
        "measures": object_of(MEASURE),
        "majority_baselines": object_of(MEASURE),
    }
    results = typed(read_object(path), kinds, where=path, optional=kinds, others=True)
    if results.get("task") == run.task.name:
        of = f"On the dev split ({results.get('dev_examples', '?')} examples):"
        measures = {name.removeprefix("val_"): value for name, value in results.get("measures", {}).items()}
    elif run.task.kind == FillMask.kind and "majority_baselines" in results:
        of = "On instances held out of pre-training; a majority baseline always answers what is commonest:"
        measures = _held_out(results)
    else:
        return ""
    if not measures:
        return ""
    rows = [f"| {name} | {value:.4f} |" for name, value in measures.items()]
    return "\n".join(["## Measures", "", of, "", "| measure | value |", "|---|---|", *rows, "", ""])


def _held_out(results: Mapping[str, Any]) -> dict[str, float]:
    """The held-out measures of a pre-training run by name, and after them the majority baselines."""
    prefix = "held_out_"
    held_out = {
        name.removeprefix(prefix): value
        for name, value in results.get("measures", {}).items()
        if name.startswith(prefix)
    }
    baselines = results["majority_baselines"].items()
    return held_out | {f"{name}, majority baseline": value for name, value in baselines}


# -----------------------------------------------------------------------------------------------------------
# The manifest


def write_manifest(folder: pathlib.Path) -> None:
    """Writes the size and SHA-256 of every file of a version."""
    content = {"files": _described(folder)}
    (folder / EXTRA / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def verify(folder: str | pathlib.Path) -> dict[str, Any]:
    """The files of a version as its manifest has them: {path: {"bytes", "sha256"}}.

    Raises FileNotFoundError where there is no manifest, ValueError naming the files that are missing, changed or not in it.
    """
    folder = path_of(folder)
    path = folder / EXTRA / MANIFEST
    if not path.is_file():
        raise MissingFileError(f"{folder} has no {EXTRA}/{MANIFEST}; give the folder of an exported version.")
    wanted = typed(read_object(path), {"files": object_of(OBJECT)}, where=path, others=True)["files"]
    found = _described(folder)
    if wrong := sorted(name for name in wanted | found if wanted.get(name) != found.get(name)):
        raise BertKerasError(
            f"{folder} is not as it was written: {', '.join(wrong)} missing, changed or added; export again."
        )
    return wanted


def _described(folder: pathlib.Path) -> dict[str, Any]:
    """Bytes and SHA-256 of every file but the manifest, by path."""
    described = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if name != f"{EXTRA}/{MANIFEST}":
            with path.open("rb") as file:
                described[name] = {
                    "bytes": path.stat().st_size,
                    "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
                }
    return described


# -----------------------------------------------------------------------------------------------------------


def write_extra(
    folder: pathlib.Path, run: Run, signatures: Mapping[str, Any], texts: Texts, *, name: str, version: int
) -> None:
    """Writes assets.extra of a saved version. texts: what the server asks itself first."""
    extra = folder / EXTRA
    extra.mkdir()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    write_warmup(extra / WARMUP, texts, name=name)
    card = model_card(run, signatures, name=name, version=version, size=size)
    (extra / CARD).write_text(card, encoding="utf-8")
    write_json(extra / EXAMPLE, example_of(run.task))
    write_manifest(folder)
