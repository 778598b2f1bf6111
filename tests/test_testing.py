"""The conformance suite finds what it is there to find."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from basinet.core.registry import _classes
from basinet.core.tree import Point
from basinet.engine import Info
from basinet.families import Diagonal
from basinet.methods import discover
from basinet.methods.map import MAP
from basinet.testing import Bench, check_family, check_method, method_checks, problem_checks


@pytest.fixture(autouse=True)
def _forget_methods_defined_here():
    before = dict(_classes)
    yield
    _classes.clear()
    _classes.update(before)


def test_the_problem_passes():
    checks = list(problem_checks())
    assert len(checks) == 10
    assert all(c.passed for c in checks), [c for c in checks if not c.passed]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(n for n, m in discover().items() if m.__module__.startswith("basinet.")))
def test_every_method_passes(name):
    assert len(check_method(discover()[name]())) >= 11


def test_a_method_that_weighs_the_prior_by_the_batch_is_found():
    @dataclass(frozen=True, kw_only=True)
    class WrongPrior(MAP):
        def gradient(self, state, step):
            from dataclasses import replace

            weaker = replace(step.problem.prior, scale=step.problem.prior.scale * 1.1)
            return MAP.gradient(self, state, step._replace(problem=replace(step.problem, prior=weaker)))

    failed = [c.name for c in WrongPrior.theory(Bench("WrongPrior")) if not c.passed]
    assert "mode of the conjugate posterior, full batch" in failed


def test_a_method_whose_members_depend_on_their_company_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Coupled(MAP):
        def gradient(self, state, step):
            grads, info = MAP.gradient(self, state, step)
            return {n: g + 1e-6 * step.noise.key.dim() for n, g in grads.items()}, info  # one more in a stack

    failed = [c.name for c in method_checks(Coupled(epochs=3)) if not c.passed]
    assert any("stacked against loop" in name for name in failed)


def test_a_method_that_forgets_the_terms_of_a_problem_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(MAP):
        def loss(self, params, state, step):
            problem = step.problem
            outputs, buffers = problem.outputs(params, state.buffers, step.batch.inputs, step.noise, "train")
            energy = problem.likelihood_potential(outputs, params, step.batch) + problem.prior_energy(params)
            return Info(energy / step.scale, buffers=buffers)

    failed = [c.name for c in method_checks(Forgetful(epochs=20)) if not c.passed]
    assert "half of the data's weight in a term" in failed


def test_undocumented_fields_are_found():
    @dataclass(frozen=True, kw_only=True)
    class Silent(MAP):
        secret: float = 1.0

    assert [c.measured for c in method_checks(Silent(epochs=1)) if c.name == "fields with a description"] == [1.0]


def test_a_density_that_does_not_integrate_to_one_is_found():
    class Half(Diagonal):
        def log_prob(self, params):
            return Diagonal.log_prob(self, params) - 0.7

    from basinet.families import family as register

    Half = register(Half)
    params = {"a": torch.randn(3)}
    with pytest.raises(AssertionError, match="density integrates to one"):
        check_family(Half(params, {"a": torch.ones(3)}, {}))


def test_update_methods_need_no_optimizer():
    from basinet.engine import Method, Schedule
    from basinet.families import Delta

    @dataclass(frozen=True, kw_only=True)
    class Still(Method):
        needs: ClassVar = frozenset({"data"})
        steps: int = 3  # how long it stands still

        def schedule(self, n):
            return Schedule(self.steps, None)

        def update(self, state, step):
            energy, _ = step.problem.potential(state.params, state.buffers, step.batch, step.noise)
            return Point(state.params, state.buffers), Info(energy)

        def finish(self, state, samples, problem, data, val, noise):
            return Delta(state.params, state.buffers)

    check_method(Still())
