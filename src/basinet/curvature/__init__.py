"""The curvature of a posterior around a point: what Laplace approximations and the local theory are made of."""

from .trace import Traces, traces

__all__ = ["Traces", "traces"]
