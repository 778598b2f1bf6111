"""Methods around trained networks: none that is given validation data is worse than its start, and without them what
is clearly worse says so. An ensemble of CNNs on the digits, and a transformer that reads them as tokens."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import basinet as bn

pytestmark = pytest.mark.slow
ENGINE = bn.Engine(device="cpu", progress=False, compile=False, processes=1)
SWAG = bn.SWAG(iterates=10, rank=5)
WORSE = (
    0.02  # nats per test example: with 360 of them and more, chance moves the difference of two close posteriors less
)


def cnn() -> nn.Module:
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


class Reader(nn.Module):
    """A small BERT: takes a dict of token ids and a mask, and answers from the place of its first token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(9, width), nn.Embedding(17, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        first = torch.zeros_like(ids[:, :1])
        x = self.embed(torch.cat([first, ids], 1)) + self.place.weight
        hidden = torch.cat([first.bool(), ~mask], 1)
        return self.head(self.encoder(x, src_key_padding_mask=hidden)[:, 0])


def images() -> bn.Data:
    digits = load_digits()
    return bn.Data(torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target))


def tokens() -> bn.Data:
    """Squares of two by two pixels, in eight shades; the dark ones are not read."""
    digits = load_digits()
    shade = torch.tensor(digits.images).float().reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)
    ids = (shade / 16 * 7).round().long() + 1
    return bn.Data({"ids": ids, "mask": ids > 1}, torch.tensor(digits.target))


class Case:
    """A trained start and the data it was trained on."""

    def __init__(self, make: Any, data: bn.Data, parts: tuple[float, ...], recipe: bn.MAP, members: int) -> None:
        self.train, self.val, self.test = data.split(*parts, seed=0)
        self.problem = bn.Problem(make, bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
        self.start = bn.fit(recipe, self.problem, self.train, members=members, engine=ENGINE)
        self.before = bn.score(self.start, self.test)

    def after(self, recipe: Any, validated: bool) -> dict[str, float]:
        val = self.val if validated else None
        posterior = bn.fit(recipe, self.problem, self.train, val=val, start=self.start, engine=ENGINE)
        return bn.score(posterior, self.test)


@pytest.fixture(scope="module")
def ensemble() -> Case:
    return Case(cnn, images(), (0.3, 0.35, 0.35), bn.MAP(epochs=40, batch_size=64), 3)


@pytest.fixture(scope="module")
def reader() -> Case:
    recipe = bn.MAP(epochs=40, optimizer=bn.optim.Adam(lr=3e-3))
    return Case(Reader, tokens(), (0.6, 0.2, 0.2), recipe, 1)


@pytest.mark.parametrize("case", ["ensemble", "reader"])
@pytest.mark.parametrize(
    "recipe",
    [bn.Laplace(), SWAG],
    ids=["Laplace", "SWAG"],
)
def test_with_validation_data_nothing_is_worse_than_its_start(case, recipe, request):
    given = request.getfixturevalue(case)
    assert given.before["accuracy"] > 0.7
    after = given.after(recipe, validated=True)
    assert after["nll"] < given.before["nll"] + WORSE and after["accuracy"] > given.before["accuracy"] - 0.02


@pytest.mark.parametrize("case", ["ensemble", "reader"])
@pytest.mark.parametrize("recipe", [bn.Laplace(), SWAG], ids=["Laplace", "SWAG"])
def test_without_validation_data_what_is_worse_says_so(case, recipe, request, caplog):
    given = request.getfixturevalue(case)
    with caplog.at_level(logging.WARNING, logger="basinet"):
        after = given.after(recipe, validated=False)
    assert after["nll"] < given.before["nll"] + 2 * WORSE or "worse than its start" in caplog.text
