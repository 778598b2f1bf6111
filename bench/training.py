"""Training an ensemble end to end through `bn.fit`, against a plain eager PyTorch loop over members, in one run.

    python bench/training.py --device cpu               the rows for two CPU cores
    python bench/training.py --device cuda --folder DIR the rows for a GPU (DIR holds mnist.npz and cifar10_train_a.npz)

Both sides have the data on the device, the same network, batch size, optimiser (torch's default Adam in the loop) and
precision. A row is the ratio of the time of an epoch of all members, the best one on either side (where members run in
several processes, the mean of the whole run); the time of members one by one is that of the best epoch of one times M.
On a CPU the loop has a process of its own: ours keeps the memory that steps free (core/allocator.py), which would make
the loop faster too.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.flop_counter
from shared import Pace, apart, cnn, mlp_64, mlp_784, options, sync, versions, write
from torch import nn

import basinet as bn
from basinet.data import CropFlip
from basinet.networks import ResNet, WideResNet


class Row(NamedTuple):
    name: str
    net: Callable[[], nn.Module]
    data: str
    members: int
    batch: int
    epochs: int
    target: float | None  # times the eager loop, what we hold ourselves to
    compiled: bool | None = None  # asked for, as the engine does by itself on a CPU in runs over 45 s


ROWS = {
    "cuda": [
        Row("MLP 784-200x3-10", mlp_784, "mnist", 10, 128, 4, None),
        Row("MLP 784-200x3-10", mlp_784, "mnist", 100, 128, 4, 100.0),
        Row("MLP 784-200x3-10", mlp_784, "mnist", 1000, 128, 3, None),
        Row("CNN", cnn, "mnist", 10, 128, 4, 12.0),
        Row("ResNet-20", ResNet, "cifar", 8, 128, 4, 7.0),
        Row("WRN-16-4", WideResNet, "cifar", 4, 128, 3, 4.5),
    ],
    "cpu": [
        Row("MLP 64-200-200-10, digits", mlp_64, "digits", 10, 128, 30, 1 / 0.45),
        Row("MLP 64-200-200-10, digits, compiled", mlp_64, "digits", 10, 128, 30, 1 / 0.45, True),
        Row("MLP 64-200-200-10, 20,000 examples", mlp_64, "synthetic", 10, 128, 4, 1 / 0.50),
        Row("MLP 64-200-200-10, 20,000, compiled", mlp_64, "synthetic", 10, 128, 4, 1 / 0.50, True),
        Row("CNN", cnn, "images", 5, 128, 15, 1 / 0.87),
    ],
}


def load(name: str, folder: Path | None) -> tuple[bn.Data, bn.Data]:
    """Training data and test data."""
    g = torch.Generator().manual_seed(0)
    if name == "digits":
        splits = bn.datasets.load("digits")
        return splits.train, splits.test
    if name == "synthetic":
        x = torch.randn(22_000, 64, generator=g)
        data = bn.Data(x, (x[:, :10] + x[:, 10:20] * x[:, 20:30]).argmax(-1))
        return data.take(slice(0, 20_000)), data.take(slice(20_000, None))
    if name == "images":
        x = torch.rand(2_200, 1, 28, 28, generator=g)
        data = bn.Data(x, (x.flatten(1)[:, :780].reshape(-1, 10, 78).mean(-1)).argmax(-1))
        return data.take(slice(0, 2_000)), data.take(slice(2_000, None))
    if folder is None:
        raise SystemExit(f"the rows on {name} need --folder")
    if name == "mnist":
        splits = bn.datasets.load("mnist", folder=folder)
        return splits.train, splits.test
    z = np.load(folder / "cifar10_train_a.npz")
    p = np.cumsum(np.cumsum(z["d"], -1, dtype=np.uint8), -2, dtype=np.uint8)
    images = torch.from_numpy(np.stack([p[1] + p[0], p[0], p[2] + p[0]], 1)).float() / 255
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    data = bn.Data(images, torch.from_numpy(z["y"]).long())
    return data.take(slice(0, 20_000)).augmented(CropFlip(padding=4)), data.take(slice(20_000, None))


def flops(row: Row, train: bn.Data) -> int:
    """Floating-point operations of one step of one member, forward and backward."""
    net = row.net()
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        net(train.inputs[: row.batch].cpu()).sum().backward()
    return int(counter.get_total_flops())


def matmul_rate() -> float:
    """Floating-point operations per second of a large bf16 product on the GPU."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        a @ a
    sync("cuda")
    began = time.perf_counter()
    for _ in range(20):
        a @ a
    sync("cuda")
    return 20 * 2 * 8192**3 / (time.perf_counter() - began)


def eager_loop(
    row: Row, train: bn.Data, test: bn.Data, device: str, autocast: torch.dtype | None, seed: int
) -> tuple[float, float, float]:
    """Seconds of the best and of the mean epoch, and test accuracy, of ONE member in a plain loop."""
    torch.manual_seed(seed)
    net = row.net().to(device).train()
    x, y = train.inputs.to(device), train.targets.to(device)
    steps = row.epochs * train.n // row.batch
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1 / train.n)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    times = []
    for epoch in range(row.epochs):
        sync(device)
        began = time.perf_counter()
        order = torch.randperm(train.n, device=device)
        for i in range(0, train.n - row.batch + 1, row.batch):
            rows = order[i : i + row.batch]
            inputs = x[rows]
            if train.augment is not None:
                inputs = plain_crop_flip(inputs)
            optimizer.zero_grad()
            with torch.autocast(device, autocast, enabled=autocast is not None):
                loss = F.cross_entropy(net(inputs), y[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        sync(device)
        times.append(time.perf_counter() - began)
        del epoch
    net.eval()
    with torch.no_grad():
        classes = [net(part.to(device)).argmax(-1).cpu() for part in test.inputs.split(1000)]
    accuracy = float((torch.cat(classes) == test.targets).float().mean())
    return min(times[1:] or times), sum(times) / len(times), accuracy


def one_member(
    row: Row, train: bn.Data, test: bn.Data, device: str, autocast: torch.dtype | None, seed: int
) -> Sequence[float]:
    """`eager_loop`, on a CPU in a process of its own."""
    if device == "cpu":
        return apart(__file__, "--eager", str(ROWS["cpu"].index(row)), str(seed))
    return eager_loop(row, train, test, device, autocast, seed)


def plain_crop_flip(x: torch.Tensor) -> torch.Tensor:
    """Crop with padding and flip, as a batched tensor operation with torch's own generator."""
    b, c, h, w = x.shape
    padded = F.pad(x, (4, 4, 4, 4))
    rows = torch.randint(0, 9, (b, 1), device=x.device) + torch.arange(h, device=x.device)
    columns = torch.arange(w, device=x.device).expand(b, w)
    columns = torch.where(torch.rand(b, 1, device=x.device) < 0.5, w - 1 - columns, columns)
    columns = columns + torch.randint(0, 9, (b, 1), device=x.device)
    tall = padded.gather(2, rows[:, None, :, None].expand(b, c, h, w + 8))
    return tall.gather(3, columns[:, None, None, :].expand(b, c, h, w))


def through_basinet(
    row: Row, train: bn.Data, test: bn.Data, device: str, autocast: torch.dtype | None, strategy: str | None
) -> dict[str, object]:
    """Seconds an epoch of all members, the accuracy of single members, and what the engine chose."""
    problem = bn.Problem(row.net, bn.likelihoods.Categorical())
    optimizer = bn.optim.Adam(lr=bn.optim.Cosine(peak=1e-3))
    recipe = bn.MAP(epochs=row.epochs, batch_size=row.batch, optimizer=optimizer)
    pace, lines = Pace(device), list[str]()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("basinet").addHandler(keep := Keep())
    logging.getLogger("basinet").setLevel(logging.INFO)
    began = time.perf_counter()
    posterior = bn.fit(
        recipe,
        problem,
        train,
        members=row.members,
        observe=pace,
        engine=bn.Engine(device=device, autocast=autocast, strategy=strategy, compile=row.compiled, progress=False),
    )
    total = time.perf_counter() - began
    logging.getLogger("basinet").removeHandler(keep)
    once = row.members if " loop" in lines[0] else 1  # one member after another
    epochs = [step * (train.n // row.batch) * once for step in pace]
    spread = " processes" in lines[0]
    if spread:  # several at once, in their own time: all of it counts
        epochs = [total / recipe.schedule(train.n).steps * (train.n // row.batch)]
    predictive = posterior[: min(row.members, 20)].predict(test.inputs)
    right = (predictive.log_probs[:, 0].argmax(-1).cpu() == test.targets).float().mean(-1)
    return {
        "epoch": min(epochs),
        "spread": spread,
        "total": total,
        "accuracy": float(right.mean()),
        "accuracy_sd": float(right.std()) if len(right) > 1 else 0.0,
        "said": lines[0],
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", default="", help="only rows whose name and members contain this")
    parser.add_argument("--seeds", type=int, default=2, help="members of the eager loop that are trained")
    parser.add_argument("--eager", nargs=2, type=int, help=argparse.SUPPRESS)  # one member of a row in this process
    parser.add_argument("--strategy", choices=["stacked", "streams", "loop"], help="default: what the engine chooses")
    chosen = parser.parse_args()
    device = chosen.device
    autocast = torch.bfloat16 if device == "cuda" else None
    if chosen.eager is not None:
        row, seed = ROWS["cpu"][chosen.eager[0]], chosen.eager[1]
        print(json.dumps(eager_loop(row, *load(row.data, None), "cpu", None, seed)))
        return
    if device == "cuda":
        print(torch.cuda.get_device_name(), torch.__version__)
    for row in ROWS[device]:
        if chosen.rows not in f"{row.name} {row.members}":
            continue
        train, test = load(row.data, chosen.folder)
        plain = partial(one_member, row, train, test, device, autocast)
        eager = [plain(0)]  # before and after: a process and a machine get slower and faster
        ours = through_basinet(row, train, test, device, autocast, chosen.strategy)
        eager += [plain(seed) for seed in range(1, chosen.seeds)]
        one = sum(e[1] for e in eager) / len(eager) if ours["spread"] else min(e[0] for e in eager)
        faster = one * row.members / ours["epoch"]
        record = {
            "bench": "training",
            "device": device,
            "row": row.name,
            "members": row.members,
            "n": train.n,
            "batch": row.batch,
            "epochs": row.epochs,
            "compiled": row.compiled,
            "eager_one_member_epoch": one,
            "basinet_all_members_epoch": ours["epoch"],
            "times_faster": faster,
            "epoch_over_one_eager_member": ours["epoch"] / one,
            "target": row.target,
            "met": row.target is None or faster >= row.target,
            "accuracy": ours["accuracy"],
            "accuracy_sd": ours["accuracy_sd"],
            "eager_accuracy": [e[2] for e in eager],
            "said": ours["said"],
            "basinet_total_seconds": ours["total"],
            "versions": versions(),
        }
        if device == "cuda":
            step = ours["epoch"] / (train.n // row.batch)
            record["matmul_rate"] = matmul_rate()
            record["share_of_matmul_rate"] = row.members * flops(row, train) / step / record["matmul_rate"]
        target = "" if row.target is None else f" (target {row.target:.3g}x)"
        theirs = sum(e[2] for e in eager) / len(eager)
        print(f"{row.name:36} M={row.members:<5} {faster:7.2f}x the eager loop{target}; ", end="")
        print(
            f"{ours['epoch'] / one:.3f} of one eager member's epoch; accuracy {ours['accuracy']:.4f}, loop {theirs:.4f}"
        )
        if device == "cuda":
            print(f"    {100 * record['share_of_matmul_rate']:.2g}% of the card's bf16 matmul rate")
        print("   ", ours["said"], flush=True)
        write(chosen.out, record)


if __name__ == "__main__":
    main()
