"""What both estimators share: parameters, fitting, predicting in chunks, and being pickled."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import nn

from ..calibrate.temper import temper
from ..core.tree import move
from ..core.wording import speaking
from ..data import Data
from ..defaults import DefaultNetwork, Design, candidates_for, embeds_numbers, network_outputs
from ..engine import Engine, Method
from ..engine.progress import Progress
from ..fit import fit
from ..methods.map import MAP
from ..pilot import FEWEST as FEW_TO_CHOOSE
from ..pilot import pilot
from ..posterior import Posterior
from ..predict import Predictive
from ..problem import Problem
from ..problem.likelihoods import Likelihood
from ..problem.priors import Prior
from ..tables import Table, fit_table
from ..tables.crossed import crossed
from ..tables.fitted import predictives
from .frames import FEWEST, DataWarning, read, refuse_missing, rules_of, unused_name
from .pickled import packed, unpacked

__all__ = ["EXPECTED_FAILED_CHECKS", "DataWarning", "Estimator"]

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 counts twice, but in one batch; two equal rows "
    "are shuffled into batches, and into training or validation, each by itself"
}


class Estimator(BaseEstimator):
    """A posterior over networks as an estimator of scikit-learn. What `fit` finds ends in an underscore:

    posterior_        the posterior, as `bn.fit` returns it
    encoder_          how rows become inputs, and predictions return to y
    n_features_in_    columns of X; and feature_names_in_, where they have names
    """

    _kind: ClassVar[Literal["classes", "real"]]

    def __init__(
        self,
        method: Method | None = None,
        *,
        members: int = 5,
        network: nn.Module | Callable[[int, int], nn.Module] | None = None,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        missing: str = "refuse",
        unseen: str = "refuse",
        categories: Sequence[str | int] = (),
        validation_fraction: float | None = 0.15,
        samples: int | None = None,
        random_state: Any = 0,
        engine: Engine | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.members = members
        self.network = network
        self.likelihood = likelihood
        self.prior = prior
        self.missing = missing
        self.unseen = unseen
        self.categories = categories
        self.validation_fraction = validation_fraction
        self.samples = samples
        self.random_state = random_state
        self.engine = engine
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fits the posterior to rows X, a data frame or an array (N, D), and targets y (N,).

        A row of weight 2 counts as two, one of weight 0 not at all.
        """
        with speaking("estimator"):
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Any:
        framed = read(self, X, reset=True)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        _refuse_several(y, type(self).__name__)
        column = column_or_1d(y, warn=True)
        table, weights = framed.table, None
        if len(column) != table.n:
            raise ValueError(f"expected as many targets as X has rows, {table.n:,}, got {len(column):,}")
        y = self._targets(column)
        if sample_weight is not None:
            weights = _checked_weights(sample_weight, table.n)
            rows = weights > 0  # a row of weight 0 is none
            table, y, weights = table.take(rows), y[rows], weights[rows]
            if table.n < FEWEST:
                raise ValueError(f"expected at least {FEWEST} rows with a weight above 0, got {table.n} sample(s)")
        refuse_missing(table, self.missing)
        target = unused_name("y", table.columns)
        rules = rules_of(table, framed.categories, self)
        whole = Table(table.name, {**table.columns, target: y})
        seed = _seed(self.random_state)
        doubts: list[str] = []
        self.encoder_, parts = fit_table(
            whole, target, rules, self._fractions(table.n), weights=weights, seed=seed, say=doubts.append
        )
        for line in doubts:
            if "rows are copies of others" not in line:  # which matters only to scores on held-out rows
                warnings.warn(line, DataWarning, stacklevel=4)
        train, val = parts[0], parts[1] if len(parts) > 1 else None
        if val is not None and isinstance(self.members, int):  # else `fit` says so
            train, val = crossed(train, val, self.members, seed)
        self.posterior_ = self._fitted(train, val, seed)
        self._seed_of_draws = seed
        _tell_of_training(self.posterior_)
        return self

    @abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """The targets (N,) as numbers that the table's target has."""

    def _fractions(self, n: int) -> tuple[float, ...]:
        share = self.validation_fraction
        if not share:
            return (1.0,)
        if not 0 < share < 1:
            raise ValueError(f"expected validation_fraction between 0 and 1, or None, got {share!r}")
        share = min(max(share, 1 / n), 1 - 1 / n)  # a row at least for each
        return 1 - share, share

    def _fitted(self, train: Data, val: Data | None, seed: int) -> Posterior:
        """The posterior, as the command fits it: validation chooses the noise and, of real targets, the spread."""
        shape = (train.inputs, self.encoder_.target.outputs, self._kind)
        given = self.network
        make = None if given is None else (lambda *sizes: given) if isinstance(given, nn.Module) else given
        recipe = MAP() if self.method is None else self.method
        engine = self.engine or Engine(progress=bool(self.verbose), deterministic=True)
        zero = getattr(self.encoder_.target, "zero", None)
        design = Design(make, self.likelihood, self.prior)
        problems = candidates_for(*shape, design, targets=train.targets, zero=zero)
        problem, recipe, chosen = pilot(problems, train, val, recipe=recipe, seed=seed, engine=engine)
        if chosen:
            Progress("", 0, engine.progress).say(chosen)
        form = (problem.likelihood, None, embeds_numbers(problem))
        self.network_ = DefaultNetwork.of(*shape, *form) if given is None else None
        self._sizes = (train.inputs[0].numel(), network_outputs(shape[1], problem.likelihood))
        if isinstance(given, nn.Module):
            problem = Problem(given, problem.likelihood, problem.prior)
        posterior = fit(recipe, problem, train, val=val, members=self.members, seed=seed, engine=engine)
        enough = val is not None and val.n >= FEW_TO_CHOOSE and self._kind == "real"
        return temper(posterior, val, samples=self.samples, seed=seed) if val is not None and enough else posterior

    def _source(self) -> Any:
        """What rebuilds the network: for a posterior that was pickled."""
        if self.network_ is not None:
            return self.network_.build
        given, sizes = self.network, self._sizes
        return given if isinstance(given, nn.Module) else lambda: given(*sizes)  # type: ignore[misc]

    def _predictives(self, X: Any) -> Iterator[Predictive]:
        """The predictions of rows, in chunks.

        The built-in network runs in double precision here, so that a row's prediction does not depend on which rows
        are predicted with it.
        """
        check_is_fitted(self, "posterior_")
        table = read(self, X, reset=False).table
        with speaking("estimator"):
            refuse_missing(table, self.missing)
            inputs = self.encoder_.inputs(table)
        if empty := self.encoder_.empty_rows(table):
            line = f"{empty:,} of {table.n:,} rows have no input at all: their predictions are those of a typical row"
            warnings.warn(line, DataWarning, stacklevel=3)
        posterior = self.posterior_ if self.network_ is None else _in_double(self.posterior_)
        outputs = self.encoder_.target.outputs
        return predictives(posterior, inputs, outputs, self.samples, self._seed_of_draws)

    def predict_dist(self, X: Any) -> Any:
        """The predictive distribution of each row, as one torch distribution whose batch has the N rows."""
        parts = [self._distribution(predictive) for predictive in self._predictives(X)]
        return parts[0] if len(parts) == 1 else self._joined(parts)

    @abstractmethod
    def _distribution(self, predictive: Predictive) -> Any: ...

    @abstractmethod
    def _joined(self, parts: list[Any]) -> Any: ...

    def __getstate__(self) -> dict[str, Any]:
        return packed(super().__getstate__(), self.get_params(deep=False))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(unpacked(state, lambda source: _sourced(type(self), source)))


def _sourced(kind: type[Estimator], state: dict[str, Any]) -> Any:
    """The network's source of an estimator with these attributes."""
    estimator = kind.__new__(kind)
    estimator.__dict__ = dict(state)
    return estimator._source()


def _checked_weights(given: Any, n: int) -> np.ndarray:
    weights = _check_sample_weight(given, np.empty((n, 1)), dtype=np.float64)
    if (weights < 0).any() or not weights.any():
        got = "a negative one" if (weights < 0).any() else "only zeros"
        raise ValueError(f"expected sample_weight of at least 0, and some above: 1 is a plain row. Got {got}")
    return weights


def _refuse_several(y: Any, name: str) -> None:
    """A table has one target here; scikit-learn fits a model for each of several."""
    shape = np.asarray(y).shape
    if len(shape) == 2 and shape[1] > 1:
        kind = "MultiOutputRegressor" if name == "BasinetRegressor" else "MultiOutputClassifier"
        raise ValueError(
            f"y: expected one target for each row, got an array of shape {shape}: "
            f"sklearn.multioutput.{kind}({name}(...)) fits one posterior for each column"
        )


def _seed(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _in_double(posterior: Posterior) -> Posterior:
    parts = [
        replace(p, family=move(p.family, None, torch.float64), inputs=move(p.inputs, None, torch.float64))
        for p in posterior.parts
    ]
    return replace(posterior, parts=tuple(parts))


def _tell_of_training(posterior: Posterior) -> None:
    falls = [fall for part in posterior.parts for fall in part.info.get("still_falling", [])]
    if any(falls):
        line = f"training still improved over the second half of its steps, by {max(falls):.2g} nats per example: "
        warnings.warn(f"{line}a recipe with more epochs may help", ConvergenceWarning, stacklevel=3)
    if failed := [member for part in posterior.parts for member in part.info.get("failed", [])]:
        line = f"{len(failed)} members diverged at every attempt and are left out: lower the learning rate"
        warnings.warn(line, ConvergenceWarning, stacklevel=3)
