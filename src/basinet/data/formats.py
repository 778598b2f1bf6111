"""Reads the files in which image sets are handed around: idx, the batches of CIFAR, npz. Nothing in them is executed.

All give images as uint8 (N, channels, height, width) and labels as int64 (N,).
"""

from __future__ import annotations

import gzip
import math
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

_MOST = 2**32  # bytes of one file


class Labelled(NamedTuple):
    """Images and their classes."""

    images: np.ndarray  # (N, C, H, W) uint8
    labels: np.ndarray  # (N,) int64


def read_idx(images: Path, labels: Path) -> Labelled:
    """Grey images and labels in two idx files, plain or compressed with gzip."""
    x, y = _idx(images, 3), _idx(labels, 1)
    return labelled(images, x[:, None], y)


def read_cifar_binary(path: Path, label_bytes: int = 1) -> Labelled:
    """A batch of the binary version: records of labels (the last is the class) and 3 x 32 x 32 bytes."""
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    record = label_bytes + 3072
    if len(raw) == 0 or len(raw) % record:
        raise ValueError(f"{path}: expected records of {record:,} bytes, got {len(raw):,} bytes; is it cut short?")
    rows = raw.reshape(-1, record)
    return labelled(path, rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1])


def read_cifar_python(path: Path, key: str = "labels") -> Labelled:
    """A batch of the Python version: a pickled dict with an array `data` (N, 3072) and a list of labels.

    Unpickling can run any code, so this does not: the file may name nothing but numpy's array, its dtype and how it
    is put together, and for these it gets stand-ins that only remember what they were given. The array is then made
    from the bytes.
    """
    try:
        with open(path, "rb") as file:
            content = _unpickle(file)
        fields = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
        pixels, labels = fields["data"].array(), np.array(fields[key])
        if pixels.ndim != 2 or pixels.shape[1] != 3072 or labels.dtype.kind not in "iu":
            raise ValueError(f"expected data (N, 3072) and whole numbers, got {pixels.shape} and {labels.dtype}")
    except Exception as error:  # a pickle can be broken in as many ways as there are operations in it
        why = f"{path}: cannot be read as a batch of CIFAR's Python version: {reason(error)}"
        raise ValueError(why) from error
    return labelled(path, pixels.reshape(-1, 3, 32, 32), labels)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name."""
    try:
        return read_arrays(path, names)
    except ValueError as error:
        expected = " and ".join((", ".join(names[:-1]), names[-1]))
        raise ValueError(f"{path}: expected an npz file with {expected} ({error})") from error


def read_arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an npz file: those named, or all of them. Raises ValueError, whatever is wrong with the file."""
    try:
        with open(path, "rb") as raw:  # numpy leaves the file open where it cannot read it
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name; save it with np.savez")
            with file:
                arrays = {name: file[name] for name in (file.files if names is None else names)}
    except Exception as error:  # numpy, zipfile, zlib and struct each have their own for a damaged file
        raise ValueError(reason(error)) from error
    if wrong := [name for name, x in arrays.items() if not isinstance(x, np.ndarray)]:
        raise ValueError(f"it holds {wrong[0]!r}, which is not an array")
    return arrays


def read_differenced(path: Path) -> Labelled:
    """Colour images as planes G, R - G, B - G (3, N, H, W), each differenced along height and width modulo 256."""
    arrays = read_npz(path, ("d", "y"))
    d = arrays["d"]
    if d.dtype != np.uint8 or d.ndim != 4 or d.shape[0] != 3:
        raise ValueError(f"{path}: expected an array d of uint8 (3, N, height, width), got {d.dtype} {d.shape}")
    planes = np.cumsum(np.cumsum(d, -1, dtype=np.uint8), -2, dtype=np.uint8)
    green = planes[0]
    return labelled(path, np.stack([planes[1] + green, green, planes[2] + green], 1), arrays["y"])  # wraps as meant


def labelled(path: Path, images: np.ndarray, labels: np.ndarray) -> Labelled:
    """Images and labels that belong together; grey images (N, H, W) and channels at the end are put in order."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"{path}: expected images of uint8 (N, channels, H, W), got {images.dtype} {images.shape}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(images) or len(labels) == 0:
        raise ValueError(
            f"{path}: expected a whole number as label for each of {len(images):,} images, got {labels.dtype} "
            f"{labels.shape}"
        )
    return Labelled(images, labels.astype(np.int64))


def _idx(path: Path, axes: int) -> np.ndarray:
    """An idx file of bytes: 0, 0, 8, the number of axes, their lengths in four bytes each, then the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            head = file.read(4 + 4 * axes)
            if len(head) < 4 + 4 * axes or head[:4] != bytes((0, 0, 8, axes)):
                raise ValueError(f"expected the head of {axes} axes of bytes, got {head[:4].hex()!r}")
            shape = struct.unpack(f">{axes}I", head[4:])
            size = math.prod(shape)
            raw = file.read(min(size, _MOST) + 1)
    except (OSError, EOFError, ValueError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise ValueError(f"{path}: cannot be read as idx: {error}") from error
    if len(raw) != size:
        more = "more" if len(raw) > size else f"{len(raw):,}"
        raise ValueError(f"{path}: expected {size:,} bytes for shape {shape}, got {more}; is it cut short?")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _unpickle(file: IO[bytes]) -> dict[Any, Any]:
    """A pickled dict in which arrays are stand-ins with a method `array`."""

    class Dtype:
        def __init__(self, code: Any = "", *_: Any) -> None:
            self.code = code.decode() if isinstance(code, bytes) else code

        def __setstate__(self, state: Any) -> None:
            pass

    class Array:
        state: Any = None

        def __setstate__(self, state: Any) -> None:
            self.state = state

        def array(self) -> np.ndarray:
            _, shape, dtype, by_column, raw = self.state
            if not isinstance(dtype, Dtype) or dtype.code not in ("u1", "|u1") or not isinstance(raw, bytes):
                raise ValueError("expected an array of bytes")
            return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_column else "C")

    def reconstruct(*_: Any) -> Array:
        return Array()

    def encode(text: str, *_: Any) -> bytes:  # how Python 3 writes bytes for Python 2
        return text.encode("latin-1")

    allowed = {
        **{(f"numpy.{core}.multiarray", "_reconstruct"): reconstruct for core in ("core", "_core")},
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Dtype,
        ("_codecs", "encode"): encode,
    }

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which a batch of images has no use for")
            return allowed[module, name]

    content = Reader(file, encoding="bytes").load()
    if not isinstance(content, dict):
        raise ValueError(f"expected a dict, got {type(content).__name__}")
    return content


def reason(error: Exception) -> str:
    """What an error of another library says, in one line; its kind where it says nothing."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
