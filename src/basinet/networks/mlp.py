"""Dense networks: a general one, and those of the papers. Initialised as torch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Module):
    """Per hidden layer Linear -> [BatchNorm1d] -> activation -> [Dropout], then Linear. Flattens (B, ...)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (200, 200),
        activation: Callable[[], nn.Module] = nn.ReLU,
        batch_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"expected 0 <= dropout < 1, got {dropout}; it is the share of units that is dropped")
        sizes = (inputs, *hidden)
        if min(*sizes, outputs) < 1:
            raise ValueError(f"expected layer sizes >= 1, got {(*sizes, outputs)}; leave a hidden layer out instead")
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers.append(nn.Linear(a, b))
            if batch_norm:
                layers.append(nn.BatchNorm1d(b))
            layers.append(activation())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

    def forward(self, inputs: Tensor) -> Tensor:  # (B, ...) -> (B, outputs)
        return self.layers(inputs.flatten(1))


def pep_mlp() -> nn.Module:
    """784-200-200-200-10, ReLU and then batch normalisation, for MNIST.

    Mehrtash et al., "PEP: Parameter Ensembling by Perturbation", NeurIPS 2020. Unlike in `MLP` the norm
    follows the ReLU, as in the authors' code.

    >>> sum(p.numel() for p in pep_mlp().parameters())
    240610
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise((784, 200, 200, 200)):
        layers += [
            nn.Linear(a, b),
            nn.ReLU(),
            nn.BatchNorm1d(b, eps=1e-3, momentum=0.01),
        ]  # the defaults of Keras
    return nn.Sequential(*layers, nn.Linear(200, 10))


def uci_mlp(inputs: int, outputs: int = 1) -> nn.Module:
    """One hidden layer of 50 ReLU, the network of the UCI regression sets.

    Pearce et al., "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", AISTATS 2020, after
    Hernandez-Lobato and Adams, "Probabilistic Backpropagation", ICML 2015.

    >>> sum(p.numel() for p in uci_mlp(8).parameters())
    501
    """
    return MLP(inputs, outputs, hidden=(50,))


def toy_mlp(inputs: int = 1, outputs: int = 1) -> nn.Module:
    """Two hidden layers of 10 ReLU, for problems in one or two dimensions.

    D'Angelo and Fortuin, "Repulsive Deep Ensembles are Bayesian", NeurIPS 2021: the authors' 1-D setting.

    >>> sum(p.numel() for p in toy_mlp().parameters())
    141
    """
    return MLP(inputs, outputs, hidden=(10, 10))
