"""The score of the members' own density q, grad log q(x_i), estimated only from the members.

With K the kernel's matrix and B_i = sum_j grad_{x_j} k(x_j, x_i), each estimate is a matrix times the members:

    kde    grad log sum_j k(x, x_j):            -B_i / sum_j K_ij
    sge    Stein (Li & Turner 2018):            -(K + eta I)^-1 B
    ssge   spectral Stein (Shi et al. 2018):    -k(x, X) (K + eta I)^-2 B

The last is the usual form, sum_j beta_j psi_j(x) with psi_j(x) = sqrt(M) / lambda_j sum_m u_jm k(x, x_m) and beta_j =
-mean_m grad psi_j(x_m), with all eigenpairs (lambda_j, u_j) of K + eta I kept: then they need not be computed.

Where eta is too small for the precision at hand (members that are equal, a linear kernel of large weights), 8 M eps max
K_ii is added in its place, which a Cholesky factorisation survives whatever the members are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from .kernels import Cloud, Kernel, Pairs, mixed

ESTIMATES = ("kde", "sge", "ssge")
RIDGE = 0.01  # eta of the reference implementation


def check_estimate(word: str, kernel: Kernel) -> None:
    """Raises for a word that is none of them, and for a density whose kernel is none."""
    if word not in ESTIMATES:
        raise ValueError(f"unknown estimate of the score {word!r}.{did_you_mean(word, ESTIMATES)}")
    if word == "kde" and kernel.word == "linear":
        raise ValueError("kernel 'linear' is not a density, which estimate='kde' needs: use 'rbf' or 'imq', or 'sge'")


def score_matrix(word: str, pairs: Pairs, ridge: float = RIDGE) -> Tensor:
    """(M, M), A with score_i = sum_j A_ij x_j at the members."""
    if word == "kde":
        return -pairs.slopes / pairs.values.sum(1, keepdim=True)
    once = _solve(pairs.values, pairs.slopes, ridge)
    return -once if word == "sge" else -pairs.values @ _solve(pairs.values, once, ridge)


def score_at(queries: Cloud, cloud: Cloud, kernel: Kernel, ridge: float = RIDGE) -> list[Tensor]:
    """The score of the density of which `cloud` is a sample, at other places, by ssge: pieces (Q, ...)."""
    members = kernel.seen(cloud)
    pairs = kernel.pairs(members)
    twice = _solve(pairs.values, _solve(pairs.values, pairs.slopes, ridge), ridge)
    return mixed(-kernel.between(kernel.seen(queries, cloud), members) @ twice, members)


def _solve(values: Tensor, right: Tensor, ridge: float) -> Tensor:
    """(K + eta I)^-1 right."""
    least = 8 * len(values) * torch.finfo(values.dtype).eps * values.diagonal().amax()
    identity = torch.eye(len(values), dtype=values.dtype, device=values.device)
    factor = torch.linalg.cholesky_ex(values + least.clamp(min=ridge) * identity).L
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    return torch.linalg.solve_triangular(factor.T, half, upper=True)
