"""What of a cluster needs no cluster: arguments, addresses, losses that are counted, nodes that are refused."""

from __future__ import annotations

import socket
import sys
import threading

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.engine.cluster import connection
from basinet.engine.cluster.driver import Cluster
from basinet.engine.cluster.running import History, Running, is_fault, reason_of
from basinet.engine.cluster.task import PARTS, Seen, share_of_gpu
from basinet.engine.worker_loop import WorkerError


@pytest.mark.parametrize("executor", ["dask", "ray:", "rays", "", 3])
def test_an_executor_that_is_none_is_refused(executor):
    with pytest.raises(ValueError, match="expected executor as 'ray', 'ray:ADDRESS' or None"):
        bn.Engine(executor=executor)


def test_the_cluster_chooses_the_gpu():
    assert bn.Engine(executor="ray", device="cuda").place == torch.device("cpu")  # of the driver
    with pytest.raises(ValueError, match="expected device 'cpu' or 'cuda' with an executor"):
        bn.Engine(executor="ray", device="cuda:1")


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    problem = bn.Problem(lambda: nn.Linear(2, 2), bn.likelihoods.Categorical())
    data = bn.Data(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ImportError, match=r"needs Ray: pip install \"basinet\[cluster\]\""):
        bn.fit(bn.MAP(epochs=1), problem, data, engine=bn.Engine(executor="ray", progress=False))


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


@pytest.mark.parametrize(
    ("takes", "share"), [(0, 1 / PARTS), (1, 1 / PARTS), (25, 1 / 3), (30, 1 / 2), (41, 1.0), (90, 1.0)]
)
def test_small_groups_share_a_gpu_of_which_four_fifths_are_used(takes, share):
    assert share_of_gpu(takes, free=100) == share


@pytest.mark.parametrize(
    ("total", "share", "needs", "window"),
    [
        ({"CPU": 6.0}, 1.0, {"num_cpus": 1}, 12),
        ({"CPU": 32.0, "GPU": 4.0}, 1.0, {"num_gpus": 1.0, "num_cpus": 1}, 8),
        ({"CPU": 32.0, "GPU": 4.0}, 0.25, {"num_gpus": 0.25, "num_cpus": 1}, 32),
        ({"CPU": 4.0, "GPU": 4.0}, 0.25, {"num_gpus": 0.25, "num_cpus": 0}, 32),  # CPUs must not keep GPUs idle
    ],
)
def test_what_tasks_take_and_how_many_are_submitted_follows_from_the_cluster(total, share, needs, window):
    cluster = object.__new__(Cluster)
    cluster.total, cluster.share, cluster.most, cluster.looked = total, share, None, float("inf")
    cluster.device, cluster.ray = "cuda" if "GPU" in total else "cpu", None
    assert cluster._needs(set()) == needs | {"scheduling_strategy": "SPREAD"} and cluster._window() == window


def test_what_nodes_lack_is_told_from_errors_of_the_users_code():
    class OwnerDiedError(Exception):
        __module__ = "ray.exceptions"

    out = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")
    assert all(map(is_fault, (MemoryError(), out, torch.OutOfMemoryError(), OwnerDiedError())))
    assert not any(map(is_fault, (None, ValueError("memory"), RuntimeError("shapes"))))
    assert reason_of(MemoryError()) == "their task ran out of memory"
    assert reason_of(OwnerDiedError()) == "their task was lost (OwnerDiedError)"
