"""What repulsion costs: a step of members that see each other, as a ratio to a step of the plain ensemble, in one run.

    python bench/repulsion.py --device cpu      the rows for a CPU
    python bench/repulsion.py --device cuda     the rows for a GPU

All train through `bn.fit` in one stack (convolutions on a GPU: each member on its stream), on the same data, network,
batch size and optimiser. They take turns, and the best epoch of each counts: a busy machine slows all of them, and not
all at once. On a CPU the clock is that of the process, all threads together, which the work of others hardly touches;
with OMP_NUM_THREADS=1 it is time as it passes on an idle machine.

The targets for a CPU were set in eager steps of the plain ensemble, compiled or not. In multiplications of matrices
FoRDE takes 2.1 times those of the plain step of this network, so compiled against compiled it cannot come near 1.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from shared import Pace, cnn, mlp_64, mlp_784, options, versions, write
from torch import nn

import basinet as bn
from basinet.networks import ResNet

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
    unit: str = "deep ensemble"  # whose step is 1 in the targets


def small_cnn() -> nn.Module:
    """A network whose stack of ten trains on a CPU while one waits."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def resnet_8() -> nn.Module:
    return ResNet(8)


EAGER_PLAIN = "deep ensemble, eager"
EAGER = {"WGD function": 1.2, "FoRDE pca": 2.0, "FoRDE identity": 2.0}
COMPILED = {"WGD function": 1.2, "FoRDE pca": 1.4, "FoRDE identity": 1.4}
CONVOLUTIONS = {"WGD weights": 1.3, "WGD function": 1.3, "FoRDE pca": 3.3, "FoRDE identity": 3.3}
ROWS = {
    "cpu": [
        Row("MLP 64-200-200-10", mlp_64, (64,), 20, False, EAGER),
        Row("MLP 64-200-200-10, compiled", mlp_64, (64,), 20, True, COMPILED, unit=EAGER_PLAIN),
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
        "WGD function, prior draws": bn.WGD(space="function", prior_draws=None, **common),
        "FoRDE identity": bn.FoRDE(lengthscales="identity", **common),
        "FoRDE pca": bn.FoRDE(**common),
        "LIT": bn.LIT(**common),
    }


def step_seconds(row: Row, recipe: bn.engine.Method, data: bn.Data, device: str, autocast: torch.dtype | None) -> float:
    """Of all members, in the best epoch after the first."""
    problem = bn.Problem(row.net, bn.likelihoods.Categorical())
    pace = Pace(device, time.process_time if device == "cpu" else time.perf_counter)
    engine = bn.Engine(device=device, autocast=autocast, strategy=row.strategy, compile=row.compiled, progress=False)
    bn.fit(recipe, problem, data, members=MEMBERS, engine=engine, observe=pace)
    return min(pace)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--methods", default="", help="only methods whose name contains this, and the plain ensemble")
    parser.add_argument("--epochs", type=int, default=4, help="of which the first does not count")
    parser.add_argument("--turns", type=int, default=2, help="how often each is run")
    chosen = parser.parse_args()
    device = chosen.device
    autocast = torch.bfloat16 if device == "cuda" else None
    for row in ROWS[device]:
        if chosen.rows not in row.name:
            continue
        generator = torch.Generator().manual_seed(0)
        n = row.batches * BATCH
        data = bn.Data(torch.randn(n, *row.shape, generator=generator), torch.randint(0, 10, (n,), generator=generator))
        best: dict[str, float] = {}
        for _ in range(chosen.turns):
            runs = {name: (row, recipe) for name, recipe in contenders(chosen.epochs).items()}
            if row.unit == EAGER_PLAIN:
                runs[EAGER_PLAIN] = (row._replace(compiled=False), runs["deep ensemble"][1])
            for name, (kind, recipe) in runs.items():
                if chosen.methods not in name and not name.startswith("deep ensemble"):
                    continue
                seconds = step_seconds(kind, recipe, data, device, autocast)
                best[name] = min(seconds, best.get(name, seconds))
                print(f"    {row.name}, {name}: {1e3 * seconds:.3f} ms", flush=True)
        for name, seconds in best.items():
            ratio, units, target = seconds / best["deep ensemble"], seconds / best[row.unit], row.targets.get(name)
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
                "unit": row.unit,
                "over_unit": units,
                "target": target,
                "met": target is None or units <= target,
                "threads": torch.get_num_threads(),
                "versions": versions(),
            }
            held = "" if target is None else f", {units:.2f} of {row.unit} (target {target:g})"
            print(f"{row.name:28} {name:26} {1e3 * seconds:9.3f} ms per step, {ratio:5.2f} of plain{held}", flush=True)
            write(chosen.out, record)


if __name__ == "__main__":
    main()
