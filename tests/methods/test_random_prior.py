"""RandomPrior: a fixed random network beside the one that learns, another for every member."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Delta
from basinet.methods.map import MAP
from basinet.methods.random_prior import PREFIX, RandomPrior
from basinet.optim import SGD, Adam, Cosine
from basinet.testing import check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
STACKED = bn.Engine(device="cpu", strategy="stacked", progress=False)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 3)).double()


def classes(n: int = 40) -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())


def delta(posterior: bn.Posterior, k: int) -> Delta:
    family = take(posterior.parts[0].family, k)
    assert isinstance(family, Delta)
    return family


def fixed(posterior: bn.Posterior, k: int) -> dict[str, torch.Tensor]:
    return {n.removeprefix(PREFIX): x for n, x in delta(posterior, k).buffers.items() if n.startswith(PREFIX)}


@pytest.mark.slow
def test_random_prior_conforms_and_is_anchored_in_a_linear_model():
    checks = check_method(RandomPrior(epochs=4, batch_size=16))
    assert any("sum of both networks" in c.name for c in checks)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
def test_beta_zero_is_map(engine):
    data = classes()
    posterior = bn.fit(RandomPrior(epochs=4, batch_size=16, beta=0.0), PROBLEM, data, members=2, engine=engine)
    same = bn.fit(MAP(epochs=4, batch_size=16), PROBLEM, data, members=2, engine=engine)
    for k in range(2):
        for name, x in (delta(same, k).params | delta(same, k).buffers).items():
            assert torch.equal((delta(posterior, k).params | delta(posterior, k).buffers)[name], x)
    assert torch.equal(posterior.predict(data.inputs).outputs, same.predict(data.inputs).outputs)


def test_the_random_network_does_not_learn_and_differs_between_members():
    data = classes()
    short, long = (bn.fit(RandomPrior(epochs=e), PROBLEM, data, members=3, engine=STACKED) for e in (1, 9))
    for k in range(3):
        for name, x in fixed(short, k).items():
            assert torch.equal(x, fixed(long, k)[name])
        assert set(fixed(long, k)) == set(net().state_dict())
        assert not torch.equal(delta(short, k).params["0.weight"], delta(long, k).params["0.weight"])
        assert not torch.equal(fixed(long, k)["0.weight"], fixed(long, (k + 1) % 3)["0.weight"])
        assert fixed(long, k)["1.num_batches_tracked"] == 0 and delta(long, k).buffers["1.num_batches_tracked"] == 9
    alone = bn.fit(RandomPrior(epochs=1), PROBLEM, data, engine=ENGINE)
    assert all(torch.equal(x, fixed(short, 0)[n]) for n, x in fixed(alone, 0).items())


def test_predictions_are_the_sum_of_two_modules():
    data = classes()
    posterior = bn.fit(RandomPrior(epochs=3, beta=2.5), PROBLEM, data, members=2, engine=STACKED)
    for k in range(2):
        learned, random = net().eval(), net().eval()
        both = delta(posterior, k).params | delta(posterior, k).buffers
        learned.load_state_dict({n: x for n, x in both.items() if not n.startswith(PREFIX)})
        random.load_state_dict(fixed(posterior, k))
        expected = (learned(data.inputs) + 2.5 * random(data.inputs)).detach()
        torch.testing.assert_close(posterior.predict(data.inputs).outputs[k, 0], expected, rtol=0, atol=1e-12)


def test_members_of_a_bootstrap_fit_their_own_examples():
    exact = conjugate()
    data = exact.data.bootstrap(3, seed=1)
    recipe = RandomPrior(epochs=600, batch_size=None, beta=2.0, optimizer=SGD(lr=0.1, momentum=0.9))
    posterior = bn.fit(recipe, exact.problem, data, members=3, engine=STACKED)
    for k in range(3):
        own, anchor = data.member(k), 2.0 * fixed(posterior, k)["weight"][0]
        precision = own.inputs.T @ own.inputs / 0.5**2 + torch.eye(3) / 1.5**2
        mode = torch.linalg.solve(precision, own.inputs.T @ own.targets / 0.5**2 + anchor / 1.5**2)
        torch.testing.assert_close(delta(posterior, k).params["weight"][0] + anchor, mode, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
def test_a_start_without_a_random_network_is_given_one(engine):
    data = classes()
    maps = bn.fit(MAP(epochs=2), PROBLEM, data, members=3, engine=engine)
    still = RandomPrior(epochs=1, batch_size=None, optimizer=SGD(lr=0.0))
    posterior = bn.fit(still, PROBLEM, data, start=maps, engine=engine)
    for k in range(3):
        assert all(torch.equal(x, delta(maps, k).params[n]) for n, x in delta(posterior, k).params.items())
        own = fixed(posterior, k)
        assert set(own) == set(net().state_dict()) and bool((own["1.weight"] == 1).all())
        assert 0.1 < float(own["0.weight"].std()) < 0.6  # 1 / sqrt(12) in the distribution of the initialisation
        assert not torch.equal(own["0.weight"], fixed(posterior, (k + 1) % 3)["0.weight"])
    again = bn.fit(still, PROBLEM, data, start=posterior, engine=engine)  # one that has it keeps it
    assert all(torch.equal(x, fixed(posterior, 1)[n]) for n, x in fixed(again, 1).items())


def test_layers_keep_their_names_for_the_prior():
    prior = bn.priors.Normal(scale={"0": 0.5, "1": 1.0, "4": 2.0}, centre={"4.bias": torch.ones(3)})
    posterior = bn.fit(RandomPrior(epochs=1), bn.Problem(net, PROBLEM.likelihood, prior), classes(), engine=ENGINE)
    assert set(posterior.mean()) == set(dict(net().named_parameters()))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_members_spread_where_there_are_no_data(seed):
    make = lambda: bn.networks.MLP(1, 1, hidden=(50,))  # noqa: E731
    problem = bn.Problem(make, bn.likelihoods.Gaussian(noise=0.05), bn.priors.Normal(scale="lecun"))
    data, away = bn.data.toys.gaps(60, seed), bn.data.toys.in_gaps(200, seed)
    near = bn.data.toys.gaps(200, seed + 10)
    common = {"epochs": 300, "batch_size": None, "optimizer": Adam(lr=Cosine(peak=0.01))}
    spread = {}
    for recipe in (MAP(**common), RandomPrior(beta=10.0, **common)):
        posterior = bn.fit(recipe, problem, data, members=10, seed=seed, engine=STACKED)
        spread[type(recipe)] = [float(posterior.predict(x.inputs).epistemic.mean().sqrt()) for x in (away, near)]
    assert spread[RandomPrior][0] > 2 * spread[MAP][0]
    assert spread[RandomPrior][0] > 8 * spread[RandomPrior][1]  # and not where they are


@pytest.mark.parametrize("beta", [-1.0, math.inf, math.nan])
def test_a_bad_factor_is_refused(beta):
    with pytest.raises(ValueError, match=f"expected a finite beta of at least 0, got {beta}"):
        RandomPrior(beta=beta)


@pytest.mark.slow
def test_ten_members_on_digits(tmp_path):
    splits = bn.datasets.load("digits")
    make = lambda: bn.networks.MLP(64, 10, hidden=(100,))  # noqa: E731
    problem = bn.Problem(make, bn.likelihoods.Categorical())
    recipe = RandomPrior(epochs=30, beta=10.0)
    posterior = bn.fit(
        recipe, problem, splits.train, val=splits.val, members=10, pool=tmp_path / "pool", engine=STACKED
    )
    predictive = posterior.predict(splits.test.inputs)
    assert float((predictive.probs.argmax(-1) == splits.test.targets).double().mean()) > 0.93
    assert -float(predictive.log_prob(splits.test.targets).mean()) < math.log(10) / 8
    plain = bn.fit(MAP(epochs=30), problem, splits.train, members=10, engine=STACKED).predict(splits.test.inputs)
    assert float(predictive.epistemic.mean()) > 1.2 * float(plain.epistemic.mean())
    posterior.save(tmp_path / "saved")
    assert torch.equal(bn.load(tmp_path / "saved", make).predict(splits.test.inputs).outputs, predictive.outputs)
    again = bn.fit(recipe, problem, splits.train, val=splits.val, members=10, pool=tmp_path / "pool", engine=STACKED)
    assert again.info["trained"] == 0 and torch.equal(ravel(again.mean()), ravel(posterior.mean()))


def test_compare_has_one_row_of_it():
    assert [(e.label, e.members) for e in RandomPrior.lineup()] == [("random prior ensemble", 10)]
