"""Reads ahead: a thread takes items from an iterator and moves them to a device while the caller works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from queue import Full, Queue
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core import tree

T = TypeVar("T")
LOOK = 0.1  # seconds after which a thread that waits for room looks whether it is still wanted
PATIENCE = 10.0  # seconds that `close` waits for an iterator that is in the middle of an item


class Prefetched(Generic[T]):
    """An iterator over trees of tensors, moved to `device`, at most `count` of them ahead of the caller (0: no thread).

    On a GPU they travel through pinned memory on a stream of their own. What the iterator raises is raised here, with
    the traceback it had there. `close` ends the thread; one that still waits for its iterator ends with that item.
    """

    def __init__(self, items: Generator[T, None, None], count: int, device: torch.device | str | None = None) -> None:
        self._items, self._device = items, None if device is None else torch.device(device)
        if self._device is not None and self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())  # which a new thread has not set
        self._stop = threading.Event()
        self._queue: Queue[T | _End] = Queue(max(count, 1))
        self._thread = threading.Thread(target=self._fill, name="basinet-ahead", daemon=True) if count else None
        if self._thread is not None:
            self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._stop.is_set():
            raise StopIteration
        if self._thread is None:
            return tree.move(next(self._items), self._device)
        item = self._queue.get()
        if isinstance(item, _End):
            self.close()
            raise StopIteration if item.error is None else item.error
        for x in tree.leaves(item):
            if isinstance(x, Tensor) and x.is_cuda:  # its memory is free again when this stream is done with it
                x.record_stream(torch.cuda.current_stream(x.device))
        return item

    def close(self) -> None:
        """Ends the thread and the iterator."""
        self._stop.set()
        if self._thread is None:
            self._items.close()
        else:
            self._thread.join(PATIENCE)

    def _fill(self) -> None:
        end = _End(None)
        try:
            for item in map(self._mover(), self._items):
                if not self._put(item):
                    break
        except BaseException as error:
            end = _End(error)
        finally:
            self._items.close()
        self._put(end)

    def _mover(self) -> Callable[[T], T]:
        """What brings an item to the device, complete when it returns."""
        device = self._device
        if device is None or device.type != "cuda":
            return lambda item: tree.move(item, device)
        side = torch.cuda.Stream(device)

        def send(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return (x if x.is_cuda else x.pin_memory()).to(device, non_blocking=True)

        def sent(item: T) -> T:
            with torch.cuda.stream(side):
                moved = tree.tree_map(send, item)
            side.synchronize()
            return moved

        return sent

    def _put(self, item: T | _End) -> bool:
        """Waits for room; false where nobody wants it any more."""
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=LOOK)
                return True
            except Full:
                continue
        return False


class _End(NamedTuple):
    error: BaseException | None
