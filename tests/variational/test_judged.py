"""What validation sees of a normal posterior: pairs of draws, the same every time, and the noise that suits them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import Point, take
from basinet.families import Diagonal
from basinet.problem import Batch
from basinet.problem.spread import SHIFTS, energies, noise_factor
from basinet.testing.exact import conjugate
from basinet.variational import judged

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
CENTRE = {"weight": torch.tensor([[1.0, -2.0]]), "likelihood.log_noise": torch.tensor(0.5)}
FAMILY = Diagonal({"weight": CENTRE["weight"]}, {"weight": torch.tensor([[0.1, 3.0]])}, {})


def test_draws_come_in_pairs_around_the_mean_and_are_the_same_every_time():
    points = judged.draws(FAMILY, CENTRE, {})
    assert len(points) == 2 * judged.PAIRS
    for up, down in zip(points[::2], points[1::2]):
        torch.testing.assert_close((up.params["weight"] + down.params["weight"]) / 2, CENTRE["weight"])
        assert up.params["likelihood.log_noise"] is CENTRE["likelihood.log_noise"]
    assert len({float(p.params["weight"][0, 1]) for p in points}) == len(points)
    for one, other in zip(points, judged.draws(FAMILY, CENTRE, {})):
        assert torch.equal(one.params["weight"], other.params["weight"])


def test_noise_is_set_for_the_draws_and_only_where_it_is_learned_and_there_are_data():
    likelihood = bn.likelihoods.Gaussian(noise=1.0, learned=True)
    problem = bn.Problem(lambda: nn.Linear(1, 1, bias=False).double(), likelihood)
    x = torch.linspace(-1, 1, 200, dtype=torch.float64).unsqueeze(1)
    val = bn.Data(x, 2 * x + 0.3 * bn.Noise.seed(0).normal(x))
    key, log_noise = "likelihood.log_noise", torch.zeros((), dtype=torch.float64)
    points = [Point({"weight": torch.full((1, 1), w, dtype=torch.float64), key: log_noise}, {}) for w in (1.5, 2.5)]
    factor = noise_factor(problem, points, val)

    def fit(times: float) -> float:
        """Two normals of equal weight, by hand."""
        each = [torch.distributions.Normal(x * w, times).log_prob(val.targets) for w in (1.5, 2.5)]
        return float(torch.logaddexp(*each).sum())

    assert fit(factor) > max(fit(0.98 * factor), fit(1.02 * factor))
    assert factor < noise_factor(problem, points[:1], val)  # draws on both sides leave less to the noise
    centre, curves = judged.settled(problem, points[0].params, points, val)
    assert float(centre[key]) == pytest.approx(math.log(factor)) and curves == {"noise_factor": [factor]}
    assert judged.settled(problem, points[0].params, points, None) == (points[0].params, {})
    known = bn.Problem(problem.network, bn.likelihoods.Gaussian(noise=1.0))
    assert judged.settled(known, points[0].params, points, val) == (points[0].params, {})


@pytest.mark.parametrize(
    "recipe",
    [
        bn.MeanField(epochs=20, patience=100, scale=0.3),
        bn.GaussianVI(epochs=20, patience=100, scale=0.3),
        bn.IVON(epochs=20, patience=100, lr=0.1),
        bn.VBLL(epochs=20, patience=100),
        bn.VariationalDropout(epochs=20, patience=100),
    ],
    ids=lambda recipe: recipe.label,
)
def test_a_member_with_patience_ends_where_its_draws_predict_validation_best(recipe):
    exact = conjugate()
    train, val = exact.data.take(slice(0, 20)), exact.data.take(slice(20, 40))
    problem = bn.Problem(exact.problem.network, bn.likelihoods.Gaussian(noise=0.5, learned=True))
    fitted = bn.fit(recipe, problem, train, val=val, engine=ENGINE)
    family = take(fitted.parts[0].family, 0)
    points = judged.draws(family.part, family.mean().params, {})
    energy = energies(problem, points, Batch(val.inputs, val.targets, val.targets, torch.zeros(()), 20))
    curves = fitted.info["curves"]
    lowest = min(curves["val_nll"][0])
    assert float(energy[len(SHIFTS) // 2]) / 20 == pytest.approx(lowest, abs=0.01)  # at the noise set
    assert float(energy.min()) / 20 == pytest.approx(lowest, abs=0.05)  # of those .25 apart
    assert curves["noise_factor"][0][0] != 1
