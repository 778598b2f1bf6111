"""Priors that are not normal: densities against torch and by quadrature, draws by their laws (p-values over 1e-4)."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Laplace as TorchLaplace
from torch.distributions import Normal as TorchNormal
from torch.distributions import StudentT as TorchStudentT

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.families import Delta, Diagonal, Empirical, Mixture
from basinet.pool import decode, encode
from basinet.problem.priors import FromFamily, Laplace, LogUniform, Normal, Prior, ScaleMixture, StudentT

KEY = Noise.seed(0)
PARAMS = {
    n: KEY.split(n).normal(torch.empty(s, dtype=torch.float64)) for n, s in {"a.weight": (3, 4), "b": (5,)}.items()
}
LAYERS = {"a": 0.3, "": 2.0}
SCALES = {"a.weight": 0.3, "b": 2.0}


def diagonal(shift: float = 0.0) -> Diagonal:
    scale = {n: torch.full_like(x, 0.5) for n, x in PARAMS.items()}
    return Diagonal({n: x + shift for n, x in PARAMS.items()}, scale, {})


def stacked(*families: Diagonal) -> Diagonal:
    return torch.utils._pytree.tree_map(lambda *xs: torch.stack(xs), *families)


MIXTURE = Mixture(stacked(diagonal(), diagonal(3.0)), torch.tensor([0.25, 0.75], dtype=torch.float64))
PROPER: dict[str, Prior] = {
    "normal": Normal(scale=LAYERS),
    "laplace": Laplace(scale=LAYERS),
    "student t": StudentT(df=2.5, scale=LAYERS),
    "scale mixture": ScaleMixture(pi=0.25, scale_1=1.5, scale_2=0.1),
    "diagonal": FromFamily(family=diagonal()),
    "mixture": FromFamily(family=MIXTURE),
}


def density(name: str, n: str, x: torch.Tensor) -> torch.Tensor:
    """The log density of the elements of one tensor by torch."""
    if name == "scale mixture":
        a, b = TorchNormal(0.0, 1.5).log_prob(x), TorchNormal(0.0, 0.1).log_prob(x)
        return (0.25 * a.exp() + 0.75 * b.exp()).log()
    scale = torch.tensor(SCALES[n], dtype=torch.float64)
    known = {"normal": TorchNormal(0.0, scale), "laplace": TorchLaplace(0.0, scale)}
    return (known | {"student t": TorchStudentT(2.5, 0.0, scale)})[name].log_prob(x)


@pytest.mark.parametrize("name", ["normal", "laplace", "student t", "scale mixture"])
def test_densities_are_those_of_torch(name):
    prior = PROPER[name]
    expected = sum(density(name, n, x).sum() for n, x in PARAMS.items())
    torch.testing.assert_close(prior.log_prob(PARAMS), expected)
    torch.testing.assert_close(prior.energy(PARAMS) + prior.log_normaliser(PARAMS), -expected)


@pytest.mark.parametrize("name", ["normal", "laplace", "student t", "scale mixture"])
def test_densities_integrate_to_one(name):
    def at(x):
        return math.exp(float(PROPER[name].log_prob({"b": torch.tensor([x], dtype=torch.float64)})))

    edges = (-np.inf, -1, -0.1, 0, 0.1, 1, np.inf)
    assert sum(integrate.quad(at, a, b)[0] for a, b in itertools.pairwise(edges)) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("name", PROPER)
def test_gradients_are_finite_and_densities_lift(name):
    prior = PROPER[name]
    many = {n: torch.stack([x, 100 * x, 0 * x]) for n, x in PARAMS.items()}
    gradient = lift(torch.func.grad(prior.energy))(many)
    assert all(bool(g.isfinite().all()) for g in gradient.values())
    torch.testing.assert_close(lift(prior.log_prob)(many)[0], prior.log_prob(PARAMS))


def law(name: str, n: str):
    if name == "scale mixture":
        return lambda x: 0.25 * stats.norm.cdf(x, 0, 1.5) + 0.75 * stats.norm.cdf(x, 0, 0.1)
    scale = SCALES[n]
    return {"normal": stats.norm(0, scale), "laplace": stats.laplace(0, scale), "student t": stats.t(2.5, 0, scale)}[
        name
    ].cdf


@pytest.mark.parametrize("name", ["normal", "laplace", "student t", "scale mixture"])
def test_draws_have_the_distribution_of_the_prior(name):
    prior = PROPER[name]
    draws = lift(lambda key: prior.sample(PARAMS, Noise(key)))(KEY.spread(4000).key)
    for n, x in draws.items():
        assert x.dtype == torch.float64 and x.shape == (4000, *PARAMS[n].shape)
        assert stats.kstest(x[:, 0].reshape(-1).numpy(), law(name, n)).pvalue > 1e-4
    other = torch.corrcoef(torch.stack([draws["b"][:, 0].sign(), draws["b"][:, 1].sign()]))[0, 1]
    assert abs(float(other)) * math.sqrt(4000) < 4.5
    single = prior.sample({n: x.float() for n, x in PARAMS.items()}, KEY)
    assert all(x.dtype == torch.float32 and bool(x.isfinite().all()) for x in single.values())


def test_a_cauchy_prior_is_allowed():
    assert float(StudentT(df=1.0).log_prob({"b": torch.zeros(1)})) == pytest.approx(-math.log(math.pi))


def test_scales_by_fan_are_shared():
    for make in (Normal, Laplace, StudentT):
        narrow, wide = make(scale="he"), make(scale={"a": math.sqrt(2 / 4), "b": 1.0})
        torch.testing.assert_close(narrow.log_prob(PARAMS), wide.log_prob(PARAMS))


def test_log_uniform_has_the_energy_of_its_density_and_nothing_more():
    prior = LogUniform()
    expected = sum(float(x.abs().log().sum()) for x in PARAMS.values())
    assert float(prior.energy(PARAMS)) == pytest.approx(expected)
    torch.testing.assert_close(torch.func.grad(prior.energy)(PARAMS)["b"], 1 / PARAMS["b"])
    scaled = {n: 3 * x for n, x in PARAMS.items()}  # no scale is preferred
    assert float(prior.energy(scaled)) == pytest.approx(expected + 17 * math.log(3))
    prior.check(PARAMS)
    with pytest.raises(ValueError, match="LogUniform is improper and cannot be sampled: use a proper prior such as"):
        prior.sample(PARAMS, KEY)
    for call in (prior.log_normaliser, prior.log_prob):
        with pytest.raises(ValueError, match="improper and has no normaliser"):
            call(PARAMS)


def test_a_family_is_a_prior():
    prior = FromFamily(family=MIXTURE)
    prior.check(PARAMS)
    torch.testing.assert_close(prior.log_prob(PARAMS), MIXTURE.log_prob(PARAMS))
    torch.testing.assert_close(prior.energy(PARAMS), -MIXTURE.log_prob(PARAMS))
    drawn = prior.sample(PARAMS, KEY)
    assert all(torch.equal(drawn[n], x) for n, x in MIXTURE.sample(KEY).params.items())
    single = {n: x.float() for n, x in PARAMS.items()}
    assert prior.energy(single).dtype == prior.sample(single, KEY)["b"].dtype == torch.float32


def test_a_family_as_prior_is_saved_with_its_tensors():
    tensors: dict[str, torch.Tensor] = {}
    again = decode(encode(FromFamily(family=MIXTURE), tensors), tensors)
    assert len(tensors) == 5 and torch.equal(again.energy(PARAMS), FromFamily(family=MIXTURE).energy(PARAMS))


POINTS = Delta(PARAMS, {})


@pytest.mark.parametrize(
    ("family", "error", "message"),
    [
        (POINTS, ValueError, "a prior needs a density, which this Delta does not have: Delta is made of points"),
        (Empirical({n: x.unsqueeze(0) for n, x in PARAMS.items()}, {}, 1), ValueError, "which this Empirical does not"),
        (Mixture(Delta({n: x.unsqueeze(0) for n, x in PARAMS.items()}, {}), torch.ones(1)), ValueError, "this Mixture"),
        (TorchNormal(0.0, 1.0), TypeError, "expected a family such as bn.families.Diagonal, got Normal"),
        (Normal(), TypeError, "expected a family such as bn.families.Diagonal, got Normal"),
    ],
)
def test_what_has_no_density_over_params_is_not_a_prior(family, error, message):
    with pytest.raises(error, match=re.escape(message)):
        FromFamily(family=family)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (PARAMS | {"c": torch.zeros(2)}, "does not fit the model's parameters: it has no c (2,)"),
        ({"b": PARAMS["b"]}, "it has a.weight (3, 4), which was not expected. It must cover only the network's"),
        (PARAMS | {"b": torch.zeros(4)}, "b is (5,) where (4,) was expected"),
    ],
)
def test_a_family_over_other_parameters_is_refused(params, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        FromFamily(family=diagonal()).check(params)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Laplace(scale=0.0), "expected a positive, finite prior scale, got 0.0"),
        (lambda: Laplace(scale="hee"), "unknown prior scale 'hee'. Did you mean 'he'?"),
        (lambda: StudentT(df=0.0), "expected positive, finite degrees of freedom df, got 0.0"),
        (lambda: StudentT(scale={"a": math.nan}), "expected a positive, finite prior scale, got nan"),
        (
            lambda: ScaleMixture(pi=1.0),
            "expected a probability pi between 0 and 1, got 1.0: with one scale, use Normal",
        ),
        (lambda: ScaleMixture(scale_2=0.0), "expected positive, finite prior standard deviations, got 0.0"),
        (lambda: Laplace(scale={"c": 1.0, "": 1.0}).check(PARAMS), "names a layer 'c' that the model does not have"),
        (lambda: StudentT(scale={"a": 1.0}).check(PARAMS), "gives no scale for 'b'"),
    ],
)
def test_priors_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
