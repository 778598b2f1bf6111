"""Where samples that a method keeps are stored while it runs: rows that the engine owns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Bank:
    """At most `rows` samples for each of `members` members; each keeps its first ones."""

    def __init__(self, members: int, rows: int) -> None:
        self.rows = rows
        self.counts = torch.zeros(members, dtype=torch.long)
        self._store: list[Tensor] | None = None
        self._structure: Any = None

    def write(self, keep: Tensor, sample: Any) -> None:
        """Stores the sample (leaves (g, ...)) of the members for which `keep` (g,) is true."""
        chosen = (keep.cpu() & (self.counts < self.rows)).nonzero().squeeze(1)
        flat, self._structure = pytree.tree_flatten(sample)
        if len(chosen) == 0:
            return
        if self._store is None:
            self._store = [x.new_zeros((x.shape[0], self.rows, *x.shape[1:])) for x in flat]
        at = self.counts[chosen]
        for store, x in zip(self._store, flat):
            store[chosen.to(x.device), at.to(x.device)] = x[chosen.to(x.device)].detach()
        self.counts[chosen] += 1

    def of(self, member: int) -> Any:
        """The samples of one member, leaves (K, ...); None if it kept none."""
        count = int(self.counts[member])
        if count == 0 or self._store is None:
            return None
        return pytree.tree_unflatten([x[member, :count] for x in self._store], self._structure)

    def clear(self, member: int) -> None:
        """Forgets the samples of one member."""
        self.counts[member] = 0

    def contents(self) -> list[Tensor] | None:
        """Everything, as a flat list: for a checkpoint."""
        return None if self._store is None else [self.counts, *self._store]

    def structure(self) -> str | None:
        """How a sample is built of its leaves, as text: for a checkpoint."""
        return None if self._structure is None else pytree.treespec_dumps(self._structure)

    def restore(self, contents: list[Tensor] | None, structure: str | None) -> None:
        """The inverse of `contents` and `structure`."""
        if contents is not None and structure is not None:
            self.counts, self._store = contents[0].cpu(), list(contents[1:])
            self._structure = pytree.treespec_loads(structure)
