"""What is compared on: a default problem for data, what the data look like, and what is suspicious about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..checkpoints import read_weights
from ..core.tree import Point, leaves, stack
from ..data import Data
from ..data.datasets import Splits
from ..defaults import Design, Maker, candidates_for
from ..families import Delta
from ..posterior import Part, Posterior, member_of
from ..problem import Problem
from ..problem.likelihoods import ClassLikelihood, LabelLikelihood, Likelihood
from ..problem.priors import Prior
from ..problem.spread import set_noise
from ..tables import Encoder
from ..tables.doubts import leaks
from .units import Unit

BYTES = 20 * 2**20  # of the inputs in test.npz
FEW = 30  # test examples, below which scores are said to be mostly chance


def default_problem(
    splits: Splits,
    make: Maker | None = None,
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
    hidden: Sequence[int] | None = None,
) -> Problem:
    """A network, likelihood and prior that fit the data: those of `defaults`, but for what is given."""
    return default_problems(splits, Design(make, likelihood, prior, hidden))[0]


def default_problems(splits: Splits, design: Design = Design()) -> tuple[Problem, ...]:  # noqa: B008  # it cannot change
    """That, and what validation may prefer to it."""
    first = leaves(splits.train.inputs)
    if len(first) != 1:
        raise ValueError(f"expected inputs of one tensor for the built-in network, got {len(first)}: pass a problem")
    outputs = splits.classes or splits.train.targets[0].numel()
    zero = -splits.target_mean / splits.target_sd
    targets, table = splits.train.targets, splits.image is None
    return candidates_for(first[0], outputs, splits.kind, design, targets=targets, zero=zero, table=table)


def kind_of(problem: Problem) -> str:
    """classes, labels or real: what the targets are."""
    likelihood = problem.likelihood
    return (
        "classes"
        if isinstance(likelihood, ClassLikelihood)
        else "labels"
        if isinstance(likelihood, LabelLikelihood)
        else "real"
    )


def unit_of(splits: Splits) -> Unit:
    """How scores and predictions go back to the units of the target."""
    return Unit() if splits.kind != "real" else Unit(splits.target_mean, splits.target_sd)


def given_weights(file: Path, problem: Problem) -> Posterior:
    """The problem's network with the weights of a file, as what methods start from."""
    return Posterior((_part(problem, read_weights(file, problem)),))


def settled(start: Posterior, val: Data) -> Posterior:
    """The same point with the noise, where it is learned and so in no file of weights, at the size that the validation
    residuals tell."""
    if len(start) != 1:
        raise ValueError(f"expected a start of one member, such as bn.Posterior.of(module, problem), got {len(start)}")
    problem = start.problem
    if start.recipe is not None or problem.likelihood.spread is None:
        return start
    [point] = start.points()
    return Posterior((_part(problem, set_noise(problem, point, val).point),))


def _part(problem: Problem, point: Point) -> Part:
    return Part(problem, stack([Delta(point.params, point.buffers)]), (member_of(point),))


def about_inputs(splits: Splits, encoder: Encoder | None = None) -> dict[str, Any]:
    """The kind of the inputs, their shape, and the names of columns: those of the file, where there was one."""
    first = leaves(splits.train.inputs)
    shape = list(splits.image or first[0].shape[1:])
    names = None if splits.feature_names is None else list(splits.feature_names)
    names = names if encoder is None else [column.name for column in encoder.columns]
    if len(first) != 1:
        return {"kind": "other", "shape": [], "columns": None}
    if splits.image or (len(shape) == 3 and shape[0] in (1, 3)):
        shape = shape if splits.image or shape[0] == 3 else shape[1:]
        shape = [*shape[1:], 3] if len(shape) == 3 and shape[0] == 3 else shape
        return {"kind": "images", "shape": shape, "columns": None}
    return {"kind": "rows" if len(shape) == 1 else "other", "shape": shape, "columns": names}


def test_arrays(splits: Splits, encoder: Encoder | None) -> dict[str, np.ndarray]:
    """What test.npz holds: targets in their units, and inputs a person can look at, as many as fit."""
    unit, about = unit_of(splits), about_inputs(splits)
    targets = splits.test.targets.cpu()
    if splits.kind == "real":
        targets = unit.back(targets.double()).float()
    arrays = {"targets": targets.reshape(len(targets), -1).squeeze(1).numpy() if targets.dim() > 1 else targets.numpy()}
    if about["kind"] == "other":
        return arrays | {"n_inputs": np.array(0)}
    x = leaves(splits.test.inputs)[0].cpu()
    if about["kind"] == "images":
        x = x.movedim(1, -1) if x.dim() == 4 and x.shape[1] == 3 else x
        pixels = x.float().clamp(0, 1) if x.is_floating_point() else x.float() / 255
        inputs = (255 * pixels).round().to(torch.uint8).reshape(len(x), *about["shape"]).numpy()
    else:
        inputs = x.float().numpy() if encoder is None else encoder.cells(x)
    n = min(len(inputs), max(1, BYTES // max(1, inputs[0].nbytes)))
    return arrays | {"inputs": inputs[:n], "n_inputs": np.array(n)}


def suspicions(splits: Splits) -> list[str]:
    """What to look at before believing any score: few test examples, inputs that give the target away."""
    n = splits.test.n
    few = [f"{n} test example{'s' * (n > 1)} say very little: scores are mostly chance"] if n < FEW else []
    return few + _leaks(splits)


def _leaks(splits: Splits) -> list[str]:
    """Inputs that know the target."""
    x = leaves(splits.train.inputs)
    if splits.feature_names is None or len(x) != 1 or x[0].dim() != 2:
        return []
    return leaks(splits.train, splits.val, splits.feature_names, splits.kind)


def parameters_of(problem: Problem) -> int:
    """How many parameters the network has."""
    return sum(math.prod(shape) for shape in problem.network.params.values())
