"""Gradients that the engine takes in one pass, the prior in the graph or not, are those of each member on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import leaves, stack, take
from basinet.engine import Descent, Info, Lift, Step
from basinet.engine.step import INSIDE, Alone
from basinet.methods.map import MAP
from basinet.problem import Batch

DATA = bn.datasets.load("wine").train
M = 3


@dataclass(frozen=True, kw_only=True)
class Lifted(MAP):
    """MAP whose gradient is taken inside of what is lifted."""

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        return step.lift.each(self.of_one)(state, step)

    def of_one(self, state: Descent, step: Step) -> tuple[Any, Info]:
        return MAP.gradient(self, state, step)


@dataclass(frozen=True, kw_only=True)
class InGraph(MAP):
    """MAP whose loss has the prior in its graph, whatever the prior."""

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        energy, buffers = step.problem.potential(params, state.buffers, step.batch, step.noise, "train")
        return Info(energy / step.scale, buffers=buffers)


@dataclass(frozen=True, kw_only=True)
class Both(Lifted, InGraph):
    """As both."""


CALLS: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Counted(MAP):
    """MAP that counts the calls of its loss."""

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        CALLS.append(1)
        return MAP.loss(self, params, state, step)


@dataclass(frozen=True, kw_only=True)
class Doubled(MAP):
    """MAP with a loss of its own: twice the potential."""

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        info = MAP.loss(self, params, state, step)
        return info._replace(loss=2 * info.loss, quadratic={n: 2 * d for n, d in info.quadratic.items()})


PRIORS = {
    "one scale": bn.priors.Normal(scale=0.3),
    "by fan": bn.priors.Normal(scale="lecun"),
    "per layer": bn.priors.Normal(scale={"0": 0.2, "2": 2.0}),
    "centred": bn.priors.Normal(scale=0.5, centre={"0.bias": torch.ones(7)}),
    "not normal": bn.priors.StudentT(),
}
EACH = pytest.mark.parametrize("name", PRIORS)
TEMPER = pytest.mark.parametrize("temper", ["posterior", "likelihood"])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))


def problem_of(name: str, temper: Literal["posterior", "likelihood"] = "posterior", make: Any = net) -> bn.Problem:
    return bn.Problem(make, bn.likelihoods.Categorical(), PRIORS[name], temperature=0.5, temper=temper)


@TEMPER
@EACH
def test_every_way_to_a_gradient_gives_the_same_members(name: str, temper: Literal["posterior", "likelihood"]):
    problem = problem_of(name, temper)
    posteriors = []
    for recipe in (cls(epochs=3, batch_size=40) for cls in (MAP, Lifted, InGraph, Both)):
        for strategy in ("stacked", "loop"):
            engine = bn.Engine(device="cpu", dtype=torch.float64, strategy=strategy, progress=False)  # type: ignore[arg-type]
            posteriors.append(bn.fit(recipe, problem, DATA, members=M, engine=engine))
    for other in posteriors[1:]:
        apart = (float((a - b).abs().max()) for a, b in zip(leaves(posteriors[0].points()), leaves(other.points())))
        assert max(apart) < 1e-12
        assert other.info["curves"]["loss"][0] == pytest.approx(posteriors[0].info["curves"]["loss"][0], rel=1e-12)


def start(problem: bn.Problem, recipe: MAP | None = None) -> tuple[Descent, Step]:
    """A stack of members and a step of all of them, on a batch that they share."""
    keys, recipe = Noise.seed(1).spread(M), recipe or MAP()
    state = stack([recipe.init(problem.init(Noise(key)), problem, Noise(key)) for key in keys.key])
    rows = torch.arange(40)
    batch = Batch(DATA.inputs[rows].double(), DATA.targets[rows], rows, torch.tensor(0), DATA.n)
    return state, Step(batch, problem, keys)


def whole(grads: Any, info: Info, state: Descent) -> tuple[Any, Tensor]:
    """Gradients with those of the quadratic part that is left to the optimiser's step, and the loss."""
    return grads | {n: grads[n] + d * state.params[n] for n, d in info.quadratic.items()}, info.loss


def ways(recipe: MAP, state: Descent, step: Step) -> dict[str, tuple[Any, Tensor]]:
    """Gradients and losses of all members, leaves (M, ...), by every way to compute them."""

    def of_one(state: Descent, key: Tensor, lift: Lift) -> tuple[Any, Tensor]:
        return whole(*recipe.gradient(state, step._replace(noise=Noise(key), lift=lift)), state)

    axes, keys, stacked = (None, None, None, None, None, 0), step.noise.key, Lift()
    stacked.axes = axes
    alone = [of_one(take(state, i), keys[i], Alone()) for i in range(M)]
    return {
        "stacked": whole(*recipe.gradient(state, step._replace(lift=stacked)), state),
        "alone": stack(alone),
        "inside": lift(lambda state, key: of_one(state, key, INSIDE))(state, keys),
    }


def same(a: Any, b: Any, tolerance: float) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@TEMPER
@EACH
def test_a_quadratic_part_is_what_the_prior_in_the_graph_gives(name: str, temper: Literal["posterior", "likelihood"]):
    problem = problem_of(name, temper, lambda: net().double())
    state, step = start(problem)
    one = step._replace(noise=Noise(step.noise.key[0]), lift=INSIDE)
    info = MAP().loss(take(state, 0).params, take(state, 0), one)
    assert set(info.quadratic) == (set(state.params) if name in ("one scale", "by fan", "per layer") else set())
    expected = ways(InGraph(), state, step)["inside"]
    assert expected[1].shape == (M,)
    for grads_and_loss in ways(MAP(), state, step).values():
        same(grads_and_loss, expected, 1e-12)


def test_factors_of_a_quadratic_part_may_be_each_members_own():
    """As a sweep over them makes them: tensors (), which are (M,) in a stack."""

    @dataclass(frozen=True, kw_only=True)
    class Own(MAP):
        outside: bool = True

        def init(self, point: Any, problem: bn.Problem, noise: Noise) -> Descent:
            return MAP.init(self, point, problem, noise)._replace(
                memory=1 + noise.uniform(torch.zeros((), dtype=torch.float64))
            )

        def loss(self, params: Any, state: Descent, step: Step) -> Info:
            energy, buffers = step.problem.data_potential(params, state.buffers, step.batch, step.noise, "train")
            quadratic = dict.fromkeys(params, state.memory)
            if self.outside:
                return Info(energy, buffers=buffers, quadratic=quadratic)
            return Info(energy + sum(0.5 * d * params[n].square().sum() for n, d in quadratic.items()), buffers=buffers)

    state, step = start(problem_of("one scale", make=lambda: net().double()), Own())
    assert len(set(state.memory.tolist())) == M
    for grads_and_loss in ways(Own(), state, step).values():
        same(grads_and_loss, ways(Own(outside=False), state, step)["inside"], 1e-12)


def test_what_lies_in_no_axis_of_its_own_may_be_quadratic_too():
    """Parameters of shape ()."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
            self.last = nn.Linear(13, 3, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.gain * self.last(x)

    state, step = start(problem_of("one scale", make=Scaled))
    for grads_and_loss in ways(MAP(), state, step).values():
        same(grads_and_loss, ways(InGraph(), state, step)["inside"], 1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
@pytest.mark.parametrize("way", [Lift, Alone])
@pytest.mark.parametrize("name", ["by fan", "not normal"])
def test_compiled_it_is_the_same(name: str, way: type[Lift]):
    state, step = start(problem_of(name, make=lambda: net().double()))
    if way is Alone:
        state, step = take(state, 0), step._replace(noise=Noise(step.noise.key[0]))
    plain, fast = way(), way(compile=True)
    plain.axes = fast.axes = (None, None, None, None, None, 0)
    grads, info = InGraph().gradient(state, step._replace(lift=plain))
    same(whole(*MAP().gradient(state, step._replace(lift=fast)), state), (grads, info.loss), 1e-12)


@pytest.mark.parametrize("members", [1, M])
@pytest.mark.parametrize("strategy", [None, "stacked", "loop"])
def test_the_loss_that_a_method_writes_is_what_runs(members: int, strategy: Any):
    engine = bn.Engine(device="cpu", strategy=strategy, progress=False)
    problem, calls, steps = problem_of("one scale"), [], []
    for epochs in (3, 6):
        CALLS.clear()
        posterior = bn.fit(Counted(epochs=epochs, batch_size=40), problem, DATA, members=members, engine=engine)
        calls.append(len(CALLS))
        steps.append(posterior.info["curves"]["step"][0][-1])
    assert calls[1] - calls[0] == (steps[1] - steps[0]) * (members if strategy == "loop" else 1)


def test_another_loss_makes_other_members():
    engine, sgd = bn.Engine(device="cpu", dtype=torch.float64, progress=False), bn.optim.SGD(lr=0.1)
    recipe = MAP(epochs=3, batch_size=40, optimizer=sgd)
    twice = Doubled(epochs=3, batch_size=40, optimizer=replace(sgd, lr=0.05))
    plain, doubled = (bn.fit(r, problem_of("by fan"), DATA, members=M, engine=engine) for r in (recipe, twice))
    for a, b in zip(leaves(plain.points()), leaves(doubled.points())):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert doubled.info["curves"]["loss"][0][0] == pytest.approx(2 * plain.info["curves"]["loss"][0][0], rel=1e-12)


def test_a_step_without_a_lift_is_that_of_one_member():
    problem = bn.Problem(lambda: nn.Linear(13, 3).double(), bn.likelihoods.Categorical())
    recipe, data, point = MAP(), DATA.to(dtype=torch.float64), problem.init(Noise.seed(0))
    batch = Batch(data.inputs[:8], data.targets[:8], torch.arange(8), torch.tensor(0), data.n)
    plain = Step(batch, problem, Noise.seed(1))
    moved = [
        recipe.update(recipe.init(point, problem, Noise.seed(2)), s)[0] for s in (plain, plain._replace(lift=INSIDE))
    ]
    assert all(torch.equal(a, b) for a, b in zip(leaves(moved[0].params), leaves(moved[1].params)))
    assert not torch.equal(moved[0].params["weight"], point.params["weight"])
