"""What a step costs as members, parameters and data grow, end to end through `bn.fit`.

    python bench/scaling.py                  on the CPU (a few minutes)
    python bench/scaling.py --device cuda    on a GPU

Each point trains stacked networks 64-H-H-10 in a process of its own: seconds a step are the best epoch's, and memory
is the most that the process held beyond what it held before training. Beside it stands what the engine foretold. Ratios
between points of one run are what to read; on a CPU the seconds are those of one machine on one day.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BASE = {"members": 10, "hidden": 50, "rows": 2_000}
CURVES = {
    "members": [1, 3, 10, 30, 100, 300, 1000],
    "hidden": [25, 50, 100, 200, 400, 800],
    "rows": [1_000, 10_000, 100_000, 1_000_000],
}
BATCH = 128


def measure(members: int, hidden: int, rows: int, device: str) -> dict[str, Any]:
    """One point; in a process of its own, so that its memory can be told."""
    import torch

    import basinet as bn
    from basinet.core.tree import size
    from basinet.engine.memory import member_bytes

    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 64, generator=g)
    data = bn.Data(x, x[:, :10].argmax(-1))
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(hidden, hidden)), bn.likelihoods.Categorical())
    steps_an_epoch = rows // BATCH
    recipe = bn.MAP(epochs=max(3, -(-45 // steps_an_epoch)), batch_size=BATCH)
    point = problem.init(bn.Noise.seed(0))
    foretold = member_bytes(recipe, problem, point, data, recipe.schedule(data.n))
    stamps: dict[int, float] = {}

    def observe(event: bn.Event) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        stamps[event.step] = time.perf_counter()

    before = _held(device)
    bn.fit(recipe, problem, data, members=members, observe=observe, engine=bn.Engine(device=device, strategy="stacked"))
    pace = [(stamps[b] - stamps[a]) / (b - a) for a, b in itertools.pairwise(sorted(stamps))]
    return {
        "parameters": size(point.params),
        "seconds_a_step": min(pace),
        "bytes": _held(device) - before,
        "foretold_bytes": members * foretold,
        "torch": torch.__version__,
        "basinet": bn.__version__,
    }


def _held(device: str) -> int:
    """The most memory held so far."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(**json.loads(options.one), device=options.device)))
        return
    for name, values in CURVES.items():
        print(f"{name:>9} {'parameters':>10} {'ms a step':>9} {'a member':>9} {'MiB':>8} {'foretold':>8}")
        for value in values:
            where = BASE | {name: value}
            command = [sys.executable, __file__, "--device", options.device, "--one", json.dumps(where)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{where} failed:\n{done.stderr}")
            found = json.loads(done.stdout.splitlines()[-1])
            ms, mib = 1e3 * found["seconds_a_step"], 2.0**-20
            print(
                f"{value:>9,} {found['parameters']:>10,} {ms:>9.3g} {ms / where['members']:>9.3g} "
                f"{found['bytes'] * mib:>8.0f} {found['foretold_bytes'] * mib:>8.0f}",
                flush=True,
            )
            record = {"bench": "scaling", "device": options.device, "curve": name, **where, **found}
            record |= {"batch": BATCH, "python": platform.python_version()}
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
