"""One bar, however many runs are under way; Ctrl-C that all of them hear."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.engine import progress
from basinet.engine.interrupt import Interrupt
from basinet.engine.progress import Progress


class Bar:
    task_ids = (0,)

    def __init__(self) -> None:
        self.shown: list[tuple[Any, ...]] = []
        self.stopped = 0

    def update(self, task: int, *, description: str, completed: int, total: int, text: str) -> None:
        self.shown.append((description, completed, total, text))

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def bars(monkeypatch):
    all_bars: list[Bar] = []

    def begin() -> Bar:
        all_bars.append(Bar())
        return all_bars[-1]

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_bar", begin)
    return all_bars


def test_one_bar_counts_the_steps_of_all_runs_that_are_under_way(bars):
    with Progress("MAP x 2", 10, True) as first:
        first.advance(4, "loss 1")
        with Progress("SWAG x 2", 20, True) as second:
            second.advance(5, "loss 2")
        first.advance(1, "loss 3")
    assert [bar.stopped for bar in bars] == [1]
    assert bars[0].shown == [
        ("MAP x 2", 4, 10, "loss 1"),
        ("2 runs", 9, 30, "SWAG x 2: loss 2"),
        ("MAP x 2", 25, 30, "loss 3"),
    ]
    with Progress("PEP x 2", 10, True) as third:
        third.advance(1, "")
    assert bars[1].shown == [("PEP x 2", 1, 10, "")] and Progress.live == [] and Progress.bar is None


def test_a_run_that_shows_nothing_has_no_part_in_the_bar(bars):
    with Progress("MAP x 2", 10, True) as first, Progress("quiet", 20, False) as second:
        second.advance(5, "")
        first.advance(4, "")
    assert bars[0].shown == [("MAP x 2", 4, 10, "")]


def test_ctrl_c_is_noted_in_all_runs_that_are_under_way_whichever_ends_first():
    first, second, quick = Interrupt(waits=True), Interrupt(waits=True), Interrupt(waits=False)
    before = signal.getsignal(signal.SIGINT)
    second.__enter__()
    with first, quick:
        pass
    os.kill(os.getpid(), signal.SIGINT)
    assert second.asked and not first.asked and not quick.asked
    with pytest.raises(KeyboardInterrupt):
        second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before and Interrupt.entered == []


def test_of_many_members_with_the_same_words_a_few_are_shown_and_the_others_counted(caplog):
    caplog.set_level("INFO", "basinet")
    with Progress("", 0, False) as shown:
        for k in range(64):
            shown.about("NUTS", f"member {k}", f"{k % 2 + 1} of {20 + k} transitions diverged", warns=True)
        shown.about("NUTS", "member 3", "its step was halved")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [line for _, line in lines[:2]] == [
        f"NUTS, member {k}: {k + 1} of {20 + k} transitions diverged" for k in (0, 1)
    ]
    assert [level for level, _ in lines] == ["WARNING"] * 3 + ["INFO", "WARNING"]
    assert lines[-1][1].startswith("NUTS, 61 more members, with other numbers") and len(lines) == 5


def test_every_line_on_members_is_in_the_notes_of_the_posterior(caplog):
    caplog.set_level("INFO", "basinet")
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    problem = bn.Problem(lambda: nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=0.1))
    recipe = bn.HMC(steps=60, warmup=20, draws=20)  # too few for its trajectories: each chain says so
    posterior = bn.fit(recipe, problem, bn.Data(x, x[:, :1]), members=6, engine=bn.Engine(device="cpu", progress=False))
    notes = [line for own in posterior.info["notes"] for line in own if "trajectories were cut" in line]
    said = [record.getMessage() for record in caplog.records if "trajectories were cut" in record.getMessage()]
    assert len(notes) == 6 and len(said) == progress.SHOWN + 1 and "3 more members" in said[-1]
