"""The evidence of a Laplace approximation, and the prior and noise that make it largest.

    log Z = a log p(y | theta*, r) - 1/2 sum_i log(1 + a r e_i / m) - 1/2 m q

with e_i the eigenvalues of the curvature and q = |theta* - mu_0|^2 in units of the prior, m the factor by which the
prior's precision is multiplied, r = sigma_0^2 / sigma^2 the same for the noise, and a = 1 / T. Closed form once the
eigenvalues are known. A prior that is tempered counts as the normal distribution that it is then. For parameters that
are a part of all it is the evidence given the others. It is exact for a linear model with normal noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

REACH = 1e6  # factors are looked for between one over this and this
ROUNDS = 100  # of prior and noise in turn, at most
GRID = 121  # of which so many are tried before the best is refined


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the evidence is a function of, beside curvature and prior."""

    log_likelihood: float  # at the point, of all N examples
    elements: float  # numbers among the targets, for the noise
    shares: tuple[float, float]  # of likelihood and prior
    distance: Mapping[str, float]  # q of each tensor, in units of the prior's precision
    log_noise: float = 0.0  # log sigma_0, where the noise is looked for

    def value(self, volume: float, factors: Mapping[str, float], r: float = 1.0) -> float:
        """log Z, given log det Lambda - log det (prior), the factors of the tensors, and r."""
        distance = math.fsum(self.shares[1] * factors[n] * q for n, q in self.distance.items())
        return self._fit(r) - 0.5 * (volume + distance)

    def best(
        self, eigenvalues: Mapping[str, Tensor], groups: Mapping[str, str], noise: bool
    ) -> tuple[dict[str, float], float]:
        """The factor of each tensor and r at which log Z is largest. The curvature has `eigenvalues` by tensor, or all
        under ''. Tensors of one group have one factor; those that are in none keep 1."""
        together = "" in eigenvalues
        if together and len(set(groups.values())) > 1:
            raise ValueError(
                "a factor a layer needs tensors whose curvatures are apart: take structure='kronecker' or 'diagonal', "
                "or one factor for all"
            )
        factors, r, before = dict.fromkeys(self.distance, 1.0), 1.0, -math.inf
        kinds = {g: [n for n in self.distance if groups.get(n) == g] for g in groups.values()}

        def gain(names: Sequence[str], r: float, factor: float) -> float:
            values = [eigenvalues[n] for n in ([""] if together else names)]
            pull = factor * self.shares[1] * math.fsum(self.distance[n] for n in names)
            return -0.5 * (_volume(values, self.shares, factor, r) + pull)

        def whole(r: float) -> float:
            alike = [list(factors)] if together else [[n] for n in factors]
            return self._fit(r) + math.fsum(gain(names, r, factors[names[0]]) for names in alike)

        for _ in range(ROUNDS if noise else 1):
            for names in kinds.values():
                factors |= dict.fromkeys(names, _maximum(partial(gain, names, r)))
            r = _maximum(whole) if noise else r
            now = whole(r)
            if now - before <= 1e-12 * abs(now):
                break
            before = now
        return factors, r

    def _fit(self, r: float) -> float:
        """The log likelihood with r times the noise's precision: normal noise of one standard deviation."""
        if r == 1.0:
            return self.shares[0] * self.log_likelihood
        constant = -0.5 * self.elements * (math.log(2 * math.pi) + 2 * self.log_noise)
        return self.shares[0] * (r * (self.log_likelihood - constant) + constant + 0.5 * self.elements * math.log(r))


def _volume(values: Sequence[Tensor], shares: tuple[float, float], factor: float, r: float) -> float:
    """log det Lambda - log det (prior)."""
    found = math.fsum(float(torch.log1p(e * (shares[0] * r / (factor * shares[1]))).sum()) for e in values)
    return math.inf if math.isnan(found) else found  # an exact Hessian that this prior does not make positive


def _maximum(function: Callable[[float], float]) -> float:
    """The factor at which a function is largest: the best of a grid, then golden sections around it."""
    step = 2 * math.log(REACH) / (GRID - 1)
    grid = [math.exp(-math.log(REACH) + i * step) for i in range(GRID)]
    best = max(grid, key=function)
    low, high = math.log(best) - step, math.log(best) + step
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if function(math.exp(a)) >= function(math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)
