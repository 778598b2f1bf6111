"""Memory: members are cut into groups that fit, and into smaller ones when that was too many."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves, nbytes
from basinet.engine import Descent, Engine, Event, Info, Method, Step, planner
from basinet.engine.kernel import Kernel
from basinet.engine.memory import COPIES, MemberBytes, free_bytes, member_bytes, readable
from basinet.engine.work import Work
from basinet.methods.map import MAP
from basinet.optim import SGD

RECIPE = MAP(epochs=3, batch_size=5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)).double()


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4, dtype=torch.float64)), key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
POINT = PROBLEM.init(bn.Noise.seed(0))


def needed(method: Any = RECIPE, **schedule: Any) -> MemberBytes:
    """What a member takes, where its schedule is another."""
    work = Work.of(method, PROBLEM, classes(), None)
    return member_bytes(work._replace(schedule=work.schedule._replace(**schedule)), POINT)


EACH = needed().total


class Groups:
    """The groups that were trained, in their order."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, event: Event) -> None:
        group = tuple(m.k for m in event.members)
        if not self.seen or self.seen[-1] != group:
            self.seen.append(group)


def fit(observe: Any = None, pool: Any = None, **engine: Any) -> bn.Posterior:
    given = Engine(device="cpu", progress=False, **{"strategy": "stacked", **engine})
    return bn.fit(RECIPE, PROBLEM, classes(), members=7, engine=given, observe=observe, pool=pool)


def apart(a: bn.Posterior, b: bn.Posterior) -> float:
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs)


@pytest.mark.parametrize(
    ("room", "groups"),
    [
        (7.0, [(0, 1, 2, 3, 4, 5, 6)]),
        (6.9, [(0, 1, 2, 3), (4, 5, 6)]),
        (3.5, [(0, 1, 2), (3, 4, 5), (6,)]),
        (1.0, [(k,) for k in range(7)]),
    ],
)
def test_members_run_in_groups_of_about_equal_size_that_fit(room, groups, caplog):
    groups_seen = Groups()
    with caplog.at_level(logging.INFO, "basinet"):
        posterior = fit(groups_seen, memory=int(room * EACH))
    assert groups_seen.seen == groups
    assert (f"in groups of {len(groups[0])}" in caplog.messages[0]) == (1 < len(groups[0]) < 7)
    assert f"(about {readable(EACH)} each)" in caplog.messages[0]
    assert apart(posterior, fit()) <= 1e-11


def test_a_member_that_does_not_fit_is_refused_with_numbers():
    with pytest.raises(MemoryError) as caught:
        fit(memory=EACH - 1)
    text = str(caught.value)
    assert f"one member of {30 + 12 + 21} parameters needs about {readable(EACH)}" in text
    assert f"and {readable(EACH - 1)} may be used: use a smaller batch_size or network" in text


def test_one_member_may_take_more_than_groups_that_must_not_depend_on_what_is_free(monkeypatch, caplog):
    monkeypatch.setattr(planner, "FIXED", EACH - 1)
    seen = Groups()
    with caplog.at_level(logging.INFO, "basinet"):
        fit(seen, deterministic=True)
    assert seen.seen == [(k,) for k in range(7)]
    monkeypatch.setattr(planner, "free_bytes", lambda place: EACH)  # of which four fifths may be used
    with pytest.raises(MemoryError, match="one member of 63 parameters needs about"):
        fit(deterministic=True)


class Full:
    """Memory runs out at the n-th call for a group of more than `most` members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, at: int, error: Exception) -> None:
        self.calls, plain = 0, Kernel.advance

        def advance(kernel: Kernel, clocks: Any, count: int, total: Tensor) -> Tensor:
            self.calls += kernel.size > most
            if kernel.size > most and self.calls >= at:
                raise error
            return plain(kernel, clocks, count, total)

        monkeypatch.setattr(Kernel, "advance", advance)


@pytest.mark.parametrize("at", [1, 2, 5], ids=["in the probe", "in the probe, later", "in the middle"])
@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")],
    ids=["GPU", "CPU"],
)
@pytest.mark.parametrize("strategy", ["stacked", None])
def test_out_of_memory_halves_the_group_and_training_continues(at, error, strategy, monkeypatch, caplog, tmp_path):
    whole, seen = fit(), Groups()
    Full(monkeypatch, 2, at, error)
    with caplog.at_level(logging.INFO, "basinet"):
        posterior = fit(seen, tmp_path, strategy=strategy)
    lines = [line for line in caplog.messages if "out of memory" in line]
    assert lines[0] == "out of memory with 7 members at once: continuing with 4"
    assert "out of memory with 4 members at once: continuing with 2" in lines
    assert max(len(g) for g in seen.seen[-4:]) <= 2 and {k for g in seen.seen for k in g} == set(range(7))
    assert apart(posterior, whole) <= 1e-11
    assert not list(tmp_path.rglob("*checkpoint*")) and len(list(tmp_path.rglob("member-*"))) == 7


def test_out_of_memory_with_one_member_is_an_error(monkeypatch):
    Full(monkeypatch, 0, 4, torch.OutOfMemoryError("no more"))
    with pytest.raises(torch.OutOfMemoryError, match="no more"):
        fit(strategy="loop")


def test_a_killed_run_keeps_the_halves(monkeypatch, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        Full(patch, 4, 4, torch.OutOfMemoryError("no more"))
        unbroken = fit()
    with pytest.MonkeyPatch.context() as patch:
        Full(patch, 4, 4, torch.OutOfMemoryError("no more"))
        with pytest.raises(KeyboardInterrupt):
            fit(Interrupt(), tmp_path)
    assert apart(fit(pool=tmp_path), unbroken) == 0  # there is room now; the groups stay as they were


class Interrupt:
    """Ctrl-C in the first group of four, when its members are at their second report."""

    def __call__(self, event: Event) -> None:
        if len(event.members) == 4 and event.step == 4:
            raise KeyboardInterrupt


def test_the_estimate_counts_states_activations_batch_and_samples():
    sgd, adam = (needed(MAP(batch_size=5, optimizer=o)) for o in (SGD(lr=0.1), RECIPE.optimizer))
    assert adam.state - sgd.state == COPIES * 2 * nbytes(POINT.params)
    assert needed().total == needed().state + needed().step + needed().batch
    assert needed(bank=10).total == EACH + 10 * nbytes(POINT.params)
    assert needed(batch_size=10).total > EACH


@dataclass(frozen=True, kw_only=True)
class Greedy(MAP):
    """MAP whose loss holds `more` bytes beyond what it needs."""

    more: int = 8 * 100_000

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        info = MAP.loss(self, params, state, step)
        held = torch.zeros(self.more // 8, dtype=torch.float64)
        return info._replace(loss=info.loss + held.sum())


def test_memory_is_that_of_the_methods_own_step():
    greedy = needed(Greedy(epochs=3, batch_size=5))
    assert greedy.step - needed().step == pytest.approx(Greedy().more, rel=0.05)
    assert (greedy.state, greedy.samples) == (needed().state, needed().samples)
    wide = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 200), nn.Tanh(), nn.Linear(200, 3)), PROBLEM.likelihood)
    data, point = classes(64).to(dtype=torch.float32), wide.init(bn.Noise.seed(0))

    def of(method: Method) -> MemberBytes:
        return member_bytes(Work.of(method, wide, data, None).to(torch.device("cpu"), torch.float32), point)

    plain, second = of(MAP(batch_size=32)), of(bn.FoRDE(batch_size=32, lengthscales="identity"))
    assert second.batch > 1.5 * plain.batch  # activations of a second derivative
    assert second.total > plain.total


def test_a_step_that_is_measured_leaves_no_trace():
    before, state = torch.get_rng_state(), [x.clone() for x in leaves(POINT)]
    needed()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(leaves(POINT), state))


@pytest.mark.parametrize(("size", "text"), [(7, "7 B"), (2048, "2 KiB"), (1.5 * 2**30, "1.5 GiB"), (2**43, "8 TiB")])
def test_bytes_are_printed_as_people_read_them(size, text):
    assert readable(size) == text


def test_something_is_free():
    assert 2**20 < free_bytes(torch.device("cpu")) < 2**50
