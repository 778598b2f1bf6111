"""What methods share whose members are particles: the space in which they see each other, a kernel, and how a run goes.

All members descend, in that space,

    sum_j D_ij dU/dz_j + repulsion sum_j R_ij z_j

where D and R are what each method makes of the kernel between members (`basinet.repulsion.spaces` brings it to params).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..core.tree import Params, ravel
from ..engine import Descent, GradientMethod, Info, Schedule, Step
from ..optim import Adam, Cosine, Optimizer
from ..problem import Problem
from ..testing.exact import Conjugate
from .anneal import anneal_weight, check_anneal
from .kernels import Kernel, Pairs
from .spaces import Coupling, Space

if TYPE_CHECKING:
    from ..testing import Bench


@dataclass(frozen=True, kw_only=True)
class Particles(GradientMethod, kind="method"):
    """Members that follow the posterior and push each other apart, by a kernel between them.

    They see each other in their weights, in their outputs on the batch ("function", where `extra` adds inputs drawn
    around the batch at each step), or in what `layer` gives ("features").
    """

    coupled: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: as many as make 3,000 to 6,000 steps, or 10 if that is more."""
    batch_size: int | None = 128
    """Examples per step, the same for all members; None: all."""
    space: str = "weights"
    """Where members see each other: weights, function or features."""
    layer: str | None = None
    """The submodule whose output is compared, by name, for space "features"."""
    extra: int = 0
    """Inputs added to the batch's for space "function", drawn at each step: normal, with its mean."""
    reach: float = 2.0
    """Standard deviation of extra inputs, in those of the batch, feature by feature."""
    prior_draws: int | None = 0
    """Draws per step from which the prior of outputs is estimated; None: one per member; 0: the prior pulls on weights.
    """
    kernel: str = "rbf"
    """The kernel between members: rbf, imq (inverse multiquadric), or linear."""
    bandwidth: float | None = None
    """h of the kernel, in units of the space; None: by the median at each step."""
    repulsion: float = 1.0
    """Strength relative to the posterior: 1 is Bayes at any N."""
    anneal: str = "none"
    """How the posterior's pull grows from zero: none, linear, tanh or cyclic."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL until all stop, at their best; None: 30 where epochs is None, else never.
    """

    def __post_init__(self) -> None:
        self._space(), self._kernel()
        check_anneal(self.anneal)
        if not 0 <= self.repulsion < float("inf"):
            raise ValueError(f"expected a finite repulsion of at least 0, got {self.repulsion}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"expected patience of at least 1 report, or None, got {self.patience}")
        self.check()

    def check(self) -> None:
        """Raises for values of the method's own fields that make no sense."""

    @abstractmethod
    def coupled_by(self, pairs: Pairs) -> tuple[Tensor | None, Tensor]:
        """D, or None for the identity, and repulsion times R, both (M, M), from the kernel between members."""

    def adapt(self, problem: Problem) -> Problem:
        return self._space().adapt(problem)

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def gradient(self, state: Descent, step: Step) -> tuple[Params, Info]:
        pull = anneal_weight(self.anneal, step.batch.step, self.schedule(step.batch.total).steps)
        kernel = self._kernel()

        def couple(values: list[Tensor]) -> Coupling:
            members = kernel.seen(values)
            return Coupling(pull, *self.coupled_by(kernel.pairs(members)), members)

        return self._space().gradient(couple, state, step)

    def _space(self) -> Space:
        return Space(self.space, self.layer, self.extra, self.reach, self.prior_draws)

    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, self.bandwidth)


def particles(bench: Bench, recipe: Particles, exact: Conjugate, members: int) -> Tensor:
    """Where members come to rest on a problem whose posterior is known, (members, d)."""
    return ravel(bench.fit(recipe, exact.problem, exact.data, members).sample(1), 2)[:, 0]
