"""Sums that are symmetric matrices, of which half is computed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.tree import Params
from .calls import Layer
from .passes import ELEMENTS

AT_ONCE = 1024  # examples whose part of a full matrix is added at a time
BLOCK = 32  # columns of a symmetric matrix that are made at a time, at least
WIDE = torch.float64  # sums over all data are kept in doubles


class Linear:
    """sum_n H_n x a_n a_n', with a bias as one more input. H_n and a_n a_n' are symmetric, so a quarter of the numbers
    is computed; for many examples at a time, since each time what is there is read and written."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.sum: Tensor | None = None  # (i, pairs of outputs, i)
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def take(self, layer: Layer, h: Tensor) -> None:
        """The examples of a batch."""
        a = layer.inputs()[:, 0, 0]
        a = a if layer.bias is None else torch.cat([a, torch.ones_like(a[:, :1])], 1)
        self.layer = layer
        self.waiting.append((a, h))
        if sum(len(x) for x, _ in self.waiting) >= AT_ONCE:
            self._add()

    def done(self) -> Tensor | None:
        """The matrix, in the order of the params; None where there were no examples."""
        if self.waiting:
            self._add()
        if self.sum is None:
            return None
        upper = self.sum.movedim(0, 1).triu()  # (pairs, i, i)
        upper += upper.triu(1).mT
        i, (first, second) = len(self.sum), self.pairs
        whole = upper.new_empty(self.outputs, i, self.outputs, i)
        whole[first, :, second] = whole[second, :, first] = upper
        parts = {self.layer.weight: slice(i)}
        if self.layer.bias is not None:
            parts = {self.layer.weight: slice(i - 1), self.layer.bias: slice(i - 1, i)}
        each = [[whole[:, parts[n], :, parts[m]].flatten(2).flatten(0, 1) for m in self.params] for n in self.params]
        return torch.cat([torch.cat(row, 1) for row in each])

    def _add(self) -> None:
        """The blocks on and above the diagonal, of the pairs of outputs on and above theirs."""
        a, h = (torch.cat(x) for x in zip(*self.waiting))
        self.waiting = []
        i, self.outputs = a.shape[1], h.shape[-1]
        self.pairs = torch.triu_indices(self.outputs, self.outputs, device=a.device)
        h = h[:, self.pairs[0], self.pairs[1]]  # (B, pairs)
        if self.sum is None:
            self.sum = torch.zeros(i, h.shape[1], i, dtype=WIDE, device=a.device)
        step = min(BLOCK, max(1, ELEMENTS // h.numel()))
        for begin in range(0, i, step):
            here = slice(begin, begin + step)
            left = (a[:, here].unsqueeze(2) * h.unsqueeze(1)).flatten(1)  # (B, inputs pairs)
            self.sum[here, :, begin:] += (left.mT @ a[:, begin:]).unflatten(0, (-1, h.shape[1]))


def gram(rows: Tensor) -> Tensor:
    """rows' rows, a symmetric matrix, by blocks on and above its diagonal."""
    width = rows.shape[1]
    step = max(BLOCK, -(-width // 5))
    if step >= width:
        return rows.mT @ rows
    whole = rows.new_empty(width, width)
    for begin in range(0, width, step):
        here = slice(begin, begin + step)
        whole[here, begin:] = block = rows[:, here].mT @ rows[:, begin:]
        whole[begin:, here] = block.mT
    return whole
