"""A folder of trained members, each in a file of its own, found again by what made it.

    pool/
      pool.json                    the problem that this pool is for
      computes-01234567.json       what that problem computes, in a few numbers, on the first of some examples
      map-0123456789abcdef/        one entry per recipe, data set and seed
        entry.json                 what made it
        member-0-00000.safetensors one file per member, whole or absent
        bank-...safetensors        draws of several members, which their files refer to: they stay there, mapped

Because a member does not depend on how many there are, asking for more trains only those that are missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..families import Family
from .behaviour import unlike
from .codec import decode, digest, encode, fingerprint
from .files import FileError, read_json, read_meta, read_tensors, remove_leftovers, write_json, write_tensors
from .mapped import Mapped, Place, at, lies_in


class Pool:
    """Opens or makes a pool for one problem, given as JSON: `describe_problem`, and what it computes (`behaviour`)."""

    def __init__(self, path: Path | str, problem: dict[str, Any], computes: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.note = ""  # what a person should know of the members here
        if self.path.exists() and not self.path.is_dir():
            raise FileError(self.path, "expected a folder for the pool, got a file")
        manifest = self.path / "pool.json"
        if manifest.exists():
            if differs := difference(read_json(manifest), problem):
                raise FileError(
                    self.path,
                    f"this pool was written by another problem: {differs}. Give each problem a pool of its own.",
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
            differs = unlike(before, computes)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(file, "it does not hold what a pool records about its problem: delete it") from error
        if differs:
            raise FileError(
                self.path,
                f"this pool was written by another problem: its layers are the same, and it computes something else "
                f"({differs}). Give each problem a pool of its own.",
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

    def alike(self, name: str) -> Iterator[tuple[PoolEntry, dict[str, Any]]]:
        """The entries of one kind of recipe, and what made each."""
        for file in sorted(self.path.glob(f"{name.lower()}-*/entry.json")):
            with contextlib.suppress(FileError):  # a damaged one is none
                yield PoolEntry(file.parent), read_json(file)


class PoolEntry:
    """The members that one recipe made on one data set from one seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._banks: dict[str, Mapped] = {}  # files of draws that were opened, so that members share them

    def __reduce__(self) -> tuple[Any, ...]:
        """By its place: it travels to other machines."""
        return PoolEntry, (self.folder.absolute(),)

    def file(self, name: str) -> Path:
        """Where a member is, or would be; its name says who it is."""
        return self.folder / f"member-{name}.safetensors"

    def has(self, name: str) -> bool:
        """Whether the member is there."""
        return self.file(name).exists()

    def write(self, name: str, family: Family, curves: dict[str, list[Any]]) -> None:
        """Stores a member; what lies in a file of this entry by reference."""
        tensors: dict[str, Tensor] = {}
        meta = {"family": encode(family, tensors), "curves": curves}
        places = {key: place for key, x in tensors.items() if (place := self._own(x)) is not None}
        if places:
            meta["bank"] = {key: [*_as_json(place), digest({"": tensors.pop(key)})] for key, place in places.items()}
        write_tensors(self.file(name), tensors, meta)

    def read(self, name: str, device: torch.device | str = "cpu") -> tuple[Family, dict[str, list[Any]]]:
        """A member that was stored."""
        try:
            tensors, meta = read_tensors(self.file(name), device)
        except FileError as error:
            raise FileError(self.file(name), f"{error.reason}. Delete it to have the member trained again") from error
        try:
            if "bank" in meta:
                tensors |= {key: self._mapped(*where).to(device) for key, where in meta["bank"].items()}
            return decode(meta["family"], tensors), meta["curves"]
        except FileError:
            raise
        except Exception as error:  # whatever the class that the file names makes of what is in it
            raise FileError(self.file(name), f"{error}. Delete it to have the member trained again") from error

    def sweep(self, run: str) -> None:
        """Removes the files of draws of a run that no member refers to."""
        files = set(self.folder.glob(f"bank-{run}-*.safetensors"))
        if not files:
            return
        for member in self.folder.glob("member-*.safetensors"):
            with contextlib.suppress(FileError):  # reported when it is read
                files -= {self.folder / where[0] for where in read_meta(member).get("bank", {}).values()}
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()

    def _own(self, x: Tensor) -> Place | None:
        place = lies_in(x)
        return place if place is not None and Path(place.file).parent == self.folder.resolve() else None

    def _mapped(self, file: str, begin: int, shape: list[int], dtype: str, checksum: str) -> Tensor:
        path = self.folder / Path(file).name
        advice = "Delete the member-* files that refer to it to have them sampled again"
        try:
            if file not in self._banks:
                self._banks[file] = Mapped.open(path)
            tensor = at(self._banks[file], Place(file, begin, tuple(shape), getattr(torch, dtype)))
        except FileError as error:
            raise FileError(path, f"{error.reason}. {advice}") from error
        if digest({"": tensor}) != checksum:
            raise FileError(path, f"its draws were altered: the checksum does not fit. {advice}")
        return tensor


class Shelf(NamedTuple):
    """Where the members of a fit are kept, by position: in one of several entries, by a name."""

    entries: Sequence[PoolEntry]
    kind: Sequence[int]  # the entry of each
    names: Sequence[str]

    def has(self, i: int) -> bool:
        """Whether a member is there."""
        return self.entries[self.kind[i]].has(self.names[i])

    def read(self, i: int, device: torch.device | str = "cpu") -> tuple[Family, dict[str, list[Any]]]:
        """A member that is there."""
        return self.entries[self.kind[i]].read(self.names[i], device)

    def write(self, i: int, family: Family, curves: dict[str, list[Any]]) -> None:
        """Keeps a member, unless it is there."""
        if not self.has(i):
            self.entries[self.kind[i]].write(self.names[i], family, curves)


def _as_json(place: Place) -> list[Any]:
    return [Path(place.file).name, place.begin, list(place.shape), str(place.dtype).removeprefix("torch.")]


def difference(old: Any, new: Any, path: str = "") -> str:
    """In words, the first place where two JSON values differ; empty if they do not."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(k for k in new if k not in old)):
            where = f"{path}.{key}" if path else key
            if key not in new or key not in old:
                return f"{where} is {'only in the file' if key in old else 'not in the file'}"
            if inner := difference(old[key], new[key], where):
                return inner
        return ""
    if isinstance(old, str) and isinstance(new, str) and old != new and "\n" in old + new:
        for a, b in zip(old.split("\n"), new.split("\n")):
            if a != b:
                return f"{path} has the line {a.strip()!r} in the file, {b.strip()!r} here"
        return f"{path} has another number of lines"
    return "" if old == new else f"{path} is {old!r} in the file, {new!r} here"
