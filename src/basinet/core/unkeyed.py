"""Random calls that read torch's global generator, seen only in this thread.

All threads share that generator, so its state does not tell who drew from it. These modes see the calls themselves,
below autograd and vmap, wherever they come from: torch tags the operators that draw.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watching(TorchDispatchMode):
    """A mode that looks at every operation, outside of what is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to keep its compiler from looking in, torch would import it, which takes seconds."""
        return False


class OwnGenerator(Watching):
    """Answers random calls on the CPU from a generator of its own, with the numbers that the global one would give
    after `torch.manual_seed(seed)`: what other threads draw meanwhile does not matter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = _with_generator(func)
        if answer is not None and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            return answer(*args, **kwargs | {"generator": self.generator})
        return func(*args, **kwargs)


class Noticed(Watching):
    """Notes whether anything in its body draws from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drew = self.drew or (draws(func) and (kwargs or {}).get("generator") is None)
        return func(*args, **(kwargs or {}))


@cache
def _with_generator(operator: Any) -> Any:
    """The operator, or its overload, that draws from a generator it is given; None of one that does not draw."""
    if not draws(operator):
        return None
    takes = any(argument.name == "generator" for argument in operator._schema.arguments)
    return operator if takes else getattr(operator.overloadpacket, "generator", None)  # torch.rand has an overload


def draws(operator: Any) -> bool:
    """Whether an operator of torch draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def _on_cpu(args: Any, kwargs: Any) -> bool:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    place = tensors[0].device if tensors else kwargs.get("device") or torch.get_default_device()
    return torch.device(place).type == "cpu"
