"""PEP: the closed-form sigma, common random numbers, which tensors get noise, and what is reported."""

from __future__ import annotations

import logging
import math
import sys

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", progress=False)
QUICK = bn.MAP(epochs=4)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def noisy(n: int = 60, wrong: float = 0.3) -> bn.Data:
    """Classes of a linear rule, of which some are changed at random."""
    key = Noise.seed(3)
    x = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    y = (x @ key.split("w").normal(torch.empty(4, 3, dtype=torch.float64))).argmax(1)
    changed = key.split("changed").bernoulli(wrong, x[:, 0])
    return bn.Data(x, torch.where(changed, key.split("y").integers(n, 3), y))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale=3.0))
DATA = noisy()
TRAIN, VAL = DATA.take(slice(0, 30)), DATA.take(slice(30, 60))


@pytest.fixture(scope="module")
def trained() -> bn.Posterior:
    return bn.fit(bn.MAP(epochs=400), PROBLEM, TRAIN, members=2, engine=ENGINE)  # over-fits the labels


def posterior(recipe: bn.PEP, start: bn.Posterior, val: bn.Data = VAL) -> bn.Posterior:
    return bn.fit(recipe, PROBLEM, val=val, start=start, engine=ENGINE)


def curves(of: bn.Posterior, member: int = 0) -> dict:
    return {name: rows[member] for name, rows in of.info["curves"].items()}


@pytest.mark.slow
def test_pep_conforms_and_has_the_closed_form_sigma():
    checks = check_method(bn.PEP(base=QUICK))
    assert sum("sigma of a linear model" in c.name for c in checks) == 2


def test_the_search_is_in_info_and_its_best_is_the_posterior(trained):
    pep = posterior(bn.PEP(), trained)
    assert len(pep) == 2 and pep.members == trained.members
    for k in range(2):
        row = curves(pep, k)
        [sigma] = row["chosen"]
        assert row["sigma"] == sorted(row["sigma"]) and row["sigma"][0] == 0.0 and len(row["sigma"]) >= 10
        best = max(range(len(row["sigma"])), key=lambda i: row["ensemble"][i])
        assert row["sigma"][best] == sigma > 0
        assert row["ensemble"][best] > row["ensemble"][0] + 0.01
        family = pep.parts[0].family
        assert set(family.sigma) == {"0.weight", "2.weight"}
        assert all(float(s[k]) == sigma for s in family.sigma.values())
        assert torch.equal(family.centre["0.weight"][k], trained.parts[0].family.params["0.weight"][k])
        for ensemble, mean, each in zip(row["ensemble"], row["mean"], row["each"]):
            assert len(each) == (1 if each is row["each"][0] else 10) and math.isclose(mean, sum(each) / len(each))
            assert ensemble >= mean - 1e-12  # Jensen
    nll = -bn.score(trained[0], VAL)["nll"]
    assert math.isclose(curves(pep)["ensemble"][0], nll, rel_tol=1e-9)


def by_hand(sigma: float, point, key: Noise, draws: int) -> torch.Tensor:
    """Probabilities of the targets under each of the perturbed networks, (draws, n)."""
    probs = []
    for sign in (1, -1):
        for s in range(draws // 2):
            z = {n: sign * key.split(s).split(n).normal(x) for n, x in point.params.items() if x.dim() > 1}
            moved = point.params | {n: point.params[n] + sigma * v for n, v in z.items()}
            outputs = PROBLEM.outputs(moved, point.buffers, VAL.inputs)[0]
            probs.append(outputs.softmax(-1)[torch.arange(VAL.n), VAL.targets])
    return torch.stack(probs)


def test_every_sigma_has_the_same_draws_in_pairs(trained):
    """L(sigma) again, by hand, from one key."""
    pep = posterior(bn.PEP(draws=4, iterations=3), trained)
    key = Noise.seed(0).split("fit").split(0).split(0).split("finish").split("search").split("draw")
    row = curves(pep)
    for i in range(1, len(row["sigma"])):
        probs = by_hand(row["sigma"][i], trained.points()[0], key, 4)
        assert math.isclose(row["ensemble"][i], float(probs.mean(0).log().mean()), rel_tol=1e-9)
        assert torch.allclose(torch.tensor(row["each"][i]).double(), probs.log().mean(1))


@pytest.mark.parametrize("draws", [1, 3, 5])
def test_of_an_odd_number_of_draws_the_last_pair_counts_as_one(trained, draws):
    row = curves(posterior(bn.PEP(draws=draws, iterations=3), trained))
    key = Noise.seed(0).split("fit").split(0).split(0).split("finish").split("search").split("draw")
    mass = torch.ones(2, (draws + 1) // 2, dtype=torch.float64)
    mass[:, -1] = 0.5
    assert float(mass.sum()) == draws
    for i in range(1, len(row["sigma"])):
        probs = by_hand(row["sigma"][i], trained.points()[0], key, draws + 1)
        expected = (mass.reshape(-1, 1) / draws * probs).sum(0).log().mean()
        assert math.isclose(row["ensemble"][i], float(expected), rel_tol=1e-9)
        assert torch.allclose(torch.tensor(row["each"][i]).double(), probs.log().mean(1))


def test_a_gain_that_other_draws_do_not_have_is_none(trained, monkeypatch):
    fitted = posterior(bn.PEP(draws=2), trained)
    assert curves(fitted)["chosen"][0] > 0
    looked = []

    def lost(families, problem, val, via, samples, noise):
        looked.append((via, samples))
        return [1e9]

    monkeypatch.setattr(sys.modules["basinet.methods.pep"], "nll", lost)
    pep = posterior(bn.PEP(draws=2), trained)
    assert looked == [("sample", 25)] * 2 and curves(pep)["chosen"] == [0.0]
    assert "fresh draws do not have it: sigma is 0" in pep.info["notes"][0][0]
    torch.testing.assert_close(pep.predict(VAL.inputs).probs, trained.predict(VAL.inputs).probs)


def test_which_tensors_get_noise():
    cnn = bn.Problem(lambda: bn.networks.ResNet(8), bn.likelihoods.Categorical())
    names = bn.PEP().perturbed(cnn)
    assert set(names) == {n for n, shape in cnn.network.params.items() if len(shape) == 4}
    assert "linear.weight" not in names and "conv1.weight" in names
    normed = bn.Problem(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm((3, 6)), nn.Linear(6, 2)), bn.likelihoods.Categorical()
    )
    assert bn.PEP().perturbed(normed) == ("0.weight", "2.weight")
    assert bn.PEP(where="2.*").perturbed(normed) == ("2.weight", "2.bias")
    learned = bn.Problem(lambda: nn.Linear(3, 1), bn.likelihoods.Gaussian(noise=0.1, learned=True))
    assert bn.PEP(where="*").perturbed(learned) == ("weight", "bias")  # the noise of the likelihood is none of them


def test_names_that_match_nothing_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(bn.MAP, "schedule", lambda self, n: pytest.fail("trained"))
    with pytest.raises(ValueError, match=r"no parameter matches '0.wieght'. Did you mean '0.weight'"):
        bn.fit(bn.PEP(where="0.wieght"), PROBLEM, TRAIN, val=VAL, engine=ENGINE)
    with pytest.raises(ValueError, match="PEP needs validation data: pass val="):
        bn.fit(bn.PEP(), PROBLEM, TRAIN, engine=ENGINE)


def test_a_network_without_matrices_is_refused():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.factor

    problem = bn.Problem(Scale, bn.likelihoods.Categorical())
    with pytest.raises(
        ValueError, match="neither convolution kernels nor weight matrices among factor: say with where="
    ):
        bn.PEP().perturbed(problem)
    assert bn.PEP(where="factor").perturbed(problem) == ("factor",)


def test_without_start_it_needs_training_data_for_its_base():
    with pytest.raises(ValueError, match="MAP needs training data"):
        bn.fit(bn.PEP(), PROBLEM, val=VAL, engine=ENGINE)


def test_a_maximum_at_the_edge_widens_the_range_and_is_reported(trained, caplog):
    caplog.set_level(logging.INFO, "basinet")
    inside = curves(posterior(bn.PEP(high=3.0, iterations=20), trained[0]))["chosen"][0]
    assert "widened" not in caplog.text and "gains" in caplog.text
    row = curves(posterior(bn.PEP(high=0.02, iterations=20), trained[0]))
    assert math.isclose(row["chosen"][0], inside, rel_tol=0.02)
    assert "at an end of the range of sigma, which was widened" in caplog.text
    caplog.clear()
    row = curves(posterior(bn.PEP(low=1e-7, high=1e-6, iterations=5), trained[0]))
    assert math.isclose(row["chosen"][0], 1e-3)
    assert "at the upper end of sigma from 1e-07 to 0.001, after widening" in caplog.text


def test_no_gain_is_reported_and_leaves_the_point(caplog):
    """At the mode of the validation likelihood no noise gains."""
    caplog.set_level(logging.INFO, "basinet")
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    val = bn.Data(x, 0.1 * torch.sin(20 * x[:, 0]))
    problem = bn.Problem(lambda: nn.Linear(1, 1, bias=False).double(), bn.likelihoods.Gaussian(noise=1.0))
    module = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        module.weight.copy_((x[:, 0] @ val.targets / (x.T @ x))[0])
    start = bn.Posterior.of(module, problem)
    pep = bn.fit(bn.PEP(draws=50), problem, val=val, start=start, engine=ENGINE)
    assert pep.info["curves"]["chosen"] == [[0.0]] and pep.info["curves"]["sigma"][0][0] == 0.0
    assert "raises the validation likelihood: sigma is 0" in caplog.text
    assert torch.equal(pep.predict(x).outputs[0, 3], start.predict(x).outputs[0, 0])


def test_a_start_whose_likelihood_is_not_finite_is_an_error():
    problem = bn.Problem(lambda: nn.Linear(1, 1).double(), bn.likelihoods.Gaussian(noise=1.0))
    module = nn.Linear(1, 1).double()
    with torch.no_grad():
        module.weight.fill_(1e200)
    val = bn.Data(torch.ones(3, 1).double(), torch.zeros(3).double())
    with pytest.raises(FloatingPointError, match="at the starting point is not finite"):
        bn.fit(bn.PEP(), problem, val=val, start=bn.Posterior.of(module, problem), engine=ENGINE)


STRUCTURED = {"rank": 2, "relative": True, "accept": 0.05}


@pytest.mark.parametrize("words", [{}, {"noise": "uniform"}, STRUCTURED], ids=["plain", "uniform", "structured"])
def test_save_load_pool_slice_and_stream_agree(trained, words, tmp_path):
    recipe = bn.PEP(**words, draws=4, iterations=5)
    pep = posterior(recipe, trained)
    pep.save(tmp_path / "saved")
    loaded = bn.load(tmp_path / "saved", net)
    outputs = pep.predict(VAL.inputs).outputs
    assert outputs.shape == (2, 25, 30, 3)
    assert torch.equal(loaded.predict(VAL.inputs).outputs, outputs) and loaded.info == pep.info
    at = pep.sample(1)
    one = {n: x[0, 0] for n, x in at.items()}
    assert torch.equal(loaded[:1].log_prob(one), pep[:1].log_prob(one))
    alone = posterior(recipe, trained[1:])
    torch.testing.assert_close(alone.predict(VAL.inputs).outputs, outputs[1:])  # stacks of another size
    pooled = [bn.fit(recipe, PROBLEM, val=VAL, start=trained, pool=tmp_path / "pool", engine=ENGINE) for _ in range(2)]
    assert pooled[1].info["trained"] == 0 and pooled[1].info["curves"]["sigma"] == pep.info["curves"]["sigma"]
    batches = [(VAL.inputs[i : i + 7], VAL.targets[i : i + 7]) for i in range(0, 30, 7)]
    streamed = posterior(recipe, trained, bn.Data.stream(batches, n=30))
    for a, b in zip(curves(streamed)["ensemble"], curves(pep)["ensemble"]):
        assert math.isclose(a, b, rel_tol=1e-12)


def test_masked_examples_do_not_count(trained):
    some = VAL.take(slice(0, 20))
    weights = torch.cat([torch.ones(20), torch.zeros(10)]).double()
    masked = posterior(bn.PEP(iterations=4), trained[0], bn.Data(VAL.inputs, VAL.targets, weights))
    plain = posterior(bn.PEP(iterations=4), trained[0], some)
    assert curves(masked)["ensemble"] == pytest.approx(curves(plain)["ensemble"], rel=1e-12)


def test_a_list_is_a_sweep(trained):
    both = bn.fit(bn.PEP(noise=["gaussian", "uniform"]), PROBLEM, val=VAL, start=trained, engine=ENGINE)
    assert [m.recipe.noise for m in both] == ["gaussian", "uniform"]
    uniform = bn.fit(bn.PEP(noise="uniform"), PROBLEM, val=VAL, start=trained, engine=ENGINE)
    assert both[1].info["curves"]["ensemble"] == uniform[1].info["curves"]["ensemble"]


def test_norm_statistics_stay_as_they_were():
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()

    problem = bn.Problem(normed, bn.likelihoods.Categorical())
    start = bn.fit(QUICK, problem, TRAIN, engine=ENGINE)
    pep = bn.fit(bn.PEP(iterations=4), problem, val=VAL, start=start, engine=ENGINE)
    assert pep.parts[0].inputs is None
    for name, x in pep.parts[0].family.buffers.items():
        assert torch.equal(x, start.parts[0].family.buffers[name])


class Linear(nn.Module):
    """Two outputs, linear in two inputs that lie on a circle of radius 2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[2.0, 0.3], [0.5, 0.1]], dtype=torch.float64))

    def forward(self, x):
        return x @ self.weight.T


def circle(spread: float) -> tuple[bn.Data, torch.Tensor]:
    """Data whose residuals around the weight above have this size, and the residuals."""
    angle = torch.linspace(0, 2 * math.pi, 41, dtype=torch.float64)[:-1]
    x = 2 * torch.stack((angle.cos(), angle.sin()), 1)
    residual = spread * Noise.seed(5).normal(x)
    return bn.Data(x, Linear()(x).detach() + residual), residual


def chosen(recipe: bn.PEP, data: bn.Data, noise: float) -> tuple[torch.Tensor, bn.Posterior]:
    """The sigmas that 6 members with draws of their own choose."""
    problem = bn.Problem(Linear, bn.likelihoods.Gaussian(noise=noise))
    fitted = bn.fit(recipe, problem, val=data, members=6, start=bn.Posterior.of(Linear(), problem), engine=ENGINE)
    return torch.tensor(fitted.info["curves"]["chosen"], dtype=torch.float64)[:, 0], fitted


def near(sigmas: torch.Tensor, expected: float) -> bool:
    """z of 4.5, and within 3 %: a spread that is too large would let anything pass."""
    error = 4.5 * float(sigmas.std()) / len(sigmas) ** 0.5
    return abs(float(sigmas.mean()) - expected) < error < 0.03 * expected


EXACT = {"draws": 2000, "low": 0.03, "high": 1.0, "iterations": 12}


def test_noise_of_rank_one_has_the_closed_form_size_along_the_leading_direction():
    """The ensemble is N(Wx, s^2 + sigma^2 r^2 u u'): the best sigma^2 is (mean of (u'residual)^2 - s^2) / r^2."""
    data, residual = circle(0.8)
    u = torch.linalg.svd(Linear().weight.detach()).U[:, 0]
    expected = float((residual @ u).square().mean() - 0.5**2) ** 0.5 / 2
    sigmas, pep = chosen(bn.PEP(rank=1, **EXACT), data, 0.5)
    assert near(sigmas, expected)
    moved = pep[0].sample(50)["weight"][0] - Linear().weight.detach()  # (50, 2, 2)
    across = torch.stack((-u[1], u[0])) @ moved
    assert float(across.abs().max()) < 1e-12 and float((u @ moved).abs().max()) > 0.1
    relative, _ = chosen(bn.PEP(rank=1, relative=True, **EXACT), data, 0.5)
    torch.testing.assert_close(relative * Linear().weight.detach().square().mean().sqrt(), sigmas, rtol=0.01, atol=0)


def test_the_largest_noise_that_is_accepted_has_its_closed_form():
    """L(sigma) = -log v - m / (2 v) per example, with v = s^2 + sigma^2 r^2 and m = mean |residual|^2, of two outputs
    with noise along both: the largest sigma is where it has fallen by what is accepted."""
    data, residual = circle(0.6)
    m, base = float(residual.square().sum(1).mean()), 0.5**2

    def likelihood(sigma: float) -> float:
        v = base + 4 * sigma**2
        return -math.log(v) - m / (2 * v)

    low, high = max((likelihood(k / 1000), k / 1000) for k in range(1000))[1], 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if likelihood(middle) >= likelihood(0.0) - 0.1 else (low, middle)
    sigmas, pep = chosen(bn.PEP(accept=0.1, **EXACT), data, 0.5)
    assert near(sigmas, low)
    assert "is the largest that loses at most 0.1 in log likelihood" in pep.info["notes"][0][0]
    best, _ = chosen(bn.PEP(**EXACT), data, 0.5)
    assert float(best.max()) < float(sigmas.min())


def test_accepting_nothing_or_everything_is_reported():
    data, _ = circle(0.0)  # noise only loses
    sigmas, pep = chosen(bn.PEP(accept=0.0, draws=4), data, 0.5)
    assert not sigmas.any() and "sigma is 0, and the network stays as it was" in pep.info["notes"][0][0]
    sigmas, pep = chosen(bn.PEP(accept=1e9, draws=4, high=1.0), data, 0.5)
    assert sigmas.tolist() == pytest.approx([1000.0] * 6) and "larger ones may do so too" in pep.info["notes"][0][0]


def test_low_rank_noise_is_refused_for_vectors():
    with pytest.raises(ValueError, match=r"rank=2 is that of a matrix, and 0\.bias, 2\.bias are vectors"):
        bn.fit(bn.PEP(rank=2, where="*"), PROBLEM, TRAIN, val=VAL, engine=ENGINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"noise": "cauchy"}, "expected noise 'gaussian' or 'uniform'"),
        ({"draws": 0}, "at least 1 draw, got 0"),
        ({"low": 0.1, "high": 0.01}, "expected 0 < low < high"),
        ({"iterations": 0}, "at least 1 iteration"),
        ({"rank": 0}, "a rank of at least 1, or None, got 0"),
        ({"accept": -0.1}, "accept as a log likelihood of at least 0, or None, got -0.1"),
        ({"accept": math.nan}, "accept as a log likelihood of at least 0"),
    ],
)
def test_recipes_that_cannot_be_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        bn.PEP(**words)


def test_on_digits_the_validation_likelihood_does_not_fall():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical(), bn.priors.Normal(scale=10.0))
    base = bn.fit(bn.MAP(epochs=40), problem, splits.train, engine=ENGINE)
    pep = bn.fit(bn.PEP(), problem, val=splits.val, start=base, engine=ENGINE)
    before, after = bn.score(base, splits.val), bn.score(pep, splits.val)
    row = curves(pep)
    assert max(row["ensemble"]) >= -before["nll"] - 1e-6
    assert after["nll"] < before["nll"] + 1e-3  # of fresh draws
    assert after["accuracy"] > 0.95
    wide = bn.fit(bn.PEP(rank=8, accept=0.02), problem, val=splits.val, start=base, engine=ENGINE)
    [sigma], best = curves(wide)["chosen"], curves(pep)["chosen"][0]
    assert sigma > best and bn.score(wide, splits.val)["nll"] < before["nll"] + 0.03  # of fresh draws
    entropy = [float(p.predict(splits.test.inputs).entropy.mean()) for p in (base, wide)]
    assert entropy[1] > entropy[0]
