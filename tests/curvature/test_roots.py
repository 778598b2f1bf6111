"""The factor of a softmax's curvature, against the matrix that it is a factor of."""

from __future__ import annotations

import pytest
import torch

from basinet.core.noise import Noise
from basinet.curvature.roots import Softmax

KEY = Noise.seed(3)


@pytest.mark.parametrize("shape", [(5, 4), (5, 2), (5, 3, 4)])  # classes; two of them; several places per example
@pytest.mark.parametrize("weighted", [False, True])
def test_columns_multiply_to_the_matrix(shape, weighted):
    outputs = 3 * KEY.normal(torch.empty(shape, dtype=torch.float64))
    weights = KEY.split("weights").uniform(torch.empty(5, dtype=torch.float64)) if weighted else None
    root = Softmax(outputs, weights)
    places, classes = outputs[0].numel() // shape[-1], shape[-1]
    assert root.count == places * (classes - 1)
    columns = torch.cat([root.columns(k, min(k + 2, root.count)) for k in range(0, root.count, 2)])  # (K, B, E)
    torch.testing.assert_close(torch.einsum("kbe,kbf->bef", columns, columns), root.matrices(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("certain", range(4))
def test_certain_outputs_have_no_curvature_and_no_nan(certain):
    outputs = torch.full((1, 4), -200.0)  # the other probabilities are zero in single precision
    outputs[0, certain] = 0.0
    assert Softmax(outputs, None).columns(0, 3).abs().max() == 0


def test_what_is_almost_certain_keeps_its_relative_accuracy():
    outputs = torch.tensor([[0.0, -30.0, -31.0, -29.0]])
    columns = Softmax(outputs, None).columns(0, 3)[:, 0].double()
    p = outputs[0].double().softmax(-1)
    others = torch.stack([p[torch.arange(4) != c].sum() for c in range(4)])  # 1 - p would lose it
    torch.testing.assert_close((columns.mT @ columns).diagonal(), p * others, rtol=1e-5, atol=0)
