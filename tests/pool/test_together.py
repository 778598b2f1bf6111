"""Several processes on one folder: none loses a file to another, and none waits for one that is gone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.pool import files
from basinet.pool.files import alone, atomically

PROGRAM = """
import sys, torch, basinet as bn
from torch import nn
torch.set_num_threads(1)
key = bn.Noise.seed(0)
data = bn.Data(key.split("x").normal(torch.empty(30, 4)), key.split("y").integers(30, 3))
problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
engine = bn.Engine(device="cpu", strategy="loop", progress=False, checkpoint=0.0)
made = bn.fit(bn.MAP(epochs=40, batch_size=5), problem, data, members=3, pool=sys.argv[1], engine=engine)
print(float(sum(x.sum() for x in made.mean().values())))
"""


@pytest.mark.slow
def test_fits_of_one_pool_take_turns(tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    ended = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], ended
    assert len({out for out, _ in ended}) == 1
    [entry] = tmp_path.glob("map-*")
    assert sorted(p.name for p in entry.iterdir()) == ["entry.json"] + [
        f"member-0-0000{k}.safetensors" for k in range(3)
    ]


def test_the_temporaries_of_another_process_stay(tmp_path):
    """A run that ends clears its checkpoints, and leaves what another process is writing."""
    from basinet.engine.checkpoint import Checkpoints

    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        machine = files._writer().partition("-")[0]
        theirs = tmp_path / f".checkpoint-run-00000-2.safetensors.{machine}-{other.pid}-0123456789abcdef"
        theirs.mkdir()
        Checkpoints(tmp_path, run="run").clear()
        assert theirs.exists()
    finally:
        other.kill()
        other.wait()
    Checkpoints(tmp_path, run="run").clear()
    assert not theirs.exists()


def test_a_killed_write_of_tensors_is_cleared_by_the_next_one(tmp_path):
    program = (
        "import os, signal, sys, torch; from pathlib import Path; from basinet.pool import files\n"
        "import safetensors.torch as st\n"
        "def save(tensors, path, metadata=None):\n"
        "    Path(path).parent.joinpath('.tmpAbCdEf').write_bytes(b'x' * 1000)\n"  # as safetensors writes
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "st.save_file = save\n"
        "files.write_tensors(Path(sys.argv[1]) / 'a.safetensors', {'x': torch.zeros(3)}, {})\n"
    )
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1  # each clears what the one before left
    files.write_tensors(tmp_path / "b.safetensors", {"x": torch.zeros(3)}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["b.safetensors"]


def test_one_at_a_time_is_inside_and_the_lock_of_the_dead_is_free(tmp_path):
    lock, inside, most = tmp_path / "x.lock", [0], [0]

    def enter() -> None:
        with alone(lock):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and not lock.exists()
    program = "import os, sys; from pathlib import Path; from basinet.pool.files import alone\n"
    program += "with alone(Path(sys.argv[1])): os._exit(1)"
    subprocess.run([sys.executable, "-c", program, str(lock)], check=False)
    assert lock.exists()
    with alone(lock), alone(lock):  # the same thread does not wait for itself
        pass


def test_a_folder_is_read_while_another_process_saves_into_it(tmp_path):
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    posteriors = [bn.Posterior.of(nn.Linear(4, 3), problem) for _ in range(2)]
    posteriors[0].save(tmp_path)
    ended = threading.Event()

    def save() -> None:
        while not ended.is_set():
            for posterior in posteriors:
                posterior.save(tmp_path)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        rosters = [bn.load(tmp_path, lambda: nn.Linear(4, 3)).members for _ in range(60)]
    finally:
        ended.set()
        thread.join()
    assert set(rosters) <= {p.members for p in posteriors}


def test_a_part_that_was_away_for_a_moment_is_read_again(tmp_path, monkeypatch):
    """Another process saved something else and then the same: the manifest is the one that was read."""
    from basinet import saving

    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    posterior = bn.Posterior.of(nn.Linear(4, 3), problem)
    posterior.save(tmp_path)
    real, calls = saving._read, []

    def read(file: Path, *rest: object) -> object:
        calls.append(file)
        return real(file.with_name("part-9-gone.safetensors") if len(calls) == 1 else file, *rest)

    monkeypatch.setattr(saving, "_read", read)
    assert bn.load(tmp_path, lambda: nn.Linear(4, 3)).members == posterior.members
    assert len(calls) == 2


def test_a_complete_pool_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    data = bn.Data(torch.ones(4, 4), torch.tensor([0, 1, 2, 0]))
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)

    def fit() -> bn.Posterior:
        return bn.fit(bn.MAP(epochs=1), problem, data, members=2, pool=tmp_path, engine=engine)

    before = fit()

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *rest: refuse() if flags & os.O_CREAT else real(path, flags, *rest)
    )
    for name in ("unlink", "mkdir"):
        monkeypatch.setattr(Path, name, refuse)
        monkeypatch.setattr(os, name, refuse)
    after = fit()
    assert after.info["trained"] == 0
    assert all(torch.equal(x, after.mean()[n]) for n, x in before.mean().items())
    with pytest.raises(OSError, match=r"could not write|Read-only"):
        atomically(tmp_path / "new", lambda temporary: None)
