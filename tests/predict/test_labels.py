"""Predictions of labels on outputs made by hand. Monte-Carlo frequencies within 4.5 standard errors."""

import itertools
import math

import pytest
import torch
from scipy import stats

from basinet.core.noise import Noise
from basinet.predict import ClassPredictive, LabelPredictive
from basinet.problem.likelihoods import Bernoulli, Categorical


def h(p: float) -> float:
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def coins(probabilities, weights=None) -> LabelPredictive:
    p = torch.tensor(probabilities, dtype=torch.float64)
    outputs = p.logit().reshape(*p.shape, 1, 1)
    return LabelPredictive(outputs, Bernoulli(), {}, None if weights is None else torch.tensor(weights).double())


def random(*shape: int) -> LabelPredictive:
    return LabelPredictive(2 * Noise.seed(1).normal(torch.empty(shape, dtype=torch.float64)), Bernoulli())


def test_uncertainty_by_hand_of_two_members_with_two_samples():
    predictive = coins([[0.9, 0.5], [0.3, 0.1]])  # members 0.7 and 0.2, all together 0.45
    aleatoric, members = (h(0.9) + h(0.5) + h(0.3) + h(0.1)) / 4, (h(0.7) + h(0.2)) / 2
    assert float(predictive.probs) == pytest.approx(0.45)
    assert float(predictive.entropy) == pytest.approx(h(0.45))
    assert float(predictive.aleatoric) == pytest.approx(aleatoric)
    assert float(predictive.between) == pytest.approx(h(0.45) - members)
    assert float(predictive.within) == pytest.approx(members - aleatoric)
    weighted = coins([[0.9, 0.5], [0.3, 0.1]], [[1, 3], [4, 0]])
    assert float(weighted.probs) == pytest.approx(0.45)
    assert float(weighted.aleatoric) == pytest.approx((h(0.9) + 3 * h(0.5) + 4 * h(0.3)) / 8)


def test_one_label_is_two_classes():
    labels = random(2, 3, 5, 1)
    two = torch.cat([torch.zeros_like(labels.outputs), labels.outputs], -1)
    classes = ClassPredictive(two, Categorical())
    y = torch.tensor([0, 1, 1, 0, 1])
    torch.testing.assert_close(labels.log_prob(y), classes.log_prob(y))
    for name in ("entropy", "aleatoric", "between", "within", "epistemic"):
        torch.testing.assert_close(getattr(labels, name)[:, 0], getattr(classes, name))


def test_certain_labels_have_no_aleatoric_uncertainty():
    for big in (1e4, math.inf):
        outputs = torch.tensor([[big], [-big]]).reshape(2, 1, 1, 1)
        predictive = LabelPredictive(outputs, Bernoulli())
        assert float(predictive.aleatoric) == 0 and float(predictive.between) == pytest.approx(math.log(2))


def test_the_log_density_of_several_labels_is_joint_and_may_be_masked():
    predictive, y = random(2, 3, 4, 3), torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    each = torch.where(y.bool(), predictive.outputs.sigmoid(), (-predictive.outputs).sigmoid())
    torch.testing.assert_close(predictive.log_prob(y), each.prod(-1).mean((0, 1)).log())
    mask = torch.tensor([[True, False, True]] * 3 + [[False] * 3])
    expected = each[..., [0, 2]].prod(-1).mean((0, 1)).log()
    torch.testing.assert_close(predictive.log_prob(y, mask)[:3], expected[:3])
    assert float(predictive.log_prob(y, mask)[3]) == pytest.approx(0, abs=1e-12)  # nothing is said of nothing


def test_draws_are_joint():
    outputs = torch.tensor([[3.0, 3.0], [-3.0, -2.0]], dtype=torch.float64).reshape(2, 1, 1, 2)
    predictive, n = LabelPredictive(outputs, Bernoulli()), 20_000
    drawn = predictive.sample(n)
    assert drawn.shape == (n, 1, 2) and drawn.dtype == torch.int64
    every = torch.tensor(list(itertools.product((0, 1), repeat=2)))
    expected = torch.stack([predictive.log_prob(y.unsqueeze(0)).exp()[0] for y in every])
    counts = (drawn[:, 0] @ torch.tensor([2, 1])).bincount(minlength=4)
    assert stats.chisquare(counts.numpy(), n * expected.numpy()).pvalue > 1e-4


def test_the_torch_distribution_has_the_marginals():
    predictive = random(2, 3, 4, 5)
    torch.testing.assert_close(predictive.to_distribution().probs, predictive.outputs.sigmoid().mean((0, 1)))
    torch.testing.assert_close(predictive.to_distribution().entropy(), predictive.entropy)
