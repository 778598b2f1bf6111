"""What chance alone does to numbers of chains that are right: how large R-hat may be, and how far a mean may be off.

    R-hat^2 = (1 - 1 / n) (1 + F s / (1 - s)),   s = tau / n,   F ~ F(2 C - 1, v)

since the means of the 2 C halves of n draws vary by sigma^2 s, which is lacking within them. The time tau is an
estimate, from C K draws and lags up to m, as good as v = C K / (2 m + 1) degrees of freedom (Sokal 1997). It is taken
within chains, so that chains which disagree do not get a wider limit for it.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from .convergence import folded, scores

ALARM = 0.01  # probability at most that a verdict says of chains which are right that they are not
SHARE = 1 / 3  # of it for each of R-hat, the configurational and the kinetic temperature
RHAT = 1.01  # as Vehtari et al. advise, where there are enough draws for chance to stay below it
FEWEST = 6.0  # degrees of freedom that an estimate has at least: the limit is finite
MOST = 0.5  # share of the variance that lies between halves: more is no longer chance
ROUNDS = 4  # of the correction for a mean that is taken from the chain itself


def rhat_limits(draws: Tensor, alarm: float = ALARM * SHARE) -> Tensor:
    """What R-hat of place and of scale may be for each quantity of draws (C, K, Q), (2, Q): RHAT, or what the
    largest of all exceeds by chance with probability `alarm`."""
    chains, count, quantities = draws.shape
    both = torch.cat([scores(draws), scores(folded(draws))], -1)
    tau, window = (x.unflatten(0, (2, quantities)) for x in correlation_time(both))
    quantile = f_quantile(1 - alarm / (2 * quantities), 2 * chains - 1, known(draws, window))
    half = count // 2
    share = (tau / half).clamp(max=MOST)
    return ((1 - 1 / half) * (1 + quantile * share / (1 - share))).sqrt().clamp(min=RHAT)


def correlation_time(draws: Tensor) -> tuple[Tensor, Tensor]:
    """tau of each quantity of draws (C, K, Q), (Q,), at least 1, and the lag up to which it was summed (Geyer's pairs).

    Autocovariances around a chain's own mean are too small by the variance of that mean, sigma^2 tau / K: it is added.
    """
    count = draws.shape[1]
    centred = draws.double() - draws.double().mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=1).abs().square()
    covariance = (torch.fft.irfft(spectrum, n=2 * count, dim=1)[:, :count] / count).mean(0)  # (K, Q)
    still = covariance[0] <= 0
    covariance[0] = torch.where(still, 1.0, covariance[0])
    unbiased = covariance * (count / torch.arange(count, 0, -1, device=draws.device))[:, None]
    tau, window = torch.ones_like(covariance[0]), torch.zeros_like(covariance[0])
    pairs = count // 4  # the rest of the lags are seen too seldom
    for _ in range(ROUNDS):
        share = (tau / count).clamp(max=0.5)
        lost = covariance[0] * share / (1 - share)
        rho = (unbiased + lost) / (covariance[0] + lost)
        sums = rho[: 2 * pairs].unflatten(0, (pairs, 2)).sum(1).cummin(0).values
        run = (sums > 0).long().cumprod(0)
        tau = (-1 + 2 * (sums * run).sum(0)).clamp(min=1.0)
        window = (2.0 * run.sum(0) - 1).clamp(min=0.0)
    return torch.where(still, float(count), tau), window


def f_quantile(probability: float, first: float, second: Tensor) -> Tensor:
    """Of the F distribution, by cube roots that are nearly normal (Paulson 1942): within 3 % from 6 degrees on."""
    z = NormalDist().inv_cdf(probability)
    a, b = 2 / (9 * second.clamp(min=FEWEST)), 2 / (9 * first)
    lead = (1 - a).square() - z**2 * a
    middle = (1 - a) * (1 - b)
    lead = lead.clamp(min=0.02)
    root = (middle.square() - lead * ((1 - b) ** 2 - z**2 * b)).clamp(min=0.0).sqrt()
    return ((middle + root) / lead) ** 3


def known(draws: Tensor, window: Tensor) -> Tensor:
    """Degrees of freedom of a time that was summed up to these lags, from draws (C, K, ...)."""
    return draws.shape[0] * draws.shape[1] / (2 * window + 1)


def wide(alarm: float, freedom: Tensor) -> float:
    """How many estimated standard errors a number is off with probability `alarm`: of Student's t distribution."""
    return float(f_quantile(1 - alarm, 1.0, freedom).sqrt())
