"""What can be tested without a cluster: arguments, addresses, losses that are counted, nodes that are refused."""

from __future__ import annotations

import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.engine.checkpoint import Checkpoints
from basinet.engine.cluster import connection, resources
from basinet.engine.cluster.driver import Cluster
from basinet.engine.cluster.resources import PROCESS, Resources
from basinet.engine.cluster.running import History, Running, is_fault, is_starved, reason_of
from basinet.engine.cluster.task import Seen
from basinet.engine.interrupt import Interrupt
from basinet.engine.memory import MemberBytes
from basinet.engine.planner import NoRoom
from basinet.engine.progress import Progress
from basinet.engine.work import Run, Work
from basinet.engine.worker_loop import WorkerError

PROBLEM = bn.Problem(lambda: nn.Linear(2, 2), bn.likelihoods.Categorical())


@pytest.mark.parametrize("executor", ["dask", "ray:", "rays", "", 3])
def test_an_unknown_executor_is_refused(executor):
    with pytest.raises(ValueError, match="expected executor as 'ray', 'ray:ADDRESS' or None"):
        bn.Engine(executor=executor)


def test_the_cluster_chooses_the_gpu():
    assert bn.Engine(executor="ray", device="cuda").place == torch.device("cpu")  # of the driver
    with pytest.raises(ValueError, match="expected device 'cpu' or 'cuda' with an executor"):
        bn.Engine(executor="ray", device="cuda:1")


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    data = bn.Data(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ImportError, match=r"needs Ray: pip install \"basinet\[cluster\]\""):
        bn.fit(bn.MAP(epochs=1), PROBLEM, data, engine=bn.Engine(executor="ray", progress=False))


def test_an_address_where_nothing_answers_is_refused_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"nothing answers at 127.0.0.1:{port} .*ray start --head --port={port}"):
        connection.refuse_silence(f"127.0.0.1:{port}")


def test_an_address_that_takes_calls_and_says_nothing_is_refused_within_seconds(monkeypatch):
    monkeypatch.setattr(connection, "CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionError, match=f"nothing answers at 127.0.0.1:{port} .*timed out"):
            connection.refuse_silence(f"127.0.0.1:{port}")


def test_an_address_where_something_else_answers_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as line:
                line.recv(100)
                line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConnectionError, match="is not the head of a Ray cluster: ray start --head prints"):
            connection.refuse_silence(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize("address", ["here", "10.0.0.1", "10.0.0.1:x", ":6379"])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(ValueError, match="expected the address of a Ray cluster as HOST:PORT"):
        connection.refuse_silence(address)


def test_a_driver_outside_of_the_cluster_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="run this on a node of the cluster, or submit it with ray job submit"):
        connection.refuse_silence("ray://10.0.0.1:10001")


def test_steps_that_are_made_again_are_not_counted_twice():
    history = History()
    first = Running([0], history)
    assert [first.further(5), first.further(5)] == [5, 5]
    again = Running([0], history)
    assert [again.further(8), again.further(4)] == [0, 2]


def test_losses_count_from_where_a_group_last_came_further():
    history = History()
    for _ in range(5):  # each task comes further than the one before: no end
        task = Running([0], history)
        task.further(history.best + 1)
        assert task.lost() == 1
    assert [Running([0], history).lost() for _ in range(3)] == [2, 3, 4]


def test_a_node_of_another_version_is_refused_by_name():
    node = Seen("node-7 (10.0.0.7)", {"basinet": "0.2.0", "torch": "2.12.0"}, True)
    node.refuse_unless({"basinet": "0.2.0", "torch": "2.12.0"})
    with pytest.raises(WorkerError, match=r"node node-7 \(10.0.0.7\) has torch 2.12.0 \(the driver 2.13.0\)"):
        node.refuse_unless({"basinet": "0.2.0", "torch": "2.13.0"})


class FakeRay:
    """A cluster of nodes with these resources, which notes what it is asked to cancel."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.has, self.cancelled = list(nodes), []
        self.cancel = self.cancelled.append

    def cluster_resources(self) -> dict[str, float]:
        return {kind: sum(node.get(kind, 0.0) for node in self.has) for kind in {k for node in self.has for k in node}}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": str(i), "Resources": has} for i, has in enumerate(self.has)]


WORK = Work.of(bn.MAP(epochs=1), PROBLEM, bn.Data(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])), None)._replace(
    data=None
)
GIB = 2.0**30


def cluster(ray: FakeRay, asked: str | None = None) -> Cluster:
    """As much of a driver as plans what tasks take."""
    driver = object.__new__(Cluster)
    driver.ray, driver.has, driver.most, driver.tasks = ray, Resources(ray, asked, WORK), None, {}
    driver.each, driver.finish, driver.chunk = MemberBytes(10 * 2**20, 0, 90 * 2**20, 0), 0, None
    driver.run = Run(WORK, Progress("", 0, False), None, Checkpoints(), Interrupt(waits=False))
    return driver


@pytest.mark.parametrize(
    ("node", "needs", "window"),
    [
        ({"CPU": 6.0}, {"num_cpus": 1}, 12),
        ({"CPU": 32.0, "GPU": 4.0}, {"num_gpus": 1, "num_cpus": 1}, 8),
        ({"CPU": 2.0, "GPU": 4.0}, {"num_gpus": 1, "num_cpus": 0}, 8),  # CPUs must not keep GPUs idle
    ],
)
def test_what_tasks_take_and_how_many_are_submitted_follows_from_the_cluster(node, needs, window):
    driver = cluster(FakeRay(node))
    assert driver.has.options(set(), 5) == needs | {"scheduling_strategy": "SPREAD", "memory": 5}
    assert driver._window() == window


def test_tasks_ask_for_the_memory_that_planning_predicts_and_no_more_than_a_node_has():
    driver = cluster(FakeRay({"CPU": 4.0, "memory": GIB}, {"CPU": 1.0, "memory": 4 * GIB}, {"memory": 9 * GIB}))
    assert driver._takes([0]) == PROCESS + 100 * 2**20 and driver._takes([0, 1, 2]) == PROCESS + 300 * 2**20
    driver.chunk = 1  # of coupled members, whose activations are computed one after another
    assert driver._takes([0, 1, 2]) == PROCESS + 120 * 2**20
    driver.finish = 2 * 2**30  # a structure over all weights
    assert driver._takes([0]) == PROCESS + 2 * 2**30
    driver.finish = 7 * 2**30
    assert driver._takes([0]) == 4 * GIB  # the third node has no processor for members
    assert driver.has.bytes_for_members() == int(0.8 * 4 * GIB) - PROCESS
    assert cluster(FakeRay({"CPU": 1.0, "GPU": 1.0, "memory": GIB}))._takes([0]) == PROCESS  # members are on the GPU


def test_the_line_on_a_lost_group_says_where_it_resumes(tmp_path):
    ray, said = FakeRay({"CPU": 1.0}), []
    driver = cluster(ray)
    driver.members = [SimpleNamespace(k=7)]
    for folder, words in ((None, "from the beginning"), (tmp_path, "from their last checkpoint, if they have one")):
        progress = SimpleNamespace(say=said.append)
        driver.run = driver.run._replace(progress=progress, checkpoints=Checkpoints(folder))
        driver._lost(Running([0], History()), OSError(), deque(), lambda group: [])
        assert said[-1] == f"MAP, members 7: their task was lost (OSError); they are submitted again, {words}"
    ray.has *= 3  # since the run began
    assert driver.has.words() == "3 Ray nodes with 3 CPUs"


def test_tasks_that_wait_for_a_node_as_large_as_one_that_is_lost_ask_for_less():
    ray = FakeRay({"CPU": 1.0, "memory": GIB}, {"CPU": 1.0, "memory": 4 * GIB})
    driver = cluster(ray)
    driver.finish = 2 * 2**30
    waits, runs = (Running([i], History(), driver._takes([i])) for i in range(2))
    runs.node, driver.tasks = "1", {"waits": waits, "runs": runs}
    ray.has.pop()
    driver.has.looked = 0.0
    assert driver._window() == 2 and driver._window() == 2
    assert ray.cancelled == ["waits"] and driver._takes([0]) == GIB
    left: deque[list[int]] = deque()
    ray.exceptions, ray.get = SimpleNamespace(TaskCancelledError=StopIteration), None
    driver.tasks = {(stream := iter(())): waits}
    assert not [*driver._heard(stream, left, lambda group: [])] and list(left) == [[0]]


@pytest.mark.parametrize(("error", "times"), [(NoRoom("one member needs 9 GiB"), 1), (MemoryError("at once"), 4)])
def test_what_planning_refuses_is_not_asked_of_other_nodes(error, times, monkeypatch):
    driver, answers = cluster(FakeRay({"CPU": 1.0})), []
    driver.job = SimpleNamespace(roster=SimpleNamespace(given=False))
    driver.ray.remote = lambda function: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: None))

    def answer(ref: None) -> Iterator[None]:
        answers.append(ref)
        return ("error", error, "traceback", "0")
        yield

    monkeypatch.setattr(resources, "elsewhere", lambda *_: "SPREAD")
    monkeypatch.setattr("basinet.engine.cluster.driver.dumps", lambda given: b"")
    monkeypatch.setattr(driver, "_task", lambda: None)
    monkeypatch.setattr(driver, "_get", answer)
    with pytest.raises(type(error), match=str(error)):
        list(driver._planned([0], None))
    assert len(answers) == times


def test_what_nodes_lack_is_not_confused_with_errors_in_the_users_code():
    class OwnerDiedError(Exception):
        __module__ = "ray.exceptions"

    out = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")
    assert all(map(is_fault, (MemoryError(), out, torch.OutOfMemoryError(), OwnerDiedError())))
    assert not any(map(is_fault, (None, ValueError("memory"), RuntimeError("shapes"))))
    assert all(map(is_starved, (MemoryError(), out, torch.OutOfMemoryError())))
    assert not is_starved(OwnerDiedError())
    assert reason_of(MemoryError()) == "their task ran out of memory"
    assert reason_of(OwnerDiedError()) == "their task was lost (OwnerDiedError)"
