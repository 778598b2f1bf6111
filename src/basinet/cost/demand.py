"""What a method needs beside training, and how wide a network is: known before anything large is made."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.overrides import TorchFunctionMode


class Predicting(NamedTuple):
    """What predicting with one member takes."""

    draws: int = 1  # sets of outputs that are held per input
    forwards: float = 1.0  # forward passes that these take, or work like it
    numbers: int = 0  # random ones that a draw of the weights is made of; 0: nothing is drawn
    flops: float = 0.0  # that make a draw of them


class Demand(NamedTuple):
    """Of one member; training itself is counted by the engine."""

    kept: int  # bytes of the family
    finish: int = 0  # bytes that `finish` holds at once beside the family, the network and the data
    passes: float = 0.0  # forward passes of the network on one example that `finish` makes, or work like it
    flops: float = 0.0  # of dense linear algebra beside them
    what: str = ""  # what takes the most, in words
    predict: Predicting = Predicting()


class Widths(TorchFunctionMode):
    """Notes the largest tensor per example, in bytes, that is computed while a network runs on `examples`."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples, self.widest = examples, 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and any(k % self.examples == 0 for k in out.shape):
            self.widest = max(self.widest, out.numel() * out.element_size())
        return out
