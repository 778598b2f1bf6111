"""Checkpoints: what a run planned and where its groups stand, written to the pool, so that a killed run goes on.

    checkpoint-RUN.json                the settings, the members of each group, and who failed; written before a step
    checkpoint-RUN-GROUP.safetensors   the states of the members of a group, at intervals

All are removed when the run is done.
"""

from __future__ import annotations

import contextlib
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
        found = read_json(self._plan())
        here = found["settings"] | asked | _versions()
        if changed := difference(found["settings"], here):
            advice = "Go on with those, or delete the file to start anew"
            raise FileError(self._plan(), f"the run that it goes on is of other code or settings: {changed}. {advice}")
        self.settings, self.groups, self.failed = found["settings"], found["groups"], found["failed"]
        return True

    def begin(self, settings: dict[str, Any], groups: list[list[int]]) -> None:
        """Writes down the plan of a new run."""
        self.clear()
        self.settings, self.groups = settings | _versions(), groups
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
        return self.folder is not None and time.monotonic() - self.last >= self.interval

    def write(self, name: str, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        """Writes trees of tensors (None where there is none) and JSON, in one move."""
        tensors: dict[str, Tensor] = {}
        for key, tree in trees.items():
            if tree is not None:
                tensors |= {f"{key}/{i}": x for i, x in enumerate(leaves(tree))}
        write_tensors(self._file(name), tensors, meta)
        self.last = time.monotonic()

    def read(self, name: str, shape: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What `write` wrote, or None. Trees are built like those of `shape`, flat where that is None."""
        if self.folder is None or not self._file(name).exists():
            return None
        try:
            tensors, meta = read_tensors(self._file(name), leaves(shape["state"])[0].device)
        except FileError as error:
            raise FileError(self._file(name), f"{error.reason}. Delete it to train its members anew") from error
        trees = {}
        for key, like in shape.items():
            flat = [tensors[f"{key}/{i}"] for i in range(sum(k.startswith(f"{key}/") for k in tensors))]
            if like is not None and flat:
                trees[key] = pytree.tree_unflatten(flat, pytree.tree_structure(like))
            else:
                trees[key] = flat or None
        return trees, meta

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
            write_json(self._plan(), {"settings": self.settings, "groups": self.groups, "failed": self.failed})

    def _plan(self) -> Path:
        assert self.folder is not None
        return self.folder / f"checkpoint-{self.run}.json"

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"checkpoint-{self.run}-{name}.safetensors"


def group_name(positions: list[int]) -> str:
    """The name of a group in files: its first member and how many there are."""
    return f"{positions[0]:05d}-{len(positions)}"


def _versions() -> dict[str, str]:
    return {"basinet": VERSION, "torch": str(torch.__version__)}
