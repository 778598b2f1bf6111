"""`diagnose`: whether the chains of a posterior sampled it, in function space first.

What is asked of a network is what it predicts, so the quantities are its outputs on probe inputs and its loss; weights,
which have symmetries that no chain needs to visit, are judged on request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .core.lift import lift
from .core.tree import Params, leaves, ravel, take, tree_map
from .data import Data
from .diagnostics import (
    Finding,
    Temperature,
    Transitions,
    configurational_temperature,
    ess_bulk,
    ess_tail,
    findings,
    kinetic_temperature,
    mcse_mean,
    rhat,
    verdict,
)
from .families import Empirical
from .posterior import Part, Posterior
from .problem import Batch

PROBES = 20  # inputs on which predictions are judged, where none are given
CHUNK = 64  # draws that run in a call
GRADIENTS = 400  # draws, over all chains, from which the configurational temperature is taken


@dataclass(frozen=True)
class Row:
    """One quantity: how chains agree on it, and how well its mean is known."""

    name: str
    mean: float
    sd: float
    mcse: float
    rhat: float
    bulk: float  # effective draws
    tail: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What `diagnose` returns; `print` shows it."""

    chains: int
    kept: int  # draws of each chain
    rows: tuple[Row, ...]
    tests: tuple[Finding, ...]
    transitions: Transitions | None
    kinetic: Temperature | None
    configurational: Temperature | None
    draws: dict[str, Tensor]  # the quantities, (C, K) each, for plots

    @property
    def verdict(self) -> str:
        """All tests in one sentence."""
        return verdict(self.tests)

    @property
    def passed(self) -> bool:
        """Whether all of them passed."""
        return all(test.passed for test in self.tests)

    def to_arviz(self) -> Any:
        """The quantities as ArviZ's InferenceData, for its plots; ArviZ is installed by hand."""
        import arviz  # type: ignore[import-not-found]

        return arviz.from_dict(posterior={name: x.cpu().numpy() for name, x in self.draws.items()})

    def __str__(self) -> str:
        head = f"{'':24}{'mean':>11}{'sd':>10}{'MCSE':>10}{'R-hat':>8}{'bulk':>8}{'tail':>8}"
        lines = [f"{self.chains} chains of {self.kept} draws", head]
        for r in _worst(self.rows):
            numbers = f"{r.mean:>11.4g}{r.sd:>10.3g}{r.mcse:>10.2g}{r.rhat:>8.3f}{r.bulk:>8.0f}{r.tail:>8.0f}"
            lines.append(f"{r.name:24.24}{numbers}")
        lines += [f"{'ok ' if test.passed else 'NO '} {test.text}" for test in self.tests]
        return "\n".join([*lines, self.verdict])


def diagnose(posterior: Posterior, data: Data, *, inputs: Any = None, parameters: bool = False) -> Diagnosis:
    """How the chains of a posterior mixed, with a verdict. `data` are those it was fitted to.

    `inputs` are where predictions are judged (by default 20 of the data), `parameters` adds every weight. Members are
    chains; of one chain, its halves are compared.
    """
    part = _chains(posterior)
    family = part.family
    assert isinstance(family, Empirical)
    probe = _probe(data, part) if inputs is None else inputs
    quantities = dict(_quantities(part, probe, data))
    if parameters:
        flat = _flat(family)  # (C, K, d)
        quantities |= {f"weight {i}": flat[..., i] for i in range(flat.shape[-1])}
    stacked = torch.stack(list(quantities.values()), -1)  # (C, K, Q)
    transitions, kinetic = _transitions(part), _kinetic(part)
    configurational = _configurational(part, data)
    thermometers = [("configurational", configurational)] + ([("kinetic", kinetic)] if kinetic else [])
    tests = findings(stacked, transitions, thermometers)
    rows = tuple(Row(name, *numbers) for name, numbers in zip(quantities, _numbers(stacked)))
    chains, kept = stacked.shape[:2]
    return Diagnosis(chains, kept, rows, tuple(tests), transitions, kinetic, configurational, quantities)


def _chains(posterior: Posterior) -> Part:
    if len(posterior.parts) != 1 or not isinstance(posterior.parts[0].family, Empirical):
        kinds = " and ".join(type(part.family).__name__ for part in posterior.parts)
        raise ValueError(
            f"expected chains of one sampler, such as bn.fit(bn.HMC(), ...) gives, got {kinds}: other posteriors have "
            "no order of draws that could be judged"
        )
    return posterior.parts[0]


def _probe(data: Data, part: Part) -> Any:
    like = leaves(part.family)[0]
    n = leaves(data.inputs)[0].shape[0]
    few = torch.linspace(0, n - 1, min(n, PROBES)).long()
    return _moved(tree_map(lambda x: x[few.to(x.device)], data.inputs), like)


def _moved(tree: Any, like: Tensor) -> Any:
    def to(x: Tensor) -> Tensor:
        return x.to(like.device, like.dtype if x.is_floating_point() else None)

    return tree_map(to, tree)


def _quantities(part: Part, probe: Any, data: Data) -> Iterator[tuple[str, Tensor]]:
    """By name, (C, K) each: the loss, then each output on each probe input."""
    problem, batch = part.adapted(), _batch(part, data)

    def seen(params: Params, buffers: Params) -> tuple[Tensor, Tensor]:
        outputs, _ = problem.outputs(params, buffers, probe)
        log_likelihood, _ = problem.log_likelihood(params, buffers, batch)
        return outputs.flatten(1), -log_likelihood / batch.total

    outputs, loss = _over_draws(part, seen)
    yield "loss", loss
    for name, x in problem.split(_params(part))[1].items():  # what the likelihood learned, noise above all
        for i, one in enumerate(x.flatten(2).unbind(-1)):
            yield (f"{name} {i}" if x[0, 0].numel() > 1 else name), one
    for b in range(outputs.shape[2]):
        for o in range(outputs.shape[3]):
            yield f"prediction {b}" + (f", output {o}" if outputs.shape[3] > 1 else ""), outputs[:, :, b, o]


def _over_draws(part: Part, function: Any) -> tuple[Tensor, ...]:
    """`function(params, buffers)` of each draw in order, leaves (C, K, ...)."""
    family: Any = part.family
    both = tree_map(lambda x: x.flatten(0, 1), (family.params, family.buffers))
    total, shape = leaves(both)[0].shape[0], leaves(family.params)[0].shape[:2]
    with torch.no_grad():
        pieces = [lift(function)(*take(both, slice(i, i + CHUNK))) for i in range(0, total, CHUNK)]
    return tuple(torch.cat(xs).unflatten(0, shape) for xs in zip(*pieces))


def _batch(part: Part, data: Data) -> Batch:
    like = leaves(part.family)[0]
    inputs, targets = _moved((data.inputs, data.targets), like)
    weights = None if data.weights is None else data.weights.to(like)
    return Batch(inputs, targets, torch.arange(data.n), torch.zeros((), dtype=torch.long), data.n, weights)


def _numbers(draws: Tensor) -> Iterator[tuple[float, ...]]:
    flat = draws.double().flatten(0, 1)
    columns = (flat.mean(0), flat.std(0), mcse_mean(draws), rhat(draws), ess_bulk(draws), ess_tail(draws))
    yield from zip(*(column.tolist() for column in columns))


def _transitions(part: Part) -> Transitions | None:
    """What the sampler wrote down about its transitions, over all chains."""
    curves = part.info.get("curves", {})
    if "transitions" not in curves:
        return None
    counts = [int(row[0]) for row in curves["transitions"]]
    accepted = [row[0] for row in curves["acceptance"]] if "acceptance" in curves else None
    errors = [row[0] for row in curves["energy_error"]] if "energy_error" in curves else None
    total = max(1, sum(counts))
    return Transitions(
        None if accepted is None else sum(a * n for a, n in zip(accepted, counts)) / total,
        None if accepted is None else min(accepted),
        sum(int(row[0]) for row in curves.get("divergences", [[0]])),
        sum(counts),
        None if errors is None else sum(e * n for e, n in zip(errors, counts)) / total,
    )


def _kinetic(part: Part) -> Temperature | None:
    curves = part.info.get("curves", {})
    if "kinetic" not in curves:
        return None
    return kinetic_temperature(torch.tensor(curves["kinetic"]), _flat(part.family).shape[-1])


def _configurational(part: Part, data: Data) -> Temperature:
    problem, batch, flat = part.adapted(), _batch(part, data), _flat(part.family)
    chains, count, _ = flat.shape
    every = max(1, math.ceil(chains * count / GRADIENTS))
    family: Any = part.family
    some = tree_map(lambda x: x[:, ::every].flatten(0, 1), (family.params, family.buffers))

    def slopes(params: Params, buffers: Params) -> Params:
        def energy(params: Params) -> Tensor:
            return problem.potential(params, buffers, batch, None, "eval")[0]

        return torch.func.grad(energy)(params)

    total = leaves(some)[0].shape[0]
    pieces = [ravel(lift(slopes)(*take(some, slice(i, i + CHUNK))), 1) for i in range(0, total, CHUNK)]
    positions = flat[:, ::every]
    return configurational_temperature(positions, torch.cat(pieces).reshape(positions.shape))


def _params(part: Part) -> Params:
    family: Any = part.family
    return family.params


def _flat(family: Any) -> Tensor:
    """All draws as vectors, (C, K, d)."""
    return ravel(family.params, 2)


def _worst(rows: tuple[Row, ...], most: int = 12) -> list[Row]:
    """The loss and what the likelihood learned, then the quantities on which chains agree least."""
    first = [r for r in rows if not r.name.startswith(("prediction", "weight"))]
    rest = sorted((r for r in rows if r not in first), key=lambda r: -r.rhat)
    return [*first, *rest[: max(0, most - len(first))]]
