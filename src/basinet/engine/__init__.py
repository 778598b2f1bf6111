"""Trains members: many at once, or one after another, with the same result."""

from .engine import Engine
from .group import Event, Member
from .method import Descent, Finished, GradientMethod, Info, Method, Schedule, Tuned

__all__ = [
    "Descent",
    "Engine",
    "Event",
    "Finished",
    "GradientMethod",
    "Info",
    "Member",
    "Method",
    "Schedule",
    "Tuned",
]
