"""Members that are done cost nothing more: they leave the kernel, and the others do not notice."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import Killed, Stop
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.engine import Descent, Engine, Info, Report, Review, Sample, Schedule, Step
from basinet.engine.kernel import Kernel
from basinet.engine.memory import member_bytes
from basinet.engine.work import Work
from basinet.families import Delta
from basinet.methods.map import MAP
from basinet.optim import Adam

ENDS = (8, 4, 20, 4, 12, 4)  # steps after which each member is done


@dataclass(frozen=True, kw_only=True)
class Leaving(MAP):
    """MAP with an end for each member, which keeps its params at every fifth step; `ill` is the key with which a member
    begins an attempt whose loss is NaN from step 13 on."""

    ends: tuple[int, ...] = ENDS
    ill: tuple[int, int] = (0, 0)
    optimizer: Any = Adam(lr=0.01)

    def schedule(self, n: int) -> Schedule:
        return Schedule(20, 5, bank=4, report=2)

    def init(self, point: Any, problem: Any, noise: bn.Noise) -> Descent:
        return MAP.init(self, point, problem, noise)._replace(memory=(noise.key == torch.tensor(self.ill)).all())

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        info = MAP.loss(self, params, state, step)
        return info._replace(loss=info.loss * torch.where(state.memory & (step.batch.step > 12), torch.nan, 1.0))

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample]:
        return state, Sample(step.batch.step % 5 == 3, {"params": state.params, "index": step.batch.index})

    def review(self, state: Descent, report: Report) -> Review:
        return Review(state, report.step >= self.ends[report.member])

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Delta:
        count = 0 if samples is None else len(samples["index"])
        kept = {f"kept {n}": x.new_zeros(4, *x.shape) for n, x in state.params.items()} | {"index": torch.zeros(4, 5)}
        for j in range(count):
            kept["index"][j] = samples["index"][j]
            for n, x in samples["params"].items():
                kept[f"kept {n}"][j] = x[j]
        return Delta(state.params, kept | {"count": torch.tensor(count)})


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))
        self.double()


PROBLEM = bn.Problem(Net, bn.likelihoods.Categorical())


def classes(n: int = 14, **fields: Any) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3), **fields)


OWN = classes().bootstrap(6, seed=1)
WEIGHTED = classes(weights=torch.linspace(0.5, 2.0, 14, dtype=torch.float64))
DATA = {"shuffled": classes(), "own examples": OWN, "weighted": WEIGHTED}


def fit(recipe: MAP, strategy: Any = "stacked", data: bn.Data = DATA["shuffled"], **options: Any) -> bn.Posterior:
    engine = Engine(device="cpu", strategy=strategy, progress=False, checkpoint=options.pop("checkpoint", 1e9))
    return bn.fit(recipe, PROBLEM, data, members=6, engine=engine, **options)


def apart(a: bn.Posterior, b: bn.Posterior) -> float:
    assert a.members == b.members
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return max(float((x.double() - y.double()).abs().max()) for x, y in pairs)


class Sizes:
    """How many members the kernel has at each step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        plain = Kernel.advance

        def advance(kernel: Kernel, clocks: Any, count: int, total: Tensor) -> Tensor:
            assert kernel.size == len(clocks) == len(kernel.bank.counts) == len(kernel.keys)
            self.seen += [kernel.size] * count
            return plain(kernel, clocks, count, total)

        monkeypatch.setattr(Kernel, "advance", advance)


def test_a_kernel_shrinks_when_half_of_its_members_are_done(monkeypatch):
    sizes = Sizes(monkeypatch)
    fit(Leaving())
    assert sizes.seen[-20:] == [6] * 4 + [3] * 8 + [1] * 8  # after step 8 two of three are left, after 12 one is


@pytest.mark.parametrize("name", DATA)
def test_the_others_end_as_they_would_have(name):
    stacked, loop, together = (
        fit(recipe, strategy, DATA[name])
        for recipe, strategy in ((Leaving(), "stacked"), (Leaving(), "loop"), (Leaving(ends=(20,) * 6), "stacked"))
    )
    counts = stacked.parts[0].family.buffers["count"]
    assert counts.tolist() == [sum(end > step for step in (3, 8, 13, 18)) for end in ENDS]
    assert apart(stacked, loop) <= 1e-12
    member = 2  # which runs to the end
    assert apart(stacked[member], together[member]) <= 1e-12
    assert apart(stacked[0], together[0]) > 1e-3
    assert [len(curve) for curve in stacked.info["curves"]["loss"]] == [end // 2 for end in ENDS]


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6, 7, 9])
@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt])
def test_a_stopped_run_resumes_with_the_remaining_members_to_the_same_bits(at, error, tmp_path: Path):
    unbroken = fit(Leaving())
    with pytest.raises(error):
        fit(Leaving(), checkpoint=0.0, pool=tmp_path, observe=Stop(at, error))
    assert apart(fit(Leaving(), pool=tmp_path), unbroken) == 0
    assert not list(tmp_path.rglob("*checkpoint*"))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_remaining_member_restarts_when_it_diverges(stopped, tmp_path):
    first, second = bn.Noise.seed(0).split("fit").split(0).split(2).split("init").key.tolist()
    recipe = Leaving(ill=(first, second))
    stacked, loop = fit(recipe), fit(recipe, "loop")
    assert apart(stacked, loop) <= 1e-12
    well = fit(Leaving())
    assert apart(stacked[2], well[2]) > 1e-3 and apart(stacked[:2], well[:2]) == apart(stacked[3:], well[3:]) == 0
    if stopped:
        with pytest.raises(KeyboardInterrupt):
            fit(recipe, checkpoint=0.0, pool=tmp_path, observe=Stop(9, KeyboardInterrupt))  # in the second attempt
        assert apart(fit(recipe, pool=tmp_path), stacked) == 0


def test_early_stopping_shrinks_the_kernel_and_each_ends_at_its_best(monkeypatch, tmp_path):
    recipe = MAP(epochs=60, batch_size=5, optimizer=Adam(lr=0.03), patience=3)
    loop, sizes = fit(recipe, "loop", val=classes(9)), Sizes(monkeypatch)
    stacked = fit(recipe, val=classes(9))
    lengths = [len(c) for c in stacked.info["curves"]["val_nll"]]
    assert lengths == [len(c) for c in loop.info["curves"]["val_nll"]] and min(lengths) < max(lengths)
    assert apart(stacked, loop) <= 1e-9  # up to 160 steps of Adam, which divides by the root of squares
    assert sizes.seen[-1] <= 3 and max(sizes.seen) == 6
    for at in (min(lengths), max(lengths) - 1):  # before and after the kernel shrank
        pool = tmp_path / str(at)
        with pytest.raises(Killed):
            fit(recipe, val=classes(9), checkpoint=0.0, pool=pool, observe=Stop(at, Killed))
        assert apart(fit(recipe, val=classes(9), pool=pool), stacked) == 0


def test_what_is_left_of_one_group_has_no_part_in_the_next(caplog):
    recipe = Leaving(ends=(2, 2, 20, 2, 2, 20))
    each = member_bytes(Work.of(recipe, PROBLEM, classes(), None), PROBLEM.init(bn.Noise.seed(0))).total
    engine = Engine(device="cpu", strategy="stacked", progress=False, memory=3 * each)
    with caplog.at_level(logging.INFO, "basinet"):
        groups = bn.fit(recipe, PROBLEM, classes(), members=6, engine=engine)
    assert "in groups of 3" in caplog.messages[0]
    assert apart(groups, fit(recipe, "loop")) <= 1e-12
