"""Members side by side on a GPU, each on a stream of its own."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..core.lift import compiled
from .step import Lift


class Streams(Lift):
    """On a GPU: one call for each member, on a stream of its own, to be recorded in a CUDA graph.

    Convolutions of many members in one call are grouped ones, whose second derivatives are slow; here they stay plain.
    With `recompute`, `at_once` members have activations in memory at a time.
    """

    def __init__(self, at_once: int | None = None, *, recompute: bool = False, compile: bool = False) -> None:
        super().__init__(1, recompute=recompute, compile=compile)
        self.at_once = at_once
        self.streams: list[torch.cuda.Stream] = []  # none: one member after another, to warm up
        self._codes: dict[types.CodeType, types.CodeType] = {}

    @property
    def traced(self) -> bool:
        """Each call is compiled by itself, so that derivatives are taken outside, by torch's own tape."""
        return False

    def spread(self, members: int) -> None:
        """Takes streams for this many members."""
        self.streams = [torch.cuda.Stream() for _ in range(min(self.at_once or members, members))]

    def _call(self, function: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
        if not self.compile or not hasattr(function, "__code__"):
            return super()._call(function, dims)
        code = self._codes.setdefault(function.__code__, function.__code__.replace())
        return super()._call(compiled(function, whole=True, code=code), dims)

    def _each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        return on_streams(self.streams, calls)


def on_streams(streams: Sequence[torch.cuda.Stream], calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What the calls give, each on one of the streams in turn; in sequence where there are none."""
    if not streams:
        return [call() for call in calls]
    current, results = torch.cuda.current_stream(), []
    for stream in streams:
        stream.wait_stream(current)
    for i, call in enumerate(calls):
        with torch.cuda.stream(streams[i % len(streams)]):
            results.append(call())
    for stream in streams:  # after all have been sent off: a join in between would make each wait for the last
        current.wait_stream(stream)
    return results
