"""Members on Ray against processes of this machine, and a driver that keeps 100 nodes busy.

    python bench/cluster.py                  overhead: the same members in two processes and in two Ray workers
    python bench/cluster.py --members 10000  a simulation: the driver's memory and time, and the files of the pool
    python bench/cluster.py --gpu            a GPU that groups share: sixteen members in one task, or in four

Overhead is seconds to the first report of a member, and seconds in all, for short and long members, in one run: fits in
processes and on Ray take turns, and what is compared are ratios of neighbours, since other programs may have the cores;
for the same reason, of processor time too.
Ray's workers have the priority of other programs here; by default they give way (--niceness 15), so that beside
programs of the same session (--busy) they take longer than processes do. The simulation has the driver's code, the pool
and its files; nodes are simulated: each task answers at once with its member, which is written to the pool by this
process.

On a GPU the same members train in this process, and on Ray as one group, as four groups that share the GPU, and as four
that have it in turn.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from shared import apart, most_bytes, options, versions, write

import basinet as bn
from basinet.engine.cluster import driver
from basinet.engine.cluster.task import dumps, loads
from basinet.engine.planner import cut
from basinet.families import Delta
from basinet.networks import MLP
from basinet.networks.cnn import pep_mnist_cnn

NODES, PLACES = 100, 8  # of the simulation: nodes, and tasks that run on each
EPOCHS = {"short": 5, "long": 50}


def network() -> torch.nn.Module:
    return MLP(16, 3, hidden=(64, 64))


def mlp() -> torch.nn.Module:
    return MLP(784, 10, hidden=(200, 200, 200))


def data(n: int = 512) -> bn.Data:
    generator = torch.Generator().manual_seed(0)
    return bn.Data(torch.randn(n, 16, generator=generator), torch.randint(0, 3, (n,), generator=generator))


def timed(engine: bn.Engine, epochs: int, members: int = 8) -> dict[str, float]:
    """Seconds to the first report, in all, and of processors."""
    reports: list[float] = []
    used = processor_seconds()
    began = time.perf_counter()
    problem = bn.Problem(network, bn.likelihoods.Categorical())
    with tempfile.TemporaryDirectory() as pool:
        recipe = bn.MAP(epochs=epochs, batch_size=32)
        note = lambda event: reports.append(time.perf_counter() - began)  # noqa: E731
        bn.fit(recipe, problem, data(), members=members, pool=pool, engine=engine, observe=note)
    return {"first": reports[0], "total": time.perf_counter() - began, "processors": processor_seconds() - used}


def processor_seconds() -> float:
    """Of this process and of all that descend from it, Ray's own among them."""
    ticks, children = dict[int, int](), dict[int, list[int]]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since
            fields = file.read_text().rpartition(")")[2].split()
            ticks[int(file.parent.name)] = sum(map(int, fields[11:15]))  # its own, and of children that have ended
            children.setdefault(int(fields[1]), []).append(int(file.parent.name))
    ours = [os.getpid()]
    for process in ours:
        ours += children.get(process, [])
    return sum(ticks[process] for process in ours) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    """Has this many programs of this session compute for its body."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def overhead(repeats: int, niceness: int, lengths: Sequence[str], busy: int) -> Iterator[dict[str, Any]]:
    """Ray against processes, by length of members; the first fit on Ray starts it."""
    import ray

    began = time.perf_counter()
    priority = {"worker_niceness": niceness}
    small = {"object_store_memory": 200 * 2**20, "include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=2, _system_config=priority, **small)  # type: ignore[arg-type]
    init = time.perf_counter() - began
    on_ray = bn.Engine(executor="ray", strategy="loop", group=1, progress=False)
    here = bn.Engine(device="cpu", strategy="loop", processes=2, deterministic=True, progress=False)
    cold = timed(on_ray, 1)
    for length in lengths:
        epochs, pairs = EPOCHS[length], []
        for number in range(repeats):  # who comes first alternates
            order = [here, on_ray] if number % 2 else [on_ray, here]
            times = {engine.executor: timed(engine, epochs) for engine in order}
            pairs.append((times[None], times["ray"]))
        ratios = {k: sorted(b[k] / a[k] for a, b in pairs) for k in ("total", "processors")}
        yield {
            "bench": "cluster", "members": 8, "length": length, "epochs": epochs, "repeats": repeats,
            "worker_niceness": niceness, "busy": busy,
            "ray_init_seconds": init, "load": os.getloadavg()[0],
            "first_report_seconds": {
                "ray cold": cold["first"],
                "processes": statistics.median(a["first"] for a, _ in pairs),
                "ray": statistics.median(b["first"] for _, b in pairs),
            },
            "ray_over_processes": {
                kind: {"least": r[0], "median": statistics.median(r), "most": r[-1]} for kind, r in ratios.items()
            },
            "seconds": {"processes": [a for a, _ in pairs], "ray": [b for _, b in pairs]},
        }  # fmt: skip
    ray.shutdown()


class SimulatedRay:
    """As much of Ray as the driver calls, with tasks that answer at once and write their member to the pool."""

    def __init__(self) -> None:
        errors = ("TaskCancelledError", "RayTaskError", "RayError", "ObjectStoreFullError", "OutOfDiskError")
        self.exceptions = SimpleNamespace(**{name: type(name, (Exception,), {}) for name in errors})
        self.bytes = self.most = self.tasks = 0
        self.shelf: Any = None

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(NODES * PLACES)}

    def nodes(self) -> list[dict[str, Any]]:
        has = {"CPU": float(PLACES), "memory": float(PLACES * 2**30)}
        return [{"Alive": True, "NodeID": str(i), "Resources": has} for i in range(NODES)]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="simulated", get_job_id=lambda: "0")

    def put(self, content: bytes) -> bytes:
        self.bytes += len(content)
        return content

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.submit))

    def submit(self, task: Any, parcel: bytes) -> Iterator[bytes]:
        self.tasks += 1
        if self.shelf is None:
            self.job, self.shelf = loads(task.references[1])
        return self.train(loads(parcel).group)

    def train(self, group: list[int]) -> Iterator[bytes]:
        for i in group:
            point = self.job.roster.point(i, 0)
            self.shelf.write(i, Delta(point.params, point.buffers), {"step": [1.0], "loss": [0.0], "seconds": [0.0]})
        yield dumps([*(("trained", i) for i in group), ("done",)])

    def wait(self, streams: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(streams))
        return streams, []

    def get(self, content: bytes) -> bytes:
        return content

    def cancel(self, stream: Any) -> None:
        pass


def answered(value: Any) -> Any:
    """What a node says, without waiting."""
    return value
    yield


def simulate(members: int) -> dict[str, Any]:
    """A fit of this many members whose nodes are simulated."""
    simulated = SimulatedRay()
    driver.connect = lambda executor: simulated  # type: ignore[assignment]
    driver.look_at_nodes = lambda *_: answered(False)  # type: ignore[assignment]
    how = {"strategy": "loop", "compiled": False, "captured": False, "processes": 1, "threads": 0, "one_thread": False}
    settings = how | {"device": "cpu", "autocast": "None", "memory": None, "chunk": None, "group": 1}
    answer: Any = ([], settings, cut(range(members), 1))
    driver.Cluster._planned = lambda *_: answered(answer)  # type: ignore[assignment, method-assign]
    problem = bn.Problem(network, bn.likelihoods.Categorical())
    engine = bn.Engine(executor="ray", group=1, progress=False)
    before = most_bytes()
    with tempfile.TemporaryDirectory() as folder:
        given = {"members": members, "pool": folder, "engine": engine}
        began = time.perf_counter()
        bn.fit(bn.MAP(epochs=1), problem, data(), **given)
        fitted = time.perf_counter() - began
        held = most_bytes()
        began = time.perf_counter()
        bn.fit(bn.MAP(epochs=1), problem, data(), **given)
        again = time.perf_counter() - began
        files = sorted(Path(folder).rglob("member-*"))
        size = files[0].stat().st_size
    return {
        "bench": "cluster", "simulated": True, "members": members, "nodes": NODES, "places": NODES * PLACES,
        "tasks": simulated.tasks, "most_submitted_at_once": simulated.most, "object_store_bytes": simulated.bytes,
        "files": len(files), "file_bytes": size, "parameters": sum(x.numel() for x in network().parameters()),
        "driver_bytes": {"before": before, "most": held, "of_a_member": (held - before) / members},
        "load": os.getloadavg()[0],
        "seconds": {"all": fitted, "of_a_member": fitted / members, "read again": again},
    }  # fmt: skip


class AtOnce(driver.Resources):
    """Four tasks share a GPU."""

    def places(self) -> int:
        return 4 * super().places()

    def options(self, avoid: Set[str], memory: int) -> dict[str, Any]:
        return super().options(avoid, memory) | {"num_gpus": 0.25}


def shared_gpu(repeats: int) -> Iterator[dict[str, Any]]:
    """Sixteen members on the one GPU of a Ray node: as one group, and as four side by side and in turn."""
    import ray

    plain, members = driver.Resources, 16
    for name, make, shape, epochs in (("mlp", mlp, (784,), 100), ("cnn", pep_mnist_cnn, (1, 28, 28), 20)):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(8192, *shape, generator=generator)
        given = bn.Data(images, torch.randint(0, 10, (8192,), generator=generator))
        problem = bn.Problem(make, bn.likelihoods.Categorical())
        kinds = {
            "no Ray": (members, plain), "one group": (members, plain),
            "four at once": (4, AtOnce), "four in turn": (4, plain),
        }  # fmt: skip
        for kind, (group, resources) in kinds.items():
            seconds = list[float]()
            for _ in range(repeats):
                if kind != "no Ray":
                    ray.init(num_cpus=8, num_gpus=1, include_dashboard=False, log_to_driver=False)
                driver.Resources = resources  # type: ignore[misc]
                executor = None if kind == "no Ray" else "ray"
                engine = bn.Engine(executor=executor, device="cuda", group=group, progress=False)
                recipe = bn.MAP(epochs=epochs, batch_size=128)
                began = time.perf_counter()
                with tempfile.TemporaryDirectory() as pool, messages() as lines:
                    posterior = bn.fit(recipe, problem, given, members=members, pool=pool, engine=engine)
                seconds.append(time.perf_counter() - began)
                ray.shutdown()
            yield {
                "bench": "cluster", "gpu": torch.cuda.get_device_name(), "network": name, "members": members,
                "groups": kind, "steps": epochs * 8192 // 128, "seconds": seconds, "said": lines[:1],
                "loss": float(torch.tensor([float(c[-1]) for c in posterior.info["curves"]["loss"]]).mean()),
            }  # fmt: skip
    driver.Resources = plain  # type: ignore[misc]


@contextlib.contextmanager
def messages() -> Iterator[list[str]]:
    """The lines that basinet says within the body."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger("basinet")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def main() -> None:
    parser = options(__doc__, ("cpu",))
    parser.add_argument("--members", type=int, help="simulate a fit of this many on 100 nodes")
    parser.add_argument("--gpu", action="store_true", help="what groups gain that share one")
    parser.add_argument("--repeats", type=int, default=5, help="fits of each kind and length")
    parser.add_argument("--niceness", type=int, default=0, help="of Ray's workers, which have 15 by default")
    parser.add_argument("--busy", type=int, default=0, help="programs that compute beside it")
    parser.add_argument("--lengths", nargs="*", default=[*EPOCHS], choices=[*EPOCHS])
    parser.add_argument("--one", type=int, help="the same in this process: prints a line of JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        print(json.dumps(simulate(chosen.one)))
        return
    asked = overhead(chosen.repeats, chosen.niceness, chosen.lengths, chosen.busy)
    records = iter([apart(__file__, "--one", str(chosen.members))]) if chosen.members else asked
    records = shared_gpu(chosen.repeats) if chosen.gpu else records
    with beside(chosen.busy):
        for record in records:
            print(json.dumps(record, indent=1), flush=True)
            write(chosen.out, record | {"versions": versions()})


if __name__ == "__main__":
    main()
