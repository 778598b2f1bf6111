"""Rows without a posterior, to see when a network is the wrong tool: a constant, a linear model, gradient boosting.

Classes get the probabilities of the model; the constant's are the frequencies of training. Numbers are normal around
the model's mean, with one standard deviation: that of the residuals on the validation part, which they did not see.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ..core.tree import leaves
from ..data.datasets import Splits
from ..predict import ClassPredictive, Predictive, RealPredictive
from ..problem.likelihoods import Categorical, Gaussian

MARK = " (no posterior)"  # behind the name of such a row
STAR = " *"  # in its place, where there is little room
NAMES = ("constant", "linear", "boosting")
WORK = {"constant": float("inf"), "linear": 2e7, "boosting": 2e6}  # examples x inputs x outputs, beyond which they wait
RIDGE = 1e-6  # of the least squares, relative to the size of the inputs: columns may be alike

Predict = Callable[[Any], Predictive]


def offered(splits: Splits, kind: str) -> tuple[list[str], list[str]]:
    """The references that a comparison has by default, and those that it leaves out since they would take long, or
    since scikit-learn is missing."""
    inputs = leaves(splits.train.inputs)
    if kind not in ("classes", "real") or len(inputs) != 1 or splits.train.targets[0].numel() != 1:
        return [], []
    work = splits.train.n * inputs[0][0].numel() * (splits.classes or 1)
    able = [name for name in NAMES if work <= WORK[name] and (not _learns(name, kind) or find_spec("sklearn"))]
    return able, [name for name in NAMES if name not in able]


def starred(label: str) -> str:
    """The label of a row with the short mark, where it has the long one."""
    return label.removesuffix(MARK) + STAR if label.endswith(MARK) else label


def fit_reference(name: str, splits: Splits, kind: str, seed: int) -> Predict:
    """A reference fitted to the training part: a function from inputs to predictions."""
    x, y = _flat(splits.train.inputs), splits.train.targets
    if kind == "classes":
        chances = _chances(name, x, y, splits.classes or int(y.max()) + 1, seed)
        return lambda inputs: ClassPredictive(chances(_flat(inputs)).log()[None, None].float(), Categorical(), {})
    mean = _means(name, x, y.reshape(-1).double(), seed)
    residuals = mean(_flat(splits.val.inputs)) - splits.val.targets.reshape(-1).double().cpu()
    sigma = float(residuals.square().mean().sqrt().clamp(min=1e-6))
    likelihood = Gaussian(noise=sigma)
    return lambda inputs: RealPredictive(mean(_flat(inputs)).float()[None, None, :, None], likelihood, {})


def _learns(name: str, kind: str) -> bool:
    """Whether it takes scikit-learn."""
    return name == "boosting" or (name == "linear" and kind == "classes")


def _flat(inputs: Any) -> Tensor:
    [x] = leaves(inputs)
    return x.reshape(len(x), -1).double().cpu()


def _chances(name: str, x: Tensor, y: Tensor, classes: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Probabilities (B, classes) of inputs; none is zero."""
    counts = torch.bincount(y.cpu(), minlength=classes).double() + 1
    if name == "constant":
        return lambda inputs: (counts / counts.sum()).expand(len(inputs), -1)
    if name == "linear":
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=2000)
    else:
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(random_state=seed)
    model.fit(x.numpy(), y.cpu().numpy())
    seen = torch.as_tensor(model.classes_)

    def chances(inputs: Tensor) -> Tensor:
        p = torch.full((len(inputs), classes), 1e-9, dtype=torch.float64)
        p[:, seen] = torch.as_tensor(model.predict_proba(inputs.numpy())).double().clamp(min=1e-9)
        return p / p.sum(1, keepdim=True)

    return chances


def _means(name: str, x: Tensor, y: Tensor, seed: int) -> Callable[[Tensor], Tensor]:
    y = y.cpu()
    if name == "constant":
        return lambda inputs: y.mean().expand(len(inputs))
    if name == "linear":
        centre, middle = x.mean(0), y.mean()
        z = x - centre
        ridge = RIDGE * (1 + z.square().sum(0).max()) * torch.eye(z.shape[1], dtype=z.dtype)
        slope = torch.linalg.solve(z.T @ z + ridge, z.T @ (y - middle))
        return lambda inputs: middle + (inputs - centre) @ slope
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(random_state=seed).fit(x.numpy(), y.numpy())
    return lambda inputs: torch.as_tensor(model.predict(inputs.numpy())).double()
