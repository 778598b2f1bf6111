"""One member of a group: where it stands, and what the method makes of it in the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Point
from .method import Finished
from .work import Member, Run, Trained


class Slot:
    """Where one member stands."""

    def __init__(self, member: Member, point: Callable[[int], Point], key: Tensor, position: int) -> None:
        self.member, self.point, self.root, self.position = member, point, key, position
        self.clock = self.attempt = self.boundary = 0
        self.loss, self.finished = 0.0, False
        self.best, self.waited = float("inf"), 0
        self.curves: dict[str, list[float]] = {"step": [], "loss": []}

    def key(self) -> Tensor:
        """The key of the attempt that is under way."""
        return self.root if self.attempt == 0 else Noise(self.root).split("attempt").split(self.attempt).key

    def restart(self) -> None:
        """Forgets what it did, and begins another attempt."""
        self.clock = self.boundary = 0
        self.loss, self.best, self.waited = 0.0, float("inf"), 0
        self.attempt += 1
        self.curves = {"step": [], "loss": []}

    def memory(self) -> dict[str, Any]:
        """What a checkpoint holds of it, as JSON."""
        names = ("clock", "attempt", "boundary", "loss", "finished", "best", "waited", "curves")
        return {name: getattr(self, name) for name in names}

    def recall(self, memory: dict[str, Any]) -> None:
        """The inverse of `memory`."""
        for name, value in memory.items():
            setattr(self, name, value)


def finish(run: Run, slot: Slot, state: Any, samples: Any) -> Finished:
    """What the method makes of a member, after saying what it has to say."""
    work = run.work
    own: Any = None if work.data is None else work.data.member(slot.member.k)  # a stream says what it has not
    val: Any = None if work.val is None else work.val.member(slot.member.k)
    result = work.method.finish(state, samples, work.problem, own, val, Noise(slot.key()).split("finish"))
    done = result if isinstance(result, Finished) else Finished(result)
    who, said = f"member {slot.member.k} (seed {slot.member.seed})", done.notes + done.warnings
    for line in said:
        run.progress.about(work.method.label, who, line, line in done.warnings)
    return done._replace(curves=done.curves | {"notes": list(said)}) if said else done


def finish_only(run: Run, slot: Slot) -> Trained:
    """A member of a method that makes no steps."""
    began = time.perf_counter()
    noise = Noise(slot.key())
    state = run.work.method.init(slot.point(0), run.work.problem, noise.split("init"))
    done = finish(run, slot, state, None)
    curves = slot.curves | done.curves | {"seconds": [time.perf_counter() - began]}
    return Trained(slot.position, done.family, curves)
