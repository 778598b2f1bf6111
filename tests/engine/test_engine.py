"""The engine: stacked and loop give each member the same, on its own or with others, and stop where they should."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import Point, leaves, tree_map
from basinet.engine import (
    Descent,
    Engine,
    Event,
    Finished,
    Info,
    Member,
    Method,
    Report,
    Review,
    Sample,
    Schedule,
    Step,
)
from basinet.engine import group as group_module
from basinet.engine.work import Roster, Trained, Work
from basinet.families import Delta, Empirical
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam
from basinet.testing.exact import conjugate

BOTH = pytest.mark.parametrize("strategy", ["stacked", "loop"])
N, CLASSES = 14, 3


class Net(nn.Module):
    """BatchNorm and dropout: what makes members hard to keep apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(self.drop(x))))))


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


@dataclass(frozen=True, kw_only=True)
class FewSteps(MAP):
    """MAP that stops after `count` steps."""

    count: int = 1
    size: int | None = 5

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.count, self.size)


class Count(NamedTuple):
    params: dict[str, Tensor]
    buffers: dict[str, Tensor]
    done: Tensor  # steps made
    limit: Tensor


@dataclass(frozen=True, kw_only=True)
class Counter(Method):
    """Adds one to all parameters at each step, keeps what it sees, and by its key is done after 1 to `most` steps."""

    steps: int = 8
    most: int = 4
    bank: int = 8

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.steps, 7, self.bank)

    def init(self, point: Point, problem: bn.Problem, noise: bn.Noise) -> Count:
        limit = 1 + noise.integers(1, self.most)[0]
        return Count(point.params, point.buffers, torch.zeros_like(limit), limit)

    def update(self, state: Count, step: Step) -> tuple[Count, Info]:
        clock = step.batch.step
        params = tree_map(lambda x: x + 1, state.params)
        new = Count(params, state.buffers, state.done + 1, state.limit)
        keep = torch.ones_like(state.done, dtype=torch.bool)
        return new, Info(1.0 + clock, keep=keep, sample={"step": clock, "params": params, "key": step.noise.key})

    def point(self, state: Count) -> Point:
        return Point(state.params, state.buffers)

    def review(self, state: Count, report: Report) -> Review:
        return Review(state, bool(state.done >= state.limit))

    def finish(self, state: Count, samples: Any, problem: Any, data: Any, val: Any, noise: bn.Noise) -> Empirical:
        kept = len(samples["step"])
        now = {"limit": state.limit, "done": state.done, "finish": noise.key}
        buffers = {"steps": samples["step"], "keys": samples["key"]}
        return Empirical(samples["params"], buffers | {n: x.expand(kept, *x.shape) for n, x in now.items()}, kept)


@dataclass(frozen=True, kw_only=True)
class Thirds(FewSteps):
    """Keeps its params after steps 1, 4, 7, ... of 0, 1, ..."""

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.count, self.size, bank=2)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample]:
        return state, Sample(step.batch.step % 3 == 1, (state.params, step.batch.index))

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Empirical:
        params, index = samples
        return Empirical(params, {"index": index}, len(index))


@dataclass(frozen=True, kw_only=True)
class PostHoc(Method):
    """No steps: what `finish` is given, as buffers."""

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(self, state: Point, samples: Any, problem: Any, data: Any, val: Any, noise: bn.Noise) -> Delta:
        assert samples is None
        buffers = {"targets": data.targets, "val": val.targets, "noise": noise.key}
        return Delta(state.params, buffers)


def classes(n: int = N, **fields: Tensor) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, CLASSES), **fields)


def train(
    method: Method,
    strategy: Literal["stacked", "loop"] | None,
    module: Any = Net,
    data: bn.Data | None = None,
    val: bn.Data | None = None,
    members: Sequence[int] = (0, 1, 2),
    observe: Any = None,
    points: Any = None,
    likelihood: Any = None,
    dtype: torch.dtype = torch.float64,
) -> list[Trained]:
    """Members through only the engine, each from its own point and key."""
    problem = bn.Problem(module, likelihood or bn.likelihoods.Categorical())
    engine = Engine(device="cpu", dtype=dtype, strategy=strategy, progress=False)
    start = points or [problem.init(bn.Noise.seed(1).split(k)) for k in members]
    keys = torch.stack([bn.Noise.seed(2).split(k).key for k in members])
    who = [Member(0, k) for k in members]
    data = classes() if data is None else data
    roster = Roster(who, lambda i, attempt: start[i], keys)
    trained = list(engine.train(Work.of(method, problem, data, val), roster, observe=observe))
    trained.sort(key=lambda t: t.position)  # they come as they finish
    assert [t.position for t in trained] == list(range(len(members)))
    return trained


def apart(a: Any, b: Any) -> float:
    """The largest difference between two trees of the same structure."""
    return max(float((x.double() - y.double()).abs().max()) for x, y in zip(leaves(a), leaves(b), strict=True))


def said(caplog: pytest.LogCaptureFixture) -> str:
    """The one line that the engine said."""
    lines = [r.getMessage() for r in caplog.records if r.name == "basinet"]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)], ids=["SGD", "Adam"])
@pytest.mark.parametrize("size", [5, None], ids=["batches", "full batch"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_stacked_equals_loop_after_every_step_with_dropout_and_batch_norm(count, size, optimizer):
    method = FewSteps(count=count, size=size, optimizer=optimizer)
    stacked, loop = train(method, "stacked"), train(method, "loop")
    for a, b in zip(stacked, loop):
        assert apart(a.family, b.family) <= 1e-12
        assert a.curves["step"] == b.curves["step"] and a.curves["loss"] == pytest.approx(b.curves["loss"], abs=1e-12)
    assert apart(stacked[0].family, stacked[1].family) > 1e-3
    assert int(stacked[0].family.buffers["norm.num_batches_tracked"]) == count


@BOTH
def test_a_single_member_is_the_member_in_a_stack(strategy):
    method = FewSteps(count=6)
    many = train(method, strategy, members=(0, 1, 2, 3))
    [alone] = train(method, strategy, members=(2,))
    assert apart(alone.family, many[2].family) <= 1e-12
    assert alone.curves["loss"] == pytest.approx(many[2].curves["loss"], abs=1e-12)


def test_a_loop_gives_a_member_the_same_bits_alone_and_with_others():
    many, few = train(FewSteps(count=4), "loop"), train(FewSteps(count=4), "loop", members=(2, 1))
    assert apart(many[2].family, few[0].family) == 0 == apart(many[1].family, few[1].family)


class Noisy(nn.Module):
    """Draws that are keyed although they are no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + 0.5 * torch.randn_like(x) + torch.rand_like(x))


def test_keyed_draws_are_the_same_in_both_strategies_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    stacked, loop = train(FewSteps(count=3), "stacked", Noisy), train(FewSteps(count=3), "loop", Noisy)
    assert max(apart(a.family, b.family) for a, b in zip(stacked, loop)) <= 1e-12
    assert torch.equal(before, torch.get_rng_state())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, 3), nn.Linear(5, CLASSES)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        return self.last(torch.cat([self.table(tokens), x], -1))


@pytest.mark.parametrize("size", [5, None])
def test_inputs_may_be_a_tree(size):
    key = bn.Noise.seed(4)
    inputs = {"x": key.normal(torch.empty(N, 2, dtype=torch.float64)), "tokens": key.integers(N, 5)}
    data = bn.Data(inputs, key.split("y").integers(N, CLASSES))
    method = FewSteps(count=3, size=size)
    stacked, loop = train(method, "stacked", TwoInputs, data), train(method, "loop", TwoInputs, data)
    assert max(apart(a.family, b.family) for a, b in zip(stacked, loop)) <= 1e-12


@BOTH
def test_weight_two_is_the_example_twice(strategy):
    data = classes()
    weighted = bn.Data(data.inputs, data.targets, torch.tensor([1.0] * (N - 1) + [2.0], dtype=torch.float64))
    twice = data.take([*range(N), N - 1])
    rate = 0.3  # of the sum; the engine's loss is a mean over N, and N differs here
    a = train(FewSteps(count=5, size=None, optimizer=SGD(lr=rate * N)), strategy, Plain, weighted)
    b = train(FewSteps(count=5, size=None, optimizer=SGD(lr=rate * (N + 1))), strategy, Plain, twice)
    plain = train(FewSteps(count=5, size=None, optimizer=SGD(lr=rate * N)), strategy, Plain, data)
    assert max(apart(x.family, y.family) for x, y in zip(a, b)) <= 1e-12
    assert apart(a[0].family, plain[0].family) > 1e-3


@BOTH
def test_weights_follow_their_examples_into_the_batches(strategy):
    data = classes()
    weights = torch.tensor([0.0, 1.0] * (N // 2), dtype=torch.float64)
    targets = torch.where(weights == 0, (data.targets + 1) % CLASSES, data.targets)
    both = [bn.Data(data.inputs, y, weights) for y in (data.targets, targets)]
    runs = [train(FewSteps(count=4), strategy, Plain, given) for given in both]
    assert max(apart(a.family, b.family) for a, b in zip(*runs)) == 0
    unweighted = train(FewSteps(count=4), strategy, Plain, data)
    assert apart(runs[0][0].family, unweighted[0].family) > 1e-4


@BOTH
@pytest.mark.parametrize("size", [3, None])
def test_a_member_with_rows_is_the_member_trained_on_those_examples(strategy, size):
    data = classes().bootstrap(3, seed=1, fraction=0.6)
    method = FewSteps(count=5, size=size)
    members = train(method, strategy, Plain, data)
    for k, member in enumerate(members):
        [alone] = train(method, strategy, Plain, data.member(k), members=(k,))
        assert apart(member.family, alone.family) <= 1e-12


@BOTH
def test_finish_gets_the_members_own_examples_the_validation_data_and_a_key(strategy):
    data, val = classes().bootstrap(3), classes(6)
    trained = train(PostHoc(), strategy, Plain, data, val, members=(2, 0))
    for k, member in zip((2, 0), trained):
        assert torch.equal(member.family.buffers["targets"], data.member(k).targets)
        assert torch.equal(member.family.buffers["val"], val.targets)
    assert not torch.equal(trained[0].family.buffers["noise"], trained[1].family.buffers["noise"])


@BOTH
def test_a_member_that_is_done_ends_at_its_next_report_and_the_run_when_all_are(strategy):
    events: list[Event] = []
    members = (0, 1, 2, 3, 4)
    problem = bn.Problem(Plain, bn.likelihoods.Categorical())
    points = [problem.init(bn.Noise.seed(1).split(k)) for k in members]
    trained_members = train(Counter(), strategy, Plain, members=members, observe=events.append, points=points)
    ends = [until_report(t) for t in trained_members]
    assert set(ends) == {2, 4} and max(ends) < Counter().steps
    for trained, end, point in zip(trained_members, ends, points):
        last = tree_map(lambda x: x[-1], trained.family.params)
        assert apart(last, tree_map(lambda x, s=end: x.double() + s, point.params)) < 1e-12
        assert trained.curves["step"][-1] == end == int(trained.family.buffers["done"][0])
    assert max(e.step for e in events) == max(ends)
    reported = {(m.k, e.step) for e in events for m in e.members}
    assert reported == {(k, step) for k in members for step in range(2, ends[k] + 1, 2)}


def until_report(trained: Trained) -> int:
    """Steps that a Counter makes: it is asked whether it is done every two steps."""
    limit = int(trained.family.buffers["limit"][0])
    return limit + limit % 2


@BOTH
def test_a_member_that_is_done_keeps_no_more_samples_and_counts_no_more_in_the_loss(strategy):
    trained_members = train(Counter(), strategy, Plain, members=(0, 1, 2, 3, 4))
    for trained in trained_members:
        end = until_report(trained)
        assert trained.family.buffers["steps"].tolist() == list(range(end))
        assert trained.curves["loss"] == [first + 1.5 for first in range(0, end, 2)]


@BOTH
def test_every_member_has_a_key_of_its_own_for_every_step_and_for_the_end(strategy):
    trained = train(Counter(), strategy, Plain, members=(0, 1, 2, 3, 4))
    keys = torch.cat([torch.cat([t.family.buffers["keys"], t.family.buffers["finish"][:1]]) for t in trained])
    assert len({tuple(k) for k in keys.tolist()}) == len(keys) == 5 + sum(t.family.count for t in trained)
    [alone] = train(Counter(), "loop", Plain, members=(3,))
    assert torch.equal(alone.family.buffers["keys"], trained[3].family.buffers["keys"])
    assert torch.equal(alone.family.buffers["finish"], trained[3].family.buffers["finish"])


@BOTH
def test_samples_that_a_method_keeps_reach_finish(strategy):
    sgd = SGD(lr=0.1)
    recipe = Thirds(count=11, optimizer=sgd)  # keeps after 2, 5 and 8 steps; the bank holds two
    trained = train(recipe, strategy, Plain)
    for row, steps in enumerate((2, 5)):
        for a, b in zip(trained, train(FewSteps(count=steps, optimizer=sgd), strategy, Plain)):
            assert a.family.count == 2
            assert apart(tree_map(lambda x, r=row: x[r], a.family.params), b.family.params) <= 1e-12
    assert not torch.equal(trained[0].family.buffers["index"], trained[1].family.buffers["index"])


def test_observe_hears_of_all_members_at_once_when_stacked():
    events: list[Event] = []
    trained_members = train(MAP(epochs=3, batch_size=5), "stacked", val=classes(6), observe=events.append)
    assert [e.step for e in events] == [2, 4, 6, 8, 9]  # 2 steps per epoch, 9 in all
    assert {e.steps for e in events} == {9} and {e.method for e in events} == {"MAP"}
    assert {e.members for e in events} == {(Member(0, 0), Member(0, 1), Member(0, 2))}
    assert all(e.loss.shape == (3,) == e.val_nll.shape for e in events)
    for k, trained in enumerate(trained_members):
        assert trained.curves["step"] == [e.step for e in events]
        assert trained.curves["loss"] == [float(e.loss[k]) for e in events]
        assert trained.curves["val_nll"] == [float(e.val_nll[k]) for e in events]


def test_observe_hears_of_one_member_after_another_in_a_loop():
    events: list[Event] = []
    train(MAP(epochs=3, batch_size=5), "loop", observe=events.append, members=(4, 2))
    assert [e.step for e in events] == [2, 4, 6, 8, 9] * 2
    assert [e.members for e in events] == [(Member(0, 4),)] * 5 + [(Member(0, 2),)] * 5
    assert all(e.loss.shape == (1,) and e.val_nll is None for e in events)


@BOTH
def test_the_reported_loss_is_the_mean_over_the_steps_since_the_last_report(strategy):
    events: list[Event] = []
    train(Counter(steps=5, most=1000), strategy, Plain, members=(0,), observe=events.append)
    assert [float(e.loss) for e in events] == [1.5, 3.5, 5.0]  # its loss at step t = 0, 1, ... is t + 1


def test_there_are_never_too_many_reports(monkeypatch):
    monkeypatch.setattr("basinet.engine.work.SEGMENTS", 4)
    events: list[Event] = []
    train(MAP(epochs=30, batch_size=None), "stacked", Plain, observe=events.append)
    assert [e.step for e in events] == [8, 16, 24, 30]


@BOTH
@pytest.mark.parametrize("weighted", [False, True])
def test_the_validation_curve_is_the_mean_nll_of_the_point(strategy, weighted, monkeypatch):
    monkeypatch.setattr(group_module, "EVALUATE", 7)  # so that it takes several passes
    weights = torch.linspace(-0.5, 2.0, 20, dtype=torch.float64).clamp(min=0) if weighted else None  # 4 are masked
    val = classes(20, weights=weights)
    trained_members = train(FewSteps(count=4), strategy, val=val)
    for trained in trained_members:
        net = Net().double().eval()
        net.load_state_dict(trained.family.params | trained.family.buffers)
        with torch.no_grad():
            each = F.cross_entropy(net(val.inputs), val.targets, reduction="none")
        expected = float(each.mean() if weights is None else (weights * each).sum() / 16)
        assert min(trained.curves["val_nll"]) == pytest.approx(expected, abs=1e-12)  # it ends at its best


@pytest.mark.parametrize("strategy", ["stacked", "loop", None])
def test_a_dense_network_is_stacked_by_default(strategy, caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        train(FewSteps(), strategy)
    reason = "stacked (vmap runs this network)" if strategy is None else f"{strategy} (asked for)"
    who = r"FewSteps: 3 members of 63 parameters \(about \d[\d.]* KiB each\) on cpu in float64"
    assert re.fullmatch(rf"{who}, {re.escape(reason)}, 1 steps of 5 of 14 examples", said(caplog))


def test_one_member_runs_in_a_loop(caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        train(FewSteps(), None, members=(0,))
    assert "FewSteps: 1 member of" in said(caplog) and "loop (one member)" in said(caplog)


class Conv(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, CLASSES, 2), nn.Flatten())


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [(None, "loop (convolutions on a CPU are slower stacked)"), ("stacked", "stacked (asked for)")],
)
def test_convolutions_loop_on_a_cpu_by_default(strategy, reason, caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        train(FewSteps(), strategy, Conv)
    assert reason in said(caplog)


class Recurrent(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.rnn, self.last = nn.LSTM(2, 3, num_layers=2, dropout=dropout, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rnn(x.unflatten(1, (2, 2)))[0][:, -1])


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(x)
        return out if out.sum() > 0 else 2 * out


def test_what_vmap_cannot_do_falls_to_the_loop_and_says_why_once(caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        trained = train(FewSteps(count=2), None, Branching)
    line = said(caplog)
    assert "loop (the network cannot be stacked (" in line and "data-dependent" in line
    loop = train(FewSteps(count=2), "loop", Branching)
    assert max(apart(a.family, b.family) for a, b in zip(trained, loop)) == 0


def test_what_vmap_cannot_do_fails_when_stacking_was_asked_for():
    with pytest.raises(ValueError, match=r"cannot be stacked .*data-dependent"):
        train(FewSteps(), "stacked", Branching)


def test_a_recurrent_network_is_the_same_in_both_strategies():
    stacked, loop = train(FewSteps(count=3), "stacked", Recurrent), train(FewSteps(count=3), "loop", Recurrent)
    assert max(apart(a.family, b.family) for a, b in zip(stacked, loop)) <= 1e-12


def test_a_recurrent_network_that_only_stacks_with_gradients_is_validated_all_the_same():
    val, single = classes(6), torch.float32  # for which a kernel without gradients is used that vmap has no rule for
    both = [train(FewSteps(count=3), strategy, Recurrent, val=val, dtype=single) for strategy in ("stacked", "loop")]
    for a, b in zip(*both):
        assert a.curves["val_nll"] == pytest.approx(b.curves["val_nll"], abs=1e-5)


class Unkeyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) + torch.rand(CLASSES)


@pytest.mark.parametrize("members", [(0,), (0, 1)])
@pytest.mark.parametrize("strategy", ["stacked", "loop", None])
@pytest.mark.parametrize("module", [Unkeyed, lambda: Recurrent(dropout=0.5)], ids=["torch.rand", "LSTM dropout"])
def test_randomness_that_no_key_controls_is_refused(module, strategy, members):
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"no key controls.*rand_like.*nn\.LSTM's own dropout"):
        train(FewSteps(), strategy, module, members=members)
    assert torch.equal(before, torch.get_rng_state())


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="expected strategy 'stacked', 'streams', 'loop' or None, got 'threads'"):
        Engine(strategy="threads")


def test_streams_are_refused_on_a_cpu():
    with pytest.raises(ValueError, match="'streams' runs members on parallel CUDA streams: on a CPU use 'stacked'"):
        train(FewSteps(), "streams")


@BOTH
def test_the_probe_leaves_no_trace(strategy, monkeypatch):
    method = FewSteps(count=5)
    probed = train(method, strategy)
    monkeypatch.setattr("basinet.engine.executor.Here.measure", lambda self, plan, few: 1e-3)
    assert max(apart(a.family, b.family) for a, b in zip(probed, train(method, strategy))) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
@BOTH
def test_a_compiled_step_gives_the_same_members(strategy):
    problem = bn.Problem(Net, bn.likelihoods.Categorical())
    posteriors = []
    for compiled in (False, True):
        engine = Engine(device="cpu", dtype=torch.float64, strategy=strategy, compile=compiled, progress=False)
        posteriors.append(bn.fit(FewSteps(count=6), problem, classes(), members=3, engine=engine))
    assert apart(posteriors[0].parts[0].family, posteriors[1].parts[0].family) <= 1e-10


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"'cuda:1' was asked for, and torch sees no CUDA device.*use device='cpu'"):
        Engine(device="cuda:1")
    assert Engine().place == torch.device("cpu")


@pytest.mark.parametrize(
    ("network", "data", "dtype", "expected"),
    [
        (torch.float32, torch.float64, None, torch.float32),
        (torch.float64, torch.float32, None, torch.float64),
        (torch.float32, torch.float32, torch.float64, torch.float64),
    ],
)
def test_the_dtype_is_that_of_the_network_by_default(network, data, dtype, expected):
    problem = bn.Problem(lambda: Net().to(network), bn.likelihoods.Categorical())
    engine = Engine(device="cpu", dtype=dtype, progress=False)
    posterior = bn.fit(
        FewSteps(count=2), problem, classes().to(dtype=data), val=classes(6).to(dtype=data), engine=engine
    )
    assert {x.dtype for x in posterior.parts[0].family.params.values()} == {expected}
    assert posterior.predict(classes().inputs).outputs.dtype == expected


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (MAP(epochs=-1), "expected epochs of at least 0, got -1"),
        (FewSteps(count=-1), "expected whole numbers, epochs of at least 0 and batches of at least 1"),
        (FewSteps(size=-2), "expected whole numbers, epochs of at least 0 and batches of at least 1"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(recipe, message):
    with pytest.raises(ValueError, match=message):
        train(recipe, "loop", Plain)


def test_what_finish_adds_is_in_info_and_reported(caplog):
    """Of a method that makes steps; PEP is one that makes none."""

    @dataclass(frozen=True, kw_only=True)
    class Telling(MAP):
        def finish(self, state, samples, problem, data, val, noise):
            family = MAP.finish(self, state, samples, problem, data, val, noise)
            return Finished(family, {"gains": [1.0, 2.0]}, ("a word",))

    caplog.set_level(logging.INFO, "basinet")
    recipe = Telling(epochs=2)
    exact = conjugate()
    posterior = bn.fit(recipe, exact.problem, exact.data, members=2, engine=bn.Engine(device="cpu", progress=False))
    assert posterior.info["curves"]["gains"] == [[1.0, 2.0]] * 2 and len(posterior.info["curves"]["loss"][0]) == 2
    assert "Telling, member 1 (seed 0): a word" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "expected device as 'cpu', 'cuda' or 'cuda:1', say, or None, got 'gpu'"),
        ({"device": "mps"}, "expected device as 'cpu'"),
        ({"device": "cuda:x"}, "expected device as 'cpu'"),
        ({"device": "cuda:99"}, "device 'cuda:99' was asked for, and torch sees .* CUDA device"),
        ({"dtype": "float64"}, "expected dtype as a floating one such as torch.float64, or None, got 'float64'"),
        ({"dtype": torch.int32}, "expected dtype as a floating one"),
        ({"autocast": "bf16"}, "expected autocast to torch.bfloat16 or torch.float16, or None, got 'bf16'"),
        ({"memory": "1GB"}, r"expected memory as a whole number of bytes, 4 \* 2\*\*30 say, or None, got '1GB'"),
        ({"memory": 1e9}, "expected memory as a whole number of bytes"),
        ({"checkpoint": None}, "expected checkpoint as seconds between checkpoints, at least 0, got None"),
        ({"checkpoint": -1}, "expected checkpoint as seconds"),
    ],
)
def test_impossible_engines_are_refused_when_they_are_made(options, message):
    with pytest.raises(ValueError, match=message):
        Engine(**options)


@pytest.mark.parametrize("seed", ["a", 1.5, None, 2**64])
def test_a_seed_is_a_whole_number(seed):
    data = bn.Data(bn.Noise.seed(3).normal(torch.empty(4, 4)), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match="expected a seed as a whole number of at most 64 bits"):
        bn.fit(MAP(epochs=1), bn.Problem(Plain, bn.likelihoods.Categorical()), data, seed=seed)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batches_of_nothing_are_refused(batch_size):
    data = bn.Data(bn.Noise.seed(3).normal(torch.empty(4, 4)), torch.tensor([0, 1, 2, 0]))
    for method in (MAP(epochs=1, batch_size=batch_size), bn.SWA(iterates=1, batch_size=batch_size)):
        with pytest.raises(ValueError, match=f"expected a batch_size of at least 1, or None .*, got {batch_size}"):
            bn.fit(method, bn.Problem(Plain, bn.likelihoods.Categorical()), data)
