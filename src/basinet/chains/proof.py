"""What every sampler that claims exact draws is held to: the moments of posteriors that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.tree import ravel
from ..diagnostics import ess_mean, mcse_mean
from ..testing.exact import conjugate

if TYPE_CHECKING:
    from ..engine import Method
    from ..testing import Bench, Check
    from .chain import Chain

WIDE = 4.5  # standard errors


def drawn(bench: Bench, recipe: Chain, chains: int, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Draws on the conjugate problem at a temperature, (C, K, d), with its exact mean and covariance."""
    exact = bench.conjugate(temperature=temperature)
    family: object = bench.fit(recipe, exact.problem, exact.data, chains, start=exact.mean + 1).parts[0].family
    return ravel(family.params, 2), exact.mean, exact.covariance  # type: ignore[attr-defined]


def exact_checks(bench: Bench, recipe: Chain, chains: int) -> Iterator[Check]:
    """Means and covariances on the conjugate posterior, at temperature 1 and cold, in Monte-Carlo standard errors."""
    for temperature in (1.0, 0.1):
        draws, mean, covariance = drawn(bench, recipe, chains, temperature)
        name = "" if temperature == 1 else f", temperature {temperature:g}"
        z = (draws.mean((0, 1)) - mean) / mcse_mean(draws)
        yield bench.close(f"mean of the draws{name}, in standard errors", "mu", z, torch.zeros_like(z), WIDE)
        off = draws - mean
        upper = torch.triu_indices(len(mean), len(mean))
        product = off[..., upper[0]] * off[..., upper[1]]
        z = (product.mean((0, 1)) - covariance[upper[0], upper[1]]) / mcse_mean(product)
        says = "T Lambda^-1" if temperature != 1 else "Lambda^-1"
        yield bench.close(f"covariance of the draws{name}, in standard errors", says, z, torch.zeros_like(z), WIDE)
        error = float((mcse_mean(product) / covariance.diagonal().max()).max())
        yield bench.close(
            f"standard error of the covariance{name}, of the largest variance",
            "below 1/10: the check can fail",
            torch.tensor(error),
            torch.tensor(0.0),
            0.1,
        )


def effective_per_gradient(draws: Tensor, gradients: int) -> float:
    """The least ESS of the mean over quantities (C, K, Q), per 1,000 gradients of all chains."""
    least = float(ess_mean(draws).min())
    return 1000 * least / gradients if math.isfinite(least) else math.nan


def stationary_checks(
    bench: Bench,
    recipe: Callable[[float, float], Method],
    law: Callable[[Tensor, int, float], Tensor],
    says: str,
    slack: float = 0.0,
) -> Iterator[Check]:
    """The stationary law of a chain that rejects nothing, on a quadratic with full batches: `law(h, N, lr)` for each
    curvature, at steps so large that it differs from the posterior's. `slack` is what theory leaves open, as a share of
    the variance. Many chains, of which the last draw counts."""
    exact, chains = bench.conjugate(correlation=0.0), 300
    rate = 0.9 * exact.data.n / float(exact.precision.diagonal().max())
    for temperature in (1.0, 0.1):
        full = replace(recipe(rate, temperature), batch_size=None)  # type: ignore[call-arg]
        family: Any = bench.fit(full, exact.problem, exact.data, chains, start=exact.mean).parts[0].family
        off = ravel(family.params, 2)[:, -1] - exact.mean  # (C, d)
        expected = temperature * law(exact.precision.diagonal(), exact.data.n, rate)
        name = "" if temperature == 1 else f", temperature {temperature:g}"
        z = off.mean(0) / (expected / chains).sqrt()
        yield bench.close(f"mean of the draws{name}, in standard errors", "mu", z, torch.zeros_like(z), WIDE)
        ratio = off.square().mean(0) / expected
        error = math.sqrt(2 / chains)
        wrong = ((ratio - 1).abs() - slack).clamp(min=0.0) / error
        yield bench.close(f"variance of the draws{name}, in standard errors", says, wrong, torch.zeros_like(z), WIDE)


def small_step_checks(bench: Bench, recipe: Callable[[float, float], Method], slack: float) -> Iterator[Check]:
    """The same at steps that are small, where the law is the posterior's up to `slack`."""

    def law(precision: Tensor, n: int, rate: float) -> Tensor:
        return 1 / precision

    yield from stationary_checks(bench, recipe, law, "T / h, to first order in the step", slack)


def close_checks(bench: Bench, recipe: Chain, chains: int, bias: float) -> Iterator[Check]:
    """Means and variances of a sampler that rejects nothing, on a conjugate posterior in 20 dimensions: within
    Monte-Carlo error and a bias, in standard deviations and as a share of the variance."""
    exact = conjugate(n=60, d=20, correlation=0.3)
    family: Any = bench.fit(recipe, exact.problem, exact.data, chains, start=exact.mean).parts[0].family
    draws, variance = ravel(family.params, 2), exact.covariance.diagonal()
    scaled = (draws - exact.mean) / variance.sqrt()
    for name, says, seen, expected in (
        ("mean", "mu", scaled, 0.0),
        ("variance", "diagonal of Lambda^-1", scaled.square(), 1.0),
    ):
        wrong = ((seen.mean((0, 1)) - expected).abs() - bias).clamp(min=0.0) / mcse_mean(seen)
        yield bench.close(f"{name} of the draws, in standard errors", says, wrong, torch.zeros_like(wrong), WIDE)
    error = mcse_mean(scaled.square()).max()
    yield bench.close("standard error of the variance", "below 1/10", error, torch.zeros_like(error), 0.1)
