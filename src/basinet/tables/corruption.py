"""Corruptions of the rows of a table at five severities: what goes wrong with measurements after training.

    noise     every number is off, by a normal error of a standard deviation that severity sets
    shift     every number of a column has moved, all rows alike, up or down: an instrument that drifts
    range     one number of each row lies beyond all of training, above or below
    missing   some cells are gone, and filled in as files with missing cells are
    swap      some cells are those of another row

Rows are inputs as the network is given them, so that errors are in standard deviations of the training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from .columns import Category, Column, Number

SEVERITIES = {  # standard deviations; of the range of training; shares of the cells
    "noise": (0.1, 0.2, 0.4, 0.7, 1.0),
    "shift": (0.25, 0.5, 1.0, 1.5, 2.0),
    "range": (0.1, 0.25, 0.5, 1.0, 2.0),
    "missing": (0.1, 0.2, 0.3, 0.4, 0.5),
    "swap": (0.1, 0.2, 0.3, 0.4, 0.5),
}
ROW_NAMES = tuple(SEVERITIES)


class _Cells(NamedTuple):
    """The inputs of one column: where they are, whether the first is a number, and whether the last is a flag that says
    that there was no value."""

    begin: int
    width: int
    number: bool
    flagged: bool = False

    @property
    def own(self) -> slice:
        return slice(self.begin, self.begin + self.width)


@dataclass(frozen=True, eq=False)
class RowCorruption:
    """Corrupts rows that are like those of training."""

    cells: tuple[_Cells, ...]
    fill: Tensor  # (inputs,): what takes the place of missing cells
    low: Tensor  # (inputs,): the least of training, and the greatest
    high: Tensor
    sd: Tensor

    @staticmethod
    def of(train: Tensor, columns: Sequence[Column] | None = None) -> RowCorruption:
        """For training inputs (N, inputs) and the columns that became them; without columns each input is one, and a
        number where it has more than two values."""
        if train.dim() != 2:
            raise ValueError(f"expected inputs as rows (N, inputs), got shape {tuple(train.shape)}")
        x = train.detach().double().cpu()
        if columns is None:
            cells = tuple(_Cells(i, 1, len(x[:, i].unique()) > 2) for i in range(x.shape[1]))
        else:
            corruptible, begin = [], 0
            for column in columns:
                width = len(column.features)
                corruptible.append(_Cells(begin, width, isinstance(column, Number), getattr(column, "flagged", False)))
                begin += width
            cells = tuple(corruptible)
        fill = torch.cat([_fill(x[:, c.own], c, None if columns is None else columns[i]) for i, c in enumerate(cells)])
        return RowCorruption(cells, fill, x.amin(0), x.amax(0), x.std(0, correction=0))

    def corrupt(self, inputs: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
        """Rows (B, inputs) corrupted, of the same shape, dtype and device. `name` is one of `ROW_NAMES`, `severity` 1
        to 5; severities share their noise."""
        if name not in SEVERITIES:
            raise ValueError(f"expected a corruption of rows, got {name!r}.{did_you_mean(str(name), ROW_NAMES)}")
        if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
            raise ValueError(f"expected a severity of 1, 2, 3, 4 or 5, got {severity!r}")
        if inputs.dim() != 2 or inputs.shape[1] != len(self.fill):
            raise ValueError(f"expected rows of {len(self.fill)} inputs, got shape {tuple(inputs.shape)}")
        change: Callable[[Tensor, float, Noise], Tensor] = getattr(self, f"_{name}")
        x = inputs.detach().double().cpu().clone()
        return change(x, SEVERITIES[name][severity - 1], Noise.seed(seed).split(name)).to(inputs)

    @property
    def _numbers(self) -> list[int]:
        return [c.begin for c in self.cells if c.number]

    def _noise(self, x: Tensor, size: float, noise: Noise) -> Tensor:
        x[:, self._numbers] += size * self.sd[self._numbers] * noise.normal(x[:, self._numbers])
        return x

    def _shift(self, x: Tensor, size: float, noise: Noise) -> Tensor:
        sign = 2.0 * (noise.uniform(x[0, self._numbers]) < 0.5) - 1
        x[:, self._numbers] += size * self.sd[self._numbers] * sign
        return x

    def _range(self, x: Tensor, size: float, noise: Noise) -> Tensor:
        numbers = torch.tensor(self._numbers)
        if not len(numbers):
            return x
        place = numbers[noise.split("column").integers(len(x), len(numbers))]
        above = noise.split("side").uniform(x[:, 0]) < 0.5
        beyond = size * (self.high - self.low)[place]
        x[torch.arange(len(x)), place] = torch.where(above, self.high[place] + beyond, self.low[place] - beyond)
        return x

    def _missing(self, x: Tensor, share: float, noise: Noise) -> Tensor:
        gone = noise.uniform(x.new_empty(len(x), len(self.cells))) < share
        for i, cells in enumerate(self.cells):
            filled = self.fill[cells.own].clone()
            if cells.flagged:
                filled[-1] = 1.0
            x[:, cells.own] = torch.where(gone[:, i : i + 1], filled, x[:, cells.own])
        return x

    def _swap(self, x: Tensor, share: float, noise: Noise) -> Tensor:
        swapped = noise.uniform(x.new_empty(len(x), len(self.cells))) < share
        before = x.clone()
        for i, cells in enumerate(self.cells):
            other = before[noise.split(i).permutation(len(x)), cells.own]
            x[:, cells.own] = torch.where(swapped[:, i : i + 1], other, before[:, cells.own])
        return x


def _fill(x: Tensor, cells: _Cells, column: Column | None) -> Tensor:
    """What takes the place of a missing cell: the median, the most frequent value, or the row at the median."""
    if isinstance(column, Category) or (column is None and not cells.number):
        rows, counts = x.unique(dim=0, return_counts=True)
        return rows[counts.argmax()]
    if cells.number:
        filled = x.median(0).values
        return torch.cat([filled[:-1], filled.new_zeros(1)]) if cells.flagged else filled
    return x[x[:, 0].argsort()[len(x) // 2]]
