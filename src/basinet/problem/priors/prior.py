"""What every prior is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor

from ...core.noise import Noise
from ...core.registry import Saved
from ...core.tree import Params


class Prior(Saved, kind="prior"):
    """A density over params. Parameters that the likelihood learns are not among them: theirs is flat."""

    @abstractmethod
    def energy(self, params: Params) -> Tensor:
        """Minus the log density, up to what does not depend on the params."""

    @abstractmethod
    def log_normaliser(self, params: Params) -> Tensor:
        """What `energy` leaves out: log_prob = -energy - log_normaliser."""

    @abstractmethod
    def sample(self, like: Params, noise: Noise) -> Params:
        """A draw in the shapes of `like`."""

    def precision(self, params: Params) -> dict[str, float] | None:
        """The number p of each tensor, where the energy is the sum of p/2 |x|^2; None where it is not of that form."""
        return None

    def check(self, params: Params) -> None:
        """Raises where the prior does not fit parameters of these names and shapes."""

    @final
    def log_prob(self, params: Params) -> Tensor:
        """The log density."""
        return -self.energy(params) - self.log_normaliser(params)


def total(terms: Iterable[Tensor]) -> Tensor:
    """The sum over all elements of all terms."""
    return torch.stack([x.sum() for x in terms]).sum()


def constant(value: float, params: Params) -> Tensor:
    """A number as a tensor that goes with the params."""
    return next(iter(params.values())).new_full((), value)
