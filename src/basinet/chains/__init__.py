"""How chains move and adapt, all of them side by side: what samplers with full batches share."""

from .chain import Chain
from .metropolis import Metropolis, Moving

__all__ = ["Chain", "Metropolis", "Moving"]
