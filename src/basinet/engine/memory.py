"""What a member costs in memory, before anything is allocated, and how many fit."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..core.model import seeded
from ..core.noise import Noise
from ..core.tree import Point, nbytes, tree_map
from ..data import Data
from ..problem import Batch, Problem
from .method import Method, Schedule

SHARE = 0.8  # of what is free that members may take
COPIES = 3  # of the state that live at once: itself, the next one, and gradients


def member_bytes(method: Method, problem: Problem, point: Point, data: Data, schedule: Schedule) -> int:
    """State, gradients, a batch and the activations that its backward pass needs, for one member."""
    key = Noise.seed(0, next(iter(point.params.values())).device)
    state = nbytes(method.init(point, problem, key))
    size = min(schedule.batch_size or data.n, data.n)
    few = min(size, 8)
    rows: Any = tree_map(lambda x: x[:few].clone(), data.inputs)
    kept = _activations(problem, point, rows, data.targets[:few].clone(), key) * size // few
    batch = nbytes(rows) * size // few
    samples = schedule.bank * nbytes(point.params)
    return COPIES * state + 2 * kept + batch + samples


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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def readable(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def _activations(problem: Problem, point: Point, inputs: Any, targets: Tensor, key: Noise) -> int:
    """Bytes that a backward pass keeps for these examples."""
    params = {n: x.detach().clone().requires_grad_(x.is_floating_point()) for n, x in point.params.items()}
    own = {x.untyped_storage().data_ptr() for x in params.values()}
    seen: dict[int, int] = {}

    def count(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    zero = torch.zeros((), dtype=torch.long, device=targets.device)
    batch = Batch(inputs, targets, zero, zero, len(targets))
    try:
        with seeded(0), torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            problem.potential(params, point.buffers, batch, key, "train")
    except ValueError as error:
        if len(targets) > 1 or not problem.network.norms:
            raise
        told = "expected batches of at least 2 examples, which norm layers need, got 1"
        raise ValueError(f"{told}: {error}") from error
    return sum(seen.values())
