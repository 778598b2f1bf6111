"""Rows: a layer with independent rows, against one normal distribution over all of its elements."""

from __future__ import annotations

import pytest
import torch

from basinet.core.noise import Noise
from basinet.core.tree import Params, ravel
from basinet.families import Full, Rows
from basinet.testing import check_family


def rows(bias: bool) -> Rows:
    key = Noise.seed(2)
    shapes = {"weight": (2, 3)} | ({"bias": (2,)} if bias else {})
    centre: Params = key.normal_params({n: torch.empty(s, dtype=torch.float64) for n, s in shapes.items()})
    width = 4 if bias else 3
    raw = key.split("factor").normal(torch.empty(2, width, width, dtype=torch.float64))
    diagonal = raw.diagonal(dim1=-2, dim2=-1).exp()
    return Rows(centre, raw.tril(-1) + diagonal.diag_embed(), {})


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_a_family(bias):
    check_family(rows(bias))


@pytest.mark.parametrize("bias", [True, False])
def test_density_and_spread_are_those_of_the_whole_covariance(bias):
    family = rows(bias)
    order = [0, 1, 2, 6, 3, 4, 5, 7] if bias else list(range(6))  # where the elements of each row are in `ravel`
    whole = torch.zeros(len(order), len(order), dtype=torch.float64)
    block = torch.block_diag(*(f @ f.T for f in family.factor))
    whole[torch.tensor(order)[:, None], torch.tensor(order)] = block
    full = Full(family.centre, torch.linalg.cholesky(whole), {})
    params = {n: x + 0.3 for n, x in family.centre.items()}
    torch.testing.assert_close(family.log_prob(params), full.log_prob(params))
    jacobian = {n: Noise.seed(3).split(n).normal(x.new_empty(5, *x.shape)) for n, x in family.centre.items()}
    torch.testing.assert_close(family.quad(jacobian), full.quad(jacobian))
    torch.testing.assert_close(family.scaled(4.0).quad(jacobian), 4 * full.quad(jacobian))
    assert ravel(family.sample(Noise.seed(0)).params).shape == (len(order),)
