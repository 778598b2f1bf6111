"""Suggests what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean x?' for the closest known word, and the list of all of them."""
    words = sorted(known)
    lower = {w.lower(): w for w in words}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.4)
    hint = f" Did you mean {lower[close[0]]!r}?" if close else ""
    return f"{hint} Known: {', '.join(words)}."
