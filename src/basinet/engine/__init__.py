"""Trains members: many at once, or one after another, with the same result."""

from ..core.demand import Demand, Predicting
from .coupled import Lift
from .engine import Engine
from .group import Event, Member
from .method import CoupledMethod, Descent, Finished, GradientMethod, Info, Method, Schedule, Tuned

__all__ = [
    "CoupledMethod",
    "Demand",
    "Descent",
    "Engine",
    "Event",
    "Finished",
    "GradientMethod",
    "Info",
    "Lift",
    "Member",
    "Method",
    "Predicting",
    "Schedule",
    "Tuned",
]
