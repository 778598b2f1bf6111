"""Second-order properties of the log likelihood at a point."""

from .trace import Traces, traces

__all__ = ["Traces", "traces"]
