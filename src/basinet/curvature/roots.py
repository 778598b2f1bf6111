"""The curvature of -log p in the outputs of a network, example by example, as a factor: H = S S'.

Columns of S go back through the network, some at a time, so that nothing of the size outputs x outputs is made. For a
softmax, S is the Cholesky factor of diag(p) - p p' (Tanabe and Sagae 1992), a column less than there are classes: with
q_c = p_(c+1) + ... + p_C,  S_cc = sqrt(p_c q_c / (p_c + q_c)) and S_ic = -S_cc p_i / q_c for i > c. Labels drawn from
the likelihood itself give H in expectation from few columns; the targets' own gradients give the empirical Fisher
information.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params
from ..problem.likelihoods import Categorical, Likelihood


class Root(ABC):
    """H_n = S_n S_n' of each of B examples; the E outputs of an example are one axis."""

    count: int  # of columns of S

    @abstractmethod
    def columns(self, begin: int, end: int) -> Tensor:
        """Some columns of every S_n, (K, B, E)."""

    @abstractmethod
    def matrices(self) -> Tensor:
        """Every H_n, (B, E, E)."""

    @abstractmethod
    def apply(self, vectors: Tensor) -> Tensor:
        """H_n v_n for vectors (B, E)."""

    @abstractmethod
    def gram(self) -> Tensor:
        """The sum of all H_n, (E, E)."""

    @abstractmethod
    def diagonal(self, basis: Tensor | None = None) -> Tensor:
        """The diagonal of every H_n, or of U' H_n U, (B, E)."""


class Softmax(Root):
    """diag(p) - p p' at each place of outputs (B, *places, C), times a weight. Differences are taken in doubles: of a
    network that is nearly certain, little else is left of them in single precision."""

    def __init__(self, outputs: Tensor, weights: Tensor | None) -> None:
        self.outputs = outputs.flatten(1, -2) if outputs.dim() > 2 else outputs.unsqueeze(1)
        self.p = self.outputs.softmax(-1)
        b, places, classes = self.p.shape  # (B, T, C)
        w = torch.ones_like(self.p[..., 0]) if weights is None else weights.to(self.p).reshape(b, -1).expand(b, places)
        self.w, self.each = w, max(1, classes - 1)  # columns of a place
        self.count = places * self.each

    def columns(self, begin: int, end: int) -> Tensor:
        number = torch.arange(begin, end, device=self.p.device)
        t, c = number // self.each, number % self.each
        p, tiny = self.p.movedim(0, 1)[t], torch.finfo(self.p.dtype).tiny  # (K, B, C)
        classes = torch.arange(p.shape[-1], device=p.device)
        rest = p * (classes > c[:, None])[:, None]  # p_i of those after c
        order = number - begin
        own, after = p[order, :, c], rest.sum(-1)  # p_c and q_c, (K, B)
        root = (self.w.mT[t] * own * after / (own + after).clamp(min=tiny)).sqrt()
        column = rest * (-root / after.clamp(min=tiny)).unsqueeze(-1)
        column[order, :, c] = root
        if self.p.shape[1] == 1:
            return column
        whole = column.new_zeros(len(c), *self.p.shape)
        whole[order, :, t] = column
        return whole.flatten(2)

    def matrices(self) -> Tensor:
        p = self._exact()
        blocks = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        blocks = (blocks * self.w[..., None, None]).to(self.p)
        if self.p.shape[1] == 1:
            return blocks[:, 0]
        return torch.stack([torch.block_diag(*example) for example in blocks])

    def apply(self, vectors: Tensor) -> Tensor:
        v = vectors.reshape(self.p.shape)
        scaled = self.p * self.w.unsqueeze(-1)
        return (scaled * (v - (self.p * v).sum(-1, keepdim=True))).flatten(1)

    def gram(self) -> Tensor:
        if self.p.shape[1] > 1:
            return self.matrices().sum(0)
        p, w = self._exact()[:, 0], self.w.double()
        return torch.diag((w * p).sum(0)) - (w * p).mT @ p

    def diagonal(self, basis: Tensor | None = None) -> Tensor:
        p = self._exact()
        if basis is None:
            return (self.w.unsqueeze(-1) * p * (1 - p)).flatten(1).to(self.p)
        p, basis = p[:, 0], basis.double()
        return (self.w * (p @ basis.square() - (p @ basis).square())).to(self.p)

    def _exact(self) -> Tensor:
        """The probabilities in doubles, (B, T, C)."""
        return self.outputs.double().softmax(-1)


class Factor(Root):
    """Any S (B, E, K)."""

    def __init__(self, factor: Tensor) -> None:
        self.factor, self.count = factor, factor.shape[-1]

    def columns(self, begin: int, end: int) -> Tensor:
        return self.factor[..., begin:end].movedim(-1, 0)

    def matrices(self) -> Tensor:
        return self.factor @ self.factor.mT

    def apply(self, vectors: Tensor) -> Tensor:
        return torch.einsum("bek,bfk,bf->be", self.factor, self.factor, vectors)

    def gram(self) -> Tensor:
        flat = self.factor.movedim(1, 2).flatten(0, 1)
        return flat.mT @ flat

    def diagonal(self, basis: Tensor | None = None) -> Tensor:
        rotated = self.factor if basis is None else basis.mT @ self.factor
        return rotated.square().sum(-1)


class Matrix(Root):
    """Any symmetric H (B, E, E), which need not be positive: it has no columns."""

    count = 0

    def __init__(self, matrices: Tensor) -> None:
        self.h = matrices

    def columns(self, begin: int, end: int) -> Tensor:
        raise ValueError("a Hessian that may be negative has no factor")

    def matrices(self) -> Tensor:
        return self.h

    def apply(self, vectors: Tensor) -> Tensor:
        return (self.h @ vectors.unsqueeze(-1)).squeeze(-1)

    def gram(self) -> Tensor:
        return self.h.sum(0)

    def diagonal(self, basis: Tensor | None = None) -> Tensor:
        if basis is None:
            return self.h.diagonal(dim1=-2, dim2=-1)
        return torch.einsum("ek,bef,fk->bk", basis, self.h, basis)


def expected(likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None, learned: Params) -> Root:
    """The Fisher information of the likelihood, exactly: what the generalised Gauss-Newton matrix is made of."""
    if type(likelihood) is Categorical:
        return Softmax(outputs, weights)
    try:
        h = likelihood.hessian(outputs, None, learned)
    except ValueError:  # it depends on the target, or has no formula
        h = likelihood.hessian(outputs, targets, learned)
    h = _weighted(h, outputs, weights)
    values = h.diagonal(dim1=-2, dim2=-1)
    if torch.equal(h, torch.diag_embed(values)):
        return Factor(torch.diag_embed(_positive(values, likelihood).sqrt()))
    values, vectors = torch.linalg.eigh(h)
    return Factor(vectors * _positive(values, likelihood).sqrt().unsqueeze(-2))


def exact(likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None, learned: Params) -> Root:
    """The Hessian at the targets themselves, which may be negative."""
    if type(likelihood) is Categorical:
        return Softmax(outputs, weights)
    return Matrix(_weighted(likelihood.hessian(outputs, targets, learned), outputs, weights))


def empirical(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None, learned: Params
) -> Root:
    """The gradient of each example's own target as the one column."""
    return Factor(_gradient(likelihood, outputs, targets, weights, learned).unsqueeze(-1))


def sampled(
    likelihood: Likelihood, outputs: Tensor, weights: Tensor | None, learned: Params, labels: int, noise: Noise
) -> Root:
    """As many columns as labels are drawn from the likelihood: the expected H, unbiased."""
    drawn = [likelihood.sample(outputs, learned, noise.split(k)) for k in range(labels)]
    columns = [_gradient(likelihood, outputs, y, weights, learned) for y in drawn]
    return Factor(torch.stack(columns, -1) / labels**0.5)


def _gradient(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None, learned: Params
) -> Tensor:
    """d(-log p) / d(outputs), (B, E), such that its square has the examples' weights."""

    def energy(f: Tensor) -> Tensor:
        each = likelihood.log_density(f, targets, learned)
        if weights is None:
            return -each.sum()
        root = weights.to(each).sqrt()  # squared by whoever squares gradients
        return -(root.reshape(root.shape + (1,) * (each.dim() - root.dim())) * each).sum()

    return torch.func.grad(energy)(outputs).reshape(len(outputs), -1)


def _weighted(h: Tensor, outputs: Tensor, weights: Tensor | None) -> Tensor:
    """H (B, E, E) with the weights of examples, or of the elements of targets."""
    if weights is None:
        return h
    weights = weights.to(h)
    if weights.dim() == 1:
        return h * weights[:, None, None]
    if weights.dim() == outputs.dim() and outputs.shape[-1] == 2 * weights.shape[-1]:  # mean and scale
        weights = torch.cat([weights, weights], -1)
    elif weights.dim() < outputs.dim():
        weights = weights.reshape(*weights.shape, *(1,) * (outputs.dim() - weights.dim()))
    root = weights.expand(outputs.shape).flatten(1).sqrt()
    return h * root.unsqueeze(-1) * root.unsqueeze(-2)


def _positive(values: Tensor, likelihood: Likelihood) -> Tensor:
    """Eigenvalues of a matrix that is positive but for rounding."""
    least = -1e-5 * values.abs().amax(-1, keepdim=True)
    if bool((values < least).any()):
        raise ValueError(
            f"the Hessian of {type(likelihood).__name__} in the outputs is negative for some targets, and it has no "
            "expected one: use curvature='fisher'"
        )
    return values.clamp(min=0)
