"""The conformance suite finds what it is there to find."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from basinet.core.registry import _classes
from basinet.core.tree import Point
from basinet.engine import Info
from basinet.families import Diagonal
from basinet.methods import discover
from basinet.methods.map import MAP
from basinet.testing import Bench, check_family, check_method, family_checks, method_checks, problem_checks
from basinet.testing.conformance import _recipe_checks


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


@pytest.mark.slow
def test_a_method_that_weighs_the_prior_by_the_batch_is_found():
    @dataclass(frozen=True, kw_only=True)
    class WrongPrior(MAP):
        def gradient(self, state, step):
            weaker = replace(step.problem.prior, scale=step.problem.prior.scale * 1.1)
            return MAP.gradient(self, state, step._replace(problem=replace(step.problem, prior=weaker)))

    failed = [c.name for c in WrongPrior.theory(Bench("WrongPrior")) if not c.passed]
    assert "mode of the conjugate posterior, full batch" in failed


@pytest.mark.slow
def test_a_method_whose_members_depend_on_the_others_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Coupled(MAP):
        def gradient(self, state, step):
            grads, info = MAP.gradient(self, state, step)
            return {n: g + 1e-6 * step.noise.key.dim() for n, g in grads.items()}, info  # one more in a stack

    failed = [c.name for c in method_checks(Coupled(epochs=3)) if not c.passed]
    assert any("stacked against loop" in name for name in failed)


@pytest.mark.slow
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


@pytest.mark.slow
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


# A wrong method for each check: none of them passes everything


def failing(recipe):
    return {c.name for c in method_checks(recipe) if not c.passed}


def test_recipes_that_cannot_be_hashed_or_saved_are_found():
    @dataclass(frozen=True, kw_only=True)
    class Listed(MAP):
        widths: tuple[list[int], ...] = ([1],)  # lists have no hash

    @dataclass(frozen=True, kw_only=True)
    class Different(MAP):
        rate: float = math.nan  # what was saved cannot be known again, since it is equal to nothing

    assert "the recipe can be hashed" in [c.name for c in _recipe_checks("Listed", Listed()) if not c.passed]
    assert "the recipe survives saving" in [c.name for c in _recipe_checks("Different", Different()) if not c.passed]


@pytest.mark.slow
def test_a_method_that_writes_to_the_users_module_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Careless(MAP):
        def finish(self, state, samples, problem, data, val, noise):
            if isinstance(problem.network._source, torch.nn.Module):
                with torch.no_grad():
                    problem.network._source.last.bias.add_(1)
            return MAP.finish(self, state, samples, problem, data, val, noise)

    assert "the user's module after a fit" in failing(Careless(epochs=2))


@pytest.mark.slow
def test_a_method_whose_posterior_draws_other_numbers_at_each_call_is_found():
    """Its slices predict otherwise, and so does what was saved."""
    calls = itertools.count()

    class Loose(Diagonal):
        def sample(self, noise):
            return Point({n: x + 1e-6 * next(calls) for n, x in self.centre.items()}, self.buffers)

    from basinet.families import family as register

    Loose = register(Loose)

    @dataclass(frozen=True, kw_only=True)
    class Scattered(MAP):
        def finish(self, state, samples, problem, data, val, noise):
            delta = MAP.finish(self, state, samples, problem, data, val, noise)
            params, buffers = delta.mean()
            return Loose(params, {n: torch.ones_like(x) for n, x in params.items()}, buffers)

    failures = failing(Scattered(epochs=2))
    assert {"predictions of a slice", "predictions after save and load"} <= failures


def test_a_method_whose_predictions_are_not_numbers_is_found():
    @dataclass(frozen=True, kw_only=True)
    class Broken(MAP):
        def finish(self, state, samples, problem, data, val, noise):
            delta = MAP.finish(self, state, samples, problem, data, val, noise)
            return replace(delta, params={n: x * float("nan") for n, x in delta.params.items()})

    checks = method_checks(Broken(epochs=2))
    assert not next(c for c in checks if c.name == "predictions that are not finite").passed


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 1e-3])
def test_a_method_that_counts_the_examples_itself_is_found(share):
    """N enters its steps twice: doubling the data no longer equals halving the temperature."""

    @dataclass(frozen=True, kw_only=True)
    class Counting(MAP):
        def gradient(self, state, step):
            grads, info = MAP.gradient(self, state, step)
            return {n: g + share * step.batch.total for n, g in grads.items()}, info

    assert "data twice at likelihood temperature 2" in failing(Counting(epochs=20))


@pytest.mark.slow
def test_a_member_that_depends_on_the_others_is_found_at_a_millionth_of_its_largest_number():
    """Distances are relative to the largest number of a tensor, behind which smaller differences must not hide."""

    @dataclass(frozen=True, kw_only=True)
    class Large(MAP):
        def finish(self, state, samples, problem, data, val, noise):
            delta = MAP.finish(self, state, samples, problem, data, val, noise)
            return replace(delta, params={n: 1e3 * x for n, x in delta.params.items()})

        def gradient(self, state, step):
            grads, info = MAP.gradient(self, state, step)
            return {n: g + 1e-7 * step.noise.key.dim() for n, g in grads.items()}, info

    assert any("stacked against loop" in name for name in failing(Large(epochs=5)))


def changed(**methods):
    """A Diagonal that does something else."""
    from basinet.families import family as register

    return register(type("Changed", (Diagonal,), methods))(
        {"a": torch.zeros(3).double()}, {"a": torch.ones(3).double()}, {}
    )


def shifted(self, noise):
    drawn = Diagonal.sample(self, noise)
    return Point({n: x + 0.2 for n, x in drawn.params.items()}, drawn.buffers)


CALLS = itertools.count()


def unkeyed(self, noise):
    drawn = Diagonal.sample(self, noise)
    return Point({n: x + 1e-9 * next(CALLS) for n, x in drawn.params.items()}, drawn.buffers)


def by_number(self, noise, s):
    """Other draws where the number is a tensor."""
    drawn = Diagonal.draw(self, noise, s)
    return Point(
        {n: x + (1e-6 if isinstance(s, torch.Tensor) else 0.0) for n, x in drawn.params.items()}, drawn.buffers
    )


@pytest.mark.parametrize(
    ("methods", "check"),
    [
        ({"sample": shifted}, "mean of draws"),
        ({"sample": unkeyed}, "the same key gives the same draw"),
        ({"draw": by_number}, "draws lifted over s"),
    ],
)
def test_a_wrong_family_fails_its_check(methods, check):
    assert check in {c.name for c in family_checks(changed(**methods)) if not c.passed}
