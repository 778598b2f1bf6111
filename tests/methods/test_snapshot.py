"""Snapshot: the end of every cycle, with the norm statistics it had there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batch_norm import PROBLEM, classes, net

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Empirical
from basinet.methods.map import MAP
from basinet.methods.snapshot import Snapshot
from basinet.optim import SGD, Adam, Cosine, Cyclic
from basinet.testing import check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
STACKED = bn.Engine(device="cpu", strategy="stacked", progress=False)


def family_of(posterior: bn.Posterior, k: int = 0) -> Empirical:
    family = take(posterior.parts[0].family, k)
    assert isinstance(family, Empirical)
    return family


def test_snapshot_conforms_and_keeps_what_each_cycle_ended_with():
    checks = check_method(Snapshot(epochs=4, batch_size=16, cycles=2))
    assert any("snapshots along gradient descent" in c.name for c in checks)


@pytest.mark.parametrize("engine", [ENGINE, STACKED])
def test_snapshots_are_where_a_shorter_run_of_the_same_steps_ends(engine):
    data, length = classes(), 3
    family = family_of(bn.fit(Snapshot(epochs=9, batch_size=None, cycles=3), PROBLEM, data, engine=engine))
    for k in range(3):
        part = Snapshot(
            epochs=(k + 1) * length, batch_size=None, cycles=k + 1
        )  # the same rates, cut after k + 1 cycles
        last = family_of(bn.fit(part, PROBLEM, data, engine=engine))
        for tensors, expected in ((family.params, last.params), (family.buffers, last.buffers)):
            for name in expected:
                torch.testing.assert_close(tensors[name][k], expected[name][k], rtol=0, atol=1e-12)
    statistics = family.buffers["1.running_mean"]
    assert statistics.shape == (3, 6) and (statistics[1:] - statistics[:-1]).abs().amax(1).min() > 1e-3
    assert family.buffers["1.num_batches_tracked"].tolist() == [3, 6, 9]


def test_predictions_are_those_of_the_modules_at_each_snapshot():
    data = classes()
    posterior = bn.fit(Snapshot(epochs=12, batch_size=10, cycles=3), PROBLEM, data, members=2, engine=STACKED)
    outputs = posterior.predict(data.inputs).outputs
    assert outputs.shape == (2, 3, 40, 3)
    for k in range(2):
        family = family_of(posterior, k)
        expected = []
        for s in range(3):
            module = net().eval()
            module.load_state_dict({n: x[s] for n, x in (family.params | family.buffers).items()})
            expected.append(module(data.inputs).detach())
        in_order = outputs[k][outputs[k][:, 0, 0].argsort()]  # draws visit the points in a random order
        expected.sort(key=lambda x: float(x[0, 0]))
        torch.testing.assert_close(in_order, torch.stack(expected), rtol=0, atol=1e-12)


def test_one_cycle_is_map_along_a_cosine():
    data = classes()
    one = bn.fit(Snapshot(epochs=5, batch_size=16, cycles=1, optimizer=SGD(lr=0.1)), PROBLEM, data, engine=ENGINE)
    same = bn.fit(MAP(epochs=5, batch_size=16, optimizer=SGD(lr=Cosine(peak=0.1))), PROBLEM, data, engine=ENGINE)
    torch.testing.assert_close(ravel(one.mean()), ravel(same.mean()), rtol=0, atol=1e-12)


def test_a_cycle_is_long_enough_on_few_examples_and_on_many():
    assert Snapshot().schedule(185).steps == 5 * 500  # epochs alone would be a handful of steps here
    assert Snapshot(cycles=2).schedule(185).steps == 2 * 500
    assert Snapshot().schedule(128_000).steps == 5 * 5 * 1000  # five epochs per cycle


@pytest.mark.parametrize(
    ("epochs", "batch_size", "cycles", "steps"), [(10, None, 4, 12), (3, 16, 5, 10), (1, None, 6, 6)]
)
def test_steps_are_rounded_up_to_whole_cycles(epochs, batch_size, cycles, steps):
    recipe = Snapshot(epochs=epochs, batch_size=batch_size, cycles=cycles)
    assert recipe.schedule(40).steps == steps and recipe.schedule(40).bank == cycles
    assert family_of(bn.fit(recipe, PROBLEM, classes(), engine=ENGINE)).count == cycles


def test_members_of_a_bootstrap_settle_at_the_modes_of_their_own_examples():
    exact = conjugate()
    data = exact.data.bootstrap(3, seed=1)
    recipe = Snapshot(epochs=600, batch_size=None, cycles=2, optimizer=SGD(lr=0.2, momentum=0.9))
    posterior = bn.fit(recipe, exact.problem, data, members=3, engine=STACKED)
    for k in range(3):
        own = data.member(k)
        precision = own.inputs.T @ own.inputs / 0.5**2 + torch.eye(3) / 1.5**2
        mode = torch.linalg.solve(precision, own.inputs.T @ own.targets / 0.5**2)
        weights = family_of(posterior, k).params["weight"][:, 0]
        torch.testing.assert_close(weights, mode.expand(2, 3), rtol=0, atol=1e-5)
        assert (mode - exact.mean).abs().max() > 0.01


def test_a_stopped_run_resumes_with_the_snapshots_it_had(tmp_path):
    recipe, data = Snapshot(epochs=20, batch_size=10, cycles=4), classes()
    whole = bn.fit(recipe, PROBLEM, data, members=2, engine=STACKED)

    def stop(event: bn.Event) -> None:
        if event.step >= 50:  # in the third cycle
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bn.fit(recipe, PROBLEM, data, members=2, engine=STACKED, pool=tmp_path, observe=stop)
    again = bn.fit(recipe, PROBLEM, data, members=2, engine=STACKED, pool=tmp_path)
    for k in range(2):
        for name, x in (family_of(whole, k).params | family_of(whole, k).buffers).items():
            assert torch.equal((family_of(again, k).params | family_of(again, k).buffers)[name], x)


def test_it_starts_where_it_is_asked_to():
    start = bn.Posterior.of(module := net(), PROBLEM)
    still = Snapshot(epochs=2, batch_size=None, cycles=2, optimizer=SGD(lr=0.0))
    family = family_of(bn.fit(still, PROBLEM, classes(), start=start, engine=ENGINE))
    for name, x in module.named_parameters():
        assert torch.equal(family.params[name], x.detach().expand(2, *x.shape))


def test_a_rate_is_a_peak_or_cycles():
    given = Snapshot(cycles=3, optimizer=Adam(lr=Cyclic(peak=0.1, cycles=3, floor=0.01)))
    assert given.optimizer.lr == Cyclic(peak=0.1, cycles=3, floor=0.01)
    assert Snapshot(cycles=3, optimizer=SGD(lr=0.1)).optimizer == SGD(lr=Cyclic(peak=0.1, cycles=3))
    assert replace(given, epochs=7).optimizer == given.optimizer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cycles": 0}, "expected at least 1 cycle, got 0"),
        ({"cycles": 2.5}, r"expected cycles as a whole number, got 2\.5"),
        ({"epochs": 0}, "expected at least 1 epoch, got 0"),
        ({"optimizer": Adam(lr=Cosine(peak=0.1))}, r"falls in 5 cycles, got Cosine.*: give the peak as a number"),
        ({"optimizer": Adam(lr=Cyclic(peak=0.1, cycles=4))}, r"falls in 5 cycles, got Cyclic\(peak=0\.1, cycles=4"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Snapshot(**options)


def test_five_snapshots_on_digits_beat_the_mean_of_them(tmp_path):
    splits = bn.datasets.load("digits")
    make = lambda: bn.networks.MLP(64, 10, hidden=(40,), batch_norm=True)  # noqa: E731
    problem = bn.Problem(make, PROBLEM.likelihood)
    posterior = bn.fit(Snapshot(epochs=50), problem, splits.train, val=splits.val, engine=ENGINE)
    predictive = posterior.predict(splits.test.inputs)
    log_probs = predictive.outputs[0].log_softmax(-1)  # (5, B, 10)
    each = -log_probs.gather(-1, splits.test.targets.expand(5, -1)[..., None]).mean((1, 2))
    together = -float(predictive.log_prob(splits.test.targets).mean())
    assert together < float(each.mean()) < math.log(10) / 6
    assert float((predictive.probs.argmax(-1) == splits.test.targets).double().mean()) > 0.93
    posterior.save(tmp_path / "saved")
    again = bn.load(tmp_path / "saved", make).predict(splits.test.inputs)
    assert torch.equal(again.outputs, predictive.outputs)


def test_compare_has_one_row_of_it():
    assert [(e.label, e.members) for e in Snapshot.lineup()] == [("snapshots", 1)]
