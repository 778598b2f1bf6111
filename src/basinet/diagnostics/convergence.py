"""R-hat, effective sample sizes and Monte-Carlo errors of chains (Vehtari, Gelman, Simpson, Carpenter, Buerkner 2021).

    R-hat = sqrt(((K - 1) / K W + B) / W),   W the variance within chains, B that of their means
    ESS   = C K / tau,   tau = -1 + 2 sum_k P_k,   P_k = rho_2k + rho_2k+1 (Geyer's pairs: while positive, monotone)

Draws have shape (C, K, ...): chains, draws in their order, then any quantities, each of which is judged by itself.
Chains are split in halves, so that one that drifts disagrees with itself. R-hat and the bulk's ESS are of normal scores
of ranks, which exist for every distribution; the tail's ESS is the lesser one of the 5 % and 95 % quantiles.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 4  # draws of a chain, so that its halves have a variance


def rhat(draws: Tensor) -> Tensor:
    """Rank-normalised split R-hat, (...): the larger one of place and of scale.

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> bool(rhat(draws) < 1.01), bool(rhat(draws + torch.arange(4.0)[:, None]) > 1.2)  # chains in places of their own
    (True, True)
    """
    return rhat_of_both(draws).amax(0)


def rhat_of_both(draws: Tensor) -> Tensor:
    """R-hat of place and of scale (draws folded at their median), (2, ...)."""
    halves = _halves(draws)
    return torch.stack([_ratio(scores(halves)), _ratio(scores(folded(halves)))])


def ess_bulk(draws: Tensor) -> Tensor:
    """Effective draws for the centre of the distribution, (...).

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))  # independent: about 2,000
    >>> bool(ess_bulk(draws) > 1500)
    True
    """
    return _effective(scores(_halves(draws)))


def ess_tail(draws: Tensor) -> Tensor:
    """Effective draws for its tails, (...).

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> bool(ess_tail(draws) > 1500)
    True
    """
    halves, flat = _halves(draws), draws.double().flatten(0, 1)
    low, high = (torch.quantile(flat, q, dim=0) for q in (0.05, 0.95))
    return torch.minimum(_effective((halves <= low).double()), _effective((halves <= high).double()))


def ess_mean(draws: Tensor) -> Tensor:
    """Effective draws for the mean of the draws as they are, (...).

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    >>> bool(ess_mean(draws) > 1500)
    True
    """
    return _effective(_halves(draws))


def mcse_mean(draws: Tensor) -> Tensor:
    """The standard error of the mean of all draws, (...).

    >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))  # 1 / sqrt(2,000) = .022
    >>> 0.02 < float(mcse_mean(draws)) < 0.025
    True
    """
    return draws.double().flatten(0, 1).std(0) / ess_mean(draws).sqrt()


def _halves(draws: Tensor) -> Tensor:
    """(2 C, K // 2, ...): the first and the last draws of each chain; the middle one of an odd number is left out."""
    if draws.dim() < 2 or draws.shape[1] < LEAST:
        raise ValueError(
            f"expected draws as (chains, draws, ...) with at least {LEAST} draws of each chain, got "
            f"{tuple(draws.shape)}: keep more draws"
        )
    draws, half = draws.detach().double(), draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def folded(draws: Tensor) -> Tensor:
    """Distances from the median of all draws, which tell of the scale."""
    return (draws - torch.quantile(draws.flatten(0, 1), 0.5, dim=0)).abs()


def scores(draws: Tensor) -> Tensor:
    """Normal scores of the ranks among all draws: Phi^-1((r - 3/8) / (S + 1/4)), ties at their mean rank."""
    flat = draws.flatten(0, 1)
    total, columns = len(flat), flat.reshape(len(flat), -1)
    ordered = columns.T.contiguous().sort(dim=1).values  # (Q, S)
    below = torch.searchsorted(ordered, columns.T.contiguous(), right=False)
    upto = torch.searchsorted(ordered, columns.T.contiguous(), right=True)
    ranks = (below + 1 + upto).double().T.reshape(flat.shape) / 2
    return torch.special.ndtri((ranks - 0.375) / (total + 0.25)).reshape(draws.shape)


def _ratio(draws: Tensor) -> Tensor:
    """R-hat of draws as they are; 1 where nothing varies, infinite where chains stand still in different places."""
    count = draws.shape[1]
    within, between = draws.var(1).mean(0), draws.mean(1).var(0)
    ratio = (((count - 1) / count * within + between) / within).sqrt()
    return torch.where((within == 0) & (between == 0), torch.ones_like(ratio), ratio)


def _effective(draws: Tensor) -> Tensor:
    """ESS of draws as they are; their number where nothing varies."""
    chains, count = draws.shape[:2]
    covariance = autocovariance(draws).mean(0)  # (K, ...)
    within = covariance[0] * count / (count - 1)
    total = covariance[0] + (draws.mean(1).var(0) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    pairs = max(1, (count - 1) // 2)
    sums = rho[: 2 * pairs].unflatten(0, (pairs, 2)).sum(1)  # (pairs, ...)
    usable = sums > 0
    usable[0] = True
    usable[max(1, pairs - 1) :] = False  # the last pair is mostly noise
    run = usable.long().cumprod(0)
    length = run.sum(0)  # of the pairs that count
    tau = -1 + 2 * (torch.cummin(sums, 0).values * run).sum(0)
    after = rho.gather(0, (2 * length).clamp(max=count - 1).unsqueeze(0))[0]  # Geyer's sum ends within a pair
    tau = tau + after.clamp(min=0.0)
    tau = tau.clamp(min=1 / math.log10(chains * count))
    return torch.where(total > 0, chains * count / tau, torch.full_like(tau, chains * count))


def autocovariance(draws: Tensor) -> Tensor:
    """Of each chain at all lags, divided by the number of draws, (C, K, ...)."""
    count = draws.shape[1]
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=1)
    return torch.fft.irfft(spectrum.abs().square().to(spectrum.dtype), n=2 * count, dim=1)[:, :count] / count
