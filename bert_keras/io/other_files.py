"""Files that people take for a model of this package: what each is, and what to do with it.

In: a folder, or a file. Out: words for an error, or "" for a file that is none of these.
"""

import pathlib

# A pattern of file names -> what such a file is, and what to do. The first that matches a folder's files counts.
_BY_NAME = {
    "adapter_config.json": (
        "a PEFT adapter, which holds only changes of another model",
        "merge it with peft (PeftModel.from_pretrained(base, FOLDER).merge_and_unload().save_pretrained(NEW)) and give NEW",
    ),
    "adapter_model.*": (
        "a PEFT adapter without its adapter_config.json",
        "bring the whole adapter, and merge it with peft",
    ),
    "flax_model*.msgpack*": (
        "weights of transformers' Flax classes",
        "convert them with transformers 4 (from_pretrained(FOLDER, from_flax=True).save_pretrained(NEW)) and give NEW",
    ),
    "saved_model.pb": (
        "a SavedModel, a graph for serving",
        "bert_keras.load(FOLDER) asks it; give the checkpoint or the run that it was exported from to train or convert",
    ),
    "*.keras": (
        "a saved Keras model",
        "bert_keras.load(FILE) or `--run FILE` reads it; as a checkpoint, give the folder that its save() writes for a path "
        "without a suffix",
    ),
    "*.onnx": ("an ONNX graph", "give the checkpoint that it was exported from"),
    "openvino_model.xml": ("an OpenVINO graph", "give the checkpoint that it was exported from"),
    "*.gguf": ("a GGUF file of llama.cpp", "give the checkpoint that it was made from"),
    "rust_model.ot": ("weights of rust-bert", "give the checkpoint that it was made from"),
    "*.mlmodel": ("a Core ML graph", "give the checkpoint that it was exported from"),
    "*.tflite": ("a TensorFlow Lite graph", "give the checkpoint that it was exported from"),
    "*.weights.h5": (
        "weights that Keras saved without a model",
        "make the model and call its load_weights(FILE)",
    ),
    "modules.json": (
        "of a sentence-transformers folder, whose encoder is in a subfolder",
        "bert_keras.embedder(FOLDER) follows it; as a checkpoint, give the subfolder of its first module",
    ),
    "model_index.json": ("a diffusion pipeline", "give the folder of its text encoder, if that is a BERT"),
    "checkpoints/ckpt-*.index": (
        "the last save of an unfinished training",
        "rerun the training's command, which goes on from there",
    ),
    "training_args.bin": ("a trainer's folder without weights", "bring its model.safetensors too"),
    "*.data-00000-of-*": (
        "a TensorFlow checkpoint without its .index file",
        "bring all files of the checkpoint",
    ),
}
# The first bytes of a file -> what it is, and what to do.
_BY_CONTENT = {
    b"version https://git-lfs": ("a Git LFS pointer, not the file", "run `git lfs pull` in its folder"),
    b"<!DOCTYPE": ("a page of HTML, not the file", "download the file again"),
    b"<!doctype": ("a page of HTML, not the file", "download the file again"),
    b"<html": ("a page of HTML, not the file", "download the file again"),
    b"GGUF": ("a GGUF file of llama.cpp", "give the checkpoint that it was made from"),
    b"\x89HDF": (
        "an HDF5 file",
        "name it tf_model.h5 if a TensorFlow class of transformers wrote it, or convert it with the library that wrote it",
    ),
}


def describe_folder(folder: pathlib.Path) -> str:
    """The first known file of a folder, what it is, and what to do: an end of an error. "" where none is known."""
    for pattern, (kind, advice) in _BY_NAME.items():
        if found := [*folder.glob(pattern)]:
            last = max(found, key=lambda file: (len(file.name), file.name))  # the highest step
            return f"{last.relative_to(folder)} is {kind}: {advice}"
    return ""


def describe_name(file: pathlib.Path) -> str:
    """What a file is by its name, and what to do. "" where it is not known."""
    kinds = (row for pattern, row in _BY_NAME.items() if file.match(pattern))
    return next((f"{file.name} is {kind}: {advice}" for kind, advice in kinds), "")


def describe_content(file: pathlib.Path) -> str:
    """What a file is by its first bytes, and what to do: an end of an error. "" where it is not known."""
    with file.open("rb") as opened:
        first = opened.read(64)
    if not first:
        return "is empty: bring the file again"
    start = first.lstrip()
    kinds = (row for content, row in _BY_CONTENT.items() if start.startswith(content))
    return next((f"is {kind}: {advice}" for kind, advice in kinds), "")
