"""Any family with a density as a prior: yesterday's posterior, today's prior.

Families stand behind problems in the order of imports, so this file knows them by what they do: `Density` is the
protocol, and a family that is registered to be saved and has those functions is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ...core.model import describe_difference
from ...core.noise import Noise
from ...core.registry import Saved
from ...core.tree import Params, Point, leaves, move
from .prior import Prior, constant


@runtime_checkable
class Density(Protocol):
    """What a prior asks of a family."""

    def sample(self, noise: Noise) -> Point:
        """One draw."""
        ...

    def log_prob(self, params: Params) -> Tensor:
        """The log density at params, of integral one."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FromFamily(Prior):
    """The density of a family over the same parameters, such as `posterior.family`. It follows the params to their
    device and type; its tensors are saved with the problem."""

    family: Density
    """A family of one member over the network's parameters; not one made of points."""

    def __post_init__(self) -> None:
        name = type(self.family).__name__
        if not (isinstance(self.family, Saved) and isinstance(self.family, Density) and self.family.kind == "family"):
            raise TypeError(f"expected a family such as bn.families.Diagonal, got {name}: pass posterior.family")
        try:
            self.family.log_prob(self._example())
        except ValueError as error:
            raise ValueError(f"a prior needs a density, which this {name} does not have: {error}") from error

    def energy(self, params: Params) -> Tensor:
        like = next(iter(params.values()))
        return -move(self.family, like.device, like.dtype).log_prob(params)

    def log_normaliser(self, params: Params) -> Tensor:
        return constant(0.0, params)

    def sample(self, like: Params, noise: Noise) -> Params:
        first = next(iter(like.values()))
        drawn = move(self.family, first.device, first.dtype).sample(noise).params
        return {n: drawn[n] for n in like}

    def check(self, params: Params) -> None:
        shapes = {n: tuple(x.shape) for n, x in self._example().items()}
        if difference := describe_difference({n: tuple(x.shape) for n, x in params.items()}, shapes):
            raise ValueError(
                f"the prior's family does not fit the model's parameters: {difference}. It must cover only the "
                "network's parameters, of one member"
            )

    def _example(self) -> Params:
        return self.family.sample(Noise.seed(0, leaves(self.family)[0].device)).params
