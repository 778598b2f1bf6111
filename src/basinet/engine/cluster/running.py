"""What the driver knows of a group that a task trains: how far it came, and how often it was lost."""

from __future__ import annotations

from ...core.lift import is_out_of_memory


class History:
    """How far a group has come, over all tasks that trained it."""

    def __init__(self) -> None:
        self.best = self.losses = 0
        self.starved = 0  # times that it was lost for want of memory
        self.avoid: set[str] = set()  # nodes on which it was lost


class Running:
    """A group that a task trains."""

    def __init__(self, group: list[int], history: History, memory: int = 0) -> None:
        self.group, self.history, self.done, self.before = group, history, 0, history.best
        self.memory = memory  # bytes of a node that it asked for
        self.node = ""  # where it runs, once that is known
        self.withdrawn = False  # before it began

    def further(self, steps: int) -> int:
        """Counts steps; returns those that no task before had made."""
        self.done += steps
        new = max(0, self.done - self.history.best)
        self.history.best += new
        return new

    def lost(self) -> int:
        """How often the group was lost since it last came further; the next task had better run on another node."""
        self.history.avoid |= {self.node} - {""}
        self.history.losses = 1 if self.history.best > self.before else self.history.losses + 1
        return self.history.losses


def is_fault(error: BaseException | None) -> bool:
    """Whether an error in a task is the node's or Ray's and no fault of the user's code: memory ran out, there is no
    room for what it sends, what it needs did not arrive. Another node may do better."""
    if error is None:
        return False
    return type(error).__module__ == "ray.exceptions" or isinstance(error, MemoryError) or is_out_of_memory(error)


def is_starved(error: BaseException) -> bool:
    """Whether a task was lost for want of memory: in its own process, or ended by Ray, since its node had no more."""
    return type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError) or is_out_of_memory(error)


def reason_of(error: BaseException) -> str:
    """Why a task was lost, in words."""
    if is_starved(error):
        return "their task ran out of memory"
    kinds = {
        "NodeDiedError": "the node that trained them is lost",
        "WorkerCrashedError": "the process that trained them ended",
        "ObjectStoreFullError": "Ray's object store is full",
        "OutOfDiskError": "the disk of Ray's object store is full",
    }
    name = type(error).__name__
    return kinds.get(name, f"their task was lost ({name})")
