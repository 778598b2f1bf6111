"""What plots of chains show beside the draws themselves: autocorrelations, and where the ranks of each chain lie.

Draws are (C, K), chains with their draws in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .convergence import autocovariance


def autocorrelation(draws: Tensor, lags: int = 50) -> Tensor:
    """Of each chain with itself, 0 to `lags` draws later: (C, L), L = min(lags + 1, K), 1 at first. Of a chain that
    stands still it is 1.

    >>> autocorrelation(torch.tensor([[1.0, -1.0, 1.0, -1.0]]), lags=1)[:, 0]
    tensor([1.], dtype=torch.float64)
    """
    covariance = autocovariance(draws.detach().double())[:, : lags + 1]
    first = covariance[:, :1]
    return torch.where(first > 0, covariance / first.clamp(min=torch.finfo(torch.float64).tiny), 1.0)


def rank_counts(draws: Tensor, bins: int = 20) -> Tensor:
    """How many draws of each chain have ranks among all draws in each of `bins` equal stretches, (C, bins): the same
    everywhere, about K / bins, where chains agree. Draws that are equal share their stretch.

    >>> draws = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])  # two chains that never meet
    >>> rank_counts(draws, bins=2).tolist()
    [[4, 0], [0, 4]]
    """
    flat = draws.detach().double().flatten()
    ordered = flat.sort().values
    middle = (torch.searchsorted(ordered, flat) + torch.searchsorted(ordered, flat, right=True)) / 2  # mean rank
    place = (middle * bins / len(flat)).long().clamp(max=bins - 1).reshape(draws.shape)
    return torch.stack([(place == b).sum(1) for b in range(bins)], 1)
