"""Predictions as outputs on axes (M members, S samples per member, B inputs, event shape). Axes never merge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NoReturn, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..calibrate.conformal_sets import Conformal
from ..core.documented import with_field_doc
from ..core.noise import Noise
from ..core.tree import Params, take
from ..problem.likelihoods import ClassLikelihood, CountLikelihood, LabelLikelihood, Likelihood, RealLikelihood


@with_field_doc
@dataclass(frozen=True, eq=False, repr=False)
class Predictive(ABC):
    """The mixture over members and samples. Made by `Posterior.predict`; everything else is computed when asked for."""

    outputs: Tensor
    """(M, S, B, *event): what the networks returned, for each member, sample and input."""
    likelihood: Likelihood
    """How targets follow from outputs."""
    learned: Params = field(default_factory=dict)
    """The likelihood's own parameters, leaves (M, S, ...)."""
    weights: Tensor | None = None
    """(M, S): non-negative weights, normalised when used; None: equal."""
    conformal: Conformal | None = field(default=None, kw_only=True)
    """The posterior's thresholds, as `bn.conformal` finds them."""

    parts: ClassVar[tuple[str, ...]] = ("aleatoric", "between", "within")  # of the uncertainty, those that it has

    def __post_init__(self) -> None:
        if self.weights is not None and self.weights.shape != self.outputs.shape[:2]:
            raise ValueError(
                f"expected weights (members, samples) {tuple(self.outputs.shape[:2])}, got {tuple(self.weights.shape)}"
            )
        if self.weights is not None and not (bool((self.weights >= 0).all()) and bool(self.weights.sum() > 0)):
            raise ValueError("expected non-negative weights of which one at least is positive")

    def __repr__(self) -> str:
        event = "".join(f" x {n}" for n in self.outputs.shape[3:])
        counts = zip(self.outputs.shape[:3], ("member", "sample", "input"))
        axes = " x ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)
        return f"{type(self).__name__}({axes}{event}, {self.likelihood!r})"

    def __len__(self) -> int:
        """The number of members."""
        return self.outputs.shape[0]

    def __getitem__(self, members: int | slice | Sequence[int] | Tensor) -> Any:
        """The predictive of some of the members."""
        index: Any = members
        if isinstance(members, int):
            if not -len(self) <= members < len(self):
                raise IndexError(f"expected one of the {len(self)} members, 0 to {len(self) - 1}, got {members}")
            index = slice(members, members + 1 or None)
        elif not isinstance(members, slice):
            index = torch.as_tensor(members).reshape(-1)
        if (not isinstance(index, slice) and len(index) == 0) or self.outputs[index].shape[0] == 0:
            raise IndexError(f"expected at least one of {len(self)} members, got {members}")
        return replace(self, **self.some(index))

    def some(self, index: Any) -> dict[str, Any]:
        """The fields that have a member axis, at some of the members."""
        weights = None if self.weights is None else self.weights[index]
        learned = take(self.learned, index)
        return {"outputs": self.outputs[index], "learned": learned, "weights": weights, "conformal": None}

    @property
    def samples(self) -> int:
        """The number of samples per member."""
        return self.outputs.shape[1]

    @cached_property
    def mass(self) -> Tensor:
        """The weight of each sample, (M, S), summing to one."""
        return self.exact_mass.to(self.outputs)

    @cached_property
    def exact_mass(self) -> Tensor:
        """The same in double precision."""
        shape, device = self.outputs.shape[:2], self.outputs.device
        if self.weights is None:
            return torch.full(shape, 1 / (shape[0] * shape[1]), dtype=torch.float64, device=device)
        weights = self.weights.double().to(device)
        return weights / weights.sum()

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """What would remain if the weights were known."""

    @property
    @abstractmethod
    def between(self) -> Tensor:
        """What the members disagree on: uncertainty between modes."""

    @property
    @abstractmethod
    def within(self) -> Tensor:
        """What samples of the same member disagree on: uncertainty within a mode."""

    @property
    def epistemic(self) -> Tensor:
        """Uncertainty about the weights: between + within."""
        return self.between + self.within

    @abstractmethod
    def log_densities(self, targets: Tensor) -> Tensor:
        """The log density of each element of the targets under each sample, (M, S, B, ...)."""

    @final
    def log_prob(self, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The exact log density of the mixture at each target, (B,): densities are averaged, not their logarithms.

        The elements of a target are one event: their densities are multiplied under each sample. `mask`, in the shape
        of the targets, is true for those that count; numbers in its place are exponents of their densities.
        """
        joint = self.log_joint(targets.to(self.outputs.device), mask)
        return torch.logsumexp(joint + self.mass.log()[..., None], (0, 1))

    def log_joint(self, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log density of each target under each sample, (M, S, B): that of its elements, multiplied."""
        each = self.log_densities(targets.to(self.outputs.device))
        if mask is not None:
            exponents = mask.to(each).reshape(each.shape[2:])
            each = torch.where(exponents > 0, each * exponents, 0.0)
        return each.reshape(*each.shape[:3], -1).sum(-1)

    @property
    def probs(self) -> Tensor:
        """Of classes and labels: probabilities, averaged over members and samples."""
        self._lacks("probs")

    @property
    def entropy(self) -> Tensor:
        """Of classes and labels: the entropy of `probs`, total uncertainty."""
        self._lacks("entropy")

    @property
    def mean(self) -> Tensor:
        """Of numbers: the mean of the mixture."""
        self._lacks("mean")

    @property
    def variance(self) -> Tensor:
        """Of numbers: the variance of the mixture, total uncertainty."""
        self._lacks("variance")

    @property
    def sd(self) -> Tensor:
        """Of numbers: the standard deviation of the mixture."""
        self._lacks("sd")

    def cdf(self, values: Tensor) -> Tensor:
        """Of numbers: P(target <= value)."""
        self._lacks("cdf")

    def quantile(self, q: float) -> Tensor:
        """Of numbers: the q-quantile of the mixture."""
        self._lacks("quantile")

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Of numbers: the central interval that holds the target with probability `level`."""
        self._lacks("interval")

    @property
    def conformal_set(self) -> Tensor:
        """Of classes: those in the prediction set of each input, as `bn.conformal` calibrated it."""
        self._lacks("conformal_set")

    @property
    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Of numbers: low and high, as `bn.conformal` calibrated them."""
        self._lacks("conformal_interval")

    def _lacks(self, name: str) -> NoReturn:
        raise AttributeError(
            f"predictions under {self.likelihood!r} have no {name}: those of classes and labels have probs and entropy "
            "(of classes conformal_set), those of numbers mean, variance, sd, cdf, quantile, interval and "
            "conformal_interval"
        )

    @final
    def sample(self, n: int, seed: int = 0) -> Tensor:
        """`n` targets drawn for each input, (n, B, ...)."""
        noise = Noise.seed(seed, self.outputs.device)
        return self.drawn(*self.choose(n, noise.split("component")), noise.split("within"))

    def drawn(self, m: Tensor, s: Tensor, b: Tensor, noise: Noise) -> Tensor:
        """A target from each of the components with these indices, (n, B, ...)."""
        learned = {k: v[m, s] for k, v in self.learned.items()}
        return self.likelihood.sample(self.outputs[m, s, b], learned, noise)

    @final
    def rule(self) -> Conformal:
        """How these predictions become sets or intervals."""
        if self.conformal is None:
            raise ValueError(
                "these predictions are not calibrated: predict with bn.conformal(posterior, val); slices, mixtures and "
                "new temperatures of a calibrated posterior have to be calibrated again"
            )
        return self.conformal

    @abstractmethod
    def to_distribution(self) -> Distribution:
        """The same as a torch distribution."""

    def member_mass(self) -> tuple[Tensor, Tensor]:
        """The weight of each member (M,), and of its samples within it (M, S) (equal where a member has weight
        zero)."""
        member = self.mass.sum(1)
        inside = torch.where(member[:, None] > 0, self.mass / member[:, None].clamp(min=1e-300), 1 / self.samples)
        return member, inside

    def choose(self, n: int, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """For `n` draws at each input the component they come from: indices (m, s, b), each (n, B)."""
        s, b = self.outputs.shape[1:3]
        edges = self.mass.double().flatten().cumsum(0)
        u = noise.uniform(edges.new_empty(n, b)) * edges[-1]  # below the last edge
        which = torch.searchsorted(edges, u, right=True).clamp(max=len(edges) - 1)
        return which // s, which % s, torch.arange(b, device=which.device).expand(n, b)


def make_predictive(
    outputs: Tensor,
    likelihood: Likelihood,
    learned: Params,
    weights: Tensor | None = None,
    covariance: Tensor | None = None,
    closed: bool = False,
) -> Predictive:
    """The predictive that fits the likelihood. With a `covariance` (M, S, B, E, E) the outputs are normal around those
    given, under Gaussian noise; `closed` says that they are log-probabilities, or log-odds of labels, that stand for
    a member's whole distribution."""
    from .classes import ClassPredictive
    from .closed import ClosedClassPredictive, ClosedLabelPredictive
    from .counts import CountPredictive
    from .labels import LabelPredictive
    from .normal import NormalPredictive
    from .real import RealPredictive

    if covariance is not None:
        return NormalPredictive(outputs, likelihood, learned, weights, covariance)
    kinds: tuple[tuple[type[Likelihood], type[Predictive]], ...] = (
        (ClassLikelihood, ClosedClassPredictive if closed else ClassPredictive),
        (LabelLikelihood, ClosedLabelPredictive if closed else LabelPredictive),
        (RealLikelihood, RealPredictive),
        (CountLikelihood, CountPredictive),
    )
    for kind, cls in kinds:
        if isinstance(likelihood, kind):
            return cls(outputs, likelihood, learned, weights)
    names = ", ".join(kind.__name__ for kind, _ in kinds)
    raise TypeError(f"expected one of {names}, got {type(likelihood).__name__}")


def weighted(mass: Tensor, values: Tensor) -> Tensor:
    """The weighted sum over the leading axes that `mass` has."""
    k = mass.dim()
    return torch.tensordot(mass.to(values), values, k)
