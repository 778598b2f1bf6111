"""What samplers with full batches have in common: how long they run, what they keep, and what they say at the end.

Chains are coupled members: they learn step size and scales together. A warm-up finds these; then nothing is adapted any
more, and every `thin`-th transition is kept, counted by transitions: draws at given numbers of gradients would prefer
places where transitions take long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes
from ..data import Data, Stream
from ..engine import Based, Demand, Finished, Method, Predicting, Report, Review, Schedule, Step
from ..engine.method import Entry
from ..families import Empirical
from ..problem import Problem
from .energy import check_gradient, dimension, energies
from .ledger import Ledger
from .pace import SMALLEST

LOOKS = 20  # at a run, and at most one in SELDOM steps
SELDOM = 50


@dataclass(frozen=True, kw_only=True)
class Chain(Based, kind="method"):
    """A sampler whose members are chains that warm up together."""

    coupled: ClassVar[bool] = True
    grows: ClassVar[str | None] = "more"
    restarts: ClassVar[bool] = False  # a proposal that is not finite is rejected
    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    enough: ClassVar[int] = 6000  # gradients where none are given
    slopes: ClassVar[bool] = True  # whether it takes gradients

    base: Method | None = None
    """The training that chains start from; None: MAP(). Not run where start= is given."""
    steps: int | None = None
    """Gradients of each chain, the warm-up included; None: 6,000."""
    warmup: int | None = None
    """Gradients before the first draw, in which steps and scales are found; None: a third of all."""
    draws: int = 100
    """Draws kept from each chain, evenly spread over the rest."""
    more: int = 0
    """Draws beyond those, with the same spacing: with the pool of a run that has ended, its chains continue."""
    chunk: int | None = None
    """Examples that go through the network at a time; None: all."""
    temperature: float = 1.0
    """A factor on the problem's temperature: 1 is Bayes, below 1 is cold; with a list there are chains at each."""

    def __post_init__(self) -> None:
        if self.draws < 4:
            raise ValueError(f"expected at least 4 draws of each chain, got {self.draws}")
        if self.more < 0:
            raise ValueError(f"expected more draws as a number of at least 0, got {self.more}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"expected a chunk of at least 1 example, or None for all, got {self.chunk}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"expected a positive, finite temperature, got {self.temperature}")
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

    @property
    def wanted(self) -> int:
        """Draws in all."""
        return self.draws + self.more

    def schedule(self, n: int) -> Schedule:
        further = -(-(self.total - self.warm) * self.more // self.draws)
        return Schedule(self.total + further, None, self.wanted, report=max(SELDOM, self.total // LOOKS))

    def rests(self, states: Any) -> bool:
        """Whether no chain has let a draw pass since it had all of them, while others had not."""
        ledger: Ledger = states.ledger
        return bool((ledger.transitions // ledger.thin.clamp(min=1) == ledger.kept).all())

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; raises where data are a stream, or the energy has no gradient."""
        if isinstance(data, Stream):
            raise ValueError(
                f"{self.label} takes all examples in each step, which a stream does not hold: give the data as "
                "tensors, or use a sampler with mini-batches, such as SGHMC"
            )
        if self.slopes:
            check_gradient(self.label, problem, data)
        return ()

    def energies(self, params: Params, buffers: Params, step: Step) -> tuple[Tensor, Tensor]:
        """U / T of all chains, (M,), and its gradient, (M, d)."""
        energy, slopes = energies(params, buffers, step, self.chunk, self.slopes)
        return energy / self.temperature, slopes / self.temperature

    def loss_of(self, energy: Tensor, step: Step) -> Tensor:
        """The loss per example of energies U / T."""
        return energy * self.temperature / step.scale

    def point(self, state: Any) -> Point:
        return Point(state.params, state.buffers)

    def review(self, state: Any, report: Report) -> Review:
        ledger: Ledger = state.ledger
        done = int(ledger.least) >= self.wanted
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
        count = min(int(ledger.least), self.wanted)
        if samples is None or count == 0:
            raise FloatingPointError(
                f"{self.label}: a chain kept no draw in {self.total:,} steps, {self.warm:,} of them to warm up: raise "
                "steps=, or shorten its transitions"
            )
        if not bool(ledger.alive):
            raise FloatingPointError(
                f"{self.label}: no chain accepted any of its {int(ledger.transitions):,} proposals at step size "
                f"{float(state.pace.log_size.exp()):.3g}: use smaller steps, or step_size=None to find them"
            )
        params = {name: x[:count] for name, x in samples["params"].items()}
        buffers = {name: x.expand(count, *x.shape).clone() for name, x in state.buffers.items()}
        kept = {name: x[:count].double().tolist() for name, x in samples.items() if name != "params"}
        return Finished(
            Empirical(params, buffers, count),
            ledger.curves() | kept,
            tuple(_notes(ledger, count, self.wanted)),
            (*_warnings(ledger), *self.remarks(state)),
        )

    def remarks(self, state: Any) -> Iterable[str]:
        """Remarks on how a chain moved, in terms of the sampler's own settings."""
        return ()

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        what = f"{self.wanted} draws of {dimension(point.params):,} parameters"
        return Demand(self.wanted * nbytes(point), what=what, predict=Predicting(self.wanted, self.wanted))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry(cls.__name__, cls(), 4),)


def sample_of(params: Params, energy: Tensor, kinetic: Tensor | None = None) -> dict[str, Any]:
    """What the bank keeps of a draw."""
    heat = {} if kinetic is None else {"kinetic": 2 * kinetic}
    return {"params": params, "energy": energy, **heat}


def _notes(ledger: Ledger, count: int, asked: int) -> Iterable[str]:
    if count < asked:
        yield f"kept {count} draws instead of {asked}: transitions took longer than expected"
    if int(ledger.restarted):
        times = int(ledger.restarted)
        yield f"got lost {times} time{'s' * (times > 1)} in the warm-up, and was moved to another chain's position"


def _warnings(ledger: Ledger) -> Iterable[str]:
    if bool(ledger.astray):
        yield "its energy ended far above that of the other chains: leave it out, or warm up longer"
    divergences, total = int(ledger.divergences), int(ledger.transitions)
    if float(ledger.accepted) == 0:
        yield f"accepted none of its {total:,} proposals, so it has not moved: use smaller steps"
    if divergences:
        yield (
            f"{divergences:,} of {total:,} transitions diverged: part of the posterior is not reached at this step "
            "size; raise the target acceptance, or choose another scale"
        )
