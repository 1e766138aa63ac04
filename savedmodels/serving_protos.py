"""Messages of TensorFlow Serving: models.config, and the requests that warm a model up.

In: the bytes or the text of a file beside an export. Out: protocol buffers. Their classes are part of tensorflow-serving-api,
which neither `export` nor `serve --no-grpc` needs, so the fields that we write and follow are declared here; a text with other
fields is refused.
Source: tensorflow_serving/config/{model_server_config,file_system_storage_path_source}.proto and
tensorflow_serving/apis/{prediction_log,predict,model}.proto.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MODELS = "models.config"  # beside the versions; a ModelServerConfig as text
WARMUP = "tf_serving_warmup_requests"  # in assets.extra; a TFRecord file of PredictionLogs

_PACKAGE = "bert_keras.serving"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _FIELD.TYPE_BYTES,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
    "uint32": _FIELD.TYPE_UINT32,
}
# Message -> field -> "[repeated] type number" or "map type number", with keys that are strings. A message that we do not look
# into is bytes: both have the same encoding.
_MESSAGES = {
    "Latest": {"num_versions": "uint32 1"},
    "All": {},
    "Specific": {"versions": "repeated int64 1"},
    "VersionPolicy": {"latest": "Latest 100", "all": "All 101", "specific": "Specific 102"},
    "ModelConfig": {
        "name": "string 1",
        "base_path": "string 2",
        "model_platform": "string 4",
        "model_version_policy": "VersionPolicy 7",
        "version_labels": "map int64 8",
    },
    "ModelConfigList": {"config": "repeated ModelConfig 1"},
    "ModelServerConfig": {"model_config_list": "ModelConfigList 1"},
    "ModelSpec": {"name": "string 1", "signature_name": "string 3"},
    "PredictRequest": {"model_spec": "ModelSpec 1", "inputs": "map bytes 2"},  # of TensorProtos
    "PredictLog": {"request": "PredictRequest 1"},
    "PredictionLog": {
        "classify_log": "bytes 2",
        "regress_log": "bytes 3",
        "multi_inference_log": "bytes 4",
        "session_run_log": "bytes 5",
        "predict_log": "PredictLog 6",
        "predict_streamed_log": "bytes 7",
    },
}


def _add_field(message: Any, name: str, declared: str) -> None:
    *form, kind, number = declared.split()
    field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
    if form:
        field.label = _FIELD.LABEL_REPEATED
    if form == ["map"]:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", "string 1")
        _add_field(entry, "value", f"{kind} 2")
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
    elif kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_keras/serving.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, declared in fields.items():
            _add_field(message, field, declared)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _classes()
ModelServerConfig: Any = _CLASSES["ModelServerConfig"]
PredictionLog: Any = _CLASSES["PredictionLog"]
