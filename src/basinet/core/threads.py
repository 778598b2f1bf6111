"""A copy of a module for each thread that runs it.

`functional_call` sets tensors in the module for as long as it runs, so that two threads that run one module would see
each other's. Serving is threaded, and fits may be: each thread has a copy of its own. Copies share their tensors, which
are never read, and last as long as the module and the thread do.
"""

from __future__ import annotations

import copy
import threading
from weakref import WeakKeyDictionary

import torch
from torch import nn


class _Copies(threading.local):
    """The copies that belong to one thread, by the module that they were made of."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


_COPIES = _Copies()


def own_copy(module: nn.Module) -> nn.Module:
    """This thread's copy of a module that no thread runs itself. What is being compiled is traced, not run: it reads
    the module."""
    if torch.compiler.is_compiling():
        return module
    if module not in _COPIES.of:
        memo = {id(x): x for x in (*module.parameters(), *module.buffers())}
        _COPIES.of[module] = copy.deepcopy(module, memo)
    return _COPIES.of[module]
