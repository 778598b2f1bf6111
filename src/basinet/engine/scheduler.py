"""Sees to it that every member that is wanted is trained once: hands groups to an executor, here or in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .executor import Halves, Here
from .line import Job
from .planner import cut
from .work import Trained
from .workers import Crew


def train_all(here: Here, wanted: Sequence[int], job: Job) -> Iterator[Trained]:
    """Trains the groups that were planned, as the plan says; one for which memory runs out, again in halves."""
    checkpoints = here.run.checkpoints
    left = set(wanted)
    for i in checkpoints.failed:
        left.discard(i)
        yield Trained(i, None, {})

    def halves(group: list[int]) -> list[list[int]]:
        parts = cut([i for i in group if i in left], here.half(len(group)))
        checkpoints.regroup(group, parts)
        return parts

    groups = [group for group in checkpoints.groups if left & set(group)]
    crew = Crew(here.run, here.engine.place, here.roster)
    try:
        train = _executor(here, crew, job, len(groups or left))
        while left:
            for trained in train(groups or [[i] for i in sorted(left)], halves):
                left.discard(trained.position)
                yield trained
            groups = []  # whose file was lost since is trained alone
    finally:
        crew.dismiss()


def _executor(here: Here, crew: Crew, job: Job, groups: int) -> Callable[[list[list[int]], Halves], Iterator[Trained]]:
    """What trains groups: a crew where the plan is one of processes and these can be started, or this process."""
    plan = here.chosen
    if not plan.threads or groups == 0:
        return here.train_all
    here.forget()  # kernels from the probe: workers have their own
    if reason := crew.enlist(job, min(plan.processes, groups), plan.threads):
        here.run.progress.say(f"all members train in this process, since others cannot be started: {reason}")
        return here.train_all
    return crew.train_all
