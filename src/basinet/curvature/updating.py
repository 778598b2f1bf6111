"""From curvature and a normal prior with any covariance to a normal posterior: what sequential Laplace adds up.

    full        precision = share H + that of the prior, exactly
    diagonal    the same for each element, from a prior of independent parameters
    kronecker   bases that diagonalise the partial traces of the sum of both, and the sum's own diagonal in them: exact
                where both have one basis, as for a matrix with one output
    low rank    the largest directions of the sum; the rest of it is spread over all others, so that the trace stays

For a fixed basis the diagonal of a precision is the closest in KL(q, p). A prior of independent parameters (Diagonal)
is one of every structure's own family.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.tree import Params, move, ravel, take, unravel
from ..families import Delta, Diagonal, Eigen, Family, Full, Kronecker, Mixture, Partial
from ..families.kronecker import matrix
from ..problem.priors import FromFamily
from .gaussians import Curved, CurvedDiagonal, CurvedFull, CurvedKronecker, CurvedLowRank, inverse_factor, positive
from .passes import Pass, Passes


@singledispatch
def updated(curved: Curved, prior: Family, centre: Params, share: float, buffers: Params) -> Family:
    """N(centre, (share H + precision of the prior)^-1), in the structure of the curvature."""
    raise TypeError(f"expected curvature in one of four structures, got {type(curved).__name__}")


@updated.register
def _(curved: CurvedFull, prior: Family, centre: Params, share: float, buffers: Params) -> Full:
    before = torch.linalg.cholesky(covariance_of(prior, centre).double())
    precision = torch.cholesky_inverse(before) + share * curved.curvature.values
    factor = inverse_factor(precision, ", ".join(centre))
    return Full(centre, factor.to(next(iter(centre.values()))), buffers)


@updated.register
def _(curved: CurvedDiagonal, prior: Family, centre: Params, share: float, buffers: Params) -> Diagonal:
    if not isinstance(prior, Diagonal):
        raise _other(prior, "diagonal", "Diagonal")
    before = {n: prior.scale[n].double() ** -2 for n in centre}
    precision = {n: positive(share * h + before[n], n) for n, h in curved.curvature.values.items()}
    return Diagonal(centre, {n: precision[n].rsqrt().to(c) for n, c in centre.items()}, buffers)


@updated.register
def _(curved: CurvedKronecker, prior: Family, centre: Params, share: float, buffers: Params) -> Kronecker:
    if isinstance(prior, Diagonal):
        prior = Kronecker(prior.centre, {}, {}, {n: matrix(s).square() for n, s in prior.scale.items()}, buffers)
    if not isinstance(prior, Kronecker):
        raise _other(prior, "kronecker' or 'eigen-corrected", "Kronecker, or a Diagonal")
    left, right, variance = {}, {}, {}
    for n, c in centre.items():
        old = _TensorPrecision(prior.left.get(n), prior.right.get(n), prior.variance[n].double().reciprocal())
        new = _TensorPrecision(curved.left.get(n), curved.right.get(n), share * curved.values[n].double())
        across = _common(old.values.sum(1), old.left, new.values.sum(1), new.left)
        along = _common(old.values.sum(0), old.right, new.values.sum(0), new.right)
        if across is not None:
            left[n] = across.to(c)
        if along is not None:
            right[n] = along.to(c)
        precision = old.seen_in(across, along) + new.seen_in(across, along)
        variance[n] = positive(precision, n).reciprocal().to(c)
    return Kronecker(centre, left, right, variance, buffers)


@updated.register
def _(curved: CurvedLowRank, prior: Family, centre: Params, share: float, buffers: Params) -> Eigen:
    basis, values = curved.curvature.basis, curved.curvature.values
    rows = ravel({n: basis[n].double() for n in centre}, 1) * (share * values).sqrt()[:, None]
    if isinstance(prior, Diagonal):
        scales = ravel({n: prior.scale[n] for n in centre}).double()
        if bool((scales != scales[0]).any()):
            raise ValueError(
                "structure='low-rank' has one prior precision for all parameters, got several: use a Normal prior of "
                "one scale, or another structure"
            )
        rest, kept = scales[0] ** -2, len(rows)
    elif isinstance(prior, Eigen):
        rest, kept = prior.precision.double(), len(prior.variance)
        more = (prior.variance.double().reciprocal() - rest).clamp(min=0).sqrt()[:, None]
        rows = torch.cat([ravel({n: prior.basis[n].double() for n in centre}, 1) * more, rows])
    else:
        raise _other(prior, "low-rank", "Eigen, or a Diagonal of one scale")
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    squares, others = sizes.square(), max(1, rows.shape[1] - kept)
    precision = rest + squares[kept:].sum() / others
    like = next(iter(centre.values()))
    basis = {n: torch.stack(parts) for n, parts in _by_name(directions[:kept], centre).items()}
    variance = (rest + squares[:kept]).reciprocal()
    return Eigen(centre, {n: x.to(like) for n, x in basis.items()}, variance.to(like), precision.to(like), buffers)


def under_family(passes: Passes, curved: Curved, run: Pass) -> tuple[Family, float]:
    """The posterior of the parameters of a pass under a prior that is a family over them, and its log evidence: that of
    the likelihood, and log prior less log posterior at their mode."""
    problem, centre, buffers = passes.problem, passes.params, passes.point.buffers
    assert isinstance(problem.prior, FromFamily)
    like = next(iter(centre.values()))
    prior = one_of(problem.prior.family, like).scaled(problem.prior_temperature)
    rest = {n: x for n, x in passes.point.params.items() if n not in centre}
    part = updated(curved, prior, centre, problem.shares[0], {} if rest else buffers)
    evidence = problem.shares[0] * run.log_likelihood + float(prior.log_prob(centre) - part.log_prob(centre))
    return (Partial(Delta(rest, buffers), part) if rest else part), evidence


def one_of(family: Any, like: Tensor) -> Any:
    """A family on the device and in the type of a tensor; of a mixture of one, that one."""
    family = move(family, like.device, like.dtype)
    return take(family.components, 0) if isinstance(family, Mixture) and len(family.weights) == 1 else family


def covariance_of(family: Family, like: Params) -> Tensor:
    """That of a Gaussian family, (P, P), in the order of `like`."""
    total = sum(x.numel() for x in like.values())
    first = next(iter(like.values()))
    identity = torch.eye(total, dtype=first.dtype, device=first.device)
    return family.quad(lift(lambda row: unravel(row, like))(identity))


class _TensorPrecision(NamedTuple):
    """A precision (L x R) diag(values) (L x R)' of one tensor; None is the identity."""

    left: Tensor | None
    right: Tensor | None
    values: Tensor  # (o, i)

    def seen_in(self, left: Tensor | None, right: Tensor | None) -> Tensor:
        """Its diagonal in other bases, (o, i)."""
        turned = self.values
        across, along = _squares(left, self.left), _squares(right, self.right)
        turned = turned if across is None else across @ turned
        return turned if along is None else turned @ along.mT


def _common(old: Tensor, old_basis: Tensor | None, new: Tensor, new_basis: Tensor | None) -> Tensor | None:
    """The eigenvectors of the sum of two matrices that are diagonal in bases of their own; None: the identity."""
    if old_basis is None and new_basis is None:
        return None
    both = torch.zeros(len(old), len(old), dtype=torch.float64, device=old.device)
    for values, basis in ((old, old_basis), (new, new_basis)):
        both = both + (torch.diag(values) if basis is None else (basis.double() * values) @ basis.double().mT)
    return torch.linalg.eigh(both)[1]


def _squares(new: Tensor | None, old: Tensor | None) -> Tensor | None:
    """Squared cosines between the vectors of two bases, (new, old); None: both are the identity."""
    if new is None:
        return None
    turned = new.double().mT if old is None else new.double().mT @ old.double()
    return turned.square()


def _by_name(rows: Tensor, like: Params) -> dict[str, list[Tensor]]:
    each = [unravel(row, like) for row in rows]
    return {n: [one[n] for one in each] for n in like}


def _other(prior: Family, structure: str, expected: str) -> ValueError:
    return ValueError(
        f"structure='{structure}' continues from a {expected}, and the prior is a {type(prior).__name__}: use "
        "structure='full', or the structure that the prior was made with"
    )
