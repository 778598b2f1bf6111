"""What samplers with full batches have in common: how long they run, what they keep, and what they say at the end.

Chains are coupled members: they learn step size and scales together. A warm-up finds these; then nothing is adapted any
more, and every `thin`-th transition is kept, counted by transitions: draws at given numbers of gradients would prefer
places where transitions take long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes
from ..data import Data, Stream
from ..engine import Based, Demand, Finished, Method, Predicting, Report, Review, Schedule
from ..engine.method import Entry
from ..families import Empirical
from ..problem import Problem
from .energy import dimension
from .ledger import Ledger
from .pace import SMALLEST

LOOKS = 20  # at a run, and at most one in SELDOM steps
SELDOM = 50


@dataclass(frozen=True, kw_only=True)
class Chain(Based, kind="method"):
    """A sampler whose members are chains that warm up together."""

    coupled: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # a proposal that is not finite is rejected
    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    enough: ClassVar[int] = 6000  # gradients where none are given
    slopes: ClassVar[bool] = True  # whether it takes gradients

    base: Method | None = None  # the training that chains start from; None: MAP(). Not run where start= is given
    steps: int | None = None  # gradients of each chain, the warm-up included; None: 6,000
    warmup: int | None = None  # of them before the first draw, in which steps and scales are found; None: a third
    draws: int = 100  # kept from each chain, evenly spread over the rest
    chunk: int | None = None  # examples that go through the network at a time; None: all

    def __post_init__(self) -> None:
        if self.draws < 4:
            raise ValueError(f"expected at least 4 draws of each chain, got {self.draws}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"expected a chunk of at least 1 example, or None for all, got {self.chunk}")
        if not 0 <= self.warm < self.total:
            raise ValueError(
                f"expected a warm-up of fewer than the {self.total:,} steps in all, got {self.warm:,}: raise steps="
            )

    @property
    def total(self) -> int:
        """Gradients of each chain."""
        return self.enough if self.steps is None else self.steps

    @property
    def warm(self) -> int:
        """Of them in the warm-up."""
        return self.total // 3 if self.warmup is None else self.warmup

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.total, None, self.draws, report=max(SELDOM, self.total // LOOKS))

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; raises where data are a stream, or the energy has no gradient."""
        if isinstance(data, Stream):
            raise ValueError(
                f"{self.label} takes all examples in each step, which a stream does not hold: give the data as "
                "tensors, or take a sampler with mini-batches, such as SGHMC"
            )
        if self.slopes:
            _check_gradient(self.label, problem, data)
        return ()

    def point(self, state: Any) -> Point:
        return Point(state.params, state.buffers)

    def review(self, state: Any, report: Report) -> Review:
        ledger: Ledger = state.ledger
        done = int(ledger.least) >= self.draws
        size = float(state.pace.log_size.exp())
        if not size > SMALLEST:
            raise FloatingPointError(
                f"{self.label}: after {report.step:,} steps the step size has fallen to {size:.1g}, and proposals are "
                "still rejected: the energy is not finite or not smooth near the start. Start from a trained network "
                "(start=), and check likelihood and prior"
            )
        return Review(state, done, {"step_size": size}, "" if bool(ledger.frozen) else "warming up")

    def finish(
        self, state: Any, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        ledger: Ledger = state.ledger
        count = min(int(ledger.least), self.draws)
        if samples is None or count == 0:
            raise FloatingPointError(
                f"{self.label}: a chain kept no draw in {self.total:,} steps, {self.warm:,} of them to warm up: raise "
                "steps=, or shorten its transitions"
            )
        acceptance = float(ledger.accepted) / max(1, int(ledger.transitions))
        if acceptance == 0.0 and not bool(ledger.astray):
            raise FloatingPointError(
                f"{self.label}: a chain accepted none of its {int(ledger.transitions):,} proposals at step size "
                f"{float(state.pace.log_size.exp()):.3g}: smaller steps, or step_size=None to have them found"
            )
        params = {name: x[:count] for name, x in samples["params"].items()}
        buffers = {name: x.expand(count, *x.shape).clone() for name, x in state.buffers.items()}
        told = {name: x[:count].double().tolist() for name, x in samples.items() if name != "params"}
        return Finished(
            Empirical(params, buffers, count),
            ledger.curves() | told,
            tuple(_notes(ledger, count, self.draws)),
            tuple(_warnings(ledger)),
        )

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        what = f"{self.draws} draws of {dimension(point.params):,} parameters"
        return Demand(self.draws * nbytes(point), what=what, predict=Predicting(self.draws, self.draws))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry(cls.__name__, cls(), 4),)


def sample_of(params: Params, energy: Tensor, kinetic: Tensor | None = None) -> dict[str, Any]:
    """What the bank keeps of a draw."""
    told = {} if kinetic is None else {"kinetic": 2 * kinetic}
    return {"params": params, "energy": energy, **told}


def _notes(ledger: Ledger, count: int, asked: int) -> Iterable[str]:
    if count < asked:
        yield f"kept {count} draws of the {asked} that were asked for: transitions took longer than foreseen"
    if int(ledger.restarted):
        times = int(ledger.restarted)
        yield f"went astray {times} time{'s' * (times > 1)} in the warm-up, and was put where another chain was"


def _warnings(ledger: Ledger) -> Iterable[str]:
    if bool(ledger.astray):
        yield "its energy ended far above that of the other chains: leave it out, or warm up longer"
    divergences, total = int(ledger.divergences), int(ledger.transitions)
    if divergences:
        yield (
            f"{divergences:,} of {total:,} transitions diverged: part of the posterior is not reached at this step "
            "size; raise the acceptance that is aimed for, or choose another scale"
        )


def _check_gradient(label: str, problem: Problem, data: Data) -> None:
    point = problem.init(Noise.seed(0))
    params = {name: x.detach().requires_grad_() for name, x in point.params.items()}
    first = next(iter(params.values()))
    few = data.take(slice(0, 2)).to(first.device, first.dtype)
    with torch.enable_grad():
        outputs, _ = problem.outputs(params, point.buffers, few.inputs)
        density = problem.likelihood.log_density(outputs, few.targets, problem.split(params)[1])
    if not density.requires_grad:
        raise ValueError(
            f"{label} follows gradients, and the log likelihood of {type(problem.likelihood).__name__} has none: "
            "MetropolisHastings does without"
        )
