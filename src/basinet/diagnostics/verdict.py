"""What the numbers say, in words that follow from tests: each has a limit, and what to do beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from .convergence import ess_bulk, ess_tail, rhat
from .temperatures import Temperature

RHAT = 1.01  # as Vehtari et al. advise, where draws are so many that chance alone stays below
ALARM = 0.01  # probability that independent draws of one law exceed the limit of R-hat
ESS = 400  # effective draws of all chains together, as they advise
REJECTED = 0.05  # acceptance below this: a chain hardly moves


class Transitions(NamedTuple):
    """How the transitions of all chains went, from the end of the warm-up on."""

    acceptance: float | None = None  # the mean probability of acceptance; None where nothing is rejected
    worst: float | None = None  # that of the chain with the lowest
    divergences: int = 0  # trajectories whose energy error was beyond all bounds
    transitions: int = 0
    energy_error: float | None = None  # the mean of |H - H_0| over them


class Finding(NamedTuple):
    """A test, its outcome, and what follows from it."""

    passed: bool
    text: str


def findings(
    draws: Tensor, transitions: Transitions | None = None, temperatures: Sequence[tuple[str, Temperature]] = ()
) -> list[Finding]:
    """What is tested of draws (C, K, Q) of Q quantities, of transitions, and of thermometers by name."""
    chains, count, _ = draws.shape
    ratios, limits = rhat(draws), rhat_limit(draws)
    at = int((ratios / limits).argmax())
    worst, limit, least = float(ratios[at]), float(limits[at]), float(ess_bulk(draws).min())
    tail = float(ess_tail(draws).min())
    wanted = ESS
    alone = " (one chain: only drift can be seen; run at least 4)" if chains == 1 else ""
    tests = [
        Finding(worst <= limit, f"R-hat {worst:.3f} at the worst, limit {limit:.3g}{alone}"),
        Finding(least >= wanted, f"bulk ESS at least {least:,.0f} of {count * chains:,}, wanted {wanted:,}"),
        Finding(tail >= wanted, f"tail ESS at least {tail:,.0f}, wanted {wanted:,}"),
    ]
    if transitions is not None:
        tests += _of_transitions(transitions)
    for name, temperature in temperatures:
        value, low, high = temperature
        tests.append(
            Finding(temperature.right, f"{name} temperature {value:.3f}, expected {low:.3f} to {high:.3f} (99 %)")
        )
    return tests


def rhat_limit(draws: Tensor) -> Tensor:
    """What R-hat of each quantity may be, (Q,): RHAT, or what the largest of this many is by chance in so few draws.

    Means of the 2 C halves vary by a chi-square with 2 C - 1 degrees of freedom, over the effective draws of a half.
    Those are counted within chains, so that chains which disagree do not get a wider limit for it.
    """
    chains, _, quantities = draws.shape
    freedom = 2 * chains - 1
    z = NormalDist().inv_cdf(1 - ALARM / (2 * quantities))  # place and scale are looked at
    quantile = (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3  # over freedom, by Wilson and Hilferty
    half = torch.stack([ess_bulk(chain.unsqueeze(0)) for chain in draws]).mean(0).clamp(max=draws.shape[1]) / 2
    return (1 + (quantile - 1) / half).sqrt().clamp(min=RHAT)


def _of_transitions(seen: Transitions) -> list[Finding]:
    tests = []
    if seen.acceptance is not None and seen.worst is not None:
        energy = "" if seen.energy_error is None else f", mean energy error {seen.energy_error:.2g}"
        text = f"acceptance {seen.acceptance:.2f}, lowest of a chain {seen.worst:.2f}{energy}"
        tests.append(Finding(seen.worst >= REJECTED, text))
    share = seen.divergences / max(1, seen.transitions)
    text = f"{seen.divergences:,} divergences in {seen.transitions:,} transitions ({share:.1%})"
    tests.append(Finding(seen.divergences == 0, text))
    return tests


def verdict(tests: Sequence[Finding]) -> str:
    """All of it in one sentence."""
    failed = [test for test in tests if not test.passed]
    if not failed:
        return f"All {len(tests)} tests passed: nothing speaks against these draws."
    first = failed[0].text
    if first.startswith("R-hat"):
        return f"Do not trust these draws: chains disagree ({first}). Run longer, or from better starts."
    if any("divergences" in test.text for test in failed):
        text = next(test.text for test in failed if "divergences" in test.text)
        return f"Trust with care: {text}: a region of high curvature is not reached. Smaller steps, or another scale."
    if any("temperature" in test.text for test in failed):
        text = next(test.text for test in failed if "temperature" in test.text)
        return f"These draws have another law than the posterior ({text}). Smaller steps."
    if any(test.text.startswith("acceptance") for test in failed):
        return f"A chain hardly moves ({next(t.text for t in failed if t.text.startswith('acceptance'))})."
    return f"Chains agree, but there are few effective draws ({failed[0].text}): keep more for tails and errors."
