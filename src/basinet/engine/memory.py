"""What a member costs in memory, before anything is allocated, and how many fit."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..core.model import seeded
from ..core.noise import Noise
from ..core.tree import Point, leaves, nbytes, stack, take, tree_map
from ..core.unkeyed import Watching
from ..data import Data, some
from ..problem import Batch
from .step import Alone, Lift, Step
from .work import Work

SHARE = 0.8  # of what is free that members may take
COPIES = 2  # of the state that live at once: itself, and the next one
FEW = 4  # examples, and twice as many, on which steps are measured


class MemberBytes(NamedTuple):
    """What one member takes while it trains."""

    state: int  # with what lives beside it: the next one, and gradients
    step: int  # what else a step holds, whatever its batch
    batch: int  # activations, and the examples themselves
    samples: int  # that are kept

    @property
    def total(self) -> int:
        return self.state + self.step + self.batch + self.samples

    def of(self, members: int, at_once: int) -> int:
        """What a group takes, of whose members this many are computed at once."""
        return members * (self.state + self.samples) + at_once * (self.step + self.batch)


def member_bytes(work: Work, point: Point) -> MemberBytes:
    """For one member, measured on steps of the method itself with a few examples."""
    data = some(work.data)
    size = min(work.schedule.batch_size or data.n, data.n)
    few = min(size, FEW)
    row = nbytes(tree_map(lambda x: x[:1], (data.inputs, data.targets)))
    key = Noise.seed(0, next(iter(point.params.values())).device)
    state = nbytes(work.method.init(point, work.problem, key))
    some_rows, more_rows = (_step_bytes(work, point, data, rows) for rows in (few, min(size, 2 * few)))
    each = max(0, more_rows - some_rows) / max(1, min(size, 2 * few) - few)
    samples = work.schedule.bank * nbytes(point.params)
    return MemberBytes(COPIES * state, max(0, int(some_rows - each * few)), int(each * size) + row * size, samples)


def _step_bytes(work: Work, point: Point, data: Data, rows: int) -> int:
    """The most that a step of one member holds at a time beside its state, on the first examples."""
    method, device = work.method, data.targets.device
    members = 2 if method.coupled else 1
    key = Noise.seed(0, device).spread(members).key
    state = stack([tree_map(torch.clone, method.init(point, work.problem, Noise(k))) for k in key])
    few = tree_map(lambda x: x[:rows].clone(), (data.inputs, data.targets))
    weights = None if data.weights is None else data.weights[:rows]
    clock = torch.zeros((), dtype=torch.long, device=device)
    batch = Batch(*few, torch.arange(rows, device=device), clock, data.n, weights)
    try:
        with seeded(0), Held() as held:
            if method.coupled:
                method.update(state, Step(batch, work.problem, Noise(key), work.context, Lift(1)))
            else:
                method.update(take(state, 0), Step(batch, work.problem, Noise(key[0]), work.context, Alone()))
    except ValueError as error:
        if rows > 1 or not work.problem.network.norms:
            raise
        reason = "expected batches of at least 2 examples, which norm layers need, got 1"
        raise ValueError(f"{reason}: {error}") from error
    return held.most // members


class Held(Watching):
    """Counts the bytes of results that are alive at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._sum = 0, 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in leaves(result):
            if isinstance(x, Tensor):
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        known = StorageWeakRef(storage)
        if known.cdata in self._alive and not self._alive[known.cdata][0].expired():
            return
        self._alive[known.cdata] = (known, storage.nbytes())
        self._sum += storage.nbytes()
        if self._sum > self.most:  # of which some may be gone
            self._alive = {k: entry for k, entry in self._alive.items() if not entry[0].expired()}
            self._sum = sum(count for _, count in self._alive.values())
            self.most = max(self.most, self._sum)


def free_bytes(device: torch.device) -> int:
    """What is free on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def readable(size: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
