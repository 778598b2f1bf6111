"""How a normal distribution changes with what a batch says of it: the linear algebra of all filters.

A batch, linearised, says that the precision grows by A'A, A (k, P), and that the mean solves L' (mean' - mean) = push
with the new precision L'. Full and low-rank forms keep what follows; the diagonal ones keep the closest that they can:

    full        L' = L + A'A
    diagonal    diag(L'), the closest in KL(q, p): what mean-field variational inference gives
    decoupled   the diagonal of the covariance L'^-1, the closest in KL(p, q): the fully decoupled filter
    low rank    the largest directions of L' - diag, and the diagonal of the others (LOFI, Chang et al. 2023)

All is computed in doubles, since I + A S A' has the range of what the prior knows less than the batch, squared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.tree import Params, ravel, unravel
from ..families import Diagonal, Full, LowRankPrecision


def full(before: Full, rows: Tensor, push: Tensor) -> Full:
    """With F F' the covariance, the new one is F (I + F'A'A F)^-1 F': never a difference."""
    wide = before.factor.double()
    factor = factor_over(wide, _plus_identity((rows.double() @ wide).mT))
    step = factor @ (factor.mT @ push.double())
    return Full(moved(before.centre, step), factor.to(before.factor), before.buffers)


def factor_over(factor: Tensor, inner: Tensor) -> Tensor:
    """The lower triangular G with G G' = F inner^-1 F', of a lower triangular F: with inner = U U', U upper triangular,
    F U^-T."""
    upper = torch.linalg.cholesky(inner.flip(0, 1)).flip(0, 1)
    return torch.linalg.solve_triangular(upper.mT, factor, upper=False, left=False)


def diagonal(before: Diagonal, rows: Tensor, push: Tensor, decoupled: bool) -> Diagonal:
    """Both kinds have the mean of the exact update."""
    scale = _row(before.scale, before.centre).double()
    whitened, along = rows.double() * scale, scale * push.double()
    if len(rows) <= len(scale):
        root = torch.linalg.cholesky(_plus_identity(whitened))
        half = torch.linalg.solve_triangular(root, whitened, upper=False)
        step, kept = along - half.mT @ (half @ along), 1 - half.square().sum(0)
    else:
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(_plus_identity(whitened.mT)))
        step, kept = inverse @ along, inverse.diagonal()
    tiny = torch.finfo(scale.dtype).eps
    factor = kept.clamp(min=tiny).sqrt() if decoupled else (1 + whitened.square().sum(0)).rsqrt()
    new = unravel((scale * factor).to(push), before.centre)
    return Diagonal(moved(before.centre, scale * step), new, before.buffers)


def low_rank(before: LowRankPrecision, rows: Tensor, push: Tensor) -> LowRankPrecision:
    """As many columns as before: the largest, by singular values; the others add their squares to the diagonal, so
    that the diagonal of the precision is the exact one."""
    base = _row(before.precision, before.centre).double()
    columns = ravel({n: before.columns[n] for n in before.centre}, 1)
    joined = torch.cat([columns, rows]).double()
    root = base.sqrt()
    whitened, along = joined / root, push.double() / root
    if len(joined) <= len(base):
        factor = torch.linalg.cholesky(_plus_identity(whitened))
        half = torch.linalg.solve_triangular(factor, whitened, upper=False)
        step = along - half.mT @ (half @ along)
    else:
        factor = torch.linalg.cholesky(_plus_identity(whitened.mT))
        step = torch.cholesky_solve(along.unsqueeze(-1), factor).squeeze(-1)
    _, sizes, directions = torch.linalg.svd(joined, full_matrices=False)
    every, count = sizes.unsqueeze(-1) * directions, len(columns)
    precision = unravel((base + every[count:].square().sum(0)).to(columns), before.centre)
    kept = columns_of(every[:count].to(columns), before.centre)
    return LowRankPrecision(moved(before.centre, step / root), precision, kept, before.buffers)


def _plus_identity(x: Tensor) -> Tensor:
    """I + x x'."""
    return x @ x.mT + torch.eye(len(x), dtype=x.dtype, device=x.device)


def _row(params: Params, like: Params) -> Tensor:
    """As one vector, in the order of `like`."""
    return ravel({n: params[n] for n in like})


def moved(centre: Params, step: Tensor) -> Params:
    """A mean that has gone a step (P,), in its own type."""
    steps = unravel(step, centre)
    return {n: c + steps[n].to(c) for n, c in centre.items()}


def columns_of(rows: Tensor, like: Params) -> Params:
    """Rows (K, P) in the shapes of params, leaves (K, ...)."""
    parts = rows.split([x.numel() for x in like.values()], 1)
    return {n: part.reshape(len(rows), *x.shape) for (n, x), part in zip(like.items(), parts)}
