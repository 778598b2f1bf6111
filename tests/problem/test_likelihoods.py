"""Likelihoods against torch.distributions, and what they refuse."""

import math
import re

import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal as TorchNormal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.problem.likelihoods import Categorical, Gaussian, aligned

KEY = Noise.seed(0)


def normal(*shape: int, name: str = "x") -> torch.Tensor:
    return KEY.split(name).normal(torch.empty(shape, dtype=torch.float64))


def test_categorical_is_the_softmax_of_torch():
    logits, targets = normal(6, 4), torch.tensor([0, 3, 2, 2, 1, 0])
    expected = TorchCategorical(logits=logits)
    torch.testing.assert_close(Categorical().log_prob(logits, targets, {}), expected.log_prob(targets))
    torch.testing.assert_close(Categorical().log_probs(logits, {}).exp(), expected.probs)


def test_categorical_sums_over_a_sequence():
    logits, targets = normal(5, 7, 3), KEY.integers(35, 3).reshape(5, 7)
    log_prob = Categorical().log_prob(logits, targets, {})
    torch.testing.assert_close(log_prob, TorchCategorical(logits=logits).log_prob(targets).sum(1))


def test_categorical_takes_short_integers_and_stays_finite_far_out():
    logits = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    log_prob = Categorical().log_prob(logits, torch.tensor([0, 0], dtype=torch.uint8), {})
    assert log_prob.tolist() == [0.0, -1000.0]


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (6, 4, 3)])
def test_gaussian_is_the_normal_of_torch_summed_over_the_event(shape):
    outputs, targets = normal(*shape), normal(*shape, name="y")
    log_prob = Gaussian(noise=0.3).log_prob(outputs, targets, {})
    expected = TorchNormal(outputs, 0.3).log_prob(targets).reshape(6, -1).sum(1)
    torch.testing.assert_close(log_prob, expected)
    assert log_prob.shape == (6,)


@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_targets_without_the_last_axis_are_aligned_and_never_broadcast(shape):
    outputs, targets = normal(*shape, 1), normal(*shape, name="y")
    assert aligned(outputs, targets).shape == outputs.shape
    log_prob = Gaussian().log_prob(outputs, targets, {})
    expected = TorchNormal(outputs.squeeze(-1), 1.0).log_prob(targets).reshape(6, -1).sum(1)
    torch.testing.assert_close(log_prob, expected)


@pytest.mark.parametrize(("outputs", "targets"), [((6,), (6, 1)), ((6, 3), (6,)), ((6, 3), (6, 1)), ((6, 6), (6,))])
def test_targets_of_another_shape_are_an_error_and_not_a_broadcast(outputs, targets):
    with pytest.raises(ValueError, match=re.escape("expected targets (batch")):
        Gaussian().log_prob(normal(*outputs), normal(*targets), {})


def test_learned_noise_is_used_and_has_the_closed_form_gradient():
    likelihood = Gaussian(noise=0.5, learned=True)
    assert float(likelihood.init()["log_noise"]) == pytest.approx(math.log(0.5))
    outputs, targets, log_noise = normal(6, 2), normal(6, 2, name="y"), torch.tensor(-0.4, dtype=torch.float64)

    def total(log_noise):
        return likelihood.log_prob(outputs, targets, {"log_noise": log_noise}).sum()

    torch.testing.assert_close(total(log_noise), TorchNormal(outputs, math.exp(-0.4)).log_prob(targets).sum())
    gradient = ((targets - outputs).square() * math.exp(0.8) - 1).sum()  # d/d log sigma
    torch.testing.assert_close(torch.func.grad(total)(log_noise), gradient)
    assert Gaussian(noise=0.5).init() == {}


def test_learned_noise_of_many_members_meets_its_own_outputs():
    likelihood, outputs = Gaussian(learned=True), normal(2, 3, 5, 1)
    log_noise = normal(2, 3, name="noise")
    scale = likelihood.distribution(outputs, {"log_noise": log_noise}).stddev
    assert scale.shape == (2, 3, 5, 1)
    torch.testing.assert_close(scale[1, 2], log_noise[1, 2].exp().expand(5, 1))
    lifted = lift(lambda o, l: likelihood.log_prob(o, normal(5), {"log_noise": l}))(outputs[0], log_noise[0])
    one = likelihood.log_prob(outputs[0, 1], normal(5), {"log_noise": log_noise[0, 1]})
    torch.testing.assert_close(lifted[1], one)


def test_gaussian_follows_the_type_of_the_outputs():
    assert Gaussian(noise=0.1).distribution(torch.zeros(2, dtype=torch.bfloat16), {}).stddev.dtype == torch.bfloat16


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_a_noise_that_is_not_a_standard_deviation_is_refused(noise):
    with pytest.raises(ValueError, match="positive, finite noise standard deviation, got"):
        Gaussian(noise=noise)


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        ((2,), [0, 1], "expects outputs (batch, ..., classes) with at least 2 classes, got (2,)"),
        ((2, 1), [0, 1], "with at least 2 classes, got (2, 1): end the network in one logit per class"),
        ((2, 3), [0.0, 1.0], "expects integer class targets, got torch.float32: use targets.long()"),
        ((2, 3), [True, False], "expects integer class targets, got torch.bool"),
        ((2, 3), [[0, 1, 0], [1, 0, 0]], "expects targets (batch) for outputs (batch, 3), got (batch, 3): pass class"),
        ((2, 5, 3), [0, 1], "expects targets (batch, 5) for outputs (batch, 5, 3), got (batch)"),
        ((2, 3), [0, 3], "expects targets in 0 ... 2, one of the network's 3 outputs, got 0 ... 3: relabel"),
        ((2, 3), [-1, 1], "expects targets in 0 ... 2, one of the network's 3 outputs, got -1 ... 1"),
        ((2, 3), [1, 1], "expected at least two classes among the targets, got only class 1"),
    ],
)
def test_categorical_refuses_what_does_not_fit(outputs, targets, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Categorical().check(torch.zeros(outputs), torch.tensor(targets))


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        ((2, 1), torch.tensor([1, 2]), "Gaussian expects floating-point targets, got torch.int64: use targets.float()"),
        ((2, 2), torch.zeros(4), "expected targets (batch, 2) for outputs of that shape, got (batch)"),
        ((2,), torch.zeros(4, 1), "expected targets (batch) for outputs of that shape, got (batch, 1)"),
        ((2, 1, 1), torch.zeros(4), "expected targets (batch, 1, 1) for outputs of that shape, got (batch)"),
    ],
)
def test_gaussian_refuses_what_does_not_fit(outputs, targets, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Gaussian().check(torch.zeros(outputs), targets)


def test_what_fits_passes_with_fewer_outputs_than_targets():
    Categorical().check(torch.zeros(2, 3), torch.tensor([0, 1, 2, 2]))
    Categorical().check(torch.zeros(2, 4, 3), torch.tensor([[0, 1, 2, 2]] * 5))
    for outputs, targets in (((2,), (5,)), ((2, 1), (5,)), ((2, 1), (5, 1)), ((2, 3), (5, 3)), ((2, 3, 1), (5, 3))):
        Gaussian().check(torch.zeros(outputs), torch.zeros(targets))
