"""What every term of a potential is, beside the data's likelihood and the prior."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
from torch import Tensor

from ...core.noise import Noise
from ...core.registry import Saved
from ...core.tree import Params, Point, leaves, move, tree_map

if TYPE_CHECKING:
    from ..problem import Problem

T = TypeVar("T", bound="Term")

Outputs = Callable[[Any, Noise | None], Tensor]
"""What the network gives for inputs (B, ...), at the params of the moment; the noise is that of its dropout."""


class Term(Saved, kind="term"):
    """Minus a log density, summed over N points of its own.

    It says what its points are and what each of them costs; `Problem.potential` multiplies by N over the number of
    points it was given, and tempers. A density that is not a sum over points, such as that of a function at all of
    them, is one number and has no batches.
    """

    tempered: ClassVar[bool] = True  # divided by T always, as a likelihood is; False: as the prior is
    batch_size: int | None = None  # points per step, drawn again with the step's noise; None: all

    @property
    @abstractmethod
    def points(self) -> Any:
        """A tree of tensors (N, ...)."""

    @abstractmethod
    def energies(self, outputs: Outputs, points: Any, learned: Params, noise: Noise | None) -> Tensor:
        """Minus the log density of each of some points, (B, ...), up to what does not depend on params."""

    def init(self) -> Params:
        """The parameters it learns, with a flat prior, at their starting values; none unless it says otherwise."""
        return {}

    def check(self, problem: Problem, point: Point) -> None:
        """Raises where the term does not fit the network, at a point."""

    @final
    @property
    def n(self) -> int:
        """N, the number of its points."""
        return len(leaves(self.points)[0])

    @final
    def drawn(self, noise: Noise | None) -> Any:
        """The points of one step: all of them, or `batch_size` by the noise.

        The list is cut into `batch_size` stretches of equal length, and each gives one of its points at random. Every
        point is expected equally often, so that sums are unbiased, with a variance below that of plain draws.
        """
        if noise is None or self.batch_size is None or self.batch_size >= self.n:
            return self.points
        stretch = torch.arange(self.batch_size, device=noise.key.device, dtype=torch.float64)
        place = (stretch + noise.uniform(stretch)) * (self.n / self.batch_size)
        index = place.long().clamp(max=self.n - 1)
        return tree_map(lambda x: x[index.to(x.device)], self.points)

    @final
    def to(self: T, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> T:
        """The same on a device; floating tensors in `dtype`."""
        moved = {f.name: move(getattr(self, f.name), device, dtype) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **moved)  # type: ignore[type-var]


def check_batch(batch_size: int | None) -> None:
    """Refuses a number of points that is not a positive one."""
    if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(f"expected a batch_size of at least 1 point, or None for all, got {batch_size!r}")
