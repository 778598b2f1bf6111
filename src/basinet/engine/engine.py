"""Runs a method on members: stacked in one vectorised step, or in a loop, with the same result for each member."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Point, leaves, move, size, stack, take, tree_map, where
from ..data import Data
from ..families import Family
from ..problem import Batch, Problem
from .bank import Bank
from .batches import Batches
from .method import Info, Method, Schedule
from .probe import Strategy, choose
from .progress import Progress

SEGMENTS = 100  # at most so many reports a run
EVALUATE = 1000  # validation examples a pass


class Member(NamedTuple):
    """Who a member is, wherever it stands in a posterior: the seed of the run that made it, and its number there."""

    seed: int
    k: int


class Event(NamedTuple):
    """What `observe` is called with, about once an epoch."""

    method: str
    members: tuple[Member, ...]  # those that are training now
    step: int  # steps done
    steps: int  # steps planned
    loss: Tensor  # (g,), mean over the last steps
    val_nll: Tensor | None  # (g,), per validation example


Observer = Callable[[Event], None]


class Trained(NamedTuple):
    """A member that is done."""

    position: int  # in the list of members asked for
    family: Family
    curves: dict[str, list[float]]  # step, loss, val_nll with validation data; seconds it took


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where and how members run. Everything has a default that fits, and is said in one line."""

    device: str | None = None  # "cpu", "cuda", "cuda:1"; default: the GPU where there is one
    dtype: torch.dtype | None = None  # of floating-point parameters and data; default: as the network is built
    strategy: Strategy | None = None  # "stacked" or "loop"; default: what a probe finds
    progress: bool | None = None  # show a progress bar; default: where the error stream is a terminal

    def __post_init__(self) -> None:
        if self.strategy not in (None, "stacked", "loop"):
            raise ValueError(f"expected strategy 'stacked', 'loop' or None, got {self.strategy!r}")
        if self.device is not None and torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device {self.device!r} was asked for, and torch sees no CUDA device here: use device='cpu'"
            )

    @property
    def place(self) -> torch.device:
        """The device in use."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def move(self, tree: Any) -> Any:
        """A tree of tensors in this engine's device and dtype."""
        return move(tree, self.place, self.dtype)

    def train(
        self,
        method: Method,
        problem: Problem,
        data: Data | None,
        val: Data | None,
        members: Sequence[Member],
        points: Sequence[Point],
        keys: Tensor,
        observe: Observer | None = None,
    ) -> Iterator[Trained]:
        """Yields members as they finish. `points` are where they start, `keys` (M, 2) their noise."""
        points = [self.move(p) for p in points]
        keys = keys.to(self.place)
        dtype = leaves(points[0].params)[0].dtype
        data = None if data is None else data.to(self.place, dtype)
        val = None if val is None else val.to(self.place, dtype)
        schedule = method.schedule(0 if data is None else data.n)
        if not (isinstance(schedule.steps, int) and schedule.steps >= 0) or (schedule.batch_size or 1) < 1:
            raise ValueError(
                f"{method} plans {schedule.steps} steps of {schedule.batch_size} examples: expected whole numbers, "
                "epochs of at least 0 and batches of at least 1"
            )
        total = schedule.steps * len(members)
        with Progress(f"{type(method).__name__} x {len(members)}", total, self.progress) as progress:
            stacked = False
            if schedule.steps > 0:
                assert data is not None

                def attempt(strategy: Strategy) -> None:
                    few = slice(0, 2 if strategy == "stacked" else 1)
                    group = _Group(
                        method,
                        problem,
                        data,
                        members[few],
                        points[few],
                        keys[few],
                        schedule,
                        strategy == "stacked",
                    )
                    for _ in group.steps(group.start(), 0, 1):
                        pass

                choice = choose(self.strategy, len(members), self.place, problem.network.module, attempt)
                stacked = choice.strategy == "stacked"
                progress.say(_describe(method, members, points[0], self.place, choice, schedule, data.n))
            groups = [list(range(len(members)))] if stacked else [[i] for i in range(len(members))]
            for group in groups:
                who, where_from = [members[i] for i in group], [points[i] for i in group]
                run = _Group(method, problem, data, who, where_from, keys[group], schedule, stacked)
                for j, family, curves in run.run(val, progress, observe):
                    yield Trained(group[j], family, curves)


class _Group:
    """Members that run side by side: any number when stacked, one when looping."""

    def __init__(
        self,
        method: Method,
        problem: Problem,
        data: Data | None,
        members: Sequence[Member],
        points: Sequence[Point],
        keys: Tensor,
        schedule: Schedule,
        stacked: bool,
    ) -> None:
        self.method, self.problem, self.data, self.members = method, problem, data, members
        self.points, self.keys, self.schedule, self.stacked = points, keys, schedule, stacked
        if data is not None:
            self.batches = Batches(data, [m.k for m in members], keys, schedule.batch_size)

    def run(
        self, val: Data | None, progress: Progress, observe: Observer | None
    ) -> Iterator[tuple[int, Family, dict[str, list[float]]]]:
        """Trains the group and yields (position in the group, family, curves)."""
        began = time.perf_counter()
        state = self.start()
        bank = Bank(len(self.members), self.schedule.bank)
        curves: list[dict[str, list[float]]] = [{"step": [], "loss": []} for _ in self.members]
        for first, count in _segments(self.schedule, self.data):
            losses, masks = [], []
            for new, info, active in self.steps(state, first, count):
                state = new
                losses.append(info.loss.reshape(-1))
                masks.append(active)
                if info.keep is not None:
                    sample = info.sample if self.stacked else tree_map(lambda x: x.unsqueeze(0), info.sample)
                    bank.write(info.keep.reshape(-1) & active, sample)
            if not losses:
                break
            trained = torch.stack(masks)  # (steps, g); members that are done count no more
            made = trained.sum(0).cpu()
            rows = made.nonzero().squeeze(1)
            loss = (torch.where(trained, torch.stack(losses), 0).sum(0).cpu() / made)[rows]
            done, who = first + len(losses), tuple(self.members[i] for i in rows.tolist())
            _all_finite("the loss", who, loss.isfinite(), done)
            val_nll = None if val is None else self._validate(state, val)
            val_nll = None if val_nll is None else val_nll[rows]
            for at, i in enumerate(rows.tolist()):
                curves[i]["step"].append(float(first + made[i]))
                curves[i]["loss"].append(float(loss[at]))
                if val_nll is not None:
                    curves[i].setdefault("val_nll", []).append(float(val_nll[at]))
            shown = f"loss {loss.mean():.4g}" + ("" if val_nll is None else f", val NLL {val_nll.mean():.4g}")
            progress.advance(len(losses) * len(self.members), shown)
            if observe is not None:
                observe(Event(type(self.method).__name__, who, done, self.schedule.steps, loss, val_nll))
        each = (time.perf_counter() - began) / len(self.members)
        for j, member in enumerate(self.members):
            began = time.perf_counter()
            own = None if self.data is None else self.data.member(member.k)
            noise = Noise(self.keys[j]).split("finish")
            last = take(state, j) if self.stacked else state
            family = self.method.finish(last, bank.of(j), self.problem, own, val, noise)
            finite = torch.stack([x.isfinite().all() for x in leaves(family.mean().params)]).all()
            _all_finite("a parameter", (member,), finite[None], self.schedule.steps)
            yield j, family, curves[j] | {"seconds": [each + time.perf_counter() - began]}

    def start(self) -> Any:
        """The state before the first step."""

        def init(point: Point, key: Tensor) -> Any:
            return self.method.init(point, self.problem, Noise(key).split("init"))

        if self.stacked:
            return lift(init)(stack(self.points), self.keys)
        return init(self.points[0], self.keys[0])

    def steps(self, state: Any, first: int, count: int) -> Iterator[tuple[Any, Info, Tensor]]:
        """The state, info and mask of active members after each of `count` steps; fewer when all members are done."""
        total = self.batches.n
        finishes = type(self.method).done is not Method.done
        active = torch.ones(len(self.members), dtype=torch.bool, device=self.keys.device)

        def step(state: Any, inputs: Any, targets: Any, weights: Any, index: Any, key: Tensor, clock: Tensor) -> Any:
            batch = Batch(inputs, targets, index, clock, total, weights)
            return self.method.update(state, batch, self.problem, Noise(key))

        shared = None if self.batches.shared else 0
        weighted = None if self.batches.data.weights is None else shared
        apply = lift(step, (0, shared, shared, weighted, shared, 0, None)) if self.stacked else step
        is_done = lift(self.method.done) if self.stacked else self.method.done
        index = self.batches.index(first, count)
        clocks = torch.arange(first, first + count, device=self.keys.device)
        keys = Noise(self.keys).split("step").key.unsqueeze(0)
        keys = Noise(keys).split(clocks[:, None]).key  # (count, g, 2)
        if not self.stacked:
            keys, index = keys[:, 0], index if self.batches.shared else index[:, 0]
        for t in range(count):
            if finishes:
                active = ~is_done(state).reshape(-1).to(active.device)
                if not bool(active.any()):
                    return
            new, info = apply(state, *self.batches.gather(index[t]), index[t], keys[t], clocks[t])
            state = where(active, new, state) if finishes and self.stacked else new
            yield state, info, active

    def _validate(self, state: Any, val: Data) -> Tensor | None:
        if self.method.norm == "refresh" and self.problem.network.norms:
            return None  # the statistics that belong to the point are not there yet

        def nll(state: Any, inputs: Any, targets: Tensor, weights: Tensor | None) -> Tensor:
            point = self.method.point(state)
            batch = Batch(inputs, targets, targets, torch.zeros(()), val.n, weights)
            return -self.problem.log_likelihood(point.params, point.buffers, batch)[0]

        apply = lift(nll, (0, None, None, None)) if self.stacked else nll
        total = torch.zeros(len(self.members), dtype=torch.float64)
        with torch.no_grad():
            for begin in range(0, val.n, EVALUATE):
                part = val.take(slice(begin, begin + EVALUATE))
                total += apply(state, part.inputs, part.targets, part.weights).reshape(-1).cpu()
        return total / val.n


def _all_finite(what: str, members: Sequence[Member], finite: Tensor, step: int) -> None:
    if not bool(finite.all()):
        lost = [members[i] for i in (~finite).nonzero().squeeze(1).tolist()]
        names = ", ".join(f"{m.k} (seed {m.seed})" for m in lost)
        raise FloatingPointError(
            f"{what} of member {names} is not finite after {step} steps: lower the learning rate, or warm it up"
        )


def _segments(schedule: Schedule, data: Data | None) -> Iterator[tuple[int, int]]:
    """(first step, number of steps) between reports: an epoch, or more where there would be too many of them."""
    if schedule.steps == 0 or data is None:
        return
    epoch = 1 if schedule.batch_size is None else max(1, data.n // schedule.batch_size)
    length = max(epoch, -(-schedule.steps // SEGMENTS))
    for first in range(0, schedule.steps, length):
        yield first, min(length, schedule.steps - first)


def _describe(
    method: Method,
    members: Sequence[Member],
    point: Point,
    device: torch.device,
    choice: Any,
    schedule: Schedule,
    n: int,
) -> str:
    who = f"{len(members)} member" + ("s" if len(members) > 1 else "")
    dtype = str(leaves(point.params)[0].dtype).removeprefix("torch.")
    batch = n if schedule.batch_size is None else min(schedule.batch_size, n)
    return (
        f"{type(method).__name__}: {who} of {size(point.params):,} parameters on {device.type} in {dtype}, "
        f"{choice.strategy} ({choice.reason}), {schedule.steps:,} steps of {batch} of {n:,} examples"
    )
