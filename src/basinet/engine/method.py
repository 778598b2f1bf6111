"""The contract of a method: what the engine asks of an inference rule.

A method is a frozen dataclass of hyperparameters with pure functions, written for ONE member. The engine lifts them
over members, feeds batches and keys, keeps samples, and hands what is left to `finish`, which says which family the
posterior is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.demand import Demand, Predicting
from ..core.noise import Noise
from ..core.recipe import Recipe
from ..core.tree import Params, Point, nbytes
from ..data import Data, Stream
from ..families import Delta, Family
from ..optim import Optimizer
from ..problem import Batch, Problem
from ..problem.spread import settled
from .coupled import Lift

if TYPE_CHECKING:
    from ..testing import Bench, Check


ENOUGH = 3000  # steps that bring small networks close to a mode at the default step size
MOST, MANY = 6000, 100  # steps that larger data get: as many as MANY epochs are, up to MOST
EPOCHS = 10  # at least, where data are so many that MOST steps are less
PATIENCE = 30  # reports without a better one, where a recipe gives neither epochs nor patience, of 100 in all


class Schedule(NamedTuple):
    """How long a method runs and on what."""

    steps: int  # updates at most; 0 for post-hoc methods, which only finish
    batch_size: int | None  # examples a step; None: all of them, in order
    bank: int = 0  # samples kept a member

    @staticmethod
    def of_epochs(epochs: int | None, batch_size: int | None, n: int) -> Schedule:
        """As many steps as visit n examples `epochs` times; all examples at once where a batch would hold them.

        None is 3,000 steps, up to 6,000 where that is 100 epochs, and 10 epochs where that is more: small data need
        many epochs, large data few. It is the most that is done: recipes with a field `patience` end when they are
        done.
        """
        batch = batch_of(batch_size, n)
        if epochs is not None and epochs < 0:
            raise ValueError(f"expected epochs of at least 0, got {epochs}")
        few, many, given = (-(-e * n // batch) for e in (EPOCHS, MANY, epochs or 0))
        steps = max(ENOUGH, min(MOST, many), few) if epochs is None else given
        return Schedule(steps, None if batch == n else batch)


def batch_of(batch_size: int | None, n: int) -> int:
    """Examples a step, of n: as many as are asked for, or all."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"expected a batch_size of at least 1, or None for all examples at once, got {batch_size}")
    return n if batch_size is None else min(batch_size, n)


class Info(NamedTuple):
    """What a step tells beside the next state."""

    loss: Tensor  # (), what was minimised, or minus the log density, per example
    keep: Tensor | None = None  # (), bool: this step's sample goes to the bank
    sample: Any = None  # the tree of tensors that is kept then
    buffers: Params | None = None  # gradient methods: the buffers after the pass
    extra: dict[str, Tensor] = {}  # noqa: RUF012  # anything a person may want to see; never written to


class Finished(NamedTuple):
    """What `finish` may return in place of the family alone, where there is more to tell."""

    family: Family
    curves: dict[str, list[Any]] = {}  # noqa: RUF012  # JSON values that join the member's curves in `posterior.info`
    notes: tuple[str, ...] = ()  # lines that are said to the person at the screen, and logged


class Tuned(NamedTuple):
    """What `tune` returns."""

    state: Any  # to go on with
    curves: dict[str, float] = {}  # noqa: RUF012  # numbers that are appended to the member's curves


class Entry(NamedTuple):
    """A row of `basinet compare`."""

    label: str
    recipe: Method
    members: int


@dataclass(frozen=True, kw_only=True)
class Method(Recipe, kind="method"):
    """An inference rule. Nothing learned is stored here; two recipes with equal fields are the same recipe."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = (
        "train"  # norm statistics afterwards: as trained, or recomputed a draw
    )
    needs: ClassVar[frozenset[str]] = frozenset({"data"})  # which of data and val `fit` must be given
    randomised: ClassVar[bool] = (
        False  # draws noise for each example, so that equal problems give posteriors equal in law
    )
    coupled: ClassVar[bool] = False  # members see each other at every step: see CoupledMethod
    tunes: ClassVar[bool] = False  # has something to do between steps, at reports: see `tune`
    samples: ClassVar[int] = 20  # draws a member when predicting, where the family has a continuum of points

    def adapt(self, problem: Problem) -> Problem:
        """The problem as this method sees it: wraps the model where the method changes it."""
        return problem

    def prepare(self, problem: Problem, data: Data | Stream) -> Problem:
        """The adapted problem with what all members must know of the training data, which are on the device: asked for
        once, before any step. By default nothing."""
        return problem

    @abstractmethod
    def schedule(self, n: int) -> Schedule:
        """Steps, batch size and samples kept, for n examples."""

    def init(self, point: Point, problem: Problem, noise: Noise) -> Any:
        """The state before the first step; the point itself unless the method keeps more."""
        return point

    def update(self, state: Any, batch: Batch, problem: Problem, noise: Noise) -> tuple[Any, Info]:
        """One step."""
        raise TypeError(f"{type(self).__name__} plans steps and has no update")

    def tune(self, state: Any, report: int, step: int, problem: Problem, data: Data, noise: Noise) -> Tuned | None:
        """What a method that `tunes` does between steps, with all of its data, after the report of that number (1,
        2, ..., about once an epoch) at that step, but not after the last; None: nothing this time. Not lifted."""
        return None

    def point(self, state: Any) -> Point:
        """The point that validation evaluates."""
        return state

    def done(self, state: Any) -> Tensor:
        """() bool: this member needs no more steps. By default the planned steps decide."""
        return torch.zeros((), dtype=torch.bool)

    @abstractmethod
    def finish(
        self, state: Any, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """The posterior of one member; `samples` are the kept ones, leaves (K, ...), None where the bank is empty."""

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        """What one member takes beside its training, before any of it is made: by default a point for the state and
        for each sample kept, a pass of each to predict, and nothing to finish."""
        points = 1 + self.schedule(1 if data is None else data.n).bank
        return Demand(points * nbytes(point), predict=Predicting(points, points))

    def variants(self) -> Iterable[Method]:
        """This recipe with posteriors of other structures, itself included, the one to prefer first: where a recipe
        does not fit in memory, one behind it that does is named in its place."""
        return (self,)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        """The rows this method adds to `basinet compare`."""
        recipe = cls()
        return (Entry(cls.__name__, recipe, 1), Entry(f"{cls.__name__} ensemble", recipe, 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        """What theory says this method must give, measured: `basinet check` prints it, tests hold it."""
        return ()


def patience_of(method: Method) -> int | None:
    """Reports without a better validation NLL (without validation data: loss) after which a member stops, for recipes
    that have such a field. Where neither that nor the epochs are given, PATIENCE."""
    if not hasattr(method, "patience"):
        return None
    return PATIENCE if method.patience is None and getattr(method, "epochs", 0) is None else method.patience


def via_of(method: Method | None) -> str:
    """How its posteriors predict unless told otherwise (sample, linear, probit or bridge): the field `via` of recipes
    that have one."""
    return getattr(method, "via", "sample")


def name_of(method: Method) -> str:
    """What people call a method."""
    return getattr(method, "shown", type(method).__name__)


def short(recipe: Method) -> str:
    """A recipe by its name and the fields that are not at their defaults."""
    try:
        plain: Method | None = type(recipe)()
    except TypeError:  # it has fields without a default
        plain = None
    values = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    changed = [f"{name}={v}" for name, v in values.items() if plain is None or v != getattr(plain, name)]
    return f"{name_of(recipe)}({', '.join(changed)})" if changed else name_of(recipe)


def plan_of(method: Method, n: int) -> Schedule:
    """The schedule of a method, which must be one of whole numbers."""
    schedule = method.schedule(n)
    if not (isinstance(schedule.steps, int) and schedule.steps >= 0) or (schedule.batch_size or 1) < 1:
        raise ValueError(
            f"{method} plans {schedule.steps} steps of {schedule.batch_size} examples: expected whole numbers, "
            "epochs of at least 0 and batches of at least 1"
        )
    return schedule


class Descent(NamedTuple):
    """The state of a gradient method."""

    params: Any  # the tree the optimiser moves: the member's params, or variational parameters
    buffers: Params
    moments: Any  # the optimiser's own state
    memory: Any = ()  # what else the method carries from step to step


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method, kind="method"):
    """A method that descends a loss with an elementwise optimiser: it writes `loss` (or `gradient`, where the direction
    is not the gradient of anything) and has an `optimizer`, but no `update`.

    The engine may lift the loss, take the gradient of all members at once, and apply the optimiser to the stacked
    leaves, which is the same for each member.
    """

    optimizer: Optimizer  # how a gradient becomes a step; final classes give it a default

    @property
    def plain(self) -> bool:
        """Whether the loss is the potential per example, to which a normal prior adds what needs no graph."""
        return type(self).loss is GradientMethod.loss

    def loss(self, params: Any, state: Descent, batch: Batch, problem: Problem, noise: Noise) -> Info:
        """What is descended, at `params`, and the buffers after it: by default the potential per example, U T / N,
        where `params` are the network's."""
        potential, buffers = problem.potential(params, state.buffers, batch, noise, "train")
        return Info(potential / problem.scale(batch.total), buffers=buffers)

    def gradient(self, state: Descent, batch: Batch, problem: Problem, noise: Noise) -> tuple[Any, Info]:
        """The gradient with respect to state.params, and Info with the buffers after the pass."""

        def loss(params: Any) -> tuple[Tensor, dict[str, Any]]:
            info = self.loss(params, state, batch, problem, noise)
            return info.loss, {name: x for name, x in info._asdict().items() if x is not None}

        grads, info = torch.func.grad(loss, has_aux=True)(state.params)
        return grads, Info(**info)

    def absorb(self, state: Descent, batch: Batch) -> Descent:
        """What the method does after the optimiser's step: by default nothing."""
        return state

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        return Descent(point.params, point.buffers, self.optimizer.init(point.params))

    def update(self, state: Descent, batch: Batch, problem: Problem, noise: Noise) -> tuple[Descent, Info]:
        grads, info = self.gradient(state, batch, problem, noise)
        return self.descend(state, grads, info, batch), info

    def descend(self, state: Descent, grads: Any, info: Info, batch: Batch) -> Descent:
        """The state after the optimiser's step along `grads`."""
        steps = self.schedule(batch.total).steps
        params, moments = self.optimizer.step(state.params, grads, state.moments, batch.step, steps)
        buffers = state.buffers if info.buffers is None else info.buffers
        return self.absorb(Descent(params, buffers, moments, state.memory), batch)

    def point(self, state: Descent) -> Point:
        return Point(state.params, state.buffers)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """The point where descent ended, with the noise that validation data tell; methods that keep more than a point
        say so."""
        point = self.point(state)
        if val is None or problem.likelihood.spread is None:
            return Delta(point.params, point.buffers)
        point, factor = settled(problem, point, val)
        return Finished(Delta(point.params, point.buffers), {"noise_factor": [factor]})


@dataclass(frozen=True, kw_only=True)
class CoupledMethod(GradientMethod, kind="method"):
    """A gradient method whose members see each other at every step: one stack, one clock, one batch for all.

    It writes `gradient` for the whole stack: state and noise have leaves (M, ...), the batch has no member axis, and
    `lift` computes functions of one member for all. Its members belong together: another number of them is another
    run, and one that diverges takes all with it.
    """

    coupled: ClassVar[bool] = True

    @abstractmethod
    def gradient(  # type: ignore[override]
        self, state: Descent, batch: Batch, problem: Problem, noise: Noise, lift: Lift
    ) -> tuple[Any, Info]:
        """The directions of all members (M, ...) that the optimiser descends, per example, and Info with losses (M,)
        and buffers."""

    def update(  # type: ignore[override]
        self, state: Descent, batch: Batch, problem: Problem, noise: Noise, lift: Lift
    ) -> tuple[Descent, Info]:
        grads, info = self.gradient(state, batch, problem, noise, lift)
        return self.descend(state, grads, info, batch), info
