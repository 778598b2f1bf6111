"""Real numbers recalibrated: the factor on the spread against theory, quantiles against the truth, saved and loaded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import basinet as bn
from basinet.calibrate.temperature import Temperature, tempered
from basinet.core.noise import Noise
from basinet.predict import make_predictive

KEY = Noise.seed(5)
ENGINE = bn.Engine(device="cpu", progress=False)


def line(shift: float = 0.0) -> nn.Module:
    """A network that returns its input, and a shift."""
    module = nn.Linear(1, 1).double()
    nn.init.ones_(module.weight)
    nn.init.constant_(module.bias, shift)
    return module


def posterior(*shifts: float, likelihood: bn.likelihoods.Likelihood | None = None) -> bn.Posterior:
    problem = bn.Problem(lambda: nn.Linear(1, 1).double(), likelihood or bn.likelihoods.Gaussian(noise=1.0))
    return bn.mix([bn.Posterior.of(line(shift), problem) for shift in shifts])


def numbers(n: int, sd: float = 2.0, seed: int = 0) -> bn.Data:
    """Targets around the inputs."""
    key = KEY.split(seed)
    x = key.split("x").normal(torch.empty(n, 1, dtype=torch.float64))
    return bn.Data(x, x + sd * key.split("y").normal(x))


def test_the_factor_of_one_normal_is_the_root_mean_square_of_its_errors():
    data = numbers(1000)
    calibrated = bn.temper(posterior(0.0), data)
    errors = (data.targets - data.inputs).square().mean().sqrt()
    assert calibrated.temperature.of == "average"
    assert float(calibrated.temperature.values) == pytest.approx(float(errors), rel=1e-5)
    predictive = calibrated.predict(data.inputs)
    assert torch.allclose(predictive.sd, errors.expand_as(predictive.sd))
    assert torch.equal(predictive.mean, data.inputs)
    exact = Normal(data.inputs, errors).log_prob(data.targets)
    assert torch.allclose(predictive.log_prob(data.targets), exact[:, 0])


@pytest.mark.parametrize("sd", [0.3, 3.0])
def test_intervals_have_the_stated_coverage_afterwards(sd):
    """Noise three times too large or too small; within 4 standard deviations of the share."""
    calibrated, test = bn.temper(posterior(0.0), numbers(2000, sd)), numbers(2000, sd, seed=1)
    before = bn.score(posterior(0.0), test)
    scores = bn.score(calibrated, test)
    assert abs(scores["coverage_90"] - 0.9) < 4 * math.sqrt(0.09 / 2000 * 2)
    assert abs(before["coverage_90"] - 0.9) > 0.09
    assert scores["nll"] < before["nll"] - 0.2 and scores["quantile_error"] < 0.03 < before["quantile_error"]
    assert scores["rmse"] == pytest.approx(before["rmse"])


def test_a_mixture_is_stretched_around_its_mean_and_its_parts_stay_in_proportion():
    whole = posterior(-1.0, 0.5, 2.0).predict(torch.zeros(3, 1))
    wide = tempered(whole, Temperature("average", torch.tensor(2.5)))
    assert torch.allclose(wide.mean, whole.mean)
    for part in ("aleatoric", "between", "within", "variance"):
        assert torch.allclose(getattr(wide, part), 6.25 * getattr(whole, part))
    y = torch.linspace(-9, 9, 3).double()[:, None]
    back = whole.mean + (y - whole.mean) / 2.5
    assert torch.allclose(wide.log_prob(y), whole.log_prob(back) - math.log(2.5))
    assert torch.allclose(wide.cdf(y), whole.cdf(back))
    assert torch.allclose(wide.quantile(0.1), whole.mean + 2.5 * (whole.quantile(0.1) - whole.mean))
    drawn, plain = wide.sample(50, seed=3), whole.sample(50, seed=3)
    assert torch.allclose(drawn, whole.mean + 2.5 * (plain - whole.mean))
    assert torch.allclose(wide.to_distribution().mean, whole.mean)
    one = wide[1]
    assert torch.allclose(one.mean, whole[1].mean) and torch.allclose(one.variance, 6.25 * whole[1].variance)


def test_members_are_stretched_around_their_own_means():
    whole = posterior(-1.0, 2.0).predict(torch.zeros(3, 1))
    factors = torch.tensor([3.0, 0.5], dtype=torch.float64)
    wide = tempered(whole, Temperature("members", factors))
    assert torch.allclose(wide.between, whole.between)
    assert torch.allclose(wide.aleatoric, torch.full((3, 1), float(factors.square().mean()), dtype=torch.float64))
    for m, factor in enumerate(factors):
        assert torch.allclose(wide[m].sd, factor.expand(3, 1))
    drawn = wide.sample(20_000)[:, 0, 0]
    exact = float(wide.variance[0, 0])
    assert abs(float(drawn.var()) - exact) < 0.05 * exact * 4


def test_each_member_gets_its_own_factor():
    data = numbers(500)
    calibrated = bn.temper(posterior(0.0, 3.0), data, "members")
    errors = [(data.targets - data.inputs - shift).square().mean().sqrt().item() for shift in (0.0, 3.0)]
    assert calibrated.temperature.values.tolist() == pytest.approx(errors, rel=1e-5)
    assert calibrated[1].temperature.values.tolist() == pytest.approx(errors[1:], rel=1e-5)
    mixed = bn.mix([calibrated, posterior(1.0)])
    assert mixed.temperature.values.tolist() == pytest.approx([*errors, 1.0], rel=1e-5)


@pytest.mark.parametrize(
    "likelihood",
    [bn.likelihoods.StudentT(df=4.0), bn.likelihoods.Gaussian(noise=0.5, learned=True)],
    ids=["t", "learned noise"],
)
def test_other_likelihoods_find_the_best_factor(likelihood):
    data, start = numbers(400), posterior(0.0, 1.0, likelihood=likelihood)
    calibrated = bn.temper(start, data)
    best = bn.score(calibrated, data)["nll"]
    plain = start.predict(data.inputs)
    for factor in (0.97, 1.03):
        other = Temperature("average", calibrated.temperature.values * factor)
        assert -float(tempered(plain, other).log_prob(data.targets).mean()) > best
    assert bn.score(calibrated, data)["crps"] < bn.score(start, data)["crps"]


def test_heteroscedastic_predictions_are_stretched():
    outputs = torch.tensor([[0.0, 1.0], [2.0, -1.0]]).double().reshape(1, 1, 2, 2)
    plain = make_predictive(outputs, bn.likelihoods.Heteroscedastic(), {})
    wide = tempered(plain, Temperature("average", torch.tensor(2.0)))
    assert torch.allclose(wide.sd, 2 * plain.sd) and torch.allclose(wide.mean, plain.mean)
    assert wide.sample(5).shape == (5, 2, 1)


def closed(n: int = 2) -> tuple[Tensor, Tensor]:
    """Outputs (2 members, 1, 4 inputs, n) and a covariance for each."""
    outputs = KEY.split("closed").normal(torch.empty(2, 1, 4, n, dtype=torch.float64))
    root = KEY.split("root").normal(torch.empty(2, 1, 4, n, n, dtype=torch.float64))
    return outputs, root @ root.mT


@pytest.mark.parametrize("values", [torch.tensor(1.7), torch.tensor([1.7, 0.6])])
def test_closed_forms_are_stretched_with_their_correlations(values):
    outputs, covariance = closed()
    plain = make_predictive(outputs, bn.likelihoods.Gaussian(noise=0.5), {}, None, covariance)
    of = "members" if values.dim() else "average"
    wide = tempered(plain, Temperature(of, values))
    y = torch.ones(4, 2).double()
    factors = values.double().expand(2)
    centres = plain.member_mean if values.dim() else plain.mean.expand(2, 4, 2)
    total = covariance[:, 0] + 0.25 * torch.eye(2)
    each = []
    for m in range(2):
        mean = centres[m] + factors[m] * (outputs[m, 0] - centres[m])
        each.append(torch.distributions.MultivariateNormal(mean, factors[m] ** 2 * total[m]).log_prob(y))
    assert torch.allclose(wide.log_prob(y), torch.stack(each).logsumexp(0) - math.log(2))
    parts = wide.aleatoric + wide.between + wide.within
    assert torch.allclose(parts, wide.variance) and torch.allclose(wide.mean, plain.mean)
    drawn = wide.sample(40_000)
    error = drawn.var(0) / wide.variance - 1
    assert float(error.abs().max()) < 4 * math.sqrt(2 / 40_000) * 2  # kurtosis of a mixture: at most twice the normal's


def test_laplace_is_recalibrated_in_closed_form():
    data, val = numbers(60), numbers(200, seed=1)
    problem = bn.Problem(lambda: nn.Linear(1, 1).double(), bn.likelihoods.Gaussian(noise=0.5))
    laplace = bn.fit(bn.Laplace(base=bn.MAP(epochs=50)), problem, data, engine=ENGINE)
    for of in ("average", "quantiles"):
        calibrated = bn.temper(laplace, val, of)
        assert bn.score(calibrated, val)["nll"] < bn.score(laplace, val)["nll"] - 0.5


def skewed(n: int, seed: int = 0) -> bn.Data:
    """Exponential errors: no factor makes them normal."""
    data = numbers(n, seed=seed)
    u = KEY.split("skew").split(seed).uniform(data.targets)
    return bn.Data(data.inputs, data.inputs - torch.log1p(-u))


def test_quantiles_are_recalibrated_where_the_shape_is_wrong():
    val, test = skewed(4000), skewed(4000, seed=1)
    plain = posterior(0.0, 0.5)
    factor, levels = bn.temper(plain, val), bn.temper(plain, val, "quantiles")
    assert levels.temperature.values.shape == (20,) and float(levels.temperature.values.sum()) == pytest.approx(1)
    scores = {name: bn.score(p, test) for name, p in (("plain", plain), ("factor", factor), ("levels", levels))}
    assert scores["levels"]["nll"] < scores["factor"]["nll"] - 0.1 < scores["plain"]["nll"]
    assert scores["levels"]["quantile_error"] < 0.015 < scores["factor"]["quantile_error"]
    assert scores["levels"]["crps"] < scores["factor"]["crps"]
    assert "aleatoric" not in scores["levels"] and 0.4 < scores["levels"]["variance"] < 1  # its tail is normal
    predictive = levels.predict(test.inputs[:1])
    for level in (0.1, 0.5, 0.8):
        exact = float(test.inputs[0]) + scipy.stats.expon.ppf(level)
        assert float(predictive.quantile(level)) == pytest.approx(exact, abs=0.15)
        assert float(predictive.cdf(predictive.quantile(level))) == pytest.approx(level, abs=1e-6)


def test_a_recalibrated_density_integrates_to_one_and_its_moments_are_those_of_the_density():
    calibrated = bn.temper(posterior(0.0, 2.0), skewed(400), "quantiles")
    predictive = calibrated.predict(torch.zeros(1, 1))
    y = torch.linspace(-12, 14, 200_001).double()
    grid = calibrated.predict(torch.zeros(200_001, 1))
    density = grid.log_prob(y[:, None]).exp()
    mean = torch.trapezoid(density * y, y)
    variance = torch.trapezoid(density * (y - mean).square(), y)
    assert float(torch.trapezoid(density, y)) == pytest.approx(1, abs=1e-4)
    assert float(predictive.mean) == pytest.approx(float(mean), abs=1e-3)
    assert float(predictive.variance) == pytest.approx(float(variance), rel=1e-3)
    drawn = predictive.sample(20_000)[:, 0, 0]
    assert abs(float(drawn.mean()) - float(mean)) < 4 * math.sqrt(float(variance) / 20_000)
    levels = scipy.stats.kstest(grid_levels(calibrated, drawn), "uniform")
    assert levels.pvalue > 1e-4


def grid_levels(calibrated: bn.Posterior, drawn: Tensor):
    return calibrated.predict(torch.zeros(len(drawn), 1)).cdf(drawn[:, None])[:, 0].numpy()


def test_equal_shares_change_nothing():
    plain = posterior(0.0, 1.0).predict(torch.zeros(3, 1))
    same = tempered(plain, Temperature("quantiles", torch.full((10,), 0.1).double()))
    y = torch.tensor([[-1.0], [0.3], [2.0]]).double()
    assert torch.allclose(same.log_prob(y), plain.log_prob(y))
    assert torch.allclose(same.quantile(0.3), plain.quantile(0.3)) and torch.allclose(same.cdf(y), plain.cdf(y))
    assert torch.allclose(same.mean, plain.mean, atol=1e-4) and torch.allclose(same.sd, plain.sd, rtol=1e-3)


def test_methods_that_recalibrated_quantiles_lack_say_so():
    predictive = bn.temper(posterior(0.0, 1.0), skewed(400), "quantiles").predict(torch.zeros(3, 1))
    for part in ("aleatoric", "between", "within", "epistemic"):
        with pytest.raises(ValueError, match=f"without a part that is {part}"):
            getattr(predictive, part)
    with pytest.raises(ValueError, match="not a torch distribution"):
        predictive.to_distribution()
    with pytest.raises(ValueError, match="those of all members"):
        predictive[0]
    with pytest.raises(ValueError, match="needs at least 40 validation examples, got 30"):
        bn.temper(posterior(0.0), skewed(30), "quantiles")
    two = make_predictive(torch.zeros(1, 1, 3, 2), bn.likelihoods.Gaussian(), {})
    with pytest.raises(ValueError, match=r"one number per input, got targets \(2,\) each: use of='average'"):
        tempered(two, Temperature("quantiles", torch.ones(1)))


@pytest.mark.parametrize("of", ["average", "members", "quantiles"])
def test_it_saves_loads_and_scores_in_parts(of, tmp_path, monkeypatch):
    calibrated = bn.temper(posterior(0.0, 1.0), skewed(300), of)
    calibrated.save(tmp_path)
    loaded = bn.load(tmp_path, lambda: nn.Linear(1, 1).double())
    assert loaded.temperature.of == of and torch.equal(loaded.temperature.values, calibrated.temperature.values)
    test = skewed(50, seed=2)
    scores = bn.score(calibrated, test)
    assert bn.score(loaded, test) == scores
    monkeypatch.setattr("basinet.scoring.BUDGET", 500)  # a few inputs at a time
    assert bn.score(calibrated, test) == pytest.approx(scores)


def test_conformal_intervals_come_after():
    calibrated = bn.temper(posterior(0.0, 1.0), skewed(300), "quantiles")
    held = bn.conformal(calibrated, skewed(300, seed=2), "cqr")
    low, high = held.predict(skewed(2000, seed=3).inputs).conformal_interval
    y = skewed(2000, seed=3).targets
    share = float(((low <= y) & (y <= high)).double().mean())
    assert abs(share - 0.9) < 4 * math.sqrt(0.09 / 300 + 0.09 / 2000)


def test_weights_and_masks_count():
    data = numbers(300)
    weights = torch.cat([torch.ones(200), torch.zeros(100)]).double()
    some = bn.temper(posterior(0.0), data.take(slice(0, 200))).temperature.values
    masked = bn.temper(posterior(0.0), bn.Data(data.inputs, data.targets, weights)).temperature.values
    assert float(masked) == pytest.approx(float(some), rel=1e-5)
    shares = bn.temper(posterior(0.0), data.take(slice(0, 200)), "quantiles").temperature.values
    again = bn.temper(posterior(0.0), bn.Data(data.inputs, data.targets, weights), "quantiles").temperature.values
    assert torch.equal(shares, again)


def test_without_a_best_factor_it_warns_and_the_spread_stays(caplog):
    data = numbers(50)
    calibrated = bn.temper(posterior(0.0), bn.Data(data.inputs, data.inputs))
    assert float(calibrated.temperature.values) == 1
    assert "still falls at T = " in caplog.text and "every target is hit" in caplog.text
    far = bn.temper(posterior(0.0), bn.Data(data.inputs, data.inputs + 1e8))
    assert float(far.temperature.values) >= 1e4 and "the spread is tiny compared with the errors" in caplog.text


def test_a_stretched_predictive_in_single_precision():
    plain = posterior(0.0, 1.0).predict(torch.zeros(2, 1))
    single = replace(plain, outputs=plain.outputs.float())
    wide = tempered(single, Temperature("average", torch.tensor(3.0, dtype=torch.float64)))
    assert wide.mean.dtype == wide.sd.dtype == wide.log_prob(torch.zeros(2, 1)).dtype == torch.float32
    assert wide.sample(3).dtype == torch.float32
