"""What the figures show, computed from numbers per test example. Plain numpy."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_NUMBERS = 2**21  # of one temporary array of resamples
BINS = 15  # of confidence, as the records' ECE
LEVEL = 0.95  # of every interval in the report, if it is not said otherwise
FEWEST = 10  # examples that an interval is made of: resamples of fewer show less than chance does
LITTLE = 0.01  # nats per example: the truth is held to be one percent less probable
RESAMPLES = 2000
LARGE = 50_000
FAR = 100


class Difference(NamedTuple):
    """A mean difference and the interval it lies in."""

    mean: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0

    @property
    def matters(self) -> bool:
        """Whether it is real and may be more than LITTLE."""
        return self.real and self.high >= LITTLE


def paired_differences(gaps: np.ndarray, seed: int = 0) -> list[Difference]:
    """Percentile bootstrap intervals of the means of `gaps` (S seeds, B examples, R comparisons).

    A resample draws S seeds and B examples with replacement, the same ones for all comparisons: the interval is for new
    trainings and new examples, and for one seed for new examples with the networks as they are. Of more than `LARGE`
    examples the mean is close to normal, and so is its interval. Values that are not finite have none, and nor have
    fewer than `FEWEST` examples."""
    gaps = np.asarray(gaps, dtype=np.float64)
    finite = np.isfinite(gaps).all((0, 1)) & (gaps.shape[1] >= FEWEST)
    usable = np.where(finite, gaps, 0.0)
    if gaps.shape[1] > LARGE:
        of_seeds, of_examples = (usable.mean(axis).var(0) / usable.shape[1 - axis] for axis in (1, 0))
        half = 1.96 * np.sqrt(of_seeds + of_examples)
        low, high = usable.mean((0, 1)) - half, usable.mean((0, 1)) + half
    else:
        low, high = np.quantile(_resampled(usable, seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    nan = math.nan
    return [
        Difference(float(gaps[..., j].mean()), float(low[j]), float(high[j]))
        if finite[j]
        else Difference(nan, nan, nan)
        for j in range(gaps.shape[2])
    ]


def _resampled(gaps: np.ndarray, seed: int) -> np.ndarray:
    """Means of resamples (RESAMPLES, R)."""
    seeds, n, _ = gaps.shape
    rng = np.random.default_rng(seed)
    means = []
    chunk = max(1, _NUMBERS // n)
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        share = _counts(rng, size, n) / n  # (size, B)
        weight = _counts(rng, size, seeds) / seeds  # (size, S)
        means.append(sum(weight[:, s, None] * (share @ gaps[s]) for s in range(seeds)))
    return np.concatenate(means)


def _counts(rng: np.random.Generator, size: int, n: int) -> np.ndarray:
    """How often each of n was drawn in n draws with replacement, in `size` resamples."""
    drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
    return np.bincount(drawn.reshape(-1), minlength=size * n).reshape(size, n)


def wilson(right: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share, from the observed share `right` of n."""
    centre = (right + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(right * (1 - right) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


class Bins(NamedTuple):
    """Examples by their confidence, in bins that are not empty."""

    middle: np.ndarray  # of the bin
    confidence: np.ndarray  # mean in the bin
    accuracy: np.ndarray
    size: np.ndarray  # examples in it
    width: float


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> Bins:
    """Bins of equal width over [0, 1]; the ECE is the mean of |accuracy - confidence| weighted by count."""
    confidence = np.asarray(confidence, dtype=np.float64).reshape(-1)
    correct = np.asarray(correct, dtype=np.float64).reshape(-1)
    inner = [k / bins for k in range(1, bins)]
    place = np.searchsorted(inner, confidence, side="left")  # (low, high], as the records' ECE
    count = np.bincount(place, minlength=bins)
    here = count > 0
    mean = np.bincount(place, confidence, bins)[here] / count[here]
    share = np.bincount(place, correct, bins)[here] / count[here]
    return Bins((np.arange(bins)[here] + 0.5) / bins, mean, share, count[here], 1 / bins)


def risk_coverage(uncertainty: np.ndarray, loss: np.ndarray, points: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Mean loss of the most certain share of examples, at up to `points` shares. Ties are kept together by sharing
    their mean loss."""
    order = np.argsort(uncertainty, kind="stable")
    u, loss = np.asarray(uncertainty)[order], np.asarray(loss, dtype=np.float64)[order]
    _, group, size = np.unique(u, return_inverse=True, return_counts=True)
    loss = (np.bincount(group, loss) / size)[group]
    n = len(loss)
    risk = np.cumsum(loss) / np.arange(1, n + 1)
    at = np.unique(np.ceil(np.linspace(1 / points, 1, points) * n).astype(int))
    return at / n, risk[at - 1]


def interval_coverage(pit: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Share of targets inside central intervals of each level, from their probability integral transforms."""
    away = np.sort(2 * np.abs(np.asarray(pit, dtype=np.float64).reshape(-1) - 0.5))
    return np.searchsorted(away, levels, side="right") / len(away)


def histogram(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Share of values in each bin."""
    values = np.asarray(values, dtype=np.float64)
    values = values[np.isfinite(values)]
    return np.histogram(values, edges)[0] / max(len(values), 1)


def off_scale(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Which rows are so far above the others that a common scale would show nothing else.

    Of each row: the value it is judged by, and the least and greatest of what is to be seen of it. The better half of
    rows spans some range; a row is off where its value is more than `FAR` such ranges above the median."""
    values = np.asarray(values, dtype=np.float64)
    middle = np.median(values)
    better = values <= middle
    span = np.max(np.asarray(high)[better]) - np.min(np.asarray(low)[better])
    if len(values) < 4 or span <= 0:
        return np.zeros(len(values), dtype=bool)
    return values > middle + FAR * span


def front(cost: np.ndarray, loss: np.ndarray) -> list[int]:
    """Indices of the Pareto front, the cheapest first: nothing is both as cheap and as good, and better in one."""
    indices: list[int] = []
    best = math.inf
    for i in np.lexsort((loss, cost)):
        if loss[i] < best:
            indices.append(int(i))
            best = loss[i]
    return indices
