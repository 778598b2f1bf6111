"""What a recipe costs in memory and time, before anything large is made.

Bytes follow from shapes, the state of a method, a pass of a few examples, and what the method says of its posterior
(`Method.demand`). Seconds are those of a few steps and passes, timed and scaled: as many as the recipe plans. Against
measured peaks, bytes were right within a factor of two from 64 MiB on; seconds are a guide, since machines are shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ..arguments import check_arguments, check_data, check_needs, in_batches
from ..core.documented import with_field_doc
from ..core.noise import Noise
from ..core.recipe import expand
from ..core.tree import Point, leaves, nbytes, size, take, tree_map
from ..data import Data, Stream, some
from ..engine import Based, Engine, Member, Method
from ..engine.memory import SHARE, free_bytes, readable
from ..engine.method import plan_of, short
from ..engine.work import Roster, Work
from ..methods.map import MAP
from ..posterior import Posterior
from ..predict import KEEP
from ..problem import Problem
from .prediction import holding
from .recipe import RecipeBytes, differences, instead, recipe_bytes

INPUTS = 1000  # that are predicted, where no number is given
TIMED = 32  # inputs of a pass that is timed
ENOUGH = 0.05  # seconds after which a pass has been timed long enough
SIDE = 512  # of the matrices whose product tells how fast linear algebra is
NUMBERS = 2**16  # random ones that are timed


@with_field_doc
@dataclass(frozen=True)
class Cost:
    """The cost of fitting a recipe and of predicting with its posterior. All numbers are estimates, and the data are
    not counted."""

    method: Method
    """The recipe."""
    members: int
    """How many members it has."""
    parameters: int
    """Parameters of one network."""
    fit_bytes: int
    """The most that is held at once while fitting, base recipes included."""
    kept_bytes: int
    """Bytes of the posterior."""
    predict_bytes: int
    """The most that is held while predicting, beside the posterior."""
    inputs: int
    """How many inputs are predicted."""
    free_bytes: int
    """Bytes that may be used: four fifths of what is free, or what the engine was given."""
    fit_seconds: float | None
    """Seconds of fitting; None: not timed, since it does not fit."""
    predict_seconds: float | None
    """Seconds of predicting the inputs; None: not timed."""
    passes: float
    """Forward passes that a member takes to predict an input, or work like it."""
    instead: Method | None = None
    """If it does not fit: the recipe with a cheaper structure that does."""
    basis: str = ""
    """What the seconds are based on."""

    @property
    def fits(self) -> bool:
        """Whether fitting and predicting stay within what may be used."""
        return max(self.fit_bytes, self.kept_bytes + self.predict_bytes) <= self.free_bytes

    def __str__(self) -> str:
        who = f"{self.members} member" + ("s" if self.members > 1 else "")
        verdict = "fits in" if self.fits else "does not fit in"
        other = f": {differences(self.method, self.instead)} does" if self.instead is not None else ""
        fit, predict = ("" if x is None else f", {x:.2g} s" for x in (self.fit_seconds, self.predict_seconds))
        return (
            f"{short(self.method)}, {who} of {self.parameters:,} parameters, {verdict} the "
            f"{readable(self.free_bytes)} that may be used{other}\n"
            f"  fit      {readable(self.fit_bytes)} at most{fit}\n"
            f"  kept     {readable(self.kept_bytes)}\n"
            f"  predict  {readable(self.predict_bytes)}{predict} for {self.inputs:,} inputs"
        )


def cost(
    method: Method,
    problem: Problem,
    data: Data | Stream | None = None,
    members: int = 1,
    *,
    val: Data | Stream | None = None,
    start: Posterior | None = None,
    inputs: int = INPUTS,
    engine: Engine | None = None,
    timed: bool = True,
) -> Cost:
    """Memory and time of `bn.fit(method, problem, data, members=members)` and of predicting `inputs` inputs.

    Nothing is fitted: a few steps and passes are run to time them, unless `timed` is False. `start` is a posterior to
    start from: what gave it is then not counted.
    """
    return Meter(problem, data, val=val, start=start, inputs=inputs, engine=engine, timed=timed)(method, members)


class Meter:
    """Estimates the cost of many recipes on one problem: what they have in common is measured once."""

    def __init__(
        self,
        problem: Problem,
        data: Data | Stream | None,
        *,
        val: Data | Stream | None = None,
        start: Posterior | None = None,
        inputs: int = INPUTS,
        engine: Engine | None = None,
        timed: bool = True,
    ) -> None:
        if inputs < 1:
            raise ValueError(f"expected at least 1 input to predict, got {inputs}")
        if data is None and val is None:
            raise ValueError(
                "expected data to estimate the cost from: pass data=, or val= for a method that needs no more"
            )
        check_data("data", data)
        check_data("val", val)
        self.problem, self.start, self.inputs, self.timed = problem, start, inputs, timed
        self.engine = engine or Engine()
        self.point = self.engine.move(problem.init(Noise.seed(0)) if start is None else start.points()[0])
        place, dtype = self.engine.place, leaves(self.point.params)[0].dtype
        self.data, self.val = (None if x is None else x.to(place, dtype) for x in (data, val))
        self.free = int(SHARE * free_bytes(place)) if self.engine.memory is None else self.engine.memory
        self._stages: dict[tuple[Method, int], _Stage] = {}
        self._rate: float | None = None
        self._forward: float | None = None
        self._drawn: float | None = None

    def __call__(self, method: Method, members: int = 1) -> Cost:
        """The cost of a recipe."""
        check_arguments(method, self.problem, self.data, self.val, members, self.start)
        if len(expand(method)) > 1:
            raise ValueError(f"expected a plain recipe, got one with lists, {method}: ask for the cost of each")
        stages = [self._stage(stage, members) for stage in self.chain(method)]
        last = stages[-1]
        inputs = self._refreshed(method, last)  # on which norm statistics of draws are recomputed
        own = members if isinstance(self.data, Data) and self.data.rows is not None else 1
        row = nbytes(take(self._look.inputs, slice(0, 1)))
        kept = last.takes.kept + own * inputs * row
        peak = max(stage.peak for stage in stages) + own * inputs * row
        held = self._held(method, last, members)
        fits = max(peak, kept + held) <= self.free
        other = None if fits else instead(method, lambda x: self._recipe_bytes(x, *last.of, members), self.free)
        seconds = [stage.seconds for stage in stages]
        timed = fits and self.timed and None not in seconds
        return Cost(
            method=method,
            members=members,
            parameters=size(self.point.params),
            fit_bytes=peak,
            kept_bytes=kept,
            predict_bytes=held,
            inputs=self.inputs,
            free_bytes=self.free,
            fit_seconds=sum(s or 0.0 for s in seconds) if timed else None,
            predict_seconds=members * self._asked(last, inputs) if timed else None,
            passes=last.takes.demand.predict.forwards,
            instead=None if other is None else other[0],
            basis="; ".join(stage.basis for stage in stages if stage.basis) if timed else "",
        )

    @property
    def _look(self) -> Data:
        """Examples to look at."""
        given = self.data if self.data is not None else self.val
        assert given is not None
        return some(given)

    def chain(self, method: Method) -> list[Method]:
        """The recipe and those that come before it, the first one first."""
        trials = method.trials() if self.val is not None else ()
        if self.start is not None or not isinstance(method, Based):
            return [*trials, method]
        return [*self.chain(method.base or MAP()), *trials, method]

    def _stage(self, method: Method, members: int) -> _Stage:
        """One recipe of a chain, without those before it."""
        if (method, members) in self._stages:
            return self._stages[method, members]
        check_needs(method, self.problem, self.data, self.val)
        if isinstance(self.data, Stream):
            method = in_batches(method, self.data)
        problem = method.adapt(self.problem)
        point = self.point if self.start is not None else self.engine.move(problem.init(Noise.seed(0)))
        needs = self._recipe_bytes(method, problem, point, members)
        steps = plan_of(method, 0 if self.data is None else self.data.n).steps
        at_once = max(1, min(members, self.free // max(needs.each, 1)))
        stage = _Stage((problem, point), needs, needs.peak(at_once), None, "")
        if stage.peak <= self.free and self.timed:
            stage = self._timed(stage, method, members, steps)
        self._stages[method, members] = stage
        return stage

    def _recipe_bytes(self, method: Method, problem: Problem, point: Point, members: int) -> RecipeBytes:
        return recipe_bytes(method, problem, point, self.data, self.val, members)

    def _timed(self, stage: _Stage, method: Method, members: int, steps: int) -> _Stage:
        """The stage with its seconds: of steps at the pace of a few of them, of passes and products likewise."""
        (problem, point), demand, basis = stage.of, stage.takes.demand, []
        seconds, peak = 0.0, stage.takes.peak()
        if steps and self.data is not None:
            noises = [Noise.seed(0).split("fit").split(0).split(k) for k in range(members)]
            keys, who = torch.stack([noise.key for noise in noises]), [Member(0, k) for k in range(members)]
            engine = self.engine  # compiling would take longer than all else here: the pace is that of eager steps
            if engine.place.type == "cpu" and engine.compile is None:
                engine = replace(engine, compile=False)
            roster = Roster(who, lambda i, attempt: point, keys)
            pace = engine.pace(Work.of(method, problem, self.data, None), roster)
            seconds, peak = pace.seconds, stage.takes.peak(pace.at_once)
            basis.append(f"{method.label}: a few steps of {members}, {pace.plan.strategy}, times {steps:,}")
        if demand.passes or demand.flops:
            seconds += members * (demand.passes * self._pass(problem, point) + demand.flops / self._flops())
            basis.append(f"{method.label}: {demand.passes:,.0f} passes of an example and {demand.flops:.2g} flops")
        return stage._replace(peak=peak, seconds=seconds, basis="; ".join(basis))

    def _refreshed(self, method: Method, stage: _Stage) -> int:
        """Inputs that the posterior keeps, on which norm statistics are recomputed for each draw."""
        drawn = stage.takes.demand.predict.numbers > 0  # points of finite families have their statistics
        if method.norm != "refresh" or not drawn or not stage.of[0].network.norms or self.data is None:
            return 0
        return min(KEEP, self.data.n)

    def _held(self, method: Method, stage: _Stage, members: int) -> int:
        """Bytes beside the posterior while predicting."""
        (problem, point), takes = stage.of, stage.takes.demand.predict
        return holding(problem, point, self._look.inputs, takes, self.inputs, members, method.via != "sample")

    def _pass(self, problem: Problem, point: Point) -> float:
        """Seconds of a forward pass of one example, among others."""
        if problem is self.problem and self._forward is not None:
            return self._forward
        rows = tree_map(lambda x: x[:TIMED], self._look.inputs)

        def run() -> None:
            with torch.no_grad():
                problem.outputs(point.params, point.buffers, rows)

        seconds = _seconds(run, self.engine.place) / len(leaves(rows)[0])
        if problem is self.problem:
            self._forward = seconds
        return seconds

    def _asked(self, stage: _Stage, refreshed: int) -> float:
        """Seconds in which one member predicts: passes on inputs, and on those that refresh norm statistics, and the
        making of draws."""
        takes = stage.takes.demand.predict
        passes = takes.forwards * self.inputs + takes.draws * refreshed
        drawn = takes.draws * (takes.numbers * self._number() + takes.flops / self._flops())
        return passes * self._pass(*stage.of) + drawn

    def _number(self) -> float:
        """Seconds of a random number, among others."""
        if self._drawn is None:
            like = torch.empty(NUMBERS, device=self.engine.place)
            key = Noise.seed(0, self.engine.place)
            self._drawn = _seconds(lambda: key.normal(like), self.engine.place) / NUMBERS
        return self._drawn

    def _flops(self) -> float:
        """Operations a second of products of matrices in double precision."""
        if self._rate is None:
            a = torch.eye(SIDE, dtype=torch.float64, device=self.engine.place)
            self._rate = 2 * SIDE**3 / _seconds(lambda: a @ a, self.engine.place)
        return self._rate


class _Stage(NamedTuple):
    """A recipe of a chain."""

    of: tuple[Problem, Point]  # the problem as the recipe sees it, and where it starts
    takes: RecipeBytes
    peak: int  # bytes
    seconds: float | None
    basis: str


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """What a call takes: the mean of as many as take long enough, after one."""
    run()
    _wait(device)
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < ENOUGH:
        run()
        _wait(device)
        count += 1
    return (time.perf_counter() - began) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
