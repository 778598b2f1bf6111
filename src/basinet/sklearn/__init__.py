"""Estimators for scikit-learn: deep ensembles, and any other recipe, behind `fit` and `predict`.

    from basinet.sklearn import BasinetClassifier, BasinetRegressor

They take data frames and arrays, treat text, categories, dates and missing cells as the command does, and work in
pipelines, searches and cross-validation.
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError('the estimators need scikit-learn, got none; pip install "basinet[sklearn]"') from error

from .classifier import BasinetClassifier
from .estimator import EXPECTED_FAILED_CHECKS, DataWarning
from .regressor import BasinetRegressor

__all__ = ["EXPECTED_FAILED_CHECKS", "BasinetClassifier", "BasinetRegressor", "DataWarning"]
