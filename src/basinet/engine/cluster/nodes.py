"""What the nodes of a cluster are: whether they compute the same, and whether they see the pool."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Set
from pathlib import Path
from typing import Any

from ..worker_loop import WorkerError
from .task import Seen, look

ANSWER = 60.0  # seconds in which nodes say what they are

_seen: dict[tuple[str, Path | None], Seen] = {}  # nodes, by their number and the pool that they were asked about


def look_at_nodes(
    ray: Any, token: Path | None, expected: dict[str, str], say: Callable[[str], None]
) -> Generator[None, None, bool]:
    """Refuses nodes that would compute something else; returns whether some node does not see the pool, in a folder of
    which the token lies. Each node is asked once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pool = None if token is None else token.parent.parent
    there = [(node["NodeID"], pool) for node in ray.nodes() if node["Alive"]]
    asked = {}
    for node in there:
        if node not in _seen:
            only = NodeAffinitySchedulingStrategy(node[0], soft=False)
            asked[ray.remote(look).options(num_cpus=0, scheduling_strategy=only).remote(token)] = node
    until, answered = time.monotonic() + ANSWER, list[Any]()
    while len(answered) < len(asked) and time.monotonic() < until:
        yield None
        answered = ray.wait([*asked], num_returns=len(asked), timeout=0)[0]
    if silent := len(asked) - len(answered):
        say(f"{silent} of {len(there)} Ray nodes have not answered in {ANSWER:.0f} s")
    for ref in answered:
        try:
            _seen[asked[ref]] = Seen(*ray.get(ref))
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"a Ray node cannot import basinet: {str(error).strip().splitlines()[-1]}. Install the same basinet "
                "and torch on all nodes"
            ) from error
        except ray.exceptions.RayError:  # a node that has gone since
            continue
    known = [_seen[node] for node in there if node in _seen]
    for seen in known:
        seen.refuse_unless(expected)
    return not all(seen.sees for seen in known)


def elsewhere(ray: Any, avoid: Set[str], device: str) -> Any:
    """How Ray is asked for another node than these, if there is one with such a device."""
    if not avoid:
        return "SPREAD"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    kind = "GPU" if device == "cuda" else "CPU"
    others = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in avoid and n["Resources"].get(kind)]
    return NodeAffinitySchedulingStrategy(secrets.choice(others), soft=True) if others else "SPREAD"
