"""The conformance suite for our methods and yours, and the problems with known answers that it measures them on.

The problems (`exact`, `noisy`) stand high in the layers, since methods state their theory with them; the
suite fits, and is imported when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench, Check
    from .conformance import check_family, check_method, family_checks, method_checks, problem_checks

__all__ = ["Bench", "Check", "check_family", "check_method", "family_checks", "method_checks", "problem_checks"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(".conformance", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
