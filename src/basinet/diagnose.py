"""`diagnose`: whether the chains of a posterior sampled it, in function space first.

What is asked of a network is what it predicts, so the quantities are its outputs on probe inputs and its loss; weights,
which have symmetries that no chain needs to visit, are judged on request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .chains import Chain
from .chains.stochastic import Stochastic
from .core.documented import with_field_doc
from .core.lift import lift
from .core.tree import Params, leaves, ravel, size, take, tree_map
from .data import Data
from .diagnostics import (
    Finding,
    Temperature,
    Transitions,
    autocorrelation,
    configurational_temperature,
    ess_bulk,
    ess_tail,
    findings,
    kinetic_temperature,
    mcse_mean,
    rank_counts,
    rhat,
    verdict,
)
from .families import Empirical
from .posterior import Part, Posterior, joined
from .problem import Batch

PROBES = 20  # inputs on which predictions are judged, where none are given
CHUNK = 64  # draws that run in a call
DRAWN, CHAINS = 200, 8  # draws of a chain, and chains, that a record has of a trace
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


@with_field_doc
@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What `diagnose` returns; `print` shows it."""

    chains: int
    """How many chains there are."""
    kept: int
    """Draws kept of each chain."""
    rows: tuple[Row, ...]
    """R-hat and effective sample sizes, quantity by quantity."""
    tests: tuple[Finding, ...]
    """Verdicts of the tests, in words."""
    transitions: Transitions | None
    """Divergences and acceptance; None: the method has none."""
    kinetic: Temperature | None
    """The temperature of the momenta; None: there are none."""
    configurational: Temperature | None
    """The temperature of the weights; None: it cannot be measured."""
    draws: dict[str, Tensor]
    """The quantities, (C, K) each, for plots."""

    @property
    def verdict(self) -> str:
        """All tests in one sentence."""
        return verdict(self.tests)

    @property
    def passed(self) -> bool:
        """Whether all of them passed."""
        return all(test.passed for test in self.tests)

    @property
    def converged(self) -> bool:
        """Whether chains agree and have the temperature of the posterior, even if few draws are effective."""
        return all(test.passed for test in self.tests if test.text.startswith("R-hat") or "temperature" in test.text)

    def to_arviz(self) -> Any:
        """The quantities as ArviZ's own object, for its plots and tables: `loss`, learned noise, and `prediction`."""
        try:
            import arviz
        except ImportError as error:
            raise ImportError('to_arviz needs ArviZ: pip install "basinet[arviz]"') from error

        posterior = {name: x.cpu().numpy() for name, x in self.draws.items() if not name.startswith("prediction")}
        predictions = [x for name, x in self.draws.items() if name.startswith("prediction")]
        if predictions:
            posterior["prediction"] = torch.stack(predictions, -1).cpu().numpy()
        later = int(arviz.__version__.split(".")[0]) >= 1  # takes groups by name
        return arviz.from_dict({"posterior": posterior} if later else posterior)

    def record(self, quantities: int = 3) -> dict[str, Any]:
        """As JSON, for reports: the verdict, the rows that `print` shows, and traces, ranks and autocorrelations of
        the first of them."""
        rows = _worst(self.rows)
        shown = {}
        for row in rows[:quantities]:
            draws = self.draws[row.name]
            every = max(1, -(-draws.shape[1] // DRAWN))
            shown[row.name] = {
                "every": every,
                "trace": draws[:CHAINS, ::every].double().tolist(),
                "ranks": rank_counts(draws)[:CHAINS].tolist(),
                "autocorrelation": autocorrelation(draws)[:CHAINS].tolist(),
            }
        return {
            "chains": self.chains,
            "kept": self.kept,
            "passed": self.passed,
            "converged": self.converged,
            "verdict": self.verdict,
            "tests": [test.text for test in self.tests],
            "rows": [{name: _plain(value) for name, value in vars(row).items()} for row in rows],
            "shown": shown,
        }

    def __str__(self) -> str:
        head = f"{'':24}{'mean':>11}{'sd':>10}{'MCSE':>10}{'R-hat':>8}{'bulk':>8}{'tail':>8}"
        lines = [f"{self.chains} chains of {self.kept} draws", head]
        for r in _worst(self.rows):
            numbers = f"{r.mean:>11.4g}{r.sd:>10.3g}{r.mcse:>10.2g}{r.rhat:>8.3f}{r.bulk:>8.0f}{r.tail:>8.0f}"
            lines.append(f"{r.name:24.24}{numbers}")
        lines += [f"{'ok ' if test.passed else 'NO '} {test.text}" for test in self.tests]
        return "\n".join([*lines, self.verdict])


def diagnose(posterior: Posterior, data: Data, *, inputs: Any = None, parameters: bool = False) -> Diagnosis:
    """Whether the chains of a posterior mixed, with a verdict. `data` are those it was fitted to.

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
    parts = joined(list(posterior.parts)) if len(posterior.parts) > 1 else posterior.parts  # a sweep's, one by one
    if len(parts) != 1 or not isinstance(parts[0].family, Empirical):
        kinds = " and ".join(type(part.family).__name__ for part in posterior.parts)
        raise ValueError(
            f"expected chains of one sampler, such as bn.fit(bn.HMC(), ...) gives, got {kinds}: other posteriors "
            "have no sequence of draws to judge"
        )
    return parts[0]


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
        for i, one in enumerate(x.reshape(*x.shape[:2], -1).unbind(-1)):
            yield (f"{name} {i}" if x[0, 0].numel() > 1 else name), one
    for b in range(outputs.shape[2]):
        for o in range(outputs.shape[3]):
            yield f"prediction {b}" + (f", output {o}" if outputs.shape[3] > 1 else ""), outputs[:, :, b, o]


def _over_draws(part: Part, function: Any) -> tuple[Tensor, ...]:
    """`function(params, buffers)` of each draw in order, leaves (C, K, ...). Draws are read some at a time, since they
    may lie in a file."""
    family: Any = part.family
    both, (chains, count) = (family.params, family.buffers), leaves(family.params)[0].shape[:2]
    together = max(1, CHUNK // count)  # chains, where they are short
    pieces = []
    with torch.no_grad():
        for c in range(0, chains, together):
            some = take(both, slice(c, c + together))
            for part_of in (slice(i, i + CHUNK) for i in range(0, count, CHUNK)):
                few = tree_map(lambda x, rows=part_of: x[:, rows].flatten(0, 1), some)
                pieces.append(lift(function)(*few))
    return tuple(torch.cat(xs).unflatten(0, (chains, count)) for xs in zip(*pieces))


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
    dimension = size(take(take(_params(part), 0), 0))
    return kinetic_temperature(torch.tensor(curves["kinetic"]), dimension)


def _configurational(part: Part, data: Data) -> Temperature:
    problem, batch, family = part.adapted(), _batch(part, data), cast(Empirical, part.family)
    chains, count = leaves(family.params)[0].shape[:2]
    every = max(1, math.ceil(chains * count / GRADIENTS))
    some = tree_map(lambda x: x[:, ::every].flatten(0, 1), (family.params, family.buffers))

    def slopes(params: Params, buffers: Params) -> Params:
        def energy(params: Params) -> Tensor:
            return problem.potential(params, buffers, batch, None, "eval")[0]

        return torch.func.grad(energy)(params)

    total = leaves(some)[0].shape[0]
    pieces = [ravel(lift(slopes)(*take(some, slice(i, i + CHUNK))), 1) for i in range(0, total, CHUNK)]
    positions = ravel(tree_map(lambda x: x[:, ::every], family.params), 2)
    heat = part.recipe.temperature if isinstance(part.recipe, (Chain, Stochastic)) else 1.0  # beside the problem's
    return configurational_temperature(positions, torch.cat(pieces).reshape(positions.shape) / heat)


def _params(part: Part) -> Params:
    family: Any = part.family
    return family.params


def _flat(family: Any) -> Tensor:
    """All draws as vectors, (C, K, d)."""
    return ravel(family.params, 2)


def _plain(value: Any) -> Any:
    """A value as JSON has it: None for what is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _worst(rows: tuple[Row, ...], most: int = 12) -> list[Row]:
    """The loss and what the likelihood learned, then the quantities on which chains agree least."""
    first = [r for r in rows if not r.name.startswith(("prediction", "weight"))]
    rest = sorted((r for r in rows if r not in first), key=lambda r: -r.rhat)
    return [*first, *rest[: max(0, most - len(first))]]
