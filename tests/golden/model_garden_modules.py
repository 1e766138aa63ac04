"""Modules of TensorFlow Hub by Model Garden's exporter, for make_published.py and benchmarks/model_garden_hub.py."""

import pathlib
from typing import Any

from official.nlp.tools import export_tfhub_lib


def write_modules(folder: pathlib.Path, *, seq_length: int, **model: Any) -> None:
    """Writes folder/encoder, with `.mlm`, and folder/preprocess, for the tokens in folder/vocab.txt.

    seq_length: the preprocessor's default, in tokens
    model: the configuration and the checkpoint of the encoder, as `export_model` takes them
    """
    text: dict[str, Any] = {"vocab_file": str(folder / "vocab.txt"), "do_lower_case": True}
    export_tfhub_lib.export_model(str(folder / "encoder"), with_mlm=True, **text, **model)
    text |= {"tokenize_with_offsets": True, "default_seq_length": seq_length}
    export_tfhub_lib.export_preprocessing(str(folder / "preprocess"), **text)
