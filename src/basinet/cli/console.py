"""What commands print with, and how errors reach a person."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}  # words of users, printed as they are
EDGES, BETWEEN = 2, 2  # characters of a table beside its columns, and between two of them
_SIMPLER = {"±": "+-", "−": "-", "–": "-", "…": "...", "×": "x", "≤": "<=", "≥": ">=", "²": "^2", "’": "'", "→": "->"}
_SIMPLER["•"] = "o"


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


def show_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], console: Console = out) -> None:
    """Prints names and numbers. No number is ever cut: names in the first column wrap, and columns for which there is
    no room follow in tables below, with the names again."""
    heads, *rows = ([readable(cell, console.encoding) for cell in row] for row in (heads, *rows))
    columns = list(zip(heads, *rows))
    widths = [max(map(cell_len, column)) for column in columns]
    word = max(cell_len(word) for name in columns[0] for word in name.split())
    groups = _side_by_side(widths, word, console.width)
    if len(groups) > 1:
        groups = _side_by_side(widths, max(word, min(widths[0], console.width // 3)), console.width)
    for group in groups:
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        shown.add_column(heads[0])
        for place in group:
            shown.add_column(heads[place], justify="right", no_wrap=True, min_width=widths[place])
        for row in rows:
            shown.add_row(row[0], *(row[place] for place in group))
        console.print(shown)
        title = ""


def _side_by_side(widths: Sequence[int], first: int, room: int) -> list[list[int]]:
    """Which columns, beside a first one of that width, fit into one table after the other."""
    groups: list[list[int]] = [[]]
    used = first + EDGES
    for place, width in enumerate(widths[1:], 1):
        if groups[-1] and used + width + BETWEEN > room:
            groups.append([])
            used = first + EDGES
        groups[-1].append(place)
        used += width + BETWEEN
    return groups


def tell_strangers(names: tuple[str, ...]) -> None:
    from ..tables.values import listed

    if names:
        say(f"ignored columns that training did not have: {listed(names)}")


@contextmanager
def clear_errors(resume: str = "nothing was left half-written") -> Iterator[None]:
    """Turns what a user can fix into one clear line; a bug keeps its traceback."""
    from ..core.wording import speaking
    from ..engine.workers import WorkerError

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
