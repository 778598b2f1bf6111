"""A list in a recipe is a sweep: member k of one run is member k of the plain run with its own value."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from stopping import Killed, Stop
from torch import Tensor, nn

import basinet as bn
from basinet.core.recipe import expand
from basinet.core.tree import leaves
from basinet.engine import Based, Engine, Event, Info, Lift, Member, Method, Schedule, Step
from basinet.engine import group as group_module
from basinet.engine.kernel import Kernel
from basinet.engine.sweep import Marked, Together
from basinet.engine.work import Work
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam, AdamW, Constant, Cosine, Linear, WarmUp

STEP = 1e-12  # rounding that one step in float64 may add


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


@dataclass(frozen=True, kw_only=True)
class Branching(MAP):
    """Looks at a number with `if`, which a tensor of many members does not allow."""

    gain: float = 1.0

    def gradient(self, state: Any, step: Step) -> tuple[Any, Info]:
        grads, info = MAP.gradient(self, state, step)
        return {n: self.gain * g if self.gain > 0.5 else g for n, g in grads.items()}, info


@dataclass(frozen=True, kw_only=True)
class Walk(Based):
    """A random walk through `update`, from where its base ended."""

    norm: ClassVar[Any] = "train"

    size: float = 0.1

    def schedule(self, n: int) -> Schedule:
        return Schedule(6, 5)

    def update(self, state: Any, step: Step) -> tuple[Any, Info]:
        value, buffers = step.problem.potential(state.params, state.buffers, step.batch, step.noise, "train")
        params = {n: x + self.size * step.noise.split(n).normal(x) for n, x in state.params.items()}
        return type(state)(params, buffers), Info(value)

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> bn.families.Delta:
        assert isinstance(self.size, float)  # what is not lifted sees the plain recipe
        return bn.families.Delta({n: self.size * x for n, x in state.params.items()}, state.buffers)


@dataclass(frozen=True, kw_only=True)
class Partway(Walk):
    """Plans its steps by a number that is not whole, and does not look at it again."""

    share: float = 1.0

    def schedule(self, n: int) -> Schedule:
        return Schedule(round(self.share * 10), 5)


@dataclass(frozen=True, kw_only=True)
class Scaled(Based):
    """Post hoc: the parameters of its base, times a factor."""

    factor: float = 1.0

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def init(self, point: Any, problem: Any, noise: Any) -> Any:
        assert isinstance(self.factor, float)  # nothing is lifted where there are no steps
        return point

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> bn.families.Delta:
        return bn.families.Delta({n: self.factor * x for n, x in state.params.items()}, state.buffers)


PROBLEM = bn.Problem(Net, bn.likelihoods.Categorical())
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 5}  # six steps
RECIPES: dict[str, Method] = {
    "rate": MAP(optimizer=Adam(lr=[1e-3, 1e-2, 0.1]), **SHORT),
    "cosine": MAP(optimizer=Adam(lr=Cosine(peak=[1e-3, 1e-2, 0.1], floor=[0.0, 1e-3, 0.0])), **SHORT),
    "warm linear": MAP(optimizer=SGD(lr=WarmUp(schedule=Linear(start=[0.1, 0.2], end=[0.0, 0.1]))), **SHORT),
    "warm-up, which cannot be a tensor": MAP(
        optimizer=SGD(lr=WarmUp(schedule=Constant(value=0.1), fraction=[0.2, 0.5])), **SHORT
    ),
    "decay": MAP(optimizer=AdamW(weight_decay=[0.0, 0.1, 10.0], lr=0.01), **SHORT),
    "coupled decay": MAP(optimizer=Adam(weight_decay=[0.0, 0.1], eps=[1e-8, 1e-3]), **SHORT),
    "momentum": MAP(optimizer=SGD(momentum=[0.0, 0.5, 0.9], weight_decay=[0.0, 0.1, 0.0]), **SHORT),
    "nesterov": MAP(optimizer=SGD(momentum=[0.5, 0.9], nesterov=True), **SHORT),
    "betas": MAP(optimizer=Adam(betas=[(0.9, 0.999), (0.5, 0.9)]), **SHORT),
    "epochs": MAP(epochs=[2, 4, 3], batch_size=5),
    "batches": MAP(epochs=2, batch_size=[5, 7, None]),
    "optimiser": MAP(optimizer=[SGD(lr=0.1), Adam(lr=0.01), SGD(lr=0.2)], **SHORT),
    "average": bn.EMA(horizon=[0.5, 2.0], **SHORT),
    "snapshots": bn.Snapshot(cycles=2, optimizer=SGD(lr=[0.1, 0.3]), **SHORT),
    "cycles": bn.Snapshot(cycles=[2, 1], optimizer=SGD(lr=[0.1, 0.3]), **SHORT),
    "anchored": bn.Anchored(optimizer=Adam(lr=[1e-3, 0.1]), **SHORT),
    "random prior": bn.RandomPrior(beta=[0.0, 1.0, 5.0], **SHORT),
    "branching": Branching(gain=[0.1, 1.0, 2.0], **SHORT),
    "steps by a number": Partway(share=[0.5, 1.0], base=MAP(epochs=1)),
    "update": Walk(size=[0.1, 0.5], base=MAP(epochs=1)),
    "base": Walk(size=0.1, base=MAP(optimizer=Adam(lr=[0.1, 1e-3]), **SHORT)),
    "post hoc": Scaled(factor=[1.0, 2.0], base=MAP(epochs=1)),
}
EACH = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3))


def engine(strategy: Any = "stacked", **options: Any) -> Engine:
    return Engine(device="cpu", dtype=torch.float64, strategy=strategy, progress=False, **options)


def fit(recipe: Method, strategy: Any = "stacked", **options: Any) -> bn.Posterior:
    return bn.fit(recipe, PROBLEM, options.pop("data", classes()), **{"engine": engine(strategy), **options})


def far(a: bn.Posterior, b: bn.Posterior) -> float:
    """The largest difference between what two posteriors of one member hold."""
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return max(float((x.double() - y.double()).abs().max()) for x, y in pairs if isinstance(x, Tensor))


def plain(recipe: Method, k: int, members: int, strategy: Any, **options: Any) -> bn.Posterior:
    """Member k of a run of the plain recipe that it should have."""
    values = expand(recipe)
    return fit(values[k % len(values)], strategy, members=members, **options)[k]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "basinet"]


@EACH
def test_member_k_is_that_of_the_plain_run_to_rounding(recipe):
    swept = fit(recipe, val=classes())
    values = expand(recipe)
    assert swept.members == tuple(Member(0, k) for k in range(len(values)))
    for k, value in enumerate(values):
        alone = plain(recipe, k, len(values), "stacked", val=classes())
        assert swept[k].recipe == value == alone.recipe
        steps = value.schedule(14).steps + (4 * 14 if isinstance(value, (Walk, Scaled)) else 0)  # those of the base
        assert far(swept[k], alone) <= STEP * steps
        curves, expected = swept[k].info["curves"], alone.info["curves"]
        for name in {"step", "loss", "val_nll"} & curves.keys():
            assert curves[name][0] == pytest.approx(expected[name][0], rel=1e-9)
        assert curves.keys() == expected.keys()


@pytest.mark.parametrize("name", ["cosine", "momentum", "epochs", "random prior", "base"])
def test_member_k_is_that_of_the_plain_run_to_the_bit_in_a_loop(name):
    recipe = RECIPES[name]
    swept = fit(recipe, "loop")
    for k in range(len(swept)):
        assert far(swept[k], plain(recipe, k, len(swept), "loop")) == 0.0


def test_values_matter():
    swept = fit(RECIPES["rate"])
    start = fit(MAP(optimizer=SGD(lr=0.0), **SHORT), members=3)
    moved = [far(swept[k], start[k]) for k in range(3)]
    assert moved[0] < 0.01 < moved[1] < 0.1 < moved[2]  # six steps of Adam, each of about the rate


def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Method, int]]:
    """The groups that are run from here on: their method and number of members."""
    groups: list[tuple[Method, int]] = []
    train = group_module.Group.train

    def spy(group: group_module.Group) -> Any:
        groups.append((group.method, len(group.slots)))
        return train(group)

    monkeypatch.setattr(group_module.Group, "train", spy)
    return groups


def test_numbers_run_in_one_stack_and_the_rest_one_after_another(monkeypatch):
    groups = runs(monkeypatch)
    fit(RECIPES["cosine"])
    assert [(type(m), g) for m, g in groups] == [(Together, 3)]
    groups.clear()
    fit(replace(RECIPES["optimiser"], epochs=[1, 1, 1]))
    assert [(type(m), g) for m, g in groups] == [(Together, 2), (MAP, 1)]  # the two of SGD, then Adam
    groups.clear()
    fit(RECIPES["epochs"])
    assert [(m.epochs, g) for m, g in groups] == [(2, 1), (4, 1), (3, 1)]
    groups.clear()
    fit(MAP(epochs=1, optimizer=Adam(lr=[0.1, 0.1])))
    assert [(type(m), g) for m, g in groups] == [(MAP, 2)]  # equal values are one recipe


@pytest.mark.parametrize("strategy", ["stacked", None])
def test_a_method_that_takes_no_tensor_runs_one_after_another_and_says_so_once(strategy, caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        fit(RECIPES["branching"], strategy)
    warnings = [line for line in lines(caplog) if "one after another" in line]
    assert len(warnings) == 1 and warnings[0].startswith("3 recipes of Branching run one after another: ")


def test_single_precision_stays_with_a_parameter_that_has_no_axes(monkeypatch):
    """A number in float64 would make float64 of a parameter of shape (), such as a learned noise."""
    groups = runs(monkeypatch)
    data = bn.Data(classes().inputs.float(), classes().inputs[:, :1].float())
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian(noise=0.5, learned=True))
    for optimizer in (
        Adam(lr=[1e-3, 0.1], weight_decay=[0.0, 0.1], eps=[1e-8, 1e-4]),
        AdamW(lr=[1e-3, 0.1], weight_decay=[0.0, 0.1]),
        SGD(lr=[1e-3, 0.1], momentum=[0.0, 0.5], weight_decay=[0.1, 0.0], nesterov=False),
    ):
        groups.clear()
        recipe = MAP(epochs=3, batch_size=5, optimizer=optimizer)
        swept = bn.fit(recipe, problem, data, engine=Engine(device="cpu", strategy="stacked"))
        assert [(type(m), g) for m, g in groups] == [(Together, 2)]
        assert {x.dtype for x in leaves([p.family for p in swept.parts])} == {torch.float32}
        for k, value in enumerate(expand(recipe)):
            alone = bn.fit(value, problem, data, members=2, engine=Engine(device="cpu", strategy="stacked"))[k]
            assert far(swept[k], alone) <= 1e-5
    groups.clear()
    walk = Walk(size=[0.1, 0.5], base=MAP(epochs=1))  # multiplies as it comes: it is run apart
    swept = bn.fit(walk, problem, data, engine=Engine(device="cpu", strategy="stacked"))
    assert [(type(m), g) for m, g in groups] == [(MAP, 2), (Walk, 1), (Walk, 1)]
    assert {x.dtype for x in leaves([p.family for p in swept.parts])} == {torch.float32}


def test_a_sweep_times_seeds_is_one_run(monkeypatch):
    groups = runs(monkeypatch)
    recipe = RECIPES["rate"]
    swept = fit(recipe, members=6)
    assert [(type(m), g) for m, g in groups] == [(Together, 6)]
    rates = [p.recipe.optimizer.lr for p in swept.parts]
    assert rates == [1e-3, 1e-2, 0.1] * 2 and [len(p.members) for p in swept.parts] == [1] * 6
    for k in range(6):
        assert far(swept[k], plain(recipe, k, 6, "stacked")) <= 12 * STEP
    with pytest.raises(ValueError, match="lists of 3 values, for 4 members"):
        fit(recipe, members=4)


def test_a_sweep_starts_from_one_point_or_from_as_many():
    recipe = RECIPES["rate"]
    start = fit(MAP(epochs=1), members=3)
    swept = fit(recipe, start=start)
    for k, value in enumerate(expand(recipe)):
        assert far(swept[k], fit(value, start=start)[k]) <= 12 * STEP
        assert far(fit(recipe, start=start[0])[k], fit(value, start=start[0], members=3)[k]) <= 12 * STEP
    with pytest.raises(ValueError, match="lists of 3 values, for 2 members"):
        fit(recipe, start=start[:2])


def test_a_swept_posterior_predicts_saves_and_loads(tmp_path):
    swept = fit(RECIPES["random prior"])
    inputs = classes().inputs
    outputs = swept.predict(inputs).outputs
    assert outputs.shape == (3, 1, 14, 3)
    for k, one in enumerate(swept):
        assert torch.equal(one.predict(inputs).outputs[0], outputs[k])
    swept.save(tmp_path)
    loaded = bn.load(tmp_path, Net)
    assert [p.recipe for p in loaded.parts] == expand(RECIPES["random prior"])
    assert torch.equal(loaded.predict(inputs).outputs, outputs)


def test_validation_sees_each_member_as_its_recipe_does():
    recipe, val = RECIPES["random prior"], classes()
    swept = fit(recipe, val=val)
    for one in swept:
        assert bn.score(one, val)["nll"] == pytest.approx(one.info["curves"]["val_nll"][0][-1], rel=1e-12)


def test_early_stopping_is_each_members_own():
    recipe = MAP(epochs=12, batch_size=5, patience=1, optimizer=Adam(lr=[1e-4, 0.3, 1e-3]))
    swept = fit(recipe, val=classes())
    lengths = [len(p.info["curves"]["loss"][0]) for p in swept.parts]
    assert lengths[1] < lengths[0]
    for k, length in enumerate(lengths):
        alone = plain(recipe, k, 3, "stacked", val=classes())
        assert length == len(alone.info["curves"]["loss"][0]) and far(swept[k], alone) <= 36 * STEP


@pytest.mark.parametrize("strategy", ["stacked", "loop"])
def test_plain_runs_find_swept_members_in_the_pool_and_the_other_way(tmp_path, strategy):
    recipe = RECIPES["rate"]
    values = expand(recipe)
    swept = fit(recipe, strategy, pool=tmp_path / "a")
    assert sum(p.info["trained"] for p in swept.parts) == 3
    alone = fit(values[1], strategy, members=3, pool=tmp_path / "a")
    assert alone.info["trained"] == 2 and far(alone[1], swept[1]) == 0.0
    fit(values[2], strategy, members=3, pool=tmp_path / "b")
    fit(values[0], strategy, members=1, pool=tmp_path / "b")
    again = fit(recipe, strategy, pool=tmp_path / "b")
    assert [p.info["trained"] for p in again.parts] == [0, 1, 0]
    assert far(again[1], swept[1]) <= 12 * STEP
    assert [p.info["trained"] for p in fit(recipe, strategy, pool=tmp_path / "b").parts] == [0, 0, 0]


def test_plain_runs_find_what_a_swept_base_made(tmp_path):
    recipe = RECIPES["base"]
    fit(recipe, pool=tmp_path)
    one = fit(expand(recipe)[1], members=2, pool=tmp_path)
    assert one.info["trained"] == 1  # the other member


def checkpoints(pool: Path) -> list[str]:
    return sorted(p.name for p in pool.rglob("*checkpoint*"))


@pytest.mark.parametrize(
    ("name", "error"),
    [("cosine", KeyboardInterrupt), ("random prior", Killed), ("snapshots", Killed), ("epochs", Killed)],
)
def test_a_stopped_sweep_resumes_to_the_same_bits(tmp_path, monkeypatch, name, error):
    recipe, often = RECIPES[name], engine(checkpoint=0.0)
    monkeypatch.setattr(group_module, "BREATH", 1e-12)  # a checkpoint at each step, not only at reports
    unbroken = fit(recipe)
    with pytest.raises(error):
        fit(recipe, pool=tmp_path, engine=often, observe=Stop(2, error))
    assert checkpoints(tmp_path)
    steps = counted(monkeypatch)
    again = fit(recipe, pool=tmp_path, engine=often)
    steps_before = sum(steps)
    steps.clear()
    assert all(far(again[k], unbroken[k]) == 0.0 for k in range(len(again)))
    assert checkpoints(tmp_path) == []
    fit(recipe)
    assert steps_before < sum(steps)  # it did not start over


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps that are made from here on."""
    counts: list[int] = []
    advance = Kernel.advance

    def count(self: Kernel, clocks: Any, count: int, total: Tensor) -> Tensor:
        counts.append(count)
        return advance(self, clocks, count, total)

    monkeypatch.setattr(Kernel, "advance", count)
    return counts


def test_a_plain_run_is_not_taken_for_a_swept_one_that_was_stopped(tmp_path):
    recipe = RECIPES["rate"]
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, pool=tmp_path, observe=Stop(1, KeyboardInterrupt))
    unbroken = fit(expand(recipe)[0], members=3)
    posterior = fit(expand(recipe)[0], members=3, pool=tmp_path)
    assert posterior.info["trained"] == 3 and all(far(posterior[k], unbroken[k]) == 0.0 for k in range(3))
    assert len(checkpoints(tmp_path)) == 2  # those of the swept run


def test_members_that_ended_before_the_stop_keep_the_others_in_their_stack(tmp_path):
    recipe = MAP(epochs=12, batch_size=5, patience=1, optimizer=Adam(lr=[1e-4, 0.3]))
    unbroken = fit(recipe, val=classes())
    lengths = [len(p.info["curves"]["loss"][0]) for p in unbroken.parts]
    assert lengths[1] < lengths[0]
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, val=classes(), pool=tmp_path, observe=Stop(lengths[1] + 1, KeyboardInterrupt))
    again = fit(recipe, val=classes(), pool=tmp_path)
    assert [p.info["trained"] for p in again.parts] == [1, 0]
    assert all(far(again[k], unbroken[k]) == 0.0 for k in range(2)) and checkpoints(tmp_path) == []


def test_a_value_that_diverges_fails_alone_and_the_others_do_not_change_by_a_bit(caplog):
    well = fit(MAP(optimizer=SGD(lr=[1e-3, 0.1, 1e-2]), **SHORT))
    with caplog.at_level(logging.INFO, "basinet"):
        ill = fit(MAP(optimizer=SGD(lr=[1e-3, 1e200, 1e-2]), **SHORT))
    assert ill.members == (Member(0, 0), Member(0, 2))
    assert [p.recipe.optimizer.lr for p in ill.parts] == [1e-3, 1e-2]
    assert all(p.info["failed"] == [[0, 1]] for p in ill.parts)
    assert far(ill[0], well[0]) == far(ill[1], well[2]) == 0.0
    assert sum("diverged at each of 3 attempts" in line for line in lines(caplog)) == 1


def test_a_member_whose_base_diverges_takes_its_recipe_with_it():
    recipe = Walk(size=[0.1, 0.2, 0.3], base=MAP(optimizer=SGD(lr=[1e-3, 1e200, 1e-2]), **SHORT))
    swept = fit(recipe)
    assert swept.members == (Member(0, 0), Member(0, 2)) and [p.recipe.size for p in swept.parts] == [0.1, 0.3]
    for one, k in zip(swept, (0, 2)):
        assert far(one, plain(recipe, k, 3, "stacked")) <= 20 * STEP


def test_groups_cut_by_memory_keep_each_member_its_value():
    recipe = MAP(optimizer=Adam(lr=[1e-3, 1e-2, 0.1, 0.3]), **SHORT)
    whole, cut = fit(recipe), fit(recipe, engine=engine(memory=20_000))
    assert max(far(cut[k], whole[k]) for k in range(4)) <= 12 * STEP


def test_lists_are_refused_before_anything_is_trained(tmp_path):
    steps: list[Event] = []
    with pytest.raises(ValueError, match="expected epochs of at least 0, got -1"):
        fit(MAP(epochs=[1, -1]), pool=tmp_path, observe=steps.append)
    with pytest.raises(ValueError, match="patience"):
        fit(MAP(patience=[None, 3], epochs=1), pool=tmp_path, observe=steps.append)
    assert steps == [] and not list(tmp_path.iterdir())


def test_a_checkpoint_of_other_settings_is_refused_and_not_passed_over(tmp_path):
    recipe = RECIPES["rate"]
    with pytest.raises(KeyboardInterrupt):
        fit(recipe, pool=tmp_path, observe=Stop(2, KeyboardInterrupt))
    with pytest.raises(ValueError, match="with other code or settings"):
        fit(recipe, pool=tmp_path, engine=engine(memory=10**9))


def test_folds_times_values_is_cross_validation():
    values, data = [1e-3, 0.1], classes()
    train, held = data.folds(3, members=len(values))
    recipe = MAP(optimizer=Adam(lr=values), **SHORT)
    swept = fit(recipe, data=train, members=6)
    for k, one in enumerate(swept):
        own = bn.Data(data.inputs, data.targets, rows=train.rows)
        alone = fit(MAP(optimizer=Adam(lr=values[k % 2]), **SHORT), data=own, members=6)[k]
        assert far(one, alone) <= 12 * STEP and one.recipe == alone.recipe
        assert bn.score(one, held[k])["n"] == len(held[k])
        outside = {tuple(x) for x in held[k].inputs.tolist()}
        assert not outside & {tuple(x) for x in train.member(k).inputs.tolist()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cosine", "momentum", "random prior", "snapshots"])
def test_a_step_is_one_graph_for_a_compiler(name):
    """What a GPU captures, stacked and with one stream per member; compiled without a backend, which takes long."""
    recipes = expand(RECIPES[name])
    method, g = Together.of(recipes, PROBLEM, torch.device("cpu")), len(recipes)
    data, noises = classes(), [bn.Noise.seed(0).split(k) for k in range(g)]
    points = [Marked(*r.adapt(PROBLEM).init(noises[k]), torch.tensor(k)) for k, r in enumerate(recipes)]
    engine_ = engine()
    keys = torch.stack([n.key for n in noises])
    kernel = Kernel(Work.of(method, recipes[0].adapt(PROBLEM), data, None), Lift())
    kernel.begin(list(range(g)), [engine_.move(p) for p in points], keys)
    kernel.look_ahead([0] * g, 1)
    given = kernel._given(0, kernel.order[0], kernel.ticks[0], kernel.tick_keys[0])
    arguments = (kernel.cells[0], given.tensors())
    lifted = kernel.lift._prepared(method.update, given, 1)
    whole = torch.compile(lifted, backend="eager", fullgraph=True, dynamic=False)
    for a, b in zip(leaves(whole(*arguments)), leaves(lifted(*arguments))):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
