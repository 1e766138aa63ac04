"""The model card of an exported version, in Markdown, and the configuration files for a server beside it.

In: a Run and its signatures. Out: the text of assets.extra/model_card.md, and the example in its requests.
"""

import inspect
import json
import shlex
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from bert_keras.fields import field_types
from bert_keras.io.json_files import (
    ANYTHING,
    MEASURE,
    OBJECT,
    TEXT,
    checked_fields,
    integer,
    object_of,
    or_null,
    read_object,
)
from bert_keras.savedmodels.serving_protos import MODELS
from bert_keras.tasks.hparams import Hparams
from bert_keras.tasks.runs.ensemble import Ensemble, members_of
from bert_keras.tasks.runs.facts import facts_of
from bert_keras.tasks.runs.run_card import TRAINING, fact_rows, measures_of, training_of
from bert_keras.tasks.runs.run_folder import DEGENERATE, ORIGIN, Run
from bert_keras.tasks.task import LABEL_NAMES, PROBABILITIES, Problem
from bert_keras.tasks.training.loop import RESULTS_FILE
from bert_keras.tasks.training.task_model import encoder_of

# Of TensorFlow Serving, which an export can be checked for.
VERSIONS = tuple(f"2.{minor}" for minor in range(10, 21))
BATCHING = "batching_parameters.txt"

CARD_TEMPLATE = """# {name}

| | |
|---|---|
{facts}

{measures}
## Signatures

`?` is any size; the first dimension is the number of examples.

{signatures}

`examples` takes serialized `tf.Example` protos with the inputs of `serving_default` as bytes features. `features` takes token
ids, for clients that tokenize texts.{ragged}

`serving_default` returns:

{answers}

## Serving

    docker run -p 127.0.0.1:8500:8500 -p 127.0.0.1:8501:8501 -v "$PWD"/{volume} tensorflow/serving:{server} \\
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

Python, with only TensorFlow and TensorFlow Text:

    import tensorflow as tf
    import tensorflow_text  # registers ops; without it, load fails: "Op type not registered"

    model = tf.saved_model.load({path})
    model.signatures["serving_default"]({python})

A SavedModel is code: load it only if you trust its source. `bert-keras info {shell_path}` compares its files with their
checksums.
"""

# Example texts by input, for tasks without their own.
EXAMPLES = {
    "text": "Ada Lovelace was born in London.",
    "question": "Where was Ada Lovelace born?",
    "context": "Ada Lovelace was born in London.",
}

RAGGED = """ `ragged` returns the same as `serving_default`, but the lists of all
examples are concatenated, with the offset of each example's list. Its outputs have no batch dimension: use `serving_default`
with a server that batches, and with REST's `instances`."""

FROZEN = (
    "constants of the graph: the model cannot be fine-tuned, and the loaded object has its signatures alone"
)


def model_card(
    run: Run, signatures: Mapping[str, Any], *, name: str, version: int, size: int, frozen: bool = False
) -> str:
    """The text of the card. size: bytes of the graph and the weights; frozen: True if the weights are constants."""
    example, precision = example_of(run.task), precision_of(run.model)
    facts = facts_of(run) | training_of(_results_of(run))
    facts |= {"precision": precision, "weights": FROZEN if frozen else "", "size": f"{size / 1e6:.1f} MB"}
    return CARD_TEMPLATE.format(
        name=name,
        volume=shlex.quote(f"{name}:/models/{name}"),
        config=shlex.quote(f"/models/{name}/{MODELS}"),
        batching=shlex.quote(f"/models/{name}/{BATCHING}"),
        address=urllib.parse.quote(name, safe=""),
        quoted=json.dumps(name, ensure_ascii=False),
        path=json.dumps(f"{name}/{version}", ensure_ascii=False),
        shell_path=shlex.quote(f"{name}/{version}"),
        facts=fact_rows(facts),
        measures=measures_table(run, rounded="" if precision == "float32" else precision),
        signatures=signature_table(signatures),
        ragged=RAGGED if "ragged" in signatures else "",
        answers=answers_of(run.task, signatures.get("serving_default")) + label_names_of(run.task),
        server=f"{VERSIONS[-1]}.0",
        example=json.dumps(example),
        grpc="\n".join(
            f'    request.inputs["{key}"].CopyFrom(tf.make_tensor_proto([{json.dumps(value)}]))'
            for key, value in example.items()
        ),
        python=", ".join(f"{key}=tf.constant([{json.dumps(value)}])" for key, value in example.items()),
    )


def precision_of(model: keras.Model) -> str:
    """The format that a model's encoder computes in, such as "bfloat16"; an ensemble's members have one format."""
    return encoder_of(members_of(model)[0]).compute_dtype


def example_of(task: Problem) -> dict[str, Any]:
    """An example text for each input, or a list of texts for an input with choices."""
    texts = {**EXAMPLES, **task.example_texts}
    example = {}
    for name, spec in task.signature().items():
        text = texts.get(name, "A charming and often affecting journey.")
        example[name] = text if len(spec.shape) == 1 else [text] * spec.shape[1]
    return example


def answers_of(task: Problem, signature: Any = None) -> str:
    """The description of the decoded outputs, from the docstring of `decode` or `decode_features`.

    signature: the concrete function whose outputs are listed where the task's own method has no docstring; None lists none
    """
    kind = type(task)
    decode = kind.decode_features if kind.decode is Problem.decode else kind.decode
    described = "" if decode is Problem.decode_features else inspect.cleandoc(decode.__doc__ or "")
    if described or signature is None:
        return described
    outputs = (one[1:] for one in tensors_of(signature) if one[0] == "output")
    return "\n".join(f'"{name}": {dtype} {shape}' for name, dtype, shape in outputs)


def label_names_of(task: Problem) -> str:
    """The lines about the names of probabilities; empty for outputs without names."""
    if PROBABILITIES not in answers_of(task) or not task.label_names:
        return ""
    names = ", ".join(task.label_names)
    return f'\n\n"{LABEL_NAMES}" string [B, C], the names of the columns of "{PROBABILITIES}" in each row: {names}'


def tensors_of(signature: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yields ("input" or "output", name, dtype, shape) for each tensor of a concrete function; "?" is any size."""
    _, inputs = signature.structured_input_signature
    for side, specs in (("input", inputs), ("output", signature.structured_outputs)):
        for name, spec in sorted(specs.items()):
            sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
            yield side, name, spec.dtype.name, f"[{sizes}]"


def signature_table(signatures: Mapping[str, Any]) -> str:
    """A Markdown table with a row for every tensor of every signature."""
    rows = [
        f"| `{signature}` | {side} | `{name}` | {dtype} | {shape} |"
        for signature, function in signatures.items()
        for side, name, dtype, shape in tensors_of(function)
    ]
    return "\n".join(["| signature | | name | dtype | shape |", "|---|---|---|---|---|", *rows])


def measures_table(run: Run, *, rounded: str = "") -> str:
    """The section with the exported task's measures; empty if results.json has none.

    rounded: the narrower format of the exported weights, in which nothing was measured; empty for the run's own
    """
    found = measures_of(run, _results_of(run))
    if not found or not rounded:
        return found
    return f"{found}These are the measures of the run. The export in {rounded} was not measured.\n"


def _results_of(run: Run) -> dict[str, Any]:
    """The fields of results.json that a card shows; {} for an ensemble, of which only the members were trained and measured."""
    path = run.path / RESULTS_FILE
    if isinstance(run.model, Ensemble) or not path.is_file():
        return {}
    kinds = {
        "task": ANYTHING,
        "dev_examples": integer(0, 2**63 - 1),
        "measures": object_of(MEASURE),
        "majority_baselines": object_of(MEASURE),
        DEGENERATE: or_null(TEXT),
        "hparams": OBJECT,
        ORIGIN: object_of(TEXT),
    }
    found = checked_fields(read_object(path), kinds, where=path, optional=kinds, others=True)
    settings = {name: field_types(Hparams)[name] for name in TRAINING}
    checked_fields(found.get("hparams", {}), settings, where=path, optional=settings, others=True)
    return found


# -----------------------------------------------------------------------------------------------------------
# Configuration files of tensorflow_model_server, beside the versions: models.config (--model_config_file, where the model is
# mounted at /models/NAME) and batching_parameters.txt (--batching_parameters_file)

MODELS_CONFIG = """# base_path is a place in the container of model_card.md.
# Mount this folder there, or change base_path to the folder's absolute path.
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
}}
"""

BATCHING_PARAMETERS = """# Requests that arrive together run as one batch, padded to its longest text.
max_execution_batch_size { value: 32 }
# A request of more rows runs in several batches. One of over 1,000 rows is refused, as by bert-keras serve.
max_batch_size { value: 1000 }
enable_large_batch_splitting { value: true }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
# Batches that run at the same time: start with the number of the server's cores.
num_batch_threads { value: 4 }
"""


def server_files(name: str) -> dict[str, str]:
    """The texts of the files next to the versions, by file name."""
    quoted, path = (json.dumps(text, ensure_ascii=False) for text in (name, f"/models/{name}"))
    return {MODELS: MODELS_CONFIG.format(name=quoted, path=path), BATCHING: BATCHING_PARAMETERS}
