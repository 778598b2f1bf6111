"""Methods that go from batch to batch by fits, against the posterior of a linear model and their own recursions."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import leaves, ravel, stack, take, unravel
from basinet.curvature.updating import covariance_of
from basinet.engine import Method, Schedule
from basinet.families import Delta, Diagonal, Eigen, Full, Kronecker
from basinet.testing.exact import conjugate

EXACT = conjugate()
X, Y = EXACT.data.inputs, EXACT.data.targets
QUIET = bn.Engine(progress=False)
ORDERS = {"forwards": torch.arange(40), "backwards": torch.arange(40).flip(0)}
FAMILIES = {"full": Full, "kronecker": Kronecker, "eigen-corrected": Kronecker, "low-rank": Eigen, "diagonal": Diagonal}


@dataclass(frozen=True, kw_only=True)
class Mode(Method):
    """The exact mode of a linear model whose prior is a family: a base that leaves no error of descent."""

    def schedule(self, n):
        return Schedule(0, None)

    def finish(self, state, samples, problem, data, val, noise):
        prior = problem.prior.family
        before = torch.linalg.inv(covariance_of(prior, state.params)) / problem.prior_temperature
        y = data.targets.reshape(-1)
        jacobian = torch.func.jacrev(lambda params: problem.outputs(params, state.buffers, data.inputs)[0].reshape(-1))
        x = ravel(jacobian(state.params), 1)
        share = problem.shares[0] / problem.likelihood.noise**2
        push = before @ ravel(prior.mean().params) + share * x.T @ y
        return Delta(unravel(torch.linalg.solve(before + share * x.T @ x, push), state.params), state.buffers)


def streamed(recipe, problem, order=ORDERS["forwards"], size=14):
    posterior = bn.online(recipe, problem)
    for part in order.split(size):
        posterior = posterior.update((X[part], Y[part]))
    return posterior


def moments(posterior):
    family = take(posterior.parts[0].family, 0)
    family = getattr(family, "part", family)
    return ravel(family.mean().params), covariance_of(family, family.mean().params)


def laplace(structure, **options):
    return bn.Laplace(structure=structure, where=None, rank=3, base=Mode(), **options)


def recursion(order, size):
    """What independent parameters end in: the mean of each batch's posterior under a diagonal prior."""
    mean, precision = torch.zeros(3, dtype=torch.float64), torch.full((3,), 1.5**-2, dtype=torch.float64)
    for part in order.split(size):
        x, y = X[part], Y[part]
        push = precision * mean + x.T @ y / 0.25
        mean = torch.linalg.solve(torch.diag(precision) + x.T @ x / 0.25, push)
        precision = precision + x.square().sum(0) / 0.25
    return mean, precision


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("structure", [s for s in FAMILIES if s != "diagonal"])
def test_laplace_is_exact_on_a_linear_model_in_any_order_and_batching(structure, order):
    for size in (40, 7) if structure == "full" else (14,):
        posterior = streamed(laplace(structure), EXACT.problem, ORDERS[order], size)
        mean, covariance = moments(posterior)
        torch.testing.assert_close(mean, EXACT.mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(covariance, EXACT.covariance, rtol=0, atol=1e-10)
        assert type(posterior.parts[0].family) is FAMILIES[structure]


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_temperatures_temper_the_data_once_and_the_prior_once(temper):
    cold = conjugate(temperature=0.3, temper=temper)
    mean, covariance = moments(streamed(laplace("full"), cold.problem))
    torch.testing.assert_close(mean, cold.mean)
    torch.testing.assert_close(covariance, cold.covariance)


def test_diagonal_laplace_keeps_the_diagonal_of_the_precision_and_its_mean_depends_on_the_order():
    ends = []
    for order in ORDERS.values():
        mean, covariance = moments(streamed(laplace("diagonal"), EXACT.problem, order))
        truth, precision = recursion(order, 14)
        torch.testing.assert_close(mean, truth)
        torch.testing.assert_close(1 / covariance.diagonal(), EXACT.precision.diagonal())
        torch.testing.assert_close(precision, EXACT.precision.diagonal())
        ends.append(mean)
    assert float((ends[0] - ends[1]).abs().max()) > 0.01


@pytest.mark.parametrize(
    "recipe",
    [
        bn.MeanField(
            epochs=200, batch_size=None, draws=150, scale=0.1, optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=0.15))
        ),
        bn.IVON(epochs=150, batch_size=None, lr=bn.optim.Cosine(peak=0.3), curvature=1.0, betas=(0.9, 0.95), draws=100),
    ],
    ids=["MeanField", "IVON"],
)
def test_variational_methods_follow_the_recursion_of_independent_parameters(recipe):
    posterior = streamed(recipe, EXACT.problem, size=20)
    mean, covariance = moments(posterior)
    truth, precision = recursion(ORDERS["forwards"], 20)
    torch.testing.assert_close(mean, truth, rtol=0, atol=0.02)  # of 1.5, the prior's scale; draws are few
    torch.testing.assert_close(covariance.diagonal() * precision, torch.ones(3).double(), rtol=0, atol=0.06)
    assert type(posterior.parts[0].family) is Diagonal


@pytest.mark.parametrize("structure", FAMILIES)
def test_a_family_as_prior_is_the_same_as_continuing(structure):
    first = streamed(laplace(structure), EXACT.problem, ORDERS["forwards"][:20])
    today = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, bn.priors.FromFamily(family=first.family))
    half = bn.Data(X[20:], Y[20:])
    point = bn.Posterior.of(nn.Linear(3, 1, bias=False, dtype=torch.float64), today)
    fitted = bn.fit(replace(laplace(structure), base=None), today, half, start=point, engine=QUIET)
    went_on = moments(first.update(half))[1]
    torch.testing.assert_close(moments(fitted)[1], went_on)


def test_the_evidence_of_batches_multiplies_to_that_of_all_data():
    first = streamed(laplace("full"), EXACT.problem, ORDERS["forwards"][:20], 20)
    start = bn.Posterior.of(nn.Linear(3, 1, bias=False, dtype=torch.float64), EXACT.problem)
    prior = bn.priors.FromFamily(family=take(bn.online(laplace("full"), EXACT.problem).parts[0].family, 0))
    each = []
    for before, rows in ((prior, slice(0, 20)), (bn.priors.FromFamily(family=first.family), slice(20, 40))):
        here = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, before)
        if before is prior:
            mode = Delta(unravel(moments(first)[0], start.mean()), {})
        else:
            mode = Delta(unravel(EXACT.mean, start.mean()), {})
        at = replace(start, parts=(replace(start.parts[0], family=stack([mode])),))
        fitted = bn.fit(replace(laplace("full"), base=None), here, bn.Data(X[rows], Y[rows]), start=at, engine=QUIET)
        each.append(fitted.info["curves"]["log_evidence"][0][0])
    assert sum(each) == pytest.approx(EXACT.log_evidence, abs=1e-9)


def net(out=3):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out))


def wine():
    from sklearn.datasets import load_wine

    x, y = (torch.tensor(z) for z in load_wine(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x = ((x - x.mean(0)) / x.std(0)).float()[order]
    return x[:, [0, 6, 9, 12]], y[order]


SHORT = bn.MAP(epochs=40, batch_size=None, optimizer=bn.optim.Adam(lr=0.05))


@pytest.mark.parametrize("structure", FAMILIES)
def test_wine_is_learned_in_three_batches(structure):
    x, y = wine()
    posterior = bn.online(
        bn.Laplace(structure=structure, where=None, base=SHORT), bn.Problem(net, bn.likelihoods.Categorical())
    )
    sizes = []
    for part in torch.arange(120).split(40):
        posterior = posterior.update((x[part], y[part]))
        sizes.append(posterior.nbytes())
    scores = bn.score(posterior, bn.Data(x[120:], y[120:]))
    assert scores["accuracy"] > 0.8 and len(set(sizes)) == 1 and posterior.info["online"]["rows"] == 120


def test_parameters_that_where_leaves_out_stay(tmp_path):
    x, y = wine()
    problem = bn.Problem(net, bn.likelihoods.Categorical())
    start = bn.fit(SHORT, problem, bn.Data(x[:60], y[:60]), engine=QUIET)
    posterior = bn.online(bn.Laplace(structure="full", base=SHORT), problem, start=start)
    assert posterior.recipe.where == "last"
    after = posterior.update((x[60:120], y[60:120]))
    for name in ("0.weight", "0.bias"):
        assert torch.equal(after.mean()[name], start.mean()[name])
    assert not torch.equal(after.mean()["2.weight"], start.mean()["2.weight"])
    after.save(tmp_path / "half")
    again = bn.load(tmp_path / "half", net).update((x[120:], y[120:]))
    straight = after.update((x[120:], y[120:]))
    assert all(torch.equal(a, b) for a, b in zip(leaves(again.parts[0].family), leaves(straight.parts[0].family)))


def normed():
    """Features that a norm layer scales and dropout thins out in training, and a last layer."""
    parts = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 1)
    return nn.Sequential(*parts).double()


def test_a_last_layer_on_a_norm_layer_is_what_kalman_makes_of_it():
    """Features are those of eval mode, as they are when it predicts: in training mode the covariance was 52 % off."""
    x = wine()[0].double()
    y = (x[:, :1] - x[:, 1:2]).tanh() + 0.1
    module = normed()
    with torch.no_grad():
        module[1].running_mean.fill_(0.3)
        module[1].running_var.fill_(2.0)
    problem = bn.Problem(normed, bn.likelihoods.Gaussian(noise=0.3), bn.priors.Normal(scale=0.8))
    start = bn.Posterior.of(module, problem)
    recipes = {"kalman": bn.Kalman(where="last"), "laplace": bn.Laplace(structure="full", base=Mode())}
    recipes["trained"] = bn.Laplace(structure="full", base=SHORT)  # which moves norm statistics where it can
    features = torch.cat([module.eval()[:3](x).detach(), torch.ones(len(x), 1)], 1)
    ends = {}
    for name, recipe in recipes.items():
        posterior = bn.online(recipe, problem, start=start)
        for part in torch.arange(len(x)).split(60):
            posterior = posterior.update((x[part], y[part]))
        ends[name] = posterior
        assert torch.equal(posterior.parts[0].family.rest.buffers["1.running_var"][0], module[1].running_var)
    precision = features.T @ features / 0.3**2 + torch.eye(7).double() / 0.8**2  # recursive least squares
    for posterior in ends.values():
        torch.testing.assert_close(moments(posterior)[1], torch.linalg.inv(precision))
    means = [ravel({n: ends[name].mean()[n] for n in ("4.weight", "4.bias")}) for name in ends]
    exact = torch.linalg.solve(precision, features.T @ y[:, 0] / 0.3**2)
    first = ravel({n: start.mean()[n] for n in ("4.weight", "4.bias")})
    around = exact + torch.linalg.solve(precision, first / 0.8**2)  # Laplace's prior lies around the start
    torch.testing.assert_close(means[0], exact)
    torch.testing.assert_close(means[1], around)


DRIFTS = [bn.filters.Forget(0.9), bn.filters.Inflate(0.01), bn.filters.Shrink(0.95, scale=1.5)]


@pytest.mark.parametrize("drift", DRIFTS, ids=lambda drift: type(drift).__name__)
def test_laplace_that_drifts_is_the_kalman_filter_that_does(drift, tmp_path):
    ends = []
    for recipe in (laplace("full"), bn.Kalman(batch_size=40)):
        posterior = bn.online(recipe, EXACT.problem, drift=drift)
        for part in torch.arange(40).split(8):
            posterior = posterior.update((X[part], Y[part]))
            posterior.save(tmp_path / "here")
            posterior = bn.load(tmp_path / "here", lambda: nn.Linear(3, 1, bias=False, dtype=torch.float64))
        ends.append(moments(posterior))
    for one, other in zip(*ends):
        torch.testing.assert_close(one, other)
    assert float((ends[0][1] - EXACT.covariance).abs().max()) > 1e-3


def test_a_drift_that_does_not_go_with_a_method_is_refused():
    forget = bn.filters.Forget(0.9)
    for recipe, drift, says in (
        (bn.IVON(), bn.filters.Change(), "use Forget, Inflate or Shrink with IVON"),
        (laplace("kronecker"), forget, "use structure='full' or 'diagonal'"),
        (bn.Kalman(drift=forget), forget, "expected one drift"),
    ):
        with pytest.raises(ValueError, match=says):
            bn.online(recipe, EXACT.problem, drift=drift)
    with pytest.raises(TypeError, match="expected drift as"):
        bn.online(bn.IVON(), EXACT.problem, drift=0.9)
    last = bn.online(
        bn.Laplace(structure="full", base=SHORT), bn.Problem(net, bn.likelihoods.Categorical()), drift=forget
    )
    x, y = wine()
    assert bn.score(last.update((x, y)).update((x, y)), bn.Data(x, y))["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: bn.online(bn.Laplace(prior_precision="marglik"), EXACT.problem), "prior that the problem has"),
        (lambda: bn.online(bn.IVON(), bn.Problem(net, bn.likelihoods.Gaussian(learned=True))), "noise that is known"),
        (
            lambda: bn.online(bn.MeanField(), bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.StudentT())),
            "with a normal prior",
        ),
    ],
)
def test_what_cannot_go_from_batch_to_batch_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_laplace_says_what_does_not_fit_a_family():
    full = streamed(laplace("full"), EXACT.problem)
    today = bn.Problem(EXACT.problem.model, EXACT.problem.likelihood, bn.priors.FromFamily(family=full.family))
    for structure in ("diagonal", "kronecker", "low-rank"):
        with pytest.raises(ValueError, match="and the prior is a Full"):
            bn.fit(replace(laplace(structure), base=None), today, EXACT.data, start=full, engine=QUIET)
    with pytest.raises(ValueError, match="whose precision is what it is"):
        bn.fit(bn.Laplace(prior_precision=2.0), today, EXACT.data, start=full, engine=QUIET)
