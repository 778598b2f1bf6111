"""What a step costs as members, parameters and data grow, end to end through `bn.fit`.

    python bench/scaling.py                  on the CPU (a few minutes)
    python bench/scaling.py --device cuda    on a GPU

Each point trains stacked networks 64-H-H-10 in a process of its own: seconds per step are the best epoch's, and memory
is the most that the process held beyond what it held before training. Beside it stands what the engine foretold. Ratios
between points of one run are what to read; on a CPU the seconds are those of one machine on one day.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from shared import Pace, apart, most_bytes, options, versions, write

import basinet as bn
from basinet.core.tree import size
from basinet.engine.memory import member_bytes
from basinet.engine.work import Work

BASE = {"members": 10, "hidden": 50, "rows": 2_000}
CURVES = {
    "members": [1, 3, 10, 30, 100, 300, 1000],
    "hidden": [25, 50, 100, 200, 400, 800],
    "rows": [1_000, 10_000, 100_000, 1_000_000],
}
BATCH = 128


def measure(members: int, hidden: int, rows: int, device: str) -> dict[str, Any]:
    """One point; in a process of its own, so that its memory can be measured."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 64, generator=g)
    data = bn.Data(x, x[:, :10].argmax(-1))
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(hidden, hidden)), bn.likelihoods.Categorical())
    steps_an_epoch = rows // BATCH
    recipe = bn.MAP(epochs=max(3, -(-45 // steps_an_epoch)), batch_size=BATCH)
    point = problem.init(bn.Noise.seed(0))
    foretold = member_bytes(Work.of(recipe, problem, data, None), point).total
    before, pace = most_bytes(device), Pace(device)
    bn.fit(recipe, problem, data, members=members, observe=pace, engine=bn.Engine(device=device, strategy="stacked"))
    return {
        "parameters": size(point.params),
        "seconds_a_step": min(pace),
        "bytes": most_bytes(device) - before,
        "foretold_bytes": members * foretold,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(**json.loads(chosen.one), device=chosen.device)))
        return
    for name, values in CURVES.items():
        print(f"{name:>9} {'parameters':>10} {'ms per step':>9} {'a member':>9} {'MiB':>8} {'foretold':>8}")
        for value in values:
            where = BASE | {name: value}
            measured = apart(__file__, "--device", chosen.device, "--one", json.dumps(where))
            ms, mib = 1e3 * measured["seconds_a_step"], 2.0**-20
            print(
                f"{value:>9,} {measured['parameters']:>10,} {ms:>9.3g} {ms / where['members']:>9.3g} "
                f"{measured['bytes'] * mib:>8.0f} {measured['foretold_bytes'] * mib:>8.0f}",
                flush=True,
            )
            record = {"bench": "scaling", "device": chosen.device, "curve": name, **where, **measured, "batch": BATCH}
            write(chosen.out, record | versions())


if __name__ == "__main__":
    main()
