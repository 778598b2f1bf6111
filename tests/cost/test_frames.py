"""How many of our frames lie between `fit` and what a method writes: a reader steps through each of them."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn

OURS = str(Path(bn.__file__).parent)
MOST = {"loop": 21, "stacked": 23}  # frames, that of `fit` among them; lower them when they can be
seen: list[list[str]] = []


@dataclass(frozen=True, kw_only=True)
class Looking(bn.MAP):
    """A method whose loss notes by what way it was called."""

    def loss(self, params: Any, state: Any, step: Any) -> Any:
        seen.append([f"{Path(f.filename).stem}.{f.name}" for f in traceback.extract_stack() if OURS in f.filename])
        return super().loss(params, state, step)


@pytest.mark.parametrize("strategy", list(MOST))
def test_few_frames_lie_between_fit_and_the_loss_of_a_method(strategy):
    seen.clear()
    data = bn.Data(torch.randn(20, 3), torch.randn(20, 1))
    problem = bn.Problem(lambda: nn.Linear(3, 1), bn.likelihoods.Gaussian())
    engine = bn.Engine(device="cpu", strategy=strategy, compile=False, progress=False)
    bn.fit(Looking(epochs=2, batch_size=10), problem, data, members=2, engine=engine)
    trained = [way for way in seen if "group.train" in way]  # not those of short trials
    assert trained and all(way[0] == "fit.fit" for way in trained)
    assert max(map(len, trained)) <= MOST[strategy], " > ".join(max(trained, key=len))
