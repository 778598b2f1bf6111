"""A target that varies by factors: its logarithm is chosen by validation, everywhere that defaults are, and gains."""

import math
import pickle

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import basinet as bn
from basinet.cli import app
from basinet.compare.problems import default_problems
from basinet.data.datasets import Splits
from basinet.defaults import Design, candidates_for, said
from basinet.optim import Adam, Cosine
from basinet.pilot import Pilot, pilot
from basinet.problem.likelihoods import Warped
from basinet.problem.warps import Log
from basinet.sklearn import BasinetRegressor
from basinet.tables import read_table
from basinet.tables.fitted import Fitted

CPU = bn.Engine(device="cpu", progress=False)
QUICK = bn.MAP(epochs=15, batch_size=32, optimizer=Adam(lr=Cosine(peak=1e-2)))
NOISE = 0.5  # of the logarithm


def lognormal(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.exp(3 + 3 * x[:, 0] + NOISE * rng.standard_normal(n))


def true_nll(x, y):
    return np.mean(np.log(y) + 0.5 * ((np.log(y) - 3 - 3 * x[:, 0]) / NOISE) ** 2) + 0.5 * math.log(
        2 * math.pi * NOISE**2
    )


@pytest.fixture(scope="module")
def parts():
    """Training, validation and test parts, standardised, and where zero is."""
    x, y = lognormal(900)
    mean, sd = y[:300].mean(), y[:300].std()
    data = bn.Data(torch.from_numpy(x).float(), torch.from_numpy((y - mean) / sd).float().unsqueeze(-1))
    train, val, test = (data.take(slice(*ends)) for ends in ((0, 300), (300, 400), (400, 900)))
    return train, val, test, -mean / sd


def candidates(data, zero):
    return candidates_for(data.inputs, 1, "real", Design(hidden=(16,)), targets=data.targets, zero=zero)


@pytest.mark.slow
def test_the_logarithm_is_chosen_and_gains_likelihood(parts):
    train, val, test, zero = parts
    several = candidates(train, zero)
    names = [type(p.likelihood).__name__ for p in several]
    assert names == ["Heteroscedastic", "Gaussian", "Warped", "Warped", "Warped", "Warped"]
    problem, _, line = pilot(several[1::2], train, val, recipe=QUICK, engine=CPU)  # with one noise for all rows
    assert isinstance(problem.likelihood, Warped) and isinstance(problem.likelihood.warp, Log)
    assert "; its logarithm in place of the target itself, with " in line and said(problem).endswith("target's Log")
    plain = next(p for p in several if p.likelihood == problem.likelihood.of)
    nll = {}
    for name, one in (("plain", plain), ("log", problem)):
        posterior = bn.temper(bn.fit(QUICK, one, train, val=val, members=2, engine=CPU), val)
        nll[name] = bn.score(posterior, test)["nll"]
    x, y = lognormal(900)
    ideal = true_nll(x[400:], y[400:]) - math.log(y[:300].std())
    assert nll["log"] < nll["plain"] - 0.05 and ideal - 0.02 < nll["log"] < ideal + 0.15


def test_the_target_itself_stays_where_its_histogram_is_normal(parts):
    train = parts[0]
    even = bn.Data(train.inputs, train.inputs[:, :1])
    assert [type(p.likelihood).__name__ for p in candidates(even, -5.0)] == ["Heteroscedastic", "Gaussian"]
    chance = bn.Data(train.inputs, torch.exp(bn.Noise.seed(0).normal(train.targets)))  # nothing to learn from inputs
    several = candidates(chance, 0.0)
    assert (
        len(several) == 6
        and len(candidates_for(train.inputs, 1, "real", Design(likelihood=several[1].likelihood))) == 1
    )


@pytest.fixture
def warped(monkeypatch):
    """The logarithm is taken without a trial."""

    def choose(candidates, *rest, **given):
        return Pilot(next(p for p in candidates if isinstance(p.likelihood, Warped)), given["recipe"], "the logarithm")

    for module in ("basinet.sklearn.estimator", "basinet.pilot"):
        monkeypatch.setattr(f"{module}.pilot", choose)


def test_an_estimator_predicts_in_units_of_a_target_that_was_warped(warped):
    x, y = lognormal(300)
    new, truth = lognormal(200, seed=1)
    model = BasinetRegressor(QUICK, members=2).fit(x, y)
    assert isinstance(model.posterior_.problem.likelihood, Warped)
    mean, sd = model.predict(new, return_std=True)
    distribution = model.predict_dist(new)
    assert distribution.mean.numpy() == pytest.approx(mean, rel=1e-5)
    assert distribution.stddev.numpy() == pytest.approx(sd, rel=1e-4)
    low, high = model.predict_interval(new, 0.9).T
    assert low.min() > 0 and 0.82 < np.mean((low <= truth) & (truth <= high)) < 0.97  # binomial sd .02
    assert distribution.cdf(torch.tensor(low)).numpy() == pytest.approx(0.05, abs=1e-5)
    assert -distribution.log_prob(torch.tensor(truth)).mean().item() < true_nll(new, truth) + 0.15
    assert (pickle.loads(pickle.dumps(model)).predict(new) == mean).all()


def test_the_command_saves_and_loads_it(warped, tmp_path):
    x, y = lognormal(200)
    file = tmp_path / "prices.csv"
    np.savetxt(file, np.column_stack([x, y]), delimiter=",", header="a,b,price", comments="", fmt="%.6g")
    settings = ["--set", "epochs=40", "--set", "batch_size=32", "--set", "optimizer.lr.peak=0.01", "--members", "1"]
    folder = tmp_path / "run"
    result = CliRunner().invoke(app, ["fit", str(file), "--target", "price", "--out", str(folder), *settings])
    assert result.exit_code == 0, result.output
    assert "the logarithm" in result.output and "of the target's Log" in " ".join(result.output.split())
    fitted = Fitted.load(folder)
    assert isinstance(fitted.posterior.problem.likelihood, Warped)
    columns = fitted.predict(read_table(file))
    assert (columns["low"] > 0).all() and np.corrcoef(np.log(columns["mean"]), np.log(y))[0, 1] > 0.9


def test_comparisons_have_the_same_candidates(parts):
    train, val, test, zero = parts
    splits = Splits("made", train, val, test, target_mean=-zero, target_sd=1.0)
    warped = [p.likelihood.warp for p in default_problems(splits) if isinstance(p.likelihood, Warped)]
    assert [type(w) for w in warped[:2]] == [Log, Log] and warped[0].origin == pytest.approx(zero)
