"""How soon a GPU trains, and how fast: seconds from `bn.fit` to the first step, and milliseconds that a step of all
members takes, each row in a process of its own.

    python bench/ready.py                     all rows, captured, and captured and compiled
    python bench/ready.py --rows ViT --plain  one row, as the engine chooses for a short run

400 steps of batches of 128 random images in bf16. The device is woken up before the clock starts, and a run that does
not count goes before the rows, so that libraries need not be read from a cold disk; nothing is compiled ahead. Seconds
to the first step are those to the first report, less its steps.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from shared import Pace, apart, options, versions, write
from torch import Tensor, nn

import basinet as bn
from basinet.networks import MLP, ResNet, WideResNet

BATCH, STEPS, REPORTS = 128, 400, 4


class ViT(nn.Module):
    """A small vision transformer on 64 patches of 4 x 4 pixels."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.patch = nn.Linear(48, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 64, 48)
        return self.head(self.blocks(self.patch(patches) + self.place).mean(1))


def mlp() -> nn.Module:
    return MLP(3072, 10, hidden=(512, 512, 512))


def resnet_8() -> nn.Module:
    return ResNet(depth=8)


def wide_filter() -> nn.Module:
    return WideResNet(norm="filter")


class Row(NamedTuple):
    name: str
    net: Callable[[], nn.Module]
    members: int
    recipe: str  # a method of basinet, by name
    ready: float | None  # seconds, what we hold ourselves to
    step: float | None  # milliseconds where compiled


ROWS = [
    Row("WRN-16-4", WideResNet, 4, "MAP", 5.0, 5.7),
    Row("WRN-16-4, filter norm", wide_filter, 4, "MAP", None, None),
    Row("ResNet-20", ResNet, 8, "MAP", 5.0, 7.1),
    Row("ViT 192x6", ViT, 8, "MAP", 5.0, 9.5),
    Row("MLP 3072-512x3-10", mlp, 50, "MAP", 5.0, 1.6),
    Row("ResNet-8, WGD", resnet_8, 10, "WGD", None, None),
    Row("ResNet-8, FoRDE", resnet_8, 10, "FoRDE", None, None),
]


def train(row: Row, compiled: bool | None) -> dict[str, object]:
    """One run of a row in this process."""
    generator = torch.Generator().manual_seed(0)
    n = BATCH * STEPS // REPORTS
    images = torch.randn(n, 3, 32, 32, generator=generator)
    data = bn.Data(images.flatten(1) if row.net is mlp else images, torch.randint(0, 10, (n,), generator=generator))
    recipe = getattr(bn, row.recipe)(epochs=REPORTS, batch_size=BATCH, optimizer=bn.optim.Adam(lr=1e-3))
    torch.zeros(1, device="cuda").add_(1).item()
    pace, said = Pace("cuda"), []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logging.getLogger("basinet").addHandler(Lines())
    logging.getLogger("basinet").setLevel(logging.INFO)
    began = time.perf_counter()
    engine = bn.Engine(device="cuda", autocast=torch.bfloat16, compile=compiled, progress=False)
    bn.fit(
        recipe,
        bn.Problem(row.net, bn.likelihoods.Categorical()),
        data,
        members=row.members,
        engine=engine,
        observe=pace,
    )
    total = time.perf_counter() - began
    step = min(pace)
    first_step, first_time = min(next(iter(pace.stamps.values())).items())
    ready = first_time - began - first_step * step
    return {"ready_seconds": ready, "step_ms": 1e3 * step, "total_seconds": total, "said": said[:1]}


def main() -> None:
    parser = options(__doc__, ("cuda",))
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--plain", action="store_true", help="only as the engine chooses, not compiled")
    parser.add_argument("--one", nargs=2, help="a row and compiling, in this process: prints a line of JSON")
    chosen = parser.parse_args()
    if chosen.one:
        compiled = {"None": None, "True": True}[chosen.one[1]]
        print(json.dumps(train(ROWS[int(chosen.one[0])], compiled)))
        return
    print(torch.cuda.get_device_name(), torch.__version__)
    rows = [(i, row) for i, row in enumerate(ROWS) if chosen.rows in row.name]
    if rows:
        apart(__file__, "--one", str(rows[0][0]), "None")
    for i, row in rows:
        for compiled in (None,) if chosen.plain else (None, True):
            measured = apart(__file__, "--one", str(i), str(compiled))
            record = {"bench": "ready", "row": row.name, "members": row.members, "compile": compiled, **measured}
            record |= {"target_ready": row.ready, "target_step": row.step if compiled else None, "versions": versions()}
            print(f"{row.name:22} M={row.members:<3} {'compiled' if compiled else 'captured':9}", end=" ")
            print(f"ready {measured['ready_seconds']:6.1f} s, step {measured['step_ms']:6.2f} ms, in all", end=" ")
            print(f"{measured['total_seconds']:.1f} s\n    {measured['said']}", flush=True)
            write(chosen.out, record)


if __name__ == "__main__":
    main()
