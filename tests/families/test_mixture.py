"""Mixtures: the laws of total expectation and variance, densities, mixtures inside mixtures.

Moments of 40,000 draws are held within 4.5 standard errors.
"""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import stack
from basinet.families import Delta, Diagonal, Mixture

KEY, COUNT, Z = Noise.seed(0), 40_000, 4.5


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def diagonal(centre: torch.Tensor, scale: torch.Tensor) -> Diagonal:
    return Diagonal({"a": centre}, {"a": scale}, {"n": torch.tensor(1)})


def flat(weights, centres, scales) -> Mixture:
    return Mixture(stack([diagonal(c, s) for c, s in zip(centres, scales)]), tensor(*weights))


WEIGHTS = (0.2, 0.5, 0.3)
CENTRES = (tensor(0.0, 4.0), tensor(1.0, -1.0), tensor(-3.0, 0.0))
SCALES = (tensor(1.0, 0.5), tensor(0.3, 2.0), tensor(0.7, 0.1))
MIXTURE = flat(WEIGHTS, CENTRES, SCALES)
NESTED = Mixture(
    stack([MIXTURE, flat((0.6, 0.1, 0.3), CENTRES[::-1], [2 * s for s in SCALES])]),
    tensor(0.7, 0.3),
)
FLAT = ((0.14, 0.35, 0.21, 0.18, 0.03, 0.09), CENTRES + CENTRES[::-1], SCALES + tuple(2 * s for s in SCALES))


def total(weights, centres, scales) -> tuple[torch.Tensor, torch.Tensor]:
    """E[E[x | k]], and E[Var[x | k]] + Var[E[x | k]]."""
    mean = sum(w * c for w, c in zip(weights, centres))
    return mean, sum(w * (s.square() + (c - mean).square()) for w, c, s in zip(weights, centres, scales))


@pytest.mark.parametrize(
    ("mixture", "parts"), [(MIXTURE, (WEIGHTS, CENTRES, SCALES)), (NESTED, FLAT)], ids=["flat", "nested"]
)
def test_draws_obey_the_laws_of_total_expectation_and_variance(mixture, parts):
    mean, variance = total(*parts)
    torch.testing.assert_close(mixture.mean().params["a"], mean)
    draws = lift(lambda key: mixture.sample(Noise(key)).params["a"])(KEY.spread(COUNT).key)
    z = (draws.mean(0) - mean) / (variance / COUNT).sqrt()
    assert float(z.abs().max()) < Z
    squares = (draws - mean).square()
    z = (squares.mean(0) - variance) / (squares.std(0) / math.sqrt(COUNT))
    assert float(z.abs().max()) < Z


@pytest.mark.parametrize(
    ("mixture", "parts"), [(MIXTURE, (WEIGHTS, CENTRES, SCALES)), (NESTED, FLAT)], ids=["flat", "nested"]
)
def test_the_density_is_that_of_torch(mixture, parts):
    weights, centres, scales = parts
    expected = MixtureSameFamily(
        Categorical(tensor(*weights)), Independent(Normal(torch.stack(centres), torch.stack(scales)), 1)
    )
    for i in range(5):
        at = 2 * KEY.split(i).normal(tensor(0, 0))
        torch.testing.assert_close(mixture.log_prob({"a": at}), expected.log_prob(at))


def test_components_are_drawn_by_their_weights():
    weights = (0.0, 0.1, 0.0, 0.6, 0.3, 0.0)
    deltas = Mixture(stack([Delta({"a": torch.tensor(float(k))}, {}) for k in range(6)]), tensor(*weights))
    drawn = lift(lambda key: deltas.sample(Noise(key)).params["a"])(KEY.spread(COUNT).key)
    counts = drawn.long().bincount(minlength=6)
    for count, w in zip(counts.tolist(), weights):
        if w == 0:
            assert count == 0
        else:
            assert abs(count - COUNT * w) / math.sqrt(COUNT * w * (1 - w)) < Z


def test_a_component_without_weight_is_not_drawn_at_the_edge(monkeypatch):
    deltas = Mixture(stack([Delta({"a": torch.tensor(float(k))}, {}) for k in range(3)]), torch.tensor([0.0, 1.0, 0.0]))
    for u in (0.0, 1 - 2.0**-24):
        monkeypatch.setattr(Noise, "uniform", lambda self, like, u=u: torch.full_like(like, u))
        assert float(deltas.sample(KEY).params["a"]) == 1.0


def test_a_component_without_weight_does_not_count():
    three = flat((0.4, 0.6, 0.0), CENTRES, SCALES)
    two = flat((0.4, 0.6), CENTRES[:2], SCALES[:2])
    torch.testing.assert_close(three.mean().params, two.mean().params)
    at = {"a": tensor(0.3, -0.2)}
    torch.testing.assert_close(three.log_prob(at), two.log_prob(at))


def test_which_component_and_where_inside_it_are_independent():
    same = flat((0.5, 0.5), (tensor(-100.0), tensor(100.0)), (tensor(1.0), tensor(1.0)))
    drawn = lift(lambda key: same.sample(Noise(key)).params["a"][0])(KEY.spread(COUNT).key)
    side = drawn.sign()
    correlation = torch.corrcoef(torch.stack((side, drawn - 100 * side)))[0, 1]
    assert abs(float(correlation)) * math.sqrt(COUNT) < Z
