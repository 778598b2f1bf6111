"""Where samples that a method keeps are stored while it runs: rows that the engine owns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.tree import tree_map


class Bank:
    """At most `rows` samples for each of `members` members; each keeps its first ones."""

    def __init__(self, members: int, rows: int) -> None:
        self.rows = rows
        self.counts = torch.zeros(members, dtype=torch.long)
        self._store: Any = None

    def write(self, keep: Tensor, sample: Any) -> None:
        """Stores the sample (leaves (g, ...)) of the members for which `keep` (g,) is true."""
        chosen = (keep.cpu() & (self.counts < self.rows)).nonzero().squeeze(1)
        if len(chosen) == 0:
            return
        if self._store is None:
            self._store = tree_map(lambda x: x.new_empty((x.shape[0], self.rows, *x.shape[1:])), sample)
        at = self.counts[chosen]

        def put(store: Tensor, x: Tensor) -> Tensor:
            store[chosen.to(x.device), at.to(x.device)] = x[chosen.to(x.device)].detach()
            return store

        tree_map(put, self._store, sample)
        self.counts[chosen] += 1

    def of(self, member: int) -> Any:
        """The samples of one member, leaves (K, ...); None if it kept none."""
        count = int(self.counts[member])
        return None if count == 0 else tree_map(lambda x: x[member, :count], self._store)
