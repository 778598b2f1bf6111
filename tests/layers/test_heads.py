"""The last layer is what the output comes from: all heads, and nothing that is called beside them. Networks that end in
one number for each example, without an axis for it, are those with such an axis."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.curvature.follow import last_layer
from basinet.curvature.passes import Passes
from basinet.problem.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Likelihood, Poisson

KEY = Noise.seed(6)
N = 30
ENGINE = bn.Engine(device="cpu", progress=False)


def numbers(*shape: int) -> Tensor:
    return KEY.split(str(shape)).normal(torch.empty(N, *shape, dtype=torch.float64))


class Heads(nn.Module):
    """Mean and scale from heads of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.scale = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return torch.cat([self.mean(h), self.scale(h)], -1)


class Auxiliary(nn.Module):
    """A layer that is called last and is no part of the output, and one whose output is not differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.gate, self.aside = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        out = self.head(h) * (self.gate(h) > 0)
        self.hint = self.aside(h)
        return out


class Residual(nn.Module):
    """The stem is part of the last sum, and of what goes into the other part."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep, self.last = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x + self.last(torch.tanh(self.deep(x)))


class Parallel(nn.Module):
    """Two ways that meet at the end, one of them a convolution; the activation writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.body, self.deep = nn.Conv1d(1, 2, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.wide(x.unsqueeze(1)).squeeze(-1)) + torch.relu_(self.deep(torch.tanh(self.body(x))))


class Again(nn.Module):
    """A head whose output goes into the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.head(torch.tanh(self.cell(x)))
        return first + self.head(torch.tanh(self.cell(first)))


class Routed(nn.Module):
    """Experts for some of the examples each: all are heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        some, h = x[:, 0] > 0, torch.tanh(self.body(x))
        out = x.new_zeros(len(x), 2)
        out[some], out[~some] = self.left(h[some]), self.right(h[~some])
        return out


def passes(make, likelihood: Likelihood, targets: Tensor) -> Passes:
    problem = bn.Problem(lambda: make().double(), likelihood)
    point = problem.init(KEY)
    names = tuple(problem.split(point.params)[0])
    return Passes(problem=problem, point=point, data=bn.Data(numbers(3), targets), names=names, noise=KEY)


@pytest.mark.parametrize(
    ("make", "heads"),
    [
        (Heads, {"mean", "scale"}),
        (Auxiliary, {"head"}),
        (Residual, {"last"}),
        (Parallel, {"wide", "deep"}),
        (Again, {"head"}),
        (Routed, {"left", "right"}),
    ],
)
def test_the_last_layer_is_what_the_output_comes_from(make, heads):
    width = {"Heads": 1, "Auxiliary": 3, "Residual": 3, "Again": 3}.get(make.__name__, 2)
    p = passes(make, Heteroscedastic() if make is Heads else Gaussian(), numbers(width))
    names = last_layer(p)
    assert {n.rpartition(".")[0] for n in names} == heads
    assert names == tuple(n for n in p.params if n in names)


def test_a_mean_with_a_head_of_its_own_is_uncertain():
    """The posterior of the mean's head is that of a regression with the noise that the other head predicts."""
    problem = bn.Problem(lambda: Heads().double(), Heteroscedastic())
    torch.manual_seed(0)
    module = Heads().double()
    data = bn.Data(numbers(3), numbers(1))
    start = bn.Posterior.of(module, problem)
    recipe = bn.Laplace(structure="full", prior_precision="prior")
    fitted = bn.fit(recipe, problem, data, start=start, engine=ENGINE)
    drawn = fitted.sample(4000, seed=0)
    assert {n for n, x in drawn.items() if float(x.std(1).max()) > 0} == {
        "mean.weight",
        "mean.bias",
        "scale.weight",
        "scale.bias",
    }
    with torch.no_grad():
        h = torch.tanh(module.body(data.inputs))
        a = torch.cat([h, torch.ones(N, 1).double()], 1)
        known = bn.likelihoods.Heteroscedastic().distribution(module(data.inputs), {}).variance[:, 0]
    covariance = torch.linalg.inv((a / known[:, None]).T @ a + torch.eye(5).double())
    each = torch.cat([drawn["mean.weight"][0, :, 0], drawn["mean.bias"][0]], 1)
    z = (each.var(0) / covariance.diagonal() - 1) / (2 / 3999) ** 0.5
    assert float(z.abs().max()) < 4.5  # five numbers


class Flat(nn.Module):
    """One number for each example, with an axis for it or without."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.flat, self.body, self.head = flat, nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(torch.tanh(self.body(x)))
        return out.squeeze(-1) if self.flat else out


LIKELIHOODS = {
    "gaussian": (Gaussian(noise=0.5), numbers()),
    "learned": (Gaussian(noise=0.5, learned=True), numbers()),
    "bernoulli": (Bernoulli(), (numbers() > 0).double()),
    "poisson": (Poisson(), numbers().abs().round()),
}


@pytest.mark.parametrize("where", ["last", None])
@pytest.mark.parametrize("curvature", ["ggn", "fisher"])
@pytest.mark.parametrize("structure", ["full", "kronecker", "eigen-corrected", "diagonal", "low-rank"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_networks_that_return_one_axis_are_those_that_return_two(name, structure, curvature, where):
    likelihood, targets = LIKELIHOODS[name]
    weights = KEY.split("weights").uniform(targets)
    fits = []
    for flat in (True, False):
        torch.manual_seed(0)
        module = Flat(flat).double()
        problem = bn.Problem(module, likelihood)
        data = bn.Data(numbers(3), targets if flat else targets.unsqueeze(-1), weights)
        recipe = bn.Laplace(structure=structure, curvature=curvature, where=where, rank=4, prior_precision="prior")
        fitted = bn.fit(recipe, problem, data, start=bn.Posterior.of(module, problem), engine=ENGINE)
        predictive = fitted.predict(data.inputs, samples=5)
        fits.append((fitted.info["curves"]["log_evidence"][0][0], predictive.log_prob(data.targets).flatten()))
    assert fits[0][0] == pytest.approx(fits[1][0], rel=1e-9)
    torch.testing.assert_close(fits[0][1], fits[1][1], rtol=1e-8, atol=1e-9)


def test_labels_of_one_axis_are_predicted_by_probit():
    likelihood, targets = LIKELIHOODS["bernoulli"]
    log_probs = []
    for flat in (True, False):
        torch.manual_seed(0)
        module = Flat(flat).double()
        problem = bn.Problem(module, likelihood)
        data = bn.Data(numbers(3), targets if flat else targets.unsqueeze(-1))
        fitted = bn.fit(
            bn.Laplace(via="probit", prior_precision="prior"),
            problem,
            data,
            start=bn.Posterior.of(module, problem),
            engine=ENGINE,
        )
        log_probs.append(fitted.predict(data.inputs).log_prob(data.targets).flatten())
    torch.testing.assert_close(log_probs[0], log_probs[1], rtol=1e-10, atol=1e-12)
