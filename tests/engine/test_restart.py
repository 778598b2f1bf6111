"""Members that diverge restart on their own; early stopping keeps the best weights of each."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import Point, leaves, take, tree_map
from basinet.engine import Descent, Engine, Event, Info, Member, Method, Report, Review, Schedule, Step
from basinet.engine.group import ATTEMPTS
from basinet.families import Delta
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam, Cosine

BOTH = pytest.mark.parametrize("strategy", ["stacked", "loop"])
EVERY = {"device": "cpu", "dtype": torch.float64, "progress": False}


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


@dataclass(frozen=True, kw_only=True)
class Poisoned(MAP):
    """MAP whose gradient is NaN from step `at` on, for the attempts that begin with one of these keys."""

    keys: tuple[tuple[int, int], ...] = ()  # the noise with which `init` was called
    at: int = 0
    optimizer: Any = Adam(lr=Cosine(peak=0.01))

    def init(self, point: Any, problem: Any, noise: bn.Noise) -> Descent:
        poisoned = torch.zeros((), dtype=torch.bool)
        for key in self.keys:
            poisoned = poisoned | (noise.key == torch.tensor(key)).all()
        return MAP.init(self, point, problem, noise)._replace(memory=poisoned)

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        grads, info = MAP.gradient(self, state, step)
        bad = state.memory & (step.batch.step >= self.at)  # () or, in a stack, (M,)
        return tree_map(lambda g: torch.where(along(bad, g), torch.nan, g), grads), info


def along(flags: Tensor, x: Tensor) -> Tensor:
    """Flags () or (M,) as they are set beside x."""
    return flags.reshape(flags.shape + (1,) * (x.dim() - flags.dim()))


@dataclass(frozen=True, kw_only=True)
class Stepwise(Method):
    """The same through `update`, without fused optimisers."""

    recipe: Poisoned

    def schedule(self, n: int) -> Schedule:
        return self.recipe.schedule(n)

    def init(self, point: Any, problem: Any, noise: bn.Noise) -> Descent:
        return self.recipe.init(point, problem, noise)

    def update(self, state: Descent, step: Step) -> tuple[Descent, Info]:
        return self.recipe.update(state, step)

    def point(self, state: Descent) -> Point:
        return self.recipe.point(state)

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: bn.Noise) -> Delta:
        return Delta(state.params, state.buffers)


def stepwise(**fields: Any) -> Stepwise:
    return Stepwise(recipe=Poisoned(**fields))


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3))


PROBLEM = bn.Problem(Net, bn.likelihoods.Categorical())


def first_key(k: int, attempt: int = 0) -> tuple[int, int]:
    """The key that `init` of member k (seed 0) gets."""
    noise = bn.Noise.seed(0).split("fit").split(0).split(k)
    noise = noise if attempt == 0 else noise.split("attempt").split(attempt)
    a, b = noise.split("init").key.tolist()
    return (a, b)


def fit(method: Method, strategy: Any, members: int = 8, **options: Any) -> bn.Posterior:
    engine = Engine(strategy=strategy, **EVERY)
    return bn.fit(method, PROBLEM, classes(), members=members, **{"engine": engine, **options})


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "basinet"]


@BOTH
@pytest.mark.parametrize("recipe", [Poisoned, stepwise])
@pytest.mark.parametrize("at", [0, 3])
def test_one_of_eight_that_diverges_restarts_and_seven_do_not_change_by_a_bit(strategy, recipe, at, caplog):
    well = fit(recipe(epochs=4, batch_size=5, at=at), strategy)
    with caplog.at_level(logging.INFO, "basinet"):
        ill = fit(recipe(epochs=4, batch_size=5, at=at, keys=(first_key(3),)), strategy)
    others = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    assert same(take(ill.parts[0].family, others), take(well.parts[0].family, others))
    assert not same(take(ill.parts[0].family, 3), take(well.parts[0].family, 3))
    assert all(bool(x.isfinite().all()) for x in leaves(take(ill.parts[0].family, 3)))
    assert "failed" not in ill.info and len(ill) == 8
    for k in (0, 1, 2, 4, 5, 6, 7):
        assert ill.info["curves"]["loss"][k] == well.info["curves"]["loss"][k]
    assert ill.info["curves"]["step"][3] == well.info["curves"]["step"][3]
    [line] = [line for line in lines(caplog) if "it restarts" in line]
    assert "member 3 (seed 0) is not finite after" in line and "attempt 2 of 3" in line


def test_a_restarted_member_is_the_same_in_a_stack_and_alone():
    method = Poisoned(epochs=4, batch_size=5, keys=(first_key(1), first_key(1, 1), first_key(2)))
    stacked, loop = fit(method, "stacked", 3), fit(method, "loop", 3)
    for a, b in zip(leaves(stacked.parts[0].family), leaves(loop.parts[0].family)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@BOTH
def test_a_member_that_fails_at_each_attempt_is_left_out_and_listed(strategy, caplog, tmp_path):
    keys = tuple(first_key(1, attempt) for attempt in range(ATTEMPTS))
    with caplog.at_level(logging.INFO, "basinet"):
        posterior = fit(Poisoned(epochs=2, batch_size=5, keys=keys), strategy, 3, pool=tmp_path)
    assert posterior.members == (Member(0, 0), Member(0, 2)) and posterior.info["failed"] == [[0, 1]]
    assert len(posterior.info["curves"]["loss"]) == 2
    assert lines(caplog)[-1] == f"member 1 (seed 0) diverged at each of {ATTEMPTS} attempts and is left out"
    assert len(list(tmp_path.rglob("member-*"))) == 2 and not list(tmp_path.rglob("*checkpoint*"))
    well = fit(Poisoned(epochs=2, batch_size=5), strategy, 3)
    assert same(posterior.parts[0].family, take(well.parts[0].family, torch.tensor([0, 2])))


@BOTH
def test_if_every_member_fails_fit_says_so(strategy):
    data = bn.Data(classes().inputs, classes().inputs[:, :1])
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian())
    recipe = MAP(epochs=10, batch_size=5, optimizer=SGD(lr=1e200))
    with pytest.raises(FloatingPointError, match=r"every member \(2\) became NaN or infinite: lower the learning rate"):
        bn.fit(recipe, problem, data, members=2, engine=Engine(strategy=strategy, **EVERY))


@BOTH
def test_parameters_that_the_last_step_ruined_are_not_returned(strategy):
    data = bn.Data(1e100 * classes().inputs, classes().inputs[:, :1])
    recipe = MAP(epochs=1, batch_size=None, optimizer=SGD(lr=1e300))  # the loss before the step is finite
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian())
    with pytest.raises(FloatingPointError, match="every member"):
        bn.fit(recipe, problem, data, engine=Engine(strategy=strategy, **EVERY))


@dataclass(frozen=True, kw_only=True)
class Bold(Poisoned):
    """Deals with steps that are not finite itself: does not take them."""

    restarts: ClassVar[bool] = False

    def update(self, state: Descent, step: Step) -> tuple[Descent, Info]:
        before = tree_map(torch.clone, state)
        after, info = Poisoned.update(self, state, step)
        lost = state.memory & (step.batch.step >= self.at)  # () or, in a stack, (M,)
        kept = tree_map(lambda old, new: torch.where(along(lost, new), old, new), before, after)
        return kept, info._replace(loss=torch.where(lost, torch.nan, info.loss))


@BOTH
def test_a_method_may_say_that_a_step_that_is_not_finite_needs_no_restart(strategy, caplog):
    ill = {"epochs": 4, "batch_size": 5, "at": 6}
    with caplog.at_level(logging.INFO, "basinet"):
        posterior = fit(Bold(**ill, keys=(first_key(1),)), strategy, 3)
    well = fit(Bold(**ill), strategy, 3)
    assert not [line for line in lines(caplog) if "restarts" in line] and len(posterior) == 3
    assert [math.isnan(x) for x in posterior.info["curves"]["loss"][1]] == [False] * 3 + [True] * 3
    for k in (0, 2):
        assert same(take(posterior.parts[0].family, k), take(well.parts[0].family, k))
    stopped = fit(Few(epochs=4, batch_size=5), strategy, 3)  # after six steps
    assert same(take(posterior.parts[0].family, 1), take(stopped.parts[0].family, 1))


@dataclass(frozen=True, kw_only=True)
class Few(Poisoned):
    """Makes six steps of those that set its step size."""

    def review(self, state: Descent, report: Report) -> Review:
        return Review(state, report.step >= 6)


class Best:
    """Remembers the validation curve of each member."""

    def __init__(self) -> None:
        self.seen: dict[int, list[float]] = {}

    def __call__(self, event: Event) -> None:
        for member, nll in zip(event.members, event.val_nll.tolist()):
            self.seen.setdefault(member.k, []).append(nll)


@BOTH
def test_early_stopping_is_a_members_own_and_returns_its_best_weights(strategy):
    val, seen = classes(9), Best()
    recipe = MAP(epochs=60, batch_size=5, optimizer=Adam(lr=0.03), patience=3)
    posterior = fit(recipe, strategy, 5, val=val, observe=seen)
    curves = posterior.info["curves"]["val_nll"]
    assert curves == [seen.seen[k] for k in range(5)]
    assert len({len(c) for c in curves}) > 1  # they stopped at different reports
    for k, curve in enumerate(curves):
        best = min(range(len(curve)), key=curve.__getitem__)
        assert len(curve) == best + 1 + 3 < 80
        probs = posterior[k].predict(val.inputs).probs
        nll = -probs.gather(1, val.targets[:, None]).log().mean()
        assert float(nll) == pytest.approx(curve[best], abs=1e-10)


@BOTH
def test_patience_that_is_never_spent_still_returns_the_best_weights(strategy):
    val = classes(9)
    recipe = MAP(epochs=12, batch_size=5, optimizer=Adam(lr=0.03), patience=1000)
    posterior = fit(recipe, strategy, 2, val=val)
    for k, curve in enumerate(posterior.info["curves"]["val_nll"]):
        nll = -posterior[k].predict(val.inputs).probs.gather(1, val.targets[:, None]).log().mean()
        assert len(curve) == 17 and float(nll) == pytest.approx(min(curve), abs=1e-10)


def test_patience_needs_validation_data_and_sense():
    with pytest.raises(ValueError, match=r"MAP with patience stops on the validation NLL: pass val=, or patience=None"):
        fit(MAP(patience=3), "loop", 1)
    with pytest.raises(ValueError, match="expected patience of at least 1 report, or None, got 0"):
        MAP(patience=0)


def test_validation_data_that_stop_training_make_another_run_in_a_pool(tmp_path):
    recipe = MAP(epochs=4, batch_size=5, patience=1)
    for n in (6, 7):
        assert fit(recipe, "loop", 1, val=classes(n), pool=tmp_path).info["trained"] == 1
