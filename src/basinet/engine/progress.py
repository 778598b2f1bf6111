"""A progress bar for runs that take more than a moment. Uses rich where it is installed; says nothing otherwise."""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from types import TracebackType
from typing import Any

PATIENCE = 1.0  # seconds before a bar appears: short runs stay quiet


class Progress:
    """A context manager with `say(line)` and `advance(steps, text)`.

    `shown` None means: where the error stream is a terminal. True says lines anywhere; a bar needs a terminal.
    """

    def __init__(self, label: str, total: int, shown: bool | None = None) -> None:
        terminal = sys.stderr.isatty()
        self.says = terminal if shown is None else shown
        self.shown = self.says and terminal and importlib.util.find_spec("rich") is not None
        self.label = label
        self.total = total
        self.done = 0
        self.began = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """One line beside the bar; to the log of the package in any case."""
        logging.getLogger("basinet").info(line)
        if self.says:
            print(line, file=sys.stderr)

    def warn(self, line: str) -> None:
        """One line that must not be missed: a warning of the package's log, which ends on the error stream wherever
        nobody has said otherwise."""
        log = logging.getLogger("basinet")
        log.warning(line)
        if self.says and log.hasHandlers():
            print(line, file=sys.stderr)

    def advance(self, steps: int, text: str) -> None:
        """Counts steps that were done, and shows `text` beside the bar."""
        self.done += steps
        if not self.shown:
            return
        if self._bar is None:
            if time.perf_counter() - self.began < PATIENCE:
                return
            self._start()
        self._bar.update(self._task, completed=self.done, text=text)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            "{task.description}",
            BarColumn(),
            "{task.percentage:>3.0f}%",
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Bar(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
        )
        self._task = self._bar.add_task(self.label, total=self.total, text="")
        self._bar.start()
