"""How the members of an ensemble differ: in classes, in probabilities, in errors, in what they look at.

Members are on an axis M before that of the examples B; axes before it (subsets) are kept. Measures of pairs are
matrices (..., M, M), and `mean_of_pairs` makes one number of them. A member with NaN has NaN in its row and column.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks


def mean_of_pairs(matrix: Tensor) -> Tensor:
    """Mean over ordered pairs of different members, (1 / M(M − 1)) Σ_{i ≠ j} matrix_ij, from (..., M, M).

    >>> mean_of_pairs(torch.tensor([[9.0, 1.0], [3.0, 9.0]])).item()
    2.0
    """
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(
            f"expected a matrix of pairs (..., M, M), got {tuple(matrix.shape)}: "
            "pass the result of disagreement, pairwise_kl, error_correlation or gradient_cosine"
        )
    checks.floats("matrix", matrix)
    m = _several(matrix.shape[-1])
    same = torch.eye(m, dtype=torch.bool, device=matrix.device)
    return torch.where(same, 0.0, matrix).sum((-2, -1)) / (m * (m - 1))


def disagreement(probs: Tensor) -> Tensor:
    """Share of examples on which two members choose different classes, (1/B) Σ_b 1[argmax p_i ≠ argmax p_j].

    From (..., M, B, C) to (..., M, M), zero on the diagonal. Of tied classes the first is chosen; logits serve as well.

    >>> disagreement(torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])).tolist()
    [[0.0, 0.5], [0.5, 0.0]]
    """
    _check_tables("probs", probs)
    top = probs.argmax(-1)  # (..., M, B)
    rows = [(top[..., i : i + 1, :] != top).to(probs.dtype).mean(-1) for i in range(top.shape[-2])]
    return _nan_kept(torch.stack(rows, -2), probs.isnan().any(-1).any(-1))


def pairwise_kl(log_probs: Tensor, symmetric: bool = False) -> Tensor:
    """Divergence of one member's predictions from another's, (1/B) Σ_b Σ_c p_ib(c) log(p_ib(c) / p_jb(c)), in nats.

    From log-probabilities (..., M, B, C) to (..., M, M), KL(p_i‖p_j) in row i and column j, zero on the diagonal.
    `symmetric` adds the two directions, KL(p_i‖p_j) + KL(p_j‖p_i). It is infinite where p_j excludes what p_i does not.

    Certainty and a fair coin: log 2 the one way and infinite the other.

    >>> pairwise_kl(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]).log()).exp().tolist()
    [[1.0, 2.0], [inf, 1.0]]
    """
    _check_tables("log_probs", log_probs)
    checks.log_probabilities(log_probs)
    rows = []
    for i in range(log_probs.shape[-3]):
        own = log_probs[..., i : i + 1, :, :]  # (..., 1, B, C)
        p = own.exp()
        rows.append(torch.where(p == 0, 0.0, p * (own - log_probs)).sum(-1).mean(-1))
    matrix = torch.stack(rows, -2)
    if symmetric:
        matrix = matrix + matrix.mT
    return _nan_kept(matrix, log_probs.isnan().any(-1).any(-1))


def error_correlation(errors: Tensor) -> Tensor:
    """Pearson correlation over the examples of two members' errors, from (..., M, B) to (..., M, M).

    Errors are residuals, or 0 and 1 for right and wrong. A member whose errors are all equal has no correlation: NaN.

    >>> error_correlation(torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])).tolist()
    [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    _check_errors("errors", errors)
    varied = errors.amax(-1) > errors.amin(-1)  # rounding of the mean would give equal errors a variance
    centred = errors.double() - errors.double().mean(-1, keepdim=True)
    centred = centred / centred.abs().amax(-1, keepdim=True)  # squares neither vanish nor overflow
    unit = centred / centred.square().sum(-1, keepdim=True).sqrt()
    matrix = (unit @ unit.mT).clamp(-1, 1).to(errors.dtype)
    return _nan_kept(matrix, ~varied)


class ErrorParts(NamedTuple):
    """The parts v and c of the squared error of ensembles.

    >>> ErrorParts(torch.tensor(1.0), torch.tensor(0.5)).at(4).item()  # (1 + 3 · 0.5) / 4
    0.625
    """

    v: Tensor  # (...), mean squared error of one member
    c: Tensor  # (...), mean product of the errors of two members: what averaging cannot remove

    def at(self, n: int) -> Tensor:
        """Squared error of the mean of n members, (v + (n − 1) c) / n; it falls to c as n grows."""
        if n < 1:
            raise ValueError(f"expected an ensemble of at least 1 member, got {n}: at(1) is the error of one member")
        return (self.v + (n - 1) * self.c) / n


def error_parts(residuals: Tensor) -> ErrorParts:
    """v = (1/MB) Σ_ib r_ib² and c = (1/M(M−1)B) Σ_{i≠j} Σ_b r_ib r_jb of residuals r (..., M, B).

    Residuals are predictions less targets. Products are not centred, so bias is part of both, and (v + (n − 1) c)/n is
    exact: it is the squared error of the mean prediction of n ≤ M of these members, averaged over all choices of n, and
    that of the whole ensemble at n = M. Beyond M it is what more members of the same kind would give.

    Errors that cancel: v = 1, c = −1, and two members together make none.

    >>> parts = error_parts(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    >>> parts.at(1).item(), parts.c.item(), parts.at(2).item()
    (1.0, -1.0, 0.0)
    """
    _check_errors("residuals", residuals)
    m, r = _several(residuals.shape[-2]), residuals.double()
    own = r.square().sum(-2)  # (..., B)
    pairs = r.sum(-2).square() - own
    v, c = own.mean(-1) / m, pairs.mean(-1) / (m * (m - 1))
    return ErrorParts(v=v.to(residuals.dtype), c=c.to(residuals.dtype))


def gradient_cosine(gradients: Tensor) -> Tensor:
    """Cosine between members' gradients with respect to the inputs, (1/B) Σ_b ⟨g_ib, g_jb⟩ / (‖g_ib‖ ‖g_jb‖).

    From (M, B, ...), where all axes after B belong to the input, to (M, M). A gradient that is exactly zero has no
    direction and counts 0, with itself too.

    >>> gradient_cosine(torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]], [[-3.0, 0.0]]])).tolist()
    [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    if gradients.ndim < 3 or gradients.numel() == 0:
        raise ValueError(
            f"expected gradients of shape (M, B, ...) with the axes of the input last, got {tuple(gradients.shape)}: "
            "add an axis of length 1 to scalar inputs"
        )
    checks.floats("gradients", gradients)
    flat = gradients.flatten(2)  # (M, B, F)
    largest = flat.abs().amax(-1, keepdim=True)
    scaled = flat / torch.where(largest == 0, 1.0, largest)  # gradients of saturated networks have squares of zero
    norm = scaled.square().sum(-1, keepdim=True).sqrt()
    unit = (scaled / torch.where(norm == 0, 1.0, norm)).flatten(1)
    return (unit @ unit.mT / gradients.shape[1]).clamp(-1, 1)


def _nan_kept(matrix: Tensor, broken: Tensor) -> Tensor:
    """NaN in the rows and columns of broken members (..., M)."""
    return torch.where(broken.unsqueeze(-1) | broken.unsqueeze(-2), torch.nan, matrix)


def _several(members: int) -> int:
    if members < 2:
        raise ValueError(f"expected at least 2 members, got {members}: one member alone has no pairs")
    return members


def _check_tables(name: str, values: Tensor) -> None:
    if values.ndim < 3 or 0 in values.shape[-3:]:
        raise ValueError(
            f"expected {name} of shape (..., M, B, C) with a member, an example and a class at least, got "
            f"{tuple(values.shape)}: stack the members before the examples"
        )
    checks.floats(name, values)


def _check_errors(name: str, values: Tensor) -> None:
    if values.ndim < 2 or 0 in values.shape[-2:]:
        raise ValueError(
            f"expected {name} of shape (..., M, B) with a member and an example at least, got {tuple(values.shape)}: "
            "stack the members before the examples, and flatten several outputs into the axis of examples"
        )
    checks.floats(name, values)
