"""How the members of a posterior predict: by samples of the network, or of its linear function, or in closed form.

sample   the network at draws of the params
linear   the network's linear function around the mean: normal in closed form under Gaussian noise, else at draws
probit   classes and labels: the logits of the linear function divided by sqrt(1 + pi / 8 variance)
bridge   classes: the mean of the Dirichlet that the Laplace bridge matches to the logits of the linear function
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.tree import Params, Point, stack, take, tree_map
from ..families import Family, Partial
from ..problem.likelihoods import Bernoulli, Categorical, ClassLikelihood, Gaussian, Likelihood, NoisyDirichlet
from .average import averaged
from .closed import bridge, probit
from .draws import DrawBlock, Draws
from .forward import forward
from .linear import moments_of_several
from .predictive import make_predictive
from .tangent import samples

Via = Literal["sample", "linear", "probit", "bridge"]
MOST = 64  # outputs per input whose covariance is held; functions with more of them are drawn


class Outputs(NamedTuple):
    """What some members give on some inputs."""

    outputs: Tensor  # (M, S, B, *event)
    learned: Params  # the likelihood's own parameters, leaves (M, S, ...)
    covariance: Tensor | None = None  # (M, S, B, E, E), where the outputs are normal around those given
    closed: bool = False  # the outputs are log-probabilities (log-odds of labels) that stand for a member


def default_via(asked: str, likelihood: Likelihood) -> Via:
    """What a recipe that asks for a way of predicting gets: where there is no link, probit and bridge are the linear
    function itself; for labels bridge is probit."""
    if asked not in get_args(Via):
        raise ValueError(f"expected via as one of {', '.join(get_args(Via))}, got {asked!r}")
    if asked == "probit" and not isinstance(likelihood, (Categorical, NoisyDirichlet, Bernoulli)):
        return "linear"
    if asked == "bridge" and not isinstance(likelihood, (Categorical, NoisyDirichlet)):
        return "probit" if isinstance(likelihood, Bernoulli) else "linear"
    return asked  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Predictor:
    """Members that predict in one way. What it needs of them is made once, whatever the number of calls."""

    draws: Draws
    via: Via
    keep: bool = False  # keep draws that fit in memory for the next call

    def __post_init__(self) -> None:
        if self.via not in get_args(Via):
            raise ValueError(f"expected via as one of {', '.join(get_args(Via))}, got {self.via!r}")
        likelihood = self.draws.problem.likelihood
        fits = {"probit": (Categorical, NoisyDirichlet, Bernoulli), "bridge": (Categorical, NoisyDirichlet)}
        if self.via in fits and not isinstance(likelihood, fits[self.via]):
            raise ValueError(
                f"via={self.via!r} is for {' or '.join(x.__name__ for x in fits[self.via])} likelihoods, got "
                f"{type(likelihood).__name__}: use via='linear'"
            )
        if self.via != "sample" and not _gaussian(family := take(self.draws.family, 0)):
            raise ValueError(
                f"via={self.via!r} needs a Gaussian family (Diagonal, Kronecker, Full, ...), and these members are "
                f"{type(family).__name__}: use via='sample'"
            )

    def __len__(self) -> int:
        return len(self.draws)

    def __call__(self, inputs: Any, batch_size: int | None = None, begin: int = 0) -> Outputs:
        """What the members give on the inputs, of which the first has place `begin` among all."""
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
        try:
            if self._closes(inputs):
                return _closed([self], inputs, batch_size)[0]
            if self.via == "sample":
                return Outputs(*forward(self.draws, inputs, self._kept, batch_size, begin))
            return Outputs(*samples(self._plain, self._centres, inputs, self._kept, batch_size))
        except (RuntimeError, TypeError, IndexError):
            self.draws.problem.tried(inputs, self._centres[0])  # says so, where these are no inputs of the network
            raise

    def _closes(self, inputs: Any) -> bool:
        """Whether it gives closed forms, and no samples."""
        return self.via in ("probit", "bridge") or (self.via == "linear" and self._normal(inputs))

    def _outputs(self, moments: list[tuple[Tensor, Tensor]]) -> Outputs:
        """From the outputs and covariances of the members' linear functions, (B, *event) and (B, E, E), or their
        log-probabilities (log-odds of labels) and whatever."""
        outputs = torch.stack([x for x, _ in moments]).unsqueeze(1)
        learned = [self.draws.problem.split(p.params)[1] for p in self._centres]
        of_members = tree_map(lambda x: x.unsqueeze(1), stack(learned))
        if self.via == "linear":
            return Outputs(outputs, of_members, covariance=torch.stack([x for _, x in moments]).unsqueeze(1))
        return Outputs(outputs, of_members, closed=True)

    def _linked(self, mean: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """A linear function's outputs and their covariance as they are, or as log-probabilities (log-odds of labels)
        with the variances that these were made with."""
        if self.via == "linear":
            return mean, spread
        if self.via == "probit":
            logits = probit(mean, spread.reshape(mean.shape))
            return logits.log_softmax(-1) if self._of_classes else logits, spread
        if mean.dim() < 2:
            raise ValueError(f"expected outputs of shape (B, ..., C), one for each class, got {tuple(mean.shape)}")
        blocks = _own_blocks(spread, mean.shape)
        return bridge(mean, blocks), blocks.diagonal(dim1=-2, dim2=-1)

    @property
    def _of_classes(self) -> bool:
        return isinstance(self.draws.problem.likelihood, ClassLikelihood)

    def _normal(self, inputs: Any) -> bool:
        """Whether the outputs' covariance is worth holding: Gaussian noise, and not too many outputs."""
        problem = self.draws.problem
        if not isinstance(problem.likelihood, Gaussian):
            return False
        point = self._centres[0]
        with torch.no_grad():
            row = problem.outputs(point.params, point.buffers, tree_map(lambda x: x[:1], inputs))[0]
        return row.numel() <= MOST

    @cached_property
    def _centres(self) -> list[Point]:
        return self.draws.centres()

    @cached_property
    def _plain(self) -> Draws:
        """The draws without norm statistics of their own: the linear function has those of its centre."""
        return replace(self.draws, refresh=None)

    @cached_property
    def _kept(self) -> Iterable[DrawBlock] | None:
        draws = self.draws if self.via == "sample" else self._plain
        return draws.kept() if self.keep else None


def side_by_side(predictors: Sequence[Predictor], inputs: Any, begin: int = 0) -> list[Outputs]:
    """What each of some predictors gives, whose members have the same means and differ only in their variances, as
    those of one curvature under several priors do: in closed form the network is differentiated once for all."""
    if predictors[0]._closes(inputs):
        return _closed(predictors, inputs, None)
    return [predictor(inputs, begin=begin) for predictor in predictors]


def _closed(predictors: Sequence[Predictor], inputs: Any, batch_size: int | None) -> list[Outputs]:
    first, moments = predictors[0], [[] for _ in predictors]  # type: ignore[var-annotated]
    for m, centre in enumerate(first._centres):
        families = [take(predictor.draws.family, m) for predictor in predictors]
        parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in predictors]
        for mean, spreads in moments_of_several(
            first.draws.problem, families, centre, inputs, full=first.via != "probit", batch_size=batch_size
        ):
            for part, spread in zip(parts, spreads):
                part.append(first._linked(mean, spread))
        for members, part in zip(moments, parts):
            members.append((torch.cat([x for x, _ in part]), torch.cat([x for _, x in part])))
    return [predictor._outputs(members) for predictor, members in zip(predictors, moments)]


def assembled(parts: list[Outputs], likelihood: Likelihood, mass: Tensor | None) -> Any:
    """One predictive of all members; `mass` (M,) are their weights, equal where None.

    Parts with fewer samples are padded with samples of no weight. Beside a part in closed form, samples of classes are
    averaged for each member, and samples of numbers are normals without variance.
    """
    if any(x.closed for x in parts):
        parts = [x if x.closed else _averaged(x, likelihood) for x in parts]
    if any(x.covariance is not None for x in parts):
        parts = [x if x.covariance is not None else x._replace(covariance=_no_covariance(x.outputs)) for x in parts]
    closed = parts[0].closed
    if len(parts) == 1 and mass is None:
        return make_predictive(parts[0].outputs, likelihood, parts[0].learned, None, parts[0].covariance, closed)
    longest = max(x.outputs.shape[1] for x in parts)
    outputs = torch.cat([_pad(x.outputs, longest) for x in parts])
    learned = {n: torch.cat([_pad(x.learned[n], longest) for x in parts]) for n in parts[0].learned}
    covariance = [_pad(x.covariance, longest) for x in parts if x.covariance is not None]
    counts = torch.tensor([x.outputs.shape[1] for x in parts for _ in range(len(x.outputs))])
    member = torch.full(counts.shape, 1 / len(counts), dtype=torch.float64) if mass is None else mass.double().cpu()
    weights = (torch.arange(longest) < counts[:, None]).double() * (member / counts)[:, None]
    joined = torch.cat(covariance) if covariance else None
    return make_predictive(outputs, likelihood, learned, weights.to(outputs), joined, closed)


def _gaussian(family: Family) -> bool:
    if isinstance(family, Partial):
        return _gaussian(family.rest) and _gaussian(family.part)
    return type(family).quad is not Family.quad


def _own_blocks(covariance: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Covariances of the C outputs at each place, (..., *places, C, C), out of those of all E outputs, (..., E, E)."""
    c = shape[-1]
    n = covariance.shape[-1] // c
    blocks = covariance.unflatten(-1, (n, c)).unflatten(-3, (n, c)).diagonal(dim1=-4, dim2=-2)  # (..., C, C, n)
    return blocks.movedim(-1, -3).reshape(*shape, c)


def _averaged(sampled: Outputs, likelihood: Likelihood) -> Outputs:
    """The logarithm of each member's mean probability (log-odds of labels) in the place of its samples."""
    members = [take(sampled.outputs, slice(m, m + 1)) for m in range(len(sampled.outputs))]
    learned = [take(sampled.learned, slice(m, m + 1)) for m in range(len(sampled.outputs))]
    each = [averaged(make_predictive(x, likelihood, own)) for x, own in zip(members, learned)]
    return Outputs(torch.stack(each).unsqueeze(1), {n: x[:, :1] for n, x in sampled.learned.items()}, closed=True)


def _no_covariance(outputs: Tensor) -> Tensor:
    e = outputs[0, 0, 0].numel()
    return outputs.new_zeros(*outputs.shape[:3], e, e)


def _pad(x: Tensor, samples: int) -> Tensor:
    missing = samples - x.shape[1]
    return x if missing == 0 else torch.cat([x, x[:, :1].expand(-1, missing, *x.shape[2:])], 1)
