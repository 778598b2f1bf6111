"""A network for tables: numbers through embeddings, then a dense network (Gorishniy et al. 2022, "On embeddings for
numerical features in tabular deep learning").

A dense network bends slowly along any one input, while tables have thresholds and waves. So each number x becomes a
vector of its own first:

    periodic           e = W [sin 2 pi c x, cos 2 pi c x, x] + b, with frequencies c that are learned
    piecewise linear   e = W [t_1 ... t_K, x] + b, where t_k runs from 0 to 1 across bin k of the training quantiles

Inputs that are no numbers (an input per category, a flag for a missing value) go to the dense network as they are: its
first layer holds a vector for each, which is what an embedding of categories is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .mlp import MLP

Embedding = Literal["periodic", "piecewise", "none"]

BEYOND = 3.0  # widths by which the outermost bins go on past the training data
FAR = 4.0  # scales up to which a number is itself
QUARTILES = 1.349  # standard deviations between the quartiles of a normal


class Periodic(nn.Module):
    """Each number as `features` combinations of sines and cosines of it, and of itself."""

    def __init__(self, numbers: int, features: int = 8, frequencies: int = 16, scale: float = 0.3) -> None:
        super().__init__()
        self.frequency = nn.Parameter(scale * torch.randn(numbers, frequencies))
        self.weight, self.bias = _linear_for_each(numbers, 2 * frequencies + 1, features)

    def forward(self, numbers: Tensor) -> Tensor:  # (B, numbers) -> (B, numbers, features)
        x = numbers.unsqueeze(-1)
        angle = 2 * math.pi * self.frequency * x
        return torch.einsum("bnk,nkf->bnf", torch.cat([angle.sin(), angle.cos(), x], -1), self.weight) + self.bias


class PiecewiseLinear(nn.Module):
    """Each number as `features` combinations of its place in every bin, and of itself. The edges of the bins are those
    of `fitted`: before, they are even between -3 and 3."""

    edges: Tensor  # (numbers, bins + 1)

    def __init__(self, numbers: int, features: int = 8, bins: int = 48) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-3, 3, bins + 1).repeat(numbers, 1))
        self.weight, self.bias = _linear_for_each(numbers, bins + 1, features)
        with torch.no_grad():
            self.weight[:, :-1] = 0.0  # begins as the linear map alone

    def fitted(self, numbers: Tensor) -> PiecewiseLinear:
        """Itself, with the quantiles of training numbers (N, numbers) as edges."""
        levels = torch.linspace(0, 1, self.edges.shape[1], dtype=torch.float64)
        self.edges.copy_(_quantiles(numbers.detach().double().cpu(), levels).T)
        return self

    def forward(self, numbers: Tensor) -> Tensor:  # (B, numbers) -> (B, numbers, features)
        x = numbers.unsqueeze(-1)
        low, width = self.edges[:, :-1], self.edges.diff(dim=1)
        place = (x - low) / torch.where(width > 0, width, 1.0)  # (B, numbers, bins)
        inner = place.clamp(0, 1)
        ends = [place[..., :1].clamp(-BEYOND, 1), inner[..., 1:-1], place[..., -1:].clamp(0, 1 + BEYOND)]
        pieces = torch.where(width > 0, torch.cat(ends, -1), 0.0)  # equal quantiles make bins without width
        return torch.einsum("bnk,nkf->bnf", torch.cat([pieces, x], -1), self.weight) + self.bias


class TableNet(nn.Module):
    """Embeddings of the numbers among the inputs, then Linear and SiLU for each hidden layer, then Linear.

    Numbers are scaled by their median and quartiles, as `fitted` found them in the training inputs, and grow by their
    logarithm alone past four such scales, so that one far-out value moves neither the others nor the outputs far.
    """

    centre: Tensor  # (numbers,)
    scale: Tensor  # (numbers,)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        numbers: Sequence[int] | None = None,  # which inputs are numbers; None: all
        embedding: Embedding = "periodic",
        hidden: Sequence[int] = (128, 128, 128),
        features: int = 8,
    ) -> None:
        super().__init__()
        chosen = range(inputs) if numbers is None else sorted({*numbers})
        if any(not 0 <= i < inputs for i in chosen):
            raise ValueError(f"expected numbers among the inputs 0 to {inputs - 1}, got {list(chosen)}")
        if embedding not in get_args(Embedding):
            raise ValueError(f"expected an embedding among {', '.join(get_args(Embedding))}, got {embedding!r}")
        self.numbers = tuple(chosen)
        self.others = tuple(i for i in range(inputs) if i not in {*chosen})
        self.register_buffer("centre", torch.zeros(len(self.numbers)))
        self.register_buffer("scale", torch.ones(len(self.numbers)))
        self.embedding: Periodic | PiecewiseLinear | None = None
        if self.numbers and embedding != "none":
            self.embedding = (Periodic if embedding == "periodic" else PiecewiseLinear)(len(self.numbers), features)
        width = len(self.numbers) * (features if self.embedding is not None else 1) + len(self.others)
        self.layers = MLP(width, outputs, hidden, nn.SiLU).layers

    def fitted(self, inputs: Tensor) -> TableNet:
        """Itself, with the scales and bins of training inputs (N, inputs)."""
        x = inputs.detach().flatten(1)[:, list(self.numbers)].double().cpu()
        low, middle, high = _quantiles(x, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        robust, sd = (high - low) / QUARTILES, x.std(0, correction=0)
        scale = torch.where(robust > 0, robust, sd)
        self.centre.copy_(middle)
        self.scale.copy_(torch.where(scale > 0, scale, 1.0))
        if isinstance(self.embedding, PiecewiseLinear):
            self.embedding.fitted(self._scaled(x.float()))
        return self

    def forward(self, inputs: Tensor) -> Tensor:  # (B, ...) -> (B, outputs)
        x = inputs.flatten(1)
        numbers = self._scaled(x[:, list(self.numbers)] if self.others else x)
        if self.embedding is not None:
            numbers = self.embedding(numbers).flatten(1)
        return self.layers(torch.cat([numbers, x[:, list(self.others)]], 1) if self.others else numbers)

    def _scaled(self, numbers: Tensor) -> Tensor:
        x = (numbers - self.centre) / self.scale
        far = x.abs() - FAR
        return torch.where(far > 0, x.sign() * (FAR + torch.log1p(far.clamp(min=0))), x)


def numbers_among(inputs: Tensor) -> tuple[int, ...]:
    """Which of training inputs (N, inputs) have more than two values, and so are no flags or categories."""
    x = inputs.flatten(1)
    return tuple(i for i in range(x.shape[1]) if len(x[:, i].unique()) > 2)


def _linear_for_each(numbers: int, before: int, after: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A linear layer for every number, initialised as torch does: (numbers, before, after) and (numbers, after)."""
    bound = before**-0.5
    weight = torch.empty(numbers, before, after).uniform_(-bound, bound)
    return nn.Parameter(weight), nn.Parameter(torch.empty(numbers, after).uniform_(-bound, bound))


def _quantiles(x: Tensor, levels: Tensor) -> Tensor:
    """The quantiles (levels, columns) of x (N, columns); torch.quantile takes no more than 16 million numbers."""
    ordered = x.sort(0).values
    places = levels * (len(x) - 1)
    low = places.floor().long()
    high, share = (low + 1).clamp(max=len(x) - 1), (places - low).unsqueeze(1)
    return torch.lerp(ordered[low], ordered[high], share)
