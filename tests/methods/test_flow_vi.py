"""FlowVI: around points, around any normal posterior (LA-NF), what stays as it is, what is refused, real data."""

from __future__ import annotations

import pytest
import torch
from three_classes import ENGINE, PROBLEM, data

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Diagonal, Flow, Full, LowRank, Partial
from basinet.methods.flow_vi import FlowVI
from basinet.methods.laplace import Laplace
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam
from basinet.testing import check_method
from basinet.testing.exact import conjugate

START = bn.fit(MAP(epochs=20), PROBLEM, data(), engine=ENGINE)


@pytest.mark.slow
def test_it_conforms_and_closes_the_gap_that_independence_leaves():
    checks = check_method(FlowVI(epochs=2, batch_size=16, maps=2, base=MAP(epochs=2)))
    assert sum("log evidence" in c.name for c in checks) == 2


@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_around_laplace_it_starts_from_it_and_leaves_features_alone(structure):
    laplace = bn.fit(Laplace(structure=structure, prior_precision="prior"), PROBLEM, data(), start=START, engine=ENGINE)
    still = FlowVI(epochs=1, maps=3, optimizer=SGD(lr=0.0))
    posterior = bn.fit(still, PROBLEM, data(), start=laplace, engine=ENGINE)
    family, base = take(posterior.parts[0].family, 0), take(laplace.parts[0].family, 0)
    assert isinstance(family, Partial) and isinstance(family.part, Flow)
    assert isinstance(family.part.before, Diagonal if structure == "diagonal" else Full)
    assert set(family.part.centre) == {"2.weight", "2.bias"}
    point = {n: x + 0.05 for n, x in base.mean().params.items()}
    torch.testing.assert_close(family.log_prob(point), base.log_prob(point))
    trained = bn.fit(FlowVI(epochs=30, maps=3, optimizer=Adam(lr=0.01)), PROBLEM, data(), start=laplace, engine=ENGINE)
    moved = take(trained.parts[0].family, 0)
    assert torch.equal(moved.rest.params["0.weight"], base.mean().params["0.weight"])
    assert float((moved.log_prob(point) - base.log_prob(point)).abs()) > 1e-3
    again = FlowVI(epochs=1, maps=3, base=Laplace(structure=structure, base=MAP(epochs=2)))
    assert len(bn.fit(again, PROBLEM, data(), members=2, engine=ENGINE)) == 2


def test_an_exact_posterior_has_the_evidence_for_its_elbo_and_flows_keep_it():
    exact = conjugate()
    mode = MAP(epochs=600, batch_size=None, optimizer=SGD(lr=0.1, momentum=0.9))
    laplace = Laplace(structure="full", where=None, prior_precision="prior", base=mode)
    start = bn.fit(laplace, exact.problem, exact.data, engine=ENGINE)
    recipe = FlowVI(epochs=40, batch_size=None, maps=2, draws=500, optimizer=Adam(lr=0.01))
    losses = bn.fit(recipe, exact.problem, exact.data, start=start, engine=ENGINE).info["curves"]["loss"][0]
    gaps = [exact.log_evidence + exact.data.n * x for x in losses]
    assert abs(gaps[0]) < 4.5 * (0.5 * 3 / 500) ** 0.5  # z of 4.5: the log likelihood of draws has variance below d / 2
    assert abs(sum(gaps[-20:]) / 20) < 0.1


def test_some_parameters_around_a_point_and_no_maps():
    posterior = bn.fit(FlowVI(epochs=2, maps=0, where="2.*"), PROBLEM, data(), start=START, engine=ENGINE)
    family = posterior.parts[0].family
    assert isinstance(family.part, Diagonal) and set(family.part.centre) == {"2.weight", "2.bias"}
    assert ravel(posterior.mean()).isfinite().all()


def test_more_parameters_than_memory_allows_are_refused_with_what_fits():
    problem = bn.Problem(lambda: bn.networks.MLP(500, 10, hidden=(400,)), bn.likelihoods.Categorical())
    rows = bn.Data(torch.randn(20, 500), torch.arange(20) % 10)
    start = bn.Posterior.of(problem.network.module, problem)
    recipe = FlowVI(flow="coupling", epochs=1)
    cost = bn.cost(recipe, problem, rows, start=start, engine=bn.Engine(device="cpu", progress=False))
    assert not cost.fits and cost.instead == FlowVI(flow="radial", epochs=1)
    with pytest.raises(MemoryError, match=r"10 coupling maps of 204,410 parameters takes .*flow='radial'"):
        bn.fit(recipe, problem, rows, start=start, engine=ENGINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flow": "spline"}, "expected a kind of flow among radial, planar, coupling"),
        ({"maps": -1}, "expected at least 0 maps"),
        ({"draws": 0}, "expected at least 1 draw"),
        ({"scale": 0.0}, "expected a positive, finite scale"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FlowVI(**options)


def test_a_start_that_is_not_normal_is_refused():
    mixed = bn.fit(FlowVI(epochs=1, maps=1), PROBLEM, data(), start=START, engine=ENGINE)
    with pytest.raises(ValueError, match="Flow is not Gaussian"):
        bn.fit(FlowVI(epochs=1, maps=1), PROBLEM, data(), start=mixed, engine=ENGINE)


def test_la_nf_on_digits_keeps_its_accuracy():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(20,)), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    mode = bn.fit(MAP(epochs=30), problem, splits.train, engine=engine)
    laplace = bn.fit(Laplace(structure="full"), problem, splits.train, start=mode, engine=engine)
    posterior = bn.fit(FlowVI(epochs=10, maps=5), problem, splits.train, start=laplace, engine=engine)
    assert bn.score(posterior, splits.test)["accuracy"] > 0.9


def test_a_normal_that_is_almost_without_spread_in_some_direction_is_bent_too():
    """Multiplied out in single precision its covariance is singular."""
    factor = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])
    full = Full({"a": torch.zeros(2)}, factor, {})
    [kept] = (x for n, x in FlowVI().starting(full).buffers.items() if n == "flow.factor")
    assert torch.equal(kept, factor)
    flat = LowRank({"a": torch.zeros(2)}, {"a": torch.zeros(2)}, {"a": torch.ones(1, 2)}, {})  # no spread across (1, 1)
    kept = FlowVI().starting(flat).buffers["flow.factor"]
    assert bool((kept.diagonal() > 0).all())
    torch.testing.assert_close(kept @ kept.T, torch.ones(2, 2), rtol=1e-6, atol=1e-6)


def test_a_normal_whose_covariance_is_not_finite_is_refused_by_name():
    centre = {"weight": torch.zeros(1, 2).double(), "bias": torch.zeros(1).double()}
    columns = {"weight": torch.zeros(1, 1, 2).double(), "bias": torch.full((1, 1), torch.inf).double()}
    bad = bn.families.LowRank(centre, {n: torch.ones_like(x) for n, x in centre.items()}, columns, {})
    with pytest.raises(FloatingPointError, match=r"the covariance of the normal to be bent is not finite in .*bias"):
        FlowVI().starting(bad)
