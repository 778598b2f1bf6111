"""A progress bar for runs that take more than a moment. Uses rich where it is installed; says nothing otherwise."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import time
from types import TracebackType
from typing import Any, ClassVar

PATIENCE = 1.0  # seconds before a bar appears: short runs stay quiet
SHOWN = 3  # members whose lines are shown where others have the same, but for numbers


class Progress:
    """A context manager with `say(line)` and `advance(steps, text)`.

    `shown` None means: where the error stream is a terminal. True says lines anywhere; a bar needs a terminal. There is
    one bar: it counts the steps of all runs that are under way at the same time.
    """

    bar: ClassVar[Any] = None  # on the screen
    live: ClassVar[list[Progress]] = []  # whose steps the bar counts
    past: ClassVar[int] = 0  # steps of runs that ended while others were under way

    def __init__(self, label: str, total: int, shown: bool | None = None) -> None:
        terminal = sys.stderr.isatty()
        self.says = terminal if shown is None else shown
        self.shown = self.says and terminal and importlib.util.find_spec("rich") is not None
        self.label = label
        self.total = total
        self.done = 0
        self.began = time.perf_counter()
        self._alike: dict[tuple[str, str, bool], list[str]] = {}  # lines on members, by method, words and kind

    def __enter__(self) -> Progress:
        if self.shown:
            Progress.live.append(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for (method, _, warns), (line, *others) in self._alike.items():
            if (more := len(others) + 1 - SHOWN) > 0:
                show = self.warn if warns else self.say
                show(f"{method}, {more} more members, with other numbers (all in posterior.info['notes']): {line}")
        if self not in Progress.live:
            return
        Progress.live.remove(self)
        Progress.past += self.total
        if not Progress.live:
            Progress.past = 0
            if Progress.bar is not None:
                Progress.bar.stop()
            Progress.bar = None

    def say(self, line: str) -> None:
        """One line beside the bar; to the log of the package in any case."""
        logging.getLogger("basinet").info(line)
        if self.says:
            print(line, file=sys.stderr)

    def warn(self, line: str) -> None:
        """One line that must not be missed: a warning in the package's log, which goes to the error stream unless
        logging is configured otherwise."""
        log = logging.getLogger("basinet")
        log.warning(line)
        if self.says and log.hasHandlers():
            print(line, file=sys.stderr)

    def about(self, method: str, member: str, line: str, warns: bool = False) -> None:
        """A line on one member. Of many members with the same words the first are shown, and the others counted when
        the run ends."""
        alike = self._alike.setdefault((method, re.sub(r"\d[\d.,e+-]*", "#", line), warns), [])
        alike.append(line)
        if len(alike) <= SHOWN:
            (self.warn if warns else self.say)(f"{method}, {member}: {line}")

    def advance(self, steps: int, text: str) -> None:
        """Counts steps that were done, and shows `text` beside the bar."""
        self.done += steps
        if self not in Progress.live:
            return
        if Progress.bar is None:
            if time.perf_counter() - self.began < PATIENCE:
                return
            Progress.bar = _bar()
        several = len(Progress.live) > 1
        Progress.bar.update(
            Progress.bar.task_ids[0],
            description=f"{len(Progress.live)} runs" if several else self.label,
            completed=Progress.past + sum(one.done for one in Progress.live),
            total=Progress.past + sum(one.total for one in Progress.live),
            text=f"{self.label}: {text}" if several else text,
        )


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), "{task.percentage:>3.0f}%", TextColumn("{task.fields[text]}"))
    bar = Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    bar.add_task("", total=None, text="")
    bar.start()
    return bar
