"""What commands print with, and how errors reach a person."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}  # words of users, printed as they are
_SIMPLER = {"±": "+-", "−": "-", "–": "-", "…": "...", "×": "x", "≤": "<=", "≥": ">=", "²": "^2", "’": "'", "→": "->"}


class SafeConsole(Console):
    """A console on which names from files cannot move the cursor, ring or change colours, and that writes what its
    encoding has no sign for in other signs."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Strings are made readable before they are measured, so that no table cuts them."""
        return super().render_str(readable(text, self.encoding), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(readable(segment.text, self.encoding), segment.style)


def readable(text: str, encoding: str = "utf-8") -> str:
    """Text without control characters, which are written as Python does, in signs that the encoding has."""
    if not text.isprintable():
        text = "".join(c if c in "\n\t" or _harmless(c) else c.encode("unicode_escape").decode() for c in text)
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        simpler = "".join(_SIMPLER.get(c, c) for c in text)
        text = simpler.encode(encoding, "backslashreplace").decode(encoding)
    return text


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


out = SafeConsole(width=None if sys.stdout.isatty() else 120)
err = SafeConsole(stderr=True)


def tell(line: str) -> None:
    out.print(line, **PLAIN)


def say(line: str) -> None:
    err.print(line, style="dim", markup=False, highlight=False)


def warn(line: str) -> None:
    err.print(f"warning: {line}", style="yellow", **PLAIN)


def tell_strangers(names: tuple[str, ...]) -> None:
    from ..tables.values import listed

    if names:
        say(f"ignored columns that training did not have: {listed(names)}")


@contextmanager
def clear_errors(resume: str = "nothing was left half-written") -> Iterator[None]:
    """Turns what a user can fix into one clear line; a bug keeps its traceback."""
    from ..engine.workers import WorkerError
    from ..tables.wording import speaking

    try:
        with speaking("command"):
            yield
    except KeyboardInterrupt:
        err.print(f"stopped: {resume}", **PLAIN)
        sys.exit(130)
    except WorkerError as error:
        _fail(f"{error}. {resume[:1].upper()}{resume[1:]}")
    except (ValueError, OSError, ImportError, FloatingPointError, MemoryError) as error:
        _fail(str(error) or type(error).__name__)


def _fail(line: str) -> None:
    err.print(f"error: {line}", style="bold red", **PLAIN)
    sys.exit(2)
