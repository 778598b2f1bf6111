"""Checkpoints: where a group of members stands, written to the pool at intervals, so that a killed run goes on."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.tree import leaves
from ..core.version import VERSION
from ..pool.files import FileError, read_tensors, write_tensors
from ..pool.pool import difference


class Checkpoints:
    """Files `checkpoint-NAME.safetensors` in a folder; without a folder, nothing is written.

    `settings` (JSON) must be the same for a checkpoint to be taken up: strategy, size of groups, precision; and so
    must the versions of basinet and torch.
    """

    def __init__(self, folder: Path | None, interval: float) -> None:
        self.folder, self.interval = folder, interval
        self.settings: dict[str, Any] = {}
        self.last = time.monotonic()

    def settings_found(self) -> dict[str, Any] | None:
        """The settings of a checkpoint that is there; None if there is none."""
        for file in self._files():
            return read_tensors(file)[1]["settings"]
        return None

    def groups(self) -> list[list[list[int]]]:
        """The members of each group that a checkpoint holds."""
        return [[s["member"] for s in read_tensors(file)[1]["meta"]["slots"]] for file in self._files()]

    def due(self, force: bool = False) -> bool:
        """Whether it is time to write."""
        return self.folder is not None and (force or time.monotonic() - self.last >= self.interval)

    def write(self, name: str, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        """Writes trees of tensors (None where there is none) and JSON, in one move."""
        tensors: dict[str, Tensor] = {}
        for key, tree in trees.items():
            if tree is not None:
                tensors |= {f"{key}/{i}": x for i, x in enumerate(leaves(tree))}
        write_tensors(self._file(name), tensors, {"settings": self._settings(), "meta": meta})
        self.last = time.monotonic()

    def read(self, name: str, shape: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What `write` wrote, or None. Trees are built like those of `shape`, flat where that is None."""
        if self.folder is None or not self._file(name).exists():
            return None
        device = leaves(shape["state"])[0].device
        tensors, found = read_tensors(self._file(name), device)
        if changed := difference(found["settings"], self._settings()):
            advice = "Go on with those, or delete the file to start anew"
            raise FileError(self._file(name), f"this checkpoint is from other code or settings: {changed}. {advice}")
        trees = {}
        for key, like in shape.items():
            flat = [tensors[f"{key}/{i}"] for i in range(sum(k.startswith(f"{key}/") for k in tensors))]
            if like is not None and flat:
                trees[key] = pytree.tree_unflatten(flat, pytree.tree_structure(like))
            else:
                trees[key] = flat or None
        return trees, found["meta"]

    def remove(self, name: str) -> None:
        """Removes the checkpoint of a group that is done."""
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError):
                self._file(name).unlink()

    def _settings(self) -> dict[str, Any]:
        return self.settings | {"basinet": VERSION, "torch": torch.__version__}

    def _files(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("checkpoint-*.safetensors"))

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"checkpoint-{name}.safetensors"
