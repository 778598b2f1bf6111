"""The potential: N, prior and temperature in their places, against closed forms."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal as TorchNormal

from basinet.core.model import Model
from basinet.core.noise import Noise
from basinet.core.tree import Point
from basinet.data import Data
from basinet.problem import Batch, Problem
from basinet.problem.likelihoods import Categorical, Gaussian
from basinet.problem.priors import Normal

KEY = Noise.seed(0)
N, D = 12, 3
X = KEY.split("x").normal(torch.empty(N, D, dtype=torch.float64))
Y = KEY.split("y").normal(torch.empty(N, dtype=torch.float64))
LABELS = KEY.split("labels").integers(N, 3)
SIGMA, S = 0.7, 1.3


def linear() -> nn.Module:
    return nn.Linear(D, 1, bias=False, dtype=torch.float64)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(index, targets=Y, total=N, weights=None) -> Batch:
    index = torch.as_tensor(index)
    return Batch(X[index], targets[index], index, torch.tensor(0), total, weights)


def regression(temperature=1.0, temper="posterior") -> Problem:
    return Problem(linear, Gaussian(noise=SIGMA), Normal(scale=S), temperature, temper)


def classes(temperature=1.0, temper="posterior") -> tuple[Problem, Point]:
    problem = Problem(classifier, Categorical(), Normal(scale=S), temperature, temper)
    return problem, problem.init(KEY)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_the_potential_of_batches_is_in_expectation_the_full_one(temper):
    problem, point = classes(0.4, temper)

    def potential(index):
        return problem.potential(point.params, point.buffers, batch(index, LABELS))[0]

    full = potential(range(N))
    for size in (1, 2, 11):
        subsets = [potential(list(c)) for c in itertools.combinations(range(N), size)]
        torch.testing.assert_close(torch.stack(subsets).mean(), full, rtol=1e-12, atol=0)


def test_the_prior_is_not_multiplied_by_the_number_of_batches():
    problem, point = classes()
    weights = torch.zeros(2, dtype=torch.float64)  # examples without weight leave the prior alone
    potential, _ = problem.potential(point.params, point.buffers, batch([0, 1], LABELS, 1000, weights))
    squares = sum(float(p.square().sum()) for p in point.params.values())
    assert float(potential) == pytest.approx(squares / (2 * S**2), rel=1e-12)


@pytest.mark.parametrize(
    ("temperature", "temper", "prior_temperature"),
    [(1.0, "posterior", 1.0), (0.3, "posterior", 0.3), (0.3, "likelihood", 1.0), (2.0, "likelihood", 1.0)],
)
def test_gradient_and_curvature_of_the_potential_are_the_closed_forms(temperature, temper, prior_temperature):
    problem = regression(temperature, temper)
    index, total = [0, 3, 5, 7], 100
    theta = KEY.split("theta").normal(torch.empty(1, D, dtype=torch.float64))

    def potential(weight):
        return problem.potential({"weight": weight}, {}, batch(index, total=total))[0]

    x, y = X[index], Y[index]
    scale = total / len(index) / (temperature * SIGMA**2)
    gradient = scale * x.T @ (x @ theta[0] - y) + theta[0] / (S**2 * prior_temperature)
    curvature = scale * x.T @ x + torch.eye(D, dtype=torch.float64) / (S**2 * prior_temperature)
    torch.testing.assert_close(torch.func.grad(potential)(theta)[0], gradient)
    hessian = torch.func.jacrev(torch.func.grad(potential))(theta).reshape(D, D)
    torch.testing.assert_close(hessian, curvature)


def test_the_potential_is_minus_the_log_joint_up_to_a_constant():
    problem = regression()
    potentials, joints = [], []
    for i in range(3):
        theta = KEY.split(i).normal(torch.empty(1, D, dtype=torch.float64))
        potentials.append(problem.potential({"weight": theta}, {}, batch(range(N)))[0])
        joint = TorchNormal(X @ theta[0], SIGMA).log_prob(Y).sum() + TorchNormal(0.0, S).log_prob(theta).sum()
        joints.append(joint)
        torch.testing.assert_close(problem.log_prior({"weight": theta}), TorchNormal(0.0, S).log_prob(theta).sum())
    sums = [p + j for p, j in zip(potentials, joints)]
    torch.testing.assert_close(sums[0], sums[1])
    torch.testing.assert_close(sums[0], sums[2])


def test_the_log_likelihood_is_the_plain_sum():
    problem, point = classes(temperature=0.1)
    log_likelihood, _ = problem.log_likelihood(point.params, point.buffers, batch([1, 4], LABELS))
    logits, _ = problem.outputs(point.params, point.buffers, X[[1, 4]])
    expected = TorchCategorical(logits=logits).log_prob(LABELS[[1, 4]]).sum()
    torch.testing.assert_close(log_likelihood, expected)


def test_weights_count_examples():
    problem, point = classes()

    def potential(*args):
        return problem.potential(point.params, point.buffers, batch(*args))[0]

    weights = torch.tensor([2.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    repeated = potential([0, 0, 2, 3], LABELS, 4)
    torch.testing.assert_close(potential([0, 1, 2, 3], LABELS, 4, weights), repeated)
    ones = torch.ones(4, dtype=torch.float64)
    torch.testing.assert_close(potential([0, 1, 2, 3], LABELS, 4, ones), potential([0, 1, 2, 3], LABELS, 4))
    single = potential([0, 1], LABELS, 2, torch.tensor([0.3, 0.0], dtype=torch.float64))
    logits, _ = problem.outputs(point.params, point.buffers, X[:1])
    energy = problem.prior.energy(point.params)
    torch.testing.assert_close(single, energy - 0.3 * TorchCategorical(logits=logits).log_prob(LABELS[:1])[0])


def test_the_scale_makes_the_potential_a_loss_per_example():
    assert regression(temperature=0.5).scale(40) == 80.0
    hot, cold = (regression(t).potential({"weight": torch.ones(1, D).double()}, {}, batch(range(N)))[0] for t in (2, 1))
    torch.testing.assert_close(hot / regression(2.0).scale(N), cold / regression(1.0).scale(N))


def test_learned_noise_is_a_parameter_with_a_flat_prior():
    problem = Problem(linear, Gaussian(noise=SIGMA, learned=True), Normal(scale=S))
    point = problem.init(KEY)
    assert set(point.params) == {"weight", "likelihood.log_noise"}
    assert point.params["likelihood.log_noise"].dtype == torch.float64
    assert float(point.params["likelihood.log_noise"]) == pytest.approx(math.log(SIGMA), abs=1e-7)
    index, total = [0, 1, 2], 30
    log_noise = torch.tensor(0.2, dtype=torch.float64)
    params = point.params | {"likelihood.log_noise": log_noise}
    gradient = torch.func.grad(lambda p: problem.potential(p, {}, batch(index, total=total))[0])(params)
    residual = Y[index] - X[index] @ point.params["weight"][0]
    expected = -total / 3 * (residual.square() / log_noise.mul(2).exp() - 1).sum()
    torch.testing.assert_close(gradient["likelihood.log_noise"], expected)
    network, learned = problem.split(params)
    assert set(network) == {"weight"} and set(learned) == {"log_noise"}
    torch.testing.assert_close(problem.log_prior(params), problem.prior.log_prob(network))


def test_train_mode_moves_norm_statistics_and_eval_mode_does_not():
    problem = Problem(lambda: nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, 3)).double(), Categorical())
    point = problem.init(KEY)
    _, after = problem.potential(point.params, point.buffers, batch(range(N), LABELS))
    torch.testing.assert_close(after["0.running_mean"], 0.1 * X.mean(0))
    _, still = problem.log_likelihood(point.params, point.buffers, batch(range(N), LABELS))
    assert float(still["0.running_mean"].abs().max()) == 0


def test_a_model_is_taken_as_it_is():
    model = Model(linear)
    assert Problem(model, Gaussian()).network is model


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((linear, "gaussian"), TypeError, "expected a likelihood such as bn.likelihoods.Categorical"),
        ((linear, Gaussian(), 1.0), TypeError, "expected a prior such as bn.priors.Normal"),
        ((linear, Gaussian(), Normal(), 0.0), ValueError, "expected a positive, finite temperature, got 0.0"),
        ((linear, Gaussian(), Normal(), -1.0), ValueError, "expected a positive, finite temperature, got -1.0"),
        ((linear, Gaussian(), Normal(), math.nan), ValueError, "expected a positive, finite temperature, got nan"),
        ((linear, Gaussian(), Normal(), 1.0, "prior"), ValueError, "'posterior' or 'likelihood', got 'prior'"),
        ((3, Gaussian()), TypeError, "expected a factory"),
        ((linear, Gaussian(), Normal(scale={"head": 1.0})), ValueError, "gives no scale for 'weight'"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Problem(*arguments)


def test_data_that_fit_pass_the_check():
    problem, point = classes()
    problem.check(Data(X, LABELS), point)
    regression().check(Data(X, Y), regression().init(KEY))


def test_inputs_the_network_cannot_run_on_are_refused_with_their_shape():
    problem, point = classes()
    with pytest.raises(ValueError, match=r"does not run on the data \(inputs of shape \[\(2,\)\] per example\)"):
        problem.check(Data(X[:, :2].contiguous(), LABELS), point)


def test_a_network_that_merges_examples_is_refused():
    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean(0, keepdim=True)

    problem = Problem(lambda: Mean(D, 3).double(), Categorical())
    with pytest.raises(ValueError, match=r"one output row for each example, got outputs \(1, 3\) for 2 examples"):
        problem.check(Data(X, LABELS), problem.init(KEY))


def test_targets_the_likelihood_cannot_take_are_refused():
    problem, point = classes()
    with pytest.raises(ValueError, match=r"Categorical expects targets in 0 \.\.\. 2"):
        problem.check(Data(X, LABELS + 1), point)
