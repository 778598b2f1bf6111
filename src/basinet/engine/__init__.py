"""Trains members: many at once, or one after another, with the same result."""

from ..core.demand import Demand, Predicting
from .engine import Engine
from .group import Event, Member
from .method import Descent, Finished, GradientMethod, Info, Method, Schedule

__all__ = [
    "Demand",
    "Descent",
    "Engine",
    "Event",
    "Finished",
    "GradientMethod",
    "Info",
    "Member",
    "Method",
    "Predicting",
    "Schedule",
]
