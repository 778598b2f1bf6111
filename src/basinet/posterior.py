"""What `fit` returns: a distribution over the weights of one or many members, that predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .calibrate.conformal_sets import Conformal
from .calibrate.temperature import Temperature, tempered
from .core.documented import with_field_doc
from .core.lift import lift
from .core.noise import Noise
from .core.tree import Params, Point, concatenate, leaves, move, nbytes, stack, take, tree_map
from .data import Data, Stream
from .engine import Member, Method
from .engine.method import short
from .families import Delta, Empirical, Family, Mixture
from .pool.codec import digest
from .predict import Draws, Outputs, Predictive, Predictor, Via, assembled, default_via
from .problem import Problem


@dataclass(frozen=True, eq=False)
class Part:
    """Members of one network that one recipe made: they share their axes."""

    problem: Problem
    family: Family  # stacked, leaves (M, ...)
    members: tuple[Member, ...]
    recipe: Method | None = None  # None for a module that was trained elsewhere
    inputs: Any = None  # training inputs kept to refresh norm statistics, where the recipe asks for it
    info: dict[str, Any] = field(default_factory=dict)  # curves (one row per member), the engine's choice, seconds
    rows: Tensor | None = None  # (M, n): which of the inputs are each member's own; None: all

    def adapted(self) -> Problem:
        """The problem as the recipe sees it."""
        return self.problem if self.recipe is None else self.recipe.adapt(self.problem)

    def take(self, index: list[int]) -> Part:
        """Some of the members."""
        together = index == list(range(index[0], index[0] + len(index)))  # then a view does, where draws are in a file
        chosen = torch.tensor(index, device=leaves(self.family)[0].device)
        rows = slice(index[0], index[0] + len(index)) if together else chosen
        curves = {name: [v[i] for i in index] for name, v in self.info.get("curves", {}).items()}
        notes = {"notes": [self.info["notes"][i] for i in index]} if "notes" in self.info else {}
        return replace(
            self,
            family=take(self.family, rows),
            members=tuple(self.members[i] for i in index),
            info=self.info | ({"curves": curves} if curves else {}) | notes,
            rows=None if self.rows is None else self.rows[index],
        )

    def draws(self, samples: int | None, seed: int) -> Draws:
        """The draws with which these members predict."""
        if samples is not None and samples < 1:
            raise ValueError(f"expected at least one sample per member, got {samples}")
        mode = Method.mode if self.recipe is None else self.recipe.mode
        points = None if mode == "dropout" else take(self.family, 0).points
        default = Method.samples if self.recipe is None else self.recipe.samples
        asked = samples or (points or default)
        device = leaves(self.family)[0].device
        root = Noise.seed(seed, device).split("predict")
        seeds, numbers = torch.tensor([(signed(m.seed), m.k) for m in self.members], device=device).unbind(-1)
        keys = root.split(seeds).split(numbers).key
        count = asked if points is None else min(asked, points)
        held = self.recipe is not None and self.recipe.held
        return Draws(self.adapted(), self.family, keys, count, mode, refresh=self.inputs, held=held, rows=self.rows)

    def predictor(self, samples: int | None, via: Via | None, seed: int, keep: bool = False) -> Predictor:
        """These members as they predict; the recipe says how, where `via` does not."""
        chosen = via or default_via("sample" if self.recipe is None else self.recipe.via, self.problem.likelihood)
        return Predictor(self.draws(samples, seed), chosen, keep)


@with_field_doc
@dataclass(frozen=True, eq=False)
class Posterior:
    """A mixture of members, each a distribution over weights. `len()` counts members, indexing slices them.

    Slices, mixtures (`bn.mix`) and loaded files are posteriors too. Members keep their identity (seed and
    number), so a member's draws do not depend on the other members.
    """

    parts: tuple[Part, ...]
    """Members that were fitted together, with their problem and recipe."""
    weights: Tensor | None = None
    """(M,): weights of the members; None: equal."""
    temperature: Temperature | None = None
    """Temperature of the predictions, as `bn.temper` finds it; None is 1."""
    conformal: Conformal | None = None
    """How predictions become sets or intervals, as `bn.conformal` finds it."""

    @staticmethod
    def of(module: nn.Module, problem: Problem) -> Posterior:
        """A trained module as a posterior of one member, to start methods from or to mix. The module is copied."""
        point = problem.complete(problem.network.read(module))
        bad = [n for n, x in point.params.items() if not bool(x.isfinite().all())]
        if bad:
            raise ValueError(f"expected finite parameters, got NaN or infinity in {', '.join(bad)}")
        return Posterior((Part(problem, stack([Delta(point.params, point.buffers)]), (member_of(point),)),))

    def __len__(self) -> int:
        return sum(len(p.members) for p in self.parts)

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(p.members)} of {_in_words(p)}" for p in self.parts[:3])
        more = f", ... ({len(self.parts)} kinds)" if len(self.parts) > 3 else ""
        return f"Posterior(members={len(self)}: {parts}{more})"

    def __getitem__(self, index: int | slice | Sequence[int]) -> Posterior:
        """The posterior of some of the members."""
        n = len(self)
        chosen = (
            list(range(n))[index] if isinstance(index, slice) else [index] if isinstance(index, int) else list(index)
        )
        if not chosen or any(not -n <= i < n for i in chosen):
            raise IndexError(f"expected members among 0 ... {n - 1}, got {index}")
        chosen = [i % n for i in chosen]
        places = [(j, i) for j, part in enumerate(self.parts) for i in range(len(part.members))]  # of each member
        runs = groupby((places[i] for i in chosen), key=lambda place: place[0])
        parts = [self.parts[j].take([i for _, i in run]) for j, run in runs]
        weights = None if self.weights is None else self.weights[torch.tensor(chosen)]
        if weights is not None and not bool(weights.sum() > 0):
            raise ValueError(f"the members {index} have no weight in this mixture: there is no posterior of them")
        temperature = self.temperature
        if temperature is not None and temperature.of == "members":
            temperature = Temperature("members", temperature.values[torch.tensor(chosen)])
        return Posterior(tuple(parts), weights, temperature)

    @property
    def members(self) -> tuple[Member, ...]:
        """Who the members are."""
        return tuple(m for p in self.parts for m in p.members)

    @property
    def problem(self) -> Problem:
        """The problem; that of the first part, where networks differ."""
        return self.parts[0].problem

    @property
    def recipe(self) -> Method | None:
        """The method that made it; None for a module trained elsewhere. A mixture of recipes has one per part."""
        return self.parts[0].recipe

    @property
    def info(self) -> dict[str, Any]:
        """Curves (one row per member), the engine's choice, seconds; of each part, where there are several."""
        return self.parts[0].info if len(self.parts) == 1 else {"parts": [p.info for p in self.parts]}

    @property
    def family(self) -> Family:
        """The distribution over (params, buffers): the members' mixture."""
        return Mixture(self._one_network("family").family, self._mass())

    def predict(
        self,
        inputs: Any,
        samples: int | None = None,
        *,
        via: Via | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> Predictive:
        """Outputs of all members on the inputs, on axes (M, S, B, *event), and what follows from them.

        `samples` are per member (default: all points of a finite family, else what the recipe says); more than a
        family has points are not drawn. `via` says how members predict (default: what their recipe says):
        "sample" the network at draws; "linear" its linear function around the mean of a Gaussian family, in closed
        form under Gaussian noise and at draws otherwise; "probit" and "bridge" the probabilities of that function in
        closed form, for classes, which leaves no samples to tell aleatoric from within. `batch_size` inputs go
        through the network at a time. For many inputs or members, `bn.score(posterior, data)` scores without holding
        all outputs.
        """
        rows = self._inputs(inputs)
        return self.assemble([predictor(rows, batch_size) for predictor in self.predictors(samples, via, seed)])

    def predictors(
        self, samples: int | None = None, via: Via | None = None, seed: int = 0, keep: bool = False
    ) -> list[Predictor]:
        """The members of each part, as they predict; `keep` holds what several calls need."""
        return [part.predictor(samples, via, seed, keep) for part in self.parts]

    def assemble(self, outputs: Sequence[Outputs]) -> Predictive:
        """One predictive from what the parts give, at the temperature."""
        whole = assembled(list(outputs), self.problem.likelihood, None if self.weights is None else self._mass())
        whole = whole if self.temperature is None else tempered(whole, self.temperature)
        return whole if self.conformal is None else replace(whole, conformal=self.conformal)

    def sample(self, n: int, seed: int = 0) -> Params:
        """`n` draws of the params from each member, leaves (M, n, ...)."""
        part = self._one_network("sample")
        if part.recipe is not None and part.recipe.mode == "dropout":
            raise ValueError(
                f"a draw of {part.recipe.label} is a mask over what passes through the network, not a set of params: "
                "use predict"
            )
        keys = part.draws(n, seed).keys

        def member(family: Family, key: Tensor) -> Params:
            return family.draws(Noise(key).split("draw"), 0, n).params

        return lift(member)(part.family, keys)

    def mean(self) -> Params:
        """The mean of the params over the posterior."""
        return self.family.mean().params

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the mixture of members at `params`."""
        return self.family.log_prob(params)

    def scaled(self, factor: float) -> Posterior:
        """The posterior with the covariance of every member times a factor, its means as they are: for Gaussian
        families. `info` holds the factor, over all scalings. A temperature, or sets by `bn.conformal`, were found for
        other predictions and are not kept: tune again."""
        parts = []
        for part in self.parts:
            before = part.info.get("covariance_scale", 1.0)
            info = part.info | {"covariance_scale": before * factor}
            parts.append(replace(part, family=part.family.scaled(factor), info=info))
        return Posterior(tuple(parts), self.weights)

    def update(self, batch: Any) -> Posterior:
        """The posterior after a batch of further examples, given as Data or a tuple (inputs, targets), for members that
        come from `bn.online`. This one stays as it is. Rows whose target is NaN are skipped and counted in `info`. A
        temperature, or sets by `bn.conformal`, were found for other predictions and are not kept."""
        from .online import updated

        return updated(self, batch)

    def points(self) -> list[Point]:
        """The mean of each member, as a list: the points at which methods start from this posterior."""
        return [take(p.family, i).mean() for p in self.parts for i in range(len(p.members))]

    def apart(self) -> Posterior:
        """Each point of members that have several, such as snapshots, as a member of its own: to start methods from.
        Point j of K of member k has number k K + j."""
        parts, shares = [], []
        for part in self.parts:
            count = take(part.family, 0).points or 1
            shares += [count] * len(part.members)
            if not isinstance(part.family, Empirical):
                parts.append(part)
                continue
            points = Point(part.family.params, part.family.buffers)
            params, buffers = tree_map(lambda x: x.flatten(0, 1), points)
            members = tuple(Member(m.seed, m.k * count + j) for m in part.members for j in range(count))
            info = {name: value for name, value in part.info.items() if name not in ("curves", "notes")}
            parts.append(replace(part, family=Delta(params, buffers), members=members, info=info))
        mass = None
        if self.weights is not None or len(set(shares)) > 1:
            counts = torch.tensor(shares, device=self._mass().device)
            mass = (self._mass() / counts).repeat_interleave(counts)
        return Posterior(tuple(parts), mass)

    def module(self, member: int = 0) -> nn.Module:
        """A member as a plain module in eval mode, to deploy or export: at the mean of the member's distribution, so
        that it has the network's weights and none of their uncertainty. It is a copy."""
        part = self[member].parts[0]
        network = part.adapted().network.alone()
        if network.params != part.problem.network.params or type(network) is not type(part.problem.network):
            raise TypeError(
                f"a member of {short(part.recipe) if part.recipe else 'this posterior'} is more than the network: it "
                "predicts only as a posterior"
            )
        return network.at(part.draws(1, seed=0).centres()[0])

    def to(self, device: torch.device | str) -> Posterior:
        """The posterior with its tensors on a device."""
        parts = tuple(
            replace(p, family=move(p.family, device), inputs=move(p.inputs, device), rows=move(p.rows, device))
            for p in self.parts
        )
        return replace(self, parts=parts, weights=None if self.weights is None else self.weights.to(device))

    def nbytes(self) -> int:
        """Bytes of memory the members take."""
        return sum(nbytes(p.family) for p in self.parts)

    def save(self, path: Path | str) -> None:
        """Writes a folder of safetensors and JSON that `bn.load(path, make_net)` reads back."""
        from .saving import save

        save(self, Path(path))

    def _inputs(self, inputs: Any) -> Any:
        like = leaves(self.parts[0].family)[0]
        if isinstance(inputs, Stream):
            raise TypeError(
                "predict takes the inputs of one batch and keeps all outputs: call it batch by batch, or bn.score for "
                "the scores of a stream"
            )
        if isinstance(inputs, Data):
            raise TypeError("expected inputs as tensors or arrays, got Data: predict(data.inputs)")
        inputs = tree_map(lambda x: x if isinstance(x, Tensor) else torch.as_tensor(x, dtype=_default(x)), inputs)
        first = leaves(inputs)
        if not first or any(x.dim() == 0 for x in first):
            raise ValueError("expected inputs as tensors or arrays with a leading axis of examples, got numbers")
        if any(x.shape[0] == 0 for x in first):
            raise ValueError("expected inputs with at least one row, got none")
        suspect = (x for x in first if x.is_floating_point() and not bool(x.sum().isfinite()))  # a sum may overflow
        bad = sum(int((~x.isfinite()).sum()) for x in suspect)
        if bad:
            raise ValueError(f"expected finite inputs, got {bad} values that are NaN or infinite")
        return move(inputs, like.device, like.dtype)

    def _mass(self) -> Tensor:
        if self.weights is not None:
            return self.weights / self.weights.sum()
        device = leaves(self.parts[0].family)[0].device
        return torch.full((len(self),), 1 / len(self), dtype=torch.float64, device=device)

    def _one_network(self, what: str) -> Part:
        if len(self.parts) > 1:
            raise ValueError(
                f"this posterior mixes {len(self.parts)} kinds of members, which have no common {what}: slice it to "
                f"one kind first, "
                "or use predict"
            )
        return self.parts[0]


def member_of(point: Point) -> Member:
    """The identity of a member that was trained elsewhere: its values stand in for a seed, so that different modules
    get different noise, and the same module always the same."""
    return Member(int(digest(point.params | {f"buffer {n}": x for n, x in point.buffers.items()})[:15], 16), 0)


def mix(posteriors: Sequence[Posterior], weights: Sequence[float] | None = None) -> Posterior:
    """The mixture of posteriors, as one posterior. `weights` are one per posterior; by default members count equally.

    Networks may differ, as long as they share a likelihood: an ensemble of architectures predicts and saves.
    """
    if not posteriors:
        raise ValueError("expected at least one posterior to mix, got none")
    kinds = {repr(p.likelihood) for q in posteriors for p in (part.problem for part in q.parts)}
    if len(kinds) > 1:
        raise ValueError(f"expected posteriors under one likelihood, got {' and '.join(sorted(kinds))}")
    if weights is None:
        mass = None
        if any(q.weights is not None for q in posteriors):
            mass = torch.cat([q._mass() * len(q) for q in posteriors])
    else:
        fits = len(weights) == len(posteriors) and all(0 <= w < math.inf for w in weights) and sum(weights) > 0
        if not fits:
            raise ValueError(f"expected {len(posteriors)} non-negative weights, one per posterior, got {list(weights)}")
        mass = torch.cat([w * q._mass() for w, q in zip(weights, posteriors)])
    return Posterior(joined([p for q in posteriors for p in q.parts]), mass, _mixed_temperature(posteriors))


def _mixed_temperature(posteriors: Sequence[Posterior]) -> Temperature | None:
    """That of each member; an average has none within a larger one."""
    given = [q.temperature for q in posteriors]
    if any(t is not None and t.of != "members" for t in given):
        raise ValueError("the temperature of an average means nothing in a larger average: mix first, then bn.temper")
    if all(t is None for t in given):
        return None
    ones = [torch.ones(len(q), dtype=torch.float64) for q in posteriors]
    return Temperature("members", torch.cat([one if t is None else t.values for one, t in zip(ones, given)]))


def joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbours of the same problem and recipe become one part."""
    joined = [parts[0]]
    for part in parts[1:]:
        last = joined[-1]
        if part.problem is last.problem and part.recipe == last.recipe and part.inputs is last.inputs:
            names = last.info.get("curves", {}).keys() & part.info.get("curves", {}).keys()
            curves = {n: last.info["curves"][n] + part.info["curves"][n] for n in names}
            info = last.info | ({"curves": curves} if curves else {})
            if "notes" in last.info or "notes" in part.info:
                info["notes"] = [line for p in (last, part) for line in p.info.get("notes", [[]] * len(p.members))]
            family = concatenate([last.family, part.family])
            rows = None if last.rows is None or part.rows is None else torch.cat([last.rows, part.rows])
            joined[-1] = replace(last, family=family, members=last.members + part.members, info=info, rows=rows)
        else:
            joined.append(part)
    return tuple(joined)


def _in_words(part: Part) -> str:
    """The recipe of members and their family: MAP(epochs=30), Delta over 51 parameters."""
    origin = "a module trained elsewhere" if part.recipe is None else short(part.recipe)
    total = sum(math.prod(shape) for shape in part.problem.network.params.values())
    return f"{origin}, {type(part.family).__name__} over {total:,} parameters"


def signed(seed: int) -> int:
    """The same 64 bits as a signed number, as int64 tensors hold them."""
    return (seed + 2**63) % 2**64 - 2**63


def _default(x: Any) -> torch.dtype | None:
    return torch.get_default_dtype() if str(getattr(x, "dtype", "")) == "float64" else None
