"""The UCI regression sets with the splits that papers share, from uci_NAME.npz files in a folder.

A file has X (N, D) and y (N,), the rows of each split as train (splits, n) and test (splits, N - n), and what Gal and
Ghahramani's code for MC dropout found on the same splits: ref_test_mc_rmse and ref_test_ll, in units of y. The splits
are those of Hernandez-Lobato and Adams (2015): 20, and 5 of protein.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..core.nearest import did_you_mean
from ..data.data import Data
from ..data.formats import read_npz
from .columns import moments
from .targets import Real

NAMES = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine_red", "yacht")


class UCISet(NamedTuple):
    """One set, as it is in its file."""

    name: str
    inputs: np.ndarray  # (N, D) float64
    targets: np.ndarray  # (N,) float64, in their own units
    train: np.ndarray  # (splits, n) rows
    test: np.ndarray  # (splits, N - n) rows
    reference_rmse: np.ndarray  # (splits,) of MC dropout
    reference_ll: np.ndarray  # (splits,) of MC dropout, mean log likelihood of a test row

    @property
    def splits(self) -> int:
        return len(self.train)

    def part(self, fit: np.ndarray, *others: np.ndarray) -> tuple[list[Data], Real]:
        """Data of the rows `fit` and of others, all standardised by only the rows `fit`, and the target's units.

        A column that is constant in `fit` becomes zero there.
        """
        target = Real.fit("y", self.targets[fit], f"{self.name}, y")
        scales = [moments(self.inputs[fit, d], f"{self.name}, column {d}") for d in range(self.inputs.shape[1])]
        mean, sd = np.array(scales).T
        inputs = torch.from_numpy((self.inputs - mean) / sd).float()
        targets = torch.from_numpy((self.targets - target.mean) / target.sd).float().unsqueeze(-1)
        return [Data(inputs[rows], targets[rows]) for rows in (fit, *others)], target


def load(name: str, folder: Path | str) -> UCISet:
    """The set of that name from folder/uci_NAME.npz."""
    check(name)
    path = Path(folder) / f"uci_{name}.npz"
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; expected the folder of the uci_NAME.npz files")
    arrays = read_npz(path, ("X", "y", "train", "test", "ref_test_mc_rmse", "ref_test_ll"))
    x, y, train, test, rmse, ll = arrays.values()
    shapes = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
    if (
        x.ndim != 2
        or x.shape[:1] != y.shape
        or train.ndim != 2
        or test.ndim != 2
        or len({*map(len, (train, test, rmse, ll))}) > 1
    ):
        raise ValueError(f"{path}: expected X (N, D), y (N,) and a row of the others for each split, got {shapes}")
    rows = np.concatenate([train, test], 1).astype(np.int64)
    if rows.shape[1] != len(y) or (np.sort(rows, 1) != np.arange(len(y))).any():
        raise ValueError(f"{path}: expected every row of X once in train and test of each split, got {shapes}")
    x, y, rmse, ll = (a.astype(np.float64) for a in (x, y, rmse, ll))
    return UCISet(name, x, y, rows[:, : train.shape[1]], rows[:, train.shape[1] :], rmse, ll)


def check(name: str) -> None:
    """Raises where there is no set of that name."""
    if name not in NAMES:
        raise ValueError(f"expected the name of a UCI set, got {name!r}.{did_you_mean(name, NAMES)}")
