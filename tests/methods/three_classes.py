"""Three classes of random examples with four inputs, and a small network for them, in double precision."""

from __future__ import annotations

import torch
from torch import nn

import basinet as bn

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
KEY = bn.Noise.seed(9)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data(n: int = 24) -> bn.Data:
    return bn.Data(KEY.split("x").normal(torch.empty(n, 4, dtype=torch.float64)), KEY.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
