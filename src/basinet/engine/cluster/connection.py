"""A way to the Ray cluster that an address names, or an error within seconds."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

CONNECT = 5.0  # seconds in which an address must answer
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # of HTTP/2, which Ray speaks


def connect(executor: str) -> Any:
    """Ray, connected to the cluster at the address that `ray:ADDRESS` has; without one to that of this machine."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f'executor {executor!r} needs Ray: pip install "basinet[cluster]"') from error
    if ray.is_initialized():
        return ray
    address = executor.partition(":")[2]
    if address:
        refuse_silence(address)
    else:  # of a Ray that is started here: its workers would give way to every other program
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(address=address or None, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address!r}" if address else "on this machine"
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ConnectionError(
            f"no Ray cluster answers {where}: {reason}. If the cluster asks for a token, set RAY_AUTH_MODE=token in "
            "the environment and put the token into ~/.ray/auth_token"
        ) from error
    return ray


def refuse_silence(address: str) -> None:
    """Raises within seconds where nothing answers: Ray would try for minutes."""
    if address.startswith("ray://"):
        raise ValueError(
            f"expected the address of a cluster that this machine belongs to, HOST:PORT or auto, got {address!r}: run "
            "this on a node of the cluster, or submit it with ray job submit"
        )
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"expected the address of a Ray cluster as HOST:PORT, such as 10.0.0.1:6379, got {address!r}")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT) as line:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            line.sendall(GREETING)
            answer = line.makefile("rb").read(9)
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"nothing answers at {address} ({error}): start Ray there with ray start --head --port={port}"
        ) from error
    if answer[3:4] != b"\x04":  # the kind of the first frame, the server's settings
        raise ConnectionError(
            f"what answers at {address} is not the head of a Ray cluster: ray start --head prints the address to use"
        )
