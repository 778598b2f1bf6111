"""What every family of distributions over (params, buffers) is.

A family is written for one member. Its fields are trees of tensors (and static numbers, strings or booleans); it is
registered as a tree itself, so that families of many members stack, slice, go through `vmap` and are saved by walking
their fields.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import lift
from ..core.noise import Noise
from ..core.registry import Saved
from ..core.tree import Params, Point

F = TypeVar("F", bound=type)


class Family(Saved, kind="family"):
    """A distribution over points: sampled, averaged, and where it has a density, evaluated."""

    @abstractmethod
    def sample(self, noise: Noise) -> Point:
        """One draw."""

    @abstractmethod
    def mean(self) -> Point:
        """The expected params, and the buffers that go with them."""

    @abstractmethod
    def log_prob(self, params: Params) -> Tensor:
        """The log density at params; an error where there is no density."""

    def quad(self, jacobian: Params) -> Tensor:
        """J Sigma J' for a Jacobian given per parameter, leaves (outputs, *shape): (outputs, outputs). For Gaussian
        families, a point included; names that the family does not have are left out."""
        raise not_gaussian(self)

    def scaled(self, factor: float | Tensor) -> Family:
        """The same with its covariance times a factor. For Gaussian families, a point included."""
        raise not_gaussian(self)

    def draw(self, noise: Noise, s: int | Tensor) -> Point:
        """The s-th of a sequence of draws; stratified where the family has finitely many points."""
        return self.sample(noise.split(s))

    def draws(self, noise: Noise, begin: int, end: int) -> Point:
        """The draws number begin ... end - 1, stacked on a leading axis."""
        return lift(lambda s: self.draw(noise, s))(torch.arange(begin, end, device=noise.key.device))

    @property
    def points(self) -> int | None:
        """How many points it has, None for a continuum: then as many samples as there are points say all."""
        return None


@dataclass_transform(frozen_default=True)
def family(cls: F) -> F:
    """Class decorator: a frozen dataclass, registered as a tree. Fields annotated int, float, bool or str are
    static.

    >>> @family
    ... class Named(bn.families.Delta):
    ...     name: str = ""
    >>> Named({"weight": torch.zeros(2)}, {}, name="start").name
    'start'
    """
    dataclass(frozen=True, eq=False)(cls)  # in place
    plain = (int, float, bool, str)  # annotations are names or classes, as the class's module has it
    static = [f.name for f in fields(cls) if f.type in plain or f.type in [t.__name__ for t in plain]]
    moving = [f.name for f in fields(cls) if f.name not in static]

    def flatten(x: Any) -> tuple[list[Any], Any]:
        return [getattr(x, n) for n in moving], tuple(getattr(x, n) for n in static)

    def flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, context = flatten(x)
        return [(pytree.GetAttrKey(n), child) for n, child in zip(moving, children)], context

    def unflatten(children: Any, context: Any) -> Any:
        return cls(**dict(zip(moving, children)), **dict(zip(static, context)))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        flatten_with_keys_fn=flatten_with_keys,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
    )
    return cls


def not_gaussian(given: Family) -> ValueError:
    """The error of families that have no one covariance."""
    return ValueError(
        f"{type(given).__name__} is not Gaussian: a covariance to linearise with or to scale is what Diagonal, "
        "Kronecker, Eigen, Full, and Partial of those have"
    )


def root_of(factor: float | Tensor, like: Tensor) -> Tensor:
    """The square root of a covariance scale, in the dtype and on the device of a tensor."""
    if not isinstance(factor, Tensor) and not 0 <= factor < math.inf:
        raise ValueError(f"expected a finite covariance scale of at least 0, got {factor}")
    return torch.as_tensor(factor, dtype=like.dtype, device=like.device).sqrt()


def no_density(name: str) -> ValueError:
    """The error of families that are made of points."""
    return ValueError(
        f"{name} is made of points and has no density: log_prob needs a continuous family such as Diagonal"
    )
