"""What a cluster has, and what each task takes of a node: a processor, or a GPU, and memory.

A GPU has one task at a time: groups that share one take as long as in turn, and one larger group takes less.

A node runs as many tasks as its memory holds, by what planning predicts for each group, since Ray ends tasks of a node
whose memory is used up. What a task asks for never exceeds the largest node: no other would ever run it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Set
from typing import Any

from ...core.tree import nbytes
from ...data import Data
from ..memory import SHARE, MemberBytes
from ..work import Work
from .nodes import elsewhere

ASK = 2.0  # seconds between looks at what the cluster has
PROCESS = 300 * 2**20  # bytes of a Ray worker that has imported torch and basinet: 294 MiB, of which it shares some


class Resources:
    """What the cluster has now, and what tasks of a run on it ask for."""

    def __init__(self, ray: Any, asked: str | None, work: Work) -> None:
        self.ray = ray
        self.look()
        self.device = self._device(asked)
        self.process = PROCESS + sum(map(_bytes_of, (work.data, work.val)))  # bytes of a task beside its members

    def look(self) -> None:
        """Asks the cluster what it has."""
        self.looked, self.total = time.monotonic(), self.ray.cluster_resources()
        self.nodes = [node for node in self.ray.nodes() if node["Alive"]]

    def old(self) -> bool:
        """Whether it is time to ask again."""
        return time.monotonic() - self.looked > ASK

    def words(self) -> str:
        """What the cluster has now, for the line that says where members train."""
        self.look()
        nodes = len(self.nodes)
        gpus = f", {self.total['GPU']:g} GPUs" if self.total.get("GPU") else ""
        return f"{nodes} Ray node{'s' * (nodes != 1)} with {self.total.get('CPU', 0):g} CPUs{gpus}"

    def places(self) -> int:
        """Tasks that run at the same time, where memory suffices."""
        return int(self.total.get("CPU" if self.device == "cpu" else "GPU", 0))

    def largest(self) -> int | None:
        """Bytes that tasks may take of the node that has most; None where no node that could run them is up yet."""
        kind = "CPU" if self.device == "cpu" else "GPU"
        return max((int(n["Resources"].get("memory", 0)) for n in self.nodes if n["Resources"].get(kind)), default=None)

    def bytes_for_members(self) -> int | None:
        """Bytes that members of a task may take of the node that has most; None: of a GPU, which only a node knows."""
        largest = None if self.device == "cuda" else self.largest()
        return None if largest is None else max(0, int(SHARE * largest) - self.process)

    def takes(self, each: MemberBytes | None = None, members: int = 0, at_once: int = 0, finish: int = 0) -> int:
        """Bytes of a node's memory that a task takes whose members need `each` in training, and `finish` in the end."""
        training = 0 if each is None else each.of(members, at_once)
        group = 0 if self.device == "cuda" else max(training, finish)
        return min(self.process + group, self.largest() or sys.maxsize)

    def options(self, avoid: Set[str], memory: int) -> dict[str, Any]:
        """What Ray is asked for: this much of a node, and of which nodes rather not."""
        where = {"scheduling_strategy": elsewhere(self.ray, avoid, self.device), "memory": memory}
        if self.device == "cpu":
            return {"num_cpus": 1} | where
        cpus = self.total.get("CPU", 0) / self.total.get("GPU", 1)
        return {"num_gpus": 1, "num_cpus": min(1, int(cpus))} | where

    def _device(self, asked: str | None) -> str:
        gpus = self.total.get("GPU", 0)
        if asked == "cuda" and not gpus:
            raise ValueError(
                f"device 'cuda' was asked for, and the Ray cluster has no GPU ({self.words()}): add a node with one, "
                "or use device='cpu'"
            )
        return asked or ("cuda" if gpus else "cpu")


def _bytes_of(data: Any) -> int:
    """Bytes of data in memory; a stream reads its batches."""
    return nbytes((data.inputs, data.targets, data.weights, data.rows)) if isinstance(data, Data) else 0
