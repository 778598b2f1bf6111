"""A folder of trained members, each in a file of its own, found again by what made it.

    pool/
      pool.json                    the problem, for which alone this pool is
      computes-01234567.json       what that problem computes, in a few numbers, on the first of some examples
      map-0123456789abcdef/        one entry a recipe, data set and seed
        entry.json                 what made it
        member-0-00000.safetensors one file a member, whole or absent

Because a member does not depend on how many there are, asking for more trains only those that are missing.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..families import Family
from .behaviour import unlike
from .codec import decode, encode, fingerprint
from .files import FileError, read_json, read_tensors, remove_leftovers, write_json, write_tensors


class Pool:
    """Opens or makes a pool for one problem, given as JSON: `describe_problem`, and what it computes (`behaviour`)."""

    def __init__(self, path: Path | str, problem: dict[str, Any], computes: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.note = ""  # what a person should know of the members here
        if self.path.exists() and not self.path.is_dir():
            raise FileError(self.path, "expected a folder for the pool, got a file")
        manifest = self.path / "pool.json"
        if manifest.exists():
            if found := difference(read_json(manifest), problem):
                raise FileError(
                    self.path,
                    f"this pool was written by another problem: {found}. Give each problem a pool of its own.",
                )
        else:
            write_json(manifest, problem)
        if computes is not None:
            self._check(computes)

    def _check(self, computes: dict[str, Any]) -> None:
        """Refuses a problem that prints as the one of this pool does and computes something else."""
        file = self.path / f"computes-{computes['rows'][:8]}.json"
        if not file.exists():
            with contextlib.suppress(OSError):  # a pool that can only be read
                write_json(file, computes)
            return
        before = read_json(file)
        try:
            found = unlike(before, computes)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(file, "it is not what a pool notes of its problem: delete it") from error
        if found:
            raise FileError(
                self.path,
                f"this pool was written by another problem: its layers are the same, and it computes something else "
                f"({found}). Give each problem a pool of its own.",
            )
        if before["source"] != computes["source"]:
            self.note = f"{self.path}: the network's source has changed since, its outputs have not: members are reused"

    def entry(self, name: str, description: dict[str, Any]) -> PoolEntry:
        """The place of what `description` (recipe, data, seed ... as JSON) makes."""
        folder = self.path / f"{name.lower()}-{fingerprint(description)}"
        if not (folder / "entry.json").exists():
            write_json(folder / "entry.json", description)
        remove_leftovers(folder)
        return PoolEntry(folder)


class PoolEntry:
    """The members that one recipe made on one data set from one seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path:
        """Where a member is, or would be; its name says who it is."""
        return self.folder / f"member-{name}.safetensors"

    def has(self, name: str) -> bool:
        """Whether the member is there."""
        return self.file(name).exists()

    def write(self, name: str, family: Family, curves: dict[str, list[Any]]) -> None:
        """Stores a member."""
        tensors: dict[str, Tensor] = {}
        meta = {"family": encode(family, tensors), "curves": curves}
        write_tensors(self.file(name), tensors, meta)

    def read(self, name: str, device: torch.device | str = "cpu") -> tuple[Family, dict[str, list[Any]]]:
        """A member that was stored."""
        try:
            tensors, meta = read_tensors(self.file(name), device)
        except FileError as error:
            raise FileError(self.file(name), f"{error.reason}. Delete it to have the member trained again") from error
        try:
            return decode(meta["family"], tensors), meta["curves"]
        except Exception as error:  # whatever the class that the file names makes of what is in it
            raise FileError(self.file(name), f"{error}. Delete it to have the member trained again") from error


def difference(old: Any, new: Any, path: str = "") -> str:
    """In words, the first place where two JSON values differ; empty if they do not."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(k for k in new if k not in old)):
            where = f"{path}.{key}" if path else key
            if key not in new or key not in old:
                return f"{where} is {'only in the file' if key in old else 'not in the file'}"
            if found := difference(old[key], new[key], where):
                return found
        return ""
    if isinstance(old, str) and isinstance(new, str) and old != new and "\n" in old + new:
        for a, b in zip(old.split("\n"), new.split("\n")):
            if a != b:
                return f"{path} has the line {a.strip()!r} in the file, {b.strip()!r} here"
        return f"{path} has another number of lines"
    return "" if old == new else f"{path} is {old!r} in the file, {new!r} here"
