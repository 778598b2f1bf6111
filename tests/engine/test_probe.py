"""What the probe takes on a GPU: which plan is tried first, when a second try is worth it, and failures."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from basinet.engine import probe
from basinet.engine.probe import Plan, choose

CUDA = torch.device("cuda")
DENSE, SHALLOW = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
DEEP = nn.Sequential(*(nn.Conv2d(2, 2, 3) for _ in range(20)))


@pytest.fixture(autouse=True)
def _triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


class Attempts:
    """Stands for trying a plan: says how long a step takes, or fails, and how long finding out took."""

    def __init__(
        self, steps: Mapping[str, float | Exception], compiling: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.steps, self.compiling, self.clock, self.tried = steps, compiling, 0.0, list[str]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)

    def __call__(self, plan: Plan, members: int) -> float:
        self.tried.append(plan.strategy)
        self.clock += self.compiling
        found = self.steps[plan.strategy]
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize(
    ("module", "order"), [(DENSE, ["stacked"]), (SHALLOW, ["streams", "stacked"]), (DEEP, ["streams", "stacked"])]
)
def test_the_likely_one_is_tried_first_and_the_faster_one_is_taken(module, order, monkeypatch):
    attempts = Attempts({"stacked": 0.003, "streams": 0.002}, 1.0, monkeypatch)
    plan = choose(None, None, 8, 10_000, CUDA, module, attempts)
    assert attempts.tried == order
    assert plan.strategy == ("stacked" if module is DENSE else "streams") and plan.compiled
    assert "stacked 3 ms" in plan.reason


def test_a_short_run_does_not_try_a_second(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "streams": 0.003}, 60.0, monkeypatch)
    plan = choose(None, None, 8, 199_999, CUDA, DEEP, attempts)  # 600 s of steps, less than ten times its minute
    assert plan.strategy == "streams" and attempts.tried == ["streams"]
    assert "too short to try stacked" in plan.reason
    assert choose(None, None, 8, 200_001, CUDA, DEEP, attempts).strategy == "stacked"


def test_what_cannot_be_captured_gives_way(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "streams": ValueError("no graph")}, 1.0, monkeypatch)
    plan = choose(None, None, 8, 10_000, CUDA, DEEP, attempts)
    assert plan.strategy == "stacked" and "streams: no graph" in plan.reason
    attempts = Attempts({"stacked": ValueError("a"), "streams": ValueError("b"), "loop": 1.0}, 1.0, monkeypatch)
    plan = choose(None, None, 8, 10_000, CUDA, DEEP, attempts)
    assert plan == Plan("loop", False, "the step cannot be captured (streams: b; stacked: a)")


def test_one_member_takes_a_stream(monkeypatch):
    attempts = Attempts({"streams": 0.002}, 1.0, monkeypatch)
    assert choose(None, None, 1, 10, CUDA, DENSE, attempts).strategy == "streams"


def test_what_was_asked_for_is_all_that_is_tried(monkeypatch):
    attempts = Attempts({"stacked": 0.001, "loop": 0.1}, 1.0, monkeypatch)
    assert choose("stacked", None, 8, 10, CUDA, DEEP, attempts) == Plan("stacked", True, "asked for")
    assert choose("loop", None, 8, 10, CUDA, DEEP, attempts) == Plan("loop", False, "asked for")
    assert choose(None, False, 8, 10, CUDA, DEEP, attempts).strategy == "stacked"
    with pytest.raises(ValueError, match="'streams' is a compiled one"):
        choose("streams", False, 8, 10, CUDA, DEEP, attempts)


def test_out_of_memory_is_said_as_such(monkeypatch):
    attempts = Attempts({"streams": torch.OutOfMemoryError("CUDA out of memory")}, 1.0, monkeypatch)
    with pytest.raises(probe.TooLarge):
        choose(None, None, 8, 10, CUDA, DEEP, attempts)
