"""A table replayed in time: each batch of rows is predicted, scored, and then learned from (prequential).

The first rows fit the encoder, train the network and its noise, and are the first batch of a filter; the rest is the
stream. All that a stream has counted travels in the posterior's `info`, so that one folder, written in one move, is
where it goes on: a kill loses at most what is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from ..calibrate.conformal_sets import Conformal, Kind, class_scores
from ..core.registry import Saved
from ..data import Data
from ..engine import Engine
from ..filters import Alarm, Filter
from ..filters.tracking import AdaptiveConformal
from ..fit import fit
from ..methods.map import MAP
from ..networks import MLP
from ..online import online
from ..pool import FileError, decode, encode, fingerprint, read_json, write_json
from ..posterior import Posterior
from ..predict import NumberPredictive
from ..problem import Problem
from ..problem.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from ..problem.priors import Normal
from ..saving import load
from .encoder import Encoder, check_encoder
from .load import Say, fit_table
from .naive import NAMES, Classes, Numbers, streamed
from .rules import Rules
from .table import Table
from .values import missing, refuse, shown, typed

STREAM, STATE = "stream.json", "state"
WAITING = 1000  # rows without a target, the last ones, that are looked at again when a file has grown
EPOCHS = 300  # over first rows that are too few to validate on
HELD, LEAST = 4, 20  # one of HELD first rows, the last of them, validates, where there are LEAST or more
COUNTED = {"of", "row", "times", "skipped", "late", "waiting", "dropped", "alarms", "alarm", "intervals", "sums"}
COUNTED |= {"past", "naive"}
LIKELIHOODS: dict[str, Likelihood] = {
    "classes": Categorical(),
    "labels": Bernoulli(),
    "real": Gaussian(noise=0.5, learned=True),
}


@dataclass(frozen=True, kw_only=True)
class StreamPlan(Saved):
    """What a stream is: it goes on only as what it began as."""

    kind: ClassVar[str] = "plan"

    target: str
    time: str
    method: Filter
    first: int = 100  # rows that train the network before the stream begins
    batch: int = 10  # rows that are predicted, then learned from
    level: float = 0.9  # of the adaptive conformal intervals
    hidden: tuple[int, ...] = (20,)  # widths of the network; none: a linear model
    lags: int = 0  # targets of the rows before, as inputs
    seed: int = 0

    def __post_init__(self) -> None:
        whole = (self.first, self.batch, self.lags, self.seed, *self.hidden)
        if not isinstance(self.method, Filter) or not all(type(x) is int for x in whole):
            raise TypeError("expected a filter as the method, and whole numbers of rows and units")
        if self.first < 5 or self.batch < 1:
            raise ValueError(f"expected at least 5 first rows and 1 row in a batch, got {self.first} and {self.batch}")
        if self.lags < 0 or any(width < 1 for width in self.hidden):
            raise ValueError(f"expected lags of at least 0 and widths of at least 1, got {self.lags} and {self.hidden}")
        if not 0 < self.level < 1:
            raise ValueError(f"expected a level between 0 and 1, got {self.level}")


@dataclass(frozen=True, eq=False)
class Replay:
    """A stream after some of its rows."""

    plan: StreamPlan
    encoder: Encoder
    posterior: Posterior  # with what was counted, in info["stream"]

    @property
    def counted(self) -> dict[str, Any]:
        """Rows done, skipped and late; sums of scores; references, alarm and intervals."""
        return self.posterior.info["stream"]

    def steps(self, table: Table) -> Iterator[tuple[Replay, dict[str, Any]]]:
        """After each batch that the table still has: the stream, and a record of the batch."""
        table, times = self._checked(table)
        here, done = self, self.counted["row"]
        past = _digested(times[:done])
        for begin in range(done, table.n, self.plan.batch):
            rows = np.arange(begin, min(begin + self.plan.batch, table.n))
            past.update(_bytes(times[rows]))
            here, record = here._step(table, rows, str(times[begin]), past.hexdigest())
            yield here, record

    def save(self, folder: Path) -> None:
        """Writes what the stream is, once, and where it stands."""
        if not (folder / STREAM).exists():
            write_json(folder / STREAM, {"plan": encode(self.plan, {}), "encoder": encode(self.encoder, {})})
        self.posterior.save(folder / STATE)

    @staticmethod
    def load(folder: Path) -> Replay:
        """What `save` wrote."""
        content = read_json(folder / STREAM)
        try:
            plan, encoder = decode(content["plan"], {}), decode(content["encoder"], {})
            check_encoder(encoder)
            if not isinstance(plan, StreamPlan):
                raise ValueError("expected a plan")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(folder / STREAM, f"it is damaged: {error}") from error
        posterior = load(folder / STATE, lambda: _network(encoder, plan))
        counted = posterior.info.get("stream", {})
        if posterior.recipe != plan.method or counted.get("of") != fingerprint(encode(encoder, {})):
            raise FileError(
                folder / STATE, f"it is the state of another stream than {STREAM}: begin another with --out"
            )
        if set(counted) != COUNTED:
            raise FileError(folder / STATE, "another version of basinet wrote it: begin another stream with --out")
        return Replay(plan, encoder, posterior)

    def _checked(self, table: Table) -> tuple[Table, np.ndarray]:
        """Rows by time, of which the first must be those that were streamed."""
        table, times = ordered(table, self.plan.time)
        done = self.counted["row"]
        if done > table.n or _digested(times[:done]).hexdigest() != self.counted["times"]:
            raise ValueError(
                f"{table.name}: its first {done:,} rows by {shown(self.plan.time)} are not those of this stream: new "
                "rows must be later than all that were streamed; begin another stream for other data"
            )
        return lagged(table, self.plan.target, self.plan.lags), times

    def caught_up(self, table: Table) -> Replay:
        """After targets that were missing and have come since: they are learned from late, out of their order."""
        table, _ = self._checked(table)
        waiting = self.counted["waiting"]
        gone = missing(table.column(self.plan.target))
        come = [row for row in waiting if not gone[row] and int((~gone[:row]).sum()) >= self.plan.lags]
        if not come:
            return self
        part = table.take(np.array(come))
        posterior = self.posterior.update((self.encoder.inputs(part), self.encoder.targets(part)))
        left = [row for row in waiting if row not in set(come)]
        return self._counting(posterior, waiting=left, late=self.counted["late"] + len(come))

    def _step(self, table: Table, rows: np.ndarray, at: str, times: str) -> tuple[Replay, dict[str, Any]]:
        part, before = table.take(rows), self.counted
        gone = missing(part.column(self.plan.target))
        unknown = [int(row) for row in rows[gone]]
        waiting, dropped = _waiting(before["waiting"] + unknown)
        after = {
            "row": int(rows[-1]) + 1,
            "times": times,
            "skipped": before["skipped"] + len(unknown),
            "waiting": waiting,
            "dropped": before["dropped"] + dropped,
        }
        record: dict[str, Any] = {"row": after["row"], "at": at, "n": int((~gone).sum())}
        if gone.all():
            return self._counting(self.posterior, **after), record | {"skipped": len(unknown)}
        known = part.take(~gone)
        data = Data(self.encoder.inputs(known), self.encoder.targets(known))
        seen, after_scores = self._scored(data)
        posterior = self.posterior.update((data.inputs, data.targets))
        learned = self._counting(posterior, **after, **after_scores)
        return learned, record | {"skipped": len(unknown)} | seen | {"running": learned.running()}

    def _scored(self, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
        """What predictions before the targets were worth, for the record and for what is counted."""
        before = self.counted
        tracker, alarm = AdaptiveConformal(**before["intervals"]), Alarm(**before["alarm"])
        kind: Kind = "scaled" if self.encoder.target.what == "real" else "lac"
        rule = Conformal(kind, self.plan.level, tracker.threshold, max(1, tracker.count))
        predictive = replace(self.posterior, conformal=rule).predict(data.inputs, seed=self.plan.seed)
        nll = -predictive.log_prob(data.targets).double()
        if not bool(nll.isfinite().all()):
            raise FloatingPointError(
                "the targets of the next rows have no finite log probability under what was learned so far: check that "
                "they and their inputs are like those before. Take such rows out, or begin another stream with more "
                "--first rows"
            )
        sums, n = dict(before["sums"]), data.n
        if isinstance(predictive, NumberPredictive):
            error = (predictive.mean - data.targets).double()
            scores = predictive.conformal_scores(data.targets, rule)
            low, high = (edge.double() for edge in predictive.conformal_interval)
            width = float((high - low).sum())
            shown_scores = {"rmse": float(error.square().mean().sqrt())}
            sums["squares"] += float(error.square().sum())
            sd, mean = self.encoder.target.sd, self.encoder.target.mean  # type: ignore[attr-defined]
            edges = {"target": data.targets, "low": low, "high": high}
            extra = {name: mean + sd * float(x.mean()) for name, x in edges.items()}
        else:
            right = predictive.probs.argmax(-1) == data.targets
            scores = class_scores(predictive.probs, rule).gather(-1, data.targets[:, None]).squeeze(-1)
            width = float(predictive.conformal_set.sum())
            shown_scores = {"accuracy": float(right.double().mean())}
            sums["right"] += float(right.sum())
            extra = {"confidence": float(predictive.probs.amax(-1).mean())}
        past, naive = streamed(_past(before["past"]), data.targets.reshape(-1).tolist())
        totals = {name: [a + b for a, b in zip(before["naive"][name], naive[name])] for name in NAMES}
        tracked = tracker.after(scores.reshape(-1).tolist())
        sums |= {"n": sums["n"] + n, "nll": sums["nll"] + float(nll.sum()), "width": sums["width"] + width}
        alarm = alarm.after(float(nll.mean()))
        raised = alarm.raised
        alarm = Alarm() if raised else alarm
        own = self._units({"nll": float(nll.mean()), "interval_width": width / n, **shown_scores})
        held = (tracked.held - tracker.held) / n
        seen = {**own, "coverage": held, "threshold": tracker.threshold, "alarm": raised, **extra}
        seen |= {name: self._naive(naive[name], n) for name in NAMES}
        alarms, known = before["alarms"] + int(raised), {"past": asdict(past), "naive": totals}
        return seen, {"intervals": asdict(tracked), "alarm": asdict(alarm), "alarms": alarms, "sums": sums, **known}

    def running(self) -> dict[str, float]:
        """Scores of all predictions so far, in the target's own units."""
        sums, n = self.counted["sums"], max(1, self.counted["sums"]["n"])
        own = {"rmse": math.sqrt(sums["squares"] / n)} if self.encoder.target.what == "real" else {}
        own = own or {"accuracy": sums["right"] / n}
        scores = self._units({"nll": sums["nll"] / n, "interval_width": sums["width"] / n, **own})
        return scores | {"coverage": AdaptiveConformal(**self.counted["intervals"]).coverage}

    def references(self) -> dict[str, dict[str, float]]:
        """What two predictions that never look at inputs scored on the same rows: see naive.py."""
        return {name: self._naive(self.counted["naive"][name], self.counted["sums"]["n"]) for name in NAMES}

    def _naive(self, sums: list[float], n: int) -> dict[str, float]:
        """Scores of a reference, from sums of its NLL and of its errors."""
        nll, error = (x / max(1, n) for x in sums)
        own = {"rmse": math.sqrt(error)} if self.encoder.target.what == "real" else {"accuracy": 1 - error}
        return self._units({"nll": nll, **own})

    def _units(self, scores: dict[str, float]) -> dict[str, float]:
        return self.encoder.scores(scores)

    def _counting(self, posterior: Posterior, **changes: Any) -> Replay:
        part = posterior.parts[0]
        info = part.info | {"stream": self.counted | changes}
        return replace(self, posterior=Posterior((replace(part, info=info),)))


def begin(table: Table, plan: StreamPlan, rules: Rules, say: Say) -> Replay:
    """A stream whose first rows are known. The noise that the network learns from them is known from then on."""
    table, times = ordered(table, plan.time)
    table = lagged(table, plan.target, plan.lags)
    gone = missing(table.column(plan.target))
    known = ~gone & (np.cumsum(~gone) > plan.lags)  # the first targets are only inputs of those after them
    if known.sum() <= plan.first:
        raise ValueError(
            f"{table.name}: expected more rows with a target than the {plan.first:,} first ones, got "
            f"{int(known.sum()):,}: lower --first"
        )
    end = int(np.flatnonzero(known)[plan.first - 1]) + 1
    whole = table.take(known)
    share = plan.first / whole.n
    rules = replace(rules, split=f"time:{plan.time}", keep=(*rules.keep, *lag_names(plan.target, plan.lags)))
    try:
        encoder, _ = fit_table(whole, plan.target, rules, (share, 1 - share), say=say)
    except ValueError as error:
        if plan.lags or set(table.columns) - {plan.target, plan.time, *rules.drop}:
            raise
        raise ValueError(f"{error}. Use --lags 3 to predict it from its own past") from None
    if encoder.target.what == "labels":
        raise ValueError("a stream predicts classes or real numbers, and the target is several labels: name one column")
    head = table.take(slice(0, end)).take(known[:end])
    data = Data(encoder.inputs(head), encoder.targets(head))
    problem = Problem(lambda: _network(encoder, plan), LIKELIHOODS[encoder.target.what], Normal(scale="lecun"))
    start = _started(problem, data, plan.seed)
    posterior = online(plan.method, problem, start=start).update((data.inputs, data.targets))
    level = 1.645 if encoder.target.what == "real" else plan.level
    targets: list[Any] = data.targets.reshape(-1).tolist()
    past, _ = streamed(Numbers() if encoder.target.what == "real" else Classes((0,) * encoder.target.outputs), targets)
    waiting, dropped = _waiting([int(row) for row in np.flatnonzero(gone[:end])])
    counted = {
        "of": fingerprint(encode(encoder, {})),
        "row": end,
        "times": _digested(times[:end]).hexdigest(),
        "skipped": int(gone[:end].sum()),
        "late": 0,
        "waiting": waiting,
        "dropped": dropped,
        "alarms": 0,
        "alarm": asdict(Alarm()),
        "intervals": asdict(AdaptiveConformal(plan.level, threshold=level)),
        "sums": {"n": 0, "nll": 0.0, "squares": 0.0, "right": 0.0, "width": 0.0},
        "past": asdict(past),
        "naive": {name: [0.0, 0.0] for name in NAMES},
    }
    part = posterior.parts[0]
    return Replay(plan, encoder, Posterior((replace(part, info=part.info | {"stream": counted}),)))


def _started(problem: Problem, data: Data, seed: int) -> Posterior:
    """A network and a noise from the first rows. The last quarter of them, which training does not see, says when it
    ends and how large the noise is: rows that were learned from would make it too small, and few steps too large."""
    quiet = Engine(device="cpu", progress=False)
    if data.n < LEAST:
        return fit(MAP(epochs=EPOCHS, batch_size=data.n), problem, data, seed=seed, engine=quiet)
    end = data.n - data.n // HELD
    return fit(MAP(), problem, data.take(slice(end)), val=data.take(slice(end, None)), seed=seed, engine=quiet)


def ordered(table: Table, time: str) -> tuple[Table, np.ndarray]:
    """The rows from the earliest to the latest, and their times; rows of one time stay as the file has them."""
    values = typed(table.column(time))
    label = f"{table.name}: column {shown(time)}"
    refuse(missing(values), values, label, "expected a time in every row of a stream")
    if values.dtype.kind == "O":
        raise ValueError(
            f"{label}: expected the time of a stream as dates such as 2024-05-31 or numbers, got {shown(values[0])}"
        )
    order = np.argsort(values, kind="stable")
    return table.take(order), values[order]


def lag_names(target: str, count: int) -> tuple[str, ...]:
    """How columns of earlier targets are called."""
    return tuple(f"{target}, {k} before" for k in range(1, count + 1))


def lagged(table: Table, target: str, count: int) -> Table:
    """With columns of the last known targets before each row. A row that has fewer of them repeats the first."""
    values, names = table.column(target), lag_names(target, count)
    if not names:
        return table
    if there := [name for name in names if name in table.columns]:
        raise ValueError(f"{table.name}: it has a column {shown(there[0])}, which --lags would make: rename it")
    known = np.flatnonzero(~missing(values))
    if not len(known):
        return table  # which has nothing to learn from, as is said elsewhere
    before = np.searchsorted(known, np.arange(table.n))
    columns = {name: values[known[np.maximum(before - k, 0)]] for k, name in enumerate(names, 1)}
    return Table(table.name, table.columns | columns, table.notes)


class Straight(nn.Module):
    """A linear function plus a network: what comes later lies beyond what was seen, where the first goes on."""

    def __init__(self, inputs: int, outputs: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.bent = MLP(inputs, outputs, hidden=hidden, activation=nn.Tanh) if hidden else None

    def forward(self, inputs: Tensor) -> Tensor:  # (B, inputs) -> (B, outputs)
        straight = self.linear(inputs)
        return straight if self.bent is None else straight + self.bent(inputs)


def _network(encoder: Encoder, plan: StreamPlan) -> nn.Module:
    return Straight(len(encoder.features), encoder.target.outputs, plan.hidden)


def _waiting(rows: list[int]) -> tuple[list[int], int]:
    """Rows without a target that are looked at again, and how many no longer are."""
    return rows[-WAITING:], max(0, len(rows) - WAITING)


def _past(numbers: dict[str, Any]) -> Numbers | Classes:
    return Classes(**numbers | {"counts": tuple(numbers["counts"])}) if "counts" in numbers else Numbers(**numbers)


def _digested(times: np.ndarray) -> Any:
    """A digest of the times of rows, which say that a file has the same past; it can go on with later ones."""
    return sha256(_bytes(times))


def _bytes(times: np.ndarray) -> bytes:
    """Whole numbers are what they are among others."""
    return np.ascontiguousarray(times if times.dtype.kind == "M" else times.astype(np.float64)).tobytes()
