"""Ctrl-C that waits until a run can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C is only noted; `check`, or the end, raises it. The second raises at once.

    With `waits` false, outside the main thread, or where somebody else handles the signal, nothing is changed.
    """

    def __init__(self, waits: bool = False) -> None:
        self.waits, self.asked = waits, False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        ours = threading.current_thread() is threading.main_thread()
        if self.waits and ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
            if kind is None:  # one that came after the last look
                self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.asked:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
