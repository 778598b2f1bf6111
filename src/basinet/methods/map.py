"""Maximum a posteriori: one mode of the posterior. With `members=M` it is the deep ensemble.

    theta* = argmin_theta U(theta),   U = -sum_n log p(y_n | x_n, theta) - log p(theta)

A deep ensemble (Lakshminarayanan et al. 2017) is M such modes from M initialisations, each with its own shuffling.
The precision of the prior and the noise of a Gaussian can be learned on the way, by marginal likelihood (Immer et al.
2021): then theta* is the mode under those that were found, which are each member's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ..core.noise import Noise
from ..core.tree import Params, Point
from ..curvature import online
from ..curvature.evidence import LOG_NOISE
from ..curvature.passes import Passes
from ..data import Data, Stream
from ..engine import Descent, Finished, GradientMethod, Info, Report, Review, Schedule, Step
from ..engine.method import Entry
from ..families import Family
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..problem.priors import Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check

BEGIN = 0.1  # of the steps come first: a curvature where parameters are at random says nothing


@dataclass(frozen=True, kw_only=True)
class MAP(GradientMethod):
    """The most probable weights, by gradient descent; with members, a deep ensemble.

    It descends the potential per example, U T / N. The prior is part of U, so no weight decay is needed. The default
    step size decays to zero along a cosine, so that training ends at a mode instead of oscillating around it. Noise
    that is learned with the parameters (a likelihood with `learned=True`) shrinks to the size of the training
    residuals, which is too small if a network can fit the noise. If there are validation data, these set it at the end;
    `noise="marglik"` sets it by marginal likelihood, which counts the parameters that the training data determine.

    Without epochs it trains until the validation NLL (at the best noise), or without validation data the loss, has not
    fallen for six tenths of the steps that are planned. The result is then the best point, which is short of the mode
    if further training would fit the noise of the training data.
    """

    usual: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: until done, within 3,000 steps, or up to 6,000 for 32 passes, or 10 passes if that
    is more."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL until a member stops, at its best; None: 60 where epochs is None, else
    never."""
    prior_precision: str | None = None
    """Learn a factor on the prior's precision by marginal likelihood: "marglik" one, "layers" one per layer; None: do
    not."""
    noise: str | None = None
    """"marglik": a Gaussian's noise is learned by marginal likelihood; None: with the parameters, then by validation.
    """
    structure: str = "kronecker"
    """Structure of the curvature in the marginal likelihood: kronecker, diagonal (cheaper) or full (if small)."""
    every: int = 5
    """Reports between steps up the marginal likelihood, each of which passes over the data; there are at most 18."""
    subset: int | None = None
    """Examples whose curvature stands for all N, drawn again each time; None: all examples."""

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"expected patience of at least 1 report, or None, got {self.patience}")
        if self.prior_precision not in (None, *online.TUNED):
            raise ValueError(f"expected prior_precision 'marglik', 'layers' or None, got {self.prior_precision!r}")
        if self.noise not in (None, "marglik"):
            raise ValueError(f"expected noise 'marglik' or None, got {self.noise!r}")
        if self.structure not in online.STRUCTURES:
            raise ValueError(f"expected a structure among {', '.join(online.STRUCTURES)}, got {self.structure!r}")
        if self.structure == "full" and self.prior_precision == "layers":
            raise ValueError("prior_precision='layers' needs layers apart: use structure='kronecker' or 'diagonal'")
        for name in ("every", "subset"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} of at least 1, got {value}")

    @property
    def tunes(self) -> bool:
        """Whether anything is learned by marginal likelihood."""
        return self.prior_precision is not None or self.noise is not None

    @property
    def terms(self) -> bool:  # type: ignore[override]
        """Not where the marginal likelihood is climbed: its curvature is only that of the data."""
        return not self.tunes

    def adapt(self, problem: Problem) -> Problem:
        if self.tunes:
            online.check(problem, self.noise is not None)
        return problem

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; a subset of more than all examples is refused before any step."""
        if self.tunes and self.subset is not None and self.subset > data.n:
            raise ValueError(f"expected a subset of at most the {data.n:,} examples there are, got {self.subset:,}")
        return ()

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        """With a factor of the prior's precision for each tensor, where they are learned."""
        network = problem.split(point.params)[0] if self.prior_precision else {}
        factors: Params = {n: torch.ones((), dtype=x.dtype, device=x.device) for n, x in network.items()}
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), factors)

    def loss(self, params: Params, state: Descent, step: Step) -> Info:
        if self.noise:  # moves between steps alone
            params = params | {LOG_NOISE: params[LOG_NOISE].detach()}
        if not self.prior_precision:
            return GradientMethod.loss(self, params, state, step)
        problem = step.problem
        assert isinstance(problem.prior, Normal)
        energy, buffers = problem.data_potential(params, state.buffers, step.batch, step.noise, "train")
        each = problem.prior.energies(problem.split(params)[0])
        prior = torch.stack([state.memory[n] * x for n, x in each.items()]).sum() / problem.prior_temperature
        return Info((energy + prior) / step.scale, buffers=buffers)

    def review(self, state: Descent, report: Report) -> Review:
        """Stops where validation has not improved for long, and takes a step up the marginal likelihood."""
        done = super().review(state, report).done
        if done or report.last or not self.tunes or report.number % self.every:
            return Review(state, done)
        early = report.step < BEGIN * self.schedule(report.training.n).steps
        finite = all(bool(x.isfinite().all()) for x in state.params.values())  # one that is not will restart
        return self._tuned(state, report) if finite and not early else Review(state)

    def _tuned(self, state: Descent, report: Report) -> Review:
        problem, data = report.problem, report.data
        network = problem.split(state.params)[0]
        passes = Passes(
            problem=problem,
            point=self.point(state),
            data=data,
            names=tuple(network),
            noise=report.noise,
            subset=self.subset,
        )
        factors = {n: float(state.memory[n]) if n in state.memory else 1.0 for n in network}
        groups = online.groups_of(network, self.prior_precision)
        climbed = online.climb(passes, self.structure, groups, factors, self.noise is not None)  # type: ignore[arg-type]
        memory = {n: torch.full_like(x, climbed.factors[n]) for n, x in state.memory.items()}
        params = dict(state.params)
        if climbed.log_noise is not None:
            params[LOG_NOISE] = torch.full_like(params[LOG_NOISE], climbed.log_noise)
        curves = {"evidence_step": float(report.step), "log_evidence": climbed.log_evidence}
        return Review(Descent(params, state.buffers, state.moments, memory), curves=curves)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """The point where descent ended, and what was learned: the prior's precision of each tensor, the noise."""
        seen = None if self.noise else val  # where the noise is found by marginal likelihood, that stays
        done = GradientMethod.finish(self, state, samples, problem, data, seen, noise)
        if not self.tunes:
            return done
        family, curves = (done.family, dict(done.curves)) if isinstance(done, Finished) else (done, {})
        if self.prior_precision:
            known = online.precisions(problem, problem.split(state.params)[0])
            curves["prior_precision"] = [float(state.memory[n]) * x for n, x in known.items()]
        if self.noise:
            curves["noise"] = [float(state.params[LOG_NOISE].exp())]
        return Finished(family, curves)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("MAP", cls(), 1), Entry("deep ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        full = cls(epochs=1000, batch_size=None, optimizer=SGD(lr=0.05, momentum=0.9))
        mean = bench.fit(full, exact.problem, exact.data).mean()
        yield bench.close("mode of the conjugate posterior, full batch", "mu", mean, exact.mean, 1e-12)
        batches = cls(epochs=1000, batch_size=10, optimizer=Adam(lr=Cosine(peak=0.05)))
        mean = bench.fit(batches, exact.problem, exact.data).mean()
        yield bench.close("mode of the conjugate posterior, batches of 10", "mu", mean, exact.mean, 1e-3)
        for cold in (bench.conjugate(temperature=0.1), bench.conjugate(temperature=0.1, temper="likelihood")):
            mean = bench.fit(full, cold.problem, cold.data).mean()
            yield bench.close(f"mode at temperature 0.1 ({cold.problem.temper})", "its mu", mean, cold.mean, 1e-12)
