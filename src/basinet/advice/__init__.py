"""Which method to use: two recipes within a budget, with reasons that can be looked up."""

from .advise import Advice, Budget, advise
from .evidence import Evidence

__all__ = ["Advice", "Budget", "Evidence", "advise"]
