"""GaussianVI: exact where the posterior is normal; priors, parts, memory, what is refused, real data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Full, LowRank, Partial
from basinet.methods.gaussian_vi import GaussianVI, Variational
from basinet.optim import Adam, Cosine
from basinet.testing import check_family, check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)


@pytest.mark.slow
def test_it_conforms_and_is_exact_for_normal_posteriors():
    checks = check_method(GaussianVI(epochs=4, batch_size=16))
    assert sum("covariance" in c.name for c in checks) == 3 and any("ELBO" in c.name for c in checks)


@pytest.mark.parametrize("structure", ["full", "low-rank"])
def test_entropy_and_variances_are_those_of_the_family(structure):
    recipe = GaussianVI(structure=structure, rank=2)
    problem = bn.Problem(lambda: nn.Linear(2, 1).double(), bn.likelihoods.Gaussian())
    point, key = problem.init(bn.Noise.seed(0)), bn.Noise.seed(1)
    start = recipe.init(point, problem, key).params
    drawn = [key.split(i).normal(x) for i, x in enumerate(torch.utils._pytree.tree_leaves(start))]
    params: Variational = torch.utils._pytree.tree_unflatten(drawn, torch.utils._pytree.tree_structure(start))
    shape = recipe._shape(params)
    family = recipe._family(shape, problem, {})
    check_family(family)
    eye = torch.eye(3, dtype=torch.float64)
    covariance = family.quad({"weight": eye[:, :2].reshape(3, 1, 2), "bias": eye[:, 2:]})
    entropy = 0.5 * torch.linalg.slogdet(2 * math.pi * math.e * covariance)[1]
    torch.testing.assert_close(recipe._entropy(shape), entropy)
    torch.testing.assert_close(ravel(recipe._variances(shape, problem)), covariance.diagonal())


def test_columns_that_have_no_cholesky_factor_make_the_loss_nan_and_are_named():
    """An error of the factor would end all members of a stack, and say nothing of the parameter."""
    recipe = GaussianVI(rank=2)
    problem = bn.Problem(lambda: nn.Linear(2, 1).double(), bn.likelihoods.Gaussian())
    state = recipe.init(problem.init(bn.Noise.seed(0)), problem, bn.Noise.seed(1))
    rest = state.params.rest | {"bias": torch.full_like(state.params.rest["bias"], math.nan)}
    bad = state._replace(params=state.params._replace(rest=rest))
    assert recipe._entropy(recipe._shape(bad.params)).isnan()
    assert recipe.fault(bad, problem) == "the divergence from the prior is not finite in bias"
    assert recipe.fault(state, problem) == ""


def test_some_parameters_are_normal_and_the_rest_points():
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(),
        bn.likelihoods.Gaussian(noise=0.5, learned=True),
    )
    recipe = GaussianVI(epochs=3, where="2.*", structure="full")
    family = bn.fit(recipe, problem, conjugate().data, members=2, engine=ENGINE).parts[0].family
    assert isinstance(family, Partial) and isinstance(family.part, Full)
    assert set(family.part.centre) == {"2.weight", "2.bias"} and family.part.factor.shape == (2, 5, 5)


def test_a_prior_without_a_closed_form_is_taken_at_the_draws():
    exact = conjugate()
    wide = bn.Problem(exact.problem.network, exact.problem.likelihood, bn.priors.StudentT(df=50.0, scale=1.5))
    recipe = GaussianVI(epochs=150, structure="full", batch_size=None, draws=50, optimizer=Adam(lr=Cosine(peak=0.1)))
    family = take(bn.fit(recipe, wide, exact.data, engine=ENGINE).parts[0].family, 0)
    torch.testing.assert_close(ravel(family.centre), exact.mean, rtol=0, atol=0.1)


def test_what_does_not_fit_is_refused_with_what_does():
    problem = bn.Problem(lambda: bn.networks.MLP(2000, 10, hidden=(400,)), bn.likelihoods.Categorical())
    data = bn.Data(torch.randn(20, 2000), torch.arange(20) % 10)
    recipe = GaussianVI(structure="full", epochs=1)
    cost = bn.cost(recipe, problem, data, engine=bn.Engine(device="cpu", progress=False))
    assert not cost.fits and cost.instead == GaussianVI(structure="low-rank", epochs=1)
    with pytest.raises(MemoryError, match=r"a full covariance of 804,410 parameters takes .*structure='low-rank'"):
        bn.fit(recipe, problem, data, engine=ENGINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "kronecker"}, "expected a structure among full, low-rank"),
        ({"rank": 0}, "expected a rank of at least 1"),
        ({"scale": -1.0}, "expected a positive, finite scale"),
        ({"draws": 0}, "expected at least 1 draw"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GaussianVI(**options)


def test_on_diabetes_it_beats_the_mean_of_the_targets():
    splits = bn.datasets.load("diabetes")
    problem = bn.Problem(lambda: bn.networks.MLP(10, 1, hidden=(20,)), bn.likelihoods.Gaussian(noise=0.7, learned=True))
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    posterior = bn.fit(GaussianVI(epochs=150, rank=3), problem, splits.train, engine=engine)
    assert isinstance(posterior.parts[0].family.part, LowRank)
    assert bn.score(posterior, splits.test)["rmse"] < 0.9
