"""Random calls of `fit` end in a posterior that predicts, or in one clean error that says what to do."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import basinet as bn
from endings import fault_of
from random_fits import Call, Streamed

QUICK, SLOW = range(60), range(60, 1_800)


def faults(seeds: range, tmp_path: Path, kind: type[Call] = Call) -> list[str]:
    lines = []
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = fault_of(kind(seed, tmp_path / str(seed)))
        lines += [f"{seed}: {fault}"] if fault else []
    return lines


def test_a_random_fit_is_a_result_or_a_clean_error(tmp_path):
    assert faults(QUICK, tmp_path) == []


@pytest.mark.slow
def test_many_random_fits_are_results_or_clean_errors(tmp_path):
    assert faults(SLOW, tmp_path) == []


def test_a_random_stream_is_a_result_or_a_clean_error(tmp_path):
    assert faults(QUICK, tmp_path, Streamed) == []


@pytest.mark.slow
def test_many_random_streams_are_results_or_clean_errors(tmp_path):
    assert faults(SLOW, tmp_path, Streamed) == []


DATA = bn.Data(bn.Noise.seed(0).normal(torch.empty(9, 2)), bn.Noise.seed(1).normal(torch.empty(9, 1)))
PROBLEM = bn.Problem(lambda: nn.Linear(2, 1), bn.likelihoods.Gaussian())


@pytest.mark.parametrize("members", [10**9, 10**30])
def test_more_members_than_can_be_are_refused_at_once(members):
    with pytest.raises(MemoryError, match=r"members takes about .*, and .* may be used: use at most members=.*"):
        bn.fit(bn.MAP(epochs=1), PROBLEM, DATA, members=members)


def test_a_batch_of_one_for_a_norm_layer_is_refused():
    problem = bn.Problem(lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), PROBLEM.likelihood)
    with pytest.raises(ValueError, match=r"expected batches of at least 2 examples, which norm layers need"):
        bn.fit(bn.MAP(epochs=2, batch_size=1), problem, DATA, engine=bn.Engine(device="cpu", progress=False))


def test_an_activation_that_half_precision_lacks_is_reported():
    class Rare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(self.layer(x)) + self.layer(x)

    engine = bn.Engine(device="cpu", progress=False, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"(does not run on the data|does not train).*not implemented for 'Half'"):
        bn.fit(bn.MAP(epochs=1), bn.Problem(Rare, PROBLEM.likelihood), DATA, engine=engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "cpu"}, "expected engine as bn.Engine"),
        ({"observe": 3}, "expected observe as a function of an event, got int"),
        ({"pool": 3}, "expected pool as the path of a folder, got int"),
        ({"members": True}, "expected members to be a positive integer, got True"),
        ({"seed": 2**64}, "expected a seed as a whole number of at most 64 bits"),
    ],
)
def test_options_of_another_kind_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        bn.fit(bn.MAP(epochs=1), PROBLEM, DATA, **options)


def test_a_plan_that_must_not_depend_on_timing_does_not(monkeypatch):
    """However long steps seem to take, a deterministic engine neither compiles nor spreads over processes."""
    from basinet.engine import executor

    chosen = []
    measure = executor.Here.measure

    def slow(self, plan, few):
        measure(self, plan, few)
        chosen.append(plan)
        return 1e6

    monkeypatch.setattr(executor.Here, "measure", slow)
    engine = bn.Engine(device="cpu", progress=False, deterministic=True)
    posterior = bn.fit(bn.MAP(epochs=1), PROBLEM, DATA, members=4, engine=engine)
    assert len(posterior) == 4 and [plan.compiled for plan in chosen] == [False]
    with pytest.raises(ValueError, match="expected deterministic as True or False"):
        bn.Engine(deterministic=1)
