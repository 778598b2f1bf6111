"""Gradients that the engine takes in one pass, the prior in the graph or not, are those of each member alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core import registry
from basinet.core.tree import leaves
from basinet.engine import Descent, Info
from basinet.methods.map import MAP

DATA = bn.datasets.load("wine").train


@dataclass(frozen=True, kw_only=True)
class Inside(MAP):
    """MAP whose gradient is taken inside of what is lifted, prior and all."""

    def gradient(self, state: Descent, batch: Any, problem: bn.Problem, noise: bn.Noise) -> tuple[Any, Info]:
        return MAP.gradient(self, state, batch, problem, noise)


registry._classes.pop("method/Inside")  # those who list all methods should not find it

PRIORS = {
    "one scale": bn.priors.Normal(scale=0.3),
    "by fan": bn.priors.Normal(scale="lecun"),
    "per layer": bn.priors.Normal(scale={"0": 0.2, "2": 2.0}),
    "centred": bn.priors.Normal(scale=0.5, centre={"0.bias": torch.ones(7)}),
    "not normal": bn.priors.StudentT(),
}


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("name", PRIORS)
def test_every_way_to_a_gradient_gives_the_same_members(name: str, temper: Literal["posterior", "likelihood"]):
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 3))

    problem = bn.Problem(net, bn.likelihoods.Categorical(), PRIORS[name], temperature=0.5, temper=temper)
    found = []
    for recipe in (MAP(epochs=3, batch_size=40), Inside(epochs=3, batch_size=40)):
        for strategy in ("stacked", "loop"):
            engine = bn.Engine(device="cpu", dtype=torch.float64, strategy=strategy, progress=False)  # type: ignore[arg-type]
            found.append(bn.fit(recipe, problem, DATA, members=3, engine=engine))
    for other in found[1:]:
        apart = (float((a - b).abs().max()) for a, b in zip(leaves(found[0].points()), leaves(other.points())))
        assert max(apart) < 1e-12
        assert other.info["curves"]["loss"][0] == pytest.approx(found[0].info["curves"]["loss"][0], rel=1e-12)
