"""Where samples that a method keeps are stored while it runs: rows on the device, fetched in blocks.

A step writes its sample without asking whether it is one: what is not kept goes to a row that nobody reads. So a step
needs no word from the device, and can be recorded in a CUDA graph. On a CPU, where a look is free, nothing is written
in vain.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

BLOCK = 32  # samples of each member that wait on a GPU before they are fetched


class Bank:
    """At most `rows` samples for each of `members` members; each keeps its first ones."""

    def __init__(self, members: int, rows: int, device: torch.device | None = None) -> None:
        self.rows, self.device = rows, device or torch.device("cpu")
        self.waits = self.device.type != "cpu"  # samples wait on the device until they are fetched
        self.block = min(rows, BLOCK) if self.waits else rows
        self.counts = torch.zeros(members, dtype=torch.long)  # of samples in the store
        self._left = torch.full((members,), rows, dtype=torch.long, device=self.device)  # that may still be kept
        self._waiting = torch.zeros(members, dtype=torch.long, device=self.device)
        self._blocks: list[Tensor] | None = None  # (members, block + 1, ...), on the device
        self._store: list[Tensor] | None = None  # (members, rows, ...), on the host
        self._structure: Any = None

    def write(self, keep: Tensor, sample: Any, members: slice = slice(None)) -> None:
        """Stores the sample (leaves (g, ...)) of those of `members` for which `keep` (g,) is true."""
        flat, self._structure = pytree.tree_flatten(sample)
        if not self.waits:
            self._write_here(members, keep, flat)
            return
        if self._blocks is None:
            total = len(self.counts)
            self._blocks = [x.new_zeros((total, self.block + 1, *x.shape[1:])) for x in flat]
        waiting, left = self._waiting[members], self._left[members]
        kept = keep & (left > 0)
        at = torch.where(kept, waiting, self.block)  # the last row takes what is not kept
        who = torch.arange(len(at), device=self.device)
        for block, x in zip(self._blocks, flat):
            block[members].index_put_((who, at), x.detach())
        waiting.add_(kept)
        left.sub_(kept.long())

    def fetch(self) -> None:
        """Moves what waits on the device to the store."""
        if self._blocks is None:
            return
        waiting = self._waiting.tolist()
        self._make_store([x[:, 0] for x in self._blocks])
        assert self._store is not None
        for j, count in enumerate(waiting):
            begin = int(self.counts[j])
            for store, block in zip(self._store, self._blocks):
                store[j, begin : begin + count] = block[j, :count].cpu()
            self.counts[j] += count
        self._waiting.zero_()

    def of(self, member: int) -> Any:
        """The samples of one member, leaves (K, ...); None if it kept none."""
        self.fetch()
        count = int(self.counts[member])
        if count == 0 or self._store is None:
            return None
        kept = [x[member, :count].to(self.device) for x in self._store]
        return pytree.tree_unflatten(kept, self._structure)

    def reset(self) -> None:
        """Forgets everything."""
        self.counts.zero_()
        self._waiting.zero_()
        self._left.fill_(self.rows)
        self._store = None

    def forget_waiting(self) -> None:
        """Forgets what waits on the device: of steps that were only tried."""
        self._left.add_(self._waiting)
        self._waiting.zero_()

    def clear(self, member: int) -> None:
        """Forgets the samples of one member."""
        self.counts[member] = 0
        self._waiting[member] = 0
        self._left[member] = self.rows

    def only(self, members: list[int]) -> Bank:
        """The bank of some of its members."""
        self.fetch()
        some = Bank(len(members), self.rows, self.device)
        some.counts, some._structure = self.counts[members].clone(), self._structure
        some._left = self._left[members].clone()
        some._store = None if self._store is None else [x[members] for x in self._store]
        return some

    def contents(self) -> list[Tensor] | None:
        """Everything, as a flat list: for a checkpoint."""
        self.fetch()
        return None if self._store is None else [self.counts, *self._store]

    def structure(self) -> str | None:
        """How a sample is built of its leaves, as text: for a checkpoint."""
        return None if self._structure is None else pytree.treespec_dumps(self._structure)

    def restore(self, contents: list[Tensor] | None, structure: str | None) -> None:
        """The inverse of `contents` and `structure`."""
        if contents is not None and structure is not None:
            self.counts, self._store = contents[0].cpu(), [x.cpu() for x in contents[1:]]
            self._left.copy_(self.rows - self.counts)
            self._structure = pytree.treespec_loads(structure)

    def _write_here(self, members: slice, keep: Tensor, flat: list[Tensor]) -> None:
        counts = self.counts[members]
        chosen = (keep & (counts < self.rows)).nonzero().squeeze(1)
        if len(chosen) == 0:
            return
        self._make_store(flat)
        assert self._store is not None
        at = counts[chosen]
        for store, x in zip(self._store, flat):
            store[members][chosen, at] = x[chosen].detach()
        counts[chosen] += 1

    def _make_store(self, flat: list[Tensor]) -> None:
        if self._store is None:
            total = len(self.counts)
            self._store = [torch.zeros((total, self.rows, *x.shape[1:]), dtype=x.dtype) for x in flat]
