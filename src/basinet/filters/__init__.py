"""Online methods: today's posterior is tomorrow's prior. One file per filter, and how parameters drift."""

from .adaptive import AdaptiveForget, Change
from .alarm import Alarm
from .drift import Drift, Forget, Inflate, Shrink
from .ekf import EKF
from .filter import Filter
from .kalman import Kalman
from .lofi import LOFI
from .rvga import RVGA
from .tracking import AdaptiveConformal

__all__ = [
    "EKF",
    "LOFI",
    "RVGA",
    "AdaptiveConformal",
    "AdaptiveForget",
    "Alarm",
    "Change",
    "Drift",
    "Filter",
    "Forget",
    "Inflate",
    "Kalman",
    "Shrink",
]
