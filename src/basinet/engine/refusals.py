"""What torch says where a network cannot be trained as asked, in words that name what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ..core.lift import is_out_of_memory
from .workers import WorkerError

if TYPE_CHECKING:
    from .engine import Engine

PRECISION = (
    "not implemented for",
    "scalar type",
    "same dtype",
    "autocast",
    "overflow",
    "expected dtype",
    "Low precision",
)
ONE_ROW = "more than 1 value per channel"


class CannotTrain(ValueError):
    """A network that does not train on these data with this engine."""


@contextmanager
def in_words(engine: Engine, dtype: torch.dtype, trying: bool = False) -> Iterator[None]:
    """Turns errors of torch that we know into CannotTrain; while steps are only `trying`, all of torch's."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        if isinstance(error, WorkerError) or is_out_of_memory(error):
            raise
        if ONE_ROW in reason:
            raise CannotTrain(
                f"a norm layer gets a batch of one example, which has no spread to divide by ({reason}): choose a "
                "batch_size of 2 or more, a stream without a last batch of one (drop_last=True), or a layer norm"
            ) from error
        if not isinstance(error, RuntimeError):
            raise
        low = [x for x in (dtype, engine.autocast) if x in (torch.float16, torch.bfloat16)]
        if (low or engine.autocast) and any(word in reason for word in PRECISION):
            what = f"autocast to {engine.autocast}" if engine.autocast else str(dtype)
            raise CannotTrain(
                f"the network does not train in {what}: {reason}. Use Engine(dtype=torch.float32) without autocast, or "
                "layers that have that precision"
            ) from error
        if "vmap" in reason and engine.strategy == "stacked":
            raise CannotTrain(
                f"the network cannot be stacked ({reason}): use strategy='loop', or leave it out"
            ) from error
        if trying:
            raise CannotTrain(f"a step of training fails: {reason}") from error
        raise
