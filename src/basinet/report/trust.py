"""How far predictions can be trusted: tests of calibration at all levels at once, and which way it fails.

Every word here follows from a test. Of real targets: how often central intervals of five levels hold the target
(binomial), on which side of the median targets lie (binomial), and whether their places in the predictive distributions
are uniform (Kolmogorov and Smirnov). Of classes: how many answers are right, in all and in bands of confidence, against
what the confidences add up to (Poisson-binomial). Together they raise a false alarm with a probability of 5 % (Holm's
correction). Seeds share their examples: several count as one set of examples, which is on the safe side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .measures import interval_coverage, wilson
from .run import Row, Run
from .words import listed, number

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of central intervals
BANDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)  # of confidence
ALPHA = 0.05  # chance that anything is said to be wrong where nothing is
EXACT = 400.0  # variance of a number of right answers, above which it is as good as normal


class Trust(NamedTuple):
    """What the tests found."""

    word: str  # the verdict in a few words
    said: str  # all of it, in sentences
    wrong: bool  # whether any test failed


class Finding(NamedTuple):
    """One test: what was promised, what was held, and the probability of such a distance by chance."""

    what: str
    promised: float
    held: float
    p: float


def trust_of(run: Run, row: Row) -> Trust | None:
    """The verdict on a row; None where its predictions were not kept."""
    return _of_numbers(run, row) if run.kind == "real" else _of_classes(run, row)


def failed(findings: list[Finding], alpha: float = ALPHA) -> list[Finding]:
    """Those that fail by Holm's rule, in the order they came."""
    order = sorted(range(len(findings)), key=lambda i: findings[i].p)
    bad: set[int] = set()
    for rank, i in enumerate(order):
        if not findings[i].p <= alpha / (len(findings) - rank):
            break
        bad.add(i)
    return [f for i, f in enumerate(findings) if i in bad]


def binomial_p(k: int, n: int, p: float) -> float:
    """Two-sided: twice the smaller tail of k of n at a chance of p."""
    i = np.arange(1, n + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - i + 1) / i))]) + np.arange(n + 1) * math.log(p)
    mass = np.exp(logs + (n - np.arange(n + 1)) * math.log1p(-p))
    return float(min(1.0, 2 * min(mass[: k + 1].sum(), mass[k:].sum())))


def right_p(right: int, chances: np.ndarray) -> float:
    """Two-sided, of `right` right answers, each with a chance of its own (Poisson-binomial)."""
    chances = np.clip(np.asarray(chances, dtype=np.float64), 0.0, 1.0)
    variance = float((chances * (1 - chances)).sum())
    if variance > EXACT:
        z = max(0.0, abs(right - chances.sum()) - 0.5) / math.sqrt(variance)
        return math.erfc(z / math.sqrt(2))
    mass = np.ones(1)  # of 0, 1, ... right answers
    for c in chances[(chances > 0) & (chances < 1)]:
        mass = np.convolve(mass, (1 - c, c))
    k = right - int((chances == 1).sum())
    if not 0 <= k < len(mass):
        return 0.0
    return float(min(1.0, 2 * min(mass[: k + 1].sum(), mass[k:].sum())))


def flatness_p(places: np.ndarray, n: int) -> float:
    """Of a Kolmogorov-Smirnov distance of `places` from uniform, as if there were n of them."""
    u = np.sort(places)
    grid = np.arange(len(u) + 1) / len(u)
    distance = float(max(np.abs(u - grid[1:]).max(), np.abs(u - grid[:-1]).max()))
    x = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))  # Stephens
    return min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))))


def _of_numbers(run: Run, row: Row) -> Trust | None:
    pit = row.joined("pit")
    kept = None if pit is None else pit.reshape(-1)[np.isfinite(pit.reshape(-1))]
    if kept is None or not len(kept):
        return _of_coverage(run, row)
    n = max(1, len(kept) // len(row.have("pit")))
    held = interval_coverage(kept, np.array(LEVELS))
    levels = [Finding(f"{level:.0%}", level, float(h), _share_p(h, n, level)) for level, h in zip(LEVELS, held)]
    above = float((kept > 0.5).mean())
    side, flat = Finding("median", 0.5, above, _share_p(above, n, 0.5)), Finding("flat", 0, 0, flatness_p(kept, n))
    bad = failed([*levels, side, flat])
    wide, narrow = ([f for f in bad if f in levels and sign * (f.held - f.promised) > 0] for sign in (1, -1))
    words, said = [], []
    for word, some in (("too wide", wide), ("too narrow", narrow)):
        if some:
            words.append(word)
            at = listed([f"those of {f.what} contain {f.held:.1%}" for f in some])
            said.append(f"Its intervals are {word}: {at} of the targets ({_chance(some)}).")
    if side in bad:
        words.append("shifted")
        where = "above" if above > 0.5 else "below"
        most = max(above, 1 - above)
        said.append(f"{most:.1%} of the targets lie {where} the predicted median ({_chance([side])}): it is biased.")
    if bad == [flat]:
        words.append("off in shape")
        said.append(f"Intervals contain as many targets as they should, but unevenly placed ({_chance(bad)}).")
    if not bad:
        said.append(
            f"Its intervals have the right width at every level from 50 % to 99 %, as far as {n:,} examples show."
        )
    return Trust(" and ".join(words) or "as promised", " ".join([*said, _of_ninety(run, row, n)]).strip(), bool(bad))


def _of_ninety(run: Run, row: Row, n: int) -> str:
    inside, width = row.value("coverage_90"), row.value("width_90")
    if math.isnan(inside):
        return ""
    low, high = wilson(min(1.0, max(0.0, inside)), n)
    said = f"Its 90 % intervals contain {inside:.1%} (95 % interval of that share: {low:.1%} to {high:.1%})"
    unit = f" {run.unit}" if run.unit else ""
    return said + (f" and are {number(width)}{unit} wide on average." if math.isfinite(width) else ".")


def _of_coverage(run: Run, row: Row) -> Trust | None:
    """Only from the records, if predictions were not kept: one level."""
    inside, n = row.value("coverage_90"), run.n_test
    if not 0 <= inside <= 1 or n < 1:
        return None
    p = _share_p(inside, n, 0.9)
    word = "as promised" if p > ALPHA else "too wide" if inside > 0.9 else "too narrow"
    lean = f"{word} ({_chance([Finding('', 0.9, inside, p)])})" if p <= ALPHA else "of the right width there"
    said = f"Its 90 % intervals are {lean}; other levels cannot be judged without predictions."
    return Trust(word, f"{said} {_of_ninety(run, row, n)}", p <= ALPHA)


def _of_classes(run: Run, row: Row) -> Trust | None:
    confidence, correct = row.joined("confidence"), row.joined("correct")
    if confidence is None or correct is None:
        return None
    good = np.isfinite(confidence.reshape(-1))
    confidence, right = confidence.reshape(-1)[good].astype(np.float64), correct.reshape(-1)[good]
    seeds = len(row.have("confidence", "correct"))
    if not len(right):
        return None
    whole = _band("", confidence, right, seeds)
    place = np.clip(np.searchsorted(BANDS, confidence, side="right") - 1, 0, len(BANDS) - 2)
    bands = [
        _band(f"{BANDS[b]:.0%} to {BANDS[b + 1]:.0%}", confidence[place == b], right[place == b], seeds)
        for b in range(len(BANDS) - 1)
        if (place == b).sum() >= seeds
    ]
    bad = failed([whole, *bands])
    over, shy = ([f for f in bad if sign * (f.promised - f.held) > 0] for sign in (1, -1))
    n = max(1, len(right) // seeds)
    low, high = wilson(float(right.mean()), n)
    bounds = f"{right.mean():.1%} (95 % interval {low:.1%} to {high:.1%})"
    if not bad:
        word = "calibrated"
    elif over and shy:
        word = "over-confident in places and too cautious in others"
    else:
        word = "over-confident" if over else "too cautious"
    so_far = " overall and in bands of confidence, as far as these examples show" if not bad else ""
    if run.kind == "labels":
        held = f"{row.name} holds all labels of an example together to be right with {confidence.mean():.1%}"
        said = f"It is {word}{so_far}: on average {held}, and they are in {bounds}."
    else:
        mean = f"the mean confidence of {row.name} is {confidence.mean():.1%}"
        said = f"It is {word}{so_far}: {mean}, its accuracy {bounds}."
    clauses = [f"where it is {f.what} sure, {f.held:.1%} are right instead of {f.promised:.1%}" for f in bad if f.what]
    if clauses:
        said += f" {listed(clauses)[:1].upper()}{listed(clauses)[1:]} ({_chance(bad)})."
    elif bad:
        said += f" That is more than chance ({_chance(bad)})."
    return Trust(word, said, bool(bad))


def _band(what: str, confidence: np.ndarray, right: np.ndarray, seeds: int) -> Finding:
    """How many are right against what confidences add up to; of several seeds an example counts once."""
    thinned = np.sort(confidence)[seeds // 2 :: seeds]
    share = float(right.mean())
    return Finding(what, float(confidence.mean()), share, right_p(round(share * len(thinned)), thinned))


def _share_p(share: float, n: int, promised: float) -> float:
    return binomial_p(min(n, max(0, round(float(share) * n))), n, promised)


def _chance(some: list[Finding]) -> str:
    """The probabilities of tests, as people write them."""
    least = min(f.p for f in some)
    return "p < 1e-15" if least < 1e-15 else f"p = {least:.1g}"
