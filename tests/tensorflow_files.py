"""Checkpoints of this package in the files of transformers' TensorFlow classes."""

import pathlib
import re

import numpy as np
import safetensors.numpy

from bert_keras.checkpoints.tensorflow_classes import TF_H5


def raw_names(folder):
    """Our checkpoint's tensors as a file of TensorFlow's classes holds them: name -> array."""
    found = {}
    for name, array in safetensors.numpy.load_file(folder / "model.safetensors").items():
        path = name.split(".")
        if path[-1] == "weight" and "embeddings" not in path[-2]:
            kernel = array.ndim == 2
            path[-1], array = "kernel" if kernel else "gamma", array.T if kernel else array
        elif path[-2] == "LayerNorm":
            path[-1] = "beta"
        stem = re.sub(r"/layer/(\d+)/", r"/layer_._\1/", "/".join(path))
        found[f"tf_bert_model/{stem}:0"] = np.ascontiguousarray(array)
    return found


def write_tf_h5(folder: pathlib.Path) -> None:
    """Moves the weights of a BERT from its safetensors file to a tf_model.h5."""
    import h5py

    tensors = raw_names(folder)
    (folder / "model.safetensors").unlink()
    with h5py.File(folder / TF_H5, "w") as file:
        for name, array in tensors.items():
            file[f"bert/{name}"] = array
