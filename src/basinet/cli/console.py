"""What commands print with, and how errors reach a person."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)
PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}  # words of users, printed as they are


def say(line: str) -> None:
    err.print(line, style="dim", markup=False, highlight=False)


def warn(line: str) -> None:
    err.print(f"warning: {line}", style="yellow", **PLAIN)


def tell_strangers(names: tuple[str, ...]) -> None:
    from ..data.values import listed

    if names:
        say(f"columns that training had not, ignored: {listed(names)}")


@contextmanager
def clear_errors(resume: str = "nothing was left half-written") -> Iterator[None]:
    """Turns what a user can mend into one clear line; a bug keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped: {resume}", soft_wrap=True)
        sys.exit(130)
    except (ValueError, OSError, ImportError, FloatingPointError, MemoryError) as error:
        err.print("error:", str(error), style="bold red", soft_wrap=True, markup=False, highlight=False)
        sys.exit(2)
