"""SWAG: mean, diagonal and columns are those of the iterates; its theory; what is refused; real data."""

from __future__ import annotations

import math

import pytest
import torch
from batch_norm import PROBLEM, classes

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Diagonal, LowRank
from basinet.methods.map import MAP
from basinet.methods.swa import SWA
from basinet.methods.swag import FLOOR, SWAG
from basinet.optim import SGD
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
STACKED = bn.Engine(device="cpu", strategy="stacked", progress=False)
SHORT = MAP(epochs=2, batch_size=None)
SWING = SGD(lr=0.05, momentum=0.9)
START = bn.fit(SHORT, PROBLEM, classes(), members=2, engine=ENGINE)


def family_of(posterior: bn.Posterior, k: int = 0) -> LowRank:
    family = take(posterior.parts[0].family, k)
    assert isinstance(family, (LowRank, Diagonal))
    return family


@pytest.mark.slow
def test_swag_conforms_and_has_the_stationary_distribution_that_theory_predicts():
    checks = check_method(SWAG(iterates=4, rank=3, batch_size=16, base=SHORT))
    assert sum("on a quadratic" in c.name for c in checks) == 3 and any("rank 0" in c.name for c in checks)


def iterates(count: int, every: int, k: int) -> torch.Tensor:
    points = []
    for t in range(1, count + 1):
        along = MAP(epochs=t * every, batch_size=None, optimizer=SWING)
        points.append(ravel(bn.fit(along, PROBLEM, classes(), start=START[k], engine=ENGINE).mean()))
    return torch.stack(points)  # (T, P)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
@pytest.mark.parametrize(("count", "rank", "every"), [(5, 3, 2), (4, 4, 1), (4, 2, 3)])
def test_it_is_the_normal_of_the_iterates(engine, count, rank, every):
    recipe = SWAG(iterates=count, rank=rank, every=every, batch_size=None, optimizer=SWING)
    posterior = bn.fit(recipe, PROBLEM, classes(), start=START, engine=engine)
    for k in range(2):
        visited, family = iterates(count, every, k), family_of(posterior, k)
        torch.testing.assert_close(ravel(family.centre), visited.mean(0), rtol=0, atol=1e-13)
        variance = visited.var(0, correction=0).clamp(min=FLOOR)
        torch.testing.assert_close(ravel(family.diagonal), variance / 2, rtol=1e-8, atol=1e-20)
        deviations = visited[-rank:] - visited.mean(0)
        columns = ravel(family.columns, 1)
        torch.testing.assert_close(columns, deviations / math.sqrt(2 * (rank - 1)), rtol=0, atol=1e-13)


def test_with_all_iterates_the_covariance_has_the_published_closed_form():
    count = 5
    recipe = SWAG(iterates=count, rank=count, every=2, batch_size=None, optimizer=SWING)
    family = family_of(bn.fit(recipe, PROBLEM, classes(), start=START[0], engine=ENGINE))
    visited = iterates(count, 2, 0)
    size = visited.shape[1]
    jacobian = {n: torch.zeros(size, *x.shape, dtype=torch.float64) for n, x in family.centre.items()}
    begin = 0
    for x in jacobian.values():
        width = x[0].numel()
        x.reshape(size, width)[begin : begin + width] = torch.eye(width, dtype=torch.float64)
        begin += width
    covariance = family.quad(jacobian)
    sample, biased = torch.cov(visited.T), visited.var(0, correction=0)
    off = ~torch.eye(size, dtype=torch.bool)
    torch.testing.assert_close(covariance[off], 0.5 * sample[off], rtol=1e-8, atol=1e-18)
    torch.testing.assert_close(covariance.diagonal(), 0.5 * (1 + count / (count - 1)) * biased, rtol=1e-8, atol=1e-18)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
def test_without_columns_it_has_the_variances_of_all_iterates(engine):
    data, options = classes(), {"iterates": 5, "every": 2, "batch_size": None, "optimizer": SWING}
    low = bn.fit(SWAG(rank=3, **options), PROBLEM, data, start=START, engine=engine)
    posterior = bn.fit(SWAG(rank=0, **options), PROBLEM, data, start=START, engine=engine)
    for k in range(2):
        one, other = family_of(posterior, k), family_of(low, k)
        assert type(one) is Diagonal
        torch.testing.assert_close(ravel(one.centre), ravel(other.centre), rtol=0, atol=1e-14)
        variance = 2 * ravel(other.diagonal)
        torch.testing.assert_close(ravel(one.scale).square(), variance, rtol=1e-8, atol=1e-18)
    assert posterior.predict(data.inputs, samples=4).outputs.shape[1] == 4
    assert posterior.nbytes() < low.nbytes()


def test_equal_iterates_have_no_spread():
    recipe = SWAG(iterates=4, rank=3, batch_size=10, optimizer=SGD(lr=0.0))
    family = family_of(bn.fit(recipe, PROBLEM, classes(), start=START[0], engine=ENGINE))
    torch.testing.assert_close(ravel(family.centre), ravel(START[0].mean()), rtol=0, atol=1e-15)
    assert float(ravel(family.diagonal).max()) < 1e-29 and float(ravel(family.columns).abs().max()) < 1e-15
    assert math.isfinite(float(family.log_prob(family.centre)))


def test_its_mean_is_swa():
    data = classes()
    swa = bn.fit(SWA(iterates=6, batch_size=10), PROBLEM, data, start=START, engine=ENGINE)
    swag = bn.fit(SWAG(iterates=6, rank=4, batch_size=10), PROBLEM, data, start=START, engine=ENGINE)
    torch.testing.assert_close(ravel(swag.mean()), ravel(swa.mean()), rtol=0, atol=1e-14)


def test_each_draw_has_norm_statistics_of_its_own():
    data = classes()
    recipe = SWAG(iterates=6, rank=4, batch_size=10, optimizer=SWING)
    posterior = bn.fit(recipe, PROBLEM, data, start=START, engine=STACKED)
    outputs = posterior.predict(data.inputs, samples=3).outputs
    draws = posterior.sample(3)
    for k in range(2):
        for s in range(3):
            params = {n: x[k, s] for n, x in draws.items()}
            hidden = data.inputs @ params["0.weight"].T + params["0.bias"]
            standard = (hidden - hidden.mean(0)) / (hidden.var(0) + 1e-5).sqrt()
            active = torch.tanh(standard * params["1.weight"] + params["1.bias"])
            expected = active @ params["3.weight"].T + params["3.bias"]
            torch.testing.assert_close(outputs[k, s], expected, rtol=0, atol=1e-12)


def test_a_stopped_run_resumes_with_the_iterates_it_had(tmp_path):
    recipe, data = SWAG(iterates=8, rank=6, batch_size=10), classes()
    whole = bn.fit(recipe, PROBLEM, data, start=START, engine=STACKED)

    def stop(event: bn.Event) -> None:
        if event.step >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bn.fit(recipe, PROBLEM, data, start=START, engine=STACKED, pool=tmp_path, observe=stop)
    again = bn.fit(recipe, PROBLEM, data, start=START, engine=STACKED, pool=tmp_path)
    for k in range(2):
        one, other = family_of(whole, k), family_of(again, k)
        for tree, same in ((one.centre, other.centre), (one.diagonal, other.diagonal), (one.columns, other.columns)):
            assert all(torch.equal(same[n], x) for n, x in tree.items())


def test_a_sweep_of_step_sizes_is_the_recipes_one_by_one():
    rates = [0.01, 0.1]
    recipe = SWAG(iterates=4, rank=3, batch_size=10, optimizer=SGD(lr=rates))
    swept = bn.fit(recipe, PROBLEM, classes(), start=START, engine=STACKED)
    for k, lr in enumerate(rates):
        plain = SWAG(iterates=4, rank=3, batch_size=10, optimizer=SGD(lr=lr))
        alone = bn.fit(plain, PROBLEM, classes(), start=START[k], engine=STACKED)
        assert swept[k].recipe == plain
        torch.testing.assert_close(ravel(swept[k].mean()), ravel(alone.mean()), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 30, "iterates": 25}, r"rank 30 is more than the 25 iterates .*iterates=30, or lower it, rank=25"),
        ({"rank": 2, "iterates": 1}, r"rank 2 is more than the 1 iterates .*collect more, iterates=2$"),
        ({"rank": 1}, "expected a rank of at least 2, .* got 1"),
        ({"iterates": 0}, "expected at least 1 iterate to average over, got 0"),
        ({"every": 0}, "expected at least 1 step from one iterate to the next, or None for an epoch, got 0"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SWAG(**options)


def test_multi_swag_on_digits_saves_and_beats_the_mean_of_its_members(tmp_path):
    splits = bn.datasets.load("digits")
    make = lambda: bn.networks.MLP(64, 10, hidden=(40,))  # noqa: E731
    problem = bn.Problem(make, PROBLEM.likelihood)
    recipe = SWAG(iterates=12, rank=8, base=MAP(epochs=30))
    posterior = bn.fit(recipe, problem, splits.train, members=3, engine=STACKED)
    predictive = posterior.predict(splits.test.inputs)
    assert predictive.outputs.shape[:2] == (3, 30)
    rows = bn.size_curve(predictive, splits.test.targets, [1, 3])
    assert rows[1]["nll"] < rows[0]["nll"] < math.log(10) / 6
    assert float(predictive.within.mean()) > 0 and float(predictive.between.mean()) > 0
    posterior.save(tmp_path / "saved")
    again = bn.load(tmp_path / "saved", make).predict(splits.test.inputs)
    assert torch.equal(again.outputs, predictive.outputs)


def test_compare_has_it_as_one_network_and_as_multi_swag():
    assert [(e.label, e.members) for e in SWAG.lineup()] == [("SWAG", 1), ("MultiSWAG", 10)]


def test_a_stream_gives_one_iterate_per_epoch_of_its_batches():
    data = classes()
    parts = [(data.inputs[i : i + 8], data.targets[i : i + 8]) for i in range(0, 40, 8)]
    recipe = SWAG(iterates=3, rank=2, optimizer=SWING)
    posterior = bn.fit(recipe, PROBLEM, bn.Data.stream(parts, n=40), start=START, engine=ENGINE)
    assert posterior.info["curves"]["step"][0][-1] == 15
    assert family_of(posterior).columns["0.weight"].shape == (2, 6, 4)
    assert posterior.parts[0].inputs.shape == (40, 4)
