"""Members in several processes: the same bits as in one, and no process that hangs, is lost or is left behind."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.engine import Descent, Engine, Event, Sample, Schedule, Step, planner, transport, workers
from basinet.engine import engine as engine_module
from basinet.engine.checkpoint import Checkpoints
from basinet.engine.group import Group
from basinet.engine.memory import member_bytes
from basinet.engine.progress import Progress
from basinet.engine.work import Work
from basinet.engine.workers import WorkerError
from basinet.families import Empirical
from basinet.methods.map import MAP
from basinet.optim import Adam

HERE = os.getpid()
NEVER = 1e9  # seconds between checkpoints
LIMIT = 120  # seconds after which a test that hangs fails


@dataclass(frozen=True, kw_only=True)
class Banked(MAP):
    """Keeps its params at every third step."""

    def schedule(self, n: int) -> Schedule:
        return MAP.schedule(self, n)._replace(bank=3)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample]:
        return state, Sample(step.batch.step % 3 == 2, state.params)

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Empirical:
        return Empirical(samples, state.buffers, len(leaves(samples)[0]))


@dataclass(frozen=True, kw_only=True)
class Posthoc(MAP):
    """No steps: noise around the start."""

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(
        self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: bn.Noise
    ) -> bn.families.Delta:
        return bn.families.Delta({n: x + noise.split(n).normal(x) for n, x in state.params.items()}, state.buffers)


@dataclass(frozen=True, kw_only=True)
class Fatal(MAP):
    """At the end of the third member, does something to the process that trains it; only once, if there is a mark."""

    mark: str = ""
    deed: str = "raise"

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> bn.families.Delta:
        if self.mark and os.getpid() != HERE:
            with open(self.mark, "a") as file:
                file.write("x")
            if os.path.getsize(self.mark) == 3:
                DEEDS[self.deed]()
        return bn.families.Delta(state.params, state.buffers)


class Stubborn(Exception):
    """Cannot be pickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"stubborn {a} {b}")


def refuse() -> None:
    raise ArithmeticError("no such luck")


def be_stubborn() -> None:
    raise Stubborn(1, 2)


DEEDS = {"raise": refuse, "stubborn": be_stubborn, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def classes(n: int = 14, **fields: Tensor) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3), **fields)


PROBLEM = bn.Problem(
    lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)),
    bn.likelihoods.Categorical(),
)
SHORT = MAP(epochs=4, batch_size=5)  # 12 steps, 2 of them per epoch
CASES: dict[str, dict[str, Any]] = {
    "Adam": {"method": SHORT},
    "average": {"method": bn.EMA(epochs=4, batch_size=5)},
    "bank": {"method": Banked(epochs=4, batch_size=5)},
    "no steps": {"method": Posthoc()},
    "early stopping": {"method": MAP(epochs=12, batch_size=5, optimizer=Adam(lr=0.05), patience=2), "val": classes(9)},
}


def fit(
    processes: int | None,
    method: bn.Method = SHORT,
    *,
    val: bn.Data | None = None,
    pool: Path | None = None,
    observe: Any = None,
    problem: bn.Problem = PROBLEM,
    data: bn.Data | None = None,
    members: int = 5,
    strategy: Any = "loop",
    interval: float = NEVER,
    memory: int | None = None,
) -> bn.Posterior:
    engine = Engine(
        device="cpu", strategy=strategy, processes=processes, memory=memory, checkpoint=interval, progress=False
    )
    given = data or classes()
    return bn.fit(method, problem, given, val=val, members=members, engine=engine, pool=pool, observe=observe)


def same(a: bn.Posterior, b: bn.Posterior) -> bool:
    """The same bits, in members and in curves."""
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    curves = all(a.info["curves"][n] == b.info["curves"][n] for n in a.info["curves"] if n != "seconds")
    return a.members == b.members and curves and all(torch.equal(x, y) for x, y in pairs)


def checkpoints(pool: Path) -> list[str]:
    return sorted(p.name for p in pool.rglob("*checkpoint*"))


@pytest.fixture(autouse=True)
def guarded() -> Iterator[None]:
    """One thread here as in each worker, a limit of time, and nobody left at the end."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"after {LIMIT} s")

    threads, before = torch.get_num_threads(), signal.signal(signal.SIGALRM, give_up)
    torch.set_num_threads(1)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    torch.set_num_threads(threads)
    assert multiprocessing.active_children() == []


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """The log lines so far."""
    with caplog.at_level(logging.INFO, "basinet"):
        yield lambda: [r.getMessage() for r in caplog.records]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("processes", [2, 4])
def test_members_are_the_same_bits_in_any_number_of_processes(case, processes):
    assert same(fit(processes, **case), fit(1, **case))


def test_stacked_groups_are_the_same_bits_as_those_of_one_process_with_its_share_of_the_memory(said):
    spread = fit(2, strategy="stacked", memory=20_000, val=classes(9))
    assert same(spread, fit(1, strategy="stacked", memory=10_000, val=classes(9)))
    assert "stacked in 2 processes (asked for) in groups of 2" in said()[0] and "in groups of 2" in said()[1]


def test_fresh_processes_give_the_same_bits_as_forked_ones(monkeypatch, said):
    problem = bn.Problem(functools.partial(bn.networks.MLP, 4, 3, hidden=(5,)), bn.likelihoods.Categorical())
    forked = fit(2, problem=problem, val=classes(9))
    monkeypatch.setattr(workers, "how_to_start", lambda place: "spawn")
    assert same(fit(2, problem=problem, val=classes(9)), forked)
    assert not any("can be started" in line for line in said())


def test_what_cannot_be_pickled_trains_in_this_process_where_forking_is_not_possible(monkeypatch, said):
    monkeypatch.setattr(workers, "how_to_start", lambda place: "spawn")
    assert same(fit(2), fit(1))
    line = next(x for x in said() if "can be started" in x)
    assert "this process" in line and "lambda" in line and "top level of a module" in line


def test_training_continues_without_workers_that_do_not_start(monkeypatch, said):
    def broken(line: Any, number: int) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(engine_module.Job, "begin", lambda self, line, number: broken(line, number))
    assert same(fit(2), fit(1))
    assert any("can be started: OSError: no room" in x for x in said())


def test_a_script_that_trains_while_it_is_imported_gets_a_clear_error(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match=r"under if __name__ == \"__main__\""):
        fit(1)


def test_a_member_that_fails_in_a_worker_is_left_out_and_noted_in_the_plan(tmp_path, monkeypatch):
    noted: list[int] = []
    monkeypatch.setattr(Checkpoints, "fail", lambda self, position: noted.append(position))
    inputs, targets = classes(12).inputs, classes(12).inputs[:, :1].clone()
    targets[0] = 1e30  # its square is infinite
    rows = torch.stack([torch.arange(1, 12), torch.arange(11), torch.arange(1, 12).flip(0)])
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian())
    case = {"method": MAP(epochs=8, batch_size=None), "problem": problem, "members": 3}
    data = bn.Data(inputs, targets, rows=rows)
    plain, spread = fit(1, data=data, **case), fit(2, data=data, pool=tmp_path, **case)
    assert spread.info["failed"] == plain.info["failed"] == [[0, 1]] and same(spread, plain)
    assert noted == [1, 1] and checkpoints(tmp_path) == []


def test_observers_and_progress_hear_in_this_process_what_they_would_hear_of_one(monkeypatch):
    shown: list[tuple[int, int]] = []

    class Counted(Progress):
        def __exit__(self, *error: Any) -> None:
            shown.append((self.done, self.total))

    monkeypatch.setattr(engine_module, "Progress", Counted)
    heard: dict[int, list[Any]] = {1: [], 2: []}
    for processes, events in heard.items():

        def note(event: Event, events: list[Any] = events) -> None:
            assert os.getpid() == HERE
            assert event.val_nll is not None
            events.append((event.members, event.step, event.steps, event.loss.tolist(), event.val_nll.tolist()))

        fit(processes, val=classes(9), observe=note)
    assert sorted(heard[1]) == sorted(heard[2]) and len(heard[1]) == 5 * 6
    assert shown == [(60, 60), (60, 60)]


@pytest.mark.parametrize(
    ("deed", "error", "text"),
    [("raise", ArithmeticError, "no such luck"), ("stubborn", WorkerError, "Stubborn: stubborn 1 2")],
)
def test_what_a_worker_raises_is_raised_here_with_its_traceback(tmp_path, deed, error, text):
    method = Fatal(epochs=4, batch_size=5, mark=str(tmp_path / "mark"), deed=deed)
    with pytest.raises(error, match=text) as caught:
        fit(2, method)
    trace = caught.value if error is WorkerError else caught.value.__cause__
    assert isinstance(trace, WorkerError) and f"in {DEEDS[deed].__name__}" in str(trace) and "finish" in str(trace)


@pytest.mark.parametrize("deed", ["raise", "kill"])
def test_after_a_worker_failed_the_same_fit_resumes_to_the_same_bits(tmp_path, deed):
    method = Fatal(epochs=4, batch_size=5, mark=str(tmp_path / "mark"), deed=deed)
    error: Any = WorkerError if deed == "kill" else ArithmeticError
    pattern = r"trained member \d was ended by SIGKILL .*memory runs out.* With pool=" if deed == "kill" else "luck"
    with pytest.raises(error, match=pattern):
        fit(2, method, pool=tmp_path / "pool", interval=0.0)
    kept = list((tmp_path / "pool").rglob("member-*"))
    assert 2 <= len(kept) < 5 and checkpoints(tmp_path / "pool")
    stamps = {file: file.stat().st_mtime_ns for file in kept}
    assert same(fit(2, method, pool=tmp_path / "pool"), fit(1, method))
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in stamps.items())
    assert checkpoints(tmp_path / "pool") == []


@pytest.mark.parametrize(("real", "again"), [(False, None), (True, 1), (True, 3)])
def test_ctrl_c_saves_all_workers_and_the_run_resumes_in_any_number_of_processes(tmp_path, said, real, again):
    reports = 0

    def press(event: Event) -> None:
        nonlocal reports
        reports += 1
        if reports == 3:
            if not real:
                raise KeyboardInterrupt
            os.kill(HERE, signal.SIGINT)

    long = MAP(epochs=100, batch_size=5)
    with pytest.raises(KeyboardInterrupt):
        fit(2, long, pool=tmp_path, observe=press, members=2)
    assert said()[-1] == "stopped: the same fit with the same pool resumes from here"
    assert sum(name.endswith(".safetensors") for name in checkpoints(tmp_path)) == 2
    torch.set_num_threads(2)  # those of the resumed run count, not those of this process
    posterior = fit(again, long, pool=tmp_path, members=2)
    torch.set_num_threads(1)
    assert same(posterior, fit(1, long, members=2)) and checkpoints(tmp_path) == []
    assert sum("resuming from step" in line for line in said()) == 2


def test_ctrl_c_without_a_pool_ends_at_once():
    def press(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(2, MAP(epochs=400, batch_size=5), observe=press)


def test_a_group_that_runs_out_of_memory_in_a_worker_is_halved(monkeypatch, said):
    plain = Group.train

    def small(group: Group) -> Any:
        if len(group.slots) > 2:
            raise RuntimeError("can't allocate memory")
        return plain(group)

    monkeypatch.setattr(Group, "train", small)
    posterior = fit(2, strategy="stacked", members=8)
    assert sum("out of memory with 4 members at once" in line for line in said()) == 2
    monkeypatch.undo()
    torch.testing.assert_close(
        posterior.parts[0].family.params, fit(1, strategy="loop", members=8).parts[0].family.params
    )


class Branching(nn.Linear):
    """vmap cannot follow a branch that depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("network", "seconds", "cores", "expected"),
    [
        (convolutional, 0.0, 3, "loop in 3 processes (convolutions"),
        (convolutional, 0.0, 2, "loop (convolutions"),  # one of two would wait for the third member
        (convolutional, 0.0, 8, "loop in 3 processes (convolutions"),  # no more than members
        (convolutional, 0.0, 1, "loop (convolutions"),
        (convolutional, NEVER, 2, "loop (convolutions"),  # too short a run
        (lambda: Branching(4, 3), 0.0, 3, "loop in 3 processes (the network cannot be stacked"),
        (lambda: nn.Linear(4, 3), 0.0, 2, "stacked (vmap"),
    ],
)
def test_by_default_members_that_are_not_stacked_share_out_the_cores(
    network, seconds, cores, expected, monkeypatch, said
):
    monkeypatch.setattr(planner, "SHORT", {"fork": seconds, "spawn": seconds})
    monkeypatch.setattr(planner, "cores", lambda: cores)
    fit(None, problem=bn.Problem(network, bn.likelihoods.Categorical()), members=3, strategy=None)
    assert expected in said()[0]


def test_processes_share_the_memory(said):
    each = member_bytes(Work.of(SHORT, PROBLEM, classes(), None), PROBLEM.init(bn.Noise.seed(0))).total
    fit(4, memory=2 * each)
    assert "loop in 2 processes" in said()[0]


@pytest.mark.parametrize("processes", [0, -1, 1.5])
def test_impossible_numbers_of_processes_are_refused(processes):
    with pytest.raises(ValueError, match="expected processes to be a positive integer"):
        Engine(device="cpu", processes=processes)


def test_a_process_needs_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Engine(device="cuda", processes=2).most_processes == 2
    with pytest.raises(ValueError, match=r"processes=3 need a GPU each, and there are 2 with device='cuda'"):
        Engine(device="cuda", processes=3)
    with pytest.raises(ValueError, match=r"there is 1 with device='cuda:1'"):
        Engine(device="cuda:1", processes=2)


def test_values_travel_as_they_are():
    for value in (torch.randn(3, 4).T, torch.tensor(2), torch.zeros(0, 3), torch.ones(2, dtype=torch.bfloat16) > 0):
        received = transport.loads(transport.dumps({"x": [value]}))["x"][0]
        assert torch.equal(received, value) and received.dtype == value.dtype
    part = torch.zeros(1_000_000)[:3]
    assert len(transport.dumps(part)) < 1000  # not the memory that it is a view of


FORKED = """
import torch, basinet as bn
from torch import nn
x = torch.randn(600, 600)
data = bn.Data(torch.rand(64, 1, 16, 16), torch.arange(64) % 4)
net = lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 64), nn.Linear(64, 4))
problem = bn.Problem(net, bn.likelihoods.Categorical())
for i in range(3):
    for _ in range(3):
        (x @ x).exp().sum(); torch.randn(1 << 17).sort()
    for processes, cores in ((1, 4), (2, 4), (2, 2)):
        bn.engine.planner.cores = lambda: cores
        engine = bn.Engine(device="cpu", strategy="loop", processes=processes)
        bn.fit(bn.MAP(epochs=2, batch_size=32), problem, data, members=2, engine=engine)
print("done")
"""


def test_workers_do_not_hang_after_this_process_used_all_its_threads():
    environment = os.environ | {"OMP_NUM_THREADS": "4", "GOMP_SPINCOUNT": "0"}
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert run.stdout == "done\n", run.stderr


KILLED = """
import sys, torch, basinet as bn
from pathlib import Path
from torch import nn
from basinet.core.tree import leaves
pool, result = Path(sys.argv[1]), Path(sys.argv[2])
key = bn.Noise.seed(3)
data = bn.Data(key.split("x").normal(torch.empty(30, 4)), key.split("y").integers(30, 3))
problem = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), bn.likelihoods.Categorical())
engine = bn.Engine(device="cpu", strategy="loop", processes=2, checkpoint=0.1)
made = bn.fit(bn.MAP(epochs=60, batch_size=5), problem, data, members=4, engine=engine, pool=pool)
result.write_text(repr([x.tolist() for x in leaves(made.parts[0].family)]))
"""


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed_and_the_run_resumes(tmp_path):
    def start(pool: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / pool), str(tmp_path / f"{pool}.txt")]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})

    process = start("killed")
    while not list(tmp_path.rglob("checkpoint-*.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    process.wait()
    while any(alive(child) for child in children):
        time.sleep(0.01)
    assert checkpoints(tmp_path / "killed")
    assert start("killed").wait() == 0 and start("unbroken").wait() == 0
    assert (tmp_path / "killed.txt").read_text() == (tmp_path / "unbroken.txt").read_text()
    assert checkpoints(tmp_path / "killed") == []


def alive(process: str) -> bool:
    """Whether a process runs; one that ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
