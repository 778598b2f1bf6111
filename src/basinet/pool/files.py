"""Files that are either whole and right, or refused by name and reason. Writing never leaves half a file."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .codec import digest

FORMAT = 1
STALE = 600.0  # seconds after which nobody is writing a temporary file any more


class FileError(ValueError):
    """A file that cannot be used: its message names the file and the reason."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def write_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Any) -> str:
    """Writes a safetensors file with `meta` (JSON) and a checksum of everything; returns the checksum."""
    from safetensors.torch import save_file

    own = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}  # no two names share memory
    text = json.dumps(meta)  # in the order it has: that of parameters counts where they are read as one vector
    check = digest(own, text)
    header = {"format": str(FORMAT), "meta": text, "checksum": check}
    atomically(path, lambda temporary: save_file(own, temporary, metadata=header))
    return check


def read_tensors(
    path: Path, device: torch.device | str = "cpu", checksum: str | None = None
) -> tuple[dict[str, Tensor], Any]:
    """Tensors and meta of a file that `write_tensors` wrote, checked; `checksum` is what it must have, where known."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(path, "there is no such file")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(path, f"it is damaged or cut short, or not a safetensors file ({error})") from error
    _check_format(path, header.get("format"))
    text = header.get("meta", "")
    if header.get("checksum") != digest(tensors, text):
        raise FileError(path, "its contents were altered: the checksum does not fit")
    if checksum is not None and header["checksum"] != checksum:
        raise FileError(path, "it is another file than the one that was saved: the checksum does not fit")
    # copied out of the mapped file, aligned as torch has it: kernels then give the same bits as before saving
    return {k: v.to(device, copy=True) for k, v in tensors.items()}, json.loads(text)


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file with its format and checksum."""
    text = json.dumps(content, sort_keys=True)
    whole = {"format": FORMAT, "checksum": sha256(text.encode()).hexdigest(), "content": content}
    atomically(path, lambda temporary: Path(temporary).write_text(json.dumps(whole, indent=1) + "\n"))


def read_json(path: Path) -> Any:
    """The content of a file that `write_json` wrote, checked."""
    try:
        whole = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FileError(path, "there is no such file") from error
    except (ValueError, OSError) as error:
        raise FileError(path, f"it is damaged or cut short, or not JSON ({error})") from error
    if not isinstance(whole, dict) or "content" not in whole:
        raise FileError(path, "it was not written by basinet")
    _check_format(path, whole.get("format"))
    if whole.get("checksum") != sha256(json.dumps(whole["content"], sort_keys=True).encode()).hexdigest():
        raise FileError(path, "its contents were altered: the checksum does not fit")
    return whole["content"]


def atomically(path: Path, write: Callable[[str], Any]) -> None:
    """Lets `write` fill a temporary file beside `path`, then puts it in its place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = str(path.parent / f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less what the umask takes away
    mode = os.fstat(handle).st_mode & 0o777
    os.close(handle)
    try:
        write(temporary)
        os.chmod(temporary, mode)  # safetensors puts a file of its own there
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise OSError(f"could not write {path}: {error}. What was there before is untouched.") from error
        raise


def remove_stale(folder: Path, pattern: str) -> None:
    """Removes what killed writes of files like `pattern` left; younger ones another process may still be writing."""
    for file in folder.glob(f".{pattern}.*"):
        with contextlib.suppress(OSError):  # another process may have removed it
            if time.time() - file.stat().st_mtime > STALE:
                file.unlink()


def _check_format(path: Path, found: Any) -> None:
    try:
        number = int(found)
    except (TypeError, ValueError) as error:
        raise FileError(path, "it was not written by basinet: it has no format number") from error
    if number < 1:
        raise FileError(path, f"its contents were altered: there is no format {number}")
    if number > FORMAT:
        raise FileError(path, f"it has format {number}, newer than this basinet reads ({FORMAT}): upgrade basinet")
