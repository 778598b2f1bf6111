"""The contract of a method: what the engine asks of an inference rule.

A method is a frozen dataclass of hyperparameters with pure functions, written for ONE member. The engine lifts them
over members, feeds batches and keys, keeps samples, and hands what is left to `finish`, which says which family the
posterior is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from ..core.model import Mode
from ..core.noise import Noise
from ..core.recipe import Recipe
from ..core.tree import Point, nbytes
from ..cost.demand import Demand, Predicting
from ..data import Data, Stream
from ..families import Family
from ..problem import Problem
from .step import Info, Step

if TYPE_CHECKING:
    from ..testing import Bench, Check


ENOUGH = 3000  # steps that bring small networks close to a mode at the default step size
MOST, MANY = 6000, 32  # steps that larger data get: as many as MANY epochs are, up to MOST
EPOCHS = 10  # at least, where the data are so large that MOST steps are fewer
PATIENCE = 60  # reports without a better one, where a recipe gives neither epochs nor patience, of 100 in all: the
#               validation loss of a table often rises before it falls again, as the step size shrinks


class Schedule(NamedTuple):
    """How long a method runs and on what."""

    steps: int  # updates at most; 0 for post-hoc methods, which only finish
    batch_size: int | None  # examples per step; None: all of them, in order
    bank: int = 0  # samples kept for each member
    report: int | None = None  # steps from one report to the next; None: an epoch, or more where that makes many
    order: Literal["shuffled", "given", "independent"] = "shuffled"  # given: each example once, as the data have them,
    # for filters; independent: drawn again at every step, for what takes the noise of batches to be without memory

    @staticmethod
    def of_epochs(epochs: int | None, batch_size: int | None, n: int) -> Schedule:
        """As many steps as visit n examples `epochs` times; all examples at once where a batch would hold them.

        None is 3,000 steps, up to 6,000 where that is 32 epochs, and 10 epochs where that is more: small data need
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


class Report(NamedTuple):
    """What is known of a member at a report, about once an epoch: what `review` is given."""

    number: int  # 1, 2, ... of this member
    step: int  # steps done
    last: bool  # the planned steps are done
    loss: float  # mean since the last report
    val_nll: float | None  # per validation example; of coupled members, their mean; None without validation data
    waited: int  # reports since the lowest validation NLL, without validation data since the lowest loss; 0 at it
    problem: Problem
    training: Data | Stream  # of all members
    member: int  # its number, by which it may have examples of its own
    key: Tensor  # (2,), the member's

    @property
    def data(self) -> Data | Stream:
        """What the member trains on."""
        return self.training.member(self.member)

    @property
    def noise(self) -> Noise:
        """Only for this report."""
        return Noise(self.key).split("review").split(self.step)


class Review(NamedTuple):
    """What a method makes of a report."""

    state: Any  # to go on with: the one it was given, or another
    done: bool = False  # this member needs no more steps
    curves: dict[str, float] = {}  # noqa: RUF012  # numbers that are appended to the member's curves
    progress: str = ""  # a word for the progress bar


class Finished(NamedTuple):
    """What `finish` may return instead of only the family, if there is more to report."""

    family: Family
    curves: dict[str, list[Any]] = {}  # noqa: RUF012  # JSON values that join the member's curves in `posterior.info`
    notes: tuple[str, ...] = ()  # lines that are said to the person at the screen, logged, and kept in `posterior.info`
    warnings: tuple[str, ...] = ()  # the same, loudly: the posterior is worse than what it started from


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
    uses: ClassVar[frozenset[str]] = frozenset()  # which of them it makes use of, too, where they are given
    randomised: ClassVar[bool] = (
        False  # draws noise for each example, so that equal problems give posteriors equal in law
    )
    coupled: ClassVar[bool] = (
        False  # members see each other: `update` (or `gradient`) is written for the stack, with one batch for all
    )
    terms: ClassVar[bool] = True  # for problems with terms beside the likelihood; False: `fit` refuses those
    restarts: ClassVar[bool] = (
        True  # a member whose loss is not finite restarts; False: the method deals with such steps itself
    )
    grows: ClassVar[str | None] = (
        None  # the field that lengthens a run and changes nothing before: with a pool, a run that ended goes on
    )
    usual: ClassVar[bool] = False  # whether `basinet compare` has its rows without being asked for them
    offered: ClassVar[bool] = False  # in `basinet compare`, `methods` and `check`: those of basinet.methods always are
    mode: ClassVar[Mode] = "eval"  # in which its posteriors predict; dropout: what is random in the network is a draw
    samples: ClassVar[int] = 20  # draws per member when predicting, where the family has a continuum of points

    @property
    def label(self) -> str:
        """Its name in tables and messages."""
        return type(self).__name__

    @property
    def via(self) -> str:
        """How its posteriors predict unless told otherwise: sample, linear, probit or bridge. A field, where it is for
        the user to choose."""
        return "sample"

    @property
    def held(self) -> bool:
        """Whether a draw of its posteriors has one dropout mask for all inputs. A field, where it is for the user to
        choose."""
        return False

    @property
    def best(self) -> bool:
        """Whether a member ends in the state of its lowest validation NLL, where there are validation data."""
        return False

    def adapt(self, problem: Problem) -> Problem:
        """The problem as this method sees it: wraps the model where the method changes it."""
        return problem

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """What all members must know of the training data, which are on the device, as a tree of tensors that every
        step is given: asked for once, before any step, and the place to refuse data. By default nothing."""
        return ()

    def trials(self) -> Sequence[Method]:
        """Short recipes, of which `fit` chooses one for each member on validation data to settle what this one leaves
        open; by default there are none."""
        return ()

    def settled(self, trial: Method | None) -> Method:
        """This recipe with what a trial settles; None: such that a member stays where it starts."""
        return self

    def started(self, curves: Mapping[str, Any]) -> Method:
        """This recipe for a member that starts from one with these curves: by default as it is."""
        return self

    def starting(self, family: Family) -> Point:
        """Where a member starts from one of another posterior: at its mean, unless the method takes more of it along,
        among the buffers."""
        return family.mean()

    @abstractmethod
    def schedule(self, n: int) -> Schedule:
        """Steps, batch size and samples kept, for n examples."""

    def in_batches(self, size: int, n: int) -> Method | None:
        """This recipe for a stream that gives `size` of its n examples at a time; None where it takes all of them at
        each step. By default with that `batch_size`, where it has such a field; else as it is."""
        if "batch_size" in {f.name for f in fields(self)}:
            own: dict[str, Any] = {"batch_size": size}
            return None if getattr(self, "batch_size", None) is None else replace(self, **own)
        planned = self.schedule(n)
        return None if planned.steps and planned.batch_size is None else self

    def init(self, point: Point, problem: Problem, noise: Noise) -> Any:
        """The state before the first step; the point itself unless the method keeps more."""
        return point

    def update(self, state: Any, step: Step) -> tuple[Any, Info]:
        """One step."""
        raise TypeError(f"{type(self).__name__} plans steps and has no update")

    def point(self, state: Any) -> Point:
        """The one point that stands for the state."""
        return state

    def judged(self, state: Any, problem: Problem, n: int) -> Sequence[Point]:
        """What validation evaluates, after steps on n examples: points whose predictions are averaged. By default that
        of `point`; a method whose posterior is wide names draws, the same ones at every report."""
        return (self.point(state),)

    def review(self, state: Any, report: Report) -> Review:
        """What the method makes of a report, between steps and not lifted: whether the member is done before its
        planned steps are, and what changes in its state. By default nothing."""
        return Review(state)

    def rests(self, states: Any) -> bool:
        """Whether a longer run, of a method that `grows`, would go through the states (g, ...) of all members."""
        return self.grows is not None

    def fault(self, state: Any, problem: Problem) -> str:
        """What is wrong with a state whose loss is not finite, where the method can tell: said as it restarts."""
        return ""

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


@dataclass(frozen=True, kw_only=True)
class Based(Method, kind="method"):
    """A method whose members start where those of another recipe end, which `fit` trains before, unless it is given a
    start. It sees the problem as that recipe does."""

    base: Method | None = None
    """The recipe that finds where members start, unless `fit` is given a start; None: MAP()."""

    def adapt(self, problem: Problem) -> Problem:
        return problem if self.base is None else self.base.adapt(problem)


def patience_of(method: Method) -> int | None:
    """Reports without a better validation NLL (without validation data: loss) after which a member stops, for recipes
    that have such a field. Where neither that nor the epochs are given, PATIENCE."""
    if not hasattr(method, "patience"):
        return None
    if method.patience is not None and method.patience < 1:
        raise ValueError(f"expected patience of at least 1 report, or None, got {method.patience}")
    return PATIENCE if method.patience is None and getattr(method, "epochs", 0) is None else method.patience


def chooses_by_val(method: Method) -> bool:
    """Whether what it finds depends on the validation data it is given."""
    return "val" in method.needs | method.uses or method.best


def short(recipe: Method) -> str:
    """A recipe by its name and the fields that are not at their defaults."""
    try:
        plain: Method | None = type(recipe)()
    except TypeError:  # it has fields without a default
        plain = None
    values = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    changed = [f"{name}={v}" for name, v in values.items() if plain is None or v != getattr(plain, name)]
    return f"{recipe.label}({', '.join(changed)})" if changed else recipe.label


def plan_of(method: Method, n: int) -> Schedule:
    """The schedule of a method, which must be one of whole numbers."""
    schedule = method.schedule(n)
    if not (isinstance(schedule.steps, int) and schedule.steps >= 0) or (schedule.batch_size or 1) < 1:
        raise ValueError(
            f"{method} plans {schedule.steps} steps of {schedule.batch_size} examples: expected whole numbers, "
            "epochs of at least 0 and batches of at least 1"
        )
    return schedule
