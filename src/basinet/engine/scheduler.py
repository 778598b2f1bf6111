"""Sees to it that every member that is wanted is trained once: hands groups to an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ..core.tree import Point
from .executor import Executor, Halves, Here
from .planner import Planner, cut
from .work import Trained
from .worker_loop import Job
from .workers import Crew


def train_all(executor: Executor, wanted: Sequence[int]) -> Iterator[Trained | None]:
    """Trains the groups that were planned; one for which memory runs out, again in halves."""
    checkpoints = executor.run.checkpoints
    left = set(wanted)
    for i in checkpoints.failed:
        left.discard(i)
        yield Trained(i, None, {})

    def halves(group: list[int]) -> list[list[int]]:
        parts = cut([i for i in group if i in left], executor.half(len(group)))
        checkpoints.regroup(group, parts)
        return parts

    groups = [group for group in checkpoints.groups if left & set(group)]
    while left:
        for trained in executor.train_all(groups or [[i] for i in sorted(left)], halves):
            if trained is not None:
                left.discard(trained.position)
            yield trained
        groups = []  # whose file was lost since is trained alone


class Local:
    """This machine: its processes, where the plan is one of processes and these can be started, or this one."""

    def __init__(self, here: Here, job: Callable[[Here], Job]) -> None:
        self.run, self.here, self.job = here.run, here, job
        self.crew = Crew(here.run, here.engine.place, here.roster)
        self._train: Callable[[list[list[int]], Halves], Iterator[Trained]] | None = None

    def plan(self, first: Point, wanted: Sequence[int]) -> Iterable[None]:
        Planner(self.here.engine, self.here).plan(first, wanted)
        return ()

    def train_all(self, groups: list[list[int]], halves: Halves) -> Iterator[Trained]:
        self._train = self._train or self._begin(len(groups))
        return self._train(groups, halves)

    def half(self, count: int) -> int:
        return self.here.half(count)

    def close(self) -> None:
        self.crew.dismiss()

    def _begin(self, groups: int) -> Callable[[list[list[int]], Halves], Iterator[Trained]]:
        plan = self.here.chosen
        if not plan.threads:
            return self.here.train_all
        self.here.forget()  # kernels from the probe: workers have their own
        if reason := self.crew.enlist(self.job(self.here), min(plan.processes, groups), plan.threads):
            self.run.progress.say(f"all members train in this process, since no others can be started: {reason}")
            return self.here.train_all
        return self.crew.train_all
