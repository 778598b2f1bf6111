"""Data in memory, and the sets that come with the library."""

from . import datasets
from .data import Data
from .datasets import Splits

__all__ = ["Data", "Splits", "datasets"]
