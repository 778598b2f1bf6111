"""Where samples that a method keeps are stored while it runs: rows on the device, fetched in blocks.

A step writes its sample without asking whether it is one: what is not kept goes to a row that nobody reads. So a step
needs no answer from the device, and can be recorded in a CUDA graph. On a CPU, where looking costs nothing, only
samples are written.

With a pool the store is a mapped file there (`kept_in`), in which the samples stay when the run is over. A checkpoint
holds how many of each member count, with a digest of those that came since the last one: what a killed run wrote beyond
that is written again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..pool.codec import digest
from ..pool.files import FileError
from ..pool.mapped import Mapped

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
        self._structure: Any = None
        self._begin(members)

    def _begin(self, members: int) -> None:
        """An empty store, not yet made."""
        self._total, self._who = members, torch.arange(members)  # rows of the store, and those of these members
        self._store: list[Tensor] | None = None  # (total, rows, ...), on the host
        self._file: Path | None = None  # where it is; None: in memory
        self._mapped: Mapped | None = None
        self._seals: list[list[Any]] = []  # counts of each row up to which a digest goes, and the digest

    def kept_in(self, file: Path) -> None:
        """Has the store made in a file, when the first sample comes."""
        self._file = file

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
        """Moves what waits on the device to the store, each leaf of all members in one copy."""
        waiting = [] if self._blocks is None else self._waiting.tolist()
        if not any(waiting):
            return
        assert self._blocks is not None
        self._make_store([x[:, 0] for x in self._blocks])
        assert self._store is not None
        blocks = [x[:, : max(waiting)].cpu() for x in self._blocks]
        for j, count in enumerate(waiting):
            begin = int(self.counts[j])
            for store, block in zip(self._store, blocks):
                store[int(self._who[j]), begin : begin + count] = block[j, :count]
            self.counts[j] += count
        self._waiting.zero_()

    def of(self, member: int) -> Any:
        """The samples of one member, leaves (K, ...); None if it kept none."""
        self.fetch()
        count = int(self.counts[member])
        if count == 0 or self._store is None:
            return None
        kept = [x[int(self._who[member]), :count].to(self.device) for x in self._store]
        return pytree.tree_unflatten(kept, self._structure)

    def reset(self) -> None:
        """Forgets everything."""
        self.counts.zero_()
        self._waiting.zero_()
        self._left.fill_(self.rows)
        self._begin(len(self.counts))

    def forget_waiting(self) -> None:
        """Forgets what waits on the device: of steps that were only tried."""
        self._left.add_(self._waiting)
        self._waiting.zero_()

    def clear(self, member: int) -> None:
        """Forgets the samples of one member."""
        self.counts[member] = 0
        self._waiting[member] = 0
        self._left[member] = self.rows
        self._seals = []

    def only(self, members: list[int]) -> Bank:
        """The bank of some of its members."""
        self.fetch()
        some = Bank(len(members), self.rows, self.device)
        some.counts, some._structure = self.counts[members].clone(), self._structure
        some._left = self._left[members].clone()
        some._total, some._who, some._store = self._total, self._who[members], self._store
        some._file, some._mapped = self._file, self._mapped
        return some

    def contents(self) -> list[Tensor] | None:
        """Everything that a checkpoint must hold, as a flat list: of a store in a file, how many samples count."""
        self.fetch()
        if self._store is None:
            return None
        if self._mapped is None:
            return [self.counts, *self._store]
        self._mapped.flush()
        return [self.counts]

    def structure(self) -> dict[str, Any] | None:
        """How a sample is built of its leaves and where the store is, as JSON: for a checkpoint."""
        if self._structure is None:
            return None
        about: dict[str, Any] = {"structure": pytree.treespec_dumps(self._structure)}
        if self._mapped is not None:
            self._seal()
            about |= {"file": self._mapped.path.name, "seals": self._seals}
        return about

    def restore(self, contents: list[Tensor] | None, about: dict[str, Any] | None, folder: Path | None = None) -> None:
        """The inverse of `contents` and `structure`. Refuses a file whose samples are not those that were written."""
        if contents is None or about is None:
            return
        self.counts = contents[0].cpu()
        self._left.copy_(self.rows - self.counts)
        self._structure = pytree.treespec_loads(about["structure"])
        self._store = [x.cpu() for x in contents[1:]]
        if "file" in about:
            assert folder is not None
            self._mapped = Mapped.open(folder / about["file"], writing=True)
            self._store, self._seals = _in_order(self._mapped), about["seals"]
            self._total = len(self._store[0])
            self._check(self._mapped.path)

    def _seal(self) -> None:
        """Adds a digest of what came since the last one."""
        before = self._seals[-1][0] if self._seals else [0] * len(self.counts)
        after = self.counts.tolist()
        if after != before:
            self._seals.append([after, self._digest(before, after)])

    def _check(self, path: Path) -> None:
        before = [0] * len(self.counts)
        for after, expected in self._seals:
            if self._digest(before, after) != expected:
                raise FileError(
                    path,
                    "its samples are not those that the run wrote: delete it and the checkpoint-* files beside it to "
                    "start again",
                )
            before = after

    def _digest(self, before: list[int], after: list[int]) -> str:
        assert self._store is not None
        rows = [(j, int(w), a, b) for j, (w, a, b) in enumerate(zip(self._who, before, after)) if b > a]
        return digest({f"{i}/{j}": x[w, a:b] for i, x in enumerate(self._store) for j, w, a, b in rows})

    def _write_here(self, members: slice, keep: Tensor, flat: list[Tensor]) -> None:
        counts = self.counts[members]
        chosen = (keep & (counts < self.rows)).nonzero().squeeze(1)
        if len(chosen) == 0:
            return
        self._make_store(flat)
        assert self._store is not None
        at = counts[chosen]
        for store, x in zip(self._store, flat):
            store[self._who[members][chosen], at] = x[chosen].detach()
        counts[chosen] += 1

    def _make_store(self, flat: list[Tensor]) -> None:
        if self._store is not None:
            return
        shapes = [((self._total, self.rows, *x.shape[1:]), x.dtype) for x in flat]
        if self._file is None:
            self._store = [torch.zeros(shape, dtype=dtype) for shape, dtype in shapes]
            return
        like = {str(i): shape for i, shape in enumerate(shapes)}
        self._mapped = Mapped.fill(self._file, like, {})
        self._store = _in_order(self._mapped)


def lengthened(old: Path, new: Path, rows: int) -> None:
    """A copy of the file of a store, with more rows for each member."""
    before = _in_order(Mapped.open(old))
    like = {str(i): ((len(x), rows, *x.shape[2:]), x.dtype) for i, x in enumerate(before)}
    longer = Mapped.fill(new, like, {})
    for x, y in zip(before, _in_order(longer)):
        for member in range(len(x)):  # one after another, so that little is in memory
            y[member, : x.shape[1]] = x[member]
    longer.flush()


def _in_order(mapped: Mapped) -> list[Tensor]:
    return [mapped.arrays[str(i)] for i in range(len(mapped.arrays))]
