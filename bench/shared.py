"""What benches share: networks, options, clocks, processes of their own, and the file of records."""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import basinet as bn
from basinet.networks import MLP

sys.path.append(str(Path(__file__).parents[1]))  # where studies/ is


def mlp_64() -> nn.Module:
    return MLP(64, 10, hidden=(200, 200))


def mlp_784() -> nn.Module:
    return MLP(784, 10, hidden=(200, 200, 200))


def cnn() -> nn.Module:
    """Two convolutions and two dense layers with batch norm, for 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def options(doc: str | None, devices: Sequence[str] = ("cpu", "cuda")) -> argparse.ArgumentParser:
    """The options that all benches have; with one device there is nothing to choose."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if len(devices) > 1:
        parser.add_argument("--device", default=devices[0], choices=devices)
    parser.add_argument("--out", type=Path, help="file of JSON lines to which records are added")
    return parser


def sync(device: str) -> None:
    """Waits for what was asked of a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run: Callable[[], Any], device: str = "cpu") -> tuple[float, Any]:
    """How long it takes, and what it returns."""
    sync(device)
    began = time.perf_counter()
    result = run()
    sync(device)
    return time.perf_counter() - began, result


class Pace:
    """An observer of `bn.fit`: seconds per step of the members that train at once, between one report on them and the
    next, by some clock."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock
        self.stamps = defaultdict[object, dict[int, float]](dict)  # by members and step

    def __call__(self, event: bn.Event) -> None:
        sync(self.device)
        self.stamps[event.members][event.step] = self.clock()

    def __iter__(self) -> Iterator[float]:
        for stamps in self.stamps.values():
            for (a, began), (b, ended) in itertools.pairwise(sorted(stamps.items())):
                yield (ended - began) / (b - a)


def most_bytes(device: str = "cpu") -> int:
    """The most memory that this process held so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def apart(bench: str, *words: str) -> Any:
    """What a bench prints as JSON in its last line, run with these options in a process of its own."""
    done = subprocess.run([sys.executable, bench, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def versions() -> dict[str, str]:
    return {"basinet": bn.__version__, "torch": torch.__version__, "python": platform.python_version()}


def write(out: Path | None, record: dict[str, Any]) -> None:
    """Adds a record to the file, where there is one."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
