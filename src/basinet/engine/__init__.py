"""Trains members: many at once, or one after another, with the same result."""

from ..cost.demand import Demand, Predicting
from .descent import Descent, GradientMethod, Sample
from .engine import Engine
from .method import Based, Finished, Method, Report, Review, Schedule
from .step import Info, Lift, Step
from .work import Event, Member

__all__ = [
    "Based",
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
    "Report",
    "Review",
    "Sample",
    "Schedule",
    "Step",
]
