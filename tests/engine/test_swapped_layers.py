"""A method that replaces layers in `adapt` trains the same members in a stack and one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import basinet as bn
from basinet.core.tree import leaves
from basinet.methods.map import MAP

DATA = bn.datasets.load("wine").train


class Local(nn.Module):
    """A linear layer whose weights have a spread in training, drawn in its outputs."""

    spread: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("spread", torch.full_like(layer.weight, 0.1))

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        if not self.training:
            return mean
        return mean + F.linear(x.square(), self.spread.square()).sqrt() * torch.randn_like(mean)


@dataclass(frozen=True, kw_only=True)
class Noisy(MAP):
    """MAP of a network whose linear layers are random in training."""

    def adapt(self, problem: bn.Problem) -> bn.Problem:
        def make(name: str, layer: nn.Module) -> nn.Module:
            return Local(layer) if isinstance(layer, nn.Linear) else layer

        return problem.through(problem.network.swapped(None, make))


def fitted(recipe: MAP, module: nn.Module, strategy: Literal["stacked", "loop"], members: int = 3) -> bn.Posterior:
    problem = bn.Problem(module, bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", dtype=torch.float64, strategy=strategy, progress=False)
    return bn.fit(recipe, problem, DATA, members=members, engine=engine)


def test_members_are_the_same_in_a_stack_and_one_by_one():
    module = nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))
    recipe = Noisy(epochs=3, batch_size=40)
    stacked, loop = (fitted(recipe, module, strategy) for strategy in ("stacked", "loop"))
    assert max(float((a - b).abs().max()) for a, b in zip(leaves(stacked.points()), leaves(loop.points()))) < 1e-12
    alone = fitted(recipe, module, "loop", members=1)
    assert all(torch.equal(a, b) for a, b in zip(leaves(alone.points()[0]), leaves(loop.points()[0])))
    plain = fitted(MAP(epochs=3, batch_size=40), module, "loop")
    begin = [x.info["curves"]["loss"][0][0] for x in (loop, plain)]
    assert begin[0] != pytest.approx(begin[1], rel=1e-3)  # noise was there
    assert torch.equal(loop.predict(DATA.inputs).probs, loop.predict(DATA.inputs).probs)
    assert type(module[0]) is nn.Linear
