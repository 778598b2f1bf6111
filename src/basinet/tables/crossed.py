"""Validation of an ensemble on a table: each member leaves out rows of its own, so that no row is lost to all of them.

An ensemble that shares its validation rows learns nothing from them, which costs most where there are few. Beyond ROWS
rows there are enough, and one part serves all members: it can judge their mixture itself.
"""

from __future__ import annotations

import torch

from ..data.data import Data
from ..data.datasets import Splits

ROWS = 20_000  # of training and validation together, up to which members have validation rows of their own
APART = "not split at random one by one, but by time, by a column, or with copies together"  # where none may be crossed
MEMBERS = 64  # for which rows are drawn at least: an ensemble of fewer can grow in its pool


def crossed(train: Data, val: Data, members: int, seed: int) -> tuple[Data, Data]:
    """Both parts, of rows that may change places, with rows for each member in the proportion that they have; as they
    are, where they hold many."""
    if train.n + val.n > ROWS:
        return train, val
    weights = None
    if train.weights is not None and val.weights is not None:
        weights = torch.cat([train.weights, val.weights])
    whole = Data(torch.cat([train.inputs, val.inputs]), torch.cat([train.targets, val.targets]), weights)
    return whole.held_out(max(MEMBERS, members), val.n / whole.n, seed)


def why_not_crossed(splits: Splits) -> str:
    """Why members cannot have validation rows of their own; empty where they can."""
    if not splits.exchangeable:
        return f"rows of the validation part may not be trained on, as they were {APART}"
    if not isinstance(splits.train.inputs, torch.Tensor):
        return "the inputs are not a table"
    return (
        "" if splits.train.n + splits.val.n <= ROWS else f"with more than {ROWS:,} rows one validation part serves all"
    )
