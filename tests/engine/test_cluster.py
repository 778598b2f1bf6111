"""Members on a Ray cluster: the same bits as here, whatever is killed along the way."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cluster_script
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import basinet as bn
from basinet.cli import app
from basinet.core.tree import leaves
from basinet.data.datasets import Splits
from basinet.engine import Engine, Event, Report, Review
from basinet.engine.memory import member_bytes
from basinet.engine.method import Entry
from basinet.engine.work import Work
from basinet.engine.workers import WorkerError
from basinet.families import Empirical
from basinet.methods.map import MAP
from basinet.pool import read_records
from studies import size

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "basinet[cluster]"')

from basinet.engine.cluster import driver, nodes  # noqa: E402
from basinet.engine.cluster.resources import PROCESS  # noqa: E402
from basinet.engine.cluster.task import loads, train  # noqa: E402

STORE = 100 * 2**20  # bytes of each node's object store
FAIR = {"worker_niceness": 0}  # Ray's workers give way to other programs otherwise, and tests run beside each other
LIMIT = 400  # seconds after which a test that hangs fails
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")]


@dataclass(frozen=True, kw_only=True)
class Slow(MAP):
    """Waits at every report, and notes who trains; member `victim` ends its own process, or runs out of memory."""

    wait: float = 0.15
    notes: str = ""
    victim: int = -1
    large: bool = False

    def review(self, state: Any, report: Report) -> Review:
        time.sleep(self.wait)
        if self.notes:
            Path(self.notes, f"{os.getpid()}").touch()
        if report.member == self.victim:
            if self.large:
                raise MemoryError("not enough for this network")
            os.kill(os.getpid(), signal.SIGKILL)
        return MAP.review(self, state, report)


@dataclass(frozen=True, kw_only=True)
class Failing(MAP):
    """Raises in the end."""

    def finish(self, *of: Any) -> Any:
        raise ArithmeticError("no such luck")


@dataclass(frozen=True, kw_only=True)
class Sampled(MAP):
    """Keeps its params at every third step."""

    def schedule(self, n: int) -> Any:
        return MAP.schedule(self, n)._replace(bank=3)

    def absorb(self, state: Any, step: Any) -> Any:
        return state, bn.engine.descent.Sample(step.batch.step % 3 == 2, state.params)

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Empirical:
        return Empirical(samples, state.buffers, len(leaves(samples)[0]))


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3))


PROBLEM = bn.Problem(
    lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)),
    bn.likelihoods.Categorical(),
)
SHORT = MAP(epochs=4, batch_size=5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one processor each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False, "_system_config": FAIR}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    ray.init(address=nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(cluster_script)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(autouse=True)
def guarded() -> Iterator[None]:
    """One thread here as on each node, and a limit of time."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"after {LIMIT} s")

    threads, before = torch.get_num_threads(), signal.signal(signal.SIGALRM, give_up)
    torch.set_num_threads(1)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    torch.set_num_threads(threads)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    with caplog.at_level(logging.INFO, "basinet"):
        yield lambda: [r.getMessage() for r in caplog.records]


def fit(on: str | None, method: bn.Method = SHORT, *, members: int = 5, pool: Any = None, **options: Any) -> Any:
    chosen = {"group": 2, "strategy": "loop", "checkpoint": 0.2} | options.pop("engine", {})
    engine = Engine(device="cpu", progress=False, executor=on, deterministic=True, **chosen)
    problem, data = options.pop("problem", PROBLEM), options.pop("data", classes())
    return bn.fit(method, problem, data, members=members, pool=pool, engine=engine, **options)


def same(a: bn.Posterior, b: bn.Posterior) -> bool:
    """The same bits, in members and in curves."""
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    curves = all(a.info["curves"][n] == b.info["curves"][n] for n in a.info["curves"] if n != "seconds")
    return a.members == b.members and curves and all(torch.equal(x, y) for x, y in pairs)


def in_pool(pool: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in pool.rglob("member-*.safetensors")}


def leftovers(pool: Path) -> list[str]:
    return sorted(p.name for p in pool.rglob("*") if p.name.startswith(("checkpoint", "shared", ".")))


CASES: dict[str, dict[str, Any]] = {
    "one by one": {},
    "stacked": {"engine": {"strategy": "stacked"}},
    "validation": {"val": classes(9), "engine": {"strategy": "stacked"}},
    "samples": {"method": Sampled(epochs=4, batch_size=5)},
    "base": {"method": bn.SWAG(base=SHORT, batch_size=5, iterates=3, rank=2)},
    "no steps": {"method": bn.Laplace(base=SHORT)},
    "coupled": {"method": bn.SVGD(epochs=4, batch_size=5), "engine": {"group": None, "strategy": "stacked"}},
    "sweep": {"method": MAP(epochs=[2, 4], batch_size=5), "members": 4},
    "chains": {"method": bn.SGLD(epochs=6, draws=3, batch_size=5), "members": 4},
}


@pytest.mark.parametrize("kept", [False, True], ids=["", "pool"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_members_are_the_same_bits_as_on_one_machine(case, kept, cluster, tmp_path, said):
    here, there = fit(None, **case), fit("ray", pool=tmp_path if kept else None, **case)
    assert all(same(bn.Posterior((a,)), bn.Posterior((b,))) for a, b in zip(here.parts, there.parts, strict=True))
    assert leftovers(tmp_path) == []
    assert any("Ray node" in line for line in said()) or "Laplace" in str(case)
    if "SVGD" in str(case):
        assert any("see each other stay together" in line for line in said())


def test_events_and_progress_come_back_here(cluster):
    heard: dict[str | None, list[Any]] = {None: [], "ray": []}
    for on, events in heard.items():

        def note(event: Event, events: list[Any] = events) -> None:
            events.append((event.members, event.step, event.steps, event.loss.tolist()))

        fit(on, observe=note)
    assert sorted(heard[None]) == sorted(heard["ray"]) and len(heard["ray"]) == 5 * 6


def test_twenty_members_while_a_node_is_lost(cluster, tmp_path, said):
    doomed = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    method = Slow(epochs=6, batch_size=5)
    reports = 0

    def remove(event: Event) -> None:
        nonlocal reports
        reports += 1
        if reports == 30:
            cluster.remove_node(doomed, allow_graceful=False)

    there = fit("ray", method, members=20, pool=tmp_path, observe=remove, engine={"group": 1})
    assert same(there, fit(None, Slow(epochs=6, batch_size=5, wait=0.0), members=20, engine={"group": 1}))
    assert any("submitted again" in line for line in said()) and leftovers(tmp_path) == []


def test_ten_random_kills(cluster, tmp_path, said):
    notes, ended = tmp_path / "notes", threading.Event()
    notes.mkdir()

    def recovered() -> int:
        return sum("submitted again" in line for line in said())

    def kill() -> None:
        chance = random.Random(0)
        while recovered() < 10 and not ended.is_set():  # of members: a kill may hit a process between two
            time.sleep(0.3 + chance.random())
            alive = [note for note in notes.iterdir() if time.time() - note.stat().st_mtime < 0.5]
            if alive:
                chosen = chance.choice(alive)
                chosen.unlink()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(chosen.name), signal.SIGKILL)

    method = Slow(epochs=20, batch_size=5, notes=str(notes))
    threading.Thread(target=kill, daemon=True).start()
    there = fit("ray", method, members=12, pool=tmp_path / "pool", engine={"group": 1})
    ended.set()
    assert recovered() >= 10
    assert same(there, fit(None, Slow(epochs=20, batch_size=5, wait=0.0), members=12, engine={"group": 1}))


def run_script(cluster: Any, pool: Path) -> subprocess.Popen[str]:
    script, src = Path(__file__).with_name("cluster_script.py"), Path(bn.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), cluster.address, str(pool)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def script_here() -> bn.Posterior:
    return cluster_script.fit(Engine(device="cpu", group=2, strategy="loop", deterministic=True, progress=False), None)


def test_a_killed_driver_resumes_with_what_is_missing(cluster, tmp_path):
    process = run_script(cluster, tmp_path)
    while len(in_pool(tmp_path)) < 3 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    kept = in_pool(tmp_path)
    assert 3 <= len(kept) < 8
    out, err = run_script(cluster, tmp_path).communicate()
    count, trained = map(int, out.split())  # tasks end a moment after their driver, and may still write members
    assert count == 8 and trained <= 8 - len(kept), err
    assert kept.items() <= in_pool(tmp_path).items()  # none of them was trained again
    engine = Engine(device="cpu", group=2, strategy="loop", progress=False)
    assert same(cluster_script.fit(engine, str(tmp_path)), script_here()) and leftovers(tmp_path) == []


def test_two_drivers_fill_one_pool(cluster, tmp_path):
    both = [run_script(cluster, tmp_path) for _ in range(2)]
    words = [process.communicate() for process in both]
    assert [out.split()[0] for out, _ in words] == ["8", "8"], words
    assert sum("waiting for it to finish" in err for _, err in words) == 1
    engine = Engine(device="cpu", group=2, strategy="loop", progress=False)
    assert same(cluster_script.fit(engine, str(tmp_path)), script_here()) and len(in_pool(tmp_path)) == 8


@pytest.mark.parametrize("large", [False, True], ids=["its process ends", "its memory runs out"])
def test_a_member_that_always_fails_is_given_up_by_name_and_others_are_kept(cluster, tmp_path, said, large):
    method = Slow(epochs=4, batch_size=5, victim=2, wait=0.0, large=large)
    reason = "their task ran out of memory" if large else "the process that trained them ended"
    words = rf"members 2 were given up after 4 tasks .*{reason}.*All other members are trained and in the pool"
    with pytest.raises(WorkerError, match=words):
        fit("ray", method, pool=tmp_path, engine={"group": 1})
    assert len(in_pool(tmp_path)) == 4
    assert sum("submitted again" in line for line in said()) == 3


class Narrow(nn.Module):
    """A network that looks at the first four of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[:, :4])


STARVED = {
    "object store": ({"RAY_local_fs_capacity_threshold": "0"}, 4_000_000, "object store is full"),
    "memory": ({"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}, 4, "out of memory"),
}


@pytest.mark.parametrize(("limits", "width", "words"), STARVED.values(), ids=STARVED)
def test_members_of_a_node_that_is_out_of_room_train_elsewhere(
    cluster, tmp_path, said, limits, width, words, monkeypatch
):
    monkeypatch.setattr(nodes, "ANSWER", 10.0)  # seconds for a node that cannot answer
    poor = cluster.add_node(num_cpus=2, object_store_memory=80 * 2**20, env_vars=limits)
    try:
        narrow = {
            "problem": bn.Problem(Narrow, bn.likelihoods.Categorical()),
            "data": bn.Data(torch.randn(7, width, generator=torch.Generator().manual_seed(0)), classes(7).targets),
        }
        method = Slow(epochs=4, batch_size=7, wait=0.5)
        there = fit("ray", method, members=4, pool=tmp_path, engine={"group": 1}, **narrow)
    finally:
        cluster.remove_node(poor, allow_graceful=False)
    assert any(words in line and "submitted again" in line for line in said())
    assert same(there, fit(None, Slow(epochs=4, batch_size=7, wait=0.0), members=4, engine={"group": 1}, **narrow))


def test_tasks_reserve_the_memory_that_planning_predicts(cluster):
    reserved: set[int] = set()

    def note(event: Event) -> None:
        reserved.add(int(ray.cluster_resources()["memory"] - ray.available_resources()["memory"]))

    batches = bn.Data(classes(200).inputs.repeat(1, 500), classes(200).targets)
    wide = bn.Problem(lambda: nn.Linear(2000, 3), bn.likelihoods.Categorical())
    method = Slow(epochs=3, batch_size=100)
    fit("ray", method, members=4, observe=note, problem=wide, data=batches, engine={"strategy": "stacked"})
    point = wide.init(bn.Noise.seed(0))
    each = member_bytes(Work.of(method, wide, batches, None), point)
    task = PROCESS + batches.inputs.numel() * 4 + batches.targets.numel() * 8 + each.of(2, 2)
    assert max(reserved) == 2 * task and each.of(2, 2) > 2**20  # two tasks of two members


def starved(task: Any, parcel: bytes) -> Iterator[bytes]:
    """What Ray's error says where it ends a process, for more than two members at once."""
    group = loads(parcel).group
    if min(len(group), task.chunk or len(group)) > 2:
        raise ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
    yield from train(task, parcel)


@pytest.mark.parametrize("method", [SHORT, bn.SVGD(epochs=4, batch_size=5)], ids=["apart", "coupled"])
def test_members_for_which_ray_runs_out_of_memory_twice_train_with_fewer_at_once(
    cluster, tmp_path, said, monkeypatch, method
):
    monkeypatch.setattr(driver, "train", starved)
    options = {"members": 6, "engine": {"group": None if method.coupled else 6, "strategy": "stacked"}}
    there = fit("ray", method, pool=tmp_path, **options)
    halves = ["out of memory with 6 members at once: continuing with 3"]
    halves += ["out of memory with 3 members at once: continuing with 2"] * (1 if method.coupled else 2)
    assert [line for line in said() if line.startswith("out of memory")] == halves
    assert sum("submitted again" in line for line in said()) == (1 if method.coupled else 3)
    assert all("from their last checkpoint, if" in line for line in said() if "submitted again" in line)
    here = fit(None, method, **options)
    pairs = zip(leaves(there.parts[0].family), leaves(here.parts[0].family), strict=True)
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in pairs) and leftovers(tmp_path) == []


def test_data_that_do_not_fit_in_the_object_store_are_refused_with_what_to_do(cluster, monkeypatch):
    def full(content: bytes) -> None:
        raise ray.exceptions.OutOfDiskError("full")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(MemoryError, match=r"data take 0 MiB, which do not fit .*--object-store-memory=BYTES"):
        fit("ray", data=classes(13))


def test_errors_of_the_users_code_are_raised_here_and_not_tried_again(cluster, tmp_path, said):
    with pytest.raises(ArithmeticError, match="no such luck") as caught:
        fit("ray", Failing(epochs=4, batch_size=5), pool=tmp_path)
    assert "on a Ray node" in str(caught.value.__cause__) and "in finish" in str(caught.value.__cause__)
    assert not any("submitted again" in line for line in said())


def test_checkpoints_come_through_the_driver_where_nodes_do_not_see_the_pool(cluster, tmp_path, said, monkeypatch):
    monkeypatch.setattr(driver.Cluster, "_mark", lambda self: tmp_path / "elsewhere" / "nothing")
    notes = tmp_path / "notes"
    notes.mkdir()
    method, killed = Slow(epochs=20, batch_size=5, notes=str(notes)), []

    def kill(event: Event) -> None:
        if not killed and event.step > 24:
            killed.append(int(max(notes.iterdir(), key=lambda note: note.stat().st_mtime).name))
            os.kill(killed[0], signal.SIGKILL)

    there = fit("ray", method, members=3, pool=tmp_path / "pool", observe=kill, engine={"group": 1})
    assert same(there, fit(None, Slow(epochs=20, batch_size=5, wait=0.0), members=3, engine={"group": 1}))
    assert len(in_pool(tmp_path / "pool")) == 3 and leftovers(tmp_path / "pool") == []
    assert any("resuming from step" in line for line in said())


@pytest.mark.parametrize("real", [False, True])
def test_ctrl_c_cancels_tasks_which_save_and_the_same_fit_resumes(cluster, tmp_path, said, real):
    method, reports = Slow(epochs=40, batch_size=5), 0

    def press(event: Event) -> None:
        nonlocal reports
        reports += 1
        if reports == 6:
            if not real:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit("ray", method, members=2, pool=tmp_path, observe=press, engine={"group": 1, "checkpoint": 1e9})
    assert said()[-1] == "stopped: the same fit with the same pool goes on from there"
    there = fit("ray", method, members=2, pool=tmp_path, engine={"group": 1, "checkpoint": 1e9})
    assert sum("resuming from step" in line for line in said()) == 2
    assert same(there, fit(None, Slow(epochs=40, batch_size=5, wait=0.0), members=2, engine={"group": 1}))


def test_a_node_with_another_version_is_refused_by_name(cluster, monkeypatch):
    monkeypatch.setattr(driver, "versions", lambda: {"basinet": bn.__version__, "torch": "1.0"})
    with pytest.raises(WorkerError, match=r"the Ray node \S+ \(\S+\) has torch \S+ \(the driver 1.0\): install"):
        fit("ray")


def test_a_gpu_that_the_cluster_does_not_have_is_refused(cluster):
    with pytest.raises(ValueError, match=r"the Ray cluster has no GPU .*with 2 CPUs"):
        bn.fit(SHORT, PROBLEM, classes(), engine=Engine(device="cuda", executor="ray", progress=False))


def test_gpus_that_torch_does_not_see_there_are_reported_with_what_to_do(cluster):
    node = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)
    try:
        with pytest.raises(ValueError, match=r"torch sees no CUDA device .*use device='cpu'"):
            bn.fit(SHORT, PROBLEM, classes(), engine=Engine(executor="ray", progress=False))
    finally:
        cluster.remove_node(node)


def test_data_travel_once_for_all_fits_on_them(cluster, monkeypatch):
    sizes, plain = [], ray.put
    monkeypatch.setattr(ray, "put", lambda content: sizes.append(len(content)) or plain(content))
    data = classes(20_000)  # 480,000 bytes
    for seed in range(2):
        fit("ray", MAP(epochs=1, batch_size=10_000), data=data, seed=seed, members=2)
    assert sum(size > 400_000 for size in sizes) == 1 and len(sizes) == 3


def test_a_network_that_cannot_be_sent_is_refused_with_what_to_do(cluster):
    lock = threading.Lock()

    def network() -> nn.Module:
        with lock:
            return nn.Linear(4, 3)

    with pytest.raises(TypeError, match=r"cannot send this network or data .*lock.* define the network as a function"):
        fit("ray", problem=bn.Problem(network, bn.likelihoods.Categorical()))


@dataclass(frozen=True, kw_only=True)
class Timed(Slow):
    """Notes when it trains, or refuses to."""

    row: str
    refuses: bool = False

    def review(self, state: Any, report: Report) -> Review:
        if self.refuses:
            raise ValueError("not with these data")
        with Path(self.notes, self.row).open("a") as file:
            file.write(f"{time.time()}\n")
        return Slow.review(replace(self, notes=""), state, report)

    def times(self) -> list[float]:
        file = Path(self.notes, self.row)
        return [float(line) for line in file.read_text().split()] if file.exists() else []


def compare(on: str | None, rows: list[Any], out: Path, **options: Any) -> Any:
    engine = Engine(device="cpu", progress=False, executor=on, deterministic=True, group=2, strategy="loop")
    splits = Splits("spots", *classes(40).split(0.5, 0.25, 0.25, seed=0), classes=3)
    return bn.compare(splits, rows, problem=PROBLEM, out=out, engine=engine, **options)


def timed(folder: Path, **options: Any) -> list[Timed]:
    folder.mkdir(exist_ok=True)
    return [Timed(epochs=5, batch_size=20, notes=str(folder), row=row, **options) for row in ("first", "second")]


def scores(compared: Any) -> list[tuple[Any, ...]]:
    return [tuple((name, x) for name, x in row.items() if "seconds" not in name) for row in compared.rows]


def test_rows_of_a_comparison_train_at_the_same_time_with_the_numbers_of_one_machine(cluster, tmp_path, said):
    first, second = timed(tmp_path / "notes", wait=1.0)
    compare("ray", [Entry("slow", first, 1), Entry("slow too", second, 1)], tmp_path / "times")
    assert max(first.times()[0], second.times()[0]) < min(first.times()[-1], second.times()[-1])
    first, second = timed(tmp_path / "more", wait=0.0)
    rows = [
        Entry("slow", first, 1),
        Entry("refused", Timed(epochs=5, row="", refuses=True), 1),
        Entry("MAP", SHORT, 1),
        Entry("deep ensemble", SHORT, 3),
        Entry("Laplaces", bn.Laplace(base=SHORT), 3),
        Entry("slow too", second, 1),
    ]
    there = compare("ray", rows, tmp_path / "there", seeds=2)
    assert "refused is left out: not with these data" in said()
    assert scores(there) == scores(compare(None, rows, tmp_path / "here", seeds=2))
    assert len(in_pool(tmp_path / "there")) == len(in_pool(tmp_path / "here"))  # none was trained twice


def test_ctrl_c_saves_all_rows_and_the_same_comparison_resumes_them(cluster, tmp_path, said):
    both = timed(tmp_path / "notes")
    rows = [Entry(row.row, row, 1) for row in both]

    def press() -> None:
        while not all(len(row.times()) > 1 for row in both):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        compare("ray", rows, tmp_path / "run")
    assert not in_pool(tmp_path)
    again = compare("ray", rows, tmp_path / "run")
    assert sum("resuming from step" in line for line in said()) == 2
    quick = [Entry(row.row, replace(row, wait=0.0), 1) for row in both]
    assert [row["nll"] for row in again.rows] == [row["nll"] for row in compare(None, quick, tmp_path / "here").rows]


def test_a_study_on_ray_has_the_numbers_of_one_machine(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(size, "MEMBERS", 4)
    measured = []
    for where in ([], ["--on", "ray"]):
        out = tmp_path / ("there" if where else "here")
        result = CliRunner().invoke(app, ["study", "size", "--examples", "20", "--out", str(out), *where])
        assert result.exit_code == 0 and ("Ray nodes with" in result.output) == bool(where), result.output
        digits, gaps = read_records(out / "size.jsonl")
        rows = [row for part in gaps["identity"].values() for row in part["rows"]]
        measured.append([row["nll"] for row in digits["curve"]] + [row["measured"] for row in rows])
    assert measured[0] == pytest.approx(measured[1], rel=1e-3)
