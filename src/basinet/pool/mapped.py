"""Arrays that stay in their file: written where they lie, read as far as they are looked at.

A file is a plain safetensors file whose size is settled when it is made, so that rows are filled in one by one while a
run goes on. Tensors are views of the mapped file: what they take of memory the system can take back at any time. Which
tensor lies where is known (`lies_in`), so that members are kept by reference instead of being written again.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.tree import tree_map
from .codec import digest
from .files import FORMAT, FileError, atomically, check_header

T = TypeVar("T")
KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGNED = 64  # bytes: where the data begin


class Place(NamedTuple):
    """Where a tensor lies: `begin` bytes after the start of a file's data."""

    file: str
    begin: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Mapped:
    """A file of arrays by name, mapped into memory; `fill` makes one whose rows can be written."""

    def __init__(self, path: Path, arrays: dict[str, Tensor], meta: dict[str, str], memory: np.memmap) -> None:
        self.path, self.arrays, self.meta, self._memory = path, arrays, meta, memory

    @staticmethod
    def fill(path: Path, like: Mapping[str, tuple[Sequence[int], torch.dtype]], meta: dict[str, str]) -> Mapped:
        """A new file of zeros in these shapes, whose space is taken at once."""
        header: dict[str, Any] = {"__metadata__": meta | {"format": str(FORMAT)}}
        total = 0
        for name, (shape, dtype) in sorted(
            like.items(), key=lambda item: -item[1][1].itemsize
        ):  # so that all are aligned
            size = math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [total, total + size]}
            total += size
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % ALIGNED)

        def write(temporary: str) -> None:
            with open(temporary, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                if hasattr(os, "posix_fallocate") and total:
                    os.posix_fallocate(file.fileno(), 8 + len(text), total)  # a full disk fails now
                file.truncate(8 + len(text) + total)

        atomically(path, write)
        return Mapped.open(path, writing=True)

    @staticmethod
    def open(path: Path, writing: bool = False) -> Mapped:
        """A file that is there. What it holds is not checked: whoever refers to it has the checksum."""
        if not path.is_file():
            raise FileError(path, "there is no such file")
        try:
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > path.stat().st_size:
                    raise ValueError("its header is longer than the file")
                header = json.loads(file.read(length))
            meta = header.pop("__metadata__", {})
            total = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            if path.stat().st_size != 8 + length + total:
                raise ValueError(f"expected {8 + length + total:,} bytes, got {path.stat().st_size:,}")
            memory = np.memmap(path, np.uint8, "r+" if writing else "c", offset=8 + length, shape=(max(total, 1),))
            whole, names = torch.from_numpy(memory), {kind: dtype for dtype, kind in KINDS.items()}
            arrays = {
                name: whole[entry["data_offsets"][0] : entry["data_offsets"][1]]
                .view(names[entry["dtype"]])
                .reshape(entry["shape"])
                for name, entry in header.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
            raise FileError(path, f"it is damaged or cut short, or not a safetensors file ({error})") from error
        _remember(whole, memory, path)
        return Mapped(path, arrays, meta, memory)

    def flush(self) -> None:
        """Has what was written reach the disk."""
        self._memory.flush()


def lies_in(x: Tensor) -> Place | None:
    """Where a tensor lies, if that is one piece of a mapped file."""
    if x.device.type != "cpu" or x.layout is not torch.strided or not x.is_contiguous() or not x.numel():
        return None
    file = _FILES.get(x.untyped_storage().data_ptr())
    if file is None:
        return None
    return Place(file, int(x.storage_offset()) * x.element_size(), tuple(x.shape), x.dtype)


def at(mapped: Mapped, place: Place) -> Tensor:
    """The tensor that lies somewhere in a file."""
    first = next(iter(mapped.arrays.values()))
    whole = torch.empty(0, dtype=torch.uint8).set_(first.untyped_storage())
    size = math.prod(place.shape) * place.dtype.itemsize
    if place.begin < 0 or place.begin + size > len(whole):
        raise FileError(mapped.path, "it is shorter than what is said to lie in it")
    return whole[place.begin : place.begin + size].view(place.dtype).reshape(place.shape)


def side_by_side(trees: Sequence[T]) -> T:
    """`stack`, as a view where tensors lie in a mapped file at equal distances."""

    def joined(*xs: Tensor) -> Tensor:
        places = [lies_in(x) for x in xs]
        first, kept = places[0], [p for p in places if p is not None]
        if first is None or len(kept) < len(xs) or any(p._replace(begin=first.begin) != first for p in kept):
            return torch.stack(xs)
        gaps = {b.begin - a.begin for a, b in pairwise(kept)} or {xs[0].numel() * xs[0].element_size()}
        [gap, *others] = gaps
        if others or gap <= 0 or len({x.untyped_storage().data_ptr() for x in xs}) > 1:
            return torch.stack(xs)
        step = gap // xs[0].element_size()
        return xs[0].as_strided((len(xs), *xs[0].shape), (step, *xs[0].stride()), xs[0].storage_offset())

    return tree_map(joined, trees[0], *trees[1:])


def write_mapped(path: Path, tensors: Mapping[str, Tensor], meta: Any) -> str:
    """The file that `write_tensors` writes, array by array, so that no more than one is in memory."""
    text = json.dumps(meta)
    check = digest(tensors, text)

    def write(temporary: str) -> None:
        like = {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}
        file = Mapped.fill(Path(temporary), like, {"meta": text, "checksum": check})
        for name, x in tensors.items():
            file.arrays[name].copy_(x.detach())
        file.flush()

    atomically(path, write)
    return check


def read_mapped(path: Path, checksum: str) -> tuple[dict[str, Tensor], Any]:
    """What `read_tensors` reads, left in the file."""
    check_header(path)
    file = Mapped.open(path)
    text = file.meta.get("meta", "")
    if file.meta.get("checksum") != checksum or digest(file.arrays, text) != checksum:
        raise FileError(path, "its contents were altered: the checksum does not fit")
    return file.arrays, json.loads(text)


_FILES: dict[int, str] = {}  # of mapped memory, by where it begins


def _remember(whole: Tensor, memory: np.memmap, path: Path) -> None:
    begin = whole.untyped_storage().data_ptr()
    _FILES[begin] = str(path.resolve())
    weakref.finalize(memory, _FILES.pop, begin, None)
