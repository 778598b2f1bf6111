"""The posterior that is asked for, and the one place where N, prior and temperature are scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core.documented import with_field_doc
from ..core.model import Factory, Mode, Model, Output
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, move, tree_map
from ..data import Data
from .likelihoods import Likelihood
from .likelihoods.fitting import OneClass, weighted
from .priors import FromFamily, Normal, Prior
from .terms import Term

PREFIX = "likelihood."


class Batch(NamedTuple):
    """The examples of one step, as one member sees them."""

    inputs: Any  # any tree of tensors (B, ...)
    targets: Tensor  # (B, ...)
    index: Tensor  # type: ignore[assignment]  # (B,) positions in the data; of a stream, () the number of the batch
    step: Tensor  # (), this member's own clock: steps done before this one
    total: int  # N, the number of examples the posterior conditions on
    weights: Tensor | None = None  # (B,), one per example, or in the shape of the targets, one per element


@with_field_doc
@dataclass(frozen=True, eq=False)
class Problem:
    """Model, likelihood, prior and temperature, and what else is known.

    The potential is U = [sum_n -log p(y_n | x_n, theta)] / T - log p(theta) / T_prior with T_prior = T for
    temper="posterior" (a cold or warm posterior) and T_prior = 1 for temper="likelihood"; the posterior is exp(-U) up
    to its integral. A mini-batch stands for all N examples: its sum is multiplied by N / B, the prior is not. N comes
    from the data. `terms` add sums over points of their own (`bn.terms`), each scaled to its own N and tempered as a
    likelihood: another likelihood on other examples, or an equation at collocation points.
    """

    model: Model | Factory | nn.Module
    """A factory () -> nn.Module, or a module that is re-initialised for each member."""
    likelihood: Likelihood
    """How targets follow from outputs."""
    prior: Prior = Normal(scale=1.0)
    """What is believed of the params without data."""
    temperature: float = 1.0
    """T: 1 is Bayes, below 1 is cold."""
    temper: Literal["posterior", "likelihood"] = "posterior"
    """What T divides: likelihood and prior, or only the likelihood."""
    output: Output = None
    """What is scored if a network returns more than a tensor: its place, key or attribute."""
    terms: Sequence[Term] = ()
    """What else is known: bn.terms.Observations, or an Equation of your own."""

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(f"expected a likelihood such as bn.likelihoods.Categorical(), got {self.likelihood!r}")
        if not isinstance(self.prior, Prior):
            raise TypeError(f"expected a prior such as bn.priors.Normal(scale=1.0), got {self.prior!r}")
        if not isinstance(self.temperature, (int, float)) or not 0 < self.temperature < math.inf:
            raise ValueError(f"expected a positive, finite temperature, got {self.temperature!r}")
        if self.temper not in ("posterior", "likelihood"):
            raise ValueError(f"expected temper 'posterior' or 'likelihood', got {self.temper!r}")
        if not isinstance(self.terms, Sequence) or not all(isinstance(term, Term) for term in self.terms):
            raise TypeError(f"expected terms as a list, such as [bn.terms.Observations(...)], got {self.terms!r}")
        object.__setattr__(self, "terms", tuple(self.terms))
        if not isinstance(self.model, Model):
            object.__setattr__(self, "model", Model(self.model, self.output))
        if self.output not in (None, self.network.output):
            raise ValueError(
                f"the model has output={self.network.output!r}, and the problem output={self.output!r}: give it once"
            )
        object.__setattr__(self, "output", self.network.output)
        self.prior.check(self.network.init(Noise.seed(0)).params)

    @property
    def network(self) -> Model:
        """The model as a pure function."""
        assert isinstance(self.model, Model)
        return self.model

    def through(self, model: Model) -> Problem:
        """The same problem for a model that wraps the network: of the same parameters, so nothing is checked again."""
        return self._with(model=model)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Problem:
        """The same with the points of its terms on a device."""
        return self._with(terms=tuple(term.to(device, dtype) for term in self.terms)) if self.terms else self

    def _with(self, **changes: Any) -> Problem:
        other = object.__new__(type(self))
        vars(other).update(vars(self) | changes)
        return other

    def init(self, noise: Noise) -> Point:
        """Where a member starts: a fresh initialisation of the network, and of what likelihood and terms learn."""
        return self.complete(self.network.init(noise))

    def complete(self, point: Point) -> Point:
        """A point of the network with the own parameters of likelihood and terms added."""
        like = next(iter(point.params.values()))
        learned = {PREFIX + n: x.to(like) for n, x in self.likelihood.init().items()}
        for i, term in enumerate(self.terms):
            learned |= {f"{PREFIX}{_of_term(i)}{n}": x.to(like) for n, x in term.init().items()}
        return Point(point.params | learned, point.buffers)

    def split(self, params: Params) -> tuple[Params, Params]:
        """The network's parameters, and those of the likelihood without their prefix."""
        network = {n: x for n, x in params.items() if not n.startswith(PREFIX)}
        learned = {n.removeprefix(PREFIX): x for n, x in params.items() if n.startswith(PREFIX)}
        return network, learned

    def outputs(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        """What the network returns, and its buffers afterwards."""
        return self.network(self.split(params)[0], buffers, inputs, noise, mode)

    def log_likelihood(
        self, params: Params, buffers: Params, batch: Batch, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        """The plain sum over the batch of w_n log p(y_n | x_n, theta): neither scaled nor tempered. Weights may be one
        per element of the targets; those of zero are a mask."""
        outputs, buffers = self.outputs(params, buffers, batch.inputs, noise, mode)
        return self.log_densities(outputs, params, batch).sum(), buffers

    def log_prior(self, params: Params) -> Tensor:
        """The log prior density of the network's parameters."""
        return self.prior.log_prob(self.split(params)[0])

    def potential(
        self, params: Params, buffers: Params, batch: Batch, noise: Noise | None = None, mode: Mode = "train"
    ) -> tuple[Tensor, Params]:
        """U, with the batch standing for all N examples, up to a constant; and the buffers afterwards."""
        energy, buffers = self.data_potential(params, buffers, batch, noise, mode)
        return energy + self.prior_energy(params), buffers

    def data_potential(
        self, params: Params, buffers: Params, batch: Batch, noise: Noise | None = None, mode: Mode = "train"
    ) -> tuple[Tensor, Params]:
        """The potential without the prior: that of the data, and that of the terms."""
        outputs, after = self.outputs(params, buffers, batch.inputs, noise, mode)
        return self.data_potential_of(outputs, params, buffers, batch, noise, mode), after

    def data_potential_of(
        self,
        outputs: Tensor,
        params: Params,
        buffers: Params,
        batch: Batch,
        noise: Noise | None = None,
        mode: Mode = "train",
    ) -> Tensor:
        """The potential without the prior, from outputs on the batch that are there already; `buffers` are those
        before the pass that gave them."""
        energy = self.likelihood_potential(outputs, params, batch)
        return energy + self.term_potential(params, buffers, noise, mode) if self.terms else energy

    def likelihood_potential(self, outputs: Tensor, params: Params, batch: Batch) -> Tensor:
        """The part of the data in the potential, from outputs on the batch."""
        log_likelihood = self.log_densities(outputs, params, batch).sum()
        return -log_likelihood * (batch.total / batch.targets.shape[0]) / self.temperature

    def term_potential(
        self, params: Params, buffers: Params, noise: Noise | None = None, mode: Mode = "train"
    ) -> Tensor:
        """The part of the terms in the potential. The points of a step stand for all that a term has; without noise
        they are all of them. What the network does to its buffers meanwhile does not count."""
        network, learned = self.split(params)
        like = next(iter(network.values()))

        def outputs(inputs: Any, noise: Noise | None) -> Tensor:
            return self.network(network, buffers, inputs, noise, mode)[0]

        parts = [like.new_zeros(())]
        for i, term in enumerate(self.terms):
            own = _of_term(i)
            key = None if noise is None else noise.split(own)
            points = move(term.drawn(key), like.device, like.dtype)
            known = {n.removeprefix(own): x for n, x in learned.items() if n.startswith(own)}
            energy = term.energies(outputs, points, known, key).sum()
            heat = self.temperature if term.tempered else self.prior_temperature
            parts.append(energy * (term.n / leaves(points)[0].shape[0]) / heat)
        return torch.stack(parts).sum()

    def log_densities(self, outputs: Tensor, params: Params, batch: Batch) -> Tensor:
        """w_n log p(y_n | x_n, theta) of each element, (B, ...), from outputs that are there already."""
        each = self.likelihood.log_density(outputs, batch.targets, self.split(params)[1])
        return weighted(each, batch.weights)

    def prior_energy(self, params: Params) -> Tensor:
        """The prior's part of the potential."""
        return self.prior.energy(self.split(params)[0]) / self.prior_temperature

    @property
    def prior_temperature(self) -> float:
        """What the prior's energy is divided by."""
        return self.temperature if self.temper == "posterior" else 1.0

    def decay(self, params: Params) -> dict[str, float] | None:
        """For each tensor the number d such that the prior adds d/2 |x|^2 to the potential, where it does."""
        precisions = self.prior.precision(self.split(params)[0])
        return None if precisions is None else {n: p / self.prior_temperature for n, p in precisions.items()}

    @property
    def shares(self) -> tuple[float, float]:
        """What the log likelihood and the log prior are multiplied by in -U: 1 / T and 1 / T_prior."""
        return 1 / self.temperature, 1 / self.prior_temperature

    def scale(self, total: int) -> float:
        """N / T, what the potential is divided by to read as a loss per example whatever N and T are."""
        return total / self.temperature

    def check(self, data: Data, point: Point) -> None:
        """Raises where data, network and likelihood do not fit: runs the network on two examples."""
        outputs = self.tried(data.inputs, point)
        try:
            self.likelihood.check(outputs, data.targets)
        except OneClass:
            if not isinstance(self.prior, FromFamily):  # else what came before may have had the other classes
                raise
        for term in self.terms:
            term.check(self, point)

    def tried(self, inputs: Any, point: Point) -> Tensor:
        """The outputs of the first two of some inputs; raises where the network does not run on them."""
        few = tree_map(lambda x: x[:2], inputs)
        device = next(iter(point.params.values())).device
        try:
            with torch.no_grad():
                outputs, _ = self.outputs(point.params, point.buffers, tree_map(lambda x: x.to(device), few))
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            shapes = [tuple(x.shape[1:]) for x in leaves(few)]
            axis = "; the leading axis counts examples, x[None] is one" if () in shapes else ""
            raise ValueError(
                f"the network does not run on the data (inputs of shape {shapes} per example{axis}): {error}"
            ) from error
        if outputs.dim() == 0 or outputs.shape[0] != leaves(few)[0].shape[0]:
            raise ValueError(
                f"expected one output row for each example, got outputs {tuple(outputs.shape)} for "
                f"{leaves(few)[0].shape[0]} examples"
            )
        return outputs


def _of_term(i: int) -> str:
    """Before the names of what term i learns, among those that are learned."""
    return f"terms.{i}."
