"""What filters of networks share: how often a batch is linearised, and where the prior lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..problem.priors import Normal
from .filter import Filter

CENTRES = ("start", "prior", None)


@dataclass(frozen=True, kw_only=True)
class Linearised(Filter, kind="method"):
    """A filter of a network, which is taken for a linear function at a mean."""

    iterations: int = 1
    """How many times a batch is linearised."""
    centre: Literal["start", "prior"] | None = None
    """The prior's mean: its own, or where the network starts, since a network of zeros cannot learn; None: its own
    where it names one."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"expected iterations of at least 1, got {self.iterations}")
        if self.centre not in CENTRES:
            raise ValueError(f"expected centre 'start', 'prior' or None, got {self.centre!r}")
        super().__post_init__()

    @property
    def rounds(self) -> int:
        return self.iterations

    def centred(self, prior: Normal) -> bool:
        return super().centred(prior) if self.centre is None else self.centre == "prior"
