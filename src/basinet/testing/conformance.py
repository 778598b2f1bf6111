"""The conformance suite: what every method and family must do, for ours and for yours.

`check_method(recipe)` and `check_family(family)` run it and raise with a table of what failed; `method_checks` and
`family_checks` yield each check as it is made. A method's own theory stands in its file (`Method.theory`) and is
measured here with a `Bench`.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.documented import documented_fields
from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import leaves, ravel, stack, take
from ..data import Data
from ..engine import Method
from ..families import Diagonal, Family, Full
from ..fit import fit
from ..methods.map import MAP
from ..pool import decode, encode
from ..problem import Batch, Problem
from ..problem.likelihoods import Categorical
from ..problem.terms import Observations
from ..saving import load
from .bench import Bench, Check, cpu_engine, distance
from .exact import PARAMETER, Conjugate, conjugate


def check_method(recipe: Method) -> list[Check]:
    """Runs the whole suite on a recipe; raises AssertionError with what failed, else returns the checks.

    >>> all(check.passed for check in check_method(MAP(epochs=5)))
    True
    """
    return _all_pass(list(method_checks(recipe)))


def check_family(family: Family) -> list[Check]:
    """Runs the family suite on a family of one member; raises AssertionError with what failed, else returns the
    checks.

    >>> all(check.passed for check in check_family(bn.families.Delta({"weight": torch.ones(2)}, {})))
    True
    """
    return _all_pass(list(family_checks(family)))


def method_checks(recipe: Method) -> Iterator[Check]:
    """The invariants of every method, then the theory of this one.

    >>> next(method_checks(MAP())).name
    'the recipe can be hashed'
    """
    name = type(recipe).__name__
    yield from _recipe_checks(name, recipe)
    yield from _member_checks(name, _brief(recipe, patience=10))
    yield from _equivalence_checks(name, _brief(recipe))
    yield from type(recipe).theory(Bench(name))


def _brief(recipe: Method, patience: int | None = None) -> Method:
    """The recipe with less training, where it leaves that open: what holds of members does not depend on it. With a
    patience they still end when validation does not gain, each at its best, as they do by default."""
    short: dict[str, Any] = {"epochs": 200, "steps": 60, "base": MAP(epochs=400)}
    names = {f.name for f in fields(recipe)}
    short |= {"patience": patience} if getattr(recipe, "epochs", 0) is None else {}
    return replace(recipe, **{n: x for n, x in short.items() if n in names and getattr(recipe, n) is None})


def problem_checks() -> Iterator[Check]:
    """N, prior and temperature in the potential, against the exact posterior.

    >>> all(check.passed for check in problem_checks())
    True
    """
    for temperature in (1.0, 0.3):
        yield from _tempering_checks(temperature, "posterior", "Lambda / T")
    yield from _tempering_checks(0.3, "likelihood", "X'X / (T sigma^2) + I / s^2")
    exact = conjugate()
    everything = _potential(exact, torch.arange(exact.data.n), exact.mean)
    parts = [_potential(exact, torch.arange(i, i + 8), exact.mean) for i in range(0, exact.data.n, 8)]
    error = float((torch.stack(parts).mean() - everything).abs())
    yield Check("Problem", "mean potential of batches", "the full potential", error, 1e-9)


def _tempering_checks(temperature: float, temper: Literal["posterior", "likelihood"], says: str) -> Iterator[Check]:
    name = f"temperature {temperature} ({temper})"
    exact = conjugate(temperature=temperature, temper=temper)
    hessian, gradient = _curvature(exact)
    yield Check("Problem", f"{name}: Hessian of the potential", says, distance(hessian, exact.precision), 1e-9)
    yield Check("Problem", f"{name}: gradient at the mean", "0", float(gradient.abs().max()), 1e-9)
    orthogonal = conjugate(temperature=temperature, temper=temper, correlation=0.0)
    family, count = _exact_diagonal(orthogonal), 100_000
    keys = Noise.seed(1).spread(count).key
    draws = lift(lambda key: family.sample(Noise(key)).params[PARAMETER].reshape(-1))(keys)
    off = (torch.cov(draws.T) - orthogonal.covariance).abs() / _covariance_error(orthogonal.covariance, count)
    yield Check("Problem", f"{name}: covariance of draws", f"({says})^-1, in standard errors", float(off.max()), 4.5)


def family_checks(family: Family) -> Iterator[Check]:
    """Sampling, density, stacking and saving of a family of one member.

    >>> next(family_checks(bn.families.Delta({"weight": torch.ones(2)}, {}))).passed
    True
    """
    name = type(family).__name__
    root, count = Noise.seed(3), 4000
    draws = lift(lambda key: ravel(family.sample(Noise(key)).params))(root.spread(count).key).double()
    center = ravel(family.mean().params).double()
    error = (draws.mean(0) - center).abs() / (draws.std(0) / count**0.5).clamp(min=1e-12)
    same = (draws.mean(0) - center).abs() < 1e-6
    yield Check(name, "mean of draws", "mean(), in standard errors", float(torch.where(same, 0.0, error).max()), 4.5)
    again = distance(ravel(family.sample(root).params), ravel(family.sample(root).params))
    yield Check(name, "the same key gives the same draw", "0", again, 0.0)
    pair = stack([family, family])
    yield Check(name, "a stack of two, sliced", "the family", _tree_distance(take(pair, 1), family), 0.0)
    tensors: dict[str, Tensor] = {}
    restored = decode(encode(family, tensors), tensors)
    yield Check(name, "encoded and decoded", "the family", _tree_distance(restored, family), 0.0)
    sequence = [family.draw(root, s).params for s in range(3)]
    lifted = lift(lambda s: family.draw(root, s).params)(torch.arange(3))
    yield Check(name, "draws lifted over s", "draws one by one", _tree_distance(lifted, stack(sequence)), 1e-12)
    try:
        family.log_prob(family.mean().params)
    except ValueError:
        return  # a family of points
    yield from _density_checks(name, family)


def _density_checks(name: str, family: Family) -> Iterator[Check]:
    """E_q[exp(log r - log q)] = 1 for a normal r inside q's support, so log_prob must integrate to one. r has the mean
    of q and half its covariance, over the params that are random."""
    count = 20_000
    params = lift(lambda key: family.sample(Noise(key)).params)(Noise.seed(4).spread(count).key)
    moving = {n: x for n, x in params.items() if bool((x != x[0]).any())}
    factor = torch.linalg.cholesky(0.5 * torch.atleast_2d(torch.cov(ravel(moving, 1).double().T)))
    narrow = Full({n: x.double().mean(0) for n, x in moving.items()}, factor, {})
    ratio = (lift(narrow.log_prob)(moving).double() - lift(family.log_prob)(params).double()).exp()
    error = abs(float(ratio.mean()) - 1) / (float(ratio.std()) / count**0.5 + 1e-12)
    yield Check(name, "density integrates to one", "E_q[r/q] = 1, in standard errors", error, 4.5)


def _recipe_checks(name: str, recipe: Method) -> Iterator[Check]:
    try:
        hash(recipe)
        hashed = True
    except TypeError:
        hashed = False
    yield Check(name, "the recipe can be hashed", "yes", 0.0 if hashed else 1.0, 0.0)
    tensors: dict[str, Tensor] = {}
    back = decode(encode(recipe, tensors), tensors)
    yield Check(name, "the recipe survives saving", "equal", 0.0 if back == recipe else 1.0, 0.0)
    descriptions = documented_fields(type(recipe))
    missing = [f.name for f in fields(recipe) if not descriptions.get(f.name)]
    yield Check(name, "fields with a description", "all", float(len(missing)), 0.0)


def _member_checks(name: str, recipe: Method) -> Iterator[Check]:
    """Members alone and in stacks, in both strategies, with BatchNorm and dropout; module, files and slices."""
    data = _small_data()
    module = _SmallNet()
    before = copy.deepcopy(module.state_dict())
    problem = Problem(module, Categorical())
    val = data.take(slice(0, 8))
    fitted = {s: fit(recipe, problem, data, val=val, members=3, engine=cpu_engine(s)) for s in ("stacked", "loop")}
    steps = max(1, recipe.schedule(data.n).steps)
    apart = _relative(fitted["stacked"].parts[0].family, fitted["loop"].parts[0].family)
    yield Check(name, "stacked against loop, BatchNorm and dropout, a step", "equal to rounding", apart / steps, 1e-12)
    three = fitted["stacked"]
    if not recipe.coupled:
        alone = fit(recipe, problem, data, val=val, members=1, engine=cpu_engine("stacked"))
        apart = _relative(alone.parts[0].family, three[:1].parts[0].family)
        yield Check(
            name, "member on its own against member in a stack, per step", "equal to rounding", apart / steps, 1e-12
        )
    after = module.state_dict()
    changed = float(sum(not torch.equal(before[k], after[k]) for k in before)) + float(module.training is not True)
    yield Check(name, "the user's module after a fit", "unchanged", changed, 0.0)
    outputs = three.predict(data.inputs).outputs
    yield Check(name, "predictions that are not finite", "none", float((~outputs.isfinite()).sum()), 0.0)
    sliced = three[1:].predict(data.inputs).outputs
    yield Check(name, "predictions of a slice", "equal to rounding", _relative(sliced, outputs[1:]), 1e-12)
    with tempfile.TemporaryDirectory() as folder:
        three.save(Path(folder) / "saved")
        loaded = load(Path(folder) / "saved", _SmallNet).predict(data.inputs).outputs
    yield Check(name, "predictions after save and load", "equal", distance(loaded, outputs), 0.0)


def _equivalence_checks(name: str, recipe: Method) -> Iterator[Check]:
    """Problems that are the same posterior, and with full batches the same run: twice the data at twice the likelihood
    temperature; half of each example's weight in a term. A recipe that is not for terms must refuse them in words."""
    if recipe.randomised or not any(f.name == "batch_size" for f in fields(recipe)):
        return
    full = replace(recipe, batch_size=None)  # type: ignore[call-arg]
    exact = conjugate()
    x, y, network = exact.data.inputs, exact.data.targets, exact.problem.network
    likelihood, prior = exact.problem.likelihood, exact.problem.prior

    def mode(problem: Problem, data: Data) -> Family:
        return fit(full, problem, data, members=3 if recipe.coupled else 1, engine=cpu_engine()).parts[0].family

    once, half = mode(exact.problem, exact.data), torch.full_like(y, 0.5)
    hot = Problem(network, likelihood, prior, 2.0, "likelihood")
    apart = _tree_distance(once, mode(hot, Data(torch.cat([x, x]), torch.cat([y, y]))))
    yield Check(name, "data twice at likelihood temperature 2", "the same posterior", apart, 1e-9)
    shared = Problem(network, likelihood, prior, terms=[Observations(x, y, likelihood, half)])
    if recipe.terms:
        apart = _tree_distance(once, mode(shared, Data(x, y, half)))
        yield Check(name, "half of the data's weight in a term", "the same posterior", apart, 1e-9)
        return
    try:
        mode(shared, exact.data)
        refused = False
    except ValueError as error:
        refused = "terms" in str(error)
    yield Check(name, "a problem with terms", "is refused, in words", float(not refused), 0.0)


class _SmallNet(nn.Module):
    """A network with what makes members hard to keep apart: running statistics and dropout, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(8, dtype=torch.float64)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(self.drop(x))))))


def _small_data() -> Data:
    noise = Noise.seed(7)
    inputs = noise.split("inputs").normal(torch.empty(40, 4, dtype=torch.float64))
    return Data(inputs, noise.split("targets").integers(40, 3))


def _potential(exact: Conjugate, index: Tensor, weight: Tensor) -> Tensor:
    data = exact.data
    batch = Batch(data.inputs[index], data.targets[index], index, torch.tensor(0), data.n)
    return exact.problem.potential({PARAMETER: weight.reshape(1, -1)}, {}, batch)[0]


def _curvature(exact: Conjugate) -> tuple[Tensor, Tensor]:
    everything = torch.arange(exact.data.n)

    def potential(weight: Tensor) -> Tensor:
        return _potential(exact, everything, weight)

    gradient = torch.func.grad(potential)
    return torch.func.jacrev(gradient)(exact.mean), gradient(exact.mean)


def _exact_diagonal(exact: Conjugate) -> Diagonal:
    """The posterior as a Diagonal, exact for an orthogonal design: its scale is read off the potential's curvature."""
    scale = _curvature(exact)[0].diagonal().rsqrt()
    return Diagonal({PARAMETER: exact.mean.reshape(1, -1)}, {PARAMETER: scale.reshape(1, -1)}, {})


def _covariance_error(covariance: Tensor, count: int) -> Tensor:
    """Standard errors of the entries of a sample covariance of normal draws."""
    variances = covariance.diagonal()
    return ((covariance.square() + variances[:, None] * variances[None, :]) / count).sqrt()


def _tree_distance(a: Any, b: Any) -> float:
    return max(distance(x, y) for x, y in zip(leaves(a), leaves(b), strict=True) if isinstance(x, Tensor))


def _relative(a: Any, b: Any) -> float:
    """The largest difference of two trees, in units of a tensor's largest number where that is above 1."""
    pairs = [(x, y) for x, y in zip(leaves(a), leaves(b), strict=True) if isinstance(x, Tensor)]
    return max(distance(x, y) / max(1.0, float(y.double().abs().max())) for x, y in pairs)


def _all_pass(checks: Iterable[Check]) -> list[Check]:
    results = list(checks)
    failed = [c for c in results if not c.passed]
    if failed:
        lines = [
            f"{c.subject}: {c.name}: theory {c.says}, off by {c.measured:.3g}, tolerance {c.tolerance:.3g}"
            for c in failed
        ]
        raise AssertionError("\n".join(lines))
    return results
