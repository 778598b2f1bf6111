"""Reading ahead: the same items in order, never too many, and a thread that always ends."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Generator, Iterator

import pytest
import torch
from torch import Tensor

from basinet.data.prefetch import Prefetched


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "basinet-ahead"]


def items(count: int | None, taken: list[int] | None = None) -> Generator[Tensor, None, None]:
    k = 0
    while count is None or k < count:
        if taken is not None:
            taken.append(k)
        yield torch.tensor(k)
        k += 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_all_items_come_in_order_and_then_no_more(ahead):
    prefetched = Prefetched(items(10), ahead)
    assert [int(x) for x in prefetched] == list(range(10))
    with pytest.raises(StopIteration):
        next(prefetched)


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_than_asked_for_are_read_ahead(ahead):
    taken: list[int] = []
    full = threading.Event()

    def counted() -> Generator[Tensor, None, None]:
        for x in items(None, taken):
            if len(taken) == ahead + 3:  # two were handed over, `ahead` wait, and one is in the thread's hand
                full.set()
            yield x

    prefetched = Prefetched(counted(), ahead)
    assert [int(next(prefetched)), int(next(prefetched))] == [0, 1]
    assert full.wait(10)
    prefetched._stop.wait(0.3)  # time in which a thread without a bound would read on
    assert len(taken) == ahead + 3
    prefetched.close()


def test_without_a_thread_nothing_is_read_before_it_is_asked_for():
    taken: list[int] = []
    prefetched = Prefetched(items(None, taken), 0)
    assert taken == [] and int(next(prefetched)) == 0 and taken == [0]
    prefetched.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_is_raised_in_its_turn_with_its_traceback(ahead):
    def broken() -> Generator[Tensor, None, None]:
        yield torch.tensor(0)
        raise OSError("the disk is gone")

    prefetched = Prefetched(broken(), ahead)
    assert int(next(prefetched)) == 0
    with pytest.raises(OSError, match="the disk is gone") as error:
        next(prefetched)
    assert "in broken" in "".join(traceback.format_exception(error.value))
    with pytest.raises(StopIteration):
        next(prefetched)


@pytest.mark.parametrize("ahead", [0, 2])
def test_closing_ends_the_thread_and_the_iterator(ahead):
    ended = threading.Event()

    def endless() -> Generator[Tensor, None, None]:
        try:
            yield from items(None)
        finally:
            ended.set()

    prefetched = Prefetched(endless(), ahead)
    next(prefetched)
    prefetched.close()
    prefetched.close()
    assert ended.is_set()
    with pytest.raises(StopIteration):
        next(prefetched)
