"""A program of a user, as tests run it: fits on a Ray cluster into a pool, with classes and functions of `__main__`."""

import sys
import time

import torch
from torch import nn

import basinet as bn


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = bn.networks.MLP(4, 3, hidden=(6,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def slowly(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)
    return x


def problem() -> bn.Problem:
    return bn.Problem(lambda: nn.Sequential(Network(), _Slow()), bn.likelihoods.Categorical())


class _Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return slowly(x)


def data() -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(14, 4)), key.split("y").integers(14, 3))


def fit(engine: bn.Engine, pool: str | None, members: int = 8) -> bn.Posterior:
    return bn.fit(bn.MAP(epochs=30, batch_size=5), problem(), data(), members=members, pool=pool, engine=engine)


if __name__ == "__main__":
    address, folder = sys.argv[1:]
    executor = f"ray:{address}" if address else "ray"
    ensemble = fit(bn.Engine(executor=executor, group=2, strategy="loop", checkpoint=0.2, progress=True), folder)
    print(len(ensemble), ensemble.info["trained"])
