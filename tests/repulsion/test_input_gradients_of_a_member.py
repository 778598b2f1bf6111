"""Gradients with respect to inputs: what is differentiated for each kind of target, over which inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.repulsion.input_gradients import counting, evidence, flat_inputs, input_gradients, unit

NOISE = Noise.seed(1)
X = NOISE.split("x").normal(torch.empty(5, 4, dtype=torch.float64))


class Linear(nn.Module):
    """Outputs (B, *shape) that are linear in the inputs."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bf,...f->b...", x, self.weight)


def gradients(likelihood: Any, targets: Tensor, *shape: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of a linear network, (E, B, F), and its weight."""
    problem = bn.Problem(lambda: Linear(*shape), likelihood)
    point = problem.init(NOISE)

    def values(outputs: Tensor) -> Tensor:
        return evidence(likelihood, outputs, targets, weights)

    member = input_gradients(problem, point.params, point.buffers, X, values)
    torch.testing.assert_close(member.outputs, problem.outputs(point.params, point.buffers, X)[0], rtol=0, atol=0)
    return member.gradients, point.params["weight"]


def test_of_classes_the_true_one() -> None:
    y = torch.tensor([0, 2, 2, 0, 2])  # none of class 1
    grads, weight = gradients(bn.likelihoods.Categorical(), y, 3)
    torch.testing.assert_close(grads, weight[y].unsqueeze(0), rtol=0, atol=1e-15)


def test_of_classes_at_places_the_sum_of_those_with_weight() -> None:
    y = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0], [1, 2]])
    grads, weight = gradients(bn.likelihoods.Categorical(), y, 2, 3)
    torch.testing.assert_close(grads[0], weight[0, y[:, 0]] + weight[1, y[:, 1]], rtol=0, atol=1e-14)
    mask = torch.tensor([[1.0, 0.0]]).expand(5, 2).double()
    grads, weight = gradients(bn.likelihoods.Categorical(), y, 2, 3, weights=mask)
    torch.testing.assert_close(grads[0], weight[0, y[:, 0]], rtol=0, atol=1e-14)


def test_of_labels_the_sum_with_their_signs() -> None:
    y = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    grads, weight = gradients(bn.likelihoods.Bernoulli(), y, 2)
    torch.testing.assert_close(grads[0], (2 * y - 1).double() @ weight, rtol=0, atol=1e-14)


def test_of_numbers_each_output_and_of_mean_and_noise_the_mean() -> None:
    y = torch.zeros(5, 2, dtype=torch.float64)
    for likelihood, outputs in ((bn.likelihoods.Gaussian(), 2), (bn.likelihoods.Heteroscedastic(), 4)):
        grads, weight = gradients(likelihood, y, outputs)
        torch.testing.assert_close(grads, weight[:2].unsqueeze(1).expand(2, 5, 4), rtol=0, atol=1e-15)


def test_weights_count_examples_or_their_elements() -> None:
    like = torch.zeros(2, 3, 4)
    assert counting(None, like).tolist() == [[1, 1, 1]] * 2
    assert counting(torch.tensor([1.0, 0.0, 2.0]), like).tolist() == [[1, 0, 2]] * 2
    each = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    assert counting(each, like).tolist() == [[1, 0, 1], [0, 0, 3]]
    assert counting(each, like[:1]).tolist() == [[0.5, 0, 2]]


def test_floating_inputs_of_a_dict_are_taken_in_a_row_and_ids_are_left_out() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 1), nn.Linear(6, 1), nn.Embedding(3, 1)

        def forward(self, a: Tensor, ids: Tensor, b: Tensor) -> Tensor:
            return self.a(a) + self.b(b.flatten(1)) + self.c(ids)

    problem = bn.Problem(Net, bn.likelihoods.Gaussian())
    point = problem.init(NOISE)
    inputs = {"a": torch.ones(5, 4), "ids": torch.zeros(5, dtype=torch.long), "b": torch.ones(5, 2, 3)}
    grads = input_gradients(problem, point.params, point.buffers, inputs, lambda outputs: outputs.T).gradients
    expected = torch.cat([point.params["a.weight"], point.params["b.weight"]], 1)
    torch.testing.assert_close(grads, expected.expand(1, 5, 10))
    assert flat_inputs(inputs).shape == (5, 10)


def test_only_ids_are_refused_with_what_to_do() -> None:
    problem = bn.Problem(lambda: nn.Embedding(3, 2), bn.likelihoods.Categorical())
    point = problem.init(NOISE)
    with pytest.raises(ValueError, match=r"got int64.*embedding\(ids\)"):
        input_gradients(problem, point.params, point.buffers, torch.zeros(5, dtype=torch.long), lambda o: o.T)


def test_unit_gradients_are_unit_down_to_tiny_ones_and_zero_stays_zero() -> None:
    g = X * torch.tensor([1.0, 1e-4, 1e-9, 1e6, 0.0]).double().unsqueeze(1)
    norms = unit(g).norm(dim=-1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 1, 1, 1, 0]).double(), rtol=0, atol=1e-5)


def test_attention_is_differentiated_twice() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.last = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.layer(x).mean(1))

    problem = bn.Problem(Net, bn.likelihoods.Categorical())
    point, x = problem.init(NOISE), NOISE.normal(torch.empty(4, 5, 8))

    def length(params: Any) -> Tensor:
        return input_gradients(problem, params, {}, x, lambda o: o[:, :1].T, NOISE, "train").gradients.square().sum()

    slopes = torch.func.grad(length)(point.params)
    assert all(bool(g.isfinite().all()) for g in slopes.values())
    assert bool(slopes["layer.self_attn.in_proj_weight"].any())
