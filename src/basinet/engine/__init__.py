"""Trains members: many at once, or one after another, with the same result."""

from ..core.demand import Demand
from .coupled import Lift
from .engine import Engine
from .group import Event, Member
from .method import CoupledMethod, Descent, Finished, GradientMethod, Info, Method, Schedule

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
    "Schedule",
]
