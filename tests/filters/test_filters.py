"""Filters against what is known: the batch posterior of linear models, their own recursions, each other."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.curvature.updating import covariance_of
from basinet.families import Diagonal, LowRankPrecision
from basinet.filters import Forget, Inflate
from basinet.testing.exact import conjugate

EXACT = conjugate()
X, Y = EXACT.data.inputs, EXACT.data.targets
FULL = {
    "Kalman": bn.Kalman(),
    "EKF": bn.EKF(centre="prior"),
    "iterated EKF": bn.EKF(centre="prior", iterations=3),
    "LOFI": bn.LOFI(rank=3, centre="prior"),
    "RVGA": bn.RVGA(centre="prior", draws=2),
}
ORDER = list(range(39, -1, -1))
QUIET = bn.Engine(progress=False)


def streamed(recipe, problem, x, y, size):
    posterior = bn.online(recipe, problem)
    for part in torch.arange(len(x)).split(size):
        posterior = posterior.update((x[part], y[part]))
    return posterior


def moments(posterior):
    family = take(posterior.parts[0].family, 0)
    family = getattr(family, "part", family)
    return ravel(family.mean().params), covariance_of(family, family.centre)


def close(posterior, mean, covariance, tolerance=1e-10):
    m, c = moments(posterior)
    torch.testing.assert_close(m, mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(c, covariance, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("name", FULL)
def test_a_linear_model_has_the_batch_posterior_in_any_order_and_batching(name, size):
    for order in (torch.arange(40), torch.arange(40).flip(0)):
        close(streamed(FULL[name], EXACT.problem, X[order], Y[order], size), EXACT.mean, EXACT.covariance)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("name", FULL)
def test_temperatures_are_those_of_the_problem(name, temper):
    cold = conjugate(temperature=0.3, temper=temper)
    close(streamed(FULL[name], cold.problem, X, Y, 9), cold.mean, cold.covariance)


@pytest.mark.parametrize("name", FULL)
def test_fit_goes_over_the_data_once(name):
    close(bn.fit(FULL[name], EXACT.problem, EXACT.data, engine=QUIET), EXACT.mean, EXACT.covariance)


@pytest.mark.parametrize("name", FULL)
def test_networks_that_return_one_number_for_each_example_are_the_same(name):
    linear = EXACT.problem.network.module
    flat = bn.Problem(lambda: Flat(linear), EXACT.problem.likelihood, EXACT.problem.prior)
    close(streamed(FULL[name], flat, X, Y.squeeze(-1), 9), EXACT.mean, EXACT.covariance)


class Flat(nn.Module):
    """What a network gives, (B,) in place of (B, 1)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).squeeze(-1)


def test_predictions_are_exact():
    predictive = streamed(bn.Kalman(), EXACT.problem, X, Y, 4).predict(X)
    mean, variance = EXACT.predictive(X)
    torch.testing.assert_close(predictive.mean.squeeze(-1), mean)
    torch.testing.assert_close(predictive.variance.squeeze(-1), variance)


def recursion(decoupled, size):
    """The diagonal filters by the formulas of a gain, S = H P H' + R, K = P H' / S."""
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.full((3,), 1.5**2, dtype=torch.float64)
    for part in torch.arange(40).split(size):
        h, noise = X[part], 0.25 * torch.eye(len(part), dtype=torch.float64)
        gain = torch.linalg.solve(h * variance @ h.T + noise, h * variance).T
        mean = mean + gain @ (Y[part] - h @ mean)
        less = variance - (gain * h.T).sum(1) * variance
        variance = less if decoupled else 1 / (1 / variance + h.square().sum(0) / 0.25)
    return mean, torch.diag(variance)


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("structure", ["diagonal", "decoupled"])
def test_diagonal_filters_follow_their_own_recursion(structure, size):
    recipe = bn.EKF(structure=structure, centre="prior", batch_size=40)
    close(streamed(recipe, EXACT.problem, X, Y, size), *recursion(structure == "decoupled", size))


def test_the_diagonal_filter_keeps_the_diagonal_of_the_precision_and_its_mean_depends_on_the_order():
    recipe = bn.EKF(structure="diagonal", centre="prior")
    forwards, backwards = (moments(streamed(recipe, EXACT.problem, X[o], Y[o], 2)) for o in (slice(None), ORDER))
    expected = torch.diag(1 / EXACT.precision.diagonal())
    torch.testing.assert_close(forwards[1], expected)
    torch.testing.assert_close(backwards[1], expected)
    assert float((forwards[0] - backwards[0]).abs().max()) > 0.01


def test_a_low_rank_filter_keeps_the_diagonal_of_the_precision():
    low = moments(streamed(bn.LOFI(rank=1, centre="prior"), EXACT.problem, X, Y, 5))[1]
    torch.testing.assert_close(torch.linalg.inv(low).diagonal(), EXACT.precision.diagonal())
    assert float((low - EXACT.covariance).abs().max()) > 1e-3


def test_a_rank_of_that_of_the_data_is_enough():
    x = torch.cat([X[:, :2], X[:, :2] @ torch.tensor([[1.0, -1.0], [2.0, 0.5]], dtype=torch.float64)], 1)  # rank 2 of 4
    problem = bn.Problem(
        lambda: nn.Linear(4, 1, bias=False, dtype=torch.float64),
        bn.likelihoods.Gaussian(noise=0.5),
        bn.priors.Normal(scale=1.5),
    )
    exact = moments(streamed(bn.Kalman(), problem, x, Y, 40))
    close(streamed(bn.LOFI(rank=2, centre="prior"), problem, x, Y, 3), *exact)


def net(out=1):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, out)).double()


LIKELIHOODS = {
    "numbers": (1, bn.likelihoods.Gaussian(noise=0.5), Y.unsqueeze(-1)),
    "classes": (3, bn.likelihoods.Categorical(), torch.arange(40) % 3),
    "labels": (1, bn.likelihoods.Bernoulli(), (Y > 0).double().unsqueeze(-1)),
    "own noise": (2, bn.likelihoods.Heteroscedastic(), Y.unsqueeze(-1)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_full_rank_is_the_full_covariance_on_a_network(name):
    out, likelihood, y = LIKELIHOODS[name]
    problem = bn.Problem(lambda: net(out), likelihood)
    count = sum(x.numel() for x in net(out).parameters())
    close(streamed(bn.LOFI(rank=count), problem, X, y, 8), *moments(streamed(bn.EKF(), problem, X, y, 8)), 1e-9)


def test_one_batch_is_a_gauss_newton_step_and_iterations_lead_to_the_mode():
    _, likelihood, y = LIKELIHOODS["classes"]
    linear = bn.Problem(lambda: nn.Linear(3, 3, bias=False).double(), likelihood, bn.priors.Normal(scale=1.5))
    posterior = bn.online(bn.EKF(centre="prior", iterations=20, batch_size=40), linear).update((X, y))
    params = {n: x.clone().requires_grad_() for n, x in posterior.mean().items()}
    batch = bn.Data(X, y)
    logits = X @ params["weight"].T
    energy = nn.functional.cross_entropy(logits, batch.targets, reduction="sum") + params["weight"].square().sum() / 4.5
    assert float(torch.autograd.grad(energy, params["weight"])[0].abs().max()) < 1e-9  # the mode: convex, and unique
    hessian = torch.autograd.functional.hessian(
        lambda w: nn.functional.cross_entropy(X @ w.reshape(3, 3).T, y, reduction="sum") + w.square().sum() / 4.5,
        params["weight"].detach().reshape(-1),
    )
    torch.testing.assert_close(moments(posterior)[1], torch.linalg.inv(hessian))


def test_the_last_layer_is_a_linear_model_and_the_others_stay():
    torch.manual_seed(0)
    module = net()
    problem = bn.Problem(module, bn.likelihoods.Gaussian(noise=0.5), bn.priors.Normal(scale=1.5))
    posterior = bn.online(bn.Kalman(where="2.*"), problem, start=bn.Posterior.of(module, problem))
    for part in torch.arange(40).split(9):
        posterior = posterior.update((X[part], Y[part]))
    features = torch.cat([module[1](module[0](X)), torch.ones(40, 1, dtype=torch.float64)], 1).detach()
    precision = features.T @ features / 0.25 + torch.eye(5, dtype=torch.float64) / 1.5**2
    close(posterior, torch.linalg.solve(precision, features.T @ Y / 0.25), torch.linalg.inv(precision))
    torch.testing.assert_close(posterior.mean()["0.weight"], module[0].weight.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("recipe", [bn.Kalman(where="last"), bn.Kalman(where="2.*")], ids=["last", "by name"])
def test_the_last_layer_by_name_and_by_place_are_one(recipe):
    problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))
    other = moments(streamed(bn.EKF(where="2.*", centre="prior"), problem, X, Y, 9))
    close(streamed(recipe, problem, X, Y, 9), *other)


def test_a_last_layer_that_is_not_where_the_outputs_come_from_is_refused():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body = nn.Linear(4, 1).double(), nn.Linear(3, 4).double()

        def forward(self, x):
            return self.head(self.body(x).tanh())

    posterior = bn.online(bn.Kalman(where="last"), bn.Problem(Turned, bn.likelihoods.Gaussian(noise=0.5)))
    with pytest.raises(ValueError, match=r"took body.weight, body.bias .* come from head.weight, head.bias"):
        posterior.update((X, Y))


def test_rvga_solves_its_implicit_equations():
    """One example of two classes and one weight w ~ N(0.3, 0.8^2): E_q by quadrature, at the solution."""
    x, y = torch.tensor([[1.7]]).double(), torch.tensor([[0.0]]).double()
    prior = bn.priors.Normal(scale=0.8, centre={"weight": torch.tensor([[0.3]]).double()})
    problem = bn.Problem(lambda: nn.Linear(1, 1, bias=False).double(), bn.likelihoods.Bernoulli(), prior)
    draws = 200
    mean, variance = (float(z) for z in moments(bn.online(bn.RVGA(draws=draws, iterations=4), problem).update((x, y))))
    line = torch.linspace(-8, 8, 4001).double()
    weight = torch.softmax(-0.5 * line.square(), 0)
    p = (1.7 * (mean + variance**0.5 * line)).sigmoid()
    slope, bend = 1.7 * (0.0 - p), 1.7**2 * p * (1 - p)
    expected, curvature = float((weight * slope).sum()), float((weight * bend).sum())
    z = 4.5 / (draws / 2) ** 0.5
    pairs = [(v + v.flip(0)) / 2 for v in (slope, bend)]
    sd = [float((weight * (v - (weight * v).sum()).square()).sum().sqrt()) for v in pairs]
    assert mean == pytest.approx(0.3 + 0.64 * expected, abs=z * 0.64 * sd[0])
    assert 1 / variance == pytest.approx(1 / 0.64 + curvature, abs=z * sd[1])
    linearised = moments(bn.online(bn.EKF(iterations=6), problem).update((x, y)))
    assert abs(float(linearised[0]) - mean) > 0.005  # the mode is not what it ends in


def test_rvga_depends_on_the_batch_and_on_nothing_else():
    problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5))
    first, second = (moments(streamed(bn.RVGA(draws=4, structure="diagonal"), problem, X, Y, 8)) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_weights_count_as_repeated_examples():
    twice = streamed(bn.Kalman(), EXACT.problem, torch.cat([X, X[:5]]), torch.cat([Y, Y[:5]]), 10)
    weights = torch.ones(40, dtype=torch.float64)
    weights[:5] = 2
    close(bn.online(bn.Kalman(), EXACT.problem).update((X, Y, weights)), *moments(twice))


@pytest.mark.parametrize("recipe", [bn.Kalman(), bn.LOFI(rank=3)], ids=["Kalman", "LOFI"])
def test_yesterdays_posterior_as_a_prior_is_the_same_as_continuing(recipe):
    first = streamed(bn.LOFI(rank=3, centre="prior"), EXACT.problem, X[:20], Y[:20], 5)
    prior = bn.priors.FromFamily(family=first.family)
    today = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, prior)
    close(streamed(recipe, today, X[20:], Y[20:], 20), EXACT.mean, EXACT.covariance)


def test_forgetting_weighs_an_example_by_its_age():
    rate, n = 0.9, 40
    age = torch.arange(n - 1, -1, -1).double()
    for size in (1, 40):  # within one batch all have the same age
        weights = rate**age if size == 1 else torch.ones(n, dtype=torch.float64)
        precision = (X * weights[:, None]).T @ X / 0.25 + torch.eye(3, dtype=torch.float64) / 1.5**2
        mean = torch.linalg.solve(precision, X.T @ (weights * Y) / 0.25)
        for one in (bn.Kalman(drift=Forget(rate)), bn.LOFI(rank=3, centre="prior", drift=Forget(rate))):
            recipe = replace(one, batch_size=40)
            close(streamed(recipe, EXACT.problem, X, Y, size), mean, torch.linalg.inv(precision))


def test_inflation_adds_to_the_covariance_of_every_family():
    full, low = (moments(streamed(FULL[n], EXACT.problem, X, Y, 40))[1] for n in ("Kalman", "LOFI"))
    torch.testing.assert_close(full, low)
    for recipe in (bn.Kalman(drift=Inflate(0.01)), bn.LOFI(rank=3, centre="prior", drift=Inflate(0.01))):
        before = streamed(recipe, EXACT.problem, X[:20], Y[:20], 20).parts[0].family
        wider = covariance_of(recipe.drift.after(take(before, 0), 5, take(before, 0)), take(before, 0).centre)
        torch.testing.assert_close(
            wider, covariance_of(take(before, 0), take(before, 0).centre) + 0.05 * torch.eye(3).double()
        )
    flat = Diagonal({"w": torch.zeros(2)}, {"w": torch.tensor([1.0, 2.0])}, {})
    torch.testing.assert_close(Inflate(0.5).after(flat, 2, flat).scale["w"], torch.tensor([2.0, 5.0]).sqrt())


def test_a_drift_of_zero_changes_nothing():
    for drift in (Forget(1.0), Inflate(0.0)):
        for recipe in (bn.Kalman(drift=drift), bn.LOFI(rank=3, centre="prior", drift=drift)):
            close(streamed(recipe, EXACT.problem, X, Y, 7), EXACT.mean, EXACT.covariance)


def test_a_filter_that_forgets_follows_a_change():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, dtype=torch.float64, generator=generator)
    before, after = torch.tensor([1.0, -1.0, 0.5]).double(), torch.tensor([-1.0, 1.0, 0.5]).double()
    y = torch.where(torch.arange(400) < 200, x @ before, x @ after)
    y = y + 0.5 * torch.randn(400, dtype=torch.float64, generator=generator)
    static, moving = (
        moments(streamed(bn.Kalman(drift=drift), EXACT.problem, x, y, 10))[0] for drift in (None, Forget(0.97))
    )
    assert float((static - after).norm()) > 1.0 and float((moving - after).norm()) < 0.5


@pytest.mark.parametrize(
    "recipe",
    [
        bn.EKF(where="last"),
        bn.EKF(structure="diagonal"),
        bn.EKF(structure="decoupled"),
        bn.LOFI(rank=10),
        bn.RVGA(structure="diagonal", draws=2, iterations=2),
    ],
    ids=["last layer", "diagonal", "decoupled", "LOFI", "RVGA"],
)
def test_digits_are_learned_in_one_pass(recipe):
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(z) for z in load_digits(return_X_y=True))
    x = x.float() / 16
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(64, 10), nn.Tanh(), nn.Linear(10, 10)),
        bn.likelihoods.Categorical(),
        bn.priors.Normal(scale="lecun"),
    )
    posterior = bn.online(replace(recipe, batch_size=32), problem).update((x[:600], y[:600]))
    scores = bn.score(posterior, bn.Data(x[1400:], y[1400:]))
    assert scores["accuracy"] > 0.5 and scores["nll"] < 2.1  # chance: 0.1 and 2.3


def test_wine_is_learned_with_a_full_covariance():
    from sklearn.datasets import load_wine

    x, y = (torch.tensor(z) for z in load_wine(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = ((x - x.mean(0)) / x.std(0)).float()[order], y[order]
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(13, 5), nn.Tanh(), nn.Linear(5, 3)), bn.likelihoods.Categorical()
    )
    posterior = bn.online(bn.EKF(batch_size=16), problem).update((x[60:], y[60:]))
    assert bn.score(posterior, bn.Data(x[:60], y[:60]))["accuracy"] > 0.9


def test_what_is_kept_does_not_grow():
    for recipe, family in ((bn.LOFI(rank=2), LowRankPrecision), (bn.EKF(structure="decoupled"), Diagonal)):
        posterior = bn.online(recipe, bn.Problem(net, bn.likelihoods.Gaussian(noise=0.5)))
        sizes = set()
        for i in range(6):
            posterior = posterior.update((X[i::6], Y[i::6]))
            sizes.add(posterior.nbytes())
        assert len(sizes) == 1 and isinstance(posterior.parts[0].family, family)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: bn.EKF(structure="kronecker"), "expected a structure among full"),
        (lambda: bn.EKF(iterations=0), "iterations of at least 1"),
        (lambda: bn.EKF(centre="zero"), "expected centre"),
        (lambda: bn.LOFI(rank=0), "expected rank of at least 1"),
        (lambda: bn.RVGA(draws=3), "even number of draws"),
        (lambda: bn.RVGA(structure="decoupled"), "expected structure"),
        (lambda: bn.Kalman(batch_size=0), "expected a batch_size"),
        (lambda: bn.Kalman(via="exact"), "expected via"),
        (lambda: Forget(0.0), "expected a rate"),
        (lambda: Inflate(-1.0), "expected a finite variance"),
    ],
)
def test_recipes_refuse_what_means_nothing(make, says):
    with pytest.raises(ValueError, match=says):
        make()
    with pytest.raises(TypeError, match="expected drift"):
        bn.EKF(drift=0.99)
