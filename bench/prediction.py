"""Predicting with an ensemble through `Posterior.predict`, against a plain eager PyTorch loop over members, in one run.

    python bench/prediction.py                  all rows, on the CPU (two minutes)
    python bench/prediction.py --device cuda    the same on a GPU

The loop runs each member's module on all inputs at once under no_grad and stacks the outputs. Both sides take turns;
a row is the ratio of their median times, lower is better.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from shared import cnn, mlp_64, options, seconds, versions, write
from torch import nn

import basinet as bn
from basinet.core.tree import stack
from basinet.families import Empirical
from basinet.networks import uci_mlp
from basinet.posterior import Part


class Row(NamedTuple):
    name: str
    net: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    members: int
    draws: int  # of each member
    repeats: int
    target: float | None  # time over the loop's, what we hold ourselves to


def tiny_mlp() -> nn.Module:
    return uci_mlp(1)


ROWS = [
    Row("MLP 64-200-200-10, 10,000 inputs", mlp_64, (10_000, 64), 10, 1, 21, 0.63),
    Row("MLP 64-200-200-10, 10,000 inputs", mlp_64, (10_000, 64), 50, 1, 7, 0.80),
    Row("CNN, 2,000 inputs", cnn, (2_000, 1, 28, 28), 10, 1, 3, 0.68),
    Row("MLP 1-50-1, 200 inputs", tiny_mlp, (200, 1), 1, 2_000, 15, None),
]


def build(row: Row, device: str) -> tuple[list[nn.Module], bn.Posterior]:
    """Modules for the loop, and the posterior of the same weights: a mixture of them, or one member of many points."""
    torch.manual_seed(0)
    modules = [row.net().to(device).eval() for _ in range(row.members * row.draws)]
    problem = bn.Problem(row.net, bn.likelihoods.Categorical() if row.draws == 1 else bn.likelihoods.Gaussian())
    if row.draws == 1:
        return modules, bn.mix([bn.Posterior.of(m, problem) for m in modules])
    points = stack([problem.network.read(m) for m in modules])
    family = stack([Empirical(points.params, points.buffers, row.draws)])
    return modules, bn.Posterior((Part(problem, family, bn.Posterior.of(modules[0], problem).members),))


def loop(modules: list[nn.Module], inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([module(inputs) for module in modules])


def measure(row: Row, device: str) -> dict[str, object]:
    modules, posterior = build(row, device)
    inputs = torch.randn(row.inputs, generator=torch.Generator().manual_seed(1)).to(device)
    ours = posterior.predict(inputs).outputs.flatten(0, 1)
    theirs = loop(modules, inputs)
    if row.draws > 1:  # points are visited in an order of their own
        ours, theirs = ours.sort(0).values, theirs.sort(0).values
    gap = float((ours - theirs).abs().max())
    del ours, theirs
    times = [
        (seconds(lambda: posterior.predict(inputs), device)[0], seconds(lambda: loop(modules, inputs), device)[0])
        for _ in range(row.repeats)
    ]
    basinet, plain = (statistics.median(t) for t in zip(*times))
    fastest = [min(t) for t in zip(*times)]
    ratio = basinet / plain
    return {
        "bench": "prediction",
        "device": device,
        "row": row.name,
        "members": row.members,
        "draws": row.draws,
        "repeats": row.repeats,
        "threads": torch.get_num_threads(),
        "basinet": basinet,
        "loop": plain,
        "ratio": ratio,
        "ratio_of_fastest": fastest[0] / fastest[1],
        "largest_difference": gap,
        "target": row.target,
        "met": row.target is None or ratio <= row.target,
        "versions": versions(),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", default="", help="only rows whose name and members contain this")
    chosen = parser.parse_args()
    for row in ROWS:
        if chosen.rows not in f"{row.name} M={row.members}":
            continue
        record = measure(row, chosen.device)
        target = "" if row.target is None else f" (target {row.target:.2f})"
        print(f"{row.name:34} M={row.members:<3} S={row.draws:<5} {record['ratio']:.3f} of the loop{target}; ", end="")
        print(f"loop {record['loop']:.3f} s; outputs differ by {record['largest_difference']:.1e}", flush=True)
        write(chosen.out, record)


if __name__ == "__main__":
    main()
