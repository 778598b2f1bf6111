"""What to know about a table before believing any score: dates, duplicates, outliers, rows without inputs, and inputs
that give the target away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.wording import aside, option
from ..data.data import Data
from .columns import Number
from .cuts import equal_rows
from .encoder import Encoder
from .targets import Real
from .values import Values, listed, missing, shown

FEWEST = 20  # training rows, below which anything fits anything
LEAK = 0.9999  # of a correlation between an input and the target, above which it is no measurement
LINEAR = 0.999  # of the R^2 of a linear fit on rows that it was not fitted to
COPIES = 0.01  # of the held-out rows, from which on copies of training rows are reported
FAR_TARGET, FAR_INPUT = 10, 30  # standard deviations from the mean
_CELLS = 20_000_000  # numbers that a check takes at a time
_ROWS = 2000  # that a linear fit takes at most


class Fitted(NamedTuple):
    """A straight line through the training rows: how much it tells of others, and what it goes by."""

    r2: float
    weights: Tensor  # (inputs,), by which inputs of standard deviation 1 enter


def doubts_of_rows(
    chosen: Mapping[str, Values], target: Mapping[str, Values], rows: Sequence[np.ndarray], dated: Sequence[str]
) -> Iterator[str]:
    """About the rows: `dated` are columns of dates by which a split at random was not asked for."""
    if dated and len(rows) > 1:
        in_order = option("split='time'", "--split time")
        yield (
            f"{listed(dated, 3)} has dates, and rows are split at random: scores are those of filling gaps, not of "
            f"what comes later. {in_order} trains on the earliest rows and tests on the latest"
        )
    if len(rows) > 1:
        group = equal_rows({**chosen, **{f"{name} (target)": values for name, values in target.items()}})
        inside = np.isin(group[rows[-1]], group[rows[0]])
        if inside.mean() >= COPIES:
            yield (
                f"{len(group) - len(np.unique(group)):,} of {len(group):,} rows are copies of others, inputs and "
                f"target alike, and {int(inside.sum()):,} of the {len(inside):,} rows held out are in training too: "
                "scores are too good if these are not separate measurements. "
                f"{option('group_duplicates=True', '--group-duplicates')} keeps copies on one side"
            )
    empty = np.logical_and.reduce([missing(values) for values in chosen.values()])
    if empty.any():
        count, first = int(empty.sum()), int(empty.argmax()) + 1
        noun, verb, what = ("rows", "have", "them") if count > 1 else ("row", "has", "it")
        yield f"{count:,} {noun} (the first is {first:,}) {verb} no input at all: take {what} out of the file"


def doubts_of_values(encoder: Encoder, train: Data) -> Iterator[str]:
    """About values that lie far out among the training rows."""
    goal = encoder.target
    if isinstance(goal, Real):
        far = train.targets.abs()
        if (count := int((far > FAR_TARGET).sum())) > 0:
            logarithm = "Predict the logarithm, or use " if bool((train.targets > goal.zero).all()) else "Take "
            yield (
                f"{count:,} training row{'s have' if count > 1 else ' has'} {shown(goal.name)} more than {FAR_TARGET} "
                f"standard deviations from the mean (up to {float(far.max()):.0f}): they decide what is learned. "
                f"{logarithm}{_heavy_tails()}"
            )
    places = np.cumsum([0, *(len(column.features) for column in encoder.columns)])
    largest = train.inputs.abs().amax(0)
    far_out = [
        column.name
        for column, place in zip(encoder.columns, places)
        if isinstance(column, Number) and largest[place] > FAR_INPUT
    ]
    if far_out:
        yield (
            f"{listed(far_out, 5)}: values more than {FAR_INPUT} standard deviations from the mean, where the network "
            f"has seen next to nothing; logarithms, or leaving them out{_dropping()}, may help"
        )


def leaks(train: Data, val: Data | None, names: Sequence[str], kind: str) -> list[str]:
    """Inputs that give the target away: one alone, or several in a linear function."""
    if kind == "labels" or train.n < FEWEST:
        return []
    inputs, y = train.inputs.cpu(), train.targets.double().cpu().reshape(train.n, -1)[:, 0]
    step = max(1, _CELLS // train.n)
    knows = torch.cat(
        [(_correlated if kind == "real" else _separated)(some.double(), y) for some in inputs.split(step, 1)]
    )
    ask = f"known before the target is? If not, leave it out{_dropping()}"
    alone = [
        f"{shown(names[i])} alone determines the target of every training row: is it {ask}" for i in knows.nonzero()
    ]
    if alone or kind != "real" or val is None or val.n < 2:
        return alone
    line = linear_fit(train, val)
    if not line.r2 >= LINEAR:
        return []
    strength = line.weights.abs()
    most = [i for i in strength.argsort(descending=True).tolist() if strength[i] > 0.05 * strength.max()]
    return [
        f"a linear function of the inputs predicts the target of unseen rows almost exactly (R^2 {line.r2:.5f}), "
        f"mostly from {listed([names[i] for i in most], 5)}: is the target computed from them? If so, leave them "
        f"out{_dropping()}"
    ]


def _heavy_tails() -> str:
    own = "likelihood=bn.likelihoods.StudentT(scale=0.5, learned=True)"
    return option(own, "--likelihood StudentT")


def _dropping() -> str:
    return aside(option("drop=", "--drop", ""))


def linear_fit(train: Data, val: Data) -> Fitted:
    """Least squares on training rows, R^2 on validation rows; some of either, where they are many."""
    rows = min(_ROWS, max(FEWEST, _CELLS // max(1, train.inputs.shape[1])))
    x, new = (data.inputs[:rows].double().cpu() for data in (train, val))
    y, truth = (data.targets.reshape(data.n, -1)[:rows, :1].double().cpu() for data in (train, val))
    middle, mean = x.mean(0), y.mean(0)
    x, y = x - middle, y - mean
    small = 1e-10 * x.square().sum() + 1e-12  # where inputs repeat each other, or are all equal
    if x.shape[1] <= x.shape[0]:
        weights = torch.linalg.solve(x.T @ x + small * torch.eye(x.shape[1]), x.T @ y)
    else:
        weights = x.T @ torch.linalg.solve(x @ x.T + small * torch.eye(x.shape[0]), y)
    left = (truth - mean - (new - middle) @ weights).square().sum()
    spread = (truth - truth.mean()).square().sum()
    r2 = 1 - float(left / spread) if float(spread) > 0 else 0.0
    return Fitted(r2, weights[:, 0] * x.std(0, correction=0))


def _correlated(inputs: Tensor, y: Tensor) -> Tensor:
    """(d,) bool: inputs whose ranks are those of the target, or that lie on a line with it."""
    ranks, own = inputs.argsort(0).argsort(0).double(), y.argsort().argsort().double()
    return (_correlation(ranks, own).abs() > LEAK) | (_correlation(inputs, y).abs() > LEAK)


def _correlation(x: Tensor, y: Tensor) -> Tensor:
    x, y = x - x.mean(0), y - y.mean()
    return (x * y[:, None]).sum(0) / (x.norm(dim=0) * y.norm()).clamp(min=1e-12)


def _separated(inputs: Tensor, y: Tensor) -> Tensor:
    """(d,) bool: inputs along which every class is an interval of its own."""
    values, order = inputs.sort(0)
    changes = y[order][1:] != y[order][:-1]  # (n - 1, d)
    classes = len(y.unique())
    different = values[1:] != values[:-1]
    clean = ~(changes & ~different).any(0)  # no value in two classes
    many = different.sum(0) + 1 > max(4, 2 * classes)
    return (changes.sum(0) + 1 == classes) & clean & many
