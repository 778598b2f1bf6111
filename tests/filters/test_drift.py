"""How filters forget: each part against its formula, and what it does on a stream that changes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.curvature.updating import covariance_of
from basinet.data import Piece
from basinet.filters import AdaptiveForget, Change, Forget, Shrink
from basinet.testing.exact import conjugate

EXACT = conjugate()
X, Y = EXACT.data.inputs, EXACT.data.targets
FULL = {
    "Kalman": bn.Kalman(),
    "EKF": bn.EKF(centre="prior"),
    "LOFI": bn.LOFI(rank=3, centre="prior"),
    "RVGA": bn.RVGA(centre="prior", draws=2),
}


def stream(seed=0, n=400):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    before, after = torch.tensor([1.0, -1.0, 0.5]).double(), torch.tensor([-1.0, 1.0, 0.5]).double()
    y = torch.where(torch.arange(n) < n // 2, x @ before, x @ after)
    return x, y + 0.5 * torch.randn(n, dtype=torch.float64, generator=generator), before, after


def one(posterior):
    return take(posterior.parts[0].family, 0)


def moments(family):
    return ravel(family.mean().params), covariance_of(family, family.centre)


@pytest.mark.parametrize("name", FULL)
def test_the_evidence_of_batches_is_that_of_all_data(name):
    recipe, total = FULL[name], 0.0
    posterior = bn.online(recipe, EXACT.problem)
    for part in torch.arange(40).split(9):
        total += recipe.log_evidence(one(posterior), EXACT.problem, Piece(X[part], Y[part], None))
        posterior = posterior.update((X[part], Y[part]))
    assert total == pytest.approx(EXACT.log_evidence, abs=1e-9)


@pytest.mark.parametrize(
    "recipe", [bn.Kalman(), bn.LOFI(rank=3, centre="prior"), bn.EKF(structure="diagonal", centre="prior")]
)
def test_shrinking_goes_back_to_a_normal_prior(recipe):
    family = one(bn.online(recipe, EXACT.problem).update((X, Y)))
    mean, covariance = moments(family)
    kept, identity = 0.98**5, torch.eye(3).double()
    after = moments(Shrink(0.98, scale=2.0).after(family, 5, family))
    torch.testing.assert_close(after[0], kept * mean)
    torch.testing.assert_close(after[1], kept**2 * covariance + (1 - kept**2) * 4 * identity)
    long_after = moments(Shrink(0.98, scale=2.0).after(family, 10_000, family))
    torch.testing.assert_close(long_after[1], 4 * identity, rtol=1e-5, atol=1e-5)
    assert float(long_after[0].abs().max()) < 0.01


def test_the_rate_is_the_one_under_which_the_batch_is_most_probable():
    every, targets, _, _ = stream()
    family = one(bn.online(bn.Kalman(), EXACT.problem).update((every[:150], targets[:150])))
    rates, chosen_rates = (1.0, 0.99, 0.9), []
    for rows in (slice(150, 170), slice(250, 270)):  # before and after the change
        x, y, probable = every[rows], targets[rows], {}
        for rate in rates:
            mean, covariance = moments(family.scaled(rate**-20))
            predicted = torch.distributions.MultivariateNormal(x @ mean, x @ covariance @ x.T + 0.25 * torch.eye(20))
            probable[rate] = float(predicted.log_prob(y))
        best = max(probable, key=probable.__getitem__)
        chosen_rates.append(best)
        recipe = bn.Kalman(drift=AdaptiveForget(rates), batch_size=20)
        chosen = recipe.step(family, EXACT.problem, Piece(x, y, None))
        expected = bn.Kalman(drift=Forget(best), batch_size=20).step(family, EXACT.problem, Piece(x, y, None))
        torch.testing.assert_close(moments(chosen)[0], moments(expected)[0])
    assert chosen_rates == [1.0, 0.9]


@pytest.mark.parametrize("drift", [AdaptiveForget(), Change(0.005, scale=1.5)], ids=["AdaptiveForget", "Change"])
def test_the_past_is_kept_while_it_explains_and_left_when_it_does_not(drift):
    x, y, before, after = stream()
    static, moving = (bn.online(bn.Kalman(drift=d), EXACT.problem) for d in (None, drift))
    errors = []
    for part in torch.arange(400).split(5):
        static, moving = (p.update((x[part], y[part])) for p in (static, moving))
        truth = before if int(part[0]) < 200 else after
        errors.append([float((ravel(p.mean()) - truth).norm()) for p in (static, moving)])
    assert errors[39][1] < 0.2  # before the change nothing is lost
    assert errors[-1][1] < 0.2 < 1.0 < errors[-1][0]
    assert errors[49][1] < 0.5 < errors[49][0]  # 50 examples after the change


def test_a_change_that_is_as_probable_as_stated_without_data():
    family = one(bn.online(bn.Kalman(), EXACT.problem).update((X, Y)))
    change = Change(0.1, scale=1.5)
    candidates = []
    halfway = change.given(family, 1, family, lambda candidate: candidates.append(candidate) or 0.0)
    torch.testing.assert_close(moments(halfway)[1], moments(change.after(family, 1, family))[1])
    assert len(candidates) == 2
    anew = change.given(family, 1, family, lambda candidate: -1000.0 if candidate is family else 0.0)
    torch.testing.assert_close(moments(anew)[1], 2.25 * torch.eye(3).double(), rtol=0, atol=1e-5)


def correlated(rank=3):
    """A prior of correlated parameters, as every kind of family."""
    low = one(bn.online(bn.LOFI(rank=rank, centre="prior"), EXACT.problem).update((X[:2], Y[:2])))
    prior = bn.priors.FromFamily(family=low)
    problem = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, prior)
    return problem, low


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("name", ["Kalman", "LOFI"])
def test_forgetting_leaves_the_prior_whole_whatever_it_is(name, size):
    problem, low = correlated()
    recipe = replace(FULL[name], drift=Forget(0.9), batch_size=size)
    posterior = bn.online(recipe, problem)
    for part in torch.arange(40).split(size):
        posterior = posterior.update((X[part], Y[part]))
    first, second = moments(low)
    weights = 0.9 ** (39 - torch.arange(40) // size * size - size + 1).double()
    precision = torch.linalg.inv(second) + (X * weights[:, None]).T @ X / 0.25
    mean = torch.linalg.solve(precision, torch.linalg.solve(second, first) + X.T @ (weights * Y) / 0.25)
    torch.testing.assert_close(moments(one(posterior))[0], mean)
    torch.testing.assert_close(moments(one(posterior))[1], torch.linalg.inv(precision))


SILENT = {
    "Kalman": bn.Kalman(),
    "EKF": bn.EKF(),
    "diagonal": bn.EKF(structure="diagonal"),
    "decoupled": bn.EKF(structure="decoupled"),
    "LOFI": bn.LOFI(rank=2),
    "RVGA": bn.RVGA(draws=2, iterations=1),
}


@pytest.mark.parametrize("drift", [Forget(0.9), AdaptiveForget((0.95, 0.9)), Change()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("name", SILENT)
def test_a_silent_input_is_never_wider_than_the_prior(name, drift):
    """Forgetting divided the covariance by the rate: along an input that is always zero or constant it grew without
    end, and 5,000 rows ended in a matrix without a factor. In single precision, as networks are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(5000, 2, generator=generator), torch.zeros(5000, 1), torch.ones(5000, 1)], 1)
    y = x[:, :1] - x[:, 1:2] + 0.3 * torch.randn(5000, 1, generator=generator)
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian(noise=0.3), bn.priors.Normal(scale=0.7))
    posterior = bn.online(replace(SILENT[name], drift=drift, batch_size=50), problem)
    for part in torch.arange(5000).split(500):
        posterior = posterior.update((x[part], y[part]))
    mean, covariance = moments(one(posterior))
    torch.testing.assert_close(mean[:2], torch.tensor([1.0, -1.0]), rtol=0, atol=0.3)
    assert float(torch.linalg.eigvalsh(covariance.double())[-1]) <= 0.7**2 * (1 + 1e-4)
    torch.testing.assert_close(covariance[2, 2], torch.tensor(0.7**2), rtol=1e-4, atol=0)


def test_a_change_goes_back_to_the_prior_s_own_scales():
    problem = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, bn.priors.Normal(scale="lecun"))
    for recipe in (bn.Kalman(), bn.LOFI(rank=2, centre="prior"), bn.EKF(structure="diagonal", centre="prior")):
        recipe = replace(recipe, drift=Change(0.5), batch_size=1)
        family = one(bn.online(recipe, problem).update((X[:20], Y[:20])))
        far = Piece(X[:1], torch.full((1,), 1e3, dtype=torch.float64), None)  # explained by nothing that was known
        before = recipe._drifted(family, problem, far)
        torch.testing.assert_close(moments(before)[1], torch.eye(3).double() / 3, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (1e305, 1.0, "the network.s outputs for them, or their derivatives, are not finite"),
        (1e160, 1.0, "(is|are) not (posi|fini)"),
    ],
)
def test_impossible_drifts_are_refused(x, y, says):
    problem = bn.Problem(EXACT.problem.model, bn.likelihoods.Gaussian(noise=1e-9), bn.priors.Normal(scale=1e9))
    batch = x * torch.ones(2, 3).double(), y * torch.ones(2).double()
    for recipe in FULL.values():
        with pytest.raises(FloatingPointError, match=says):
            bn.online(recipe, problem).update(batch)


@pytest.mark.parametrize("drift", [AdaptiveForget(), Change(), Shrink()], ids=["AdaptiveForget", "Change", "Shrink"])
def test_a_drift_is_saved_with_the_recipe_and_continues(drift, tmp_path):
    def net():
        return nn.Linear(3, 1, bias=False, dtype=torch.float64)

    posterior = bn.online(bn.LOFI(rank=2, drift=drift), EXACT.problem).update((X[:20], Y[:20]))
    posterior.save(tmp_path / "half")
    again = bn.load(tmp_path / "half", net)
    assert again.recipe == posterior.recipe
    both = [p.update((X[20:], Y[20:])).mean() for p in (posterior, again)]
    assert torch.equal(ravel(both[0]), ravel(both[1]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AdaptiveForget(()), "expected rates"),
        (lambda: AdaptiveForget((1.0, 0.0)), "expected rates"),
        (lambda: Change(0.0), "expected a hazard"),
        (lambda: Change(scale=math.inf), "expected a positive, finite scale"),
        (lambda: Shrink(0.0), "expected a rate"),
        (lambda: Shrink(scale=0.0), "expected a positive, finite scale"),
    ],
)
def test_what_means_nothing_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
