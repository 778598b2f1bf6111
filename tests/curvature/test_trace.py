"""Traces of curvature: closed forms of a linear model, a dense Hessian, and what perturbing really gains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import ravel, unravel
from basinet.curvature import Traces, traces

KEY = Noise.seed(11)
X = KEY.split("x").normal(torch.empty(30, 4, dtype=torch.float64))
CLASSES = bn.Data(X, KEY.split("y").integers(30, 3))


def problem_of(make) -> bn.Problem:
    return bn.Problem(lambda: nn.Sequential(*make()).double(), bn.likelihoods.Categorical())


SMOOTH = problem_of(lambda: (nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
POINT = SMOOTH.init(Noise.seed(1))


def dense(problem: bn.Problem, point, data: bn.Data) -> tuple[float, float]:
    """The same by the whole Hessian, and by the Jacobian of all log likelihoods."""

    def each(vector):
        network, learned = problem.split(unravel(vector, point.params))
        outputs = problem.network(network, point.buffers, data.inputs)[0]
        return problem.likelihood.log_prob(outputs, data.targets, learned)

    at = ravel(point.params)
    hessian = torch.autograd.functional.hessian(lambda v: each(v).sum(), at)
    return float(hessian.trace()), float(torch.autograd.functional.jacobian(each, at).square().sum())


def test_a_linear_gaussian_model_has_closed_forms():
    s = 0.7
    problem = bn.Problem(lambda: nn.Linear(4, 1, bias=False).double(), bn.likelihoods.Gaussian(noise=s))
    point = problem.init(Noise.seed(2))
    y = KEY.split("targets").normal(X[:, 0])
    traced = traces(problem, point, bn.Data(X, y))
    squares, errors = X.square().sum(1), y - X @ point.params["weight"][0]
    assert math.isclose(traced.laplacian, -float(squares.sum()) / s**2, rel_tol=1e-12)
    assert math.isclose(traced.fisher, float((errors.square() * squares).sum()) / s**4, rel_tol=1e-12)
    assert (traced.error, traced.examples, traced.parameters) == (0.0, 30, 4)

    # d/d sigma^2 at 0 of mean_i log N(e_i; 0, s^2 + sigma^2 |x_i|^2), by a central difference in sigma^2
    def exact(v: float) -> float:
        variance = s**2 + v * squares
        return float((-0.5 * (errors.square() / variance + variance.log())).mean())

    slope = (exact(1e-6) - exact(-1e-6)) / 2e-6
    assert math.isclose(traced.gain(0.1), 0.01 * slope, rel_tol=1e-6)


@pytest.mark.parametrize(
    "problem",
    [
        SMOOTH,
        problem_of(lambda: (nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3), nn.LayerNorm(3))),
        problem_of(lambda: (nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))),
        problem_of(lambda: (nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.GELU(), nn.Flatten(), nn.Linear(3, 3))),
    ],
    ids=["batch norm", "layer norm", "relu", "convolution"],
)
def test_they_are_those_of_the_dense_matrices(problem):
    point = problem.init(Noise.seed(1))
    laplacian, fisher = dense(problem, point, CLASSES)
    traced = traces(problem, point, CLASSES)
    assert math.isclose(traced.laplacian, laplacian, rel_tol=1e-9, abs_tol=1e-9)
    assert math.isclose(traced.fisher, fisher, rel_tol=1e-9)


def test_a_part_of_the_parameters_and_of_the_examples():
    traced = traces(SMOOTH, POINT, CLASSES, where="3.*")
    rest = traces(SMOOTH, POINT, CLASSES, where="!3.*")
    whole = traces(SMOOTH, POINT, CLASSES)
    assert traced.parameters == 18 and traced.parameters + rest.parameters == whole.parameters
    assert math.isclose(traced.laplacian + rest.laplacian, whole.laplacian, rel_tol=1e-9)
    assert math.isclose(traced.fisher + rest.fisher, whole.fisher, rel_tol=1e-9)
    weights = torch.cat([torch.ones(20), torch.zeros(10)]).double()
    masked = traces(SMOOTH, POINT, bn.Data(CLASSES.inputs, CLASSES.targets, weights))
    some = traces(SMOOTH, POINT, CLASSES.take(slice(0, 20)))
    assert masked == pytest.approx(some, rel=1e-12)
    batches = [(CLASSES.inputs[i : i + 7], CLASSES.targets[i : i + 7]) for i in range(0, 30, 7)]
    assert traces(SMOOTH, POINT, bn.Data.stream(batches, n=30)) == pytest.approx(whole, rel=1e-9)


def test_hutchinson_agrees_within_its_standard_error():
    exact = traces(SMOOTH, POINT, CLASSES)
    estimates = [traces(SMOOTH, POINT, CLASSES, probes=40, seed=seed) for seed in range(12)]
    z = torch.tensor([(f.laplacian - exact.laplacian) / f.error for f in estimates])
    assert float(z.abs().max()) < 4.5 and 0.4 < float(z.std()) < 2.0  # the error is neither too small nor too large
    assert all(math.isclose(f.fisher, exact.fisher, rel_tol=1e-9) for f in estimates)
    assert estimates[0].gain_error(0.3) == pytest.approx(0.045 * estimates[0].error / 30)


def test_what_perturbing_gains_is_predicted_to_second_order():
    """Pairs +-z cancel odd orders: the rest of the expansion falls as sigma^4, and Monte-Carlo error is stated."""
    point, count = POINT, 4000
    parts = traces(SMOOTH, point, CLASSES)

    def gains(sigma: float) -> tuple[float, float]:
        """The gain per example, and its standard error, over `count` pairs."""
        z = KEY.split("z").normal(torch.empty(count, parts.parameters, dtype=torch.float64))
        at = torch.cat([ravel(point.params) + sigma * z, ravel(point.params) - sigma * z])
        run = torch.func.vmap(lambda v: SMOOTH.outputs(unravel(v, point.params), point.buffers, X)[0])
        probs = run(at).softmax(-1).gather(-1, CLASSES.targets.expand(2 * count, -1)[..., None])[..., 0]
        pairs = probs.unflatten(0, (2, count)).mean(0)  # (count, n)
        base = SMOOTH.outputs(point.params, point.buffers, X)[0].softmax(-1)[torch.arange(30), CLASSES.targets]
        influence = (pairs / base).mean(1)  # of each pair on the gain, to first order
        return float((pairs.mean(0) / base).log().mean()), float(influence.std()) / count**0.5

    for sigma in (0.01, 0.02):
        measured, error = gains(sigma)
        assert abs(measured - parts.gain(sigma)) < 4.5 * error + 0.02 * abs(parts.gain(sigma))
        assert error < 0.1 * abs(parts.gain(sigma))
    assert abs(gains(0.8)[0] - parts.gain(0.8)) > 0.2 * abs(parts.gain(0.8))  # far away it is another number


def test_attention_and_layers_that_cannot_be_lifted():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.lstm(x.reshape(-1, 2, 2))[0][:, -1])

    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(2, 1, 3, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.layer(x.reshape(-1, 2, 2)).flatten(1))

    few, step = CLASSES.take(slice(0, 3)), 1e-4
    for net in (Recurrent, Attentive):
        problem = bn.Problem(lambda net=net: net().double(), bn.likelihoods.Categorical())
        point = problem.init(Noise.seed(4))

        def each(vector, problem=problem, point=point):
            outputs = problem.outputs(unravel(vector, point.params), point.buffers, few.inputs)[0]
            return problem.likelihood.log_prob(outputs, few.targets, {})

        here = ravel(point.params)
        around = [(each(here + step * e), each(here - step * e)) for e in torch.eye(len(here), dtype=torch.float64)]
        traced = traces(problem, point, few)
        laplacian = sum(float((up + down - 2 * each(here)).sum()) / step**2 for up, down in around)
        fisher = sum(float(((up - down) / (2 * step)).square().sum()) for up, down in around)
        assert math.isclose(traced.laplacian, laplacian, rel_tol=1e-4, abs_tol=1e-5)
        assert math.isclose(traced.fisher, fisher, rel_tol=1e-6)


def test_too_few_probes_are_refused():
    with pytest.raises(ValueError, match="at least 2 probes"):
        traces(SMOOTH, POINT, CLASSES, probes=1)
    assert isinstance(traces(SMOOTH, POINT, CLASSES, where="0.bias", probes=2), Traces)
