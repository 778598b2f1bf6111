"""Chooses how members run, by trying: stacked where `vmap` runs the method on this network and it pays, else the
loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

Strategy = Literal["stacked", "loop"]


class Choice(NamedTuple):
    """A strategy, and why."""

    strategy: Strategy
    reason: str


def choose(
    asked: Strategy | None,
    members: int,
    device: torch.device,
    module: nn.Module,
    attempt: Callable[[Strategy], Any],
) -> Choice:
    """The strategy asked for, or the one that fits. `attempt` runs one small step in a strategy, without effect."""
    if asked == "stacked":
        _try(attempt, "stacked")
        return Choice("stacked", "asked for")
    if asked == "loop" or members == 1:
        _try(attempt, "loop")
        return Choice("loop", "asked for" if asked else "one member")
    if device.type == "cpu" and any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules()):
        _try(attempt, "loop")
        return Choice("loop", "convolutions on a CPU are slower stacked")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _FALLBACK, UserWarning)  # vmap then loops inside, slower than we do
            _try(attempt, "stacked")
    except UnkeyedRandomness:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError, UserWarning) as error:
        _try(attempt, "loop")
        return Choice("loop", f"the network cannot be stacked ({_first_line(error)})")
    return Choice("stacked", "vmap runs this network")


class UnkeyedRandomness(ValueError):
    """A module draws random numbers that no key controls."""


def _try(attempt: Callable[[Strategy], Any], strategy: Strategy) -> None:
    before = torch.get_rng_state()
    try:
        attempt(strategy)
    except RuntimeError as error:
        if "randomness error mode" in str(error):
            raise UnkeyedRandomness(_MESSAGE) from error
        raise
    finally:
        drew = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    if drew:
        raise UnkeyedRandomness(_MESSAGE)


_FALLBACK = "There is a performance drop because we have not yet implemented the batching rule for "

_MESSAGE = (
    "the module draws random numbers that no key controls, so members could not be told apart or repeated. Dropout "
    "(nn.Dropout, F.dropout, "
    "inside attention), rand_like, randn_like and bernoulli are keyed; replace other random calls (nn.LSTM's own "
    "dropout, RReLU, torch.rand) by these"
)


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    if text.startswith(_FALLBACK):
        text = f"vmap has no rule for {text.removeprefix(_FALLBACK).split('.')[0]}"
    return text if len(text) <= 160 else text[:157] + "..."
