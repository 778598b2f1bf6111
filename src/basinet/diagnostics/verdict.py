"""What the numbers say, in words that follow from tests: each has a limit, and what to do beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .chance import rhat_limits
from .convergence import ess_bulk, ess_tail, rhat_of_both
from .temperatures import LEVEL, Temperature

UNSURE = 1.1  # a limit of R-hat beyond which agreement says nothing
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
    """What is tested of draws (C, K, Q) of Q quantities, of transitions, and of thermometers by name.


    >>> draws = torch.randn(4, 500, 1, generator=torch.Generator().manual_seed(0))
    >>> all(finding.passed for finding in findings(draws))
    True
    """
    chains, count, _ = draws.shape
    ratios, limits = rhat_of_both(draws).flatten(), rhat_limits(draws).flatten()
    at = int((ratios / limits).argmax())
    worst, limit, least = float(ratios[at]), float(limits[at]), float(ess_bulk(draws).min())
    tail = float(ess_tail(draws).min())
    wanted = ESS
    alone = " (one chain: only drift can be seen; run at least 4)" if chains == 1 else ""
    hidden = float(limits.max()) > UNSURE
    unsure = " (with this few effective draws, disagreement between chains may go unnoticed)" if hidden else ""
    tests = [
        Finding(worst <= limit, f"R-hat up to {worst:.3f}, limit {limit:.3g}{alone or unsure}"),
        Finding(least >= wanted, f"bulk ESS at least {least:,.0f} of {count * chains:,}, wanted {wanted:,}"),
        Finding(tail >= wanted, f"tail ESS at least {tail:,.0f}, wanted {wanted:,}"),
    ]
    if transitions is not None:
        tests += _of_transitions(transitions)
    for name, temperature in temperatures:
        value, low, high = temperature
        text = f"{name} temperature {value:.3f}, expected {low:.3f} to {high:.3f} ({LEVEL:.1%})"
        tests.append(Finding(temperature.right, text))
    return tests


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
    """All of it in one sentence.


    >>> print(verdict(findings(torch.randn(4, 500, 1, generator=torch.Generator().manual_seed(0)))))
    All 3 tests passed: no evidence against these draws.
    """
    failed = [test for test in tests if not test.passed]
    if not failed:
        return f"All {len(tests)} tests passed: no evidence against these draws."
    first = failed[0].text
    if first.startswith("R-hat"):
        return f"Do not trust these draws: chains disagree ({first}). Run longer, or from better starts."
    if any("divergences" in test.text for test in failed):
        text = next(test.text for test in failed if "divergences" in test.text)
        return (
            f"Trust with care: {text}: a region of high curvature is not reached. Use smaller steps, or another scale."
        )
    if any("temperature" in test.text for test in failed):
        text = next(test.text for test in failed if "temperature" in test.text)
        return f"These draws do not follow the posterior ({text}). Use smaller steps."
    if any(test.text.startswith("acceptance") for test in failed):
        return f"A chain hardly moves ({next(t.text for t in failed if t.text.startswith('acceptance'))})."
    if any("may go unnoticed" in test.text for test in tests):
        return f"There are too few effective draws to say whether chains agree ({failed[0].text}). Run longer."
    return f"Chains agree, but there are few effective draws ({failed[0].text}): keep more for tails and errors."
