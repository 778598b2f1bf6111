"""The evidence of a Laplace approximation, and the prior and noise that make it largest.

    log Z = a log p(y | theta*) - 1/2 sum_i log(1 + a r e_i / m) - 1/2 m q + (noise),   q = |theta* - mu0|^2 in the prior

with e_i the eigenvalues of the curvature in units of the prior, m the factor by which the prior's precision is
multiplied, r = sigma0^2 / sigma^2 the same for the noise, and a = 1 / T. Closed form once the eigenvalues are known. A
prior that is tempered counts as the normal distribution that it is then. For parameters that are a part of all it is
the evidence given the others. It is exact for a linear model with normal noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

REACH = 1e6  # factors are looked for between one over this and this
GRID = 121  # of which so many are tried before the best is refined


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the evidence is a function of. Names are those of independent tensors, or '' for all together."""

    log_likelihood: float  # at the point, of all N examples
    elements: float  # numbers among the targets, for the noise
    shares: tuple[float, float]  # of likelihood and prior
    eigenvalues: Mapping[str, Tensor]  # of the curvature, in units of the prior's precision
    distance: Mapping[str, float]  # q, by the same names
    log_noise: float = 0.0  # log sigma0, where the noise is looked for

    def value(self, factors: Mapping[str, float] | float = 1.0, r: float = 1.0) -> float:
        """log Z with the prior's precision times a factor (by name), and the noise's times r."""
        each = factors if isinstance(factors, Mapping) else dict.fromkeys(self.eigenvalues, factors)
        return self._fit(r) - sum(self._penalty(n, each[n], r) for n in self.eigenvalues)

    def best(self, groups: Mapping[str, str], noise: bool = False) -> tuple[dict[str, float], float]:
        """The factors (one a group of names; `groups` has the group of each) and r at which it is largest."""
        kinds = {g: [n for n in self.eigenvalues if groups[n] == g] for g in groups.values()}
        factors = dict.fromkeys(self.eigenvalues, 1.0)
        r, before = 1.0, -math.inf
        for _ in range(100):
            for names in kinds.values():
                found = _maximum(lambda m, names=names: -sum(self._penalty(n, m, r) for n in names))  # type: ignore[misc]
                factors |= dict.fromkeys(names, found)
            if noise:
                r = _maximum(lambda x: self.value(factors, x))
            now = self.value(factors, r)
            if not noise or now - before <= 1e-10 * abs(now):
                break
            before = now
        return factors, r

    def _fit(self, r: float) -> float:
        """The log likelihood with r times the noise's precision: normal noise of one standard deviation."""
        if r == 1.0:
            return self.shares[0] * self.log_likelihood
        constant = -0.5 * self.elements * (math.log(2 * math.pi) + 2 * self.log_noise)
        return self.shares[0] * (r * (self.log_likelihood - constant) + constant + 0.5 * self.elements * math.log(r))

    def _penalty(self, name: str, m: float, r: float) -> float:
        a, s = self.shares
        volume = float(torch.log1p(self.eigenvalues[name] * (a * r / (m * s))).sum())
        if math.isnan(volume):  # an exact Hessian that this prior does not make positive
            return math.inf
        return 0.5 * (volume + m * s * self.distance[name])


def _maximum(function: Callable[[float], float]) -> float:
    """The factor at which a function is largest: the best of a grid, then golden sections around it."""
    step = 2 * math.log(REACH) / (GRID - 1)
    grid = [math.exp(-math.log(REACH) + i * step) for i in range(GRID)]
    best = max(grid, key=function)
    low, high = math.log(best) - step, math.log(best) + step
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if function(math.exp(a)) >= function(math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)
