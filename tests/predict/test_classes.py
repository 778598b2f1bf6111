"""Class predictions on outputs made by hand. Monte-Carlo frequencies within 4.5 standard errors, p-values over 1e-4."""

import itertools
import math

import pytest
import torch
from scipy import stats

from basinet.core.noise import Noise
from basinet.predict import ClassPredictive
from basinet.problem.likelihoods import Categorical

Z, P = 4.5, 1e-4


def h(p: float) -> float:
    """The entropy of a coin."""
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def coins(probabilities, weights=None) -> ClassPredictive:
    """Two classes, the first with probabilities (M, S), at one input."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    outputs = torch.stack((p, 1 - p), -1).log().unsqueeze(2)  # (M, S, 1, 2)
    return ClassPredictive(outputs, Categorical(), {}, None if weights is None else torch.tensor(weights).double())


def random(*shape: int) -> ClassPredictive:
    return ClassPredictive(2 * Noise.seed(1).normal(torch.empty(shape, dtype=torch.float64)), Categorical())


def value(x: torch.Tensor) -> float:
    assert x.shape == (1,)
    return float(x)


def test_uncertainty_by_hand_of_two_members_with_two_samples():
    predictive = coins([[0.9, 0.5], [0.3, 0.1]])  # members 0.7 and 0.2, all together 0.45
    assert predictive.probs.tolist() == [[pytest.approx(0.45), pytest.approx(0.55)]]
    torch.testing.assert_close(predictive.member_probs[:, 0, 0], torch.tensor([0.7, 0.2], dtype=torch.float64))
    aleatoric, members = (h(0.9) + h(0.5) + h(0.3) + h(0.1)) / 4, (h(0.7) + h(0.2)) / 2
    assert value(predictive.entropy) == pytest.approx(h(0.45))
    assert value(predictive.aleatoric) == pytest.approx(aleatoric)
    assert value(predictive.between) == pytest.approx(h(0.45) - members)
    assert value(predictive.within) == pytest.approx(members - aleatoric)
    assert value(predictive.epistemic) == pytest.approx(h(0.45) - aleatoric)


def test_uncertainty_by_hand_of_one_member_with_two_samples():
    predictive = coins([[0.8, 0.4]])
    assert value(predictive.within) == pytest.approx(h(0.6) - (h(0.8) + h(0.4)) / 2)
    assert value(predictive.between) == pytest.approx(0, abs=1e-12)


def test_uncertainty_by_hand_with_weights():
    predictive = coins([[0.9, 0.5], [0.3, 0.1]], [[1, 3], [4, 0]])  # members 0.6 (half) and 0.3 (half)
    aleatoric, members = (h(0.9) + 3 * h(0.5) + 4 * h(0.3)) / 8, (h(0.6) + h(0.3)) / 2
    assert predictive.probs[0, 0] == pytest.approx(0.45)
    assert value(predictive.aleatoric) == pytest.approx(aleatoric)
    assert value(predictive.between) == pytest.approx(h(0.45) - members)
    assert value(predictive.within) == pytest.approx(members - aleatoric)


@pytest.mark.parametrize("shape", [(3, 4, 6, 5), (2, 3, 6, 7, 5)])
def test_the_parts_add_up_and_are_not_negative(shape):
    predictive = random(*shape)
    assert predictive.probs.shape == shape[2:] and predictive.entropy.shape == shape[2:-1]
    torch.testing.assert_close(predictive.probs, predictive.outputs.softmax(-1).mean((0, 1)))
    torch.testing.assert_close(predictive.entropy - predictive.aleatoric, predictive.epistemic)
    torch.testing.assert_close(predictive.epistemic, predictive.between + predictive.within)
    assert float(predictive.between.min()) >= 0 and float(predictive.within.min()) >= 0


def test_certain_samples_have_no_aleatoric_uncertainty():
    outputs = torch.tensor([[[1e4, 0.0]], [[0.0, 1e4]]]).unsqueeze(1)  # (2, 1, 1, 2): members sure of the opposite
    predictive = ClassPredictive(outputs, Categorical())
    assert value(predictive.aleatoric) == 0
    assert value(predictive.between) == pytest.approx(math.log(2))
    infinite = ClassPredictive(torch.tensor([0.0, -math.inf]).reshape(1, 1, 1, 2), Categorical())
    assert value(infinite.aleatoric) == 0 and value(infinite.entropy) == 0


def test_the_log_density_is_the_log_of_the_mean_and_not_the_mean_of_the_logs():
    predictive = coins([[0.9, 0.5], [0.3, 0.1]])
    log_prob = value(predictive.log_prob(torch.tensor([0])))
    assert log_prob == pytest.approx(math.log(0.45))
    jensen = sum(math.log(p) for p in (0.9, 0.5, 0.3, 0.1)) / 4
    assert log_prob > jensen + 0.1
    weighted = coins([[0.9, 0.5], [0.3, 0.1]], [[0, 2], [1, 1]])
    assert value(weighted.log_prob(torch.tensor([1]))) == pytest.approx(math.log((2 * 0.5 + 0.7 + 0.9) / 4))


def test_the_log_density_stays_finite_where_probabilities_underflow():
    outputs = torch.tensor([[0.0, 500.0], [0.0, 400.0]]).reshape(1, 2, 1, 2)
    log_prob = ClassPredictive(outputs, Categorical()).log_prob(torch.tensor([0]))
    assert value(log_prob) == pytest.approx(-400 - math.log(2), abs=1e-3)


def test_the_log_density_of_a_sequence_is_joint():
    predictive = random(2, 3, 4, 5, 3)  # (M, S, B, T, C)
    targets = Noise.seed(2).integers(20, 3).reshape(4, 5)
    each = predictive.outputs.log_softmax(-1).exp()
    picked = torch.stack([each[:, :, b, torch.arange(5), targets[b]] for b in range(4)], 2)  # (M, S, B, T)
    torch.testing.assert_close(predictive.log_prob(targets), picked.prod(-1).mean((0, 1)).log())
    separate = predictive.probs.gather(-1, targets.unsqueeze(-1)).log().sum((1, 2))
    assert not torch.allclose(predictive.log_prob(targets), separate)


def test_draws_have_the_frequencies_of_the_probabilities():
    predictive, n = random(2, 3, 4, 5), 20_000
    drawn = predictive.sample(n, seed=3)
    assert drawn.shape == (n, 4) and drawn.dtype == torch.int64
    for b in range(4):
        counts = drawn[:, b].bincount(minlength=5).double()
        assert stats.chisquare(counts.numpy(), n * predictive.probs[b].numpy()).pvalue > P
    assert torch.equal(predictive.sample(5, seed=3), predictive.sample(5, seed=3))
    assert not torch.equal(predictive.sample(50, seed=3), predictive.sample(50, seed=4))
    correlation = torch.corrcoef(drawn.double().T) - torch.eye(4, dtype=torch.float64)
    assert float(correlation.abs().max()) * math.sqrt(n) < Z  # inputs are drawn independently


def test_draws_of_a_sequence_are_joint():
    outputs = torch.tensor([[[4.0, 0.0], [4.0, 0.0]], [[0.0, 4.0], [0.0, 4.0]]])  # members agree with themselves
    predictive, n = ClassPredictive(outputs.reshape(2, 1, 1, 2, 2).double(), Categorical()), 10_000
    drawn = predictive.sample(n)[:, 0] @ torch.tensor([2, 1])
    every = torch.tensor(list(itertools.product((0, 1), repeat=2)))
    expected = torch.stack([predictive.log_prob(y.unsqueeze(0)).exp()[0] for y in every])
    assert stats.chisquare(drawn.bincount(minlength=4).double().numpy(), n * expected.numpy()).pvalue > P


def test_classes_and_members_without_probability_are_never_drawn(monkeypatch):
    predictive = coins([[0.0, 0.5], [1.0, 1.0]], [[1, 0], [0, 0]])
    assert bool((predictive.sample(1000) == 1).all())
    for u in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(Noise, "uniform", lambda self, like, u=u: torch.full_like(like, u))
        assert predictive.sample(1).tolist() == [[1]]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 4, 6, 5)])
def test_the_torch_distribution_agrees(shape):
    predictive = random(*shape)
    distribution = predictive.to_distribution()
    assert distribution.batch_shape == shape[2:-1]
    torch.testing.assert_close(distribution.probs, predictive.probs)
    torch.testing.assert_close(distribution.entropy(), predictive.entropy)
    if len(shape) == 4:
        targets = torch.tensor([0, 4, 2, 1])
        torch.testing.assert_close(distribution.log_prob(targets), predictive.log_prob(targets))


def test_one_network_is_not_ignorant_anywhere_and_one_sample_of_each_member_not_within():
    outputs = torch.randn(3, 1, 500, 10, generator=torch.Generator().manual_seed(0)) * 4
    alone, several = (ClassPredictive(x, Categorical()) for x in (outputs[:1], outputs))
    assert not alone.epistemic.any() and not several.within.any()  # not rounding, by which inputs would be ranked
    assert float(several.between.min()) > 0
