"""A network with running statistics, and inputs they have to follow: for methods whose point was never visited."""

from __future__ import annotations

import torch
from torch import nn

import basinet as bn


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def classes(n: int = 40) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(2 + 3 * inputs, key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
