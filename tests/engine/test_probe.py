"""What the probe takes on a GPU: which plan is tried first, when another is worth a try, compiling, and failures."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.engine import probe
from basinet.engine.probe import Asked, Plan, choose

CUDA = torch.device("cuda")
DENSE, SHALLOW = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
DEEP = nn.Sequential(*(nn.Conv2d(2, 2, 3) for _ in range(20)))


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def asked(module: nn.Module = DEEP, steps: int = 10_000, members: int = 8, **more: Any) -> Asked:
    """For steps on a GPU that can be recorded, unless stated otherwise."""
    given = {"strategy": None, "compile": None, "members": members, "steps": steps, "module": module}
    return Asked(**given | {"capturable": True} | more)


class Attempts:
    """Stands for trying a plan: says how long a step takes, or fails, and how long finding out took. Plans have the
    names of their strategies, with "compiled" and "step by step" where they are."""

    def __init__(self, steps: Mapping[str, float | Exception], trying: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.trying, self.clock, self.tried = steps, trying, 0.0, list[str]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)

    def __call__(self, plan: Plan) -> float:
        name = plan.strategy + " compiled" * plan.compiled + " step by step" * (not plan.captured)
        self.tried.append(name)
        self.clock += self.trying
        outcome = self.steps[name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ({"module": DENSE}, ["stacked", "streams"]),
        ({"module": DENSE, "batch_bytes": probe.LARGE + 1}, ["streams", "stacked"]),
        ({"module": SHALLOW}, ["streams", "stacked"]),
        ({"module": DEEP}, ["streams", "stacked"]),
    ],
)
@pytest.mark.parametrize("fastest", ["stacked", "streams"])
def test_the_likely_one_is_tried_first_and_the_faster_one_is_taken(given, order, fastest, monkeypatch):
    attempts = Attempts({"stacked": 0.003, "streams": 0.003} | {fastest: 0.002}, 1.0, monkeypatch)
    plan = choose(asked(**given), CUDA, attempts)
    assert attempts.tried == order
    assert plan.strategy == fastest and plan.captured and not plan.compiled
    assert f"{fastest} 2 ms" in plan.reason and "3 ms" in plan.reason


def test_a_short_run_does_not_try_a_second(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "streams": 0.003}, 60.0, monkeypatch)
    plan = choose(asked(steps=199_999, compile=False), CUDA, attempts)  # 600 s of steps, less than ten times its minute
    assert plan.strategy == "streams" and attempts.tried == ["streams"]
    assert "too short to try stacked" in plan.reason
    assert choose(asked(steps=200_001, compile=False), CUDA, attempts).strategy == "stacked"


@pytest.mark.parametrize(
    ("steps", "compiled", "tried"), [(59_999, 0.001, False), (60_001, 0.001, True), (60_001, 0.0021, True)]
)
def test_a_long_run_is_compiled_where_that_is_faster(steps, compiled, tried, monkeypatch):
    attempts = Attempts({"stacked": 0.003, "streams": 0.002, "streams compiled": compiled}, 1.0, monkeypatch)
    plan = choose(asked(steps=steps), CUDA, attempts)  # 120 s of steps are long
    assert attempts.tried == ["streams", "stacked"] + ["streams compiled"] * tried
    assert plan.strategy == "streams" and plan.captured and plan.compiled == (tried and compiled < 0.002)
    assert (f"a step takes 2 ms, {1e3 * compiled:.3g} compiled" in plan.reason) == tried


def test_what_does_not_compile_runs_as_it_is(monkeypatch):
    steps = {"stacked": 0.003, "streams": 0.002, "streams compiled": ValueError("no graph")}
    plan = choose(asked(steps=100_000), CUDA, Attempts(steps, 1.0, monkeypatch))
    assert plan.strategy == "streams" and not plan.compiled and "it does not compile: no graph" in plan.reason


def test_what_cannot_be_captured_gives_way(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "streams": ValueError("no graph")}, 1.0, monkeypatch)
    plan = choose(asked(), CUDA, attempts)
    assert plan.strategy == "stacked" and plan.captured and "streams: no graph" in plan.reason
    steps = {"stacked": ValueError("a"), "streams": ValueError("b"), "loop step by step": 1.0}
    plan = choose(asked(steps=10), CUDA, Attempts(steps, 1.0, monkeypatch))
    assert plan.strategy == "loop" and not plan.captured
    assert plan.reason.endswith("the step cannot be captured (streams: b; stacked: a)")
    coupled = Attempts(steps | {"stacked step by step": 1.0}, 1.0, monkeypatch)
    assert choose(asked(steps=10, coupled=True), CUDA, coupled).strategy == "stacked"


def test_what_is_not_recorded_is_stacked(monkeypatch):
    """A stream of batches, or a filter."""
    attempts = Attempts({"stacked step by step": 0.001}, 1.0, monkeypatch)
    plan = choose(asked(capturable=False), CUDA, attempts)
    assert plan.strategy == "stacked" and not plan.captured and attempts.tried == ["stacked step by step"]


def test_one_member_takes_a_stream(monkeypatch):
    attempts = Attempts({"streams": 0.002}, 1.0, monkeypatch)
    assert choose(asked(DENSE, 10, members=1), CUDA, attempts).strategy == "streams"


def test_what_was_asked_for_is_all_that_is_tried(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "streams": 0.002, "loop step by step": 0.1}, 1.0, monkeypatch)
    plan = choose(asked(steps=10, strategy="stacked", compile=True), CUDA, attempts)
    assert plan.strategy == "stacked" and plan.compiled and plan.captured
    assert choose(asked(steps=10, strategy="loop"), CUDA, attempts) == Plan("loop", False, "asked for")
    assert not choose(asked(strategy="streams", compile=False, steps=10**6), CUDA, attempts).compiled
    assert attempts.tried == ["stacked", "loop step by step", "streams"]
    with pytest.raises(ValueError, match="'streams' records steps on data in memory"):
        choose(asked(strategy="streams", capturable=False), CUDA, attempts)


def test_out_of_memory_is_raised_as_too_large(monkeypatch):
    attempts = Attempts({"streams": torch.OutOfMemoryError("CUDA out of memory")}, 1.0, monkeypatch)
    with pytest.raises(probe.TooLarge):
        choose(asked(), CUDA, attempts)
    assert attempts.tried == ["streams"]


def test_one_thread_trains_where_other_programs_have_the_cores(monkeypatch, caplog):
    from basinet.engine.executor import Here

    threads = []

    def measure(self, plan, few):
        return 1.0 if torch.get_num_threads() > 1 else 0.1

    monkeypatch.setattr(Here, "measure", measure)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        data = bn.Data(torch.randn(8, 2), torch.randn(8, 1))
        problem = bn.Problem(lambda: nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=1.0))
        engine = bn.Engine(device="cpu", processes=1, compile=False, progress=False)
        with caplog.at_level("INFO", "basinet"):
            bn.fit(
                bn.MAP(epochs=9),
                problem,
                data,
                members=2,
                engine=engine,
                observe=lambda event: threads.append(torch.get_num_threads()),
            )
        assert set(threads) == {1} and torch.get_num_threads() == 2
        assert "in one thread" in caplog.text and "other programs use the cores" in caplog.text
    finally:
        torch.set_num_threads(before)
