"""What repulsion costs: a step of members that see each other, as a ratio to a step of the plain ensemble, in one run.

    python bench/repulsion.py --device cpu      the rows for a CPU
    python bench/repulsion.py --device cuda     the rows for a GPU

All train through `bn.fit` in one stack (convolutions on a GPU: each member on its stream), on the same data, network,
batch size and optimiser. They take turns, and the best epoch of each counts: a busy machine slows all of them, and not
all at once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn

import basinet as bn
from basinet.networks import MLP, ResNet

BATCH = 128
MEMBERS = 10


class Row(NamedTuple):
    name: str
    net: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of an example
    batches: int  # an epoch
    compiled: bool
    targets: dict[str, float]  # what we hold ourselves to
    strategy: Literal["stacked", "streams"] = "stacked"


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


def small_cnn() -> nn.Module:
    """A network whose stack of ten trains on a CPU while one waits."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def resnet_8() -> nn.Module:
    return ResNet(8)


EAGER = {"WGD function": 1.2, "FoRDE pca": 2.0, "FoRDE identity": 2.0}
COMPILED = {"WGD function": 1.2, "FoRDE pca": 1.4, "FoRDE identity": 1.4}
CONVOLUTIONS = {"WGD weights": 1.3, "WGD function": 1.3, "FoRDE pca": 3.3, "FoRDE identity": 3.3}
ROWS = {
    "cpu": [
        Row("MLP 64-200-200-10", mlp_64, (64,), 20, False, EAGER),
        Row("MLP 64-200-200-10, compiled", mlp_64, (64,), 20, True, COMPILED),
        Row("MLP 784-200x3-10", mlp_784, (784,), 8, False, {}),
        Row("small CNN", small_cnn, (1, 28, 28), 2, False, {}),
    ],
    "cuda": [
        Row("MLP 784-200x3-10", mlp_784, (784,), 100, True, COMPILED),
        Row("CNN", cnn, (1, 28, 28), 100, True, CONVOLUTIONS, "streams"),
        Row("ResNet-8", resnet_8, (3, 32, 32), 50, True, CONVOLUTIONS, "streams"),
        Row("ResNet-20", ResNet, (3, 32, 32), 50, True, CONVOLUTIONS, "streams"),
    ],
}


def contenders(epochs: int) -> dict[str, bn.engine.Method]:
    """The plain ensemble first."""
    common = {"epochs": epochs, "batch_size": BATCH, "optimizer": bn.optim.Adam(lr=1e-3)}
    return {
        "deep ensemble": bn.MAP(**common),
        "WGD weights": bn.WGD(**common),
        "WGD function": bn.WGD(space="function", **common),
        "FoRDE identity": bn.FoRDE(lengthscales="identity", **common),
        "FoRDE pca": bn.FoRDE(**common),
        "LIT": bn.LIT(**common),
    }


def step_seconds(row: Row, recipe: bn.engine.Method, data: bn.Data, device: str, autocast: torch.dtype | None) -> float:
    """Of all members, in the best epoch after the first."""
    problem = bn.Problem(row.net, bn.likelihoods.Categorical())
    stamps: dict[int, float] = {}

    def observe(event: bn.Event) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        stamps[event.step] = time.perf_counter()

    engine = bn.Engine(device=device, autocast=autocast, strategy=row.strategy, compile=row.compiled, progress=False)
    bn.fit(recipe, problem, data, members=MEMBERS, engine=engine, observe=observe)
    return min((stamps[b] - stamps[a]) / (b - a) for a, b in itertools.pairwise(sorted(stamps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--methods", default="", help="only methods whose name contains this, and the plain ensemble")
    parser.add_argument("--epochs", type=int, default=4, help="of which the first does not count")
    parser.add_argument("--turns", type=int, default=2, help="how often each is run")
    options = parser.parse_args()
    device = options.device
    autocast = torch.bfloat16 if device == "cuda" else None
    for row in ROWS[device]:
        if options.rows not in row.name:
            continue
        generator = torch.Generator().manual_seed(0)
        n = row.batches * BATCH
        data = bn.Data(torch.randn(n, *row.shape, generator=generator), torch.randint(0, 10, (n,), generator=generator))
        best: dict[str, float] = {}
        for _ in range(options.turns):
            for name, recipe in contenders(options.epochs).items():
                if options.methods not in name and name != "deep ensemble":
                    continue
                seconds = step_seconds(row, recipe, data, device, autocast)
                best[name] = min(seconds, best.get(name, seconds))
                print(f"    {row.name}, {name}: {1e3 * seconds:.3f} ms", flush=True)
        plain = best["deep ensemble"]
        for name, seconds in best.items():
            ratio, target = seconds / plain, row.targets.get(name)
            record = {
                "bench": "repulsion",
                "device": device,
                "row": row.name,
                "members": MEMBERS,
                "batch": BATCH,
                "compiled": row.compiled,
                "strategy": row.strategy,
                "autocast": str(autocast),
                "method": name,
                "step_seconds": seconds,
                "over_plain": ratio,
                "target": target,
                "met": target is None or ratio <= target,
                "threads": torch.get_num_threads(),
                "versions": {
                    "basinet": bn.__version__,
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
            }
            held = "" if target is None else f" (target {target:g})"
            print(f"{row.name:28} {name:16} {1e3 * seconds:9.3f} ms a step, {ratio:5.2f} of plain{held}", flush=True)
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
