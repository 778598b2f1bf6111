"""Targets, and predictions back in their units: a linear change of variable."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import basinet as bn
from basinet.calibrate.conformal_sets import Conformal
from basinet.predict import ClassPredictive, RealPredictive
from basinet.tables.targets import Classes, Real

SHIFT, SCALE, NOISE = 40.0, 7.5, 0.3


def predictives() -> tuple[RealPredictive, RealPredictive, torch.Tensor]:
    """The same mixture in standardised and in original units, and standardised targets."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 4, 50, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(50, 1, generator=generator, dtype=torch.float64)
    inside = RealPredictive(z, bn.likelihoods.Gaussian(noise=NOISE))
    return inside, RealPredictive(SHIFT + SCALE * z, bn.likelihoods.Gaussian(noise=SCALE * NOISE)), y


def test_scores_in_units_are_those_of_the_predictive_in_units():
    inside, outside, y = predictives()
    scores = Real(name="y", mean=SHIFT, sd=SCALE).scores(bn.score(inside, y))
    expected = bn.score(outside, SHIFT + SCALE * y)
    known = {"n", "nll", "rmse", "crps", "coverage_90", "variance", "aleatoric", "epistemic", "between", "within"}
    assert known <= scores.keys()
    assert {k: scores[k] for k in known} == pytest.approx({k: expected[k] for k in known}, rel=1e-9)


def test_predictions_in_units_are_those_of_the_predictive_in_units():
    inside, outside, _ = predictives()
    predictions = Real(name="y", mean=SHIFT, sd=SCALE).predictions(inside, 0.8)
    low, high = outside.interval(0.8)
    expected = {
        "mean": outside.mean,
        "sd": outside.variance.sqrt(),
        "aleatoric": outside.aleatoric,
        "epistemic": outside.epistemic,
        "low": low,
        "high": high,
    }
    assert list(predictions) == list(expected)
    for name, x in expected.items():
        assert predictions[name].shape == (50,)
        np.testing.assert_allclose(predictions[name], x[:, 0], rtol=1e-9)


def test_real_targets_are_standardised_by_what_they_were_fitted_to():
    target = Real.fit("y", np.array([1, 3, 8]), "y")
    assert (target.mean, target.sd, target.outputs) == (4.0, pytest.approx(math.sqrt(26 / 3)), 1)
    z = target.encode(np.array([4.0, 8.0]), "y")
    assert z.shape == (2, 1) and z.dtype == torch.float32
    np.testing.assert_allclose(target.back(z), [4.0, 8.0], rtol=1e-6)
    with pytest.raises(ValueError, match="expected a target in every row, got 1 missing, the first in row 2"):
        target.encode(np.array([1.0, np.nan]), "y")


def test_classes_are_names():
    target = Classes(name="y", values=("no", "yes"))
    names = np.array(["yes", "no"], object)
    assert target.encode(names, "y").tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"classes that were there in training \('no', 'yes'\), got 'maybe' in row 3"):
        target.encode(np.array(["yes", "no", "maybe"], object), "y")
    outputs = torch.tensor([[[[2.0, 0.0], [-1.0, 1.0]]], [[[1.0, 0.0], [-2.0, 1.0]]]])
    predictive = ClassPredictive(outputs, bn.likelihoods.Categorical())
    columns = target.predictions(predictive, 0.9)
    assert list(columns) == ["class", "entropy", "aleatoric", "epistemic", "p_no", "p_yes"]
    assert columns["class"] == ["no", "yes"]
    np.testing.assert_allclose(np.stack([columns["p_no"], columns["p_yes"]], 1), predictive.probs, rtol=1e-6)
    np.testing.assert_allclose(columns["entropy"], columns["aleatoric"] + columns["epistemic"], rtol=1e-5)
    assert target.scores({"nll": 1.0}) == {"nll": 1.0}


def test_calibrated_predictions_have_their_intervals_in_units():
    inside, outside, _ = predictives()
    rule = Conformal("scaled", 0.9, 2.5, 50)
    predictions = Real(name="y", mean=SHIFT, sd=SCALE).predictions(replace(inside, conformal=rule), 0.8)
    assert list(predictions)[-3:] == ["high", "conformal_low", "conformal_high"]
    for name, x in zip(("conformal_low", "conformal_high"), replace(outside, conformal=rule).conformal_interval):
        np.testing.assert_allclose(predictions[name], x[:, 0], rtol=1e-9)


def test_calibrated_predictions_name_the_classes_of_their_sets():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], dtype=torch.float64)
    rule = Conformal("raps", 0.9, 0.75, 50, free=1, penalty=0.0)
    predictive = ClassPredictive(probs.log()[None, None], bn.likelihoods.Categorical(), conformal=rule)
    predictions = Classes(name="y", values=("a", "b c", "d")).predictions(predictive, 0.9)
    names = np.array(["a", "b c", "d"])
    assert predictions["conformal_set"] == ["|".join(names[row]) for row in predictive.conformal_set.numpy()]
    assert predictions["conformal_set"][1] == "a|b c" and "conformal_set" not in Classes(
        name="y", values=("a", "b c", "d")
    ).predictions(replace(predictive, conformal=None), 0.9)


@pytest.mark.parametrize("unit", [1e-200, 1e-20, 1e20, 1e200])
def test_a_target_whose_square_leaves_32_bits_is_refused(unit):
    values = np.array([str(unit * i) for i in range(1, 9)], object)
    with pytest.raises(ValueError, match=r"expected a standard deviation from 1e-15 to 1e\+15, .* use another unit"):
        Real.fit("y", values, "y")
