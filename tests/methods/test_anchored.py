"""Anchored: every member the mode under its own prior and its own targets, and together the posterior."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.lift import lift
from basinet.core.tree import ravel, take
from basinet.engine import Step
from basinet.engine.step import Alone
from basinet.families import Delta
from basinet.methods.anchored import Anchored
from basinet.methods.map import MAP
from basinet.optim import SGD, Cosine
from basinet.problem import Batch
from basinet.testing import check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="stacked", progress=False)
SIGMA, SCALE, N, MEMBERS = 0.5, 1.5, 40, 400
DESCENT = SGD(lr=0.1, momentum=0.9)


def settled(noise: bool | None, epochs: int = 600) -> Anchored:
    return Anchored(epochs=epochs, batch_size=None, target_noise=noise, optimizer=DESCENT)


def weights_of(posterior: bn.Posterior) -> Tensor:
    return ravel(posterior.sample(1), 2)[:, 0]  # (M, d)


def tether(k: int, d: int = 3) -> tuple[Tensor, Tensor]:
    """The standard normal numbers of member k, seed 0: for the anchor and for the targets."""
    key = bn.Noise.seed(0).split("fit").split(0).split(k).split("init")
    anchor = key.split("anchor").split("weight").normal(torch.empty(1, d, dtype=torch.float64))[0]
    like = torch.empty((), dtype=torch.float64)
    return anchor, torch.stack([key.split("targets").split(n).normal(like) for n in range(N)])


def deviations(draws: Tensor, mean: Tensor, covariance: Tensor) -> tuple[float, float]:
    """The largest z-scores of mean and covariance."""
    variances, count = covariance.diagonal(), len(draws)
    error = ((covariance.square() + variances[:, None] * variances) / count).sqrt()
    centre = (draws.mean(0) - mean) / (variances / count).sqrt()
    return float(centre.abs().max()), float(((torch.cov(draws.T) - covariance) / error).abs().max())


@pytest.mark.slow
def test_anchored_conforms_and_spreads_as_its_theory_says():
    checks = check_method(Anchored(epochs=4, batch_size=16))
    assert sum("covariance of 400 members" in c.name for c in checks) == 3


@pytest.mark.slow
@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("noise", [True, False])
def test_each_member_is_the_mode_with_its_anchor_and_its_targets(noise, bootstrap):
    exact = conjugate()
    data = exact.data.bootstrap(3) if bootstrap else exact.data
    weights = weights_of(bn.fit(settled(noise), exact.problem, data, members=3, engine=ENGINE))
    for k in range(3):
        rows = data.rows[k] if bootstrap else torch.arange(N)
        anchor, unit = tether(k)
        x, y = exact.data.inputs[rows], (exact.data.targets + noise * SIGMA * unit)[rows]
        precision = x.T @ x / SIGMA**2 + torch.eye(3) / SCALE**2
        mode = torch.linalg.solve(precision, x.T @ y / SIGMA**2 + SCALE * anchor / SCALE**2)
        torch.testing.assert_close(weights[k], mode, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_batches_see_the_same_noisy_target_in_every_epoch():
    exact = conjugate()
    whole = weights_of(bn.fit(settled(True, 200), exact.problem, exact.data, members=4, engine=ENGINE))
    small = SGD(lr=Cosine(peak=0.1), momentum=0.9)
    recipe = Anchored(epochs=100, batch_size=10, target_noise=True, optimizer=small)
    parts = weights_of(bn.fit(recipe, exact.problem, exact.data, members=4, engine=ENGINE))
    assert (parts - whole).abs().max() < 0.03 < (whole - exact.mean).abs().max() / 5


def test_with_noise_the_spread_is_not_only_that_of_anchors():
    exact = conjugate()
    narrow = exact.covariance @ exact.covariance / SCALE**2
    draws = weights_of(bn.fit(settled(True, 150), exact.problem, exact.data, members=100, engine=ENGINE))
    assert max(deviations(draws, exact.mean, exact.covariance)) < 4  # standard errors
    assert deviations(draws, exact.mean, narrow)[1] > 20


def test_data_twice_at_likelihood_temperature_two_are_the_same_posterior_in_distribution():
    exact = conjugate()
    twice = bn.Data(torch.cat([exact.data.inputs] * 2), torch.cat([exact.data.targets] * 2))
    hot = bn.Problem(exact.problem.network, exact.problem.likelihood, exact.problem.prior, 2.0, "likelihood")
    draws = weights_of(bn.fit(settled(True, 150), hot, twice, members=MEMBERS, engine=ENGINE))
    assert max(deviations(draws, exact.mean, exact.covariance)) < 4  # standard errors


def test_weights_of_examples_are_precisions_of_their_noise():
    exact = conjugate()
    weights = torch.arange(N, dtype=torch.float64) % 4  # some are zero
    x, y = exact.data.inputs, exact.data.targets
    precision = (weights[:, None] * x).T @ x / SIGMA**2 + torch.eye(3) / SCALE**2
    mean = torch.linalg.solve(precision, x.T @ (weights * y) / SIGMA**2)
    data = bn.Data(x, y, weights)
    draws = weights_of(bn.fit(settled(True, 150), exact.problem, data, members=MEMBERS, engine=ENGINE))
    assert max(deviations(draws, mean, torch.linalg.inv(precision))) < 4  # standard errors


@pytest.mark.slow
def test_learned_noise_does_not_count_what_was_added():
    exact = conjugate()
    likelihood = bn.likelihoods.Gaussian(noise=0.8, learned=True)
    problem = bn.Problem(exact.problem.network, likelihood, exact.problem.prior)
    plain = bn.fit(MAP(epochs=600, batch_size=None, optimizer=DESCENT), problem, exact.data, engine=ENGINE)
    posterior = bn.fit(settled(True, 300), problem, exact.data, members=100, engine=ENGINE)
    expected = plain.sample(1)["likelihood.log_noise"][0, 0]
    log_noise = posterior.sample(1)["likelihood.log_noise"][:, 0]
    error = float(log_noise.std()) / math.sqrt(100)
    assert abs(float(log_noise.mean() - expected)) < 4 * error + 0.01  # and curvature's share
    assert float(log_noise.std()) < 0.2


@pytest.mark.parametrize("scale", [0.3, {"0": 0.5, "2": 0.1}, "lecun", "he", "xavier"])
@pytest.mark.parametrize("centred", [False, True])
def test_anchors_are_draws_from_the_prior_and_the_prior_is_centred_on_them(scale, centred):
    make = lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()  # noqa: E731
    centre = {"0.weight": torch.full((3, 2), 5.0), "2.bias": torch.tensor([-2.0])} if centred else None
    prior = bn.priors.Normal(scale=scale, centre=centre)
    problem = bn.Problem(make, bn.likelihoods.Gaussian(noise=0.5, learned=True), prior)
    recipe, point, count = Anchored(target_noise=False), problem.init(bn.Noise.seed(1)), 2000
    drawn = lift(lambda key: recipe.init(point, problem, bn.Noise(key)).memory.anchor)(
        bn.Noise.seed(2).spread(count).key
    )
    scales = prior.scales(problem.split(point.params)[0])
    assert set(drawn) == set(scales)  # the learned noise has none
    for name, s in scales.items():
        mean = centre[name] if centre is not None and name in centre else 0.0
        assert ((drawn[name].mean(0) - mean) / (s / count**0.5)).abs().max() < 4  # standard errors
        assert (drawn[name].var(0) / s**2 - 1).abs().max() < 4 * math.sqrt(2 / count)
    x, y = torch.ones(4, 2).double(), torch.ones(4, 1).double()
    batch = Batch(x, y, torch.arange(4), torch.tensor(0), 20)
    state = recipe.init(point, problem, bn.Noise.seed(2))
    grads, info = recipe.gradient(state, Step(batch, problem, bn.Noise.seed(3), lift=Alone()))

    def loss(params: dict[str, Tensor]) -> Tensor:
        terms = ((params[n] - a) / scales[n] for n, a in state.memory.anchor.items())
        log_likelihood = problem.log_likelihood(params, point.buffers, batch)[0] / 4
        return 0.5 * torch.cat([t.reshape(-1) for t in terms]).square().sum() / 20 - log_likelihood

    torch.testing.assert_close(grads, torch.func.grad(loss)(point.params), rtol=0, atol=1e-12)
    torch.testing.assert_close(info.loss, loss(point.params), rtol=0, atol=1e-12)


def test_members_do_not_start_at_their_anchors():
    exact = conjugate()
    still = Anchored(epochs=1, batch_size=None, optimizer=SGD(lr=0.0))
    weights = weights_of(bn.fit(still, exact.problem, exact.data, members=3, engine=ENGINE))
    fresh = bn.fit(MAP(epochs=1, batch_size=None, optimizer=SGD(lr=0.0)), exact.problem, exact.data, members=3)
    torch.testing.assert_close(weights, weights_of(fresh), rtol=0, atol=0)
    for k in range(3):
        assert (weights[k] - SCALE * tether(k)[0]).abs().max() > 0.1
    one = bn.fit(still, exact.problem, exact.data, members=2, start=fresh[:1], engine=ENGINE)
    assert torch.equal(weights_of(one), weights[:1].expand(2, 3))


@pytest.mark.parametrize("prior", [bn.priors.LogUniform(), bn.priors.StudentT(), bn.priors.Laplace()])
def test_a_prior_that_has_no_anchors_is_refused(prior):
    exact = conjugate()
    problem = bn.Problem(exact.problem.network, exact.problem.likelihood, prior)
    with pytest.raises(ValueError, match=f"from a Normal prior .* got {type(prior).__name__}.*: use priors.Normal"):
        bn.fit(Anchored(), problem, exact.data)


@pytest.mark.parametrize("likelihood", [bn.likelihoods.Categorical(), bn.likelihoods.StudentT()])
def test_target_noise_is_for_gaussian_likelihoods(likelihood):
    problem = bn.Problem(lambda: nn.Linear(4, 3).double(), likelihood)
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(N, 4, dtype=torch.float64))
    real = isinstance(likelihood, bn.likelihoods.StudentT)
    data = bn.Data(inputs, inputs[:, :3] if real else key.split("y").integers(N, 3))
    with pytest.raises(ValueError, match=r"target_noise=True expects a Gaussian likelihood.*: use target_noise=False"):
        bn.fit(Anchored(target_noise=True), problem, data)
    off, default = (bn.fit(Anchored(epochs=3, target_noise=t), problem, data, engine=ENGINE) for t in (False, None))
    assert torch.equal(weights_of(off), weights_of(default))


def test_by_default_targets_get_noise_if_the_likelihood_is_gaussian():
    exact = conjugate()
    on, default = (bn.fit(settled(t, 20), exact.problem, exact.data, engine=ENGINE) for t in (True, None))
    assert torch.equal(weights_of(on), weights_of(default))


@pytest.mark.parametrize("learned", [False, True])
def test_several_targets_have_noise_of_their_own(learned):
    likelihood = bn.likelihoods.Gaussian(noise=(0.1, 2.0), learned=learned)
    problem = bn.Problem(lambda: nn.Linear(4, 2).double(), likelihood)
    inputs = bn.Noise.seed(5).normal(torch.empty(N, 4, dtype=torch.float64))
    recipe = Anchored(epochs=30, batch_size=10, target_noise=True)
    posterior = bn.fit(recipe, problem, bn.Data(inputs, inputs[:, :2]), members=2, engine=ENGINE)
    loop = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
    alone = bn.fit(recipe, problem, bn.Data(inputs, inputs[:, :2]), members=2, engine=loop)
    torch.testing.assert_close(weights_of(posterior), weights_of(alone), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_ten_members_on_diabetes(tmp_path):
    splits = bn.datasets.load("diabetes")
    make = lambda: bn.networks.MLP(10, 1, hidden=(50,))  # noqa: E731
    problem = bn.Problem(make, bn.likelihoods.Gaussian(noise=0.7, learned=True), bn.priors.Normal(scale="lecun"))
    engine = bn.Engine(device="cpu", progress=False)
    posterior = bn.fit(
        Anchored(target_noise=None, epochs=300), problem, splits.train, val=splits.val, members=10, engine=engine
    )
    predictive = posterior.predict(splits.test.inputs)
    plain = bn.fit(MAP(epochs=300), problem, splits.train, members=10, engine=engine).predict(splits.test.inputs)
    scale = float(splits.train.targets.std())
    rmse = float((predictive.mean - splits.test.targets.reshape(predictive.mean.shape)).square().mean().sqrt())
    assert rmse < 0.85 * scale
    assert float(predictive.epistemic.mean()) > 1.5 * float(plain.epistemic.mean())
    posterior.save(tmp_path / "saved")
    again = bn.load(tmp_path / "saved", make)
    assert torch.equal(again.predict(splits.test.inputs).outputs, predictive.outputs)
    assert isinstance(take(again.parts[0].family, 0), Delta) and again.recipe == Anchored(target_noise=None, epochs=300)


def test_compare_has_one_row_of_it():
    assert [(e.label, e.recipe, e.members) for e in Anchored.lineup()] == [
        ("anchored ensemble", Anchored(target_noise=None), 10)
    ]
