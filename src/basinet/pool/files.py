"""Files that are either whole and right, or refused by name and reason. Writing never leaves half a file."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .codec import digest

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
STALE = 600.0  # seconds after which nobody is writing a temporary any more, where the writer is not known
LOOK = 0.1  # seconds between looks at a lock
TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8}-\d+-)?[0-9a-f]{16}")

_held: dict[Path, int] = {}  # locks of this process, by thread
_swept: set[tuple[int, Path]] = set()


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
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(path, f"it is damaged or cut short, or not a safetensors file ({error})") from error
    _check_format(path, header.get("format"))
    text = header.get("meta", "")
    if header.get("checksum") != digest(tensors, text):
        raise FileError(path, "its contents were altered: the checksum does not fit")
    if checksum is not None and header["checksum"] != checksum:
        raise FileError(path, "it is another file than the one that was saved: the checksum does not fit")
    # copied out of the mapped file, aligned as torch has it: kernels then give the same bits as before saving
    return {k: v.to(device, copy=True) for k, v in tensors.items()}, _parsed(path, text)


def read_meta(path: Path) -> Any:
    """The meta of a file that `write_tensors` wrote, without its tensors, and so not checked."""
    return _parsed(path, check_header(path).get("meta", ""))


def check_header(path: Path) -> dict[str, str]:
    """What a safetensors file says of itself; refuses one that is none, or of a newer format."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileError(path, "there is no such file")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            header: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise FileError(path, f"it is damaged or cut short, or not a safetensors file ({error})") from error
    _check_format(path, header.get("format"))
    return header


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file with its format and checksum."""
    text = json.dumps(content, sort_keys=True)
    whole = {"format": FORMAT, "checksum": sha256(text.encode()).hexdigest(), "content": content}
    atomically(path, lambda temporary: Path(temporary).write_text(json.dumps(whole, indent=1) + "\n"))


def read_json(path: Path) -> Any:
    """The content of a file that `write_json` wrote, checked."""
    if not path.exists():
        raise FileError(path, "there is no such file")
    if not path.is_file():  # a pipe would be waited for
        raise FileError(path, "expected a file, got something else")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(path, f"it is damaged or cut short, or not JSON ({error})") from error
    whole = _parsed(path, text)
    if not isinstance(whole, dict) or "content" not in whole:
        raise FileError(path, "it was not written by basinet")
    _check_format(path, whole.get("format"))
    if whole.get("checksum") != sha256(json.dumps(whole["content"], sort_keys=True).encode()).hexdigest():
        raise FileError(path, "its contents were altered: the checksum does not fit")
    return whole["content"]


def atomically(path: Path, write: Callable[[str], Any]) -> None:
    """Lets `write` fill a file in a temporary folder beside `path`, then puts it in its place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_once(path.parent)
    own = path.parent / f".{path.name}.{_writer()}-{secrets.token_hex(8)}"  # safetensors has temporaries of its own
    temporary = str(own / path.name)
    try:
        own.mkdir()
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less what the umask takes away
        mode = os.fstat(handle).st_mode & 0o777
        os.close(handle)
        write(temporary)
        os.chmod(temporary, mode)  # safetensors puts a file of its own there
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise OSError(f"could not write {path}: {error}. What was there before is untouched.") from error
        raise
    finally:
        shutil.rmtree(own, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Removes what killed writes left in a folder: of processes that are gone, or, where that cannot be told, what is
    older than STALE. What another process is writing stays."""
    try:
        left = [path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)]
    except OSError:
        return
    for path in left:
        with contextlib.suppress(OSError):  # another process may have removed it
            if _gone(path):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def alone(lock: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Runs its body while no other process (or thread) is in the body of one for the same file; `waiting` is called
    once, before it waits. The lock of a process that was killed is free. Where files cannot be locked, or not be
    written, nobody waits."""
    if _held.get(lock) == threading.get_ident():  # an observer that fits, say
        yield
        return
    handle = _acquire(lock, waiting)
    if handle is not None:
        _held[lock] = threading.get_ident()
    try:
        yield
    finally:
        if handle is not None:
            del _held[lock]
            with contextlib.suppress(OSError):
                os.unlink(lock)
            os.close(handle)


def _acquire(lock: Path, waiting: Callable[[], None]) -> int | None:
    """The locked file, or None where that cannot be."""
    announced = False
    while fcntl is not None:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(lock) and os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        except BlockingIOError:
            if not announced:
                announced = True
                waiting()
            time.sleep(LOOK)
        except OSError:
            os.close(handle)
            return None
        os.close(handle)  # it is held by another, or was removed by one that has ended
    return None


def _writer() -> str:
    """Who writes, as temporaries name it: the machine and the process."""
    try:
        space = os.readlink("/proc/self/ns/pid")  # containers number their processes on their own
    except OSError:
        space = ""
    return f"{sha256(f'{platform.node()}|{space}'.encode()).hexdigest()[:8]}-{os.getpid()}"


def _gone(path: Path) -> bool:
    """Whether nobody writes to a temporary any more."""
    machine, _, process = path.name.rsplit(".", 1)[1].rpartition("-")[0].partition("-")
    here, _, own = _writer().partition("-")
    if machine == here and process == own:
        return False
    if machine == here and os.name == "posix":
        try:
            os.kill(int(process), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            pass
    return time.time() - path.stat().st_mtime > STALE


def _sweep_once(folder: Path) -> None:
    """Removes leftovers before the first write of this process into a folder."""
    key = (os.getpid(), folder)
    if key not in _swept:
        _swept.add(key)
        remove_leftovers(folder)


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"it is damaged or cut short, or not JSON ({error})") from error


def _check_format(path: Path, version: Any) -> None:
    try:
        number = int(version)
    except (TypeError, ValueError, OverflowError) as error:
        raise FileError(path, "it was not written by basinet: it has no format number") from error
    if number < 1:
        raise FileError(path, f"its contents were altered: there is no format {number}")
    if number > FORMAT:
        raise FileError(path, f"it has format {number}, newer than this basinet reads ({FORMAT}): upgrade basinet")
