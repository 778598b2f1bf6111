"""The evidence of a Laplace approximation, and the prior and noise that make it largest.

    log Z = a log p(y | theta*, r) - 1/2 sum_i log(1 + a r^k e_i / m) - 1/2 m q

with e_i the eigenvalues of the curvature and q = |theta* - mu_0|^2 in units of the prior, m the factor by which the
prior's precision is multiplied, r = sigma_0^2 / sigma^2 the same for the noise, and a = 1 / T. k is 1, but 2 for the
empirical Fisher information, which is made of squared residuals over sigma^4. Closed form once the eigenvalues are
known. A prior that is tempered counts as the normal distribution that it is then. For parameters that
are a part of all it is the evidence given the others. It is exact for a linear model with normal noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..problem.priors import Normal
from .passes import Pass, Passes

LOG_NOISE = "likelihood.log_noise"  # the noise that is looked for: one of a Gaussian, learned
REACH = 1e6  # factors are looked for between one over this and this
ROUNDS = 100  # of prior and noise in turn, at most
GRID = 121  # values that are tried before the best is refined


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the evidence is a function of, beside curvature and prior."""

    log_likelihood: float  # at the point, of all N examples
    elements: float  # numbers among the targets, for the noise
    shares: tuple[float, float]  # of likelihood and prior
    distance: Mapping[str, float]  # q of each tensor, in units of the prior's precision
    log_noise: float = 0.0  # log sigma_0, where the noise is looked for
    power: int = 1  # k: with r times the noise's precision, the curvature is r^k times what it is

    @staticmethod
    def at(passes: Passes, prior: Mapping[str, float], run: Pass) -> Evidence:
        """At a point, for a prior that has these precisions, after a pass over the data."""
        problem = passes.problem
        assert isinstance(problem.prior, Normal)
        centre = problem.prior.centre or {}
        away = {n: x - centre[n].to(x) if n in centre else x for n, x in passes.params.items()}
        distance = {n: prior[n] * float(x.double().square().sum()) for n, x in away.items()}
        log_noise = passes.point.params.get(LOG_NOISE)
        known = float(log_noise) if log_noise is not None and log_noise.dim() == 0 else 0.0
        return Evidence(run.log_likelihood, run.elements, problem.shares, distance, known, passes.power)

    def value(self, volume: float, factors: Mapping[str, float], r: float = 1.0) -> float:
        """log Z, given log det Lambda - log det (prior), the factors of the tensors, and r."""
        distance = math.fsum(self.shares[1] * factors[n] * q for n, q in self.distance.items())
        return self._fit(r) - 0.5 * (volume + distance)

    def best(
        self, eigenvalues: Mapping[str, Tensor], groups: Mapping[str, str], with_noise: bool
    ) -> tuple[dict[str, float], float]:
        """The factor of each tensor and r at which log Z is largest. The curvature has `eigenvalues` by tensor, or all
        under ''. Tensors of one group have one factor; those that are in none keep 1."""
        if "" in eigenvalues and len(set(groups.values())) > 1:
            raise ValueError(
                "a factor per layer needs tensors whose curvatures are apart: use structure='kronecker' or "
                "'diagonal', or one factor for all"
            )
        factors, r, before = dict.fromkeys(self.distance, 1.0), 1.0, -math.inf
        for _ in range(ROUNDS if with_noise else 1):
            for names in self._kinds(groups):
                factors |= dict.fromkeys(names, _maximum(partial(self._gain, eigenvalues, names, r)))
            r = _maximum(partial(self.whole, eigenvalues, factors)) if with_noise else r
            now = self.whole(eigenvalues, factors, r)
            if now - before <= 1e-12 * abs(now):
                break
            before = now
        return factors, r

    def better(
        self,
        eigenvalues: Mapping[str, Tensor],
        groups: Mapping[str, str],
        factors: Mapping[str, float],
        with_noise: bool,
        leap: float,
    ) -> tuple[dict[str, float], float]:
        """Factors and r that are better than those given and 1: each the best whose logarithm is at most `leap` away
        (for r, twice that), the noise after the prior. In each logarithm log Z is concave, for eigenvalues that are not
        negative: with g the number of parameters that the data determine, its slope is (g - pull) / 2 in a factor's,
        and that of the likelihood less k g / 2 in that of r."""
        factors, r = dict(factors), 1.0

        def determined(names: Sequence[str], factor: float, r: float) -> float:
            values = [eigenvalues[n] for n in ([""] if "" in eigenvalues else names)]
            share = self._share(r) / (factor * self.shares[1])
            return math.fsum(float((share * e / (1 + share * e)).sum()) for e in values)

        for names in self._kinds(groups):
            pull = self.shares[1] * math.fsum(self.distance[n] for n in names)
            here = math.log(factors[names[0]])
            best = _zero(lambda m: determined(names, m, r) - m * pull, here - leap, here + leap)  # noqa: B023
            factors |= dict.fromkeys(names, best)
        if with_noise:
            alike = [list(factors)] if "" in eigenvalues else [[n] for n in factors]
            r = _zero(
                lambda r: (
                    2 * self._fit_slope(r)
                    - self.power * math.fsum(determined(names, factors[names[0]], r) for names in alike)
                ),
                -2 * leap,
                2 * leap,
            )
        return factors, r

    def whole(self, eigenvalues: Mapping[str, Tensor], factors: Mapping[str, float], r: float = 1.0) -> float:
        """log Z, from the eigenvalues."""
        alike = [list(factors)] if "" in eigenvalues else [[n] for n in factors]
        return self._fit(r) + math.fsum(self._gain(eigenvalues, names, r, factors[names[0]]) for names in alike)

    def _kinds(self, groups: Mapping[str, str]) -> list[list[str]]:
        """Tensors that have one factor."""
        return [[n for n in self.distance if groups.get(n) == g] for g in dict.fromkeys(groups.values())]

    def _gain(self, eigenvalues: Mapping[str, Tensor], names: Sequence[str], r: float, factor: float) -> float:
        """What log Z has of some tensors with one factor."""
        values = [eigenvalues[n] for n in ([""] if "" in eigenvalues else names)]
        pull = factor * self.shares[1] * math.fsum(self.distance[n] for n in names)
        return -0.5 * (_volume(values, self._share(r) / (factor * self.shares[1])) + pull)

    def _share(self, r: float) -> float:
        """What the curvature is multiplied by with r times the noise's precision."""
        return self.shares[0] * r**self.power

    def _fit(self, r: float) -> float:
        """The log likelihood with r times the noise's precision: normal noise of one standard deviation."""
        if r == 1.0:
            return self.shares[0] * self.log_likelihood
        constant = self._constant
        return self.shares[0] * (r * (self.log_likelihood - constant) + constant + 0.5 * self.elements * math.log(r))

    def _fit_slope(self, r: float) -> float:
        """Its derivative in log r."""
        return self.shares[0] * (r * (self.log_likelihood - self._constant) + 0.5 * self.elements)

    @property
    def _constant(self) -> float:
        """The log likelihood of residuals that are zero."""
        return -0.5 * self.elements * (math.log(2 * math.pi) + 2 * self.log_noise)


def _volume(values: Sequence[Tensor], share: float) -> float:
    """log det Lambda - log det (prior), where the curvature has a share of the prior."""
    volume = math.fsum(float(torch.log1p(e * share).sum()) for e in values)
    return math.inf if math.isnan(volume) else volume  # an exact Hessian that this prior does not make positive


def _maximum(function: Callable[[float], float]) -> float:
    """The factor at which a function is largest: the best of a grid, then golden sections around it."""
    step = 2 * math.log(REACH) / (GRID - 1)
    grid = [math.exp(-math.log(REACH) + i * step) for i in range(GRID)]
    best = max(grid, key=function)
    return _golden(function, math.log(best) - step, math.log(best) + step)


def _zero(function: Callable[[float], float], low: float, high: float) -> float:
    """The factor at which a falling function is zero, between two logarithms; the nearer one where it is nowhere."""
    for _ in range(52):  # halves down to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if function(math.exp(middle)) > 0 else (low, middle)
    return math.exp((low + high) / 2)


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """The factor at which a function is largest, between two logarithms."""
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        a, b = high - golden * (high - low), low + golden * (high - low)
        if function(math.exp(a)) >= function(math.exp(b)):
            high = b
        else:
            low = a
    return math.exp((low + high) / 2)
