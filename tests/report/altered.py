"""Run folders altered at random, by a seed: arrays of other types and shapes, damaged zip files, JSON that is changed
anywhere. Whatever a disk, a hand or an editor may do to a run folder."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3, 1.5, 1e308, -1e308, 10**400, float("nan"), float("inf"), "", "x", "0.5", "classes", "\ud800",
    "\x00\x1b[31m", "n" * 5000, [], {}, [None], [[]], [1, "a", None], {"a": 1}, {"a": {"b": []}}, [[1.0, 2.0], 3.0],
    "../../etc/passwd", "/dev/zero", ".", [0.5] * 3, [[0.5] * 3] * 2,
)  # fmt: skip


def alter(folder: Path, seed: int) -> list[str]:
    """Alters one to three things in a run folder, and says which."""
    rng = random.Random(seed)
    ways = (_array, _array, _archive, _json, _json, _bytes, _file)
    return [rng.choice(ways)(folder, rng) for _ in range(rng.choice((1, 1, 2, 3)))]


def _npz(folder: Path, rng: random.Random) -> Path:
    return rng.choice([*sorted((folder / "arrays").glob("*.npz")), folder / "test.npz"])


def _array(folder: Path, rng: random.Random) -> str:
    """One array of a file becomes another."""
    path = _npz(folder, rng)
    try:
        with np.load(path) as file:
            arrays = {name: np.asarray(array) for name, array in file.items()}
    except Exception:  # altered before
        return f"{path.name} cannot be altered further"
    if not arrays:
        return "nothing"
    name = rng.choice(sorted(arrays))
    how, change = rng.choice(sorted(CHANGES.items()))
    try:
        arrays[name] = change(arrays[name])
    except (TypeError, ValueError, IndexError, AttributeError):  # it was altered before
        arrays[name] = np.zeros(0)
    if how == "gone":
        del arrays[name]
    np.savez(path, allow_pickle=True, **arrays)
    return f"{path.name}: {name} {how}"


CHANGES: dict[str, Any] = {
    "gone": lambda a: a,
    "complex": lambda a: a.astype(np.complex64),
    "text": lambda a: a.astype(str),
    "bytes": lambda a: a.astype("S8"),
    "objects": lambda a: np.array([{}], dtype=object),
    "dates": lambda a: np.zeros(len(a), "datetime64[s]"),
    "structured": lambda a: np.zeros(len(a), [("a", "f4"), ("b", "i2")]),
    "bool": lambda a: a > 0,
    "int8": lambda a: np.zeros_like(a, np.int8),
    "large ints": lambda a: np.full(a.shape, 2**63, np.uint64),
    "half": lambda a: a.astype(np.float16),
    "long": lambda a: a.astype(np.longdouble),
    "swapped": lambda a: a.astype(">f8"),
    "scalar": lambda a: np.array(1.0),
    "empty": lambda a: a[:0],
    "no columns": lambda a: a.reshape(len(a), -1)[:, :0],
    "one": lambda a: a[:1],
    "shorter": lambda a: a[: len(a) // 2],
    "longer": lambda a: np.concatenate([a, a]),
    "transposed": lambda a: a.reshape(len(a), -1).T,
    "an axis more": lambda a: a[..., None],
    "three axes": lambda a: np.stack([a, a], -1)[..., None],
    "one column": lambda a: a.reshape(len(a), -1)[:, :1],
    "nan": lambda a: np.full(a.shape, np.nan),
    "inf": lambda a: np.full(a.shape, np.inf),
    "negative": lambda a: -np.abs(a.astype(float)) - 1,
    "huge": lambda a: np.full(a.shape, 1e300),
    "constant": lambda a: np.zeros(a.shape),
}


def _archive(folder: Path, rng: random.Random) -> str:
    """The zip file around the arrays: encrypted, packed in an unknown way, with members that are not arrays."""
    path = _npz(folder, rng)
    if not path.is_file():
        return "nothing"
    whole = bytearray(path.read_bytes())
    how = rng.choice(("encrypted", "packed", "member", "header"))
    if how == "member":
        import zipfile

        with zipfile.ZipFile(path, "w") as file:
            file.writestr(rng.choice(("log_prob.npy", "targets.npy", "notes.txt", "log_prob")), b"no array")
        return f"{path.name}: member"
    if how == "header":
        place = whole.find(b"'descr'")
        if place >= 0:
            whole[place + 10 : place + 14] = rng.choice((b"'<f9", b"'|O'", b"'<M8", b"'zzz"))
    for mark, flag, method in ((b"PK\x03\x04", 6, 8), (b"PK\x01\x02", 8, 10)):
        place = whole.find(mark)
        if place >= 0 and how == "encrypted":
            whole[place + flag] |= 1
        if place >= 0 and how == "packed":
            whole[place + method] = 99
    path.write_bytes(bytes(whole))
    return f"{path.name}: {how}"


def _json(folder: Path, rng: random.Random) -> str:
    """A value somewhere in run.json or in a record is replaced, removed or added to."""
    path = folder / rng.choice(("run.json", "records.jsonl", "records.jsonl"))
    if not path.is_file():
        return "nothing"
    lines = (
        [path.read_text(errors="replace")] if path.suffix == ".json" else path.read_text(errors="replace").splitlines()
    )
    if not lines:
        return "nothing"
    number = rng.randrange(len(lines))
    try:
        content = json.loads(lines[number])
    except (ValueError, RecursionError):
        return "nothing"
    places = list(_places(content, ()))
    place = rng.choice(places) if places else ()
    value = rng.choice(VALUES)
    if not place:
        content = value
    else:
        inside = content
        for key in place[:-1]:
            inside = inside[key]
        if rng.random() < 0.25:
            del inside[place[-1]]
            value = "removed"
        else:
            inside[place[-1]] = value
    lines[number] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name}: {'.'.join(map(str, place))} = {str(value)[:40]!r}"


def _places(content: Any, place: tuple[Any, ...]) -> Any:
    """The ways to all values in a JSON tree; of long lists to the first three."""
    inside = (
        content.items() if isinstance(content, dict) else enumerate(content[:3]) if isinstance(content, list) else ()
    )
    for key, value in inside:
        yield (*place, key)
        yield from _places(value, (*place, key))


def _any(folder: Path, rng: random.Random) -> Path:
    return rng.choice([folder / "run.json", folder / "records.jsonl", _npz(folder, rng)])


def _bytes(folder: Path, rng: random.Random) -> str:
    """Bytes of a file: none, fewer, others, or text of another kind."""
    path = _any(folder, rng)
    if not path.is_file():
        return "nothing"
    whole = bytearray(path.read_bytes())
    how = rng.choice(("empty", "cut", "bits", "bits", "bits", "zeros", "latin", "deep", "mark"))
    if how == "empty":
        whole = bytearray()
    elif how == "cut":
        whole = whole[: rng.randrange(len(whole) + 1)]
    elif how == "bits":
        for _ in range(rng.choice((1, 3, 30)) if whole else 0):
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
    elif how == "zeros":
        whole = bytearray(len(whole))
    elif how == "latin":
        whole = bytearray("é\n".encode("latin-1")) + whole
    elif how == "deep":
        whole = bytearray(b"[" * 100_000)
    elif how == "mark":
        whole = bytearray(b"\xef\xbb\xbf") + whole
    path.write_bytes(bytes(whole))
    return f"{path.name}: {how}"


def _file(folder: Path, rng: random.Random) -> str:
    """A file is gone, or something else stands in its place."""
    path = _any(folder, rng)
    how = rng.choice(("gone", "folder", "pipe", "itself"))
    if not path.is_file():
        return "nothing"
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "itself":
        path.symlink_to(path)
    return f"{path.name}: {how}"
