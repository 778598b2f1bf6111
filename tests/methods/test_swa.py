"""SWA: the mean of what descent visits after its base, with norm statistics of its own."""

from __future__ import annotations

import math

import pytest
import torch
from batch_norm import PROBLEM, classes, net

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.methods.map import MAP
from basinet.methods.swa import SWA
from basinet.optim import SGD, Cosine, Cyclic
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
STACKED = bn.Engine(device="cpu", strategy="stacked", progress=False)
SHORT = MAP(epochs=2, batch_size=None)


@pytest.mark.slow
def test_swa_conforms_and_averages_as_its_theory_says():
    checks = check_method(SWA(iterates=3, batch_size=16, base=SHORT))
    assert any("mean along gradient descent" in c.name for c in checks)
    assert any("variance over members" in c.name for c in checks)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
@pytest.mark.parametrize(("iterates", "every"), [(4, 3), (5, 1)])
def test_the_mean_is_that_of_iterates_at_regular_steps(engine, iterates, every):
    data, sgd = classes(), SGD(lr=0.05, momentum=0.9)
    start = bn.fit(SHORT, PROBLEM, data, members=2, engine=engine)
    visited = []
    for t in range(1, iterates + 1):
        along = MAP(epochs=t * every, batch_size=None, optimizer=sgd)
        visited.append(bn.fit(along, PROBLEM, data, start=start, engine=engine).points())
    recipe = SWA(iterates=iterates, every=every, batch_size=None, optimizer=sgd)
    posterior = bn.fit(recipe, PROBLEM, data, start=start, engine=engine)
    for k, point in enumerate(posterior.points()):
        expected = torch.stack([ravel(v[k].params) for v in visited]).mean(0)
        torch.testing.assert_close(ravel(point.params), expected, rtol=0, atol=1e-13)


def test_one_iterate_per_epoch_by_default():
    assert SWA(iterates=3, batch_size=16).schedule(40).steps == 9
    assert SWA(iterates=3, batch_size=16, every=5).schedule(40).steps == 15


def test_the_end_of_each_cycle_is_averaged():
    data, start = classes(), bn.fit(SHORT, PROBLEM, classes(), engine=ENGINE)
    recipe = SWA(iterates=3, every=4, batch_size=None, optimizer=SGD(lr=Cyclic(peak=0.2, cycles=3)))
    posterior = bn.fit(recipe, PROBLEM, data, start=start, engine=ENGINE)
    at, visited = start, []
    for _ in range(3):
        cycle = MAP(epochs=4, batch_size=None, optimizer=SGD(lr=Cosine(peak=0.2)))
        at = bn.fit(cycle, PROBLEM, data, start=at, engine=ENGINE)
        visited.append(ravel(at.mean()))
    torch.testing.assert_close(ravel(posterior.mean()), torch.stack(visited).mean(0), rtol=0, atol=1e-13)


def test_its_base_is_what_it_starts_from_and_keeps_its_place_in_a_pool(tmp_path):
    data, recipe = classes(), SWA(iterates=2, base=SHORT)
    posterior = bn.fit(recipe, PROBLEM, data, members=2, engine=ENGINE, pool=tmp_path)
    start = bn.fit(
        SHORT, PROBLEM, data, members=2, engine=ENGINE, pool=tmp_path, observe=lambda event: pytest.fail("trained")
    )
    same = bn.fit(SWA(iterates=2), PROBLEM, data, start=start, engine=ENGINE)
    assert all(torch.equal(a, b) for a, b in zip(posterior.mean().values(), same.mean().values()))
    still = bn.fit(SWA(iterates=2, optimizer=SGD(lr=0.0)), PROBLEM, data, start=start, engine=ENGINE)
    torch.testing.assert_close(ravel(still.mean()), ravel(start.mean()), rtol=0, atol=1e-15)


def test_norm_statistics_are_those_of_the_mean():
    data = classes()
    posterior = bn.fit(SWA(iterates=4, batch_size=10, base=SHORT), PROBLEM, data, engine=ENGINE)
    module, point = net(), take(posterior.parts[0].family, 0).mean()
    module.load_state_dict(point.params | point.buffers)
    hidden = module[0](data.inputs)
    standard = (hidden - hidden.mean(0)) / (hidden.var(0) + module[1].eps).sqrt()
    expected = module[3](torch.tanh(standard * module[1].weight + module[1].bias))
    torch.testing.assert_close(posterior.predict(data.inputs).outputs[0, 0], expected.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(module.eval()(data.inputs), expected, rtol=0, atol=1e-12)


def test_one_mean_on_digits_is_as_good_as_its_base():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), PROBLEM.likelihood)
    base = bn.fit(MAP(epochs=30), problem, splits.train, engine=ENGINE)
    posterior = bn.fit(SWA(iterates=10), problem, splits.train, start=base, engine=ENGINE)
    before, after = (bn.score(p, splits.test)["nll"] for p in (base, posterior))
    assert after < before + 0.02 and after < math.log(10) / 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterates": 0}, "expected at least 1 iterate to average over, got 0"),
        ({"every": 0}, "expected at least 1 step from one iterate to the next, or None for an epoch, got 0"),
        ({"optimizer": SGD(lr=Cyclic(peak=0.1, cycles=5))}, "got 5 cycles and 40 iterates"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SWA(**options)


def test_under_small_noise_steps_are_those_of_noise_one():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    data = bn.Data(x, x.sin())
    for noise, factor in ((0.1, 0.01), (3.0, 1.0)):
        problem = bn.Problem(lambda: bn.networks.MLP(1, 1, hidden=(5,)), bn.likelihoods.Gaussian(noise=noise))
        posteriors = []
        for lr, relative in ((0.05, True), (0.05 * factor, False)):
            recipe = bn.SWA(
                base=bn.MAP(epochs=2),
                iterates=4,
                batch_size=10,
                optimizer=bn.optim.SGD(lr=lr, momentum=0.9),
                unit_noise=relative,
            )
            engine = bn.Engine(device="cpu", dtype=torch.float64, progress=False)
            posteriors.append(bn.fit(recipe, problem, data, members=2, engine=engine))
        one, other = (ravel(posterior.sample(1), 2) for posterior in posteriors)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert posteriors[0].info["curves"]["loss"][0][0] == pytest.approx(posteriors[1].info["curves"]["loss"][0][0])
