"""A classifier for scikit-learn: classes, and probabilities that are averaged over networks."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from torch.distributions import Categorical

from ..predict import Predictive
from .estimator import Estimator
from .regressor import BasinetRegressor


class BasinetClassifier(ClassifierMixin, Estimator):
    """Classification by a posterior over networks: by default a deep ensemble of five.

    classes_ are the classes in order, as y had them.
    """

    _kind: ClassVar[Literal["classes", "real"]] = "classes"

    def _targets(self, y: np.ndarray) -> np.ndarray:
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected at least two classes, got only one class, {self.classes_[0]!r}")
        return places.astype(np.int64)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class for each row (N, C), in the order of classes_."""
        probs = np.concatenate([p.probs.double().cpu().numpy() for p in self._predictives(X)])
        whole = np.zeros((len(probs), len(self.classes_)))  # classes whose rows all had weight 0 have none
        whole[:, self._places()] = probs / probs.sum(1, keepdims=True)
        return whole

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def _places(self) -> list[int]:
        """Where the network's classes are among classes_."""
        return [int(name) for name in self.encoder_.class_names or ()]

    def _distribution(self, predictive: Predictive) -> Categorical:
        probs = predictive.probs.double()
        whole = probs.new_zeros(len(probs), len(self.classes_))
        whole[:, self._places()] = probs
        return Categorical(probs=whole)

    def _joined(self, parts: list[Any]) -> Categorical:
        return Categorical(probs=torch.cat([part.probs for part in parts]))


BasinetClassifier.__doc__ = f"{BasinetClassifier.__doc__}\n{(BasinetRegressor.__doc__ or '').partition(chr(10) * 2)[2]}"
