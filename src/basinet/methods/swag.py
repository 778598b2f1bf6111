"""SWAG: a normal distribution fitted to the weights that descent visits after training.

    q = N(mean, (Sigma_diag + Sigma_low) / 2),   Sigma_diag = diag of the variance of all T iterates,
    Sigma_low = 1/(K - 1) sum_{last K} (theta_t - mean) (theta_t - mean)'                        (Maddox et al. 2019)

The swing of stochastic descent around a mode takes the shape of the flat region there. Deviations are from the final
mean. With K = T and iterates of covariance V the diagonal of q is that of V (1 - 1/(2T)) and the rest of q is V/2.
Without columns, K = 0, q is N(mean, Sigma_diag), as published.
Norm statistics are recomputed for each draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from ..averaging import Averaging, Moments, share
from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, size
from ..data import Data, Stream
from ..engine import Demand, Descent, Method, Predicting, Sample, Schedule, Step
from ..engine.method import Entry
from ..families import Diagonal, LowRank
from ..optim import SGD
from ..predict import settled as with_statistics
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check

RANKS = (10, 5, 2, 0)  # lower ranks that are named where one does not fit
FLOOR = 1e-30  # variances are clipped here, as published: a parameter that never moved still has a density


@dataclass(frozen=True, kw_only=True)
class SWAG(Averaging):
    """A normal distribution, diagonal plus low rank, fitted to weights visited after training.

    Given validation data, the step size is chosen on them for each member, which stays where it starts if none gains.
    With `members=M` it is MultiSWAG. With `optimizer=SGD(lr=Cyclic(peak=..., cycles=...))`, as many cycles as
    iterates, each iterate is the end of a cycle. `swag_of_checkpoints` makes the same of files.
    """

    usual: ClassVar[bool] = True
    samples: ClassVar[int] = 30  # as published

    rank: int = 20
    """The last iterates, whose deviations from the mean are the columns; 20 as published; 0: diagonal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rank(self.rank, self.iterates, f"collect more, iterates={self.rank}")

    def collecting(self, iterates: int, **changes: Any) -> Self:
        return super().collecting(iterates, rank=min(self.rank, iterates), **changes)

    @property
    def fewest(self) -> int:
        return max(1, self.rank)

    def schedule(self, n: int) -> Schedule:
        return super().schedule(n)._replace(bank=self.rank)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), Moments.at(point.params))

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample | None]:
        gap, done = self.gap(step.batch.total), step.batch.step + 1
        moments = state.memory.add(state.params, share(step.batch.step, gap))
        after = Descent(state.params, state.buffers, state.moments, moments)
        if self.rank == 0:
            return after, None
        among_last = (done % gap == 0) & (done // gap > self.iterates - self.rank)
        return after, Sample(among_last, state.params)

    def point(self, state: Descent) -> Point:
        return Point(state.memory.mean, state.buffers)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> LowRank | Diagonal:
        mean = with_statistics(problem, self.point(state), data, noise.split("refresh"))
        return gaussian(state.memory, self.iterates, samples, mean.buffers)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        each, total = nbytes(point.params), size(point.params)
        kept = (2 + self.rank) * each + nbytes(point.buffers)
        what = f"{self.rank} deviations of {total:,} parameters" if self.rank else f"{total:,} variances"
        drawn = Predicting(self.samples, self.samples, total + self.rank, 2.0 * self.rank * total)
        return Demand(kept, self.rank * each, what=what, predict=drawn)

    def variants(self) -> Iterable[Method]:
        ranks = sorted({self.rank, *(k for k in RANKS if k < self.rank)}, reverse=True)
        return (replace(self, rank=k) for k in ranks)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("SWAG", cls(), 1), Entry("MultiSWAG", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        known, rate, every, count, members = bench.noisy(), 0.5, 5, 40, 400
        still = cls(iterates=2, rank=2, every=1, optimizer=SGD(lr=0.0))  # where the base ended
        start = bench.fit(still, known.problem, known.data)
        recipe = cls(iterates=count, rank=count, every=every, optimizer=SGD(lr=rate), unit_noise=False)
        family = bench.fit(recipe, known.problem, known.data, members, start=start).parts[0].family
        eye = {"weight": torch.eye(len(known.mean), dtype=torch.float64)}
        variances = lift(lambda one: one.quad(eye))(family)  # (members, d, d)
        error = variances.std(0) / math.sqrt(members)
        stationary = known.stationary(rate)
        off = ~torch.eye(len(stationary), dtype=torch.bool)
        z = ((variances.mean(0) - (1 - 0.5 / count) * stationary) / error).diagonal()
        says = "eta S / (h (2 - eta h)) (1 - 1/(2T)), stationary"
        yield bench.close("variances on a quadratic, in standard errors", says, z, torch.zeros_like(z), 4.5)
        z = ((variances.mean(0) - 0.5 * stationary) / error)[off]
        says = "half the stationary covariance"
        yield bench.close("covariances on a quadratic, in standard errors", says, z, torch.zeros_like(z), 4.5)
        alone = cls(iterates=count, rank=0, every=every, optimizer=SGD(lr=rate), unit_noise=False)
        family = bench.fit(alone, known.problem, known.data, members, start=start).parts[0].family
        assert isinstance(family, Diagonal)
        variances = family.scale["weight"].square()  # (members, d)
        z = (variances.mean(0) - (1 - 1 / count) * stationary.diagonal()) / (variances.std(0) / math.sqrt(members))
        says = "eta S / (h (2 - eta h)) (1 - 1/T), stationary"
        yield bench.close("variances of rank 0, in standard errors", says, z, torch.zeros_like(z), 4.5)
        centres = family.mean().params["weight"]  # stacked, (members, d)
        z = (centres.mean(0) - known.mean) / (centres.std(0) / math.sqrt(members))
        yield bench.close("mean on a quadratic, in standard errors", "mu", z, torch.zeros_like(z), 4.5)


def gaussian(moments: Moments, count: int, last: Params | None, buffers: Params) -> LowRank | Diagonal:
    """SWAG's distribution from the moments of `count` iterates and the last K of them, leaves (K, ...); diagonal
    without those."""

    mean = moments.mean
    variance = {n: (x / count).clamp(min=FLOOR) for n, x in moments.squares.items()}
    if last is None:
        return Diagonal(mean, {n: x.sqrt() for n, x in variance.items()}, buffers)
    columns = {n: (x - mean[n]) / math.sqrt(2 * (len(x) - 1)) for n, x in last.items()}
    return LowRank(mean, {n: 0.5 * x for n, x in variance.items()}, columns, buffers)


def check_rank(rank: int, count: int, advice: str) -> None:
    """Refuses a rank that `count` iterates do not give; `advice` is what else to do than lower it."""
    if not (isinstance(rank, int) and (rank >= 2 or rank == 0)):
        raise ValueError(
            f"expected a rank of at least 2, the number of iterates whose deviations are kept, or 0, got {rank!r}"
        )
    if rank > count:
        lower = f", or lower it, rank={count}" if count >= 2 else ""
        raise ValueError(f"rank {rank} is more than the {count} iterates whose deviations it keeps: {advice}{lower}")
