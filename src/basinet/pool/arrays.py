"""Arrays in npz files: written whole or not at all, and read whole or refused by name and reason. Never any code."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .files import FileError, atomically


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An npz file, whole or not at all."""

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    atomically(path, write)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; a FileError where it is missing or damaged, or holds anything but plain arrays."""
    if not path.is_file():  # nor a pipe, which would wait forever
        raise FileError(path, "there is no such file")
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and numpy's header each have errors of their own for damage
        raise FileError(path, f"it is damaged or cut short, or not a file of arrays ({error})") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):  # members that are not arrays come as bytes
        raise FileError(path, "it holds something else than arrays")
    return arrays
