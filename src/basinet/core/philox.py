"""Philox4x32-10 (Salmon et al. 2011): random words from a counter and a key, in tensors, or in numpy for one key.

Both give the same words. Tensors run under `vmap`, compiled and on any device; numpy works in place on a stretch of the
counter that stays in the processor's cache, and takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_STRETCH = 2**14  # counters at a time


def philox(counter: Sequence[Tensor | int], key: Sequence[Tensor | int]) -> tuple[Tensor, ...]:
    """Four 32-bit words from four counter words and two key words (int64 tensors, broadcast, or Python's numbers)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2  # wrap around 2^64: the upper word is still right
        c0, c1 = ((high >> 32) & MASK) ^ c1 ^ k0, high & MASK  # each masked at once: compiled, later is too late
        c2, c3 = ((low >> 32) & MASK) ^ c3 ^ k1, low & MASK
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return c0, c1, c2, c3  # type: ignore[return-value]


def blocks(begin: int, end: int, key: tuple[int, int]) -> np.ndarray:
    """The words of the counters (begin, 0, 0) ... (end - 1, 0, 0), as the block's number in the two lower words has it:
    uint32 (end - begin, 4)."""
    words = np.empty((end - begin, 4), np.uint32)
    for first in range(begin, end, _STRETCH):
        last = min(first + _STRETCH, end)
        _stretch(first, key, words[first - begin : last - begin])
    return words


def _stretch(begin: int, key: tuple[int, int], into: np.ndarray) -> None:
    """Writes the words of the counters from `begin` on, as many as there are rows."""
    k0, k1 = key
    shift, mask = np.uint64(32), np.uint64(MASK)
    c0 = np.arange(begin, begin + len(into), dtype=np.uint64)
    c1, c2, c3 = c0 >> shift, np.zeros_like(c0), np.zeros_like(c0)
    c0 &= mask
    for _ in range(_ROUNDS):
        c0 *= np.uint64(_MULTIPLY[0])  # from here on `low` of the tensors' form, and c2 is `high`
        c2 *= np.uint64(_MULTIPLY[1])
        c1 ^= np.uint64(k0)
        c3 ^= np.uint64(k1)
        c1 ^= c2 >> shift
        c3 ^= c0 >> shift
        c1 &= mask
        c3 &= mask
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    for i, word in enumerate((c0, c1, c2, c3)):
        into[:, i] = word  # the lower 32 bits
