"""Methods that go from batch to batch by fits: the last posterior is the prior of the next batch, whose N is its own.

    Laplace     the mode of the batch under the last posterior, by the recipe's base, then its curvature is added
    MeanField   the ELBO of the batch, with the last posterior in place of the prior
    IVON        the same by natural gradients

Between batches the parameters may drift, where the family has a variance of each (`drifted`). A fit starts at the last
mean. Where `where` leaves parameters out, they stay where they were. On a linear model with
normal noise `Laplace` with a full, or of one output a Kronecker, covariance is exact in any order and batching; methods
with independent parameters keep the diagonal of the exact precision, and their mean depends on the order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .core.noise import Noise
from .core.tree import Params, Point, leaves, stack, take
from .curvature.updating import covariance_of, one_of
from .data import Data, Piece
from .engine import Engine, Member, Method
from .families import Delta, Diagonal, Family, Full, Partial
from .filters import AdaptiveForget, Change, Drift
from .filters.last import check_last, named
from .fit import fit
from .methods.ivon import IVON
from .methods.laplace import Laplace
from .methods.map import MAP
from .methods.mean_field import MeanField
from .posterior import Part, Posterior
from .problem import Problem
from .problem.priors import FromFamily, Normal

SEQUENTIAL = (Laplace, MeanField, IVON)


def begun(method: Method, problem: Problem, point: Point, centred: bool) -> Family:
    """The prior as a family, and a point where `where` leaves parameters out. Without a centre of its own a Normal
    prior is around zero, or where `centred` says so around the point."""
    _check(method, problem)
    inside = named(problem, getattr(method, "where", None))
    rest = {n: x for n, x in point.params.items() if n not in inside}
    like = next(iter(point.params.values()))
    if isinstance(problem.prior, FromFamily):
        if rest:
            raise ValueError(
                "where= chooses some of the parameters, and the prior is a family over all: use where=None"
            )
        return one_of(problem.prior.family, like).scaled(problem.prior_temperature)
    assert isinstance(problem.prior, Normal)
    scales, given = problem.prior.scales(problem.split(point.params)[0]), problem.prior.centre or {}
    own = point.params if centred and not given else given
    centre = {n: own[n].to(x) if n in own else torch.zeros_like(x) for n, x in _some(point.params, inside).items()}
    scale = {n: torch.full_like(x, scales[n]) for n, x in centre.items()}
    part = Diagonal(centre, scale, {} if rest else point.buffers).scaled(problem.prior_temperature)
    return Partial(Delta(rest, point.buffers), part) if rest else part


def gone_on(method: Method, problem: Problem, family: Any, data: Data, who: Member, batches: int) -> Family:
    """The posterior of one member after a batch, of which `batches` came before."""
    _check_noise(method, problem)
    rest: Params = family.rest.mean().params if isinstance(family, Partial) else {}
    part: Any = family.part if isinstance(family, Partial) else family
    if getattr(method, "where", None) == "last":
        check_last(problem, family.mean(), Piece(data.inputs, data.targets, data.weights), tuple(part.mean().params))
    mean, buffers = part.mean().params, family.mean().buffers
    if batches == 0 and all(not bool(x.any()) for x in mean.values()):  # a network of zeros cannot learn
        mean = _some(problem.init(Noise.seed(who.seed).split("online").split(who.k)).params, tuple(mean))
    network = problem.network.holding(rest) if rest else problem.network
    here = Problem(network, problem.likelihood, FromFamily(family=part), problem.temperature, "likelihood")
    start = Delta(mean, buffers | rest)
    at = Posterior((Part(here, stack([start]), (Member(who.seed + batches, who.k),)),))
    after = _fitted(method, here, data, at, leaves(mean)[0].device)
    if not rest:
        return after
    return Partial(Delta(rest, buffers), replace(after, buffers={}))


def check_drift(method: Method, drift: Drift) -> None:
    """Refuses drifts that ask how probable a batch is, and structures that a drift would leave."""
    if isinstance(drift, (AdaptiveForget, Change)):
        raise ValueError(
            f"{type(drift).__name__} needs the probability of a batch before it is learned, which only filters have in "
            f"closed form: use Forget, Inflate or Shrink with {method.label}, or use bn.EKF"
        )
    if isinstance(method, Laplace) and method.structure not in ("full", "diagonal"):
        raise ValueError(
            f"a drift changes each variance on its own, and structure={method.structure!r} keeps them together: use "
            "structure='full' or 'diagonal'"
        )


def drifted(method: Method, problem: Problem, family: Any, drift: Drift, examples: int, around_start: bool) -> Family:
    """What is known before the next batch, when this many examples have passed."""
    prior: Any = begun(method, problem, family.mean(), around_start)
    part, prior = (x.part if isinstance(x, Partial) else x for x in (family, prior))
    if isinstance(part, Full) and not isinstance(prior, Full):
        factor = torch.linalg.cholesky(covariance_of(prior, part.centre))
        prior = Full({n: prior.centre[n] for n in part.centre}, factor, prior.buffers)
    after = drift.after(part, examples, prior)
    return Partial(family.rest, after) if isinstance(family, Partial) else after


def _fitted(method: Method, problem: Problem, data: Data, start: Posterior, device: torch.device) -> Any:
    """The family of a fit of one member that starts there."""
    engine = Engine(device=str(device), progress=False)
    recipe: Any = method
    recipe = replace(recipe, where=None) if hasattr(method, "where") else recipe
    if isinstance(recipe, Laplace):
        start = fit(recipe.base or MAP(), problem, data, start=start, engine=engine)
        recipe = replace(recipe, prior_precision="prior", base=None)
    return take(fit(recipe, problem, data, start=start, engine=engine).parts[0].family, 0)


def _check(method: Method, problem: Problem) -> None:
    """Refuses what cannot go from batch to batch."""
    if not isinstance(problem.prior, (Normal, FromFamily)):
        raise ValueError(
            f"{method.label} goes from batch to batch with a normal prior, got {type(problem.prior).__name__}: use "
            "bn.priors.Normal, or bn.priors.FromFamily of a Gaussian family"
        )
    _check_noise(method, problem)
    if problem.terms:
        raise ValueError(
            f"{method.label} goes from batch to batch by examples, and the problem has further terms: leave them out"
        )
    chosen = getattr(method, "prior_precision", None)
    if chosen not in (None, "prior") or getattr(method, "noise", None):
        raise ValueError(
            f"{method.label} goes from batch to batch with the prior that the problem has: leave out prior_precision= "
            "and noise="
        )


def _check_noise(method: Method, problem: Problem) -> None:
    if problem.likelihood.init():
        raise ValueError(
            f"{method.label} goes from batch to batch with a noise that is known, and "
            f"{type(problem.likelihood).__name__} learns it: state it (learned=False)"
        )


def _some(params: Params, names: tuple[str, ...]) -> Params:
    return {n: params[n] for n in names}
