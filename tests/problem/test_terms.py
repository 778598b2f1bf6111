"""Terms of a potential: each scaled to its own N, tempered, and unbiased in batches, against closed forms."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.problem import Batch, Problem
from basinet.problem.likelihoods import Categorical, Gaussian
from basinet.problem.priors import Normal
from basinet.problem.terms import Equation, Observations, Term

KEY = Noise.seed(0)
N, M, D = 12, 7, 3
SIGMA, PRECISE, S = 0.7, 0.1, 1.3


def normal(name, *shape):
    return KEY.split(name).normal(torch.empty(*shape, dtype=torch.float64))


X, Y, OTHER_X, OTHER_Y = normal("x", N, D), normal("y", N), normal("z", M, D), normal("v", M)
BATCH = Batch(X[:4], Y[:4], torch.arange(4), torch.tensor(0), N)
WHOLE = Batch(X, Y, torch.arange(N), torch.tensor(0), N)


def linear() -> nn.Module:
    return nn.Linear(D, 1, bias=False, dtype=torch.float64)


def observations(**options) -> Observations:
    return Observations(OTHER_X, OTHER_Y, Gaussian(noise=PRECISE), **options)


@dataclass(frozen=True, eq=False)
class AlongFirst(Equation):
    """The slope along the first input is `rate` times the function."""

    rate: float = 2.0

    def residual(self, u, x):
        return torch.func.jacrev(u)(x)[:, 0] - self.rate * u(x)


@dataclass(frozen=True, eq=False)
class Smooth(Term):
    """A function-space prior: values at all points are normal, and go together. One density, no batches."""

    tempered: ClassVar[bool] = False
    inputs: torch.Tensor

    @property
    def points(self):
        return self.inputs

    def energies(self, outputs, points, learned, noise):
        values = outputs(points, noise)[:, 0]
        covariance = (-0.5 * torch.cdist(points, points).square()).exp() + 0.1 * torch.eye(len(points)).to(points)
        return 0.5 * values @ torch.linalg.solve(covariance, values)


def curvature(problem, batch=WHOLE):
    """Hessian of the potential, and its gradient at zero, in the weights."""

    def potential(w):
        return problem.potential({"weight": w.reshape(1, -1)}, {}, batch)[0]

    zero = torch.zeros(D, dtype=torch.float64)
    slope = torch.func.grad(potential)
    return torch.func.jacrev(slope)(zero), slope(zero)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_second_likelihood_adds_its_precision_whatever_the_n_of_the_data(temperature, temper):
    problem = Problem(linear, Gaussian(noise=SIGMA), Normal(scale=S), temperature, temper, terms=[observations()])
    heat = temperature if temper == "posterior" else 1.0
    data, other = X.T @ X / SIGMA**2, OTHER_X.T @ OTHER_X / PRECISE**2
    hessian, slope = curvature(problem)
    precision = (data + other) / temperature + torch.eye(D).double() / S**2 / heat
    torch.testing.assert_close(hessian, precision, rtol=1e-12, atol=1e-12)
    pull = -(X.T @ Y / SIGMA**2 + OTHER_X.T @ OTHER_Y / PRECISE**2) / temperature
    torch.testing.assert_close(slope, pull, rtol=1e-12, atol=1e-12)
    few, _ = curvature(problem, BATCH)  # the batch stands for the N of the data; the term has its own
    own = (X[:4].T @ X[:4] * (N / 4) / SIGMA**2 + other) / temperature + torch.eye(D).double() / S**2 / heat
    torch.testing.assert_close(few, own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_an_equation_adds_the_precision_of_its_residual(temper):
    term = AlongFirst(OTHER_X, scale=0.2, rate=1.5)
    problem = Problem(linear, Gaussian(noise=SIGMA), Normal(scale=S), 0.5, temper, terms=[term])
    rows = torch.eye(D).double()[:1] - 1.5 * OTHER_X  # of the residual, which is linear in the weights
    heat = 0.5 if temper == "posterior" else 1.0
    precision = (X.T @ X / SIGMA**2 + rows.T @ rows / 0.2**2) / 0.5 + torch.eye(D).double() / S**2 / heat
    torch.testing.assert_close(curvature(problem)[0], precision, rtol=1e-12, atol=1e-12)


def test_a_term_that_is_a_prior_is_tempered_as_the_prior():
    term = Smooth(OTHER_X)
    covariance = (-0.5 * torch.cdist(OTHER_X, OTHER_X).square()).exp() + 0.1 * torch.eye(M).double()
    own = OTHER_X.T @ torch.linalg.solve(covariance, OTHER_X)
    for temper, heat in (("posterior", 0.5), ("likelihood", 1.0)):
        problem = Problem(linear, Gaussian(noise=SIGMA), Normal(scale=S), 0.5, temper, terms=[term])
        precision = X.T @ X / SIGMA**2 / 0.5 + (torch.eye(D).double() / S**2 + own) / heat
        torch.testing.assert_close(curvature(problem)[0], precision, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_batches_of_a_terms_points_are_unbiased(size):
    """For 7 points, which neither 3 nor 5 divides: mean over 20,000 keys within z = 4.5 of the sum over all."""
    problem = Problem(linear, Gaussian(noise=SIGMA), terms=[observations(batch_size=size)])
    params = {"weight": normal("w", 1, D)}
    keys = KEY.split("draws").spread(20_000).key
    each = lift(lambda key: problem.term_potential(params, {}, Noise(key)))(keys)
    full = problem.term_potential(params, {})
    error = each.std() / len(each) ** 0.5
    assert abs(float((each.mean() - full) / error)) < 4.5


def test_points_are_drawn_with_the_noise_of_the_step():
    term = observations(batch_size=3)
    once, again, other = (term.drawn(KEY.split(k))["targets"] for k in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert term.drawn(None)["targets"] is term.targets
    assert observations(batch_size=M).drawn(KEY)["targets"] is OTHER_Y
    inside = [int((y == OTHER_Y).nonzero()[0, 0]) for y in once]
    assert all(i * M / 3 - 1 <= j < (i + 1) * M / 3 for i, j in enumerate(inside))  # one of each stretch


def test_weights_multiply_and_mask():
    weights = torch.tensor([1.0, 0, 0, 0, 0, 0, 2.0], dtype=torch.float64)
    problem = Problem(linear, Gaussian(noise=SIGMA), terms=[observations(weights=weights)])
    plain = Problem(linear, Gaussian(noise=SIGMA), terms=[observations()])
    chosen = OTHER_X[[0, 6, 6]]
    changed = curvature(problem)[0] - curvature(plain)[0]
    expected = (chosen.T @ chosen - OTHER_X.T @ OTHER_X) / PRECISE**2
    torch.testing.assert_close(changed, expected, rtol=1e-12, atol=1e-9)


def test_the_noise_of_a_term_can_be_learned_beside_that_of_the_data():
    learned = Observations(OTHER_X, OTHER_Y, Gaussian(noise=0.3, learned=True))
    problem = Problem(linear, Gaussian(noise=0.5, learned=True), terms=[observations(), learned])
    point = problem.init(KEY)
    assert set(point.params) == {"weight", "likelihood.log_noise", "likelihood.terms.1.log_noise"}
    assert float(point.params["likelihood.terms.1.log_noise"].exp()) == pytest.approx(0.3)
    assert set(problem.split(point.params)[0]) == {"weight"}
    other = point.params | {"likelihood.terms.1.log_noise": torch.tensor(0.0, dtype=torch.float64)}
    moved = problem.term_potential(other, {}) - problem.term_potential(point.params, {})
    square = float((OTHER_Y - OTHER_X @ point.params["weight"][0]).square().sum())
    assert float(moved) == pytest.approx(M * -np.log(0.3) + square / 2 * (1 - 0.3**-2), rel=1e-6)


def test_points_follow_params_to_their_precision():
    problem = Problem(lambda: nn.Linear(D, 1), Gaussian(noise=SIGMA), terms=[observations()])
    assert problem.term_potential(problem.init(KEY).params, {}).dtype == torch.float32
    moved = problem.to(dtype=torch.float32)
    assert moved.terms[0].inputs.dtype == torch.float32 and problem.terms[0].inputs is OTHER_X
    plain = Problem(linear, Gaussian())
    assert plain.to(dtype=torch.float32) is plain


def test_dropout_has_numbers_of_its_own_at_each_point():
    def network():
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(D, 1, bias=False)).double()

    problem = Problem(network, Gaussian(noise=SIGMA))
    point = problem.init(KEY)

    @dataclass(frozen=True, eq=False)
    class Values(Equation):
        def residual(self, u, x):
            return u(x)

    term = Values(torch.ones(200, D).double())

    def outputs(inputs, noise):
        return problem.outputs(*point, inputs, noise, "train")[0]

    spread = term.energies(outputs, term.points, {}, KEY)
    assert len(spread.unique()) > 4  # 2^3 masks of three inputs
    assert torch.equal(spread, term.energies(outputs, term.points, {}, KEY))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Observations(X, Y, "normal"), "expected a likelihood"),
        (lambda: Observations(X, Y[:3], Gaussian()), "as many examples"),
        (lambda: Observations(X, Y * torch.nan, Gaussian()), "finite"),
        (lambda: observations(batch_size=0), "at least 1 point"),
        (lambda: AlongFirst(OTHER_X, scale=0.0), "positive, finite scale"),
        (lambda: AlongFirst(OTHER_X[:0]), "at least one"),
        (lambda: Problem(linear, Gaussian(), terms=observations()), "expected terms as a list"),
        (lambda: Problem(linear, Gaussian(), terms=[Gaussian()]), "expected terms as a list"),
    ],
)
def test_impossible_terms_are_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_terms_that_do_not_fit_the_network_are_refused():
    from basinet.data import Data

    data = Data(X, Y)

    def refused(terms, network=linear):
        problem = Problem(network, Gaussian(), terms=terms)
        with pytest.raises(ValueError) as raised:
            problem.check(data, problem.init(KEY))
        return str(raised.value)

    assert "does not run on the data" in refused([Observations(OTHER_X[:, :2], OTHER_Y, Gaussian())])
    assert "at least 2 classes" in refused([Observations(OTHER_X, torch.arange(M) % 2, Categorical())])
    assert "does not run at a point" in refused([AlongFirst(OTHER_X[:, :2])])

    def normed():
        return nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, 1)).double()

    assert "norm layers (0) mix the points" in refused([AlongFirst(OTHER_X)], normed)


def test_arrays_become_tensors():
    term = Observations(OTHER_X.numpy(), OTHER_Y.numpy(), Gaussian())
    assert isinstance(term.inputs, torch.Tensor) and term.n == M
    assert isinstance(AlongFirst(OTHER_X.numpy()).inputs, torch.Tensor)
