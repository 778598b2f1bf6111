"""Suggests what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean x?' for the closest known word, and the list of all of them."""
    words = sorted(known)
    return f"{nearest(word, words)} Known: {', '.join(words)}."


def nearest(word: str, known: Iterable[str], most: int = 1) -> str:
    """' Did you mean x?' for the closest known words, the very closest first; nothing where none is close."""
    lower = {w.lower(): w for w in known}
    close = difflib.get_close_matches(word.lower(), lower, n=most, cutoff=0.4)
    return f" Did you mean {' or '.join(repr(lower[w]) for w in close)}?" if close else ""
