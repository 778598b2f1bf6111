"""A network for tables: numbers through embeddings, then a dense network (Gorishniy et al. 2022, "On embeddings for
numerical features in tabular deep learning").

A dense network bends slowly along any one input, while tables have waves and thresholds. So each number x becomes a few
features of its own first:

    e = W [x, sin 2 pi c x, cos 2 pi c x, t_1 ... t_K] + b

with frequencies c that are learned, and t_k that runs from 0 to 1 across bin k of the training quantiles. In the
beginning e is linear in x: what bends more has to be learned, so that few or noisy data get a smooth function. The last
layer sees the inputs too, beside the last hidden layer: a table that is linear is fitted as such.

Inputs that are no numbers (an input per category, a flag for a missing value) go to the dense layers as they are: the
first of them holds a vector for each, which is what an embedding of categories is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

BEYOND = 3.0  # widths by which the outermost bins go on past the training data
FAR = 4.0  # scales up to which a number is itself
QUARTILES = 1.349  # standard deviations between the quartiles of a normal


class NumberEmbedding(nn.Module):
    """Each number as `features` combinations of itself, of sines and cosines of it, and of its place in bins."""

    edges: Tensor  # (numbers, bins + 1), of `fitted`; before, even between -3 and 3

    def __init__(
        self, numbers: int, features: int = 8, frequencies: int = 16, bins: int = 48, scale: float = 0.3
    ) -> None:
        super().__init__()
        if min(numbers, features, bins) < 1 or frequencies < 0:
            raise ValueError(
                f"expected numbers, features and bins of at least 1 and frequencies of at least 0, got {numbers}, "
                f"{features}, {bins} and {frequencies}"
            )
        self.frequency = nn.Parameter(scale * torch.randn(numbers, frequencies))
        self.register_buffer("edges", torch.linspace(-3, 3, bins + 1).repeat(numbers, 1))
        weight = torch.zeros(numbers, 1 + 2 * frequencies + bins, features)
        weight[:, 0].uniform_(-1, 1)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.empty(numbers, features).uniform_(-1, 1))

    def fitted(self, numbers: Tensor) -> NumberEmbedding:
        """Itself, with the quantiles of training numbers (N, numbers) as edges."""
        levels = torch.linspace(0, 1, self.edges.shape[1], dtype=torch.float64)
        self.edges.copy_(_quantiles(numbers.detach().double().cpu(), levels).T)
        return self

    def forward(self, numbers: Tensor) -> Tensor:  # (B, numbers) -> (B, numbers, features)
        x = numbers.unsqueeze(-1)
        angle = 2 * math.pi * self.frequency * x
        low, width = self.edges[:, :-1], self.edges.diff(dim=1)
        place = (x - low) / torch.where(width > 0, width, 1.0)  # (B, numbers, bins)
        first, last = place[..., :1].clamp(-BEYOND, 1), place[..., -1:].clamp(0, 1 + BEYOND)
        pieces = torch.cat([first, place[..., 1:-1].clamp(0, 1), last], -1) if place.shape[-1] > 1 else place
        pieces = torch.where(width > 0, pieces, 0.0)  # equal quantiles make bins without width
        each = torch.cat([x, angle.sin(), angle.cos(), pieces], -1)
        return torch.einsum("bnk,nkf->bnf", each, self.weight) + self.bias


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
        hidden: Sequence[int] = (128, 128, 128),
        features: int = 8,  # of each number; 0: numbers are not embedded
    ) -> None:
        super().__init__()
        chosen = range(inputs) if numbers is None else sorted({*numbers})
        if any(not 0 <= i < inputs for i in chosen):
            raise ValueError(f"expected numbers among the inputs 0 to {inputs - 1}, got {list(chosen)}")
        if min(inputs, outputs, *hidden) < 1 or not hidden:
            raise ValueError(f"expected a hidden layer and sizes >= 1, got {(inputs, *hidden, outputs)}")
        self.numbers = tuple(chosen)
        self.others = tuple(i for i in range(inputs) if i not in {*chosen})
        self.register_buffer("centre", torch.zeros(len(self.numbers)))
        self.register_buffer("scale", torch.ones(len(self.numbers)))
        self.embedding = NumberEmbedding(len(self.numbers), features) if self.numbers and features else None
        width = len(self.numbers) * (features if self.embedding is not None else 1) + len(self.others)
        dense = [nn.Linear(a, b) for a, b in pairwise((width, *hidden))]
        self.layers = nn.Sequential(*(layer for linear in dense for layer in (linear, nn.SiLU())))
        self.head = nn.Linear(hidden[-1] + inputs, outputs)

    def fitted(self, inputs: Tensor) -> TableNet:
        """Itself, with the scales and bins of training inputs (N, inputs)."""
        x = inputs.detach().flatten(1)[:, list(self.numbers)].double().cpu()
        low, middle, high = _quantiles(x, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
        robust, sd = (high - low) / QUARTILES, (x - x.mean(0)).square().mean(0).sqrt()  # of no numbers, too
        scale = torch.where(robust > 0, robust, sd)
        self.centre.copy_(middle)
        self.scale.copy_(torch.where(scale > 0, scale, 1.0))
        if self.embedding is not None:
            self.embedding.fitted(self._scaled(x.float()))
        return self

    def forward(self, inputs: Tensor) -> Tensor:  # (B, ...) -> (B, outputs)
        x = inputs.flatten(1)
        numbers = self._scaled(x[:, list(self.numbers)] if self.others else x)
        others = [x[:, list(self.others)]] if self.others else []
        embedded = numbers if self.embedding is None else self.embedding(numbers).flatten(1)
        hidden = self.layers(torch.cat([embedded, *others], 1))
        return self.head(torch.cat([hidden, numbers, *others], 1))

    def _scaled(self, numbers: Tensor) -> Tensor:
        x = (numbers - self.centre) / self.scale
        far = x.abs() - FAR
        return torch.where(far > 0, x.sign() * (FAR + torch.log1p(far.clamp(min=0))), x)


def numbers_among(inputs: Tensor) -> tuple[int, ...]:
    """Which of training inputs (N, inputs) have more than two values, and so are no flags or categories."""
    x = inputs.flatten(1)
    return tuple(i for i in range(x.shape[1]) if len(x[:, i].unique()) > 2)


def _quantiles(x: Tensor, levels: Tensor) -> Tensor:
    """The quantiles (levels, columns) of x (N, columns); torch.quantile takes no more than 16 million numbers."""
    ordered = x.sort(0).values
    places = levels * (len(x) - 1)
    low = places.floor().long()
    high, share = (low + 1).clamp(max=len(x) - 1), (places - low).unsqueeze(1)
    return torch.lerp(ordered[low], ordered[high], share)
