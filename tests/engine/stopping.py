"""Ways to stop a run in the middle, for tests of how it resumes."""

from __future__ import annotations

from basinet.engine import Event


class Killed(BaseException):
    """Stands for the end of the process: nobody may act on it."""


class Stop:
    """Raises an error at the n-th event."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def __call__(self, event: Event) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error
