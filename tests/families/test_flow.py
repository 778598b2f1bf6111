"""Flows: identity at the start, determinants and inverses against autograd, and the family they make."""

from __future__ import annotations

import pytest
import torch

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import Params, ravel, tree_map, unravel
from basinet.families import Diagonal, Flow, flows
from basinet.testing import check_family

KEY = Noise.seed(1)


def maps(kind: str, size: int, moved: float = 0.5) -> Params:
    like = KEY.split("like").normal(torch.empty(size, dtype=torch.float64))
    start = flows.start(kind, 3, like, KEY.split("start"))
    return {n: x + moved * KEY.split(n).normal(x) for n, x in start.items()}


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kind", flows.KINDS)
def test_maps_start_as_the_identity_and_have_their_determinant_and_inverse(kind, size):
    z = KEY.split("z").normal(torch.empty(size, dtype=torch.float64))
    same, logs = flows.forward(kind, maps(kind, size, 0.0), z)
    torch.testing.assert_close(same, z, rtol=0, atol=1e-12)
    assert float(logs.abs()) < 1e-12
    bent = maps(kind, size)
    there, logs = flows.forward(kind, bent, z)
    jacobian = torch.func.jacrev(lambda z: flows.forward(kind, bent, z)[0])(z)
    torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], logs, rtol=0, atol=1e-10)
    back, again = flows.inverse(kind, bent, there)
    torch.testing.assert_close(back, z, rtol=0, atol=1e-9)
    torch.testing.assert_close(again, logs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", flows.KINDS)
def test_it_is_a_family_with_a_density(kind):
    centre = {"a": torch.tensor([0.5, -0.3], dtype=torch.float64), "b": torch.tensor(0.2, dtype=torch.float64)}
    before = Diagonal(centre, tree_map(lambda x: torch.full_like(x, 0.4), centre), {})
    bent = maps(kind, 3, 0.3)
    shell = Flow(before, bent, centre, kind)
    draws = lift(lambda key: ravel(shell.sample(Noise(key)).params))(KEY.split("mean").spread(100_000).key)
    check_family(Flow(before, bent, unravel(draws.mean(0), centre), kind))


def test_it_is_not_normal():
    centre = {"a": torch.zeros(2, dtype=torch.float64)}
    family = Flow(Diagonal(centre, {"a": torch.ones(2).double()}, {}), maps("radial", 2), centre, "radial")
    with pytest.raises(ValueError, match="Flow is not Gaussian"):
        family.scaled(2.0)
