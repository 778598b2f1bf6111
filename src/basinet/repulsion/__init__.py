"""How members keep each other apart: kernels between them, the score of their density, the spaces they are seen in.

Everything members exchange is in matrices (M, M) made from kernels; they multiply the particles and their gradients.
"""

from .anneal import ANNEALS, anneal_weight
from .kernels import KERNELS, Kernel, Pairs
from .scores import ESTIMATES, score_matrix, score_at
from .spaces import SPACES, Coupling, Space, coupled_gradient

__all__ = [
    "ANNEALS",
    "ESTIMATES",
    "KERNELS",
    "SPACES",
    "Coupling",
    "Kernel",
    "Pairs",
    "Space",
    "anneal_weight",
    "coupled_gradient",
    "score_matrix",
    "score_at",
]
