"""Kernels between members, as matrices (M, M): their values, and what their gradients do to the members.

    rbf      k(x, y) = exp(-|x - y|^2 / (2 h^2))
    imq      k(x, y) = (1 + |x - y|^2 / h^2)^(-1/2), the inverse multiquadric: same curvature at zero, heavier tails
    linear   k(x, y) = x'y + 1

Members are given as a list of tensors (M, ...), parameters or outputs, that together are one vector per member; nothing
of size M x M x P is made. Distances come from inner products, |x|^2 + |y|^2 - 2 x'y, of the members less the first one:
so the rounding error is that of the members' spread and not of their norm (members 1e-4 apart around weights of norm
100 keep their distances in float32), and members that are equal have distance zero exactly. What is lost are pairs that
are some 3,000 times closer to each other than to the rest, which only a bandwidth that small would tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.nearest import did_you_mean

KERNELS = ("rbf", "imq", "linear")
Cloud = Sequence[Tensor]  # M members in pieces (M, ...) that together are one vector per member


class Pairs(NamedTuple):
    """A kernel between members."""

    values: Tensor  # (M, M), k(x_i, x_j)
    slopes: Tensor  # (M, M), W such that sum_j grad_{x_j} k(x_j, x_i) = sum_j W_ij x_j


@dataclass(frozen=True)
class Kernel:
    """A kernel by its word, and its bandwidth h: a number, or None for the median heuristic of the members at hand."""

    word: str
    bandwidth: float | None = None
    wide: bool = False  # of the median heuristics: h^2 = median distance^2 of different members (Shi et al. 2018)

    def __post_init__(self) -> None:
        if self.word not in KERNELS:
            raise ValueError(f"unknown kernel {self.word!r}.{did_you_mean(self.word, KERNELS)}")
        if self.bandwidth is not None:
            if self.word == "linear":
                raise ValueError(f"kernel 'linear' has no bandwidth, got {self.bandwidth}: leave it None")
            if not 0 < self.bandwidth < math.inf:
                raise ValueError(f"expected a positive, finite bandwidth, or None for the median, got {self.bandwidth}")

    def seen(self, cloud: Cloud, origin: Cloud | None = None) -> list[Tensor]:
        """Members as this kernel sees them: from the first of them (or of `origin`), where only distances count."""
        if self.word == "linear":
            return list(cloud)
        return [x - o[:1] for x, o in zip(cloud, cloud if origin is None else origin)]

    def pairs(self, cloud: Cloud) -> Pairs:
        """The kernel among members, which are as `seen`."""
        if self.word == "linear":
            values = inner(cloud, cloud) + 1
            return Pairs(values, len(values) * torch.eye(len(values), dtype=values.dtype, device=values.device))
        squares = squared_distances(cloud)
        values, slope = self._radial(squares, self._square_bandwidth(squares))
        return Pairs(values, 2 * (slope - torch.diag(slope.sum(1))))

    def between(self, queries: Cloud, cloud: Cloud) -> Tensor:
        """k(q_i, x_j), (Q, M), with the bandwidth that the members x have; both as `seen` from the first x."""
        if self.word == "linear":
            return inner(queries, cloud) + 1
        square = self._square_bandwidth(squared_distances(cloud))
        return self._radial(squared_distances(queries, cloud), square)[0]

    def _square_bandwidth(self, squares: Tensor) -> Tensor:
        if self.bandwidth is None:
            return wide_bandwidth(squares) if self.wide else median_bandwidth(squares)
        return torch.full((), self.bandwidth**2, dtype=squares.dtype, device=squares.device)

    def _radial(self, squares: Tensor, bandwidth: Tensor) -> tuple[Tensor, Tensor]:
        """Value and derivative as a function of the squared distance."""
        scaled = squares / bandwidth
        if self.word == "rbf":
            values = (-0.5 * scaled).exp()
            return values, -0.5 * values / bandwidth
        values = (1 + scaled).rsqrt()
        return values, -0.5 * values.pow(3) / bandwidth


def median_bandwidth(squares: Tensor) -> Tensor:
    """h^2 = median / (2 log(M + 1)) of all M^2 squared distances, those of members to themselves included (Liu & Wang
    2016): with few members narrow, so that these feel only their neighbours."""
    return _median(squares.flatten().sort().values) / (2 * math.log(len(squares) + 1))


def wide_bandwidth(squares: Tensor) -> Tensor:
    """h^2 = the median squared distance of different members."""
    ordered = squares.flatten().sort().values
    return _median(ordered[len(squares) :] if len(squares) > 1 else ordered)  # the diagonal comes first


def _median(ordered: Tensor) -> Tensor:
    """Midway where the count is even; never quite zero, so that members that are equal can divide by it."""
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
    return median.clamp(min=torch.finfo(ordered.dtype).tiny ** 0.5)


def squared_distances(cloud: Cloud, others: Cloud | None = None) -> Tensor:
    """(M, M), exactly zero on the diagonal and symmetric; or (M, M') to others."""
    if others is not None:
        products = inner(cloud, others)
        return (_square_norms(cloud)[:, None] + _square_norms(others)[None, :] - 2 * products).clamp(min=0.0)
    products = inner(cloud, cloud)
    products = 0.5 * (products + products.T)
    norms = products.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * products).clamp(min=0.0)


def inner(cloud: Cloud, others: Cloud) -> Tensor:
    """x_i'y_j, (M, M')."""
    parts = [_rows(x) @ _rows(y).T for x, y in zip(cloud, others)]
    return torch.stack(parts).sum(0)


def mixed(matrix: Tensor, cloud: Cloud, plus: Cloud | None = None) -> list[Tensor]:
    """sum_j A_ij x_j, piece by piece, added to other pieces where these are given."""
    rows = [_rows(x) for x in cloud]
    products = (
        [matrix @ x for x in rows] if plus is None else [torch.addmm(_rows(y), matrix, x) for x, y in zip(rows, plus)]
    )
    return [y.reshape(len(matrix), *x.shape[1:]) for x, y in zip(cloud, products)]


def _square_norms(cloud: Cloud) -> Tensor:
    return torch.stack([_rows(x).square().sum(1) for x in cloud]).sum(0)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1)
