"""Ctrl-C that waits until a run can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import ClassVar


class Interrupt:
    """While it is entered, the first Ctrl-C is only noted; `check`, or the end, raises it. The second raises at once.

    With `waits` false, outside the main thread, or where somebody else handles the signal, nothing is changed. Several
    may be entered at a time: what is noted is noted in all of them.
    """

    entered: ClassVar[list[Interrupt]] = []  # those that listen

    def __init__(self, waits: bool = False) -> None:
        self.waits, self.asked = waits, False

    def __enter__(self) -> Interrupt:
        ours = threading.current_thread() is threading.main_thread()
        if self.waits and ours and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _hear):
            signal.signal(signal.SIGINT, _hear)
            Interrupt.entered.append(self)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self in Interrupt.entered:
            Interrupt.entered.remove(self)
            if not Interrupt.entered:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if kind is None:  # one that came after the last look
                self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.asked:
            raise KeyboardInterrupt


def _hear(number: int, frame: FrameType | None) -> None:
    if any(one.asked for one in Interrupt.entered):
        raise KeyboardInterrupt
    for one in Interrupt.entered:
        one.asked = True
