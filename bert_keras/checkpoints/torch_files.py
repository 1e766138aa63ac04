"""PyTorch files, read without running their code."""

import contextlib
import pathlib
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_keras.checkpoints.checkpoint import numpy_dtype
from bert_keras.errors import BertKerasError, first_line

TORCH = "pytorch_model.bin"
# Of one file: the shape of each tensor, and a function that reads one.
Tensors = tuple[dict[str, tuple[int, ...]], Callable[[str], np.ndarray]]


def import_torch(name: str) -> Any:
    """The torch package. Raises BertKerasError, which names a file, where it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise BertKerasError(
            f"{name} is a PyTorch file and torch is not installed; install it, or bring model.safetensors."
        ) from error
    return torch


@contextlib.contextmanager
def open_torch(file: pathlib.Path) -> Iterator[Tensors]:
    """Opens a PyTorch file. Raises BertKerasError for anything but plain tensors."""
    _refuse_packed(file)
    torch = import_torch(file.name)
    try:
        # Reading a pickle runs code; weights_only refuses any pickle that does more than rebuild tensors.
        tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, zip, runtime and attribute errors
        raise BertKerasError(f"{file} is not a PyTorch file of plain tensors: {first_line(error)}") from error
    if not isinstance(tensors, dict) or not all(torch.is_tensor(tensor) for tensor in tensors.values()):
        held = ", ".join(map(str, tensors)) if isinstance(tensors, dict) else f"a {type(tensors).__name__}"
        raise BertKerasError(
            f"{file} is not a PyTorch file of plain tensors: it holds {held:.200}; save the model's state_dict alone."
        )
    # Strides of 0 make a tensor of any size from one number. The factor 2 allows for tied embeddings.
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > 2 * (there := file.stat().st_size):
        raise BertKerasError(
            f"{file} has {there:,} bytes and its tensors need {size:,}; save the model again."
        )

    def get(name: str) -> np.ndarray:
        try:
            return _torch_to_numpy(tensors[name])
        except (RuntimeError, TypeError) as error:  # a sparse tensor, or a tensor on the meta device
            raise BertKerasError(f"{name} of {file} is not a plain tensor: {first_line(error)}") from error

    yield {name: tuple(tensor.shape) for name, tensor in tensors.items()}, get


def _refuse_packed(file: pathlib.Path) -> None:
    """Raises BertKerasError for a zip that unpacks to more than its own bytes: torch.save compresses nothing."""
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BertKerasError(f"{file} is not a PyTorch file of plain tensors: {error}") from error
    if size > (there := file.stat().st_size):
        raise BertKerasError(
            f"{file} has {there:,} bytes and unpacks to {size:,}; wanted a file of torch.save, which compresses nothing."
        )


def _torch_to_numpy(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.detach().numpy()
    return tensor.detach().contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
