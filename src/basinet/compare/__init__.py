"""Recipes side by side on one data set: rows, budgets, records, tables. `bn.compare` is its one function."""

from .api import Comparison, compare
from .frame import Frame
from .problems import default_problem
from .table import legend, table

__all__ = ["Comparison", "Frame", "compare", "default_problem", "legend", "table"]
