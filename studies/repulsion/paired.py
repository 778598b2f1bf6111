"""Scores of each test image, kept beside the records, and how methods differ on the same images.

For each method, set and seed a file holds minus the log probability of each image's class, and whether it was found: of
clean images, and of corrupted ones as the mean over all corruptions and severities of an image. So any two methods can
be compared image by image, and over seeds, without their predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from basinet import Predictive
from basinet.metrics import bootstrap_difference

SCORES = ("nll", "accuracy")  # what is compared, in the rows of an array
PARTS = ("clean", "corrupted")


class Kept(NamedTuple):
    """Where the scores of one method on one set lie, for one seed."""

    folder: Path
    data: str
    method: str
    seed: int

    @property
    def path(self) -> Path:
        plain = "".join(c if c.isalnum() else "-" for c in self.method.lower()).strip("-")
        return self.folder / f"{self.data}-{plain}-{self.seed}.npz"

    def write(self, scores: dict[str, Tensor], targets: Tensor) -> None:
        """`scores` are (2, B) for each of PARTS."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {part: x.numpy().astype(np.float32) for part, x in scores.items()}
        with open(partial := self.path.with_suffix(".part"), "wb") as file:
            np.savez_compressed(file, targets=targets.cpu().numpy(), **arrays)  # type: ignore[arg-type]
        partial.replace(self.path)

    def read(self) -> dict[str, Tensor] | None:
        """What `write` was given, with the targets; None where there is nothing."""
        if not self.path.exists():
            return None
        with np.load(self.path, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in (*PARTS, "targets")}


def each_score(predictive: Predictive, targets: Tensor) -> Tensor:
    """SCORES of each image, (2, B)."""
    correct = predictive.probs.argmax(-1).cpu() == targets.cpu()
    return torch.stack([-predictive.log_prob(targets).double().cpu(), correct.double()])


def differences(pairs: Iterable[tuple[dict[str, Tensor] | None, dict[str, Tensor] | None]]) -> dict[str, Any] | None:
    """How a method differs from another, for pairs of their scores, one per seed: for each part and score the mean of
    first less second, and its 95 % bootstrap interval over images, and over seeds where there are several. Seeds whose
    scores are not of the same images are left out; None where none is left."""
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    same = [(a, b) for a, b in both if torch.equal(a["targets"], b["targets"])]
    same = [(a, b) for a, b in same if torch.equal(a["targets"], same[0][0]["targets"])]
    if not same:
        return None
    gaps: dict[str, Any] = {"seeds": len(same)}
    for part in PARTS:
        first, second = (torch.stack([pair[i][part] for pair in same], 1) for i in (0, 1))  # (2, R, B)
        difference = bootstrap_difference(first, second, runs=True)
        rows = torch.stack([difference.difference, difference.low, difference.high], -1).tolist()
        gaps[part] = {name: dict(zip(("difference", "low", "high"), row)) for name, row in zip(SCORES, rows)}
    return gaps


def differences_in_words(gaps: dict[str, Any]) -> str:
    """Differences in a line."""
    each = [
        f"{part} {name} {row['difference']:+.4f} ({row['low']:+.4f}, {row['high']:+.4f})"
        for part in PARTS
        for name, row in gaps[part].items()
    ]
    return "  ".join(each)
