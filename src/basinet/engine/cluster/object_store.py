"""Data and job in Ray's object store, from where each node fetches them: the data once for all fits on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...pool.pool import Shelf
from .task import dumps

if TYPE_CHECKING:
    from ..engine import Job

_sent: dict[Any, Any] = {}  # where the data of the last fit are, by their fingerprints


def put(ray: Any, job: Job, shelf: Shelf | None) -> tuple[Any, Any]:
    """References to the data of a job, and to the rest of it."""
    work = job.work
    given, job = (work.data, work.val), job._replace(work=work._replace(data=None, val=None))
    context = ray.get_runtime_context()
    key = (context.gcs_address, context.get_job_id(), *(None if x is None else x.fingerprint() for x in given))
    try:
        if key not in _sent:
            content = dumps(given)
            _sent.clear()
            _sent[key] = ray.put(content)
        content = dumps((job, shelf))
        return _sent[key], ray.put(content)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        raise MemoryError(
            f"the data take {len(content) / 2**20:,.0f} MiB, which do not fit in Ray's object store: start Ray "
            "with a larger one (ray start --object-store-memory=BYTES)"
        ) from error
    except Exception as error:  # whatever an object raises that cannot be pickled
        raise TypeError(
            f"Ray cannot send this network or data to other machines ({type(error).__name__}: "
            f"{str(error).strip().splitlines()[0][:160]}): define the network as a function or class without open "
            "files, locks, generators or modules inside it, and load what it needs inside the function"
        ) from error
