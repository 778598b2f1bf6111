"""Weights of elements in every structure: places of weight zero are not there, whatever stands at them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import ravel
from basinet.curvature import structures
from basinet.curvature.passes import Passes
from basinet.problem.likelihoods import Categorical, Gaussian, Likelihood, NoisyDirichlet

KEY = Noise.seed(4)
N, T = 10, 5
STRUCTURES = ("full", "kronecker", "eigen-corrected", "diagonal", "low-rank")
LENGTHS = torch.tensor([5, 3, 1, 4, 2, 5, 3, 2, 4, 1])
MASK = (torch.arange(T) < LENGTHS[:, None]).double()
SMALL = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def steps(padding: float, width: int = 3) -> Tensor:
    x = KEY.split("steps").normal(torch.empty(N, T, width, dtype=torch.float64))
    return torch.where(MASK.unsqueeze(-1) > 0, x, padding)


def targets(likelihood: Likelihood) -> Tensor:
    if isinstance(likelihood, Gaussian):
        return KEY.split("targets").normal(torch.empty(N, T, 2, dtype=torch.float64))
    return KEY.split("classes").integers(N * T, 2).reshape(N, T)


def passes(module: nn.Module, likelihood: Likelihood, data: bn.Data, **options) -> Passes:
    problem = bn.Problem(module, likelihood)
    point = problem.complete(problem.network.read(module))
    names = tuple(problem.split(point.params)[0])
    return Passes(**({"problem": problem, "point": point, "data": data, "names": names, "noise": KEY} | options))


def evidence(structure: str, likelihood: Likelihood, data: bn.Data, module: nn.Module = SMALL) -> float:
    problem = bn.Problem(module, likelihood)
    start = bn.Posterior.of(module, problem)
    fitted = bn.fit(
        bn.Laplace(structure=structure, where=None, rank=8, prior_precision="prior"), problem, data, start=start
    )
    return fitted.info["curves"]["log_evidence"][0][0]


@pytest.mark.parametrize("likelihood", [Categorical(), NoisyDirichlet(), Gaussian(noise=0.7)], ids=repr)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_evidence_is_that_of_the_steps_as_examples_whatever_pads_them(structure, likelihood):
    y = targets(likelihood)
    weights = MASK if y.dim() == 2 else MASK.unsqueeze(-1).expand(y.shape).clone()
    counted = MASK.bool()
    apart = evidence(structure, likelihood, bn.Data(steps(0.0)[counted], y[counted]))
    for padding in (0.0, 1.0, 100.0):
        together = evidence(structure, likelihood, bn.Data(steps(padding), y, weights))
        assert together == pytest.approx(apart, rel=1e-8)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("structure", ["kronecker", "eigen-corrected"])
def test_steps_with_one_output_each(structure, flat):
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(-2) if flat else nn.Identity()).double()
    alone = nn.Sequential(*one[:3])
    y, counted = targets(Gaussian())[..., :1], MASK.bool()
    apart = evidence(structure, Gaussian(noise=0.7), bn.Data(steps(0.0)[counted], y[counted]), alone)
    for padding in (0.0, 100.0):
        shaped = (y.squeeze(-1), MASK) if flat else (y, MASK.unsqueeze(-1))
        together = evidence(structure, Gaussian(noise=0.7), bn.Data(steps(padding), *shaped), one)
        assert together == pytest.approx(apart, rel=1e-8)


@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(noise=0.7)], ids=repr)
def test_any_weights_are_those_of_the_steps_as_examples(likelihood):
    y, x = targets(likelihood), steps(0.0)
    of_steps = KEY.split("weights").uniform(MASK) * MASK
    weights = of_steps if y.dim() == 2 else of_steps.unsqueeze(-1).expand(y.shape).clone()
    together = structures.kronecker(passes(SMALL, likelihood, bn.Data(x, y, weights)))
    apart = structures.kronecker(
        passes(SMALL, likelihood, bn.Data(x.flatten(0, 1), y.flatten(0, 1), of_steps.flatten()))
    )
    for n, factor in apart.right.items():
        torch.testing.assert_close(together.right[n], factor, rtol=0, atol=1e-13)
    for n in apart.right:
        torch.testing.assert_close(together.left[n], apart.left[n], rtol=0, atol=1e-12)


class Convolved(nn.Module):
    """Fewer places inside than the targets have, and an average of neighbours at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.each = nn.Conv1d(3, 4, 2, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.each(torch.tanh(self.conv(x.mT)).mT)[:, 1:]


class Attention(nn.Module):
    """Steps that look at each other: at all, or at those that are counted."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked, self.embed = masked, nn.Linear(3, 4)
        self.mix, self.each = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, counted: Tensor) -> Tensor:
        x = torch.tanh(self.embed(x))
        return self.each(self.mix(x, x, x, key_padding_mask=~counted if self.masked else None)[0])


@pytest.mark.parametrize("size", [256, 3, 1])
def test_what_no_counted_output_sees_does_not_enter_the_factors(size):
    """A step sees itself and the one after: with one counted step less, no padding is seen."""
    torch.manual_seed(0)
    module, y = Convolved().double(), targets(Categorical())
    weights = (torch.arange(T) < (LENGTHS - 1)[:, None]).double()
    factors = [
        structures.kronecker(passes(module, Categorical(), bn.Data(steps(p), y, weights), batch_size=size))
        for p in (0.0, 1.0, 100.0)
    ]
    for other in factors[1:]:
        torch.testing.assert_close(other[:3], factors[0][:3], rtol=1e-12, atol=1e-13)
    whole = structures.kronecker(passes(module, Categorical(), bn.Data(steps(0.0), y, weights)))
    torch.testing.assert_close(factors[0][:3], whole[:3], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [256, 3, 1])
@pytest.mark.parametrize("masked", [True, False])
def test_steps_that_look_at_each_other(masked, size):
    torch.manual_seed(0)
    module, y = Attention(masked).double(), targets(Categorical())
    factors = []
    for padding in (0.0, 1.0, 100.0):
        data = bn.Data({"x": steps(padding), "counted": MASK.bool()}, y, MASK)
        factor = structures.kronecker(passes(module, Categorical(), data, batch_size=size)).right["embed.weight"]
        x = steps(padding)[MASK.bool()] if masked else steps(padding).flatten(0, 1)
        w = torch.ones(len(x)).double() if masked else MASK.mean(1).repeat_interleave(T)
        torch.testing.assert_close(factor, (w[:, None] * x).T @ x / w.sum(), rtol=1e-12, atol=1e-12)
        factors.append(factor)
    assert torch.allclose(factors[0], factors[2]) == masked


@pytest.mark.parametrize("size", [N, 2])
def test_the_noisy_dirichlet_takes_weights_of_steps_with_twice_as_many_classes(size):
    """In batches of as many examples as there are steps, too."""
    torch.manual_seed(0)
    module, likelihood = nn.Linear(3, 4).double(), NoisyDirichlet()
    x, y, weights = steps(0.0)[:, :2], KEY.split("four").integers(2 * N, 4).reshape(N, 2), MASK[:, :2]
    p = passes(module, likelihood, bn.Data(x, y, weights), batch_size=size)
    counted = weights.bool()
    apart = passes(module, likelihood, bn.Data(x[counted], y[counted]))
    torch.testing.assert_close(structures.full(p).values, structures.full(apart).values, rtol=0, atol=1e-11)
    diagonal, expected = structures.diagonal(p).values, structures.diagonal(apart).values
    torch.testing.assert_close(ravel(diagonal), ravel(expected), rtol=0, atol=1e-11)
    torch.testing.assert_close(structures.kronecker(p).right, structures.kronecker(apart).right, rtol=0, atol=1e-12)
