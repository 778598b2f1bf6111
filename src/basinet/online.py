"""`online`: a posterior that is updated batch by batch, not fitted again.

    posterior = bn.online(bn.EKF(), problem)      the prior, which predicts
    posterior = posterior.update((x, y))          after a batch; as often as batches come

The state is the posterior itself, a family over the parameters and what was counted, so it is saved with
`posterior.save(path)` and continues after `bn.load(path, make_net)` as if nothing had happened.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core.model import describe_difference
from .core.noise import Noise
from .core.tree import leaves, move, stack, take, tree_map
from .data import Data, Piece, Stream
from .engine import Member, Method
from .filters import Drift, Filter
from .pool import decode, encode
from .posterior import Part, Posterior
from .problem import Problem
from .problem.likelihoods.fitting import OneClass
from .sequential import SEQUENTIAL, begun, check_drift, drifted, gone_on

ONLINE = "a filter (bn.Kalman, bn.EKF, bn.LOFI, bn.RVGA) or bn.Laplace, bn.MeanField, bn.IVON"


def online(
    method: Method,
    problem: Problem,
    *,
    start: Posterior | None = None,
    members: int | None = None,
    seed: int = 0,
    drift: Drift | None = None,
) -> Posterior:
    """The posterior before any data, of which `update(batch)` makes the next.

    `method` is a filter (`bn.Kalman`, `bn.EKF`, `bn.LOFI`, `bn.RVGA`), or one that fits each batch with the last
    posterior as its prior (`bn.Laplace`, `bn.MeanField`, `bn.IVON`). Members start where the network does, each at its
    own initialisation, or at the means of `start` (one for all, or one each): what `where` leaves out stays there, and
    the prior of the others lies around it where the filter says so (`centre`), and around `start` where the prior has
    no centre of its own. Without `start` the noise of a likelihood must be known; of methods that fit, in any case.
    `drift` is how parameters may move between batches, as a filter's own field `drift`.
    """
    if not isinstance(method, (Filter, *SEQUENTIAL)):
        what = method.label if isinstance(method, Method) else type(method).__name__
        raise TypeError(f"expected {ONLINE} to go from batch to batch, got {what}")
    if not isinstance(problem, Problem):
        raise TypeError(f"expected a bn.Problem, got {type(problem).__name__}")
    method = _with_drift(method, drift)
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(
            f"expected start as a posterior, got {type(start).__name__}: use bn.Posterior.of(module, problem)"
        )
    if members is not None and members < 1:
        raise ValueError(f"expected at least 1 member, got {members}")
    count = members or (1 if start is None else len(start))
    adapted = method.adapt(problem)
    if start is None:
        if problem.likelihood.init() and isinstance(method, Filter):
            raise ValueError(
                f"{method.label} takes the noise as known, and {type(problem.likelihood).__name__} learns it: state it "
                "(learned=False), or give start=, a posterior that learned it"
            )
        who = tuple(Member(seed, k) for k in range(count))
        points = [adapted.init(Noise.seed(seed).split("online").split(k)) for k in range(count)]
    else:
        if len(start) not in (1, count):
            raise ValueError(f"expected a start of 1 member or of {count}, got {len(start)}")
        who = start.members if len(start) == count else tuple(Member(seed, k) for k in range(count))
        points = start.points() * (count // len(start))
        for point in points:
            network = {n: tuple(x.shape) for n, x in problem.split(point.params)[0].items()}
            if difference := describe_difference(adapted.network.params, network):
                raise ValueError(f"start is of another network than the problem: {difference}")
    info: dict[str, Any] = {"online": {"rows": 0, "skipped": 0, "batches": 0, "inputs": None}}
    if isinstance(method, Filter):
        family = stack([method.begin(adapted, point) for point in points])
    else:
        family = stack([begun(method, problem, point, start is not None) for point in points])
        info |= {} if drift is None else {"drift": encode(drift, {}), "around_start": start is not None}
    return Posterior((Part(problem, family, who, method, info=info),))


def updated(posterior: Posterior, batch: Any) -> Posterior:
    """The posterior after a batch: what `posterior.update` returns."""
    part = posterior.parts[0]
    method = part.recipe
    if len(posterior.parts) > 1 or posterior.weights is not None or not isinstance(method, (Filter, *SEQUENTIAL)):
        what = "a mixture" if len(posterior.parts) > 1 or posterior.weights is not None else repr(posterior)
        raise TypeError(
            f"update is for the posterior of {ONLINE}, got {what}; other methods go on by a fit whose prior is "
            "bn.priors.FromFamily(family=posterior.family)"
        )
    like = leaves(part.family)[0]
    data, skipped = read_batch(batch)
    before = part.info.get("online", {"rows": 0, "skipped": 0, "batches": 0, "inputs": None})
    info = dict(before, skipped=before["skipped"] + skipped)
    family = part.family
    if data is not None:
        info |= {"rows": info["rows"] + data.n, "batches": info["batches"] + 1, "inputs": _shapes(data, before)}
        piece = Piece(*move((data.inputs, data.targets, data.weights), like.device, like.dtype))
        each = [take(family, k) for k in range(len(part.members))]
        with suppress(OneClass):
            part.problem.check(Data(piece.inputs, piece.targets), each[0].mean())
        if isinstance(method, Filter):
            problem = part.adapted()
            family = stack([method.step(one, problem, piece) for one in each])
        else:
            rows, number = Data(*piece), before["batches"]
            if "drift" in part.info:
                drift, around = decode(part.info["drift"], {}), part.info["around_start"]
                each = [drifted(method, part.problem, one, drift, rows.n, around) for one in each]
            both = zip(each, part.members)
            family = stack([gone_on(method, part.problem, one, rows, who, number) for one, who in both])
    return Posterior((replace(part, family=family, info=part.info | {"online": info}),))


def _with_drift(method: Method, drift: Drift | None) -> Method:
    """A filter that drifts; other methods as they are, where they can."""
    if drift is None:
        return method
    if not isinstance(drift, Drift):
        raise TypeError(f"expected drift as bn.filters.Forget(0.999), Inflate(1e-5) or None, got {drift!r}")
    if not isinstance(method, Filter):
        check_drift(method, drift)
        return method
    if method.drift is not None:
        raise ValueError(f"expected one drift, got {method.drift!r} in the filter and {drift!r} beside it")
    return replace(method, drift=drift)


def read_batch(batch: Any) -> tuple[Data | None, int]:
    """The examples of a batch whose targets are known, None where there are none, and how many are not."""
    if isinstance(batch, Stream):
        raise TypeError("update takes one batch: call it for each batch of the stream, or go over it with bn.fit")
    if isinstance(batch, Data):
        if batch.rows is not None:
            raise ValueError("update gives every member the same examples, and these data have rows: leave them out")
        return batch, 0
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(
            f"expected a batch as bn.Data, (inputs, targets) or (inputs, targets, weights), got {type(batch).__name__}"
        )
    inputs, targets, weights = (tree_map(_tensor, x) for x in (*batch, *[None] * (3 - len(batch))))
    if not isinstance(targets, Tensor) or targets.dim() == 0:
        raise ValueError("expected targets as a tensor or array with a leading axis of examples")
    if len(targets) == 0:
        raise ValueError("expected a batch with at least one row, got none: leave out empty batches")
    missing = targets.reshape(len(targets), -1).isnan().any(1)
    skipped = int(missing.sum())
    if skipped == len(targets):
        return None, skipped
    data = Data(inputs, targets.masked_fill(missing.reshape(-1, *[1] * (targets.dim() - 1)), 0), weights)
    return (data.take(~missing) if skipped else data), skipped


def _tensor(x: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x


def _shapes(data: Data, before: dict[str, Any]) -> list[list[int]]:
    """The shapes of an example, which must be those of the first batch."""
    shapes = [list(x.shape[1:]) for x in leaves(data.inputs)]
    if before["inputs"] is not None and shapes != before["inputs"]:
        raise ValueError(
            f"expected inputs of shape {before['inputs']} per example, as in the first batch, got {shapes}: the "
            "columns of a stream must stay the same"
        )
    return shapes
