"""Changes of variable for real targets: the network sees w = g(y), and densities are those of y (Snelson et al. 2004,
"Warped Gaussian processes").

    x = (y - origin) / size,   w = (h(x) - centre) / unit,   p(y) = p(w) |dw/dy|
    Log           h(x) = log x, for targets above the origin
    YeoJohnson    h(x) = ((1 + x)^a - 1) / a where x >= 0, and -((1 - x)^b - 1) / b below, b = 2 - a; logarithms where
                  a or b is 0 (Yeo and Johnson 2000). a is within 0 and 2, so that h takes all values: a normal w has no
                  probability outside.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from ..core.registry import Saved
from .distributions import Normal

LARGEST = 40.0  # of an exponent, whose square 32 bits hold
NODES = 40  # of Gauss and Hermite, for means and variances
GAIN = 0.05  # nats per target by which a change of variable makes their histogram more normal: less is not tried
POWERS = 20  # that are tried from 0 to 1
QUARTILES = 1.349  # standard deviations between the quartiles of a normal


@dataclass(frozen=True, kw_only=True)
class Warp(Saved, kind="warp"):
    """A function g that increases, with its inverse and slope."""

    origin: float = 0.0
    size: float = 1.0
    centre: float = 0.0
    unit: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.origin, self.size, self.centre, self.unit)
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers) or min(self.size, self.unit) <= 0:
            raise ValueError(f"expected finite numbers, size and unit above 0, got {self}")

    @abstractmethod
    def h(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def h_inverse(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def log_h_slope(self, x: Tensor) -> Tensor: ...

    def holds(self, targets: Tensor) -> Tensor:
        """Which targets it is defined for."""
        return torch.ones_like(targets, dtype=torch.bool)

    def forward(self, targets: Tensor) -> Tensor:
        """w; minus infinity where it is not defined, which is below."""
        inside = self.holds(targets)
        x = (torch.where(inside, targets, self.origin + self.size) - self.origin) / self.size
        return torch.where(inside, (self.h(x) - self.centre) / self.unit, -math.inf)

    def inverse(self, w: Tensor) -> Tensor:
        """y."""
        return self.origin + self.size * self.h_inverse(self.centre + self.unit * w)

    def log_slope(self, targets: Tensor) -> Tensor:
        """log dw/dy; of targets that it is not defined for, whose density is 0, any number."""
        x = (torch.where(self.holds(targets), targets, self.origin + self.size) - self.origin) / self.size
        return self.log_h_slope(x) - math.log(self.size * self.unit)

    def in_units(self, mean: float, sd: float) -> Self:
        """The same for targets mean + sd y."""
        return replace(self, origin=mean + sd * self.origin, size=sd * self.size)

    def standardised(self, targets: Tensor) -> Self:
        """With w of mean 0 and standard deviation 1 on these targets."""
        w = replace(self, centre=0.0, unit=1.0).forward(targets.double())
        return replace(self, centre=float(w.mean()), unit=float(w.std(correction=0)))

    def gain(self, targets: Tensor) -> float:
        """By how many nats per target a normal for w is a better histogram than one for y."""
        y = targets.double()
        spread = self.forward(y).std(correction=0) / y.std(correction=0)
        return float(self.log_slope(y).mean() - spread.log())


@dataclass(frozen=True, kw_only=True)
class Log(Warp):
    """For targets above the origin that vary by factors."""

    def holds(self, targets: Tensor) -> Tensor:
        return targets > self.origin

    def h(self, x: Tensor) -> Tensor:
        return x.log()

    def h_inverse(self, v: Tensor) -> Tensor:
        return v.clamp(max=LARGEST).exp()

    def log_h_slope(self, x: Tensor) -> Tensor:
        return -x.log()


@dataclass(frozen=True, kw_only=True)
class YeoJohnson(Warp):
    """For targets with a long tail on one side, or on both."""

    power: float = 1.0  # a; 1 changes nothing

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.power <= 2:
            raise ValueError(f"expected a power from 0 to 2, got {self.power}")

    @staticmethod
    def fit(targets: Tensor) -> YeoJohnson:
        """With the power that makes the histogram of these targets most normal, around their median."""
        y = targets.double().flatten()
        low, middle, high = (float(y.quantile(q)) for q in (0.25, 0.5, 0.75))
        plain = YeoJohnson(origin=middle, size=(high - low) / QUARTILES or float(y.std(correction=0)) or 1.0)
        return max((replace(plain, power=k / POWERS) for k in range(2 * POWERS + 1)), key=lambda warp: warp.gain(y))

    def h(self, x: Tensor) -> Tensor:
        size = x.abs().log1p()
        return torch.where(x < 0, -_power(size, 2 - self.power), _power(size, self.power))

    def h_inverse(self, v: Tensor) -> Tensor:
        size = v.abs()
        return torch.where(v < 0, -_power_inverse(size, 2 - self.power), _power_inverse(size, self.power))

    def log_h_slope(self, x: Tensor) -> Tensor:
        return (self.power - 1) * x.sign() * x.abs().log1p()


def _power(size: Tensor, a: float) -> Tensor:
    """((1 + |x|)^a - 1) / a of size = log(1 + |x|)."""
    return size if a == 0 else torch.expm1(a * size) / a


def _power_inverse(v: Tensor, a: float) -> Tensor:
    return torch.expm1((v if a == 0 else torch.log1p(a * v) / a).clamp(max=LARGEST))


def warps_for(targets: Tensor, zero: float | None = None) -> tuple[Warp, ...]:
    """The changes of variable that are worth a trial for training targets (N, 1), as their histogram says; `zero` is
    where zero lies among them, if that is known."""
    y = targets.detach().double().flatten().cpu()
    if len(y) < 2 or float(y.min()) == float(y.max()):
        return ()
    known: list[Warp] = [YeoJohnson.fit(y).standardised(y)]
    if zero is not None and float(y.min()) > zero:
        known.insert(0, Log(origin=zero).standardised(y))
    return tuple(warp for warp in known if warp.gain(y) > GAIN)


class WarpedNormal(Distribution):
    """y whose w is normal. Means and variances are sums over nodes."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012  # as torch declares it
    support = constraints.real

    def __init__(self, loc: Tensor, scale: Tensor, warp: Warp, validate_args: bool | None = None) -> None:
        self.normal, self.warp = Normal(loc, scale, validate_args=False), warp
        self.loc, self.scale = self.normal.loc, self.normal.scale  # of w
        super().__init__(self.normal.batch_shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> WarpedNormal:
        """The same on more axes."""
        return WarpedNormal(self.loc.expand(batch_shape), self.scale.expand(batch_shape), self.warp, False)

    @property
    def mean(self) -> Tensor:
        """E[y]."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """Var[y]."""
        return self._moments()[1]

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of y."""
        w = self.warp.forward(value)
        return self.normal.log_prob(w) + self.warp.log_slope(value)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value)."""
        return self.normal.cdf(self.warp.forward(value))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantiles at levels `value`."""
        return self.warp.inverse(self.normal.icdf(value))

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # as torch declares it
        """Draws of y."""
        return self.warp.inverse(self.normal.sample(sample_shape))

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, around the median, which is near."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        middle = self.warp.inverse(self.loc)
        first, second = torch.zeros_like(middle), torch.zeros_like(middle)
        for z, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist()):
            off = self.warp.inverse(self.loc + self.scale * z) - middle
            first, second = first + weight * off, second + weight * off.square()
        return middle + first, (second - first.square()).clamp(min=0)
