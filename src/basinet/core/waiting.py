"""Work that waits for other machines: generators that yield None meanwhile, so that one thread does several at a time.

Such a generator yields what comes of it piece by piece, or returns it in the end.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

T = TypeVar("T")

LOOK = 0.02  # seconds between looks at what came from elsewhere


def result_of(work: Generator[None, None, T]) -> T:
    """What a generator returns, after waiting for it."""
    with closing(work):
        while True:
            try:
                next(work)
            except StopIteration as end:
                return end.value
            time.sleep(LOOK)


def in_turn(generators: Sequence[Generator[T | None, None, None]], at_once: int) -> Generator[T | None, None, None]:
    """What several generators yield, of which this many are under way at the same time, and None where all of them
    wait. The next ones begin in their order."""
    live, waiting = list(generators[:at_once]), list(generators[at_once:])
    with ExitStack() as ends:
        for work in generators:
            ends.callback(work.close)
        while live:
            idle = True
            for work in list(live):
                try:
                    item = next(work)
                except StopIteration:
                    live.remove(work)
                    live += [waiting.pop(0)] if waiting else []
                    idle = False
                    continue
                if item is not None:
                    idle = False
                    yield item
            if idle:
                yield None


def in_order(items: Generator[tuple[int, T] | None, None, None]) -> Iterator[tuple[int, T]]:
    """Numbered items in the order of their numbers, 0 first, after waiting for them."""
    early: dict[int, T] = {}
    number = 0
    with closing(items):
        for item in items:
            if item is None:
                time.sleep(LOOK)
                continue
            early[item[0]] = item[1]
            while number in early:
                yield number, early.pop(number)
                number += 1
