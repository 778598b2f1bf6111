"""What travels between processes, as bytes."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..pool.mapped import Mapped, Place, at, lies_in


def dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def loads(content: bytes) -> Any:
    """What came through a pipe from a process of ours: nothing that lies on a disk is read this way."""
    return pickle.loads(content)


class _Pickler(pickle.Pickler):
    """Tensors as plain bytes: no shared memory that a killed process would leave behind, and no device."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided:
            return NotImplemented
        if (place := lies_in(value)) is not None:
            return _mapped, tuple(place)
        return plain(value)


def plain(value: Tensor) -> tuple[Any, ...]:
    """What `pickle` makes a tensor of again: its bytes."""
    here = value.detach().cpu().contiguous()
    return _tensor, (here.dtype, tuple(here.shape), here.reshape(-1).view(torch.uint8).numpy().tobytes())


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: bytes) -> Tensor:
    # copied, so that it is aligned as torch has it: kernels then give the same bits
    tensor = torch.empty(shape, dtype=dtype)
    if content:
        tensor.copy_(torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape))
    return tensor


def _mapped(file: str, begin: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return at(Mapped.open(Path(file)), Place(file, begin, shape, dtype))
