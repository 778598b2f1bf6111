"""Calibration of predictive distributions of real numbers, by the probability integral transform u = F(y).

F is the predictive distribution function and y the target, so `predictive.cdf(targets)` are PIT values; for an ensemble
F is the mixture's, the mean of the members'. Where the predictive is right they are uniform on [0, 1]. Here they are
(..., B), examples last, and every result keeps the leading axes. Outputs (B, D) are transposed to be judged one by one,
or flattened to be judged together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import binning, checks

LEVELS = tuple(0.01 + 0.98 * k / 19 for k in range(20))  # those of Jordahn et al. (2025)


def quantile_calibration_error(pit: Tensor, levels: Sequence[float] = LEVELS) -> Tensor:
    """Mean distance of observed from nominal coverage of the quantiles, (1/L) Σ_q |(1/B) Σ_b 1[u_b ≤ q] − q|.

    A target lies below the q-quantile just if its u ≤ q, so no quantile need be found. The levels q are 20 equal steps
    from 0.01 to 0.99 unless given.

    All targets at the medians: no quantile below ½ covers anything, all above cover everything.

    >>> quantile_calibration_error(torch.full((5,), 0.5), levels=[0.2, 0.4, 0.7]).item()  # (0.2 + 0.4 + 0.3) / 3
    0.3...
    """
    _check(pit)
    if len(levels) == 0 or not all(0 < q < 1 for q in levels):
        raise ValueError(f"expected levels between 0 and 1, at least one, got {list(levels)}: 0.5 is the median")
    error = sum((((pit <= q).double().mean(-1) - q).abs() for q in levels), pit.new_zeros(pit.shape[:-1]).double())
    return torch.where(pit.isnan().any(-1), torch.nan, error / len(levels)).to(pit.dtype)


def pit_histogram(pit: Tensor, bins: int = 10) -> Tensor:
    """Share of the PIT values in each of `bins` equal parts (lo, hi] of [0, 1], the first with 0; (..., bins).

    Near 1/bins each where the predictive is right, with standard error √((1/bins)(1 − 1/bins)/B); a ∪ means it is too
    narrow, a ∩ too wide, a slope that it is biased.

    >>> pit_histogram(torch.tensor([0.0, 0.1, 0.3, 0.5, 0.9]), bins=2).tolist()
    [0.8..., 0.2...]
    """
    _check(pit)
    checks.bins(bins, customary=10)
    place = binning.by_width(pit, bins)
    share = torch.stack([(place == k).to(pit.dtype).mean(-1) for k in range(bins)], -1)
    return torch.where(pit.isnan().any(-1, keepdim=True), torch.nan, share)


def randomized_pit(below: Tensor, upto: Tensor, seed: int | torch.Generator) -> Tensor:
    """PIT values of discrete targets, u = P(Y < y) + v P(Y = y) with v uniform (Smith 1985): `below` is F just below
    the target, F(y − 1) for counts, and `upto` is F(y). Elementwise, (..., B).

    The v are shared by the leading axes, so that members are compared on the same draws. For a continuous F both are
    equal and u = F(y), whatever the seed:

    >>> randomized_pit(torch.tensor([0.25, 0.5]), torch.tensor([0.25, 0.5]), seed=0).tolist()
    [0.25, 0.5]
    """
    _check(below, "below")
    _check(upto, "upto")
    if below.shape != upto.shape or below.dtype != upto.dtype:
        raise ValueError(
            f"expected below and upto of one shape and dtype, got {tuple(below.shape)} {below.dtype} and "
            f"{tuple(upto.shape)} {upto.dtype}: evaluate both at the same targets"
        )
    if bool((below > upto + 1e-6).any()):
        raise ValueError(
            f"expected below <= upto, got a difference of {(below - upto).max().item():.4g}: "
            "below is the distribution function just under the target, at counts y that at y - 1"
        )
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    v = torch.rand(below.shape[-1], generator=generator, dtype=torch.float64, device=generator.device)
    return below + v.to(below) * (upto - below)


def _check(values: Tensor, name: str = "pit") -> None:
    checks.rows(name, values)
    if bool(((values < -1e-6) | (values > 1 + 1e-6)).any()):  # rounding of a distribution function, and NaN, pass
        raise ValueError(
            f"expected {name} in [0, 1], got values from {values.min().item():.4g} to {values.max().item():.4g}: "
            "pass values of the distribution function at the targets, as predictive.cdf(targets) gives"
        )
