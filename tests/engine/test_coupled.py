"""Members that see each other at every step: one batch, one clock; a stack, chunks and a loop give the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import leaves, ravel, tree_map
from basinet.engine import Descent, Engine, GradientMethod, Info, Lift, Report, Review, Schedule, Step
from basinet.engine import group as group_module
from basinet.engine.kernel import Kernel
from basinet.engine.streams import Streams
from basinet.engine.work import Work
from basinet.methods.map import MAP
from basinet.optim import Adam

EVERY: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "progress": False}


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


@dataclass(frozen=True, kw_only=True)
class Flock(GradientMethod):
    """MAP whose outputs on the batch are pulled to the mean over members; `poison` makes member 1 diverge at a step."""

    coupled: ClassVar[bool] = True

    pull: float = 1.0
    epochs: int = 3
    batch_size: int | None = 8
    poison: int | None = None
    patience: int | None = None
    optimizer: Any = Adam(lr=0.01)

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    @property
    def best(self) -> bool:
        return self.patience is not None

    def review(self, state: Descent, report: Report) -> Review:
        return Review(state, self.patience is not None and report.waited >= self.patience)

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        batch, problem = step.batch, step.problem

        def one(params: Any, buffers: Any, key: Tensor) -> Any:
            energy, after = problem.potential(params, buffers, batch, Noise(key), "train")
            outputs, _ = problem.network(problem.split(params)[0], buffers, batch.inputs, Noise(key), "train")
            return (energy / step.scale, outputs), after

        (loss, outputs), buffers, back = step.lift.pull(one)(state.params, state.buffers, step.noise.key)
        apart = self.pull * (outputs - outputs.mean(0)) / outputs.shape[1]
        grads = back((torch.ones_like(loss), apart))
        if self.poison is not None:
            bad = (torch.arange(len(loss)) == 1) & (batch.step == self.poison)
            grads = tree_map(lambda g: torch.where(bad.reshape(-1, *[1] * (g.dim() - 1)), torch.nan, g), grads)
        return grads, Info(loss, buffers=buffers)


def problem() -> bn.Problem:
    return bn.Problem(Net, bn.likelihoods.Categorical(), prior=bn.priors.Normal(scale=1.0))


def classes(n: int = 40, seed: int = 0) -> bn.Data:
    noise = Noise.seed(seed)
    x = noise.split("x").normal(torch.zeros(n, 4))
    return bn.Data(x, x[:, :3].argmax(1))


def params_of(posterior: bn.Posterior) -> Tensor:
    return ravel(posterior.parts[0].family.params, 1).double()  # type: ignore[attr-defined]


def test_one_member_is_MAP() -> None:
    mine = bn.fit(Flock(), problem(), classes(), members=1, engine=Engine(**EVERY))
    plain = bn.fit(MAP(epochs=3, batch_size=8, optimizer=Adam(lr=0.01)), problem(), classes(), engine=Engine(**EVERY))
    torch.testing.assert_close(params_of(mine), params_of(plain), rtol=0, atol=1e-13)


def test_members_see_each_other() -> None:
    inputs, spread = classes().inputs, []
    for pull in (0.0, 50.0):
        posterior = bn.fit(Flock(pull=pull, epochs=20), problem(), classes(), members=4, engine=Engine(**EVERY))
        spread.append(posterior.predict(inputs).outputs.var(0).mean())
    assert spread[1] < 0.5 * spread[0]


def five_steps(lift: Lift) -> tuple[Tensor, ...]:
    """The sums of losses of four members after five steps, and all that their states hold."""
    data = classes().to(dtype=torch.float64)
    keys = Noise.seed(3).split(torch.arange(4)).key
    kernel = Kernel(Work.of(Flock(), problem(), data, None), lift)
    points = [tree_map(lambda x: x.double() if x.is_floating_point() else x, problem().init(Noise(k))) for k in keys]
    kernel.begin(range(4), points, keys)
    return (kernel.advance([0] * 4, 5, torch.zeros(4, dtype=torch.float64)), *leaves(kernel.states()))


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("recompute", [False, True])
def test_chunks_give_what_one_stack_gives(size: int, recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [five_steps(Lift()), five_steps(Lift(size, recompute=recompute))]
    monkeypatch.setattr("basinet.engine.step.compiled", lambda function, **options: function)
    runs.append(five_steps(Lift(size, recompute=recompute, compile=True)))  # derivatives as a compiler needs them
    for other in runs[1:]:
        for a, b in zip(runs[0], other):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
@pytest.mark.parametrize("recompute", [False, True])
def test_one_compiled_call_per_member_gives_what_one_stack_gives(recompute: bool) -> None:
    """What a GPU records on streams, one member after another."""
    runs, compiled = [], []
    for lift in (Lift(), Streams(2, recompute=recompute, compile=True)):
        torch._dynamo.utils.counters.clear()
        runs.append(five_steps(lift))
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    for a, b in zip(*runs):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert compiled == [0, 2 if recompute else 1]  # not once per member or step


@pytest.mark.parametrize("options", [{"strategy": "loop"}, {"strategy": "stacked", "memory": 25_000}])
def test_strategies_agree(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        stacked, other = (
            bn.fit(Flock(), problem(), classes(), members=5, engine=Engine(**EVERY, **more))
            for more in ({"strategy": "stacked"}, options)
        )
    torch.testing.assert_close(params_of(stacked), params_of(other), rtol=0, atol=1e-12)
    assert ("at a time" in caplog.messages[-1]) == ("memory" in options)


def test_all_see_one_batch_and_one_augmentation() -> None:
    shapes = []

    def augment(inputs: Tensor, noise: Noise) -> Tensor:
        shapes.append(inputs.shape)
        return inputs + noise.normal(inputs[:1])

    data = bn.Data(classes().inputs, classes().targets, augment=augment)
    bn.fit(Flock(epochs=1), problem(), data, members=3, engine=Engine(**EVERY))
    assert set(shapes) == {(8, 4)}


def test_one_that_diverges_takes_all_with_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(FloatingPointError, match="every member"):
        bn.fit(Flock(poison=3), problem(), classes(), members=3, engine=Engine(**EVERY))
    assert sum("all restart" in line for line in caplog.messages) == 2


def test_early_stopping_is_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Flock(epochs=300, patience=2, optimizer=Adam(lr=0.1))
    posterior = bn.fit(recipe, problem(), classes(), val=classes(30, 1), members=3, engine=Engine(**EVERY))
    steps = posterior.info["curves"]["step"]
    assert steps[0] == steps[1] == steps[2] and steps[0][-1] < 1500
    val = torch.tensor(posterior.info["curves"]["val_nll"]).mean(0)
    assert int(val.argmin()) == len(val) - 3


def test_a_stopped_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bn.fit(Flock(epochs=6), problem(), classes(), members=3, pool=tmp_path / "a", engine=Engine(**EVERY))
    reports, report = 0, group_module.Group._report

    def stop(self: Any, due: list[int]) -> Any:
        nonlocal reports
        reports += 1
        if reports == 4:
            raise KeyboardInterrupt
        return report(self, due)

    with monkeypatch.context() as patched:
        patched.setattr(group_module.Group, "_report", stop)
        with pytest.raises(KeyboardInterrupt):
            bn.fit(Flock(epochs=6), problem(), classes(), members=3, pool=tmp_path / "b", engine=Engine(**EVERY))
    again = bn.fit(Flock(epochs=6), problem(), classes(), members=3, pool=tmp_path / "b", engine=Engine(**EVERY))
    assert torch.equal(params_of(whole), params_of(again))
    assert again.info["trained"] == 3


def test_a_pool_keeps_them_together(tmp_path: Path) -> None:
    def run(members: int) -> bn.Posterior:
        return bn.fit(Flock(), problem(), classes(), members=members, pool=tmp_path, engine=Engine(**EVERY))

    three, four = run(3), run(4)
    assert four.info["trained"] == 4  # three trained with one member fewer are of no use
    assert run(3).info["trained"] == 0 and torch.equal(params_of(run(3)), params_of(three))
    next(tmp_path.glob("**/member-0-00001-of-*")).unlink()
    lost = [posterior for posterior in (run(3), run(4)) if posterior.info["trained"]]
    assert len(lost) == 1 and lost[0].info["trained"] == len(lost[0])
    torch.testing.assert_close(params_of(lost[0]), params_of(three if len(lost[0]) == 3 else four), rtol=0, atol=0)


def test_a_list_makes_flocks_of_their_own(tmp_path: Path) -> None:
    """Member k has value k mod L, and sees only those of that value; a pool keeps each flock on its own."""

    def run(pull: Any, seed: int = 0) -> bn.Posterior:
        return bn.fit(
            Flock(pull=pull), problem(), classes(), members=4, seed=seed, pool=tmp_path, engine=bn.Engine(**EVERY)
        )

    swept = run([0.0, 5.0])
    assert [part.recipe.pull for part in swept.parts] == [0.0, 5.0, 0.0, 5.0]  # type: ignore[union-attr]
    alone = run(0.0)  # without a pull, members do not depend on each other
    for k in (0, 2):
        torch.testing.assert_close(params_of(swept[k]), params_of(alone[k]), rtol=0, atol=1e-12)
    assert not torch.allclose(params_of(swept[1]), params_of(alone[1]))
    assert sum(part.info["trained"] for part in run([0.0, 5.0]).parts) == 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="members=10"):
        bn.fit(Flock(), problem(), classes())
    with pytest.raises(ValueError, match="lists have 2 values: give members=20, say, 10 for each"):
        bn.fit(Flock(pull=[1.0, 2.0]), problem(), classes(), members=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without index lists"):
        bn.fit(
            Flock(),
            problem(),
            bn.Data(classes().inputs, classes().targets, rows=torch.zeros(3, 5, dtype=torch.long)),
            members=3,
        )


def test_a_stream_feeds_them() -> None:
    data = classes()
    batches = [(data.inputs[i : i + 8], data.targets[i : i + 8]) for i in range(0, 40, 8)]
    stream = bn.Data.stream(batches, n=40)
    posterior = bn.fit(Flock(epochs=2), problem(), stream, members=3, engine=Engine(**EVERY))
    assert posterior.info["curves"]["step"][0][-1] == 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
def test_compiled_it_is_the_same() -> None:
    eager, compiled = (
        bn.fit(Flock(), problem(), classes(), members=3, engine=Engine(**EVERY, strategy="stacked", compile=c))
        for c in (False, True)
    )
    torch.testing.assert_close(params_of(eager), params_of(compiled), rtol=0, atol=1e-10)
