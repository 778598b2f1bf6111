"""A regressor for scikit-learn: means, standard deviations, intervals, quantiles and whole distributions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import assert_all_finite
from torch.distributions import Categorical, MixtureSameFamily

from ..predict import Predictive
from ..problem.distributions import parameters_of, with_parameters
from ..problem.warps import WarpedNormal
from ..tables.targets import Real
from .estimator import Estimator
from .frames import DataWarning

FEW = 3  # different values of a target, up to which classes may be meant


class BasinetRegressor(RegressorMixin, Estimator):
    """Regression by a posterior over networks: by default a deep ensemble of five.

    Parameters
    ----------
    method : recipe, default bn.MAP()
        How members are found: any recipe of basinet, such as bn.Laplace() or bn.MAP(epochs=50).
    members : int
        How many networks.
    network : module, or function of the numbers of inputs and outputs, default None
        A network of your own; each member starts from fresh weights. None: one for tables.
    likelihood, prior : default None
        Of the targets (divided by their standard deviation) and the weights. None: mean and noise are learned, under
        the prior N(0, 3²) for the network for tables, N(0, 1) for one of your own.
    missing : {"refuse", "impute"}
        impute: the median or most frequent value, and an input that says so.
    unseen : {"refuse", "other"}
        Text that did not occur in training; other: rare values share an input with it.
    categories : sequence of names or places
        Columns of numbers whose values are names. Text and pandas categories are such anyway.
    validation_fraction : float or None
        Share of the rows that only stop training and tune. None: none.
    samples : int or None
        Draws from each member to predict with. None: as many as the recipe has by default.
    random_state : int, RandomState or None
    engine : bn.Engine, default None
        Where members run.
    verbose : bool
        Whether training shows its progress.
    """

    _kind: ClassVar[Literal["classes", "real"]] = "real"

    def _targets(self, y: np.ndarray) -> np.ndarray:
        try:
            targets = np.asarray(y, np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y: expected numbers, got {error}; BasinetClassifier takes names of classes") from error
        assert_all_finite(targets, input_name="y")
        values = np.unique(targets)
        if len(values) == 1:
            raise ValueError(f"y: expected values that differ, got {values[0]:g} in every row: nothing to learn")
        if len(values) <= FEW and len(targets) > 2 * FEW:
            shown = ", ".join(f"{value:g}" for value in values)
            line = f"y has {len(values)} different values ({shown}), taken for amounts: if they are classes, "
            warnings.warn(f"{line}BasinetClassifier predicts their probabilities", DataWarning, stacklevel=3)
        return targets

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean for each row (N,), in units of y; with `return_std` the standard deviation too, aleatoric and
        epistemic together."""
        parts = [(self._target.back(p.mean), _column(p.variance)) for p in self._predictives(X)]
        mean, variance = (np.concatenate(part) for part in zip(*parts))
        return (mean, self._target.sd * np.sqrt(variance)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Low and high (N, 2) of the central interval that holds y with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"expected level between 0 and 1, got {level!r}")
        return self.predict_quantiles(X, [(1 - level) / 2, (1 + level) / 2])

    def predict_quantiles(self, X: Any, q: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """The quantiles of y for each row: (N,) for one level q, (N, Q) for several."""
        levels = np.atleast_1d(np.asarray(q, np.float64))
        if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"expected quantile levels between 0 and 1, got {q!r}")
        parts = [
            np.stack([self._target.back(p.quantile(float(level))) for level in levels], 1) for p in self._predictives(X)
        ]
        quantiles = np.concatenate(parts)
        return quantiles[:, 0] if np.ndim(q) == 0 else quantiles

    @property
    def _target(self) -> Real:
        target = self.encoder_.target
        assert isinstance(target, Real)
        return target

    def _distribution(self, predictive: Predictive) -> MixtureSameFamily:
        """The mixture in units of y: each component is moved and stretched as y was for the network."""
        mixture: Any = predictive.to_distribution()
        parts, target = mixture.component_distribution, self._target
        given = {name: x.squeeze(1).double() for name, x in parameters_of(parts).items()}
        if isinstance(parts, WarpedNormal):
            moved: Any = WarpedNormal(given["loc"], given["scale"], parts.warp.in_units(target.mean, target.sd))
        else:
            given |= {"loc": target.mean + target.sd * given["loc"], "scale": target.sd * given["scale"]}
            moved = with_parameters(parts, given)
        mass = mixture.mixture_distribution.probs.squeeze(1).double()
        return MixtureSameFamily(Categorical(probs=mass), moved)

    def _joined(self, parts: list[Any]) -> MixtureSameFamily:
        kinds = [part.component_distribution for part in parts]
        given = {name: torch.cat([getattr(kind, name) for kind in kinds]) for name in parameters_of(kinds[0])}
        mass = torch.cat([part.mixture_distribution.probs for part in parts])
        return MixtureSameFamily(Categorical(probs=mass), with_parameters(kinds[0], given))


def _column(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().cpu().reshape(len(x)).numpy()
