"""The prior's share of the ELBO: its expected energy under independent normals.

    E_q[-log p] = sum ((m - c)^2 + s^2) / (2 scale^2) + log scale + log(2 pi) / 2     for a normal prior
                ~ -log p(m + s e)                                                     for any other, one draw per step

With factors f of a normal prior's precision that the ELBO itself chooses (empirical Bayes), those of a group of P
elements are f = P / sum ((m - c)^2 + s^2) / scale^2, in closed form at every step: the ELBO is at its maximum in them.
A tensor that is a point has no factor of its own: under a prior that shrinks with it, it would go to zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, ravel
from ..families import Diagonal
from ..problem import Problem
from ..problem.priors import FromFamily, Normal, Prior

Tuned = Literal["elbo", "layers"]


class Gaussian(NamedTuple):
    """A prior of independent normals."""

    centre: Params  # without names whose mean is zero
    scale: dict[str, Tensor | float]


def gaussian(prior: Prior, params: Params) -> Gaussian | None:
    """The prior as independent normals over params; None where it is none."""
    if isinstance(prior, Normal):
        given = prior.centre or {}
        return Gaussian({n: x.to(params[n]) for n, x in given.items() if n in params}, dict(prior.scales(params)))
    if isinstance(prior, FromFamily) and type(prior.family) is Diagonal:
        centre = {n: prior.family.centre[n].to(x) for n, x in params.items()}
        return Gaussian(centre, {n: prior.family.scale[n].to(x) for n, x in params.items()})
    return None


def expected_energy(prior: Prior, centre: Params, scale: Params, noise: Noise) -> Tensor:
    """E_q[-log p], (). `centre` are the network's params, `scale` the standard deviations of those that are random."""
    known = gaussian(prior, centre)
    if known is None:
        z = noise.split("prior").normal_params({n: centre[n] for n in scale})
        drawn = centre | {n: centre[n] + s * z[n] for n, s in scale.items()}
        return prior.energy(drawn) + prior.log_normaliser(centre)
    offset = {n: x - known.centre[n] if n in known.centre else x for n, x in centre.items()}
    energy = _energy(offset, known)
    if scale:
        energy = energy + _energy(scale, known)
    return energy + _constant(known, centre)


def tuned_energy(prior: Prior, centre: Params, scale: Params, tuned: Tuned) -> Tensor:
    """The same at the factors of the precision that are best: sum over groups of P/2 (1 - log f)."""
    known = gaussian(prior, centre)
    assert known is not None  # check has seen to it
    each, count = squares(known, centre, scale), {n: x.numel() for n, x in centre.items()}
    if tuned == "elbo":
        each, count = {"": torch.stack(list(each.values())).sum()}, {"": sum(count.values())}
    learned = {n: 0.5 * count[n] * (1 - (count[n] / x).log()) for n, x in each.items() if n in scale or not n}
    fixed = [0.5 * x for n, x in each.items() if n not in learned]
    return torch.stack([*learned.values(), *fixed]).sum() + _constant(known, centre)


def factors(prior: Prior, centre: Params, scale: Params, tuned: Tuned) -> dict[str, float]:
    """By how much the prior's precision is multiplied, of each tensor."""
    known = gaussian(prior, centre)
    assert known is not None
    each = {n: float(x) for n, x in squares(known, centre, scale).items()}
    if tuned == "elbo":
        return dict.fromkeys(centre, sum(x.numel() for x in centre.values()) / sum(each.values()))
    return {n: x.numel() / each[n] if n in scale else 1.0 for n, x in centre.items()}


def check(problem: Problem, tuned: Tuned | None) -> None:
    """Refuses a prior under which the ELBO is not finite or has nothing to learn."""
    zeros = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in problem.network.params.items()}
    if tuned is not None and not isinstance(problem.prior, Normal):
        raise ValueError(
            f"prior_precision={tuned!r} multiplies the precision of a Normal prior, got "
            f"{type(problem.prior).__name__}: use bn.priors.Normal, or prior_precision=None"
        )
    if not bool(problem.prior.energy(zeros).isfinite()):
        raise ValueError(
            f"{type(problem.prior).__name__} has no finite density at zero, where a normal distribution has mass, so "
            "that the ELBO has no maximum: use bn.priors.Normal or another proper prior (the log-uniform prior is "
            "that of VariationalDropout)"
        )


def not_finite(problem: Problem, centre: Params, scale: Params) -> list[str]:
    """Names of parameters whose own part of the divergence from the prior is not finite."""
    network = problem.split(centre)[0]
    own = gaussian(problem.prior, network)
    bad = []
    for n, x in network.items():
        spread = {n: scale[n]} if n in scale else {}
        finite = [x.isfinite().all(), *(s.isfinite().all() & (s > 0).all() for s in spread.values())]
        if own is not None:
            finite.append(squares(own, {n: x}, spread)[n].isfinite())
        if not bool(torch.stack(finite).all()):
            bad.append(n)
    return bad


def in_words(bad: Sequence[str]) -> str:
    """What is wrong where these parameters' part of the divergence is not finite; empty where there are none."""
    return f"the divergence from the prior is not finite in {', '.join(bad)}" if bad else ""


def squares(known: Gaussian, centre: Params, scale: Params) -> Params:
    """E |x - c|^2 / scale^2 of each tensor, ()."""
    expected = {}
    for n, x in centre.items():
        prior = known.scale[n]
        offset = x - known.centre[n] if n in known.centre else x
        parts = [offset, scale[n]] if n in scale else [offset]
        if isinstance(prior, Tensor):
            expected[n] = torch.stack([_square(part / prior) for part in parts]).sum()
        else:
            expected[n] = torch.stack([_square(part) for part in parts]).sum() / prior**2
    return expected


def _energy(params: Params, known: Gaussian) -> Tensor:
    """sum x^2 / (2 scale^2), as one vector whose slope is given: to derive it would take several passes more."""
    x, parts = ravel(params), []
    for n, v in params.items():
        s = known.scale[n]
        parts.append(s.expand(v.shape).reshape(-1) if isinstance(s, Tensor) else x.new_full((v.numel(),), s))
    scales = torch.cat(parts)
    twice = ((x / scales / scales).detach() * x).sum()
    return twice - 0.5 * twice.detach()


def _square(x: Tensor) -> Tensor:
    """|x|^2, as a product: the slope of a power costs three passes."""
    return (x * x).sum()


def _constant(known: Gaussian, centre: Params) -> Tensor | float:
    """What the quadratic leaves out of -log p."""
    each = {n: (s, centre[n]) for n, s in known.scale.items()}
    logs = [
        s.expand(x.shape).log().sum() if isinstance(s, Tensor) else x.numel() * math.log(s) for s, x in each.values()
    ]
    return sum(logs) + 0.5 * math.log(2 * math.pi) * sum(x.numel() for x in centre.values())
