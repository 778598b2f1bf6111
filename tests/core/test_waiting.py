"""Several tasks in one thread: which are under way, in which order their results arrive, and how all of them end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from basinet.core.waiting import in_order, in_turn, result_of


def waits(times: int, *items: Any, log: list[Any] | None = None, name: str = "") -> Generator[Any, None, Any]:
    log = [] if log is None else log
    log.append(f"{name} begins")
    try:
        for _ in range(times):
            yield None
        yield from items
    finally:
        log.append(f"{name} ends")


def test_a_result_is_waited_for():
    def work() -> Generator[None, None, int]:
        yield
        yield
        return 3

    assert result_of(work()) == 3


def test_works_are_under_way_at_the_same_time_as_many_as_asked():
    log: list[Any] = []
    tasks = [waits(times, k, log=log, name=str(k)) for k, times in enumerate((9, 1, 0))]
    assert [x for x in in_turn(tasks, 2) if x is not None] == [1, 2, 0]
    assert log == ["0 begins", "1 begins", "1 ends", "2 begins", "2 ends", "0 ends"]
    assert [x for x in in_turn([waits(3 - k, k) for k in range(3)], 1) if x is not None] == [0, 1, 2]


def test_all_waiting_is_passed_on_as_waiting():
    assert list(in_turn([waits(2), waits(1)], 2)) == [None]


def test_items_arrive_in_the_order_of_their_numbers():
    tasks = [waits(3 - k, (k, "abc"[k])) for k in range(3)]
    assert list(in_order(in_turn(tasks, 3))) == [(0, "a"), (1, "b"), (2, "c")]


def test_where_one_fails_the_others_are_ended():
    def fails() -> Generator[Any, None, None]:
        yield None
        raise ValueError("so it goes")

    log: list[Any] = []
    with pytest.raises(ValueError, match="so it goes"):
        list(in_order(in_turn([waits(9, log=log), fails()], 2)))
    assert log == [" begins", " ends"]
