"""A run that was stopped or killed resumes, and ends with the same bits as one that was not."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import Killed, Stop
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.engine import Descent, Engine, Event, Info, Method, Sample, Schedule, Step
from basinet.engine import group as group_module
from basinet.engine.kernel import Kernel
from basinet.families import Empirical
from basinet.methods.map import MAP
from basinet.optim import Adam
from basinet.pool import FileError, PoolEntry

NEVER = 1e9  # seconds between checkpoints


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


@dataclass(frozen=True, kw_only=True)
class Banked(MAP):
    """Keeps its params at every third step."""

    def schedule(self, n: int) -> Schedule:
        return MAP.schedule(self, n)._replace(bank=3)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample]:
        return state, Sample(step.batch.step % 3 == 2, {"params": state.params, "index": step.batch.index})

    def finish(self, state: Descent, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Empirical:
        return Empirical(samples["params"], {"index": samples["index"]}, len(samples["index"]))


@dataclass(frozen=True, kw_only=True)
class Walk(Method):
    """A random walk through `update`."""

    steps: int = 12

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.steps, 5)

    def update(self, state: Any, step: Step) -> tuple[Any, Info]:
        value, buffers = step.problem.potential(state.params, state.buffers, step.batch, step.noise, "train")
        params = {n: 0.9 * x + 0.1 * step.noise.split(n).normal(x) * value / 100 for n, x in state.params.items()}
        return type(state)(params, buffers), Info(value)

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> bn.families.Delta:
        return bn.families.Delta(state.params, state.buffers)


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3))


PROBLEM = bn.Problem(Net, bn.likelihoods.Categorical())
CASES: dict[str, dict[str, Any]] = {
    "Adam": {"method": MAP(epochs=4, batch_size=5)},
    "full batch": {"method": MAP(epochs=12, batch_size=None)},
    "bank": {"method": Banked(epochs=4, batch_size=5)},
    "average": {"method": bn.EMA(epochs=4, batch_size=5)},
    "update": {"method": Walk()},
    "early stopping": {"method": MAP(epochs=12, batch_size=5, optimizer=Adam(lr=0.05), patience=2), "val": classes(9)},
    "between steps": {"method": MAP(epochs=6, batch_size=5, prior_precision="layers", every=1)},
    "groups": {"method": MAP(epochs=4, batch_size=5), "memory": 10_000},
}
CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
BOTH = pytest.mark.parametrize("strategy", ["stacked", "loop"])


def fit(
    pool: Path | None,
    strategy: Any,
    method: Method,
    val: bn.Data | None = None,
    observe: Any = None,
    interval: float = NEVER,
    memory: int | None = None,
    data: bn.Data | None = None,
) -> bn.Posterior:
    engine = Engine(device="cpu", strategy=strategy, memory=memory, checkpoint=interval, progress=False)
    given = data or classes()
    return bn.fit(method, PROBLEM, given, val=val, members=5, engine=engine, pool=pool, observe=observe)


def same(a: bn.Posterior, b: bn.Posterior) -> bool:
    """The same bits, in members and in curves."""
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    names = [n for n in a.info["curves"] if n != "seconds"]
    curves = all(a.info["curves"][n] == b.info["curves"][n] for n in names)
    return a.members == b.members and curves and all(torch.equal(x, y) for x, y in pairs)


def files(pool: Path) -> list[str]:
    return sorted(p.name for p in pool.rglob("*checkpoint*"))


@CASE
@BOTH
@pytest.mark.parametrize("at", [1, 5])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, strategy, case, at, caplog):
    with caplog.at_level(logging.INFO, "basinet"), pytest.raises(KeyboardInterrupt):
        fit(tmp_path, strategy, observe=Stop(at, KeyboardInterrupt), **case)
    last = caplog.records[-1].getMessage()
    assert "stopped at step" in last and "the same fit with the same pool resumes from there" in last
    assert any(name.endswith(".safetensors") for name in files(tmp_path))
    caplog.clear()
    with caplog.at_level(logging.INFO, "basinet"):
        again = fit(tmp_path, strategy, **case)
    assert any("resuming from step" in r.getMessage() for r in caplog.records)
    assert any("(as the run that goes on had it)" in r.getMessage() for r in caplog.records)
    assert same(again, fit(None, strategy, **case))
    assert files(tmp_path) == []


@CASE
@BOTH
@pytest.mark.parametrize("interval", [0.0, NEVER])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, strategy, case, interval, monkeypatch):
    monkeypatch.setattr(group_module, "BREATH", 1e-12)  # a checkpoint at each step, not only at reports
    unbroken = fit(None, strategy, **case)
    for at in (3, 11):
        with kill_after(at), pytest.raises(Killed):
            fit(tmp_path / str(at), strategy, interval=interval, **case)
        with kill_after(2), suppress(Killed):
            fit(tmp_path / str(at), strategy, interval=interval, **case)
        assert same(fit(tmp_path / str(at), strategy, **case), unbroken)
        assert files(tmp_path) == []


@contextmanager
def kill_after(steps: int) -> Iterator[None]:
    """Ends the run after this many steps (those of the probe included), before the last one is recorded."""
    plain, calls = Kernel.advance, 0

    def advance(self: Kernel, clocks: Any, count: int, total: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        total = plain(self, clocks, count, total)
        if calls > steps:
            raise Killed
        return total

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "advance", advance)
        yield


def test_members_that_ended_before_the_kill_keep_the_others_in_their_stack(tmp_path):
    case = CASES["early stopping"]
    unbroken = fit(None, "stacked", **case)
    lengths = [len(c) for c in unbroken.info["curves"]["loss"]]
    assert min(lengths) < max(lengths)
    with pytest.raises(Killed):
        fit(tmp_path, "stacked", observe=Stop(min(lengths) + 1, Killed), **case)
    assert 0 < len(list(tmp_path.rglob("member-*"))) < 5
    assert same(fit(tmp_path, "stacked", **case), unbroken)


def test_a_real_ctrl_c_waits_for_the_end_of_the_steps(tmp_path):
    def press(event: Event) -> None:
        if event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    case = CASES["Adam"]
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, "stacked", observe=press, **case)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert len(files(tmp_path)) == 2
    assert same(fit(tmp_path, "stacked", **case), fit(None, "stacked", **case))


def test_ctrl_c_after_the_last_step_is_not_lost(tmp_path, monkeypatch):
    """It came while members were written, after the last look: they are kept, and the program stops."""
    real = PoolEntry.write

    def write(self, name, family, curves):
        real(self, name, family, curves)
        if name.endswith("-00000"):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(PoolEntry, "write", write)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, "stacked", **CASES["Adam"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    again = fit(tmp_path, "stacked", **CASES["Adam"])
    assert again.info["trained"] == 0 and not list(tmp_path.rglob("*checkpoint*"))


def test_ctrl_c_stops_a_method_without_steps_after_the_member_it_is_at(tmp_path, monkeypatch):
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    data = bn.Data(bn.Noise.seed(3).normal(torch.empty(12, 4)), torch.arange(12) % 3)
    engine = Engine(device="cpu", progress=False)
    start = bn.fit(MAP(epochs=1), problem, data, members=3, engine=engine)
    finished, real = [], bn.Laplace.finish

    def finish(self, *given):
        finished.append(1)
        if len(finished) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *given)

    monkeypatch.setattr(bn.Laplace, "finish", finish)
    with pytest.raises(KeyboardInterrupt):
        bn.fit(bn.Laplace(), problem, data, start=start, engine=engine, pool=tmp_path)
    assert len(finished) == 2 and len(list(tmp_path.rglob("member-*"))) == 2
    posterior = bn.fit(bn.Laplace(), problem, data, start=start, engine=engine, pool=tmp_path)
    assert posterior.info["trained"] == 1


def test_without_a_pool_nothing_is_written_or_said(caplog):
    with caplog.at_level(logging.INFO, "basinet"), pytest.raises(KeyboardInterrupt):
        fit(None, "stacked", observe=Stop(2, KeyboardInterrupt), **CASES["Adam"])
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ({"strategy": "loop"}, "strategy is 'stacked' in the file, 'loop' here"),
        ({"compile": True}, "compiled is False in the file, True here"),
        ({"memory": 10**9}, "memory is None in the file, 1000000000 here"),
        ("torch", rf"torch is '{re.escape(torch.__version__)}' in the file, '9\.9' here"),
    ],
)
def test_a_run_of_other_settings_is_refused_and_the_difference_named(tmp_path, engine, named, monkeypatch):
    recipe = CASES["Adam"]["method"]
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, "stacked", recipe, observe=Stop(2, KeyboardInterrupt))
    before = files(tmp_path)
    other = {} if engine == "torch" else engine
    if engine == "torch":
        monkeypatch.setattr(torch, "__version__", "9.9")
    given = Engine(device="cpu", progress=False, **other)
    with pytest.raises(
        FileError, match=rf"checkpoint-\w+\.json: .*other code or settings: {named}\. .*delete the file"
    ):
        bn.fit(recipe, PROBLEM, classes(), members=5, engine=given, pool=tmp_path)
    monkeypatch.undo()
    assert files(tmp_path) == before
    next(tmp_path.rglob("checkpoint-*.json")).unlink()  # as the message advises
    assert same(fit(tmp_path, "loop", recipe), fit(None, "loop", recipe)) and files(tmp_path) == []


def test_starts_that_differ_do_not_take_up_each_other(tmp_path):
    engine = Engine(device="cpu", strategy="stacked", progress=False)
    starts = [bn.Posterior.of(Net(), PROBLEM) for _ in range(2)]

    def run(start: bn.Posterior, pool: Path | None, observe: Any = None) -> bn.Posterior:
        recipe = MAP(epochs=4, batch_size=5)
        return bn.fit(recipe, PROBLEM, classes(), start=start, members=3, engine=engine, pool=pool, observe=observe)

    with pytest.raises(KeyboardInterrupt):
        run(starts[0], tmp_path, Stop(2, KeyboardInterrupt))
    assert same(run(starts[1], tmp_path), run(starts[1], None))
    assert same(run(starts[0], tmp_path), run(starts[0], None))


def test_a_member_that_failed_before_the_kill_stays_failed(tmp_path):
    inputs, targets = classes(12).inputs, classes(12).inputs[:, :1].clone()
    targets[0] = 1e30  # its square is infinite
    rows = torch.stack([torch.arange(1, 12), torch.arange(11), torch.arange(1, 12).flip(0)])
    data = bn.Data(inputs, targets, rows=rows)
    problem = bn.Problem(lambda: nn.Linear(4, 1), bn.likelihoods.Gaussian())
    engine = Engine(device="cpu", strategy="stacked", checkpoint=0.0, progress=False)

    def run(pool: Path | None, observe: Any = None) -> bn.Posterior:
        recipe = MAP(epochs=8, batch_size=None)
        return bn.fit(recipe, problem, data, members=3, engine=engine, pool=pool, observe=observe)

    unbroken = run(None)
    assert unbroken.info["failed"] == [[0, 1]]
    with pytest.raises(Killed):
        run(tmp_path, Stop(6, Killed))
    again = run(tmp_path)
    assert again.info["failed"] == [[0, 1]] and same(again, unbroken)


PROGRAM = """
import hashlib, os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
import basinet as bn
from basinet.core.tree import leaves

strategy, folder, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])


def net():
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2), nn.Linear(20, 3))


def fit(pool):
    key = bn.Noise.seed(3)
    data = bn.Data(key.split("x").normal(torch.empty(100, 6)), key.split("y").integers(100, 3))
    engine = bn.Engine(device="cpu", strategy=strategy, checkpoint=0.05, memory=90009, progress=False)
    problem = bn.Problem(net, bn.likelihoods.Categorical())
    val = bn.Data(data.inputs[:30] + 0.1, data.targets[:30])
    recipe = bn.MAP(epochs=30, batch_size=10, patience=12)
    made = bn.fit(recipe, problem, data, val=val, members=6, engine=engine, pool=pool)
    parts = [x.numpy().tobytes() for x in leaves(made.parts[0].family)]
    curves = {n: c for n, c in made.info["curves"].items() if n != "seconds"}
    return hashlib.sha256(b"".join(parts) + repr(curves).encode()).hexdigest()


def child(pool, result):
    pid = os.fork()  # nothing has run in this process that a fork could break
    if pid == 0:
        torch.set_num_threads(1)
        result.write_text(fit(pool))
        os._exit(0)
    return pid


began = time.monotonic()
os.waitpid(child(None, folder / "unbroken"), 0)
seconds = time.monotonic() - began
expected = (folder / "unbroken").read_text()
choose = random.Random(1)
pool, number, killed = folder / "pool-0", 0, 0
while killed < kills or not (folder / f"result-{number}").exists():
    result = folder / f"result-{number}"
    pid = child(pool, result)
    if killed < kills:
        time.sleep(choose.uniform(0.0, 0.5 * seconds))
        os.kill(pid, signal.SIGKILL)
        killed += 1
    os.waitpid(pid, 0)
    if result.exists() and result.read_text():
        assert result.read_text() == expected, (number, killed)
        assert not list(pool.rglob("checkpoint*")), list(pool.rglob("checkpoint*"))
        if killed < kills:
            number += 1
            pool = folder / f"pool-{number}"
print(killed, number + 1)
"""


@pytest.mark.slow
@BOTH
def test_ten_kills_at_random_moments_and_the_same_bits(tmp_path, strategy):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(script), strategy, str(tmp_path), "10"], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    killed, results = map(int, run.stdout.split())
    assert killed == 10 and results >= 1
