"""Checkpoints: what a run planned and where its groups stand, written to the pool, so that a killed run goes on.

    checkpoint-RUN.json                the settings, the members of each group, and who failed; written before a step
    checkpoint-RUN-GROUP.safetensors   the states of the members of a group, at intervals
    bank-RUN-GROUP.safetensors         the samples they keep, written as they come
    rest-RUN.json, rest-RUN-GROUP...   the first two of a run that has ended and can be made longer

The first two are removed when the run is done, and samples of which no member is made.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.tree import leaves
from ..core.version import VERSION
from ..pool.files import FileError, alone, read_json, read_tensors, remove_leftovers, write_json, write_tensors
from ..pool.pool import difference
from .bank import lengthened


class Checkpoints:
    """The files of one run in a folder; without a folder, nothing is written. `run` tells it from other runs there.

    `settings` (JSON) must be the same for a run to be taken up: strategy, compiling, precision, memory; and so must
    the versions of basinet and torch.
    """

    def __init__(self, folder: Path | None = None, interval: float = 60.0, run: str = "") -> None:
        self.folder, self.interval, self.run = folder, interval, run
        self.settings: dict[str, Any] = {}
        self.groups: list[list[int]] = []  # members of each group, by position
        self.failed: list[int] = []
        self.last = time.monotonic()

    @property
    def kept(self) -> bool:
        """Whether somebody keeps what is written."""
        return self.folder is not None

    def exist(self) -> bool:
        """Whether there is a run to go on with."""
        return self.folder is not None and self._plan().exists()

    def place(self) -> tuple[Path | None, float, str]:
        """Folder, interval and run: what makes another one of the same files."""
        return self.folder, self.interval, self.run

    def recall(self, asked: dict[str, Any]) -> bool:
        """Whether there is a run to go on with: reads its plan. `asked` are the settings that somebody asked for."""
        if not self.exist():
            return False
        plan = read_json(self._plan())
        here = plan["settings"] | asked | versions()
        if changed := difference(plan["settings"], here):
            advice = "Use those, or delete the file to start again"
            raise FileError(self._plan(), f"it belongs to a run with other code or settings: {changed}. {advice}")
        self.settings, self.groups, self.failed = plan["settings"], plan["groups"], plan["failed"]
        return True

    def begin(self, settings: dict[str, Any], groups: list[list[int]]) -> None:
        """Writes down the plan of a new run."""
        self.clear()
        self.settings, self.groups = settings | versions(), groups
        self._save()

    def regroup(self, old: list[int], new: list[list[int]]) -> None:
        """Writes down that a group became several."""
        self.remove(group_name(old))
        at = self.groups.index(old)
        self.groups = [*self.groups[:at], *new, *self.groups[at + 1 :]]
        self._save()

    def fail(self, position: int) -> None:
        """Writes down that a member failed for good."""
        self.failed.append(position)
        self._save()

    def due(self) -> bool:
        """Whether it is time to write."""
        return self.kept and time.monotonic() - self.last >= self.interval

    def write(self, name: str, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        """Writes trees of tensors (None where there is none) and JSON, in one move."""
        self._write(self._file(name), trees, meta)
        self.last = time.monotonic()

    def rest(self, name: str, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        """Writes where a group of a run that has ended would go on, and the plan of the run."""
        assert self.folder is not None
        self._write(self.folder / f"rest-{self.run}-{name}.safetensors", trees, meta)
        write_json(self.folder / f"rest-{self.run}.json", self._content())

    def go_on(self, ended: Path, rows: int) -> bool:
        """Begins where the same run ended in another folder, with more rows for samples; whether it can."""
        assert self.folder is not None
        plan = ended / f"rest-{self.run}.json"
        if not plan.exists():
            return False
        content = read_json(plan)
        for group in content["groups"]:
            file = ended / f"rest-{self.run}-{group_name(group)}.safetensors"
            if not file.exists():
                return False
            tensors, meta = read_tensors(file)
            if meta["bank"] is not None and "file" in meta["bank"]:
                longer = self.bank_file(group_name(group))
                lengthened(ended / meta["bank"]["file"], longer, rows)
                meta["bank"]["file"] = longer.name
            write_tensors(self._file(group_name(group)), tensors, meta)
        write_json(self._plan(), content)
        return True

    def _write(self, file: Path, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        write_tensors(file, flattened(trees), meta)

    def content(self, name: str, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The file of a group as it is, or None."""
        if self.folder is None or not self._file(name).exists():
            return None
        try:
            return read_tensors(self._file(name), device)
        except FileError as error:
            raise FileError(self._file(name), f"{error.reason}. Delete it to train its members again") from error

    def accept(self, name: str, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Writes the file of a group that trains where this folder is not."""
        write_tensors(self._file(name), tensors, meta)

    def read(self, name: str, shape: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What `write` wrote, or None. Trees are built like those of `shape`, flat where that is None."""
        content = self.content(name, leaves(shape["state"])[0].device)
        return None if content is None else (unflattened(content[0], shape), content[1])

    def bank_file(self, name: str) -> Path:
        """A new file for the samples of a group."""
        assert self.folder is not None
        names = (
            f"bank-{self.run}-{name}{more}.safetensors"
            for more in itertools.chain([""], (f"-{i}" for i in itertools.count(1)))
        )
        return next(file for file in map(self.folder.joinpath, names) if not file.exists())

    def remove(self, name: str) -> None:
        """Removes the checkpoint of a group that is done."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._file(name).unlink()

    def clear(self) -> None:
        """Removes all files of this run, the plan last, and what killed writes left."""
        if self.folder is None or not self.folder.is_dir():
            return
        remove_leftovers(self.folder)
        for file in (*self.folder.glob(f"checkpoint-{self.run}-*.safetensors"), self._plan()):
            with contextlib.suppress(OSError):  # gone, or in a pool that can only be read
                file.unlink()

    def alone(self, waiting: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Runs its body while no other process is in that of the same run: calls `waiting`, where one is, and waits."""
        return contextlib.nullcontext() if self.folder is None else alone(self._plan().with_suffix(".lock"), waiting)

    def _save(self) -> None:
        if self.folder is not None:
            write_json(self._plan(), self._content())

    def _content(self) -> dict[str, Any]:
        return {"settings": self.settings, "groups": self.groups, "failed": self.failed}

    def _plan(self) -> Path:
        assert self.folder is not None
        return self.folder / f"checkpoint-{self.run}.json"

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"checkpoint-{self.run}-{name}.safetensors"


def group_name(positions: list[int]) -> str:
    """The name of a group in files: its first member and how many there are."""
    return f"{positions[0]:05d}-{len(positions)}"


def flattened(trees: dict[str, Any]) -> dict[str, Tensor]:
    """Trees of tensors, or None, as tensors by name."""
    return {f"{key}/{i}": x for key, tree in trees.items() if tree is not None for i, x in enumerate(leaves(tree))}


def unflattened(tensors: dict[str, Tensor], shape: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flattened`: trees like those of `shape`, flat where that is None."""
    trees: dict[str, Any] = {}
    for key, like in shape.items():
        flat = [tensors[f"{key}/{i}"] for i in range(sum(k.startswith(f"{key}/") for k in tensors))]
        trees[key] = (
            pytree.tree_unflatten(flat, pytree.tree_structure(like)) if like is not None and flat else flat or None
        )
    return trees


def versions() -> dict[str, str]:
    return {"basinet": VERSION, "torch": str(torch.__version__)}
