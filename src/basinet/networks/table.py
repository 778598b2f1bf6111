"""A network for tables: numbers through embeddings, then a dense network (Gorishniy et al. 2022, "On embeddings for
numerical features in tabular deep learning").

A dense network bends slowly along any one input, while tables have waves and thresholds. So each number x becomes a few
features of its own first:

    e = W [x, sin 2 pi c x, cos 2 pi c x, t_1 ... t_K] + b

with frequencies c that are learned, and t_k that runs from 0 to 1 across bin k. In the beginning e is linear in x: what
bends more has to be learned, so that few or noisy data get a smooth function. The last layer sees the inputs too,
beside the last hidden layer: a table that is linear is fitted as such.

Bins lie between training quantiles. A number whose values come back again and again is partly a name (a machine, a
day, a dose): it has an edge at every value, up to as many as there are bins, so that a value can have a say of its own.

Inputs that are not numbers (an input per category, a flag for a missing value) go to the dense layers as they are: the
first of them holds a vector for each, which is what an embedding of categories is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

BEYOND = 3.0  # widths by which the outermost bins go on past the training data
QUANTILES = 48  # bins of a number that hardly repeats itself
VALUES, NODES = 512, 2**14  # bins of one that does, at most, and of all numbers together
ROWS = 16  # of training in each of its bins, on average, at least
FAR = 4.0  # scales up to which a number is itself
QUARTILES = 1.349  # standard deviations between the quartiles of a normal


class NumberEmbedding(nn.Module):
    """Each number as `features` combinations of itself, of sines and cosines of it, and of its place in bins."""

    edges: Tensor  # (numbers, bins + 1), of `fitted`, the last repeated where there are fewer; before, even in (-3, 3)

    def __init__(
        self, numbers: int, features: int = 8, frequencies: int = 16, bins: int = QUANTILES, scale: float = 0.3
    ) -> None:
        super().__init__()
        if min(numbers, features, bins) < 1 or frequencies < 0:
            raise ValueError(
                f"expected numbers, features and bins of at least 1 and frequencies of at least 0, got {numbers}, "
                f"{features}, {bins} and {frequencies}"
            )
        self.frequency = nn.Parameter(scale * torch.randn(numbers, frequencies))
        self.register_buffer("edges", torch.linspace(-3, 3, bins + 1).repeat(numbers, 1))
        weight = torch.zeros(numbers, 1 + 2 * frequencies, features)
        weight[:, 0].uniform_(-1, 1)
        self.weight = nn.Parameter(weight)
        self.rises = nn.Parameter(torch.zeros(numbers, bins, features))  # across each bin
        self.bias = nn.Parameter(torch.empty(numbers, features).uniform_(-1, 1))

    def fitted(self, numbers: Tensor) -> NumberEmbedding:
        """Itself, with edges from training numbers (N, numbers)."""
        bins = self.edges.shape[1] - 1
        for number, x in enumerate(numbers.detach().double().cpu().unbind(1)):
            edges = edges_of(x, bins)
            self.edges[number] = torch.cat([edges, edges[-1:].expand(bins + 1 - len(edges))])
        return self

    def forward(self, numbers: Tensor) -> Tensor:  # (B, numbers) -> (B, numbers, features)
        x = numbers.unsqueeze(-1)
        angle = 2 * math.pi * self.frequency * x
        waves = torch.einsum("bnk,nkf->bnf", torch.cat([x, angle.sin(), angle.cos()], -1), self.weight)
        return waves + self._pieces(numbers.T).transpose(0, 1) + self.bias

    def _pieces(self, x: Tensor) -> Tensor:  # (numbers, B) -> (numbers, B, features)
        """Straight lines between values at the edges, which go on past the outermost."""
        width = self.edges.diff(dim=1)
        last = ((width > 0).sum(1, keepdim=True) - 1).clamp(min=0)  # bin with a width
        bins = _bins(self.edges, x).minimum(last)
        wide = width.gather(1, bins)
        place = (x - self.edges.gather(1, bins)) / torch.where(wide > 0, wide, 1.0)
        place = torch.where(wide > 0, place.clamp(-BEYOND, 1 + BEYOND), 0.0).unsqueeze(-1)
        values = nn.functional.pad(self.rises.cumsum(1), (0, 0, 1, 0))  # (numbers, bins + 1, features), 0 at the first
        here = bins.unsqueeze(-1).expand(-1, -1, values.shape[-1])
        return torch.lerp(values.gather(1, here), values.gather(1, here + 1), place)


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
        bins: int = QUANTILES,  # of each number at most; `bins_for` says how many training inputs ask for
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
        self.embedding = NumberEmbedding(len(self.numbers), features, bins=bins) if self.numbers and features else None
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


def bins_for(inputs: Tensor, numbers: Sequence[int]) -> int:
    """How many bins the numbers among training inputs (N, inputs) ask for: one between any two values of those that
    repeat themselves, within bounds."""
    x = inputs.detach().flatten(1)
    values = [len(x[:, i].unique()) for i in numbers]
    most = max((v - 1 for v in values if _repeats(v, len(x))), default=0)
    return max(QUANTILES, min(most, VALUES, len(x) // ROWS, NODES // max(1, len(values))))


def edges_of(x: Tensor, bins: int) -> Tensor:
    """The edges of at most `bins` bins for training values (N,) of one number: its values where they are few, or
    quantiles, of which there are fewer where it hardly repeats itself."""
    values = x.unique()
    if not _repeats(len(values), len(x)):
        bins = min(bins, QUANTILES)
    if len(values) <= bins + 1:
        return values
    levels = torch.linspace(0, 1, bins + 1, dtype=x.dtype)
    return _quantiles(x.unsqueeze(1), levels)[:, 0].unique()


def _bins(edges: Tensor, x: Tensor) -> Tensor:
    """In which bin between edges (numbers, K + 1) each of x (numbers, B) lies, by bisection: torch.searchsorted warns
    in a stack."""
    last = edges.shape[1] - 1
    bins = torch.zeros_like(x, dtype=torch.long)
    for k in reversed(range(last.bit_length())):
        higher = (bins + 2**k).clamp(max=last)
        bins = torch.where(edges.gather(1, higher) <= x, higher, bins)
    return bins.clamp(max=last - 1)


def _repeats(values: int, n: int) -> bool:
    """Whether n rows with this many different values have each at least twice, on average."""
    return 2 * values <= n


def _quantiles(x: Tensor, levels: Tensor) -> Tensor:
    """The quantiles (levels, columns) of x (N, columns); torch.quantile takes no more than 16 million numbers."""
    ordered = x.sort(0).values
    places = levels * (len(x) - 1)
    low = places.floor().long()
    high, share = (low + 1).clamp(max=len(x) - 1), (places - low).unsqueeze(1)
    return torch.lerp(ordered[low], ordered[high], share)
