"""The commands of the guide that start Ray on two machines, with both nodes on this one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cluster_script
import pytest

import basinet as bn

pytest.importorskip("ray", reason='Ray is not installed: pip install "basinet[cluster]"')

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "cluster.md"
SMALL = ["--block", "--num-cpus=1", "--object-store-memory=100000000"]  # --block: ends when it is asked to
LIMIT = 120.0  # seconds


def commands() -> list[list[str]]:
    """The lines under "Two machines", as words, with this machine and a free port in place of those they name."""
    block = re.search(r"\*\*Two machines\.\*\*.*?```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    text = block[1].replace("10.0.0.1", "127.0.0.1").replace("6379", port)
    return [shlex.split(line, comments=True) for line in text.splitlines()]


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, since names of sockets are short."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def nodes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Nodes that were started, which end with the test; `ray stop` would end those of other programs too."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for node in reversed(started):
        node.terminate()
        try:
            node.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(node.pid, signal.SIGKILL)


def trained(address: str, pool: Path, env: dict[str, str]) -> str:
    """What a program prints that trains eight members there."""
    script = Path(cluster_script.__file__)
    process = subprocess.run([sys.executable, script, address, pool], env=env, capture_output=True, text=True)
    assert process.stdout.split() == ["8", "8"], process.stderr
    return process.stderr


def test_two_nodes_that_were_started_as_the_guide_says_train_members(home, nodes, tmp_path):
    token, export, head, second, script, stop = commands()
    bin_, src = str(Path(sys.executable).parent), str(Path(bn.__file__).parents[1])
    name, value = export[1].split("=")
    env = os.environ | {"HOME": str(home), "RAY_TMPDIR": str(home), "PATH": f"{bin_}:{os.environ['PATH']}"}
    env |= {"PYTHONPATH": src, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0", name: value}
    env.pop("RAY_ADDRESS", None)
    subprocess.run(token, env=env, check=True, capture_output=True)
    assert (home / ".ray" / "auth_token").exists() and stop == ["ray", "stop"] and script == ["python", "train.py"]
    for command in (head, second):
        log = home / f"{len(nodes)}.log"
        with log.open("wb") as file:
            nodes.append(
                subprocess.Popen([*command, *SMALL], env=env, stdout=file, stderr=file, start_new_session=True)
            )
        until = time.monotonic() + LIMIT
        while "Ray runtime started" not in log.read_text():
            assert nodes[-1].poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
    address = second[-1].removeprefix("--address=")
    assert "2 Ray nodes with 2 CPUs" in trained(address, tmp_path / "by address", env)
    assert "2 Ray nodes with 2 CPUs" in trained("", tmp_path / "of this machine", env)
