"""Laplace: exact where theory says so, the same for members alone and in mixtures, clear about what it cannot do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import leaves, ravel, take
from basinet.curvature.gaussians import NotPositive
from basinet.families import Delta, Diagonal, Eigen, Full, Kronecker, Partial
from basinet.methods import laplace
from basinet.methods.laplace import STRUCTURES, Laplace
from basinet.methods.map import MAP
from basinet.testing import Bench, check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", progress=False)
BENCH = Bench("Laplace")
FAST = MAP(epochs=20, batch_size=None)
KEY = bn.Noise.seed(3)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def classes(n: int = 40) -> bn.Data:
    inputs = KEY.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, KEY.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
MAPS = bn.fit(FAST, PROBLEM, classes(), members=3, engine=ENGINE)


def family(posterior: bn.Posterior, k: int = 0):
    return take(posterior.parts[0].family, k)


@pytest.mark.slow
def test_laplace_conforms_and_is_exact_for_the_conjugate_problem():
    checks = check_method(Laplace(base=MAP(epochs=400, batch_size=None)))
    assert sum("covariance" in c.name for c in checks) == 7 and sum("evidence" in c.name for c in checks) == 4


@pytest.mark.parametrize("structure", STRUCTURES)
def test_members_of_a_mixture_are_the_single_members_and_survive_saving(structure, tmp_path):
    recipe = Laplace(structure=structure, where=None, rank=3, prior_precision="prior")
    mixture = bn.fit(recipe, PROBLEM, classes(), start=MAPS, engine=ENGINE)
    assert len(mixture) == 3 and mixture.members == MAPS.members
    for k in range(3):
        alone = bn.fit(recipe, PROBLEM, classes(), start=MAPS[k], engine=ENGINE)
        for a, b in zip(leaves(family(mixture, k)), leaves(family(alone)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    predictive = mixture.predict(classes().inputs, samples=3)
    mixture.save(tmp_path / "la")
    loaded = bn.load(tmp_path / "la", net)
    assert torch.equal(loaded.predict(classes().inputs, samples=3).outputs, predictive.outputs)
    assert loaded.recipe == recipe and loaded.info["curves"]["log_evidence"] == mixture.info["curves"]["log_evidence"]


@pytest.mark.parametrize(
    ("structure", "kind"),
    [
        ("full", Full),
        ("kronecker", Kronecker),
        ("eigen-corrected", Kronecker),
        ("diagonal", Diagonal),
        ("low-rank", Eigen),
    ],
)
def test_the_posterior_is_a_family_around_the_mode(structure, kind):
    whole = bn.fit(
        Laplace(structure=structure, where=None, prior_precision="prior"),
        PROBLEM,
        classes(),
        start=MAPS[1],
        engine=ENGINE,
    )
    last = bn.fit(
        Laplace(structure=structure, prior_precision="prior"), PROBLEM, classes(), start=MAPS[1], engine=ENGINE
    )
    assert type(family(whole)) is kind and type(family(last)) is Partial and type(family(last).part) is kind
    assert type(family(last).rest) is Delta and set(family(last).part.mean().params) == {"3.weight", "3.bias"}
    mode = MAPS[1].points()[0]
    for posterior in (whole, last):
        point = posterior.points()[0]
        assert all(torch.equal(point.params[n], x) for n, x in mode.params.items())
        assert all(torch.equal(point.buffers[n], x) for n, x in mode.buffers.items())
    draws = last.sample(4)
    assert torch.equal(draws["0.weight"][0], mode.params["0.weight"].expand(4, 6, 4))
    assert float((draws["3.weight"][0] - mode.params["3.weight"]).abs().min()) > 0


def test_where_names_any_parameters():
    posterior = bn.fit(
        Laplace(where=("*.weight", "!1.*"), prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE
    )
    assert set(family(posterior).part.mean().params) == {"0.weight", "3.weight"}
    with pytest.raises(ValueError, match=r"no parameter matches 'head\.\*'.*There are 0\.weight"):
        bn.fit(Laplace(where="head.*", prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)


def test_the_default_is_full_for_small_layers_and_kronecker_for_large_ones():
    small = bn.fit(Laplace(prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)
    assert type(family(small).part) is Full
    wide = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 3)), PROBLEM.likelihood)
    large = bn.fit(Laplace(base=MAP(epochs=1), prior_precision="prior"), wide, classes(), engine=ENGINE)
    assert type(family(large).part) is Kronecker


def test_the_size_of_batches_does_not_matter():
    posteriors = [
        bn.fit(
            Laplace(where=None, structure=s, batch_size=b, prior_precision="prior"),
            PROBLEM,
            classes(),
            start=MAPS[0],
            engine=ENGINE,
        )
        for s in ("full", "diagonal", "kronecker")
        for b in (7, None)
    ]
    for one, other in zip(posteriors[::2], posteriors[1::2]):
        a, b = BENCH.covariance(one), BENCH.covariance(other)
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_twice_the_data_at_twice_the_likelihood_temperature_is_the_same(structure):
    data = classes()
    twice = bn.Data(torch.cat([data.inputs] * 2), torch.cat([data.targets] * 2))
    hot = bn.Problem(net, PROBLEM.likelihood, PROBLEM.prior, 2.0, "likelihood")
    recipe = Laplace(structure=structure, where="3.*", rank=10, prior_precision="prior")
    once = bn.fit(recipe, PROBLEM, data, start=MAPS[0], engine=ENGINE)
    again = bn.fit(recipe, hot, twice, start=MAPS[0], engine=ENGINE)
    torch.testing.assert_close(part_covariance(again), part_covariance(once), rtol=0, atol=1e-6)
    evidence = [p.info["curves"]["log_evidence"][0][0] for p in (once, again)]
    assert evidence[0] == pytest.approx(evidence[1], abs=1e-6)


def part_covariance(posterior: bn.Posterior) -> torch.Tensor:
    part = family(posterior).part
    params = part.mean().params
    total = sum(x.numel() for x in params.values())
    rows = torch.eye(total, dtype=torch.float64).split([x.numel() for x in params.values()], 1)
    return part.quad({n: r.reshape(total, *x.shape) for (n, x), r in zip(params.items(), rows)})


@pytest.mark.parametrize("structure", STRUCTURES)
def test_temperature_scales_the_covariance(structure):
    recipe = Laplace(structure=structure, prior_precision="prior")
    cold = bn.Problem(net, PROBLEM.likelihood, PROBLEM.prior, 0.25)
    one = part_covariance(bn.fit(recipe, PROBLEM, classes(), start=MAPS[0], engine=ENGINE))
    other = part_covariance(bn.fit(recipe, cold, classes(), start=MAPS[0], engine=ENGINE))
    torch.testing.assert_close(other, 0.25 * one, rtol=1e-9, atol=1e-12)


def test_the_precision_is_curvature_and_prior_by_layer():
    prior = bn.priors.Normal(scale={"3.weight": 0.5, "": 2.0})
    problem = bn.Problem(net, PROBLEM.likelihood, prior)
    posterior = bn.fit(Laplace(prior_precision="prior"), problem, classes(), start=MAPS[0], engine=ENGINE)
    plain = bn.fit(Laplace(prior_precision=1e-9), problem, classes(), start=MAPS[0], engine=ENGINE)
    difference = torch.linalg.inv(part_covariance(posterior)) - torch.linalg.inv(part_covariance(plain) + 0)
    expected = torch.diag(torch.cat([torch.full((18,), 4.0), torch.full((3,), 0.25)]).double())
    torch.testing.assert_close(difference, expected, rtol=0, atol=1e-3)


def test_a_subset_of_all_is_all_and_a_part_is_scaled():
    whole = part_covariance(bn.fit(Laplace(prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE))
    same = part_covariance(
        bn.fit(Laplace(subset=40, prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)
    )
    torch.testing.assert_close(same, whole, rtol=1e-10, atol=0)
    copies = bn.Data(classes().inputs[:1].expand(30, 4), torch.arange(30) % 3)  # any part is all: ggn has no targets
    one = part_covariance(
        bn.fit(Laplace(subset=7, prior_precision="prior"), PROBLEM, copies, start=MAPS[0], engine=ENGINE)
    )
    all_ = part_covariance(bn.fit(Laplace(prior_precision="prior"), PROBLEM, copies, start=MAPS[0], engine=ENGINE))
    torch.testing.assert_close(one, all_, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="subset of at most the 40 examples there are, got 41"):
        bn.fit(Laplace(subset=41, prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)


@pytest.mark.parametrize("structure", ["full", "kronecker", "low-rank"])
def test_marginal_likelihood_finds_the_prior_that_makes_the_evidence_largest(structure):
    exact = conjugate(prior=7.0, n=30, d=5)

    def log_evidence(scale: float) -> float:
        x, y, noise = exact.data.inputs, exact.data.targets, exact.problem.likelihood.noise
        spread = noise**2 * torch.eye(30, dtype=torch.float64) + scale**2 * x @ x.T
        normal = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), spread)
        return float(normal.log_prob(y))

    recipe = Laplace(structure=structure, prior_precision="marglik")
    posterior = BENCH.fit(recipe, exact.problem, exact.data, start=exact.mean)
    factor, evidence = posterior.info["curves"]["prior_factor"][0][0], posterior.info["curves"]["log_evidence"][0][0]
    mode = ravel(posterior.mean())
    # at a fixed mode: log Z(m) = log p(y | mode) - 1/2 [log det Lambda(m) - log det m D + m q]
    x, noise = exact.data.inputs, exact.problem.likelihood.noise

    def by_hand(m: float) -> float:
        residual = exact.data.targets - x @ mode
        fit = -0.5 * (residual / noise).square().sum() - 30 * (math.log(noise) + 0.5 * math.log(2 * math.pi))
        precision = x.T @ x / noise**2 + m / 49 * torch.eye(5, dtype=torch.float64)
        volume = torch.logdet(precision) - 5 * math.log(m / 49)
        return float(fit - 0.5 * (volume + m / 49 * mode.square().sum()))

    assert evidence == pytest.approx(by_hand(factor), abs=1e-9)
    assert by_hand(factor) > max(by_hand(1.001 * factor), by_hand(factor / 1.001))
    fixed = BENCH.fit(
        Laplace(structure=structure, prior_precision="prior"), exact.problem, exact.data, start=exact.mean
    )
    assert fixed.info["curves"]["log_evidence"][0][0] == pytest.approx(log_evidence(7.0), abs=1e-8)


@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
def test_the_evidence_of_a_tempered_posterior_is_that_of_its_likelihood_and_prior(temper):
    exact = conjugate(temperature=0.3, temper=temper)
    posterior = BENCH.fit(Laplace(prior_precision="prior"), exact.problem, exact.data, start=exact.mean)
    x, y, noise = exact.data.inputs, exact.data.targets, exact.problem.likelihood.noise
    variance = 1.5**2 * (0.3 if temper == "posterior" else 1.0)  # of the prior, to the power of 1 / T_prior
    each = -0.5 * ((y - x @ exact.mean) / noise).square() - math.log(noise) - 0.5 * math.log(2 * math.pi)
    volume = torch.logdet(exact.precision) + 3 * math.log(variance)
    expected = each.sum() / 0.3 - 0.5 * (volume + exact.mean.square().sum() / variance)
    assert posterior.info["curves"]["log_evidence"][0][0] == pytest.approx(float(expected), abs=1e-9)


def test_corrected_eigenvalues_are_other_variances_in_the_same_basis():
    plain, corrected = (
        family(
            bn.fit(Laplace(structure=s, prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)
        ).part
        for s in ("kronecker", "eigen-corrected")
    )
    assert torch.equal(plain.left["3.weight"], corrected.left["3.weight"])
    assert torch.equal(plain.variance["3.bias"], corrected.variance["3.bias"])
    assert float((plain.variance["3.weight"] / corrected.variance["3.weight"]).log().abs().max()) > 0.01


def test_layers_have_factors_of_their_own_and_more_evidence():
    options = {"structure": "kronecker", "where": None}
    one, layers, fixed = (
        bn.fit(Laplace(**options, prior_precision=p), PROBLEM, classes(), start=MAPS[0], engine=ENGINE).info["curves"]
        for p in ("marglik", "layers", "prior")
    )
    assert len(set(one["prior_factor"][0])) == 1 and len(set(layers["prior_factor"][0])) == 3
    assert layers["log_evidence"][0][0] > one["log_evidence"][0][0] > fixed["log_evidence"][0][0]
    with pytest.raises(ValueError, match="a factor per layer needs tensors whose curvatures are apart"):
        bn.fit(
            Laplace(structure="full", where=None, prior_precision="layers"),
            PROBLEM,
            classes(),
            start=MAPS[0],
            engine=ENGINE,
        )


@pytest.mark.parametrize("structure", ["full", "kronecker", "eigen-corrected", "diagonal", "low-rank"])
def test_the_empirical_fisher_goes_with_the_fourth_power_of_noise_that_is_found(structure):
    """What is reported is what a fit with the learned noise reports, and there the evidence is largest."""
    problem = bn.Problem(
        lambda: nn.Linear(2, 1).double(), bn.likelihoods.Gaussian(noise=1.0, learned=True), bn.priors.Normal()
    )
    key = bn.Noise.seed(4)
    x = key.split("x").normal(torch.empty(60, 2, dtype=torch.float64))
    y = x @ torch.tensor([[1.0], [-2.0]]).double() + 0.3 * key.split("y").normal(x[:, :1])
    data, module = bn.Data(x, y), nn.Linear(2, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
        module.bias.zero_()
    recipe = Laplace(structure=structure, curvature="fisher", rank=3, prior_precision="prior")
    start = bn.Posterior.of(module, problem)
    posterior = bn.fit(replace(recipe, noise="marglik"), problem, data, start=start)
    noise = float(family(posterior).mean().params["likelihood.log_noise"].exp())
    known = bn.Problem(problem.model, bn.likelihoods.Gaussian(noise=noise), problem.prior)
    again = bn.fit(recipe, known, data, start=bn.Posterior.of(module, known))
    assert 0.2 < noise < 0.5  # it was 1 where the Fisher was made
    evidence = [x.info["curves"]["log_evidence"][0][0] for x in (posterior, again)]
    assert evidence[0] == pytest.approx(evidence[1], rel=1e-9)
    spread = [x.predict(data.inputs[:5]).epistemic for x in (posterior, again)]
    torch.testing.assert_close(spread[0], spread[1], rtol=1e-8, atol=1e-12)
    for other in (0.97, 1.03):  # at the noise that is found the evidence is largest
        near = bn.Problem(problem.model, bn.likelihoods.Gaussian(noise=other * noise), problem.prior)
        worse = bn.fit(recipe, near, data, start=bn.Posterior.of(module, near))
        assert worse.info["curves"]["log_evidence"][0][0] < evidence[0]


def test_noise_by_marginal_likelihood_is_that_of_the_data():
    n, truth = 400, 0.3
    x = KEY.split("nx").normal(torch.empty(n, 2, dtype=torch.float64))
    y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64) + truth * KEY.split("ny").normal(x[:, 0])
    problem = bn.Problem(lambda: nn.Linear(2, 1).double(), bn.likelihoods.Gaussian(noise=1.0, learned=True))
    module = nn.Linear(2, 1).double()
    solution = torch.linalg.lstsq(torch.cat([x, torch.ones_like(x[:, :1])], 1), y.unsqueeze(1)).solution[:, 0]
    with torch.no_grad():
        module.weight.copy_(solution[None, :2])
        module.bias.copy_(solution[2:])
    start = bn.Posterior.of(module, problem)  # with noise 1, which is wrong
    recipe = Laplace(structure="full", noise="marglik", prior_precision="prior")
    posterior = bn.fit(recipe, problem, bn.Data(x, y), start=start, engine=ENGINE)
    noise = float(family(posterior).mean().params["likelihood.log_noise"].exp())
    assert noise == pytest.approx(truth, abs=4.5 * truth / math.sqrt(2 * n))
    # given the mode, the derivative of the evidence in the noise is zero: sum of squares / noise^2 = n - effective
    residual = y - x @ solution[:2] - solution[2]
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    values = torch.linalg.eigvalsh(design.T @ design) / noise**2
    effective = float((values / (values + 1)).sum())
    assert float(residual.square().sum()) / noise**2 == pytest.approx(n - effective, rel=1e-5)
    exact = torch.linalg.inv(design.T @ design / noise**2 + torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(part_covariance(posterior), exact, rtol=1e-6, atol=1e-12)
    with pytest.raises(ValueError, match=r"noise='marglik' is for Gaussian\(noise=..., learned=True\)"):
        bn.fit(Laplace(noise="marglik", prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)


def test_validation_chooses_the_factor_with_the_lowest_nll():
    recipe = Laplace(prior_precision="validation")
    chosen = []
    for val in (classes(60).take(slice(40, 60)), classes()):  # others of random labels; those it was trained on
        curves = bn.fit(recipe, PROBLEM, classes(), val=val, start=MAPS[0], engine=ENGINE).info["curves"]
        tried, nll = curves["tried_factor"][0], curves["tried_nll"][0]
        assert len(tried) >= 21 and tried[0] == pytest.approx(1e-4) and tried[-1] >= 9e3
        assert set(curves["prior_factor"][0]) == {max(m for m, x in zip(tried, nll) if x <= min(nll) + 1e-5)}
        chosen.append(curves["prior_factor"][0][0])
    assert chosen[0] < chosen[1]  # doubt pays for the first
    with pytest.raises(ValueError, match="Laplace needs val"):
        bn.fit(recipe, PROBLEM, classes(), start=MAPS[0], engine=ENGINE)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("via", ["probit", "bridge", "linear"])
def test_validation_scores_are_those_of_posteriors_with_that_precision(structure, via, monkeypatch):
    """Whether the factors are tried together or, where little may be held, one by one."""
    monkeypatch.setattr(laplace, "FACTORS", [0.1, 1.0, 30.0])
    recipe = Laplace(structure=structure, where=None, prior_precision="validation", via=via)
    val, nlls = classes(60).take(slice(40, 60)), []
    for held in (laplace.HELD, 0):
        monkeypatch.setattr(laplace, "HELD", held)
        posterior = bn.fit(recipe, PROBLEM, classes(), val=val, start=MAPS[0], engine=ENGINE)
        nlls.append(posterior.info["curves"]["tried_nll"][0])
    factors = posterior.info["curves"]["tried_factor"][0]  # those given, and some beyond an end
    assert nlls[1] == pytest.approx(nlls[0], rel=1e-6)
    if via != "linear":  # that one has draws of its own
        for factor, nll in zip(factors, nlls[0], strict=True):
            one = replace(recipe, prior_precision=factor)  # the prior's own is 1
            posterior = bn.fit(one, PROBLEM, classes(), start=MAPS[0], engine=ENGINE)
            assert nll == pytest.approx(bn.score(posterior, val)["nll"], rel=1e-5)


def test_validation_examples_without_weight_do_not_count():
    val = classes(60).take(slice(40, 60))
    weights = torch.ones(20, dtype=torch.float64)
    weights[::3] = 0
    masked, alone = bn.Data(val.inputs, val.targets, weights), val.take(weights > 0)
    recipe = Laplace(prior_precision="validation", via="probit")
    a, b = (
        bn.fit(recipe, PROBLEM, classes(), val=v, start=MAPS[0], engine=ENGINE).info["curves"]["tried_nll"][0]
        for v in (masked, alone)
    )
    assert a == pytest.approx(b, rel=1e-10)


def test_factors_without_a_posterior_or_a_finite_nll_are_not_chosen(monkeypatch):
    real, tried = laplace._posterior, []

    def broken(passes, curved, prior, factors, r=1.0):
        [m] = {*factors.values()}
        tried.append(m)
        if m < 1e-2:
            raise NotPositive("no posterior")
        return real(passes, curved, prior, factors, r)

    monkeypatch.setattr(laplace, "_posterior", broken)
    plain = Laplace._losses
    monkeypatch.setattr(Laplace, "_losses", lambda self, *a: [math.nan] if tried[-1] < 1 else plain(self, *a))
    recipe = Laplace(prior_precision="validation")
    curves = bn.fit(recipe, PROBLEM, classes(), val=classes(), start=MAPS[0], engine=ENGINE).info["curves"]
    assert min(curves["tried_factor"][0]) == pytest.approx(1.0) and len(curves["tried_nll"][0]) == 11
    monkeypatch.setattr(Laplace, "_losses", lambda self, families, *a: [math.inf] * len(families))
    with pytest.raises(FloatingPointError, match="not finite with any factor from"):
        bn.fit(recipe, PROBLEM, classes(), val=classes(), start=MAPS[0], engine=ENGINE)


def test_a_prior_that_is_not_normal_is_refused():
    problem = bn.Problem(net, PROBLEM.likelihood, bn.priors.StudentT())
    with pytest.raises(ValueError, match="curvature of a Normal prior, got StudentT"):
        bn.fit(Laplace(prior_precision="prior"), problem, classes(), start=MAPS[0], engine=ENGINE)


@pytest.mark.parametrize(
    ("recipe", "prior", "message"),
    [
        (
            Laplace(prior_precision="prior"),
            bn.priors.Laplace(scale=1.0),
            "adds the curvature of a Normal prior, got Laplace",
        ),
        (Laplace(noise="marglik", prior_precision="prior"), bn.priors.Normal(), "noise='marglik' is for Gaussian"),
        (
            Laplace(subset=41, prior_precision="prior"),
            bn.priors.Normal(),
            "subset of at most the 40 examples there are, got 41",
        ),
        (Laplace(where="head.*", prior_precision="prior"), bn.priors.Normal(), "no parameter matches"),
    ],
)
def test_what_it_cannot_do_is_refused_before_the_base_is_trained(recipe, prior, message):
    problem = bn.Problem(net, bn.likelihoods.Categorical(), prior)
    with pytest.raises(ValueError, match=message):
        bn.fit(recipe, problem, classes(), engine=ENGINE, observe=lambda event: pytest.fail("it trained"))


class Own(nn.Module):
    """A network of a parameter of its own and no layer that anyone knows."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w


def test_networks_without_a_layer_that_is_known():
    problem, data = bn.Problem(Own, bn.likelihoods.Categorical()), classes()
    start = bn.fit(FAST, problem, data, engine=ENGINE)
    with pytest.raises(ValueError, match=r"found no linear layer .*name the parameters, where=\.\.\., or use all"):
        bn.fit(Laplace(prior_precision="prior"), problem, data, start=start, engine=ENGINE)
    linear = bn.Problem(lambda: nn.Linear(4, 3, bias=False).double(), bn.likelihoods.Categorical())
    same = nn.Linear(4, 3, bias=False).double()
    same.load_state_dict({"weight": start.points()[0].params["w"].T})
    for structure in ("full", "diagonal"):
        posterior = bn.fit(
            Laplace(where="w", structure=structure, prior_precision="prior"), problem, data, start=start, engine=ENGINE
        )
        known = bn.fit(
            Laplace(structure=structure, prior_precision="prior"),
            linear,
            data,
            start=bn.Posterior.of(same, linear),
            engine=ENGINE,
        )
        a, b = (p.predict(data.inputs, via="probit").probs for p in (posterior, known))
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    small = bn.Engine(device="cpu", memory=900, progress=False)
    with pytest.raises(MemoryError, match="12 parameters"):
        bn.fit(Laplace(where=None, structure="full", prior_precision="prior"), problem, data, start=start, engine=small)


def test_data_are_needed():
    with pytest.raises(ValueError, match="Laplace needs training data"):
        bn.fit(Laplace(prior_precision="prior"), PROBLEM, start=MAPS[0], engine=ENGINE)


def test_a_head_of_imagenet_is_refused_as_full_and_runs_otherwise():
    problem = bn.Problem(lambda: nn.Linear(1280, 1000), bn.likelihoods.Categorical())
    inputs = KEY.split("big").normal(torch.empty(3, 1280))
    data, start = bn.Data(inputs, torch.tensor([1, 2, 999])), bn.Posterior.of(nn.Linear(1280, 1000), problem)
    words = (
        r"full covariance of 1,281,000 parameters \(8 matrices of 1,281,000 x 1,281,000\) takes about 1\d\d TiB, and "
        r".* may be used: structure='kronecker' takes about \d+ MiB"
    )
    with pytest.raises(MemoryError, match=words):
        bn.fit(Laplace(structure="full", prior_precision="prior"), problem, data, start=start, engine=ENGINE)
    for structure in (None, "diagonal"):
        posterior = bn.fit(
            Laplace(structure=structure, prior_precision="prior"), problem, data, start=start, engine=ENGINE
        )
        assert type(family(posterior)) is (Kronecker if structure is None else Diagonal)
        assert posterior.predict(inputs, samples=2).probs.shape == (3, 1000)


def test_a_hessian_that_is_not_positive_names_its_block():
    problem = bn.Problem(
        lambda: nn.Linear(2, 1).double(), bn.likelihoods.StudentT(scale=0.01), bn.priors.Normal(scale=90.0)
    )
    data = bn.Data(torch.ones(5, 2, dtype=torch.float64), torch.full((5,), 50.0, dtype=torch.float64))  # all outliers
    start = bn.Posterior.of(nn.Linear(2, 1).double(), problem)
    for structure in ("full", "kronecker", "diagonal"):
        recipe = Laplace(structure=structure, curvature="hessian", prior_precision="prior")
        with pytest.raises(
            ValueError, match=r"posterior precision of (weight|weight, bias|bias) is not positive definite"
        ):
            bn.fit(recipe, problem, data, start=start, engine=ENGINE)
    bn.fit(
        Laplace(structure="full", prior_precision="prior"), problem, data, start=start, engine=ENGINE
    )  # the expected one is positive


def test_the_exact_hessian_of_a_last_layer_with_classes_is_the_ggn():
    ggn = bn.fit(Laplace(prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE)
    exact = bn.fit(
        Laplace(curvature="hessian", prior_precision="prior"), PROBLEM, classes(), start=MAPS[0], engine=ENGINE
    )
    torch.testing.assert_close(part_covariance(exact), part_covariance(ggn), rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="linear last layer"):
        bn.fit(
            Laplace(curvature="hessian", where=None, prior_precision="prior"),
            PROBLEM,
            classes(),
            start=MAPS[0],
            engine=ENGINE,
        )


def test_reported_numbers_are_kept_in_a_pool(tmp_path):
    recipe = Laplace(prior_precision="marglik")
    first, again = (
        bn.fit(recipe, PROBLEM, classes(), start=MAPS, pool=tmp_path / "pool", engine=ENGINE).info for _ in range(2)
    )
    assert first["trained"] == 3 and again["trained"] == 0
    for name in ("log_evidence", "prior_factor"):
        assert first["curves"][name] == again["curves"][name] and len(first["curves"][name]) == 3


def test_adapters_beside_frozen_weights():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(4, 3).double().requires_grad_(False)
            self.down = nn.Linear(4, 2, bias=False).double()
            self.up = nn.Linear(2, 3, bias=False).double()

        def forward(self, x):
            return self.frozen(x) + self.up(self.down(x))

    problem = bn.Problem(Adapted, PROBLEM.likelihood)
    posterior = bn.fit(
        Laplace(where=None, structure="full", base=FAST, prior_precision="prior"), problem, classes(), engine=ENGINE
    )
    assert type(family(posterior)) is Full and list(family(posterior).centre) == ["down.weight", "up.weight"]
    assert "frozen.weight" in family(posterior).buffers


def test_a_stream_gives_what_data_in_memory_give():
    data = classes()
    batches = [(data.inputs[i : i + 16], data.targets[i : i + 16]) for i in range(0, 40, 16)]
    streamed = bn.fit(
        Laplace(prior_precision="prior"), PROBLEM, bn.Data.stream(batches, n=40), start=MAPS[0], engine=ENGINE
    )
    plain = bn.fit(Laplace(prior_precision="prior"), PROBLEM, data, start=MAPS[0], engine=ENGINE)
    torch.testing.assert_close(part_covariance(streamed), part_covariance(plain), rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "kron"}, "expected a structure among full, kronecker"),
        ({"curvature": "gauss"}, "expected curvature 'ggn', 'fisher' or 'hessian', got 'gauss'"),
        ({"subset": 0}, "expected subset of at least 1, got 0"),
        ({"rank": 0}, "expected rank of at least 1, got 0"),
        ({"prior_precision": -1.0}, "expected prior_precision as a positive number, marglik, layers, validation"),
        ({"prior_precision": "grid"}, "expected prior_precision as a positive number"),
        ({"via": "exact"}, "expected via as one of sample, linear, probit, bridge, got 'exact'"),
        ({"noise": "map"}, "expected noise='marglik' or None"),
        ({"noise": "marglik", "prior_precision": "validation"}, "goes with a prior precision by marginal likelihood"),
        ({"labels": 2, "curvature": "fisher"}, "labels are drawn for curvature='ggn'"),
        ({"curvature": "hessian", "structure": "low-rank"}, "low-rank' is of a curvature that is positive"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Laplace(**options)


def test_on_digits_the_last_layer_stays_as_accurate_and_all_layers_need_a_tuned_prior():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), PROBLEM.likelihood)
    mode = bn.fit(MAP(epochs=20), problem, splits.train, engine=ENGINE)
    plain = bn.score(mode, splits.test)
    for structure in ("full", "kronecker", "eigen-corrected"):
        posterior = bn.fit(
            Laplace(structure=structure, prior_precision="prior"), problem, splits.train, start=mode, engine=ENGINE
        )
        scores = bn.score(posterior, splits.test)
        assert scores["accuracy"] > plain["accuracy"] - 0.02 and scores["nll"] < plain["nll"] + 0.15
        assert scores["within"] > 0
    evidence = {}
    for structure in ("kronecker", "eigen-corrected", "diagonal"):
        recipe = Laplace(structure=structure, where=None, prior_precision="validation")
        posterior = bn.fit(recipe, problem, splits.train, val=splits.val, start=mode, engine=ENGINE)
        evidence[structure] = posterior.info["curves"]["log_evidence"][0][0]
        assert bn.score(posterior, splits.test)["nll"] < plain["nll"] + 0.02
    assert all(math.isfinite(x) for x in evidence.values())
