"""MeanField: its fixed point, what does not change it, priors without a closed form, estimators, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.lift import lift
from basinet.core.tree import Params, ravel, take
from basinet.families import Diagonal, Partial
from basinet.methods.mean_field import MeanField
from basinet.optim import SGD, Adam, Cosine
from basinet.testing import check_method
from basinet.testing.exact import conjugate
from basinet.variational import prior as priors

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
FAST = {"batch_size": None, "draws": 32, "scale": 0.1, "optimizer": Adam(lr=Cosine(peak=0.1))}


def family_of(posterior: bn.Posterior, k: int = 0) -> Diagonal:
    return take(posterior.parts[0].family, k)


@pytest.mark.slow
def test_it_conforms_and_its_fixed_point_is_known():
    checks = check_method(MeanField(epochs=4, batch_size=16))
    assert sum("variances" in c.name for c in checks) == 2 and sum("ELBO" in c.name for c in checks) == 2


@pytest.mark.slow
def test_weights_and_draws_conform_and_twice_the_data_at_twice_the_temperature_is_the_same_run():
    checks = check_method(MeanField(epochs=4, batch_size=16, estimator="weights", draws=2, warm_up=0.5))
    assert any("likelihood temperature 2" in c.name for c in checks)


def test_variances_are_below_those_of_the_posterior_where_parameters_are_correlated():
    exact = conjugate(correlation=0.8)
    family = family_of(bn.fit(MeanField(epochs=150, **FAST), exact.problem, exact.data, engine=ENGINE))
    assert bool((ravel(family.scale).square() < 0.8 * exact.covariance.diagonal()).all())


def test_batches_have_the_fixed_point_of_all_data():
    exact = conjugate(correlation=0.0)
    recipe = MeanField(epochs=40, **(FAST | {"batch_size": 10}))
    family = family_of(bn.fit(recipe, exact.problem, exact.data, engine=ENGINE))
    torch.testing.assert_close(ravel(family.centre), exact.mean, rtol=0, atol=0.03)
    ratio = ravel(family.scale).square() * exact.precision.diagonal()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=0.1)


def test_the_elbo_never_exceeds_the_evidence_on_average():
    exact = conjugate()
    posterior = bn.fit(MeanField(epochs=150, **FAST), exact.problem, exact.data, engine=ENGINE)
    bound = [-exact.data.n * x for x in posterior.info["curves"]["loss"][0]]
    assert max(bound) < exact.log_evidence  # the gap at the optimum is 0.6 nats, noise of a report's mean below 0.2
    assert bound[-1] > exact.log_evidence - 2


def linear(bias: bool = True) -> bn.Problem:
    return bn.Problem(lambda: nn.Linear(3, 2, bias=bias).double(), bn.likelihoods.Gaussian(noise=0.5))


@pytest.mark.parametrize(
    "prior",
    [
        bn.priors.Normal(scale=0.7, centre={"weight": torch.full((2, 3), 0.3, dtype=torch.float64)}),
        bn.priors.Laplace(scale=0.5),
        bn.priors.StudentT(df=4.0, scale=0.8),
        bn.priors.ScaleMixture(pi=0.3, scale_1=1.0, scale_2=0.1),
        bn.priors.FromFamily(
            family=Diagonal(
                {"weight": torch.zeros(2, 3).double(), "bias": torch.ones(2).double()},
                {"weight": torch.full((2, 3), 0.5).double(), "bias": torch.full((2,), 2.0).double()},
                {},
            )
        ),
    ],
)
def test_the_expected_energy_is_that_of_draws(prior):
    key = bn.Noise.seed(1)
    centre: Params = key.normal_params({"weight": torch.empty(2, 3).double(), "bias": torch.empty(2).double()})
    scale = {n: torch.full_like(x, 0.3) for n, x in centre.items()}

    def drawn(number: torch.Tensor) -> torch.Tensor:
        z = key.split("draw").split(number).normal_params(centre)
        return -prior.log_prob({n: centre[n] + scale[n] * z[n] for n in centre})

    def expected(number: torch.Tensor) -> torch.Tensor:
        return priors.expected_energy(prior, centre, scale, key.split("own").split(number))

    energies, each = lift(drawn)(torch.arange(3000)), lift(expected)(torch.arange(3000)) * torch.ones(3000)
    error = math.hypot(float(energies.std()), float(each.std())) / math.sqrt(3000)
    assert abs(float(each.mean() - energies.mean())) < 4.5 * error  # z of 4.5
    closed = isinstance(prior, (bn.priors.Normal, bn.priors.FromFamily))
    assert (float(each.std()) < 1e-9) == closed


@pytest.mark.parametrize("tuned", ["elbo", "layers"])
def test_factors_of_the_prior_are_where_the_elbo_is_highest(tuned):
    prior = bn.priors.Normal(scale={"weight": 0.5, "bias": 2.0})
    centre = bn.Noise.seed(2).normal_params({"weight": torch.empty(2, 3).double(), "bias": torch.empty(2).double()})
    scale = {n: torch.full_like(x, 0.2) for n, x in centre.items()}
    factors = priors.factors(prior, centre, scale, tuned)
    best = priors.tuned_energy(prior, centre, scale, tuned)

    def energy(change: float) -> torch.Tensor:
        sds = {n: 1 / math.sqrt(factors[n] * change) * prior.scales(centre)[n] for n in centre}
        return priors.expected_energy(bn.priors.Normal(scale=sds), centre, scale, bn.Noise.seed(0))

    torch.testing.assert_close(energy(1.0), best, rtol=1e-12, atol=0)
    assert float(energy(1.05)) > float(best) < float(energy(0.95))
    assert (factors["weight"] == factors["bias"]) == (tuned == "elbo")


def test_a_learned_prior_is_reported_and_matches_the_size_of_the_weights():
    exact = conjugate(prior=1.5)
    wide = bn.Problem(exact.problem.network, exact.problem.likelihood, bn.priors.Normal(scale=100.0))
    recipe = MeanField(epochs=100, prior_precision="layers", **FAST)
    posterior = bn.fit(recipe, wide, exact.data, engine=ENGINE)
    family = family_of(posterior)
    size = (ravel(family.centre).square() + ravel(family.scale).square()).mean()
    assert posterior.info["curves"]["prior_factor"][0] == pytest.approx([100.0**2 / float(size)], rel=1e-6)
    assert posterior.info["curves"]["prior_factor_names"][0] == ["weight"]


class Odd(nn.Module):
    """Layers that see an example once, twice, as a sequence, and share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)
        self.rows, self.image = nn.Linear(2, 3), nn.Conv1d(2, 2, 1)
        self.head = nn.Linear(4 + 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(torch.tanh(self.plain(x))))))
        rows = self.rows(self.image(x.reshape(-1, 2, 2)))
        return self.head(torch.cat((h, rows.flatten(1)), 1))


def odd_data(n: int = 12) -> bn.Data:
    key = bn.Noise.seed(5)
    return bn.Data(key.normal(torch.empty(n, 4, dtype=torch.float64)), key.split("y").integers(n, 3))


@pytest.mark.parametrize(
    ("estimator", "kinds"),
    [
        ("auto", {"plain": "local", "twice": "weights", "rows": "weights", "image": "weights", "head": "local"}),
        ("local", {"plain": "local", "twice": "weights", "rows": "weights", "image": "weights", "head": "local"}),
        ("flipout", {"plain": "flipout", "twice": "weights", "rows": "flipout", "image": "flipout", "head": "flipout"}),
        ("weights", {}),
    ],
)
def test_each_layer_has_the_noise_that_is_exact_for_it(estimator, kinds):
    problem = bn.Problem(lambda: Odd().double(), bn.likelihoods.Categorical())
    recipe = MeanField(epochs=1, estimator=estimator)
    context = recipe.context(recipe.adapt(problem), odd_data())
    assert {n: kind for kind, names in context.items() for n in names} == kinds
    posterior = bn.fit(recipe, problem, odd_data(), members=2, engine=ENGINE)
    assert all(math.isfinite(x) for x in posterior.info["curves"]["loss"][0])
    assert bool(posterior.info.get("notes")) == bool(kinds)


@pytest.mark.parametrize("estimator", ["weights", "local", "flipout"])
def test_every_estimator_has_the_same_expected_loss_and_gradient(estimator):
    """The potential of a batch and its slope in centre and log scale, over 1,200 draws each."""
    data = odd_data()
    problem = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double(),
                         bn.likelihoods.Categorical())  # fmt: skip

    def slopes(kind: str, repeats: int, first: int) -> torch.Tensor:
        ends = []
        recipe = MeanField(epochs=1, batch_size=None, estimator=kind, scale=0.4, optimizer=SGD(lr=1.0), draws=repeats)
        start = bn.Posterior.of(problem.network.module, problem)
        for seed in range(first, first + 6):
            posterior = bn.fit(recipe, problem, data, start=start, seed=seed, engine=ENGINE)
            family = family_of(posterior)
            ends.append(torch.cat((ravel(family.centre), ravel(family.scale).log())))
        return torch.stack(ends)

    a, b = slopes(estimator, 200, 0), slopes("weights", 200, 100)
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    z = (a.mean(0) - b.mean(0)) / error
    assert float(z.abs().max()) < 8  # t of 10 degrees of freedom, 54 of them: about 4.5 sigma


def test_some_parameters_are_random_and_the_noise_is_learned_as_a_point():
    exact = conjugate()
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
        bn.likelihoods.Gaussian(noise=0.5, learned=True),
    )
    posterior = bn.fit(MeanField(epochs=3, where="2.*"), problem, exact.data, members=2, engine=ENGINE)
    family = posterior.parts[0].family
    assert isinstance(family, Partial) and set(family.part.mean().params) == {"2.weight", "2.bias"}
    draws = posterior.sample(2)
    assert torch.equal(draws["0.weight"][:, 0], draws["0.weight"][:, 1])
    assert "likelihood.log_noise" in draws and not torch.equal(draws["2.weight"][:, 0], draws["2.weight"][:, 1])


def test_a_trained_network_is_where_it_starts_and_members_export_as_plain_modules():
    module = nn.Linear(3, 2).double()
    problem = bn.Problem(lambda: nn.Linear(3, 2).double(), bn.likelihoods.Gaussian())
    data = bn.Data(torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64))
    still = MeanField(epochs=1, optimizer=SGD(lr=0.0), scale=0.3)
    posterior = bn.fit(still, problem, data, start=bn.Posterior.of(module, problem), engine=ENGINE)
    torch.testing.assert_close(posterior.mean()["weight"], module.weight.detach())
    torch.testing.assert_close(family_of(posterior).scale["weight"], torch.full((2, 3), 0.3, dtype=torch.float64))
    exported = posterior.module()
    assert type(exported) is nn.Linear and torch.equal(exported.weight, module.weight)


def test_warm_up_ends_at_the_whole_divergence():
    recipe = MeanField(warm_up=0.5, epochs=8, batch_size=None)
    weights = [float(recipe._warmth(torch.tensor(t), 40)) for t in range(8)]
    assert weights == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_divergence_that_is_not_finite_names_the_parameter(capsys):
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), bn.likelihoods.Gaussian(),
        bn.priors.Normal(scale={"0": 1.0, "1": 1e-30}),
    )  # fmt: skip
    data = bn.Data(torch.randn(8, 3), torch.randn(8, 1))
    with pytest.raises(FloatingPointError, match="every member"):
        bn.fit(MeanField(epochs=1), problem, data, engine=bn.Engine(device="cpu", strategy="loop", progress=True))
    assert "the divergence from the prior is not finite in 1.weight, 1.bias" in capsys.readouterr().err


@pytest.mark.parametrize(
    "recipe",
    [
        MeanField(epochs=1),
        bn.GaussianVI(epochs=1),
        bn.GaussianVI(epochs=1, structure="full"),
        bn.VBLL(epochs=1),
        bn.IVON(epochs=2),
        bn.FlowVI(epochs=1, base=bn.MAP(epochs=0)),
        bn.FlowVI(epochs=1, base=bn.MAP(epochs=0), maps=0),
    ],
    ids=lambda recipe: str(recipe)[:24],
)
@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_the_error_names_the_parameter_whose_divergence_is_not_finite(recipe, strategy):
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), bn.likelihoods.Gaussian(),
        bn.priors.Normal(scale={"0": 1.0, "1": 1e-30}),
    )  # fmt: skip
    data = bn.Data(torch.randn(8, 3), torch.randn(8, 1))
    with pytest.raises(FloatingPointError, match=r"every member \(2\) .*is not finite in .*1\.weight.*: lower the"):
        bn.fit(recipe, problem, data, members=2, engine=bn.Engine(device="cpu", strategy=strategy, progress=False))


def test_points_have_no_factor_of_their_own():
    problem = bn.Problem(lambda: nn.Linear(3, 1), bn.likelihoods.Gaussian(), bn.priors.Normal(scale=2.0))

    class Zero(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            nn.init.zeros_(self.bias)

    problem = bn.Problem(Zero, bn.likelihoods.Gaussian(), bn.priors.Normal(scale=2.0))
    data = bn.Data(torch.randn(8, 3), torch.randn(8, 1))
    posterior = bn.fit(MeanField(epochs=3, where="weight", prior_precision="layers"), problem, data, engine=ENGINE)
    curves = posterior.info["curves"]
    assert dict(zip(curves["prior_factor_names"][0], curves["prior_factor"][0]))["bias"] == 1.0
    assert all(math.isfinite(x) for x in curves["loss"][0])


def test_the_energy_under_a_family_of_one_scale_for_a_tensor_is_that_of_its_elements():
    centre = {"weight": torch.zeros(2, 3).double()}
    narrow = bn.families.Diagonal(centre, {"weight": torch.tensor(0.3).double()}, {})
    wide = bn.families.Diagonal(centre, {"weight": torch.full((2, 3), 0.3).double()}, {})
    scale = {"weight": torch.full((2, 3), 0.2).double()}
    one, each = (
        priors.expected_energy(bn.priors.FromFamily(family=f), centre, scale, bn.Noise.seed(0)) for f in (narrow, wide)
    )
    torch.testing.assert_close(one, each)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "expected a positive, finite scale"),
        ({"pace": 0.0}, "expected a positive, finite pace"),
        ({"draws": 0}, "expected at least 1 draw"),
        ({"estimator": "reparam"}, "expected an estimator among auto, weights, local, flipout"),
        ({"warm_up": 1.0}, "expected warm_up as a part of the steps"),
        ({"prior_precision": "marglik"}, "expected prior_precision 'elbo', 'layers' or None"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MeanField(**options)


@pytest.mark.parametrize(
    ("recipe", "prior", "message"),
    [
        (MeanField(), bn.priors.LogUniform(), "no finite density at zero"),
        (MeanField(prior_precision="elbo"), bn.priors.Laplace(), "multiplies the precision of a Normal prior"),
        (MeanField(where="head.*"), bn.priors.Normal(), "no parameter matches 'head"),
    ],
)
def test_priors_and_names_that_do_not_fit_are_refused_before_training(recipe, prior, message):
    problem = bn.Problem(lambda: nn.Linear(3, 2), bn.likelihoods.Gaussian(), prior)
    data = bn.Data(torch.randn(8, 3), torch.randn(8, 2))
    with pytest.raises(ValueError, match=message):
        bn.fit(recipe, problem, data, engine=ENGINE)


def test_on_digits_it_knows_what_it_does_not_know():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), bn.likelihoods.Categorical())
    recipe = MeanField(epochs=40, pace=1.0, prior_precision="layers", optimizer=Adam(lr=Cosine(peak=0.03)))
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    posterior = bn.fit(recipe, problem, splits.train, engine=engine)
    predictive = posterior.predict(splits.test.inputs)
    accuracy = float((predictive.probs.argmax(-1) == splits.test.targets).double().mean())
    assert accuracy > 0.9
    away = posterior.predict(torch.flip(splits.test.inputs, (1,)))
    assert float(away.epistemic.mean()) > 1.5 * float(predictive.epistemic.mean())
